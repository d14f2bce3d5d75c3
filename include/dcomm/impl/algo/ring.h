/* ring.h - ring reduce-scatter, all-gather and all-reduce: each rank sends as little as possible.
 *
 * Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations",
 * JPDC 69 (2009). The buffer is cut into N blocks, one for each rank.
 *
 * Reduce-scatter, N-1 steps: in each step a rank sends a partial block to the next rank, and adds
 * its own contribution to the block that comes from the previous one. After the last step rank r
 * holds block r complete. All-gather, N-1 steps: each rank passes on the complete block that came
 * in the step before. All-reduce does both. In each half a rank sends (N-1)/N of the buffer.
 *
 * With 4 ranks, rank r sends this block to rank r+1, and receives what rank r-1 sends:
 *
 *     step      0  1  2 |  3  4  5
 *     rank 0    3  2  1 |  0  3  2        step u: send block r-1-u, receive block r-2-u (mod 4)
 *     rank 1    0  3  2 |  1  0  3        steps 0-2 reduce; step 2 completes block r
 *     rank 2    1  0  3 |  2  1  0        steps 3-5 gather
 *     rank 3    2  1  0 |  3  2  1
 *
 * A ring has two lanes, which run side by side: one sends, one receives. Blocks travel in chunks.
 * Two counters of this rank order the lanes. `received` counts the chunks that have come: a chunk
 * is passed on in step u when it has come in step u-1. `sent` counts the chunks that have left:
 * when the complete block comes, the partial one may be overwritten.
 *
 * `dcomm-plan allreduce ring -n 4 --rank 1 --count 1000 --chunk 500` prints the plan of rank 1, in
 * blocks of two chunks. i and j are the loops over steps and chunks. A place is SPACE[begin, length
 * <= longest]; clip cuts it off at the end of the buffer; mod is never negative; (+) folds. Counter
 * 0 is `received`, counter 1 is `sent`. Read plan.h and build.h first.
 *
 *     plan "ring" rank 1 of 4, sum f32: IN 4000, OUT 4000, SCRATCH 512 bytes; 12 tags, 2 counters,
 *         0 slots, 0 words
 *     lane 0
 *        0  loop i < 1
 *        1    loop j < 2
 *        2      send IN[1000*((-i) mod 4) + 500*j, 1000-500*j <= 500, clip 4000] to 2, tag 2*i+j
 *        3      signal counter 1 of 1 by 1
 *        4    end
 *        5  end
 *        6  loop i < 5
 *        7    loop j < 2
 *        8      wait counter 0 >= 1+2*i+j
 *        9      send OUT[1000*((-i-1) mod 4) + 500*j, 1000-500*j <= 500, clip 4000] to 2, tag
 *                   2+2*i+j
 *       10      signal counter 1 of 1 by 1
 *       11    end
 *       12  end
 *     lane 1
 *        0  loop i < 2
 *        1    loop j < 2
 *        2      recv_reduce OUT[1000*((-i-1) mod 4) + 500*j, 1000-500*j <= 500, clip 4000] <-
 *                   message (+) IN[1000*((-i-1) mod 4) + 500*j, 1000-500*j <= 500, clip 4000] from
 *                   0, tag 2*i+j
 *        3      signal counter 0 of 1 by 1
 *        4    end
 *        5  end
 *        6  loop i < 1
 *        7    loop j < 2
 *        8      recv_reduce OUT[1000*((-i-3) mod 4) + 500*j, 1000-500*j <= 500, clip 4000] <-
 *                   message (+) IN[1000*((-i-3) mod 4) + 500*j, 1000-500*j <= 500, clip 4000] from
 *                   0, tag 4+2*i+j FINAL
 *        9      signal counter 0 of 1 by 1
 *       10    end
 *       11  end
 *       12  loop i < 3
 *       13    loop j < 2
 *       14      wait counter 1 >= 1+2*i+j
 *       15      recv OUT[1000*((-i-4) mod 4) + 500*j, 1000-500*j <= 500, clip 4000] from 0, tag
 *                   6+2*i+j
 *       16      signal counter 0 of 1 by 1
 *       17    end
 *       18  end
 *
 * opts.lanes is the number of rings that share the buffer; every other one runs backwards. A ring
 * passes through the ranks in the order of groups.h, so it enters and leaves each host once,
 * however the ranks are numbered. "Rank r" above is position r in that order. The blocks of an
 * all-reduce belong to positions; those of the other two belong to the ranks that stand there. */
