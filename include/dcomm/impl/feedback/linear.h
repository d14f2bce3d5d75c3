/* linear.h - error feedback of linear codecs, whose encodings are summed before they are decoded.
 * Correct the whole gradient by the residual, and keep what is left of it. */
#ifndef DCOMMI_FEEDBACK_LINEAR_H
#define DCOMMI_FEEDBACK_LINEAR_H

#include "feedback.h"

/* Set *e_p to gradient and residual together. *seen counts the clipped and the non-finite
 * values. */
static dcomm_status dcommi_feedback_gather_of(dcomm_feedback *fb, const float **e_p,
                                              dcomm_codec_report *seen)
{
    DCOMMI_TRY(dcommi_feedback_here("dcomm_feedback_correct", fb));
    if (fb->opts.variant == DCOMM_FEEDBACK_DGC || e_p == NULL) {
        return dcommi_fail(e_p == NULL ? DCOMM_ERR_INVALID : DCOMM_ERR_UNSUPPORTED,
                           "dcomm_feedback_correct: %s",
                           e_p == NULL ? "e_p is NULL" : "DGC needs to see what one rank sends");
    }
    size_t n = fb->now.count;
    float *gathered = dcommi_feedback_room(fb, DCOMMI_FEEDBACK_GATHERED, n);
    float *room = dcommi_feedback_room(fb, DCOMMI_FEEDBACK_RESIDUAL, n);
    if (gathered == NULL || room == NULL) {
        return DCOMM_ERR_NO_MEMORY;
    }
    dcommi_feedback_call c = {
        .x = fb->now.x, .count = n, .estimates = fb->opts.variant == DCOMM_FEEDBACK_EF21};
    const float *held = dcommi_feedback_read(&fb->worker, fb->worker.now, fb->now.first, n, room);
    dcommi_feedback_input(&c, held, gathered, seen);
    *e_p = gathered;
    if (fb->ledger != NULL) {
        dcomm_ledger_encoded(fb->ledger, 0, seen);
    }
    if (seen->nonfinite > 0 && fb->codec->nonfinite == DCOMMI_NONFINITE_FAIL) {
        return dcommi_fail(DCOMM_ERR_INVALID,
                           "dcomm_feedback_correct: %zu of %zu inputs are not finite; the first is "
                           "number %zu",
                           seen->nonfinite, n, seen->first_nonfinite);
    }
    return DCOMM_OK;
}

DCOMM_API dcomm_status dcomm_feedback_correct(dcomm_feedback *fb, const float **e_p)
{
    return dcommi_feedback_gather_of(fb, e_p, &(dcomm_codec_report){0});
}

DCOMM_API dcomm_status dcomm_feedback_keep(dcomm_feedback *fb, size_t first, size_t count,
                                           const float *part)
{
    DCOMMI_TRY(dcommi_feedback_here("dcomm_feedback_keep", fb));
    DCOMMI_TRY(dcommi_feedback_range("dcomm_feedback_keep", first, count, fb->now.first,
                                     fb->now.count, fb->encoded));
    dcommi_feedback_store *s = &fb->worker;
    float *room = dcommi_feedback_room(fb, DCOMMI_FEEDBACK_RESIDUAL, count);
    const float *gathered = fb->scratch[DCOMMI_FEEDBACK_GATHERED];
    if (gathered == NULL || part == NULL || room == NULL) {
        return gathered != NULL && part != NULL
                   ? DCOMM_ERR_NO_MEMORY
                   : dcommi_fail(DCOMM_ERR_INVALID, "dcomm_feedback_keep: %s",
                                 part == NULL ? "part is NULL"
                                              : "dcomm_feedback_correct comes first");
    }
    const size_t at = first - fb->now.first;
    dcommi_feedback_call c = {.x = fb->now.x + at,
                              .store = s,
                              .at = first,
                              .count = count,
                              .estimates = fb->opts.variant == DCOMM_FEEDBACK_EF21,
                              .tally = {.x = fb->now.x + at}};
    const float *held = dcommi_feedback_read(s, s->now, first, count, room);
    dcommi_feedback_settle(&c, gathered + at, held, part, fb->ledger != NULL ? &c.tally : NULL);
    if (fb->ledger != NULL) {
        dcommi_feedback_note(fb, &c.tally);
    }
    fb->encoded += count;
    return DCOMM_OK;
}

#endif
