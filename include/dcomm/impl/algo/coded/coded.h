/* coded.h - compressed all-reduce of f32. Contributions travel encoded. They are decoded and added
 * in f32, in rank order. Only one rank encodes each sum, so that all ranks get the same bits.
 *
 * coded_allgather: each rank sends its encoding to all others, and decodes and adds all of them.
 * N-1 encodings per rank, one rounding: good for sparse codecs and for two ranks.
 * coded_two_shot: reduce-scatter and all-gather by direct exchange. The owner of a shard decodes
 * and adds all contributions in one pass and encodes the sum; it decodes its own encoding as the
 * others do. 2(N-1)/N encodings per rank and two roundings for any N: good for quantizers.
 *
 * The buffer is cut into chunks. Each kind of work on a chunk - encode, send, receive, add, ... -
 * has a lane, which takes chunks in turn and waits for the lane before it. So one chunk is encoded
 * while another is on the wire. A window of slots bounds the memory and keeps it in the cache.
 * A track is one such set of lanes. Several tracks take chunks in turn, so that the network does
 * not wait for the end of a chunk. Slot d holds the data for, or from, rank + 1 + d. */
#ifndef DCOMMI_ALGO_CODED_H
#define DCOMMI_ALGO_CODED_H

#include "../parts.h"

#define DCOMMI_CODED_CHUNK (1 << 20) /* bytes of f32 in a chunk, by default */
#define DCOMMI_CODED_WINDOW 4        /* chunks of a track that have slots at a time */
#define DCOMMI_CODED_TRACKS 2        /* by default */
#define DCOMMI_CODED_CHUNKS 16384    /* chunks of a buffer, at most: each needs words and tags */

/* A tensor cut into blocks of chunks, and the room for the encoding of a chunk. */
typedef struct dcommi_coded_cut {
    const dcommi_shape *s;
    dcomm_builder *b;
    int64_t total, block, chunk, chunks; /* bytes of f32; a block has `chunks` of them */
    int64_t encoded, stride;             /* bytes: longest encoding of a chunk; a slot */
    int64_t before;                      /* bytes of the tensor that lie before the input */
    /* Blocks of the caller's, of any length (halves.h): from `offsets` and `lengths` on, the table
     * has where they begin and how long they are, in elements. */
    bool listed;
    int64_t offsets, lengths;
} dcommi_coded_cut;

/* Cut blocks of at most `share` bytes, of a tensor of `total`. */
static inline dcommi_coded_cut dcommi_coded_cut_of(const dcommi_shape *s, dcomm_builder *b,
                                                   int64_t total, int64_t share)
{
    dcommi_coded_cut k = {.s = s, .b = b, .total = total, .chunks = 1};
    const dcommi_coding *coding = s->coding;
    int64_t wanted = s->chunk_bytes > 0 ? s->chunk_bytes : DCOMMI_CODED_CHUNK;
    wanted = dcommi_max64(wanted, dcommi_ceil_div(k.total, DCOMMI_CODED_CHUNKS));
    if (!coding->whole) {
        k.chunks = dcommi_max64(1, dcommi_ceil_div(share, wanted));
    }
    /* Begin chunks where the codec's own blocks begin, unless short chunks become uneven by it. */
    int64_t grain = 4 * dcommi_max64(coding->granule, 16);
    grain = share >= 8 * grain * k.chunks ? grain : 4;
    k.chunk = dcommi_ceil_div(dcommi_ceil_div(share, k.chunks), grain) * grain;
    k.block = k.chunk * k.chunks;
    size_t most = coding->max_bytes(coding->sizes, (size_t)k.chunk / 4);
    if (most > (size_t)INT64_MAX / 4096) {
        dcommi_build_error(b, dcommi_fail(DCOMM_ERR_UNSUPPORTED,
                                          "%s: %" PRId64 " elements may take any number of bytes",
                                          b->head.name, k.chunk / 4));
        most = 0;
    }
    k.encoded = (int64_t)most;
    k.stride = dcommi_ceil_div(dcommi_max64(k.encoded, 1), 64) * 64;
    b->head.codec = coding->codec;
    b->head.codec_length = coding->cost_length;
    b->head.codec_encode = coding->cost_encode;
    b->head.codec_decode = coding->cost_decode;
    return k;
}