#ifndef DCOMMI_ALGO_RING_H
#define DCOMMI_ALGO_RING_H

#include "parts.h"

/* One ring, as this rank sees it. */
typedef struct dcommi_ring {
    dcomm_builder *b;
    dcommi_blocks blocks; /* this ring's part of the block of each rank */
    int64_t position;     /* of this rank in the ring */
    int64_t direction;    /* +1: blocks travel to higher positions; -1: to lower ones */
    int64_t start_block; /* the block that step 0 sends. Blocks are numbered along the ring, and the
                            block k behind is number start_block - k*direction (mod N): step u
                            sends the block u behind, and receives the one u+1 behind */
    dcomm_expr self, next, previous; /* ranks */
    int send_lane, recv_lane;
    int64_t chunk, chunks;   /* bytes of a chunk; chunks of a block */
    int64_t tag;             /* of chunk 0 of step 0; each chunk of each step has its own */
    uint16_t sent, received; /* counters of chunks */
    dcomm_operand stage;     /* reductions: scratch for a chunk to arrive in */
} dcommi_ring;

/* The place of the blocks that some steps send or receive. */
typedef struct dcommi_ring_place {
    enum {
        DCOMMI_RING_WHOLE, /* a buffer of all blocks */
        DCOMMI_RING_OWN,   /* this rank's block alone */
        DCOMMI_RING_SLOTS  /* scratch for two blocks: what comes in step u is in slot u mod 2 */
    } layout;
    dcomm_space space;
    int64_t offset; /* OWN, SLOTS: bytes, where the block, or slot 0, begins */
    int64_t length; /* OWN: bytes of the block; SLOTS: of each slot */
} dcommi_ring_place;

/* Some steps of one lane. A field that is left out is 0: no. */
typedef struct dcommi_ring_steps {
    int64_t first_step, count; /* steps first_step .. first_step+count-1 */
    dcommi_ring_place block;   /* the block that is sent, or where the block that comes is put */
    dcommi_ring_place own;     /* receive: this rank's contribution, to fold into the block */
    bool final;                /* receive: this fold completes the block (an average divides) */
    bool wait_received;        /* send: the block came in the step before; wait for its chunk */
    int64_t wait_sent; /* receive: this memory still holds a block that we sent so many steps
                          ago; wait for that send before overwriting it */
    bool counted;      /* count the chunks in `sent`, or `received`: the other lane waits */
} dcommi_ring_steps;

/* The loops that some steps open in a lane, and the indices to use within. */
typedef struct dcommi_ring_loops {
    const dcommi_ring *ring;
    int64_t first_step;    /* step u is first_step + i[step] */
    int lane, step, chunk; /* the lane; depths of its loops over steps and chunks */
} dcommi_ring_loops;

/* Make ring number `index`, all but start_block and stage, for so many steps. Even rings run
 * forwards, odd ones backwards. p: how its part of a block is cut into chunks. */
static dcommi_ring dcommi_ring_make(const dcommi_shape *s, dcomm_builder *b, int index,
                                    const dcommi_blocks *blocks, const dcommi_partition *p,
                                    int64_t steps)
{
    dcommi_ring ring = {.b = b,
                        .blocks = *blocks,
                        .position = dcommi_order_position(s, s->rank),
                        .direction = index % 2 == 0 ? 1 : -1,
                        .self = dcomm_const(s->rank),
                        .send_lane = 2 * index,
                        .recv_lane = 2 * index + 1,
                        .chunk = p->chunk,
                        .chunks = p->chunks};
    int64_t next = (ring.position + ring.direction + s->nranks) % s->nranks;
    int64_t previous = (ring.position - ring.direction + s->nranks) % s->nranks;
    ring.next = dcomm_const(dcommi_order_rank(s, next));
    ring.previous = dcomm_const(dcommi_order_rank(s, previous));
    ring.tag = dcomm_build_tags(b, steps * p->chunks);
    ring.received = dcomm_build_counter(b);
    ring.sent = dcomm_build_counter(b);
    return ring;
}

