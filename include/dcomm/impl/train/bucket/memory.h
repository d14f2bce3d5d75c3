/* memory.h - the memory of buckets: the caller's gradients, or memory of their own. */
#ifndef DCOMMI_BUCKET_MEMORY_H
#define DCOMMI_BUCKET_MEMORY_H

#include "../../comm/api_mem.h"
#include "device.h"

/* Allocate memory as long as bucket k, where k lies. */
static dcomm_status dcommi_bkt_memory(const dcommi_bkt *k, unsigned char **memory_p)
{
    void *memory = NULL;
    if (k->device != NULL) {
        DCOMMI_TRY(dcommi_devices->alloc(k->device->number, k->stream, k->bytes, &memory));
    } else {
        memory = dcommi_alloc(k->bytes);
    }
    *memory_p = memory;
    return memory != NULL ? DCOMM_OK : DCOMM_ERR_NO_MEMORY;
}

static void dcommi_bkt_free_memory(dcommi_bkt *k)
{
    if (k->device != NULL) {
        unsigned char *all[] = {k->memory, k->values_memory};
        for (int i = 0; i < 2; i++) {
            if (all[i] != NULL) {
                dcommi_devices->release(k->device->number, k->stream, all[i]);
            }
        }
        if (k->event != NULL) { /* of a step that has failed */
            dcommi_devices->stream_unmark(k->device->number, k->event);
        }
        return;
    }
    dcommi_free(k->values_memory);
    if (k->registered) {
        void *memory = k->memory;
        dcomm_mem_free(&memory);
    } else {
        dcommi_free(k->memory);
    }
}

/* Return the caller's gradients (or parameters) if they lie one behind another, else NULL. Ranks
 * may differ in this, since it does not change what is sent. Several gradients on a device never
 * count: neighbours there may be two allocations, which no copy may cross. */
static unsigned char *dcommi_bkt_flat(const dcomm_buckets *b, const dcommi_bkt *k, bool values)
{
    unsigned char *first = NULL, *next = NULL;
    for (size_t i = 0; i < k->nparams; i++) {
        const dcommi_bkt_param *p = &b->params[k->params[i]];
        if (p->count == 0) {
            continue;
        }
        unsigned char *at = values ? p->value : p->grad;
        if (at == NULL || (next != NULL && (at != next || k->device != NULL))) {
            return NULL;
        }
        first = first != NULL ? first : at;
        next = at + p->bytes;
    }
    return first;
}

/* Find or allocate the memory of bucket `number`. */
static dcomm_status dcommi_bkt_house(const dcomm_buckets *b, size_t number, dcommi_bkt *k)
{
    size_t place = b->kinds[k->kind].place;
    if (place > 0) {
        k->device = &b->devices[place - 1];
        k->stream = k->device->streams[number % DCOMMI_BKT_STREAMS];
    }
    k->data = dcommi_bkt_flat(b, k, false);
    if (k->data != NULL || k->bytes == 0) {
        return DCOMM_OK;
    }
    void *memory = NULL;
    k->registered = b->opts.registered && k->device == NULL &&
                    dcomm_mem_alloc(b->comm->context, k->bytes, &memory) == DCOMM_OK;
    k->memory = memory;
    if (!k->registered) {
        DCOMMI_TRY(dcommi_bkt_memory(k, &k->memory));
    }
    k->data = k->memory;
    for (size_t i = 0; i < k->nparams; i++) {
        k->copies = k->copies || b->params[k->params[i]].grad != NULL;
    }
    return DCOMM_OK;
}

/* Cut a bucket into equal shards, except the last ones: whole cache lines of 4-byte elements.
 * Return NULL without memory. */
static size_t *dcommi_bkt_cut(const dcomm_buckets *b, const dcommi_bkt *k)
{
    size_t part = (k->count / (size_t)b->size + (k->count % (size_t)b->size > 0) + 15) / 16 * 16;
    size_t left = k->count;
    size_t *shards = dcommi_calloc((size_t)b->size, sizeof *shards);
    for (int r = 0; r < b->size && shards != NULL; r++) {
        shards[r] = left < part ? left : part;
        left -= shards[r];
    }
    return shards;
}

/* Give each rank its shard of a bucket, and the parameters a place. */
static dcomm_status dcommi_bkt_share(const dcomm_buckets *b, dcommi_bkt *k)
{
    k->shards = dcommi_bkt_cut(b, k);
    if (k->shards == NULL) {
        return DCOMM_ERR_NO_MEMORY;
    }
    k->values = b->has_values ? dcommi_bkt_flat(b, k, true) : NULL;
    if (b->has_values && k->values == NULL && k->bytes > 0) {
        DCOMMI_TRY(dcommi_bkt_memory(k, &k->values_memory));
        k->values = k->values_memory;
    }
    return DCOMM_OK;
}

#endif
