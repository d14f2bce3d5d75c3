/* dcomm_nccl.h 0.1.0 - NCCL's calls, made by dcomm: include it in place of <nccl.h>, or put
 * nccl/include first on the include path, and link dcomm's libnccl.so.2.
 * GENERATED from include/dcomm/nccl/ by tools/amalgamate.py: do not edit.
 *
 * In place of the library, one C file may hold the implementation, beside dcomm.h:
 *     #define DCOMM_IMPLEMENTATION
 *     #define DCOMM_WITH_CUDA
 *     #define DCOMM_NCCL_IMPLEMENTATION
 *     #include "dcomm_nccl.h"
 * and one .cu file dcomm's kernels. */
/* ==== include/dcomm/impl/base/preamble.h =================================================== */
/* preamble.h - checks of the file that holds the implementation. It has no include guard, because
 * the file may have included dcomm.h before, for the declarations.
 *
 * A refused file gets one error and then only the declarations, so that no other error follows. */

#if defined(DCOMM_IMPLEMENTATION) || defined(DCOMM_NCCL_IMPLEMENTATION)
#ifdef __cplusplus
#error \
    "dcomm: the implementation is C: compile dcomm.c (#define DCOMM_IMPLEMENTATION, #include \"dcomm.h\") beside your C++ files, link it, and only include the header here"
#undef DCOMM_IMPLEMENTATION
#undef DCOMM_NCCL_IMPLEMENTATION
#elif !defined(_GNU_SOURCE) && defined(_FEATURES_H)
#error \
    "dcomm: a system header came before dcomm.h, without _GNU_SOURCE: include dcomm.h first in this file, or compile it with -D_GNU_SOURCE"
#undef DCOMM_IMPLEMENTATION
#undef DCOMM_NCCL_IMPLEMENTATION
#elif !defined(_GNU_SOURCE)
#define _GNU_SOURCE
#endif
#endif

/* Results depend on NaNs, infinities and the order of sums, which -ffast-math does not keep. */
#if defined(DCOMM_IMPLEMENTATION) && \
    (defined(__FAST_MATH__) || defined(__ASSOCIATIVE_MATH__) || (__FINITE_MATH_ONLY__ + 0))
#error \
    "dcomm: compile this file with -fno-fast-math (after -Ofast or -ffast-math): the same bits on every rank need the C standard's arithmetic"
#undef DCOMM_IMPLEMENTATION
#endif

#if defined(DCOMM_CUDA_IMPLEMENTATION) && !defined(__cplusplus)
#error \
    "dcomm: DCOMM_CUDA_IMPLEMENTATION is CUDA C++: define it in one .cu file, which nvcc compiles"
#undef DCOMM_CUDA_IMPLEMENTATION
#endif
/* ==== include/dcomm/nccl/face.h ============================================================ */
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
#ifdef DCOMM_NCCL_IMPLEMENTATION
/* ==== include/dcomm/nccl/later.h =========================================================== */
/* later.h - the calls of NCCL 2.28 to 2.32. A program that was compiled against one of those looks
 * for all of them when it is loaded. What dcomm does not have refuses by name. */
#ifndef DCOMMI_NCCL_LATER_H
#define DCOMMI_NCCL_LATER_H

/* ==== include/dcomm/nccl/query.h =========================================================== */
/* query.h - NCCL's queries, its errors and its memory. */
#ifndef DCOMMI_NCCL_QUERY_H
#define DCOMMI_NCCL_QUERY_H

/* ==== include/dcomm/nccl/coll.h ============================================================ */
/* coll.h - NCCL's collectives: check the arguments, and add a job to the thread's group. */
#ifndef DCOMMI_NCCL_COLL_H
#define DCOMMI_NCCL_COLL_H

/* ==== include/dcomm/nccl/group.h =========================================================== */
/* group.h - groups. ncclGroupEnd starts together the calls that its thread made since
 * ncclGroupStart. A call outside a group is a group of one. */
#ifndef DCOMMI_NCCL_GROUP_H
#define DCOMMI_NCCL_GROUP_H

/* ==== include/dcomm/nccl/decide.h ========================================================== */
/* decide.h - choose the codec of a group's all-reduces. For codec "auto", the ranks of a
 * communicator agree on a codec for each count and dtype. They do so at the end of the first group
 * that has such a call. */
#ifndef DCOMMI_NCCL_DECIDE_H
#define DCOMMI_NCCL_DECIDE_H

/* ==== include/dcomm/nccl/job.h ============================================================= */
/* job.h - a call that waits for the end of its group. */
#ifndef DCOMMI_NCCL_JOB_H
#define DCOMMI_NCCL_JOB_H

/* ==== include/dcomm/nccl/life.h ============================================================ */
/* life.h - how communicators of NCCL's face begin and end. */
#ifndef DCOMMI_NCCL_LIFE_H
#define DCOMMI_NCCL_LIFE_H

/* ==== include/dcomm/nccl/options.h ========================================================= */
/* options.h - dcomm's options under NCCL's calls: the codec, the options after "dcomm:" in a
 * communicator's name, and the summary (DCOMM_SUMMARY). */
#ifndef DCOMMI_NCCL_OPTIONS_H
#define DCOMMI_NCCL_OPTIONS_H

/* ==== include/dcomm/nccl/state.h =========================================================== */
/* state.h - NCCL's face: the state of its communicators, its errors, and its use of devices. */
#ifndef DCOMMI_NCCL_STATE_H
#define DCOMMI_NCCL_STATE_H

#include "dcomm.h"
/* ==== include/dcomm/impl/base/text.h ======================================================= */
/* text.h - reads numbers and words strictly, and writes them alike in every locale. Every
 * environment variable, codec spec, file and command line is read with it. */
#ifndef DCOMMI_TEXT_H
#define DCOMMI_TEXT_H

#include <locale.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- locale ---- */

/* Give this thread the C locale, whose numbers have a decimal point. Return the locale before, for
 * dcommi_locale_leave. */
static inline locale_t dcommi_locale_enter(void)
{
    static locale_t c; /* glibc and musl hand out one constant object */
    locale_t known = __atomic_load_n(&c, __ATOMIC_RELAXED);
    if (known == (locale_t)0) {
        known = newlocale(LC_ALL_MASK, "C", (locale_t)0);
        __atomic_store_n(&c, known, __ATOMIC_RELAXED);
    }
    return uselocale(known);
}

static inline void dcommi_locale_leave(locale_t before)
{
    uselocale(before);
}

/* Do as vsnprintf does in the C locale. */
__attribute__((format(printf, 3, 0))) static inline int
dcommi_vsnprintf(char *text, size_t room, const char *format, va_list args)
{
    locale_t before = dcommi_locale_enter();
    int n = vsnprintf(text, room, format, args);
    dcommi_locale_leave(before);
    return n;
}

/* Do as snprintf does in the C locale. */
__attribute__((format(printf, 3, 4))) static inline int dcommi_snprintf(char *text, size_t room,
                                                                        const char *format, ...)
{
    va_list args;
    va_start(args, format);
    int n = dcommi_vsnprintf(text, room, format, args);
    va_end(args);
    return n;
}

/* ---- numbers ---- */

static inline bool dcommi_text_digit(char c)
{
    return c >= '0' && c <= '9';
}

static inline char dcommi_text_lower(char c)
{
    return c >= 'A' && c <= 'Z' ? (char)(c - 'A' + 'a') : c;
}

/* Return true if both words are equal, ignoring case. */
static inline bool dcommi_text_same(const char *a, const char *b)
{
    while (*a != '\0' && dcommi_text_lower(*a) == dcommi_text_lower(*b)) {
        a++;
        b++;
    }
    return dcommi_text_lower(*a) == dcommi_text_lower(*b);
}

/* Read a decimal number, such as "-1.5e3", at the start of `text`. Return the text after it, or
 * NULL if there is no number. */
static inline const char *dcommi_text_decimal(const char *text, double *value)
{
    const char *at = text + (*text == '-' || *text == '+');
    size_t digits = 0;
    for (bool point = false; dcommi_text_digit(*at) || (*at == '.' && !point); at++) {
        point = point || *at == '.';
        digits += *at != '.';
    }
    if (digits == 0) {
        return NULL;
    }
    if (*at == 'e' || *at == 'E') {
        const char *exponent = at + 1 + (at[1] == '-' || at[1] == '+');
        while (dcommi_text_digit(*exponent)) {
            at = ++exponent;
        }
    }
    /* Some C libraries lack strtod_l. */
    locale_t before = dcommi_locale_enter();
    *value = strtod(text, NULL);
    dcommi_locale_leave(before);
    return at;
}

/* Read a number from `least` to `most`. Return false, and leave *value, unless that is all of the
 * text. */
static inline bool dcommi_text_number(const char *text, double least, double most, double *value)
{
    double number = 0;
    const char *end = dcommi_text_decimal(text, &number);
    bool good = end != NULL && *end == '\0' && number >= least && number <= most;
    *value = good ? number : *value;
    return good;
}

/* Read digits at the start of `text`. Return the text after them, or NULL if there are none or too
 * many. */
static inline const char *dcommi_text_digits(const char *text, uint64_t *value)
{
    uint64_t n = 0;
    const char *at = text;
    for (; dcommi_text_digit(*at); at++) {
        if (__builtin_mul_overflow(n, 10, &n) || __builtin_add_overflow(n, *at - '0', &n)) {
            return NULL;
        }
    }
    *value = n;
    return at != text ? at : NULL;
}

