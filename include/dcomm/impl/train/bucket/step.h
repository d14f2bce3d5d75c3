/* step.h - a step: mark gradients, start buckets in order, wait for results. */
#ifndef DCOMMI_BUCKET_STEP_H
#define DCOMMI_BUCKET_STEP_H

#include "pace.h"
#include "watch.h"

/* ---- failure ---- */

static dcomm_status dcommi_bkt_broken(dcomm_buckets *b)
{
    int failed = atomic_load_explicit(&b->failed, memory_order_acquire);
    return failed < 0 ? dcommi_fail((dcomm_status)failed, "%s", b->message) : DCOMM_OK;
}

/* Fail the step, and tell the other ranks why. The caller holds b->lock. */
static dcomm_status dcommi_bkt_fail(dcomm_buckets *b, dcomm_status status)
{
    if (atomic_load(&b->failed) < 0) {
        return dcommi_bkt_broken(b);
    }
    snprintf(b->message, sizeof b->message, "%s", dcommi_message);
    atomic_store_explicit(&b->failed, status, memory_order_release);
    dcomm_comm_abort(b->comm, b->message);
    return dcommi_fail(status, "%s", b->message);
}

/* Pass on a status; an error fails the step. The caller does not hold b->lock. */
static dcomm_status dcommi_bkt_good(dcomm_buckets *b, dcomm_status status)
{
    if (status < 0) {
        pthread_mutex_lock(&b->lock);
        status = dcommi_bkt_fail(b, status);
        pthread_mutex_unlock(&b->lock);
    }
    return status;
}

static dcomm_status dcommi_bkt_check(const char *what, dcomm_buckets *b)
{
    if (b == NULL) {
        return dcommi_fail(DCOMM_ERR_INVALID, "%s: b is NULL", what);
    }
    DCOMMI_TRY(dcommi_check_fork());
    DCOMMI_TRY(dcommi_check_no_group(what));
    return dcommi_bkt_broken(b);
}

/* ---- beginning ---- */

/* Open the step. All ranks exchange cards. They have its number, so that a rank that has skipped a
 * step is found and does not give a wrong sum. The caller holds b->lock. */
static dcomm_status dcommi_bkt_open(dcomm_buckets *b)
{
    if (atomic_load_explicit(&b->open, memory_order_acquire)) {
        return DCOMM_OK;
    }
    if (b->opts.weighted && !b->begun) {
        return dcommi_bkt_fail(b, dcommi_fail(DCOMM_ERR_INVALID,
                                              "buckets: step %" PRIu64
                                              " was not begun by dcomm_buckets_begin, which "
                                              "tells the weight of rank %d",
                                              b->steps, b->rank));
    }
    if (b->joined.has_scaler != 0) {
        return dcommi_bkt_fail(b, dcommi_fail(DCOMM_ERR_INVALID,
                                              "buckets: rank %d has no scaler, and the ranks that "
                                              "it has joined have one; call dcomm_scaler_create "
                                              "before its first step",
                                              b->rank));
    }
    b->begin_at = dcommi_now();
    b->next = 0;
    b->told = false;
    b->seen = (dcommi_bkt_sight){0};
    b->cards_here = false;
    b->factor = 1;
    for (size_t i = 0; i < b->layout.n && !b->step.accumulate; i++) {
        dcommi_bkt *k = &b->layout.buckets[i];
        k->before = k->feedback != NULL ? k->feedback->step : 0;
    }
    if (!b->step.accumulate) {
        b->card[DCOMMI_BKT_CARD_STEP] = b->steps;
        b->card[DCOMMI_BKT_CARD_WEIGHT] = dcommi_f64_bits(b->step.weight);
        b->card[DCOMMI_BKT_CARD_OWN] = dcommi_f64_bits(b->paces->own);
        dcomm_coll_opts opts = dcommi_bkt_patience(b);
        dcomm_status status = dcomm_iallgather(b->comm, b->card, b->cards, DCOMMI_BKT_CARD_WORDS,
                                               DCOMM_U64, &opts, &b->cards_request);
        if (status < 0) {
            return dcommi_bkt_fail(b, status);
        }
    }
    atomic_store_explicit(&b->open, true, memory_order_release);
    return DCOMM_OK;
}

