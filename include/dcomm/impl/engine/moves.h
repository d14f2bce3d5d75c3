/* moves.h - moves, which are sends and receives under way, and how a send goes. The payload goes
 * with the message. On one host, a long payload waits in the sender's memory until the receiver
 * has read it. receive.h has the other end. */
#ifndef DCOMMI_MOVES_H
#define DCOMMI_MOVES_H

#include "device/jobs.h"

/* ---- the life of a move ---- */

static dcommi_move *dcommi_move_new(dcommi_run *run, dcommi_lane *lane)
{
    dcomm_context *context = run->comm->context;
    dcommi_move *move = context->free_moves;
    if (move != NULL) {
        context->free_moves = move->next;
        dcommi_zero(move, offsetof(dcommi_move, src));
    } else {
        move = dcommi_alloc(sizeof *move);
        if (move == NULL) {
            return NULL;
        }
    }
    move->run = run;
    move->lane = lane;
    move->word = -1;
    move->forward_rank = -1;
    move->next = run->moves;
    move->prev = &run->moves;
    if (move->next != NULL) {
        move->next->prev = &move->next;
    }
    run->moves = move;
    return move;
}

static void dcommi_move_free(dcommi_move *move)
{
    dcomm_context *context = move->run->comm->context;
    if (DCOMMI_UNLIKELY(move->slot != NULL)) {
        dcommi_slot_give(move->slot, DCOMMI_QUEUE_IN);
    }
    *move->prev = move->next;
    if (move->next != NULL) {
        move->next->prev = move->prev;
    }
    move->next = context->free_moves;
    context->free_moves = move;
}

static void dcommi_move_in_transport(dcommi_move *move)
{
    move->in_transport = true;
    move->run->comm->in_transport++;
    atomic_fetch_add_explicit(&move->run->refs, 1, memory_order_relaxed);
}

static void dcommi_move_out_of_transport(dcommi_move *move)
{
    move->in_transport = false;
    move->run->comm->in_transport--;
}

/* Free a move that comes back from the transport and has no effect any more. */
static void dcommi_move_drop(dcommi_move *move)
{
    dcommi_run *run = move->run;
    dcommi_move_out_of_transport(move);
    dcommi_move_free(move);
    dcommi_run_unref(run);
}

/* Ask for a slot for a move. The move stays until the answer, whatever becomes of its run. */
static void dcommi_move_ask_slot(dcommi_move *move, enum dcommi_queue queue,
                                 void (*go)(dcommi_slot *slot, void *user))
{
    dcommi_move_in_transport(move);
    if (!dcommi_good(move->run->comm, dcommi_slot_ask(move->run->device, queue, go, move))) {
        dcommi_move_drop(move);
    }
}

static void dcommi_move_complete(dcommi_move *move)
{
    dcommi_lane *lane = move->lane;
    bool async = move->async;
    dcommi_run_event(move->run);
    dcommi_move_free(move);
    if (lane != NULL) {
        dcommi_lane_moved(lane, async);
    }
}

/* ---- sending ---- */

/* Fail a communicator: a run cannot complete because `rank` has left. */
static void dcommi_poison_left(const dcommi_run *run, int rank)
{
    dcommi_poison(run->comm, DCOMM_ERR_PEER,
                  "rank %d has left the communicator after %" PRIu64 " collectives; %s #%" PRIu64
                  " cannot complete",
                  rank, run->comm->members[rank].gone_after,
                  dcomm_coll_name((dcomm_coll)run->signature.coll), run->seq);
}

/* Fail a communicator: the transport could not do what a move needs of its peer. */
static void dcommi_move_failed(const dcommi_move *move, dcomm_status status, const char *doing)
{
    dcomm_comm *comm = move->run->comm;
    const int rank = move->node.peer;
    if (status == DCOMM_ERR_PEER && comm->members[rank].gone) {
        dcommi_poison_left(move->run, rank);
    } else {
        const bool passes = status == DCOMM_ERR_PEER || status == DCOMM_ERR_CORRUPT;
        dcommi_poison(comm, passes ? status : DCOMM_ERR_TRANSPORT,
                      "%s rank %d (process %d) failed: %s", doing, rank,
                      (int)dcommi_peer_of(comm, rank)->pid, dcomm_strerror(status));
    }
}

/* Take a move back from the transport. Return true if its run goes on with it; otherwise the move
 * is freed. The caller drops the run's reference. */
static bool dcommi_move_returned(dcommi_move *move, dcomm_status status, const char *doing)
{
    bool live = move->run->active;
    if (live && status < 0) {
        dcommi_move_failed(move, status, doing);
        live = false; /* poisoning has finished the run and orphaned the move */
    }
    dcommi_move_out_of_transport(move);
    if (!live) {
        dcommi_move_free(move);
    }
    return live;
}

