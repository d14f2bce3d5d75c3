/* peer.h - the state of a UCX worker: its peers with their endpoints, the sends and fetches under
 * way, and the messages that the engine keeps. Each endpoint is a connection of its own. */
#ifndef DCOMMI_UCX_PEER_H
#define DCOMMI_UCX_PEER_H

#include "../transport.h"
#include "config.h"

typedef struct dcommi_ucx dcommi_ucx;
typedef struct dcommi_ucx_flight dcommi_ucx_flight;

/* Flights that wait until UCX can send. */
typedef struct dcommi_ucx_queue {
    dcommi_ucx_flight *first, *last;
} dcommi_ucx_queue;

typedef struct dcommi_ucx_peer {
    struct dcommi_ucx_peer *next; /* in the list of removed peers */
    struct dcommi_ucx_peer *next_waiting;
    bool waits; /* in the list of peers with something queued */
    dcommi_ucx *ucx;
    int index;
    uint64_t id;
    void *address;
    ucp_ep_h ep[DCOMM_CONNECTIONS_MAX]; /* NULL: not opened yet, or closed */
    size_t load[DCOMM_CONNECTIONS_MAX]; /* bytes of the sends under way on each endpoint */
    dcommi_ucx_queue messages[DCOMM_CONNECTIONS_MAX], payloads[DCOMM_CONNECTIONS_MAX];
    int connections; /* endpoints that we send over */
    int wanted;      /* endpoints to open: as many as either side uses */
    int opened, turn;
    double opened_at;     /* when the last endpoint was opened; coarse clock */
    ucs_status_t failure; /* of the first endpoint that failed */
    const char *why;      /* NULL: UCX tells the reason */
    uint32_t failed;      /* a bit for each endpoint */
    double failed_at;     /* coarse clock */
    bool reported;        /* its loss was reported */
    int flushing;         /* number of endpoints that are being flushed */
    double closed_at;     /* coarse clock; 0: not closed */
    size_t flights;       /* sends and fetches under way */
    int incomplete;       /* messages of which some parts have come */
} dcommi_ucx_peer;

/* The end of a message's header, if the receiver fetches the payload. The payload comes whole, or
 * in `parts` messages whose tails differ only in `part` and `connection`. */
typedef struct dcommi_ucx_tail {
    uint64_t id;    /* of the sender */
    uint64_t total; /* bytes of all parts */
    uint32_t number;
    uint8_t part, parts;
    uint8_t connection; /* of the sender, from 0 */
    uint8_t zero;
} dcommi_ucx_tail;

typedef enum dcommi_ucx_stage {
    DCOMMI_UCX_HELD,    /* UCX has it, and reads the header here */
    DCOMMI_UCX_QUEUED,  /* its message waits until UCX can send it */
    DCOMMI_UCX_ASKED,   /* the receiver was asked for a buffer, and has not answered */
    DCOMMI_UCX_PAYLOAD, /* its payload is being sent */
    DCOMMI_UCX_FETCH    /* its payload is being received */
} dcommi_ucx_stage;

/* One send or fetch that is not finished. */
struct dcommi_ucx_flight {
    dcommi_ucx_flight *prev, *next;
    dcommi_ucx_flight *behind; /* in its queue */
    dcommi_ucx *ucx;
    dcommi_ucx_peer *peer; /* NULL: not known */
    dcommi_op *op;         /* NULL: nobody waits for it */
    bool is_fetch;
    bool asks; /* of a queued message: the receiver answers it */
    dcommi_ucx_stage stage;
    int connection;
    size_t load; /* bytes that it adds to the connection's load */
    dcomm_status status;
    unsigned kind;       /* of the message: its number of UCX's active messages */
    const uint8_t *data; /* what is sent */
    uint8_t *into;       /* where a payload is received */
    size_t len, at;      /* bytes of the payload, and where the next ones lie */
    uint32_t number;     /* of a long message, and which part of it: as its tail */
    uint8_t part;
    size_t header_len;
    unsigned char header[DCOMMI_HEADER_MAX + sizeof(dcommi_ucx_tail)];
};

