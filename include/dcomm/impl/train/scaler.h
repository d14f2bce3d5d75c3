/* scaler.h - the loss scale, and the verdict on each step. */
#ifndef DCOMMI_SCALER_H
#define DCOMMI_SCALER_H

#include "../../scaler.h"
#include "bucket/api_bucket.h"
#include "../feedback/feedback.h"

#define DCOMMI_SCALER_MAGIC UINT64_C(0x31656c6163736364) /* "dcscale1" */

struct dcomm_scaler {
    dcomm_buckets *b;
    dcomm_scaler_opts opts; /* with the defaults filled in */
    uint64_t steps, skipped, judged;
};

/* ---- life ---- */

#define DCOMMI_SCALER_OPTIONS(X) \
    X(scale)                     \
    X(growth)                    \
    X(backoff)                   \
    X(interval)                  \
    X(least)                     \
    X(most)                      \
    X(clip)                      \
    X(leave)

static dcomm_status dcommi_scaler_check(const dcomm_scaler_opts *o)
{
    const char *wrong = !(o->least > 0 && o->most <= DBL_MAX && o->least <= o->most)
                            ? "opts.least is not above 0, or above opts.most"
                        : !(o->scale >= o->least && o->scale <= o->most)
                            ? "opts.scale is not between opts.least and opts.most"
                        : !(o->growth >= 1 && o->growth <= DBL_MAX) ? "opts.growth is below 1"
                        : !(o->backoff > 0 && o->backoff <= 1)
                            ? "opts.backoff is not above 0 and at most 1"
                        : !(o->clip >= 0 && o->clip <= DBL_MAX) ? "opts.clip is below 0"
                                                                : NULL;
    return wrong == NULL ? DCOMM_OK
                         : dcommi_fail(DCOMM_ERR_INVALID, "dcomm_scaler_create: %s", wrong);
}

static void dcommi_scaler_defaults(dcomm_scaler_opts *o)
{
    o->scale = o->scale == 0 ? 32768 : o->scale;
    o->growth = o->growth == 0 ? 2 : o->growth;
    o->backoff = o->backoff == 0 ? 0.5 : o->backoff;
    o->interval = o->interval == 0 ? 2000 : o->interval;
    o->least = o->least == 0 ? 0x1p-14 : o->least;
    o->most = o->most == 0 ? 0x1p24 : o->most;
}

/* Check that all ranks ask for the same options. An error on one rank is an error on all. */
static dcomm_status dcommi_scaler_agree(dcomm_buckets *b, const dcomm_scaler_opts *o,
                                        dcomm_status status)
{
    static const char *const names[] = {
#define DCOMMI_SCALER_NAME(name) #name,
        DCOMMI_SCALER_OPTIONS(DCOMMI_SCALER_NAME)
#undef DCOMMI_SCALER_NAME
    };
    const double values[] = {
#define DCOMMI_SCALER_VALUE(name) (double)o->name,
        DCOMMI_SCALER_OPTIONS(DCOMMI_SCALER_VALUE)
#undef DCOMMI_SCALER_VALUE
    };
    enum { COUNT = sizeof names / sizeof *names };
    dcommi_bkt_card own = dcommi_bkt_card_of(status), *cards;
    for (int i = 0; i < COUNT; i++) {
        own.options[i] = dcommi_f64_bits(values[i]);
    }
    status = dcommi_bkt_exchange(b, &own, &cards);
    for (int r = 1; r < b->size && status >= 0; r++) {
        status = dcommi_bkt_compare_options("dcomm_scaler_create", names, 0, COUNT, cards, r);
    }
    dcommi_give_back(b->comm, cards);
    return status;
}

/* Stand where a front says. */
static void dcommi_scaler_stand(dcomm_scaler *s, const dcommi_bkt_front *front)
{
    s->b->scale = front->scale;
    s->b->good = front->good;
    s->steps = front->scaler_steps;
    s->skipped = front->scaler_skipped;
    s->judged = s->b->sent_steps;
}