/* Prepare a ring for reducing. The last block that a rank receives must be its own, so step 0 sends
 * the block behind it. */
static void dcommi_ring_to_reduce(dcommi_ring *ring)
{
    ring->start_block = ring->position - ring->direction;
    ring->stage =
        dcomm_span(DCOMM_SPACE_SCRATCH, dcomm_build_scratch(ring->b, ring->chunk), ring->chunk);
}

/* ---- steps ---- */

static dcommi_ring_loops dcommi_ring_open(const dcommi_ring *ring, int lane,
                                          const dcommi_ring_steps *steps)
{
    dcommi_ring_loops at = {.ring = ring, .first_step = steps->first_step, .lane = lane};
    at.step = dcomm_build_loop(ring->b, lane, dcomm_const(steps->count));
    at.chunk = dcomm_build_loop(ring->b, lane, dcomm_const(ring->chunks));
    return at;
}

static void dcommi_ring_close(const dcommi_ring_loops *at)
{
    dcomm_build_end(at->ring->b, at->lane);
    dcomm_build_end(at->ring->b, at->lane);
}

/* Return the number of chunk c of step u - ago, counted from chunk 0 of step 0 on, plus `add`. */
static dcomm_expr dcommi_ring_number(const dcommi_ring_loops *at, int64_t ago, int64_t add)
{
    int64_t chunks = at->ring->chunks;
    dcomm_expr e = dcomm_linear((at->first_step - ago) * chunks + add, at->step, chunks);
    return dcomm_plus_loop(e, at->chunk, 1);
}

/* Return the place of chunk c of the block that step u sends, or of the one that it `receives`,
 * which is one further behind. */
static dcomm_operand dcommi_ring_chunk(const dcommi_ring_loops *at, const dcommi_ring_place *place,
                                       bool receives)
{
    const dcommi_ring *ring = at->ring;
    if (place->layout == DCOMMI_RING_OWN) {
        int64_t skip = ring->blocks.skip;
        return dcommi_span_chunk(place->space, place->offset + skip, place->length - skip,
                                 ring->chunk, at->chunk);
    }
    dcommi_turn block = {.index = ring->start_block - ring->direction * (at->first_step + receives),
                         .depth = at->step,
                         .coef = -ring->direction};
    dcomm_operand chunk =
        dcommi_block_chunk(&ring->blocks, place->space, block, ring->chunk, at->chunk);
    if (place->layout == DCOMMI_RING_SLOTS) {
        /* Only the offset differs: that of the slot instead of the block. */
        int64_t came = at->first_step + receives - 1; /* the step that the block came in */
        dcomm_expr slot = dcomm_modular(place->length, came, at->step, 1, 2);
        chunk.offset = dcomm_plus_loop(dcomm_plus(slot, place->offset), at->chunk, ring->chunk);
    }
    return chunk;
}

/* Send blocks to the next rank. */
static void dcommi_ring_send(const dcommi_ring *ring, dcommi_ring_steps steps)
{
    int lane = ring->send_lane;
    dcommi_ring_loops at = dcommi_ring_open(ring, lane, &steps);
    if (steps.wait_received) {
        dcomm_build_wait(ring->b, lane, ring->received, dcommi_ring_number(&at, 1, 1));
    }
    dcomm_build_send(ring->b, lane, dcommi_ring_chunk(&at, &steps.block, false), ring->next,
                     dcommi_ring_number(&at, 0, ring->tag), 0);
    if (steps.counted) {
        dcomm_build_signal(ring->b, lane, ring->sent, ring->self, dcomm_const(1));
    }
    dcommi_ring_close(&at);
}

