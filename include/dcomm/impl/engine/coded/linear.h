/* linear.h - the codec's steps where its encodings are summed before they are decoded: the parts
 * to sum, and PowerSGD's two products with a sum between them. */
#ifndef DCOMMI_CODED_LINEAR_H
#define DCOMMI_CODED_LINEAR_H

#include "run.h"

/* Describe the parts of a wire that ranks sum one after the other, as f32. */
static void dcommi_linear_parts(const dcomm_codec *codec, size_t count, dcommi_coding *coding)
{
    if (dcommi_codec_is(codec, DCOMMI_IS_PRODUCTS)) {
        dcommi_matrix m = dcommi_powersgd_shape(codec, count);
        coding->parts = 2;
        coding->rounds = 2 * (int)codec->value[DCOMMI_POWERSGD_TURNS];
        coding->part[1] = (int64_t)(4 * dcommi_powersgd_p_count(&m));
        coding->part[2] = coding->part[1] + (int64_t)(4 * dcommi_powersgd_q_count(&m));
    } else if (dcommi_codec_has(codec, DCOMMI_CODEC_LINEAR)) {
        coding->parts = coding->rounds = 1;
        coding->part[0] = DCOMMI_RANDK_HEAD;
        coding->part[1] = (int64_t)dcomm_codec_max_bytes(codec, count);
    }
}

static bool dcommi_linear_powersgd(const dcommi_coded *c)
{
    return c->linear && dcommi_codec_is(c->codec, DCOMMI_IS_PRODUCTS);
}

/* Make the input of the products: gradient and residual, or the gradient. The products leave out
 * elements that are not finite. */
static dcomm_status dcommi_linear_input(dcommi_coded *c, const dcomm_codec_place *place,
                                        const float *x, size_t count)
{
    dcommi_encoding call = {.x = x, .count = count, .report = {.first_nonfinite = SIZE_MAX}};
    if (c->feedback != NULL) {
        DCOMMI_TRY(dcommi_coded_begin_feedback(c, x, 0));
        dcomm_status status = dcommi_feedback_gather_of(c->feedback, &c->whole, &call.report);
        dcommi_coded_tell(c, place, &call.report);
        return dcommi_coded_judge(c, status, &call.report);
    }
    dcommi_read_all(&call);
    dcommi_coded_tell(c, place, &call.report);
    if (c->ledger != NULL) {
        dcomm_ledger_encoded(c->ledger, 0, &call.report);
    }
    c->whole = x;
    if (call.report.nonfinite > 0 && c->codec->nonfinite == DCOMMI_NONFINITE_FAIL) {
        dcomm_status status = dcommi_fail(
            DCOMM_ERR_INVALID, "%zu of %zu inputs are not finite; the first is number %zu",
            call.report.nonfinite, count, call.report.first_nonfinite);
        return dcommi_coded_judge(c, status, &call.report);
    }
    return DCOMM_OK;
}

/* Return the key by which all ranks draw the same Q. */
static dcomm_codec_key dcommi_linear_key(const dcommi_coded *c)
{
    const dcomm_feedback *fb = c->feedback;
    return fb == NULL ? c->key
                      : (dcomm_codec_key){
                            .seed = fb->opts.seed, .step = fb->step, .tensor = fb->opts.tensor};
}

/* Compute this rank's P from a Q that is the same on all ranks. */
static void dcommi_linear_p(dcommi_coded *c, float *wire)
{
    dcommi_matrix m = dcommi_powersgd_shape(c->codec, c->count);
    float *q = wire + dcommi_powersgd_p_count(&m);
    const dcomm_codec_key key = dcommi_linear_key(c);
    dcommi_powersgd_start(&m, &key, q);
    dcommi_matrix_times(&m, c->whole, q, wire, c->workspace);
}

