/* test_bucket.c - gradient buckets: sums are right whatever the placement, the order of readiness
 * and the size of buckets; accumulation, unused parameters, weights, reports. */
#define _GNU_SOURCE
#include "bucket_set.h"
#include "placed.h"

#include <float.h>
#include <math.h>

/* ---- two ranks, two parameters ---- */

static int smallest(int rank, int n, procs_shared *s, void *arg)
{
    (void)arg;
    dcomm_comm *comm = join(rank, n, s);
    float w[3] = {1, 2, (float)rank}, bias[1] = {(float)(4 * rank)};
    dcomm_bucket_param params[] = {{.name = "w", .grad = w, .count = 3, .dtype = DCOMM_F32},
                                   {.name = "bias", .grad = bias, .count = 1, .dtype = DCOMM_F32}};
    dcomm_buckets *b = NULL;
    RANKS_OK(dcomm_buckets_create(comm, params, 2, NULL, &b));
    RANKS_OK(dcomm_param_mark_ready(b, 1, NULL));
    RANKS_OK(dcomm_param_mark_ready(b, 0, NULL));
    RANKS_OK(dcomm_buckets_wait(b));
    PROCS_TRUE(w[0] == 1 && w[1] == 2 && w[2] == 0.5f && bias[0] == 2);
    RANKS_OK(dcomm_buckets_destroy(&b));
    RANKS_OK(dcomm_buckets_destroy(&b));
    return ranks_leave(&comm);
}

Test(bucket, smallest, .timeout = 30)
{
    on(2, RANKS_LOCAL, 25, smallest);
}

/* ---- all placements, sizes, orders ---- */

static int sums(int rank, int n, procs_shared *s, void *arg)
{
    (void)arg;
    dcomm_comm *comm = join(rank, n, s);
    const size_t sizes[] = {1, 700, 20000, 0};
    uint64_t seed = (uint64_t)rank + 5;
    /* The everyday run takes a third of the cases with each number of ranks. */
    const int stride = test_full() ? 1 : 3;
    for (int round = n % stride; round < 10; round += stride) {
        static set t;
        dcomm_buckets_opts opts = {.bucket_bytes = sizes[round % 4],
                                   .first_bytes = round % 3 == 0 ? 300 : 0,
                                   .sum = n == 3 || round % 2 == 0,
                                   .registered = round % 3 == 1,
                                   .rebuild = round % 5 == 3,
                                   .history = 4};
        set_shape(&t, round == 7 ? 1 : 23, round == 4 ? 30000 : 900, round % 2 == 1,
                  (uint64_t)round);
        set_settle(&t, comm, (set_place)(round % 5));
        set_make(&t, &opts);
        for (int step = 0; step < 6; step++) {
            int32_t own = rank;
            set_backward(&t, step, 1 + (round + step) % 3, &seed);
            /* The caller's own collectives may run in between, at different places. */
            RANKS_OK(dcomm_allreduce(comm, &own, &own, 1, DCOMM_I32, DCOMM_SUM, NULL));
            PROCS_TRUE(own == n * (n - 1) / 2);
            size_t one = ranks_random(&seed) % t.n;
            if (step % 2 == 0) {
                RANKS_OK(dcomm_param_wait(t.b, one));
                set_compare(&t, one, step);
            }
            RANKS_OK(dcomm_buckets_wait(t.b));
            for (size_t i = 0; i < t.n; i++) {
                set_compare(&t, i, step);
            }
        }
        dcomm_buckets_info info;
        RANKS_OK(dcomm_buckets_get_info(t.b, &info));
        PROCS_TRUE(info.nparams == t.n && info.steps == 6 && info.sent_steps == 6);
        PROCS_TRUE(info.built == (opts.rebuild ? 2 : 1) && info.status == DCOMM_OK);
        set_end(&t);
    }
    return ranks_leave(&comm);
}

