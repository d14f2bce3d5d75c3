/* device_ranks.h - ranks whose buffers are device memory. Each buffer of collective_jobs.h has a
 * copy on a device. Ranks are processes or threads of one. Uses CUDA's runtime, or the stand-in,
 * as linked. */
#ifndef DEVICE_RANKS_H
#define DEVICE_RANKS_H

#include "collective_jobs.h"

#include <cuda_runtime_api.h>
#include <pthread.h>

#define CUDA_OK(call)                                                                 \
    do {                                                                              \
        cudaError_t cuda_error = (call);                                              \
        PROCS_CHECK(cuda_error == cudaSuccess, "%s", cudaGetErrorString(cuda_error)); \
    } while (0)

/* Copy to a device, so that the bytes are there for every stream. cudaMemcpy alone returns before
 * that. */
static inline void device_put(void *dst, const void *src, size_t bytes)
{
    CUDA_OK(cudaMemcpy(dst, src, bytes, cudaMemcpyDefault));
    CUDA_OK(cudaStreamSynchronize(cudaStreamLegacy));
}

static struct device_kept {
    cudaError_t (*release)(void *memory);
    void *memory;
} device_kept[1 << 14];
static _Atomic unsigned device_kept_n;

/* Free memory by cudaFree or cudaFreeHost; where ranks are threads, when all have ended. CUDA waits
 * for all streams of a device when it frees, and one may wait for this rank. */
static inline void device_free(cudaError_t (*release)(void *memory), void *memory)
{
    if (!ranks_are_threads) {
        CUDA_OK(release(memory));
        return;
    }
    unsigned at = atomic_fetch_add(&device_kept_n, 1);
    PROCS_TRUE(at < sizeof device_kept / sizeof *device_kept);
    device_kept[at] = (struct device_kept){release, memory};
}

/* Return true if kernels are loaded when they are first launched. No stream waits for a rank then.
 */
static inline bool device_lazy(void)
{
    const char *how = getenv("CUDA_MODULE_LOADING");
#ifdef CUDA_HOST_STAND_IN
    return how != NULL && strcmp(how, "LAZY") == 0;
#else
    return how == NULL || strcmp(how, "EAGER") != 0;
#endif
}

/* Return pinned memory: copies of other memory wait for their stream, in the driver. */
static inline void *device_pinned(size_t bytes)
{
    void *memory = NULL;
    CUDA_OK(cudaHostAlloc(&memory, bytes, cudaHostAllocPortable));
    return memory;
}

#define DEVICE_ARENA ((size_t)8 << 20)

/* The device copy of all buffers of a rank. */
static _Thread_local unsigned char *device_double;
static _Thread_local bool device_filled; /* true after the job's call has filled it */

static inline void device_arena_make(void)
{
    ranks_registered = (ranks_arena){.memory = ranks_are_threads ? device_pinned(DEVICE_ARENA)
                                                                 : aligned_alloc(64, DEVICE_ARENA),
                                     .len = DEVICE_ARENA};
    PROCS_TRUE(ranks_registered.memory != NULL);
    CUDA_OK(cudaMalloc((void **)&device_double, DEVICE_ARENA));
}

static inline void device_arena_free(void)
{
    device_free(cudaFree, device_double);
    if (ranks_are_threads) {
        device_free(cudaFreeHost, ranks_registered.memory);
    } else {
        free(ranks_registered.memory);
    }
    ranks_registered.memory = NULL;
}

static _Thread_local cudaStream_t device_stream; /* the stream of the job's call; NULL: none */

static inline void *device_there(const void *at)
{
    size_t offset = (size_t)((const unsigned char *)at - (unsigned char *)ranks_registered.memory);
    device_filled = true;
    if (device_stream != NULL) {
        CUDA_OK(cudaMemcpyAsync(device_double, ranks_registered.memory, ranks_registered.used,
                                cudaMemcpyHostToDevice, device_stream));
    } else {
        CUDA_OK(cudaMemcpy(device_double, ranks_registered.memory, ranks_registered.used,
                           cudaMemcpyHostToDevice));
    }
    return device_double + offset;
}

static inline dcomm_status device_back(const job *j, dcomm_status status)
{
    if (!device_filled) {
        return status; /* a call without buffers */
    }
    device_filled = false;
    if (device_stream != NULL) {
        CUDA_OK(cudaMemcpyAsync(ranks_registered.memory, device_double, ranks_registered.used,
                                cudaMemcpyDeviceToHost, device_stream));
        CUDA_OK(cudaStreamSynchronize(device_stream));
    } else {
        CUDA_OK(cudaMemcpy(ranks_registered.memory, device_double, ranks_registered.used,
                           cudaMemcpyDeviceToHost));
    }
    return status < 0 ? status : dcomm_comm_status(j->comm);
}

/* ---- ranks ---- */

typedef struct device_rank {
    int rank, n;
    procs_shared *shared;
    void *arg;
    procs_fn fn;
    pthread_t thread;
    int ended;
} device_rank;

static void *device_rank_main(void *user)
{
    device_rank *r = user;
    r->ended = r->fn(r->rank, r->n, r->shared, r->arg);
    return NULL;
}

/* Run as a process of procs_run: all ranks are its threads, and share arg. */
static int device_threads(int process, int processes, procs_shared *s, void *arg)
{
    device_rank ranks[PROCS_MAX], *first = arg;
    int bad = 0;
    PROCS_TRUE(process == 0 && processes == 1);
    ranks_are_threads = true;
    for (int r = 0; r < first->n; r++) {
        ranks[r] = *first;
        ranks[r].rank = r;
        ranks[r].shared = s;
        PROCS_TRUE(pthread_create(&ranks[r].thread, NULL, device_rank_main, &ranks[r]) == 0);
    }
    for (int r = 0; r < first->n; r++) {
        pthread_join(ranks[r].thread, NULL);
        bad += ranks[r].ended != 0;
    }
    for (unsigned i = atomic_load(&device_kept_n); i-- > 0 && bad == 0;) {
        CUDA_OK(device_kept[i].release(device_kept[i].memory));
    }
    return bad != 0 ? bad : procs_leaks();
}

/* Return the number of ranks, of n, that failed. */
static inline int device_run(int n, bool threads, double timeout_s, procs_fn fn, void *arg)
{
    int ended[PROCS_MAX];
    device_rank all = {.n = n, .arg = arg, .fn = fn};
    return threads ? procs_run(1, timeout_s, device_threads, &all, ended)
                   : procs_run(n, timeout_s, fn, arg, ended);
}

#endif