/* Compute the first P. Q begins as the last step's sum, which all ranks remember alike. */
static dcomm_status dcommi_linear_first(dcommi_coded *c, const dcomm_codec_place *place,
                                        const float *x, size_t count, float *wire)
{
    dcommi_matrix m = dcommi_powersgd_shape(c->codec, count);
    float *q = wire + dcommi_powersgd_p_count(&m);
    size_t q_bytes = 4 * dcommi_powersgd_q_count(&m);
    DCOMMI_TRY(dcommi_linear_input(c, place, x, count));
    DCOMMI_TRY(dcommi_coded_workspace(c, dcommi_powersgd_scratch(&m)));
    c->count = count;
    if (c->feedback != NULL && c->feedback->basis.count > 0) {
        memcpy(q, c->feedback->basis.now, q_bytes);
    } else {
        memset(q, 0, q_bytes);
    }
    dcommi_linear_p(c, wire);
    return DCOMM_OK;
}

/* Compute this rank's Q from the sum of all P. */
static void dcommi_linear_q(dcommi_coded *c, float *wire)
{
    dcommi_matrix m = dcommi_powersgd_shape(c->codec, c->count);
    float *q = wire + dcommi_powersgd_p_count(&m);
    size_t clipped = 0;
    dcommi_matrix_orthonormal(wire, m.rows, m.rank);
    dcommi_matrix_transposed_times(&m, c->whole, wire, q, c->workspace);
    dcommi_powersgd_clip(q, dcommi_powersgd_q_count(&m), &clipped);
    dcomm_ledger *ledger = c->feedback != NULL ? c->feedback->ledger : c->ledger;
    if (c->report != NULL) {
        c->report->clipped += clipped;
    }
    if (ledger != NULL) {
        ledger->clipped += clipped;
    }
}

/* After the last turn, count the product of P and this rank's own Q as sent. */
static dcomm_status dcommi_linear_keep(dcommi_coded *c, const float *wire)
{
    dcommi_matrix m = dcommi_powersgd_shape(c->codec, c->count);
    if (c->feedback == NULL && c->ledger == NULL) {
        return DCOMM_OK;
    }
    float *sent = dcommi_alloc_raw(c->count * sizeof *sent);
    dcomm_status status = DCOMM_OK;
    if (sent == NULL) {
        return DCOMM_ERR_NO_MEMORY;
    }
    dcommi_matrix_product(&m, wire, wire + dcommi_powersgd_p_count(&m), sent, 0);
    if (c->feedback == NULL) {
        dcomm_ledger_compare(c->ledger, c->whole, sent, c->count);
    } else {
        status = dcomm_feedback_keep(c->feedback, 0, c->count, sent);
    }
    dcommi_free(sent);
    return status;
}

static dcomm_status dcommi_linear_encode(dcommi_coded *c, const dcomm_codec_place *place,
                                         const void *src, size_t src_len, void *dst, size_t dst_len,
                                         size_t *encoded)
{
    size_t count = src_len / sizeof(float);
    *encoded = dst_len;
    const int turns = (int)c->codec->value[DCOMMI_POWERSGD_TURNS];
    if (c->report != NULL && place->round % 2 == 0) {
        c->report->bytes += dst_len; /* both products of a turn */
        c->report->kept += place->round == 0 ? count : 0;
    }
    if (place->round == 0) {
        DCOMMI_TRY(dcommi_linear_first(c, place, src, count, dst));
    }
    dcomm_ledger *ledger = c->feedback != NULL ? c->feedback->ledger : c->ledger;
    if (ledger != NULL && place->round % 2 == 0) {
        const bool first = place->round == 0;
        dcomm_codec_report report = {.bytes = dst_len, .kept = first ? count : 0};
        dcomm_ledger_encoded(ledger, first ? count : 0, &report);
    }
    if (place->round == 0) {
        return DCOMM_OK;
    }
    if (place->round % 2 == 0) {
        dcommi_linear_p(c, dst);
        return DCOMM_OK;
    }
    dcommi_linear_q(c, dst);
    return (int)place->round == 2 * turns - 1 ? dcommi_linear_keep(c, dst) : DCOMM_OK;
}

/* Remember the sum of all Q, with which the next step begins. */
static dcomm_status dcommi_linear_remember(dcommi_coded *c, const void *wire)
{
    dcomm_feedback *fb = c->feedback;
    if (fb == NULL) {
        return DCOMM_OK;
    }
    dcommi_matrix m = dcommi_powersgd_shape(c->codec, c->count);
    return dcommi_feedback_learn(fb, (const float *)wire + dcommi_powersgd_p_count(&m));
}

#endif
