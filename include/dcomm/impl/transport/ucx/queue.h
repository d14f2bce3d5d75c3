/* queue.h - messages that UCX sends at once or not at all. What it cannot send waits here, in a
 * queue of each connection: UCX 1.13 aborts the process if a peer dies while UCX itself holds an
 * answer for it, and connects two endpoints by such answers as soon as it must hold a message. */
#ifndef DCOMMI_UCX_QUEUE_H
#define DCOMMI_UCX_QUEUE_H

#include "peer.h"

/* The numbers of UCX's active messages. */
enum {
    DCOMMI_UCX_MESSAGE = 1, /* with its payload */
    DCOMMI_UCX_ASK,         /* a long message, or a part of it, whose payload the sender keeps */
    DCOMMI_UCX_ANSWER,      /* the receiver takes the payload, or not */
    DCOMMI_UCX_BYTES        /* a piece of a payload */
};

#define DCOMMI_UCX_PIECE 65536   /* bytes of payload in a message at most */
#define DCOMMI_UCX_SEGMENT "65k" /* of UCX: such a message with its headers */
#define DCOMMI_UCX_PUMP 8        /* messages sent on a connection before others are received */

/* Ahead of a piece of payload. */
typedef struct dcommi_ucx_piece {
    uint64_t id; /* of the sender */
    uint64_t at;
    uint32_t number;
    uint8_t part, zero[3];
} dcommi_ucx_piece;

/* Have UCX send a message now. UCS_ERR_NO_RESOURCE: it cannot. */
static ucs_status_t dcommi_ucx_now(dcommi_ucx_peer *p, int connection, unsigned kind,
                                   const void *header, size_t header_len, const void *data,
                                   size_t len)
{
    const ucp_request_param_t param = {.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS |
                                                       UCP_OP_ATTR_FIELD_MEMORY_TYPE |
                                                       UCP_OP_ATTR_FLAG_FORCE_IMM_CMPL,
                                       .flags = UCP_AM_SEND_FLAG_EAGER,
                                       .memory_type = UCS_MEMORY_TYPE_HOST};
    if (p->ep[connection] == NULL) {
        return connection >= p->opened ? UCS_ERR_NO_RESOURCE : UCS_ERR_CONNECTION_RESET;
    }
    ucs_status_ptr_t answer =
        ucp_am_send_nbx(p->ep[connection], kind, header, header_len, data, len, &param);
    return UCS_PTR_STATUS(answer);
}

static void dcommi_ucx_queue_put(dcommi_ucx_queue *q, dcommi_ucx_flight *f)
{
    dcommi_ucx_peer *p = f->peer;
    f->behind = NULL;
    *(q->first == NULL ? &q->first : &q->last->behind) = f;
    q->last = f;
    if (!p->waits) {
        p->waits = true;
        p->next_waiting = p->ucx->waiting;
        p->ucx->waiting = p;
    }
}

/* Move what waits for one connection to the end of another's queue. */
static void dcommi_ucx_queue_move(dcommi_ucx_peer *p, int from, int to)
{
    for (dcommi_ucx_flight *f; (f = p->messages[from].first) != NULL;) {
        p->messages[from].first = f->behind;
        p->load[from] -= f->load;
        p->load[to] += f->load;
        f->connection = to;
        dcommi_ucx_queue_put(&p->messages[to], f);
    }
}

/* Send a message: at once, or when those before it have gone. A message that asks, by its tail, is
 * done when its payload has gone or the receiver wants none. */
