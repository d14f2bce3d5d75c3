/* port.h - the calls of the simulated transport: send, receive, progress, open and close. */
#ifndef SIM_PORT_H
#define SIM_PORT_H

#include "wire.h"

/* ---- sending ---- */

static dcomm_status wire_send(dcommi_transport *t, int peer, const void *header, size_t header_len,
                              const void *data, size_t len, dcommi_op *op)
{
    wire_port *port = (wire_port *)t;
    const int rank = port->rank_of[peer];
    world_point();
    const bool fails = port->me.kind == WIRE_NET && port->fails[rank] <= world.now;
    if (port->state[rank] != WIRE_GOOD || fails || port->closing) {
        return dcommi_fail(DCOMM_ERR_PEER, "%s: peer %d is lost: %s", t->name, peer,
                           port->why[rank] != NULL ? port->why[rank] : "closed");
    }
    world_busy();
    wire_parcel *p = calloc(1, sizeof *p);
    *p = (wire_parcel){.older = wire.parcels,
                       .newer = &wire.parcels,
                       .queued = true,
                       .from = port,
                       .to = &wire.port[port->me.kind][rank],
                       .header_len = header_len,
                       .len = len,
                       .data = data,
                       .is_long = len > t->eager_max,
                       .ordered = len <= t->ordered_max};
    if (p->older != NULL) {
        p->older->newer = &p->older;
    }
    wire.parcels = p;
    memcpy(p->header, header, header_len);
    const bool buffered = op == NULL || (!p->is_long && world_chance(wire_rules.buffers));
    if (buffered && len > 0) {
        p->copy = malloc(len);
        memcpy(p->copy, data, len);
        p->data = p->copy;
    }
    p->op = buffered ? NULL : op;
    wire_parcel **at = wire_queue(port, p->to);
    double before = 0;
    for (; *at != NULL; at = &(*at)->next) {
        before = (*at)->ordered && p->ordered ? (*at)->ready : before;
    }
    *at = p;
    p->ready = network_arrives(port->me.rank, rank, world.now + wire_delay(), world_unit());
    p->ready = p->ready > before ? p->ready : before;
    return buffered ? DCOMM_OK : DCOMM_IN_PROGRESS;
}

/* ---- receiving ---- */

static void wire_release(dcommi_transport *t, void *desc)
{
    (void)t;
    wire_sent(desc, DCOMM_OK);
    wire_free(desc);
}

static dcomm_status wire_fetch(dcommi_transport *t, void *desc, void *buf, size_t len,
                               dcommi_op *op)
{
    wire_port *port = (wire_port *)t;
    wire_parcel *p = desc;
    const int rank = p->from->me.rank;
    world_point();
    world_busy();
    if (len != p->len || !p->is_long || p->fetch != NULL) {
        world_trouble("rank %d fetches %zu bytes of %zu", world.in, len, p->len);
    }
    if (port->state[rank] != WIRE_GOOD || port->fails[rank] <= world.now) {
        wire_release(t, desc);
        return dcommi_fail(DCOMM_ERR_PEER, "%s: the sender of a message of %zu bytes is lost",
                           t->name, len);
    }
    port->fetching++;
    p->kept = false;
    p->fetch = op;
    p->into = buf;
    p->lands = network_arrives(rank, port->me.rank, world.now + wire_delay(), world_unit());
    return DCOMM_IN_PROGRESS;
}

/* Bring a payload that is fetched. It ends with its sender. */
static unsigned wire_land(wire_port *port)
{
    unsigned n = 0;
    for (wire_parcel *p = port->fetching > 0 ? wire.parcels : NULL, *older; p != NULL; p = older) {
        older = p->older;
        if (p->to == port && p->fetch != NULL && p->lands <= world.now && !p->gone &&
            world.rank[p->from->me.rank].state != WORLD_DEAD) {
            memcpy(p->into, p->data, p->len);
            wire_complete(port, p->fetch, DCOMM_OK, 0);
            p->fetch = NULL;
            port->fetching--;
            wire_sent(p, DCOMM_OK);
            wire_free(p);
            n++;
        }
    }
    return n;
}

