/* queue.h - what a priced execution is made of: ranks, frames and lanes; what is going to
 * happen, ordered by time; messages of which one side has come. */
#ifndef DCOMMI_MODEL_QUEUE_H
#define DCOMMI_MODEL_QUEUE_H

#include "../plan/cursor.h"
#include "model.h"

enum dcommi_sim_state {
    DCOMMI_SIM_RUNNING,
    DCOMMI_SIM_MOVING, /* waits for a move of its own */
    DCOMMI_SIM_FENCED,
    DCOMMI_SIM_WAITING, /* for a counter */
    DCOMMI_SIM_READING, /* for something to be exposed */
    DCOMMI_SIM_CALLING,
    DCOMMI_SIM_OVER
};

typedef struct dcommi_sim_frame dcommi_sim_frame;

typedef struct dcommi_sim_lane {
    dcommi_sim_frame *frame;
    dcommi_cursor cursor;
    uint8_t state;
    int64_t pending;   /* asynchronous moves whose end is not known yet */
    int64_t async_end; /* the last end that is known */
    int64_t counter, target;
    struct dcommi_sim_place { /* what was read last: it is in a cache; length 0: nothing */
        int64_t at, length;
        uint8_t space;
    } read;
    struct dcommi_sim_lane *next_waiter;
} dcommi_sim_lane;

/* How peers get at what a rank exposes: it lies where they can open it; in scratch that they map.
 */
enum { DCOMMI_SIM_OPEN = 1, DCOMMI_SIM_STAGED = 2 };

typedef struct dcommi_sim_actor {
    const dcomm_plan *plan;
    dcommi_sim_frame *root;
    int64_t core, out, in; /* until when the processor of its seat and its ports are busy */
    int seat;              /* the actor whose processor it takes turns on */
    int64_t turns;         /* ranks that it stands for and that do the same there */
    int64_t *counters;
    int64_t *exposed;         /* [nslots]: when; -1: not yet */
    uint8_t *offered;         /* [nslots] */
    dcommi_sim_lane *waiters; /* for counters */
    dcommi_sim_lane *readers; /* for what this rank is to expose */
} dcommi_sim_actor;

/* A plan under way on one rank. */
struct dcommi_sim_frame {
    dcommi_sim_frame *next, *prev; /* all of the execution, to be freed */
    dcommi_scope scope;
    dcommi_sim_lane *caller;
    int rank;     /* in the whole plan: the number of its actor */
    uint8_t open; /* bit 1 << space: the caller's buffers, which peers can open; scratch is not */
    uint32_t lanes_left;
    dcommi_sim_lane lanes[];
};

/* A message, a request for exposed memory, or a receive that waits for its message. */
typedef struct dcommi_sim_msg {
    struct dcommi_sim_msg *next; /* in its bucket, or in the free list */
    int from, to;                /* actors */
    int64_t tag;
    uint8_t depth;
    bool waits; /* for its receive, before it moves */
    bool open;  /* the receiver reads it where it lies */
    bool host;  /* the host's, where inputs are a device's */
    bool async, folds, sender_async;
    dcommi_sim_lane *sender, *receiver; /* sender: NULL when it need not be told */
    struct dcommi_sim_join *join;
    int64_t len;
} dcommi_sim_msg;

/* A step that reads the memory of several ranks by message. */
typedef struct dcommi_sim_join {
    struct dcommi_sim_join *next, *prev; /* all of the execution, to be freed */
    dcommi_sim_lane *lane;
    int left;
    bool async;
    int64_t work; /* when all has come */
} dcommi_sim_join;

enum dcommi_sim_kind {
    DCOMMI_SIM_LANE,    /* a lane goes on */
    DCOMMI_SIM_OFFER,   /* the sender's word of a message that waits for its receive */
    DCOMMI_SIM_HEAD,    /* the first byte is at the receiver's port */
    DCOMMI_SIM_TAIL,    /* the last byte has come */
    DCOMMI_SIM_REQUEST, /* for exposed memory, at its owner */
    DCOMMI_SIM_SIGNAL
};

typedef struct dcommi_sim_event {
    int64_t time;
    uint64_t order; /* first come, first served */
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
    int group;     /* its number */
    int64_t alike; /* how many of the ranks behind it the actor stands for */
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
    void **slab; /* of messages, to be freed */
    size_t nslabs, slab_capacity;
    dcommi_sim_frame *frames;
    dcommi_sim_join *joins;
    int period, left;         /* actors, and those that are not done */
    dcommi_sim_port_of *port; /* [levels][period] */
    int64_t *until;           /* [levels][in, out][ranks]: a group's port is busy */
    int64_t *carried;         /* [levels][in, out][ranks]: bytes that went through it */
    int64_t *tally;           /* [period][links]: ranks that a signal goes to */
    dcomm_status status;
} dcommi_sim;

static void dcommi_sim_fail(dcommi_sim *s, dcomm_status status)
{
    if (s->status == DCOMM_OK) {
        s->status = status;
    }
}

/* ---- what is going to happen ---- */

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

/* Twice as many buckets; messages of one key keep their order. */
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

/* The other side of a message, taken out of the table; NULL: it has not come, and `m` waits there.
 * Where ranks stand for others, several have the same key, and the oldest is taken. */
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
