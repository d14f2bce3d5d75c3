/* api_coll.h - the public collectives (coll.h) in their two forms: the blocking one is the
 * non-blocking one without a request. */
#ifndef DCOMMI_API_COLL_H
#define DCOMMI_API_COLL_H

#include "coll.h"

/* comm NULL: not a collective, whose refusal concerns nobody else. */
static inline dcomm_status dcommi_called(dcomm_comm *comm, dcomm_status status)
{
    return DCOMMI_LIKELY(status >= 0) ? status : dcommi_call_failed(comm, status);
}

/* A non-blocking call needs somewhere to put its request. */
static inline dcomm_status dcommi_check_request(dcomm_comm *comm, dcomm_request **request_p)
{
    if (request_p == NULL) {
        return dcommi_called(comm, dcommi_fail(DCOMM_ERR_INVALID, "request_p is NULL"));
    }
    *request_p = NULL;
    return DCOMM_OK;
}

DCOMM_API dcomm_status dcomm_iallreduce(dcomm_comm *comm, const void *sendbuf, void *recvbuf,
                                        size_t count, dcomm_dtype dtype, dcomm_op op,
                                        const dcomm_coll_opts *opts, dcomm_request **request_p)
{
    DCOMMI_TRY(dcommi_check_request(comm, request_p));
    return dcommi_called(
        comm, dcommi_allreduce(comm, sendbuf, recvbuf, count, dtype, op, opts, request_p));
}

DCOMM_API dcomm_status dcomm_allreduce(dcomm_comm *comm, const void *sendbuf, void *recvbuf,
                                       size_t count, dcomm_dtype dtype, dcomm_op op,
                                       const dcomm_coll_opts *opts)
{
    return dcommi_called(comm,
                         dcommi_allreduce(comm, sendbuf, recvbuf, count, dtype, op, opts, NULL));
}

DCOMM_API dcomm_status dcomm_ireduce_scatter(dcomm_comm *comm, const void *sendbuf, void *recvbuf,
                                             size_t recvcount, dcomm_dtype dtype, dcomm_op op,
                                             const dcomm_coll_opts *opts, dcomm_request **request_p)
{
    DCOMMI_TRY(dcommi_check_request(comm, request_p));
    return dcommi_called(
        comm, dcommi_reduce_scatter(comm, sendbuf, recvbuf, recvcount, dtype, op, opts, request_p));
}

DCOMM_API dcomm_status dcomm_reduce_scatter(dcomm_comm *comm, const void *sendbuf, void *recvbuf,
                                            size_t recvcount, dcomm_dtype dtype, dcomm_op op,
                                            const dcomm_coll_opts *opts)
{
    return dcommi_called(
        comm, dcommi_reduce_scatter(comm, sendbuf, recvbuf, recvcount, dtype, op, opts, NULL));
}

DCOMM_API dcomm_status dcomm_ireduce_scatterv(dcomm_comm *comm, const void *sendbuf, void *recvbuf,
                                              const size_t *recvcounts, dcomm_dtype dtype,
                                              dcomm_op op, const dcomm_coll_opts *opts,
                                              dcomm_request **request_p)
{
    DCOMMI_TRY(dcommi_check_request(comm, request_p));
    return dcommi_called(comm, dcommi_call_v(comm, DCOMM_COLL_REDUCE_SCATTERV, sendbuf, recvbuf,
                                             recvcounts, NULL, dtype, op, 0, opts, request_p));
}

DCOMM_API dcomm_status dcomm_reduce_scatterv(dcomm_comm *comm, const void *sendbuf, void *recvbuf,
                                             const size_t *recvcounts, dcomm_dtype dtype,
                                             dcomm_op op, const dcomm_coll_opts *opts)
{
    return dcommi_called(comm, dcommi_call_v(comm, DCOMM_COLL_REDUCE_SCATTERV, sendbuf, recvbuf,
                                             recvcounts, NULL, dtype, op, 0, opts, NULL));
}

DCOMM_API dcomm_status dcomm_iallgather(dcomm_comm *comm, const void *sendbuf, void *recvbuf,
                                        size_t sendcount, dcomm_dtype dtype,
                                        const dcomm_coll_opts *opts, dcomm_request **request_p)
{
    DCOMMI_TRY(dcommi_check_request(comm, request_p));
    return dcommi_called(
        comm, dcommi_allgather(comm, sendbuf, recvbuf, sendcount, dtype, opts, request_p));
}

