/* tree.h - broadcast, reduce and all-reduce along trees (tree_nodes.h says who is whose parent).
 *
 * binomial: one tree, ceil(log2 N) levels; the root sends or receives S bytes in each.
 * tree: two binary trees of about log2 N levels, each with half of the data. A rank that is an
 * inner node of one is a leaf of the other, so every rank sends and receives about S bytes each
 * way.
 *
 * Data travels in chunks: chunk c is passed on while chunk c+1 arrives. In an all-reduce, chunks go
 * up a tree, where each node folds them, and come down again. The root does both in one lane. Every
 * other rank has up to three lanes for each tree, so that the ways do not wait for each other: one
 * folds what the children send, one sends to the parent, one passes down. Two counters order them:
 * `folded` counts the chunks that may go to the parent; `sent` counts those that have gone, so that
 * the result may overwrite them in OUT.
 *
 * `dcomm-plan allreduce tree -n 4 --rank 1 --count 1000 --chunk 500` prints the plan of rank 1, an
 * inner node of the first tree (lanes 0 to 2) and a leaf of the second (lanes 3 and 4). i is the
 * loop over chunks; a place is SPACE[begin, length <= longest]; (+) folds. Counter 0 is `folded`,
 * counter 1 is `sent`. Read plan.h and build.h first.
 *
 *     plan "tree" rank 1 of 4, sum f32: IN 4000, OUT 4000, SCRATCH 512 bytes; 16 tags, 4 counters,
 *         0 slots, 0 words
 *     lane 0
 *        0  loop i < 4
 *        1    recv_reduce OUT[500*i, 2000-500*i <= 500] <- IN[500*i, 2000-500*i <= 500] (+)
 *                 message from 0, tag i
 *        2    recv_reduce OUT[500*i, 2000-500*i <= 500] <- OUT[500*i, 2000-500*i <= 500] (+)
 *                 message from 2, tag i
 *        3    signal counter 0 of 1 by 1
 *        4  end
 *     lane 1
 *        0  loop i < 4
 *        1    wait counter 0 >= 1+i
 *        2    send OUT[500*i, 2000-500*i <= 500] to 3, tag i
 *        3    signal counter 1 of 1 by 1
 *        4  end
 *     lane 2
 *        0  loop i < 4
 *        1    wait counter 1 >= 1+i
 *        2    recv OUT[500*i, 2000-500*i <= 500] from 3, tag 4+i
 *        3    fence
 *        4    send OUT[500*i, 2000-500*i <= 500] to 2, tag 4+i ASYNC
 *        5    send OUT[500*i, 2000-500*i <= 500] to 0, tag 4+i ASYNC
 *        6  end
 *     lane 3
 *        0  loop i < 4
 *        1    send IN[2000+500*i, 2000-500*i <= 500] to 2, tag 8+i
 *        2  end
 *     lane 4
 *        0  loop i < 4
 *        1    recv OUT[2000+500*i, 2000-500*i <= 500] from 2, tag 12+i
 *        2  end
 */
#ifndef DCOMMI_ALGO_TREE_H
#define DCOMMI_ALGO_TREE_H

#include "tree_nodes.h"

/* One tree, as this rank sees it, and the bytes that travel along it: the same part of the input
 * and of OUT. */
typedef struct dcommi_tree {
    dcomm_builder *b;
    dcommi_node node;
    dcomm_expr self;       /* this rank */
    dcomm_space input;     /* IN; OUT if the operation is in place */
    int64_t base, length;  /* bytes */
    int64_t chunk, chunks; /* bytes of a chunk; chunks of the part */
    uint16_t folded, sent; /* all-reduce: counters of chunks */
} dcommi_tree;

/* Make a tree that carries part `part` of the buffer, which is cut into `parts` equal ones. root:
 * the rank on top; -1: any. */
