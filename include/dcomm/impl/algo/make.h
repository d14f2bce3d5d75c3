/* make.h - from a shape and an algorithm to a plan. */
#ifndef DCOMMI_ALGO_MAKE_H
#define DCOMMI_ALGO_MAKE_H

#include "table.h"

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

/* Return true if no rank moves a byte. The answer is the same on every rank. */
static bool dcommi_shape_empty(const dcommi_shape *s)
{
    if (s->coll == DCOMM_COLL_BARRIER || s->coll == DCOMM_COLL_ALLTOALLV ||
        s->coll == DCOMM_COLL_SEND || s->coll == DCOMM_COLL_RECV) {
        return false; /* counts may differ between ranks, which only a message shows */
    }
    return dcommi_shape_size(s) == 0;
}

/* One rank alone: its output is its input. */
static void dcommi_make_alone(const dcommi_shape *s, dcomm_builder *b)
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
        dcomm_build_copy(b, 0, dcomm_span(DCOMM_SPACE_OUT, to, bytes),
                         dcomm_span(DCOMM_SPACE_IN, from, bytes), 0);
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
    if ((*plan_p)->next != NULL) { /* the next stage is made of what this one's table holds */
        (*plan_p)->kernel_user = (*plan_p)->next_user = *plan_p;
    }
    return DCOMM_OK;
}

#endif
