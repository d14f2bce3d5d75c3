/* alltoall.h - all-to-all: pairwise, linear and Bruck's.
 *
 * pairwise: in round k = 1 .. N/2 each rank exchanges with the ranks k ahead and k behind, so that
 * few messages are under way at a time; (N-1) blocks per rank, N/2 rounds. In place, only the
 * blocks of the round are copied aside.
 * linear: all messages at once, (N-1) blocks per rank. Long blocks of equal length are read in
 * place.
 * Both send empty blocks too, so that ranks with different counts get an error. Where all ranks
 * know all counts, they skip empty blocks.
 * bruck: Bruck, Ho, Kipnis, Upfal and Weathersby, "Efficient algorithms for all-to-all
 * communications in multiport message-passing systems", IEEE TPDS 8 (1997): ceil(log2 N) steps.
 * Step k moves all blocks whose distance to go has bit k set, about N/2 blocks. */
#ifndef DCOMMI_ALGO_ALLTOALL_H
#define DCOMMI_ALGO_ALLTOALL_H

#include "parts.h"

/* The two sides of an all-to-all: blocks to send and blocks to receive, by rank. */
typedef struct dcommi_a2a {
    dcommi_blocks send, recv;
    int64_t longest_send, longest_recv;
    dcomm_space space; /* of the blocks to send */
} dcommi_a2a;

static dcommi_a2a dcommi_a2a_make(const dcommi_shape *s, dcomm_builder *b)
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

/* Copy this rank's block for itself. */
static void dcommi_a2a_own(const dcommi_shape *s, dcomm_builder *b, const dcommi_a2a *a)
{
    if (!s->in_place) {
        dcommi_turn own = dcommi_turn_at(s->rank);
        dcomm_build_copy(b, 0, dcommi_block_whole(&a->recv, DCOMM_SPACE_OUT, own, a->longest_recv),
                         dcommi_block_whole(&a->send, a->space, own, a->longest_recv),
                         DCOMM_STEP_RESULT);
    }
}

/* Start to send `sent` to rank `to`, and to receive the block of rank `from`. */
static void dcommi_a2a_start(const dcommi_shape *s, dcomm_builder *b, const dcommi_a2a *a,
                             dcomm_operand sent, dcommi_turn to, dcommi_turn from, dcomm_expr tag)
{
    dcomm_build_send(b, 0, sent, dcommi_rank_at(s->nranks, to), tag, DCOMM_STEP_ASYNC);
    dcomm_build_recv(b, 0, dcommi_block_whole(&a->recv, DCOMM_SPACE_OUT, from, a->longest_recv),
                     dcommi_rank_at(s->nranks, from), tag, DCOMM_STEP_ASYNC | DCOMM_STEP_RESULT);
}

/* Start the same exchange chunk by chunk. */
static void dcommi_a2a_chunks(const dcommi_shape *s, dcomm_builder *b, const dcommi_a2a *a,
                              dcommi_turn to, dcommi_turn from, int64_t tag, int64_t chunk)
{
    int64_t chunks = dcommi_chunks_of(a->longest_send, chunk);
    int c = dcomm_build_loop(b, 0, dcomm_const(chunks));
    dcomm_build_send(b, 0, dcommi_block_chunk(&a->send, a->space, to, chunk, c),
                     dcommi_rank_at(s->nranks, to), dcomm_linear(tag, c, 1), DCOMM_STEP_ASYNC);
    dcomm_build_end(b, 0);
    c = dcomm_build_loop(b, 0, dcomm_const(chunks));
    dcomm_build_recv(b, 0, dcommi_block_chunk(&a->recv, DCOMM_SPACE_OUT, from, chunk, c),
                     dcommi_rank_at(s->nranks, from), dcomm_linear(tag, c, 1),
                     DCOMM_STEP_ASYNC | DCOMM_STEP_RESULT);
    dcomm_build_end(b, 0);
}

