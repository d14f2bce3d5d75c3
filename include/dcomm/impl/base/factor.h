/* factor.h - the factor of a pre-multiplied sum. */
#ifndef DCOMMI_FACTOR_H
#define DCOMMI_FACTOR_H

#include "convert.h"

/* A plan that begins with a multiplication has it in its first words. */
typedef struct dcommi_factor {
    double value;
    uint64_t whole; /* 64-bit integer dtypes: the factor as an integer, 0 if it is not one */
} dcommi_factor;

/* Return true if elements are multiplied by the integer `whole`. Such a product is exact and wraps
 * around. */
static inline bool dcommi_factor_whole(const dcommi_factor *f, dcomm_dtype dtype)
{
    return dtype == DCOMM_I64   ? (double)(int64_t)f->whole == f->value
           : dtype == DCOMM_U64 ? (double)f->whole == f->value
                                : false;
}

/* Make a factor from an f64. */
static dcommi_factor dcommi_factor_plain(double value, dcomm_dtype dtype)
{
    const double most = 9223372036854775808.0; /* 2^63 */
    dcommi_factor f = {value, 0};
    if (dtype == DCOMM_I64 && value >= -most && value < most) {
        f.whole = (uint64_t)(int64_t)value;
    } else if (dtype == DCOMM_U64 && value >= 0 && value < 2 * most) {
        f.whole = (uint64_t)value;
    }
    return f;
}

/* Make a factor from one value of `dtype`. */
static dcommi_factor dcommi_factor_read(const void *p, dcomm_dtype dtype)
{
    const size_t size = dcomm_dtype_size(dtype);
    uint64_t bits = 0;
    memcpy(&bits, p, size < sizeof bits ? size : sizeof bits); /* low bytes come first */
    switch (dtype) {
    case DCOMM_F64:
    case DCOMM_F32:
    case DCOMM_F16:
    case DCOMM_BF16:
        return (dcommi_factor){dcommi_load_real(p, 0, dtype), 0};
    case DCOMM_I8:
        return (dcommi_factor){(int8_t)bits, 0};
    case DCOMM_I32:
        return (dcommi_factor){(int32_t)bits, 0};
    case DCOMM_I64:
        return (dcommi_factor){(double)(int64_t)bits, bits};
    default:
        return (dcommi_factor){(double)bits, dtype == DCOMM_U64 ? bits : 0};
    }
}

#endif
