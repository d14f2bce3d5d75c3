/* parts.h - what the hierarchical algorithms share: who is in which group, and the
 * sub-plans of the levels. */
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

/* Limits from which a group within a host is divided again, by prices (docs/hierarchical.md). Where
 * ranks share the work: bytes that its ranks read of each other; shorter parts are messages, and
 * then fewer steps are better. Where one rank does all of it, or each has blocks for all: ranks. */
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
    int shards;             /* of a buffer, within a group; 1: its first rank does all */
    int group, index, size; /* this rank's group, its place there, ranks there */
    int *begin;             /* [ngroups + 1]: where a group's ranks begin in member */
    int *member;            /* [nranks]: the ranks, group by group */
    dcommi_groups *inner;   /* who is near whom within this rank's group; NULL: not divided */
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

/* The first level, if any, that divides the ranks into groups of which one has several. */
static int dcommi_hier_level(const dcommi_groups *g, int nranks)
{
    for (int l = 0; g != NULL && g->nranks == nranks && l < g->nlevels; l++) {
        if (g->count[l] > 1) {
            return g->count[l] < nranks ? l : -1;
        }
    }
    return -1;
}

/* How much one rank brings or gets, alike on all ranks. */
static int64_t dcommi_hier_bytes(const dcommi_shape *s)
{
    return s->counts != NULL ? dcommi_longest(s, s->counts) : dcommi_shape_bytes(s, s->count);
}

/* The ranks that a group must have to be divided, where each owns one of `shards` parts of so many
 * bytes. */
static int dcommi_hier_least(int shards, int64_t part)
{
    return shards == 1 ? DCOMMI_HIER_DIVIDE_MIN : part >= DCOMMI_HIER_DIVIDE_BYTES ? 2 : INT_MAX;
}

/* Whether a group of `least` ranks or more can be divided again. Uneven parts are not: the
 * sub-plans of all ranks of a call must need as many tags, counters and slots. */
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

/* *flat: no level divides the ranks. Close it in any case. */
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
    /* In the order, where ranks of groups of equal shape have the same places. */
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

/* The algorithm within one level: `near` where the ranks can read each other's memory. `bytes` is
 * what decides: the same on all ranks. */
static dcommi_hier_choice dcommi_hier_plain(const dcommi_shape *s, bool near, int64_t bytes)
{
    bool small = bytes <= DCOMMI_BLOCK_SHORT, few = s->nranks <= 8;
    switch (s->coll) {
    case DCOMM_COLL_ALLREDUCE:
        /* What counts between hosts is how much is sent in all. */
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

/* The shape of a sub-plan for `size` ranks. Only the last fold of all may divide. */
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

/* The sub-plan of one tier. `bytes` chooses the algorithm. */
static dcomm_plan *dcommi_hier_sub_near(dcommi_hier *h, const dcommi_shape *s, bool near,
                                        int64_t bytes, int64_t in_bytes, int64_t out_bytes)
{
    dcommi_hier_choice choice = dcommi_hier_plain(s, near, bytes);
    if (s->coding != NULL) { /* two ranks exchange as much, and round once, by an all-gather */
        choice = s->nranks == 2 || s->coding->whole
                     ? (dcommi_hier_choice){"coded_allgather", dcommi_coded_allgather}
                     : (dcommi_hier_choice){"coded_two_shot", dcommi_coded_two_shot};
    }
    return dcommi_sub_plan(h->b, s, choice.name, choice.make, in_bytes, out_bytes);
}

/* The sub-plan of this rank's group, which may be divided again. */
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

/* This rank's group as a table for CALL. */
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
