/* choose.h - the choice of an algorithm by its price in the model. It depends only on what all
 * ranks share: the shape without parts that may differ by rank, the groups, and rank 0's
 * numbers. */
#ifndef DCOMMI_CHOOSE_H
#define DCOMMI_CHOOSE_H

#include "../algo/make.h"
#include "../model/correction.h"
#include "../model/run.h"
#include "../engine/fast/script.h"
#include "../model/tuning_default.h"

#define DCOMMI_CHOICES 256             /* choices remembered */
#define DCOMMI_DECISIONS 512           /* remembered: 4 lengths in each of 28 octaves, dtypes */
#define DCOMMI_CHOICE_BUDGET (1 << 20) /* most plan steps run to price one algorithm */
#define DCOMMI_CHOICE_MOST (256 << 20) /* bytes: above, times change but not the choice */
#define DCOMMI_CHOICE_UNKNOWN 65536    /* bytes of a block that only its own rank knows */

typedef struct dcommi_chooser {
    dcomm_tuning tuning;
    dcommi_terrain terrain[DCOMMI_MEMORY_KINDS];
    dcommi_corrections corrections[DCOMMI_TRIALS_KINDS];
    struct dcommi_choice {
        uint64_t key; /* 0: none */
        const dcommi_algo *algo;
    } choice[DCOMMI_CHOICES];
    struct dcommi_decision { /* decisions of codec "auto", in the same order on all ranks; */
        uint64_t key;        /* a new one replaces the oldest */
        int taken;
    } decided[DCOMMI_DECISIONS];
    size_t ndecided;
} dcommi_chooser;

/* Return true if all ranks share a host. Without groups, assume that they do. */
static bool dcommi_within_host(const dcommi_groups *groups)
{
    return groups == NULL || groups->count[0] <= 1;
}

/* ---- the shape that is priced ---- */

/* Round a size to a grid of four sizes in each octave, at most DCOMMI_CHOICE_MOST. A program whose
 * sizes all differ then does not price each of them. */
static int64_t dcommi_choice_grid(int64_t bytes)
{
    int64_t step = 1;
    while (bytes >= 8 * step) {
        step *= 2;
    }
    return dcommi_min64((bytes + step / 2) / step * step, DCOMMI_CHOICE_MOST);
}

/* Return the bytes of a block of all-to-all-v: the busiest rank's average if all counts are
 * known. */
static int64_t dcommi_choice_block(const dcommi_shape *s)
{
    size_t n = (size_t)s->nranks, most = 0;
    if (s->matrix == NULL || n < 2) {
        return DCOMMI_CHOICE_UNKNOWN;
    }
    for (size_t i = 0; i < n; i++) {
        size_t in = 0, out = 0;
        for (size_t j = 0; j < n; j++) {
            in += j != i ? s->matrix[j * n + i] : 0;
            out += j != i ? s->matrix[i * n + j] : 0;
        }
        most = in > most ? in : most;
        most = out > most ? out : most;
    }
    return dcommi_shape_bytes(s, (most + n - 2) / (n - 1));
}

/* Return the shape that is priced for a call: equal blocks, a size of the grid, and root 0. It is
 * not in place, because ranks need not agree on that. Exception: all-reduce in open device memory
 * counts as in place. Peers read buffers there, but not the scratch that an in-place call needs,
 * so this is the cheaper wrong guess. */
static dcommi_shape dcommi_choice_shape(const dcommi_shape *s)
{
    dcommi_shape q = *s;
    int64_t element = (int64_t)dcomm_dtype_size(s->dtype), bytes = dcommi_shape_size(s);
    switch (s->coll) {
    case DCOMM_COLL_REDUCE_SCATTERV:
        q.coll = DCOMM_COLL_REDUCE_SCATTER;
        break;
    case DCOMM_COLL_ALLGATHERV:
        q.coll = DCOMM_COLL_ALLGATHER;
        break;
    case DCOMM_COLL_ALLTOALLV:
        q.coll = DCOMM_COLL_ALLTOALL;
        bytes = dcommi_choice_block(s);
        break;
    default:
        break;
    }
    q.counts = q.displs = q.send_counts = q.send_displs = q.matrix = NULL;
    q.in_place = s->memory == DCOMMI_MEMORY_OPEN && s->coll == DCOMM_COLL_ALLREDUCE;
    q.root = 0;
    q.op = q.op >= DCOMM_OP_USER || q.op == DCOMM_PREMUL_SUM ? DCOMM_SUM : q.op;
    q.count = (size_t)dcommi_max64(dcommi_choice_grid(bytes) / element, 1);
    return q;
}

