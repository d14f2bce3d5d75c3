/* ucx.h - the transport to peers on other hosts: UCX active messages over one interface. */
#ifndef DCOMMI_UCX_H
#define DCOMMI_UCX_H

#include "arrive.h"
#include "iface.h"
#include "loss.h"
#include "move.h"

#include <sched.h>

/* ---- peers ---- */

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

/* ---- progress ---- */

#define DCOMMI_UCX_BUSY 256 /* progresses after which wanted endpoints wait no longer */

/* Open the endpoints that are wanted. If some cannot be opened, go on with fewer. */
static void dcommi_ucx_open_all(dcommi_ucx *u)
{
    u->opens = false;
    u->busy = 0;
    for (size_t i = 0; i < u->peers_capacity && !u->closing; i++) {
        dcommi_ucx_peer *p = u->peers[i];
        if (p == NULL || p->opened >= p->wanted || p->failure != UCS_OK ||
            dcommi_ucx_endpoints(u, p, p->wanted) == DCOMM_OK) {
            continue;
        }
        p->wanted = p->opened;
        if (p->opened == 0) {
            dcommi_ucx_lose(&u->base, p->index, "no connection could be opened");
            continue;
        }
        for (int k = p->opened; k < DCOMM_CONNECTIONS_MAX; k++) {
            dcommi_ucx_queue_move(p, k, 0);
        }
        p->connections = p->connections < p->opened ? p->connections : p->opened;
    }
}