Test(bucket, sums, .timeout = 100)
{
    on(2, RANKS_LOCAL, 45, sums);
    on(4, RANKS_PAIRS, 45, sums);
}

Test(bucket, sums_of_three, .timeout = 100)
{
    on(3, RANKS_HOSTS, 45, sums);
    on(1, RANKS_LOCAL, 45, sums);
}

/* ---- layout ---- */

static int layout(int rank, int n, procs_shared *s, void *arg)
{
    (void)arg;
    dcomm_comm *comm = join(rank, n, s);
    /* In bytes: 400, 4000, 40, 40, 8 (f64), 40, 100. */
    static const size_t counts[] = {100, 1000, 10, 10, 1, 10, 25};
    static const size_t bucket[] = {5, 4, 3, 2, 1, 2, 0}, first[] = {0, 0, 0, 0, 0, 10, 0};
    dcomm_bucket_param params[7] = {{0}};
    dcomm_buckets_opts opts = {.bucket_bytes = 90, .first_bytes = 100};
    dcomm_buckets *b = NULL;
    for (int i = 0; i < 7; i++) {
        params[i] =
            (dcomm_bucket_param){.count = counts[i], .dtype = i == 4 ? DCOMM_F64 : DCOMM_F32};
    }
    params[2].codec = "qsgd:bits=4";
    opts.first_bytes = 110; /* at most bucket_bytes */
    RANKS_OK(dcomm_buckets_create(comm, params, 7, &opts, &b));
    dcomm_buckets_info all;
    RANKS_OK(dcomm_buckets_get_info(b, &all));
    PROCS_CHECK(all.nbuckets == 6 && all.bytes == 4628, "%zu buckets of %zu bytes", all.nbuckets,
                all.bytes);
    for (size_t i = 0; i < 7; i++) {
        size_t k, at;
        RANKS_OK(dcomm_param_get_bucket(b, i, &k, &at));
        PROCS_CHECK(k == bucket[i] && at == first[i], "parameter %zu: bucket %zu, at %zu", i, k,
                    at);
    }
    dcomm_bucket_info info;
    RANKS_OK(dcomm_bucket_get_info(b, 2, &info));
    PROCS_TRUE(info.nparams == 2 && info.count == 20 && info.bytes == 80 && info.in_place &&
               info.dtype == DCOMM_F32 && info.codec == NULL && info.feedback == NULL);
    RANKS_OK(dcomm_bucket_get_info(b, 3, &info));
    PROCS_CHECK(info.codec != NULL && strncmp(info.codec, "qsgd:bits=4", 11) == 0, "%s",
                info.codec);
    RANKS_OK(dcomm_buckets_destroy(&b));
    return ranks_leave(&comm);
}

Test(bucket, layout, .timeout = 30)
{
    on(2, RANKS_LOCAL, 25, layout);
}

/* Buckets that are too short for their codec are merged, in time that grows with their number. */
static int many(int rank, int n, procs_shared *s, void *arg)
{
    (void)arg;
    enum { MANY = 100000 };
    dcomm_comm *comm = join(rank, n, s);
    static dcomm_bucket_param params[MANY];
    dcomm_buckets_opts opts = {.bucket_bytes = 4, .codec = "qsgd:bits=8"};
    dcomm_buckets *b = NULL;
    size_t before = 0, k = 0, at = 0;
    for (int i = 0; i < MANY; i++) {
        params[i] = (dcomm_bucket_param){.count = i == 0 ? 3000 : 1, .dtype = DCOMM_F32};
        params[i].codec = i % 1000 == 7 ? "none" : NULL;
    }
    double start = procs_now();
    RANKS_OK(dcomm_buckets_create(comm, params, MANY, &opts, &b));
    PROCS_CHECK(procs_now() - start < 8, "%g s", procs_now() - start);
    dcomm_buckets_info all;
    RANKS_OK(dcomm_buckets_get_info(b, &all));
    size_t exact = MANY / 1000, coded = (MANY - exact - 1) / 2048 + 1;
    PROCS_CHECK(all.nbuckets == exact + coded, "%zu buckets", all.nbuckets);
    for (size_t i = 0; i < all.nbuckets; i++) {
        dcomm_bucket_info info;
        RANKS_OK(dcomm_bucket_get_info(b, i, &info));
        PROCS_TRUE(info.codec == NULL ? info.count == 1 : info.count >= 2048);
    }
    for (size_t i = MANY; i-- > 0;) { /* sent in the order in which gradients come */
        RANKS_OK(dcomm_param_get_bucket(b, i, &k, &at));
        PROCS_TRUE(params[i].codec != NULL || k >= before);
        before = params[i].codec == NULL ? k : before;
    }
    RANKS_OK(dcomm_buckets_destroy(&b));
    return ranks_leave(&comm);
}

