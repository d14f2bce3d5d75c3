/* encode.h - one encoding of a step of error feedback: its input, the residual that it keeps, and
 * what its ledger counts. */
#ifndef DCOMMI_FEEDBACK_ENCODE_H
#define DCOMMI_FEEDBACK_ENCODE_H

#include "basis.h"

/* The owner's encodings draw other random numbers than the worker's. */
#define DCOMMI_FEEDBACK_OWNER 0x80000000u

/* One encoding of elements [at, at + count) of a store. */
typedef struct dcommi_feedback_call {
    const float *x;  /* the input ... */
    dcommi_wires in; /* ... or, if that is NULL, the wires whose sum is the input */
    float factor;    /* on the sum */
    dcommi_feedback_store *store;
    size_t at, count;
    dcomm_codec_key key;
    void *wire;
    size_t capacity, bytes;
    dcomm_codec_report report;
    bool estimates;     /* EF21: the store is an estimate of x, not a residual */
    void *state;        /* the codec's memory of the range; NULL: none */
    dcommi_tally tally; /* for the ledger */
} dcommi_feedback_call;

/* Encode in one pass of the codec. */
static dcomm_status dcommi_feedback_fused(dcomm_feedback *fb, dcommi_feedback_call *c)
{
    const dcomm_codec *codec = dcomm_feedback_codec(fb);
    dcommi_feedback_store *s = c->store;
    float *widened = NULL, *next = dcommi_feedback_at(s, s->next, c->at);
    if (s->bf16) {
        widened = dcommi_feedback_room(fb, DCOMMI_FEEDBACK_RESIDUAL, c->count);
        next = dcommi_feedback_room(fb, DCOMMI_FEEDBACK_NEXT, c->count);
        if (widened == NULL || next == NULL) {
            return DCOMM_ERR_NO_MEMORY;
        }
    }
    const float *residual = dcommi_feedback_read(s, s->now, c->at, c->count, widened);
    dcommi_encoding call = dcommi_codec_call(c->x, residual, next, c->count, &c->key, c->wire);
    call.state = c->state;
    call.tally = fb->ledger != NULL ? &c->tally : NULL;
    dcomm_status status =
        c->x != NULL
            ? dcommi_codec_run("dcomm_encode_feedback", codec, &call, c->capacity, &c->bytes,
                               fb->scratch[DCOMMI_FEEDBACK_WORKSPACE], &c->report)
            : dcommi_codec_recode_run(codec, &c->in, c->factor, &call, c->capacity, &c->bytes,
                                      fb->scratch[DCOMMI_FEEDBACK_WORKSPACE], &c->report);
    if (status == DCOMM_OK || c->report.nonfinite > 0) {
        dcommi_feedback_write(s, c->at, c->count, next);
    }
    return status;
}

static inline float dcommi_feedback_bounded(float e, dcomm_codec_report *report)
{
    report->clipped += dcommi_f32_nonfinite(e);
    return dcommi_f32_bounded(e);
}

/* Return the part of element `at` that the worker holds back after this step. With EF21 that is the
 * error of its estimate, or nothing if the gradient is not known. */
static double dcommi_feedback_held(const dcomm_feedback *fb, size_t at)
{
    float next = dcommi_feedback_get(&fb->worker, fb->worker.next, at);
    if (fb->opts.variant != DCOMM_FEEDBACK_EF21) {
        return next;
    }
    float x = fb->now.partly ? NAN : fb->now.x[at - fb->now.first];
    return dcommi_f32_nonfinite(x) ? 0 : x - next; /* in f32, as the ledger takes it */
}

/* Copy the gradient if EF21's ledger needs it: it will be overwritten before the last of it is
 * given back. */
static inline dcomm_status dcommi_feedback_remember(dcomm_feedback *fb)
{
    if (fb->ledger == NULL || fb->opts.variant != DCOMM_FEEDBACK_EF21 || fb->now.partly) {
        return DCOMM_OK;
    }
    float *copy = dcommi_feedback_room(fb, DCOMMI_FEEDBACK_GRADIENT, fb->now.count);
    if (copy == NULL) {
        return DCOMM_ERR_NO_MEMORY;
    }
    fb->now.x = memcpy(copy, fb->now.x, fb->now.count * sizeof *copy);
    return DCOMM_OK;
}

