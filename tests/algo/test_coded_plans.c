/* test_coded_plans.c - the plans of the compressed algorithms, proved by the checker for 2 to 64
 * ranks, with encodings whose lengths are known only at run time. */
#define _GNU_SOURCE
#define DCOMM_IMPLEMENTATION
#include <criterion/criterion.h>

#include "dcomm/all.h"

#include "full.h"

enum { MAX_N = 64 };

static size_t fixed(const void *sizes, size_t count)
{
    (void)sizes;
    return 2 * count;
}

static size_t with_head(const void *sizes, size_t count)
{
    (void)sizes;
    return 13 + count / 3;
}

static const dcomm_plan_codec none = {.name = "none"};

/* The bytes of coded_sparse's parts if it keeps a tenth of the elements, and three samples a
 * rank. */
static size_t parts(const void *sizes, size_t count, size_t kept)
{
    (void)sizes;
    return 4 + 6 * kept + count / 100;
}

static size_t samples(const void *sizes, size_t count, size_t nranks)
{
    (void)sizes;
    return count < 3 * nranks ? count : 3 * nranks;
}

typedef struct call {
    const dcommi_algo *algo;
    int n, lanes, hosts; /* hosts: ranks on each host; 0: all ranks on one */
    size_t count;
    int64_t chunk, granule;
    bool whole, in_place, average, variable;
} call;

static void check_call(const call *c)
{
    dcomm_plan *plan[MAX_N];
    int host[MAX_N];
    dcommi_groups *groups = NULL;
    dcommi_coding coding = {.codec = &none,
                            .max_bytes = c->variable ? with_head : fixed,
                            .granule = c->granule,
                            .whole = c->whole,
                            .spread = &none,
                            .most = (int64_t)c->count / 10 + 1,
                            .part_bytes = parts,
                            .samples = samples,
                            .hash = 1};
    for (int r = 0; r < c->n; r++) {
        host[r] = c->hosts > 0 ? r / c->hosts : 0;
    }
    cr_assert_eq(dcommi_groups_of_hosts(host, c->n, &groups), DCOMM_OK);
    dcommi_shape s = {.coll = DCOMM_COLL_ALLREDUCE,
                      .nranks = c->n,
                      .dtype = DCOMM_F32,
                      .op = c->average ? DCOMM_AVG : DCOMM_SUM,
                      .count = c->count,
                      .in_place = c->in_place,
                      .lanes = c->lanes,
                      .chunk_bytes = c->chunk,
                      .groups = groups,
                      .coding = &coding};
    for (s.rank = 0; s.rank < c->n; s.rank++) {
        cr_assert_eq(dcommi_plan_make(&s, c->algo, &plan[s.rank]), DCOMM_OK, "%s, %d ranks: %s",
                     c->algo->name, c->n, dcomm_last_error());
    }
    dcomm_check_spec spec = {.coll = DCOMM_COLL_ALLREDUCE,
                             .count = c->count,
                             .dtype = DCOMM_F32,
                             .in_place = c->in_place,
                             .rank_order = c->algo->rank_order};
    dcomm_check_report report;
    cr_assert_eq(dcomm_plan_check((const dcomm_plan *const *)plan, c->n, &spec, &report), DCOMM_OK,
                 "%s, %d ranks, %zu elements, chunk %" PRId64 ", %d lanes%s%s%s: %s", c->algo->name,
                 c->n, c->count, c->chunk, c->lanes, c->whole ? ", whole" : "",
                 c->in_place ? ", in place" : "", c->average ? ", average" : "", report.message);
    for (int r = 0; r < c->n; r++) {
        dcommi_free(plan[r]);
    }
    dcommi_groups_free(&groups);
}

static const dcommi_algo *flat(int i)
{
    static const char *const names[] = {"coded_allgather", "coded_two_shot", "coded_sparse"};
    return dcommi_coded_find(DCOMM_COLL_ALLREDUCE, names[i]);
}

enum { FLAT = 3 };

