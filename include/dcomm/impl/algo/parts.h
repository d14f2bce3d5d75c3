/* parts.h - helpers that several families of algorithms share: cut a buffer into the blocks of the
 * ranks, loop over chunks, fold in rank order. */
#ifndef DCOMMI_ALGO_PARTS_H
#define DCOMMI_ALGO_PARTS_H

#include "algo.h"

#define DCOMMI_CHUNK_FAR (256 << 10) /* bytes; between hosts */
#define DCOMMI_CHUNK_NEAR (32 << 10) /* bytes; within a host: one record of the transport */

/* Return the default bytes of a pipeline chunk. */
static inline int64_t dcommi_chunk_default(const dcommi_shape *s)
{
    return s->groups != NULL && s->groups->count[0] == 1 ? DCOMMI_CHUNK_NEAR : DCOMMI_CHUNK_FAR;
}
#define DCOMMI_BLOCK_SHORT 4096 /* bytes; shorter blocks travel as messages in any memory */

/* Return true if peers read a block of so many bytes in place; false: it travels as messages. A
 * message of one record is cheap, and reading ordinary memory needs the kernel. Memory that needs
 * no kernel is read from a smaller size on. All ranks decide alike, because `memory` is the
 * promise of all. */
static inline bool dcommi_reads_peers(const dcommi_shape *s, int64_t block)
{
    return block > (s->memory >= DCOMMI_MEMORY_REGISTERED ? DCOMMI_BLOCK_SHORT : DCOMMI_CHUNK_NEAR);
}

/* Return the rank at a position of the order of groups.h, which keeps the ranks of a group
 * together. */
static inline int64_t dcommi_order_rank(const dcommi_shape *s, int64_t position)
{
    return s->groups != NULL ? s->groups->order[position] : position;
}

/* Return the position of a rank in that order. */
static inline int64_t dcommi_order_position(const dcommi_shape *s, int64_t rank)
{
    int64_t position = 0;
    while (dcommi_order_rank(s, position) != rank) {
        position++;
    }
    return position;
}

/* Return true if positions are ranks, so that no table is needed. */
static inline bool dcommi_order_plain(const dcommi_shape *s)
{
    int64_t position = 0;
    while (position < s->nranks && dcommi_order_rank(s, position) == position) {
        position++;
    }
    return position == s->nranks;
}

/* One block per rank in a buffer: all equal, or listed in the plan's table. Blocks are numbered by
 * rank, or by position in an order of ranks that is in the table too. A lane may own only the part
 * of each block from byte `skip` on. */
typedef struct dcommi_blocks {
    int64_t n;
    int64_t base;   /* where the blocks begin in their space */
    int64_t stride; /* equal blocks: bytes from one to the next */
    int64_t length; /* equal blocks: bytes of each */
    int64_t clip;   /* cut all blocks off at this byte of the space; 0: nowhere */
    int64_t skip;
    bool listed, ordered;
    int64_t offsets, lengths; /* listed: first index in the table */
    int64_t order;            /* ordered, not listed: first index of the ranks in the table */
} dcommi_blocks;

/* A block number that depends on a loop: index + coef * i[depth]. */
typedef struct dcommi_turn {
    int64_t index;
    int depth;
    int64_t coef;
} dcommi_turn;

static inline dcommi_turn dcommi_turn_at(int64_t index)
{
    dcommi_turn t = {index, 0, 0};
    return t;
}

/* Return the length of the whole block `turn`. */
static inline dcomm_expr dcommi_block_length(const dcommi_blocks *k, dcommi_turn turn)
{
    return k->listed ? dcomm_lookup(k->lengths, turn.index, turn.depth, turn.coef, k->n)
                     : dcomm_const(k->length);
}

/* Return chunk i[chunk_depth] of this lane's part of block `turn`. */
static inline dcomm_operand dcommi_block_chunk(const dcommi_blocks *k, dcomm_space space,
                                               dcommi_turn turn, int64_t chunk, int chunk_depth)
{
    dcomm_expr offset = k->listed
                            ? dcomm_lookup(k->offsets, turn.index, turn.depth, turn.coef, k->n)
                            : dcomm_modular(k->stride, turn.index, turn.depth, turn.coef, k->n);
    if (k->ordered && !k->listed) {
        offset = dcomm_lookup(k->order, turn.index, turn.depth, turn.coef, k->n);
        offset.scale = k->stride;
    }
    dcomm_operand o = {.space = (uint8_t)space, .max_length = chunk, .clip = k->clip};
    o.offset = dcomm_plus_loop(dcomm_plus(offset, k->base + k->skip), chunk_depth, chunk);
    o.length =
        dcomm_plus_loop(dcomm_plus(dcommi_block_length(k, turn), -k->skip), chunk_depth, -chunk);
    return o;
}

