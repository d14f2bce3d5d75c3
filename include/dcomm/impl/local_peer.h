/* local_peer.h - what the transport between the processes of a host knows of each: the fifo in
 * which it writes to us, ours at it, and what has found no room yet. */
#ifndef DCOMMI_LOCAL_PEER_H
#define DCOMMI_LOCAL_PEER_H

#include "device_host.h"
#include "fifo.h"
#include "fill.h"
#include "ucx_region.h"
#include "watch.h"

#define DCOMMI_LOCAL_EAGER 32768 /* longest payload of one record */
#define DCOMMI_LOCAL_FIFO 262144
#define DCOMMI_LOCAL_PEERS 1024   /* of one transport, over its life */
#define DCOMMI_LOCAL_PER_BLOCK 16 /* fifos */
#define DCOMMI_LOCAL_BLOCKS (DCOMMI_LOCAL_PEERS / DCOMMI_LOCAL_PER_BLOCK)
#define DCOMMI_LOCAL_KEY_MAX 244

/* Kinds of records. OFFER, GO, NO and FRAG carry a long message: the sender offers it, the receiver
 * says go when it has a place (or no), then it comes in fragments between other records. */
enum dcommi_local_kind {
    DCOMMI_LOCAL_MSG = 1,
    DCOMMI_LOCAL_OFFER, /* behind the header: dcommi_local_offer_tail */
    DCOMMI_LOCAL_GO,    /* header: the offer's id */
    DCOMMI_LOCAL_NO,    /* likewise */
    DCOMMI_LOCAL_FRAG   /* likewise */
};

typedef struct dcommi_local_offer_tail {
    uint64_t id, len;
} dcommi_local_offer_tail;

/* ---- what lies in shared memory ---- */

/* Each process owns the memory of the fifos that others write to it, and says here which is whose.
 * Blocks of fifos are allocated as peers are added. */
typedef struct dcommi_local_directory {
    _Atomic uint32_t count, closed;
    struct dcommi_local_block {
        uint64_t base;
        uint32_t key_len;
        uint8_t key[DCOMMI_LOCAL_KEY_MAX];
    } blocks[DCOMMI_LOCAL_BLOCKS];
    uint64_t writer[DCOMMI_LOCAL_PEERS]; /* id of the transport that writes to fifo i */
    _Alignas(DCOMMI_LINE) unsigned char common[DCOMMI_COMMON_BYTES];
} dcommi_local_directory;

/* How a transport is found: its address, followed by the directory's key and UCX's address. */
typedef struct dcommi_local_card {
    uint64_t id;
    dcommi_watch_card process;
    uint64_t directory;
    uint32_t key_len, ucx_len;
} dcommi_local_card;

/* ---- peers ---- */

/* A long message under way, out or in; in a list of its peer, then of those that are done. */
typedef struct dcommi_local_flight {
    struct dcommi_local_flight *next;
    dcommi_op *op;
    uint64_t id;
    unsigned char *bytes; /* read from, or written to */
    size_t len, at;
    bool going;
} dcommi_local_flight;

/* A record for which the fifo had no room. A payload of some length stays where it is. */
typedef struct dcommi_local_queued {
    struct dcommi_local_queued *next;
    dcommi_op *op; /* NULL: the payload was copied */
    const void *data;
    unsigned kind;
    size_t header_len, len;
    unsigned char bytes[]; /* header, payload that was copied */
} dcommi_local_queued;

typedef struct dcommi_local dcommi_local;

typedef struct dcommi_local_peer {
    dcommi_fifo_end in, out; /* out.lines NULL: not connected yet */
    dcommi_local *local;
    struct dcommi_local_peer *next; /* among the removed */
    int index, pidfd;
    uint32_t fifo; /* number of the one that it writes to */
    dcommi_local_card card;
    uint8_t *keys; /* the directory's key, UCX's address */
    ucp_ep_h ep;
    dcommi_local_directory *directory; /* mapped */
    void *directory_map, *fifo_map;
    dcommi_local_queued *queue, *queue_last;
    dcommi_local_flight *sends, *fetches;
    dcommi_filler filler; /* of its fifo */
    unsigned in_place;    /* > 0: a long payload was written in place lately */
    bool waiting;         /* something is queued or going: to be looked at in progress */
    bool ended;           /* its process, or its transport; what it wrote is still read */
    bool lost, removed;
    const char *why;
} dcommi_local_peer;

/* A long message that was offered to us and not taken yet: the engine knows it as desc. */
typedef struct dcommi_local_offer {
    struct dcommi_local_offer *next, **prev;
    dcommi_local_peer *peer; /* NULL: lost or removed */
    uint64_t id;
} dcommi_local_offer;

