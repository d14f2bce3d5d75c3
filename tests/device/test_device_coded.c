/* test_device_coded.c - compressed all-reduce of device memory. Result and report have the same
 * bits as in host memory, and only encodings leave the device. */
#define _GNU_SOURCE
#include "device_ranks.h"
#include "explained.h"
#ifdef CUDA_HOST_STAND_IN
#include "cuda_host.h"
#endif

#include <criterion/criterion.h>
#include <math.h>

typedef struct where {
    ranks_place place;
    bool threads;
} where;

static const char *const specs[] = {"qsgd:bits=4",
                                    "qsgd:bits=8,bucket=128,norm=two",
                                    "tern",
                                    "sign",
                                    "fp8",
                                    "f16",
                                    "bf16",
                                    "topk:k=0.02",
                                    "threshold:k=0.05",
                                    "topk+qsgd:k=0.03",
                                    "randk:k=0.05",
                                    "randk:k=0.1,scale=none",
                                    "powersgd:rank=4",
                                    "powersgd:rank=1,turns=3"};
enum { SPECS = sizeof specs / sizeof *specs, DENSE = 7, SPLIT = 9, LINEAR = 10, PRODUCTS = 12 };

static float gradient(int rank, size_t i)
{
    return sinf((float)((i * 37 + (size_t)rank * 101) % 10007)) * (i % 97 == 0 ? 8.0f : 1.0f);
}

static dcomm_comm *join(int rank, int n, procs_shared *s, const where *w)
{
    if (!w->threads || rank == 0) {
        ranks_settle(rank, n, w->place);
    }
    return ranks_join(rank, n, s, NULL);
}

static int same(int rank, int n, procs_shared *s, void *arg)
{
    static const char *const algos[] = {NULL, "coded_allgather", "coded_two_shot", "coded_hier"};
    static const char *const sparse[] = {NULL, "coded_allgather", "coded_sparse"};
    const size_t counts[] = {2048, 30011, 200003};
    dcomm_comm *comm = join(rank, n, s, arg);
    cudaStream_t stream;
    CUDA_OK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    for (int c = 0; c < SPECS; c++) {
        dcomm_codec *codec = NULL;
        RANKS_OK(dcomm_codec_create(specs[c], &codec));
        const bool all = c < DENSE || c >= PRODUCTS;
        for (int a = 0; a < (all ? 4 : c < SPLIT ? 3 : c < LINEAR ? 2 : 1); a++) {
            const char *algo = all ? algos[a] : sparse[a];
            size_t count = counts[(a + c) % 3];
            float *in = malloc(count * sizeof *in), *out = malloc(count * sizeof *in);
            float *want = malloc(count * sizeof *in), *device = NULL;
            dcomm_codec_report there = {0}, here = {0};
            dcomm_op op = (a + c) % 2 ? DCOMM_AVG : DCOMM_SUM;
            CUDA_OK(cudaMalloc((void **)&device, count * sizeof *in));
            for (size_t i = 0; i < count; i++) {
                in[i] = gradient(rank, i);
            }
            dcomm_coll_opts opts = {.codec = codec,
                                    .algo = algo,
                                    .codec_seed = 5,
                                    .codec_step = (uint64_t)(10 * c + a + 1),
                                    .codec_report = &here};
            dcomm_status host = dcomm_allreduce(comm, in, want, count, DCOMM_F32, op, &opts);
            opts.stream = a % 2 ? stream : NULL;
            opts.codec_report = &there;
            device_put(device, in, count * sizeof *in);
            dcomm_status status =
                dcomm_allreduce(comm, device, device, count, DCOMM_F32, op, &opts);
            CUDA_OK(cudaStreamSynchronize(stream));
            RANKS_OK(dcomm_comm_status(comm));
            PROCS_CHECK(status == host, "%s by %s: %s: %s", specs[c], algo,
                        dcomm_status_name(status), dcomm_last_error());
            CUDA_OK(cudaMemcpy(out, device, count * sizeof *in, cudaMemcpyDeviceToHost));
            for (size_t i = 0; i < count && host == DCOMM_OK; i++) {
                PROCS_CHECK(memcmp(&out[i], &want[i], sizeof *out) == 0,
                            "%s by %s, %zu elements: element %zu is %g, not %g", specs[c],
                            algo != NULL ? algo : "auto", count, i, (double)out[i],
                            (double)want[i]);
            }
            PROCS_CHECK(there.bytes == here.bytes && there.kept == here.kept &&
                            there.clipped == here.clipped && there.nonfinite == here.nonfinite,
                        "%s by %s: %zu bytes, %zu kept; in host memory %zu, %zu", specs[c],
                        algo != NULL ? algo : "auto", there.bytes, there.kept, here.bytes,
                        here.kept);
            device_free(cudaFree, device);
            free(in);
            free(out);
            free(want);
        }
        RANKS_OK(dcomm_codec_destroy(&codec));
    }
    CUDA_OK(cudaStreamDestroy(stream));
    return ranks_leave(&comm);
}