static void dcommi_sent(dcommi_op *op, dcomm_status status)
{
    dcommi_move *move = (dcommi_move *)op;
    dcommi_run *run = move->run;
    if (dcommi_move_returned(move, status, "sending to")) {
        dcommi_move_complete(move);
    }
    dcommi_run_unref(run);
}

static inline bool dcommi_is_bulk(const dcommi_frame *frame)
{
    return frame->space_len[DCOMM_SPACE_OUT] >= DCOMMI_BULK_RESULT;
}

/* Make the move of a send; NULL without memory. */
static inline dcommi_move *dcommi_move_send(dcommi_lane *lane, int rank, uint32_t tag,
                                            const void *data, size_t len, bool async)
{
    dcommi_run *run = lane->frame->run;
    dcommi_move *move = dcommi_move_new(run, lane);
    if (move == NULL) {
        return NULL;
    }
    move->kind = DCOMMI_MOVE_SEND;
    move->async = async;
    move->buf = (uint8_t *)(uintptr_t)data;
    move->len = len;
    move->node = dcommi_key(DCOMMI_NODE_SENT, run->stream, run->seq, run->stage, rank, tag);
    run->comm->stats.messages_sent++;
    run->comm->stats.bytes_sent += len;
    return move;
}

/* Tell the receiver which payload waits here for it. Its answer finds the move. */
static inline dcomm_status dcommi_move_offer(dcommi_move *move, dcommi_header *header)
{
    dcomm_comm *comm = move->run->comm;
    dcommi_match_insert(comm, &move->node);
    dcomm_status status = dcommi_send_header(comm, move->node.peer, header, NULL, 0);
    if (status < 0) {
        dcommi_match_remove(comm, &move->node);
        dcommi_move_free(move);
        return status;
    }
    return DCOMM_IN_PROGRESS;
}

/* Start a send. DCOMM_OK: it is complete; DCOMM_IN_PROGRESS: the lane is told of its end. */
static dcomm_status dcommi_send_start(dcommi_lane *lane, int rank, uint32_t tag, const void *data,
                                      size_t len, bool async)
{
    dcommi_run *run = lane->frame->run;
    dcomm_comm *comm = run->comm;
    dcommi_remote *peer = dcommi_peer_of(comm, rank);
    dcommi_move *move = dcommi_move_send(lane, rank, tag, data, len, async);
    if (move == NULL) {
        return DCOMM_ERR_NO_MEMORY;
    }
    move->op.done = dcommi_sent;
    dcommi_header header = dcommi_header_of(run, DCOMMI_MSG_DATA, tag);
    if (peer->same_host &&
        ((len > DCOMMI_RTS_BYTES && !peer->cannot_read_us) ||
         (len > DCOMMI_RTS_MAPPED &&
          dcommi_region_offerable(comm->context, comm->members[rank].peer, data, len)))) {
        header.type = DCOMMI_MSG_RTS;
        header.a = (uint64_t)(uintptr_t)data;
        header.b = len;
        dcommi_header_set_wide(&header, dcommi_region_number(comm->context, data, len));
        return dcommi_move_offer(move, &header);
    }
    header.a = len;
    peer->transport->bulk = dcommi_is_bulk(lane->frame);
    dcomm_status status = dcommi_post(comm, rank, &header, data, len, &move->op);
    if (status == DCOMM_IN_PROGRESS) {
        dcommi_move_in_transport(move);
    } else {
        dcommi_move_free(move);
    }
    return status;
}

/* Handle FIN or PULL, the answer to an RTS or OFFER of ours. */
static void dcommi_on_answer(dcomm_comm *comm, const dcommi_header *h)
{
    dcommi_match_node key =
        dcommi_key(DCOMMI_NODE_SENT, h->stream, h->seq, h->stage, (int32_t)h->src, h->tag);
    dcommi_match_node *node = dcommi_match_take(comm, &key);
    if (node == NULL) {
        return; /* its run failed meanwhile */
    }
    dcommi_move *move = dcommi_move_of(node);
    if (h->type == DCOMMI_MSG_FIN) {
        dcommi_move_complete(move);
        return;
    }
    dcommi_peer_of(comm, (int)h->src)->cannot_read_us = true;
    dcommi_region_refused(comm->context, comm->members[h->src].peer, move->buf, move->len);
    dcommi_header header = dcommi_header_of(move->run, DCOMMI_MSG_DATA, h->tag);
    header.stage = h->stage;
    header.a = move->len;
    dcomm_status status = dcommi_post(comm, (int)h->src, &header, move->buf, move->len, &move->op);
    if (status == DCOMM_OK) {
        dcommi_move_complete(move);
    } else if (status == DCOMM_IN_PROGRESS) {
        dcommi_move_in_transport(move);
    } else {
        dcommi_poison(comm, status, "%s", dcommi_message);
    }
}

#endif