/* Check the options of a rank that has joined ranks with a scaler. They do not call
 * dcomm_scaler_create, so an error is this rank's alone. */
static dcomm_status dcommi_scaler_joins(const dcomm_scaler_opts *o, const dcomm_scaler_opts *theirs)
{
#define DCOMMI_SCALER_DIFFERS(name)                                                                \
    if (o->name != theirs->name) {                                                                 \
        return dcommi_fail(DCOMM_ERR_MISMATCH,                                                     \
                           "dcomm_scaler_create: opts." #name " is %.17g, and %.17g on the ranks " \
                           "that this one has joined",                                             \
                           (double)o->name, (double)theirs->name);                                 \
    }
    DCOMMI_SCALER_OPTIONS(DCOMMI_SCALER_DIFFERS)
#undef DCOMMI_SCALER_DIFFERS
    return DCOMM_OK;
}

DCOMM_API dcomm_status dcomm_scaler_create(dcomm_buckets *b, const dcomm_scaler_opts *opts,
                                           dcomm_scaler **s_p)
{
    DCOMMI_NEED(s_p);
    *s_p = NULL;
    DCOMMI_TRY(dcommi_bkt_check("dcomm_scaler_create", b));
    DCOMMI_TRY(dcommi_bkt_check_idle("dcomm_scaler_create", b, b));
    dcomm_scaler *s = dcommi_alloc(sizeof *s);
    dcomm_scaler_opts o = opts != NULL ? *opts : (dcomm_scaler_opts){0};
    dcommi_scaler_defaults(&o);
    dcomm_status status = s == NULL ? DCOMM_ERR_NO_MEMORY : dcommi_scaler_check(&o);
    if (status >= 0 && b->watched) {
        status = dcommi_fail(DCOMM_ERR_INVALID, "dcomm_scaler_create: the buckets have a scaler");
    }
    DCOMMI_THEN(status, dcommi_bkt_open_looks(b));
    if (status >= 0 && b->sights == NULL &&
        (b->sights = dcommi_calloc((size_t)b->size + 1, sizeof *b->sights)) == NULL) {
        status = DCOMM_ERR_NO_MEMORY;
    }
    const dcommi_bkt_front *joined = b->joined.has_scaler != 0 ? &b->joined : NULL;
    if (joined != NULL) {
        DCOMMI_THEN(status, dcommi_scaler_joins(&o, &joined->scaler_opts));
    } else {
        status = dcommi_bkt_over(b, dcommi_scaler_agree(b, &o, status));
    }
    if (status < 0) {
        dcommi_free(s);
        return status;
    }
    s->b = b;
    s->opts = o;
    s->judged = b->sent_steps;
    b->watched = true;
    b->scaler = s;
    b->scale = o.scale;
    b->good = 0;
    if (joined != NULL) {
        dcommi_scaler_stand(s, joined);
        b->joined.has_scaler = 0;
    }
    *s_p = s;
    return DCOMM_OK;
}

DCOMM_API dcomm_status dcomm_scaler_destroy(dcomm_scaler **s_p)
{
    if (s_p == NULL || *s_p == NULL) {
        return DCOMM_OK;
    }
    dcomm_buckets *b = (*s_p)->b;
    DCOMMI_TRY(dcommi_bkt_check_idle("dcomm_scaler_destroy", b, b));
    b->watched = false;
    b->scaler = NULL;
    dcommi_free(*s_p);
    *s_p = NULL;
    return DCOMM_OK;
}

DCOMM_API double dcomm_scaler_scale(const dcomm_scaler *s)
{
    return s != NULL ? s->b->scale : 1;
}

/* ---- the verdict ---- */

static inline bool dcommi_scaler_minds(const dcommi_bkt_param *p)
{
    return p->dtype <= DCOMM_BF16 && !p->aside;
}

