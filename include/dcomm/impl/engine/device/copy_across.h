/* copy_across.h - copies between host memory and the run's device, through pinned slots: received
 * payloads, and copies of plans whose scratch is host memory. */
#ifndef DCOMMI_COPY_ACROSS_H
#define DCOMMI_COPY_ACROSS_H

#include "jobs.h"

/* Called after a copy. `good`: the data are there, and the run goes on. */
typedef void (*dcommi_across_fn)(void *user, bool good);

/* A copy under way. Its run stays until the copy has ended. */
typedef struct dcommi_across {
    dcommi_run *run;
    dcommi_lane *lane; /* the lane that goes on after it, if `then` is NULL */
    dcommi_across_fn then;
    void *user;
    /* Bring a part into a slot, in place of src. DCOMM_ERR_UNSUPPORTED: it must come another
     * way. */
    dcomm_status (*load)(void *user, uint8_t *to, size_t at, size_t n);
    dcomm_status (*behind)(void *user, size_t at, size_t n); /* queues work behind each part */
    enum dcommi_queue queue;                                 /* OUT: from the device */
    uint8_t *dst;
    const uint8_t *src;
    size_t len, at;       /* at: bytes that have got a slot */
    unsigned outstanding; /* slots asked for or in use */
    bool async, asking, failed, declined;
} dcommi_across;

/* Return where a part begins; *n: its bytes. */
static size_t dcommi_across_part(const dcommi_across *a, unsigned part, size_t *n)
{
    size_t at = part * DCOMMI_SLOT_BYTES;
    *n = a->len - at < DCOMMI_SLOT_BYTES ? a->len - at : DCOMMI_SLOT_BYTES;
    return at;
}

static void dcommi_across_end(dcommi_across *a)
{
    dcommi_run *run = a->run;
    const bool good = run->active && !a->failed;
    if (a->then != NULL) {
        a->then(a->user, good);
    } else if (good) {
        dcommi_run_event(run);
        dcommi_lane_moved(a->lane, a->async);
    }
    dcommi_free(a);
    dcommi_run_let_go(run);
}

static void dcommi_across_failed(dcommi_across *a, dcomm_status status)
{
    a->failed = true;
    if (a->run->active && !a->declined) {
        dcommi_device_failed(a->run, status);
    }
}

static void dcommi_across_next(dcommi_across *a);

static void dcommi_across_copied(dcommi_job *job, dcomm_status status)
{
    dcommi_slot *slot = (dcommi_slot *)job;
    dcommi_across *a = slot->user;
    size_t n, at = dcommi_across_part(a, slot->block, &n);
    a->failed = a->failed || status < 0;
    if (a->queue == DCOMMI_QUEUE_OUT && !a->failed && a->run->active) {
        memcpy(a->dst + at, slot->memory, n);
    }
    dcommi_slot_give(slot, a->queue); /* may serve this copy, which is not over yet */
    a->outstanding--;
    dcommi_across_next(a);
}

static dcomm_status dcommi_across_put(dcommi_across *a, dcommi_slot *slot, size_t at, size_t n)
{
    dcommi_device_handle *d = &slot->device->handle;
    if (a->queue == DCOMMI_QUEUE_OUT) {
        DCOMMI_TRY(dcommi_device_copy(d, a->queue, slot->memory, a->src + at, n));
    } else {
        if (a->load != NULL) {
            dcomm_status status = a->load(a->user, slot->memory, at, n);
            a->declined = status == DCOMM_ERR_UNSUPPORTED;
            DCOMMI_TRY(status);
        } else {
            memcpy(slot->memory, a->src + at, n);
        }
        DCOMMI_TRY(dcommi_device_copy(d, a->queue, a->dst + at, slot->memory, n));
    }
    if (a->behind != NULL) {
        DCOMMI_TRY(a->behind(a->user, at, n));
    }
    return dcommi_job_start(slot->device, a->queue, &slot->job, a->run, dcommi_across_copied);
}

static void dcommi_across_go(dcommi_slot *slot, void *user)
{
    dcommi_across *a = user;
    dcomm_status status = DCOMM_ERR_ABORTED;
    size_t n;
    a->asking = false;
    slot->user = a;
    slot->block = (unsigned)(a->at / DCOMMI_SLOT_BYTES);
    size_t at = dcommi_across_part(a, slot->block, &n);
    if (a->run->active && !a->failed) {
        status = dcommi_across_put(a, slot, at, n);
    }
    if (status >= 0) {
        a->at += n;
    } else {
        dcommi_across_failed(a, status);
        a->outstanding--;
        dcommi_slot_give(slot, a->queue);
    }
    dcommi_across_next(a);
}

/* Ask for one more slot, or end. */
static void dcommi_across_next(dcommi_across *a)
{
    bool more = a->at < a->len && !a->failed && a->run->active;
    if (more && a->asking) {
        return;
    }
    if (more) {
        a->asking = true;
        a->outstanding++;
        if (dcommi_slot_ask(a->run->device, a->queue, dcommi_across_go, a) >= 0) {
            return;
        }
        a->outstanding--;
        dcommi_across_failed(a, DCOMM_ERR_NO_MEMORY);
    }
    if (a->outstanding == 0) {
        dcommi_across_end(a);
    }
}

/* Start dst <- src, one of which is device memory, as `queue` says. */
static dcomm_status dcommi_across_start(const dcommi_across *copy)
{
    dcommi_across *a = dcommi_alloc(sizeof *a);
    if (a == NULL) {
        return DCOMM_ERR_NO_MEMORY;
    }
    *a = *copy;
    dcommi_run_keep(a->run);
    dcommi_across_next(a);
    return DCOMM_OK;
}

#endif