/* Read the ranks' cards, once they are here. The caller holds b->lock. */
static dcomm_status dcommi_bkt_read_cards(dcomm_buckets *b)
{
    double sum = 0;
    for (int r = 0; r < b->size; r++) {
        const uint64_t *card = dcommi_bkt_card_from(b, r);
        if (card[DCOMMI_BKT_CARD_STEP] != b->steps) {
            return dcommi_bkt_fail(
                b,
                dcommi_fail(DCOMM_ERR_MISMATCH,
                            "buckets: rank %d is in step %" PRIu64 ", and rank %d in step %" PRIu64
                            "; all ranks must send or accumulate in the same steps",
                            b->rank, b->steps, r, card[DCOMMI_BKT_CARD_STEP]));
        }
        sum += dcommi_f64_from_bits(card[DCOMMI_BKT_CARD_WEIGHT]);
    }
    double own = b->step.weight;
    if (sum > DBL_MAX) { /* each weight is finite all the same */
        const double small = 0x1p-64;
        own *= small;
        sum = 0;
        for (int r = 0; r < b->size; r++) {
            sum += dcommi_f64_from_bits(dcommi_bkt_card_from(b, r)[DCOMMI_BKT_CARD_WEIGHT]) * small;
        }
    }
    b->cards_here = true;
    dcommi_bkt_paces_compare(b);
    b->factor = sum > 0 ? own / sum : 0;
    return DCOMM_OK;
}

/* Read the cards if they are here, else return DCOMM_IN_PROGRESS. The caller holds b->lock. */
static dcomm_status dcommi_bkt_try_cards(dcomm_buckets *b)
{
    if (b->cards_here) {
        return DCOMM_OK;
    }
    dcomm_status status = dcomm_test(&b->cards_request);
    return status < 0           ? dcommi_bkt_fail(b, status)
           : status == DCOMM_OK ? dcommi_bkt_read_cards(b)
                                : DCOMM_IN_PROGRESS;
}

/* ---- results ---- */

/* Find the elements of a parameter that belong to this rank's shard. */
static void dcommi_bkt_owned(const dcomm_buckets *b, const dcommi_bkt_param *p, size_t *first_p,
                             size_t *count_p)
{
    const dcommi_bkt *k = &b->layout.buckets[p->bucket];
    size_t begin = 0, end = k->count;
    for (int r = 0; k->shards != NULL && r <= b->rank; r++) {
        begin = r > 0 ? begin + k->shards[r - 1] : 0;
        end = begin + k->shards[r];
    }
    begin = begin > p->first ? begin - p->first : 0;
    end = end > p->first ? end - p->first : 0;
    end = end < p->count ? end : p->count;
    *first_p = begin < end ? begin : 0;
    *count_p = begin < end ? end - begin : 0;
}

/* Bring gradients back to their places. On a device this waits for the result on the bucket's
 * stream. The caller holds b->lock. */
static dcomm_status dcommi_bkt_unpack(const dcomm_buckets *b, const dcommi_bkt *k)
{
    for (size_t i = 0; i < k->nparams && k->copies; i++) {
        const dcommi_bkt_param *p = &b->params[k->params[i]];
        size_t first, count, element = dcomm_dtype_size(p->dtype);
        dcommi_bkt_owned(b, p, &first, &count);
        if (p->grad != NULL && count > 0) {
            DCOMMI_TRY(dcommi_bkt_copy(k, p->grad + first * element,
                                       dcommi_bkt_place(b, p) + first * element, count * element));
        }
    }
    return DCOMM_OK;
}

/* ---- starting buckets ---- */

/* Start the sum of a bucket, or of `data` of its length, in place. */
static dcomm_status dcommi_bkt_send(const dcomm_buckets *b, const dcommi_bkt *k, void *data,
                                    const dcomm_coll_opts *opts, dcomm_request **request_p)
{
    dcomm_dtype dtype = b->kinds[k->kind].dtype;
    return k->shards != NULL ? dcomm_ireduce_scatterv(b->comm, DCOMM_IN_PLACE, data, k->shards,
                                                      dtype, dcommi_bkt_op(b), opts, request_p)
                             : dcomm_iallreduce(b->comm, data, data, k->count, dtype,
                                                dcommi_bkt_op(b), opts, request_p);
}

