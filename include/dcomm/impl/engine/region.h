/* region.h - registered memory as the engine sees it: the regions of this rank, which it names in
 * messages that point into them, and the cache of peers' regions that it has mapped.
 *
 * A message that offers memory (EXPOSE, RTS) carries the number of its region, or 0. A receiver
 * that does not know the number asks for it (REGION_ASK), and reads by other means meanwhile. The
 * owner hands over the memory's descriptor (hand.h) and then says so (REGION). For device memory,
 * REGION carries its key (device_region.h). Numbers are never reused, so the number of a freed
 * region is at worst unknown. Every peer that was given a region is told when it is freed
 * (REGION_GONE). */
#ifndef DCOMMI_REGION_H
#define DCOMMI_REGION_H

#include "match.h"
#include "post.h"
#include "../transport/local/share.h"

#define DCOMMI_REGION_MAPS 4096   /* peers' regions that a context remembers */
#define DCOMMI_REGION_BUCKETS 256 /* of the cache */
#define DCOMMI_REGION_REFUSALS 64
#define DCOMMI_REGION_LEN_MAX ((uint64_t)1 << 46)

/* Payload of REGION, in front of a device's key. */
typedef struct dcommi_region_card {
    uint64_t base; /* its address in the owner's process */
    uint64_t len;
} dcommi_region_card;

_Static_assert(sizeof(dcommi_region_card) == DCOMMI_REGION_CARD, "the card has no padding");

/* A peer that uses a region of ours. */
typedef struct dcommi_reader {
    int peer;
    bool told;    /* it was given the region; device memory: and has not closed it */
    bool warned;  /* device memory: it was told that the region is gone */
    int refusals; /* how often it could not read an RTS in place */
} dcommi_reader;

/* A region of this rank. */
struct dcommi_own {
    struct dcommi_own *next;      /* of all in the process, or of all of `shared` */
    struct dcommi_shared *shared; /* its device memory; NULL: host memory */
    dcomm_context *context;       /* kept alive */
    uint8_t *base;
    size_t len, huge;
    uint32_t id;    /* 0: nobody can map it */
    unsigned users; /* device memory: users in this context that want it */
    int file;       /* host memory: descriptor for peers; -1: none */
    dcommi_reader *readers;
    size_t nreaders, readers_capacity;
};

enum dcommi_map_state {
    DCOMMI_MAP_ASKED,
    DCOMMI_MAP_KNOWN,   /* device memory, to be opened */
    DCOMMI_MAP_OPENING, /* by a thread without the token */
    DCOMMI_MAP_OPEN,
    DCOMMI_MAP_FAILED
};

/* A region of a peer. */
struct dcommi_map {
    struct dcommi_map *next; /* in its bucket */
    int peer;
    uint32_t id;
    uint8_t state;
    uint8_t named; /* how often it was named since we asked */
    uint64_t base, len;
    uint8_t *local; /* OPEN: its address here */
    bool on_device; /* it is device memory, for which the fields below are */
    dcommi_device_key key;
    bool gone;             /* OPENING: close it again */
    bool borrowed;         /* memory of this very process: nothing was opened */
    dcommi_device *device; /* the device that reads it */
    uint64_t used;         /* number of the last job there that reads it */
};

struct dcommi_regions {
    dcommi_own **own; /* sorted by address; with the token, like all of this */
    size_t nown, own_capacity;
    uint32_t last_id;
    dcommi_map *maps[DCOMMI_REGION_BUCKETS];
    size_t nmaps;
    dcommi_own *leaving;  /* freed device memory that peers may still have open */
    dcommi_map *shutting; /* peers' device memory that is to be closed */
};

/* Return the context's regions, made when first needed; NULL without memory. */
static struct dcommi_regions *dcommi_regions_of(dcomm_context *context)
{
    if (context->regions == NULL) {
        context->regions = dcommi_alloc(sizeof *context->regions);
    }
    return context->regions;
}

/* ---- our own ---- */

