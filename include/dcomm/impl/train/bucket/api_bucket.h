/* api_bucket.h - the public calls on gradient buckets. */
#ifndef DCOMMI_API_BUCKET_H
#define DCOMMI_API_BUCKET_H

#include "join.h"
#include "report.h"
#include "shard.h"

/* ---- life ---- */

static dcomm_status dcommi_bkt_books(dcomm_buckets *b)
{
    for (int i = 0; i < DCOMMI_BKT_SPANS; i++) {
        if ((b->spans[i] = dcommi_calloc(b->history, sizeof **b->spans)) == NULL) {
            return DCOMM_ERR_NO_MEMORY;
        }
    }
    if (b->opts.trace_steps == 0) {
        return DCOMM_OK;
    }
    if ((b->kept = dcommi_calloc(b->opts.trace_steps, sizeof *b->kept)) == NULL) {
        return DCOMM_ERR_NO_MEMORY;
    }
    for (size_t i = 0; i < b->opts.trace_steps; i++) {
        dcommi_bkt_kept *kept = &b->kept[i];
        if ((kept->ready = dcommi_calloc(b->nparams, 3 * sizeof *kept->ready)) == NULL) {
            return DCOMM_ERR_NO_MEMORY;
        }
        kept->start = kept->ready + b->nparams;
        kept->done = kept->start + b->nparams;
    }
    return DCOMM_OK;
}

static void dcommi_bkt_take_opts(dcomm_buckets *b, const dcomm_buckets_opts *opts)
{
    b->opts = *opts;
    b->opts.codec = NULL;
    b->opts.value_codec = NULL;
    b->opts.rules = NULL;
    b->opts.feedback = NULL;
    b->opts.bucket_bytes = opts->bucket_bytes > 0 ? opts->bucket_bytes : DCOMMI_BKT_BYTES;
    size_t first = opts->first_bytes > 0 ? opts->first_bytes : DCOMMI_BKT_FIRST_BYTES;
    b->opts.first_bytes = first < b->opts.bucket_bytes ? first : b->opts.bucket_bytes;
    b->history = opts->history > 0 ? opts->history : DCOMMI_BKT_HISTORY;
    b->has_feedback = opts->feedback != NULL;
    if (b->has_feedback) {
        b->feedback_opts = *opts->feedback;
    }
}

/* Do the part of the creation that one rank can do by itself. */
static dcomm_status dcommi_bkt_prepare(dcomm_buckets *b, const dcomm_bucket_param *params,
                                       size_t nparams, const dcomm_buckets_opts *opts)
{
    if (nparams > UINT32_MAX / 2) {
        return dcommi_fail(DCOMM_ERR_INVALID,
                           "dcomm_buckets_create: nparams is %zu; it must be below 2^31", nparams);
    }
    dcommi_bkt_take_opts(b, opts);
    b->params = dcommi_calloc(nparams, sizeof *b->params);
    b->card = dcommi_calloc(DCOMMI_BKT_CARD_WORDS, sizeof *b->card);
    b->cards = dcommi_bkt_cards_make(b);
    b->paces = dcommi_bkt_paces_make(b);
    if (b->params == NULL || b->card == NULL || b->cards == NULL || b->paces == NULL) {
        return DCOMM_ERR_NO_MEMORY;
    }
    b->nparams = nparams;
    DCOMMI_TRY(dcommi_bkt_take(b, params, opts));
    DCOMMI_TRY(dcommi_bkt_open_devices(b));
    return dcommi_bkt_books(b);
}

/* Create the buckets. All ranks call this, on the buckets' own communicator. */
static dcomm_status dcommi_bkt_make(dcomm_buckets *b, const dcomm_bucket_param *params,
                                    size_t nparams, const dcomm_buckets_opts *opts)
{
    static const dcommi_bkt_run nothing;
    dcomm_buckets_rebind_info info;
    DCOMMI_TRY(dcommi_bkt_agree(b, dcommi_bkt_prepare(b, params, nparams, opts), &nothing, &info));
    if (info.carried > 0) {
        return dcommi_bkt_join(b, &info);
    }
    b->rebound = info;
    b->met_rank = b->rank;
    b->met_size = b->size;
    dcommi_bkt_layout layout = {0};
    uint32_t *sequence = dcommi_calloc(b->nparams, sizeof *sequence);
    dcomm_status status = sequence == NULL ? DCOMM_ERR_NO_MEMORY : DCOMM_OK;
    for (size_t i = 0; i < b->nparams && status == DCOMM_OK; i++) {
        sequence[i] = (uint32_t)(b->nparams - 1 - i);
    }
    status = status == DCOMM_OK ? dcommi_bkt_build(b, sequence, &layout) : status;
    b->sequence = sequence;
    if (status == DCOMM_OK) {
        dcommi_bkt_settle(b, &layout);
    }
    DCOMMI_TRY(dcommi_bkt_all_good(b, status));
    return dcommi_bkt_decide(b);
}

