/* copy_in.h - receives whose message or whose place is device memory. What a device offers is asked
 * for (pull.h), wherever it is to go; what comes from the host's memory to a device goes through
 * pinned slots, and behind each part of it the fold of that part. */
#ifndef DCOMMI_COPY_IN_H
#define DCOMMI_COPY_IN_H

#include "device_region.h"
#include "../pull.h"

/* The payload is where it belongs: the receive is over. */
static void dcommi_received_all(dcommi_move *move, size_t len)
{
    if (move->word >= 0) {
        move->lane->frame->words[move->word] = len;
    }
    dcommi_move_complete(move);
}

/* ---- offers ---- */

static void dcommi_offer_taken(dcommi_move *move)
{
    dcommi_run *run = move->run;
    dcommi_header fin = dcommi_header_of(run, DCOMMI_MSG_FIN, move->node.tag);
    dcomm_status status = dcommi_send_header(run->comm, move->node.peer, &fin, NULL, 0);
    if (status < 0) {
        dcommi_poison(run->comm, status, "%s", dcommi_message);
        return;
    }
    dcommi_received_all(move, move->arrived);
}

/* What is offered is read where it lies. */
static void dcommi_offer_read(dcommi_job *job, dcomm_status status)
{
    dcommi_slot *slot = (dcommi_slot *)job;
    if (status >= 0 && job->run->active) {
        dcommi_run_event(job->run);
        dcommi_offer_taken(slot->user);
    }
    dcommi_free(slot);
}

static dcomm_status dcommi_read_device(dcommi_move *move, const uint8_t *at, size_t len)
{
    dcommi_device_handle *d = &move->run->device->handle;
    const void *src[DCOMMI_FOLD_SOURCES];
    dcommi_slot *slot = dcommi_alloc(sizeof *slot); /* without memory: a job and its move */
    if (slot == NULL) {
        return DCOMM_ERR_NO_MEMORY;
    }
    slot->user = move;
    dcomm_status status;
    if (move->kind == DCOMMI_MOVE_FOLD) {
        for (int i = 0; i < move->nsrc; i++) {
            src[i] = i == move->msg_at ? at : move->src[i];
        }
        status = dcommi_fold_on_device(move->lane, move->dst, src, move->nsrc, len, move->final);
    } else {
        status = dcommi_device_copy(d, DCOMMI_QUEUE_IN, move->buf, at, len);
    }
    DCOMMI_THEN(status, dcommi_job_start(move->run->device, DCOMMI_QUEUE_IN, &slot->job, move->run,
                                         dcommi_offer_read));
    if (status < 0) {
        dcommi_free(slot);
        return status;
    }
    move->run->comm->stats.bytes_mapped += len;
    return DCOMM_OK;
}

static void dcommi_take_offer(dcommi_move *move, const dcommi_header *h, size_t len)
{
    dcommi_run *run = move->run;
    dcommi_device *device = move->device ? run->device : NULL;
    bool fold = move->kind == DCOMMI_MOVE_FOLD;
    dcommi_piece pieces[DCOMMI_FOLD_SOURCES];
    size_t n = fold ? move->nsrc : 1;
    if (len == 0) {
        dcommi_offer_taken(move);
        return;
    }
    const uint8_t *there =
        device != NULL
            ? dcommi_resolve_peer_device(run, move->node.peer, dcommi_header_wide(h), h->a, len)
            : NULL;
    if (there != NULL) {
        dcomm_status read = dcommi_read_device(move, there, len);
        if (read < 0) {
            dcommi_device_failed(run, read);
        }
        return;
    }
    memset(pieces, 0, sizeof pieces);
    for (size_t i = 0; i < n; i++) {
        pieces[i].local = fold && i != move->msg_at ? move->src[i] : NULL;
        pieces[i].rank = move->node.peer;
        pieces[i].sent = pieces[i].device = pieces[i].local == NULL;
        pieces[i].straight = device != NULL && pieces[i].sent &&
                             dcommi_comes_straight(run, move->node.peer, dcommi_header_wide(h));
    }
    const dcommi_target to = {.dst = fold ? move->dst : move->buf, .past = move->past};
    dcomm_status status = dcommi_pull_by_message(move->lane, device, move, &to, pieces, n, len,
                                                 fold, move->final, move->async);
    if (status < 0) {
        dcommi_poison(run->comm, status, "%s", dcommi_message);
    }
}

