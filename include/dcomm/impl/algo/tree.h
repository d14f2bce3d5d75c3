/* tree.h - trees: binomial, and two binary trees that share the work.
 *
 * binomial: ceil(log2 N) steps; the root sends or receives S in each.
 * tree: Sanders, Speck and Traeff, "Two-tree algorithms for full bandwidth broadcast, reduction and
 * scan", Parallel Computing 35 (2009). A rank that is an inner node of one tree is a leaf of the
 * other, and each tree carries half of the data, so that every rank sends and receives about S per
 * direction; about 2 log2 N steps each way. Chunks are pipelined: while chunk c+1 arrives, chunk c
 * is on its way further.
 *
 * Where ranks form groups (groups.h), a tree is made level by level: one over the hosts, one over
 * the packages of each host, and so on down to the ranks; whoever stands on top of a group's tree
 * stands for the group in the tree above. So the ranks of a group are one part of the tree, and one
 * edge leads into it. Below, a level's `units` are the groups of the next level, at last ranks. */
#ifndef DCOMMI_ALGO_TREE_H
#define DCOMMI_ALGO_TREE_H

#include "parts.h"

#define DCOMMI_TREE_CHILDREN 32

/* A rank's place in a tree. */
typedef struct dcommi_node {
    int parent; /* -1: root */
    int nchildren;
    int child[DCOMMI_TREE_CHILDREN];
} dcommi_node;

/* Binomial tree over units 0 .. n-1 from `root`: the parent is the relative number without its
 * lowest set bit. Children in order of growing distance. */
static dcommi_node dcommi_tree_binomial(int n, int root, int unit)
{
    dcommi_node node = {.parent = -1};
    int v = (unit - root + n) % n;
    for (int64_t bit = 1; bit < n; bit *= 2) {
        if (v & bit) {
            node.parent = (int)((v - bit + root) % n);
            break;
        }
        if (v + bit < n) {
            node.child[node.nchildren++] = (int)((v + bit + root) % n);
        }
    }
    return node;
}

/* One of the two binary trees over positions 0 .. n-1. The first is the in-order tree of 1 .. n: x
 * stands as high as its lowest set bit, odd x are leaves. The second is the mirror image for even
 * n and a shift by one for odd n, so that its leaves are inner nodes of the first. Positions are
 * mapped to units by adding `shift` modulo `units`; the root of the tree gets `above` as its
 * parent. */
static dcommi_node dcommi_tree_binary(int64_t n, int which, int64_t position, int64_t shift,
                                      int64_t units, int above)
{
    dcommi_node node = {.parent = above};
    int64_t x = position + 1;
    if (which == 1) {
        x = n % 2 == 0 ? n - position : (position + 1) % n + 1;
    }
    int64_t relatives[3] = {0, 0, 0};
    int64_t low = x & -x;
    relatives[0] = ((x ^ low) | (2 * low)) <= n ? (x ^ low) | (2 * low) : x ^ low;
    if (low > 1) {
        relatives[1] = x - low / 2;
        int64_t reach = low / 2;
        while (reach >= 1 && x + reach > n) {
            reach /= 2;
        }
        relatives[2] = reach >= 1 ? x + reach : 0;
    }
    for (int i = 0; i < 3; i++) {
        if (relatives[i] == 0) {
            continue;
        }
        int64_t at = relatives[i] - 1;
        if (which == 1) {
            at = n % 2 == 0 ? n - relatives[i] : (relatives[i] - 2 + n) % n;
        }
        int unit = (int)((at + shift) % units);
        if (i == 0) {
            node.parent = unit;
        } else {
            node.child[node.nchildren++] = unit;
        }
    }
    return node;
}

/* The same trees over all units but `root`, which stands above both. */
static dcommi_node dcommi_tree_rooted(int64_t n, int which, int root, int64_t unit)
{
    int64_t v = (unit - root + n) % n;
    if (v > 0) {
        return dcommi_tree_binary(n - 1, which, v - 1, root + 1, n, root);
    }
    dcommi_node top = {.parent = -1};
    for (int64_t position = 0; position < n - 1; position++) {
        dcommi_node node = dcommi_tree_binary(n - 1, which, position, root + 1, n, root);
        if (node.parent == root) {
            top.child[top.nchildren++] = (int)((position + root + 1) % n);
        }
    }
    return top;
}

