/* model.h - the network on which plans are priced: times as functions of bytes, the link between
 * two ranks, and the ranks that are alike. All times are integer picoseconds, so that every rank
 * computes the same prices. */
#ifndef DCOMMI_MODEL_H
#define DCOMMI_MODEL_H

#include "device.h"

#include <stddef.h>

_Static_assert((int)DCOMMI_LEVEL_HOST == (int)DCOMM_LINK_HOST &&
                   (int)DCOMMI_LEVEL_CORE == (int)DCOMM_LINK_CORE,
               "links are named after the level at which two ranks part");

/* ---- times as functions of bytes ---- */

#define DCOMMI_MODEL_MOST (INT64_MAX >> 10) /* ps; the longest duration: two and a half hours */
#define DCOMMI_SLOPE_MOST 1000000000000     /* ps per MiB: 1 us per byte */

/* A dcomm_curve with its slopes: ps per MiB from each point on. */
typedef struct dcommi_curve {
    int64_t n;
    int64_t from[DCOMM_CURVE_POINTS], ps[DCOMM_CURVE_POINTS], slope[DCOMM_CURVE_POINTS];
} dcommi_curve;

static dcommi_curve dcommi_curve_make(const dcomm_curve *c)
{
    dcommi_curve k = {.n = c->n};
    for (int64_t i = 0; i < c->n; i++) {
        k.from[i] = c->bytes[i];
        k.ps[i] = c->ps[i];
        if (i + 1 < c->n) {
            /* The product may exceed 64 bits, so use double. Every machine rounds it alike. */
            double slope = (double)(c->ps[i + 1] - c->ps[i]) * 1048576.0 /
                           (double)(c->bytes[i + 1] - c->bytes[i]);
            slope = slope > DCOMMI_SLOPE_MOST ? DCOMMI_SLOPE_MOST : slope;
            k.slope[i] = (int64_t)(slope < -DCOMMI_SLOPE_MOST ? -DCOMMI_SLOPE_MOST : slope);
        } else if (i > 0) {
            k.slope[i] = dcommi_max64(k.slope[i - 1], 0);
        }
    }
    return k;
}

/* Return the time for so many bytes, in ps; at most about DCOMMI_MODEL_MOST. */
static inline int64_t dcommi_curve_at(const dcommi_curve *k, int64_t bytes)
{
    if (k->n == 0) {
        return 0;
    }
    int64_t i = k->n - 1;
    while (i > 0 && bytes < k->from[i]) {
        i--;
    }
    int64_t more = dcommi_max64(bytes - k->from[i], 0), whole;
    if (__builtin_mul_overflow(more >> 20, k->slope[i], &whole) || whole > DCOMMI_MODEL_MOST) {
        return DCOMMI_MODEL_MOST;
    }
    return k->ps[i] + whole + (((more & 1048575) * k->slope[i]) >> 20);
}

/* Return true if the points of a curve ascend, and no time is negative or so long that sums could
 * overflow. */
static bool dcommi_curve_valid(const dcomm_curve *c)
{
    bool good = c->n >= 0 && c->n <= DCOMM_CURVE_POINTS;
    for (int64_t i = 0; good && i < c->n; i++) {
        good = c->ps[i] >= 0 && c->ps[i] <= DCOMMI_MODEL_MOST && c->bytes[i] >= 0 &&
               (i == 0 || c->bytes[i] > c->bytes[i - 1]);
    }
    return good;
}

/* ---- the network ---- */

typedef struct dcommi_link {
    int64_t alpha, overhead, signal, tell, eager;
    /* Device memory: time of a message beside the network, to leave one device and to enter the
     * other. `straight`: the same for long messages and exposed memory, which UCX may move. */
    int64_t stage, straight;
    bool by_core, mapped; /* mapped: exposed memory is folded in place */
    bool open;            /* device memory that kernels of the peer read in place */
    dcommi_curve message, fold, read, reduce, shared, sustained;
} dcommi_link;

