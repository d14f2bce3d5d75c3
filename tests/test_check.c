/* test_check.c - the plan checker accepts right plans and refuses plans that are broken on purpose,
 * naming the place. */
#define _GNU_SOURCE
#define DCOMM_IMPLEMENTATION
#include "dcomm/all.h"

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

/* Refused, with each of the words in the message. */
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

static void begin(dcommi_builder *b, const char *name, int r, int n, int64_t in, int64_t out)
{
    dcommi_build_begin(b, name, r, n, DCOMM_F32, DCOMM_SUM);
    b->head.in_bytes = in;
    b->head.out_bytes = out;
}

static dcomm_plan *finish(dcommi_builder *b)
{
    dcomm_plan *plan = NULL;
    cr_assert_eq(dcommi_build_finish(b, &plan), DCOMM_OK, "%s", dcomm_last_error());
    return plan;
}

static dcomm_operand in(int64_t at, int64_t len)
{
    return dcommi_span(DCOMM_SPACE_IN, at, len);
}

static dcomm_operand out(int64_t at, int64_t len)
{
    return dcommi_span(DCOMM_SPACE_OUT, at, len);
}

static dcomm_operand scratch(int64_t at, int64_t len)
{
    return dcommi_span(DCOMM_SPACE_SCRATCH, at, len);
}

static dcomm_expr num(int64_t x)
{
    return dcommi_const(x);
}

/* ---- ring all-reduce: loops and modular places ---- */

