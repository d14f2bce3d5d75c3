/* peer.h - the local transport's state of a peer: the fifo that it writes to us, the fifo that we
 * write to it, and the queue for messages that found no room. */
#ifndef DCOMMI_LOCAL_PEER_H
#define DCOMMI_LOCAL_PEER_H

#include "../../device/host.h"
#include "fifo.h"
#include "fill.h"
#include "hand.h"
#include "../transport.h"
#include "watch.h"

#define DCOMMI_LOCAL_EAGER 32768     /* longest payload of one record, in bytes */
#define DCOMMI_LOCAL_FIFO 262144     /* bytes of a fifo */
#define DCOMMI_LOCAL_PEERS 1024      /* of one transport, over its life */
#define DCOMMI_LOCAL_LOCK UINT64_MAX /* the number of a process's locked file (watch.h) */

/* Kinds of records. OFFER, GO, NO and FRAG carry a long message. The sender offers it, the
 * receiver answers GO when it has a buffer, or NO. The message then comes in fragments, between
 * other records. */
enum dcommi_local_kind {
    DCOMMI_LOCAL_MSG = 1,
    DCOMMI_LOCAL_OFFER, /* behind the header: dcommi_local_offer_tail */
    DCOMMI_LOCAL_GO,    /* header: the offer's id */
    DCOMMI_LOCAL_NO,    /* header: the offer's id */
    DCOMMI_LOCAL_FRAG   /* header: the offer's id */
};

typedef struct dcommi_local_offer_tail {
    uint64_t id, len;
} dcommi_local_offer_tail;

/* ---- shared memory ---- */

/* Each process has one file: this directory, then the fifos that others write. The directory names
 * the writer of each fifo. Fifos are mapped as peers are added, and take no memory before. */
typedef struct dcommi_local_directory {
    _Atomic uint32_t count, closed;
    uint64_t writer[DCOMMI_LOCAL_PEERS];          /* id of the transport that writes to fifo i */
    _Atomic uint8_t given_up[DCOMMI_LOCAL_PEERS]; /* 1: that transport counts as dead here */
    _Alignas(DCOMMI_LINE) unsigned char common[DCOMMI_COMMON_BYTES];
} dcommi_local_directory;

/* The address of a transport. */
typedef struct dcommi_local_card {
    dcommi_hand_address hand;
    dcommi_watch_card process;
} dcommi_local_card;

/* ---- peers ---- */

/* A long message that is being sent or fetched, in a list of its peer. */
typedef struct dcommi_local_flight {
    struct dcommi_local_flight *next;
    dcommi_op *op;
    uint64_t id;
    unsigned char *bytes; /* the payload to send, or the buffer to fill */
    size_t len, at;
    bool going;
} dcommi_local_flight;

/* A record for which the fifo had no room. A long payload stays in the sender's buffer. */
typedef struct dcommi_local_queued {
    struct dcommi_local_queued *next;
    dcommi_op *op; /* NULL: the payload was copied */
    const void *data;
    unsigned kind;
    size_t header_len, len;
    unsigned char bytes[]; /* header, and the payload if it was copied */
} dcommi_local_queued;

typedef struct dcommi_local dcommi_local;

typedef struct dcommi_local_peer {
    dcommi_fifo_end in, out; /* out.lines NULL: not connected yet */
    dcommi_local *local;
    struct dcommi_local_peer *next; /* in the list of removed peers */
    int index, pidfd;
    int lock;      /* its locked file, if it has no pid here; -1: none */
    uint32_t fifo; /* number of our fifo that it writes */
    uint32_t ours; /* number of its fifo that we write; set with out.lines */
    dcommi_local_card card;
    int file;                          /* its file, until our fifo in it is mapped; -1: not open */
    dcommi_local_directory *directory; /* mapped */
    dcommi_local_queued *queue, *queue_last;
    dcommi_local_flight *sends, *fetches;
    dcommi_filler filler; /* for its fifo */
    unsigned in_place;    /* > 0: a long payload was written in place lately */
    bool waiting;         /* progress must write queued records or fragments */
    bool ended;           /* its process or transport has ended; we still read its records */
    dcommi_loss how;      /* and how */
    bool lost, removed;
    const char *why;
} dcommi_local_peer;

/* A long message that was offered to us and not taken yet. The engine knows it as desc. */
typedef struct dcommi_local_offer {
    struct dcommi_local_offer *next, **prev;
    dcommi_local_peer *peer; /* NULL: lost or removed */
    uint64_t id;
} dcommi_local_offer;

