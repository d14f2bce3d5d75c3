/* test_device_bucket.c - gradient buckets in device memory. Sums are right whatever the order of
 * readiness, the streams and their pending work. Accumulation, unused parameters, weights, shards.
 * The caller's streams wait for no rank. */
#define _GNU_SOURCE
#include "device_buckets.h"

#include <criterion/criterion.h>

/* ---- all places, sizes, orders ---- */

/* Check that parameters share a bucket only on one device, the requested one. */
static void expect_places(const device_set *d)
{
    for (size_t i = 0; i < d->t.n; i++) {
        dcomm_bucket_info info;
        size_t k = 0, first = 0;
        RANKS_OK(dcomm_param_get_bucket(d->t.b, i, &k, &first));
        RANKS_OK(dcomm_bucket_get_info(d->t.b, k, &info));
        PROCS_CHECK(info.device == d->device[i] || d->t.params[i].count == 0,
                    "parameter %zu, of device %d, is in a bucket of device %d", i, d->device[i],
                    info.device);
        PROCS_TRUE(dcomm_param_grad(d->t.b, i) == d->t.params[i].grad);
    }
}

static int sums(int rank, int n, procs_shared *s, void *arg)
{
    const size_t sizes[] = {1, 700, 20000, 0};
    static const device_places places[] = {ALL_ON_ONE, HOST_TOO, TWO_DEVICES};
    dcomm_comm *comm = device_join(rank, n, s, *(bool *)arg);
    uint64_t seed = (uint64_t)rank + 11;
    const bool all = n == 2 || test_full();
    device_late(rank);
    for (int round = all ? 0 : n % 2; round < 9; round += all ? 1 : 2) {
        device_set *d = device_set_new(comm, 14, round % 4 == 3 ? 30000 : 900, round % 2 == 0,
                                       places[round % 3], (uint64_t)round);
        dcomm_buckets_opts opts = {.bucket_bytes = sizes[round % 4],
                                   .first_bytes = round % 3 == 0 ? 300 : 0,
                                   .sum = n == 3 || round % 2 == 0,
                                   .registered = round % 3 == 1,
                                   .rebuild = round % 4 == 1,
                                   .coll.deterministic = round % 5 == 2};
        set_make(&d->t, &opts);
        for (int step = 0; step < 3; step++) {
            device_set_backward(d, step, &seed);
            if (step == 1) {
                size_t one = ranks_random(&seed) % d->t.n;
                RANKS_OK(dcomm_param_wait(d->t.b, one));
                device_set_compare(d, one, step);
            }
            RANKS_OK(dcomm_buckets_wait(d->t.b));
            device_set_compare_all(d, step);
            expect_places(d);
        }
        if (round < 3) {
            RANKS_OK(dcomm_buckets_calibrate(d->t.b, 1));
        }
        device_set_end(d);
    }
    return ranks_leave(&comm);
}

Test(device_bucket, sums, .timeout = 300)
{
    for (int n = 1; n <= 4; n++) {
        device_on(n, 80, sums);
    }
}

/* Two allocations that may be adjacent are still two: no copy crosses from one into the other. */
static int side_by_side(int rank, int n, procs_shared *s, void *arg)
{
    enum { COUNT = 1024 };
    dcomm_comm *comm = device_join(rank, n, s, *(bool *)arg);
    dcomm_bucket_param params[2];
    dcomm_buckets *b = NULL;
    float host[COUNT];
    for (size_t i = 0; i < 2; i++) {
        void *grad = NULL;
        CUDA_OK(cudaMalloc(&grad, sizeof host));
        for (size_t j = 0; j < COUNT; j++) {
            host[j] = (float)set_value(i, j, rank, 0);
        }
        CUDA_OK(cudaMemcpy(grad, host, sizeof host, cudaMemcpyHostToDevice));
        params[i] = (dcomm_bucket_param){.grad = grad, .count = COUNT, .dtype = DCOMM_F32};
    }
    RANKS_OK(dcomm_buckets_create(comm, params, 2, &(dcomm_buckets_opts){.sum = true}, &b));
    RANKS_OK(dcomm_param_mark_ready(b, 0, NULL));
    RANKS_OK(dcomm_param_mark_ready(b, 1, NULL));
    RANKS_OK(dcomm_buckets_wait(b));
    for (size_t i = 0; i < 2; i++) {
        CUDA_OK(cudaMemcpy(host, params[i].grad, sizeof host, cudaMemcpyDeviceToHost));
        for (size_t j = 0; j < COUNT; j++) {
            double want = set_value(i, j, 0, 0) + set_value(i, j, 1, 0);
            PROCS_TRUE((double)host[j] == want);
        }
    }
    RANKS_OK(dcomm_buckets_destroy(&b));
    device_free(cudaFree, params[0].grad);
    device_free(cudaFree, params[1].grad);
    return ranks_leave(&comm);
}

