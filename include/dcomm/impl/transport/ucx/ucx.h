/* ucx.h - the transport table over UCX, for peers on other hosts: active messages over one
 * interface. */
#ifndef DCOMMI_UCX_H
#define DCOMMI_UCX_H

#include "../transport.h"
#include "iface.h"
#include "parts.h"

#include <sched.h>

#define DCOMMI_UCX_AM_ID 1
/* Longest payload that is sent without asking the receiver for a place first. */
#define DCOMMI_UCX_EAGER 65536
/* Longest payload that stays behind those before it. Longer ones that need not ask are what
 * algorithms cut long blocks into: they too go over all connections. */
#define DCOMMI_UCX_ORDERED 8192

/* Which kind of device memory it is, UCX finds out itself: it tells pools from plain memory. */
#define DCOMMI_UCX_DEVICE UCS_MEMORY_TYPE_UNKNOWN

/* ---- the table ---- */

static void dcommi_ucx_lose(dcommi_transport *t, int peer, const char *why)
{
    dcommi_ucx *u = (dcommi_ucx *)t;
    dcommi_ucx_peer *p = dcommi_ucx_peer_at(u, peer);
    if (p != NULL && p->failure == UCS_OK) {
        p->failure = UCS_ERR_CONNECTION_RESET;
        p->why = why;
        p->failed_at = dcommi_coarse_now();
        u->chores = true;
    }
}

static dcomm_status dcommi_ucx_add_peer(dcommi_transport *t, int peer, const void *address,
                                        size_t len)
{
    dcommi_ucx *u = (dcommi_ucx *)t;
    uint64_t id;
    if (peer < 0 || len <= sizeof id || dcommi_ucx_peer_at(u, peer) != NULL) {
        return dcommi_fail(DCOMM_ERR_INTERNAL, "%s: peer %d (%zu bytes of address) cannot be added",
                           t->name, peer, len);
    }
    void *array = u->peers;
    DCOMMI_TRY(dcommi_grow(&array, &u->peers_capacity, (size_t)peer + 1, sizeof *u->peers));
    u->peers = array;
    dcommi_ucx_peer *p = dcommi_alloc(sizeof *p);
    void *copy = p != NULL ? dcommi_alloc(len - sizeof id) : NULL;
    if (copy == NULL) {
        dcommi_free(p);
        return DCOMM_ERR_NO_MEMORY;
    }
    memcpy(&id, address, sizeof id);
    memcpy(copy, (const char *)address + sizeof id, len - sizeof id);
    *p = (dcommi_ucx_peer){
        .ucx = u, .index = peer, .id = id, .address = copy, .connections = 1, .failure = UCS_OK};
    u->peers[peer] = p;
    return DCOMM_OK;
}

static void dcommi_ucx_connect(dcommi_transport *t, int peer, int connections)
{
    dcommi_ucx_peer *p = dcommi_ucx_peer_at((dcommi_ucx *)t, peer);
    if (p != NULL) {
        p->connections = connections < 1                       ? 1
                         : connections > DCOMM_CONNECTIONS_MAX ? DCOMM_CONNECTIONS_MAX
                                                               : connections;
    }
}

static void dcommi_ucx_remove_peer(dcommi_transport *t, int peer)
{
    dcommi_ucx *u = (dcommi_ucx *)t;
    dcommi_ucx_peer *p = dcommi_ucx_peer_at(u, peer);
    if (p == NULL) {
        return;
    }
    bool direct = u->direct;
    u->direct = false;
    u->peers[peer] = NULL;
    dcommi_ucx_forget_parts(u, p);
    dcommi_ucx_kept_forget_peer(u, p);
    p->next = u->removed;
    u->removed = p;
    u->chores = true;
    if (!u->inside) {
        dcommi_ucx_sweep_removed(u);
    }
    u->direct = direct;
}

/* What UCX answered: done, under way (the flight stays pending), or refused. */
static dcomm_status dcommi_ucx_launched(dcommi_ucx_flight *f, ucs_status_ptr_t answer)
{
    if (UCS_PTR_IS_PTR(answer)) {
        return DCOMM_IN_PROGRESS;
    }
    dcommi_ucx_flight_end(f);
    return dcommi_ucx_status(UCS_PTR_STATUS(answer));
}

