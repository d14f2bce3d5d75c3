/* parts.h - helpers of the hierarchical algorithms: the ranks of each group, and the sub-plans of
 * the levels. */
#ifndef DCOMMI_ALGO_HIER_PARTS_H
#define DCOMMI_ALGO_HIER_PARTS_H

#include "../alltoall.h"
#include "../coded/coded.h"
#include "../direct.h"
#include "../doubling.h"
#include "../misc.h"
#include "../ring.h"
#include "../tree.h"

#include <limits.h>

/* Limits from which a group within a host is divided again, found by prices
 * (docs/hierarchical.md).
 *
 * DIVIDE_BYTES: bytes of a part, where the ranks share the work. Shorter parts travel as messages,
 * and then fewer steps are better. DIVIDE_MIN: ranks of the group, where one rank does all the
 * work, or each rank has blocks for all. */
#ifndef DCOMMI_HIER_DIVIDE_BYTES
#define DCOMMI_HIER_DIVIDE_BYTES 8192
#endif
#ifndef DCOMMI_HIER_DIVIDE_MIN
#define DCOMMI_HIER_DIVIDE_MIN 8
#endif
#define DCOMMI_HIER_DEEPEST DCOMMI_LEVEL_CACHE

/* The coarsest level that divides the ranks, as one of them sees it. */
typedef struct dcommi_hier {
    const dcommi_shape *s;
    dcomm_builder *b;
    bool between_hosts;     /* the groups are hosts */
    int ngroups, smallest;  /* smallest: ranks of the smallest group */
    int shards;             /* of a buffer, within a group; 1: its first rank does all the work */
    int group, index, size; /* this rank's group, its place there, ranks there */
    int *begin;             /* [ngroups + 1]: where a group's ranks begin in member */
    int *member;            /* [nranks]: the ranks, group by group */
    dcommi_groups *inner;   /* the groups within this rank's group; NULL: it is not divided */
} dcommi_hier;

static void dcommi_hier_close(dcommi_hier *h)
{
    dcommi_free(h->begin);
    dcommi_groups_free(&h->inner);
}

static int dcommi_hier_size(const dcommi_hier *h, int group)
{
    return h->begin[group + 1] - h->begin[group];
}

static int dcommi_hier_rank(const dcommi_hier *h, int group, int index)
{
    return h->member[h->begin[group] + index];
}

/* Return the first level that divides the ranks; -1: none does, or each group is one rank. */
static int dcommi_hier_level(const dcommi_groups *g, int nranks)
{
    for (int l = 0; g != NULL && g->nranks == nranks && l < g->nlevels; l++) {
        if (g->count[l] > 1) {
            return g->count[l] < nranks ? l : -1;
        }
    }
    return -1;
}

/* Return the bytes of the longest block, or of the call's count: equal on all ranks. */
static int64_t dcommi_hier_bytes(const dcommi_shape *s)
{
    return s->counts != NULL ? dcommi_longest(s, s->counts) : dcommi_shape_bytes(s, s->count);
}

/* Return the ranks that a group must have to be divided. shards: parts that its ranks own; part:
 * bytes of each. */
static int dcommi_hier_least(int shards, int64_t part)
{
    return shards == 1 ? DCOMMI_HIER_DIVIDE_MIN : part >= DCOMMI_HIER_DIVIDE_BYTES ? 2 : INT_MAX;
}

/* Return true if a group can be divided again: it has `least` ranks or more, and its parts are
 * even. With uneven parts, the ranks of a call would need different numbers of tags, counters and
 * slots. */
static bool dcommi_hier_divides(const dcommi_groups *g, int least)
{
    int first = dcommi_hier_level(g, g->nranks);
    if (first < 0 || g->nranks < least || g->kind[first] > DCOMMI_HIER_DEEPEST) {
        return false;
    }
    for (int l = first; l < g->nlevels; l++) {
        for (int r = 0; r < g->nranks; r++) {
            int n = 0;
            for (int q = 0; q < g->nranks; q++) {
                n += dcommi_group_of(g, l, q) == dcommi_group_of(g, l, r);
            }
            if (n * g->count[l] != g->nranks) {
                return false;
            }
        }
    }
    return true;
}

/* Find the groups of a shape. *flat: no level divides the ranks. The caller must call
 * dcommi_hier_close, after an error too. */
