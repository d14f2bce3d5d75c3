/* device_region.h - regions that are device memory. Peers on this host open them once, by CUDA
 * IPC, and kernels read them where they lie.
 *
 * CUDA forbids freeing memory that another process has open. So freed memory stays until every
 * peer that was given it has closed it (REGION_SHUT), or has ended. Opening, closing and freeing
 * may wait for all streams of a device, and one of these may wait for this very rank. So only
 * calling threads do this, never with the token. They close and free only while no stream of the
 * process waits for a rank. */
#ifndef DCOMMI_DEVICE_REGION_H
#define DCOMMI_DEVICE_REGION_H

#include "gate.h"
#include "../../transport/local/watch.h"

/* Device memory that contexts may let their peers open. */
typedef struct dcommi_shared {
    struct dcommi_shared *next; /* in the list of all, or of those to be freed */
    uint8_t *base;
    size_t len;
    int device;
    bool stuck; /* a peer out of reach may have it open: it goes with the process */
    dcommi_device_key key;
    dcommi_own *regions;
    _Atomic int holds; /* of its owner and its regions */
} dcommi_shared;

/* ---- freeing ---- */

static pthread_mutex_t dcommi_shared_lock = PTHREAD_MUTEX_INITIALIZER;
static dcommi_shared *dcommi_shared_free; /* held by nobody, and not given back yet */
static _Atomic int dcommi_shared_due;     /* there is such memory */

static void dcommi_shared_put(dcommi_shared *shared)
{
    pthread_mutex_lock(&dcommi_shared_lock);
    shared->next = dcommi_shared_free;
    dcommi_shared_free = shared;
    atomic_store(&dcommi_shared_due, 1);
    pthread_mutex_unlock(&dcommi_shared_lock);
}

static void dcommi_shared_drop(dcommi_shared *shared)
{
    if (atomic_fetch_sub(&shared->holds, 1) != 1) {
        return;
    }
    if (shared->stuck) {
        dcommi_free(shared);
    } else {
        dcommi_shared_put(shared);
    }
}

/* Free what nobody holds any more, if no stream waits for a rank now. Not with a token. */
static void dcommi_shared_reclaim(void)
{
    bool done = true;
    while (done && atomic_load_explicit(&dcommi_shared_due, memory_order_relaxed) != 0) {
        pthread_mutex_lock(&dcommi_shared_lock);
        dcommi_shared *shared = dcommi_shared_free;
        dcommi_shared_free = shared != NULL ? shared->next : NULL;
        atomic_store(&dcommi_shared_due, dcommi_shared_free != NULL);
        pthread_mutex_unlock(&dcommi_shared_lock);
        if (shared == NULL) {
            return;
        }
        done = dcommi_gates_open_for(dcommi_devices->shared_free, shared->device, shared->base);
        if (done) {
            dcommi_free(shared);
        } else {
            dcommi_shared_put(shared);
        }
    }
}

/* ---- our own ---- */

static void dcommi_device_own_free(dcommi_own *own)
{
    dcommi_shared_drop(own->shared);
    dcommi_free(own->readers);
    dcommi_free(own);
}

/* Return true if a peer may have a region open. */
static bool dcommi_device_own_open(const dcommi_own *own)
{
    bool open = false;
    for (size_t i = 0; i < own->nreaders; i++) {
        open = open || own->readers[i].told;
    }
    return open;
}

static void dcommi_device_own_left(dcommi_own *own)
{
    if (dcommi_device_own_open(own)) {
        own->next = own->context->regions->leaving;
        own->context->regions->leaving = own;
    } else {
        dcommi_device_own_free(own);
    }
}

static void dcommi_on_region_shut(dcomm_context *context, int peer, uint32_t id)
{
    struct dcommi_regions *regions = context->regions;
    dcommi_own *own = NULL;
    for (size_t i = 0; regions != NULL && i < regions->nown && own == NULL; i++) {
        own = regions->own[i]->id == id ? regions->own[i] : NULL;
    }
    dcommi_own **at = regions != NULL ? &regions->leaving : NULL;
    while (own == NULL && at != NULL && *at != NULL && (*at)->id != id) {
        at = &(*at)->next;
    }
    dcommi_own *left = own == NULL && at != NULL ? *at : NULL;
    own = own != NULL ? own : left;
    if (own == NULL || own->shared == NULL) {
        return;
    }
    for (size_t i = 0; i < own->nreaders; i++) {
        own->readers[i].told = own->readers[i].told && own->readers[i].peer != peer;
    }
    if (left != NULL && !dcommi_device_own_open(left)) {
        *at = left->next;
        dcommi_device_own_free(left);
    }
}

