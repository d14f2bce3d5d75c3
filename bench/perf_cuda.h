/* perf_cuda.h - buffers on a device. Every pool has a copy on the device, which the calls use.
 * Calls run on a stream, and events on it give the times. Without DCOMM_WITH_CUDA these functions
 * fail or do nothing. */
#ifndef PERF_CUDA_H
#define PERF_CUDA_H

#include "dcomm.h"
#include "perf_rule.h"

#include <stdlib.h>

#ifdef DCOMM_WITH_CUDA

#include <cuda_runtime_api.h>

static cudaStream_t perf_cuda_stream_now;
static cudaEvent_t perf_cuda_began, perf_cuda_ended;

static bool perf_cuda_good(cudaError_t error, const char *what)
{
    if (error != cudaSuccess) {
        fprintf(stderr, "dcomm-perf: %s: %s\n", what, cudaGetErrorString(error));
    }
    return error == cudaSuccess;
}

/* Choose the device, and create the stream and the events. Ranks are spread over the devices of
 * the host. */
static bool perf_cuda_start(void)
{
    const char *local = getenv("LOCAL_RANK");
    int devices = 0, rank = local != NULL ? atoi(local) : 0;
    return perf_cuda_stream_now != NULL ||
           (perf_cuda_good(cudaGetDeviceCount(&devices), "cudaGetDeviceCount") && devices > 0 &&
            perf_cuda_good(cudaSetDevice(rank % devices), "cudaSetDevice") &&
            perf_cuda_good(cudaStreamCreateWithFlags(&perf_cuda_stream_now, cudaStreamNonBlocking),
                           "cudaStreamCreateWithFlags") &&
            perf_cuda_good(cudaEventCreateWithFlags(&perf_cuda_began, 0), "cudaEventCreate") &&
            perf_cuda_good(cudaEventCreateWithFlags(&perf_cuda_ended, 0), "cudaEventCreate"));
}

static void *perf_cuda_stream(void)
{
    return perf_cuda_stream_now;
}

/* Allocate the pool's memory on the device. With PERF_MEM_CUDA_SHARED, peers in `context` can open
 * it. */
static bool perf_cuda_open(perf_pool *p, dcomm_context *context)
{
    void *device = NULL;
    bool good =
        perf_cuda_start() && (p->mem == PERF_MEM_CUDA_SHARED
                                  ? dcomm_mem_alloc_device(context, p->bytes, &device) == DCOMM_OK
                                  : perf_cuda_good(cudaMalloc(&device, p->bytes), "cudaMalloc"));
    p->device = device;
    return good;
}

static void perf_cuda_close(perf_pool *p)
{
    void *device = p->device;
    if (p->mem == PERF_MEM_CUDA_SHARED) {
        dcomm_mem_free(&device);
    } else if (device != NULL) {
        cudaFree(device);
    }
    p->device = NULL;
}

/* Copy the whole pool to the device, or back. */
static bool perf_cuda_copy(const perf_pool *p, bool back)
{
    return perf_cuda_good(cudaMemcpyAsync(back ? p->memory : p->device,
                                          back ? p->device : p->memory, p->bytes, cudaMemcpyDefault,
                                          perf_cuda_stream_now),
                          "cudaMemcpyAsync") &&
           perf_cuda_good(cudaStreamSynchronize(perf_cuda_stream_now), "cudaStreamSynchronize");
}

/* Copy bytes within the pool's copy on the device. */
static void perf_cuda_move(const perf_pool *p, char *to, const char *from, size_t bytes)
{
    perf_cuda_good(cudaMemcpyAsync(p->device + (to - p->memory), p->device + (from - p->memory),
                                   bytes, cudaMemcpyDefault, perf_cuda_stream_now),
                   "cudaMemcpyAsync");
}

static void perf_cuda_begin(void)
{
    perf_cuda_good(cudaStreamSynchronize(perf_cuda_stream_now), "cudaStreamSynchronize");
    perf_cuda_good(cudaEventRecord(perf_cuda_began, perf_cuda_stream_now), "cudaEventRecord");
}

/* Return the seconds on the stream since perf_cuda_begin. */
static double perf_cuda_end(void)
{
    float ms = 0;
    perf_cuda_good(cudaEventRecord(perf_cuda_ended, perf_cuda_stream_now), "cudaEventRecord");
    perf_cuda_good(cudaEventSynchronize(perf_cuda_ended), "cudaEventSynchronize");
    perf_cuda_good(cudaEventElapsedTime(&ms, perf_cuda_began, perf_cuda_ended),
                   "cudaEventElapsedTime");
    return (double)ms * 1e-3;
}

#else

static inline bool perf_cuda_open(perf_pool *p, dcomm_context *context)
{
    (void)context;
    fprintf(stderr, "dcomm-perf: --mem %s needs a build with DCOMM_WITH_CUDA\n",
            perf_mem_names[p->mem]);
    return false;
}

static inline void perf_cuda_close(perf_pool *p)
{
    (void)p;
}

static inline void *perf_cuda_stream(void)
{
    return NULL;
}

static inline bool perf_cuda_copy(const perf_pool *p, bool back)
{
    (void)p, (void)back;
    return false;
}

static inline void perf_cuda_move(const perf_pool *p, char *to, const char *from, size_t bytes)
{
    (void)p, (void)to, (void)from, (void)bytes;
}

static inline void perf_cuda_begin(void)
{
}

static inline double perf_cuda_end(void)
{
    return 0;
}

#endif
#endif
