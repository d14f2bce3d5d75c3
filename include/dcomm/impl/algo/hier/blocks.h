/* blocks.h - hierarchical reduce-scatter, all-gather and all-to-all, in which each block crosses
 * between groups once.
 *
 * The groups exchange pairwise, in rounds: in round t a group sends to the group t further on.
 * Rank i of a group of g ranks stands for the ranks i, g+i, 2g+i, ... of each other group.
 * Reduce-scatter: the group reduce-scatters the blocks of the target group. Each rank sends its
 * result to the rank that it stands for, which folds it.
 * All-gather: a block goes to the rank of the target group that stands for its owner, and is
 * all-gathered there.
 * All-to-all: the ranks of a group give their blocks for a target rank to the rank that stands for
 * it, which sends them as one message. (For equal groups that are divided alike see
 * hier/digits.h.)
 * The calls of a round within the group overlap with the messages of other rounds. */
#ifndef DCOMMI_ALGO_HIER_BLOCKS_H
#define DCOMMI_ALGO_HIER_BLOCKS_H

#include "parts.h"

#define DCOMMI_HIER_PIECE (512 << 10)  /* bytes of a piece of a block, at least, by default */
#define DCOMMI_HIER_CALLS 64           /* calls of a rank that limit the pieces of a block */
#define DCOMMI_HIER_MESSAGE (32 << 10) /* bytes of a message: short enough to be sent eagerly */

enum {
    DCOMMI_HIER_LANE_CALL, /* calls within the group */
    DCOMMI_HIER_LANE_SEND,
    DCOMMI_HIER_LANE_RECV /* and the next lane: they take messages in turn */
};

/* The common state of the rounds of one operation. */
typedef struct dcommi_hier_rounds {
    int64_t message; /* bytes of a message, at most */
    dcommi_hier *h;
    int64_t table;         /* index of this rank's group in the plan's table */
    int64_t pieces, piece; /* pieces of a block; bytes of a piece */
    int64_t tag, tags;     /* tag of the first piece; tags of each piece */
    uint16_t called;       /* counter of complete calls */
    int64_t calls;         /* that were built */
    uint16_t came[2];      /* counters of received messages, by lane */
    int64_t messages;      /* to receive, that were built */
    /* [4 * size of the group]: counts and displacements of a call, then those of its send side. */
    size_t *counts;
    /* The last sub-plan and its arguments: the next call can mostly use it again. */
    dcomm_plan *plan;
    size_t *made; /* as counts */
    int64_t made_extent;
} dcommi_hier_rounds;

/* Return the passes in which a group of `size` ranks stands for all ranks of group k. */
static int dcommi_hier_passes(const dcommi_hier *h, int k, int size)
{
    return (dcommi_hier_size(h, k) + size - 1) / size;
}

/* Return the rank of group k that this rank stands for in pass q; -1: none. */
static int dcommi_hier_stands_for(const dcommi_hier *h, int k, int q)
{
    int index = q * h->size + h->index;
    return index < dcommi_hier_size(h, k) ? dcommi_hier_rank(h, k, index) : -1;
}

/* Return the rank of group k that stands for this rank. */
static int dcommi_hier_stand_in(const dcommi_hier *h, int k)
{
    return dcommi_hier_rank(h, k, h->index % dcommi_hier_size(h, k));
}

/* Return the first byte of a rank's block; *length: its bytes. */
static int64_t dcommi_hier_block(const dcommi_hier *h, int rank, int64_t *length)
{
    const dcommi_shape *s = h->s;
    if (s->counts == NULL) {
        *length = dcommi_shape_bytes(s, s->count);
        return rank * *length;
    }
    *length = dcommi_shape_bytes(s, s->counts[rank]);
    return dcommi_shape_bytes(s, s->displs[rank]);
}

/* Return the first byte of piece c of a rank's block; *length: its bytes. */
static int64_t dcommi_hier_piece(const dcommi_hier_rounds *r, int rank, int64_t c, int64_t *length)
{
    int64_t whole, at = dcommi_hier_block(r->h, rank, &whole);
    *length = dcommi_min64(r->piece, dcommi_max64(0, whole - c * r->piece));
    return at + c * r->piece;
}

/* Return the bytes of a message across groups: whole elements, because it may be folded. */
static int64_t dcommi_hier_message(const dcommi_shape *s)
{
    return dcommi_whole_elements(DCOMMI_HIER_MESSAGE, (int64_t)dcomm_dtype_size(s->dtype));
}

