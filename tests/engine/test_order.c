/* test_order.c - many operations at once, on many communicators, waited for in any order: nothing
 * deadlocks, nothing is mixed up, and a slow receiver's memory stays bounded. Creation and
 * destruction of communicators. */
#define _GNU_SOURCE
#include "placed.h"

#include <pthread.h>

/* ---- the order of waits ---- */

static int opposite_waits(int rank, int n, procs_shared *s, void *arg)
{
    enum { COUNT = 20000 };
    (void)arg;
    dcomm_comm *a = join(rank, n, s), *b = NULL;
    static float x[COUNT], y[COUNT];
    RANKS_OK(dcomm_comm_dup(a, &b));
    for (int again = 0; again < 50; again++) {
        size_t count = again % 2 ? COUNT : 3;
        const char *algo = again % 3 == 0 ? "ring" : NULL;
        dcomm_coll_opts opts = {.algo = algo};
        dcomm_request *first = NULL, *second = NULL;
        for (size_t i = 0; i < count; i++) {
            x[i] = (float)(rank + again);
            y[i] = (float)(2 * rank);
        }
        RANKS_OK(dcomm_iallreduce(a, x, x, count, DCOMM_F32, DCOMM_SUM, &opts, &first));
        RANKS_OK(dcomm_iallreduce(b, y, y, count, DCOMM_F32, DCOMM_SUM, &opts, &second));
        RANKS_OK(dcomm_wait(rank % 2 ? &first : &second));
        RANKS_OK(dcomm_wait(rank % 2 ? &second : &first));
        PROCS_TRUE(x[count - 1] == (float)(n * (n - 1) / 2 + n * again));
        PROCS_TRUE(y[count - 1] == (float)(n * (n - 1)));
        /* Block on one communicator while an operation on the other is outstanding; half of the
         * ranks swap the two. */
        if (rank % 2) {
            RANKS_OK(dcomm_iallreduce(a, x, x, count, DCOMM_F32, DCOMM_MAX, &opts, &first));
            RANKS_OK(dcomm_allreduce(b, y, y, count, DCOMM_F32, DCOMM_MAX, &opts));
            RANKS_OK(dcomm_wait(&first));
        } else {
            RANKS_OK(dcomm_iallreduce(b, y, y, count, DCOMM_F32, DCOMM_MAX, &opts, &second));
            RANKS_OK(dcomm_allreduce(a, x, x, count, DCOMM_F32, DCOMM_MAX, &opts));
            RANKS_OK(dcomm_wait(&second));
        }
    }
    RANKS_OK(dcomm_comm_destroy(&b));
    return ranks_leave(&a);
}

Test(order, opposite_waits, .timeout = 60)
{
    on(2, RANKS_LOCAL, 25, opposite_waits);
    on(3, RANKS_HOSTS, 25, opposite_waits);
}

/* ---- random interleavings ---- */

#define OPEN 16
#define LONGEST 3000

typedef struct pending {
    dcomm_request *request;
    int what, members;
    size_t count;
    double sum; /* over the members' rank * scale + 1 */
    int scale, root;
    bool reads; /* this rank gets the result */
    float in[LONGEST], out[LONGEST];
} pending;

static void issue(pending *p, dcomm_comm *comm, uint64_t *shared, int turn)
{
    int rank = dcomm_comm_rank(comm), size = dcomm_comm_size(comm);
    uint64_t dice = ranks_random(shared);
    p->what = (int)(dice % 4);
    p->scale = (int)(dice >> 8 & 7) + turn % 5;
    p->count = (dice >> 16) % 3 == 0 ? LONGEST - (size_t)(dice >> 32 & 1023) : (dice >> 20) % 40;
    p->root = (int)((dice >> 40) % (uint64_t)size);
    p->members = size;
    p->reads = true;
    p->sum = 0;
    for (int r = 0; r < size; r++) {
        p->sum += r * p->scale + 1;
    }
    for (size_t i = 0; i < p->count; i++) {
        p->in[i] = (float)(rank * p->scale + 1);
        p->out[i] = -1;
    }
    switch (p->what) {
    case 0:
        RANKS_OK(dcomm_iallreduce(comm, p->in, p->out, p->count, DCOMM_F32, DCOMM_SUM, NULL,
                                  &p->request));
        break;
    case 1:
        RANKS_OK(
            dcomm_ibroadcast(comm, p->in, p->out, p->count, DCOMM_F32, p->root, NULL, &p->request));
        p->sum = p->root * p->scale + 1;
        break;
    case 2:
        RANKS_OK(dcomm_ireduce(comm, p->in, p->out, p->count, DCOMM_F32, DCOMM_SUM, p->root, NULL,
                               &p->request));
        p->reads = rank == p->root;
        break;
    default:
        p->count /= (size_t)size;
        RANKS_OK(dcomm_iallgather(comm, p->in, p->out, p->count, DCOMM_F32, NULL, &p->request));
        break;
    }
}

