/* select.h - from a call's arguments to an algorithm and its plan. Reads only what all ranks
 * share. */
#ifndef DCOMMI_SELECT_H
#define DCOMMI_SELECT_H

#include "choose.h"
#include "../engine/kernels.h"

/* Names of the algorithms of an operation, or of those that fold in rank order. */
static void dcommi_algo_names(const dcommi_shape *s, bool rank_order, char *text, size_t len)
{
    size_t at = 0;
    text[0] = 0;
    int n;
    const dcommi_algo *table = dcommi_algos(s->coding != NULL, &n);
    for (int i = 0; i < n && at + 1 < len; i++) {
        const dcommi_algo *algo = &table[i];
        if (algo->coll == s->coll && (algo->rank_order || !rank_order)) {
            at += (size_t)snprintf(text + at, len - at, "%s%s", at > 0 ? ", " : "", algo->name);
        }
    }
}

/* The algorithm by name, or by choice. `soft`: the name comes from the communicator, which holds
 * for all operations, and is passed over by those that have no such algorithm. chooser NULL: there
 * is no communicator. */
static dcomm_status dcommi_algo_pick(const dcommi_shape *s, const char *name, bool soft,
                                     dcommi_chooser *chooser, const dcommi_algo **algo_p)
{
    char names[256];
    bool chosen = name == NULL || name[0] == 0 || strcmp(name, "auto") == 0;
    const dcommi_algo *algo = NULL;
    if (!chosen && s->coding == NULL) {
        algo = dcommi_algo_find(s->coll, name);
    } else if (!chosen && !soft) {
        algo = dcommi_coded_find(s->coll, name);
    }
    if (algo == NULL && !chosen && !soft) {
        bool coded = s->coding == NULL && dcommi_coded_find(s->coll, name) != NULL;
        dcommi_algo_names(s, false, names, sizeof names);
        return dcommi_fail(DCOMM_ERR_UNSUPPORTED, "%s%s has no algorithm \"%s\"%s; it has %s",
                           s->coding != NULL ? "compressed " : "", dcomm_coll_name(s->coll), name,
                           coded ? " without a codec" : "", names);
    }
    if (algo == NULL) {
        DCOMMI_TRY(chooser != NULL ? dcommi_choose(chooser, s, &algo)
                                   : dcommi_choose_alone(s, &algo));
    }
    if (algo == NULL) {
        return dcommi_fail(DCOMM_ERR_UNSUPPORTED, "there is no algorithm for %s",
                           dcomm_coll_name(s->coll));
    }
    if (s->rank_order && s->nranks > 1 && !algo->rank_order) {
        dcommi_algo_names(s, true, names, sizeof names);
        return dcommi_fail(
            DCOMM_ERR_UNSUPPORTED,
            "algorithm %s cannot fold in rank order, which deterministic, accumulate and ordered "
            "operators ask for; %s can",
            algo->name, names);
    }
    *algo_p = algo;
    return DCOMM_OK;
}

/* ---- pre-multiplied sum ---- */

static const dcomm_plan_kernel dcommi_scale_kernels[] = {dcommi_kernel_scale};

/* scratch <- factor * input, then the sum of that: the words are the factor, which may differ by
 * rank. `inner` reads its input from IN. */
static dcomm_status dcommi_plan_premul(const dcommi_shape *s, const dcomm_plan *inner,
                                       dcomm_plan **plan_p)
{
    dcomm_builder b;
    dcommi_build_begin(&b, inner->name, s->rank, s->nranks, s->dtype, s->op);
    dcommi_shape_spaces(s, &b.head.in_bytes, &b.head.out_bytes);
    b.head.nwords = sizeof(dcommi_factor) / sizeof(uint64_t);
    b.head.kernels = dcommi_scale_kernels;
    b.head.nkernels = 1;
    b.head.kernel_user = (void *)(uintptr_t)s->dtype;
    int64_t bytes = b.head.in_bytes;
    int64_t scratch = dcomm_build_scratch(&b, bytes);
    dcomm_step *step = bytes > 0 ? dcommi_build_step(&b, 0, DCOMM_STEP_COMPUTE) : NULL;
    if (step != NULL) {
        dcomm_operand src[2] = {
            dcomm_span(s->in_place ? DCOMM_SPACE_OUT : DCOMM_SPACE_IN, 0, bytes),
            dcomm_span(DCOMM_SPACE_WORDS, 0, sizeof(dcommi_factor))};
        step->dst = dcomm_span(DCOMM_SPACE_SCRATCH, scratch, bytes);
        dcommi_build_sources(&b, step, src, 2);
    }
    dcommi_sub_call(&b, 0, inner, dcommi_table_all(&b, s->nranks),
                    dcomm_span(DCOMM_SPACE_SCRATCH, scratch, bytes),
                    dcomm_span(DCOMM_SPACE_OUT, 0, b.head.out_bytes));
    return dcommi_build_finish(&b, plan_p);
}

#endif