/* ---- levels ---- */

enum dcommi_tree_kind { DCOMMI_TREE_FIRST = 0, DCOMMI_TREE_SECOND = 1, DCOMMI_TREE_BINOMIAL = 2 };

/* The ranks at positions first .. end-1 of the order: a group of level-1, whose units are the
 * groups of `level`. */
typedef struct dcommi_tree_span {
    int first, end, level;
} dcommi_tree_span;

static bool dcommi_tree_same_unit(const dcommi_shape *s, int level, int64_t a, int64_t b)
{
    const dcommi_groups *g = s->groups;
    return a == b ||
           (g != NULL && level < g->nlevels &&
            dcommi_group_of(g, level, g->order[a]) == dcommi_group_of(g, level, g->order[b]));
}

/* How many units a span has up to position `until`. */
static int dcommi_tree_units(const dcommi_shape *s, const dcommi_tree_span *span, int until)
{
    int units = 0;
    for (int i = span->first; i < until; i++) {
        units += i == span->first || !dcommi_tree_same_unit(s, span->level, i - 1, i);
    }
    return units;
}

static dcommi_tree_span dcommi_tree_unit(const dcommi_shape *s, const dcommi_tree_span *span,
                                         int unit)
{
    dcommi_tree_span part = {span->first, span->first, span->level + 1};
    for (; unit >= 0; unit--) {
        part.first = part.end++;
        while (part.end < span->end &&
               dcommi_tree_same_unit(s, span->level, part.first, part.end)) {
            part.end++;
        }
    }
    return part;
}

/* The node of one unit in the tree over the units of a span. root: position of the rank that must
 * be on top, -1: none, or none within the span. */
static dcommi_node dcommi_tree_local(const dcommi_shape *s, enum dcommi_tree_kind kind,
                                     const dcommi_tree_span *span, int root, int unit)
{
    int n = dcommi_tree_units(s, span, span->end);
    bool inside = root >= span->first && root < span->end;
    int top = inside ? dcommi_tree_units(s, span, root + 1) - 1 : 0;
    if (kind == DCOMMI_TREE_BINOMIAL) {
        return dcommi_tree_binomial(n, top, unit);
    }
    return inside ? dcommi_tree_rooted(n, (int)kind, top, unit)
                  : dcommi_tree_binary(n, (int)kind, unit, 0, n, -1);
}

/* The position that stands on top of the tree of a span. */
static int dcommi_tree_top(const dcommi_shape *s, enum dcommi_tree_kind kind, dcommi_tree_span span,
                           int root)
{
    while (span.end - span.first > 1) {
        int unit = 0, n = dcommi_tree_units(s, &span, span.end);
        if (root >= span.first && root < span.end) {
            return root;
        }
        while (kind != DCOMMI_TREE_BINOMIAL &&
               dcommi_tree_binary(n, (int)kind, unit, 0, n, -1).parent >= 0) {
            unit++;
        }
        span = dcommi_tree_unit(s, &span, unit);
    }
    return span.first;
}

/* This rank's place in the tree over all ranks. root: -1 for none in particular. */
static dcommi_node dcommi_tree_node(const dcommi_shape *s, enum dcommi_tree_kind kind, int root)
{
    dcommi_node all = {.parent = -1};
    dcommi_tree_span span = {0, s->nranks, 0};
    int position = (int)dcommi_order_position(s, s->rank);
    root = root >= 0 ? (int)dcommi_order_position(s, root) : -1;
    while (span.end - span.first > 1) {
        int unit = dcommi_tree_units(s, &span, position + 1) - 1;
        dcommi_tree_span part = dcommi_tree_unit(s, &span, unit);
        if (dcommi_tree_top(s, kind, part, root) == position) { /* stands for its unit */
            dcommi_node node = dcommi_tree_local(s, kind, &span, root, unit);
            memmove(all.child + node.nchildren, all.child, (size_t)all.nchildren * sizeof(int));
            all.nchildren += node.nchildren; /* the nearest come first */
            for (int i = -1; i < node.nchildren; i++) {
                int relative = i < 0 ? node.parent : node.child[i];
                if (relative >= 0) {
                    dcommi_tree_span other = dcommi_tree_unit(s, &span, relative);
                    int top = dcommi_tree_top(s, kind, other, root);
                    *(i < 0 ? &all.parent : &all.child[i]) = (int)dcommi_order_rank(s, top);
                }
            }
        }
        span = part;
    }
    return all;
}

