/* codec.cuh - the codec calls of cuda.h. */
#ifndef DCOMMI_CUDA_CODEC_H
#define DCOMMI_CUDA_CODEC_H

#include "compare.cuh"
#include "lowrank.cuh"
#include "randk.cuh"
#include "topk_apart.cuh"

/* The layout of a codec's wire, of any kind. */
struct dcommi_cuda_form {
    enum { DENSE, SPARSE, RANDK, PRODUCTS } kind;
    dcomm_codec_layout dense;
    dcomm_sparse_layout sparse;
    dcomm_randk_layout randk;
    dcomm_codec_matrix matrix;
};

static dcomm_status dcommi_cuda_form_of(const char *call, const dcomm_codec *codec, size_t count,
                                        dcommi_cuda_form *form)
{
    dcomm_codec_info info = dcomm_codec_info();
    *form = dcommi_cuda_form();
    if (codec != NULL) { /* the kind does not depend on count */
        DCOMMI_CUDA_TRY(dcomm_codec_get_info(codec, count <= UINT32_MAX ? count : 0, &info));
    }
    if (info.sparse) {
        form->kind = info.linear ? dcommi_cuda_form::RANDK : dcommi_cuda_form::SPARSE;
        return info.linear ? dcomm_codec_get_randk_layout(codec, count, &form->randk)
                           : dcomm_codec_get_sparse_layout(codec, count, &form->sparse);
    }
    if (info.linear) {
        form->kind = dcommi_cuda_form::PRODUCTS;
        return dcomm_codec_get_matrix(codec, count, &form->matrix);
    }
    return dcommi_cuda_layout(call, codec, &form->dense);
}

/* Return the codec's nonfinite=: 0 fail, 1 zero, 2 pass. */
static int dcommi_cuda_form_nonfinite(const dcommi_cuda_form &form)
{
    return form.kind == dcommi_cuda_form::PRODUCTS ? form.matrix.nonfinite
           : form.kind == dcommi_cuda_form::RANDK  ? form.randk.nonfinite
           : form.kind == dcommi_cuda_form::SPARSE ? form.sparse.values.nonfinite
                                                   : form.dense.nonfinite;
}

/* ---- workspaces ---- */

static size_t dcommi_cuda_encode_room(const dcommi_cuda_form &form, size_t count)
{
    dcommi_cuda_topk p = dcommi_cuda_topk();
    dcomm_cuda_report *found = NULL;
    float *e = NULL;
    return form.kind == dcommi_cuda_form::SPARSE
               ? dcommi_cuda_apart_parts(form.sparse, count, NULL, &p, &e)
           : form.kind == dcommi_cuda_form::PRODUCTS
               ? dcommi_cuda_lowrank_parts(form.matrix, NULL, &found, &e)
           : form.kind == dcommi_cuda_form::RANDK ? dcommi_cuda_randk_bytes(form.randk)
                                                  : 0; /* buckets stay in registers */
}

static size_t dcommi_cuda_decode_room(const dcommi_cuda_form &form, size_t count)
{
    dcommi_cuda_scatter p = dcommi_cuda_scatter();
    return form.kind == dcommi_cuda_form::SPARSE
               ? dcommi_cuda_scatter_parts(form.sparse, count, NULL, &p)
               : 0;
}

/* Parts of a workspace for codecs whose kernels cannot recode, or take a ledger's sums, while
 * encoding: an encoding's own workspace, an array for decoded elements, and room for decoding or
 * comparing. */
struct dcommi_cuda_rooms {
    unsigned char *encode, *other;
    float *array;
};

static size_t dcommi_cuda_rooms_of(const dcommi_cuda_form &form, size_t count, size_t other,
                                   void *workspace, dcommi_cuda_rooms *rooms)
{
    dcommi_cuda_parts parts = {static_cast<unsigned char *>(workspace), 0};
    const size_t decode = dcommi_cuda_decode_room(form, count);
    rooms->encode = parts.take<unsigned char>(dcommi_cuda_encode_room(form, count));
    rooms->array = parts.take<float>(count);
    rooms->other = parts.take<unsigned char>(decode > other ? decode : other);
    return parts.at;
}

