/* cuda_runtime.h - cuda_runtime_api.h, and the forms of calls that exist only in C++: typed
 * pointers, flags of an event, memory of a pool. */
#ifndef CUDA_HOST_RUNTIME_H
#define CUDA_HOST_RUNTIME_H

#include "cuda_runtime_api.h"

#ifdef __cplusplus
template <class T> static inline cudaError_t cudaMalloc(T **ptr, size_t bytes)
{
    return cudaMalloc(reinterpret_cast<void **>(ptr), bytes);
}

template <class T>
static inline cudaError_t cudaMallocPitch(T **ptr, size_t *pitch, size_t width, size_t height)
{
    return cudaMallocPitch(reinterpret_cast<void **>(ptr), pitch, width, height);
}

static inline cudaError_t cudaMallocHost(void **ptr, size_t bytes, unsigned flags)
{
    return cudaHostAlloc(ptr, bytes, flags);
}

template <class T>
static inline cudaError_t cudaMallocHost(T **ptr, size_t bytes, unsigned flags = 0)
{
    return cudaHostAlloc(reinterpret_cast<void **>(ptr), bytes, flags);
}

template <class T> static inline cudaError_t cudaHostAlloc(T **ptr, size_t bytes, unsigned flags)
{
    return cudaHostAlloc(reinterpret_cast<void **>(ptr), bytes, flags);
}

template <class T>
static inline cudaError_t cudaMallocManaged(T **ptr, size_t bytes,
                                            unsigned flags = cudaMemAttachGlobal)
{
    return cudaMallocManaged(reinterpret_cast<void **>(ptr), bytes, flags);
}

template <class T>
static inline cudaError_t cudaHostGetDevicePointer(T **device, void *host, unsigned flags)
{
    return cudaHostGetDevicePointer(reinterpret_cast<void **>(device), host, flags);
}

template <class T>
static inline cudaError_t cudaMallocAsync(T **ptr, size_t bytes, cudaStream_t stream)
{
    return cudaMallocAsync(reinterpret_cast<void **>(ptr), bytes, stream);
}

template <class T>
static inline cudaError_t cudaMallocFromPoolAsync(T **ptr, size_t bytes, cudaMemPool_t pool,
                                                  cudaStream_t stream)
{
    return cudaMallocFromPoolAsync(reinterpret_cast<void **>(ptr), bytes, pool, stream);
}

template <class T>
static inline cudaError_t cudaMallocAsync(T **ptr, size_t bytes, cudaMemPool_t pool,
                                          cudaStream_t stream)
{
    return cudaMallocFromPoolAsync(reinterpret_cast<void **>(ptr), bytes, pool, stream);
}

static inline cudaError_t cudaEventCreate(cudaEvent_t *event, unsigned flags)
{
    return cudaEventCreateWithFlags(event, flags);
}

static inline cudaError_t cudaGraphInstantiate(cudaGraphExec_t *exec, cudaGraph_t graph)
{
    return cudaGraphInstantiate(exec, graph, 0);
}
#endif
#endif