Test(coded_plans, up_to_9_ranks, .timeout = 240)
{
    int pick = 0;
    for (int a = 0; a < FLAT; a++) {
        for (int n = 2; n <= 9; n++) {
            size_t counts[] = {1, (size_t)n + 1, 1000, 4099 * (size_t)n + 3};
            const int step = test_full() ? (n < 5 ? 1 : 3) : DCOMM_TEST_RANK_STEP > 1 ? 11 : 5;
            for (int k = pick % 2; k < 16; k += step, pick++) {
                call c = {.algo = flat(a),
                          .n = n,
                          .lanes = 1 + pick % 3,
                          .count = counts[k % 4],
                          .chunk = k % 4 == 3 ? 4096 : 640,
                          .granule = pick % 2 == 0 ? 1 : 128,
                          .whole = pick % 7 == 3,
                          .in_place = k & 4,
                          .average = k & 8,
                          .variable = pick % 3 != 0};
                check_call(&c);
            }
        }
    }
}

Test(coded_plans, up_to_64_ranks, .timeout = 240)
{
    for (int a = 0; a < FLAT; a++) {
        static const int ranks[] = {10, 16, 23, 33, 48, 64};
        for (int i = test_full() ? a == 2 : (a + 1) % 3; i < 6;
             i += test_full() ? 1 + (a == 2) : 2 + a) {
            int n = ranks[i];
            if (DCOMM_TEST_RANK_STEP > 1 && n > (test_full() ? 23 : 10) &&
                (!test_full() || a > 0 || n < 64)) {
                continue; /* sanitizers run fewer calls */
            }
            call c = {.algo = flat(a),
                      .n = n,
                      .lanes = 1,
                      .count = 500 * (size_t)n + 5,
                      .chunk = n > 40 ? 0 : 1000,
                      .granule = 1,
                      .in_place = n % 2,
                      .average = n % 3 == 0,
                      .variable = true};
            check_call(&c);
        }
    }
}

/* The checker cannot follow sums of encodings. It does prove that no two steps race. */
Test(coded_plans, linear, .timeout = 60)
{
    for (int n = 2; n <= 9; n++) {
        for (int hosts = 0; hosts <= 3; hosts += 3) {
            dcomm_plan *plan[MAX_N];
            int host[MAX_N];
            dcommi_groups *groups = NULL;
            for (int r = 0; r < n; r++) {
                host[r] = hosts > 0 ? r / hosts : 0;
            }
            cr_assert_eq(dcommi_groups_of_hosts(host, n, &groups), DCOMM_OK);
            dcommi_coding coding = {
                .codec = &none, .max_bytes = fixed, .hash = 1, .parts = 2, .rounds = 4};
            coding.part[0] = 8;
            coding.part[1] = 1200;
            coding.part[2] = 2 * 5000;
            dcommi_shape s = {.coll = DCOMM_COLL_ALLREDUCE,
                              .nranks = n,
                              .dtype = DCOMM_F32,
                              .count = 5000,
                              .in_place = n % 2,
                              .lanes = 1,
                              .groups = groups,
                              .coding = &coding};
            for (s.rank = 0; s.rank < n; s.rank++) {
                cr_assert_eq(
                    dcommi_plan_make(&s, dcommi_coded_find(s.coll, "linear"), &plan[s.rank]),
                    DCOMM_OK, "%s", dcomm_last_error());
            }
            dcomm_check_spec spec = {
                .coll = DCOMM_COLL_PLAN, .dtype = DCOMM_F32, .in_place = s.in_place};
            dcomm_check_report report;
            cr_assert_eq(dcomm_plan_check((const dcomm_plan *const *)plan, n, &spec, &report),
                         DCOMM_OK, "%d ranks: %s", n, report.message);
            for (int r = 0; r < n; r++) {
                dcommi_free(plan[r]);
            }
            dcommi_groups_free(&groups);
        }
    }
}

Test(coded_plans, between_hosts, .timeout = 240)
{
    const dcommi_algo *hier = dcommi_coded_find(DCOMM_COLL_ALLREDUCE, "coded_hier");
    for (int size = 2; size <= 4; size++) {
        for (int hosts = 2; hosts <= 5; hosts++) {
            for (int k = hosts % 2; k < 4; k += test_full() ? 1 : 2) {
                call c = {.algo = hier,
                          .n = size * hosts - (k == 3), /* the last host has one rank less */
                          .hosts = size,
                          .lanes = 1,
                          .count = k == 0 ? 30000 : 3001,
                          .chunk = k == 1 ? 8192 : 0,
                          .granule = 1,
                          .in_place = k & 1,
                          .average = k == 2,
                          .variable = true};
                check_call(&c);
            }
        }
    }
}