/* Return the part of a gradient that this rank owns. */
static unsigned char *dcommi_scaler_part(const dcomm_buckets *b, const dcommi_bkt_param *p,
                                         size_t *first_p, size_t *count_p)
{
    unsigned char *grad = p->grad != NULL ? p->grad : dcommi_bkt_place(b, p);
    dcommi_bkt_owned(b, p, first_p, count_p);
    return *count_p > 0 ? grad + *first_p * dcomm_dtype_size(p->dtype) : NULL;
}

/* Look at an array in host memory, and multiply it by `factor`. Stop at a block with a non-finite
 * value. */
static dcomm_cuda_sight dcommi_scaler_look(unsigned char *part, size_t count, dcomm_dtype dtype,
                                           double factor)
{
    dcomm_cuda_sight sight = {.index = UINT64_MAX};
    size_t element = dcomm_dtype_size(dtype), block = DCOMMI_BKT_LOOK / element;
    for (size_t at = 0; at < count && sight.index == UINT64_MAX; at += block) {
        size_t n = count - at < block ? count - at : block;
        unsigned char *x = part + at * element;
        double squares = dcommi_squares(x, n, dtype);
        size_t odd = squares <= DBL_MAX ? n : dcommi_scan(x, n, dtype);
        sight.squares += squares;
        if (odd < n) {
            sight.index = at + odd;
            sight.value = dcommi_load_real(x, odd, dtype);
        } else if (factor != 1) {
            dcommi_host_scale(x, x, n, dtype, factor);
        }
    }
    return sight;
}

/* Multiply the parts of gradients that this rank owns on devices by `factor`, and look at them if
 * `look`. Do so in the order of the buckets' streams, and wait for those. */
static dcomm_status dcommi_scaler_there(dcomm_buckets *b, bool look, double factor)
{
    for (size_t i = 0; i < b->nparams && b->ndevices > 0; i++) {
        const dcommi_bkt_param *p = &b->params[i];
        size_t first = 0, count = 0;
        unsigned char *part = dcommi_bkt_sees(p) ? dcommi_scaler_part(b, p, &first, &count) : NULL;
        const dcommi_bkt *k = &b->layout.buckets[p->bucket];
        if (part != NULL && look) {
            DCOMMI_TRY(dcommi_bkt_look_there(b, p, part, count, factor, false));
        } else if (part != NULL) {
            DCOMMI_TRY(dcommi_bkt_of_device(
                k->device->number, dcommi_devices->scale(k->device->number, k->stream, part, part,
                                                         count, p->dtype, factor)));
        }
    }
    return b->ndevices > 0 ? dcommi_bkt_await_streams(b) : DCOMM_OK;
}

/* Sum the squares of what this rank owns, and multiply it by `factor`. If an element is not
 * finite, the sum is 0 and *bad names the first one. */
static dcomm_status dcommi_scaler_sum(dcomm_buckets *b, double factor, double *sum_p,
                                      dcommi_bkt_sight *bad)
{
    *sum_p = 0;
    DCOMMI_TRY(dcommi_scaler_there(b, true, factor));
    for (size_t i = 0; i < b->nparams; i++) {
        const dcommi_bkt_param *p = &b->params[i];
        size_t first = 0, count = 0;
        unsigned char *part =
            dcommi_scaler_minds(p) ? dcommi_scaler_part(b, p, &first, &count) : NULL;
        if (part == NULL) {
            continue;
        }
        dcomm_cuda_sight sight =
            p->place > 0 ? b->seen_there[i] : dcommi_scaler_look(part, count, p->dtype, factor);
        if (sight.index != UINT64_MAX) {
            *bad = (dcommi_bkt_sight){.found = 1,
                                      .param = i,
                                      .index = first + sight.index,
                                      .value = dcommi_f64_bits(sight.value)};
            *sum_p = 0;
            return DCOMM_OK;
        }
        *sum_p += sight.squares;
    }
    return DCOMM_OK;
}

/* Combine what the ranks have seen, since with shards each sees its own part only. *sum becomes
 * the sum of all, and *bad the first parameter of any. */
