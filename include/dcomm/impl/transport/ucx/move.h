/* move.h - moves payloads to and from a UCX peer: sends messages whole or in parts, and fetches
 * long ones. */
#ifndef DCOMMI_UCX_MOVE_H
#define DCOMMI_UCX_MOVE_H

#include "parts.h"

/* Longest payload, in bytes, that is sent without first asking the receiver for a buffer. */
#define DCOMMI_UCX_EAGER 65536
/* Longest payload, in bytes, that arrives in order. Longer ones up to DCOMMI_UCX_EAGER are what
 * algorithms cut long blocks into, so they go over all connections. */
#define DCOMMI_UCX_ORDERED 8192

/* Let UCX find the kind of device memory itself: it distinguishes pools from plain memory. */
#define DCOMMI_UCX_DEVICE UCS_MEMORY_TYPE_UNKNOWN

/* Return the status of a request to UCX: done, under way (flight stays pending), or refused. */
static dcomm_status dcommi_ucx_launched(dcommi_ucx_flight *f, ucs_status_ptr_t answer)
{
    if (UCS_PTR_IS_PTR(answer)) {
        return DCOMM_IN_PROGRESS;
    }
    dcommi_ucx_flight_end(f);
    return dcommi_ucx_status(UCS_PTR_STATUS(answer));
}

/* Send one message over one connection. With a tail, the receiver fetches the payload. */
static dcomm_status dcommi_ucx_launch(dcommi_ucx_peer *p, int connection, const void *header,
                                      size_t header_len, const dcommi_ucx_tail *tail,
                                      const void *data, size_t len, ucs_memory_type_t memory,
                                      dcommi_op *op)
{
    dcommi_ucx *u = p->ucx;
    if (u->at_once) {
        dcomm_status posted =
            dcommi_ucx_post(p, connection, tail != NULL ? DCOMMI_UCX_ASK : DCOMMI_UCX_MESSAGE,
                            header, header_len, tail, data, len, op);
        return DCOMMI_LIKELY(posted >= 0)
                   ? posted
                   : dcommi_fail(posted, "%s: a message of %zu bytes to peer %d was not sent: %s",
                                 u->base.name, len, p->index, dcomm_strerror(posted));
    }
    dcommi_ucx_flight *f = dcommi_ucx_flight_start(u, p, false, connection, len, op);
    if (f == NULL) {
        return DCOMM_ERR_NO_MEMORY;
    }
    memcpy(f->header, header, header_len);
    ucp_request_param_t param = {.op_attr_mask =
                                     UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA |
                                     UCP_OP_ATTR_FIELD_FLAGS | UCP_OP_ATTR_FIELD_MEMORY_TYPE,
                                 .flags = UCP_AM_SEND_FLAG_EAGER,
                                 .cb.send = dcommi_ucx_on_sent,
                                 .user_data = f,
                                 .memory_type = memory};
    if (tail != NULL) {
        memcpy(f->header + header_len, tail, sizeof *tail);
        header_len += sizeof *tail;
        param.flags = UCP_AM_SEND_FLAG_RNDV;
    }
    bool direct = u->direct;
    u->direct = false;
    ucs_status_ptr_t answer = ucp_am_send_nbx(p->ep[connection], DCOMMI_UCX_MESSAGE, f->header,
                                              header_len, data, len, &param);
    u->direct = direct;
    dcomm_status status = dcommi_ucx_launched(f, answer);
    if (DCOMMI_UNLIKELY(status < 0)) {
        dcommi_fail(status, "%s: a message of %zu bytes to peer %d was not sent: %s", u->base.name,
                    len, p->index, ucs_status_string(UCS_PTR_STATUS(answer)));
    }
    return status;
}

static dcomm_status dcommi_ucx_send_parts(dcommi_ucx_peer *p, int parts, const void *header,
                                          size_t header_len, const uint8_t *data, size_t len,
                                          ucs_memory_type_t memory, dcommi_op *op)
{
    dcommi_ucx_joint *j = dcommi_ucx_joint_make(p->ucx, op, parts);
    uint32_t taken = 0;
    int i = 0;
    if (j == NULL) {
        return DCOMM_ERR_NO_MEMORY;
    }
    dcommi_ucx_tail tail = {
        .id = p->ucx->id, .total = len, .number = p->ucx->cut++, .parts = (uint8_t)parts};
    for (bool goes_on = true; goes_on && i < parts; i++) {
        size_t from = dcommi_ucx_part_at(len, parts, i);
        size_t to = dcommi_ucx_part_at(len, parts, i + 1);
        int connection = dcommi_ucx_choose(p, taken);
        taken |= UINT32_C(1) << connection;
        tail.part = (uint8_t)i;
        tail.connection = (uint8_t)connection;
        goes_on =
            dcommi_ucx_joint_part(j, dcommi_ucx_launch(p, connection, header, header_len, &tail,
                                                       data + from, to - from, memory, &j->part));
    }
    return dcommi_ucx_joint_launched(j, parts - i);
}

