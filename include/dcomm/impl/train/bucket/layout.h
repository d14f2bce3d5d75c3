/* layout.h - check and copy the registered parameters, and deal them into buckets. */
#ifndef DCOMMI_BUCKET_LAYOUT_H
#define DCOMMI_BUCKET_LAYOUT_H

#include "memory.h"

#include <fnmatch.h>

/* ---- parameters ---- */

static dcomm_status dcommi_bkt_check_opts(const dcomm_buckets_opts *o)
{
    const dcomm_coll_opts *c = &o->coll;
    const char *wrong =
        o->nrules > 0 && o->rules == NULL ? "opts.rules is NULL and opts.nrules is not 0"
        : o->sum + o->weighted + o->predivide > 1
            ? "opts.sum and opts.weighted and opts.predivide exclude each other"
        : c->premul != 0 || c->premul_p != NULL || c->codec != NULL || c->feedback != NULL ||
                c->codec_step != 0 || c->codec_report != NULL || c->codec_ledger != NULL ||
                c->stream != NULL
            ? "opts.coll has a codec, a feedback, a report, a ledger, a stream or a factor; "
              "buckets have their own"
        : o->sharded && o->rebuild
            ? "opts.sharded and opts.rebuild exclude each other: shards would change hands"
        : !(c->timeout_s >= 0) || c->lanes < 0 || c->chunk_bytes > (size_t)INT64_MAX / 2
            ? "opts.coll has a timeout_s or lanes below 0, or chunk_bytes beyond all memory"
            : NULL;
    for (size_t i = 0; wrong == NULL && i < o->nrules; i++) {
        const dcomm_bucket_rule *rule = &o->rules[i];
        bool exact = rule->codec == NULL || strcmp(rule->codec, "none") == 0;
        if (rule->feedback != NULL && (exact || rule->no_feedback)) {
            return dcommi_fail(
                DCOMM_ERR_INVALID,
                "dcomm_buckets_create: opts.rules[%zu] (\"%s\") has feedback, and %s", i,
                rule->match != NULL ? rule->match : "", exact ? "no codec" : "no_feedback is set");
        }
    }
    return wrong == NULL ? DCOMM_OK
                         : dcommi_fail(DCOMM_ERR_INVALID, "dcomm_buckets_create: %s", wrong);
}

/* Return the rule of a parameter; NULL: it has none, or names a codec itself. */
static const dcomm_bucket_rule *dcommi_bkt_rule(const dcomm_buckets_opts *o,
                                                const dcomm_bucket_param *given, const char *name)
{
    for (size_t i = 0; given->codec == NULL && i < o->nrules; i++) {
        if (o->rules[i].match != NULL && fnmatch(o->rules[i].match, name, 0) == 0) {
            return &o->rules[i];
        }
    }
    return NULL;
}

/* Return the spec of a parameter's codec; NULL: exact. */
static const char *dcommi_bkt_spec(const dcomm_buckets_opts *o, const dcomm_bucket_param *given,
                                   const dcomm_bucket_rule *rule)
{
    const char *spec = given->codec != NULL ? given->codec : rule != NULL ? rule->codec : o->codec;
    bool none = spec == NULL || strcmp(spec, "none") == 0 || given->dtype > DCOMM_BF16;
    return none ? NULL : spec;
}

static const dcomm_feedback_opts *dcommi_bkt_feedback(const dcomm_buckets_opts *o,
                                                      const dcomm_bucket_rule *rule)
{
    return rule != NULL && rule->no_feedback        ? NULL
           : rule != NULL && rule->feedback != NULL ? rule->feedback
                                                    : o->feedback;
}

/* The options of error feedback that change numbers. Kinds are told apart by these alone. */
typedef struct dcommi_bkt_feedback_words {
    uint64_t word[8];
} dcommi_bkt_feedback_words;

static dcommi_bkt_feedback_words dcommi_bkt_feedback_of(const dcommi_bkt_kind *kind)
{
    const dcomm_feedback_opts *o = &kind->feedback;
    dcommi_bkt_feedback_words w = {{0}};
    if (kind->has_feedback) {
        const uint64_t flags = 1 | (uint64_t)o->bf16 << 1 | (uint64_t)o->scale << 2;
        w = (dcommi_bkt_feedback_words){
            {flags, (uint64_t)o->variant, o->seed, o->tensor, o->warmup_steps}};
        memcpy(&w.word[5], &o->momentum, sizeof o->momentum);
        memcpy(&w.word[6], &o->clip, sizeof o->clip);
    }
    return w;
}

