/* ring.h - compressed ring all-reduce, for comparison: every hop decodes what comes,
 * adds its own contribution and encodes the partial sum again. 2(N-1)/N encodings per rank like two
 * shots, but N roundings of growing sums: the error grows with N (docs/codecs.md). The all-gather
 * passes encodings on as they are, so all ranks end with the same bits.
 *
 * Each rank encodes each block once: the partial sum up to itself. So its residual is of the whole
 * tensor, and what it rounds away of others' contributions is in it. An average is divided where it
 * is decoded, for residuals to be those of sums on each hop. */
#ifndef DCOMMI_ALGO_CODED_RING_H
#define DCOMMI_ALGO_CODED_RING_H

#include "coded.h"

/* Two slots per track take turns: step v receives into slot (v + 1) mod 2 and sends from the other.
 */
typedef struct dcommi_coded_hops {
    const dcommi_coded_track *t;
    dcommi_coded_slots slots;
    int64_t sum; /* scratch for a partial sum */
    int64_t tag;
    int u; /* depth of the loop over chunks */
} dcommi_coded_hops;

/* Slot (first + i[v]) mod 2: its room, or what it holds. */
static inline dcomm_operand dcommi_coded_hop_slot(const dcommi_coded_hops *h, bool held,
                                                  int64_t first, int v)
{
    dcomm_expr turn = dcommi_modular(1, first, v, 1, 2), offset = turn;
    offset.scale = h->t->k->stride;
    dcomm_operand o =
        dcommi_at(DCOMM_SPACE_SCRATCH, dcommi_plus(offset, h->slots.at), h->t->k->encoded);
    if (held) {
        o.length = turn;
        o.length.kind = DCOMM_EXPR_WORD;
        o.length.first = h->slots.word;
    }
    return o;
}

/* A block's chunk: of rank `first` - i[v]. */
static inline dcomm_operand dcommi_coded_hop_block(const dcommi_coded_hops *h, dcomm_space space,
                                                   int64_t first, int v)
{
    dcommi_turn turn = {first, v, -1};
    return dcommi_coded_piece(h->t, space, h->u, turn);
}

/* Send what slot `first` holds and receive into the other; both in step i[v] + `number`. */
static void dcommi_coded_hop(const dcommi_coded_hops *h, int64_t first, int64_t number, int v)
{
    const dcommi_shape *s = h->t->k->s;
    dcommi_builder *b = h->t->k->b;
    int lane = h->t->lane;
    int64_t n = s->nranks;
    dcomm_expr tag = dcommi_coded_chunk(h->t, h->u, 2 * (n - 1), h->tag + number);
    tag = dcommi_plus_loop(tag, v, 1);
    dcommi_send(b, lane, dcommi_coded_hop_slot(h, true, first, v), dcommi_const((s->rank + 1) % n),
                tag, DCOMM_STEP_ASYNC);
    dcomm_step *step = dcommi_build_step(b, lane, DCOMM_STEP_RECV);
    if (step != NULL) {
        step->dst = dcommi_coded_hop_slot(h, false, first + 1, v);
        step->peer = dcommi_const((s->rank + n - 1) % n);
        step->tag = tag;
        step->word = (int32_t)h->slots.word;
        step->value = dcommi_modular(1, first + 1, v, 1, 2);
    }
    dcommi_fence(b, lane);
}

/* Encode `src`, block `block` - i[v], into slot `first`. */
static void dcommi_coded_hop_encode(const dcommi_coded_hops *h, dcomm_operand src, int64_t block,
                                    int64_t first, int v)
{
    const dcommi_coded_cut *k = h->t->k;
    dcomm_step *step = dcommi_build_step(k->b, h->t->lane, DCOMM_STEP_ENCODE);
    if (step != NULL) {
        step->dst = dcommi_coded_hop_slot(h, false, first, v);
        step->word = (int32_t)h->slots.word;
        step->value = dcommi_modular(1, first, v, 1, 2);
        step->index =
            dcommi_coded_number(dcommi_coded_hop_block(h, DCOMM_SPACE_NONE, block, v).offset);
        dcommi_build_sources(k->b, step, &src, 1);
    }
}

