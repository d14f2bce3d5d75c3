/* test_device_order.c - operations in the order of streams: slow work before and after, many of
 * them outstanding, on several streams, in groups. Ranks rely on the progress thread, except where
 * a test says otherwise. */
#define _GNU_SOURCE
#include "device_streams.h"
#include "slow_kernel.h"

/* ---- order ---- */

/* The call returns while earlier work on the stream is under way, unless no stream may wait for a
 * rank. It reads the result of that work, and later work sees the sum. */
static int between(int rank, int n, procs_shared *s, void *arg)
{
    enum { COUNT = 300000 };
    static const char *const algos[] = {"ring", "two_shot", NULL};
    dcomm_comm *comm = join(rank, n, s, arg);
    cudaStream_t stream = stream_make();
    float *device = device_values(COUNT), *out = device_pinned(COUNT * sizeof *out);
    for (int round = 0; round < (test_full() ? 6 : 3); round++) {
        float *in = host_values(COUNT, rank, round);
        slow before = {.ms = round % 2 == rank % 2 ? 150 : 5}, after = {.ms = 20};
        dcomm_coll_opts opts = {.stream = stream, .algo = algos[round % 3]};
        CUDA_OK(cudaLaunchHostFunc(stream, slow_work, &before));
        CUDA_OK(cudaMemcpyAsync(device, in, COUNT * sizeof *in, cudaMemcpyHostToDevice, stream));
        RANKS_OK(dcomm_allreduce(comm, device, device, COUNT, DCOMM_F32, DCOMM_SUM, &opts));
        PROCS_CHECK(before.ms < 100 || atomic_load(&before.over) == 0 || device_lazy(),
                    "the call has waited");
        CUDA_OK(cudaLaunchHostFunc(stream, slow_work, &after));
        CUDA_OK(cudaMemcpyAsync(out, device, COUNT * sizeof *in, cudaMemcpyDeviceToHost, stream));
        CUDA_OK(cudaMemsetAsync(device, 0xff, COUNT * sizeof *in, stream));
        CUDA_OK(cudaStreamSynchronize(stream));
        PROCS_TRUE(atomic_load(&before.over) && atomic_load(&after.over));
        expect_sum(out, COUNT, n, round);
        device_free(cudaFreeHost, in);
    }
    RANKS_OK(dcomm_comm_status(comm));
    device_free(cudaFree, device);
    CUDA_OK(cudaStreamDestroy(stream));
    device_free(cudaFreeHost, out);
    return ranks_leave(&comm);
}

Test(device_order, between, .timeout = 90)
{
    on(2, between);
    on(3, between);
}

/* Work that ends when the test opens the gate, or after 20 s. */
typedef struct gate {
    _Atomic int open, over;
} gate;

static void gate_work(void *user)
{
    gate *g = user;
    for (int ms = 0; ms < 20000 && atomic_load(&g->open) == 0; ms++) {
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    }
    atomic_store(&g->over, 1);
}

/* NULL means no stream, for collectives, buckets and kernels. All of them see what the default
 * stream holds, as a copy that is late there, and results are complete when the call returns. A
 * call gives up when that work does not end. */
