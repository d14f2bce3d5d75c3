/* step.h - what all steps of a plan share: their outcomes and their errors. */
#ifndef DCOMMI_STEP_H
#define DCOMMI_STEP_H

#include "frames.h"

enum dcommi_outcome {
    DCOMMI_NEXT,  /* complete */
    DCOMMI_STOP,  /* the lane waits and goes on behind this step */
    DCOMMI_RETRY, /* the lane waits and runs this step again */
    DCOMMI_GONE   /* the run has failed */
};

static enum dcommi_outcome DCOMMI_PRINTF(3, 4)
    dcommi_step_error(dcommi_lane *lane, dcomm_status status, const char *format, ...)
{
    dcommi_run *run = lane->frame->run;
    char what[256], device[24] = "";
    va_list args;
    va_start(args, format);
    dcommi_vsnprintf(what, sizeof what, format, args);
    va_end(args);
    if (run->device != NULL) {
        snprintf(device, sizeof device, ", device %d", run->device->handle.number);
    }
    dcommi_poison(run->comm, status, "%s #%" PRIu64 " (%s), rank %d%s, lane %d, step %u: %s",
                  dcomm_coll_name((dcomm_coll)run->signature.coll), run->seq,
                  lane->frame->scope.plan->name, run->comm->rank, device,
                  (int)(lane - lane->frame->lanes), lane->cursor.at.pc, what);
    return DCOMMI_GONE;
}

/* Report a step that the cursor refuses; dcommi_message says why. */
static enum dcommi_outcome dcommi_step_wrong(dcommi_lane *lane)
{
    return dcommi_step_error(lane, DCOMM_ERR_PLAN, "%s", dcommi_message);
}

/* Report an operand for which dcommi_lane_piece found no memory. */
static enum dcommi_outcome dcommi_outside(dcommi_lane *lane, const char *what)
{
    return dcommi_step_error(lane, DCOMM_ERR_PLAN, "%s: %s", what, dcommi_message);
}

static enum dcommi_outcome dcommi_step_lengths(dcommi_lane *lane, size_t from, size_t to)
{
    return dcommi_step_error(lane, DCOMM_ERR_PLAN,
                             "%zu bytes do not fit the %zu bytes of its target", from, to);
}

/* Return how the lane goes on after it has started a move. */
static enum dcommi_outcome dcommi_moving(dcommi_lane *lane, dcomm_status status, bool async)
{
    if (status < 0) {
        return lane->frame->run->active ? dcommi_step_error(lane, status, "%s", dcommi_message)
                                        : DCOMMI_GONE;
    }
    if (status == DCOMM_OK) {
        return DCOMMI_NEXT;
    }
    if (async) {
        lane->pending++;
        return DCOMMI_NEXT;
    }
    lane->state = DCOMMI_LANE_MOVE;
    return DCOMMI_STOP;
}

/* Return true if this run may send to a rank. If it is too far ahead, the lane waits for
 * credit. */
static bool dcommi_has_credit(dcommi_lane *lane, int rank)
{
    dcommi_run *run = lane->frame->run;
    dcommi_member *member = &run->comm->members[rank];
    uint64_t done = run->stream == DCOMMI_STREAM_COLL ? member->done : member->p2p_done;
    if (DCOMMI_LIKELY(run->seq < done + DCOMMI_WINDOW)) {
        return true;
    }
    if (!member->asked) {
        dcommi_header header = {.type = DCOMMI_MSG_CREDIT, .stream = run->stream, .b = 1};
        member->asked = dcommi_send_header(run->comm, rank, &header, NULL, 0) == DCOMM_OK;
    }
    lane->state = DCOMMI_LANE_CREDIT;
    lane->peer = rank;
    return false;
}

#endif
