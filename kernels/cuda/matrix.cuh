/* matrix.cuh - the products of powersgd with a matrix in device memory, with the bytes of
 * cpu/powersgd.h. Products of two f32 are exact in f64, and sums follow that file's order: M Q uses
 * eight sums, each of every eighth element, M^T P one, over the rows. Rows and columns are computed
 * in parallel. */
#ifndef DCOMMI_CUDA_MATRIX_H
#define DCOMMI_CUDA_MATRIX_H

#include "compare.cuh"
#include "topk.cuh"

#define DCOMMI_CUDA_MATRIX_THREADS 256u
#define DCOMMI_CUDA_MATRIX_LANES 8u
#define DCOMMI_CUDA_MATRIX_SIDE 4u /* columns of P or Q per reading of the matrix */
#define DCOMMI_CUDA_MATRIX_SOME 8u /* elements of a thread, in kernels by element */
/* For M Q: a block's threads, a thread's rows, and elements of each that it loads at a time. */
#define DCOMMI_CUDA_MATRIX_P_THREADS 64u
#define DCOMMI_CUDA_MATRIX_P_ROWS 2u
#define DCOMMI_CUDA_MATRIX_P_AHEAD 16u
/* For M^T P: a block's columns, one for each lane of a warp; the rows of a stage, likewise. */
#define DCOMMI_CUDA_MATRIX_STRIP DCOMMI_CUDA_WARP
#define DCOMMI_CUDA_MATRIX_DEEP DCOMMI_CUDA_WARP
#define DCOMMI_CUDA_MATRIX_STAGES 6u

struct dcommi_cuda_matrix {
    uint64_t count, rows, cols;
    uint32_t rank;
    const float *m, *from; /* the matrix; P or Q, the one that is read */
    const float *q;        /* for a product */
    float *to;
    int how; /* for a product: 0 store it in `to`, 1 add it, -1 subtract it */
    dcommi_rng rng;
    dcomm_cuda_report *report;
    bool refuses;             /* see dcommi_cuda_job */
    dcommi_cuda_tally *tally; /* one for each block */
};

/* Return an element of the matrix, or 0 if it is denormal or not finite. */
DCOMMI_CUDA_INLINE double dcommi_cuda_matrix_number(float x)
{
    const uint32_t exponent = dcommi_f32_bits(x) & 0x7f800000u;
    return exponent != 0 && exponent != 0x7f800000u ? (double)x : 0;
}

/* Return the number of elements that row i has. */
DCOMMI_CUDA_INLINE uint64_t dcommi_cuda_matrix_row(const dcommi_cuda_matrix &p, uint64_t i)
{
    const uint64_t from = i * p.cols;
    return i >= p.rows || from >= p.count ? 0 : p.count - from < p.cols ? p.count - from : p.cols;
}

/* Add up eight lanes: l and l + 4, then + 2, + 1. */
DCOMMI_CUDA_INLINE double dcommi_cuda_matrix_sum(double s)
{
    for (unsigned far = DCOMMI_CUDA_MATRIX_LANES / 2; far > 0; far /= 2) {
        s = __dadd_rn(s, __shfl_xor_sync(DCOMMI_CUDA_ALL, s, far));
    }
    return s;
}

/* A thread's part of M Q: rows of M, and where its next elements lie in them. */
struct dcommi_cuda_matrix_part {
    const float *row[DCOMMI_CUDA_MATRIX_P_ROWS];
    uint32_t left[DCOMMI_CUDA_MATRIX_P_ROWS]; /* of the row, from c on */
    uint64_t i, c;
};

/* Add products with `SIDE` columns of Q, from `from` on. All elements of M are loaded before the
 * first is used. WHOLE: none is missing. */
