/* memory.h - memory that simulated processes share, as weak as C11 allows and processors make it.
 *
 * A store first waits in its process's store buffer. It becomes visible to all others at once, at
 * any later moment: stores of one process overtake each other, unless they overlap. A release store
 * waits for all stores and loads before it. A load returns what the memory held at any moment since
 * the process's last acquire load, but never goes back at one place. A load into a buffer that the
 * process looks at later (memory_late) may also come late. Long copies are loaded and stored in
 * pieces. A process that dies leaves some of the stores in its buffer, in an allowed order.
 *
 * Not modelled: stores that two other processes see in different orders, and nontemporal stores. */
#ifndef SIM_MEMORY_H
#define SIM_MEMORY_H

#include "races.h"

enum {
    MEMORY_BYTES = 3 << 20,
    MEMORY_PROCESSES = 4,
    MEMORY_PIECE = 256,  /* most bytes of a store in a buffer */
    MEMORY_STORES = 512, /* in the buffer of a process */
    MEMORY_LOG = 512,    /* stores back to which a load may look */
    MEMORY_LATER = 32,   /* loads that come late, of a process */
    MEMORY_GRAIN = 8,    /* bytes that are loaded and stored as one */
    MEMORY_PAGE = 4096,
    MEMORY_OPEN = 64 /* most bytes of an access by an instruction */
};

#define MEMORY_MODEL __attribute__((no_sanitize("thread"), unused))

typedef struct memory_store {
    size_t at, len;
    bool release;
    races_clock known; /* by the release */
    unsigned char bytes[MEMORY_PIECE];
} memory_store;

typedef struct memory_change {
    size_t at, len;
    unsigned char before[MEMORY_PIECE];
} memory_change;

typedef struct memory_load {
    unsigned char *to;
    size_t at, len;
    uint64_t floor;
} memory_load;

typedef struct memory_process {
    memory_store store[MEMORY_STORES];
    uint16_t order[MEMORY_STORES]; /* of store: the first nstores wait, the others are free */
    int nstores, nlater;
    memory_load later[MEMORY_LATER];
    uint64_t floor;                             /* loads see this moment or a later one */
    uint64_t fence;                             /* the same of sequentially consistent loads */
    uint64_t seen[MEMORY_BYTES / MEMORY_GRAIN]; /* the same of a place */
    unsigned char *late;                        /* its buffer that it looks at later */
    size_t late_len;
} memory_process;

static struct {
    unsigned char *base;
    uint64_t now; /* stores that are visible so far */
    memory_change log[MEMORY_LOG];
    bool dirty[MEMORY_BYTES / MEMORY_PAGE];
    memory_process process[MEMORY_PROCESSES];
    double drains, switches, stale; /* chances */
    uint64_t accesses;
    /* An instruction's access that has not ended. */
    struct {
        bool is, stores;
        size_t at, len;
        unsigned char before[MEMORY_OPEN];
    } open;
} arena;

extern void *__real_memcpy(void *to, const void *from, size_t len);

static MEMORY_MODEL inline bool memory_has(const volatile void *p)
{
    return (size_t)((uintptr_t)p - (uintptr_t)arena.base) < MEMORY_BYTES && world.in >= 0;
}

static MEMORY_MODEL inline memory_process *memory_me(void)
{
    return &arena.process[world.in];
}

static MEMORY_MODEL inline bool memory_overlap(size_t a, size_t a_len, size_t b, size_t b_len)
{
    return a < b + b_len && b < a + a_len;
}

/* ---- visible memory ---- */

/* Make bytes visible to all. */
static MEMORY_MODEL void memory_commit(memory_process *p, size_t at, const void *bytes, size_t len)
{
    memory_change *c = &arena.log[++arena.now % MEMORY_LOG];
    c->at = at;
    c->len = len;
    __real_memcpy(c->before, arena.base + at, len);
    __real_memcpy(arena.base + at, bytes, len);
    arena.dirty[at / MEMORY_PAGE] = arena.dirty[(at + len - 1) / MEMORY_PAGE] = true;
    for (size_t g = at / MEMORY_GRAIN; g <= (at + len - 1) / MEMORY_GRAIN; g++) {
        p->seen[g] = arena.now;
    }
    world_busy();
}

