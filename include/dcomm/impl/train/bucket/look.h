/* look.h - look for non-finite gradients on a device, for a scaler (scaler.h). Kernels do so on
 * the stream of the bucket. Their results lie in pinned memory, and are read when the stream has
 * come that far. */
#ifndef DCOMMI_BUCKET_LOOK_H
#define DCOMMI_BUCKET_LOOK_H

#include "device.h"

enum { DCOMMI_BKT_LOOK_ALIGN = 64 };

/* Return true if kernels look at a parameter. Integers are finite, and a parameter without
 * elements has nothing to look at. */
static inline bool dcommi_bkt_sees(const dcommi_bkt_param *p)
{
    return p->place > 0 && p->count > 0 && p->dtype <= DCOMM_BF16 && !p->aside;
}

static size_t dcommi_bkt_look_bytes(const dcommi_bkt_param *p)
{
    size_t bytes = dcommi_devices->look_bytes(p->count);
    return (bytes + DCOMMI_BKT_LOOK_ALIGN - 1) / DCOMMI_BKT_LOOK_ALIGN * DCOMMI_BKT_LOOK_ALIGN;
}

/* Allocate the memory of the kernels that look at parameters of device number `place - 1`. The
 * kernels run on all its streams, so all streams wait for stream 0, in whose order the memory is
 * allocated. */
static dcomm_status dcommi_bkt_open_looks_of(dcomm_buckets *b, size_t place)
{
    dcommi_bkt_device *d = &b->devices[place - 1];
    size_t bytes = 0, at = 0;
    void *memory = NULL;
    for (size_t i = 0; i < b->nparams; i++) {
        if (b->params[i].place == place && dcommi_bkt_sees(&b->params[i])) {
            bytes += dcommi_bkt_look_bytes(&b->params[i]);
        }
    }
    if (bytes == 0) {
        return DCOMM_OK;
    }
    DCOMMI_TRY(dcommi_devices->alloc(d->number, d->streams[0], bytes, &memory));
    dcomm_status status = DCOMM_OK;
    for (int s = 1; s < DCOMMI_BKT_STREAMS && status >= 0; s++) {
        status = dcommi_devices->own_after(d->number, d->streams[s], d->streams[0]);
    }
    if (status < 0) {
        dcommi_devices->release(d->number, d->streams[0], memory);
        return status;
    }
    d->looks = memory;
    for (size_t i = 0; i < b->nparams; i++) {
        dcommi_bkt_param *p = &b->params[i];
        if (p->place == place && dcommi_bkt_sees(p)) {
            p->look = d->looks + at;
            at += dcommi_bkt_look_bytes(p);
        }
    }
    return DCOMM_OK;
}

/* Allocate what the kernels need, for as long as the buckets live. */
static dcomm_status dcommi_bkt_open_looks(dcomm_buckets *b)
{
    void *memory = NULL;
    if (b->ndevices == 0 || b->seen_there != NULL) {
        return DCOMM_OK;
    }
    DCOMMI_TRY(
        dcommi_devices->pin(b->devices[0].number, b->nparams * sizeof *b->seen_there, &memory));
    b->seen_there = memory;
    for (size_t i = 0; i < b->nparams; i++) {
        b->seen_there[i] = (dcomm_cuda_sight){.index = UINT64_MAX};
    }
    dcomm_status status = DCOMM_OK;
    for (size_t i = 0; i < b->ndevices && status >= 0; i++) {
        status = b->devices[i].looks == NULL ? dcommi_bkt_open_looks_of(b, 1 + i) : DCOMM_OK;
    }
    if (status < 0) { /* a later scaler tries again */
        dcommi_devices->unpin(memory);
        b->seen_there = NULL;
    }
    return status;
}

/* Free the kernels' memory. The streams were waited for, so no kernel runs any more. */
static void dcommi_bkt_close_looks(dcomm_buckets *b)
{
    for (size_t i = 0; i < b->ndevices; i++) {
        const dcommi_bkt_device *d = &b->devices[i];
        if (d->looks != NULL) {
            dcommi_devices->release(d->number, d->streams[0], d->looks);
        }
    }
    if (b->seen_there != NULL) {
        dcommi_devices->unpin(b->seen_there);
    }
}

/* Look at `count` elements at x, of parameter p, and multiply them by `factor`. drop: set them to
 * 0 if one is not finite. */
static dcomm_status dcommi_bkt_look_there(const dcomm_buckets *b, const dcommi_bkt_param *p,
                                          void *x, size_t count, double factor, bool drop)
{
    const dcommi_bkt *k = &b->layout.buckets[p->bucket];
    return dcommi_bkt_of_device(k->device->number,
                                dcommi_devices->look(k->device->number, k->stream, x, count,
                                                     p->dtype, factor, drop,
                                                     &b->seen_there[p - b->params], p->look));
}

/* Return true if all work on devices for the buckets is over. The caller holds b->lock. */
static bool dcommi_bkt_looked(const dcomm_buckets *b)
{
    for (size_t i = 0; i < b->layout.n && b->ndevices > 0; i++) {
        const dcommi_bkt *k = &b->layout.buckets[i];
        if (k->device != NULL && !atomic_load_explicit(&k->finished, memory_order_acquire)) {
            return false;
        }
    }
    return true;
}

/* Wait for all work on the devices' streams, which comes after the results of a step. */
static dcomm_status dcommi_bkt_await_streams(dcomm_buckets *b)
{
    double until = dcommi_now() + b->comm->timeout_s;
    for (size_t i = 0; i < b->ndevices * DCOMMI_BKT_STREAMS; i++) {
        const dcommi_bkt_device *d = &b->devices[i / DCOMMI_BKT_STREAMS];
        dcomm_status status =
            dcommi_device_await(d->number, d->streams[i % DCOMMI_BKT_STREAMS], until,
                                dcommi_progress_or_yield, b->comm->context);
        if (status == DCOMM_IN_PROGRESS) {
            status = dcommi_fail(DCOMM_ERR_TIMEOUT, "its work has not ended within %g s",
                                 b->comm->timeout_s);
        }
        DCOMMI_TRY(dcommi_bkt_of_device(d->number, status));
    }
    return DCOMM_OK;
}

#endif