/* Return the block for rank `to`; in place, a copy of it in scratch at `aside`. */
static dcomm_operand dcommi_a2a_outgoing(const dcommi_shape *s, dcomm_builder *b,
                                         const dcommi_a2a *a, dcommi_turn to, int64_t aside)
{
    dcomm_operand block = dcommi_block_whole(&a->send, a->space, to, a->longest_send);
    if (!s->in_place) {
        return block;
    }
    dcomm_operand copy = dcomm_span(DCOMM_SPACE_SCRATCH, aside, a->longest_send);
    dcomm_build_copy(b, 0, copy, block, 0);
    return copy;
}

/* Start an exchange where all ranks know all counts: skip empty blocks. Take `to` and `from`
 * modulo N. */
static void dcommi_a2a_known(const dcommi_shape *s, dcomm_builder *b, const dcommi_a2a *a, int to,
                             int from, int64_t tag)
{
    int n = s->nranks;
    to = (to + n) % n;
    from = (from + n) % n;
    if (s->send_counts[to] > 0) {
        dcomm_build_send(
            b, 0, dcommi_block_whole(&a->send, a->space, dcommi_turn_at(to), a->longest_send),
            dcomm_const(to), dcomm_const(tag), DCOMM_STEP_ASYNC);
    }
    if (s->counts[from] > 0) {
        dcomm_build_recv(
            b, 0,
            dcommi_block_whole(&a->recv, DCOMM_SPACE_OUT, dcommi_turn_at(from), a->longest_recv),
            dcomm_const(from), dcomm_const(tag), DCOMM_STEP_ASYNC | DCOMM_STEP_RESULT);
    }
}

static dcomm_status dcommi_a2a_pairwise_known(const dcommi_shape *s, dcomm_builder *b,
                                              const dcommi_a2a *a)
{
    int64_t tag = dcomm_build_tags(b, 1);
    dcommi_a2a_own(s, b, a);
    for (int k = 1; 2 * k <= s->nranks; k++) {
        dcommi_a2a_known(s, b, a, s->rank + k, s->rank - k, tag);
        if (2 * k < s->nranks) {
            dcommi_a2a_known(s, b, a, s->rank - k, s->rank + k, tag);
        }
        dcomm_build_fence(b, 0);
    }
    return b->status;
}

/* Build the pairwise exchange. Equal blocks within a host travel in chunks that fit the caches. */
static dcomm_status dcommi_a2a_pairwise(const dcommi_shape *s, dcomm_builder *b)
{
    dcommi_a2a a = dcommi_a2a_make(s, b);
    if (s->matrix != NULL) {
        return dcommi_a2a_pairwise_known(s, b, &a);
    }
    int64_t n = s->nranks, rounds = (n - 1) / 2;
    bool near = s->groups != NULL && s->groups->count[0] == 1, cut = !a.send.listed && !s->in_place;
    int64_t chunk = dcommi_chunk_for(s, a.longest_send, near ? DCOMMI_CHUNK_NEAR : a.longest_send);
    chunk = cut ? chunk : a.longest_send;
    int64_t tag = dcomm_build_tags(b, dcommi_chunks_of(a.longest_send, chunk));
    int64_t aside[2] = {0, 0};
    if (s->in_place) {
        aside[0] = dcomm_build_scratch(b, a.longest_send);
        aside[1] = dcomm_build_scratch(b, a.longest_send);
    }
    dcommi_a2a_own(s, b, &a);
    int d = rounds > 0 ? dcomm_build_loop(b, 0, dcomm_const(rounds)) : 0;
    const dcommi_turn ahead = {s->rank + 1, d, 1}, behind = {s->rank - 1, d, -1};
    const dcommi_turn opposite = dcommi_turn_at(s->rank + n / 2);
    if (rounds > 0 && cut) {
        dcommi_a2a_chunks(s, b, &a, ahead, behind, tag, chunk);
        dcommi_a2a_chunks(s, b, &a, behind, ahead, tag, chunk);
    } else if (rounds > 0) {
        dcomm_operand up = dcommi_a2a_outgoing(s, b, &a, ahead, aside[0]);
        dcomm_operand down = dcommi_a2a_outgoing(s, b, &a, behind, aside[1]);
        dcommi_a2a_start(s, b, &a, up, ahead, behind, dcomm_const(tag));
        dcommi_a2a_start(s, b, &a, down, behind, ahead, dcomm_const(tag));
    }
    if (rounds > 0) {
        dcomm_build_fence(b, 0);
        dcomm_build_end(b, 0);
    }
    if (n % 2 == 0 && cut) {
        dcommi_a2a_chunks(s, b, &a, opposite, opposite, tag, chunk);
    } else if (n % 2 == 0) {
        dcomm_operand across = dcommi_a2a_outgoing(s, b, &a, opposite, aside[0]);
        dcommi_a2a_start(s, b, &a, across, opposite, opposite, dcomm_const(tag));
    }
    dcomm_build_fence(b, 0);
    return b->status;
}

