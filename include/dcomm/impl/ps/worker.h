/* worker.h - a worker: cuts a push or a pull into a piece for each server, sends the pieces in
 * order, and puts together the answers. With the token, but for what makes the pieces. */
#ifndef DCOMMI_PS_WORKER_H
#define DCOMMI_PS_WORKER_H

#include "server.h"

/* ---- the end of a call ---- */

/* Complete a call: its request, for whoever waits. */
static void dcommi_ps_call_end(dcomm_ps *ps, dcommi_ps_call *call)
{
    dcommi_run *run = call->run;
    dcomm_context *context = ps->comm->context;
    if (call->pulls) {
        ps->stats.wait_s += dcommi_now() - call->began;
    }
    run->why = call->status < 0 ? dcommi_strdup(call->why) : NULL;
    run->next_finished = context->finished;
    context->finished = run;
    ps->comm->stats.operations += call->status == DCOMM_OK;
    atomic_store_explicit(&run->status, call->status, memory_order_release);
    dcommi_free(call->place);
    dcommi_free(call);
}

/* Free a piece that neither the transport nor a list holds. */
static void dcommi_ps_piece_free(dcommi_ps_piece *piece)
{
    dcommi_free(piece->packed);
    dcommi_free(piece->fetched);
    dcommi_free(piece);
}

static void dcommi_ps_enqueue(dcomm_ps *ps, dcommi_ps_piece *piece);

/* Ask the replica for what a server that is lost has not answered. Return false without memory. */
static bool dcommi_ps_ask_twin(const dcommi_ps_piece *piece)
{
    dcommi_ps_piece *again = dcommi_alloc(sizeof *again);
    void *packed = again != NULL && piece->packed != NULL ? dcommi_alloc_raw(piece->len) : NULL;
    if (again == NULL || (piece->packed != NULL && packed == NULL)) {
        dcommi_free(again);
        return false;
    }
    if (packed != NULL) { /* the transport may still read the other */
        memcpy(packed, piece->packed, piece->len);
    }
    *again = (dcommi_ps_piece){.ps = piece->ps->twin,
                               .call = piece->call,
                               .server = piece->server,
                               .header = piece->header,
                               .data = packed,
                               .len = piece->len,
                               .packed = packed,
                               .out = piece->out,
                               .place = piece->place,
                               .bytes = piece->bytes,
                               .awaited = -1};
    dcommi_ps_enqueue(again->ps, again);
    return true;
}

/* Note that a piece is done, or has failed. It is freed when the transport has given it back. The
 * loss of a server is no failure if its replica has the push, or answers the pull. */
static void dcommi_ps_piece_end(dcommi_ps_piece *piece, dcomm_status status, const char *why)
{
    dcomm_ps *ps = piece->ps;
    dcommi_ps_call *call = piece->call;
    const bool covered = status == DCOMM_ERR_PEER && call != NULL && ps->twin != NULL &&
                         !ps->twin->to[piece->server].lost;
    if (covered && !call->pulls) {
        status = DCOMM_OK;
    } else if (covered && ps->shift == 0 && dcommi_ps_ask_twin(piece)) {
        call = NULL;
    }
    piece->call = NULL;
    piece->waits = false;
    if (call != NULL) {
        if (status < 0 && call->status == DCOMM_OK) {
            call->status = status;
            snprintf(call->why, sizeof call->why, "%.399s", why);
        }
        if (--call->left == 0) {
            dcommi_ps_call_end(ps, call);
        }
    }
    if (!piece->sending && !piece->fetching) {
        dcommi_ps_piece_free(piece);
    }
}

/* ---- sending ---- */