/* Take back what a change did to the bytes at `at`, except where the process has seen it. */
static MEMORY_MODEL void memory_undo(const memory_process *p, uint64_t when, size_t at,
                                     unsigned char *out, size_t len)
{
    const memory_change *c = &arena.log[when % MEMORY_LOG];
    for (size_t i = c->at > at ? c->at : at; i < c->at + c->len && i < at + len; i++) {
        if (p->seen[i / MEMORY_GRAIN] < when) {
            out[i - at] = c->before[i - c->at];
        }
    }
}

/* Load at most a piece, as of any moment since `floor`. Return that moment. */
static MEMORY_MODEL uint64_t memory_look(memory_process *p, size_t at, unsigned char *out,
                                         size_t len, uint64_t floor)
{
    uint64_t when = arena.now;
    if (world_chance(arena.stale)) {
        uint64_t back = when - floor < MEMORY_LOG - 1 ? when - floor : MEMORY_LOG - 1;
        back = back > 8 && world_chance(0.5) ? 8 : back;
        when -= world_random() % (back + 1);
    }
    __real_memcpy(out, arena.base + at, len);
    for (uint64_t w = arena.now; w > when; w--) {
        if (memory_overlap(arena.log[w % MEMORY_LOG].at, arena.log[w % MEMORY_LOG].len, at, len)) {
            memory_undo(p, w, at, out, len);
        }
    }
    uint64_t newest = when;
    for (size_t g = at / MEMORY_GRAIN; g <= (at + len - 1) / MEMORY_GRAIN; g++) {
        p->seen[g] = p->seen[g] < when ? when : p->seen[g];
        newest = p->seen[g] > newest ? p->seen[g] : newest;
    }
    return newest;
}

/* ---- store buffers ---- */

/* Return true if the k-th store in a buffer may become visible. */
static MEMORY_MODEL bool memory_may_drain(const memory_process *p, int k)
{
    const memory_store *s = &p->store[p->order[k]];
    for (int i = 0; i < k; i++) {
        const memory_store *before = &p->store[p->order[i]];
        if (s->release || memory_overlap(before->at, before->len, s->at, s->len)) {
            return false;
        }
    }
    return true;
}

static MEMORY_MODEL void memory_drain(memory_process *p, int k)
{
    uint16_t which = p->order[k];
    const memory_store *s = &p->store[which];
    memory_commit(p, s->at, s->bytes, s->len);
    races_publish(s->at, s->release ? &s->known : NULL);
    for (p->nstores--; k < p->nstores; k++) {
        p->order[k] = p->order[k + 1];
    }
    p->order[p->nstores] = which;
}

static MEMORY_MODEL void memory_flush(memory_process *p)
{
    while (p->nstores > 0) {
        memory_drain(p, 0);
    }
}

/* Make some store visible, if there is one that may be. */
static MEMORY_MODEL void memory_drain_any(memory_process *p)
{
    if (p->nstores > 0) {
        const int k = world_chance(0.5) ? 0 : world_below(p->nstores);
        if (memory_may_drain(p, k)) {
            memory_drain(p, k);
        }
    }
}

static MEMORY_MODEL void memory_push(memory_process *p, size_t at, const void *bytes, size_t len,
                                     bool release)
{
    if (p->nstores == MEMORY_STORES) {
        memory_drain(p, 0);
    }
    memory_store *s = &p->store[p->order[p->nstores++]];
    s->at = at;
    s->len = len;
    s->release = release;
    s->known = release ? races_release(world.in) : s->known;
    __real_memcpy(s->bytes, bytes, len);
}

/* Put the process's own stores over what it has loaded. */
static MEMORY_MODEL void memory_forward(const memory_process *p, size_t at, unsigned char *out,
                                        size_t len)
{
    for (int k = 0; k < p->nstores; k++) {
        const memory_store *s = &p->store[p->order[k]];
        if (memory_overlap(s->at, s->len, at, len)) {
            const size_t from = s->at > at ? s->at : at;
            const size_t end = s->at + s->len < at + len ? s->at + s->len : at + len;
            __real_memcpy(out + (from - at), s->bytes + (from - s->at), end - from);
        }
    }
}

