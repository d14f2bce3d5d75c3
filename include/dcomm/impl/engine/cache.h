/* cache.h - plans, found by the calls that they were made for. The cache is bounded, and the least
 * recently used plan goes first. A plan in use stays until its last run has ended. */
#ifndef DCOMMI_CACHE_H
#define DCOMMI_CACHE_H

#include "engine.h"

static void dcommi_cached_free(dcommi_cached *cached)
{
    dcommi_free(cached->plan);
    dcommi_free(cached->inner);
    dcommi_free(cached->script);
    dcommi_free(cached);
}

/* Drop a reference. This and all below: with comm->lock, or by the owner inside (token.h). */
static void dcommi_cached_release(dcommi_cached *cached)
{
    if (--cached->refs == 0 && cached->retired) {
        dcommi_cached_free(cached);
    }
}

static void dcommi_cache_retire(dcomm_comm *comm, dcommi_cached **at)
{
    dcommi_cached *cached = *at;
    *at = cached->next;
    comm->ncached--;
    cached->retired = true;
    if (cached->refs == 0) {
        dcommi_cached_free(cached);
    }
}

static void dcommi_cache_clear(dcomm_comm *comm)
{
    for (int i = 0; i < DCOMMI_CACHE_BUCKETS; i++) {
        while (comm->cache[i] != NULL) {
            dcommi_cache_retire(comm, &comm->cache[i]);
        }
    }
}

static inline dcommi_cached **dcommi_cache_bucket(dcomm_comm *comm, const dcommi_call_key *key)
{
    uint64_t h =
        (key->call ^ key->type * 31 ^ key->mode << 20 ^ key->counts[0]) * 0x9e3779b97f4a7c15u;
    h = (h ^ key->count ^ key->chunk << 32) * 0xd6e8feb86659fd93u;
    return &comm->cache[(h >> 32) % DCOMMI_CACHE_BUCKETS];
}

static inline bool dcommi_cached_is(const dcommi_cached *c, const dcommi_call_key *key,
                                    const char *asked)
{
    const dcommi_call_key *k = &c->key;
    return k->call == key->call && k->type == key->type && k->count == key->count &&
           k->mode == key->mode && k->chunk == key->chunk && k->counts[0] == key->counts[0] &&
           k->counts[1] == key->counts[1] &&
           (c->asked == asked ||
            (c->asked != NULL && asked != NULL && strcmp(c->asked, asked) == 0));
}

/* Return the plan of a call that named the algorithm `asked` (NULL: none), with a reference taken.
 * NULL: it is not in the cache. */
static inline dcommi_cached *dcommi_cache_find(dcomm_comm *comm, const dcommi_call_key *key,
                                               const char *asked)
{
    for (dcommi_cached *c = *dcommi_cache_bucket(comm, key); c != NULL; c = c->next) {
        if (DCOMMI_LIKELY(dcommi_cached_is(c, key, asked))) {
            c->used = ++comm->cache_clock;
            c->refs++;
            return c;
        }
    }
    return NULL;
}

/* Add a plan, and the one that it calls (or NULL), with one reference for the caller. NULL without
 * memory; the plans are freed then. `asked` is not copied. */
static dcommi_cached *dcommi_cache_add(dcomm_comm *comm, const dcommi_call_key *key,
                                       const char *asked, dcomm_plan *plan, dcomm_plan *inner)
{
    dcommi_cached *cached = dcommi_alloc(sizeof *cached);
    if (cached == NULL) {
        dcommi_free(plan);
        dcommi_free(inner);
        return NULL;
    }
    while (comm->ncached >= DCOMMI_CACHE_PLANS) {
        dcommi_cached **oldest = NULL;
        for (int i = 0; i < DCOMMI_CACHE_BUCKETS; i++) {
            for (dcommi_cached **at = &comm->cache[i]; *at != NULL; at = &(*at)->next) {
                if (oldest == NULL || (*at)->used < (*oldest)->used) {
                    oldest = at;
                }
            }
        }
        dcommi_cache_retire(comm, oldest);
    }
    cached->key = *key;
    cached->asked = asked;
    cached->used = ++comm->cache_clock;
    cached->refs = 1;
    cached->plan = plan;
    cached->inner = inner;
    dcommi_cached **bucket = dcommi_cache_bucket(comm, key);
    cached->next = *bucket;
    *bucket = cached;
    comm->ncached++;
    comm->stats.plans_built++;
    return cached;
}

#endif
