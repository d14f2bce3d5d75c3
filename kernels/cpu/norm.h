/* norm.h - the sum of an array's squares in an order that a device takes, too.
 *
 * Tiles of 8192 elements are eight rows, of 32 lanes each: element i of a row is lane i % 32's,
 * which adds its own in order. Of a row lanes l and l + 16 are added, then l + 8, + 4, + 2 and + 1,
 * and of a tile the rows in order. Tile t is lane t % 256's, which adds its own in order; these
 * lanes are then added as those of a tile's eight rows. Squares of f32 are exact in f64, so that a
 * compiler may fuse what it likes. An element that is denormal or not finite counts as 0. */
#ifndef DCOMMI_CPU_NORM_H
#define DCOMMI_CPU_NORM_H

#include "isa.h"
#include "../norm.h"

#if defined(__x86_64__)
#include "lanes_avx2.h"
#include "lanes_avx512.h"
#endif

/* W elements at a time: a vector of f64 that is wider than the machine's costs some compilers
 * more than it saves. */
#define DCOMMI_NORM_VECTORS(W)                                                 \
    typedef float dcommi_norm_f32_##W __attribute__((vector_size(4 * (W))));   \
    typedef int32_t dcommi_norm_i32_##W __attribute__((vector_size(4 * (W)))); \
    typedef double dcommi_norm_f64_##W __attribute__((vector_size(8 * (W))));

DCOMMI_NORM_VECTORS(4)
DCOMMI_NORM_VECTORS(8)

/* The Kth W of the 32 elements from AT on. */
#define DCOMMI_NORM_ADD(W, AT, K)                                                          \
    do {                                                                                   \
        dcommi_norm_i32_##W bits;                                                          \
        dcommi_norm_f32_##W value;                                                         \
        memcpy(&bits, (AT) + (W) * (K), sizeof bits);                                      \
        const dcommi_norm_i32_##W exponent = bits & 0x7f800000;                            \
        bits &= (exponent != 0) & (exponent != 0x7f800000);                                \
        memcpy(&value, &bits, sizeof value);                                               \
        const dcommi_norm_f64_##W v = __builtin_convertvector(value, dcommi_norm_f64_##W); \
        s[K] += v * v;                                                                     \
    } while (0)

#define DCOMMI_NORM_STEP_8(AT)     \
    do {                           \
        DCOMMI_NORM_ADD(8, AT, 0); \
        DCOMMI_NORM_ADD(8, AT, 1); \
        DCOMMI_NORM_ADD(8, AT, 2); \
        DCOMMI_NORM_ADD(8, AT, 3); \
    } while (0)
#define DCOMMI_NORM_STEP_4(AT)     \
    do {                           \
        DCOMMI_NORM_ADD(4, AT, 0); \
        DCOMMI_NORM_ADD(4, AT, 1); \
        DCOMMI_NORM_ADD(4, AT, 2); \
        DCOMMI_NORM_ADD(4, AT, 3); \
        DCOMMI_NORM_ADD(4, AT, 4); \
        DCOMMI_NORM_ADD(4, AT, 5); \
        DCOMMI_NORM_ADD(4, AT, 6); \
        DCOMMI_NORM_ADD(4, AT, 7); \
    } while (0)

#define DCOMMI_NORM_SUM_8(R)               \
    do {                                   \
        R = (s[0] + s[2]) + (s[1] + s[3]); \
        lane[0] = R[0] + R[4];             \
        lane[1] = R[1] + R[5];             \
        lane[2] = R[2] + R[6];             \
        lane[3] = R[3] + R[7];             \
    } while (0)
#define DCOMMI_NORM_SUM_4(R)                                                   \
    do {                                                                       \
        R = ((s[0] + s[4]) + (s[2] + s[6])) + ((s[1] + s[5]) + (s[3] + s[7])); \
        memcpy(lane, &R, sizeof R);                                            \
    } while (0)

/* A row, or the n elements of it that are there. */
#define DCOMMI_NORM_ROW_OF(NAME, TARGET, W)                               \
    TARGET static double dcommi_norm_row_##NAME(const float *x, size_t n) \
    {                                                                     \
        dcommi_norm_f64_##W s[DCOMMI_NORM_LANES / (W)] = {{0}}, all;      \
        double lane[4];                                                   \
        size_t i = 0;                                                     \
        for (; i + DCOMMI_NORM_LANES <= n; i += DCOMMI_NORM_LANES) {      \
            DCOMMI_NORM_STEP_##W(x + i);                                  \
        }                                                                 \
        if (i < n) {                                                      \
            float rest[DCOMMI_NORM_LANES] = {0};                          \
            memcpy(rest, x + i, (n - i) * sizeof *rest);                  \
            DCOMMI_NORM_STEP_##W(rest);                                   \
        }                                                                 \
        DCOMMI_NORM_SUM_##W(all);                                         \
        return (lane[0] + lane[2]) + (lane[1] + lane[3]);                 \
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
        for (size_t far = DCOMMI_NORM_LANES / 2; far > 0; far /= 2) {
            for (size_t l = 0; l < far; l++) {
                lane[r][l] += lane[r][l + far];
            }
        }
        sum += lane[r][0];
    }
    return sum;
}

#endif