static int no_stream(int rank, int n, procs_shared *s, void *arg)
{
    enum { COUNT = 20000 };
    dcomm_comm *comm = join(rank, n, s, arg);
    cudaStream_t stream = stream_make();
    dcomm_buckets *b;
    float *device = device_values(COUNT), *out = device_pinned(COUNT * sizeof *out);
    float *pinned = host_values(COUNT, rank, 3), *in = malloc(COUNT * sizeof *in);
    const dcomm_bucket_param param = {.grad = device, .count = COUNT, .dtype = DCOMM_F32};
    PROCS_TRUE(in != NULL);
    memcpy(in, pinned, COUNT * sizeof *in);
    RANKS_OK(dcomm_buckets_create(comm, &param, 1, &(dcomm_buckets_opts){.sum = true}, &b));
    for (int round = 0; round < 8; round++) {
        slow held = {.ms = rank == round / 2 % n ? 20 : 0};
        CUDA_OK(cudaMemsetAsync(device, 0xff, COUNT * sizeof *in, stream));
        CUDA_OK(cudaStreamSynchronize(stream));
        CUDA_OK(cudaLaunchHostFunc(cudaStreamLegacy, slow_work, &held));
        CUDA_OK(cudaMemcpy(device, in, COUNT * sizeof *in, cudaMemcpyHostToDevice));
        if (round % 2) {
            RANKS_OK(dcomm_param_mark_ready(b, 0, NULL));
            RANKS_OK(dcomm_buckets_wait(b));
        } else {
            RANKS_OK(dcomm_allreduce(comm, device, device, COUNT, DCOMM_F32, DCOMM_SUM, NULL));
        }
        CUDA_OK(cudaMemcpyAsync(out, device, COUNT * sizeof *out, cudaMemcpyDeviceToHost, stream));
        CUDA_OK(cudaStreamSynchronize(stream));
        expect_sum(out, COUNT, n, 3);
    }
    RANKS_OK(dcomm_cuda_scale(device, device, COUNT, DCOMM_F32, 0, NULL));
    CUDA_OK(cudaMemcpyAsync(out, device, COUNT * sizeof *out, cudaMemcpyDeviceToHost, stream));
    CUDA_OK(cudaStreamSynchronize(stream));
    PROCS_CHECK(out[0] == 0 && out[COUNT - 1] == 0, "the kernel has not ended");
    gate held = {0};
    const dcomm_coll_opts brief = {.timeout_s = 0.2};
    CUDA_OK(cudaLaunchHostFunc(cudaStreamLegacy, gate_work, &held));
    ranks_refused(dcomm_allreduce(comm, device, device, COUNT, DCOMM_F32, DCOMM_SUM, &brief),
                  DCOMM_ERR_TIMEOUT, "the default stream of device 0 has not done within 0.2 s");
    atomic_store(&held.open, 1);
    CUDA_OK(cudaDeviceSynchronize());
    RANKS_OK(dcomm_buckets_destroy(&b));
    device_free(cudaFree, device);
    CUDA_OK(cudaStreamDestroy(stream));
    free(in);
    device_free(cudaFreeHost, pinned);
    device_free(cudaFreeHost, out);
    return ranks_leave(&comm);
}

Test(device_order, no_stream, .timeout = 90)
{
    where w = {.threads = false};
    cr_assert_eq(device_run(2, false, 40, no_stream, &w), 0, "2 processes");
}

/* The same with kernels: one delays the input, one delays the use of the sum. The program's own
 * kernel has to be loaded before a stream is blocked. */
static int between_kernels(int rank, int n, procs_shared *s, void *arg)
{
    enum { COUNT = 200000 };
    static const char *const algos[] = {"ring", "two_shot", "one_shot", NULL};
    dcomm_comm *comm = join(rank, n, s, arg);
    cudaStream_t stream = stream_make();
    float *made = device_values(COUNT), *device = device_values(COUNT),
          *taken = device_values(COUNT);
    const int rounds = test_full() ? 8 : 4;
    slow_kernel(taken, made, 1, 0, stream);
    CUDA_OK(cudaStreamSynchronize(stream));
    RANKS_OK(dcomm_barrier(comm, NULL));
    for (int round = 0; round < rounds; round++) {
        float *host = host_values(COUNT, rank, round);
        dcomm_coll_opts opts = {
            .stream = stream, .algo = algos[round % 4], .device = round < rounds / 2};
        CUDA_OK(cudaMemcpyAsync(made, host, COUNT * sizeof *host, cudaMemcpyHostToDevice, stream));
        CUDA_OK(cudaStreamSynchronize(stream));
        slow_kernel(device, made, COUNT, round % 2 == rank % 2 ? 150 : 5, stream);
        RANKS_OK(dcomm_allreduce(comm, device, device, COUNT, DCOMM_F32, DCOMM_SUM, &opts));
        PROCS_CHECK(round % 2 != rank % 2 || cudaStreamQuery(stream) == cudaErrorNotReady,
                    "the call has waited");
        slow_kernel(taken, device, COUNT, 20, stream);
        CUDA_OK(cudaMemsetAsync(device, 0xff, COUNT * sizeof *host, stream));
        CUDA_OK(cudaMemcpyAsync(host, taken, COUNT * sizeof *host, cudaMemcpyDeviceToHost, stream));
        CUDA_OK(cudaStreamSynchronize(stream));
        expect_sum(host, COUNT, n, round);
        device_free(cudaFreeHost, host);
    }
    RANKS_OK(dcomm_comm_status(comm));
    device_free(cudaFree, made);
    device_free(cudaFree, device);
    device_free(cudaFree, taken);
    CUDA_OK(cudaStreamDestroy(stream));
    return ranks_leave(&comm);
}