static uint64_t dcommi_cuda_job_blocks(const dcomm_codec_layout &layout, uint64_t count)
{
    return dcommi_cuda_casts(layout) ? dcommi_cuda_blocks(count, DCOMMI_CUDA_CAST_TILE)
                                     : dcommi_cuda_encode_blocks(count, layout.bucket);
}

/* Return true if a ledger needs a decoding and a comparison. These codecs know decoded values only
 * after separate passes over all elements, which see neither the input nor the wire. */
static bool dcommi_cuda_counts_apart(const dcommi_cuda_form &form)
{
    return form.kind == dcommi_cuda_form::PRODUCTS
               ? form.matrix.nonfinite == 2
               : form.kind == dcommi_cuda_form::SPARSE && dcommi_cuda_topk_is_apart(form.sparse);
}

/* Return the number of blocks that leave sums of a ledger as they encode. */
static uint64_t dcommi_cuda_ledger_blocks(const dcommi_cuda_form &form, size_t count)
{
    return form.kind == dcommi_cuda_form::SPARSE ? dcommi_cuda_topk_tallies(form.sparse, count)
           : form.kind == dcommi_cuda_form::RANDK
               ? dcommi_cuda_blocks(count, DCOMMI_CUDA_RANDK_TILE) +
                     dcommi_cuda_randk_takers(form.randk)
               : dcommi_cuda_job_blocks(form.dense, count);
}

/* Lay out the workspace of an encoding, and behind it room for these sums. */
static size_t dcommi_cuda_ledger_parts(const dcommi_cuda_form &form, size_t count, void *workspace,
                                       dcommi_cuda_tally **tally)
{
    dcommi_cuda_parts parts = {static_cast<unsigned char *>(workspace), 0};
    (void)parts.take<unsigned char>(dcommi_cuda_encode_room(form, count));
    *tally = reinterpret_cast<dcommi_cuda_tally *>(parts.take<unsigned char>(
        form.kind == dcommi_cuda_form::SPARSE
            ? dcommi_cuda_topk_ledger_bytes(form.sparse, count)
            : dcommi_cuda_ledger_bytes(dcommi_cuda_ledger_blocks(form, count))));
    return parts.at;
}

extern "C" size_t dcomm_cuda_workspace_bytes(const dcomm_codec *codec, size_t count)
{
    dcommi_cuda_form form;
    return dcommi_cuda_form_of("dcomm_cuda_workspace_bytes", codec, count, &form) == DCOMM_OK
               ? dcommi_cuda_encode_room(form, count)
               : 0;
}

extern "C" size_t dcomm_cuda_decode_workspace_bytes(const dcomm_codec *codec, size_t count)
{
    dcommi_cuda_form form;
    return dcommi_cuda_form_of("dcomm_cuda_decode_workspace_bytes", codec, count, &form) == DCOMM_OK
               ? dcommi_cuda_decode_room(form, count)
               : 0;
}

extern "C" size_t dcomm_cuda_recode_workspace_bytes(const dcomm_codec *codec, size_t count)
{
    dcommi_cuda_form form;
    dcommi_cuda_rooms rooms;
    return dcommi_cuda_form_of("dcomm_cuda_recode_workspace_bytes", codec, count, &form) !=
                       DCOMM_OK ||
                   form.kind == dcommi_cuda_form::DENSE
               ? 0
               : dcommi_cuda_rooms_of(form, count, 0, NULL, &rooms);
}