/* Cut an all-reduce's tensor into equal blocks. */
static inline dcommi_coded_cut dcommi_coded_cut_make(const dcommi_shape *s, dcomm_builder *b,
                                                     int64_t nblocks)
{
    int64_t total = dcommi_shape_bytes(s, s->count);
    return dcommi_coded_cut_of(s, b, total, dcommi_ceil_div(total, nblocks));
}

/* One track: every `step`-th chunk from `first` on. */
typedef struct dcommi_coded_track {
    const dcommi_coded_cut *k;
    int lane; /* the first lane of the track */
    int64_t first, step, trips;
    int64_t window; /* slots of each kind */
    bool reuses;    /* there are fewer slots than chunks */
} dcommi_coded_track;

static inline int dcommi_coded_tracks(const dcommi_coded_cut *k)
{
    return (int)dcommi_min64(k->chunks, k->s->lanes > 1 ? k->s->lanes : DCOMMI_CODED_TRACKS);
}

static inline dcommi_coded_track dcommi_coded_track_make(const dcommi_coded_cut *k, int number,
                                                         int tracks, int lanes)
{
    dcommi_coded_track t = {.k = k, .lane = lanes * number, .first = number, .step = tracks};
    t.trips = (k->chunks - number - 1) / tracks + 1;
    t.window = dcommi_min64(t.trips, DCOMMI_CODED_WINDOW);
    t.reuses = t.window < t.trips;
    return t;
}

/* ---- places ---- */

/* Return scale * c + add, where c is the number of the chunk in the loop at depth u. */
static inline dcomm_expr dcommi_coded_chunk(const dcommi_coded_track *t, int u, int64_t scale,
                                            int64_t add)
{
    return dcomm_linear(add + scale * t->first, u, scale * t->step);
}

/* Return the chunk of the loop at depth u, in block `turn`. */
static inline dcomm_operand dcommi_coded_piece(const dcommi_coded_track *t, dcomm_space space,
                                               int u, dcommi_turn turn)
{
    const dcommi_coded_cut *k = t->k;
    int64_t n = k->s->nranks, at = k->chunk * t->first, step = k->chunk * t->step;
    dcomm_expr offset = dcomm_modular(k->block, turn.index, turn.depth, turn.coef, n);
    if (k->listed) {
        offset = dcomm_lookup(k->offsets, turn.index, turn.depth, turn.coef, n);
        offset.scale = sizeof(float);
    }
    dcomm_operand o = dcomm_at(space, dcomm_plus_loop(dcomm_plus(offset, at), u, step), k->chunk);
    if (k->listed) {
        dcomm_expr length = dcomm_lookup(k->lengths, turn.index, turn.depth, turn.coef, n);
        length.scale = sizeof(float);
        o.length = dcomm_plus_loop(dcomm_plus(length, -at), u, -step);
    } else {
        o.clip = k->total;
    }
    return o;
}

/* Return the number of the f32 at a byte offset. */
static inline dcomm_expr dcommi_coded_number(dcomm_expr offset)
{
    offset.add /= 4;
    offset.scale /= 4;
    for (int d = 0; d < DCOMM_LOOP_DEPTH; d++) {
        offset.post[d] /= 4;
    }
    return offset;
}

/* Return the number of slot index + per*i[v] of this chunk, which has n slots:
 * (n*i[u] + index + per*i[v]) mod (n * window). */
static inline dcomm_expr dcommi_coded_turn(const dcommi_coded_track *t, int64_t n, int u,
                                           int64_t index, int v, int64_t per)
{
    dcomm_expr e = dcomm_modular(1, index, u, n, n * t->window);
    e.coef[v] += per;
    return e;
}

