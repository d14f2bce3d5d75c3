/* test_model.c - the model: closed forms, crossovers, ranks that stand for others, hosts, and every
 * algorithm priced. */
#define _GNU_SOURCE
#define DCOMM_IMPLEMENTATION
#include "dcomm/all.h"

#include "expect_seconds.h"
#include "explained.h"
#include "full.h"

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

/* Return the model's price in seconds. */
static double price(const source *s, const dcomm_tuning *tuning, const dcommi_groups *groups,
                    enum how how)
{
    dcommi_terrain t;
    dcommi_price p;
    dcommi_plans plans = {.get = make, .put = drop, .user = (void *)(uintptr_t)s};
    cr_assert_eq(dcommi_terrain_make(groups, s->nranks, tuning, DCOMMI_MEMORY_ANY, &t), DCOMM_OK);
    bool alike = false;
    cr_assert_eq(dcommi_plans_alike(&plans, s->nranks, t.period, &alike), DCOMM_OK);
    int period = how == ALL || !alike ? s->nranks : t.period;
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

/* Return the size at which ring becomes cheaper than the unpipelined tree, by bisection. */
static double crossover(int n, const dcomm_tuning *tuning)
{
    double low = 1e3, high = 1e10;
    for (int i = 0; i < 16; i++) {
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

/* Prices by ranks that stand for others come near the price of all ranks. */
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
            int period = 0;
            cr_assert_eq(dcommi_groups_period(groups, n, &period), DCOMM_OK);
            cr_assert_eq(period, strided || hosts == 1 ? 1 : n / hosts);
            for (size_t c = 0; c < sizeof colls / sizeof colls[0]; c++) {
                dcomm_algo_info info;
                for (int i = 0; dcomm_algo_get_info(colls[c], i, &info) == DCOMM_OK; i++) {
                    for (size_t count = 16; count <= 1 << 18; count *= 128) {
                        source s = {.spec = {.coll = colls[c], .count = count, .dtype = DCOMM_F32},
                                    .algo = info.name,
                                    .nranks = n};
                        if (strided) {
                            continue; /* ranks of a host would take turns at its port */
                        }
                        if (!test_full() && count > 1 << 12 && ((int)c + i) % 3 != hosts % 3) {
                            continue;
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

/* Price up to 64 ranks one by one if ranks that stand for others share a port with them: a single
 * rank does not see how they take turns. */
Test(model, turns_at_a_port, .timeout = 20)
{
    int of[64];
    dcommi_groups *groups = NULL;
    dcomm_tuning tuning;
    dcomm_tuning_default(&tuning);
    for (int r = 0; r < 64; r++) {
        of[r] = r % 16;
    }
    cr_assert_eq(dcommi_groups_of_hosts(of, 64, &groups), DCOMM_OK);
    source s = allreduce("ring", 64, 256, 0);
    s.spec.hosts = of;
    double all = price(&s, &tuning, groups, ALL);
    cr_expect(price(&s, &tuning, groups, CHOSEN) == all);
    cr_expect_lt(price(&s, &tuning, groups, FEW), all / 2);
    dcommi_groups_free(&groups);
}

static int made;

static dcomm_status make_counted(void *user, int rank, const dcomm_plan **plan_p)
{
    made++;
    return make(user, rank, plan_p);
}

/* Fewer than 33 ranks are priced one by one. The model compares every plan of up to 64 ranks; of
 * more ranks it compares 48 plans and those that stand for others. */
Test(model, plans_made, .timeout = 20)
{
    static const struct {
        int nranks, made; /* all; all and the one that stands for them; 48 and twice that one */
    } tries[] = {{32, 32}, {33, 34}, {64, 65}, {65, 50}};
    dcomm_tuning tuning;
    cr_assert_eq(dcomm_tuning_uniform(10, 0.02, 0, &tuning), DCOMM_OK);
    for (size_t i = 0; i < sizeof tries / sizeof tries[0]; i++) {
        source s = allreduce("ring", tries[i].nranks, 4096, 0);
        dcommi_plans plans = {.get = make_counted, .put = drop, .user = &s};
        dcommi_terrain t;
        dcommi_price p;
        made = 0;
        cr_assert_eq(dcommi_terrain_make(NULL, s.nranks, &tuning, DCOMMI_MEMORY_ANY, &t), DCOMM_OK);
        cr_assert_eq(dcommi_price_plans(&t, &plans, DCOMMI_PRICE_LIMIT, 1 << 28, &p), DCOMM_OK);
        cr_expect_eq(made, tries[i].made, "%d ranks: %d plans", s.nranks, made);
    }
}

/* Price thousands of ranks in moderate time and memory. */
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

/* The ranks of a host share its one network interface. */
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
    /* A burst passes at once; the whole takes no less than the sustained rate allows. */
    net->message = net->shared = dcommi_curve_line(0.01);
    net->sustained = dcommi_curve_line(1);
    expect(price(&s, &tuning, groups, ALL), strided, "as long as the link needs for the sum");
    expect(price(&s, &tuning, groups, FEW), strided, "the same by one rank, shaped");
    dcommi_groups_free(&groups);
}

/* Ranks that read exposed memory of all others start with different peers, so that each of N - 1
 * blocks takes a port once. */
Test(model, exposed_reads, .timeout = 30)
{
    static const struct {
        dcomm_coll coll;
        const char *algo;
        bool block; /* the count is of a block, not of the whole */
        double passes;
    } cases[] = {
        {DCOMM_COLL_ALLREDUCE, "one_shot", true, 1},
        {DCOMM_COLL_ALLREDUCE, "two_shot", false, 2},
        {DCOMM_COLL_REDUCE_SCATTER, "direct", true, 1},
        {DCOMM_COLL_ALLGATHER, "direct", true, 1},
        {DCOMM_COLL_ALLTOALL, "linear", true, 1},
        {DCOMM_COLL_REDUCE, "linear", true, 1},
        {DCOMM_COLL_BROADCAST, "linear", true, 1},
    };
    const double beta = 1e-9, bytes = 1 << 20;
    dcomm_tuning tuning;
    cr_assert_eq(dcomm_tuning_uniform(0.01, 1, 0, &tuning), DCOMM_OK);
    for (size_t c = 0; c < sizeof cases / sizeof cases[0]; c++) {
        for (int n = 3; n <= 24; n = n * 2 - n % 2) {
            double block = cases[c].block ? bytes : bytes / n;
            source s = {
                .spec = {.coll = cases[c].coll, .count = (size_t)(bytes / 4), .dtype = DCOMM_F32},
                .algo = cases[c].algo,
                .chunk = WHOLE,
                .nranks = n};
            double least = cases[c].passes * (n - 1) * block * beta;
            double took = price(&s, &tuning, NULL, ALL);
            cr_expect(took >= 0.99 * least && took <= 1.03 * least, "%s %s of %d: %g of %g s",
                      dcomm_coll_name(cases[c].coll), cases[c].algo, n, took, least);
        }
    }
}

/* Ranks that share a processor take longer, but only where both have work. */
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

/* Registered memory, if promised, is priced by its own curves; a fold of many operands passes over
 * its result once. */
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
        cr_assert_eq(explained_on(&tuning, nranks, NULL, DCOMM_COLL_ALLREDUCE, count, DCOMM_F32,
                                  NULL, plain, 16, &n),
                     DCOMM_OK);
        cr_assert_eq(explained_on(&tuning, nranks, NULL, DCOMM_COLL_ALLREDUCE, count, DCOMM_F32,
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

/* So are huge pages; where both are promised, registered memory wins. */
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
        cr_assert_eq(explained_on(&tuning, 2, NULL, DCOMM_COLL_ALLREDUCE, 1 << 20, DCOMM_F32, &opts,
                                  rows, 16, &n),
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

/* A rank copies faster from its cache, where a block lies that it has just sent or copied: its own
 * block in an all-gather, unless that is long or copied first (ring). The own block of an
 * all-to-all is not there, as the rank has not read it. */
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
        cr_assert_eq(explained_on(&tuning, 2, NULL, tries[k].coll, tries[k].bytes / 4, DCOMM_F32,
                                  NULL, rows, 16, &n),
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

/* A sub-plan of a group costs the same as the group's plan alone. */
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
        dcomm_builder b;
        cr_assert_eq(make(&s, r / 2, &plan), DCOMM_OK);
        inner[r] = (dcomm_plan *)(uintptr_t)plan;
        dcommi_build_begin(&b, "outer", r, N, DCOMM_F32, DCOMM_SUM);
        b.head.in_bytes = b.head.out_bytes = BYTES;
        b.head.ncounters = plan->ncounters;
        b.head.nslots = plan->nslots;
        dcomm_build_tags(&b, plan->ntags);
        int64_t group[N / 2];
        for (int i = 0; i < N / 2; i++) {
            group[i] = 2 * i + r % 2;
        }
        int64_t at = dcomm_build_table(&b, group, N / 2);
        dcomm_build_call(&b, 0, plan, at, dcomm_span(DCOMM_SPACE_IN, 0, BYTES),
                         dcomm_span(DCOMM_SPACE_OUT, 0, BYTES), dcomm_const(0));
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

/* A plan that cannot be priced is refused by name. */
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
        dcomm_builder b;
        dcommi_build_begin(&b, "stuck", r, 2, DCOMM_F32, DCOMM_SUM);
        dcomm_build_wait(&b, 0, dcomm_build_counter(&b), dcomm_const(1));
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
        dcomm_builder b;
        dcommi_build_begin(&b, "word", r, 2, DCOMM_F32, DCOMM_SUM);
        b.head.nwords = 1;
        dcomm_build_wait(&b, 0, dcomm_build_counter(&b), dcommi_word(0));
        cr_assert_eq(dcommi_build_finish(&b, &plan[r]), DCOMM_OK);
    }
    cr_assert_eq(dcomm_plan_price(plans, 2, NULL, &tuning, &seconds), DCOMM_ERR_UNSUPPORTED, "%s",
                 dcomm_last_error());
    cr_assert(strstr(dcomm_last_error(), "word") != NULL, "%s", dcomm_last_error());
    for (int r = 0; r < 2; r++) {
        dcomm_plan_destroy(&plan[r]);
    }
}

/* A tuning is the same after saving and loading, and a bad line is named. */
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
    for (int points = DCOMM_CURVE_POINTS; points <= DCOMM_CURVE_POINTS + 1; points++) {
        FILE *file = fopen(path, "w");
        cr_assert(file != NULL && fputs("allreduce.ring =", file) >= 0);
        for (int i = 0; i < points; i++) {
            fprintf(file, " %d:1", 64 << i);
        }
        cr_assert_eq(fclose(file), 0);
        cr_assert_eq(dcomm_tuning_load(path, &got),
                     points > DCOMM_CURVE_POINTS ? DCOMM_ERR_INVALID : DCOMM_OK, "%d", points);
    }
    close(fd);
    unlink(path);
    cr_assert_eq(dcomm_tuning_load(path, &got), DCOMM_ERR_SYSTEM);
}
