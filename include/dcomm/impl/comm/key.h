/* key.h - the identity of a call. Its key finds the plan: all that the caller says of it except
 * the addresses of the buffers. Its signature is what all ranks must agree on: it includes the
 * chosen algorithm, but not how a rank's own buffers lie. */
#ifndef DCOMMI_KEY_H
#define DCOMMI_KEY_H

#include "../../coll.h"
#include "select.h"

static inline enum dcommi_memory dcommi_opts_memory(const dcomm_coll_opts *opts)
{
    return opts == NULL       ? DCOMMI_MEMORY_ANY
           : opts->device     ? (opts->registered ? DCOMMI_MEMORY_OPEN : DCOMMI_MEMORY_DEVICE)
           : opts->registered ? DCOMMI_MEMORY_REGISTERED
           : opts->huge_pages ? DCOMMI_MEMORY_HUGE
                              : DCOMMI_MEMORY_ANY;
}

/* Return the key of a call without codec whose counts are the same on all ranks. The arguments
 * need not have been checked: if the key finds a plan, they were checked when that plan was
 * made. */
static inline dcommi_call_key dcommi_call_key_of(dcomm_coll coll, size_t count, dcomm_dtype dtype,
                                                 dcomm_op op, int root, bool in_place,
                                                 const dcomm_coll_opts *opts)
{
    const bool deterministic = opts != NULL && opts->deterministic;
    const uint64_t memory = (uint64_t)dcommi_opts_memory(opts);
    return (dcommi_call_key){.call = (uint64_t)(uint32_t)root << 32 | (uint64_t)coll << 16 |
                                     memory << 8 | (uint64_t)deterministic << 1 | in_place,
                             .type = (uint64_t)(uint32_t)dtype << 32 | (uint64_t)(uint32_t)op,
                             .mode = opts == NULL ? 0
                                                  : (uint64_t)(uint32_t)opts->lanes << 32 |
                                                        (uint64_t)(uint32_t)opts->accumulate,
                             .count = count,
                             .chunk = opts == NULL ? 0 : opts->chunk_bytes};
}

static void dcommi_mix_counts(uint64_t key[2], const size_t *values, int n)
{
    for (int i = 0; values != NULL && i < n; i++) {
        key[0] = dcommi_mix(key[0], values[i]);
        key[1] = dcommi_mix(key[1], values[i] ^ 0x5bd1e9955bd1e995u);
    }
}

/* Return a hash of what the ranks must agree on. */
static uint32_t dcommi_shape_signature(const dcommi_shape *s, const dcommi_algo *algo)
{
    if (s->coll == DCOMM_COLL_SEND || s->coll == DCOMM_COLL_RECV) { /* both sides have the same */
        uint64_t pair = dcommi_mix(s->count, (uint64_t)s->dtype);
        return (uint32_t)(pair ^ (pair >> 32));
    }
    uint64_t h = dcommi_mix((uint64_t)s->dtype << 32 | (uint64_t)s->op, s->count);
    h = dcommi_mix(h, (uint64_t)s->coll);
    h = dcommi_mix(h, (uint64_t)s->root << 32 | (uint64_t)s->lanes << 8 |
                          (uint64_t)(s->memory >= DCOMMI_MEMORY_REGISTERED) << 1 | s->rank_order);
    h = dcommi_mix(h, (uint64_t)s->chunk_bytes);
    if (s->coding != NULL) {
        h = dcommi_mix(dcommi_mix(h, s->coding->hash), (uint64_t)(algo - dcommi_coded_table));
    } else {
        h = dcommi_mix(h, (uint64_t)(algo - dcommi_algo_table));
    }
    uint64_t key[2] = {h, h};
    if (s->send_counts == NULL) { /* all-to-all-v: each pair of ranks has counts of its own */
        dcommi_mix_counts(key, s->counts, s->nranks);
    }
    dcommi_mix_counts(key, s->matrix, s->nranks * s->nranks);
    h = key[0];
    return (uint32_t)(h ^ (h >> 32));
}

/* Return the key of any call that has been checked. */
static dcommi_call_key dcommi_shape_key(const dcommi_shape *s, const dcomm_coll_opts *opts)
{
    dcommi_call_key key =
        dcommi_call_key_of(s->coll, s->count, s->dtype, s->op, s->root, s->in_place, opts);
    if (s->coding != NULL) {
        key.counts[0] = s->coding->hash;
        key.counts[1] = 1 | (uint64_t)s->apart << 1 | (uint64_t)s->coding->feedback << 2 |
                        (uint64_t)s->coding->variant << 3 | (uint64_t)s->coding->clips << 4;
    }
    if (s->counts != NULL) {
        key.counts[0] += 1; /* to the codec's */
        key.counts[1] += 2;
        dcommi_mix_counts(key.counts, s->counts, s->nranks);
        dcommi_mix_counts(key.counts, s->displs, s->nranks);
        dcommi_mix_counts(key.counts, s->send_counts, s->nranks);
        dcommi_mix_counts(key.counts, s->send_displs, s->nranks);
        dcommi_mix_counts(key.counts, s->matrix, s->nranks * s->nranks);
    }
    return key;
}

#endif