static dcomm_status dcommi_ucx_post(dcommi_ucx_peer *p, int connection, unsigned kind,
                                    const void *header, size_t header_len,
                                    const dcommi_ucx_tail *tail, const void *data, size_t len,
                                    dcommi_op *op)
{
    const bool first = p->messages[connection].first == NULL;
    ucs_status_t status = UCS_ERR_NO_RESOURCE;
    if (DCOMMI_LIKELY(first && tail == NULL)) {
        status = dcommi_ucx_now(p, connection, kind, header, header_len, data, len);
        if (status != UCS_ERR_NO_RESOURCE) {
            return dcommi_ucx_status(status);
        }
    }
    dcommi_ucx_flight *f = dcommi_ucx_flight_start(p->ucx, p, false, connection, len, op);
    if (f == NULL) {
        return DCOMM_ERR_NO_MEMORY;
    }
    f->stage = DCOMMI_UCX_QUEUED;
    f->kind = kind;
    f->asks = tail != NULL;
    f->data = data;
    f->len = len;
    f->header_len = header_len;
    memcpy(f->header, header, header_len);
    if (tail != NULL) {
        memcpy(f->header + header_len, tail, sizeof *tail);
        f->header_len += sizeof *tail;
        f->number = tail->number;
        f->part = tail->part;
        status = first ? dcommi_ucx_now(p, connection, kind, f->header, f->header_len, NULL, 0)
                       : UCS_ERR_NO_RESOURCE;
        if (status == UCS_OK) {
            f->stage = DCOMMI_UCX_ASKED;
            return DCOMM_IN_PROGRESS;
        }
    }
    if (status != UCS_ERR_NO_RESOURCE) {
        dcommi_ucx_flight_end(f);
        return dcommi_ucx_status(status);
    }
    dcommi_ucx_queue_put(&p->messages[connection], f);
    return DCOMM_IN_PROGRESS;
}

/* Send the next piece of a payload. Return false if UCX cannot. */
static bool dcommi_ucx_pump_payload(dcommi_ucx_peer *p, dcommi_ucx_queue *q)
{
    dcommi_ucx_flight *f = q->first;
    const size_t left = f->len - f->at, len = left < DCOMMI_UCX_PIECE ? left : DCOMMI_UCX_PIECE;
    const dcommi_ucx_piece piece = {
        .id = p->ucx->id, .at = f->at, .number = f->number, .part = f->part};
    ucs_status_t status = dcommi_ucx_now(p, f->connection, DCOMMI_UCX_BYTES, &piece, sizeof piece,
                                         f->data + f->at, len);
    if (status == UCS_ERR_NO_RESOURCE) {
        return false;
    }
    f->at += len;
    if (status != UCS_OK || f->at == f->len) {
        q->first = f->behind;
        dcommi_ucx_flight_landed(f, dcommi_ucx_status(status));
    }
    return true;
}

/* Send the next queued message. Return false if UCX cannot. */
static bool dcommi_ucx_pump_message(dcommi_ucx_peer *p, dcommi_ucx_queue *q)
{
    dcommi_ucx_flight *f = q->first;
    ucs_status_t status = dcommi_ucx_now(p, f->connection, f->kind, f->header, f->header_len,
                                         f->asks ? NULL : f->data, f->asks ? 0 : f->len);
    if (status == UCS_ERR_NO_RESOURCE) {
        return false;
    }
    q->first = f->behind;
    if (status == UCS_OK && f->asks) {
        f->stage = DCOMMI_UCX_ASKED;
    } else {
        dcommi_ucx_flight_landed(f, dcommi_ucx_status(status));
    }
    return true;
}

/* Send what is queued, messages before payloads. What waits for a connection that is still to be
 * opened stays. Return how many messages UCX took. */
static unsigned dcommi_ucx_pump(dcommi_ucx *u)
{
    unsigned n = 0;
    for (dcommi_ucx_peer **link = &u->waiting; *link != NULL;) {
        dcommi_ucx_peer *p = *link;
        const int connections = p->opened > p->wanted ? p->opened : p->wanted;
        bool more = false;
        for (int i = 0; i < connections; i++) {
            dcommi_ucx_queue *messages = &p->messages[i], *payloads = &p->payloads[i];
            bool goes_on = true;
            for (int k = 0; k < DCOMMI_UCX_PUMP && goes_on; k++) {
                goes_on = messages->first != NULL   ? dcommi_ucx_pump_message(p, messages)
                          : payloads->first != NULL ? dcommi_ucx_pump_payload(p, payloads)
                                                    : false;
                n += goes_on;
            }
            more = more || messages->first != NULL || payloads->first != NULL;
        }
        if (more) {
            link = &p->next_waiting;
        } else {
            *link = p->next_waiting;
            p->waits = false;
        }
    }
    return n;
}

#endif
