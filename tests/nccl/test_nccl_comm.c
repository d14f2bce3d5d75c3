/* test_nccl_comm.c - NCCL's interface: communicators begin, divide, shrink, fail and end; each
 * refusal has a sentence. */
#define _GNU_SOURCE
#include "nccl_ranks.h"
#include "cuda_host.h"
#include <criterion/criterion.h>

static void runs(int n, procs_fn fn, int dies)
{
    int ended[PROCS_MAX];
    (void)procs_run(n, 100, fn, NULL, ended);
    for (int r = 0; r < n; r++) {
        cr_expect_eq(ended[r], r == dies ? 7 : 0, "rank %d of %d ended with %d", r, n, ended[r]);
    }
}

/* Return the sum of ones over a communicator, which is its size. */
static int summed(ncclComm_t comm)
{
    float one = 1, *x = NULL;
    CUDA(cudaMalloc((void **)&x, sizeof one));
    CUDA(cudaMemcpy(x, &one, sizeof one, cudaMemcpyHostToDevice));
    CUDA(cudaStreamSynchronize(cudaStreamLegacy));
    NCCL(ncclAllReduce(x, x, 1, ncclFloat, ncclSum, comm, NULL));
    CUDA(cudaMemcpy(&one, x, sizeof one, cudaMemcpyDeviceToHost));
    CUDA(cudaFree(x));
    return (int)one;
}