/* The network of a set of ranks. Ranks r and r + period are alike. If the plans of all ranks look
 * the same, only the first `period` ranks are priced; they stand for the others. period == nranks:
 * no rank stands for another. */
typedef struct dcommi_terrain {
    const dcommi_groups *groups; /* NULL: all ranks are near each other */
    int nranks, period;
    bool slots; /* shared scratch is host memory, which the ranks of the host map */
    bool posts; /* a message or signal to all ranks travels by a broadcast slot */
    bool rough; /* a rank shares a port with one that stands for it: prices are less exact */
    dcommi_link link[DCOMM_LINK_COUNT];
    dcommi_curve copy, fold;
    dcommi_curve open_read, open_reduce; /* of a peer's device memory */
    int64_t step, call;
} dcommi_terrain;

static bool dcommi_trials_valid(const dcomm_trial *trials)
{
    bool good = true;
    for (int i = 0; i < DCOMM_TRIALS && good; i++) {
        good = dcommi_curve_valid(&trials[i].took) &&
               memchr(trials[i].algo, 0, sizeof trials[i].algo) != NULL;
    }
    return good;
}

/* A field of a link or of a tuning, and its name in files. kind: T microseconds, N a number, C a
 * curve. */
typedef struct dcommi_tuning_field {
    const char *key;
    char kind;
    size_t at;
} dcommi_tuning_field;

#define DCOMMI_FIELD(type, key, field, kind) \
    {                                        \
        key, kind, offsetof(type, field)     \
    }
static const dcommi_tuning_field dcommi_link_fields[] = {
    DCOMMI_FIELD(dcomm_link, "alpha_us", alpha_ps, 'T'),
    DCOMMI_FIELD(dcomm_link, "overhead_us", overhead_ps, 'T'),
    DCOMMI_FIELD(dcomm_link, "signal_us", signal_ps, 'T'),
    DCOMMI_FIELD(dcomm_link, "tell_us", tell_ps, 'T'),
    DCOMMI_FIELD(dcomm_link, "eager_bytes", eager_bytes, 'N'),
    DCOMMI_FIELD(dcomm_link, "by_core", by_core, 'N'),
    DCOMMI_FIELD(dcomm_link, "message", message, 'C'),
    DCOMMI_FIELD(dcomm_link, "fold", fold, 'C'),
    DCOMMI_FIELD(dcomm_link, "read", read, 'C'),
    DCOMMI_FIELD(dcomm_link, "reduce", reduce, 'C'),
    DCOMMI_FIELD(dcomm_link, "mapped_read", mapped_read, 'C'),
    DCOMMI_FIELD(dcomm_link, "mapped_reduce", mapped_reduce, 'C'),
    DCOMMI_FIELD(dcomm_link, "huge_read", huge_read, 'C'),
    DCOMMI_FIELD(dcomm_link, "huge_reduce", huge_reduce, 'C'),
    DCOMMI_FIELD(dcomm_link, "shared", shared, 'C'),
    DCOMMI_FIELD(dcomm_link, "sustained", sustained, 'C'),
    {NULL, 0, 0},
};
static const dcommi_tuning_field dcommi_tuning_fields[] = {
    DCOMMI_FIELD(dcomm_tuning, "copy", copy, 'C'),
    DCOMMI_FIELD(dcomm_tuning, "fold", fold, 'C'),
    DCOMMI_FIELD(dcomm_tuning, "device_stage_us", device_stage_ps, 'T'),
    DCOMMI_FIELD(dcomm_tuning, "device_ucx", device_ucx, 'N'),
    DCOMMI_FIELD(dcomm_tuning, "device_ucx_us", device_ucx_ps, 'T'),
    DCOMMI_FIELD(dcomm_tuning, "device_copy", device_copy, 'C'),
    DCOMMI_FIELD(dcomm_tuning, "device_fold", device_fold, 'C'),
    DCOMMI_FIELD(dcomm_tuning, "device_read", device_read, 'C'),
    DCOMMI_FIELD(dcomm_tuning, "device_reduce", device_reduce, 'C'),
    DCOMMI_FIELD(dcomm_tuning, "step_us", step_ps, 'T'),
    DCOMMI_FIELD(dcomm_tuning, "call_us", call_ps, 'T'),
    DCOMMI_FIELD(dcomm_tuning, "connections", connections, 'N'),
    DCOMMI_FIELD(dcomm_tuning, "tried", tried, 'N'),
    {NULL, 0, 0},
};
#undef DCOMMI_FIELD

