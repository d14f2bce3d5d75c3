/* device.h - buckets in a device's memory: the places of parameters, and the operations there in
 * place of memcpy. The host touches none of that memory. Each bucket uses a stream of the buckets'
 * own. On it gradients are copied to their places after the work that the caller's streams held
 * when they were marked; then the bucket is summed, and results are copied back. The caller's
 * streams wait for nothing. */
#ifndef DCOMMI_BUCKET_DEVICE_H
#define DCOMMI_BUCKET_DEVICE_H

#include "types.h"
#include "../../engine/coded/device.h"

#include <sched.h>

/* ---- devices ---- */

/* Find where `at` lies, without touching it. *place_p: 0 for the host, else 1 + a number in
 * b->devices, new or known. */
static dcomm_status dcommi_bkt_locate(dcomm_buckets *b, const void *at, size_t *place_p)
{
    int number = dcommi_device_locate(at);
    size_t place = 0;
    if (number >= 0) {
        for (place = 1; place <= b->ndevices && b->devices[place - 1].number != number; place++) {
        }
        if (place > b->ndevices) {
            DCOMMI_TRY(dcommi_grow((void **)&b->devices, &b->devices_capacity, b->ndevices + 1,
                                   sizeof *b->devices));
            b->devices[b->ndevices++] = (dcommi_bkt_device){.number = number};
        }
    }
    *place_p = place;
    return DCOMM_OK;
}

/* Let the context of the buckets' communicator know the devices. */
static dcomm_status dcommi_bkt_introduce_devices(const dcomm_buckets *b)
{
    for (size_t i = 0; i < b->ndevices; i++) {
        dcommi_device *device = NULL;
        DCOMMI_TRY(dcommi_device_of(b->comm->context, b->devices[i].number, &device));
    }
    return b->ndevices > 0 ? dcommi_context_need_thread(b->comm->context) : DCOMM_OK;
}

/* Open the devices, once all parameters are known. All that may wait for a device happens here. */
static dcomm_status dcommi_bkt_open_devices(dcomm_buckets *b)
{
    DCOMMI_TRY(dcommi_bkt_introduce_devices(b));
    for (size_t i = 0; i < b->ndevices; i++) {
        dcommi_bkt_device *d = &b->devices[i];
        for (int s = 0; s < DCOMMI_BKT_STREAMS; s++) {
            DCOMMI_TRY(dcommi_devices->own_open(d->number, true, &d->streams[s]));
        }
        dcommi_device_before before = dcommi_devices->enter(d->number);
        dcomm_status status = dcommi_devices->stream_check("dcomm_buckets_create", d->streams[0]);
        dcommi_devices->leave(before);
        DCOMMI_TRY(status);
    }
    return DCOMM_OK;
}

/* Wait for copies of gradients that stand behind work on the caller's streams. timeout_s is that
 * of the communicator, which is gone. */
static void dcommi_bkt_drain_devices(dcomm_buckets *b, double timeout_s)
{
    double until = dcommi_now() + timeout_s;
    for (size_t i = 0; i < b->ndevices * DCOMMI_BKT_STREAMS; i++) {
        const dcommi_bkt_device *d = &b->devices[i / DCOMMI_BKT_STREAMS];
        void *stream = d->streams[i % DCOMMI_BKT_STREAMS];
        if (stream != NULL) {
            (void)dcommi_device_await(d->number, stream, until, NULL, NULL);
        }
    }
}

static void dcommi_bkt_close_devices(dcomm_buckets *b)
{
    for (size_t i = 0; i < b->ndevices * DCOMMI_BKT_STREAMS; i++) {
        dcommi_bkt_device *d = &b->devices[i / DCOMMI_BKT_STREAMS];
        if (d->streams[i % DCOMMI_BKT_STREAMS] != NULL) {
            dcommi_devices->own_close(d->number, d->streams[i % DCOMMI_BKT_STREAMS]);
        }
    }
    dcommi_free(b->devices);
}

/* ---- checks ---- */

/* Check where a parameter, whose kind is known, and its value lie. */
static dcomm_status dcommi_bkt_check_place(dcomm_buckets *b, const dcomm_buckets_opts *o,
                                           const dcommi_bkt_param *p)
{
    size_t number = (size_t)(p - b->params), place = p->place;
    if (p->value != NULL && o->sharded && p->count > 0) {
        DCOMMI_TRY(dcommi_bkt_locate(b, p->value, &place));
    }
    if (place != p->place) {
        return dcommi_fail(DCOMM_ERR_INVALID,
                           "dcomm_buckets_create: parameter %zu, \"%s\": its gradient and its "
                           "value do not both lie in host memory, or on one device",
                           number, p->name);
    }
    if (place == 0) {
        return DCOMM_OK;
    }
    int device = b->devices[place - 1].number;
    if ((uintptr_t)p->grad % dcomm_dtype_size(p->dtype) != 0 ||
        (o->sharded && (uintptr_t)p->value % dcomm_dtype_size(p->dtype) != 0)) {
        return dcommi_fail(DCOMM_ERR_INVALID,
                           "dcomm_buckets_create: parameter %zu, \"%s\", on device %d is not "
                           "aligned to the %zu bytes of its elements",
                           number, p->name, device, dcomm_dtype_size(p->dtype));
    }
    return DCOMM_OK;
}

