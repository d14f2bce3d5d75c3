/* topk_run.cuh - the calls of cuda.h for sparse codecs: workspaces, and launches in order. */
#ifndef DCOMMI_CUDA_TOPK_RUN_H
#define DCOMMI_CUDA_TOPK_RUN_H

#include "job.cuh"
#include "sparse.cuh"
#include "topk_scan.cuh"
#include "topk_select.cuh"

#define DCOMMI_CUDA_TOPK_DIGITS 3 /* digits of the k-th magnitude, at most */
#define DCOMMI_CUDA_TOPK_DIGIT_BLOCKS 512u

static bool dcommi_cuda_coded(const dcomm_sparse_layout &layout)
{
    return layout.values.format < DCOMM_FORMAT_F16;
}

static uint64_t dcommi_cuda_coded_bytes(const dcomm_sparse_layout &layout)
{
    return dcommi_cuda_coded(layout)
               ? dcommi_wire_codes(layout.most, dcommi_format_bits[(int)layout.values.format]) +
                     4 * ((layout.most + layout.values.bucket - 1) / layout.values.bucket)
               : 0;
}

/* ---- workspaces ---- */

static size_t dcommi_cuda_topk_parts(const dcomm_sparse_layout &layout, size_t count,
                                     void *workspace, dcommi_cuda_topk *p)
{
    dcommi_cuda_parts parts = {static_cast<unsigned char *>(workspace), 0};
    const uint64_t groups = dcommi_sparse_blocks(count);
    const uint64_t room =
        4 * (uint64_t)layout.most + count / DCOMMI_TOPK_SAMPLE + DCOMMI_CUDA_TOPK_TILE;
    p->room = (uint32_t)(room < count ? room : count);
    p->state = parts.take<dcommi_cuda_topk_state>(1);
    p->hist = parts.take<uint32_t>(DCOMMI_CUDA_TOPK_BINS);
    p->tile = parts.take<uint2>(groups * DCOMMI_CUDA_TOPK_WARPS);
    p->found = parts.take<uint2>(groups * DCOMMI_CUDA_TOPK_WARPS);
    p->group = parts.take<uint2>(groups);
    p->bits = parts.take<uint32_t>(p->room);
    p->index = parts.take<uint32_t>(p->room);
    if (dcommi_cuda_coded(layout)) {
        p->value = parts.take<uint32_t>(layout.most);
        p->at = parts.take<uint32_t>(layout.most);
    }
    return parts.at;
}

/* Return the number of blocks that leave sums of a ledger: those that decode coded values; below,
 * with those that emit. */
static uint64_t dcommi_cuda_lost_blocks(const dcomm_sparse_layout &layout)
{
    return (layout.most + DCOMMI_CUDA_TOPK_THREADS - 1) / DCOMMI_CUDA_TOPK_THREADS;
}

static uint64_t dcommi_cuda_topk_tallies(const dcomm_sparse_layout &layout, size_t count)
{
    return dcommi_sparse_blocks(count) +
           (dcommi_cuda_coded(layout) ? dcommi_cuda_lost_blocks(layout) : 0);
}

/* Return the bytes for their sums, for the launch that adds them up, and for the sums of the
 * scan. */
static size_t dcommi_cuda_topk_ledger_bytes(const dcomm_sparse_layout &layout, size_t count)
{
    return dcommi_cuda_ledger_bytes(dcommi_cuda_topk_tallies(layout, count)) +
           dcommi_sparse_blocks(count) * DCOMMI_CUDA_TOPK_WARPS * sizeof(dcommi_cuda_tally);
}

static size_t dcommi_cuda_scatter_parts(const dcomm_sparse_layout &layout, size_t count,
                                        void *workspace, dcommi_cuda_scatter *p)
{
    dcommi_cuda_parts parts = {static_cast<unsigned char *>(workspace), 0};
    if (dcommi_sparse_form_of(count, layout.most) == DCOMMI_SPARSE_BITMAP) {
        p->ticket = parts.take<uint32_t>(1);
        p->rank = parts.take<uint32_t>(dcommi_sparse_blocks(count));
    }
    p->decoded = dcommi_cuda_coded(layout) ? parts.take<float>(layout.most) : NULL;
    return parts.at;
}

/* ---- encoding ---- */

static dcomm_status dcommi_cuda_topk_digits(const char *call, dcommi_cuda_topk *p, void *stream)
{
    uint32_t blocks = p->count / 32768 + 1;
    blocks = blocks < DCOMMI_CUDA_TOPK_DIGIT_BLOCKS ? blocks : DCOMMI_CUDA_TOPK_DIGIT_BLOCKS;
    for (int digit = 0; digit < DCOMMI_CUDA_TOPK_DIGITS; digit++) {
        p->first = digit == 0;
        DCOMMI_CUDA_TRY(dcommi_cuda_launch(call, dcommi_cuda_topk_digit_kernel, blocks,
                                           DCOMMI_CUDA_TOPK_THREADS, *p, stream));
    }
    return DCOMM_OK;
}

