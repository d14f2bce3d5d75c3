/* wire.h - the transport of simulated ranks: messages in memory, in any order and at any time that
 * transport.h allows, and the ends of peers, which each rank notices by itself and late.
 *
 * There is no buffering unless the seed says so: a payload stays in its sender's memory until it
 * is received, and only then the send completes, later still. So a sender that touches a payload
 * too early spoils a result. */
#ifndef SIM_WIRE_H
#define SIM_WIRE_H

#include "system.h"

#include "dcomm/impl/transport/transport.h"

enum { WIRE_LOCAL, WIRE_NET, WIRE_KINDS };

/* The rules for the messages of a case, which sets them. */
static struct {
    double delay;   /* most seconds that a message takes */
    double slow;    /* chance that a message takes a hundred times as long */
    double buffers; /* chance that a send is over at once */
    double copied;  /* chance that a payload comes in memory of the transport's */
    double hold;    /* chance that a message that is there is left for later */
    double late;    /* most seconds until a death is noticed */
    bool deaf;      /* the network notices no death: control connections do */
    size_t eager_max, ordered_max;
    bool common; /* ranks of a host share memory for broadcasts */
} wire_rules;

typedef struct wire_port wire_port;

typedef struct wire_parcel {
    struct wire_parcel *next;           /* in its queue */
    struct wire_parcel *older, **newer; /* in the list of all parcels */
    wire_port *from, *to;
    unsigned char header[DCOMMI_HEADER_MAX];
    size_t header_len, len;
    const void *data; /* of the sender's, or the copy */
    unsigned char *copy;
    dcommi_op *op; /* of the sender's; NULL: it has been told, or needs not be */
    bool is_long, ordered;
    bool queued, arriving; /* arriving: the engine looks at it now */
    bool kept;             /* by the engine, which must fetch or release it */
    bool gone;             /* the payload cannot be read any more */
    bool freed;            /* as soon as it does not arrive any more */
    double ready;
    /* of a fetch */
    dcommi_op *fetch;
    void *into;
    double lands;
} wire_parcel;

typedef struct wire_done {
    struct wire_done *next;
    dcommi_op *op;
    dcomm_status status;
    double when;
} wire_done;

typedef enum wire_peer_state { WIRE_UNKNOWN, WIRE_GOOD, WIRE_LOST, WIRE_REMOVED } wire_peer_state;

struct wire_port {
    dcommi_transport base;
    struct wire_address {
        int rank, kind;
    } me;
    int peer_of[WORLD_MAX], rank_of[WORLD_MAX]; /* rank_of: of a peer */
    wire_peer_state state[WORLD_MAX];           /* of a rank */
    double fails[WORLD_MAX], ends[WORLD_MAX]; /* when sends to it fail; when it is reported lost */
    const char *why[WORLD_MAX];
    bool parted[WORLD_MAX];   /* its last messages come before its end is reported */
    bool given_up[WORLD_MAX]; /* by this rank, which shares memory with it */
    bool closed[WORLD_MAX];   /* by the engine, which knows that it is lost */
    wire_done *done;
    bool open, closing, inside;
    int fetching;
    wire_parcel *peeked;
};

static struct {
    wire_port port[WIRE_KINDS][WORLD_MAX];
    wire_parcel *queue[WIRE_KINDS][WORLD_MAX][WORLD_MAX]; /* from, to */
    wire_parcel *parcels;
    _Alignas(64) unsigned char common[WORLD_MAX][DCOMMI_COMMON_BYTES];
    double waits_since[WORLD_MAX]; /* a rank's last call, or its last poll in the fast path */
    uint64_t delivered;
} wire;

/* ---- parcels ---- */

static double wire_delay(void)
{
    return wire_rules.delay * world_unit() * (world_chance(wire_rules.slow) ? 100 : 1);
}

/* Have an op of this port done, at once or later. */
static void wire_complete(wire_port *port, dcommi_op *op, dcomm_status status, double later)
{
    wire_done *done = malloc(sizeof *done);
    *done = (wire_done){.op = op, .status = status, .when = world.now + later};
    wire_done **at = &port->done;
    for (int n = world_below(4); *at != NULL && n > 0; n--) {
        at = &(*at)->next;
    }
    done->next = *at;
    *at = done;
}

/* Tell the sender of a parcel that it is over. */
static void wire_sent(wire_parcel *p, dcomm_status status)
{
    if (p->op != NULL) {
        wire_complete(p->from, p->op, status, wire_delay());
        p->op = NULL;
    }
}

static wire_parcel **wire_queue(const wire_port *from, const wire_port *to)
{
    return &wire.queue[to->me.kind][from->me.rank][to->me.rank];
}

static void wire_unqueue(wire_parcel *p)
{
    wire_parcel **at = wire_queue(p->from, p->to);
    while (*at != NULL && *at != p) {
        at = &(*at)->next;
    }
    if (*at != NULL) {
        *at = p->next;
    }
    p->queued = false;
}

/* Lose what is in a queue from here on. */
static void wire_cut(wire_parcel **at)
{
    for (wire_parcel *p = *at; p != NULL; p = p->next) {
        p->queued = false;
    }
    *at = NULL;
}

/* Free a parcel that nobody will ask for any more, unless the engine looks at it. */
static void wire_free(wire_parcel *p)
{
    p->gone = p->freed = true;
    if (!p->arriving) {
        *p->newer = p->older;
        if (p->older != NULL) {
            p->older->newer = p->newer;
        }
        free(p->copy);
        free(p);
    }
}

/* Return the next parcel from a rank that may be delivered: the oldest one, or one that may
 * overtake it. */
