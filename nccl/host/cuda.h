/* cuda.h - the functions of CUDA's driver that cudaGetDriverEntryPoint finds in the host stand-in.
 * With two of them a stream waits for a word of memory, or writes one. Others get and set the
 * context of the calling thread. */
#ifndef CUDA_HOST_CUDA_H
#define CUDA_HOST_CUDA_H

#include "cuda_runtime_api.h"
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define CUDA_VERSION CUDART_VERSION

typedef enum cudaError_enum {
    CUDA_SUCCESS = 0,
    CUDA_ERROR_INVALID_VALUE = 1,
    CUDA_ERROR_OUT_OF_MEMORY = 2,
    CUDA_ERROR_NO_DEVICE = 100,
    CUDA_ERROR_INVALID_CONTEXT = 201,
    CUDA_ERROR_INVALID_HANDLE = 400,
    CUDA_ERROR_ILLEGAL_ADDRESS = 700,
    CUDA_ERROR_NOT_PERMITTED = 800,
    CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED = 900,
    CUDA_ERROR_UNKNOWN = 999
} CUresult;
typedef unsigned long long CUdeviceptr;
typedef uint32_t cuuint32_t;
typedef cudaStream_t CUstream;
typedef struct CUctx_st *CUcontext;
typedef int CUdevice;
typedef enum cudaStreamCaptureMode CUstreamCaptureMode;
typedef enum CUmoduleLoadingMode {
    CU_MODULE_EAGER_LOADING = 1,
    CU_MODULE_LAZY_LOADING = 2
} CUmoduleLoadingMode;

#define CU_STREAM_WAIT_VALUE_GEQ 0x0
#define CU_STREAM_WAIT_VALUE_EQ 0x1
#define CU_STREAM_WAIT_VALUE_AND 0x2
#define CU_STREAM_WAIT_VALUE_NOR 0x3
#define CU_STREAM_WRITE_VALUE_DEFAULT 0x0

/* Wait for a word of memory on a stream; below: write one. It is device or pinned memory, 4 bytes,
 * aligned. */
CUresult cuStreamWaitValue32(CUstream stream, CUdeviceptr addr, cuuint32_t value, unsigned flags);
CUresult cuStreamWriteValue32(CUstream stream, CUdeviceptr addr, cuuint32_t value, unsigned flags);
/* Return how kernels are loaded: as CUDA_MODULE_LOADING says, EAGER by default (CUDA: LAZY). */
CUresult cuModuleGetLoadingMode(CUmoduleLoadingMode *mode);
/* Return the allocation that contains a device pointer. */
CUresult cuMemGetAddressRange(CUdeviceptr *base, size_t *bytes, CUdeviceptr ptr);

CUresult cuInit(unsigned flags);
/* Exchange the calling thread's capture mode. */
CUresult cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode *mode);
/* Make a device's context, unless there is one. It is not given back here. */
CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device);
/* The context of the calling thread; NULL: none. */
CUresult cuCtxGetCurrent(CUcontext *context);
CUresult cuCtxSetCurrent(CUcontext context);
/* Return the device of the calling thread's context. */
CUresult cuCtxGetDevice(CUdevice *device);

#ifdef __cplusplus
}
#endif
#endif