/* Receive blocks from the previous rank; with `own`, fold this rank's contribution into them. */
static void dcommi_ring_recv(const dcommi_ring *ring, dcommi_ring_steps steps)
{
    int lane = ring->recv_lane;
    dcommi_ring_loops at = dcommi_ring_open(ring, lane, &steps);
    dcomm_operand into = dcommi_ring_chunk(&at, &steps.block, true);
    dcomm_expr tag = dcommi_ring_number(&at, 0, ring->tag);
    if (steps.wait_sent > 0) {
        dcomm_build_wait(ring->b, lane, ring->sent, dcommi_ring_number(&at, steps.wait_sent, 1));
    }
    if (steps.own.space == DCOMM_SPACE_NONE) {
        dcomm_build_recv(ring->b, lane, into, ring->previous, tag, 0);
    } else {
        dcomm_operand own = dcommi_ring_chunk(&at, &steps.own, true);
        dcomm_build_recv_reduce(ring->b, lane, into, dcomm_msg(), own, ring->stage, ring->previous,
                                tag, steps.final ? DCOMM_STEP_FINAL : 0);
    }
    if (steps.counted) {
        dcomm_build_signal(ring->b, lane, ring->received, ring->self, dcomm_const(1));
    }
    dcommi_ring_close(&at);
}

/* ---- algorithms ---- */

/* Return the number of rings that share the buffer, each with two lanes of its own. */
static int dcommi_ring_rings(const dcommi_shape *s)
{
    return s->lanes < DCOMM_PLAN_MAX_LANES / 2 ? s->lanes : DCOMM_PLAN_MAX_LANES / 2;
}

/* Cut `bytes` into `parts` equal parts of whole chunks. */
static dcommi_partition dcommi_ring_cut(const dcommi_shape *s, int64_t bytes, int64_t parts)
{
    int64_t wanted = s->chunk_bytes > 0 ? s->chunk_bytes : dcommi_chunk_default(s);
    return dcommi_partition_make(bytes, parts, wanted, (int64_t)dcomm_dtype_size(s->dtype));
}

static dcomm_status dcommi_ring_allreduce(const dcommi_shape *s, dcomm_builder *b)
{
    int rings = dcommi_ring_rings(s);
    int64_t n = s->nranks, total = dcommi_shape_bytes(s, s->count);
    dcommi_partition p = dcommi_ring_cut(s, total, n * rings);
    const dcommi_ring_place in = {.space = dcommi_input_of(s, 0).space};
    const dcommi_ring_place out = {.space = DCOMM_SPACE_OUT};
    for (int i = 0; i < rings; i++) {
        dcommi_blocks blocks = {
            .n = n, .base = i * n * p.block, .stride = p.block, .length = p.block, .clip = total};
        dcommi_ring ring = dcommi_ring_make(s, b, i, &blocks, &p, 2 * (n - 1));
        dcommi_ring_to_reduce(&ring);

        /* Steps 0 to n-2 reduce, steps n-1 to 2n-3 gather. Step 0 sends from the input, every later
         * step what came in the step before. */
        dcommi_ring_send(
            &ring, (dcommi_ring_steps){.first_step = 0, .count = 1, .block = in, .counted = true});
        dcommi_ring_send(&ring, (dcommi_ring_steps){.first_step = 1,
                                                    .count = 2 * n - 3,
                                                    .block = out,
                                                    .wait_received = true,
                                                    .counted = true});
        dcommi_ring_recv(
            &ring, (dcommi_ring_steps){
                       .first_step = 0, .count = n - 2, .block = out, .own = in, .counted = true});
        /* The last fold completes this rank's block. */
        dcommi_ring_recv(&ring, (dcommi_ring_steps){.first_step = n - 2,
                                                    .count = 1,
                                                    .block = out,
                                                    .own = in,
                                                    .final = true,
                                                    .counted = true});
        /* Gather: the block still holds the partial sum that we sent n-1 steps ago. */
        dcommi_ring_recv(&ring, (dcommi_ring_steps){.first_step = n - 1,
                                                    .count = n - 1,
                                                    .block = out,
                                                    .wait_sent = n - 1,
                                                    .counted = true});
    }
    return b->status;
}

