/* powersgd.cuh - the steps of powersgd on device memory, with the bytes of cpu/powersgd.h. Dot
 * products use eight sums, each of every eighth element; P Q^T uses one, over the rank. */
#ifndef DCOMMI_CUDA_POWERSGD_H
#define DCOMMI_CUDA_POWERSGD_H

#include "matrix.cuh"

/* For dot products: threads that load, and elements that they load at a time. */
#define DCOMMI_CUDA_MATRIX_LOADERS (DCOMMI_CUDA_MATRIX_THREADS - DCOMMI_CUDA_WARP)
#define DCOMMI_CUDA_MATRIX_CHUNK (DCOMMI_CUDA_MATRIX_LOADERS * DCOMMI_CUDA_MATRIX_SOME)
/* Iterations of a thread that also counts: it has the elements of a comparison's thread. */
#define DCOMMI_CUDA_MATRIX_TURNS (DCOMMI_CUDA_COMPARE_OWN / DCOMMI_CUDA_MATRIX_SOME)
static_assert(DCOMMI_CUDA_MATRIX_THREADS == DCOMMI_CUDA_LEDGER_THREADS, "a comparison's blocks");

/* Set `to` to the products of a chunk, whose first element is number `first`; `own` is this
 * thread's number among those that load. */
DCOMMI_CUDA_INLINE void dcommi_cuda_matrix_products(const float *a, const float *b, uint64_t first,
                                                    uint64_t n, uint32_t own, double *to)
{
    const uint32_t left = dcommi_cuda_left(first + own, n);
    float x[DCOMMI_CUDA_MATRIX_SOME], y[DCOMMI_CUDA_MATRIX_SOME];
#pragma unroll
    for (uint32_t u = 0; u < DCOMMI_CUDA_MATRIX_SOME; u++) {
        const uint32_t at = u * DCOMMI_CUDA_MATRIX_LOADERS;
        x[u] = at < left ? a[first + own + at] : 0;
        y[u] = at < left ? b[first + own + at] : 0;
    }
#pragma unroll
    for (uint32_t u = 0; u < DCOMMI_CUDA_MATRIX_SOME; u++) {
        to[own + u * DCOMMI_CUDA_MATRIX_LOADERS] = __dmul_rn((double)x[u], (double)y[u]);
    }
}

/* Return the dot product of two columns. All threads of the block call this. Each of eight sums
 * has one element after the other, so eight lanes of the first warp add; meanwhile the other warps
 * compute the next chunk's products, which are exact. */
DCOMMI_CUDA_INLINE double dcommi_cuda_matrix_dot(const float *a, const float *b, uint64_t n)
{
    __shared__ double room, products[2][DCOMMI_CUDA_MATRIX_CHUNK];
    const uint64_t chunks = (n + DCOMMI_CUDA_MATRIX_CHUNK - 1) / DCOMMI_CUDA_MATRIX_CHUNK;
    double s = 0;
    __syncthreads(); /* columns are written, and the last result has been read */
    for (uint64_t chunk = 0; chunk <= chunks; chunk++) {
        const uint64_t first = chunk * DCOMMI_CUDA_MATRIX_CHUNK;
        if (threadIdx.x >= DCOMMI_CUDA_WARP && chunk < chunks) {
            dcommi_cuda_matrix_products(a, b, first, n, threadIdx.x - DCOMMI_CUDA_WARP,
                                        products[chunk % 2]);
        } else if (threadIdx.x < DCOMMI_CUDA_MATRIX_LANES && chunk > 0) {
            const double *of = products[(chunk - 1) % 2];
            const uint32_t some =
                (uint32_t)((first < n ? first : n) - (first - DCOMMI_CUDA_MATRIX_CHUNK));
#pragma unroll 16
            for (uint32_t i = threadIdx.x; i < some; i += DCOMMI_CUDA_MATRIX_LANES) {
                s = __dadd_rn(s, of[i]);
            }
        }
        __syncthreads();
    }
    if (threadIdx.x < DCOMMI_CUDA_WARP) {
        s = dcommi_cuda_matrix_sum(s);
    }
    if (threadIdx.x == 0) {
        room = s;
    }
    __syncthreads();
    return room;
}

