/* feedback_device.h - error feedback whose residuals lie on a device: they move there with the
 * first all-reduce of device memory, and the codec's kernels read and write them.
 *
 * States outlive communicators, and contexts with their queues and pools. So the memory is the
 * device's usual pool's, and is taken, filled and given back in the order of one stream of the
 * process for each device. A run's queue begins behind that stream, and the stream goes on behind a
 * run that failed, of which kernels may still be under way. Neither ever waits for a rank. */
#ifndef DCOMMI_FEEDBACK_DEVICE_H
#define DCOMMI_FEEDBACK_DEVICE_H

#include "coded.h"
#include "device_cuda.h"

#include <pthread.h>
#include <sched.h>

/* What states of error feedback have of a device, made at the first use and never given back. */
typedef struct dcommi_feedback_side {
    dcommi_feedback_place place; /* first */
    struct dcommi_feedback_side *next;
    dcommi_device_handle handle; /* without queues and pool */
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
    return dcommi_devices->own_alloc(&side->handle, side->stream, bytes, memory_p);
}

static void dcommi_feedback_side_release(const dcommi_feedback_place *place, void *memory)
{
    dcommi_devices->own_release(place->device, dcommi_feedback_side_of(place)->stream, memory);
}

static dcomm_status dcommi_feedback_side_zero(const dcommi_feedback_place *place, void *memory,
                                              size_t bytes)
{
    return dcommi_devices->own_zero(place->device, dcommi_feedback_side_of(place)->stream, memory,
                                    bytes);
}

static dcomm_status dcommi_feedback_side_copy(const dcommi_feedback_place *place, void *dst,
                                              const void *src, size_t bytes)
{
    return dcommi_devices->own_copy(place->device, dcommi_feedback_side_of(place)->stream, dst, src,
                                    bytes);
}

static dcomm_status dcommi_feedback_side_add(const dcommi_feedback_place *place, float *x,
                                             float factor, const float *y, size_t count)
{
    return dcommi_devices->own_add(place->device, dcommi_feedback_side_of(place)->stream, x, factor,
                                   y, count);
}

