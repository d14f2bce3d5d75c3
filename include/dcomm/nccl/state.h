/* state.h - NCCL's face: the state of its communicators, its errors, and its use of devices. */
#ifndef DCOMMI_NCCL_STATE_H
#define DCOMMI_NCCL_STATE_H

#include "dcomm.h"
#include "face.h"
#include "../impl/base/text.h"

#include <math.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
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
