/* cuda_stream.h - streams by CUDA's runtime: the caller's, to which operations are tied, and some
 * of our own besides the queues. */
#ifndef DCOMMI_DEVICE_CUDA_STREAM_H
#define DCOMMI_DEVICE_CUDA_STREAM_H

#include "cuda_queue.h"

#ifdef DCOMM_WITH_CUDA

/* ---- streams of the caller's ---- */

typedef int (*dcommi_cuda_wait_fn)(cudaStream_t stream, unsigned long long address, uint32_t value,
                                   unsigned flags);
static _Atomic(dcommi_cuda_wait_fn) dcommi_cuda_wait;

/* Check that an operation can be tied to a stream, before the operation is numbered. */
static dcomm_status dcommi_cuda_stream_check(const char *name, void *stream)
{
    enum cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
    cudaError_t error = cudaStreamIsCapturing((cudaStream_t)stream, &capture);
    if (error == cudaErrorStreamCaptureImplicit || capture != cudaStreamCaptureStatusNone) {
        (void)cudaGetLastError();
        return dcommi_fail(DCOMM_ERR_UNSUPPORTED,
                           "%s: the stream is being captured into a graph, and a graph cannot hold "
                           "a call of several ranks; end the capture before the call",
                           name);
    }
    DCOMMI_CUDA_TRY(-1, error, "opts.stream");
    if (atomic_load_explicit(&dcommi_cuda_wait, memory_order_acquire) == NULL) {
        void *entry = NULL;
        if (dcommi_cuda_entry("cuStreamWaitValue32", &entry) < 0) {
            return dcommi_fail(DCOMM_ERR_UNSUPPORTED,
                               "%s: opts.stream needs cuStreamWaitValue32, which the driver does "
                               "not have",
                               name);
        }
        dcommi_cuda_wait_fn wait;
        memcpy(&wait, &entry, sizeof wait);
        atomic_store_explicit(&dcommi_cuda_wait, wait, memory_order_release);
    }
    return DCOMM_OK;
}

static dcomm_status dcommi_cuda_stream_kind(int device, void *stream,
                                            enum dcommi_stream_kind *kind_p)
{
    unsigned flags = cudaStreamNonBlocking;
    if ((cudaStream_t)stream == cudaStreamLegacy || (cudaStream_t)stream == cudaStreamPerThread) {
        *kind_p =
            (cudaStream_t)stream == cudaStreamLegacy ? DCOMMI_STREAM_LEGACY : DCOMMI_STREAM_THREAD;
        return DCOMM_OK;
    }
    dcommi_device_before before = dcommi_cuda_enter(device);
    cudaError_t error = cudaStreamGetFlags((cudaStream_t)stream, &flags);
    dcommi_cuda_leave(before);
    DCOMMI_CUDA_TRY(device, error, "opts.stream: cudaStreamGetFlags");
    *kind_p = (flags & cudaStreamNonBlocking) != 0 ? DCOMMI_STREAM_APART : DCOMMI_STREAM_BLOCKING;
    return DCOMM_OK;
}

/* Record an event behind all that the stream holds now. */
static dcomm_status dcommi_cuda_stream_mark(int device, void *stream, void **event_p)
{
    return dcommi_cuda_record(device, stream, NULL, "the caller's stream: cudaEventRecord",
                              event_p);
}

static void dcommi_cuda_stream_unmark(void *event)
{
    (void)cudaEventDestroy((cudaEvent_t)event);
}

/* Make all later work of the stream wait until *word has reached `value` (cyclically). The word is
 * pinned: with unified addresses, devices find it where the host does. */
static dcomm_status dcommi_cuda_stream_hold(int device, void *stream, _Atomic uint32_t *word,
                                            uint32_t value)
{
    dcommi_cuda_wait_fn wait = atomic_load_explicit(&dcommi_cuda_wait, memory_order_acquire);
    dcommi_device_before before = dcommi_cuda_enter(device);
    int error = wait((cudaStream_t)stream, (unsigned long long)(uintptr_t)word, value, 0);
    dcommi_cuda_leave(before);
    return error == 0 ? DCOMM_OK
                      : dcommi_fail(DCOMM_ERR_SYSTEM, "opts.stream: cuStreamWaitValue32 returns %d",
                                    error);
}

/* ---- streams of our own, beside the queues ---- */

static dcomm_status dcommi_cuda_own_open(int device, void **stream_p)
{
    cudaStream_t stream = NULL;
    cudaError_t error = cudaSuccess;
    dcommi_device_before before = dcommi_cuda_enter(device);
    dcomm_status status = dcommi_cuda_load_all(device);
    if (status >= 0) {
        error = cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
    }
    dcommi_cuda_leave(before);
    DCOMMI_TRY(status);
    DCOMMI_CUDA_TRY(device, error, "cudaStreamCreateWithFlags");
    *stream_p = stream;
    return DCOMM_OK;
}

static void dcommi_cuda_own_close(int device, void *stream)
{
    dcommi_device_before before = dcommi_cuda_enter(device);
    (void)cudaStreamDestroy((cudaStream_t)stream);
    dcommi_cuda_leave(before);
}

static dcomm_status dcommi_cuda_zero(int device, void *stream, void *dst, size_t len)
{
    dcommi_device_before before = dcommi_cuda_enter(device);
    return dcommi_cuda_called(before, device, cudaMemsetAsync(dst, 0, len, (cudaStream_t)stream),
                              "cudaMemsetAsync");
}

/* Make later work on `stream` wait for what `other` holds now. The event may be destroyed at once:
 * the wait keeps it alive. */
static dcomm_status dcommi_cuda_own_after(int device, void *stream, void *other)
{
    void *event = NULL;
    DCOMMI_TRY(dcommi_cuda_stream_mark(device, other, &event));
    dcommi_device_before before = dcommi_cuda_enter(device);
    cudaError_t error = cudaStreamWaitEvent((cudaStream_t)stream, (cudaEvent_t)event, 0);
    dcommi_cuda_stream_unmark(event);
    return dcommi_cuda_called(before, device, error, "cudaStreamWaitEvent");
}

static dcomm_status dcommi_cuda_add(int device, void *stream, float *x, float factor,
                                    const float *y, size_t count)
{
    dcommi_device_before before = dcommi_cuda_enter(device);
    return dcommi_cuda_done(before, dcomm_cuda_add_scaled(x, factor, y, count, stream));
}

static dcomm_status dcommi_cuda_feedback(int device, void *stream, dcomm_cuda_feedback_op op,
                                         void *dst, const void *a, float factor, const float *b,
                                         size_t count, dcomm_cuda_report *report)
{
    dcommi_device_before before = dcommi_cuda_enter(device);
    return dcommi_cuda_done(before,
                            dcomm_cuda_feedback(op, dst, a, factor, b, count, report, stream));
}

static dcomm_status dcommi_cuda_own_code(int device, void *stream, const dcommi_device_code *code,
                                         void *workspace)
{
    dcommi_device_before before = dcommi_cuda_enter(device);
    return dcommi_cuda_done(before, dcommi_cuda_code_on(code, workspace, stream));
}

static dcomm_status dcommi_cuda_look(int device, void *stream, void *x, size_t count,
                                     dcomm_dtype dtype, double factor, bool drop,
                                     dcomm_cuda_sight *sight, void *workspace)
{
    dcommi_device_before before = dcommi_cuda_enter(device);
    return dcommi_cuda_done(
        before, dcomm_cuda_look(x, count, dtype, factor, drop, sight, workspace, stream));
}

#endif

#endif
