/* lowrank.cuh - powersgd as a codec: encode and decode by the steps of cuda/powersgd.cuh. */
#ifndef DCOMMI_CUDA_LOWRANK_H
#define DCOMMI_CUDA_LOWRANK_H

#include "feedback.cuh"
#include "powersgd.cuh"

static uint64_t dcommi_cuda_lowrank_numbers(const dcomm_codec_matrix &m)
{
    return m.rank * (m.rows + m.cols);
}

/* ---- nonfinite=pass: one number that is not finite makes the whole wire NaN ---- */

/* Finish an encoding. All input must be read first to know if a number is not finite; until then
 * the residual must not be overwritten. */
struct dcommi_cuda_lowrank_end {
    const dcomm_cuda_report *found; /* for this call only */
    dcomm_cuda_report *report;
    uint32_t *wire;
    const float *left, *residual;
    float *next; /* NULL: no residual */
    uint64_t elements, numbers;
    uint64_t count; /* the larger of these two */
    __device__ void one(uint64_t i) const
    {
        const bool poisoned = found->nonfinite > 0;
        if (poisoned && i < numbers) {
            wire[i] = DCOMMI_F32_NAN;
        }
        if (next != NULL && i < elements) {
            next[i] = poisoned ? residual[i] : left[i];
        }
        if (i == 0) {
            dcommi_cuda_found all = {};
            all.clipped = poisoned ? 0 : (unsigned)found->clipped;
            all.nonfinite = (unsigned)found->nonfinite;
            all.first = found->first;
            dcommi_cuda_report_add(report, all, false);
        }
    }
};

/* ---- encoding ---- */

/* Lay out the workspace: with nonfinite=pass, a report of its own and room for input +
 * residual. */
static size_t dcommi_cuda_lowrank_parts(const dcomm_codec_matrix &m, void *workspace,
                                        dcomm_cuda_report **found, float **e)
{
    const bool passes = m.nonfinite == 2;
    dcommi_cuda_parts parts = {static_cast<unsigned char *>(workspace), 0};
    *found = parts.take<dcomm_cuda_report>(passes ? 1 : 0);
    *e = parts.take<float>(passes ? m.count : 0);
    return parts.at;
}

/* Run all turns on e. */
static dcomm_status dcommi_cuda_lowrank_turns(const dcommi_cuda_job &job,
                                              const dcomm_codec_matrix &m, const float *e,
                                              bool counts, dcomm_cuda_report *report,
                                              const dcomm_codec_key *key, void *stream)
{
    float *p = reinterpret_cast<float *>(job.wire), *q = p + m.rank * m.rows;
    DCOMMI_CUDA_TRY(dcommi_cuda_zero(job.call, q, m.rank * m.cols * sizeof *q, stream));
    for (int turn = 0; turn < m.turns; turn++) {
        DCOMMI_CUDA_TRY(dcomm_cuda_powersgd_start(&m, key, q, stream));
        DCOMMI_CUDA_TRY(dcommi_cuda_powersgd_p(&m, e, q, p, counts && turn == 0 ? report : NULL,
                                               job.refuses, stream));
        DCOMMI_CUDA_TRY(dcomm_cuda_powersgd_orthonormal(&m, p, stream));
        DCOMMI_CUDA_TRY(dcomm_cuda_powersgd_q(&m, e, p, q, report, stream));
    }
    return DCOMM_OK;
}

/* Encode. If `ledger` is not NULL, nonfinite is not pass, and the workspace is that of a
 * comparison. */
static dcomm_status dcommi_cuda_lowrank_run(const dcommi_cuda_job &job, const dcomm_codec_matrix &m,
                                            void *workspace, const dcomm_codec_key *key,
                                            dcomm_cuda_ledger *ledger, void *stream)
{
    const bool passes = m.nonfinite == 2, adds = job.residual != NULL;
    dcomm_cuda_report *found = NULL;
    float *room = NULL;
    const size_t need = dcommi_cuda_lowrank_parts(m, workspace, &found, &room);
    DCOMMI_CUDA_TRY(dcommi_cuda_workspace_check(job.call, workspace, need));
    if (m.count == 0) {
        return DCOMM_OK;
    }
    if (passes) {
        DCOMMI_CUDA_TRY(dcommi_cuda_zero(job.call, found, sizeof *found, stream));
    }
    dcomm_cuda_report *report = passes ? found : job.report;
    float *sum = passes ? room : job.next;
    if (adds) {
        DCOMMI_CUDA_TRY(dcommi_cuda_feedback_run(DCOMM_CUDA_FEEDBACK_ADD, sum, job.x, 0,
                                                 job.residual, m.count, report, job.refuses,
                                                 stream));
    }
    DCOMMI_CUDA_TRY(
        dcommi_cuda_lowrank_turns(job, m, adds ? sum : job.x, !adds, report, key, stream));
    const float *p = reinterpret_cast<float *>(job.wire);
    if (ledger != NULL) {
        return dcomm_cuda_powersgd_product_ledger(&m, p, p + m.rank * m.rows, job.x,
                                                  adds ? sum : NULL, workspace, ledger, stream);
    }
    if (adds) {
        DCOMMI_CUDA_TRY(dcomm_cuda_powersgd_product(&m, p, p + m.rank * m.rows, sum, -1, stream));
    }
    if (!passes) {
        return DCOMM_OK;
    }
    const uint64_t numbers = dcommi_cuda_lowrank_numbers(m);
    const uint64_t all = adds && m.count > numbers ? m.count : numbers;
    const dcommi_cuda_lowrank_end end = {
        found,   job.report,   reinterpret_cast<uint32_t *>(job.wire),
        sum,     job.residual, job.next,
        m.count, numbers,      all};
    return dcommi_cuda_each(job.call, end, stream);
}

/* ---- decoding ---- */

/* Without nonfinite=pass, a wire has only finite numbers, unless it is a sum of wires. */
struct dcommi_cuda_lowrank_check {
    const uint32_t *wire;
    uint64_t count;
    dcomm_cuda_report *report;
    __device__ void one(uint64_t i) const
    {
        if (dcommi_cuda_odd(wire[i])) {
            dcommi_cuda_report_beyond(report);
        }
    }
};

static dcomm_status dcommi_cuda_lowrank_decode(const char *call, const dcomm_codec_matrix &m,
                                               const dcommi_cuda_operands &in, float *x, bool add,
                                               dcomm_cuda_report *report, void *stream)
{
    const uint64_t numbers = dcommi_cuda_lowrank_numbers(m);
    for (uint64_t k = 0; k < in.n && m.count > 0; k++) {
        const float *p = static_cast<const float *>(in.at[k]);
        const dcommi_cuda_lowrank_check check = {static_cast<const uint32_t *>(in.at[k]), numbers,
                                                 report};
        if (report != NULL && m.nonfinite != 2) {
            DCOMMI_CUDA_TRY(dcommi_cuda_each(call, check, stream));
        }
        DCOMMI_CUDA_TRY(dcomm_cuda_powersgd_product(&m, p, p + m.rank * m.rows, x,
                                                    add || k > 0 ? 1 : 0, stream));
    }
    return DCOMM_OK;
}

#endif
