/* later.h - the calls of NCCL 2.28 to 2.32. A program that was compiled against one of those looks
 * for all of them when it is loaded. What dcomm does not have refuses by name. */
#ifndef DCOMMI_NCCL_LATER_H
#define DCOMMI_NCCL_LATER_H

#include "query.h"

/* ---- per-call configuration ---- */

/* NCCL's layout. A newer release may append fields. */
struct ncclCollConfig_v23200 {
    size_t size;
    unsigned int magic, version;
    void *ext;
    int minCTAs, maxCTAs, nvlsCTAs, cgaClusterSize;
    const char *algSelection;
    int forceAlgSelection, CTAPolicy;
    uint64_t userProfilerTag;
    cudaEvent_t launchCompletionEvent; /* not in NCCL 2.31 */
};

/* Refuse what dcomm cannot do of `config`. */
static ncclResult_t dcommi_nccl_check_config(const char *call, const ncclCollConfig_t *config)
{
    if (config == NULL) {
        return ncclSuccess;
    }
    if (config->magic != DCOMMI_NCCL_MAGIC ||
        config->size < offsetof(ncclCollConfig_t, launchCompletionEvent)) {
        return dcommi_nccl_refused(dcommi_nccl_fail(
            ncclInvalidArgument, "%s: config does not begin as NCCL_COLLCONFIG_INITIALIZER", call));
    }
    if (config->algSelection != NULL && *config->algSelection != '\0' &&
        config->forceAlgSelection != 0) {
        return dcommi_nccl_refused(
            dcommi_nccl_fail(ncclInvalidArgument,
                             "%s: config.algSelection is \"%s\", an algorithm of NCCL: set "
                             "forceAlgSelection to 0; DCOMM_ALGO chooses among dcomm's",
                             call, config->algSelection));
    }
    if (config->size >= sizeof *config && config->launchCompletionEvent != NULL) {
        return dcommi_nccl_refused(dcommi_nccl_fail(
            ncclInvalidUsage,
            "%s: config.launchCompletionEvent is set, and dcomm launches no kernel to wait for",
            call));
    }
    return ncclSuccess;
}