static dcomm_status dcommi_a2a_linear_known(const dcommi_shape *s, dcomm_builder *b,
                                            const dcommi_a2a *a)
{
    int64_t tag = dcomm_build_tags(b, 1);
    for (int k = 1; k < s->nranks; k++) {
        dcommi_a2a_known(s, b, a, s->rank + k, s->rank - k, tag);
    }
    dcommi_a2a_own(s, b, a);
    dcomm_build_fence(b, 0);
    return b->status;
}

static dcomm_status dcommi_a2a_linear(const dcommi_shape *s, dcomm_builder *b)
{
    dcommi_a2a a = dcommi_a2a_make(s, b);
    if (s->matrix != NULL) {
        return dcommi_a2a_linear_known(s, b, &a);
    }
    int64_t n = s->nranks, block = a.longest_send;
    bool read = !a.send.listed && dcommi_reads_peers(s, block);
    if (s->in_place) {
        /* All blocks leave before any is overwritten: send from a copy. */
        int64_t aside = dcomm_build_scratch(b, n * block);
        dcomm_build_copy(b, 0, dcomm_span(DCOMM_SPACE_SCRATCH, aside, n * block),
                         dcomm_span(a.space, 0, n * block), 0);
        a.space = DCOMM_SPACE_SCRATCH;
        a.send.base = aside;
    }
    uint16_t slot = read ? dcomm_build_slot(b) : 0, readers = read ? dcomm_build_counter(b) : 0;
    int64_t tag = read ? 0 : dcomm_build_tags(b, 1);
    if (read) {
        dcomm_build_expose(b, 0, dcomm_span(a.space, a.send.base, n * block), slot,
                           dcomm_const(DCOMM_ALL_PEERS));
    }
    int d = dcomm_build_loop(b, 0, dcomm_const(n - 1));
    dcommi_turn to = dcommi_others(s, d), from = {s->rank - 1, d, -1};
    if (read) {
        dcomm_build_copy(
            b, 0, dcommi_block_whole(&a.recv, DCOMM_SPACE_OUT, from, block),
            dcomm_exposed(dcommi_rank_at(n, from), slot, dcomm_const(s->rank * block), block),
            DCOMM_STEP_ASYNC | DCOMM_STEP_RESULT);
    } else {
        dcommi_a2a_start(s, b, &a, dcommi_block_whole(&a.send, a.space, to, block), to, from,
                         dcomm_const(tag));
    }
    dcomm_build_end(b, 0);
    dcommi_a2a_own(s, b, &a);
    dcomm_build_fence(b, 0);
    if (read) {
        dcomm_build_signal(b, 0, readers, dcomm_const(DCOMM_ALL_PEERS), dcomm_const(1));
        dcomm_build_wait(b, 0, readers, dcomm_const(n - 1));
    }
    return b->status;
}