static void dcommi_bkt_free(dcomm_buckets *b)
{
    dcommi_bkt_layout_free(&b->layout);
    for (size_t i = 0; i < b->nkinds; i++) {
        dcomm_codec_destroy(&b->kinds[i].codec);
    }
    for (int i = 0; i < DCOMMI_BKT_SPANS; i++) {
        dcommi_free(b->spans[i]);
    }
    for (size_t i = 0; b->kept != NULL && i < b->opts.trace_steps; i++) {
        dcommi_free(b->kept[i].ready);
    }
    dcomm_codec_destroy(&b->value_codec);
    dcommi_bkt_close_looks(b);
    dcommi_bkt_close_devices(b);
    dcommi_free(b->kept);
    dcommi_free(b->sequence);
    dcommi_free(b->kinds);
    dcommi_free(b->params);
    dcommi_free(b->names);
    dcommi_free(b->card);
    dcommi_free(b->cards);
    dcommi_bkt_paces_free(b->paces);
    dcommi_free(b->sights);
    pthread_mutex_destroy(&b->lock);
    dcommi_free(b);
}

DCOMM_API dcomm_status dcomm_buckets_create(dcomm_comm *comm, const dcomm_bucket_param *params,
                                            size_t nparams, const dcomm_buckets_opts *opts,
                                            dcomm_buckets **b_p)
{
    static const dcomm_buckets_opts defaults;
    DCOMMI_NEED(comm);
    DCOMMI_NEED(b_p);
    *b_p = NULL;
    dcomm_comm *own = NULL;
    DCOMMI_TRY(dcomm_comm_dup(comm, &own));
    dcomm_buckets *b = dcommi_alloc(sizeof *b);
    if (b == NULL || pthread_mutex_init(&b->lock, NULL) != 0) {
        dcommi_free(b);
        dcomm_comm_abort(own, "no memory for buckets");
        dcomm_comm_destroy(&own);
        return dcommi_fail(DCOMM_ERR_NO_MEMORY, "dcomm_buckets_create: no memory");
    }
    b->comm = own;
    own->timed = true;
    b->rank = own->rank;
    b->size = own->size;
    dcomm_status status = dcommi_bkt_make(b, params, nparams, opts != NULL ? opts : &defaults);
    if (status < 0) {
        char why[DCOMMI_MESSAGE_MAX];
        snprintf(why, sizeof why, "%s", dcomm_last_error());
        dcomm_buckets_destroy(&b);
        return dcommi_fail(status, "%s", why);
    }
    *b_p = b;
    return DCOMM_OK;
}

DCOMM_API dcomm_status dcomm_buckets_destroy(dcomm_buckets **b_p)
{
    if (b_p == NULL || *b_p == NULL) {
        return DCOMM_OK;
    }
    DCOMMI_TRY(dcommi_check_fork());
    dcomm_buckets *b = *b_p;
    *b_p = NULL;
    if (atomic_load(&b->open)) {
        dcomm_comm_abort(b->comm, "its buckets were destroyed in the middle of a step");
        dcommi_bkt_drain(b);
    }
    double timeout_s = b->comm->timeout_s;
    dcomm_status status = dcomm_comm_destroy(&b->comm);
    dcommi_bkt_drain_devices(b, timeout_s);
    dcommi_bkt_free(b);
    return status;
}

/* ---- a step ---- */

DCOMM_API void *dcomm_param_grad(dcomm_buckets *b, size_t i)
{
    if (b == NULL || i >= b->nparams) {
        return NULL;
    }
    dcommi_bkt_param *p = &b->params[i];
    return p->grad != NULL ? p->grad : p->count > 0 ? dcommi_bkt_place(b, p) : NULL;
}

DCOMM_API dcomm_status dcomm_buckets_begin(dcomm_buckets *b, const dcomm_buckets_step *step)
{
    DCOMMI_TRY(dcommi_bkt_check("dcomm_buckets_begin", b));
    if (step == NULL || !(step->weight >= 0 && step->weight <= DBL_MAX)) {
        return dcommi_fail(DCOMM_ERR_INVALID, "dcomm_buckets_begin: step%s",
                           step == NULL ? " is NULL" : "->weight is negative or not finite");
    }
    pthread_mutex_lock(&b->lock);
    dcomm_status status;
    if (atomic_load(&b->open)) {
        status = dcommi_fail(DCOMM_ERR_INVALID,
                             "dcomm_buckets_begin: step %" PRIu64 " is under way", b->steps);
    } else {
        b->step = *step;
        b->begun = true;
        status = dcommi_bkt_open(b);
    }
    pthread_mutex_unlock(&b->lock);
    return status;
}

DCOMM_API dcomm_status dcomm_param_mark_ready(dcomm_buckets *b, size_t i, void *stream)
{
    return dcommi_bkt_mark("dcomm_param_mark_ready", b, i, DCOMMI_BKT_READY, stream);
}

