/* algo_direct.h - direct exchange: every rank talks to every other, or all to one. Few steps, and
 * folds in rank order.
 *
 * Short blocks travel as messages. Long ones are offered to the peers (EXPOSE), who read them where
 * they lie, so that a reduction of N inputs passes over memory once; then everybody says that it
 * has read, because memory must stay until then.
 *
 * one_shot: all-reduce in one step, (N-1) S per rank. two_shot: direct reduce-scatter and direct
 * all-gather, 2 steps, 2(N-1)/N S per rank, as in Thakur, Rabenseifner and Gropp, "Optimization of
 * collective communication operations in MPICH", IJHPCA 19 (2005). star: all to rank 0 and back,
 * what a parameter server does (Li et al., OSDI 2014): (N-1) S in and out of rank 0. */
#ifndef DCOMMI_ALGO_DIRECT_H
#define DCOMMI_ALGO_DIRECT_H

#include "algo_parts.h"

/* The other ranks, one per trip of a loop at `depth`: rank+1, rank+2, ... */
static dcommi_turn dcommi_direct_others(const dcommi_shape *s, int depth)
{
    dcommi_turn t = {s->rank + 1, depth, 1};
    return t;
}

/* Nobody leaves before everybody has read what it needs. */
static void dcommi_direct_read_barrier(const dcommi_shape *s, dcommi_builder *b)
{
    uint16_t readers = dcommi_build_counter(b);
    dcommi_signal(b, 0, readers, dcommi_const(DCOMM_ALL_PEERS), dcommi_const(1));
    dcommi_await(b, 0, readers, dcommi_const(s->nranks - 1));
}

/* All-reduce of two ranks: one message, folded as it arrives. */
static void dcommi_direct_pair(const dcommi_shape *s, dcommi_builder *b, int64_t bytes)
{
    dcommi_input in = dcommi_input_of(s, 0);
    dcomm_operand own = dcommi_span(in.space, 0, bytes), sent = own;
    int64_t stage = dcommi_build_scratch(b, bytes);
    dcomm_expr peer = dcommi_const(1 - s->rank);
    int64_t tag = dcommi_build_tags(b, 1);
    if (s->in_place) {
        sent = dcommi_span(DCOMM_SPACE_SCRATCH, dcommi_build_scratch(b, bytes), bytes);
        dcommi_copy(b, 0, sent, own, 0);
    }
    dcommi_send(b, 0, sent, peer, dcommi_const(tag), DCOMM_STEP_ASYNC);
    dcommi_recv_reduce(b, 0, dcommi_span(DCOMM_SPACE_OUT, 0, bytes),
                       s->rank == 0 ? own : dcommi_msg(), s->rank == 0 ? dcommi_msg() : own,
                       dcommi_span(DCOMM_SPACE_SCRATCH, stage, bytes), peer, dcommi_const(tag),
                       DCOMM_STEP_FINAL);
    dcommi_fence(b, 0);
}

static dcomm_status dcommi_direct_one_shot(const dcommi_shape *s, dcommi_builder *b)
{
    int64_t n = s->nranks, bytes = dcommi_shape_bytes(s, s->count);
    dcommi_input in = dcommi_input_of(s, 0);
    dcomm_operand own = dcommi_span(in.space, 0, bytes), ordered[3];
    dcomm_operand out = dcommi_span(DCOMM_SPACE_OUT, 0, bytes);
    if (bytes >= DCOMMI_PEER_READ_MIN) {
        uint16_t slot = dcommi_build_slot(b);
        if (s->in_place) {
            /* Others still read the input while the result is written. */
            own = dcommi_span(DCOMM_SPACE_SCRATCH, dcommi_build_scratch(b, bytes), bytes);
            dcommi_copy(b, 0, own, out, 0);
        }
        dcommi_expose(b, 0, own, slot, dcommi_const(DCOMM_ALL_PEERS));
        dcomm_operand others = dcommi_peer(dcommi_const(0), slot, dcommi_const(0), bytes);
        size_t count = dcommi_in_rank_order(s, others, 0, own, ordered);
        dcommi_reduce(b, 0, out, ordered, count, DCOMM_STEP_FINAL);
        dcommi_direct_read_barrier(s, b);
        return b->status;
    }
    if (n == 2) {
        dcommi_direct_pair(s, b, bytes);
        return b->status;
    }
    int64_t slots = dcommi_build_scratch(b, n * bytes);
    dcomm_expr tag = dcommi_const(dcommi_build_tags(b, 1));
    int d = dcommi_loop(b, 0, dcommi_const(n - 1));
    dcommi_turn peer = dcommi_direct_others(s, d);
    dcommi_send(b, 0, own, dcommi_rank_at(n, peer), tag, DCOMM_STEP_ASYNC);
    dcommi_recv(b, 0,
                dcommi_at(DCOMM_SPACE_SCRATCH,
                          dcommi_plus(dcommi_modular(bytes, peer.index, d, 1, n), slots), bytes),
                dcommi_rank_at(n, peer), tag, DCOMM_STEP_ASYNC);
    dcommi_end(b, 0);
    dcommi_fence(b, 0);
    size_t count = dcommi_in_rank_order(s, dcommi_span(DCOMM_SPACE_SCRATCH, slots, bytes), bytes,
                                        own, ordered);
    dcommi_reduce(b, 0, out, ordered, count, DCOMM_STEP_FINAL);
    return b->status;
}

#endif
