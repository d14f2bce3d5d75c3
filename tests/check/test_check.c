/* test_check.c - the plan checker accepts right plans. It refuses plans that are broken on purpose
 * and names the place. */
#define _GNU_SOURCE
#define DCOMM_IMPLEMENTATION
#include "check_plans.h"

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
        if (i == 1 || i == 4 || i == 6 || i == 7 || i == 10) { /* loops; fences are tested below */
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
    step(&s, 2, 5)->flags |= DCOMM_STEP_FORWARD;
    wrong(&s, ring_spec(3), "rank 2 lane 0 step 5", "the next step sends");
    s = one_shot(3, 1, FINE, true);
    step(&s, 1, 4)->flags |= DCOMM_STEP_FORWARD;
    wrong(&s, pair_spec, "rank 1 lane 0 step 4 (reduce)", "sends or copies");
    s = ring(3, DCOMM_SUM);
    s.plan[1]->rank = 2;
    wrong(&s, ring_spec(3), "rank 1", "its plan is for rank 2");
}

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
    swap_steps(&s, 1, 0, 1); /* both send first: works only if messages are buffered */
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
            dcomm_builder b;
            begin(&b, "messages", r, 2, 64, 64);
            dcomm_build_tags(&b, 2);
            for (int i = 0; i <= twice; i++) {
                if (r == 0) {
                    dcomm_build_send(&b, 0, in(0, 8), num(1), num(1), DCOMM_STEP_ASYNC);
                } else if (twice) {
                    dcomm_build_recv(&b, 0, out(8 * i, 8), num(0), num(1), 0);
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

Test(broken, fence_missing)
{
    set s = overwrite(true);
    right(&s, f32(DCOMM_COLL_PLAN, 0));
    s = overwrite(false);
    wrong(&s, f32(DCOMM_COLL_PLAN, 0), "nothing orders the two", "(async)");
    s = ring(4, DCOMM_SUM);
    step(&s, 1, 6)->kind = DCOMM_STEP_WAIT; /* replace the ring's fence by a wait for nothing */
    s.plan[1]->ncounters = 1;
    wrong(&s, ring_spec(4), "nothing orders the two", "rank 1 lane 0 step 9 (recv from 0");
}

Test(broken, lanes_racing)
{
    for (int ordered = 0; ordered < 2; ordered++) {
        dcomm_builder b;
        begin(&b, "lanes", 0, 1, 64, 64);
        uint16_t counter = dcomm_build_counter(&b);
        dcomm_build_copy(&b, 0, out(0, 40), in(0, 40), 0);
        dcomm_build_signal(&b, 0, counter, num(0), num(1));
        if (ordered) {
            dcomm_build_wait(&b, 1, counter, num(1));
        }
        dcomm_build_copy(&b, 1, out(32, 32), in(32, 32), 0);
        set s = {.n = 1, .plan = {finish(&b)}};
        if (ordered) {
            right(&s, f32(DCOMM_COLL_PLAN, 0));
        } else {
            wrong(&s, f32(DCOMM_COLL_PLAN, 0), "byte 32 of rank 0's OUT", "nothing orders");
        }
    }
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
    /* Rank 0 waits for two signals. Rank 2 gives two, so rank 1 may not have arrived. */
    set s = {.n = 3};
    for (int r = 0; r < 3; r++) {
        dcomm_builder b;
        begin(&b, "barrier", r, 3, 0, 0);
        uint16_t come = dcomm_build_counter(&b), go = dcomm_build_counter(&b);
        if (r == 0) {
            dcomm_build_wait(&b, 0, come, num(2));
            dcomm_build_signal(&b, 0, go, num(DCOMM_ALL_PEERS), num(1));
        } else {
            dcomm_build_signal(&b, 0, come, num(0), num(r));
            dcomm_build_wait(&b, 0, go, num(1));
        }
        s.plan[r] = finish(&b);
    }
    set t = s; /* with one signal from each rank it is right */
    wrong(&s, f32(DCOMM_COLL_BARRIER, 0), "may leave the barrier before rank 1", "rank 0");
    for (int r = 0; r < 3; r++) {
        dcomm_builder b;
        begin(&b, "barrier", r, 3, 0, 0);
        uint16_t come = dcomm_build_counter(&b), go = dcomm_build_counter(&b);
        if (r == 0) {
            dcomm_build_wait(&b, 0, come, num(2));
            dcomm_build_signal(&b, 0, go, num(DCOMM_ALL_PEERS), num(1));
        } else {
            dcomm_build_signal(&b, 0, come, num(0), num(1));
            dcomm_build_wait(&b, 0, go, num(1));
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
            dcomm_builder b;
            begin(&b, "chain", r, 3, 64, 64);
            b.head.dtype = (uint32_t)dtype;
            dcomm_build_tags(&b, 1);
            dcomm_operand at = scratch(dcomm_build_scratch(&b, 64), 64);
            dcomm_operand stage = scratch(dcomm_build_scratch(&b, 64), 64);
            dcomm_operand sum = r == 2 ? out(0, 64) : at;
            if (r > 0) {
                dcomm_build_recv_reduce(&b, 0, sum, dcomm_msg(), in(0, 64), stage, num(r - 1),
                                        num(0), 0);
            }
            if (r < 2) {
                dcomm_build_send(&b, 0, r == 0 ? in(0, 64) : at, num(r + 1), num(0), 0);
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

/* ---- every rank sends every block directly to its owner ---- */

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
            dcomm_builder b;
            begin(&b, "linear", r, N, 0, 0);
            dcomm_build_tags(&b, 1);
            int64_t from = 0, to = 0;
            for (int p = 0; p < N; p++) {
                int64_t give = 4 * (int64_t)counts[r][p], take = 4 * (int64_t)counts[p][r];
                if (p == r) {
                    dcomm_build_copy(&b, 0, out(to, take), in(from, give), 0);
                } else {
                    int64_t shift = fault && r == 2 && p == 4 ? 4 : 0;
                    dcomm_build_send(&b, 0, in(from - shift, give), num(p), num(0),
                                     DCOMM_STEP_ASYNC);
                    dcomm_build_recv(&b, 0, out(to, take), num(p), num(0), DCOMM_STEP_ASYNC);
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
        dcomm_builder b;
        begin(&b, "linear", r, N, 256, 256);
        dcomm_build_tags(&b, 1);
        dcomm_space space = in_place ? DCOMM_SPACE_OUT : DCOMM_SPACE_IN;
        for (int p = 0; r == ROOT && p < N; p++) {
            dcomm_operand block =
                scatters ? dcomm_span(space, p * 64, 64) : dcomm_span(space, 0, 64);
            if (p != r) {
                dcomm_build_send(&b, 0, block, num(p), num(0), DCOMM_STEP_ASYNC);
            } else if (!in_place) {
                dcomm_build_copy(&b, 0, out(0, 64), block, 0);
            }
        }
        if (r != ROOT) {
            dcomm_build_recv(&b, 0, out(0, 64), num(ROOT), num(0), 0);
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
