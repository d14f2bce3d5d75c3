/* test_nomem.c - every allocation of split and of destruction fails once: that is an error on all
 * ranks or of no consequence, and never a crash, a hang or lost memory. */
#define _GNU_SOURCE
#include "ranks.h"

#include <criterion/criterion.h>

enum { WAIT_S = 8, MOST = 400 };
enum { SPLIT, DESTROY };

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

/* ---- in step ---- */

enum { HIT, FAILED }; /* words: an allocation failed; how many ranks got an error */

typedef struct walker {
    int rank, n, step;
    procs_shared *s;
    long k; /* which allocation fails, on the last rank */
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
    atomic_store(&left, w->rank == w->n - 1 ? w->k : 0);
}

static void disarm(const walker *w)
{
    atomic_store(&left, 0);
    if (atomic_load(&hit) != 0) {
        atomic_store(&w->s->words[HIT], 1);
    }
}

/* ---- a life ---- */

static void works(dcomm_comm *comm)
{
    float x = 1;
    RANKS_OK(dcomm_allreduce(comm, DCOMM_IN_PLACE, &x, 1, DCOMM_F32, DCOMM_SUM, NULL));
    PROCS_TRUE(x == (float)dcomm_comm_size(comm));
}

static void join(walker *w, dcomm_comm **comm_p)
{
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
    meet(w);
    memcpy(&o.id, place, sizeof o.id);
    RANKS_OK(dcomm_comm_create(&o, comm_p));
}

/* A split that fails can be made again, unless the parent is poisoned. */
static void split(walker *w, dcomm_comm *world)
{
    dcomm_comm *half = NULL;
    meet(w);
    arm(w);
    dcomm_status status = dcomm_comm_split(world, 0, 0, &half);
    disarm(w);
    if (status < 0 && dcomm_comm_status(world) >= 0) {
        PROCS_CHECK(status == DCOMM_ERR_NO_MEMORY || status == DCOMM_ERR_MISMATCH, "%s",
                    dcomm_last_error());
        RANKS_OK(dcomm_comm_split(world, 0, 0, &half));
        status = DCOMM_OK;
    }
    if (status >= 0) {
        works(half);
        RANKS_OK(dcomm_comm_destroy(&half));
    } else {
        atomic_fetch_add(&w->s->words[FAILED], 1);
    }
    PROCS_TRUE(half == NULL);
}

static void destroy(walker *w, bool armed, dcomm_comm **comm_p)
{
    if (armed) {
        arm(w);
    }
    dcomm_status ended = dcomm_comm_destroy(comm_p); /* of a poisoned one: with its error */
    disarm(w);
    PROCS_CHECK(*comm_p == NULL, "%s", dcomm_status_name(ended));
}

static int live(int rank, int n, procs_shared *s, void *arg)
{
    int part = *(int *)arg;
    walker w = {.rank = rank, .n = n, .s = s};
    dcomm_set_allocator(allocate, release, NULL);
    ranks_settle(rank, n, RANKS_LOCAL);
    bool more = true;
    while (more) {
        dcomm_comm *world = NULL;
        double start = procs_now();
        w.k++;
        join(&w, &world);
        works(world);
        if (part == SPLIT) {
            split(&w, world);
        }
        destroy(&w, part == DESTROY, &world);
        meet(&w);
        long failed = atomic_load(&s->words[FAILED]);
        more = atomic_load(&s->words[HIT]) != 0;
        PROCS_CHECK(failed == 0 || (more && failed == n), "k=%ld: %ld ranks failed", w.k, failed);
        PROCS_CHECK(procs_now() - start < WAIT_S, "k=%ld: %.1f s", w.k, procs_now() - start);
        PROCS_TRUE(w.k < MOST);
        meet(&w);
    }
    PROCS_CHECK(w.k > (part == DESTROY ? 0 : 3), "no allocation failed in part %d", part);
    return procs_leaks();
}

#define WALK(name, part, n)                                          \
    Test(nomem, name, .timeout = 70)                                 \
    {                                                                \
        int ended[PROCS_MAX], arg = part;                            \
        cr_assert_eq(procs_run(n, 60, live, &arg, ended), 0, #name); \
    }
WALK(split, SPLIT, 2)
WALK(destroy, DESTROY, 2)