DCOMM_API dcomm_status dcomm_param_mark_unused(dcomm_buckets *b, size_t i)
{
    return dcommi_bkt_mark("dcomm_param_mark_unused", b, i, DCOMMI_BKT_UNUSED, NULL);
}

DCOMM_API dcomm_status dcomm_buckets_progress(dcomm_buckets *b)
{
    DCOMMI_TRY(dcommi_bkt_check("dcomm_buckets_progress", b));
    dcomm_context *context = b->comm->context;
    if (dcommi_token_try(context)) {
        for (int i = 0; i < DCOMMI_TURN && dcommi_progress(context); i++) {
        }
        dcommi_token_release(context);
    }
    dcomm_status status = DCOMM_OK;
    if ((b->opts.weighted || dcommi_bkt_keeps_errors(b)) &&
        atomic_load_explicit(&b->open, memory_order_acquire)) {
        pthread_mutex_lock(&b->lock);
        status = atomic_load(&b->open) ? dcommi_bkt_launch(b) : DCOMM_OK;
        pthread_mutex_unlock(&b->lock);
    }
    return status;
}

DCOMM_API dcomm_status dcomm_param_wait(dcomm_buckets *b, size_t i)
{
    DCOMMI_TRY(dcommi_bkt_check("dcomm_param_wait", b));
    if (i >= b->nparams || !atomic_load_explicit(&b->open, memory_order_acquire) ||
        b->step.accumulate) {
        return dcommi_fail(DCOMM_ERR_INVALID, "dcomm_param_wait: parameter %zu of %zu: %s", i,
                           b->nparams,
                           !atomic_load(&b->open) ? "no step is under way"
                           : b->step.accumulate   ? "this step accumulates and sends nothing"
                                                  : "there is no such parameter");
    }
    for (size_t k = 0; k <= b->params[i].bucket; k++) {
        const dcommi_bkt *bucket = &b->layout.buckets[k];
        for (size_t j = 0; j < bucket->nparams && atomic_load(&bucket->pending) > 0; j++) {
            const dcommi_bkt_param *p = &b->params[bucket->params[j]];
            if (atomic_load(&p->mark) == DCOMMI_BKT_IDLE) {
                return dcommi_fail(DCOMM_ERR_INVALID,
                                   "dcomm_param_wait: \"%s\" is in bucket %zu, and bucket %zu "
                                   "waits for \"%s\", which is not ready",
                                   b->params[i].name, b->params[i].bucket, k, p->name);
            }
        }
    }
    return dcommi_bkt_await(b, &b->layout.buckets[b->params[i].bucket]);
}

DCOMM_API dcomm_status dcomm_buckets_wait(dcomm_buckets *b)
{
    DCOMMI_TRY(dcommi_bkt_check("dcomm_buckets_wait", b));
    dcomm_status status = dcommi_bkt_wait_all(b);
    dcommi_bkt_closing(b, true);
    if (status >= 0 && !b->step.accumulate) {
        dcommi_bkt_record(b);
        if (b->opts.rebuild && b->built == 1) {
            status = dcommi_bkt_rebuild(b);
            DCOMMI_THEN(status, dcommi_bkt_decide(b));
            b->built_at = status >= 0 ? b->sent_steps + 1 : b->built_at;
        }
    }
    if (status < 0) {
        dcommi_bkt_good(b, status);
        dcommi_bkt_drain(b);
        return dcommi_bkt_broken(b);
    }
    dcommi_bkt_close(b);
    dcommi_bkt_closing(b, false);
    return DCOMM_OK;
}

/* ---- information ---- */

DCOMM_API dcomm_status dcomm_buckets_get_info(const dcomm_buckets *b, dcomm_buckets_info *info)
{
    DCOMMI_NEED(b);
    DCOMMI_NEED(info);
    *info = (dcomm_buckets_info){.nparams = b->nparams,
                                 .nbuckets = b->layout.n,
                                 .bytes = b->bytes,
                                 .steps = b->steps,
                                 .sent_steps = b->sent_steps,
                                 .built = b->built,
                                 .status = (dcomm_status)atomic_load(&b->failed)};
    return DCOMM_OK;
}

DCOMM_API dcomm_comm *dcomm_buckets_comm(const dcomm_buckets *b)
{
    return b != NULL ? b->comm : NULL;
}

DCOMM_API dcomm_status dcomm_param_get_bucket(const dcomm_buckets *b, size_t i, size_t *bucket_p,
                                              size_t *first_p)
{
    if (b == NULL || bucket_p == NULL || first_p == NULL || i >= b->nparams) {
        return dcommi_fail(
            DCOMM_ERR_INVALID,
            "dcomm_param_get_bucket: an argument is NULL, or there is no parameter %zu", i);
    }
    *bucket_p = b->params[i].bucket;
    *first_p = b->params[i].first;
    return DCOMM_OK;
}

#endif
