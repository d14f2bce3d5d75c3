/* hier.h - hierarchical all-reduce and broadcast over any number of levels: call the plans of the
 * tiers (hier/tree.h), chunk by chunk.
 *
 * hier, all-reduce: in each tier but the last the ranks reduce-scatter their data: first the ranks
 * of the lowest groups, then the ranks that hold the same part, and so on. Then each rank of a
 * host (a coarsest group) owns a shard. In the last tier the owners of a shard on all hosts
 * all-reduce it, for all shards at once. Then the tiers all-gather in reverse order. With M hosts,
 * each host sends 2(M-1)/M S, for any number of its ranks. There are as many shards as the
 * smallest host has ranks; further ranks own none: they only contribute and get the result. hier,
 * broadcast: the groups of the root scatter, tier by tier. Each shard is broadcast across hosts,
 * and all tiers all-gather. hier_leader: one shard. Each tier reduces to its first rank, the first
 * ranks of all hosts all-reduce, and each tier broadcasts.
 *
 * The tiers overlap, as phases of a pipeline (hier/pipe.h). */
#ifndef DCOMMI_ALGO_HIER_H
#define DCOMMI_ALGO_HIER_H

#include "digits.h"
#include "leader.h"

#define DCOMMI_HIER_GRAIN (64 << 10) /* chunk_bytes of the last tier's sub-plan */
#define DCOMMI_HIER_SHARD_MIN 4096   /* bytes; for shorter shards messages cost too much */

/* A buffer cut into chunks, and each chunk into shards. */
typedef struct dcommi_hier_cut {
    int64_t chunk, chunks;
    int64_t length[2]; /* bytes of a chunk; bytes of the last one */
    int shards;
} dcommi_hier_cut;

static dcommi_hier_cut dcommi_hier_cut_make(const dcommi_hier *h)
{
    const dcommi_shape *s = h->s;
    int64_t total = dcommi_shape_bytes(s, s->count);
    int levels = 0;
    while (levels < s->groups->nlevels && s->groups->kind[levels] <= DCOMMI_HIER_DEEPEST) {
        levels++;
    }
    int64_t wanted = s->chunk_bytes, most = DCOMMI_HIER_MAX_CHUNKS / dcommi_max64(levels, 1);
    if (wanted <= 0) {
        wanted = DCOMMI_HIER_CHUNK;
        most = DCOMMI_HIER_DEFAULT_CHUNKS;
    }
    wanted = dcommi_max64(wanted, dcommi_ceil_div(total, most));
    dcommi_hier_cut cut = {.shards = h->shards};
    cut.chunk = dcommi_partition_make(total, 1, wanted, (int64_t)dcomm_dtype_size(s->dtype)).chunk;
    cut.chunks = dcommi_ceil_div(total, cut.chunk);
    cut.length[0] = cut.chunk;
    cut.length[1] = total - (cut.chunks - 1) * cut.chunk;
    cut.shards = (int)dcommi_max64(
        1, dcommi_min64(h->shards, dcommi_min64(total, cut.chunk) / DCOMMI_HIER_SHARD_MIN));
    return cut;
}

/* Return the first byte of shard k of a chunk of `length` bytes; *bytes: its length. */
static int64_t dcommi_hier_shard(const dcommi_hier *h, const dcommi_hier_cut *cut, int64_t length,
                                 int k, int64_t *bytes)
{
    int64_t element = (int64_t)dcomm_dtype_size(h->s->dtype);
    int64_t block = dcommi_partition_make(length, cut->shards, 0, element).block;
    int64_t begin = dcommi_min64(k * block, length);
    *bytes = dcommi_min64(block, length - begin);
    return begin;
}

/* ---- the work of a tier on a chunk ---- */

/* Return the first byte that owner `owner` of `owners` holds of a chunk; *bytes: the length. An
 * owner holds shards that lie one after the other. */
static int64_t dcommi_hier_held(const dcommi_hier *h, const dcommi_hier_cut *cut, int64_t length,
                                int owner, int owners, int64_t *bytes)
{
    int each = cut->shards / owners;
    int64_t last, begin = dcommi_hier_shard(h, cut, length, owner * each, &last);
    int64_t end = dcommi_hier_shard(h, cut, length, owner * each + each - 1, &last);
    *bytes = end + last - begin;
    return begin;
}

/* The plan of one operation of a tier, for chunks of one kind. */
typedef struct dcommi_hier_work {
    dcommi_hier *h;
    const dcommi_hier_cut *cut;
    const dcommi_hier_tier *tier;
    dcomm_coll coll;
    dcomm_space in; /* where the input lies; OUT: in place */
    int kind;       /* 0: all chunks but the last; 1: the last */
    size_t *counts; /* [2 * tier->n]: counts and displacements */
} dcommi_hier_work;

