/* test_model.c - the model: closed forms, crossovers, ranks that stand for others, hosts, and every
 * algorithm priced. */
#define _GNU_SOURCE
#define DCOMM_IMPLEMENTATION
#include "dcomm/all.h"

#include <criterion/criterion.h>
#include <math.h>

#define WHOLE ((size_t)1 << 40) /* a chunk so large that nothing is cut into chunks */

typedef struct source {
    dcomm_check_spec spec;
    const char *algo;
    size_t chunk;
    int nranks;
} source;

static dcomm_status make(void *user, int rank, const dcomm_plan **plan_p)
{
    const source *s = user;
    dcomm_coll_opts opts = {.algo = s->algo, .chunk_bytes = s->chunk};
    dcomm_plan *plan = NULL;
    dcomm_status status = dcomm_plan_create(&s->spec, DCOMM_SUM, rank, s->nranks, &opts, &plan);
    *plan_p = plan;
    return status;
}

static void drop(void *user, const dcomm_plan *plan)
{
    dcomm_plan *mine = (dcomm_plan *)(uintptr_t)plan;
    (void)user;
    dcomm_plan_destroy(&mine);
}

enum how { CHOSEN, ALL, FEW }; /* FEW: ranks stand for others wherever they are alike */

/* Seconds by the model. */
static double price(const source *s, const dcomm_tuning *tuning, const dcommi_groups *groups,
                    enum how how)
{
    dcommi_terrain t;
    dcommi_price p;
    dcommi_plans plans = {.get = make, .put = drop, .user = (void *)(uintptr_t)s};
    cr_assert_eq(dcommi_terrain_make(groups, s->nranks, tuning, DCOMMI_MEMORY_ANY, &t), DCOMM_OK);
    int period =
        how == ALL || !dcommi_plans_alike(&plans, s->nranks, t.period) ? s->nranks : t.period;
    dcomm_status status = how == CHOSEN
                              ? dcommi_price_plans(&t, &plans, DCOMMI_PRICE_LIMIT, 1 << 28, &p)
                              : dcommi_sim_run(&t, &plans, period, DCOMMI_PRICE_LIMIT, 1 << 28, &p);
    cr_assert_eq(status, DCOMM_OK, "%s of %d: %s", s->algo, s->nranks, dcomm_last_error());
    return 1e-12 * (double)p.ps;
}

static source allreduce(const char *algo, int nranks, double bytes, size_t chunk)
{
    source s = {
        .spec = {.coll = DCOMM_COLL_ALLREDUCE, .count = (size_t)(bytes / 4), .dtype = DCOMM_F32},
        .algo = algo,
        .chunk = chunk,
        .nranks = nranks};
    return s;
}

static void expect(double got, double wanted, const char *what)
{
    cr_assert(fabs(got - wanted) <= 0.01 * wanted, "%s: %g s, not %g s", what, got, wanted);
}

static double log2i(int n)
{
    return (double)(31 - __builtin_clz((unsigned)n));
}

Test(model, closed_forms, .timeout = 60)
{
    const double alpha = 10e-6, beta = 2e-11, gamma = 1e-11;
    dcomm_tuning plain, folding;
    cr_assert_eq(dcomm_tuning_uniform(10, 0.02, 0, &plain), DCOMM_OK);
    cr_assert_eq(dcomm_tuning_uniform(10, 0.02, 0.01, &folding), DCOMM_OK);
    for (int n = 2; n <= 256; n = n == 2 ? 3 : n * 2 - n % 2 * 2) {
        for (double d = 1 << 20; d <= 1 << 28; d *= 16) {
            double ring = 2 * (n - 1) * (alpha + d * beta / n);
            double folded = ring + (n - 1) * d * gamma / n;
            source s = allreduce("ring", n, d, WHOLE);
            expect(price(&s, &plain, NULL, CHOSEN), ring, "ring");
            expect(price(&s, &folding, NULL, CHOSEN), folded, "ring with folds");
            if ((n & (n - 1)) != 0) {
                continue;
            }
            s.algo = "binomial";
            expect(price(&s, &plain, NULL, CHOSEN), 2 * log2i(n) * (alpha + d * beta), "binomial");
            expect(price(&s, &folding, NULL, CHOSEN),
                   log2i(n) * (2 * alpha + d * (2 * beta + gamma)), "binomial with folds");
            s.algo = "recursive_doubling";
            expect(price(&s, &plain, NULL, CHOSEN), log2i(n) * (alpha + d * beta), "doubling");
            s.algo = "halving_doubling";
            expect(price(&s, &plain, NULL, CHOSEN),
                   2 * log2i(n) * alpha + 2 * (n - 1) * d * beta / n, "halving");
        }
    }
}

/* Where ring becomes cheaper than the unpipelined tree, by bisection. */
static double crossover(int n, const dcomm_tuning *tuning)
{
    double low = 1e3, high = 1e10;
    for (int i = 0; i < 60; i++) {
        double middle = sqrt(low * high);
        source ring = allreduce("ring", n, middle, WHOLE);
        source tree = allreduce("binomial", n, middle, WHOLE);
        bool wins = price(&ring, tuning, NULL, CHOSEN) < price(&tree, tuning, NULL, CHOSEN);
        *(wins ? &high : &low) = middle;
    }
    return low;
}

Test(model, crossovers, .timeout = 60)
{
    dcomm_tuning tuning;
    cr_assert_eq(dcomm_tuning_uniform(10, 0.02, 0, &tuning), DCOMM_OK);
    expect(crossover(256, &tuning), 17.6e6, "N=256, 10 us, 50 GB/s");
    cr_assert_eq(dcomm_tuning_uniform(1, 1 / 600.0, 0, &tuning), DCOMM_OK);
    expect(crossover(8, &tuning), 1.13e6, "N=8, 1 us, 600 GB/s");
}