/* Define a collective that takes a configuration, by the plain call, and its second name. */
#define DCOMMI_NCCL_CONFIGURED(name, arguments, plain)            \
    ncclResult_t name arguments                                   \
    {                                                             \
        DCOMMI_NCCL_TRY(dcommi_nccl_check_config(#name, config)); \
        return plain;                                             \
    }                                                             \
    DCOMMI_NCCL_CALL(name)

DCOMMI_NCCL_CONFIGURED(ncclAllReduceConfig,
                       (const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype,
                        ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream,
                        const ncclCollConfig_t *config),
                       ncclAllReduce(sendbuff, recvbuff, count, datatype, op, comm, stream));
DCOMMI_NCCL_CONFIGURED(ncclBroadcastConfig,
                       (const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype,
                        int root, ncclComm_t comm, cudaStream_t stream,
                        const ncclCollConfig_t *config),
                       ncclBroadcast(sendbuff, recvbuff, count, datatype, root, comm, stream));
DCOMMI_NCCL_CONFIGURED(ncclReduceConfig,
                       (const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype,
                        ncclRedOp_t op, int root, ncclComm_t comm, cudaStream_t stream,
                        const ncclCollConfig_t *config),
                       ncclReduce(sendbuff, recvbuff, count, datatype, op, root, comm, stream));
DCOMMI_NCCL_CONFIGURED(ncclAllGatherConfig,
                       (const void *sendbuff, void *recvbuff, size_t sendcount,
                        ncclDataType_t datatype, ncclComm_t comm, cudaStream_t stream,
                        const ncclCollConfig_t *config),
                       ncclAllGather(sendbuff, recvbuff, sendcount, datatype, comm, stream));
DCOMMI_NCCL_CONFIGURED(ncclReduceScatterConfig,
                       (const void *sendbuff, void *recvbuff, size_t recvcount,
                        ncclDataType_t datatype, ncclRedOp_t op, ncclComm_t comm,
                        cudaStream_t stream, const ncclCollConfig_t *config),
                       ncclReduceScatter(sendbuff, recvbuff, recvcount, datatype, op, comm,
                                         stream));
DCOMMI_NCCL_CONFIGURED(ncclAlltoAllConfig,
                       (const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype,
                        ncclComm_t comm, cudaStream_t stream, const ncclCollConfig_t *config),
                       ncclAlltoAll(sendbuff, recvbuff, count, datatype, comm, stream));
DCOMMI_NCCL_CONFIGURED(ncclGatherConfig,
                       (const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype,
                        int root, ncclComm_t comm, cudaStream_t stream,
                        const ncclCollConfig_t *config),
                       ncclGather(sendbuff, recvbuff, count, datatype, root, comm, stream));
DCOMMI_NCCL_CONFIGURED(ncclScatterConfig,
                       (const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype,
                        int root, ncclComm_t comm, cudaStream_t stream,
                        const ncclCollConfig_t *config),
                       ncclScatter(sendbuff, recvbuff, count, datatype, root, comm, stream));

/* ---- queries ---- */

/* The fields that every release has, in NCCL's layout. Zero bytes in those behind mean "no". */
struct ncclCommProperties {
    size_t size;
    unsigned int magic, version;
    int rank, nRanks, cudaDev, nvmlDev;
};

ncclResult_t ncclCommQueryProperties(ncclComm_t comm, ncclCommProperties_t *properties)
{
    ncclCommProperties_t *p = properties;
    DCOMMI_NCCL_TRY(dcommi_nccl_ask("ncclCommQueryProperties", comm, p));
    if (p->magic != DCOMMI_NCCL_MAGIC || p->size < sizeof *p || p->size > 4096) {
        return dcommi_nccl_fail(ncclInvalidArgument,
                                "ncclCommQueryProperties: properties do not begin as "
                                "NCCL_COMM_PROPERTIES_INITIALIZER");
    }
    p->rank = dcomm_comm_rank(comm->comm);
    p->nRanks = dcomm_comm_size(comm->comm);
    p->cudaDev = comm->device;
    p->nvmlDev = -1; /* not known: dcomm does not use NVML */
    memset(p + 1, 0, p->size - sizeof *p);
    return ncclSuccess;
}

ncclResult_t ncclWinGetUserPtr(ncclComm_t comm, ncclWindow_t window, void **ptr)
{
    DCOMMI_NCCL_TRY(dcommi_nccl_ask("ncclWinGetUserPtr", comm, ptr));
    *ptr = NULL;
    pthread_mutex_lock(&dcommi_nccl_lock);
    const dcommi_nccl_registered *r = comm->registered;
    while (r != NULL && (const void *)r != (const void *)window) {
        r = r->next;
    }
    *ptr = r != NULL ? r->buff : NULL;
    pthread_mutex_unlock(&dcommi_nccl_lock);
    return r != NULL ? ncclSuccess
                     : dcommi_nccl_fail(ncclInvalidArgument,
                                        "ncclWinGetUserPtr: the communicator has no such window");
}

static ncclTeam_t dcommi_nccl_everyone(const struct ncclComm *comm)
{
    ncclTeam_t team = {0, 0, 0};
    if (dcommi_nccl_ask("ncclTeam", (ncclComm_t)comm, &team) == ncclSuccess) {
        team = (ncclTeam_t){dcomm_comm_size(comm->comm), dcomm_comm_rank(comm->comm), 1};
    }
    return team;
}

ncclTeam_t ncclTeamWorld(ncclComm_t comm)
{
    return dcommi_nccl_everyone(comm);
}

ncclTeam_t ncclTeamRail(ncclComm_t comm)
{
    return dcommi_nccl_everyone(comm);
}

ncclTeam_t ncclTeamLsa(ncclComm_t comm)
{
    return (ncclTeam_t){comm != NULL, 0, comm != NULL};
}

ncclTeam_t ncclTeamCft(ncclComm_t comm, ncclCftTeamMode_t mode)
{
    (void)comm;
    (void)mode;
    return (ncclTeam_t){0, 0, 0};
}

ncclTeam_t ncclTeamCftMultimem(ncclComm_t comm)
{
    return ncclTeamCft(comm, NCCL_CFT_TEAM_FLAT);
}

int ncclTeamRankToWorld(ncclComm_t comm, ncclTeam_t team, int rank)
{
    return dcommi_nccl_everyone(comm).rank + (rank - team.rank) * team.stride;
}

int ncclTeamRankToLsa(ncclComm_t comm, ncclTeam_t team, int rank)
{
    (void)comm;
    return (rank - team.rank) * team.stride;
}

int ncclLLA2ACalcSlots(int elements, int bytes)
{
    (void)elements;
    (void)bytes;
    return 0;
}

ncclResult_t ncclParamGetAllParameterKeys(const char ***keys, int *n)
{
    static const char *none[1];
    if (keys == NULL || n == NULL) {
        return dcommi_nccl_fail(ncclInvalidArgument, "ncclParamGetAllParameterKeys: %s is NULL",
                                keys == NULL ? "keys" : "n");
    }
    *keys = none;
    *n = 0;
    return ncclSuccess;
}

void ncclParamDumpAll(void)
{
}

DCOMMI_NCCL_CALL(ncclCommQueryProperties);
DCOMMI_NCCL_CALL(ncclWinGetUserPtr);
DCOMMI_NCCL_CALL(ncclTeamWorld);
DCOMMI_NCCL_CALL(ncclTeamRail);
DCOMMI_NCCL_CALL(ncclTeamLsa);
DCOMMI_NCCL_CALL(ncclTeamCft);
DCOMMI_NCCL_CALL(ncclTeamCftMultimem);
DCOMMI_NCCL_CALL(ncclTeamRankToWorld);
DCOMMI_NCCL_CALL(ncclTeamRankToLsa);
DCOMMI_NCCL_CALL(ncclLLA2ACalcSlots);
DCOMMI_NCCL_CALL(ncclParamGetAllParameterKeys);
DCOMMI_NCCL_CALL(ncclParamDumpAll);

/* ---- refusals ---- */

/* Define a call that refuses, and its second name. */
#define DCOMMI_NCCL_REFUSES(name, arguments, why)                                             \
    ncclResult_t name arguments                                                               \
    {                                                                                         \
        return dcommi_nccl_refused(dcommi_nccl_fail(ncclInvalidUsage, "%s: %s", #name, why)); \
    }                                                                                         \
    DCOMMI_NCCL_CALL(name)
#define DCOMMI_NCCL_NO_DEVICE "dcomm has no communication by kernels"
#define DCOMMI_NCCL_NO_PUT "dcomm has no one-sided operations"
#define DCOMMI_NCCL_NO_PARAMETERS "dcomm has no parameters of NCCL"

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wunused-parameter" /* a refusal reads none */

DCOMMI_NCCL_REFUSES(ncclCommRevoke, (ncclComm_t comm, int flags),
                    "dcomm cannot revoke a communicator; ncclCommAbort ends it, and "
                    "ncclCommShrink with NCCL_SHRINK_ABORT makes one of the other ranks");
DCOMMI_NCCL_REFUSES(ncclCommGetUniqueId, (ncclComm_t comm, ncclUniqueId *id),
                    "dcomm cannot add ranks to a communicator; create a new one");
DCOMMI_NCCL_REFUSES(ncclCommGrow,
                    (ncclComm_t comm, int nranks, const ncclUniqueId *id, int rank,
                     ncclComm_t *newcomm, ncclConfig_t *config),
                    "dcomm cannot add ranks to a communicator; create a new one");
DCOMMI_NCCL_REFUSES(ncclCommSuspend, (ncclComm_t comm, int flags),
                    "dcomm cannot suspend a communicator; destroy it, and create a new one later");
DCOMMI_NCCL_REFUSES(ncclCommResume, (ncclComm_t comm), "dcomm has not suspended the communicator");
DCOMMI_NCCL_REFUSES(ncclCommMemStats, (ncclComm_t comm, ncclCommMemStat_t stat, uint64_t *value),
                    "dcomm does not count a communicator's memory");
DCOMMI_NCCL_REFUSES(ncclSetEncryption, (const ncclEncryptionConfig_t *config),
                    "dcomm does not encrypt what it sends");

DCOMMI_NCCL_REFUSES(ncclPutSignal,
                    (const void *localbuff, size_t count, ncclDataType_t datatype, int peer,
                     ncclWindow_t window, size_t offset, int sigIdx, int ctx, unsigned int flags,
                     ncclComm_t comm, cudaStream_t stream),
                    DCOMMI_NCCL_NO_PUT);
DCOMMI_NCCL_REFUSES(ncclSignal,
                    (int peer, int sigIdx, int ctx, unsigned int flags, ncclComm_t comm,
                     cudaStream_t stream),
                    DCOMMI_NCCL_NO_PUT);
DCOMMI_NCCL_REFUSES(ncclWaitSignal,
                    (int n, ncclWaitSignalDesc_t *signals, ncclComm_t comm, cudaStream_t stream),
                    DCOMMI_NCCL_NO_PUT);

DCOMMI_NCCL_REFUSES(ncclDevCommCreate,
                    (ncclComm_t comm, const ncclDevCommRequirements_t *requirements,
                     ncclDevComm_t *devcomm),
                    DCOMMI_NCCL_NO_DEVICE);
DCOMMI_NCCL_REFUSES(ncclDevCommDestroy, (ncclComm_t comm, const ncclDevComm_t *devcomm),
                    DCOMMI_NCCL_NO_DEVICE);
DCOMMI_NCCL_REFUSES(ncclGetLsaDevicePointer,
                    (ncclWindow_t window, size_t offset, int peer, void **ptr),
                    DCOMMI_NCCL_NO_DEVICE);
DCOMMI_NCCL_REFUSES(ncclGetPeerDevicePointer,
                    (ncclWindow_t window, size_t offset, int peer, void **ptr),
                    DCOMMI_NCCL_NO_DEVICE);
DCOMMI_NCCL_REFUSES(ncclGetLsaMultimemDevicePointer,
                    (ncclWindow_t window, size_t offset, void **ptr), DCOMMI_NCCL_NO_DEVICE);
DCOMMI_NCCL_REFUSES(ncclGetMultimemDevicePointer,
                    (ncclWindow_t window, size_t offset, ncclMultimemHandle_t multimem, void **ptr),
                    DCOMMI_NCCL_NO_DEVICE);
DCOMMI_NCCL_REFUSES(ncclGetPeerDeviceLeInfo,
                    (ncclWindow_t window, size_t offset, int peer, ncclCftLeId *id, size_t *at),
                    DCOMMI_NCCL_NO_DEVICE);
DCOMMI_NCCL_REFUSES(ncclGetCftDeviceLeInfo,
                    (ncclWindow_t window, size_t offset, int peer, ncclTeam_t team, ncclCftLeId *id,
                     size_t *at),
                    DCOMMI_NCCL_NO_DEVICE);
DCOMMI_NCCL_REFUSES(ncclGetMultimemDeviceLeInfo,
                    (ncclWindow_t window, size_t offset, ncclCftLeId *id, size_t *at),
                    DCOMMI_NCCL_NO_DEVICE);
DCOMMI_NCCL_REFUSES(ncclLsaBarrierCreateRequirement,
                    (ncclTeam_t team, int n, ncclLsaBarrierHandle_t *handle,
                     ncclDevResourceRequirements_t *requirements),
                    DCOMMI_NCCL_NO_DEVICE);
DCOMMI_NCCL_REFUSES(ncclGinBarrierCreateRequirement,
                    (ncclComm_t comm, ncclTeam_t team, int n, ncclGinBarrierHandle_t *handle,
                     ncclDevResourceRequirements_t *requirements),
                    DCOMMI_NCCL_NO_DEVICE);
DCOMMI_NCCL_REFUSES(ncclLLA2ACreateRequirement,
                    (int blocks, int slots, ncclLLA2AHandle_t *handle,
                     ncclDevResourceRequirements_t *requirements),
                    DCOMMI_NCCL_NO_DEVICE);

DCOMMI_NCCL_REFUSES(ncclParamBind, (ncclParamHandle_t * handle, const char *key),
                    DCOMMI_NCCL_NO_PARAMETERS);
DCOMMI_NCCL_REFUSES(ncclParamGetI8, (ncclParamHandle_t handle, int8_t *value),
                    DCOMMI_NCCL_NO_PARAMETERS);
DCOMMI_NCCL_REFUSES(ncclParamGetI16, (ncclParamHandle_t handle, int16_t *value),
                    DCOMMI_NCCL_NO_PARAMETERS);
DCOMMI_NCCL_REFUSES(ncclParamGetI32, (ncclParamHandle_t handle, int32_t *value),
                    DCOMMI_NCCL_NO_PARAMETERS);
DCOMMI_NCCL_REFUSES(ncclParamGetI64, (ncclParamHandle_t handle, int64_t *value),
                    DCOMMI_NCCL_NO_PARAMETERS);
DCOMMI_NCCL_REFUSES(ncclParamGetU8, (ncclParamHandle_t handle, uint8_t *value),
                    DCOMMI_NCCL_NO_PARAMETERS);
DCOMMI_NCCL_REFUSES(ncclParamGetU16, (ncclParamHandle_t handle, uint16_t *value),
                    DCOMMI_NCCL_NO_PARAMETERS);
DCOMMI_NCCL_REFUSES(ncclParamGetU32, (ncclParamHandle_t handle, uint32_t *value),
                    DCOMMI_NCCL_NO_PARAMETERS);
DCOMMI_NCCL_REFUSES(ncclParamGetU64, (ncclParamHandle_t handle, uint64_t *value),
                    DCOMMI_NCCL_NO_PARAMETERS);
DCOMMI_NCCL_REFUSES(ncclParamGetStr, (ncclParamHandle_t handle, const char **value),
                    DCOMMI_NCCL_NO_PARAMETERS);
DCOMMI_NCCL_REFUSES(ncclParamGet, (ncclParamHandle_t handle, void *value, int room, int *bytes),
                    DCOMMI_NCCL_NO_PARAMETERS);
DCOMMI_NCCL_REFUSES(ncclParamGetParameter, (const char *key, const char **value, int *bytes),
                    DCOMMI_NCCL_NO_PARAMETERS);

#pragma GCC diagnostic pop

#endif
