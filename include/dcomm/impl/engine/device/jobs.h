/* jobs.h - work under way on a device. A job is work that was put on a queue; each pass of
 * progress polls for its end. Pinned memory carries bytes between device and network. No thread
 * waits for a device with the token. A job keeps its run alive, and the communicator from being
 * closed. */
#ifndef DCOMMI_JOBS_H
#define DCOMMI_JOBS_H

#include "../../device/cuda.h"
#include "../region.h"

/* Pinned memory of a context on a device: so many slots for each direction. A slot is the most
 * that goes over the bus at a time: long enough for the bus's rate. There are several, so that bus
 * and network both work. */
#ifndef DCOMMI_SLOT_BYTES
#define DCOMMI_SLOT_BYTES ((size_t)512 << 10)
#endif
#ifndef DCOMMI_SLOTS
#define DCOMMI_SLOTS 16
#endif

typedef struct dcommi_job {
    struct dcommi_job *next; /* in its queue */
    dcommi_run *run;
    uint32_t mark;
    void (*done)(struct dcommi_job *job, dcomm_status status); /* called from progress, once */
} dcommi_job;

typedef struct dcommi_slot {
    dcommi_job job; /* first */
    struct dcommi_slot *next;
    uint8_t *memory;
    dcommi_device *device;
    void *user;
    unsigned block;
} dcommi_slot;

/* A request that waits for a slot. */
typedef void (*dcommi_slot_fn)(dcommi_slot *slot, void *user);
typedef struct dcommi_slot_wait {
    struct dcommi_slot_wait *next;
    dcommi_slot_fn go;
    void *user;
} dcommi_slot_wait;

struct dcommi_device {
    dcommi_device_handle handle;
    dcommi_device *next; /* in the context */
    bool broken;         /* it has failed, and does no more work */
    struct dcommi_device_side {
        dcommi_job *first, *last;
        dcommi_slot slots[DCOMMI_SLOTS];
        dcommi_slot *free;
        dcommi_slot_wait *waits, *last_wait;
        bool giving;
        void *pinned;
        uint64_t started, ended; /* number of jobs */
    } side[DCOMMI_QUEUES];
};

/* ---- jobs ---- */

/* Keep a run until something comes back to it. Its communicator is not closed meanwhile. */
static void dcommi_run_keep(dcommi_run *run)
{
    run->comm->in_transport++;
    atomic_fetch_add_explicit(&run->refs, 1, memory_order_relaxed);
}

static void dcommi_run_let_go(dcommi_run *run)
{
    run->comm->in_transport--;
    dcommi_run_unref(run);
}

/* Make a job of what was just put on a queue. After an error there is no job. */
static dcomm_status dcommi_job_start(dcommi_device *device, enum dcommi_queue queue,
                                     dcommi_job *job, dcommi_run *run,
                                     void (*done)(dcommi_job *, dcomm_status))
{
    struct dcommi_device_side *side = &device->side[queue];
    DCOMMI_TRY(dcommi_device_mark(&device->handle, queue, &job->mark));
    job->run = run;
    job->done = done;
    job->next = NULL;
    *(side->last != NULL ? &side->last->next : &side->first) = job;
    side->last = job;
    side->started++;
    run->jobs++;
    dcommi_run_keep(run);
    return DCOMM_OK;
}

/* Fail a run after an error of its device, with the last error's message. */
static void dcommi_device_failed(dcommi_run *run, dcomm_status status)
{
    dcommi_poison(run->comm, status, "%s #%" PRIu64 ", rank %d, device %d: %.300s",
                  dcomm_coll_name((dcomm_coll)run->signature.coll), run->seq, run->comm->rank,
                  run->device->handle.number, dcommi_message);
}

/* End the oldest job of a queue. */
static void dcommi_job_end(struct dcommi_device_side *side, dcomm_status status)
{
    dcommi_job *job = side->first;
    dcommi_run *run = job->run;
    side->first = job->next;
    if (side->first == NULL) {
        side->last = NULL;
    }
    side->ended++;
    if (status < 0 && run->active) {
        dcommi_device_failed(run, status);
    }
    job->done(job, status);
    if (--run->jobs == 0 && !run->active) {
        dcommi_run_off_device(run);
    }
    dcommi_run_let_go(run);
}

static unsigned dcommi_devices_progress(dcomm_context *context)
{
    unsigned n = 0;
    dcommi_device *device = atomic_load_explicit(&context->devices, memory_order_acquire);
    for (; device != NULL; device = device->next) {
        for (int q = 0; q < DCOMMI_QUEUES; q++) {
            struct dcommi_device_side *side = &device->side[q];
            while (side->first != NULL &&
                   dcommi_word_reached(device->handle.word[q], side->first->mark)) {
                dcommi_job_end(side, DCOMM_OK);
                n++;
            }
        }
    }
    return n;
}

