/* kernels.h - what dcomm's kernels in the host stand-in share: the folds and looks of fold.c, what
 * residual.c does, and the launch. */
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
/* The first element that is not finite, UINT64_MAX: none; *value is that, *squares the sum. */
uint64_t cuhost_look(const void *x, size_t count, int dtype, double *value, double *squares);

/* On a stream of the current device; *job is copied. */
dcomm_status cuhost_launch(const char *call, const void *job, size_t bytes, cuhost_run_fn run,
                           void *stream);

/* dcomm_cuda_ledger_compare. */
void cuhost_compare(dcomm_cuda_ledger *to, const float *x, const float *y, const float *next,
                    size_t count);

/* What was clipped, what was not finite, and the first of that. */
typedef struct cuhost_seen {
    size_t clipped, nonfinite, first;
} cuhost_seen;

cuhost_seen cuhost_feedback(int op, void *dst, const void *a, float factor, const float *b,
                            size_t count);
/* *squares becomes their sum; returns the factor. */
float cuhost_clip(const float *g, size_t count, double most, double *squares);
void cuhost_clipped(float *u, const float *g, float clip, float momentum, const float *before,
                    size_t count);

#endif
