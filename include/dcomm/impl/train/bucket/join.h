/* join.h - after ranks have met (meet.h), all of them stand at the same place of the run: a front
 * from one rank says which. Ranks that carry buckets go back to it (rebind.h); ranks that create
 * theirs begin there. */
#ifndef DCOMMI_BUCKET_JOIN_H
#define DCOMMI_BUCKET_JOIN_H

#include "rebuild.h"
#include "../../feedback/back.h"

/* ---- the front ---- */

static inline dcommi_bkt_errors *dcommi_bkt_front_errors(dcommi_bkt_front *front)
{
    return (dcommi_bkt_errors *)(void *)(front + 1);
}

static inline uint32_t *dcommi_bkt_front_sequence(const dcomm_buckets *b, dcommi_bkt_front *front)
{
    return (uint32_t *)(void *)(dcommi_bkt_front_errors(front) + b->nparams);
}

static inline size_t dcommi_bkt_front_room(const dcomm_buckets *b)
{
    return sizeof(dcommi_bkt_front) + b->nparams * (sizeof(dcommi_bkt_errors) + sizeof(uint32_t));
}

/* Send the front of rank `source` to all. */
static dcomm_status dcommi_bkt_pass_front(dcomm_buckets *b, dcommi_bkt_front *front, int source)
{
    dcomm_coll_opts opts = dcommi_bkt_patience(b);
    return dcomm_broadcast(b->comm, front, front, dcommi_bkt_front_room(b), DCOMM_U8, source,
                           &opts);
}

/* Go on at the front. */
static void dcommi_bkt_stand(dcomm_buckets *b, const dcommi_bkt_front *front)
{
    b->steps = b->base = b->base_before = front->steps;
    b->sent_steps = front->sent_steps;
    b->built = (int)front->built;
}

/* Decide about codec "auto" for the length of each bucket. */
static dcomm_status dcommi_bkt_decide(const dcomm_buckets *b)
{
    for (size_t i = 0; i < b->layout.n; i++) {
        const dcommi_bkt *k = &b->layout.buckets[i];
        const dcomm_codec *codec = b->kinds[k->kind].codec, *taken;
        if (codec != NULL && codec->automatic) {
            DCOMMI_TRY(dcomm_codec_decide(b->comm, codec, k->count, b->kinds[k->kind].dtype,
                                          k->device != NULL, &taken));
        }
    }
    return DCOMM_OK;
}

/* ---- error feedback among other ranks ---- */

/* Squares of the residuals of a bucket. */
enum { DCOMMI_BKT_LOST, DCOMMI_BKT_CARRIED, DCOMMI_BKT_SUMS };

/* Compute EF21's estimate anew: the sum (or average) of what these ranks claim. Add the squares of
 * the part that is lost to *lost. */
static dcomm_status dcommi_bkt_estimate(dcomm_buckets *b, dcomm_feedback *fb, double *lost)
{
    enum { BLOCK = 1 << 18 };
    dcomm_coll_opts opts = dcommi_bkt_patience(b);
    opts.deterministic = true;
    const bool average = dcommi_bkt_op(b) == DCOMM_AVG;
    const double before = fb->average ? (double)fb->nranks : 1;
    const float *claims = fb->worker.now;
    float *estimate = fb->estimate.now;
    double *sum = dcommi_borrow(b->comm, fb->count < BLOCK ? fb->count : BLOCK, sizeof *sum);
    dcomm_status status = sum != NULL ? DCOMM_OK : DCOMM_ERR_NO_MEMORY;
    for (size_t at = 0, n; at < fb->count && status >= 0; at += n) {
        n = fb->count - at < BLOCK ? fb->count - at : BLOCK;
        for (size_t i = 0; i < n; i++) {
            sum[i] = (double)claims[at + i];
        }
        status = dcomm_allreduce(b->comm, DCOMM_IN_PLACE, sum, n, DCOMM_F64, DCOMM_SUM, &opts);
        for (size_t i = 0; i < n && status >= 0; i++) {
            const double gone = before * (double)estimate[at + i] - sum[i];
            *lost += gone * gone;
            estimate[at + i] = (float)(average ? sum[i] / b->size : sum[i]);
        }
    }
    dcommi_give_back(b->comm, sum);
    dcommi_feedback_store_level(&fb->estimate);
    fb->average = average;
    fb->nranks = (uint32_t)b->size;
    return status;
}

