/* add.cuh - a multiple of one array added to another: what residuals of error feedback need
 * between encodings. */
#ifndef DCOMMI_CUDA_ADD_H
#define DCOMMI_CUDA_ADD_H

#include "job.cuh"

#define DCOMMI_CUDA_ADD_THREADS 256u
#define DCOMMI_CUDA_ADD_OWN 4u /* elements of a thread */

struct dcommi_cuda_addition {
    float *x;
    const float *y;
    float factor;
    uint64_t count;
};

static __global__ void __launch_bounds__(DCOMMI_CUDA_ADD_THREADS)
    dcommi_cuda_add_kernel(const __grid_constant__ dcommi_cuda_addition p)
{
    uint64_t i = (uint64_t)blockIdx.x * DCOMMI_CUDA_ADD_THREADS * DCOMMI_CUDA_ADD_OWN + threadIdx.x;
#pragma unroll
    for (uint32_t k = 0; k < DCOMMI_CUDA_ADD_OWN; k++, i += DCOMMI_CUDA_ADD_THREADS) {
        if (i < p.count) {
            const double more = __dmul_rn((double)p.factor, (double)p.y[i]);
            p.x[i] = dcommi_cuda_finite((float)__dadd_rn((double)p.x[i], more));
        }
    }
}

extern "C" dcomm_status dcomm_cuda_add_scaled(float *x, float factor, const float *y, size_t count,
                                              void *stream)
{
    const char *call = "dcomm_cuda_add_scaled";
    const uint64_t tile = DCOMMI_CUDA_ADD_THREADS * DCOMMI_CUDA_ADD_OWN;
    const dcommi_cuda_addition p = {x, y, factor, count};
    DCOMMI_CUDA_TRY(dcommi_cuda_array(call, "x", x, count, sizeof(float)));
    DCOMMI_CUDA_TRY(dcommi_cuda_array(call, "y", y, count, sizeof(float)));
    return count == 0 ? DCOMM_OK
                      : dcommi_cuda_launch(call, dcommi_cuda_add_kernel, (count + tile - 1) / tile,
                                           DCOMMI_CUDA_ADD_THREADS, p, stream);
}

#endif
