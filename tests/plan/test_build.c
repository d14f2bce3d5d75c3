/* test_build.c - the public plan builder: its errors and their sentences, and a plan with each
 * kind of step. */
#define _GNU_SOURCE
#include "dcomm.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

static dcomm_builder *begin(int rank, int nranks)
{
    dcomm_builder *b = NULL;
    cr_assert_eq(dcomm_build_create("mine", rank, nranks, DCOMM_F32, DCOMM_SUM, &b), DCOMM_OK);
    dcomm_build_buffers(b, 64, 64);
    return b;
}

/* Finish a plan that must be refused with a sentence that holds `words`. */
static void refused(dcomm_builder *b, dcomm_status status, const char *words)
{
    dcomm_plan *plan = (dcomm_plan *)b;
    cr_assert_eq(dcomm_build_finish(&b, &plan), status, "%s: %s", words, dcomm_last_error());
    cr_assert(strstr(dcomm_last_error(), words) != NULL, "'%s' lacks '%s'", dcomm_last_error(),
              words);
    cr_assert(b == NULL && plan == NULL);
}

static dcomm_operand in(void)
{
    return dcomm_span(DCOMM_SPACE_IN, 0, 64);
}

static dcomm_operand out(void)
{
    return dcomm_span(DCOMM_SPACE_OUT, 0, 64);
}

Test(build, arguments)
{
    dcomm_builder *b = NULL;
    dcomm_plan *plan;
    cr_assert_eq(dcomm_build_create(NULL, 0, 2, DCOMM_F32, DCOMM_SUM, &b), DCOMM_ERR_INVALID);
    cr_assert_eq(dcomm_build_create("x", 2, 2, DCOMM_F32, DCOMM_SUM, &b), DCOMM_ERR_INVALID);
    cr_assert(strstr(dcomm_last_error(), "rank is 2, nranks is 2") != NULL, "%s",
              dcomm_last_error());
    cr_assert_eq(dcomm_build_create("x", 0, 2, DCOMM_F32, DCOMM_SUM, NULL), DCOMM_ERR_INVALID);
    cr_assert_null(b);
    /* Without a builder, the calls do nothing. */
    dcomm_build_buffers(b, 64, 64);
    dcomm_build_copy(b, 0, out(), in(), 0);
    cr_assert(dcomm_build_loop(b, 0, dcomm_const(2)) == 0);
    dcomm_build_end(b, 0);
    cr_assert(dcomm_build_tags(b, 1) == 0 && dcomm_build_scratch(b, 1) == 0);
    cr_assert(dcomm_build_counter(b) == 0 && dcomm_build_slot(b) == 0);
    cr_assert(dcomm_build_table(b, NULL, 0) == 0);
    cr_assert_null(dcomm_build_call(b, 0, NULL, 0, in(), out(), dcomm_const(0)));
    refused(b, DCOMM_ERR_INVALID, "builder is NULL");
    b = begin(0, 2);
    cr_assert_eq(dcomm_build_finish(&b, NULL), DCOMM_ERR_INVALID);
    cr_assert_null(b);
    b = begin(0, 2);
    dcomm_build_destroy(&b);
    cr_assert_null(b);
    dcomm_build_destroy(&b);
    dcomm_build_destroy(NULL);
    cr_assert_eq(dcomm_build_finish(NULL, &plan), DCOMM_ERR_INVALID);
}