/* Ranks that stand for others come near the price of all of them; not nearer, where all ranks read
 * from rank 0 first, and one of them does not see the crowd. */
Test(model, alike, .timeout = 120)
{
    dcomm_tuning tuning;
    cr_assert_eq(dcomm_tuning_uniform(5, 0.1, 0.02, &tuning), DCOMM_OK);
    for (int k = 1; k < DCOMM_LINK_COUNT; k++) {
        tuning.link[k].alpha_ps /= 10;
        tuning.link[k].by_core = 1;
        tuning.link[k].message.ps[1] /= 8;
        tuning.link[k].read = tuning.link[k].reduce = tuning.link[k].message;
    }
    tuning.link[DCOMM_LINK_HOST].shared = tuning.link[DCOMM_LINK_HOST].message;
    tuning.step_ps = 20000;
    static const dcomm_coll colls[] = {DCOMM_COLL_ALLREDUCE, DCOMM_COLL_REDUCE_SCATTER,
                                       DCOMM_COLL_ALLGATHER, DCOMM_COLL_ALLTOALL,
                                       DCOMM_COLL_BROADCAST};
    for (int hosts = 1; hosts <= 4; hosts *= 2) {
        for (int strided = 0; strided < 2; strided++) {
            const int n = 16;
            int of[16];
            dcommi_groups *groups = NULL;
            for (int r = 0; r < n; r++) {
                of[r] = strided ? r % hosts : r / (n / hosts);
            }
            cr_assert_eq(dcommi_groups_of_hosts(of, n, &groups), DCOMM_OK);
            cr_assert_eq(dcommi_groups_period(groups, n), strided || hosts == 1 ? 1 : n / hosts);
            for (size_t c = 0; c < sizeof colls / sizeof colls[0]; c++) {
                dcomm_algo_info info;
                for (int i = 0; dcomm_algo_get(colls[c], i, &info) == DCOMM_OK; i++) {
                    for (size_t count = 16; count <= 1 << 18; count *= 128) {
                        source s = {.spec = {.coll = colls[c], .count = count, .dtype = DCOMM_F32},
                                    .algo = info.name,
                                    .nranks = n};
                        if (strided && hosts > 1) {
                            continue; /* ranks of a host would take turns at its port */
                        }
                        double few = price(&s, &tuning, groups, FEW);
                        double all = price(&s, &tuning, groups, ALL);
                        cr_assert(fabs(few - all) <= 0.4 * all && all > 0,
                                  "%s %s, %zu elements, %d hosts%s: %g and %g s",
                                  dcomm_coll_name(colls[c]), info.name, count, hosts,
                                  strided ? " strided" : "", few, all);
                    }
                }
            }
            dcommi_groups_free(&groups);
        }
    }
}

/* Thousands of ranks, in moderate time and memory. */
Test(model, thousands, .timeout = 60)
{
    dcomm_tuning tuning;
    cr_assert_eq(dcomm_tuning_uniform(10, 0.02, 0, &tuning), DCOMM_OK);
    const int n = 4096;
    const double d = 64 << 20;
    source s = allreduce("ring", n, d, 0);
    expect(price(&s, &tuning, NULL, CHOSEN), 2 * (n - 1) * (10e-6 + d * 2e-11 / n), "ring of 4096");
    s.spec.coll = DCOMM_COLL_ALLTOALL;
    s.spec.count = 1024;
    s.algo = "pairwise";
    double pairwise = price(&s, &tuning, NULL, CHOSEN);
    cr_assert(pairwise >= (n - 1) * 4096 * 2e-11 && pairwise <= (n - 1) * (20e-6), "%g", pairwise);
    s = allreduce("tree", n, 1 << 20, 0);
    cr_assert(price(&s, &tuning, NULL, CHOSEN) < 0.1);
}

/* One network interface per host: the ranks of a host share it. */
Test(model, shared_port, .timeout = 30)
{
    dcomm_tuning tuning;
    cr_assert_eq(dcomm_tuning_uniform(0, 0, 0, &tuning), DCOMM_OK);
    dcomm_link *net = &tuning.link[DCOMM_LINK_HOST];
    net->message = dcommi_curve_line(1);
    net->shared = dcommi_curve_line(1);
    int of[8];
    const int n = 8;
    const double d = 8 << 20;
    dcommi_groups *groups = NULL;
    source s = allreduce("ring", n, d, WHOLE);
    for (int r = 0; r < n; r++) {
        of[r] = r / 4;
    }
    cr_assert_eq(dcommi_groups_of_hosts(of, n, &groups), DCOMM_OK);
    double block = price(&s, &tuning, groups, ALL);
    expect(block, 14 * d / 8 * 1e-9, "each boundary crossed once");
    expect(price(&s, &tuning, groups, FEW), block, "the same by one host's ranks");
    dcommi_groups_free(&groups);
    for (int r = 0; r < n; r++) {
        of[r] = r % 2;
    }
    cr_assert_eq(dcommi_groups_of_hosts(of, n, &groups), DCOMM_OK);
    double strided = price(&s, &tuning, groups, ALL);
    expect(strided, 4 * block, "each hop leaves the host");
    expect(price(&s, &tuning, groups, FEW), strided, "the same by one rank");
    /* A burst passes at once; all together takes no less than the rate. */
    net->message = net->shared = dcommi_curve_line(0.01);
    net->sustained = dcommi_curve_line(1);
    expect(price(&s, &tuning, groups, ALL), strided, "as long as the link needs for the sum");
    expect(price(&s, &tuning, groups, FEW), strided, "the same by one rank, shaped");
    dcommi_groups_free(&groups);
}

