/* test_moe_errors.c - an error on one rank is an error on every rank, says where it was, and
 * leaves the communicator as it was. */
#define _GNU_SOURCE
#include "moe_case.h"

static void expect(dcomm_status got, dcomm_status wanted, const char *words)
{
    PROCS_CHECK(got == wanted, "%s, not %s: %s", dcomm_status_name(got), dcomm_status_name(wanted),
                dcomm_last_error());
    PROCS_CHECK(strstr(dcomm_last_error(), words) != NULL, "\"%s\" is not in: %s", words,
                dcomm_last_error());
}

static void good_step(dcomm_comm *comm)
{
    static moe_case t;
    t = (moe_case){.seed = 3};
    t.opts = (dcomm_moe_opts){.experts = 6, .hidden = 8, .k = 2, .dtype = DCOMM_F32};
    moe_begin(&t, comm);
    moe_step(&t);
    RANKS_OK(dcomm_moe_destroy(&t.m));
}

static int options(int rank, int n, procs_shared *s, void *arg)
{
    (void)arg;
    dcomm_comm *comm = join(rank, n, s);
    const dcomm_moe_opts good = {.experts = 6, .hidden = 8, .k = 2, .dtype = DCOMM_F32};
    static const int owners[2][6] = {{0, 1, 0, 1, 0, 9}, {0, 0, 0, 0, 0, 1}};
    static const struct {
        dcomm_status status;
        const char *words;
    } cases[] = {
        {DCOMM_ERR_INVALID, "opts.experts"},     {DCOMM_ERR_INVALID, "opts.hidden"},
        {DCOMM_ERR_INVALID, "opts.k"},           {DCOMM_ERR_INVALID, "opts.dtype"},
        {DCOMM_ERR_INVALID, "opts.capacity"},    {DCOMM_ERR_INVALID, "opts.policy"},
        {DCOMM_ERR_INVALID, "opts.chunks"},      {DCOMM_ERR_INVALID, "opts.form"},
        {DCOMM_ERR_INVALID, "owner[5] is 9"},    {DCOMM_ERR_INVALID, "nothing"},
        {DCOMM_ERR_UNSUPPORTED, "randk"},        {DCOMM_ERR_UNSUPPORTED, "rows of bf16"},
        {DCOMM_ERR_UNSUPPORTED, "no hierarchy"}, {DCOMM_ERR_MISMATCH, "opts.hidden is not"},
        {DCOMM_ERR_MISMATCH, "opts.owner"},      {DCOMM_ERR_MISMATCH, "opts.codec"},
        {DCOMM_ERR_MISMATCH, "opts.capacity"},   {DCOMM_ERR_UNSUPPORTED, "opts.algo"},
        {DCOMM_ERR_MISMATCH, "opts.algo"}};
    for (int c = 0; c < (int)(sizeof cases / sizeof *cases); c++) {
        dcomm_moe_opts o = good;
        dcomm_moe *m = NULL;
        if (rank == n - 1) {
            o.experts = c == 0 ? 0 : o.experts;
            o.hidden = c == 1 ? 0 : c == 13 ? 9 : o.hidden;
            o.k = c == 2 ? 9 : o.k;
            o.dtype = c == 3 ? DCOMM_F64 : c == 11 ? DCOMM_BF16 : o.dtype;
            o.capacity = c == 4 ? -1 : c == 16 ? 2 : o.capacity;
            o.policy = c == 5 ? (dcomm_moe_policy)7 : o.policy;
            o.chunks = c == 6 ? -1 : o.chunks;
            o.form = c == 7 ? (dcomm_moe_form)7 : c == 12 ? DCOMM_MOE_HIER : o.form;
            o.owner = c == 8 ? owners[0] : c == 14 ? owners[1] : NULL;
            o.algo = c == 17 ? "ring" : c == 18 ? "bruck" : NULL;
            o.codec = c == 9               ? "nothing"
                      : c == 10            ? "randk:k=0.1"
                      : c == 11 || c == 15 ? "bf16"
                                           : NULL;
        }
        expect(dcomm_moe_create(comm, &o, &m), cases[c].status, cases[c].words);
        PROCS_TRUE(m == NULL);
    }
    expect(dcomm_moe_create(comm, NULL, NULL), DCOMM_ERR_INVALID, "opts is NULL");
    good_step(comm);
    return ranks_leave(&comm);
}

Test(moe_errors, options, .timeout = 60)
{
    on(2, RANKS_LOCAL, 25, options);
    on(3, RANKS_LOCAL, 25, options);
}

