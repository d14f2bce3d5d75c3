/* feedback.cuh - operations of error feedback on its arrays besides encoding, by element. */
#ifndef DCOMMI_CUDA_FEEDBACK_H
#define DCOMMI_CUDA_FEEDBACK_H

#include "job.cuh"
#include "topk.cuh"

#define DCOMMI_CUDA_FEEDBACK_THREADS 256u
#define DCOMMI_CUDA_FEEDBACK_OWN 8u /* elements of a thread */

struct dcommi_cuda_feedback {
    void *dst;
    const void *a;
    const float *b;
    float factor;
    uint64_t count;
    dcomm_cuda_report *report;
    bool refuses; /* see dcommi_cuda_job */
};

DCOMMI_CUDA_INLINE float dcommi_cuda_feedback_bounded(float e, dcommi_cuda_found *found)
{
    found->clipped += dcommi_cuda_odd(dcommi_f32_bits(e));
    return dcommi_f32_bounded(e);
}

/* Compute one element, in f32. */
template <int OP>
DCOMMI_CUDA_INLINE float dcommi_cuda_feedback_one(float a, float b, float factor, uint64_t i,
                                                  dcommi_cuda_found *found)
{
    const bool odd = dcommi_cuda_odd(dcommi_f32_bits(a));
    const float gone = dcommi_cuda_odd(dcommi_f32_bits(b)) ? 0 : b;
    switch (OP) {
    case DCOMM_CUDA_FEEDBACK_ADD:
    case DCOMM_CUDA_FEEDBACK_LACK:
        if (odd) {
            dcommi_cuda_found_odd(found, i);
            return OP == DCOMM_CUDA_FEEDBACK_ADD ? dcommi_cuda_feedback_bounded(b, found) : 0;
        }
        return dcommi_cuda_feedback_bounded(
            OP == DCOMM_CUDA_FEEDBACK_ADD ? __fadd_rn(a, b) : __fsub_rn(a, b), found);
    case DCOMM_CUDA_FEEDBACK_MISSING:
        return odd ? 0 : dcommi_f32_canonical(__fsub_rn(a, b));
    case DCOMM_CUDA_FEEDBACK_LEFT:
        return dcommi_f32_bounded(__fsub_rn(a, gone));
    case DCOMM_CUDA_FEEDBACK_LEARN:
        return dcommi_f32_bounded(__fadd_rn(a, gone));
    case DCOMM_CUDA_FEEDBACK_MOMENTUM:
        return dcommi_f32_canonical(
            __double2float_rn(__dadd_rn((double)a, __dmul_rn((double)factor, (double)b))));
    case DCOMM_CUDA_FEEDBACK_FORGET:
        return b != 0 || odd ? 0 : a;
    default: /* DCOMM_CUDA_FEEDBACK_FINISH */
        return dcommi_f32_canonical(__fadd_rn(a, b));
    }
}

/* Convert to bf16, never up to infinity; see dcommi_feedback_narrow. */
DCOMMI_CUDA_INLINE uint16_t dcommi_cuda_feedback_narrow(float x)
{
    const uint16_t h = dcommi_f32_to_bf16(x);
    return (uint16_t)((h & 0x7fffu) == 0x7f80u ? h - 1 : h);
}

/* All of a thread's elements are loaded before the first is stored, because dst may be a or b. */
template <int OP>
static __global__ void __launch_bounds__(DCOMMI_CUDA_FEEDBACK_THREADS)
    dcommi_cuda_feedback_kernel(const __grid_constant__ dcommi_cuda_feedback p)
{
    const bool widens = OP == DCOMM_CUDA_FEEDBACK_WIDEN, narrows = OP == DCOMM_CUDA_FEEDBACK_NARROW;
    const uint64_t first =
        (uint64_t)blockIdx.x * DCOMMI_CUDA_FEEDBACK_THREADS * DCOMMI_CUDA_FEEDBACK_OWN +
        threadIdx.x;
    const uint32_t left = dcommi_cuda_left(first, p.count);
    float a[DCOMMI_CUDA_FEEDBACK_OWN], b[DCOMMI_CUDA_FEEDBACK_OWN];
    dcommi_cuda_found found = {};
#pragma unroll
    for (uint32_t k = 0; k < DCOMMI_CUDA_FEEDBACK_OWN; k++) {
        const uint32_t at = k * DCOMMI_CUDA_FEEDBACK_THREADS;
        const bool there = at < left;
        a[k] = !there   ? 0
               : widens ? dcommi_bf16_to_f32(static_cast<const uint16_t *>(p.a)[first + at])
                        : static_cast<const float *>(p.a)[first + at];
        b[k] = there && !widens && !narrows ? p.b[first + at] : 0;
    }
#pragma unroll
    for (uint32_t k = 0; k < DCOMMI_CUDA_FEEDBACK_OWN; k++) {
        const uint32_t at = k * DCOMMI_CUDA_FEEDBACK_THREADS;
        const uint64_t i = first + at;
        if (at < left && widens) {
            static_cast<float *>(p.dst)[i] = a[k];
        } else if (at < left && narrows) {
            static_cast<uint16_t *>(p.dst)[i] = dcommi_cuda_feedback_narrow(a[k]);
        } else if (at < left) {
            static_cast<float *>(p.dst)[i] =
                dcommi_cuda_feedback_one<OP>(a[k], b[k], p.factor, i, &found);
        }
    }
    if (found.nonfinite > 0 || found.clipped > 0) {
        dcommi_cuda_report_add(p.report, found, p.refuses);
    }
}