/* Give all ranks what the codec of rank `source` remembers of the last step: with a linear codec
 * all ranks begin a step with the same. */
static dcomm_status dcommi_bkt_remember(dcomm_buckets *b, dcomm_feedback *fb, int source)
{
    const size_t count = dcommi_feedback_basis_count(fb->codec, fb->count);
    dcomm_coll_opts opts = dcommi_bkt_patience(b);
    if (count == 0) {
        return DCOMM_OK;
    }
    DCOMMI_TRY(dcommi_feedback_basis_make(fb));
    float *basis = dcommi_borrow(b->comm, count, sizeof *basis);
    if (basis == NULL) {
        return DCOMM_ERR_NO_MEMORY;
    }
    memcpy(basis, fb->basis.now, count * sizeof *basis);
    DCOMMI_TRY(dcomm_broadcast(b->comm, basis, basis, count, DCOMM_F32, source, &opts));
    memcpy(fb->basis.now, basis, count * sizeof *basis);
    dcommi_feedback_store_level(&fb->basis);
    dcommi_give_back(b->comm, basis);
    return DCOMM_OK;
}

/* Make the states of all ranks fit together, and sum up what each of them carries and has lost.
 * sums: DCOMMI_BKT_SUMS of each bucket, and the number of states that became zero. */
static dcomm_status dcommi_bkt_join_feedback(dcomm_buckets *b, double *sums)
{
    const int source = b->rebound.source;
    const size_t n = b->layout.n * DCOMMI_BKT_SUMS;
    dcomm_coll_opts opts = dcommi_bkt_patience(b);
    sums[n] = (double)b->reset;
    for (size_t i = 0; i < b->layout.n; i++) {
        dcommi_bkt *k = &b->layout.buckets[i];
        dcomm_feedback *fb = k->feedback;
        double *own = sums + i * DCOMMI_BKT_SUMS;
        if (fb == NULL) {
            continue;
        }
        DCOMMI_TRY(dcommi_feedback_norm2(&fb->worker, &own[DCOMMI_BKT_CARRIED]));
        if (fb->opts.variant == DCOMM_FEEDBACK_EF21) {
            double lost = 0;
            DCOMMI_TRY(dcommi_bkt_estimate(b, fb, &lost));
            k->lost += b->rank == source && b->reset == 0 ? lost : 0;
        }
        own[DCOMMI_BKT_LOST] = k->lost;
        DCOMMI_TRY(dcommi_bkt_remember(b, fb, source));
    }
    return dcomm_allreduce(b->comm, DCOMM_IN_PLACE, sums, n + 1, DCOMM_F64, DCOMM_SUM, &opts);
}

/* ---- the end ---- */

/* End the meeting: it has succeeded on all ranks, or on none that is left. */
static dcomm_status dcommi_bkt_confirm(dcomm_buckets *b, dcomm_status status)
{
    char why[DCOMMI_MESSAGE_MAX];
    uint64_t good = status >= 0;
    int failed = -1, nfailed = 0;
    snprintf(why, sizeof why, "%s", status < 0 ? dcomm_last_error() : "");
    if (status < 0) {
        dcomm_comm_abort(b->comm, why);
    }
    const dcomm_status agreed = dcomm_comm_agree(b->comm, &good, &failed, 1, &nfailed);
    if (status < 0) {
        return dcommi_fail(status, "%s", why);
    }
    if (agreed < 0 || (good != 0 && nfailed == 0)) {
        return agreed;
    }
    return nfailed > 0 ? dcommi_fail(DCOMM_ERR_PEER,
                                     "buckets: rank %d has failed while the ranks met", failed)
                       : dcommi_fail(DCOMM_ERR_ABORTED, "buckets: %s", dcomm_comm_error(b->comm));
}

