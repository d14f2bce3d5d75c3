/* copy_in.h - receives whose message or destination is device memory. A payload that a device
 * offers is asked for (pull.h), wherever it is to go. A payload goes from host memory to a device
 * through pinned slots. The fold of each part is queued behind its copy. */
#ifndef DCOMMI_COPY_IN_H
#define DCOMMI_COPY_IN_H

#include "copy_across.h"
#include "device_region.h"
#include "../pull.h"

/* End a receive whose payload is in place. */
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
    if (!dcommi_good(run->comm, dcommi_send_header(run->comm, move->node.peer, &fin, NULL, 0))) {
        return;
    }
    dcommi_received_all(move, move->arrived);
}

/* End a receive whose offered payload was read where it lies. */
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
    dcommi_slot *slot = dcommi_alloc(sizeof *slot); /* a job and its move, without memory */
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
    (void)dcommi_good(run->comm, dcommi_pull_by_message(move->lane, device, move, &to, pieces, n,
                                                        len, fold, move->final, move->async));
}

/* ---- from host memory to a device ---- */

/* A payload on its way. Its move counts as in transport, so that it and its run stay. */
typedef struct dcommi_pour {
    dcommi_op op; /* first: of the fetch */
    dcommi_move *move;
    dcommi_transport *transport;
    void *desc;          /* to be released; NULL: none */
    uint8_t *own;        /* to be freed; NULL: none */
    const uint8_t *data; /* NULL: it lies in the sender's process */
    uint64_t address;    /* there */
    size_t len;
    bool offered;
    bool forbidden; /* the kernel forbids us to read it */
} dcommi_pour;

static dcomm_status dcommi_pour_load(void *user, uint8_t *to, size_t at, size_t n)
{
    dcommi_pour *pour = user;
    if (pour->data != NULL) {
        memcpy(to, pour->data + at, n);
        return DCOMM_OK;
    }
    dcomm_comm *comm = pour->move->run->comm;
    const int peer = pour->move->node.peer;
    dcomm_status status =
        dcommi_read_part(dcommi_read_process(comm, peer, to, pour->address + at, n), at, peer);
    pour->forbidden = status == DCOMM_ERR_UNSUPPORTED;
    return status;
}

/* Queue the fold of a part behind its copy to the device. */
static dcomm_status dcommi_pour_fold(void *user, size_t at, size_t n)
{
    const dcommi_move *move = ((dcommi_pour *)user)->move;
    const void *src[DCOMMI_FOLD_SOURCES];
    for (int i = 0; i < move->nsrc; i++) {
        src[i] = (i == move->msg_at ? move->buf : (const uint8_t *)move->src[i]) + at;
    }
    return dcommi_fold_on_device(move->lane, move->dst + at, src, move->nsrc, n, move->final);
}

/* End a copy: all is there or, after a failure, nothing of it is under way any more. Ask by
 * message for what the kernel forbids us to read. */
static void dcommi_pour_end(void *user, bool good)
{
    dcommi_pour *pour = user;
    dcommi_move *move = pour->move;
    dcommi_run *run = move->run;
    const bool offered = pour->offered, forbidden = pour->forbidden;
    const size_t len = pour->len;
    if (pour->desc != NULL) {
        pour->transport->call->release(pour->transport, pour->desc);
    }
    dcommi_free(pour->own);
    dcommi_free(pour);
    dcommi_move_out_of_transport(move);
    if (forbidden && run->active) {
        dcommi_header pull = dcommi_header_of(run, DCOMMI_MSG_PULL, move->node.tag);
        dcommi_match_insert(run->comm, &move->node);
        (void)dcommi_good(run->comm,
                          dcommi_send_header(run->comm, move->node.peer, &pull, NULL, 0));
    } else if (!good) {
        dcommi_move_free(move);
    } else if (offered) {
        dcommi_offer_taken(move);
    } else {
        dcommi_received_all(move, len);
    }
    dcommi_run_unref(run);
}

static void dcommi_pour_start(dcommi_pour *pour)
{
    dcommi_move *move = pour->move;
    const dcommi_across copy = {.run = move->run,
                                .then = dcommi_pour_end,
                                .load = dcommi_pour_load,
                                .behind = move->kind == DCOMMI_MOVE_FOLD ? dcommi_pour_fold : NULL,
                                .user = pour,
                                .queue = DCOMMI_QUEUE_IN,
                                .dst = move->buf,
                                .len = pour->len};
    if (!dcommi_good(move->run->comm, dcommi_across_start(&copy))) {
        dcommi_pour_end(pour, false);
    }
}

static void dcommi_pour_fetched(dcommi_op *op, dcomm_status status)
{
    dcommi_pour *pour = (dcommi_pour *)op;
    if (status < 0 && pour->move->run->active) {
        dcommi_move_failed(pour->move, status, "receiving from");
    }
    if (status >= 0 && pour->move->run->active) {
        dcommi_pour_start(pour);
    } else {
        dcommi_pour_end(pour, false);
    }
}

static dcommi_verdict dcommi_copy_in(dcommi_move *move, const dcommi_header *h,
                                     dcommi_transport *transport, const void *data, void *desc,
                                     size_t len)
{
    if (len == 0) {
        dcommi_received_all(move, 0);
        return DCOMMI_CONSUMED;
    }
    const bool rts = h->type == DCOMMI_MSG_RTS, fetch = !rts && data == NULL;
    const bool owns = !rts && (fetch || desc == NULL);
    dcommi_pour *pour = dcommi_alloc(sizeof *pour);
    uint8_t *own = pour != NULL && owns ? dcommi_alloc_raw(len) : NULL;
    if (!dcommi_have(move->run->comm, owns ? own : (void *)pour)) {
        dcommi_free(pour);
        return DCOMMI_CONSUMED;
    }
    *pour = (dcommi_pour){.move = move,
                          .transport = transport,
                          .own = own,
                          .len = len,
                          .offered = rts,
                          .data = rts    ? NULL
                                  : owns ? own
                                         : data,
                          .desc = rts || fetch ? NULL : desc,
                          .address = h->a};
    dcommi_move_in_transport(move);
    if (fetch) {
        pour->op.done = dcommi_pour_fetched;
        dcomm_status status = transport->call->fetch(transport, desc, own, len, &pour->op);
        if (status != DCOMM_IN_PROGRESS) {
            dcommi_pour_fetched(&pour->op, status);
        }
        return DCOMMI_KEEP;
    }
    if (owns) {
        memcpy(own, data, len);
    }
    const dcommi_verdict verdict = desc != NULL && !rts ? DCOMMI_KEEP : DCOMMI_CONSUMED;
    dcommi_pour_start(pour);
    return verdict;
}

#endif