Test(build, mistakes)
{
    dcomm_builder *b = begin(1, 4);
    dcomm_build_copy(b, DCOMM_PLAN_MAX_LANES, out(), in(), 0);
    dcomm_build_end(b, 0); /* only the first mistake is reported */
    refused(b, DCOMM_ERR_UNSUPPORTED, "mine: lane is 64; it may be 0 to 63");
    b = begin(1, 4);
    dcomm_build_end(b, 3);
    refused(b, DCOMM_ERR_PLAN, "lane 3 has no open loop");
    b = begin(1, 4);
    dcomm_build_loop(b, 0, dcomm_const(2));
    dcomm_build_copy(b, 0, out(), in(), 0);
    refused(b, DCOMM_ERR_PLAN, "mine, rank 1 lane 0 step 0 (loop): no end");
    b = begin(1, 4);
    for (int i = 0; i <= DCOMM_LOOP_DEPTH; i++) {
        dcomm_build_loop(b, 0, dcomm_const(2));
    }
    refused(b, DCOMM_ERR_PLAN, "loops nest deeper than 3");
    b = begin(1, 4);
    dcomm_build_scratch(b, -1);
    refused(b, DCOMM_ERR_INVALID, "-1 bytes of scratch");
    b = begin(1, 4);
    dcomm_build_tags(b, -2);
    refused(b, DCOMM_ERR_INVALID, "-2 tags");
    b = begin(1, 4);
    dcomm_build_tags(b, INT64_MAX);
    refused(b, DCOMM_ERR_UNSUPPORTED, "2^31 messages");
    b = begin(1, 4);
    dcomm_build_call(b, 0, NULL, 0, in(), out(), dcomm_const(0));
    refused(b, DCOMM_ERR_INVALID, "sub-plan is NULL");
    b = begin(1, 4);
    for (int i = 0; i <= DCOMM_PLAN_MAX_SLOTS; i++) {
        dcomm_build_slot(b);
    }
    refused(b, DCOMM_ERR_UNSUPPORTED, "more than 1024 slots");
    b = begin(1, 4);
    dcomm_build_copy(b, 0, out(), in(), 256);
    refused(b, DCOMM_ERR_PLAN, "lane 0 step 0 (copy): flags");
    b = begin(1, 4);
    dcomm_build_copy(b, 0, in(), out(), 0);
    refused(b, DCOMM_ERR_PLAN, "destination may not be in IN");
    const int depths[] = {-1, DCOMM_LOOP_DEPTH};
    for (int i = 0; i < 2; i++) {
        const dcomm_expr bad[] = {
            dcomm_linear(0, depths[i], 4), dcomm_modular(4, 0, depths[i], 1, 2),
            dcomm_lookup(0, 0, depths[i], 1, 2), dcomm_plus_loop(dcomm_const(0), depths[i], 4)};
        for (int k = 0; k < 4; k++) {
            b = begin(1, 4);
            dcomm_build_copy(b, 0, dcomm_at(DCOMM_SPACE_OUT, bad[k], 4),
                             dcomm_span(DCOMM_SPACE_IN, 0, 4), 0);
            refused(b, DCOMM_ERR_PLAN, "the destination has expression kind");
        }
    }
}

/* Two ranks swap their input through each other's memory, then through a sub-plan. */
static dcomm_plan *swap(int rank, const dcomm_plan *inner)
{
    dcomm_builder *b = begin(rank, 2);
    dcomm_expr peer = dcomm_const(1 - rank);
    const int64_t ranks[] = {0, 1};
    int64_t group = dcomm_build_table(b, ranks, 2);
    int64_t half = dcomm_build_scratch(b, 64);
    uint16_t read = dcomm_build_counter(b), slot = dcomm_build_slot(b);
    dcomm_plan *plan = NULL;
    if (inner == NULL) {
        dcomm_build_expose(b, 0, in(), slot, peer);
        dcomm_build_copy(b, 0, out(), dcomm_exposed(peer, slot, dcomm_const(0), 64), 0);
        dcomm_build_signal(b, 0, read, peer, dcomm_const(1));
        dcomm_build_wait(b, 0, read, dcomm_const(1));
    } else {
        dcomm_operand sum[2] = {in(), dcomm_span(DCOMM_SPACE_SCRATCH, half, 64)};
        dcomm_step *call = dcomm_build_call(b, 0, inner, group, in(), sum[1],
                                            dcomm_const(dcomm_build_tags(b, inner->ntags)));
        cr_assert(call != NULL && call->kind == DCOMM_STEP_CALL);
        call->slot = read;
        dcomm_build_reduce(b, 0, out(), sum, 2, DCOMM_STEP_FINAL);
    }
    cr_assert_eq(dcomm_build_finish(&b, &plan), DCOMM_OK, "%s", dcomm_last_error());
    return plan;
}

Test(build, a_sub_plan_and_exposed_memory)
{
    dcomm_check_spec spec = {.coll = DCOMM_COLL_ALLREDUCE, .count = 16, .dtype = DCOMM_F32};
    dcomm_plan *inner[2], *outer[2];
    dcomm_check_report report;
    double seconds = 0;
    dcomm_tuning tuning;
    for (int r = 0; r < 2; r++) {
        inner[r] = swap(r, NULL);
        outer[r] = swap(r, inner[r]);
    }
    cr_assert_eq(dcomm_plan_check((const dcomm_plan *const *)outer, 2, &spec, &report), DCOMM_OK,
                 "%s", report.message);
    dcomm_tuning_default(&tuning);
    cr_assert_eq(dcomm_plan_price((const dcomm_plan *const *)outer, 2, NULL, &tuning, &seconds),
                 DCOMM_OK);
    cr_assert_gt(seconds, 0);
    for (int r = 0; r < 2; r++) {
        dcomm_plan_destroy(&outer[r]);
        dcomm_plan_destroy(&inner[r]);
    }
}
