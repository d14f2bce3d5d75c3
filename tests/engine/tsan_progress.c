/* tsan_progress.c - for ThreadSanitizer: a progress thread works while the main thread starts
 * operations, tests and waits, derives communicators and destroys them; an abort from outside. */
#define _GNU_SOURCE
#include "ranks.h"

#include <pthread.h>

enum { COUNT = 20000, OPEN = 8 };

static float data[OPEN][COUNT];

static int busy(int rank, int n, procs_shared *s, void *arg)
{
    ranks_settle(rank, n, *(ranks_place *)arg);
    dcomm_comm_opts opts = {.context_opts = {.progress_thread = true}};
    dcomm_comm *comm = ranks_join(rank, n, s, &opts), *twin = NULL;
    dcomm_request *requests[OPEN] = {NULL};
    dcomm_stats stats;
    for (int round = 0; round < 30; round++) {
        RANKS_OK(dcomm_comm_dup(comm, &twin));
        for (int k = 0; k < OPEN; k++) {
            size_t count = (k + round) % 3 == 0 ? COUNT : 50;
            for (size_t i = 0; i < count; i++) {
                data[k][i] = (float)(rank + k);
            }
            RANKS_OK(dcomm_iallreduce(k % 2 ? comm : twin, data[k], data[k], count, DCOMM_F32,
                                      DCOMM_SUM, NULL, &requests[k]));
        }
        RANKS_OK(dcomm_comm_get_stats(comm, &stats));
        RANKS_OK(dcomm_group_start());
        int32_t x = rank, y = -1;
        RANKS_OK(dcomm_send(comm, &x, 1, DCOMM_I32, (rank + 1) % n, NULL));
        RANKS_OK(dcomm_recv(comm, &y, 1, DCOMM_I32, (rank + n - 1) % n, NULL));
        RANKS_OK(dcomm_group_end());
        PROCS_TRUE(y == (rank + n - 1) % n);
        while (dcomm_test(&requests[0]) == DCOMM_IN_PROGRESS) {
        }
        RANKS_OK(dcomm_wait_all(requests, OPEN));
        for (int k = 0; k < OPEN; k++) {
            PROCS_TRUE(data[k][49] == (float)(n * (n - 1) / 2 + n * k));
        }
        RANKS_OK(dcomm_comm_destroy(&twin));
    }
    RANKS_OK(dcomm_comm_destroy(&comm));
    return 0;
}

static void *abort_soon(void *arg)
{
    nanosleep(&(struct timespec){.tv_nsec = 100000000}, NULL);
    RANKS_OK(dcomm_comm_abort(arg, "enough"));
    return NULL;
}

/* Every rank waits for a message that nobody sends, until one rank is told to stop. */
static int aborted(int rank, int n, procs_shared *s, void *arg)
{
    ranks_settle(rank, n, *(ranks_place *)arg);
    dcomm_comm_opts opts = {.context_opts = {.progress_thread = rank % 2 == 0}};
    dcomm_comm *comm = ranks_join(rank, n, s, &opts);
    pthread_t thread;
    int32_t x = 0;
    RANKS_OK(dcomm_barrier(comm, NULL));
    if (rank == 0) {
        PROCS_TRUE(pthread_create(&thread, NULL, abort_soon, comm) == 0);
    }
    dcomm_status status = dcomm_recv(comm, &x, 1, DCOMM_I32, (rank + 1) % n, NULL);
    PROCS_CHECK(status == DCOMM_ERR_ABORTED && strstr(dcomm_last_error(), "enough") != NULL,
                "%s: %s", dcomm_status_name(status), dcomm_last_error());
    PROCS_TRUE(dcomm_comm_status(comm) == DCOMM_ERR_ABORTED);
    PROCS_TRUE(strstr(dcomm_comm_error(comm), "enough") != NULL);
    if (rank == 0) {
        pthread_join(thread, NULL);
    }
    RANKS_OK(dcomm_comm_destroy(&comm));
    return 0;
}

int main(void)
{
    int ended[PROCS_MAX], bad = 0;
    ranks_place local = RANKS_LOCAL, hosts = RANKS_HOSTS;
    bad += procs_run(2, 100, busy, &local, ended);
    bad += procs_run(3, 100, busy, &hosts, ended);
    bad += procs_run(3, 100, aborted, &local, ended);
    bad += procs_run(2, 100, aborted, &hosts, ended);
    return bad > 0;
}
