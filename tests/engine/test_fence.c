/* test_fence.c - a rank that was given up while it was stopped wakes up later, when the others have
 * gone on without it. It is told so, decides nothing, and disturbs nobody. Who has to notice that
 * it is stopped may have died, or may not wait. */
#define _GNU_SOURCE
#include "faults.h"
#include "ranks.h"

#include <criterion/criterion.h>

enum { COUNT = 20000, PID = 40, OVER = 41, AWAKE = 42 };

/* The others, before the rank wakes up: they destroy the old communicator, keep it, or end without
 * a goodbye. */
typedef enum others { DESTROY, KEEP, END } others;

typedef struct fence {
    int n; /* ranks; the last one falls asleep */
    fault_place place;
    others others;
} fence;

/* Join with a liveness of 1 s, and be connected with all others. */
static void join(fault_rank *f, int rank, int n, procs_shared *s, fault_place place)
{
    setenv("DCOMM_LIVENESS_S", "1", 1);
    fault_join(f, rank, n, s, place, 20);
    PROCS_TRUE(fault_allreduce(f->comm, rank, NULL, COUNT, NULL) == DCOMM_OK);
    fault_meet(f, -1);
}

/* Stop this process, which has nothing to do when it wakes up. */
static void stop_for_good(const fault_rank *f)
{
    atomic_store(&f->s->words[PID], (long)getpid());
    raise(SIGSTOP);
    _exit(0);
}

/* Stop this process. With END a child of it wakes it up, for nobody else is left. */
static void sleep_long(fault_rank *f, const fence *c)
{
    const pid_t self = getpid();
    atomic_store(&f->s->words[PID], (long)self);
    pid_t child = c->others == END ? fork() : -1;
    if (child == 0) {
        while (atomic_load(&f->s->words[OVER]) < f->n - 1) {
            procs_nap();
        }
        nanosleep(&(struct timespec){.tv_nsec = 300000000}, NULL);
        kill(self, SIGCONT);
        _exit(0);
    }
    raise(SIGSTOP);
    if (child > 0) {
        waitpid(child, NULL, 0);
    }
}

/* The rank that was given up: all that it can call tells it so, and soon. */
static void wake_up(fault_rank *f)
{
    dcomm_comm *alone = NULL;
    uint64_t flags = 1;
    char counted[48], named[16];
    snprintf(counted, sizeof counted, "counts rank %d as dead", f->rank);
    snprintf(named, sizeof named, "rank %d (", f->rank);
    double begun = procs_now();
    dcomm_status status = fault_allreduce(f->comm, f->rank, NULL, COUNT, NULL);
    PROCS_CHECK(status == DCOMM_ERR_PEER, "%s", dcomm_last_error());
    PROCS_CHECK(strstr(dcomm_last_error(), counted) != NULL ||
                    strncmp(dcomm_last_error(), named, strlen(named)) == 0,
                "%s", dcomm_last_error());
    status = dcomm_comm_agree(f->comm, &flags, NULL, 0, NULL);
    PROCS_CHECK(status == DCOMM_ERR_PEER || status == DCOMM_ERR_QUORUM, "agree: %s %s",
                dcomm_status_name(status), dcomm_last_error());
    status = dcomm_comm_shrink(f->comm, NULL, 0, &alone);
    PROCS_CHECK((status == DCOMM_ERR_PEER || status == DCOMM_ERR_QUORUM) && alone == NULL,
                "shrink: %s %s", dcomm_status_name(status), dcomm_last_error());
    PROCS_CHECK(procs_now() - begun < 3, "it took %.1f s", procs_now() - begun);
    fault_destroy(&f->comm, 1.5);
    atomic_store(&f->s->words[AWAKE], 1);
}

static int given_up(int rank, int n, procs_shared *s, void *arg)
{
    const fence *c = arg;
    fault_rank f;
    join(&f, rank, n, s, c->place);
    if (rank == n - 1) {
        sleep_long(&f, c);
        wake_up(&f);
        return procs_leaks();
    }
    dcomm_status status = fault_allreduce(f.comm, rank, NULL, COUNT, NULL);
    PROCS_CHECK(status == DCOMM_ERR_PEER, "%s", dcomm_last_error());
    dcomm_comm *rest = NULL;
    RANKS_OK(dcomm_comm_shrink(f.comm, NULL, 0, &rest));
    if (c->others == DESTROY) {
        fault_destroy(&f.comm, 1.5);
    }
    PROCS_TRUE(fault_allreduce(rest, rank, NULL, COUNT, NULL) == DCOMM_OK);
    if (c->others == END) {
        atomic_fetch_add(&s->words[OVER], 1);
        _exit(0);
    }
    if (rank == 0) {
        kill((pid_t)atomic_load(&s->words[PID]), SIGCONT);
    }
    const double until = procs_now() + 10;
    for (uint64_t more = 1; more != 0;) {
        PROCS_TRUE(fault_allreduce(rest, rank, NULL, COUNT, NULL) == DCOMM_OK);
        if (rank == 0) {
            more = atomic_load(&s->words[AWAKE]) == 0 && procs_now() < until;
        }
        RANKS_OK(dcomm_broadcast(rest, &more, &more, 1, DCOMM_U64, 0, NULL));
        procs_nap();
    }
    fault_destroy(&rest, 1.5);
    return fault_leave(&f);
}

