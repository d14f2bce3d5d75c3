/* sparse.h - compressed all-reduce for codecs that send some elements only, after
 * Ok-Topk (Li and Hoefler, PPoPP 2022): each rank selects, all agree on regions of the index space
 * that hold about equally many of the selected elements, the owner of a region adds up what was
 * selected of it and selects again, and everybody gets its result. 2(N-1)/N encodings per rank,
 * whatever N, and the result has as many elements as one rank selects: an all-gather sends N-1
 * encodings, and its sums fill in.
 *
 *   select; send samples of it -> regions; send parts -> owner: sum, select; send results
 *
 * Which elements a region holds is known at run time only. In the plan, block d of an equal
 * partition stands for region d, whose number is `index`: the checker proves that each region is
 * added up once, in rank order, and reaches everybody. Steps before the first DECODE of a result
 * read the input, those after write the output, so that it does not matter where regions lie. */
#ifndef DCOMMI_ALGO_CODED_SPARSE_H
#define DCOMMI_ALGO_CODED_SPARSE_H

#include "coded.h"

/* Which encoding it is: `slot` of the codec's steps. */
enum {
    DCOMMI_SPREAD_SELECT = 0,  /* of all elements */
    DCOMMI_SPREAD_OWNER = 1,   /* of a region's sum */
    DCOMMI_SPREAD_SAMPLES = 2, /* of no element: where those that were selected lie */
    DCOMMI_SPREAD_PART = 3,    /* of a region of what was selected */
    DCOMMI_SPREAD_RESULT = 4   /* decoded */
};

/* One chunk, and slots of another length. */
static inline dcommi_coded_cut dcommi_spread_cut(const dcommi_coded_cut *k, int64_t encoded)
{
    dcommi_coded_cut c = *k;
    c.chunk = c.block;
    c.chunks = 1;
    c.encoded = encoded;
    c.stride = dcommi_ceil_div(encoded, 64) * 64;
    return c;
}

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

/* The loop that nobody opens. */
enum { DCOMMI_SPREAD_IDLE = DCOMM_LOOP_DEPTH - 1 };

/* ENCODE into slot `index`, or index + i[v] by number of region. */
static void dcommi_spread_encode(const dcommi_spread_kind *q, int round, dcomm_operand src,
                                 int64_t index, int v, int64_t per, dcomm_expr region)
{
    dcomm_step *step = dcommi_build_step(q->k.b, 0, DCOMM_STEP_ENCODE);
    if (step != NULL) {
        step->slot = (uint16_t)round;
        step->dst = dcommi_coded_room(&q->t, &q->slots, DCOMMI_SPREAD_IDLE, index, v, per);
        if (round != DCOMMI_SPREAD_SAMPLES) { /* which are always as long */
            step->word = (int32_t)q->slots.word;
            step->value = dcommi_coded_turn(&q->t, q->slots.n, DCOMMI_SPREAD_IDLE, index, v, per);
        }
        step->index = region;
        dcommi_build_sources(q->k.b, step, &src, 1);
    }
}

/* Slot `index` + i[v] as it is sent. */
static dcomm_operand dcommi_spread_held(const dcommi_spread_kind *q, int64_t index, int v,
                                        int64_t per)
{
    return dcommi_coded_held(&q->t, &q->slots, DCOMMI_SPREAD_IDLE, index, v, per);
}

/* Receive from each other rank into its slot. */
static void dcommi_spread_receive(const dcommi_spread_kind *q, bool fixed)
{
    dcommi_coded_from_others(&q->t, 0, &q->slots, DCOMMI_SPREAD_IDLE, dcomm_const(q->tag), fixed);
}

/* Send slot `own` to each other rank. */
static void dcommi_spread_tell(const dcommi_spread_kind *q, bool fixed)
{
    dcommi_coded_to_others(&q->t, 0, &q->slots, DCOMMI_SPREAD_IDLE, q->k.s->nranks - 1,
                           dcomm_const(q->tag), fixed);
}

/* All ranks' samples, in rank order, become regions: of no bytes. */
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

/* Decode all results in the order of regions. The first step finds the output's beginning, where
 * block 0 lies. */
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

/* What the model is told. Only the selection sees all elements; what comes after sees k of them, at
 * some 64 times the cost of copying one. Both kinds of slots have room for k elements, and N-1
 * of N are elsewhere. */
static void dcommi_spread_costs(const dcommi_coded_cut *k)
{
    const dcommi_coding *coding = k->s->coding;
    dcomm_plan *head = &k->b->head;
    int64_t length = coding->cost_length > 0 ? coding->cost_length : 1024;
    int64_t work = 64 * 1024 * coding->most / dcommi_max64(k->total / 4, 1);
    head->codec = coding->spread;
    head->scratch_on_host = true; /* only the selection and the result are a device's */
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
    size_t quota = (size_t)dcommi_ceil_div(coding->most, n); /* that an owner keeps at most */
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
