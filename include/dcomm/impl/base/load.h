/* load.h - loads and stores elements at any alignment. A gradient in a bucket may follow gradients
 * of other types, and rows have any length. */
#ifndef DCOMMI_LOAD_H
#define DCOMMI_LOAD_H

#include "../../../../kernels/math.h"

#include <stddef.h>

#define DCOMMI_LOAD(TYPE)                                                 \
    static inline TYPE dcommi_load_##TYPE(const void *x, size_t i)        \
    {                                                                     \
        TYPE value;                                                       \
        memcpy(&value, (const char *)x + i * sizeof value, sizeof value); \
        return value;                                                     \
    }
DCOMMI_LOAD(uint16_t)
DCOMMI_LOAD(uint32_t)
DCOMMI_LOAD(uint64_t)
DCOMMI_LOAD(float)
DCOMMI_LOAD(double)
#undef DCOMMI_LOAD

/* ---- as f32; stores round to nearest even ---- */

static inline float dcommi_load_f32(const void *x, size_t i)
{
    return dcommi_load_float(x, i);
}

static inline float dcommi_load_f16(const void *x, size_t i)
{
    return dcommi_f16_to_f32(dcommi_load_uint16_t(x, i));
}

static inline float dcommi_load_bf16(const void *x, size_t i)
{
    return dcommi_bf16_to_f32(dcommi_load_uint16_t(x, i));
}

static inline void dcommi_store_f32(void *x, size_t i, float value)
{
    memcpy((char *)x + 4 * i, &value, sizeof value);
}

static inline void dcommi_store_f16(void *x, size_t i, float value)
{
    uint16_t h = dcommi_f32_to_f16(value);
    memcpy((char *)x + 2 * i, &h, sizeof h);
}

static inline void dcommi_store_bf16(void *x, size_t i, float value)
{
    uint16_t h = dcommi_f32_to_bf16(value);
    memcpy((char *)x + 2 * i, &h, sizeof h);
}

#endif
