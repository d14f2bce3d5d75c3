/* ledger.cuh - the sums of a ledger, taken while a thread encodes its elements.
 *
 * The CPU adds elements in eight lanes, one after the other, which a device cannot do in parallel.
 * Here a thread adds its own elements, and warps and blocks add theirs pairwise. The blocks' sums
 * are added in a tree that depends only on the lengths. So sums are the same in every run. They
 * differ from the CPU's by the rounding of f64 sums; counts do not differ. */
#ifndef DCOMMI_CUDA_LEDGER_H
#define DCOMMI_CUDA_LEDGER_H

#include "base.cuh"
#include "../tally.h"

#define DCOMMI_CUDA_LEDGER_THREADS 256u
#define DCOMMI_CUDA_LEDGER_BLOCKS 128u /* blocks that reduce many sums, before one does */

struct dcommi_cuda_tally {
    double sum[DCOMMI_LEDGER_SUMS];
    uint64_t seen;
};

/* Add the sums of `n` blocks, into those of this launch's blocks or into the caller's ledger. */
struct dcommi_cuda_ledger_sum {
    const dcommi_cuda_tally *from;
    dcommi_cuda_tally *to;
    dcomm_cuda_ledger *ledger; /* NULL: `to` */
    uint64_t n;
};

/* Add one element: x, its decoded value y, and with feedback its residual `next`; see
 * cpu/tally_loops.h. */
DCOMMI_CUDA_INLINE void dcommi_cuda_tally_one(dcommi_cuda_tally *t, float x, float y, bool feedback,
                                              float next)
{
    const float e = __fsub_rn(y, x);
    if ((dcommi_f32_bits(e) & 0x7f800000u) != 0x7f800000u) {
        const double a = (double)x, b = (double)y, d = (double)e;
        t->sum[DCOMMI_LEDGER_XX] = __fma_rn(a, a, t->sum[DCOMMI_LEDGER_XX]);
        t->sum[DCOMMI_LEDGER_YY] = __fma_rn(b, b, t->sum[DCOMMI_LEDGER_YY]);
        t->sum[DCOMMI_LEDGER_XY] = __fma_rn(a, b, t->sum[DCOMMI_LEDGER_XY]);
        t->sum[DCOMMI_LEDGER_EE] = __fma_rn(d, d, t->sum[DCOMMI_LEDGER_EE]);
        t->sum[DCOMMI_LEDGER_SIGNED] = __dadd_rn(t->sum[DCOMMI_LEDGER_SIGNED], x > 0   ? d
                                                                               : x < 0 ? -d
                                                                                       : 0);
        t->sum[DCOMMI_LEDGER_X] = __dadd_rn(t->sum[DCOMMI_LEDGER_X], x < 0 ? -a : a);
        t->seen++;
    }
    const float all = __fadd_rn(y, next);
    if (feedback && (dcommi_f32_bits(all) & 0x7f800000u) != 0x7f800000u) {
        const double a = (double)all, r = (double)next;
        t->sum[DCOMMI_LEDGER_ENCODED] = __fma_rn(a, a, t->sum[DCOMMI_LEDGER_ENCODED]);
        t->sum[DCOMMI_LEDGER_RESIDUAL] = __fma_rn(r, r, t->sum[DCOMMI_LEDGER_RESIDUAL]);
    }
}

/* Add up the block's sums; thread 0 has them. All threads call it. */
DCOMMI_CUDA_INLINE void dcommi_cuda_tally_block(dcommi_cuda_tally *t)
{
    __shared__ dcommi_cuda_tally room[32];
    const unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    for (unsigned far = 1; far < 32; far *= 2) {
#pragma unroll
        for (int s = 0; s < DCOMMI_LEDGER_SUMS; s++) {
            t->sum[s] = __dadd_rn(t->sum[s], __shfl_xor_sync(0xffffffffu, t->sum[s], far));
        }
        t->seen += __shfl_xor_sync(0xffffffffu, t->seen, far);
    }
    if (lane == 0) {
        room[warp] = *t;
    }
    __syncthreads();
    for (unsigned w = 1; threadIdx.x == 0 && w < blockDim.x / 32; w++) {
#pragma unroll
        for (int s = 0; s < DCOMMI_LEDGER_SUMS; s++) {
            t->sum[s] = __dadd_rn(t->sum[s], room[w].sum[s]);
        }
        t->seen += room[w].seen;
    }
}

static __global__ void __launch_bounds__(DCOMMI_CUDA_LEDGER_THREADS)
    dcommi_cuda_ledger_kernel(const __grid_constant__ dcommi_cuda_ledger_sum p)
{
    dcommi_cuda_tally t = {};
    for (uint64_t i = (uint64_t)blockIdx.x * blockDim.x + threadIdx.x; i < p.n;
         i += (uint64_t)gridDim.x * blockDim.x) {
        for (int s = 0; s < DCOMMI_LEDGER_SUMS; s++) {
            t.sum[s] = __dadd_rn(t.sum[s], p.from[i].sum[s]);
        }
        t.seen += p.from[i].seen;
    }
    dcommi_cuda_tally_block(&t);
    if (threadIdx.x == 0 && p.ledger == NULL) {
        p.to[blockIdx.x] = t;
    } else if (threadIdx.x == 0) {
        for (int s = 0; s < DCOMMI_LEDGER_SUMS; s++) {
            p.ledger->sums[s] = __dadd_rn(p.ledger->sums[s], t.sum[s]);
        }
        p.ledger->count += t.seen;
    }
}

/* Return the bytes for the sums of `blocks`, and of the launch that adds them. */
static size_t dcommi_cuda_ledger_bytes(uint64_t blocks)
{
    return (size_t)(blocks + DCOMMI_CUDA_LEDGER_BLOCKS) * sizeof(dcommi_cuda_tally);
}

/* Add the sums that `blocks` blocks left at `room` to the ledger. */
static dcomm_status dcommi_cuda_ledger_launch(const char *call, dcommi_cuda_tally *room,
                                              uint64_t blocks, dcomm_cuda_ledger *ledger,
                                              void *stream)
{
    dcommi_cuda_ledger_sum p = {room, room + blocks, NULL, blocks};
    if (blocks > DCOMMI_CUDA_LEDGER_THREADS) {
        DCOMMI_CUDA_TRY(dcommi_cuda_launch(call, dcommi_cuda_ledger_kernel,
                                           DCOMMI_CUDA_LEDGER_BLOCKS, DCOMMI_CUDA_LEDGER_THREADS, p,
                                           stream));
        p.from = p.to;
        p.n = DCOMMI_CUDA_LEDGER_BLOCKS;
    }
    p.ledger = ledger;
    return dcommi_cuda_launch(call, dcommi_cuda_ledger_kernel, 1, DCOMMI_CUDA_LEDGER_THREADS, p,
                              stream);
}

#endif