/* Make the plan for the part of owner `owner`. *in, *out: where the part lies. Return NULL for an
 * empty part. */
static dcomm_plan *dcommi_hier_work_plan(const dcommi_hier_work *w, int owner, dcomm_operand *in,
                                         dcomm_operand *out)
{
    const dcommi_hier_tier *tier = w->tier;
    dcommi_hier *h = w->h;
    size_t element = dcomm_dtype_size(h->s->dtype);
    bool top = tier->node.level < 0;
    int64_t length = w->cut->length[w->kind], bytes, longest, own = 0, at;
    int64_t begin = dcommi_hier_held(h, w->cut, length, owner, tier->below, &bytes);
    dcommi_hier_held(h, w->cut, length, 0, tier->below, &longest);
    dcommi_shape sub = dcommi_hier_shape(h, w->coll, tier->place, tier->n, top);
    sub.in_place = w->in == DCOMM_SPACE_OUT;
    sub.count = (size_t)bytes / element;
    sub.coding = top ? h->s->coding : NULL;
    sub.chunk_bytes = top && sub.coding == NULL ? DCOMMI_HIER_GRAIN : 0;
    *in = dcomm_span(w->in, begin, bytes);
    *out = dcomm_span(DCOMM_SPACE_OUT, begin, bytes);
    if (w->coll == DCOMM_COLL_REDUCE_SCATTERV || w->coll == DCOMM_COLL_ALLGATHERV ||
        w->coll == DCOMM_COLL_SCATTERV) {
        sub.counts = w->counts;
        sub.displs = w->counts + tier->n;
        for (int i = 0; i < tier->n; i++) {
            at = begin + bytes;
            own = 0;
            if (i < tier->shares) {
                at = dcommi_hier_held(h, w->cut, length, owner * tier->shares + i,
                                      tier->below * tier->shares, &own);
            }
            w->counts[i] = (size_t)own / element;
            w->counts[tier->n + i] = (size_t)(at - begin) / element;
        }
        at = begin + dcommi_shape_bytes(&sub, sub.displs[tier->place]);
        own = dcommi_shape_bytes(&sub, sub.counts[tier->place]);
        bool root = w->coll == DCOMM_COLL_SCATTERV && tier->place == 0;
        if (w->coll == DCOMM_COLL_SCATTERV
                ? !root || !sub.in_place
                : w->coll == DCOMM_COLL_REDUCE_SCATTERV && !sub.in_place) {
            *out = dcomm_span(DCOMM_SPACE_OUT, at, own);
        }
        if (w->coll == DCOMM_COLL_SCATTERV && !root) {
            *in = dcomm_span(DCOMM_SPACE_OUT, at, 0);
        }
    }
    return bytes > 0
               ? dcommi_hier_sub_near(h, &sub, tier->near, longest, in->max_length, out->max_length)
               : NULL;
}

/* Fill in a phase in which this rank's part of a tier runs `coll`. */
static void dcommi_hier_tier_phase(dcommi_hier_pipe *pipe, const dcommi_hier_cut *cut,
                                   const dcommi_hier_tree *tree, int number, dcomm_coll coll,
                                   dcomm_space in, dcommi_hier_phase *p)
{
    const dcommi_hier_tier *tier = &tree->tier[number];
    dcommi_hier *h = pipe->h;
    dcommi_hier_work w = {.h = h, .cut = cut, .tier = tier, .coll = coll, .in = in};
    w.counts = dcommi_calloc(2 * (size_t)tier->n, sizeof *w.counts);
    if (w.counts == NULL) {
        dcommi_build_error(h->b, DCOMM_ERR_NO_MEMORY);
        return;
    }
    p->group = tier->owner >= 0 ? dcommi_hier_tier_table(tree, tier, h->b) : 0;
    p->in_step = p->out_step = cut->chunk;
    for (w.kind = 0; w.kind < 2; w.kind++) {
        /* All ranks of the group above must reserve equally much: measure the plans of the longest
         * and of the shortest part too. */
        int others[2] = {0, tier->below - 1};
        int64_t longest, shortest;
        dcommi_hier_held(h, cut, cut->length[w.kind], 0, tier->below, &longest);
        dcommi_hier_held(h, cut, cut->length[w.kind], others[1], tier->below, &shortest);
        dcomm_operand none[2];
        for (int i = 0; i < 2 && (longest != shortest || tier->owner < 0); i++) {
            dcomm_plan *plan = dcommi_hier_work_plan(&w, others[i], &none[0], &none[1]);
            dcommi_hier_needs(p, plan);
            dcommi_free(plan);
        }
        if (tier->owner >= 0) {
            dcomm_plan *plan =
                dcommi_hier_work_plan(&w, tier->owner, &p->in[w.kind], &p->out[w.kind]);
            dcommi_hier_needs(p, plan);
            p->plan[w.kind] = plan != NULL ? dcommi_build_adopt(h->b, plan) : NULL;
        }
    }
    dcommi_free(w.counts);
}