/* Read an integer from `least` to `most`. Return false, and leave *value, unless that is all of
 * the text. */
static inline bool dcommi_text_integer(const char *text, int64_t least, int64_t most,
                                       int64_t *value)
{
    uint64_t n = 0;
    bool minus = *text == '-';
    const char *end = dcommi_text_digits(text + (minus || *text == '+'), &n);
    if (end == NULL || *end != '\0' || n > INT64_MAX) {
        return false;
    }
    int64_t number = minus ? -(int64_t)n : (int64_t)n;
    bool good = number >= least && number <= most;
    *value = good ? number : *value;
    return good;
}

/* Read a size from `least` to `most` bytes. K, M, G and T, in either case, are powers of 1024. */
static inline bool dcommi_text_size(const char *text, uint64_t least, uint64_t most,
                                    uint64_t *value)
{
    static const char units[] = "kmgt";
    uint64_t n = 0;
    const char *end = dcommi_text_digits(text, &n);
    if (end == NULL) {
        return false;
    }
    const char *unit = *end != '\0' ? strchr(units, dcommi_text_lower(*end)) : NULL;
    unsigned shift = unit != NULL ? 10 * (unsigned)(unit - units + 1) : 0;
    end += unit != NULL;
    bool good =
        *end == '\0' && n <= UINT64_MAX >> shift && n << shift >= least && n << shift <= most;
    *value = good ? n << shift : *value;
    return good;
}

/* Read a time from `least` to `most` seconds: "30", "30s", "500ms", "5m", "2h". */
static inline bool dcommi_text_seconds(const char *text, double least, double most, double *value)
{
    static const struct {
        const char *name;
        double seconds;
    } units[] = {{"", 1},   {"s", 1},    {"ms", 1e-3}, {"us", 1e-6},
                 {"m", 60}, {"min", 60}, {"h", 3600}};
    double number = 0;
    const char *end = dcommi_text_decimal(text, &number);
    for (size_t i = 0; end != NULL && i < sizeof units / sizeof units[0]; i++) {
        if (dcommi_text_same(end, units[i].name)) {
            number *= units[i].seconds;
            bool good = number >= least && number <= most;
            *value = good ? number : *value;
            return good;
        }
    }
    return false;
}

/* ---- words ---- */

/* Return the position of `word`, `len` bytes long, in `choices` ("a|b|c"), or -1. */
static inline int dcommi_text_choice(const char *choices, const char *word, size_t len)
{
    for (int i = 0;; i++) {
        size_t n = strcspn(choices, "|");
        if (n == len && memcmp(choices, word, len) == 0) {
            return i;
        }
        if (choices[n] == '\0') {
            return -1;
        }
        choices += n + 1;
    }
}

/* Read 1, true, yes or on, or 0, false, no or off, in any case. */
static inline bool dcommi_text_flag(const char *text, bool *value)
{
    static const char *const words[] = {"0", "1", "false", "true", "no", "yes", "off", "on"};
    for (int i = 0; i < 8; i++) {
        if (dcommi_text_same(text, words[i])) {
            *value = i % 2 == 1;
            return true;
        }
    }
    return false;
}

/* Write the numbers below `n` for which `has` returns true, as ranges with `comma` between them:
 * "0-3, 8". End with "..." where `text` is full. Return how many such numbers there are. */
static inline size_t dcommi_text_ranges(char *text, size_t room, const char *comma, size_t n,
                                        bool (*has)(const void *user, size_t i), const void *user)
{
    size_t at = 0, found = 0;
    bool full = false;
    text[0] = '\0';
    for (size_t i = 0, end; i < n; i = end + 1) {
        for (end = i; end < n && has(user, end); end++) {
        }
        found += end - i;
        if (end == i || full) {
            continue;
        }
        char range[48];
        int len = end == i + 1 ? snprintf(range, sizeof range, "%zu", i)
                               : snprintf(range, sizeof range, "%zu-%zu", i, end - 1);
        full = at + (size_t)len + 2 * strlen(comma) + 4 > room;
        at += (size_t)snprintf(text + at, room - at, "%s%s", at > 0 ? comma : "",
                               full ? "..." : range);
    }
    return found;
}

/* Return how many letters must be added, removed or replaced to turn `a` into `b`, ignoring case.
 * Return 33 if either is longer than 32 bytes. */
static inline int dcommi_text_distance(const char *a, const char *b)
{
    int row[33];
    size_t na = strnlen(a, 33), nb = strnlen(b, 33);
    if (na > 32 || nb > 32) {
        return 33;
    }
    for (size_t j = 0; j <= nb; j++) {
        row[j] = (int)j;
    }
    for (size_t i = 1; i <= na; i++) {
        int corner = row[0];
        row[0] = (int)i;
        for (size_t j = 1; j <= nb; j++) {
            int replaced = corner + (dcommi_text_lower(a[i - 1]) != dcommi_text_lower(b[j - 1]));
            int other = 1 + (row[j] < row[j - 1] ? row[j] : row[j - 1]);
            corner = row[j];
            row[j] = replaced < other ? replaced : other;
        }
    }
    return row[nb];
}

#endif

#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <time.h>
#include <unistd.h>

#define DCOMMI_NCCL_MAGIC 0xcafebeef /* begins every config struct of NCCL */
#define DCOMMI_NCCL_OPS 64
#define DCOMMI_NCCL_DECISIONS 64
#define DCOMMI_NCCL_TEXT 640

/* A pre-multiplied sum that the program has created. */
typedef struct dcommi_nccl_op {
    bool used;
    ncclDataType_t type;
    const void *scalar;      /* in memory that the device reads at each call; NULL: use factor */
    unsigned char factor[8]; /* a value of the type */
} dcommi_nccl_op;

/* A buffer that is registered with a communicator. Its handle is a pointer to this struct. */
typedef struct dcommi_nccl_registered {
    struct dcommi_nccl_registered *next; /* in the communicator's list */
    void *buff;
    bool shared; /* in memory from ncclMemAlloc, which peers may open */
} dcommi_nccl_registered;

/* The event after a communicator's last operation on a stream. The end waits for this event. */
typedef struct dcommi_nccl_last {
    cudaStream_t stream;
    cudaEvent_t event;
} dcommi_nccl_last;

/* The codec that "auto" chose for a count and dtype. */
typedef struct dcommi_nccl_decision {
    size_t count;
    dcomm_dtype dtype;
    const dcomm_codec *codec; /* NULL: exact */
} dcommi_nccl_decision;

struct ncclComm {
    struct ncclComm *next; /* in the list of all communicators that are alive */
    dcomm_comm *comm;
    int device;
    bool blocking;
    char name[64];
    dcomm_codec *codec;     /* for all-reduces of floats; NULL: they are exact */
    dcomm_codec *candidate; /* the codec that "auto" may choose; NULL: codec is not "auto" */
    dcommi_nccl_decision decided[DCOMMI_NCCL_DECISIONS];
    size_t ndecided;     /* decisions so far: a new one replaces the oldest */
    dcomm_ledger ledger; /* of the codec, if DCOMM_SUMMARY is set */
    dcommi_nccl_op ops[DCOMMI_NCCL_OPS];
    dcommi_nccl_last *last; /* one for each stream whose operations may not be over */
    size_t nlast, last_room;
    bool unnoted;                       /* an operation may not be over that has no entry there */
    dcommi_nccl_registered *registered; /* under dcommi_nccl_lock */
};

/* ---- errors ---- */

static _Thread_local char dcommi_nccl_text[DCOMMI_NCCL_TEXT];

__attribute__((format(printf, 2, 3))) static ncclResult_t dcommi_nccl_fail(ncclResult_t result,
                                                                           const char *format, ...)
{
    char text[DCOMMI_NCCL_TEXT]; /* an argument may be dcommi_nccl_text */
    va_list args;
    va_start(args, format);
    dcommi_vsnprintf(text, sizeof text, format, args);
    va_end(args);
    memcpy(dcommi_nccl_text, text, sizeof text);
    return result;
}

static ncclResult_t dcommi_nccl_result(dcomm_status status)
{
    switch (status) {
    case DCOMM_OK:
        return ncclSuccess;
    case DCOMM_IN_PROGRESS:
        return ncclInProgress;
    case DCOMM_ERR_INVALID:
    case DCOMM_ERR_RANGE:
        return ncclInvalidArgument;
    case DCOMM_ERR_UNSUPPORTED:
    case DCOMM_ERR_MISMATCH:
    case DCOMM_ERR_AUTH:
    case DCOMM_ERR_FORKED:
        return ncclInvalidUsage;
    case DCOMM_ERR_PEER:
    case DCOMM_ERR_TIMEOUT:
    case DCOMM_ERR_ABORTED:
    case DCOMM_ERR_QUORUM:
    case DCOMM_ERR_RENDEZVOUS:
        return ncclRemoteError;
    case DCOMM_ERR_NO_MEMORY:
    case DCOMM_ERR_TRANSPORT:
    case DCOMM_ERR_SYSTEM:
        return ncclSystemError;
    default:
        return ncclInternalError;
    }
}

/* Return the result of this thread's last dcomm call, and keep its sentence. */
static ncclResult_t dcommi_nccl_from(dcomm_status status)
{
    return status < 0 ? dcommi_nccl_fail(dcommi_nccl_result(status), "%s", dcomm_last_error())
                      : dcommi_nccl_result(status);
}