/* Add factor * by to the worker's next residual. */
static void dcommi_feedback_raise(dcomm_feedback *fb, size_t at, float factor, float by)
{
    dcommi_feedback_store *s = &fb->worker;
    double before = dcommi_feedback_held(fb, at);
    float sum = dcommi_feedback_plus(dcommi_feedback_get(s, s->next, at), factor, by);
    dcommi_feedback_set(s, s->next, at, dcommi_feedback_bounded(sum, &(dcomm_codec_report){0}));
    double after = dcommi_feedback_held(fb, at);
    fb->held += after * after - before * before;
}

static inline void dcommi_feedback_raised(dcomm_feedback *fb)
{
    if (fb->ledger != NULL) {
        fb->ledger->residual_norm = dcommi_sqrt(fb->held > 0 ? fb->held : 0);
    }
}

/* Compute the input `e` (scratch array INPUT) from x and the store. Count non-finite values. */
static void dcommi_feedback_input(const dcommi_feedback_call *c, const float *held, float *e,
                                  dcomm_codec_report *report)
{
    report->first_nonfinite = SIZE_MAX;
    for (size_t i = 0; i < c->count; i++) {
        if (DCOMMI_UNLIKELY(dcommi_f32_nonfinite(c->x[i]))) {
            report->first_nonfinite = report->nonfinite++ == 0 ? i : report->first_nonfinite;
            e[i] = c->estimates ? 0 : dcommi_feedback_bounded(held[i], report);
        } else {
            e[i] = dcommi_feedback_bounded(c->estimates ? c->x[i] - held[i] : c->x[i] + held[i],
                                           report);
        }
    }
}

#define DCOMMI_FEEDBACK_BLOCK 1024 /* elements that fit the L1 cache; whole vectors */

/* Store what is left of e after `sent` has gone out, and add to the ledger's sums (tally may be
 * NULL). */
static void dcommi_feedback_settle(const dcommi_feedback_call *c, const float *e, const float *held,
                                   const float *sent, dcommi_tally *tally)
{
    float next[DCOMMI_FEEDBACK_BLOCK];
    for (size_t at = 0, n; at < c->count; at += n) {
        n = c->count - at < DCOMMI_FEEDBACK_BLOCK ? c->count - at : DCOMMI_FEEDBACK_BLOCK;
        for (size_t i = 0; i < n; i++) {
            float gone = dcommi_f32_nonfinite(sent[at + i]) ? 0 : sent[at + i];
            float left = c->estimates ? held[at + i] + gone : e[at + i] - gone;
            next[i] = dcommi_f32_bounded(left);
        }
        dcommi_feedback_write(c->store, c->at + at, n, next);
        if (tally == NULL) {
            continue;
        }
        if (c->store->bf16) { /* as rounded to bf16 */
            dcommi_feedback_read(c->store, c->store->next, c->at + at, n, next);
        }
        dcommi_tally_compare(tally, at, c->estimates ? next : sent + at, n);
        for (size_t i = 0; c->estimates && i < n; i++) { /* hold back the part that the estimate
                                                          * lacks */
            float x = c->x[at + i];
            next[i] = dcommi_f32_nonfinite(x) ? 0 : x - next[i];
        }
        dcommi_tally_held(tally, sent + at, next, n);
    }
}

