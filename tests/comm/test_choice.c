/* test_choice.c - the choice of an algorithm: corrections by trials, time saved by scripts,
 * explanations, the rule, and the choice between hosts. */
#define _GNU_SOURCE
#define DCOMM_IMPLEMENTATION
#include "dcomm/all.h"

#include "expect_seconds.h"
#include "explained.h"

/* Return the price of an all-reduce of `count` f32 by an algorithm on nranks ranks of nhosts
 * hosts, as the choice sees it. */
static double corrected(const dcomm_tuning *tuning, int nranks, int nhosts, dcomm_coll coll,
                        size_t count, const dcomm_coll_opts *opts, const char *algo, bool *chosen)
{
    dcomm_alternative rows[16];
    int hosts[8], n = 0;
    for (int r = 0; r < nranks; r++) {
        hosts[r] = r * nhosts / nranks;
    }
    cr_assert_eq(explained_on(tuning, nranks, hosts, coll, count, DCOMM_F32, opts, rows, 16, &n),
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

/* Trials correct the prices of the tried calls, and no others. */
Test(choice, trials, .timeout = 30)
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
        } else { /* others were tried but this one was not: it gets at least their factor */
            cr_assert(is >= was * 1.49, "%g, %g", is, was);
        }
    }
    expect(corrected(&tried, 4, 1, DCOMM_COLL_ALLREDUCE, COUNT, NULL, "tree", &chosen), tree / 4,
           "tree");
    cr_assert(chosen);

    /* The factor stays within 1/8 and 8, however long or short a trial was. */
    const struct {
        double took, factor;
    } bounds[] = {{0, 1 / 8.0}, {1 / 8.4, 1 / 8.0}, {1 / 7.6, 1 / 7.6},
                  {7.8, 7.8},   {8.2, 8},           {1e-12 * (double)DCOMMI_MODEL_MOST / tree, 8}};
    for (size_t i = 0; i < sizeof bounds / sizeof bounds[0]; i++) {
        tried.trial[0].took.ps[0] = (int64_t)(1e12 * bounds[i].took * tree);
        expect(corrected(&tried, 4, 1, DCOMM_COLL_ALLREDUCE, COUNT, NULL, "tree", &chosen),
               bounds[i].factor * tree, "within the bounds");
        cr_assert_eq(chosen, bounds[i].factor < 1);
    }

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
        explained_on(&tried, 4, NULL, DCOMM_COLL_ALLREDUCE, 1, DCOMM_F32, NULL, NULL, 0, NULL),
        DCOMM_ERR_INVALID);
    memset(plain.trial[0].algo, 'x', sizeof plain.trial[0].algo);
    cr_assert_eq(
        explained_on(&plain, 4, NULL, DCOMM_COLL_ALLREDUCE, 1, DCOMM_F32, NULL, NULL, 0, NULL),
        DCOMM_ERR_INVALID);
}

/* Huge pages and registered memory have their own trials, which do not affect other memory. Calls
 * on huge pages use the trials of ordinary memory for shorter calls, and while they have none. */
Test(choice, trials_of_memory, .timeout = 30)
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

/* A call that runs without the engine is priced without its time: short messages in one lane,
 * within a host. */
Test(choice, scripts, .timeout = 30)
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