/* Slots in scratch; words hold the lengths of the encodings in them. */
typedef struct dcommi_coded_slots {
    int64_t at, word;
    int64_t n; /* slots of each chunk */
} dcommi_coded_slots;

static inline dcommi_coded_slots dcommi_coded_slots_make(const dcommi_coded_track *t, int64_t n)
{
    dcomm_builder *b = t->k->b;
    dcommi_coded_slots slots = {.n = n, .word = b->head.nwords};
    slots.at = dcomm_build_scratch(b, n * t->window * t->k->stride);
    if (b->head.nwords + n * t->window > DCOMM_PLAN_MAX_WORDS) {
        dcommi_build_error(b, dcommi_fail(DCOMM_ERR_UNSUPPORTED, "%s: too many ranks for %d words",
                                          b->head.name, DCOMM_PLAN_MAX_WORDS));
    }
    b->head.nwords += (uint32_t)(n * t->window);
    return slots;
}

/* Return all the room of a slot. */
static inline dcomm_operand dcommi_coded_room(const dcommi_coded_track *t,
                                              const dcommi_coded_slots *slots, int u, int64_t index,
                                              int v, int64_t per)
{
    dcomm_expr offset = dcommi_coded_turn(t, slots->n, u, index, v, per);
    offset.scale = t->k->stride;
    return dcomm_at(DCOMM_SPACE_SCRATCH, dcomm_plus(offset, slots->at), t->k->encoded);
}

/* Return the encoding in a slot, whose length is in its word. */
static inline dcomm_operand dcommi_coded_held(const dcommi_coded_track *t,
                                              const dcommi_coded_slots *slots, int u, int64_t index,
                                              int v, int64_t per)
{
    dcomm_operand o = dcommi_coded_room(t, slots, u, index, v, per);
    o.length = dcommi_coded_turn(t, slots->n, u, index, v, per);
    o.length.kind = DCOMM_EXPR_WORD;
    o.length.first = slots->word;
    return o;
}

/* Write the encodings of all ranks in rank order as operands; slot n-1 is this rank's own. Return
 * the number of operands. */
static inline size_t dcommi_coded_all(const dcommi_coded_track *t, const dcommi_coded_slots *slots,
                                      int u, dcomm_operand out[2])
{
    int64_t n = t->k->s->nranks, rank = t->k->s->rank;
    out[0] = dcommi_coded_held(t, slots, u, n - 1 - rank, u, 0);
    out[0].repeat = (uint32_t)rank + 1;
    out[0].stride = t->k->stride;
    out[1] = dcommi_coded_held(t, slots, u, 0, u, 0);
    out[1].repeat = (uint32_t)(n - 1 - rank);
    out[1].stride = t->k->stride;
    return rank + 1 < n ? 2 : 1;
}

/* ---- steps ---- */

/* Encode the chunk of block `turn` of the input into a slot. */
static inline void dcommi_coded_encode(const dcommi_coded_track *t, int lane,
                                       const dcommi_coded_slots *slots, int u, int64_t index, int v,
                                       int64_t per, dcommi_turn turn)
{
    const dcommi_coded_cut *k = t->k;
    dcomm_step *step = dcommi_build_step(k->b, lane, DCOMM_STEP_ENCODE);
    if (step == NULL) {
        return;
    }
    dcomm_operand src = dcommi_coded_piece(t, dcommi_input_of(k->s, 0).space, u, turn);
    step->dst = dcommi_coded_room(t, slots, u, index, v, per);
    step->word = (int32_t)slots->word;
    step->value = dcommi_coded_turn(t, slots->n, u, index, v, per);
    step->index = dcommi_coded_number(src.offset);
    src.offset = dcomm_plus(src.offset, -k->before);
    dcommi_build_sources(k->b, step, &src, 1);
}

