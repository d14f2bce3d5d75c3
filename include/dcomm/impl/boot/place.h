/* place.h - where on its machine a rank runs, as ranks tell each other, and the groups that follow
 * from all ranks' places. Knows nothing of how a place is found. */
#ifndef DCOMMI_PLACE_H
#define DCOMMI_PLACE_H

#include "../base/environment.h"
#include "../plan/groups.h"

#define DCOMMI_PLACE_CPUS 1024 /* hardware threads of a machine that a place can tell apart */
#define DCOMMI_PLACE_NONE (-1) /* the machine has no such thing */
#define DCOMMI_PLACE_MANY (-2) /* the rank may run on several of them */

/* Fixed layout: a part of what ranks exchange. Numbers are hwloc's logical indices of the whole
 * machine, so that ranks of one machine mean the same by them. */
typedef struct dcommi_site {
    int32_t package, numa, cache, core;
    int32_t cpus;     /* hardware threads that the rank may run on */
    int32_t unknown;  /* not 0: some of them have numbers beyond the mask */
    uint64_t machine; /* a kernel that runs, which containers share; 0: unknown */
    uint64_t mask[DCOMMI_PLACE_CPUS / 64]; /* which, by the system's numbers */
    char nic[16], gpu[16];                 /* "": none */
} dcommi_site;

_Static_assert(sizeof(dcommi_site) == 32 + DCOMMI_PLACE_CPUS / 8 + 32, "no padding");

/* A place that comes from another rank; strings are ended in any case. */
static dcomm_status dcommi_place_check(dcommi_site *place, int rank)
{
    const int32_t index[] = {place->package, place->numa, place->cache, place->core};
    bool good = place->cpus >= 0;
    for (size_t i = 0; i < sizeof index / sizeof index[0]; i++) {
        good = good && index[i] >= DCOMMI_PLACE_MANY;
    }
    char *const names[] = {place->nic, place->gpu};
    for (size_t i = 0; i < 2; i++) {
        names[i][sizeof place->nic - 1] = 0;
        for (char *c = names[i]; *c != 0; c++) {
            *c = *c < ' ' || *c > '~' ? '?' : *c;
        }
    }
    return good ? DCOMM_OK
                : dcommi_fail(DCOMM_ERR_CORRUPT,
                              "rank %d says that it runs in package %d, NUMA node %d, cache %d, "
                              "core %d on %d hardware threads",
                              rank, place->package, place->numa, place->cache, place->core,
                              place->cpus);
}

static bool dcommi_place_same(const dcommi_site *a, const dcommi_site *b)
{
    return memcmp(a->mask, b->mask, sizeof a->mask) == 0 && a->unknown == b->unknown;
}

/* Return true if two ranks mean the same machine by the same numbers: ranks of a host, and of
 * several containers on one machine, which are hosts to each other. */
static bool dcommi_place_beside(const dcommi_groups *g, const dcommi_site *places, int a, int b)
{
    return dcommi_group_of(g, 0, a) == dcommi_group_of(g, 0, b) ||
           (places[a].machine != 0 && places[a].machine == places[b].machine);
}

/* Return true if two ranks of one machine may get the same hardware thread. */
static bool dcommi_place_overlap(const dcommi_site *a, const dcommi_site *b)
{
    uint64_t both = 0;
    for (size_t i = 0; i < DCOMMI_PLACE_CPUS / 64; i++) {
        both |= a->mask[i] & b->mask[i];
    }
    return both != 0;
}

/* ---- groups ---- */

static const uint8_t dcommi_place_kinds[] = {DCOMMI_LEVEL_HOST, DCOMMI_LEVEL_PACKAGE,
                                             DCOMMI_LEVEL_NUMA, DCOMMI_LEVEL_CACHE,
                                             DCOMMI_LEVEL_CORE};
enum { DCOMMI_PLACE_LEVELS = sizeof dcommi_place_kinds };