/* Deliver a parcel. Return false if it must come again. */
static bool wire_deliver(wire_port *port, wire_parcel *p)
{
    const bool kept = p->is_long || (port->me.kind == WIRE_NET && world_chance(wire_rules.copied));
    const bool known =
        port->state[p->from->me.rank] == WIRE_GOOD && (p->is_long || port->me.kind == WIRE_LOCAL);
    world_point();
    if (!p->queued) { /* its sender has taken it back while this rank was stopped */
        return true;
    }
    dcommi_arrival arrival = {.peer = known ? port->peer_of[p->from->me.rank] : -1,
                              .header = p->header,
                              .header_len = p->header_len,
                              .data = p->is_long        ? NULL
                                      : p->data != NULL ? p->data
                                                        : "",
                              .len = p->len,
                              .desc = kept ? p : NULL,
                              .stays = port->me.kind == WIRE_LOCAL && !p->is_long};
    world_trace("gets message type %d, seq %d of rank %d, %zu bytes, of communicator %02x: %.*s",
                p->header[0], p->header[24], p->from->me.rank, p->len, p->header[16],
                p->header[0] == DCOMMI_MSG_ABORT ? (int)p->len : 0, (const char *)p->data);
    if (kept && !p->is_long && p->copy == NULL && p->len > 0) {
        p->copy = malloc(p->len);
        memcpy(p->copy, p->data, p->len);
        arrival.data = p->data = p->copy;
    }
    p->arriving = true;
    const dcommi_verdict verdict =
        port->base.handlers.on_message(port->base.handlers.user, &port->base, &arrival);
    p->arriving = false;
    if (verdict == DCOMMI_LATER) {
        if (!arrival.stays) {
            world_trouble("rank %d leaves a message that does not stay", world.in);
        }
        return false;
    }
    if (verdict == DCOMMI_KEEP ? !kept : p->is_long && !p->gone && p->fetch == NULL) {
        world_trouble("rank %d %s a payload", world.in,
                      verdict == DCOMMI_KEEP ? "keeps the transport's" : "forgets");
    }
    wire_unqueue(p);
    if (!p->is_long) {
        wire_sent(p, DCOMM_OK);
    }
    p->kept = verdict == DCOMMI_KEEP && p->fetch == NULL;
    if (p->freed || verdict != DCOMMI_KEEP) {
        wire_free(p);
    }
    wire.delivered++;
    world_busy();
    return true;
}

/* Return true if a rank is no more, or has given this one up, and all its messages have come. */
static bool wire_is_over(const wire_port *port, int r, bool gave_up)
{
    return port->state[r] == WIRE_GOOD && (gave_up || port->ends[r] <= world.now) &&
           (!port->parted[r] || wire.queue[port->me.kind][r][port->me.rank] == NULL);
}

/* Report ranks that are no more, or have given this one up. */
static unsigned wire_bury(wire_port *port)
{
    unsigned n = 0;
    for (int i = 0, from = world_below(world.n); i < world.n; i++) {
        const int r = (from + i) % world.n;
        const bool gave_up = wire.port[port->me.kind][r].given_up[port->me.rank];
        if (!wire_is_over(port, r, gave_up)) {
            continue;
        }
        const char *why = gave_up ? "it counts this process as dead" : port->why[r];
        port->state[r] = WIRE_LOST;
        wire_cut(&wire.queue[port->me.kind][r][port->me.rank]);
        wire_give_back(port, r, DCOMM_ERR_PEER);
        n++;
        world_trace("loses rank %d: %s", r, why);
        if (!port->closing) {
            world_busy();
            port->base.handlers.on_peer_lost(port->base.handlers.user, &port->base,
                                             port->peer_of[r], why,
                                             gave_up                       ? DCOMMI_LOSS_GIVEN_UP
                                             : port->me.kind == WIRE_LOCAL ? DCOMMI_LOSS_PROVEN
                                                                           : DCOMMI_LOSS_SILENT);
        }
    }
    return n;
}

static unsigned wire_tell_done(wire_port *port)
{
    unsigned n = 0;
    for (wire_done **at = &port->done; *at != NULL;) {
        wire_done *done = *at;
        if (done->when > world.now || world_chance(wire_rules.hold)) {
            at = &done->next;
            continue;
        }
        *at = done->next;
        world_busy();
        done->op->done(done->op, done->status);
        free(done);
        n++;
        at = &port->done; /* `done` may have started others */
    }
    return n;
}

