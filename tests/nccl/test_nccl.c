/* test_nccl.c - NCCL's interface: every collective with every type and operator, in the order of
 * streams, on 1 to 4 processes. */
#define _GNU_SOURCE
#include "nccl_ranks.h"
#include "cuda_host.h"
#include <criterion/criterion.h>

enum { MOST = 4, BLOCK = 517 };

typedef struct place {
    int rank, n;
    ncclRedOp_t op;
    size_t block; /* index of the first number to look at */
} place;

/* Return rank `rank`'s number at i: from 1 to 3; for averages such that sums are multiples of
 * n. */
static double own(size_t i, const void *arg)
{
    const place *p = arg;
    i += p->block;
    return p->op == ncclAvg ? (double)((i + (size_t)p->rank) % (size_t)p->n + (i % 2))
                            : 1 + (double)((i + (size_t)p->rank) % 3);
}

static double reduced(size_t i, const void *arg)
{
    place p = *(const place *)arg;
    double all = 0;
    for (int r = 0; r < p.n; r++) {
        p.rank = r;
        double x = own(i, &p);
        all = r == 0             ? x
              : p.op == ncclProd ? all * x
              : p.op == ncclMax  ? (x > all ? x : all)
              : p.op == ncclMin  ? (x < all ? x : all)
                                 : all + x;
    }
    if (p.op == ncclAvg) { /* integers are truncated, as by C's division */
        all /= p.n;
    }
    return all;
}

static double averaged(size_t i, const void *arg)
{
    return (double)(int64_t)reduced(i, arg);
}

typedef struct bench {
    int rank, n;
    ncclComm_t comm;
    cudaStream_t stream;
    char *in, *out; /* n blocks each */
    ncclDataType_t type;
    bool in_place;
} bench;

static char *at(const bench *b, char *base, int block)
{
    return base + (size_t)block * BLOCK * number_bytes(b->type);
}

static void refill(const bench *b, ncclRedOp_t op)
{
    const place p = {b->rank, b->n, op, 0};
    numbers_put(b->in, (size_t)b->n * BLOCK, b->type, own, &p, b->stream);
    CUDA(cudaMemsetAsync(b->out, 0x55, (size_t)b->n * BLOCK * 8, b->stream));
}

static void reductions(const bench *b, ncclRedOp_t op)
{
    const bool whole = b->type != ncclFloat16 && b->type != ncclBfloat16 &&
                       b->type != ncclFloat32 && b->type != ncclFloat64;
    const number_fn want = op == ncclAvg && whole ? averaged : reduced;
    const int root = b->n - 1;
    place p = {b->rank, b->n, op, 0};
    char *out = b->in_place ? b->in : b->out;
    refill(b, op);
    NCCL(ncclAllReduce(b->in, out, BLOCK, b->type, op, b->comm, b->stream));
    numbers_are("all-reduce", out, BLOCK, b->type, want, &p, b->stream);
    refill(b, op);
    NCCL(ncclReduce(b->in, b->rank == root ? out : NULL, BLOCK, b->type, op, root, b->comm,
                    b->stream));
    if (b->rank == root) {
        numbers_are("reduce", out, BLOCK, b->type, want, &p, b->stream);
    }
    refill(b, op);
    out = b->in_place ? at(b, b->in, b->rank) : b->out;
    NCCL(ncclReduceScatter(b->in, out, BLOCK, b->type, op, b->comm, b->stream));
    p.block = (size_t)b->rank * BLOCK;
    numbers_are("reduce-scatter", out, BLOCK, b->type, want, &p, b->stream);
}

/* Check that block `block` of rank `rank` is at `device`. */
static void block_is(const bench *b, const char *what, const char *device, int rank, int block)
{
    const place p = {rank, b->n, ncclSum, (size_t)block * BLOCK};
    numbers_are(what, device, BLOCK, b->type, own, &p, b->stream);
}

