/* test_moe.c - dispatch, experts, combine, and the way back: what comes out is what a rank by
 * itself would have computed, whatever the routing, the owners and the chunks. */
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

Test(moe, exact, .timeout = 120)
{
    for (int n = 1; n <= 9; n++) {
        on(n, RANKS_LOCAL, 25, exact);
    }
    on(4, RANKS_PAIRS, 25, exact);
}
