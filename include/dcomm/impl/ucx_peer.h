/* ucx_peer.h - one UCX worker's state: its peers and their endpoints, the sends and fetches under
 * way, the messages that the engine keeps. */
#ifndef DCOMMI_UCX_PEER_H
#define DCOMMI_UCX_PEER_H

#include "transport.h"
#include "ucx_config.h"

typedef struct dcommi_ucx dcommi_ucx;

typedef struct dcommi_ucx_peer {
    struct dcommi_ucx_peer *next; /* among the removed */
    dcommi_ucx *ucx;
    int index;
    uint64_t id;
    void *address;
    ucp_ep_h ep; /* NULL: not opened yet, or closed */
    ucs_status_t failure;
    bool reported; /* its loss */
    bool flushing;
    double closed_at; /* coarse clock; 0: not closed */
    size_t flights;   /* under way, to or from it */
} dcommi_ucx_peer;

/* One send or fetch that UCX has not finished. UCX reads the header from here until then. */
typedef struct dcommi_ucx_flight {
    struct dcommi_ucx_flight *prev, *next;
    dcommi_ucx *ucx;
    dcommi_ucx_peer *peer; /* NULL: not known */
    dcommi_op *op;         /* NULL: given up; only UCX still knows it */
    bool is_fetch;
    dcomm_status status;
    unsigned char header[DCOMMI_HEADER_MAX + sizeof(uint64_t)];
} dcommi_ucx_flight;

/* A message that may be, or is, kept: what the engine knows as desc. */
typedef struct dcommi_ucx_kept {
    struct dcommi_ucx_kept *prev, *next;
    void *data;
    bool is_long;
    bool arriving, dropped; /* in its callback; released there */
    dcommi_ucx_peer *peer;  /* of a long message; NULL: not known, or removed */
    bool removed;
} dcommi_ucx_kept;

#define DCOMMI_UCX_SLAB 32

typedef struct dcommi_ucx_slab {
    struct dcommi_ucx_slab *next;
    dcommi_ucx_flight flights[DCOMMI_UCX_SLAB];
    dcommi_ucx_kept kept[DCOMMI_UCX_SLAB];
} dcommi_ucx_slab;

struct dcommi_ucx {
    dcommi_transport base;
    ucp_context_h context;
    ucp_worker_h worker;
    uint64_t id;
    bool inside; /* UCX's progress is on the stack */
    bool direct; /* an op's done may be called from UCX's callback: only straight in progress */
    bool chores; /* something waits for the end of progress */
    bool closing;
    unsigned turns;    /* of progress */
    double last_watch; /* coarse clock */
    dcommi_ucx_peer **peers;
    size_t peers_capacity;
    dcommi_ucx_peer *removed;        /* not yet closed, or UCX still works for them */
    dcommi_ucx_flight pending, done; /* heads of rings */
    dcommi_ucx_flight *spare;
    dcommi_ucx_kept kept; /* head of a ring */
    dcommi_ucx_kept *spare_kept;
    dcommi_ucx_slab *slabs;
};

/* ---- flights ---- */

static bool dcommi_ucx_refill(dcommi_ucx *u)
{
    dcommi_ucx_slab *slab = dcommi_alloc(sizeof *slab);
    if (slab == NULL) {
        return false;
    }
    slab->next = u->slabs;
    u->slabs = slab;
    for (size_t i = 0; i < DCOMMI_UCX_SLAB; i++) {
        slab->flights[i].ucx = u;
        slab->flights[i].next = u->spare;
        u->spare = &slab->flights[i];
        slab->kept[i].next = u->spare_kept;
        u->spare_kept = &slab->kept[i];
    }
    return true;
}

static void dcommi_ucx_flight_link(dcommi_ucx_flight *ring, dcommi_ucx_flight *f)
{
    f->next = ring;
    f->prev = ring->prev;
    ring->prev->next = f;
    ring->prev = f;
}

static void dcommi_ucx_flight_unlink(dcommi_ucx_flight *f)
{
    f->prev->next = f->next;
    f->next->prev = f->prev;
}

static dcommi_ucx_flight *dcommi_ucx_flight_start(dcommi_ucx *u, dcommi_ucx_peer *p, bool is_fetch,
                                                  dcommi_op *op)
{
    if (DCOMMI_UNLIKELY(u->spare == NULL) && !dcommi_ucx_refill(u)) {
        return NULL;
    }
    dcommi_ucx_flight *f = u->spare;
    u->spare = f->next;
    f->peer = p;
    f->op = op;
    f->is_fetch = is_fetch;
    op->handle = f;
    if (p != NULL) {
        p->flights++;
    }
    dcommi_ucx_flight_link(&u->pending, f);
    return f;
}