static MEMORY_MODEL bool memory_has_stored(const memory_process *p, size_t at, size_t len)
{
    for (int k = 0; k < p->nstores; k++) {
        if (memory_overlap(p->store[p->order[k]].at, p->store[p->order[k]].len, at, len)) {
            return true;
        }
    }
    return false;
}

/* ---- loads that come late ---- */

static MEMORY_MODEL void memory_load_now(memory_process *p, int i)
{
    memory_load l = p->later[i];
    p->later[i] = p->later[--p->nlater];
    memory_look(p, l.at, l.to, l.len, l.floor);
    races_loaded((int)(p - arena.process), l.at, l.len);
}

/* Wait for the loads that come late: before a release, and before the process uses them. */
static MEMORY_MODEL void memory_loaded(void)
{
    memory_process *p = memory_me();
    while (p->nlater > 0) {
        memory_load_now(p, world_below(p->nlater));
    }
}

/* Let the loads of this process into a buffer come late, until memory_loaded. */
static MEMORY_MODEL void memory_late(void *buffer, size_t len)
{
    memory_me()->late = buffer;
    memory_me()->late_len = len;
}

/* ---- turns ---- */

/* End an instruction's access: what it stored goes to the store buffer. */
static MEMORY_MODEL void memory_close(void)
{
    if (arena.open.is) {
        unsigned char *place = arena.base + arena.open.at, now[MEMORY_OPEN];
        arena.open.is = false;
        __real_memcpy(now, place, arena.open.len);
        __real_memcpy(place, arena.open.before, arena.open.len);
        if (arena.open.stores) {
            memory_push(memory_me(), arena.open.at, now, arena.open.len, false);
        }
    }
}

/* Give up the turn. */
static MEMORY_MODEL void memory_yield(void)
{
    memory_close();
    world_yield();
}

/* Pass the moment before an access. */
static MEMORY_MODEL void memory_step(void)
{
    memory_close();
    arena.accesses++;
    while (world_chance(arena.drains)) {
        memory_process *p = &arena.process[world_below(world.n)];
        memory_drain_any(p);
        if (p->nlater > 0 && world_chance(0.3)) {
            memory_load_now(p, world_below(p->nlater));
        }
    }
    if (world_chance(arena.switches)) {
        world_yield();
    }
    world_point();
}

/* ---- accesses ---- */

static MEMORY_MODEL void memory_do_load(size_t at, void *to, size_t len, int order)
{
    memory_process *p = memory_me();
    const uint64_t floor = order == __ATOMIC_SEQ_CST && p->fence > p->floor ? p->fence : p->floor;
    const uint64_t when = memory_look(p, at, to, len, floor);
    memory_forward(p, at, to, len);
    if (order != __ATOMIC_RELAXED) {
        p->floor = when > p->floor ? when : p->floor;
        races_acquire(world.in, at);
    }
}

static MEMORY_MODEL void memory_do_store(size_t at, const void *from, size_t len, int order)
{
    memory_process *p = memory_me();
    if (order != __ATOMIC_RELAXED) {
        memory_loaded();
    }
    memory_push(p, at, from, len, order != __ATOMIC_RELAXED);
    if (order == __ATOMIC_SEQ_CST) {
        memory_flush(p);
        p->fence = arena.now;
    }
}

/* Begin to read and write the newest value at once. */
static MEMORY_MODEL void memory_begin_rmw(size_t at, void *old, size_t len, int order)
{
    memory_process *p = memory_me();
    if (order >= __ATOMIC_RELEASE) {
        memory_loaded();
        memory_flush(p);
    }
    while (memory_has_stored(p, at, len)) {
        memory_drain(p, 0);
    }
    __real_memcpy(old, arena.base + at, len);
    for (size_t g = at / MEMORY_GRAIN; g <= (at + len - 1) / MEMORY_GRAIN; g++) {
        p->seen[g] = arena.now;
    }
    if (order != __ATOMIC_RELAXED && order != __ATOMIC_RELEASE) {
        p->floor = arena.now;
        races_acquire(world.in, at);
    }
}