static dcomm_status dcommi_bkt_start(dcomm_buckets *b, dcommi_bkt *k)
{
    dcomm_status status = DCOMM_OK;
    dcomm_coll_opts opts = b->opts.coll;
    opts.codec = b->kinds[k->kind].codec;
    opts.feedback = k->feedback;
    opts.premul = b->opts.predivide ? 1.0 / b->size : 0;
    if (b->opts.weighted) {
        opts.premul = b->factor;
        if (b->factor == 0) { /* 0 times NaN or infinity would be NaN */
            status = dcommi_bkt_zero(k, k->data, k->bytes);
        }
    }
    k->start_at = dcommi_now();
    if (status >= 0) {
        dcommi_device_before before = dcommi_bkt_enter(k);
        dcommi_bkt_on_stream(k, &opts);
        status = dcommi_bkt_send(b, k, k->data, &opts, &k->request);
        dcommi_bkt_leave(k, before);
    }
    return status < 0 ? dcommi_bkt_fail(b, status) : DCOMM_OK;
}

/* Start the buckets that are ready, in order. The caller holds b->lock. */
static dcomm_status dcommi_bkt_launch(dcomm_buckets *b)
{
    DCOMMI_TRY(dcommi_bkt_broken(b));
    if (b->step.accumulate || b->closing) {
        return DCOMM_OK;
    }
    while (b->next < b->layout.n) {
        dcommi_bkt *k = &b->layout.buckets[b->next];
        if (atomic_load_explicit(&k->pending, memory_order_acquire) > 0) {
            break;
        }
        if (b->opts.weighted || k->feedback != NULL) { /* one step can be undone, two cannot */
            dcomm_status here = dcommi_bkt_try_cards(b);
            if (here != DCOMM_OK) {
                return here < 0 ? here : DCOMM_OK;
            }
        }
        DCOMMI_TRY(dcommi_bkt_start(b, k));
        b->next++;
    }
    if (b->next == b->layout.n) {
        dcomm_status status = dcommi_bkt_tell(b);
        return status < 0 ? dcommi_bkt_fail(b, status) : DCOMM_OK;
    }
    return DCOMM_OK;
}

/* ---- marks ---- */

/* Bring a gradient, or zeros, to its place in the bucket. Look at it if there is a scaler. */
static dcomm_status dcommi_bkt_pack(dcomm_buckets *b, const dcommi_bkt_param *p, bool zero)
{
    const dcommi_bkt *k = &b->layout.buckets[p->bucket];
    unsigned char *place = dcommi_bkt_place(b, p);
    if (p->bytes == 0) {
        return DCOMM_OK;
    }
    if (b->seen_there != NULL) {
        b->seen_there[p - b->params] = (dcomm_cuda_sight){.index = UINT64_MAX};
    }
    if (zero) {
        return dcommi_bkt_zero(k, place, p->bytes);
    } else if (b->watched && dcommi_bkt_sees(p)) {
        return dcommi_bkt_watch_there(b, p, place);
    } else if (b->watched && !p->aside && p->place == 0) {
        size_t bad = dcommi_bkt_look(p, place);
        if (bad < p->count) {
            dcommi_bkt_saw(b, p, bad);
        }
    } else if (p->grad != NULL && p->grad != place) {
        return dcommi_bkt_copy(k, place, p->grad, p->bytes);
    }
    return DCOMM_OK;
}

/* Count a gradient as ready. The last one of its bucket starts what can start. */
static dcomm_status dcommi_bkt_arrive(dcomm_buckets *b, dcommi_bkt_param *p)
{
    dcommi_bkt *k = &b->layout.buckets[p->bucket];
    p->ready_at = dcommi_now();
    p->order = atomic_fetch_add_explicit(&b->marked, 1, memory_order_relaxed);
    if (atomic_fetch_sub_explicit(&k->pending, 1, memory_order_acq_rel) > 1) {
        return DCOMM_OK;
    }
    pthread_mutex_lock(&b->lock);
    k->ready_at = p->ready_at;
    dcomm_status status = dcommi_bkt_launch(b);
    pthread_mutex_unlock(&b->lock);
    return status;
}

