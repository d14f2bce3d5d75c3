/* test_device_order.c - operations in the order of streams: slow work before and after, many of
 * them outstanding, on several streams, in groups; ranks that fail or never come; refusals. Ranks
 * rely on the progress thread, except where a test says otherwise. */
#define _GNU_SOURCE
#include "device_ranks.h"
#include "slow_kernel.h"

#include <criterion/criterion.h>

typedef struct where {
    bool threads;
    const char *algo;
} where;

static dcomm_comm *join(int rank, int n, procs_shared *s, const where *w)
{
    if (!w->threads || rank == 0) {
        ranks_settle(rank, n, RANKS_LOCAL);
    }
    return ranks_join(rank, n, s, NULL);
}

static cudaStream_t stream_make(void)
{
    cudaStream_t stream;
    CUDA_OK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    return stream;
}

/* Slow work on a stream; sets `over` at its end. */
typedef struct slow {
    int ms;
    _Atomic int over;
} slow;

static void slow_work(void *user)
{
    slow *w = user;
    struct timespec t = {w->ms / 1000, w->ms % 1000 * 1000000L};
    nanosleep(&t, NULL);
    atomic_store(&w->over, 1);
}

static float value(int rank, size_t i, int salt)
{
    return (float)((i * 7 + (size_t)salt * 13 + (size_t)rank * 5) % 1001);
}

static float *host_values(size_t count, int rank, int salt)
{
    float *x = device_pinned(count * sizeof *x);
    for (size_t i = 0; i < count; i++) {
        x[i] = value(rank, i, salt);
    }
    return x;
}

static float *device_values(size_t count)
{
    float *x = NULL;
    CUDA_OK(cudaMalloc((void **)&x, count * sizeof *x));
    CUDA_OK(cudaMemset(x, 0xff, count * sizeof *x));
    CUDA_OK(cudaStreamSynchronize(cudaStreamLegacy));
    return x;
}

static void expect_sum(const float *got, size_t count, int n, int salt)
{
    for (size_t i = 0; i < count; i++) {
        float want = 0;
        for (int r = 0; r < n; r++) {
            want += value(r, i, salt);
        }
        PROCS_CHECK(got[i] == want, "salt %d: element %zu is %g, not %g", salt, i, (double)got[i],
                    (double)want);
    }
}

/* Run fn as processes and as threads. The everyday run has two ranks as processes, more as
 * threads. */
static void on(int n, procs_fn fn)
{
    for (int threads = 0; threads < 2; threads++) {
        if (!test_full() && threads != (n > 2)) {
            continue;
        }
        where w = {.threads = threads};
        cr_assert_eq(device_run(n, threads, 40, fn, &w), 0, "%d ranks, %s", n,
                     threads ? "threads" : "processes");
    }
}

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

/* ---- errors ---- */

/* Rank 1 makes another call, or none, or dies. No stream hangs, and every remaining rank gets the
 * error. */
enum trouble { OTHER_COUNT, ABORTS, NEVER_COMES, DIES, TROUBLES };

static int trouble_of(int rank, int n, procs_shared *s, void *arg)
{
    enum { COUNT = 400000 };
    static const dcomm_status wanted[] = {DCOMM_ERR_MISMATCH, DCOMM_ERR_ABORTED, DCOMM_ERR_TIMEOUT,
                                          DCOMM_ERR_PEER};
    enum trouble trouble = *(enum trouble *)arg;
    where w = {0};
    dcomm_comm *comm = join(rank, n, s, &w);
    cudaStream_t stream = stream_make();
    dcomm_coll_opts opts = {.stream = stream, .timeout_s = trouble == NEVER_COMES ? 0.5 : 20};
    float *device = device_values(COUNT);
    slow after = {.ms = 1};
    if (rank == 1 && trouble == DIES) {
        _exit(0);
    }
    if (rank == 1 && trouble == ABORTS) {
        RANKS_OK(dcomm_comm_abort(comm, "on purpose"));
    }
    if (rank != 1 || trouble != NEVER_COMES) {
        dcomm_status status = dcomm_allreduce(comm, device, device, rank == 1 ? COUNT - 5 : COUNT,
                                              DCOMM_F32, DCOMM_SUM, &opts);
        PROCS_CHECK(status == DCOMM_OK || status == wanted[trouble], "%s", dcomm_last_error());
    }
    CUDA_OK(cudaLaunchHostFunc(stream, slow_work, &after));
    CUDA_OK(cudaStreamSynchronize(stream));
    PROCS_TRUE(atomic_load(&after.over));
    double until = procs_now() + 20;
    while (dcomm_comm_status(comm) == DCOMM_OK && procs_now() < until) {
        dcomm_context_progress(dcomm_comm_context(comm));
    }
    PROCS_CHECK(dcomm_comm_status(comm) == wanted[trouble], "rank %d: %s: %s", rank,
                dcomm_status_name(dcomm_comm_status(comm)), dcomm_comm_error(comm));
    device_free(cudaFree, device);
    CUDA_OK(cudaStreamDestroy(stream));
    return ranks_leave(&comm);
}