extern "C" size_t dcomm_cuda_ledger_workspace_bytes(const dcomm_codec *codec, size_t count)
{
    dcommi_cuda_form form;
    dcommi_cuda_rooms rooms;
    dcommi_cuda_tally *tally = NULL;
    return dcommi_cuda_form_of("dcomm_cuda_ledger_workspace_bytes", codec, count, &form) != DCOMM_OK
               ? 0
           : dcommi_cuda_counts_apart(form)
               ? dcommi_cuda_rooms_of(form, count, dcomm_cuda_compare_workspace_bytes(count), NULL,
                                      &rooms)
           : form.kind == dcommi_cuda_form::PRODUCTS
               ? dcomm_cuda_compare_workspace_bytes(count)
               : dcommi_cuda_ledger_parts(form, count, NULL, &tally);
}

/* ---- encoding ---- */

static dcomm_status dcommi_cuda_encode_form(dcommi_cuda_job *job, const dcommi_cuda_form &form,
                                            void *workspace, const dcomm_codec_key *key,
                                            void *stream)
{
    if (form.kind == dcommi_cuda_form::RANDK) {
        return dcommi_cuda_randk_run(*job, form.randk, workspace, key, stream);
    }
    if (form.kind == dcommi_cuda_form::PRODUCTS) {
        return dcommi_cuda_lowrank_run(*job, form.matrix, workspace, key, NULL, stream);
    }
    if (form.kind == dcommi_cuda_form::SPARSE) {
        const bool apart =
            dcommi_cuda_topk_is_apart(form.sparse) && job->residual != NULL && job->count > 0;
        return apart ? dcommi_cuda_apart_run(*job, form.sparse, workspace, key, stream)
                     : dcommi_cuda_topk_run(*job, form.sparse, workspace, key, stream);
    }
    job->layout = form.dense;
    return dcommi_cuda_job_run(*job, NULL, 1, key, stream);
}

extern "C" dcomm_status dcomm_cuda_encode(const dcomm_codec *codec, const float *x,
                                          const float *residual, float *next, size_t count,
                                          const dcomm_codec_key *key, void *wire, size_t capacity,
                                          void *workspace, dcomm_cuda_report *report, void *stream)
{
    dcommi_cuda_job job;
    dcommi_cuda_form form;
    DCOMMI_CUDA_TRY(dcommi_cuda_job_make(&job, "dcomm_cuda_encode", codec, residual, next, count,
                                         wire, capacity, report));
    DCOMMI_CUDA_TRY(dcommi_cuda_array(job.call, "x", x, count, sizeof(float)));
    DCOMMI_CUDA_TRY(dcommi_cuda_form_of(job.call, codec, count, &form));
    job.x = x;
    return dcommi_cuda_encode_form(&job, form, workspace, key, stream);
}

/* ---- decoding ---- */

static dcomm_status dcommi_cuda_decode_form(const char *call, const dcomm_codec *codec,
                                            const dcommi_cuda_form &form,
                                            const dcommi_cuda_operands &in, const size_t *bytes,
                                            float *x, size_t count, bool add, void *workspace,
                                            dcomm_cuda_report *report, void *stream)
{
    if (form.kind == dcommi_cuda_form::SPARSE) {
        return dcommi_cuda_sparse_decode(call, codec, form.sparse, in, bytes, x, count, add,
                                         workspace, report, stream);
    }
    DCOMMI_CUDA_TRY(dcommi_cuda_lengths(call, codec, bytes, in.n, count));
    if (form.kind == dcommi_cuda_form::PRODUCTS) {
        return dcommi_cuda_lowrank_decode(call, form.matrix, in, x, add, report, stream);
    }
    return form.kind == dcommi_cuda_form::RANDK
               ? dcommi_cuda_randk_decode(call, form.randk, in, x, count, add, report, stream)
               : dcommi_cuda_decode_run(call, form.dense, in, x, count, add, report, stream);
}

/* Check the wires of a call, and that their lengths are given. */
static dcomm_status dcommi_cuda_wires_make(const char *call, const dcommi_cuda_form &form,
                                           const void *const *wires, const size_t *bytes, size_t n,
                                           size_t count, dcommi_cuda_operands *in)
{
    const bool empty = count == 0 && (form.kind == dcommi_cuda_form::DENSE ||
                                      form.kind == dcommi_cuda_form::PRODUCTS);
    DCOMMI_CUDA_TRY(dcommi_cuda_operands_make(call, wires, n, 4, empty, in));
    return bytes != NULL ? DCOMM_OK
                         : dcommi_cuda_fail(DCOMM_ERR_INVALID, "%s: bytes is NULL", call);
}

