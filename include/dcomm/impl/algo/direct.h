/* direct.h - direct exchange: every rank talks to every other, or all to one. It takes few steps,
 * and folds in rank order.
 *
 * Short blocks travel as messages. Long blocks are exposed to the peers, which read them in place,
 * so that a reduction of N inputs passes over memory once. Exposed memory must not change until
 * all peers have read it: each rank signals when it is done.
 *
 * one_shot: all-reduce in one step, (N-1) S per rank. two_shot: direct reduce-scatter and direct
 * all-gather, 2 steps, 2(N-1)/N S per rank, as in Thakur, Rabenseifner and Gropp, "Optimization of
 * collective communication operations in MPICH", IJHPCA 19 (2005). star: all ranks send to rank 0,
 * which sends the result back, as a parameter server does (Li et al., OSDI 2014): (N-1) S in and
 * out of rank 0. */
#ifndef DCOMMI_ALGO_DIRECT_H
#define DCOMMI_ALGO_DIRECT_H

#include "parts.h"

/* Wait until all ranks have finished reading. */
static void dcommi_direct_read_barrier(const dcommi_shape *s, dcomm_builder *b)
{
    uint16_t readers = dcomm_build_counter(b);
    dcomm_build_signal(b, 0, readers, dcomm_const(DCOMM_ALL_PEERS), dcomm_const(1));
    dcomm_build_wait(b, 0, readers, dcomm_const(s->nranks - 1));
}

/* Build the all-reduce of two ranks: one message each way, folded as it arrives. */
static void dcommi_direct_pair(const dcommi_shape *s, dcomm_builder *b, int64_t bytes)
{
    dcommi_input in = dcommi_input_of(s, 0);
    dcomm_operand own = dcomm_span(in.space, 0, bytes), sent = own;
    int64_t stage = dcomm_build_scratch(b, bytes);
    dcomm_expr peer = dcomm_const(1 - s->rank);
    int64_t tag = dcomm_build_tags(b, 1);
    if (s->in_place) {
        sent = dcomm_span(DCOMM_SPACE_SCRATCH, dcomm_build_scratch(b, bytes), bytes);
        dcomm_build_copy(b, 0, sent, own, 0);
    }
    dcomm_build_send(b, 0, sent, peer, dcomm_const(tag), DCOMM_STEP_ASYNC);
    dcomm_build_recv_reduce(b, 0, dcomm_span(DCOMM_SPACE_OUT, 0, bytes),
                            s->rank == 0 ? own : dcomm_msg(), s->rank == 0 ? dcomm_msg() : own,
                            dcomm_span(DCOMM_SPACE_SCRATCH, stage, bytes), peer, dcomm_const(tag),
                            DCOMM_STEP_FINAL);
    dcomm_build_fence(b, 0);
}

/* Start to receive at most `length` bytes from every other rank into its slot of scratch. */
static void dcommi_direct_into_slots(const dcommi_shape *s, dcomm_builder *b, int64_t slots,
                                     int64_t length, int64_t tag)
{
    int d = dcomm_build_loop(b, 0, dcomm_const(s->nranks - 1));
    dcommi_turn peer = dcommi_others(s, d);
    dcomm_expr slot = dcomm_modular(length, peer.index, d, 1, s->nranks);
    dcomm_build_recv(b, 0, dcomm_at(DCOMM_SPACE_SCRATCH, dcomm_plus(slot, slots), length),
                     dcommi_rank_at(s->nranks, peer), dcomm_const(tag), DCOMM_STEP_ASYNC);
    dcomm_build_end(b, 0);
}

/* Build out <- fold of one piece per rank, in rank order: `own`, and those in the slots. */
static void dcommi_direct_fold_slots(const dcommi_shape *s, dcomm_builder *b, dcomm_operand out,
                                     int64_t slots, int64_t length, dcomm_operand own)
{
    dcomm_operand ordered[3];
    dcomm_operand others = dcomm_span(DCOMM_SPACE_SCRATCH, slots, length);
    size_t count = dcommi_in_rank_order(s, others, length, own, ordered);
    dcomm_build_reduce(b, 0, out, ordered, count, DCOMM_STEP_FINAL);
}

