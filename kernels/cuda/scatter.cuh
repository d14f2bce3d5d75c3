/* scatter.cuh - a few elements of an array, by their indices: what an all-reduce of selections
 * has agreed on, and what goes back into residuals. */
#ifndef DCOMMI_CUDA_SCATTER_H
#define DCOMMI_CUDA_SCATTER_H

#include "job.cuh"

#define DCOMMI_CUDA_SCATTER_THREADS 256u

struct dcommi_cuda_scattering {
    float *x;
    const uint32_t *index;
    const float *value;
    uint64_t count, n;
};

template <bool ADD>
static __global__ void __launch_bounds__(DCOMMI_CUDA_SCATTER_THREADS)
    dcommi_cuda_scatter_kernel(const __grid_constant__ dcommi_cuda_scattering p)
{
    const uint64_t i = (uint64_t)blockIdx.x * DCOMMI_CUDA_SCATTER_THREADS + threadIdx.x;
    if (i < p.n && p.index[i] < p.count) {
        float *to = p.x + p.index[i];
        *to = ADD ? dcommi_cuda_finite(__fadd_rn(*to, p.value[i])) : p.value[i];
    }
}

extern "C" dcomm_status dcomm_cuda_scatter(float *x, size_t count, const uint32_t *index,
                                           const float *value, size_t n, bool add, void *stream)
{
    const char *call = "dcomm_cuda_scatter";
    const dcommi_cuda_scattering p = {x, index, value, count, n};
    DCOMMI_CUDA_TRY(dcommi_cuda_array(call, "x", x, count, sizeof(float)));
    DCOMMI_CUDA_TRY(dcommi_cuda_array(call, "index", index, n, sizeof(uint32_t)));
    DCOMMI_CUDA_TRY(dcommi_cuda_array(call, "value", value, n, sizeof(float)));
    return n == 0 ? DCOMM_OK
                  : dcommi_cuda_launch(call,
                                       add ? dcommi_cuda_scatter_kernel<true>
                                           : dcommi_cuda_scatter_kernel<false>,
                                       (n + DCOMMI_CUDA_SCATTER_THREADS - 1) /
                                           DCOMMI_CUDA_SCATTER_THREADS,
                                       DCOMMI_CUDA_SCATTER_THREADS, p, stream);
}

#endif
