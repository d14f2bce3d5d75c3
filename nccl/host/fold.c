/* fold.c - the reductions of dcomm's kernels, by the CPU's folds. The folds are private to the
 * implementation, so this file has its own copy. */
#define _GNU_SOURCE
#define DCOMM_API static
#pragma GCC diagnostic ignored "-Wunused-function"
#include "dcomm/impl/base/convert.h"
#include "dcomm/impl/device/host.h"
#include "dcomm/impl/base/scan.h"
#include "kernels.h"

bool cuhost_fold(void *dst, const void *const *src, size_t nsrc, size_t count, int dtype, int op,
                 int64_t divisor)
{
    return dcommi_host_reduce(dst, src, nsrc, count, (dcomm_dtype)dtype, (dcomm_op)op, divisor) ==
           DCOMM_OK;
}

void cuhost_scale(void *dst, const void *src, size_t count, int dtype, double factor)
{
    dcommi_host_scale(dst, src, count, (dcomm_dtype)dtype, factor);
}

void cuhost_to_f32(float *dst, const void *src, size_t count, int dtype, double factor)
{
    dcommi_to_f32(dst, src, count, (dcomm_dtype)dtype, factor);
}

void cuhost_from_f32(void *dst, const float *src, size_t count, int dtype)
{
    dcommi_from_f32(dst, src, count, (dcomm_dtype)dtype);
}

uint64_t cuhost_look(const void *x, size_t count, int dtype, double *value, double *squares)
{
    const size_t at = dcommi_scan(x, count, (dcomm_dtype)dtype);
    *value = at < count ? dcommi_load_real(x, at, (dcomm_dtype)dtype) : 0;
    *squares = dcommi_squares(x, count, (dcomm_dtype)dtype);
    return at < count ? at : UINT64_MAX;
}