/* Build the same fold, reading the others' pieces at `offset` of their exposed memory. */
static void dcommi_direct_fold_peers(const dcommi_shape *s, dcomm_builder *b, dcomm_operand out,
                                     uint16_t slot, int64_t offset, int64_t length,
                                     dcomm_operand own, unsigned flags)
{
    dcomm_operand ordered[3];
    dcomm_operand others = dcomm_exposed(dcomm_const(0), slot, dcomm_const(offset), length);
    size_t count = dcommi_in_rank_order(s, others, 0, own, ordered);
    dcomm_build_reduce(b, 0, out, ordered, count, DCOMM_STEP_FINAL | flags);
}

/* Build out <- fold of this rank's block of all inputs, which travel as messages. */
static void dcommi_direct_fold_blocks(const dcommi_shape *s, dcomm_builder *b,
                                      const dcommi_blocks *blocks, int64_t longest,
                                      dcomm_operand own, dcomm_operand out, int64_t tag)
{
    int64_t slots = dcomm_build_scratch(b, s->nranks * own.max_length);
    dcommi_send_blocks(s, b, blocks, (dcomm_space)own.space, longest, dcomm_const(tag));
    dcommi_direct_into_slots(s, b, slots, own.max_length, tag);
    dcomm_build_fence(b, 0);
    dcommi_direct_fold_slots(s, b, out, slots, own.max_length, own);
}

/* ---- all-reduce ---- */

/* Return the byte at which this rank begins to fold the exposed inputs. In mapped memory each rank
 * begins with another part. Ranks that read the same cache lines at the same time would wait for
 * each other; lines that one rank has read are in a cache for the others (docs/results/parts.md).
 */
static int64_t dcommi_direct_begin(const dcommi_shape *s, int64_t bytes)
{
    if (s->memory != DCOMMI_MEMORY_REGISTERED) {
        return 0;
    }
    int64_t element = (int64_t)dcomm_dtype_size(s->dtype);
    return s->rank * dcommi_partition_make(bytes, s->nranks, 0, element).block % bytes;
}

/* Build the fold of `length` bytes of the result from byte `at` on. */
static void dcommi_direct_fold_part(const dcommi_shape *s, dcomm_builder *b, uint16_t slot,
                                    int64_t at, int64_t length, dcomm_operand own)
{
    own = dcomm_at(own.space, dcomm_plus(own.offset, at), length);
    dcommi_direct_fold_peers(s, b, dcomm_span(DCOMM_SPACE_OUT, at, length), slot, at, length, own,
                             DCOMM_STEP_RESULT);
}

static dcomm_status dcommi_direct_one_shot(const dcommi_shape *s, dcomm_builder *b)
{
    int64_t bytes = dcommi_shape_bytes(s, s->count);
    dcomm_operand own = dcomm_span(dcommi_input_of(s, 0).space, 0, bytes);
    dcomm_operand out = dcomm_span(DCOMM_SPACE_OUT, 0, bytes);
    if (dcommi_reads_peers(s, bytes)) {
        uint16_t slot = dcomm_build_slot(b);
        if (s->in_place) {
            /* The peers still read the input while this rank writes the result: expose a copy. */
            own = dcomm_span(DCOMM_SPACE_SCRATCH, dcomm_build_scratch(b, bytes), bytes);
            dcomm_build_copy(b, 0, own, out, 0);
        }
        dcomm_build_expose(b, 0, own, slot, dcomm_const(DCOMM_ALL_PEERS));
        int64_t first = dcommi_direct_begin(s, bytes);
        dcommi_direct_fold_part(s, b, slot, first, bytes - first, own);
        if (first > 0) {
            dcommi_direct_fold_part(s, b, slot, 0, first, own);
        }
        dcommi_direct_read_barrier(s, b);
    } else if (s->nranks == 2) {
        dcommi_direct_pair(s, b, bytes);
    } else {
        int64_t slots = dcomm_build_scratch(b, s->nranks * bytes);
        int64_t tag = dcomm_build_tags(b, 1);
        dcommi_send_to_others(s, b, own, tag);
        dcommi_direct_into_slots(s, b, slots, bytes, tag);
        dcomm_build_fence(b, 0);
        dcommi_direct_fold_slots(s, b, out, slots, bytes, own);
    }
    return b->status;
}