/* ---- reduce-scatter and all-gather ---- */

typedef struct half {
    dcomm_coll coll;
    int n, lanes;
    size_t count; /* of a block; with listed blocks, of the longest */
    int64_t chunk;
    bool in_place;
} half;

static void check_half(const half *h)
{
    dcomm_plan *plan[MAX_N];
    int host[MAX_N] = {0};
    size_t counts[MAX_N], displs[MAX_N], at = 0;
    dcommi_groups *groups = NULL;
    const dcommi_coding coding = {.codec = &none, .max_bytes = with_head, .granule = 1, .hash = 1};
    const bool listed = h->coll == DCOMM_COLL_REDUCE_SCATTERV || h->coll == DCOMM_COLL_ALLGATHERV;
    for (int r = 0; r < h->n; r++) { /* one block is empty */
        counts[r] = r == 1 ? 0 : h->count - h->count / 3 * (size_t)(r % 3);
        displs[r] = at;
        at += counts[r];
    }
    cr_assert_eq(dcommi_groups_of_hosts(host, h->n, &groups), DCOMM_OK);
    dcommi_shape s = {.coll = h->coll,
                      .nranks = h->n,
                      .dtype = DCOMM_F32,
                      .op = DCOMM_SUM,
                      .count = listed ? 0 : h->count,
                      .counts = listed ? counts : NULL,
                      .displs = listed ? displs : NULL,
                      .in_place = h->in_place,
                      .lanes = h->lanes,
                      .chunk_bytes = h->chunk,
                      .groups = groups,
                      .coding = &coding};
    const dcommi_algo *algo = dcommi_coded_find(h->coll, "direct");
    for (s.rank = 0; s.rank < h->n; s.rank++) {
        cr_assert_eq(dcommi_plan_make(&s, algo, &plan[s.rank]), DCOMM_OK, "%s, %d ranks: %s",
                     dcomm_coll_name(h->coll), h->n, dcomm_last_error());
    }
    dcomm_check_spec spec = {.coll = h->coll,
                             .count = s.count,
                             .counts = s.counts,
                             .dtype = DCOMM_F32,
                             .in_place = h->in_place,
                             .rank_order = h->coll == DCOMM_COLL_REDUCE_SCATTER ||
                                           h->coll == DCOMM_COLL_REDUCE_SCATTERV};
    dcomm_check_report report;
    cr_assert_eq(dcomm_plan_check((const dcomm_plan *const *)plan, h->n, &spec, &report), DCOMM_OK,
                 "%s, %d ranks, %zu elements, chunk %" PRId64 ", %d lanes%s: %s",
                 dcomm_coll_name(h->coll), h->n, h->count, h->chunk, h->lanes,
                 h->in_place ? ", in place" : "", report.message);
    for (int r = 0; r < h->n; r++) {
        dcommi_free(plan[r]);
    }
    dcommi_groups_free(&groups);
}

Test(coded_plans, halves, .timeout = 240)
{
    static const dcomm_coll colls[] = {DCOMM_COLL_REDUCE_SCATTER, DCOMM_COLL_ALLGATHER,
                                       DCOMM_COLL_REDUCE_SCATTERV, DCOMM_COLL_ALLGATHERV};
    static const size_t counts[] = {1, 700, 4099};
    int pick = 0;
    for (int n = 2; n <= MAX_N; n += n < 7 || test_full()       ? 1
                                     : DCOMM_TEST_RANK_STEP > 1 ? 60
                                                                : 20) {
        for (int k = 0; k < 4; k++, pick++) {
            half h = {.coll = colls[k],
                      .n = n,
                      .lanes = 1 + pick % 3,
                      .count = counts[n > 16 ? pick % 2 : pick % 3],
                      .chunk = pick % 2 == 0 ? 640 : 0,
                      .in_place = pick % 5 == 1};
            check_half(&h);
        }
    }
}
