/* select.h - from a call's arguments to an algorithm and its plan. Reads only what all ranks
 * share. */
#ifndef DCOMMI_SELECT_H
#define DCOMMI_SELECT_H

#include "choose.h"

/* Bytes that one rank contributes or receives: what the choice depends on. All ranks agree on it,
 * or the operation is a mismatch anyway; all-to-all-v is the exception and never looks at it. */
static int64_t dcommi_shape_size(const dcommi_shape *s)
{
    size_t count = s->count;
    if (s->coll == DCOMM_COLL_ALLTOALLV) {
        return 0;
    }
    if (s->counts != NULL) {
        count = 0;
        for (int r = 0; r < s->nranks; r++) {
            count = s->counts[r] > count ? s->counts[r] : count;
        }
    }
    return dcommi_shape_bytes(s, count);
}

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

/* ---- the plan ---- */

/* Sizes of IN and OUT that an operation's rules give this rank, in bytes. */
static void dcommi_shape_spaces(const dcommi_shape *s, int64_t *in, int64_t *out)
{
    int64_t element = (int64_t)dcomm_dtype_size(s->dtype);
    int64_t one = dcommi_shape_bytes(s, s->count), all = one * s->nranks;
    int64_t mine = 0, total = 0, end = 0, send_end = 0;
    bool root = s->rank == s->root;
    if (s->counts != NULL) {
        mine = (int64_t)s->counts[s->rank] * element;
        for (int r = 0; r < s->nranks; r++) {
            total += (int64_t)s->counts[r] * element;
            end = dcommi_max64(end, (int64_t)(s->displs[r] + s->counts[r]) * element);
            if (s->send_counts != NULL) {
                send_end = dcommi_max64(send_end,
                                        (int64_t)(s->send_displs[r] + s->send_counts[r]) * element);
            }
        }
    }
    switch (s->coll) {
    case DCOMM_COLL_ALLREDUCE:
        *in = *out = one;
        break;
    case DCOMM_COLL_REDUCE:
        *in = one;
        *out = root ? one : 0;
        break;
    case DCOMM_COLL_BROADCAST:
        *in = root ? one : 0;
        *out = one;
        break;
    case DCOMM_COLL_REDUCE_SCATTER:
        *in = all;
        *out = one;
        break;
    case DCOMM_COLL_ALLGATHER:
        *in = one;
        *out = all;
        break;
    case DCOMM_COLL_GATHER:
        *in = one;
        *out = root ? all : 0;
        break;
    case DCOMM_COLL_SCATTER:
        *in = root ? all : 0;
        *out = one;
        break;
    case DCOMM_COLL_ALLTOALL:
        *in = *out = all;
        break;
    case DCOMM_COLL_REDUCE_SCATTERV:
        *in = total;
        *out = mine;
        break;
    case DCOMM_COLL_ALLGATHERV:
        *in = mine;
        *out = end;
        break;
    case DCOMM_COLL_GATHERV:
        *in = mine;
        *out = root ? end : 0;
        break;
    case DCOMM_COLL_SCATTERV:
        *in = root ? end : 0;
        *out = mine;
        break;
    case DCOMM_COLL_ALLTOALLV:
        *in = send_end;
        *out = end;
        break;
    case DCOMM_COLL_SEND:
        *in = one;
        *out = 0;
        break;
    case DCOMM_COLL_RECV:
        *in = 0;
        *out = one;
        break;
    default:
        *in = *out = 0;
        break;
    }
    if (s->in_place) { /* both lie in OUT, which is the longer one */
        *out = dcommi_max64(*in, *out);
    }
}

/* Whether no rank moves a byte. Every rank comes to the same answer. */
static bool dcommi_shape_empty(const dcommi_shape *s)
{
    if (s->coll == DCOMM_COLL_BARRIER || s->coll == DCOMM_COLL_ALLTOALLV ||
        s->coll == DCOMM_COLL_SEND || s->coll == DCOMM_COLL_RECV) {
        return false; /* counts may differ between ranks, which only a message shows */
    }
    return dcommi_shape_size(s) == 0;
}

/* One rank alone: its output is its input. */
static void dcommi_make_alone(const dcommi_shape *s, dcommi_builder *b)
{
    int64_t element = (int64_t)dcomm_dtype_size(s->dtype);
    int64_t bytes = dcommi_shape_bytes(s, s->count), from = 0, to = 0;
    if (s->counts != NULL) {
        bytes = (int64_t)s->counts[0] * element;
        from = s->coll == DCOMM_COLL_SCATTERV ? (int64_t)s->displs[0] * element : 0;
        to = s->coll == DCOMM_COLL_ALLGATHERV || s->coll == DCOMM_COLL_GATHERV ||
                     s->coll == DCOMM_COLL_ALLTOALLV
                 ? (int64_t)s->displs[0] * element
                 : 0;
        from = s->coll == DCOMM_COLL_ALLTOALLV ? (int64_t)s->send_displs[0] * element : from;
    }
    if (bytes > 0 && s->coll != DCOMM_COLL_BARRIER && !s->in_place) {
        dcommi_copy(b, 0, dcommi_span(DCOMM_SPACE_OUT, to, bytes),
                    dcommi_span(DCOMM_SPACE_IN, from, bytes), 0);
    }
}