static bool dcommi_bkt_alike(const dcommi_bkt_kind *x, const dcommi_bkt_kind *y)
{
    const dcommi_bkt_feedback_words a = dcommi_bkt_feedback_of(x), b = dcommi_bkt_feedback_of(y);
    return x->dtype == y->dtype && x->place == y->place &&
           (x->codec == NULL) == (y->codec == NULL) &&
           (x->codec == NULL ||
            strcmp(dcomm_codec_spec(x->codec), dcomm_codec_spec(y->codec)) == 0) &&
           memcmp(&a, &b, sizeof a) == 0;
}

/* Find or add the kind of a parameter with a codec and its feedback (NULL: none). */
static dcomm_status dcommi_bkt_kind_of(dcomm_buckets *b, const dcommi_bkt_param *p,
                                       const char *spec, const dcomm_feedback_opts *feedback,
                                       size_t *kind_p)
{
    dcommi_bkt_kind kind = {.dtype = p->dtype, .place = p->place};
    if (spec != NULL) {
        DCOMMI_TRY(dcomm_codec_create(spec, &kind.codec));
        kind.has_feedback = feedback != NULL;
        kind.feedback = feedback != NULL ? *feedback : kind.feedback;
    }
    for (size_t i = 0; i < b->nkinds; i++) {
        if (dcommi_bkt_alike(&b->kinds[i], &kind)) {
            dcomm_codec_destroy(&kind.codec);
            *kind_p = i;
            return DCOMM_OK;
        }
    }
    dcomm_status status =
        dcommi_grow((void **)&b->kinds, &b->kinds_capacity, b->nkinds + 1, sizeof *b->kinds);
    if (status < 0) {
        dcomm_codec_destroy(&kind.codec);
        return status;
    }
    b->kinds[b->nkinds] = kind;
    *kind_p = b->nkinds++;
    return DCOMM_OK;
}

static int dcommi_bkt_by_name(const void *x, const void *y)
{
    const char *const *a = x, *const *c = y;
    return strcmp(*a, *c);
}

static dcomm_status dcommi_bkt_check_names(const dcomm_buckets *b)
{
    const char **sorted = dcommi_calloc(b->nparams, sizeof *sorted);
    dcomm_status status = DCOMM_OK;
    if (sorted == NULL) {
        return DCOMM_ERR_NO_MEMORY;
    }
    for (size_t i = 0; i < b->nparams; i++) {
        sorted[i] = b->params[i].name;
    }
    qsort(sorted, b->nparams, sizeof *sorted, dcommi_bkt_by_name);
    for (size_t i = 1; i < b->nparams && status == DCOMM_OK; i++) {
        if (strcmp(sorted[i - 1], sorted[i]) == 0) {
            status =
                dcommi_fail(DCOMM_ERR_INVALID,
                            "dcomm_buckets_create: two parameters are named \"%s\"", sorted[i]);
        }
    }
    dcommi_free(sorted);
    return status;
}

static dcomm_status dcommi_bkt_take_names(dcomm_buckets *b, const dcomm_bucket_param *params)
{
    size_t bytes = 0;
    for (size_t i = 0; i < b->nparams; i++) {
        bytes += params[i].name != NULL ? strlen(params[i].name) + 1 : 32;
    }
    char *at = b->names = dcommi_alloc(bytes);
    if (at == NULL) {
        return DCOMM_ERR_NO_MEMORY;
    }
    for (size_t i = 0; i < b->nparams; i++) {
        b->params[i].name = at;
        if (params[i].name != NULL) {
            size_t len = strlen(params[i].name) + 1;
            memcpy(at, params[i].name, len);
            at += len;
        } else {
            at += snprintf(at, 32, "param%zu", i) + 1;
        }
    }
    return dcommi_bkt_check_names(b);
}