static void moves(const bench *b)
{
    const int root = b->n / 2;
    const bool here = b->rank == root;
    char *out = b->in_place ? b->in : b->out;
    refill(b, ncclSum);
    NCCL(ncclBroadcast(here || b->in_place ? b->in : NULL, out, BLOCK, b->type, root, b->comm,
                       b->stream));
    block_is(b, "broadcast", out, root, 0);
    refill(b, ncclSum);
    NCCL(ncclBcast(b->in, BLOCK, b->type, root, b->comm, b->stream));
    block_is(b, "bcast", b->in, root, 0);
    refill(b, ncclSum);
    NCCL(ncclAllGather(b->in_place ? at(b, b->in, b->rank) : b->in, out, BLOCK, b->type, b->comm,
                       b->stream));
    for (int r = 0; r < b->n; r++) {
        block_is(b, "all-gather", at(b, out, r), r, b->in_place ? r : 0);
    }
    refill(b, ncclSum);
    NCCL(ncclGather(b->in_place && here ? at(b, b->in, b->rank) : b->in, here ? out : NULL, BLOCK,
                    b->type, root, b->comm, b->stream));
    for (int r = 0; here && r < b->n; r++) {
        block_is(b, "gather", at(b, out, r), r, b->in_place && r == root ? r : 0);
    }
    refill(b, ncclSum);
    out = b->in_place && here ? at(b, b->in, b->rank) : b->out;
    NCCL(ncclScatter(here ? b->in : NULL, out, BLOCK, b->type, root, b->comm, b->stream));
    block_is(b, "scatter", out, root, b->rank);
    refill(b, ncclSum);
    NCCL(ncclAlltoAll(b->in, b->out, BLOCK, b->type, b->comm, b->stream));
    for (int r = 0; r < b->n; r++) {
        block_is(b, "all-to-all", at(b, b->out, r), r, b->rank);
    }
    refill(b, ncclSum);
    NCCL(ncclGroupStart());
    NCCL(ncclRecv(b->out, BLOCK, b->type, (b->rank + b->n - 1) % b->n, b->comm, b->stream));
    NCCL(ncclSend(b->in, BLOCK, b->type, (b->rank + 1) % b->n, b->comm, b->stream));
    NCCL(ncclGroupEnd());
    block_is(b, "from the left", b->out, (b->rank + b->n - 1) % b->n, 0);
}

static int every_collective(int rank, int n, procs_shared *s, void *arg)
{
    bench b = {.rank = rank, .n = n, .comm = ranks_join(rank, n, s)};
    (void)arg;
    CUDA(cudaStreamCreateWithFlags(&b.stream, cudaStreamNonBlocking));
    CUDA(cudaMalloc((void **)&b.in, MOST * BLOCK * 8));
    CUDA(cudaMalloc((void **)&b.out, MOST * BLOCK * 8));
    for (int type = 0; type < ncclNumTypes; type++) {
        for (int in_place = 0; in_place < 2; in_place++) {
            b.type = (ncclDataType_t)type;
            b.in_place = in_place != 0;
            for (int op = 0; op < ncclNumOps && type < ncclFloat8e4m3; op++) {
                reductions(&b, (ncclRedOp_t)op);
            }
            moves(&b);
        }
    }
    return ranks_leave(rank, n, -1, s, b.comm);
}

static void runs(int n, procs_fn fn, double timeout_s)
{
    int ended[PROCS_MAX];
    int bad = procs_run(n, timeout_s, fn, NULL, ended);
    for (int r = 0; r < n; r++) {
        cr_expect_eq(ended[r], 0, "rank %d of %d ended with %d", r, n, ended[r]);
    }
    cr_assert_eq(bad, 0);
}

Test(nccl, every_collective_type_and_operator_of_one_rank)
{
    runs(1, every_collective, 60);
}

Test(nccl, every_collective_type_and_operator_of_two_ranks)
{
    runs(2, every_collective, 110);
}

Test(nccl, every_collective_type_and_operator_of_three_ranks)
{
    runs(3, every_collective, 110);
}

/* ---- the order of streams ---- */

static void hold(void *user)
{
    while (atomic_load((_Atomic int *)user) == 0) {
        procs_nap();
    }
}

