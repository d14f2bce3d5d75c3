/* device_streams.h - ranks that call on streams: slow work on a stream, and values whose sums are
 * known. */
#ifndef DEVICE_STREAMS_H
#define DEVICE_STREAMS_H

#include "device_ranks.h"

#include <criterion/criterion.h>

typedef struct where {
    bool threads;
    const char *algo;
} where;

static inline dcomm_comm *join(int rank, int n, procs_shared *s, const where *w)
{
    if (!w->threads || rank == 0) {
        ranks_settle(rank, n, RANKS_LOCAL);
    }
    return ranks_join(rank, n, s, NULL);
}

static inline cudaStream_t stream_make(void)
{
    cudaStream_t stream;
    CUDA_OK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    return stream;
}

/* Slow work on a stream; sets `over` at its end. */
typedef struct slow {
    int ms;
    _Atomic int over;
} slow;

static inline void slow_work(void *user)
{
    slow *w = user;
    struct timespec t = {w->ms / 1000, w->ms % 1000 * 1000000L};
    nanosleep(&t, NULL);
    atomic_store(&w->over, 1);
}

static inline float value(int rank, size_t i, int salt)
{
    return (float)((i * 7 + (size_t)salt * 13 + (size_t)rank * 5) % 1001);
}

static inline float *host_values(size_t count, int rank, int salt)
{
    float *x = device_pinned(count * sizeof *x);
    for (size_t i = 0; i < count; i++) {
        x[i] = value(rank, i, salt);
    }
    return x;
}

static inline float *device_values(size_t count)
{
    float *x = NULL;
    CUDA_OK(cudaMalloc((void **)&x, count * sizeof *x));
    CUDA_OK(cudaMemset(x, 0xff, count * sizeof *x));
    CUDA_OK(cudaStreamSynchronize(cudaStreamLegacy));
    return x;
}

static inline void expect_sum(const float *got, size_t count, int n, int salt)
{
    for (size_t i = 0; i < count; i++) {
        float want = 0;
        for (int r = 0; r < n; r++) {
            want += value(r, i, salt);
        }
        PROCS_CHECK(got[i] == want, "salt %d: element %zu is %g, not %g", salt, i, (double)got[i],
                    (double)want);
    }
}

/* Run fn as processes and as threads. The everyday run has two ranks as processes, more as
 * threads. */
static inline void on(int n, procs_fn fn)
{
    for (int threads = 0; threads < 2; threads++) {
        if (!test_full() && threads != (n > 2)) {
            continue;
        }
        where w = {.threads = threads};
        cr_assert_eq(device_run(n, threads, 40, fn, &w), 0, "%d ranks, %s", n,
                     threads ? "threads" : "processes");
    }
}

#endif