Test(device_bucket, side_by_side, .timeout = 60)
{
    device_on(2, 80, side_by_side);
}

/* ---- the caller's streams ---- */

/* Rank 0 marks all parameters behind slow work without waiting for it. Its stream then ends while
 * the other ranks have marked nothing. */
static int free_to_go(int rank, int n, procs_shared *s, void *arg)
{
    dcomm_comm *comm = device_join(rank, n, s, *(bool *)arg);
    device_set *d = device_set_new(comm, 12, 5000, false, ALL_ON_ONE, 3);
    dcomm_buckets_opts opts = {.bucket_bytes = 8192, .sum = true};
    set_make(&d->t, &opts);
    for (int step = 0; step < 2; step++) {
        device_slow slow = {.ms = 150}, after = {.ms = 1};
        cudaStream_t stream = d->streams[0][0];
        if (rank != 0) {
            RANKS_OK(dcomm_barrier(comm, NULL));
        }
        CUDA_OK(cudaLaunchHostFunc(stream, device_slow_work, &slow));
        for (size_t i = d->t.n; i-- > 0;) {
            device_set_compute(d, i, step, false, stream);
            RANKS_OK(dcomm_param_mark_ready(d->t.b, i, stream));
        }
        PROCS_CHECK(atomic_load(&slow.over) == 0, "a mark has waited for the stream");
        CUDA_OK(cudaLaunchHostFunc(stream, device_slow_work, &after));
        CUDA_OK(cudaStreamSynchronize(stream));
        PROCS_TRUE(atomic_load(&slow.over) && atomic_load(&after.over));
        if (rank == 0) {
            RANKS_OK(dcomm_barrier(comm, NULL));
        }
        RANKS_OK(dcomm_buckets_wait(d->t.b));
        device_set_compare_all(d, step);
    }
    device_set_end(d);
    return ranks_leave(&comm);
}

Test(device_bucket, free_to_go, .timeout = 120)
{
    device_on(2, 80, free_to_go);
    device_on(3, 80, free_to_go);
}

/* ---- special steps ---- */

/* Parameter 2 has a gradient only in the first of two steps, 3 in none. */
static int accumulated(int rank, int n, procs_shared *s, void *arg)
{
    dcomm_comm *comm = device_join(rank, n, s, *(bool *)arg);
    device_set *d = device_set_new(comm, 8, 3000, false, HOST_TOO, 4);
    dcomm_buckets_opts opts = {.bucket_bytes = 6000, .sum = true};
    device_late(rank);
    set_make(&d->t, &opts);
    for (int round = 0; round < 3; round++) {
        device_slow slow[2] = {{.ms = 20}, {.ms = 10}};
        for (int step = 0; step < 2; step++) {
            dcomm_buckets_step how = {.accumulate = step == 0};
            RANKS_OK(dcomm_buckets_begin(d->t.b, &how));
            CUDA_OK(cudaLaunchHostFunc(d->streams[0][step], device_slow_work, &slow[step]));
            for (size_t i = 0; i < d->t.n; i++) {
                cudaStream_t stream = d->streams[0][step];
                if (i == 3) {
                    RANKS_OK(dcomm_param_mark_unused(d->t.b, i));
                } else if (i != 2 || step == 0) {
                    if (step == 1) { /* one after the other, as in a backward pass */
                        CUDA_OK(cudaStreamSynchronize(d->streams[0][0]));
                    }
                    device_set_compute(d, i, step, step == 1, stream);
                    RANKS_OK(dcomm_param_mark_ready(d->t.b, i, d->device[i] < 0 ? NULL : stream));
                }
            }
            RANKS_OK(dcomm_buckets_wait(d->t.b));
        }
        for (size_t i = 0; i < d->t.n; i++) {
            const unsigned char *got = device_set_result(d, i);
            for (size_t j = 0; j < d->t.params[i].count; j++) {
                double want = i == 3 ? 0 : set_sum(&d->t, i, j, 0);
                want += i == 2 || i == 3 ? 0 : set_sum(&d->t, i, j, 1);
                PROCS_CHECK(ranks_get(got, j, DCOMM_F32) == want, "parameter %zu, element %zu: %g",
                            i, j, ranks_get(got, j, DCOMM_F32));
            }
        }
    }
    device_set_end(d);
    return ranks_leave(&comm);
}

