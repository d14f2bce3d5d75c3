/* receive.h - a message meets its receive: the payload is stored, folded, or read where it lies in
 * the sender's memory. */
#ifndef DCOMMI_RECEIVE_H
#define DCOMMI_RECEIVE_H

#include "coded/verdict.h"
#include "moves.h"

#include <sys/uio.h>

/* ---- reading a peer's memory ---- */

/* Copy from the memory of a rank on this host. DCOMM_ERR_UNSUPPORTED: the kernel forbids it, or
 * the address is bad. DCOMM_ERR_PEER: the rank's process has ended, and the run may have failed
 * with it. */
static dcomm_status dcommi_read_process(dcomm_comm *comm, int rank, void *dst, uint64_t address,
                                        size_t len)
{
    dcommi_remote *peer = dcommi_peer_of(comm, rank);
    uint8_t *to = dst;
    while (len > 0) {
        struct iovec local = {to, len};
        struct iovec remote = {(void *)(uintptr_t)address, len};
        ssize_t n = process_vm_readv(peer->pid, &local, 1, &remote, 1, 0);
        if (n <= 0) {
            if (n == 0) {
                errno = EFAULT;
            }
            if (errno == ESRCH) {
                dcommi_peer_ended(comm->context, comm->members[rank].peer);
                return dcommi_fail(DCOMM_ERR_PEER, "the process of rank %d has ended", rank);
            }
            /* A bad address (the peer has failed and freed its buffer) does not mean that the next
             * is bad. */
            peer->unreadable = peer->unreadable || errno != EFAULT;
            return DCOMM_ERR_UNSUPPORTED;
        }
        to += n;
        address += (uint64_t)n;
        len -= (size_t)n;
    }
    return DCOMM_OK;
}

static inline bool dcommi_peer_readable(const dcommi_remote *peer)
{
    return peer->same_host && !peer->unreadable;
}

/* Return staging memory of the context, at least `len` bytes. */
static uint8_t *dcommi_staging(dcomm_context *context, size_t len)
{
    if (context->staging_len < len) {
        dcommi_free(context->staging);
        context->staging = dcommi_alloc_raw(len);
        context->staging_len = context->staging != NULL ? len : 0;
    }
    return context->staging;
}

/* Copy a piece of a result. `past`: by nontemporal stores. */
static void dcommi_result_copy(dcomm_context *context, void *dst, const void *src, size_t len,
                               bool past)
{
    if (past && dst != src) {
        context->open_stores = true;
        dcommi_host_copy_open(dst, src, len);
    } else {
        dcommi_host_copy(dst, src, len);
    }
}

/* Refuse to go on by messages once a part has been folded: if the result lies on an operand, that
 * part would count twice. */
static dcomm_status dcommi_read_part(dcomm_status status, size_t at, int rank)
{
    return status == DCOMM_ERR_UNSUPPORTED && at > 0
               ? dcommi_fail(DCOMM_ERR_SYSTEM, "memory of rank %d ends within a message", rank)
               : status;
}

/* ---- receiving ---- */

/* Fold a part of a message, to `also` too unless that is NULL. `past` and `also_past`: store to
 * dst and to `also` by nontemporal stores. */
static dcomm_status dcommi_fold_both(dcommi_move *move, const void *message, size_t offset,
                                     size_t len, bool past, void *also, bool also_past)
{
    const dcomm_plan *plan = move->lane->frame->scope.plan;
    const void *src[DCOMMI_FOLD_SOURCES];
    for (int i = 0; i < move->nsrc; i++) {
        src[i] = i == move->msg_at ? message : (const uint8_t *)move->src[i] + offset;
        past = past && src[i] != move->dst + offset; /* its lines are in the cache anyway */
    }
    size_t element = dcomm_dtype_size((dcomm_dtype)plan->dtype);
    move->run->comm->context->open_stores |= past;
    unsigned how = (past ? DCOMMI_FOLD_STREAM : 0) | (also_past ? DCOMMI_FOLD_ALSO : 0);
    return dcommi_host_reduce_both(
        move->dst + offset, also, src, move->nsrc, len / element, (dcomm_dtype)plan->dtype,
        (dcomm_op)plan->op, move->final && plan->op == DCOMM_AVG ? move->run->plan->nranks : 1,
        how);
}

/* Reserve room for a message of `len` bytes that the next step sends, so that the fold can store
 * into it. NULL: none, or not on this host. */
