/* powersgd.h - the two products of PowerSGD, and the orthonormalization of columns.
 *
 * Products of two f32 are exact in f64. All sums are taken in f64 in one fixed order (eight lanes,
 * or one row after the other). So a compiler may fuse operations, and every instruction set gives
 * the same bits from the same source. An element of the matrix that is denormal or not finite
 * counts as 0. */
#ifndef DCOMMI_CPU_POWERSGD_H
#define DCOMMI_CPU_POWERSGD_H

#include "isa.h"
#include "../root.h"

#if defined(__x86_64__)
#include "lanes_avx2.h"
#include "lanes_avx512.h"
#endif

#include <float.h>

typedef float dcommi_f32x8 __attribute__((vector_size(32)));
typedef int32_t dcommi_i32x8 __attribute__((vector_size(32)));
typedef double dcommi_f64x8 __attribute__((vector_size(64)));
typedef int64_t dcommi_i64x8 __attribute__((vector_size(64)));

/* A flat array of `count` elements as a matrix, row by row; elements missing in the last row are
 * 0. P is `rank` columns of `rows` elements, one column after the other; Q is `rank` columns of
 * `cols`. */
typedef struct dcommi_matrix {
    size_t count, rows, cols, rank;
} dcommi_matrix;

static inline size_t dcommi_matrix_padded(size_t n)
{
    return (n + 7) & ~(size_t)7;
}

/* Return the number of elements that row i has. */
static inline size_t dcommi_matrix_row(const dcommi_matrix *m, size_t i)
{
    size_t from = i * m->cols;
    return from >= m->count ? 0 : m->count - from < m->cols ? m->count - from : m->cols;
}

/* Load eight elements, or the N that are there, as f64. These are macros because the instruction
 * set decides how a vector is passed. */
#define DCOMMI_MATRIX_WHOLE(OUT, AT, N) DCOMMI_MATRIX_LOAD(OUT, AT, 32)
#define DCOMMI_MATRIX_PART(OUT, AT, N) DCOMMI_MATRIX_LOAD(OUT, AT, 4 * dcommi_matrix_left(N, c))
#define DCOMMI_MATRIX_LOAD(OUT, AT, BYTES)                  \
    do {                                                    \
        dcommi_i32x8 bits = {0};                            \
        dcommi_f32x8 value;                                 \
        memcpy(&bits, AT, BYTES);                           \
        dcommi_i32x8 exponent = bits & 0x7f800000;          \
        bits &= (exponent != 0) & (exponent != 0x7f800000); \
        memcpy(&value, &bits, sizeof value);                \
        OUT = __builtin_convertvector(value, dcommi_f64x8); \
    } while (0)

/* Return how many of the eight elements from c on a row of `length` has. */
static inline size_t dcommi_matrix_left(size_t length, size_t c)
{
    return length <= c ? 0 : length - c < 8 ? length - c : 8;
}

#define DCOMMI_MATRIX_SUM(V) (((V[0] + V[4]) + (V[2] + V[6])) + ((V[1] + V[5]) + (V[3] + V[7])))

#define DCOMMI_MATRIX_TILE_STEP(LOAD)       \
    do {                                    \
        dcommi_f64x8 a, b, m;               \
        memcpy(&a, q0 + c, sizeof a);       \
        memcpy(&b, q1 + c, sizeof b);       \
        DCOMMI_UNROLL_8                     \
        for (size_t r = 0; r < 4; r++) {    \
            LOAD(m, row[r] + c, length[r]); \
            s[r][0] += m * a;               \
            s[r][1] += m * b;               \
        }                                   \
    } while (0)

/* Multiply four rows, none shorter than the next, by two columns: out[row][column]. */
#define DCOMMI_MATRIX_TILE(NAME, TARGET)                                                        \
    TARGET static void dcommi_matrix_tile_##NAME(const float *const *row, const size_t *length, \
                                                 const double *q0, const double *q1,            \
                                                 double(*out)[2])                               \
    {                                                                                           \
        dcommi_f64x8 s[4][2] = {{{0}, {0}}};                                                    \
        size_t c = 0;                                                                           \
        for (; c + 8 <= length[3]; c += 8) {                                                    \
            DCOMMI_MATRIX_TILE_STEP(DCOMMI_MATRIX_WHOLE);                                       \
        }                                                                                       \
        for (; c < length[0]; c += 8) {                                                         \
            DCOMMI_MATRIX_TILE_STEP(DCOMMI_MATRIX_PART);                                        \
        }                                                                                       \
        DCOMMI_UNROLL_8                                                                         \
        for (size_t r = 0; r < 4; r++) {                                                        \
            out[r][0] = DCOMMI_MATRIX_SUM(s[r][0]);                                             \
            out[r][1] = DCOMMI_MATRIX_SUM(s[r][1]);                                             \
        }                                                                                       \
    }