/* Check freed regions that peers had open. A process that has ended has closed them. Warn peers
 * that could not be told before. */
static void dcommi_leaving_look(dcomm_context *context)
{
    struct dcommi_regions *regions = context->regions;
    for (dcommi_own **at = regions != NULL ? &regions->leaving : NULL; at != NULL && *at != NULL;) {
        dcommi_own *own = *at;
        for (size_t i = 0; i < own->nreaders; i++) {
            dcommi_reader *reader = &own->readers[i];
            const dcommi_remote *peer = &context->peers[reader->peer];
            if (reader->told && dcommi_process_started(peer->pid) != peer->started) {
                reader->told = false;
            }
            if (reader->told && !reader->warned) {
                reader->warned = dcommi_own_warn(own, reader->peer);
            }
        }
        if (dcommi_device_own_open(own)) {
            at = &own->next;
        } else {
            *at = own->next;
            dcommi_device_own_free(own);
        }
    }
}

static void dcommi_device_own_key(const dcommi_own *own, uint8_t *key)
{
    memcpy(key, &own->shared->key, sizeof own->shared->key);
}

/* ---- peers' ---- */

/* Tell a peer that its region is not open here any more. This may use a communicator that has
 * failed, or one in which the peer has said goodbye and waits for our goodbye. */
static void dcommi_tell_shut(dcomm_context *context, int peer, uint32_t id)
{
    dcommi_header shut = {.type = DCOMMI_MSG_REGION_SHUT, .tag = id};
    dcomm_comm *by = NULL;
    int rank = 0;
    bool gone = true;
    for (dcomm_comm *comm = context->comms; comm != NULL && gone; comm = comm->next) {
        for (int r = 0; r < comm->size && gone; r++) {
            if (comm->members[r].peer == peer) {
                by = comm;
                rank = r;
                gone = comm->members[r].gone;
            }
        }
    }
    if (by != NULL && !context->peers[peer].lost) {
        dcommi_send_header(by, rank, &shut, NULL, 0);
    }
}

static void dcommi_device_map_drop(dcomm_context *context, dcommi_map *map)
{
    if (map->state == DCOMMI_MAP_OPEN) {
        map->next = context->regions->shutting;
        context->regions->shutting = map;
        atomic_store_explicit(&context->memory_due, 1, memory_order_relaxed);
    } else {
        dcommi_tell_shut(context, map->peer, map->id);
        dcommi_free(map);
    }
}

static void dcommi_device_map_gone(dcomm_context *context, int peer, uint32_t id)
{
    const dcommi_map *map = context->regions != NULL ? context->regions->shutting : NULL;
    while (map != NULL && (map->peer != peer || map->id != id)) {
        map = map->next;
    }
    if (map == NULL) {
        dcommi_tell_shut(context, peer, id);
    }
}

/* Return true if nothing under way reads a map. */
static bool dcommi_device_map_idle(const dcommi_map *map)
{
    const struct dcommi_device_side *in = &map->device->side[DCOMMI_QUEUE_IN];
    return in->ended >= map->used || in->ended == in->started;
}

/* Open a known map on `device`. The token is released meanwhile. */
static void dcommi_device_map_open(dcomm_context *context, dcommi_map *map, dcommi_device *device)
{
    const dcommi_remote peer = context->peers[map->peer];
    const dcommi_device_key key = map->key; /* map may be forgotten meanwhile */
    void *memory = NULL;
    dcomm_status status = DCOMM_OK;
    map->state = DCOMMI_MAP_OPENING;
    map->device = device;
    map->borrowed = peer.pid == getpid();
    dcommi_token_release(context);
    if (map->borrowed) {
        memory = (void *)(uintptr_t)map->base;
        if (dcommi_devices->locate(memory) != device->handle.number) {
            status = dcommi_fail(DCOMM_ERR_UNSUPPORTED, "it is not memory of device %d",
                                 device->handle.number);
        }
    } else {
        status = dcommi_devices->peer_open(device->handle.number, &key, (size_t)map->len, &memory);
    }
    dcommi_token_take(context);
    map->state = status >= 0 ? DCOMMI_MAP_OPEN : DCOMMI_MAP_FAILED;
    map->local = memory;
    if (status < 0) {
        dcommi_log(DCOMMI_LOG_INFO, "device memory of process %d is read by messages: %s",
                   (int)peer.pid, dcommi_message);
    }
    if (map->gone) {
        dcommi_map_drop(context, dcommi_map_at(context->regions, map->peer, map->id));
    }
}

