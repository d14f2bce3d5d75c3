/* scan.h - scans arrays of floats for the first element that is not finite, or sums squares. */
#ifndef DCOMMI_SCAN_H
#define DCOMMI_SCAN_H

#include "convert.h"
#include "util.h"

#include <math.h>

enum { DCOMMI_SCAN_BLOCK = 1024, DCOMMI_SCAN_LANES = 16 };

/* Find the first element whose exponent bits are all set. Each element takes one load and one
 * comparison, which compilers vectorize. */
#define DCOMMI_SCAN(NAME, WORD, EXPONENT)                                    \
    static size_t dcommi_scan_##NAME(const void *x, size_t count)            \
    {                                                                        \
        const WORD all = (WORD)(EXPONENT);                                   \
        size_t at = 0;                                                       \
        for (; count - at >= DCOMMI_SCAN_BLOCK; at += DCOMMI_SCAN_BLOCK) {   \
            WORD bad = 0;                                                    \
            for (size_t i = 0; i < DCOMMI_SCAN_BLOCK; i++) {                 \
                bad |= (WORD)((dcommi_load_##WORD(x, at + i) & all) == all); \
            }                                                                \
            if (bad != 0) {                                                  \
                break;                                                       \
            }                                                                \
        }                                                                    \
        while (at < count && (dcommi_load_##WORD(x, at) & all) != all) {     \
            at++;                                                            \
        }                                                                    \
        return at;                                                           \
    }
DCOMMI_SCAN(16f, uint16_t, 0x7c00)
DCOMMI_SCAN(16b, uint16_t, 0x7f80)
DCOMMI_SCAN(32, uint32_t, 0x7f800000)
DCOMMI_SCAN(64, uint64_t, 0x7ff0000000000000)
#undef DCOMMI_SCAN

/* Return the index of the first element that is not finite, or `count` if there is none. Integers
 * are finite. */
static size_t dcommi_scan(const void *x, size_t count, dcomm_dtype dtype)
{
    return dtype == DCOMM_F64    ? dcommi_scan_64(x, count)
           : dtype == DCOMM_F32  ? dcommi_scan_32(x, count)
           : dtype == DCOMM_F16  ? dcommi_scan_16f(x, count)
           : dtype == DCOMM_BF16 ? dcommi_scan_16b(x, count)
                                 : count;
}

/* Convert an f16 without its sign, which a square does not need. The shift scales the value by
 * 2^-112, and the product scales it back. Infinity becomes 65536. */
static inline double dcommi_scan_f16(uint16_t h)
{
    return (double)dcommi_f32_from_bits((uint32_t)(h & 0x7fffu) << 13) * 0x1p112;
}

static inline double dcommi_scan_bf16(uint16_t h)
{
    return (double)dcommi_f32_from_bits((uint32_t)h << 16);
}

static inline double dcommi_scan_plain(double x)
{
    return x;
}

/* Sum squares in a fixed number of lanes, so that the sum is the same on all machines. Squares of
 * elements of up to 32 bits are exact in f64, so a fused multiply-add gives the same bits. */
#define DCOMMI_SQUARES(NAME, TYPE, GET)                                    \
    static double dcommi_squares_##NAME(const void *x, size_t count)       \
    {                                                                      \
        double lane[DCOMMI_SCAN_LANES] = {0}, sum = 0;                     \
        size_t at = 0;                                                     \
        for (; count - at >= DCOMMI_SCAN_LANES; at += DCOMMI_SCAN_LANES) { \
            for (int l = 0; l < DCOMMI_SCAN_LANES; l++) {                  \
                double v = GET(dcommi_load_##TYPE(x, at + (size_t)l));     \
                lane[l] += v * v;                                          \
            }                                                              \
        }                                                                  \
        for (int l = 0; at < count; l++, at++) {                           \
            double v = GET(dcommi_load_##TYPE(x, at));                     \
            lane[l] += v * v;                                              \
        }                                                                  \
        for (int l = 0; l < DCOMMI_SCAN_LANES; l++) {                      \
            sum += lane[l];                                                \
        }                                                                  \
        return sum;                                                        \
    }
DCOMMI_SQUARES(f64, double, dcommi_scan_plain)
DCOMMI_SQUARES(f32, float, (double))
DCOMMI_SQUARES(f16, uint16_t, dcommi_scan_f16)
DCOMMI_SQUARES(bf16, uint16_t, dcommi_scan_bf16)
#undef DCOMMI_SQUARES

/* Return the sum of squares. It is not finite if an element is not finite. */
static double dcommi_squares(const void *x, size_t count, dcomm_dtype dtype)
{
    switch (dtype) {
    case DCOMM_F64:
        return dcommi_squares_f64(x, count);
    case DCOMM_F32:
        return dcommi_squares_f32(x, count);
    case DCOMM_F16:
        return dcommi_scan(x, count, dtype) < count ? (double)INFINITY
                                                    : dcommi_squares_f16(x, count);
    case DCOMM_BF16:
        return dcommi_squares_bf16(x, count);
    default:
        return 0;
    }
}

#endif
