/* lanes.h - running a lane step by step, and the events that wake lanes. */
#ifndef DCOMMI_LANES_H
#define DCOMMI_LANES_H

#include "steps.h"

/* Run a lane until it waits or ends. */
static void dcommi_lane_run(dcommi_lane *lane)
{
    const dcommi_run *run = lane->frame->run;
    const dcomm_step *step;
    while ((step = dcommi_cursor_step(&lane->cursor)) != NULL) {
        if (dcommi_cursor_turns(step)) {
            if (DCOMMI_UNLIKELY(dcommi_cursor_turn(&lane->cursor, step) < 0)) {
                dcommi_step_wrong(lane);
                return;
            }
            continue;
        }
        enum dcommi_outcome outcome = dcommi_step_run(lane, step);
        if (outcome == DCOMMI_GONE || outcome == DCOMMI_RETRY || DCOMMI_UNLIKELY(!run->active)) {
            return; /* a step may fail the run in what it starts, and still return NEXT */
        }
        dcommi_cursor_next(&lane->cursor);
        if (outcome == DCOMMI_STOP) {
            return;
        }
    }
    if (lane->pending > 0) { /* the end of a lane is a fence */
        lane->state = DCOMMI_LANE_FENCE;
        return;
    }
    lane->state = DCOMMI_LANE_DONE;
    dcommi_frame *frame = lane->frame;
    if (--frame->lanes_left == 0) {
        dcommi_frame_done(frame);
    }
}

/* ---- events for a whole run ---- */

static void dcommi_frame_wake(dcommi_frame *frame, uint8_t state, int64_t what)
{
    for (uint32_t i = 0; i < frame->scope.plan->nlanes; i++) {
        dcommi_lane *lane = &frame->lanes[i];
        if (lane->state != state) {
            continue;
        }
        dcommi_run *run = frame->run;
        if (state == DCOMMI_LANE_COUNTER
                ? (int64_t)lane->counter == what && run->counters[lane->counter] >= lane->target
                : lane->peer == (int32_t)what) {
            dcommi_lane_ready(lane);
        }
    }
}

/* Wake the lanes that wait in `state` for counter or peer `what`. */
static void dcommi_run_wake(dcommi_run *run, uint8_t state, int64_t what)
{
    dcommi_frame_wake(&run->root, state, what);
    for (dcommi_frame *f = run->children; f != NULL; f = f->next) {
        dcommi_frame_wake(f, state, what);
    }
}

static void dcommi_run_signal(dcommi_run *run, uint32_t counter, uint64_t value)
{
    run->counters[counter] += value;
    dcommi_run_event(run);
    dcommi_run_wake(run, DCOMMI_LANE_COUNTER, counter);
}

/* Take a peer's EXPOSE or SIGNAL to its run. */
static void dcommi_run_told(dcommi_run *run, const dcommi_header *h)
{
    dcomm_comm *comm = run->comm;
    if (!dcommi_run_accepts(run, h)) {
        dcommi_suspect_mismatch(comm, run, h, 0);
        return;
    }
    if (h->slot >= (h->type == DCOMMI_MSG_SIGNAL ? run->plan->ncounters : run->plan->nslots)) {
        dcommi_poison(comm, DCOMM_ERR_CORRUPT,
                      "a peer named a counter or slot that the plan does not have");
        return;
    }
    if (h->type == DCOMMI_MSG_SIGNAL) {
        dcommi_run_signal(run, h->slot, h->a);
        return;
    }
    dcommi_exposed *e = dcommi_alloc(sizeof *e);
    if (!dcommi_have(comm, e)) {
        return;
    }
    e->node = dcommi_key(DCOMMI_NODE_EXPOSED, run->stream, run->seq, run->stage, (int32_t)h->src,
                         h->slot);
    e->address = h->a;
    e->len = h->b;
    e->region = h->tag;
    e->device = h->reserved;
    dcommi_match_node *old = dcommi_match_take(comm, &e->node);
    if (old != NULL) { /* exposed anew: forget the old place */
        DCOMMI_LIST_REMOVE(run->exposed_list, (dcommi_exposed *)old, next_of_run);
        dcommi_free(old);
    }
    e->next_of_run = run->exposed_list;
    run->exposed_list = e;
    dcommi_match_insert(comm, &e->node);
    dcommi_run_event(run);
    dcommi_run_wake(run, DCOMMI_LANE_EXPOSE, (int64_t)h->src);
}

#endif
