/* tune_trial.h - trials of whole all-reduces on ranks of one host. How caches and cores are shared
 * there shows in real calls, not in pairs that exchange or read one piece. So time the algorithms
 * that the model finds cheap at a few sizes, and correct its prices. */
#ifndef DCOMMI_TUNE_TRIAL_H
#define DCOMMI_TUNE_TRIAL_H

#include "api_coll.h"
#include "tune_measure.h"

#define DCOMMI_TRIAL_TIMED 4 /* timed calls of a turn, after one that warms up */
#define DCOMMI_TRIAL_TURNS 3
#define DCOMMI_TRIAL_S 0.015        /* seconds after which a size has no other turn */
#define DCOMMI_TRIAL_MOST_S 0.12    /* seconds: a turn priced higher drops its dearest */
#define DCOMMI_TRIAL_SHORT 65536    /* bytes up to which calls are timed eight in a row */
#define DCOMMI_TRIAL_LONG (4 << 20) /* bytes from which a turn has two timed calls */

/* Below the first size and beyond the last, prices differ as they do there. The last is for ranks
 * that share cores: some algorithms fall behind there only in calls that long. */
static const int64_t dcommi_trial_sizes[] = {64,    256,    1024,    4096,    16384,
                                             65536, 262144, 1 << 20, 4 << 20, 16 << 20};
enum { DCOMMI_TRIAL_SIZES = sizeof dcommi_trial_sizes / sizeof dcommi_trial_sizes[0] };
/* Sizes on huge pages: those of buffers that the kernel reads. */
static const int64_t dcommi_trial_huge[] = {262144, 4 << 20};
enum { DCOMMI_TRIAL_HUGE = sizeof dcommi_trial_huge / sizeof dcommi_trial_huge[0] };
/* Sizes in registered memory. Shorter calls go as in ordinary memory; longer ones read it where it
 * lies. */
static const int64_t dcommi_trial_registered[] = {16384, 65536, 262144, 1 << 20};
enum {
    DCOMMI_TRIAL_REGISTERED = sizeof dcommi_trial_registered / sizeof dcommi_trial_registered[0]
};

/* The trials of one size. */
typedef struct dcommi_trials {
    int64_t bytes, calls; /* several in a row, since ranks that share a core meet late */
    uint8_t *in, *out;
    enum dcommi_memory memory; /* of `in` and `out` */
    dcomm_trial *into;         /* the tuner's trials of such memory */
    int n, each, timed;        /* algorithms; calls timed in a turn, and in all */
    struct dcommi_tried {
        const dcommi_algo *algo;
        int64_t price;
        double took[DCOMMI_TRIAL_TURNS * DCOMMI_TRIAL_TIMED];
    } tried[DCOMM_TRIALS];
    double met[DCOMMI_TRIAL_TURNS * DCOMMI_TRIAL_TIMED]; /* seconds that meeting alone takes */
} dcommi_trials;

/* Return the picoseconds of the trial of `bytes` bytes; INT64_MAX: there was none. */
static int64_t dcommi_trial_of(const dcomm_trial *trials, const char *algo, int64_t bytes)
{
    for (int i = 0; i < DCOMM_TRIALS; i++) {
        const dcomm_curve *took = &trials[i].took;
        for (int64_t p = 0; p < took->n && strcmp(trials[i].algo, algo) == 0; p++) {
            if (took->bytes[p] == bytes) {
                return took->ps[p];
            }
        }
    }
    return INT64_MAX;
}

/* Choose the algorithms that are worth a trial, the same on every rank. Take a price, as corrected
 * by trials of smaller sizes, of at most twice the cheapest, or three times for short calls. Take
 * also a price by the model alone of at most half above the cheapest: if the model is too high
 * throughout, only tried algorithms would look cheap. Of long calls take those that took at most
 * half more than the fastest at the size before (`by` bytes, else 0). Drop the dearest while there
 * is no time for all. */