/* Ranks that take turns on a processor take longer, and only where both have work. */
Test(model, turns, .timeout = 30)
{
    enum { N = 4 };
    dcomm_tuning tuning;
    const double d = 4 << 20;
    int of[N] = {0};
    dcommi_groups *groups = NULL;
    cr_assert_eq(dcomm_tuning_uniform(0, 0, 0.5, &tuning), DCOMM_OK);
    cr_assert_eq(dcommi_groups_of_hosts(of, N, &groups), DCOMM_OK);
    source ring = allreduce("ring", N, d, WHOLE), tree = allreduce("binomial", N, d, WHOLE);
    double folds = 3 * d / N * 0.5e-9, levels = 2 * d * 0.5e-9;
    expect(price(&ring, &tuning, groups, ALL), folds, "each its own");
    expect(price(&tree, &tuning, groups, ALL), levels, "a tree, each its own");
    for (int r = 0; r < N; r++) {
        groups->seat[r] = r / 2 * 2;
    }
    expect(price(&ring, &tuning, groups, ALL), 2 * folds, "all work twice as long");
    expect(price(&ring, &tuning, groups, FEW), 2 * folds, "the same by one rank");
    expect(price(&tree, &tuning, groups, ALL), levels, "who shares with a leaf is not held up");
    dcommi_groups_free(&groups);
}

/* A promise of registered memory is priced by its own curves, and a fold of many operands passes
 * over its result once. */
Test(model, registered, .timeout = 30)
{
    dcomm_tuning tuning;
    dcomm_alternative plain[16], promised[16];
    dcomm_coll_opts opts = {.registered = true};
    int n = 0, one_shot = -1;
    dcomm_tuning_default(&tuning);
    for (int k = DCOMM_LINK_HOST + 1; k < DCOMM_LINK_COUNT; k++) {
        tuning.link[k].mapped_read = dcommi_curve_line(0.01);
        tuning.link[k].mapped_reduce = dcommi_curve_line(0.03);
        tuning.link[k].signal_ps = tuning.link[k].tell_ps = 0;
    }
    tuning.step_ps = tuning.call_ps = 0;
    const size_t count = 1 << 20;
    const double bytes = 4.0 * (double)count;
    for (int nranks = 2; nranks <= 8; nranks *= 2) {
        cr_assert_eq(dcomm_explain_on(&tuning, nranks, NULL, DCOMM_COLL_ALLREDUCE, count, DCOMM_F32,
                                      NULL, plain, 16, &n),
                     DCOMM_OK);
        cr_assert_eq(dcomm_explain_on(&tuning, nranks, NULL, DCOMM_COLL_ALLREDUCE, count, DCOMM_F32,
                                      &opts, promised, 16, &n),
                     DCOMM_OK);
        for (int i = 0; i < n; i++) {
            bool reads = strstr(promised[i].algo, "shot") != NULL;
            one_shot = strcmp(promised[i].algo, "one_shot") == 0 ? i : one_shot;
            cr_assert(promised[i].seconds <= plain[i].seconds, "%s", promised[i].algo);
            cr_assert(!reads || promised[i].seconds < plain[i].seconds / 2, "%s", promised[i].algo);
        }
        expect(promised[one_shot].seconds, (nranks + 1) * bytes * 0.01e-9, "one pass");
    }
}

/* So is one of huge pages; of both, registered memory is the stronger. */
Test(model, huge_pages, .timeout = 30)
{
    dcomm_tuning tuning;
    dcomm_tuning_default(&tuning);
    for (int k = DCOMM_LINK_HOST + 1; k < DCOMM_LINK_COUNT; k++) {
        tuning.link[k].huge_read = tuning.link[k].huge_reduce = dcommi_curve_line(0.02);
        tuning.link[k].mapped_read = tuning.link[k].mapped_reduce = dcommi_curve_line(0.01);
    }
    double seconds[4] = {0};
    for (int promises = 0; promises < 4; promises++) {
        dcomm_coll_opts opts = {.huge_pages = promises & 1, .registered = promises & 2};
        dcomm_alternative rows[16];
        int n = 0;
        cr_assert_eq(dcomm_explain_on(&tuning, 2, NULL, DCOMM_COLL_ALLREDUCE, 1 << 20, DCOMM_F32,
                                      &opts, rows, 16, &n),
                     DCOMM_OK);
        for (int i = 0; i < n; i++) {
            seconds[promises] =
                strcmp(rows[i].algo, "two_shot") == 0 ? rows[i].seconds : seconds[promises];
        }
    }
    cr_expect_lt(seconds[1], seconds[0]);
    cr_expect_lt(seconds[2], seconds[1]);
    cr_expect_eq(seconds[3], seconds[2]);
}

/* What a rank has sent or copied is in its cache when it copies it again: its own block in an
 * all-gather, unless that is long or copied first (ring), and not that of an all-to-all, which it
 * has not read. */
