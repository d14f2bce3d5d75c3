/* queue.h - the state of a priced execution: actors (ranks), frames and lanes; the events to come,
 * ordered by time; messages of which one side only has come. */
#ifndef DCOMMI_MODEL_QUEUE_H
#define DCOMMI_MODEL_QUEUE_H

#include "../plan/cursor.h"
#include "model.h"

enum dcommi_sim_state {
    DCOMMI_SIM_RUNNING,
    DCOMMI_SIM_MOVING, /* waits for the send, receive or copy of its step */
    DCOMMI_SIM_FENCED,
    DCOMMI_SIM_WAITING, /* for a counter */
    DCOMMI_SIM_READING, /* waits until a peer has exposed memory */
    DCOMMI_SIM_CALLING,
    DCOMMI_SIM_OVER
};

typedef struct dcommi_sim_frame dcommi_sim_frame;

typedef struct dcommi_sim_lane {
    dcommi_sim_frame *frame;
    dcommi_cursor cursor;
    uint8_t state;
    int64_t pending;          /* asynchronous moves whose end is not known yet */
    int64_t async_end;        /* the latest known end of one */
    int64_t counter, target;  /* WAITING: until the counter reaches the target */
    struct dcommi_sim_place { /* the bytes read last, which are in a cache; length 0: none */
        int64_t at, length;
        uint8_t space;
    } read;
    struct dcommi_sim_lane *next_waiter;
} dcommi_sim_lane;

/* Ways for peers to read exposed memory: device memory that they can open, scratch that they map.
 */
enum { DCOMMI_SIM_OPEN = 1, DCOMMI_SIM_STAGED = 2 };

typedef struct dcommi_sim_actor {
    const dcomm_plan *plan;
    dcommi_sim_frame *root;
    int64_t core, out, in; /* the times until which its processor and its ports are busy */
    int seat;              /* the actor whose `core` it uses: both share a hardware thread */
    int64_t turns;         /* ranks on its hardware thread; 1 if each actor is one rank */
    int64_t *counters;
    int64_t *exposed;         /* [nslots]: the time of EXPOSE; -1: not yet */
    uint8_t *offered;         /* [nslots]: DCOMMI_SIM_OPEN | DCOMMI_SIM_STAGED */
    dcommi_sim_lane *waiters; /* lanes that wait for counters */
    dcommi_sim_lane *readers; /* lanes that wait until this rank exposes memory */
} dcommi_sim_actor;

/* A plan under way on one rank. */
struct dcommi_sim_frame {
    dcommi_sim_frame *next, *prev; /* all frames of the execution, to be freed */
    dcommi_scope scope;
    dcommi_sim_lane *caller; /* NULL: this is the outermost plan */
    int rank;                /* in the outermost plan: the number of its actor */
    uint8_t open; /* bit 1 << space: it is a buffer of the caller, which peers can open */
    uint32_t lanes_left;
    dcommi_sim_lane lanes[];
};

/* A message, a request for exposed memory, or a receive that waits for its message. */
typedef struct dcommi_sim_msg {
    struct dcommi_sim_msg *next; /* in its bucket, or in the free list */
    int from, to;                /* actors */
    int64_t tag;
    uint8_t depth;
    bool waits; /* rendezvous: it moves when its receive is posted */
    bool open;  /* the receiver reads it in place */
    bool host;  /* it is in host memory, although the inputs are in device memory */
    bool async, folds, sender_async;
    dcommi_sim_lane *sender, *receiver; /* sender: NULL when it need not be told */
    struct dcommi_sim_join *join;
    int64_t len;
} dcommi_sim_msg;

/* A step that reads the memory of several ranks by message. */
typedef struct dcommi_sim_join {
    struct dcommi_sim_join *next, *prev; /* all joins of the execution, to be freed */
    dcommi_sim_lane *lane;
    int left; /* pieces to come */
    bool async;
    int64_t work; /* of the step, after the last piece has come */
} dcommi_sim_join;