DCOMM_API dcomm_status dcomm_allgather(dcomm_comm *comm, const void *sendbuf, void *recvbuf,
                                       size_t sendcount, dcomm_dtype dtype,
                                       const dcomm_coll_opts *opts)
{
    return dcommi_called(comm,
                         dcommi_allgather(comm, sendbuf, recvbuf, sendcount, dtype, opts, NULL));
}

DCOMM_API dcomm_status dcomm_iallgatherv(dcomm_comm *comm, const void *sendbuf, void *recvbuf,
                                         const size_t *recvcounts, const size_t *displs,
                                         dcomm_dtype dtype, const dcomm_coll_opts *opts,
                                         dcomm_request **request_p)
{
    DCOMMI_TRY(dcommi_check_request(comm, request_p));
    return dcommi_called(comm,
                         dcommi_call_v(comm, DCOMM_COLL_ALLGATHERV, sendbuf, recvbuf, recvcounts,
                                       displs, dtype, DCOMM_SUM, 0, opts, request_p));
}

DCOMM_API dcomm_status dcomm_allgatherv(dcomm_comm *comm, const void *sendbuf, void *recvbuf,
                                        const size_t *recvcounts, const size_t *displs,
                                        dcomm_dtype dtype, const dcomm_coll_opts *opts)
{
    return dcommi_called(comm, dcommi_call_v(comm, DCOMM_COLL_ALLGATHERV, sendbuf, recvbuf,
                                             recvcounts, displs, dtype, DCOMM_SUM, 0, opts, NULL));
}

DCOMM_API dcomm_status dcomm_ibroadcast(dcomm_comm *comm, const void *sendbuf, void *recvbuf,
                                        size_t count, dcomm_dtype dtype, int root,
                                        const dcomm_coll_opts *opts, dcomm_request **request_p)
{
    DCOMMI_TRY(dcommi_check_request(comm, request_p));
    return dcommi_called(
        comm, dcommi_broadcast(comm, sendbuf, recvbuf, count, dtype, root, opts, request_p));
}

DCOMM_API dcomm_status dcomm_broadcast(dcomm_comm *comm, const void *sendbuf, void *recvbuf,
                                       size_t count, dcomm_dtype dtype, int root,
                                       const dcomm_coll_opts *opts)
{
    return dcommi_called(comm,
                         dcommi_broadcast(comm, sendbuf, recvbuf, count, dtype, root, opts, NULL));
}

DCOMM_API dcomm_status dcomm_ireduce(dcomm_comm *comm, const void *sendbuf, void *recvbuf,
                                     size_t count, dcomm_dtype dtype, dcomm_op op, int root,
                                     const dcomm_coll_opts *opts, dcomm_request **request_p)
{
    DCOMMI_TRY(dcommi_check_request(comm, request_p));
    return dcommi_called(
        comm, dcommi_reduce_to(comm, sendbuf, recvbuf, count, dtype, op, root, opts, request_p));
}

DCOMM_API dcomm_status dcomm_reduce(dcomm_comm *comm, const void *sendbuf, void *recvbuf,
                                    size_t count, dcomm_dtype dtype, dcomm_op op, int root,
                                    const dcomm_coll_opts *opts)
{
    return dcommi_called(
        comm, dcommi_reduce_to(comm, sendbuf, recvbuf, count, dtype, op, root, opts, NULL));
}

DCOMM_API dcomm_status dcomm_igather(dcomm_comm *comm, const void *sendbuf, void *recvbuf,
                                     size_t sendcount, dcomm_dtype dtype, int root,
                                     const dcomm_coll_opts *opts, dcomm_request **request_p)
{
    DCOMMI_TRY(dcommi_check_request(comm, request_p));
    return dcommi_called(
        comm, dcommi_gather(comm, sendbuf, recvbuf, sendcount, dtype, root, opts, request_p));
}

