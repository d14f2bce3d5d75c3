/* kernels.h - the kernels of COMPUTE steps in the library's own plans. Devices have their own
 * versions (device/steps_device.h), which the engine finds by these functions' addresses. */
#ifndef DCOMMI_KERNELS_H
#define DCOMMI_KERNELS_H

#include "../base/convert.h"
#include "../base/factor.h"
#include "../device/device.h"

/* Compute dst <- factor * src. */
static dcomm_status dcommi_kernel_scale(void *user, void *dst, size_t dst_len,
                                        const void *const *src, const size_t *src_len, size_t nsrc)
{
    dcomm_dtype dtype = (dcomm_dtype)(uintptr_t)user;
    dcommi_factor factor;
    (void)nsrc;
    if (src_len[0] != dst_len || src_len[1] != sizeof factor) {
        return DCOMM_ERR_PLAN;
    }
    memcpy(&factor, src[1], sizeof factor);
    const size_t element = dcomm_dtype_size(dtype);
    if (!dcommi_factor_whole(&factor, dtype)) {
        dcommi_host_scale(dst, src[0], dst_len / element, dtype, factor.value);
        return DCOMM_OK;
    }
    for (size_t i = 0; i < dst_len; i += element) {
        uint64_t x = 0;
        memcpy(&x, (const char *)src[0] + i, element); /* low bytes come first */
        x *= factor.whole;
        memcpy((char *)dst + i, &x, element);
    }
    return DCOMM_OK;
}

/* Compute dst <- factor * src, where dst is f32. */
static dcomm_status dcommi_kernel_widen(void *user, void *dst, size_t dst_len,
                                        const void *const *src, const size_t *src_len, size_t nsrc)
{
    const dcomm_dtype dtype = (dcomm_dtype)(uintptr_t)user;
    const size_t count = dst_len / sizeof(float);
    double factor;
    if (nsrc != 2 || src_len[0] != count * dcomm_dtype_size(dtype) || src_len[1] != sizeof factor) {
        return DCOMM_ERR_PLAN;
    }
    memcpy(&factor, src[1], sizeof factor);
    dcommi_to_f32(dst, src[0], count, dtype, factor);
    return DCOMM_OK;
}

/* Convert dst <- src, where src is f32. */
static dcomm_status dcommi_kernel_narrow(void *user, void *dst, size_t dst_len,
                                         const void *const *src, const size_t *src_len, size_t nsrc)
{
    const dcomm_dtype dtype = (dcomm_dtype)(uintptr_t)user;
    const size_t count = dst_len / dcomm_dtype_size(dtype);
    if (nsrc != 1 || src_len[0] != count * sizeof(float)) {
        return DCOMM_ERR_PLAN;
    }
    dcommi_from_f32(dst, src[0], count, dtype);
    return DCOMM_OK;
}

#endif