static ncclResult_t dcommi_nccl_cuda(const char *call, cudaError_t error)
{
    if (error == cudaSuccess) {
        return ncclSuccess;
    }
    (void)cudaGetLastError(); /* we report it: the program's next check must not find it again */
    return dcommi_nccl_fail(ncclUnhandledCudaError, "%s: %s", call, cudaGetErrorString(error));
}

static ncclResult_t dcommi_nccl_no_memory(void)
{
    return dcommi_nccl_fail(ncclSystemError, "out of memory");
}

#define DCOMMI_NCCL_TRY(call)          \
    do {                               \
        ncclResult_t result_ = (call); \
        if (result_ != ncclSuccess) {  \
            return result_;            \
        }                              \
    } while (0)

/* Define the second name, pnccl..., of a call. */
#define DCOMMI_NCCL_CALL(name) extern __typeof__(name) p##name __attribute__((alias(#name)))

/* ---- devices ---- */

/* The calling thread's device and capture mode, for dcommi_nccl_leave to restore. */
typedef struct dcommi_nccl_before {
    int device;
    enum cudaStreamCaptureMode mode;
} dcommi_nccl_before;

static _Thread_local bool dcommi_nccl_own_thread; /* it keeps the device that it used last */

/* Make comm's device current and relax the thread's capture mode. While any thread captures a
 * stream, CUDA's default mode refuses unsafe calls and ends the capture. Our calls do not concern
 * the capture. The device comes first: in a thread that uses none yet, to exchange the mode would
 * make a context on device 0. */
static dcommi_nccl_before dcommi_nccl_enter(const struct ncclComm *comm)
{
    dcommi_nccl_before before = {comm->device, cudaStreamCaptureModeRelaxed};
    (void)cudaGetDevice(&before.device);
    if (before.device != comm->device || dcommi_nccl_own_thread) {
        (void)cudaSetDevice(comm->device);
    }
    (void)cudaThreadExchangeStreamCaptureMode(&before.mode);
    return before;
}

static void dcommi_nccl_leave(const struct ncclComm *comm, dcommi_nccl_before before)
{
    (void)cudaThreadExchangeStreamCaptureMode(&before.mode);
    if (before.device != comm->device && !dcommi_nccl_own_thread) {
        (void)cudaSetDevice(before.device);
    }
}

static double dcommi_nccl_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void dcommi_nccl_nap(void)
{
    nanosleep(&(struct timespec){.tv_nsec = 100000}, NULL);
}

#endif

typedef struct dcommi_nccl_options {
    char text[512]; /* the values from commName point into it */
    const char *algo, *codec;
    bool deterministic, set; /* set: has an option that only a new communicator takes */
    size_t chunk_bytes;
    double timeout_s;
} dcommi_nccl_options;

static ncclResult_t dcommi_nccl_option(dcommi_nccl_options *o, const char *key, const char *value)
{
    bool good = false;
    const char *wanted = NULL;
    if (strcmp(key, "codec") == 0) {
        o->codec = value;
        return ncclSuccess;
    }
    o->set = true;
    if (strcmp(key, "algo") == 0) {
        o->algo = value;
        return ncclSuccess;
    }
    if (strcmp(key, "deterministic") == 0) {
        good = dcommi_text_flag(value, &o->deterministic);
        wanted = "1, true, yes, on, 0, false, no or off";
    } else if (strcmp(key, "chunk") == 0) {
        uint64_t bytes = 0;
        good = dcommi_text_size(value, 0, (uint64_t)1 << 40, &bytes);
        o->chunk_bytes = (size_t)bytes;
        wanted = "a number of bytes from 0 to 1T, such as 65536 or 64K";
    } else if (strcmp(key, "timeout") == 0) {
        good = dcommi_text_seconds(value, 1e-6, 1e9, &o->timeout_s);
        wanted = "seconds from 1e-06 to 1e+09, such as 30, 30s, 500ms or 5m";
    } else {
        return dcommi_nccl_fail(ncclInvalidArgument,
                                "commName: there is no option '%s': algo, chunk, codec, "
                                "deterministic and timeout are",
                                key);
    }
    return good ? ncclSuccess
                : dcommi_nccl_fail(ncclInvalidArgument, "commName: %s=%s: it must be %s", key,
                                   value, wanted);
}

/* Read the options from `name`: "name dcomm:key=value key=value". `codec` is the default codec. */
static ncclResult_t dcommi_nccl_read_options(const char *name, const char *codec,
                                             dcommi_nccl_options *o)
{
    *o = (dcommi_nccl_options){.codec = codec};
    const char *from = name != NULL ? strstr(name, "dcomm:") : NULL;
    if (from == NULL) {
        return ncclSuccess;
    }
    if (snprintf(o->text, sizeof o->text, "%s", from + 6) >= (int)sizeof o->text) {
        return dcommi_nccl_fail(ncclInvalidArgument, "commName is too long");
    }
    char *next = NULL;
    for (char *word = strtok_r(o->text, " ", &next); word != NULL;
         word = strtok_r(NULL, " ", &next)) {
        char *value = strchr(word, '=');
        if (value == NULL) {
            return dcommi_nccl_fail(ncclInvalidArgument, "commName: '%s' is not key=value", word);
        }
        *value = '\0';
        DCOMMI_NCCL_TRY(dcommi_nccl_option(o, word, value + 1));
    }
    return ncclSuccess;
}

static const char *dcommi_nccl_config_name(const ncclConfig_t *config)
{
    return config != NULL && config->size > offsetof(ncclConfig_t, commName) ? config->commName
                                                                             : NULL;
}

/* Set comm's blocking, name and codec from `config` (NULL: none), and read its options into `o`.
 * If `config` names no codec, use `codec` (NULL: exact). */
static ncclResult_t dcommi_nccl_configure(struct ncclComm *comm, const ncclConfig_t *config,
                                          const char *codec, dcommi_nccl_options *o)
{
    const char *name = dcommi_nccl_config_name(config);
    if (config != NULL && config->magic != DCOMMI_NCCL_MAGIC) {
        return dcommi_nccl_fail(ncclInvalidArgument,
                                "config does not begin as NCCL_CONFIG_INITIALIZER");
    }
    if (config != NULL && config->blocking != NCCL_CONFIG_UNDEF_INT) {
        if (config->blocking != 0 && config->blocking != 1) {
            return dcommi_nccl_fail(ncclInvalidArgument, "config.blocking is %d, not 0 or 1",
                                    config->blocking);
        }
        comm->blocking = config->blocking == 1;
    }
    DCOMMI_NCCL_TRY(dcommi_nccl_read_options(name, codec, o));
    if (name != NULL) {
        const char *end = strstr(name, "dcomm:");
        size_t len = end != NULL ? (size_t)(end - name) : strlen(name);
        while (len > 0 && name[len - 1] == ' ') {
            len--;
        }
        len = len < sizeof comm->name ? len : sizeof comm->name - 1;
        memcpy(comm->name, name, len);
        comm->name[len] = '\0';
    }
    if (o->codec == NULL || *o->codec == '\0' || strcmp(o->codec, "none") == 0) {
        return ncclSuccess;
    }
    DCOMMI_NCCL_TRY(dcommi_nccl_from(dcomm_codec_create(o->codec, &comm->codec)));
    const char *spec = dcomm_codec_spec(comm->codec);
    return strncmp(spec, "auto:", 5) == 0
               ? dcommi_nccl_from(dcomm_codec_create(spec + 5, &comm->candidate))
               : ncclSuccess;
}

#define DCOMMI_NCCL_EXIT_S 10 /* seconds that an exit waits at most; a goodbye takes up to 5 */

/* ---- the summary: DCOMM_SUMMARY names a file, or is "-" for stderr ---- */

static pthread_mutex_t dcommi_nccl_lock = PTHREAD_MUTEX_INITIALIZER;
static struct ncclComm *dcommi_nccl_all; /* this and the next under the lock */
static int dcommi_nccl_closing;          /* communicators that are ending */
static _Atomic pid_t dcommi_nccl_pid;    /* the process whose communicators these are */

static const char *dcommi_nccl_summary_path(void)
{
    const char *path = getenv("DCOMM_SUMMARY");
    return path != NULL && *path != '\0' ? path : NULL;
}

/* Write a communicator's line. Use one write, so that ranks may share the file. */
static void dcommi_nccl_summarize(const struct ncclComm *comm)
{
    char line[1024];
    dcomm_stats stats = {0};
    const char *path = dcommi_nccl_summary_path();
    if (path == NULL || dcomm_comm_get_stats(comm->comm, &stats) != DCOMM_OK) {
        return;
    }
    int n = snprintf(line, sizeof line,
                     "dcomm: %s%srank %d of %d: %llu operations, %llu bytes sent, %llu read from "
                     "peers",
                     comm->name, comm->name[0] != '\0' ? ": " : "", dcomm_comm_rank(comm->comm),
                     dcomm_comm_size(comm->comm), (unsigned long long)stats.operations,
                     (unsigned long long)stats.bytes_sent, (unsigned long long)stats.bytes_read);
    if (comm->codec != NULL && n < (int)sizeof line) {
        const dcomm_ledger *l = &comm->ledger;
        dcommi_snprintf(
            line + n, sizeof line - (size_t)n,
            "; %s: %llu elements encoded in %.3g bits each, nmse %.3g, cosine %.6g, mean "
            "signed error %.3g, %llu clipped, %llu not finite",
            dcomm_codec_spec(comm->codec), (unsigned long long)l->encoded, l->bits, l->nmse,
            l->cosine, l->mean_signed_error, (unsigned long long)l->clipped,
            (unsigned long long)l->nonfinite);
    }
    FILE *out = strcmp(path, "-") == 0 ? stderr : fopen(path, "a");
    if (out != NULL) {
        fprintf(out, "%s\n", line);
        if (out != stderr) {
            fclose(out);
        }
    }
}