typedef struct dcommi_priced_plans {
    dcommi_shape shape;
    const dcommi_algo *algo;
} dcommi_priced_plans;

static dcomm_status dcommi_choice_get(void *user, int rank, const dcomm_plan **plan_p)
{
    dcommi_priced_plans *p = user;
    dcomm_plan *plan = NULL;
    p->shape.rank = rank;
    dcomm_status status = dcommi_plan_make(&p->shape, p->algo, &plan);
    *plan_p = plan;
    return status;
}

static void dcommi_choice_put(void *user, const dcomm_plan *plan)
{
    (void)user;
    dcommi_free((void *)(uintptr_t)plan);
}

/* Set *scripted if blocking calls run these plans by scripts. Most short calls are blocking. */
static dcomm_status dcommi_choice_scripted(dcommi_priced_plans *p, bool *scripted)
{
    const dcommi_shape *s = &p->shape;
    const dcomm_plan *plan = NULL;
    *scripted = false;
    if (dcommi_within_host(s->groups) && s->coding == NULL && !dcommi_memory_of_device(s->memory)) {
        DCOMMI_TRY(dcommi_choice_get(p, 0, &plan));
        dcomm_status status = dcommi_script_possible(plan, scripted);
        dcommi_choice_put(p, plan);
        return status;
    }
    return DCOMM_OK;
}

/* Price one algorithm for a call by the model alone. DCOMM_ERR_UNSUPPORTED: it cannot run the
 * call. */
static dcomm_status dcommi_choice_model(const dcommi_terrain *t, const dcommi_shape *s,
                                        const dcommi_algo *algo, int64_t limit, int64_t budget,
                                        dcommi_price *price)
{
    dcommi_priced_plans p = {.shape = dcommi_choice_shape(s), .algo = algo};
    dcommi_plans plans = {.get = dcommi_choice_get, .put = dcommi_choice_put, .user = &p};
    if (s->rank_order && !algo->rank_order) {
        return dcommi_fail(
            DCOMM_ERR_UNSUPPORTED,
            "it cannot fold in rank order, which deterministic and accumulate ask for");
    }
    if (p.shape.coll != s->coll) {
        p.algo = dcommi_algo_find(p.shape.coll, algo->name);
    }
    if (p.algo == NULL) {
        return dcommi_fail(DCOMM_ERR_UNSUPPORTED, "%s has no %s to price it by",
                           dcomm_coll_name(p.shape.coll), algo->name);
    }
    DCOMMI_TRY(dcommi_choice_scripted(&p, &plans.scripted));
    DCOMMI_TRY(dcommi_price_plans(t, &plans, limit, budget, price));
    const char *ask = algo->make == dcommi_hier_alltoallv ? "hier"
                      : algo->make == dcommi_bruck_v      ? "recursive_doubling"
                                                          : NULL;
    if (ask != NULL && s->matrix == NULL) { /* add the stage that exchanges the counts */
        dcommi_price first;
        p.algo = dcommi_algo_find(DCOMM_COLL_ALLGATHER, ask);
        p.shape.coll = p.algo->coll;
        p.shape.dtype = DCOMM_U64;
        p.shape.count = (size_t)s->nranks;
        plans.scripted = false; /* a stage runs without a script */
        DCOMMI_TRY(dcommi_price_plans(t, &plans, limit, budget, &first));
        price->ps += first.ps;
        price->burst += first.burst;
        price->over = price->over || first.over;
    }
    return DCOMM_OK;
}