static bool dcommi_fields_valid(const dcommi_tuning_field *field, const void *of)
{
    bool good = true;
    for (; good && field->key != NULL; field++) {
        const void *at = (const char *)of + field->at;
        int64_t most = field->kind == 'T' ? DCOMMI_MODEL_MOST : INT64_MAX;
        good = field->kind == 'C' ? dcommi_curve_valid(at)
                                  : *(const int64_t *)at >= 0 && *(const int64_t *)at <= most;
    }
    return good;
}

static dcomm_status dcommi_tuning_check(const dcomm_tuning *t)
{
    bool good = dcommi_fields_valid(dcommi_tuning_fields, t) &&
                t->connections <= DCOMM_CONNECTIONS_MAX && dcommi_trials_valid(t->trial) &&
                dcommi_trials_valid(t->huge) && dcommi_trials_valid(t->registered);
    for (int k = 0; k < DCOMM_LINK_COUNT && good; k++) {
        good = dcommi_fields_valid(dcommi_link_fields, &t->link[k]);
    }
    return good ? DCOMM_OK
                : dcommi_fail(
                      DCOMM_ERR_INVALID,
                      "tuning: a time is negative or beyond two hours, the points of a curve do "
                      "not ascend, or there are more than %d connections",
                      DCOMM_CONNECTIONS_MAX);
}

/* Return the trials of an algorithm. If it has none, give it the first free place. NULL: no place
 * is free, or the name is empty or too long. */
static dcomm_trial *dcommi_trial_slot(dcomm_trial *trials, const char *algo)
{
    size_t len = strlen(algo);
    for (int i = 0; i < DCOMM_TRIALS && len > 0 && len < sizeof trials[i].algo; i++) {
        if (trials[i].algo[0] == 0) {
            memcpy(trials[i].algo, algo, len + 1);
        }
        if (strcmp(trials[i].algo, algo) == 0) {
            return &trials[i];
        }
    }
    return NULL;
}

/* Return true if adding `shift` to every rank, modulo nranks, maps each group into one group. `to`
 * has room for the groups of a level. */
static bool dcommi_groups_shift(const dcommi_groups *g, int shift, int32_t *to)
{
    for (int l = 0; l < g->nlevels; l++) {
        for (int i = 0; i < g->count[l]; i++) {
            to[i] = -1;
        }
        for (int r = 0; r < g->nranks; r++) {
            int32_t from = dcommi_group_of(g, l, r);
            int32_t at = dcommi_group_of(g, l, (r + shift) % g->nranks);
            if (to[from] >= 0 && to[from] != at) {
                return false;
            }
            to[from] = at;
        }
    }
    return true;
}

/* Find the smallest shift that maps groups to groups. */
static dcomm_status dcommi_groups_period(const dcommi_groups *g, int nranks, int *period)
{
    *period = g == NULL ? 1 : nranks;
    if (g == NULL) {
        return DCOMM_OK;
    }
    int32_t *to = dcommi_calloc((size_t)nranks, sizeof *to);
    if (to == NULL) {
        return DCOMM_ERR_NO_MEMORY;
    }
    for (int p = 1; p < *period; p++) {
        if (nranks % p == 0 && dcommi_groups_shift(g, p, to)) {
            *period = p;
        }
    }
    dcommi_free(to);
    return DCOMM_OK;
}

