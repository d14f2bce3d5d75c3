/* feedback.h - a step of error feedback: begin, encode, recode, commit; and the operations on a
 * state between steps. */
#ifndef DCOMMI_FEEDBACK_H
#define DCOMMI_FEEDBACK_H

#include "../../../../kernels/cpu/norm.h"
#include "encode.h"

#include <float.h>

/* ---- the beginning ---- */

/* Return the highest norm of a rank's clipped gradient (DGC): then the sum of independent ones has
 * the norm opts.clip. 0: it does not clip. */
static inline double dcommi_feedback_most(const dcomm_feedback *fb)
{
    return fb->opts.clip / dcommi_sqrt((double)fb->now.nranks);
}

static float dcommi_feedback_clip(const dcomm_feedback *fb)
{
    const double most = dcommi_feedback_most(fb);
    if (!(most > 0)) {
        return 1;
    }
    const double squares = dcommi_norm_squares(fb->now.x, fb->now.count);
    return squares > most * most ? (float)(most / dcommi_sqrt(squares)) : 1;
}

/* Begin a step, wherever the state lies. */
static dcomm_status dcommi_feedback_begin(dcomm_feedback *fb, const dcomm_feedback_step *given)
{
    DCOMMI_TRY(dcommi_feedback_open("dcomm_feedback_begin", fb, false));
    if (given == NULL || (given->x == NULL && fb->count > 0)) {
        return dcommi_fail(DCOMM_ERR_INVALID, "dcomm_feedback_begin: %s is NULL",
                           given == NULL ? "step" : "step->x");
    }
    dcomm_feedback_step step = *given;
    step.count = step.count == 0 && step.first == 0 ? fb->count : step.count;
    step.nranks = step.nranks == 0 ? 1 : step.nranks;
    step.own_first = step.own_count == 0 ? 0 : step.own_first;
    if (step.first > fb->count || step.count > fb->count - step.first ||
        step.own_first > fb->count || step.own_count > fb->count - step.own_first) {
        return dcommi_fail(DCOMM_ERR_INVALID,
                           "dcomm_feedback_begin: %zu elements from %zu, or %zu owned ones from "
                           "%zu, do not lie within the tensor of %zu elements",
                           step.count, step.first, step.own_count, step.own_first, fb->count);
    }
    if (fb->stale) {
        return dcommi_fail(
            DCOMM_ERR_INVALID,
            "dcomm_feedback_begin: an earlier step failed, so the residuals of the ranks may "
            "not fit together; call dcomm_feedback_recover first");
    }
    DCOMMI_TRY(dcommi_feedback_own(fb, step.own_first, step.own_count));
    if (fb->worker.place != NULL && step.partly) {
        DCOMMI_TRY(dcommi_feedback_store_ready(&fb->worker));
        DCOMMI_TRY(dcommi_feedback_store_ready(&fb->velocity));
    }
    if (step.count != fb->count && (step.first != fb->last_first || step.count != fb->last_count)) {
        dcommi_feedback_level(fb); /* both are the same outside the range */
    }
    fb->last_first = step.partly ? SIZE_MAX : step.first;
    fb->last_count = step.count;
    fb->nspans = 0;
    fb->now = step;
    fb->last = DCOMMI_FEEDBACK_NOTHING;
    fb->clip = fb->worker.place == NULL ? dcommi_feedback_clip(fb) : 1;
    fb->clip_known = false;
    fb->encoded = fb->owned = fb->finished = 0;
    fb->learned = fb->collective = false;
    dcommi_feedback_bases_begin(fb);
    fb->held = 0;
    fb->next_factor = fb->owner_factor;
    fb->begun = true;
    return DCOMM_OK;
}

DCOMM_API dcomm_status dcomm_feedback_begin(dcomm_feedback *fb, const dcomm_feedback_step *given)
{
    DCOMMI_TRY(dcommi_feedback_home("dcomm_feedback_begin", fb));
    return dcommi_feedback_begin(fb, given);
}

/* ---- the worker ---- */

static dcomm_status dcommi_feedback_range(const char *what, size_t first, size_t count, size_t from,
                                          size_t length, size_t done)
{
    if (first < from || first - from > length || count > length - (first - from) ||
        count > length - done) {
        return dcommi_fail(DCOMM_ERR_INVALID,
                           "%s: %zu elements from %zu do not lie within %zu from %zu, of which %zu "
                           "are done",
                           what, count, first, length, from, done);
    }
    return DCOMM_OK;
}

