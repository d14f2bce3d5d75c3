/* tsan_threads.c - for ThreadSanitizer: threads of one process that share a context, each with a
 * communicator of its own, and ranks that are threads, each with a context of its own. */
#define _GNU_SOURCE
#include "ranks.h"

#include <pthread.h>

#define THREADS 4
#define COUNT 6000

static void sums(dcomm_comm *comm, int rounds)
{
    int rank = dcomm_comm_rank(comm), n = dcomm_comm_size(comm);
    const char *const algos[] = {NULL, "ring", "two_shot", "tree", "one_shot"};
    void *registered = NULL;
    RANKS_OK(dcomm_mem_alloc(dcomm_comm_context(comm), COUNT * sizeof(float), &registered));
    float *data = registered, *all = malloc(COUNT * sizeof *all);
    PROCS_TRUE(all != NULL);
    for (int round = 0; round < rounds; round++) {
        size_t count = round % 2 ? COUNT : 9;
        dcomm_coll_opts opts = {.algo = algos[round % 5]};
        dcomm_request *request = NULL;
        for (size_t i = 0; i < count; i++) {
            data[i] = (float)(rank + round);
        }
        RANKS_OK(dcomm_iallreduce(comm, data, data, count, DCOMM_F32, DCOMM_SUM, &opts, &request));
        while (round % 3 == 0 && dcomm_test(&request) == DCOMM_IN_PROGRESS) {
        }
        RANKS_OK(dcomm_wait(&request));
        for (size_t i = 0; i < count; i++) {
            PROCS_TRUE(data[i] == (float)(n * (n - 1) / 2 + n * round));
        }
        RANKS_OK(dcomm_allgather(comm, data, all, COUNT / (size_t)n, DCOMM_F32, NULL));
        RANKS_OK(dcomm_barrier(comm, NULL));
    }
    RANKS_OK(dcomm_mem_free(&registered));
    free(all);
}

/* ---- one context, many threads ---- */

typedef struct worker {
    pthread_t thread;
    dcomm_comm *own, *world;
    int index;
} worker;

static void *work(void *arg)
{
    worker *w = arg;
    dcomm_stats stats;
    sums(w->own, 30);
    RANKS_OK(dcomm_comm_get_stats(w->own, &stats));
    /* All share the world for messages: this thread sends, another one receives. */
    int rank = dcomm_comm_rank(w->world), n = dcomm_comm_size(w->world);
    for (int32_t i = 0; i < 50 && w->index < 2; i++) {
        int32_t x = i;
        if (w->index == 0) {
            RANKS_OK(dcomm_send(w->world, &x, 1, DCOMM_I32, (rank + 1) % n, NULL));
        } else {
            RANKS_OK(dcomm_recv(w->world, &x, 1, DCOMM_I32, (rank + n - 1) % n, NULL));
            PROCS_TRUE(x == i);
        }
    }
    RANKS_OK(dcomm_comm_destroy(&w->own));
    return NULL;
}

static int sharing(int rank, int n, procs_shared *s, void *arg)
{
    worker workers[THREADS];
    ranks_settle(rank, n, *(ranks_place *)arg);
    dcomm_comm *world = ranks_join(rank, n, s, NULL);
    for (int i = 0; i < THREADS; i++) {
        workers[i] = (worker){.world = world, .index = i};
        RANKS_OK(dcomm_comm_dup(world, &workers[i].own));
    }
    for (int i = 0; i < THREADS; i++) {
        PROCS_TRUE(pthread_create(&workers[i].thread, NULL, work, &workers[i]) == 0);
    }
    for (int i = 0; i < THREADS; i++) {
        pthread_join(workers[i].thread, NULL);
    }
    RANKS_OK(dcomm_comm_destroy(&world));
    return 0;
}

/* ---- ranks as threads ---- */

typedef struct rank_thread {
    pthread_t thread;
    int rank;
    dcomm_id id;
} rank_thread;

static void *be_rank(void *arg)
{
    rank_thread *me = arg;
    dcomm_comm_opts opts = {
        .boot = DCOMM_BOOT_ID, .rank = me->rank, .size = THREADS, .id = me->id, .timeout_s = 60};
    dcomm_comm *comm = NULL, *half = NULL;
    RANKS_OK(dcomm_comm_create(&opts, &comm));
    sums(comm, 20);
    RANKS_OK(dcomm_comm_split(comm, me->rank % 2, 0, &half));
    sums(half, 10);
    RANKS_OK(dcomm_comm_destroy(&half));
    RANKS_OK(dcomm_comm_destroy(&comm));
    return NULL;
}

static int rank_threads(int rank, int n, procs_shared *s, void *arg)
{
    rank_thread ranks[THREADS];
    dcomm_id id;
    (void)n;
    (void)s;
    ranks_settle(rank, THREADS, *(ranks_place *)arg);
    RANKS_OK(dcomm_id_create(&id));
    for (int i = 0; i < THREADS; i++) {
        ranks[i] = (rank_thread){.rank = i, .id = id};
        PROCS_TRUE(pthread_create(&ranks[i].thread, NULL, be_rank, &ranks[i]) == 0);
    }
    for (int i = 0; i < THREADS; i++) {
        pthread_join(ranks[i].thread, NULL);
    }
    return 0;
}

int main(void)
{
    int ended[PROCS_MAX], bad = 0;
    ranks_place local = RANKS_LOCAL, message = RANKS_MESSAGE, hosts = RANKS_HOSTS;
    bad += procs_run(2, 100, sharing, &local, ended);
    bad += procs_run(2, 100, sharing, &hosts, ended);
    bad += procs_run(1, 100, rank_threads, &local, ended);
    bad += procs_run(1, 100, rank_threads, &message, ended);
    return bad > 0;
}