/* Return the whole block `turn`, at most max_length bytes. */
static inline dcomm_operand dcommi_block_whole(const dcommi_blocks *k, dcomm_space space,
                                               dcommi_turn turn, int64_t max_length)
{
    dcomm_operand o = dcommi_block_chunk(k, space, turn, 0, 0);
    o.max_length = max_length;
    return o;
}

/* Return the chunk at offset + chunk*i[depth] of a span of `length` bytes from `offset` on. */
static inline dcomm_operand dcommi_span_chunk(dcomm_space space, int64_t offset, int64_t length,
                                              int64_t chunk, int depth)
{
    dcomm_operand o = dcomm_at(space, dcomm_linear(offset, depth, chunk), chunk);
    o.length = dcomm_linear(length, depth, -chunk);
    return o;
}

/* Return rank number (index + coef * i[depth]) mod n. */
static inline dcomm_expr dcommi_rank_at(int64_t n, dcommi_turn turn)
{
    return dcomm_modular(1, turn.index, turn.depth, turn.coef, n);
}

/* Return the bytes of a chunk that cuts `length` bytes into equal chunks of whole elements, about
 * as long as the shape's chunk_bytes (0: as `fallback`). */
static inline int64_t dcommi_chunk_for(const dcommi_shape *s, int64_t length, int64_t fallback)
{
    int64_t wanted = s->chunk_bytes > 0 ? s->chunk_bytes : fallback;
    return dcommi_partition_make(length, 1, wanted, (int64_t)dcomm_dtype_size(s->dtype)).chunk;
}

/* Return the chunks of the longest block; 1 for an empty one, which travels as an empty message.
 */
static inline int64_t dcommi_chunks_of(int64_t longest, int64_t chunk)
{
    return chunk > 0 ? dcommi_max64(1, dcommi_ceil_div(longest, chunk)) : 1;
}

/* Put element counts into the table, in bytes: by rank, or by position in the order if `ordered`.
 * Return the first index. */
static inline int64_t dcommi_table_by(const dcommi_shape *s, dcomm_builder *b,
                                      const size_t *elements, bool ordered)
{
    int64_t first = (int64_t)b->ntable;
    for (int i = 0; i < s->nranks; i++) {
        int64_t rank = ordered ? dcommi_order_rank(s, i) : i;
        int64_t bytes = dcommi_shape_bytes(s, elements[rank]);
        dcomm_build_table(b, &bytes, 1);
    }
    return first;
}

static inline int64_t dcommi_table_bytes(const dcommi_shape *s, dcomm_builder *b,
                                         const size_t *elements)
{
    return dcommi_table_by(s, b, elements, false);
}

/* Return the longest of the ranks' counts, in bytes. */
static inline int64_t dcommi_longest(const dcommi_shape *s, const size_t *elements)
{
    size_t longest = 0;
    for (int i = 0; i < s->nranks; i++) {
        longest = elements[i] > longest ? elements[i] : longest;
    }
    return dcommi_shape_bytes(s, longest);
}

/* Return the other ranks, one in each trip of the loop at `depth`: rank+1, rank+2, ... */
static inline dcommi_turn dcommi_others(const dcommi_shape *s, int depth)
{
    dcommi_turn t = {s->rank + 1, depth, 1};
    return t;
}

/* Send `what` to every other rank, without waiting. */
static inline void dcommi_send_to_others(const dcommi_shape *s, dcomm_builder *b,
                                         dcomm_operand what, int64_t tag)
{
    int d = dcomm_build_loop(b, 0, dcomm_const(s->nranks - 1));
    dcomm_build_send(b, 0, what, dcommi_rank_at(s->nranks, dcommi_others(s, d)), dcomm_const(tag),
                     DCOMM_STEP_ASYNC);
    dcomm_build_end(b, 0);
}

/* Return the blocks of an operation, equal or listed in counts and displs. They are numbered by
 * rank, or by position in the order if `ordered`. *longest: bytes of the longest one. */
static inline dcommi_blocks dcommi_blocks_by(const dcommi_shape *s, dcomm_builder *b, bool ordered,
                                             int64_t *longest)
{
    dcommi_blocks blocks = {.n = s->nranks, .ordered = ordered};
    if (s->coll == DCOMM_COLL_ALLGATHERV || s->coll == DCOMM_COLL_REDUCE_SCATTERV ||
        s->coll == DCOMM_COLL_GATHERV || s->coll == DCOMM_COLL_SCATTERV) {
        blocks.listed = true;
        blocks.offsets = dcommi_table_by(s, b, s->displs, ordered);
        blocks.lengths = dcommi_table_by(s, b, s->counts, ordered);
        *longest = dcommi_longest(s, s->counts);
    } else {
        blocks.stride = blocks.length = *longest = dcommi_shape_bytes(s, s->count);
        blocks.order = (int64_t)b->ntable;
        for (int i = 0; i < s->nranks && ordered; i++) {
            int64_t rank = dcommi_order_rank(s, i);
            dcomm_build_table(b, &rank, 1);
        }
    }
    return blocks;
}

