/* factor.h - the factor of a pre-multiplied sum. */
#ifndef DCOMMI_FACTOR_H
#define DCOMMI_FACTOR_H

#include "convert.h"

/* A plan that begins with a multiplication has it in its first words. */
typedef struct dcommi_factor {
    double value;
    uint64_t whole; /* integer dtypes: the factor as an integer, 0 if it is not one */
} dcommi_factor;

static inline bool dcommi_factor_signed(dcomm_dtype dtype)
{
    return dtype == DCOMM_I8 || dtype == DCOMM_I32 || dtype == DCOMM_I64;
}

static inline bool dcommi_factor_unsigned(dcomm_dtype dtype)
{
    return dtype == DCOMM_U8 || dtype == DCOMM_U32 || dtype == DCOMM_U64;
}

/* Return true if elements are multiplied by the integer `whole`. Such a product is exact and wraps
 * around, as NCCL's. */
static inline bool dcommi_factor_whole(const dcommi_factor *f, dcomm_dtype dtype)
{
    return dcommi_factor_signed(dtype)     ? (double)(int64_t)f->whole == f->value
           : dcommi_factor_unsigned(dtype) ? (double)f->whole == f->value
                                           : false;
}

/* Make a factor from an f64. */
static dcommi_factor dcommi_factor_plain(double value, dcomm_dtype dtype)
{
    const double most = 9223372036854775808.0; /* 2^63 */
    dcommi_factor f = {value, 0};
    if (dcommi_factor_signed(dtype) && value >= -most && value < most) {
        f.whole = (uint64_t)(int64_t)value;
    } else if (dcommi_factor_unsigned(dtype) && value >= 0 && value < 2 * most) {
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
    bits = dtype == DCOMM_I8    ? (uint64_t)(int8_t)bits
           : dtype == DCOMM_I32 ? (uint64_t)(int32_t)bits
                                : bits;
    return dcommi_factor_signed(dtype)     ? (dcommi_factor){(double)(int64_t)bits, bits}
           : dcommi_factor_unsigned(dtype) ? (dcommi_factor){(double)bits, bits}
                                           : (dcommi_factor){dcommi_load_real(p, 0, dtype), 0};
}

#endif
