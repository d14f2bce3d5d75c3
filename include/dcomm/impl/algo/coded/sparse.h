/* sparse.h - compressed all-reduce for codecs that select elements, after Ok-Topk (Li and Hoefler,
 * PPoPP 2022).
 *
 * 1. Each rank selects elements, and sends samples of their numbers to all.
 * 2. From the samples all ranks compute the same regions of the index space, which hold about
 *    equally many of the selected elements.
 * 3. Each rank sends the elements of a region to its owner, which adds them and selects again.
 * 4. The owner sends the result to all.
 *
 * A rank sends 2(N-1)/N encodings for any N, and the result has as many elements as one rank
 * selects. An all-gather would send N-1 encodings, and its result would have more elements.
 *
 * The elements of a region are known at run time only. In the plan, block d of an equal partition
 * stands for region d, whose number is `index`: the checker proves that each region is added up
 * once, in rank order, and reaches all ranks. Steps before the first DECODE of a result read the
 * input, and those after it write the output, so it does not matter where the regions lie. */
#ifndef DCOMMI_ALGO_CODED_SPARSE_H
#define DCOMMI_ALGO_CODED_SPARSE_H

#include "coded.h"

/* The kind of an encoding: `slot` of the codec's steps. */
enum {
    DCOMMI_SPREAD_SELECT = 0,  /* all elements: select some */
    DCOMMI_SPREAD_OWNER = 1,   /* the sum of a region */
    DCOMMI_SPREAD_SAMPLES = 2, /* numbers of selected elements, without values */
    DCOMMI_SPREAD_PART = 3,    /* the selected elements of a region */
    DCOMMI_SPREAD_RESULT = 4   /* the result of a region, decoded */
};

/* Return the cut with one chunk in a block, and slots for `encoded` bytes. */
static inline dcommi_coded_cut dcommi_spread_cut(const dcommi_coded_cut *k, int64_t encoded)
{
    dcommi_coded_cut c = *k;
    c.chunk = c.block;
    c.chunks = 1;
    c.encoded = encoded;
    c.stride = dcommi_ceil_div(encoded, 64) * 64;
    return c;
}

/* Slots for one kind of encoding. */
typedef struct dcommi_spread_kind {
    dcommi_coded_cut k;
    dcommi_coded_track t;
    dcommi_coded_slots slots;
    int64_t tag;
} dcommi_spread_kind;

static inline void dcommi_spread_kind_make(dcommi_spread_kind *q, const dcommi_coded_cut *k,
                                           int64_t encoded, int64_t slots)
{
    q->k = dcommi_spread_cut(k, encoded);
    q->t = (dcommi_coded_track){.k = &q->k, .step = 1, .trips = 1, .window = 1};
    q->slots = dcommi_coded_slots_make(&q->t, slots);
    q->tag = dcomm_build_tags(k->b, 1);
}

/* A loop that is never opened. */
enum { DCOMMI_SPREAD_IDLE = DCOMM_LOOP_DEPTH - 1 };

/* Encode into slot index + per*i[v]. round: the kind of the encoding; region: its region. */
static void dcommi_spread_encode(const dcommi_spread_kind *q, int round, dcomm_operand src,
                                 int64_t index, int v, int64_t per, dcomm_expr region)
{
    dcomm_step *step = dcommi_build_step(q->k.b, 0, DCOMM_STEP_ENCODE);
    if (step != NULL) {
        step->slot = (uint16_t)round;
        step->dst = dcommi_coded_room(&q->t, &q->slots, DCOMMI_SPREAD_IDLE, index, v, per);
        if (round != DCOMMI_SPREAD_SAMPLES) { /* their length is constant */
            step->word = (int32_t)q->slots.word;
            step->value = dcommi_coded_turn(&q->t, q->slots.n, DCOMMI_SPREAD_IDLE, index, v, per);
        }
        step->index = region;
        dcommi_build_sources(q->k.b, step, &src, 1);
    }
}

