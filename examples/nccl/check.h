/* check.h - the macros CUDACHECK and NCCLCHECK of NCCL's examples, and functions to make and check
 * numbers. */
#ifndef CHECK_H
#define CHECK_H

#include <cuda_runtime.h>
#include <nccl.h>
#include <stdio.h>
#include <stdlib.h>

#define CUDACHECK(call)                                                                      \
    do {                                                                                     \
        cudaError_t status_ = (call);                                                        \
        if (status_ != cudaSuccess) {                                                        \
            fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, cudaGetErrorString(status_)); \
            exit(EXIT_FAILURE);                                                              \
        }                                                                                    \
    } while (0)

#define NCCLCHECK(call)                                                                         \
    do {                                                                                        \
        ncclResult_t result_ = (call);                                                          \
        if (result_ != ncclSuccess) {                                                           \
            fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, ncclGetErrorString(result_), \
                    ncclGetLastError(NULL));                                                    \
            exit(EXIT_FAILURE);                                                                 \
        }                                                                                       \
    } while (0)

/* Allocate device memory of n numbers: `value` plus a thousandth of the index (modulo 1000). */
static inline float *device_numbers(size_t n, float value)
{
    float *here = (float *)malloc(n * sizeof(float)), *device = NULL;
    for (size_t i = 0; i < n; i++) {
        here[i] = value + 0.001f * (float)(i % 1000);
    }
    CUDACHECK(cudaMalloc((void **)&device, n * sizeof(float)));
    CUDACHECK(cudaMemcpy(device, here, n * sizeof(float), cudaMemcpyHostToDevice));
    /* It returns before the numbers are there, and streams need not wait for it. */
    CUDACHECK(cudaStreamSynchronize(cudaStreamLegacy));
    free(here);
    return device;
}

/* Return 1 and print an error if device memory does not hold `scale` times such numbers; else
 * return 0. */
static inline int wrong_numbers(const char *what, const float *device, size_t n, float value,
                                float scale)
{
    float *here = (float *)malloc(n * sizeof(float));
    int wrong = 0;
    CUDACHECK(cudaMemcpy(here, device, n * sizeof(float), cudaMemcpyDeviceToHost));
    for (size_t i = 0; i < n && !wrong; i++) {
        float want = scale * (value + 0.001f * (float)(i % 1000)), off = here[i] - want;
        if (!(off <= 1e-4f * want && -off <= 1e-4f * want)) {
            fprintf(stderr, "%s: number %zu is %g, not %g\n", what, i, (double)here[i],
                    (double)want);
            wrong = 1;
        }
    }
    free(here);
    return wrong;
}

#endif
