/* test_device_scaler.c - a scaler of gradients in device memory. A number that is not finite makes
 * all ranks skip the step, and is reported with rank, parameter and index. Norms, unscaling and
 * clipping. No call waits for the caller's streams. A skipped step leaves residuals unchanged. */
#define _GNU_SOURCE
#include "device_buckets.h"

#include <criterion/criterion.h>
#include <math.h>

/* A wrong number in one step. */
typedef struct flaw {
    size_t param, index; /* param is SET_MAX if this rank has none */
    double value;
} flaw;

/* Set gradients to set_value times `scale`, on streams, some after slow work, in a random order.
 * Return how many were marked before the flaw. */
static size_t backward(device_set *d, int step, double scale, flaw f, uint64_t *seed)
{
    size_t order[SET_MAX], place = d->t.n;
    set_shuffle(&d->t, order, seed);
    for (size_t at = 0; at < d->t.n; at++) {
        size_t i = order[at];
        const dcomm_bucket_param *p = &d->t.params[i];
        cudaStream_t stream = d->streams[d->device[i] == 1][at % 2];
        for (size_t j = 0; j < p->count; j++) {
            double x = set_value(i, j, d->t.rank, step) * scale;
            ranks_put(d->host[i], j, p->dtype, i == f.param && j == f.index ? f.value : x);
        }
        place = i == f.param ? at : place;
        if (d->device[i] >= 0) {
            d->slow[i] = (device_slow){.ms = (int)(ranks_random(seed) % 3)};
            CUDA_OK(cudaLaunchHostFunc(stream, device_slow_work, &d->slow[i]));
            CUDA_OK(cudaMemcpyAsync(d->there[i], d->host[i], p->count * dcomm_dtype_size(p->dtype),
                                    cudaMemcpyHostToDevice, stream));
        }
        RANKS_OK(dcomm_param_mark_ready(d->t.b, i, d->device[i] < 0 ? NULL : stream));
    }
    RANKS_OK(dcomm_buckets_wait(d->t.b));
    return place;
}

static double expected_norm(const device_set *d, int step)
{
    double sum = 0;
    for (size_t i = 0; i < d->t.n; i++) {
        for (size_t j = 0; j < d->t.params[i].count; j++) {
            double x = set_sum(&d->t, i, j, step);
            sum += d->t.params[i].aside ? 0 : x * x;
        }
    }
    return sqrt(sum);
}

/* Check that gradients are the sums times `factor`; those aside are still times `scale`. */
static void compare(device_set *d, int step, double factor, double scale)
{
    for (size_t i = 0; i < d->t.n; i++) {
        const dcomm_bucket_param *p = &d->t.params[i];
        const unsigned char *got = device_set_result(d, i);
        size_t first, count;
        RANKS_OK(dcomm_param_get_owned(d->t.b, i, &first, &count));
        for (size_t j = first; j < first + count; j++) {
            double want = set_sum(&d->t, i, j, step) * (p->aside ? scale : factor);
            double is = ranks_get(got, j, p->dtype);
            PROCS_CHECK(fabs(is - want) <= fabs(want) * 0.01,
                        "parameter %zu, element %zu: %g, not %g", i, j, is, want);
        }
    }
}