Test(device_order, trouble, .timeout = 120)
{
    int ended[PROCS_MAX];
    for (int t = 0; t < TROUBLES; t++) {
        cr_assert_eq(procs_run(3, 40, trouble_of, &t, ended), 0, "trouble %d", t);
    }
}

/* Other work during the capture of a stream neither fails nor ends the capture: neither calls of
 * the capturing thread nor progress in other threads. */
static int beside_capture(int rank, int n, procs_shared *s, void *arg)
{
    enum { COUNT = 300000 };
    static const enum cudaStreamCaptureMode modes[] = {cudaStreamCaptureModeGlobal,
                                                       cudaStreamCaptureModeThreadLocal};
    dcomm_comm *comm = join(rank, n, s, arg);
    cudaStream_t stream = stream_make(), captured = stream_make();
    float *device = device_values(COUNT), *plain = device_values(COUNT);
    float *out = device_pinned(COUNT * sizeof *out);
    for (int round = 0; round < 2; round++) {
        float *in = host_values(COUNT, rank, round);
        dcomm_coll_opts opts = {.stream = stream};
        dcomm_request *request = NULL;
        cudaGraph_t graph = NULL;
        CUDA_OK(cudaMemcpy(plain, in, COUNT * sizeof *in, cudaMemcpyHostToDevice));
        device_put(device, in, COUNT * sizeof *in);
        CUDA_OK(cudaStreamBeginCapture(captured, modes[round]));
        CUDA_OK(cudaMemsetAsync(device, 0, 4, captured));
        RANKS_OK(dcomm_iallreduce(comm, DCOMM_IN_PLACE, device, COUNT, DCOMM_F32, DCOMM_SUM, &opts,
                                  &request));
        RANKS_OK(dcomm_allreduce(comm, DCOMM_IN_PLACE, plain, COUNT, DCOMM_F32, DCOMM_SUM, NULL));
        RANKS_OK(dcomm_wait(&request));
        CUDA_OK(cudaStreamEndCapture(captured, &graph));
        CUDA_OK(cudaGraphDestroy(graph));
        CUDA_OK(cudaMemcpy(out, plain, COUNT * sizeof *in, cudaMemcpyDeviceToHost));
        expect_sum(out, COUNT, n, round);
        CUDA_OK(cudaStreamSynchronize(stream));
        CUDA_OK(cudaMemcpy(out, device, COUNT * sizeof *in, cudaMemcpyDeviceToHost));
        expect_sum(out, COUNT, n, round);
        device_free(cudaFreeHost, in);
    }
    RANKS_OK(dcomm_comm_status(comm));
    device_free(cudaFree, device);
    device_free(cudaFree, plain);
    CUDA_OK(cudaStreamDestroy(captured));
    CUDA_OK(cudaStreamDestroy(stream));
    device_free(cudaFreeHost, out);
    return ranks_leave(&comm);
}

/* Processes only: with threads, one rank's copies in the test itself would end another's
 * capture. */
Test(device_order, beside_capture, .timeout = 60)
{
    where w = {.threads = false};
    cr_assert_eq(device_run(2, false, 40, beside_capture, &w), 0, "2 processes");
}

/* Streams on which two ranks of a process start one operation. */
typedef struct pairing {
    enum { ONE, LEGACY_FIRST, LEGACY_LAST, LEGACY_AND_THREAD, LEGACY_AND_OTHER, BLOCKING } of;
    const char *refused; /* NULL: accepted */
} pairing;

static cudaStream_t stream_of(const pairing *p, int rank, cudaStream_t shared)
{
    cudaStream_t own;
    if (p->of == ONE) {
        return shared;
    }
    if (p->of != BLOCKING && rank == (p->of == LEGACY_LAST)) {
        return cudaStreamLegacy;
    }
    if (p->of == LEGACY_AND_THREAD) {
        return cudaStreamPerThread;
    }
    CUDA_OK(cudaStreamCreateWithFlags(&own, p->of == LEGACY_AND_OTHER ? cudaStreamNonBlocking
                                                                      : cudaStreamDefault));
    return own;
}

/* The second call is refused at once if it could not begin before the first has ended. Per-thread
 * streams of the same name are accepted. */