Test(bucket, many, .timeout = 60)
{
    on(2, RANKS_LOCAL, 50, many);
}

/* ---- accumulation and unused parameters ---- */

static int accumulation(int rank, int n, procs_shared *s, void *arg)
{
    (void)arg;
    dcomm_comm *comm = join(rank, n, s);
    for (int each = 0; each < 25; each++) { /* every place of gradients with every size */
        static set t;
        const size_t sizes[] = {500, 1, 3000, 0, 100};
        const int place = each % 5;
        dcomm_buckets_opts opts = {.bucket_bytes = sizes[each / 5], .sum = true, .unused = true};
        uint64_t seed = (uint64_t)rank * 7 + (uint64_t)each;
        size_t order[SET_MAX];
        set_shape(&t, 12, 200, false, 3);
        set_settle(&t, comm, (set_place)place);
        set_make(&t, &opts);
        for (int round = 0; round < 3; round++) {
            dcomm_buckets_step skip = {.accumulate = true};
            for (size_t i = 0; i < t.n; i++) {
                for (size_t j = 0; j < t.params[i].count; j++) {
                    ranks_put(dcomm_param_grad(t.b, i), j, DCOMM_F32, 0);
                }
            }
            for (int micro = 0; micro < 3; micro++) {
                if (micro < 2) {
                    RANKS_OK(dcomm_buckets_begin(t.b, &skip));
                }
                set_shuffle(&t, order, &seed);
                for (size_t at = 0; at < t.n; at++) {
                    size_t i = order[at];
                    /* Parameter 2 has a gradient in the first micro-step only, parameter 3 on one
                     * rank only. */
                    if (i == 0 || (i == 2 && micro > 0) || (i == 3 && rank != 1)) {
                        continue;
                    }
                    set_compute(&t, i, micro, true);
                    RANKS_OK(dcomm_param_mark_ready(t.b, i, NULL));
                }
                if (micro == 1) {
                    PROCS_TRUE(dcomm_param_wait(t.b, 5) == DCOMM_ERR_INVALID);
                    PROCS_TRUE(strstr(dcomm_last_error(), "sends nothing") != NULL);
                }
                RANKS_OK(dcomm_buckets_wait(t.b));
            }
            for (size_t i = 0; i < t.n; i++) {
                const float *grad = dcomm_param_grad(t.b, i);
                for (size_t j = 0; j < t.params[i].count; j++) {
                    double sum = 0;
                    for (int micro = 0; micro < 3; micro++) {
                        sum += i == 0 || (i == 2 && micro > 0) ? 0
                               : i == 3                        ? set_value(i, j, 1, micro)
                                                               : set_sum(&t, i, j, micro);
                    }
                    PROCS_CHECK((double)grad[j] == sum,
                                "place %d, %zu bytes, parameter %zu: %g, not %g", place,
                                sizes[each / 5], i, (double)grad[j], sum);
                }
            }
        }
        dcomm_buckets_info info;
        RANKS_OK(dcomm_buckets_get_info(t.b, &info));
        PROCS_TRUE(info.steps == 9 && info.sent_steps == 3);
        set_end(&t);
    }
    return ranks_leave(&comm);
}