static dcomm_status dcommi_hier_rounds_make(dcommi_hier *h, dcommi_hier_rounds *r)
{
    memset(r, 0, sizeof *r);
    r->h = h;
    r->message = dcommi_hier_message(h->s);
    r->counts = dcommi_calloc(8 * (size_t)h->size, sizeof *r->counts);
    r->made = r->counts != NULL ? r->counts + 4 * h->size : NULL;
    r->made_extent = -1;
    return r->counts != NULL ? DCOMM_OK : DCOMM_ERR_NO_MEMORY;
}

static dcomm_status dcommi_hier_rounds_open(dcommi_hier *h, bool cut, dcommi_hier_rounds *r)
{
    const dcommi_shape *s = h->s;
    int64_t longest = dcommi_hier_bytes(s), rounds = 0;
    DCOMMI_TRY(dcommi_hier_rounds_make(h, r));
    for (int k = 0; k < h->ngroups; k++) { /* by the smallest group, so that all ranks agree */
        rounds += dcommi_hier_passes(h, k, h->smallest);
    }
    int64_t wanted = s->chunk_bytes > 0 ? s->chunk_bytes : DCOMMI_HIER_PIECE;
    int64_t most = dcommi_max64(1, DCOMMI_HIER_CALLS / rounds);
    wanted = cut ? dcommi_max64(wanted, dcommi_ceil_div(longest, most)) : longest;
    r->piece = dcommi_partition_make(longest, 1, wanted, (int64_t)dcomm_dtype_size(s->dtype)).chunk;
    r->pieces = dcommi_chunks_of(longest, r->piece);
    /* All-to-all sends the blocks of a whole group in one piece. */
    int64_t most_bytes = cut ? r->piece : (int64_t)s->nranks * longest;
    r->tags = dcommi_chunks_of(most_bytes, r->message);
    r->tag = dcomm_build_tags(h->b, r->pieces * r->tags);
    r->called = dcomm_build_counter(h->b);
    r->came[0] = dcomm_build_counter(h->b);
    r->came[1] = dcomm_build_counter(h->b);
    r->table = dcommi_hier_local_table(h);
    if (h->b->status < 0) {
        dcommi_free(r->counts);
    }
    return h->b->status;
}

static dcomm_status dcommi_hier_rounds_close(dcommi_hier_rounds *r)
{
    const dcomm_builder *b = r->h->b;
    dcommi_free(r->counts);
    return b->status < 0 || b->head.nslots <= DCOMM_PLAN_MAX_SLOTS
               ? b->status
               : dcommi_fail(DCOMM_ERR_UNSUPPORTED,
                             "%s: %d groups need %" PRIu32 " exposed regions, more than %d",
                             b->head.name, r->h->ngroups, b->head.nslots, DCOMM_PLAN_MAX_SLOTS);
}

/* Fill in counts and displacements of piece c of the blocks of those ranks of group k that this
 * group stands for in pass q. Displacements count from the first byte of these pieces, which is
 * returned. *extent: bytes from there to the end of the last one; 0: all are empty. */
static int64_t dcommi_hier_pattern(dcommi_hier_rounds *r, int k, int q, int64_t c, int64_t *extent)
{
    const dcommi_hier *h = r->h;
    size_t *counts = r->counts, *displs = counts + h->size;
    size_t element = dcomm_dtype_size(h->s->dtype);
    int64_t first = INT64_MAX, end = 0, length;
    for (int pass = 0; pass < 2; pass++) {
        for (int i = 0; i < h->size; i++) {
            int index = q * h->size + i;
            counts[i] = displs[i] = 0;
            if (index >= dcommi_hier_size(h, k)) {
                continue;
            }
            int64_t at = dcommi_hier_piece(r, dcommi_hier_rank(h, k, index), c, &length);
            if (length <= 0) {
                continue;
            }
            first = dcommi_min64(first, at);
            end = dcommi_max64(end, at + length);
            counts[i] = (size_t)length / element;
            displs[i] = (size_t)(at - first) / element;
        }
    }
    *extent = end > 0 ? end - first : 0;
    return first;
}

/* Call an operation within the group. The shape's counts and displacements are those in r->counts.
 */