/* Return true if a rank shares a port with one that stands for it. */
static bool dcommi_terrain_rough(const dcommi_terrain *t)
{
    const dcommi_groups *g = t->groups;
    for (int l = 0; g != NULL && l < g->nlevels; l++) {
        for (int r = t->period; t->link[g->kind[l]].shared.n > 0 && r < t->nranks; r++) {
            if (dcommi_group_of(g, l, r) == dcommi_group_of(g, l, r % t->period)) {
                return true;
            }
        }
    }
    return false;
}

/* Make the network for a tuning. memory: the kind of memory of the ranks' buffers. */
static dcomm_status dcommi_terrain_make(const dcommi_groups *groups, int nranks,
                                        const dcomm_tuning *t, enum dcommi_memory memory,
                                        dcommi_terrain *terrain)
{
    DCOMMI_TRY(dcommi_tuning_check(t));
    dcomm_tuning there;
    const bool device = dcommi_memory_of_device(memory);
    if (device) {
        there = dcommi_tuning_on_device(t);
        t = &there;
    }
    const int kind = device ? DCOMMI_MEMORY_ANY : memory;
    memset(terrain, 0, sizeof *terrain);
    terrain->groups = groups;
    terrain->slots = !device;
    terrain->posts = !device && dcommi_groups_post(groups, nranks);
    terrain->nranks = nranks;
    DCOMMI_TRY(dcommi_groups_period(groups, nranks, &terrain->period));
    for (int k = 0; k < DCOMM_LINK_COUNT; k++) {
        const dcomm_link *from = &t->link[k];
        dcommi_link *to = &terrain->link[k];
        to->alpha = from->alpha_ps;
        to->overhead = from->overhead_ps;
        to->signal = from->signal_ps;
        to->tell = from->tell_ps;
        to->eager = from->eager_bytes > 0 ? from->eager_bytes : INT64_MAX;
        to->stage = device ? t->device_stage_ps : 0;
        to->straight =
            k == DCOMM_LINK_HOST && dcommi_memory_by_ucx(t, memory) ? t->device_ucx_ps : to->stage;
        to->open = memory == DCOMMI_MEMORY_OPEN && k != DCOMM_LINK_HOST;
        to->by_core = from->by_core != 0;
        to->message = dcommi_curve_make(&from->message);
        to->fold = dcommi_curve_make(&from->fold);
        const dcomm_curve *read[] = {&from->read, &from->huge_read, &from->mapped_read};
        const dcomm_curve *fold[] = {&from->reduce, &from->huge_reduce, &from->mapped_reduce};
        to->mapped = memory == DCOMMI_MEMORY_REGISTERED && from->mapped_reduce.n > 0;
        to->reduce = dcommi_curve_make(fold[kind]->n > 0 ? fold[kind] : &from->reduce);
        to->read = dcommi_curve_make(read[kind]->n > 0 ? read[kind] : &from->read);
        to->shared = dcommi_curve_make(&from->shared);
        to->sustained = dcommi_curve_make(&from->sustained);
    }
    terrain->copy = dcommi_curve_make(&t->copy);
    terrain->fold = dcommi_curve_make(&t->fold);
    terrain->open_read = dcommi_curve_make(&t->device_read);
    terrain->open_reduce = dcommi_curve_make(&t->device_reduce);
    terrain->step = t->step_ps;
    terrain->call = t->call_ps;
    terrain->rough = dcommi_terrain_rough(terrain);
    return DCOMM_OK;
}

/* Return the number of levels at which two ranks are in the same group: the level at which they
 * part. */
static inline int dcommi_terrain_depth(const dcommi_terrain *t, int a, int b)
{
    return t->groups != NULL ? dcommi_groups_depth(t->groups, a, b) : 0;
}

/* Return the kind of link between ranks that part at level `depth`. */
static inline int dcommi_terrain_kind(const dcommi_terrain *t, int depth)
{
    return t->groups != NULL && depth < t->groups->nlevels ? t->groups->kind[depth]
                                                           : (int)DCOMM_LINK_NEAR;
}

#endif