static void settle(pending *p)
{
    if (p->what == 3) {
        for (size_t i = 0; i < p->count * (size_t)p->members; i++) {
            PROCS_TRUE(p->out[i] == (float)((int)(i / p->count) * p->scale + 1));
        }
        return;
    }
    for (size_t i = 0; i < p->count; i++) {
        PROCS_CHECK(p->out[i] == (p->reads ? (float)p->sum : -1.0f), "operation %d, count %zu: %g",
                    p->what, p->count, (double)p->out[i]);
    }
}

static int interleavings(int rank, int n, procs_shared *s, void *arg)
{
    const int rounds = test_full() ? 1000 : 250 / PROCS_THIN;
    (void)arg;
    dcomm_comm *comms[3] = {join(rank, n, s)};
    RANKS_OK(dcomm_comm_dup(comms[0], &comms[1]));
    RANKS_OK(dcomm_comm_split(comms[0], rank % 2, -rank, &comms[2]));
    PROCS_TRUE(dcomm_comm_rank(comms[2]) == (n - 1 - rank) / 2);
    pending *open = calloc(OPEN, sizeof *open);
    uint64_t shared = 4711, own = 99 + (uint64_t)rank;
    PROCS_TRUE(open != NULL);
    for (int round = 0; round < rounds; round++) {
        int left = 1 + (int)(ranks_random(&shared) % OPEN);
        /* All ranks draw the same operations and order for each communicator. Each rank draws its
         * own order between communicators. */
        int of[OPEN], here[3] = {0};
        uint64_t seeds[3];
        for (int i = 0; i < left; i++) {
            of[i] = (int)(ranks_random(&shared) % 3);
            here[of[i]]++;
        }
        for (int c = 0; c < 3; c++) {
            seeds[c] = ranks_random(&shared);
        }
        int used = 0;
        while (used < left) {
            int c = (int)(ranks_random(&own) % 3);
            if (here[c] > 0) {
                here[c]--;
                issue(&open[used++], comms[c], &seeds[c], round);
            }
            if (used > 0 && ranks_random(&own) % 4 == 0) {
                pending *p = &open[ranks_random(&own) % (uint64_t)used];
                bool there = p->request != NULL;
                dcomm_status status = dcomm_test(&p->request);
                PROCS_TRUE(status >= 0);
                if (there && status == DCOMM_OK) {
                    settle(p);
                }
            }
        }
        for (int done = 0; done < used;) {
            pending *p = &open[ranks_random(&own) % (uint64_t)used];
            if (p->request != NULL) {
                RANKS_OK(dcomm_wait(&p->request));
                settle(p);
            }
            done = 0;
            for (int i = 0; i < used; i++) {
                done += open[i].request == NULL;
            }
        }
    }
    free(open);
    for (int c = 2; c >= 0; c--) {
        RANKS_OK(dcomm_comm_destroy(&comms[c]));
    }
    return 0;
}

Test(order, interleavings, .timeout = 110)
{
    on(4, RANKS_LOCAL, 50, interleavings);
    on(3, RANKS_HOSTS, 50, interleavings);
}

/* Use more shapes at once than the plan cache holds. */
static int many_shapes(int rank, int n, procs_shared *s, void *arg)
{
    enum { SHAPES = 200 };
    (void)arg;
    static float data[SHAPES][SHAPES];
    dcomm_request *requests[SHAPES] = {NULL};
    dcomm_comm *comm = join(rank, n, s);
    dcomm_stats stats;
    for (int again = 0; again < 5; again++) {
        for (int i = 0; i < SHAPES; i++) {
            for (int k = 0; k <= i; k++) {
                data[i][k] = (float)(rank + k);
            }
            RANKS_OK(dcomm_iallreduce(comm, data[i], data[i], (size_t)i + 1, DCOMM_F32, DCOMM_SUM,
                                      NULL, &requests[i]));
        }
        PROCS_TRUE(dcomm_wait_all(requests, SHAPES) == DCOMM_OK);
        for (int i = 0; i < SHAPES; i++) {
            PROCS_TRUE(requests[i] == NULL);
            for (int k = 0; k <= i; k++) {
                PROCS_TRUE(data[i][k] == (float)(n * k + n * (n - 1) / 2));
            }
        }
    }
    RANKS_OK(dcomm_comm_get_stats(comm, &stats));
    PROCS_TRUE(stats.plans_built + stats.plans_reused == 5 * SHAPES);
    return ranks_leave(&comm);
}