static int two_streams(int rank, int n, procs_shared *s, void *arg)
{
    enum { COUNT = 5000 };
    static cudaStream_t shared;
    static _Atomic int turn, over;
    const pairing *p = arg;
    dcomm_comm *comm = join(rank, n, s, &(where){.threads = true});
    float *device = device_values(COUNT); /* runs on the default stream, */
    RANKS_OK(dcomm_barrier(comm, NULL));  /* so it must precede the ranks' own work */
    dcomm_coll_opts opts = {.stream = cudaStreamPerThread};
    RANKS_OK(dcomm_allreduce(comm, device, device, COUNT, DCOMM_F32, DCOMM_SUM, &opts));
    CUDA_OK(cudaStreamSynchronize(cudaStreamPerThread));
    if (rank == 0) {
        shared = stream_make();
    }
    RANKS_OK(dcomm_barrier(comm, NULL));
    opts.stream = stream_of(p, rank, shared);
    while (atomic_load(&turn) != rank) {
        sched_yield();
    }
    dcomm_status status = dcomm_allreduce(comm, device, device, COUNT, DCOMM_F32, DCOMM_SUM, &opts);
    atomic_store(&turn, rank + 1);
    PROCS_CHECK(status == (rank == 0 || p->refused == NULL ? DCOMM_OK : DCOMM_ERR_INVALID), "%s",
                dcomm_last_error());
    CUDA_OK(cudaStreamSynchronize(opts.stream));
    if (p->refused == NULL) {
        RANKS_OK(dcomm_comm_status(comm));
    } else {
        PROCS_CHECK(dcomm_comm_status(comm) == DCOMM_ERR_ABORTED &&
                        strstr(dcomm_comm_error(comm), p->refused) != NULL,
                    "%s", dcomm_comm_error(comm));
    }
    atomic_fetch_add(&over, 1);
    while (atomic_load(&over) != n) {
        sched_yield();
    }
    if (rank == 0) {
        CUDA_OK(cudaStreamDestroy(shared));
    }
    device_free(cudaFree, device);
    return ranks_leave(&comm);
}

Test(device_order, streams_that_wait_for_each_other, .timeout = 120)
{
    const char *const legacy = "on the legacy default stream and on a stream that waits for that";
    pairing all[] = {
        {ONE, "have put it on one stream"}, {LEGACY_FIRST, legacy},   {LEGACY_LAST, legacy},
        {LEGACY_AND_THREAD, legacy},        {LEGACY_AND_OTHER, NULL}, {BLOCKING, NULL}};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        cr_assert_eq(device_run(2, true, 20, two_streams, &all[i]), 0, "pairing %zu", i);
    }
}

/* ---- a stream that waits for the end of a peer's part ---- */

/* The calls of two ranks of a process. The first has the data; the second one's stream waits for
 * the first one's end. */
typedef struct one_way {
    enum { BROADCAST, REDUCE, GATHER, SEND, ALLREDUCE } what;
    size_t count;
    bool ends;
} one_way;

static dcomm_status one_way_call(dcomm_comm *comm, const one_way *w, float *x,
                                 const dcomm_coll_opts *opts)
{
    const bool first = dcomm_comm_rank(comm) == 0;
    float *all = first ? NULL : x + w->count;
    switch (w->what) {
    case BROADCAST:
        return dcomm_broadcast(comm, x, x, w->count, DCOMM_F32, 0, opts);
    case REDUCE:
        return dcomm_reduce(comm, x, all, w->count, DCOMM_F32, DCOMM_SUM, 1, opts);
    case GATHER:
        return dcomm_gather(comm, x, all, w->count, DCOMM_F32, 1, opts);
    case ALLREDUCE:
        return dcomm_allreduce(comm, x, x, w->count, DCOMM_F32, DCOMM_SUM, opts);
    default:
        return first ? dcomm_send(comm, x, w->count, DCOMM_F32, 1, opts)
                     : dcomm_recv(comm, x, w->count, DCOMM_F32, 0, opts);
    }
}

/* A short message leaves without its receiver, so the call ends. A longer one needs the receiver,
 * whose stream waits; an all-reduce needs all ranks. The time-out then frees the streams, and its
 * error says what the call waited for. */
