/* kernels.h - shared by dcomm's kernels in the host stand-in: the functions of fold.c and
 * residual.c, and the launch. */
#ifndef CUDA_HOST_KERNELS_H
#define CUDA_HOST_KERNELS_H

#include "dcomm.h"
#include "host.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

bool cuhost_fold(void *dst, const void *const *src, size_t nsrc, size_t count, int dtype, int op,
                 int64_t divisor);
void cuhost_scale(void *dst, const void *src, size_t count, int dtype, double factor);
void cuhost_to_f32(float *dst, const void *src, size_t count, int dtype, double factor);
void cuhost_from_f32(void *dst, const float *src, size_t count, int dtype);
/* Return the index of the first element that is not finite, or UINT64_MAX. *value: that element;
 * *squares: the sum of squares. */
uint64_t cuhost_look(const void *x, size_t count, int dtype, double *value, double *squares);

/* The arguments of a kernel. This library may dereference the pointers. */
typedef struct cuhost_job {
    const dcomm_codec *codec;
    const float *x, *residual;
    float *next, *out;
    void *wire, *workspace;
    dcomm_cuda_report *report;
    dcomm_cuda_ledger *ledger;
    dcomm_cuda_sight *sight;
    dcomm_cuda_clip *clip;
    dcomm_codec_key key;
    size_t count, capacity, n;
    int dtype, op;
    int64_t divisor;
    double factor;
    bool drop, add;
    bool bad; /* the device cannot access one of the pointers */
    const void *at[DCOMM_CUDA_OPERANDS];
    size_t bytes[DCOMM_CUDA_OPERANDS];
} cuhost_job;

__attribute__((format(printf, 3, 4))) dcomm_status
cuhost_fail(dcomm_status status, const char *call, const char *format, ...);
/* Translate a pointer that the kernel dereferences. As on a GPU, a bad pointer makes the kernel
 * fail, not the launch. */
void *cuhost_reach_of(cuhost_job *j, const void *p, size_t bytes);
/* Set n operands, of bytes[i] bytes each; if bytes is NULL, of `each` bytes. */
dcomm_status cuhost_operands(cuhost_job *j, const char *call, const void *const *at,
                             const size_t *bytes, size_t each, size_t n);
dcomm_status cuhost_run(const char *call, const cuhost_job *j, cuhost_run_fn run, void *stream);

/* Launch on a stream of the current device; *job is copied. */
dcomm_status cuhost_launch(const char *call, const void *job, size_t bytes, cuhost_run_fn run,
                           void *stream);

/* Do dcomm_cuda_ledger_compare. */
void cuhost_compare(dcomm_cuda_ledger *to, const float *x, const float *y, const float *next,
                    size_t count);

/* Number of elements clipped and not finite, and the first that is not finite. */
typedef struct cuhost_seen {
    size_t clipped, nonfinite, first;
} cuhost_seen;

cuhost_seen cuhost_feedback(int op, void *dst, const void *a, float factor, const float *b,
                            size_t count);
/* Return the factor; *squares becomes the sum of squares. */
float cuhost_clip(const float *g, size_t count, double most, double *squares);
void cuhost_clipped(float *u, const float *g, float clip, float momentum, const float *before,
                    size_t count);

#endif
