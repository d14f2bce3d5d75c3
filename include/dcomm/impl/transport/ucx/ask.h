/* ask.h - long messages whose payload the sender keeps until the receiver has a buffer. The sender
 * asks, the receiver answers, and the payload comes in pieces. Used where UCX sends at once. */
#ifndef DCOMMI_UCX_ASK_H
#define DCOMMI_UCX_ASK_H

#include "queue.h"

typedef struct dcommi_ucx_answer {
    uint64_t id; /* of the receiver, who answers */
    uint32_t number;
    uint8_t part;
    uint8_t takes; /* 0: it wants none */
    uint8_t zero[2];
} dcommi_ucx_answer;

static dcomm_status dcommi_ucx_reply(dcommi_ucx_peer *p, const dcommi_ucx_tail *tail, bool takes)
{
    dcommi_ucx *u = p->ucx;
    const dcommi_ucx_answer answer = {
        .id = u->id, .number = tail->number, .part = tail->part, .takes = takes};
    DCOMMI_TRY(dcommi_ucx_peer_open(u, p->index, &p));
    return dcommi_ucx_post(p, 0, DCOMMI_UCX_ANSWER, &answer, sizeof answer, NULL, NULL, 0, NULL);
}

/* Tell the sender of a message that nobody wants it. One that cannot be told is lost or removed. */
static void dcommi_ucx_decline(dcommi_ucx *u, const dcommi_ucx_tail *tail)
{
    dcommi_ucx_peer *p = u->closing ? NULL : dcommi_ucx_peer_by_id(u, tail->id);
    if (p != NULL && p->failure == UCS_OK && dcommi_ucx_reply(p, tail, false) < 0) {
        dcommi_log(DCOMMI_LOG_INFO, "net: peer %d waits for an answer: %s", p->index,
                   dcommi_message);
    }
}

/* Ask for the payload of a message, to be stored in `buf`. */
static dcomm_status dcommi_ucx_invite(dcommi_ucx *u, const dcommi_ucx_tail *tail, void *buf,
                                      size_t len, dcommi_op *op)
{
    dcommi_ucx_peer *p = dcommi_ucx_peer_by_id(u, tail->id);
    if (p == NULL) {
        return dcommi_fail(DCOMM_ERR_PEER, "%s: the sender of a message of %zu bytes is unknown",
                           u->base.name, len);
    }
    dcommi_ucx_flight *f = dcommi_ucx_flight_start(u, p, true, 0, 0, op);
    if (f == NULL) {
        return DCOMM_ERR_NO_MEMORY;
    }
    f->stage = DCOMMI_UCX_FETCH;
    f->into = buf;
    f->len = len;
    f->at = 0;
    f->number = tail->number;
    f->part = tail->part;
    dcomm_status status = dcommi_ucx_reply(p, tail, true);
    if (status < 0) {
        dcommi_ucx_flight_end(f);
        return status;
    }
    return DCOMM_IN_PROGRESS;
}

/* Find the flight of a part of a message that goes to, or comes from, the peer with this id. */
static dcommi_ucx_flight *dcommi_ucx_flight_of(dcommi_ucx *u, dcommi_ucx_stage stage, uint64_t id,
                                               uint32_t number, uint8_t part)
{
    for (dcommi_ucx_flight *f = u->pending.next; f != &u->pending; f = f->next) {
        if (f->stage == stage && f->number == number && f->part == part && f->peer != NULL &&
            f->peer->id == id) {
            return f;
        }
    }
    return NULL;
}

/* Handle an answer. Drop one that answers nothing. */
static ucs_status_t dcommi_ucx_on_answer(void *arg, const void *header, size_t header_len,
                                         void *data, size_t len, const ucp_am_recv_param_t *param)
{
    dcommi_ucx *u = arg;
    dcommi_ucx_answer a;
    (void)data, (void)param;
    if (u->closing || header_len != sizeof a || len != 0) {
        return UCS_OK;
    }
    memcpy(&a, header, sizeof a);
    dcommi_ucx_flight *f = dcommi_ucx_flight_of(u, DCOMMI_UCX_ASKED, a.id, a.number, a.part);
    if (f != NULL && a.takes) {
        f->stage = DCOMMI_UCX_PAYLOAD;
        f->at = 0;
        dcommi_ucx_queue_put(&f->peer->payloads[f->connection], f);
    } else if (f != NULL) {
        dcommi_ucx_flight_landed(f, DCOMM_OK);
    }
    return UCS_OK;
}

/* Store a piece of payload. Pieces of a fetch that was given up find no flight. One that does not
 * follow those before it, or is too long, fails the fetch. */
static ucs_status_t dcommi_ucx_on_payload(void *arg, const void *header, size_t header_len,
                                          void *data, size_t len, const ucp_am_recv_param_t *param)
{
    dcommi_ucx *u = arg;
    dcommi_ucx_piece piece;
    (void)param;
    if (u->closing || header_len != sizeof piece) {
        return UCS_OK;
    }
    memcpy(&piece, header, sizeof piece);
    dcommi_ucx_flight *f =
        dcommi_ucx_flight_of(u, DCOMMI_UCX_FETCH, piece.id, piece.number, piece.part);
    if (f == NULL) {
        return UCS_OK;
    }
    if (piece.at != f->at || len > f->len - f->at) {
        dcommi_ucx_flight_landed(f, DCOMM_ERR_CORRUPT);
        return UCS_OK;
    }
    memcpy(f->into + f->at, data, len);
    f->at += len;
    if (f->at == f->len) {
        dcommi_ucx_flight_landed(f, DCOMM_OK);
    }
    return UCS_OK;
}

#endif