/* Encode for a scaled codec or for EF21: their input is not gradient + residual. */
static dcomm_status dcommi_feedback_apart(dcomm_feedback *fb, dcommi_feedback_call *c)
{
    const dcomm_codec *codec = dcomm_feedback_codec(fb);
    dcommi_feedback_store *s = c->store;
    float *e = dcommi_feedback_room(fb, DCOMMI_FEEDBACK_INPUT, c->count);
    float *sent = dcommi_feedback_room(fb, DCOMMI_FEEDBACK_SENT, c->count);
    float *widened = dcommi_feedback_room(fb, DCOMMI_FEEDBACK_RESIDUAL, c->count);
    float *next = dcommi_feedback_room(fb, DCOMMI_FEEDBACK_NEXT, c->count);
    if (e == NULL || sent == NULL || widened == NULL || next == NULL) {
        return DCOMM_ERR_NO_MEMORY;
    }
    if (c->x == NULL) {
        DCOMMI_TRY(dcomm_decode_sum(codec, c->in.wires, c->in.bytes, c->in.n, next, c->count));
        for (size_t i = 0; i < c->count; i++) {
            next[i] *= c->factor;
        }
        c->x = next;
    }
    dcomm_codec_report seen = {0};
    const float *held = dcommi_feedback_read(s, s->now, c->at, c->count, widened);
    dcommi_feedback_input(c, held, e, &seen);
    for (size_t i = 0; i < c->count; i++) {
        sent[i] = e[i] * (float)fb->factor;
    }
    dcommi_encoding call = dcommi_codec_call(sent, NULL, NULL, c->count, &c->key, c->wire);
    call.state = c->state;
    DCOMMI_TRY(dcommi_codec_run("dcomm_feedback_encode", codec, &call, c->capacity, &c->bytes,
                                fb->scratch[DCOMMI_FEEDBACK_WORKSPACE], &c->report));
    DCOMMI_TRY(dcomm_decode(codec, c->wire, c->bytes, sent, c->count));
    dcommi_feedback_settle(c, e, held, sent, fb->ledger != NULL ? &c->tally : NULL);
    c->report.clipped += seen.clipped;
    c->report.nonfinite = seen.nonfinite;
    c->report.first_nonfinite = seen.first_nonfinite;
    if (seen.nonfinite > 0 && codec->nonfinite == DCOMMI_NONFINITE_FAIL && c->in.n > 0) {
        return dcommi_codec_beyond("error feedback", &seen, c->count);
    }
    if (seen.nonfinite > 0 && codec->nonfinite == DCOMMI_NONFINITE_FAIL) {
        return dcommi_fail(DCOMM_ERR_INVALID,
                           "error feedback: %zu of %zu inputs are not finite; the first is number "
                           "%zu",
                           seen.nonfinite, c->count, seen.first_nonfinite);
    }
    return DCOMM_OK;
}

static void dcommi_feedback_note(dcomm_feedback *fb, const dcommi_tally *tally)
{
    dcommi_ledger_add(fb->ledger, tally);
    fb->held += dcommi_tally_sum(tally, DCOMMI_LEDGER_RESIDUAL);
    fb->ledger->residual_norm = dcommi_sqrt(fb->held > 0 ? fb->held : 0);
}

/* Run an encoding. `x` is the gradient, for the ledger. Report the codec's error about non-finite
 * inputs last, when all else is done as if those inputs had been 0. */
static dcomm_status dcommi_feedback_run(dcomm_feedback *fb, dcommi_feedback_call *c, const float *x,
                                        size_t *bytes_p, dcomm_codec_report *report)
{
    size_t workspace = dcomm_codec_recode_workspace_bytes(dcomm_feedback_codec(fb), c->count);
    if (dcommi_feedback_room(fb, DCOMMI_FEEDBACK_WORKSPACE, workspace / sizeof(float) + 1) ==
        NULL) {
        return DCOMM_ERR_NO_MEMORY;
    }
    DCOMMI_TRY(dcommi_feedback_recall(fb, c->key.first, c->count,
                                      (c->key.rank & DCOMMI_FEEDBACK_OWNER) != 0, &c->state));
    c->tally.x = x;
    dcomm_status status = c->estimates || fb->factor != 1 ? dcommi_feedback_apart(fb, c)
                                                          : dcommi_feedback_fused(fb, c);
    if (status != DCOMM_OK && c->report.nonfinite == 0) {
        return status;
    }
    *bytes_p = c->bytes;
    if (report != NULL) {
        *report = c->report;
    }
    if (fb->ledger != NULL) {
        dcommi_feedback_note(fb, &c->tally);
        dcomm_ledger_encoded(fb->ledger, c->count, &c->report);
    }
    return status;
}

#endif
