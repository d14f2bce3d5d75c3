/* feedback.h - a step of error feedback: begin, encode, recode, commit. */
#ifndef DCOMMI_FEEDBACK_H
#define DCOMMI_FEEDBACK_H

#include "../../../../kernels/cpu/norm.h"
#include "basis.h"

/* The owner's encodings draw other random numbers than the worker's. */
#define DCOMMI_FEEDBACK_OWNER 0x80000000u

/* One encoding of elements [at, at + count) of a store. */
typedef struct dcommi_feedback_call {
    const float *x;  /* what is encoded ... */
    dcommi_wires in; /* ... or, where that is NULL, the wires whose sum is */
    float factor;    /* on the sum */
    dcommi_feedback_store *store;
    size_t at, count;
    dcomm_codec_key key;
    void *wire;
    size_t capacity, bytes;
    dcomm_codec_report report;
    bool estimates;     /* EF21: the store is an estimate of x, not a residual */
    void *state;        /* what the codec remembers of the range; NULL: nothing */
    dcommi_tally tally; /* for the ledger */
} dcommi_feedback_call;

/* ---- the beginning ---- */

/* DGC clips each rank's gradient so that the norm of the sum of independent ones is opts.clip: a
 * rank's norm is this at most. 0: it does not clip. */
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