/* Decode into a piece of the output. before: bytes of the tensor that lie before the output. */
static inline void dcommi_coded_decode(dcomm_builder *b, int lane, dcomm_operand dst,
                                       int64_t before, const dcomm_operand *src, size_t n,
                                       unsigned flags)
{
    dcomm_step *step = dcommi_build_step(b, lane, DCOMM_STEP_DECODE);
    if (step != NULL) {
        step->dst = dst;
        step->dst.offset = dcomm_plus(dst.offset, -before);
        step->index = dcommi_coded_number(dst.offset);
        step->flags = (uint8_t)flags;
        dcommi_build_sources(b, step, src, n);
    }
}

/* Add `value` to one of this rank's counters. */
static inline void dcommi_coded_count(const dcommi_coded_track *t, int lane, uint16_t counter,
                                      int64_t value)
{
    dcomm_build_signal(t->k->b, lane, counter, dcomm_const(t->k->s->rank), dcomm_const(value));
}

/* Wait until another lane has counted this chunk. */
static inline void dcommi_coded_after(const dcommi_coded_track *t, int lane, uint16_t counter,
                                      int u)
{
    dcomm_build_wait(t->k->b, lane, counter, dcomm_linear(1, u, 1));
}

/* Start a counter of free slots, before the loop: the first chunks find all slots free. */
static inline void dcommi_coded_credit(const dcommi_coded_track *t, int lane, uint16_t counter)
{
    if (t->reuses) {
        dcommi_coded_count(t, lane, counter, t->window);
    }
}

/* Wait until a slot for this chunk is free. */
static inline void dcommi_coded_room_for(const dcommi_coded_track *t, int lane, uint16_t counter,
                                         int u)
{
    if (t->reuses) {
        dcommi_coded_after(t, lane, counter, u);
    }
}

/* Start to send a chunk to each other rank: slot d to the d-th, or slot `only` to all (-1: not).
 * fixed: all slots are full, so that they need no words. */
static inline void dcommi_coded_to_others(const dcommi_coded_track *t, int lane,
                                          const dcommi_coded_slots *slots, int u, int64_t only,
                                          dcomm_expr tag, bool fixed)
{
    dcomm_builder *b = t->k->b;
    const dcommi_shape *s = t->k->s;
    int d = dcomm_build_loop(b, lane, dcomm_const(s->nranks - 1));
    int64_t index = dcommi_max64(only, 0), per = only < 0;
    dcomm_build_send(b, lane,
                     fixed ? dcommi_coded_room(t, slots, u, index, d, per)
                           : dcommi_coded_held(t, slots, u, index, d, per),
                     dcommi_rank_at(s->nranks, dcommi_others(s, d)), tag, DCOMM_STEP_ASYNC);
    dcomm_build_end(b, lane);
}

/* Start to receive a chunk from each other rank into its slot. */
static inline void dcommi_coded_from_others(const dcommi_coded_track *t, int lane,
                                            const dcommi_coded_slots *slots, int u, dcomm_expr tag,
                                            bool fixed)
{
    dcomm_builder *b = t->k->b;
    const dcommi_shape *s = t->k->s;
    int d = dcomm_build_loop(b, lane, dcomm_const(s->nranks - 1));
    dcomm_step *step = dcommi_build_step(b, lane, DCOMM_STEP_RECV);
    if (step != NULL) {
        step->flags = DCOMM_STEP_ASYNC;
        step->dst = dcommi_coded_room(t, slots, u, 0, d, 1);
        step->peer = dcommi_rank_at(s->nranks, dcommi_others(s, d));
        step->tag = tag;
        if (!fixed) {
            step->word = (int32_t)slots->word;
            step->value = dcommi_coded_turn(t, slots->n, u, 0, d, 1);
        }
    }
    dcomm_build_end(b, lane);
}

