/* order.h - blocks of all ranks in the order of groups.h, so that the blocks of a group are one
 * range of memory. Here are the places of such ranges, the copies into the order and back, and the
 * calls of the tiers on ranges. Long blocks are cut into pieces; a chunk has one piece of each
 * block. */
#ifndef DCOMMI_ALGO_HIER_ORDER_H
#define DCOMMI_ALGO_HIER_ORDER_H

#include "blocks.h"
#include "pipe.h"

typedef struct dcommi_hier_order {
    dcommi_hier *h;
    dcommi_hier_tree tree;
    dcommi_hier_pipe pipe;
    int64_t piece;      /* equal blocks: bytes of a block in a chunk */
    int64_t *offset[2]; /* [nranks + 1] by kind of chunk: where the piece at a position begins */
    size_t *counts;     /* [4 * nranks]: counts and displacements of a call */
} dcommi_hier_order;

/* Prepare the order. Cut equal blocks into pieces; blocks of unequal length are not cut. */
static dcomm_status dcommi_hier_order_open(dcommi_hier *h, dcommi_hier_order *o)
{
    const dcommi_shape *s = h->s;
    size_t n = (size_t)s->nranks;
    int64_t longest = dcommi_hier_bytes(s), total = s->nranks * longest, length;
    int64_t wanted = s->chunk_bytes > 0 ? s->chunk_bytes : DCOMMI_HIER_CHUNK;
    memset(o, 0, sizeof *o);
    o->h = h;
    dcommi_hier_tree_make(s->groups, s->rank, h->shards, -1, DCOMMI_HIER_DIVIDE_MIN, &o->tree);
    o->pipe.h = h;
    o->pipe.chunks = 1;
    o->piece = longest;
    if (s->counts == NULL) {
        wanted = dcommi_max64(wanted, dcommi_ceil_div(total, DCOMMI_HIER_DEFAULT_CHUNKS));
        int64_t grain = (int64_t)dcomm_dtype_size(s->dtype);
        o->piece =
            dcommi_partition_make(longest, 1, dcommi_max64(wanted / s->nranks, grain), grain).chunk;
        o->piece = dcommi_min64(o->piece, longest);
        o->pipe.chunks = dcommi_ceil_div(longest, o->piece);
    }
    o->offset[0] = dcommi_calloc(2 * (n + 1) + 4 * n, sizeof(int64_t));
    if (o->offset[0] == NULL) {
        return DCOMM_ERR_NO_MEMORY;
    }
    o->offset[1] = o->offset[0] + n + 1;
    o->counts = (size_t *)(o->offset[1] + n + 1);
    for (size_t j = 0; j < n; j++) {
        dcommi_hier_block(h, s->groups->order[j], &length);
        int64_t last = length - (o->pipe.chunks - 1) * o->piece;
        o->offset[0][j + 1] = o->offset[0][j] + dcommi_min64(length, o->piece);
        o->offset[1][j + 1] = o->offset[1][j] + last;
        o->pipe.odd = o->pipe.odd || last != dcommi_min64(length, o->piece);
    }
    return DCOMM_OK;
}

static dcomm_status dcommi_hier_order_close(dcommi_hier_order *o)
{
    dcomm_status status = dcommi_hier_pipe_end(&o->pipe);
    dcommi_free(o->offset[0]);
    return status;
}

/* Return the bytes of a group's blocks in a chunk of `kind`. */
static int64_t dcommi_hier_order_bytes(const dcommi_hier_order *o, dcommi_hier_node v, int kind)
{
    return o->offset[kind][v.end] - o->offset[kind][v.begin];
}

static dcommi_hier_node dcommi_hier_order_all(const dcommi_hier_order *o)
{
    return (dcommi_hier_node){0, o->h->s->nranks, -1};
}

/* Return part `place` of a tier: a group or a rank. */
static dcommi_hier_node dcommi_hier_order_part(const dcommi_hier_order *o,
                                               const dcommi_hier_tier *tier, int place)
{
    if (tier->level >= 0) {
        return dcommi_hier_part_of(&o->tree, tier->node, tier->level, place);
    }
    int at = dcommi_hier_member(&o->tree, tier->node, place);
    return (dcommi_hier_node){at, at + 1, tier->node.level};
}