Test(device_order, between_kernels, .timeout = 120)
{
    on(2, between_kernels);
    on(4, between_kernels);
}

/* Start more operations than the window holds, on two streams that each rank delays differently.
 * The last ones have requests. */
static int outstanding(int rank, int n, procs_shared *s, void *arg)
{
    enum { OPS = 100, COUNT = 5000, LONG = 200000 };
    dcomm_comm *comm = join(rank, n, s, arg);
    cudaStream_t streams[2] = {stream_make(), stream_make()};
    slow hold[2] = {{.ms = rank == 0 ? 80 : 0}, {.ms = rank == 0 ? 0 : 60}};
    float *device[OPS], *host[OPS];
    dcomm_request *last = NULL;
    for (int k = 0; k < OPS; k++) {
        size_t count = k % 20 == 7 ? LONG : COUNT;
        host[k] = host_values(count, rank, k);
        device[k] = device_values(count);
        device_put(device[k], host[k], count * sizeof(float));
    }
    CUDA_OK(cudaLaunchHostFunc(streams[0], slow_work, &hold[0]));
    CUDA_OK(cudaLaunchHostFunc(streams[1], slow_work, &hold[1]));
    for (int k = 0; k < OPS; k++) {
        size_t count = k % 20 == 7 ? LONG : COUNT;
        cudaStream_t stream = streams[k / 3 % 2];
        dcomm_coll_opts opts = {.stream = stream};
        if (k == OPS - 1) {
            RANKS_OK(dcomm_iallreduce(comm, device[k], device[k], count, DCOMM_F32, DCOMM_SUM,
                                      &opts, &last));
            RANKS_OK(dcomm_wait(&last));
        } else {
            RANKS_OK(dcomm_allreduce(comm, DCOMM_IN_PLACE, device[k], count, DCOMM_F32, DCOMM_SUM,
                                     &opts));
        }
        CUDA_OK(cudaMemcpyAsync(host[k], device[k], count * sizeof(float), cudaMemcpyDeviceToHost,
                                stream));
    }
    for (int i = 0; i < 2; i++) {
        CUDA_OK(cudaStreamSynchronize(streams[i]));
        CUDA_OK(cudaStreamDestroy(streams[i]));
    }
    for (int k = 0; k < OPS; k++) {
        expect_sum(host[k], k % 20 == 7 ? LONG : COUNT, n, k);
        device_free(cudaFree, device[k]);
        device_free(cudaFreeHost, host[k]);
    }
    return ranks_leave(&comm);
}

Test(device_order, outstanding, .timeout = 90)
{
    on(2, outstanding);
    on(4, outstanding);
}

/* A call with a request begins behind its stream's work, and does not hold the stream: the rank
 * that is late has not called yet when the others' streams have ended. */
