/* test_grow_attempts.c - attempts to grow that one newcomer spoils at a known moment: nobody waits
 * for the time-out, and the others go on without it. */
#define _GNU_SOURCE
#pragma GCC diagnostic ignored "-Wunused-function"
#include "dcomm/impl/comm/grow.h"
#include "grow_ranks.h"

#include <fenv.h>

typedef enum moment {
    DIES_INVITED, /* before it meets the others */
    DIES_FOUNDED, /* when it has its part, before it is confirmed */
    LEAVES,       /* in order, when invited */
    STOPS,        /* when invited: it is silent, and lives */
    ROUNDS_UP     /* it computes otherwise */
} moment;

typedef struct trial {
    part p;
    moment when;
    double most_s; /* for all but the newcomer to have a communicator */
} trial;

/* Come as the newcomer that spoils the attempt. */
static int spoil(int rank, procs_shared *s, const trial *t)
{
    dcomm_id id;
    dcommi_newcomer n;
    dcommi_newcomer_place place;
    dcomm_comm *comm = NULL;
    if (t->when == ROUNDS_UP) {
        fesetround(FE_UPWARD);
        ranks_refused(come(rank, s, &t->p, &comm), DCOMM_ERR_MISMATCH, "computes with floats");
        fesetround(FE_TONEAREST);
        return procs_leaks();
    }
    invite(rank, s, &id);
    ranks_settle(rank, PROCS_MAX, t->p.place);
    RANKS_OK(dcommi_newcomer_begin(&n, &id, t->p.timeout_s, NULL));
    PROCS_TRUE(dcommi_newcomer_next(&n, &place) == DCOMM_IN_PROGRESS);
    atomic_store(&s->words[0], (long)getpid());
    if (t->when == LEAVES) {
        dcommi_newcomer_end(&n);
        return procs_leaks();
    }
    if (t->when == STOPS) {
        kill(getpid(), SIGSTOP);
    }
    if (t->when == DIES_FOUNDED) {
        RANKS_OK(dcomm_comm_create(
            &(dcomm_comm_opts){
                .boot = DCOMM_BOOT_ID, .id = place.id, .rank = place.rank, .size = place.size},
            &comm));
    }
    kill(getpid(), SIGKILL);
    return 0;
}

static int spoilt(int rank, int n, procs_shared *s, void *arg)
{
    const trial *t = arg;
    dcomm_comm *comm = NULL, *more = NULL, *rest = NULL;
    dcomm_id id;
    if (rank == n - 1) {
        return spoil(rank, s, t);
    }
    if (rank < t->p.old) {
        setenv("DCOMM_LIVENESS_S", "0.5", 1);
        comm = begin(rank, s, &t->p);
        invite(rank, s, &id);
        const double start = procs_now();
        RANKS_OK(dcomm_comm_grow(comm, &id, n - t->p.old, 30, &more));
        const double took = procs_now() - start;
        PROCS_CHECK(took < t->most_s, "%.2f s", took);
        PROCS_TRUE(dcomm_comm_status(comm) == DCOMM_OK);
        sums(comm, t->p.old);
        RANKS_OK(dcomm_comm_destroy(&comm));
    } else {
        RANKS_OK(come(rank, s, &t->p, &more));
    }
    if (t->when == DIES_FOUNDED) { /* it was a rank when it died */
        PROCS_TRUE(dcomm_comm_size(more) == n);
        PROCS_TRUE(dcomm_barrier(more, NULL) == DCOMM_ERR_PEER);
        RANKS_OK(dcomm_comm_shrink(more, NULL, 0, &rest));
        RANKS_OK(dcomm_comm_destroy(&more));
        more = rest;
    }
    sums(more, n - 1);
    if (t->when == STOPS && rank == 0) {
        kill((pid_t)atomic_load(&s->words[0]), SIGKILL);
    }
    return ranks_leave(&more);
}

static void spoils(moment when, double most_s, bool dies)
{
    run(4, spoilt, &(trial){{2, RANKS_LOCAL, 20}, when, most_s}, dies ? 1u << 3 : 0);
    run(4, spoilt, &(trial){{2, RANKS_PAIRS, 20}, when, most_s}, dies ? 1u << 3 : 0);
}

Test(grow_attempts, dies_when_it_is_invited, .timeout = 60)
{
    spoils(DIES_INVITED, 5, true);
}

Test(grow_attempts, dies_before_it_hears_of_success, .timeout = 60)
{
    spoils(DIES_FOUNDED, 5, true);
}

Test(grow_attempts, leaves, .timeout = 60)
{
    spoils(LEAVES, 5, false);
}

Test(grow_attempts, stops, .timeout = 60)
{
    run(4, spoilt, &(trial){{2, RANKS_LOCAL, 20}, STOPS, 12}, 1u << 3);
}

Test(grow_attempts, computes_otherwise, .timeout = 60)
{
    spoils(ROUNDS_UP, 5, false);
}

/* ---- goodbyes ---- */

static void hear_goodbye(dcomm_context *context, uint64_t id)
{
    const dcommi_header h = {.type = DCOMMI_MSG_GOODBYE, .src = 1, .comm = id, .b = 1};
    const dcommi_arrival arrival = {.peer = -1, .header = &h, .header_len = sizeof h, .data = ""};
    dcommi_on_message(context, context->local, &arrival);
}

/* A newcomer leaves a part that the old ranks drop: nothing is kept of that. */
Test(grow_attempts, goodbyes_to_a_dropped_part, .timeout = 20)
{
    enum { DROPPED = 1234, OTHER = 1235 };
    dcomm_comm *comm = NULL;
    dcomm_comm_opts opts = {.boot = DCOMM_BOOT_ID, .size = 1};
    cr_assert_eq(dcomm_id_create(&opts.id), DCOMM_OK);
    cr_assert_eq(dcomm_comm_create(&opts, &comm), DCOMM_OK);
    dcomm_context *context = comm->context;
    dcommi_growth w = {.word.newcomers = 1, .part = dcommi_comm_new(context)};
    w.part->id = DROPPED;
    for (int early = 0; early < 2; early++) {
        hear_goodbye(context, OTHER);
        hear_goodbye(context, DROPPED);
    }
    cr_assert_eq(context->nstrays, 4);
    dcommi_grow_drop(&w);
    cr_expect_eq(context->nstrays, 2);
    hear_goodbye(context, DROPPED);
    cr_expect_eq(context->nstrays, 2);
    hear_goodbye(context, OTHER);
    size_t kept = 0;
    for (const dcommi_stray *s = context->strays; s != NULL; s = s->next) {
        kept += s->early->header.comm == OTHER;
    }
    cr_expect_eq(kept, 3);
    cr_assert_eq(dcomm_comm_destroy(&comm), DCOMM_OK);
}
