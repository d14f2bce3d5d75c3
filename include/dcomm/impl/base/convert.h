/* convert.h - converts floats of any width to f32 and back, one element at a time, at any
 * alignment. A NaN becomes the canonical NaN (kernels/math.h), as it does on devices. */
#ifndef DCOMMI_CONVERT_H
#define DCOMMI_CONVERT_H

#include "../../base.h"
#include "load.h"

/* Return element `i` of an array of floats as f64. */
static inline double dcommi_load_real(const void *x, size_t i, dcomm_dtype dtype)
{
    return dtype == DCOMM_F64   ? dcommi_load_double(x, i)
           : dtype == DCOMM_F16 ? (double)dcommi_load_f16(x, i)
           : dtype == DCOMM_F32 ? (double)dcommi_load_f32(x, i)
                                : (double)dcommi_load_bf16(x, i);
}

/* Set `dst` to factor * src, multiplied in f64, rounded to f32. A factor of 1 changes nothing. */
static void dcommi_to_f32(float *dst, const void *src, size_t count, dcomm_dtype dtype,
                          double factor)
{
    for (size_t i = 0; i < count; i++) {
        dst[i] = dcommi_f64_to_f32(dcommi_load_real(src, i, dtype) * factor);
    }
}

/* Convert f32 to `dtype`, rounded to nearest even. */
static void dcommi_from_f32(void *dst, const float *src, size_t count, dcomm_dtype dtype)
{
    for (size_t i = 0; i < count; i++) {
        const float x = dcommi_f32_canonical(src[i]);
        if (dtype == DCOMM_F64) {
            const double wide = dcommi_f64_canonical((double)x);
            memcpy((char *)dst + 8 * i, &wide, sizeof wide);
        } else if (dtype == DCOMM_F32) {
            dcommi_store_f32(dst, i, x);
        } else if (dtype == DCOMM_F16) {
            dcommi_store_f16(dst, i, x);
        } else {
            dcommi_store_bf16(dst, i, x);
        }
    }
}

#endif