/* Wait until no communicator is ending, for `most_s` seconds at most. The caller holds the lock;
 * waiting releases it. */
static void dcommi_nccl_await_ends(double most_s)
{
    const double until = dcommi_nccl_now() + most_s;
    while (dcommi_nccl_closing > 0 && dcommi_nccl_now() < until) {
        pthread_mutex_unlock(&dcommi_nccl_lock);
        dcommi_nccl_nap();
        pthread_mutex_lock(&dcommi_nccl_lock);
    }
}

/* Wait for communicators that are ending, so that they say goodbye to their peers. A device that
 * is stuck must not hold up the exit. Then write the summaries of those that the program did not
 * destroy. Nothing of this is a forked child's. */
static void dcommi_nccl_at_exit(void)
{
    if (atomic_load(&dcommi_nccl_pid) != getpid()) {
        return;
    }
    pthread_mutex_lock(&dcommi_nccl_lock);
    dcommi_nccl_await_ends(DCOMMI_NCCL_EXIT_S);
    for (struct ncclComm *c = dcommi_nccl_all; c != NULL; c = c->next) {
        if (dcomm_comm_ready(c->comm) == DCOMM_OK) {
            dcommi_nccl_summarize(c);
        }
    }
    pthread_mutex_unlock(&dcommi_nccl_lock);
}

static pthread_once_t dcommi_nccl_once = PTHREAD_ONCE_INIT;

static void dcommi_nccl_register_exit(void)
{
    atexit(dcommi_nccl_at_exit);
}

#endif

/* ---- the beginning ---- */

static ncclResult_t dcommi_nccl_new(struct ncclComm **comm_p)
{
    struct ncclComm *comm = calloc(1, sizeof *comm);
    *comm_p = comm;
    if (comm == NULL) {
        return dcommi_nccl_no_memory();
    }
    comm->blocking = true;
    return dcommi_nccl_cuda("cudaGetDevice", cudaGetDevice(&comm->device));
}

/* Release a registered buffer, which the caller has taken off comm's list. */
static void dcommi_nccl_unregister(const struct ncclComm *comm, dcommi_nccl_registered *r)
{
    if (r->shared) { /* the call fails, harmlessly, if the memory is already freed */
        (void)dcomm_mem_unshare(dcomm_comm_context(comm->comm), r->buff);
    }
    free(r);
}

/* Free a communicator, after its end or if its creation failed. */
static void dcommi_nccl_discard(struct ncclComm *comm)
{
    if (comm != NULL) {
        while (comm->registered != NULL) {
            dcommi_nccl_registered *r = comm->registered;
            comm->registered = r->next;
            dcommi_nccl_unregister(comm, r);
        }
        (void)dcomm_comm_destroy(&comm->comm);
        (void)dcomm_codec_destroy(&comm->codec);
        (void)dcomm_codec_destroy(&comm->candidate);
        free(comm->last);
        free(comm);
    }
}

static void dcommi_nccl_enlist(struct ncclComm *comm)
{
    pthread_once(&dcommi_nccl_once, dcommi_nccl_register_exit);
    pthread_mutex_lock(&dcommi_nccl_lock);
    if (atomic_exchange(&dcommi_nccl_pid, getpid()) != getpid()) { /* the first, maybe of a child */
        dcommi_nccl_all = NULL;
        dcommi_nccl_closing = 0;
    }
    comm->next = dcommi_nccl_all;
    dcommi_nccl_all = comm;
    pthread_mutex_unlock(&dcommi_nccl_lock);
}

/* Return the time-out of a communicator: the program's or the user's, else none, as in NCCL. A
 * rank may come late for good reasons, such as a slow checkpoint. */
static double dcommi_nccl_timeout(const dcommi_nccl_options *o)
{
    const char *set = getenv("DCOMM_TIMEOUT");
    return o->timeout_s > 0 ? o->timeout_s : set != NULL && *set != '\0' ? 0 : INFINITY;
}

/* Begin to create a communicator. dcommi_nccl_await waits until it is ready. */
static ncclResult_t dcommi_nccl_begin(struct ncclComm **comm_p, int nranks, const ncclUniqueId *id,
                                      int rank, const ncclConfig_t *config)
{
    _Static_assert(sizeof(ncclUniqueId) == sizeof(dcomm_id), "one is the other");
    dcommi_nccl_options o;
    struct ncclComm *comm = NULL;
    if (comm_p == NULL) {
        return dcommi_nccl_fail(ncclInvalidArgument, "comm is NULL");
    }
    *comm_p = NULL;
    if (nranks < 1 || rank < 0 || rank >= nranks) {
        return dcommi_nccl_fail(ncclInvalidArgument, "rank %d of %d ranks", rank, nranks);
    }
    ncclResult_t result = dcommi_nccl_new(&comm);
    if (result == ncclSuccess) {
        result = dcommi_nccl_configure(comm, config, getenv("DCOMM_CODEC"), &o);
    }
    if (result == ncclSuccess) {
        dcomm_comm_opts opts = {.boot = DCOMM_BOOT_ID,
                                .rank = rank,
                                .size = nranks,
                                .algo = o.algo,
                                .deterministic = o.deterministic,
                                .chunk_bytes = o.chunk_bytes,
                                .timeout_s = dcommi_nccl_timeout(&o),
                                .context_opts.progress_thread = true};
        memcpy(&opts.id, id, sizeof opts.id);
        result = dcommi_nccl_from(dcomm_comm_create_start(&opts, &comm->comm));
    }
    if (result != ncclSuccess) {
        dcommi_nccl_discard(comm);
        return result;
    }
    dcommi_nccl_enlist(comm);
    *comm_p = comm;
    return ncclSuccess;
}

static ncclResult_t dcommi_nccl_await(const struct ncclComm *comm)
{
    dcomm_status status;
    while ((status = dcomm_comm_ready(comm->comm)) == DCOMM_IN_PROGRESS) {
        dcommi_nccl_nap();
    }
    return dcommi_nccl_from(status);
}

/* ---- the end ---- */

/* Wait until the enqueued operations are over, whether they succeeded or failed. */
static void dcommi_nccl_quiesce(struct ncclComm *comm)
{
    dcommi_nccl_before before = dcommi_nccl_enter(comm);
    for (size_t i = 0; i < comm->nlast; i++) {
        (void)cudaEventSynchronize(comm->last[i].event);
    }
    if (comm->unnoted) {
        (void)cudaDeviceSynchronize();
    }
    dcommi_nccl_leave(comm, before);
}

static void dcommi_nccl_end(struct ncclComm *comm)
{
    dcommi_nccl_quiesce(comm);
    dcommi_nccl_before before = dcommi_nccl_enter(comm);
    for (size_t i = 0; i < comm->nlast; i++) {
        (void)cudaEventDestroy(comm->last[i].event);
    }
    if (dcomm_comm_ready(comm->comm) == DCOMM_OK) {
        dcommi_nccl_summarize(comm);
    }
    dcommi_nccl_leave(comm, before);
    dcommi_nccl_discard(comm);
    pthread_mutex_lock(&dcommi_nccl_lock);
    dcommi_nccl_closing--;
    pthread_mutex_unlock(&dcommi_nccl_lock);
}

/* End a communicator in a thread of its own: ending ranks wait for each other's goodbye, and one
 * thread of the program may own them all. At exit the process waits for these threads. */
static void *dcommi_nccl_end_main(void *comm)
{
    dcommi_nccl_own_thread = true;
    dcommi_nccl_end(comm);
    return NULL;
}

static ncclResult_t dcommi_nccl_close(struct ncclComm *comm)
{
    pthread_t thread;
    const pid_t owner = atomic_load(&dcommi_nccl_pid);
    if (owner != 0 && owner != getpid()) {
        return dcommi_nccl_fail(ncclInvalidUsage, "comm is of the process that forked this one");
    }
    pthread_mutex_lock(&dcommi_nccl_lock);
    struct ncclComm **at = &dcommi_nccl_all;
    while (*at != NULL && *at != comm) {
        at = &(*at)->next;
    }
    bool known = *at == comm;
    if (known) {
        *at = comm->next;
        dcommi_nccl_closing++;
    }
    pthread_mutex_unlock(&dcommi_nccl_lock);
    if (!known) {
        return dcommi_nccl_fail(ncclInvalidArgument, "comm is none, or was destroyed before");
    }
    if (pthread_create(&thread, NULL, dcommi_nccl_end_main, comm) == 0) {
        pthread_detach(thread);
    } else {
        dcommi_nccl_end(comm);
    }
    return ncclSuccess;
}

ncclResult_t ncclCommFinalize(ncclComm_t comm)
{
    if (comm == NULL) {
        return dcommi_nccl_fail(ncclInvalidArgument, "ncclCommFinalize: comm is NULL");
    }
    DCOMMI_NCCL_TRY(dcommi_nccl_await(comm));
    dcommi_nccl_quiesce(comm);
    return dcomm_comm_status(comm->comm) == DCOMM_OK
               ? ncclSuccess
               : dcommi_nccl_fail(dcommi_nccl_result(dcomm_comm_status(comm->comm)), "%s",
                                  dcomm_comm_error(comm->comm));
}

/* Destroy a communicator. If it is the process's last one, wait until all have ended: the program
 * may then reset devices or unload this library. */