Test(order, many_shapes, .timeout = 60)
{
    on(3, RANKS_LOCAL, 25, many_shapes);
    on(2, RANKS_HOSTS, 25, many_shapes);
}

/* ---- groups and point-to-point ---- */

static int groups(int rank, int n, procs_shared *s, void *arg)
{
    enum { COUNT = 30000 };
    (void)arg;
    static int32_t a[COUNT], b[COUNT], right[COUNT], left[COUNT];
    dcomm_comm *world = join(rank, n, s), *other = NULL, *refused = NULL;
    dcomm_request *request = NULL;
    RANKS_OK(dcomm_comm_dup(world, &other));
    int next = (rank + 1) % n, last = (rank + n - 1) % n;
    for (int again = 0; again < 20; again++) {
        size_t count = again % 2 ? COUNT : 5;
        for (size_t i = 0; i < count; i++) {
            a[i] = rank + again;
            b[i] = 3 * rank + (int32_t)i;
            right[i] = left[i] = -1;
        }
        /* A ring both ways: blocking calls that would deadlock one by one, in another order on
         * every other rank; two communicators; a nested group. */
        RANKS_OK(dcomm_group_start());
        if (rank % 2) {
            RANKS_OK(dcomm_recv(world, left, count, DCOMM_I32, last, NULL));
            RANKS_OK(dcomm_send(world, b, count, DCOMM_I32, next, NULL));
        } else {
            RANKS_OK(dcomm_send(world, b, count, DCOMM_I32, next, NULL));
            RANKS_OK(dcomm_recv(world, left, count, DCOMM_I32, last, NULL));
        }
        RANKS_OK(dcomm_group_start());
        RANKS_OK(dcomm_iallreduce(other, a, a, count, DCOMM_I32, DCOMM_SUM, NULL, &request));
        PROCS_TRUE(dcomm_test(&request) == DCOMM_IN_PROGRESS); /* only queued */
        PROCS_TRUE(dcomm_wait(&request) == DCOMM_ERR_INVALID && request != NULL);
        PROCS_TRUE(dcomm_comm_dup(world, &refused) == DCOMM_ERR_INVALID && refused == NULL);
        RANKS_OK(dcomm_group_end());
        RANKS_OK(dcomm_recv(other, right, count, DCOMM_I32, next, NULL));
        RANKS_OK(dcomm_send(other, b, count, DCOMM_I32, last, NULL));
        RANKS_OK(dcomm_barrier(world, NULL));
        RANKS_OK(dcomm_group_end());
        RANKS_OK(dcomm_wait(&request));
        for (size_t i = 0; i < count; i++) {
            PROCS_TRUE(left[i] == 3 * last + (int32_t)i);
            PROCS_TRUE(right[i] == 3 * next + (int32_t)i);
            PROCS_TRUE(a[i] == n * (n - 1) / 2 + n * again);
        }
    }
    /* The group returns the error of a refused call; the other calls run. */
    RANKS_OK(dcomm_group_start());
    PROCS_TRUE(dcomm_broadcast(world, a, a, 1, DCOMM_I32, n + 3, NULL) == DCOMM_ERR_INVALID);
    a[0] = 1;
    RANKS_OK(dcomm_allreduce(world, a, a, 1, DCOMM_I32, DCOMM_SUM, NULL));
    PROCS_TRUE(dcomm_group_end() == DCOMM_ERR_INVALID && a[0] == n);
    PROCS_CHECK(strstr(dcomm_last_error(), "broadcast") != NULL, "%s", dcomm_last_error());
    RANKS_OK(dcomm_comm_destroy(&other));
    return ranks_leave(&world);
}

Test(order, groups, .timeout = 60)
{
    on(4, RANKS_LOCAL, 25, groups);
    on(3, RANKS_PAIRS, 25, groups);
}