static int refusals(int rank, int n, procs_shared *s, void *arg)
{
    cudaStream_t captured;
    cudaGraph_t graph;
    ncclComm_t comm = ranks_join(rank, n, s), none = NULL;
    ncclUniqueId id = {{0}};
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    ncclRedOp_t op;
    ncclWindow_t window;
    ncclSimInfo_t sim = NCCL_SIM_INFO_INITIALIZER;
    void *handle;
    float *x, scalar = 1;
    int device = -1;
    (void)arg;
    CUDA(cudaMalloc((void **)&x, 1024));
    NCCL(ncclCommCuDevice(comm, &device));
    PROCS_TRUE(device == rank % 8);
    const ncclResult_t argument = ncclInvalidArgument, usage = ncclInvalidUsage;
    NCCL_REFUSES(ncclAllReduce(x, x, 4, ncclFloat, ncclSum, NULL, NULL), argument, "comm is NULL");
    NCCL_REFUSES(ncclAllReduce(NULL, x, 4, ncclFloat, ncclSum, comm, NULL), argument,
                 "ncclAllReduce: sendbuff is NULL");
    NCCL_REFUSES(ncclAllReduce(x, x, 4, (ncclDataType_t)12, ncclSum, comm, NULL), argument,
                 "datatype is 12");
    NCCL_REFUSES(ncclAllReduce(x, x, 4, ncclFloat, (ncclRedOp_t)9, comm, NULL), argument,
                 "op is 9");
    NCCL_REFUSES(ncclAllReduce(x, x, 4, ncclFloat8e4m3, ncclSum, comm, NULL), usage,
                 "8-bit floats");
    NCCL_REFUSES(ncclBroadcast(x, x, 4, ncclFloat, n, comm, NULL), argument, "none of the");
    NCCL_REFUSES(ncclSend(x, 4, ncclFloat, rank, comm, NULL), usage, "sends to itself");
    NCCL_REFUSES(ncclGroupEnd(), usage, "without ncclGroupStart");
    NCCL_REFUSES(ncclCommWindowRegister(comm, x, 1024, &window, 4), argument, "flags is 4");
    NCCL_REFUSES(
        ncclRedOpCreatePreMulSum(&op, &scalar, ncclFloat8e5m2, ncclScalarHostImmediate, comm),
        usage, "8-bit floats");
    NCCL_REFUSES(ncclRedOpDestroy(ncclSum, comm), argument, "no operator 0");
    NCCL_REFUSES(ncclCommInitRank(&none, 2, id, 2), argument, "rank 2 of 2");
    config.commName = "x dcomm:algo=ring colour=red";
    NCCL_REFUSES(ncclCommInitRankConfig(&none, 2, id, 0, &config), argument, "no option 'colour'");
    config.commName = "x dcomm:codec=nosuch";
    NCCL_REFUSES(ncclCommInitRankConfig(&none, 2, id, 0, &config), argument, "nosuch");
    config.magic = 0;
    NCCL_REFUSES(ncclCommInitRankConfig(&none, 2, id, 0, &config), argument,
                 "NCCL_CONFIG_INITIALIZER");
    /* A capture goes on without the calls that are refused in it. */
    CUDA(cudaStreamCreate(&captured));
    CUDA(cudaStreamBeginCapture(captured, cudaStreamCaptureModeGlobal));
    NCCL_REFUSES(ncclAllReduce(x, x, 4, ncclFloat, ncclSum, comm, captured), usage,
                 "captured into a graph");
    CUDA(cudaStreamEndCapture(captured, &graph));
    CUDA(cudaGraphDestroy(graph));
    CUDA(cudaStreamDestroy(captured));
    /* The group's end returns the error of a call refused inside it; the other calls run. */
    NCCL(ncclGroupStart());
    (void)ncclAllReduce(x, NULL, 4, ncclFloat, ncclSum, comm, NULL);
    NCCL(ncclAllReduce(x, x, 4, ncclFloat, ncclSum, comm, NULL));
    NCCL_REFUSES(ncclGroupEnd(), argument, "recvbuff is NULL");
    NCCL(ncclGroupStart()); /* the next group is a new one */
    NCCL(ncclAllReduce(x, x, 4, ncclFloat, ncclSum, comm, NULL));
    NCCL(ncclGroupEnd());
    NCCL(ncclGroupStart());
    NCCL(ncclAllReduce(x, x, 4, ncclFloat, ncclSum, comm, NULL));
    NCCL_REFUSES(ncclGroupSimulateEnd(&sim), usage, "prices single collectives");
    NCCL(ncclCommRegister(comm, x, 1024, &handle));
    NCCL(ncclCommDeregister(comm, handle));
    NCCL(ncclCommWindowRegister(comm, x, 1024, &window, NCCL_WIN_COLL_SYMMETRIC));
    PROCS_TRUE(window != NULL);
    NCCL(ncclCommWindowDeregister(comm, window));
    NCCL_REFUSES(ncclCommWindowDeregister(comm, window), argument, "not that of the handle");
    PROCS_TRUE(summed(comm) == n);
    (void)ranks_leave(rank, n, -1, s, comm);
    NCCL_REFUSES(ncclCommDestroy(comm), argument, "destroyed before");
    return 0;
}

Test(nccl_comm, what_is_refused_says_why)
{
    runs(2, refusals, -1);
}

Test(nccl_comm, versions_and_texts)
{
    int version = 0;
    cr_assert(ncclGetVersion(&version) == ncclSuccess && version == 22700);
    cr_assert(pncclGetVersion(&version) == ncclSuccess && version == NCCL_VERSION(2, 27, 0));
    cr_assert_str_eq(ncclGetErrorString(ncclSuccess), "no error");
    cr_assert_not_null(strstr(ncclGetErrorString(ncclInvalidUsage), "invalid usage"));
    cr_assert_eq(sizeof(ncclUniqueId), 128);
    ncclResetDebugInit();
}

/* ---- from one, others ---- */

/* Parts of a communicator inherit its codec, whatever else they are given, unless they are given
 * another codec. */
