/* measure.cuh - the measure and the step of a bucket, computed by the threads that hold it: a part
 * of a warp, or a block. Sums follow the order of cpu/codec_loops.h, which a CPU's sixteen lanes
 * dictate: each column from the first row to the last. So groups wait for one another. */
#ifndef DCOMMI_CUDA_MEASURE_H
#define DCOMMI_CUDA_MEASURE_H

#include "bucket.cuh"

#define DCOMMI_CUDA_WARP 32u
#define DCOMMI_CUDA_WARPS 32

#define DCOMMI_CUDA_ALL 0xffffffffu

/* Sums over the columns of a thread: of |x|, or in f64 of squares. */
struct dcommi_cuda_columns {
    float a, b;
    double squares;
};

DCOMMI_CUDA_INLINE uint32_t dcommi_cuda_own_most(const float v[DCOMMI_CUDA_OWN])
{
    uint32_t most = 0;
#pragma unroll
    for (int e = 0; e < DCOMMI_CUDA_OWN; e++) {
        const uint32_t size = dcommi_f32_bits(v[e]) & 0x7fffffffu;
        most = size > most ? size : most;
    }
    return most;
}

/* Return the largest of a team of 8, 16 or 32 lanes. */
DCOMMI_CUDA_INLINE uint32_t dcommi_cuda_team_most(uint32_t most, unsigned team)
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
    if (team == DCOMMI_CUDA_WARP) {
        return __reduce_max_sync(DCOMMI_CUDA_ALL, most);
    }
#endif
    for (unsigned far = 1; far < team; far *= 2) {
        const uint32_t other = __shfl_xor_sync(DCOMMI_CUDA_ALL, most, far);
        most = other > most ? other : most;
    }
    return most;
}

/* Return |x|; a denormal becomes 0. */
DCOMMI_CUDA_INLINE float dcommi_cuda_size(float x)
{
    const uint32_t bits = dcommi_f32_bits(x) & 0x7fffffffu;
    return dcommi_f32_from_bits(bits >= 0x00800000u ? bits : 0);
}

/* Add up the columns, group after group of the team. The first group starts from `sum`; all lanes
 * end with the sums of the last group. */
DCOMMI_CUDA_INLINE dcommi_cuda_columns dcommi_cuda_team_sizes(const float v[DCOMMI_CUDA_OWN],
                                                              unsigned team,
                                                              dcommi_cuda_columns sum)
{
    const unsigned lane = threadIdx.x % DCOMMI_CUDA_WARP, first = lane & ~(team - 1);
    for (unsigned group = 0; group < team / DCOMMI_CUDA_TEAM; group++) {
        const unsigned begin = first + group * DCOMMI_CUDA_TEAM;
        if (lane - begin < DCOMMI_CUDA_TEAM) {
#pragma unroll
            for (int k = 0; k < 8; k++) {
                sum.a = __fadd_rn(sum.a, dcommi_cuda_size(v[2 * k]));
                sum.b = __fadd_rn(sum.b, dcommi_cuda_size(v[2 * k + 1]));
            }
        }
        sum.a = __shfl_sync(DCOMMI_CUDA_ALL, sum.a, begin + lane % DCOMMI_CUDA_TEAM);
        sum.b = __shfl_sync(DCOMMI_CUDA_ALL, sum.b, begin + lane % DCOMMI_CUDA_TEAM);
    }
    return sum;
}

/* Add up squares likewise. There are eight sums, each of two columns. Thread j has the sum of
 * columns 2j and 2j+8, thread j+4 that of 2j+1 and 2j+9. */
DCOMMI_CUDA_INLINE dcommi_cuda_columns dcommi_cuda_team_squares(const float v[DCOMMI_CUDA_OWN],
                                                                unsigned team,
                                                                dcommi_cuda_columns sum)
{
    const unsigned lane = threadIdx.x % DCOMMI_CUDA_WARP, first = lane & ~(team - 1);
    const bool low = lane % DCOMMI_CUDA_TEAM < DCOMMI_CUDA_TEAM / 2;
    float a[8], b[8];
#pragma unroll
    for (int k = 0; k < 8; k++) {
        const float got =
            __shfl_xor_sync(DCOMMI_CUDA_ALL, low ? v[2 * k + 1] : v[2 * k], DCOMMI_CUDA_TEAM / 2);
        a[k] = low ? v[2 * k] : got;
        b[k] = low ? got : v[2 * k + 1];
    }
    for (unsigned group = 0; group < team / DCOMMI_CUDA_TEAM; group++) {
        const unsigned begin = first + group * DCOMMI_CUDA_TEAM;
        if (lane - begin < DCOMMI_CUDA_TEAM) {
#pragma unroll
            for (int k = 0; k < 8; k++) {
                sum.squares =
                    __fma_rn((double)a[k], (double)a[k], sum.squares); /* exact products */
                sum.squares = __fma_rn((double)b[k], (double)b[k], sum.squares);
            }
        }
        sum.squares = __shfl_sync(DCOMMI_CUDA_ALL, sum.squares, begin + lane % DCOMMI_CUDA_TEAM);
    }
    return sum;
}

