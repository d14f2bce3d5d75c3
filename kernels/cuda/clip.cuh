/* clip.cuh - DGC's clipping on device memory: compute the factor from a gradient's norm, summed in
 * the order of cpu/norm.h, and the momentum of the clipped gradient. A block sums a tile, each
 * warp a row of it; one block then sums the tiles. */
#ifndef DCOMMI_CUDA_CLIP_H
#define DCOMMI_CUDA_CLIP_H

#include "job.cuh"
#include "../norm.h"

#define DCOMMI_CUDA_CLIP_THREADS (DCOMMI_NORM_ROWS * DCOMMI_NORM_LANES)
#define DCOMMI_CUDA_CLIP_TILE (DCOMMI_NORM_ROWS * DCOMMI_NORM_ROW)
#define DCOMMI_CUDA_CLIP_OWN (DCOMMI_NORM_ROW / DCOMMI_NORM_LANES) /* elements of a thread */

struct dcommi_cuda_clip {
    const float *g;
    uint64_t count, tiles;
    double most;
    double *tile; /* one sum for each tile */
    dcomm_cuda_clip *clip;
};

/* Add up the threads' sums: lanes of a row, then rows in order; thread 0 has the result. All
 * threads call it. */
DCOMMI_CUDA_INLINE double dcommi_cuda_clip_rows(double s)
{
    __shared__ double row[DCOMMI_NORM_ROWS];
    for (unsigned far = DCOMMI_NORM_LANES / 2; far > 0; far /= 2) {
        s = __dadd_rn(s, __shfl_xor_sync(0xffffffffu, s, far));
    }
    if (threadIdx.x % DCOMMI_NORM_LANES == 0) {
        row[threadIdx.x / DCOMMI_NORM_LANES] = s;
    }
    __syncthreads();
    for (unsigned r = 1; threadIdx.x == 0 && r < DCOMMI_NORM_ROWS; r++) {
        s = __dadd_rn(s, row[r]);
    }
    return s;
}

static __global__ void __launch_bounds__(DCOMMI_CUDA_CLIP_THREADS)
    dcommi_cuda_clip_tile_kernel(const __grid_constant__ dcommi_cuda_clip p)
{
    const uint64_t row = (uint64_t)blockIdx.x * DCOMMI_NORM_ROWS + threadIdx.x / DCOMMI_NORM_LANES;
    uint64_t i = row * DCOMMI_NORM_ROW + threadIdx.x % DCOMMI_NORM_LANES;
    double s = 0;
#pragma unroll 16
    for (uint32_t k = 0; k < DCOMMI_CUDA_CLIP_OWN; k++, i += DCOMMI_NORM_LANES) {
        const float x = i < p.count ? p.g[i] : 0; /* ordinary load: it is read again soon */
        const uint32_t exponent = dcommi_f32_bits(x) & 0x7f800000u;
        const double v = exponent != 0 && exponent != 0x7f800000u ? (double)x : 0;
        s = __fma_rn(v, v, s);
    }
    s = dcommi_cuda_clip_rows(s);
    if (threadIdx.x == 0) {
        p.tile[blockIdx.x] = s;
    }
}

static __global__ void __launch_bounds__(DCOMMI_CUDA_CLIP_THREADS)
    dcommi_cuda_clip_kernel(const __grid_constant__ dcommi_cuda_clip p)
{
    double s = 0;
#pragma unroll 4
    for (uint64_t t = threadIdx.x; t < p.tiles; t += DCOMMI_CUDA_CLIP_THREADS) {
        s = __dadd_rn(s, p.tile[t]);
    }
    s = dcommi_cuda_clip_rows(s);
    if (threadIdx.x == 0) {
        dcomm_cuda_clip clip = {s, 1};
        if (s > __dmul_rn(p.most, p.most) && p.most > 0) {
            clip.factor = __double2float_rn(__ddiv_rn(p.most, __dsqrt_rn(s)));
        }
        *p.clip = clip;
    }
}

extern "C" size_t dcomm_cuda_feedback_clip_workspace_bytes(size_t count)
{
    return (size_t)dcommi_cuda_blocks(count, DCOMMI_CUDA_CLIP_TILE) * sizeof(double);
}