static dcomm_status dcommi_bkt_mark(const char *what, dcomm_buckets *b, size_t i, int as,
                                    void *stream)
{
    DCOMMI_TRY(dcommi_bkt_check(what, b));
    if (i >= b->nparams) {
        return dcommi_fail(DCOMM_ERR_INVALID, "%s: i is %zu; there are %zu parameters", what, i,
                           b->nparams);
    }
    dcommi_bkt_param *p = &b->params[i];
    DCOMMI_TRY(dcommi_bkt_follow(what, b, p, stream));
    if (!atomic_load_explicit(&b->open, memory_order_acquire)) {
        pthread_mutex_lock(&b->lock);
        dcomm_status status = dcommi_bkt_open(b);
        pthread_mutex_unlock(&b->lock);
        DCOMMI_TRY(status);
    }
    int idle = DCOMMI_BKT_IDLE;
    if (!atomic_compare_exchange_strong(&p->mark, &idle, as)) {
        return dcommi_bkt_good(
            b, dcommi_fail(DCOMM_ERR_INVALID,
                           "buckets: parameter %zu, \"%s\", was marked twice in step %" PRIu64
                           " of rank %d",
                           i, p->name, b->steps, b->rank));
    }
    if (!b->step.accumulate) {
        DCOMMI_TRY(
            dcommi_bkt_good(b, dcommi_bkt_pack(b, p, as == DCOMMI_BKT_UNUSED && !p->touched)));
    }
    return dcommi_bkt_arrive(b, p);
}

/* ---- waiting ---- */

/* Bring a bucket's result back to its gradients. DCOMM_IN_PROGRESS: a device copies it. */
static dcomm_status dcommi_bkt_back(const dcomm_buckets *b, dcommi_bkt *k)
{
    if (k->event == NULL) {
        DCOMMI_TRY(dcommi_bkt_unpack(b, k));
        DCOMMI_TRY(dcommi_bkt_unsettle(k));
    }
    return dcommi_bkt_settled(k);
}

/* End bucket k if its result is there, else return DCOMM_IN_PROGRESS. The caller holds b->lock. */
static dcomm_status dcommi_bkt_end(dcomm_buckets *b, dcommi_bkt *k)
{
    if (atomic_load_explicit(&k->finished, memory_order_acquire)) {
        return DCOMM_OK;
    }
    DCOMMI_TRY(dcommi_bkt_broken(b));
    if (k->request == NULL) {
        return DCOMM_IN_PROGRESS;
    }
    dcomm_status here = dcommi_bkt_try_cards(b); /* else the sum may be of different steps */
    if (here != DCOMM_OK) {
        return here;
    }
    dcommi_run *run = &k->request->run;
    int ended = atomic_load_explicit(&run->status, memory_order_acquire);
    dcomm_status status = ended == DCOMM_OK ? dcommi_bkt_back(b, k) : DCOMM_OK;
    if (ended == DCOMM_IN_PROGRESS || status == DCOMM_IN_PROGRESS) {
        return DCOMM_IN_PROGRESS;
    }
    k->done_at = run->ended_at;
    k->filled_at = run->reached_at > k->ready_at ? run->reached_at : k->ready_at;
    if (status >= 0) { /* else dcommi_bkt_drain waits for it */
        status = dcomm_wait(&k->request);
    }
    if (status < 0) {
        return dcommi_bkt_fail(b, status);
    }
    atomic_store_explicit(&k->finished, true, memory_order_release);
    return DCOMM_OK;
}

/* Wait until bucket k has its result. All buckets before it are started. */
static dcomm_status dcommi_bkt_await(dcomm_buckets *b, dcommi_bkt *k)
{
    dcomm_status status = DCOMM_IN_PROGRESS;
    while (status == DCOMM_IN_PROGRESS) {
        pthread_mutex_lock(&b->lock);
        status = dcommi_bkt_launch(b);
        DCOMMI_THEN(status, dcommi_bkt_end(b, k));
        pthread_mutex_unlock(&b->lock);
        if (status == DCOMM_IN_PROGRESS) {
            dcommi_progress_or_yield(b->comm->context);
        }
    }
    return status;
}

/* Wait for what the other ranks have seen of their gradients. No other thread is in the step. */
static dcomm_status dcommi_bkt_await_sights(dcomm_buckets *b)
{
    pthread_mutex_lock(&b->lock);
    dcomm_status status = dcommi_bkt_launch(b); /* there may be no bucket */
    pthread_mutex_unlock(&b->lock);
    DCOMMI_TRY(status);
    DCOMMI_TRY(dcomm_wait(&b->sights_request));
    for (int r = 1; r < b->size; r++) {
        const dcommi_bkt_sight *x = &b->sights[0], *y = &b->sights[r];
        if (x->scale != y->scale || x->good != y->good) {
            return dcommi_fail(DCOMM_ERR_MISMATCH,
                               "buckets: in step %" PRIu64 " the scaler is at %.17g after %" PRIu64
                               " good steps on rank 0, and at %.17g after %" PRIu64 " on rank %d",
                               b->steps, dcommi_f64_from_bits(x->scale), x->good,
                               dcommi_f64_from_bits(y->scale), y->good, r);
        }
    }
    return DCOMM_OK;
}