static int32_t dcommi_place_index(const dcommi_site *p, int level)
{
    const int32_t index[DCOMMI_PLACE_LEVELS] = {0, p->package, p->numa, p->cache, p->core};
    return index[level];
}

/* The i-th rank below `rank` that may run where this one may, on the same hardware threads; -1:
 * there are not so many, and *count is how many there are. */
static int dcommi_place_twin(const dcommi_groups *g, const dcommi_site *places, int rank, int i,
                             int *count)
{
    *count = 0;
    for (int r = 0; r < rank; r++) {
        if (dcommi_place_beside(g, places, r, rank) &&
            dcommi_place_same(&places[r], &places[rank]) && (*count)++ == i) {
            return r;
        }
    }
    return -1;
}

/* Ranks that may run on the same hardware threads have one each, and when all are taken, take turns
 * on them one after the other. */
static void dcommi_place_seats(dcommi_groups *g, const dcommi_site *places)
{
    for (int r = 0; r < g->nranks; r++) {
        int before, cpus = places[r].unknown == 0 ? places[r].cpus : 0;
        dcommi_place_twin(g, places, r, g->nranks, &before);
        if (cpus > 0 && before >= cpus) {
            g->seat[r] = dcommi_place_twin(g, places, r, before % cpus, &before);
        }
    }
}

/* Return true if, on each host, every group of the level `inner` lies within one group of `outer`,
 * and some group of `outer` holds several. ids[r] is the group of rank r. */
static bool dcommi_place_nests(int n, const int64_t *host, const int64_t *inner,
                               const int64_t *outer)
{
    bool several = false;
    for (int r = 0; r < n; r++) {
        int in = 0, out = 0; /* the first ranks of this rank's groups */
        while (host[in] != host[r] || inner[in] != inner[r]) {
            in++;
        }
        while (host[out] != host[r] || outer[out] != outer[r]) {
            out++;
        }
        if (outer[in] != outer[r]) {
            return false;
        }
        several = several || inner[out] != inner[r];
    }
    return several;
}

/* Put the levels below the host into the order in which this machine nests them: some machines have
 * several packages in a NUMA node, most have several NUMA nodes in a package. */
static void dcommi_place_sort(int n, const int64_t *host, uint8_t *kinds, int64_t *ids)
{
    for (int l = 2; l < DCOMMI_PLACE_LEVELS; l++) {
        for (int k = l; k > 1; k--) {
            int64_t *here = ids + (size_t)k * (size_t)n, *above = here - n;
            if (!dcommi_place_nests(n, host, above, here)) {
                break;
            }
            for (int r = 0; r < n; r++) {
                int64_t id = here[r];
                here[r] = above[r];
                above[r] = id;
            }
            uint8_t kind = kinds[k];
            kinds[k] = kinds[k - 1];
            kinds[k - 1] = kind;
        }
    }
}

/* The groups of n ranks, host[r] being the host of rank r. Ranks that may run on several packages,
 * say, share with those alone that may run on exactly the same hardware threads. */
static dcommi_groups *dcommi_place_groups(int n, const int64_t *host, const dcommi_site *places)
{
    int64_t *ids = dcommi_calloc((size_t)n * DCOMMI_PLACE_LEVELS, sizeof *ids);
    if (ids == NULL) {
        return NULL;
    }
    for (int r = 0; r < n; r++) {
        int twin = 0; /* the first rank of the same host with the same hardware threads */
        while (host[twin] != host[r] || !dcommi_place_same(&places[twin], &places[r])) {
            twin++;
        }
        ids[r] = host[r];
        for (int l = 1; l < DCOMMI_PLACE_LEVELS; l++) {
            int32_t index = dcommi_place_index(&places[r], l);
            ids[(size_t)l * (size_t)n + (size_t)r] =
                index == DCOMMI_PLACE_MANY ? DCOMMI_PLACE_MANY - (int64_t)twin : index;
        }
    }
    uint8_t kinds[DCOMMI_PLACE_LEVELS];
    memcpy(kinds, dcommi_place_kinds, sizeof kinds);
    dcommi_place_sort(n, host, kinds, ids);
    dcommi_groups *groups = dcommi_groups_make(n, DCOMMI_PLACE_LEVELS, kinds, ids);
    dcommi_free(ids);
    if (groups != NULL) {
        dcommi_place_seats(groups, places);
    }
    return groups;
}

