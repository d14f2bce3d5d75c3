/* fp8.cuh - folds of wires of codec fp8, in f32, by any operator, in one pass. The result is that
 * of dcomm_cuda_reduce on the decoded arrays. */
#ifndef DCOMMI_CUDA_FP8_H
#define DCOMMI_CUDA_FP8_H

#include "codec.cuh"
#include "reduce.cuh"

struct dcommi_cuda_fp8 {
    dcommi_cuda_wires wires;
    float *x;
    dcomm_cuda_report *report;
    int64_t divisor; /* for averages; 1: none */
    bool pairs;
};

/* Decode a thread's elements of one wire; those of a NaN bucket become NaN. */
template <int FORMAT>
DCOMMI_CUDA_INLINE void dcommi_cuda_fp8_take(const dcommi_cuda_wires &in, uint32_t w, uint64_t at,
                                             uint64_t bucket, float v[DCOMMI_CUDA_OWN], bool *bad)
{
    bool nan = false;
    dcommi_cuda_loaded<FORMAT> loaded;
    dcommi_cuda_wire_load(in, w, at, bucket, false, &loaded);
    dcommi_cuda_own_nothing(v);
    dcommi_cuda_wire_add(in, at, loaded, v, &nan, bad);
#pragma unroll
    for (int e = 0; e < DCOMMI_CUDA_OWN; e++) {
        v[e] = nan ? dcommi_f32_from_bits(DCOMMI_F32_NAN) : v[e];
    }
}

template <int FORMAT, int KIND>
static __global__ void __launch_bounds__(DCOMMI_CUDA_DECODE_THREADS)
    dcommi_cuda_fp8_kernel(const __grid_constant__ dcommi_cuda_fp8 p)
{
    const uint64_t own = (uint64_t)blockIdx.x * DCOMMI_CUDA_DECODE_THREADS + threadIdx.x;
    const uint64_t at = own / DCOMMI_CUDA_TEAM * DCOMMI_RNG_GROUP + own % DCOMMI_CUDA_TEAM * 2;
    bool bad = false;
    if (at < p.wires.count) {
        const uint64_t bucket = dcommi_cuda_bucket_of(p.wires, at);
        float acc[DCOMMI_CUDA_OWN], v[DCOMMI_CUDA_OWN];
        dcommi_cuda_fp8_take<FORMAT>(p.wires, 0, at, bucket, acc, &bad);
#pragma unroll 1
        for (uint32_t w = 1; w < p.wires.in.n; w++) {
            dcommi_cuda_fp8_take<FORMAT>(p.wires, w, at, bucket, v, &bad);
#pragma unroll
            for (int e = 0; e < DCOMMI_CUDA_OWN; e++) {
                acc[e] = dcommi_cuda_op<dcommi_cuda_f32, KIND>(acc[e], v[e]);
            }
        }
#pragma unroll
        for (int e = 0; e < DCOMMI_CUDA_OWN; e++) {
            if (KIND == DCOMMI_CUDA_SUM && p.divisor > 1) {
                acc[e] = dcommi_cuda_f32::divide(acc[e], p.divisor);
            }
            acc[e] = dcommi_cuda_f32::finish(acc[e]);
        }
        dcommi_cuda_own_store(p.x + at, dcommi_cuda_left(at, p.wires.count), p.pairs, acc);
    }
    if (own == 0 && !dcommi_cuda_rest_clean<FORMAT>(p.wires)) {
        bad = true;
    }
    if (bad) {
        dcommi_cuda_report_corrupt(p.report);
    }
}

template <int FORMAT>
static dcomm_status dcommi_cuda_fp8_launch(const char *call, dcomm_op op, const dcommi_cuda_fp8 &p,
                                           void *stream)
{
    const uint64_t tile = DCOMMI_CUDA_DECODE_THREADS * DCOMMI_CUDA_OWN;
    return dcommi_cuda_launch(call,
                              op == DCOMM_PROD  ? dcommi_cuda_fp8_kernel<FORMAT, DCOMMI_CUDA_PROD>
                              : op == DCOMM_MIN ? dcommi_cuda_fp8_kernel<FORMAT, DCOMMI_CUDA_MIN>
                              : op == DCOMM_MAX ? dcommi_cuda_fp8_kernel<FORMAT, DCOMMI_CUDA_MAX>
                                                : dcommi_cuda_fp8_kernel<FORMAT, DCOMMI_CUDA_SUM>,
                              dcommi_cuda_blocks(p.wires.count, tile), DCOMMI_CUDA_DECODE_THREADS,
                              p, stream);
}

extern "C" dcomm_status dcomm_cuda_reduce_fp8(const dcomm_codec *codec, const void *const *wires,
                                              const size_t *bytes, size_t n, float *dst,
                                              size_t count, dcomm_op op, int64_t divisor,
                                              dcomm_cuda_report *report, void *stream)
{
    const char *call = "dcomm_cuda_reduce_fp8";
    dcomm_codec_layout layout;
    dcommi_cuda_operands in;
    dcommi_cuda_fp8 p = dcommi_cuda_fp8();
    DCOMMI_CUDA_TRY(dcommi_cuda_layout(call, codec, &layout));
    if (layout.format != DCOMM_FORMAT_E4M3 && layout.format != DCOMM_FORMAT_E5M2) {
        return dcommi_cuda_fail(DCOMM_ERR_UNSUPPORTED, "%s: codec %s is not fp8", call,
                                dcomm_codec_spec(codec));
    }
    DCOMMI_CUDA_TRY(dcommi_cuda_operands_make(call, wires, n, 4, count == 0, &in));
    DCOMMI_CUDA_TRY(dcommi_cuda_lengths(call, codec, bytes, n, count));
    DCOMMI_CUDA_TRY(dcommi_cuda_array(call, "dst", dst, count, sizeof(float)));
    DCOMMI_CUDA_TRY(dcommi_cuda_array(call, "report", report, 0, 8));
    DCOMMI_CUDA_TRY(dcommi_cuda_fold_op(call, op, divisor));
    if (count == 0) {
        return DCOMM_OK;
    }
    p.wires = dcommi_cuda_wires_of(layout, in, count);
    p.x = dst;
    p.report = report;
    p.divisor = divisor > 1 ? divisor : 1;
    p.pairs = dcommi_cuda_aligned(dst, 8);
    return layout.format == DCOMM_FORMAT_E4M3
               ? dcommi_cuda_fp8_launch<DCOMMI_FORMAT_E4M3>(call, op, p, stream)
               : dcommi_cuda_fp8_launch<DCOMMI_FORMAT_E5M2>(call, op, p, stream);
}

#endif