/* Out of its ring; its peer no longer waits for it. */
static void dcommi_ucx_flight_leave(dcommi_ucx_flight *f)
{
    dcommi_ucx_flight_unlink(f);
    if (f->peer != NULL) {
        f->peer->flights--;
        f->peer = NULL;
    }
}

static void dcommi_ucx_flight_end(dcommi_ucx_flight *f)
{
    dcommi_ucx_flight_leave(f);
    f->next = f->ucx->spare;
    f->ucx->spare = f;
}

static void dcommi_ucx_flight_finish(dcommi_ucx_flight *f)
{
    dcommi_op *op = f->op;
    dcomm_status status = f->status;
    dcommi_ucx_flight_end(f);
    if (op != NULL) {
        op->handle = NULL;
        op->done(op, status);
    }
}

static void dcommi_ucx_flight_landed(void *request, ucs_status_t status, dcommi_ucx_flight *f)
{
    dcommi_ucx *u = f->ucx;
    ucp_request_free(request);
    f->status = dcommi_ucx_status(status);
    if (u->direct) {
        dcommi_ucx_flight_finish(f);
        return;
    }
    dcommi_ucx_flight_leave(f);
    dcommi_ucx_flight_link(&u->done, f);
    u->chores = true;
}

static void dcommi_ucx_on_sent(void *request, ucs_status_t status, void *user)
{
    dcommi_ucx_flight_landed(request, status, user);
}

static void dcommi_ucx_on_fetched(void *request, ucs_status_t status, size_t length, void *user)
{
    (void)length;
    dcommi_ucx_flight_landed(request, status, user);
}

static unsigned dcommi_ucx_deliver(dcommi_ucx *u)
{
    unsigned n = 0;
    while (u->done.next != &u->done) {
        dcommi_ucx_flight_finish(u->done.next);
        n++;
    }
    return n;
}

/* UCX cannot cancel what is under way to a dead process whose queue is full: give such ops back
 * a moment after the endpoint was closed. A fetch from a peer that may be alive has to wait: its
 * data might still arrive in the buffer. */
static unsigned dcommi_ucx_give_up(dcommi_ucx *u, double now)
{
    unsigned n = 0;
    for (dcommi_ucx_flight *f = u->pending.next, *next; f != &u->pending; f = next) {
        dcommi_ucx_peer *p = f->peer;
        next = f->next;
        if (p == NULL || p->closed_at <= 0 || now < p->closed_at + 0.1 ||
            (f->is_fetch && p->failure == UCS_OK)) {
            continue;
        }
        dcommi_op *op = f->op;
        f->op = NULL;
        f->peer = NULL;
        p->flights--;
        if (op != NULL) {
            op->handle = NULL;
            op->done(op, DCOMM_ERR_PEER);
            n++;
            next = u->pending.next; /* done may have started others */
        }
    }
    return n;
}

/* ---- kept messages ---- */

static void dcommi_ucx_kept_link(dcommi_ucx *u, dcommi_ucx_kept *k)
{
    k->next = u->kept.next;
    k->prev = &u->kept;
    k->next->prev = k;
    u->kept.next = k;
}

static void dcommi_ucx_kept_put(dcommi_ucx *u, dcommi_ucx_kept *k)
{
    k->prev->next = k->next;
    k->next->prev = k->prev;
    k->next = u->spare_kept;
    u->spare_kept = k;
}

static void dcommi_ucx_kept_forget_peer(dcommi_ucx *u, const dcommi_ucx_peer *p)
{
    for (dcommi_ucx_kept *k = u->kept.next; k != &u->kept; k = k->next) {
        if (k->peer == p) {
            k->peer = NULL;
            k->removed = true;
        }
    }
}

/* ---- peers ---- */

static void dcommi_ucx_on_failure(void *arg, ucp_ep_h ep, ucs_status_t status)
{
    dcommi_ucx_peer *p = arg;
    (void)ep;
    if (p->failure == UCS_OK) {
        p->failure = status;
    }
    p->ucx->chores = true;
}

static dcommi_ucx_peer *dcommi_ucx_peer_at(dcommi_ucx *u, int peer)
{
    return peer >= 0 && (size_t)peer < u->peers_capacity ? u->peers[peer] : NULL;
}

static dcommi_ucx_peer *dcommi_ucx_peer_by_id(dcommi_ucx *u, uint64_t id)
{
    for (size_t i = 0; i < u->peers_capacity; i++) {
        if (u->peers[i] != NULL && u->peers[i]->id == id) {
            return u->peers[i];
        }
    }
    return NULL;
}

