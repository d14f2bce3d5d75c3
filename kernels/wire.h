/* wire.h - packed formats. C, C++ and CUDA alike.
 *
 * Codes of 1, 2, 4 or 8 bits form lines of 64 bytes, each sixteen little-endian 32-bit words. Code
 * k of word i (from the low end) belongs to element 16k+i. Codes that do not fill a line follow
 * one another: code e at bit e*bits. Numbers of 8 and 16 bits are in order. Steps (one f32 for
 * each bucket) follow the codes at a multiple of four bytes; bits between are zero.
 *
 * A step has 16 significant bits, so that its product with a code of up to 8 bits is exact. Then
 * fusing the product with an addition does not change the result. */
#ifndef DCOMMI_WIRE_H
#define DCOMMI_WIRE_H

#include "math.h"

#include <stddef.h>

#define DCOMMI_WIRE_LINE 64
#define DCOMMI_WIRE_STAGE 512 /* elements: the longest line */

/* The formats of codec_loops.h. */
typedef enum dcommi_format {
    DCOMMI_FORMAT_Q1 = 0, /* +step or -step */
    DCOMMI_FORMAT_Q2 = 1, /* code * step; the lowest code does not occur */
    DCOMMI_FORMAT_Q4 = 2,
    DCOMMI_FORMAT_Q8 = 3,
    DCOMMI_FORMAT_SIGN = 4, /* step with the sign in the bit */
    DCOMMI_FORMAT_E4M3 = 5, /* number * step */
    DCOMMI_FORMAT_E5M2 = 6,
    DCOMMI_FORMAT_COUNT = 7
} dcommi_format;

/* A float of few bits: number of fraction bits, difference of the exponent bias to f32 (as f32
 * bits), smallest normal number, one over the smallest number, largest code. */
typedef struct dcommi_mini {
    int fraction;
    uint32_t rebias;
    float least, units;
    uint32_t most;
} dcommi_mini;

static const dcommi_mini dcommi_mini_f16 = {10, 0x38000000u, 0x1p-14f, 0x1p24f, 0x7bff};
static const dcommi_mini dcommi_mini_e4m3 = {3, 0x3c000000u, 0x1p-6f, 0x1p9f, 0x7e};
static const dcommi_mini dcommi_mini_e5m2 = {2, 0x38000000u, 0x1p-14f, 0x1p16f, 0x7b};

#define DCOMMI_STEP_NAN DCOMMI_F32_NAN /* step of a bucket that decodes as NaN */
/* A bucket with a maximum below LEAST becomes zero. Then neither the reciprocal of a step nor its
 * products are infinite or denormal. Inputs are clipped to LARGEST, so that no step times a code,
 * and no residual, is infinite. */
#define DCOMMI_WIRE_LEAST 0x1p-80f
#define DCOMMI_WIRE_LARGEST 0x1p127f

static const unsigned char dcommi_format_bits[DCOMMI_FORMAT_COUNT] = {1, 2, 4, 8, 1, 8, 8};
/* The largest number that a code of each format represents, in steps. */
static const float dcommi_format_most[DCOMMI_FORMAT_COUNT] = {1, 1, 7, 127, 1, 448, 57344};

/* Return the bytes of the codes of `count` elements, a multiple of four. count * bits must not
 * overflow. */
DCOMMI_HD static inline size_t dcommi_wire_codes(size_t count, unsigned bits)
{
    return (count / 8 * bits + (count % 8 * bits + 7) / 8 + 3) & ~(size_t)3;
}

/* Return largest / most, rounded up to 16 significant bits; 0 if `largest` is too small. */
DCOMMI_HD static inline float dcommi_wire_step(float largest, float most)
{
    if (!(largest >= DCOMMI_WIRE_LEAST)) {
        return 0;
    }
    uint32_t bits = dcommi_f32_bits(largest / most);
    return dcommi_f32_from_bits((bits + 0xffu) & ~0xffu);
}

/* Return true if an encoder can have written this step; `largest` is the largest step. */
DCOMMI_HD static inline int dcommi_wire_step_within(float step, float largest, int exact)
{
    uint32_t bits = dcommi_f32_bits(step);
    return bits == 0 || (bits >= dcommi_f32_bits(0x1p-98f) && bits <= dcommi_f32_bits(largest) &&
                         (!exact || (bits & 0xffu) == 0));
}

/* Return the code of element e in a line. */
DCOMMI_HD static inline unsigned dcommi_wire_get(const unsigned char *line, unsigned e,
                                                 unsigned bits)
{
    unsigned bit = e / 16 * bits;
    return (line[4 * (e % 16) + bit / 8] >> (bit % 8)) & ((1u << bits) - 1);
}

/* Set the code of element e in a line, where it was zero. */
DCOMMI_HD static inline void dcommi_wire_put(unsigned char *line, unsigned e, unsigned bits,
                                             unsigned code)
{
    unsigned bit = e / 16 * bits;
    line[4 * (e % 16) + bit / 8] |= (unsigned char)(code << (bit % 8));
}

#endif