Test(model, just_read, .timeout = 30)
{
    static const struct {
        const char *algo;
        dcomm_coll coll;
        size_t bytes; /* of a block */
        double share; /* of a copy */
    } tries[] = {
        {"direct", DCOMM_COLL_ALLGATHER, 16384, 0.5}, {"staged", DCOMM_COLL_ALLGATHER, 16384, 0.5},
        {"direct", DCOMM_COLL_ALLGATHER, 1 << 20, 1}, {"ring", DCOMM_COLL_ALLGATHER, 16384, 1},
        {"linear", DCOMM_COLL_ALLTOALL, 16384, 1},    {"staged", DCOMM_COLL_ALLTOALL, 16384, 1},
        {"pairwise", DCOMM_COLL_ALLTOALL, 16384, 1}};
    dcomm_tuning tuning;
    cr_assert_eq(dcomm_tuning_uniform(0, 0, 0, &tuning), DCOMM_OK);
    tuning.copy = dcommi_curve_line(1);
    for (int k = DCOMM_LINK_HOST + 1; k < DCOMM_LINK_COUNT; k++) {
        tuning.link[k].by_core = true;
    }
    for (size_t k = 0; k < sizeof tries / sizeof tries[0]; k++) {
        dcomm_alternative rows[16];
        int n = 0, found = -1;
        cr_assert_eq(dcomm_explain_on(&tuning, 2, NULL, tries[k].coll, tries[k].bytes / 4,
                                      DCOMM_F32, NULL, rows, 16, &n),
                     DCOMM_OK);
        for (int i = 0; i < n; i++) {
            found = strcmp(rows[i].algo, tries[k].algo) == 0 ? i : found;
        }
        cr_assert_geq(found, 0, "%s", tries[k].algo);
        expect(rows[found].seconds, tries[k].share * (double)tries[k].bytes * 1e-9, tries[k].algo);
    }
}

/* Long messages wait for their receive; short ones do not. */
Test(model, eager, .timeout = 30)
{
    dcomm_tuning tuning;
    cr_assert_eq(dcomm_tuning_uniform(10, 1, 0, &tuning), DCOMM_OK);
    source s = allreduce("ring", 4, 4e6, WHOLE);
    double sent = price(&s, &tuning, NULL, CHOSEN);
    for (int k = 0; k < DCOMM_LINK_COUNT; k++) {
        tuning.link[k].eager_bytes = 4096;
    }
    double asked = price(&s, &tuning, NULL, CHOSEN);
    expect(asked - sent, 6 * 10e-6, "one more latency for each of six steps");
}

/* A sub-plan of a group costs what it costs alone. */
Test(model, call, .timeout = 30)
{
    enum { N = 6, BYTES = 1 << 20 };
    dcomm_tuning tuning;
    double alone, called;
    dcomm_plan *inner[N], *outer[N], *apart[N / 2];
    cr_assert_eq(dcomm_tuning_uniform(10, 1, 0.5, &tuning), DCOMM_OK);
    source s = allreduce("ring", N / 2, BYTES, WHOLE);
    for (int r = 0; r < N / 2; r++) {
        const dcomm_plan *plan;
        cr_assert_eq(make(&s, r, &plan), DCOMM_OK);
        apart[r] = (dcomm_plan *)(uintptr_t)plan;
    }
    cr_assert_eq(dcomm_plan_price((const dcomm_plan *const *)apart, N / 2, NULL, &tuning, &alone),
                 DCOMM_OK);
    for (int r = 0; r < N; r++) { /* even and odd ranks apart, twice in a loop */
        const dcomm_plan *plan;
        dcommi_builder b;
        cr_assert_eq(make(&s, r / 2, &plan), DCOMM_OK);
        inner[r] = (dcomm_plan *)(uintptr_t)plan;
        dcommi_build_begin(&b, "outer", r, N, DCOMM_F32, DCOMM_SUM);
        b.head.in_bytes = b.head.out_bytes = BYTES;
        b.head.ncounters = plan->ncounters;
        b.head.nslots = plan->nslots;
        dcommi_build_tags(&b, plan->ntags);
        int64_t group[N / 2];
        for (int i = 0; i < N / 2; i++) {
            group[i] = 2 * i + r % 2;
        }
        int64_t at = dcommi_build_table(&b, group, N / 2);
        dcommi_call(&b, 0, plan, at, dcommi_span(DCOMM_SPACE_IN, 0, BYTES),
                    dcommi_span(DCOMM_SPACE_OUT, 0, BYTES), dcommi_const(0));
        cr_assert_eq(dcommi_build_finish(&b, &outer[r]), DCOMM_OK);
    }
    cr_assert_eq(dcomm_plan_price((const dcomm_plan *const *)outer, N, NULL, &tuning, &called),
                 DCOMM_OK, "%s", dcomm_last_error());
    expect(called, alone, "called");
    for (int r = 0; r < N; r++) {
        dcomm_plan_destroy(&outer[r]);
        dcomm_plan_destroy(&inner[r]);
    }
    for (int r = 0; r < N / 2; r++) {
        dcomm_plan_destroy(&apart[r]);
    }
}

