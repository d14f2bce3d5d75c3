/* cuda.h - the functions of CUDA's driver that cudaGetDriverEntryPoint finds in the host stand-in.
 * With two of them a stream waits for a word of memory, or writes one. */
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
    CUDA_ERROR_INVALID_HANDLE = 400,
    CUDA_ERROR_ILLEGAL_ADDRESS = 700,
    CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED = 900,
    CUDA_ERROR_UNKNOWN = 999
} CUresult;
typedef unsigned long long CUdeviceptr;
typedef uint32_t cuuint32_t;
typedef cudaStream_t CUstream;

#define CU_STREAM_WAIT_VALUE_GEQ 0x0
#define CU_STREAM_WAIT_VALUE_EQ 0x1
#define CU_STREAM_WAIT_VALUE_AND 0x2
#define CU_STREAM_WAIT_VALUE_NOR 0x3
#define CU_STREAM_WRITE_VALUE_DEFAULT 0x0

/* Wait for a word of memory on a stream; below: write one. It is device or pinned memory, 4 bytes,
 * aligned. */
CUresult cuStreamWaitValue32(CUstream stream, CUdeviceptr addr, cuuint32_t value, unsigned flags);
CUresult cuStreamWriteValue32(CUstream stream, CUdeviceptr addr, cuuint32_t value, unsigned flags);
/* Return the allocation that contains a device pointer. */
CUresult cuMemGetAddressRange(CUdeviceptr *base, size_t *bytes, CUdeviceptr ptr);

#ifdef __cplusplus
}
#endif
#endif
