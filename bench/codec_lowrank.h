/* codec_lowrank.h - sum several ranks' matrices as powersgd does, in one process. Each turn has
 * two products. Each product is summed over the ranks before the next one. So the result
 * approximates the sum; it is not a sum of approximations. */
#ifndef CODEC_LOWRANK_H
#define CODEC_LOWRANK_H

#include "codec_run.h"

/* Set *e_p to the input of rank r: its gradient in run->x, or with feedback the gradient plus its
 * residual. */
static dcomm_status codec_lowrank_input(codec_run *run, uint32_t r, bool first, size_t bytes,
                                        const float **e_p)
{
    dcomm_codec_report report = {.kept = run->n, .bytes = bytes, .first_nonfinite = SIZE_MAX};
    dcomm_status status = DCOMM_OK;
    input_fill(run->input, r, run->now.step, 0, run->n, run->x);
    *e_p = run->x;
    if (first) {
        codec_exact(run);
    }
    if (run->fb != NULL && first) {
        DCOMMI_TRY(codec_begin(run, r, false));
        status = dcommi_feedback_gather_of(run->fb[r], e_p, &report);
    } else if (run->fb != NULL) {
        *e_p = run->fb[r]->scratch[DCOMMI_FEEDBACK_GATHERED];
    }
    for (size_t i = 0; run->fb == NULL && i < run->n; i++) {
        bool odd = !isfinite(run->x[i]);
        report.nonfinite += odd;
        if (odd && run->codec->nonfinite != DCOMMI_NONFINITE_PASS) {
            run->x[i] = 0;
        }
    }
    return first ? codec_seen(run, status, run->n, &report, bytes) : status;
}

static void codec_lowrank_add(float *sum, const float *part, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        sum[i] += part[i];
    }
}

/* Do one turn from q, which is equal on all ranks: p and q become the products of the ranks'
 * sum. */
static dcomm_status codec_lowrank_turn(codec_run *run, const dcommi_matrix *m, bool first,
                                       bool last, float *p, float *q, float *part)
{
    const size_t p_count = dcommi_powersgd_p_count(m), q_count = dcommi_powersgd_q_count(m);
    const size_t bytes = 4 * (p_count + q_count) * (size_t)run->codec->value[DCOMMI_POWERSGD_TURNS];
    const float *e;
    memset(p, 0, 4 * p_count);
    for (uint32_t r = 0; r < run->ranks; r++) {
        DCOMMI_TRY(codec_lowrank_input(run, r, first, bytes, &e));
        dcommi_matrix_times(m, e, q, part, run->workspace);
        codec_lowrank_add(p, part, p_count);
    }
    dcommi_matrix_orthonormal(p, m->rows, m->rank);
    memset(q, 0, 4 * q_count);
    for (uint32_t r = 0; r < run->ranks; r++) {
        size_t clipped = 0;
        DCOMMI_TRY(codec_lowrank_input(run, r, false, bytes, &e));
        dcommi_matrix_transposed_times(m, e, p, part, run->workspace);
        dcommi_powersgd_clip(part, q_count, &clipped);
        run->now.clipped += clipped;
        codec_lowrank_add(q, part, q_count);
        if (last && run->fb != NULL) {
            dcommi_matrix_product(m, p, part, run->sum, 0);
            DCOMMI_TRY(dcomm_feedback_keep(run->fb[r], 0, run->n, run->sum));
        }
    }
    return DCOMM_OK;
}

static dcomm_status codec_lowrank(codec_run *run)
{
    const dcommi_matrix m = dcommi_powersgd_shape(run->codec, run->n);
    const size_t p_count = dcommi_powersgd_p_count(&m), q_count = dcommi_powersgd_q_count(&m);
    const int turns = (int)run->codec->value[DCOMMI_POWERSGD_TURNS];
    const dcomm_feedback *fb = run->fb != NULL ? run->fb[0] : NULL;
    const dcomm_codec_key key = {.seed = run->input->seed,
                                 .step = fb != NULL ? fb->step : run->now.step};
    float *p = codec_array(2 * (p_count + q_count), sizeof(float));
    if (p == NULL) {
        return DCOMM_ERR_NO_MEMORY;
    }
    float *q = p + p_count, *part = q + q_count;
    if (fb != NULL && fb->basis.count > 0) {
        memcpy(q, fb->basis.now, 4 * q_count);
    }
    dcomm_status status = DCOMM_OK;
    for (int turn = 0; status == DCOMM_OK && turn < turns; turn++) {
        dcommi_powersgd_start(&m, &key, q);
        status = codec_lowrank_turn(run, &m, turn == 0, turn == turns - 1, p, q, part);
    }
    if (status == DCOMM_OK) {
        dcommi_matrix_product(&m, p, q, run->result, 0);
        memcpy(run->sum, run->result, run->n * sizeof *run->sum);
    }
    for (uint32_t r = 0; run->fb != NULL && status == DCOMM_OK && r < run->ranks; r++) {
        status = dcommi_feedback_learn(run->fb[r], q);
    }
    free(p);
    return status;
}

#endif
