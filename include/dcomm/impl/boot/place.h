/* place.h - a rank's place on its machine, which ranks exchange, and the groups that follow from
 * all ranks' places. Other files find the place. */
#ifndef DCOMMI_PLACE_H
#define DCOMMI_PLACE_H

#include "../base/environment.h"
#include "../plan/groups.h"

#define DCOMMI_PLACE_CPUS 1024 /* hardware threads of a machine that a place distinguishes */
#define DCOMMI_PLACE_NONE (-1) /* the machine has no such thing */
#define DCOMMI_PLACE_MANY (-2) /* the rank may run on several of them */

/* A place. Its layout is fixed, because ranks exchange it. Numbers are hwloc's logical indices of
 * the whole machine, so they mean the same on all ranks of a machine. */
typedef struct dcommi_site {
    int32_t package, numa, cache, core;
    int32_t cpus;     /* hardware threads that the rank may run on */
    int32_t unknown;  /* not 0: some of these have numbers beyond the mask */
    uint64_t machine; /* identifies the running kernel, which containers share; 0: unknown */
    uint64_t mask[DCOMMI_PLACE_CPUS / 64]; /* these hardware threads, by the system's numbers */
    char nic[16], gpu[16];                 /* "": none */
} dcommi_site;

_Static_assert(sizeof(dcommi_site) == 32 + DCOMMI_PLACE_CPUS / 8 + 32, "no padding");

/* Check a place that another rank has sent. Terminate its strings even if it is bad. */
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

/* Return true if two ranks run on one machine, so that equal numbers mean the same. They may be on
 * one host, or in containers of a machine, which count as different hosts. */
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

/* Return the i-th rank below `rank` that may run on the same hardware threads. Return -1, and set
 * *count to their number, if there are not so many. */
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

/* Seat ranks that may run on the same hardware threads: one thread each. Further ranks share the
 * seats in turn. */
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

/* Return true if on each host every group of the level `inner` lies within one group of `outer`,
 * and some group of `outer` holds several. inner[r] and outer[r] are the groups of rank r. */
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

/* Sort the levels below the host by how this machine nests them. Some machines have several
 * packages in a NUMA node; most have several NUMA nodes in a package. */
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

/* Make the groups of `n` ranks; host[r] is the host of rank r. A rank that may run on several
 * packages, for example, shares its group only with ranks of exactly the same hardware threads. */
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

/* Return true if the scheduler may move this rank to where another rank of its machine runs. It
 * cannot if the rank has a core, or hardware threads that no other rank uses. */
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

/* Return true if the ranks of this rank's machine outnumber their hardware threads. */
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

/* Write the unbound ranks as "0-3, 6". Return how many there are. */
static int dcommi_place_unbound_list(const dcommi_groups *g, const dcommi_site *places, char *text,
                                     size_t len)
{
    const dcommi_place_ranks ranks = {g, places};
    return (int)dcommi_text_ranges(text, len, ", ", (size_t)g->nranks, dcommi_place_rank_unbound,
                                   &ranks);
}

/* Warn about unbound ranks, once per process. Call this on rank 0 of a communicator whose ranks
 * are processes. */
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
            "rank%s %s of %d %s not bound to cores; the scheduler may put several ranks on one "
            "core, which makes short messages much slower; bind the ranks (dcomm-run --bind "
            "slice, mpirun --bind-to core, srun --cpu-bind=cores), or set DCOMM_WARN_UNBOUND=0",
            n > 1 ? "s" : "", list, g->nranks, n > 1 ? "are" : "is");
    }
}

/* ---- as text ---- */

static bool dcommi_place_has_cpu(const void *place, size_t cpu)
{
    return ((const dcommi_site *)place)->mask[cpu / 64] >> cpu % 64 & 1;
}

/* Write the hardware threads of a place as "0-3,8". */
static void dcommi_place_cpu_list(const dcommi_site *p, char *text, size_t len)
{
    dcommi_text_ranges(text, len, ",", DCOMMI_PLACE_CPUS, dcommi_place_has_cpu, p);
}

#endif
