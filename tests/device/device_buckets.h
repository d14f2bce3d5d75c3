/* device_buckets.h - bucket_set.h's parameters with gradients on devices. Gradients are computed
 * in the order of delayed streams, and read back without a stream. */
#ifndef DEVICE_BUCKETS_H
#define DEVICE_BUCKETS_H

#include "bucket_set.h"
#include "device_ranks.h"
#include <criterion/criterion.h>
#ifdef CUDA_HOST_STAND_IN
#include "cuda_host.h"
#endif

/* Run fn on n ranks, as processes and as threads; *(bool *)arg says which. The everyday run has
 * three ranks as threads, other counts as processes. */
static inline void device_on(int n, double timeout_s, procs_fn fn)
{
    for (int threads = 0; threads < 2; threads++) {
        bool t = threads;
        if (!test_full() && t != (n == 3)) {
            continue;
        }
        cr_assert_eq(device_run(n, threads, timeout_s, fn, &t), 0, "%d ranks, %s", n,
                     threads ? "threads" : "processes");
    }
}

typedef enum device_places { ALL_ON_ONE, HOST_TOO, TWO_DEVICES } device_places;

/* Slow work on a stream; sets `over` at its end. */
typedef struct device_slow {
    int ms;
    _Atomic int over;
} device_slow;

static inline void device_slow_work(void *user)
{
    device_slow *w = user;
    nanosleep(&(struct timespec){.tv_nsec = w->ms * 1000000L}, NULL);
    atomic_store(&w->over, 1);
}

/* The parameters of a rank. */
typedef struct device_set {
    set t;               /* `grad` is the registered pointer */
    int device[SET_MAX]; /* -1: in host memory */
    unsigned char *host[SET_MAX], *there[SET_MAX], *values[SET_MAX];
    device_slow slow[SET_MAX];
    cudaStream_t streams[2][2]; /* two streams of each device */
    unsigned char *out;
    size_t out_len;
} device_set;

static inline dcomm_comm *device_join(int rank, int n, procs_shared *s, bool threads)
{
    if (!threads || rank == 0) {
        ranks_settle(rank, n, RANKS_LOCAL);
    }
    return ranks_join(rank, n, s, NULL);
}

/* Make copies and kernels start late, and in any order between streams. */
static inline void device_late(int rank)
{
#ifdef CUDA_HOST_STAND_IN
    cuda_host_faults faults = {.delay_s = 0.0002, .shuffle = (uint64_t)rank + 1};
    cuda_host_set_faults(&faults);
#else
    (void)rank;
#endif
}

/* Return the device of parameter i. Ranks may use different device numbers. */
static inline int device_place(device_places places, size_t i, int rank)
{
    int devices = 0;
    CUDA_OK(cudaGetDeviceCount(&devices));
    return places == HOST_TOO && i % 3 == 1 ? -1
           : places == TWO_DEVICES          ? ((int)(i % 2) + rank) % 2 % devices
                                            : 0;
}

static inline unsigned char *device_memory(int device, size_t bytes)
{
    void *memory = NULL;
    if (device < 0) {
        memory = calloc(bytes + 1, 1);
        PROCS_TRUE(memory != NULL);
        return memory;
    }
    CUDA_OK(cudaSetDevice(device));
    CUDA_OK(cudaMalloc(&memory, bytes + 1));
    CUDA_OK(cudaMemset(memory, 0xff, bytes + 1));
    CUDA_OK(cudaStreamSynchronize(cudaStreamLegacy));
    CUDA_OK(cudaSetDevice(0));
    return memory;
}

static inline void device_memory_free(int device, unsigned char *memory)
{
    if (device < 0) {
        free(memory);
    } else {
        device_free(cudaFree, memory);
    }
}

static inline device_set *device_set_new(dcomm_comm *comm, size_t n, size_t most, bool dtypes,
                                         device_places places, uint64_t seed)
{
    device_set *d = calloc(1, sizeof *d);
    int devices = 0;
    PROCS_TRUE(d != NULL);
    CUDA_OK(cudaGetDeviceCount(&devices));
    set_shape(&d->t, n, most, dtypes, seed);
    d->t.comm = comm;
    d->t.rank = dcomm_comm_rank(comm);
    d->t.nranks = dcomm_comm_size(comm);
    for (size_t i = 0; i < n; i++) {
        dcomm_bucket_param *p = &d->t.params[i];
        size_t bytes = p->count * dcomm_dtype_size(p->dtype);
        d->device[i] = device_place(places, i, d->t.rank);
        d->out_len = bytes > d->out_len ? bytes : d->out_len;
        if (d->device[i] < 0) {
            d->host[i] = device_memory(-1, bytes);
            p->grad = d->host[i];
        } else {
            CUDA_OK(cudaMallocHost((void **)&d->host[i], bytes + 1));
            p->grad = d->there[i] = device_memory(d->device[i], bytes);
        }
    }
    for (int i = 0; i < 4; i++) {
        CUDA_OK(cudaSetDevice(i / 2 % devices));
        CUDA_OK(cudaStreamCreateWithFlags(&d->streams[i / 2][i % 2], cudaStreamNonBlocking));
    }
    CUDA_OK(cudaSetDevice(0));
    d->out = malloc(d->out_len + 1);
    PROCS_TRUE(d->out != NULL);
    return d;
}

