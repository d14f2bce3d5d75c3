/* test_device_coded.c - compressed all-reduce of device memory: the bits and the report are those
 * of the same call in host memory, only encodings leave the device, and what has no kernels is
 * refused. */
#define _GNU_SOURCE
#include "device_ranks.h"
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
                                    "randk:k=0.1,scale=none"};
enum { SPECS = sizeof specs / sizeof *specs, DENSE = 7, LINEAR = 10 };

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
    static const char *const algos[] = {NULL, "coded_allgather", "coded_two_shot", "coded_ring",
                                        "coded_hier"};
    const size_t counts[] = {2048, 30011, 200003};
    dcomm_comm *comm = join(rank, n, s, arg);
    cudaStream_t stream;
    CUDA_OK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    for (int c = 0; c < SPECS; c++) {
        dcomm_codec *codec = NULL;
        RANKS_OK(dcomm_codec_create(specs[c], &codec));
        for (int a = 0; a < (c < DENSE ? 5 : c < LINEAR ? 2 : 1); a++) {
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
                                    .algo = algos[a],
                                    .codec_seed = 5,
                                    .codec_step = (uint64_t)(10 * c + a + 1),
                                    .codec_report = &here};
            dcomm_status host = dcomm_allreduce(comm, in, want, count, DCOMM_F32, op, &opts);
            opts.stream = a % 2 ? stream : NULL;
            opts.codec_report = &there;
            CUDA_OK(cudaMemcpy(device, in, count * sizeof *in, cudaMemcpyHostToDevice));
            dcomm_status status =
                dcomm_allreduce(comm, device, device, count, DCOMM_F32, op, &opts);
            CUDA_OK(cudaStreamSynchronize(stream));
            RANKS_OK(dcomm_comm_status(comm));
            PROCS_CHECK(status == host, "%s by %s: %s: %s", specs[c], algos[a],
                        dcomm_status_name(status), dcomm_last_error());
            CUDA_OK(cudaMemcpy(out, device, count * sizeof *in, cudaMemcpyDeviceToHost));
            for (size_t i = 0; i < count && host == DCOMM_OK; i++) {
                PROCS_CHECK(memcmp(&out[i], &want[i], sizeof *out) == 0,
                            "%s by %s, %zu elements: element %zu is %g, not %g", specs[c],
                            algos[a] != NULL ? algos[a] : "auto", count, i, (double)out[i],
                            (double)want[i]);
            }
            PROCS_CHECK(there.bytes == here.bytes && there.kept == here.kept &&
                            there.clipped == here.clipped && there.nonfinite == here.nonfinite,
                        "%s by %s: %zu bytes, %zu kept; in host memory %zu, %zu", specs[c],
                        algos[a] != NULL ? algos[a] : "auto", there.bytes, there.kept, here.bytes,
                        here.kept);
            CUDA_OK(cudaFree(device));
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

#ifdef CUDA_HOST_STAND_IN /* which counts */
/* What comes out of the device is a seventh of what an exact sum takes out. */
static int traffic(int rank, int n, procs_shared *s, void *arg)
{
    enum { COUNT = 1 << 20 };
    static const char *const texts[] = {NULL, "qsgd:bits=4"};
    uint64_t bytes[2];
    dcomm_comm *comm = join(rank, n, s, arg);
    float *device = NULL;
    CUDA_OK(cudaMalloc((void **)&device, COUNT * sizeof *device));
    CUDA_OK(cudaMemset(device, 0, COUNT * sizeof *device));
    for (int c = 0; c < 2; c++) {
        cuda_host_counts before, after;
        dcomm_codec *codec = NULL;
        if (texts[c] != NULL) {
            RANKS_OK(dcomm_codec_create(texts[c], &codec));
        }
        dcomm_coll_opts opts = {.codec = codec, .algo = c ? "coded_two_shot" : "two_shot"};
        cuda_host_get_counts(&before);
        RANKS_OK(dcomm_allreduce(comm, DCOMM_IN_PLACE, device, COUNT, DCOMM_F32, DCOMM_SUM, &opts));
        cuda_host_get_counts(&after);
        bytes[c] = after.to_host.bytes - before.to_host.bytes;
        RANKS_OK(dcomm_codec_destroy(&codec));
    }
    PROCS_CHECK(bytes[1] > 0 && bytes[1] * 7 < bytes[0], "%lu and %lu bytes",
                (unsigned long)bytes[0], (unsigned long)bytes[1]);
    CUDA_OK(cudaFree(device));
    return ranks_leave(&comm);
}

Test(device_coded, traffic, .timeout = 60)
{
    on(2, (where){.place = RANKS_HOSTS}, traffic);
}
#endif

static int refused(int rank, int n, procs_shared *s, void *arg)
{
    enum { COUNT = 5000 };
    dcomm_comm *comm = join(rank, n, s, arg);
    dcomm_codec *powersgd = NULL, *qsgd = NULL, *topk = NULL;
    dcomm_feedback *clipped = NULL, *sparse = NULL;
    float *device = NULL;
    CUDA_OK(cudaMalloc((void **)&device, COUNT * sizeof *device));
    CUDA_OK(cudaMemset(device, 0, COUNT * sizeof *device));
    RANKS_OK(dcomm_codec_create("powersgd", &powersgd));
    RANKS_OK(dcomm_codec_create("qsgd", &qsgd));
    RANKS_OK(dcomm_codec_create("topk:k=0.01", &topk));
    const dcomm_feedback_opts clips = {.variant = DCOMM_FEEDBACK_DGC, .clip = 1};
    RANKS_OK(dcomm_feedback_create(topk, COUNT, &clips, &clipped));
    RANKS_OK(dcomm_feedback_create(topk, COUNT, NULL, &sparse));
    const struct {
        dcomm_coll_opts opts;
        dcomm_dtype dtype;
        const char *word;
    } calls[] = {{{.codec = powersgd}, DCOMM_F32, "no kernels"},
                 {{.feedback = clipped}, DCOMM_F32, "no clipping"},
                 {{.feedback = sparse, .algo = "coded_sparse"}, DCOMM_F32, "no kernels"},
                 {{.codec = qsgd}, DCOMM_BF16, "f32 sums"}};
    for (size_t i = 0; i < sizeof calls / sizeof *calls; i++) {
        dcomm_status status = dcomm_allreduce(comm, DCOMM_IN_PLACE, device, COUNT, calls[i].dtype,
                                              DCOMM_SUM, &calls[i].opts);
        PROCS_CHECK(status == DCOMM_ERR_UNSUPPORTED &&
                        strstr(dcomm_last_error(), calls[i].word) != NULL,
                    "call %zu: %s: %s", i, dcomm_status_name(status), dcomm_last_error());
    }
    RANKS_OK(dcomm_barrier(comm, NULL));
    RANKS_OK(dcomm_feedback_destroy(&clipped));
    RANKS_OK(dcomm_feedback_destroy(&sparse));
    RANKS_OK(dcomm_codec_destroy(&topk));
    RANKS_OK(dcomm_codec_destroy(&powersgd));
    RANKS_OK(dcomm_codec_destroy(&qsgd));
    CUDA_OK(cudaFree(device));
    return ranks_leave(&comm);
}

Test(device_coded, refused, .timeout = 60)
{
    on(2, (where){.place = RANKS_LOCAL}, refused);
}
