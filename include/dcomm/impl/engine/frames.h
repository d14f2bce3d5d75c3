/* frames.h - a plan being executed: its lanes, and its ranks and operands in this process. */
#ifndef DCOMMI_FRAMES_H
#define DCOMMI_FRAMES_H

#include "kernels.h"
#include "scratch.h"

static void dcommi_lane_ready(dcommi_lane *lane)
{
    if (lane->state == DCOMMI_LANE_DONE || lane->queued) {
        return;
    }
    dcomm_context *context = lane->frame->run->comm->context;
    lane->state = DCOMMI_LANE_READY;
    lane->queued = true;
    lane->next_ready = NULL;
    if (context->ready_last != NULL) {
        context->ready_last->next_ready = lane;
    } else {
        context->ready_first = lane;
    }
    context->ready_last = lane;
}

static void dcommi_lane_moved(dcommi_lane *lane, bool async)
{
    if (async) {
        lane->pending--;
    }
    if (async ? lane->state == DCOMMI_LANE_FENCE && lane->pending == 0
              : lane->state == DCOMMI_LANE_MOVE) {
        dcommi_lane_ready(lane);
    }
}

/* ---- resolving ---- */

/* Return the memory of piece `r` of an operand in a space of our own. NULL: it lies outside, and
 * dcommi_message says why. */
static uint8_t *dcommi_lane_piece(const dcommi_lane *lane, const dcomm_operand *o, uint32_t r,
                                  size_t *len)
{
    const dcommi_frame *frame = lane->frame;
    const bool words = o->space == DCOMM_SPACE_WORDS, own = o->space <= DCOMM_SPACE_SCRATCH;
    uint8_t *base = words ? (uint8_t *)frame->words : own ? frame->space[o->space] : NULL;
    int64_t room = words ? (int64_t)frame->scope.plan->nwords * 8 : 0;
    dcommi_interval x;
    if (DCOMMI_UNLIKELY(dcommi_cursor_piece(&lane->cursor, o, r, &x) < 0)) {
        return NULL;
    }
    *len = (size_t)x.length;
    if (x.length == 0) {
        return (uint8_t *)lane; /* any address: nothing is read or written */
    }
    room = own ? frame->space_len[o->space] : room;
    if (DCOMMI_UNLIKELY(base == NULL || !dcommi_interval_within(&x, room))) {
        dcommi_interval_outside(&x, o->space, base != NULL ? room : 0);
        return NULL;
    }
    return base + x.offset;
}

/* Return true if a space of a frame is memory of the run's device. */
static inline bool dcommi_on_device(const dcommi_frame *frame, uint8_t space)
{
    return frame->on_device >> space & 1;
}

/* ---- frames ---- */

/* Return true if a plan's scratch is host memory: the plan asks for it, or computes with functions
 * that work only there. */
static inline bool dcommi_plan_of_host(const dcomm_plan *plan)
{
    return plan->scratch_on_host ||
           (plan->nkernels > 0 && plan->kernels[0] != dcommi_kernel_scale &&
            plan->kernels[0] != dcommi_kernel_widen);
}

/* Place the scratch of a frame whose input and output are set: on their device, or where peers map
 * it, or at `on_host`. */
static dcomm_status dcommi_frame_scratch(dcommi_frame *frame, uint8_t *on_host)
{
    const dcomm_plan *plan = frame->scope.plan;
    const unsigned ends = 1u << DCOMM_SPACE_IN | 1u << DCOMM_SPACE_OUT;
    frame->space_len[DCOMM_SPACE_SCRATCH] = plan->scratch_bytes;
    if (DCOMMI_LIKELY((frame->on_device & ends) == 0) || plan->scratch_bytes == 0 ||
        dcommi_plan_of_host(plan)) {
        frame->shared = plan->scratch_shared
                            ? dcommi_scratch_take(frame->run->comm->context, plan->scratch_bytes)
                            : NULL;
        frame->space[DCOMM_SPACE_SCRATCH] = frame->shared != NULL ? frame->shared : on_host;
        return DCOMM_OK;
    }
    dcommi_device_handle *d = &frame->run->device->handle;
    DCOMMI_TRY(dcommi_device_alloc(d, (size_t)plan->scratch_bytes, &frame->device_scratch));
    frame->space[DCOMM_SPACE_SCRATCH] = frame->device_scratch;
    frame->on_device |= 1u << DCOMM_SPACE_SCRATCH;
    return DCOMM_OK;
}

/* Give back the frame's part of the context's scratch region. */
static inline void dcommi_frame_unshare(dcommi_frame *frame)
{
    if (DCOMMI_UNLIKELY(frame->shared != NULL)) {
        dcommi_scratch_give(frame->run->comm->context, frame->shared);
        frame->shared = NULL;
    }
}

static void dcommi_frame_scratch_free(dcommi_frame *frame)
{
    dcommi_frame_unshare(frame);
    if (DCOMMI_UNLIKELY(frame->device_scratch != NULL)) {
        dcommi_device_handle *d = &frame->run->device->handle;
        dcommi_device_release(d, frame->device_scratch);
        frame->device_scratch = NULL;
    }
}

/* Bind a frame, which knows its plan, to memory for its lanes and words. */
static void dcommi_frame_bind(dcommi_frame *frame, dcommi_run *run, dcommi_lane *lanes,
                              uint64_t *words)
{
    const uint32_t n = frame->scope.plan->nlanes;
    frame->run = run;
    frame->scope.words = frame->words = words;
    frame->lanes = lanes;
    frame->lanes_left = n;
    for (uint32_t i = 0; i < n; i++) {
        dcommi_lane *lane = &lanes[i];
        dcommi_zero(lane, sizeof *lane);
        lane->frame = frame;
        dcommi_cursor_start(&lane->cursor, &frame->scope, i);
    }
}

static void dcommi_frame_start(dcommi_frame *frame)
{
    for (uint32_t i = 0; i < frame->scope.plan->nlanes; i++) {
        dcommi_lane_ready(&frame->lanes[i]);
    }
}

static void dcommi_frame_done(dcommi_frame *frame)
{
    dcommi_run *run = frame->run;
    dcommi_lane *caller = frame->caller;
    if (caller == NULL) {
        dcommi_stage_done(run);
        return;
    }
    DCOMMI_LIST_REMOVE(run->children, frame, next);
    const uint8_t *scratch = frame->space[DCOMM_SPACE_SCRATCH];
    /* Withdraw offers in this scratch, which is freed below. */
    for (uint32_t i = 0; i < frame->scope.plan->nslots; i++) {
        struct dcommi_offer *offer = &run->offers[frame->scope.slot + i];
        if (offer->base >= scratch &&
            offer->base < scratch + frame->space_len[DCOMM_SPACE_SCRATCH]) {
            offer->base = NULL;
        }
    }
    dcommi_frame_scratch_free(frame);
    dcommi_free(frame);
    dcommi_lane_ready(caller);
}

#endif