static dcommi_tree dcommi_tree_make(const dcommi_shape *s, dcomm_builder *b,
                                    enum dcommi_tree_kind kind, int root, int part, int parts)
{
    int64_t total = dcommi_shape_bytes(s, s->count);
    int64_t wanted = s->chunk_bytes > 0 ? s->chunk_bytes : dcommi_chunk_default(s);
    dcommi_partition p =
        dcommi_partition_make(total, parts, wanted, (int64_t)dcomm_dtype_size(s->dtype));
    dcommi_tree t = {.b = b,
                     .node = dcommi_tree_node(s, kind, root),
                     .self = dcomm_const(s->rank),
                     .input = dcommi_input_of(s, 0).space,
                     .base = part * p.block,
                     .chunk = p.chunk,
                     .chunks = p.chunks};
    t.length = dcommi_max64(0, dcommi_min64(p.block, total - t.base));
    return t;
}

static bool dcommi_tree_is_root(const dcommi_tree *t)
{
    return t->node.parent < 0;
}

static bool dcommi_tree_is_leaf(const dcommi_tree *t)
{
    return t->node.nchildren == 0;
}

/* Open the loop over chunks. Return its depth, which names chunk c below. */
static int dcommi_tree_loop(const dcommi_tree *t, int lane)
{
    return dcomm_build_loop(t->b, lane, dcomm_const(t->chunks));
}

static dcomm_operand dcommi_tree_chunk(const dcommi_tree *t, dcomm_space space, int c)
{
    return dcommi_span_chunk(space, t->base, t->length, t->chunk, c);
}

/* Send a chunk to all children, the largest subtree first, without waiting. */
static void dcommi_tree_to_children(const dcommi_tree *t, int lane, dcomm_operand chunk,
                                    dcomm_expr tag)
{
    for (int i = t->node.nchildren - 1; i >= 0; i--) {
        dcomm_build_send(t->b, lane, chunk, dcomm_const(t->node.child[i]), tag, DCOMM_STEP_ASYNC);
    }
}

/* Fold what the children send of chunk c into `sum`, beginning with this rank's input. */
static void dcommi_tree_fold(const dcommi_tree *t, int lane, int c, dcomm_operand sum,
                             dcomm_operand stage, dcomm_expr tag)
{
    dcomm_operand own = dcommi_tree_chunk(t, t->input, c);
    for (int i = 0; i < t->node.nchildren; i++) {
        bool final = dcommi_tree_is_root(t) && i == t->node.nchildren - 1;
        dcomm_build_recv_reduce(t->b, lane, sum, i == 0 ? own : sum, dcomm_msg(), stage,
                                dcomm_const(t->node.child[i]), tag, final ? DCOMM_STEP_FINAL : 0);
    }
}

/* Pass chunks from the parent to the children; the root has them in its input. The fence before a
 * chunk is sent waits for the chunk before it, so one leaves while the next one arrives. tags: the
 * first one. wait_sent: OUT still holds a partial sum that goes to the parent. Wait for that send
 * before overwriting it.
 */
static void dcommi_tree_down(const dcommi_tree *t, int lane, int64_t tags, bool wait_sent)
{
    int c = dcommi_tree_loop(t, lane);
    dcomm_expr tag = dcomm_linear(tags, c, 1);
    dcomm_operand chunk =
        dcommi_tree_chunk(t, dcommi_tree_is_root(t) ? t->input : DCOMM_SPACE_OUT, c);
    if (wait_sent) {
        dcomm_build_wait(t->b, lane, t->sent, dcomm_linear(1, c, 1));
    }
    if (!dcommi_tree_is_root(t)) {
        dcomm_build_recv(t->b, lane, chunk, dcomm_const(t->node.parent), tag, 0);
    }
    if (!dcommi_tree_is_leaf(t)) {
        dcomm_build_fence(t->b, lane);
        dcommi_tree_to_children(t, lane, chunk, tag);
    }
    dcomm_build_end(t->b, lane);
}

/* ---- all-reduce ---- */

/* Fold in OUT what the children send. The root sends each chunk down as soon as it is complete. up,
 * down: the first tag of each way. */