static void on(int n, where w, procs_fn fn)
{
    cr_assert_eq(device_run(n, w.threads, 60, fn, &w), 0, "%d ranks, %s%s", n,
                 ranks_place_name(w.place), w.threads ? ", threads" : "");
}

Test(device_coded, same_bits, .timeout = 180)
{
    on(2, (where){.place = RANKS_LOCAL}, same);
    on(3, (where){.place = RANKS_HOSTS}, same);
    on(4, (where){.place = RANKS_PAIRS}, same);
    on(3, (where){.threads = true}, same);
}

/* The calls refuse the same inputs of powersgd as in host memory: a number that is not finite
 * (first on rank 1), and sums of Q that overflow. */
static int refused(int rank, int n, procs_shared *s, void *arg)
{
    enum { COUNT = 5000, FIRST = 4321 };
    const bool nonfinite = *(bool *)arg;
    float *device = NULL, *host = malloc(COUNT * sizeof *host);
    dcomm_comm *comm = join(rank, n, s, &(where){.place = RANKS_LOCAL});
    dcomm_codec *codec = NULL;
    dcomm_codec_report report;
    RANKS_OK(dcomm_codec_create("powersgd", &codec));
    for (size_t i = 0; i < COUNT; i++) {
        host[i] = nonfinite ? gradient(rank, i) : 3e38f;
    }
    host[FIRST] = host[FIRST + 9] = nonfinite && rank == 1 ? NAN : 1;
    CUDA_OK(cudaMalloc((void **)&device, COUNT * sizeof *device));
    device_put(device, host, COUNT * sizeof *host);
    dcomm_coll_opts opts = {.codec = codec, .codec_report = &report, .timeout_s = 20};
    dcomm_status status =
        dcomm_allreduce(comm, DCOMM_IN_PLACE, device, COUNT, DCOMM_F32, DCOMM_SUM, &opts);
    if (!nonfinite) {
        PROCS_CHECK(status == DCOMM_ERR_RANGE, "%s", dcomm_status_name(status));
    } else {
        PROCS_CHECK(status == DCOMM_ERR_INVALID && strstr(dcomm_last_error(), "rank 1") != NULL,
                    "%s: %s", dcomm_status_name(status), dcomm_last_error());
    }
    if (nonfinite && rank == 1) {
        PROCS_CHECK(report.nonfinite == 2 && report.first_nonfinite == FIRST, "%zu, the first %zu",
                    report.nonfinite, report.first_nonfinite);
    }
    for (size_t i = 0; i < COUNT; i++) { /* the communicator still works */
        host[i] = gradient(rank, i);
    }
    device_put(device, host, COUNT * sizeof *host);
    RANKS_OK(dcomm_allreduce(comm, DCOMM_IN_PLACE, device, COUNT, DCOMM_F32, DCOMM_SUM, &opts));
    device_free(cudaFree, device);
    free(host);
    RANKS_OK(dcomm_codec_destroy(&codec));
    return ranks_leave(&comm);
}

Test(device_coded, products_refused, .timeout = 60)
{
    int ended[PROCS_MAX] = {0};
    for (int i = 0; i < 2; i++) {
        bool nonfinite = i == 0;
        procs_run(2, 30, refused, &nonfinite, ended);
        cr_assert(ended[0] == 0 && ended[1] == 0, "%d: %d, %d", i, ended[0], ended[1]);
    }
}

#ifdef CUDA_HOST_STAND_IN /* the stand-in counts copies */
/* A call copies less than a seventh of the bytes out of the device that an exact sum of f32 does,
 * also if elements are converted first. */