static dcomm_status dcommi_direct_two_shot(const dcommi_shape *s, dcomm_builder *b)
{
    int64_t n = s->nranks, total = dcommi_shape_bytes(s, s->count);
    dcommi_partition p = dcommi_partition_make(total, n, 0, (int64_t)dcomm_dtype_size(s->dtype));
    dcommi_blocks blocks = {.n = n, .stride = p.block, .length = p.block, .clip = total};
    dcomm_space input = dcommi_input_of(s, 0).space;
    int64_t begin = dcommi_min64(s->rank * p.block, total);
    int64_t length = dcommi_min64(p.block, total - begin);
    dcomm_operand own = dcomm_span(input, begin, length);
    dcomm_operand out = dcomm_span(DCOMM_SPACE_OUT, begin, length);
    if (dcommi_reads_peers(s, p.block)) {
        uint16_t inputs = dcomm_build_slot(b), results = dcomm_build_slot(b);
        dcomm_build_expose(b, 0, dcomm_span(input, 0, total), inputs, dcomm_const(DCOMM_ALL_PEERS));
        dcommi_direct_fold_peers(s, b, out, inputs, begin, length, own, 0);
        dcomm_build_expose(b, 0, out, results, dcomm_const(DCOMM_ALL_PEERS));
        int d = dcomm_build_loop(b, 0, dcomm_const(n - 1));
        dcommi_turn peer = dcommi_others(s, d);
        dcomm_operand block = dcommi_block_whole(&blocks, DCOMM_SPACE_OUT, peer, p.block);
        dcomm_operand theirs =
            dcomm_exposed(dcommi_rank_at(n, peer), results, dcomm_const(0), p.block);
        /* The last blocks are shorter. A peer has exposed at most total - block*peer bytes. */
        theirs.length = dcomm_plus(dcomm_modular(-p.block, peer.index, d, 1, n), total);
        dcomm_build_copy(b, 0, block, theirs, DCOMM_STEP_ASYNC | DCOMM_STEP_RESULT);
        dcomm_build_end(b, 0);
        dcomm_build_fence(b, 0);
        dcommi_direct_read_barrier(s, b);
        return b->status;
    }
    int64_t tag = dcomm_build_tags(b, 2);
    dcommi_direct_fold_blocks(s, b, &blocks, p.block, own, out, tag);
    dcommi_send_to_others(s, b, out, tag + 1);
    int d = dcomm_build_loop(b, 0, dcomm_const(n - 1));
    dcommi_turn peer = dcommi_others(s, d);
    dcomm_build_recv(b, 0, dcommi_block_whole(&blocks, DCOMM_SPACE_OUT, peer, p.block),
                     dcommi_rank_at(n, peer), dcomm_const(tag + 1), DCOMM_STEP_ASYNC);
    dcomm_build_end(b, 0);
    dcomm_build_fence(b, 0);
    return b->status;
}

/* ---- reduce-scatter and all-gather ---- */

static dcomm_status dcommi_direct_reduce_scatter(const dcommi_shape *s, dcomm_builder *b)
{
    int64_t n = s->nranks, longest = 0;
    dcommi_blocks blocks = dcommi_blocks_of(s, b, &longest);
    dcomm_space input = dcommi_input_of(s, 0).space;
    int64_t begin = dcommi_own_offset(s, &blocks), length = dcommi_own_length(s, &blocks);
    dcomm_operand own = dcomm_span(input, begin, length);
    dcomm_operand out = dcomm_span(DCOMM_SPACE_OUT, s->in_place ? begin : 0, length);
    if (dcommi_reads_peers(s, longest)) {
        uint16_t slot = dcomm_build_slot(b);
        int64_t total = n * blocks.stride;
        for (int64_t i = 0; blocks.listed && i < n; i++) {
            total = dcommi_max64(total, dcommi_shape_bytes(s, s->displs[i] + s->counts[i]));
        }
        dcomm_build_expose(b, 0, dcomm_span(input, 0, total), slot, dcomm_const(DCOMM_ALL_PEERS));
        dcommi_direct_fold_peers(s, b, out, slot, begin, length, own, DCOMM_STEP_RESULT);
        dcommi_direct_read_barrier(s, b);
        return b->status;
    }
    dcommi_direct_fold_blocks(s, b, &blocks, longest, own, out, dcomm_build_tags(b, 1));
    return b->status;
}