static MEMORY_MODEL void memory_end_rmw(size_t at, const void *value, size_t len, int order)
{
    memory_commit(memory_me(), at, value, len);
    if (order >= __ATOMIC_RELEASE) {
        const races_clock known = races_release(world.in);
        races_publish_more(at, &known);
    }
    memory_me()->fence = order == __ATOMIC_SEQ_CST ? arena.now : memory_me()->fence;
}

static MEMORY_MODEL void memory_do_fence(int order)
{
    memory_process *p = memory_me();
    if (order >= __ATOMIC_RELEASE) {
        memory_loaded();
        memory_flush(p);
    }
    p->floor = order != __ATOMIC_RELEASE ? arena.now : p->floor;
    for (int r = 0; r < world.n; r++) {
        races_learn(world.in, r);
    }
}

/* Learn of a process's end from the system, not from memory: what it did is visible. */
static MEMORY_MODEL void memory_learn(int rank)
{
    races_learn(world.in, rank);
    memory_me()->floor = arena.now;
}

/* Return the length of the next piece of a copy, which ends at a line or a few lines later. */
static MEMORY_MODEL size_t memory_piece(size_t at, size_t len)
{
    const size_t lines = len > 4096 ? 4 : 1 + (size_t)world_below(4);
    size_t most = lines * 64 - at % 64;
    return len < most ? len : most;
}

static MEMORY_MODEL void memory_copy_in(size_t at, const unsigned char *from, size_t len)
{
    for (size_t n = 0; len > 0; at += n, from += n, len -= n) {
        n = memory_piece(at, len);
        memory_step();
        races_store(world.in, at, n);
        memory_push(memory_me(), at, from, n, false);
    }
}

static MEMORY_MODEL void memory_copy_out(unsigned char *to, size_t at, size_t len)
{
    for (size_t n = 0; len > 0; at += n, to += n, len -= n) {
        n = memory_piece(at, len);
        memory_step();
        memory_process *p = memory_me();
        races_load(world.in, at, n);
        if ((size_t)(to - p->late) < p->late_len && p->nlater < MEMORY_LATER &&
            !memory_has_stored(p, at, n)) {
            p->later[p->nlater++] = (memory_load){to, at, n, p->floor};
        } else {
            memory_do_load(at, to, n, __ATOMIC_RELAXED);
        }
    }
}

/* ---- beginning and end ---- */

/* End the memory of a process that dies: some of its stores become visible. */
static MEMORY_MODEL void memory_died(int rank)
{
    static const double chances[] = {0, 0.5, 0.9, 0.99};
    memory_process *p = &arena.process[rank];
    const double more = chances[world_below(4)];
    while (p->nstores > 0 && world_chance(more)) {
        memory_drain_any(p);
    }
    p->nstores = p->nlater = 0;
}

/* End the memory of a process that has come to its end. */
static MEMORY_MODEL void memory_ended(void)
{
    for (int i = world_below(60); i > 0; i--) { /* its last stores are under way */
        memory_step();
    }
    memory_close();
    memory_loaded();
    memory_flush(memory_me());
}

/* Make all memory zeros, for the processes of a new world. */
static MEMORY_MODEL void memory_reset(void)
{
    if (arena.base == NULL) {
        arena.base =
            mmap(NULL, MEMORY_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    }
    for (size_t i = 0; i < MEMORY_BYTES / MEMORY_PAGE; i++) {
        if (arena.dirty[i]) {
            memset(arena.base + i * MEMORY_PAGE, 0, MEMORY_PAGE);
            arena.dirty[i] = false;
        }
    }
    arena.open.is = false;
    races_reset();
    for (int r = 0; r < MEMORY_PROCESSES; r++) {
        memory_process *p = &arena.process[r];
        p->nstores = p->nlater = 0;
        p->floor = p->fence = arena.now;
        p->late = NULL;
        p->late_len = 0;
        for (int i = 0; i < MEMORY_STORES; i++) {
            p->order[i] = (uint16_t)i;
        }
    }
}

#endif
