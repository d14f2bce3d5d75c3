/* face.h - NCCL's calls, made by dcomm. docs/from-nccl.md lists how each call differs from NCCL's.
 *
 * Names, types, tags, values and layouts are those of NCCL 2.27. So a program that was compiled
 * against NCCL's header also runs with this library. A C++ function that takes these types keeps
 * its mangled name. The calls of NCCL 2.28 to 2.32 exist too, so that programs which were compiled
 * against those load; most of them refuse.
 *
 * This header needs <cuda_runtime.h>: CUDA's, or the host stand-in's (nccl/host). The stand-in
 * makes N "GPUs" of this machine's threads and memory. */
#ifndef DCOMM_NCCL_H
#define DCOMM_NCCL_H
#define NCCL_H_ /* the guard of NCCL's own header: including that adds nothing */

#include <cuda_runtime.h>
#ifndef CUDA_HOST_STAND_IN /* the stand-in lacks these types */
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#if defined(__cplusplus) && CUDART_VERSION >= 11080
#include <cuda_fp8.h>
#endif
#elif defined(__cplusplus) /* CUDA's headers include these, and programs rely on it */
#include <cstring>
#include <utility>
#endif
#include <limits.h>
#include <stddef.h>
#include <stdint.h>

#define NCCL_MAJOR 2
#define NCCL_MINOR 27
#define NCCL_PATCH 0
#define NCCL_SUFFIX ""
#define NCCL_VERSION(X, Y, Z) \
    (((X) <= 2 && (Y) <= 8) ? (X)*1000 + (Y)*100 + (Z) : (X)*10000 + (Y)*100 + (Z))
#define NCCL_VERSION_CODE 22700