Test(bucket, accumulation, .timeout = 60)
{
    on(2, RANKS_LOCAL, 25, accumulation);
    on(3, RANKS_HOSTS, 25, accumulation);
    on(4, RANKS_LOCAL, 25, accumulation);
}

/* ---- weights ---- */

static int weights(int rank, int n, procs_shared *s, void *arg)
{
    (void)arg;
    dcomm_comm *comm = join(rank, n, s);
    enum { WEIGHTS = 5 };
    static const double of[WEIGHTS][4] = {{1, 1, 2, 4},
                                          {0, 3, 0, 5},
                                          {0, 0, 0, 0},
                                          {DBL_MAX, DBL_MAX, DBL_MAX, DBL_MAX},
                                          {DBL_MAX, DBL_MAX / 2, 0, DBL_MAX}};
    for (int place = 0; place < 3; place++) {
        static set t;
        dcomm_buckets_opts opts = {.bucket_bytes = 700, .weighted = true};
        set_shape(&t, 9, 300, true, 8);
        set_settle(&t, comm, (set_place)place);
        set_make(&t, &opts);
        uint64_t seed = (uint64_t)rank;
        for (int step = 0; step < 2 * WEIGHTS; step++) {
            long double total = 0;
            dcomm_buckets_step begin = {.weight = of[step % WEIGHTS][rank]};
            RANKS_OK(dcomm_buckets_begin(t.b, &begin));
            PROCS_TRUE(dcomm_buckets_begin(t.b, &begin) == DCOMM_ERR_INVALID);
            if (begin.weight > 0) {
                set_backward(&t, step, 2, &seed);
            }
            for (size_t i = 0; i < t.n && begin.weight == 0; i++) { /* whatever was there before */
                if (t.params[i].count > 0 && t.params[i].dtype <= DCOMM_F32) {
                    ranks_put(dcomm_param_grad(t.b, i), 0, t.params[i].dtype, (double)NAN);
                }
                RANKS_OK(dcomm_param_mark_ready(t.b, i, NULL));
            }
            RANKS_OK(dcomm_buckets_wait(t.b));
            for (int r = 0; r < n; r++) {
                total += (long double)of[step % WEIGHTS][r];
            }
            for (size_t i = 0; i < t.n; i++) {
                for (size_t j = 0; j < t.params[i].count; j++) {
                    double sum = 0, got = ranks_get(dcomm_param_grad(t.b, i), j, t.params[i].dtype);
                    for (int r = 0; r < n && total > 0; r++) {
                        sum += set_value(i, j, r, step) *
                               (double)((long double)of[step % WEIGHTS][r] / total);
                    }
                    PROCS_CHECK(fabs(got - sum) < 0.07, "%g, not %g", got, sum);
                }
            }
        }
        set_end(&t);
    }
    return ranks_leave(&comm);
}

Test(bucket, weights, .timeout = 60)
{
    on(4, RANKS_LOCAL, 25, weights);
    on(2, RANKS_HOSTS, 25, weights);
}

/* ---- reports ---- */