/* Add up the columns: l and l + 8, then + 4, + 2, + 1. */
DCOMMI_CUDA_INLINE float dcommi_cuda_sizes_end(dcommi_cuda_columns sum)
{
    for (unsigned far = DCOMMI_CUDA_TEAM / 2; far > 0; far /= 2) {
        sum.a = __fadd_rn(sum.a, __shfl_xor_sync(DCOMMI_CUDA_ALL, sum.a, far));
        sum.b = __fadd_rn(sum.b, __shfl_xor_sync(DCOMMI_CUDA_ALL, sum.b, far));
    }
    return __fadd_rn(sum.a, sum.b);
}

/* Add up the eight sums: l and l + 4, then + 2, + 1. */
DCOMMI_CUDA_INLINE double dcommi_cuda_squares_end(dcommi_cuda_columns sum)
{
    const unsigned far[3] = {2, 1, 4};
#pragma unroll
    for (int i = 0; i < 3; i++) {
        sum.squares = __dadd_rn(sum.squares, __shfl_xor_sync(DCOMMI_CUDA_ALL, sum.squares, far[i]));
    }
    return sum.squares;
}

/* Return the step for the largest |x|; see dcommi_wire_step. The correction by the remainder, with
 * `inverse` rounded from 1 / most, gives the rounded quotient for each `most` of wire.h. */
DCOMMI_CUDA_INLINE float dcommi_cuda_wire_step(float largest, float most, float inverse)
{
    if (!(largest >= DCOMMI_WIRE_LEAST)) {
        return 0;
    }
    const float near = __fmul_rn(largest, inverse);
    const float quotient = __fmaf_rn(__fmaf_rn(-near, most, largest), inverse, near);
    return dcommi_f32_from_bits((dcommi_f32_bits(quotient) + 0xffu) & ~0xffu);
}

/* Return the step of a bucket from the sum of its squares. */
DCOMMI_CUDA_INLINE float dcommi_cuda_norm_step(double squares, float most, float inverse)
{
    const double norm = __dsqrt_rn(squares);
    if (!(norm < (double)DCOMMI_WIRE_LARGEST)) {
        return dcommi_cuda_wire_step(DCOMMI_WIRE_LARGEST, most, inverse);
    }
    const float near = (float)norm;
    return dcommi_cuda_wire_step(
        dcommi_f32_from_bits(dcommi_f32_bits(near) + ((double)near < norm ? 1 : 0)), most, inverse);
}

/* ---- norms of buckets of teams ---- */

/* Each bucket has eight chains, in which squares are added: chain s has columns s and s + 8, row
 * after row. The two columns of a chain are stored apart, so that the 16-byte loads of eight
 * threads hit different banks. */
struct alignas(16) dcommi_cuda_quad {
    float v[4];
};

#define DCOMMI_CUDA_CHAINS 8u

struct dcommi_cuda_chains {
    dcommi_cuda_quad quads[128 * 7]; /* enough for the shortest chains, which need most */
    float step[16];
};

/* Return the steps of a block's buckets, of 1 << shift threads each. A warp has few chains. So the
 * first threads of the block, in few full warps, follow all chains of the block, one each. */
DCOMMI_CUDA_INLINE float dcommi_cuda_teams_norm(const float v[DCOMMI_CUDA_OWN], unsigned shift,
                                                float most, float inverse,
                                                dcommi_cuda_chains *shared)
{
    const unsigned team = 1u << shift, column = team / 4 + 1, chain = 2 * column + 1;
    const unsigned lane = threadIdx.x % DCOMMI_CUDA_TEAM, bucket = threadIdx.x >> shift;
    const unsigned group = (threadIdx.x & (team - 1)) / DCOMMI_CUDA_TEAM;
#pragma unroll
    for (unsigned c = 0; c < 2; c++) {
        const unsigned number = bucket * DCOMMI_CUDA_CHAINS + (2 * lane + c) % DCOMMI_CUDA_CHAINS;
        const unsigned half = 2 * lane / DCOMMI_CUDA_CHAINS;
        dcommi_cuda_quad *to = shared->quads + number * chain + half * column + 2 * group;
#pragma unroll
        for (unsigned k = 0; k < 8; k += 4) {
            const dcommi_cuda_quad rows = {
                {v[2 * k + c], v[2 * k + 2 + c], v[2 * k + 4 + c], v[2 * k + 6 + c]}};
            to[k / 4] = rows;
        }
    }
    __syncthreads();
    if (threadIdx.x < blockDim.x / team * DCOMMI_CUDA_CHAINS) {
        const dcommi_cuda_quad *from = shared->quads + threadIdx.x * chain;
        double sum = 0;
        for (unsigned i = 0; i < team / 4; i++) {
            const dcommi_cuda_quad low = from[i], high = from[column + i];
#pragma unroll
            for (int k = 0; k < 4; k++) { /* products are exact */
                sum = __fma_rn((double)low.v[k], (double)low.v[k], sum);
                sum = __fma_rn((double)high.v[k], (double)high.v[k], sum);
            }
        }
#pragma unroll
        for (unsigned far = DCOMMI_CUDA_CHAINS / 2; far > 0; far /= 2) {
            sum = __dadd_rn(sum, __shfl_xor_sync(DCOMMI_CUDA_ALL, sum, far));
        }
        const float step = dcommi_cuda_norm_step(sum, most, inverse);
        if (threadIdx.x % DCOMMI_CUDA_CHAINS == 0) {
            shared->step[threadIdx.x / DCOMMI_CUDA_CHAINS] = step;
        }
    }
    __syncthreads();
    return shared->step[bucket];
}