static unsigned wire_progress(dcommi_transport *t)
{
    wire_port *port = (wire_port *)t;
    unsigned n = 0;
    if (port->inside) {
        return 0;
    }
    world_point();
    if (port->me.kind == WIRE_LOCAL && !port->closing) { /* it is asked in every pass */
        world_yield();
    }
    port->inside = true;
    for (int i = 0, from = world_below(world.n); i < world.n; i++) {
        const int r = (from + i) % world.n;
        wire_parcel *p;
        const bool open = port->state[r] == WIRE_GOOD ||
                          (port->state[r] == WIRE_UNKNOWN && port->me.kind == WIRE_NET);
        while (open && !world_chance(wire_rules.hold) && (p = wire_next(port, r)) != NULL) {
            n++;
            if (!wire_deliver(port, p)) {
                break;
            }
        }
    }
    n += wire_land(port);
    n += wire_bury(port);
    port->inside = false;
    n += wire_tell_done(port);
    if (n == 0 && !port->closing) { /* look for what is due in every idle pass */
        ((dcomm_context *)t->handlers.user)->idle |= 255;
    }
    return n;
}

static bool wire_peek(dcommi_transport *t, int peer, size_t expected, dcommi_arrival *arrival)
{
    wire_port *port = (wire_port *)t;
    const int r = port->rank_of[peer];
    (void)expected;
    world_point();
    world_yield();
    wire.waits_since[port->me.rank] = world.now;
    wire_parcel *p = port->me.kind == WIRE_LOCAL && port->state[r] == WIRE_GOOD && !port->inside
                         ? wire_next(port, r)
                         : NULL;
    if (p == NULL || p->is_long) {
        return false;
    }
    world_busy();
    port->peeked = p;
    *arrival = (dcommi_arrival){.peer = peer,
                                .header = p->header,
                                .header_len = p->header_len,
                                .data = p->data != NULL ? p->data : "",
                                .len = p->len};
    return true;
}

static void wire_pass(dcommi_transport *t, int peer)
{
    wire_port *port = (wire_port *)t;
    (void)peer;
    world_point();
    wire_unqueue(port->peeked);
    wire_sent(port->peeked, DCOMM_OK);
    wire_free(port->peeked);
    wire.delivered++;
}

/* ---- the rest of a transport ---- */

static dcomm_status wire_common(dcommi_transport *t, int peer, void **common_p)
{
    const wire_port *port = (const wire_port *)t;
    const int r = peer < 0 ? port->me.rank : port->rank_of[peer];
    const bool lost = peer >= 0 && port->state[r] != WIRE_GOOD;
    *common_p = wire_rules.common && !lost ? wire.common[r] : NULL;
    return lost ? DCOMM_ERR_PEER : DCOMM_OK;
}

static dcomm_status wire_listen(dcommi_transport *t)
{
    (void)t;
    return DCOMM_OK;
}

static dcomm_status wire_greet(dcommi_transport *t, const void *address, size_t len, bool first)
{
    (void)t, (void)address, (void)len, (void)first;
    return DCOMM_OK;
}

static void wire_greeting(dcommi_transport *t, bool begins)
{
    (void)t, (void)begins;
}

static void wire_forget(dcommi_transport *t, const void *address, size_t len)
{
    (void)t, (void)address, (void)len;
}

/* Return true if an op of the port's is not done. */
static bool wire_pending(const wire_port *port)
{
    bool pending = port->done != NULL;
    for (const wire_parcel *p = wire.parcels; p != NULL && !pending; p = p->older) {
        pending = (p->from == port && p->op != NULL) || (p->to == port && p->fetch != NULL);
    }
    return pending;
}

static void wire_close(dcommi_transport *t, double timeout_s, bool force)
{
    wire_port *port = (wire_port *)t;
    const double until = world.now + timeout_s;
    while (!force && wire_pending(port) && world.now < until) {
        wire_progress(t);
        world_yield();
    }
    port->closing = true;
    for (int r = 0; r < world.n; r++) {
        wire_give_back(port, r, DCOMM_ERR_ABORTED);
    }
    while (port->done != NULL) {
        wire_done *done = port->done;
        port->done = done->next;
        done->op->done(done->op, done->status);
        free(done);
    }
    for (const wire_parcel *p = wire.parcels; p != NULL; p = p->older) {
        if (p->to == port && p->kept) {
            world_trouble("rank %d leaves a payload with its transport", world.in);
        }
    }
    port->open = false;
    wire_over(port->me.rank, false);
}

