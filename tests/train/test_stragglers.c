/* test_stragglers.c - stragglers in gradient buckets. The books of made-up times are exact. A rank
 * that is late is found, and the log names it once; ranks that are alike are not named. */
#define _GNU_SOURCE
#include "placed.h"

#include "dcomm/impl/train/bucket/pace.h"

enum { RANKS = 3, STEPS = 26 };

static int nsaid;
static char said[512];

static void hear(int level, const char *message, void *user)
{
    (void)user;
    PROCS_TRUE(level == 1);
    nsaid++;
    snprintf(said, sizeof said, "%s", message);
}

/* ---- books ---- */

/* Tell rank 0 the ranks' own times in seconds. */
static void tell(dcomm_buckets *b, double x, double y, double z)
{
    const double own[RANKS] = {x, y, z};
    for (int r = 0; r < RANKS; r++) {
        b->cards[r * DCOMMI_BKT_CARD_WORDS + DCOMMI_BKT_CARD_OWN] = dcommi_f64_bits(own[r]);
    }
    dcommi_bkt_paces_compare(b);
}

static void expect_near(double is, double wanted, const char *what)
{
    cr_assert(is > wanted - 1e-6 && is < wanted + 1e-6, "%s: %g, not %g", what, is, wanted);
}

/* Make buckets that know no more of their communicator than where its ranks are. */
static dcomm_buckets *books(size_t history)
{
    static char host[] = "there";
    static dcommi_member members[RANKS] = {
        {.hostname = host}, {.hostname = host}, {.hostname = host}};
    static dcomm_comm comm = {.members = members};
    static dcomm_buckets b;
    memset(&b, 0, sizeof b);
    b.comm = &comm;
    b.size = RANKS;
    b.history = history;
    b.cards = dcommi_bkt_cards_make(&b);
    b.paces = dcommi_bkt_paces_make(&b);
    cr_assert(b.cards != NULL && b.paces != NULL);
    nsaid = 0;
    dcomm_set_logger(hear, NULL);
    return &b;
}

static void books_end(dcomm_buckets *b)
{
    dcomm_set_logger(NULL, NULL);
    dcommi_free(b->cards);
    dcommi_bkt_paces_free(b->paces);
}

Test(stragglers, books, .timeout = 10)
{
    dcomm_buckets *b = books(2);
    const dcommi_bkt_paces *p = b->paces;
    expect_near(p->own, -1, "before the first step");
    tell(b, 1, 4, 2);
    tell(b, 5, 3, 3.5);
    tell(b, 1, 6, 2);
    cr_assert(p->steps == 3 && p->ranks[0].last == 1 && p->ranks[1].last == 2 &&
              p->ranks[2].last == 0);
    /* The two others waited for rank 1 alone from 2 to 4, and from 2 to 6. */
    expect_near(p->ranks[0].caused_s, 2 * 1.5, "rank 0");
    expect_near(p->ranks[1].caused_s, 2 * 2 + 2 * 4, "rank 1");
    expect_near(p->ranks[2].caused_s, 0, "rank 2");
    const float late[2][RANKS] = {{0, 5, 1},
                                  {2, 0, 0.5f}}; /* the third step is in place of the first */
    cr_assert(memcmp(p->late, late, sizeof late) == 0);
    /* A rank that does not know its time, or says something else, spoils the step for all. */
    tell(b, 1, -1, 2);
    tell(b, 1, (double)NAN, 2);
    tell(b, 1, 2, (double)INFINITY);
    cr_assert(p->steps == 3 && p->ranks[2].last == 0);
    books_end(b);
}