static int reports(int rank, int n, procs_shared *s, void *arg)
{
    (void)arg;
    dcomm_comm *comm = join(rank, n, s);
    static set t;
    dcomm_buckets_opts opts = {.bucket_bytes = 4000, .history = 8, .trace_steps = 2};
    char path[64];
    uint64_t seed = (uint64_t)rank;
    dcomm_buckets_report r;
    dcomm_bucket_info info;
    dcomm_buckets_info all;
    set_shape(&t, 20, 900, false, 2);
    snprintf(t.names[3], sizeof t.names[3], "q\"uo\\te\n");
    set_settle(&t, comm, SET_MIXED);
    set_make(&t, &opts);
    RANKS_OK(dcomm_buckets_get_report(t.b, &r));
    PROCS_TRUE(r.steps == 0 && r.step.last == 0 && r.efficiency == 0);
    RANKS_OK(dcomm_buckets_calibrate(t.b, 3));
    for (int step = 0; step < 12; step++) {
        set_backward(&t, step, 1, &seed);
        PROCS_TRUE(dcomm_buckets_get_report(t.b, &r) == DCOMM_ERR_INVALID);
        RANKS_OK(dcomm_buckets_wait(t.b));
    }
    RANKS_OK(dcomm_buckets_get_report(t.b, &r));
    PROCS_TRUE(r.steps == 8 && r.step.p50 > 0 && r.step.p50 <= r.step.p95);
    PROCS_TRUE(r.step.p95 <= r.step.p99 && r.step.last <= r.step.p99 && r.alone_s > 0);
    PROCS_TRUE(fabs(r.backward.last + r.exposed.last - r.step.last) < 1e-6);
    PROCS_TRUE(r.comm.last <= r.step.last + 1e-6 && r.efficiency >= 0 && r.efficiency <= 1);
    RANKS_OK(dcomm_buckets_get_info(t.b, &all));
    PROCS_TRUE(all.nbuckets > 3);
    double before = 0;
    for (size_t k = 0; k < all.nbuckets; k++) {
        RANKS_OK(dcomm_bucket_get_info(t.b, k, &info));
        PROCS_TRUE(info.ready_s <= info.start_s && info.start_s <= info.done_s);
        PROCS_TRUE(info.start_s >= before && info.alone_s > 0 && info.time.p50 > 0);
        before = info.start_s;
    }
    PROCS_TRUE(dcomm_bucket_get_info(t.b, all.nbuckets, &info) == DCOMM_ERR_INVALID);
    snprintf(path, sizeof path, "/tmp/dcomm-bucket-%d.json", (int)getpid());
    RANKS_OK(dcomm_buckets_trace(t.b, path));
    char command[256];
    snprintf(command, sizeof command,
             "python3 -c \"import json,sys; e=json.load(open(sys.argv[1])); "
             "n=[x['name'] for x in e]; assert n.count('backward')==2, n; "
             "assert n.count('bucket 0')==2 and n.count('layer5.weight')==2, n\" %s",
             path);
    PROCS_TRUE(system(command) == 0);
    unlink(path);
    PROCS_TRUE(dcomm_buckets_trace(t.b, "/nowhere/at/all") == DCOMM_ERR_SYSTEM);
    set_end(&t);
    return ranks_leave(&comm);
}

Test(bucket, reports, .timeout = 60)
{
    on(2, RANKS_LOCAL, 25, reports);
}

/* ---- saved and loaded ---- */

enum { SAVED_PARAMS = 4, SAVED_COUNT = 3000, SAVED_ROOM = 1 << 19 };

typedef struct saved_run {
    float grad[SAVED_PARAMS][SAVED_COUNT];
    dcomm_buckets *b;
    dcomm_scaler *scaler;
} saved_run;

static void saved_make(saved_run *r, dcomm_comm *comm, bool scaler)
{
    static const char *const names[] = {"a", "b", "c", "d"};
    dcomm_bucket_param params[SAVED_PARAMS];
    for (int i = 0; i < SAVED_PARAMS; i++) {
        params[i] = (dcomm_bucket_param){.name = names[i],
                                         .grad = r->grad[i],
                                         .count = SAVED_COUNT,
                                         .dtype = DCOMM_F32,
                                         .codec = i == 2 ? "powersgd:rank=2" : "topk:k=0.25"};
    }
    const dcomm_feedback_opts feedback = {.seed = 3};
    dcomm_buckets_opts opts = {.bucket_bytes = 2 * sizeof *r->grad,
                               .first_bytes = sizeof *r->grad,
                               .sum = true,
                               .rebuild = true,
                               .feedback = &feedback};
    RANKS_OK(dcomm_buckets_create(comm, params, SAVED_PARAMS, &opts, &r->b));
    if (scaler) {
        RANKS_OK(dcomm_scaler_create(r->b, &(dcomm_scaler_opts){.interval = 2}, &r->scaler));
    }
}