extern "C" dcomm_status dcomm_cuda_feedback_clip(dcomm_cuda_clip *clip, const float *g,
                                                 size_t count, double most, void *workspace,
                                                 void *stream)
{
    const char *call = "dcomm_cuda_feedback_clip";
    const unsigned threads = DCOMMI_CUDA_CLIP_THREADS;
    const dcommi_cuda_clip p = {g,
                                count,
                                dcommi_cuda_blocks(count, DCOMMI_CUDA_CLIP_TILE),
                                most,
                                static_cast<double *>(workspace),
                                clip};
    DCOMMI_CUDA_TRY(dcommi_cuda_array(call, "clip", clip, 1, 8));
    DCOMMI_CUDA_TRY(dcommi_cuda_array(call, "g", g, count, sizeof(float)));
    DCOMMI_CUDA_TRY(dcommi_cuda_array(call, "workspace", workspace, count, 8));
    DCOMMI_CUDA_TRY(
        dcommi_cuda_launch(call, dcommi_cuda_clip_tile_kernel, p.tiles, threads, p, stream));
    return dcommi_cuda_launch(call, dcommi_cuda_clip_kernel, 1, threads, p, stream);
}

/* ---- momentum of the clipped gradient ---- */

#define DCOMMI_CUDA_CLIPPED_OWN 8u /* elements of a thread */

struct dcommi_cuda_clipped {
    float *u;
    const float *g, *before;
    const dcomm_cuda_clip *clip;
    float momentum;
    uint64_t count;
};

/* All of a thread's elements are loaded before the first is stored, because u may be g or
 * `before`. */
static __global__ void __launch_bounds__(DCOMMI_CUDA_CLIP_THREADS)
    dcommi_cuda_clipped_kernel(const __grid_constant__ dcommi_cuda_clipped p)
{
    const uint64_t first =
        (uint64_t)blockIdx.x * DCOMMI_CUDA_CLIP_THREADS * DCOMMI_CUDA_CLIPPED_OWN + threadIdx.x;
    const uint32_t left = dcommi_cuda_left(first, p.count);
    const float factor = p.clip->factor;
    float g[DCOMMI_CUDA_CLIPPED_OWN], before[DCOMMI_CUDA_CLIPPED_OWN];
#pragma unroll
    for (uint32_t k = 0; k < DCOMMI_CUDA_CLIPPED_OWN; k++) {
        const uint32_t at = k * DCOMMI_CUDA_CLIP_THREADS;
        g[k] = at < left ? p.g[first + at] : 0;
        before[k] = at < left ? p.before[first + at] : 0;
    }
#pragma unroll
    for (uint32_t k = 0; k < DCOMMI_CUDA_CLIPPED_OWN; k++) {
        const uint32_t at = k * DCOMMI_CUDA_CLIP_THREADS;
        if (at < left) {
            const float clipped =
                dcommi_cuda_odd(dcommi_f32_bits(g[k])) ? g[k] : __fmul_rn(factor, g[k]);
            const double kept = __dmul_rn((double)p.momentum, (double)before[k]);
            p.u[first + at] =
                dcommi_f32_canonical(__double2float_rn(__dadd_rn((double)clipped, kept)));
        }
    }
}

extern "C" dcomm_status dcomm_cuda_feedback_clipped(float *u, const float *g,
                                                    const dcomm_cuda_clip *clip, float momentum,
                                                    const float *before, size_t count, void *stream)
{
    const char *call = "dcomm_cuda_feedback_clipped";
    const uint64_t tile = DCOMMI_CUDA_CLIP_THREADS * DCOMMI_CUDA_CLIPPED_OWN;
    const dcommi_cuda_clipped p = {u, g, before, clip, momentum, count};
    DCOMMI_CUDA_TRY(dcommi_cuda_array(call, "u", u, count, sizeof(float)));
    DCOMMI_CUDA_TRY(dcommi_cuda_array(call, "g", g, count, sizeof(float)));
    DCOMMI_CUDA_TRY(dcommi_cuda_array(call, "clip", clip, count, 8));
    DCOMMI_CUDA_TRY(dcommi_cuda_array(call, "before", before, count, sizeof(float)));
    return dcommi_cuda_launch(call, dcommi_cuda_clipped_kernel, dcommi_cuda_blocks(count, tile),
                              DCOMMI_CUDA_CLIP_THREADS, p, stream);
}

#endif