/* Reserve scratch for the blocks of a group, chunk by chunk. */
static dcommi_hier_place dcommi_hier_order_room(dcommi_hier_order *o, dcommi_hier_node v)
{
    int64_t step = dcommi_hier_order_bytes(o, v, 0);
    int64_t bytes = (o->pipe.chunks - 1) * step + dcommi_hier_order_bytes(o, v, 1);
    return (dcommi_hier_place){DCOMM_SPACE_SCRATCH, dcomm_build_scratch(o->h->b, bytes), step};
}

/* Return the place of this rank's own block in a caller's buffer, which has the blocks of all
 * ranks
 * (`all`) or only this one. */
static dcommi_hier_place dcommi_hier_order_own(const dcommi_hier_order *o, dcomm_space space,
                                               bool all)
{
    int64_t length;
    int64_t at = dcommi_hier_block(o->h, o->h->s->rank, &length);
    return (dcommi_hier_place){space, all ? at : 0, o->piece};
}

/* Return true if the blocks in the caller's buffer lie in the order already. */
static bool dcommi_hier_order_plain(const dcommi_hier_order *o)
{
    int64_t length;
    bool plain = o->pipe.chunks == 1;
    for (int j = 0; j < o->h->s->nranks && plain; j++) {
        int rank = o->h->s->groups->order[j];
        plain = dcommi_hier_block(o->h, rank, &length) == o->offset[0][j];
    }
    return plain;
}

static dcomm_operand dcommi_hier_order_span(dcommi_hier_place p, int64_t bytes)
{
    return bytes > 0 ? dcomm_span(p.space, p.at, bytes) : dcomm_span(DCOMM_SPACE_OUT, 0, 0);
}

/* ---- sorting ---- */

/* Pieces to copy. A piece that follows the last one in both places is merged with it. */
typedef struct dcommi_hier_sorting {
    int64_t *from, *to, *length;
    int64_t n, longest;
} dcommi_hier_sorting;

static bool dcommi_hier_sorting_open(dcommi_hier_sorting *t, int64_t most)
{
    memset(t, 0, sizeof *t);
    t->from = dcommi_calloc(3 * (size_t)most, sizeof *t->from);
    if (t->from != NULL) {
        t->to = t->from + most;
        t->length = t->to + most;
    }
    return t->from != NULL;
}

static void dcommi_hier_sorting_add(dcommi_hier_sorting *t, int64_t from, int64_t to,
                                    int64_t length)
{
    int64_t i = t->n - 1;
    if (i >= 0 && t->from[i] + t->length[i] == from && t->to[i] + t->length[i] == to) {
        t->length[i] += length;
    } else {
        i = t->n++;
        t->from[i] = from;
        t->to[i] = to;
        t->length[i] = length;
    }
    t->longest = dcommi_max64(t->longest, t->length[i]);
}

/* Fill in a phase with the copies for chunks of `kind`, and empty the list. */
static void dcommi_hier_sorting_phase(dcommi_hier_sorting *t, dcomm_builder *b,
                                      dcommi_hier_place in, dcommi_hier_place out, int kind,
                                      dcommi_hier_phase *p)
{
    size_t n = (size_t)t->n;
    p->pieces = t->n;
    p->in_step = in.step;
    p->out_step = out.step;
    p->from[kind] = dcomm_build_table(b, t->from, n);
    p->to[kind] = dcomm_build_table(b, t->to, n);
    p->length[kind] = dcomm_build_table(b, t->length, n);
    p->in[kind] = dcommi_hier_order_span(in, t->longest);
    p->out[kind] = dcommi_hier_order_span(out, t->longest);
    t->n = t->longest = 0;
}

/* Fill in a phase that copies all blocks from a caller's buffer into the order, or back. `in`: the
 * place of the blocks in the order. */
static void dcommi_hier_order_copies(dcommi_hier_order *o, dcomm_space space, dcommi_hier_place in,
                                     bool back, dcommi_hier_phase *p)
{
    const dcommi_shape *s = o->h->s;
    dcommi_hier_place buffer = {space, 0, o->piece};
    dcommi_hier_sorting t;
    if (!dcommi_hier_sorting_open(&t, s->nranks)) {
        dcommi_build_error(o->h->b, DCOMM_ERR_NO_MEMORY);
        return;
    }
    for (int kind = 0; kind < 2; kind++) {
        for (int j = 0; j < s->nranks; j++) {
            int64_t length, at = dcommi_hier_block(o->h, s->groups->order[j], &length);
            int64_t to = o->offset[kind][j];
            length = o->offset[kind][j + 1] - to;
            dcommi_hier_sorting_add(&t, back ? to : at, back ? at : to, length);
        }
        dcommi_hier_sorting_phase(&t, o->h->b, back ? in : buffer, back ? buffer : in, kind, p);
    }
    dcommi_free(t.from);
}