/* Steps 1 and 3 have a flaw on the last rank. Step 3 also has one on the first. */
static int judged(int rank, int n, procs_shared *s, void *arg)
{
    static const device_places places[] = {ALL_ON_ONE, HOST_TOO, TWO_DEVICES};
    dcomm_comm *comm = device_join(rank, n, s, *(bool *)arg);
    device_late(rank);
    for (int round = 0; round < 6; round++) {
        uint64_t common = (uint64_t)round + 1, seed = common * 100 + (uint64_t)rank;
        device_set *d = device_set_new(comm, 10, round == 4 ? 40000 : 700, round % 2 == 0,
                                       places[round % 3], common);
        dcomm_buckets_opts opts = {
            .bucket_bytes = round % 2 ? 3000 : 0, .sum = round % 3 == 1, .sharded = round == 3};
        dcomm_scaler_opts how = {
            .scale = 64, .clip = round % 2 ? 5 : 0, .leave = round == 2, .interval = 2};
        dcomm_scaler *scaler = NULL;
        dcomm_scaler_verdict v;
        double scale = 64;
        d->t.params[2].aside = round > 3;
        set_make(&d->t, &opts);
        RANKS_OK(dcomm_scaler_create(d->t.b, &how, &scaler));
        for (int step = 0; step < 5; step++) {
            bool bad = step % 2 == 1;
            size_t i;
            do {
                i = ranks_random(&common) % d->t.n;
            } while (d->t.params[i].count == 0 || d->t.params[i].aside);
            flaw f = {SET_MAX, ranks_random(&common) % d->t.params[i].count,
                      rank == n - 1 ? -(double)INFINITY : (double)NAN};
            f.param = bad && (rank == n - 1 || (step == 3 && rank == 0)) ? i : SET_MAX;
            uint64_t at = backward(d, step, scale, f, &seed), first = at;
            RANKS_OK(dcomm_scaler_step(scaler, &v));
            PROCS_CHECK(v.skip == bad && v.scale == scale, "round %d, step %d: %s at %g", round,
                        step, v.skip ? "skipped" : "good", v.scale);
            RANKS_OK(dcomm_broadcast(comm, &at, &at, 1, DCOMM_U64, n - 1, NULL));
            RANKS_OK(dcomm_broadcast(comm, &first, &first, 1, DCOMM_U64, 0, NULL));
            if (bad) {
                int whose = step == 3 && first <= at ? 0 : n - 1;
                PROCS_CHECK(v.rank == whose && v.param == i && v.index == f.index,
                            "rank %d, parameter %zu, element %zu; not %d, %zu, %zu", v.rank,
                            v.param, v.index, whose, i, f.index);
                PROCS_TRUE(v.bad_ranks == (step == 3 && n > 1 ? 2 : 1) && v.factor == 0);
                PROCS_TRUE(whose == n - 1 ? v.value == -(double)INFINITY : isnan(v.value));
                PROCS_TRUE(v.next == scale / 2);
            } else {
                double norm = expected_norm(d, step), clip = how.clip > 0 ? fmin(1, 5 / norm) : 1;
                PROCS_CHECK(fabs(v.norm - norm) <= 1e-3 * norm, "norm %g, not %g", v.norm, norm);
                PROCS_CHECK(fabs(v.factor * scale - clip) <= 1e-3, "factor %g", v.factor);
                PROCS_TRUE(v.rank == -1 && v.bad_ranks == 0);
                compare(d, step, how.leave ? scale : clip, scale);
                double bits[2] = {v.norm, v.norm};
                RANKS_OK(dcomm_broadcast(comm, &bits[1], &bits[1], 1, DCOMM_F64, 0, NULL));
                PROCS_TRUE(bits[0] == bits[1]);
            }
            scale = v.next;
        }
        RANKS_OK(dcomm_scaler_destroy(&scaler));
        RANKS_OK(dcomm_scaler_create(d->t.b, &how, &scaler)); /* on the first one's buckets */
        backward(d, 6, 64, (flaw){SET_MAX, 0, 0}, &seed);
        RANKS_OK(dcomm_scaler_step(scaler, &v));
        PROCS_TRUE(!v.skip);
        RANKS_OK(dcomm_scaler_destroy(&scaler));
        device_set_end(d);
    }
    return ranks_leave(&comm);
}

Test(device_scaler, judged, .timeout = 300)
{
    for (int n = 1; n <= 3; n++) {
        device_on(n, 80, judged);
    }
}

/* Every gradient is finite, but their sum is not. */
static int overflow(int rank, int n, procs_shared *s, void *arg)
{
    dcomm_comm *comm = device_join(rank, n, s, *(bool *)arg);
    for (int sharded = 0; sharded < 2; sharded++) {
        device_set *d = device_set_new(comm, 6, 3000, false, HOST_TOO, 2);
        dcomm_buckets_opts opts = {.sum = true, .sharded = sharded};
        dcomm_scaler *scaler = NULL;
        dcomm_scaler_verdict v;
        uint64_t seed = (uint64_t)rank;
        set_make(&d->t, &opts);
        RANKS_OK(dcomm_scaler_create(d->t.b, &(dcomm_scaler_opts){.scale = 1}, &scaler));
        backward(d, 0, 1, (flaw){3, 7, 3e38}, &seed);
        RANKS_OK(dcomm_scaler_step(scaler, &v));
        PROCS_CHECK(v.skip && v.rank == -1 && v.bad_ranks == 0 && v.param == 3 && v.index == 7 &&
                        v.value == (double)INFINITY,
                    "rank %d, parameter %zu, element %zu: %g", v.rank, v.param, v.index, v.value);
        RANKS_OK(dcomm_scaler_destroy(&scaler));
        device_set_end(d);
    }
    return ranks_leave(&comm);
}

Test(device_scaler, overflow, .timeout = 60)
{
    device_on(2, 80, overflow);
}

/* A parameter that no rank marks counts as zeros, whatever it held in the last step. So do the
 * gradients of a rank with weight 0. */
static int nothing(int rank, int n, procs_shared *s, void *arg)
{
    dcomm_comm *comm = device_join(rank, n, s, *(bool *)arg);
    device_set *d = device_set_new(comm, 6, 500, false, ALL_ON_ONE, 3);
    dcomm_buckets_opts opts = {.weighted = true, .unused = true};
    dcomm_scaler *scaler = NULL;
    dcomm_scaler_verdict v;
    uint64_t seed = (uint64_t)rank;
    set_make(&d->t, &opts);
    RANKS_OK(dcomm_scaler_create(d->t.b, &(dcomm_scaler_opts){.scale = 1}, &scaler));
    for (int step = 0; step < 3; step++) {
        flaw f = {rank == 0 ? 4 : SET_MAX, 0, (double)NAN};
        dcomm_buckets_step how = {.weight = rank == 0 && step == 0 ? 0 : 1};
        RANKS_OK(dcomm_buckets_begin(d->t.b, &how));
        if (step < 2) {
            backward(d, step, 1, f, &seed);
        } else {
            RANKS_OK(dcomm_buckets_wait(d->t.b));
        }
        RANKS_OK(dcomm_scaler_step(scaler, &v));
        PROCS_CHECK(v.skip == (step == 1), "step %d", step);
    }
    RANKS_OK(dcomm_scaler_destroy(&scaler));
    device_set_end(d);
    return ranks_leave(&comm);
}

