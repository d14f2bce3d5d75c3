/* bcast.h - broadcast slots. On one host, a rank writes a message for all other ranks once, to its
 * own memory, and they read it there. The other way is to write it into the fifo of each. With
 * many ranks on few cores, such messages take most of the time of a short collective.
 *
 * A communicator has a set of slots in each process and uses them in turn. A slot is reused once
 * all ranks have completed the operation of its last message, as their headers say. If they have
 * not yet, or are not known to poll the set, the message goes through the fifos. Readers poll
 * both, and find the message by its operation. */
#ifndef DCOMMI_BCAST_H
#define DCOMMI_BCAST_H

#include "../engine.h"

#define DCOMMI_BCAST_SETS 8 /* of a process */
#define DCOMMI_BCAST_SLOTS 4
#define DCOMMI_BCAST_LINE 64

typedef struct dcommi_bcast_slot {
    /* Turn (32 bits, 1 + the number of the message), payload length (16), header length (16). */
    _Alignas(DCOMMI_BCAST_LINE) _Atomic uint64_t word;
    unsigned char bytes[sizeof(dcommi_header) + DCOMMI_BCAST_PAYLOAD]; /* header, payload */
} dcommi_bcast_slot;

/* A set of slots, in shared memory. The readers trust none of it. */
typedef struct dcommi_bcast {
    _Alignas(DCOMMI_BCAST_LINE) _Atomic uint64_t comm; /* id of its communicator; 0: free */
    /* Bit r: rank r polls it. The bits above: the low bits of the communicator's id, while ranks
     * may begin to poll it. In one word with these, no bit can be that of an earlier communicator.
     */
    _Atomic uint64_t readers;
    dcommi_bcast_slot slot[DCOMMI_BCAST_SLOTS];
} dcommi_bcast;

_Static_assert(DCOMMI_BCAST_SETS * sizeof(dcommi_bcast) <= DCOMMI_COMMON_BYTES,
               "the sets find room");

/* The set that a rank writes. */
struct dcommi_bcast_writer {
    dcommi_bcast *set;
    uint64_t count;                     /* messages so far */
    uint64_t until[DCOMMI_BCAST_SLOTS]; /* operations that all must complete to free a slot */
    uint64_t others;                    /* bits of the other ranks */
    bool open;                          /* all of them poll it */
};

/* ---- coming and leaving ---- */

static dcommi_bcast *dcommi_bcast_sets_of(const dcomm_context *context, int peer)
{
    dcommi_transport *local = context->local;
    void *sets = NULL;
    return local->call->common != NULL && local->call->common(local, peer, &sets) == DCOMM_OK
               ? sets
               : NULL;
}

#define DCOMMI_BCAST_LOOKED_AT UINT64_MAX /* in place of an id: given up, but maybe polled */
#define DCOMMI_BCAST_BITS (((uint64_t)1 << DCOMMI_BCAST_RANKS) - 1) /* of ranks, in `readers` */

/* Return true if a set belongs to no communicator and nobody polls it any more. Only this process
 * writes `comm`. The last reader's loads come before it lets go. */
static bool dcommi_bcast_free(dcommi_bcast *set)
{
    uint64_t whose = atomic_load_explicit(&set->comm, memory_order_relaxed);
    return whose == 0 || (whose == DCOMMI_BCAST_LOOKED_AT &&
                          atomic_load_explicit(&set->readers, memory_order_acquire) == 0);
}

/* Take a set for a communicator, if it can use one. With the token. */
static void dcommi_bcast_open(dcomm_comm *comm)
{
    const dcomm_context *context = comm->context;
    bool fit = dcommi_groups_post(comm->groups, comm->size);
    for (int r = 0; r < comm->size && fit; r++) {
        int peer = comm->members[r].peer;
        fit = peer < 0 || context->peers[peer].transport == context->local;
    }
    dcommi_bcast *sets = fit ? dcommi_bcast_sets_of(context, -1) : NULL;
    for (int i = 0; i < DCOMMI_BCAST_SETS && sets != NULL && comm->bcast == NULL; i++) {
        dcommi_bcast *set = &sets[i];
        if (!dcommi_bcast_free(set)) {
            continue;
        }
        comm->bcast = dcommi_alloc(sizeof *comm->bcast);
        if (comm->bcast == NULL) {
            return;
        }
        comm->bcast->set = set;
        comm->bcast->others = ((uint64_t)1 << comm->size) - 1 - ((uint64_t)1 << comm->rank);
        for (int k = 0; k < DCOMMI_BCAST_SLOTS; k++) {
            atomic_store_explicit(&set->slot[k].word, 0, memory_order_relaxed);
        }
        atomic_store_explicit(&set->readers, comm->id << DCOMMI_BCAST_RANKS, memory_order_relaxed);
        /* The words and `readers` come before it. */
        atomic_store_explicit(&set->comm, comm->id, memory_order_release);
    }
}

static void dcommi_bcast_let_go(const dcomm_comm *comm, dcommi_bcast *set)
{
    /* Our loads of its slots come before it. */
    atomic_fetch_and_explicit(&set->readers, ~((uint64_t)1 << comm->rank), memory_order_release);
}

/* Tell the owner of a set that this rank polls it. Return false if the set is not that of the
 * communicator, or has been given up. */
