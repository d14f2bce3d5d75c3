/* narrow.c - arrays of floats in 16 bits. */
#include "narrow.h"

#include <string.h>

static uint32_t bits_of(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

static float float_of(uint32_t bits)
{
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

static uint16_t to_bf16(float x)
{
    uint32_t bits = bits_of(x);
    if ((bits & 0x7fffffffu) > 0x7f800000u) { /* NaN: do not round it to infinity */
        return (uint16_t)(bits >> 16 | 0x40u);
    }
    return (uint16_t)((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}

static uint16_t to_f16(float x)
{
    uint32_t bits = bits_of(x), sign = bits >> 16 & 0x8000u, size = bits & 0x7fffffffu;
    if (size > 0x7f800000u) {
        return (uint16_t)(sign | 0x7e00u); /* NaN */
    }
    if (size >= 0x477ff000u) {
        return (uint16_t)(sign | 0x7c00u); /* from 65520 on: infinite */
    }
    if (size < 0x38800000u) { /* denormal: the addition rounds to a multiple of 2^-24 */
        return (uint16_t)(sign | (bits_of(float_of(size) + 0.5f) - bits_of(0.5f)));
    }
    return (uint16_t)(sign | ((size - (112u << 23) + 0xfffu + (size >> 13 & 1u)) >> 13));
}

static float from_f16(uint16_t h)
{
    uint32_t sign = (h & 0x8000u) << 16, size = h & 0x7fffu;
    if (size >= 0x7c00u) {
        return float_of(sign | 0x7f800000u | (size & 0x3ffu) << 13);
    }
    float x = size < 0x400u ? (float)size * 0x1p-24f : float_of((size << 13) + (112u << 23));
    return sign != 0 ? -x : x;
}

void narrow_from(dcomm_dtype dtype, const float *x, size_t n, uint16_t *to)
{
    for (size_t i = 0; i < n; i++) {
        to[i] = dtype == DCOMM_F16 ? to_f16(x[i]) : to_bf16(x[i]);
    }
}

void narrow_to(dcomm_dtype dtype, const uint16_t *from, size_t n, float factor, float *x)
{
    for (size_t i = 0; i < n; i++) {
        float wide = dtype == DCOMM_F16 ? from_f16(from[i]) : float_of((uint32_t)from[i] << 16);
        x[i] = wide * factor;
    }
}