Test(device_scaler, nothing, .timeout = 60)
{
    device_on(2, 80, nothing);
}

/* Rank 0 marks all parameters behind slow work. Neither a mark nor its stream waits. */
static int free_to_go(int rank, int n, procs_shared *s, void *arg)
{
    dcomm_comm *comm = device_join(rank, n, s, *(bool *)arg);
    device_set *d = device_set_new(comm, 8, 5000, false, ALL_ON_ONE, 3);
    dcomm_buckets_opts opts = {.bucket_bytes = 8192, .sum = true};
    dcomm_scaler *scaler = NULL;
    dcomm_scaler_verdict v;
    device_slow slow = {.ms = 150};
    cudaStream_t stream = d->streams[0][0];
    set_make(&d->t, &opts);
    RANKS_OK(dcomm_scaler_create(d->t.b, &(dcomm_scaler_opts){.scale = 1}, &scaler));
    CUDA_OK(cudaLaunchHostFunc(stream, device_slow_work, &slow));
    for (size_t i = d->t.n; i-- > 0;) {
        device_set_compute(d, i, 0, false, stream);
        RANKS_OK(dcomm_param_mark_ready(d->t.b, i, stream));
    }
    PROCS_CHECK(atomic_load(&slow.over) == 0, "a mark has waited for the stream");
    RANKS_OK(dcomm_buckets_wait(d->t.b));
    RANKS_OK(dcomm_scaler_step(scaler, &v));
    PROCS_TRUE(!v.skip && v.factor == 1);
    device_set_compare_all(d, 0);
    RANKS_OK(dcomm_scaler_destroy(&scaler));
    device_set_end(d);
    return ranks_leave(&comm);
}

Test(device_scaler, free_to_go, .timeout = 60)
{
    device_on(2, 80, free_to_go);
}

/* With a codec, a skipped step has no effect on later results. */
static int residuals(int rank, int n, procs_shared *s, void *arg)
{
    enum { PARAMS = 6, MOST = 1500, GOOD = 4 };
    dcomm_comm *comm = device_join(rank, n, s, *(bool *)arg);
    float(*results)[GOOD][PARAMS][MOST] = calloc(2, sizeof *results);
    PROCS_TRUE(results != NULL);
    device_late(rank);
    for (int run = 0; run < 2; run++) {
        device_set *d = device_set_new(comm, PARAMS, MOST, false, HOST_TOO, 5);
        dcomm_feedback_opts feedback = {.seed = 3};
        dcomm_buckets_opts opts = {
            .bucket_bytes = 6000, .codec = "topk:k=0.1", .feedback = &feedback};
        dcomm_scaler *scaler = NULL;
        dcomm_scaler_verdict v;
        uint64_t seed = (uint64_t)rank;
        set_make(&d->t, &opts);
        RANKS_OK(
            dcomm_scaler_create(d->t.b, &(dcomm_scaler_opts){.scale = 1, .backoff = 1}, &scaler));
        for (int step = 0; step < GOOD; step++) {
            if (run == 1 && step > 1) { /* parameter 3 is on the device, 4 is not */
                flaw f = {rank == 0 ? (size_t)step + 1 : SET_MAX, 0, (double)NAN};
                backward(d, 9, 1, f, &seed);
                RANKS_OK(dcomm_scaler_step(scaler, &v));
                PROCS_TRUE(v.skip && v.rank == 0 && v.param == (size_t)step + 1 && v.index == 0);
            }
            backward(d, step, 1, (flaw){SET_MAX, 0, 0}, &seed);
            RANKS_OK(dcomm_scaler_step(scaler, &v));
            PROCS_TRUE(!v.skip);
            for (size_t i = 0; i < PARAMS; i++) {
                memcpy(results[run][step][i], device_set_result(d, i),
                       d->t.params[i].count * sizeof(float));
            }
        }
        RANKS_OK(dcomm_scaler_destroy(&scaler));
        device_set_end(d);
    }
    for (int step = 0; step < GOOD; step++) {
        PROCS_CHECK(memcmp(results[0][step], results[1][step], sizeof results[0][0]) == 0,
                    "step %d", step);
    }
    free(results);
    return ranks_leave(&comm);
}

Test(device_scaler, residuals, .timeout = 60)
{
    device_on(2, 80, residuals);
    device_on(3, 80, residuals);
}