static dcomm_status dcommi_bkt_take_param(dcomm_buckets *b, const dcomm_buckets_opts *o,
                                          const dcomm_bucket_param *given, dcommi_bkt_param *p)
{
    size_t element = dcomm_dtype_size(given->dtype), number = (size_t)(p - b->params);
    p->grad = given->grad;
    p->value = given->value;
    p->count = given->count;
    p->aside = given->aside;
    p->dtype = given->dtype;
    if (element == 0 || dcommi_dtype_is_opaque(given->dtype) ||
        given->count > (size_t)INT64_MAX / 4 / element || b->bytes > (size_t)INT64_MAX / 4) {
        return dcommi_fail(
            DCOMM_ERR_INVALID,
            "dcomm_buckets_create: parameter %zu, \"%s\", has dtype %d and count %zu", number,
            p->name, (int)given->dtype, given->count);
    }
    if ((o->weighted || o->predivide) && given->dtype > DCOMM_BF16) {
        return dcommi_fail(
            DCOMM_ERR_INVALID,
            "dcomm_buckets_create: parameter %zu, \"%s\", is of integers (%s), which "
            "have no weighted average and are not divided before the sum",
            number, p->name, dcomm_dtype_name(given->dtype));
    }
    p->bytes = given->count * element;
    b->bytes += p->bytes;
    const dcomm_bucket_rule *rule = dcommi_bkt_rule(o, given, p->name);
    DCOMMI_TRY(dcommi_bkt_locate(b, given->count > 0 ? given->grad : NULL, &p->place));
    dcomm_status status = dcommi_bkt_kind_of(b, p, dcommi_bkt_spec(o, given, rule),
                                             dcommi_bkt_feedback(o, rule), &p->kind);
    if (status < 0) {
        return dcommi_fail(status, "parameter %zu, \"%s\": %s", number, p->name,
                           dcomm_last_error());
    }
    const dcomm_codec *codec = b->kinds[p->kind].codec;
    if (o->sharded && codec != NULL &&
        (b->kinds[p->kind].has_feedback || !dcommi_coded_by_block(codec))) {
        return dcommi_fail(
            DCOMM_ERR_INVALID,
            "dcomm_buckets_create: parameter %zu, \"%s\", has codec %s%s, and "
            "opts.sharded sums by reduce-scatter, which takes codecs of blocks, such "
            "as qsgd, without feedback",
            number, p->name, dcomm_codec_spec(codec),
            b->kinds[p->kind].has_feedback ? " with feedback" : "");
    }
    if (o->sharded && number > 0 && b->has_values != (given->value != NULL)) {
        return dcommi_fail(
            DCOMM_ERR_INVALID,
            "dcomm_buckets_create: parameter %zu, \"%s\", has %s value, unlike those "
            "before it",
            number, p->name, given->value != NULL ? "a" : "no");
    }
    b->has_values = o->sharded && given->value != NULL;
    if (codec != NULL && codec->automatic && b->kinds[p->kind].has_feedback && o->rebuild) {
        return dcommi_fail(
            DCOMM_ERR_INVALID,
            "dcomm_buckets_create: parameter %zu, \"%s\": codec auto may be exact for "
            "the buckets of opts.rebuild, and would never send what error feedback "
            "has held back until then",
            number, p->name);
    }
    return dcommi_bkt_check_place(b, o, p);
}

/* Make the codec of dcomm_buckets_gather. */
static dcomm_status dcommi_bkt_take_value_codec(dcomm_buckets *b, const dcomm_buckets_opts *o)
{
    if (o->value_codec == NULL) {
        return DCOMM_OK;
    }
    DCOMMI_TRY(dcomm_codec_create(o->value_codec, &b->value_codec));
    return o->sharded && dcommi_coded_by_block(b->value_codec)
               ? DCOMM_OK
               : dcommi_fail(DCOMM_ERR_INVALID, "dcomm_buckets_create: opts.value_codec is %s; %s",
                             dcomm_codec_spec(b->value_codec),
                             o->sharded ? "an all-gather takes codecs of blocks, such as qsgd"
                                        : "it is for opts.sharded");
}

/* Check and copy all that the caller registers. */
static dcomm_status dcommi_bkt_take(dcomm_buckets *b, const dcomm_bucket_param *params,
                                    const dcomm_buckets_opts *o)
{
    DCOMMI_TRY(dcommi_bkt_check_opts(o));
    if (params == NULL && b->nparams > 0) {
        return dcommi_fail(DCOMM_ERR_INVALID, "dcomm_buckets_create: params is NULL, nparams %zu",
                           b->nparams);
    }
    DCOMMI_TRY(dcommi_bkt_take_names(b, params));
    for (size_t i = 0; i < b->nparams; i++) {
        DCOMMI_TRY(dcommi_bkt_take_param(b, o, &params[i], &b->params[i]));
    }
    DCOMMI_TRY(dcommi_bkt_take_value_codec(b, o));
    bool coded = o->codec != NULL || o->nrules > 0;
    for (size_t i = 0; i < b->nkinds && !coded; i++) {
        coded = b->kinds[i].codec != NULL;
    }
    return coded || o->feedback == NULL
               ? DCOMM_OK
               : dcommi_fail(DCOMM_ERR_INVALID,
                             "dcomm_buckets_create: opts.feedback is for codecs, "
                             "and there is none");
}

