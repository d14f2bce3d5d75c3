/* test_nomem.c - every allocation of creation, split, shrink and destruction fails once, on one
 * rank or on all. That is an error on all ranks or has no effect. It never causes a crash, a hang,
 * a time-out or a leak. */
#define _GNU_SOURCE
#include "ranks.h"

#include <criterion/criterion.h>

enum { WAIT_S = 8 };
enum part { CREATE, TUNED, MEASURED, SPLIT, SHRINK, DESTROY };

typedef struct walk {
    enum part part;
    int first, last; /* ranks whose allocations fail */
    long step;       /* fail one allocation in so many, ... */
    long most;       /* ... up to this one; 0: until none fails */
} walk;

static _Atomic long left; /* allocations until one fails; 0: none does */
static _Atomic int hit;

static void *allocate(size_t alignment, size_t bytes, void *user)
{
    (void)user;
    if (atomic_load(&left) > 0 && atomic_fetch_sub(&left, 1) == 1) {
        atomic_store(&hit, 1);
        return NULL;
    }
    return aligned_alloc(alignment, bytes);
}

static void release(void *p, void *user)
{
    (void)user;
    free(p);
}

/* ---- ranks in step ---- */

enum { HIT, FAILED }; /* words: an allocation failed; the number of ranks with an error */

typedef struct walker {
    const walk *w;
    int rank, n, step;
    procs_shared *s;
    long k; /* the number of the allocation that fails */
} walker;

static void meet(walker *w)
{
    procs_post(w->s, w->rank, ++w->step);
    while (!procs_all(w->s, w->n, w->step, -1)) {
        procs_nap();
    }
}

static void arm(const walker *w)
{
    atomic_store(&hit, 0);
    atomic_store(&left, w->rank >= w->w->first && w->rank <= w->w->last ? w->k : 0);
}

static bool disarm(const walker *w)
{
    atomic_store(&left, 0);
    if (atomic_load(&hit) != 0) {
        atomic_store(&w->s->words[HIT], 1);
    }
    return atomic_load(&hit) != 0;
}

/* Check a failed call: the rank that ran out of memory has its own status, and the others a
 * sentence that names it. Rank 0 also serves the rendezvous, so the rendezvous may fail there. */
static void judge(const walker *w, dcomm_status status, bool mine)
{
    const char *text = dcomm_last_error();
    const bool own = status == DCOMM_ERR_NO_MEMORY || w->w->first == 0;
    if (status >= 0) {
        return;
    }
    atomic_fetch_add(&w->s->words[FAILED], 1);
    PROCS_CHECK(status != DCOMM_ERR_TIMEOUT && (mine ? own : strstr(text, "rank ") != NULL),
                "part %d, k=%ld, rank %d: %s: %s", w->w->part, w->k, w->rank,
                dcomm_status_name(status), text);
}

/* ---- a communicator's life ---- */

static void works(const walker *w, dcomm_comm *comm)
{
    float x = 1;
    dcomm_status status = dcomm_allreduce(comm, DCOMM_IN_PLACE, &x, 1, DCOMM_F32, DCOMM_SUM, NULL);
    PROCS_CHECK(status == DCOMM_OK, "part %d, k=%ld: %s", w->w->part, w->k, dcomm_last_error());
    PROCS_TRUE(x == (float)dcomm_comm_size(comm));
}

/* Create a communicator on all ranks, or on none. */
static dcomm_comm *join(walker *w)
{
    const enum part part = w->w->part;
    dcomm_comm *comm = NULL;
    dcomm_comm_opts o = {
        .boot = DCOMM_BOOT_ID, .rank = w->rank, .size = w->n, .timeout_s = 2 * WAIT_S};
    unsigned char *place = w->s->blobs[0].bytes;
    if (w->rank == 0) {
        RANKS_OK(dcomm_id_create(&o.id));
        memcpy(place, &o.id, sizeof o.id);
        for (int i = 0; i <= FAILED; i++) {
            atomic_store(&w->s->words[i], 0);
        }
    }
    o.tune = part == TUNED || part == MEASURED;
    /* Vary the connections: numbers measured for the same count would be read from the cache. */
    o.connections = part == MEASURED ? 1 + (int)(w->k / w->w->step) % DCOMM_CONNECTIONS_MAX : 0;
    meet(w);
    memcpy(&o.id, place, sizeof o.id);
    if (part > MEASURED) {
        RANKS_OK(dcomm_comm_create(&o, &comm));
        return comm;
    }
    arm(w);
    dcomm_status status = dcomm_comm_create(&o, &comm);
    judge(w, status, disarm(w));
    PROCS_TRUE((comm == NULL) == (status < 0));
    meet(w);
    return comm;
}