enum dcommi_sim_kind {
    DCOMMI_SIM_LANE,    /* a lane goes on */
    DCOMMI_SIM_OFFER,   /* the offer of a long message reaches the receiver */
    DCOMMI_SIM_HEAD,    /* the first byte is at the receiver's port */
    DCOMMI_SIM_TAIL,    /* the last byte has come */
    DCOMMI_SIM_REQUEST, /* a request for exposed memory reaches its owner */
    DCOMMI_SIM_SIGNAL
};

typedef struct dcommi_sim_event {
    int64_t time;
    uint64_t order; /* of creation: decides between events of the same time */
    int kind;
    union {
        dcommi_sim_lane *lane;
        dcommi_sim_msg *msg;
        struct {
            int32_t actor, counter;
        } signal;
    } at;
    int64_t value; /* SIGNAL */
} dcommi_sim_event;

typedef struct dcommi_sim_bucket {
    dcommi_sim_msg *first, *last;
} dcommi_sim_bucket;

/* The port that an actor shares at a level. */
typedef struct dcommi_sim_port_of {
    int group;     /* number of the port */
    int64_t alike; /* ranks behind the port that the actor stands for, itself included */
} dcommi_sim_port_of;

#define DCOMMI_SIM_SLAB 256

typedef struct dcommi_sim {
    const dcommi_terrain *terrain;
    dcommi_sim_actor *actor;
    int64_t now, step, limit, steps, budget, end;
    dcommi_sim_event *heap;
    size_t nheap, heap_capacity;
    uint64_t order;
    dcommi_sim_bucket *bucket;
    size_t nbuckets, nmessages;
    dcommi_sim_msg *free_messages;
    void **slab; /* blocks of messages, to be freed */
    size_t nslabs, slab_capacity;
    dcommi_sim_frame *frames;
    dcommi_sim_join *joins;
    int period, left;         /* actors; those that are not done */
    dcommi_sim_port_of *port; /* [levels][period] */
    int64_t *until;           /* [levels][in, out][ranks]: the time until which a port is busy */
    int64_t *carried;         /* [levels][in, out][ranks]: bytes that went through a port */
    int64_t *tally;           /* [period][links]: ranks that a signal goes to */
    dcomm_status status;
} dcommi_sim;

static void dcommi_sim_fail(dcommi_sim *s, dcomm_status status)
{
    if (s->status == DCOMM_OK) {
        s->status = status;
    }
}

/* ---- events to come: a binary heap ---- */

static inline bool dcommi_sim_before(const dcommi_sim_event *a, const dcommi_sim_event *b)
{
    return a->time < b->time || (a->time == b->time && a->order < b->order);
}

static void dcommi_sim_push(dcommi_sim *s, dcommi_sim_event e)
{
    dcomm_status status =
        dcommi_grow((void **)&s->heap, &s->heap_capacity, s->nheap + 1, sizeof *s->heap);
    if (status < 0) {
        dcommi_sim_fail(s, status);
        return;
    }
    e.order = s->order++;
    size_t at = s->nheap++;
    while (at > 0 && dcommi_sim_before(&e, &s->heap[(at - 1) / 2])) {
        s->heap[at] = s->heap[(at - 1) / 2];
        at = (at - 1) / 2;
    }
    s->heap[at] = e;
}

static dcommi_sim_event dcommi_sim_pop(dcommi_sim *s)
{
    dcommi_sim_event top = s->heap[0], e = s->heap[--s->nheap];
    size_t at = 0;
    for (;;) {
        size_t child = 2 * at + 1;
        if (child >= s->nheap) {
            break;
        }
        if (child + 1 < s->nheap && dcommi_sim_before(&s->heap[child + 1], &s->heap[child])) {
            child++;
        }
        if (!dcommi_sim_before(&s->heap[child], &e)) {
            break;
        }
        s->heap[at] = s->heap[child];
        at = child;
    }
    s->heap[at] = e;
    return top;
}

static void dcommi_sim_at(dcommi_sim *s, int64_t time, int kind, dcommi_sim_msg *msg)
{
    dcommi_sim_event e = {.time = time, .kind = kind, .at = {.msg = msg}};
    dcommi_sim_push(s, e);
}