/* Add |x| one by one in f64, from the first element to the last. Used if the sum in f32 is
 * infinite, which is rare. */
DCOMMI_CUDA_INLINE double dcommi_cuda_warp_exact(const float v[DCOMMI_CUDA_OWN], double sum)
{
    for (unsigned begin = 0; begin < DCOMMI_CUDA_WARP; begin += DCOMMI_CUDA_TEAM) {
#pragma unroll
        for (int k = 0; k < 8; k++) {
            for (unsigned j = 0; j < DCOMMI_CUDA_TEAM; j++) {
                const float a = __shfl_sync(DCOMMI_CUDA_ALL, v[2 * k], begin + j);
                const float b = __shfl_sync(DCOMMI_CUDA_ALL, v[2 * k + 1], begin + j);
                sum =
                    __dadd_rn(sum, (double)dcommi_f32_from_bits(dcommi_f32_bits(a) & 0x7fffffffu));
                sum =
                    __dadd_rn(sum, (double)dcommi_f32_from_bits(dcommi_f32_bits(b) & 0x7fffffffu));
            }
        }
    }
    return sum;
}

/* Return unit / step, rounded. The step has 16 significant bits and unit is a power of two. So one
 * Newton iteration is enough, from an approximation within a few units in the last place. No
 * intermediate result is denormal. */
DCOMMI_CUDA_INLINE float dcommi_cuda_inverse(float step, float unit)
{
    const float s = __fmul_rn(step, dcommi_f32_from_bits(0x7f000000u - dcommi_f32_bits(unit)));
#ifdef __CUDA_ARCH__
    float near;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(near) : "f"(s));
#else
    const float near = 1 / s;
#endif
    return __fmaf_rn(near, __fmaf_rn(-s, near, 1), near);
}

/* ---- a block: its warps in order ---- */

/* Values that a warp passes on to the next. */
struct dcommi_cuda_shared {
    uint32_t most[DCOMMI_CUDA_WARPS];
    dcommi_cuda_columns columns[DCOMMI_CUDA_TEAM];
    double exact;
};

DCOMMI_CUDA_INLINE uint32_t dcommi_cuda_block_most(uint32_t most, dcommi_cuda_shared *shared)
{
    const unsigned warps = blockDim.x / DCOMMI_CUDA_WARP;
    most = dcommi_cuda_team_most(most, DCOMMI_CUDA_WARP);
    __syncthreads(); /* old contents have been read */
    if (threadIdx.x % DCOMMI_CUDA_WARP == 0) {
        shared->most[threadIdx.x / DCOMMI_CUDA_WARP] = most;
    }
    __syncthreads();
    for (unsigned w = 0; w < warps; w++) {
        most = shared->most[w] > most ? shared->most[w] : most;
    }
    return most;
}

/* Add up |x| or squares, starting from `sum`, which all threads have. */
DCOMMI_CUDA_INLINE dcommi_cuda_columns dcommi_cuda_block_columns(const float v[DCOMMI_CUDA_OWN],
                                                                 bool squares,
                                                                 dcommi_cuda_columns sum,
                                                                 dcommi_cuda_shared *shared)
{
    const unsigned warp = threadIdx.x / DCOMMI_CUDA_WARP, column = threadIdx.x % DCOMMI_CUDA_TEAM;
    for (unsigned w = 0; w < blockDim.x / DCOMMI_CUDA_WARP; w++) {
        __syncthreads();
        if (w == warp) {
            sum = squares ? dcommi_cuda_team_squares(v, DCOMMI_CUDA_WARP, sum)
                          : dcommi_cuda_team_sizes(v, DCOMMI_CUDA_WARP, sum);
            if (threadIdx.x % DCOMMI_CUDA_WARP < DCOMMI_CUDA_TEAM) {
                shared->columns[column] = sum;
            }
        }
        __syncthreads();
        sum = shared->columns[column];
    }
    return sum;
}

DCOMMI_CUDA_INLINE double dcommi_cuda_block_exact(const float v[DCOMMI_CUDA_OWN], double sum,
                                                  dcommi_cuda_shared *shared)
{
    for (unsigned w = 0; w < blockDim.x / DCOMMI_CUDA_WARP; w++) {
        __syncthreads();
        if (w == threadIdx.x / DCOMMI_CUDA_WARP) {
            sum = dcommi_cuda_warp_exact(v, sum);
            if (threadIdx.x % DCOMMI_CUDA_WARP == 0) {
                shared->exact = sum;
            }
        }
        __syncthreads();
        sum = shared->exact;
    }
    return sum;
}

#endif