/* One message over one connection; fetched where there is a tail. */
static dcomm_status dcommi_ucx_launch(dcommi_ucx_peer *p, int connection, const void *header,
                                      size_t header_len, const dcommi_ucx_tail *tail,
                                      const void *data, size_t len, ucs_memory_type_t memory,
                                      dcommi_op *op)
{
    dcommi_ucx *u = p->ucx;
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
    ucs_status_ptr_t answer = ucp_am_send_nbx(p->ep[connection], DCOMMI_UCX_AM_ID, f->header,
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
    dcommi_ucx_tail tail = {
        .id = u->id, .total = len, .parts = 1, .connection = (uint8_t)connection};
    return dcommi_ucx_launch(p, connection, header, header_len, asks ? &tail : NULL, data, len,
                             memory, op);
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

/* One message into buf. */
static dcomm_status dcommi_ucx_fetch_one(dcommi_ucx *u, dcommi_ucx_kept *k, void *buf, size_t len,
                                         ucs_memory_type_t memory, dcommi_op *op)
{
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

/* Who sent a long message, and as many endpoints to it as it uses to us: one that breaks is noticed
 * on both sides. */
static void dcommi_ucx_know_sender(dcommi_ucx *u, dcommi_ucx_kept *k)
{
    dcommi_ucx_peer *p = k->peer = dcommi_ucx_peer_by_id(u, k->tail.id);
    if (p != NULL && k->tail.connection >= p->used_by_peer) {
        p->used_by_peer = k->tail.connection + 1;
        u->chores = true;
    }
}

static ucs_status_t dcommi_ucx_on_am(void *arg, const void *header, size_t header_len, void *data,
                                     size_t len, const ucp_am_recv_param_t *param)
{
    dcommi_ucx *u = arg;
    bool is_long = (param->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV) != 0;
    bool stays = is_long || (param->recv_attr & UCP_AM_RECV_ATTR_FLAG_DATA) != 0;
    dcommi_arrival arrival = {.peer = -1,
                              .header = header,
                              .header_len = header_len,
                              .data = data != NULL ? data : "",
                              .len = len};
    if (DCOMMI_UNLIKELY(u->closing)) {
        return UCS_OK;
    }
    if (!stays) {
        u->base.handlers.on_message(u->base.handlers.user, &u->base, &arrival);
        return UCS_OK;
    }
    if (u->spare_kept == NULL && !dcommi_ucx_refill(u)) {
        return is_long ? UCS_ERR_NO_MEMORY : UCS_OK;
    }
    dcommi_ucx_kept *k = u->spare_kept;
    u->spare_kept = k->next;
    k->data = data;
    k->is_long = is_long;
    k->peer = NULL;
    k->more = NULL;
    k->tail.parts = 1;
    k->removed = k->dropped = false;
    k->arriving = true;
    dcommi_ucx_kept_link(u, k);
    arrival.desc = k;
    if (is_long) {
        bool good = header_len >= sizeof k->tail;
        arrival.header_len -= good ? sizeof k->tail : 0;
        memcpy(&k->tail, (const char *)header + arrival.header_len, good ? sizeof k->tail : 0);
        good = good && dcommi_ucx_tail_valid(&k->tail, len);
        if (good) {
            dcommi_ucx_know_sender(u, k);
        }
        /* Nobody would complete or forget parts that are not of a living peer. */
        bool dead = good && k->peer != NULL && k->peer->failure != UCS_OK;
        good = good && (k->peer != NULL || k->tail.parts == 1);
        if (good && !dead && k->tail.parts > 1) {
            arrival.desc = dcommi_ucx_gather(u, k, &good);
        }
        if (!good || (dead && k->tail.parts > 1)) {
            dcommi_ucx_kept_put(u, k);
            if (!good) {
                u->base.handlers.on_corrupt(u->base.handlers.user, &u->base, &arrival);
            }
            return UCS_ERR_INVALID_PARAM;
        }
        if (arrival.desc == NULL) {
            k->arriving = false;
            return UCS_INPROGRESS;
        }
        arrival.peer = k->peer != NULL ? k->peer->index : -1;
        arrival.data = NULL;
        arrival.len = (size_t)k->tail.total;
    }
    dcommi_verdict verdict = u->base.handlers.on_message(u->base.handlers.user, &u->base, &arrival);
    k->arriving = false;
    if (verdict == DCOMMI_KEEP && !k->dropped) {
        return UCS_INPROGRESS;
    }
    dcommi_ucx_kept_put(u, k);
    return UCS_OK;
}

static void dcommi_ucx_answer_all(dcommi_ucx *u)
{
    for (size_t i = 0; i < u->peers_capacity && !u->closing; i++) {
        dcommi_ucx_peer *p = u->peers[i];
        if (p != NULL && p->opened < p->used_by_peer && p->failure == UCS_OK &&
            dcommi_ucx_endpoints(u, p, p->used_by_peer) < 0) {
            p->used_by_peer = p->opened;
        }
    }
}

static unsigned dcommi_ucx_chores(dcommi_ucx *u)
{
    u->chores = false;
    unsigned n = dcommi_ucx_report_lost(u);
    dcommi_ucx_answer_all(u);
    dcommi_ucx_sweep_removed(u);
    return n + dcommi_ucx_deliver(u);
}

static unsigned dcommi_ucx_progress(dcommi_transport *t)
{
    dcommi_ucx *u = (dcommi_ucx *)t;
    if (u->inside) {
        return 0;
    }
    u->inside = true;
    u->direct = true;
    unsigned n = ucp_worker_progress(u->worker);
    u->direct = false;
    u->inside = false;
    if (DCOMMI_UNLIKELY((++u->turns & 63) == 0)) {
        n += dcommi_ucx_watch(u);
    }
    if (DCOMMI_UNLIKELY(u->chores)) {
        n += dcommi_ucx_chores(u);
    }
    return n;
}

static bool dcommi_ucx_peek(dcommi_transport *t, int peer, size_t expected, dcommi_arrival *arrival)
{
    (void)t, (void)peer, (void)expected, (void)arrival;
    return false;
}

static void dcommi_ucx_pass(dcommi_transport *t, int peer)
{
    (void)t, (void)peer;
}

/* ---- closing ---- */

static bool dcommi_ucx_is_busy(const dcommi_ucx *u)
{
    bool busy = u->done.next != &u->done;
    for (const dcommi_ucx_flight *f = u->pending.next; f != &u->pending && !busy; f = f->next) {
        busy = f->op != NULL;
    }
    for (size_t i = 0; i < u->peers_capacity && !busy; i++) {
        busy = u->peers[i] != NULL && u->peers[i]->flushing > 0 && u->peers[i]->failure == UCS_OK;
    }
    for (const dcommi_ucx_peer *p = u->removed; p != NULL && !busy; p = p->next) {
        busy = p->flushing > 0 && p->failure == UCS_OK;
    }
    return busy;
}

static void dcommi_ucx_settle(dcommi_ucx *u, double deadline)
{
    while (dcommi_ucx_is_busy(u) && dcommi_now() < deadline) {
        if (dcommi_ucx_progress(&u->base) == 0) {
            sched_yield();
        }
    }
}

/* No connection is fresh any more. */
static void dcommi_ucx_ripen(dcommi_ucx *u)
{
    for (bool fresh = true; fresh;) {
        fresh = false;
        for (size_t i = 0; i < u->peers_capacity && !fresh; i++) {
            fresh = u->peers[i] != NULL && dcommi_ucx_is_fresh(u->peers[i]);
        }
        for (const dcommi_ucx_peer *p = u->removed; p != NULL && !fresh; p = p->next) {
            fresh = p->closed_at <= 0 && dcommi_ucx_is_fresh(p);
        }
        if (fresh && dcommi_ucx_progress(&u->base) == 0) {
            sched_yield();
        }
    }
}

static void dcommi_ucx_free(dcommi_ucx *u)
{
    if (u->worker != NULL) {
        ucp_worker_destroy(u->worker);
    }
    if (u->context != NULL) {
        ucp_cleanup(u->context);
    }
    dcommi_ucx_deliver(u);
    while (u->pending.next != &u->pending) { /* UCX has forgotten them with the worker */
        u->pending.next->status = DCOMM_ERR_ABORTED;
        dcommi_ucx_flight_finish(u->pending.next);
    }
    for (size_t i = 0; i < u->peers_capacity; i++) {
        dcommi_ucx_peer_free(u->peers[i]);
    }
    while (u->removed != NULL) {
        dcommi_ucx_peer *p = u->removed;
        u->removed = p->next;
        dcommi_ucx_peer_free(p);
    }
    while (u->slabs != NULL) {
        dcommi_ucx_slab *slab = u->slabs;
        u->slabs = slab->next;
        dcommi_free(slab);
    }
    dcommi_free(u->peers);
    dcommi_free((void *)(uintptr_t)u->base.address);
    dcommi_free(u);
}

/* UCX 1.13 aborts when a worker is destroyed while its answer to somebody's connecting is still
 * queued, on an endpoint that only UCX knows. One that does not come to rest is left to the end of
 * the process. */
static void dcommi_ucx_quiet(dcommi_ucx *u, double deadline)
{
    ucp_request_param_t param = {0};
    ucs_status_ptr_t request = ucp_worker_flush_nbx(u->worker, &param);
    if (!UCS_PTR_IS_PTR(request)) {
        return;
    }
    while (ucp_request_check_status(request) == UCS_INPROGRESS && dcommi_now() < deadline) {
        if (ucp_worker_progress(u->worker) == 0) {
            sched_yield();
        }
    }
    if (ucp_request_check_status(request) == UCS_INPROGRESS) {
        dcommi_log(DCOMMI_LOG_INFO, "%s: UCX does not come to rest; its memory is not freed",
                   u->base.name);
        u->worker = NULL;
        u->context = NULL;
    }
    ucp_request_free(request);
}

static void dcommi_ucx_close(dcommi_transport *t, double timeout_s, bool force)
{
    dcommi_ucx *u = (dcommi_ucx *)t;
    double deadline = dcommi_now() + timeout_s;
    if (!force) {
        dcommi_ucx_settle(u, deadline);
        for (size_t i = 0; i < u->peers_capacity; i++) {
            if (u->peers[i] != NULL) {
                dcommi_ucx_peer_flush(u->peers[i]);
            }
        }
        dcommi_ucx_settle(u, deadline);
    }
    dcommi_ucx_ripen(u);
    u->closing = true;
    while (u->kept.next != &u->kept) {
        dcommi_ucx_drop(u, u->kept.next);
    }
    u->incomplete = NULL; /* they were among those */
    for (size_t i = 0; i < u->peers_capacity; i++) {
        if (u->peers[i] != NULL) {
            dcommi_ucx_peer_close(u->peers[i]);
        }
    }
    for (dcommi_ucx_peer *p = u->removed; p != NULL; p = p->next) {
        dcommi_ucx_peer_close(p);
    }
    /* Cancelled requests come back in a few rounds; what UCX keeps longer goes with the worker. */
    dcommi_ucx_settle(u, dcommi_now() + 0.1);
    dcommi_ucx_hush++;
    dcommi_ucx_quiet(u, dcommi_now() + 0.5);
    dcommi_ucx_free(u);
    dcommi_ucx_hush--;
}

static const dcommi_transport_vtable dcommi_ucx_vtable = {
    .add_peer = dcommi_ucx_add_peer,
    .connect = dcommi_ucx_connect,
    .remove_peer = dcommi_ucx_remove_peer,
    .lose = dcommi_ucx_lose,
    .send = dcommi_ucx_send,
    .fetch = dcommi_ucx_fetch,
    .send_device = dcommi_ucx_send_device,
    .fetch_device = dcommi_ucx_fetch_device,
    .release = dcommi_ucx_release,
    .progress = dcommi_ucx_progress,
    .peek = dcommi_ucx_peek,
    .pass = dcommi_ucx_pass,
    .close = dcommi_ucx_close,
};

/* ---- opening ---- */

static dcomm_status dcommi_ucx_make_worker(dcommi_ucx *u, const dcommi_ucx_option *options,
                                           size_t n_options)
{
    const bool asks = dcommi_ucx_asks_device();
    dcommi_ucx_hush += asks; /* most UCX know no transport "cuda" */
    dcomm_status started =
        dcommi_ucx_start(u->base.name, UCP_FEATURE_AM, options, n_options, &u->context, &u->worker);
    dcommi_ucx_hush -= asks;
    DCOMMI_TRY(started);
    u->base.takes_device = asks && dcommi_ucx_takes_device(u->context);
    ucp_am_handler_param_t handler = {
        .field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_FLAGS |
                      UCP_AM_HANDLER_PARAM_FIELD_CB | UCP_AM_HANDLER_PARAM_FIELD_ARG,
        .id = DCOMMI_UCX_AM_ID,
        .flags = UCP_AM_FLAG_WHOLE_MSG,
        .cb = dcommi_ucx_on_am,
        .arg = u};
    ucs_status_t status = ucp_worker_set_am_recv_handler(u->worker, &handler);
    ucp_worker_attr_t attr = {.field_mask = UCP_WORKER_ATTR_FIELD_ADDRESS};
    if (status == UCS_OK) {
        status = ucp_worker_query(u->worker, &attr);
    }
    if (status != UCS_OK) {
        return dcommi_fail(dcommi_ucx_status(status), "%s: UCX gives no address: %s", u->base.name,
                           ucs_status_string(status));
    }
    u->id = dcommi_transport_id();
    char *copy = dcommi_alloc(sizeof u->id + attr.address_length);
    if (copy != NULL) {
        memcpy(copy, &u->id, sizeof u->id);
        memcpy(copy + sizeof u->id, attr.address, attr.address_length);
        u->base.address = copy;
        u->base.address_len = sizeof u->id + attr.address_length;
    }
    ucp_worker_release_address(u->worker, attr.address);
    return copy != NULL ? DCOMM_OK : DCOMM_ERR_NO_MEMORY;
}

/* One network interface. iface: "eth0", or an RDMA device, "mlx5_0" or "mlx5_0:1";
 * NULL: DCOMM_IFACE, else the default route's, else lo. */
static dcomm_status dcommi_ucx_open_net(const dcommi_transport_handlers *handlers,
                                        const char *iface, dcommi_transport **t_p)
{
    dcommi_ucx_name device;
    bool tcp = true;
    dcommi_ucx_tame_once();
    DCOMMI_TRY(dcommi_ucx_choose_iface(iface, device, &tcp));
    const bool cuda = dcommi_ucx_asks_device();
    const char *const tls = tcp ? (cuda ? "tcp,cuda" : "tcp") : (cuda ? "ib,cuda" : "ib");
    const dcommi_ucx_option options[] = {
        {"TLS", tls, NULL},
        {"NET_DEVICES", device, NULL},
        {"MAX_EAGER_LANES", "1", NULL},
        {"KEEPALIVE_INTERVAL", "1s", "UCX_KEEPALIVE_INTERVAL"},
        {"KEEPALIVE_NUM_EPS", "inf", "UCX_KEEPALIVE_NUM_EPS"},
        /* UCX 1.13 aborts when a connection breaks under a zero-copy send. Longer segments make
         * up for the copy; both ends must agree on them. */
        {tcp ? "ZCOPY_THRESH" : NULL, "inf", NULL},
        {tcp ? "PUT_ENABLE" : NULL, "n", NULL},
        {tcp ? "TX_SEG_SIZE" : NULL, "64k", NULL},
        {tcp ? "RX_SEG_SIZE" : NULL, "64k", NULL},
        /* One event of epoll at a time: where a connection breaks while another's event is handled,
         * UCX 1.13 goes on to the broken one's event of the same round, and aborts. */
        {tcp ? "MAX_POLL" : NULL, "1", NULL},
        /* Connecting to a dead host must not stop progress. */
        {tcp ? "CONN_NB" : NULL, "y", "UCX_TCP_CONN_NB"},
        /* A host that vanished sends no reset. */
        {tcp ? "KEEPIDLE" : NULL, "1s", "UCX_TCP_KEEPIDLE"},
        {tcp ? "KEEPINTVL" : NULL, "1s", "UCX_TCP_KEEPINTVL"},
        {tcp ? "KEEPCNT" : NULL, "3", "UCX_TCP_KEEPCNT"},
    };
    dcommi_log(DCOMMI_LOG_INFO, "net: %s over %s", tcp ? "TCP" : "RDMA", device);
    dcommi_ucx *u = dcommi_alloc(sizeof *u);
    if (u == NULL) {
        return DCOMM_ERR_NO_MEMORY;
    }
    u->base = (dcommi_transport){.name = "net",
                                 .call = &dcommi_ucx_vtable,
                                 .handlers = *handlers,
                                 .eager_max = DCOMMI_UCX_EAGER,
                                 .ordered_max = DCOMMI_UCX_ORDERED,
                                 .by_flow = tcp};
    if (!tcp) {
        dcommi_ucx_usual_iface(device);
    }
    snprintf(u->base.iface, sizeof u->base.iface, "%s", device);
    u->pending.next = u->pending.prev = &u->pending;
    u->done.next = u->done.prev = &u->done;
    u->kept.next = u->kept.prev = &u->kept;
    dcomm_status status = dcommi_ucx_make_worker(u, options, sizeof options / sizeof *options);
    if (status != DCOMM_OK) {
        dcommi_ucx_free(u);
        return status;
    }
    *t_p = &u->base;
    return DCOMM_OK;
}

#endif