/* The choice is the first row within a tenth of the cheapest, and each other row says why not. */
Test(choice, explain, .timeout = 30)
{
    dcomm_tuning tuning;
    dcomm_alternative rows[16];
    int n = 0;
    cr_assert_eq(dcomm_tuning_uniform(10, 0.02, 0, &tuning), DCOMM_OK);
    for (size_t count = 1; count < 1 << 24; count *= 8) {
        cr_assert_eq(explained_on(&tuning, 8, NULL, DCOMM_COLL_ALLREDUCE, count, DCOMM_F32, NULL,
                                  rows, 16, &n),
                     DCOMM_OK);
        double lowest = rows[0].seconds;
        int first = -1;
        for (int i = 0; i < n; i++) {
            cr_assert(rows[i].seconds > 0, "%s: %s", rows[i].algo, rows[i].why);
            cr_assert(rows[i].chosen || rows[i].why[0] != 0);
            lowest = fmin(lowest, rows[i].seconds);
        }
        for (int i = 0; i < n && first < 0; i++) { /* hier equals another algorithm here */
            bool close = rows[i].seconds <= 1.1 * lowest && strncmp(rows[i].algo, "hier", 4) != 0;
            first = close ? i : first;
        }
        for (int i = 0; i < n; i++) {
            cr_assert_eq(rows[i].chosen, i == first, "%s, not %s, at %zu", rows[i].algo,
                         rows[first].algo, count);
        }
    }
    dcomm_coll_opts opts = {.deterministic = true};
    cr_assert_eq(
        explained_on(NULL, 4, NULL, DCOMM_COLL_ALLREDUCE, 1000, DCOMM_F32, &opts, rows, 16, &n),
        DCOMM_OK);
    for (int i = 0; i < n; i++) {
        bool ring = strcmp(rows[i].algo, "ring") == 0;
        cr_assert(!ring || (rows[i].seconds < 0 && strstr(rows[i].why, "rank order") != NULL), "%s",
                  rows[i].why);
    }
    opts = (dcomm_coll_opts){.algo = "star"};
    cr_assert_eq(
        explained_on(NULL, 4, NULL, DCOMM_COLL_ALLREDUCE, 1000, DCOMM_F32, &opts, rows, 16, &n),
        DCOMM_OK);
    for (int i = 0; i < n; i++) {
        cr_assert_eq(rows[i].chosen, strcmp(rows[i].algo, "star") == 0);
    }
}

/* Wrong arguments of an explanation. Without room for rows, the call returns their number. */
Test(choice, explanations, .timeout = 20)
{
    dcomm_comm *const none = NULL, *const some = (dcomm_comm *)&(long[64]){0};
    dcomm_alternative rows[3];
    dcomm_path path;
    const struct {
        dcomm_comm *comm;
        dcomm_explanation e;
        const char *word;
    } bad[] = {{none, {.nranks = 0}, "nranks is 0"},
               {none, {.nranks = 2, .max_alternatives = 1}, "alternatives is NULL"},
               {none, {.nranks = 2, .alternatives = rows, .max_alternatives = -1}, "is -1"},
               {none, {.nranks = 2, .max_paths = 1}, "paths is NULL"},
               {some, {.nranks = 2}, "is set, but comm is not NULL"},
               {some, {.hosts = &(int){0}}, "is set, but comm is not NULL"}};
    cr_assert_eq(dcomm_comm_explain(NULL, NULL), DCOMM_ERR_INVALID);
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        dcomm_explanation e = bad[i].e;
        cr_expect_eq(dcomm_comm_explain(bad[i].comm, &e), DCOMM_ERR_INVALID, "%zu", i);
        cr_expect(strstr(dcomm_last_error(), bad[i].word) != NULL, "%s", dcomm_last_error());
    }
    dcomm_explanation e = {.count = 1000, .dtype = DCOMM_F32, .nranks = 4};
    cr_assert_eq(dcomm_comm_explain(NULL, &e), DCOMM_OK, "%s", dcomm_last_error());
    cr_assert(e.algo != NULL && e.nalternatives > 3 && e.npaths == 3);
    const int all = e.nalternatives;
    e.alternatives = rows;
    e.max_alternatives = 2;
    e.paths = &path;
    e.max_paths = 1;
    rows[2].algo = "untouched";
    cr_assert_eq(dcomm_comm_explain(NULL, &e), DCOMM_OK, "%s", dcomm_last_error());
    cr_assert(e.nalternatives == all && strcmp(rows[2].algo, "untouched") == 0);
    cr_assert_str_eq(path.name, "staged");
}

/* ---- the rule ---- */

/* Return a tuning with trials on four ranks of a host: n algorithms take `seconds` for `bytes`
 * bytes. */
static dcomm_tuning tried_alike(const char *const *algos, int n, int64_t bytes, double seconds)
{
    dcomm_tuning t;
    dcomm_tuning_default(&t);
    t.tried = 4;
    for (int i = 0; i < n; i++) {
        t.trial[i].took =
            (dcomm_curve){.n = 1, .bytes = {bytes}, .ps = {(int64_t)(1e12 * seconds)}};
        memcpy(t.trial[i].algo, algos[i], strlen(algos[i]) + 1);
    }
    return t;
}