/* Mark parameters ready in another order than that of registration. */
static void saved_step(saved_run *r, int rank, int step, float size)
{
    static const size_t order[SAVED_PARAMS] = {1, 3, 0, 2};
    for (int i = 0; i < SAVED_PARAMS; i++) {
        uint64_t seed = (uint64_t)(1000 * step + 10 * rank + i + 1);
        for (size_t e = 0; e < SAVED_COUNT; e++) {
            r->grad[i][e] = size * (float)((int)(ranks_random(&seed) % 2001) - 1000);
        }
    }
    for (int i = 0; i < SAVED_PARAMS; i++) {
        RANKS_OK(dcomm_param_mark_ready(r->b, order[i], NULL));
    }
    RANKS_OK(dcomm_buckets_wait(r->b));
    if (r->scaler != NULL) {
        dcomm_scaler_verdict verdict;
        RANKS_OK(dcomm_scaler_step(r->scaler, &verdict));
    }
}

static void saved_end(saved_run *r)
{
    RANKS_OK(dcomm_scaler_destroy(&r->scaler));
    RANKS_OK(dcomm_buckets_destroy(&r->b));
}

/* Run steps without gradients until all that is held back has come out. */
static void saved_flush(saved_run *r, int rank, float (*total)[SAVED_COUNT])
{
    memset(total, 0, SAVED_PARAMS * sizeof *total);
    for (int step = 0; step < 12; step++) {
        saved_step(r, rank, step, 0);
        for (int i = 0; i < SAVED_PARAMS; i++) {
            for (size_t e = 0; e < SAVED_COUNT; e++) {
                total[i][e] += r->grad[i][e];
            }
        }
    }
}

static unsigned char *saved_state(const saved_run *r, size_t *bytes)
{
    unsigned char *state = calloc(1, SAVED_ROOM);
    *bytes = dcomm_buckets_save_bytes(r->b);
    PROCS_TRUE(*bytes <= SAVED_ROOM);
    PROCS_TRUE(dcomm_buckets_save(r->b, state, *bytes - 1) == DCOMM_ERR_INVALID);
    RANKS_OK(dcomm_buckets_save(r->b, state, SAVED_ROOM));
    return state;
}

/* A loaded run goes on with the bits of an uninterrupted one. Bytes that are no state are refused
 * on all ranks. */
