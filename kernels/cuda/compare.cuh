/* compare.cuh - take the sums of a ledger in a separate pass, from decoded elements. */
#ifndef DCOMMI_CUDA_COMPARE_H
#define DCOMMI_CUDA_COMPARE_H

#include "job.cuh"

#define DCOMMI_CUDA_COMPARE_OWN 16u /* elements of a thread */
#define DCOMMI_CUDA_COMPARE_TILE (DCOMMI_CUDA_LEDGER_THREADS * DCOMMI_CUDA_COMPARE_OWN)

struct dcommi_cuda_compare {
    const float *x, *y, *next; /* x: NULL: no comparison; next: NULL: no feedback */
    uint64_t count;
    dcommi_cuda_tally *tally; /* one for each block */
};

static __global__ void __launch_bounds__(DCOMMI_CUDA_LEDGER_THREADS)
    dcommi_cuda_compare_kernel(const __grid_constant__ dcommi_cuda_compare p)
{
    dcommi_cuda_tally t = {};
    uint64_t i = (uint64_t)blockIdx.x * DCOMMI_CUDA_COMPARE_TILE + threadIdx.x;
#pragma unroll 4
    for (uint32_t k = 0; k < DCOMMI_CUDA_COMPARE_OWN; k++, i += DCOMMI_CUDA_LEDGER_THREADS) {
        if (i < p.count) {
            /* Comparing with a NaN leaves the element out. */
            const float x = p.x != NULL ? dcommi_cuda_load<float>(p.x + i)
                                        : dcommi_f32_from_bits(DCOMMI_F32_NAN);
            const float next = p.next != NULL ? dcommi_cuda_load<float>(p.next + i) : 0;
            dcommi_cuda_tally_one(&t, x, dcommi_cuda_load<float>(p.y + i), p.next != NULL, next);
        }
    }
    dcommi_cuda_tally_block(&t);
    if (threadIdx.x == 0) {
        p.tally[blockIdx.x] = t;
    }
}

extern "C" size_t dcomm_cuda_compare_workspace_bytes(size_t count)
{
    return count == 0
               ? 0
               : dcommi_cuda_ledger_bytes(dcommi_cuda_blocks(count, DCOMMI_CUDA_COMPARE_TILE));
}

extern "C" dcomm_status dcomm_cuda_ledger_compare(dcomm_cuda_ledger *ledger, const float *x,
                                                  const float *y, const float *next, size_t count,
                                                  void *workspace, void *stream)
{
    const char *call = "dcomm_cuda_ledger_compare";
    DCOMMI_CUDA_TRY(dcommi_cuda_array(call, "ledger", ledger, 1, 8));
    DCOMMI_CUDA_TRY(dcommi_cuda_array(call, "x", x, 0, sizeof(float)));
    DCOMMI_CUDA_TRY(dcommi_cuda_array(call, "y", y, count, sizeof(float)));
    DCOMMI_CUDA_TRY(dcommi_cuda_array(call, "next", next, 0, sizeof(float)));
    DCOMMI_CUDA_TRY(
        dcommi_cuda_workspace_check(call, workspace, dcomm_cuda_compare_workspace_bytes(count)));
    if (count == 0) {
        return DCOMM_OK;
    }
    const uint64_t blocks = dcommi_cuda_blocks(count, DCOMMI_CUDA_COMPARE_TILE);
    const dcommi_cuda_compare p = {x, y, next, count, static_cast<dcommi_cuda_tally *>(workspace)};
    DCOMMI_CUDA_TRY(dcommi_cuda_launch(call, dcommi_cuda_compare_kernel, blocks,
                                       DCOMMI_CUDA_LEDGER_THREADS, p, stream));
    return dcommi_cuda_ledger_launch(call, p.tally, blocks, ledger, stream);
}

#endif
