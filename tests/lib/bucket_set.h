/* bucket_set.h - for tests of gradient buckets: parameters whose gradients are small whole numbers,
 * known for each rank and step, placed in several ways and marked ready in random orders. */
#ifndef BUCKET_SET_H
#define BUCKET_SET_H

#include "ranks.h"

#include <pthread.h>

enum { SET_MAX = 40, SET_THREADS = 4 };

/* Places of gradients. */
typedef enum set_place {
    SET_INSIDE,  /* in their buckets */
    SET_FLAT,    /* one behind another */
    SET_APART,   /* each by itself */
    SET_BY_RANK, /* one of these, another on each rank */
    SET_MIXED    /* some inside, some apart */
} set_place;

typedef struct set {
    dcomm_comm *comm;
    dcomm_buckets *b;
    dcomm_bucket_param params[SET_MAX];
    char names[SET_MAX][24];
    size_t n, bytes;
    unsigned char *memory;
    int rank, nranks;
    double factor; /* on the expected sum */
    bool weighted; /* by set_weight */
} set;

/* Return element j of gradient i. */
static inline double set_value(size_t i, size_t j, int rank, int step)
{
    return (double)((i * 7 + j * 3 + (size_t)step * 5 + (size_t)rank * 2) % 11) - 4;
}

/* Return a rank's weight. The sum of weights is a power of two, so that averages are exact: the
 * last rank makes up for the others. */
static inline double set_weight(int rank, int nranks)
{
    int sum = 1;
    while (sum < nranks) {
        sum *= 2;
    }
    return rank < nranks - 1 ? 1 : sum - nranks + 1;
}

static inline double set_sum(const set *t, size_t i, size_t j, int step)
{
    double sum = 0, all = 0;
    for (int r = 0; r < t->nranks; r++) {
        double weight = t->weighted ? set_weight(r, t->nranks) : 1;
        sum += set_value(i, j, r, step) * weight;
        all += weight;
    }
    return t->weighted ? sum / all : sum * t->factor;
}

/* Make n parameters of 0 to `most` elements. */
static inline void set_shape(set *t, size_t n, size_t most, bool dtypes, uint64_t seed)
{
    static const dcomm_dtype some[] = {DCOMM_F32, DCOMM_F16, DCOMM_F32, DCOMM_BF16, DCOMM_F64};
    memset(t, 0, sizeof *t);
    t->n = n;
    t->factor = 1;
    for (size_t i = 0; i < n; i++) {
        snprintf(t->names[i], sizeof t->names[i], "layer%zu.weight", i);
        t->params[i] =
            (dcomm_bucket_param){.name = t->names[i],
                                 .count = i == 1 ? 0 : 1 + ranks_random(&seed) % most,
                                 .dtype = dtypes ? some[ranks_random(&seed) % 5] : DCOMM_F32};
    }
}

static inline void set_settle(set *t, dcomm_comm *comm, set_place place)
{
    size_t gap = 0, at = 0;
    t->comm = comm;
    t->rank = dcomm_comm_rank(comm);
    t->nranks = dcomm_comm_size(comm);
    if (place == SET_BY_RANK) {
        place = (set_place)(t->rank % 3);
    }
    gap = place == SET_FLAT ? 0 : 8;
    for (size_t i = 0; i < t->n; i++) {
        t->bytes += t->params[i].count * dcomm_dtype_size(t->params[i].dtype) + gap;
    }
    t->memory = calloc(t->bytes + 1, 1);
    PROCS_TRUE(t->memory != NULL);
    for (size_t i = 0; i < t->n; i++) {
        bool inside = place == SET_INSIDE || (place == SET_MIXED && i % 3 == 0);
        t->params[i].grad = inside ? NULL : t->memory + at;
        at += t->params[i].count * dcomm_dtype_size(t->params[i].dtype) + gap;
    }
}

/* Add this rank's gradient of a step to the memory, or store it there. */
static inline void set_compute(set *t, size_t i, int step, bool add)
{
    const dcomm_bucket_param *p = &t->params[i];
    void *grad = dcomm_param_grad(t->b, i);
    for (size_t j = 0; j < p->count; j++) {
        double was = add ? ranks_get(grad, j, p->dtype) : 0;
        ranks_put(grad, j, p->dtype, was + set_value(i, j, t->rank, step));
    }
}

static inline void set_compare(set *t, size_t i, int step)
{
    const dcomm_bucket_param *p = &t->params[i];
    const void *grad = dcomm_param_grad(t->b, i);
    for (size_t j = 0; j < p->count; j++) {
        PROCS_CHECK(ranks_get(grad, j, p->dtype) == set_sum(t, i, j, step),
                    "rank %d, step %d, parameter %zu, element %zu: %g instead of %g", t->rank, step,
                    i, j, ranks_get(grad, j, p->dtype), set_sum(t, i, j, step));
    }
}

/* Draw a random order of the parameters. */
static inline void set_shuffle(const set *t, size_t *order, uint64_t *seed)
{
    for (size_t i = 0; i < t->n; i++) {
        size_t j = ranks_random(seed) % (i + 1);
        order[i] = order[j];
        order[j] = i;
    }
}

/* ---- backward, by several threads ---- */

typedef struct set_worker {
    pthread_t thread;
    set *t;
    const size_t *order;
    size_t first, stride;
    int step;
    uint64_t seed;
} set_worker;

static inline void *set_work(void *arg)
{
    set_worker *w = arg;
    for (size_t at = w->first; at < w->t->n; at += w->stride) {
        set_compute(w->t, w->order[at], w->step, false);
        RANKS_OK(dcomm_param_mark_ready(w->t->b, w->order[at], NULL));
        if (ranks_random(&w->seed) % 3 == 0) {
            RANKS_OK(dcomm_buckets_progress(w->t->b));
        }
    }
    return NULL;
}

/* Compute all gradients of a step: each thread some of them, in a random order. */
static inline void set_backward(set *t, int step, int threads, uint64_t *seed)
{
    size_t order[SET_MAX];
    set_worker w[SET_THREADS];
    set_shuffle(t, order, seed);
    for (int i = 0; i < threads; i++) {
        w[i] = (set_worker){.t = t,
                            .order = order,
                            .first = (size_t)i,
                            .stride = (size_t)threads,
                            .step = step,
                            .seed = ranks_random(seed)};
        if (i > 0) {
            PROCS_TRUE(pthread_create(&w[i].thread, NULL, set_work, &w[i]) == 0);
        }
    }
    set_work(&w[0]);
    for (int i = 1; i < threads; i++) {
        pthread_join(w[i].thread, NULL);
    }
}

static inline void set_make(set *t, const dcomm_buckets_opts *opts)
{
    RANKS_OK(dcomm_buckets_create(t->comm, t->params, t->n, opts, &t->b));
    t->factor = opts != NULL && opts->sum ? 1 : 1.0 / t->nranks;
    t->weighted = opts != NULL && opts->weighted;
}

static inline void set_end(set *t)
{
    RANKS_OK(dcomm_buckets_destroy(&t->b));
    PROCS_TRUE(t->b == NULL);
    free(t->memory);
    t->memory = NULL;
}

#endif