static int keeps_codec(int rank, int n, procs_shared *s, void *arg)
{
    enum { COUNT = 4096 };
    static const char *const names[] = {NULL, "part", "part dcomm:codec=none"};
    ncclComm_t comm = ranks_join(rank, n, s), parts[4] = {NULL};
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    float *x = NULL, host[COUNT];
    (void)arg;
    CUDA(cudaMalloc((void **)&x, sizeof host));
    config.commName = "whole dcomm:codec=f16";
    NCCL(ncclCommSplit(comm, 0, rank, &parts[3], &config));
    for (int i = 0; i < 3; i++) {
        ncclConfig_t own = NCCL_CONFIG_INITIALIZER;
        own.commName = names[i];
        NCCL(ncclCommSplit(parts[3], 0, rank, &parts[i], i == 0 ? NULL : &own));
        float two = 2;
        ncclRedOp_t doubled;
        NCCL(
            ncclRedOpCreatePreMulSum(&doubled, &two, ncclFloat, ncclScalarHostImmediate, parts[i]));
        for (int o = 0; o < 2; o++) {
            for (int k = 0; k < COUNT; k++) {
                host[k] = 1 + 0x1p-20f; /* rounds to 1 */
            }
            CUDA(cudaMemcpy(x, host, sizeof host, cudaMemcpyHostToDevice));
            CUDA(cudaStreamSynchronize(cudaStreamLegacy));
            NCCL(ncclAllReduce(x, x, COUNT, ncclFloat, o == 0 ? ncclSum : doubled, parts[i], NULL));
            CUDA(cudaStreamSynchronize(NULL));
            CUDA(cudaMemcpy(host, x, sizeof host, cudaMemcpyDeviceToHost));
            PROCS_CHECK((host[7] == (float)(n + o * n)) == (i < 2), "part %d, operator %d: %.9g", i,
                        o, (double)host[7]);
        }
        NCCL(ncclRedOpDestroy(doubled, parts[i]));
    }
    for (int i = 0; i < 4; i++) {
        NCCL(ncclCommDestroy(parts[i]));
    }
    CUDA(cudaFree(x));
    return ranks_leave(rank, n, -1, s, comm);
}

Test(nccl_comm, parts_keep_the_codec)
{
    runs(2, keeps_codec, -1);
}

static int divides(int rank, int n, procs_shared *s, void *arg)
{
    ncclComm_t comm = ranks_join(rank, n, s), half = NULL, none = NULL, named = NULL;
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    int size = 0, mine = -1;
    (void)arg;
    NCCL(ncclCommSplit(comm, rank % 2, -rank, &half, NULL));
    NCCL(ncclCommCount(half, &size));
    NCCL(ncclCommUserRank(half, &mine));
    PROCS_TRUE(size == n / 2 && mine == n / 2 - 1 - rank / 2);
    PROCS_TRUE(summed(half) == n / 2);
    NCCL(ncclCommSplit(comm, rank == 0 ? NCCL_SPLIT_NOCOLOR : 0, 0, &none, NULL));
    PROCS_TRUE((none == NULL) == (rank == 0));
    config.commName = "again dcomm:algo=ring";
    NCCL_REFUSES(ncclCommSplit(comm, 0, 0, &named, &config), ncclInvalidUsage, "its parent's");
    config.commName = "again";
    NCCL(ncclCommSplit(comm, 0, 0, &named, &config));
    PROCS_TRUE(summed(named) == n);
    /* Collectives of several communicators in one group. */
    float one[2] = {1, 1}, *x;
    CUDA(cudaMalloc((void **)&x, sizeof one));
    CUDA(cudaMemcpy(x, one, sizeof one, cudaMemcpyHostToDevice));
    CUDA(cudaStreamSynchronize(cudaStreamLegacy));
    NCCL(ncclGroupStart());
    NCCL(ncclAllReduce(x, x, 1, ncclFloat, ncclSum, named, NULL));
    NCCL(ncclAllReduce(x + 1, x + 1, 1, ncclFloat, ncclSum, half, NULL));
    NCCL(ncclGroupEnd());
    CUDA(cudaMemcpy(one, x, sizeof one, cudaMemcpyDeviceToHost));
    PROCS_TRUE((int)one[0] == n && (int)one[1] == n / 2);
    NCCL(ncclCommDestroy(named));
    NCCL(ncclCommDestroy(half));
    NCCL(ncclCommDestroy(none));
    return ranks_leave(rank, n, -1, s, comm);
}

