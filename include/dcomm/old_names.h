/* old_names.h - old names of functions that were renamed (CHANGELOG.md). Each function here calls
 * the one with the new name. Define DCOMM_NO_OLD_NAMES before the include to leave them out. */
#ifndef DCOMM_OLD_NAMES_H
#define DCOMM_OLD_NAMES_H

#include "feedback.h"
#ifndef DCOMM_NO_COMM
#include "mem.h"
#include "tune.h"
#ifndef DCOMM_NO_TRAIN
#include "bucket.h"
#endif
#endif

#ifndef DCOMM_NO_OLD_NAMES
#ifdef __cplusplus
extern "C" {
#endif

static inline dcomm_status dcomm_feedback_gather(dcomm_feedback *fb, const float **e_p)
{
    return dcomm_feedback_correct(fb, e_p);
}

#ifndef DCOMM_NO_COMM
#ifndef DCOMM_NO_TRAIN

/* ---- bucket.h ---- */

static inline void *dcomm_bucket_grad(dcomm_buckets *b, size_t i)
{
    return dcomm_param_grad(b, i);
}

static inline DCOMM_CHECKED dcomm_status dcomm_bucket_ready(dcomm_buckets *b, size_t i,
                                                            void *stream)
{
    return dcomm_param_mark_ready(b, i, stream);
}

static inline DCOMM_CHECKED dcomm_status dcomm_bucket_unused(dcomm_buckets *b, size_t i)
{
    return dcomm_param_mark_unused(b, i);
}

static inline DCOMM_CHECKED dcomm_status dcomm_bucket_wait(dcomm_buckets *b, size_t i)
{
    return dcomm_param_wait(b, i);
}

static inline dcomm_status dcomm_bucket_of(const dcomm_buckets *b, size_t i, size_t *bucket_p,
                                           size_t *first_p)
{
    return dcomm_param_get_bucket(b, i, bucket_p, first_p);
}

static inline dcomm_status dcomm_bucket_owned(const dcomm_buckets *b, size_t i, size_t *first_p,
                                              size_t *count_p)
{
    return dcomm_param_get_owned(b, i, first_p, count_p);
}

#endif

/* ---- coll.h, comm.h, mem.h ---- */

static inline dcomm_status dcomm_request_query(const dcomm_request *request,
                                               dcomm_request_info *info)
{
    return dcomm_request_get_info(request, info);
}

static inline dcomm_status dcomm_comm_level(const dcomm_comm *comm, int level, dcomm_level *info)
{
    return dcomm_comm_get_level(comm, level, info);
}

static inline dcomm_status dcomm_comm_place(const dcomm_comm *comm, int rank, dcomm_place *place)
{
    return dcomm_comm_get_place(comm, rank, place);
}

static inline dcomm_status dcomm_mem_query(const void *ptr, dcomm_mem_info *info)
{
    return dcomm_mem_get_info(ptr, info);
}

/* ---- tune.h ---- */

static inline dcomm_status dcomm_algo_get(dcomm_coll coll, int i, dcomm_algo_info *info)
{
    return dcomm_algo_get_info(coll, i, info);
}

static inline dcomm_status dcomm_coded_algo_get(dcomm_coll coll, int i, dcomm_algo_info *info)
{
    return dcomm_coded_algo_get_info(coll, i, info);
}

static inline dcomm_status dcomm_comm_stats(const dcomm_comm *comm, dcomm_stats *stats)
{
    return dcomm_comm_get_stats(comm, stats);
}

static inline dcomm_status dcomm_comm_tuning(dcomm_comm *comm, dcomm_tuning *tuning)
{
    return dcomm_comm_get_tuning(comm, tuning);
}

static inline dcomm_status dcomm_codec_verdict(dcomm_comm *comm, const dcomm_codec *codec,
                                               size_t count, bool device, dcomm_verdict *verdict)
{
    return dcomm_codec_measure(comm, codec, count, device, verdict);
}

/* Return a question for dcomm_comm_explain. */
static inline dcomm_explanation dcommi_old_explanation(dcomm_coll coll, size_t count,
                                                       dcomm_dtype dtype, dcomm_op op,
                                                       const dcomm_coll_opts *opts)
{
    dcomm_explanation e;
    e.coll = coll;
    e.count = count;
    e.dtype = dtype;
    e.op = op;
    e.opts = opts;
    e.nranks = 0;
    e.hosts = NULL;
    e.tuning = NULL;
    e.alternatives = NULL;
    e.max_alternatives = 0;
    e.paths = NULL;
    e.max_paths = 0;
    e.algo = NULL;
    e.nalternatives = 0;
    e.npaths = 0;
    return e;
}

static inline dcomm_status dcomm_explain(dcomm_comm *comm, dcomm_coll coll, size_t count,
                                         dcomm_dtype dtype, dcomm_op op,
                                         const dcomm_coll_opts *opts, const char **algo_p)
{
    dcomm_explanation e = dcommi_old_explanation(coll, count, dtype, op, opts);
    dcomm_status status = dcomm_comm_explain(comm, &e);
    if (status == DCOMM_OK) {
        *algo_p = e.algo;
    }
    return status;
}

static inline dcomm_status dcomm_explain_all(dcomm_comm *comm, dcomm_coll coll, size_t count,
                                             dcomm_dtype dtype, dcomm_op op,
                                             const dcomm_coll_opts *opts, dcomm_alternative *rows,
                                             int max, int *n_p)
{
    dcomm_explanation e = dcommi_old_explanation(coll, count, dtype, op, opts);
    e.alternatives = rows;
    e.max_alternatives = max;
    dcomm_status status = dcomm_comm_explain(comm, &e);
    if (status == DCOMM_OK && n_p != NULL) {
        *n_p = e.nalternatives;
    }
    return status;
}

static inline dcomm_status dcomm_explain_on(const dcomm_tuning *tuning, int nranks,
                                            const int *hosts, dcomm_coll coll, size_t count,
                                            dcomm_dtype dtype, const dcomm_coll_opts *opts,
                                            dcomm_alternative *rows, int max, int *n_p)
{
    dcomm_explanation e = dcommi_old_explanation(coll, count, dtype, DCOMM_SUM, opts);
    e.tuning = tuning;
    e.nranks = nranks;
    e.hosts = hosts;
    e.alternatives = rows;
    e.max_alternatives = max;
    dcomm_status status = dcomm_comm_explain(NULL, &e);
    if (status == DCOMM_OK && n_p != NULL) {
        *n_p = e.nalternatives;
    }
    return status;
}

static inline dcomm_status dcomm_explain_paths(dcomm_comm *comm, dcomm_coll coll, size_t count,
                                               dcomm_dtype dtype, dcomm_op op,
                                               const dcomm_coll_opts *opts, dcomm_path *rows,
                                               int max, int *n_p)
{
    dcomm_explanation e = dcommi_old_explanation(coll, count, dtype, op, opts);
    e.paths = rows;
    e.max_paths = max;
    dcomm_status status = dcomm_comm_explain(comm, &e);
    if (status == DCOMM_OK && n_p != NULL) {
        *n_p = e.npaths;
    }
    return status;
}

static inline dcomm_status dcomm_explain_paths_on(const dcomm_tuning *tuning, int nranks,
                                                  const int *hosts, dcomm_coll coll, size_t count,
                                                  dcomm_dtype dtype, const dcomm_coll_opts *opts,
                                                  dcomm_path *rows, int max, int *n_p)
{
    dcomm_explanation e = dcommi_old_explanation(coll, count, dtype, DCOMM_SUM, opts);
    e.tuning = tuning;
    e.nranks = nranks;
    e.hosts = hosts;
    e.paths = rows;
    e.max_paths = max;
    dcomm_status status = dcomm_comm_explain(NULL, &e);
    if (status == DCOMM_OK && n_p != NULL) {
        *n_p = e.npaths;
    }
    return status;
}

#endif

#ifdef __cplusplus
}
#endif
#endif
#endif