static int not_held(int rank, int n, procs_shared *s, void *arg)
{
    enum { COUNT = 30000 };
    dcomm_comm *comm = join(rank, n, s, arg);
    cudaStream_t stream = stream_make();
    float *device = device_values(COUNT), *in = host_values(COUNT, rank, 1);
    slow before = {.ms = 20};
    dcomm_request *request = NULL;
    const dcomm_coll_opts opts = {.stream = stream};
    if (rank == 1) {
        while (!procs_all(s, n, 1, 1)) {
            procs_nap();
        }
    }
    CUDA_OK(cudaLaunchHostFunc(stream, slow_work, &before));
    CUDA_OK(cudaMemcpyAsync(device, in, COUNT * sizeof *in, cudaMemcpyHostToDevice, stream));
    RANKS_OK(dcomm_iallreduce(comm, device, device, COUNT, DCOMM_F32, DCOMM_SUM, &opts, &request));
    CUDA_OK(cudaStreamSynchronize(stream));
    procs_post(s, rank, 1);
    RANKS_OK(dcomm_wait(&request));
    CUDA_OK(cudaMemcpyAsync(in, device, COUNT * sizeof *in, cudaMemcpyDeviceToHost, stream));
    CUDA_OK(cudaStreamSynchronize(stream));
    expect_sum(in, COUNT, n, 1);
    device_free(cudaFreeHost, in);
    device_free(cudaFree, device);
    CUDA_OK(cudaStreamDestroy(stream));
    return ranks_leave(&comm);
}

Test(device_order, a_request_does_not_hold_its_stream, .timeout = 90)
{
    on(2, not_held);
    on(3, not_held);
}

/* A thread that checks cudaGetLastError after its own launch must not see an error from dcomm's
 * calls. */
static int leaves_no_error(int rank, int n, procs_shared *s, void *arg)
{
    enum { COUNT = 300000 };
    dcomm_comm *comm = join(rank, n, s, arg);
    cudaStream_t stream = stream_make();
    float *device = device_values(COUNT), *host = host_values(COUNT, rank, 0);
    device_put(device, host, COUNT * sizeof *host);
    for (int k = 0; k < 12; k++) {
        dcomm_coll_opts opts = {.stream = k % 3 == 2 ? stream : NULL};
        dcomm_request *request = NULL;
        RANKS_OK(
            dcomm_iallreduce(comm, device, device, COUNT, DCOMM_F32, DCOMM_MAX, &opts, &request));
        while (k % 2 == 0 && dcomm_test(&request) == DCOMM_IN_PROGRESS) {
        }
        RANKS_OK(dcomm_wait(&request));
        RANKS_OK(dcomm_broadcast(comm, device, device, COUNT, DCOMM_F32, 0, NULL));
        CUDA_OK(cudaPeekAtLastError());
    }
    device_free(cudaFreeHost, host);
    device_free(cudaFree, device);
    CUDA_OK(cudaStreamDestroy(stream));
    return ranks_leave(&comm);
}

Test(device_order, leaves_no_error, .timeout = 60)
{
    on(2, leaves_no_error);
}

/* A group of sends and receives on one stream, which could not run one after the other, and
 * collectives of two communicators. */