#define DCOMMI_MATRIX_STRIP_STEP(LOAD)                    \
    do {                                                  \
        dcommi_f64x8 m[4];                                \
        DCOMMI_UNROLL_8                                   \
        for (size_t r = 0; r < 4; r++) {                  \
            LOAD(m[r], row[r] + c, length[r]);            \
        }                                                 \
        double *at = sum + c;                             \
        for (size_t j = 0; j < rank; j++, at += stride) { \
            dcommi_f64x8 s;                               \
            memcpy(&s, at, sizeof s);                     \
            DCOMMI_UNROLL_8                               \
            for (size_t r = 0; r < 4; r++) {              \
                s += m[r] * weight[r][j];                 \
            }                                             \
            memcpy(at, &s, sizeof s);                     \
        }                                                 \
    } while (0)

/* Add row[0][c] * weight[0][j] + ... to sum[j][c], row after row. A column of sums is `stride`
 * long. */
#define DCOMMI_MATRIX_STRIP(NAME, TARGET)                                                        \
    TARGET static void dcommi_matrix_strip_##NAME(const float *const *row, const size_t *length, \
                                                  const double *const *weight, size_t rank,      \
                                                  double *sum, size_t stride)                    \
    {                                                                                            \
        size_t c = 0;                                                                            \
        for (; c + 8 <= length[3]; c += 8) {                                                     \
            DCOMMI_MATRIX_STRIP_STEP(DCOMMI_MATRIX_WHOLE);                                       \
        }                                                                                        \
        for (; c < length[0]; c += 8) {                                                          \
            DCOMMI_MATRIX_STRIP_STEP(DCOMMI_MATRIX_PART);                                        \
        }                                                                                        \
    }

/* Clamp a sum to finite f32. In f64 no sum overflows. A NaN becomes the canonical one, because a
 * sum with several NaNs may give any of them. */
#define DCOMMI_MATRIX_CLAMP(S)                                                              \
    do {                                                                                    \
        const dcommi_f64x8 most = (dcommi_f64x8){0} + (double)FLT_MAX;                      \
        const dcommi_i64x8 above = (dcommi_i64x8)(S > most);                                \
        const dcommi_i64x8 below = (dcommi_i64x8)(S < -most);                               \
        const dcommi_i64x8 nan = (dcommi_i64x8)(S != S);                                    \
        S = (dcommi_f64x8)(((dcommi_i64x8)S & ~(above | below | nan)) |                     \
                           ((dcommi_i64x8)most & above) | ((dcommi_i64x8)(-most) & below) | \
                           (nan & 0x7ff8000000000000));                                     \
    } while (0)

/* Do dcommi_f32_bounded on each number. */
#define DCOMMI_MATRIX_BOUND(V)                                     \
    do {                                                           \
        const dcommi_i32x8 most = (dcommi_i32x8){0} + 0x7f7fffff;  \
        dcommi_i32x8 bits;                                         \
        memcpy(&bits, &V, sizeof bits);                            \
        bits += (bits & 0x7fffffff) == 0x7f800000;                 \
        const dcommi_i32x8 nan = (bits & 0x7fffffff) > 0x7f800000; \
        bits = (bits & ~nan) | (most & nan);                       \
        memcpy(&V, &bits, sizeof V);                               \
    } while (0)

#define DCOMMI_MATRIX_EXPAND_STEP(BYTES)                                      \
    do {                                                                      \
        dcommi_f64x8 s = {0};                                                 \
        for (size_t j = 0; j < rank; j++) {                                   \
            dcommi_f32x8 a = {0};                                             \
            memcpy(&a, q + j * cols + c, BYTES);                              \
            s += __builtin_convertvector(a, dcommi_f64x8) * weight[j];        \
        }                                                                     \
        DCOMMI_MATRIX_CLAMP(s);                                               \
        dcommi_f32x8 v = __builtin_convertvector(s, dcommi_f32x8);            \
        if (how != 0) {                                                       \
            dcommi_f32x8 old = {0};                                           \
            memcpy(&old, x + c, BYTES);                                       \
            v = how > 0 ? old + v : old - v;                                  \
        }                                                                     \
        if (how < 0) { /* the residual stays finite: as dcommi_f32_bounded */ \
            DCOMMI_MATRIX_BOUND(v);                                           \
        }                                                                     \
        memcpy(x + c, &v, BYTES);                                             \
    } while (0)

