/* tune_measure.h - measuring what things cost on a communicator, and agreeing on it: rank 0's times
 * count, all ranks take part in the same probes. */
#ifndef DCOMMI_TUNE_MEASURE_H
#define DCOMMI_TUNE_MEASURE_H

#include "tune_probe.h"

#define DCOMMI_TUNE_LONGEST (1 << 20)  /* bytes of a probe within a host */
#define DCOMMI_TUNE_FARTHEST (4 << 20) /* and between hosts */
#define DCOMMI_TUNE_REPEATS 5          /* of each probe, the first of which only warms up */
#define DCOMMI_TUNE_FAR_S 0.04         /* after so long no longer message is tried between hosts */
#define DCOMMI_TUNE_NEAR_S 0.02        /* the same within a host */

typedef struct dcommi_tuner {
    dcomm_comm *comm; /* for the probes alone */
    dcomm_tuning tuning;
    uint8_t *in, *out;
    dcomm_status status; /* the first error; nothing is run after it */
    double step;         /* seconds, as are the following, which are rank 0's */
    double signal, empty;
} dcommi_tuner;

static int64_t dcommi_ps(double seconds)
{
    double ps = seconds * 1e12 + 0.5;
    return !(ps > 0) ? 0 : ps > 1e15 ? (int64_t)1e15 : (int64_t)ps;
}

/* ---- one probe ---- */

/* Seconds of one trip on this rank: the second fastest of many repeats, the fastest of few. A core
 * that was taken away for a while says nothing. */
static double dcommi_tune_time(dcommi_tuner *t, const dcommi_probe *p, int repeats)
{
    dcomm_comm *comm = t->comm;
    dcomm_plan *plan = NULL;
    double first = 1e9, second = 1e9;
    int partner = p->kind < DCOMMI_PROBE_SIGNALS || p->kind >= DCOMMI_PROBE_COPY
                      ? -1
                      : dcommi_probe_partner(comm->groups, comm->rank, p->depth);
    if (p->alone && comm->rank != 0 && partner != 0) {
        partner = -1;
    }
    if (t->status >= 0) {
        t->status = dcommi_probe_plan(p, comm->rank, comm->size, partner, &plan);
    }
    for (int i = 0; i < repeats && t->status >= 0; i++) {
        double start = dcommi_now();
        t->status = dcommi_probe_run(comm, plan, t->in, t->out);
        double took = dcommi_now() - start;
        if (i > 0) {
            second = took < first ? first : took < second ? took : second;
            first = took < first ? took : first;
        }
    }
    dcommi_free(plan);
    return (repeats >= DCOMMI_TUNE_REPEATS ? second : first) / (double)p->trips;
}

/* Everybody gets rank 0's bytes. */
static void dcommi_tune_share(dcommi_tuner *t, void *data, size_t bytes)
{
    dcomm_comm *comm = t->comm;
    dcomm_plan *plan = NULL;
    dcommi_shape s = {.coll = DCOMM_COLL_BROADCAST,
                      .rank = comm->rank,
                      .nranks = comm->size,
                      .dtype = DCOMM_U8,
                      .count = bytes,
                      .in_place = true,
                      .lanes = 1};
    if (t->status >= 0) {
        t->status = dcommi_plan_make(&s, dcommi_algo_find(DCOMM_COLL_BROADCAST, "binomial"), &plan);
    }
    if (t->status >= 0) {
        t->status = dcommi_probe_run(comm, plan, data, data);
    }
    dcommi_free(plan);
}

/* Whether to go on to longer probes: rank 0 looks at its clock. */
static bool dcommi_tune_goes_on(dcommi_tuner *t, double until)
{
    uint64_t on = dcommi_now() < until;
    dcommi_tune_share(t, &on, sizeof on);
    return t->status >= 0 && on != 0;
}

/* ---- curves ---- */

/* No less for more bytes, however the measurements fell out. */
static void dcommi_tune_point(dcomm_curve *c, int64_t bytes, double seconds)
{
    if (c->n < DCOMM_CURVE_POINTS) {
        int64_t least = c->n > 0 ? c->ps[c->n - 1] : 0;
        c->bytes[c->n] = bytes;
        c->ps[c->n++] = dcommi_max64(dcommi_ps(seconds), least);
    }
}

static int64_t dcommi_tune_trips(int64_t len)
{
    return len <= 4096 ? 16 : len <= 65536 ? 4 : 1;
}

