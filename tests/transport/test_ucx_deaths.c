/* test_ucx_deaths.c - ranks of several hosts of which one is killed while connections are being
 * opened. The others must live on: UCX must not end them. */
#define _GNU_SOURCE
#include "transport_node.h"

#include <pthread.h>

typedef struct trial {
    int kind;
    uint64_t seed;
} trial;

static uint64_t draw(uint64_t *x)
{
    *x = *x * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return *x >> 33;
}

static void *die(void *nanoseconds)
{
    nanosleep(&(struct timespec){.tv_nsec = (long)(intptr_t)nanoseconds}, NULL);
    kill(getpid(), SIGKILL);
    return NULL;
}

/* All send first messages to all: short ones, long ones, or both, in either direction. */
static int opening(int rank, int n, procs_shared *s, void *arg)
{
    const trial *t = arg;
    const int victim = n - 1;
    uint64_t x = t->seed;
    const intptr_t after = (intptr_t)(draw(&x) % 2500000);
    const unsigned mix = (unsigned)draw(&x) % 4, direction = (unsigned)draw(&x) % 4;
    node *me = join(rank, n, s, t->kind);
    meet(me, 1, -1);
    if (rank == victim) {
        pthread_t thread;
        PROCS_TRUE(pthread_create(&thread, NULL, die, (void *)after) == 0);
    }
    /* 0, 1: all send; 2: the victim does; 3: the others do. */
    const bool sends = direction < 2 || (direction == 2) == (rank == victim);
    for (unsigned i = 0; i < 6 && sends; i++) {
        for (int to = 0; to < n; to++) {
            static const size_t lens[4][2] = {
                {1 << 20, 1 << 20}, {100, 1 << 20}, {60000, 300000}, {8000, 100}};
            if (to != rank && me->lost[to] == 0) {
                post(me, to, i, lens[mix][i % 2], PLAIN, sizeof(head));
            }
        }
        work(me);
    }
    const double start = procs_now();
    while (procs_now() - start < 0.006 || rank == victim) {
        work(me);
    }
    if (me->lost[victim] == 0) {
        me->t->call->lose(me->t, victim, "killed");
    }
    while (me->lost[victim] == 0) {
        work(me);
    }
    me->t->call->remove_peer(me->t, victim);
    for (int to = 0; to < victim; to++) {
        PROCS_TRUE(post(me, to, LATE, 300000, PLAIN, sizeof(head)) >= 0);
    }
    while (me->late < victim) {
        work(me);
    }
    meet(me, 2, victim);
    leave(me, draw(&x) % 2 == 0);
    return 0;
}

static void deaths(int kind, int trials)
{
    for (int i = 0; i < trials; i++) {
        const int n = 2 + i % 3;
        int ended[PROCS_MAX];
        trial t = {kind, (uint64_t)i * 7919 + (uint64_t)kind};
        procs_run(n, 20, opening, &t, ended);
        for (int r = 0; r < n; r++) {
            const int want = r == n - 1 ? 128 + SIGKILL : 0;
            cr_expect(ended[r] == want, "trial %d: process %d ended with %d, not %d", i, r,
                      ended[r], want);
        }
    }
}

/* Where a version of UCX is asked for, it is the one that is loaded. */
Test(ucx_deaths, version)
{
    const char *wanted = getenv("DCOMM_TEST_UCX");
    cr_assert(wanted == NULL || strcmp(wanted, ucp_get_version_string()) == 0, "%s, not %s",
              ucp_get_version_string(), wanted);
}

Test(ucx_deaths, one_connection, .timeout = 300)
{
    deaths(NET, test_full() ? 300 : 20);
}

Test(ucx_deaths, several_connections, .timeout = 300)
{
    deaths(SPREAD, test_full() ? 300 : 20);
}