static void dcommi_tree_fold_lane(const dcommi_tree *t, int lane, int64_t up, int64_t down)
{
    int64_t stage = dcomm_build_scratch(t->b, t->chunk);
    int c = dcommi_tree_loop(t, lane);
    dcomm_operand sum = dcommi_tree_chunk(t, DCOMM_SPACE_OUT, c);
    dcommi_tree_fold(t, lane, c, sum, dcomm_span(DCOMM_SPACE_SCRATCH, stage, t->chunk),
                     dcomm_linear(up, c, 1));
    if (dcommi_tree_is_root(t)) {
        dcomm_build_fence(t->b, lane);
        dcommi_tree_to_children(t, lane, sum, dcomm_linear(down, c, 1));
    } else {
        dcomm_build_signal(t->b, lane, t->folded, t->self, dcomm_const(1));
    }
    dcomm_build_end(t->b, lane);
}

/* Return the space that a rank sends to its parent from: a leaf sends its input, an inner node what
 * it has folded in OUT. */
static dcomm_space dcommi_tree_sends_from(const dcommi_tree *t)
{
    return dcommi_tree_is_leaf(t) ? t->input : DCOMM_SPACE_OUT;
}

/* Send chunks to the parent. */
static void dcommi_tree_send_lane(const dcommi_tree *t, int lane, int64_t up)
{
    dcomm_space from = dcommi_tree_sends_from(t);
    int c = dcommi_tree_loop(t, lane);
    if (!dcommi_tree_is_leaf(t)) {
        dcomm_build_wait(t->b, lane, t->folded, dcomm_linear(1, c, 1));
    }
    dcomm_build_send(t->b, lane, dcommi_tree_chunk(t, from, c), dcomm_const(t->node.parent),
                     dcomm_linear(up, c, 1), 0);
    if (from == DCOMM_SPACE_OUT) {
        dcomm_build_signal(t->b, lane, t->sent, t->self, dcomm_const(1));
    }
    dcomm_build_end(t->b, lane);
}

/* Fold up one tree and pass the result down. Return the next free lane. */
static int dcommi_tree_both_ways(dcommi_tree *t, int lane)
{
    int64_t up = dcomm_build_tags(t->b, t->chunks), down = dcomm_build_tags(t->b, t->chunks);
    t->folded = dcomm_build_counter(t->b);
    t->sent = dcomm_build_counter(t->b);
    if (!dcommi_tree_is_leaf(t)) {
        dcommi_tree_fold_lane(t, lane++, up, down);
    }
    if (!dcommi_tree_is_root(t)) {
        dcommi_tree_send_lane(t, lane++, up);
        dcommi_tree_down(t, lane++, down, dcommi_tree_sends_from(t) == DCOMM_SPACE_OUT);
    }
    return lane;
}

static dcomm_status dcommi_tree_allreduce_binomial(const dcommi_shape *s, dcomm_builder *b)
{
    dcommi_tree t = dcommi_tree_make(s, b, DCOMMI_TREE_BINOMIAL, 0, 0, 1);
    dcommi_tree_both_ways(&t, 0);
    return b->status;
}

/* Return the number of trees: two for each of opts.lanes, of three lanes each at most. */
static int dcommi_tree_trees(const dcommi_shape *s)
{
    return 2 * (s->lanes < DCOMM_PLAN_MAX_LANES / 6 ? s->lanes : DCOMM_PLAN_MAX_LANES / 6);
}

/* Even trees are the first of the two, odd ones the second. */
static enum dcommi_tree_kind dcommi_tree_kind_of(int i)
{
    return i % 2 == 0 ? DCOMMI_TREE_FIRST : DCOMMI_TREE_SECOND;
}

static dcomm_status dcommi_tree_allreduce(const dcommi_shape *s, dcomm_builder *b)
{
    int lane = 0, trees = dcommi_tree_trees(s);
    for (int i = 0; i < trees; i++) {
        dcommi_tree t = dcommi_tree_make(s, b, dcommi_tree_kind_of(i), -1, i, trees);
        lane = dcommi_tree_both_ways(&t, lane);
    }
    return b->status;
}

