/* test_device_bucket_errors.c - gradient buckets in device memory: refusals, and steps that fail
 * while streams are still delayed. */
#define _GNU_SOURCE
#include "device_buckets.h"

#include <criterion/criterion.h>

static void not_made(dcomm_comm *comm, const dcomm_bucket_param *params, size_t n,
                     const dcomm_buckets_opts *opts, dcomm_status want, const char *word)
{
    dcomm_buckets *b = NULL;
    ranks_refused(dcomm_buckets_create(comm, params, n, opts, &b), want, word);
    PROCS_TRUE(b == NULL);
}

static int refusals(int rank, int n, procs_shared *s, void *arg)
{
    enum { COUNT = 5000 };
    dcomm_comm *comm = device_join(rank, n, s, *(bool *)arg);
    float *device = (float *)(void *)device_memory(0, COUNT * 2 * sizeof(float)), *host;
    host = (float *)(void *)device_memory(-1, COUNT * 2 * sizeof(float));
    dcomm_bucket_param params[] = {
        {.name = "host", .grad = host, .count = COUNT, .dtype = DCOMM_F32},
        {.name = "there", .grad = device, .count = COUNT, .dtype = DCOMM_F32}};
    dcomm_buckets_opts opts = {0};
    params[1].grad = (char *)device + 2;
    not_made(comm, params, 2, NULL, DCOMM_ERR_INVALID, "not aligned to the 4 bytes");
    params[1].grad = rank == 0 ? host + COUNT : device;
    not_made(comm, params, 2, NULL, n > 1 ? DCOMM_ERR_MISMATCH : DCOMM_OK,
             "of 5000 f32 with no codec on the rank's device no. 1");
    params[1].grad = device;
    params[0].value = host + COUNT;
    params[1].value = host + COUNT;
    opts = (dcomm_buckets_opts){.sharded = true};
    not_made(comm, params, 2, &opts, DCOMM_ERR_INVALID, "\"there\": its gradient and its value");
    opts = (dcomm_buckets_opts){.coll.stream = cudaStreamLegacy};
    not_made(comm, params, 2, &opts, DCOMM_ERR_INVALID, "a stream");

    dcomm_buckets *b = NULL;
    cudaStream_t stream;
    cudaGraph_t graph;
    RANKS_OK(dcomm_buckets_create(comm, params, 2, NULL, &b));
    CUDA_OK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    ranks_refused(dcomm_param_mark_ready(b, 0, stream), DCOMM_ERR_INVALID,
                  "parameter 0, \"host\", lies in host memory");
    int devices = 0;
    CUDA_OK(cudaGetDeviceCount(&devices));
    if (devices > 1) { /* a stream of another device */
        cudaStream_t other;
        CUDA_OK(cudaSetDevice(1));
        CUDA_OK(cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking));
        ranks_refused(dcomm_param_mark_ready(b, 1, other), DCOMM_ERR_SYSTEM, "the caller's stream");
        CUDA_OK(cudaStreamDestroy(other));
        CUDA_OK(cudaSetDevice(0));
    }
    CUDA_OK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    ranks_refused(dcomm_param_mark_ready(b, 1, stream), DCOMM_ERR_UNSUPPORTED,
                  "captured into a graph");
    CUDA_OK(cudaStreamEndCapture(stream, &graph));
    CUDA_OK(cudaGraphDestroy(graph));
    /* None of these calls has marked anything. */
    for (size_t i = 0; i < COUNT; i++) {
        host[i] = (float)rank;
    }
    CUDA_OK(cudaMemcpyAsync(device, host, COUNT * sizeof *host, cudaMemcpyHostToDevice, stream));
    RANKS_OK(dcomm_param_mark_ready(b, 1, stream));
    RANKS_OK(dcomm_param_mark_ready(b, 0, NULL));
    RANKS_OK(dcomm_buckets_wait(b));
    PROCS_TRUE(host[COUNT - 1] == (float)(n - 1) / 2);
    CUDA_OK(cudaMemcpy(host, device, COUNT * sizeof *host, cudaMemcpyDeviceToHost));
    PROCS_TRUE(host[0] == (float)(n - 1) / 2 && host[COUNT - 1] == (float)(n - 1) / 2);
    RANKS_OK(dcomm_buckets_destroy(&b));
    CUDA_OK(cudaStreamDestroy(stream));
    device_memory_free(0, (unsigned char *)device);
    free(host);
    return ranks_leave(&comm);
}

Test(device_bucket_errors, refusals, .timeout = 90)
{
    device_on(2, 40, refusals);
}

/* Rank 1 marks a parameter twice while all ranks' streams are delayed. After destroying the
 * buckets a rank may free the gradients and make new ones. */
static int failed(int rank, int n, procs_shared *s, void *arg)
{
    dcomm_comm *comm = device_join(rank, n, s, *(bool *)arg);
    for (int round = 0; round < 3; round++) {
        device_set *d = device_set_new(comm, 10, 3000, false, HOST_TOO, (uint64_t)round);
        dcomm_buckets_opts opts = {.bucket_bytes = 8000};
        device_slow slow = {.ms = 60};
        cudaStream_t stream = d->streams[0][0];
        dcomm_status status = DCOMM_OK;
        set_make(&d->t, &opts);
        RANKS_OK(dcomm_barrier(comm, NULL)); /* else the others' creation may fail */
        CUDA_OK(cudaLaunchHostFunc(stream, device_slow_work, &slow));
        for (size_t i = d->t.n; i-- > 0 && status == DCOMM_OK;) {
            device_set_compute(d, i, 0, false, stream);
            status = dcomm_param_mark_ready(d->t.b, i, d->device[i] < 0 ? NULL : stream);
            if (rank == 1 && i == 3 + (size_t)round && status == DCOMM_OK) {
                status = dcomm_param_mark_ready(d->t.b, i, NULL);
            }
        }
        if (round != 1) {
            status = dcomm_buckets_wait(d->t.b);
            PROCS_CHECK(status == (rank == 1 ? DCOMM_ERR_INVALID : DCOMM_ERR_ABORTED), "%s",
                        dcomm_last_error());
            PROCS_TRUE(strstr(dcomm_last_error(), "was marked twice") != NULL);
        }
        device_set_end(d); /* round 1: destroyed in mid-step */
        PROCS_TRUE(atomic_load(&slow.over));
        RANKS_OK(dcomm_barrier(comm, NULL));
    }
    device_set *d = device_set_new(comm, 10, 3000, false, HOST_TOO, 9);
    uint64_t seed = 1;
    dcomm_buckets_opts opts = {.sum = true};
    set_make(&d->t, &opts);
    device_set_backward(d, 1, &seed);
    RANKS_OK(dcomm_buckets_wait(d->t.b));
    device_set_compare_all(d, 1);
    device_set_end(d);
    return ranks_leave(&comm);
}

Test(device_bucket_errors, failed, .timeout = 120)
{
    device_on(2, 40, failed);
    device_on(3, 40, failed);
}
