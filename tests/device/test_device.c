/* test_device.c - every collective of device memory, by every algorithm, on and off streams, with
 * ranks as processes or as threads of one; the order of work on a stream; refusals.
 * tests/meson.build links it with the host stand-in for CUDA, tests/gpu.sh with CUDA. */
#define _GNU_SOURCE
#include "device_ranks.h"

#include <criterion/criterion.h>

typedef struct where {
    ranks_place place;
    bool threads;
    int host_rank; /* the rank with buffers in host memory; -1: none */
    bool device;   /* the value of opts.device */
} where;

static const dcomm_dtype dtypes[] = {DCOMM_F32, DCOMM_BF16, DCOMM_F64, DCOMM_I32, DCOMM_F16,
                                     DCOMM_U8,  DCOMM_I64,  DCOMM_U32, DCOMM_I8,  DCOMM_U64};

static dcomm_comm *join(int rank, int n, procs_shared *s, const where *w)
{
    if (!w->threads || rank == 0) {
        ranks_settle(rank, n, w->place);
    }
    return ranks_join(rank, n, s, NULL);
}

static bool allowed(dcomm_coll coll, dcomm_op op)
{
    return op != DCOMM_PREMUL_SUM || folds(coll);
}

/* Every collective by every algorithm; dtypes, operators, forms and streams take turns. */
static int everything(int rank, int n, procs_shared *s, void *arg)
{
    const where *w = arg;
    dcomm_comm *comm = join(rank, n, s, w);
    cudaStream_t streams[2];
    for (int i = 0; i < 2; i++) {
        CUDA_OK(cudaStreamCreateWithFlags(&streams[i], cudaStreamNonBlocking));
    }
    const size_t counts[] = {0, 1, 1023, 20011};
    const bool all = test_full();
    unsigned turn = 0;
    device_arena_make();
    for (int coll = 0; coll <= DCOMM_COLL_BARRIER; coll++) {
        dcomm_algo_info info;
        for (int a = -1; a < 0 || dcomm_algo_get_info((dcomm_coll)coll, a, &info) == DCOMM_OK;
             a++) {
            for (size_t c = 0; c < sizeof counts / sizeof *counts; c++) {
                for (int f = APART; f < FORMS; f++) {
                    if (all ? n > 2 && (f + (int)c) % FORMS != 0
                            : n > 1 && (f + (int)c + 2 * a + n + 1) % (2 * FORMS) != 0) {
                        continue; /* smaller rank counts have tried all of these */
                    }
                    turn++;
                    job j = {.comm = comm,
                             .rank = rank,
                             .n = n,
                             .coll = (dcomm_coll)coll,
                             .algo = a < 0 ? NULL : info.name,
                             .dtype = dtypes[turn % 10],
                             .op = (dcomm_op)(turn / 3 % 6),
                             .count = counts[c],
                             .root = rooted((dcomm_coll)coll) ? (int)(turn % (unsigned)n) : 0,
                             .form = (form)f,
                             .blocking = turn % 2 == 0,
                             .lanes = turn % 5 == 0 ? 2 : 0};
                    if (!allowed(j.coll, j.op)) {
                        j.op = DCOMM_SUM;
                    }
                    device_stream = turn % 3 > 0 ? streams[turn % 3 - 1] : NULL;
                    j.opts.stream = device_stream;
                    j.opts.device = w->device;
                    if (rank != w->host_rank) {
                        j.there = device_there;
                        j.back = device_back;
                    } else if (device_stream != NULL) {
                        j.opts.stream = NULL;
                    }
                    if (counted((dcomm_coll)coll)) {
                        spread(&j, turn % 3 == 0);
                    }
                    run(&j);
                }
            }
        }
    }
    RANKS_OK(dcomm_comm_status(comm));
    device_arena_free();
    for (int i = 0; i < 2; i++) {
        CUDA_OK(cudaStreamDestroy(streams[i]));
    }
    return ranks_leave(&comm);
}

static void on(int n, where w, procs_fn fn)
{
    cr_assert_eq(device_run(n, w.threads, 50, fn, &w), 0, "%d ranks, %s%s", n,
                 ranks_place_name(w.place), w.threads ? ", threads" : "");
}

Test(device, one_rank, .timeout = 60)
{
    on(1, (where){.host_rank = -1}, everything);
}

Test(device, two_ranks, .timeout = 120)
{
    on(2, (where){.host_rank = -1}, everything);
    on(2, (where){.place = RANKS_HOSTS, .host_rank = -1}, everything);
}

Test(device, three_ranks, .timeout = 120)
{
    on(3, (where){.host_rank = -1}, everything);
    on(3, (where){.place = RANKS_MESSAGE, .host_rank = -1}, everything);
}

Test(device, four_ranks, .timeout = 120)
{
    if (test_full()) {
        on(4, (where){.host_rank = -1}, everything);
    }
    on(4, (where){.place = RANKS_PAIRS, .host_rank = -1}, everything);
}

Test(device, threads, .timeout = 180)
{
    for (int n = 2; n <= 4; n += test_full() ? 1 : 2) {
        on(n, (where){.threads = true, .host_rank = -1}, everything);
    }
}

Test(device, one_rank_in_host_memory, .timeout = 120)
{
    on(2, (where){.host_rank = 1}, everything);
    on(3, (where){.place = RANKS_PAIRS, .host_rank = 0}, everything);
}