Test(nccl_comm, divided_by_color)
{
    runs(4, divides, -1);
}

Test(nccl_comm, all_of_one_process_divided_in_a_group)
{
    enum { N = 3 };
    ncclComm_t comms[N], parts[N], twice[N];
    setenv("DCOMM_WARN_UNBOUND", "0", 1);
    setenv("DCOMM_TUNE", "0", 1);
    int current = -1;
    cr_assert_eq(ncclCommInitAll(comms, N, NULL), ncclSuccess, "%s", ncclGetLastError(NULL));
    cr_assert(cudaGetDevice(&current) == cudaSuccess && current == 0);
    cr_assert_eq(ncclGroupStart(), ncclSuccess);
    for (int i = 0; i < N; i++) {
        cr_assert_eq(ncclCommSplit(comms[i], i > 0, i, &parts[i], NULL), ncclSuccess);
        cr_assert_eq(ncclCommSplit(comms[i], 0, -i, &twice[i], NULL), ncclSuccess);
    }
    cr_assert_eq(ncclGroupEnd(), ncclSuccess, "%s", ncclGetLastError(NULL));
    for (int i = 0; i < N; i++) {
        int size = 0, rank = -1, device = -1;
        cr_assert_eq(ncclCommCount(parts[i], &size), ncclSuccess);
        cr_assert_eq(size, i > 0 ? 2 : 1);
        cr_assert_eq(ncclCommUserRank(twice[i], &rank), ncclSuccess);
        cr_assert_eq(rank, N - 1 - i);
        cr_assert_eq(ncclCommCuDevice(twice[i], &device), ncclSuccess);
        cr_assert_eq(device, i);
    }
    for (int i = 0; i < N; i++) {
        cr_assert_eq(ncclCommDestroy(parts[i]), ncclSuccess);
        cr_assert_eq(ncclCommDestroy(twice[i]), ncclSuccess);
        cr_assert_eq(ncclCommDestroy(comms[i]), ncclSuccess);
    }
}

static int without_blocking(int rank, int n, procs_shared *s, void *arg)
{
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    ncclComm_t comm = NULL;
    ncclResult_t state = ncclInProgress;
    (void)arg;
    config.blocking = 0;
    config.commName = "slow start dcomm:algo=ring timeout=30";
    CUDA(cudaSetDevice(rank));
    setenv("DCOMM_TUNE", "0", 1);
    ncclUniqueId id = ranks_id(rank, s);
    if (rank == 1) { /* so that rank 0 is sure to be early */
        while (!procs_all(s, 1, 1, -1)) {
            procs_nap();
        }
    }
    PROCS_TRUE(ncclCommInitRankConfig(&comm, n, id, rank, &config) == ncclInProgress);
    if (rank == 0) {
        NCCL(ncclCommGetAsyncError(comm, &state));
        PROCS_TRUE(state == ncclInProgress);
        NCCL_REFUSES(ncclCommUserRank(comm, &rank), ncclInvalidUsage, "still being created");
        procs_post(s, 0, 1);
    }
    /* Poll until it is there, as NCCL's documentation does. */
    do {
        procs_nap();
        NCCL(ncclCommGetAsyncError(comm, &state));
    } while (state == ncclInProgress);
    PROCS_TRUE(state == ncclSuccess);
    PROCS_TRUE(summed(comm) == n);
    return ranks_leave(rank, n, -1, s, comm);
}

Test(nccl_comm, created_without_blocking)
{
    runs(2, without_blocking, -1);
}

/* Destroying a communicator does not wait for other ranks, except for the process's last one:
 * devices may be reset after that. */