struct dcommi_local {
    dcommi_transport base;
    dcommi_ucx_maps maps;
    dcommi_local_peer **polled; /* all that are not removed or lost */
    size_t npolled, polled_capacity;
    unsigned turns; /* of progress */
    size_t nwaiting, nended;
    struct dcommi_local_done {
        dcommi_op *op;
        dcomm_status status;
    } * done; /* to be told at the end of progress */
    size_t ndone, npromised, done_capacity;
    dcommi_local_peer *removed; /* in the course of progress */
    bool inside;                /* progress is on the stack */
    bool closing;
    dcommi_record peeked;
    uint64_t id, next_flight;
    dcommi_watch_card process;
    double last_watch;
    int epoll; /* of the peers' pidfds; -1: none */
    dcommi_local_peer **peers;
    size_t peers_capacity;
    dcommi_local_offer *offers;
    dcommi_local_directory *directory;
    dcommi_region directory_region, blocks[DCOMMI_LOCAL_BLOCKS];
    dcommi_fifo_end
        fifos[DCOMMI_LOCAL_PEERS]; /* the reader's ends, while nobody is added for them */
};

static inline dcommi_local_peer *dcommi_local_peer_at(const dcommi_local *u, int peer)
{
    return peer >= 0 && (size_t)peer < u->peers_capacity ? u->peers[peer] : NULL;
}

/* ---- the fifos that peers write to ---- */

static inline dcommi_fifo *dcommi_local_fifo_at(void *block, uint32_t fifo)
{
    return (dcommi_fifo *)(void *)((char *)block + (fifo % DCOMMI_LOCAL_PER_BLOCK) *
                                                       dcommi_fifo_bytes(DCOMMI_LOCAL_FIFO));
}

/* The fifo of a writer: its own from an earlier time, or a new one. */
static dcomm_status dcommi_local_fifo_find(dcommi_local *u, uint64_t writer, uint32_t *fifo_p)
{
    dcommi_local_directory *d = u->directory;
    uint32_t count = atomic_load_explicit(&d->count, memory_order_relaxed);
    for (uint32_t i = 0; i < count; i++) {
        if (d->writer[i] == writer) {
            *fifo_p = i;
            return DCOMM_OK;
        }
    }
    if (count == DCOMMI_LOCAL_PEERS) {
        return dcommi_fail(DCOMM_ERR_UNSUPPORTED,
                           "local: more than %d processes of this host, counting those that have "
                           "left; make a new context",
                           DCOMMI_LOCAL_PEERS);
    }
    uint32_t block = count / DCOMMI_LOCAL_PER_BLOCK;
    if (u->blocks[block].base == NULL) {
        dcommi_region *region = &u->blocks[block];
        DCOMMI_TRY(dcommi_ucx_region_allocate(
            &u->maps, DCOMMI_LOCAL_PER_BLOCK * dcommi_fifo_bytes(DCOMMI_LOCAL_FIFO), region));
        if (region->key_len > DCOMMI_LOCAL_KEY_MAX) {
            return dcommi_fail(DCOMM_ERR_INTERNAL, "local: a memory key of %zu bytes",
                               region->key_len);
        }
        d->blocks[block].base = (uint64_t)(uintptr_t)region->base;
        d->blocks[block].key_len = (uint32_t)region->key_len;
        memcpy(d->blocks[block].key, region->key, region->key_len);
    }
    u->fifos[count] =
        dcommi_fifo_reader(dcommi_local_fifo_at(u->blocks[block].base, count), DCOMMI_LOCAL_FIFO);
    d->writer[count] = writer;
    atomic_store_explicit(&d->count, count + 1, memory_order_release);
    *fifo_p = count;
    return DCOMM_OK;
}

/* ---- reaching a peer ---- */

static dcomm_status dcommi_local_reach(dcommi_local_peer *p)
{
    dcommi_local *u = p->local;
    if (p->ep == NULL) {
        DCOMMI_TRY(dcommi_ucx_maps_reach(&u->maps, p->keys + p->card.key_len, &p->ep));
    }
    return DCOMM_OK;
}

/* Map the peer's directory. */
static dcomm_status dcommi_local_look_up(dcommi_local_peer *p)
{
    void *ptr = NULL;
    DCOMMI_TRY(dcommi_local_reach(p));
    if (p->directory == NULL) {
        DCOMMI_TRY(dcommi_ucx_region_attach(&p->local->maps, p->ep, p->keys,
                                            (void *)(uintptr_t)p->card.directory, &ptr,
                                            &p->directory_map));
        p->directory = ptr;
    }
    return DCOMM_OK;
}