/* ---- broadcast ---- */

/* Copy the root's input to its output, where the operation is not in place. */
static void dcommi_tree_keep_own(const dcommi_shape *s, dcomm_builder *b)
{
    int64_t total = dcommi_shape_bytes(s, s->count);
    if (s->rank == s->root && !s->in_place) {
        dcomm_build_copy(b, 0, dcomm_span(DCOMM_SPACE_OUT, 0, total),
                         dcomm_span(DCOMM_SPACE_IN, 0, total), 0);
    }
}

static dcomm_status dcommi_tree_broadcast_binomial(const dcommi_shape *s, dcomm_builder *b)
{
    dcommi_tree t = dcommi_tree_make(s, b, DCOMMI_TREE_BINOMIAL, s->root, 0, 1);
    dcommi_tree_down(&t, 0, dcomm_build_tags(b, t.chunks), false);
    dcommi_tree_keep_own(s, b);
    return b->status;
}

static dcomm_status dcommi_tree_broadcast(const dcommi_shape *s, dcomm_builder *b)
{
    int trees = dcommi_tree_trees(s);
    for (int i = 0; i < trees; i++) {
        dcommi_tree t = dcommi_tree_make(s, b, dcommi_tree_kind_of(i), s->root, i, trees);
        dcommi_tree_down(&t, i, dcomm_build_tags(b, t.chunks), false);
    }
    dcommi_tree_keep_own(s, b);
    return b->status;
}

/* ---- reduce ---- */

/* Fold up one tree. The root folds in OUT; the other inner nodes, whose OUT is not theirs to write,
 * fold in two slots of scratch in turn: one is sent while the other is filled. */
static void dcommi_tree_up(const dcommi_tree *t, int lane)
{
    dcomm_builder *b = t->b;
    bool relay = !dcommi_tree_is_leaf(t) && !dcommi_tree_is_root(t);
    int64_t tags = dcomm_build_tags(b, t->chunks);
    int64_t stage = !dcommi_tree_is_leaf(t) ? dcomm_build_scratch(b, t->chunk) : 0;
    int64_t slots = relay ? dcomm_build_scratch(b, 2 * t->chunk) : 0;
    int c = dcommi_tree_loop(t, lane);
    dcomm_expr tag = dcomm_linear(tags, c, 1);
    dcomm_operand sum =
        dcommi_tree_chunk(t, dcommi_tree_is_root(t) ? DCOMM_SPACE_OUT : t->input, c);
    if (relay) {
        sum.space = DCOMM_SPACE_SCRATCH;
        sum.offset = dcomm_plus(dcomm_modular(t->chunk, 0, c, 1, 2), slots);
    }
    dcommi_tree_fold(t, lane, c, sum, dcomm_span(DCOMM_SPACE_SCRATCH, stage, t->chunk), tag);
    if (!dcommi_tree_is_root(t)) {
        dcomm_build_fence(b, lane);
        dcomm_build_send(b, lane, sum, dcomm_const(t->node.parent), tag, DCOMM_STEP_ASYNC);
    }
    dcomm_build_end(b, lane);
}

static dcomm_status dcommi_tree_reduce_binomial(const dcommi_shape *s, dcomm_builder *b)
{
    dcommi_tree t = dcommi_tree_make(s, b, DCOMMI_TREE_BINOMIAL, s->root, 0, 1);
    dcommi_tree_up(&t, 0);
    return b->status;
}

static dcomm_status dcommi_tree_reduce(const dcommi_shape *s, dcomm_builder *b)
{
    int trees = dcommi_tree_trees(s);
    for (int i = 0; i < trees; i++) {
        dcommi_tree t = dcommi_tree_make(s, b, dcommi_tree_kind_of(i), s->root, i, trees);
        dcommi_tree_up(&t, i);
    }
    return b->status;
}

#endif
