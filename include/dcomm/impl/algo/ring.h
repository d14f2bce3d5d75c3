/* ring.h - rings: bandwidth-optimal reduce-scatter, all-gather and all-reduce.
 *
 * Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations",
 * JPDC 69 (2009). The buffer is one block per rank. In step u of the reduce-scatter, each rank
 * sends a partial block to its neighbour and folds the one that comes from the other side; after
 * N-1 steps rank r holds block r complete. The all-gather passes complete blocks on in the same
 * way. Per rank: (N-1)/N of the buffer in each half, 2(N-1)/N for all-reduce; N-1 or 2(N-1) steps.
 *
 * Blocks travel in chunks. A sending and a receiving lane run side by side, and a counter of
 * received chunks lets chunk c of step u leave as soon as chunk c of step u-1 has been folded.
 * Several rings split the buffer; every other one runs backwards.
 *
 * A ring passes through the ranks in the order of groups.h, so that it enters and leaves each host,
 * package and so on once, however the ranks are numbered. What is said above of ranks holds for
 * positions in that order: all-reduce's blocks belong to positions, those of the other two to the
 * ranks that stand there. */
#ifndef DCOMMI_ALGO_RING_H
#define DCOMMI_ALGO_RING_H

#include "parts.h"

/* One ring: who the neighbours are and how far the chunks go. */
typedef struct dcommi_ring {
    dcomm_builder *b;
    int64_t n, rank, next, previous;
    int64_t position, step; /* in the ring; step: +1, or -1 for a ring that runs backwards */
    int send_lane, recv_lane;
    int64_t chunk, chunks, tag;
    uint16_t received; /* counter of chunks that the receiving lane has */
    uint16_t sent;     /* counter of chunks that the sending lane is done with */
} dcommi_ring;

static dcommi_ring dcommi_ring_make(const dcommi_shape *s, dcomm_builder *b, int index,
                                    int64_t chunk, int64_t chunks, int64_t steps)
{
    dcommi_ring ring = {.b = b,
                        .n = s->nranks,
                        .rank = s->rank,
                        .step = index % 2 == 0 ? 1 : -1,
                        .send_lane = 2 * index,
                        .recv_lane = 2 * index + 1,
                        .chunk = chunk,
                        .chunks = chunks};
    ring.position = dcommi_order_position(s, s->rank);
    ring.next = dcommi_order_rank(s, (ring.position + ring.step + ring.n) % ring.n);
    ring.previous = dcommi_order_rank(s, (ring.position - ring.step + ring.n) % ring.n);
    ring.tag = dcomm_build_tags(b, steps * chunks);
    ring.received = dcomm_build_counter(b);
    ring.sent = dcomm_build_counter(b);
    return ring;
}

/* Where a run of steps is: step u = first + i[u], chunk i[c]. */
typedef struct dcommi_ring_run {
    int64_t first, trips;
    int u, c;
} dcommi_ring_run;

static dcommi_ring_run dcommi_ring_open(const dcommi_ring *ring, int lane, int64_t first,
                                        int64_t trips)
{
    dcommi_ring_run run = {.first = first, .trips = trips};
    run.u = dcommi_loop_many(ring->b, lane, trips);
    run.c = dcommi_loop_many(ring->b, lane, ring->chunks);
    return run;
}

static void dcommi_ring_close(const dcommi_ring *ring, int lane, const dcommi_ring_run *run)
{
    dcommi_end_many(ring->b, lane, ring->chunks);
    dcommi_end_many(ring->b, lane, run->trips);
}

/* add + (u * chunks + c) */
static dcomm_expr dcommi_ring_count(const dcommi_ring *ring, const dcommi_ring_run *run,
                                    int64_t add)
{
    dcomm_expr e = dcomm_linear(add + run->first * ring->chunks, run->c, 1);
    return dcomm_plus_loop(e, run->u, run->trips > 1 ? ring->chunks : 0);
}

/* The block that step u sends (ahead = 1 for a reduction, 0 for an all-gather, where u = 0 sends
 * the own block); the block that it receives is one further back. */
