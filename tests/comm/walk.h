/* walk.h - a walk over faults: the first fault, the second, ... of a communicator's creation, a
 * call, an agreement, a shrink, a growth and its destruction, on one rank or on all. Each is an
 * error on all ranks or has no effect. It never causes a crash, a hang, a time-out, a leak, or an
 * open descriptor. A suite says what a fault is. */
#ifndef WALK_H
#define WALK_H

#include "ranks.h"

#include <criterion/criterion.h>
#include <dirent.h>
#include <limits.h>

enum { WALK_S = 8 }; /* the most seconds that a step of the walk takes */
enum part { CREATE, TUNED, MEASURED, SPLIT, CALL, AGREE, SHRINK, EXCLUDE, GROW, DESTROY };

typedef struct walk {
    enum part part;
    ranks_place place;
    int first, last;     /* ranks with faults; of GROW, rank 2 is the newcomer */
    long from;           /* begin with this fault, ... */
    long step;           /* ... make one in so many, ... */
    long most;           /* ... up to this one; 0: until there is none; ... */
    int misses;          /* ... or until so many in a row were not there */
    dcomm_status own;    /* of the rank with the fault, unless rank 0 has it; 0: any */
    void (*arm)(long k); /* make the k-th fault from now on; 0: none */
    bool (*hit)(void);   /* a fault was made since the last call */
} walk;

/* ---- ranks in step ---- */

/* Words: a fault was made; the number of ranks with an error; the newcomer's result; if rank 0 has
 * seen that it is out; steps that the ranks which are no newcomers have reached. */
enum { HIT, FAILED, NEWCOMER, SEEN_OUT, REACHED };
enum { NEW_OUT = 1, NEW_IN };

typedef struct walker {
    const walk *w;
    int rank, n, step, inner;
    int old;   /* ranks that create the communicator: all but the newcomer */
    int calls; /* of them, those that make the call: of EXCLUDE, not rank 2 */
    procs_shared *s;
    long k;  /* the number of the fault */
    int fds; /* open before it */
} walker;

static void meet(walker *w)
{
    const double start = procs_now();
    procs_post(w->s, w->rank, ++w->step);
    while (!procs_all(w->s, w->n, w->step, -1)) {
        PROCS_CHECK(procs_now() - start < 3 * WALK_S, "part %d, k=%ld: another rank is missing",
                    w->w->part, w->k);
        procs_nap();
    }
}

/* Meet the others that are no newcomers. */
static void meet_old(walker *w)
{
    atomic_store(&w->s->words[REACHED + w->rank], ++w->inner);
    for (int r = 0; r < w->old; r++) {
        while (atomic_load(&w->s->words[REACHED + r]) < w->inner) {
            procs_nap();
        }
    }
}

static void arm(const walker *w)
{
    const bool twice = w->w->part >= AGREE && w->w->part <= EXCLUDE; /* poisoned before, or not */
    const bool mine = w->rank >= w->w->first && w->rank <= w->w->last;
    w->w->arm(!mine ? 0 : twice ? (w->k + 1) / 2 : w->k);
}

static bool disarm(const walker *w)
{
    w->w->arm(0);
    const bool mine = w->w->hit();
    if (mine) {
        atomic_store(&w->s->words[HIT], 1);
    }
    return mine;
}

/* Check a failed call: the rank with the fault has a status of its own, and the others a sentence
 * that names it. Rank 0 also serves the rendezvous, so the rendezvous may fail there. */
static void judge_said(const walker *w, dcomm_status status, const char *said, bool mine)
{
    const bool own = w->w->own == DCOMM_OK || status == w->w->own || w->w->first == 0 ||
                     (w->w->part == GROW && status == DCOMM_ERR_PEER); /* others said so first */
    const bool named = strstr(said, "rank ") != NULL ||
                       (w->rank >= w->old && strstr(said, "the process that made the id") != NULL);
    if (status >= 0) {
        return;
    }
    if (w->rank < w->old) {
        atomic_fetch_add(&w->s->words[FAILED], 1);
    }
    PROCS_CHECK(status != DCOMM_ERR_TIMEOUT && (mine ? own : named),
                "part %d, k=%ld, rank %d: %s: %s", w->w->part, w->k, w->rank,
                dcomm_status_name(status), said);
}

static void judge(const walker *w, dcomm_status status, bool mine)
{
    judge_said(w, status, dcomm_last_error(), mine);
}

/* Count the descriptors that are open; print them if `says`. */
static int open_descriptors(bool says)
{
    DIR *dir = opendir("/proc/self/fd");
    int n = 0;
    PROCS_TRUE(dir != NULL);
    for (struct dirent *entry; (entry = readdir(dir)) != NULL; n++) {
        char to[128] = "";
        if (says && readlinkat(dirfd(dir), entry->d_name, to, sizeof to - 1) > 0) {
            fprintf(stderr, "  descriptor %s is %s\n", entry->d_name, to);
        }
    }
    closedir(dir);
    return n;
}

