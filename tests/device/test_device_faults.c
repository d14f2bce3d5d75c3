/* test_device_faults.c - copies that are late, reordered between queues, or fail, on the host
 * stand-in for CUDA. Every rank gets the right result or an error, and no stream hangs. */
#define _GNU_SOURCE
#include "device_sums.h"

#include <criterion/criterion.h>

/* The first is compressed, here without loss; the last has residuals. */
static const char *const algos[] = {
    "coded_sparse", "ring", "two_shot", "one_shot", "tree", "halving_doubling", "coded_allgather"};
enum { ALGOS = sizeof algos / sizeof *algos };

/* ---- late and out of order ---- */

static int late(int rank, int n, procs_shared *s, void *arg)
{
    ranks_settle(rank, n, *(ranks_place *)arg);
    dcomm_comm *comm = ranks_join(rank, n, s, NULL);
    cudaStream_t stream;
    CUDA_OK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    device_sums_late(comm, algos, ALGOS, 0.0005, (device_sum){.stream = stream});
    CUDA_OK(cudaStreamDestroy(stream));
    return ranks_leave(&comm);
}

Test(device_faults, late, .timeout = 120)
{
    int ended[PROCS_MAX] = {0};
    const ranks_place places[] = {RANKS_LOCAL, RANKS_HOSTS};
    for (int p = 0; p < 2; p++) {
        for (int n = 2; n <= 4; n += 2) {
            if (!test_full() && n != 2 + 2 * p) {
                continue;
            }
            ranks_place place = places[p];
            cr_assert_eq(procs_run(n, 50, late, &place, ended), 0, "%d ranks, %s", n,
                         ranks_place_name(place));
        }
    }
}

/* ---- failing ---- */

/* The nth copy, or kernel, fails on rank 0. */
typedef struct failing {
    unsigned nth;
    bool kernel;
    const char *algo;
} failing;

static int fails(int rank, int n, procs_shared *s, void *arg)
{
    const failing *f = arg;
    ranks_settle(rank, n, RANKS_LOCAL);
    dcomm_comm *comm = ranks_join(rank, n, s, NULL);
    cudaStream_t stream;
    CUDA_OK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    cuda_host_faults faults = {.fail_copy = rank == 0 && !f->kernel ? f->nth : 0,
                               .fail_kernel = rank == 0 && f->kernel ? f->nth : 0};
    device_sum sum = {.algo = f->algo, .stream = stream, .faults = rank == 0 ? &faults : NULL};
    dcomm_status status = device_sum_run(comm, &sum);
    PROCS_CHECK(sum.wrong == 0, "%s, %s %u: %zu elements are wrong", f->algo,
                f->kernel ? "kernel" : "copy", f->nth, sum.wrong);
    if (status == DCOMM_OK) { /* another rank may still see the failure */
        status = dcomm_barrier(comm, NULL);
    }
    PROCS_CHECK(status == DCOMM_OK || strstr(dcomm_comm_error(comm), "device 0") != NULL,
                "%s, %s %u: %s", f->algo, f->kernel ? "kernel" : "copy", f->nth,
                dcomm_comm_error(comm));
    CUDA_OK(cudaStreamDestroy(stream));
    int left = ranks_leave(&comm);
    return left != 0 ? left : status == DCOMM_OK ? 10 : 20;
}

/* Count the runs in which the operation fails. It must fail on all ranks or on none. */
static unsigned failures_of(const char *algo, bool kernel, unsigned most)
{
    const bool all = test_full();
    unsigned failures = 0;
    int ended[PROCS_MAX] = {0};
    for (unsigned nth = 1; nth <= most; nth += !all ? nth : nth < 6 ? 1 : 6) {
        failing f = {nth, kernel, algo};
        const char *what = kernel ? "kernel" : "copy";
        procs_run(3, 40, fails, &f, ended);
        cr_assert(ended[0] == 10 || ended[0] == 20, "%s, %s %u: %d", algo, what, nth, ended[0]);
        for (int r = 1; r < 3; r++) {
            cr_assert_eq(ended[r], ended[0], "%s, %s %u: rank %d %d, rank 0 %d", algo, what, nth, r,
                         ended[r], ended[0]);
        }
        failures += ended[0] == 20;
    }
    return failures;
}