/* Build a lane that sends each chunk to all others when it is `ready`, and counts it in `sent`. */
static inline void dcommi_coded_sender(const dcommi_coded_track *t, int lane,
                                       const dcommi_coded_slots *slots, int64_t only,
                                       uint16_t ready, uint16_t sent, int64_t tag)
{
    dcomm_builder *b = t->k->b;
    int u = dcomm_build_loop(b, lane, dcomm_const(t->trips));
    dcommi_coded_after(t, lane, ready, u);
    dcommi_coded_to_others(t, lane, slots, u, only, dcommi_coded_chunk(t, u, 1, tag), false);
    dcomm_build_fence(b, lane);
    dcommi_coded_count(t, lane, sent, 1);
    dcomm_build_end(b, lane);
}

/* Build a lane that receives each chunk from all others when the slots are `vacant`, and counts it
 * in `received`. */
static inline void dcommi_coded_receiver(const dcommi_coded_track *t, int lane,
                                         const dcommi_coded_slots *slots, uint16_t vacant,
                                         uint16_t received, int64_t tag)
{
    dcomm_builder *b = t->k->b;
    int u = dcomm_build_loop(b, lane, dcomm_const(t->trips));
    dcommi_coded_room_for(t, lane, vacant, u);
    dcommi_coded_from_others(t, lane, slots, u, dcommi_coded_chunk(t, u, 1, tag), false);
    dcomm_build_fence(b, lane);
    dcommi_coded_count(t, lane, received, 1);
    dcomm_build_end(b, lane);
}

static inline dcomm_status dcommi_coded_able(const dcommi_shape *s, const dcomm_builder *b)
{
    if (s->coding == NULL) {
        return dcommi_fail(DCOMM_ERR_UNSUPPORTED, "%s needs a codec", b->head.name);
    }
    if (s->dtype != DCOMM_F32 || (s->op != DCOMM_SUM && s->op != DCOMM_AVG)) {
        return dcommi_fail(DCOMM_ERR_UNSUPPORTED, "%s: %s of %s has no compressed form",
                           b->head.name, dcomm_op_name(s->op), dcomm_dtype_name(s->dtype));
    }
    return DCOMM_OK;
}

/* ---- all-gather of encodings ---- */

/* Send an encoding of block `turn` of the input to all. Add up all ranks' encodings or, if
 * `apart`, decode each into its rank's block. */
static void dcommi_coded_allgather_track(const dcommi_coded_track *t, int64_t tag, dcommi_turn turn,
                                         bool apart)
{
    dcomm_builder *b = t->k->b;
    int64_t n = t->k->s->nranks;
    dcommi_coded_slots slots = dcommi_coded_slots_make(t, n);
    uint16_t encoded = dcomm_build_counter(b), sent = dcomm_build_counter(b);
    uint16_t received = dcomm_build_counter(b), added = dcomm_build_counter(b);

    int lane = t->lane;
    dcommi_coded_credit(t, lane, sent);
    dcommi_coded_credit(t, lane, added);
    int u = dcomm_build_loop(b, lane, dcomm_const(t->trips));
    dcommi_coded_room_for(t, lane, sent, u);
    dcommi_coded_room_for(t, lane, added, u);
    dcommi_coded_encode(t, lane, &slots, u, n - 1, u, 0, turn);
    dcommi_coded_count(t, lane, encoded, 1);
    dcomm_build_end(b, lane);

    dcommi_coded_sender(t, lane + 1, &slots, n - 1, encoded, sent, tag);
    dcommi_coded_receiver(t, lane + 2, &slots, added, received, tag);

    lane = t->lane + 3;
    u = dcomm_build_loop(b, lane, dcomm_const(t->trips));
    dcommi_coded_after(t, lane, encoded, u);
    dcommi_coded_after(t, lane, received, u);
    if (apart) { /* slot n-1 is this rank's own */
        int d = dcomm_build_loop(b, lane, dcomm_const(n));
        dcomm_operand theirs = dcommi_coded_held(t, &slots, u, 0, d, 1);
        dcommi_turn block = dcommi_others(t->k->s, d);
        dcommi_coded_decode(b, lane, dcommi_coded_piece(t, DCOMM_SPACE_OUT, u, block), 0, &theirs,
                            1, 0);
        dcomm_build_end(b, lane);
    } else {
        dcomm_operand all[2];
        size_t count = dcommi_coded_all(t, &slots, u, all);
        dcommi_coded_decode(b, lane, dcommi_coded_piece(t, DCOMM_SPACE_OUT, u, turn), 0, all, count,
                            DCOMM_STEP_FINAL);
    }
    dcommi_coded_count(t, lane, added, 1);
    dcomm_build_end(b, lane);
}

