/* api_coll.h - the public collectives (coll.h) in two forms: the blocking form is the non-blocking
 * form without a request. */
#ifndef DCOMMI_API_COLL_H
#define DCOMMI_API_COLL_H

#include "coll.h"

/* Return the status of a call, and handle a failure. comm NULL: the call is no collective, so
 * other ranks need not hear of its refusal. */
static inline dcomm_status dcommi_called(dcomm_comm *comm, dcomm_status status)
{
    return DCOMMI_LIKELY(status >= 0) ? status : dcommi_call_failed(comm, status);
}

/* Check that a non-blocking call has a place for its request, and clear that place. */
static inline dcomm_status dcommi_check_request(dcomm_comm *comm, dcomm_request **request_p)
{
    if (request_p == NULL) {
        return dcommi_called(comm, dcommi_fail(DCOMM_ERR_INVALID, "request_p is NULL"));
    }
    *request_p = NULL;
    return DCOMM_OK;
}

/* Define dcomm_NAME and dcomm_iNAME. The parameters come last; `opts` follows them in both forms.
 * Both forms evaluate `call`; in the blocking form request_p is NULL. `others` is the communicator
 * whose ranks hear of a refusal. */
#define DCOMMI_TWO_FORMS(NAME, others, call, ...)                                  \
    DCOMM_API dcomm_status dcomm_i##NAME(__VA_ARGS__, const dcomm_coll_opts *opts, \
                                         dcomm_request **request_p)                \
    {                                                                              \
        DCOMMI_TRY(dcommi_check_request(others, request_p));                       \
        return dcommi_called(others, call);                                        \
    }                                                                              \
    DCOMM_API dcomm_status dcomm_##NAME(__VA_ARGS__, const dcomm_coll_opts *opts)  \
    {                                                                              \
        dcomm_request **const request_p = NULL;                                    \
        return dcommi_called(others, call);                                        \
    }

DCOMMI_TWO_FORMS(allreduce, comm,
                 dcommi_allreduce(comm, sendbuf, recvbuf, count, dtype, op, opts, request_p),
                 dcomm_comm *comm, const void *sendbuf, void *recvbuf, size_t count,
                 dcomm_dtype dtype, dcomm_op op)

DCOMMI_TWO_FORMS(reduce_scatter, comm,
                 dcommi_call_often(comm, DCOMM_COLL_REDUCE_SCATTER, sendbuf, recvbuf, recvcount,
                                   dtype, op, 0, opts, request_p),
                 dcomm_comm *comm, const void *sendbuf, void *recvbuf, size_t recvcount,
                 dcomm_dtype dtype, dcomm_op op)

DCOMMI_TWO_FORMS(reduce_scatterv, comm,
                 dcommi_call_blocks(comm, DCOMM_COLL_REDUCE_SCATTERV, sendbuf, recvbuf, 0,
                                    recvcounts, NULL, dtype, op, 0, opts, request_p),
                 dcomm_comm *comm, const void *sendbuf, void *recvbuf, const size_t *recvcounts,
                 dcomm_dtype dtype, dcomm_op op)

DCOMMI_TWO_FORMS(allgather, comm,
                 dcommi_call_often(comm, DCOMM_COLL_ALLGATHER, sendbuf, recvbuf, sendcount, dtype,
                                   DCOMM_SUM, 0, opts, request_p),
                 dcomm_comm *comm, const void *sendbuf, void *recvbuf, size_t sendcount,
                 dcomm_dtype dtype)

DCOMMI_TWO_FORMS(allgatherv, comm,
                 dcommi_call_blocks(comm, DCOMM_COLL_ALLGATHERV, sendbuf, recvbuf, 0, recvcounts,
                                    displs, dtype, DCOMM_SUM, 0, opts, request_p),
                 dcomm_comm *comm, const void *sendbuf, void *recvbuf, const size_t *recvcounts,
                 const size_t *displs, dcomm_dtype dtype)

DCOMMI_TWO_FORMS(broadcast, comm,
                 dcommi_call_often(comm, DCOMM_COLL_BROADCAST, sendbuf, recvbuf, count, dtype,
                                   DCOMM_SUM, root, opts, request_p),
                 dcomm_comm *comm, const void *sendbuf, void *recvbuf, size_t count,
                 dcomm_dtype dtype, int root)