template <bool COUNT, bool WHOLE>
DCOMMI_CUDA_INLINE void
dcommi_cuda_matrix_p_add(const dcommi_cuda_matrix &p, const dcommi_cuda_matrix_part &part,
                         uint32_t j, double sum[DCOMMI_CUDA_MATRIX_P_ROWS][DCOMMI_CUDA_MATRIX_SIDE],
                         dcommi_cuda_found *found)
{
    float number[DCOMMI_CUDA_MATRIX_P_AHEAD][DCOMMI_CUDA_MATRIX_P_ROWS];
#pragma unroll
    for (uint32_t u = 0; u < DCOMMI_CUDA_MATRIX_P_AHEAD; u++) {
        const uint32_t at = u * DCOMMI_CUDA_MATRIX_LANES;
#pragma unroll
        for (uint32_t r = 0; r < DCOMMI_CUDA_MATRIX_P_ROWS; r++) {
            number[u][r] = WHOLE || at < part.left[r] ? part.row[r][part.c + at] : 0;
        }
    }
#pragma unroll
    for (uint32_t u = 0; u < DCOMMI_CUDA_MATRIX_P_AHEAD; u++) {
        const uint64_t c = part.c + u * DCOMMI_CUDA_MATRIX_LANES;
        if (!WHOLE && u * DCOMMI_CUDA_MATRIX_LANES >= part.left[0]) {
            break;
        }
        double q[DCOMMI_CUDA_MATRIX_SIDE];
#pragma unroll
        for (uint32_t k = 0; k < DCOMMI_CUDA_MATRIX_SIDE; k++) {
            q[k] = (double)p.from[(j + k < p.rank ? j + k : j) * p.cols + c];
        }
#pragma unroll
        for (uint32_t r = 0; r < DCOMMI_CUDA_MATRIX_P_ROWS; r++) {
            if (!WHOLE && u * DCOMMI_CUDA_MATRIX_LANES >= part.left[r]) {
                continue; /* not even 0 times Q, which may be a NaN */
            }
            if (COUNT && j == 0 && dcommi_cuda_odd(dcommi_f32_bits(number[u][r]))) {
                dcommi_cuda_found_odd(found, (part.i + r) * p.cols + c);
            }
            const double x = dcommi_cuda_matrix_number(number[u][r]);
#pragma unroll
            for (uint32_t k = 0; k < DCOMMI_CUDA_MATRIX_SIDE; k++) {
                sum[r][k] = __fma_rn(x, q[k], sum[r][k]);
            }
        }
    }
}

/* Compute P = M Q. Eight threads share two rows, so that a number of Q is converted once for both.
 * COUNT: count numbers that are not finite. */
template <bool COUNT>
static __global__ void __launch_bounds__(DCOMMI_CUDA_MATRIX_P_THREADS)
    dcommi_cuda_matrix_p_kernel(const __grid_constant__ dcommi_cuda_matrix p)
{
    dcommi_cuda_found found = {};
    const unsigned lane = threadIdx.x % DCOMMI_CUDA_MATRIX_LANES;
    const uint64_t own = (uint64_t)blockIdx.x * DCOMMI_CUDA_MATRIX_P_THREADS + threadIdx.x;
    const uint32_t step = DCOMMI_CUDA_MATRIX_LANES * DCOMMI_CUDA_MATRIX_P_AHEAD;
    dcommi_cuda_matrix_part part;
    uint64_t length[DCOMMI_CUDA_MATRIX_P_ROWS]; /* none is longer than the one before */
    part.i = own / DCOMMI_CUDA_MATRIX_LANES * DCOMMI_CUDA_MATRIX_P_ROWS;
#pragma unroll
    for (uint32_t r = 0; r < DCOMMI_CUDA_MATRIX_P_ROWS; r++) {
        length[r] = dcommi_cuda_matrix_row(p, part.i + r);
        part.row[r] = p.m + (length[r] > 0 ? (part.i + r) * p.cols : 0);
    }
    for (uint32_t j = 0; j < p.rank; j += DCOMMI_CUDA_MATRIX_SIDE) {
        double sum[DCOMMI_CUDA_MATRIX_P_ROWS][DCOMMI_CUDA_MATRIX_SIDE] = {};
        for (part.c = lane; part.c < length[0]; part.c += step) {
            bool whole = true;
#pragma unroll
            for (uint32_t r = 0; r < DCOMMI_CUDA_MATRIX_P_ROWS; r++) {
                part.left[r] = dcommi_cuda_left(part.c, length[r]);
                whole = whole && part.left[r] > step - DCOMMI_CUDA_MATRIX_LANES;
            }
            if (whole) {
                dcommi_cuda_matrix_p_add<COUNT, true>(p, part, j, sum, &found);
            } else {
                dcommi_cuda_matrix_p_add<COUNT, false>(p, part, j, sum, &found);
            }
        }
#pragma unroll
        for (uint32_t r = 0; r < DCOMMI_CUDA_MATRIX_P_ROWS; r++) {
#pragma unroll
            for (uint32_t k = 0; k < DCOMMI_CUDA_MATRIX_SIDE; k++) {
                const double all = dcommi_cuda_matrix_sum(sum[r][k]);
                if (lane == 0 && part.i + r < p.rows && j + k < p.rank) {
                    p.to[(j + k) * p.rows + part.i + r] = __double2float_rn(all);
                }
            }
        }
    }
    if (COUNT && found.nonfinite > 0) {
        dcommi_cuda_report_add(p.report, found, p.refuses);
    }
}

