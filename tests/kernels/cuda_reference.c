/* cuda_reference.c - the CPU's folds, sums and steps of powersgd under public names, for
 * tests/kernels/cuda_kernels.cu to compare with. */
#define _GNU_SOURCE
#define DCOMM_API static
#pragma GCC diagnostic ignored "-Wunused-function"
#include "../../include/dcomm/impl/codec/powersgd.h"
#include "../../include/dcomm/impl/base/convert.h"
#include "../../include/dcomm/impl/device/host.h"
#include "../../kernels/cpu/norm.h"
#include "../../kernels/cpu/powersgd.h"

int cuda_reference_reduce(void *dst, const void *const *src, size_t nsrc, size_t count, int dtype,
                          int op, int64_t divisor);
void cuda_reference_scale(void *dst, const void *src, size_t count, int dtype, double factor);
void cuda_reference_to_f32(float *dst, const void *src, size_t count, int dtype, double factor);
void cuda_reference_from_f32(void *dst, const float *src, size_t count, int dtype);
double cuda_reference_squares(const float *x, size_t count);
int cuda_reference_powersgd(size_t count, size_t cols, size_t rank, const float *x, float *p,
                            float *q, float *sent);
void cuda_reference_powersgd_start(size_t cols, size_t rank, const dcomm_codec_key *key, float *q);

int cuda_reference_reduce(void *dst, const void *const *src, size_t nsrc, size_t count, int dtype,
                          int op, int64_t divisor)
{
    return dcommi_host_reduce(dst, src, nsrc, count, (dcomm_dtype)dtype, (dcomm_op)op, divisor);
}

void cuda_reference_scale(void *dst, const void *src, size_t count, int dtype, double factor)
{
    dcommi_host_scale(dst, src, count, (dcomm_dtype)dtype, factor);
}

void cuda_reference_to_f32(float *dst, const void *src, size_t count, int dtype, double factor)
{
    dcommi_to_f32(dst, src, count, (dcomm_dtype)dtype, factor);
}

void cuda_reference_from_f32(void *dst, const float *src, size_t count, int dtype)
{
    dcommi_from_f32(dst, src, count, (dcomm_dtype)dtype);
}

double cuda_reference_squares(const float *x, size_t count)
{
    return dcommi_norm_squares(x, count);
}

void cuda_reference_powersgd_start(size_t cols, size_t rank, const dcomm_codec_key *key, float *q)
{
    const dcommi_matrix m = {cols, 1, cols, rank};
    dcommi_powersgd_start(&m, key, q);
}

/* Run one turn, which starts with the given q. Return 0 if out of memory. */
int cuda_reference_powersgd(size_t count, size_t cols, size_t rank, const float *x, float *p,
                            float *q, float *sent)
{
    const dcommi_matrix m = {count, (count + cols - 1) / cols, cols, rank};
    double *wide = malloc(rank * dcommi_matrix_column_bytes(cols));
    if (wide == NULL) {
        return 0;
    }
    dcommi_matrix_times(&m, x, q, p, wide);
    dcommi_matrix_orthonormal(p, m.rows, rank);
    dcommi_matrix_transposed_times(&m, x, p, q, wide);
    dcommi_matrix_product(&m, p, q, sent, 0);
    free(wide);
    return 1;
}
