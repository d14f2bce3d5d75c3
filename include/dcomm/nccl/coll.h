/* coll.h - NCCL's collectives: check the arguments, and add a job to the thread's group. */
#ifndef DCOMMI_NCCL_COLL_H
#define DCOMMI_NCCL_COLL_H

#include "group.h"

/* Check the arguments that all calls share, and set the job's dtype, operator and factor.
 * `in_needed`, `out_needed`: the pointer must not be NULL if the count is above 0. */
static ncclResult_t dcommi_nccl_check(const char *call, dcommi_nccl_job *j, ncclDataType_t datatype,
                                      bool reduced, ncclRedOp_t op, bool in_needed, bool out_needed)
{
    if (j->comm == NULL) {
        return dcommi_nccl_fail(ncclInvalidArgument, "%s: comm is NULL", call);
    }
    dcomm_status ready = dcomm_comm_ready(j->comm->comm);
    if (ready != DCOMM_OK) {
        return ready == DCOMM_IN_PROGRESS
                   ? dcommi_nccl_fail(ncclInvalidUsage,
                                      "%s: the communicator is still being created: wait until "
                                      "ncclCommGetAsyncError says ncclSuccess",
                                      call)
                   : dcommi_nccl_from(ready);
    }
    const int size = dcomm_comm_size(j->comm->comm);
    if (j->root < 0 || j->root >= size) {
        return dcommi_nccl_fail(ncclInvalidArgument, "%s: rank %d is none of the %d ranks", call,
                                j->root, size);
    }
    if (j->count > 0 && ((in_needed && j->in == NULL) || (out_needed && j->recv == NULL))) {
        return dcommi_nccl_fail(ncclInvalidArgument, "%s: %s is NULL", call,
                                in_needed && j->in == NULL ? "sendbuff" : "recvbuff");
    }
    DCOMMI_NCCL_TRY(dcommi_nccl_type(datatype, reduced, &j->dtype));
    if (reduced) {
        const dcommi_nccl_op *premul = NULL;
        DCOMMI_NCCL_TRY(dcommi_nccl_operator(j->comm, op, datatype, &j->op, &premul));
        if (premul != NULL) { /* the program may destroy it before the group ends */
            j->premul = true;
            j->scalar = premul->scalar;
            memcpy(j->factor, premul->factor, sizeof j->factor);
        }
    }
    return ncclSuccess;
}

static ncclResult_t dcommi_nccl_coll(const char *call, dcommi_nccl_job *j, ncclDataType_t datatype,
                                     bool reduced, ncclRedOp_t op, bool in_needed, bool out_needed)
{
    j->kind = DCOMMI_NCCL_COLL;
    ncclResult_t result = dcommi_nccl_check(call, j, datatype, reduced, op, in_needed, out_needed);
    return result == ncclSuccess ? dcommi_nccl_submit(j) : dcommi_nccl_refused(result);
}

static bool dcommi_nccl_is_rank(ncclComm_t comm, int rank)
{
    return comm != NULL && dcomm_comm_rank(comm->comm) == rank;
}

ncclResult_t ncclAllReduce(const void *sendbuff, void *recvbuff, size_t count,
                           ncclDataType_t datatype, ncclRedOp_t op, ncclComm_t comm,
                           cudaStream_t stream)
{
    dcommi_nccl_job j = {.coll = DCOMM_COLL_ALLREDUCE,
                         .comm = comm,
                         .in = sendbuff,
                         .recv = recvbuff,
                         .count = count,
                         .stream = stream};
    return dcommi_nccl_coll("ncclAllReduce", &j, datatype, true, op, true, true);
}

ncclResult_t ncclReduce(const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype,
                        ncclRedOp_t op, int root, ncclComm_t comm, cudaStream_t stream)
{
    dcommi_nccl_job j = {.coll = DCOMM_COLL_REDUCE,
                         .comm = comm,
                         .in = sendbuff,
                         .recv = recvbuff,
                         .count = count,
                         .root = root,
                         .stream = stream};
    return dcommi_nccl_coll("ncclReduce", &j, datatype, true, op, true,
                            dcommi_nccl_is_rank(comm, root));
}

ncclResult_t ncclBroadcast(const void *sendbuff, void *recvbuff, size_t count,
                           ncclDataType_t datatype, int root, ncclComm_t comm, cudaStream_t stream)
{
    dcommi_nccl_job j = {.coll = DCOMM_COLL_BROADCAST,
                         .comm = comm,
                         .in = sendbuff,
                         .recv = recvbuff,
                         .count = count,
                         .root = root,
                         .stream = stream};
    return dcommi_nccl_coll("ncclBroadcast", &j, datatype, false, ncclSum,
                            dcommi_nccl_is_rank(comm, root), true);
}