static dcomm_status dcommi_hier_open(const dcommi_shape *s, dcomm_builder *b, dcommi_hier *h,
                                     bool *flat)
{
    const dcommi_groups *g = s->groups;
    int level = dcommi_hier_level(g, s->nranks);
    memset(h, 0, sizeof *h);
    h->s = s;
    h->b = b;
    *flat = level < 0;
    if (*flat) {
        h->between_hosts = g == NULL || g->count[0] > 1;
        return DCOMM_OK;
    }
    h->between_hosts = g->kind[level] == DCOMMI_LEVEL_HOST;
    h->ngroups = g->count[level];
    h->begin = dcommi_calloc((size_t)h->ngroups + 1 + 2 * (size_t)s->nranks, sizeof *h->begin);
    if (h->begin == NULL) {
        return DCOMM_ERR_NO_MEMORY;
    }
    h->member = h->begin + h->ngroups + 1;
    /* Number a group's ranks in the order of groups.h: in groups of equal shape, ranks in the same
     * part have the same place. */
    for (int i = 0; i < s->nranks; i++) {
        int r = g->order[i], k = dcommi_group_of(g, level, r);
        if (i == 0 || k != dcommi_group_of(g, level, g->order[i - 1])) {
            h->begin[k] = i;
        }
        if (r == s->rank) {
            h->group = k;
            h->index = i - h->begin[k];
        }
        h->member[i] = r;
        h->begin[k + 1] = i + 1;
    }
    for (int k = 0; k < h->ngroups; k++) {
        int size = dcommi_hier_size(h, k);
        h->smallest = k == 0 || size < h->smallest ? size : h->smallest;
    }
    h->size = dcommi_hier_size(h, h->group);
    h->inner = dcommi_groups_restrict(g, h->member + h->begin[h->group], h->size);
    if (h->inner == NULL) {
        return DCOMM_ERR_NO_MEMORY;
    }
    int shards = s->coll == DCOMM_COLL_ALLTOALL ? 1 : h->size;
    if (!dcommi_hier_divides(h->inner, dcommi_hier_least(shards, dcommi_hier_bytes(s)))) {
        dcommi_groups_free(&h->inner);
    }
    return DCOMM_OK;
}

/* ---- blocks from and to one rank, within a host ---- */

static dcomm_status dcommi_hier_scatter_near(const dcommi_shape *s, dcomm_builder *b)
{
    return dcommi_scatter_by(s, b, dcommi_reads_peers(s, dcommi_longest(s, s->counts)));
}

static dcomm_status dcommi_hier_gather_near(const dcommi_shape *s, dcomm_builder *b)
{
    return dcommi_gather_by(s, b, dcommi_reads_peers(s, dcommi_longest(s, s->counts)));
}

/* ---- the plans of the levels ---- */

typedef struct dcommi_hier_choice {
    const char *name;
    dcommi_algo_fn make;
} dcommi_hier_choice;

#define DCOMMI_HIER_CHOICE(condition, name, make) \
    if (condition) {                              \
        return (dcommi_hier_choice){name, make};  \
    }

/* Choose the algorithm for one level. near: the ranks can read each other's memory. bytes: the
 * same on all ranks, so that they choose alike. */
