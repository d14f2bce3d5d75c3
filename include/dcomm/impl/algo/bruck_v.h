/* bruck_v.h - Bruck's all-to-all with blocks of any length: Bruck, Ho, Kipnis, Upfal and
 * Weathersby, IEEE TPDS 8 (1997). There are ceil(log2 N) steps. In step k all blocks whose
 * distance to go has bit k set travel 2^k ranks, in one message. A rank knows whose block it holds
 * for each distance, and so its length (algo/counts.h). Blocks stay where they arrived until they
 * go on. */
#ifndef DCOMMI_ALGO_BRUCK_V_H
#define DCOMMI_ALGO_BRUCK_V_H

#include "counts.h"
#include "doubling.h"

/* Return the bytes of the block of distance d that rank `holder` holds before step `bit`: the
 * block has already travelled the bits of d below `bit`. */
static int64_t dcommi_bruck_v_bytes(const dcommi_shape *s, int holder, int d, int bit)
{
    int n = s->nranks, from = (holder - (d & (bit - 1)) + n) % n;
    return dcommi_shape_bytes(s, s->matrix[(size_t)from * (size_t)n + (size_t)((from + d) % n)]);
}

/* Return the bytes of all blocks that rank `holder` sends in step `bit`. */
static int64_t dcommi_bruck_v_step_bytes(const dcommi_shape *s, int holder, int bit)
{
    int64_t bytes = 0;
    for (int d = bit; d < s->nranks; d++) {
        bytes += (d & bit) != 0 ? dcommi_bruck_v_bytes(s, holder, d, bit) : 0;
    }
    return bytes;
}

/* Build step `bit`. at[d] is the place of the block of distance d, which the step updates.
 * `leaving`: scratch in which outgoing blocks are packed. */
static void dcommi_bruck_v_step(const dcommi_shape *s, dcomm_builder *b, int bit, int64_t leaving,
                                dcomm_operand *at)
{
    int n = s->nranks, behind = (s->rank - bit + n) % n;
    int64_t out = dcommi_bruck_v_step_bytes(s, s->rank, bit), packed = leaving;
    int64_t in = dcommi_bruck_v_step_bytes(s, behind, bit), coming = dcomm_build_scratch(b, in);
    int64_t tag = dcomm_build_tags(b, 1);
    for (int d = bit; d < n; d++) {
        int64_t length = (d & bit) != 0 ? dcommi_bruck_v_bytes(s, s->rank, d, bit) : 0;
        if (length > 0) {
            dcomm_build_copy(b, 0, dcomm_span(DCOMM_SPACE_SCRATCH, packed, length), at[d], 0);
            packed += length;
        }
    }
    if (out > 0) {
        dcomm_build_send(b, 0, dcomm_span(DCOMM_SPACE_SCRATCH, leaving, out),
                         dcomm_const((s->rank + bit) % n), dcomm_const(tag), DCOMM_STEP_ASYNC);
    }
    if (in > 0) {
        dcomm_build_recv(b, 0, dcomm_span(DCOMM_SPACE_SCRATCH, coming, in), dcomm_const(behind),
                         dcomm_const(tag), DCOMM_STEP_ASYNC);
    }
    dcomm_build_fence(b, 0);
    for (int d = bit; d < n; d++) {
        if ((d & bit) != 0) {
            int64_t length = dcommi_bruck_v_bytes(s, behind, d, bit);
            at[d] = dcomm_span(DCOMM_SPACE_SCRATCH, coming, length);
            coming += length;
        }
    }
}

static dcomm_status dcommi_bruck_v_known(const dcommi_shape *s, dcomm_builder *b)
{
    int n = s->nranks;
    dcomm_operand *at = dcommi_calloc((size_t)n, sizeof *at);
    int64_t most = 0;
    if (at == NULL) {
        return DCOMM_ERR_NO_MEMORY;
    }
    for (int d = 0; d < n; d++) {
        int to = (s->rank + d) % n;
        at[d] = dcomm_span(DCOMM_SPACE_IN, dcommi_shape_bytes(s, s->send_displs[to]),
                           dcommi_shape_bytes(s, s->send_counts[to]));
    }
    for (int bit = 1; bit < n; bit *= 2) {
        most = dcommi_max64(most, dcommi_bruck_v_step_bytes(s, s->rank, bit));
    }
    int64_t leaving = dcomm_build_scratch(b, most);
    for (int bit = 1; bit < n; bit *= 2) {
        dcommi_bruck_v_step(s, b, bit, leaving, at);
    }
    for (int d = 0; d < n; d++) { /* the block that travelled distance d is from rank - d */
        int from = (s->rank - d + n) % n;
        int64_t length = dcommi_shape_bytes(s, s->counts[from]);
        if (length > 0) {
            dcomm_build_copy(
                b, 0, dcomm_span(DCOMM_SPACE_OUT, dcommi_shape_bytes(s, s->displs[from]), length),
                at[d], DCOMM_STEP_RESULT);
        }
    }
    dcommi_free(at);
    return b->status;
}

static const dcomm_plan *dcommi_bruck_v_next(void *user, const uint64_t *words, uint32_t nwords,
                                             dcomm_status *status)
{
    (void)nwords;
    return dcommi_counts_next(user, words, dcommi_bruck_v_known, status);
}

static dcomm_status dcommi_bruck_v(const dcommi_shape *s, dcomm_builder *b)
{
    return s->matrix != NULL ? dcommi_bruck_v_known(s, b)
                             : dcommi_counts_ask(s, b, "recursive_doubling",
                                                 dcommi_doubling_allgather, dcommi_bruck_v_next);
}

#endif
