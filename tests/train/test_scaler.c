/* test_scaler.c - a gradient that is not finite on one rank: all ranks skip that step, learn which
 * rank had it, and halve the scale; norms and clipping; residuals are as without the step. */
#define _GNU_SOURCE
#include "bucket_set.h"
#include "placed.h"

#include <math.h>

static void expect(dcomm_status got, dcomm_status wanted, const char *words)
{
    PROCS_CHECK(got == wanted, "%s, not %s: %s", dcomm_status_name(got), dcomm_status_name(wanted),
                dcomm_last_error());
    PROCS_CHECK(strstr(dcomm_last_error(), words) != NULL, "\"%s\" is not in: %s", words,
                dcomm_last_error());
}

/* Run a step whose gradients are set_value times the scale, in a random order. On this rank,
 * element `index` of parameter `bad` is `value`. *after: number of parameters ready before
 * `bad`. */
static size_t step(set *t, dcomm_scaler *s, int number, uint64_t *seed, size_t bad, size_t index,
                   double value)
{
    size_t order[SET_MAX], place = t->n;
    set_shuffle(t, order, seed);
    if (t->weighted) {
        dcomm_buckets_step begin = {.weight = set_weight(t->rank, t->nranks)};
        RANKS_OK(dcomm_buckets_begin(t->b, &begin));
    }
    for (size_t at = 0; at < t->n; at++) {
        size_t i = order[at];
        void *grad = dcomm_param_grad(t->b, i);
        for (size_t j = 0; j < t->params[i].count; j++) {
            double x = set_value(i, j, t->rank, number) * dcomm_scaler_scale(s);
            ranks_put(grad, j, t->params[i].dtype, i == bad && j == index ? value : x);
        }
        place = i == bad ? at : place;
        RANKS_OK(dcomm_param_mark_ready(t->b, i, NULL));
    }
    RANKS_OK(dcomm_buckets_wait(t->b));
    return place;
}

static double expected_norm(const set *t, int number)
{
    double sum = 0;
    for (size_t i = 0; i < t->n; i++) {
        for (size_t j = 0; j < t->params[i].count; j++) {
            double x = set_sum(t, i, j, number);
            sum += t->params[i].aside ? 0 : x * x;
        }
    }
    return sqrt(sum);
}

/* Check that the gradients are those without a scale, times `clipped`. */
static void compare(set *t, int number, double clipped)
{
    for (size_t i = 0; i < t->n; i++) {
        const void *grad = dcomm_param_grad(t->b, i);
        size_t first, count;
        RANKS_OK(dcomm_param_get_owned(t->b, i, &first, &count));
        for (size_t j = first; j < first + count; j++) {
            double got = ranks_get(grad, j, t->params[i].dtype);
            double wanted = set_sum(t, i, j, number) * (t->params[i].aside ? 64 : clipped);
            PROCS_CHECK(fabs(got - wanted) <= fabs(wanted) * 0.01, "parameter %zu: %g, not %g", i,
                        got, wanted);
        }
    }
}

