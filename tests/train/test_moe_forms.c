/* test_moe_forms.c - rows that travel once per host, encoded rows, and rows for which experts have
 * no room. */
#define _GNU_SOURCE
#include "moe_case.h"

/* ---- hierarchical ---- */

static int hierarchical(int rank, int n, procs_shared *s, void *arg)
{
    (void)arg;
    static const size_t experts[] = {6, 8, 17, 32};
    dcomm_comm *comm = join(rank, n, s);
    /* The everyday run takes a third of the cases with each number of ranks, and all with three
     * ranks. */
    const int stride = test_full() ? 1 : 3;
    for (int round = (n + n / 6) % stride; round < 16; round += stride) {
        static moe_case t;
        t = (moe_case){.skew = (moe_skew)(round % MOE_SKEWS), .seed = (uint64_t)round + 1};
        t.opts.experts = experts[round % 4];
        t.opts.k = 1 + round % 5;
        t.opts.hidden = MOE_HIDDEN;
        t.opts.dtype = round % 3 == 2 ? DCOMM_BF16 : DCOMM_F32;
        t.opts.chunks = 1 + round % 3;
        t.opts.form = DCOMM_MOE_HIER;
        t.opts.algo = round % 4 == 1 ? "bruck" : round % 4 == 3 ? "hier" : NULL;
        t.tolerance = t.opts.dtype == DCOMM_F32 ? 0 : 2e-2;
        for (size_t e = 0; e < t.opts.experts; e++) {
            t.owner[e] = (int)((e * 5 + (size_t)round) % (size_t)n);
        }
        t.opts.owner = round % 2 == 0 ? t.owner : NULL;
        moe_begin(&t, comm);
        for (int step = 0; step < 2; step++) {
            moe_step(&t);
            dcomm_moe_stats stats;
            RANKS_OK(dcomm_moe_get_stats(t.m, &stats));
            PROCS_TRUE(stats.hier && stats.dropped == 0);
            t.seed += 100;
        }
        RANKS_OK(dcomm_moe_destroy(&t.m));
    }
    return ranks_leave(&comm);
}

Test(moe_forms, hierarchical, .timeout = 60)
{
    on(3, RANKS_PAIRS, 25, hierarchical); /* hosts of two and of one */
    on(4, RANKS_PAIRS, 25, hierarchical);
    on(test_full() ? 7 : 5, RANKS_PAIRS, 25, hierarchical);
}

/* All experts of a token are on one host: the statistics show that its row crosses once. */
static int once(int rank, int n, procs_shared *s, void *arg)
{
    (void)arg;
    enum { TOKENS = 50, HIDDEN = 512, K = 4 };
    static float x[TOKENS * HIDDEN], y[TOKENS * HIDDEN];
    static int32_t experts[TOKENS * K];
    dcomm_comm *comm = join(rank, n, s);
    uint64_t bytes[2];
    for (int i = 0; i < TOKENS * K; i++) { /* the other host's two ranks have four each */
        experts[i] = (rank < 2 ? 8 : 0) + (i / K) % 2 + 2 * (i % K);
    }
    for (int form = 0; form < 2; form++) {
        dcomm_moe_opts opts = {.experts = 16, .hidden = HIDDEN, .k = K, .dtype = DCOMM_F32};
        opts.form = form == 0 ? DCOMM_MOE_FLAT : DCOMM_MOE_HIER;
        dcomm_moe *m = NULL;
        dcomm_moe_batch batch;
        dcomm_moe_stats stats;
        RANKS_OK(dcomm_moe_create(comm, &opts, &m));
        RANKS_OK(dcomm_moe_route(m, TOKENS, experts, NULL));
        RANKS_OK(dcomm_moe_dispatch_start(m, 0, x));
        RANKS_OK(dcomm_moe_dispatch_wait(m, 0, &batch));
        RANKS_OK(dcomm_moe_combine_start(m, 0, batch.rows));
        RANKS_OK(dcomm_moe_combine_wait(m, 0, y));
        RANKS_OK(dcomm_moe_get_stats(m, &stats));
        bytes[form] = stats.network_bytes;
        RANKS_OK(dcomm_moe_destroy(&m));
    }
    PROCS_CHECK(bytes[0] == (uint64_t)2 * TOKENS * K * HIDDEN * 4 && bytes[1] * K == bytes[0],
                "%d and %d bytes", (int)bytes[0], (int)bytes[1]);
    return ranks_leave(&comm);
}

Test(moe_forms, once, .timeout = 30)
{
    on(4, RANKS_PAIRS, 25, once);
}

/* ---- the choice ---- */