static bool dcommi_bcast_look(const dcomm_comm *comm, dcommi_bcast *set)
{
    if (atomic_load_explicit(&set->comm, memory_order_acquire) != comm->id) {
        return false;
    }
    const uint64_t whose = comm->id << DCOMMI_BCAST_RANKS;
    uint64_t readers = atomic_load_explicit(&set->readers, memory_order_relaxed);
    while ((readers & ~DCOMMI_BCAST_BITS) == whose) {
        if (atomic_compare_exchange_weak_explicit(&set->readers, &readers,
                                                  readers | (uint64_t)1 << comm->rank,
                                                  memory_order_acq_rel, memory_order_relaxed)) {
            return true;
        }
    }
    return false;
}

/* Find the other ranks' sets. */
static void dcommi_bcast_find(dcomm_comm *comm)
{
    bool all = true;
    for (int r = 0; r < comm->size; r++) {
        dcommi_member *m = &comm->members[r];
        if (m->peer < 0 || m->bcast != NULL) {
            continue;
        }
        dcommi_bcast *sets = dcommi_bcast_sets_of(comm->context, m->peer);
        for (int i = 0; i < DCOMMI_BCAST_SETS && sets != NULL && m->bcast == NULL; i++) {
            if (dcommi_bcast_look(comm, &sets[i])) {
                m->bcast = &sets[i];
                m->bcast_read = 0;
            }
        }
        all = all && m->bcast != NULL;
    }
    comm->attached = all;
}

/* Find the other ranks' sets, unless all are found already. With the token. */
static inline void dcommi_bcast_attach(dcomm_comm *comm)
{
    if (DCOMMI_UNLIKELY(comm->bcast != NULL && !comm->attached)) {
        dcommi_bcast_find(comm);
    }
}

/* Give up the set of a communicator that ends. From here on no rank begins to poll it. It may be
 * reused at once, unless some rank still polls it: one that has neither said goodbye nor let go of
 * the set, and whose end is not proven. */
static void dcommi_bcast_close(dcomm_comm *comm)
{
    if (comm->bcast == NULL) {
        return;
    }
    dcommi_bcast *set = comm->bcast->set;
    atomic_store_explicit(&set->comm, DCOMMI_BCAST_LOOKED_AT, memory_order_relaxed);
    uint64_t readers =
        atomic_fetch_and_explicit(&set->readers, DCOMMI_BCAST_BITS, memory_order_acquire);
    readers &= DCOMMI_BCAST_BITS;
    for (int r = 0; r < comm->size; r++) {
        const dcommi_member *m = &comm->members[r];
        const dcommi_remote *p = m->peer >= 0 ? &comm->context->peers[m->peer] : NULL;
        if (p == NULL || (p->lost ? p->proven : m->gone)) {
            readers &= ~((uint64_t)1 << r);
        }
    }
    if (readers == 0) {
        atomic_store_explicit(&set->comm, 0, memory_order_relaxed);
    }
}

/* ---- writing ---- */

/* Write a message for all other ranks. Return false if it has to be sent to each. With the
 * token. */
static inline bool dcommi_bcast_post(dcomm_comm *comm, const dcommi_header *header,
                                     size_t header_len, const void *data, size_t len)
{
    struct dcommi_bcast_writer *p = comm->bcast;
    if (p == NULL || len > DCOMMI_BCAST_PAYLOAD) {
        return false;
    }
    if (DCOMMI_UNLIKELY(!p->open)) {
        uint64_t readers = atomic_load_explicit(&p->set->readers, memory_order_acquire);
        p->open = (readers & DCOMMI_BCAST_BITS) == p->others;
        if (!p->open) {
            return false;
        }
    }
    size_t at = p->count % DCOMMI_BCAST_SLOTS;
    for (int r = 0; r < comm->size; r++) {
        dcommi_member *m = &comm->members[r];
        if (m->peer >= 0 && m->done < p->until[at]) {
            return false;
        }
    }
    dcommi_bcast_slot *slot = &p->set->slot[at];
    if (len > 0) {
        memcpy(slot->bytes + header_len, data, len);
    }
    memcpy(slot->bytes, header, header_len);
    p->until[at] = header->seq + 1;
    p->count++;
    /* The message comes before it. */
    atomic_store_explicit(&slot->word,
                          (uint64_t)(uint32_t)p->count << 32 | (uint64_t)len << 16 | header_len,
                          memory_order_release);
    for (int r = 0; r < comm->size; r++) {
        comm->members[r].told = comm->done;
        comm->members[r].addressed = true;
    }
    return true;
}

/* ---- reading ---- */

/* Return true if a rank's slots hold a next message. It stays until it is passed, and its bytes
 * stay until this rank completes its operation. */
static inline bool dcommi_bcast_peek(const dcommi_member *m, dcommi_arrival *arrival)
{
    if (m->bcast == NULL) {
        return false;
    }
    const dcommi_bcast_slot *slot = &m->bcast->slot[m->bcast_read % DCOMMI_BCAST_SLOTS];
    /* The loads of the message come after it. */
    uint64_t word = atomic_load_explicit(&slot->word, memory_order_acquire);
    if ((uint32_t)(word >> 32) != (uint32_t)(m->bcast_read + 1)) {
        return false;
    }
    size_t header_len = word & UINT16_MAX, len = (uint16_t)(word >> 16);
    bool sound = header_len <= sizeof(dcommi_header) && len <= DCOMMI_BCAST_PAYLOAD;
    *arrival = (dcommi_arrival){.peer = m->peer,
                                .header = slot->bytes,
                                .header_len = sound ? header_len : 0,
                                .data = slot->bytes + header_len,
                                .len = sound ? len : 0,
                                .stays = true};
    return true;
}

static inline void dcommi_bcast_pass(dcommi_member *m)
{
    m->bcast_read++;
}

#endif