static uint8_t *dcommi_forward_room(const dcommi_move *move, size_t len, bool *past)
{
    const dcommi_run *run = move->run;
    if (move->forward_rank < 0 || move->forward_rank == run->comm->rank) {
        return NULL;
    }
    const dcommi_remote *peer = dcommi_peer_of(run->comm, move->forward_rank);
    const dcommi_member *member = &run->comm->members[move->forward_rank];
    if (peer->transport->call->reserve == NULL || peer->lost || run->stream != DCOMMI_STREAM_COLL ||
        run->seq >= member->done + DCOMMI_WINDOW) {
        return NULL;
    }
    peer->transport->bulk = dcommi_is_bulk(move->lane->frame);
    return peer->transport->call->reserve(peer->transport, member->peer, sizeof(dcommi_header), len,
                                          past);
}

/* Fold a whole message, and send the result at once if the next step would send it. */
static dcomm_status dcommi_fold_whole(dcommi_move *move, const void *message, size_t len)
{
    dcommi_run *run = move->run;
    bool also_past = false;
    uint8_t *also = dcommi_forward_room(move, len, &also_past);
    /* Bytes that are still to be sent should stay in a cache. */
    bool past = move->past && (also != NULL || move->forward_rank < 0);
    dcomm_status status = dcommi_fold_both(move, message, 0, len, past, also, also_past);
    if (status == DCOMM_OK && also != NULL) {
        dcommi_header header = dcommi_header_of(run, DCOMMI_MSG_DATA, move->forward_tag);
        header.a = len;
        dcommi_commit(run->comm, move->forward_rank, &header, len);
        move->lane->forwarded = true;
    }
    return status;
}

/* Complete a receive whose payload has come: fold it, or copy it unless it is in place. */
static void dcommi_received(dcommi_move *move, const void *message, size_t len)
{
    dcomm_status status = DCOMM_OK;
    if (move->kind == DCOMMI_MOVE_FOLD) {
        status = dcommi_fold_whole(move, message, len);
    } else if (message != move->buf && len > 0) {
        if (move->past) {
            dcommi_result_copy(move->run->comm->context, move->buf, message, len, true);
        } else {
            memcpy(move->buf, message, len);
        }
    }
    if (move->word >= 0) {
        move->lane->frame->words[move->word] = len;
    }
    if (!dcommi_good(move->run->comm, status)) {
        return;
    }
    dcommi_move_complete(move);
}

static void dcommi_fetched(dcommi_op *op, dcomm_status status)
{
    dcommi_move *move = (dcommi_move *)op;
    dcommi_run *run = move->run;
    if (dcommi_move_returned(move, status, "receiving from")) {
        dcommi_received(move, move->buf, move->arrived);
    }
    dcommi_run_unref(run);
}

/* Read the payload that an RTS offers, and fold it block by block while it is in cache. */
static dcomm_status dcommi_read_offer(dcommi_move *move, uint32_t region, uint64_t address,
                                      size_t len)
{
    dcomm_comm *comm = move->run->comm;
    const uint8_t *mapped = dcommi_resolve_peer_memory(comm, move->node.peer, region, address, len);
    if (mapped != NULL) {
        comm->stats.bytes_mapped += len;
        if (move->kind == DCOMMI_MOVE_FOLD) {
            return dcommi_fold_whole(move, mapped, len);
        }
        dcommi_result_copy(move->run->comm->context, move->buf, mapped, len, move->past);
        return DCOMM_OK;
    }
    dcommi_remote *peer = dcommi_peer_of(comm, move->node.peer);
    if (!dcommi_peer_readable(peer)) {
        return DCOMM_ERR_UNSUPPORTED;
    }
    if (move->kind == DCOMMI_MOVE_RECV) {
        return dcommi_read_process(comm, move->node.peer, move->buf, address, len);
    }
    uint8_t *staging = dcommi_staging(comm->context, DCOMMI_PULL_BLOCK);
    if (staging == NULL) {
        return DCOMM_ERR_NO_MEMORY;
    }
    const dcomm_dtype dtype = (dcomm_dtype)move->lane->frame->scope.plan->dtype;
    const size_t block =
        (size_t)dcommi_whole_elements(DCOMMI_PULL_BLOCK, (int64_t)dcomm_dtype_size(dtype));
    for (size_t at = 0; at < len; at += block) {
        size_t n = len - at < block ? len - at : block;
        DCOMMI_TRY(
            dcommi_read_part(dcommi_read_process(comm, move->node.peer, staging, address + at, n),
                             at, move->node.peer));
        DCOMMI_TRY(dcommi_fold_both(move, staging, at, n, false, NULL, false));
    }
    return DCOMM_OK;
}