static void dcommi_hier_rounds_call(dcommi_hier_rounds *r, dcommi_shape *sub, int64_t extent,
                                    int64_t out_bytes, dcomm_operand in, dcomm_operand out)
{
    dcommi_hier *h = r->h;
    dcomm_builder *b = h->b;
    size_t bytes = 4 * (size_t)h->size * sizeof *r->counts;
    sub->counts = r->counts;
    sub->displs = r->counts + h->size;
    if (extent != r->made_extent || memcmp(r->counts, r->made, bytes) != 0) {
        r->plan = dcommi_hier_sub(h, sub, dcommi_longest(sub, sub->counts), extent, out_bytes);
        if (r->plan != NULL) {
            r->plan = dcommi_build_adopt(b, r->plan);
        }
        memcpy(r->made, r->counts, bytes);
        r->made_extent = extent;
    }
    if (r->plan != NULL) {
        dcommi_sub_call(b, DCOMMI_HIER_LANE_CALL, r->plan, r->table, in, out);
    }
}

/* Count the work of the call lane so far as one complete call. */
static void dcommi_hier_rounds_called(dcommi_hier_rounds *r)
{
    dcomm_build_signal(r->h->b, DCOMMI_HIER_LANE_CALL, r->called, dcomm_const(r->h->s->rank),
                       dcomm_const(1));
    r->calls++;
}

/* Return the lane that receives a message. */
static int dcommi_hier_rounds_lane(int64_t message)
{
    return DCOMMI_HIER_LANE_RECV + (int)(message % 2);
}

/* ---- messages across groups ---- */

static dcomm_operand dcommi_hier_part(const dcommi_hier_rounds *r, dcomm_operand o, int depth)
{
    return dcommi_span_chunk((dcomm_space)o.space, o.offset.add, o.max_length, r->message, depth);
}

static int64_t dcommi_hier_parts(const dcommi_hier_rounds *r, dcomm_operand o)
{
    return dcommi_chunks_of(o.max_length, r->message);
}

/* Start to send piece c to a rank. */
static void dcommi_hier_send(dcommi_hier_rounds *r, dcomm_operand what, int64_t c, int64_t to)
{
    dcomm_builder *b = r->h->b;
    int64_t parts = dcommi_hier_parts(r, what);
    int d = dcomm_build_loop(b, DCOMMI_HIER_LANE_SEND, dcomm_const(parts));
    dcomm_build_send(b, DCOMMI_HIER_LANE_SEND, dcommi_hier_part(r, what, d), dcomm_const(to),
                     dcomm_linear(r->tag + c * r->tags, d, 1), DCOMM_STEP_ASYNC);
    dcomm_build_end(b, DCOMMI_HIER_LANE_SEND);
}

/* Receive the whole piece c from a rank. stage.space NONE: store it in `into`; else fold it into
 * `into`. */
static void dcommi_hier_recv(dcommi_hier_rounds *r, int lane, dcomm_operand into,
                             dcomm_operand stage, int64_t c, int64_t from)
{
    dcomm_builder *b = r->h->b;
    int64_t parts = dcommi_hier_parts(r, into);
    int d = dcomm_build_loop(b, lane, dcomm_const(parts));
    dcomm_operand part = dcommi_hier_part(r, into, d);
    dcomm_expr tag = dcomm_linear(r->tag + c * r->tags, d, 1);
    if (stage.space == DCOMM_SPACE_NONE) {
        dcomm_build_recv(b, lane, part, dcomm_const(from), tag, DCOMM_STEP_ASYNC);
    } else {
        dcomm_build_recv_reduce(b, lane, part, part, dcomm_msg(), dcommi_hier_part(r, stage, d),
                                dcomm_const(from), tag, DCOMM_STEP_ASYNC);
    }
    dcomm_build_end(b, lane);
    dcomm_build_fence(b, lane);
}

/* ---- reduce-scatter ---- */

