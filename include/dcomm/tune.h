/* tune.h - which algorithms there are, which one runs, and what was moved. */
#ifndef DCOMM_TUNE_H
#define DCOMM_TUNE_H

#include "coll.h"

#ifdef __cplusplus
extern "C" {
#endif

/* An algorithm as the tools and docs show it. */
typedef struct dcomm_algo_info {
    const char *name;
    dcomm_coll coll;
    bool rank_order;    /* can fold in rank order (deterministic) */
    const char *cost;   /* steps and bytes on the wire, in N ranks and S bytes */
    const char *source; /* paper or origin */
} dcomm_algo_info;

/* The i-th algorithm of an operation, for i = 0, 1, ...; DCOMM_ERR_INVALID past the last one. */
DCOMM_API dcomm_status dcomm_algo_get(dcomm_coll coll, int i, dcomm_algo_info *info);

/* One rank's plan for an operation, as the engine would run it: arguments as in
 * dcomm_check_spec (hosts too: algorithms keep neighbours on one host together), opts for algo,
 * lanes and chunk_bytes. Free with dcomm_plan_destroy.
 * Errors: DCOMM_ERR_INVALID (unknown algorithm, bad rank), DCOMM_ERR_UNSUPPORTED (the algorithm
 * cannot do this: the sentence says why). */
DCOMM_API dcomm_status dcomm_plan_create(const dcomm_check_spec *spec, dcomm_op op, int rank,
                                         int nranks, const dcomm_coll_opts *opts,
                                         dcomm_plan **plan_p);
DCOMM_API void dcomm_plan_destroy(dcomm_plan **plan_p);

/* Which algorithm a call with these arguments would run on comm. */
DCOMM_API dcomm_status dcomm_explain(dcomm_comm *comm, dcomm_coll coll, size_t count,
                                     dcomm_dtype dtype, dcomm_op op, const dcomm_coll_opts *opts,
                                     const char **algo_p);

/* Counters of one rank of a communicator since its creation. */
typedef struct dcomm_stats {
    uint64_t operations;           /* completed */
    uint64_t messages_sent;        /* payload messages */
    uint64_t bytes_sent;           /* payload bytes sent, headers not counted */
    uint64_t bytes_read;           /* payload bytes read from peers' exposed memory */
    uint64_t bytes_mapped;         /* payload bytes, received or read, that were used where they
                                      lie in a peer's registered memory */
    uint64_t unexpected_bytes_max; /* most memory held for messages that came early */
    uint64_t plans_built, plans_reused;
} dcomm_stats;
DCOMM_API dcomm_status dcomm_comm_stats(const dcomm_comm *comm, dcomm_stats *stats);

#ifdef __cplusplus
}
#endif
#endif