static dcommi_hier_choice dcommi_hier_plain(const dcommi_shape *s, bool near, int64_t bytes)
{
    bool small = bytes <= DCOMMI_BLOCK_SHORT, few = s->nranks <= 8;
    switch (s->coll) {
    case DCOMM_COLL_ALLREDUCE:
        /* Between hosts, the bytes that all ranks send together decide. */
        DCOMMI_HIER_CHOICE(near && small && s->nranks <= 16, "one_shot", dcommi_direct_one_shot)
        DCOMMI_HIER_CHOICE(near, "two_shot", dcommi_direct_two_shot)
        DCOMMI_HIER_CHOICE((s->nranks - 1) * bytes <= DCOMMI_BLOCK_SHORT, "one_shot",
                           dcommi_direct_one_shot)
        DCOMMI_HIER_CHOICE(bytes <= (s->nranks == 2 ? 32768 : 8192), "recursive_doubling",
                           dcommi_doubling_allreduce)
        DCOMMI_HIER_CHOICE(bytes <= 262144 || s->nranks > 16, "halving_doubling",
                           dcommi_halving_doubling)
        DCOMMI_HIER_CHOICE(true, "ring", dcommi_ring_allreduce)
    case DCOMM_COLL_REDUCE_SCATTER:
    case DCOMM_COLL_REDUCE_SCATTERV:
        DCOMMI_HIER_CHOICE(near || small, "direct", dcommi_direct_reduce_scatter)
        DCOMMI_HIER_CHOICE(true, "ring", dcommi_ring_reduce_scatter)
    case DCOMM_COLL_ALLGATHER:
    case DCOMM_COLL_ALLGATHERV:
        DCOMMI_HIER_CHOICE(near || small, "direct", dcommi_direct_allgather)
        DCOMMI_HIER_CHOICE(true, "ring", dcommi_ring_allgather)
    case DCOMM_COLL_REDUCE:
        DCOMMI_HIER_CHOICE(near && (few || !small), "linear", dcommi_linear_reduce)
        DCOMMI_HIER_CHOICE(true, "binomial", dcommi_tree_reduce_binomial)
    case DCOMM_COLL_BROADCAST:
        DCOMMI_HIER_CHOICE(near && (few || !small), "linear", dcommi_linear_broadcast)
        DCOMMI_HIER_CHOICE(bytes <= 65536, "binomial", dcommi_tree_broadcast_binomial)
        DCOMMI_HIER_CHOICE(true, "tree", dcommi_tree_broadcast)
    case DCOMM_COLL_SCATTERV:
        DCOMMI_HIER_CHOICE(near, "direct", dcommi_hier_scatter_near)
        DCOMMI_HIER_CHOICE(true, "linear", dcommi_scatter_linear)
    case DCOMM_COLL_GATHERV:
        DCOMMI_HIER_CHOICE(near, "direct", dcommi_hier_gather_near)
        DCOMMI_HIER_CHOICE(true, "linear", dcommi_gather_linear)
    default:
        DCOMMI_HIER_CHOICE(near, "linear", dcommi_a2a_linear)
        DCOMMI_HIER_CHOICE(true, "pairwise", dcommi_a2a_pairwise)
    }
}
#undef DCOMMI_HIER_CHOICE

/* Return the shape of a sub-plan of `size` ranks. An average divides in the last fold of all only:
 * elsewhere it becomes a sum. */
static dcommi_shape dcommi_hier_shape(const dcommi_hier *h, dcomm_coll coll, int rank, int size,
                                      bool last)
{
    dcommi_shape s = *h->s;
    s.coll = coll;
    s.rank = rank;
    s.nranks = size;
    s.root = 0;
    s.in_place = false;
    s.chunk_bytes = 0;
    s.groups = NULL;
    s.coding = NULL;
    s.counts = s.displs = s.send_counts = s.send_displs = s.matrix = NULL;
    s.op = !last && s.op == DCOMM_AVG ? DCOMM_SUM : s.op;
    return s;
}

/* Make the sub-plan of one tier. `bytes` decides the algorithm. */
static dcomm_plan *dcommi_hier_sub_near(dcommi_hier *h, const dcommi_shape *s, bool near,
                                        int64_t bytes, int64_t in_bytes, int64_t out_bytes)
{
    dcommi_hier_choice choice = dcommi_hier_plain(s, near, bytes);
    if (s->coding != NULL) { /* an all-gather of two ranks sends as many bytes and rounds once */
        choice = s->nranks == 2 || s->coding->whole
                     ? (dcommi_hier_choice){"coded_allgather", dcommi_coded_allgather}
                     : (dcommi_hier_choice){"coded_two_shot", dcommi_coded_two_shot};
    }
    return dcommi_sub_plan(h->b, s, choice.name, choice.make, in_bytes, out_bytes);
}

/* Make a sub-plan of this rank's group, which may be divided again. */
static dcomm_plan *dcommi_hier_sub(dcommi_hier *h, const dcommi_shape *sub, int64_t bytes,
                                   int64_t in_bytes, int64_t out_bytes)
{
    dcommi_shape s = *sub;
    dcommi_hier_choice choice = dcommi_hier_plain(&s, true, bytes);
    if (h->inner != NULL && s.coll != DCOMM_COLL_ALLTOALLV) {
        s.groups = h->inner;
        s.chunk_bytes = bytes * s.nranks; /* a piece is not cut again */
        choice = (dcommi_hier_choice){"hier", dcommi_hier_make};
    }
    return dcommi_sub_plan(h->b, &s, choice.name, choice.make, in_bytes, out_bytes);
}

/* Put the ranks of this rank's group into the table, for CALL. Return the first index. */
static int64_t dcommi_hier_local_table(dcommi_hier *h)
{
    int64_t first = (int64_t)h->b->ntable;
    for (int i = 0; i < h->size; i++) {
        int64_t rank = dcommi_hier_rank(h, h->group, i);
        dcomm_build_table(h->b, &rank, 1);
    }
    return first;
}

#endif