/* Set x[c] = weight[0] * q[0][c] + ..., one column after the other; or add it to x, or subtract
 * it. */
#define DCOMMI_MATRIX_EXPAND(NAME, TARGET)                                                         \
    TARGET static void dcommi_matrix_expand_##NAME(float *x, size_t n, const float *q,             \
                                                   size_t cols, const double *weight, size_t rank, \
                                                   int how)                                        \
    {                                                                                              \
        size_t c = 0;                                                                              \
        for (; c + 8 <= n; c += 8) {                                                               \
            DCOMMI_MATRIX_EXPAND_STEP(32);                                                         \
        }                                                                                          \
        if (c < n) {                                                                               \
            DCOMMI_MATRIX_EXPAND_STEP(4 * (n - c));                                                \
        }                                                                                          \
    }

#define DCOMMI_MATRIX_KERNELS(NAME, TARGET) \
    DCOMMI_MATRIX_TILE(NAME, TARGET)        \
    DCOMMI_MATRIX_STRIP(NAME, TARGET)       \
    DCOMMI_MATRIX_EXPAND(NAME, TARGET)

typedef struct dcommi_matrix_kernels {
    void (*tile)(const float *const *row, const size_t *length, const double *q0, const double *q1,
                 double (*out)[2]);
    void (*strip)(const float *const *row, const size_t *length, const double *const *weight,
                  size_t rank, double *sum, size_t stride);
    void (*expand)(float *x, size_t n, const float *q, size_t cols, const double *weight,
                   size_t rank, int how);
} dcommi_matrix_kernels;

DCOMMI_MATRIX_KERNELS(port, )
#if defined(__x86_64__)
DCOMMI_MATRIX_KERNELS(avx2, DCOMMI_v256_TARGET)
DCOMMI_MATRIX_KERNELS(avx512, DCOMMI_v512_TARGET)
#endif

static dcommi_matrix_kernels dcommi_matrix_get(void)
{
    switch (dcommi_isa_get()) {
#if defined(__x86_64__)
    case DCOMMI_ISA_AVX512:
        return (dcommi_matrix_kernels){dcommi_matrix_tile_avx512, dcommi_matrix_strip_avx512,
                                       dcommi_matrix_expand_avx512};
    case DCOMMI_ISA_AVX2:
        return (dcommi_matrix_kernels){dcommi_matrix_tile_avx2, dcommi_matrix_strip_avx2,
                                       dcommi_matrix_expand_avx2};
#endif
    default:
        return (dcommi_matrix_kernels){dcommi_matrix_tile_port, dcommi_matrix_strip_port,
                                       dcommi_matrix_expand_port};
    }
}

/* Return the bytes of workspace for one column of n elements, of Q or P, in f64. */
static inline size_t dcommi_matrix_column_bytes(size_t n)
{
    return 8 * dcommi_matrix_padded(n);
}

/* Get four rows from i on; rows behind the end are empty. */
static void dcommi_matrix_rows(const dcommi_matrix *m, const float *x, size_t i, const float **row,
                               size_t *length)
{
    for (size_t r = 0; r < 4; r++) {
        length[r] = i + r < m->rows ? dcommi_matrix_row(m, i + r) : 0;
        row[r] = length[r] > 0 ? x + (i + r) * m->cols : x;
    }
}

