/* old_names.h - the names that functions had before they were renamed (CHANGELOG.md). Each calls
 * the function of the new name. Define DCOMM_NO_OLD_NAMES before the include to leave them out. */
#ifndef DCOMM_OLD_NAMES_H
#define DCOMM_OLD_NAMES_H

#include "feedback.h"
#ifndef DCOMM_NO_COMM
#include "bucket.h"
#include "mem.h"
#include "tune.h"
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

#endif

#ifdef __cplusplus
}
#endif
#endif
#endif