/* What flows along one tree: `length` bytes from `base` on, in OUT as in the input, in chunks. */
typedef struct dcommi_flow {
    int64_t base, length, chunk, chunks;
} dcommi_flow;

static dcomm_operand dcommi_flow_chunk(const dcommi_flow *f, dcomm_space space, int depth)
{
    return dcommi_span_chunk(space, f->base, f->length, f->chunk, depth);
}

/* Flow i of `flows` into which `total` bytes are cut. */
static dcommi_flow dcommi_flow_make(const dcommi_shape *s, int64_t total, int flows, int i)
{
    int64_t wanted = s->chunk_bytes > 0 ? s->chunk_bytes : dcommi_chunk_default(s);
    dcommi_partition p =
        dcommi_partition_make(total, flows, wanted, (int64_t)dcomm_dtype_size(s->dtype));
    dcommi_flow f = {.base = i * p.block, .chunk = p.chunk, .chunks = p.chunks};
    f.length = dcommi_max64(0, dcommi_min64(p.block, total - f.base));
    return f;
}

/* Send a chunk to all children, the largest subtree first. */
static void dcommi_tree_to_children(dcomm_builder *b, int lane, const dcommi_node *node,
                                    dcomm_operand chunk, dcomm_expr tag)
{
    for (int i = node->nchildren - 1; i >= 0; i--) {
        dcomm_build_send(b, lane, chunk, dcomm_const(node->child[i]), tag, DCOMM_STEP_ASYNC);
    }
}

/* Pass chunks from the parent to the children; at the root they come from `source`. The fence lets
 * one chunk leave while the next one arrives. after: chunk c may be written when this counter has
 * reached c+1 (-1: at once). */
static void dcommi_tree_down(dcomm_builder *b, int lane, const dcommi_flow *f,
                             const dcommi_node *node, dcomm_space source, int64_t first_tag,
                             int after)
{
    int c = dcommi_loop_many(b, lane, f->chunks);
    if (after >= 0) {
        dcomm_build_wait(b, lane, (uint16_t)after, dcomm_linear(1, c, 1));
    }
    dcomm_expr tag = dcomm_linear(first_tag, c, 1);
    dcomm_operand chunk = dcommi_flow_chunk(f, node->parent < 0 ? source : DCOMM_SPACE_OUT, c);
    if (node->parent >= 0) {
        dcomm_build_recv(b, lane, chunk, dcomm_const(node->parent), tag, 0);
    }
    if (node->nchildren > 0) {
        dcomm_build_fence(b, lane);
        dcommi_tree_to_children(b, lane, node, chunk, tag);
    }
    dcommi_end_many(b, lane, f->chunks);
    if (node->nchildren > 0) {
        dcomm_build_fence(b, lane);
    }
}

/* Fold what the children send into `into`, beginning with the own input. */
static void dcommi_tree_fold(const dcommi_shape *s, dcomm_builder *b, int lane,
                             const dcommi_flow *f, const dcommi_node *node, dcomm_operand into,
                             int64_t stage, dcomm_expr tag, int c)
{
    dcomm_operand own = dcommi_flow_chunk(f, dcommi_input_of(s, 0).space, c);
    for (int i = 0; i < node->nchildren; i++) {
        bool last = node->parent < 0 && i == node->nchildren - 1;
        dcomm_build_recv_reduce(b, lane, into, i == 0 ? own : into, dcomm_msg(),
                                dcomm_span(DCOMM_SPACE_SCRATCH, stage, f->chunk),
                                dcomm_const(node->child[i]), tag, last ? DCOMM_STEP_FINAL : 0);
    }
}