static inline void device_set_end(device_set *d)
{
    RANKS_OK(dcomm_buckets_destroy(&d->t.b));
    for (size_t i = 0; i < d->t.n; i++) {
        device_memory_free(d->device[i], d->device[i] < 0 ? d->host[i] : d->there[i]);
        if (d->device[i] >= 0) {
            CUDA_OK(cudaFreeHost(d->host[i]));
        }
        if (d->values[i] != NULL) {
            device_memory_free(d->device[i], d->values[i]);
        }
    }
    for (int i = 0; i < 4; i++) {
        CUDA_OK(cudaStreamDestroy(d->streams[i / 2][i % 2]));
    }
    free(d->out);
    free(d);
}

/* Like set_compute, in the order of a stream. */
static inline void device_set_compute(device_set *d, size_t i, int step, bool add,
                                      cudaStream_t stream)
{
    const dcomm_bucket_param *p = &d->t.params[i];
    for (size_t j = 0; j < p->count; j++) {
        double was = add ? ranks_get(d->host[i], j, p->dtype) : 0;
        ranks_put(d->host[i], j, p->dtype, was + set_value(i, j, d->t.rank, step));
    }
    if (d->device[i] >= 0) {
        CUDA_OK(cudaMemcpyAsync(d->there[i], d->host[i], p->count * dcomm_dtype_size(p->dtype),
                                cudaMemcpyHostToDevice, stream));
    }
}

/* Compute gradient i on some stream, perhaps after slow work, and mark it. Or finish it before it
 * is marked. */
static inline void device_set_mark(device_set *d, size_t i, int step, uint64_t *seed)
{
    cudaStream_t stream = d->streams[d->device[i] == 1][ranks_random(seed) % 2];
    bool there = d->device[i] < 0 || ranks_random(seed) % 5 == 0;
    d->slow[i] = (device_slow){.ms = (int)(ranks_random(seed) % 6)};
    if (!there && d->slow[i].ms > 2) {
        CUDA_OK(cudaLaunchHostFunc(stream, device_slow_work, &d->slow[i]));
    }
    device_set_compute(d, i, step, false, stream);
    if (there && d->device[i] >= 0) {
        CUDA_OK(cudaStreamSynchronize(stream));
    }
    RANKS_OK(dcomm_param_mark_ready(d->t.b, i, there ? NULL : stream));
    if (ranks_random(seed) % 4 == 0) {
        RANKS_OK(dcomm_buckets_progress(d->t.b));
    }
}

typedef struct device_worker {
    device_set *d;
    const size_t *order;
    size_t first;
    int step;
    uint64_t seed;
} device_worker;

static inline void *device_work(void *user)
{
    device_worker *w = user;
    for (size_t at = w->first; at < w->d->t.n; at += 2) {
        device_set_mark(w->d, w->order[at], w->step, &w->seed);
    }
    return NULL;
}

/* Mark all gradients of a step in a random order, from two threads, on several streams. */
static inline void device_set_backward(device_set *d, int step, uint64_t *seed)
{
    size_t order[SET_MAX];
    pthread_t thread;
    set_shuffle(&d->t, order, seed);
    device_worker w[2] = {{d, order, 0, step, ranks_random(seed)},
                          {d, order, 1, step, ranks_random(seed)}};
    PROCS_TRUE(pthread_create(&thread, NULL, device_work, &w[1]) == 0);
    device_work(&w[0]);
    pthread_join(thread, NULL);
}

/* Return a gradient's bytes as they are now, without waiting: any copy still under way shows. */
static inline const unsigned char *device_set_result(device_set *d, size_t i)
{
    size_t bytes = d->t.params[i].count * dcomm_dtype_size(d->t.params[i].dtype);
    if (d->device[i] < 0 || bytes == 0) {
        return d->host[i];
    }
#ifdef CUDA_HOST_STAND_IN
    memcpy(d->out, cuda_host_peek(d->there[i], bytes), bytes);
#else
    CUDA_OK(cudaMemcpy(d->out, d->there[i], bytes, cudaMemcpyDeviceToHost));
#endif
    return d->out;
}

static inline void device_set_compare(device_set *d, size_t i, int step)
{
    const dcomm_bucket_param *p = &d->t.params[i];
    const unsigned char *got = device_set_result(d, i);
    for (size_t j = 0; j < p->count; j++) {
        PROCS_CHECK(ranks_get(got, j, p->dtype) == set_sum(&d->t, i, j, step),
                    "rank %d, step %d, parameter %zu on device %d, element %zu: %g instead of %g",
                    d->t.rank, step, i, d->device[i], j, ranks_get(got, j, p->dtype),
                    set_sum(&d->t, i, j, step));
    }
}

static inline void device_set_compare_all(device_set *d, int step)
{
    for (size_t i = 0; i < d->t.n; i++) {
        device_set_compare(d, i, step);
    }
}

#endif