/* ---- ranks that may be moved ---- */

/* Return true if the scheduler may put this rank where another rank of its machine runs. One that
 * has a core, or hardware threads that nobody else of us uses, stays out of the others' way. */
static bool dcommi_place_unbound(const dcommi_groups *g, const dcommi_site *places, int rank)
{
    const dcommi_site *mine = &places[rank];
    if (mine->core >= 0 || mine->cpus <= 1 || mine->unknown != 0) {
        return false;
    }
    for (int r = 0; r < g->nranks; r++) {
        if (r != rank && dcommi_place_beside(g, places, r, rank) &&
            dcommi_place_overlap(mine, &places[r])) {
            return true;
        }
    }
    return false;
}

/* Return true if the ranks of this rank's machine outnumber the hardware threads that they may run
 * on. */
static bool dcommi_place_crowded(const dcommi_groups *g, const dcommi_site *places, int rank)
{
    int ranks = 0, cpus = 0;
    for (int i = 0; i < DCOMMI_PLACE_CPUS / 64; i++) {
        uint64_t any = 0;
        for (int r = 0; r < g->nranks; r++) {
            if (dcommi_place_beside(g, places, r, rank)) {
                any |= places[r].mask[i];
                ranks += i == 0;
                if (places[r].unknown != 0) {
                    return false;
                }
            }
        }
        cpus += __builtin_popcountll(any);
    }
    return cpus > 0 && ranks > cpus;
}

typedef struct dcommi_place_ranks {
    const dcommi_groups *groups;
    const dcommi_site *places;
} dcommi_place_ranks;

static bool dcommi_place_rank_unbound(const void *ranks, size_t rank)
{
    const dcommi_place_ranks *r = ranks;
    return dcommi_place_unbound(r->groups, r->places, (int)rank);
}

/* Write the unbound ranks, "0-3, 6". Return how many there are. */
static int dcommi_place_unbound_list(const dcommi_groups *g, const dcommi_site *places, char *text,
                                     size_t len)
{
    const dcommi_place_ranks ranks = {g, places};
    return (int)dcommi_text_ranges(text, len, ", ", (size_t)g->nranks, dcommi_place_rank_unbound,
                                   &ranks);
}

/* Once per process, in rank 0 of a communicator whose ranks are processes. */
static void dcommi_place_warn(const dcommi_groups *g, const dcommi_site *places)
{
    static _Atomic int said;
    char list[128];
    if (!dcommi_env_flag("DCOMM_WARN_UNBOUND", true) || atomic_load(&said) != 0) {
        return;
    }
    int n = dcommi_place_unbound_list(g, places, list, sizeof list);
    if (n > 0 && atomic_exchange(&said, 1) == 0) {
        dcommi_log(
            DCOMMI_LOG_WARN,
            "rank%s %s of %d %s not bound to cores and may be moved onto each other's, which "
            "can make short messages a hundred times slower; bind the ranks (dcomm-run "
            "--bind slice, mpirun --bind-to core, srun --cpu-bind=cores), or set "
            "DCOMM_WARN_UNBOUND=0",
            n > 1 ? "s" : "", list, g->nranks, n > 1 ? "are" : "is");
    }
}

/* ---- as text ---- */

static bool dcommi_place_has_cpu(const void *place, size_t cpu)
{
    return ((const dcommi_site *)place)->mask[cpu / 64] >> cpu % 64 & 1;
}

/* Write the hardware threads of a place, "0-3,8". */
static void dcommi_place_cpu_list(const dcommi_site *p, char *text, size_t len)
{
    dcommi_text_ranges(text, len, ",", DCOMMI_PLACE_CPUS, dcommi_place_has_cpu, p);
}

#endif
