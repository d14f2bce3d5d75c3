/* api_mem_device.h - device memory that peers may open: allocate, share with contexts, look up,
 * free. */
#ifndef DCOMMI_API_MEM_DEVICE_H
#define DCOMMI_API_MEM_DEVICE_H

#include "../../mem.h"
#include "context.h"

/* CUDA IPC shares whole blocks of this many bytes, with all that lies in them. So an allocation
 * takes whole blocks. */
#define DCOMMI_SHARED_GRAIN ((size_t)2 << 20)

static pthread_mutex_t dcommi_mem_lock = PTHREAD_MUTEX_INITIALIZER;
static dcommi_shared *dcommi_shared_all; /* guarded by dcommi_mem_lock, like the regions of each */

/* Do the deferred work on device memory, before some is allocated or after some is freed. */
static void dcommi_device_mem_tidy(dcomm_context *context)
{
    if (context != NULL) {
        dcommi_memory_serve(context, NULL);
        dcommi_token_take(context);
        dcommi_leaving_look(context);
        dcommi_token_release(context);
    }
    dcommi_shared_reclaim();
}

/* Return the memory that `at` points into, or NULL. The caller holds dcommi_mem_lock. */
static dcommi_shared *dcommi_shared_find(const void *at)
{
    dcommi_shared *shared = dcommi_shared_all;
    while (shared != NULL && (uintptr_t)at - (uintptr_t)shared->base >= shared->len) {
        shared = shared->next;
    }
    return shared;
}

/* Return the region that `context` has of `shared`, or NULL. *at_p is its place in the list. The
 * caller holds dcommi_mem_lock. */
static dcommi_own *dcommi_shared_region(dcommi_shared *shared, const dcomm_context *context,
                                        dcommi_own ***at_p)
{
    dcommi_own **at = &shared->regions;
    while (*at != NULL && (*at)->context != context) {
        at = &(*at)->next;
    }
    *at_p = at;
    return *at;
}

/* Let the ranks of `context` open `shared` from now on. The caller holds dcommi_mem_lock. */
static dcomm_status dcommi_shared_add(dcommi_shared *shared, dcomm_context *context)
{
    dcommi_own **at, *own = dcommi_shared_region(shared, context, &at);
    if (own != NULL) {
        own->users++;
        return DCOMM_OK;
    }
    own = dcommi_alloc(sizeof *own);
    if (own == NULL) {
        return DCOMM_ERR_NO_MEMORY;
    }
    own->context = context;
    own->shared = shared;
    own->base = shared->base;
    own->len = shared->len;
    own->users = 1;
    own->file = -1;
    dcommi_token_take(context);
    dcomm_status status = shared->key.place != 0 ? dcommi_own_enter(own) : DCOMM_OK;
    dcommi_token_release(context);
    if (status < 0) {
        dcommi_free(own);
        return status;
    }
    *at = own;
    atomic_fetch_add(&shared->holds, 1);
    atomic_fetch_add(&context->refs, 1);
    return DCOMM_OK;
}

/* Remove a region that is in no list any more. It is freed once peers have shut it. */
static dcomm_status dcommi_shared_remove(dcommi_own *own)
{
    dcomm_context *context = own->context;
    dcommi_token_take(context);
    if (own->id != 0) {
        dcommi_own_leave(own);
    }
    dcommi_device_own_left(own);
    dcommi_token_release(context);
    dcommi_device_mem_tidy(context);
    return dcommi_context_release(context);
}