/* The parts of a short message and of a signal. */
static double dcommi_tune_short(dcommi_tuner *t, dcomm_link *link, int depth, bool alone)
{
    dcommi_probe p = {DCOMMI_PROBE_SIGNALS, 0, 32, depth, alone};
    if (link->by_core == 0) {
        p.trips = 8;
    }
    double signal = dcommi_tune_time(t, &p, DCOMMI_TUNE_REPEATS);
    p.kind = DCOMMI_PROBE_MESSAGES;
    p.len = 8;
    double message = dcommi_tune_time(t, &p, DCOMMI_TUNE_REPEATS);
    p.kind = DCOMMI_PROBE_BURSTS;
    p.trips = 8;
    double burst = dcommi_tune_time(t, &p, DCOMMI_TUNE_REPEATS);
    /* Each message more is two steps more, and work at both ends, which both are. */
    double overhead = ((burst - message) / (DCOMMI_PROBE_BURST - 1) - 2 * t->step) / 2;
    overhead = overhead < 0 ? 0 : overhead > message / 3 ? message / 3 : overhead;
    link->overhead_ps = dcommi_ps(overhead);
    link->alpha_ps = dcommi_ps(message - 2 * overhead - 3 * t->step);
    double tell = signal / 4 < overhead ? signal / 4 : overhead;
    link->tell_ps = dcommi_ps(tell);
    link->signal_ps = dcommi_ps(signal - tell - 2 * t->step);
    t->signal = signal;
    return message;
}

/* Within a host: messages as they are and folded, memory read and folded. */
static void dcommi_tune_near(dcommi_tuner *t, dcomm_link *link, int depth)
{
    static const int64_t sizes[] = {512, 2048, 8192, 16384, 65536, 262144, 1 << 20};
    double until = dcommi_now() + DCOMMI_TUNE_NEAR_S;
    double least = dcommi_tune_short(t, link, depth, false);
    link->message.n = link->fold.n = link->read.n = link->reduce.n = 0;
    dcommi_tune_point(&link->message, 8, 0);
    dcommi_tune_point(&link->fold, 8, 0);
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        int64_t len = sizes[i];
        int repeats = len <= 65536 ? DCOMMI_TUNE_REPEATS : 4;
        if (len > 16384 && !dcommi_tune_goes_on(t, until)) {
            break;
        }
        dcommi_probe p = {DCOMMI_PROBE_MESSAGES, len, dcommi_tune_trips(len), depth, false};
        double message = dcommi_tune_time(t, &p, repeats);
        p.kind = DCOMMI_PROBE_FOLDS;
        double folded = dcommi_tune_time(t, &p, repeats);
        double waits = link->eager_bytes > 0 && len > link->eager_bytes ? t->signal : 0;
        dcommi_tune_point(&link->message, len, message - least - waits);
        dcommi_tune_point(&link->fold, len, folded - message);
        if (len >= 2048) {
            double around = (2 * t->signal + t->empty) / (double)p.trips;
            p.kind = DCOMMI_PROBE_READS;
            dcommi_tune_point(&link->read, len, dcommi_tune_time(t, &p, repeats) - around);
            p.kind = DCOMMI_PROBE_REDUCES;
            dcommi_tune_point(&link->reduce, len, dcommi_tune_time(t, &p, repeats) - around);
        }
    }
}

/* How many of rank 0's host have a partner on another one. */
static int dcommi_tune_crowd(const dcommi_groups *g)
{
    int n = 0;
    for (int r = 0; r < g->nranks; r++) {
        n += dcommi_group_of(g, 0, r) == 0 && dcommi_probe_partner(g, r, 0) >= 0;
    }
    return n;
}

/* Between hosts: one pair alone, then all at once through the same interfaces. */
static void dcommi_tune_far(dcommi_tuner *t, dcomm_link *link)
{
    int64_t len = 4096, last = 0;
    int crowd = dcommi_tune_crowd(t->comm->groups);
    double until = dcommi_now() + DCOMMI_TUNE_FAR_S, least = dcommi_tune_short(t, link, 0, true);
    link->message.n = link->shared.n = 0;
    link->eager_bytes = 0; /* what long messages wait for is in the times of the probes */
    dcommi_tune_point(&link->message, 8, 0);
    while (len <= DCOMMI_TUNE_FARTHEST && (len == 4096 || dcommi_tune_goes_on(t, until))) {
        dcommi_probe p = {DCOMMI_PROBE_MESSAGES, len, len <= 65536 ? 4 : 1, 0, true};
        double took = dcommi_tune_time(t, &p, 3) - least;
        dcommi_tune_point(&link->message, len, took);
        last = len;
        len *= 4;
    }
    /* A shaped link lets a burst through faster than it can go on: the last, longest probe has
     * seen the rate, and shorter messages in a stream go at that rate. */
    double slope =
        link->message.n > 0 ? (double)link->message.ps[link->message.n - 1] / (double)last : 0;
    for (int64_t i = 1; i < link->message.n && t->status >= 0; i++) {
        int64_t least_ps = (int64_t)(slope * (double)link->message.bytes[i]);
        link->message.ps[i] = dcommi_max64(link->message.ps[i], least_ps);
    }
    dcommi_tune_point(&link->shared, 0, 0);
    double each = 1e-12 * slope * (double)last;
    if (crowd > 1) {
        dcommi_probe p = {DCOMMI_PROBE_MESSAGES, last, 1, 0, false};
        each = (dcommi_tune_time(t, &p, 3) - least) / crowd;
    }
    dcommi_tune_point(&link->shared, last > 0 ? last : 1, each);
}

