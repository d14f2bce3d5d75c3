/* math.h - arithmetic on one element: conversions, rounding, operators. C, C++ and CUDA alike.
 *
 * Decisions look at the bits, and arithmetic is single IEEE operations, never a product and a sum
 * together. So the compiler's floating-point flags cannot change a result. Every NaN that an
 * operator makes or passes on is the canonical quiet NaN (0x7fc00000 and its like). Back ends
 * disagree about a NaN's payload and sign. */
#ifndef DCOMMI_MATH_H
#define DCOMMI_MATH_H

#include <stdint.h>
#include <string.h>

#ifdef __CUDACC__
#define DCOMMI_HD __host__ __device__
#else
#define DCOMMI_HD
#endif

#define DCOMMI_F32_NAN 0x7fc00000u
#define DCOMMI_F64_NAN 0x7ff8000000000000u

/* ---- bits ---- */

DCOMMI_HD static inline uint32_t dcommi_f32_bits(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

DCOMMI_HD static inline float dcommi_f32_from_bits(uint32_t bits)
{
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

DCOMMI_HD static inline uint64_t dcommi_f64_bits(double x)
{
    uint64_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

DCOMMI_HD static inline double dcommi_f64_from_bits(uint64_t bits)
{
    double x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

DCOMMI_HD static inline int dcommi_f32_isnan(uint32_t bits)
{
    return (bits & 0x7fffffffu) > 0x7f800000u;
}

DCOMMI_HD static inline int dcommi_f64_isnan(uint64_t bits)
{
    return (bits & 0x7fffffffffffffffu) > 0x7ff0000000000000u;
}

/* Return `size`, which is not negative, with the sign of x. */
DCOMMI_HD static inline float dcommi_f32_signed(float size, float x)
{
    return dcommi_f32_from_bits(dcommi_f32_bits(size) | (dcommi_f32_bits(x) & 0x80000000u));
}

/* The rule of error feedback for a number that is not finite: an infinity becomes the largest
 * number of its sign, a NaN the largest positive one. The sign of a NaN tells nothing: on NVIDIA
 * it is always positive, on an x86 it is an operand's. */
DCOMMI_HD static inline float dcommi_f32_bounded(float x)
{
    uint32_t bits = dcommi_f32_bits(x);
    uint32_t most = bits == 0xff800000u ? 0xff7fffffu : 0x7f7fffffu;
    return dcommi_f32_from_bits((bits & 0x7f800000u) == 0x7f800000u ? most : bits);
}

DCOMMI_HD static inline float dcommi_f32_canonical(float x)
{
    uint32_t bits = dcommi_f32_bits(x);
    return dcommi_f32_from_bits(dcommi_f32_isnan(bits) ? DCOMMI_F32_NAN : bits);
}

DCOMMI_HD static inline double dcommi_f64_canonical(double x)
{
    uint64_t bits = dcommi_f64_bits(x);
    return dcommi_f64_from_bits(dcommi_f64_isnan(bits) ? DCOMMI_F64_NAN : bits);
}

/* ---- 16-bit floats. To f32: exact. From f32: to nearest, ties to even; beyond the largest:
 * infinity. A NaN keeps its sign and the payload bits that fit, and becomes quiet. ---- */

DCOMMI_HD static inline float dcommi_f16_to_f32(uint16_t h)
{
    uint32_t sign = (uint32_t)(h & 0x8000u) << 16;
    uint32_t a = h & 0x7fffu;
    uint32_t small = dcommi_f32_bits((float)(int32_t)a * 5.9604644775390625e-8f); /* 2^-24: exact */
    uint32_t bits = (a << 13) + (a >= 0x7c00u ? 224u << 23 : 112u << 23);
    bits = a < 0x400u ? small : bits;
    bits |= a > 0x7c00u ? 0x400000u : 0;
    return dcommi_f32_from_bits(sign | bits);
}

/* Compute every case and select one, so that plain loops vectorize. */
DCOMMI_HD static inline uint16_t dcommi_f32_to_f16(float x)
{
    uint32_t bits = dcommi_f32_bits(x);
    uint32_t sign = (bits >> 16) & 0x8000u;
    uint32_t a = bits & 0x7fffffffu;
    uint32_t h = (a - 0x38000000u + 0xfffu + ((a >> 13) & 1u)) >> 13;
    /* Denormals are multiples of 2^-24, the last place of 0.5f, so this addition rounds them. */
    uint32_t small = dcommi_f32_bits(dcommi_f32_from_bits(a) + 0.5f) - 0x3f000000u;
    h = a < 0x38800000u ? small : h;
    h = a >= 0x477ff000u ? 0x7c00u : h; /* 65520 is halfway to 2^16 */
    h = a > 0x7f800000u ? 0x7e00u | ((a >> 13) & 0x3ffu) : h;
    return (uint16_t)(sign | h);
}

DCOMMI_HD static inline float dcommi_bf16_to_f32(uint16_t h)
{
    return dcommi_f32_from_bits((uint32_t)h << 16);
}

DCOMMI_HD static inline uint16_t dcommi_f32_to_bf16(float x)
{
    uint32_t bits = dcommi_f32_bits(x);
    uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
    return (uint16_t)(dcommi_f32_isnan(bits) ? (bits >> 16) | 0x40u : rounded);
}

/* ---- operators. sum, prod: one IEEE operation; min, max: a NaN operand gives NaN, -0 < +0 ---- */

/* Return a key whose signed order is the order of the numbers, -0 below +0. */
DCOMMI_HD static inline int32_t dcommi_f32_key(uint32_t bits)
{
    return (int32_t)(bits ^ ((0u - (bits >> 31)) & 0x7fffffffu));
}

DCOMMI_HD static inline int64_t dcommi_f64_key(uint64_t bits)
{
    return (int64_t)(bits ^ (((uint64_t)0 - (bits >> 63)) & 0x7fffffffffffffffu));
}

DCOMMI_HD static inline float dcommi_f32_min(float x, float y)
{
    uint32_t a = dcommi_f32_bits(x), b = dcommi_f32_bits(y);
    uint32_t least = dcommi_f32_key(a) <= dcommi_f32_key(b) ? a : b;
    int nan = dcommi_f32_isnan(a) | dcommi_f32_isnan(b);
    return dcommi_f32_from_bits(nan ? DCOMMI_F32_NAN : least);
}

DCOMMI_HD static inline float dcommi_f32_max(float x, float y)
{
    uint32_t a = dcommi_f32_bits(x), b = dcommi_f32_bits(y);
    uint32_t most = dcommi_f32_key(a) >= dcommi_f32_key(b) ? a : b;
    int nan = dcommi_f32_isnan(a) | dcommi_f32_isnan(b);
    return dcommi_f32_from_bits(nan ? DCOMMI_F32_NAN : most);
}

DCOMMI_HD static inline double dcommi_f64_min(double x, double y)
{
    uint64_t a = dcommi_f64_bits(x), b = dcommi_f64_bits(y);
    uint64_t least = dcommi_f64_key(a) <= dcommi_f64_key(b) ? a : b;
    int nan = dcommi_f64_isnan(a) | dcommi_f64_isnan(b);
    return dcommi_f64_from_bits(nan ? DCOMMI_F64_NAN : least);
}

DCOMMI_HD static inline double dcommi_f64_max(double x, double y)
{
    uint64_t a = dcommi_f64_bits(x), b = dcommi_f64_bits(y);
    uint64_t most = dcommi_f64_key(a) >= dcommi_f64_key(b) ? a : b;
    int nan = dcommi_f64_isnan(a) | dcommi_f64_isnan(b);
    return dcommi_f64_from_bits(nan ? DCOMMI_F64_NAN : most);
}

/* Finish a fold: divide if it is an average. */
DCOMMI_HD static inline float dcommi_f32_finish(float x, double divisor)
{
    return dcommi_f32_canonical(divisor > 1 ? x / (float)divisor : x);
}

DCOMMI_HD static inline double dcommi_f64_finish(double x, double divisor)
{
    return dcommi_f64_canonical(divisor > 1 ? x / divisor : x);
}

DCOMMI_HD static inline float dcommi_f64_to_f32(double x)
{
    return dcommi_f32_canonical((float)x);
}

DCOMMI_HD static inline float dcommi_f32_scale(float x, double factor)
{
    return dcommi_f32_canonical(x * (float)factor);
}

DCOMMI_HD static inline double dcommi_f64_scale(double x, double factor)
{
    return dcommi_f64_canonical(x * factor);
}

/* ---- integers: wrap around in their width ---- */

/* Truncate the product into [least, most]; NaN gives 0. `past` is most + 1, a power of two, which
 * f64 can represent even if it cannot represent `most`. */
DCOMMI_HD static inline int64_t dcommi_scale_signed(double product, int64_t least, int64_t most,
                                                    double past)
{
    if (dcommi_f64_isnan(dcommi_f64_bits(product))) {
        return 0;
    }
    return product >= past ? most : product <= -past ? least : (int64_t)product;
}

DCOMMI_HD static inline uint64_t dcommi_scale_unsigned(double product, uint64_t most, double past)
{
    if (!(product > 0)) {
        return 0;
    }
    return product >= past ? most : (uint64_t)product;
}

#endif