ncclResult_t ncclCommDestroy(ncclComm_t comm)
{
    if (comm == NULL) {
        return ncclSuccess;
    }
    DCOMMI_NCCL_TRY(dcommi_nccl_close(comm));
    pthread_mutex_lock(&dcommi_nccl_lock);
    if (dcommi_nccl_all == NULL) {
        dcommi_nccl_await_ends(INFINITY);
    }
    pthread_mutex_unlock(&dcommi_nccl_lock);
    return ncclSuccess;
}

ncclResult_t ncclCommAbort(ncclComm_t comm)
{
    if (comm == NULL) {
        return ncclSuccess;
    }
    if (dcomm_comm_ready(comm->comm) == DCOMM_OK) {
        (void)dcomm_comm_abort(comm->comm, "ncclCommAbort was called");
    }
    return dcommi_nccl_close(comm);
}

DCOMMI_NCCL_CALL(ncclCommFinalize);
DCOMMI_NCCL_CALL(ncclCommDestroy);
DCOMMI_NCCL_CALL(ncclCommAbort);

#endif
/* ==== include/dcomm/nccl/types.h =========================================================== */
/* types.h - translate NCCL's data types and operators to dcomm's. */
#ifndef DCOMMI_NCCL_TYPES_H
#define DCOMMI_NCCL_TYPES_H


static bool dcommi_nccl_is_fp8(ncclDataType_t type)
{
    return type == ncclFloat8e4m3 || type == ncclFloat8e5m2;
}

static bool dcommi_nccl_is_float(dcomm_dtype type)
{
    return type == DCOMM_F64 || type == DCOMM_F32 || type == DCOMM_F16 || type == DCOMM_BF16;
}

/* Translate `type`. `reduced`: the call computes with the elements. 8-bit floats are then refused:
 * dcomm only moves them, as bytes. */
static ncclResult_t dcommi_nccl_type(ncclDataType_t type, bool reduced, dcomm_dtype *out)
{
    static const dcomm_dtype types[ncclNumTypes] = {
        [ncclInt8] = DCOMM_I8,       [ncclUint8] = DCOMM_U8,      [ncclInt32] = DCOMM_I32,
        [ncclUint32] = DCOMM_U32,    [ncclInt64] = DCOMM_I64,     [ncclUint64] = DCOMM_U64,
        [ncclFloat16] = DCOMM_F16,   [ncclFloat32] = DCOMM_F32,   [ncclFloat64] = DCOMM_F64,
        [ncclBfloat16] = DCOMM_BF16, [ncclFloat8e4m3] = DCOMM_U8, [ncclFloat8e5m2] = DCOMM_U8};
    if ((unsigned)type >= ncclNumTypes) {
        return dcommi_nccl_fail(ncclInvalidArgument, "datatype is %d, which is none", (int)type);
    }
    if (reduced && dcommi_nccl_is_fp8(type)) {
        return dcommi_nccl_fail(ncclInvalidUsage,
                                "dcomm does not reduce arrays of 8-bit floats; it moves them, and "
                                "DCOMM_CODEC=fp8 sends float32 gradients in 8 bits");
    }
    *out = types[type];
    return ncclSuccess;
}

static ncclResult_t dcommi_nccl_operator(const struct ncclComm *comm, ncclRedOp_t op,
                                         ncclDataType_t type, dcomm_op *out,
                                         const dcommi_nccl_op **premul)
{
    static const dcomm_op ops[ncclNumOps] = {[ncclSum] = DCOMM_SUM,
                                             [ncclProd] = DCOMM_PROD,
                                             [ncclMax] = DCOMM_MAX,
                                             [ncclMin] = DCOMM_MIN,
                                             [ncclAvg] = DCOMM_AVG};
    const unsigned own = (unsigned)op - ncclNumOps;
    *premul = NULL;
    if ((unsigned)op < ncclNumOps) {
        *out = ops[op];
        return ncclSuccess;
    }
    if (own >= DCOMMI_NCCL_OPS || !comm->ops[own].used) {
        return dcommi_nccl_fail(ncclInvalidArgument, "op is %d, which this communicator has not",
                                (int)op);
    }
    if (comm->ops[own].type != type) {
        return dcommi_nccl_fail(ncclInvalidArgument,
                                "op %d was created for datatype %d, not for %d", (int)op,
                                (int)comm->ops[own].type, (int)type);
    }
    *out = DCOMM_PREMUL_SUM;
    *premul = &comm->ops[own];
    return ncclSuccess;
}

/* ---- pre-multiplied sums ---- */

ncclResult_t ncclRedOpCreatePreMulSum(ncclRedOp_t *op, void *scalar, ncclDataType_t datatype,
                                      ncclScalarResidence_t residence, ncclComm_t comm)
{
    dcomm_dtype type = DCOMM_F32;
    if (op == NULL || scalar == NULL || comm == NULL) {
        return dcommi_nccl_fail(ncclInvalidArgument, "ncclRedOpCreatePreMulSum: %s is NULL",
                                op == NULL       ? "op"
                                : scalar == NULL ? "scalar"
                                                 : "comm");
    }
    if ((unsigned)residence > ncclScalarHostImmediate) {
        return dcommi_nccl_fail(ncclInvalidArgument,
                                "ncclRedOpCreatePreMulSum: residence is %d, which is none",
                                (int)residence);
    }
    DCOMMI_NCCL_TRY(dcommi_nccl_type(datatype, true, &type));
    for (int i = 0; i < DCOMMI_NCCL_OPS; i++) {
        if (!comm->ops[i].used) {
            const bool here = residence == ncclScalarHostImmediate;
            comm->ops[i] = (dcommi_nccl_op){true, datatype, here ? NULL : scalar, {0}};
            if (here) {
                memcpy(comm->ops[i].factor, scalar, dcomm_dtype_size(type));
            }
            *op = (ncclRedOp_t)(ncclNumOps + i);
            return ncclSuccess;
        }
    }
    return dcommi_nccl_fail(ncclInvalidUsage, "a communicator has %d operators at most",
                            DCOMMI_NCCL_OPS);
}

ncclResult_t ncclRedOpDestroy(ncclRedOp_t op, ncclComm_t comm)
{
    const unsigned own = (unsigned)op - ncclNumOps;
    if (comm == NULL || (unsigned)op < ncclNumOps || own >= DCOMMI_NCCL_OPS ||
        !comm->ops[own].used) {
        return dcommi_nccl_fail(ncclInvalidArgument,
                                "ncclRedOpDestroy: comm is NULL, or has no operator %d", (int)op);
    }
    comm->ops[own].used = false;
    return ncclSuccess;
}

DCOMMI_NCCL_CALL(ncclRedOpCreatePreMulSum);
DCOMMI_NCCL_CALL(ncclRedOpDestroy);

#endif

typedef enum dcommi_nccl_kind {
    DCOMMI_NCCL_CREATE, /* already begun: wait until it is ready */
    DCOMMI_NCCL_DERIVE, /* split or shrink */
    DCOMMI_NCCL_COLL
} dcommi_nccl_kind;

typedef struct dcommi_nccl_job {
    struct dcommi_nccl_job *next;
    dcommi_nccl_kind kind;
    struct ncclComm *comm;
    ncclComm_t *out; /* CREATE, DERIVE: the caller's handle */
    ncclResult_t result;
    char text[DCOMMI_NCCL_TEXT];
    pthread_t thread;
    bool threaded, done;
    /* DERIVE */
    bool shrink;
    int color, key, n;
    int *excluded; /* the job owns it */
    struct ncclComm *made;
    /* COLL */
    dcomm_coll coll;
    const void *in;
    void *recv;
    size_t count;
    dcomm_dtype dtype;
    dcomm_op op;
    bool premul;             /* DCOMM_PREMUL_SUM, by one of the next two */
    const void *scalar;      /* in memory that the device reads; NULL: use factor */
    unsigned char factor[8]; /* a value of dtype */
    int root;                /* send, receive: the peer */
    cudaStream_t stream;
    bool undecided;           /* codec "auto" must still decide */
    const dcomm_codec *codec; /* NULL: exact */
} dcommi_nccl_job;

/* Keep the result and sentence of a dcomm call for the thread that ends the group. */
static void dcommi_nccl_keep(dcommi_nccl_job *j, dcomm_status status)
{
    j->result = dcommi_nccl_from(status);
    if (status < 0) {
        memcpy(j->text, dcommi_nccl_text, sizeof j->text);
    }
}

#endif

static bool dcommi_nccl_codes(const dcommi_nccl_job *j)
{
    return j->kind == DCOMMI_NCCL_COLL && j->comm->codec != NULL &&
           j->coll == DCOMM_COLL_ALLREDUCE && dcommi_nccl_is_float(j->dtype) &&
           (j->op == DCOMM_SUM || j->op == DCOMM_AVG || j->op == DCOMM_PREMUL_SUM);
}

static bool dcommi_nccl_decided(dcommi_nccl_job *j)
{
    const struct ncclComm *comm = j->comm;
    const size_t n =
        comm->ndecided < DCOMMI_NCCL_DECISIONS ? comm->ndecided : DCOMMI_NCCL_DECISIONS;
    for (size_t i = 0; i < n; i++) {
        if (comm->decided[i].count == j->count && comm->decided[i].dtype == j->dtype) {
            j->codec = comm->decided[i].codec;
            return true;
        }
    }
    return false;
}

/* Decide the undecided jobs of one communicator, in the order of the calls: that order is the same
 * on its other ranks. `arg` is the first of these jobs. */