/* Work in a rank's own memory, on all ranks at once, as in a collective. */
static void dcommi_tune_local(dcommi_tuner *t)
{
    static const int64_t sizes[] = {512, 8192, 65536, 1 << 20};
    dcommi_probe p = {DCOMMI_PROBE_STEPS, 0, 64, 0, false};
    dcommi_probe nothing = {DCOMMI_PROBE_NOTHING, 0, 1, 0, false};
    t->empty = dcommi_tune_time(t, &nothing, DCOMMI_TUNE_REPEATS);
    t->step = dcommi_tune_time(t, &p, DCOMMI_TUNE_REPEATS) - t->empty / (double)p.trips;
    t->step = t->step > 0 ? t->step : 0;
    t->tuning.step_ps = dcommi_ps(t->step);
    t->tuning.call_ps = dcommi_ps(t->empty);
    t->tuning.copy.n = t->tuning.fold.n = 0;
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        p = (dcommi_probe){DCOMMI_PROBE_COPY, sizes[i], dcommi_tune_trips(sizes[i]), 0, false};
        double around = t->empty / (double)p.trips + t->step;
        dcommi_tune_point(&t->tuning.copy, sizes[i], dcommi_tune_time(t, &p, 4) - around);
        p.kind = DCOMMI_PROBE_FOLD;
        dcommi_tune_point(&t->tuning.fold, sizes[i], dcommi_tune_time(t, &p, 4) - around);
    }
}

/* ---- all of it ---- */

/* Run the probes; every rank returns, with rank 0's findings on rank 0. */
static void dcommi_tune_probe_all(dcommi_tuner *t)
{
    const dcommi_groups *g = t->comm->groups;
    int known = -1;
    size_t most = t->comm->nhosts > 1 ? DCOMMI_TUNE_FARTHEST : DCOMMI_TUNE_LONGEST;
    t->in = dcommi_alloc(most);
    t->out = dcommi_alloc(most);
    if (t->in == NULL || t->out == NULL) {
        t->status = DCOMM_ERR_NO_MEMORY;
        return;
    }
    dcommi_tune_local(t);
    for (int depth = g->nlevels; depth >= 0; depth--) {
        int kind = depth < g->nlevels ? g->kind[depth] : (int)DCOMM_LINK_NEAR;
        if (dcommi_probe_partner(g, 0, depth) < 0) {
            continue; /* rank 0 has nobody there */
        }
        if (kind == DCOMM_LINK_HOST) {
            dcommi_tune_far(t, &t->tuning.link[kind]);
            t->tuning.link[kind].fold = t->tuning.fold;
        } else {
            dcommi_tune_near(t, &t->tuning.link[kind], depth);
            /* Until a longer way is measured, it is taken to cost what this one does. */
            int first = known < 0 ? DCOMM_LINK_NEAR : kind;
            for (int k = DCOMM_LINK_HOST + 1; k <= first; k++) {
                t->tuning.link[k] = t->tuning.link[kind];
            }
            known = kind;
        }
    }
    snprintf(t->tuning.source, sizeof t->tuning.source, "measured by %d ranks on %d host%s",
             t->comm->size, t->comm->nhosts, t->comm->nhosts == 1 ? "" : "s");
}

/* What rank 0 of this process has measured before, by who was where. */
typedef struct dcommi_tuned {
    struct dcommi_tuned *next;
    uint64_t hosts;
    dcomm_tuning tuning;
} dcommi_tuned;

static pthread_mutex_t dcommi_tuned_lock = PTHREAD_MUTEX_INITIALIZER;
static dcommi_tuned *dcommi_tuned_list;

static uint64_t dcommi_tuned_key(const dcomm_comm *comm)
{
    const dcommi_groups *g = comm->groups;
    uint64_t key = dcommi_mix((uint64_t)g->nlevels, (uint64_t)comm->size);
    for (int r = 0; r < comm->size; r++) {
        for (const char *c = comm->members[r].hostname; *c != 0; c++) {
            key = dcommi_mix(key, (uint64_t)*c);
        }
        for (int l = 0; l < g->nlevels; l++) {
            key = dcommi_mix(key, (uint64_t)dcommi_group_of(g, l, r) << 8 | g->kind[l]);
        }
    }
    return key;
}