#ifdef __cplusplus
extern "C" {
#endif

typedef struct ncclComm *ncclComm_t;
typedef struct ncclWindow *ncclWindow_t;
#define NCCL_COMM_NULL NULL

#define NCCL_UNIQUE_ID_BYTES 128
typedef struct {
    char internal[NCCL_UNIQUE_ID_BYTES];
} ncclUniqueId;

typedef enum {
    ncclSuccess = 0,
    ncclUnhandledCudaError = 1, /* a CUDA call failed */
    ncclSystemError = 2,        /* the operating system or the network failed */
    ncclInternalError = 3,
    ncclInvalidArgument = 4,
    ncclInvalidUsage = 5, /* ranks disagree, or dcomm does not support it: see ncclGetLastError */
    ncclRemoteError = 6,  /* a peer failed, was lost, or aborted */
    ncclInProgress = 7,
    ncclNumResults = 8
} ncclResult_t;

typedef enum {
    ncclInt8 = 0,
    ncclChar = 0,
    ncclUint8 = 1,
    ncclInt32 = 2,
    ncclInt = 2,
    ncclUint32 = 3,
    ncclInt64 = 4,
    ncclUint64 = 5,
    ncclFloat16 = 6,
    ncclHalf = 6,
    ncclFloat32 = 7,
    ncclFloat = 7,
    ncclFloat64 = 8,
    ncclDouble = 8,
    ncclBfloat16 = 9,
    ncclFloat8e4m3 = 10, /* 8-bit floats are moved, not reduced */
    ncclFloat8e5m2 = 11,
    ncclNumTypes = 12
} ncclDataType_t;

typedef enum {
    ncclSum = 0,
    ncclProd = 1,
    ncclMax = 2,
    ncclMin = 3,
    ncclAvg = 4,
    ncclNumOps = 5, /* operators of ncclRedOpCreatePreMulSum start here */
    ncclMaxRedOp = 0x7fffffff
} ncclRedOp_t;

typedef enum { ncclNumOps_dummy = 5 } ncclRedOp_dummy_t; /* nccl.h has this name */

typedef enum {
    ncclScalarDevice = 0,       /* the stream reads the scalar when it comes to the collective */
    ncclScalarHostImmediate = 1 /* ncclRedOpCreatePreMulSum reads the scalar */
} ncclScalarResidence_t;

#define NCCL_CONFIG_UNDEF_INT INT_MIN
#define NCCL_CONFIG_UNDEF_PTR NULL
#define NCCL_SPLIT_NOCOLOR (-1)
#define NCCL_UNDEF_FLOAT (-1.0f)
#define NCCL_WIN_DEFAULT 0x00
#define NCCL_WIN_COLL_SYMMETRIC 0x01
#define NCCL_WIN_STRICT_ORDERING 0x02 /* of NCCL 2.29 */
#define NCCL_WIN_REQUIRED_ALIGNMENT 4096
#define NCCL_SHRINK_DEFAULT 0x00
#define NCCL_SHRINK_ABORT 0x01
#define NCCL_CTA_POLICY_DEFAULT 0x00
#define NCCL_CTA_POLICY_EFFICIENCY 0x01
#define NCCL_CTA_POLICY_ZERO 0x02
#define NCCL_REVOKE_DEFAULT 0x00
#define NCCL_SUSPEND_MEM 0x01

/* Start from NCCL_CONFIG_INITIALIZER. dcomm reads two fields:
 * - blocking, as in NCCL;
 * - commName: a name, and after it dcomm's options for this communicator, such as
 *   "grads dcomm:algo=ring codec=qsgd:bits=4" (docs/from-nccl.md).
 * The other fields ask for GPU resources that dcomm does not use. It ignores them. */
typedef struct ncclConfig_v22700 {
    size_t size;
    unsigned int magic;
    unsigned int version;
    int blocking;
    int cgaClusterSize;
    int minCTAs;
    int maxCTAs;
    const char *netName;
    int splitShare;
    int trafficClass;
    const char *commName;
    int collnetEnable;
    int CTAPolicy;
    int shrinkShare;
    int nvlsCTAs;
} ncclConfig_t;

#define NCCL_CONFIG_INITIALIZER                                                     \
    {                                                                               \
        sizeof(ncclConfig_t), 0xcafebeef, NCCL_VERSION_CODE, NCCL_CONFIG_UNDEF_INT, \
            NCCL_CONFIG_UNDEF_INT, NCCL_CONFIG_UNDEF_INT, NCCL_CONFIG_UNDEF_INT,    \
            NCCL_CONFIG_UNDEF_PTR, NCCL_CONFIG_UNDEF_INT, NCCL_CONFIG_UNDEF_INT,    \
            NCCL_CONFIG_UNDEF_PTR, NCCL_CONFIG_UNDEF_INT, NCCL_CONFIG_UNDEF_INT,    \
            NCCL_CONFIG_UNDEF_INT, NCCL_CONFIG_UNDEF_INT                            \
    }

typedef struct ncclSimInfo_v22200 {
    size_t size;
    unsigned int magic;
    unsigned int version;
    float estimatedTime;
} ncclSimInfo_t;
#define NCCL_SIM_INFO_INITIALIZER                                              \
    {                                                                          \
        sizeof(ncclSimInfo_t), 0x74685283, NCCL_VERSION_CODE, NCCL_UNDEF_FLOAT \
    }

/* Declare a call, and its second name pnccl..., which profilers that intercept the call use. */
#define DCOMM_NCCL_CALL(type, name, arguments) \
    type name arguments;                       \
    type p##name arguments

/* ---- the library, and errors ---- */

/* Set *version to 22700. */
DCOMM_NCCL_CALL(ncclResult_t, ncclGetVersion, (int *version));
/* Does nothing: NCCL_DEBUG is read once. */
DCOMM_NCCL_CALL(void, ncclResetDebugInit, (void));
DCOMM_NCCL_CALL(const char *, ncclGetErrorString, (ncclResult_t result));
/* Return the sentence of comm's error. If comm is NULL or has no error, return that of the calling
 * thread's last failed call. Valid until the thread's next call or the communicator's end. */
DCOMM_NCCL_CALL(const char *, ncclGetLastError, (ncclComm_t comm));

/* ---- communicators ---- */

DCOMM_NCCL_CALL(ncclResult_t, ncclGetUniqueId, (ncclUniqueId * id));
DCOMM_NCCL_CALL(ncclResult_t, ncclCommInitRank,
                (ncclComm_t * comm, int nranks, ncclUniqueId id, int rank));
DCOMM_NCCL_CALL(ncclResult_t, ncclCommInitRankConfig,
                (ncclComm_t * comm, int nranks, ncclUniqueId id, int rank, ncclConfig_t *config));
/* Use ids[0] only: one id serves any number of ranks. */
DCOMM_NCCL_CALL(ncclResult_t, ncclCommInitRankScalable,
                (ncclComm_t * comm, int nranks, int rank, int nids, ncclUniqueId *ids,
                 ncclConfig_t *config));
DCOMM_NCCL_CALL(ncclResult_t, ncclCommInitAll, (ncclComm_t * comms, int ndev, const int *devices));
DCOMM_NCCL_CALL(ncclResult_t, ncclCommSplit,
                (ncclComm_t comm, int color, int key, ncclComm_t *newcomm, ncclConfig_t *config));
DCOMM_NCCL_CALL(ncclResult_t, ncclCommShrink,
                (ncclComm_t comm, int *excluded, int n, ncclComm_t *newcomm, ncclConfig_t *config,
                 int flags));
DCOMM_NCCL_CALL(ncclResult_t, ncclCommFinalize, (ncclComm_t comm));
DCOMM_NCCL_CALL(ncclResult_t, ncclCommDestroy, (ncclComm_t comm));
DCOMM_NCCL_CALL(ncclResult_t, ncclCommAbort, (ncclComm_t comm));
DCOMM_NCCL_CALL(ncclResult_t, ncclCommGetAsyncError, (ncclComm_t comm, ncclResult_t *error));
DCOMM_NCCL_CALL(ncclResult_t, ncclCommCount, (const ncclComm_t comm, int *count));
DCOMM_NCCL_CALL(ncclResult_t, ncclCommCuDevice, (const ncclComm_t comm, int *device));
DCOMM_NCCL_CALL(ncclResult_t, ncclCommUserRank, (const ncclComm_t comm, int *rank));

/* ---- memory ---- */

DCOMM_NCCL_CALL(ncclResult_t, ncclMemAlloc, (void **ptr, size_t bytes));
DCOMM_NCCL_CALL(ncclResult_t, ncclMemFree, (void *ptr));
/* Let the host's other processes read buff in place, if it is memory from ncclMemAlloc. For other
 * memory the call has no effect. */
DCOMM_NCCL_CALL(ncclResult_t, ncclCommRegister,
                (const ncclComm_t comm, void *buff, size_t bytes, void **handle));
DCOMM_NCCL_CALL(ncclResult_t, ncclCommDeregister, (const ncclComm_t comm, void *handle));
/* Register buff as ncclCommRegister does, with any of the flags above. No kernel can access the
 * window. */
DCOMM_NCCL_CALL(ncclResult_t, ncclCommWindowRegister,
                (ncclComm_t comm, void *buff, size_t bytes, ncclWindow_t *window, int flags));
DCOMM_NCCL_CALL(ncclResult_t, ncclCommWindowDeregister, (ncclComm_t comm, ncclWindow_t window));

/* ---- operators ---- */

DCOMM_NCCL_CALL(ncclResult_t, ncclRedOpCreatePreMulSum,
                (ncclRedOp_t * op, void *scalar, ncclDataType_t datatype,
                 ncclScalarResidence_t residence, ncclComm_t comm));
DCOMM_NCCL_CALL(ncclResult_t, ncclRedOpDestroy, (ncclRedOp_t op, ncclComm_t comm));

/* ---- collectives: they return once enqueued on the stream ---- */

DCOMM_NCCL_CALL(ncclResult_t, ncclAllReduce,
                (const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype,
                 ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream));
DCOMM_NCCL_CALL(ncclResult_t, ncclReduce,
                (const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype,
                 ncclRedOp_t op, int root, ncclComm_t comm, cudaStream_t stream));
DCOMM_NCCL_CALL(ncclResult_t, ncclBcast,
                (void *buff, size_t count, ncclDataType_t datatype, int root, ncclComm_t comm,
                 cudaStream_t stream));
DCOMM_NCCL_CALL(ncclResult_t, ncclBroadcast,
                (const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype,
                 int root, ncclComm_t comm, cudaStream_t stream));
DCOMM_NCCL_CALL(ncclResult_t, ncclReduceScatter,
                (const void *sendbuff, void *recvbuff, size_t recvcount, ncclDataType_t datatype,
                 ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream));
DCOMM_NCCL_CALL(ncclResult_t, ncclAllGather,
                (const void *sendbuff, void *recvbuff, size_t sendcount, ncclDataType_t datatype,
                 ncclComm_t comm, cudaStream_t stream));
/* The next three calls are NCCL 2.28's, with its names and rules. */
DCOMM_NCCL_CALL(ncclResult_t, ncclAlltoAll,
                (const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype,
                 ncclComm_t comm, cudaStream_t stream));
DCOMM_NCCL_CALL(ncclResult_t, ncclGather,
                (const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype,
                 int root, ncclComm_t comm, cudaStream_t stream));
DCOMM_NCCL_CALL(ncclResult_t, ncclScatter,
                (const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype,
                 int root, ncclComm_t comm, cudaStream_t stream));
DCOMM_NCCL_CALL(ncclResult_t, ncclSend,
                (const void *sendbuff, size_t count, ncclDataType_t datatype, int peer,
                 ncclComm_t comm, cudaStream_t stream));
DCOMM_NCCL_CALL(ncclResult_t, ncclRecv,
                (void *recvbuff, size_t count, ncclDataType_t datatype, int peer, ncclComm_t comm,
                 cudaStream_t stream));

/* ---- groups ---- */

DCOMM_NCCL_CALL(ncclResult_t, ncclGroupStart, (void));
DCOMM_NCCL_CALL(ncclResult_t, ncclGroupEnd, (void));
/* End the group without starting its collectives, splits and shrinks. Returns ncclInvalidUsage. */
DCOMM_NCCL_CALL(ncclResult_t, ncclGroupSimulateEnd, (ncclSimInfo_t * info));

/* ---- calls of NCCL 2.28 to 2.32, with its names and types ---- */

/* A call whose comment does not say what it does returns ncclInvalidUsage, with a sentence that
 * begins with its name: dcomm has no one-sided operations, and no kernel can communicate. */

typedef struct ncclTeam {
    int nRanks, rank, stride;
} ncclTeam_t;
typedef struct ncclMultimemHandle {
    void *mcBasePtr;
} ncclMultimemHandle_t;
typedef struct {
    int opCnt, peer, sigIdx, ctx;
} ncclWaitSignalDesc_t;
typedef enum {
    ncclStatGpuMemSuspend = 0,
    ncclStatGpuMemSuspended = 1,
    ncclStatGpuMemPersist = 2,
    ncclStatGpuMemTotal = 3
} ncclCommMemStat_t;
typedef enum {
    NCCL_CFT_TEAM_FLAT = 0,
    NCCL_CFT_TEAM_HIER_MULTIMEM = 1,
    NCCL_CFT_TEAM_HIER_LSA = 2
} ncclCftTeamMode_t;
typedef uint32_t ncclCftLeId;
typedef struct ncclCollConfig_v23200 ncclCollConfig_t;
typedef struct ncclCommProperties ncclCommProperties_t;
typedef struct ncclDevComm ncclDevComm_t;
typedef struct ncclDevCommRequirements ncclDevCommRequirements_t;
typedef struct ncclDevResourceRequirements ncclDevResourceRequirements_t;
typedef struct ncclEncryptionConfig ncclEncryptionConfig_t;
typedef struct ncclGinBarrierHandle ncclGinBarrierHandle_t;
typedef struct ncclLLA2AHandle ncclLLA2AHandle_t;
typedef struct ncclLsaBarrierHandle ncclLsaBarrierHandle_t;
typedef struct ncclParamHandle *ncclParamHandle_t;

DCOMM_NCCL_CALL(ncclResult_t, ncclCommRevoke, (ncclComm_t comm, int flags));
DCOMM_NCCL_CALL(ncclResult_t, ncclCommGetUniqueId, (ncclComm_t comm, ncclUniqueId *id));
DCOMM_NCCL_CALL(ncclResult_t, ncclCommGrow,
                (ncclComm_t comm, int nranks, const ncclUniqueId *id, int rank, ncclComm_t *newcomm,
                 ncclConfig_t *config));
DCOMM_NCCL_CALL(ncclResult_t, ncclCommSuspend, (ncclComm_t comm, int flags));
DCOMM_NCCL_CALL(ncclResult_t, ncclCommResume, (ncclComm_t comm));
DCOMM_NCCL_CALL(ncclResult_t, ncclCommMemStats,
                (ncclComm_t comm, ncclCommMemStat_t stat, uint64_t *value));
DCOMM_NCCL_CALL(ncclResult_t, ncclSetEncryption, (const ncclEncryptionConfig_t *config));
/* Fill in rank, size and device. The other properties, such as the device API, are "no". */
DCOMM_NCCL_CALL(ncclResult_t, ncclCommQueryProperties,
                (ncclComm_t comm, ncclCommProperties_t *properties));
/* Set *ptr to the buffer that the window was registered with. */
DCOMM_NCCL_CALL(ncclResult_t, ncclWinGetUserPtr,
                (ncclComm_t comm, ncclWindow_t window, void **ptr));

DCOMM_NCCL_CALL(ncclResult_t, ncclPutSignal,
                (const void *localbuff, size_t count, ncclDataType_t datatype, int peer,
                 ncclWindow_t window, size_t offset, int sigIdx, int ctx, unsigned int flags,
                 ncclComm_t comm, cudaStream_t stream));
DCOMM_NCCL_CALL(ncclResult_t, ncclSignal,
                (int peer, int sigIdx, int ctx, unsigned int flags, ncclComm_t comm,
                 cudaStream_t stream));
DCOMM_NCCL_CALL(ncclResult_t, ncclWaitSignal,
                (int n, ncclWaitSignalDesc_t *signals, ncclComm_t comm, cudaStream_t stream));

/* The next eight are the calls without Config. They ignore the GPU resources that config asks for,
 * and refuse an algSelection that is forced, and a launchCompletionEvent. */
DCOMM_NCCL_CALL(ncclResult_t, ncclAllReduceConfig,
                (const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype,
                 ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream,
                 const ncclCollConfig_t *config));
DCOMM_NCCL_CALL(ncclResult_t, ncclBroadcastConfig,
                (const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype,
                 int root, ncclComm_t comm, cudaStream_t stream, const ncclCollConfig_t *config));
DCOMM_NCCL_CALL(ncclResult_t, ncclReduceConfig,
                (const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype,
                 ncclRedOp_t op, int root, ncclComm_t comm, cudaStream_t stream,
                 const ncclCollConfig_t *config));
DCOMM_NCCL_CALL(ncclResult_t, ncclAllGatherConfig,
                (const void *sendbuff, void *recvbuff, size_t sendcount, ncclDataType_t datatype,
                 ncclComm_t comm, cudaStream_t stream, const ncclCollConfig_t *config));
DCOMM_NCCL_CALL(ncclResult_t, ncclReduceScatterConfig,
                (const void *sendbuff, void *recvbuff, size_t recvcount, ncclDataType_t datatype,
                 ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream,
                 const ncclCollConfig_t *config));
DCOMM_NCCL_CALL(ncclResult_t, ncclAlltoAllConfig,
                (const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype,
                 ncclComm_t comm, cudaStream_t stream, const ncclCollConfig_t *config));
DCOMM_NCCL_CALL(ncclResult_t, ncclGatherConfig,
                (const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype,
                 int root, ncclComm_t comm, cudaStream_t stream, const ncclCollConfig_t *config));
DCOMM_NCCL_CALL(ncclResult_t, ncclScatterConfig,
                (const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype,
                 int root, ncclComm_t comm, cudaStream_t stream, const ncclCollConfig_t *config));

DCOMM_NCCL_CALL(ncclResult_t, ncclDevCommCreate,
                (ncclComm_t comm, const ncclDevCommRequirements_t *requirements,
                 ncclDevComm_t *devcomm));
DCOMM_NCCL_CALL(ncclResult_t, ncclDevCommDestroy, (ncclComm_t comm, const ncclDevComm_t *devcomm));
DCOMM_NCCL_CALL(ncclResult_t, ncclGetLsaDevicePointer,
                (ncclWindow_t window, size_t offset, int peer, void **ptr));
DCOMM_NCCL_CALL(ncclResult_t, ncclGetPeerDevicePointer,
                (ncclWindow_t window, size_t offset, int peer, void **ptr));
DCOMM_NCCL_CALL(ncclResult_t, ncclGetLsaMultimemDevicePointer,
                (ncclWindow_t window, size_t offset, void **ptr));
DCOMM_NCCL_CALL(ncclResult_t, ncclGetMultimemDevicePointer,
                (ncclWindow_t window, size_t offset, ncclMultimemHandle_t multimem, void **ptr));
DCOMM_NCCL_CALL(ncclResult_t, ncclGetPeerDeviceLeInfo,
                (ncclWindow_t window, size_t offset, int peer, ncclCftLeId *id, size_t *at));
DCOMM_NCCL_CALL(ncclResult_t, ncclGetCftDeviceLeInfo,
                (ncclWindow_t window, size_t offset, int peer, ncclTeam_t team, ncclCftLeId *id,
                 size_t *at));
DCOMM_NCCL_CALL(ncclResult_t, ncclGetMultimemDeviceLeInfo,
                (ncclWindow_t window, size_t offset, ncclCftLeId *id, size_t *at));
DCOMM_NCCL_CALL(ncclResult_t, ncclLsaBarrierCreateRequirement,
                (ncclTeam_t team, int n, ncclLsaBarrierHandle_t *handle,
                 ncclDevResourceRequirements_t *requirements));
DCOMM_NCCL_CALL(ncclResult_t, ncclGinBarrierCreateRequirement,
                (ncclComm_t comm, ncclTeam_t team, int n, ncclGinBarrierHandle_t *handle,
                 ncclDevResourceRequirements_t *requirements));
DCOMM_NCCL_CALL(ncclResult_t, ncclLLA2ACreateRequirement,
                (int blocks, int slots, ncclLLA2AHandle_t *handle,
                 ncclDevResourceRequirements_t *requirements));
/* Return 0: there is nothing that slots are for. */
DCOMM_NCCL_CALL(int, ncclLLA2ACalcSlots, (int elements, int bytes));

/* All ranks are a team. No rank's kernels can load another's memory: the team of those that can
 * (Lsa) is this rank alone, and Rail is all ranks. The Cft teams are empty. */
DCOMM_NCCL_CALL(ncclTeam_t, ncclTeamWorld, (ncclComm_t comm));
DCOMM_NCCL_CALL(ncclTeam_t, ncclTeamLsa, (ncclComm_t comm));
DCOMM_NCCL_CALL(ncclTeam_t, ncclTeamRail, (ncclComm_t comm));
DCOMM_NCCL_CALL(ncclTeam_t, ncclTeamCft, (ncclComm_t comm, ncclCftTeamMode_t mode));
DCOMM_NCCL_CALL(ncclTeam_t, ncclTeamCftMultimem, (ncclComm_t comm));
DCOMM_NCCL_CALL(int, ncclTeamRankToWorld, (ncclComm_t comm, ncclTeam_t team, int rank));
DCOMM_NCCL_CALL(int, ncclTeamRankToLsa, (ncclComm_t comm, ncclTeam_t team, int rank));

/* NCCL's parameters: there are none. ncclParamGetAllParameterKeys returns an empty table,
 * ncclParamDumpAll prints nothing, and the others refuse. */
DCOMM_NCCL_CALL(ncclResult_t, ncclParamBind, (ncclParamHandle_t * handle, const char *key));
DCOMM_NCCL_CALL(ncclResult_t, ncclParamGetI8, (ncclParamHandle_t handle, int8_t *value));
DCOMM_NCCL_CALL(ncclResult_t, ncclParamGetI16, (ncclParamHandle_t handle, int16_t *value));
DCOMM_NCCL_CALL(ncclResult_t, ncclParamGetI32, (ncclParamHandle_t handle, int32_t *value));
DCOMM_NCCL_CALL(ncclResult_t, ncclParamGetI64, (ncclParamHandle_t handle, int64_t *value));
DCOMM_NCCL_CALL(ncclResult_t, ncclParamGetU8, (ncclParamHandle_t handle, uint8_t *value));
DCOMM_NCCL_CALL(ncclResult_t, ncclParamGetU16, (ncclParamHandle_t handle, uint16_t *value));
DCOMM_NCCL_CALL(ncclResult_t, ncclParamGetU32, (ncclParamHandle_t handle, uint32_t *value));
DCOMM_NCCL_CALL(ncclResult_t, ncclParamGetU64, (ncclParamHandle_t handle, uint64_t *value));
DCOMM_NCCL_CALL(ncclResult_t, ncclParamGetStr, (ncclParamHandle_t handle, const char **value));
DCOMM_NCCL_CALL(ncclResult_t, ncclParamGet,
                (ncclParamHandle_t handle, void *value, int room, int *bytes));
DCOMM_NCCL_CALL(ncclResult_t, ncclParamGetParameter,
                (const char *key, const char **value, int *bytes));
DCOMM_NCCL_CALL(ncclResult_t, ncclParamGetAllParameterKeys, (const char ***keys, int *n));
DCOMM_NCCL_CALL(void, ncclParamDumpAll, (void));

#undef DCOMM_NCCL_CALL
#ifdef __cplusplus
}
#endif
#endif