static int follows_peer(int rank, int n, procs_shared *s, void *arg)
{
    static cudaEvent_t behind;
    static _Atomic int turn;
    const one_way *w = arg;
    dcomm_comm *comm = join(rank, n, s, &(where){.threads = true});
    float *device = device_values(3 * w->count);
    cudaStream_t stream = stream_make();
    dcomm_coll_opts opts = {.stream = stream, .timeout_s = 20};
    RANKS_OK(dcomm_allreduce(comm, device, device, 1, DCOMM_F32, DCOMM_SUM, &opts));
    CUDA_OK(cudaStreamSynchronize(stream));
    opts.timeout_s = w->ends ? 20 : 0.8;
    if (rank == 0) {
        CUDA_OK(cudaEventCreateWithFlags(&behind, cudaEventDisableTiming));
    }
    while (atomic_load(&turn) != rank) {
        sched_yield();
    }
    if (rank == 1) {
        CUDA_OK(cudaStreamWaitEvent(stream, behind, 0));
    }
    RANKS_OK(one_way_call(comm, w, device, &opts));
    if (rank == 0) {
        CUDA_OK(cudaEventRecord(behind, stream));
    }
    atomic_store(&turn, rank + 1);
    CUDA_OK(cudaStreamSynchronize(stream));
    if (w->ends) {
        RANKS_OK(dcomm_comm_status(comm));
    } else {
        PROCS_CHECK(dcomm_comm_status(comm) == DCOMM_ERR_TIMEOUT &&
                        strstr(dcomm_comm_error(comm),
                               "rank 1 has called it on a stream that has not come to it") != NULL,
                    "%s", dcomm_comm_error(comm));
    }
    while (atomic_load(&turn) != n) {
        sched_yield();
    }
    device_free(cudaFree, device);
    CUDA_OK(cudaStreamDestroy(stream));
    return ranks_leave(&comm);
}

Test(device_order, streams_that_follow_a_peer, .timeout = 120)
{
    one_way all[] = {{BROADCAST, 8192, true}, {REDUCE, 8192, true},     {GATHER, 8192, true},
                     {SEND, 8192, true},      {BROADCAST, 8193, false}, {GATHER, 8193, false},
                     {SEND, 8193, false},     {ALLREDUCE, 10, false}};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        cr_assert_eq(device_run(2, true, 20, follows_peer, &all[i]), 0, "call %zu", i);
    }
}

static void xor_fn(const void *in, void *inout, size_t count, dcomm_dtype dtype, void *user)
{
    (void)in, (void)inout, (void)count, (void)dtype, (void)user;
}

static int refusals(int rank, int n, procs_shared *s, void *arg)
{
    enum { COUNT = 5000 };
    dcomm_comm *comm = join(rank, n, s, arg);
    cudaStream_t stream = stream_make();
    float *host = host_values(COUNT, rank, 0), *device = device_values(COUNT);
    dcomm_coll_opts opts = {.stream = stream};
    dcomm_op op;
    cudaGraph_t graph;
    ranks_refused(dcomm_allreduce(comm, host, device, COUNT, DCOMM_F32, DCOMM_SUM, NULL),
                  DCOMM_ERR_INVALID, "sendbuf lies in host memory and recvbuf on device 0");
    ranks_refused(dcomm_alltoall(comm, device, host, 1, DCOMM_F32, &opts), DCOMM_ERR_INVALID,
                  "sendbuf lies on device 0 and recvbuf in host memory");
    ranks_refused(
        dcomm_allreduce(comm, DCOMM_IN_PLACE, (char *)device + 2, 5, DCOMM_F32, DCOMM_SUM, NULL),
        DCOMM_ERR_INVALID, "not aligned to the 4 bytes");
    RANKS_OK(dcomm_op_create(xor_fn, NULL, &op));
    ranks_refused(dcomm_allreduce(comm, DCOMM_IN_PLACE, device, COUNT, DCOMM_F32, op, NULL),
                  DCOMM_ERR_UNSUPPORTED, "operator of the caller's own");
    RANKS_OK(dcomm_op_destroy(op));
    CUDA_OK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    ranks_refused(dcomm_allreduce(comm, DCOMM_IN_PLACE, device, COUNT, DCOMM_F32, DCOMM_SUM, &opts),
                  DCOMM_ERR_UNSUPPORTED, "captured into a graph");
    CUDA_OK(cudaStreamEndCapture(stream, &graph)); /* and the capture still works */
    CUDA_OK(cudaGraphDestroy(graph));
    /* None of these calls took a sequence number: the ranks still agree. */
    CUDA_OK(cudaMemcpyAsync(device, host, COUNT * sizeof *host, cudaMemcpyHostToDevice, stream));
    RANKS_OK(dcomm_allreduce(comm, DCOMM_IN_PLACE, device, COUNT, DCOMM_F32, DCOMM_SUM, &opts));
    CUDA_OK(cudaMemcpyAsync(host, device, COUNT * sizeof *host, cudaMemcpyDeviceToHost, stream));
    CUDA_OK(cudaStreamSynchronize(stream));
    expect_sum(host, COUNT, n, 0);
    device_free(cudaFree, device);
    CUDA_OK(cudaStreamDestroy(stream));
    device_free(cudaFreeHost, host);
    return ranks_leave(&comm);
}

Test(device_order, refusals, .timeout = 60)
{
    on(2, refusals);
}
