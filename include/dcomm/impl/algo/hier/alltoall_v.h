/* alltoall_v.h - hierarchical all-to-all-v. A block goes first to the rank of the sender's host
 * that stands for the target (hier/blocks.h). That rank sends all blocks of its host for the
 * target as one message. It must know how long they are: algo/counts.h. */
#ifndef DCOMMI_ALGO_HIER_V_H
#define DCOMMI_ALGO_HIER_V_H

#include "../counts.h"
#include "hier.h"

/* ---- all counts are known ---- */

static size_t dcommi_hier_v_count(const dcommi_hier *h, int from, int to)
{
    return h->s->matrix[(size_t)from * (size_t)h->s->nranks + (size_t)to];
}

/* Return the bytes that all ranks of a group have for rank `to`. */
static int64_t dcommi_hier_v_bytes(const dcommi_hier *h, int group, int to)
{
    size_t sum = 0;
    for (int i = 0; i < dcommi_hier_size(h, group); i++) {
        sum += dcommi_hier_v_count(h, dcommi_hier_rank(h, group, i), to);
    }
    return dcommi_shape_bytes(h->s, sum);
}

static dcomm_status dcommi_hier_v_open(dcommi_hier *h, dcommi_hier_rounds *r)
{
    int64_t most = 0;
    DCOMMI_TRY(dcommi_hier_rounds_make(h, r));
    for (int k = 0; k < h->ngroups; k++) {
        for (int to = 0; to < h->s->nranks; to++) {
            most = dcommi_max64(most, dcommi_hier_v_bytes(h, k, to));
        }
    }
    r->pieces = 1;
    r->tags = dcommi_chunks_of(most, r->message);
    r->tag = dcomm_build_tags(h->b, r->tags);
    r->called = dcomm_build_counter(h->b);
    r->table = dcommi_hier_local_table(h);
    return DCOMM_OK;
}

/* Exchange blocks within this group for pass q of group k: each rank gets the blocks for its own
 * target. This rank gets those for `target` at `out`: packed or, if k is its own group, at their
 * places in the caller's output. */
static void dcommi_hier_v_collect(dcommi_hier_rounds *r, int k, int q, int target,
                                  dcomm_operand out)
{
    dcommi_hier *h = r->h;
    const dcommi_shape *s = h->s;
    size_t size = (size_t)h->size, at = 0;
    size_t *recv = r->counts, *displs = recv + size, *send = displs + size, *from = send + size;
    dcommi_shape sub = dcommi_hier_shape(h, DCOMM_COLL_ALLTOALLV, h->index, h->size, false);
    for (int i = 0; i < h->size; i++) {
        int rank = dcommi_hier_rank(h, h->group, i), index = q * h->size + i;
        recv[i] = target >= 0 ? dcommi_hier_v_count(h, rank, target) : 0;
        displs[i] = k == h->group ? s->displs[rank] : at;
        at += recv[i];
        send[i] = from[i] = 0;
        if (index < dcommi_hier_size(h, k)) {
            int to = dcommi_hier_rank(h, k, index);
            send[i] = s->send_counts[to];
            from[i] = s->send_displs[to];
        }
    }
    sub.send_counts = send;
    sub.send_displs = from;
    dcommi_hier_rounds_call(r, &sub, h->b->head.in_bytes, out.max_length,
                            dcomm_span(DCOMM_SPACE_IN, 0, h->b->head.in_bytes), out);
}

/* Copy the blocks from the ranks of group k, which lie one after the other at `from`, to their
 * places in OUT. */
static void dcommi_hier_v_spread(const dcommi_hier *h, int lane, int k, int64_t from)
{
    const dcommi_shape *s = h->s;
    for (int i = 0; i < dcommi_hier_size(h, k); i++) {
        int rank = dcommi_hier_rank(h, k, i);
        int64_t bytes = dcommi_shape_bytes(s, s->counts[rank]);
        if (bytes > 0) {
            dcomm_build_copy(
                h->b, lane,
                dcomm_span(DCOMM_SPACE_OUT, dcommi_shape_bytes(s, s->displs[rank]), bytes),
                dcomm_span(DCOMM_SPACE_SCRATCH, from, bytes), 0);
        }
        from += bytes;
    }
}