DCOMMI_CUDA_INLINE void dcommi_cuda_matrix_times(float *column, uint64_t n, double scale)
{
    const uint32_t tile = DCOMMI_CUDA_MATRIX_THREADS * DCOMMI_CUDA_MATRIX_SOME;
    for (uint64_t first = threadIdx.x; first < n; first += tile) {
        const uint32_t left = dcommi_cuda_left(first, n);
        float x[DCOMMI_CUDA_MATRIX_SOME];
#pragma unroll
        for (uint32_t u = 0; u < DCOMMI_CUDA_MATRIX_SOME; u++) {
            const uint32_t at = u * DCOMMI_CUDA_MATRIX_THREADS;
            x[u] = at < left ? column[first + at] : 0;
        }
#pragma unroll
        for (uint32_t u = 0; u < DCOMMI_CUDA_MATRIX_SOME; u++) {
            const uint32_t at = u * DCOMMI_CUDA_MATRIX_THREADS;
            if (at < left) {
                column[first + at] = __double2float_rn(__dmul_rn((double)x[u], scale));
            }
        }
    }
}

/* Subtract a multiple of another column. */
DCOMMI_CUDA_INLINE void dcommi_cuda_matrix_less(float *column, const float *other, uint64_t n,
                                                double share)
{
    const uint32_t tile = DCOMMI_CUDA_MATRIX_THREADS * DCOMMI_CUDA_MATRIX_SOME;
    for (uint64_t first = threadIdx.x; first < n; first += tile) {
        const uint32_t left = dcommi_cuda_left(first, n);
        float x[DCOMMI_CUDA_MATRIX_SOME], y[DCOMMI_CUDA_MATRIX_SOME];
#pragma unroll
        for (uint32_t u = 0; u < DCOMMI_CUDA_MATRIX_SOME; u++) {
            const uint32_t at = u * DCOMMI_CUDA_MATRIX_THREADS;
            x[u] = at < left ? column[first + at] : 0;
            y[u] = at < left ? other[first + at] : 0;
        }
#pragma unroll
        for (uint32_t u = 0; u < DCOMMI_CUDA_MATRIX_SOME; u++) {
            const uint32_t at = u * DCOMMI_CUDA_MATRIX_THREADS;
            if (at < left) {
                column[first + at] =
                    __double2float_rn(__fma_rn(-share, (double)y[u], (double)x[u]));
            }
        }
    }
}

/* Make the columns orthonormal, in order; see dcommi_matrix_orthonormal. One block. */
static __global__ void __launch_bounds__(DCOMMI_CUDA_MATRIX_THREADS)
    dcommi_cuda_matrix_orthonormal_kernel(const __grid_constant__ dcommi_cuda_matrix p)
{
    for (uint32_t j = 0; j < p.rank; j++) {
        float *column = p.to + j * p.rows;
        double before = dcommi_cuda_matrix_dot(column, column, p.rows);
        for (int turn = 0; turn < 2; turn++) {
            for (uint32_t k = 0; k < j; k++) {
                const float *other = p.to + k * p.rows;
                const double share =
                    (double)__double2float_rn(dcommi_cuda_matrix_dot(column, other, p.rows));
                dcommi_cuda_matrix_less(column, other, p.rows, share);
            }
            const double after = dcommi_cuda_matrix_dot(column, column, p.rows);
            const bool spanned = !(after > __dmul_rn(1e-11, before)) || !(after > 0x1p-240);
            const double scale = spanned ? 0 : __ddiv_rn(1, __dsqrt_rn(after));
            dcommi_cuda_matrix_times(column, p.rows, scale);
            before = __dmul_rn(__dmul_rn(after, scale), scale);
        }
    }
}

/* Scale the columns of Q, and fill those that are 0 with random numbers; see
 * dcommi_powersgd_start. One block for each column. */
