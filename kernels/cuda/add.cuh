/* add.cuh - add a multiple of one array to another, for residuals of error feedback between
 * encodings. */
#ifndef DCOMMI_CUDA_ADD_H
#define DCOMMI_CUDA_ADD_H

#include "job.cuh"

struct dcommi_cuda_addition {
    float *x;
    const float *y;
    float factor;
    uint64_t count;
    struct got {
        float x, y;
    };
    __device__ got get(uint64_t i) const
    {
        return {x[i], y[i]};
    }
    __device__ void put(uint64_t i, got of) const
    {
        const double more = __dmul_rn((double)factor, (double)of.y);
        x[i] = dcommi_f32_bounded(__double2float_rn(__dadd_rn((double)of.x, more)));
    }
};

extern "C" dcomm_status dcomm_cuda_add_scaled(float *x, float factor, const float *y, size_t count,
                                              void *stream)
{
    const char *call = "dcomm_cuda_add_scaled";
    const dcommi_cuda_addition p = {x, y, factor, count};
    DCOMMI_CUDA_TRY(dcommi_cuda_array(call, "x", x, count, sizeof(float)));
    DCOMMI_CUDA_TRY(dcommi_cuda_array(call, "y", y, count, sizeof(float)));
    return dcommi_cuda_some(call, p, stream);
}

#endif