static int stream_order(int rank, int n, procs_shared *s, void *arg)
{
    ncclComm_t comm = ranks_join(rank, n, s);
    cudaStream_t stream;
    char *x, *y;
    _Atomic int open = 0;
    const place p = {rank, n, ncclSum, 0};
    (void)arg;
    cuda_host_set_faults(&(cuda_host_faults){.delay_s = 0.002, .shuffle = 11});
    CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    CUDA(cudaMalloc((void **)&x, BLOCK * 4));
    CUDA(cudaMalloc((void **)&y, BLOCK * 4));
    CUDA(cudaMemset(x, 0, BLOCK * 4));
    CUDA(cudaStreamSynchronize(cudaStreamLegacy));
    CUDA(cudaLaunchHostFunc(stream, hold, (void *)&open));
    numbers_put(y, BLOCK, ncclFloat, own, &p, stream); /* late, and then moved to x */
    CUDA(cudaMemcpyAsync(x, y, BLOCK * 4, cudaMemcpyDeviceToDevice, stream));
    NCCL(ncclAllReduce(x, x, BLOCK, ncclFloat, ncclSum, comm, stream));
    CUDA(cudaMemcpyAsync(y, x, BLOCK * 4, cudaMemcpyDeviceToDevice, stream));
    CUDA(cudaMemsetAsync(x, 0, BLOCK * 4, stream));
    PROCS_TRUE(cudaStreamQuery(stream) == cudaErrorNotReady); /* so all calls have returned */
    atomic_store(&open, 1);
    numbers_are("after the stream", y, BLOCK, ncclFloat, reduced, &p, stream);
    return ranks_leave(rank, n, -1, s, comm);
}

Test(nccl, a_collective_is_in_order_with_its_stream)
{
    runs(2, stream_order, 60);
}

/* Calls on many streams return before any of the streams' work is done. */
static int many_streams(int rank, int n, procs_shared *s, void *arg)
{
    enum { STREAMS = 20 };
    ncclComm_t comm = ranks_join(rank, n, s);
    cudaStream_t streams[STREAMS];
    char *x[STREAMS];
    const place p = {rank, n, ncclSum, 0};
    (void)arg;
    for (int round = 0; round < 2; round++) {
        _Atomic int open = 0;
        for (int i = 0; i < STREAMS; i++) {
            CUDA(cudaStreamCreateWithFlags(&streams[i], cudaStreamNonBlocking));
            CUDA(cudaMalloc((void **)&x[i], BLOCK * 4));
            numbers_put(x[i], BLOCK, ncclFloat, own, &p, streams[i]);
            CUDA(cudaLaunchHostFunc(streams[i], hold, (void *)&open));
            NCCL(ncclAllReduce(x[i], x[i], BLOCK, ncclFloat, ncclSum, comm, streams[i]));
        }
        atomic_store(&open, 1);
        for (int i = 0; i < STREAMS; i++) {
            numbers_are("on its stream", x[i], BLOCK, ncclFloat, reduced, &p, streams[i]);
            CUDA(cudaStreamDestroy(streams[i]));
            CUDA(cudaFree(x[i]));
        }
    }
    return ranks_leave(rank, n, -1, s, comm);
}

Test(nccl, calls_on_many_streams_do_not_wait)
{
    runs(2, many_streams, 60);
}

/* ---- operators ---- */

static double scaled(size_t i, const void *arg)
{
    place p = *(const place *)arg;
    double all = 0;
    for (int r = 0; r < p.n; r++) {
        p.rank = r;
        all += (r + 2) * own(i, &p);
    }
    return all;
}

static int premultiplied(int rank, int n, procs_shared *s, void *arg)
{
    ncclComm_t comm = ranks_join(rank, n, s);
    cudaStream_t stream;
    char *x, *d_factor, factor[8];
    const place p = {rank, n, ncclSum, 0};
    const ncclDataType_t types[] = {ncclFloat, ncclHalf, ncclBfloat16, ncclDouble, ncclInt32};
    (void)arg;
    CUDA(cudaStreamCreate(&stream));
    CUDA(cudaMalloc((void **)&x, BLOCK * 8));
    CUDA(cudaMalloc((void **)&d_factor, 8));
    for (size_t t = 0; t < sizeof types / sizeof types[0]; t++) {
        ncclRedOp_t here, there;
        number_put(factor, 0, types[t], rank + 2);
        NCCL(ncclRedOpCreatePreMulSum(&here, factor, types[t], ncclScalarHostImmediate, comm));
        memset(factor, 0, sizeof factor);
        numbers_put(x, BLOCK, types[t], own, &p, stream);
        NCCL(ncclAllReduce(x, x, BLOCK, types[t], here, comm, stream));
        numbers_are("host scalar", x, BLOCK, types[t], scaled, &p, stream);
        NCCL(ncclRedOpCreatePreMulSum(&there, d_factor, types[t], ncclScalarDevice, comm));
        number_put(factor, 0, types[t], rank + 2);
        numbers_put(x, BLOCK, types[t], own, &p, stream);
        CUDA(cudaMemcpyAsync(d_factor, factor, 8, cudaMemcpyHostToDevice, stream));
        NCCL(ncclAllReduce(x, x, BLOCK, types[t], there, comm, stream));
        numbers_are("device scalar", x, BLOCK, types[t], scaled, &p, stream);
        NCCL_REFUSES(ncclAllReduce(x, x, BLOCK, ncclInt8, here, comm, stream), ncclInvalidArgument,
                     "was created for datatype");
        NCCL(ncclRedOpDestroy(here, comm));
        NCCL(ncclRedOpDestroy(there, comm));
        NCCL_REFUSES(ncclAllReduce(x, x, BLOCK, types[t], here, comm, stream), ncclInvalidArgument,
                     "has not");
    }
    return ranks_leave(rank, n, -1, s, comm);
}