/* The op of a payload that travels in parts. It is done when all parts are. */
typedef struct dcommi_ucx_joint {
    dcommi_op part; /* op of each part's flight; first, so that it points here */
    dcommi_ucx *ucx;
    struct dcommi_ucx_joint *next;
    dcommi_op *op;
    int left;
    dcomm_status status;
} dcommi_ucx_joint;

/* A message that is kept, or may be. The engine knows it as desc. */
typedef struct dcommi_ucx_kept {
    struct dcommi_ucx_kept *prev, *next;
    void *data;
    bool arriving, dropped; /* its callback is running; the engine released it there */
    dcommi_ucx_peer *peer;  /* sender of a long message; NULL: not known, or removed */
    bool removed;
    /* The part that came first leads the other parts of its message. */
    dcommi_ucx_tail tail;
    struct dcommi_ucx_kept *more;
    struct dcommi_ucx_kept *incomplete; /* the next leader that waits for parts */
    uint32_t there;                     /* of a leader: a bit for each part that has come */
} dcommi_ucx_kept;

#define DCOMMI_UCX_SLAB 32
#define DCOMMI_UCX_LAST_WORDS_S 0.03 /* seconds to read other connections after the first broke */
#define DCOMMI_UCX_FRESH_S 0.1       /* seconds that a new connection may take to be established */

typedef struct dcommi_ucx_slab {
    struct dcommi_ucx_slab *next;
    dcommi_ucx_flight flights[DCOMMI_UCX_SLAB];
    dcommi_ucx_kept kept[DCOMMI_UCX_SLAB];
    dcommi_ucx_joint joints[DCOMMI_UCX_SLAB];
} dcommi_ucx_slab;