/* Wait for what the default streams of the devices hold, before values are read. */
static dcomm_status dcommi_bkt_await_default(const char *what, const dcomm_buckets *b)
{
    for (size_t i = 0; i < b->ndevices; i++) {
        DCOMMI_TRY(
            dcommi_default_await(what, b->comm->context, b->devices[i].number, b->comm->timeout_s));
    }
    return DCOMM_OK;
}

/* Order parameter p's bucket behind what `stream` holds now, as p is marked. If this step does not
 * send, that also holds for a later one. An error leaves the step as it is. */
static dcomm_status dcommi_bkt_follow(const char *what, const dcomm_buckets *b,
                                      const dcommi_bkt_param *p, void *stream)
{
    if (stream == NULL) {
        return p->place == 0
                   ? DCOMM_OK
                   : dcommi_default_await(what, b->comm->context, b->devices[p->place - 1].number,
                                          b->comm->timeout_s);
    }
    if (dcommi_devices == NULL) {
        return dcommi_fail(DCOMM_ERR_UNSUPPORTED,
                           "%s: stream is %p, and the implementation was built without "
                           "DCOMM_WITH_CUDA",
                           what, stream);
    }
    if (p->place == 0) {
        return p->count == 0 ? DCOMM_OK
                             : dcommi_fail(DCOMM_ERR_INVALID,
                                           "%s: stream is %p, and the gradient of parameter %zu, "
                                           "\"%s\", lies in host memory, for which it is NULL",
                                           what, stream, (size_t)(p - b->params), p->name);
    }
    int number = b->devices[p->place - 1].number;
    dcommi_device_before before = dcommi_devices->enter(number);
    dcomm_status status = dcommi_devices->stream_check(what, stream);
    dcommi_devices->leave(before);
    DCOMMI_TRY(status);
    return dcommi_devices->own_after(number, b->layout.buckets[p->bucket].stream, stream);
}

/* ---- operations in a bucket's memory ---- */

/* Copy memory; on a device in the order of the bucket's stream. */
static dcomm_status dcommi_bkt_copy(const dcommi_bkt *k, void *dst, const void *src, size_t len)
{
    if (len > 0 && k->device != NULL) {
        return dcommi_devices->copy(k->device->number, k->stream, dst, src, len);
    }
    if (len > 0) {
        memcpy(dst, src, len);
    }
    return DCOMM_OK;
}

static dcomm_status dcommi_bkt_zero(const dcommi_bkt *k, void *dst, size_t len)
{
    if (len > 0 && k->device != NULL) {
        return dcommi_devices->zero(k->device->number, k->stream, dst, len);
    }
    if (len > 0) {
        memset(dst, 0, len);
    }
    return DCOMM_OK;
}

/* Add the device's number to an error of a device or its kernels. */
static dcomm_status dcommi_bkt_of_device(int number, dcomm_status status)
{
    if (status < 0) {
        char text[DCOMMI_MESSAGE_MAX];
        snprintf(text, sizeof text, "%s", dcommi_message);
        return dcommi_fail(status, "buckets: device %d: %.400s", number, text);
    }
    return status;
}

/* Mark the end of the work on the bucket's stream, for dcommi_bkt_settled. */
static dcomm_status dcommi_bkt_unsettle(dcommi_bkt *k)
{
    return k->device == NULL ? DCOMM_OK
                             : dcommi_devices->stream_mark(k->device->number, k->stream, &k->event);
}

/* Return the status of the marked work; DCOMM_IN_PROGRESS: it is not over. */
static dcomm_status dcommi_bkt_settled(dcommi_bkt *k)
{
    dcomm_status status =
        k->event != NULL ? dcommi_devices->poll(k->device->number, k->event) : DCOMM_OK;
    if (k->event != NULL && status != DCOMM_IN_PROGRESS) {
        dcommi_devices->stream_unmark(k->device->number, k->event);
        k->event = NULL;
        status = dcommi_bkt_of_device(k->device->number, status);
    }
    return status;
}

static dcomm_status dcommi_bkt_settle_all(dcomm_buckets *b, dcommi_bkt *k)
{
    dcomm_status status;
    while ((status = dcommi_bkt_settled(k)) == DCOMM_IN_PROGRESS) {
        dcommi_progress_or_yield(b->comm->context);
    }
    return status;
}

/* Set the options of a bucket's operation. All ranks know that it lies on devices. */
static void dcommi_bkt_on_stream(const dcommi_bkt *k, dcomm_coll_opts *opts)
{
    if (k->device != NULL) {
        opts->device = true;
        opts->stream = k->stream;
    }
}

/* Enter the bucket's device: its stream belongs to that device, not to the caller's current
 * one. */
static dcommi_device_before dcommi_bkt_enter(const dcommi_bkt *k)
{
    return k->device != NULL ? dcommi_devices->enter(k->device->number)
                             : (dcommi_device_before){.context = NULL};
}

static void dcommi_bkt_leave(const dcommi_bkt *k, dcommi_device_before before)
{
    if (k->device != NULL) {
        dcommi_devices->leave(before);
    }
}

#endif