static __global__ void __launch_bounds__(DCOMMI_CUDA_MATRIX_THREADS)
    dcommi_cuda_matrix_start_kernel(const __grid_constant__ dcommi_cuda_matrix p)
{
    float *column = p.to + blockIdx.x * p.cols;
    double length = dcommi_cuda_matrix_dot(column, column, p.cols);
    if (!(length > 0) || length > 1.7976931348623157e308) {
        for (uint64_t c = threadIdx.x; c < p.cols; c += DCOMMI_CUDA_MATRIX_THREADS) {
            const uint32_t bits = dcommi_rng_element(&p.rng, blockIdx.x * p.cols + c);
            column[c] = __fmul_rn((float)(int32_t)(bits | 1), 0x1p-31f);
        }
        length = dcommi_cuda_matrix_dot(column, column, p.cols);
    }
    dcommi_cuda_matrix_times(column, p.cols, __ddiv_rn(0x1p-20, __dsqrt_rn(length)));
}

/* Store P Q^T in the matrix, add it or subtract it, by element. LEDGER: take a ledger's sums for
 * sending m as P Q^T; `to` is then the residual, or NULL. */
template <bool LEDGER>
static __global__ void __launch_bounds__(DCOMMI_CUDA_MATRIX_THREADS)
    dcommi_cuda_matrix_product_kernel(const __grid_constant__ dcommi_cuda_matrix p)
{
    const unsigned turns = LEDGER ? DCOMMI_CUDA_MATRIX_TURNS : 1;
    const unsigned tile = DCOMMI_CUDA_MATRIX_THREADS * DCOMMI_CUDA_MATRIX_SOME;
    const uint64_t more = DCOMMI_CUDA_MATRIX_THREADS / p.cols;
    const uint64_t rest = DCOMMI_CUDA_MATRIX_THREADS % p.cols;
    const double most = (double)dcommi_f32_from_bits(0x7f7fffffu);
    uint64_t first = (uint64_t)blockIdx.x * turns * tile + threadIdx.x;
    uint64_t i = first / p.cols, c = first % p.cols;
    dcommi_cuda_tally tally = {};
#pragma unroll 1
    for (unsigned turn = 0; turn < turns; turn++, first += tile) {
        float old[DCOMMI_CUDA_MATRIX_SOME], x[DCOMMI_CUDA_MATRIX_SOME];
#pragma unroll
        for (unsigned u = 0; u < DCOMMI_CUDA_MATRIX_SOME; u++) {
            const uint64_t at = first + u * DCOMMI_CUDA_MATRIX_THREADS;
            old[u] = p.how != 0 && at < p.count ? dcommi_cuda_load<float>(p.to + at) : 0;
            x[u] = LEDGER && at < p.count ? dcommi_cuda_load<float>(p.m + at) : 0;
        }
#pragma unroll
        for (unsigned u = 0; u < DCOMMI_CUDA_MATRIX_SOME; u++) {
            const uint64_t at = first + u * DCOMMI_CUDA_MATRIX_THREADS;
            if (at < p.count) {
                double s = 0;
                for (uint32_t j = 0; j < p.rank; j++) {
                    s = __fma_rn((double)p.q[j * p.cols + c], (double)p.from[j * p.rows + i], s);
                }
                s = s > most ? most : s < -most ? -most : s;
                const float v =
                    s == s ? __double2float_rn(s) : dcommi_f32_from_bits(DCOMMI_F32_NAN);
                const float next = p.how > 0   ? dcommi_cuda_add(old[u], v)
                                   : p.how < 0 ? dcommi_f32_bounded(__fsub_rn(old[u], v))
                                               : v;
                if (!LEDGER || p.to != NULL) {
                    dcommi_cuda_store<float>(p.to + at, next);
                }
                if (LEDGER) {
                    dcommi_cuda_tally_one(&tally, x[u], v, p.to != NULL, next);
                }
            }
            c += rest;
            i += more + (c >= p.cols ? 1 : 0);
            c -= c >= p.cols ? p.cols : 0;
        }
    }
    if (LEDGER) {
        dcommi_cuda_tally_block(&tally);
        if (threadIdx.x == 0) {
            p.tally[blockIdx.x] = tally;
        }
    }
}

/* ---- launchers ---- */