/* A row of P, of as many columns as are used at a time. */
struct alignas(16) dcommi_cuda_matrix_weights {
    double of[DCOMMI_CUDA_MATRIX_SIDE];
};

/* Begin to copy elements of a column to shared memory, from row `from` on, as far as its `rows`
 * go. They land later: __pipeline_wait_prior says when. */
DCOMMI_CUDA_INLINE void dcommi_cuda_matrix_q_fetch(const dcommi_cuda_matrix &p, uint64_t c,
                                                   uint64_t from, uint64_t rows,
                                                   float (*stage)[DCOMMI_CUDA_MATRIX_STRIP])
{
    const uint32_t left = dcommi_cuda_left(from, rows);
    const float *m = p.m + (left > 0 ? from * p.cols + c : 0);
    if (left >= DCOMMI_CUDA_MATRIX_DEEP) {
#pragma unroll
        for (uint32_t r = 0; r < DCOMMI_CUDA_MATRIX_DEEP; r++, m += p.cols) {
            __pipeline_memcpy_async(&stage[r][threadIdx.x], m, sizeof *m);
        }
    } else {
#pragma unroll 1
        for (uint32_t r = 0; r < left; r++, m += p.cols) {
            __pipeline_memcpy_async(&stage[r][threadIdx.x], m, sizeof *m);
        }
    }
    __pipeline_commit();
}

/* Load a row of P, from column j on. */
DCOMMI_CUDA_INLINE void dcommi_cuda_matrix_q_load(const dcommi_cuda_matrix &p, uint32_t j,
                                                  uint64_t i, float v[DCOMMI_CUDA_MATRIX_SIDE])
{
#pragma unroll
    for (uint32_t k = 0; k < DCOMMI_CUDA_MATRIX_SIDE; k++) {
        v[k] = i < p.rows ? p.from[(j + k < p.rank ? j + k : j) * p.rows + i] : 0;
    }
}

/* Add the products of a stage. WHOLE: it has all of its rows. */
template <bool WHOLE>
DCOMMI_CUDA_INLINE void dcommi_cuda_matrix_q_add(const float (*stage)[DCOMMI_CUDA_MATRIX_STRIP],
                                                 const dcommi_cuda_matrix_weights *weights,
                                                 uint32_t left, double sum[DCOMMI_CUDA_MATRIX_SIDE])
{
    const uint32_t rows = WHOLE ? DCOMMI_CUDA_MATRIX_DEEP : left;
#pragma unroll 8
    for (uint32_t r = 0; r < rows; r++) {
        const double x = dcommi_cuda_matrix_number(stage[r][threadIdx.x]);
#pragma unroll
        for (uint32_t k = 0; k < DCOMMI_CUDA_MATRIX_SIDE; k++) {
            sum[k] = __fma_rn(x, weights[r].of[k], sum[k]);
        }
    }
}

