/* 10_own_allreduce.c - write your own all-reduce: build its plan, check and price it for 2 to 64
 * ranks, and run it on the ranks of this program. docs/own-plans.md explains it. */
#include "dcomm.h"

#include <stdio.h>
#include <stdlib.h>

/* Make `rank`'s part of a ring all-reduce of `count` floats. The buffer has one block per rank. */
static dcomm_status make_ring(int rank, int nranks, size_t count, dcomm_plan **plan_p)
{
    int64_t total = (int64_t)(count * sizeof(float));
    int64_t block = (int64_t)((count + (size_t)nranks - 1) / (size_t)nranks * sizeof(float));
    dcomm_expr next = dcomm_const((rank + 1) % nranks);
    dcomm_expr previous = dcomm_const((rank + nranks - 1) % nranks);
    dcomm_builder *b = NULL;
    dcomm_status status = dcomm_build_create("own_ring", rank, nranks, DCOMM_F32, DCOMM_SUM, &b);
    if (status < 0) {
        return status;
    }
    dcomm_build_buffers(b, total, total);
    int64_t tags = dcomm_build_tags(b, 2 * (nranks - 1));
    dcomm_operand stage = dcomm_span(DCOMM_SPACE_SCRATCH, dcomm_build_scratch(b, block), block);

    /* OUT begins with this rank's contribution. */
    dcomm_build_copy(b, 0, dcomm_span(DCOMM_SPACE_OUT, 0, total),
                     dcomm_span(DCOMM_SPACE_IN, 0, total), 0);

    /* There are two passes of N-1 steps. In step i of the first pass, send block rank - i and
     * receive block rank - i - 1. These are partial sums, to which each rank adds its
     * contribution. The second pass does the same one block further on, with complete sums. */
    for (int gather = 0; gather < 2; gather++) {
        int64_t first = rank + gather, tag = tags + gather * (nranks - 1);
        int i = dcomm_build_loop(b, 0, dcomm_const(nranks - 1));
        dcomm_expr sent = dcomm_modular(block, first, i, -1, nranks);
        dcomm_expr received = dcomm_modular(block, first - 1, i, -1, nranks);
        dcomm_operand from = dcomm_block(DCOMM_SPACE_OUT, sent, block, total);
        dcomm_operand into = dcomm_block(DCOMM_SPACE_OUT, received, block, total);
        dcomm_build_send(b, 0, from, next, dcomm_linear(tag, i, 1), DCOMM_STEP_ASYNC);
        if (gather) {
            dcomm_build_recv(b, 0, into, previous, dcomm_linear(tag, i, 1), 0);
        } else {
            dcomm_build_recv_reduce(b, 0, into, dcomm_msg(), into, stage, previous,
                                    dcomm_linear(tag, i, 1), 0);
        }
        dcomm_build_fence(b, 0); /* the sent block may be overwritten from here on */
        dcomm_build_end(b, 0);
    }
    return dcomm_build_finish(&b, plan_p);
}

/* Check the plans of `nranks` ranks together, and price them. */
static dcomm_status prove(int nranks, size_t count, dcomm_check_report *report, double *seconds)
{
    dcomm_check_spec spec = {.coll = DCOMM_COLL_ALLREDUCE, .count = count, .dtype = DCOMM_F32};
    dcomm_plan *plans[64] = {NULL};
    dcomm_tuning tuning;
    dcomm_status status = DCOMM_OK;
    for (int r = 0; r < nranks && status >= 0; r++) {
        status = make_ring(r, nranks, count, &plans[r]);
    }
    if (status >= 0) {
        status = dcomm_plan_check((const dcomm_plan *const *)plans, nranks, &spec, report);
    }
    if (status >= 0) {
        dcomm_tuning_default(&tuning);
        status = dcomm_plan_price((const dcomm_plan *const *)plans, nranks, NULL, &tuning, seconds);
    }
    for (int r = 0; r < nranks; r++) {
        dcomm_plan_destroy(&plans[r]);
    }
    return status;
}

/* Run the plan on comm, and compare the result with that of dcomm_allreduce. Add the number of
 * elements that differ to *wrong. */
static dcomm_status run(dcomm_comm *comm, size_t count, size_t *wrong)
{
    int rank = dcomm_comm_rank(comm);
    float *in = malloc(3 * count * sizeof *in);
    dcomm_plan *plan = NULL;
    if (in == NULL) {
        return DCOMM_ERR_NO_MEMORY;
    }
    float *own = in + count, *want = own + count;
    for (size_t i = 0; i < count; i++) {
        in[i] = (float)(i % 1000 + (size_t)rank); /* sums are exact */
    }
    dcomm_status status = make_ring(rank, dcomm_comm_size(comm), count, &plan);
    if (status >= 0) {
        status = dcomm_plan_run(comm, plan, in, own, NULL, 1, NULL);
    }
    if (status >= 0) {
        status = dcomm_allreduce(comm, in, want, count, DCOMM_F32, DCOMM_SUM, NULL);
    }
    for (size_t i = 0; i < count && status >= 0; i++) {
        *wrong += own[i] != want[i];
    }
    dcomm_plan_destroy(&plan);
    free(in);
    return status;
}

int main(void)
{
    enum { COUNT = 100003 };
    dcomm_comm *comm = NULL;
    if (dcomm_comm_create(NULL, &comm) < 0) {
        fprintf(stderr, "cannot start: %s\n", dcomm_last_error());
        return 3;
    }
    int rank = dcomm_comm_rank(comm);
    size_t wrong = 0;
    dcomm_status status = DCOMM_OK;
    for (int n = 2; n <= 64 && status >= 0 && rank == 0; n++) {
        dcomm_check_report report;
        double seconds = 0;
        status = prove(n, COUNT, &report, &seconds);
        if (status >= 0 && (n & (n - 1)) == 0) {
            printf("%2d ranks: right; %d steps, %d messages, %.1f us by the model\n", n,
                   (int)report.steps, (int)report.messages, seconds * 1e6);
        }
    }
    if (status >= 0) {
        status = run(comm, COUNT, &wrong);
    }
    if (status < 0) {
        fprintf(stderr, "rank %d: %s\n", rank, dcomm_last_error());
    } else {
        printf("rank %d: %d elements, %zu differ from dcomm_allreduce's\n", rank, COUNT, wrong);
    }
    dcomm_comm_destroy(&comm);
    return status < 0 ? 3 : wrong > 0 ? 1 : 0;
}