/* Wherever the state lies. */
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
                           "dcomm_feedback_begin: [%zu, +%zu) or [%zu, +%zu) is not within the "
                           "tensor's %zu elements",
                           step.first, step.count, step.own_first, step.own_count, fb->count);
    }
    if (fb->stale) {
        return dcommi_fail(
            DCOMM_ERR_INVALID,
            "dcomm_feedback_begin: a step failed, and the residuals of the ranks may "
            "not fit together any more; see dcomm_feedback_recover");
    }
    DCOMMI_TRY(dcommi_feedback_own(fb, step.own_first, step.own_count));
    if (fb->worker.place != NULL && step.partly) {
        DCOMMI_TRY(dcommi_feedback_store_ready(&fb->worker));
        DCOMMI_TRY(dcommi_feedback_store_ready(&fb->velocity));
    }
    if (step.count != fb->count && (step.first != fb->last_first || step.count != fb->last_count)) {
        dcommi_feedback_store_level(&fb->worker); /* what lies outside is the same in both */
        dcommi_feedback_store_level(&fb->velocity);
        dcommi_feedback_store_level(&fb->estimate);
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

/* ---- one encoding ---- */

static dcomm_status dcommi_feedback_workspace(dcomm_feedback *fb, const dcomm_codec *codec,
                                              size_t count)
{
    size_t need = dcomm_codec_recode_workspace_bytes(codec, count);
    if (need > fb->workspace_room || fb->workspace == NULL) {
        dcommi_free(fb->workspace);
        fb->workspace = dcommi_alloc_raw(need);
        fb->workspace_room = fb->workspace != NULL ? need : 0;
    }
    return fb->workspace != NULL ? DCOMM_OK : DCOMM_ERR_NO_MEMORY;
}

/* The codec does all in one pass. */
static dcomm_status dcommi_feedback_fused(dcomm_feedback *fb, dcommi_feedback_call *c)
{
    const dcomm_codec *codec = dcomm_feedback_codec(fb);
    dcommi_feedback_store *s = c->store;
    float *widened = NULL, *next = dcommi_feedback_at(s, s->next, c->at);
    if (s->bf16) {
        widened = dcommi_feedback_room(fb, DCOMMI_FEEDBACK_RESIDUAL, c->count);
        next = dcommi_feedback_room(fb, DCOMMI_FEEDBACK_NEXT, c->count);
        if (widened == NULL || next == NULL) {
            return DCOMM_ERR_NO_MEMORY;
        }
    }
    const float *residual = dcommi_feedback_read(s, s->now, c->at, c->count, widened);
    dcommi_encoding call = dcommi_codec_call(c->x, residual, next, c->count, &c->key, c->wire);
    call.state = c->state;
    call.tally = fb->ledger != NULL ? &c->tally : NULL;
    dcomm_status status =
        c->x != NULL ? dcommi_codec_run("dcomm_encode_feedback", codec, &call, c->capacity,
                                        &c->bytes, fb->workspace, &c->report)
                     : dcommi_codec_recode_run(codec, &c->in, c->factor, &call, c->capacity,
                                               &c->bytes, fb->workspace, &c->report);
    if (status == DCOMM_OK || c->report.nonfinite > 0) {
        dcommi_feedback_write(s, c->at, c->count, next);
    }
    return status;
}

static inline float dcommi_feedback_bounded(float e, dcomm_codec_report *report)
{
    if (dcommi_f32_nonfinite(e)) {
        report->clipped++;
        return dcommi_f32_signed(FLT_MAX, e);
    }
    return e;
}

/* What the worker holds back of element `at` after this step. With EF21 that is what its estimate
 * lacks; where the gradient is not known, nothing. */
static double dcommi_feedback_held(const dcomm_feedback *fb, size_t at)
{
    float next = dcommi_feedback_get(&fb->worker, fb->worker.next, at);
    if (fb->opts.variant != DCOMM_FEEDBACK_EF21) {
        return next;
    }
    float x = fb->now.partly ? NAN : fb->now.x[at - fb->now.first];
    return dcommi_f32_nonfinite(x) ? 0 : x - next; /* in f32, as the ledger takes it */
}

/* The gradient will be overwritten before the last of it is given back, and EF21's ledger asks for
 * it then. */
static inline dcomm_status dcommi_feedback_remember(dcomm_feedback *fb)
{
    if (fb->ledger == NULL || fb->opts.variant != DCOMM_FEEDBACK_EF21 || fb->now.partly) {
        return DCOMM_OK;
    }
    float *copy = dcommi_feedback_room(fb, DCOMMI_FEEDBACK_GRADIENT, fb->now.count);
    if (copy == NULL) {
        return DCOMM_ERR_NO_MEMORY;
    }
    fb->now.x = memcpy(copy, fb->now.x, fb->now.count * sizeof *copy);
    return DCOMM_OK;
}

/* Add factor * by to the worker's next residual. */
static void dcommi_feedback_raise(dcomm_feedback *fb, size_t at, float factor, float by)
{
    dcommi_feedback_store *s = &fb->worker;
    double before = dcommi_feedback_held(fb, at);
    float sum = dcommi_feedback_plus(dcommi_feedback_get(s, s->next, at), factor, by);
    dcommi_feedback_set(s, s->next, at, dcommi_feedback_bounded(sum, &(dcomm_codec_report){0}));
    double after = dcommi_feedback_held(fb, at);
    fb->held += after * after - before * before;
}

static inline void dcommi_feedback_raised(dcomm_feedback *fb)
{
    if (fb->ledger != NULL) {
        fb->ledger->residual_norm = dcommi_sqrt(fb->held > 0 ? fb->held : 0);
    }
}

/* x and the store become e, in the scratch array INPUT; counts what is not finite. */
static void dcommi_feedback_input(const dcommi_feedback_call *c, const float *held, float *e,
                                  dcomm_codec_report *report)
{
    report->first_nonfinite = SIZE_MAX;
    for (size_t i = 0; i < c->count; i++) {
        if (DCOMMI_UNLIKELY(dcommi_f32_nonfinite(c->x[i]))) {
            report->first_nonfinite = report->nonfinite++ == 0 ? i : report->first_nonfinite;
            e[i] = c->estimates ? 0 : held[i];
        } else {
            e[i] = dcommi_feedback_bounded(c->estimates ? c->x[i] - held[i] : c->x[i] + held[i],
                                           report);
        }
    }
}

#define DCOMMI_FEEDBACK_BLOCK 1024 /* elements that stay in the first cache; whole vectors */

/* What the store holds after `sent` has gone out of e, and the ledger's sums (tally may be NULL).
 */
static void dcommi_feedback_settle(const dcommi_feedback_call *c, const float *e, const float *held,
                                   const float *sent, dcommi_tally *tally)
{
    float next[DCOMMI_FEEDBACK_BLOCK];
    for (size_t at = 0, n; at < c->count; at += n) {
        n = c->count - at < DCOMMI_FEEDBACK_BLOCK ? c->count - at : DCOMMI_FEEDBACK_BLOCK;
        for (size_t i = 0; i < n; i++) {
            float gone = dcommi_f32_nonfinite(sent[at + i]) ? 0 : sent[at + i];
            float left = c->estimates ? held[at + i] + gone : e[at + i] - gone;
            next[i] = dcommi_f32_nonfinite(left) ? dcommi_f32_signed(FLT_MAX, left) : left;
        }
        dcommi_feedback_write(c->store, c->at + at, n, next);
        if (tally == NULL) {
            continue;
        }
        if (c->store->bf16) { /* as it was rounded */
            dcommi_feedback_read(c->store, c->store->next, c->at + at, n, next);
        }
        dcommi_tally_compare(tally, at, c->estimates ? next : sent + at, n);
        for (size_t i = 0; c->estimates && i < n; i++) { /* what the estimate lacks is held back */
            float x = c->x[at + i];
            next[i] = dcommi_f32_nonfinite(x) ? 0 : x - next[i];
        }
        dcommi_tally_held(tally, sent + at, next, n);
    }
}

/* For a scaled codec, and for EF21: what is encoded is not gradient + residual. */
static dcomm_status dcommi_feedback_apart(dcomm_feedback *fb, dcommi_feedback_call *c)
{
    const dcomm_codec *codec = dcomm_feedback_codec(fb);
    dcommi_feedback_store *s = c->store;
    float *e = dcommi_feedback_room(fb, DCOMMI_FEEDBACK_INPUT, c->count);
    float *sent = dcommi_feedback_room(fb, DCOMMI_FEEDBACK_SENT, c->count);
    float *widened = dcommi_feedback_room(fb, DCOMMI_FEEDBACK_RESIDUAL, c->count);
    float *next = dcommi_feedback_room(fb, DCOMMI_FEEDBACK_NEXT, c->count);
    if (e == NULL || sent == NULL || widened == NULL || next == NULL) {
        return DCOMM_ERR_NO_MEMORY;
    }
    if (c->x == NULL) {
        DCOMMI_TRY(dcomm_decode_sum(codec, c->in.wires, c->in.bytes, c->in.n, next, c->count));
        for (size_t i = 0; i < c->count; i++) {
            next[i] *= c->factor;
        }
        c->x = next;
    }
    dcomm_codec_report seen = {0};
    const float *held = dcommi_feedback_read(s, s->now, c->at, c->count, widened);
    dcommi_feedback_input(c, held, e, &seen);
    for (size_t i = 0; i < c->count; i++) {
        sent[i] = e[i] * (float)fb->factor;
    }
    dcommi_encoding call = dcommi_codec_call(sent, NULL, NULL, c->count, &c->key, c->wire);
    call.state = c->state;
    DCOMMI_TRY(dcommi_codec_run("dcomm_feedback_encode", codec, &call, c->capacity, &c->bytes,
                                fb->workspace, &c->report));
    DCOMMI_TRY(dcomm_decode(codec, c->wire, c->bytes, sent, c->count));
    dcommi_feedback_settle(c, e, held, sent, fb->ledger != NULL ? &c->tally : NULL);
    c->report.clipped += seen.clipped;
    c->report.nonfinite = seen.nonfinite;
    c->report.first_nonfinite = seen.first_nonfinite;
    if (seen.nonfinite > 0 && codec->nonfinite == DCOMMI_NONFINITE_FAIL && c->in.n > 0) {
        return dcommi_codec_beyond("error feedback", &seen, c->count);
    }
    if (seen.nonfinite > 0 && codec->nonfinite == DCOMMI_NONFINITE_FAIL) {
        return dcommi_fail(DCOMM_ERR_INVALID,
                           "error feedback: %zu of %zu inputs are not finite; the first is number "
                           "%zu",
                           seen.nonfinite, c->count, seen.first_nonfinite);
    }
    return DCOMM_OK;
}

static void dcommi_feedback_note(dcomm_feedback *fb, const dcommi_tally *tally)
{
    dcommi_ledger_add(fb->ledger, tally);
    fb->held += dcommi_tally_sum(tally, DCOMMI_LEDGER_RESIDUAL);
    fb->ledger->residual_norm = dcommi_sqrt(fb->held > 0 ? fb->held : 0);
}

/* x: the gradient, for the ledger. What the codec says of non-finite inputs comes last: everything
 * is then as if they had been 0. */
static dcomm_status dcommi_feedback_run(dcomm_feedback *fb, dcommi_feedback_call *c, const float *x,
                                        size_t *bytes_p, dcomm_codec_report *report)
{
    DCOMMI_TRY(dcommi_feedback_workspace(fb, dcomm_feedback_codec(fb), c->count));
    DCOMMI_TRY(dcommi_feedback_recall(fb, c->key.first, c->count,
                                      (c->key.rank & DCOMMI_FEEDBACK_OWNER) != 0, &c->state));
    c->tally.x = x;
    dcomm_status status = c->estimates || fb->factor != 1 ? dcommi_feedback_apart(fb, c)
                                                          : dcommi_feedback_fused(fb, c);
    if (status != DCOMM_OK && c->report.nonfinite == 0) {
        return status;
    }
    *bytes_p = c->bytes;
    if (report != NULL) {
        *report = c->report;
    }
    if (fb->ledger != NULL) {
        dcommi_feedback_note(fb, &c->tally);
        dcomm_ledger_encoded(fb->ledger, c->count, &c->report);
    }
    return status;
}

/* ---- the worker ---- */

static dcomm_status dcommi_feedback_range(const char *what, size_t first, size_t count, size_t from,
                                          size_t length, size_t done)
{
    if (first < from || first - from > length || count > length - (first - from) ||
        count > length - done) {
        return dcommi_fail(DCOMM_ERR_INVALID,
                           "%s: [%zu, +%zu) is not within [%zu, +%zu), of which %zu elements are "
                           "done",
                           what, first, count, from, length, done);
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

/* u = m u + clip g, where g is finite. Returns the array that holds it, for the range. */
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
        u[i] = dcommi_feedback_plus(clipped, m, before[i]);
    }
    return u;
}

/* The momentum of what was sent is forgotten, else it would be sent twice. */
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

/* The worker encodes these elements. */
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

/* With g in place of what begin was told: a sum in which this rank's gradient is. */
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
        return dcommi_fail(DCOMM_ERR_INVALID, "%s: factor %g", what, (double)c->factor);
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

/* As dcomm_feedback_recode, of elements that this rank has encoded in this step and has no owner
 * residual for: what rounding takes away goes into its worker residual. */
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
    float back = (float)divisor * (fb->opts.variant == DCOMM_FEEDBACK_EF21 ? -1.0f : 1.0f);
    if (fb->opts.variant != DCOMM_FEEDBACK_EF21) {
        fb->held = held; /* it joins what the worker holds */
    }
    for (size_t i = 0; (status == DCOMM_OK || c.report.nonfinite > 0) && i < count; i++) {
        dcommi_feedback_raise(fb, first + i, back, lost[i]);
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

/* ---- linear codecs ---- */

/* *seen: what was clipped, and not finite. */
static dcomm_status dcommi_feedback_gather_of(dcomm_feedback *fb, const float **e_p,
                                              dcomm_codec_report *seen)
{
    DCOMMI_TRY(dcommi_feedback_here("dcomm_feedback_correct", fb));
    if (fb->opts.variant == DCOMM_FEEDBACK_DGC || e_p == NULL) {
        return dcommi_fail(e_p == NULL ? DCOMM_ERR_INVALID : DCOMM_ERR_UNSUPPORTED,
                           "dcomm_feedback_correct: %s",
                           e_p == NULL ? "e_p is NULL" : "DGC needs to see what one rank sends");
    }
    size_t n = fb->now.count;
    if (fb->gathered == NULL || n > fb->gathered_room) {
        dcommi_free(fb->gathered);
        fb->gathered = dcommi_alloc_raw(dcommi_size_mul(n, sizeof(float)));
        fb->gathered_room = fb->gathered != NULL ? n : 0;
    }
    float *room = dcommi_feedback_room(fb, DCOMMI_FEEDBACK_RESIDUAL, n);
    if (fb->gathered == NULL || room == NULL) {
        return DCOMM_ERR_NO_MEMORY;
    }
    dcommi_feedback_call c = {
        .x = fb->now.x, .count = n, .estimates = fb->opts.variant == DCOMM_FEEDBACK_EF21};
    const float *held = dcommi_feedback_read(&fb->worker, fb->worker.now, fb->now.first, n, room);
    dcommi_feedback_input(&c, held, fb->gathered, seen);
    *e_p = fb->gathered;
    if (fb->ledger != NULL) {
        dcomm_ledger_encoded(fb->ledger, 0, seen);
    }
    if (seen->nonfinite > 0 && fb->codec->nonfinite == DCOMMI_NONFINITE_FAIL) {
        return dcommi_fail(DCOMM_ERR_INVALID,
                           "dcomm_feedback_correct: %zu of %zu inputs are not finite; the first is "
                           "number %zu",
                           seen->nonfinite, n, seen->first_nonfinite);
    }
    return DCOMM_OK;
}

DCOMM_API dcomm_status dcomm_feedback_correct(dcomm_feedback *fb, const float **e_p)
{
    return dcommi_feedback_gather_of(fb, e_p, &(dcomm_codec_report){0});
}

DCOMM_API dcomm_status dcomm_feedback_keep(dcomm_feedback *fb, size_t first, size_t count,
                                           const float *part)
{
    DCOMMI_TRY(dcommi_feedback_here("dcomm_feedback_keep", fb));
    DCOMMI_TRY(dcommi_feedback_range("dcomm_feedback_keep", first, count, fb->now.first,
                                     fb->now.count, fb->encoded));
    dcommi_feedback_store *s = &fb->worker;
    float *room = dcommi_feedback_room(fb, DCOMMI_FEEDBACK_RESIDUAL, count);
    if (fb->gathered == NULL || part == NULL || room == NULL) {
        return fb->gathered != NULL && part != NULL
                   ? DCOMM_ERR_NO_MEMORY
                   : dcommi_fail(DCOMM_ERR_INVALID, "dcomm_feedback_keep: %s",
                                 part == NULL ? "part is NULL" : "gather comes first");
    }
    const size_t at = first - fb->now.first;
    dcommi_feedback_call c = {.x = fb->now.x + at,
                              .store = s,
                              .at = first,
                              .count = count,
                              .estimates = fb->opts.variant == DCOMM_FEEDBACK_EF21,
                              .tally = {.x = fb->now.x + at}};
    const float *held = dcommi_feedback_read(s, s->now, first, count, room);
    dcommi_feedback_settle(&c, fb->gathered + at, held, part, fb->ledger != NULL ? &c.tally : NULL);
    if (fb->ledger != NULL) {
        dcommi_feedback_note(fb, &c.tally);
    }
    fb->encoded += count;
    return DCOMM_OK;
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
        next[i] = result[i] = now[i] + result[i];
    }
    fb->finished += count;
    return DCOMM_OK;
}

/* A step in which this rank has nothing to encode: ranks count alike. */
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
    if (fb == NULL) {
        return dcommi_fail(DCOMM_ERR_INVALID, "dcomm_feedback_fail: fb is NULL");
    }
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
                           "dcomm_feedback_recover: in place, the residuals before the step are "
                           "gone; they can only be reset");
    }
    if (how == DCOMM_FEEDBACK_RETRY) {
        dcommi_feedback_store_level(&fb->worker);
        dcommi_feedback_store_level(&fb->velocity);
        dcommi_feedback_store_level(&fb->estimate);
    } else {
        DCOMMI_TRY(dcommi_feedback_norm2(&fb->worker, &lost));
        DCOMMI_TRY(dcommi_feedback_norm2(&fb->owner, &lost));
        lost = dcommi_sqrt(lost);
        dcommi_feedback_store_clear(&fb->worker);
        dcommi_feedback_store_clear(&fb->owner);
        dcommi_feedback_store_clear(&fb->velocity);
        dcommi_feedback_store_clear(&fb->estimate);
        dcommi_feedback_store_clear(&fb->basis);
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
        return dcommi_fail(DCOMM_ERR_INVALID, "dcomm_feedback_rescale: factor %g", factor);
    }
    if (fb->opts.variant == DCOMM_FEEDBACK_EF21) {
        return DCOMM_OK; /* it holds estimates of gradients, nothing that is late */
    }
    dcommi_feedback_store *stores[] = {&fb->worker, &fb->owner, &fb->velocity};
    for (int k = 0; k < 3; k++) {
        dcommi_feedback_store *s = stores[k];
        for (size_t i = 0; i < s->count; i++) {
            float x = (float)((double)dcommi_feedback_get(s, s->now, i) * factor);
            x = dcommi_f32_nonfinite(x) ? dcommi_f32_signed(FLT_MAX, x) : x;
            dcommi_feedback_set(s, s->now, i, x);
            dcommi_feedback_set(s, s->next, i, x);
        }
    }
    return DCOMM_OK;
}

#endif
