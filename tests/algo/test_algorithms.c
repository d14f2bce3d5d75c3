/* test_algorithms.c - every algorithm of every collective: the plan checker proves it, a simulator
 * runs it on real data, and its bytes are compared with the documented cost. */
#define _GNU_SOURCE
#include "algorithm_calls.h"

Test(algorithms, checked_up_to_9_ranks, .timeout = 120)
{
    for (size_t k = 0; k < DCOMMI_ALGO_COUNT; k++) {
        for (int n = 2; n <= 9 && !is_p2p(&dcommi_algo_table[k]); n++) {
            try_all(&dcommi_algo_table[k], n, test_full() ? 1 : 5, check_only);
        }
    }
}

Test(algorithms, checked_up_to_64_ranks, .timeout = 240)
{
    for (size_t k = 0; k < DCOMMI_ALGO_COUNT; k++) {
        const dcommi_algo *algo = &dcommi_algo_table[k];
        for (int n = 10, i = 0; n <= MAX_N && !is_p2p(algo); n += i++ % 2 * proof_step()) {
            size_t counts[] = {1, (size_t)n - 1, 1300, 11 * (size_t)n + 3};
            call c = {.algo = algo,
                      .n = n,
                      .count = counts[(i / 2 + 3 * i) % 4],
                      .lanes = 1 + n % 2,
                      .root = is_rooted(algo->coll) ? (i * 7) % n : 0,
                      .pattern = (n + i) % 4,
                      .memory = i % 4 < 3 ? DCOMMI_MEMORY_REGISTERED : DCOMMI_MEMORY_ANY,
                      .chunk = i % 3 == 2 ? 1500 : 0,
                      .in_place = (n + i) % 2 == 0 && algo->coll != DCOMM_COLL_ALLTOALLV};
            check_call(&c);
        }
    }
}

Test(algorithms, right_on_real_data, .timeout = 120)
{
    for (size_t k = 0; k < DCOMMI_ALGO_COUNT; k++) {
        static const int ranks[] = {2, 3, 4, 5, 6, 7, 8, 13, 16}, thin[2][2] = {{5, 13}, {2, 5}};
        for (size_t i = 0; i < sizeof ranks / sizeof ranks[0]; i++) {
            if (!is_p2p(&dcommi_algo_table[k])) {
                try_all(&dcommi_algo_table[k], ranks[i], thin[test_full()][ranks[i] > 5], simulate);
            }
        }
    }
}

Test(algorithms, right_wherever_the_ranks_are, .timeout = 240)
{
    for (size_t k = 0; k < DCOMMI_ALGO_COUNT; k++) {
        const dcommi_algo *algo = &dcommi_algo_table[k];
        for (int placement = 1; placement <= 3 && !is_p2p(algo); placement++) {
            for (int n = 2; n <= 9; n++) {
                try_placed(algo, n, placement, test_full() ? 3 : 13, check_only);
                try_placed(algo, n, placement, test_full() ? 11 : 29, simulate);
            }
            for (int n = 9 + placement; n <= MAX_N; n += proof_step()) {
                call c = {.algo = algo,
                          .n = n,
                          .count = n % 2 == 0 ? 1 : 11 * (size_t)n + 3,
                          .lanes = 1 + n % 2,
                          .root = is_rooted(algo->coll) ? (n * 7 + placement) % n : 0,
                          .pattern = n % 4,
                          .placement = placement,
                          .chunk = n % 3 == 2 ? 1500 : 0,
                          .in_place = n % 5 < 2 && algo->coll != DCOMM_COLL_ALLTOALLV};
                check_call(&c);
            }
        }
    }
}

Test(algorithms, alltoallv_with_gaps, .timeout = 60)
{
    static const char *const names[] = {"pairwise", "linear"};
    for (int k = 0; k < 2; k++) {
        for (int n = 2; n <= 9; n++) {
            call c = {.algo = dcommi_algo_find(DCOMM_COLL_ALLTOALLV, names[k]),
                      .n = n,
                      .count = 37,
                      .lanes = 1,
                      .pattern = 3,
                      .spread = true};
            simulate(&c);
        }
    }
}

