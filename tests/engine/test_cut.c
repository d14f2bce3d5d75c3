/* test_cut.c - ranks that are silent for each other, dead or not: at most one side goes on, and the
 * other one knows that it does not. The loss of a connection is feigned inside each rank. And a
 * death between the two decisions of a shrink. */
#define _GNU_SOURCE
#pragma GCC diagnostic ignored "-Wunused-function"
#include "dcomm/impl/comm/failed.h"
#include "faults.h"
#include "ranks.h"

#include <criterion/criterion.h>

typedef struct cut {
    unsigned sides[2]; /* sets of ranks */
    int goes_on;       /* the side that goes on; -1: none, 2: both */
    int quorum;
} cut;

/* Connect all ranks with each other: UCX 1.13 aborts a process whose connection breaks as it opens.
 */
static void connect_all(dcomm_comm *comm)
{
    float in[PROCS_MAX] = {0}, out[PROCS_MAX];
    RANKS_OK(dcomm_alltoall(comm, in, out, 1, DCOMM_F32, NULL));
    RANKS_OK(dcomm_barrier(comm, NULL));
}

/* Join, each rank on a host of its own, and be connected with all others. */
static fault_rank join(int rank, int n, procs_shared *s, const dcomm_comm_opts *opts)
{
    fault_rank f = {.rank = rank, .n = n, .s = s};
    ranks_settle(rank, n, RANKS_HOSTS);
    f.comm = ranks_join(rank, n, s, opts);
    connect_all(f.comm);
    fault_meet(&f, -1);
    return f;
}

/* Lose all ranks of a set, without proof of their death. */
static void lose(dcomm_comm *comm, unsigned set)
{
    dcommi_token_take(comm->context);
    for (int r = 0; r < comm->size; r++) {
        if (set >> r & 1 && comm->members[r].peer >= 0) {
            dcommi_peer_lost(comm->context, comm->members[r].peer, "it is silent", false);
        }
    }
    dcommi_token_release(comm->context);
}

static int divided(int rank, int n, procs_shared *s, void *arg)
{
    const cut *c = arg;
    fault_rank f = join(rank, n, s, &(dcomm_comm_opts){.quorum = c->quorum, .timeout_s = 5});
    const int side = c->sides[1] >> rank & 1;
    const unsigned others = ((1u << n) - 1) & ~c->sides[side];
    lose(f.comm, others);
    int failed[PROCS_MAX], count = 0;
    RANKS_OK(dcomm_comm_failed(f.comm, NULL, 0, &count));
    PROCS_TRUE(count == __builtin_popcount(others));
    uint64_t flags = ~(UINT64_C(1) << rank);
    const bool goes_on = c->goes_on == 2 || c->goes_on == side;
    dcomm_status status = dcomm_comm_agree(f.comm, &flags, failed, PROCS_MAX, &count);
    PROCS_CHECK(status == (goes_on ? DCOMM_OK : DCOMM_ERR_QUORUM), "rank %d: %s: %s", rank,
                dcomm_status_name(status), dcomm_last_error());
    dcomm_comm *rest = NULL;
    if (goes_on) {
        PROCS_TRUE((uint32_t)~flags == c->sides[side]);
        PROCS_TRUE(count == __builtin_popcount(others));
        RANKS_OK(dcomm_comm_shrink(f.comm, NULL, 0, &rest));
        PROCS_TRUE(dcomm_comm_size(rest) == __builtin_popcount(c->sides[side]));
        RANKS_OK(dcomm_barrier(rest, NULL));
        fault_destroy(&rest, 1);
    } else {
        status = dcomm_comm_shrink(f.comm, NULL, 0, &rest);
        PROCS_TRUE(status == DCOMM_ERR_QUORUM && rest == NULL);
    }
    fault_meet(&f, -1);
    fault_destroy(&f.comm, 2);
    return procs_leaks();
}

static void try_cut(cut c)
{
    int ended[PROCS_MAX], n = 32 - __builtin_clz(c.sides[0] | c.sides[1]);
    cr_expect_eq(procs_run(n, 30, divided, &c, ended), 0);
}

Test(cut, two_sides, .timeout = 120)
{
    try_cut((cut){{0x3, 0xc}, 0, 0}); /* half of them, with the lowest rank */
    try_cut((cut){{0x1, 0xe}, 1, 0});
    try_cut((cut){{0x3, 0xc}, -1, 3});
    try_cut((cut){{0x3, 0xc}, 2, DCOMM_QUORUM_NONE});
}

/* Rank 2 does not hear from rank 0 any more; the others hear from both. All of them leave out rank
 * 0, on rank 2's word. Rank 0 is told, and knows that too few ranks are left to it. */
