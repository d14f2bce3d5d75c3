/* linear.h - compressed all-reduce with a linear codec: encodings can be summed before they are
 * decoded. An exact all-reduce sums their few numbers.
 *
 * randk: the sum is of k values. powersgd: ranks sum P, make it orthonormal, compute their Q from
 * it, and sum Q, once or in several turns (Vogels, Karimireddy and Jaggi, NeurIPS 2019). */
#ifndef DCOMMI_ALGO_CODED_LINEAR_H
#define DCOMMI_ALGO_CODED_LINEAR_H

#include "coded.h"
#include "../hier/hier.h"

/* Return true if there are several hosts with equally many ranks, several each, divided alike.
 * Only then do the plans of all ranks need equally many tags, counters and slots, so that the next
 * call gets the same numbers on all ranks. */
static bool dcommi_coded_linear_even(const dcommi_shape *s)
{
    const dcommi_groups *g = s->groups;
    int level = dcommi_hier_level(g, s->nranks);
    bool even = level >= 0;
    for (int l = level; even && l < g->nlevels; l++) {
        bool divides = l == level || g->kind[l] <= DCOMMI_LEVEL_NUMA;
        for (int r = 0; divides && even && r < s->nranks; r++) {
            int n = 0;
            for (int q = 0; q < s->nranks; q++) {
                n += dcommi_group_of(g, l, q) == dcommi_group_of(g, l, r);
            }
            even = n * g->count[l] == s->nranks;
        }
    }
    return even;
}

/* Build the exact sum of `bytes` bytes of f32 in scratch at `at`, in place. */
static void dcommi_coded_linear_sum(const dcommi_shape *s, dcomm_builder *b, int64_t group,
                                    int64_t at, int64_t bytes)
{
    dcommi_shape sub = *s;
    bool near = s->groups != NULL && s->groups->count[0] == 1;
    sub.count = (size_t)bytes / sizeof(float);
    sub.dtype = DCOMM_F32;
    sub.op = DCOMM_SUM;
    sub.in_place = true;
    sub.coding = NULL;
    dcommi_hier_choice choice = dcommi_hier_plain(&sub, near, bytes);
    if (!near && dcommi_coded_linear_even(s)) {
        choice = (dcommi_hier_choice){"hier", dcommi_hier_allreduce};
    }
    dcomm_plan *plan =
        bytes > 0 ? dcommi_sub_plan(b, &sub, choice.name, choice.make, bytes, bytes) : NULL;
    if (plan == NULL) {
        return;
    }
    dcomm_operand values = dcomm_span(DCOMM_SPACE_SCRATCH, at, bytes);
    plan = dcommi_build_adopt(b, plan);
    if (plan != NULL) {
        dcommi_sub_call(b, 0, plan, group, values, values);
    }
}

static void dcommi_coded_linear_encode(dcomm_builder *b, dcomm_operand dst, dcomm_operand src,
                                       int round)
{
    dcomm_step *step = dcommi_build_step(b, 0, DCOMM_STEP_ENCODE);
    if (step != NULL) {
        step->dst = dst;
        step->slot = (uint16_t)round;
        dcommi_build_sources(b, step, &src, 1);
    }
}

static dcomm_status dcommi_coded_linear(const dcommi_shape *s, dcomm_builder *b)
{
    DCOMMI_TRY(dcommi_coded_able(s, b));
    const dcommi_coding *coding = s->coding;
    int64_t total = dcommi_shape_bytes(s, s->count);
    size_t most = coding->max_bytes(coding->sizes, s->count);
    if (coding->parts == 0 || most > (size_t)INT64_MAX / 4096) {
        return dcommi_fail(DCOMM_ERR_UNSUPPORTED,
                           "coded_linear needs a linear codec: randk or powersgd");
    }
    b->head.codec = coding->codec;
    b->head.codec_linear = true;
    b->head.codec_encode = coding->cost_encode;
    b->head.codec_decode = coding->cost_decode;
    int64_t at = dcomm_build_scratch(b, (int64_t)most), group = dcommi_table_all(b, s->nranks);
    dcomm_operand wire = dcomm_span(DCOMM_SPACE_SCRATCH, at, (int64_t)most);
    dcommi_coded_linear_encode(b, wire, dcomm_span(dcommi_input_of(s, 0).space, 0, total), 0);
    for (int i = 0; i < coding->rounds; i++) {
        const int64_t *part = &coding->part[i % coding->parts];
        if (i > 0) { /* encode the next part from the last sum, in place */
            dcommi_coded_linear_encode(b, wire, wire, i);
        }
        dcommi_coded_linear_sum(s, b, group, at + part[0], part[1] - part[0]);
    }
    dcommi_coded_decode(b, 0, dcomm_span(DCOMM_SPACE_OUT, 0, total), 0, &wire, 1, DCOMM_STEP_FINAL);
    return b->status;
}

#endif
