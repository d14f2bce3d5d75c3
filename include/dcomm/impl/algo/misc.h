/* misc.h - barrier, gather, scatter, send and receive.
 *
 * barrier, dissemination: Hensgen, Finkel and Manber, "Two algorithms for barrier synchronization",
 * IJPP 17 (1988): in step k each rank signals the one 2^k ahead and waits for the one 2^k behind.
 * barrier, direct: each rank signals all others in one step.
 * gather and scatter, linear: all ranks exchange with the root at once.
 * gather and scatter, binomial: inner ranks of the tree carry whole subtrees, ceil(log2 N) steps.
 */
#ifndef DCOMMI_ALGO_MISC_H
#define DCOMMI_ALGO_MISC_H

#include "parts.h"

static dcomm_status dcommi_barrier_dissemination(const dcommi_shape *s, dcomm_builder *b)
{
    for (int64_t d = 1; d < s->nranks; d *= 2) {
        uint16_t step = dcomm_build_counter(b);
        dcomm_build_signal(b, 0, step, dcomm_const((s->rank + d) % s->nranks), dcomm_const(1));
        dcomm_build_wait(b, 0, step, dcomm_const(1));
    }
    return b->status;
}

static dcomm_status dcommi_barrier_direct(const dcommi_shape *s, dcomm_builder *b)
{
    uint16_t all = dcomm_build_counter(b);
    dcomm_build_signal(b, 0, all, dcomm_const(DCOMM_ALL_PEERS), dcomm_const(1));
    dcomm_build_wait(b, 0, all, dcomm_const(s->nranks - 1));
    return b->status;
}

/* Send or receive one message of any length. shape->root is the peer. */
static dcomm_status dcommi_p2p_direct(const dcommi_shape *s, dcomm_builder *b)
{
    int64_t bytes = dcommi_shape_bytes(s, s->count);
    dcomm_expr peer = dcomm_const(s->root), tag = dcomm_const(dcomm_build_tags(b, 1));
    if (s->coll == DCOMM_COLL_SEND) {
        dcomm_build_send(b, 0, dcomm_span(DCOMM_SPACE_IN, 0, bytes), peer, tag, 0);
    } else {
        dcomm_build_recv(b, 0, dcomm_span(DCOMM_SPACE_OUT, 0, bytes), peer, tag, 0);
    }
    return b->status;
}

/* ---- linear ---- */

/* Gather from all ranks at once: by messages or, if `reads`, the root reads the blocks in place.
 */
static dcomm_status dcommi_gather_by(const dcommi_shape *s, dcomm_builder *b, bool reads)
{
    int64_t n = s->nranks, longest = 0;
    dcommi_blocks blocks = dcommi_blocks_of(s, b, &longest);
    int64_t begin = dcommi_own_offset(s, &blocks), length = dcommi_own_length(s, &blocks);
    uint16_t slot = reads ? dcomm_build_slot(b) : 0, done = reads ? dcomm_build_counter(b) : 0;
    dcomm_expr tag = dcomm_const(reads ? 0 : dcomm_build_tags(b, 1)), root = dcomm_const(s->root);
    dcomm_operand own = dcomm_span(DCOMM_SPACE_IN, 0, length);
    if (s->rank != s->root && reads) {
        dcomm_build_expose(b, 0, own, slot, root);
        dcomm_build_wait(b, 0, done, dcomm_const(1));
        return b->status;
    }
    if (s->rank != s->root) {
        dcomm_build_send(b, 0, own, root, tag, 0);
        return b->status;
    }
    int d = dcomm_build_loop(b, 0, dcomm_const(n - 1));
    dcommi_turn peer = dcommi_others(s, d);
    dcomm_operand block = dcommi_block_whole(&blocks, DCOMM_SPACE_OUT, peer, longest);
    if (reads) {
        dcomm_operand theirs =
            dcomm_exposed(dcommi_rank_at(n, peer), slot, dcomm_const(0), longest);
        theirs.length = dcommi_block_length(&blocks, peer);
        dcomm_build_copy(b, 0, block, theirs, DCOMM_STEP_ASYNC);
    } else {
        dcomm_build_recv(b, 0, block, dcommi_rank_at(n, peer), tag, DCOMM_STEP_ASYNC);
    }
    dcomm_build_end(b, 0);
    if (!s->in_place) {
        dcomm_build_copy(b, 0, dcomm_span(DCOMM_SPACE_OUT, begin, length), own, 0);
    }
    dcomm_build_fence(b, 0);
    if (reads) {
        dcomm_build_signal(b, 0, done, dcomm_const(DCOMM_ALL_PEERS), dcomm_const(1));
    }
    return b->status;
}

