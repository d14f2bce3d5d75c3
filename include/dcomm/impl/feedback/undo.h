/* undo.h - taking back the step that was committed last. */
#ifndef DCOMMI_FEEDBACK_UNDO_H
#define DCOMMI_FEEDBACK_UNDO_H

#include "feedback.h"

DCOMM_API dcomm_status dcomm_feedback_undo(dcomm_feedback *fb)
{
    DCOMMI_TRY(dcommi_feedback_open("dcomm_feedback_undo", fb, false));
    if (fb->last == DCOMMI_FEEDBACK_NOTHING || fb->opts.in_place) {
        return dcommi_fail(DCOMM_ERR_INVALID, "dcomm_feedback_undo: %s",
                           fb->opts.in_place ? "in place, what there was before the step is gone"
                                             : "no step was committed since the last one was begun "
                                               "or taken back");
    }
    if (fb->last == DCOMMI_FEEDBACK_COMMITTED) {
        dcommi_feedback_exchange(fb);
        fb->owner_factor = fb->before.owner_factor;
        fb->average = fb->before.average;
        fb->nranks = fb->before.nranks;
    }
    fb->last = DCOMMI_FEEDBACK_NOTHING;
    fb->step--;
    return DCOMM_OK;
}

#endif