static dcomm_status dcommi_cuda_decode(const char *call, const dcomm_codec *codec,
                                       const void *const *wires, const size_t *bytes, size_t n,
                                       float *x, size_t count, bool add, void *workspace,
                                       dcomm_cuda_report *report, void *stream)
{
    dcommi_cuda_form form;
    dcommi_cuda_operands in;
    DCOMMI_CUDA_TRY(dcommi_cuda_form_of(call, codec, count, &form));
    DCOMMI_CUDA_TRY(dcommi_cuda_wires_make(call, form, wires, bytes, n, count, &in));
    DCOMMI_CUDA_TRY(dcommi_cuda_array(call, add ? "acc" : "x", x, count, sizeof(float)));
    DCOMMI_CUDA_TRY(dcommi_cuda_array(call, "report", report, 0, 8));
    return dcommi_cuda_decode_form(call, codec, form, in, bytes, x, count, add, workspace, report,
                                   stream);
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

/* ---- decoding and encoding again ---- */

/* Multiply by a factor; a NaN stays the same, as on a CPU. */
struct dcommi_cuda_factor {
    float *x;
    uint64_t count;
    float factor;
    typedef float got;
    __device__ got get(uint64_t i) const
    {
        return x[i];
    }
    __device__ void put(uint64_t i, got old) const
    {
        x[i] = dcommi_cuda_mul(old, factor);
    }
};

/* Recode by a codec that cannot do so in one pass: the workspace holds the sum. */
static dcomm_status dcommi_cuda_recode_apart(dcommi_cuda_job *job, const dcomm_codec *codec,
                                             const dcommi_cuda_form &form,
                                             const dcommi_cuda_operands &in, const size_t *bytes,
                                             float factor, const dcomm_codec_key *key,
                                             void *workspace, void *stream)
{
    dcommi_cuda_rooms rooms;
    const size_t count = (size_t)job->count;
    const size_t need = dcommi_cuda_rooms_of(form, count, 0, workspace, &rooms);
    DCOMMI_CUDA_TRY(dcommi_cuda_workspace_check(job->call, workspace, need));
    DCOMMI_CUDA_TRY(dcommi_cuda_decode_form(job->call, codec, form, in, bytes, rooms.array, count,
                                            false, rooms.other, job->report, stream));
    if (factor != 1) {
        const dcommi_cuda_factor p = {rooms.array, count, factor};
        DCOMMI_CUDA_TRY(dcommi_cuda_some(job->call, p, stream));
    }
    job->x = rooms.array;
    return dcommi_cuda_encode_form(job, form, rooms.encode, key, stream);
}

extern "C" dcomm_status dcomm_cuda_recode(const dcomm_codec *codec, const void *const *wires,
                                          const size_t *bytes, size_t n, float factor,
                                          const float *residual, float *next, size_t count,
                                          const dcomm_codec_key *key, void *wire, size_t capacity,
                                          void *workspace, dcomm_cuda_report *report, void *stream)
{
    dcommi_cuda_job job;
    dcommi_cuda_form form;
    dcommi_cuda_operands in;
    DCOMMI_CUDA_TRY(dcommi_cuda_job_make(&job, "dcomm_cuda_recode", codec, residual, next, count,
                                         wire, capacity, report));
    DCOMMI_CUDA_TRY(dcommi_cuda_form_of(job.call, codec, count, &form));
    DCOMMI_CUDA_TRY(dcommi_cuda_wires_make(job.call, form, wires, bytes, n, count, &in));
    if ((dcommi_f32_bits(factor) & 0x7f800000u) == 0x7f800000u) {
        return dcommi_cuda_fail(DCOMM_ERR_INVALID, "%s: factor is not finite", job.call);
    }
    job.refuses = dcommi_cuda_form_nonfinite(form) == 0;
    if (form.kind != dcommi_cuda_form::DENSE) {
        return dcommi_cuda_recode_apart(&job, codec, form, in, bytes, factor, key, workspace,
                                        stream);
    }
    DCOMMI_CUDA_TRY(dcommi_cuda_lengths(job.call, codec, bytes, n, count));
    job.layout = form.dense;
    return dcommi_cuda_job_run(job, &in, factor, key, stream);
}

/* ---- with a ledger ---- */

/* Encode, decode the wire, and compare. */
static dcomm_status dcommi_cuda_ledger_apart(dcommi_cuda_job *job, const dcomm_codec *codec,
                                             const dcommi_cuda_form &form,
                                             const dcomm_codec_key *key, void *workspace,
                                             dcomm_cuda_ledger *ledger, void *stream)
{
    dcommi_cuda_rooms rooms;
    const size_t count = (size_t)job->count, bytes = dcomm_codec_max_bytes(codec, count);
    const size_t need = dcommi_cuda_rooms_of(form, count, dcomm_cuda_compare_workspace_bytes(count),
                                             workspace, &rooms);
    DCOMMI_CUDA_TRY(dcommi_cuda_workspace_check(job->call, workspace, need));
    DCOMMI_CUDA_TRY(dcommi_cuda_encode_form(job, form, rooms.encode, key, stream));
    DCOMMI_CUDA_TRY(dcommi_cuda_decode_form(job->call, codec, form, dcommi_cuda_operand(job->wire),
                                            &bytes, rooms.array, count, false, rooms.other, NULL,
                                            stream));
    return dcomm_cuda_ledger_compare(ledger, job->x, rooms.array,
                                     job->residual != NULL ? job->next : NULL, count, rooms.other,
                                     stream);
}

extern "C" dcomm_status dcomm_cuda_encode_ledger(const dcomm_codec *codec, const float *x,
                                                 const float *residual, float *next, size_t count,
                                                 const dcomm_codec_key *key, void *wire,
                                                 size_t capacity, void *workspace,
                                                 dcomm_cuda_report *report,
                                                 dcomm_cuda_ledger *ledger, void *stream)
{
    dcommi_cuda_job job;
    dcommi_cuda_form form;
    DCOMMI_CUDA_TRY(dcommi_cuda_job_make(&job, "dcomm_cuda_encode_ledger", codec, residual, next,
                                         count, wire, capacity, report));
    DCOMMI_CUDA_TRY(dcommi_cuda_form_of(job.call, codec, count, &form));
    DCOMMI_CUDA_TRY(dcommi_cuda_array(job.call, "x", x, count, sizeof(float)));
    DCOMMI_CUDA_TRY(dcommi_cuda_array(job.call, "ledger", ledger, 1, 8));
    DCOMMI_CUDA_TRY(dcommi_cuda_workspace_check(job.call, workspace,
                                                dcomm_cuda_ledger_workspace_bytes(codec, count)));
    job.x = x;
    if (dcommi_cuda_counts_apart(form)) {
        return dcommi_cuda_ledger_apart(&job, codec, form, key, workspace, ledger, stream);
    }
    if (form.kind == dcommi_cuda_form::PRODUCTS) {
        return dcommi_cuda_lowrank_run(job, form.matrix, workspace, key, ledger, stream);
    }
    if (count == 0) {
        return dcommi_cuda_encode_form(&job, form, workspace, key, stream);
    }
    (void)dcommi_cuda_ledger_parts(form, count, workspace, &job.tally);
    DCOMMI_CUDA_TRY(dcommi_cuda_encode_form(&job, form, workspace, key, stream));
    return dcommi_cuda_ledger_launch(job.call, job.tally, dcommi_cuda_ledger_blocks(form, count),
                                     ledger, stream);
}

#endif
