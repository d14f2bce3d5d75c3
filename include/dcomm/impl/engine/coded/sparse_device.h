/* sparse_device.h - the steps of sparse.h where the elements lie on a device. Only the selected
 * elements leave it. Pairs of index and value come back: those of the result, and those that
 * return to the residual. */
#ifndef DCOMMI_CODED_SPARSE_DEVICE_H
#define DCOMMI_CODED_SPARSE_DEVICE_H

#include "feedback_kernels.h"

static size_t dcommi_spread_pairs_bytes(const struct dcommi_spread *s)
{
    return 2 * sizeof(uint32_t) * (s->agreed.n + s->back.n);
}

/* Pack both lists one behind the other, indices first, for a single copy. */
static dcomm_status dcommi_spread_pack(struct dcommi_spread *s)
{
    const dcommi_exchange_pairs *all[] = {&s->agreed, &s->back};
    DCOMMI_TRY(dcommi_spread_room(&s->keys, &s->keys_room, dcommi_spread_pairs_bytes(s) + 8));
    uint32_t *to = (uint32_t *)(void *)s->keys;
    for (int k = 0; k < 2; k++) {
        const dcommi_exchange_pairs *p = all[k];
        if (p->n > 0) {
            memcpy(to, p->index, p->n * sizeof *to);
            memcpy(to + p->n, p->bits, p->n * sizeof *to);
        }
        to += 2 * p->n;
    }
    return DCOMM_OK;
}

/* ---- on queue IN ---- */

/* Sum the squares of what the worker holds back, as dcommi_feedback_held does. */
static void dcommi_spread_squares_there(dcommi_feedback_arrays *a, const dcomm_feedback *fb,
                                        dcomm_cuda_ledger *ledger, const float *next)
{
    if (ledger != NULL && fb->opts.variant == DCOMM_FEEDBACK_EF21) {
        float *lacks = dcommi_feedback_take(a);
        dcommi_feedback_do(a, DCOMM_CUDA_FEEDBACK_MISSING, lacks, fb->now.x, 0, next);
        next = lacks;
    }
    dcommi_feedback_compare(a, ledger, next, next, NULL);
}

static void dcommi_spread_back_there(dcommi_feedback_arrays *a, dcomm_feedback *fb,
                                     const uint32_t *index, size_t n)
{
    const dcommi_feedback_store *w = &fb->worker;
    float *next = dcommi_feedback_wide(a, w, w->next, 0);
    const float *value = (const float *)(const void *)(index + n);
    dcommi_spread_squares_there(a, fb, a->books.before, next);
    DCOMMI_THEN(a->status, a->d->call->scatter(a->d, next, a->code->count, index, value, n, true));
    dcommi_feedback_round(a, w, 0, next);
    dcommi_spread_squares_there(a, fb, a->books.after, next);
}

/* Write residual and result. The residual comes first, because the result may overwrite the
 * gradient. */
static dcomm_status dcommi_spread_write_there(dcommi_device_handle *d, const dcommi_coded *c,
                                              const dcommi_device_code *code, const uint32_t *pairs,
                                              dcomm_cuda_ledger *before, dcomm_cuda_ledger *after)
{
    const struct dcommi_spread *s = c->spread;
    dcommi_feedback_arrays a = {.d = d, .code = code, .books = {.before = before, .after = after}};
    if (c->feedback != NULL) {
        dcommi_spread_back_there(&a, c->feedback, pairs + 2 * s->agreed.n, s->back.n);
    }
    DCOMMI_THEN(a.status, d->call->zero(d->number, d->stream[DCOMMI_QUEUE_IN], code->dst,
                                        code->count * sizeof(float)));
    DCOMMI_THEN(a.status, d->call->scatter(d, code->dst, code->count, pairs,
                                           (const float *)(const void *)(pairs + s->agreed.n),
                                           s->agreed.n, false));
    dcommi_feedback_drop(&a);
    return a.status;
}

#endif