static dcomm_status dcommi_ring_allgather(const dcommi_shape *s, dcomm_builder *b)
{
    int rings = dcommi_ring_rings(s);
    int64_t n = s->nranks, longest = 0;
    dcommi_blocks blocks = dcommi_blocks_by(s, b, !dcommi_order_plain(s), &longest);
    dcommi_partition p = dcommi_ring_cut(s, longest, rings);
    int64_t own = dcommi_own_offset(s, &blocks), length = dcommi_own_length(s, &blocks);
    dcommi_input input = dcommi_input_of(s, own);
    const dcommi_ring_place in = {
        .layout = DCOMMI_RING_OWN, .space = input.space, .offset = input.base, .length = length};
    const dcommi_ring_place out = {.space = DCOMM_SPACE_OUT};
    for (int i = 0; i < rings; i++) {
        blocks.skip = i * p.block;
        dcommi_ring ring = dcommi_ring_make(s, b, i, &blocks, &p, n - 1);
        ring.start_block = ring.position;

        dcommi_ring_send(&ring, (dcommi_ring_steps){.first_step = 0, .count = 1, .block = in});
        dcommi_ring_send(&ring,
                         (dcommi_ring_steps){
                             .first_step = 1, .count = n - 2, .block = out, .wait_received = true});
        if (i == 0 && !s->in_place) {
            dcomm_build_copy(b, ring.recv_lane, dcomm_span(DCOMM_SPACE_OUT, own, length),
                             dcomm_span(input.space, input.base, length), 0);
        }
        dcommi_ring_recv(
            &ring,
            (dcommi_ring_steps){.first_step = 0, .count = n - 1, .block = out, .counted = true});
    }
    return b->status;
}

/* Like the first half of all-reduce. But OUT has room for the own block only, so partial blocks are
 * folded into two slots of scratch, in turn. */
static dcomm_status dcommi_ring_reduce_scatter(const dcommi_shape *s, dcomm_builder *b)
{
    int rings = dcommi_ring_rings(s);
    int64_t n = s->nranks, longest = 0;
    dcommi_blocks blocks = dcommi_blocks_by(s, b, !dcommi_order_plain(s), &longest);
    dcommi_partition p = dcommi_ring_cut(s, longest, rings);
    const dcommi_ring_place in = {.space = dcommi_input_of(s, 0).space};
    const dcommi_ring_place out = {.layout = DCOMMI_RING_OWN,
                                   .space = DCOMM_SPACE_OUT,
                                   .offset = s->in_place ? dcommi_own_offset(s, &blocks) : 0,
                                   .length = dcommi_own_length(s, &blocks)};
    for (int i = 0; i < rings; i++) {
        blocks.skip = i * p.block;
        dcommi_ring ring = dcommi_ring_make(s, b, i, &blocks, &p, n - 1);
        dcommi_ring_to_reduce(&ring);

        dcommi_ring_send(
            &ring, (dcommi_ring_steps){.first_step = 0, .count = 1, .block = in, .counted = true});
        if (n > 2) {
            const dcommi_ring_place slots = {.layout = DCOMMI_RING_SLOTS,
                                             .space = DCOMM_SPACE_SCRATCH,
                                             .offset = dcomm_build_scratch(b, 2 * p.block),
                                             .length = p.block};
            dcommi_ring_send(&ring, (dcommi_ring_steps){.first_step = 1,
                                                        .count = n - 2,
                                                        .block = slots,
                                                        .wait_received = true,
                                                        .counted = true});
            dcommi_ring_recv(
                &ring,
                (dcommi_ring_steps){
                    .first_step = 0, .count = 1, .block = slots, .own = in, .counted = true});
            /* Step u reuses the slot of step u-2. What came then is sent in step u-1. */
            dcommi_ring_recv(&ring, (dcommi_ring_steps){.first_step = 1,
                                                        .count = n - 3,
                                                        .block = slots,
                                                        .own = in,
                                                        .wait_sent = 1,
                                                        .counted = true});
        }
        dcommi_ring_recv(
            &ring, (dcommi_ring_steps){
                       .first_step = n - 2, .count = 1, .block = out, .own = in, .final = true});
    }
    return b->status;
}

#endif