/* Compute Q = M^T P, with a thread for each column, so that a warp reads whole lines of each
 * row. A column's sum goes from row to row, so there are no more threads, and each keeps copies of
 * many rows under way: it copies and adds a ring of stages. Only P is shared among the threads. */
static __global__ void __launch_bounds__(DCOMMI_CUDA_MATRIX_STRIP)
    dcommi_cuda_matrix_q_kernel(const __grid_constant__ dcommi_cuda_matrix p)
{
    __shared__ float ring[DCOMMI_CUDA_MATRIX_STAGES][DCOMMI_CUDA_MATRIX_DEEP]
                         [DCOMMI_CUDA_MATRIX_STRIP];
    __shared__ dcommi_cuda_matrix_weights weights[2][DCOMMI_CUDA_MATRIX_DEEP];
    const uint64_t c = (uint64_t)blockIdx.x * DCOMMI_CUDA_MATRIX_STRIP + threadIdx.x;
    /* Rows that have this column. */
    const uint64_t rows = c < p.cols ? (p.count - c + p.cols - 1) / p.cols : 0;
    const uint32_t before = DCOMMI_CUDA_MATRIX_STAGES - 1; /* stages that are copied ahead */
    dcommi_cuda_found found = {};
    for (uint32_t j = 0; j < p.rank; j += DCOMMI_CUDA_MATRIX_SIDE) {
        double sum[DCOMMI_CUDA_MATRIX_SIDE] = {};
        float next[DCOMMI_CUDA_MATRIX_SIDE];
        uint32_t stage = 0, half = 0;
        for (uint32_t s = 0; s < before; s++) {
            dcommi_cuda_matrix_q_fetch(p, c, s * DCOMMI_CUDA_MATRIX_DEEP, rows, ring[s]);
        }
        dcommi_cuda_matrix_q_load(p, j, threadIdx.x, next);
        __syncwarp(); /* weights of the last columns have been read */
        for (uint64_t i = 0; i < p.rows; i += DCOMMI_CUDA_MATRIX_DEEP) {
            /* Refill the stage that this thread has added last. */
            dcommi_cuda_matrix_q_fetch(p, c, i + before * DCOMMI_CUDA_MATRIX_DEEP, rows,
                                       ring[stage > 0 ? stage - 1 : before]);
#pragma unroll
            for (uint32_t k = 0; k < DCOMMI_CUDA_MATRIX_SIDE; k++) {
                weights[half][threadIdx.x].of[k] = (double)next[k];
            }
            dcommi_cuda_matrix_q_load(p, j, i + DCOMMI_CUDA_MATRIX_DEEP + threadIdx.x, next);
            __pipeline_wait_prior(before);
            __syncwarp(); /* all weights are there; the other half has been read */
            const uint32_t left = dcommi_cuda_left(i, rows);
            if (left >= DCOMMI_CUDA_MATRIX_DEEP) {
                dcommi_cuda_matrix_q_add<true>(ring[stage], weights[half], left, sum);
            } else {
                dcommi_cuda_matrix_q_add<false>(ring[stage], weights[half], left, sum);
            }
            stage = stage < before ? stage + 1 : 0;
            half ^= 1;
        }
#pragma unroll
        for (uint32_t k = 0; k < DCOMMI_CUDA_MATRIX_SIDE; k++) {
            if (j + k < p.rank && c < p.cols) {
                float q = __double2float_rn(sum[k]);
                if ((dcommi_f32_bits(q) & 0x7f800000u) == 0x7f800000u) {
                    q = dcommi_f32_bounded(q);
                    found.clipped++;
                }
                p.to[(j + k) * p.cols + c] = q;
            }
        }
    }
    dcommi_cuda_report_add(p.report, found, false);
}

#endif