static void run(fence c)
{
    int ended[PROCS_MAX];
    procs_run(c.n, 60, given_up, &c, ended);
    for (int r = 0; r < c.n; r++) {
        cr_expect(ended[r] == 0, "rank %d ended with %d", r, ended[r]);
    }
}

Test(fence, on_one_host, .timeout = 60)
{
    run((fence){3, LOCAL, DESTROY});
    run((fence){3, LOCAL, KEEP});
}

Test(fence, on_other_hosts, .timeout = 60)
{
    run((fence){3, NET, DESTROY});
    run((fence){3, NET, KEEP});
}

Test(fence, on_two_hosts, .timeout = 60)
{
    run((fence){3, PAIRS, DESTROY});
    run((fence){3, PAIRS, KEEP});
}

/* The other process has ended, which proves nothing of what it had decided. */
Test(fence, by_a_rank_that_has_ended, .timeout = 60)
{
    run((fence){2, LOCAL, END});
    run((fence){2, NET, END});
}

/* Rank 0 dies, and rank 1 is stopped: on two hosts no other rank of its own host is left to notice.
 * The others are in an agreement, which no message of theirs begins. */
static int beside_a_death(int rank, int n, procs_shared *s, void *arg)
{
    const fence *c = arg;
    fault_rank f;
    join(&f, rank, n, s, c->place);
    if (rank == 0) {
        kill(getpid(), SIGKILL);
    } else if (rank == 1) {
        stop_for_good(&f);
    }
    int failed[PROCS_MAX], count = 0;
    double begun = procs_now();
    RANKS_OK(dcomm_comm_agree(f.comm, NULL, failed, PROCS_MAX, &count));
    while (count == 1 && failed[0] == 0) { /* it came to that before rank 1 was needed */
        RANKS_OK(dcomm_comm_agree(f.comm, NULL, failed, PROCS_MAX, &count));
    }
    PROCS_TRUE(count == 2 && failed[0] == 0 && failed[1] == 1);
    PROCS_CHECK(procs_now() - begun < 8, "it took %.1f s", procs_now() - begun);
    if (rank == 2) {
        kill((pid_t)atomic_load(&s->words[PID]), SIGCONT);
    }
    fault_destroy(&f.comm, 1.5);
    return procs_leaks();
}

Test(fence, beside_a_death, .timeout = 60)
{
    const fault_place places[] = {LOCAL, PAIRS};
    for (int i = 0; i < 2; i++) {
        int ended[PROCS_MAX];
        procs_run(4, 60, beside_a_death, &(fence){.place = places[i]}, ended);
        cr_expect(ended[0] == 128 + SIGKILL && ended[1] == 0 && ended[2] == 0 && ended[3] == 0,
                  "place %d: they ended with %d, %d, %d, %d", places[i], ended[0], ended[1],
                  ended[2], ended[3]);
    }
}

/* Rank 3 is stopped. Rank 1 waits for it, in a communicator without the first ranks of their hosts,
 * which do not wait. */
static int beside_others_that_compute(int rank, int n, procs_shared *s, void *arg)
{
    (void)arg;
    fault_rank f;
    dcomm_comm *part = NULL;
    join(&f, rank, n, s, PAIRS);
    RANKS_OK(dcomm_comm_split(f.comm, rank % 2, 0, &part));
    RANKS_OK(dcomm_barrier(part, NULL));
    fault_meet(&f, -1);
    if (rank == 3) {
        stop_for_good(&f);
    }
    if (rank == 1) {
        double begun = procs_now();
        dcomm_status status = dcomm_barrier(part, NULL);
        PROCS_CHECK(status == DCOMM_ERR_PEER, "%s", dcomm_last_error());
        PROCS_CHECK(procs_now() - begun < 8, "it took %.1f s", procs_now() - begun);
        kill((pid_t)atomic_load(&s->words[PID]), SIGCONT);
    }
    fault_meet(&f, 3);
    dcomm_status ignored = dcomm_comm_destroy(&part);
    ignored = dcomm_comm_destroy(&f.comm);
    (void)ignored;
    return 0;
}

Test(fence, beside_others_that_compute, .timeout = 60)
{
    int ended[PROCS_MAX];
    cr_expect_eq(procs_run(4, 60, beside_others_that_compute, NULL, ended), 0);
}
