/* decode.cuh - decode any number of wires in one pass: store their sum, or add it to an array. */
#ifndef DCOMMI_CUDA_DECODE_H
#define DCOMMI_CUDA_DECODE_H

#include "encode.cuh"

#define DCOMMI_CUDA_DECODE_THREADS 256u

struct dcommi_cuda_dequant {
    dcommi_cuda_wires wires;
    float *x;
    dcomm_cuda_report *report;
    bool add, pairs;
};

template <int FORMAT>
static __global__ void __launch_bounds__(DCOMMI_CUDA_DECODE_THREADS, 4)
    dcommi_cuda_decode_kernel(const __grid_constant__ dcommi_cuda_dequant p)
{
    const uint64_t own = (uint64_t)blockIdx.x * DCOMMI_CUDA_DECODE_THREADS + threadIdx.x;
    const uint64_t at = own / DCOMMI_CUDA_TEAM * DCOMMI_RNG_GROUP + own % DCOMMI_CUDA_TEAM * 2;
    bool nan = false, bad = false;
    if (at < p.wires.count) {
        float v[DCOMMI_CUDA_OWN];
        const uint32_t left = dcommi_cuda_left(at, p.wires.count);
        dcommi_cuda_own_nothing(v);
        if (p.add) {
            dcommi_cuda_own_load(p.x + at, left, p.pairs, v);
        }
        dcommi_cuda_wires_add<FORMAT>(p.wires, at, v, &nan, &bad);
        float finite = 0; /* a number that is not finite makes it NaN, so one test serves all */
#pragma unroll
        for (int e = 0; e < DCOMMI_CUDA_OWN; e++) {
            finite = __fmaf_rn(v[e], 0, finite);
        }
        const bool some = nan || dcommi_f32_isnan(dcommi_f32_bits(finite));
#pragma unroll
        for (int e = 0; e < DCOMMI_CUDA_OWN && some; e++) {
            if (nan) {
                v[e] = dcommi_f32_from_bits(DCOMMI_F32_NAN);
            } else if (p.add && dcommi_f32_isnan(dcommi_f32_bits(v[e]))) {
                /* An x that was NaN stays that NaN; else the wire is corrupt. */
                const uint32_t x = dcommi_f32_bits(p.x[at + DCOMMI_CUDA_OFF(e)]);
                v[e] = dcommi_f32_from_bits(dcommi_f32_isnan(x) ? x | 0x400000u : DCOMMI_F32_NAN);
            }
        }
        dcommi_cuda_own_store(p.x + at, left, p.pairs, v);
    }
    if (own == 0 && !dcommi_cuda_rest_clean<FORMAT>(p.wires)) {
        bad = true;
    }
    if (bad) {
        dcommi_cuda_report_corrupt(p.report);
    }
}

static dcomm_status dcommi_cuda_decode_format(const char *call, int format,
                                              const dcommi_cuda_dequant &p, void *stream)
{
    const uint64_t tile = DCOMMI_CUDA_DECODE_THREADS * DCOMMI_CUDA_OWN;
    return dcommi_cuda_of_format(format, [&](auto c) {
        return dcommi_cuda_launch(call, dcommi_cuda_decode_kernel<decltype(c)::value>,
                                  dcommi_cuda_blocks(p.wires.count, tile),
                                  DCOMMI_CUDA_DECODE_THREADS, p, stream);
    });
}

#endif