/* ---- buckets ---- */

static void dcommi_bkt_layout_free(dcommi_bkt_layout *layout)
{
    for (size_t i = 0; i < layout->n; i++) {
        dcommi_bkt *k = &layout->buckets[i];
        dcommi_bkt_free_memory(k);
        dcomm_feedback_destroy(&k->feedback);
        dcommi_free(k->durations);
        dcommi_free(k->shards);
        dcommi_free(k->params);
    }
    dcommi_free(layout->buckets);
    *layout = (dcommi_bkt_layout){0};
}

static dcomm_status dcommi_bkt_append(dcommi_bkt *k, size_t *capacity, size_t i,
                                      const dcommi_bkt_param *p)
{
    DCOMMI_TRY(dcommi_grow((void **)&k->params, capacity, k->nparams + 1, sizeof *k->params));
    k->params[k->nparams++] = i;
    k->count += p->count;
    k->bytes += p->bytes;
    return DCOMM_OK;
}

static int dcommi_bkt_by_close(const void *x, const void *y)
{
    const dcommi_bkt *a = x, *c = y;
    return (a->closed_at > c->closed_at) - (a->closed_at < c->closed_at);
}

static int dcommi_bkt_by_number(const void *x, const void *y)
{
    const size_t *a = x, *c = y;
    return (*a > *c) - (*a < *c);
}

/* Move all of bucket `from`, which is empty then, into bucket `to`. */
static dcomm_status dcommi_bkt_pour(const dcomm_buckets *b, dcommi_bkt *from, dcommi_bkt *to,
                                    size_t *room)
{
    for (size_t j = 0; j < from->nparams; j++) {
        DCOMMI_TRY(dcommi_bkt_append(to, room, from->params[j], &b->params[from->params[j]]));
    }
    to->closed_at = from->closed_at > to->closed_at ? from->closed_at : to->closed_at;
    dcommi_free(from->params);
    *from = (dcommi_bkt){0};
    return DCOMM_OK;
}

/* Join buckets that are too short for their codec: they would be summed exactly, and never send
 * the residuals that were moved there. A short bucket takes in the next one of its kind; the last
 * one joins the one before it. One pass is enough: `last` is the latest bucket of each kind
 * (number + 1). */
static dcomm_status dcommi_bkt_merge(const dcomm_buckets *b, dcommi_bkt_layout *layout,
                                     size_t *room, size_t *last)
{
    size_t *before = dcommi_calloc(b->nkinds, sizeof *before), n = 0;
    dcomm_status status = before != NULL ? DCOMM_OK : DCOMM_ERR_NO_MEMORY;
    memset(last, 0, b->nkinds * sizeof *last);
    for (size_t i = 0; i < layout->n && status >= 0; i++) {
        dcommi_bkt *k = &layout->buckets[i];
        size_t kind = k->kind, to = last[kind];
        if (b->kinds[kind].codec != NULL && to > 0 &&
            layout->buckets[to - 1].count < DCOMMI_CODED_MIN) {
            status = dcommi_bkt_pour(b, k, &layout->buckets[to - 1], &room[to - 1]);
        } else {
            before[kind] = to;
            last[kind] = i + 1;
        }
    }
    for (size_t kind = 0; kind < b->nkinds && status >= 0; kind++) {
        size_t from = last[kind], to = before[kind];
        if (b->kinds[kind].codec != NULL && to > 0 &&
            layout->buckets[from - 1].count < DCOMMI_CODED_MIN) {
            status = dcommi_bkt_pour(b, &layout->buckets[from - 1], &layout->buckets[to - 1],
                                     &room[to - 1]);
        }
    }
    for (size_t i = 0; i < layout->n && status >= 0; i++) {
        if (layout->buckets[i].nparams > 0) {
            layout->buckets[n++] = layout->buckets[i];
        }
    }
    dcommi_free(before);
    if (status >= 0) {
        memset(layout->buckets + n, 0, (layout->n - n) * sizeof *layout->buckets);
        layout->n = n;
    }
    return status;
}