#define WIRE_CALLS                                                                                \
    .add_peer = wire_add_peer, .connect = wire_connect, .remove_peer = wire_remove_peer,          \
    .lose = wire_lose, .send = wire_send, .fetch = wire_fetch, .release = wire_release,           \
    .progress = wire_progress, .peek = wire_peek, .pass = wire_pass, .common = wire_common,       \
    .listen = wire_listen, .greet = wire_greet, .greeting = wire_greeting, .forget = wire_forget, \
    .close = wire_close

static const dcommi_transport_vtable wire_tables[WIRE_KINDS] = {
    [WIRE_LOCAL] = {WIRE_CALLS, .give_up = wire_give_up, .gave_up = wire_gave_up},
    [WIRE_NET] = {WIRE_CALLS}};

static dcomm_status wire_open(int kind, const dcommi_transport_handlers *handlers,
                              dcommi_transport **t_p)
{
    wire_port *port = &wire.port[kind][world.in];
    memset(port, 0, sizeof *port);
    port->base = (dcommi_transport){.name = kind == WIRE_LOCAL ? "local" : "net",
                                    .call = &wire_tables[kind],
                                    .handlers = *handlers,
                                    .address = &port->me,
                                    .address_len = sizeof port->me,
                                    .eager_max = wire_rules.eager_max,
                                    .ordered_max = wire_rules.ordered_max};
    port->me = (struct wire_address){world.in, kind};
    port->open = true;
    for (int r = 0; r < WORLD_MAX; r++) {
        port->fails[r] = port->ends[r] = WORLD_NEVER;
    }
    *t_p = &port->base;
    return DCOMM_OK;
}

WORLD_WRAP(dcomm_status, dcommi_local_open, const dcommi_transport_handlers *handlers,
           dcommi_transport **t_p)
{
    return world.in < 0 ? __real_dcommi_local_open(handlers, t_p)
                        : wire_open(WIRE_LOCAL, handlers, t_p);
}

WORLD_WRAP(dcomm_status, dcommi_net_open, const dcommi_transport_handlers *handlers,
           const char *iface, dcommi_transport **t_p)
{
    return world.in < 0 ? __real_dcommi_net_open(handlers, iface, t_p)
                        : wire_open(WIRE_NET, handlers, t_p);
}

/* ---- the world's view ---- */

/* Return when the next message comes, op ends or loss is noticed. */
static double wire_next_event(void)
{
    double next = sockets_next();
    for (const wire_parcel *p = wire.parcels; p != NULL; p = p->older) {
        const double when = p->fetch != NULL ? p->lands : p->queued ? p->ready : 0;
        next = when > world.now && when < next ? when : next;
    }
    for (int k = 0; k < WIRE_KINDS; k++) {
        for (int r = 0; r < world.n; r++) {
            const wire_port *port = &wire.port[k][r];
            for (const wire_done *d = port->done; port->open && d != NULL; d = d->next) {
                next = d->when > world.now && d->when < next ? d->when : next;
            }
            for (int o = 0; port->open && o < world.n; o++) {
                const double when = port->ends[o];
                next = port->state[o] == WIRE_GOOD && when > world.now && when < next ? when : next;
            }
        }
    }
    return next;
}

/* Forget everything. */
static void wire_end(void)
{
    while (wire.parcels != NULL) {
        wire_parcel *p = wire.parcels;
        wire.parcels = p->older;
        free(p->copy);
        free(p);
    }
    for (int k = 0; k < WIRE_KINDS; k++) {
        for (int r = 0; r < WORLD_MAX; r++) {
            while (wire.port[k][r].done != NULL) {
                wire_done *done = wire.port[k][r].done;
                wire.port[k][r].done = done->next;
                free(done);
            }
            memset(&wire.port[k][r], 0, sizeof wire.port[k][r]);
        }
    }
    memset(wire.queue, 0, sizeof wire.queue);
    memset(wire.waits_since, 0, sizeof wire.waits_since);
    wire.delivered = 0;
    sockets.n = 0;
    network_end();
    threads_end();
}

#endif