Test(device_faults, failing_copies, .timeout = 180)
{
    for (int a = 0; a < 4; a += test_full() ? 1 : 2) {
        unsigned failures = failures_of(algos[a], false, 30);
        cr_assert_gt(failures, test_full() ? 5 : 2, "%s has failed %u times", algos[a], failures);
    }
}

Test(device_faults, failing_kernels, .timeout = 120)
{
    const char *const by[] = {"coded_two_shot", "ring", "two_shot", "one_shot"};
    for (int a = 0; a < 4; a += test_full() ? 1 : 2) {
        unsigned failures = failures_of(by[a], true, 3);
        cr_assert_gt(failures, 0, "%s has failed %u times", by[a], failures);
    }
}

/* Earlier work on rank 0's stream has failed. The communicator must fail too, although the
 * operands are in host memory, which the failed copy does not touch. */
static int failed_before(int rank, int n, procs_shared *s, void *arg)
{
    static const cuda_host_faults none;
    cuda_host_faults faults = {.delay_s = 0.1, .fail_copy = rank == 0 ? 1 : 0};
    ranks_settle(rank, n, RANKS_LOCAL);
    dcomm_comm *comm = ranks_join(rank, n, s, NULL);
    cudaStream_t stream;
    void *device = NULL;
    float x[16] = {1};
    (void)arg;
    CUDA_OK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    CUDA_OK(cudaMalloc(&device, sizeof x));
    dcomm_coll_opts opts = {.stream = stream, .timeout_s = 20};
    RANKS_OK(dcomm_allreduce(comm, DCOMM_IN_PLACE, x, 16, DCOMM_F32, DCOMM_SUM, &opts));
    CUDA_OK(cudaStreamSynchronize(stream));
    cuda_host_set_faults(&faults);
    CUDA_OK(cudaMemsetAsync(device, 0, sizeof x, stream));
    CUDA_OK(cudaMemcpyAsync(device, device, sizeof x, cudaMemcpyDeviceToDevice, stream));
    RANKS_OK(dcomm_allreduce(comm, DCOMM_IN_PLACE, x, 16, DCOMM_F32, DCOMM_SUM, &opts));
    double until = procs_now() + 20;
    while (dcomm_comm_status(comm) == DCOMM_OK && procs_now() < until) {
        sched_yield();
    }
    PROCS_CHECK(dcomm_comm_status(comm) == DCOMM_ERR_SYSTEM, "%s",
                dcomm_status_name(dcomm_comm_status(comm)));
    PROCS_CHECK(strstr(dcomm_comm_error(comm), "what opts.stream held before it has failed") !=
                    NULL,
                "%s", dcomm_comm_error(comm));
    (void)cudaStreamSynchronize(stream);
    cuda_host_set_faults(&none);
    device_free(cudaFree, device);
    CUDA_OK(cudaStreamDestroy(stream));
    return ranks_leave(&comm);
}

Test(device_faults, failed_before, .timeout = 60)
{
    int ended[PROCS_MAX] = {0};
    cr_assert_eq(procs_run(2, 40, failed_before, NULL, ended), 0);
}

/* A step of buckets with a scaler on device 1, in which rank 0's nth kernel fails: one that checks
 * a gradient, sums, or checks the result and unscales it. The error names the device. */