/* Multiply a model's price by a factor of the corrections. */
static void dcommi_choice_correct(dcommi_price *price, int64_t factor)
{
    if (factor != DCOMMI_CORRECTION_ONE) {
        price->ps = price->ps / DCOMMI_CORRECTION_ONE * factor;
        price->burst = price->burst / DCOMMI_CORRECTION_ONE * factor;
    }
}

/* Price an algorithm by the model, corrected by trials. The choice compares these prices. */
static dcomm_status dcommi_choice_price(const dcommi_chooser *c, const dcommi_shape *s,
                                        const dcommi_algo *algo, int64_t limit, int64_t budget,
                                        dcommi_price *price)
{
    const dcommi_terrain *t = &c->terrain[s->memory];
    int64_t factor = dcommi_correction_of(c->corrections, s, algo, dcommi_shape_size(s));
    if (factor != DCOMMI_CORRECTION_ONE) {
        limit = dcommi_min64(limit, INT64_MAX >> 4) / factor * DCOMMI_CORRECTION_ONE;
    }
    DCOMMI_TRY(dcommi_choice_model(t, s, algo, limit, budget, price));
    dcommi_choice_correct(price, factor);
    return DCOMM_OK;
}

/* ---- the numbers ---- */

/* Return the shape of an all-reduce that a trial measures. */
static dcommi_shape dcommi_trial_shape(const dcommi_groups *groups, int nranks, int64_t bytes,
                                       enum dcommi_memory memory)
{
    dcommi_shape s = {.coll = DCOMM_COLL_ALLREDUCE,
                      .nranks = nranks,
                      .dtype = DCOMM_F32,
                      .op = DCOMM_SUM,
                      .count = (size_t)bytes / sizeof(float),
                      .lanes = 1,
                      .memory = memory,
                      .groups = groups};
    return s;
}

/* Compute corrections for prices on `t` from trials on `tried` ranks with such memory. There are
 * none unless `t` has as many ranks, on one host. */
static dcomm_status dcommi_corrections_find(dcommi_corrections *k, const dcommi_terrain *t,
                                            const dcommi_groups *groups, int64_t tried,
                                            const dcomm_trial *trials, enum dcommi_memory memory)
{
    char kept[DCOMMI_MESSAGE_MAX];
    memcpy(kept, dcommi_message, sizeof kept); /* an algorithm without a price is no error */
    k->n = 0;
    if (tried != t->nranks || !dcommi_within_host(groups)) {
        return DCOMM_OK;
    }
    for (int i = 0; i < DCOMM_TRIALS; i++) {
        const dcomm_curve *took = &trials[i].took;
        struct dcommi_correction *to = &k->of[k->n];
        to->algo = dcommi_algo_find(DCOMM_COLL_ALLREDUCE, trials[i].algo);
        to->n = 0;
        for (int64_t p = 0; p < took->n && to->algo != NULL; p++) {
            dcommi_shape s = dcommi_trial_shape(groups, t->nranks, took->bytes[p], memory);
            dcommi_price price = {0};
            dcomm_status priced =
                dcommi_choice_model(t, &s, to->algo, INT64_MAX >> 2, DCOMMI_CHOICE_BUDGET, &price);
            if (priced == DCOMM_ERR_NO_MEMORY) {
                return priced; /* all ranks must correct alike */
            }
            if (priced >= 0) {
                dcommi_correction_add(to, took->bytes[p], took->ps[p], price.ps);
            }
        }
        k->n += to->n > 0;
    }
    memcpy(dcommi_message, kept, sizeof kept);
    return DCOMM_OK;
}