/* Return the algorithm that runs on four ranks. */
static const char *chosen_by(const dcomm_tuning *t, const dcommi_groups *groups, size_t count)
{
    dcomm_explanation e = {
        .coll = DCOMM_COLL_ALLREDUCE, .count = count, .dtype = DCOMM_F32, .nranks = 4, .tuning = t};
    cr_assert_eq(dcommi_explain_groups(groups, &e), DCOMM_OK, "%s", dcomm_last_error());
    return e.algo;
}

/* Prices within a tenth of the lowest count as equal, higher ones do not. */
Test(choice, margin, .timeout = 20)
{
    enum { COUNT = 1 << 18 };
    static const char *const two[] = {"ring", "halving_doubling"};
    dcomm_tuning plain;
    bool chosen;
    dcomm_tuning_default(&plain);
    double took = corrected(&plain, 4, 1, DCOMM_COLL_ALLREDUCE, COUNT, NULL, "ring", &chosen) / 4;
    dcomm_tuning t = tried_alike(two, 2, 4 * COUNT, took);
    t.trial[1].took.ps[0] = (int64_t)(1.09e12 * took); /* just within the margin */
    cr_expect_str_eq(chosen_by(&t, NULL, COUNT), "halving_doubling");
    t.trial[1].took.ps[0] = (int64_t)(1.11e12 * took);
    cr_expect_str_eq(chosen_by(&t, NULL, COUNT), "ring");
}

/* Of equal prices the first in the table wins. hier comes first, but only if a level divides the
 * ranks. */
Test(choice, tie_break, .timeout = 20)
{
    enum { COUNT = 1 << 14, ALL = 10 };
    static const char *const order[ALL] = {
        "hier",     "one_shot", "recursive_doubling", "staged", "halving_doubling", "ring",
        "two_shot", "star",     "binomial",           "tree"};
    static const uint8_t kinds[2] = {DCOMMI_LEVEL_HOST, DCOMMI_LEVEL_PACKAGE};
    static const int64_t ids[2 * 4] = {0, 0, 0, 0, 0, 0, 1, 1};
    dcommi_groups *packages = dcommi_groups_make(4, 2, kinds, ids);
    dcomm_tuning plain;
    bool chosen;
    dcomm_tuning_default(&plain);
    double took = corrected(&plain, 4, 1, DCOMM_COLL_ALLREDUCE, COUNT, NULL, "ring", &chosen);
    dcomm_tuning t = tried_alike(order, ALL, 4 * COUNT, took);
    cr_expect_str_eq(chosen_by(&t, packages, COUNT), "hier");
    for (int first = 1; first < ALL; first++) {
        cr_expect_str_eq(chosen_by(&t, NULL, COUNT), order[first]);
        t.trial[first].took.ps[0] = (int64_t)(1.3e12 * took);
    }
    t.trial[0].took.ps[0] = (int64_t)(0.5e12 * took);
    cr_expect_str_eq(chosen_by(&t, NULL, COUNT), "one_shot");
    dcommi_groups_free(&packages);
}

/* Short all-reduces on one host use one_shot with the built-in numbers, also if ranks share
 * cores. */
Test(choice, one_shot_for_short_calls_on_a_host, .timeout = 20)
{
    static const uint8_t kind = DCOMMI_LEVEL_HOST;
    static const int64_t ids[4] = {0};
    dcommi_groups *groups = dcommi_groups_make(4, 1, &kind, ids);
    for (int shared = 0; shared < 2; shared++) {
        for (int r = 0; r < 4 && shared; r++) {
            groups->seat[r] = r % 2;
        }
        for (size_t count = 1; count <= 64; count *= 4) {
            cr_expect_str_eq(chosen_by(NULL, groups, count), "one_shot", "%d, %zu", shared, count);
        }
    }
    dcommi_groups_free(&groups);
}

/* Prices are computed for four sizes an octave, up to 256 MiB. */
Test(choice, grid)
{
    int sizes = 0;
    for (int64_t bytes = 1 << 20, last = 0; bytes < 2 << 20; bytes += 1000) {
        int64_t at = dcommi_choice_grid(bytes);
        cr_assert(8 * llabs(at - bytes) <= bytes, "%" PRId64 " is far from %" PRId64, at, bytes);
        sizes += at != last;
        last = at;
    }
    cr_expect_eq(sizes, 5); /* with both ends */
    cr_expect_eq(dcommi_choice_grid(224 << 20), 224 << 20);
    cr_expect_eq(dcommi_choice_grid(256 << 20), 256 << 20);
    cr_expect_eq(dcommi_choice_grid(INT64_C(320) << 20), 256 << 20);
}