/* Up and down one tree. The root turns chunks round in one lane; the others fold, send up and pass
 * down in three, so that the directions do not wait for each other. Returns the next free lane. */
static int dcommi_tree_both_ways(const dcommi_shape *s, dcomm_builder *b, int lane,
                                 const dcommi_flow *f, const dcommi_node *node)
{
    int64_t up = dcomm_build_tags(b, f->chunks), down = dcomm_build_tags(b, f->chunks);
    bool inner = node->nchildren > 0;
    uint16_t folded = dcomm_build_counter(b), sent = dcomm_build_counter(b);
    if (inner) {
        int64_t stage = dcomm_build_scratch(b, f->chunk);
        int c = dcommi_loop_many(b, lane, f->chunks);
        dcomm_operand chunk = dcommi_flow_chunk(f, DCOMM_SPACE_OUT, c);
        dcommi_tree_fold(s, b, lane, f, node, chunk, stage, dcomm_linear(up, c, 1), c);
        if (node->parent < 0) {
            dcomm_build_fence(b, lane);
            dcommi_tree_to_children(b, lane, node, chunk, dcomm_linear(down, c, 1));
        } else {
            dcomm_build_signal(b, lane, folded, dcomm_const(s->rank), dcomm_const(1));
        }
        dcommi_end_many(b, lane, f->chunks);
        if (node->parent < 0) {
            dcomm_build_fence(b, lane);
        }
        lane++;
    }
    if (node->parent >= 0) {
        dcomm_space from = inner ? DCOMM_SPACE_OUT : dcommi_input_of(s, 0).space;
        int c = dcommi_loop_many(b, lane, f->chunks);
        if (inner) {
            dcomm_build_wait(b, lane, folded, dcomm_linear(1, c, 1));
        }
        dcomm_build_send(b, lane, dcommi_flow_chunk(f, from, c), dcomm_const(node->parent),
                         dcomm_linear(up, c, 1), 0);
        if (from == DCOMM_SPACE_OUT) {
            dcomm_build_signal(b, lane, sent, dcomm_const(s->rank), dcomm_const(1));
        }
        dcommi_end_many(b, lane, f->chunks);
        dcommi_tree_down(b, lane + 1, f, node, DCOMM_SPACE_OUT, down,
                         from == DCOMM_SPACE_OUT ? sent : -1);
        lane += 2;
    }
    return lane;
}

/* Up one tree only. Inner nodes that are not the root fold into two scratch slots in turn. */
static void dcommi_tree_up(const dcommi_shape *s, dcomm_builder *b, int lane, const dcommi_flow *f,
                           const dcommi_node *node)
{
    int64_t first_tag = dcomm_build_tags(b, f->chunks);
    int64_t stage = node->nchildren > 0 ? dcomm_build_scratch(b, f->chunk) : 0;
    bool relay = node->nchildren > 0 && node->parent >= 0;
    int64_t slots = relay ? dcomm_build_scratch(b, 2 * f->chunk) : 0;
    int c = dcommi_loop_many(b, lane, f->chunks);
    dcomm_expr tag = dcomm_linear(first_tag, c, 1);
    dcomm_operand chunk =
        dcommi_flow_chunk(f, node->parent < 0 ? DCOMM_SPACE_OUT : dcommi_input_of(s, 0).space, c);
    if (relay) {
        chunk.space = DCOMM_SPACE_SCRATCH;
        chunk.offset = dcomm_plus(dcomm_modular(f->chunk, 0, c, f->chunks > 1, 2), slots);
    }
    dcommi_tree_fold(s, b, lane, f, node, chunk, stage, tag, c);
    if (node->parent >= 0) {
        dcomm_build_fence(b, lane);
        dcomm_build_send(b, lane, chunk, dcomm_const(node->parent), tag, DCOMM_STEP_ASYNC);
    }
    dcommi_end_many(b, lane, f->chunks);
    if (node->parent >= 0) {
        dcomm_build_fence(b, lane);
    }
}

