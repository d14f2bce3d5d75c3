/* match.h - the table in which messages meet the steps that want them. */
#ifndef DCOMMI_MATCH_H
#define DCOMMI_MATCH_H

#include "token.h"

static inline dcommi_match_node **dcommi_bucket(dcomm_comm *comm, const dcommi_match_node *key)
{
    uint64_t h = key->seq * 0x9e3779b97f4a7c15u;
    h ^= ((uint64_t)key->tag << 24) ^ ((uint64_t)(uint32_t)key->peer << 8) ^ key->cls ^
         ((uint64_t)key->stage << 56) ^ ((uint64_t)key->stream << 7);
    h *= 0xd6e8feb86659fd93u;
    return &comm->table[(h >> 32) % DCOMMI_BUCKETS];
}

static inline bool dcommi_node_equal(const dcommi_match_node *a, const dcommi_match_node *b)
{
    return a->seq == b->seq && a->tag == b->tag && a->peer == b->peer && a->stage == b->stage &&
           a->stream == b->stream && a->cls == b->cls;
}

static inline dcommi_match_node dcommi_key(uint8_t cls, uint8_t stream, uint64_t seq,
                                           uint16_t stage, int32_t peer, uint32_t tag)
{
    dcommi_match_node key = {
        .seq = seq, .tag = tag, .peer = peer, .stage = stage, .stream = stream, .cls = cls};
    return key;
}

static inline void dcommi_match_insert(dcomm_comm *comm, dcommi_match_node *node)
{
    dcommi_match_node **bucket = dcommi_bucket(comm, node);
    node->next = *bucket;
    *bucket = node;
}

static inline dcommi_match_node *dcommi_match_find(dcomm_comm *comm, const dcommi_match_node *key)
{
    dcommi_match_node *node = *dcommi_bucket(comm, key);
    while (node != NULL && !dcommi_node_equal(node, key)) {
        node = node->next;
    }
    return node;
}

/* Return the move that a node belongs to. */
static inline dcommi_move *dcommi_move_of(dcommi_match_node *node)
{
    return (dcommi_move *)((char *)node - offsetof(dcommi_move, node));
}

/* Take a node out of the table; return false if it was not there. */
static inline bool dcommi_match_remove(dcomm_comm *comm, dcommi_match_node *node)
{
    for (dcommi_match_node **at = dcommi_bucket(comm, node); *at != NULL; at = &(*at)->next) {
        if (*at == node) {
            *at = node->next;
            return true;
        }
    }
    return false;
}

static inline dcommi_match_node *dcommi_match_take(dcomm_comm *comm, const dcommi_match_node *key)
{
    for (dcommi_match_node **at = dcommi_bucket(comm, key); *at != NULL; at = &(*at)->next) {
        if (dcommi_node_equal(*at, key)) {
            dcommi_match_node *node = *at;
            *at = node->next;
            return node;
        }
    }
    return NULL;
}

/* ---- messages that came early ---- */

/* Remember an arrival. *verdict tells the transport what became of it. NULL without memory. */
static dcommi_early *dcommi_early_make(dcommi_transport *transport, const dcommi_header *header,
                                       const dcommi_arrival *arrival, dcommi_verdict *verdict)
{
    *verdict = DCOMMI_CONSUMED;
    dcommi_early *early = dcommi_alloc(sizeof *early);
    if (early == NULL) {
        return NULL;
    }
    early->header = *header;
    early->transport = transport;
    early->len = arrival->len;
    if (arrival->len > 0 && arrival->desc != NULL) {
        early->desc = arrival->desc;
        early->data = (void *)(uintptr_t)arrival->data;
        *verdict = DCOMMI_KEEP;
    } else if (arrival->len > 0) {
        early->data = dcommi_alloc_raw(arrival->len);
        if (early->data == NULL) {
            dcommi_free(early);
            return NULL;
        }
        memcpy(early->data, arrival->data, arrival->len);
    }
    return early;
}

static void dcommi_early_free(dcommi_early *early)
{
    if (early->desc != NULL) {
        early->transport->call->release(early->transport, early->desc);
    } else {
        dcommi_free(early->data);
    }
    dcommi_free(early);
}

static void dcommi_early_keep(dcomm_comm *comm, dcommi_early *early, uint8_t cls)
{
    const dcommi_header *h = &early->header;
    bool of_run = cls == DCOMMI_NODE_EARLY_RUN;
    early->node = dcommi_key(cls, h->stream, h->seq, h->stage, of_run ? 0 : (int32_t)h->src,
                             of_run ? 0 : h->tag);
    dcommi_match_insert(comm, &early->node);
    comm->early_count++;
    comm->early_bytes += early->len;
    if (comm->early_bytes > comm->stats.unexpected_bytes_max) {
        comm->stats.unexpected_bytes_max = comm->early_bytes;
    }
}

/* Forget messages that came early: for the collective *seq, or for any operation if `seq` is
 * NULL. */
static void dcommi_early_purge(dcomm_comm *comm, const uint64_t *seq)
{
    for (int i = 0; i < DCOMMI_BUCKETS && comm->early_count > 0; i++) {
        for (dcommi_match_node **at = &comm->table[i]; *at != NULL;) {
            dcommi_match_node *node = *at;
            if ((node->cls != DCOMMI_NODE_EARLY && node->cls != DCOMMI_NODE_EARLY_RUN) ||
                (seq != NULL && (node->seq != *seq || node->stream != DCOMMI_STREAM_COLL))) {
                at = &node->next;
                continue;
            }
            *at = node->next;
            comm->early_count--;
            comm->early_bytes -= ((dcommi_early *)node)->len;
            dcommi_early_free((dcommi_early *)node);
        }
    }
}

#endif