/* Return the encoding in slot index + per*i[v]. */
static dcomm_operand dcommi_spread_held(const dcommi_spread_kind *q, int64_t index, int v,
                                        int64_t per)
{
    return dcommi_coded_held(&q->t, &q->slots, DCOMMI_SPREAD_IDLE, index, v, per);
}

/* Start to receive from each other rank into its slot. */
static void dcommi_spread_receive(const dcommi_spread_kind *q, bool fixed)
{
    dcommi_coded_from_others(&q->t, 0, &q->slots, DCOMMI_SPREAD_IDLE, dcomm_const(q->tag), fixed);
}

/* Start to send this rank's own slot to each other rank. */
static void dcommi_spread_tell(const dcommi_spread_kind *q, bool fixed)
{
    dcommi_coded_to_others(&q->t, 0, &q->slots, DCOMMI_SPREAD_IDLE, q->k.s->nranks - 1,
                           dcomm_const(q->tag), fixed);
}

/* Compute the regions from the samples of all ranks, in rank order. The step writes no bytes. */
static void dcommi_spread_regions(const dcommi_spread_kind *q)
{
    dcomm_builder *b = q->k.b;
    dcomm_operand all[2];
    size_t n = dcommi_coded_all(&q->t, &q->slots, DCOMMI_SPREAD_IDLE, all);
    for (size_t i = 0; i < n; i++) {
        all[i].length = dcomm_const(q->k.encoded);
    }
    dcomm_step *step = dcommi_build_step(b, 0, DCOMM_STEP_DECODE);
    if (step != NULL) {
        step->slot = DCOMMI_SPREAD_SAMPLES;
        step->dst = dcomm_span(DCOMM_SPACE_OUT, 0, 0);
        dcommi_build_sources(b, step, all, n);
    }
}

/* Add up this rank's region and encode the sum. */
static void dcommi_spread_owner(const dcommi_spread_kind *in, const dcommi_spread_kind *out)
{
    const dcommi_coded_cut *k = &in->k;
    int64_t n = k->s->nranks, begin = k->s->rank * k->block;
    dcomm_step *step = dcommi_build_step(k->b, 0, DCOMM_STEP_RECODE);
    if (step == NULL) {
        return;
    }
    dcomm_operand src[2];
    size_t sources = dcommi_coded_all(&in->t, &in->slots, DCOMMI_SPREAD_IDLE, src);
    step->flags = DCOMM_STEP_FINAL;
    step->slot = DCOMMI_SPREAD_OWNER;
    step->dst =
        dcommi_coded_room(&out->t, &out->slots, DCOMMI_SPREAD_IDLE, n - 1, DCOMMI_SPREAD_IDLE, 0);
    step->word = (int32_t)out->slots.word;
    step->value = dcomm_const(n - 1);
    step->index = dcomm_const(k->s->rank);
    step->stage = dcomm_span(DCOMM_SPACE_SCRATCH, dcomm_build_scratch(k->b, k->block),
                             dcommi_max64(0, dcommi_min64(k->block, k->total - begin)));
    dcommi_build_sources(k->b, step, src, sources);
}

/* Decode all results in the order of regions. The codec learns the beginning of the output from
 * the first step, whose dst is block 0. */
static void dcommi_spread_decode(const dcommi_spread_kind *q)
{
    const dcommi_shape *s = q->k.s;
    dcomm_builder *b = q->k.b;
    int64_t n = s->nranks;
    int d = dcomm_build_loop(b, 0, dcomm_const(n));
    dcommi_turn region = {0, d, 1};
    dcomm_operand src = dcommi_spread_held(q, n - 1 - s->rank, d, 1);
    dcomm_step *step = dcommi_build_step(b, 0, DCOMM_STEP_DECODE);
    if (step != NULL) {
        step->slot = DCOMMI_SPREAD_RESULT;
        step->dst = dcommi_coded_piece(&q->t, DCOMM_SPACE_OUT, DCOMMI_SPREAD_IDLE, region);
        step->index = dcommi_rank_at(n, region);
        dcommi_build_sources(b, step, &src, 1);
    }
    dcomm_build_end(b, 0);
}