static dcomm_status dcommi_hier_reduce_scatter_of(dcommi_hier *h)
{
    const dcommi_shape *s = h->s;
    dcomm_builder *b = h->b;
    dcommi_hier_rounds r;
    DCOMMI_TRY(dcommi_hier_rounds_open(h, true, &r));
    dcomm_space input = dcommi_input_of(s, 0).space;
    int64_t length, begin = dcommi_hier_block(h, s->rank, &length);
    int64_t out = s->in_place ? begin : 0;
    dcommi_shape sub = dcommi_hier_shape(h, DCOMM_COLL_REDUCE_SCATTERV, h->index, h->size, false);
    int64_t own = length > 0 && h->size > 1 ? dcomm_build_scratch(b, length) : 0;
    /* Reduce-scatter within the group: the other groups' blocks in the order of rounds, then this
     * group's own. */
    for (int t = 1; t <= h->ngroups; t++) {
        int k = (h->group + t) % h->ngroups;
        for (int q = 0; q < dcommi_hier_passes(h, k, h->size); q++) {
            int target = dcommi_hier_stands_for(h, k, q);
            for (int64_t c = 0; c < r.pieces; c++) {
                int64_t extent, bytes = 0, at = 0, to = own + c * r.piece;
                int64_t first = dcommi_hier_pattern(&r, k, q, c, &extent);
                if (extent == 0) {
                    continue;
                }
                if (target >= 0) {
                    at = dcommi_hier_piece(&r, target, c, &bytes);
                }
                dcomm_operand part = dcomm_span(input, at, bytes);
                if (h->size > 1) {
                    to = k != h->group ? dcomm_build_scratch(b, bytes) : to;
                    part = dcomm_span(DCOMM_SPACE_SCRATCH, to, bytes);
                    dcommi_hier_rounds_call(&r, &sub, extent, bytes,
                                            dcomm_span(input, first, extent), part);
                    dcommi_hier_rounds_called(&r);
                }
                if (k != h->group && bytes > 0) {
                    if (h->size > 1) {
                        dcomm_build_wait(b, DCOMMI_HIER_LANE_SEND, r.called, dcomm_const(r.calls));
                    }
                    dcommi_hier_send(&r, part, c, target);
                }
            }
        }
    }
    if (length == 0) {
        return dcommi_hier_rounds_close(&r);
    }
    /* Fold messages as they arrive, and this group's own sum last. Pieces alternate between two
     * lanes; each lane has one stage. */
    int64_t sum = dcomm_build_scratch(b, length);
    int64_t stage = dcomm_build_scratch(b, 2 * r.piece);
    for (int64_t c = 0; c < r.pieces; c++) {
        int64_t bytes, at = dcommi_hier_piece(&r, s->rank, c, &bytes);
        int lane = dcommi_hier_rounds_lane(c);
        if (bytes == 0) {
            continue;
        }
        dcomm_operand total = dcomm_span(DCOMM_SPACE_SCRATCH, sum + c * r.piece, bytes);
        for (int t = 1; t < h->ngroups; t++) {
            int k = (h->group - t + h->ngroups) % h->ngroups;
            dcomm_operand stage_of = dcomm_span(t > 1 ? DCOMM_SPACE_SCRATCH : DCOMM_SPACE_NONE,
                                                stage + c % 2 * r.piece, bytes);
            dcommi_hier_recv(&r, lane, total, stage_of, c, dcommi_hier_stand_in(h, k));
        }
        dcomm_operand parts[2] = {
            total, h->size > 1 ? dcomm_span(DCOMM_SPACE_SCRATCH, own + c * r.piece, bytes)
                               : dcomm_span(input, at, bytes)};
        dcomm_build_wait(b, lane, r.called, dcomm_const(r.calls));
        dcomm_build_reduce(b, lane, dcomm_span(DCOMM_SPACE_OUT, out + c * r.piece, bytes), parts, 2,
                           DCOMM_STEP_FINAL);
    }
    return dcommi_hier_rounds_close(&r);
}

/* ---- all-gather ---- */

