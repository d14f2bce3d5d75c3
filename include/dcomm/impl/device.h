/* device.h - transforms of bytes by memory kind. The host kind is here; other kinds come with
 * their own table. The device layer knows no rank. */
#ifndef DCOMMI_DEVICE_H
#define DCOMMI_DEVICE_H

#include "util.h"

/* dst[i] = fold over s of src[s][i], from s = 0 up, for `count` elements; nsrc >= 1. dst may be
 * exactly equal to any src, or disjoint from it. 16-bit floats fold in f32 and round once. With
 * divisor > 1 the fold is then divided by it (DCOMM_AVG). op is DCOMM_SUM, PROD, MIN, MAX, AVG,
 * PREMUL_SUM (both like SUM) or a caller's own. Any alignment. */
static dcomm_status dcommi_host_reduce(void *dst, const void *const *src, size_t nsrc, size_t count,
                                       dcomm_dtype dtype, dcomm_op op, int64_t divisor);
/* The same; the result goes to `also` too (NULL: not). `past`, `also_past`: past the caches, where
 * alignment allows. */
static dcomm_status dcommi_host_reduce_both(void *dst, bool past, void *also, bool also_past,
                                            const void *const *src, size_t nsrc, size_t count,
                                            dcomm_dtype dtype, dcomm_op op, int64_t divisor);
/* dst[i] = factor * src[i], in f64 for f64, in f32 for other floats, and in the integer type after
 * rounding of the f64 product towards zero; dst may equal src. */
static void dcommi_host_scale(void *dst, const void *src, size_t count, dcomm_dtype dtype,
                              double factor);
/* memcpy for long, cold copies (non-temporal where that is faster). */
static void dcommi_host_copy(void *dst, const void *src, size_t len);
/* A copy by plain stores, whatever the length. */
static void dcommi_host_copy_plain(void *dst, const void *src, size_t len);
/* A copy that is not to stay in the caches. */
static void dcommi_host_copy_past(void *dst, const void *src, size_t len);

#endif