static int injected(int rank, int n, procs_shared *sh, void *arg)
{
    (void)arg;
    dcomm_comm *comm = join(rank, n, sh);
    /* The everyday run takes a third of the cases with each number of ranks. */
    const int stride = test_full() ? 1 : 3;
    for (int round = n % stride; round < 10; round += stride) {
        static set t;
        dcomm_scaler *s = NULL;
        dcomm_scaler_verdict v;
        dcomm_scaler_info info;
        uint64_t common = (uint64_t)round, seed = common * 100 + (uint64_t)rank;
        dcomm_buckets_opts opts = {.bucket_bytes = round % 2 ? 3000 : 0,
                                   .sum = round % 3 == 1,
                                   .weighted = round % 3 == 2,
                                   .sharded = round % 4 == 3};
        dcomm_scaler_opts scaling = {.scale = 64, .interval = 3, .clip = round % 2 ? 5 : 0};
        set_shape(&t, 12, round == 4 ? 40000 : 500, round % 2 == 0, common);
        t.params[2].aside = round > 5;
        set_settle(&t, comm, (set_place)(round % 5));
        set_make(&t, &opts);
        RANKS_OK(dcomm_scaler_create(t.b, &scaling, &s));
        double scale = 64;
        for (int number = 0; number < 6; number++) {
            /* In steps 1 and 4 the last rank has one infinite element, in 4 the first a NaN too. */
            size_t i, bad;
            do {
                i = ranks_random(&common) % t.n;
            } while (t.params[i].count == 0 || t.params[i].aside);
            size_t index = ranks_random(&common) % t.params[i].count;
            bool bad_step = number == 1 || number == 4;
            bad = bad_step && (rank == n - 1 || (number == 4 && rank == 0)) ? i : SET_MAX;
            double value = rank == n - 1 ? -INFINITY : NAN;
            size_t place = step(&t, s, number, &seed, bad, index, value);
            PROCS_TRUE(dcomm_scaler_scale(s) == scale);
            RANKS_OK(dcomm_scaler_step(s, &v));
            PROCS_CHECK(v.skip == bad_step && v.scale == scale,
                        "round %d, step %d: %s at %g, parameter %zu of rank %d is %g", round,
                        number, v.skip ? "skipped" : "good", v.scale, v.param, v.rank, v.value);
            if (bad_step) {
                uint64_t places[2] = {place, place}, low = rank == 0 ? place : 0;
                RANKS_OK(dcomm_broadcast(comm, &places[1], &places[1], 1, DCOMM_U64, n - 1, NULL));
                RANKS_OK(dcomm_broadcast(comm, &low, &low, 1, DCOMM_U64, 0, NULL));
                int whose = number == 4 && low <= places[1] ? 0 : n - 1;
                PROCS_TRUE(v.bad_ranks == (number == 4 && n > 1 ? 2 : 1));
                PROCS_CHECK(v.rank == whose && v.param == i && v.index == index,
                            "rank %d, parameter %zu, element %zu; not %d, %zu, %zu", v.rank,
                            v.param, v.index, whose, i, index);
                PROCS_TRUE(strcmp(v.name, t.names[i]) == 0 && v.factor == 0 && v.norm == 0);
                PROCS_TRUE(whose == n - 1 ? v.value == -INFINITY : isnan(v.value));
                PROCS_TRUE(v.next == scale / 2);
            } else {
                double norm = expected_norm(&t, number);
                double clipped = scaling.clip > 0 ? fmin(1, 5 / norm) : 1;
                PROCS_CHECK(fabs(v.norm - norm) <= 1e-3 * norm, "norm %g, not %g", v.norm, norm);
                PROCS_CHECK(fabs(v.factor * scale - clipped) <= 1e-3, "factor %g", v.factor);
                PROCS_TRUE(v.rank == -1 && v.bad_ranks == 0 && v.name == NULL);
                if (scale == 64 || !t.params[2].aside) {
                    compare(&t, number, clipped);
                }
            }
            scale = v.next;
        }
        RANKS_OK(dcomm_scaler_get_info(s, &info));
        PROCS_TRUE(scale == 16 && info.scale == 16 && info.steps == 6 && info.skipped == 2);
        for (int number = 6; number < 9; number++) {
            step(&t, s, number, &seed, SET_MAX, 0, 0);
            RANKS_OK(dcomm_scaler_step(s, &v));
            PROCS_TRUE(!v.skip && v.next == (number < 7 ? 16 : 32));
        }
        RANKS_OK(dcomm_scaler_destroy(&s));
        set_end(&t);
    }
    return ranks_leave(&comm);
}

Test(scaler, injected, .timeout = 100)
{
    on(2, RANKS_LOCAL, 45, injected);
    on(4, RANKS_PAIRS, 45, injected);
}

Test(scaler, injected_hosts, .timeout = 100)
{
    on(3, RANKS_HOSTS, 45, injected);
    on(1, RANKS_LOCAL, 45, injected);
}

/* In f16 every gradient is finite but their sum over the ranks is not, unless ranks divide first
 * or one rank adds up in f32. */