DCOMM_API dcomm_status dcomm_mem_alloc_device(dcomm_context *context, size_t bytes, void **ptr_p)
{
    void *memory = NULL;
    DCOMMI_NEED(ptr_p);
    *ptr_p = NULL;
    DCOMMI_TRY(dcommi_check_fork());
    if (dcommi_devices == NULL) {
        return dcommi_fail(DCOMM_ERR_UNSUPPORTED,
                           "%zu bytes of device memory are wanted: this "
                           "needs an implementation built with "
                           "DCOMM_WITH_CUDA",
                           bytes);
    }
    if (bytes == 0) {
        return DCOMM_OK;
    }
    if (bytes > DCOMMI_REGION_LEN_MAX) {
        return dcommi_fail(DCOMM_ERR_NO_MEMORY, "%zu bytes of device memory are wanted", bytes);
    }
    dcommi_device_mem_tidy(context);
    dcommi_shared *shared = dcommi_alloc(sizeof *shared);
    if (shared == NULL) {
        return DCOMM_ERR_NO_MEMORY;
    }
    shared->len = (bytes + DCOMMI_SHARED_GRAIN - 1) / DCOMMI_SHARED_GRAIN * DCOMMI_SHARED_GRAIN;
    shared->device = dcommi_devices->current();
    atomic_store(&shared->holds, 1);
    dcomm_status status =
        dcommi_devices->shared_alloc(shared->device, shared->len, &memory, &shared->key);
    if (status < 0) {
        dcommi_free(shared);
        return dcommi_fail(status, "%zu bytes of device memory are wanted: %s", bytes,
                           dcommi_message);
    }
    shared->base = memory;
    pthread_mutex_lock(&dcommi_mem_lock);
    status = context != NULL ? dcommi_shared_add(shared, context) : DCOMM_OK;
    if (status >= 0) {
        shared->next = dcommi_shared_all;
        dcommi_shared_all = shared;
    }
    pthread_mutex_unlock(&dcommi_mem_lock);
    if (status < 0) {
        dcommi_shared_drop(shared);
        dcommi_shared_reclaim();
        return status;
    }
    *ptr_p = memory;
    return DCOMM_OK;
}

DCOMM_API dcomm_status dcomm_mem_share(dcomm_context *context, const void *ptr)
{
    DCOMMI_NEED(context);
    DCOMMI_TRY(dcommi_check_fork());
    pthread_mutex_lock(&dcommi_mem_lock);
    dcommi_shared *shared = dcommi_shared_find(ptr);
    dcomm_status status =
        shared != NULL ? dcommi_shared_add(shared, context)
                       : dcommi_fail(DCOMM_ERR_INVALID,
                                     "%p lies in no memory from dcomm_mem_alloc_device", ptr);
    pthread_mutex_unlock(&dcommi_mem_lock);
    return status;
}

DCOMM_API dcomm_status dcomm_mem_unshare(dcomm_context *context, const void *ptr)
{
    DCOMMI_TRY(dcommi_check_fork());
    pthread_mutex_lock(&dcommi_mem_lock);
    dcommi_shared *shared = dcommi_shared_find(ptr);
    dcommi_own **at = NULL;
    dcommi_own *own = shared != NULL ? dcommi_shared_region(shared, context, &at) : NULL;
    bool last = own != NULL && --own->users == 0;
    if (last) {
        *at = own->next;
    }
    pthread_mutex_unlock(&dcommi_mem_lock);
    if (own == NULL) {
        return dcommi_fail(DCOMM_ERR_INVALID,
                           "%p lies in no memory that this context was given by dcomm_mem_share",
                           ptr);
    }
    return last ? dcommi_shared_remove(own) : DCOMM_OK;
}

/* Free the memory that begins at `base`. Return false if there is none. */
static bool dcommi_shared_release(const void *base, dcomm_status *status)
{
    pthread_mutex_lock(&dcommi_mem_lock);
    dcommi_shared **at = &dcommi_shared_all;
    while (*at != NULL && (*at)->base != base) {
        at = &(*at)->next;
    }
    dcommi_shared *shared = *at;
    dcommi_own *own = shared != NULL ? shared->regions : NULL;
    if (shared != NULL) {
        *at = shared->next;
        shared->regions = NULL;
    }
    pthread_mutex_unlock(&dcommi_mem_lock);
    *status = DCOMM_OK;
    if (shared == NULL) {
        return false;
    }
    while (own != NULL) {
        dcommi_own *next = own->next;
        dcomm_status one = dcommi_shared_remove(own);
        *status = one < 0 ? one : *status;
        own = next;
    }
    dcommi_shared_drop(shared);
    dcommi_shared_reclaim();
    return true;
}

static bool dcommi_shared_query(const void *at, dcomm_mem_info *info)
{
    const dcommi_shared *shared = dcommi_shared_find(at);
    if (shared != NULL) {
        bool open = false;
        for (const dcommi_own *own = shared->regions; own != NULL; own = own->next) {
            open = open || own->id != 0;
        }
        *info = (dcomm_mem_info){
            .base = shared->base, .bytes = shared->len, .shared = open, .device = shared->device};
    }
    return shared != NULL;
}

#endif