static dcomm_status dcommi_coded_allgather(const dcommi_shape *s, dcomm_builder *b)
{
    DCOMMI_TRY(dcommi_coded_able(s, b));
    dcommi_coded_cut k = dcommi_coded_cut_make(s, b, 1);
    int tracks = dcommi_coded_tracks(&k);
    int64_t tag = dcomm_build_tags(b, k.chunks);
    for (int i = 0; i < tracks; i++) {
        dcommi_coded_track t = dcommi_coded_track_make(&k, i, tracks, 4);
        dcommi_coded_allgather_track(&t, tag, dcommi_turn_at(0), false);
    }
    return b->status;
}

/* ---- two shots ---- */

/* Build the owner's step: add all contributions to a chunk and encode the sum. */
static void dcommi_coded_owner(const dcommi_coded_track *t, int lane, int u,
                               const dcommi_coded_slots *in, const dcommi_coded_slots *out,
                               int64_t sum)
{
    const dcommi_coded_cut *k = t->k;
    dcomm_builder *b = k->b;
    int64_t begin = k->s->rank * k->block, room = dcommi_max64(k->total - begin, 0);
    dcomm_step *step = dcommi_build_step(b, lane, DCOMM_STEP_RECODE);
    if (step == NULL) {
        return;
    }
    dcomm_operand src[2];
    size_t n = dcommi_coded_all(t, in, u, src);
    step->flags = DCOMM_STEP_FINAL;
    step->slot = 1;
    step->dst = dcommi_coded_room(t, out, u, 0, u, 0);
    step->word = (int32_t)out->word;
    step->value = dcommi_coded_turn(t, 1, u, 0, u, 0);
    step->index = dcommi_coded_chunk(t, u, k->chunk / 4, begin / 4);
    step->stage = dcomm_span(DCOMM_SPACE_SCRATCH, sum, k->chunk);
    step->stage.length = dcommi_coded_chunk(t, u, -k->chunk, room);
    dcommi_build_sources(b, step, src, n);
}

/* Build the first three lanes of a track: encode all blocks, send each to its owner, receive this
 * rank's block of the others. The counters are those of chunks encoded, sent, received, and of
 * vacant slots of `in`. */
static void dcommi_coded_exchange(const dcommi_coded_track *t, const dcommi_coded_slots *out,
                                  const dcommi_coded_slots *in, const uint16_t counter[4],
                                  int64_t tag)
{
    const dcommi_shape *s = t->k->s;
    dcomm_builder *b = t->k->b;
    int64_t n = s->nranks;
    int lane = t->lane;
    dcommi_coded_credit(t, lane, counter[1]);
    dcommi_coded_credit(t, lane, counter[3]);
    int u = dcomm_build_loop(b, lane, dcomm_const(t->trips));
    dcommi_coded_room_for(t, lane, counter[1], u);
    int d = dcomm_build_loop(b, lane, dcomm_const(n - 1));
    dcommi_coded_encode(t, lane, out, u, 0, d, 1, dcommi_others(s, d));
    dcomm_build_end(b, lane);
    dcommi_coded_room_for(t, lane, counter[3], u);
    dcommi_coded_encode(t, lane, in, u, n - 1, u, 0, dcommi_turn_at(s->rank));
    dcommi_coded_count(t, lane, counter[0], 1);
    dcomm_build_end(b, lane);
    dcommi_coded_sender(t, lane + 1, out, -1, counter[0], counter[1], tag);
    dcommi_coded_receiver(t, lane + 2, in, counter[3], counter[2], tag);
}