static void dcommi_maps_open(dcomm_context *context, dcommi_device *device)
{
    for (size_t i = 0; i < DCOMMI_REGION_BUCKETS; i++) {
        dcommi_map *map = context->regions->maps[i];
        while (map != NULL && (!map->on_device || map->state != DCOMMI_MAP_KNOWN)) {
            map = map->next;
        }
        if (map != NULL) {
            dcommi_device_map_open(context, map, device);
            i--; /* the bucket may have changed meanwhile */
        }
    }
}

/* Close the maps that can be closed now. The token is released meanwhile. */
static void dcommi_maps_shut(dcomm_context *context)
{
    struct dcommi_regions *regions = context->regions;
    dcommi_map *map = regions->shutting;
    while (map != NULL) {
        if (map->state == DCOMMI_MAP_OPENING || !dcommi_device_map_idle(map)) {
            map = map->next;
            continue;
        }
        map->state = DCOMMI_MAP_OPENING; /* by this thread */
        dcommi_token_release(context);
        bool shut = map->borrowed || dcommi_gates_open_for(dcommi_devices->peer_close,
                                                           map->device->handle.number, map->local);
        dcommi_token_take(context);
        if (!shut) {
            map->state = DCOMMI_MAP_OPEN;
            return;
        }
        DCOMMI_LIST_REMOVE(regions->shutting, map, next);
        dcommi_tell_shut(context, map->peer, map->id);
        dcommi_free(map);
        map = regions->shutting;
    }
}

/* Open on `device` (NULL: open nothing) and close what is due, in a calling thread. */
static void dcommi_memory_serve(dcomm_context *context, dcommi_device *device)
{
    if (DCOMMI_LIKELY(atomic_load_explicit(&context->memory_due, memory_order_relaxed) == 0)) {
        return;
    }
    dcommi_token_take(context);
    atomic_store_explicit(&context->memory_due, 0, memory_order_relaxed);
    if (device != NULL) {
        dcommi_maps_open(context, device);
    }
    dcommi_maps_shut(context);
    if (device == NULL || context->regions->shutting != NULL) {
        atomic_store_explicit(&context->memory_due, 1, memory_order_relaxed);
    }
    dcommi_token_release(context);
}

/* Return true if some map is still to be closed. */
static bool dcommi_memory_shutting(dcomm_context *context)
{
    dcommi_token_take(context);
    bool shutting = context->regions != NULL && context->regions->shutting != NULL;
    dcommi_token_release(context);
    return shutting;
}

/* Return where kernels of the run's device read device memory that a rank has offered. The pointer
 * is valid for work put on queue IN in this pass of progress. NULL: read it by messages. */
static const uint8_t *dcommi_resolve_peer_device(const dcommi_run *run, int rank, uint32_t region,
                                                 uint64_t address, size_t len)
{
    if (dcommi_peer_of(run->comm, rank)->started == 0) {
        return NULL;
    }
    dcommi_map *map = dcommi_map_for(run->comm, rank, region, address, len);
    if (map == NULL || !map->on_device || map->gone || map->device != run->device) {
        return NULL;
    }
    map->used = run->device->side[DCOMMI_QUEUE_IN].started + 1;
    return map->local + (address - map->base);
}

static void dcommi_device_regions_free(dcomm_context *context)
{
    struct dcommi_regions *regions = context->regions;
    while (regions->shutting != NULL) {
        dcommi_map *map = regions->shutting;
        regions->shutting = map->next;
        if (!map->borrowed) { /* else it is closed when the process ends */
            (void)dcommi_gates_open_for(dcommi_devices->peer_close, map->device->handle.number,
                                        map->local);
        }
        dcommi_free(map);
    }
    dcommi_leaving_look(context);
    while (regions->leaving != NULL) {
        dcommi_own *own = regions->leaving;
        regions->leaving = own->next;
        own->shared->stuck = true;
        dcommi_device_own_free(own);
    }
}

#endif