/* Note what was carried and lost, as all ranks do: in b->rebound, and in the ledgers. */
static void dcommi_bkt_account(dcomm_buckets *b, const double *sums)
{
    double lost = 0, carried = 0;
    for (size_t i = 0; i < b->layout.n; i++, sums += DCOMMI_BKT_SUMS) {
        dcommi_bkt *k = &b->layout.buckets[i];
        if (k->feedback != NULL && k->feedback->ledger != NULL) {
            dcommi_ledger_moved(k->feedback->ledger, (uint64_t)b->rebound.missing,
                                sums[DCOMMI_BKT_CARRIED], sums[DCOMMI_BKT_LOST]);
        }
        lost += sums[DCOMMI_BKT_LOST];
        carried += sums[DCOMMI_BKT_CARRIED];
        k->lost = 0;
    }
    b->rebound.carried_norm = dcommi_sqrt(carried);
    b->rebound.lost_norm = dcommi_sqrt(lost);
    b->rebound.reset = (size_t)*sums;
}

/* Make the states of all ranks fit together, and end the meeting. b->rebound becomes its outcome;
 * after an error it stays as it was. */
static dcomm_status dcommi_bkt_unite(dcomm_buckets *b, dcomm_status status,
                                     const dcomm_buckets_rebind_info *info)
{
    const dcomm_buckets_rebind_info before = b->rebound;
    double *sums = dcommi_borrow(b->comm, b->layout.n * DCOMMI_BKT_SUMS + 1, sizeof *sums);
    b->rebound = *info;
    b->rebound.step = b->steps;
    DCOMMI_THEN(status, sums != NULL ? DCOMM_OK : DCOMM_ERR_NO_MEMORY);
    if (dcommi_bkt_keeps_errors(b)) {
        DCOMMI_THEN(status, dcommi_bkt_join_feedback(b, sums));
    }
    DCOMMI_THEN(status, dcommi_bkt_decide(b));
    status = dcommi_bkt_confirm(b, status);
    if (status < 0) {
        b->rebound = before;
        return status;
    }
    dcommi_bkt_account(b, sums);
    dcommi_give_back(b->comm, sums);
    b->met_rank = b->rank;
    b->met_size = b->size;
    b->undone = false;
    b->reset = b->nlegacies = 0;
    return DCOMM_OK;
}

/* ---- a rank that creates its buckets ---- */

/* Build the buckets as the others have them, and begin at their front. */
static dcomm_status dcommi_bkt_join_front(dcomm_buckets *b, dcommi_bkt_front *front)
{
    dcommi_bkt_layout layout = {0};
    const dcommi_bkt_errors *errors = dcommi_bkt_front_errors(front);
    b->sequence = dcommi_calloc(b->nparams, sizeof *b->sequence);
    if (b->sequence == NULL) {
        return DCOMM_ERR_NO_MEMORY;
    }
    memcpy(b->sequence, dcommi_bkt_front_sequence(b, front), b->nparams * sizeof *b->sequence);
    DCOMMI_TRY(dcommi_bkt_build(b, b->sequence, &layout));
    dcommi_bkt_settle(b, &layout);
    for (size_t i = 0; i < layout.n; i++) {
        dcomm_feedback *fb = layout.buckets[i].feedback;
        if (fb != NULL) {
            fb->step = errors[i].step;
            fb->opts.tensor = (uint32_t)errors[i].tensor;
        }
    }
    dcommi_bkt_stand(b, front);
    b->built_at = b->sent_steps;
    b->joined = *front;
    return DCOMM_OK;
}

/* Join ranks that carry buckets (rebind.h has their part). */
static dcomm_status dcommi_bkt_join(dcomm_buckets *b, const dcomm_buckets_rebind_info *info)
{
    dcommi_bkt_front *front = dcommi_borrow(b->comm, 1, dcommi_bkt_front_room(b));
    if (front == NULL) {
        return DCOMM_ERR_NO_MEMORY;
    }
    DCOMMI_TRY(dcommi_bkt_pass_front(b, front, info->source));
    DCOMMI_TRY(dcommi_bkt_all_good(b, dcommi_bkt_join_front(b, front)));
    dcommi_give_back(b->comm, front);
    return dcommi_bkt_unite(b, DCOMM_OK, info);
}

#endif