/* Encode the selected values by their own codec, and store their errors as residuals. */
static dcomm_status dcommi_cuda_topk_code(const dcommi_cuda_job &job,
                                          const dcomm_sparse_layout &layout,
                                          const dcommi_cuda_topk &p, const dcomm_codec_key *key,
                                          void *stream)
{
    dcommi_cuda_job coding = job;
    coding.layout = layout.values;
    coding.count = layout.most;
    coding.x = reinterpret_cast<const float *>(p.value);
    coding.residual = NULL;
    coding.next = NULL;
    coding.wire = p.wire + DCOMMI_SPARSE_HEAD;
    coding.report = &p.state->coded;
    coding.tally = NULL;
    DCOMMI_CUDA_TRY(dcommi_cuda_job_run(coding, NULL, 1, key, stream));
    dcommi_cuda_topk_lost lost = {p, NULL, NULL};
    if (p.tally != NULL) {
        lost.tally = p.tally + dcommi_sparse_blocks(p.count);
    }
    if (p.residual != NULL || p.tally != NULL) {
        lost.sent = reinterpret_cast<const float *>(p.bits); /* candidates are no longer needed */
        DCOMMI_CUDA_TRY(dcommi_cuda_decode_run(
            job.call, layout.values, dcommi_cuda_operand(coding.wire),
            reinterpret_cast<float *>(p.bits), layout.most, false, NULL, stream));
    }
    return dcommi_cuda_launch(
        job.call,
        p.tally != NULL ? dcommi_cuda_topk_lost_kernel<true> : dcommi_cuda_topk_lost_kernel<false>,
        dcommi_cuda_lost_blocks(layout), DCOMMI_CUDA_TOPK_THREADS, lost, stream);
}

/* Choose the sample for a threshold that may be wrong. A single block can take it. */
static void dcommi_cuda_topk_guessing(dcommi_cuda_topk *p)
{
    p->lines = p->count / (4 * DCOMMI_TOPK_LINE);
    p->lines = p->lines < DCOMMI_CUDA_TOPK_LINES ? p->lines : DCOMMI_CUDA_TOPK_LINES;
    p->lines = p->count > DCOMMI_CUDA_TOPK_TILE ? p->lines : 0;
    p->rank = (uint32_t)dcommi_topk_sample_rank(p->lines, p->count, p->wanted, 4);
}

/* Launch the pass over the input. */
static dcomm_status dcommi_cuda_topk_scan(const char *call, const dcommi_cuda_topk &p, void *stream)
{
    const uint64_t tiles = ((uint64_t)p.count + DCOMMI_CUDA_TOPK_TILE - 1) / DCOMMI_CUDA_TOPK_TILE;
    void (*plain)(dcommi_cuda_topk) = p.residual != NULL
                                          ? dcommi_cuda_topk_scan_kernel<true, false>
                                          : dcommi_cuda_topk_scan_kernel<false, false>;
    void (*counting)(dcommi_cuda_topk) = p.residual != NULL
                                             ? dcommi_cuda_topk_scan_kernel<true, true>
                                             : dcommi_cuda_topk_scan_kernel<false, true>;
    return dcommi_cuda_launch(call, p.tally != NULL ? counting : plain, tiles,
                              DCOMMI_CUDA_TOPK_SCAN_THREADS, p, stream);
}

static dcomm_status dcommi_cuda_topk_run(const dcommi_cuda_job &job,
                                         const dcomm_sparse_layout &layout, void *workspace,
                                         const dcomm_codec_key *key, void *stream)
{
    dcommi_cuda_topk p = dcommi_cuda_topk();
    const size_t need = dcommi_cuda_topk_parts(layout, job.count, workspace, &p);
    const uint64_t groups = dcommi_sparse_blocks(job.count);
    if (job.count == 0) {
        return dcommi_cuda_zero(job.call, job.wire, DCOMMI_SPARSE_HEAD, stream);
    }
    DCOMMI_CUDA_TRY(dcommi_cuda_workspace_check(job.call, workspace, need));
    dcommi_cuda_job_tell(job, &p);
    p.count = (uint32_t)job.count;
    p.wanted = (uint32_t)layout.wanted;
    p.most = (uint32_t)layout.most;
    p.values = (int)layout.values.format;
    p.value_bytes = dcommi_cuda_coded_bytes(layout);
    p.exact = layout.exact;
    p.pass = layout.values.nonfinite == 2;
    p.vectors = dcommi_cuda_job_aligned(job, 16);
    if (job.tally != NULL) {
        p.tally = job.tally;
        p.scanned =
            p.tally + dcommi_cuda_topk_tallies(layout, job.count) + DCOMMI_CUDA_LEDGER_BLOCKS;
    }
    p.lines = (uint32_t)layout.lines;
    p.rank = (uint32_t)layout.rank;
    if (p.exact) {
        dcommi_cuda_topk_guessing(&p);
    }
    DCOMMI_CUDA_TRY(dcommi_cuda_launch(job.call, dcommi_cuda_topk_begin_kernel, 1,
                                       DCOMMI_CUDA_TOPK_BEGIN_THREADS, p, stream));
    if (!p.exact) {
        const dcommi_cuda_topk_gather gather = {p, (uint64_t)p.lines * DCOMMI_TOPK_LINE};
        DCOMMI_CUDA_TRY(dcommi_cuda_each(job.call, gather, stream));
        DCOMMI_CUDA_TRY(dcommi_cuda_topk_digits(job.call, &p, stream));
    }
    DCOMMI_CUDA_TRY(dcommi_cuda_topk_scan(job.call, p, stream));
    DCOMMI_CUDA_TRY(dcommi_cuda_topk_digits(job.call, &p, stream));
    DCOMMI_CUDA_TRY(dcommi_cuda_launch(job.call, dcommi_cuda_topk_count_kernel, groups,
                                       DCOMMI_CUDA_TOPK_THREADS, p, stream));
    DCOMMI_CUDA_TRY(dcommi_cuda_launch(job.call,
                                       p.tally != NULL ? dcommi_cuda_topk_emit_kernel<true>
                                                       : dcommi_cuda_topk_emit_kernel<false>,
                                       groups, DCOMMI_CUDA_TOPK_THREADS, p, stream));
    return dcommi_cuda_coded(layout) ? dcommi_cuda_topk_code(job, layout, p, key, stream)
                                     : DCOMM_OK;
}