static dcomm_status dcommi_hier_allgather_of(dcommi_hier *h)
{
    const dcommi_shape *s = h->s;
    dcomm_builder *b = h->b;
    dcommi_hier_rounds r;
    DCOMMI_TRY(dcommi_hier_rounds_open(h, true, &r));
    int64_t length, begin = dcommi_hier_block(h, s->rank, &length);
    dcommi_input in = dcommi_input_of(s, begin);
    dcommi_shape sub = dcommi_hier_shape(h, DCOMM_COLL_ALLGATHERV, h->index, h->size, false);
    sub.in_place = true;
    for (int t = 1; t < h->ngroups && length > 0; t++) {
        int k = (h->group + t) % h->ngroups;
        int64_t target = dcommi_hier_stand_in(h, k);
        for (int64_t c = 0; c < r.pieces; c++) {
            int64_t bytes;
            dcommi_hier_piece(&r, s->rank, c, &bytes);
            if (bytes > 0) {
                dcommi_hier_send(&r, dcomm_span(in.space, in.base + c * r.piece, bytes), c, target);
            }
        }
    }
    if (!s->in_place && length > 0) {
        dcomm_build_copy(b, DCOMMI_HIER_LANE_CALL, dcomm_span(DCOMM_SPACE_OUT, begin, length),
                         dcomm_span(in.space, in.base, length), 0);
    }
    for (int t = 0; t < h->ngroups; t++) {
        int k = (h->group - t + h->ngroups) % h->ngroups;
        for (int q = 0; q < dcommi_hier_passes(h, k, h->size); q++) {
            int from = dcommi_hier_stands_for(h, k, q);
            for (int64_t c = 0; c < r.pieces; c++) {
                int64_t extent, bytes = 0, at = 0;
                int64_t first = dcommi_hier_pattern(&r, k, q, c, &extent);
                if (from >= 0) {
                    at = dcommi_hier_piece(&r, from, c, &bytes);
                }
                if (k != h->group && bytes > 0) {
                    int lane = dcommi_hier_rounds_lane(r.messages);
                    uint16_t came = r.came[r.messages % 2];
                    dcommi_hier_recv(&r, lane, dcomm_span(DCOMM_SPACE_OUT, at, bytes),
                                     (dcomm_operand){0}, c, from);
                    dcomm_build_signal(b, lane, came, dcomm_const(s->rank), dcomm_const(1));
                    if (h->size > 1) {
                        dcomm_build_wait(b, DCOMMI_HIER_LANE_CALL, came,
                                         dcomm_const(r.messages / 2 + 1));
                    }
                    r.messages++;
                }
                if (h->size > 1 && extent > 0) {
                    dcomm_operand blocks = dcomm_span(DCOMM_SPACE_OUT, first, extent);
                    dcommi_hier_rounds_call(&r, &sub, extent, extent, blocks, blocks);
                }
            }
        }
    }
    return dcommi_hier_rounds_close(&r);
}

/* ---- all-to-all ---- */

/* Return true if the blocks of n ranks of group k, from `index` on, lie one after the other in a
 * buffer. */
static bool dcommi_hier_together(const dcommi_hier *h, int k, int index, int n)
{
    for (int i = 1; i < n; i++) {
        if (index + i >= dcommi_hier_size(h, k) ||
            dcommi_hier_rank(h, k, index + i) != dcommi_hier_rank(h, k, index) + i) {
            return false;
        }
    }
    return true;
}

/* Copy the blocks from the ranks of group k, which lie one after the other at `from`, to their
 * places in OUT. */
static void dcommi_hier_scatter(dcommi_hier *h, int lane, int k, int64_t from)
{
    dcomm_builder *b = h->b;
    int64_t one = dcommi_shape_bytes(h->s, h->s->count), first = (int64_t)b->ntable;
    int size = dcommi_hier_size(h, k);
    for (int i = 0; i < size; i++) {
        int64_t rank = dcommi_hier_rank(h, k, i);
        dcomm_build_table(b, &rank, 1);
    }
    int d = dcomm_build_loop(b, lane, dcomm_const(size));
    dcomm_expr to = dcomm_lookup(first, 0, d, 1, size);
    to.scale = one;
    dcomm_build_copy(b, lane, dcomm_at(DCOMM_SPACE_OUT, to, one),
                     dcomm_at(DCOMM_SPACE_SCRATCH, dcomm_linear(from, d, one), one), 0);
    dcomm_build_end(b, lane);
}

/* Exchange blocks within the group for pass q of group k: each rank gets the blocks of all ranks
 * of its group for its own target, one after the other, at `out`. served: this rank has a target.
 */
