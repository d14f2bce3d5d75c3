/* face.h - NCCL's calls, made by dcomm. docs/from-nccl.md says call by call what is the same and
 * what is not.
 *
 * Names, types, tags, values and layouts are those of NCCL 2.27, so that a program which was
 * compiled against NCCL's header runs with this library too, and C++ has the same name for a
 * function that takes such types. It needs <cuda_runtime.h>: CUDA's, or the host stand-in's
 * (nccl/host), with which N "GPUs" are threads and memory of this machine. */
#ifndef DCOMM_NCCL_H
#define DCOMM_NCCL_H
#define NCCL_H_ /* NCCL's own header, were it included too, is this one */

#include <cuda_runtime.h>
#ifndef CUDA_HOST_STAND_IN /* which has no such types */
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#if defined(__cplusplus) && CUDART_VERSION >= 11080
#include <cuda_fp8.h>
#endif
#elif defined(__cplusplus) /* what those bring along, and programs rely on */
#include <cstring>
#include <utility>
#endif
#include <limits.h>
#include <stddef.h>

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
    ncclUnhandledCudaError = 1, /* a call of CUDA's failed */
    ncclSystemError = 2,        /* the operating system or the network */
    ncclInternalError = 3,
    ncclInvalidArgument = 4,
    ncclInvalidUsage = 5, /* ranks disagree, or dcomm has nothing like it: see ncclGetLastError */
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
    ncclFloat8e4m3 = 10, /* is moved, and not reduced */
    ncclFloat8e5m2 = 11,
    ncclNumTypes = 12
} ncclDataType_t;

typedef enum {
    ncclSum = 0,
    ncclProd = 1,
    ncclMax = 2,
    ncclMin = 3,
    ncclAvg = 4,
    ncclNumOps = 5, /* ncclRedOpCreatePreMulSum's are from here on */
    ncclMaxRedOp = 0x7fffffff
} ncclRedOp_t;

typedef enum { ncclNumOps_dummy = 5 } ncclRedOp_dummy_t; /* a name in nccl.h */

typedef enum {
    ncclScalarDevice = 0,       /* read, after what the stream holds, when a collective is called */
    ncclScalarHostImmediate = 1 /* read by ncclRedOpCreatePreMulSum */
} ncclScalarResidence_t;

#define NCCL_CONFIG_UNDEF_INT INT_MIN
#define NCCL_CONFIG_UNDEF_PTR NULL
#define NCCL_SPLIT_NOCOLOR (-1)
#define NCCL_UNDEF_FLOAT (-1.0f)
#define NCCL_WIN_DEFAULT 0x00
#define NCCL_WIN_COLL_SYMMETRIC 0x01
#define NCCL_SHRINK_DEFAULT 0x00
#define NCCL_SHRINK_ABORT 0x01
#define NCCL_CTA_POLICY_DEFAULT 0x00
#define NCCL_CTA_POLICY_EFFICIENCY 0x01

/* Begins as NCCL_CONFIG_INITIALIZER. What dcomm makes of the fields: blocking as in NCCL; commName
 * is a name, and may go on with dcomm's options for this communicator: "grads dcomm:algo=ring
 * codec=qsgd:bits=4" (docs/from-nccl.md); the others ask for resources of a GPU that dcomm does not
 * take, and are left alone. */
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

/* A call, and the same under the name that profilers call which put themselves in between. */
#define DCOMM_NCCL_CALL(type, name, arguments) \
    type name arguments;                       \
    type p##name arguments

/* ---- the library, and errors ---- */

/* 22700 */
DCOMM_NCCL_CALL(ncclResult_t, ncclGetVersion, (int *version));
/* Does nothing: dcomm reads no NCCL_DEBUG. */
DCOMM_NCCL_CALL(void, ncclResetDebugInit, (void));
DCOMM_NCCL_CALL(const char *, ncclGetErrorString, (ncclResult_t result));
/* The sentence of comm's error, or where it has none (or is NULL), of the calling thread's last
 * call that failed. Valid until the thread's next call, or the communicator's end. */
DCOMM_NCCL_CALL(const char *, ncclGetLastError, (ncclComm_t comm));

/* ---- communicators ---- */

DCOMM_NCCL_CALL(ncclResult_t, ncclGetUniqueId, (ncclUniqueId * id));
DCOMM_NCCL_CALL(ncclResult_t, ncclCommInitRank,
                (ncclComm_t * comm, int nranks, ncclUniqueId id, int rank));
DCOMM_NCCL_CALL(ncclResult_t, ncclCommInitRankConfig,
                (ncclComm_t * comm, int nranks, ncclUniqueId id, int rank, ncclConfig_t *config));
/* One id serves any number of ranks: the first is taken. */
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
/* Processes of the host then read it where it lies, if it is of ncclMemAlloc's; of other memory
 * nothing is done. */
DCOMM_NCCL_CALL(ncclResult_t, ncclCommRegister,
                (const ncclComm_t comm, void *buff, size_t bytes, void **handle));
DCOMM_NCCL_CALL(ncclResult_t, ncclCommDeregister, (const ncclComm_t comm, void *handle));
/* A window is a registered buffer, whatever the flags; there are no kernels that reach into it. */
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
/* The next three are NCCL 2.28's, with its names and rules. */
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
/* Ends the group and starts nothing of it; ncclInvalidUsage. */
DCOMM_NCCL_CALL(ncclResult_t, ncclGroupSimulateEnd, (ncclSimInfo_t * info));

#undef DCOMM_NCCL_CALL
#ifdef __cplusplus
}
#endif
#endif
