/* test_device_types.c - collectives of device memory in every dtype, out of place and in place, on
 * and off streams, with two to four ranks of one device, as processes and as threads. dcomm
 * chooses the algorithms; test_device.c tests each of them. */
#define _GNU_SOURCE
#include "device_ranks.h"

#include <criterion/criterion.h>

static const dcomm_dtype dtypes[] = {DCOMM_F64, DCOMM_F32, DCOMM_F16, DCOMM_BF16, DCOMM_I8,
                                     DCOMM_U8,  DCOMM_I32, DCOMM_U32, DCOMM_I64,  DCOMM_U64};
enum { DTYPES = sizeof dtypes / sizeof *dtypes };

static void one(dcomm_comm *comm, dcomm_coll coll, dcomm_dtype dtype, form as, unsigned turn,
                cudaStream_t stream)
{
    static const size_t counts[] = {1023, 1, 20011};
    const int n = dcomm_comm_size(comm);
    job j = {.comm = comm,
             .rank = dcomm_comm_rank(comm),
             .n = n,
             .coll = coll,
             .dtype = dtype,
             .op = folds(coll) ? (dcomm_op)(turn % 6) : DCOMM_SUM,
             .count = counts[turn % 3],
             .root = rooted(coll) ? (int)(turn % (unsigned)n) : 0,
             .form = as,
             .blocking = turn % 2 == 0,
             .opts.device = turn % 5 > 1,
             .opts.stream = stream,
             .there = device_there,
             .back = device_back};
    device_stream = stream;
    if (counted(coll)) {
        spread(&j, turn % 3 == 0);
    }
    run(&j);
}

static int product(int rank, int n, procs_shared *s, void *arg)
{
    const bool *threads = arg;
    if (!*threads || rank == 0) {
        ranks_settle(rank, n, RANKS_LOCAL);
    }
    dcomm_comm *comm = ranks_join(rank, n, s, NULL);
    cudaStream_t streams[3] = {NULL};
    unsigned turn = 0;
    const bool full = test_full(); /* else each rank count runs a third */
    for (int i = 1; i < 3; i++) {
        CUDA_OK(cudaStreamCreateWithFlags(&streams[i], cudaStreamNonBlocking));
    }
    device_arena_make();
    for (int coll = 0; coll < DCOMM_COLL_BARRIER; coll++) {
        for (int d = 0; d < DTYPES; d++) {
            for (int f = APART; f < FORMS; f++, turn++) {
                if (full || turn / 7 % 3 == (unsigned)n % 3) {
                    one(comm, (dcomm_coll)coll, dtypes[d], (form)f, turn + turn / 30,
                        streams[turn % 3]);
                }
            }
        }
    }
    RANKS_OK(dcomm_comm_status(comm));
    device_arena_free();
    for (int i = 1; i < 3; i++) {
        CUDA_OK(cudaStreamDestroy(streams[i]));
    }
    return ranks_leave(&comm);
}

static void on(int n)
{
    for (int t = 0; t < 2; t++) {
        bool threads = t == 1;
        cr_assert_eq(device_run(n, threads, 50, product, &threads), 0, "%d ranks, %s", n,
                     threads ? "threads" : "processes");
    }
}

Test(device_types, two_ranks, .timeout = 110)
{
    on(2);
}

Test(device_types, three_ranks, .timeout = 110)
{
    on(3);
}

Test(device_types, four_ranks, .timeout = 110)
{
    on(4);
}