static dcomm_codec_key dcommi_feedback_key(const dcomm_feedback *fb, size_t first, uint32_t owner)
{
    return (dcomm_codec_key){.seed = fb->opts.seed,
                             .step = fb->step,
                             .first = first,
                             .rank = fb->now.rank | owner,
                             .tensor = fb->opts.tensor};
}

/* Compute u = m u + clip g of a range; non-finite elements of g are not clipped. Return the array
 * that holds u, or NULL without memory. */
static float *dcommi_feedback_momentum(dcomm_feedback *fb, const float *g, size_t at, size_t count)
{
    dcommi_feedback_store *s = &fb->velocity;
    float *u = s->bf16 ? dcommi_feedback_room(fb, DCOMMI_FEEDBACK_VELOCITY, count)
                       : dcommi_feedback_at(s, s->next, at);
    if (u == NULL) {
        return NULL;
    }
    const float *before = dcommi_feedback_read(s, s->now, at, count, u);
    float m = fb->opts.momentum < 0 ? 0 : (float)fb->opts.momentum;
    for (size_t i = 0; i < count; i++) {
        float clipped = dcommi_f32_nonfinite(g[i]) ? g[i] : fb->clip * g[i];
        u[i] = dcommi_f32_canonical(dcommi_feedback_plus(clipped, m, before[i]));
    }
    return u;
}

/* Forget the momentum of what was sent, else it would be sent twice. */
static dcomm_status dcommi_feedback_mask(dcomm_feedback *fb, const dcommi_feedback_call *c,
                                         float *u)
{
    float *sent = dcommi_feedback_room(fb, DCOMMI_FEEDBACK_SENT, c->count);
    if (sent == NULL) {
        return DCOMM_ERR_NO_MEMORY;
    }
    DCOMMI_TRY(dcomm_decode(dcomm_feedback_codec(fb), c->wire, c->bytes, sent, c->count));
    for (size_t i = 0; i < c->count; i++) {
        u[i] = sent[i] != 0 || dcommi_f32_nonfinite(u[i]) ? 0 : u[i];
    }
    dcommi_feedback_write(&fb->velocity, c->at, c->count, u);
    return DCOMM_OK;
}

/* Note that the worker encodes these elements. */
static dcomm_status dcommi_feedback_encode_range(dcomm_feedback *fb, size_t first, size_t count)
{
    DCOMMI_TRY(dcommi_feedback_range("dcomm_feedback_encode", first, count, fb->now.first,
                                     fb->now.count, fb->encoded));
    if (fb->now.partly) {
        DCOMMI_TRY(
            dcommi_grow((void **)&fb->span, &fb->spans_capacity, fb->nspans + 1, sizeof *fb->span));
        fb->span[fb->nspans++] = (dcommi_feedback_span){first, count};
    }
    return DCOMM_OK;
}

/* Encode `g` in place of the gradient that begin was given: a sum that contains this rank's
 * gradient. */
static dcomm_status dcommi_feedback_encode_of(dcomm_feedback *fb, const float *g, size_t first,
                                              size_t count, void *wire, size_t capacity,
                                              size_t *bytes_p, dcomm_codec_report *report)
{
    DCOMMI_TRY(dcommi_feedback_encode_range(fb, first, count));
    bool dgc = fb->opts.variant == DCOMM_FEEDBACK_DGC;
    float *u = dgc ? dcommi_feedback_momentum(fb, g, first, count) : NULL;
    if (dgc && u == NULL) {
        return DCOMM_ERR_NO_MEMORY;
    }
    dcommi_feedback_call c = {.x = dgc ? u : g,
                              .store = &fb->worker,
                              .at = first,
                              .count = count,
                              .key = dcommi_feedback_key(fb, first, 0),
                              .wire = wire,
                              .capacity = capacity,
                              .estimates = fb->opts.variant == DCOMM_FEEDBACK_EF21};
    dcomm_status status = dcommi_feedback_run(fb, &c, g, bytes_p, report);
    if (dgc && (status == DCOMM_OK || c.report.nonfinite > 0)) {
        DCOMMI_TRY(dcommi_feedback_mask(fb, &c, u));
    }
    if (status == DCOMM_OK || c.report.nonfinite > 0) {
        fb->encoded += count;
    }
    return status;
}