/* The reduce-scatter. */
static void dcommi_coded_hops_reduce(const dcommi_coded_hops *h)
{
    const dcommi_shape *s = h->t->k->s;
    dcommi_builder *b = h->t->k->b;
    int lane = h->t->lane;
    int64_t trips = s->nranks - 1, block = s->rank - 1;
    int v = dcommi_loop_many(b, lane, trips);
    dcommi_coded_hop(h, 0, 0, v);
    dcomm_operand in = dcommi_coded_hop_block(h, dcommi_input_of(s, 0).space, block, v), sum = in;
    sum.space = DCOMM_SPACE_SCRATCH;
    sum.offset = dcommi_const(h->sum);
    sum.clip = 0;
    /* As long as the block's chunk, which is cut off at the end of the buffer. */
    sum.length = dcommi_plus(in.offset, -h->t->k->total);
    sum.length.scale = -sum.length.scale;
    sum.length.add = -sum.length.add;
    for (int d = 0; d < DCOMM_LOOP_DEPTH; d++) {
        sum.length.post[d] = -sum.length.post[d];
    }
    dcommi_copy(b, lane, sum, in, 0);
    dcomm_operand arrived = dcommi_coded_hop_slot(h, true, 1, v);
    dcomm_step *step = dcommi_build_step(b, lane, DCOMM_STEP_DECODE_REDUCE);
    if (step != NULL) {
        step->dst = sum;
        dcommi_build_sources(b, step, &arrived, 1);
    }
    dcommi_coded_hop_encode(h, sum, block, 1, v);
    dcommi_end_many(b, lane, trips);
}

static void dcommi_coded_ring_track(const dcommi_coded_track *t, int64_t tag)
{
    const dcommi_shape *s = t->k->s;
    dcommi_builder *b = t->k->b;
    int64_t n = s->nranks;
    dcommi_coded_track one = *t;
    one.window = 1;
    dcommi_coded_hops h = {.t = t, .slots = dcommi_coded_slots_make(&one, 2), .tag = tag};
    h.sum = dcommi_build_scratch(b, t->k->chunk);
    h.u = dcommi_loop_many(b, t->lane, t->trips);
    int idle = DCOMM_LOOP_DEPTH - 1; /* of a loop that nobody opens */
    dcomm_operand in = dcommi_coded_hop_block(&h, dcommi_input_of(s, 0).space, s->rank, idle);
    dcommi_coded_hop_encode(&h, in, s->rank, 0, idle);
    dcommi_coded_hops_reduce(&h);
    dcomm_operand own = dcommi_coded_hop_slot(&h, true, n - 1, idle);
    dcommi_coded_decode(b, t->lane, dcommi_coded_hop_block(&h, DCOMM_SPACE_OUT, s->rank + 1, idle),
                        &own, 1, DCOMM_STEP_FINAL);
    int v = dcommi_loop_many(b, t->lane, n - 1);
    dcommi_coded_hop(&h, n - 1, n - 1, v);
    dcomm_operand arrived = dcommi_coded_hop_slot(&h, true, n, v);
    dcommi_coded_decode(b, t->lane, dcommi_coded_hop_block(&h, DCOMM_SPACE_OUT, s->rank, v),
                        &arrived, 1, DCOMM_STEP_FINAL);
    dcommi_end_many(b, t->lane, n - 1);
    dcommi_end_many(b, t->lane, t->trips);
}

static dcomm_status dcommi_coded_ring(const dcommi_shape *s, dcommi_builder *b)
{
    DCOMMI_TRY(dcommi_coded_able(s, b));
    if (s->coding->variant) {
        return dcommi_fail(DCOMM_ERR_UNSUPPORTED,
                           "coded_ring encodes partial sums, of which EF21's differences and DGC's "
                           "momentum are no part; it takes classic feedback");
    }
    dcommi_coded_cut k = dcommi_coded_cut_make(s, b, s->nranks);
    int tracks = dcommi_coded_tracks(&k);
    int64_t tag = dcommi_build_tags(b, 2 * (s->nranks - 1) * k.chunks);
    for (int i = 0; i < tracks; i++) {
        dcommi_coded_track t = dcommi_coded_track_make(&k, i, tracks, 1);
        dcommi_coded_ring_track(&t, tag);
    }
    return b->status;
}

#endif