/* Choose by a tuning in which only the network costs time, and by one in which it is free. */
static int choice(int rank, int n, procs_shared *s, void *arg)
{
    (void)arg;
    dcomm_comm *comm = join(rank, n, s);
    for (int slow = 0; slow < 2; slow++) {
        for (int spread = 0; spread < 2; spread++) {
            static moe_case t;
            dcomm_tuning tuning;
            RANKS_OK(dcomm_tuning_uniform(1, 0.1, 0.1, &tuning));
            tuning.link[DCOMM_LINK_HOST] = (dcomm_link){.alpha_ps = 1000};
            tuning.link[DCOMM_LINK_HOST].shared =
                (dcomm_curve){.n = 2, .bytes = {0, 1 << 20}, .ps = {0, slow * 40000000000}};
            RANKS_OK(dcomm_comm_tune(comm, &tuning));
            t = (moe_case){.skew = MOE_ONE, .seed = 5};
            t.opts =
                (dcomm_moe_opts){.experts = 8, .hidden = MOE_HIDDEN, .k = 4, .dtype = DCOMM_F32};
            moe_begin(&t, comm);
            t.tokens = MOE_TOKENS;
            for (int i = 0; i < MOE_TOKENS * 4; i++) { /* one on each rank, or four on one host */
                t.experts[i] = spread ? 2 * (i % 4) : (i % 4) + (rank < 2 ? 4 : 0);
            }
            RANKS_OK(dcomm_moe_route(t.m, t.tokens, t.experts, NULL));
            dcomm_moe_stats stats;
            RANKS_OK(dcomm_moe_get_stats(t.m, &stats));
            PROCS_TRUE(stats.flat_s > 0 && stats.hier_s > 0);
            PROCS_CHECK(stats.hier == (slow == 1), "slow %d, spread %d: flat %g, hier %g", slow,
                        spread, stats.flat_s, stats.hier_s);
            RANKS_OK(dcomm_moe_destroy(&t.m));
        }
    }
    return ranks_leave(&comm);
}

Test(moe_forms, choice, .timeout = 30)
{
    on(4, RANKS_PAIRS, 25, choice);
}

/* ---- capacity ---- */

/* Return the number of places that a single rank would drop, with the tokens of all ranks in
 * order. */
static size_t admitted(const moe_case *t, size_t capacity, size_t *load, bool *kept)
{
    size_t dropped = 0;
    memset(load, 0, MOE_EXPERTS * sizeof *load);
    for (int r = 0; r < t->size; r++) {
        for (size_t token = 0; token < moe_tokens_of(t, r); token++) {
            int32_t experts[DCOMM_MOE_K_MAX];
            float weights[DCOMM_MOE_K_MAX];
            moe_choose(t, r, token, experts, weights);
            for (int j = 0; j < t->opts.k; j++) {
                bool fits = experts[j] >= 0 && load[experts[j]] < capacity;
                dropped += experts[j] >= 0 && !fits;
                load[experts[j] >= 0 ? experts[j] : 0] += fits;
                if (r == t->rank) {
                    kept[token * (size_t)t->opts.k + (size_t)j] = fits;
                }
            }
        }
    }
    return dropped;
}

static int capacity(int rank, int n, procs_shared *s, void *arg)
{
    (void)arg;
    dcomm_comm *comm = join(rank, n, s);
    const int stride = test_full() ? 1 : 5; /* prime to all options */
    for (int round = n % stride; round < 12; round += stride) {
        static moe_case t;
        static bool kept[MOE_TOKENS * DCOMM_MOE_K_MAX];
        size_t load[MOE_EXPERTS];
        dcomm_moe_stats stats;
        t = (moe_case){.skew = round % 3 == 0 ? MOE_ONE : MOE_RANDOM, .seed = (uint64_t)round + 40};
        t.opts = (dcomm_moe_opts){.experts = 8,
                                  .hidden = 4,
                                  .k = 1 + round % 3,
                                  .dtype = DCOMM_F32,
                                  .capacity = round % 2 == 0 ? 0.75 : 1.25,
                                  .chunks = 1 + round % 2};
        t.opts.policy = round % 4 < 2 ? DCOMM_MOE_DROP : DCOMM_MOE_REROUTE;
        moe_begin(&t, comm);
        moe_route(&t);
        RANKS_OK(dcomm_moe_get_stats(t.m, &stats));
        size_t wanted = (size_t)ceil((double)stats.asked / 8 * t.opts.capacity), total = 0;
        PROCS_TRUE(stats.capacity == wanted);
        size_t dropped = admitted(&t, stats.capacity, load, kept);
        for (int e = 0; e < 8; e++) {
            PROCS_TRUE(stats.load[e] <= stats.capacity);
            PROCS_TRUE(t.opts.policy == DCOMM_MOE_REROUTE || stats.load[e] == load[e]);
            PROCS_TRUE(stats.load[e] >= load[e]);
            total += stats.load[e];
        }
        PROCS_TRUE(total + stats.dropped == stats.asked);
        PROCS_TRUE(stats.dropped + stats.rerouted == dropped);
        PROCS_TRUE(t.opts.policy == DCOMM_MOE_REROUTE || stats.rerouted == 0);
        for (int e = 0; e < 8; e++) { /* k = 1: dropped only if all are full */
            bool all = t.opts.policy == DCOMM_MOE_REROUTE && t.opts.k == 1 && stats.dropped > 0;
            PROCS_TRUE(!all || stats.load[e] == stats.capacity);
        }
        PROCS_TRUE(t.opts.policy == DCOMM_MOE_DROP || t.opts.capacity < 1 || dropped == 0 ||
                   stats.rerouted > 0);
        PROCS_TRUE(stats.own_dropped <= stats.dropped && stats.own_rerouted <= stats.rerouted);
        uint64_t sums[2] = {stats.own_dropped, stats.own_rerouted};
        RANKS_OK(dcomm_allreduce(comm, sums, sums, 2, DCOMM_U64, DCOMM_SUM, NULL));
        PROCS_TRUE(sums[0] == stats.dropped && sums[1] == stats.rerouted);
        float x[MOE_TOKENS * 4], y[MOE_TOKENS * 4], dweights[MOE_TOKENS * DCOMM_MOE_K_MAX];
        moe_fill(&t, x, false);
        moe_forward(&t, x, y, false);
        moe_backward(&t, x, dweights, y, false);
        for (size_t i = 0; i < t.tokens * (size_t)t.opts.k && t.opts.policy == DCOMM_MOE_DROP;
             i++) {
            PROCS_TRUE(kept[i] || dweights[i] == 0);
            t.experts[i] = kept[i] ? t.experts[i] : -1;
        }
        if (t.opts.policy == DCOMM_MOE_DROP) {
            moe_route(&t); /* the same again, forth only */
            for (size_t i = 0; i < t.tokens * (size_t)t.opts.k; i++) {
                t.experts[i] = kept[i] ? t.experts[i] : -1;
            }
            moe_forward(&t, x, y, false);
            moe_check_sums(&t, "y", y, false);
        }
        RANKS_OK(dcomm_moe_destroy(&t.m));
    }
    return ranks_leave(&comm);
}