/* What cannot be priced is refused by name. */
Test(model, refusals, .timeout = 30)
{
    dcomm_tuning tuning;
    double seconds;
    dcomm_plan *plan[2];
    cr_assert_eq(dcomm_tuning_uniform(NAN, 0, 0, &tuning), DCOMM_ERR_INVALID);
    cr_assert_eq(dcomm_tuning_uniform(1, -1, 0, &tuning), DCOMM_ERR_INVALID);
    cr_assert_eq(dcomm_tuning_uniform(1, 1, 0, NULL), DCOMM_ERR_INVALID);
    cr_assert_eq(dcomm_tuning_uniform(1, 1, 1, &tuning), DCOMM_OK);
    for (int r = 0; r < 2; r++) { /* both wait for a signal that nobody sends */
        dcommi_builder b;
        dcommi_build_begin(&b, "stuck", r, 2, DCOMM_F32, DCOMM_SUM);
        dcommi_await(&b, 0, dcommi_build_counter(&b), dcommi_const(1));
        cr_assert_eq(dcommi_build_finish(&b, &plan[r]), DCOMM_OK);
    }
    const dcomm_plan *const *plans = (const dcomm_plan *const *)plan;
    cr_assert_eq(dcomm_plan_price(plans, 2, NULL, &tuning, &seconds), DCOMM_ERR_PLAN);
    cr_assert(strstr(dcomm_last_error(), "for ever") != NULL, "%s", dcomm_last_error());
    cr_assert_eq(dcomm_plan_price(plans, 0, NULL, &tuning, &seconds), DCOMM_ERR_INVALID);
    cr_assert_eq(dcomm_plan_price(plans, 1, NULL, &tuning, &seconds), DCOMM_ERR_PLAN);
    tuning.copy = (dcomm_curve){.n = 2, .bytes = {8, 8}};
    cr_assert_eq(dcomm_plan_price(plans, 2, NULL, &tuning, &seconds), DCOMM_ERR_INVALID);
    tuning.copy.n = 0;
    for (int r = 0; r < 2; r++) {
        dcomm_plan_destroy(&plan[r]);
        dcommi_builder b;
        dcommi_build_begin(&b, "word", r, 2, DCOMM_F32, DCOMM_SUM);
        b.head.nwords = 1;
        dcommi_await(&b, 0, dcommi_build_counter(&b), dcommi_word(0));
        cr_assert_eq(dcommi_build_finish(&b, &plan[r]), DCOMM_OK);
    }
    cr_assert_eq(dcomm_plan_price(plans, 2, NULL, &tuning, &seconds), DCOMM_ERR_UNSUPPORTED, "%s",
                 dcomm_last_error());
    cr_assert(strstr(dcomm_last_error(), "word") != NULL, "%s", dcomm_last_error());
    for (int r = 0; r < 2; r++) {
        dcomm_plan_destroy(&plan[r]);
    }
}

/* A tuning survives its file, and a bad line is named. */
Test(model, file, .timeout = 30)
{
    char path[] = "/tmp/dcomm-tuning-XXXXXX";
    int fd = mkstemp(path);
    cr_assert(fd >= 0);
    dcomm_tuning wrote, got;
    dcomm_tuning_default(&wrote);
    wrote.link[DCOMM_LINK_NEAR].alpha_ps = 123457;
    wrote.link[DCOMM_LINK_CORE].message.ps[1] = 98765432109;
    wrote.link[DCOMM_LINK_CORE].mapped_reduce = wrote.link[DCOMM_LINK_CORE].message;
    wrote.link[DCOMM_LINK_CORE].huge_read = wrote.link[DCOMM_LINK_CORE].message;
    wrote.device_stage_ps = 11000000;
    wrote.device_ucx = 1;
    wrote.device_ucx_ps = 4000000;
    wrote.device_copy = wrote.device_read = wrote.link[DCOMM_LINK_CORE].message;
    wrote.device_fold = wrote.device_reduce = wrote.link[DCOMM_LINK_CORE].read;
    wrote.tried = 4;
    wrote.trial[0] = (dcomm_trial){"ring", {.n = 1, .bytes = {4096}, .ps = {7000000}}};
    wrote.trial[1] = (dcomm_trial){"two_shot", {.n = 2, .bytes = {64, 128}, .ps = {1, 2000000}}};
    wrote.huge[0] = (dcomm_trial){"tree", {.n = 1, .bytes = {1 << 20}, .ps = {8000000}}};
    wrote.registered[0] = (dcomm_trial){"star", {.n = 1, .bytes = {65536}, .ps = {9000000}}};
    cr_assert_eq(dcomm_tuning_save(&wrote, path), DCOMM_OK);
    cr_assert_eq(dcomm_tuning_load(path, &got), DCOMM_OK, "%s", dcomm_last_error());
    cr_assert_eq(memcmp(&wrote, &got, sizeof got), 0);
    cr_assert_eq(write(fd, "near.alpha_us = -1\n", 19), 19); /* over the first line */
    cr_assert_eq(dcomm_tuning_load(path, &got), DCOMM_ERR_INVALID);
    cr_assert(strstr(dcomm_last_error(), "line 1") != NULL, "%s", dcomm_last_error());
    cr_assert_eq(lseek(fd, 0, SEEK_SET), 0);
    cr_assert_eq(write(fd, "allreduce. = 8:1   \n", 20), 20);
    cr_assert_eq(dcomm_tuning_load(path, &got), DCOMM_ERR_INVALID);
    close(fd);
    unlink(path);
    cr_assert_eq(dcomm_tuning_load(path, &got), DCOMM_ERR_SYSTEM);
}

/* What an all-reduce of `count` f32 by an algorithm costs as the choice sees it, on nranks ranks of
 * so many hosts. */
static double corrected(const dcomm_tuning *tuning, int nranks, int nhosts, dcomm_coll coll,
                        size_t count, const dcomm_coll_opts *opts, const char *algo, bool *chosen)
{
    dcomm_alternative rows[16];
    int hosts[8], n = 0;
    for (int r = 0; r < nranks; r++) {
        hosts[r] = r * nhosts / nranks;
    }
    cr_assert_eq(
        dcomm_explain_on(tuning, nranks, hosts, coll, count, DCOMM_F32, opts, rows, 16, &n),
        DCOMM_OK);
    for (int i = 0; i < n; i++) {
        if (strcmp(rows[i].algo, algo) == 0) {
            *chosen = rows[i].chosen;
            return rows[i].seconds;
        }
    }
    cr_assert_fail("there is no %s", algo);
    return 0;
}