static wire_parcel *wire_next(const wire_port *port, int from)
{
    wire_parcel *found = NULL;
    bool ordered = false; /* one that must come before */
    for (wire_parcel *p = wire.queue[port->me.kind][from][port->me.rank]; p != NULL; p = p->next) {
        if ((!p->ordered || !ordered) && p->ready <= world.now) {
            if (found == NULL || world_chance(0.3)) {
                found = p;
            }
        }
        ordered = ordered || p->ordered;
    }
    return found;
}

/* ---- peers ---- */

static dcomm_status wire_add_peer(dcommi_transport *t, int peer, const void *address, size_t len)
{
    wire_port *port = (wire_port *)t;
    struct wire_address a;
    if (len != sizeof a || peer < 0 || peer >= WORLD_MAX) {
        world_trouble("peer %d has an address of %zu bytes", peer, len);
        return DCOMM_ERR_INTERNAL;
    }
    memcpy(&a, address, sizeof a);
    port->peer_of[a.rank] = peer;
    port->rank_of[peer] = a.rank;
    port->state[a.rank] = WIRE_GOOD;
    return DCOMM_OK;
}

static void wire_connect(dcommi_transport *t, int peer, int connections)
{
    (void)t, (void)peer, (void)connections;
}

/* Give back the ops between this port and a rank. */
static void wire_give_back(wire_port *port, int rank, dcomm_status status)
{
    for (wire_parcel *p = wire.parcels; p != NULL; p = p->older) {
        if (p->from == port && p->to->me.rank == rank && p->op != NULL) {
            wire_complete(port, p->op, status, world_chance(0.5) ? 0 : wire_delay());
            p->op = NULL;
            p->gone = p->copy == NULL;
            if (p->gone && p->fetch == NULL) {
                wire_unqueue(p);
            }
        }
        if (p->to == port && p->from->me.rank == rank && p->fetch != NULL) {
            wire_complete(port, p->fetch, status, world_chance(0.5) ? 0 : wire_delay());
            p->fetch = NULL;
            port->fetching--;
        }
    }
}

static void wire_remove_peer(dcommi_transport *t, int peer)
{
    wire_port *port = (wire_port *)t;
    const int rank = port->rank_of[peer];
    wire_give_back(port, rank, DCOMM_ERR_PEER);
    port->state[rank] = WIRE_REMOVED;
}

static void wire_lose(dcommi_transport *t, int peer, const char *why)
{
    wire_port *port = (wire_port *)t;
    const int rank = port->rank_of[peer];
    if (port->state[rank] == WIRE_GOOD && port->fails[rank] > world.now) {
        port->fails[rank] = world.now;
        port->why[rank] = why;
        port->closed[rank] = true;
        const double most = wire_rules.late < 1 ? wire_rules.late : 1;
        const double end = world.now + most * world_unit();
        port->ends[rank] = end < port->ends[rank] ? end : port->ends[rank];
    }
}

/* Tell a rank of this host that it counts as dead here. */
static void wire_give_up(dcommi_transport *t, int peer)
{
    wire_port *port = (wire_port *)t;
    port->given_up[port->rank_of[peer]] = true;
}

static bool wire_gave_up(dcommi_transport *t, int peer)
{
    const wire_port *port = (const wire_port *)t;
    return wire.port[port->me.kind][port->rank_of[peer]].given_up[port->me.rank];
}

/* Delay what is on its way between the halves of the network, which has just been cut. */
static void wire_on_cut(void)
{
    for (wire_parcel *p = wire.parcels; p != NULL; p = p->older) {
        const int from = p->from->me.rank, to = p->to->me.rank;
        if (network_cut(from, to)) {
            p->ready = network_arrives(from, to, world.now, world_unit());
            p->lands = p->ready;
        }
    }
    for (int to = 0; to < world.n; to++) {
        for (int from = 0; from < world.n; from++) {
            wire_port *port = &wire.port[WIRE_NET][to];
            if (port->open && !port->closed[from] && network_cut(from, to) &&
                port->ends[from] > world.now) {
                port->ends[from] = port->fails[from] = WORLD_NEVER;
            }
        }
    }
    sockets_cut();
}

/* Let all others notice, each in its own time, that a rank is no more. */
static void wire_over(int rank, bool died)
{
    const double late = died ? wire_rules.late : 0.1;
    for (int k = 0; k < WIRE_KINDS; k++) {
        for (int r = 0; r < world.n; r++) {
            wire_port *port = &wire.port[k][r];
            if (r != rank && port->open && port->state[rank] == WIRE_GOOD &&
                port->fails[rank] >= WORLD_NEVER) {
                /* The last frames on the control connections of a rank that leaves are there
                 * before. */
                const double u = world_unit(), soonest = world.now + (died ? 0 : sockets.delay);
                const double end = soonest + late * u * u * u;
                const bool deaf =
                    k == WIRE_NET && ((died && wire_rules.deaf) || network_cut(rank, r));
                const bool early = k == WIRE_NET && died && world_chance(0.5);
                port->ends[rank] = deaf ? WORLD_NEVER : end;
                port->fails[rank] = deaf    ? WORLD_NEVER
                                    : early ? world.now + (end - world.now) * world_unit()
                                            : end;
                port->parted[rank] = k == WIRE_LOCAL || !died;
                port->why[rank] = died ? "its process has ended" : "it has closed its connections";
            }
        }
    }
}

/* Lose a part of what a rank had under way when it died: the last messages to each other rank. */
static void wire_died(int rank)
{
    for (int k = 0; k < WIRE_KINDS; k++) {
        for (int r = 0; r < world.n; r++) {
            wire_parcel **at = &wire.queue[k][rank][r];
            while (*at != NULL && world_chance(0.7)) {
                at = &(*at)->next;
            }
            wire_cut(at);
        }
    }
    sockets_died(rank, wire_rules.late);
    wire_over(rank, true);
}

#endif
