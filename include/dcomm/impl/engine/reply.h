/* reply.h - answers to peers that ask for memory of ours by message (pull.h). */
#ifndef DCOMMI_REPLY_H
#define DCOMMI_REPLY_H

#include "device/copy_out.h"
#include "receive.h"

static void dcommi_reply_sent(dcommi_op *op, dcomm_status status)
{
    (void)status; /* a reader that cannot be reached is reported as lost */
    dcommi_move_drop((dcommi_move *)op);
}

/* Answer with a part of the device memory at `base`. */
static void dcommi_device_reply(dcommi_move *move, const dcommi_header *h, uint32_t id,
                                uint8_t *base)
{
    dcommi_run *run = move->run;
    if (h->b > DCOMMI_SLOT_BYTES) {
        dcommi_poison(run->comm, DCOMM_ERR_CORRUPT,
                      "rank %d asked for %" PRIu64 " bytes of a device at a time", (int)h->src,
                      h->b);
        return;
    }
    move->buf = base + h->a;
    move->len = h->b;
    move->node =
        dcommi_key(DCOMMI_NODE_PULL, run->stream, run->seq, run->stage, (int32_t)h->src, id);
    if (dcommi_straight_with(run, (int)h->src)) {
        dcommi_straight_send(move);
    } else {
        dcommi_out_start(move);
    }
}

/* Answer a peer that asks for a part of the payload of our OFFER. */
static void dcommi_on_read_sent(dcomm_comm *comm, const dcommi_header *h)
{
    dcommi_match_node key =
        dcommi_key(DCOMMI_NODE_SENT, h->stream, h->seq, h->stage, (int32_t)h->src, h->tag);
    dcommi_match_node *node = dcommi_match_find(comm, &key);
    if (node == NULL) {
        return; /* its run failed meanwhile */
    }
    dcommi_move *sent = dcommi_move_of(node);
    if (!sent->device || h->a > sent->len || h->b > sent->len - h->a) {
        dcommi_poison(comm, DCOMM_ERR_CORRUPT,
                      "rank %d asked for bytes %" PRIu64 "+%" PRIu64
                      " of a message of %zu of rank %d",
                      (int)h->src, h->a, h->b, sent->len, comm->rank);
        return;
    }
    dcommi_move *move = dcommi_move_new(sent->run, NULL);
    if (!dcommi_have(comm, move)) {
        return;
    }
    move->kind = DCOMMI_MOVE_REPLY;
    dcommi_device_reply(move, h, dcommi_header_wide(h), sent->buf);
}

/* Answer a peer that asks for a part of memory that `run` exposed. */
static void dcommi_on_read(dcomm_comm *comm, dcommi_run *run, const dcommi_header *h)
{
    if (h->slot >= run->plan->nslots || run->offers == NULL || run->offers[h->slot].base == NULL ||
        h->a > (uint64_t)run->offers[h->slot].len ||
        h->b > (uint64_t)run->offers[h->slot].len - h->a) {
        dcommi_poison(comm, DCOMM_ERR_CORRUPT,
                      "rank %d asked for bytes %" PRIu64 "+%" PRIu64
                      " of slot %d, which rank %d has "
                      "not exposed",
                      (int)h->src, h->a, h->b, (int)h->slot, comm->rank);
        return;
    }
    dcommi_move *move = dcommi_move_new(run, NULL);
    if (!dcommi_have(comm, move)) {
        return;
    }
    move->op.done = dcommi_reply_sent;
    move->kind = DCOMMI_MOVE_REPLY;
    dcommi_header reply = dcommi_header_of(run, DCOMMI_MSG_READ_REPLY, h->tag);
    reply.a = h->b;
    comm->stats.bytes_sent += h->b;
    if (DCOMMI_UNLIKELY(run->offers[h->slot].device)) {
        dcommi_device_reply(move, h, h->tag, run->offers[h->slot].base);
        return;
    }
    dcommi_move_in_transport(move);
    dcomm_status status =
        dcommi_post(comm, (int)h->src, &reply, run->offers[h->slot].base + h->a, h->b, &move->op);
    if (status != DCOMM_IN_PROGRESS) {
        dcommi_reply_sent(&move->op, status);
        (void)dcommi_good(comm, status);
    }
}

#endif