/* Build pass q of group k: collect the blocks of this host for its ranks, and send them. */
static void dcommi_hier_v_pass(dcommi_hier_rounds *r, int k, int q)
{
    dcommi_hier *h = r->h;
    const dcommi_shape *s = h->s;
    dcomm_builder *b = h->b;
    int target = dcommi_hier_stands_for(h, k, q);
    int64_t bytes = target >= 0 ? dcommi_hier_v_bytes(h, h->group, target) : 0, any = 0;
    dcomm_operand part = dcomm_span(DCOMM_SPACE_OUT, 0, b->head.out_bytes);
    for (int i = q * h->size; i < (q + 1) * h->size && i < dcommi_hier_size(h, k); i++) {
        any += dcommi_hier_v_bytes(h, h->group, dcommi_hier_rank(h, k, i));
    }
    if (any == 0) {
        return;
    }
    if (h->size == 1) {
        int64_t from = dcommi_shape_bytes(s, s->send_displs[target]);
        part = dcomm_span(DCOMM_SPACE_IN, from, bytes);
        if (k == h->group) {
            int64_t to = dcommi_shape_bytes(s, s->displs[target]);
            dcomm_build_copy(b, DCOMMI_HIER_LANE_CALL, dcomm_span(DCOMM_SPACE_OUT, to, bytes), part,
                             0);
        }
    } else {
        if (k != h->group) {
            part = dcomm_span(DCOMM_SPACE_SCRATCH, dcomm_build_scratch(b, bytes), bytes);
        }
        dcommi_hier_v_collect(r, k, q, target, part);
        dcommi_hier_rounds_called(r);
    }
    if (k != h->group && bytes > 0) {
        if (r->calls > 0) {
            dcomm_build_wait(b, DCOMMI_HIER_LANE_SEND, r->called, dcomm_const(r->calls));
        }
        dcommi_hier_send(r, part, 0, target);
    }
}

static dcomm_status dcommi_hier_v_known(dcommi_hier *h)
{
    dcommi_hier_rounds r;
    DCOMMI_TRY(dcommi_hier_v_open(h, &r));
    for (int t = 1; t <= h->ngroups; t++) {
        int k = (h->group + t) % h->ngroups;
        for (int q = 0; q < dcommi_hier_passes(h, k, h->size); q++) {
            dcommi_hier_v_pass(&r, k, q);
        }
    }
    for (int t = 1; t < h->ngroups; t++) {
        int k = (h->group - t + h->ngroups) % h->ngroups;
        int64_t bytes = dcommi_hier_v_bytes(h, k, h->s->rank);
        if (bytes > 0) {
            int lane = dcommi_hier_rounds_lane(r.messages++);
            int64_t at = dcomm_build_scratch(h->b, bytes);
            dcommi_hier_recv(&r, lane, dcomm_span(DCOMM_SPACE_SCRATCH, at, bytes),
                             (dcomm_operand){0}, 0, dcommi_hier_stand_in(h, k));
            dcommi_hier_v_spread(h, lane, k, at);
        }
    }
    return dcommi_hier_rounds_close(&r);
}

/* ---- with or without known counts ---- */

static dcomm_status dcommi_hier_alltoallv(const dcommi_shape *s, dcomm_builder *b);

static const dcomm_plan *dcommi_hier_v_next(void *user, const uint64_t *words, uint32_t nwords,
                                            dcomm_status *status)
{
    (void)nwords;
    return dcommi_counts_next(user, words, dcommi_hier_alltoallv, status);
}

static dcomm_status dcommi_hier_alltoallv_any(dcommi_hier *h)
{
    return h->s->matrix != NULL
               ? dcommi_hier_v_known(h)
               : dcommi_counts_ask(h->s, h->b, "hier", dcommi_hier_allgather, dcommi_hier_v_next);
}

static dcomm_status dcommi_hier_alltoallv(const dcommi_shape *s, dcomm_builder *b)
{
    return dcommi_hier_run(s, b, dcommi_hier_alltoallv_any, false);
}

#endif