DCOMM_API dcomm_status dcomm_gather(dcomm_comm *comm, const void *sendbuf, void *recvbuf,
                                    size_t sendcount, dcomm_dtype dtype, int root,
                                    const dcomm_coll_opts *opts)
{
    return dcommi_called(comm,
                         dcommi_gather(comm, sendbuf, recvbuf, sendcount, dtype, root, opts, NULL));
}

DCOMM_API dcomm_status dcomm_igatherv(dcomm_comm *comm, const void *sendbuf, void *recvbuf,
                                      const size_t *counts, const size_t *displs, dcomm_dtype dtype,
                                      int root, const dcomm_coll_opts *opts,
                                      dcomm_request **request_p)
{
    DCOMMI_TRY(dcommi_check_request(comm, request_p));
    return dcommi_called(comm, dcommi_call_v(comm, DCOMM_COLL_GATHERV, sendbuf, recvbuf, counts,
                                             displs, dtype, DCOMM_SUM, root, opts, request_p));
}

DCOMM_API dcomm_status dcomm_gatherv(dcomm_comm *comm, const void *sendbuf, void *recvbuf,
                                     const size_t *counts, const size_t *displs, dcomm_dtype dtype,
                                     int root, const dcomm_coll_opts *opts)
{
    return dcommi_called(comm, dcommi_call_v(comm, DCOMM_COLL_GATHERV, sendbuf, recvbuf, counts,
                                             displs, dtype, DCOMM_SUM, root, opts, NULL));
}

DCOMM_API dcomm_status dcomm_iscatter(dcomm_comm *comm, const void *sendbuf, void *recvbuf,
                                      size_t recvcount, dcomm_dtype dtype, int root,
                                      const dcomm_coll_opts *opts, dcomm_request **request_p)
{
    DCOMMI_TRY(dcommi_check_request(comm, request_p));
    return dcommi_called(
        comm, dcommi_scatter(comm, sendbuf, recvbuf, recvcount, dtype, root, opts, request_p));
}

DCOMM_API dcomm_status dcomm_scatter(dcomm_comm *comm, const void *sendbuf, void *recvbuf,
                                     size_t recvcount, dcomm_dtype dtype, int root,
                                     const dcomm_coll_opts *opts)
{
    return dcommi_called(
        comm, dcommi_scatter(comm, sendbuf, recvbuf, recvcount, dtype, root, opts, NULL));
}

DCOMM_API dcomm_status dcomm_iscatterv(dcomm_comm *comm, const void *sendbuf, void *recvbuf,
                                       const size_t *counts, const size_t *displs,
                                       dcomm_dtype dtype, int root, const dcomm_coll_opts *opts,
                                       dcomm_request **request_p)
{
    DCOMMI_TRY(dcommi_check_request(comm, request_p));
    return dcommi_called(comm, dcommi_call_v(comm, DCOMM_COLL_SCATTERV, sendbuf, recvbuf, counts,
                                             displs, dtype, DCOMM_SUM, root, opts, request_p));
}

DCOMM_API dcomm_status dcomm_scatterv(dcomm_comm *comm, const void *sendbuf, void *recvbuf,
                                      const size_t *counts, const size_t *displs, dcomm_dtype dtype,
                                      int root, const dcomm_coll_opts *opts)
{
    return dcommi_called(comm, dcommi_call_v(comm, DCOMM_COLL_SCATTERV, sendbuf, recvbuf, counts,
                                             displs, dtype, DCOMM_SUM, root, opts, NULL));
}

DCOMM_API dcomm_status dcomm_ialltoall(dcomm_comm *comm, const void *sendbuf, void *recvbuf,
                                       size_t count, dcomm_dtype dtype, const dcomm_coll_opts *opts,
                                       dcomm_request **request_p)
{
    DCOMMI_TRY(dcommi_check_request(comm, request_p));
    return dcommi_called(comm,
                         dcommi_alltoall(comm, sendbuf, recvbuf, count, dtype, opts, request_p));
}

DCOMM_API dcomm_status dcomm_alltoall(dcomm_comm *comm, const void *sendbuf, void *recvbuf,
                                      size_t count, dcomm_dtype dtype, const dcomm_coll_opts *opts)
{
    return dcommi_called(comm, dcommi_alltoall(comm, sendbuf, recvbuf, count, dtype, opts, NULL));
}