static const dcommi_shape some_call = {.coll = DCOMM_COLL_ALLREDUCE,
                                       .nranks = 2,
                                       .dtype = DCOMM_F32,
                                       .op = DCOMM_SUM,
                                       .count = 1,
                                       .lanes = 1};

/* An algorithm that takes more than 2^20 steps has no price. */
Test(choice, budget, .timeout = 20)
{
    const dcommi_algo *doubling = dcommi_algo_find(DCOMM_COLL_ALLREDUCE, "recursive_doubling");
    dcommi_chooser *c = dcommi_alloc(sizeof *c);
    dcommi_shape s = some_call;
    dcommi_price price;
    dcomm_tuning t;
    dcomm_tuning_default(&t);
    cr_assert_eq(dcommi_chooser_set(c, NULL, 2, &t), DCOMM_OK);
    s.chunk_bytes = 2048; /* eight steps a chunk, and six for the rest */
    s.count = (size_t)(224 << 20) / 4;
    cr_expect_eq(
        dcommi_choice_price(c, &s, doubling, DCOMMI_PRICE_LIMIT, DCOMMI_CHOICE_BUDGET, &price),
        DCOMM_OK);
    cr_expect_eq(price.steps, 8 * (224 << 20) / 2048 + 6);
    s.count = (size_t)(256 << 20) / 4;
    cr_expect_eq(
        dcommi_choice_price(c, &s, doubling, DCOMMI_PRICE_LIMIT, DCOMMI_CHOICE_BUDGET, &price),
        DCOMM_ERR_UNSUPPORTED);
    cr_expect(strstr(dcomm_last_error(), "more than 1048576 steps") != NULL);
    dcommi_free(c);
}

/* A choice is cached until the numbers change, for up to 256 calls. */
Test(choice, remembered, .timeout = 20)
{
    static const dcommi_algo other = {.name = "other"};
    dcommi_chooser *c = dcommi_alloc(sizeof *c);
    dcomm_tuning t;
    const dcommi_algo *algo = NULL;
    dcommi_shape s = some_call;
    int kept = 0;
    dcomm_tuning_default(&t);
    cr_assert_eq(dcommi_chooser_set(c, NULL, 2, &t), DCOMM_OK);
    for (int i = 0; i < 256; i++) { /* 256 random calls occupy about 162 places */
        s.lanes = 1 + i / 16;
        s.count = (size_t)1 << i % 16;
        s.count = i % 2 ? s.count : s.count * 5 / 4;
        cr_assert_eq(dcommi_choose(c, &s, &algo), DCOMM_OK);
    }
    for (int i = 0; i < DCOMMI_CHOICES; i++) {
        kept += c->choice[i].key != 0;
        c->choice[i].algo = &other;
    }
    cr_expect(kept > 140 && kept < 180, "%d", kept);
    cr_expect(dcommi_choose(c, &s, &algo) == DCOMM_OK && algo == &other);
    cr_assert_eq(dcommi_chooser_set(c, NULL, 2, &t), DCOMM_OK);
    cr_expect(dcommi_choose(c, &s, &algo) == DCOMM_OK && algo != &other);
    dcommi_free(c);
}

/* If no algorithm can be priced, the last one that the call may use runs. */
Test(choice, last)
{
    int n;
    const dcommi_algo *table = dcommi_algos(false, &n);
    dcommi_shape s = some_call;
    cr_expect_str_eq(dcommi_choice_last(&s, table, n)->name, "tree");
    s.rank_order = true;
    cr_expect_str_eq(dcommi_choice_last(&s, table, n)->name, "star");
    s = (dcommi_shape){.coll = DCOMM_COLL_ALLTOALL, .nranks = 2};
    cr_expect_str_eq(dcommi_choice_last(&s, table, n)->name, "bruck");
}