/* ---- from host memory to a device ---- */

/* A payload on its way. Its move counts as the transport's, so that it and its run stay. */
typedef struct dcommi_pour {
    dcommi_op op; /* of the fetch; first */
    dcommi_move *move;
    dcommi_transport *transport;
    void *desc;           /* to be released; NULL: none */
    uint8_t *own;         /* to be freed; NULL: none */
    const uint8_t *data;  /* NULL: it lies in the sender's process */
    uint64_t address;     /* there */
    size_t len, at, left; /* at: how much has been put on the device's queue */
    unsigned outstanding; /* slots asked for or in use */
    bool asking, failed, offered;
} dcommi_pour;

static void dcommi_pour_free(dcommi_pour *pour)
{
    if (pour->desc != NULL) {
        pour->transport->call->release(pour->transport, pour->desc);
    }
    dcommi_free(pour->own);
    dcommi_free(pour);
}

/* All is there, or nothing of it is under way any more after a failure. */
static void dcommi_pour_end(dcommi_pour *pour)
{
    dcommi_move *move = pour->move;
    dcommi_run *run = move->run;
    bool live = run->active && !pour->failed, offered = pour->offered;
    size_t len = pour->len;
    dcommi_pour_free(pour);
    dcommi_move_out_of_transport(move);
    if (!live) {
        dcommi_move_free(move);
    } else if (offered) {
        dcommi_offer_taken(move);
    } else {
        dcommi_received_all(move, len);
    }
    dcommi_run_unref(run);
}

static void dcommi_pour_failed(dcommi_pour *pour, dcomm_status status)
{
    pour->failed = true;
    if (pour->move->run->active) {
        dcommi_device_failed(pour->move->run, status);
    }
}

static void dcommi_pour_next(dcommi_pour *pour);

static void dcommi_pour_copied(dcommi_job *job, dcomm_status status)
{
    dcommi_slot *slot = (dcommi_slot *)job;
    dcommi_pour *pour = slot->user;
    pour->left -= slot->block;
    pour->failed = pour->failed || status < 0;
    dcommi_slot_give(slot, DCOMMI_QUEUE_IN); /* which may serve this one: it is not over yet */
    pour->outstanding--;
    dcommi_pour_next(pour);
}

/* Fill a slot, and put it on the device. */
static dcomm_status dcommi_pour_part(dcommi_pour *pour, dcommi_slot *slot, size_t n)
{
    dcommi_move *move = pour->move;
    dcommi_device_handle *d = &slot->device->handle;
    const void *src[DCOMMI_FOLD_SOURCES];
    size_t at = pour->at;
    if (pour->data != NULL) {
        memcpy(slot->memory, pour->data + at, n);
    } else {
        DCOMMI_TRY(dcommi_read_part(dcommi_read_process(move->run->comm, move->node.peer,
                                                        slot->memory, pour->address + at, n),
                                    at, move->node.peer));
    }
    DCOMMI_TRY(dcommi_device_copy(d, DCOMMI_QUEUE_IN, move->buf + at, slot->memory, n));
    if (move->kind == DCOMMI_MOVE_FOLD) {
        for (int i = 0; i < move->nsrc; i++) {
            src[i] = (i == move->msg_at ? move->buf : (const uint8_t *)move->src[i]) + at;
        }
        DCOMMI_TRY(
            dcommi_fold_on_device(move->lane, move->dst + at, src, move->nsrc, n, move->final));
    }
    slot->user = pour;
    slot->block = (unsigned)n;
    return dcommi_job_start(slot->device, DCOMMI_QUEUE_IN, &slot->job, move->run,
                            dcommi_pour_copied);
}

