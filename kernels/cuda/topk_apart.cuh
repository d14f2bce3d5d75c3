/* topk_apart.cuh - top-k of coded values with a residual, where what is not finite is passed
 * on: it takes its neighbours among the values with it, whose residuals then stay what they were.
 * So the sum of input and residual is kept apart until all is decoded. */
#ifndef DCOMMI_CUDA_TOPK_APART_H
#define DCOMMI_CUDA_TOPK_APART_H

#include "topk_run.cuh"

#define DCOMMI_CUDA_APART_OWN 4u /* elements of a thread */

struct dcommi_cuda_apart {
    const float *x, *residual;
    float *e, *next;
    dcomm_cuda_report *report;
    uint64_t count;
    const float *sent;  /* values, as decoded, ... */
    uint32_t *value;    /* ... of these, which become what is left, ... */
    const uint32_t *at; /* ... and belong here */
    uint32_t kept;
};

/* The sum; an input that is not finite as it is. */
static __global__ void __launch_bounds__(DCOMMI_CUDA_TOPK_THREADS)
    dcommi_cuda_apart_sum_kernel(const __grid_constant__ dcommi_cuda_apart p)
{
    uint64_t i =
        (uint64_t)blockIdx.x * DCOMMI_CUDA_TOPK_THREADS * DCOMMI_CUDA_APART_OWN + threadIdx.x;
    dcommi_cuda_found found = {};
#pragma unroll
    for (uint32_t k = 0; k < DCOMMI_CUDA_APART_OWN; k++, i += DCOMMI_CUDA_TOPK_THREADS) {
        if (i < p.count) {
            const float x = dcommi_cuda_load<float>(p.x + i);
            const float r = dcommi_cuda_load<float>(p.residual + i);
            uint32_t b = dcommi_f32_bits(__fadd_rn(x, r));
            if (dcommi_cuda_odd(dcommi_f32_bits(x))) {
                b = dcommi_f32_bits(x);
            } else if (dcommi_cuda_odd(b)) {
                found.clipped++;
                b--;
            }
            p.e[i] = dcommi_f32_from_bits(b);
        }
    }
    if (found.clipped > 0) {
        dcommi_cuda_report_add(p.report, found, false);
    }
}

/* What is left of each value, before any residual changes. */
static __global__ void __launch_bounds__(DCOMMI_CUDA_TOPK_THREADS)
    dcommi_cuda_apart_left_kernel(const __grid_constant__ dcommi_cuda_apart p)
{
    const uint64_t i = (uint64_t)blockIdx.x * DCOMMI_CUDA_TOPK_THREADS + threadIdx.x;
    if (i < p.kept) {
        const uint32_t bits = p.value[i];
        const float sent = p.sent[i];
        const bool stays = dcommi_cuda_odd(bits) || dcommi_cuda_odd(dcommi_f32_bits(sent));
        p.value[i] = dcommi_f32_bits(stays ? p.residual[p.at[i]]
                                           : __fsub_rn(dcommi_f32_from_bits(bits), sent));
    }
}

/* As if nothing had been sent. */
static __global__ void __launch_bounds__(DCOMMI_CUDA_TOPK_THREADS)
    dcommi_cuda_apart_rest_kernel(const __grid_constant__ dcommi_cuda_apart p)
{
    uint64_t i =
        (uint64_t)blockIdx.x * DCOMMI_CUDA_TOPK_THREADS * DCOMMI_CUDA_APART_OWN + threadIdx.x;
#pragma unroll
    for (uint32_t k = 0; k < DCOMMI_CUDA_APART_OWN; k++, i += DCOMMI_CUDA_TOPK_THREADS) {
        if (i < p.count) {
            const float e = dcommi_cuda_load<float>(p.e + i);
            p.next[i] = dcommi_cuda_odd(dcommi_f32_bits(e)) ? p.residual[i] : e;
        }
    }
}

static __global__ void __launch_bounds__(DCOMMI_CUDA_TOPK_THREADS)
    dcommi_cuda_apart_put_kernel(const __grid_constant__ dcommi_cuda_apart p)
{
    const uint64_t i = (uint64_t)blockIdx.x * DCOMMI_CUDA_TOPK_THREADS + threadIdx.x;
    if (i < p.kept) {
        p.next[p.at[i]] = dcommi_f32_from_bits(p.value[i]);
    }
}

static bool dcommi_cuda_topk_is_apart(const dcomm_sparse_layout &layout)
{
    return dcommi_cuda_coded(layout) && layout.values.nonfinite == 2;
}

/* The workspace of top-k, and where the codec needs it room for the sum. */
static size_t dcommi_cuda_apart_parts(const dcomm_sparse_layout &layout, size_t count,
                                      void *workspace, dcommi_cuda_topk *topk, float **e)
{
    const size_t own = dcommi_cuda_topk_parts(layout, count, workspace, topk);
    dcommi_cuda_parts parts = {static_cast<unsigned char *>(workspace), own};
    *e = parts.take<float>(dcommi_cuda_topk_is_apart(layout) ? count : 0);
    return parts.at;
}

static dcomm_status dcommi_cuda_apart_run(const dcommi_cuda_job &job,
                                          const dcomm_sparse_layout &layout, void *workspace,
                                          const dcomm_codec_key *key, void *stream)
{
    const unsigned threads = DCOMMI_CUDA_TOPK_THREADS;
    const uint64_t tiles = job.count / (threads * DCOMMI_CUDA_APART_OWN) + 1;
    dcommi_cuda_topk topk = dcommi_cuda_topk();
    dcommi_cuda_apart p = dcommi_cuda_apart();
    const size_t need = dcommi_cuda_apart_parts(layout, job.count, workspace, &topk, &p.e);
    DCOMMI_CUDA_TRY(dcommi_cuda_workspace_check(job.call, workspace, need));
    p.x = job.x;
    p.residual = job.residual;
    p.next = job.next;
    p.report = job.report;
    p.count = job.count;
    p.sent = reinterpret_cast<const float *>(topk.bits); /* candidates are done with by then */
    p.value = topk.value;
    p.at = topk.at;
    p.kept = (uint32_t)layout.most;
    dcommi_cuda_job plain = job;
    plain.x = p.e;
    plain.residual = NULL;
    plain.next = NULL;
    dcommi_cuda_operands in = dcommi_cuda_operands();
    in.at[0] = job.wire + DCOMMI_SPARSE_HEAD;
    in.n = 1;
    DCOMMI_CUDA_TRY(
        dcommi_cuda_launch(job.call, dcommi_cuda_apart_sum_kernel, tiles, threads, p, stream));
    DCOMMI_CUDA_TRY(dcommi_cuda_topk_run(plain, layout, workspace, key, stream));
    DCOMMI_CUDA_TRY(dcommi_cuda_decode_run(job.call, layout.values, in,
                                           reinterpret_cast<float *>(topk.bits), layout.most, false,
                                           NULL, stream));
    DCOMMI_CUDA_TRY(dcommi_cuda_launch(job.call, dcommi_cuda_apart_left_kernel,
                                       layout.most / threads + 1, threads, p, stream));
    DCOMMI_CUDA_TRY(
        dcommi_cuda_launch(job.call, dcommi_cuda_apart_rest_kernel, tiles, threads, p, stream));
    return dcommi_cuda_launch(job.call, dcommi_cuda_apart_put_kernel, layout.most / threads + 1,
                              threads, p, stream);
}

#endif
