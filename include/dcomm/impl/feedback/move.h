/* move.h - move residuals: home from a device, and an owner's into its worker's. */
#ifndef DCOMMI_FEEDBACK_MOVE_H
#define DCOMMI_FEEDBACK_MOVE_H

#include "state.h"

static dcomm_status dcommi_feedback_open(const char *what, const dcomm_feedback *fb, bool begun)
{
    if (fb == NULL) {
        return dcommi_fail(DCOMM_ERR_INVALID, "%s: fb is NULL", what);
    }
    if (fb->begun != begun) {
        return dcommi_fail(DCOMM_ERR_INVALID, "%s: %s", what,
                           begun ? "no step was begun" : "a step is under way");
    }
    return DCOMM_OK;
}

/* Check also that the host may change the residuals within a step. */
static dcomm_status dcommi_feedback_here(const char *what, const dcomm_feedback *fb)
{
    DCOMMI_TRY(dcommi_feedback_open(what, fb, true));
    return fb->worker.place == NULL
               ? DCOMM_OK
               : dcommi_fail(DCOMM_ERR_INVALID, "%s: a collective on device %d is using the state",
                             what, fb->worker.place->device);
}

/* ---- home from a device ---- */

static dcomm_status dcommi_feedback_store_read(const dcommi_feedback_store *s, void *to,
                                               const void *from)
{
    const size_t bytes = s->count * dcommi_feedback_width(s);
    if (bytes > 0 && s->place != NULL) {
        return s->place->read(s->place, to, from, bytes);
    }
    if (bytes > 0) {
        memcpy(to, from, bytes);
    }
    return DCOMM_OK;
}

/* Copy a store to host memory, with the state before the last step if that can come back. */
static dcomm_status dcommi_feedback_store_copy(const dcomm_feedback *fb,
                                               const dcommi_feedback_store *s,
                                               dcommi_feedback_store *copy)
{
    DCOMMI_TRY(dcommi_feedback_store_make(copy, s->count, s->bf16, fb->opts.in_place));
    dcomm_status status = dcommi_feedback_store_read(s, copy->now, s->now);
    if (status == DCOMM_OK && fb->last == DCOMMI_FEEDBACK_COMMITTED && copy->next != copy->now) {
        status = dcommi_feedback_store_read(s, copy->next, s->next);
    }
    if (status < 0) {
        dcommi_feedback_store_free(copy);
    }
    return status;
}

static void dcommi_feedback_stores_free(dcommi_feedback_store *stores, int n)
{
    for (int k = 0; k < n; k++) {
        dcommi_feedback_store_free(&stores[k]);
    }
}

static void dcommi_feedback_stores_replace(dcommi_feedback_store **stores,
                                           const dcommi_feedback_store *moved)
{
    for (int k = 0; k < DCOMMI_FEEDBACK_STORES; k++) {
        dcommi_feedback_store_free(stores[k]);
        *stores[k] = moved[k];
    }
}

/* Move residuals to host memory, for the host to change them. Wait for the device, but for nothing
 * that waits for other ranks. */
static dcomm_status dcommi_feedback_home(const char *what, dcomm_feedback *fb)
{
    if (fb == NULL || fb->worker.place == NULL) {
        return DCOMM_OK;
    }
    if (fb->begun) {
        return dcommi_fail(DCOMM_ERR_INVALID, "%s: a collective on device %d is using the state",
                           what, fb->worker.place->device);
    }
    dcommi_feedback_store *stores[DCOMMI_FEEDBACK_STORES], moved[DCOMMI_FEEDBACK_STORES];
    dcommi_feedback_stores(fb, stores);
    for (int k = 0; k < DCOMMI_FEEDBACK_STORES; k++) {
        dcomm_status status = dcommi_feedback_store_copy(fb, stores[k], &moved[k]);
        if (status < 0) {
            dcommi_feedback_stores_free(moved, k);
            return status;
        }
    }
    dcommi_feedback_kept_free(fb);
    dcommi_feedback_stores_replace(stores, moved);
    return DCOMM_OK;
}