static dcomm_status dcommi_scaler_combine(dcomm_buckets *b, double *sum, dcommi_bkt_sight *bad)
{
    dcomm_coll_opts opts = dcommi_bkt_patience(b);
    bad->scale = dcommi_f64_bits(*sum);
    b->sights[b->size] = *bad;
    DCOMMI_TRY(dcomm_allgather(b->comm, &b->sights[b->size], b->sights, sizeof *b->sights, DCOMM_U8,
                               &opts));
    *sum = 0;
    *bad = (dcommi_bkt_sight){0};
    for (int r = 0; r < b->size; r++) {
        const dcommi_bkt_sight *theirs = &b->sights[r];
        *sum += dcommi_f64_from_bits(theirs->scale);
        if (theirs->found > 0 && (bad->found == 0 || theirs->param < bad->param ||
                                  (theirs->param == bad->param && theirs->index < bad->index))) {
            *bad = *theirs;
        }
    }
    return DCOMM_OK;
}

static void dcommi_scaler_name(const dcomm_buckets *b, const dcommi_bkt_sight *sight,
                               dcomm_scaler_verdict *v)
{
    v->skip = true;
    v->param = b->nparams;
    if (sight->found > 0) {
        v->param = sight->param;
        v->name = b->params[sight->param].name;
        v->index = sight->index;
        v->value = dcommi_f64_from_bits(sight->value);
    }
}

/* Compute sum, norm and factor of a step whose gradients were finite; their sum may not be. */
static dcomm_status dcommi_scaler_measure(dcomm_scaler *s, dcomm_scaler_verdict *v)
{
    dcomm_buckets *b = s->b;
    dcommi_bkt_sight bad = {0};
    bool at_once = s->opts.clip == 0 && !s->opts.leave;
    double sum = 0;
    DCOMMI_TRY(dcommi_bkt_good(b, dcommi_scaler_sum(b, at_once ? 1 / v->scale : 1, &sum, &bad)));
    if (b->opts.sharded) {
        DCOMMI_TRY(dcommi_bkt_over(b, dcommi_scaler_combine(b, &sum, &bad)));
    }
    if (bad.found > 0 || !(sum <= DBL_MAX)) {
        dcommi_scaler_name(b, &bad, v);
        return DCOMM_OK;
    }
    v->norm = dcommi_sqrt(sum) / v->scale;
    v->factor = 1 / v->scale;
    if (s->opts.clip > 0 && v->norm > s->opts.clip) {
        v->factor *= s->opts.clip / v->norm;
    }
    if (at_once || s->opts.leave) {
        return DCOMM_OK;
    }
    for (size_t i = 0; i < b->nparams; i++) {
        const dcommi_bkt_param *p = &b->params[i];
        size_t first, count;
        unsigned char *part = dcommi_scaler_minds(p) && p->place == 0
                                  ? dcommi_scaler_part(b, p, &first, &count)
                                  : NULL;
        if (part != NULL) {
            dcommi_host_scale(part, part, count, p->dtype, v->factor);
        }
    }
    return dcommi_bkt_good(b, dcommi_scaler_there(b, false, v->factor));
}

/* Move the scale by what all ranks know. */
static void dcommi_scaler_move(dcomm_scaler *s, const dcomm_scaler_verdict *v)
{
    dcomm_buckets *b = s->b;
    const dcomm_scaler_opts *o = &s->opts;
    s->steps++;
    s->skipped += v->skip;
    if (v->skip) {
        b->scale = dcommi_f64_max(b->scale * o->backoff, o->least);
        b->good = 0;
    } else if (++b->good >= o->interval) {
        b->scale = dcommi_f64_min(b->scale * o->growth, o->most);
        b->good = 0;
    }
}