static dcommi_turn dcommi_ring_turn(const dcommi_ring *ring, const dcommi_ring_run *run,
                                    int64_t ahead)
{
    dcommi_turn t = {ring->position - ring->step * (run->first + ahead), run->u,
                     run->trips > 1 ? -ring->step : 0};
    return t;
}

/* Steps first .. first+trips-1 of the sending lane. relay: what they send was received one step
 * before. */
static void dcommi_ring_sends(const dcommi_ring *ring, const dcommi_blocks *blocks,
                              dcomm_space space, int64_t ahead, int64_t first, int64_t trips,
                              bool relay)
{
    if (trips <= 0) {
        return;
    }
    int lane = ring->send_lane;
    dcommi_ring_run run = dcommi_ring_open(ring, lane, first, trips);
    if (relay) {
        dcomm_build_wait(ring->b, lane, ring->received,
                         dcommi_ring_count(ring, &run, 1 - ring->chunks));
    }
    dcomm_build_send(
        ring->b, lane,
        dcommi_block_chunk(blocks, space, dcommi_ring_turn(ring, &run, ahead), ring->chunk, run.c),
        dcomm_const(ring->next), dcommi_ring_count(ring, &run, ring->tag), 0);
    dcomm_build_signal(ring->b, lane, ring->sent, dcomm_const(ring->rank), dcomm_const(1));
    dcommi_ring_close(ring, lane, &run);
}

/* Steps of the receiving lane that only pass blocks on. overwrites: the block was sent, partial, in
 * the step N-1 before, which must be over. */
static void dcommi_ring_recvs(const dcommi_ring *ring, const dcommi_blocks *blocks, int64_t ahead,
                              int64_t first, int64_t trips, bool overwrites)
{
    int lane = ring->recv_lane;
    dcommi_ring_run run = dcommi_ring_open(ring, lane, first, trips);
    if (overwrites) {
        dcomm_build_wait(ring->b, lane, ring->sent,
                         dcommi_ring_count(ring, &run, 1 - (ring->n - 1) * ring->chunks));
    }
    dcomm_build_recv(ring->b, lane,
                     dcommi_block_chunk(blocks, DCOMM_SPACE_OUT,
                                        dcommi_ring_turn(ring, &run, ahead + 1), ring->chunk,
                                        run.c),
                     dcomm_const(ring->previous), dcommi_ring_count(ring, &run, ring->tag), 0);
    dcomm_build_signal(ring->b, lane, ring->received, dcomm_const(ring->rank), dcomm_const(1));
    dcommi_ring_close(ring, lane, &run);
}

/* Steps of the receiving lane that fold into OUT, where the blocks lie as in the input. */
static void dcommi_ring_folds(const dcommi_ring *ring, const dcommi_blocks *blocks,
                              dcomm_space input, int64_t stage, int64_t first, int64_t trips,
                              unsigned flags)
{
    if (trips <= 0) {
        return;
    }
    int lane = ring->recv_lane;
    dcommi_ring_run run = dcommi_ring_open(ring, lane, first, trips);
    dcommi_turn turn = dcommi_ring_turn(ring, &run, 2);
    dcomm_build_recv_reduce(
        ring->b, lane, dcommi_block_chunk(blocks, DCOMM_SPACE_OUT, turn, ring->chunk, run.c),
        dcomm_msg(), dcommi_block_chunk(blocks, input, turn, ring->chunk, run.c),
        dcomm_span(DCOMM_SPACE_SCRATCH, stage, ring->chunk), dcomm_const(ring->previous),
        dcommi_ring_count(ring, &run, ring->tag), flags);
    dcomm_build_signal(ring->b, lane, ring->received, dcomm_const(ring->rank), dcomm_const(1));
    dcommi_ring_close(ring, lane, &run);
}

/* How many rings: two lanes each. */
static int dcommi_ring_lanes(const dcommi_shape *s)
{
    int most = DCOMM_PLAN_MAX_LANES / 2;
    return s->lanes < 1 ? 1 : s->lanes > most ? most : s->lanes;
}