Test(stragglers, slow, .timeout = 10)
{
    dcomm_buckets *b = books(4);
    for (int step = 0; step < 40; step++) {
        tell(b, 1, 1, step % 20 == 19 ? 1.09 : 1.2); /* 19 steps in a row */
        tell(b, 0.0005, 0.0005, 0.0014);             /* too short to tell */
    }
    cr_assert_eq(nsaid, 0, "%s", said);
    for (int step = 0; step < 20; step++) {
        cr_assert_eq(nsaid, 0, "%d: %s", step, said);
        tell(b, 1, 1.2, 0.1);
    }
    cr_assert_eq(nsaid, 1);
    cr_assert_not_null(strstr(said, "rank 1 on there "), "%s", said);
    cr_assert_not_null(strstr(said, "after 1200 ms"), "%s", said);
    for (int step = 0; step < 60; step++) { /* once, also if it was faster meanwhile */
        tell(b, 1, step == 30 ? 1 : 1.2, 1);
    }
    cr_assert_eq(nsaid, 1, "%s", said);
    b->rank = 1; /* only rank 0 speaks */
    for (int step = 0; step < 20; step++) {
        tell(b, 2, 1, 1);
    }
    cr_assert_eq(nsaid, 1, "%s", said);
    books_end(b);
}

/* ---- ranks ---- */

enum { PARAMS = 4, COUNT = 1000 };

static float grad[PARAMS][COUNT], value[PARAMS][COUNT];

static dcomm_buckets *make(dcomm_comm *comm, bool sharded)
{
    dcomm_bucket_param params[PARAMS];
    dcomm_buckets *b = NULL;
    for (int i = 0; i < PARAMS; i++) {
        params[i] = (dcomm_bucket_param){.grad = grad[i],
                                         .value = sharded ? value[i] : NULL,
                                         .count = COUNT,
                                         .dtype = DCOMM_F32};
    }
    const dcomm_buckets_opts opts = {.bucket_bytes = 2 * sizeof *grad, .sharded = sharded};
    RANKS_OK(dcomm_buckets_create(comm, params, PARAMS, &opts, &b));
    return b;
}

static void compute(double seconds)
{
    const struct timespec t = {0, (long)(seconds * 1e9)};
    nanosleep(&t, NULL);
}

/* Run a step: forward and half of backward take `seconds`, then the optimizer `after` of them. */
static void step_of(dcomm_buckets *b, double seconds, double after)
{
    RANKS_OK(dcomm_param_mark_ready(b, PARAMS - 1, NULL));
    compute(seconds);
    for (size_t i = PARAMS - 1; i-- > 0;) {
        RANKS_OK(dcomm_param_mark_ready(b, i, NULL));
    }
    RANKS_OK(dcomm_buckets_wait(b));
    compute(after);
}

/* Read the report, and check that all ranks have it alike. */
static void read_all(dcomm_comm *comm, dcomm_buckets *b, dcomm_buckets_straggler *ranks, int n)
{
    static dcomm_buckets_straggler all[RANKS * RANKS];
    const size_t bytes = (size_t)n * sizeof *ranks;
    RANKS_OK(dcomm_buckets_get_stragglers(b, ranks, (size_t)n));
    RANKS_OK(dcomm_allgather(comm, ranks, all, bytes, DCOMM_U8, NULL));
    for (int r = 1; r < n; r++) {
        PROCS_TRUE(memcmp(all, all + r * n, bytes) == 0);
    }
}