static unsigned dcommi_ucx_chores(dcommi_ucx *u)
{
    u->chores = false;
    unsigned n = dcommi_ucx_report_lost(u);
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
    const bool read = n > 0;
    if (DCOMMI_UNLIKELY(u->waiting != NULL)) {
        n += dcommi_ucx_pump(u);
    }
    u->inside = false;
    if (DCOMMI_UNLIKELY(u->opens) && (!read || ++u->busy >= DCOMMI_UCX_BUSY)) {
        dcommi_ucx_open_all(u);
    }
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
        busy = f->op != NULL || f->stage == DCOMMI_UCX_QUEUED;
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

/* Progress until no connection is too new to be closed (dcommi_ucx_is_fresh). */
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
    while (u->pending.next != &u->pending) { /* UCX has forgotten these with the worker */
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

/* Flush the worker before it is destroyed. UCX 1.13 aborts if an answer to a connecting peer is
 * still queued then, on an endpoint that only UCX knows. A worker that does not come to rest by
 * `deadline` is left to the end of the process. */
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
    u->incomplete = NULL; /* these were in the ring of kept messages */
    for (size_t i = 0; i < u->peers_capacity; i++) {
        if (u->peers[i] != NULL) {
            dcommi_ucx_peer_close(u->peers[i]);
        }
    }
    for (dcommi_ucx_peer *p = u->removed; p != NULL; p = p->next) {
        dcommi_ucx_peer_close(p);
    }
    /* Cancelled requests come back in a few rounds. Others end with the worker. */
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
    dcommi_ucx_hush += asks; /* most builds of UCX have no transport "cuda" */
    dcomm_status started =
        dcommi_ucx_start(u->base.name, UCP_FEATURE_AM, options, n_options, &u->context, &u->worker);
    dcommi_ucx_hush -= asks;
    DCOMMI_TRY(started);
    u->base.takes_device = asks && dcommi_ucx_takes_device(u->context);
    static const ucp_am_recv_callback_t takers[] = {[DCOMMI_UCX_MESSAGE] = dcommi_ucx_on_am,
                                                    [DCOMMI_UCX_ASK] = dcommi_ucx_on_ask,
                                                    [DCOMMI_UCX_ANSWER] = dcommi_ucx_on_answer,
                                                    [DCOMMI_UCX_BYTES] = dcommi_ucx_on_payload};
    ucs_status_t status = UCS_OK;
    for (unsigned kind = 1; kind < sizeof takers / sizeof *takers && status == UCS_OK; kind++) {
        ucp_am_handler_param_t handler = {
            .field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_FLAGS |
                          UCP_AM_HANDLER_PARAM_FIELD_CB | UCP_AM_HANDLER_PARAM_FIELD_ARG,
            .id = kind,
            .flags = UCP_AM_FLAG_WHOLE_MSG,
            .cb = takers[kind],
            .arg = u};
        status = ucp_worker_set_am_recv_handler(u->worker, &handler);
    }
    ucp_worker_attr_t attr = {.field_mask = UCP_WORKER_ATTR_FIELD_ADDRESS};
    if (status == UCS_OK) {
        status = ucp_worker_query(u->worker, &attr);
    }
    if (status != UCS_OK) {
        return dcommi_fail(dcommi_ucx_status(status), "%s: UCX cannot tell its address: %s",
                           u->base.name, ucs_status_string(status));
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

/* Find the interface that dcommi_net_open would choose, or "" if it would refuse `wanted`. */
static void dcommi_net_iface(const char *wanted, dcommi_iface name)
{
    bool tcp;
    name[0] = 0;
    (void)dcommi_ucx_choose_iface(wanted, name, &tcp);
}

/* Set UCX's log and signal handlers for the process. Call this before all other use of UCX. */
static void dcommi_net_prepare(void)
{
    dcommi_ucx_tame_once();
}

/* Open the transport over one network interface. `iface` is an interface ("eth0") or an RDMA
 * device ("mlx5_0" or "mlx5_0:1"). If it is NULL or "", use DCOMM_IFACE, else the interface that
 * leads to MASTER_ADDR, else the default route's, else the first that is up, else lo. One that is
 * not of NCCL_SOCKET_IFNAME counts as none. */
static dcomm_status dcommi_net_open(const dcommi_transport_handlers *handlers, const char *iface,
                                    dcommi_transport **t_p)
{
    static _Atomic bool warned;
    dcommi_iface device;
    bool tcp = true;
    dcommi_net_prepare();
    dcommi_captured_warn("accept bind connect listen pipe recv send sendmsg socket time write",
                         &warned);
    DCOMMI_TRY(dcommi_ucx_choose_iface(iface, device, &tcp));
    const bool cuda = dcommi_ucx_asks_device();
    const char *const tls = tcp ? (cuda ? "tcp,cuda" : "tcp") : (cuda ? "ib,cuda" : "ib");
    const dcommi_ucx_option options[] = {
        {"TLS", tls, NULL, false},
        {"NET_DEVICES", device, NULL, false},
        {"MAX_EAGER_LANES", "1", NULL, false},
        /* The control connections decide how long a silent peer is alive (engine/beat.h). Over
         * TCP, UCX's keepalive would also connect endpoints with each other (queue.h). */
        {"KEEPALIVE_INTERVAL", "inf", tcp ? NULL : "UCX_KEEPALIVE_INTERVAL", false},
        {tcp ? "RESOLVE_REMOTE_EP_ID" : NULL, "n", NULL, false},
        {tcp ? "KEEPIDLE" : NULL, "inf", "UCX_TCP_KEEPIDLE", true},
        /* UCX 1.13 aborts when a connection breaks under a zero-copy send. Longer segments make
         * up for the copy. Both ends must use the same length. */
        {tcp ? "ZCOPY_THRESH" : NULL, "inf", NULL, false},
        {tcp ? "PUT_ENABLE" : NULL, "n", NULL, true},
        {tcp ? "TX_SEG_SIZE" : NULL, DCOMMI_UCX_SEGMENT, NULL, true},
        {tcp ? "RX_SEG_SIZE" : NULL, DCOMMI_UCX_SEGMENT, NULL, true},
        /* Without a bound, UCX sends at once whatever fits a segment. */
        {tcp && !cuda ? "RNDV_THRESH" : NULL, "inf", NULL, false},
        /* Handle one epoll event at a time. If a connection breaks while another's event is
         * handled, UCX 1.13 still handles the broken one's event of the same round, and aborts. */
        {tcp ? "MAX_POLL" : NULL, "1", NULL, true},
        /* A connection to a dead host must not stop progress. */
        {tcp ? "CONN_NB" : NULL, "y", "UCX_TCP_CONN_NB", true},
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
    u->at_once = tcp && !cuda;
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
