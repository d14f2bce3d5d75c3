/* test_moe.c - dispatch, experts, combine, and the way back: the result is what one rank alone
 * would have computed, whatever the routing, the owners and the chunks. */
#define _GNU_SOURCE
#include "moe_case.h"

/* Owners: evenly; all on the last rank; any. */
static void own(moe_case *t, int how, int n)
{
    uint64_t state = (uint64_t)how * 13 + t->seed;
    for (size_t e = 0; e < t->opts.experts; e++) {
        t->owner[e] = how == 1 ? n - 1 : (int)(ranks_random(&state) % (uint64_t)n);
    }
    t->opts.owner = how == 0 ? NULL : t->owner;
}

static int exact(int rank, int n, procs_shared *s, void *arg)
{
    (void)arg;
    static const dcomm_dtype dtypes[] = {DCOMM_F32, DCOMM_F16, DCOMM_BF16};
    static const size_t experts[] = {1, 5, 8, 17, 32};
    static const char *const algos[] = {NULL,   "linear", "bruck", "pairwise",
                                        "hier", "auto",   "bruck"};
    dcomm_comm *comm = join(rank, n, s);
    for (int round = 0; round < 24; round++) {
        static moe_case t;
        t = (moe_case){.skew = (moe_skew)(round % MOE_SKEWS), .seed = (uint64_t)round + 1};
        t.opts.experts = experts[round % 5];
        t.opts.k = round % 3 == 0 ? 1 : 1 + round % DCOMM_MOE_K_MAX;
        t.opts.k = (size_t)t.opts.k > t.opts.experts ? (int)t.opts.experts : t.opts.k;
        t.opts.hidden = 1 + (size_t)round % MOE_HIDDEN;
        t.opts.dtype = dtypes[round / 2 % 3];
        t.opts.chunks = round % 4;
        t.opts.registered = round % 5 == 0;
        t.opts.form = DCOMM_MOE_FLAT;
        t.opts.algo = algos[round % 7];
        t.tolerance = t.opts.dtype == DCOMM_F32 ? 0 : t.opts.dtype == DCOMM_F16 ? 2e-3 : 2e-2;
        t.tolerance = t.opts.k == 1 && t.opts.experts < 8 ? 0 : t.tolerance;
        own(&t, round % 3, n);
        moe_begin(&t, comm);
        for (int step = 0; step < 2; step++) {
            moe_step(&t);
            t.seed += 100;
        }
        RANKS_OK(dcomm_moe_destroy(&t.m));
        PROCS_TRUE(t.m == NULL);
    }
    return ranks_leave(&comm);
}

/* Each takes seconds on an idle machine; leave time for a busy one. */
Test(moe, exact, .timeout = 300)
{
    for (int n = 1; n <= 5; n++) {
        on(n, RANKS_LOCAL, 60, exact);
    }
}

Test(moe, exact_more_ranks, .timeout = 300)
{
    for (int n = 6; n <= 9; n++) {
        if (n == 7 || test_full()) {
            on(n, RANKS_LOCAL, 60, exact);
        }
    }
    on(4, RANKS_PAIRS, 60, exact);
}

/* Sums are rounded here: their order is that of a token's k places, whatever the ranks. */
static int ordered(int rank, int n, procs_shared *s, void *arg)
{
    (void)arg;
    enum { TOKENS = 50, HIDDEN = 300, K = 4, EXPERTS = 11 };
    static float x[TOKENS * HIDDEN], y[TOKENS * HIDDEN];
    int32_t experts[TOKENS * K];
    float weights[TOKENS * K];
    uint64_t state = (uint64_t)rank + 7;
    dcomm_comm *comm = join(rank, n, s);
    dcomm_moe_opts opts = {.experts = EXPERTS, .hidden = HIDDEN, .k = K, .dtype = DCOMM_F32};
    opts.form = DCOMM_MOE_FLAT;
    dcomm_moe *m = NULL;
    dcomm_moe_batch batch;
    for (size_t i = 0; i < TOKENS * HIDDEN; i++) {
        x[i] = (float)((double)ranks_random(&state) / 1e19 - 0.9);
    }
    for (int i = 0; i < TOKENS * K; i++) {
        experts[i] = (int32_t)((ranks_random(&state) % 2 + 3 * (uint64_t)(i % K)) % EXPERTS);
        weights[i] = (float)((double)ranks_random(&state) / 1e19);
    }
    RANKS_OK(dcomm_moe_create(comm, &opts, &m));
    RANKS_OK(dcomm_moe_route(m, TOKENS, experts, weights));
    RANKS_OK(dcomm_moe_dispatch_start(m, 0, x));
    RANKS_OK(dcomm_moe_dispatch_wait(m, 0, &batch));
    for (size_t l = 0; l < batch.nexperts; l++) {
        for (size_t i = batch.first[l] * HIDDEN; i < batch.first[l + 1] * HIDDEN; i++) {
            ((float *)batch.rows)[i] *= 1.1f + (float)batch.experts[l];
        }
    }
    RANKS_OK(dcomm_moe_combine_start(m, 0, batch.rows));
    RANKS_OK(dcomm_moe_combine_wait(m, 0, y));
    for (size_t i = 0; i < TOKENS * HIDDEN; i++) {
        size_t slot = i / HIDDEN * K;
        volatile float sum = weights[slot] * (x[i] * (1.1f + (float)experts[slot]));
        for (size_t j = slot + 1; j < slot + K; j++) {
            volatile float given = x[i] * (1.1f + (float)experts[j]), term = weights[j] * given;
            sum += term;
        }
        PROCS_CHECK(memcmp(&y[i], (const void *)&sum, sizeof sum) == 0, "y[%zu] is %.9g, not %.9g",
                    i, (double)y[i], (double)sum);
    }
    RANKS_OK(dcomm_moe_destroy(&m));
    return ranks_leave(&comm);
}

Test(moe, ordered, .timeout = 60)
{
    on(1, RANKS_LOCAL, 25, ordered);
    on(3, RANKS_LOCAL, 25, ordered);
    on(4, RANKS_PAIRS, 25, ordered);
}
