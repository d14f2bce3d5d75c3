/* explained.h - questions for dcomm_comm_explain that tests ask often. */
#ifndef EXPLAINED_H
#define EXPLAINED_H

#include "dcomm.h"

/* Find the algorithm that a call runs on comm. */
static inline dcomm_status explained_algo(dcomm_comm *comm, dcomm_coll coll, size_t count,
                                          const dcomm_coll_opts *opts, const char **algo)
{
    dcomm_explanation e = {.coll = coll, .count = count, .dtype = DCOMM_F32, .opts = opts};
    dcomm_status status = dcomm_comm_explain(comm, &e);
    *algo = e.algo;
    return status;
}

/* List every algorithm, for ranks without a communicator. */
static inline dcomm_status explained_on(const dcomm_tuning *tuning, int nranks, const int *hosts,
                                        dcomm_coll coll, size_t count, dcomm_dtype dtype,
                                        const dcomm_coll_opts *opts, dcomm_alternative *rows,
                                        int max, int *n)
{
    dcomm_explanation e = {.coll = coll,
                           .count = count,
                           .dtype = dtype,
                           .opts = opts,
                           .nranks = nranks,
                           .hosts = hosts,
                           .tuning = tuning,
                           .alternatives = rows,
                           .max_alternatives = max};
    dcomm_status status = dcomm_comm_explain(NULL, &e);
    if (n != NULL) {
        *n = e.nalternatives;
    }
    return status;
}

#endif
