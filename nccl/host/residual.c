/* residual.c - what error feedback does to its arrays beside encoding (dcomm_cuda_feedback), in the
 * host stand-in. */
#define _GNU_SOURCE
#include "kernels.h"
#include "dcomm.h"
#include "../../kernels/math.h"
#include <float.h>
#include <math.h>

static float bounded(float e, cuhost_seen *seen)
{
    seen->clipped += !isfinite(e);
    return isfinite(e) ? e : copysignf(FLT_MAX, e);
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
            return op == DCOMM_CUDA_FEEDBACK_ADD ? b : 0;
        }
        return bounded(op == DCOMM_CUDA_FEEDBACK_ADD ? a + b : a - b, seen);
    case DCOMM_CUDA_FEEDBACK_MISSING:
        return isfinite(a) ? a - b : 0;
    case DCOMM_CUDA_FEEDBACK_LEFT:
        return a - gone;
    case DCOMM_CUDA_FEEDBACK_LEARN:
        return a + gone;
    case DCOMM_CUDA_FEEDBACK_MOMENTUM:
        return (float)((double)a + (double)factor * (double)b);
    case DCOMM_CUDA_FEEDBACK_FORGET:
        return b != 0 || !isfinite(a) ? 0 : a;
    default: /* DCOMM_CUDA_FEEDBACK_FINISH */
        return a + b;
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
