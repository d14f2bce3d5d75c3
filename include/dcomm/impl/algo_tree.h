/* algo_tree.h - trees: binomial, and two binary trees that share the work.
 *
 * binomial: ceil(log2 N) steps; the root sends or receives S in each.
 * tree: Sanders, Speck and Traeff, "Two-tree algorithms for full bandwidth broadcast, reduction and
 * scan", Parallel Computing 35 (2009). A rank that is an inner node of one tree is a leaf of the
 * other, and each tree carries half of the data, so that every rank sends and receives about S per
 * direction. Chunks are pipelined: while chunk c+1 arrives, chunk c is on its way further. */
#ifndef DCOMMI_ALGO_TREE_H
#define DCOMMI_ALGO_TREE_H

#include "algo_parts.h"

#define DCOMMI_TREE_CHILDREN 32

/* A rank's place in a tree. */
typedef struct dcommi_node {
    int parent; /* -1: root */
    int nchildren;
    int child[DCOMMI_TREE_CHILDREN];
} dcommi_node;

/* Binomial tree over n ranks from `root`: the parent is the relative rank without its lowest set
 * bit. Children in order of growing distance. */
static dcommi_node dcommi_tree_binomial(int n, int root, int rank)
{
    dcommi_node node = {.parent = -1};
    int v = (rank - root + n) % n;
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

/* What flows along one tree: `length` bytes from `base` on in OUT (and the input), in chunks that
 * are cut off at `clip`. */
typedef struct dcommi_flow {
    int lane;
    int64_t base, chunk, chunks, clip, tag;
} dcommi_flow;

static dcomm_operand dcommi_flow_chunk(const dcommi_flow *f, dcomm_space space, int depth)
{
    return dcommi_clipped(space, dcommi_linear(f->base, depth, f->chunk), f->chunk, f->clip);
}

static void dcommi_tree_to_children(dcommi_builder *b, const dcommi_flow *f,
                                    const dcommi_node *node, dcomm_operand chunk, dcomm_expr tag)
{
    for (int i = node->nchildren - 1; i >= 0; i--) {
        dcommi_send(b, f->lane, chunk, dcommi_const(node->child[i]), tag, DCOMM_STEP_ASYNC);
    }
}

/* Pass chunks from the parent to the children. At the root they come from `source`. */
static void dcommi_tree_down(dcommi_builder *b, const dcommi_flow *f, const dcommi_node *node,
                             dcomm_space source)
{
    int c = dcommi_loop_many(b, f->lane, f->chunks);
    dcomm_expr tag = dcommi_linear(f->tag, c, 1);
    dcomm_operand chunk = dcommi_flow_chunk(f, node->parent < 0 ? source : DCOMM_SPACE_OUT, c);
    if (node->parent >= 0) {
        dcommi_recv(b, f->lane, chunk, dcommi_const(node->parent), tag, 0);
    }
    dcommi_fence(b, f->lane);
    dcommi_tree_to_children(b, f, node, chunk, tag);
    dcommi_end_many(b, f->lane, f->chunks);
    dcommi_fence(b, f->lane);
}

static dcomm_status dcommi_tree_broadcast_binomial(const dcommi_shape *s, dcommi_builder *b)
{
    int64_t total = dcommi_shape_bytes(s, s->count);
    int64_t chunk = dcommi_chunk_for(s, total, DCOMMI_CHUNK_DEFAULT);
    dcommi_flow f = {.chunk = chunk, .chunks = dcommi_chunks_of(total, chunk), .clip = total};
    f.tag = dcommi_build_tags(b, f.chunks);
    dcommi_node node = dcommi_tree_binomial(s->nranks, s->root, s->rank);
    dcomm_space source = dcommi_input_of(s, 0).space;
    dcommi_tree_down(b, &f, &node, source);
    if (s->rank == s->root && !s->in_place) {
        dcommi_copy(b, 0, dcommi_span(DCOMM_SPACE_OUT, 0, total), dcommi_span(source, 0, total), 0);
    }
    return b->status;
}

#endif