static void dcommi_trials_choose(dcommi_tuner *t, const dcommi_chooser *c, int64_t by,
                                 dcommi_trials *k)
{
    dcommi_shape s = dcommi_trial_shape(t->comm->groups, t->comm->size, k->bytes, k->memory);
    int64_t prices[DCOMMI_ALGO_COUNT], models[DCOMMI_ALGO_COUNT];
    int64_t cheapest = INT64_MAX, model = INT64_MAX, all = 0;
    const int64_t quarters = by > 0 ? 6 : k->bytes <= DCOMMI_TRIAL_SHORT ? 12 : 8;
    const dcommi_algo *algo;
    s.rank_order = t->comm->deterministic;
    for (int i = 0; (algo = dcommi_algo_at(s.coll, i)) != NULL; i++) {
        dcommi_price price = {0};
        prices[i] = models[i] = INT64_MAX;
        if (by > 0) {
            prices[i] = dcommi_trial_of(k->into, algo->name, by);
        } else if (dcommi_choice_may(&s, algo)) {
            dcomm_status priced = dcommi_choice_model(&c->terrain[k->memory], &s, algo,
                                                      INT64_MAX >> 4, DCOMMI_CHOICE_BUDGET, &price);
            if (priced == DCOMM_ERR_NO_MEMORY) { /* else this rank would try others than the rest */
                t->status = priced;
                return;
            }
            if (priced >= 0) {
                models[i] = price.ps;
                dcommi_choice_correct(&price,
                                      dcommi_correction_of(c->corrections, &s, algo, k->bytes));
                prices[i] = price.ps;
            }
        }
        cheapest = dcommi_min64(cheapest, prices[i]);
        model = dcommi_min64(model, models[i]);
    }
    for (int i = 0; (algo = dcommi_algo_at(s.coll, i)) != NULL && k->n < DCOMM_TRIALS; i++) {
        if (prices[i] < INT64_MAX &&
            (prices[i] / quarters <= cheapest / 4 || (by == 0 && models[i] / 6 <= model / 4))) {
            k->tried[k->n].price = by > 0 ? prices[i] / by * k->bytes : prices[i];
            all += k->tried[k->n].price;
            k->tried[k->n++].algo = algo;
        }
    }
    while (k->n > 0 &&
           1e-12 * (double)all * (double)k->calls * (k->each + 1) > DCOMMI_TRIAL_MOST_S) {
        int dearest = 0;
        for (int i = 1; i < k->n; i++) {
            dearest = k->tried[i].price >= k->tried[dearest].price ? i : dearest;
        }
        all -= k->tried[dearest].price;
        k->tried[dearest] = k->tried[--k->n];
    }
    k->n = k->n > 1 ? k->n : 0; /* nothing to choose from */
}

/* Meet by a call as programs make it, not by a plan. After a plan, early messages of a rank that
 * is ahead would make the engine run the next calls, instead of the fast path. */
static void dcommi_trial_meet(dcommi_tuner *t)
{
    dcomm_coll_opts opts = {.algo = "dissemination"};
    t->status = t->status >= 0 ? dcommi_barrier(t->comm, &opts, NULL) : t->status;
}

static void dcommi_trial_calls(dcommi_tuner *t, const dcommi_trials *k, const dcommi_algo *algo)
{
    dcomm_coll_opts opts = {.algo = algo->name,
                            .huge_pages = k->memory == DCOMMI_MEMORY_HUGE,
                            .registered = k->memory == DCOMMI_MEMORY_REGISTERED};
    for (int64_t at = 0; at < k->calls * k->bytes && t->status >= 0; at += k->bytes) {
        t->status =
            dcommi_allreduce(t->comm, k->in + at, k->out + at, (size_t)k->bytes / sizeof(float),
                             DCOMM_F32, DCOMM_SUM, &opts, NULL);
    }
}

/* Return true if the buffers of a call are flushed from the caches first, as in a program that has
 * many. Registered ones are flushed every other time, because `one_shot` wins with cached buffers
 * and `two_shot` with others. */
static bool dcommi_trial_cold(const dcommi_trials *k, int i)
{
    return k->memory != DCOMMI_MEMORY_REGISTERED || i % 2 == 0;
}

/* Run an algorithm's turn, whatever groups this thread has open. */
static void dcommi_trial_turn(dcommi_tuner *t, dcommi_trials *k, struct dcommi_tried *tried)
{
    dcommi_group open = dcommi_this_group;
    dcommi_this_group = (dcommi_group){.depth = 0};
    for (int i = -1; i < k->each && t->status >= 0; i++) {
        int at = k->timed + (i < 0 ? 0 : i);
        if (dcommi_trial_cold(k, i)) {
            dcommi_flush(k->in, k->calls * k->bytes);
            dcommi_flush(k->out, k->calls * k->bytes);
        }
        dcommi_trial_meet(t);
        double start = dcommi_now();
        dcommi_trial_meet(t);
        double met = dcommi_now();
        dcommi_trial_calls(t, k, tried->algo);
        dcommi_trial_meet(t); /* the slowest rank's time counts */
        tried->took[at] = dcommi_now() - met;
        k->met[at] = met - start;
    }
    dcommi_this_group = open;
}

static void dcommi_trials_run(dcommi_tuner *t, dcommi_trials *k)
{
    double until = dcommi_now() + DCOMMI_TRIAL_S;
    for (int turn = 0; turn < DCOMMI_TRIAL_TURNS && t->status >= 0; turn++) {
        if (turn > 0 && !dcommi_tune_goes_on(t, until)) {
            break;
        }
        for (int i = 0; i < k->n; i++) {
            dcommi_trial_turn(t, k, &k->tried[i]);
        }
        k->timed += k->each;
    }
}