/* Rank 1 takes 20 ms more, before it is ready or in its optimizer. */
static int late(int rank, int n, procs_shared *s, void *arg)
{
    (void)arg;
    dcomm_comm *comm = join(rank, n, s);
    dcomm_set_logger(hear, NULL);
    for (int sharded = 0; sharded < 2; sharded++) {
        dcomm_buckets_straggler ranks[RANKS];
        dcomm_buckets *b = make(comm, sharded != 0);
        RANKS_OK(dcomm_buckets_get_stragglers(b, ranks, (size_t)n));
        PROCS_TRUE(ranks[1].steps == 0 && ranks[1].late.p95 == 0);
        nsaid = 0;
        for (int step = 0; step < STEPS; step++) {
            const double more = rank == 1 ? 0.02 : 0;
            step_of(b, sharded ? 0.002 : 0.002 + more, sharded ? more : 0);
            if (sharded) {
                RANKS_OK(dcomm_buckets_gather(b)); /* all leave it together */
            }
        }
        read_all(comm, b, ranks, n);
        const double counted = STEPS - 2; /* neither the first step nor the last one */
        PROCS_CHECK(ranks[0].steps == STEPS - 2, "%llu", (unsigned long long)ranks[0].steps);
        PROCS_CHECK((double)ranks[1].last > 0.8 * counted, "%llu of %g times the last",
                    (unsigned long long)ranks[1].last, counted);
        PROCS_CHECK(ranks[1].late.p50 > 0.012 && ranks[1].late.p50 < 0.06, "%g s late",
                    ranks[1].late.p50);
        PROCS_CHECK(ranks[1].late.p95 >= ranks[1].late.p50 && ranks[0].late.p50 < 0.01 &&
                        ranks[2].late.p50 < 0.01,
                    "%g and %g s late", ranks[0].late.p50, ranks[2].late.p50);
        PROCS_CHECK(ranks[1].caused_s > 0.5 * counted * 2 * 0.02 &&
                        ranks[1].caused_s < 3 * counted * 2 * 0.02,
                    "%g s", ranks[1].caused_s);
        PROCS_CHECK(nsaid == (rank == 0), "rank %d, %d times: %s", rank, nsaid, said);
        PROCS_CHECK(rank > 0 || strstr(said, "rank 1 on ") != NULL, "%s", said);
        RANKS_OK(dcomm_buckets_destroy(&b));
    }
    return ranks_leave(&comm);
}

Test(stragglers, late, .timeout = 60)
{
    on(3, RANKS_LOCAL, 50, late);
}

/* Ranks that are alike. Buckets that move count anew, among the ranks that are there. */
static int alike(int rank, int n, procs_shared *s, void *arg)
{
    (void)arg;
    dcomm_buckets_straggler ranks[RANKS + 1];
    dcomm_comm *comm = join(rank, n, s), *two = NULL;
    dcomm_set_logger(hear, NULL);
    dcomm_buckets *b = make(comm, false);
    for (int step = 0; step < STEPS; step++) {
        step_of(b, 0.003, 0);
    }
    read_all(comm, b, ranks, n);
    PROCS_TRUE(ranks[0].steps == STEPS - 2);
    PROCS_TRUE(ranks[0].last + ranks[1].last + ranks[2].last == STEPS - 2);
    PROCS_CHECK(nsaid == 0, "%s", said);
    ranks_refused(dcomm_buckets_get_stragglers(b, ranks, (size_t)n + 1), DCOMM_ERR_INVALID,
                  "there are 3 ranks");
    ranks_refused(dcomm_buckets_get_stragglers(b, NULL, (size_t)n), DCOMM_ERR_INVALID, "ranks is");
    ranks_refused(dcomm_buckets_get_stragglers(NULL, ranks, (size_t)n), DCOMM_ERR_INVALID, "b is");
    RANKS_OK(dcomm_comm_split(comm, rank < 2 ? 0 : 1, rank, &two));
    if (rank < 2) {
        RANKS_OK(dcomm_buckets_rebind(b, two));
        for (int step = 0; step < 4; step++) {
            step_of(b, rank == 1 ? 0.02 : 0, 0);
        }
        read_all(two, b, ranks, 2);
        PROCS_TRUE(ranks[0].steps == 2 && ranks[1].last >= 1);
    }
    RANKS_OK(dcomm_buckets_destroy(&b));
    RANKS_OK(dcomm_comm_destroy(&two));
    return ranks_leave(&comm);
}

Test(stragglers, alike, .timeout = 60)
{
    on(3, RANKS_LOCAL, 50, alike);
}