static int traffic(int rank, int n, procs_shared *s, void *arg)
{
    enum { COUNT = 1 << 20, KINDS = 7 };
    static const char *const texts[KINDS] = {
        NULL, "qsgd:bits=4", "qsgd:bits=4", "qsgd:bits=4", "powersgd", "topk:k=0.02", "powersgd"};
    static const dcomm_dtype dtypes[KINDS] = {DCOMM_F32, DCOMM_F32, DCOMM_BF16, DCOMM_F32,
                                              DCOMM_F32, DCOMM_F32, DCOMM_F32};
    uint64_t bytes[KINDS];
    dcomm_comm *comm = join(rank, n, s, arg);
    float *device = NULL;
    CUDA_OK(cudaMalloc((void **)&device, COUNT * sizeof *device));
    CUDA_OK(cudaMemset(device, 0, COUNT * sizeof *device));
    for (int c = 0; c < KINDS; c++) {
        cuda_host_counts before, after;
        dcomm_codec *codec = NULL;
        if (texts[c] != NULL) {
            RANKS_OK(dcomm_codec_create(texts[c], &codec));
        }
        dcomm_coll_opts opts = {.codec = codec,
                                .algo = c == 5   ? "coded_sparse"
                                        : c == 4 ? "coded_linear"
                                        : c      ? "coded_two_shot"
                                                 : "two_shot",
                                .premul = 0.5};
        cuda_host_get_counts(&before);
        RANKS_OK(dcomm_allreduce(comm, DCOMM_IN_PLACE, device, COUNT, dtypes[c],
                                 c < 3 ? DCOMM_SUM : DCOMM_PREMUL_SUM, &opts));
        cuda_host_get_counts(&after);
        bytes[c] = after.to_host.bytes - before.to_host.bytes;
        RANKS_OK(dcomm_codec_destroy(&codec));
    }
    for (int c = 1; c < KINDS; c++) {
        PROCS_CHECK(bytes[c] > 0 && bytes[c] * 7 < bytes[0], "%d: %lu and %lu bytes", c,
                    (unsigned long)bytes[0], (unsigned long)bytes[c]);
    }
    device_free(cudaFree, device);
    return ranks_leave(&comm);
}

Test(device_coded, traffic, .timeout = 60)
{
    on(2, (where){.place = RANKS_HOSTS}, traffic);
}
#endif

/* ---- other types, feedback, and ranks in host memory ---- */

typedef struct kind {
    const char *spec;
    const dcomm_feedback_opts *feedback; /* NULL: none */
    const char *algo;
    dcomm_dtype dtype;
    dcomm_op op;
    size_t count;
} kind;

static const dcomm_feedback_opts classic, dgc = {.variant = DCOMM_FEEDBACK_DGC, .clip = 1};

static const kind kinds[] = {
    {.spec = "powersgd", .algo = "coded_allgather", .dtype = DCOMM_F32, .count = 20000},
    {.spec = "powersgd:rank=4,turns=2",
     .feedback = &classic,
     .algo = "coded_two_shot",
     .dtype = DCOMM_F16,
     .op = DCOMM_AVG,
     .count = 20000},
    {.spec = "powersgd", .feedback = &classic, .dtype = DCOMM_F16, .count = 20000},
    {.spec = "powersgd:rank=3", .dtype = DCOMM_F64, .op = DCOMM_PREMUL_SUM, .count = 5001},
    {.spec = "topk:k=0.02", .feedback = &dgc, .dtype = DCOMM_F16, .count = 5000},
    {.spec = "topk:k=0.02",
     .feedback = &dgc,
     .algo = "coded_sparse",
     .dtype = DCOMM_F32,
     .count = 5000},
    {.spec = "bf16", .dtype = DCOMM_F16, .count = 5200000}, /* all slots */
    {.spec = "topk:k=0.01",
     .feedback = &classic,
     .algo = "coded_sparse",
     .dtype = DCOMM_F32,
     .count = 30000},
    {.spec = "topk:k=0.01", .algo = "coded_sparse", .dtype = DCOMM_F32, .count = 30000},
    {.spec = "qsgd", .dtype = DCOMM_BF16, .op = DCOMM_AVG, .count = 5001},
    {.spec = "qsgd:bits=8", .feedback = &classic, .dtype = DCOMM_F16, .count = 5001},
    {.spec = "fp8", .dtype = DCOMM_F64, .op = DCOMM_PREMUL_SUM, .count = 5001},
};

static void fill(const kind *k, int rank, int step, void *to)
{
    for (size_t i = 0; i < k->count; i++) {
        if (k->dtype == DCOMM_F64) {
            ((double *)to)[i] = (double)gradient(rank + 7 * step, i);
        } else if (k->dtype == DCOMM_F32) {
            ((float *)to)[i] = gradient(rank + 7 * step, i);
        } else {
            ((uint16_t *)to)[i] = (uint16_t)(0x2c00 + (i * 5 + (size_t)(rank + step) * 11) % 4096);
        }
    }
}