Test(device_bucket, accumulated, .timeout = 120)
{
    device_on(2, 80, accumulated);
    device_on(3, 80, accumulated);
}

/* Weights. A rank of weight 0 has NaN in its gradients, which must not reach any sum. */
static int weighted(int rank, int n, procs_shared *s, void *arg)
{
    dcomm_comm *comm = device_join(rank, n, s, *(bool *)arg);
    device_set *d = device_set_new(comm, 9, 2000, false, HOST_TOO, 5);
    dcomm_buckets_opts opts = {.bucket_bytes = 5000, .weighted = true};
    uint64_t seed = (uint64_t)rank + 1;
    set_make(&d->t, &opts);
    for (int step = 0; step < 2; step++) {
        dcomm_buckets_step how = {.weight = set_weight(rank, n)};
        RANKS_OK(dcomm_buckets_begin(d->t.b, &how));
        device_set_backward(d, step, &seed);
        RANKS_OK(dcomm_buckets_wait(d->t.b));
        device_set_compare_all(d, step);
    }
    dcomm_buckets_step how = {.weight = rank == 0 ? 0 : 2};
    RANKS_OK(dcomm_buckets_begin(d->t.b, &how));
    for (size_t i = 0; i < d->t.n; i++) {
        device_set_compute(d, i, 7, false, d->streams[0][0]);
        if (rank == 0 && d->device[i] >= 0) {
            CUDA_OK(cudaMemsetAsync(d->there[i], 0xff, d->t.params[i].count * 4, d->streams[0][0]));
        }
        RANKS_OK(dcomm_param_mark_ready(d->t.b, i, d->device[i] < 0 ? NULL : d->streams[0][0]));
    }
    RANKS_OK(dcomm_buckets_wait(d->t.b));
    for (size_t i = 0; i < d->t.n; i++) {
        const unsigned char *got = device_set_result(d, i);
        for (size_t j = 0; j < d->t.params[i].count; j++) {
            double want = 0;
            for (int r = 1; r < n; r++) {
                want += set_value(i, j, r, 7) / (n - 1);
            }
            PROCS_CHECK(ranks_get(got, j, DCOMM_F32) == want, "parameter %zu, element %zu: %g", i,
                        j, ranks_get(got, j, DCOMM_F32));
        }
    }
    device_set_end(d);
    return ranks_leave(&comm);
}

Test(device_bucket, weighted, .timeout = 120)
{
    device_on(2, 80, weighted);
    device_on(3, 80, weighted);
}

/* Small whole numbers and their halves are exact in f16, so a codec's sum is exact, too. It runs
 * on the device, for all float dtypes and with factors. */
static void compressed_by(dcomm_comm *comm, bool dtypes, dcomm_buckets_opts opts)
{
    const int rank = dcomm_comm_rank(comm);
    device_set *d = device_set_new(comm, 10, 6000, dtypes, HOST_TOO, 6);
    uint64_t seed = (uint64_t)rank + 1;
    opts.bucket_bytes = 30000;
    opts.unused = true;
    opts.codec = opts.codec != NULL ? opts.codec : "f16";
    set_make(&d->t, &opts);
    const dcomm_buckets_step how = {.weight = opts.weighted ? set_weight(rank, d->t.nranks) : 0};
    for (int step = 0; step < 2; step++) {
        RANKS_OK(dcomm_buckets_begin(d->t.b, &how));
        device_set_backward(d, step, &seed);
        RANKS_OK(dcomm_buckets_wait(d->t.b));
        device_set_compare_all(d, step);
    }
    RANKS_OK(dcomm_buckets_begin(d->t.b, &how));
    RANKS_OK(dcomm_buckets_wait(d->t.b)); /* no parameter was marked */
    for (size_t i = 0; i < d->t.n; i++) {
        const unsigned char *got = device_set_result(d, i);
        for (size_t j = 0; j < d->t.params[i].count; j++) {
            PROCS_TRUE(ranks_get(got, j, d->t.params[i].dtype) == 0);
        }
    }
    device_set_end(d);
}

