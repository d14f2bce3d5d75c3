/* make.h - make a plan from a shape and an algorithm. */
#ifndef DCOMMI_ALGO_MAKE_H
#define DCOMMI_ALGO_MAKE_H

#include "table.h"

/* Return the bytes that one rank contributes or receives. The choice depends on it, and all ranks
 * of a correct call have the same value. All-to-all-v has no such value: 0. */
static int64_t dcommi_shape_size(const dcommi_shape *s)
{
    return s->coll == DCOMM_COLL_ALLTOALLV ? 0
           : s->counts != NULL             ? dcommi_longest(s, s->counts)
                                           : dcommi_shape_bytes(s, s->count);
}

/* Return the sizes of IN and OUT of this rank, in bytes, by the rules of the operation. */
static void dcommi_shape_spaces(const dcommi_shape *s, int64_t *in, int64_t *out)
{
    /* Lengths. The last four are of listed blocks; END and SENT are the ends of the blocks in the
     * receive and send buffers. */
    enum {
        DCOMMI_LEN_NONE,
        DCOMMI_LEN_ONE,
        DCOMMI_LEN_ALL,
        DCOMMI_LEN_MINE,
        DCOMMI_LEN_SUM,
        DCOMMI_LEN_END,
        DCOMMI_LEN_SENT,
        DCOMMI_LENS
    };
    enum { DCOMMI_ROOT_READS = 1, DCOMMI_ROOT_WRITES = 2 }; /* the root only */
    static const uint8_t rule[DCOMM_COLL_COUNT][3] = {
        [DCOMM_COLL_ALLREDUCE] = {DCOMMI_LEN_ONE, DCOMMI_LEN_ONE},
        [DCOMM_COLL_REDUCE] = {DCOMMI_LEN_ONE, DCOMMI_LEN_ONE, DCOMMI_ROOT_WRITES},
        [DCOMM_COLL_BROADCAST] = {DCOMMI_LEN_ONE, DCOMMI_LEN_ONE, DCOMMI_ROOT_READS},
        [DCOMM_COLL_REDUCE_SCATTER] = {DCOMMI_LEN_ALL, DCOMMI_LEN_ONE},
        [DCOMM_COLL_ALLGATHER] = {DCOMMI_LEN_ONE, DCOMMI_LEN_ALL},
        [DCOMM_COLL_GATHER] = {DCOMMI_LEN_ONE, DCOMMI_LEN_ALL, DCOMMI_ROOT_WRITES},
        [DCOMM_COLL_SCATTER] = {DCOMMI_LEN_ALL, DCOMMI_LEN_ONE, DCOMMI_ROOT_READS},
        [DCOMM_COLL_ALLTOALL] = {DCOMMI_LEN_ALL, DCOMMI_LEN_ALL},
        [DCOMM_COLL_REDUCE_SCATTERV] = {DCOMMI_LEN_SUM, DCOMMI_LEN_MINE},
        [DCOMM_COLL_ALLGATHERV] = {DCOMMI_LEN_MINE, DCOMMI_LEN_END},
        [DCOMM_COLL_GATHERV] = {DCOMMI_LEN_MINE, DCOMMI_LEN_END, DCOMMI_ROOT_WRITES},
        [DCOMM_COLL_SCATTERV] = {DCOMMI_LEN_END, DCOMMI_LEN_MINE, DCOMMI_ROOT_READS},
        [DCOMM_COLL_ALLTOALLV] = {DCOMMI_LEN_SENT, DCOMMI_LEN_END},
        [DCOMM_COLL_SEND] = {DCOMMI_LEN_ONE, DCOMMI_LEN_NONE},
        [DCOMM_COLL_RECV] = {DCOMMI_LEN_NONE, DCOMMI_LEN_ONE},
    };
    const uint8_t *of = rule[s->coll];
    const bool other = s->rank != s->root;
    size_t len[DCOMMI_LENS] = {
        [DCOMMI_LEN_ONE] = s->count, [DCOMMI_LEN_ALL] = s->count * (size_t)s->nranks};
    for (int r = 0; s->counts != NULL && r < s->nranks; r++) {
        size_t end = s->displs[r] + s->counts[r];
        size_t sent = s->send_counts != NULL ? s->send_displs[r] + s->send_counts[r] : 0;
        len[DCOMMI_LEN_SUM] += s->counts[r];
        len[DCOMMI_LEN_END] = end > len[DCOMMI_LEN_END] ? end : len[DCOMMI_LEN_END];
        len[DCOMMI_LEN_SENT] = sent > len[DCOMMI_LEN_SENT] ? sent : len[DCOMMI_LEN_SENT];
        len[DCOMMI_LEN_MINE] = s->counts[s->rank];
    }
    *in = of[2] == DCOMMI_ROOT_READS && other ? 0 : dcommi_shape_bytes(s, len[of[0]]);
    *out = of[2] == DCOMMI_ROOT_WRITES && other ? 0 : dcommi_shape_bytes(s, len[of[1]]);
    if (s->in_place) { /* input and output share OUT */
        *out = dcommi_max64(*in, *out);
    }
}

/* Return true if no rank moves a byte. The answer is the same on every rank. */
static bool dcommi_shape_empty(const dcommi_shape *s)
{
    if (s->coll == DCOMM_COLL_BARRIER || s->coll == DCOMM_COLL_ALLTOALLV ||
        s->coll == DCOMM_COLL_SEND || s->coll == DCOMM_COLL_RECV) {
        return false; /* counts may differ between ranks: only a message can tell */
    }
    return dcommi_shape_size(s) == 0;
}

/* Build the plan of a single rank: copy the input to the output. */
static void dcommi_make_alone(const dcommi_shape *s, dcomm_builder *b)
{
    size_t count = s->count, from = 0, to = 0;
    if (s->counts != NULL) {
        bool gathers = s->coll == DCOMM_COLL_ALLGATHERV || s->coll == DCOMM_COLL_GATHERV ||
                       s->coll == DCOMM_COLL_ALLTOALLV;
        count = s->counts[0];
        to = gathers ? s->displs[0] : 0;
        from = s->coll == DCOMM_COLL_ALLTOALLV  ? s->send_displs[0]
               : s->coll == DCOMM_COLL_SCATTERV ? s->displs[0]
                                                : 0;
    }
    int64_t bytes = dcommi_shape_bytes(s, count);
    if (bytes > 0 && s->coll != DCOMM_COLL_BARRIER && !s->in_place) {
        dcomm_build_copy(b, 0, dcomm_span(DCOMM_SPACE_OUT, dcommi_shape_bytes(s, to), bytes),
                         dcomm_span(DCOMM_SPACE_IN, dcommi_shape_bytes(s, from), bytes), 0);
    }
}

static dcomm_status dcommi_plan_make(const dcommi_shape *s, const dcommi_algo *algo,
                                     dcomm_plan **plan_p)
{
    dcomm_builder b;
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
    if ((*plan_p)->next != NULL) { /* `next` and the kernels read this plan's table (counts.h) */
        (*plan_p)->kernel_user = (*plan_p)->next_user = *plan_p;
    }
    return DCOMM_OK;
}

#endif