static dcomm_status dcommi_plan_make(const dcommi_shape *s, const dcommi_algo *algo,
                                     dcomm_plan **plan_p)
{
    dcommi_builder b;
    dcommi_build_begin(&b, algo->name, s->rank, s->nranks, s->dtype, s->op);
    dcommi_shape_spaces(s, &b.head.in_bytes, &b.head.out_bytes);
    if (s->nranks == 1) {
        dcommi_make_alone(s, &b);
    } else if (!dcommi_shape_empty(s)) {
        dcomm_status status = algo->make(s, &b);
        if (status < 0) {
            dcommi_build_discard(&b);
            return status;
        }
    }
    DCOMMI_TRY(dcommi_build_finish(&b, plan_p));
    if ((*plan_p)->next != NULL) { /* the next stage is made of what this one's table holds */
        (*plan_p)->kernel_user = (*plan_p)->next_user = *plan_p;
    }
    return DCOMM_OK;
}

/* ---- pre-multiplied sum ---- */

static dcomm_status dcommi_kernel_scale(void *user, void *dst, size_t dst_len,
                                        const void *const *src, const size_t *src_len, size_t nsrc)
{
    dcomm_dtype dtype = (dcomm_dtype)(uintptr_t)user;
    dcommi_factor factor;
    (void)nsrc;
    if (src_len[0] != dst_len || src_len[1] != sizeof factor) {
        return DCOMM_ERR_PLAN;
    }
    memcpy(&factor, src[1], sizeof factor);
    if (!dcommi_factor_whole(&factor, dtype)) {
        dcommi_host_scale(dst, src[0], dst_len / dcomm_dtype_size(dtype), dtype, factor.value);
        return DCOMM_OK;
    }
    for (size_t i = 0; i < dst_len; i += sizeof factor.whole) {
        uint64_t x;
        memcpy(&x, (const char *)src[0] + i, sizeof x);
        x *= factor.whole;
        memcpy((char *)dst + i, &x, sizeof x);
    }
    return DCOMM_OK;
}

static const dcomm_plan_kernel dcommi_scale_kernels[] = {dcommi_kernel_scale};

/* scratch <- factor * input, then the sum of that: the words are the factor, which may differ by
 * rank. `inner` reads its input from IN. */
static dcomm_status dcommi_plan_premul(const dcommi_shape *s, const dcomm_plan *inner,
                                       dcomm_plan **plan_p)
{
    dcommi_builder b;
    dcommi_build_begin(&b, inner->name, s->rank, s->nranks, s->dtype, s->op);
    dcommi_shape_spaces(s, &b.head.in_bytes, &b.head.out_bytes);
    b.head.nwords = sizeof(dcommi_factor) / sizeof(uint64_t);
    b.head.ntags = inner->ntags;
    b.head.ncounters = inner->ncounters;
    b.head.nslots = inner->nslots;
    b.head.kernels = dcommi_scale_kernels;
    b.head.nkernels = 1;
    b.head.kernel_user = (void *)(uintptr_t)s->dtype;
    int64_t bytes = b.head.in_bytes;
    int64_t scratch = dcommi_build_scratch(&b, bytes);
    dcomm_step *step = bytes > 0 ? dcommi_build_step(&b, 0, DCOMM_STEP_COMPUTE) : NULL;
    if (step != NULL) {
        dcomm_operand src[2] = {
            dcommi_span(s->in_place ? DCOMM_SPACE_OUT : DCOMM_SPACE_IN, 0, bytes),
            dcommi_span(DCOMM_SPACE_WORDS, 0, sizeof(dcommi_factor))};
        step->dst = dcommi_span(DCOMM_SPACE_SCRATCH, scratch, bytes);
        dcommi_build_sources(&b, step, src, 2);
    }
    int64_t group = (int64_t)b.ntable;
    for (int64_t r = 0; r < s->nranks; r++) {
        dcommi_build_table(&b, &r, 1);
    }
    dcommi_call(&b, 0, inner, group, dcommi_span(DCOMM_SPACE_SCRATCH, scratch, bytes),
                dcommi_span(DCOMM_SPACE_OUT, 0, b.head.out_bytes), dcommi_const(0));
    return dcommi_build_finish(&b, plan_p);
}

#endif
