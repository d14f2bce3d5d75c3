/* algo_alltoall.h - all-to-all: pairwise, linear and Bruck's.
 *
 * pairwise: in round k = 1 .. N/2 each rank exchanges with the ranks k ahead and k behind, so that
 * few messages are under way at a time; (N-1) blocks per rank, N/2 rounds. In place, only the
 * blocks of the round are set aside. */
#ifndef DCOMMI_ALGO_ALLTOALL_H
#define DCOMMI_ALGO_ALLTOALL_H

#include "algo_parts.h"

/* The two sides of an all-to-all: blocks to send and blocks to receive, by rank. */
typedef struct dcommi_a2a {
    dcommi_blocks send, recv;
    int64_t longest_send, longest_recv;
    dcomm_space space; /* of the blocks to send */
} dcommi_a2a;

static dcommi_a2a dcommi_a2a_make(const dcommi_shape *s, dcommi_builder *b)
{
    dcommi_a2a a = {.send = {.n = s->nranks}, .recv = {.n = s->nranks}};
    a.space = dcommi_input_of(s, 0).space;
    if (s->coll == DCOMM_COLL_ALLTOALLV) {
        a.send.listed = a.recv.listed = true;
        a.send.offsets = dcommi_table_bytes(s, b, s->send_displs);
        a.send.lengths = dcommi_table_bytes(s, b, s->send_counts);
        a.recv.offsets = dcommi_table_bytes(s, b, s->displs);
        a.recv.lengths = dcommi_table_bytes(s, b, s->counts);
        a.longest_send = dcommi_longest(s, s->send_counts);
        a.longest_recv = dcommi_longest(s, s->counts);
    } else {
        int64_t block = dcommi_shape_bytes(s, s->count);
        a.send.stride = a.send.length = a.recv.stride = a.recv.length = block;
        a.longest_send = a.longest_recv = block;
    }
    return a;
}

/* This rank's block for itself. */
static void dcommi_a2a_own(const dcommi_shape *s, dcommi_builder *b, const dcommi_a2a *a)
{
    if (!s->in_place) {
        dcommi_turn own = dcommi_turn_at(s->rank);
        dcommi_copy(b, 0, dcommi_block_whole(&a->recv, DCOMM_SPACE_OUT, own, a->longest_recv),
                    dcommi_block_whole(&a->send, a->space, own, a->longest_recv), 0);
    }
}

/* Start the exchange with rank `to` (send) and rank `from` (receive). */
static void dcommi_a2a_start(const dcommi_shape *s, dcommi_builder *b, const dcommi_a2a *a,
                             dcomm_operand sent, dcommi_turn to, dcommi_turn from, dcomm_expr tag)
{
    dcommi_send(b, 0, sent, dcommi_rank_at(s->nranks, to), tag, DCOMM_STEP_ASYNC);
    dcommi_recv(b, 0, dcommi_block_whole(&a->recv, DCOMM_SPACE_OUT, from, a->longest_recv),
                dcommi_rank_at(s->nranks, from), tag, DCOMM_STEP_ASYNC);
}

/* What goes to rank `to`: where it lies or, in place, a copy in scratch at `aside`. */
static dcomm_operand dcommi_a2a_outgoing(const dcommi_shape *s, dcommi_builder *b,
                                         const dcommi_a2a *a, dcommi_turn to, int64_t aside)
{
    dcomm_operand block = dcommi_block_whole(&a->send, a->space, to, a->longest_send);
    if (!s->in_place) {
        return block;
    }
    dcomm_operand copy = dcommi_span(DCOMM_SPACE_SCRATCH, aside, a->longest_send);
    dcommi_copy(b, 0, copy, block, 0);
    return copy;
}

static dcomm_status dcommi_a2a_pairwise(const dcommi_shape *s, dcommi_builder *b)
{
    dcommi_a2a a = dcommi_a2a_make(s, b);
    int64_t n = s->nranks, rounds = (n - 1) / 2;
    dcomm_expr tag = dcommi_const(dcommi_build_tags(b, 1));
    int64_t aside[2] = {0, 0};
    if (s->in_place) {
        aside[0] = dcommi_build_scratch(b, a.longest_send);
        aside[1] = dcommi_build_scratch(b, a.longest_send);
    }
    dcommi_a2a_own(s, b, &a);
    if (rounds > 0) {
        int d = dcommi_loop(b, 0, dcommi_const(rounds));
        dcommi_turn ahead = {s->rank + 1, d, 1}, behind = {s->rank - 1, d, -1};
        dcomm_operand up = dcommi_a2a_outgoing(s, b, &a, ahead, aside[0]);
        dcomm_operand down = dcommi_a2a_outgoing(s, b, &a, behind, aside[1]);
        dcommi_a2a_start(s, b, &a, up, ahead, behind, tag);
        dcommi_a2a_start(s, b, &a, down, behind, ahead, tag);
        dcommi_fence(b, 0);
        dcommi_end(b, 0);
    }
    if (n % 2 == 0) {
        dcommi_turn opposite = dcommi_turn_at(s->rank + n / 2);
        dcomm_operand across = dcommi_a2a_outgoing(s, b, &a, opposite, aside[0]);
        dcommi_a2a_start(s, b, &a, across, opposite, opposite, tag);
        dcommi_fence(b, 0);
    }
    return b->status;
}

#endif