/* Check that nothing more is open than before the fault; a rendezvous closes a little later. */
static void check_descriptors(const walker *w)
{
    const double start = procs_now();
    int fds = 0;
    while ((fds = open_descriptors(false)) > w->fds && procs_now() - start < 2) {
        procs_nap();
    }
    PROCS_CHECK(fds <= w->fds || open_descriptors(true) < 0,
                "part %d, k=%ld, rank %d: %d descriptors are open, before %d", w->w->part, w->k,
                w->rank, fds, w->fds);
}

/* ---- a communicator's life ---- */

static void works(const walker *w, dcomm_comm *comm)
{
    float x = 1;
    dcomm_status status = dcomm_allreduce(comm, DCOMM_IN_PLACE, &x, 1, DCOMM_F32, DCOMM_SUM, NULL);
    PROCS_CHECK(status == DCOMM_OK, "part %d, k=%ld: %s", w->w->part, w->k, dcomm_last_error());
    PROCS_TRUE(x == (float)dcomm_comm_size(comm));
}

/* Make the first call of a new communicator. A fault meanwhile may show only here: a connection
 * broke, or a message that came early was lost. */
static dcomm_status first(const walker *w, dcomm_comm *comm)
{
    dcomm_status status = DCOMM_OK;
    if (atomic_load(&w->s->words[HIT]) == 0) {
        works(w, comm);
    } else {
        float x = 1;
        status = dcomm_allreduce(comm, DCOMM_IN_PLACE, &x, 1, DCOMM_F32, DCOMM_SUM, NULL);
        judge(w, status, false);
    }
    return status;
}

static void make_id(walker *w)
{
    dcomm_id id;
    if (w->rank == 0) {
        RANKS_OK(dcomm_id_create(&id));
        memcpy(w->s->blobs[0].bytes, &id, sizeof id);
    }
}

