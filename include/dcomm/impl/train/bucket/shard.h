/* shard.h - each rank owns a shard of each bucket. Find what a rank owns, and give all ranks the
 * parameters that their owners have updated. */
#ifndef DCOMMI_BUCKET_SHARD_H
#define DCOMMI_BUCKET_SHARD_H

#include "report.h"

DCOMM_API dcomm_status dcomm_param_get_owned(const dcomm_buckets *b, size_t i, size_t *first_p,
                                             size_t *count_p)
{
    if (b == NULL || first_p == NULL || count_p == NULL || i >= b->nparams) {
        return dcommi_fail(
            DCOMM_ERR_INVALID,
            "dcomm_param_get_owned: an argument is NULL, or there is no parameter %zu", i);
    }
    dcommi_bkt_owned(b, &b->params[i], first_p, count_p);
    return DCOMM_OK;
}

/* Copy this rank's shard from the caller's parameters to where they lie one behind another or, if
 * `back`, all parameters back. */
static dcomm_status dcommi_bkt_copy_values(const dcomm_buckets *b, const dcommi_bkt *k, bool back)
{
    for (size_t i = 0; i < k->nparams && k->values_memory != NULL; i++) {
        const dcommi_bkt_param *p = &b->params[k->params[i]];
        size_t first, count, element = dcomm_dtype_size(p->dtype);
        unsigned char *place = k->values + p->first * element;
        dcommi_bkt_owned(b, p, &first, &count);
        if (back && p->bytes > 0) {
            DCOMMI_TRY(dcommi_bkt_copy(k, p->value, place, p->bytes));
        } else if (!back && count > 0) {
            DCOMMI_TRY(dcommi_bkt_copy(k, place + first * element, p->value + first * element,
                                       count * element));
        }
    }
    return DCOMM_OK;
}

static dcomm_status dcommi_bkt_gather(dcomm_buckets *b, dcommi_bkt *k)
{
    dcomm_coll_opts opts = {.timeout_s = b->opts.coll.timeout_s};
    size_t own = 0;
    if (b->value_codec != NULL && b->kinds[k->kind].dtype <= DCOMM_BF16) {
        opts.codec = b->value_codec;
        opts.codec_seed = b->opts.coll.codec_seed;
    }
    for (int r = 0; r < b->rank; r++) {
        own += k->shards[r];
    }
    DCOMMI_TRY(dcommi_bkt_copy_values(b, k, false));
    unsigned char *values = k->values;
    const void *mine =
        values != NULL ? values + own * dcomm_dtype_size(b->kinds[k->kind].dtype) : NULL;
    dcommi_bkt_on_stream(k, &opts);
    dcommi_device_before before = dcommi_bkt_enter(k);
    dcomm_status status = dcomm_iallgatherv(b->comm, mine, values, k->shards, NULL,
                                            b->kinds[k->kind].dtype, &opts, &k->request);
    dcommi_bkt_leave(k, before);
    return status;
}

DCOMM_API dcomm_status dcomm_buckets_gather(dcomm_buckets *b)
{
    DCOMMI_TRY(dcommi_bkt_check("dcomm_buckets_gather", b));
    DCOMMI_TRY(dcommi_bkt_check_idle("dcomm_buckets_gather", b, b));
    if (!b->opts.sharded || !b->has_values) {
        return dcommi_fail(DCOMM_ERR_INVALID, "dcomm_buckets_gather: %s",
                           b->opts.sharded ? "no parameter has a value"
                                           : "opts.sharded is not set");
    }
    const double begin_at = dcommi_now();
    dcomm_status status = dcommi_bkt_await_default("dcomm_buckets_gather", b);
    for (size_t i = b->layout.n; i-- > 0 && status >= 0;) {
        status = dcommi_bkt_gather(b, &b->layout.buckets[i]);
    }
    for (size_t i = b->layout.n; i-- > 0 && status >= 0;) {
        dcommi_bkt *k = &b->layout.buckets[i];
        status = dcomm_wait(&k->request);
        DCOMMI_THEN(status, dcommi_bkt_copy_values(b, k, true));
        DCOMMI_THEN(status, dcommi_bkt_unsettle(k));
        DCOMMI_THEN(status, dcommi_bkt_settle_all(b, k));
    }
    if (status < 0) {
        dcommi_bkt_good(b, status);
        dcommi_bkt_drain(b);
        return dcommi_bkt_broken(b);
    }
    b->paces->waited += dcommi_now() - begin_at;
    return DCOMM_OK;
}

#endif
