/* back.h - a state goes on among other ranks: it goes back to the step that all of them redo, and
 * takes in the residuals of a rank that is lost. */
#ifndef DCOMMI_FEEDBACK_BACK_H
#define DCOMMI_FEEDBACK_BACK_H

#include "save.h"

/* Bring a state in host memory back to `step`, undoing a step or repairing a failed one. If that
 * cannot be, its residuals become zero: then set *reset, and add their squares to *lost. The owner
 * residual becomes the worker's, since shards change hands. */
static dcomm_status dcommi_feedback_back(dcomm_feedback *fb, uint64_t step, bool *reset,
                                         double *lost)
{
    const bool untouched = fb->last != DCOMMI_FEEDBACK_NOTHING; /* since its last commit */
    *reset = false;
    if (fb->stale && (untouched || (fb->step == step && !fb->opts.in_place))) {
        if (untouched) {
            fb->stale = false;
        } else {
            DCOMMI_TRY(dcomm_feedback_recover(fb, DCOMM_FEEDBACK_RETRY, NULL));
        }
    }
    if (!fb->stale && fb->step == step + 1 && untouched && !fb->opts.in_place) {
        DCOMMI_TRY(dcomm_feedback_undo(fb));
    }
    if (fb->stale || fb->step != step) {
        double norm = 0;
        DCOMMI_TRY(dcomm_feedback_recover(fb, DCOMM_FEEDBACK_RESET, &norm));
        *lost += step > 0 ? norm * norm : 0; /* before the first step there were none */
        *reset = step > 0;
        fb->step = step;
    }
    fb->last = DCOMMI_FEEDBACK_NOTHING;
    return dcommi_feedback_own(fb, 0, 0);
}

/* Add the residuals of a lost rank's state to those of `fb`, which owns nothing. Both are in host
 * memory. */
static void dcommi_feedback_inherit(dcomm_feedback *fb, const dcomm_feedback *from)
{
    for (size_t i = 0; i < fb->count; i++) {
        const double sum = (double)dcommi_feedback_get(&fb->worker, fb->worker.now, i) +
                           dcommi_feedback_owed(from, i);
        dcommi_feedback_set(&fb->worker, fb->worker.now, i, dcommi_f32_bounded((float)sum));
    }
    for (size_t i = 0; i < fb->velocity.count; i++) {
        const float u = dcommi_feedback_get(&fb->velocity, fb->velocity.now, i) +
                        dcommi_feedback_get(&from->velocity, from->velocity.now, i);
        dcommi_feedback_set(&fb->velocity, fb->velocity.now, i, dcommi_f32_bounded(u));
    }
    dcommi_feedback_level(fb);
}

#endif
