/* scatter.cuh - store or add a few elements of an array by their indices, for the result of a
 * sparse all-reduce and for residuals. */
#ifndef DCOMMI_CUDA_SCATTER_H
#define DCOMMI_CUDA_SCATTER_H

#include "job.cuh"

struct dcommi_cuda_scattering {
    float *x;
    uint64_t length;
    const uint32_t *index;
    const float *value;
    uint64_t count;
    bool add;
    __device__ void one(uint64_t i) const
    {
        if (index[i] < length) {
            float *to = x + index[i];
            *to = add ? dcommi_f32_bounded(__fadd_rn(*to, value[i])) : value[i];
        }
    }
};

extern "C" dcomm_status dcomm_cuda_scatter(float *x, size_t count, const uint32_t *index,
                                           const float *value, size_t n, bool add, void *stream)
{
    const char *call = "dcomm_cuda_scatter";
    const dcommi_cuda_scattering p = {x, count, index, value, n, add};
    DCOMMI_CUDA_TRY(dcommi_cuda_array(call, "x", x, count, sizeof(float)));
    DCOMMI_CUDA_TRY(dcommi_cuda_array(call, "index", index, n, sizeof(uint32_t)));
    DCOMMI_CUDA_TRY(dcommi_cuda_array(call, "value", value, n, sizeof(float)));
    return dcommi_cuda_each(call, p, stream);
}

#endif
