/* cuda_stream.h - streams by CUDA's runtime: the caller's, to which operations are tied, and some
 * of our own besides the queues. */
#ifndef DCOMMI_DEVICE_CUDA_STREAM_H
#define DCOMMI_DEVICE_CUDA_STREAM_H

#include "cuda_queue.h"

#ifdef DCOMM_WITH_CUDA

/* ---- streams of the caller's ---- */

/* Ask the default stream, as this file is compiled: the legacy one, or the thread's. While a stream
 * that waits for it is being captured, nobody may ask. */
static dcomm_status dcommi_cuda_default_poll(int device)
{
    enum cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
    dcommi_device_before before = dcommi_cuda_enter(device);
    cudaError_t error = cudaStreamIsCapturing(NULL, &capture);
    if (error == cudaErrorStreamCaptureImplicit || capture != cudaStreamCaptureStatusNone) {
        (void)cudaGetLastError();
        return dcommi_cuda_done(before, DCOMM_OK);
    }
    error = error == cudaSuccess ? cudaStreamQuery(NULL) : error;
    if (error == cudaErrorNotReady) {
        (void)cudaGetLastError(); /* CUDA keeps this as an error, too */
        return dcommi_cuda_done(before, DCOMM_IN_PROGRESS);
    }
    return dcommi_cuda_called(before, device, error, "the default stream");
}

/* Check that an operation can be tied to a stream, before the operation is numbered. */
static dcomm_status dcommi_cuda_stream_check(const char *name, void *stream)
{
    enum cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
    DCOMMI_TRY(dcommi_cuda_need_driver("opts.stream"));
    cudaError_t error = cudaStreamIsCapturing((cudaStream_t)stream, &capture);
    if (error == cudaErrorStreamCaptureImplicit || capture != cudaStreamCaptureStatusNone) {
        (void)cudaGetLastError();
        return dcommi_fail(DCOMM_ERR_UNSUPPORTED,
                           "%s: the stream is being captured into a graph, and a graph cannot hold "
                           "a call of several ranks; end the capture before the call",
                           name);
    }
    DCOMMI_CUDA_TRY(-1, error, "opts.stream");
    return dcommi_cuda_ready_for(dcommi_cuda_current());
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
    cudaEvent_t event = NULL;
    dcommi_device_before before = dcommi_cuda_enter(device);
    cudaError_t error = cudaEventCreateWithFlags(&event, cudaEventDisableTiming);
    if (error == cudaSuccess &&
        (error = cudaEventRecord(event, (cudaStream_t)stream)) != cudaSuccess) {
        (void)cudaEventDestroy(event);
    }
    *event_p = event;
    return dcommi_cuda_called(before, device, error, "the caller's stream: cudaEventRecord");
}

static void dcommi_cuda_stream_unmark(int device, void *event)
{
    dcommi_device_before before = dcommi_cuda_enter(device);
    (void)cudaEventDestroy((cudaEvent_t)event);
    dcommi_cuda_leave(before);
}

/* Return DCOMM_IN_PROGRESS, DCOMM_OK or the error of work before the event. */
static dcomm_status dcommi_cuda_poll(int device, void *event)
{
    dcommi_device_before before = dcommi_cuda_enter(device);
    cudaError_t error = cudaEventQuery((cudaEvent_t)event);
    if (error == cudaErrorNotReady) {
        (void)cudaGetLastError(); /* CUDA keeps this as an error, too */
        return dcommi_cuda_done(before, DCOMM_IN_PROGRESS);
    }
    return dcommi_cuda_called(before, -1, error, "the device reports");
}

/* ---- words ---- */

/* With unified addresses, devices find a pinned word where the host does. */
static dcomm_status dcommi_cuda_on_word(int device, void *stream, _Atomic uint32_t *word,
                                        uint32_t value, bool write)
{
    const dcommi_cuda_address at = (dcommi_cuda_address)(uintptr_t)word;
    dcommi_device_before before = dcommi_cuda_enter(device);
    int error = (write ? dcommi_cuda_driver.write : dcommi_cuda_driver.wait)((cudaStream_t)stream,
                                                                             at, value, 0);
    dcommi_cuda_leave(before);
    return error == 0 ? DCOMM_OK
                      : dcommi_fail(DCOMM_ERR_SYSTEM, "cuStream%sValue32 on device %d returns %d",
                                    write ? "Write" : "Wait", device, error);
}

/* The write is ordered behind all that the stream's earlier work has written. */
static dcomm_status dcommi_cuda_stream_write(int device, void *stream, _Atomic uint32_t *word,
                                             uint32_t value)
{
    return dcommi_cuda_on_word(device, stream, word, value, true);
}

static dcomm_status dcommi_cuda_stream_hold(int device, void *stream, _Atomic uint32_t *word,
                                            uint32_t value)
{
    return dcommi_cuda_on_word(device, stream, word, value, false);
}

/* ---- streams of our own, beside the queues ---- */

static dcomm_status dcommi_cuda_own_open(int device, bool waits, void **stream_p)
{
    cudaStream_t stream = NULL;
    DCOMMI_TRY(dcommi_cuda_ready_for(device));
    dcommi_device_before before = dcommi_cuda_enter(device);
    dcomm_status status = dcommi_cuda_stream_make(device, !waits, &stream);
    *stream_p = stream;
    return dcommi_cuda_done(before, status);
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
    dcommi_cuda_stream_unmark(device, event);
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