/* Fill in a chooser that has chosen nothing yet. `groups` must outlive it. */
static dcomm_status dcommi_chooser_set(dcommi_chooser *c, const dcommi_groups *groups, int nranks,
                                       const dcomm_tuning *tuning)
{
    DCOMMI_TRY(dcommi_tuning_check(tuning));
    memset(c->choice, 0, sizeof c->choice);
    c->ndecided = 0;
    c->tuning = *tuning;
    dcomm_status status = DCOMM_OK;
    for (int m = 0; m < DCOMMI_MEMORY_KINDS && status >= 0; m++) {
        status = dcommi_terrain_make(groups, nranks, tuning, (enum dcommi_memory)m, &c->terrain[m]);
    }
    if (status >= 0) {
        const dcomm_trial *trials[DCOMMI_TRIALS_KINDS] = {[DCOMMI_MEMORY_ANY] = tuning->trial,
                                                          [DCOMMI_MEMORY_HUGE] = tuning->huge,
                                                          [DCOMMI_MEMORY_REGISTERED] =
                                                              tuning->registered};
        for (int m = 0; m < DCOMMI_TRIALS_KINDS && status >= 0; m++) {
            status = dcommi_corrections_find(&c->corrections[m], &c->terrain[m], groups,
                                             tuning->tried, trials[m], (enum dcommi_memory)m);
        }
    }
    return status;
}

/* ---- the choice ---- */

static uint64_t dcommi_choice_key(const dcommi_shape *s)
{
    dcommi_shape q = dcommi_choice_shape(s);
    uint64_t key = dcommi_mix((uint64_t)s->coll << 32 | (uint64_t)s->lanes << 8 |
                                  (uint64_t)s->memory << 1 | s->rank_order,
                              (uint64_t)q.count);
    key = dcommi_mix(key, dcomm_dtype_size(s->dtype));
    if (s->coding != NULL) {
        unsigned feedback = s->coding->feedback | (unsigned)s->coding->variant << 1 |
                            (unsigned)s->coding->clips << 2;
        key = dcommi_mix(dcommi_mix(key, s->coding->hash), feedback);
    }
    return dcommi_mix(key, (uint64_t)s->chunk_bytes) | 1;
}

/* Treat prices this close as equal: neither the model nor trials are more exact. */
#define DCOMMI_CHOICE_MARGIN 10 /* one part in so many */
/* Add this part of the time without the links' sustained rates to the price, because the model is
 * least sure of that time. Steps do not quite hide behind a busy link, and measurements of short
 * messages between hosts are poor. */
#define DCOMMI_CHOICE_BURST 2 /* one part in so many */

/* Return true if the choice may take an algorithm for a call. If no level divides the ranks,
 * algorithms that work level by level repeat others, so exclude them. Linear codecs are summed.
 * Sparse sums are made sparse again only if feedback keeps the rest. */
static bool dcommi_choice_may(const dcommi_shape *s, const dcommi_algo *algo)
{
    if (algo->coll != s->coll || (s->rank_order && !algo->rank_order) ||
        (algo->note != NULL && dcommi_hier_level(s->groups, s->nranks) < 0)) {
        return false;
    }
    if (s->coding == NULL) {
        return true;
    }
    if (s->coding->parts > 0) {
        return algo->make == dcommi_coded_linear;
    }
    return algo->make != dcommi_coded_linear &&
           !(algo->make == dcommi_coded_sparse &&
             (s->coding->spread == NULL || !s->coding->feedback)) &&
           !(s->coding->whole && algo->make == dcommi_coded_two_shot);
}

/* Return the highest price or score that counts as equal to the lowest. */
static int64_t dcommi_choice_close(int64_t lowest)
{
    return lowest + lowest / DCOMMI_CHOICE_MARGIN;
}

/* Choose the first algorithm in the table whose score is within the margin of the lowest. *algo_p
 * NULL: none could be priced. */
