/* api_tune.h - the public read-out of algorithms and plans. */
#ifndef DCOMMI_API_TUNE_H
#define DCOMMI_API_TUNE_H

#include "../model/api_model.h"
#include "call.h"

static dcomm_status dcommi_algo_info(bool coded, dcomm_coll coll, int i, dcomm_algo_info *info)
{
    if (info == NULL) {
        return dcommi_fail(DCOMM_ERR_INVALID, "info is NULL");
    }
    const dcommi_algo *algo = i >= 0 ? dcommi_algo_number(coded, coll, i) : NULL;
    if (algo == NULL) {
        return dcommi_fail(DCOMM_ERR_INVALID, "%s%s has no algorithm number %d",
                           coded ? "compressed " : "", dcomm_coll_name(coll), i);
    }
    *info = (dcomm_algo_info){algo->name, algo->coll, algo->rank_order, algo->cost, algo->source};
    return DCOMM_OK;
}

DCOMM_API dcomm_status dcomm_algo_get_info(dcomm_coll coll, int i, dcomm_algo_info *info)
{
    return dcommi_algo_info(false, coll, i, info);
}

DCOMM_API dcomm_status dcomm_coded_algo_get_info(dcomm_coll coll, int i, dcomm_algo_info *info)
{
    return dcommi_algo_info(true, coll, i, info);
}

/* Return one block with the recv counts, recv displacements, send counts and send displacements of
 * a rank, or NULL without memory. All-to-all-v takes its counts from the matrix. Displacements are
 * packed unless the spec gives them. */
static size_t *dcommi_spec_counts(const dcomm_check_spec *spec, int rank, int nranks)
{
    size_t n = (size_t)nranks;
    size_t *block = dcommi_calloc(4 * n, sizeof *block);
    if (block == NULL) {
        return NULL;
    }
    size_t at = 0, send_at = 0;
    for (size_t r = 0; r < n; r++) {
        bool matrix = spec->coll == DCOMM_COLL_ALLTOALLV;
        block[r] = matrix ? spec->counts[r * n + (size_t)rank] : spec->counts[r];
        block[n + r] = spec->displs != NULL && !matrix ? spec->displs[r] : at;
        at += block[r];
        block[2 * n + r] = matrix ? spec->counts[(size_t)rank * n + r] : 0;
        block[3 * n + r] = send_at;
        send_at += block[2 * n + r];
    }
    return block;
}

DCOMM_API dcomm_status dcomm_plan_create(const dcomm_check_spec *spec, dcomm_op op, int rank,
                                         int nranks, const dcomm_coll_opts *opts,
                                         dcomm_plan **plan_p)
{
    DCOMMI_NEED(spec);
    DCOMMI_NEED(plan_p);
    *plan_p = NULL;
    opts = opts != NULL ? opts : &dcommi_default_opts;
    /* This communicator only passes the checks of a call. Nothing runs on it. */
    dcomm_comm fake;
    memset(&fake, 0, sizeof fake);
    fake.rank = rank;
    fake.size = nranks;
    if (nranks < 1 || rank < 0 || rank >= nranks) {
        return dcommi_fail(DCOMM_ERR_INVALID,
                           "rank is %d and nranks is %d: a rank is from 0 to nranks - 1", rank,
                           nranks);
    }
    bool listed = spec->coll == DCOMM_COLL_REDUCE_SCATTERV || spec->coll == DCOMM_COLL_ALLGATHERV ||
                  spec->coll == DCOMM_COLL_GATHERV || spec->coll == DCOMM_COLL_SCATTERV ||
                  spec->coll == DCOMM_COLL_ALLTOALLV;
    if (listed && spec->counts == NULL) {
        return dcommi_fail(DCOMM_ERR_INVALID, "%s: counts is NULL", dcomm_coll_name(spec->coll));
    }
    dcommi_shape s;
    const dcommi_algo *algo = NULL;
    DCOMMI_TRY(
        dcommi_shape_begin(&fake, spec->coll, spec->count, spec->dtype, op, spec->root, opts, &s));
    s.in_place = spec->in_place;
    s.rank_order = s.rank_order || (spec->rank_order && dcommi_coll_folds(spec->coll));
    size_t *counts = NULL;
    if (listed) {
        counts = dcommi_spec_counts(spec, rank, nranks);
        if (counts == NULL) {
            return DCOMM_ERR_NO_MEMORY;
        }
        s.counts = counts;
        s.displs = counts + nranks;
        if (spec->coll == DCOMM_COLL_ALLTOALLV) {
            s.send_counts = counts + 2 * (size_t)nranks;
            s.send_displs = counts + 3 * (size_t)nranks;
            s.matrix = spec->counts;
        }
    }
    dcommi_groups *groups = NULL;
    dcommi_coding coding;
    dcomm_status status = dcommi_coded_begin(&s, opts, &coding);
    DCOMMI_THEN(status, dcommi_groups_of_hosts(spec->hosts, nranks, &groups));
    s.groups = groups;
    if (status >= 0) {
        status = dcommi_algo_pick(&s, opts->algo, false, NULL, &algo);
    }
    if (status >= 0) {
        status = dcommi_plan_make(&s, algo, plan_p);
    }
    dcommi_groups_free(&groups);
    dcommi_free(counts);
    return status;
}

DCOMM_API void dcomm_plan_destroy(dcomm_plan **plan_p)
{
    if (plan_p != NULL) {
        dcommi_free(*plan_p);
        *plan_p = NULL;
    }
}

#endif