/* Create a communicator on all ranks, or on none. */
static dcomm_comm *join(walker *w)
{
    const enum part part = w->w->part;
    dcomm_comm *comm = NULL;
    dcomm_comm_opts o = {
        .boot = DCOMM_BOOT_ID, .rank = w->rank, .size = w->old, .timeout_s = 2 * WALK_S};
    if (w->rank == 0) {
        make_id(w);
        for (int i = 0; i < REACHED; i++) {
            atomic_store(&w->s->words[i], 0);
        }
    }
    o.tune = part == TUNED || (part == MEASURED && w->k > 0);
    /* Vary the connections: numbers measured for the same count would be read from the cache. */
    o.connections = part == MEASURED ? 1 + (int)(w->k / w->w->step) % DCOMM_CONNECTIONS_MAX : 0;
    meet(w);
    memcpy(&o.id, w->s->blobs[0].bytes, sizeof o.id);
    if (w->rank >= w->old) {
        return NULL;
    }
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

/* ---- calls ---- */

/* Sum x[count], of which each rank's elements are its rank plus 1. */
static dcomm_status sum(dcomm_comm *world, float *x, size_t count, const char *algo)
{
    const int size = dcomm_comm_size(world);
    for (size_t i = 0; i < count; i++) {
        x[i] = (float)(dcomm_comm_rank(world) + 1);
    }
    dcomm_status status = dcomm_allreduce(world, DCOMM_IN_PLACE, x, count, DCOMM_F32, DCOMM_SUM,
                                          &(dcomm_coll_opts){.algo = algo});
    for (size_t i = 0; i < count && status >= 0; i++) {
        PROCS_CHECK(x[i] == (float)(size * (size + 1) / 2), "%s: element %zu is %g", algo, i,
                    (double)x[i]);
    }
    return status;
}

/* Send rank 0's x[count] to rank 1. */
static dcomm_status pass_on(dcomm_comm *world, float *x, size_t count)
{
    if (dcomm_comm_rank(world) == 0) {
        x[count - 1] = 7;
        return dcomm_send(world, x, count, DCOMM_F32, 1, NULL);
    }
    x[count - 1] = 0;
    dcomm_status status = dcomm_recv(world, x, count, DCOMM_F32, 0, NULL);
    PROCS_TRUE(status < 0 || x[count - 1] == 7);
    return status;
}

/* Keep the first error of several calls. */
static void keep(dcomm_status *first, dcomm_status status, char said[1024])
{
    if (*first >= 0 && status < 0) {
        *first = status;
        snprintf(said, 1024, "%s", dcomm_last_error());
    }
}

/* The first calls of a communicator: those that fit a slot, those that do not, and those that are
 * read from the other rank's memory. A failed call may have succeeded on the other rank: the next
 * one fails there. A refused one is an error on all ranks, and the communicator stays usable; a
 * refused send or receive is an error here alone, and can be repeated. */
static void call(walker *w, dcomm_comm *world)
{
    enum { MANY = 50000 };
    static float x[4][MANY]; /* a failed call's buffer stays in use until the end */
    static char said[1024];
    dcomm_status first = DCOMM_OK;
    meet(w);
    arm(w);
    keep(&first, sum(world, x[0], 4, NULL), said);
    keep(&first, sum(world, x[1], MANY, "ring"), said);
    if (w->w->place == RANKS_LOCAL) {
        keep(&first, sum(world, x[2], 1000, "one_shot"), said);
    }
    dcomm_status passed = pass_on(world, x[3], MANY);
    if (passed < 0 && dcomm_comm_status(world) >= 0) {
        passed = pass_on(world, x[3], MANY);
    }
    keep(&first, passed, said);
    const bool mine = disarm(w);
    meet(w);
    keep(&first, sum(world, x[0], 4, NULL), said);
    judge_said(w, first, said, mine);
    meet(w);
    if (dcomm_comm_status(world) >= 0) {
        works(w, world);
    }
}

/* ---- failed ranks, fewer ranks, more ranks ---- */

/* Poison the communicator, every second time. */
static void spoil(walker *w, dcomm_comm *world)
{
    meet(w);
    if (w->k % 2 == 0) {
        dcomm_comm_abort(world, "a test");
    }
    meet(w);
}

/* A failed agreement can be repeated. */
static void agree(walker *w, dcomm_comm *world)
{
    uint64_t flags = 6u | (uint64_t)w->rank;
    int failed = 0;
    spoil(w, world);
    arm(w);
    dcomm_status status = dcomm_comm_agree(world, &flags, NULL, 0, &failed);
    judge(w, status, disarm(w));
    meet(w);
    if (status < 0) {
        flags = 6u | (uint64_t)w->rank;
        RANKS_OK(dcomm_comm_agree(world, &flags, NULL, 0, &failed));
    }
    PROCS_CHECK(flags == 6 && failed == 0, "part %d, k=%ld: %llx, %d failed", w->w->part, w->k,
                (unsigned long long)flags, failed);
}

/* A failed shrink can be repeated. The caller's list names rank 2, or nobody. */
static void shrink(walker *w, dcomm_comm *world)
{
    const int excluded = 2, n = w->w->part == EXCLUDE;
    dcomm_comm *rest = NULL;
    spoil(w, world);
    if (w->rank >= w->calls) {
        meet(w);
        return;
    }
    arm(w);
    dcomm_status status = dcomm_comm_shrink(world, &excluded, n, &rest);
    judge(w, status, disarm(w));
    PROCS_TRUE((rest == NULL) == (status < 0));
    meet(w);
    if (status < 0) {
        RANKS_OK(dcomm_comm_shrink(world, &excluded, n, &rest));
    }
    works(w, rest);
    PROCS_TRUE(dcomm_comm_size(rest) == w->calls);
    RANKS_OK(dcomm_comm_destroy(&rest));
}

/* The newcomer's part. */
static void come(walker *w)
{
    dcomm_comm *comm = NULL;
    dcomm_comm_opts o = {.boot = DCOMM_BOOT_JOIN, .timeout_s = 2 * WALK_S};
    memcpy(&o.id, w->s->blobs[0].bytes, sizeof o.id);
    arm(w);
    dcomm_status status = dcomm_comm_create(&o, &comm);
    judge(w, status, disarm(w));
    PROCS_CHECK(status >= 0 || w->w->first != 1, "part %d, k=%ld: the newcomer is out for rank 1",
                w->w->part, w->k);
    atomic_store(&w->s->words[NEWCOMER], status < 0 ? NEW_OUT : NEW_IN);
    meet(w);
    if (comm != NULL) {
        PROCS_TRUE(dcomm_comm_size(comm) == w->n);
        (void)first(w, comm);
        (void)!dcomm_comm_destroy(&comm);
    }
}

/* A failed growth can be repeated, with the ranks that are left if it has poisoned their
 * communicator. A newcomer that fails costs its place; one that comes late comes the next time. */
static void grow(walker *w, dcomm_comm **world)
{
    dcomm_comm *more = NULL, *rest = NULL;
    dcomm_id id;
    make_id(w);
    meet(w);
    if (w->rank >= w->old) {
        come(w);
        return;
    }
    memcpy(&id, w->s->blobs[0].bytes, sizeof id);
    arm(w);
    dcomm_status status = dcomm_comm_grow(*world, &id, 1, 0.5, &more);
    judge(w, status, disarm(w));
    PROCS_TRUE((more == NULL) == (status < 0));
    bool out = false;
    while (more == NULL || (dcomm_comm_size(more) < w->n && !out)) {
        meet_old(w);
        if (dcomm_comm_status(*world) < 0) {
            RANKS_OK(dcomm_comm_shrink(*world, NULL, 0, &rest));
            (void)!dcomm_comm_destroy(world);
            *world = rest;
        }
        if (more != NULL) {
            RANKS_OK(dcomm_comm_destroy(&more));
        }
        if (w->rank == 0) { /* all must go on alike */
            atomic_store(&w->s->words[SEEN_OUT], w->s->words[NEWCOMER] == NEW_OUT);
        }
        meet_old(w);
        out = atomic_load(&w->s->words[SEEN_OUT]) != 0;
        RANKS_OK(dcomm_comm_grow(*world, &id, 1, 0.5, &more));
    }
    meet(w);
    const bool joined = dcomm_comm_size(more) == w->n;
    if (joined && atomic_load(&w->s->words[NEWCOMER]) == NEW_OUT) { /* failed when it was in */
        (void)!dcomm_comm_destroy(&more);
    } else {
        (void)first(w, more);
        (void)!dcomm_comm_destroy(&more);
    }
}

/* ---- the walk ---- */

static void destroy(walker *w, bool armed, dcomm_comm **comm_p)
{
    if (armed) {
        arm(w);
    }
    dcomm_status ended = dcomm_comm_destroy(comm_p); /* a poisoned one returns its error */
    disarm(w);
    PROCS_CHECK(*comm_p == NULL, "%s", dcomm_status_name(ended));
}

static void walk_part(walker *w, dcomm_comm **world)
{
    switch (w->w->part) {
    case SPLIT:
        split(w, *world);
        break;
    case CALL:
        call(w, *world);
        break;
    case AGREE:
        agree(w, *world);
        break;
    case SHRINK:
    case EXCLUDE:
        shrink(w, *world);
        break;
    case GROW:
        grow(w, world);
        break;
    default:
        break;
    }
}

/* Make the k-th fault; 0: none. Return how many ranks have failed; *more: it has been made. */
static long walk_step(walker *w, bool *more)
{
    const enum part part = w->w->part;
    const double start = procs_now();
    dcomm_comm *world = join(w);
    if (world != NULL && part <= MEASURED) {
        (void)first(w, world);
    } else if (world != NULL && part != CALL) {
        works(w, world);
    }
    walk_part(w, &world);
    if (world != NULL) {
        destroy(w, part == DESTROY, &world);
    }
    meet(w);
    const long failed = atomic_load(&w->s->words[FAILED]);
    *more = atomic_load(&w->s->words[HIT]) != 0;
    PROCS_CHECK(failed == 0 || (*more && failed == w->calls), "part %d, k=%ld: %ld ranks failed",
                part, w->k, failed);
    PROCS_CHECK(procs_now() - start < WALK_S, "part %d, k=%ld: %.1f s", part, w->k,
                procs_now() - start);
    return failed;
}

static int live(int rank, int n, procs_shared *s, void *arg)
{
    walker w = {.w = arg, .rank = rank, .n = n, .s = s};
    w.old = w.w->part == GROW ? n - 1 : n;
    w.calls = w.w->part == EXCLUDE ? n - 1 : w.old;
    ranks_settle(rank, n, w.w->place);
    bool more;
    long fails = walk_step(&w, &more); /* without a fault: UCX and hwloc keep some descriptors */
    w.fds = open_descriptors(false);
    int misses = 0;
    long faults = 0, errors = 0;
    const long most = w.w->most > 0 ? w.w->most : LONG_MAX;
    for (w.k = w.w->from; misses < w.w->misses && w.k <= most; w.k += w.w->step) {
        meet(&w);
        const long failed = walk_step(&w, &more);
        check_descriptors(&w);
        fails += failed;
        faults += more;
        errors += failed > 0;
        misses = more ? 0 : misses + 1;
    }
    if (rank == 0) {
        fprintf(stderr, "# %s::%s: %ld faults, %ld of them errors\n", criterion_current_suite->name,
                criterion_current_test->name, faults, errors);
    }
    const bool may_not = w.w->part == AGREE || w.w->part == DESTROY || w.w->first >= w.old;
    PROCS_CHECK(fails > 0 || w.w->own == DCOMM_OK || may_not, "nothing failed in part %d",
                w.w->part);
    return procs_leaks();
}

/* Walk with two ranks, and a newcomer where they grow, or a third one that they leave out. */
static inline void walk_all(const walk *w)
{
    int ended[PROCS_MAX] = {0};
    walk mine = *w;
    cr_assert_eq(procs_run(w->part == GROW || w->part == EXCLUDE ? 3 : 2, test_full() ? 3500 : 60,
                           live, &mine, ended),
                 0, "%d, %d, %d", ended[0], ended[1], ended[2]);
}

#endif
