/* cuda_runtime.h - cuda_runtime_api.h, and for C++ the forms that take typed pointers. */
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

template <class T> static inline cudaError_t cudaMallocHost(T **ptr, size_t bytes)
{
    return cudaMallocHost(reinterpret_cast<void **>(ptr), bytes);
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
#endif
#endif