template <int OP>
static dcomm_status dcommi_cuda_feedback_launch(const char *call, const dcommi_cuda_feedback &p,
                                                void *stream)
{
    const uint64_t tile = DCOMMI_CUDA_FEEDBACK_THREADS * DCOMMI_CUDA_FEEDBACK_OWN;
    return dcommi_cuda_launch(call, dcommi_cuda_feedback_kernel<OP>,
                              dcommi_cuda_blocks(p.count, tile), DCOMMI_CUDA_FEEDBACK_THREADS, p,
                              stream);
}

static dcomm_status dcommi_cuda_feedback_run(dcomm_cuda_feedback_op op, void *dst, const void *a,
                                             float factor, const float *b, size_t count,
                                             dcomm_cuda_report *report, bool refuses, void *stream)
{
    const char *call = "dcomm_cuda_feedback";
    static dcomm_status (*const launch[])(const char *, const dcommi_cuda_feedback &, void *) = {
        dcommi_cuda_feedback_launch<DCOMM_CUDA_FEEDBACK_WIDEN>,
        dcommi_cuda_feedback_launch<DCOMM_CUDA_FEEDBACK_NARROW>,
        dcommi_cuda_feedback_launch<DCOMM_CUDA_FEEDBACK_ADD>,
        dcommi_cuda_feedback_launch<DCOMM_CUDA_FEEDBACK_LACK>,
        dcommi_cuda_feedback_launch<DCOMM_CUDA_FEEDBACK_MISSING>,
        dcommi_cuda_feedback_launch<DCOMM_CUDA_FEEDBACK_LEFT>,
        dcommi_cuda_feedback_launch<DCOMM_CUDA_FEEDBACK_LEARN>,
        dcommi_cuda_feedback_launch<DCOMM_CUDA_FEEDBACK_MOMENTUM>,
        dcommi_cuda_feedback_launch<DCOMM_CUDA_FEEDBACK_FORGET>,
        dcommi_cuda_feedback_launch<DCOMM_CUDA_FEEDBACK_FINISH>};
    if ((unsigned)op >= sizeof launch / sizeof *launch) {
        return dcommi_cuda_fail(DCOMM_ERR_INVALID, "%s: op %d is unknown", call, (int)op);
    }
    const size_t half = sizeof(uint16_t), whole = sizeof(float);
    const bool casts = op == DCOMM_CUDA_FEEDBACK_WIDEN || op == DCOMM_CUDA_FEEDBACK_NARROW;
    DCOMMI_CUDA_TRY(dcommi_cuda_array(call, "dst", dst, count,
                                      op == DCOMM_CUDA_FEEDBACK_NARROW ? half : whole));
    DCOMMI_CUDA_TRY(
        dcommi_cuda_array(call, "a", a, count, op == DCOMM_CUDA_FEEDBACK_WIDEN ? half : whole));
    DCOMMI_CUDA_TRY(dcommi_cuda_array(call, "b", b, casts ? 0 : count, whole));
    DCOMMI_CUDA_TRY(dcommi_cuda_array(call, "report", report, 0, 8));
    const dcommi_cuda_feedback p = {dst, a, b, factor, count, report, refuses};
    return launch[op](call, p, stream);
}

extern "C" dcomm_status dcomm_cuda_feedback(dcomm_cuda_feedback_op op, void *dst, const void *a,
                                            float factor, const float *b, size_t count,
                                            dcomm_cuda_report *report, void *stream)
{
    return dcommi_cuda_feedback_run(op, dst, a, factor, b, count, report, false, stream);
}

#endif
