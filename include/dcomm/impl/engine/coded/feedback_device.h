/* feedback_device.h - error feedback whose residuals lie on a device. They move there with the
 * first all-reduce of device memory, and the codec's kernels read and write them.
 *
 * States outlive communicators and contexts. Their memory is allocated, filled and released in the
 * order of one stream, which the process has for each device. A run's queue begins behind that
 * stream. If a run fails, kernels of it may still be under way, so the stream goes on behind the
 * run's queue. Neither ever waits for a rank. */
#ifndef DCOMMI_FEEDBACK_DEVICE_H
#define DCOMMI_FEEDBACK_DEVICE_H

#include "coded.h"
#include "../../device/cuda.h"

#include <pthread.h>
#include <sched.h>

/* A device's part for states of error feedback, made at the first use and never released. */
typedef struct dcommi_feedback_side {
    dcommi_feedback_place place; /* first */
    struct dcommi_feedback_side *next;
    void *stream;
} dcommi_feedback_side;

static dcommi_feedback_side *dcommi_feedback_side_of(const dcommi_feedback_place *place)
{
    return (dcommi_feedback_side *)place;
}

/* ---- what is asked of it ---- */

static dcomm_status dcommi_feedback_side_make(const dcommi_feedback_place *place, size_t bytes,
                                              void **memory_p)
{
    dcommi_feedback_side *side = dcommi_feedback_side_of(place);
    return dcommi_devices->alloc(place->device, side->stream, bytes, memory_p);
}

static void dcommi_feedback_side_release(const dcommi_feedback_place *place, void *memory)
{
    dcommi_devices->release(place->device, dcommi_feedback_side_of(place)->stream, memory);
}

static dcomm_status dcommi_feedback_side_zero(const dcommi_feedback_place *place, void *memory,
                                              size_t bytes)
{
    return dcommi_devices->zero(place->device, dcommi_feedback_side_of(place)->stream, memory,
                                bytes);
}

static dcomm_status dcommi_feedback_side_copy(const dcommi_feedback_place *place, void *dst,
                                              const void *src, size_t bytes)
{
    return dcommi_devices->copy(place->device, dcommi_feedback_side_of(place)->stream, dst, src,
                                bytes);
}

/* Add factor * y to x, both bf16: widen to `wide` and `more`, add, and round again. */
static dcomm_status dcommi_feedback_side_add_narrow(const dcommi_feedback_place *place, uint16_t *x,
                                                    float factor, const uint16_t *y, size_t count,
                                                    float *wide, float *more)
{
    const int device = place->device;
    void *stream = dcommi_feedback_side_of(place)->stream;
    DCOMMI_TRY(dcommi_devices->feedback(device, stream, DCOMM_CUDA_FEEDBACK_WIDEN, wide, x, 0, NULL,
                                        count, NULL));
    DCOMMI_TRY(dcommi_devices->feedback(device, stream, DCOMM_CUDA_FEEDBACK_WIDEN, more, y, 0, NULL,
                                        count, NULL));
    DCOMMI_TRY(dcommi_devices->add(device, stream, wide, factor, more, count));
    return dcommi_devices->feedback(device, stream, DCOMM_CUDA_FEEDBACK_NARROW, x, wide, 0, NULL,
                                    count, NULL);
}

static dcomm_status dcommi_feedback_side_add(const dcommi_feedback_place *place,
                                             const dcommi_feedback_store *x, size_t first,
                                             float factor, const dcommi_feedback_store *y)
{
    void *at = dcommi_feedback_at(x, x->now, first), *wide = NULL, *more = NULL;
    if (y->count == 0) {
        return DCOMM_OK;
    }
    if (!x->bf16) {
        return dcommi_devices->add(place->device, dcommi_feedback_side_of(place)->stream, at,
                                   factor, y->now, y->count);
    }
    DCOMMI_TRY(dcommi_feedback_side_make(place, y->count * sizeof(float), &wide));
    dcomm_status status = dcommi_feedback_side_make(place, y->count * sizeof(float), &more);
    if (status >= 0) {
        status = dcommi_feedback_side_add_narrow(place, at, factor, y->now, y->count, wide, more);
        dcommi_feedback_side_release(place, more);
    }
    dcommi_feedback_side_release(place, wide);
    return status;
}

static dcomm_status dcommi_feedback_side_read(const dcommi_feedback_place *place, void *to,
                                              const void *from, size_t bytes)
{
    DCOMMI_TRY(dcommi_feedback_side_copy(place, to, from, bytes));
    return dcommi_device_await(place->device, dcommi_feedback_side_of(place)->stream, INFINITY,
                               NULL, NULL);
}