static dcomm_status dcommi_gather_linear(const dcommi_shape *s, dcomm_builder *b)
{
    return dcommi_gather_by(s, b, false);
}

/* Scatter to all ranks at once: by messages or, if `reads`, each rank reads its block in place. */
static dcomm_status dcommi_scatter_by(const dcommi_shape *s, dcomm_builder *b, bool reads)
{
    int64_t n = s->nranks, longest = 0;
    dcommi_blocks blocks = dcommi_blocks_of(s, b, &longest);
    int64_t begin = dcommi_own_offset(s, &blocks), length = dcommi_own_length(s, &blocks);
    uint16_t slot = reads ? dcomm_build_slot(b) : 0, done = reads ? dcomm_build_counter(b) : 0;
    dcomm_expr tag = dcomm_const(reads ? 0 : dcomm_build_tags(b, 1)), root = dcomm_const(s->root);
    dcomm_operand out = dcomm_span(DCOMM_SPACE_OUT, 0, length);
    if (s->rank != s->root && reads) {
        dcomm_build_copy(b, 0, out, dcomm_exposed(root, slot, dcomm_const(begin), length), 0);
        dcomm_build_signal(b, 0, done, root, dcomm_const(1));
        return b->status;
    }
    if (s->rank != s->root) {
        dcomm_build_recv(b, 0, out, root, tag, 0);
        return b->status;
    }
    dcomm_space input = dcommi_input_of(s, 0).space;
    if (reads) {
        int64_t end = s->in_place ? b->head.out_bytes : b->head.in_bytes;
        dcomm_build_expose(b, 0, dcomm_span(input, 0, end), slot, dcomm_const(DCOMM_ALL_PEERS));
    } else {
        dcommi_send_blocks(s, b, &blocks, input, longest, tag);
    }
    if (!s->in_place) {
        dcomm_build_copy(b, 0, out, dcomm_span(input, begin, length), 0);
    }
    if (reads) {
        dcomm_build_wait(b, 0, done, dcomm_const(n - 1));
    } else {
        dcomm_build_fence(b, 0);
    }
    return b->status;
}

static dcomm_status dcommi_scatter_linear(const dcommi_shape *s, dcomm_builder *b)
{
    return dcommi_scatter_by(s, b, false);
}

/* ---- binomial ---- */

/* A subtree: the ranks root+from .. root+to-1 modulo N. Its blocks travel as one message, or as
 * two where rank numbers wrap around. So the root sends from and receives into its buffer
 * directly. */
typedef struct dcommi_subtree {
    int64_t from, to;
} dcommi_subtree;

/* Return the subtree below the rank v after the root. */
static dcommi_subtree dcommi_subtree_of(const dcommi_shape *s, int64_t v)
{
    int64_t low = v == 0 ? s->nranks : v & -v;
    dcommi_subtree t = {v, dcommi_min64(s->nranks, v + low)};
    return t;
}

/* Start to move the blocks of a subtree to or from the rank peer_v after the root. The root's
 * buffer is in rank order. The scratch of other ranks begins with the block of the rank `first`
 * after the root. */