static int one_sided(int rank, int n, procs_shared *s, void *arg)
{
    (void)arg;
    fault_rank f = join(rank, n, s, &(dcomm_comm_opts){.timeout_s = 8});
    if (rank == 2) {
        lose(f.comm, 1);
    }
    int failed[PROCS_MAX], count = 0;
    dcomm_status status = dcomm_comm_agree(f.comm, NULL, failed, PROCS_MAX, &count);
    if (rank == 0) {
        PROCS_CHECK(status == DCOMM_ERR_QUORUM, "%s: %s", dcomm_status_name(status),
                    dcomm_last_error());
        PROCS_CHECK(dcomm_comm_status(f.comm) == DCOMM_ERR_PEER &&
                        strncmp(dcomm_comm_error(f.comm), "rank 0 ", 7) == 0,
                    "%s", dcomm_comm_error(f.comm));
    } else {
        PROCS_CHECK(status == DCOMM_OK && count == 1 && failed[0] == 0, "rank %d: %s: %s", rank,
                    dcomm_status_name(status), dcomm_last_error());
        RANKS_OK(dcomm_comm_failed(f.comm, failed, PROCS_MAX, &count)); /* from now on known */
        PROCS_TRUE(count == 1 && failed[0] == 0);
    }
    fault_meet(&f, -1);
    fault_destroy(&f.comm, 2);
    return procs_leaks();
}

Test(cut, one_sided, .timeout = 60)
{
    int ended[PROCS_MAX];
    cr_expect_eq(procs_run(4, 30, one_sided, NULL, ended), 0);
}

/* Rank 0 has seen the end of rank 2, and its ABORT says so: rank 1 knows it then, too, though rank
 * 2 is still there for it. */
static int told_of_a_death(int rank, int n, procs_shared *s, void *arg)
{
    (void)arg;
    fault_rank f = join(rank, n, s, &(dcomm_comm_opts){.timeout_s = 8});
    int failed[PROCS_MAX], count = 0;
    if (rank == 0) {
        dcommi_token_take(f.comm->context);
        dcommi_peer_lost(f.comm->context, f.comm->members[2].peer, "its process has ended", true);
        dcommi_token_release(f.comm->context);
    } else if (rank == 1) {
        PROCS_TRUE(dcomm_barrier(f.comm, NULL) == DCOMM_ERR_PEER);
        RANKS_OK(dcomm_comm_failed(f.comm, failed, PROCS_MAX, &count));
        PROCS_TRUE(count == 1 && failed[0] == 2);
    }
    if (rank != 2) {
        RANKS_OK(dcomm_comm_agree(f.comm, NULL, failed, PROCS_MAX, &count));
        PROCS_TRUE(count == 1 && failed[0] == 2);
    }
    fault_meet(&f, -1);
    dcomm_status ignored = dcomm_comm_destroy(&f.comm);
    (void)ignored;
    return procs_leaks();
}

Test(cut, told_of_a_death, .timeout = 60)
{
    int ended[PROCS_MAX];
    cr_expect_eq(procs_run(3, 30, told_of_a_death, NULL, ended), 0);
}

/* Two ranks are lost without proof, and die a moment later: that proves it, and the other two go on
 * though they are half of the ranks without the lowest one. */
static int proven_a_moment_later(int rank, int n, procs_shared *s, void *arg)
{
    (void)arg;
    fault_rank f = join(rank, n, s, &(dcomm_comm_opts){.timeout_s = 8});
    if (rank < 2) {
        nanosleep(&(struct timespec){.tv_nsec = 60000000}, NULL);
        kill(getpid(), SIGKILL);
    }
    lose(f.comm, 0x3);
    int failed[PROCS_MAX], count = 0;
    RANKS_OK(dcomm_comm_agree(f.comm, NULL, failed, PROCS_MAX, &count));
    PROCS_TRUE(count == 2 && failed[0] == 0 && failed[1] == 1);
    fault_destroy(&f.comm, 2);
    return procs_leaks();
}

Test(cut, proven_a_moment_later, .timeout = 60)
{
    int ended[PROCS_MAX];
    procs_run(4, 30, proven_a_moment_later, NULL, ended);
    cr_expect(ended[2] == 0 && ended[3] == 0, "%d, %d", ended[2], ended[3]);
}

/* Rank 3 dies when all have agreed on a list of failed ranks, without it, and before they confirm
 * that they have their parts: the list is agreed on again. */
static int dies_before_it_is_confirmed(int rank, int n, procs_shared *s, void *arg)
{
    (void)arg;
    fault_rank f = join(rank, n, s, &(dcomm_comm_opts){.timeout_s = 8});
    dcomm_comm *rest = NULL;
    if (rank == 3) {
        dcommi_agreement *g;
        RANKS_OK(dcommi_agreement_for(f.comm, "shrink", DCOMMI_AGREE_SHRINK, &g));
        RANKS_OK(dcommi_agreement_reach(g, "shrink", dcommi_agreement_word(g), dcommi_now() + 8));
        kill(getpid(), SIGKILL);
    }
    RANKS_OK(dcomm_comm_shrink(f.comm, NULL, 0, &rest));
    PROCS_CHECK(dcomm_comm_size(rest) == 3, "rank %d: %d ranks", rank, dcomm_comm_size(rest));
    RANKS_OK(dcomm_barrier(rest, NULL));
    fault_destroy(&rest, 1);
    fault_destroy(&f.comm, 2);
    return procs_leaks();
}

Test(cut, dies_before_it_is_confirmed, .timeout = 60)
{
    int ended[PROCS_MAX];
    procs_run(4, 30, dies_before_it_is_confirmed, NULL, ended);
    cr_expect(ended[0] == 0 && ended[1] == 0 && ended[2] == 0, "%d, %d, %d", ended[0], ended[1],
              ended[2]);
}