static dcomm_status dcommi_ring_allreduce(const dcommi_shape *s, dcomm_builder *b)
{
    int rings = dcommi_ring_lanes(s);
    int64_t n = s->nranks, total = dcommi_shape_bytes(s, s->count);
    int64_t wanted = s->chunk_bytes > 0 ? s->chunk_bytes : dcommi_chunk_default(s);
    dcommi_partition p =
        dcommi_partition_make(total, n * rings, wanted, (int64_t)dcomm_dtype_size(s->dtype));
    dcomm_space input = dcommi_input_of(s, 0).space;
    for (int i = 0; i < rings; i++) {
        dcommi_ring ring = dcommi_ring_make(s, b, i, p.chunk, p.chunks, 2 * (n - 1));
        dcommi_blocks blocks = {
            .n = n, .base = i * n * p.block, .stride = p.block, .length = p.block, .clip = total};
        int64_t stage = dcomm_build_scratch(b, p.chunk);
        dcommi_ring_sends(&ring, &blocks, input, 1, 0, 1, false);
        dcommi_ring_sends(&ring, &blocks, DCOMM_SPACE_OUT, 1, 1, 2 * n - 3, true);
        dcommi_ring_folds(&ring, &blocks, input, stage, 0, n - 2, 0);
        dcommi_ring_folds(&ring, &blocks, input, stage, n - 2, 1, DCOMM_STEP_FINAL);
        dcommi_ring_recvs(&ring, &blocks, 1, n - 1, n - 1, true);
    }
    return b->status;
}

static dcomm_status dcommi_ring_allgather(const dcommi_shape *s, dcomm_builder *b)
{
    int rings = dcommi_ring_lanes(s);
    int64_t n = s->nranks, longest = 0;
    dcommi_blocks blocks = dcommi_blocks_by(s, b, !dcommi_order_plain(s), &longest);
    int64_t wanted = s->chunk_bytes > 0 ? s->chunk_bytes : dcommi_chunk_default(s);
    dcommi_partition p =
        dcommi_partition_make(longest, rings, wanted, (int64_t)dcomm_dtype_size(s->dtype));
    int64_t own = dcommi_own_offset(s, &blocks);
    int64_t length = dcommi_own_length(s, &blocks);
    dcommi_input in = dcommi_input_of(s, own);
    for (int i = 0; i < rings; i++) {
        dcommi_ring ring = dcommi_ring_make(s, b, i, p.chunk, p.chunks, n - 1);
        blocks.skip = i * p.block;
        int c = dcommi_loop_many(b, ring.send_lane, p.chunks);
        dcomm_build_send(
            b, ring.send_lane,
            dcommi_span_chunk(in.space, in.base + blocks.skip, length - blocks.skip, p.chunk, c),
            dcomm_const(ring.next), dcomm_linear(ring.tag, c, 1), 0);
        dcommi_end_many(b, ring.send_lane, p.chunks);
        dcommi_ring_sends(&ring, &blocks, DCOMM_SPACE_OUT, 0, 1, n - 2, true);
        if (i == 0 && !s->in_place) {
            dcomm_build_copy(b, ring.recv_lane, dcomm_span(DCOMM_SPACE_OUT, own, length),
                             dcomm_span(in.space, in.base, length), 0);
        }
        dcommi_ring_recvs(&ring, &blocks, 0, 0, n - 1, false);
    }
    return b->status;
}

/* As the first half of all-reduce, except that OUT has room for the own block only: what is on its
 * way is folded into scratch, in two slots that take turns. Step u may write to a slot when what
 * came in step u-2 has left it, in step u-1; credit for one step lets step 0 begin. */