/* A group over two contexts: the blocking operation of one waits for the non-blocking one of the
 * other. */
static int two_contexts(int rank, int n, procs_shared *s, void *arg)
{
    enum { COUNT = 500000 };
    (void)arg;
    static int32_t data[COUNT];
    dcomm_comm *a = join(rank, n, s), *b = NULL;
    dcomm_comm_opts opts = {.boot = DCOMM_BOOT_ID, .rank = rank, .size = n, .timeout_s = 20};
    dcomm_request *request = NULL;
    int32_t x = 0;
    if (rank == 0) {
        RANKS_OK(dcomm_id_create(&opts.id));
    }
    RANKS_OK(dcomm_broadcast(a, &opts.id, &opts.id, sizeof opts.id, DCOMM_U8, 0, NULL));
    RANKS_OK(dcomm_comm_create(&opts, &b));
    PROCS_TRUE(dcomm_comm_context(a) != dcomm_comm_context(b));
    for (int again = 0; again < 5; again++) {
        for (int i = 0; i < COUNT; i++) {
            data[i] = rank == 0 ? i + again : 0;
        }
        if (rank == 0) {
            RANKS_OK(dcomm_group_start());
            RANKS_OK(dcomm_isend(a, data, COUNT, DCOMM_I32, 1, NULL, &request));
            RANKS_OK(dcomm_recv(b, &x, 1, DCOMM_I32, 1, NULL));
            RANKS_OK(dcomm_group_end());
            PROCS_TRUE(x == 7 + again);
            RANKS_OK(dcomm_wait(&request));
        } else {
            RANKS_OK(dcomm_recv(a, data, COUNT, DCOMM_I32, 0, NULL));
            PROCS_TRUE(data[COUNT - 1] == COUNT - 1 + again);
            x = 7 + again;
            RANKS_OK(dcomm_send(b, &x, 1, DCOMM_I32, 0, NULL));
        }
    }
    RANKS_OK(dcomm_comm_destroy(&b));
    return ranks_leave(&a);
}

Test(order, two_contexts, .timeout = 60)
{
    on(2, RANKS_LOCAL, 15, two_contexts);
    on(2, RANKS_MESSAGE, 15, two_contexts);
    on(2, RANKS_HOSTS, 15, two_contexts);
}

static int everywhere(int rank, int n, procs_shared *s, void *arg)
{
    enum { MESSAGES = 300, COUNT = 5000 };
    (void)arg;
    static uint32_t out[COUNT], in[PROCS_MAX][COUNT];
    dcomm_request *sends[PROCS_MAX] = {NULL}, *recvs[PROCS_MAX] = {NULL};
    dcomm_comm *comm = join(rank, n, s);
    for (uint32_t m = 0; m < MESSAGES; m++) {
        size_t count = m % 10 == 0 ? COUNT : m % 7;
        for (size_t i = 0; i < count; i++) {
            out[i] = m * 1000 + (uint32_t)rank;
        }
        for (int p = 0; p < n; p++) {
            if (p != rank) {
                RANKS_OK(dcomm_isend(comm, out, count, DCOMM_U32, p, NULL, &sends[p]));
                RANKS_OK(dcomm_irecv(comm, in[p], count, DCOMM_U32, p, NULL, &recvs[p]));
            }
        }
        RANKS_OK(dcomm_wait_all(recvs, (size_t)n));
        RANKS_OK(dcomm_wait_all(sends, (size_t)n));
        for (int p = 0; p < n; p++) {
            for (size_t i = 0; i < count && p != rank; i++) {
                PROCS_TRUE(in[p][i] == m * 1000 + (uint32_t)p);
            }
        }
    }
    /* Send 100 messages ahead, then run collectives, then receive. */
    for (int k = 0; k < 60; k++) {
        uint32_t x = (uint32_t)(rank * 100 + k);
        RANKS_OK(dcomm_send(comm, &x, 1, DCOMM_U32, (rank + 1) % n, NULL));
    }
    RANKS_OK(dcomm_barrier(comm, NULL));
    for (int k = 0; k < 60; k++) {
        uint32_t x = 0;
        RANKS_OK(dcomm_recv(comm, &x, 1, DCOMM_U32, (rank + n - 1) % n, NULL));
        PROCS_TRUE(x == (uint32_t)((rank + n - 1) % n * 100 + k));
    }
    return ranks_leave(&comm);
}

