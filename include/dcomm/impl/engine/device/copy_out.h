/* copy_out.h - payloads from a device to a peer: copied to a pinned slot, and sent from there. A
 * short send goes like any other. A long one is offered, and its receiver asks for it part by
 * part, as for exposed memory. So copying out, the network and copying in work at the same
 * time. */
#ifndef DCOMMI_COPY_OUT_H
#define DCOMMI_COPY_OUT_H

#include "straight.h"

/* End a send or reply that has left its slot, or never will. */
static void dcommi_out_left(dcommi_op *op, dcomm_status status)
{
    dcommi_move *move = (dcommi_move *)op;
    dcommi_run *run = move->run;
    dcommi_slot *slot = move->slot;
    bool live = run->active;
    move->slot = NULL;
    if (live && status < 0 && move->kind == DCOMMI_MOVE_SEND) {
        dcommi_move_failed(move, status, "sending to");
        live = false;
    }
    dcommi_move_out_of_transport(move);
    if (live && move->kind == DCOMMI_MOVE_SEND) {
        dcommi_move_complete(move);
    } else { /* a reader that cannot be reached is reported as lost */
        dcommi_move_free(move);
    }
    dcommi_slot_give(slot, DCOMMI_QUEUE_OUT);
    dcommi_run_unref(run);
}

/* Send what has been copied into a slot. */
static void dcommi_out_copied(dcommi_job *job, dcomm_status status)
{
    dcommi_slot *slot = (dcommi_slot *)job;
    dcommi_move *move = slot->user;
    dcommi_run *run = move->run;
    if (status < 0 || !run->active) {
        dcommi_out_left(&move->op, DCOMM_ERR_SYSTEM);
        return;
    }
    dcommi_header header = dcommi_header_of(
        run, move->kind == DCOMMI_MOVE_SEND ? DCOMMI_MSG_DATA : DCOMMI_MSG_READ_REPLY,
        move->node.tag);
    header.a = move->len;
    move->op.done = dcommi_out_left;
    status = dcommi_post(run->comm, move->node.peer, &header, slot->memory, move->len, &move->op);
    if (status != DCOMM_IN_PROGRESS) {
        (void)dcommi_good(run->comm, status);
        dcommi_out_left(&move->op, status);
    }
}

static void dcommi_out_go(dcommi_slot *slot, void *user)
{
    dcommi_move *move = user;
    dcommi_run *run = move->run;
    dcommi_device_handle *d = &slot->device->handle;
    dcomm_status status = DCOMM_ERR_ABORTED;
    move->slot = slot;
    slot->user = move;
    if (run->active) {
        status = dcommi_device_copy(d, DCOMMI_QUEUE_OUT, slot->memory, move->buf, move->len);
        DCOMMI_THEN(status, dcommi_job_start(slot->device, DCOMMI_QUEUE_OUT, &slot->job, run,
                                             dcommi_out_copied));
        if (status < 0) {
            dcommi_device_failed(run, status);
        }
    }
    if (status < 0) {
        dcommi_out_left(&move->op, status);
    }
}

/* Send device memory of a move, at most DCOMMI_SLOT_BYTES. The move's node has the rank and the
 * tag. */
static void dcommi_out_start(dcommi_move *move)
{
    move->device = true;
    dcommi_move_ask_slot(move, DCOMMI_QUEUE_OUT, dcommi_out_go);
}

/* Start a send of device memory. Return DCOMM_IN_PROGRESS: the lane is told of its end. */
static dcomm_status dcommi_device_send(dcommi_lane *lane, int rank, uint32_t tag, const void *data,
                                       size_t len, bool async)
{
    dcommi_move *move = dcommi_move_send(lane, rank, tag, data, len, async);
    if (move == NULL) {
        return DCOMM_ERR_NO_MEMORY;
    }
    move->device = true;
    if (len <= DCOMMI_DEVICE_EAGER) {
        dcommi_out_start(move);
        return DCOMM_IN_PROGRESS;
    }
    dcommi_header header = dcommi_header_of(move->run, DCOMMI_MSG_OFFER, tag);
    header.a = (uint64_t)(uintptr_t)data;
    header.b = len;
    dcommi_header_set_wide(&header, dcommi_device_offered(move->run, rank, data, len));
    return dcommi_move_offer(move, &header);
}

#endif