static void *dcommi_nccl_decide(void *arg)
{
    dcommi_nccl_job *first = arg;
    struct ncclComm *comm = first->comm;
    const dcommi_nccl_before before = dcommi_nccl_enter(comm);
    for (dcommi_nccl_job *j = first; j != NULL; j = j->next) {
        if (j->comm != comm || !j->undecided || dcommi_nccl_decided(j)) {
            continue;
        }
        const dcomm_codec *taken = NULL;
        dcommi_nccl_keep(
            j, dcomm_codec_decide(comm->comm, comm->codec, j->count, j->dtype, true, &taken));
        if (j->result == ncclSuccess) {
            j->codec = taken == comm->codec ? comm->candidate : taken;
            comm->decided[comm->ndecided++ % DCOMMI_NCCL_DECISIONS] =
                (dcommi_nccl_decision){j->count, j->dtype, j->codec};
        }
    }
    dcommi_nccl_leave(comm, before);
    return NULL;
}

/* Return true if `j` is the first undecided job of its communicator. */
static bool dcommi_nccl_leads(const dcommi_nccl_job *first, const dcommi_nccl_job *j)
{
    for (const dcommi_nccl_job *k = first; k != j; k = k->next) {
        if (k->undecided && k->comm == j->comm) {
            return false;
        }
    }
    return j->undecided;
}

/* Choose the codecs of all jobs. A rank that decides waits for the other ranks. This thread may
 * own some of those, so each communicator decides in its own thread, unless it is the only one. */
static void dcommi_nccl_decide_all(dcommi_nccl_job *first)
{
    int leaders = 0;
    for (dcommi_nccl_job *j = first; j != NULL; j = j->next) {
        if (dcommi_nccl_codes(j)) {
            j->codec = j->comm->codec;
            j->undecided = j->comm->candidate != NULL && !dcommi_nccl_decided(j);
        }
        leaders += dcommi_nccl_leads(first, j);
    }
    for (dcommi_nccl_job *j = first; leaders > 0 && j != NULL; j = j->next) {
        if (dcommi_nccl_leads(first, j)) {
            j->threaded =
                leaders > 1 && pthread_create(&j->thread, NULL, dcommi_nccl_decide, j) == 0;
            if (!j->threaded) {
                (void)dcommi_nccl_decide(j);
            }
        }
    }
    for (dcommi_nccl_job *j = first; leaders > 0 && j != NULL; j = j->next) {
        if (j->threaded) {
            pthread_join(j->thread, NULL);
            j->threaded = false;
        }
    }
}

#endif

static _Thread_local struct {
    int depth;
    dcommi_nccl_job *first, **last;
    ncclResult_t result; /* of the first refused call */
    char text[DCOMMI_NCCL_TEXT];
} dcommi_nccl_group;

/* ---- derived communicators ---- */

static void *dcommi_nccl_derive(void *arg)
{
    dcommi_nccl_job *j = arg;
    dcomm_comm *comm = NULL;
    j->done = true;
    dcomm_status status = j->shrink ? dcomm_comm_shrink(j->comm->comm, j->excluded, j->n, &comm)
                                    : dcomm_comm_split(j->comm->comm, j->color, j->key, &comm);
    dcommi_nccl_keep(j, status);
    j->made->comm = comm;
    return NULL;
}

/* Run the group's splits and shrinks. Each waits for its other ranks, and this thread may own them
 * too. So those of different communicators run at once, in threads; those of one run in turn. */
static void dcommi_nccl_derive_all(dcommi_nccl_job *first)
{
    for (dcommi_nccl_job *from = first; from != NULL;) {
        dcommi_nccl_job *rest = NULL;
        for (dcommi_nccl_job *j = from; j != NULL; j = j->next) {
            bool taken = false;
            if (j->kind != DCOMMI_NCCL_DERIVE || j->done) {
                continue;
            }
            for (dcommi_nccl_job *k = from; k != j && !taken; k = k->next) {
                taken = k->threaded && k->comm == j->comm;
            }
            if (taken) {
                rest = rest != NULL ? rest : j;
                continue;
            }
            j->threaded = pthread_create(&j->thread, NULL, dcommi_nccl_derive, j) == 0;
            if (!j->threaded) {
                (void)dcommi_nccl_derive(j);
            }
        }
        for (dcommi_nccl_job *j = from; j != NULL; j = j->next) {
            if (j->threaded) {
                pthread_join(j->thread, NULL);
                j->threaded = false;
            }
        }
        from = rest;
    }
}

/* Finish a split or shrink in the caller's thread: hand out the communicator or the error. */
static ncclResult_t dcommi_nccl_derived(dcommi_nccl_job *j)
{
    if (j->result == ncclSuccess && j->made->comm != NULL) {
        dcommi_nccl_enlist(j->made);
        *j->out = j->made;
        j->made = NULL;
    } /* else an error, or NCCL_SPLIT_NOCOLOR: dcommi_nccl_drop_job discards it */
    return j->result == ncclSuccess ? ncclSuccess : dcommi_nccl_fail(j->result, "%s", j->text);
}

/* ---- collectives ---- */

static dcomm_status dcommi_nccl_call(const dcommi_nccl_job *j)
{
    dcomm_comm *c = j->comm->comm;
    const bool counts = j->codec != NULL && dcommi_nccl_summary_path() != NULL;
    const dcomm_coll_opts opts = {.stream = j->stream != NULL ? (void *)j->stream
                                                              : (void *)cudaStreamLegacy,
                                  .device = true,
                                  .premul_p = !j->premul          ? NULL
                                              : j->scalar != NULL ? j->scalar
                                                                  : j->factor,
                                  .premul_on_stream = j->scalar != NULL,
                                  .codec = j->codec,
                                  .codec_ledger = counts ? &j->comm->ledger : NULL};
    switch (j->coll) {
    case DCOMM_COLL_ALLREDUCE:
        return dcomm_allreduce(c, j->in, j->recv, j->count, j->dtype, j->op, &opts);
    case DCOMM_COLL_REDUCE:
        return dcomm_reduce(c, j->in, j->recv, j->count, j->dtype, j->op, j->root, &opts);
    case DCOMM_COLL_REDUCE_SCATTER:
        return dcomm_reduce_scatter(c, j->in, j->recv, j->count, j->dtype, j->op, &opts);
    case DCOMM_COLL_ALLGATHER:
        return dcomm_allgather(c, j->in, j->recv, j->count, j->dtype, &opts);
    case DCOMM_COLL_BROADCAST:
        return dcomm_broadcast(c, j->in, j->recv, j->count, j->dtype, j->root, &opts);
    case DCOMM_COLL_ALLTOALL:
        return dcomm_alltoall(c, j->in, j->recv, j->count, j->dtype, &opts);
    case DCOMM_COLL_GATHER:
        return dcomm_gather(c, j->in, j->recv, j->count, j->dtype, j->root, &opts);
    case DCOMM_COLL_SCATTER:
        return dcomm_scatter(c, j->in, j->recv, j->count, j->dtype, j->root, &opts);
    case DCOMM_COLL_SEND:
        return dcomm_send(c, j->in, j->count, j->dtype, j->root, &opts);
    default:
        return dcomm_recv(c, j->recv, j->count, j->dtype, j->root, &opts);
    }
}

/* Return an entry for the last operation on `stream`: the stream's own, or one whose operation is
 * over, or a new one. Return NULL if there is no memory, or CUDA creates no event. */
static dcommi_nccl_last *dcommi_nccl_place(struct ncclComm *comm, cudaStream_t stream)
{
    for (size_t i = 0; i < comm->nlast; i++) {
        if (comm->last[i].stream == stream) {
            return &comm->last[i];
        }
    }
    for (size_t i = 0; i < comm->nlast; i++) {
        if (cudaEventQuery(comm->last[i].event) != cudaErrorNotReady) {
            return &comm->last[i];
        }
        (void)cudaGetLastError(); /* the program must not find cudaErrorNotReady */
    }
    if (comm->nlast == comm->last_room) {
        const size_t room = 2 * comm->last_room + 4;
        dcommi_nccl_last *more = realloc(comm->last, room * sizeof *more);
        if (more == NULL) {
            return NULL;
        }
        comm->last = more;
        comm->last_room = room;
    }
    dcommi_nccl_last *last = &comm->last[comm->nlast];
    if (cudaEventCreateWithFlags(&last->event, cudaEventDisableTiming) != cudaSuccess) {
        return NULL;
    }
    comm->nlast++;
    return last;
}

/* Record an event after the communicator's last operation on the stream. Without one, the end waits
 * for all work of the device. */
static void dcommi_nccl_note(const dcommi_nccl_job *j)
{
    dcommi_nccl_last *last = dcommi_nccl_place(j->comm, j->stream);
    if (last != NULL) {
        last->stream = j->stream;
        (void)cudaEventRecord(last->event, j->stream);
    } else {
        (void)cudaGetLastError();
        j->comm->unnoted = true;
    }
}

static bool dcommi_nccl_to_itself(const dcommi_nccl_job *j)
{
    return j->kind == DCOMMI_NCCL_COLL &&
           (j->coll == DCOMM_COLL_SEND || j->coll == DCOMM_COLL_RECV) &&
           j->root == dcomm_comm_rank(j->comm->comm);
}

/* Copy a rank's message to itself, on the stream of `recv`. The copy starts after the earlier work
 * of both streams; later work of both streams starts after the copy. */