static dcomm_status dcommi_feedback_side_find(int device, const dcommi_feedback_place **place_p)
{
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    static dcommi_feedback_side *sides;
    dcomm_status status = DCOMM_OK;
    pthread_mutex_lock(&lock);
    dcommi_feedback_side *side = sides;
    for (; side != NULL && side->place.device != device; side = side->next) {
    }
    if (side == NULL && (side = dcommi_alloc(sizeof *side)) == NULL) {
        status = DCOMM_ERR_NO_MEMORY;
    } else if (side->stream == NULL) {
        side->place = (dcommi_feedback_place){.device = device,
                                              .make = dcommi_feedback_side_make,
                                              .release = dcommi_feedback_side_release,
                                              .zero = dcommi_feedback_side_zero,
                                              .copy = dcommi_feedback_side_copy,
                                              .add = dcommi_feedback_side_add,
                                              .read = dcommi_feedback_side_read};
        status = dcommi_devices->own_open(device, false, &side->stream);
        if (status < 0) {
            dcommi_free(side);
        } else {
            side->next = sides;
            sides = side;
        }
    }
    pthread_mutex_unlock(&lock);
    *place_p = status < 0 ? NULL : &side->place;
    return status;
}

/* ---- there ---- */

/* Copy the numbers from before the last committed step to a device, for an undo. In host memory, a
 * step that encoded only some elements has kept those alone. */
static dcomm_status dcommi_feedback_store_before(const dcomm_feedback *fb,
                                                 const dcommi_feedback_store *s,
                                                 dcommi_feedback_store *there)
{
    const dcommi_feedback_place *place = there->place;
    const size_t width = dcommi_feedback_width(s);
    if (!fb->now.partly) {
        return dcommi_feedback_side_copy(place, there->next, s->next, s->count * width);
    }
    DCOMMI_TRY(dcommi_feedback_store_ready(there));
    for (size_t i = 0; i < fb->nspans; i++) {
        const dcommi_feedback_span *span = &fb->span[i];
        DCOMMI_TRY(dcommi_feedback_side_copy(
            place, dcommi_feedback_at(there, there->next, span->first),
            dcommi_feedback_at(s, s->next, span->first), span->count * width));
    }
    return DCOMM_OK;
}

/* Copy a store's contents to `place`. */
static dcomm_status dcommi_feedback_store_send(const dcomm_feedback *fb,
                                               const dcommi_feedback_store *s,
                                               const dcommi_feedback_place *place,
                                               dcommi_feedback_store *there)
{
    const size_t bytes = s->count * dcommi_feedback_width(s);
    DCOMMI_TRY(dcommi_feedback_store_there(there, s->count, s->bf16, fb->opts.in_place, place));
    dcomm_status status =
        bytes > 0 ? dcommi_feedback_side_copy(place, there->now, s->now, bytes) : DCOMM_OK;
    if (status >= 0 && fb->last == DCOMMI_FEEDBACK_COMMITTED && there->next != there->now) {
        status = dcommi_feedback_store_before(fb, s, there);
    }
    if (status < 0) {
        dcommi_feedback_store_free(there);
    }
    return status;
}

/* Move residuals to where a call's buffers lie, before the call and in its thread. `device` < 0:
 * host memory. If the residuals lie there already, this waits for nothing. */
static dcomm_status dcommi_feedback_follow(const char *what, dcomm_feedback *fb, int device)
{
    const dcommi_feedback_place *place = fb->worker.place;
    if (device == (place != NULL ? place->device : -1)) {
        return DCOMM_OK;
    }
    DCOMMI_TRY(dcommi_feedback_home(what, fb));
    if (device < 0) {
        return DCOMM_OK;
    }
    if (fb->begun) {
        return dcommi_fail(DCOMM_ERR_INVALID,
                           "%s: opts.feedback is in use by a call in host memory", what);
    }
    dcommi_feedback_store *stores[DCOMMI_FEEDBACK_STORES], moved[DCOMMI_FEEDBACK_STORES];
    dcommi_feedback_stores(fb, stores);
    DCOMMI_TRY(dcommi_feedback_side_find(device, &place));
    for (int k = 0; k < DCOMMI_FEEDBACK_STORES; k++) {
        dcomm_status status = dcommi_feedback_store_send(fb, stores[k], place, &moved[k]);
        if (status < 0) {
            dcommi_feedback_stores_free(moved, k);
            return status;
        }
    }
    dcommi_feedback_stores_replace(stores, moved);
    return DCOMM_OK;
}

/* ---- a run's ---- */

/* Put all later work on the run's queue behind the work that the state has under way. */
static dcomm_status dcommi_feedback_before(const dcomm_feedback *fb, const dcommi_device_handle *d)
{
    return dcommi_devices->own_after(d->number, d->stream[DCOMMI_QUEUE_IN],
                                     dcommi_feedback_side_of(fb->worker.place)->stream);
}

/* Put all later work on the state behind the work that the run's queue has under way. */
static dcomm_status dcommi_feedback_behind(const dcomm_feedback *fb, const dcommi_device_handle *d)
{
    return dcommi_devices->own_after(d->number, dcommi_feedback_side_of(fb->worker.place)->stream,
                                     d->stream[DCOMMI_QUEUE_IN]);
}

#endif