/* End the jobs of devices that have failed. Their words are not written any more. */
static void dcommi_devices_look(dcomm_context *context)
{
    dcommi_device *device = atomic_load_explicit(&context->devices, memory_order_acquire);
    for (; device != NULL; device = device->next) {
        char why[DCOMMI_MESSAGE_MAX];
        dcomm_status status = DCOMM_OK;
        for (int q = 0; q < DCOMMI_QUEUES; q++) {
            if (device->side[q].first != NULL && status >= 0) {
                status = device->handle.call->health(device->handle.number);
                memcpy(why, dcommi_message, sizeof why);
            }
        }
        device->broken = device->broken || status < 0;
        for (int q = 0; q < DCOMMI_QUEUES && status < 0; q++) {
            while (device->side[q].first != NULL) {
                memcpy(dcommi_message, why, sizeof why);
                dcommi_job_end(&device->side[q], status);
            }
        }
    }
}

/* ---- slots ---- */

static void dcommi_slot_serve(struct dcommi_device_side *side)
{
    if (side->giving) {
        return; /* called by `go` below: that loop serves the rest */
    }
    side->giving = true;
    while (side->free != NULL && side->waits != NULL) {
        dcommi_slot *slot = side->free;
        dcommi_slot_wait *wait = side->waits;
        side->free = slot->next;
        side->waits = wait->next;
        if (side->waits == NULL) {
            side->last_wait = NULL;
        }
        wait->go(slot, wait->user);
        dcommi_free(wait);
    }
    side->giving = false;
}

/* Call `go` with a slot: at once, or when one is free. */
static dcomm_status dcommi_slot_ask(dcommi_device *device, enum dcommi_queue queue,
                                    dcommi_slot_fn go, void *user)
{
    struct dcommi_device_side *side = &device->side[queue];
    dcommi_slot_wait *wait = dcommi_alloc(sizeof *wait);
    if (wait == NULL) {
        return DCOMM_ERR_NO_MEMORY;
    }
    wait->go = go;
    wait->user = user;
    *(side->last_wait != NULL ? &side->last_wait->next : &side->waits) = wait;
    side->last_wait = wait;
    dcommi_slot_serve(side);
    return DCOMM_OK;
}

static void dcommi_slot_give(dcommi_slot *slot, enum dcommi_queue queue)
{
    struct dcommi_device_side *side = &slot->device->side[queue];
    slot->next = side->free;
    side->free = slot;
    dcommi_slot_serve(side);
}

/* ---- the devices of a context ---- */

static void dcommi_device_free(dcommi_device *device)
{
    device->handle.call->close(&device->handle, device->broken);
    for (int q = 0; q < DCOMMI_QUEUES && !device->broken; q++) {
        device->handle.call->unpin(device->side[q].pinned);
    }
    dcommi_free(device);
}

/* Slots are pinned, which may wait for all that devices do. So the calling thread does this, when a
 * context is created if it uses a device by then: before its streams can wait for a rank. */
static dcomm_status dcommi_device_make(int number, dcommi_device **device_p)
{
    dcommi_device *device = dcommi_alloc(sizeof *device);
    if (device == NULL) {
        return DCOMM_ERR_NO_MEMORY;
    }
    device->handle.call = dcommi_devices;
    device->handle.number = number;
    dcomm_status status = dcommi_devices->open(&device->handle);
    for (int q = 0; q < DCOMMI_QUEUES && status >= 0; q++) {
        struct dcommi_device_side *side = &device->side[q];
        status = dcommi_devices->pin(number, DCOMMI_SLOTS * DCOMMI_SLOT_BYTES, &side->pinned);
        for (int i = 0; i < DCOMMI_SLOTS && status >= 0; i++) {
            dcommi_slot *slot = &side->slots[i];
            slot->device = device;
            slot->memory = (uint8_t *)side->pinned + (size_t)i * DCOMMI_SLOT_BYTES;
            slot->next = side->free;
            side->free = slot;
        }
    }
    if (status < 0) {
        dcommi_device_free(device);
        return status;
    }
    *device_p = device;
    return DCOMM_OK;
}

/* Return the context's data for a device, made at the first call for it. */
static dcomm_status dcommi_device_of(dcomm_context *context, int number, dcommi_device **device_p)
{
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    dcommi_device *device = atomic_load_explicit(&context->devices, memory_order_acquire);
    dcomm_status status = DCOMM_OK;
    for (; device != NULL && device->handle.number != number; device = device->next) {
    }
    if (device == NULL) {
        pthread_mutex_lock(&lock);
        device = atomic_load_explicit(&context->devices, memory_order_acquire);
        for (; device != NULL && device->handle.number != number; device = device->next) {
        }
        if (device == NULL && (status = dcommi_device_make(number, &device)) >= 0) {
            device->next = atomic_load_explicit(&context->devices, memory_order_relaxed);
            atomic_store_explicit(&context->devices, device, memory_order_release);
        }
        pthread_mutex_unlock(&lock);
    }
    *device_p = device;
    return status;
}

static void dcommi_devices_free(dcomm_context *context)
{
    dcommi_device *device = atomic_load(&context->devices);
    while (device != NULL) {
        dcommi_device *next = device->next;
        dcommi_device_free(device);
        device = next;
    }
}

#endif