/* Trials correct the prices of what was tried, and of nothing else. */
Test(model, trials, .timeout = 30)
{
    enum { COUNT = 1 << 18 };
    dcomm_tuning plain, tried;
    bool chosen;
    dcomm_tuning_default(&plain);
    tried = plain;
    double ring = corrected(&plain, 4, 1, DCOMM_COLL_ALLREDUCE, COUNT, NULL, "ring", &chosen);
    double tree = corrected(&plain, 4, 1, DCOMM_COLL_ALLREDUCE, COUNT, NULL, "tree", &chosen);
    cr_assert(!chosen);
    double small = corrected(&plain, 4, 1, DCOMM_COLL_ALLREDUCE, COUNT / 4, NULL, "ring", &chosen);
    tried.tried = 4;
    tried.trial[0] = (dcomm_trial){"tree", {.n = 1, .bytes = {4 * COUNT}}};
    tried.trial[0].took.ps[0] = (int64_t)(0.25e12 * tree);
    tried.trial[1] = (dcomm_trial){"ring", {.n = 2, .bytes = {COUNT, 4 * COUNT}}};
    tried.trial[1].took.ps[0] = (int64_t)(1.5e12 * small);
    tried.trial[1].took.ps[1] = (int64_t)(2e12 * ring);

    /* At the points, beyond the last, halfway, and below the first. */
    const struct {
        const char *algo;
        size_t count;
        double factor;
    } at[] = {{"tree", COUNT, 0.25},
              {"tree", 16 * COUNT, 0.25},
              {"tree", COUNT / 4, 2},
              {"ring", COUNT, 2},
              {"ring", COUNT / 4, 1.5},
              {"ring", COUNT / 16, 1.5},
              {"ring", COUNT / 8 * 5, 1.75},
              {"ring", 64, 1.5},
              {"ring", 16 * COUNT, 2},
              {"halving_doubling", COUNT, 2},
              {"star", COUNT, 2}};
    for (size_t i = 0; i < sizeof at / sizeof at[0]; i++) {
        double was =
            corrected(&plain, 4, 1, DCOMM_COLL_ALLREDUCE, at[i].count, NULL, at[i].algo, &chosen);
        double is =
            corrected(&tried, 4, 1, DCOMM_COLL_ALLREDUCE, at[i].count, NULL, at[i].algo, &chosen);
        if (strcmp(at[i].algo, "tree") != 0 || at[i].count >= COUNT) {
            expect(is, at[i].factor * was, at[i].algo);
        } else { /* where others were tried and it was not, it gets no less than they do */
            cr_assert(is >= was * 1.49, "%g, %g", is, was);
        }
    }
    expect(corrected(&tried, 4, 1, DCOMM_COLL_ALLREDUCE, COUNT, NULL, "tree", &chosen), tree / 4,
           "tree");
    cr_assert(chosen);

    /* However little or much a trial took, prices stay numbers. */
    tried.trial[0].took.ps[0] = 0;
    (void)corrected(&tried, 4, 1, DCOMM_COLL_ALLREDUCE, COUNT, NULL, "tree", &chosen);
    cr_assert(chosen);
    tried.trial[0].took.ps[0] = DCOMMI_MODEL_MOST;
    (void)corrected(&tried, 4, 1, DCOMM_COLL_ALLREDUCE, COUNT, NULL, "tree", &chosen);
    cr_assert(!chosen);

    /* Other ranks, hosts, memory and operations are priced as before. */
    const struct {
        int nranks, nhosts;
        dcomm_coll coll;
        const dcomm_coll_opts *opts;
    } other[] = {{8, 1, DCOMM_COLL_ALLREDUCE, NULL},
                 {4, 2, DCOMM_COLL_ALLREDUCE, NULL},
                 {4, 1, DCOMM_COLL_ALLREDUCE, &(dcomm_coll_opts){.registered = true}},
                 {4, 1, DCOMM_COLL_ALLGATHER, NULL}};
    for (size_t i = 0; i < sizeof other / sizeof other[0]; i++) {
        double was = corrected(&plain, other[i].nranks, other[i].nhosts, other[i].coll, COUNT,
                               other[i].opts, "ring", &chosen);
        double is = corrected(&tried, other[i].nranks, other[i].nhosts, other[i].coll, COUNT,
                              other[i].opts, "ring", &chosen);
        cr_assert(is == was, "%zu: %g, not %g", i, is, was);
    }
    tried.trial[1].took.bytes[1] = 1;
    cr_assert_eq(
        dcomm_explain_on(&tried, 4, NULL, DCOMM_COLL_ALLREDUCE, 1, DCOMM_F32, NULL, NULL, 0, NULL),
        DCOMM_ERR_INVALID);
    memset(plain.trial[0].algo, 'x', sizeof plain.trial[0].algo);
    cr_assert_eq(
        dcomm_explain_on(&plain, 4, NULL, DCOMM_COLL_ALLREDUCE, 1, DCOMM_F32, NULL, NULL, 0, NULL),
        DCOMM_ERR_INVALID);
}

/* Huge pages and registered memory have trials of their own, which say nothing of other memory. The
 * former, until it has some and in calls that are shorter, is corrected as ordinary memory is. */