static void dcommi_hier_collect(dcommi_hier_rounds *r, dcomm_space input, int64_t base, int k,
                                int q, bool served, dcomm_operand out)
{
    dcommi_hier *h = r->h;
    size_t size = (size_t)h->size, block = h->s->count;
    int64_t one = dcommi_shape_bytes(h->s, block), extent;
    int64_t first = dcommi_hier_pattern(r, k, q, 0, &extent);
    bool equal = dcommi_hier_together(h, k, q * h->size, h->size);
    size_t *send = r->counts + 2 * size;
    dcommi_shape sub = dcommi_hier_shape(h, equal ? DCOMM_COLL_ALLTOALL : DCOMM_COLL_ALLTOALLV,
                                         h->index, h->size, false);
    sub.count = block;
    memcpy(send, r->counts, 2 * size * sizeof *send);
    for (size_t i = 0; i < size; i++) {
        r->counts[i] = served ? block : 0;
        r->counts[size + i] = i * block;
    }
    if (!equal) {
        sub.send_counts = send;
        sub.send_displs = send + size;
    }
    dcommi_hier_rounds_call(r, &sub, extent, served ? (int64_t)size * one : 0,
                            dcomm_span(input, base + first, extent), out);
}

static dcomm_status dcommi_hier_alltoall_of(dcommi_hier *h)
{
    const dcommi_shape *s = h->s;
    dcomm_builder *b = h->b;
    dcommi_hier_rounds r;
    DCOMMI_TRY(dcommi_hier_rounds_open(h, false, &r));
    int64_t one = dcommi_shape_bytes(s, s->count), all = s->nranks * one, base = 0;
    dcomm_space input = dcommi_input_of(s, 0).space;
    if (s->in_place) { /* all blocks leave before any is overwritten: send from a copy */
        base = dcomm_build_scratch(b, all);
        dcomm_build_copy(b, DCOMMI_HIER_LANE_CALL, dcomm_span(DCOMM_SPACE_SCRATCH, base, all),
                         dcomm_span(input, 0, all), 0);
        input = DCOMM_SPACE_SCRATCH;
        dcommi_hier_rounds_called(&r);
    }
    for (int t = 1; t <= h->ngroups; t++) {
        int k = (h->group + t) % h->ngroups;
        for (int q = 0; q < dcommi_hier_passes(h, k, h->size); q++) {
            int target = dcommi_hier_stands_for(h, k, q);
            int64_t bytes = target >= 0 ? h->size * one : 0;
            dcomm_operand part = dcomm_span(input, base + target * one, bytes);
            bool scattered = k == h->group && !dcommi_hier_together(h, k, 0, h->size);
            if (k == h->group && !scattered) {
                part = dcomm_span(DCOMM_SPACE_OUT, dcommi_hier_rank(h, k, 0) * one, bytes);
            } else if (h->size > 1) {
                part = dcomm_span(DCOMM_SPACE_SCRATCH, dcomm_build_scratch(b, bytes), bytes);
            }
            if (h->size > 1) {
                dcommi_hier_collect(&r, input, base, k, q, target >= 0, part);
                dcommi_hier_rounds_called(&r);
            } else if (k == h->group) {
                dcomm_build_copy(b, DCOMMI_HIER_LANE_CALL, part,
                                 dcomm_span(input, base + s->rank * one, one), 0);
            }
            if (scattered) {
                dcommi_hier_scatter(h, DCOMMI_HIER_LANE_CALL, k, part.offset.add);
            }
            if (k != h->group && bytes > 0) {
                if (r.calls > 0) {
                    dcomm_build_wait(b, DCOMMI_HIER_LANE_SEND, r.called, dcomm_const(r.calls));
                }
                dcommi_hier_send(&r, part, 0, target);
            }
        }
    }
    for (int t = 1; t < h->ngroups; t++) {
        int k = (h->group - t + h->ngroups) % h->ngroups, size = dcommi_hier_size(h, k);
        int lane = dcommi_hier_rounds_lane(r.messages++);
        bool together = dcommi_hier_together(h, k, 0, size);
        dcomm_operand into =
            dcomm_span(DCOMM_SPACE_OUT, dcommi_hier_rank(h, k, 0) * one, size * one);
        if (!together) {
            into = dcomm_span(DCOMM_SPACE_SCRATCH, dcomm_build_scratch(b, size * one), size * one);
        }
        if (s->in_place && t <= 2) { /* each lane waits once, until the input is copied */
            dcomm_build_wait(b, lane, r.called, dcomm_const(1));
        }
        dcommi_hier_recv(&r, lane, into, (dcomm_operand){0}, 0, dcommi_hier_stand_in(h, k));
        if (!together) {
            dcommi_hier_scatter(h, lane, k, into.offset.add);
        }
    }
    return dcommi_hier_rounds_close(&r);
}

#endif