/* A factor of 0 is 0, and integers of 64 bits are not rounded. */
static int exact_factors(int rank, int n, procs_shared *s, void *arg)
{
    ncclComm_t comm = ranks_join(rank, n, s);
    cudaStream_t stream;
    int64_t *x, value[] = {0, -1, 3, ((int64_t)1 << 53) + 1};
    (void)arg;
    CUDA(cudaStreamCreate(&stream));
    CUDA(cudaMalloc((void **)&x, sizeof *x));
    for (int i = 0; i < 4; i++) {
        int64_t one = rank + 1;
        ncclRedOp_t op;
        NCCL(ncclRedOpCreatePreMulSum(&op, &value[i], ncclInt64, ncclScalarHostImmediate, comm));
        CUDA(cudaMemcpyAsync(x, &one, sizeof one, cudaMemcpyHostToDevice, stream));
        NCCL(ncclAllReduce(x, x, 1, ncclInt64, op, comm, stream));
        CUDA(cudaMemcpyAsync(&one, x, sizeof one, cudaMemcpyDeviceToHost, stream));
        CUDA(cudaStreamSynchronize(stream));
        PROCS_CHECK(one == 3 * value[i], "factor %lld: %lld", (long long)value[i], (long long)one);
        NCCL(ncclRedOpDestroy(op, comm));
    }
    return ranks_leave(rank, n, -1, s, comm);
}

Test(nccl, exact_factors)
{
    runs(2, exact_factors, 60);
}

/* Return the two ranks' factors, in device memory, which their streams fill. */
static void put_factors(float *const at[2], float first, const cudaStream_t stream[2])
{
    for (int r = 0; r < 2; r++) {
        const float factor = first + (float)r;
        CUDA(cudaSetDevice(r));
        CUDA(cudaMemcpyAsync(at[r], &factor, sizeof factor, cudaMemcpyHostToDevice, stream[r]));
    }
}

/* One thread has two ranks. A call whose factor is on the device does not wait for its stream,
 * which waits for the other rank's call. */