DCOMM_API dcomm_status dcomm_feedback_encode(dcomm_feedback *fb, size_t first, size_t count,
                                             void *wire, size_t capacity, size_t *bytes_p,
                                             dcomm_codec_report *report)
{
    DCOMMI_TRY(dcommi_feedback_here("dcomm_feedback_encode", fb));
    return dcommi_feedback_encode_of(fb, fb->now.x + (first - fb->now.first), first, count, wire,
                                     capacity, bytes_p, report);
}

DCOMM_API dcomm_status dcomm_feedback_give_back(dcomm_feedback *fb, size_t first,
                                                const uint32_t *index, const float *value, size_t n,
                                                const uint32_t *agreed, size_t nagreed)
{
    DCOMMI_TRY(dcommi_feedback_here("dcomm_feedback_give_back", fb));
    if (n > 0 && (index == NULL || value == NULL || (agreed == NULL && nagreed > 0))) {
        return dcommi_fail(DCOMM_ERR_INVALID, "dcomm_feedback_give_back: %s is NULL",
                           index == NULL   ? "index"
                           : value == NULL ? "value"
                                           : "agreed");
    }
    float sign = fb->opts.variant == DCOMM_FEEDBACK_EF21 ? -1 : 1;
    size_t k = 0;
    for (size_t i = 0; i < n; i++) {
        while (k < nagreed && agreed[k] < index[i]) {
            k++;
        }
        if ((k < nagreed && agreed[k] == index[i]) || dcommi_f32_nonfinite(value[i])) {
            continue;
        }
        DCOMMI_TRY(dcommi_feedback_range("dcomm_feedback_give_back", first + index[i], 1,
                                         fb->now.first, fb->now.count, 0));
        dcommi_feedback_raise(fb, first + index[i], sign, value[i]);
    }
    dcommi_feedback_raised(fb);
    return DCOMM_OK;
}

/* ---- the owner ---- */

static dcomm_status dcommi_feedback_owned(const char *what, dcomm_feedback *fb,
                                          dcommi_feedback_call *c, size_t first, size_t *bytes_p,
                                          dcomm_codec_report *report)
{
    DCOMMI_TRY(
        dcommi_feedback_range(what, first, c->count, fb->own_first, fb->owner.count, fb->owned));
    if (!(c->factor != 0) || dcommi_f32_nonfinite(c->factor)) {
        return dcommi_fail(DCOMM_ERR_INVALID, "%s: factor is %g; it must be finite and not 0", what,
                           (double)c->factor);
    }
    c->store = &fb->owner;
    c->at = first - fb->own_first;
    c->key = dcommi_feedback_key(fb, first, DCOMMI_FEEDBACK_OWNER);
    dcomm_status status = dcommi_feedback_run(fb, c, NULL, bytes_p, report);
    if (status == DCOMM_OK || c->report.nonfinite > 0) {
        fb->owned += c->count;
        fb->next_factor = (double)c->factor;
    }
    return status;
}

DCOMM_API dcomm_status dcomm_feedback_recode(dcomm_feedback *fb, const void *const *wires,
                                             const size_t *bytes, size_t n, float factor,
                                             size_t first, size_t count, void *wire,
                                             size_t capacity, size_t *bytes_p,
                                             dcomm_codec_report *report)
{
    DCOMMI_TRY(dcommi_feedback_here("dcomm_feedback_recode", fb));
    dcommi_feedback_call c = {.in = {wires, bytes, n},
                              .factor = factor,
                              .count = count,
                              .wire = wire,
                              .capacity = capacity};
    return dcommi_feedback_owned("dcomm_feedback_recode", fb, &c, first, bytes_p, report);
}

/* Recode elements that this rank has encoded in this step and has no owner residual for. Their
 * rounding error goes into its worker residual. Used by coded_hier, which refuses EF21. */
