/* cuda_base.h - what all calls of CUDA's runtime share: the current device, errors as sentences,
 * the driver's functions. */
#ifndef DCOMMI_CUDA_BASE_H
#define DCOMMI_CUDA_BASE_H

#include "device.h"

#ifdef DCOMM_WITH_CUDA

#include <cuda_runtime_api.h>

static dcomm_status dcommi_cuda_failed(cudaError_t error, const char *what)
{
    (void)cudaGetLastError(); /* it is told here: the program's next look must not find it again */
    return dcommi_fail(error == cudaErrorMemoryAllocation ? DCOMM_ERR_NO_MEMORY : DCOMM_ERR_SYSTEM,
                       "%s: %s", what, cudaGetErrorString(error));
}

#define DCOMMI_CUDA_TRY(call, what)                              \
    do {                                                         \
        cudaError_t dcommi_cuda_error = (call);                  \
        if (DCOMMI_UNLIKELY(dcommi_cuda_error != cudaSuccess)) { \
            return dcommi_cuda_failed(dcommi_cuda_error, what);  \
        }                                                        \
    } while (0)

/* Streams and events belong to the current device, which is the calling thread's own. */
static int dcommi_cuda_enter(int number)
{
    int before = number;
    if (cudaGetDevice(&before) != cudaSuccess || before != number) {
        (void)cudaSetDevice(number);
    }
    return before;
}

static void dcommi_cuda_leave(int number, int before)
{
    if (before != number) {
        (void)cudaSetDevice(before);
    }
}

/* A function of the driver's, found without linking it. */
static dcomm_status dcommi_cuda_entry(const char *symbol, void **entry)
{
    enum cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
    *entry = NULL;
#if CUDART_VERSION >= 12050
    cudaError_t error =
        cudaGetDriverEntryPointByVersion(symbol, entry, 12000, cudaEnableDefault, &found);
#else
    cudaError_t error = cudaGetDriverEntryPoint(symbol, entry, cudaEnableDefault, &found);
#endif
    DCOMMI_CUDA_TRY(error, "cudaGetDriverEntryPoint");
    return *entry != NULL && found == cudaDriverEntryPointSuccess
               ? DCOMM_OK
               : dcommi_fail(DCOMM_ERR_UNSUPPORTED, "the driver has no %s", symbol);
}

#endif
#endif