/* Return the seconds that an algorithm took: the mean of cached and flushed buffers, if there are
 * both. */
static double dcommi_trial_took(const dcommi_trials *k, const struct dcommi_tried *tried)
{
    double took[2][DCOMMI_TRIAL_TURNS * DCOMMI_TRIAL_TIMED];
    int n[2] = {0};
    for (int i = 0; i < k->timed; i++) {
        const bool cold = dcommi_trial_cold(k, i);
        took[cold][n[cold]++] = tried->took[i];
    }
    double cold = dcommi_tune_quartile(took[1], n[1]);
    return n[0] == 0 ? cold : (cold + dcommi_tune_quartile(took[0], n[0])) / 2;
}

/* Run the trials of one size, and give all ranks rank 0's times. */
static void dcommi_trials_of(dcommi_tuner *t, int64_t by, const dcommi_chooser *c, dcommi_trials *k)
{
    dcommi_trials_choose(t, c, by, k);
    dcommi_trials_run(t, k);
    double met = dcommi_tune_quartile(k->met, k->timed);
    for (int i = 0; i < k->n; i++) {
        double took = dcommi_trial_took(k, &k->tried[i]);
        dcomm_trial *trial = dcommi_trial_slot(k->into, k->tried[i].algo->name);
        if (trial != NULL) {
            dcommi_tune_point(&trial->took, k->bytes, (took - met) / (double)k->calls);
        }
    }
    dcommi_tune_share(t, &t->tuning, sizeof t->tuning);
}

/* Run the trials of all sizes, ascending, in memory of a kind, which holds two of the longest
 * buffers. NULL: this rank has none, and takes part with the memory of before. */
static void dcommi_trials_all(dcommi_tuner *t, const int64_t *sizes, int nsizes, uint8_t *memory,
                              dcommi_trials *where)
{
    dcommi_trials *k = dcommi_alloc(sizeof *k);
    dcommi_chooser *c = dcommi_alloc(sizeof *c);
    if (memory != NULL) {
        where->in = memory;
        where->out = memory + sizes[nsizes - 1];
    }
    if (k == NULL || c == NULL || where->in == NULL) {
        t->status = t->status >= 0 ? DCOMM_ERR_NO_MEMORY : t->status;
    }
    for (int i = 0; i < nsizes && t->status >= 0; i++) {
        t->status = dcommi_chooser_set(c, t->comm->groups, t->comm->size, &t->tuning);
        *k = *where;
        k->bytes = sizes[i];
        k->calls = sizes[i] <= DCOMMI_TRIAL_SHORT ? 8 : 1;
        k->each = sizes[i] < DCOMMI_TRIAL_LONG ? DCOMMI_TRIAL_TIMED : 2;
        dcommi_trials_of(t, sizes[i] >= DCOMMI_TRIAL_LONG ? sizes[i - 1] : 0, c, k);
    }
    dcommi_free(c);
    dcommi_free(k);
}

static size_t dcommi_trial_huge_len(void)
{
    return 2 * (size_t)dcommi_trial_huge[DCOMMI_TRIAL_HUGE - 1];
}

/* Run all trials. Every rank has the same numbers before, and rank 0's trials afterwards. */
static void dcommi_tune_trials(dcommi_tuner *t)
{
    const int crowded = dcommi_place_crowded(t->comm->groups, t->comm->places, 0);
    const int nsizes = DCOMMI_TRIAL_SIZES - !crowded;
    dcommi_trials where = {.memory = DCOMMI_MEMORY_ANY, .into = t->tuning.trial};
    t->trial = dcommi_alloc(2 * (size_t)dcommi_trial_sizes[nsizes - 1]);
    t->trial_huge = dcommi_huge_advised(dcommi_trial_huge_len());
    t->tuning.tried = t->comm->size;
    dcommi_trials_all(t, dcommi_trial_sizes, nsizes, t->trial, &where);
    where.memory = DCOMMI_MEMORY_HUGE;
    where.into = t->tuning.huge;
    dcommi_trials_all(t, dcommi_trial_huge, DCOMMI_TRIAL_HUGE, t->trial_huge, &where);
    where.memory = DCOMMI_MEMORY_REGISTERED;
    where.into = t->tuning.registered;
    dcommi_trials_all(t, dcommi_trial_registered, DCOMMI_TRIAL_REGISTERED,
                      dcommi_tune_registered(t), &where);
}

/* Free the memory of trials. */
static void dcommi_tune_trials_free(dcommi_tuner *t)
{
    dcommi_huge_release(t->trial_huge, dcommi_trial_huge_len());
    dcommi_free(t->trial);
}

#endif