static bool dcommi_tuned_find(uint64_t key, dcomm_tuning *tuning)
{
    bool found = false;
    pthread_mutex_lock(&dcommi_tuned_lock);
    for (dcommi_tuned *k = dcommi_tuned_list; k != NULL && !found; k = k->next) {
        if (k->hosts == key) {
            *tuning = k->tuning;
            found = true;
        }
    }
    pthread_mutex_unlock(&dcommi_tuned_lock);
    return found;
}

static void dcommi_tuned_add(uint64_t key, const dcomm_tuning *tuning)
{
    dcommi_tuned *k = dcommi_alloc(sizeof *k);
    if (k != NULL) {
        pthread_mutex_lock(&dcommi_tuned_lock);
        k->hosts = key;
        k->tuning = *tuning;
        k->next = dcommi_tuned_list;
        dcommi_tuned_list = k;
        pthread_mutex_unlock(&dcommi_tuned_lock);
    }
}

/* All ranks of comm take rank 0's numbers: `given` there, else those of its process or its file,
 * else what is measured now. Runs on a communicator of its own, so that nothing of it shows. */
static dcomm_status dcommi_comm_tune(dcomm_comm *comm, const dcomm_tuning *given, bool again)
{
    if (comm->size == 1) {
        return DCOMM_OK;
    }
    dcommi_tuner *t = dcommi_alloc(sizeof *t);
    int *ranks = dcommi_calloc((size_t)comm->size, sizeof *ranks);
    dcomm_status status = t == NULL || ranks == NULL ? DCOMM_ERR_NO_MEMORY : DCOMM_OK;
    for (int r = 0; status >= 0 && r < comm->size; r++) {
        ranks[r] = r;
    }
    if (status >= 0) {
        uint64_t salt = dcommi_mix(dcommi_comm_next_child(comm), 0x74756e696e67u);
        status = dcommi_comm_derive(comm, ranks, comm->size, salt, &t->comm);
    }
    if (status < 0) {
        dcommi_free(ranks);
        dcommi_free(t);
        return status;
    }
    struct {
        uint64_t measure;
        dcomm_tuning tuning;
    } word = {1, {.step_ps = 0}};
    uint64_t key = dcommi_tuned_key(comm);
    const char *path = getenv("DCOMM_TUNE_FILE");
    if (comm->rank == 0 && given != NULL) {
        word.tuning = *given;
        word.measure = 0;
    } else if (comm->rank == 0 && !again && path != NULL && path[0] != 0) {
        word.measure = dcomm_tuning_load(path, &word.tuning) < 0;
        if (word.measure != 0) {
            dcommi_log(DCOMMI_LOG_WARN, "DCOMM_TUNE_FILE: %s; measuring instead", dcommi_message);
        }
    } else if (comm->rank == 0 && !again) {
        word.measure = !dcommi_tuned_find(key, &word.tuning);
    }
    dcommi_tune_share(t, &word, sizeof word);
    if (t->status >= 0 && word.measure != 0) {
        dcomm_tuning_default(&t->tuning);
        dcommi_tune_probe_all(t);
        word.tuning = t->tuning;
        dcommi_tune_share(t, &word, sizeof word);
        if (t->status >= 0 && comm->rank == 0) {
            dcommi_tuned_add(key, &word.tuning);
        }
    }
    status = t->status;
    pthread_mutex_lock(&comm->lock);
    if (status >= 0) {
        status = dcommi_chooser_set(comm->chooser, comm->groups, comm->size, &word.tuning);
        dcommi_cache_clear(comm);
    }
    pthread_mutex_unlock(&comm->lock);
    dcomm_comm_destroy(&t->comm);
    dcommi_free(t->in);
    dcommi_free(t->out);
    dcommi_free(t);
    dcommi_free(ranks);
    return status;
}

/* At the end of creation. What fails here has failed the communicator: ranks that choose by
 * different numbers must not meet. */
static void dcommi_comm_tune_new(dcomm_comm *comm)
{
    dcomm_status status = comm->tunes ? dcommi_comm_tune(comm, NULL, false) : DCOMM_OK;
    if (status < 0) {
        char text[DCOMMI_MESSAGE_MAX];
        snprintf(text, sizeof text, "%s", dcommi_message);
        dcommi_token_take(comm->context);
        dcommi_poison(comm, status, -1, text);
        dcommi_token_release(comm->context);
    }
}

DCOMM_API dcomm_status dcomm_comm_tune(dcomm_comm *comm, const dcomm_tuning *tuning)
{
    DCOMMI_TRY(dcommi_check_comm(comm));
    DCOMMI_TRY(dcommi_check_no_group("dcomm_comm_tune"));
    return dcommi_comm_tune(comm, tuning, true);
}

#endif
