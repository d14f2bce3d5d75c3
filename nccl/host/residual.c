/* residual.c - operations of error feedback besides encoding (dcomm_cuda_feedback, _clip and
 * _clipped), in the host stand-in. It uses the CPU's sum of squares, which is private to the
 * implementation, so this file has its own copy. */
#define _GNU_SOURCE
#define DCOMM_API static
#pragma GCC diagnostic ignored "-Wunused-function"
#include "kernels.h"
#include "dcomm.h"
#include "../../kernels/cpu/norm.h"
#include "../../kernels/math.h"
#include <math.h>

static float bounded(float e, cuhost_seen *seen)
{
    seen->clipped += !isfinite(e);
    return dcommi_f32_bounded(e);
}

static float one(dcomm_cuda_feedback_op op, float a, float factor, float b, size_t i,
                 cuhost_seen *seen)
{
    const float gone = isfinite(b) ? b : 0;
    switch (op) {
    case DCOMM_CUDA_FEEDBACK_ADD:
    case DCOMM_CUDA_FEEDBACK_LACK:
        if (!isfinite(a)) {
            seen->first = seen->nonfinite++ == 0 ? i : seen->first;
            return op == DCOMM_CUDA_FEEDBACK_ADD ? bounded(b, seen) : 0;
        }
        return bounded(op == DCOMM_CUDA_FEEDBACK_ADD ? a + b : a - b, seen);
    case DCOMM_CUDA_FEEDBACK_MISSING:
        return isfinite(a) ? dcommi_f32_canonical(a - b) : 0;
    case DCOMM_CUDA_FEEDBACK_LEFT:
        return dcommi_f32_bounded(a - gone);
    case DCOMM_CUDA_FEEDBACK_LEARN:
        return dcommi_f32_bounded(a + gone);
    case DCOMM_CUDA_FEEDBACK_MOMENTUM:
        return dcommi_f64_to_f32((double)a + (double)factor * (double)b);
    case DCOMM_CUDA_FEEDBACK_FORGET:
        return b != 0 || !isfinite(a) ? 0 : a;
    default: /* DCOMM_CUDA_FEEDBACK_FINISH */
        return dcommi_f32_canonical(a + b);
    }
}

cuhost_seen cuhost_feedback(int op, void *dst, const void *a, float factor, const float *b,
                            size_t count)
{
    cuhost_seen seen = {0};
    for (size_t i = 0; i < count; i++) {
        if (op == DCOMM_CUDA_FEEDBACK_WIDEN) {
            ((float *)dst)[i] = dcommi_bf16_to_f32(((const uint16_t *)a)[i]);
        } else if (op == DCOMM_CUDA_FEEDBACK_NARROW) {
            const uint16_t h = dcommi_f32_to_bf16(((const float *)a)[i]);
            ((uint16_t *)dst)[i] = (uint16_t)((h & 0x7fffu) == 0x7f80u ? h - 1 : h);
        } else {
            ((float *)dst)[i] =
                one((dcomm_cuda_feedback_op)op, ((const float *)a)[i], factor, b[i], i, &seen);
        }
    }
    return seen;
}

float cuhost_clip(const float *g, size_t count, double most, double *squares)
{
    *squares = dcommi_norm_squares(g, count);
    return *squares > most * most && most > 0 ? (float)(most / sqrt(*squares)) : 1;
}

void cuhost_clipped(float *u, const float *g, float clip, float momentum, const float *before,
                    size_t count)
{
    for (size_t i = 0; i < count; i++) {
        const float clipped = isfinite(g[i]) ? clip * g[i] : g[i];
        u[i] = dcommi_f64_to_f32((double)clipped + (double)momentum * (double)before[i]);
    }
}
