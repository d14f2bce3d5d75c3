/* staged.h - collectives of one host through scratch that its ranks map from each other.
 *
 * A rank copies its data chunk by chunk into slots of its own scratch and signals the others,
 * which read it there. Each byte is copied in once for all readers, while it is in a cache, and
 * without the kernel. Messages copy it once for each reader, and reads of ordinary memory go
 * through the kernel. A slot is filled again when all ranks have read it. Graham and Shipman, "MPI
 * support for multi-core architectures: optimized shared memory collectives", EuroPVM/MPI 2008.
 *
 * A rank has one progress counter for each other rank: in a sum over ranks, a fast rank could hide
 * a slow one. */
#ifndef DCOMMI_ALGO_STAGED_H
#define DCOMMI_ALGO_STAGED_H

#include "parts.h"

#define DCOMMI_STAGED_SLOTS 3                /* dcommi_staged_exchange says why */
#define DCOMMI_STAGED_SLOTS_ROOT 4           /* of a root, which may be ahead of its readers */
#define DCOMMI_STAGED_CHUNK (128 << 10)      /* bytes of a chunk by default, at most */
#define DCOMMI_STAGED_ROW (512 << 10)        /* bytes of a slot, where peers copy out of it */
#define DCOMMI_STAGED_ROW_FOLDED (160 << 10) /* bytes of a slot, where peers fold it */
#define DCOMMI_STAGED_LEAST (2 << 10)        /* bytes of a chunk by default, at least */
#define DCOMMI_STAGED_RANKS 256              /* the length of a plan grows with the ranks */

/* The place of a rank's block of the operation, in bytes. */
typedef struct dcommi_staged_block {
    int64_t at, length;
} dcommi_staged_block;