static int two_ranks(int rank, int n, procs_shared *s, void *arg)
{
    ncclComm_t comm[2];
    ncclRedOp_t op[2], next[2];
    cudaStream_t stream[2];
    float *x[2], *at[2], *more[2], ones[2] = {1, 1}, all[2] = {0};
    (void)rank;
    (void)n;
    (void)s;
    setenv("DCOMM_TUNE", "0", 1);
    setenv("DCOMM_CODEC", arg, 1);
    NCCL(ncclCommInitAll(comm, 2, NULL));
    for (int r = 0; r < 2; r++) {
        CUDA(cudaSetDevice(r));
        CUDA(cudaStreamCreateWithFlags(&stream[r], cudaStreamNonBlocking));
        CUDA(cudaMalloc((void **)&x[r], sizeof ones));
        CUDA(cudaMalloc((void **)&at[r], sizeof(float)));
        CUDA(cudaMalloc((void **)&more[r], sizeof(float)));
        CUDA(cudaMemcpy(x[r], ones, sizeof ones, cudaMemcpyHostToDevice));
        CUDA(cudaStreamSynchronize(cudaStreamLegacy));
        NCCL(ncclRedOpCreatePreMulSum(&op[r], at[r], ncclFloat, ncclScalarDevice, comm[r]));
    }
    /* 1 + 1; then 2 * 2 + 2 * 3, with factors that the streams get behind the first call */
    for (int r = 0; r < 2; r++) {
        const float factor = 2 + (float)r;
        CUDA(cudaSetDevice(r));
        NCCL(ncclAllReduce(x[r], x[r], 1, ncclFloat, ncclSum, comm[r], stream[r]));
        CUDA(cudaMemcpyAsync(at[r], &factor, sizeof factor, cudaMemcpyHostToDevice, stream[r]));
        NCCL(ncclAllReduce(x[r], x[r], 1, ncclFloat, op[r], comm[r], stream[r]));
    }
    /* in a group: 10 * 4 + 10 * 5, and 1 * 0.5 + 1 * 1.5, by operators that end with the calls */
    put_factors(at, 4, stream);
    put_factors(more, 0.5f, stream);
    NCCL(ncclGroupStart());
    for (int r = 0; r < 2; r++) {
        NCCL(ncclAllReduce(x[r], x[r], 1, ncclFloat, op[r], comm[r], stream[r]));
        NCCL(ncclRedOpDestroy(op[r], comm[r]));
        NCCL(ncclRedOpCreatePreMulSum(&next[r], more[r], ncclFloat, ncclScalarDevice, comm[r]));
        NCCL(ncclAllReduce(x[r] + 1, x[r] + 1, 1, ncclFloat, next[r], comm[r], stream[r]));
        NCCL(ncclRedOpDestroy(next[r], comm[r]));
    }
    NCCL(ncclGroupEnd());
    for (int r = 0; r < 2; r++) {
        CUDA(cudaSetDevice(r));
        CUDA(cudaStreamSynchronize(stream[r]));
        CUDA(cudaMemcpy(all, x[r], sizeof all, cudaMemcpyDeviceToHost));
        PROCS_CHECK(all[0] == 90 && all[1] == 2, "rank %d: %g %g", r, (double)all[0],
                    (double)all[1]);
    }
    for (int r = 0; r < 2; r++) {
        NCCL(ncclCommDestroy(comm[r]));
    }
    return 0;
}

Test(nccl, factors_on_devices_hold_up_no_thread)
{
    int ended[PROCS_MAX];
    for (int coded = 0; coded < 2; coded++) {
        (void)procs_run(1, 30, two_ranks, coded ? "f16" : "none", ended);
        cr_expect_eq(ended[0], 0, "coded %d: %d", coded, ended[0]);
    }
}

/* Calls beside a capture leave it alone, also if their factor is on the device. */
static int beside_capture(int rank, int n, procs_shared *s, void *arg)
{
    ncclComm_t comm = ranks_join(rank, n, s);
    cudaStream_t streams[6], captured;
    cudaGraph_t graph;
    ncclRedOp_t op;
    float factor = (float)rank + 2;
    char *x, *there;
    const place p = {rank, n, ncclSum, 0};
    (void)arg;
    CUDA(cudaStreamCreateWithFlags(&captured, cudaStreamNonBlocking));
    CUDA(cudaMalloc((void **)&x, BLOCK * 4));
    CUDA(cudaMalloc((void **)&there, sizeof factor));
    CUDA(cudaMemcpy(there, &factor, sizeof factor, cudaMemcpyHostToDevice));
    CUDA(cudaStreamSynchronize(cudaStreamLegacy));
    NCCL(ncclRedOpCreatePreMulSum(&op, there, ncclFloat, ncclScalarDevice, comm));
    for (int i = 0; i < 6; i++) {
        CUDA(cudaStreamCreateWithFlags(&streams[i], cudaStreamNonBlocking));
        numbers_put(x, BLOCK, ncclFloat, own, &p, streams[i]);
        CUDA(cudaStreamBeginCapture(captured, cudaStreamCaptureModeGlobal));
        CUDA(cudaMemsetAsync(there, 0, sizeof factor, captured));
        NCCL(ncclAllReduce(x, x, BLOCK, ncclFloat, op, comm, streams[i]));
        CUDA(cudaStreamEndCapture(captured, &graph));
        CUDA(cudaGraphDestroy(graph));
        numbers_are("beside a capture", x, BLOCK, ncclFloat, scaled, &p, streams[i]);
    }
    return ranks_leave(rank, n, -1, s, comm);
}

Test(nccl, a_capture_is_left_alone)
{
    runs(2, beside_capture, 60);
}

Test(nccl, pre_multiplied_sums)
{
    runs(2, premultiplied, 60);
}