struct dcommi_local {
    dcommi_transport base;
    dcommi_hands hands;
    dcommi_local_card card;
    int file;                          /* -1: none */
    int lock;                          /* for processes of other pid namespaces; -1: none */
    dcommi_local_directory *directory; /* the beginning of `file` */
    dcommi_local_peer **polled;        /* all peers that are not removed or lost */
    size_t npolled, polled_capacity;
    size_t nwaiting, nended;
    struct dcommi_local_done {
        dcommi_op *op;
        dcomm_status status;
    } * done; /* ops whose `done` is called at the end of progress */
    size_t ndone, npromised, done_capacity;
    dcommi_local_peer *removed; /* peers removed in the course of progress */
    bool inside;                /* progress is on the stack */
    bool closing;
    dcommi_record peeked;
    uint64_t next_flight;
    int epoll; /* watches the peers' pidfds; -1: none */
    dcommi_local_peer **peers;
    size_t peers_capacity;
    dcommi_local_offer *offers;
    dcommi_fifo_end
        fifos[DCOMMI_LOCAL_PEERS]; /* the reader's ends of fifos whose writer is not added */
};

static inline dcommi_local_peer *dcommi_local_peer_at(const dcommi_local *u, int peer)
{
    return peer >= 0 && (size_t)peer < u->peers_capacity ? u->peers[peer] : NULL;
}

/* ---- the fifos that peers write to ---- */

static size_t dcommi_local_pages(size_t bytes)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    return (bytes + page - 1) / page * page;
}

static size_t dcommi_local_fifo_len(void)
{
    return dcommi_local_pages(dcommi_fifo_bytes(DCOMMI_LOCAL_FIFO));
}

/* Return the offset of a fifo in its owner's file, in bytes. */
static size_t dcommi_local_fifo_at(size_t fifo)
{
    return dcommi_local_pages(sizeof(dcommi_local_directory)) + fifo * dcommi_local_fifo_len();
}

/* Map a fifo of a process's file. Return NULL without address space. */
static dcommi_fifo *dcommi_local_fifo_map(int file, size_t fifo)
{
    return dcommi_share_map(file, dcommi_local_fifo_at(fifo), dcommi_local_fifo_len());
}

static void dcommi_local_fifo_unmap(dcommi_fifo_end *end)
{
    if (end->fifo != NULL) {
        munmap(end->fifo, dcommi_local_fifo_len());
    }
    end->fifo = NULL;
    end->lines = NULL;
}

/* Find the fifo of a writer: the one that it had before, or a new one. */
static dcomm_status dcommi_local_fifo_find(dcommi_local *u, uint64_t writer, uint32_t *fifo_p)
{
    dcommi_local_directory *d = u->directory;
    uint32_t count = atomic_load_explicit(&d->count, memory_order_relaxed);
    for (uint32_t i = 0; i < count; i++) {
        if (d->writer[i] == writer) {
            /* The creation in which they meet again orders it. */
            atomic_store_explicit(&d->given_up[i], 0, memory_order_relaxed);
            *fifo_p = i;
            return DCOMM_OK;
        }
    }
    if (count == DCOMMI_LOCAL_PEERS) {
        return dcommi_fail(DCOMM_ERR_UNSUPPORTED,
                           "local: this context has met %d processes of this host, counting those "
                           "that have left, which is the limit; create a new context",
                           DCOMMI_LOCAL_PEERS);
    }
    dcommi_fifo *fifo = dcommi_local_fifo_map(u->file, count);
    if (fifo == NULL) {
        return dcommi_fail(DCOMM_ERR_SYSTEM, "local: shared memory cannot be mapped: %s",
                           strerror(errno));
    }
    u->fifos[count] = dcommi_fifo_reader(fifo, DCOMMI_LOCAL_FIFO);
    d->writer[count] = writer;
    /* The writer's name comes before it. */
    atomic_store_explicit(&d->count, count + 1, memory_order_release);
    *fifo_p = count;
    return DCOMM_OK;
}

/* ---- reaching a peer ---- */

/* Take a peer's file `number`, of at least `len` bytes; the caller then owns it. Return
 * DCOMM_IN_PROGRESS if it has not come yet. */