static ncclResult_t dcommi_nccl_copy(const dcommi_nccl_job *send, const dcommi_nccl_job *recv)
{
    cudaEvent_t event = NULL;
    size_t bytes = 0;
    if (recv->count != send->count || recv->dtype != send->dtype) {
        return dcommi_nccl_fail(
            ncclInvalidUsage, "rank %d sends %zu %s to itself, and receives %zu %s", send->root,
            send->count, dcomm_dtype_name(send->dtype), recv->count, dcomm_dtype_name(recv->dtype));
    }
    if (__builtin_mul_overflow(send->count, dcomm_dtype_size(send->dtype), &bytes)) {
        return dcommi_nccl_fail(ncclInvalidArgument, "rank %d sends %zu %s to itself", send->root,
                                send->count, dcomm_dtype_name(send->dtype));
    }
    const bool two = send->stream != recv->stream;
    cudaError_t error =
        two ? cudaEventCreateWithFlags(&event, cudaEventDisableTiming) : cudaSuccess;
    if (error == cudaSuccess && two) {
        error = cudaEventRecord(event, send->stream);
    }
    if (error == cudaSuccess && two) {
        error = cudaStreamWaitEvent(recv->stream, event, 0);
    }
    if (error == cudaSuccess) {
        error = cudaMemcpyAsync(recv->recv, send->in, bytes, cudaMemcpyDefault, recv->stream);
    }
    if (error == cudaSuccess && two) {
        error = cudaEventRecord(event, recv->stream);
    }
    if (error == cudaSuccess && two) {
        error = cudaStreamWaitEvent(send->stream, event, 0);
    }
    if (event != NULL) {
        (void)cudaEventDestroy(event);
    }
    return dcommi_nccl_cuda("a copy within a rank", error);
}

/* Pair sends of ranks to themselves with the receives, in order, and copy the messages. */
static ncclResult_t dcommi_nccl_copy_own(dcommi_nccl_job *first)
{
    ncclResult_t result = ncclSuccess;
    for (dcommi_nccl_job *a = first; a != NULL; a = a->next) {
        if (a->done || !dcommi_nccl_to_itself(a)) {
            continue;
        }
        dcommi_nccl_job *b = a->next;
        while (b != NULL &&
               (b->done || !dcommi_nccl_to_itself(b) || b->comm != a->comm || b->coll == a->coll)) {
            b = b->next;
        }
        a->done = true;
        ncclResult_t one;
        if (b == NULL) {
            one = dcommi_nccl_fail(ncclInvalidUsage,
                                   "rank %d sends to itself, or receives, and the group has no "
                                   "call that meets it",
                                   a->root);
        } else {
            const bool sends = a->coll == DCOMM_COLL_SEND;
            dcommi_nccl_before before = dcommi_nccl_enter(a->comm);
            b->done = true;
            one = dcommi_nccl_copy(sends ? a : b, sends ? b : a);
            dcommi_nccl_note(sends ? b : a); /* the copy is on the receive's stream */
            dcommi_nccl_leave(a->comm, before);
        }
        result = result == ncclSuccess ? one : result;
    }
    return result;
}

static ncclResult_t dcommi_nccl_call_all(dcommi_nccl_job *first)
{
    ncclResult_t result = dcommi_nccl_copy_own(first);
    int n = 0;
    dcommi_nccl_decide_all(first);
    for (dcommi_nccl_job *j = first; j != NULL; j = j->next) {
        if (j->kind == DCOMMI_NCCL_COLL && j->result != ncclSuccess) { /* no codec was decided */
            ncclResult_t one = dcommi_nccl_fail(j->result, "%s", j->text);
            result = result == ncclSuccess ? one : result;
            j->done = true;
        }
        n += j->kind == DCOMMI_NCCL_COLL && !j->done;
    }
    if (n > 1) {
        (void)dcomm_group_start();
    }
    for (dcommi_nccl_job *j = first; j != NULL; j = j->next) {
        if (j->kind == DCOMMI_NCCL_COLL && !j->done) {
            dcommi_nccl_before before = dcommi_nccl_enter(j->comm);
            ncclResult_t one = dcommi_nccl_from(dcommi_nccl_call(j));
            dcommi_nccl_leave(j->comm, before);
            j->done = one != ncclSuccess; /* a failed call enqueues nothing */
            result = result == ncclSuccess ? one : result;
        }
    }
    if (n > 1) {
        ncclResult_t one = dcommi_nccl_from(dcomm_group_end());
        result = result == ncclSuccess ? one : result;
    }
    for (dcommi_nccl_job *j = first; j != NULL; j = j->next) {
        if (j->kind == DCOMMI_NCCL_COLL && !j->done) {
            dcommi_nccl_before before = dcommi_nccl_enter(j->comm);
            dcommi_nccl_note(j);
            dcommi_nccl_leave(j->comm, before);
        }
    }
    return result;
}

/* ---- the group ---- */

/* Return the result of a refused call. In a group, keep it too: ncclGroupEnd returns it again. */
static ncclResult_t dcommi_nccl_refused(ncclResult_t result)
{
    if (dcommi_nccl_group.depth > 0 && result > ncclSuccess && result != ncclInProgress &&
        dcommi_nccl_group.result == ncclSuccess) {
        dcommi_nccl_group.result = result;
        memcpy(dcommi_nccl_group.text, dcommi_nccl_text, sizeof dcommi_nccl_text);
    }
    return result;
}

static ncclResult_t dcommi_nccl_created(const dcommi_nccl_job *j)
{
    if (!j->comm->blocking) {
        return ncclInProgress;
    }
    ncclResult_t result = dcommi_nccl_await(j->comm);
    if (result != ncclSuccess) {
        *j->out = NULL;
        (void)dcommi_nccl_close(j->comm);
    }
    return result;
}

/* Release what a job owns. */
static void dcommi_nccl_drop_job(const dcommi_nccl_job *j)
{
    dcommi_nccl_discard(j->made);
    free(j->excluded);
}

static void dcommi_nccl_drop_jobs(dcommi_nccl_job *first)
{
    while (first != NULL) {
        dcommi_nccl_job *next = first->next;
        dcommi_nccl_drop_job(first);
        free(first);
        first = next;
    }
}

static ncclResult_t dcommi_nccl_end_group(void)
{
    if (--dcommi_nccl_group.depth > 0) {
        return ncclSuccess;
    }
    dcommi_nccl_job *first = dcommi_nccl_group.first;
    ncclResult_t result = dcommi_nccl_group.result;
    char text[DCOMMI_NCCL_TEXT];
    memcpy(text, dcommi_nccl_group.text, sizeof text);
    dcommi_nccl_group.first = NULL;
    dcommi_nccl_group.result = ncclSuccess;
    dcommi_nccl_derive_all(first);
    for (dcommi_nccl_job *j = first; j != NULL; j = j->next) {
        ncclResult_t one = j->kind == DCOMMI_NCCL_CREATE   ? dcommi_nccl_created(j)
                           : j->kind == DCOMMI_NCCL_DERIVE ? dcommi_nccl_derived(j)
                                                           : ncclSuccess;
        if (one != ncclSuccess && (result == ncclSuccess || result == ncclInProgress)) {
            result = one;
            memcpy(text, dcommi_nccl_text, sizeof text);
        }
    }
    ncclResult_t one = dcommi_nccl_call_all(first);
    dcommi_nccl_drop_jobs(first);
    if (one != ncclSuccess && (result == ncclSuccess || result == ncclInProgress)) {
        return one;
    }
    return result == ncclSuccess || result == ncclInProgress ? result
                                                             : dcommi_nccl_fail(result, "%s", text);
}

/* Append a job to the thread's group, which then owns what the job owns. Outside a group, start it
 * at once. */
static ncclResult_t dcommi_nccl_submit(const dcommi_nccl_job *job)
{
    dcommi_nccl_job *j = malloc(sizeof *j);
    if (j == NULL) {
        dcommi_nccl_drop_job(job);
        if (job->kind == DCOMMI_NCCL_CREATE) {
            *job->out = NULL;
            (void)dcommi_nccl_close(job->comm);
        }
        return dcommi_nccl_refused(dcommi_nccl_no_memory());
    }
    *j = *job;
    if (dcommi_nccl_group.first == NULL) {
        dcommi_nccl_group.last = &dcommi_nccl_group.first;
    }
    *dcommi_nccl_group.last = j;
    dcommi_nccl_group.last = &j->next;
    if (dcommi_nccl_group.depth > 0) {
        return ncclSuccess;
    }
    dcommi_nccl_group.depth = 1;
    return dcommi_nccl_end_group();
}

ncclResult_t ncclGroupStart(void)
{
    dcommi_nccl_group.depth++;
    return ncclSuccess;
}

ncclResult_t ncclGroupEnd(void)
{
    return dcommi_nccl_group.depth == 0
               ? dcommi_nccl_fail(ncclInvalidUsage, "ncclGroupEnd without ncclGroupStart")
               : dcommi_nccl_end_group();
}

ncclResult_t ncclGroupSimulateEnd(ncclSimInfo_t *info)
{
    (void)info;
    if (dcommi_nccl_group.depth > 0 && --dcommi_nccl_group.depth == 0) {
        dcommi_nccl_drop_jobs(dcommi_nccl_group.first);
        dcommi_nccl_group.first = NULL;
        dcommi_nccl_group.result = ncclSuccess;
    }
    return dcommi_nccl_fail(ncclInvalidUsage,
                            "ncclGroupSimulateEnd: dcomm prices single collectives "
                            "(dcomm_comm_explain, dcomm-crossover), and not groups");
}