/* ---- calls ---- */

/* Fill in a phase in which a tier runs `coll` on the blocks of its group (reduce and broadcast: on
 * the blocks of all ranks). A part is as long as the blocks of its ranks. A rank that takes no
 * part makes the plan too, to reserve as many tags, counters and slots as the others. */
static void dcommi_hier_order_call(dcommi_hier_order *o, const dcommi_hier_tier *tier,
                                   dcomm_coll coll, dcommi_hier_place in, dcommi_hier_place out,
                                   dcommi_hier_phase *p)
{
    dcommi_hier *h = o->h;
    size_t element = dcomm_dtype_size(h->s->dtype);
    bool whole = coll == DCOMM_COLL_REDUCE || coll == DCOMM_COLL_BROADCAST,
         first = tier->place == 0;
    bool gives = coll == DCOMM_COLL_REDUCE_SCATTERV || (coll == DCOMM_COLL_SCATTERV && first);
    bool takes = coll == DCOMM_COLL_ALLGATHERV || (coll == DCOMM_COLL_GATHERV && first);
    dcommi_hier_node all = whole ? dcommi_hier_order_all(o) : tier->node;
    dcommi_hier_node own = dcommi_hier_order_part(o, tier, tier->place);
    p->group = tier->owner >= 0 ? dcommi_hier_tier_table(&o->tree, tier, h->b) : 0;
    p->in_step = in.step;
    p->out_step = out.step;
    for (int kind = 0; kind < (o->pipe.odd ? 2 : 1); kind++) {
        int64_t all_bytes = dcommi_hier_order_bytes(o, all, kind), longest = all_bytes;
        int64_t bytes = dcommi_hier_order_bytes(o, own, kind);
        dcommi_shape sub = dcommi_hier_shape(h, coll, tier->place, tier->n, tier->node.level < 0);
        int64_t before = o->offset[kind][own.begin] - o->offset[kind][all.begin];
        bool parts = coll == DCOMM_COLL_REDUCE_SCATTERV, lies = coll == DCOMM_COLL_ALLGATHERV;
        sub.in_place = (whole || parts || lies) && in.space == out.space &&
                       in.at + (parts ? before : 0) == out.at + (lies ? before : 0);
        sub.count = (size_t)all_bytes / element;
        int64_t in_bytes = whole ? all_bytes : gives ? all_bytes : bytes;
        int64_t out_bytes = whole ? all_bytes : takes ? all_bytes : bytes;
        in_bytes = coll == DCOMM_COLL_SCATTERV && !first ? 0 : in_bytes;
        out_bytes = coll == DCOMM_COLL_GATHERV && !first ? 0 : out_bytes;
        out_bytes = coll == DCOMM_COLL_REDUCE && !first && !sub.in_place ? 0 : out_bytes;
        if (sub.in_place && (parts || lies)) {
            in_bytes = out_bytes = all_bytes;
        }
        if (!whole) {
            dcommi_hier_node part = dcommi_hier_order_part(o, tier, 0);
            sub.counts = o->counts;
            sub.displs = o->counts + tier->n;
            for (int i = 0; i < tier->n; i++) {
                int64_t at = o->offset[kind][part.begin] - o->offset[kind][all.begin];
                o->counts[i] = (size_t)dcommi_hier_order_bytes(o, part, kind) / element;
                o->counts[tier->n + i] = (size_t)at / element;
                if (i + 1 < tier->n) {
                    part = tier->level >= 0
                               ? dcommi_hier_part_at(&o->tree, tier->node, tier->level, part.end)
                               : (dcommi_hier_node){part.end, part.end + 1, part.level};
                }
            }
            longest = dcommi_longest(&sub, sub.counts);
        }
        dcomm_plan *plan =
            longest > 0 ? dcommi_hier_sub_near(h, &sub, tier->near, longest, in_bytes, out_bytes)
                        : NULL;
        dcommi_hier_needs(p, plan);
        if (plan == NULL || tier->owner < 0) {
            dcommi_free(plan);
            continue;
        }
        p->plan[kind] = dcommi_build_adopt(h->b, plan);
        p->in[kind] = dcommi_hier_order_span(sub.in_place && lies ? out : in, in_bytes);
        p->out[kind] = dcommi_hier_order_span(sub.in_place && parts ? in : out, out_bytes);
    }
}

#endif