static dcomm_status dcommi_local_take(dcommi_local_peer *p, uint64_t number, size_t len, int *file)
{
    dcommi_hands *hands = &p->local->hands;
    *file = dcommi_hands_take(hands, p->card.hand.id, number);
    if (*file < 0) {
        DCOMMI_TRY(dcommi_hands_look(hands));
        *file = dcommi_hands_take(hands, p->card.hand.id, number);
    }
    if (*file < 0) {
        return DCOMM_IN_PROGRESS;
    }
    if (!dcommi_share_holds(*file, len)) {
        dcommi_sys_close(*file);
        *file = -1;
        return dcommi_fail(DCOMM_ERR_CORRUPT,
                           "local: process %d handed over a file that does not hold %zu bytes",
                           (int)p->card.process.pid, len);
    }
    return DCOMM_OK;
}

/* Map the peer's directory. Return DCOMM_IN_PROGRESS if the peer has not handed it over yet. */
static dcomm_status dcommi_local_look_up(dcommi_local_peer *p)
{
    if (p->directory != NULL) {
        return DCOMM_OK;
    }
    if (p->file < 0) {
        dcomm_status status =
            dcommi_local_take(p, 0, dcommi_local_fifo_at(DCOMMI_LOCAL_PEERS), &p->file);
        if (status != DCOMM_OK) {
            return status;
        }
    }
    if (p->lock < 0) {
        p->lock = dcommi_hands_take(&p->local->hands, p->card.hand.id, DCOMMI_LOCAL_LOCK);
    }
    p->directory = dcommi_share_map(p->file, 0, dcommi_local_fifo_at(0));
    return p->directory != NULL
               ? DCOMM_OK
               : dcommi_fail(DCOMM_ERR_SYSTEM, "local: a peer's memory cannot be mapped: %s",
                             strerror(errno));
}

/* Map our fifo at the peer. Return DCOMM_IN_PROGRESS if the peer has not added us yet. */
static dcomm_status dcommi_local_connect(dcommi_local_peer *p)
{
    dcomm_status status = dcommi_local_look_up(p);
    if (status != DCOMM_OK) {
        return status;
    }
    /* The names of writers come after it. */
    uint32_t count = atomic_load_explicit(&p->directory->count, memory_order_acquire);
    for (uint32_t i = 0; i < count && i < DCOMMI_LOCAL_PEERS; i++) {
        if (p->directory->writer[i] != p->local->card.hand.id) {
            continue;
        }
        dcommi_fifo *fifo = dcommi_local_fifo_map(p->file, i);
        if (fifo == NULL) {
            return dcommi_fail(DCOMM_ERR_SYSTEM, "local: a peer's memory cannot be mapped: %s",
                               strerror(errno));
        }
        p->out = dcommi_fifo_writer(fifo, DCOMMI_LOCAL_FIFO);
        p->ours = i;
        dcommi_sys_close(p->file);
        p->file = -1;
        return DCOMM_OK;
    }
    return DCOMM_IN_PROGRESS;
}

static void dcommi_local_disconnect(dcommi_local_peer *p)
{
    if (p->out.lines != NULL) {
        dcommi_fifo_leave(&p->out);
        dcommi_local_fifo_unmap(&p->out);
    }
    if (p->directory != NULL) {
        munmap(p->directory, dcommi_local_fifo_at(0));
        p->directory = NULL;
    }
    dcommi_sys_close(p->file);
    p->file = -1;
    dcommi_hands_forget(&p->local->hands, p->card.hand.id);
    dcommi_hands_part(&p->local->hands, p->card.hand.id);
}

/* ---- the end of a peer ---- */

/* Keep room for one more op that will be done, so that completing it needs no memory. */
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
    if (dcommi_local_promise(u) < 0) {
        return NULL;
    }
    dcommi_local_flight *f = dcommi_alloc(sizeof *f);
    if (f == NULL) {
        u->npromised--;
        return NULL;
    }
    f->op = op;
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

/* Mark a peer as ended. What is known first counts. */
static void dcommi_local_end_as(dcommi_local_peer *p, dcommi_loss how, const char *why)
{
    if (!p->ended && !p->lost) {
        p->ended = true;
        p->how = how;
        p->why = why;
        p->local->nended++;
    }
}

/* Mark a peer that we cannot write to, or that writes nonsense. */
static void dcommi_local_end(dcommi_local_peer *p, const char *why)
{
    dcommi_local_end_as(p, DCOMMI_LOSS_SILENT, why);
}

/* Complete all ops of a peer with `status` and drop its offers. */
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
        dcommi_sys_close(p->pidfd);
    }
    dcommi_sys_close(p->lock);
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