/* Return the index of the first own region that begins behind `at`. */
static size_t dcommi_own_behind(const struct dcommi_regions *regions, uintptr_t at)
{
    size_t low = 0, high = regions->nown;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if ((uintptr_t)regions->own[middle]->base > at) {
            high = middle;
        } else {
            low = middle + 1;
        }
    }
    return low;
}

/* Return the region that contains all of this memory; NULL: none. */
static inline dcommi_own *dcommi_own_find(const dcomm_context *context, const void *at, size_t len)
{
    const struct dcommi_regions *regions = context->regions;
    if (DCOMMI_LIKELY(regions == NULL || regions->nown == 0)) {
        return NULL;
    }
    size_t i = dcommi_own_behind(regions, (uintptr_t)at);
    if (i == 0) {
        return NULL;
    }
    dcommi_own *own = regions->own[i - 1];
    size_t offset = (uintptr_t)at - (uintptr_t)own->base;
    return offset < own->len && len <= own->len - offset ? own : NULL;
}

/* Return the number of that region, for messages; 0: none. */
static inline uint32_t dcommi_region_number(const dcomm_context *context, const void *at,
                                            size_t len)
{
    const dcommi_own *own = dcommi_own_find(context, at, len);
    return own != NULL ? own->id : 0;
}

/* Return a peer's entry at a region, made when needed; NULL without memory. */
static dcommi_reader *dcommi_own_reader(dcommi_own *own, int peer)
{
    for (size_t i = 0; i < own->nreaders; i++) {
        if (own->readers[i].peer == peer) {
            return &own->readers[i];
        }
    }
    if (dcommi_grow((void **)&own->readers, &own->readers_capacity, own->nreaders + 1,
                    sizeof *own->readers) < 0) {
        return NULL;
    }
    own->readers[own->nreaders] = (dcommi_reader){.peer = peer};
    return &own->readers[own->nreaders++];
}

/* Return true if this memory should be offered to a peer that cannot read our other memory. A peer
 * that never maps the region has to ask for each message, so stop after some refusals. */
static bool dcommi_region_offerable(dcomm_context *context, int peer, const void *at, size_t len)
{
    dcommi_own *own = dcommi_own_find(context, at, len);
    const dcommi_reader *reader = own != NULL ? dcommi_own_reader(own, peer) : NULL;
    return reader != NULL && reader->refusals < DCOMMI_REGION_REFUSALS;
}

/* Count that a peer wants as a message what was offered in place. */
static void dcommi_region_refused(dcomm_context *context, int peer, const void *at, size_t len)
{
    dcommi_own *own = dcommi_own_find(context, at, len);
    dcommi_reader *reader = own != NULL ? dcommi_own_reader(own, peer) : NULL;
    if (reader != NULL) {
        reader->refusals++;
    }
}

/* Make own->len bytes of shared memory that huge pages can back, and fault them in. `collapse`:
 * put them on huge pages. The kernel then makes the caller wait until work of its own has run on
 * every core. That can take very long where other programs keep the cores busy, so do it only
 * where a caller asks for memory. DCOMM_ERR_UNSUPPORTED: nobody could map it. After an error, call
 * dcommi_own_destroy. */
static dcomm_status dcommi_own_create(dcommi_own *own, bool collapse)
{
    own->file = dcommi_share_file(own->len);
    own->base = own->file >= 0
                    ? dcommi_share_map_huge(own->file, own->len, PROT_READ | PROT_WRITE)
                    : NULL;
    if (own->base == NULL) {
        return dcommi_fail(DCOMM_ERR_UNSUPPORTED, "cannot allocate %zu bytes of shared memory: %s",
                           own->len, strerror(errno));
    }
    if (!(collapse ? dcommi_huge_fill(own->base, own->len, &own->huge)
                   : dcommi_huge_populate(own->base, own->len))) {
        return dcommi_fail(
            DCOMM_ERR_SYSTEM,
            "cannot allocate %zu bytes of shared memory: %s (see the memory limit of the "
            "container)",
            own->len, strerror(errno));
    }
    return DCOMM_OK;
}

/* Release the memory and the descriptor, as far as they exist. */
static void dcommi_own_destroy(dcommi_own *own)
{
    dcommi_huge_release(own->base, own->len);
    own->base = NULL;
    dcommi_sys_close(own->file);
    own->file = -1;
}

