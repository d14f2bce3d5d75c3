/* nccl_ranks.h - for tests of NCCL's interface: ranks as processes, and numbers of all its
 * types. */
#ifndef NCCL_RANKS_H
#define NCCL_RANKS_H

#include <cuda_runtime.h>
#include <nccl.h>
#include "procs.h"
#include <stdint.h>

#define CUDA(call)                                                                       \
    do {                                                                                 \
        cudaError_t status_ = (call);                                                    \
        PROCS_CHECK(status_ == cudaSuccess, "%s: %s", #call, cudaGetErrorName(status_)); \
    } while (0)
#define NCCL(call)                                                                            \
    do {                                                                                      \
        ncclResult_t result_ = (call);                                                        \
        PROCS_CHECK(result_ == ncclSuccess, "%s: %s: %s", #call, ncclGetErrorString(result_), \
                    ncclGetLastError(NULL));                                                  \
    } while (0)
/* Check that the call returns `result`, with a sentence that holds `words`. */
#define NCCL_REFUSES(call, result, words)                                                  \
    do {                                                                                   \
        ncclResult_t result_ = (call);                                                     \
        PROCS_CHECK(result_ == (result), "%s: %s: %s", #call, ncclGetErrorString(result_), \
                    ncclGetLastError(NULL));                                               \
        PROCS_CHECK(strstr(ncclGetLastError(NULL), words) != NULL, "%s: '%s'", #call,      \
                    ncclGetLastError(NULL));                                               \
    } while (0)

/* Return the id of n processes, which blob 0 carries. */
static inline ncclUniqueId ranks_id(int rank, procs_shared *s)
{
    ncclUniqueId id;
    size_t len;
    if (rank == 0) {
        NCCL(ncclGetUniqueId(&id));
        procs_give(s, 0, &id, sizeof id);
    }
    memcpy(&id, procs_take(s, 0, &len), sizeof id);
    return id;
}

static inline ncclComm_t ranks_join(int rank, int n, procs_shared *s)
{
    ncclComm_t comm = NULL;
    CUDA(cudaSetDevice(rank % 8));
    NCCL(ncclCommInitRank(&comm, n, ranks_id(rank, s), rank));
    return comm;
}

/* End a rank. Its process ends right after this, so wait: none may end before all are done. */
static inline int ranks_leave(int rank, int n, int dead, procs_shared *s, ncclComm_t comm)
{
    NCCL(ncclCommFinalize(comm));
    procs_post(s, rank, 1000);
    while (!procs_all(s, n, 1000, dead)) {
        procs_nap();
    }
    NCCL(ncclCommDestroy(comm));
    return 0;
}

/* ---- numbers: small whole ones, which every type holds exactly ---- */

static inline size_t number_bytes(ncclDataType_t type)
{
    static const size_t bytes[ncclNumTypes] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1};
    return bytes[type];
}

static inline uint16_t number_as_half(double value, int fraction, int bias)
{
    int exponent = 0;
    double digits = value < 0 ? -value : value;
    if (digits == 0) {
        return 0;
    }
    for (; digits >= 2; exponent++) {
        digits /= 2;
    }
    for (; digits < 1; exponent--) {
        digits *= 2;
    }
    return (uint16_t)((value < 0 ? 0x8000 : 0) | (exponent + bias) << fraction |
                      (int)((digits - 1) * (1 << fraction)));
}

static inline void number_put(void *at, size_t i, ncclDataType_t type, double value)
{
    switch (type) {
    case ncclInt8:
        ((int8_t *)at)[i] = (int8_t)value;
        break;
    case ncclUint8:
        ((uint8_t *)at)[i] = (uint8_t)value;
        break;
    case ncclInt32:
        ((int32_t *)at)[i] = (int32_t)value;
        break;
    case ncclUint32:
        ((uint32_t *)at)[i] = (uint32_t)value;
        break;
    case ncclInt64:
        ((int64_t *)at)[i] = (int64_t)value;
        break;
    case ncclUint64:
        ((uint64_t *)at)[i] = (uint64_t)value;
        break;
    case ncclFloat16:
        ((uint16_t *)at)[i] = number_as_half(value, 10, 15);
        break;
    case ncclBfloat16:
        ((uint16_t *)at)[i] = number_as_half(value, 7, 127);
        break;
    case ncclFloat32:
        ((float *)at)[i] = (float)value;
        break;
    case ncclFloat64:
        ((double *)at)[i] = value;
        break;
    default:
        ((uint8_t *)at)[i] = (uint8_t)value;
        break; /* bytes that stand for 8-bit floats */
    }
}

typedef double (*number_fn)(size_t i, const void *arg);

/* Fill device memory, in the order of the stream. */
static inline void numbers_put(void *device, size_t n, ncclDataType_t type, number_fn fn,
                               const void *arg, cudaStream_t stream)
{
    void *here = malloc(n * 8 + 1);
    for (size_t i = 0; i < n; i++) {
        number_put(here, i, type, fn(i, arg));
    }
    CUDA(cudaMemcpyAsync(device, here, n * number_bytes(type), cudaMemcpyHostToDevice, stream));
    free(here);
}

/* Compare device memory with the expected numbers, after all work of the stream. */
static inline void numbers_are(const char *what, const void *device, size_t n, ncclDataType_t type,
                               number_fn fn, const void *arg, cudaStream_t stream)
{
    const size_t bytes = number_bytes(type);
    unsigned char *here = malloc(n * bytes + 1), want[8];
    CUDA(cudaMemcpyAsync(here, device, n * bytes, cudaMemcpyDeviceToHost, stream));
    CUDA(cudaStreamSynchronize(stream));
    for (size_t i = 0; i < n; i++) {
        number_put(want, 0, type, fn(i, arg));
        PROCS_CHECK(memcmp(here + i * bytes, want, bytes) == 0,
                    "%s, type %d: number %zu of %zu is not %g", what, (int)type, i, n, fn(i, arg));
    }
    free(here);
}

#endif