Test(algorithms, sixteen_bits_in_rank_order, .timeout = 60)
{
    for (size_t k = 0; k < DCOMMI_ALGO_COUNT; k++) {
        const dcommi_algo *algo = &dcommi_algo_table[k];
        for (int n = 2; n <= 9 && algo->rank_order; n++) {
            for (size_t count = 1; count < 40000; count = count * 3 + 5) {
                call c = {.algo = algo,
                          .n = n,
                          .count = count,
                          .lanes = 1,
                          .in_place = count % 2,
                          .half = true,
                          .pattern = n % 4,
                          .root = algo->coll == DCOMM_COLL_REDUCE ? n - 1 : 0,
                          .chunk = n % 2 == 0 ? 1000 : 0};
                check_call(&c);
            }
        }
    }
}

/* Elements of sizes that are no power of two: no fold may begin or end within an element. */
Test(algorithms, whole_elements, .timeout = 60)
{
    static const size_t sizes[] = {12, 24, 1000, DCOMM_DTYPE_BYTES_MAX};
    static const size_t bytes[] = {1, 4096, 20000, 70000, 300000, 1500000};
    dcomm_dtype dtypes[4];
    for (int i = 0; i < 4; i++) {
        cr_assert_eq(dcomm_dtype_create(sizes[i], &dtypes[i]), DCOMM_OK);
    }
    for (size_t k = 0, turn = 0; k < DCOMMI_ALGO_COUNT; k++) {
        const dcommi_algo *algo = &dcommi_algo_table[k];
        for (int n = 2; n <= 9 && !is_p2p(algo); n++) {
            for (size_t i = 0; i < 6; i++, turn++) {
                size_t count = bytes[i] / sizes[turn % 4] + turn % 3;
                call c = {.algo = algo,
                          .n = n,
                          .count = count > 0 ? count : 1,
                          .lanes = 1 + (int)(turn % 5 == 0),
                          .root = is_rooted(algo->coll) ? (int)turn % n : 0,
                          .pattern = (int)(turn % 3),
                          .placement = (int)(turn / 2 % 4),
                          .memory = turn % 3 == 0 ? DCOMMI_MEMORY_REGISTERED : DCOMMI_MEMORY_ANY,
                          .chunk = turn % 7 == 0 ? 6400 : 0,
                          .in_place = turn % 4 == 0 && algo->coll != DCOMM_COLL_ALLTOALLV,
                          .opaque = dtypes[turn % 4]};
                check_call(&c);
            }
        }
    }
}

Test(algorithms, slots_are_filled_anew, .timeout = 120)
{
    for (size_t k = 0; k < DCOMMI_ALGO_COUNT; k++) {
        const dcommi_algo *algo = &dcommi_algo_table[k];
        for (int n = 2; n <= 7 && strcmp(algo->name, "staged") == 0; n++) {
            for (int i = 0; i < 4; i++) { /* chunks: many more than slots, or one more */
                call c = {.algo = algo,
                          .n = n,
                          .count = i % 2 == 0 ? 1300 : 5 * 16 * (size_t)n - 1,
                          .lanes = 1,
                          .pattern = (n + i) % 4,
                          .root = is_rooted(algo->coll) ? n - 1 : 0,
                          .chunk = i % 2 == 0 ? 100 : 64,
                          .in_place = i / 2 == 1};
                check_call(&c);
                simulate(&c);
            }
        }
    }
}

Test(algorithms, more_than_2_to_31_elements, .timeout = 60)
{
    for (size_t k = 0; k < DCOMMI_ALGO_COUNT; k++) {
        /* staged cuts short chunks, and the checker walks through each one. */
        const bool staged = strcmp(dcommi_algo_table[k].name, "staged") == 0;
        const int most = staged ? 2 : test_full() ? 5 : 3;
        for (int n = 2; n <= most && !is_p2p(&dcommi_algo_table[k]); n++) {
            call c = {.algo = &dcommi_algo_table[k],
                      .n = n,
                      .count = ((size_t)1 << 31) + 12345,
                      .lanes = 1,
                      .half = staged &&
                              (DCOMM_TEST_RANK_STEP > 1 || !test_full()), /* half as many chunks */
                      .chunk = (int64_t)1 << 30};
            check_call(&c);
        }
    }
}

