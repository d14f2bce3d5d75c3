/* cuda_codec.cuh - the codec calls of cuda.h. */
#ifndef DCOMMI_CUDA_CODEC_H
#define DCOMMI_CUDA_CODEC_H

#include "cuda_topk_run.cuh"

extern "C" dcomm_status dcomm_cuda_encode(const dcomm_codec *codec, const float *x,
                                          const float *residual, float *next, size_t count,
                                          const dcomm_codec_key *key, void *wire, size_t capacity,
                                          void *workspace, dcomm_cuda_report *report, void *stream)
{
    dcommi_cuda_job job;
    dcomm_sparse_layout sparse;
    DCOMMI_CUDA_TRY(dcommi_cuda_job_make(&job, "dcomm_cuda_encode", codec, residual, next, count,
                                         wire, capacity, report));
    DCOMMI_CUDA_TRY(dcommi_cuda_array(job.call, "x", x, count, sizeof(float)));
    job.x = x;
    if (dcommi_cuda_is_sparse(codec, count, &sparse)) {
        return dcommi_cuda_topk_run(job, sparse, workspace, key, stream);
    }
    DCOMMI_CUDA_TRY(dcommi_cuda_layout(job.call, codec, &job.layout));
    return dcommi_cuda_job_run(job, NULL, 1, key, stream);
}

/* ---- with a ledger ---- */

static uint64_t dcommi_cuda_job_blocks(const dcomm_codec_layout &layout, uint64_t count)
{
    return dcommi_cuda_casts(layout) ? dcommi_cuda_cast_blocks(count)
                                     : dcommi_cuda_encode_blocks(count, layout.bucket);
}

extern "C" size_t dcomm_cuda_ledger_workspace_bytes(const dcomm_codec *codec, size_t count)
{
    dcomm_codec_layout layout;
    return codec == NULL || dcomm_codec_get_layout(codec, &layout) != DCOMM_OK
               ? 0
               : dcommi_cuda_ledger_bytes(dcommi_cuda_job_blocks(layout, count));
}

extern "C" dcomm_status dcomm_cuda_encode_ledger(const dcomm_codec *codec, const float *x,
                                                 const float *residual, float *next, size_t count,
                                                 const dcomm_codec_key *key, void *wire,
                                                 size_t capacity, void *workspace,
                                                 dcomm_cuda_report *report,
                                                 dcomm_cuda_ledger *ledger, void *stream)
{
    dcommi_cuda_job job;
    DCOMMI_CUDA_TRY(dcommi_cuda_job_make(&job, "dcomm_cuda_encode_ledger", codec, residual, next,
                                         count, wire, capacity, report));
    DCOMMI_CUDA_TRY(dcommi_cuda_layout(job.call, codec, &job.layout));
    DCOMMI_CUDA_TRY(dcommi_cuda_array(job.call, "x", x, count, sizeof(float)));
    DCOMMI_CUDA_TRY(dcommi_cuda_array(job.call, "ledger", ledger, 1, 8));
    DCOMMI_CUDA_TRY(dcommi_cuda_array(job.call, "workspace", workspace, count, 8));
    if (count == 0) {
        return DCOMM_OK;
    }
    job.x = x;
    job.tally = static_cast<dcommi_cuda_tally *>(workspace);
    DCOMMI_CUDA_TRY(dcommi_cuda_job_run(job, NULL, 1, key, stream));
    return dcommi_cuda_ledger_launch(job.call, job.tally, dcommi_cuda_job_blocks(job.layout, count),
                                     ledger, stream);
}

