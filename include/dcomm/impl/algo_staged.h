/* algo_staged.h - collectives of a host by way of memory that its ranks map from each other: a rank
 * copies what others need of it, chunk by chunk, into slots of its own scratch, tells them, and
 * they read it there. Each byte is copied in once, however many read it, while it is in a cache,
 * and without the kernel; messages copy it once for each reader, and reads of ordinary memory go
 * through the kernel. Chunks take turns with the slots: a slot is filled anew when all have read
 * it. Graham and Shipman, "MPI support for multi-core architectures: optimized shared memory
 * collectives", EuroPVM/MPI 2008.
 *
 * Who has come how far is told by counters of one rank each: a sum over ranks would let a fast one
 * hide a slow one. */
#ifndef DCOMMI_ALGO_STAGED_H
#define DCOMMI_ALGO_STAGED_H

#include "algo_parts.h"

#define DCOMMI_STAGED_SLOTS 4
/* What a rank fills at a time: of a block that is copied; of blocks for all ranks together, where
 * they are copied, and where they are folded. */
#define DCOMMI_STAGED_CHUNK (128 << 10)
#define DCOMMI_STAGED_ROW (512 << 10)
#define DCOMMI_STAGED_ROW_FOLDED (160 << 10)
#define DCOMMI_STAGED_LEAST (2 << 10)
#define DCOMMI_STAGED_RANKS 256 /* plans grow with them */

/* Where the chunks of an operation lie, and the first of the counters, which are numbered by
 * distance, so that the plans of all ranks look alike. */
typedef struct dcommi_staged {
    const dcommi_shape *s;
    dcommi_builder *b;
    int64_t chunk, chunks, slots;
    int64_t row; /* bytes of a slot */
    uint16_t slot;
    uint16_t filled, read;
} dcommi_staged;

static uint16_t dcommi_staged_counters(const dcommi_staged *g)
{
    uint16_t first = dcommi_build_counter(g->b);
    for (int r = 1; r < g->s->nranks; r++) {
        dcommi_build_counter(g->b);
    }
    return first;
}

/* Blocks of at most `longest` bytes in chunks, `width` of which are in a slot of about `row`. */
static dcommi_staged dcommi_staged_make(const dcommi_shape *s, dcommi_builder *b, int64_t longest,
                                        int64_t width, int64_t row)
{
    if (s->nranks > DCOMMI_STAGED_RANKS) {
        dcommi_build_error(b, dcommi_fail(DCOMM_ERR_UNSUPPORTED,
                                          "%s: %d ranks, at most %d exchange by staging",
                                          b->head.name, s->nranks, DCOMMI_STAGED_RANKS));
    }
    int64_t grain = dcommi_min64(DCOMMI_STAGED_CHUNK, row / width);
    grain = s->chunk_bytes > 0 ? s->chunk_bytes : dcommi_max64(grain, DCOMMI_STAGED_LEAST);
    grain = dcommi_max64(dcommi_min64(grain, DCOMMI_SHARED_SCRATCH / width), 1);
    dcommi_staged g = {.s = s, .b = b};
    g.chunk = dcommi_partition_make(longest, 1, grain, (int64_t)dcomm_dtype_size(s->dtype)).chunk;
    g.chunks = dcommi_chunks_of(longest, g.chunk);
    g.row = width * g.chunk;
    int64_t room = dcommi_max64(DCOMMI_SHARED_SCRATCH / dcommi_max64(g.row, 1), 1);
    g.slots = dcommi_min64(dcommi_min64(DCOMMI_STAGED_SLOTS, g.chunks), room);
    dcommi_build_scratch(b, g.slots * g.row);
    b->head.scratch_shared = true;
    g.slot = dcommi_build_slot(b);
    g.filled = dcommi_staged_counters(&g);
    g.read = dcommi_staged_counters(&g);
    return g;
}

/* Place `at` of the slot of chunk i[depth]. */
static dcomm_expr dcommi_staged_at(const dcommi_staged *g, int64_t at, int depth)
{
    return dcommi_plus(dcommi_modular(g->row, 0, depth, 1, g->slots), at);
}

