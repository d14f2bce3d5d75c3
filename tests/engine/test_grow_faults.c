/* test_grow_faults.c - a communicator grows while processes die: newcomers at any moment of
 * joining, old ranks, rank 0. */
#define _GNU_SOURCE
#include "grow_ranks.h"

#include <pthread.h>

/* A trial: the processes in `victims` die at random moments. */
typedef struct trial {
    part p;
    unsigned victims;
    uint64_t seed;
    double most_s; /* for a random moment */
    bool file;     /* newcomers come by DCOMM_JOIN_FILE */
} trial;

typedef struct death {
    double after_s;
    int signal;
} death;

static void *die_later(void *user)
{
    const death *d = user;
    nanosleep(&(struct timespec){(time_t)d->after_s, (long)(fmod(d->after_s, 1) * 1e9)}, NULL);
    kill(getpid(), d->signal);
    return NULL;
}

static void doom(death *d)
{
    pthread_t thread;
    PROCS_TRUE(pthread_create(&thread, NULL, die_later, d) == 0);
}

/* Sum a vector in which each process has a 1 at its place. Return the members as bits; 0: it has
 * failed on some rank. */
static unsigned members(dcomm_comm *comm, int process)
{
    static float in[16][PROCS_MAX], out[16][PROCS_MAX]; /* of failed calls, too */
    static int turn;
    unsigned set = 0;
    const int t = turn++ % 16;
    memset(in[t], 0, sizeof in[t]);
    in[t][process] = 1;
    uint64_t fine =
        dcomm_allreduce(comm, in[t], out[t], PROCS_MAX, DCOMM_F32, DCOMM_SUM, NULL) == DCOMM_OK;
    for (int r = 0; r < PROCS_MAX && fine; r++) {
        PROCS_CHECK(out[t][r] == 0 || out[t][r] == 1, "the sum is %g", (double)out[t][r]);
        set |= out[t][r] == 1 ? 1u << r : 0;
    }
    RANKS_OK(dcomm_comm_agree(comm, &fine, NULL, 0, NULL));
    return fine ? set : 0;
}

/* Grow to n ranks, and after each death again, until those in `want` are left and are members. All
 * ranks of a communicator act alike. */
static void go_on(dcomm_comm **comm, int process, int n, const dcomm_id *id, unsigned want,
                  bool member)
{
    unsigned set = 0;
    const double start = procs_now();
    while (set != want) {
        dcomm_comm *next = NULL;
        PROCS_CHECK(procs_now() - start < 25, "process %d: members %x", process, set);
        const int missing = n - dcomm_comm_size(*comm);
        if (member && missing > 0) {
            const dcomm_status status = dcomm_comm_grow(*comm, id, missing, 0.3, &next);
            PROCS_CHECK(status == DCOMM_OK || (status == DCOMM_ERR_PEER && next == NULL),
                        "process %d: %s: %s", process, dcomm_status_name(status),
                        dcomm_last_error());
            PROCS_TRUE((status == DCOMM_OK) || dcomm_comm_status(*comm) == DCOMM_ERR_PEER);
        }
        if (next == NULL) { /* failed, nothing to do, or this one has just come */
            set = members(*comm, process);
        }
        member = true;
        if (next == NULL && set == 0) {
            RANKS_OK(dcomm_comm_shrink(*comm, NULL, 0, &next));
        }
        if (next != NULL) {
            RANKS_OK(dcomm_comm_destroy(comm));
            *comm = next;
            member = false; /* the next step is a sum, as for those that have come */
        }
    }
}

static int dying(int rank, int n, procs_shared *s, void *arg)
{
    const trial *t = arg;
    dcomm_comm *comm = NULL;
    static dcomm_id id;
    static death d;
    uint64_t random = t->seed + (uint64_t)rank;
    d = (death){(double)(ranks_random(&random) % 1000000) * 1e-6 * t->most_s, SIGKILL};
    const bool dies = t->victims >> rank & 1;
    if (rank < t->p.old) {
        comm = begin(rank, s, &t->p);
        PROCS_TRUE(members(comm, rank) == (1u << t->p.old) - 1);
        if (!t->file) {
            invite(rank, s, &id);
        }
        procs_post(s, rank, 1);
    }
    while (!procs_all(s, t->p.old, 1, -1)) {
        procs_nap();
    }
    if (dies) {
        doom(&d);
    }
    if (rank >= t->p.old) {
        if (t->file) {
            ranks_settle(rank, PROCS_MAX, t->p.place);
            RANKS_OK(dcomm_comm_create(
                &(dcomm_comm_opts){.boot = DCOMM_BOOT_JOIN, .timeout_s = t->p.timeout_s}, &comm));
        } else {
            RANKS_OK(come(rank, s, &t->p, &comm));
        }
    }
    go_on(&comm, rank, n, t->file ? NULL : &id, ((1u << n) - 1) & ~t->victims, rank < t->p.old);
    if (dies) {
        pause();
    }
    return ranks_leave(&comm);
}

static void killed(trial t, int n, int times)
{
    char path[64];
    snprintf(path, sizeof path, "/tmp/dcomm-test-grow-faults-%d", (int)getpid());
    if (t.file) {
        setenv("DCOMM_JOIN_FILE", path, 1);
    }
    for (int i = 0; i < times * (test_full() ? 10 : 1); i++) {
        t.seed = (uint64_t)i * 7919 + t.victims;
        run(n, dying, &t, t.victims);
    }
    unlink(path);
}

Test(grow_faults, a_newcomer, .timeout = 120)
{
    killed((trial){.p = {2, RANKS_LOCAL, 10}, .victims = 1u << 3, .most_s = 0.04}, 4, 4);
}
Test(grow_faults, an_old_rank, .timeout = 120)
{
    killed((trial){.p = {3, RANKS_LOCAL, 10}, .victims = 1u << 2, .most_s = 0.04}, 4, 4);
}
Test(grow_faults, rank_0, .timeout = 120)
{
    killed((trial){.p = {3, RANKS_LOCAL, 10}, .victims = 1u << 0, .most_s = 0.04, .file = true}, 4,
           3);
}
Test(grow_faults, hosts, .timeout = 120)
{
    killed((trial){.p = {2, RANKS_PAIRS, 10}, .victims = 1u << 3, .most_s = 0.06}, 4, 2);
    killed((trial){.p = {3, RANKS_PAIRS, 10}, .victims = 1u << 1, .most_s = 0.06}, 4, 2);
}