ncclResult_t ncclBcast(void *buff, size_t count, ncclDataType_t datatype, int root, ncclComm_t comm,
                       cudaStream_t stream)
{
    return ncclBroadcast(buff, buff, count, datatype, root, comm, stream);
}

ncclResult_t ncclReduceScatter(const void *sendbuff, void *recvbuff, size_t recvcount,
                               ncclDataType_t datatype, ncclRedOp_t op, ncclComm_t comm,
                               cudaStream_t stream)
{
    dcommi_nccl_job j = {.coll = DCOMM_COLL_REDUCE_SCATTER,
                         .comm = comm,
                         .in = sendbuff,
                         .recv = recvbuff,
                         .count = recvcount,
                         .stream = stream};
    return dcommi_nccl_coll("ncclReduceScatter", &j, datatype, true, op, true, true);
}

ncclResult_t ncclAllGather(const void *sendbuff, void *recvbuff, size_t sendcount,
                           ncclDataType_t datatype, ncclComm_t comm, cudaStream_t stream)
{
    dcommi_nccl_job j = {.coll = DCOMM_COLL_ALLGATHER,
                         .comm = comm,
                         .in = sendbuff,
                         .recv = recvbuff,
                         .count = sendcount,
                         .stream = stream};
    return dcommi_nccl_coll("ncclAllGather", &j, datatype, false, ncclSum, true, true);
}

ncclResult_t ncclAlltoAll(const void *sendbuff, void *recvbuff, size_t count,
                          ncclDataType_t datatype, ncclComm_t comm, cudaStream_t stream)
{
    dcommi_nccl_job j = {.coll = DCOMM_COLL_ALLTOALL,
                         .comm = comm,
                         .in = sendbuff,
                         .recv = recvbuff,
                         .count = count,
                         .stream = stream};
    return dcommi_nccl_coll("ncclAlltoAll", &j, datatype, false, ncclSum, true, true);
}

ncclResult_t ncclGather(const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype,
                        int root, ncclComm_t comm, cudaStream_t stream)
{
    dcommi_nccl_job j = {.coll = DCOMM_COLL_GATHER,
                         .comm = comm,
                         .in = sendbuff,
                         .recv = recvbuff,
                         .count = count,
                         .root = root,
                         .stream = stream};
    return dcommi_nccl_coll("ncclGather", &j, datatype, false, ncclSum, true,
                            dcommi_nccl_is_rank(comm, root));
}

ncclResult_t ncclScatter(const void *sendbuff, void *recvbuff, size_t count,
                         ncclDataType_t datatype, int root, ncclComm_t comm, cudaStream_t stream)
{
    dcommi_nccl_job j = {.coll = DCOMM_COLL_SCATTER,
                         .comm = comm,
                         .in = sendbuff,
                         .recv = recvbuff,
                         .count = count,
                         .root = root,
                         .stream = stream};
    return dcommi_nccl_coll("ncclScatter", &j, datatype, false, ncclSum,
                            dcommi_nccl_is_rank(comm, root), true);
}

ncclResult_t ncclSend(const void *sendbuff, size_t count, ncclDataType_t datatype, int peer,
                      ncclComm_t comm, cudaStream_t stream)
{
    dcommi_nccl_job j = {.coll = DCOMM_COLL_SEND,
                         .comm = comm,
                         .in = sendbuff,
                         .count = count,
                         .root = peer,
                         .stream = stream};
    return dcommi_nccl_coll("ncclSend", &j, datatype, false, ncclSum, true, false);
}

ncclResult_t ncclRecv(void *recvbuff, size_t count, ncclDataType_t datatype, int peer,
                      ncclComm_t comm, cudaStream_t stream)
{
    dcommi_nccl_job j = {.coll = DCOMM_COLL_RECV,
                         .comm = comm,
                         .recv = recvbuff,
                         .count = count,
                         .root = peer,
                         .stream = stream};
    return dcommi_nccl_coll("ncclRecv", &j, datatype, false, ncclSum, false, true);
}

DCOMMI_NCCL_CALL(ncclAllReduce);
DCOMMI_NCCL_CALL(ncclReduce);
DCOMMI_NCCL_CALL(ncclBroadcast);
DCOMMI_NCCL_CALL(ncclBcast);
DCOMMI_NCCL_CALL(ncclReduceScatter);
DCOMMI_NCCL_CALL(ncclAllGather);
DCOMMI_NCCL_CALL(ncclAlltoAll);
DCOMMI_NCCL_CALL(ncclGather);
DCOMMI_NCCL_CALL(ncclScatter);
DCOMMI_NCCL_CALL(ncclSend);
DCOMMI_NCCL_CALL(ncclRecv);

#endif
