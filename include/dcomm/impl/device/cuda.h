/* cuda.h - the table of device.h, by CUDA's runtime. Without DCOMM_WITH_CUDA there is no device
 * memory, and not a byte of CUDA. */
#ifndef DCOMMI_DEVICE_CUDA_H
#define DCOMMI_DEVICE_CUDA_H

#include "../../comm.h"
#include "cuda_stream.h"

#ifdef DCOMM_WITH_CUDA

static const dcommi_device_calls dcommi_cuda_calls = {
    .locate = dcommi_cuda_locate,
    .open = dcommi_cuda_open,
    .close = dcommi_cuda_close,
    .pin = dcommi_cuda_pin,
    .unpin = dcommi_cuda_unpin,
    .alloc = dcommi_cuda_alloc,
    .release = dcommi_cuda_release,
    .copy = dcommi_cuda_copy,
    .reduce = dcommi_cuda_reduce,
    .scale = dcommi_cuda_scale,
    .to_f32 = dcommi_cuda_to_f32,
    .from_f32 = dcommi_cuda_from_f32,
    .code = dcommi_cuda_code,
    .code_bytes = dcommi_cuda_code_bytes,
    .matrix = dcommi_cuda_matrix,
    .compare = dcommi_cuda_compare,
    .scatter = dcommi_cuda_scatter,
    .clip = dcommi_cuda_clip,
    .clipped = dcommi_cuda_clipped,
    .health = dcommi_cuda_health,
    .flush = dcommi_cuda_flush,
    .current = dcommi_cuda_current,
    .in_use = dcommi_cuda_in_use,
    .own_thread = dcommi_cuda_is_own_thread,
    .synchronous = dcommi_cuda_synchronous,
    .default_poll = dcommi_cuda_default_poll,
    .stream_check = dcommi_cuda_stream_check,
    .stream_kind = dcommi_cuda_stream_kind,
    .stream_write = dcommi_cuda_stream_write,
    .stream_hold = dcommi_cuda_stream_hold,
    .stream_mark = dcommi_cuda_stream_mark,
    .poll = dcommi_cuda_poll,
    .stream_unmark = dcommi_cuda_stream_unmark,
    .enter = dcommi_cuda_enter,
    .leave = dcommi_cuda_leave,
    .own_open = dcommi_cuda_own_open,
    .own_close = dcommi_cuda_own_close,
    .zero = dcommi_cuda_zero,
    .own_after = dcommi_cuda_own_after,
    .shared_alloc = dcommi_cuda_shared_alloc,
    .shared_free = dcommi_cuda_shared_free,
    .peer_open = dcommi_cuda_peer_open,
    .peer_close = dcommi_cuda_peer_close,
    .add = dcommi_cuda_add,
    .feedback = dcommi_cuda_feedback,
    .own_code = dcommi_cuda_own_code,
    .look = dcommi_cuda_look,
    .look_bytes = dcomm_cuda_look_workspace_bytes,
};
static const dcommi_device_calls *const dcommi_devices = &dcommi_cuda_calls;

#else
static const dcommi_device_calls *const dcommi_devices = NULL;
#endif

/* Return the number of the device whose memory it is; -1: host memory. */
static inline int dcommi_device_locate(const void *at)
{
    return dcommi_devices != NULL ? dcommi_devices->locate(at) : -1;
}

/* Wait for what a stream holds, until the time `until` (dcommi_now, s). Return DCOMM_IN_PROGRESS
 * if it is not over then. Call `meanwhile` again and again; NULL: yield the core. */
static dcomm_status dcommi_device_await(int device, void *stream, double until,
                                        void (*meanwhile)(dcomm_context *context),
                                        dcomm_context *context)
{
    void *event = NULL;
    dcomm_status status;
    DCOMMI_TRY(dcommi_devices->stream_mark(device, stream, &event));
    while ((status = dcommi_devices->poll(device, event)) == DCOMM_IN_PROGRESS &&
           dcommi_now() < until) {
        if (meanwhile != NULL) {
            meanwhile(context);
        } else {
            sched_yield();
        }
    }
    dcommi_devices->stream_unmark(device, event);
    return status;
}

#endif