static int overflow(int rank, int n, procs_shared *sh, void *arg)
{
    (void)arg;
    dcomm_comm *comm = join(rank, n, sh);
    for (int c = 0; c < 5; c++) {
        static set t;
        dcomm_scaler *s = NULL;
        dcomm_scaler_verdict v;
        uint64_t seed = (uint64_t)rank;
        bool too_much = (c == 0 && n > 2) || c == 4; /* two ranks average at once */
        dcomm_buckets_opts opts = {.sum = c == 4, .predivide = c == 1, .sharded = c == 3};
        opts.coll.algo = c < 2 ? "ring" : NULL;
        opts.coll.accumulate = c == 2 || c == 3 ? DCOMM_F32 : (dcomm_dtype)0;
        set_shape(&t, 6, 3000, false, 1);
        for (size_t i = 0; i < t.n; i++) {
            t.params[i].dtype = DCOMM_F16;
        }
        set_settle(&t, comm, SET_APART);
        set_make(&t, &opts);
        RANKS_OK(dcomm_scaler_create(t.b, &(dcomm_scaler_opts){.scale = 1, .leave = true}, &s));
        step(&t, s, 0, &seed, 3, 7, 60000);
        RANKS_OK(dcomm_scaler_step(s, &v));
        PROCS_CHECK(v.skip == too_much, "case %d", c);
        if (too_much) {
            PROCS_CHECK(v.rank == -1 && v.bad_ranks == 0 && v.param == 3 && v.index == 7 &&
                            v.value == INFINITY && v.next == 0.5,
                        "rank %d, parameter %zu, element %zu: %g", v.rank, v.param, v.index,
                        v.value);
        } else {
            size_t first, count;
            RANKS_OK(dcomm_param_get_owned(t.b, 3, &first, &count));
            double got = ranks_get(dcomm_param_grad(t.b, 3), 7, DCOMM_F16);
            PROCS_CHECK(first > 7 || first + count <= 7 || fabs(got - 60000) < 64, "%g", got);
        }
        RANKS_OK(dcomm_scaler_destroy(&s));
        set_end(&t);
    }
    return ranks_leave(&comm);
}

Test(scaler, overflow, .timeout = 60)
{
    on(4, RANKS_LOCAL, 45, overflow);
    on(2, RANKS_HOSTS, 45, overflow);
}

/* With codecs, a skipped step leaves no trace in later steps. */
static int residuals(int rank, int n, procs_shared *sh, void *arg)
{
    (void)arg;
    enum { GOOD = 5 };
    dcomm_comm *comm = join(rank, n, sh);
    static const char *const codecs[] = {"topk:k=0.1", "qsgd:bits=4", "topk:k=0.1", "topk:k=0.1"};
    for (int c = 0; c < 4; c++) {
        static float results[2][GOOD][SET_MAX * 3000];
        for (int run = 0; run < 2; run++) {
            static set t;
            dcomm_scaler *s = NULL;
            dcomm_scaler_verdict v;
            dcomm_feedback_opts feedback = {.variant = c == 2   ? DCOMM_FEEDBACK_EF21
                                                       : c == 3 ? DCOMM_FEEDBACK_DGC
                                                                : DCOMM_FEEDBACK_CLASSIC,
                                            .scale = true};
            dcomm_buckets_opts opts = {
                .bucket_bytes = 20000, .codec = codecs[c], .feedback = &feedback};
            dcomm_scaler_opts scaling = {.scale = 1, .backoff = 1};
            uint64_t seed = (uint64_t)rank;
            set_shape(&t, 8, 3000, false, 5);
            set_settle(&t, comm, (set_place)(c % 3));
            set_make(&t, &opts);
            RANKS_OK(dcomm_scaler_create(t.b, &scaling, &s));
            for (int number = 0; number < GOOD; number++) {
                if (run == 1 && (number == 2 || number == 3)) {
                    size_t bad = rank == 0 ? 4 : SET_MAX;
                    step(&t, s, 9, &seed, bad, 0, number == 2 ? (double)NAN : (double)INFINITY);
                    RANKS_OK(dcomm_scaler_step(s, &v));
                    PROCS_TRUE(v.skip && v.rank == 0 && v.param == 4 && v.index == 0);
                }
                step(&t, s, number, &seed, SET_MAX, 0, 0);
                RANKS_OK(dcomm_scaler_step(s, &v));
                PROCS_TRUE(!v.skip);
                float *to = results[run][number];
                for (size_t i = 0; i < t.n; i++) {
                    if (t.params[i].count > 0) {
                        memcpy(to + i * 3000, dcomm_param_grad(t.b, i),
                               t.params[i].count * sizeof *to);
                    }
                }
            }
            RANKS_OK(dcomm_scaler_destroy(&s));
            set_end(&t);
        }
        for (int number = 0; number < GOOD; number++) {
            PROCS_CHECK(memcmp(results[0][number], results[1][number], sizeof results[0][0]) == 0,
                        "codec %s, case %d, step %d", codecs[c], c, number);
        }
    }
    return ranks_leave(&comm);
}