/* Copy the blocks whose number has bit `bit` set from `blocks` (n of them) to `packed`, where they
 * lie one after the other, or back if `unpack`. They come in runs of `bit` blocks; the last run
 * may be shorter. length: bytes of all of them. */
static void dcommi_bruck_pack(dcomm_builder *b, int64_t n, int64_t block, int64_t bit,
                              int64_t blocks, int64_t packed, int64_t length, bool unpack)
{
    int64_t runs = dcommi_ceil_div(n - bit, 2 * bit);
    int d = dcomm_build_loop(b, 0, dcomm_const(runs));
    dcomm_operand spread = dcomm_at(
        DCOMM_SPACE_SCRATCH, dcomm_linear(blocks + bit * block, d, 2 * bit * block), bit * block);
    dcomm_operand dense =
        dcomm_at(DCOMM_SPACE_SCRATCH, dcomm_linear(packed, d, bit * block), bit * block);
    spread.length = dense.length = dcomm_linear(length, d, -bit * block);
    dcomm_build_copy(b, 0, unpack ? spread : dense, unpack ? dense : spread, 0);
    dcomm_build_end(b, 0);
}

/* Count the distances 0 .. n-1 that have bit `bit` set. */
static int64_t dcommi_bruck_count(int64_t n, int64_t bit)
{
    return n / (2 * bit) * bit + dcommi_max64(0, n % (2 * bit) - bit);
}

static dcomm_status dcommi_a2a_bruck(const dcommi_shape *s, dcomm_builder *b)
{
    int64_t n = s->nranks, rank = s->rank, block = dcommi_shape_bytes(s, s->count);
    dcomm_space input = dcommi_input_of(s, 0).space;
    int64_t half = dcommi_bruck_count(n, 1);
    for (int64_t bit = 2; bit < n; bit *= 2) {
        half = dcommi_max64(half, dcommi_bruck_count(n, bit));
    }
    int64_t blocks = dcomm_build_scratch(b, n * block);
    int64_t leaving = dcomm_build_scratch(b, half * block);
    int64_t coming = dcomm_build_scratch(b, half * block);
    int64_t tag = 0;

    /* Rotate the input by `rank`, so that block i has distance i to go. */
    dcomm_build_copy(b, 0, dcomm_span(DCOMM_SPACE_SCRATCH, blocks, (n - rank) * block),
                     dcomm_span(input, rank * block, (n - rank) * block), 0);
    if (rank > 0) {
        dcomm_build_copy(b, 0,
                         dcomm_span(DCOMM_SPACE_SCRATCH, blocks + (n - rank) * block, rank * block),
                         dcomm_span(input, 0, rank * block), 0);
    }
    for (int64_t bit = 1; bit < n; bit *= 2) {
        int64_t length = dcommi_bruck_count(n, bit) * block;
        tag = dcomm_build_tags(b, 1);
        dcommi_bruck_pack(b, n, block, bit, blocks, leaving, length, false);
        dcomm_build_send(b, 0, dcomm_span(DCOMM_SPACE_SCRATCH, leaving, length),
                         dcomm_const((rank + bit) % n), dcomm_const(tag), DCOMM_STEP_ASYNC);
        dcomm_build_recv(b, 0, dcomm_span(DCOMM_SPACE_SCRATCH, coming, length),
                         dcomm_const((rank - bit + n) % n), dcomm_const(tag), DCOMM_STEP_ASYNC);
        dcomm_build_fence(b, 0);
        dcommi_bruck_pack(b, n, block, bit, blocks, coming, length, true);
    }
    /* The block that travelled distance i came from rank - i. */
    int d = dcomm_build_loop(b, 0, dcomm_const(n));
    dcomm_build_copy(b, 0, dcomm_at(DCOMM_SPACE_OUT, dcomm_modular(block, rank, d, -1, n), block),
                     dcomm_at(DCOMM_SPACE_SCRATCH, dcomm_linear(blocks, d, block), block), 0);
    dcomm_build_end(b, 0);
    return b->status;
}

#endif