DCOMMI_TWO_FORMS(reduce, comm,
                 dcommi_reduce_to(comm, sendbuf, recvbuf, count, dtype, op, root, opts, request_p),
                 dcomm_comm *comm, const void *sendbuf, void *recvbuf, size_t count,
                 dcomm_dtype dtype, dcomm_op op, int root)

DCOMMI_TWO_FORMS(gather, comm,
                 dcommi_call_blocks(comm, DCOMM_COLL_GATHER, sendbuf, recvbuf, sendcount, NULL,
                                    NULL, dtype, DCOMM_SUM, root, opts, request_p),
                 dcomm_comm *comm, const void *sendbuf, void *recvbuf, size_t sendcount,
                 dcomm_dtype dtype, int root)

DCOMMI_TWO_FORMS(gatherv, comm,
                 dcommi_call_blocks(comm, DCOMM_COLL_GATHERV, sendbuf, recvbuf, 0, counts, displs,
                                    dtype, DCOMM_SUM, root, opts, request_p),
                 dcomm_comm *comm, const void *sendbuf, void *recvbuf, const size_t *counts,
                 const size_t *displs, dcomm_dtype dtype, int root)

DCOMMI_TWO_FORMS(scatter, comm,
                 dcommi_call_blocks(comm, DCOMM_COLL_SCATTER, sendbuf, recvbuf, recvcount, NULL,
                                    NULL, dtype, DCOMM_SUM, root, opts, request_p),
                 dcomm_comm *comm, const void *sendbuf, void *recvbuf, size_t recvcount,
                 dcomm_dtype dtype, int root)

DCOMMI_TWO_FORMS(scatterv, comm,
                 dcommi_call_blocks(comm, DCOMM_COLL_SCATTERV, sendbuf, recvbuf, 0, counts, displs,
                                    dtype, DCOMM_SUM, root, opts, request_p),
                 dcomm_comm *comm, const void *sendbuf, void *recvbuf, const size_t *counts,
                 const size_t *displs, dcomm_dtype dtype, int root)

DCOMMI_TWO_FORMS(alltoall, comm,
                 dcommi_call_often(comm, DCOMM_COLL_ALLTOALL, sendbuf, recvbuf, count, dtype,
                                   DCOMM_SUM, 0, opts, request_p),
                 dcomm_comm *comm, const void *sendbuf, void *recvbuf, size_t count,
                 dcomm_dtype dtype)

DCOMMI_TWO_FORMS(alltoallv, comm,
                 dcommi_alltoallv(comm, sendbuf, sendcounts, sdispls, recvbuf, recvcounts, rdispls,
                                  dtype, opts, request_p),
                 dcomm_comm *comm, const void *sendbuf, const size_t *sendcounts,
                 const size_t *sdispls, void *recvbuf, const size_t *recvcounts,
                 const size_t *rdispls, dcomm_dtype dtype)

DCOMMI_TWO_FORMS(barrier, comm, dcommi_barrier(comm, opts, request_p), dcomm_comm *comm)

DCOMMI_TWO_FORMS(send, NULL,
                 dcommi_p2p(comm, DCOMM_COLL_SEND, buf, NULL, count, dtype, peer, opts, request_p),
                 dcomm_comm *comm, const void *buf, size_t count, dcomm_dtype dtype, int peer)

DCOMMI_TWO_FORMS(recv, NULL,
                 dcommi_p2p(comm, DCOMM_COLL_RECV, NULL, buf, count, dtype, peer, opts, request_p),
                 dcomm_comm *comm, void *buf, size_t count, dcomm_dtype dtype, int peer)

DCOMMI_TWO_FORMS(plan_run, comm,
                 ((void)unused, dcommi_run_plan(comm, plan, in, out, signature, opts, request_p)),
                 dcomm_comm *comm, const dcomm_plan *plan, const void *in, void *out, void *unused,
                 uint32_t signature)

#undef DCOMMI_TWO_FORMS

#endif
