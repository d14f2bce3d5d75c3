/* verdict_device.h - time a codec's kernels on a device, on a stream of their own, including their
 * launch and the wait for their end. */
#ifndef DCOMMI_VERDICT_DEVICE_H
#define DCOMMI_VERDICT_DEVICE_H

#include "call.h"

/* A codec's times, and the arrays on which they were taken. */
typedef struct dcommi_verdict_work {
    size_t count, capacity, bytes;
    float *x, *y;
    void *wire, *workspace;
    double encode, decode; /* seconds for `count` elements */
} dcommi_verdict_work;

#define DCOMMI_VERDICT_TIMES 3

typedef struct dcommi_verdict_there {
    int device;
    void *stream;
    float *x, *y;
    void *wire;
    dcomm_cuda_report *report;
} dcommi_verdict_there;

/* Wait for the end of all work on the stream. */
static dcomm_status dcommi_verdict_wait(const dcommi_verdict_there *t)
{
    return dcommi_device_await(t->device, t->stream, INFINITY, NULL, NULL);
}

static dcomm_status dcommi_verdict_launch(dcommi_verdict_there *t, const dcommi_device_code *code,
                                          double *seconds)
{
    const size_t need = dcommi_devices->code_bytes(code);
    void *workspace = NULL;
    if (need > 0) {
        DCOMMI_TRY(dcommi_devices->alloc(t->device, t->stream, need, &workspace));
    }
    dcomm_status status = dcommi_verdict_wait(t);
    const double start = dcommi_now();
    if (status >= 0) {
        status = dcommi_devices->own_code(t->device, t->stream, code, workspace);
    }
    status = status < 0 ? status : dcommi_verdict_wait(t);
    *seconds = dcommi_now() - start;
    dcommi_devices->release(t->device, t->stream, workspace);
    return status;
}

/* Time one encoding, and one decoding that adds to an array. */
static dcomm_status dcommi_verdict_turn(const dcomm_codec *codec, dcommi_verdict_there *t,
                                        dcommi_verdict_work *w, double *encode, double *decode)
{
    const int device = t->device;
    const void *src = t->x, *wire = t->wire;
    dcomm_cuda_report found;
    dcomm_codec_report report;
    dcommi_device_code code = {.kind = DCOMM_STEP_ENCODE,
                               .codec = codec,
                               .factor = 1,
                               .count = w->count,
                               .src = &src,
                               .n = 1,
                               .dst = t->wire,
                               .dst_len = w->capacity,
                               .report = t->report};
    DCOMMI_TRY(dcommi_devices->zero(device, t->stream, t->report, sizeof found));
    DCOMMI_TRY(dcommi_verdict_launch(t, &code, encode));
    DCOMMI_TRY(dcommi_devices->copy(device, t->stream, &found, t->report, sizeof found));
    DCOMMI_TRY(dcommi_verdict_wait(t));
    DCOMMI_TRY(dcomm_cuda_report_check(codec, w->count, &found, &report));
    w->bytes = report.bytes;
    code.kind = DCOMM_STEP_DECODE;
    code.adds = true;
    code.src = &wire;
    code.len = &w->bytes;
    code.dst = t->y;
    code.dst_len = w->count * sizeof(float);
    return dcommi_verdict_launch(t, &code, decode);
}

static dcomm_status dcommi_verdict_turns(const dcomm_codec *codec, dcommi_verdict_there *t,
                                         dcommi_verdict_work *w)
{
    const int device = t->device;
    const size_t bytes = w->count * sizeof(float);
    DCOMMI_TRY(dcommi_devices->alloc(t->device, t->stream, bytes, (void **)&t->x));
    DCOMMI_TRY(dcommi_devices->alloc(t->device, t->stream, bytes, (void **)&t->y));
    DCOMMI_TRY(dcommi_devices->alloc(t->device, t->stream, w->capacity + 1, &t->wire));
    DCOMMI_TRY(dcommi_devices->alloc(t->device, t->stream, sizeof *t->report, (void **)&t->report));
    DCOMMI_TRY(dcommi_devices->copy(device, t->stream, t->x, w->x, bytes));
    DCOMMI_TRY(dcommi_devices->zero(device, t->stream, t->y, bytes));
    for (int i = 0; i < DCOMMI_VERDICT_TIMES; i++) {
        double encode = 0, decode = 0;
        DCOMMI_TRY(dcommi_verdict_turn(codec, t, w, &encode, &decode));
        w->encode = i == 0 || encode < w->encode ? encode : w->encode;
        w->decode = i == 0 || decode < w->decode ? decode : w->decode;
    }
    return DCOMM_OK;
}

/* Time a codec on w->x, on a device. */
static dcomm_status dcommi_verdict_time_there(const dcomm_codec *codec, int device,
                                              dcommi_verdict_work *w)
{
    dcommi_verdict_there t = {.device = device};
    DCOMMI_TRY(dcommi_devices->own_open(device, false, &t.stream));
    dcomm_status status = dcommi_verdict_turns(codec, &t, w);
    void *const rooms[] = {t.x, t.y, t.wire, t.report};
    for (size_t i = 0; i < sizeof rooms / sizeof *rooms; i++) {
        dcommi_devices->release(device, t.stream, rooms[i]);
    }
    dcommi_devices->own_close(device, t.stream);
    return status;
}

#endif