static dcomm_status dcommi_ucx_send_from(dcommi_transport *t, int peer, const void *header,
                                         size_t header_len, const void *data, size_t len,
                                         ucs_memory_type_t memory, dcommi_op *op)
{
    const bool host = memory == UCS_MEMORY_TYPE_HOST;
    dcommi_ucx *u = (dcommi_ucx *)t;
    dcommi_ucx_peer *p = NULL;
    if (header_len > DCOMMI_HEADER_MAX) {
        return dcommi_fail(DCOMM_ERR_INTERNAL, "a header of %zu bytes is too long", header_len);
    }
    DCOMMI_TRY(dcommi_ucx_peer_open(u, peer, &p));
    if (host && len <= DCOMMI_UCX_ORDERED) {
        return dcommi_ucx_launch(p, 0, header, header_len, NULL, data, len, memory, op);
    }
    dcommi_ucx_spread(u, p);
    bool asks = !host || len > t->eager_max;
    int parts = asks ? dcommi_ucx_parts_of(p, len) : 1;
    if (parts > 1) {
        return dcommi_ucx_send_parts(p, parts, header, header_len, data, len, memory, op);
    }
    int connection = dcommi_ucx_choose(p, 0);
    if (!asks) {
        return dcommi_ucx_launch(p, connection, header, header_len, NULL, data, len, memory, op);
    }
    dcommi_ucx_tail tail = {.id = u->id,
                            .total = len,
                            .number = u->cut++,
                            .parts = 1,
                            .connection = (uint8_t)connection};
    return dcommi_ucx_launch(p, connection, header, header_len, &tail, data, len, memory, op);
}

static dcomm_status dcommi_ucx_send(dcommi_transport *t, int peer, const void *header,
                                    size_t header_len, const void *data, size_t len, dcommi_op *op)
{
    return dcommi_ucx_send_from(t, peer, header, header_len, data, len, UCS_MEMORY_TYPE_HOST, op);
}

static dcomm_status dcommi_ucx_send_device(dcommi_transport *t, int peer, const void *header,
                                           size_t header_len, const void *data, size_t len,
                                           dcommi_op *op)
{
    return dcommi_ucx_send_from(t, peer, header, header_len, data, len, DCOMMI_UCX_DEVICE, op);
}

static void dcommi_ucx_release(dcommi_transport *t, void *desc)
{
    dcommi_ucx_drop_all((dcommi_ucx *)t, desc);
}

/* Fetch one message into `buf`. */
static dcomm_status dcommi_ucx_fetch_one(dcommi_ucx *u, dcommi_ucx_kept *k, void *buf, size_t len,
                                         ucs_memory_type_t memory, dcommi_op *op)
{
    if (k->data == NULL) {
        dcomm_status invited = dcommi_ucx_invite(u, &k->tail, buf, len, op);
        dcommi_ucx_kept_put(u, k);
        return invited;
    }
    dcommi_ucx_flight *f = dcommi_ucx_flight_start(u, k->peer, true, 0, 0, op);
    if (f == NULL) {
        return DCOMM_ERR_NO_MEMORY;
    }
    ucp_request_param_t param = {.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK |
                                                 UCP_OP_ATTR_FIELD_USER_DATA |
                                                 UCP_OP_ATTR_FIELD_MEMORY_TYPE,
                                 .cb.recv_am = dcommi_ucx_on_fetched,
                                 .user_data = f,
                                 .memory_type = memory};
    bool direct = u->direct;
    u->direct = false;
    ucs_status_ptr_t answer = ucp_am_recv_data_nbx(u->worker, k->data, buf, len, &param);
    dcommi_ucx_kept_put(u, k);
    u->direct = direct;
    dcomm_status status = dcommi_ucx_launched(f, answer);
    if (status < 0) {
        dcommi_fail(status, "%s: a message of %zu bytes was not received: %s", u->base.name, len,
                    ucs_status_string(UCS_PTR_STATUS(answer)));
    }
    return status;
}

static dcomm_status dcommi_ucx_fetch_to(dcommi_transport *t, void *desc, void *buf, size_t len,
                                        ucs_memory_type_t memory, dcommi_op *op)
{
    dcommi_ucx *u = (dcommi_ucx *)t;
    dcommi_ucx_kept *k = desc;
    if (k->removed || (k->peer != NULL && k->peer->failure != UCS_OK)) {
        dcommi_ucx_release(t, desc);
        return dcommi_fail(DCOMM_ERR_PEER, "%s: the sender of a message of %zu bytes is lost",
                           t->name, len);
    }
    int parts = k->tail.parts, left = parts;
    if (parts == 1) {
        return dcommi_ucx_fetch_one(u, k, buf, len, memory, op);
    }
    dcommi_ucx_joint *j = dcommi_ucx_joint_make(u, op, parts);
    if (j == NULL) {
        return DCOMM_ERR_NO_MEMORY;
    }
    for (bool goes_on = true; goes_on && k != NULL; left--) {
        dcommi_ucx_kept *more = k->more;
        size_t from = dcommi_ucx_part_at(len, parts, k->tail.part);
        size_t to = dcommi_ucx_part_at(len, parts, k->tail.part + 1);
        goes_on = dcommi_ucx_joint_part(
            j, dcommi_ucx_fetch_one(u, k, (uint8_t *)buf + from, to - from, memory, &j->part));
        k = more;
    }
    dcommi_ucx_drop_all(u, k);
    return dcommi_ucx_joint_launched(j, left);
}

static dcomm_status dcommi_ucx_fetch(dcommi_transport *t, void *desc, void *buf, size_t len,
                                     dcommi_op *op)
{
    return dcommi_ucx_fetch_to(t, desc, buf, len, UCS_MEMORY_TYPE_HOST, op);
}

static dcomm_status dcommi_ucx_fetch_device(dcommi_transport *t, void *desc, void *buf, size_t len,
                                            dcommi_op *op)
{
    return dcommi_ucx_fetch_to(t, desc, buf, len, DCOMMI_UCX_DEVICE, op);
}

#endif