/* The root of a broadcast has its input in place of its output as well. */
static void dcommi_tree_keep_own(const dcommi_shape *s, dcomm_builder *b, int64_t total)
{
    if (s->rank == s->root && !s->in_place) {
        dcomm_build_copy(b, 0, dcomm_span(DCOMM_SPACE_OUT, 0, total),
                         dcomm_span(DCOMM_SPACE_IN, 0, total), 0);
    }
}

/* How many flows the two trees carry, at most three lanes each. */
static int dcommi_tree_flows(const dcommi_shape *s)
{
    int most = DCOMM_PLAN_MAX_LANES / 6;
    return 2 * (s->lanes < 1 ? 1 : s->lanes > most ? most : s->lanes);
}

static dcomm_status dcommi_tree_allreduce(const dcommi_shape *s, dcomm_builder *b)
{
    int64_t total = dcommi_shape_bytes(s, s->count);
    int lane = 0, flows = dcommi_tree_flows(s);
    for (int i = 0; i < flows; i++) {
        dcommi_flow f = dcommi_flow_make(s, total, flows, i);
        dcommi_node node = dcommi_tree_node(s, (enum dcommi_tree_kind)(i % 2), -1);
        lane = dcommi_tree_both_ways(s, b, lane, &f, &node);
    }
    return b->status;
}

static dcomm_status dcommi_tree_allreduce_binomial(const dcommi_shape *s, dcomm_builder *b)
{
    dcommi_flow f = dcommi_flow_make(s, dcommi_shape_bytes(s, s->count), 1, 0);
    dcommi_node node = dcommi_tree_node(s, DCOMMI_TREE_BINOMIAL, 0);
    dcommi_tree_both_ways(s, b, 0, &f, &node);
    return b->status;
}

static dcomm_status dcommi_tree_broadcast(const dcommi_shape *s, dcomm_builder *b)
{
    int64_t total = dcommi_shape_bytes(s, s->count);
    int flows = dcommi_tree_flows(s);
    for (int i = 0; i < flows; i++) {
        dcommi_flow f = dcommi_flow_make(s, total, flows, i);
        dcommi_node node = dcommi_tree_node(s, (enum dcommi_tree_kind)(i % 2), s->root);
        dcommi_tree_down(b, i, &f, &node, dcommi_input_of(s, 0).space,
                         dcomm_build_tags(b, f.chunks), -1);
    }
    dcommi_tree_keep_own(s, b, total);
    return b->status;
}

static dcomm_status dcommi_tree_broadcast_binomial(const dcommi_shape *s, dcomm_builder *b)
{
    int64_t total = dcommi_shape_bytes(s, s->count);
    dcommi_flow f = dcommi_flow_make(s, total, 1, 0);
    dcommi_node node = dcommi_tree_node(s, DCOMMI_TREE_BINOMIAL, s->root);
    dcommi_tree_down(b, 0, &f, &node, dcommi_input_of(s, 0).space, dcomm_build_tags(b, f.chunks),
                     -1);
    dcommi_tree_keep_own(s, b, total);
    return b->status;
}

static dcomm_status dcommi_tree_reduce(const dcommi_shape *s, dcomm_builder *b)
{
    int flows = dcommi_tree_flows(s);
    for (int i = 0; i < flows; i++) {
        dcommi_flow f = dcommi_flow_make(s, dcommi_shape_bytes(s, s->count), flows, i);
        dcommi_node node = dcommi_tree_node(s, (enum dcommi_tree_kind)(i % 2), s->root);
        dcommi_tree_up(s, b, i, &f, &node);
    }
    return b->status;
}

static dcomm_status dcommi_tree_reduce_binomial(const dcommi_shape *s, dcomm_builder *b)
{
    dcommi_flow f = dcommi_flow_make(s, dcommi_shape_bytes(s, s->count), 1, 0);
    dcommi_node node = dcommi_tree_node(s, DCOMMI_TREE_BINOMIAL, s->root);
    dcommi_tree_up(s, b, 0, &f, &node);
    return b->status;
}

#endif