/* Set P = M Q. `wide` has room for rank columns of Q in f64. */
static void dcommi_matrix_times(const dcommi_matrix *m, const float *x, const float *q, float *p,
                                double *wide)
{
    dcommi_matrix_kernels kernels = dcommi_matrix_get();
    size_t stride = dcommi_matrix_padded(m->cols);
    for (size_t j = 0; j < m->rank; j++) {
        for (size_t c = 0; c < stride; c++) {
            wide[j * stride + c] = c < m->cols ? (double)q[j * m->cols + c] : 0;
        }
    }
    for (size_t i = 0; i < m->rows; i += 4) {
        const float *row[4];
        size_t length[4];
        dcommi_matrix_rows(m, x, i, row, length);
        for (size_t j = 0; j < m->rank; j += 2) {
            size_t k = j + 1 < m->rank ? j + 1 : j;
            double out[4][2];
            kernels.tile(row, length, wide + j * stride, wide + k * stride, out);
            for (size_t r = 0; r < 4 && i + r < m->rows; r++) {
                p[j * m->rows + i + r] = (float)out[r][0];
                p[k * m->rows + i + r] = (float)out[r][k - j];
            }
        }
    }
}

/* Set Q = M^T P. `wide` has room for rank columns of Q in f64. rank <= DCOMMI_MATRIX_RANK. */
#define DCOMMI_MATRIX_RANK 64
static void dcommi_matrix_transposed_times(const dcommi_matrix *m, const float *x, const float *p,
                                           float *q, double *wide)
{
    dcommi_matrix_kernels kernels = dcommi_matrix_get();
    size_t stride = dcommi_matrix_padded(m->cols);
    memset(wide, 0, 8 * stride * m->rank);
    for (size_t i = 0; i < m->rows; i += 4) {
        const float *row[4];
        size_t length[4];
        double weight[4][DCOMMI_MATRIX_RANK];
        const double *const weights[4] = {weight[0], weight[1], weight[2], weight[3]};
        dcommi_matrix_rows(m, x, i, row, length);
        for (size_t r = 0; r < 4; r++) {
            for (size_t j = 0; j < m->rank; j++) {
                weight[r][j] = i + r < m->rows ? (double)p[j * m->rows + i + r] : 0;
            }
        }
        kernels.strip(row, length, weights, m->rank, wide, stride);
    }
    for (size_t j = 0; j < m->rank; j++) {
        for (size_t c = 0; c < m->cols; c++) {
            q[j * m->cols + c] = (float)wide[j * stride + c];
        }
    }
}

/* Store rows [from, to) of P Q^T in x (how = 0), add them (1) or subtract them (-1). */
static void dcommi_matrix_some(const dcommi_matrix *m, const float *p, const float *q, size_t from,
                               size_t to, float *x, int how)
{
    dcommi_matrix_kernels kernels = dcommi_matrix_get();
    for (size_t i = from; i < to; i++, x += m->cols) {
        double weight[DCOMMI_MATRIX_RANK];
        for (size_t j = 0; j < m->rank; j++) {
            weight[j] = (double)p[j * m->rows + i];
        }
        kernels.expand(x, dcommi_matrix_row(m, i), q, m->cols, weight, m->rank, how);
    }
}

static void dcommi_matrix_product(const dcommi_matrix *m, const float *p, const float *q, float *x,
                                  int how)
{
    dcommi_matrix_some(m, p, q, 0, m->rows, x, how);
}

static double dcommi_matrix_dot(const float *a, const float *b, size_t n)
{
    double s[8] = {0};
    for (size_t i = 0; i < n; i++) {
        s[i % 8] += (double)a[i] * (double)b[i];
    }
    return DCOMMI_MATRIX_SUM(s);
}

/* Make the columns of P orthonormal, in order, by the modified Gram-Schmidt method. Do it twice,
 * because once leaves errors of f32 rounding. A column that the ones before it span becomes 0. */
static void dcommi_matrix_orthonormal(float *p, size_t rows, size_t rank)
{
    for (size_t j = 0; j < rank; j++) {
        float *column = p + j * rows;
        double before = dcommi_matrix_dot(column, column, rows), after = before;
        for (int turn = 0; turn < 2; turn++) {
            for (size_t k = 0; k < j; k++) {
                const float *other = p + k * rows;
                double share = (double)(float)dcommi_matrix_dot(column, other, rows);
                for (size_t i = 0; i < rows; i++) {
                    column[i] = (float)((double)column[i] - share * (double)other[i]);
                }
            }
            after = dcommi_matrix_dot(column, column, rows);
            bool spanned = !(after > 1e-11 * before) || !(after > 0x1p-240);
            double scale = spanned ? 0 : 1 / dcommi_sqrt(after);
            for (size_t i = 0; i < rows; i++) {
                column[i] = (float)((double)column[i] * scale);
            }
            before = after * scale * scale;
        }
    }
}

#endif
