/* test_bucket_exact.c - gradient buckets and bits: sums in rank order do not depend on the
 * buckets; codecs by rule; error feedback loses nothing, also when buckets are rebuilt. */
#define _GNU_SOURCE
#include "bucket_set.h"
#include "placed.h"

#include <math.h>

/* Return a pseudo-random number of moderate size. */
static float noise(size_t i, size_t j, int rank)
{
    uint64_t seed = i * 1000003 + j * 31 + (uint64_t)rank * 77;
    return (float)((double)ranks_random(&seed) / 1e19 - 0.9);
}

static int rank_order(int rank, int n, procs_shared *s, void *arg)
{
    (void)arg;
    enum { N = 30, MOST = 3000 };
    dcomm_comm *comm = join(rank, n, s);
    static set t;
    static float expected[N][MOST];
    const size_t sizes[] = {1, 1000, 9000, 0};
    dcomm_coll_opts exact = {.deterministic = true};
    for (int round = 0; round < 12; round++) {
        dcomm_buckets_opts opts = {
            .bucket_bytes = sizes[round % 4], .coll = exact, .rebuild = round > 6};
        uint64_t seed = (uint64_t)rank;
        size_t order[SET_MAX];
        set_shape(&t, N, MOST, false, 9);
        set_settle(&t, comm, (set_place)(round % 5));
        set_make(&t, &opts);
        for (size_t i = 0; i < N && round == 0; i++) {
            for (size_t j = 0; j < t.params[i].count; j++) {
                expected[i][j] = noise(i, j, rank);
            }
            RANKS_OK(dcomm_allreduce(comm, expected[i], expected[i], t.params[i].count, DCOMM_F32,
                                     DCOMM_AVG, &exact));
        }
        for (int step = 0; step < 3; step++) {
            set_shuffle(&t, order, &seed);
            for (size_t i = 0; i < N; i++) {
                float *grad = dcomm_param_grad(t.b, order[i]);
                for (size_t j = 0; j < t.params[order[i]].count; j++) {
                    grad[j] = noise(order[i], j, rank);
                }
                RANKS_OK(dcomm_param_mark_ready(t.b, order[i], NULL));
            }
            RANKS_OK(dcomm_buckets_wait(t.b));
            for (size_t i = 0; i < N; i++) {
                PROCS_CHECK(t.params[i].count == 0 ||
                                memcmp(dcomm_param_grad(t.b, i), expected[i],
                                       t.params[i].count * sizeof(float)) == 0,
                            "round %d, parameter %zu", round, i);
            }
        }
        set_end(&t);
    }
    return ranks_leave(&comm);
}

Test(bucket_exact, rank_order, .timeout = 60)
{
    on(3, RANKS_LOCAL, 25, rank_order);
    on(4, RANKS_PAIRS, 25, rank_order);
}

/* ---- codecs ---- */