static dcomm_status dcommi_direct_allgather(const dcommi_shape *s, dcomm_builder *b)
{
    int64_t n = s->nranks, longest = 0;
    dcommi_blocks blocks = dcommi_blocks_of(s, b, &longest);
    int64_t begin = dcommi_own_offset(s, &blocks), length = dcommi_own_length(s, &blocks);
    dcommi_input in = dcommi_input_of(s, begin);
    dcomm_operand own = dcomm_span(in.space, in.base, length);
    bool read = dcommi_reads_peers(s, longest);
    uint16_t slot = read ? dcomm_build_slot(b) : 0;
    int64_t tag = read ? 0 : dcomm_build_tags(b, 1);
    if (read) {
        dcomm_build_expose(b, 0, own, slot, dcomm_const(DCOMM_ALL_PEERS));
    } else {
        dcommi_send_to_others(s, b, own, tag);
    }
    int d = dcomm_build_loop(b, 0, dcomm_const(n - 1));
    dcommi_turn peer = dcommi_others(s, d);
    dcomm_operand block = dcommi_block_whole(&blocks, DCOMM_SPACE_OUT, peer, longest);
    if (read) {
        dcomm_operand theirs =
            dcomm_exposed(dcommi_rank_at(n, peer), slot, dcomm_const(0), longest);
        theirs.length = dcommi_block_length(&blocks, peer);
        dcomm_build_copy(b, 0, block, theirs, DCOMM_STEP_ASYNC | DCOMM_STEP_RESULT);
    } else {
        dcomm_build_recv(b, 0, block, dcommi_rank_at(n, peer), dcomm_const(tag), DCOMM_STEP_ASYNC);
    }
    dcomm_build_end(b, 0);
    if (!s->in_place) {
        dcomm_build_copy(b, 0, dcomm_span(DCOMM_SPACE_OUT, begin, length), own, DCOMM_STEP_RESULT);
    }
    dcomm_build_fence(b, 0);
    if (read) {
        dcommi_direct_read_barrier(s, b);
    }
    return b->status;
}

/* ---- all to one, one to all ---- */

/* Return the bytes of a chunk, so that the root of a star has room for a chunk of every rank. */
static int64_t dcommi_star_chunk(const dcommi_shape *s, int64_t total)
{
    int64_t room = dcommi_max64(1 << 12, (64 << 20) / s->nranks);
    return dcommi_chunk_for(s, total, dcommi_min64(dcommi_chunk_default(s), room));
}

/* Build the star: rank 0 folds chunk by chunk in rank order and sends each result back. */
static dcomm_status dcommi_star_allreduce(const dcommi_shape *s, dcomm_builder *b)
{
    int64_t n = s->nranks, total = dcommi_shape_bytes(s, s->count);
    int64_t chunk = dcommi_star_chunk(s, total), chunks = dcommi_chunks_of(total, chunk);
    int64_t tag = dcomm_build_tags(b, chunks);
    uint16_t sent = dcomm_build_counter(b);
    dcomm_space input = dcommi_input_of(s, 0).space;
    if (s->rank > 0) {
        int c = dcomm_build_loop(b, 0, dcomm_const(chunks));
        dcomm_build_send(b, 0, dcommi_span_chunk(input, 0, total, chunk, c), dcomm_const(0),
                         dcomm_linear(tag, c, 1), 0);
        dcomm_build_signal(b, 0, sent, dcomm_const(s->rank), dcomm_const(1));
        dcomm_build_end(b, 0);
        c = dcomm_build_loop(b, 1, dcomm_const(chunks));
        dcomm_build_wait(b, 1, sent, dcomm_linear(1, c, 1));
        dcomm_build_recv(b, 1, dcommi_span_chunk(DCOMM_SPACE_OUT, 0, total, chunk, c),
                         dcomm_const(0), dcomm_linear(tag, c, 1), 0);
        dcomm_build_end(b, 1);
        return b->status;
    }
    int64_t slots = dcomm_build_scratch(b, (n - 1) * chunk);
    int c = dcomm_build_loop(b, 0, dcomm_const(chunks));
    dcomm_expr length = dcomm_linear(total, c, -chunk), order = dcomm_linear(tag, c, 1);
    dcomm_operand out = dcommi_span_chunk(DCOMM_SPACE_OUT, 0, total, chunk, c);
    int d = dcomm_build_loop(b, 0, dcomm_const(n - 1));
    dcomm_operand slot = dcomm_at(DCOMM_SPACE_SCRATCH, dcomm_linear(slots, d, chunk), chunk);
    slot.length = length;
    dcomm_build_recv(b, 0, slot, dcomm_linear(1, d, 1), order, DCOMM_STEP_ASYNC);
    dcomm_build_end(b, 0);
    dcomm_build_fence(b, 0);
    dcomm_operand pieces[2] = {dcommi_span_chunk(input, 0, total, chunk, c),
                               dcomm_span(DCOMM_SPACE_SCRATCH, slots, chunk)};
    pieces[1].repeat = (uint32_t)(n - 1);
    pieces[1].stride = chunk;
    pieces[1].length = length;
    dcomm_build_reduce(b, 0, out, pieces, 2, DCOMM_STEP_FINAL);
    d = dcomm_build_loop(b, 0, dcomm_const(n - 1));
    dcomm_build_send(b, 0, out, dcomm_linear(1, d, 1), order, DCOMM_STEP_ASYNC);
    dcomm_build_end(b, 0);
    dcomm_build_end(b, 0);
    dcomm_build_fence(b, 0);
    return b->status;
}