/* It as this rank's scratch, and as what `peer` has exposed; as long as `like`. */
static dcomm_operand dcommi_staged_own(const dcommi_staged *g, int64_t at, int depth,
                                       const dcomm_operand *like)
{
    dcomm_operand o = dcommi_at(DCOMM_SPACE_SCRATCH, dcommi_staged_at(g, at, depth), g->chunk);
    o.length = like->length;
    return o;
}

static dcomm_operand dcommi_staged_peer(const dcommi_staged *g, int64_t peer, int64_t at, int depth,
                                        const dcomm_operand *like)
{
    dcomm_operand o =
        dcommi_peer(dcommi_const(peer), g->slot, dcommi_staged_at(g, at, depth), g->chunk);
    o.length = like->length;
    return o;
}

/* The counter by which a rank knows how far another has come. */
static uint16_t dcommi_staged_of(const dcommi_staged *g, uint16_t counters, int64_t knower,
                                 int64_t other)
{
    return (uint16_t)(counters + (other - knower + g->s->nranks) % g->s->nranks);
}

/* This rank has come one further, as another is to know. */
static void dcommi_staged_tell(const dcommi_staged *g, int lane, uint16_t counters, int64_t to)
{
    dcommi_signal(g->b, lane, dcommi_staged_of(g, counters, to, g->s->rank), dcommi_const(to),
                  dcommi_const(1));
}

static void dcommi_staged_tell_all(const dcommi_staged *g, int lane, uint16_t counters)
{
    for (int d = 1; d < g->s->nranks; d++) {
        dcommi_staged_tell(g, lane, counters, (g->s->rank + d) % g->s->nranks);
    }
}

/* Until a rank has come to chunk i[depth]. */
static void dcommi_staged_until(const dcommi_staged *g, int lane, uint16_t counters, int64_t rank,
                                int depth)
{
    dcommi_await(g->b, lane, dcommi_staged_of(g, counters, g->s->rank, rank),
                 dcommi_linear(1, depth, 1));
}

static void dcommi_staged_offer(const dcommi_staged *g, int lane)
{
    dcommi_expose(g->b, lane, dcommi_span(DCOMM_SPACE_SCRATCH, 0, g->slots * g->row), g->slot,
                  dcommi_const(DCOMM_ALL_PEERS));
}

/* Offer the slots to all, before there is anything in them: as if each rank had read them before. A
 * single chunk is offered when it is there, which says so. */
static void dcommi_staged_open(const dcommi_staged *g, int lane)
{
    if (g->chunks == 1) {
        return;
    }
    dcommi_staged_offer(g, lane);
    for (int d = 1; d < g->s->nranks; d++) {
        int rank = (g->s->rank + d) % g->s->nranks;
        dcommi_signal(g->b, lane, dcommi_staged_of(g, g->read, g->s->rank, rank),
                      dcommi_const(g->s->rank), dcommi_const(g->slots));
    }
}

/* Until the other ranks have read what was in the slot of chunk i[depth] before. */
static void dcommi_staged_until_read(const dcommi_staged *g, int lane, int depth)
{
    for (int d = 1; d < g->s->nranks && g->chunks > 1; d++) {
        dcommi_staged_until(g, lane, g->read, (g->s->rank + d) % g->s->nranks, depth);
    }
}

/* Until they have read all. */
static void dcommi_staged_close(const dcommi_staged *g, int lane)
{
    for (int d = 1; d < g->s->nranks; d++) {
        int rank = (g->s->rank + d) % g->s->nranks;
        dcommi_await(g->b, lane, dcommi_staged_of(g, g->read, g->s->rank, rank),
                     dcommi_const(g->chunks > 1 ? g->slots + g->chunks : 1));
    }
}

/* A chunk lies in its slot, for all. */
static void dcommi_staged_filled(const dcommi_staged *g, int lane)
{
    if (g->chunks == 1) {
        dcommi_staged_offer(g, lane);
    } else {
        dcommi_staged_tell_all(g, lane, g->filled);
    }
}