static int rules(int rank, int n, procs_shared *s, void *arg)
{
    (void)arg;
    dcomm_comm *comm = join(rank, n, s);
    const dcomm_feedback_opts estimates = {.variant = DCOMM_FEEDBACK_EF21, .seed = 4};
    const dcomm_bucket_rule list[] = {
        {.match = "*.norm", .codec = "none"},
        {.match = "embed*", .codec = "topk:k=0.1", .feedback = &estimates},
        {.match = "?.bias"},
        {.match = "*.half", .codec = "qsgd:bits=8", .no_feedback = true}};
    dcomm_feedback_opts feedback = {.seed = 3, .scale = true};
    dcomm_buckets_opts opts = {
        .codec = "qsgd:bits=8", .rules = list, .nrules = 4, .feedback = &feedback};
    dcomm_bucket_param params[] = {{"embed", NULL, 4000, DCOMM_F32, NULL, NULL, false},
                                   {"1.norm", NULL, 4000, DCOMM_F32, NULL, NULL, false},
                                   {"1.bias", NULL, 4000, DCOMM_F32, NULL, NULL, false},
                                   {"1.weight", NULL, 4000, DCOMM_F32, NULL, NULL, false},
                                   {"1.other", NULL, 4000, DCOMM_F32, "qsgd:bits=4", NULL, false},
                                   {"1.count", NULL, 4000, DCOMM_I32, NULL, NULL, false},
                                   {"1.half", NULL, 4000, DCOMM_BF16, NULL, NULL, false}};
    const char *const codecs[] = {"topk",        NULL, NULL,         "qsgd:bits=8",
                                  "qsgd:bits=4", NULL, "qsgd:bits=8"};
    dcomm_buckets *b = NULL;
    RANKS_OK(dcomm_buckets_create(comm, params, 7, &opts, &b));
    for (size_t i = 0; i < 7; i++) {
        size_t k, at;
        dcomm_bucket_info info;
        RANKS_OK(dcomm_param_get_bucket(b, i, &k, &at));
        RANKS_OK(dcomm_bucket_get_info(b, k, &info));
        PROCS_TRUE((info.codec == NULL) == (codecs[i] == NULL));
        PROCS_TRUE(codecs[i] == NULL || strncmp(info.codec, codecs[i], strlen(codecs[i])) == 0);
        PROCS_TRUE((info.feedback != NULL) == (codecs[i] != NULL && i != 6));
        dcomm_feedback_info state = {.variant = DCOMM_FEEDBACK_CLASSIC};
        if (info.feedback != NULL) {
            RANKS_OK(dcomm_feedback_get_info(info.feedback, &state));
        }
        PROCS_TRUE((state.variant == DCOMM_FEEDBACK_EF21) == (i == 0));
        for (size_t j = 0; j < 4000; j++) {
            ranks_put(dcomm_param_grad(b, i), j, params[i].dtype, (double)(j % 7));
        }
    }
    for (size_t i = 0; i < 7; i++) {
        RANKS_OK(dcomm_param_mark_ready(b, i, NULL));
    }
    RANKS_OK(dcomm_buckets_wait(b));
    for (size_t i = 1; i < 7; i++) {
        for (size_t j = 0; j < 4000; j++) {
            double got = ranks_get(dcomm_param_grad(b, i), j, params[i].dtype);
            double off = fabs(got - (double)(j % 7));
            PROCS_CHECK(codecs[i] == NULL ? off == 0 : off < (i == 4 ? 6 : 1), "parameter %zu: %g",
                        i, got);
        }
    }
    RANKS_OK(dcomm_buckets_destroy(&b));
    /* Feedback where only a parameter names a codec. */
    dcomm_bucket_info info;
    size_t k, at;
    params[4].codec = NULL;
    params[2].codec = "qsgd:bits=4";
    opts = (dcomm_buckets_opts){.feedback = &feedback};
    RANKS_OK(dcomm_buckets_create(comm, params, 7, &opts, &b));
    RANKS_OK(dcomm_param_get_bucket(b, 2, &k, &at));
    RANKS_OK(dcomm_bucket_get_info(b, k, &info));
    PROCS_TRUE(info.feedback != NULL && info.nparams == 1);
    RANKS_OK(dcomm_buckets_destroy(&b));
    /* Another momentum is another bucket. */
    const dcomm_feedback_opts slow = {.variant = DCOMM_FEEDBACK_DGC, .momentum = 0.5};
    const dcomm_feedback_opts slower = {.variant = DCOMM_FEEDBACK_DGC, .momentum = 0.75};
    const dcomm_bucket_rule two[] = {
        {.match = "embed", .codec = "topk:k=0.1", .feedback = &slow},
        {.match = "1.norm", .codec = "topk:k=0.1", .feedback = &slower}};
    size_t other;
    opts = (dcomm_buckets_opts){.rules = two, .nrules = 2};
    RANKS_OK(dcomm_buckets_create(comm, params, 2, &opts, &b));
    RANKS_OK(dcomm_param_get_bucket(b, 0, &k, &at));
    RANKS_OK(dcomm_param_get_bucket(b, 1, &other, &at));
    PROCS_TRUE(k != other);
    RANKS_OK(dcomm_buckets_destroy(&b));
    return ranks_leave(&comm);
}

Test(bucket_exact, rules, .timeout = 30)
{
    on(2, RANKS_LOCAL, 25, rules);
}

/* One gradient in the first step, zeros from then on: all that was held back still arrives. */
static int drained(int rank, int n, procs_shared *s, void *arg)
{
    (void)arg;
    dcomm_comm *comm = join(rank, n, s);
    static const char *const codecs[] = {"topk:k=0.2", "qsgd:bits=4", "topk:k=0.2"};
    for (int c = 0; c < 3; c++) {
        static set t;
        dcomm_feedback_opts feedback = {.bf16 = c == 2, .scale = true};
        dcomm_buckets_opts opts = {.bucket_bytes = 16000,
                                   .sum = c == 0,
                                   .codec = codecs[c],
                                   .feedback = &feedback,
                                   .rebuild = true};
        static double sum[SET_MAX][5000];
        uint64_t seed = 12;
        size_t order[SET_MAX], bucket, first, moved = 0;
        size_t was[SET_MAX][2];
        memset(sum, 0, sizeof sum);
        set_shape(&t, 14, 5000, false, 4);
        set_settle(&t, comm, (set_place)(c % 3));
        set_make(&t, &opts);
        set_shuffle(&t, order, &seed);
        for (size_t i = 0; i < t.n; i++) {
            RANKS_OK(dcomm_param_get_bucket(t.b, i, &was[i][0], &was[i][1]));
        }
        for (int step = 0; step < 25; step++) {
            for (size_t at = 0; at < t.n; at++) {
                size_t i = order[at];
                float *grad = dcomm_param_grad(t.b, i);
                for (size_t j = 0; j < t.params[i].count; j++) {
                    grad[j] = step == 0 ? noise(i, j, rank) : 0;
                }
                RANKS_OK(dcomm_param_mark_ready(t.b, i, NULL));
            }
            RANKS_OK(dcomm_buckets_wait(t.b));
            for (size_t i = 0; i < t.n; i++) {
                const float *grad = dcomm_param_grad(t.b, i);
                for (size_t j = 0; j < t.params[i].count; j++) {
                    sum[i][j] += (double)grad[j];
                }
            }
        }
        for (size_t i = 0; i < t.n; i++) {
            RANKS_OK(dcomm_param_get_bucket(t.b, i, &bucket, &first));
            moved += bucket != was[i][0] || first != was[i][1];
            for (size_t j = 0; j < t.params[i].count; j++) {
                double all = 0;
                for (int r = 0; r < n; r++) {
                    all += (double)noise(i, j, r) * t.factor;
                }
                PROCS_CHECK(fabs(sum[i][j] - all) < (c == 2 ? 0.02 : 2e-3),
                            "codec %s, parameter %zu, element %zu: %g, not %g", codecs[c], i, j,
                            sum[i][j], all);
            }
        }
        PROCS_TRUE(moved > 3);
        set_end(&t);
    }
    return ranks_leave(&comm);
}