/* A failed split can be repeated, unless the parent is poisoned. */
static void split(walker *w, dcomm_comm *world)
{
    dcomm_comm *half = NULL;
    meet(w);
    arm(w);
    dcomm_status status = dcomm_comm_split(world, 0, 0, &half);
    disarm(w);
    meet(w); /* messages of earlier steps are kept, which may fail like any operation */
    if (status < 0 && dcomm_comm_status(world) >= 0) {
        PROCS_CHECK(status == DCOMM_ERR_NO_MEMORY || status == DCOMM_ERR_MISMATCH, "%s",
                    dcomm_last_error());
        RANKS_OK(dcomm_comm_split(world, 0, 0, &half));
        status = DCOMM_OK;
    }
    if (status >= 0) {
        works(w, half);
        RANKS_OK(dcomm_comm_destroy(&half));
    } else {
        atomic_fetch_add(&w->s->words[FAILED], 1);
    }
    PROCS_TRUE(half == NULL);
}

/* A failed shrink can be repeated. */
static void shrink(walker *w, dcomm_comm *world)
{
    dcomm_comm *rest = NULL;
    meet(w);
    if (w->k % 2 == 0) { /* aborted before, or not */
        dcomm_comm_abort(world, "to be shrunk");
    }
    meet(w);
    arm(w);
    dcomm_status status = dcomm_comm_shrink(world, NULL, 0, &rest);
    judge(w, status, disarm(w));
    PROCS_TRUE((rest == NULL) == (status < 0));
    meet(w);
    if (status < 0) {
        RANKS_OK(dcomm_comm_shrink(world, NULL, 0, &rest));
    }
    works(w, rest);
    RANKS_OK(dcomm_comm_destroy(&rest));
}

static void destroy(walker *w, bool armed, dcomm_comm **comm_p)
{
    if (armed) {
        arm(w);
    }
    dcomm_status ended = dcomm_comm_destroy(comm_p); /* a poisoned one returns its error */
    disarm(w);
    PROCS_CHECK(*comm_p == NULL, "%s", dcomm_status_name(ended));
}

static int live(int rank, int n, procs_shared *s, void *arg)
{
    walker w = {.w = arg, .rank = rank, .n = n, .s = s};
    const enum part part = w.w->part;
    dcomm_set_allocator(allocate, release, NULL);
    ranks_settle(rank, n, RANKS_LOCAL);
    bool more = true;
    long fails = 0;
    for (w.k = 1; more; w.k += w.w->step) {
        double start = procs_now();
        dcomm_comm *world = join(&w);
        if (world != NULL) {
            works(&w, world);
        }
        if (part == SPLIT) {
            split(&w, world);
        } else if (part == SHRINK) {
            shrink(&w, world);
        }
        destroy(&w, part == DESTROY, &world);
        meet(&w);
        long failed = atomic_load(&s->words[FAILED]);
        more = atomic_load(&s->words[HIT]) != 0;
        fails += failed;
        PROCS_CHECK(failed == 0 || (more && failed == n), "part %d, k=%ld: %ld ranks failed", part,
                    w.k, failed);
        PROCS_CHECK(procs_now() - start < WAIT_S, "part %d, k=%ld: %.1f s", part, w.k,
                    procs_now() - start);
        more = more && (w.w->most == 0 || w.k < w.w->most);
        meet(&w);
    }
    PROCS_CHECK(fails > 0 || part == DESTROY, "no allocation failed in part %d", part);
    return procs_leaks();
}

/* The everyday run fails one allocation in `step`, up to `most`. The full run fails one in step /
 * 16 + 1, to the end: an allocation while measuring costs a second. */
#define WALK(name, part, first, last, step, most)                                            \
    Test(nomem, name, .timeout = 3600)                                                       \
    {                                                                                        \
        const bool full = test_full();                                                       \
        const long by = full ? (step) / 16 + 1 : (step);                                     \
        walk w = {part, first, last, by, full ? 0 : (most)};                                 \
        int ended[PROCS_MAX];                                                                \
        cr_assert_eq(procs_run(2, full ? 3500 : 60, live, &w, ended), 0, "%d, %d", ended[0], \
                     ended[1]);                                                              \
    }
WALK(create, CREATE, 1, 1, 1, 0)
WALK(create_where_the_rendezvous_is, CREATE, 0, 0, 3, 0)
WALK(create_on_all, CREATE, 0, 1, 5, 0)
/* The numbers exist: rank 0 has measured them in its first creation. */
WALK(create_tuned, TUNED, 1, 1, 127, 700)
/* Most allocations while measuring are plans of probes, which are all alike. */
WALK(create_measured, MEASURED, 1, 1, 997, 1900)
WALK(create_measured_on_all, MEASURED, 0, 1, 1499, 1000)
WALK(split, SPLIT, 1, 1, 3, 0)
WALK(shrink, SHRINK, 1, 1, 1, 0)
WALK(shrink_on_all, SHRINK, 0, 1, 3, 0)
WALK(destroy, DESTROY, 1, 1, 1, 0)