/* Set the costs for the model. Only the selection reads all elements. Later steps read the k
 * selected ones; each is priced as 64 copies of an element. Slots have room for k elements, of
 * which a part for one rank has about 1/N. */
static void dcommi_spread_costs(const dcommi_coded_cut *k)
{
    const dcommi_coding *coding = k->s->coding;
    dcomm_plan *head = &k->b->head;
    int64_t length = coding->cost_length > 0 ? coding->cost_length : 1024;
    int64_t work = 64 * 1024 * coding->most / dcommi_max64(k->total / 4, 1);
    head->codec = coding->spread;
    head->scratch_on_host = true; /* only the input and the result are in device memory */
    head->codec_length = (uint32_t)dcommi_max64(1, length / k->s->nranks);
    head->codec_later = (uint32_t)dcommi_max64(1, dcommi_min64(work, 1024));
}

static dcomm_status dcommi_coded_sparse(const dcommi_shape *s, dcomm_builder *b)
{
    DCOMMI_TRY(dcommi_coded_able(s, b));
    const dcommi_coding *coding = s->coding;
    if (coding->spread == NULL) {
        return dcommi_fail(DCOMM_ERR_UNSUPPORTED,
                           "coded_sparse is for codecs that select elements "
                           "and send each value on its own: topk, threshold");
    }
    dcommi_coded_cut k = dcommi_coded_cut_make(s, b, s->nranks);
    int64_t n = s->nranks, own = n - 1;
    int64_t part = (int64_t)coding->part_bytes(coding->sizes, s->count, (size_t)coding->most);
    int64_t samples = (int64_t)coding->samples(coding->sizes, s->count, (size_t)n);
    dcommi_spread_kind all, sample, out, in, result;
    dcommi_spread_costs(&k);
    dcommi_spread_kind_make(&all, &k, part, 1);
    dcommi_spread_kind_make(&sample, &k, 4 * (samples + 1), n);
    dcommi_spread_kind_make(&out, &k, part, n - 1);
    dcommi_spread_kind_make(&in, &k, part, n);
    size_t quota = (size_t)dcommi_ceil_div(coding->most, n); /* elements that an owner keeps */
    dcommi_spread_kind_make(&result, &k,
                            (int64_t)coding->part_bytes(coding->sizes, s->count, quota) + 4, n);
    dcomm_space space = dcommi_input_of(s, 0).space;
    int idle = DCOMMI_SPREAD_IDLE;

    dcommi_spread_receive(&sample, true);
    dcommi_spread_encode(&all, DCOMMI_SPREAD_SELECT, dcomm_span(space, 0, k.total), 0, idle, 0,
                         dcomm_const(0));
    dcommi_spread_encode(&sample, DCOMMI_SPREAD_SAMPLES, dcomm_span(space, 0, 0), own, idle, 0,
                         dcomm_const(0));
    dcommi_spread_tell(&sample, true);
    dcomm_build_fence(b, 0);
    dcommi_spread_regions(&sample);

    dcommi_spread_receive(&in, false);
    int d = dcomm_build_loop(b, 0, dcomm_const(n - 1));
    dcommi_turn others = dcommi_others(s, d);
    dcommi_spread_encode(&out, DCOMMI_SPREAD_PART, dcommi_coded_piece(&out.t, space, idle, others),
                         0, d, 1, dcommi_rank_at(n, others));
    dcomm_build_send(b, 0, dcommi_spread_held(&out, 0, d, 1), dcommi_rank_at(n, others),
                     dcomm_const(in.tag), DCOMM_STEP_ASYNC);
    dcomm_build_end(b, 0);
    dcommi_turn mine = dcommi_turn_at(s->rank);
    dcommi_spread_encode(&in, DCOMMI_SPREAD_PART, dcommi_coded_piece(&in.t, space, idle, mine), own,
                         idle, 0, dcomm_const(s->rank));
    dcomm_build_fence(b, 0);
    dcommi_spread_owner(&in, &result);
    dcommi_spread_receive(&result, false);
    dcommi_spread_tell(&result, false);
    dcomm_build_fence(b, 0);
    dcommi_spread_decode(&result);
    return b->status;
}

#endif
