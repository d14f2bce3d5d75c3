/* cache.h - plans by what they were made for: bounded, least recently used goes first, a plan in
 * use stays until its last run has ended. */
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

/* With comm->lock, like all below. */
static void dcommi_cached_release(dcomm_comm *comm, dcommi_cached *cached)
{
    (void)comm;
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

static inline dcommi_cached **dcommi_cache_bucket(dcomm_comm *comm, const dcommi_plan_key *key)
{
    uint64_t h =
        (key->call ^ key->type * 31 ^ key->mode << 20 ^ key->counts[0]) * 0x9e3779b97f4a7c15u;
    h = (h ^ key->count ^ key->chunk << 32) * 0xd6e8feb86659fd93u;
    return &comm->cache[(h >> 32) % DCOMMI_CACHE_BUCKETS];
}

/* The plan of a key with a reference taken; NULL: not there. */
static dcommi_cached *dcommi_cache_find(dcomm_comm *comm, const dcommi_plan_key *key)
{
    for (dcommi_cached *c = *dcommi_cache_bucket(comm, key); c != NULL; c = c->next) {
        if (memcmp(&c->key, key, sizeof *key) == 0) {
            c->used = ++comm->cache_clock;
            c->refs++;
            comm->stats.plans_reused++;
            return c;
        }
    }
    return NULL;
}

/* Take over a plan, and the one that it calls (or NULL), with one reference for the caller. NULL
 * without memory, in which case the plans are freed. */
static dcommi_cached *dcommi_cache_add(dcomm_comm *comm, const dcommi_plan_key *key,
                                       dcomm_plan *plan, dcomm_plan *inner)
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

/* ---- recent calls ---- */

/* The plan of a recent call, NULL when it is none. */
static inline dcommi_cached *dcommi_recent_find(const dcomm_comm *comm, uint64_t call, size_t count,
                                                const char *algo)
{
    for (int i = 0; i < DCOMMI_RECENT; i++) {
        const dcommi_recent *recent = &comm->recent[i];
        if (recent->call == call && recent->count == count &&
            (recent->algo == algo ||
             (recent->algo != NULL && algo != NULL && strcmp(recent->algo, algo) == 0))) {
            return recent->cached;
        }
    }
    return NULL;
}

/* `algo` stays where it is. */
static void dcommi_recent_set(dcomm_comm *comm, uint64_t call, size_t count, const char *algo,
                              dcommi_cached *cached)
{
    dcommi_recent *last = &comm->recent[DCOMMI_RECENT - 1];
    if (last->call != 0) {
        if (last->cached == atomic_load_explicit(&comm->running, memory_order_acquire)) {
            return; /* another thread is in it */
        }
        dcommi_cached_release(comm, last->cached);
    }
    memmove(comm->recent + 1, comm->recent, (DCOMMI_RECENT - 1) * sizeof *comm->recent);
    comm->recent[0] = (dcommi_recent){call, count, algo, cached};
    cached->refs++;
}

static void dcommi_recent_clear(dcomm_comm *comm)
{
    for (int i = 0; i < DCOMMI_RECENT; i++) {
        if (comm->recent[i].call != 0) {
            dcommi_cached_release(comm, comm->recent[i].cached);
            comm->recent[i].call = 0;
        }
    }
}

#endif