static dcomm_status dcommi_own_enter(dcommi_own *own)
{
    struct dcommi_regions *regions = dcommi_regions_of(own->context);
    if (regions == NULL || regions->last_id == UINT32_MAX) {
        return regions == NULL ? DCOMM_ERR_NO_MEMORY : DCOMM_OK; /* it works, but unmapped */
    }
    DCOMMI_TRY(dcommi_grow((void **)&regions->own, &regions->own_capacity, regions->nown + 1,
                           sizeof *regions->own));
    size_t i = dcommi_own_behind(regions, (uintptr_t)own->base);
    memmove(&regions->own[i + 1], &regions->own[i], (regions->nown - i) * sizeof *regions->own);
    regions->own[i] = own;
    regions->nown++;
    own->id = ++regions->last_id;
    return DCOMM_OK;
}

/* Return the first healthy communicator that has a peer, and its rank there; NULL: none. */
static dcomm_comm *dcommi_comm_with(dcomm_context *context, int peer, int *rank)
{
    for (dcomm_comm *comm = context->comms; comm != NULL; comm = comm->next) {
        if (atomic_load_explicit(&comm->poisoned, memory_order_relaxed) != 0) {
            continue;
        }
        for (int r = 0; r < comm->size; r++) {
            if (comm->members[r].peer == peer && !comm->members[r].gone) {
                *rank = r;
                return comm;
            }
        }
    }
    return NULL;
}

/* Tell a peer that a region is gone. Return true if the message is on its way. */
static bool dcommi_own_warn(const dcommi_own *own, int peer)
{
    int rank;
    dcomm_comm *comm = dcommi_comm_with(own->context, peer, &rank);
    dcommi_header gone = {.type = DCOMMI_MSG_REGION_GONE, .tag = own->id, .a = own->shared != NULL};
    return comm != NULL && !own->context->peers[peer].lost &&
           dcommi_send_header(comm, rank, &gone, NULL, 0) >= 0;
}

/* Take a region that is about to be freed out of the table, and tell peers that may have mapped
 * it. */
static void dcommi_own_leave(dcommi_own *own)
{
    struct dcommi_regions *regions = own->context->regions;
    size_t at = dcommi_own_behind(regions, (uintptr_t)own->base) - 1;
    regions->nown--;
    memmove(&regions->own[at], &regions->own[at + 1], (regions->nown - at) * sizeof *regions->own);
    for (size_t i = 0; i < own->nreaders; i++) {
        if (own->readers[i].told) {
            own->readers[i].warned = dcommi_own_warn(own, own->readers[i].peer);
        }
    }
}

/* Answer a peer that asks for a region that we named. */
static void dcommi_on_region_ask(dcomm_comm *comm, const dcommi_header *h)
{
    struct dcommi_regions *regions = comm->context->regions;
    const dcommi_remote *peer = &comm->context->peers[comm->members[h->src].peer];
    dcommi_own *own = NULL;
    for (size_t i = 0; regions != NULL && i < regions->nown && own == NULL; i++) {
        own = regions->own[i]->id == h->tag ? regions->own[i] : NULL;
    }
    /* Give device memory only to a process whose end we can see. */
    if (own == NULL || !peer->same_host || (own->shared != NULL && peer->started == 0)) {
        return; /* the region may be freed: the peer does without */
    }
    dcommi_reader *reader = dcommi_own_reader(own, comm->members[h->src].peer);
    if (reader == NULL) {
        return;
    }
    reader->told = true;
    int peer_index = comm->members[h->src].peer;
    dcommi_transport *t = comm->context->local;
    uint8_t payload[sizeof(dcommi_region_card) + DCOMMI_REGION_KEY_DEVICE];
    size_t len = sizeof(dcommi_region_card);
    dcommi_region_card card = {.base = (uint64_t)(uintptr_t)own->base, .len = own->len};
    memcpy(payload, &card, sizeof card);
    if (own->shared != NULL) {
        dcommi_device_own_key(own, payload + len);
        len = sizeof payload;
    } else if (t->call->region_give(t, peer_index, own->id, own->file) != DCOMM_OK) {
        return; /* the peer asks again */
    }
    dcommi_header answer = {.type = DCOMMI_MSG_REGION, .tag = own->id, .a = own->shared != NULL};
    dcommi_send_header(comm, (int)h->src, &answer, payload, len);
}

