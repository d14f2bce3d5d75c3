/* check_plans.h - plans that the checker's tests start from, and the verdicts expected on them. */
#ifndef CHECK_PLANS_H
#define CHECK_PLANS_H

#include "dcomm/impl/base/base_impl.h"

#include "dcomm/impl/algo/table.h"
#include "dcomm/impl/check/check.h"

#include <criterion/criterion.h>

#define MAX 64

typedef struct set {
    dcomm_plan *plan[MAX];
    int n;
} set;

static dcomm_check_report report;

static dcomm_status check(const set *s, dcomm_check_spec spec)
{
    return dcomm_plan_check((const dcomm_plan *const *)s->plan, s->n, &spec, &report);
}

static void done(set *s)
{
    for (int i = 0; i < s->n; i++) {
        dcommi_free(s->plan[i]);
    }
}

static void right(set *s, dcomm_check_spec spec)
{
    cr_assert_eq(check(s, spec), DCOMM_OK, "refused: %s", report.message);
    cr_assert_str_empty(report.message);
    done(s);
}

/* Expect that the checker refuses the plans with both words in its message. */
static void wrong(set *s, dcomm_check_spec spec, const char *word, const char *other)
{
    cr_assert_eq(check(s, spec), DCOMM_ERR_PLAN, "accepted, looking for '%s'", word);
    cr_assert_not_null(strstr(report.message, word), "'%s' is not in: %s", word, report.message);
    cr_assert_not_null(strstr(report.message, other), "'%s' is not in: %s", other, report.message);
    cr_assert_str_eq(report.message, dcomm_last_error());
    done(s);
}

static dcomm_check_spec f32(dcomm_coll coll, size_t count)
{
    dcomm_check_spec spec = {.coll = coll, .count = count, .dtype = DCOMM_F32};
    return spec;
}

static dcomm_step *step(set *s, int rank, uint32_t i)
{
    return (dcomm_step *)(uintptr_t)&s->plan[rank]->steps[i];
}

static dcomm_operand *source(set *s, int rank, uint32_t i, uint32_t k)
{
    return (dcomm_operand *)(uintptr_t)&s->plan[rank]->operands[s->plan[rank]->steps[i].src + k];
}

static void begin(dcomm_builder *b, const char *name, int r, int n, int64_t in, int64_t out)
{
    dcommi_build_begin(b, name, r, n, DCOMM_F32, DCOMM_SUM);
    b->head.in_bytes = in;
    b->head.out_bytes = out;
}

static dcomm_plan *finish(dcomm_builder *b)
{
    dcomm_plan *plan = NULL;
    cr_assert_eq(dcommi_build_finish(b, &plan), DCOMM_OK, "%s", dcomm_last_error());
    return plan;
}

static dcomm_operand in(int64_t at, int64_t len)
{
    return dcomm_span(DCOMM_SPACE_IN, at, len);
}

static dcomm_operand out(int64_t at, int64_t len)
{
    return dcomm_span(DCOMM_SPACE_OUT, at, len);
}

static dcomm_operand scratch(int64_t at, int64_t len)
{
    return dcomm_span(DCOMM_SPACE_SCRATCH, at, len);
}

static dcomm_expr num(int64_t x)
{
    return dcomm_const(x);
}

/* ---- ring all-reduce: loops and modular block numbers ---- */

static dcomm_plan *ring_plan(int r, int n, int64_t block, dcomm_op op)
{
    dcomm_builder b;
    begin(&b, "ring", r, n, n * block, n * block);
    b.head.op = (uint32_t)op;
    dcomm_operand stage = scratch(dcomm_build_scratch(&b, block), block);
    dcomm_build_tags(&b, 2 * (n - 1));
    dcomm_expr next = num((r + 1) % n), last = num((r + n - 1) % n);
    int own = (r + 1) % n;
    dcomm_build_send(&b, 0, in(r * block, block), next, num(0), DCOMM_STEP_ASYNC); /* step 0 */
    int d = dcomm_build_loop(&b, 0, num(n - 2));
    dcomm_operand part = dcomm_at(DCOMM_SPACE_OUT, dcomm_modular(block, r - 1, d, -1, n), block);
    dcomm_operand mine = part;
    mine.space = DCOMM_SPACE_IN;
    dcomm_build_recv_reduce(&b, 0, part, dcomm_msg(), mine, stage, last, dcomm_linear(0, d, 1), 0);
    dcomm_build_send(&b, 0, part, next, dcomm_linear(1, d, 1), DCOMM_STEP_ASYNC);
    dcomm_build_end(&b, 0);
    dcomm_build_recv_reduce(&b, 0, out(own * block, block), dcomm_msg(), in(own * block, block),
                            stage, last, num(n - 2), DCOMM_STEP_FINAL); /* step 5 */
    dcomm_build_fence(&b, 0);
    d = dcomm_build_loop(&b, 0, num(n - 1)); /* step 7 */
    dcomm_build_send(&b, 0, dcomm_at(DCOMM_SPACE_OUT, dcomm_modular(block, r + 1, d, -1, n), block),
                     next, dcomm_linear(n - 1, d, 1), DCOMM_STEP_ASYNC);
    dcomm_build_recv(&b, 0, dcomm_at(DCOMM_SPACE_OUT, dcomm_modular(block, r, d, -1, n), block),
                     last, dcomm_linear(n - 1, d, 1), 0);
    dcomm_build_end(&b, 0);
    return finish(&b);
}