extern "C" dcomm_status dcomm_cuda_recode(const dcomm_codec *codec, const void *const *wires,
                                          const size_t *bytes, size_t n, float factor,
                                          const float *residual, float *next, size_t count,
                                          const dcomm_codec_key *key, void *wire, size_t capacity,
                                          void *, dcomm_cuda_report *report, void *stream)
{
    dcommi_cuda_job job;
    dcommi_cuda_operands in;
    DCOMMI_CUDA_TRY(dcommi_cuda_job_make(&job, "dcomm_cuda_recode", codec, residual, next, count,
                                         wire, capacity, report));
    DCOMMI_CUDA_TRY(dcommi_cuda_layout(job.call, codec, &job.layout));
    DCOMMI_CUDA_TRY(dcommi_cuda_operands_make(job.call, wires, n, 4, count == 0, &in));
    DCOMMI_CUDA_TRY(dcommi_cuda_lengths(job.call, codec, bytes, n, count));
    if ((dcommi_f32_bits(factor) & 0x7f800000u) == 0x7f800000u) {
        return dcommi_cuda_fail(DCOMM_ERR_INVALID, "%s: factor is not finite", job.call);
    }
    return dcommi_cuda_job_run(job, &in, factor, key, stream);
}

extern "C" size_t dcomm_cuda_workspace_bytes(const dcomm_codec *codec, size_t count)
{
    dcommi_cuda_topk p = dcommi_cuda_topk();
    dcomm_sparse_layout sparse;
    return dcommi_cuda_is_sparse(codec, count, &sparse)
               ? dcommi_cuda_topk_parts(sparse, count, NULL, &p)
               : 0; /* buckets stay in registers */
}

extern "C" size_t dcomm_cuda_decode_workspace_bytes(const dcomm_codec *codec, size_t count)
{
    dcommi_cuda_scatter p = dcommi_cuda_scatter();
    dcomm_sparse_layout sparse;
    return dcommi_cuda_is_sparse(codec, count, &sparse)
               ? dcommi_cuda_scatter_parts(sparse, count, NULL, &p)
               : 0;
}

extern "C" size_t dcomm_cuda_recode_workspace_bytes(const dcomm_codec *, size_t)
{
    return 0;
}

static dcomm_status dcommi_cuda_decode(const char *call, const dcomm_codec *codec,
                                       const void *const *wires, const size_t *bytes, size_t n,
                                       float *x, size_t count, bool add, void *workspace,
                                       dcomm_cuda_report *report, void *stream)
{
    dcomm_codec_layout layout;
    dcomm_sparse_layout sparse;
    dcommi_cuda_operands in;
    const bool scattered = dcommi_cuda_is_sparse(codec, count, &sparse);
    if (!scattered) {
        DCOMMI_CUDA_TRY(dcommi_cuda_layout(call, codec, &layout));
    }
    DCOMMI_CUDA_TRY(dcommi_cuda_operands_make(call, wires, n, 4, count == 0 && !scattered, &in));
    if (bytes == NULL) {
        return dcommi_cuda_fail(DCOMM_ERR_INVALID, "%s: bytes is NULL", call);
    }
    DCOMMI_CUDA_TRY(dcommi_cuda_array(call, add ? "acc" : "x", x, count, sizeof(float)));
    DCOMMI_CUDA_TRY(dcommi_cuda_array(call, "report", report, 0, 8));
    if (scattered) {
        return dcommi_cuda_sparse_decode(call, codec, sparse, in, bytes, x, count, add, workspace,
                                         report, stream);
    }
    DCOMMI_CUDA_TRY(dcommi_cuda_lengths(call, codec, bytes, n, count));
    return dcommi_cuda_decode_run(call, layout, in, x, count, add, report, stream);
}

extern "C" dcomm_status dcomm_cuda_decode_sum(const dcomm_codec *codec, const void *const *wires,
                                              const size_t *bytes, size_t n, float *x, size_t count,
                                              void *workspace, dcomm_cuda_report *report,
                                              void *stream)
{
    return dcommi_cuda_decode("dcomm_cuda_decode_sum", codec, wires, bytes, n, x, count, false,
                              workspace, report, stream);
}

extern "C" dcomm_status dcomm_cuda_decode_add(const dcomm_codec *codec, const void *const *wires,
                                              const size_t *bytes, size_t n, float *acc,
                                              size_t count, void *workspace,
                                              dcomm_cuda_report *report, void *stream)
{
    return dcommi_cuda_decode("dcomm_cuda_decode_add", codec, wires, bytes, n, acc, count, true,
                              workspace, report, stream);
}

#endif