static inline dcomm_status dcommi_feedback_recode_here(dcomm_feedback *fb, const void *const *wires,
                                                       const size_t *bytes, size_t n,
                                                       uint32_t divisor, size_t first, size_t count,
                                                       void *wire, size_t capacity, size_t *bytes_p,
                                                       dcomm_codec_report *report)
{
    float *zeros = dcommi_feedback_room(fb, DCOMMI_FEEDBACK_ZEROS, count);
    float *lost = dcommi_feedback_room(fb, DCOMMI_FEEDBACK_LOST, count);
    if (zeros == NULL || lost == NULL) {
        return DCOMM_ERR_NO_MEMORY;
    }
    memset(zeros, 0, count * sizeof *zeros);
    dcommi_feedback_store none = {.now = zeros, .next = lost, .count = count};
    dcommi_feedback_call c = {.in = {wires, bytes, n},
                              .factor = 1.0f / (float)divisor,
                              .store = &none,
                              .count = count,
                              .key = dcommi_feedback_key(fb, first, DCOMMI_FEEDBACK_OWNER),
                              .wire = wire,
                              .capacity = capacity};
    const double held = fb->held;
    dcomm_status status = dcommi_feedback_run(fb, &c, NULL, bytes_p, report);
    fb->held = held; /* dcommi_feedback_raise counts it as the worker's */
    for (size_t i = 0; (status == DCOMM_OK || c.report.nonfinite > 0) && i < count; i++) {
        dcommi_feedback_raise(fb, first + i, (float)divisor, lost[i]);
    }
    dcommi_feedback_raised(fb);
    return status;
}

DCOMM_API dcomm_status dcomm_feedback_encode_owned(dcomm_feedback *fb, const float *sum,
                                                   float factor, size_t first, size_t count,
                                                   void *wire, size_t capacity, size_t *bytes_p,
                                                   dcomm_codec_report *report)
{
    DCOMMI_TRY(dcommi_feedback_here("dcomm_feedback_encode_owned", fb));
    if (sum == NULL && count > 0) {
        return dcommi_fail(DCOMM_ERR_INVALID, "dcomm_feedback_encode_owned: sum is NULL");
    }
    dcommi_feedback_call c = {
        .x = sum, .factor = factor, .count = count, .wire = wire, .capacity = capacity};
    if (factor != 1) {
        float *scaled = dcommi_feedback_room(fb, DCOMMI_FEEDBACK_SENT, count);
        if (scaled == NULL) {
            return DCOMM_ERR_NO_MEMORY;
        }
        for (size_t i = 0; i < count; i++) {
            scaled[i] = sum[i] * factor;
        }
        c.x = scaled;
    }
    return dcommi_feedback_owned("dcomm_feedback_encode_owned", fb, &c, first, bytes_p, report);
}

/* ---- the end ---- */

DCOMM_API dcomm_status dcomm_feedback_finish(dcomm_feedback *fb, size_t first, size_t count,
                                             float *result)
{
    DCOMMI_TRY(dcommi_feedback_here("dcomm_feedback_finish", fb));
    if (fb->opts.variant != DCOMM_FEEDBACK_EF21) {
        return DCOMM_OK;
    }
    DCOMMI_TRY(
        dcommi_feedback_range("dcomm_feedback_finish", first, count, 0, fb->count, fb->finished));
    const float *now = (const float *)fb->estimate.now + first;
    float *next = (float *)fb->estimate.next + first;
    for (size_t i = 0; i < count; i++) {
        next[i] = result[i] = dcommi_f32_canonical(now[i] + result[i]);
    }
    fb->finished += count;
    return DCOMM_OK;
}

/* Count a step in which this rank has nothing to encode, as the other ranks do. */
static inline void dcommi_feedback_skip(dcomm_feedback *fb)
{
    fb->step++;
    fb->last = DCOMMI_FEEDBACK_SKIPPED;
}

DCOMM_API dcomm_status dcomm_feedback_commit(dcomm_feedback *fb)
{
    DCOMMI_TRY(dcommi_feedback_open("dcomm_feedback_commit", fb, true));
    bool ef21 = fb->opts.variant == DCOMM_FEEDBACK_EF21;
    size_t wanted = fb->now.partly ? fb->encoded : fb->now.count;
    if (fb->encoded != wanted || fb->owned != fb->owner.count || (ef21 && fb->finished < wanted)) {
        return dcommi_fail(DCOMM_ERR_INVALID,
                           "dcomm_feedback_commit: %zu of %zu elements were encoded, %zu of %zu "
                           "owned ones, and %zu of the result finished",
                           fb->encoded, fb->now.count, fb->owned, fb->owner.count, fb->finished);
    }
    dcommi_feedback_exchange(fb);
    fb->before.owner_factor = fb->owner_factor;
    fb->before.average = fb->average;
    fb->before.nranks = fb->nranks;
    fb->last = DCOMMI_FEEDBACK_COMMITTED;
    fb->owner_factor = fb->next_factor;
    fb->average = fb->now.average;
    fb->nranks = fb->now.nranks;
    fb->begun = false;
    fb->step++;
    return DCOMM_OK;
}