/* Make a store of zeros on a device. `next` is not cleared: it is written before it is read. */
static dcomm_status dcommi_feedback_store_there(dcommi_feedback_store *s, size_t count, bool bf16,
                                                bool in_place, const dcommi_feedback_place *place)
{
    *s = (dcommi_feedback_store){.count = count, .bf16 = bf16, .place = place};
    const size_t bytes = count * dcommi_feedback_width(s);
    if (count == 0) {
        return DCOMM_OK;
    }
    dcomm_status status = place->make(place, bytes, &s->now);
    if (status == DCOMM_OK) {
        status = place->zero(place, s->now, bytes);
    }
    s->next = s->now;
    if (status == DCOMM_OK && !in_place) {
        status = place->make(place, bytes, &s->next);
    }
    if (status < 0) {
        s->next = s->now;
        dcommi_feedback_store_free(s);
    }
    return status;
}

/* Copy `now` to `next` on a device, for a step that encodes only some elements: the others stay as
 * they are. */
static dcomm_status dcommi_feedback_store_ready(const dcommi_feedback_store *s)
{
    return s->now == s->next
               ? DCOMM_OK
               : s->place->copy(s->place, s->next, s->now, s->count * dcommi_feedback_width(s));
}

/* ---- an owner's ---- */

/* Return a + b c. The product is exact in f64, so fusing it changes nothing. */
static inline float dcommi_feedback_plus(float a, float b, float c)
{
    return (float)((double)a + (double)b * (double)c);
}

/* Add the owner residual, which is still to be sent, to this rank's worker residual, whoever owns
 * the shard from now on. (EF21: the estimate must not claim what the sum lacks.) */
static dcomm_status dcommi_feedback_fold_owner(dcomm_feedback *fb)
{
    dcommi_feedback_store *w = &fb->worker, *o = &fb->owner;
    double sign = fb->opts.variant == DCOMM_FEEDBACK_EF21 ? -1 : 1;
    float factor = (float)(sign / fb->owner_factor);
    if (o->place != NULL) { /* the step writes the whole of `next` */
        DCOMMI_TRY(o->place->add(o->place, w, fb->own_first, factor, o));
    }
    for (size_t i = 0; o->place == NULL && i < o->count; i++) {
        size_t at = fb->own_first + i;
        float sum = dcommi_feedback_plus(dcommi_feedback_get(w, w->now, at), factor,
                                         dcommi_feedback_get(o, o->now, i));
        sum = dcommi_f32_bounded(sum);
        dcommi_feedback_set(w, w->now, at, sum);
        dcommi_feedback_set(w, w->next, at, sum);
    }
    dcommi_feedback_store_free(o);
    return DCOMM_OK;
}

static dcomm_status dcommi_feedback_own(dcomm_feedback *fb, size_t first, size_t count)
{
    if (first == fb->own_first && count == fb->owner.count) {
        return DCOMM_OK;
    }
    dcommi_feedback_store owner;
    DCOMMI_TRY(fb->worker.place != NULL
                   ? dcommi_feedback_store_there(&owner, count, fb->opts.bf16, fb->opts.in_place,
                                                 fb->worker.place)
                   : dcommi_feedback_store_make(&owner, count, fb->opts.bf16, fb->opts.in_place));
    dcomm_status status = dcommi_feedback_fold_owner(fb);
    if (status < 0) {
        dcommi_feedback_store_free(&owner);
        return status;
    }
    fb->owner = owner;
    fb->own_first = first;
    return DCOMM_OK;
}

static inline void dcommi_feedback_store_level(dcommi_feedback_store *s)
{
    if (s->now != s->next) {
        memcpy(s->next, s->now, s->count * dcommi_feedback_width(s));
    }
}

/* Copy what the worker keeps now to what it keeps after the step. */
static void dcommi_feedback_level(dcomm_feedback *fb)
{
    dcommi_feedback_store_level(&fb->worker);
    dcommi_feedback_store_level(&fb->velocity);
    dcommi_feedback_store_level(&fb->estimate);
}

#endif