/* End a piece. If it has failed, the sentence names its server. */
static void dcommi_ps_piece_over(dcommi_ps_piece *piece, dcomm_status status, const char *why)
{
    char text[DCOMMI_TEXT_MAX];
    const dcomm_ps *ps = piece->ps, *twin = ps->twin;
    const int k = piece->server, rank = ps->to[k].rank;
    if (twin != NULL && twin->to[k].lost) {
        const int other = twin->to[k].rank;
        snprintf(text, sizeof text, "server %d and its replica (ranks %d and %d): %.150s; %.150s",
                 k, ps->shift == 0 ? rank : other, ps->shift == 0 ? other : rank, why,
                 twin->to[k].why);
    } else {
        snprintf(text, sizeof text, "server %d (rank %d): %.340s", k, rank, why);
    }
    dcommi_ps_piece_end(piece, status, text);
}

/* The transport has given back a piece that it sent. */
static void dcommi_ps_sent(dcommi_op *op, dcomm_status status)
{
    dcommi_ps_piece *piece = (dcommi_ps_piece *)op;
    dcomm_ps *ps = piece->ps;
    piece->sending = false;
    if (!piece->fetching && (!piece->waits || status < 0)) { /* else its values end it */
        DCOMMI_LIST_REMOVE(ps->to[piece->server].pulling, piece, next);
        dcommi_ps_piece_over(piece, status, "it cannot be reached");
    }
    dcommi_ps_op_ends(ps);
}

/* Send a piece. */
static void dcommi_ps_send(dcomm_ps *ps, dcommi_ps_piece *piece)
{
    dcommi_ps_to *to = &ps->to[piece->server];
    piece->header.seq = to->sent++;
    piece->waits = piece->header.slot == DCOMMI_PS_PULL;
    if (piece->waits) {
        piece->next = to->pulling;
        to->pulling = piece;
    }
    if (to->rank == ps->rank) {
        const bool waits = piece->waits;
        dcommi_ps_tell(ps, ps->rank, &piece->header, piece->data, piece->len);
        if (!waits) {
            dcommi_ps_piece_end(piece, DCOMM_OK, NULL);
        }
        return;
    }
    piece->sending = true;
    piece->op.done = dcommi_ps_sent;
    dcommi_ps_op_begins(ps);
    const dcomm_status status =
        dcommi_post(ps->comm, to->rank, &piece->header, piece->data, piece->len, &piece->op);
    if (status == DCOMM_IN_PROGRESS) {
        return;
    }
    piece->sending = false;
    if (status < 0 && piece->waits) {
        DCOMMI_LIST_REMOVE(to->pulling, piece, next);
    }
    if (status < 0 || !piece->waits) {
        dcommi_ps_piece_over(piece, status, dcommi_message);
    }
    dcommi_ps_op_ends(ps);
}

/* Send the pieces for which the server has room. */
static void dcommi_ps_to_pump(dcomm_ps *ps, int k)
{
    dcommi_ps_to *to = &ps->to[k];
    while (to->queue != NULL && (to->lost || to->sent - to->acked < DCOMMI_PS_WINDOW)) {
        dcommi_ps_piece *piece = to->queue;
        to->queue = piece->next;
        piece->next = NULL;
        if (to->lost) {
            dcommi_ps_piece_over(piece, DCOMM_ERR_PEER, to->why);
        } else {
            dcommi_ps_send(ps, piece);
        }
    }
}

/* Put a piece behind those for the same server. */
static void dcommi_ps_enqueue(dcomm_ps *ps, dcommi_ps_piece *piece)
{
    dcommi_ps_to *to = &ps->to[piece->server];
    dcommi_ps_piece **at = &to->queue;
    while (*at != NULL) {
        at = &(*at)->next;
    }
    *at = piece;
    dcommi_ps_to_pump(ps, piece->server);
}

/* ---- answers ---- */

