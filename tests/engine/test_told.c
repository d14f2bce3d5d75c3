/* test_told.c - an error of which some rank is not told: the finder has told one rank only, which
 * passes it on to ranks that do not take it up. The last rank waits all the same no longer than it
 * takes to see a death, or to ask. */
#define _GNU_SOURCE
#include "dcomm/impl/comm/comm.h"

#include "faults.h"
#include "ranks.h"

#include <criterion/criterion.h>

/* Rank TOLD passes an error on to the ranks behind it at powers of two, FINDER and ABSENT. */
enum { TOLD = 0, FINDER = 1, ABSENT = 2, LAST = 3, N = 4 };
enum { PID = 40, HEARD = 50, OVER = 51 };

typedef struct silence {
    fault_place place;
    int signal; /* to the finder and the absent rank, once one rank has been told */
} silence;

/* Find an error and tell rank TOLD alone, as if the connections with the others were too slow. */
static void find(fault_rank *f)
{
    dcomm_context *context = f->comm->context;
    dcommi_token_take(context);
    f->comm->members[ABSENT].gone = f->comm->members[LAST].gone = true;
    dcommi_poison(f->comm, DCOMM_ERR_ABORTED, "rank %d has found an error", FINDER);
    dcommi_token_release(context);
    while (atomic_load(&f->s->words[HEARD]) == 0) {
        dcommi_progress_or_yield(context);
    }
}

static void signal_both(const fault_rank *f, int signal)
{
    kill((pid_t)atomic_load(&f->s->words[PID + ABSENT]), signal);
    kill((pid_t)atomic_load(&f->s->words[PID + FINDER]), signal);
}

static int one_is_told(int rank, int n, procs_shared *s, void *arg)
{
    const silence *c = arg;
    fault_rank f;
    fault_join(&f, rank, n, s, c->place, 20);
    RANKS_OK(dcomm_barrier(f.comm, NULL));
    atomic_store(&s->words[PID + rank], (long)getpid());
    fault_meet(&f, -1);
    if (rank == FINDER) {
        find(&f);
        signal_both(&f, c->signal);
    }
    while (rank == FINDER || rank == ABSENT) {
        pause();
    }
    const double begun = procs_now();
    dcomm_status status = dcomm_barrier(f.comm, NULL);
    if (rank == TOLD) {
        fault_expect(&f, status, DCOMM_ERR_ABORTED, (const char *[]){"rank 1 has found", NULL});
        atomic_store(&s->words[HEARD], 1);
    } else {
        PROCS_CHECK(status == DCOMM_ERR_ABORTED || status == DCOMM_ERR_PEER, "%s",
                    dcomm_last_error());
        PROCS_CHECK(procs_now() - begun < 3, "it took %.1f s", procs_now() - begun);
        signal_both(&f, SIGKILL);
        atomic_store(&s->words[OVER], 1);
    }
    while (c->signal == SIGKILL && atomic_load(&s->words[OVER]) == 0) {
        procs_nap(); /* the rank that knows computes, and answers nobody */
    }
    int failed[N], count = 0;
    for (int turn = 0; turn < 3 && count < 2; turn++) { /* each death may come after a decision */
        RANKS_OK(dcomm_comm_agree(f.comm, NULL, failed, N, &count));
    }
    PROCS_TRUE(count == 2 && failed[0] == FINDER && failed[1] == ABSENT);
    return fault_leave(&f);
}

static void run(int signal)
{
    const fault_place places[] = {LOCAL, NET, PAIRS};
    for (int i = 0; i < 3; i++) {
        int ended[PROCS_MAX];
        procs_run(N, 30, one_is_told, &(silence){places[i], signal}, ended);
        for (int r = 0; r < N; r++) {
            const int want = r == FINDER || r == ABSENT ? 128 + SIGKILL : 0;
            cr_expect(ended[r] == want, "place %d: rank %d ended with %d", places[i], r, ended[r]);
        }
    }
}

/* The others die, and the rank that knows is in no call: the last one sees the deaths. */
Test(told, by_a_death, .timeout = 60)
{
    run(SIGKILL);
}

/* The others are stopped: the last one asks, and the rank that knows answers from another call. */
Test(told, by_an_answer, .timeout = 60)
{
    run(SIGSTOP);
}