DCOMM_API dcomm_status dcomm_ialltoallv(dcomm_comm *comm, const void *sendbuf,
                                        const size_t *sendcounts, const size_t *sdispls,
                                        void *recvbuf, const size_t *recvcounts,
                                        const size_t *rdispls, dcomm_dtype dtype,
                                        const dcomm_coll_opts *opts, dcomm_request **request_p)
{
    DCOMMI_TRY(dcommi_check_request(comm, request_p));
    return dcommi_called(comm, dcommi_alltoallv(comm, sendbuf, sendcounts, sdispls, recvbuf,
                                                recvcounts, rdispls, dtype, opts, request_p));
}

DCOMM_API dcomm_status dcomm_alltoallv(dcomm_comm *comm, const void *sendbuf,
                                       const size_t *sendcounts, const size_t *sdispls,
                                       void *recvbuf, const size_t *recvcounts,
                                       const size_t *rdispls, dcomm_dtype dtype,
                                       const dcomm_coll_opts *opts)
{
    return dcommi_called(comm, dcommi_alltoallv(comm, sendbuf, sendcounts, sdispls, recvbuf,
                                                recvcounts, rdispls, dtype, opts, NULL));
}

DCOMM_API dcomm_status dcomm_ibarrier(dcomm_comm *comm, const dcomm_coll_opts *opts,
                                      dcomm_request **request_p)
{
    DCOMMI_TRY(dcommi_check_request(comm, request_p));
    return dcommi_called(comm, dcommi_barrier(comm, opts, request_p));
}

DCOMM_API dcomm_status dcomm_barrier(dcomm_comm *comm, const dcomm_coll_opts *opts)
{
    return dcommi_called(comm, dcommi_barrier(comm, opts, NULL));
}

DCOMM_API dcomm_status dcomm_isend(dcomm_comm *comm, const void *buf, size_t count,
                                   dcomm_dtype dtype, int peer, const dcomm_coll_opts *opts,
                                   dcomm_request **request_p)
{
    DCOMMI_TRY(dcommi_check_request(NULL, request_p));
    return dcommi_called(
        NULL, dcommi_p2p(comm, DCOMM_COLL_SEND, buf, NULL, count, dtype, peer, opts, request_p));
}

DCOMM_API dcomm_status dcomm_send(dcomm_comm *comm, const void *buf, size_t count,
                                  dcomm_dtype dtype, int peer, const dcomm_coll_opts *opts)
{
    return dcommi_called(
        NULL, dcommi_p2p(comm, DCOMM_COLL_SEND, buf, NULL, count, dtype, peer, opts, NULL));
}

DCOMM_API dcomm_status dcomm_irecv(dcomm_comm *comm, void *buf, size_t count, dcomm_dtype dtype,
                                   int peer, const dcomm_coll_opts *opts, dcomm_request **request_p)
{
    DCOMMI_TRY(dcommi_check_request(NULL, request_p));
    return dcommi_called(
        NULL, dcommi_p2p(comm, DCOMM_COLL_RECV, NULL, buf, count, dtype, peer, opts, request_p));
}

DCOMM_API dcomm_status dcomm_recv(dcomm_comm *comm, void *buf, size_t count, dcomm_dtype dtype,
                                  int peer, const dcomm_coll_opts *opts)
{
    return dcommi_called(
        NULL, dcommi_p2p(comm, DCOMM_COLL_RECV, NULL, buf, count, dtype, peer, opts, NULL));
}

DCOMM_API dcomm_status dcomm_iplan_run(dcomm_comm *comm, const dcomm_plan *plan, const void *in,
                                       void *out, void *unused, uint32_t signature,
                                       const dcomm_coll_opts *opts, dcomm_request **request_p)
{
    (void)unused;
    DCOMMI_TRY(dcommi_check_request(comm, request_p));
    return dcommi_called(comm, dcommi_run_plan(comm, plan, in, out, signature, opts, request_p));
}

DCOMM_API dcomm_status dcomm_plan_run(dcomm_comm *comm, const dcomm_plan *plan, const void *in,
                                      void *out, void *unused, uint32_t signature,
                                      const dcomm_coll_opts *opts)
{
    (void)unused;
    return dcommi_called(comm, dcommi_run_plan(comm, plan, in, out, signature, opts, NULL));
}

#endif