static int goes_on(int rank, int n, procs_shared *s, void *arg)
{
    static saved_run whole, part, next;
    (void)arg;
    dcomm_comm *comm = join(rank, n, s);
    saved_make(&whole, comm, true);
    saved_make(&part, comm, true);
    for (int step = 0; step < 3; step++) {
        saved_step(&whole, rank, step, 1e-3f);
        saved_step(&part, rank, step, 1e-3f);
    }
    size_t bytes[4] = {0};
    const void *states[4] = {0};
    unsigned char *state = saved_state(&part, &bytes[rank]);
    states[rank] = state;
    saved_end(&part);
    saved_make(&next, comm, false);
    PROCS_TRUE(dcomm_buckets_load(next.b, states, bytes, (size_t)n) == DCOMM_ERR_INVALID);
    PROCS_TRUE(strstr(dcomm_last_error(), "scaler") != NULL);
    RANKS_OK(dcomm_scaler_create(next.b, &(dcomm_scaler_opts){.interval = 2}, &next.scaler));
    state[bytes[rank] / 2] ^= rank == n - 1;
    PROCS_TRUE(dcomm_buckets_load(next.b, states, bytes, (size_t)n) == DCOMM_ERR_CORRUPT);
    PROCS_TRUE(strstr(dcomm_last_error(), "state of rank") != NULL);
    state[bytes[rank] / 2] ^= rank == n - 1;
    RANKS_OK(dcomm_buckets_load(next.b, states, bytes, (size_t)n));
    dcomm_buckets_info info;
    dcomm_scaler_info scaler, expected;
    RANKS_OK(dcomm_buckets_get_info(next.b, &info));
    PROCS_TRUE(info.steps == 3 && info.sent_steps == 3 && info.built == 2);
    for (int step = 3; step < 6; step++) {
        saved_step(&whole, rank, step, 1e-3f);
        saved_step(&next, rank, step, 1e-3f);
        PROCS_TRUE(memcmp(whole.grad, next.grad, sizeof whole.grad) == 0);
    }
    RANKS_OK(dcomm_scaler_get_info(whole.scaler, &expected));
    RANKS_OK(dcomm_scaler_get_info(next.scaler, &scaler));
    PROCS_TRUE(scaler.scale == expected.scale && scaler.steps == 6 && scaler.good == expected.good);
    saved_end(&whole);
    saved_end(&next);
    free(state);
    return ranks_leave(&comm);
}

Test(bucket, saved_and_loaded, .timeout = 60)
{
    on(3, RANKS_LOCAL, 50, goes_on);
}

/* Two ranks take over from three: all that was held back is sent. */
static int fewer(int rank, int n, procs_shared *s, void *arg)
{
    static saved_run old, next;
    static float expected[SAVED_PARAMS][SAVED_COUNT], total[SAVED_PARAMS][SAVED_COUNT];
    (void)arg;
    dcomm_comm *comm = join(rank, n, s), *two = NULL;
    saved_make(&old, comm, false);
    for (int step = 0; step < 3; step++) {
        saved_step(&old, rank, step, 1e-3f);
    }
    uint64_t mine, lengths[4];
    size_t bytes[4];
    unsigned char *state = saved_state(&old, &bytes[0]), *all = malloc((size_t)n * SAVED_ROOM);
    const void *states[4];
    mine = bytes[0];
    RANKS_OK(dcomm_allgather(comm, &mine, lengths, 1, DCOMM_U64, NULL));
    RANKS_OK(dcomm_allgather(comm, state, all, SAVED_ROOM, DCOMM_U8, NULL));
    for (int r = 0; r < n; r++) {
        bytes[r] = (size_t)lengths[r];
        states[r] = all + (size_t)r * SAVED_ROOM;
    }
    saved_flush(&old, rank, expected);
    saved_end(&old);
    RANKS_OK(dcomm_comm_split(comm, rank < 2 ? 0 : 1, rank, &two));
    if (rank < 2) {
        saved_make(&next, two, false);
        PROCS_TRUE(dcomm_buckets_load(next.b, states, bytes, 2) == DCOMM_ERR_INVALID);
        RANKS_OK(dcomm_buckets_load(next.b, states, bytes, (size_t)n));
        saved_flush(&next, rank, total);
        for (int i = 0; i < SAVED_PARAMS; i++) {
            double off = 0, size = 0;
            for (size_t e = 0; e < SAVED_COUNT && i != 2; e++) { /* powersgd never sends all */
                off += fabs((double)total[i][e] - (double)expected[i][e]);
                size += fabs((double)expected[i][e]);
            }
            PROCS_CHECK(off <= 1e-5 * size && (i == 2 || size > 100), "%d: %g of %g", i, off, size);
        }
        saved_end(&next);
    }
    free(state);
    free(all);
    RANKS_OK(dcomm_comm_destroy(&two));
    return ranks_leave(&comm);
}

Test(bucket, saved_and_loaded_by_fewer, .timeout = 60)
{
    on(3, RANKS_LOCAL, 50, fewer);
}