static int step_fails(int rank, int n, procs_shared *s, void *arg)
{
    enum { ELEMENTS = 5000 };
    static const cuda_host_faults none;
    const cuda_host_faults faults = {.fail_kernel = *(unsigned *)arg};
    ranks_settle(rank, n, RANKS_LOCAL);
    dcomm_comm *comm = ranks_join(rank, n, s, NULL);
    dcomm_bucket_param param = {.name = "there", .count = ELEMENTS, .dtype = DCOMM_F32};
    const dcomm_scaler_opts how = {.scale = 8};
    dcomm_buckets *b = NULL;
    dcomm_scaler *scaler = NULL;
    dcomm_scaler_verdict verdict;
    CUDA_OK(cudaSetDevice(1));
    CUDA_OK(cudaMalloc(&param.grad, ELEMENTS * sizeof(float)));
    CUDA_OK(cudaMemset(param.grad, 0, ELEMENTS * sizeof(float)));
    CUDA_OK(cudaDeviceSynchronize());
    CUDA_OK(cudaSetDevice(0));
    RANKS_OK(dcomm_buckets_create(comm, &param, 1, NULL, &b));
    RANKS_OK(dcomm_scaler_create(b, &how, &scaler));
    RANKS_OK(dcomm_barrier(comm, NULL)); /* an error may not overtake the scaler's creation */
    if (rank == 0) {
        cuda_host_set_faults(&faults);
    }
    dcomm_status status = DCOMM_OK;
    for (int step = 0; step < 2 && status == DCOMM_OK; step++) { /* others fail in the next */
        status = dcomm_param_mark_ready(b, 0, NULL);
        status = status < 0 ? status : dcomm_buckets_wait(b);
        status = status < 0 ? status : dcomm_scaler_step(scaler, &verdict);
        cuda_host_set_faults(&none);
    }
    PROCS_CHECK(status == DCOMM_OK || strstr(dcomm_last_error(), "device 1") != NULL,
                "kernel %u, rank %d: %s", faults.fail_kernel, rank, dcomm_last_error());
    (void)dcomm_scaler_destroy(&scaler);
    (void)dcomm_buckets_destroy(&b);
    device_free(cudaFree, param.grad);
    int left = ranks_leave(&comm);
    return left != 0 ? left : status == DCOMM_OK ? 10 : 20;
}

Test(device_faults, steps_of_buckets, .timeout = 120)
{
    unsigned failures = 0;
    int ended[PROCS_MAX] = {0};
    for (unsigned nth = 1; nth <= 10; nth++) {
        procs_run(2, 40, step_fails, &nth, ended);
        cr_assert((ended[0] == 10 || ended[0] == 20) && ended[1] == ended[0], "kernel %u: %d, %d",
                  nth, ended[0], ended[1]);
        failures += ended[0] == 20;
    }
    cr_assert(failures >= 3 && failures < 10, "%u have failed", failures);
}

/* Scratch that cannot be allocated is an error of the call, or of all ranks. */
static int no_memory(int rank, int n, procs_shared *s, void *arg)
{
    ranks_settle(rank, n, RANKS_LOCAL);
    dcomm_comm *comm = ranks_join(rank, n, s, NULL);
    cudaStream_t stream;
    CUDA_OK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    cuda_host_faults faults = {.fail_malloc = rank == 0 ? 1 : 0};
    device_sum sum = {.algo = "ring", .stream = stream};
    (void)arg;
    dcomm_status status = device_sum_run(comm, &sum);
    PROCS_CHECK(status == DCOMM_OK && sum.wrong == 0, "%s", dcomm_comm_error(comm));
    sum.salt = 1;
    sum.faults = rank == 0 ? &faults : NULL;
    status = device_sum_run(comm, &sum);
    PROCS_CHECK(status == DCOMM_ERR_NO_MEMORY, "%s: %s", dcomm_status_name(status),
                dcomm_comm_error(comm));
    CUDA_OK(cudaStreamDestroy(stream));
    return ranks_leave(&comm);
}

Test(device_faults, no_memory, .timeout = 60)
{
    int ended[PROCS_MAX] = {0};
    cr_assert_eq(procs_run(2, 30, no_memory, NULL, ended), 0);
}
