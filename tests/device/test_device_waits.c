/* test_device_waits.c - operations on streams that cannot go on: ranks that fail or never come,
 * captures, streams that wait for each other or for a peer; refusals. */
#define _GNU_SOURCE
#include "device_streams.h"

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

Test(device_waits, trouble, .timeout = 120)
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
Test(device_waits, beside_capture, .timeout = 60)
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

Test(device_waits, streams_that_wait_for_each_other, .timeout = 120)
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

Test(device_waits, streams_that_follow_a_peer, .timeout = 120)
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

Test(device_waits, refusals, .timeout = 60)
{
    on(2, refusals);
}