static void dcommi_pour_go(dcommi_slot *slot, void *user)
{
    dcommi_pour *pour = user;
    dcommi_move *move = pour->move;
    size_t n = pour->len - pour->at < DCOMMI_SLOT_BYTES ? pour->len - pour->at : DCOMMI_SLOT_BYTES;
    dcomm_status status = DCOMM_ERR_ABORTED;
    pour->asking = false;
    if (move->run->active && !pour->failed) {
        status = dcommi_pour_part(pour, slot, n);
    }
    if (status >= 0) {
        pour->at += n;
        dcommi_pour_next(pour);
        return;
    }
    pour->outstanding--;
    dcommi_slot_give(slot, DCOMMI_QUEUE_IN);
    if (status == DCOMM_ERR_UNSUPPORTED && move->run->active) { /* the kernel forbids: by message */
        dcommi_run *run = move->run;
        dcommi_header pull = dcommi_header_of(run, DCOMMI_MSG_PULL, move->node.tag);
        int peer = move->node.peer;
        dcommi_pour_free(pour);
        dcommi_move_out_of_transport(move);
        dcommi_match_insert(run->comm, &move->node);
        if ((status = dcommi_send_header(run->comm, peer, &pull, NULL, 0)) < 0) {
            dcommi_poison(run->comm, status, "%s", dcommi_message);
        }
        dcommi_run_unref(run);
        return;
    }
    if (!pour->failed) {
        dcommi_pour_failed(pour, status);
    }
    dcommi_pour_next(pour);
}

/* Ask for one more slot, or end. */
static void dcommi_pour_next(dcommi_pour *pour)
{
    bool more = pour->at < pour->len && !pour->failed && pour->move->run->active;
    if (more && !pour->asking) {
        pour->asking = true;
        pour->outstanding++;
        if (dcommi_slot_ask(pour->move->run->device, DCOMMI_QUEUE_IN, dcommi_pour_go, pour) >= 0) {
            return;
        }
        pour->asking = false;
        pour->outstanding--;
        dcommi_pour_failed(pour, DCOMM_ERR_NO_MEMORY);
    }
    if (pour->outstanding == 0) {
        dcommi_pour_end(pour);
    }
}

static void dcommi_pour_fetched(dcommi_op *op, dcomm_status status)
{
    dcommi_pour *pour = (dcommi_pour *)op;
    if (status < 0 && pour->move->run->active) {
        dcommi_move_failed(pour->move, status, "receiving from");
    }
    pour->failed = status < 0;
    dcommi_pour_next(pour);
}

static dcommi_verdict dcommi_copy_in(dcommi_move *move, const dcommi_header *h,
                                     dcommi_transport *transport, const void *data, void *desc,
                                     size_t len)
{
    dcomm_comm *comm = move->run->comm;
    if (len == 0) {
        dcommi_received_all(move, 0);
        return DCOMMI_CONSUMED;
    }
    bool rts = h->type == DCOMMI_MSG_RTS, fetch = !rts && data == NULL;
    dcommi_pour *pour = dcommi_alloc(sizeof *pour);
    if (pour != NULL && !rts && (fetch || desc == NULL)) {
        pour->own = dcommi_alloc_raw(len);
    }
    if (pour == NULL || (!rts && (fetch || desc == NULL) && pour->own == NULL)) {
        dcommi_free(pour);
        dcommi_poison(comm, DCOMM_ERR_NO_MEMORY, "%s", dcommi_message);
        return DCOMMI_CONSUMED;
    }
    pour->move = move;
    pour->transport = transport;
    pour->len = pour->left = len;
    pour->offered = rts;
    dcommi_move_in_transport(move);
    if (rts) {
        pour->address = h->a;
        dcommi_pour_next(pour);
        return DCOMMI_CONSUMED;
    }
    if (fetch) {
        pour->data = pour->own;
        pour->op.done = dcommi_pour_fetched;
        dcomm_status status = transport->call->fetch(transport, desc, pour->own, len, &pour->op);
        if (status != DCOMM_IN_PROGRESS) {
            dcommi_pour_fetched(&pour->op, status);
        }
        return DCOMMI_KEEP;
    }
    if (desc == NULL) {
        memcpy(pour->own, data, len);
        data = pour->own;
    }
    pour->desc = desc;
    pour->data = data;
    dcommi_pour_next(pour);
    return desc != NULL ? DCOMMI_KEEP : DCOMMI_CONSUMED;
}

#endif