/* Find our fifo at the peer. DCOMM_IN_PROGRESS: it has not added us yet. */
static dcomm_status dcommi_local_connect(dcommi_local_peer *p)
{
    dcommi_local *u = p->local;
    void *ptr = NULL;
    DCOMMI_TRY(dcommi_local_look_up(p));
    uint32_t count = atomic_load_explicit(&p->directory->count, memory_order_acquire);
    for (uint32_t i = 0; i < count && i < DCOMMI_LOCAL_PEERS; i++) {
        if (p->directory->writer[i] != u->id) {
            continue;
        }
        const struct dcommi_local_block *b = &p->directory->blocks[i / DCOMMI_LOCAL_PER_BLOCK];
        DCOMMI_TRY(dcommi_ucx_region_attach(&u->maps, p->ep, b->key, (void *)(uintptr_t)b->base,
                                            &ptr, &p->fifo_map));
        p->out = dcommi_fifo_writer(dcommi_local_fifo_at(ptr, i), DCOMMI_LOCAL_FIFO);
        return DCOMM_OK;
    }
    return DCOMM_IN_PROGRESS;
}

static void dcommi_local_disconnect(dcommi_local_peer *p)
{
    dcommi_local *u = p->local;
    if (p->out.lines != NULL) {
        dcommi_fifo_leave(&p->out);
        p->out.lines = NULL;
    }
    if (p->fifo_map != NULL) {
        dcommi_ucx_mapping_drop(u->maps.context, p->fifo_map);
    }
    if (p->directory_map != NULL) {
        dcommi_ucx_mapping_drop(u->maps.context, p->directory_map);
    }
    if (p->ep != NULL) {
        dcommi_ucx_maps_leave(&u->maps, p->ep);
    }
    p->fifo_map = p->directory_map = NULL;
    p->directory = NULL;
    p->ep = NULL;
}

/* ---- the end of a peer ---- */

/* Room for one more op: kept free ahead of time, so that being done needs no memory. */
static dcomm_status dcommi_local_promise(dcommi_local *u)
{
    DCOMMI_TRY(dcommi_grow((void **)&u->done, &u->done_capacity, u->ndone + u->npromised + 1,
                           sizeof *u->done));
    u->npromised++;
    return DCOMM_OK;
}

static void dcommi_local_done(dcommi_local *u, dcommi_op *op, dcomm_status status)
{
    u->npromised--;
    u->done[u->ndone].op = op;
    u->done[u->ndone++].status = status;
}

static dcommi_local_flight *dcommi_local_flight_new(dcommi_local *u, dcommi_op *op)
{
    dcommi_local_flight *f = dcommi_local_promise(u) < 0 ? NULL : dcommi_alloc(sizeof *f);
    if (f != NULL) {
        f->op = op;
    }
    return f;
}

static void dcommi_local_flight_done(dcommi_local *u, dcommi_local_flight *f, dcomm_status status)
{
    dcommi_local_done(u, f->op, status);
    dcommi_free(f);
}

static inline void dcommi_local_waiting(dcommi_local_peer *p, bool waiting)
{
    if (p->waiting != waiting) {
        p->waiting = waiting;
        p->local->nwaiting += waiting ? 1 : (size_t)-1;
    }
}

/* Nothing more will go to or come from the peer. */
static void dcommi_local_drop_all(dcommi_local_peer *p, dcomm_status status)
{
    dcommi_local *u = p->local;
    while (p->queue != NULL) {
        dcommi_local_queued *q = p->queue;
        p->queue = q->next;
        if (q->op != NULL) {
            dcommi_local_done(u, q->op, status);
        }
        dcommi_free(q);
    }
    p->queue_last = NULL;
    for (dcommi_local_flight **list = &p->sends; list != NULL;
         list = list == &p->sends ? &p->fetches : NULL) {
        while (*list != NULL) {
            dcommi_local_flight *f = *list;
            *list = f->next;
            dcommi_local_flight_done(u, f, status);
        }
    }
    for (dcommi_local_offer *o = u->offers; o != NULL; o = o->next) {
        o->peer = o->peer == p ? NULL : o->peer;
    }
    dcommi_local_waiting(p, false);
}

static void dcommi_local_peer_free(dcommi_local_peer *p)
{
    dcommi_local_disconnect(p);
    if (p->pidfd >= 0) {
        epoll_ctl(p->local->epoll, EPOLL_CTL_DEL, p->pidfd, NULL); /* a forked child may hold it */
        close(p->pidfd);
    }
    dcommi_free(p->keys);
    dcommi_free(p);
}

static void dcommi_local_unpoll(dcommi_local *u, const dcommi_local_peer *p)
{
    for (size_t i = 0; i < u->npolled; i++) {
        if (u->polled[i] == p) {
            u->polled[i] = u->polled[--u->npolled];
            return;
        }
    }
}

#endif