/* Experts accept only host memory, and say so. No host code may dereference a device pointer. */
static int experts(int rank, int n, procs_shared *s, void *arg)
{
    enum { TOKENS = 4, HIDDEN = 8 };
    const where *w = arg;
    dcomm_comm *comm = join(rank, n, s, w);
    dcomm_moe_opts opts = {.experts = 4, .hidden = HIDDEN, .k = 1, .dtype = DCOMM_F32};
    int32_t to[TOKENS] = {0, 1, 2, 3};
    float x[TOKENS * HIDDEN] = {0};
    void *there = NULL;
    CUDA_OK(cudaMalloc(&there, sizeof x));
    for (int c = 0; c < 2; c++) {
        dcomm_moe *m = NULL;
        dcomm_moe_batch batch;
        RANKS_OK(dcomm_moe_create(comm, &opts, &m));
        ranks_refused(dcomm_moe_route(m, TOKENS, rank == 1 ? there : to, NULL),
                      DCOMM_ERR_UNSUPPORTED, "rank 1 has experts on device 0");
        ranks_refused(dcomm_moe_route(m, TOKENS, to, rank == 1 ? there : NULL),
                      DCOMM_ERR_UNSUPPORTED, "rank 1 has weights on device 0");
        RANKS_OK(dcomm_moe_route(m, TOKENS, to, NULL));
        RANKS_OK(dcomm_barrier(comm, NULL)); /* an error may not overtake the end of the routing */
        dcomm_status status = dcomm_moe_dispatch_start(m, 0, rank == 1 && c == 0 ? there : x);
        status = status >= 0 ? dcomm_moe_dispatch_wait(m, 0, &batch) : status;
        status = status >= 0 ? dcomm_moe_combine_start(m, 0, batch.rows) : status;
        status = status >= 0 ? dcomm_moe_combine_wait(m, 0, rank == 1 ? there : x) : status;
        if (rank == 1) {
            ranks_refused(status, DCOMM_ERR_UNSUPPORTED,
                          c == 0 ? "dcomm_moe_dispatch: rank 1 has rows on device 0"
                                 : "dcomm_moe_combine: rank 1 has results on device 0");
        } else if (c == 0) {
            ranks_refused(status, DCOMM_ERR_ABORTED, "rank 1 has rows on device 0");
        }
        dcomm_moe_destroy(&m);
        RANKS_OK(dcomm_barrier(comm, NULL));
    }
    device_free(cudaFree, there);
    return ranks_leave(&comm);
}

Test(device, experts_take_host_memory, .timeout = 60)
{
    on(2, (where){.host_rank = -1}, experts);
}

/* Run a caller's plan whose scratch is in host memory. Its steps on the scratch run on the host,
 * and its copies cross the bus in several pieces. */
static int through_host(int rank, int n, procs_shared *s, void *arg)
{
    enum { COUNT = 400003, BYTES = COUNT * 4 };
#define SPAN(SPACE)                                                                  \
    {                                                                                \
        .space = (SPACE), .repeat = 1, .length = {.add = BYTES}, .max_length = BYTES \
    }
    const dcomm_operand operands[] = {SPAN(DCOMM_SPACE_IN), SPAN(DCOMM_SPACE_SCRATCH),
                                      SPAN(DCOMM_SPACE_SCRATCH), SPAN(DCOMM_SPACE_SCRATCH)};
    const dcomm_step steps[] = {
        {.kind = DCOMM_STEP_COPY, .nsrc = 1, .word = -1, .dst = SPAN(DCOMM_SPACE_SCRATCH)},
        {.kind = DCOMM_STEP_REDUCE,
         .src = 1,
         .nsrc = 2,
         .word = -1,
         .dst = SPAN(DCOMM_SPACE_SCRATCH)},
        {.kind = DCOMM_STEP_COPY, .src = 3, .nsrc = 1, .word = -1, .dst = SPAN(DCOMM_SPACE_OUT)}};
#undef SPAN
    const dcomm_lane lane = {.count = 3};
    const dcomm_plan plan = {.name = "through host memory",
                             .rank = rank,
                             .nranks = n,
                             .dtype = DCOMM_F32,
                             .nlanes = 1,
                             .nsteps = 3,
                             .noperands = 4,
                             .lanes = &lane,
                             .steps = steps,
                             .operands = operands,
                             .scratch_on_host = true,
                             .in_bytes = BYTES,
                             .out_bytes = BYTES,
                             .scratch_bytes = BYTES};
    dcomm_comm *comm = join(rank, n, s, arg);
    float *x = malloc(BYTES), *in = NULL, *out = NULL;
    PROCS_TRUE(x != NULL);
    CUDA_OK(cudaMalloc((void **)&in, BYTES));
    CUDA_OK(cudaMalloc((void **)&out, BYTES));
    for (int i = 0; i < COUNT; i++) {
        x[i] = (float)(i + rank);
    }
    CUDA_OK(cudaMemcpy(in, x, BYTES, cudaMemcpyHostToDevice));
    RANKS_OK(dcomm_plan_run(comm, &plan, in, out, NULL, 7, NULL));
    CUDA_OK(cudaMemcpy(x, out, BYTES, cudaMemcpyDeviceToHost));
    for (int i = 0; i < COUNT; i++) {
        PROCS_CHECK(x[i] == 2 * (float)(i + rank), "element %d is %g", i, (double)x[i]);
    }
    device_free(cudaFree, in);
    device_free(cudaFree, out);
    free(x);
    return ranks_leave(&comm);
}

Test(device, a_plan_through_host_memory, .timeout = 60)
{
    on(2, (where){.host_rank = -1}, through_host);
}