static dcomm_status dcommi_choose_priced(const dcommi_chooser *c, const dcommi_shape *s,
                                         const dcommi_algo *table, int n,
                                         const dcommi_algo **algo_p)
{
    int64_t score[DCOMMI_ALGO_COUNT], lowest = INT64_MAX >> 2;
    for (int i = 0; i < n; i++) {
        dcommi_price price = {0};
        score[i] = INT64_MAX;
        if (!dcommi_choice_may(s, &table[i])) {
            continue;
        }
        /* The price is at least `burst`, so with `burst` beyond this limit the score is too
         * high. */
        int64_t limit =
            dcommi_choice_close(lowest) / (DCOMMI_CHOICE_BURST + 1) * DCOMMI_CHOICE_BURST;
        dcomm_status priced =
            dcommi_choice_price(c, s, &table[i], limit, DCOMMI_CHOICE_BUDGET, &price);
        if (priced == DCOMM_ERR_NO_MEMORY) {
            return priced; /* other ranks may price it, and choose it */
        }
        if (priced >= 0 && !price.over) {
            score[i] = price.ps + price.burst / DCOMMI_CHOICE_BURST;
            lowest = dcommi_min64(lowest, score[i]);
        }
    }
    *algo_p = NULL;
    for (int i = 0; i < n && *algo_p == NULL; i++) {
        *algo_p = score[i] <= dcommi_choice_close(lowest) ? &table[i] : NULL;
    }
    return DCOMM_OK;
}

/* Return the last algorithm in the table that a call may run. It suits any number of ranks. */
static const dcommi_algo *dcommi_choice_last(const dcommi_shape *s, const dcommi_algo *table, int n)
{
    while (n > 0 && !dcommi_choice_may(s, &table[n - 1])) {
        n--;
    }
    return n > 0 ? &table[n - 1] : NULL;
}

/* Choose an algorithm for a call. *algo_p NULL: there is none. */
static dcomm_status dcommi_choose(dcommi_chooser *c, const dcommi_shape *s,
                                  const dcommi_algo **algo_p)
{
    int n;
    const dcommi_algo *table = dcommi_algos(s->coding != NULL, &n);
    if (s->coding == NULL && (s->nranks == 1 || dcommi_algo_at(s->coll, 1) == NULL)) {
        *algo_p = dcommi_choice_last(s, table, n); /* nothing to choose from */
        return DCOMM_OK;
    }
    uint64_t key = dcommi_choice_key(s);
    struct dcommi_choice *known = &c->choice[(key >> 32) % DCOMMI_CHOICES];
    if (known->key == key) {
        *algo_p = known->algo;
        return DCOMM_OK;
    }
    char kept[DCOMMI_MESSAGE_MAX];
    memcpy(kept, dcommi_message, sizeof kept); /* an algorithm that cannot run it is no error */
    DCOMMI_TRY(dcommi_choose_priced(c, s, table, n, algo_p));
    memcpy(dcommi_message, kept, sizeof kept);
    *algo_p = *algo_p != NULL ? *algo_p : dcommi_choice_last(s, table, n);
    known->key = key;
    known->algo = *algo_p;
    return DCOMM_OK;
}

/* Choose an algorithm for a plan without a communicator, by the built-in numbers. */
static dcomm_status dcommi_choose_alone(const dcommi_shape *s, const dcommi_algo **algo_p)
{
    static _Thread_local struct dcommi_choice last; /* callers ask for each rank's plan in turn */
    uint64_t key = dcommi_mix(dcommi_choice_key(s), (uint64_t)s->nranks);
    dcomm_tuning tuning;
    for (int r = 0; s->groups != NULL && r < s->nranks; r++) {
        key = dcommi_mix(key, (uint64_t)dcommi_group_of(s->groups, 0, r));
    }
    key |= 1;
    if (last.key == key) {
        *algo_p = last.algo;
        return DCOMM_OK;
    }
    dcommi_chooser *c = dcommi_alloc(sizeof *c);
    dcomm_tuning_default(&tuning);
    dcomm_status status =
        c == NULL ? DCOMM_ERR_NO_MEMORY : dcommi_chooser_set(c, s->groups, s->nranks, &tuning);
    status = status >= 0 ? dcommi_choose(c, s, algo_p) : status;
    if (status >= 0) {
        last.algo = *algo_p;
        last.key = key;
    }
    dcommi_free(c);
    return status;
}

#endif