static dcomm_plan *ring_plan(int r, int n, int64_t block, dcomm_op op)
{
    dcommi_builder b;
    begin(&b, "ring", r, n, n * block, n * block);
    b.head.op = (uint8_t)op;
    dcomm_operand stage = scratch(dcommi_build_scratch(&b, block), block);
    dcommi_build_tags(&b, 2 * (n - 1));
    dcomm_expr next = num((r + 1) % n), last = num((r + n - 1) % n);
    int own = (r + 1) % n;
    dcommi_send(&b, 0, in(r * block, block), next, num(0), DCOMM_STEP_ASYNC); /* step 0 */
    int d = dcommi_loop(&b, 0, num(n - 2));
    dcomm_operand part = dcommi_at(DCOMM_SPACE_OUT, dcommi_modular(block, r - 1, d, -1, n), block);
    dcomm_operand mine = part;
    mine.space = DCOMM_SPACE_IN;
    dcommi_recv_reduce(&b, 0, part, dcommi_msg(), mine, stage, last, dcommi_linear(0, d, 1), 0);
    dcommi_send(&b, 0, part, next, dcommi_linear(1, d, 1), DCOMM_STEP_ASYNC);
    dcommi_end(&b, 0);
    dcommi_recv_reduce(&b, 0, out(own * block, block), dcommi_msg(), in(own * block, block), stage,
                       last, num(n - 2), DCOMM_STEP_FINAL); /* step 5 */
    dcommi_fence(&b, 0);
    d = dcommi_loop(&b, 0, num(n - 1)); /* step 7 */
    dcommi_send(&b, 0, dcommi_at(DCOMM_SPACE_OUT, dcommi_modular(block, r + 1, d, -1, n), block),
                next, dcommi_linear(n - 1, d, 1), DCOMM_STEP_ASYNC);
    dcommi_recv(&b, 0, dcommi_at(DCOMM_SPACE_OUT, dcommi_modular(block, r, d, -1, n), block), last,
                dcommi_linear(n - 1, d, 1), 0);
    dcommi_end(&b, 0);
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

Test(right, ring)
{
    for (int n = 2; n <= 64; n += n < 9 ? 1 : 11) {
        set s = ring(n, DCOMM_AVG);
        right(&s, ring_spec(n));
        cr_assert_eq(report.messages, 2 * n * (n - 1));
        cr_assert_eq(report.steps, 2 * (n - 1));
        cr_assert_eq(report.max_rank_bytes, 2 * (n - 1) * 1024);
        cr_assert_eq(report.total_bytes, 2 * n * (n - 1) * 1024);
    }
}

Test(broken, step_dropped)
{
    for (uint32_t i = 0; i < 11; i++) {
        set s = ring(4, DCOMM_SUM);
        if (i == 1 || i == 4 || i == 6 || i == 7 || i == 10) { /* loops; a fence is below */
            done(&s);
            continue;
        }
        dcomm_step *gone = step(&s, 2, i);
        gone->kind = DCOMM_STEP_FENCE;
        gone->flags = 0;
        gone->nsrc = 0;
        wrong(&s, ring_spec(4), "rank", "");
    }
}

Test(broken, length)
{
    set s = ring(4, DCOMM_SUM);
    source(&s, 1, 0, 0)->length.add -= 4;
    wrong(&s, ring_spec(4), "rank 2 lane 0 step 2 (recv_reduce from 1, tag 0)", "1020");
}

Test(broken, out_of_space)
{
    set s = ring(4, DCOMM_SUM);
    step(&s, 3, 5)->dst.offset.add = 4 * 1024 - 512;
    wrong(&s, ring_spec(4), "rank 3 lane 0 step 5", "OUT, which has 4096");
}

Test(broken, block_in_the_wrong_place)
{
    set s = ring(4, DCOMM_SUM);
    source(&s, 3, 5, 1)->offset.add = 1024;
    wrong(&s, ring_spec(4), "rank 3 lane 0 step 5", "folds input byte");
}

Test(broken, average_never_divided)
{
    set s = ring(4, DCOMM_AVG);
    step(&s, 1, 5)->flags = 0;
    wrong(&s, ring_spec(4), "FINAL", "OUT bytes");
    s = ring(4, DCOMM_AVG);
    step(&s, 1, 2)->flags = DCOMM_STEP_FINAL;
    wrong(&s, ring_spec(4), "rank 1 lane 0 step 2", "is FINAL with only ranks");
}

Test(broken, ring_is_not_in_rank_order)
{
    set s = ring(4, DCOMM_SUM);
    dcomm_check_spec spec = ring_spec(4);
    spec.rank_order = true;
    wrong(&s, spec, "not folded in rank order", "rank 0");
}

Test(broken, structure)
{
    set s = ring(3, DCOMM_SUM);
    step(&s, 1, 4)->body = 7;
    wrong(&s, ring_spec(3), "rank 1 lane 0 step 4 (end)", "2 steps");
    s = ring(3, DCOMM_SUM);
    step(&s, 1, 6)->kind = 200;
    wrong(&s, ring_spec(3), "rank 1 lane 0 step 6", "kind 200");
    s = ring(3, DCOMM_SUM);
    step(&s, 2, 5)->dst.space = DCOMM_SPACE_IN;
    wrong(&s, ring_spec(3), "rank 2 lane 0 step 5", "may not be in IN");
    s = ring(3, DCOMM_SUM);
    step(&s, 2, 5)->peer.add = 2;
    wrong(&s, ring_spec(3), "rank 2 lane 0 step 5", "itself");
    s = ring(3, DCOMM_SUM);
    step(&s, 2, 5)->tag.add = 4;
    wrong(&s, ring_spec(3), "rank 2 lane 0 step 5", "tag 4 is not in [0, 4)");
    s = ring(3, DCOMM_SUM);
    step(&s, 0, 3)->tag.scale = INT64_MAX;
    step(&s, 0, 3)->tag.base = 2;
    wrong(&s, ring_spec(3), "rank 0", "64 bits");
    s = ring(3, DCOMM_SUM);
    s.plan[1]->rank = 2;
    wrong(&s, ring_spec(3), "rank 1", "its plan is for rank 2");
}

/* ---- two ranks that exchange: small enough to break in many ways ---- */

/* OUT <- fold of both, on both; ordered says that rank 0 sends first. */
static dcomm_plan *pair_plan(int r, bool async)
{
    dcommi_builder b;
    begin(&b, "pair", r, 2, 64, 64);
    dcommi_build_tags(&b, 2);
    dcommi_build_scratch(&b, 64);
    dcomm_expr peer = num(1 - r);
    unsigned flags = async ? DCOMM_STEP_ASYNC : 0;
    if (r == 0 || async) {
        dcommi_send(&b, 0, in(0, 64), peer, num(0), flags);
    }
    dcommi_recv(&b, 0, scratch(0, 64), peer, num(0), 0);
    if (r == 1 && !async) {
        dcommi_send(&b, 0, in(0, 64), peer, num(0), flags);
    }
    dcomm_operand both[2] = {in(0, 64), scratch(0, 64)};
    if (r == 1) {
        both[0] = scratch(0, 64);
        both[1] = in(0, 64);
    }
    dcommi_reduce(&b, 0, out(0, 64), both, 2, DCOMM_STEP_FINAL);
    return finish(&b);
}

static set pair(bool async)
{
    set s = {.n = 2, .plan = {pair_plan(0, async), pair_plan(1, async)}};
    return s;
}

static const dcomm_check_spec pair_spec = {
    .coll = DCOMM_COLL_ALLREDUCE, .count = 16, .dtype = DCOMM_F32};

static void swap_steps(set *s, int rank, uint32_t i, uint32_t k)
{
    dcomm_step t = *step(s, rank, i);
    *step(s, rank, i) = *step(s, rank, k);
    *step(s, rank, k) = t;
}

Test(right, pair)
{
    set s = pair(false);
    dcomm_check_spec spec = pair_spec;
    spec.rank_order = true;
    right(&s, spec);
    s = pair(true);
    right(&s, spec);
}

Test(broken, steps_swapped)
{
    set s = pair(false);
    swap_steps(&s, 0, 0, 1); /* both receive first */
    wrong(&s, pair_spec, "deadlock", "rank 0 lane 0 step 0 (recv from 1, tag 0) waits");
    s = pair(true);
    swap_steps(&s, 1, 1, 2); /* the fold before the receive */
    wrong(&s, pair_spec, "rank 1 lane 0 step 1 (reduce)", "which nothing has written");
}

Test(broken, unbuffered_exchange)
{
    set s = pair(false);
    swap_steps(&s, 1, 0, 1); /* both send first: works only where messages are buffered */
    wrong(&s, pair_spec, "deadlock", "rank 1 lane 0 step 0 (send to 0, tag 0) waits");
}

Test(broken, reduced_twice)
{
    set s = pair(true);
    source(&s, 0, 2, 0)->space = DCOMM_SPACE_SCRATCH;
    wrong(&s, pair_spec, "rank 0 lane 0 step 2 (reduce)", "rank 1 a second time");
}

Test(broken, result_missing)
{
    set s = pair(true);
    step(&s, 0, 2)->dst.space = DCOMM_SPACE_SCRATCH;
    wrong(&s, pair_spec, "rank 0: OUT bytes 0 to 64", "never written");
}

Test(broken, messages)
{
    set s = {.n = 2};
    for (int twice = 0; twice < 2; twice++) {
        for (int r = 0; r < 2; r++) {
            dcommi_builder b;
            begin(&b, "messages", r, 2, 64, 64);
            dcommi_build_tags(&b, 2);
            for (int i = 0; i <= twice; i++) {
                if (r == 0) {
                    dcommi_send(&b, 0, in(0, 8), num(1), num(1), DCOMM_STEP_ASYNC);
                } else if (twice) {
                    dcommi_recv(&b, 0, out(8 * i, 8), num(0), num(1), 0);
                }
            }
            s.plan[r] = finish(&b);
        }
        if (twice) {
            wrong(&s, f32(DCOMM_COLL_PLAN, 0), "another message from rank 0 to 1 with tag 1",
                  "rank 0 lane 0 step 1");
        } else {
            wrong(&s, f32(DCOMM_COLL_PLAN, 0), "rank 0 lane 0 step 0 (send to 1, tag 1) waits",
                  "at a fence");
        }
    }
}

/* Rank 0 sends OUT asynchronously and overwrites it, with or without a fence between. */
static set overwrite(bool fence)
{
    set s = {.n = 2};
    for (int r = 0; r < 2; r++) {
        dcommi_builder b;
        begin(&b, "overwrite", r, 2, 128, 64);
        dcommi_build_tags(&b, 1);
        if (r == 0) {
            dcommi_copy(&b, 0, out(0, 64), in(0, 64), 0);
            dcommi_send(&b, 0, out(0, 64), num(1), num(0), DCOMM_STEP_ASYNC);
            if (fence) {
                dcommi_fence(&b, 0);
            }
            dcommi_copy(&b, 0, out(0, 64), in(64, 64), 0);
        } else {
            dcommi_recv(&b, 0, out(0, 64), num(0), num(0), 0);
        }
        s.plan[r] = finish(&b);
    }
    return s;
}

Test(broken, fence_missing)
{
    set s = overwrite(true);
    right(&s, f32(DCOMM_COLL_PLAN, 0));
    s = overwrite(false);
    wrong(&s, f32(DCOMM_COLL_PLAN, 0), "nothing orders the two", "(async)");
    s = ring(4, DCOMM_SUM);
    step(&s, 1, 6)->kind = DCOMM_STEP_WAIT; /* the fence of the ring: a wait for nothing */
    s.plan[1]->ncounters = 1;
    wrong(&s, ring_spec(4), "nothing orders the two", "rank 1 lane 0 step 9 (recv from 0");
}

Test(broken, lanes_racing)
{
    for (int ordered = 0; ordered < 2; ordered++) {
        dcommi_builder b;
        begin(&b, "lanes", 0, 1, 64, 64);
        uint16_t counter = dcommi_build_counter(&b);
        dcommi_copy(&b, 0, out(0, 40), in(0, 40), 0);
        dcommi_signal(&b, 0, counter, num(0), num(1));
        if (ordered) {
            dcommi_await(&b, 1, counter, num(1));
        }
        dcommi_copy(&b, 1, out(32, 32), in(32, 32), 0);
        set s = {.n = 1, .plan = {finish(&b)}};
        if (ordered) {
            right(&s, f32(DCOMM_COLL_PLAN, 0));
        } else {
            wrong(&s, f32(DCOMM_COLL_PLAN, 0), "byte 32 of rank 0's OUT", "nothing orders");
        }
    }
}

/* ---- exposed memory, signals ---- */

enum { FINE, NO_WAIT, STARVED, EARLY, NO_ORDER };

/* Everybody folds everybody's input where it lies, `rounds` times; then says that it has read. With
 * one counter for all readers a round's wait must not be satisfied by the next round's signals. */
static set one_shot(int n, int rounds, int fault, bool in_order)
{
    set s = {.n = n};
    for (int r = 0; r < n; r++) {
        dcommi_builder b;
        begin(&b, "one_shot", r, n, 64, 64);
        uint16_t slot = dcommi_build_slot(&b), ready = dcommi_build_counter(&b);
        uint16_t read = dcommi_build_counter(&b);
        int64_t at = dcommi_build_scratch(&b, 64);
        dcommi_expose(&b, 0, scratch(at, 64), slot, num(DCOMM_ALL_PEERS));
        for (int k = 0; k < rounds; k++) {
            dcommi_copy(&b, 0, scratch(at, 64), in(0, 64), 0);
            if (fault != EARLY) {
                dcommi_signal(&b, 0, ready, num(DCOMM_ALL_PEERS), num(1));
                dcommi_await(&b, 0, ready, num((int64_t)(k + 1) * (n - 1)));
            }
            dcomm_operand parts[3] = {dcommi_peer(num(0), slot, num(0), 64), scratch(at, 64),
                                      dcommi_peer(num((r + 1) % n), slot, num(0), 64)};
            parts[0].repeat = (uint32_t)r;
            parts[2].repeat = (uint32_t)(n - 1 - r);
            uint32_t head = r == 0 ? 1 : 0, tail = r == n - 1 ? 1 : 0;
            if (!in_order) { /* itself first, then the others from the next rank on */
                parts[0] = parts[1];
                parts[1] = parts[2];
                parts[1].repeat = (uint32_t)n - 1;
                head = 0;
                tail = 1;
            }
            dcommi_reduce(&b, 0, out(0, 64), parts + head, 3 - head - tail, DCOMM_STEP_FINAL);
            dcommi_signal(&b, 0, read, num(DCOMM_ALL_PEERS), num(1));
            int64_t wanted = (int64_t)(k + 1) * (n - 1);
            if (fault != NO_WAIT) {
                dcommi_await(&b, 0, read, num(fault == STARVED ? wanted + 1 : wanted));
            }
        }
        s.plan[r] = finish(&b);
    }
    return s;
}

Test(right, exposed_memory)
{
    for (int n = 2; n <= 7; n++) {
        dcomm_check_spec spec = pair_spec;
        set s = one_shot(n, 1, FINE, false);
        right(&s, spec);
        s = one_shot(n, 3, FINE, true);
        spec.rank_order = true;
        right(&s, spec);
        cr_assert_eq(report.max_rank_bytes, (int64_t)3 * 64 * (n - 1));
        spec.dtype = DCOMM_BF16;
        spec.count = 32;
        s = one_shot(n, 1, FINE, true);
        for (int r = 0; r < n; r++) {
            s.plan[r]->dtype = DCOMM_BF16;
        }
        right(&s, spec);
    }
}

Test(broken, credit_starved)
{
    set s = one_shot(4, 2, STARVED, false);
    wrong(&s, pair_spec, "deadlock", "(wait for counter 1 >= 4) waits");
}

Test(broken, exposed_memory_overwritten)
{
    set s = one_shot(4, 2, NO_WAIT, false);
    wrong(&s, pair_spec, "SCRATCH", "nothing orders the two");
    s = one_shot(4, 1, NO_WAIT, false);
    wrong(&s, pair_spec, "may be done before", "SCRATCH that it exposes");
    s = one_shot(4, 1, EARLY, false);
    wrong(&s, pair_spec, "SCRATCH", "");
}

Test(broken, signals_of_others_count_too)
{
    /* Rank 0 waits for two signals, of which rank 2 may give both: rank 1 may not be there. */
    set s = {.n = 3};
    for (int r = 0; r < 3; r++) {
        dcommi_builder b;
        begin(&b, "barrier", r, 3, 0, 0);
        uint16_t come = dcommi_build_counter(&b), go = dcommi_build_counter(&b);
        if (r == 0) {
            dcommi_await(&b, 0, come, num(2));
            dcommi_signal(&b, 0, go, num(DCOMM_ALL_PEERS), num(1));
        } else {
            dcommi_signal(&b, 0, come, num(0), num(r));
            dcommi_await(&b, 0, go, num(1));
        }
        s.plan[r] = finish(&b);
    }
    set t = s; /* with signals of 1 each it is right */
    wrong(&s, f32(DCOMM_COLL_BARRIER, 0), "may leave the barrier before rank 1", "rank 0");
    for (int r = 0; r < 3; r++) {
        dcommi_builder b;
        begin(&b, "barrier", r, 3, 0, 0);
        uint16_t come = dcommi_build_counter(&b), go = dcommi_build_counter(&b);
        if (r == 0) {
            dcommi_await(&b, 0, come, num(2));
            dcommi_signal(&b, 0, go, num(DCOMM_ALL_PEERS), num(1));
        } else {
            dcommi_signal(&b, 0, come, num(0), num(1));
            dcommi_await(&b, 0, go, num(1));
        }
        t.plan[r] = finish(&b);
    }
    right(&t, f32(DCOMM_COLL_BARRIER, 0));
}

/* ---- rank order in 16 bits: a chain of partial sums rounds at each hop ---- */

Test(right, chain_in_rank_order)
{
    for (int dtype = DCOMM_F32; dtype <= DCOMM_BF16; dtype++) {
        set s = {.n = 3};
        for (int r = 0; r < 3; r++) {
            dcommi_builder b;
            begin(&b, "chain", r, 3, 64, 64);
            b.head.dtype = (uint8_t)dtype;
            dcommi_build_tags(&b, 1);
            dcomm_operand at = scratch(dcommi_build_scratch(&b, 64), 64);
            dcomm_operand stage = scratch(dcommi_build_scratch(&b, 64), 64);
            dcomm_operand sum = r == 2 ? out(0, 64) : at;
            if (r > 0) {
                dcommi_recv_reduce(&b, 0, sum, dcommi_msg(), in(0, 64), stage, num(r - 1), num(0),
                                   0);
            }
            if (r < 2) {
                dcommi_send(&b, 0, r == 0 ? in(0, 64) : at, num(r + 1), num(0), 0);
            }
            s.plan[r] = finish(&b);
        }
        dcomm_check_spec spec = f32(DCOMM_COLL_REDUCE, 64 / dcomm_dtype_size((dcomm_dtype)dtype));
        spec.dtype = (dcomm_dtype)dtype;
        spec.root = 2;
        spec.rank_order = true;
        if (dtype == DCOMM_F32) {
            right(&s, spec);
        } else {
            wrong(&s, spec, "not folded in rank order", "16-bit");
        }
    }
}

/* ---- every rank sends every block straight to where it belongs ---- */

Test(right, all_to_all_v)
{
    enum { N = 5 };
    size_t counts[N][N];
    for (size_t i = 0; i < N; i++) {
        for (size_t k = 0; k < N; k++) {
            counts[i][k] = i == k ? 3 : (i * 7 + k * 3) % 5;
        }
    }
    for (int fault = 0; fault < 2; fault++) {
        set s = {.n = N};
        for (int r = 0; r < N; r++) {
            dcommi_builder b;
            begin(&b, "linear", r, N, 0, 0);
            dcommi_build_tags(&b, 1);
            int64_t from = 0, to = 0;
            for (int p = 0; p < N; p++) {
                int64_t give = 4 * (int64_t)counts[r][p], take = 4 * (int64_t)counts[p][r];
                if (p == r) {
                    dcommi_copy(&b, 0, out(to, take), in(from, give), 0);
                } else {
                    int64_t shift = fault && r == 2 && p == 4 ? 4 : 0;
                    dcommi_send(&b, 0, in(from - shift, give), num(p), num(0), DCOMM_STEP_ASYNC);
                    dcommi_recv(&b, 0, out(to, take), num(p), num(0), DCOMM_STEP_ASYNC);
                }
                from += give;
                to += take;
            }
            b.head.in_bytes = from;
            b.head.out_bytes = to;
            s.plan[r] = finish(&b);
        }
        dcomm_check_spec spec = f32(DCOMM_COLL_ALLTOALLV, 0);
        spec.counts = &counts[0][0];
        if (fault) {
            wrong(&s, spec, "rank 4: OUT bytes", "hold input from byte");
        } else {
            right(&s, spec);
        }
    }
}

static void check_rooted(dcomm_coll coll, bool in_place, bool scatters)
{
    enum { N = 4, ROOT = 2 };
    set s = {.n = N};
    for (int r = 0; r < N; r++) {
        dcommi_builder b;
        begin(&b, "linear", r, N, 256, 256);
        dcommi_build_tags(&b, 1);
        dcomm_space space = in_place ? DCOMM_SPACE_OUT : DCOMM_SPACE_IN;
        for (int p = 0; r == ROOT && p < N; p++) {
            dcomm_operand block =
                scatters ? dcommi_span(space, p * 64, 64) : dcommi_span(space, 0, 64);
            if (p != r) {
                dcommi_send(&b, 0, block, num(p), num(0), DCOMM_STEP_ASYNC);
            } else if (!in_place) {
                dcommi_copy(&b, 0, out(0, 64), block, 0);
            }
        }
        if (r != ROOT) {
            dcommi_recv(&b, 0, out(0, 64), num(ROOT), num(0), 0);
        }
        s.plan[r] = finish(&b);
    }
    dcomm_check_spec spec = f32(coll, 16);
    spec.root = ROOT;
    spec.in_place = in_place;
    right(&s, spec);
}

Test(right, rooted)
{
    for (int in_place = 0; in_place < 2; in_place++) {
        check_rooted(DCOMM_COLL_BROADCAST, in_place, false);
        check_rooted(DCOMM_COLL_SCATTER, in_place, true);
    }
}

Test(broken, reduce_writes_where_it_may_not)
{
    for (int in_place = 0; in_place < 2; in_place++) {
        set s = pair(true);
        dcomm_check_spec spec = pair_spec;
        spec.coll = DCOMM_COLL_REDUCE;
        spec.in_place = in_place;
        for (int r = 0; r < 2 && in_place; r++) {
            source(&s, r, 0, 0)->space = DCOMM_SPACE_OUT;
            source(&s, r, 2, (uint32_t)r)->space = DCOMM_SPACE_OUT;
        }
        wrong(&s, spec, "rank 1 lane 0 step 2 (reduce)", "OUT");
    }
}

/* ---- sub-plans, run-time lengths, stages, codecs ---- */

Test(right, sub_plan)
{
    for (int fault = 0; fault < 2; fault++) {
        /* Even and odd ranks reduce apart, then pairs (0,1) and (2,3) put both halves together. */
        dcomm_plan *half[4], *whole[4];
        set s = {.n = 4};
        for (int r = 0; r < 4; r++) {
            half[r] = pair_plan(r / 2, true);
            whole[r] = pair_plan(r % 2, true);
            dcommi_builder b;
            begin(&b, "two levels", r, 4, 64, 64);
            dcommi_build_tags(&b, 4);
            dcomm_operand mid = scratch(dcommi_build_scratch(&b, 64), 64);
            int64_t first[2] = {r % 2, r % 2 + 2}, then[2] = {r - r % 2, r - r % 2 + 1};
            int64_t group = dcommi_build_table(&b, first, 2);
            dcommi_call(&b, 0, half[r], group, in(0, 64), mid, num(0));
            group = dcommi_build_table(&b, then, 2);
            dcommi_call(&b, 0, whole[r], group, fault ? in(0, 64) : mid, out(0, 64), num(2));
            s.plan[r] = finish(&b);
        }
        if (fault) {
            wrong(&s, pair_spec, "hold the ranks 0x3", "should hold 0xf");
        } else {
            right(&s, pair_spec);
        }
        for (int r = 0; r < 4; r++) {
            dcommi_free(half[r]);
            dcommi_free(whole[r]);
        }
    }
}

static dcomm_status no_code(void *user, const void *src, size_t src_len, void *dst, size_t dst_len)
{
    (void)user, (void)src, (void)src_len, (void)dst, (void)dst_len;
    return DCOMM_OK;
}

static dcomm_status no_encode(void *user, const void *src, size_t src_len, void *dst,
                              size_t dst_len, size_t *encoded)
{
    *encoded = 0;
    return no_code(user, src, src_len, dst, dst_len);
}

static const dcomm_plan_codec codec = {"none", no_encode, no_code, no_code};

/* OUT <- IN (+) the other's, which comes encoded, of a length known at run time. */
static set compressed(bool fault)
{
    set s = {.n = 2};
    for (int r = 0; r < 2; r++) {
        dcommi_builder b;
        begin(&b, "compressed", r, 2, 64, 64);
        b.head.codec = &codec;
        b.head.nwords = 2;
        dcommi_build_tags(&b, 1);
        int64_t sent = dcommi_build_scratch(&b, 80), got = dcommi_build_scratch(&b, 80);
        dcomm_operand payload = scratch(sent, 80), arrived = scratch(got, 80);
        dcomm_operand src = in(0, 64);
        dcomm_step *e = dcommi_build_step(&b, 0, DCOMM_STEP_ENCODE);
        e->dst = payload;
        e->word = 0;
        dcommi_build_sources(&b, e, &src, 1);
        payload.length = dcommi_word(0);
        dcommi_send(&b, 0, payload, num(1 - r), num(0), DCOMM_STEP_ASYNC);
        dcommi_recv(&b, 0, arrived, num(1 - r), num(0), 0);
        if (!fault) {
            dcommi_build_step(&b, 0, DCOMM_STEP_FENCE);
            b.lanes[0].steps[2].word = 1;
        }
        dcommi_copy(&b, 0, out(0, 64), in(0, 64), 0);
        arrived.length = fault ? num(80) : dcommi_word(1);
        dcomm_step *d = dcommi_build_step(&b, 0, DCOMM_STEP_DECODE_REDUCE);
        d->dst = out(0, 64);
        dcommi_build_sources(&b, d, &arrived, 1);
        s.plan[r] = finish(&b);
    }
    return s;
}

Test(right, compressed)
{
    set s = compressed(false);
    right(&s, pair_spec);
    s = compressed(true);
    wrong(&s, pair_spec, "(recv from", "takes 80 bytes, but");
}

static dcomm_plan *second[2];
static int released;

static const dcomm_plan *next_stage(void *user, const uint64_t *words, uint32_t nwords,
                                    dcomm_status *status)
{
    *status = nwords == 2 && words[1] <= 80 ? DCOMM_OK : DCOMM_ERR_INTERNAL;
    return *status == DCOMM_OK ? second[(uintptr_t)user] : NULL;
}

static void release_stage(void *user, const dcomm_plan *plan)
{
    released += plan == second[(uintptr_t)user];
}

Test(right, stages)
{
    for (int fault = 0; fault < 2; fault++) {
        set s = compressed(false);
        for (int r = 0; r < 2; r++) {
            s.plan[r]->next = next_stage;
            s.plan[r]->release = release_stage;
            s.plan[r]->next_user = (void *)(uintptr_t)r;
            second[r] = pair_plan(r, true);
            second[r]->ntags -= fault ? 2 : 0;
        }
        released = 0;
        if (fault) {
            wrong(&s, pair_spec, "lane 0 step 0 (send)", "tag 0 is not in [0, 0)");
        } else {
            right(&s, pair_spec);
            cr_assert_gt(released, 0);
        }
        dcommi_free(second[0]);
        dcommi_free(second[1]);
    }
}

/* ---- arguments, printing, and any garbage ---- */

Test(arguments, refused)
{
    set s = pair(true);
    dcomm_check_spec spec = pair_spec;
    const dcomm_plan *const *plans = (const dcomm_plan *const *)s.plan;
    cr_assert_eq(dcomm_plan_check(NULL, 2, &spec, NULL), DCOMM_ERR_INVALID);
    cr_assert_eq(dcomm_plan_check(plans, 2, NULL, NULL), DCOMM_ERR_INVALID);
    cr_assert_eq(dcomm_plan_check(plans, 65, &spec, NULL), DCOMM_ERR_INVALID);
    cr_assert_eq(dcomm_plan_check(plans, 2, &spec, NULL), DCOMM_OK);
    spec.coll = DCOMM_COLL_GATHERV;
    cr_assert_eq(dcomm_plan_check(plans, 2, &spec, NULL), DCOMM_ERR_INVALID);
    spec.coll = DCOMM_COLL_REDUCE;
    spec.root = 2;
    cr_assert_eq(dcomm_plan_check(plans, 2, &spec, NULL), DCOMM_ERR_INVALID);
    done(&s);
}

static uint64_t seed;

static uint64_t draw(uint64_t below)
{
    seed = dcommi_mix(seed, 1);
    return seed % below;
}

static int64_t garbage(int64_t was)
{
    static const int64_t numbers[] = {0,  1,   -1,    2,         63,        64,       65,
                                      -2, 255, 65536, INT32_MAX, INT64_MAX, INT64_MIN};
    switch (draw(4)) {
    case 0:
        return was + 1;
    case 1:
        return was - 1;
    case 2:
        return (int64_t)((uint64_t)was * 2);
    default:
        return numbers[draw(sizeof numbers / sizeof numbers[0])];
    }
}

static void spoil_expr(dcomm_expr *e)
{
    int64_t *field[] = {&e->add,     &e->scale,   &e->post[0], &e->post[1], &e->base,
                        &e->coef[0], &e->coef[1], &e->mod,     &e->coef[2]};
    if (draw(8) == 0) {
        e->kind = (uint8_t)draw(6);
    } else {
        int64_t *f = field[draw(sizeof field / sizeof field[0])];
        *f = *f<INT64_MAX && * f> INT64_MIN ? garbage(*f) : 0;
    }
}

static void spoil_operand(dcomm_operand *o)
{
    switch (draw(8)) {
    case 0:
        o->space = (uint8_t)draw(10);
        break;
    case 1:
        o->repeat = (uint32_t)garbage(o->repeat);
        break;
    case 2:
        o->stride = garbage(o->stride);
        break;
    case 3:
        o->max_length = garbage(o->max_length);
        break;
    case 4:
        o->clip = garbage(o->clip);
        break;
    case 5:
        spoil_expr(&o->offset);
        break;
    case 6:
        spoil_expr(&o->length);
        break;
    default:
        spoil_expr(&o->peer);
        break;
    }
}

static void spoil_step(dcomm_step *s)
{
    switch (draw(14)) {
    case 0:
        s->kind = (uint8_t)draw(DCOMM_STEP_KIND_COUNT + 2);
        break;
    case 1:
        s->flags = (uint8_t)draw(5);
        break;
    case 2:
        s->slot = (uint16_t)garbage(s->slot);
        break;
    case 3:
        s->src = (uint32_t)garbage(s->src);
        break;
    case 4:
        s->nsrc = (uint32_t)garbage(s->nsrc);
        break;
    case 5:
        s->body = (uint32_t)garbage(s->body);
        break;
    case 6:
        s->sub = (uint32_t)garbage(s->sub);
        break;
    case 7:
        s->group = (uint32_t)garbage(s->group);
        break;
    case 8:
        s->word = (int32_t)garbage(s->word);
        break;
    case 9:
        spoil_operand(&s->dst);
        break;
    case 10:
        spoil_operand(&s->stage);
        break;
    case 11:
        spoil_expr(&s->peer);
        break;
    case 12:
        spoil_expr(&s->tag);
        break;
    default:
        spoil_expr(&s->value);
        break;
    }
}

static void spoil(dcomm_plan *p)
{
    switch (draw(12)) {
    case 0: {
        uint32_t *field[] = {&p->nwords, &p->ncounters, &p->nslots, &p->ntags};
        uint32_t *f = field[draw(4)];
        *f = (uint32_t)garbage(*f);
        break;
    }
    case 1: {
        int64_t *field[] = {&p->in_bytes, &p->out_bytes, &p->scratch_bytes, &p->state_bytes};
        int64_t *f = field[draw(4)];
        *f = garbage(*f);
        break;
    }
    case 2: {
        dcomm_lane *lane = (dcomm_lane *)(uintptr_t)&p->lanes[draw(p->nlanes)];
        *(draw(2) ? &lane->first : &lane->count) = (uint32_t)garbage(lane->count);
        break;
    }
    case 3:
        if (p->ntable > 0) {
            int64_t *value = (int64_t *)(uintptr_t)&p->table[draw(p->ntable)];
            *value = garbage(*value);
        }
        break;
    case 4:
    case 5:
    case 6:
        if (p->noperands > 0) {
            spoil_operand((dcomm_operand *)(uintptr_t)&p->operands[draw(p->noperands)]);
        }
        break;
    default:
        spoil_step((dcomm_step *)(uintptr_t)&p->steps[draw(p->nsteps)]);
        break;
    }
}

Test(any, garbage_is_refused_or_right, .timeout = 120)
{
    int refused = 0;
    char text[4096];
    for (int i = 0; i < 4000; i++) {
        seed = (uint64_t)i;
        set s = i % 4 == 0   ? ring(3, DCOMM_AVG)
                : i % 4 == 1 ? one_shot(3, 2, FINE, true)
                : i % 4 == 2 ? compressed(false)
                             : overwrite(true);
        dcomm_check_spec spec = i % 4 == 0   ? ring_spec(3)
                                : i % 4 == 3 ? f32(DCOMM_COLL_PLAN, 0)
                                             : pair_spec;
        for (uint64_t k = 1 + draw(3); k > 0; k--) {
            spoil(s.plan[draw((uint64_t)s.n)]);
        }
        dcomm_status status = check(&s, spec);
        cr_assert(status == DCOMM_OK || status == DCOMM_ERR_PLAN, "seed %d: %d %s", i, status,
                  report.message);
        refused += status != DCOMM_OK;
        for (int r = 0; r < s.n; r++) {
            dcomm_plan_print(s.plan[r], text, sizeof text, NULL);
        }
        done(&s);
    }
    cr_assert_gt(refused, 1500);
}

Test(print, says_what_there_is)
{
    char text[8192], little[40];
    size_t needed = 0;
    set s = ring(4, DCOMM_SUM);
    cr_assert_eq(dcomm_plan_print(s.plan[1], text, sizeof text, &needed), DCOMM_OK);
    cr_assert_eq(needed, strlen(text));
    cr_assert_not_null(strstr(text, "OUT[1024*((2-i) mod 4), 1024]"), "%s", text);
    cr_assert_not_null(strstr(text, "recv_reduce"));
    cr_assert_eq(dcomm_plan_print(s.plan[1], little, sizeof little, &needed), DCOMM_OK);
    cr_assert_eq(strlen(little), sizeof little - 1);
    cr_assert_eq(needed, strlen(text));
    cr_assert_eq(dcomm_plan_print(s.plan[1], NULL, 0, &needed), DCOMM_OK);
    cr_assert_eq(dcomm_plan_print(NULL, text, sizeof text, &needed), DCOMM_ERR_INVALID);
    done(&s);
}