/* Deal the parameters, in this order, into buckets. The result depends only on what all ranks
 * know. Within a bucket they lie in the order of registration, in which the caller's arrays often
 * lie too. */
static dcomm_status dcommi_bkt_deal(const dcomm_buckets *b, const uint32_t *sequence,
                                    dcommi_bkt_layout *layout)
{
    size_t *open = dcommi_calloc(b->nkinds, sizeof *open); /* number + 1; 0: none, or closed */
    bool *seen = dcommi_calloc(b->nkinds, sizeof *seen);
    size_t *room = dcommi_calloc(b->nparams, sizeof *room);
    layout->buckets = dcommi_calloc(b->nparams, sizeof *layout->buckets);
    dcomm_status status = open == NULL || seen == NULL || room == NULL || layout->buckets == NULL
                              ? DCOMM_ERR_NO_MEMORY
                              : DCOMM_OK;
    for (size_t at = 0; at < b->nparams && status == DCOMM_OK; at++) {
        const dcommi_bkt_param *p = &b->params[sequence[at]];
        dcommi_bkt *k = open[p->kind] > 0 ? &layout->buckets[open[p->kind] - 1] : NULL;
        size_t limit = seen[p->kind] ? b->opts.bucket_bytes : b->opts.first_bytes;
        if (k != NULL && k->bytes > 0 && p->bytes > limit - (k->bytes < limit ? k->bytes : limit)) {
            seen[p->kind] = true;
            k = NULL;
        }
        if (k == NULL) {
            k = &layout->buckets[layout->n++];
            k->kind = p->kind;
            open[p->kind] = layout->n;
        }
        k->closed_at = at;
        status = dcommi_bkt_append(k, &room[k - layout->buckets], sequence[at], p);
    }
    DCOMMI_THEN(status, dcommi_bkt_merge(b, layout, room, open));
    dcommi_free(open);
    dcommi_free(seen);
    dcommi_free(room);
    if (status == DCOMM_OK) {
        qsort(layout->buckets, layout->n, sizeof *layout->buckets, dcommi_bkt_by_close);
        for (size_t i = 0; i < layout->n; i++) {
            dcommi_bkt *k = &layout->buckets[i];
            qsort(k->params, k->nparams, sizeof *k->params, dcommi_bkt_by_number);
        }
    }
    return status;
}

static dcomm_status dcommi_bkt_furnish(const dcomm_buckets *b, size_t number, dcommi_bkt *k)
{
    const dcommi_bkt_kind *kind = &b->kinds[k->kind];
    k->durations = dcommi_calloc(b->history, sizeof *k->durations);
    if (k->durations == NULL) {
        return DCOMM_ERR_NO_MEMORY;
    }
    DCOMMI_TRY(dcommi_bkt_house(b, number, k));
    if (b->opts.sharded) {
        DCOMMI_TRY(dcommi_bkt_share(b, k));
    }
    if (kind->has_feedback) {
        dcomm_feedback_opts o = kind->feedback;
        o.tensor += (uint32_t)number;
        return dcomm_feedback_create(kind->codec, k->count, &o, &k->feedback);
    }
    return DCOMM_OK;
}

/* Build buckets from an order of the parameters, with all that they need. */
static dcomm_status dcommi_bkt_build(const dcomm_buckets *b, const uint32_t *sequence,
                                     dcommi_bkt_layout *layout)
{
    dcomm_status status = dcommi_bkt_deal(b, sequence, layout);
    for (size_t i = 0; i < layout->n && status >= 0; i++) {
        status = dcommi_bkt_furnish(b, i, &layout->buckets[i]);
    }
    if (status < 0) {
        dcommi_bkt_layout_free(layout);
    }
    return status;
}

/* Use these buckets from now on. */
static void dcommi_bkt_settle(dcomm_buckets *b, const dcommi_bkt_layout *layout)
{
    b->layout = *layout;
    b->built++;
    for (size_t i = 0; i < layout->n; i++) {
        dcommi_bkt *k = &layout->buckets[i];
        size_t first = 0;
        for (size_t j = 0; j < k->nparams; j++) {
            dcommi_bkt_param *p = &b->params[k->params[j]];
            p->bucket = i;
            p->first = first;
            first += p->count;
        }
        atomic_store(&k->pending, k->nparams);
    }
}

#endif
