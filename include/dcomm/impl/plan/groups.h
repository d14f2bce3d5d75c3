/* groups.h - which ranks share a host, a package, a NUMA node, a cache or a core. Algorithms, the
 * model and the choice use it. Every rank of a communicator has the same table. */
#ifndef DCOMMI_GROUPS_H
#define DCOMMI_GROUPS_H

#include "../base/util.h"

#define DCOMMI_LEVELS_MAX 6

/* The hardware that the ranks of one group share. */
enum dcommi_level_kind {
    DCOMMI_LEVEL_HOST,
    DCOMMI_LEVEL_PACKAGE,
    DCOMMI_LEVEL_NUMA,
    DCOMMI_LEVEL_CACHE,
    DCOMMI_LEVEL_CORE
};

/* Level 0 is the coarsest; each group lies within one group of the level above. Groups of a level
 * are numbered from 0 in the order of their lowest rank. */
typedef struct dcommi_groups {
    int nranks, nlevels;
    uint8_t kind[DCOMMI_LEVELS_MAX];
    int32_t count[DCOMMI_LEVELS_MAX]; /* groups of each level */
    int32_t *order;                   /* [nranks]: all ranks; those of a group are neighbours */
    int32_t *group;                   /* [nlevels * nranks]: the group of each rank */
    int32_t *seat; /* [nranks]: the lowest rank on the same hardware thread as this one; this rank
                      itself if no other is known there */
} dcommi_groups;

static inline int32_t dcommi_group_of(const dcommi_groups *g, int level, int rank)
{
    return g->group[level * g->nranks + rank];
}

/* Return the number of levels at which two ranks are in the same group; 0: different hosts. */
static inline int dcommi_groups_depth(const dcommi_groups *g, int a, int b)
{
    int level = 0;
    while (level < g->nlevels && dcommi_group_of(g, level, a) == dcommi_group_of(g, level, b)) {
        level++;
    }
    return level;
}

/* Limits of broadcast slots (bcast.h), which carry messages to all ranks of one host: bytes of a
 * message, and ranks. Two ranks use their fifos. */
#define DCOMMI_BCAST_PAYLOAD 4096
#define DCOMMI_BCAST_RANKS 16

static inline bool dcommi_groups_post(const dcommi_groups *g, int nranks)
{
    return (g == NULL || g->count[0] <= 1) && nranks > 2 && nranks <= DCOMMI_BCAST_RANKS;
}

static void dcommi_groups_free(dcommi_groups **g_p)
{
    dcommi_free(*g_p);
    *g_p = NULL;
}

/* Make groups from numbers that say which ranks share something: ids[l * nranks + r] is that of
 * rank r at level l, the coarsest level first. Split a group where the level above is split. Leave
 * out a level that divides no group of the level above; level 0 always stays. Return one block of
 * memory; NULL without memory. */
static dcommi_groups *dcommi_groups_make(int nranks, int nlevels, const uint8_t *kinds,
                                         const int64_t *ids)
{
    size_t n = (size_t)nranks, table = (size_t)nlevels * n;
    dcommi_groups *g = dcommi_alloc(sizeof *g + (2 * n + table) * sizeof(int32_t));
    if (g == NULL) {
        return NULL;
    }
    g->nranks = nranks;
    g->order = (int32_t *)(g + 1);
    g->seat = g->order + n;
    g->group = g->seat + n;
    for (int r = 0; r < nranks; r++) {
        g->seat[r] = r;
    }
    for (int l = 0; l < nlevels && g->nlevels < DCOMMI_LEVELS_MAX; l++) {
        int32_t *now = g->group + (size_t)g->nlevels * n, count = 0;
        const int32_t *above = g->nlevels > 0 ? now - n : NULL;
        for (int r = 0; r < nranks; r++) {
            now[r] = -1;
            for (int q = 0; q < r && now[r] < 0; q++) {
                bool same = ids[(size_t)l * n + (size_t)q] == ids[(size_t)l * n + (size_t)r] &&
                            (above == NULL || above[q] == above[r]);
                now[r] = same ? now[q] : -1;
            }
            now[r] = now[r] < 0 ? count++ : now[r];
        }
        if (above == NULL || count > g->count[g->nlevels - 1]) {
            g->kind[g->nlevels] = kinds[l];
            g->count[g->nlevels++] = count;
        }
    }
    /* Insert each rank behind the last one of its group, so that groups of every level stay
     * together and their ranks stay in rank order. */
    for (int r = 0; r < nranks; r++) {
        int at = r, best = -1;
        for (int i = r; i-- > 0 && best < g->nlevels;) {
            int depth = dcommi_groups_depth(g, g->order[i], r);
            if (depth > best) {
                best = depth;
                at = i + 1;
            }
        }
        memmove(g->order + at + 1, g->order + at, (size_t)(r - at) * sizeof *g->order);
        g->order[at] = (int32_t)r;
    }
    return g;
}

/* Make the groups of some of the ranks: members[i] is the parent's rank of rank i. */
static dcommi_groups *dcommi_groups_restrict(const dcommi_groups *parent, const int *members, int n)
{
    int64_t *ids = dcommi_calloc((size_t)n * (size_t)parent->nlevels + 1, sizeof *ids);
    if (ids == NULL) {
        return NULL;
    }
    for (int l = 0; l < parent->nlevels; l++) {
        for (int i = 0; i < n; i++) {
            ids[l * n + i] = dcommi_group_of(parent, l, members[i]);
        }
    }
    dcommi_groups *g = dcommi_groups_make(n, parent->nlevels, parent->kind, ids);
    dcommi_free(ids);
    for (int i = 0; g != NULL && i < n; i++) {
        for (int k = i; k-- > 0;) {
            g->seat[i] = parent->seat[members[k]] == parent->seat[members[i]] ? k : g->seat[i];
        }
    }
    return g;
}

#endif