/* Run steps in host memory, then the same steps on a device, except on rank `here`, and
 * compare. */
static void steps_of(dcomm_comm *comm, const kind *k, int here, void *stream)
{
    const size_t bytes = k->count * dcomm_dtype_size(k->dtype);
    const int rank = dcomm_comm_rank(comm);
    dcomm_codec *codec = NULL;
    dcomm_feedback *fb[2] = {NULL, NULL};
    char *in = malloc(bytes), *want = malloc(bytes), *out = malloc(bytes), *there = NULL;
    RANKS_OK(dcomm_codec_create(k->spec, &codec));
    if (rank != here) {
        CUDA_OK(cudaMalloc((void **)&there, 2 * bytes));
    } else {
        there = malloc(2 * bytes);
    }
    for (int i = 0; i < 2 && k->feedback != NULL; i++) {
        RANKS_OK(dcomm_feedback_create(codec, k->count, k->feedback, &fb[i]));
    }
    for (int step = 0; step < 3; step++) {
        dcomm_codec_report report[2] = {{0}, {0}};
        char *sum = step == 1 ? there : there + bytes; /* step 1 is in place */
        dcomm_coll_opts opts = {.algo = k->algo,
                                .codec = codec,
                                .codec_seed = 5,
                                .codec_step = (uint64_t)step + 1,
                                .premul = 0.5 + rank,
                                .feedback = fb[0],
                                .codec_report = &report[0]};
        fill(k, rank, step, in);
        RANKS_OK(dcomm_allreduce(comm, in, want, k->count, k->dtype, k->op, &opts));
        opts.feedback = fb[1];
        opts.codec_report = &report[1];
        opts.stream = step > 0 ? stream : NULL;
        device_put(there, in, bytes);
        RANKS_OK(dcomm_allreduce(comm, there, sum, k->count, k->dtype, k->op, &opts));
        CUDA_OK(cudaStreamSynchronize(stream));
        RANKS_OK(dcomm_comm_status(comm));
        CUDA_OK(cudaMemcpy(out, sum, bytes, cudaMemcpyDefault));
        PROCS_CHECK(memcmp(out, want, bytes) == 0, "%s of %s, step %d: other bits", k->spec,
                    dcomm_dtype_name(k->dtype), step);
        PROCS_CHECK(report[0].bytes == report[1].bytes, "%zu and %zu bytes", report[0].bytes,
                    report[1].bytes);
    }
    if (rank != here) {
        device_free(cudaFree, there);
    } else {
        free(there);
    }
    free(in);
    free(want);
    free(out);
    RANKS_OK(dcomm_feedback_destroy(&fb[0]));
    RANKS_OK(dcomm_feedback_destroy(&fb[1]));
    RANKS_OK(dcomm_codec_destroy(&codec));
}

static int mixed(int rank, int n, procs_shared *s, void *arg)
{
    dcomm_comm *comm = join(rank, n, s, arg);
    cudaStream_t stream;
    CUDA_OK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        if (kinds[i].count > 1000000 && (n > 2 || PROCS_THIN > 1) && !test_full()) {
            continue;
        }
        steps_of(comm, &kinds[i], i % 2 ? (int)i % n : -1, stream);
    }
    CUDA_OK(cudaStreamDestroy(stream));
    return ranks_leave(&comm);
}

Test(device_coded, some_in_host_memory, .timeout = 180)
{
    on(2, (where){.place = RANKS_LOCAL}, mixed);
    on(3, (where){.place = RANKS_HOSTS}, mixed);
    on(3, (where){.threads = true}, mixed);
}