DCOMMI_NCCL_CALL(ncclGroupStart);
DCOMMI_NCCL_CALL(ncclGroupEnd);
DCOMMI_NCCL_CALL(ncclGroupSimulateEnd);

#endif

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
/* ==== include/dcomm/nccl/comm.h ============================================================ */
/* comm.h - create communicators: from an id, from another communicator, or all in one process. */
#ifndef DCOMMI_NCCL_COMM_H
#define DCOMMI_NCCL_COMM_H


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

void ncclResetDebugInit(void)
{
}

ncclResult_t ncclGetVersion(int *version)
{
    if (version == NULL) {
        return dcommi_nccl_fail(ncclInvalidArgument, "ncclGetVersion: version is NULL");
    }
    *version = NCCL_VERSION_CODE;
    return ncclSuccess;
}

const char *ncclGetErrorString(ncclResult_t result)
{
    switch (result) {
    case ncclSuccess:
        return "no error";
    case ncclUnhandledCudaError:
        return "unhandled cuda error (see ncclGetLastError)";
    case ncclSystemError:
        return "unhandled system error (see ncclGetLastError)";
    case ncclInternalError:
        return "internal error (see ncclGetLastError)";
    case ncclInvalidArgument:
        return "invalid argument (see ncclGetLastError)";
    case ncclInvalidUsage:
        return "invalid usage (see ncclGetLastError)";
    case ncclRemoteError:
        return "remote process exited or there was a network error";
    case ncclInProgress:
        return "NCCL operation in progress";
    default:
        return "unknown result code";
    }
}

const char *ncclGetLastError(ncclComm_t comm)
{
    if (comm != NULL && dcomm_comm_ready(comm->comm) == DCOMM_OK &&
        dcomm_comm_status(comm->comm) != DCOMM_OK) {
        return dcomm_comm_error(comm->comm);
    }
    return dcommi_nccl_text;
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t *error)
{
    if (comm == NULL || error == NULL) {
        return dcommi_nccl_fail(ncclInvalidArgument, "ncclCommGetAsyncError: %s is NULL",
                                comm == NULL ? "comm" : "error");
    }
    dcomm_status status = dcomm_comm_ready(comm->comm);
    if (status == DCOMM_OK) {
        *error = dcommi_nccl_result(dcomm_comm_status(comm->comm));
    } else {
        *error = dcommi_nccl_from(status);
    }
    return ncclSuccess;
}

static ncclResult_t dcommi_nccl_ask(const char *call, ncclComm_t comm, const void *out)
{
    if (comm == NULL || out == NULL) {
        return dcommi_nccl_fail(ncclInvalidArgument, "%s: %s is NULL", call,
                                comm == NULL ? "comm" : "the pointer for the answer");
    }
    return dcomm_comm_ready(comm->comm) == DCOMM_IN_PROGRESS
               ? dcommi_nccl_fail(ncclInvalidUsage, "%s: the communicator is still being created",
                                  call)
               : ncclSuccess;
}

ncclResult_t ncclCommCount(const ncclComm_t comm, int *count)
{
    DCOMMI_NCCL_TRY(dcommi_nccl_ask("ncclCommCount", comm, count));
    *count = dcomm_comm_size(comm->comm);
    return ncclSuccess;
}

ncclResult_t ncclCommCuDevice(const ncclComm_t comm, int *device)
{
    DCOMMI_NCCL_TRY(dcommi_nccl_ask("ncclCommCuDevice", comm, device));
    *device = comm->device;
    return ncclSuccess;
}

ncclResult_t ncclCommUserRank(const ncclComm_t comm, int *rank)
{
    DCOMMI_NCCL_TRY(dcommi_nccl_ask("ncclCommUserRank", comm, rank));
    *rank = dcomm_comm_rank(comm->comm);
    return ncclSuccess;
}

/* ---- memory ---- */

/* Allocate memory that no peer may open yet: ncclCommRegister shares it. */
ncclResult_t ncclMemAlloc(void **ptr, size_t bytes)
{
    return ptr == NULL ? dcommi_nccl_fail(ncclInvalidArgument, "ncclMemAlloc: ptr is NULL")
                       : dcommi_nccl_from(dcomm_mem_alloc_device(NULL, bytes, ptr));
}

ncclResult_t ncclMemFree(void *ptr)
{
    return dcommi_nccl_from(dcomm_mem_free(&ptr));
}

/* Register a buffer, and share it if it is from ncclMemAlloc. Other memory is not shared: it must
 * not be freed while a peer has it open, and dcomm does not see its cudaFree. */
static ncclResult_t dcommi_nccl_register(const char *call, ncclComm_t comm, void *buff,
                                         size_t bytes, void **handle)
{
    dcomm_mem_info info;
    if (buff == NULL || bytes == 0) {
        return dcommi_nccl_fail(ncclInvalidArgument, "%s: buff is NULL, or bytes is 0", call);
    }
    DCOMMI_NCCL_TRY(dcommi_nccl_ask(call, comm, handle));
    dcommi_nccl_registered *r = calloc(1, sizeof *r);
    if (r == NULL) {
        return dcommi_nccl_no_memory();
    }
    r->buff = buff;
    if (dcomm_mem_get_info(buff, &info) == DCOMM_OK && info.device >= 0) {
        dcomm_status status = dcomm_mem_share(dcomm_comm_context(comm->comm), buff);
        if (status < 0) {
            free(r);
            return dcommi_nccl_from(status);
        }
        r->shared = true;
    }
    pthread_mutex_lock(&dcommi_nccl_lock);
    r->next = comm->registered;
    comm->registered = r;
    pthread_mutex_unlock(&dcommi_nccl_lock);
    *handle = r;
    return ncclSuccess;
}

static ncclResult_t dcommi_nccl_deregister(const char *call, ncclComm_t comm, const void *handle)
{
    dcommi_nccl_registered **at, *r = NULL;
    if (comm != NULL && handle == NULL) {
        return ncclSuccess;
    }
    if (comm != NULL) {
        pthread_mutex_lock(&dcommi_nccl_lock);
        for (at = &comm->registered; *at != NULL && *at != handle; at = &(*at)->next) {
        }
        r = *at;
        if (r != NULL) {
            *at = r->next;
        }
        pthread_mutex_unlock(&dcommi_nccl_lock);
    }
    if (r == NULL) {
        return dcommi_nccl_fail(ncclInvalidArgument, "%s: comm is NULL, or not that of the handle",
                                call);
    }
    dcommi_nccl_unregister(comm, r);
    return ncclSuccess;
}

ncclResult_t ncclCommRegister(const ncclComm_t comm, void *buff, size_t bytes, void **handle)
{
    return dcommi_nccl_register("ncclCommRegister", comm, buff, bytes, handle);
}

ncclResult_t ncclCommDeregister(const ncclComm_t comm, void *handle)
{
    return dcommi_nccl_deregister("ncclCommDeregister", comm, handle);
}

/* A registered buffer is enough: collectives alone use windows here. Their order is that of the
 * stream, which is strict enough for NCCL_WIN_STRICT_ORDERING. */
ncclResult_t ncclCommWindowRegister(ncclComm_t comm, void *buff, size_t bytes, ncclWindow_t *window,
                                    int flags)
{
    void *handle = NULL;
    if (window == NULL || (flags & ~(NCCL_WIN_COLL_SYMMETRIC | NCCL_WIN_STRICT_ORDERING)) != 0) {
        return dcommi_nccl_fail(ncclInvalidArgument,
                                "ncclCommWindowRegister: window is NULL, or flags is %d", flags);
    }
    *window = NULL;
    DCOMMI_NCCL_TRY(dcommi_nccl_register("ncclCommWindowRegister", comm, buff, bytes, &handle));
    *window = handle;
    return ncclSuccess;
}

ncclResult_t ncclCommWindowDeregister(ncclComm_t comm, ncclWindow_t window)
{
    return dcommi_nccl_deregister("ncclCommWindowDeregister", comm, window);
}

DCOMMI_NCCL_CALL(ncclGetVersion);
DCOMMI_NCCL_CALL(ncclResetDebugInit);
DCOMMI_NCCL_CALL(ncclGetErrorString);
DCOMMI_NCCL_CALL(ncclGetLastError);
DCOMMI_NCCL_CALL(ncclCommGetAsyncError);
DCOMMI_NCCL_CALL(ncclCommCount);
DCOMMI_NCCL_CALL(ncclCommCuDevice);
DCOMMI_NCCL_CALL(ncclCommUserRank);
DCOMMI_NCCL_CALL(ncclMemAlloc);
DCOMMI_NCCL_CALL(ncclMemFree);
DCOMMI_NCCL_CALL(ncclCommRegister);
DCOMMI_NCCL_CALL(ncclCommDeregister);
DCOMMI_NCCL_CALL(ncclCommWindowRegister);
DCOMMI_NCCL_CALL(ncclCommWindowDeregister);

#endif

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
#endif

/* ==== helper macros end here =========================================================== */
#undef DCOMMI_NCCL_CALL
#undef DCOMMI_NCCL_CONFIGURED
#undef DCOMMI_NCCL_DECISIONS
#undef DCOMMI_NCCL_EXIT_S
#undef DCOMMI_NCCL_MAGIC
#undef DCOMMI_NCCL_NO_DEVICE
#undef DCOMMI_NCCL_NO_PARAMETERS
#undef DCOMMI_NCCL_NO_PUT
#undef DCOMMI_NCCL_OPS
#undef DCOMMI_NCCL_REFUSES
#undef DCOMMI_NCCL_TEXT
#undef DCOMMI_NCCL_TRY
