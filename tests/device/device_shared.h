/* device_shared.h - sums on device memory that peers open, for tests, and how the bytes were
 * read. */
#ifndef DEVICE_SHARED_H
#define DEVICE_SHARED_H

#include "device_ranks.h"

enum { COUNT = 200000, HALF = COUNT * sizeof(float), BYTES = 2 * HALF, TIMES = 5 };

static inline int runs(int n, procs_fn fn, void *arg)
{
    int ended[PROCS_MAX];
    return procs_run(n, 50, fn, arg, ended);
}

static inline void *allocate(dcomm_comm *comm, size_t bytes)
{
    void *p = NULL;
    RANKS_OK(dcomm_mem_alloc_device(dcomm_comm_context(comm), bytes, &p));
    return p;
}

static inline uint64_t opened_so_far(dcomm_comm *comm)
{
    dcomm_stats stats;
    RANKS_OK(dcomm_comm_get_stats(comm, &stats));
    return stats.bytes_mapped;
}

/* Sum one half over ranks into the other, on a stream if there is one. Return the bytes that were
 * read in place. */
static inline uint64_t sum(dcomm_comm *comm, float *device, int salt, const char *algo,
                           cudaStream_t stream)
{
    int rank = dcomm_comm_rank(comm), n = dcomm_comm_size(comm);
    dcomm_coll_opts opts = {.algo = algo, .stream = stream, .device = true};
    float *host = malloc(HALF), *result = device + COUNT;
    for (size_t i = 0; i < COUNT; i++) {
        host[i] = (float)(rank + 1) * (float)((i + (size_t)salt) % 101);
    }
    device_put(device, host, HALF);
    uint64_t before = opened_so_far(comm);
    RANKS_OK(dcomm_allreduce(comm, device, result, COUNT, DCOMM_F32, DCOMM_SUM, &opts));
    if (stream != NULL) {
        CUDA_OK(cudaStreamSynchronize(stream));
    }
    uint64_t after = opened_so_far(comm);
    RANKS_OK(dcomm_comm_status(comm));
    CUDA_OK(cudaMemcpy(host, result, HALF, cudaMemcpyDeviceToHost));
    for (size_t i = 0; i < COUNT; i++) {
        float want = (float)(n * (n + 1) / 2) * (float)((i + (size_t)salt) % 101);
        PROCS_CHECK(host[i] == want, "%s, salt %d: element %zu is %g, not %g", algo, salt, i,
                    (double)host[i], (double)want);
    }
    free(host);
    RANKS_OK(dcomm_barrier(comm, NULL));
    return after - before;
}

/* Run operations on ordinary memory. In these calls peers learn of freed memory and confirm that
 * they have closed it. */
static inline void talk(dcomm_comm *comm)
{
    void *ordinary = NULL;
    CUDA_OK(cudaMalloc(&ordinary, BYTES));
    for (int i = 0; i < 3; i++) {
        sum(comm, ordinary, i, "one_shot", NULL);
    }
    device_free(cudaFree, ordinary);
}

/* Return memory that all peers have opened. */
static inline void *opened(dcomm_comm *comm)
{
    void *p = allocate(comm, BYTES);
    uint64_t bytes = 0;
    for (int i = 0; i < TIMES; i++) {
        bytes = sum(comm, p, i, "two_shot", NULL);
    }
    PROCS_TRUE(bytes > 0);
    return p;
}

/* Wait until all ranks have come here, without calling dcomm. */
static inline void meet(procs_shared *s, int rank, int n, int step)
{
    procs_post(s, rank, step);
    while (!procs_all(s, n, step, -1)) {
        procs_nap();
    }
}

#endif
