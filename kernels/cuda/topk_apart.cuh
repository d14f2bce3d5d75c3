/* topk_apart.cuh - top-k of coded values with a residual and nonfinite=pass. A number that is not
 * finite spoils its neighbours among the values, and their residuals must then stay. So the sum of
 * input and residual is kept separate until all is decoded. */
#ifndef DCOMMI_CUDA_TOPK_APART_H
#define DCOMMI_CUDA_TOPK_APART_H

#include "topk_run.cuh"

/* First compute the sum. An input that is not finite stays as it is. */
struct dcommi_cuda_apart_sum {
    const float *x, *residual;
    float *e;
    dcomm_cuda_report *report;
    uint64_t count;
    struct got {
        float x, residual;
    };
    __device__ got get(uint64_t i) const
    {
        return {dcommi_cuda_load<float>(x + i), dcommi_cuda_load<float>(residual + i)};
    }
    __device__ void put(uint64_t i, got of) const
    {
        const float a = of.x;
        const float sum = __fadd_rn(a, of.residual);
        const bool clipped =
            !dcommi_cuda_odd(dcommi_f32_bits(a)) && dcommi_cuda_odd(dcommi_f32_bits(sum));
        e[i] = dcommi_cuda_odd(dcommi_f32_bits(a)) ? a : dcommi_f32_bounded(sum);
        if (clipped) {
            dcommi_cuda_found found = {};
            found.clipped = 1;
            dcommi_cuda_report_add(report, found, false);
        }
    }
};

/* Then compute the residual of each sent value, before any residual changes. */
struct dcommi_cuda_apart_left {
    uint32_t *value; /* each becomes its new residual */
    const float *sent;
    const float *residual;
    const uint32_t *at; /* index of its element */
    uint64_t count;
    __device__ void one(uint64_t i) const
    {
        const uint32_t bits = value[i];
        const bool stays = dcommi_cuda_odd(bits) || dcommi_cuda_odd(dcommi_f32_bits(sent[i]));
        value[i] = dcommi_f32_bits(stays ? residual[at[i]]
                                         : __fsub_rn(dcommi_f32_from_bits(bits), sent[i]));
    }
};

/* Store residuals as if nothing had been sent. */
struct dcommi_cuda_apart_rest {
    const float *e, *residual;
    float *next;
    uint64_t count;
    typedef float got;
    __device__ got get(uint64_t i) const
    {
        return dcommi_cuda_load<float>(e + i);
    }
    __device__ void put(uint64_t i, got sum) const
    {
        next[i] = dcommi_cuda_odd(dcommi_f32_bits(sum)) ? residual[i] : sum;
    }
};

struct dcommi_cuda_apart_put {
    float *next;
    const uint32_t *value, *at;
    uint64_t count;
    __device__ void one(uint64_t i) const
    {
        next[at[i]] = dcommi_f32_from_bits(value[i]);
    }
};

static bool dcommi_cuda_topk_is_apart(const dcomm_sparse_layout &layout)
{
    return dcommi_cuda_coded(layout) && layout.values.nonfinite == 2;
}

/* Lay out the workspace of top-k and, if the codec needs it, of the sum. */
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
    float *e = NULL;
    dcommi_cuda_topk topk = dcommi_cuda_topk();
    const size_t need = dcommi_cuda_apart_parts(layout, job.count, workspace, &topk, &e);
    DCOMMI_CUDA_TRY(dcommi_cuda_workspace_check(job.call, workspace, need));
    float *sent = reinterpret_cast<float *>(topk.bits); /* candidates are done with by then */
    const dcommi_cuda_apart_sum sum = {job.x, job.residual, e, job.report, job.count};
    const dcommi_cuda_apart_left left = {topk.value, sent, job.residual, topk.at, layout.most};
    const dcommi_cuda_apart_rest rest = {e, job.residual, job.next, job.count};
    const dcommi_cuda_apart_put put = {job.next, topk.value, topk.at, layout.most};
    dcommi_cuda_job plain = job;
    plain.x = e;
    plain.residual = NULL;
    plain.next = NULL;
    DCOMMI_CUDA_TRY(dcommi_cuda_some(job.call, sum, stream));
    DCOMMI_CUDA_TRY(dcommi_cuda_topk_run(plain, layout, workspace, key, stream));
    DCOMMI_CUDA_TRY(dcommi_cuda_decode_run(job.call, layout.values,
                                           dcommi_cuda_operand(job.wire + DCOMMI_SPARSE_HEAD), sent,
                                           layout.most, false, NULL, stream));
    DCOMMI_CUDA_TRY(dcommi_cuda_each(job.call, left, stream));
    DCOMMI_CUDA_TRY(dcommi_cuda_some(job.call, rest, stream));
    return dcommi_cuda_each(job.call, put, stream);
}

#endif