Test(order, everywhere, .timeout = 60)
{
    on(4, RANKS_LOCAL, 25, everywhere);
    on(3, RANKS_HOSTS, 25, everywhere);
}

/* ---- flow control ---- */

static long resident_kib(void)
{
    long pages = 0, skipped = 0;
    FILE *file = fopen("/proc/self/statm", "r");
    PROCS_TRUE(file != NULL && fscanf(file, "%ld %ld", &skipped, &pages) == 2);
    fclose(file);
    return pages * (sysconf(_SC_PAGESIZE) / 1024);
}

/* Late ranks must not make the memory of other ranks grow, nor their own. */
static int far_ahead(int rank, int n, procs_shared *s, void *arg)
{
    enum { BYTES = 4000 };
    const int broadcasts = test_full() ? 10000 : 4000;
    (void)arg;
    dcomm_comm *comm = join(rank, n, s);
    unsigned char data[BYTES];
    dcomm_stats stats;
    RANKS_OK(dcomm_barrier(comm, NULL));
    long before = resident_kib();
    for (int i = 0; i < broadcasts; i++) {
        if (rank != 0 && i % 2000 == 100) {
            nanosleep(&(struct timespec){.tv_nsec = 200000000}, NULL);
        }
        memset(data, rank == 0 ? i % 251 : 0, BYTES);
        RANKS_OK(dcomm_broadcast(comm, data, data, BYTES, DCOMM_U8, 0, NULL));
        PROCS_TRUE(data[0] == i % 251 && data[BYTES - 1] == i % 251);
    }
    RANKS_OK(dcomm_comm_get_stats(comm, &stats));
    PROCS_CHECK(stats.unexpected_bytes_max <= 2 * 64 * BYTES, "held %lu bytes",
                (unsigned long)stats.unexpected_bytes_max);
#ifndef DCOMM_TEST_ASAN /* ASan keeps freed memory */
    PROCS_CHECK(resident_kib() - before < 16 * 1024, "grew by %ld KiB", resident_kib() - before);
#else
    (void)before;
#endif
    return ranks_leave(&comm);
}

Test(order, far_ahead, .timeout = 100)
{
    on(2, RANKS_LOCAL, 45, far_ahead);
    on(2, RANKS_HOSTS, 45, far_ahead);
}

/* A rank learns the progress of another one to which it has never sent anything. */
static int strangers(int rank, int n, procs_shared *s, void *arg)
{
    (void)arg;
    dcomm_comm *comm = join(rank, n, s);
    dcomm_coll_opts opts = {.algo = "linear"};
    double start = procs_now();
    for (int turn = 0; turn < 20; turn++) {
        for (int i = 0; i < 150; i++) {
            int32_t x = rank == turn % n ? i : -1;
            RANKS_OK(dcomm_broadcast(comm, &x, &x, 1, DCOMM_I32, turn % n, &opts));
            PROCS_TRUE(x == i);
        }
    }
    PROCS_CHECK(procs_now() - start < 5, "%g s", procs_now() - start);
    return ranks_leave(&comm);
}

Test(order, strangers, .timeout = 60)
{
    on(3, RANKS_LOCAL, 25, strangers);
}

/* ---- communicators ---- */