static int ends(int rank, int n, procs_shared *s, void *arg)
{
    ncclComm_t comm = ranks_join(rank, n, s), other = NULL;
    (void)arg;
    NCCL(ncclCommSplit(comm, 0, rank, &other, NULL));
    PROCS_TRUE(summed(other) == n && summed(comm) == n);
    if (rank == 1) {
        usleep(300000);
        procs_post(s, rank, 1);
    }
    NCCL(ncclCommDestroy(other));
    PROCS_TRUE(rank == 1 || !procs_all(s, n, 1, 0));
    NCCL(ncclCommDestroy(comm));
    PROCS_TRUE(procs_all(s, n, 1, 0));
    CUDA(cudaDeviceReset());
    return 0;
}

Test(nccl_comm, the_last_one_is_waited_for)
{
    runs(2, ends, -1);
}

/* ---- failure ---- */

static ncclResult_t await_error(ncclComm_t comm)
{
    ncclResult_t state = ncclSuccess;
    for (double end = procs_now() + 30; state == ncclSuccess && procs_now() < end; procs_nap()) {
        NCCL(ncclCommGetAsyncError(comm, &state));
    }
    return state;
}

static int loses_one(int rank, int n, procs_shared *s, void *arg)
{
    ncclComm_t comm = ranks_join(rank, n, s), rest = NULL;
    cudaStream_t stream;
    int dead = 1;
    float *x;
    (void)arg;
    PROCS_TRUE(summed(comm) == n);
    if (rank == dead) {
        _exit(7);
    }
    CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    CUDA(cudaMalloc((void **)&x, 4096));
    /* The call is enqueued, or refused if the loss is known already; neither holds up the
     * stream. */
    (void)ncclAllReduce(x, x, 1024, ncclFloat, ncclSum, comm, stream);
    CUDA(cudaStreamSynchronize(stream));
    PROCS_TRUE(await_error(comm) == ncclRemoteError);
    PROCS_CHECK(strstr(ncclGetLastError(comm), "rank 1") != NULL, "%s", ncclGetLastError(comm));
    NCCL(ncclCommShrink(comm, &dead, 1, &rest, NULL, NCCL_SHRINK_ABORT));
    PROCS_TRUE(summed(rest) == n - 1);
    NCCL(ncclCommAbort(comm));
    return ranks_leave(rank, n, dead, s, rest);
}

Test(nccl_comm, a_rank_that_dies_is_an_error_and_the_others_go_on)
{
    runs(3, loses_one, 1);
}

static int one_aborts(int rank, int n, procs_shared *s, void *arg)
{
    ncclComm_t comm = ranks_join(rank, n, s);
    cudaStream_t stream;
    float *x;
    (void)arg;
    CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    CUDA(cudaMalloc((void **)&x, 4096));
    if (rank == 0) {
        NCCL(ncclCommAbort(comm));
        while (!procs_all(s, n, 1, 0)) {
            procs_nap();
        }
        return 0;
    }
    (void)ncclAllReduce(x, x, 1024, ncclFloat, ncclSum, comm, stream); /* rank 0 never comes */
    CUDA(cudaStreamSynchronize(stream));
    PROCS_TRUE(await_error(comm) == ncclRemoteError);
    PROCS_CHECK(strstr(ncclGetLastError(comm), "ncclCommAbort") != NULL, "%s",
                ncclGetLastError(comm));
    procs_post(s, rank, 1);
    NCCL(ncclCommAbort(comm));
    return 0;
}

Test(nccl_comm, an_abort_reaches_the_others)
{
    runs(2, one_aborts, -1);
}

static int disagree(int rank, int n, procs_shared *s, void *arg)
{
    ncclComm_t comm = ranks_join(rank, n, s);
    float *x;
    (void)arg;
    CUDA(cudaMalloc((void **)&x, 4096));
    (void)ncclAllReduce(x, x, rank == 0 ? 1000 : 999, ncclFloat, ncclSum, comm, NULL);
    CUDA(cudaStreamSynchronize(NULL));
    PROCS_TRUE(await_error(comm) == ncclInvalidUsage);
    procs_post(s, rank, 1);
    while (!procs_all(s, n, 1, -1)) {
        procs_nap();
    }
    NCCL(ncclCommAbort(comm));
    return 0;
}

