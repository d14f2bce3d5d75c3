/* perf_data.h - make the data that ranks send, and check the data that they receive.
 *
 * Every value is a function of (rank, index), exact in its dtype and in f64. So any rank can
 * compute the data of any other rank. Signs depend only on the index. So sums do not cancel, and
 * relative errors have simple bounds. */
#ifndef PERF_DATA_H
#define PERF_DATA_H

#include "dcomm.h"

#include <math.h>
#include <stdint.h>
#include <string.h>

enum { PERF_BLOCK = 512 }; /* elements converted at a time */

typedef struct perf_values {
    dcomm_dtype dtype;
    dcomm_op op; /* DCOMM_OP_COUNT: the operation does not reduce */
    int nranks;
    bool lossy; /* any finite number counts as right */
} perf_values;

static inline uint64_t perf_mix(uint64_t z)
{
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

static bool perf_is_float(dcomm_dtype dtype)
{
    return dtype <= DCOMM_BF16;
}

/* Return the bits of the mantissa without the hidden bit. */
static int perf_mantissa(dcomm_dtype dtype)
{
    static const int bits[] = {
        [DCOMM_F64] = 52, [DCOMM_F32] = 23, [DCOMM_F16] = 10, [DCOMM_BF16] = 7};
    return bits[dtype];
}

static double perf_float_value(const perf_values *v, uint64_t at, uint64_t x)
{
    int bits = perf_mantissa(v->dtype);
    double unit = 1.0 / (double)((uint64_t)1 << bits);
    if (v->op == DCOMM_PROD) { /* near 1, so that products neither overflow nor vanish */
        return 1.0 + (double)(x >> (64 - (bits - 4))) * unit;
    }
    double value = 1.0 + (double)(x >> (64 - bits)) * unit;
    value = x & 1 ? value : value / 2;
    return at & 1 ? value : -value;
}

static double perf_int_value(const perf_values *v, uint64_t at, uint64_t x, int rank)
{
    bool is_signed = v->dtype == DCOMM_I8 || v->dtype == DCOMM_I32 || v->dtype == DCOMM_I64;
    if (v->op == DCOMM_PROD) { /* all ranks except two have 1 */
        int n = v->nranks;
        double value = rank == (int)((at >> 8) % (uint64_t)n) ? 1 + (double)((at >> 40) % 3) : 1;
        value *= rank == (int)((at >> 24) % (uint64_t)n) ? 1 + (double)((at >> 44) & 1) : 1;
        return is_signed && rank == 0 && at & 1 ? -value : value;
    }
    int limit = is_signed ? 127 : 255; /* sums of n must fit the 8-bit types */
    if (v->op == DCOMM_SUM || v->op == DCOMM_AVG) {
        if (rank >= limit) {
            return 0;
        }
        limit = limit / v->nranks > 0 ? limit / v->nranks : 1;
    }
    double value = (double)((x >> 32) % ((uint64_t)limit + 1));
    return is_signed && at & 1 ? -value : value;
}

/* Set values[i] to the value of `rank` at element first + i. */
static void perf_generate(const perf_values *v, int rank, size_t first, size_t n, double *values)
{
    uint64_t salt = perf_mix((uint64_t)rank + 1);
    bool is_float = perf_is_float(v->dtype);
    for (size_t i = 0; i < n; i++) {
        uint64_t at = perf_mix((uint64_t)(first + i) * 0x9e3779b97f4a7c15u + 1);
        uint64_t x = (at ^ salt) * 0xd1342543de82ef95u;
        x ^= x >> 29;
        x *= 0xbf58476d1ce4e5b9u;
        values[i] = is_float ? perf_float_value(v, at, x) : perf_int_value(v, at, x, rank);
    }
}

/* ---- conversion; exact for every value generated here ---- */

static uint16_t perf_to_f16(double value)
{
    int exponent = 0;
    double fraction = frexp(fabs(value), &exponent); /* [0.5, 1) */
    return (uint16_t)((signbit(value) ? 0x8000u : 0u) | (unsigned)(exponent + 14) << 10 |
                      ((unsigned)(fraction * 2048) & 0x3ffu));
}

static double perf_from_f16(uint16_t bits)
{
    int exponent = bits >> 10 & 0x1f;
    double mantissa = bits & 0x3ff;
    double value = exponent == 0    ? ldexp(mantissa, -24)
                   : exponent == 31 ? (mantissa != 0 ? NAN : INFINITY)
                                    : ldexp(mantissa + 1024, exponent - 25);
    return bits & 0x8000 ? -value : value;
}

static uint16_t perf_to_bf16(double value)
{
    float single = (float)value;
    uint32_t bits = 0;
    memcpy(&bits, &single, sizeof bits);
    return (uint16_t)(bits >> 16);
}

static double perf_from_bf16(uint16_t half)
{
    uint32_t bits = (uint32_t)half << 16;
    float single = 0;
    memcpy(&single, &bits, sizeof single);
    return single;
}

#define PERF_EACH_DTYPE(X)                                \
    X(DCOMM_F64, double, (double), (double))              \
    X(DCOMM_F32, float, (float), (double))                \
    X(DCOMM_F16, uint16_t, perf_to_f16, perf_from_f16)    \
    X(DCOMM_BF16, uint16_t, perf_to_bf16, perf_from_bf16) \
    X(DCOMM_I8, int8_t, (int8_t), (double))               \
    X(DCOMM_U8, uint8_t, (uint8_t), (double))             \
    X(DCOMM_I32, int32_t, (int32_t), (double))            \
    X(DCOMM_U32, uint32_t, (uint32_t), (double))          \
    X(DCOMM_I64, int64_t, (int64_t), (double))            \
    X(DCOMM_U64, uint64_t, (uint64_t), (double))

static void perf_store(dcomm_dtype dtype, void *dst, const double *values, size_t n)
{
    switch (dtype) {
#define PERF_STORE(name, type, to, from)      \
    case name:                                \
        for (size_t i = 0; i < n; i++) {      \
            ((type *)dst)[i] = to(values[i]); \
        }                                     \
        break;
        PERF_EACH_DTYPE(PERF_STORE)
#undef PERF_STORE
    default:
        break;
    }
}

static void perf_load(dcomm_dtype dtype, const void *src, double *values, size_t n)
{
    switch (dtype) {
#define PERF_LOAD(name, type, to, from)               \
    case name:                                        \
        for (size_t i = 0; i < n; i++) {              \
            values[i] = from(((const type *)src)[i]); \
        }                                             \
        break;
        PERF_EACH_DTYPE(PERF_LOAD)
#undef PERF_LOAD
    default:
        break;
    }
}

static void perf_fill(const perf_values *v, int rank, void *dst, size_t count)
{
    double values[PERF_BLOCK];
    size_t size = dcomm_dtype_size(v->dtype);
    for (size_t at = 0; at < count; at += PERF_BLOCK) {
        size_t n = count - at < PERF_BLOCK ? count - at : PERF_BLOCK;
        perf_generate(v, rank, at, n, values);
        perf_store(v->dtype, (char *)dst + at * size, values, n);
    }
}

/* ---- checking ---- */

typedef struct perf_errors {
    uint64_t wrong;
    uint64_t measured; /* elements that the next three fields cover; 0: results are exact */
    double relerr_max, bias_sum, ulp_max;
} perf_errors;

static double perf_fold(dcomm_op op, double a, double b)
{
    switch (op) {
    case DCOMM_PROD:
        return a * b;
    case DCOMM_MIN:
        return b < a ? b : a;
    case DCOMM_MAX:
        return b > a ? b : a;
    default:
        return a + b;
    }
}

/* Return a bound of the relative error of nranks operands, folded in any order and rounded to the
 * dtype after each addition. The f64 reference rounds, too, so f64 may differ by twice as much. */
static double perf_bound(const perf_values *v)
{
    double unit = ldexp(1.0, -perf_mantissa(v->dtype) - 1);
    return unit * (v->nranks + 2) * (v->dtype == DCOMM_F64 ? 2 : 1) * 1.05;
}

/* Check `count` elements at result against elements [first, ...) of rank `from`. */
static void perf_check_copy(const perf_values *v, const void *result, int from, size_t first,
                            size_t count, perf_errors *errors)
{
    double values[PERF_BLOCK];
    _Alignas(double) unsigned char wanted[PERF_BLOCK * sizeof(double)];
    size_t size = dcomm_dtype_size(v->dtype);
    for (size_t at = 0; at < count; at += PERF_BLOCK) {
        size_t n = count - at < PERF_BLOCK ? count - at : PERF_BLOCK;
        const char *got = (const char *)result + at * size;
        perf_generate(v, from, first + at, n, values);
        perf_store(v->dtype, wanted, values, n);
        for (size_t i = 0; memcmp(got, wanted, n * size) != 0 && i < n; i++) {
            errors->wrong += memcmp(got + i * size, wanted + i * size, size) != 0;
        }
    }
}

/* Check `count` elements at result against the fold of elements [first, ...) of all ranks. */
static void perf_check_fold(const perf_values *v, const void *result, size_t first, size_t count,
                            perf_errors *errors)
{
    double wanted[PERF_BLOCK], values[PERF_BLOCK];
    size_t size = dcomm_dtype_size(v->dtype);
    bool is_float = perf_is_float(v->dtype);
    bool exact = !is_float || v->op == DCOMM_MIN || v->op == DCOMM_MAX;
    double bound = exact ? 0 : perf_bound(v);
    for (size_t at = 0; at < count; at += PERF_BLOCK) {
        size_t n = count - at < PERF_BLOCK ? count - at : PERF_BLOCK;
        perf_generate(v, 0, first + at, n, wanted);
        for (int rank = 1; rank < v->nranks; rank++) {
            perf_generate(v, rank, first + at, n, values);
            for (size_t i = 0; i < n; i++) {
                wanted[i] = perf_fold(v->op, wanted[i], values[i]);
            }
        }
        for (size_t i = 0; v->op == DCOMM_AVG && i < n; i++) {
            wanted[i] = is_float ? wanted[i] / v->nranks : trunc(wanted[i] / v->nranks);
        }
        perf_load(v->dtype, (const char *)result + at * size, values, n);
        if (exact) {
            for (size_t i = 0; i < n; i++) {
                errors->wrong += values[i] != wanted[i];
            }
            continue;
        }
        errors->measured += n;
        for (size_t i = 0; i < n; i++) {
            double relative = (values[i] - wanted[i]) / wanted[i];
            if (v->lossy ? !isfinite(values[i]) : !(fabs(relative) <= bound)) { /* also if NaN */
                errors->wrong++;
            }
            if (relative != 0 && isfinite(relative)) {
                int exponent = 0;
                frexp(wanted[i], &exponent);
                double ulp = ldexp(1.0, exponent - 1 - perf_mantissa(v->dtype));
                errors->ulp_max = fmax(errors->ulp_max, fabs(values[i] - wanted[i]) / ulp);
                errors->relerr_max = fmax(errors->relerr_max, fabs(relative));
                errors->bias_sum += relative;
            }
        }
    }
}

/* Return a 64-bit hash of a result; equal bytes have equal hashes. */
static uint64_t perf_hash(const void *data, size_t len)
{
    const unsigned char *p = data;
    uint64_t lanes[4] = {1, 2, 3, 4}; /* independent, so that the multiplications overlap */
    size_t i = 0;
    for (; i + 32 <= len; i += 32) {
        for (int lane = 0; lane < 4; lane++) {
            uint64_t word = 0;
            memcpy(&word, p + i + 8 * lane, 8);
            lanes[lane] = (lanes[lane] ^ word) * 0x9e3779b97f4a7c15u;
            lanes[lane] ^= lanes[lane] >> 32;
        }
    }
    uint64_t h = perf_mix(len + 0x9e3779b97f4a7c15u);
    for (; i < len; i++) {
        h = (h ^ p[i]) * 0x100000001b3u;
    }
    for (int lane = 0; lane < 4; lane++) {
        h = perf_mix(h ^ lanes[lane]) + (uint64_t)lane;
    }
    return h;
}

#endif