Test(model, trials_of_memory, .timeout = 30)
{
    enum { COUNT = 1 << 18 };
    const dcomm_coll coll = DCOMM_COLL_ALLREDUCE;
    dcomm_tuning plain, tried;
    bool chosen;
    dcomm_tuning_default(&plain);
    tried = plain;
    tried.tried = 4;
    double ring = corrected(&plain, 4, 1, coll, COUNT, NULL, "ring", &chosen);
    tried.trial[0] = (dcomm_trial){"ring", {.n = 1, .bytes = {4 * COUNT}}};
    tried.trial[0].took.ps[0] = (int64_t)(2e12 * ring);
    const struct {
        dcomm_coll_opts opts;
        dcomm_trial *trial;
        double before, shorter; /* factors */
    } own[] = {{{.huge_pages = true}, &tried.huge[0], 2, 2},
               {{.registered = true}, &tried.registered[0], 1, 3}};
    for (size_t i = 0; i < sizeof own / sizeof own[0]; i++) {
        const dcomm_coll_opts *opts = &own[i].opts;
        double was = corrected(&plain, 4, 1, coll, COUNT, opts, "ring", &chosen);
        double less = corrected(&plain, 4, 1, coll, COUNT / 4, opts, "ring", &chosen);
        expect(corrected(&tried, 4, 1, coll, COUNT, opts, "ring", &chosen), own[i].before * was,
               "before");
        *own[i].trial = (dcomm_trial){"ring", {.n = 1, .bytes = {4 * COUNT}}};
        own[i].trial->took.ps[0] = (int64_t)(3e12 * was);
        expect(corrected(&tried, 4, 1, coll, COUNT, opts, "ring", &chosen), 3 * was, "its own");
        expect(corrected(&tried, 4, 1, coll, COUNT / 4, opts, "ring", &chosen),
               own[i].shorter * less, "a shorter call");
        expect(corrected(&tried, 4, 1, coll, COUNT, NULL, "ring", &chosen), 2 * ring, "ordinary");
    }
}

/* What runs without the engine takes none of its time: short messages in one lane, within a host.
 */
Test(model, scripts, .timeout = 30)
{
    const struct {
        const char *algo;
        size_t count;
        int nhosts;
        bool scripted;
    } tries[] = {{"recursive_halving", 4, 1, true},
                 {"ring", 4, 1, false},
                 {"recursive_halving", 1 << 20, 1, false},
                 {"recursive_halving", 4, 2, false},
                 {"direct", 4, 1, true}};
    dcomm_tuning plain, slow;
    bool chosen;
    dcomm_tuning_default(&plain);
    slow = plain;
    slow.call_ps += 1000000;
    slow.step_ps += 1000000;
    for (size_t i = 0; i < sizeof tries / sizeof tries[0]; i++) {
        double seconds[2];
        for (int k = 0; k < 2; k++) {
            seconds[k] =
                corrected(k == 0 ? &plain : &slow, 4, tries[i].nhosts, DCOMM_COLL_REDUCE_SCATTER,
                          tries[i].count, NULL, tries[i].algo, &chosen);
        }
        cr_assert_eq(seconds[1] == seconds[0], tries[i].scripted, "%s of %zu on %d hosts: %g, %g",
                     tries[i].algo, tries[i].count, tries[i].nhosts, seconds[0], seconds[1]);
    }
}

/* The choice is the cheapest row, is the same on every call, and says why. */
Test(model, explain, .timeout = 30)
{
    dcomm_tuning tuning;
    dcomm_alternative rows[16];
    int n = 0;
    cr_assert_eq(dcomm_tuning_uniform(10, 0.02, 0, &tuning), DCOMM_OK);
    for (size_t count = 1; count < 1 << 24; count *= 8) {
        cr_assert_eq(dcomm_explain_on(&tuning, 8, NULL, DCOMM_COLL_ALLREDUCE, count, DCOMM_F32,
                                      NULL, rows, 16, &n),
                     DCOMM_OK);
        int chosen = -1;
        for (int i = 0; i < n; i++) {
            cr_assert(rows[i].seconds > 0, "%s: %s", rows[i].algo, rows[i].why);
            cr_assert(rows[i].chosen || rows[i].why[0] != 0);
            chosen = rows[i].chosen ? i : chosen;
        }
        cr_assert(chosen >= 0);
        for (int i = 0; i < n; i++) {
            cr_assert(rows[i].seconds >= rows[chosen].seconds, "%s over %s at %zu",
                      rows[chosen].algo, rows[i].algo, count);
        }
    }
    dcomm_coll_opts opts = {.deterministic = true};
    cr_assert_eq(
        dcomm_explain_on(NULL, 4, NULL, DCOMM_COLL_ALLREDUCE, 1000, DCOMM_F32, &opts, rows, 16, &n),
        DCOMM_OK);
    cr_assert(rows[0].seconds < 0 && strstr(rows[0].why, "rank order") != NULL, "%s", rows[0].why);
    opts = (dcomm_coll_opts){.algo = "star"};
    cr_assert_eq(
        dcomm_explain_on(NULL, 4, NULL, DCOMM_COLL_ALLREDUCE, 1000, DCOMM_F32, &opts, rows, 16, &n),
        DCOMM_OK);
    for (int i = 0; i < n; i++) {
        cr_assert_eq(rows[i].chosen, strcmp(rows[i].algo, "star") == 0);
    }
}

/* ---- hierarchies ---- */

/* Where a slow link hides what many messages take, a ring costs least; but not by so much that this
 * is believed. */
Test(model, few_steps_for_short_calls_between_hosts, .timeout = 20)
{
    const int hosts[] = {0, 0, 1, 1, 2, 2, 3, 3};
    for (int us = 2; us <= 20; us += 18) {
        dcomm_tuning t;
        dcomm_alternative rows[16];
        double ring = 0, hier = 0;
        int n = 0;
        const char *chosen = "none";
        dcomm_tuning_default(&t);
        t.link[DCOMM_LINK_HOST].alpha_ps = us * INT64_C(1000000);
        t.link[DCOMM_LINK_HOST].message = t.link[DCOMM_LINK_HOST].shared = dcommi_curve_line(2);
        t.link[DCOMM_LINK_HOST].sustained = dcommi_curve_line(40);
        cr_assert_eq(dcomm_explain_on(&t, 8, hosts, DCOMM_COLL_ALLREDUCE, 1024, DCOMM_F32, NULL,
                                      rows, 16, &n),
                     DCOMM_OK);
        for (int i = 0; i < n; i++) {
            ring = strcmp(rows[i].algo, "ring") == 0 ? rows[i].seconds : ring;
            hier = strcmp(rows[i].algo, "hier") == 0 ? rows[i].seconds : hier;
            chosen = rows[i].chosen ? rows[i].algo : chosen;
        }
        cr_assert(ring > 0 && ring < 0.95 * hier, "%g, %g", ring, hier);
        cr_assert_eq(strcmp(chosen, us < 8 ? "ring" : "hier"), 0, "%d us: %s", us, chosen);
    }
}