Test(algorithms, send_meets_receive)
{
    dcomm_plan *plan[2];
    for (int r = 0; r < 2; r++) {
        static dcomm_builder b;
        dcommi_shape s = {.coll = r == 0 ? DCOMM_COLL_SEND : DCOMM_COLL_RECV,
                          .rank = r,
                          .nranks = 2,
                          .root = 1 - r,
                          .dtype = DCOMM_U8,
                          .count = (size_t)3 << 31,
                          .lanes = 1};
        dcommi_build_begin(&b, "direct", r, 2, s.dtype, DCOMM_SUM);
        b.head.in_bytes = r == 0 ? (int64_t)s.count : 0;
        b.head.out_bytes = r == 1 ? (int64_t)s.count : 0;
        dcommi_algo_find(s.coll, "direct")->make(&s, &b);
        cr_assert_eq(dcommi_build_finish(&b, &plan[r]), DCOMM_OK);
    }
    dcomm_check_spec spec = {.coll = DCOMM_COLL_PLAN, .dtype = DCOMM_U8};
    dcomm_check_report report;
    dcomm_status status = dcomm_plan_check((const dcomm_plan *const *)plan, 2, &spec, &report);
    cr_assert_eq(status, DCOMM_OK, "%s", report.message);
    cr_assert_eq(report.messages, 1);
    dcommi_free(plan[0]);
    dcommi_free(plan[1]);
}

/* ---- cost ---- */

static dcomm_check_report cost_of(dcomm_coll coll, const char *name, int n, size_t count)
{
    call c = {.algo = dcommi_algo_find(coll, name), .n = n, .count = count, .lanes = 1};
    cr_assert(c.algo != NULL);
    return check_call(&c);
}

static int64_t log2_up(int n)
{
    int64_t k = 0;
    while ((1 << k) < n) {
        k++;
    }
    return k;
}

/* If n is no power of two, the range of a step may wrap around and take two messages. */
static void expect_steps(dcomm_coll coll, const char *name, int n, size_t count, int64_t steps)
{
    int64_t got = cost_of(coll, name, n, count).steps;
    cr_expect(got >= steps && got <= (dcommi_is_power_of_two(n) ? steps : 2 * steps),
              "%s of %d ranks: %" PRId64 " steps, not %" PRId64, name, n, got, steps);
}