/* Fill in a phase that copies each chunk unchanged to OUT. */
static void dcommi_hier_copy_phase(const dcommi_hier_pipe *pipe, const dcommi_hier_cut *cut,
                                   dcomm_space in, dcommi_hier_phase *p)
{
    dcomm_builder *b = pipe->h->b;
    p->pieces = 1;
    p->in_step = p->out_step = cut->chunk;
    for (int kind = 0; kind < 2; kind++) {
        int64_t zero = 0;
        p->from[kind] = p->to[kind] = dcomm_build_table(b, &zero, 1);
        p->length[kind] = dcomm_build_table(b, &cut->length[kind], 1);
        p->in[kind] = dcomm_span(in, 0, cut->length[kind]);
        p->out[kind] = dcomm_span(DCOMM_SPACE_OUT, 0, cut->length[kind]);
    }
}

/* ---- the operations ---- */

static void dcommi_hier_pipe_begin(dcommi_hier *h, const dcommi_hier_cut *cut, int first,
                                   dcommi_hier_tree *tree, dcommi_hier_pipe *pipe)
{
    memset(pipe, 0, sizeof *pipe);
    int least = dcommi_hier_least(cut->shards, cut->length[0] / cut->shards);
    dcommi_hier_tree_make(h->s->groups, h->s->rank, cut->shards, first, least, tree);
    pipe->h = h;
    pipe->chunks = cut->chunks;
    pipe->odd = cut->length[0] != cut->length[1];
    pipe->nphases = 2 * tree->ntiers - 1;
}

static dcomm_status dcommi_hier_allreduce_of(dcommi_hier *h)
{
    dcommi_hier_cut cut = dcommi_hier_cut_make(h);
    dcommi_hier_tree tree;
    dcommi_hier_pipe pipe;
    dcomm_space in = dcommi_input_of(h->s, 0).space;
    dcommi_hier_pipe_begin(h, &cut, -1, &tree, &pipe);
    for (int i = tree.ntiers - 1; i >= 0; i--) {
        const dcommi_hier_tier *tier = &tree.tier[i];
        int back = pipe.nphases - 1 - i;
        dcomm_coll give = tier->shares > 1 ? DCOMM_COLL_REDUCE_SCATTERV : DCOMM_COLL_REDUCE;
        dcomm_coll take = tier->shares > 1 ? DCOMM_COLL_ALLGATHERV : DCOMM_COLL_BROADCAST;
        if (i == back) {
            dcommi_hier_tier_phase(&pipe, &cut, &tree, i, DCOMM_COLL_ALLREDUCE, DCOMM_SPACE_OUT,
                                   &pipe.phase[i]);
        } else if (tier->n > 1) {
            dcommi_hier_tier_phase(&pipe, &cut, &tree, i, give, i == 0 ? in : DCOMM_SPACE_OUT,
                                   &pipe.phase[i]);
            dcommi_hier_tier_phase(&pipe, &cut, &tree, i, take, DCOMM_SPACE_OUT, &pipe.phase[back]);
        } else if (in != DCOMM_SPACE_OUT) {
            dcommi_hier_copy_phase(&pipe, &cut, in, &pipe.phase[i]);
        }
        dcommi_hier_reserve(&pipe, i);
        if (i != back) {
            dcommi_hier_reserve(&pipe, back);
        }
    }
    return dcommi_hier_pipe_end(&pipe);
}