static inline dcommi_blocks dcommi_blocks_of(const dcommi_shape *s, dcomm_builder *b,
                                             int64_t *longest)
{
    return dcommi_blocks_by(s, b, false, longest);
}

/* Send each other rank its block, without waiting. */
static inline void dcommi_send_blocks(const dcommi_shape *s, dcomm_builder *b,
                                      const dcommi_blocks *blocks, dcomm_space space,
                                      int64_t longest, dcomm_expr tag)
{
    int d = dcomm_build_loop(b, 0, dcomm_const(s->nranks - 1));
    dcommi_turn peer = dcommi_others(s, d);
    dcomm_build_send(b, 0, dcommi_block_whole(blocks, space, peer, longest),
                     dcommi_rank_at(s->nranks, peer), tag, DCOMM_STEP_ASYNC);
    dcomm_build_end(b, 0);
}

/* Return the byte at which this rank's own block begins. */
static inline int64_t dcommi_own_offset(const dcommi_shape *s, const dcommi_blocks *blocks)
{
    return blocks->listed ? dcommi_shape_bytes(s, s->displs[s->rank]) : s->rank * blocks->stride;
}

/* Return the bytes of this rank's own block. */
static inline int64_t dcommi_own_length(const dcommi_shape *s, const dcommi_blocks *blocks)
{
    return blocks->listed ? dcommi_shape_bytes(s, s->counts[s->rank]) : blocks->length;
}

/* Write the operands of a fold in rank order: `own`, and those of the other ranks. `others` is
 * rank 0's piece: in an array of equal pieces by rank, or, with stride 0, in a peer's memory.
 * Return the number of operands, at most 3. */
static inline size_t dcommi_in_rank_order(const dcommi_shape *s, dcomm_operand others,
                                          int64_t stride, dcomm_operand own, dcomm_operand out[3])
{
    size_t n = 0;
    if (s->rank > 0) {
        out[n] = others;
        out[n].repeat = (uint32_t)s->rank;
        out[n].stride = stride;
        n++;
    }
    out[n++] = own;
    if (s->rank + 1 < s->nranks) {
        out[n] = others;
        out[n].repeat = (uint32_t)(s->nranks - s->rank - 1);
        out[n].stride = stride;
        out[n].offset = dcomm_plus(others.offset, (s->rank + 1) * stride);
        out[n].peer = dcomm_const(s->rank + 1);
        n++;
    }
    return n;
}

/* Put ranks 0 .. n-1 into the table, as the group of a CALL of all ranks. Return the first index.
 */
static inline int64_t dcommi_table_all(dcomm_builder *b, int64_t n)
{
    int64_t first = (int64_t)b->ntable;
    for (int64_t r = 0; r < n; r++) {
        dcomm_build_table(b, &r, 1);
    }
    return first;
}

/* Call a sub-plan with new tags, counters and slots. group: index of its ranks in the table. */
static inline void dcommi_sub_call(dcomm_builder *b, int lane, const dcomm_plan *sub, int64_t group,
                                   dcomm_operand in, dcomm_operand out)
{
    int64_t tag = dcomm_build_tags(b, sub->ntags);
    dcomm_step *call = dcomm_build_call(b, lane, sub, group, in, out, dcomm_const(tag));
    if (call != NULL) {
        call->value = dcomm_const(b->head.ncounters);
        call->peer = dcomm_const(b->head.nslots);
        b->head.ncounters += sub->ncounters;
        b->head.nslots += sub->nslots;
    }
}

/* Make a sub-plan, which the caller adopts or frees. After an error return NULL; `of` keeps the
 * error. */
static dcomm_plan *dcommi_sub_plan(dcomm_builder *of, const dcommi_shape *s, const char *name,
                                   dcommi_algo_fn make, int64_t in_bytes, int64_t out_bytes)
{
    dcomm_builder b;
    dcomm_plan *plan = NULL;
    if (of->status < 0) {
        return NULL;
    }
    dcommi_build_begin(&b, name, s->rank, s->nranks, s->dtype, s->op);
    b.head.in_bytes = in_bytes;
    b.head.out_bytes = out_bytes;
    dcomm_status status = make(s, &b);
    if (status < 0) {
        dcommi_build_discard(&b);
    } else {
        status = dcommi_build_finish(&b, &plan);
    }
    if (status < 0) {
        dcommi_build_error(of, status);
    }
    return plan;
}

#endif