static int families(int rank, int n, procs_shared *s, void *arg)
{
    (void)arg;
    dcomm_comm *world = join(rank, n, s);
    for (int again = 0; again < 5; again++) {
        dcomm_comm *half = NULL, *twin = NULL, *some = NULL, *alone = NULL, *rest = NULL;
        int32_t x = rank, all[PROCS_MAX];
        RANKS_OK(dcomm_comm_split(world, rank % 2, 0, &half)); /* equal keys: by old rank */
        PROCS_TRUE(dcomm_comm_rank(half) == rank / 2);
        RANKS_OK(dcomm_comm_dup(half, &twin));
        RANKS_OK(dcomm_comm_split(world, rank == 0 ? -1 : 5, -rank, &some));
        PROCS_TRUE((some == NULL) == (rank == 0));
        RANKS_OK(dcomm_comm_split(world, rank, 0, &alone));
        PROCS_TRUE(dcomm_comm_size(alone) == 1);
        RANKS_OK(dcomm_allgather(twin, &x, all, 1, DCOMM_I32, NULL));
        for (int i = 0; i < dcomm_comm_size(twin); i++) {
            PROCS_TRUE(all[i] == 2 * i + rank % 2);
        }
        if (some != NULL) {
            PROCS_TRUE(dcomm_comm_rank(some) == n - 1 - rank);
            PROCS_TRUE(dcomm_comm_host(some, dcomm_comm_rank(some)) >= 0);
            RANKS_OK(dcomm_allgather(some, &x, all, 1, DCOMM_I32, NULL));
            for (int i = 0; i < n - 1; i++) {
                PROCS_TRUE(all[i] == n - 1 - i);
            }
        }
        RANKS_OK(dcomm_allreduce(alone, &x, &x, 1, DCOMM_I32, DCOMM_SUM, NULL));
        PROCS_TRUE(x == rank);
        if (rank != 1) { /* the others go on without rank 1 */
            RANKS_OK(dcomm_comm_shrink(world, (int[]){1}, 1, &rest));
            PROCS_TRUE(dcomm_comm_size(rest) == n - 1);
            RANKS_OK(dcomm_allreduce(rest, &x, &x, 1, DCOMM_I32, DCOMM_SUM, NULL));
            PROCS_TRUE(x == n * (n - 1) / 2 - 1);
        }
        /* Destroy in any order; the last time destroy the world first: its children keep the
         * context. */
        if (again == 4) {
            RANKS_OK(dcomm_comm_destroy(&world));
        }
        RANKS_OK(dcomm_comm_destroy(rank % 2 ? &half : &twin));
        RANKS_OK(dcomm_barrier(rank % 2 ? twin : half, NULL));
        RANKS_OK(dcomm_comm_destroy(&half));
        RANKS_OK(dcomm_comm_destroy(&twin));
        RANKS_OK(dcomm_comm_destroy(&some));
        RANKS_OK(dcomm_comm_destroy(&alone));
        RANKS_OK(dcomm_comm_destroy(&rest));
    }
    return 0;
}

Test(order, families, .timeout = 60)
{
    on(4, RANKS_LOCAL, 25, families);
    on(5, RANKS_PAIRS, 25, families);
}

static int not_yet(int rank, int n, procs_shared *s, void *arg)
{
    (void)arg;
    dcomm_comm *comm = NULL;
    dcomm_comm_opts opts = {.boot = DCOMM_BOOT_ID, .rank = rank, .size = n, .timeout_s = 20};
    dcomm_stats stats;
    size_t len;
    float x = 1;
    ranks_settle(rank, n, place_now);
    if (rank == 0) {
        RANKS_OK(dcomm_id_create(&opts.id));
        RANKS_OK(dcomm_comm_create_start(&opts, &comm));
        PROCS_TRUE(dcomm_comm_ready(comm) == DCOMM_IN_PROGRESS);
        PROCS_TRUE(dcomm_allreduce(comm, &x, &x, 1, DCOMM_F32, DCOMM_SUM, NULL) ==
                   DCOMM_ERR_INVALID);
        PROCS_TRUE(dcomm_comm_get_stats(comm, &stats) == DCOMM_ERR_INVALID);
        PROCS_TRUE(dcomm_comm_abort(comm, NULL) == DCOMM_ERR_INVALID);
        procs_give(s, 0, &opts.id, sizeof opts.id);
    } else {
        memcpy(&opts.id, procs_take(s, 0, &len), sizeof opts.id);
        RANKS_OK(dcomm_comm_create_start(&opts, &comm));
    }
    dcomm_status status;
    while ((status = dcomm_comm_ready(comm)) == DCOMM_IN_PROGRESS) {
        procs_nap();
    }
    PROCS_CHECK(status == DCOMM_OK, "%s", dcomm_comm_error(comm));
    RANKS_OK(dcomm_allreduce(comm, &x, &x, 1, DCOMM_F32, DCOMM_SUM, NULL));
    PROCS_TRUE(x == (float)n);
    RANKS_OK(dcomm_comm_destroy(&comm));

    /* No other rank joins this one: destroying it cancels the creation. */
    double start = procs_now();
    RANKS_OK(dcomm_id_create(&opts.id));
    opts.rank = 0;
    opts.timeout_s = 100;
    RANKS_OK(dcomm_comm_create_start(&opts, &comm));
    procs_nap();
    PROCS_TRUE(dcomm_comm_ready(comm) == DCOMM_IN_PROGRESS);
    RANKS_OK(dcomm_comm_destroy(&comm));
    PROCS_CHECK(procs_now() - start < 5, "%g s", procs_now() - start);
    return 0;
}