/* ---- peers' ---- */

static inline dcommi_map **dcommi_map_at(struct dcommi_regions *regions, int peer, uint32_t id)
{
    dcommi_map **at = &regions->maps[((uint32_t)peer * 31u + id) % DCOMMI_REGION_BUCKETS];
    while (*at != NULL && ((*at)->peer != peer || (*at)->id != id)) {
        at = &(*at)->next;
    }
    return at;
}

static void dcommi_map_drop(dcomm_context *context, dcommi_map **at)
{
    dcommi_map *map = *at;
    if (map->state == DCOMMI_MAP_OPENING) { /* the thread that opens it drops it */
        map->gone = true;
        return;
    }
    *at = map->next;
    context->regions->nmaps--;
    if (map->on_device || map->state == DCOMMI_MAP_ASKED) {
        dcommi_device_map_drop(context, map);
        return;
    }
    dcommi_huge_release(map->local, (size_t)map->len);
    dcommi_free(map);
}

/* Forget the regions of a peer, or of all (-1). */
static void dcommi_maps_forget(dcomm_context *context, int peer)
{
    struct dcommi_regions *regions = context->regions;
    for (size_t i = 0; regions != NULL && i < DCOMMI_REGION_BUCKETS; i++) {
        for (dcommi_map **at = &regions->maps[i]; *at != NULL;) {
            bool ours = peer < 0 || (*at)->peer == peer;
            bool stays = !ours || (*at)->state == DCOMMI_MAP_OPENING;
            if (ours) {
                dcommi_map_drop(context, at);
            }
            at = stays ? &(*at)->next : at;
        }
    }
}

/* Free the regions of a context that closes. */
static void dcommi_regions_free(dcomm_context *context)
{
    if (context->regions != NULL) {
        dcommi_maps_forget(context, -1);
        dcommi_device_regions_free(context);
        dcommi_free(context->regions->own);
        dcommi_free(context->regions);
        context->regions = NULL;
    }
}

/* Ask for an unknown region that a message names, and remember it. Ask again from time to time: a
 * communicator that fails takes the question or the answer with it. `map`: NULL the first time. */
static void dcommi_map_ask(dcomm_comm *comm, int rank, uint32_t id, dcommi_map *map)
{
    if (map != NULL && ++map->named != 0) {
        return;
    }
    struct dcommi_regions *regions = dcommi_regions_of(comm->context);
    if (map == NULL) {
        bool full = regions == NULL || regions->nmaps >= DCOMMI_REGION_MAPS;
        map = full ? NULL : dcommi_alloc(sizeof *map);
        if (map == NULL) {
            return;
        }
        map->peer = comm->members[rank].peer;
        map->id = id;
        *dcommi_map_at(regions, map->peer, id) = map;
        regions->nmaps++;
    }
    dcommi_header ask = {.type = DCOMMI_MSG_REGION_ASK, .tag = id};
    dcommi_send_header(comm, rank, &ask, NULL, 0);
}

/* Map host memory that a peer has handed to us. */
static dcomm_status dcommi_map_open(dcomm_context *context, dcommi_map *map)
{
    dcommi_transport *t = context->local;
    size_t len = (size_t)map->len;
    int file = -1;
    DCOMMI_TRY(t->call->region_take(t, map->peer, map->id, len, &file));
    uint8_t *local = dcommi_share_map_huge(file, len, PROT_READ);
    dcommi_sys_close(file);
    if (local == NULL || !dcommi_huge_readable(local, len)) {
        dcommi_huge_release(local, len);
        return dcommi_fail(DCOMM_ERR_SYSTEM, "%s", strerror(errno));
    }
    map->local = local;
    map->state = DCOMMI_MAP_OPEN;
    return DCOMM_OK;
}

/* Take a peer's answer about its memory. If anything is wrong with the answer, that memory is read
 * by other means. */