static int group(int rank, int n, procs_shared *s, void *arg)
{
    enum { COUNT = 150000 };
    dcomm_comm *comm = join(rank, n, s, arg), *other = NULL;
    RANKS_OK(dcomm_comm_dup(comm, &other));
    cudaStream_t stream = stream_make();
    dcomm_coll_opts opts = {.stream = stream};
    float *in = host_values(COUNT, rank, 0), *out = device_pinned(2 * COUNT * sizeof *out);
    float *mine = device_values(COUNT), *theirs = device_values(COUNT);
    int to = (rank + 1) % n, from = (rank + n - 1) % n;
    int devices = 0;
    CUDA_OK(cudaGetDeviceCount(&devices));
    slow before = {.ms = 30};
    CUDA_OK(cudaLaunchHostFunc(stream, slow_work, &before));
    CUDA_OK(cudaMemcpyAsync(mine, in, COUNT * sizeof *in, cudaMemcpyHostToDevice, stream));
    RANKS_OK(dcomm_group_start());
    RANKS_OK(dcomm_send(comm, mine, COUNT, DCOMM_F32, to, &opts));
    RANKS_OK(dcomm_recv(comm, theirs, COUNT, DCOMM_F32, from, &opts));
    CUDA_OK(cudaSetDevice(devices - 1)); /* the calls use their stream's device */
    RANKS_OK(dcomm_group_end());
    CUDA_OK(cudaSetDevice(0));
    CUDA_OK(cudaMemcpyAsync(out, theirs, COUNT * sizeof *in, cudaMemcpyDeviceToHost, stream));
    CUDA_OK(cudaStreamSynchronize(stream));
    for (size_t i = 0; i < COUNT; i++) {
        PROCS_CHECK(out[i] == value(from, i, 0), "element %zu is %g", i, (double)out[i]);
    }
    dcomm_comm *comms[2] = {comm, other};
    RANKS_OK(dcomm_group_start());
    for (int k = 0; k < 2; k++) { /* in a different order on each rank */
        int c = (k + rank) % 2;
        RANKS_OK(dcomm_allreduce(comms[c], mine, c == 0 ? theirs : mine, c == 0 ? COUNT / 2 : 10,
                                 DCOMM_F32, DCOMM_MAX, &opts));
    }
    RANKS_OK(dcomm_group_end());
    CUDA_OK(cudaStreamSynchronize(stream));
    RANKS_OK(dcomm_comm_status(comm));
    RANKS_OK(dcomm_comm_status(other));
    device_free(cudaFree, mine);
    device_free(cudaFree, theirs);
    CUDA_OK(cudaStreamDestroy(stream));
    device_free(cudaFreeHost, in);
    device_free(cudaFreeHost, out);
    RANKS_OK(dcomm_comm_destroy(&other));
    return ranks_leave(&comm);
}

Test(device_order, group, .timeout = 90)
{
    on(2, group);
    on(3, group);
}

/* Destroying a communicator does not require waiting for its streams. Operations on a stream also
 * accept host memory. Ranks need not all use streams. */
static int left_behind(int rank, int n, procs_shared *s, void *arg)
{
    enum { COUNT = 100000 };
    dcomm_comm *comm = join(rank, n, s, arg);
    cudaStream_t stream = stream_make();
    dcomm_coll_opts opts = {.stream = rank == 1 ? NULL : stream};
    float *in = host_values(COUNT, rank, 3), *device = device_values(COUNT);
    float *out = host_values(COUNT, rank, 4);
    slow before = {.ms = 60};
    device_put(device, in, COUNT * sizeof *in);
    CUDA_OK(cudaLaunchHostFunc(stream, slow_work, &before));
    RANKS_OK(dcomm_allreduce(comm, DCOMM_IN_PLACE, device, COUNT, DCOMM_F32, DCOMM_SUM, &opts));
    RANKS_OK(dcomm_allreduce(comm, DCOMM_IN_PLACE, out, COUNT, DCOMM_F32, DCOMM_SUM, &opts));
    PROCS_TRUE(ranks_leave(&comm) == 0);
    CUDA_OK(cudaMemcpyAsync(in, device, COUNT * sizeof *in, cudaMemcpyDeviceToHost, stream));
    CUDA_OK(cudaStreamSynchronize(stream));
    expect_sum(in, COUNT, n, 3);
    expect_sum(out, COUNT, n, 4);
    device_free(cudaFree, device);
    CUDA_OK(cudaStreamDestroy(stream));
    device_free(cudaFreeHost, in);
    device_free(cudaFreeHost, out);
    return 0;
}

Test(device_order, left_behind, .timeout = 90)
{
    on(2, left_behind);
    on(3, left_behind);
}