/* Bring residuals back to before the step: what the codecs have sent is not used. */
static dcomm_status dcommi_scaler_take_back(dcomm_buckets *b)
{
    for (size_t i = 0; i < b->layout.n; i++) {
        dcomm_feedback *fb = b->layout.buckets[i].feedback;
        if (fb != NULL && fb->last != DCOMMI_FEEDBACK_NOTHING && !fb->opts.in_place) {
            DCOMMI_TRY(dcomm_feedback_undo(fb));
        }
    }
    return DCOMM_OK;
}

DCOMM_API dcomm_status dcomm_scaler_step(dcomm_scaler *s, dcomm_scaler_verdict *verdict)
{
    DCOMMI_NEED(s);
    DCOMMI_NEED(verdict);
    dcomm_buckets *b = s->b;
    DCOMMI_TRY(dcommi_bkt_check("dcomm_scaler_step", b));
    DCOMMI_TRY(dcommi_bkt_check_idle("dcomm_scaler_step", b, b));
    if (s->judged == b->sent_steps) {
        return dcommi_fail(DCOMM_ERR_INVALID,
                           "dcomm_scaler_step: no step has sent gradients since the last call");
    }
    dcomm_scaler_verdict v = {.scale = b->scale, .rank = dcommi_bkt_first_sight(b)};
    for (int r = 0; r < b->size; r++) {
        v.bad_ranks += b->sights[r].found > 0;
    }
    if (v.rank >= 0) {
        dcommi_scaler_name(b, &b->sights[v.rank], &v);
    } else {
        DCOMMI_TRY(dcommi_scaler_measure(s, &v));
    }
    s->judged = b->sent_steps;
    dcommi_scaler_move(s, &v);
    v.next = b->scale;
    if (v.skip) {
        DCOMMI_TRY(dcommi_scaler_take_back(b));
    }
    *verdict = v;
    return DCOMM_OK;
}

/* ---- the state ---- */

DCOMM_API dcomm_status dcomm_scaler_get_info(const dcomm_scaler *s, dcomm_scaler_info *info)
{
    DCOMMI_NEED(s);
    DCOMMI_NEED(info);
    *info = (dcomm_scaler_info){s->b->scale, s->b->good, s->steps, s->skipped};
    return DCOMM_OK;
}

DCOMM_API dcomm_status dcomm_scaler_save(const dcomm_scaler *s, void *bytes)
{
    DCOMMI_NEED(s);
    DCOMMI_NEED(bytes);
    const uint64_t words[] = {DCOMMI_SCALER_MAGIC, dcommi_f64_bits(s->b->scale), s->b->good,
                              s->steps, s->skipped};
    for (int i = 0; i < DCOMM_SCALER_BYTES; i++) {
        ((unsigned char *)bytes)[i] = (unsigned char)(words[i / 8] >> i % 8 * 8);
    }
    return DCOMM_OK;
}

DCOMM_API dcomm_status dcomm_scaler_load(dcomm_scaler *s, const void *bytes)
{
    DCOMMI_NEED(s);
    DCOMMI_NEED(bytes);
    DCOMMI_TRY(dcommi_bkt_check_idle("dcomm_scaler_load", s->b, s));
    uint64_t words[DCOMM_SCALER_BYTES / 8] = {0};
    for (int i = 0; i < DCOMM_SCALER_BYTES; i++) {
        words[i / 8] |= (uint64_t)((const unsigned char *)bytes)[i] << i % 8 * 8;
    }
    double scale = dcommi_f64_from_bits(words[1]);
    if (words[0] != DCOMMI_SCALER_MAGIC || !(scale > 0 && scale <= DBL_MAX) ||
        words[4] > words[3] || words[2] > words[3]) {
        return dcommi_fail(DCOMM_ERR_CORRUPT,
                           "dcomm_scaler_load: these bytes are not the state of a scaler");
    }
    s->b->scale = dcommi_f64_min(dcommi_f64_max(scale, s->opts.least), s->opts.most);
    s->b->good = words[2];
    s->steps = words[3];
    s->skipped = words[4];
    return DCOMM_OK;
}

#endif
