/* rebuild.h - rebuild the buckets in the order in which gradients really become ready. Gradients
 * inside buckets and the residuals of error feedback move along. */
#ifndef DCOMMI_BUCKET_REBUILD_H
#define DCOMMI_BUCKET_REBUILD_H

#include "step.h"
#include "../../feedback/feedback.h"

/* Write rank 0's order of the step that is just over. Parameters without a gradient come last. */
static void dcommi_bkt_seen(const dcomm_buckets *b, uint32_t *sequence)
{
    uint32_t *place = sequence + b->nparams, last = 0;
    memset(place, 0, b->nparams * sizeof *place);
    for (size_t i = 0; i < b->nparams; i++) { /* each mark took another number */
        place[b->params[i].order] = (uint32_t)i;
    }
    for (int unused = 0; unused < 2; unused++) {
        for (size_t at = 0; at < b->nparams; at++) {
            bool is = atomic_load(&b->params[place[at]].mark) == DCOMMI_BKT_UNUSED;
            if (is == (unused != 0)) {
                sequence[last++] = place[at];
            }
        }
    }
}

/* Copy elements [first, first + count) of one array to `at` in another. */
static void dcommi_bkt_move_store(const dcommi_feedback_store *from, size_t first,
                                  dcommi_feedback_store *to, size_t at, size_t count)
{
    size_t width = dcommi_feedback_width(from);
    if (from->count > 0 && to->count > 0 && count > 0) {
        memcpy(dcommi_feedback_at(to, to->now, at), dcommi_feedback_at(from, from->now, first),
               count * width);
    }
}

static bool dcommi_bkt_same_members(const dcommi_bkt *x, const dcommi_bkt *y)
{
    return x->nparams == y->nparams &&
           memcmp(x->params, y->params, x->nparams * sizeof *x->params) == 0;
}

/* Fill in the residuals of bucket k from the old buckets. b->params say where these are. */
static void dcommi_bkt_move_feedback(dcomm_buckets *b, dcommi_bkt *k)
{
    dcomm_feedback *to = k->feedback;
    dcommi_bkt *old = &b->layout.buckets[b->params[k->params[0]].bucket];
    if (dcommi_bkt_same_members(old, k)) { /* with all that its codec remembers */
        k->feedback = old->feedback;
        old->feedback = to;
        return;
    }
    size_t at = 0;
    for (size_t i = 0; i < k->nparams; i++) {
        const dcommi_bkt_param *p = &b->params[k->params[i]];
        const dcomm_feedback *from = b->layout.buckets[p->bucket].feedback;
        dcommi_bkt_move_store(&from->worker, p->first, &to->worker, at, p->count);
        dcommi_bkt_move_store(&from->velocity, p->first, &to->velocity, at, p->count);
        dcommi_bkt_move_store(&from->estimate, p->first, &to->estimate, at, p->count);
        to->step = from->step;
        to->average = from->average;
        to->nranks = from->nranks;
        at += p->count;
    }
    dcommi_feedback_store_level(&to->worker);
    dcommi_feedback_store_level(&to->velocity);
    dcommi_feedback_store_level(&to->estimate);
}

/* Move the gradients that live inside the buckets. */
static void dcommi_bkt_move_grads(const dcomm_buckets *b, const dcommi_bkt *k)
{
    unsigned char *at = k->data;
    for (size_t i = 0; i < k->nparams && k->memory != NULL; i++) {
        const dcommi_bkt_param *p = &b->params[k->params[i]];
        if (p->grad == NULL && p->bytes > 0) {
            memcpy(at, dcommi_bkt_place(b, p), p->bytes);
        }
        at += p->bytes;
    }
}

/* Rebuild the buckets after the step, with no other thread in it. */
static dcomm_status dcommi_bkt_rebuild(dcomm_buckets *b)
{
    dcommi_bkt_layout layout = {0};
    dcomm_coll_opts opts = dcommi_bkt_patience(b);
    uint32_t *sequence = dcommi_borrow(b->comm, b->nparams * 2, sizeof *sequence);
    if (sequence == NULL) {
        return DCOMM_ERR_NO_MEMORY;
    }
    if (b->rank == 0) {
        dcommi_bkt_seen(b, sequence);
    }
    dcomm_status status =
        dcomm_broadcast(b->comm, sequence, sequence, b->nparams, DCOMM_U32, 0, &opts);
    DCOMMI_THEN(status, dcommi_bkt_all_good(b, dcommi_bkt_build(b, sequence, &layout)));
    if (status >= 0) {
        memcpy(b->sequence, sequence, b->nparams * sizeof *sequence);
    }
    dcommi_give_back(b->comm, sequence);
    for (size_t i = 0; i < b->layout.n && status >= 0; i++) {
        if (b->layout.buckets[i].feedback != NULL) { /* an owner's residual stays on its rank */
            status = dcommi_feedback_home("opts.rebuild", b->layout.buckets[i].feedback);
            DCOMMI_THEN(status, dcommi_feedback_own(b->layout.buckets[i].feedback, 0, 0));
        }
    }
    if (status < 0) {
        dcommi_bkt_layout_free(&layout);
        return status;
    }
    for (size_t i = 0; i < layout.n; i++) {
        if (layout.buckets[i].feedback != NULL) {
            dcommi_bkt_move_feedback(b, &layout.buckets[i]);
        }
        dcommi_bkt_move_grads(b, &layout.buckets[i]);
    }
    dcommi_bkt_layout_free(&b->layout);
    dcommi_bkt_settle(b, &layout);
    return DCOMM_OK;
}

#endif