/* All-to-all-v is priced as all-to-all with blocks of 64 KiB, if no rank knows all counts. */
Test(choice, blocks_of_alltoallv, .timeout = 20)
{
    dcomm_tuning t;
    bool chosen;
    dcomm_tuning_default(&t);
    double v = corrected(&t, 4, 1, DCOMM_COLL_ALLTOALLV, 7, NULL, "linear", &chosen);
    for (size_t kib = 48; kib <= 80; kib += 16) {
        double block = corrected(&t, 4, 1, DCOMM_COLL_ALLTOALL, kib * 256, NULL, "linear", &chosen);
        cr_expect_eq(block == v, kib == 64, "%zu KiB: %g, not %g", kib, block, v);
    }
}

/* ---- hierarchies ---- */

/* A ring costs least if a shaped link hides the time of many messages. But half of that time
 * counts all the same. */
Test(choice, few_steps_for_short_calls_between_hosts, .timeout = 20)
{
    const int hosts[] = {0, 0, 1, 1, 2, 2, 3, 3};
    for (int us = 4; us <= 7; us += 3) {
        dcomm_tuning t;
        dcomm_alternative rows[16];
        double ring = 0, hier = 0;
        int n = 0;
        const char *chosen = "none";
        dcomm_tuning_default(&t);
        t.link[DCOMM_LINK_HOST].alpha_ps = us * INT64_C(1000000);
        t.link[DCOMM_LINK_HOST].message = t.link[DCOMM_LINK_HOST].shared = dcommi_curve_line(2);
        t.link[DCOMM_LINK_HOST].sustained = dcommi_curve_line(80);
        cr_assert_eq(
            explained_on(&t, 8, hosts, DCOMM_COLL_ALLREDUCE, 1024, DCOMM_F32, NULL, rows, 16, &n),
            DCOMM_OK);
        for (int i = 0; i < n; i++) {
            ring = strcmp(rows[i].algo, "ring") == 0 ? rows[i].seconds : ring;
            hier = strcmp(rows[i].algo, "hier") == 0 ? rows[i].seconds : hier;
            chosen = rows[i].chosen ? rows[i].algo : chosen;
        }
        cr_assert(ring > 0 && ring < 0.95 * hier, "%g, %g", ring, hier);
        cr_assert_eq(strcmp(chosen, us == 4 ? "ring" : "hier"), 0, "%d us: %s", us, chosen);
    }
}

Test(choice, chosen_between_hosts_with_several_ranks, .timeout = 20)
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

/* Return the explanation's note on hier. */
static const char *note_of(const dcommi_groups *groups, dcomm_coll coll, size_t count)
{
    static dcomm_alternative rows[32];
    dcomm_explanation e = {.coll = coll,
                           .count = count,
                           .dtype = DCOMM_F32,
                           .nranks = groups->nranks,
                           .alternatives = rows,
                           .max_alternatives = 32};
    cr_assert_eq(dcommi_explain_groups(groups, &e), DCOMM_OK, "%s", dcomm_last_error());
    for (int i = 0; i < e.nalternatives; i++) {
        if (strcmp(rows[i].algo, "hier") == 0) {
            return rows[i].note;
        }
        cr_expect(rows[i].note[0] == 0 || strcmp(rows[i].algo, "hier_leader") == 0);
    }
    return "?";
}

Test(choice, what_is_not_divided_is_explained, .timeout = 20)
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

/* A single disturbed probe does not spoil a curve: noise only adds time, so later points lower
 * it. */
Test(choice, a_measured_curve_is_lowered_by_what_follows)
{
    static const double took[] = {1e-6, 19e-3, 3e-6, 0, 5e-6, 4e-6};
    static const int64_t ps[] = {1000000, 3000000, 3000000, 3000000, 4000000, 4000000};
    enum { POINTS = sizeof took / sizeof took[0] };
    dcomm_curve curve = {.n = 0};
    for (int i = 0; i < POINTS; i++) {
        dcommi_tune_point(&curve, 8 << i, took[i]);
    }
    cr_assert_eq(curve.n, POINTS);
    cr_expect(dcommi_curve_valid(&curve));
    for (int i = 0; i < POINTS; i++) {
        cr_expect_eq(curve.ps[i], ps[i], "point %d: %" PRId64, i, curve.ps[i]);
    }
}