static void dcommi_sim_resume(dcommi_sim *s, dcommi_sim_lane *lane, int64_t time)
{
    dcommi_sim_event e = {.time = time, .kind = DCOMMI_SIM_LANE, .at = {.lane = lane}};
    lane->state = DCOMMI_SIM_RUNNING;
    dcommi_sim_push(s, e);
}

/* ---- messages ---- */

static dcommi_sim_msg *dcommi_sim_msg_new(dcommi_sim *s)
{
    if (s->free_messages == NULL) {
        dcommi_sim_msg *slab = dcommi_alloc(DCOMMI_SIM_SLAB * sizeof *slab);
        if (slab == NULL ||
            dcommi_grow((void **)&s->slab, &s->slab_capacity, s->nslabs + 1, sizeof *s->slab) < 0) {
            dcommi_free(slab);
            dcommi_sim_fail(s, DCOMM_ERR_NO_MEMORY);
            return NULL;
        }
        s->slab[s->nslabs++] = slab;
        for (int i = 0; i < DCOMMI_SIM_SLAB; i++) {
            slab[i].next = s->free_messages;
            s->free_messages = &slab[i];
        }
    }
    dcommi_sim_msg *m = s->free_messages;
    s->free_messages = m->next;
    memset(m, 0, sizeof *m);
    return m;
}

static void dcommi_sim_msg_free(dcommi_sim *s, dcommi_sim_msg *m)
{
    m->next = s->free_messages;
    s->free_messages = m;
}

static inline size_t dcommi_sim_slot(const dcommi_sim *s, const dcommi_sim_msg *m)
{
    uint64_t h = ((uint64_t)(uint32_t)m->from << 32 | (uint32_t)m->to) * 0x9e3779b97f4a7c15u;
    h = (h ^ (h >> 32) ^ (uint64_t)m->tag) * 0xd6e8feb86659fd93u;
    return (size_t)(h >> 32) & (s->nbuckets - 1);
}

static void dcommi_sim_insert(dcommi_sim_bucket *bucket, dcommi_sim_msg *m)
{
    m->next = NULL;
    *(bucket->last != NULL ? &bucket->last->next : &bucket->first) = m;
    bucket->last = m;
}

/* Double the buckets. Messages of one key keep their order. */
static void dcommi_sim_rehash(dcommi_sim *s)
{
    size_t old = s->nbuckets;
    dcommi_sim_bucket *from = s->bucket;
    dcommi_sim_bucket *to = dcommi_calloc(2 * old, sizeof *to);
    if (to == NULL) {
        dcommi_sim_fail(s, DCOMM_ERR_NO_MEMORY);
        return;
    }
    s->bucket = to;
    s->nbuckets = 2 * old;
    for (size_t i = 0; i < old; i++) {
        for (dcommi_sim_msg *m = from[i].first, *next; m != NULL; m = next) {
            next = m->next;
            dcommi_sim_insert(&to[dcommi_sim_slot(s, m)], m);
        }
    }
    dcommi_free(from);
}

/* Take the other side of a message out of the table. NULL: it has not come; then `m` is put into
 * the table. If actors stand for several ranks, several messages have the same key: take the
 * oldest. */
static dcommi_sim_msg *dcommi_sim_match(dcommi_sim *s, dcommi_sim_msg *m)
{
    dcommi_sim_bucket *bucket = &s->bucket[dcommi_sim_slot(s, m)];
    dcommi_sim_msg *before = NULL;
    bool receive = m->receiver != NULL;
    for (dcommi_sim_msg *other = bucket->first; other != NULL;
         before = other, other = other->next) {
        if (other->from == m->from && other->to == m->to && other->tag == m->tag &&
            (other->receiver != NULL) != receive) {
            *(before != NULL ? &before->next : &bucket->first) = other->next;
            if (bucket->last == other) {
                bucket->last = before;
            }
            s->nmessages--;
            return other;
        }
    }
    if (s->nmessages++ >= 2 * s->nbuckets) {
        dcommi_sim_rehash(s);
        bucket = &s->bucket[dcommi_sim_slot(s, m)];
    }
    dcommi_sim_insert(bucket, m);
    return NULL;
}

#endif