Test(algorithms, bytes_are_as_documented, .timeout = 60)
{
    for (int n = 2; n <= 17; n++) {
        size_t count = 1680 * (size_t)n; /* divides into n equal blocks of whole cache lines */
        int64_t total = bytes_of(count), part = total / n;
        dcomm_coll all = DCOMM_COLL_ALLREDUCE;
        cr_expect_eq(cost_of(all, "ring", n, count).max_rank_bytes, 2 * (n - 1) * part);
        cr_expect_eq(cost_of(all, "ring", n, count).total_bytes, 2 * (n - 1) * total);
        cr_expect_eq(cost_of(all, "halving_doubling", n, count).max_rank_bytes, 2 * (n - 1) * part);
        expect_steps(all, "halving_doubling", n, count, 2 * log2_up(n));
        cr_expect_eq(cost_of(all, "two_shot", n, count).max_rank_bytes, 2 * (n - 1) * part);
        cr_expect_eq(cost_of(all, "staged", n, count).max_rank_bytes, 2 * (n - 1) * part);
        cr_expect_eq(cost_of(all, "one_shot", n, count).max_rank_bytes, (n - 1) * total);
        cr_expect_eq(cost_of(all, "one_shot", n, 3).max_rank_bytes, (n - 1) * 12);
        cr_expect_eq(cost_of(all, "star", n, count).max_rank_bytes, (n - 1) * total);
        cr_expect_eq(cost_of(all, "star", n, count).total_bytes, 2 * (n - 1) * total);
        cr_expect_eq(cost_of(all, "binomial", n, count).max_rank_bytes, log2_up(n) * total);
        cr_expect_eq(cost_of(all, "binomial", n, count).total_bytes, 2 * (n - 1) * total);
        cr_expect_eq(cost_of(all, "tree", n, count).total_bytes, 2 * (n - 1) * total);
        cr_expect_leq(cost_of(all, "tree", n, count).max_rank_bytes, 2 * total + 256);
        if (dcommi_is_power_of_two(n)) {
            cr_expect_eq(cost_of(all, "recursive_doubling", n, count).max_rank_bytes,
                         log2_up(n) * total);
            cr_expect_eq(cost_of(all, "recursive_doubling", n, 3).steps, log2_up(n));
        }
        cr_expect_eq(cost_of(DCOMM_COLL_REDUCE_SCATTER, "ring", n, 100).max_rank_bytes,
                     (n - 1) * 400);
        cr_expect_eq(cost_of(DCOMM_COLL_REDUCE_SCATTER, "recursive_halving", n, 100).max_rank_bytes,
                     (n - 1) * 400);
        expect_steps(DCOMM_COLL_REDUCE_SCATTER, "recursive_halving", n, 100, log2_up(n));
        cr_expect_eq(cost_of(DCOMM_COLL_REDUCE_SCATTER, "direct", n, 100).max_rank_bytes,
                     (n - 1) * 400);
        cr_expect_eq(cost_of(DCOMM_COLL_REDUCE_SCATTER, "staged", n, 100).max_rank_bytes,
                     (n - 1) * 400);
        cr_expect_eq(cost_of(DCOMM_COLL_ALLGATHER, "staged", n, 100).max_rank_bytes, (n - 1) * 400);
        cr_expect_eq(cost_of(DCOMM_COLL_ALLTOALL, "staged", n, 100).max_rank_bytes, (n - 1) * 400);
        cr_expect_eq(cost_of(DCOMM_COLL_BROADCAST, "staged", n, 10000).max_rank_bytes, 40000);
        cr_expect_eq(cost_of(DCOMM_COLL_ALLGATHER, "ring", n, 100).max_rank_bytes, (n - 1) * 400);
        cr_expect_eq(cost_of(DCOMM_COLL_ALLGATHER, "recursive_doubling", n, 100).max_rank_bytes,
                     (n - 1) * 400);
        expect_steps(DCOMM_COLL_ALLGATHER, "recursive_doubling", n, 100, log2_up(n));
        cr_expect_eq(cost_of(DCOMM_COLL_ALLGATHER, "direct", n, 100).max_rank_bytes, (n - 1) * 400);
        cr_expect_eq(cost_of(DCOMM_COLL_ALLGATHER, "direct", n, 10000).max_rank_bytes,
                     (n - 1) * 40000);
        cr_expect_eq(cost_of(DCOMM_COLL_BROADCAST, "binomial", n, 100).total_bytes, (n - 1) * 400);
        cr_expect_eq(cost_of(DCOMM_COLL_BROADCAST, "tree", n, 100).total_bytes, (n - 1) * 400);
        cr_expect_eq(cost_of(DCOMM_COLL_REDUCE, "tree", n, 100).max_rank_bytes, 400);
        cr_expect_eq(cost_of(DCOMM_COLL_REDUCE, "binomial", n, 100).max_rank_bytes, 400);
        cr_expect_eq(cost_of(DCOMM_COLL_BROADCAST, "binomial", n, 100).max_rank_bytes,
                     log2_up(n) * 400);
        cr_expect_leq(cost_of(DCOMM_COLL_BROADCAST, "tree", n, 100).max_rank_bytes, 404);
        cr_expect_eq(cost_of(DCOMM_COLL_BROADCAST, "linear", n, 100).max_rank_bytes, (n - 1) * 400);
        cr_expect_eq(cost_of(DCOMM_COLL_BROADCAST, "linear", n, 10000).max_rank_bytes, 40000);
        cr_expect_eq(cost_of(DCOMM_COLL_REDUCE, "linear", n, 100).max_rank_bytes, 400);
        cr_expect_eq(cost_of(DCOMM_COLL_REDUCE, "linear", n, 10000).max_rank_bytes,
                     (n - 1) * 40000);
        cr_expect_eq(cost_of(DCOMM_COLL_GATHER, "linear", n, 100).max_rank_bytes, 400);
        cr_expect_leq(cost_of(DCOMM_COLL_GATHER, "binomial", n, 100).max_rank_bytes,
                      ((n + 1) / 2) * 400);
        cr_expect_eq(cost_of(DCOMM_COLL_SCATTER, "linear", n, 100).max_rank_bytes, (n - 1) * 400);
        cr_expect_eq(cost_of(DCOMM_COLL_SCATTER, "binomial", n, 100).max_rank_bytes, (n - 1) * 400);
        int64_t carried = 0;
        for (int64_t bit = 1; bit < n; bit *= 2) {
            carried += dcommi_bruck_count(n, bit) * 400;
        }
        cr_expect_eq(cost_of(DCOMM_COLL_ALLTOALL, "bruck", n, 100).max_rank_bytes, carried);
        cr_expect_eq(cost_of(DCOMM_COLL_ALLTOALL, "pairwise", n, 100).max_rank_bytes,
                     (n - 1) * 400);
        cr_expect_eq(cost_of(DCOMM_COLL_ALLTOALL, "linear", n, 10000).max_rank_bytes,
                     (n - 1) * 40000);
        cr_expect_eq(cost_of(DCOMM_COLL_ALLTOALL, "bruck", n, 100).steps, log2_up(n));
        cr_expect_eq(cost_of(DCOMM_COLL_BARRIER, "dissemination", n, 0).steps, log2_up(n));
        cr_expect_eq(cost_of(DCOMM_COLL_BARRIER, "dissemination", n, 0).messages, 0);
        cr_expect_eq(cost_of(DCOMM_COLL_BARRIER, "direct", n, 0).steps, n > 1);
    }
}