static void dcommi_subtree_move(const dcommi_shape *s, dcomm_builder *b, bool send,
                                dcommi_subtree t, dcomm_space space, int64_t base, int64_t first,
                                int64_t peer_v, int64_t tag)
{
    int64_t n = s->nranks, block = dcommi_shape_bytes(s, s->count), wrap = n - s->root;
    dcommi_subtree run[2] = {{t.from, dcommi_min64(t.to, wrap)},
                             {dcommi_max64(t.from, wrap), t.to}};
    for (int i = 0; i < 2; i++) {
        if (run[i].from >= run[i].to) {
            continue;
        }
        int64_t at = s->rank == s->root ? (run[i].from + s->root) % n : run[i].from - first;
        dcomm_operand blocks =
            dcomm_span(space, base + at * block, (run[i].to - run[i].from) * block);
        dcomm_expr peer = dcomm_const((peer_v + s->root) % n);
        if (send) {
            dcomm_build_send(b, 0, blocks, peer, dcomm_const(tag + i), DCOMM_STEP_ASYNC);
        } else {
            dcomm_build_recv(b, 0, blocks, peer, dcomm_const(tag + i), DCOMM_STEP_ASYNC);
        }
    }
}

static dcomm_status dcommi_gather_binomial(const dcommi_shape *s, dcomm_builder *b)
{
    int64_t n = s->nranks, block = dcommi_shape_bytes(s, s->count);
    int64_t v = (s->rank - s->root + n) % n, tag = dcomm_build_tags(b, 2);
    dcommi_subtree mine = dcommi_subtree_of(s, v);
    dcomm_operand own = dcomm_span(DCOMM_SPACE_IN, 0, block);
    dcomm_space space = v == 0 ? DCOMM_SPACE_OUT : DCOMM_SPACE_SCRATCH;
    int64_t base = 0;
    bool leaf = mine.to - mine.from == 1;
    if (v > 0 && leaf) {
        space = DCOMM_SPACE_IN;
    } else if (v > 0) {
        base = dcomm_build_scratch(b, (mine.to - mine.from) * block);
    }
    for (int64_t d = 1; v + d < mine.to; d *= 2) {
        dcommi_subtree_move(s, b, false, dcommi_subtree_of(s, v + d), space, base, v, v + d, tag);
    }
    if (v == 0 ? !s->in_place : !leaf) {
        dcomm_build_copy(b, 0, dcomm_span(space, base + (v == 0 ? s->root * block : 0), block), own,
                         0);
    }
    dcomm_build_fence(b, 0);
    if (v > 0) {
        dcommi_subtree_move(s, b, true, mine, space, base, v, v - (v & -v), tag);
        dcomm_build_fence(b, 0);
    }
    return b->status;
}

static dcomm_status dcommi_scatter_binomial(const dcommi_shape *s, dcomm_builder *b)
{
    int64_t n = s->nranks, block = dcommi_shape_bytes(s, s->count);
    int64_t v = (s->rank - s->root + n) % n, tag = dcomm_build_tags(b, 2);
    dcommi_subtree mine = dcommi_subtree_of(s, v);
    dcomm_operand out = dcomm_span(DCOMM_SPACE_OUT, 0, block);
    dcomm_space space = v == 0 ? dcommi_input_of(s, 0).space : DCOMM_SPACE_SCRATCH;
    int64_t base = 0, own = v == 0 ? s->root * block : 0, top = 1;
    bool leaf = mine.to - mine.from == 1;
    if (v > 0) {
        if (leaf) {
            space = DCOMM_SPACE_OUT;
        } else {
            base = dcomm_build_scratch(b, (mine.to - mine.from) * block);
        }
        dcommi_subtree_move(s, b, false, mine, space, base, v, v - (v & -v), tag);
        dcomm_build_fence(b, 0);
    }
    while (v + 2 * top < mine.to) {
        top *= 2;
    }
    for (int64_t d = top; d >= 1 && v + d < mine.to; d /= 2) {
        dcommi_subtree_move(s, b, true, dcommi_subtree_of(s, v + d), space, base, v, v + d, tag);
    }
    if (v == 0 ? !s->in_place : !leaf) {
        dcomm_build_copy(b, 0, out, dcomm_span(space, base + own, block), 0);
    }
    dcomm_build_fence(b, 0);
    return b->status;
}

#endif