static dcomm_status dcommi_ucx_peer_open(dcommi_ucx *u, int peer, dcommi_ucx_peer **p_p)
{
    dcommi_ucx_peer *p = dcommi_ucx_peer_at(u, peer);
    if (DCOMMI_UNLIKELY(p == NULL)) {
        return dcommi_fail(DCOMM_ERR_INTERNAL, "%s: peer %d was never added", u->base.name, peer);
    }
    if (DCOMMI_UNLIKELY(p->failure != UCS_OK || u->closing)) {
        return dcommi_fail(DCOMM_ERR_PEER, "%s: peer %d is lost: %s", u->base.name, peer,
                           p->failure != UCS_OK ? ucs_status_string(p->failure) : "closed");
    }
    if (DCOMMI_UNLIKELY(p->ep == NULL)) {
        ucp_ep_params_t params = {.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS |
                                                UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE |
                                                UCP_EP_PARAM_FIELD_ERR_HANDLER,
                                  .address = p->address,
                                  .err_mode = UCP_ERR_HANDLING_MODE_PEER,
                                  .err_handler = {.cb = dcommi_ucx_on_failure, .arg = p}};
        dcommi_ucx_hush++;
        ucs_status_t status = ucp_ep_create(u->worker, &params, &p->ep);
        dcommi_ucx_hush--;
        if (status != UCS_OK) {
            p->ep = NULL;
            return dcommi_fail(dcommi_ucx_status(status), "%s: peer %d cannot be reached: %s",
                               u->base.name, peer, ucs_status_string(status));
        }
    }
    *p_p = p;
    return DCOMM_OK;
}

/* Not inside UCX's progress: closing calls back. */
static void dcommi_ucx_peer_close(dcommi_ucx_peer *p)
{
    if (p->closed_at <= 0) {
        p->closed_at = dcommi_coarse_now();
    }
    if (p->ep == NULL) {
        return;
    }
    ucp_ep_h ep = p->ep;
    p->ep = NULL;
    ucp_request_param_t param = {.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS,
                                 .flags = UCP_EP_CLOSE_FLAG_FORCE};
    ucs_status_ptr_t request = ucp_ep_close_nbx(ep, &param);
    if (UCS_PTR_IS_PTR(request)) {
        ucp_request_free(request);
    }
}

static void dcommi_ucx_on_flushed(void *request, ucs_status_t status, void *user)
{
    dcommi_ucx_peer *p = user;
    (void)status;
    ucp_request_free(request);
    p->flushing = false;
    p->ucx->chores = true;
}

/* Everything is closed by force in the end, so that closing never waits; before that, flush. */
static void dcommi_ucx_peer_flush(dcommi_ucx_peer *p)
{
    if (p->ep == NULL || p->failure != UCS_OK || p->flushing) {
        return;
    }
    ucp_request_param_t param = {.op_attr_mask =
                                     UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA,
                                 .cb.send = dcommi_ucx_on_flushed,
                                 .user_data = p};
    ucs_status_ptr_t request = ucp_ep_flush_nbx(p->ep, &param);
    p->flushing = UCS_PTR_IS_PTR(request);
}

static void dcommi_ucx_peer_free(dcommi_ucx_peer *p)
{
    if (p == NULL) {
        return;
    }
    dcommi_free(p->address);
    dcommi_free(p);
}

static void dcommi_ucx_sweep_removed(dcommi_ucx *u)
{
    for (dcommi_ucx_peer **link = &u->removed; *link != NULL;) {
        dcommi_ucx_peer *p = *link;
        if (!p->flushing || p->failure != UCS_OK) {
            dcommi_ucx_peer_close(p);
        }
        if (p->flushing || p->flights > 0) { /* they name p */
            link = &p->next;
            continue;
        }
        *link = p->next;
        dcommi_ucx_peer_free(p);
    }
}

static unsigned dcommi_ucx_report_lost(dcommi_ucx *u)
{
    unsigned n = 0;
    for (size_t i = 0; i < u->peers_capacity; i++) {
        dcommi_ucx_peer *p = u->peers[i];
        if (p == NULL || p->failure == UCS_OK || p->reported) {
            continue;
        }
        p->reported = true;
        dcommi_ucx_peer_close(p);
        n++;
        if (!u->closing) {
            u->base.handlers.on_peer_lost(u->base.handlers.user, &u->base, p->index,
                                          ucs_status_string(p->failure));
        }
    }
    return n;
}

/* Now and then: must ops be given up? */
static unsigned dcommi_ucx_watch(dcommi_ucx *u)
{
    double now = dcommi_coarse_now();
    if (now - u->last_watch < 0.05) {
        return 0;
    }
    u->last_watch = now;
    unsigned given_up = u->pending.next != &u->pending ? dcommi_ucx_give_up(u, now) : 0;
    if (u->removed != NULL) {
        dcommi_ucx_sweep_removed(u);
    }
    return given_up;
}

#endif