Test(bucket_exact, drained, .timeout = 60)
{
    on(2, RANKS_LOCAL, 25, drained);
    on(3, RANKS_HOSTS, 25, drained);
}

/* EF21 goes on from its estimates: with the same gradient in each step it comes ever closer. */
static int estimates(int rank, int n, procs_shared *s, void *arg)
{
    (void)arg;
    dcomm_comm *comm = join(rank, n, s);
    static set t;
    dcomm_feedback_opts feedback = {.variant = DCOMM_FEEDBACK_EF21};
    dcomm_buckets_opts opts = {
        .bucket_bytes = 16000, .codec = "topk:k=0.2", .feedback = &feedback, .rebuild = true};
    double last = INFINITY;
    uint64_t seed = 12;
    size_t order[SET_MAX];
    set_shape(&t, 14, 5000, false, 4);
    set_settle(&t, comm, SET_APART);
    set_make(&t, &opts);
    set_shuffle(&t, order, &seed);
    for (int step = 0; step < 6; step++) {
        double error = 0;
        for (size_t at = 0; at < t.n; at++) {
            float *grad = dcomm_param_grad(t.b, order[at]);
            for (size_t j = 0; j < t.params[order[at]].count; j++) {
                grad[j] = noise(order[at], j, rank);
            }
            RANKS_OK(dcomm_param_mark_ready(t.b, order[at], NULL));
        }
        RANKS_OK(dcomm_buckets_wait(t.b));
        for (size_t i = 0; i < t.n; i++) {
            const float *grad = dcomm_param_grad(t.b, i);
            for (size_t j = 0; j < t.params[i].count; j++) {
                double all = 0;
                for (int r = 0; r < n; r++) {
                    all += (double)noise(i, j, r) / n;
                }
                error += (all - (double)grad[j]) * (all - (double)grad[j]);
            }
        }
        PROCS_CHECK(error < 0.8 * last, "step %d: %g after %g", step, error, last);
        last = error;
    }
    set_end(&t);
    return ranks_leave(&comm);
}

Test(bucket_exact, estimates, .timeout = 60)
{
    on(2, RANKS_LOCAL, 25, estimates);
}

/* "auto" chooses the same codec on all ranks, and does not block calls that may not block. */
static int automatic(int rank, int n, procs_shared *s, void *arg)
{
    (void)arg;
    dcomm_comm *comm = join(rank, n, s);
    static set t;
    dcomm_feedback_opts feedback = {.seed = 1};
    dcomm_buckets_opts opts = {.bucket_bytes = 30000, .codec = "auto", .weighted = true};
    uint64_t seed = (uint64_t)rank;
    set_shape(&t, 14, 5000, false, 4);
    set_settle(&t, comm, SET_APART);
    opts.rebuild = true;
    opts.feedback = &feedback;
    PROCS_TRUE(dcomm_buckets_create(comm, t.params, t.n, &opts, &t.b) == DCOMM_ERR_INVALID);
    PROCS_TRUE(strstr(dcomm_last_error(), "held back") != NULL);
    opts.rebuild = place_now == RANKS_HOSTS;
    opts.feedback = opts.rebuild ? NULL : &feedback;
    set_make(&t, &opts);
    for (int step = 0; step < 4; step++) {
        dcomm_buckets_step begin = {.weight = 1 + rank};
        RANKS_OK(dcomm_buckets_begin(t.b, &begin));
        set_backward(&t, step, 2, &seed);
        RANKS_OK(dcomm_buckets_wait(t.b));
    }
    set_end(&t);
    return ranks_leave(&comm);
}

Test(bucket_exact, automatic, .timeout = 60)
{
    on(2, RANKS_LOCAL, 25, automatic);
    on(2, RANKS_HOSTS, 25, automatic);
}