/* Put the values of a pull in place. */
static void dcommi_ps_place(const dcommi_ps_piece *piece, const uint8_t *values)
{
    const dcomm_ps *ps = piece->ps;
    const size_t rows = (size_t)piece->header.b, each = piece->place != NULL ? 1 : rows;
    const dcommi_ps_param *p = &ps->params[piece->header.tag];
    const size_t row = dcommi_ps_row_bytes(ps, piece->header.tag);
    for (size_t j = 0; j < rows; j += each) {
        const size_t place = piece->place != NULL ? piece->place[j] : 0;
        const uint8_t *from = values + j * (piece->bytes / rows);
        if (p->pulled == p->dtype) {
            memcpy(piece->out + place * row, from, each * row);
        } else { /* the caller's are f32 */
            dcommi_ps_uncast((float *)(void *)(piece->out + place * row), from,
                             each * (size_t)p->cols, p->pulled);
        }
    }
}

static void dcommi_ps_values_fetched(dcommi_op *op, dcomm_status status)
{
    dcommi_ps_piece *piece = (dcommi_ps_piece *)((char *)op - offsetof(dcommi_ps_piece, fetch));
    dcomm_ps *ps = piece->ps;
    piece->fetching = false;
    if (status >= 0 && piece->call != NULL && piece->fetched != NULL) {
        dcommi_ps_place(piece, piece->fetched);
    }
    dcommi_ps_piece_over(piece, status, "its values cannot be fetched");
    dcommi_ps_op_ends(ps);
}

/* Bring the values of a pull here: to their place, or first to memory of their own. */
static void dcommi_ps_fetch_values(dcomm_ps *ps, dcommi_ps_piece *piece,
                                   dcommi_transport *transport, void *desc)
{
    piece->fetching = true;
    piece->fetch.done = dcommi_ps_values_fetched;
    dcommi_ps_op_begins(ps);
    const dcomm_status status = transport->call->fetch(
        transport, desc, piece->fetched != NULL ? piece->fetched : (void *)piece->out, piece->bytes,
        &piece->fetch);
    if (status != DCOMM_IN_PROGRESS) {
        dcommi_ps_values_fetched(&piece->fetch, status);
    }
}

/* Take the values of a pull. */
static dcommi_verdict dcommi_ps_on_values(dcomm_ps *ps, int k, const dcommi_header *h,
                                          dcommi_transport *transport,
                                          const dcommi_arrival *arrival)
{
    dcommi_ps_to *to = &ps->to[k];
    dcommi_ps_piece *piece = to->pulling;
    while (piece != NULL && piece->header.seq != h->seq) {
        piece = piece->next;
    }
    if (piece == NULL || arrival->len != piece->bytes) {
        return DCOMMI_CONSUMED; /* its time was up */
    }
    DCOMMI_LIST_REMOVE(to->pulling, piece, next);
    if ((ps->opts.quorum > 0 || ps->opts.deadline_s > 0) && h->a > ps->at_clock) {
        ps->at_clock = h->a;
    }
    ps->stats.bytes_pulled += to->rank != ps->rank ? piece->bytes : 0;
    if (arrival->data != NULL) {
        dcommi_ps_place(piece, arrival->data);
        dcommi_ps_piece_end(piece, DCOMM_OK, NULL);
        return DCOMMI_CONSUMED;
    }
    const dcommi_ps_param *p = &ps->params[piece->header.tag];
    const bool as_it_is = piece->place == NULL && p->pulled == p->dtype;
    piece->fetched = as_it_is ? NULL : dcommi_alloc_raw(piece->bytes);
    if (!as_it_is && piece->fetched == NULL) {
        dcommi_ps_piece_end(piece, DCOMM_ERR_NO_MEMORY, dcommi_message);
        return DCOMMI_CONSUMED;
    }
    dcommi_ps_fetch_values(ps, piece, transport, arrival->desc);
    return DCOMMI_KEEP;
}

/* Fail all that this worker has with a server. */
static void dcommi_ps_server_lost(dcomm_ps *ps, int k, const char *why)
{
    dcommi_ps_to *to = &ps->to[k];
    if (to->lost) {
        return;
    }
    to->lost = true;
    snprintf(to->why, sizeof to->why, "%.399s", why);
    while (to->pulling != NULL) {
        dcommi_ps_piece *piece = to->pulling;
        to->pulling = piece->next;
        dcommi_ps_piece_over(piece, DCOMM_ERR_PEER, why);
    }
    dcommi_ps_to_pump(ps, k);
}