/* Wait for the requests of a failed step: until then the engine may use the buckets' memory. */
static void dcommi_bkt_drain(dcomm_buckets *b)
{
    for (size_t i = 0; i < b->layout.n; i++) {
        dcommi_drain(&b->layout.buckets[i].request);
    }
    dcommi_drain(&b->sights_request);
    dcommi_drain(&b->cards_request);
}

/* Mark the parameters that nobody marked, or fail. No other thread is in the step. */
static dcomm_status dcommi_bkt_complete(dcomm_buckets *b)
{
    size_t missing = 0, first = 0;
    for (size_t i = 0; i < b->nparams; i++) {
        dcommi_bkt_param *p = &b->params[i];
        if (atomic_load(&p->mark) != DCOMMI_BKT_IDLE) {
            continue;
        }
        if (b->step.accumulate || b->opts.unused || p->touched) {
            DCOMMI_TRY(dcommi_bkt_mark("dcomm_buckets_wait", b, i, DCOMMI_BKT_UNUSED, NULL));
        } else {
            first = missing++ == 0 ? i : first;
        }
    }
    if (missing == 0) {
        return DCOMM_OK;
    }
    char more[64] = "";
    if (missing > 1) {
        snprintf(more, sizeof more, " and %zu others,", missing - 1);
    }
    return dcommi_bkt_good(
        b, dcommi_fail(DCOMM_ERR_INVALID,
                       "buckets: parameter %zu, \"%s\",%s %s never marked ready in step %" PRIu64
                       " of rank %d (see dcomm_param_mark_unused and opts.unused)",
                       first, b->params[first].name, more, missing > 1 ? "were" : "was", b->steps,
                       b->rank));
}

/* Keep threads that make progress from starting buckets, or stop doing so. */
static void dcommi_bkt_closing(dcomm_buckets *b, bool closing)
{
    pthread_mutex_lock(&b->lock);
    b->closing = closing;
    pthread_mutex_unlock(&b->lock);
}

/* Prepare for the next step. */
static void dcommi_bkt_close(dcomm_buckets *b)
{
    bool sent = !b->step.accumulate;
    for (size_t i = 0; i < b->nparams; i++) {
        dcommi_bkt_param *p = &b->params[i];
        int mark = atomic_exchange(&p->mark, DCOMMI_BKT_IDLE);
        p->touched = !sent && (p->touched || mark == DCOMMI_BKT_READY);
    }
    for (size_t i = 0; i < b->layout.n; i++) {
        dcommi_bkt *k = &b->layout.buckets[i];
        atomic_store(&k->pending, k->nparams);
        atomic_store(&k->finished, false);
    }
    atomic_store(&b->marked, 0);
    b->steps++;
    b->sent_steps += sent;
    b->base_before = sent ? b->base : b->base_before;
    b->base = sent ? b->steps : b->base;
    b->begun = false;
    b->step = (dcomm_buckets_step){0};
    atomic_store(&b->open, false);
}

/* End a step, except for its records. */
static dcomm_status dcommi_bkt_wait_all(dcomm_buckets *b)
{
    pthread_mutex_lock(&b->lock);
    dcomm_status status = dcommi_bkt_open(b);
    pthread_mutex_unlock(&b->lock);
    DCOMMI_TRY(status);
    b->wait_at = dcommi_now();
    DCOMMI_TRY(dcommi_bkt_complete(b));
    if (b->step.accumulate) {
        return DCOMM_OK;
    }
    for (size_t i = 0; i < b->layout.n; i++) {
        DCOMMI_TRY(dcommi_bkt_await(b, &b->layout.buckets[i]));
    }
    for (status = DCOMM_IN_PROGRESS; status == DCOMM_IN_PROGRESS;) {
        pthread_mutex_lock(&b->lock);
        status = dcommi_bkt_try_cards(b);
        pthread_mutex_unlock(&b->lock);
    }
    return status >= 0 && b->watched ? dcommi_bkt_await_sights(b) : status;
}

#endif