static void dcommi_staged_until_filled(const dcommi_staged *g, int lane, int64_t rank, int depth)
{
    if (g->chunks > 1) {
        dcommi_staged_until(g, lane, g->filled, rank, depth);
    }
}

/* Where a rank's block of the operation lies, in bytes. */
typedef struct dcommi_staged_block {
    int64_t at, length;
} dcommi_staged_block;

static dcommi_staged_block dcommi_staged_block_of(const dcommi_shape *s, int64_t rank)
{
    int64_t total = dcommi_shape_bytes(s, s->count);
    dcommi_staged_block k = {rank * total, total};
    if (s->coll == DCOMM_COLL_ALLREDUCE) {
        int64_t element = (int64_t)dcomm_dtype_size(s->dtype);
        int64_t share = dcommi_partition_make(total, s->nranks, 0, element).block;
        k.at = dcommi_min64(rank * share, total);
        k.length = dcommi_min64(share, total - k.at);
    } else if (s->coll == DCOMM_COLL_ALLGATHERV || s->coll == DCOMM_COLL_REDUCE_SCATTERV) {
        k.at = dcommi_shape_bytes(s, s->displs[rank]);
        k.length = dcommi_shape_bytes(s, s->counts[rank]);
    }
    return k;
}

static int64_t dcommi_staged_longest(const dcommi_shape *s)
{
    int64_t longest = 0;
    for (int r = 0; r < s->nranks; r++) {
        longest = dcommi_max64(longest, dcommi_staged_block_of(s, r).length);
    }
    return longest;
}

/* Chunk i[depth] of it. */
static dcomm_operand dcommi_staged_chunk(const dcommi_staged *g, dcomm_space space,
                                         dcommi_staged_block k, int depth)
{
    return dcommi_span_chunk(space, k.at, k.length, g->chunk, depth);
}

/* Copy chunk i[c] of each other rank's block out of place `at` of its slot. */
static void dcommi_staged_collect(const dcommi_staged *g, int lane, int64_t at, int c)
{
    const dcommi_shape *s = g->s;
    for (int d = 1; d < s->nranks; d++) {
        int peer = (s->rank + d) % s->nranks;
        dcomm_operand out =
            dcommi_staged_chunk(g, DCOMM_SPACE_OUT, dcommi_staged_block_of(s, peer), c);
        dcommi_staged_until_filled(g, lane, peer, c);
        dcommi_copy(g->b, lane, out, dcommi_staged_peer(g, peer, at, c, &out), DCOMM_STEP_RESULT);
    }
    dcommi_staged_tell_all(g, lane, g->read);
}

/* ---- all-gather, broadcast: one block for all ---- */

/* Lane: fill the slots with this rank's block, for all, and put it at `own` unless that is NULL. */
static void dcommi_staged_fill(const dcommi_staged *g, int lane, dcomm_space input,
                               dcommi_staged_block block, const dcommi_staged_block *own)
{
    dcommi_builder *b = g->b;
    dcommi_staged_open(g, lane);
    int c = dcommi_loop_many(b, lane, g->chunks);
    dcomm_operand chunk = dcommi_staged_chunk(g, input, block, c);
    dcommi_staged_until_read(g, lane, c);
    dcommi_copy(b, lane, dcommi_staged_own(g, 0, c, &chunk), chunk, DCOMM_STEP_RESULT);
    dcommi_staged_filled(g, lane);
    if (own != NULL) {
        dcommi_copy(b, lane, dcommi_staged_chunk(g, DCOMM_SPACE_OUT, *own, c), chunk,
                    DCOMM_STEP_RESULT);
    }
    dcommi_end_many(b, lane, g->chunks);
    dcommi_staged_close(g, lane);
}