static void dcommi_on_region(dcomm_comm *comm, const dcommi_header *h, const void *data)
{
    struct dcommi_regions *regions = comm->context->regions;
    if (regions == NULL) {
        return;
    }
    int peer = comm->members[h->src].peer;
    bool device = h->a == 1;
    dcommi_region_card card;
    dcommi_map *map = *dcommi_map_at(regions, peer, h->tag);
    if (map == NULL || map->state != DCOMMI_MAP_ASKED) {
        if (map == NULL && device) { /* forgotten meanwhile */
            dcommi_tell_shut(comm->context, peer, h->tag);
        }
        return;
    }
    map->state = DCOMMI_MAP_FAILED;
    map->on_device = device;
    memcpy(&card, data, sizeof card);
    map->base = card.base;
    map->len = card.len;
    size_t page = device ? 1 : (size_t)sysconf(_SC_PAGESIZE);
    if (map->len == 0 || map->len > DCOMMI_REGION_LEN_MAX || map->len % page != 0 ||
        map->base % page != 0 || map->base + map->len < map->base) {
        return;
    }
    if (device) {
        memcpy(&map->key, (const uint8_t *)data + sizeof card, sizeof map->key);
        map->state = DCOMMI_MAP_KNOWN;
        atomic_store_explicit(&comm->context->memory_due, 1, memory_order_relaxed);
    } else if (dcommi_map_open(comm->context, map) < 0) {
        dcommi_log(DCOMMI_LOG_INFO, "registered memory of process %d is not mapped: %s",
                   (int)comm->context->peers[peer].pid, dcommi_message);
    }
}

/* Return the map that serves `len` bytes at an address of a region that a rank of this host has
 * offered. NULL: there is none, or not yet. */
static inline dcommi_map *dcommi_map_for(dcomm_comm *comm, int rank, uint32_t region,
                                         uint64_t address, size_t len)
{
    int peer = comm->members[rank].peer;
    if (DCOMMI_LIKELY(region == 0) || !comm->context->peers[peer].same_host) {
        return NULL;
    }
    struct dcommi_regions *regions = comm->context->regions;
    dcommi_map *map = regions != NULL ? *dcommi_map_at(regions, peer, region) : NULL;
    if (DCOMMI_UNLIKELY(map == NULL || map->state == DCOMMI_MAP_ASKED)) {
        dcommi_map_ask(comm, rank, region, map);
        return NULL;
    }
    uint64_t offset = address - map->base;
    return map->state == DCOMMI_MAP_OPEN && address >= map->base && offset <= map->len &&
                   len <= map->len - offset
               ? map
               : NULL;
}

/* Return where memory that a rank has offered is mapped here, valid until the next pass of
 * progress. NULL: read it by other means. */
static const uint8_t *dcommi_resolve_peer_memory(dcomm_comm *comm, int rank, uint32_t region,
                                                 uint64_t address, size_t len)
{
    const dcommi_map *map = dcommi_map_for(comm, rank, region, address, len);
    return map != NULL && !map->on_device ? map->local + (address - map->base) : NULL;
}

/* Handle REGION_ASK, REGION, REGION_GONE and REGION_SHUT; the header is valid. */
static void dcommi_on_region_message(dcomm_comm *comm, const dcommi_header *h, const void *data)
{
    struct dcommi_regions *regions = comm->context->regions;
    int peer = comm->members[h->src].peer;
    if (h->type == DCOMMI_MSG_REGION_ASK) {
        dcommi_on_region_ask(comm, h);
    } else if (h->type == DCOMMI_MSG_REGION) {
        dcommi_on_region(comm, h, data);
    } else if (h->type == DCOMMI_MSG_REGION_SHUT) {
        dcommi_on_region_shut(comm->context, peer, h->tag);
    } else {
        dcommi_map **at = regions != NULL ? dcommi_map_at(regions, peer, h->tag) : NULL;
        if (at != NULL && *at != NULL) {
            dcommi_map_drop(comm->context, at);
        } else if (h->a == 1) {
            dcommi_device_map_gone(comm->context, peer, h->tag);
        }
    }
}

#endif