DCOMM_API dcomm_status dcomm_feedback_fail(dcomm_feedback *fb)
{
    DCOMMI_NEED(fb);
    fb->begun = false;
    fb->stale = true;
    return DCOMM_OK;
}

DCOMM_API dcomm_status dcomm_feedback_recover(dcomm_feedback *fb, dcomm_feedback_recovery how,
                                              double *lost_p)
{
    DCOMMI_TRY(dcommi_feedback_open("dcomm_feedback_recover", fb, false));
    DCOMMI_TRY(dcommi_feedback_home("dcomm_feedback_recover", fb));
    fb->last = DCOMMI_FEEDBACK_NOTHING;
    double lost = 0;
    if (how == DCOMM_FEEDBACK_RETRY && fb->stale && fb->opts.in_place) {
        return dcommi_fail(DCOMM_ERR_INVALID,
                           "dcomm_feedback_recover: opts.in_place keeps no residuals of before the "
                           "step; use DCOMM_FEEDBACK_RESET");
    }
    if (how == DCOMM_FEEDBACK_RETRY) {
        dcommi_feedback_level(fb);
    } else {
        DCOMMI_TRY(dcommi_feedback_norm2(&fb->worker, &lost));
        DCOMMI_TRY(dcommi_feedback_norm2(&fb->owner, &lost));
        lost = dcommi_sqrt(lost);
        dcommi_feedback_store *stores[DCOMMI_FEEDBACK_STORES];
        dcommi_feedback_stores(fb, stores);
        for (int i = 0; i < DCOMMI_FEEDBACK_STORES; i++) {
            dcommi_feedback_store_clear(stores[i]);
        }
        dcommi_feedback_bases_free(fb);
    }
    fb->stale = false;
    if (lost_p != NULL) {
        *lost_p = lost;
    }
    return DCOMM_OK;
}

DCOMM_API dcomm_status dcomm_feedback_rescale(dcomm_feedback *fb, double factor)
{
    DCOMMI_TRY(dcommi_feedback_open("dcomm_feedback_rescale", fb, false));
    DCOMMI_TRY(dcommi_feedback_home("dcomm_feedback_rescale", fb));
    fb->last = DCOMMI_FEEDBACK_NOTHING;
    if (!(fabs(factor) <= DBL_MAX)) {
        return dcommi_fail(DCOMM_ERR_INVALID,
                           "dcomm_feedback_rescale: factor is %g; it must be finite", factor);
    }
    if (fb->opts.variant == DCOMM_FEEDBACK_EF21) {
        return DCOMM_OK; /* it holds estimates of gradients, nothing that is still to be sent */
    }
    dcommi_feedback_store *stores[] = {&fb->worker, &fb->owner, &fb->velocity};
    for (int k = 0; k < 3; k++) {
        dcommi_feedback_store *s = stores[k];
        for (size_t i = 0; i < s->count; i++) {
            float x = (float)((double)dcommi_feedback_get(s, s->now, i) * factor);
            x = dcommi_f32_bounded(x);
            dcommi_feedback_set(s, s->now, i, x);
            dcommi_feedback_set(s, s->next, i, x);
        }
    }
    return DCOMM_OK;
}

DCOMM_API dcomm_status dcomm_feedback_undo(dcomm_feedback *fb)
{
    DCOMMI_TRY(dcommi_feedback_open("dcomm_feedback_undo", fb, false));
    if (fb->last == DCOMMI_FEEDBACK_NOTHING || fb->opts.in_place) {
        return dcommi_fail(DCOMM_ERR_INVALID, "dcomm_feedback_undo: %s",
                           fb->opts.in_place ? "opts.in_place keeps no residuals of before the step"
                                             : "no step was committed since the last one was begun "
                                               "or taken back");
    }
    if (fb->last == DCOMMI_FEEDBACK_COMMITTED) {
        dcommi_feedback_exchange(fb);
        fb->owner_factor = fb->before.owner_factor;
        fb->average = fb->before.average;
        fb->nranks = fb->before.nranks;
    }
    fb->last = DCOMMI_FEEDBACK_NOTHING;
    fb->step--;
    return DCOMM_OK;
}

#endif