static set ring(int n, dcomm_op op)
{
    set s = {.n = n};
    for (int r = 0; r < n; r++) {
        s.plan[r] = ring_plan(r, n, 1024, op);
    }
    return s;
}

static dcomm_check_spec ring_spec(int n)
{
    return f32(DCOMM_COLL_ALLREDUCE, (size_t)n * 256);
}

/* ---- two ranks that exchange: small enough to break in many ways ---- */

/* Return a plan in which both ranks exchange IN and fold both into OUT. Unless `async`, rank 0
 * sends first. */
static dcomm_plan *pair_plan(int r, bool async)
{
    dcomm_builder b;
    begin(&b, "pair", r, 2, 64, 64);
    dcomm_build_tags(&b, 2);
    dcomm_build_scratch(&b, 64);
    dcomm_expr peer = num(1 - r);
    unsigned flags = async ? DCOMM_STEP_ASYNC : 0;
    if (r == 0 || async) {
        dcomm_build_send(&b, 0, in(0, 64), peer, num(0), flags);
    }
    dcomm_build_recv(&b, 0, scratch(0, 64), peer, num(0), 0);
    if (r == 1 && !async) {
        dcomm_build_send(&b, 0, in(0, 64), peer, num(0), flags);
    }
    dcomm_operand both[2] = {in(0, 64), scratch(0, 64)};
    if (r == 1) {
        both[0] = scratch(0, 64);
        both[1] = in(0, 64);
    }
    dcomm_build_reduce(&b, 0, out(0, 64), both, 2, DCOMM_STEP_FINAL);
    return finish(&b);
}

static set pair(bool async)
{
    set s = {.n = 2, .plan = {pair_plan(0, async), pair_plan(1, async)}};
    return s;
}

static const dcomm_check_spec pair_spec = {
    .coll = DCOMM_COLL_ALLREDUCE, .count = 16, .dtype = DCOMM_F32};

/* ---- the need for a fence ---- */

/* Rank 0 sends OUT asynchronously and overwrites it, with or without a fence between. */
static set overwrite(bool fence)
{
    set s = {.n = 2};
    for (int r = 0; r < 2; r++) {
        dcomm_builder b;
        begin(&b, "overwrite", r, 2, 128, 64);
        dcomm_build_tags(&b, 1);
        if (r == 0) {
            dcomm_build_copy(&b, 0, out(0, 64), in(0, 64), 0);
            dcomm_build_send(&b, 0, out(0, 64), num(1), num(0), DCOMM_STEP_ASYNC);
            if (fence) {
                dcomm_build_fence(&b, 0);
            }
            dcomm_build_copy(&b, 0, out(0, 64), in(64, 64), 0);
        } else {
            dcomm_build_recv(&b, 0, out(0, 64), num(0), num(0), 0);
        }
        s.plan[r] = finish(&b);
    }
    return s;
}

/* ---- exposed memory, signals ---- */

enum { FINE, NO_WAIT, STARVED, EARLY, NO_ORDER };

/* Each rank folds all ranks' inputs in place, `rounds` times, then signals that it has read
 * them. One counter serves all readers, so the next round's signals must not satisfy this
 * round's wait. */
static set one_shot(int n, int rounds, int fault, bool in_order)
{
    set s = {.n = n};
    for (int r = 0; r < n; r++) {
        dcomm_builder b;
        begin(&b, "one_shot", r, n, 64, 64);
        uint16_t slot = dcomm_build_slot(&b), ready = dcomm_build_counter(&b);
        uint16_t read = dcomm_build_counter(&b);
        int64_t at = dcomm_build_scratch(&b, 64);
        dcomm_build_expose(&b, 0, scratch(at, 64), slot, num(DCOMM_ALL_PEERS));
        for (int k = 0; k < rounds; k++) {
            dcomm_build_copy(&b, 0, scratch(at, 64), in(0, 64), 0);
            if (fault != EARLY) {
                dcomm_build_signal(&b, 0, ready, num(DCOMM_ALL_PEERS), num(1));
                dcomm_build_wait(&b, 0, ready, num((int64_t)(k + 1) * (n - 1)));
            }
            dcomm_operand parts[3] = {dcomm_exposed(num(0), slot, num(0), 64), scratch(at, 64),
                                      dcomm_exposed(num((r + 1) % n), slot, num(0), 64)};
            parts[0].repeat = (uint32_t)r;
            parts[2].repeat = (uint32_t)(n - 1 - r);
            uint32_t head = r == 0 ? 1 : 0, tail = r == n - 1 ? 1 : 0;
            if (!in_order) { /* the rank itself first, then the others from the next rank on */
                parts[0] = parts[1];
                parts[1] = parts[2];
                parts[1].repeat = (uint32_t)n - 1;
                head = 0;
                tail = 1;
            }
            dcomm_build_reduce(&b, 0, out(0, 64), parts + head, 3 - head - tail, DCOMM_STEP_FINAL);
            dcomm_build_signal(&b, 0, read, num(DCOMM_ALL_PEERS), num(1));
            int64_t wanted = (int64_t)(k + 1) * (n - 1);
            if (fault != NO_WAIT) {
                dcomm_build_wait(&b, 0, read, num(fault == STARVED ? wanted + 1 : wanted));
            }
        }
        s.plan[r] = finish(&b);
    }
    return s;
}

#endif