static dcomm_status dcommi_feedback_side_read(const dcommi_feedback_place *place, void *to,
                                              const void *from, size_t bytes)
{
    void *event = NULL;
    DCOMMI_TRY(dcommi_feedback_side_copy(place, to, from, bytes));
    DCOMMI_TRY(
        dcommi_devices->stream_mark(place->device, dcommi_feedback_side_of(place)->stream, &event));
    dcomm_status status;
    while ((status = dcommi_devices->poll(event)) == DCOMM_IN_PROGRESS) {
        sched_yield();
    }
    dcommi_devices->stream_unmark(event);
    return status;
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
        side->handle.call = dcommi_devices;
        side->handle.number = device;
        status = dcommi_devices->own_open(device, &side->stream);
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

/* What there was before the step that was committed last, for an undo. In host memory, that of a
 * step that encoded only some elements is there for those alone. */
static dcomm_status dcommi_feedback_store_before(const dcomm_feedback *fb,
                                                 const dcommi_feedback_store *s,
                                                 dcommi_feedback_store *there)
{
    const dcommi_feedback_place *place = there->place;
    if (!fb->now.partly) {
        return dcommi_feedback_side_copy(place, there->next, s->next, s->count * sizeof(float));
    }
    DCOMMI_TRY(dcommi_feedback_store_ready(there));
    for (size_t i = 0; i < fb->nspans; i++) {
        const dcommi_feedback_span *span = &fb->span[i];
        DCOMMI_TRY(dcommi_feedback_side_copy(place, (float *)there->next + span->first,
                                             (const float *)s->next + span->first,
                                             span->count * sizeof(float)));
    }
    return DCOMM_OK;
}

/* A store's contents, there. */
static dcomm_status dcommi_feedback_store_send(const dcomm_feedback *fb,
                                               const dcommi_feedback_store *s,
                                               const dcommi_feedback_place *place,
                                               dcommi_feedback_store *there)
{
    const size_t bytes = s->count * sizeof(float);
    DCOMMI_TRY(dcommi_feedback_store_there(there, s->count, fb->opts.in_place, place));
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

/* Before a call, by the thread that calls: residuals lie where its buffers do. On a device that is
 * not left, this waits for nothing. device < 0: host memory. */
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
    dcommi_feedback_store worker, owner;
    DCOMMI_TRY(dcommi_feedback_side_find(device, &place));
    DCOMMI_TRY(dcommi_feedback_store_send(fb, &fb->worker, place, &worker));
    dcomm_status status = dcommi_feedback_store_send(fb, &fb->owner, place, &owner);
    if (status < 0) {
        dcommi_feedback_store_free(&worker);
        return status;
    }
    dcommi_feedback_store_free(&fb->worker);
    dcommi_feedback_store_free(&fb->owner);
    fb->worker = worker;
    fb->owner = owner;
    return DCOMM_OK;
}

/* ---- a run's ---- */

/* What is put on the run's queue from now on is behind what was asked of the state so far. */
static dcomm_status dcommi_feedback_before(const dcomm_feedback *fb, const dcommi_device_handle *d)
{
    return dcommi_devices->own_after(d->number, d->stream[DCOMMI_QUEUE_IN],
                                     dcommi_feedback_side_of(fb->worker.place)->stream);
}

/* And the other way round. */
static dcomm_status dcommi_feedback_behind(const dcomm_feedback *fb, const dcommi_device_handle *d)
{
    return dcommi_devices->own_after(d->number, dcommi_feedback_side_of(fb->worker.place)->stream,
                                     d->stream[DCOMMI_QUEUE_IN]);
}

/* A sparse codec's workspace for a range, whose contents make its next call faster. */
static dcomm_status dcommi_feedback_keep_room(dcomm_feedback *fb, const dcommi_device_handle *d,
                                              size_t first, bool owner, dcommi_device_code *code)
{
    const dcommi_feedback_place *place = fb->worker.place;
    dcomm_codec_layout dense;
    size_t need = dcomm_codec_get_layout(code->codec, &dense) < 0 ? d->call->code_bytes(code) : 0;
    dcommi_feedback_kept *kept = fb->kept;
    if (need == 0) {
        return DCOMM_OK;
    }
    while (kept != NULL && (kept->first != first || kept->owner != owner)) {
        kept = kept->next;
    }
    if (kept == NULL) {
        kept = dcommi_alloc(sizeof *kept);
        if (kept == NULL) {
            return DCOMM_ERR_NO_MEMORY;
        }
        *kept = (dcommi_feedback_kept){.next = fb->kept, .first = first, .owner = owner};
        fb->kept = kept;
    }
    if (kept->bytes < need) {
        void *memory = NULL;
        DCOMMI_TRY(dcommi_feedback_side_make(place, need, &memory));
        if (kept->memory != NULL) {
            (void)dcommi_feedback_behind(fb, d);
            dcommi_feedback_side_release(place, kept->memory);
        }
        kept->memory = memory;
        kept->bytes = need;
        DCOMMI_TRY(dcommi_feedback_before(fb, d));
    }
    code->workspace = kept->memory;
    return DCOMM_OK;
}

/* What an encoding, or a recoding that has an owner's residual, reads and writes of the state. */
static dcomm_status dcommi_feedback_arrays(dcomm_feedback *fb, const dcommi_device_handle *d,
                                           const dcomm_codec_place *place, dcommi_device_code *code)
{
    const size_t first = (size_t)place->first, count = code->count;
    const bool owner = code->kind == DCOMM_STEP_RECODE;
    dcommi_feedback_store *s = owner ? &fb->owner : &fb->worker;
    if (owner) {
        DCOMMI_TRY(dcommi_feedback_range("a recoding", first, count, fb->own_first, fb->owner.count,
                                         fb->owned));
        fb->next_factor = (double)code->factor;
        fb->owned += count;
    } else {
        DCOMMI_TRY(dcommi_feedback_encode_range(fb, first, count));
        fb->encoded += count;
    }
    const size_t at = owner ? first - fb->own_first : first;
    code->residual = (const float *)s->now + at;
    code->next = (float *)s->next + at;
    code->key = dcommi_feedback_key(fb, first, owner ? DCOMMI_FEEDBACK_OWNER : 0);
    return dcommi_feedback_keep_room(fb, d, first, owner, code);
}

/* Before a step of the codec's. *raised_p: an owner without a residual of its own raises the
 * worker's here. */
static dcomm_status dcommi_feedback_step(dcommi_coded *c, const dcomm_codec_place *place,
                                         dcommi_device_code *code, float **raised_p)
{
    dcomm_feedback *fb = c->feedback;
    *raised_p = NULL;
    if (code->kind != DCOMM_STEP_ENCODE && code->kind != DCOMM_STEP_RECODE) {
        return DCOMM_OK;
    }
    if (!c->begun) {
        DCOMMI_TRY(dcommi_coded_begin_feedback(c, code->src[0], place->first));
        DCOMMI_TRY(dcommi_feedback_before(fb, c->device));
    }
    if (code->kind == DCOMM_STEP_RECODE && c->begins.partly) {
        DCOMMI_TRY(dcommi_feedback_range("a recoding", (size_t)place->first, code->count, 0,
                                         fb->count, 0));
        code->key = dcommi_feedback_key(fb, (size_t)place->first, DCOMMI_FEEDBACK_OWNER);
        *raised_p = (float *)fb->worker.next + place->first;
        return DCOMM_OK;
    }
    return dcommi_feedback_arrays(fb, c->device, place, code);
}

/* A recoding whose residual is 0 before it, and after it goes into the worker's. *before, *after
 * (NULL: not wanted): ledgers on the device, of squares of that. */
static dcomm_status dcommi_feedback_raise_there(dcommi_device_handle *d, dcommi_device_code *code,
                                                float *raised, uint32_t divisor,
                                                dcomm_cuda_ledger *before, dcomm_cuda_ledger *after)
{
    const size_t count = code->count, bytes = count * sizeof(float);
    void *queue = d->stream[DCOMMI_QUEUE_IN], *zeros = NULL, *lost = NULL;
    if (count == 0) {
        return d->call->code(d, code);
    }
    dcomm_status status = d->call->alloc(d, bytes, &zeros);
    status = status < 0 ? status : d->call->alloc(d, bytes, &lost);
    status = status < 0 ? status : d->call->own_zero(d->number, queue, zeros, bytes);
    if (status >= 0) {
        code->residual = zeros;
        code->next = lost;
        status = d->call->code(d, code);
    }
    if (status >= 0 && before != NULL) {
        status = d->call->compare(d, before, raised, raised, NULL, count);
    }
    if (status >= 0) {
        status = d->call->own_add(d->number, queue, raised, (float)divisor, lost, count);
    }
    if (status >= 0 && after != NULL) {
        status = d->call->compare(d, after, raised, raised, NULL, count);
    }
    d->call->release(d, zeros);
    d->call->release(d, lost);
    return status;
}

#endif
