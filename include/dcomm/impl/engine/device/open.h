/* open.h - make what a context has of a device: its words and its pinned slots. */
#ifndef DCOMMI_DEVICE_OPEN_H
#define DCOMMI_DEVICE_OPEN_H

#include "gate.h"

/* Slots are pinned, which may wait for all that devices do. So the calling thread does this, when
 * a context is created if it uses a device by then, and waits until no stream of the process waits
 * for a rank, for this long at most (seconds). */
#define DCOMMI_OPEN_PATIENCE 0.1

typedef struct dcommi_device_opened {
    dcommi_device *device;
    dcomm_status status;
} dcommi_device_opened;

static void dcommi_device_open(int number, void *opened)
{
    dcommi_device_opened *to = opened;
    dcommi_device *device = to->device;
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
    to->status = status;
}

static dcomm_status dcommi_device_make(int number, dcommi_device **device_p)
{
    const struct timespec nap = {0, 200000};
    const double until = dcommi_now() + DCOMMI_OPEN_PATIENCE;
    dcommi_device_opened opened = {.device = dcommi_alloc(sizeof *opened.device)};
    if (opened.device == NULL) {
        return DCOMM_ERR_NO_MEMORY;
    }
    bool done = dcommi_gates_open_for(dcommi_device_open, number, &opened);
    while (!done && dcommi_now() < until) {
        nanosleep(&nap, NULL);
        done = dcommi_gates_open_for(dcommi_device_open, number, &opened);
    }
    if (!done) {
        dcommi_device_open(number, &opened);
    }
    if (opened.status < 0) {
        dcommi_device_free(opened.device);
        return opened.status;
    }
    *device_p = opened.device;
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

#endif