Test(moe_forms, capacity, .timeout = 60)
{
    on(1, RANKS_LOCAL, 25, capacity);
    on(3, RANKS_LOCAL, 25, capacity);
    on(4, RANKS_PAIRS, 25, capacity);
}

/* ---- codecs ---- */

static int coded(int rank, int n, procs_shared *s, void *arg)
{
    (void)arg;
    enum { TOKENS = 30, HIDDEN = 600 };
    static const struct {
        const char *spec;
        double error;
    } codecs[] = {{"bf16", 0.004}, {"fp8", 0.07}, {"qsgd:bits=8,bucket=128", 0.02}};
    static float x[TOKENS * HIDDEN], y[TOKENS * HIDDEN];
    dcomm_comm *comm = join(rank, n, s);
    for (int c = 0; c < 6; c++) {
        dcomm_moe_opts opts = {.experts = 7, .hidden = HIDDEN, .k = 2, .dtype = DCOMM_F32};
        opts.codec = codecs[c / 2].spec;
        opts.form = c % 2 == 0 ? DCOMM_MOE_FLAT : DCOMM_MOE_AUTO;
        opts.form = c % 2 == 1 && dcomm_comm_host(comm, n - 1) > 0 ? DCOMM_MOE_HIER : opts.form;
        dcomm_moe *m = NULL;
        dcomm_moe_batch batch;
        dcomm_moe_stats stats;
        int32_t experts[TOKENS * 2];
        uint64_t state = (uint64_t)rank + 9;
        for (int i = 0; i < TOKENS * HIDDEN; i++) {
            x[i] = (float)((double)ranks_random(&state) / 1e19 - 0.9);
        }
        for (int i = 0; i < TOKENS; i++) {
            experts[2 * i] = (int32_t)(ranks_random(&state) % 7);
            experts[2 * i + 1] = (experts[2 * i] + 3) % 7;
        }
        RANKS_OK(dcomm_moe_create(comm, &opts, &m));
        RANKS_OK(dcomm_moe_route(m, TOKENS, experts, NULL));
        RANKS_OK(dcomm_moe_dispatch_start(m, 0, x));
        RANKS_OK(dcomm_moe_dispatch_wait(m, 0, &batch));
        RANKS_OK(dcomm_moe_combine_start(m, 0, batch.rows));
        RANKS_OK(dcomm_moe_combine_wait(m, 0, y));
        RANKS_OK(dcomm_moe_get_stats(m, &stats));
        double off = 0, all = 0;
        for (int i = 0; i < TOKENS * HIDDEN; i++) {
            off += ((double)y[i] - 2 * (double)x[i]) * ((double)y[i] - 2 * (double)x[i]);
            all += 4 * (double)x[i] * (double)x[i];
        }
        PROCS_CHECK(sqrt(off / all) < codecs[c / 2].error && off > 0, "%s: error %g",
                    codecs[c / 2].spec, sqrt(off / all));
        PROCS_TRUE(n == 1 || stats.rank_bytes[rank] < (uint64_t)TOKENS * (uint64_t)n * HIDDEN * 5);
        RANKS_OK(dcomm_moe_destroy(&m));
    }
    return ranks_leave(&comm);
}

Test(moe_forms, coded, .timeout = 30)
{
    on(2, RANKS_LOCAL, 25, coded);
    on(4, RANKS_PAIRS, 25, coded);
}
