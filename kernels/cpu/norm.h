/* norm.h - the sum of an array's squares, in an order that a device can follow too.
 *
 * A tile of 8192 elements is eight rows of 32 lanes. Element i of a row belongs to lane i % 32,
 * which adds its elements in order. In a row, lanes l and l + 16 are added, then l + 8, + 4, + 2
 * and + 1. In a tile, the rows are added in order. Tile t belongs to lane t % 256, which adds its
 * tiles in order. These 256 lanes are then added like the eight rows of a tile. Squares of f32 are
 * exact in f64, so a compiler may fuse operations. An element that is denormal or not finite
 * counts as 0. */
#ifndef DCOMMI_CPU_NORM_H
#define DCOMMI_CPU_NORM_H

#include "isa.h"
#include "../norm.h"

#if defined(__x86_64__)
#include "lanes_avx2.h"
#include "lanes_avx512.h"
#endif

/* Sum a row, or the n elements that it has, W elements at a time. A vector of f64 that is wider
 * than the machine's makes some compilers produce slow code. */
#define DCOMMI_NORM_ROW_OF(NAME, TARGET, W)                               \
    TARGET static double dcommi_norm_row_##NAME(const float *x, size_t n) \
    {                                                                     \
        typedef float f32 __attribute__((vector_size(4 * (W))));          \
        typedef int32_t i32 __attribute__((vector_size(4 * (W))));        \
        typedef double f64 __attribute__((vector_size(8 * (W))));         \
        enum { VECTORS = DCOMMI_NORM_LANES / (W) };                       \
        float rest[DCOMMI_NORM_LANES] = {0};                              \
        double lane[DCOMMI_NORM_LANES];                                   \
        f64 s[VECTORS] = {{0}};                                           \
        for (size_t i = 0; i < n; i += DCOMMI_NORM_LANES) {               \
            const float *at = x + i;                                      \
            if (n - i < DCOMMI_NORM_LANES) {                              \
                memcpy(rest, at, (n - i) * sizeof *rest);                 \
                at = rest;                                                \
            }                                                             \
            DCOMMI_UNROLL_8                                               \
            for (size_t k = 0; k < VECTORS; k++) {                        \
                i32 bits;                                                 \
                f32 value;                                                \
                memcpy(&bits, at + (W)*k, sizeof bits);                   \
                const i32 exponent = bits & 0x7f800000;                   \
                bits &= (exponent != 0) & (exponent != 0x7f800000);       \
                memcpy(&value, &bits, sizeof value);                      \
                const f64 v = __builtin_convertvector(value, f64);        \
                s[k] += v * v;                                            \
            }                                                             \
        }                                                                 \
        DCOMMI_UNROLL_8                                                   \
        for (size_t k = 0; k < VECTORS; k++) {                            \
            memcpy(lane + (W)*k, &s[k], sizeof s[k]);                     \
        }                                                                 \
        return dcommi_norm_lanes(lane);                                   \
    }

/* Return the sum of the lanes: l and l + 16, then + 8, + 4, + 2, + 1. */
static double dcommi_norm_lanes(double *lane)
{
    for (size_t far = DCOMMI_NORM_LANES / 2; far > 0; far /= 2) {
        for (size_t l = 0; l < far; l++) {
            lane[l] += lane[l + far];
        }
    }
    return lane[0];
}

DCOMMI_NORM_ROW_OF(port, , 4)
#if defined(__x86_64__)
DCOMMI_NORM_ROW_OF(avx2, DCOMMI_v256_TARGET, 4)
DCOMMI_NORM_ROW_OF(avx512, DCOMMI_v512_TARGET, 8)
#endif

typedef double (*dcommi_norm_row_fn)(const float *x, size_t n);

static dcommi_norm_row_fn dcommi_norm_row_get(void)
{
    switch (dcommi_isa_get()) {
#if defined(__x86_64__)
    case DCOMMI_ISA_AVX512:
        return dcommi_norm_row_avx512;
    case DCOMMI_ISA_AVX2:
        return dcommi_norm_row_avx2;
#endif
    default:
        return dcommi_norm_row_port;
    }
}

static double dcommi_norm_squares(const float *x, size_t n)
{
    const dcommi_norm_row_fn row = dcommi_norm_row_get();
    double lane[DCOMMI_NORM_ROWS][DCOMMI_NORM_LANES] = {{0}}, sum = 0;
    for (size_t t = 0, at = 0; at < n; t++) {
        double tile = 0;
        for (size_t r = 0; r < DCOMMI_NORM_ROWS && at < n; r++) {
            const size_t length = n - at < DCOMMI_NORM_ROW ? n - at : DCOMMI_NORM_ROW;
            tile += row(x + at, length);
            at += length;
        }
        lane[t / DCOMMI_NORM_LANES % DCOMMI_NORM_ROWS][t % DCOMMI_NORM_LANES] += tile;
    }
    for (size_t r = 0; r < DCOMMI_NORM_ROWS; r++) {
        sum += dcommi_norm_lanes(lane[r]);
    }
    return sum;
}

#endif