/* ---- decoding ---- */

static dcomm_status dcommi_cuda_sparse_one(const char *call, const dcomm_sparse_layout &layout,
                                           const dcommi_cuda_scatter &p, void *stream)
{
    const uint64_t groups = dcommi_sparse_blocks(p.count);
    const dcommi_sparse_form form = dcommi_sparse_form_of(p.count, layout.most);
    uint64_t blocks = groups;
    if (dcommi_cuda_coded(layout) && p.count > 0) {
        DCOMMI_CUDA_TRY(dcommi_cuda_decode_run(
            call, layout.values, dcommi_cuda_operand(p.wire + DCOMMI_SPARSE_HEAD),
            const_cast<float *>(p.decoded), layout.most, false, p.report, stream));
    }
    if (form == DCOMMI_SPARSE_BITMAP) {
        DCOMMI_CUDA_TRY(dcommi_cuda_zero(call, p.ticket, sizeof *p.ticket, stream));
        DCOMMI_CUDA_TRY(dcommi_cuda_launch(call, dcommi_cuda_rank_kernel, groups,
                                           DCOMMI_CUDA_TOPK_THREADS, p, stream));
    } else if (form == DCOMMI_SPARSE_FLAT) {
        blocks = layout.most / DCOMMI_CUDA_TOPK_THREADS + 1;
    }
    return dcommi_cuda_launch(call, dcommi_cuda_scatter_kernel, blocks, DCOMMI_CUDA_TOPK_THREADS, p,
                              stream);
}

static dcomm_status dcommi_cuda_sparse_decode(const char *call, const dcomm_codec *codec,
                                              const dcomm_sparse_layout &layout,
                                              const dcommi_cuda_operands &in, const size_t *bytes,
                                              float *x, size_t count, bool add, void *workspace,
                                              dcomm_cuda_report *report, void *stream)
{
    dcommi_cuda_scatter p = dcommi_cuda_scatter();
    const size_t most = dcomm_codec_max_bytes(codec, count);
    const size_t need = dcommi_cuda_scatter_parts(layout, count, workspace, &p);
    for (uint32_t w = 0; w < in.n; w++) {
        if (bytes[w] > most || bytes[w] < DCOMMI_SPARSE_HEAD ||
            (layout.least == layout.most && bytes[w] != most)) {
            return dcommi_cuda_fail(DCOMM_ERR_CORRUPT,
                                    "%s: a wire of %zu elements has %zu bytes, not %zu", call,
                                    count, bytes[w], most);
        }
    }
    DCOMMI_CUDA_TRY(dcommi_cuda_workspace_check(call, workspace, need));
    p.x = x;
    p.report = report;
    p.count = (uint32_t)count;
    p.least = (uint32_t)layout.least;
    p.most = (uint32_t)layout.most;
    p.max_bytes = most;
    p.value_bytes = dcommi_cuda_coded_bytes(layout);
    p.values = (int)layout.values.format;
    p.pass = layout.values.nonfinite == 2;
    if (!add && count > 0) {
        DCOMMI_CUDA_TRY(dcommi_cuda_zero(call, x, count * sizeof *x, stream));
    }
    for (uint32_t w = 0; w < in.n; w++) {
        p.wire = static_cast<const unsigned char *>(in.at[w]);
        p.bytes = bytes[w];
        p.add = add || w > 0;
        DCOMMI_CUDA_TRY(dcommi_cuda_sparse_one(call, layout, p, stream));
    }
    return DCOMM_OK;
}

#endif