/* ---- shape of the trees, size of the plans ---- */

Test(algorithms, two_trees_share_the_work)
{
    for (int n = 2; n <= 200; n++) {
        int inner_twice = 0;
        for (int which = 0; which < 2; which++) {
            int roots = 0, edges = 0;
            for (int r = 0; r < n; r++) {
                dcommi_node node = dcommi_tree_binary(n, which, r, 0, n, -1);
                roots += node.parent < 0;
                edges += node.nchildren;
                for (int i = 0; i < node.nchildren; i++) {
                    dcommi_node child = dcommi_tree_binary(n, which, node.child[i], 0, n, -1);
                    cr_assert_eq(child.parent, r);
                }
                dcommi_node other = dcommi_tree_binary(n, 1 - which, r, 0, n, -1);
                inner_twice += node.nchildren > 0 && other.nchildren > 0;
            }
            cr_assert_eq(roots, 1);
            cr_assert_eq(edges, n - 1);
        }
        cr_assert_eq(inner_twice, 0);
    }
}

Test(algorithms, plans_stay_small, .timeout = 60)
{
    size_t *counts = dcommi_calloc(4096, sizeof *counts), *displs = dcommi_calloc(4096, 8);
    for (size_t i = 0; i < 4096; i++) {
        counts[i] = i % 7;
        displs[i] = i == 0 ? 0 : displs[i - 1] + counts[i - 1];
    }
    for (size_t k = 0; k < DCOMMI_ALGO_COUNT; k++) {
        static dcomm_builder b;
        const dcommi_algo *algo = &dcommi_algo_table[k];
        dcommi_shape s = {.coll = algo->coll,
                          .rank = 1234,
                          .nranks = 4096,
                          .root = 77,
                          .dtype = DCOMM_BF16,
                          .op = DCOMM_SUM,
                          .count = algo->coll == DCOMM_COLL_ALLREDUCE ? (size_t)5 << 30 : 1 << 20,
                          .lanes = 1,
                          .counts = counts,
                          .displs = displs,
                          .send_counts = counts,
                          .send_displs = displs};
        dcomm_plan *plan;
        dcommi_build_begin(&b, algo->name, s.rank, s.nranks, s.dtype, s.op);
        dcomm_status status = algo->make(&s, &b);
        if (strcmp(algo->name, "staged") == 0) { /* its plans grow with a host's ranks */
            cr_expect_eq(status, DCOMM_ERR_UNSUPPORTED);
            dcommi_build_discard(&b);
            continue;
        }
        cr_assert_eq(dcommi_build_finish(&b, &plan), DCOMM_OK, "%s: %s", algo->name,
                     dcommi_message);
        cr_expect_leq(plan->nsteps, 400, "%d %s: %u steps", algo->coll, algo->name, plan->nsteps);
        cr_expect_leq(plan->noperands, 400);
        cr_expect_leq(plan->ntable, 5 * 4096);
        dcommi_free(plan);
    }
    dcommi_free(counts);
    dcommi_free(displs);
}