/* An automatic choice by ranks that do not know where the other ranks' buffers are. */
static int chosen(int rank, int n, procs_shared *s, void *arg)
{
    dcomm_comm *comm = join(rank, n, s, arg);
    const kind k = {
        .spec = "topk:k=0.01", .feedback = &classic, .dtype = DCOMM_F32, .count = 100000};
    dcomm_codec *codec = NULL, *automatic = NULL;
    dcomm_feedback *fb = NULL;
    dcomm_tuning slow;
    cudaStream_t stream;
    const char *algo = NULL;
    CUDA_OK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    RANKS_OK(dcomm_tuning_uniform(1, 1000, 0, &slow));
    RANKS_OK(dcomm_comm_tune(comm, &slow));
    RANKS_OK(dcomm_codec_create(k.spec, &codec));
    RANKS_OK(dcomm_feedback_create(codec, k.count, NULL, &fb));
    dcomm_coll_opts opts = {.feedback = fb};
    RANKS_OK(explained_algo(comm, DCOMM_COLL_ALLREDUCE, k.count, &opts, &algo));
    PROCS_CHECK(strcmp(algo, "coded_sparse") == 0, "%s", algo);
    steps_of(comm, &k, 1, stream);
    steps_of(comm, &k, -1, stream);
    opts.device = true;
    RANKS_OK(explained_algo(comm, DCOMM_COLL_ALLREDUCE, k.count, &opts, &algo));
    PROCS_CHECK(strcmp(algo, "coded_sparse") == 0, "%s", algo);
    /* "auto" compresses all dtypes given to it, including bf16. */
    RANKS_OK(dcomm_codec_create("auto", &automatic));
    const dcomm_codec *taken = NULL;
    RANKS_OK(dcomm_codec_decide(comm, automatic, k.count, DCOMM_BF16, false, &taken));
    PROCS_CHECK(taken != NULL, "the slowest network is worth no codec");
    steps_of(comm, &(kind){.spec = "auto", .dtype = DCOMM_BF16, .count = k.count}, 1, stream);
    RANKS_OK(dcomm_codec_destroy(&automatic));
    RANKS_OK(dcomm_feedback_destroy(&fb));
    RANKS_OK(dcomm_codec_destroy(&codec));
    CUDA_OK(cudaStreamDestroy(stream));
    return ranks_leave(&comm);
}

Test(device_coded, chosen_without_a_promise, .timeout = 60)
{
    on(4, (where){.place = RANKS_LOCAL}, chosen);
}

/* With opts.device "auto" uses the times of kernels, and keeps a separate decision. */
static int judged(int rank, int n, procs_shared *s, void *arg)
{
    enum { COUNT = 100000 };
    dcomm_comm *comm = join(rank, n, s, arg);
    dcomm_codec *automatic = NULL;
    const dcomm_codec *taken = NULL;
    dcomm_verdict verdict;
    dcomm_tuning slow;
    float *device = NULL;
    RANKS_OK(dcomm_tuning_uniform(1, 1000, 0, &slow));
    RANKS_OK(dcomm_comm_tune(comm, &slow));
    RANKS_OK(dcomm_codec_create("auto:threshold:k=0.05", &automatic));
#ifdef CUDA_HOST_STAND_IN /* the stand-in can run out of memory */
    cuda_host_faults faults = {.fail_malloc = 1};
    cuda_host_set_faults(&faults);
    PROCS_TRUE(dcomm_codec_measure(comm, automatic, COUNT, true, &verdict) < 0);
    faults.fail_malloc = 0;
    cuda_host_set_faults(&faults);
    RANKS_OK(dcomm_codec_measure(comm, automatic, COUNT, false, &verdict));
    PROCS_TRUE(verdict.device == -1);
#endif
    RANKS_OK(dcomm_codec_measure(comm, automatic, COUNT, true, &verdict));
    PROCS_CHECK(verdict.encode_seconds > 0 && verdict.decode_seconds > 0 && verdict.bits > 0.5 &&
                    verdict.bits < 8 && verdict.device >= 0,
                "%s", verdict.text);
    CUDA_OK(cudaMalloc((void **)&device, COUNT * sizeof *device));
    CUDA_OK(cudaMemset(device, 0, COUNT * sizeof *device));
    dcomm_coll_opts opts = {.codec = automatic, .device = true};
    dcomm_request *request = NULL;
    RANKS_OK(dcomm_codec_decide(comm, automatic, COUNT, DCOMM_F32, false, &taken));
    ranks_refused(dcomm_iallreduce(comm, DCOMM_IN_PLACE, device, COUNT, DCOMM_F32, DCOMM_SUM, &opts,
                                   &request),
                  DCOMM_ERR_INVALID, "not decided");
    RANKS_OK(dcomm_codec_decide(comm, automatic, COUNT, DCOMM_F32, true, &taken));
    PROCS_TRUE(taken != NULL);
    RANKS_OK(dcomm_iallreduce(comm, DCOMM_IN_PLACE, device, COUNT, DCOMM_F32, DCOMM_SUM, &opts,
                              &request));
    RANKS_OK(dcomm_wait(&request));
    device_free(cudaFree, device);
    RANKS_OK(dcomm_codec_destroy(&automatic));
    return ranks_leave(&comm);
}

Test(device_coded, judged_there, .timeout = 60)
{
    on(2, (where){.place = RANKS_LOCAL}, judged);
}
