/* comm.h - create communicators: from an id, from another communicator, or all in one process. */
#ifndef DCOMMI_NCCL_COMM_H
#define DCOMMI_NCCL_COMM_H

#include "group.h"

ncclResult_t ncclGetUniqueId(ncclUniqueId *id)
{
    dcomm_id made;
    if (id == NULL) {
        return dcommi_nccl_fail(ncclInvalidArgument, "ncclGetUniqueId: id is NULL");
    }
    DCOMMI_NCCL_TRY(dcommi_nccl_from(dcomm_id_create(&made)));
    memcpy(id, &made, sizeof *id);
    return ncclSuccess;
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t *comm, int nranks, ncclUniqueId id, int rank,
                                    ncclConfig_t *config)
{
    dcommi_nccl_job j = {.kind = DCOMMI_NCCL_CREATE, .out = comm};
    ncclResult_t result = dcommi_nccl_begin(&j.comm, nranks, &id, rank, config);
    if (result != ncclSuccess || comm == NULL) {
        return dcommi_nccl_refused(result);
    }
    *comm = j.comm;
    return dcommi_nccl_submit(&j);
}

ncclResult_t ncclCommInitRank(ncclComm_t *comm, int nranks, ncclUniqueId id, int rank)
{
    return ncclCommInitRankConfig(comm, nranks, id, rank, NULL);
}

ncclResult_t ncclCommInitRankScalable(ncclComm_t *comm, int nranks, int rank, int nids,
                                      ncclUniqueId *ids, ncclConfig_t *config)
{
    if (ids == NULL || nids < 1) {
        return dcommi_nccl_refused(dcommi_nccl_fail(
            ncclInvalidArgument, "ncclCommInitRankScalable: ids is NULL, or nids is %d", nids));
    }
    return ncclCommInitRankConfig(comm, nranks, ids[0], rank, config);
}

ncclResult_t ncclCommInitAll(ncclComm_t *comms, int ndev, const int *devices)
{
    ncclUniqueId id;
    int before = 0, count = 0;
    if (comms == NULL || ndev < 1) {
        return dcommi_nccl_fail(ncclInvalidArgument,
                                "ncclCommInitAll: comms is NULL, or ndev is %d", ndev);
    }
    memset(comms, 0, (size_t)ndev * sizeof *comms);
    DCOMMI_NCCL_TRY(dcommi_nccl_cuda("cudaGetDevice", cudaGetDevice(&before)));
    DCOMMI_NCCL_TRY(dcommi_nccl_cuda("cudaGetDeviceCount", cudaGetDeviceCount(&count)));
    for (int i = 0; i < ndev; i++) {
        const int device = devices != NULL ? devices[i] : i;
        if (device < 0 || device >= count) {
            return dcommi_nccl_fail(ncclInvalidArgument,
                                    "ncclCommInitAll: there is no device %d, of %d", device, count);
        }
    }
    DCOMMI_NCCL_TRY(ncclGetUniqueId(&id));
    (void)ncclGroupStart();
    for (int i = 0; i < ndev; i++) {
        (void)cudaSetDevice(devices != NULL ? devices[i] : i);
        (void)ncclCommInitRank(&comms[i], ndev, id, i); /* ncclGroupEnd returns the error */
    }
    ncclResult_t result = ncclGroupEnd();
    (void)cudaSetDevice(before);
    return result;
}

/* Prepare a communicator that is derived from `from`. It inherits the device. It inherits name,
 * codec and blocking unless `config` sets them. After an error the caller discards *made_p. */
static ncclResult_t dcommi_nccl_inherit(const struct ncclComm *from, const ncclConfig_t *config,
                                        struct ncclComm **made_p)
{
    dcommi_nccl_options o = {.codec = NULL};
    DCOMMI_NCCL_TRY(dcommi_nccl_new(made_p));
    struct ncclComm *made = *made_p;
    made->device = from->device;
    made->blocking = from->blocking;
    memcpy(made->name, from->name, sizeof made->name);
    DCOMMI_NCCL_TRY(dcommi_nccl_configure(
        made, config, from->codec != NULL ? dcomm_codec_spec(from->codec) : NULL, &o));
    return o.set ? dcommi_nccl_fail(ncclInvalidUsage,
                                    "commName: a derived communicator can be given a codec; the "
                                    "other options are its parent's")
                 : ncclSuccess;
}

static ncclResult_t dcommi_nccl_submit_derived(dcommi_nccl_job *j, const ncclConfig_t *config)
{
    *j->out = NULL;
    ncclResult_t result = dcommi_nccl_await(j->comm);
    if (result != ncclSuccess && !j->shrink) {
        return result;
    }
    result = dcommi_nccl_inherit(j->comm, config, &j->made);
    if (result != ncclSuccess) {
        dcommi_nccl_drop_job(j);
        return result;
    }
    return dcommi_nccl_submit(j);
}

ncclResult_t ncclCommSplit(ncclComm_t comm, int color, int key, ncclComm_t *newcomm,
                           ncclConfig_t *config)
{
    dcommi_nccl_job j = {
        .kind = DCOMMI_NCCL_DERIVE, .comm = comm, .out = newcomm, .color = color, .key = key};
    if (comm == NULL || newcomm == NULL || color < NCCL_SPLIT_NOCOLOR) {
        return dcommi_nccl_refused(dcommi_nccl_fail(
            ncclInvalidArgument, "ncclCommSplit: comm or newcomm is NULL, or color is %d", color));
    }
    return dcommi_nccl_refused(dcommi_nccl_submit_derived(&j, config));
}

ncclResult_t ncclCommShrink(ncclComm_t comm, int *excluded, int n, ncclComm_t *newcomm,
                            ncclConfig_t *config, int flags)
{
    dcommi_nccl_job j = {
        .kind = DCOMMI_NCCL_DERIVE, .comm = comm, .out = newcomm, .shrink = true, .n = n};
    if (comm == NULL || newcomm == NULL || excluded == NULL || n < 1 ||
        (flags != NCCL_SHRINK_DEFAULT && flags != NCCL_SHRINK_ABORT)) {
        return dcommi_nccl_refused(dcommi_nccl_fail(
            ncclInvalidArgument,
            "ncclCommShrink: comm, newcomm or excluded is NULL, n is %d, or flags is %d", n,
            flags));
    }
    j.excluded = malloc((size_t)n * sizeof *excluded);
    if (j.excluded == NULL) {
        return dcommi_nccl_refused(dcommi_nccl_no_memory());
    }
    memcpy(j.excluded, excluded, (size_t)n * sizeof *excluded);
    if (flags == NCCL_SHRINK_ABORT) {
        (void)dcomm_comm_abort(comm->comm, "ncclCommShrink was called with NCCL_SHRINK_ABORT");
    }
    return dcommi_nccl_refused(dcommi_nccl_submit_derived(&j, config));
}

DCOMMI_NCCL_CALL(ncclGetUniqueId);
DCOMMI_NCCL_CALL(ncclCommInitRank);
DCOMMI_NCCL_CALL(ncclCommInitRankConfig);
DCOMMI_NCCL_CALL(ncclCommInitRankScalable);
DCOMMI_NCCL_CALL(ncclCommInitAll);
DCOMMI_NCCL_CALL(ncclCommSplit);
DCOMMI_NCCL_CALL(ncclCommShrink);

#endif