/* A bad expert is named on all ranks, and the next routing is good. */
static int routing(int rank, int n, procs_shared *s, void *arg)
{
    (void)arg;
    dcomm_comm *comm = join(rank, n, s);
    static moe_case t;
    t = (moe_case){.seed = 3};
    t.opts = (dcomm_moe_opts){.experts = 6, .hidden = 8, .k = 2, .dtype = DCOMM_F32};
    moe_begin(&t, comm);
    dcomm_moe_stats stats;
    expect(dcomm_moe_get_stats(t.m, &stats), DCOMM_ERR_INVALID, "nothing has been routed");
    for (int bad = 0; bad < 3; bad++) {
        int32_t experts[8] = {0, 1, 2, 3, 4, 5, 0, 1};
        char words[80];
        if (rank == 1) {
            experts[5] = bad == 0 ? 6 : -2;
        }
        snprintf(words, sizeof words, "token 2 of rank 1 goes to expert %d; there are 6",
                 bad == 0 ? 6 : -2);
        expect(dcomm_moe_route(t.m, 4, bad == 2 && rank == 1 ? NULL : experts, NULL),
               DCOMM_ERR_INVALID, bad == 2 ? "experts is NULL for 4 tokens" : words);
        PROCS_TRUE(strstr(dcomm_last_error(), "rank 1") != NULL);
        moe_step(&t);
    }
    RANKS_OK(dcomm_moe_destroy(&t.m));
    good_step(comm);
    return ranks_leave(&comm);
}

Test(moe_errors, routing, .timeout = 60)
{
    on(2, RANKS_LOCAL, 25, routing);
    on(4, RANKS_PAIRS, 25, routing);
}

/* One rank calls out of turn: it is told what is wrong, and the others are told the rank and the
 * error. */
static int turns(int rank, int n, procs_shared *s, void *arg)
{
    (void)arg;
    enum { CASES = 6 };
    static const char *const words[CASES] = {"c is 2; there are 2 chunks",
                                             "has been started",
                                             "pass before this one",
                                             "is NULL, for",
                                             "has not waited",
                                             "in the middle"};
    dcomm_comm *comm = join(rank, n, s);
    for (int c = 0; c < CASES; c++) {
        static moe_case t;
        static float x[MOE_TOKENS * 8], y[MOE_TOKENS * 8];
        dcomm_moe_batch batch;
        t = (moe_case){.seed = 3};
        t.opts = (dcomm_moe_opts){
            .experts = 6, .hidden = 8, .k = 2, .dtype = DCOMM_F32, .chunks = 2, .timeout_s = 20};
        moe_begin(&t, comm);
        int32_t experts[8] = {0, 1, 2, 3, 4, 5, 0, 1};
        RANKS_OK(dcomm_moe_route(t.m, 4, experts, NULL));
        RANKS_OK(dcomm_barrier(comm, NULL)); /* an error may not overtake the routing's end */
        dcomm_status status = DCOMM_OK;
        if (rank == 1) {
            if (c != 0 && c != 3) {
                RANKS_OK(dcomm_moe_dispatch_start(t.m, 0, x));
            }
            status = c == 0   ? dcomm_moe_dispatch_start(t.m, 2, x)
                     : c == 1 ? dcomm_moe_dispatch_start(t.m, 0, x)
                     : c == 2 ? dcomm_moe_combine_start(t.m, 0, x)
                     : c == 3 ? dcomm_moe_dispatch_start(t.m, 0, NULL)
                     : c == 4 ? dcomm_moe_route(t.m, 4, experts, NULL)
                              : dcomm_moe_destroy(&t.m);
            if (c < 5) {
                expect(status, DCOMM_ERR_INVALID, words[c]);
                PROCS_TRUE(strstr(dcomm_last_error(), "rank 1") != NULL);
            }
        } else {
            for (int i = 0; i < 2 && status >= 0; i++) {
                status = dcomm_moe_dispatch_start(t.m, i, x);
            }
            for (int i = 0; i < 2 && status >= 0; i++) {
                status = dcomm_moe_dispatch_wait(t.m, i, &batch);
                status = status >= 0 ? dcomm_moe_combine_start(t.m, i, batch.rows) : status;
            }
            for (int i = 0; i < 2 && status >= 0; i++) {
                status = dcomm_moe_combine_wait(t.m, i, y);
            }
            expect(status, DCOMM_ERR_ABORTED, words[c]);
            PROCS_TRUE(strstr(dcomm_last_error(), "rank 1") != NULL);
            expect(dcomm_moe_route(t.m, 0, NULL, NULL), DCOMM_ERR_ABORTED, words[c]);
        }
        dcomm_moe_destroy(&t.m);
        RANKS_OK(dcomm_barrier(comm, NULL));
    }
    good_step(comm);
    return ranks_leave(&comm);
}

Test(moe_errors, turns, .timeout = 60)
{
    on(2, RANKS_LOCAL, 40, turns);
    on(4, RANKS_PAIRS, 40, turns);
}