Test(nccl_comm, ranks_that_disagree_are_told)
{
    runs(2, disagree, -1);
}

/* ---- registered memory ---- */

/* Return the bytes that one sum copies out of the device. */
static uint64_t copied_by_sum(ncclComm_t comm, float *x, size_t count)
{
    cuda_host_counts before, after;
    float one = 1, all = 0;
    int n = 0;
    NCCL(ncclCommCount(comm, &n));
    CUDA(cudaMemcpy(x + count - 1, &one, sizeof one, cudaMemcpyHostToDevice));
    CUDA(cudaStreamSynchronize(cudaStreamLegacy));
    cuda_host_get_counts(&before);
    NCCL(ncclAllReduce(x, x + count, count, ncclFloat, ncclSum, comm, NULL));
    CUDA(cudaStreamSynchronize(NULL));
    cuda_host_get_counts(&after);
    CUDA(cudaMemcpy(&all, x + 2 * count - 1, sizeof all, cudaMemcpyDeviceToHost));
    PROCS_CHECK(all == (float)n, "the sum is %g, not %d", (double)all, n);
    return after.to_host.bytes - before.to_host.bytes;
}

/* Peers read ncclMemAlloc's memory in place while it is registered. It can be freed whether or not
 * it was deregistered before. */
static int registered(int rank, int n, procs_shared *s, void *arg)
{
    enum { SIZE = 300000, TIMES = 6 };
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    ncclComm_t comm = NULL;
    float *x = NULL, *y = NULL;
    ncclWindow_t another;
    void *handle;
    uint64_t bytes = 0;
    (void)arg;
    config.commName = "registered dcomm:algo=two_shot";
    CUDA(cudaSetDevice(rank % 8));
    NCCL(ncclCommInitRankConfig(&comm, n, ranks_id(rank, s), rank, &config));
    NCCL(ncclMemAlloc((void **)&x, 2 * SIZE * sizeof *x));
    NCCL(ncclMemAlloc((void **)&y, 2 * SIZE * sizeof *y));
    CUDA(cudaMemset(x, 0, 2 * SIZE * sizeof *x));
    CUDA(cudaMemset(y, 0, 2 * SIZE * sizeof *y));
    CUDA(cudaStreamSynchronize(cudaStreamLegacy));
    for (int i = 0; i < TIMES; i++) {
        bytes = copied_by_sum(comm, x, SIZE);
    }
    PROCS_CHECK(bytes > 0, "memory that is not registered was read in place");
    NCCL(ncclCommRegister(comm, x, 2 * SIZE * sizeof *x, &handle));
    NCCL(
        ncclCommWindowRegister(comm, y + 100, SIZE * sizeof *y, &another, NCCL_WIN_COLL_SYMMETRIC));
    for (int i = 0; i < 2 * TIMES; i++) {
        bytes = copied_by_sum(comm, i % 2 ? x : y, SIZE);
    }
    PROCS_CHECK(bytes == 0, "%lu bytes were copied out", (unsigned long)bytes);
    NCCL(ncclCommDeregister(comm, handle));
    NCCL_REFUSES(ncclCommDeregister(comm, handle), ncclInvalidArgument, "not that of the handle");
    for (int i = 0; i < TIMES; i++) {
        bytes = copied_by_sum(comm, x, SIZE);
    }
    PROCS_CHECK(bytes > 0, "memory that was deregistered was read in place");
    NCCL(ncclMemFree(x));
    NCCL(ncclMemFree(NULL));
    NCCL_REFUSES(ncclMemFree(x), ncclInvalidArgument, "free already");
    NCCL(ncclMemFree(y)); /* `another` is a window still */
    for (int i = 0; i < TIMES; i++) {
        PROCS_TRUE(summed(comm) == n);
    }
    CUDA(cudaGetLastError());
    return ranks_leave(rank, n, -1, s, comm);
}

Test(nccl_comm, registered_memory_is_read_where_it_lies)
{
    runs(2, registered, -1);
    runs(3, registered, -1);
}