static void dcommi_coded_two_shot_track(const dcommi_coded_track *t, int64_t tag, int64_t tag2)
{
    const dcommi_shape *s = t->k->s;
    dcomm_builder *b = t->k->b;
    int64_t n = s->nranks;
    dcommi_coded_slots out = dcommi_coded_slots_make(t, n - 1), in = dcommi_coded_slots_make(t, n);
    dcommi_coded_slots sums = dcommi_coded_slots_make(t, 1);
    dcommi_coded_slots results = dcommi_coded_slots_make(t, n - 1);
    int64_t sum = dcomm_build_scratch(b, t->k->chunk);
    uint16_t encoded = dcomm_build_counter(b), sent = dcomm_build_counter(b);
    uint16_t received = dcomm_build_counter(b), added = dcomm_build_counter(b);
    uint16_t vacant = dcomm_build_counter(b), returned = dcomm_build_counter(b);
    uint16_t arrived = dcomm_build_counter(b), decoded = dcomm_build_counter(b);

    dcommi_coded_exchange(t, &out, &in, (const uint16_t[]){encoded, sent, received, vacant}, tag);

    int lane = t->lane + 3;
    dcommi_coded_credit(t, lane, returned);
    int u = dcomm_build_loop(b, lane, dcomm_const(t->trips));
    dcommi_coded_after(t, lane, encoded, u);
    dcommi_coded_after(t, lane, received, u);
    dcommi_coded_room_for(t, lane, returned, u);
    dcommi_coded_owner(t, lane, u, &in, &sums, sum);
    dcommi_coded_count(t, lane, added, 1);
    if (t->reuses) {
        dcommi_coded_count(t, lane, vacant, 1);
    }
    dcomm_operand own = dcommi_coded_held(t, &sums, u, 0, u, 0);
    dcommi_coded_decode(b, lane, dcommi_coded_piece(t, DCOMM_SPACE_OUT, u, dcommi_turn_at(s->rank)),
                        0, &own, 1, 0);
    dcomm_build_end(b, lane);

    dcommi_coded_sender(t, lane + 1, &sums, 0, added, returned, tag2);
    dcommi_coded_receiver(t, lane + 2, &results, decoded, arrived, tag2);

    lane = t->lane + 6;
    dcommi_coded_credit(t, lane, decoded);
    u = dcomm_build_loop(b, lane, dcomm_const(t->trips));
    dcommi_coded_after(t, lane, arrived, u);
    int d = dcomm_build_loop(b, lane, dcomm_const(n - 1));
    dcomm_operand theirs = dcommi_coded_held(t, &results, u, 0, d, 1);
    dcommi_coded_decode(b, lane, dcommi_coded_piece(t, DCOMM_SPACE_OUT, u, dcommi_others(s, d)), 0,
                        &theirs, 1, 0);
    dcomm_build_end(b, lane);
    if (t->reuses) {
        dcommi_coded_count(t, lane, decoded, 1);
    }
    dcomm_build_end(b, lane);
}

static dcomm_status dcommi_coded_two_shot(const dcommi_shape *s, dcomm_builder *b)
{
    DCOMMI_TRY(dcommi_coded_able(s, b));
    dcommi_coded_cut k = dcommi_coded_cut_make(s, b, s->nranks);
    int tracks = dcommi_coded_tracks(&k);
    int64_t tag = dcomm_build_tags(b, k.chunks), tag2 = dcomm_build_tags(b, k.chunks);
    int64_t begin = dcommi_min64(s->rank * k.block, k.total);
    b->head.recoded_first = begin / 4;
    b->head.recoded_count = dcommi_min64(k.block, k.total - begin) / 4;
    for (int i = 0; i < tracks; i++) {
        dcommi_coded_track t = dcommi_coded_track_make(&k, i, tracks, 7);
        dcommi_coded_two_shot_track(&t, tag, tag2);
    }
    return b->status;
}

#endif