static dcomm_status dcommi_staged_allgather(const dcommi_shape *s, dcommi_builder *b)
{
    dcommi_staged_block own = dcommi_staged_block_of(s, s->rank);
    dcommi_input in = dcommi_input_of(s, own.at);
    dcommi_staged_block from = {in.base, own.length};
    dcommi_staged g = dcommi_staged_make(s, b, dcommi_staged_longest(s), 1, DCOMMI_STAGED_ROW);
    dcommi_staged_fill(&g, 0, in.space, from, s->in_place ? NULL : &own);
    int c = dcommi_loop_many(b, 1, g.chunks);
    dcommi_staged_collect(&g, 1, 0, c);
    dcommi_end_many(b, 1, g.chunks);
    return b->status;
}

static dcomm_status dcommi_staged_broadcast(const dcommi_shape *s, dcommi_builder *b)
{
    dcommi_staged_block all = {0, dcommi_shape_bytes(s, s->count)};
    dcommi_staged g = dcommi_staged_make(s, b, all.length, 1, DCOMMI_STAGED_ROW);
    if (s->rank == s->root) {
        dcommi_staged_fill(&g, 0, dcommi_input_of(s, 0).space, all, s->in_place ? NULL : &all);
        return b->status;
    }
    int c = dcommi_loop_many(b, 0, g.chunks);
    dcomm_operand out = dcommi_staged_chunk(&g, DCOMM_SPACE_OUT, all, c);
    dcommi_staged_until_filled(&g, 0, s->root, c);
    dcommi_copy(b, 0, out, dcommi_staged_peer(&g, s->root, 0, c, &out), DCOMM_STEP_RESULT);
    dcommi_staged_tell(&g, 0, g.read, s->root);
    dcommi_end_many(b, 0, g.chunks);
    return b->status;
}

/* ---- reduce-scatter, all-reduce, all-to-all: a block for each rank ---- */

/* Fill the slot of chunk i[c] with the other ranks' blocks of this rank's input. */
static void dcommi_staged_deal_chunk(const dcommi_staged *g, int lane, int c, unsigned flags)
{
    const dcommi_shape *s = g->s;
    dcomm_space input = dcommi_input_of(s, 0).space;
    dcommi_staged_until_read(g, lane, c);
    for (int d = 1; d < s->nranks; d++) {
        int peer = (s->rank + d) % s->nranks;
        dcomm_operand chunk = dcommi_staged_chunk(g, input, dcommi_staged_block_of(s, peer), c);
        dcommi_copy(g->b, lane, dcommi_staged_own(g, peer * g->chunk, c, &chunk), chunk, flags);
    }
    dcommi_staged_filled(g, lane);
}

/* Lane: all of them. */
static void dcommi_staged_deal(const dcommi_staged *g, int lane)
{
    dcommi_staged_open(g, lane);
    int c = dcommi_loop_many(g->b, lane, g->chunks);
    dcommi_staged_deal_chunk(g, lane, c, 0);
    dcommi_end_many(g->b, lane, g->chunks);
    dcommi_staged_close(g, lane);
}

/* In place, a chunk of a result takes the place of one that must have left before. */
static dcomm_status dcommi_staged_alltoall(const dcommi_shape *s, dcommi_builder *b)
{
    dcommi_staged_block own = dcommi_staged_block_of(s, s->rank);
    dcommi_staged g = dcommi_staged_make(s, b, own.length, s->nranks, DCOMMI_STAGED_ROW);
    uint16_t left = s->in_place ? dcommi_build_counter(b) : 0;
    dcommi_staged_open(&g, 0);
    int c = dcommi_loop_many(b, 0, g.chunks);
    dcommi_staged_deal_chunk(&g, 0, c, DCOMM_STEP_RESULT);
    if (s->in_place) {
        dcommi_signal(b, 0, left, dcommi_const(s->rank), dcommi_const(1));
    } else {
        dcommi_copy(b, 0, dcommi_staged_chunk(&g, DCOMM_SPACE_OUT, own, c),
                    dcommi_staged_chunk(&g, dcommi_input_of(s, 0).space, own, c),
                    DCOMM_STEP_RESULT);
    }
    dcommi_end_many(b, 0, g.chunks);
    dcommi_staged_close(&g, 0);

    c = dcommi_loop_many(b, 1, g.chunks);
    if (s->in_place) {
        dcommi_await(b, 1, left, dcommi_linear(1, c, 1));
    }
    dcommi_staged_collect(&g, 1, s->rank * g.chunk, c);
    dcommi_end_many(b, 1, g.chunks);
    return b->status;
}

