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
    __device__ void one(uint64_t i) const
    {
        const double more = __dmul_rn((double)factor, (double)y[i]);
        x[i] = dcommi_cuda_finite((float)__dadd_rn((double)x[i], more));
    }
};

extern "C" dcomm_status dcomm_cuda_add_scaled(float *x, float factor, const float *y, size_t count,
                                              void *stream)
{
    const char *call = "dcomm_cuda_add_scaled";
    const dcommi_cuda_addition p = {x, y, factor, count};
    DCOMMI_CUDA_TRY(dcommi_cuda_array(call, "x", x, count, sizeof(float)));
    DCOMMI_CUDA_TRY(dcommi_cuda_array(call, "y", y, count, sizeof(float)));
    return dcommi_cuda_each<4>(call, p, stream);
}

#endif