static int compressed(int rank, int n, procs_shared *s, void *arg)
{
    dcomm_comm *comm = device_join(rank, n, s, *(bool *)arg);
    for (int dtypes = 0; dtypes < 2; dtypes++) {
        compressed_by(comm, dtypes, (dcomm_buckets_opts){.sum = true});
        compressed_by(comm, dtypes, (dcomm_buckets_opts){.weighted = true});
        compressed_by(comm, dtypes, (dcomm_buckets_opts){.predivide = true});
        compressed_by(comm, dtypes, (dcomm_buckets_opts){.sum = true, .codec = "auto:f16"});
    }
    return ranks_leave(&comm);
}

Test(device_bucket, compressed, .timeout = 120)
{
    device_on(2, 80, compressed);
}

/* Residuals of buckets: gradients and states have the same bits as with buckets in host memory,
 * also when parameters change buckets. */
static void fed_by(dcomm_comm *comm, const char *codec, const char *algo,
                   const dcomm_feedback_opts *feedback)
{
    enum { PARAMS = 9, COUNT = 3001 };
    const int rank = dcomm_comm_rank(comm), steps = test_full() ? 5 : 3;
    dcomm_bucket_param here[PARAMS], there[PARAMS];
    dcomm_buckets *host = NULL, *device = NULL;
    float got[COUNT];
    device_late(rank);
    for (size_t i = 0; i < PARAMS; i++) {
        here[i] = (dcomm_bucket_param){.count = COUNT - 7 * i, .dtype = DCOMM_F32};
        there[i] = here[i];
        here[i].grad = device_memory(-1, sizeof got);
        there[i].grad = device_memory(0, sizeof got);
    }
    dcomm_buckets_opts opts = {.bucket_bytes = 30000,
                               .codec = codec,
                               .feedback = feedback,
                               .rebuild = true,
                               .coll.algo = algo};
    RANKS_OK(dcomm_buckets_create(comm, here, PARAMS, &opts, &host));
    RANKS_OK(dcomm_buckets_create(comm, there, PARAMS, &opts, &device));
    for (int step = 0; step < steps; step++) {
        for (size_t k = 0; k < PARAMS; k++) {
            size_t i = k * 5 % PARAMS, bytes = here[i].count * sizeof(float);
            float *x = here[i].grad;
            for (size_t j = 0; j < here[i].count; j++) {
                x[j] = (float)set_value(i, j * j, rank, step) + 0.3f * (float)j;
            }
            CUDA_OK(cudaMemcpy(there[i].grad, x, bytes, cudaMemcpyHostToDevice));
            RANKS_OK(dcomm_param_mark_ready(host, i, NULL));
            RANKS_OK(dcomm_param_mark_ready(device, i, NULL));
        }
        RANKS_OK(dcomm_buckets_wait(host));
        RANKS_OK(dcomm_buckets_wait(device));
        for (size_t i = 0; i < PARAMS; i++) {
            size_t bytes = here[i].count * sizeof(float);
            CUDA_OK(cudaMemcpy(got, there[i].grad, bytes, cudaMemcpyDeviceToHost));
            PROCS_CHECK(memcmp(got, here[i].grad, bytes) == 0,
                        "%s, variant %d: step %d, parameter %zu", codec, (int)feedback->variant,
                        step, i);
        }
        dcomm_buckets_info all;
        RANKS_OK(dcomm_buckets_get_info(host, &all));
        for (size_t k = 0; k < all.nbuckets; k++) {
            dcomm_bucket_info x, y;
            RANKS_OK(dcomm_bucket_get_info(host, k, &x));
            RANKS_OK(dcomm_bucket_get_info(device, k, &y));
            size_t bytes = dcomm_feedback_save_bytes(x.feedback);
            void *a = malloc(bytes), *b = malloc(bytes);
            PROCS_TRUE(a != NULL && b != NULL && bytes == dcomm_feedback_save_bytes(y.feedback));
            RANKS_OK(dcomm_feedback_save(x.feedback, a, bytes));
            RANKS_OK(dcomm_feedback_save(y.feedback, b, bytes));
            PROCS_CHECK(memcmp(a, b, bytes) == 0, "step %d, bucket %zu: the states differ", step,
                        k);
            free(a);
            free(b);
        }
    }
    RANKS_OK(dcomm_buckets_destroy(&host));
    RANKS_OK(dcomm_buckets_destroy(&device));
    for (size_t i = 0; i < PARAMS; i++) {
        device_memory_free(-1, here[i].grad);
        device_memory_free(0, there[i].grad);
    }
}

