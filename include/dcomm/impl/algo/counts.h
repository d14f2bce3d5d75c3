/* counts.h - the first stage of all-to-all-v by algorithms that forward blocks of other ranks.
 *
 * Such an algorithm needs the lengths of all blocks, but a rank knows only its own counts. So
 * there are two stages: the first all-gathers the rows of counts; the plan of the second is made
 * from them. If all counts are known beforehand (dcomm_coll_opts.matrix, and in the checker),
 * there is no first stage. */
#ifndef DCOMMI_ALGO_COUNTS_H
#define DCOMMI_ALGO_COUNTS_H

#include "parts.h"

/* The table of the first plan, which the second stage reads: a pointer, then counts and
 * displacements of the received blocks, then those of the sent blocks. */
enum {
    DCOMMI_COUNTS_GROUPS, /* pointer to the communicator's groups, which outlive its plans */
    DCOMMI_COUNTS_LISTS
};

#define DCOMMI_COUNTS_MOST ((size_t)1 << 40) /* elements of a block; more: a corrupt count */

/* Write this rank's row of counts, from the table of the plan: the COMPUTE kernel of stage one. */
static dcomm_status dcommi_counts_row(void *user, void *dst, size_t dst_len, const void *const *src,
                                      const size_t *src_len, size_t nsrc)
{
    const dcomm_plan *plan = user;
    size_t n = (size_t)plan->nranks;
    (void)src;
    (void)src_len;
    (void)nsrc;
    if (dst_len != n * sizeof(uint64_t)) {
        return DCOMM_ERR_PLAN;
    }
    memcpy(dst, plan->table + DCOMMI_COUNTS_LISTS + 2 * n, dst_len);
    return DCOMM_OK;
}

static const dcomm_plan_kernel dcommi_counts_kernels[] = {dcommi_counts_row};

static void dcommi_counts_release(void *user, const dcomm_plan *plan)
{
    (void)user;
    dcommi_free((void *)(uintptr_t)plan);
}

/* Check the counts of all ranks: none is too large, and this rank's column is what it expects. */
static dcomm_status dcommi_counts_agree(const dcommi_shape *s)
{
    size_t n = (size_t)s->nranks, me = (size_t)s->rank;
    for (size_t i = 0; i < n * n; i++) {
        if (s->matrix[i] > DCOMMI_COUNTS_MOST) {
            return dcommi_fail(DCOMM_ERR_CORRUPT,
                               "all-to-all-v: rank %zu sends rank %zu %zu elements, which is too "
                               "many",
                               i / n, i % n, s->matrix[i]);
        }
    }
    for (size_t i = 0; i < n; i++) {
        if (s->matrix[i * n + me] != s->counts[i]) {
            return dcommi_fail(DCOMM_ERR_MISMATCH,
                               "all-to-all-v: rank %zu sends %zu elements to rank %zu, which "
                               "expects %zu",
                               i, s->matrix[i * n + me], me, s->counts[i]);
        }
    }
    return DCOMM_OK;
}

/* Make the plan of the second stage with `known`. The words hold the counts of all ranks. */
static const dcomm_plan *dcommi_counts_next(const dcomm_plan *first, const uint64_t *words,
                                            dcommi_algo_fn known, dcomm_status *status)
{
    size_t n = (size_t)first->nranks;
    const size_t *lists = (const size_t *)(first->table + DCOMMI_COUNTS_LISTS);
    dcommi_shape s = {.coll = DCOMM_COLL_ALLTOALLV,
                      .rank = first->rank,
                      .nranks = first->nranks,
                      .dtype = (dcomm_dtype)first->dtype,
                      .op = (dcomm_op)first->op,
                      .lanes = 1,
                      .groups = (const dcommi_groups *)(intptr_t)first->table[DCOMMI_COUNTS_GROUPS],
                      .counts = lists,
                      .displs = lists + n,
                      .send_counts = lists + 2 * n,
                      .send_displs = lists + 3 * n,
                      .matrix = (const size_t *)words};
    dcomm_builder b;
    dcomm_plan *plan = NULL;
    dcommi_build_begin(&b, first->name, s.rank, s.nranks, s.dtype, s.op);
    b.head.in_bytes = first->in_bytes;
    b.head.out_bytes = first->out_bytes;
    *status = dcommi_counts_agree(&s);
    *status = *status >= 0 ? known(&s, &b) : *status;
    if (*status < 0) {
        dcommi_build_discard(&b);
    } else {
        *status = dcommi_build_finish(&b, &plan);
    }
    return plan;
}

/* Build the first stage: all-gather the rows of counts with `gather`, then copy them to the words.
 */
static dcomm_status dcommi_counts_ask(const dcommi_shape *s, dcomm_builder *b, const char *name,
                                      dcommi_algo_fn gather, dcomm_plan_next next)
{
    int64_t n = s->nranks, row = 8 * n, groups = (int64_t)(intptr_t)s->groups;
    const size_t *lists[] = {s->counts, s->displs, s->send_counts, s->send_displs};
    if (n * n > DCOMM_PLAN_MAX_WORDS) {
        return dcommi_fail(DCOMM_ERR_UNSUPPORTED,
                           "%s of all-to-all-v without opts.matrix is for 256 ranks at most, here "
                           "are %" PRId64,
                           b->head.name, n);
    }
    dcomm_build_table(b, &groups, 1);
    for (int i = 0; i < 4; i++) {
        dcomm_build_table(b, (const int64_t *)lists[i], (size_t)n);
    }
    dcommi_shape sub = {.coll = DCOMM_COLL_ALLGATHER,
                        .rank = s->rank,
                        .nranks = s->nranks,
                        .dtype = DCOMM_U64,
                        .op = DCOMM_SUM,
                        .count = (size_t)n,
                        .lanes = 1,
                        .groups = s->groups};
    dcomm_plan *plan = dcommi_sub_plan(b, &sub, name, gather, row, row * n);
    if (plan == NULL) {
        return b->status;
    }
    plan = dcommi_build_adopt(b, plan);
    int64_t own = dcomm_build_scratch(b, row), all = dcomm_build_scratch(b, row * n);
    b->head.nwords = (uint32_t)(n * n);
    b->head.kernels = dcommi_counts_kernels;
    b->head.nkernels = 1;
    b->head.next = next;
    b->head.release = dcommi_counts_release;
    dcomm_step *compute = dcommi_build_step(b, 0, DCOMM_STEP_COMPUTE);
    if (compute != NULL) {
        compute->dst = dcomm_span(DCOMM_SPACE_SCRATCH, own, row);
    }
    if (plan != NULL) {
        dcommi_sub_call(b, 0, plan, dcommi_table_all(b, n),
                        dcomm_span(DCOMM_SPACE_SCRATCH, own, row),
                        dcomm_span(DCOMM_SPACE_SCRATCH, all, row * n));
    }
    dcomm_build_copy(b, 0, dcomm_span(DCOMM_SPACE_WORDS, 0, row * n),
                     dcomm_span(DCOMM_SPACE_SCRATCH, all, row * n), 0);
    return b->status;
}

#endif