/* Check and set the arguments that all kernels read. */
static dcomm_status dcommi_cuda_matrix_read(dcommi_cuda_matrix *p, const char *call,
                                            const dcomm_codec_matrix *shape, const float *m,
                                            const char *name, const float *from)
{
    if (shape == NULL ||
        (shape->count > 0 && (shape->cols == 0 || shape->rank == 0 ||
                              shape->rows != (shape->count - 1) / shape->cols + 1))) {
        return dcommi_cuda_fail(DCOMM_ERR_INVALID, "%s: shape is %s", call,
                                shape == NULL ? "NULL" : "not of dcomm_codec_get_matrix");
    }
    *p = dcommi_cuda_matrix();
    p->count = shape->count;
    p->rows = shape->rows;
    p->cols = shape->cols;
    p->rank = (uint32_t)shape->rank;
    p->m = m;
    p->from = from;
    DCOMMI_CUDA_TRY(dcommi_cuda_array(call, "x", m, shape->count, sizeof(float)));
    return dcommi_cuda_array(call, name, from, shape->count, sizeof(float));
}

static dcomm_status dcommi_cuda_matrix_make(dcommi_cuda_matrix *p, const char *call,
                                            const dcomm_codec_matrix *shape, const float *m,
                                            const char *name, const float *from, float *to)
{
    DCOMMI_CUDA_TRY(dcommi_cuda_matrix_read(p, call, shape, m, name, from));
    p->to = to;
    return dcommi_cuda_array(call, "the output", to, p->count, sizeof(float));
}

extern "C" dcomm_status dcomm_cuda_powersgd_start(const dcomm_codec_matrix *shape,
                                                  const dcomm_codec_key *key, float *q,
                                                  void *stream)
{
    const char *call = "dcomm_cuda_powersgd_start";
    dcommi_cuda_matrix p;
    DCOMMI_CUDA_TRY(dcommi_cuda_matrix_make(&p, call, shape, q, "q", q, q));
    const dcomm_codec_key k = dcommi_cuda_key(key);
    p.rng = dcommi_rng_make(k.seed, k.tensor, k.step, 0, k.first);
    return p.count == 0 ? DCOMM_OK
                        : dcommi_cuda_launch(call, dcommi_cuda_matrix_start_kernel, p.rank,
                                             DCOMMI_CUDA_MATRIX_THREADS, p, stream);
}

static dcomm_status dcommi_cuda_powersgd_p(const dcomm_codec_matrix *shape, const float *x,
                                           const float *q, float *p, dcomm_cuda_report *report,
                                           bool refuses, void *stream)
{
    const char *call = "dcomm_cuda_powersgd_p";
    dcommi_cuda_matrix m;
    DCOMMI_CUDA_TRY(dcommi_cuda_matrix_make(&m, call, shape, x, "q", q, p));
    DCOMMI_CUDA_TRY(dcommi_cuda_array(call, "report", report, 0, 8));
    m.report = report;
    m.refuses = refuses;
    const unsigned threads = DCOMMI_CUDA_MATRIX_P_THREADS;
    const uint64_t rows = threads / DCOMMI_CUDA_MATRIX_LANES * DCOMMI_CUDA_MATRIX_P_ROWS;
    return m.count == 0 ? DCOMM_OK
                        : dcommi_cuda_launch(call,
                                             report != NULL ? dcommi_cuda_matrix_p_kernel<true>
                                                            : dcommi_cuda_matrix_p_kernel<false>,
                                             dcommi_cuda_blocks(m.rows, rows), threads, m, stream);
}

extern "C" dcomm_status dcomm_cuda_powersgd_p(const dcomm_codec_matrix *shape, const float *x,
                                              const float *q, float *p, dcomm_cuda_report *report,
                                              void *stream)
{
    return dcommi_cuda_powersgd_p(shape, x, q, p, report, false, stream);
}