Test(scaler, residuals, .timeout = 60)
{
    on(2, RANKS_LOCAL, 25, residuals);
    on(3, RANKS_HOSTS, 25, residuals);
}

static int refused(int rank, int n, procs_shared *sh, void *arg)
{
    (void)arg;
    dcomm_comm *comm = join(rank, n, sh);
    static set t;
    bool odd = rank == 1;
    uint64_t seed = 3;
    unsigned char state[DCOMM_SCALER_BYTES], other[DCOMM_SCALER_BYTES];
    dcomm_scaler *s = NULL, *second = NULL;
    dcomm_scaler_verdict v;
    dcomm_scaler_info info;
    set_shape(&t, 4, 50, false, 1);
    set_settle(&t, comm, SET_APART);
    set_make(&t, NULL);
    expect(dcomm_scaler_create(t.b, &(dcomm_scaler_opts){.backoff = odd ? 2 : 0}, &s),
           DCOMM_ERR_INVALID, "opts.backoff");
    PROCS_TRUE(odd == (strstr(dcomm_last_error(), "rank 1: ") == NULL) && s == NULL);
    expect(dcomm_scaler_create(t.b, &(dcomm_scaler_opts){.clip = odd ? 0.5 : 1}, &s),
           DCOMM_ERR_MISMATCH, "opts.clip is 1 on rank 0 and 0.5 on rank 1");
    RANKS_OK(dcomm_scaler_create(t.b, NULL, &s));
    expect(dcomm_scaler_create(t.b, NULL, &second), DCOMM_ERR_INVALID, "have a scaler");
    PROCS_TRUE(dcomm_scaler_scale(s) == 32768 && dcomm_scaler_scale(NULL) == 1);
    expect(dcomm_scaler_step(s, &v), DCOMM_ERR_INVALID, "no step has sent");
    step(&t, s, 0, &seed, SET_MAX, 0, 0);
    expect(dcomm_scaler_step(s, NULL), DCOMM_ERR_INVALID, "verdict is NULL");
    RANKS_OK(dcomm_scaler_step(s, &v));
    expect(dcomm_scaler_step(s, &v), DCOMM_ERR_INVALID, "no step has sent");
    /* A step that only accumulates is not judged. */
    RANKS_OK(dcomm_buckets_begin(t.b, &(dcomm_buckets_step){.accumulate = true}));
    expect(dcomm_scaler_destroy(&s), DCOMM_ERR_INVALID, "under way");
    RANKS_OK(dcomm_buckets_wait(t.b));
    expect(dcomm_scaler_step(s, &v), DCOMM_ERR_INVALID, "no step has sent");
    /* Save and load states. */
    RANKS_OK(dcomm_scaler_save(s, state));
    memcpy(other, state, sizeof state);
    other[3] ^= 1;
    expect(dcomm_scaler_load(s, other), DCOMM_ERR_CORRUPT, "not the state of a scaler");
    step(&t, s, 0, &seed, odd ? 2 : SET_MAX, 0, (double)INFINITY);
    RANKS_OK(dcomm_scaler_step(s, &v));
    PROCS_TRUE(v.skip && v.next == 16384);
    RANKS_OK(dcomm_scaler_save(s, other));
    RANKS_OK(dcomm_scaler_load(s, state));
    RANKS_OK(dcomm_scaler_get_info(s, &info));
    PROCS_TRUE(info.scale == 32768 && info.good == 1 && info.steps == 1 && info.skipped == 0);
    RANKS_OK(dcomm_scaler_load(s, odd ? other : state));
    for (size_t i = 0; i < t.n; i++) {
        RANKS_OK(dcomm_param_mark_ready(t.b, i, NULL));
    }
    dcomm_status status = dcomm_buckets_wait(t.b);
    PROCS_TRUE(status == DCOMM_ERR_MISMATCH || status == DCOMM_ERR_ABORTED);
    PROCS_CHECK(strstr(dcomm_last_error(), "at 32768 after 1 good steps on rank 0, and at 16384 "
                                           "after 0 on rank 1") != NULL,
                "%s", dcomm_last_error());
    RANKS_OK(dcomm_scaler_destroy(&s));
    RANKS_OK(dcomm_scaler_destroy(&s));
    set_end(&t);
    return ranks_leave(&comm);
}

Test(scaler, refused, .timeout = 30)
{
    on(2, RANKS_LOCAL, 25, refused);
}