static int fed(int rank, int n, procs_shared *s, void *arg)
{
    dcomm_comm *comm = device_join(rank, n, s, *(bool *)arg);
    fed_by(comm, "topk:k=0.1", NULL, &(dcomm_feedback_opts){.seed = 9});
    fed_by(comm, "topk:k=0.1", "coded_two_shot",
           &(dcomm_feedback_opts){.variant = DCOMM_FEEDBACK_EF21});
    fed_by(comm, "topk:k=0.1", "coded_two_shot",
           &(dcomm_feedback_opts){.variant = DCOMM_FEEDBACK_DGC, .bf16 = true, .warmup_steps = 8});
    fed_by(comm, "topk:k=0.1", "coded_two_shot",
           &(dcomm_feedback_opts){.variant = DCOMM_FEEDBACK_DGC, .clip = 2});
    fed_by(comm, "tern", "coded_allgather", &(dcomm_feedback_opts){.scale = true, .seed = 9});
    fed_by(comm, "randk:k=0.1,scale=none", "coded_linear", &(dcomm_feedback_opts){.seed = 9});
    fed_by(comm, "powersgd", NULL, &(dcomm_feedback_opts){.seed = 9});
    return ranks_leave(&comm);
}

Test(device_bucket, fed, .timeout = 120)
{
    device_on(2, 80, fed);
    device_on(3, 80, fed);
}

/* ---- shards ---- */

/* Each owner copies its part of the sum into its part of the values, and all ranks gather the
 * values. */
static int sharded(int rank, int n, procs_shared *s, void *arg)
{
    dcomm_comm *comm = device_join(rank, n, s, *(bool *)arg);
    device_set *d = device_set_new(comm, 9, 2000, false, HOST_TOO, 8);
    dcomm_buckets_opts opts = {.bucket_bytes = 9000, .sum = true, .sharded = true};
    uint64_t seed = (uint64_t)rank + 1;
    for (size_t i = 0; i < d->t.n; i++) {
        d->values[i] = device_memory(d->device[i], d->t.params[i].count * 4);
        d->t.params[i].value = d->values[i];
    }
    device_late(rank);
    set_make(&d->t, &opts);
    for (int step = 0; step < 3; step++) {
        device_set_backward(d, step, &seed);
        RANKS_OK(dcomm_buckets_wait(d->t.b));
        for (size_t i = 0; i < d->t.n; i++) {
            size_t first = 0, count = 0;
            RANKS_OK(dcomm_param_get_owned(d->t.b, i, &first, &count));
            CUDA_OK(cudaMemcpy(d->values[i] + 4 * first,
                               (unsigned char *)d->t.params[i].grad + 4 * first, 4 * count,
                               cudaMemcpyDefault));
        }
        RANKS_OK(dcomm_buckets_gather(d->t.b));
        for (size_t i = 0; i < d->t.n; i++) { /* compare the values as gradients */
            CUDA_OK(cudaMemcpy(d->t.params[i].grad, d->values[i], 4 * d->t.params[i].count,
                               cudaMemcpyDefault));
        }
        CUDA_OK(cudaStreamSynchronize(cudaStreamLegacy));
        device_set_compare_all(d, step);
    }
    device_set_end(d);
    return ranks_leave(&comm);
}

Test(device_bucket, sharded, .timeout = 120)
{
    device_on(2, 80, sharded);
    device_on(3, 80, sharded);
}