static dcommi_staged_block dcommi_staged_block_of(const dcommi_shape *s, int64_t rank)
{
    int64_t total = dcommi_shape_bytes(s, s->count);
    dcommi_staged_block k = {rank * total, total};
    if (s->coll == DCOMM_COLL_BROADCAST) {
        k.at = 0;
    } else if (s->coll == DCOMM_COLL_ALLREDUCE) {
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

/* The slots and counters of an operation. The counters are numbered by distance between ranks, so
 * that the plans of all ranks look alike. */
typedef struct dcommi_staged {
    const dcommi_shape *s;
    dcomm_builder *b;
    int64_t chunk, chunks, slots;
    int64_t row;       /* bytes of a slot */
    uint16_t slot;     /* the number by which the slots are exposed */
    uint16_t counters; /* the first one */
} dcommi_staged;

/* Prepare a staged operation. width: chunks in a slot; row: bytes of a slot, about. */
static dcommi_staged dcommi_staged_make(const dcommi_shape *s, dcomm_builder *b, int64_t slots,
                                        int64_t width, int64_t row)
{
    if (s->nranks > DCOMMI_STAGED_RANKS) {
        dcommi_build_error(b, dcommi_fail(DCOMM_ERR_UNSUPPORTED,
                                          "%s: %d ranks are too many for staging (at most %d)",
                                          b->head.name, s->nranks, DCOMMI_STAGED_RANKS));
    }
    int64_t longest = 0;
    for (int r = 0; r < s->nranks; r++) {
        longest = dcommi_max64(longest, dcommi_staged_block_of(s, r).length);
    }
    int64_t grain = dcommi_min64(DCOMMI_STAGED_CHUNK, row / width);
    grain = s->chunk_bytes > 0 ? s->chunk_bytes : dcommi_max64(grain, DCOMMI_STAGED_LEAST);
    int64_t element = (int64_t)dcomm_dtype_size(s->dtype);
    grain = dcommi_min64(grain,
                         dcommi_whole_elements(DCOMMI_SHARED_SCRATCH / (slots * width), element));
    dcommi_staged g = {.s = s, .b = b};
    g.chunk = dcommi_partition_make(longest, 1, grain, element).chunk;
    g.chunks = dcommi_chunks_of(longest, g.chunk);
    g.row = width * g.chunk;
    g.slots = dcommi_min64(slots, g.chunks);
    dcomm_build_scratch(b, g.slots * g.row);
    b->head.scratch_shared = true;
    g.slot = dcomm_build_slot(b);
    g.counters = dcomm_build_counter(b);
    for (int r = 1; r < s->nranks; r++) {
        dcomm_build_counter(b);
    }
    return g;
}

/* Chunk number i[depth] + plus. */
typedef struct dcommi_staged_turn {
    int depth;
    int64_t plus;
} dcommi_staged_turn;

static dcommi_staged_turn dcommi_staged_turn_at(int64_t number)
{
    dcommi_staged_turn turn = {DCOMM_LOOP_DEPTH - 1, number}; /* this loop is never opened */
    return turn;
}

/* Return the offset of byte `at` of the slot of chunk `turn`. */
static dcomm_expr dcommi_staged_at(const dcommi_staged *g, int64_t at, dcommi_staged_turn turn)
{
    return dcomm_plus(dcomm_modular(g->row, turn.plus, turn.depth, 1, g->slots), at);
}

/* Return that place in this rank's scratch, as long as `like`. */
static dcomm_operand dcommi_staged_own(const dcommi_staged *g, int64_t at, dcommi_staged_turn turn,
                                       const dcomm_operand *like)
{
    dcomm_operand o = dcomm_at(DCOMM_SPACE_SCRATCH, dcommi_staged_at(g, at, turn), g->chunk);
    o.length = like->length;
    return o;
}

/* Return that place in the slots that `peer` has exposed, as long as `like`. */
static dcomm_operand dcommi_staged_peer(const dcommi_staged *g, int64_t peer, int64_t at,
                                        dcommi_staged_turn turn, const dcomm_operand *like)
{
    dcomm_operand o =
        dcomm_exposed(dcomm_const(peer), g->slot, dcommi_staged_at(g, at, turn), g->chunk);
    o.length = like->length;
    return o;
}

/* Return the counter in which rank `knower` keeps the progress of rank `other`. */
static uint16_t dcommi_staged_of(const dcommi_staged *g, int64_t knower, int64_t other)
{
    return (uint16_t)(g->counters + (other - knower + g->s->nranks) % g->s->nranks);
}

/* Signal rank `to` that this rank has gone one chunk further. */
static void dcommi_staged_tell(const dcommi_staged *g, int64_t to)
{
    dcomm_build_signal(g->b, 0, dcommi_staged_of(g, to, g->s->rank), dcomm_const(to),
                       dcomm_const(1));
}

static void dcommi_staged_tell_all(const dcommi_staged *g)
{
    for (int d = 1; d < g->s->nranks; d++) {
        dcommi_staged_tell(g, (g->s->rank + d) % g->s->nranks);
    }
}

/* Wait until the progress of all other ranks is at least `so_far`. */
static void dcommi_staged_until_all(const dcommi_staged *g, dcomm_expr so_far)
{
    for (int d = 1; d < g->s->nranks; d++) {
        int rank = (g->s->rank + d) % g->s->nranks;
        dcomm_build_wait(g->b, 0, dcommi_staged_of(g, g->s->rank, rank), so_far);
    }
}

/* Expose the slots to all ranks. Data put there before is visible to a rank that reads them. */
static void dcommi_staged_offer(const dcommi_staged *g)
{
    dcomm_build_expose(g->b, 0, dcomm_span(DCOMM_SPACE_SCRATCH, 0, g->slots * g->row), g->slot,
                       dcomm_const(DCOMM_ALL_PEERS));
}

/* Return chunk `turn` of a block. */
static dcomm_operand dcommi_staged_chunk(const dcommi_staged *g, dcomm_space space,
                                         dcommi_staged_block k, dcommi_staged_turn turn)
{
    int64_t before = turn.plus * g->chunk;
    return dcommi_span_chunk(space, k.at + before, k.length - before, g->chunk, turn.depth);
}

/* Copy chunk `turn` of each other rank's block from byte `at` of its slot to OUT. */
static void dcommi_staged_collect(const dcommi_staged *g, int64_t at, dcommi_staged_turn turn)
{
    const dcommi_shape *s = g->s;
    for (int d = 1; d < s->nranks; d++) {
        int peer = (s->rank + d) % s->nranks;
        dcomm_operand out =
            dcommi_staged_chunk(g, DCOMM_SPACE_OUT, dcommi_staged_block_of(s, peer), turn);
        dcomm_build_copy(g->b, 0, out, dcommi_staged_peer(g, peer, at, turn, &out),
                         DCOMM_STEP_RESULT);
    }
}

/* ---- all ranks work on the same chunks ---- */

/* The work on each chunk: put this rank's data into its slot; take the other ranks' data from
 * their slots; all-reduce only: gather the sums from their slots. */
typedef struct dcommi_staged_work {
    void (*put)(const dcommi_staged *g, dcommi_staged_turn turn);
    void (*take)(const dcommi_staged *g, dcommi_staged_turn turn);
    void (*gather)(const dcommi_staged *g, dcommi_staged_turn turn); /* NULL: nothing to gather */
} dcommi_staged_work;

/* Build the loop over the chunks. All ranks work in the same order: put chunk k, take chunk k - 1,
 * gather chunk k - 2. So one counter tells all. A rank whose counter is k has put chunk k, taken
 * the chunks before k, and gathered those before k - 2. With three slots, the part of a slot that
 * is written next is then free. */
static void dcommi_staged_exchange(const dcommi_staged *g, const dcommi_staged_work *work)
{
    int64_t n = g->chunks;
    work->put(g, dcommi_staged_turn_at(0));
    dcommi_staged_offer(g); /* a reader of chunk 0 waits for this, not for a signal */
    if (n > 1) {
        work->put(g, dcommi_staged_turn_at(1));
    }
    work->take(g, dcommi_staged_turn_at(0));
    dcommi_staged_tell_all(g);
    if (n > 2) {
        int i = dcomm_build_loop(g->b, 0, dcomm_const(n - 2));
        dcommi_staged_turn turn[] = {{i, 0}, {i, 1}, {i, 2}};
        work->put(g, turn[2]);
        dcommi_staged_until_all(g, dcomm_linear(1, i, 1));
        work->take(g, turn[1]);
        dcommi_staged_tell_all(g);
        if (work->gather != NULL) {
            work->gather(g, turn[0]);
        }
        dcomm_build_end(g->b, 0);
    }
    if (n > 1) {
        dcommi_staged_until_all(g, dcomm_const(n - 1));
        work->take(g, dcommi_staged_turn_at(n - 1));
        dcommi_staged_tell_all(g);
        if (work->gather != NULL) {
            work->gather(g, dcommi_staged_turn_at(n - 2));
        }
    }
    dcommi_staged_until_all(g, dcomm_const(n));
    if (work->gather != NULL) {
        work->gather(g, dcommi_staged_turn_at(n - 1));
        dcommi_staged_tell_all(g);
        dcommi_staged_until_all(g, dcomm_const(n + 1));
    }
}

/* Put a chunk of this rank's block into its slot, for all ranks, and into its own result. */
static void dcommi_staged_put_one(const dcommi_staged *g, dcommi_staged_turn turn)
{
    const dcommi_shape *s = g->s;
    dcommi_staged_block own = dcommi_staged_block_of(s, s->rank);
    dcommi_input in = dcommi_input_of(s, own.at);
    dcommi_staged_block from = {in.base, own.length};
    dcomm_operand chunk = dcommi_staged_chunk(g, in.space, from, turn);
    dcomm_build_copy(g->b, 0, dcommi_staged_own(g, 0, turn, &chunk), chunk, DCOMM_STEP_RESULT);
    if (!s->in_place) {
        dcomm_build_copy(g->b, 0, dcommi_staged_chunk(g, DCOMM_SPACE_OUT, own, turn), chunk,
                         DCOMM_STEP_RESULT);
    }
}

static void dcommi_staged_take_one(const dcommi_staged *g, dcommi_staged_turn turn)
{
    dcommi_staged_collect(g, 0, turn);
}

static dcomm_status dcommi_staged_allgather(const dcommi_shape *s, dcomm_builder *b)
{
    static const dcommi_staged_work work = {dcommi_staged_put_one, dcommi_staged_take_one, NULL};
    dcommi_staged g = dcommi_staged_make(s, b, DCOMMI_STAGED_SLOTS, 1, DCOMMI_STAGED_ROW);
    dcommi_staged_exchange(&g, &work);
    return b->status;
}

/* Put a chunk of each other rank's block of this rank's input into the slot. */
static void dcommi_staged_put_all(const dcommi_staged *g, dcommi_staged_turn turn, unsigned flags)
{
    const dcommi_shape *s = g->s;
    dcomm_space input = dcommi_input_of(s, 0).space;
    for (int d = 1; d < s->nranks; d++) {
        int peer = (s->rank + d) % s->nranks;
        dcomm_operand chunk = dcommi_staged_chunk(g, input, dcommi_staged_block_of(s, peer), turn);
        dcomm_build_copy(g->b, 0, dcommi_staged_own(g, peer * g->chunk, turn, &chunk), chunk,
                         flags);
    }
}

static void dcommi_staged_put_copied(const dcommi_staged *g, dcommi_staged_turn turn)
{
    const dcommi_shape *s = g->s;
    dcommi_staged_block own = dcommi_staged_block_of(s, s->rank);
    dcommi_staged_put_all(g, turn, DCOMM_STEP_RESULT);
    if (!s->in_place) {
        dcomm_build_copy(g->b, 0, dcommi_staged_chunk(g, DCOMM_SPACE_OUT, own, turn),
                         dcommi_staged_chunk(g, dcommi_input_of(s, 0).space, own, turn),
                         DCOMM_STEP_RESULT);
    }
}

/* Take a chunk of an all-to-all. In place, it overwrites a chunk that was already put. */
static void dcommi_staged_take_copied(const dcommi_staged *g, dcommi_staged_turn turn)
{
    dcommi_staged_collect(g, g->s->rank * g->chunk, turn);
}

static dcomm_status dcommi_staged_alltoall(const dcommi_shape *s, dcomm_builder *b)
{
    static const dcommi_staged_work work = {dcommi_staged_put_copied, dcommi_staged_take_copied,
                                            NULL};
    dcommi_staged g = dcommi_staged_make(s, b, DCOMMI_STAGED_SLOTS, s->nranks, DCOMMI_STAGED_ROW);
    dcommi_staged_exchange(&g, &work);
    return b->status;
}

static void dcommi_staged_put_folded(const dcommi_staged *g, dcommi_staged_turn turn)
{
    dcommi_staged_put_all(g, turn, 0);
}

/* Build dst <- fold of this rank's block of all inputs, in rank order. */
static void dcommi_staged_fold(const dcommi_staged *g, dcommi_staged_turn turn, dcomm_operand dst,
                               unsigned flags)
{
    const dcommi_shape *s = g->s;
    dcomm_operand ordered[3];
    dcomm_operand own = dcommi_staged_chunk(g, dcommi_input_of(s, 0).space,
                                            dcommi_staged_block_of(s, s->rank), turn);
    dcomm_operand others = dcommi_staged_peer(g, 0, s->rank * g->chunk, turn, &own);
    size_t count = dcommi_in_rank_order(s, others, 0, own, ordered);
    dcomm_build_reduce(g->b, 0, dst, ordered, count, DCOMM_STEP_FINAL | flags);
}

static void dcommi_staged_take_scattered(const dcommi_staged *g, dcommi_staged_turn turn)
{
    const dcommi_shape *s = g->s;
    dcommi_staged_block own = dcommi_staged_block_of(s, s->rank);
    dcommi_staged_block to = {s->in_place ? own.at : 0, own.length};
    dcommi_staged_fold(g, turn, dcommi_staged_chunk(g, DCOMM_SPACE_OUT, to, turn),
                       DCOMM_STEP_RESULT);
}

static dcomm_status dcommi_staged_reduce_scatter(const dcommi_shape *s, dcomm_builder *b)
{
    static const dcommi_staged_work work = {dcommi_staged_put_folded, dcommi_staged_take_scattered,
                                            NULL};
    dcommi_staged g =
        dcommi_staged_make(s, b, DCOMMI_STAGED_SLOTS, s->nranks, DCOMMI_STAGED_ROW_FOLDED);
    dcommi_staged_exchange(&g, &work);
    return b->status;
}

/* Fold a chunk of this rank's block into its slot, behind the pieces for the other ranks, which
 * copy the sum from there. */
static void dcommi_staged_take_summed(const dcommi_staged *g, dcommi_staged_turn turn)
{
    const dcommi_shape *s = g->s;
    dcomm_operand out =
        dcommi_staged_chunk(g, DCOMM_SPACE_OUT, dcommi_staged_block_of(s, s->rank), turn);
    dcomm_operand sum = dcommi_staged_own(g, s->nranks * g->chunk, turn, &out);
    dcommi_staged_fold(g, turn, sum, DCOMM_STEP_FORWARD);
    dcomm_build_copy(g->b, 0, out, sum, DCOMM_STEP_RESULT);
}

static void dcommi_staged_gather_sums(const dcommi_staged *g, dcommi_staged_turn turn)
{
    dcommi_staged_collect(g, g->s->nranks * g->chunk, turn);
}

static dcomm_status dcommi_staged_allreduce(const dcommi_shape *s, dcomm_builder *b)
{
    static const dcommi_staged_work work = {dcommi_staged_put_folded, dcommi_staged_take_summed,
                                            dcommi_staged_gather_sums};
    dcommi_staged g =
        dcommi_staged_make(s, b, DCOMMI_STAGED_SLOTS, s->nranks + 1, DCOMMI_STAGED_ROW_FOLDED);
    dcommi_staged_exchange(&g, &work);
    return b->status;
}

/* ---- one rank that all others read ---- */

static dcomm_operand dcommi_staged_root_chunk(const dcommi_staged *g, dcomm_space space,
                                              dcommi_staged_turn turn)
{
    return dcommi_staged_chunk(g, space, dcommi_staged_block_of(g->s, g->s->root), turn);
}

static void dcommi_staged_root_puts(const dcommi_staged *g, dcommi_staged_turn turn)
{
    dcomm_operand chunk = dcommi_staged_root_chunk(g, dcommi_input_of(g->s, 0).space, turn);
    dcomm_build_copy(g->b, 0, dcommi_staged_own(g, 0, turn, &chunk), chunk, DCOMM_STEP_RESULT);
}

static void dcommi_staged_root_keeps(const dcommi_staged *g, dcommi_staged_turn turn)
{
    if (!g->s->in_place) {
        dcomm_build_copy(g->b, 0, dcommi_staged_root_chunk(g, DCOMM_SPACE_OUT, turn),
                         dcommi_staged_root_chunk(g, DCOMM_SPACE_IN, turn), DCOMM_STEP_RESULT);
    }
}

static void dcommi_staged_root_is_read(const dcommi_staged *g, dcommi_staged_turn turn)
{
    dcomm_operand out = dcommi_staged_root_chunk(g, DCOMM_SPACE_OUT, turn);
    dcomm_build_copy(g->b, 0, out, dcommi_staged_peer(g, g->s->root, 0, turn, &out),
                     DCOMM_STEP_RESULT);
    dcommi_staged_tell(g, g->s->root);
}

static void dcommi_staged_root_goes_on(const dcommi_staged *g, dcommi_staged_turn turn)
{
    dcommi_staged_root_puts(g, turn);
    dcommi_staged_tell_all(g);
    dcommi_staged_root_keeps(g, turn);
}

static void dcommi_staged_root(const dcommi_staged *g)
{
    dcommi_staged_root_puts(g, dcommi_staged_turn_at(0));
    dcommi_staged_offer(g);
    dcommi_staged_root_keeps(g, dcommi_staged_turn_at(0));
    for (int64_t k = 1; k < g->slots; k++) {
        dcommi_staged_root_goes_on(g, dcommi_staged_turn_at(k));
    }
    if (g->chunks > g->slots) {
        int i = dcomm_build_loop(g->b, 0, dcomm_const(g->chunks - g->slots));
        dcommi_staged_turn turn = {i, g->slots};
        dcommi_staged_until_all(g, dcomm_linear(1, i, 1)); /* the slot's last chunk was read */
        dcommi_staged_root_goes_on(g, turn);
        dcomm_build_end(g->b, 0);
    }
    dcommi_staged_until_all(g, dcomm_const(g->chunks));
}

static void dcommi_staged_reader(const dcommi_staged *g)
{
    dcommi_staged_root_is_read(g, dcommi_staged_turn_at(0));
    if (g->chunks > 1) {
        int i = dcomm_build_loop(g->b, 0, dcomm_const(g->chunks - 1));
        dcommi_staged_turn turn = {i, 1};
        dcomm_build_wait(g->b, 0, dcommi_staged_of(g, g->s->rank, g->s->root),
                         dcomm_linear(1, i, 1));
        dcommi_staged_root_is_read(g, turn);
        dcomm_build_end(g->b, 0);
    }
}

static dcomm_status dcommi_staged_broadcast(const dcommi_shape *s, dcomm_builder *b)
{
    dcommi_staged g = dcommi_staged_make(s, b, DCOMMI_STAGED_SLOTS_ROOT, 1, DCOMMI_STAGED_ROW);
    (s->rank == s->root ? dcommi_staged_root : dcommi_staged_reader)(&g);
    return b->status;
}

#endif