/* Match a message with its receive. Return what becomes of the arrival. */
static dcommi_verdict dcommi_deliver(dcommi_move *move, const dcommi_header *h,
                                     dcommi_transport *transport, const void *data, void *desc)
{
    dcommi_run *run = move->run;
    dcomm_comm *comm = run->comm;
    size_t len = h->type == DCOMMI_MSG_RTS || h->type == DCOMMI_MSG_OFFER ? h->b : h->a;
    if (!dcommi_run_accepts(run, h)) {
        dcommi_suspect_mismatch(comm, run, h, len);
        if (run->active) {
            dcommi_match_insert(comm, &move->node);
        }
        return DCOMMI_CONSUMED;
    }
    bool exact = move->word < 0;
    if (len > move->len || (exact && len != move->len)) {
        dcommi_poison(comm, DCOMM_ERR_MISMATCH,
                      "%s #%" PRIu64 ": rank %d sent %zu bytes to rank %d, which expected %s%zu",
                      dcomm_coll_name((dcomm_coll)run->signature.coll), run->seq, (int)h->src, len,
                      comm->rank, exact ? "" : "at most ", move->len);
        return DCOMMI_CONSUMED;
    }
    move->arrived = len;
    if (DCOMMI_UNLIKELY(h->type == DCOMMI_MSG_OFFER)) {
        dcommi_take_offer(move, h, len);
        return DCOMMI_CONSUMED;
    }
    if (DCOMMI_UNLIKELY(move->device)) {
        return dcommi_copy_in(move, h, transport, data, desc, len);
    }
    if (h->type == DCOMMI_MSG_RTS) {
        dcommi_header answer = dcommi_header_of(run, DCOMMI_MSG_FIN, h->tag);
        answer.stage = h->stage;
        dcomm_status status = dcommi_read_offer(move, dcommi_header_wide(h), h->a, len);
        if (status == DCOMM_ERR_UNSUPPORTED) {
            answer.type = DCOMMI_MSG_PULL;
            dcommi_match_insert(comm, &move->node); /* the same receive now waits for DATA */
            status = DCOMM_OK;
        }
        DCOMMI_THEN(status, dcommi_send_header(comm, (int)h->src, &answer, NULL, 0));
        if (status < 0) {
            dcommi_poison(comm, status, "reading from rank %d failed: %s", (int)h->src,
                          dcommi_message);
        } else if (answer.type == DCOMMI_MSG_FIN) {
            if (move->word >= 0) {
                move->lane->frame->words[move->word] = len;
            }
            dcommi_move_complete(move);
        }
        return DCOMMI_CONSUMED;
    }
    if (data != NULL || len == 0) {
        dcommi_received(move, data, len);
        return DCOMMI_CONSUMED;
    }
    move->op.done = dcommi_fetched;
    dcommi_move_in_transport(move);
    dcomm_status status = transport->call->fetch(transport, desc, move->buf, len, &move->op);
    if (status != DCOMM_IN_PROGRESS) {
        dcommi_fetched(&move->op, status);
    }
    return DCOMMI_KEEP;
}

/* Post the receive of a filled-in move. Its message may have come already. */
static void dcommi_recv_post(dcommi_move *move, int rank, uint32_t tag)
{
    dcommi_run *run = move->run;
    dcomm_comm *comm = run->comm;
    move->node = dcommi_key(DCOMMI_NODE_POSTED, run->stream, run->seq, run->stage, rank, tag);
    if (comm->early_count > 0) {
        dcommi_match_node key = move->node;
        key.cls = DCOMMI_NODE_EARLY;
        dcommi_match_node *node = dcommi_match_take(comm, &key);
        if (node != NULL) {
            dcommi_early *early = (dcommi_early *)node;
            comm->early_bytes -= early->len;
            comm->early_count--;
            dcommi_run_event(run);
            dcommi_verdict verdict =
                dcommi_deliver(move, &early->header, early->transport, early->data, early->desc);
            if (verdict == DCOMMI_KEEP) {
                early->desc = NULL; /* the fetch has taken it */
                early->data = NULL;
            }
            dcommi_early_free(early);
            return;
        }
    }
    dcommi_match_insert(comm, &move->node);
}

#endif