/* dst <- the fold of this rank's block of all inputs, in the order of ranks. */
static void dcommi_staged_fold(const dcommi_staged *g, int lane, int c, dcomm_operand dst,
                               unsigned flags)
{
    const dcommi_shape *s = g->s;
    dcomm_operand ordered[3];
    dcomm_operand own =
        dcommi_staged_chunk(g, dcommi_input_of(s, 0).space, dcommi_staged_block_of(s, s->rank), c);
    for (int d = 1; d < s->nranks; d++) {
        dcommi_staged_until_filled(g, lane, (s->rank + d) % s->nranks, c);
    }
    dcomm_operand others = dcommi_staged_peer(g, 0, s->rank * g->chunk, c, &own);
    size_t count = dcommi_in_rank_order(s, others, 0, own, ordered);
    dcommi_reduce(g->b, lane, dst, ordered, count, DCOMM_STEP_FINAL | flags);
}

static dcomm_status dcommi_staged_reduce_scatter(const dcommi_shape *s, dcommi_builder *b)
{
    dcommi_staged_block own = dcommi_staged_block_of(s, s->rank);
    dcommi_staged_block to = {s->in_place ? own.at : 0, own.length};
    dcommi_staged g =
        dcommi_staged_make(s, b, dcommi_staged_longest(s), s->nranks, DCOMMI_STAGED_ROW_FOLDED);
    dcommi_staged_deal(&g, 0);
    int c = dcommi_loop_many(b, 1, g.chunks);
    dcommi_staged_fold(&g, 1, c, dcommi_staged_chunk(&g, DCOMM_SPACE_OUT, to, c),
                       DCOMM_STEP_RESULT);
    dcommi_staged_tell_all(&g, 1, g.read);
    dcommi_end_many(b, 1, g.chunks);
    return b->status;
}

/* Behind the pieces for the others, a slot has the sum of this rank's block, which all copy. */
static dcomm_status dcommi_staged_allreduce(const dcommi_shape *s, dcommi_builder *b)
{
    int n = s->nranks;
    dcommi_staged g =
        dcommi_staged_make(s, b, dcommi_staged_longest(s), n + 1, DCOMMI_STAGED_ROW_FOLDED);
    uint16_t summed = dcommi_staged_counters(&g);
    dcommi_staged_deal(&g, 0);

    int c = dcommi_loop_many(b, 1, g.chunks);
    dcomm_operand out =
        dcommi_staged_chunk(&g, DCOMM_SPACE_OUT, dcommi_staged_block_of(s, s->rank), c);
    dcomm_operand sum = dcommi_staged_own(&g, n * g.chunk, c, &out);
    dcommi_staged_until_read(&g, 1, c);
    dcommi_staged_fold(&g, 1, c, sum, DCOMM_STEP_FORWARD);
    dcommi_copy(b, 1, out, sum, DCOMM_STEP_RESULT);
    dcommi_staged_tell_all(&g, 1, summed);
    dcommi_staged_tell(&g, 1, summed, s->rank);
    dcommi_end_many(b, 1, g.chunks);

    c = dcommi_loop_many(b, 2, g.chunks);
    for (int d = 1; d < n; d++) {
        int peer = (s->rank + d) % n;
        out = dcommi_staged_chunk(&g, DCOMM_SPACE_OUT, dcommi_staged_block_of(s, peer), c);
        dcommi_staged_until(&g, 2, summed, peer, c);
        dcommi_copy(b, 2, out, dcommi_staged_peer(&g, peer, n * g.chunk, c, &out),
                    DCOMM_STEP_RESULT);
    }
    /* Its own fold has read the peers' slots, too. */
    dcommi_staged_until(&g, 2, summed, s->rank, c);
    dcommi_staged_tell_all(&g, 2, g.read);
    dcommi_end_many(b, 2, g.chunks);
    return b->status;
}

#endif