static dcomm_status dcommi_hier_broadcast_of(dcommi_hier *h)
{
    const dcommi_shape *s = h->s;
    dcommi_hier_cut cut = dcommi_hier_cut_make(h);
    dcommi_hier_tree tree;
    dcommi_hier_pipe pipe;
    dcommi_hier_pipe_begin(h, &cut, s->root, &tree, &pipe);
    for (int i = tree.ntiers - 1; i >= 0; i--) {
        const dcommi_hier_tier *tier = &tree.tier[i];
        int back = pipe.nphases - 1 - i;
        bool scattered = false; /* in an earlier tier: then the root's data is in OUT */
        for (int k = 0; k < i; k++) {
            scattered = scattered || (tree.tier[k].n > 1 && tree.tier[k].shares > 1);
        }
        dcomm_space in =
            s->rank == s->root && !scattered ? dcommi_input_of(s, 0).space : DCOMM_SPACE_OUT;
        if (i == back) {
            dcommi_hier_tier_phase(&pipe, &cut, &tree, i, DCOMM_COLL_BROADCAST, in, &pipe.phase[i]);
        } else if (tier->n > 1) {
            if (tier->home && tier->shares > 1) {
                dcommi_hier_tier_phase(&pipe, &cut, &tree, i, DCOMM_COLL_SCATTERV, in,
                                       &pipe.phase[i]);
            }
            dcommi_hier_tier_phase(&pipe, &cut, &tree, i,
                                   tier->shares > 1 ? DCOMM_COLL_ALLGATHERV : DCOMM_COLL_BROADCAST,
                                   DCOMM_SPACE_OUT, &pipe.phase[back]);
        }
        dcommi_hier_reserve(&pipe, i);
        if (i != back) {
            dcommi_hier_reserve(&pipe, back);
        }
    }
    return dcommi_hier_pipe_end(&pipe);
}

/* ---- the entries of the table ---- */

typedef dcomm_status (*dcommi_hier_fn)(dcommi_hier *h);

static dcomm_status dcommi_hier_run(const dcommi_shape *s, dcomm_builder *b, dcommi_hier_fn make,
                                    bool leader)
{
    dcommi_hier h;
    bool flat;
    dcomm_status status = dcommi_hier_open(s, b, &h, &flat);
    if (status == DCOMM_OK) {
        h.shards = leader ? 1 : h.smallest;
        /* If no level divides the ranks, use the algorithm for a single level. */
        status = flat ? dcommi_hier_plain(s, !h.between_hosts, dcommi_hier_bytes(s)).make(s, b)
                      : make(&h);
    }
    dcommi_hier_close(&h);
    return status;
}

/* Build the all-to-all: by digits if hosts are equal and divided again, else in rounds of hosts.
 */
static dcomm_status dcommi_hier_alltoall_any(dcommi_hier *h)
{
    return dcommi_hier_digits_fit(h) ? dcommi_hier_alltoall_by_digits(h)
                                     : dcommi_hier_alltoall_of(h);
}

#define DCOMMI_HIER_ALGORITHM(name, make, leader)                                   \
    static dcomm_status dcommi_hier_##name(const dcommi_shape *s, dcomm_builder *b) \
    {                                                                               \
        return dcommi_hier_run(s, b, make, leader);                                 \
    }
DCOMMI_HIER_ALGORITHM(allreduce, dcommi_hier_allreduce_of, false)
DCOMMI_HIER_ALGORITHM(allreduce_leader, dcommi_hier_allreduce_of, true)
DCOMMI_HIER_ALGORITHM(broadcast, dcommi_hier_broadcast_of, false)
DCOMMI_HIER_ALGORITHM(broadcast_leader, dcommi_hier_broadcast_of, true)
DCOMMI_HIER_ALGORITHM(reduce_scatter, dcommi_hier_reduce_scatter_of, false)
DCOMMI_HIER_ALGORITHM(reduce_scatter_leader, dcommi_hier_reduce_scatter_by_leaders, true)
DCOMMI_HIER_ALGORITHM(allgather, dcommi_hier_allgather_of, false)
DCOMMI_HIER_ALGORITHM(allgather_leader, dcommi_hier_allgather_by_leaders, true)
DCOMMI_HIER_ALGORITHM(alltoall, dcommi_hier_alltoall_any, false)
DCOMMI_HIER_ALGORITHM(alltoall_leader, dcommi_hier_alltoall_by_leaders, true)
#undef DCOMMI_HIER_ALGORITHM

/* Build the hierarchical form of an operation that dcommi_hier_sub may divide again. */
static dcomm_status dcommi_hier_make(const dcommi_shape *s, dcomm_builder *b)
{
    switch (s->coll) {
    case DCOMM_COLL_REDUCE_SCATTERV:
        return dcommi_hier_reduce_scatter(s, b);
    case DCOMM_COLL_ALLGATHERV:
        return dcommi_hier_allgather(s, b);
    case DCOMM_COLL_ALLTOALL:
        return dcommi_hier_alltoall(s, b);
    default:
        return dcommi_fail(DCOMM_ERR_INTERNAL, "no hierarchical form of operation %d",
                           (int)s->coll);
    }
}

#endif