/* Handle a server's message. */
static dcommi_verdict dcommi_ps_heard(dcomm_ps *ps, const dcommi_header *h,
                                      dcommi_transport *transport, const dcommi_arrival *arrival)
{
    int k = 0;
    while (k < ps->nservers && ps->to[k].rank != (int)h->src) {
        k++;
    }
    if (k == ps->nservers || ps->to[k].lost) {
        return DCOMMI_CONSUMED;
    }
    dcommi_ps_to *to = &ps->to[k];
    if (h->slot == DCOMMI_PS_VALUES) {
        return dcommi_ps_on_values(ps, k, h, transport, arrival);
    }
    if (h->slot == DCOMMI_PS_ACK && h->a > to->acked && h->a <= to->sent) {
        to->acked = h->a;
        dcommi_ps_to_pump(ps, k);
    }
    for (dcommi_ps_piece *piece = to->pulling; piece != NULL; piece = piece->next) {
        if (h->slot == DCOMMI_PS_WAITS && piece->header.seq == h->seq &&
            h->a < (uint64_t)ps->size) {
            piece->awaited = (int)h->a;
            piece->awaited_clock = h->b;
        }
    }
    if (h->slot == DCOMMI_PS_DROPPED && arrival->data != NULL) {
        char text[DCOMMI_TEXT_MAX + 1];
        dcommi_peer_text(text, arrival->data,
                         arrival->len < DCOMMI_TEXT_MAX ? arrival->len : DCOMMI_TEXT_MAX);
        dcommi_ps_server_lost(ps, k, text);
    }
    return DCOMMI_CONSUMED;
}

/* ---- on time ---- */

/* Say what a piece waits for. */
static void dcommi_ps_late_text(const dcomm_ps *ps, const dcommi_ps_piece *piece, char *text,
                                size_t len)
{
    const char *name = ps->params[piece->header.tag].name;
    const int server = ps->to[piece->server].rank;
    if (piece->awaited >= 0) {
        snprintf(
            text, len,
            "the pull of \"%.80s\" timed out after %.3g s: rank %d waits for worker %d, which has "
            "ended %" PRIu64 " clocks; this one has ended %" PRIu64,
            name, ps->opts.timeout_s, server, piece->awaited, piece->awaited_clock, ps->at_clock);
    } else {
        snprintf(text, len,
                 "the %s of \"%.80s\" timed out after %.3g s: the server on rank %d does "
                 "not answer",
                 piece->header.slot == DCOMMI_PS_PULL ? "pull" : "push", name, ps->opts.timeout_s,
                 server);
    }
}

/* Take the pieces out of a list whose time is up. */
static void dcommi_ps_expire(dcomm_ps *ps, dcommi_ps_piece **list, double now)
{
    char text[DCOMMI_TEXT_MAX];
    for (dcommi_ps_piece **at = list; *at != NULL;) {
        dcommi_ps_piece *piece = *at;
        if (piece->call == NULL || now < piece->call->until) {
            at = &piece->next;
            continue;
        }
        *at = piece->next;
        dcommi_ps_late_text(ps, piece, text, sizeof text);
        dcommi_ps_piece_end(piece, DCOMM_ERR_TIMEOUT, text);
    }
}

static void dcommi_ps_worker_check(dcomm_ps *ps, double now)
{
    const double every = dcommi_silence_every(ps->comm->context);
    for (int k = 0; k < ps->nservers; k++) {
        dcommi_ps_to *to = &ps->to[k];
        if ((to->queue != NULL || to->pulling != NULL) && to->rank != ps->rank && !to->lost) {
            dcommi_suspect_look(ps->comm, to->rank, now, every);
        }
        dcommi_ps_expire(ps, &to->pulling, now);
        dcommi_ps_expire(ps, &to->queue, now);
    }
}

#endif