extern "C" dcomm_status dcomm_cuda_powersgd_orthonormal(const dcomm_codec_matrix *shape, float *p,
                                                        void *stream)
{
    const char *call = "dcomm_cuda_powersgd_orthonormal";
    dcommi_cuda_matrix m;
    DCOMMI_CUDA_TRY(dcommi_cuda_matrix_make(&m, call, shape, p, "p", p, p));
    return m.count == 0 ? DCOMM_OK
                        : dcommi_cuda_launch(call, dcommi_cuda_matrix_orthonormal_kernel, 1,
                                             DCOMMI_CUDA_MATRIX_THREADS, m, stream);
}

extern "C" dcomm_status dcomm_cuda_powersgd_q(const dcomm_codec_matrix *shape, const float *x,
                                              const float *p, float *q, dcomm_cuda_report *report,
                                              void *stream)
{
    const char *call = "dcomm_cuda_powersgd_q";
    dcommi_cuda_matrix m;
    DCOMMI_CUDA_TRY(dcommi_cuda_matrix_make(&m, call, shape, x, "p", p, q));
    DCOMMI_CUDA_TRY(dcommi_cuda_array(call, "report", report, 0, 8));
    m.report = report;
    return m.count == 0 ? DCOMM_OK
                        : dcommi_cuda_launch(call, dcommi_cuda_matrix_q_kernel,
                                             dcommi_cuda_blocks(m.cols, DCOMMI_CUDA_MATRIX_STRIP),
                                             DCOMMI_CUDA_MATRIX_STRIP, m, stream);
}

extern "C" dcomm_status dcomm_cuda_powersgd_product(const dcomm_codec_matrix *shape, const float *p,
                                                    const float *q, float *x, int how, void *stream)
{
    const char *call = "dcomm_cuda_powersgd_product";
    dcommi_cuda_matrix m;
    DCOMMI_CUDA_TRY(dcommi_cuda_matrix_make(&m, call, shape, x, "p", p, x));
    DCOMMI_CUDA_TRY(dcommi_cuda_array(call, "q", q, m.count, sizeof(float)));
    m.q = q;
    m.how = how;
    const uint64_t each = DCOMMI_CUDA_MATRIX_THREADS * DCOMMI_CUDA_MATRIX_SOME;
    return m.count == 0 ? DCOMM_OK
                        : dcommi_cuda_launch(call, dcommi_cuda_matrix_product_kernel<false>,
                                             dcommi_cuda_blocks(m.count, each),
                                             DCOMMI_CUDA_MATRIX_THREADS, m, stream);
}

extern "C" dcomm_status dcomm_cuda_powersgd_product_ledger(const dcomm_codec_matrix *shape,
                                                           const float *p, const float *q,
                                                           const float *x, float *e,
                                                           void *workspace,
                                                           dcomm_cuda_ledger *ledger, void *stream)
{
    const char *call = "dcomm_cuda_powersgd_product_ledger";
    dcommi_cuda_matrix m;
    DCOMMI_CUDA_TRY(dcommi_cuda_matrix_read(&m, call, shape, x, "p", p));
    DCOMMI_CUDA_TRY(dcommi_cuda_array(call, "q", q, m.count, sizeof(float)));
    DCOMMI_CUDA_TRY(dcommi_cuda_array(call, "e", e, 0, sizeof(float)));
    DCOMMI_CUDA_TRY(dcommi_cuda_array(call, "ledger", ledger, 1, 8));
    DCOMMI_CUDA_TRY(
        dcommi_cuda_workspace_check(call, workspace, dcomm_cuda_compare_workspace_bytes(m.count)));
    if (m.count == 0) {
        return DCOMM_OK;
    }
    m.q = q;
    m.to = e;
    m.how = e != NULL ? -1 : 0;
    m.tally = static_cast<dcommi_cuda_tally *>(workspace);
    const uint64_t blocks = dcommi_cuda_blocks(m.count, DCOMMI_CUDA_COMPARE_TILE);
    DCOMMI_CUDA_TRY(dcommi_cuda_launch(call, dcommi_cuda_matrix_product_kernel<true>, blocks,
                                       DCOMMI_CUDA_MATRIX_THREADS, m, stream));
    return dcommi_cuda_ledger_launch(call, m.tally, blocks, ledger, stream);
}

#endif