/* Build the reduction at the root, in rank order. The root reads long inputs in place. */
static dcomm_status dcommi_linear_reduce(const dcommi_shape *s, dcomm_builder *b)
{
    int64_t total = dcommi_shape_bytes(s, s->count);
    bool root = s->rank == s->root, read = dcommi_reads_peers(s, total);
    dcomm_operand own = dcomm_span(dcommi_input_of(s, 0).space, 0, total);
    dcomm_operand out = dcomm_span(DCOMM_SPACE_OUT, 0, total);
    if (read) {
        uint16_t slot = dcomm_build_slot(b), done = dcomm_build_counter(b);
        if (root) {
            dcommi_direct_fold_peers(s, b, out, slot, 0, total, own, DCOMM_STEP_RESULT);
            dcomm_build_signal(b, 0, done, dcomm_const(DCOMM_ALL_PEERS), dcomm_const(1));
        } else {
            dcomm_build_expose(b, 0, own, slot, dcomm_const(s->root));
            dcomm_build_wait(b, 0, done, dcomm_const(1));
        }
        return b->status;
    }
    int64_t tag = dcomm_build_tags(b, 1);
    if (!root) {
        dcomm_build_send(b, 0, own, dcomm_const(s->root), dcomm_const(tag), 0);
        return b->status;
    }
    int64_t slots = dcomm_build_scratch(b, s->nranks * total);
    dcommi_direct_into_slots(s, b, slots, total, tag);
    dcomm_build_fence(b, 0);
    dcommi_direct_fold_slots(s, b, out, slots, total, own);
    return b->status;
}

static dcomm_status dcommi_linear_broadcast(const dcommi_shape *s, dcomm_builder *b)
{
    int64_t total = dcommi_shape_bytes(s, s->count);
    bool root = s->rank == s->root, read = dcommi_reads_peers(s, total);
    uint16_t slot = read ? dcomm_build_slot(b) : 0, done = read ? dcomm_build_counter(b) : 0;
    int64_t tag = read ? 0 : dcomm_build_tags(b, 1);
    dcomm_operand out = dcomm_span(DCOMM_SPACE_OUT, 0, total);
    if (!root) {
        if (read) {
            dcomm_build_copy(b, 0, out,
                             dcomm_exposed(dcomm_const(s->root), slot, dcomm_const(0), total),
                             DCOMM_STEP_RESULT);
            dcomm_build_signal(b, 0, done, dcomm_const(s->root), dcomm_const(1));
        } else {
            dcomm_build_recv(b, 0, out, dcomm_const(s->root), dcomm_const(tag), 0);
        }
        return b->status;
    }
    dcomm_operand own = dcomm_span(dcommi_input_of(s, 0).space, 0, total);
    if (read) {
        dcomm_build_expose(b, 0, own, slot, dcomm_const(DCOMM_ALL_PEERS));
    } else {
        dcommi_send_to_others(s, b, own, tag);
    }
    if (!s->in_place) {
        dcomm_build_copy(b, 0, out, own, DCOMM_STEP_RESULT);
    }
    if (read) {
        dcomm_build_wait(b, 0, done, dcomm_const(s->nranks - 1));
    } else {
        dcomm_build_fence(b, 0);
    }
    return b->status;
}

#endif