Test(model, chosen_between_hosts_with_several_ranks, .timeout = 20)
{
    static const int two[4] = {7, 3, 7, 3}, four[4] = {0, 1, 2, 3};
    static const struct {
        const int *hosts;
        size_t count;
        bool rank_order, hier;
    } tries[] = {{two, 1 << 20, false, true},
                 {two, 100, false, true},
                 {two, 1 << 20, true, false},
                 {four, 1 << 20, false, false},
                 {NULL, 1 << 20, false, false}};
    for (size_t k = 0; k < sizeof tries / sizeof tries[0]; k++) {
        dcomm_plan *plan[4];
        dcomm_check_report report;
        dcomm_check_spec spec = {.coll = DCOMM_COLL_ALLREDUCE,
                                 .count = tries[k].count,
                                 .dtype = DCOMM_F32,
                                 .rank_order = tries[k].rank_order,
                                 .hosts = tries[k].hosts};
        for (int r = 0; r < 4; r++) {
            cr_assert_eq(dcomm_plan_create(&spec, DCOMM_SUM, r, 4, NULL, &plan[r]), DCOMM_OK, "%s",
                         dcomm_last_error());
            cr_expect_eq(strcmp(plan[r]->name, "hier") == 0, tries[k].hier, "%zu: %s", k,
                         plan[r]->name);
        }
        cr_expect_eq(dcomm_plan_check((const dcomm_plan *const *)plan, 4, &spec, &report), DCOMM_OK,
                     "%s", report.message);
        for (int r = 0; r < 4; r++) {
            dcomm_plan_destroy(&plan[r]);
        }
    }
    dcomm_plan *plan = NULL;
    dcomm_check_spec spec = {.coll = DCOMM_COLL_ALLREDUCE,
                             .count = 100,
                             .dtype = DCOMM_F32,
                             .hosts = two,
                             .rank_order = true};
    cr_expect_eq(
        dcomm_plan_create(&spec, DCOMM_SUM, 0, 4, &(dcomm_coll_opts){.algo = "hier"}, &plan),
        DCOMM_ERR_UNSUPPORTED);
    cr_expect_null(plan);
}

/* What the explanation says of hier. */
static const char *note_of(const dcommi_groups *groups, dcomm_coll coll, size_t count)
{
    static dcomm_alternative rows[32];
    int n = 0;
    cr_assert_eq(dcommi_explain_groups(NULL, groups->nranks, groups, coll, count, DCOMM_F32, NULL,
                                       dcommi_explain_algos, rows, 32, &n),
                 DCOMM_OK, "%s", dcomm_last_error());
    for (int i = 0; i < n; i++) {
        if (strcmp(rows[i].algo, "hier") == 0) {
            return rows[i].note;
        }
        cr_expect(rows[i].note[0] == 0 || strcmp(rows[i].algo, "hier_leader") == 0);
    }
    return "?";
}

Test(model, what_is_not_divided_is_explained, .timeout = 20)
{
    static const uint8_t kinds[2] = {DCOMMI_LEVEL_HOST, DCOMMI_LEVEL_PACKAGE};
    static const struct {
        const char *hosts, *packages;
        dcomm_coll coll;
        const char *note;
    } tries[] = {
        {"00001111", "00110011", DCOMM_COLL_ALLREDUCE, ""},
        {"00001111", "00110011", DCOMM_COLL_ALLGATHER, ""},
        {"00000111", "00000000", DCOMM_COLL_ALLGATHER, ""},
        {"00000111", "00000000", DCOMM_COLL_ALLREDUCE,
         "of each host 3 ranks own a part, as the smallest has"},
        {"00010", "00000", DCOMM_COLL_BROADCAST,
         "of each host 1 rank owns a part, as the smallest has"},
        {"0000001111", "0111110011", DCOMM_COLL_ALLREDUCE,
         "host 0 is one group: its packages cannot own equally much"},
        {"0000111111", "0011000111", DCOMM_COLL_REDUCE_SCATTER, ""},
        {"0000111111", "0011000011", DCOMM_COLL_REDUCE_SCATTER,
         "host 1 is one group: its packages cannot own equally much"},
        {"0000", "0000", DCOMM_COLL_ALLREDUCE, "no level divides the ranks: it is two_shot"},
        {"0123", "0000", DCOMM_COLL_ALLGATHER, "no level divides the ranks: it is ring"},
    };
    for (size_t i = 0; i < sizeof tries / sizeof tries[0]; i++) {
        int64_t ids[2 * 10];
        int n = (int)strlen(tries[i].hosts);
        for (int r = 0; r < n; r++) {
            ids[r] = tries[i].hosts[r];
            ids[n + r] = tries[i].packages[r];
        }
        dcommi_groups *groups = dcommi_groups_make(n, 2, kinds, ids);
        cr_assert(groups != NULL);
        cr_expect_str_eq(note_of(groups, tries[i].coll, 1 << 18), tries[i].note, "%zu", i);
        dcommi_groups_free(&groups);
    }
}