static dcomm_status dcommi_ring_reduce_scatter(const dcommi_shape *s, dcomm_builder *b)
{
    int rings = dcommi_ring_lanes(s);
    int64_t n = s->nranks, longest = 0;
    dcommi_blocks blocks = dcommi_blocks_by(s, b, !dcommi_order_plain(s), &longest);
    int64_t wanted = s->chunk_bytes > 0 ? s->chunk_bytes : dcommi_chunk_default(s);
    dcommi_partition p =
        dcommi_partition_make(longest, rings, wanted, (int64_t)dcomm_dtype_size(s->dtype));
    int64_t own = dcommi_own_offset(s, &blocks);
    int64_t length = dcommi_own_length(s, &blocks);
    dcomm_space input = dcommi_input_of(s, 0).space;
    int64_t out = s->in_place ? own : 0;
    for (int i = 0; i < rings; i++) {
        dcommi_ring ring = dcommi_ring_make(s, b, i, p.chunk, p.chunks, n - 1);
        int64_t stage = dcomm_build_scratch(b, p.chunk);
        int64_t slots = n > 2 ? dcomm_build_scratch(b, 2 * p.block) : 0;
        int send = ring.send_lane, recv = ring.recv_lane;
        blocks.skip = i * p.block;

        dcommi_ring_sends(&ring, &blocks, input, 1, 0, 1, false);
        if (n > 2) {
            dcommi_ring_run run = dcommi_ring_open(&ring, send, 1, n - 2);
            dcomm_operand part = dcommi_block_chunk(
                &blocks, DCOMM_SPACE_SCRATCH, dcommi_ring_turn(&ring, &run, 1), p.chunk, run.c);
            part.offset = dcomm_modular(p.block, 0, run.u, run.trips > 1, 2);
            part.offset = dcomm_plus_loop(dcomm_plus(part.offset, slots), run.c, p.chunk);
            dcomm_build_wait(b, send, ring.received, dcommi_ring_count(&ring, &run, 1 - p.chunks));
            dcomm_build_send(b, send, part, dcomm_const(ring.next),
                             dcommi_ring_count(&ring, &run, ring.tag), 0);
            dcomm_build_signal(b, send, ring.sent, dcomm_const(s->rank), dcomm_const(1));
            dcommi_ring_close(&ring, send, &run);

            dcomm_build_signal(b, recv, ring.sent, dcomm_const(s->rank), dcomm_const(p.chunks));
            run = dcommi_ring_open(&ring, recv, 0, n - 2);
            dcommi_turn turn = dcommi_ring_turn(&ring, &run, 2);
            part = dcommi_block_chunk(&blocks, DCOMM_SPACE_SCRATCH, turn, p.chunk, run.c);
            part.offset = dcomm_modular(p.block, 0, run.u, run.trips > 1, 2);
            part.offset = dcomm_plus_loop(dcomm_plus(part.offset, slots), run.c, p.chunk);
            dcomm_build_wait(b, recv, ring.sent, dcommi_ring_count(&ring, &run, 1));
            dcomm_build_recv_reduce(b, recv, part, dcomm_msg(),
                                    dcommi_block_chunk(&blocks, input, turn, p.chunk, run.c),
                                    dcomm_span(DCOMM_SPACE_SCRATCH, stage, p.chunk),
                                    dcomm_const(ring.previous),
                                    dcommi_ring_count(&ring, &run, ring.tag), 0);
            dcomm_build_signal(b, recv, ring.received, dcomm_const(s->rank), dcomm_const(1));
            dcommi_ring_close(&ring, recv, &run);
        }
        dcommi_ring_run last = dcommi_ring_open(&ring, recv, n - 2, 1);
        dcomm_build_recv_reduce(
            b, recv,
            dcommi_span_chunk(DCOMM_SPACE_OUT, out + blocks.skip, length - blocks.skip, p.chunk,
                              last.c),
            dcomm_msg(),
            dcommi_block_chunk(&blocks, input, dcommi_turn_at(ring.position), p.chunk, last.c),
            dcomm_span(DCOMM_SPACE_SCRATCH, stage, p.chunk), dcomm_const(ring.previous),
            dcommi_ring_count(&ring, &last, ring.tag), DCOMM_STEP_FINAL);
        dcommi_ring_close(&ring, recv, &last);
    }
    return b->status;
}

#endif