Test(order, not_yet, .timeout = 60)
{
    on(3, RANKS_LOCAL, 25, not_yet);
}

/* Ranks are threads of one process, each with its own context, with and without progress
 * threads. */
typedef struct thread_rank {
    pthread_t thread;
    int rank, n;
    bool progress;
    const dcomm_id *id;
} thread_rank;

static void *thread_main(void *arg)
{
    enum { COUNT = 20000 };
    const thread_rank *me = arg;
    dcomm_comm_opts opts = {.boot = DCOMM_BOOT_ID,
                            .rank = me->rank,
                            .size = me->n,
                            .id = *me->id,
                            .timeout_s = 20,
                            .context_opts = {.progress_thread = me->progress}};
    dcomm_comm *comm = NULL;
    float *data = malloc(COUNT * sizeof *data);
    PROCS_TRUE(data != NULL);
    RANKS_OK(dcomm_comm_create(&opts, &comm));
    for (int again = 0; again < 30; again++) {
        size_t count = again % 2 ? COUNT : 10;
        for (size_t i = 0; i < count; i++) {
            data[i] = (float)(me->rank + again);
        }
        dcomm_coll_opts how = {.algo = again % 3 == 0 ? "ring" : NULL};
        RANKS_OK(dcomm_allreduce(comm, data, data, count, DCOMM_F32, DCOMM_SUM, &how));
        for (size_t i = 0; i < count; i++) {
            PROCS_TRUE(data[i] == (float)(me->n * (me->n - 1) / 2 + me->n * again));
        }
    }
    free(data);
    RANKS_OK(dcomm_comm_destroy(&comm));
    return NULL;
}

static int thread_ranks(int rank, int n, procs_shared *s, void *arg)
{
    (void)n;
    (void)s;
    (void)arg;
    ranks_settle(rank, 4, place_now);
    for (int progress = 0; progress < 2; progress++) {
        dcomm_id id;
        thread_rank ranks[4];
        RANKS_OK(dcomm_id_create(&id));
        for (int r = 0; r < 4; r++) {
            ranks[r] = (thread_rank){.rank = r, .n = 4, .progress = progress, .id = &id};
            PROCS_TRUE(pthread_create(&ranks[r].thread, NULL, thread_main, &ranks[r]) == 0);
        }
        for (int r = 0; r < 4; r++) {
            pthread_join(ranks[r].thread, NULL);
        }
    }
    return 0;
}

Test(order, thread_ranks, .timeout = 60)
{
    on(1, RANKS_LOCAL, 50, thread_ranks);
    on(1, RANKS_MESSAGE, 50, thread_ranks);
}

/* With a progress thread, operations go on while their rank computes. */
static int overlap(int rank, int n, procs_shared *s, void *arg)
{
    enum { COUNT = 100000 };
    (void)arg;
    ranks_settle(rank, n, place_now);
    dcomm_comm_opts opts = {.context_opts = {.progress_thread = true}};
    dcomm_comm *comm = ranks_join(rank, n, s, &opts);
    static float data[8][COUNT];
    dcomm_request *requests[8] = {NULL};
    for (int again = 0; again < 10; again++) {
        for (int k = 0; k < 8; k++) {
            for (int i = 0; i < COUNT; i++) {
                data[k][i] = (float)(rank + k);
            }
            RANKS_OK(dcomm_iallreduce(comm, data[k], data[k], COUNT, DCOMM_F32, DCOMM_SUM, NULL,
                                      &requests[k]));
        }
        if (again == 0) { /* they complete without another call of this rank */
            double until = procs_now() + 10;
            dcomm_stats stats = {0};
            while (stats.operations < 8 && procs_now() < until) {
                procs_nap();
                RANKS_OK(dcomm_comm_get_stats(comm, &stats));
            }
            PROCS_TRUE(stats.operations == 8);
        }
        RANKS_OK(dcomm_wait_all(requests, 8));
        for (int k = 0; k < 8; k++) {
            PROCS_TRUE(data[k][COUNT - 1] == (float)(n * (n - 1) / 2 + n * k));
        }
    }
    return ranks_leave(&comm);
}

Test(order, overlap, .timeout = 60)
{
    on(2, RANKS_LOCAL, 25, overlap);
    on(3, RANKS_HOSTS, 25, overlap);
}