struct dcommi_ucx {
    dcommi_transport base;
    ucp_context_h context;
    ucp_worker_h worker;
    uint64_t id;
    bool inside; /* UCX's progress is on the stack */
    bool direct; /* UCX's callback may call an op's done: only directly within progress */
    bool chores; /* there is work for the end of progress */
    bool opens;  /* endpoints are wanted */
    int busy;    /* progresses in which UCX read something while endpoints were wanted */
    bool closing;
    bool at_once;      /* UCX sends at once or not at all, and never holds a message */
    unsigned turns;    /* calls of progress */
    double last_watch; /* coarse clock */
    dcommi_ucx_peer **peers;
    size_t peers_capacity;
    dcommi_ucx_peer *removed;        /* peers that are not closed yet, or that UCX still uses */
    dcommi_ucx_peer *waiting;        /* peers with something queued */
    dcommi_ucx_flight pending, done; /* heads of rings */
    dcommi_ucx_flight *spare;
    dcommi_ucx_kept kept; /* head of a ring */
    dcommi_ucx_kept *spare_kept, *incomplete;
    dcommi_ucx_joint *spare_joint;
    uint32_t cut; /* number of messages whose receivers were asked */
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
        slab->joints[i].ucx = u;
        slab->joints[i].next = u->spare_joint;
        u->spare_joint = &slab->joints[i];
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

/* Start a flight, for `op` or for nobody. `load` is the bytes that it adds to a connection of `p`.
 */
static dcommi_ucx_flight *dcommi_ucx_flight_start(dcommi_ucx *u, dcommi_ucx_peer *p, bool is_fetch,
                                                  int connection, size_t load, dcommi_op *op)
{
    if (DCOMMI_UNLIKELY(u->spare == NULL) && !dcommi_ucx_refill(u)) {
        return NULL;
    }
    dcommi_ucx_flight *f = u->spare;
    u->spare = f->next;
    f->peer = p;
    f->op = op;
    f->is_fetch = is_fetch;
    f->stage = DCOMMI_UCX_HELD;
    f->connection = connection;
    f->load = load;
    if (op != NULL) {
        op->handle = f;
    }
    if (p != NULL) {
        p->flights++;
        p->load[connection] += load;
    }
    dcommi_ucx_flight_link(&u->pending, f);
    return f;
}

/* Remove a flight from its ring and from its peer's counts. */
static void dcommi_ucx_flight_leave(dcommi_ucx_flight *f)
{
    dcommi_ucx_flight_unlink(f);
    if (f->peer != NULL) {
        f->peer->flights--;
        f->peer->load[f->connection] -= f->load;
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

/* End a flight with a status: at once, or at the end of progress. */
static void dcommi_ucx_flight_landed(dcommi_ucx_flight *f, dcomm_status status)
{
    dcommi_ucx *u = f->ucx;
    f->status = status;
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
    ucp_request_free(request);
    dcommi_ucx_flight_landed(user, dcommi_ucx_status(status));
}

static void dcommi_ucx_on_fetched(void *request, ucs_status_t status, size_t length, void *user)
{
    (void)length;
    ucp_request_free(request);
    dcommi_ucx_flight_landed(user, dcommi_ucx_status(status));
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

/* ---- peers ---- */

static void dcommi_ucx_on_failure(void *arg, ucp_ep_h ep, ucs_status_t status)
{
    dcommi_ucx_peer *p = arg;
    for (int i = 0; i < p->opened; i++) {
        p->failed |= p->ep[i] == ep ? UINT32_C(1) << i : 0;
    }
    if (p->failure == UCS_OK) {
        p->failure = status;
        p->failed_at = dcommi_coarse_now();
    }
    p->ucx->chores = true;
}

static dcommi_ucx_peer *dcommi_ucx_peer_at(dcommi_ucx *u, int peer)
{
    return peer >= 0 && (size_t)peer < u->peers_capacity ? u->peers[peer] : NULL;
}

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

static dcommi_ucx_peer *dcommi_ucx_peer_by_id(dcommi_ucx *u, uint64_t id)
{
    for (size_t i = 0; i < u->peers_capacity; i++) {
        if (u->peers[i] != NULL && u->peers[i]->id == id) {
            return u->peers[i];
        }
    }
    return NULL;
}

/* Open the first `n` endpoints of a peer, in order, so that both directions share connections. */
static dcomm_status dcommi_ucx_endpoints(dcommi_ucx *u, dcommi_ucx_peer *p, int n)
{
    while (p->opened < n) {
        ucp_ep_params_t params = {.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS |
                                                UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE |
                                                UCP_EP_PARAM_FIELD_ERR_HANDLER,
                                  .address = p->address,
                                  .err_mode = UCP_ERR_HANDLING_MODE_PEER,
                                  .err_handler = {.cb = dcommi_ucx_on_failure, .arg = p}};
        ucp_ep_h ep = NULL;
        dcommi_ucx_hush++;
        ucs_status_t status = ucp_ep_create(u->worker, &params, &ep);
        dcommi_ucx_hush--;
        if (status != UCS_OK) {
            return dcommi_fail(dcommi_ucx_status(status), "%s: peer %d cannot be reached: %s",
                               u->base.name, p->index, ucs_status_string(status));
        }
        p->ep[p->opened++] = ep;
        p->opened_at = dcommi_coarse_now();
    }
    return DCOMM_OK;
}

static const char *dcommi_ucx_why(const dcommi_ucx_peer *p)
{
    return p->why != NULL ? p->why : ucs_status_string(p->failure);
}

/* Want `n` endpoints of a peer. Over TCP they are opened when UCX has read all that has come
 * (dcommi_ucx_open_all): an endpoint takes over the connection on which the peer reached us, and
 * UCX 1.13 crashes if that one is being read, or if the peer has closed it again. */
static dcomm_status dcommi_ucx_want(dcommi_ucx *u, dcommi_ucx_peer *p, int n)
{
    if (u->at_once) {
        p->wanted = p->wanted > n ? p->wanted : n;
        u->opens = true;
        return DCOMM_OK;
    }
    return dcommi_ucx_endpoints(u, p, n);
}

static dcomm_status dcommi_ucx_peer_open(dcommi_ucx *u, int peer, dcommi_ucx_peer **p_p)
{
    dcommi_ucx_peer *p = dcommi_ucx_peer_at(u, peer);
    if (DCOMMI_UNLIKELY(p == NULL)) {
        return dcommi_fail(DCOMM_ERR_INTERNAL, "%s: peer %d was never added", u->base.name, peer);
    }
    if (DCOMMI_UNLIKELY(p->failure != UCS_OK || u->closing)) {
        return dcommi_fail(DCOMM_ERR_PEER, "%s: peer %d is lost: %s", u->base.name, peer,
                           p->failure != UCS_OK ? dcommi_ucx_why(p) : "closed");
    }
    if (DCOMMI_UNLIKELY(p->opened == 0)) {
        DCOMMI_TRY(dcommi_ucx_want(u, p, 1));
    }
    *p_p = p;
    return DCOMM_OK;
}

/* Open the endpoints that we send over. Go on with fewer if some cannot be opened. */
static void dcommi_ucx_spread(dcommi_ucx *u, dcommi_ucx_peer *p)
{
    if (DCOMMI_UNLIKELY(p->opened < p->connections) && dcommi_ucx_want(u, p, p->connections) < 0) {
        dcommi_log(DCOMMI_LOG_WARN, "net: only %d of %d connections could be opened: %s", p->opened,
                   p->connections, dcommi_message);
        p->connections = p->opened;
    }
}

/* Choose the connection with the least load of those not in `taken`. Take equal ones in turn. */
static int dcommi_ucx_choose(dcommi_ucx_peer *p, uint32_t taken)
{
    int best = -1;
    for (int k = 0; k < p->connections; k++) {
        int i = (p->turn + k) % p->connections;
        if ((taken >> i & 1) == 0 && (best < 0 || p->load[i] < p->load[best])) {
            best = i;
        }
    }
    p->turn = best + 1;
    return best;
}

/* End the flights of a peer that UCX does not hold. */
static void dcommi_ucx_peer_abandon(dcommi_ucx_peer *p)
{
    dcommi_ucx *u = p->ucx;
    for (dcommi_ucx_flight *f = u->pending.next, *next; f != &u->pending; f = next) {
        next = f->next;
        if (f->peer == p && f->stage != DCOMMI_UCX_HELD) {
            dcommi_ucx_flight_landed(f, DCOMM_ERR_PEER);
        }
    }
    memset(p->messages, 0, sizeof p->messages);
    memset(p->payloads, 0, sizeof p->payloads);
    for (dcommi_ucx_peer **link = &u->waiting; p->waits; link = &(*link)->next_waiting) {
        if (*link == p) {
            *link = p->next_waiting;
            p->waits = false;
            break;
        }
    }
}

/* Close a peer's endpoints by force. Do not call this in UCX's progress: closing calls back. */
static void dcommi_ucx_peer_close(dcommi_ucx_peer *p)
{
    dcommi_ucx_peer_abandon(p);
    if (p->closed_at <= 0) {
        p->closed_at = dcommi_coarse_now();
    }
    for (int i = 0; i < p->opened; i++) {
        ucp_ep_h ep = p->ep[i];
        p->ep[i] = NULL;
        ucp_request_param_t param = {.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS,
                                     .flags = UCP_EP_CLOSE_FLAG_FORCE};
        ucs_status_ptr_t request = ep != NULL ? ucp_ep_close_nbx(ep, &param) : NULL;
        if (UCS_PTR_IS_PTR(request)) {
            ucp_request_free(request);
        }
    }
}

static void dcommi_ucx_on_flushed(void *request, ucs_status_t status, void *user)
{
    dcommi_ucx_peer *p = user;
    (void)status;
    ucp_request_free(request);
    p->flushing--;
    p->ucx->chores = true;
}

/* Flush a peer's endpoints before they are closed. They are closed by force, so that closing never
 * waits. */
static void dcommi_ucx_peer_flush(dcommi_ucx_peer *p)
{
    if (p->failure != UCS_OK || p->flushing > 0) {
        return;
    }
    ucp_request_param_t param = {.op_attr_mask =
                                     UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA,
                                 .cb.send = dcommi_ucx_on_flushed,
                                 .user_data = p};
    for (int i = 0; i < p->opened; i++) {
        if (p->ep[i] != NULL) {
            p->flushing += UCS_PTR_IS_PTR(ucp_ep_flush_nbx(p->ep[i], &param));
        }
    }
}

static void dcommi_ucx_peer_free(dcommi_ucx_peer *p)
{
    if (p == NULL) {
        return;
    }
    dcommi_free(p->address);
    dcommi_free(p);
}

#endif
