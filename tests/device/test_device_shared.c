/* test_device_shared.c - device memory that peers open. Kernels of other processes read it in
 * place. It may be freed, and its ranks may die, at any time. tests/meson.build links it with the
 * host stand-in for CUDA, whose device fails if memory is freed that another process has open;
 * tests/gpu.sh with CUDA. */
#define _GNU_SOURCE
#include "device_shared.h"

#include <criterion/criterion.h>
#include <signal.h>

/* ---- reading in place ---- */

/* Sum several times: peers first learn of the memory, then open it. Check that it is read in
 * place. */
static void expect(dcomm_comm *comm, float *device, bool open, cudaStream_t stream)
{
    static const char *const algos[] = {"one_shot", "two_shot", "ring", "halving_doubling"};
    for (int a = 0; a < 4; a++) {
        uint64_t bytes = 0;
        for (int i = 0; i < TIMES; i++) {
            bytes = sum(comm, device, i, algos[a], stream);
        }
        PROCS_CHECK((bytes > 0) == open, "%s: %lu bytes were read in place", algos[a],
                    (unsigned long)bytes);
    }
}

static int opens(int rank, int n, procs_shared *s, void *arg)
{
    ranks_settle(rank, n, *(ranks_place *)arg);
    dcomm_comm *comm = ranks_join(rank, n, s, NULL);
    void *p = allocate(comm, BYTES + 4096), *ordinary = NULL;
    float *inside = (float *)((char *)p + 4096);
    cudaStream_t stream;
    CUDA_OK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    CUDA_OK(cudaMalloc(&ordinary, BYTES));
    bool near = *(ranks_place *)arg == RANKS_LOCAL || *(ranks_place *)arg == RANKS_MESSAGE;
    expect(comm, ordinary, false, NULL);
    expect(comm, inside, near, NULL);
    expect(comm, inside, near, stream);
    for (int i = 0; i < 8; i++) { /* only one rank's memory is shared: the sums are right */
        sum(comm, (i / 2) % n == rank ? inside : ordinary, i, i % 2 ? "two_shot" : "ring", stream);
    }
    RANKS_OK(dcomm_mem_free(&p));
    device_free(cudaFree, ordinary);
    CUDA_OK(cudaStreamDestroy(stream));
    return ranks_leave(&comm);
}

Test(device_shared, sums_read_it_where_it_lies, .timeout = 120)
{
    const ranks_place places[] = {RANKS_LOCAL, RANKS_MESSAGE, RANKS_HOSTS};
    for (int p = 0; p < 3; p++) {
        const bool all = test_full();
        for (int n = all ? 2 : 2 + p % 2; n <= 4 - p; n += all ? 1 : 2) {
            ranks_place place = places[p];
            cr_assert_eq(runs(n, opens, &place), 0, "%d ranks, %s", n, ranks_place_name(place));
        }
    }
}

/* Every collective by every algorithm. If all ranks can read a buffer, all read it in place. */
static int everything(int rank, int n, procs_shared *s, void *arg)
{
    (void)arg;
    ranks_settle(rank, n, RANKS_LOCAL);
    dcomm_comm *comm = ranks_join(rank, n, s, NULL);
    cudaStream_t stream;
    unsigned turn = 0;
    CUDA_OK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    ranks_registered = (ranks_arena){.memory = device_pinned(DEVICE_ARENA), .len = DEVICE_ARENA};
    device_double = allocate(comm, DEVICE_ARENA);
    for (int coll = 0; coll < DCOMM_COLL_BARRIER; coll++) {
        dcomm_algo_info info;
        uint64_t opened = opened_so_far(comm);
        for (int a = -1; a < 0 || dcomm_algo_get_info((dcomm_coll)coll, a, &info) == DCOMM_OK;
             a++) {
            for (int f = APART; f < FORMS; f++, turn++) {
                job j = {.comm = comm,
                         .rank = rank,
                         .n = n,
                         .coll = (dcomm_coll)coll,
                         .algo = a < 0 ? NULL : info.name,
                         .dtype = turn % 2 ? DCOMM_F32 : DCOMM_BF16,
                         .op = turn % 3 == 0 ? DCOMM_AVG : DCOMM_SUM,
                         .count = turn % 4 == 0 ? 1023 : 50000,
                         .root = rooted((dcomm_coll)coll) ? (int)(turn % (unsigned)n) : 0,
                         .form = (form)f,
                         .blocking = turn % 2 == 0,
                         .there = device_there,
                         .back = device_back};
                device_stream = turn % 3 > 0 ? stream : NULL;
                j.opts.stream = device_stream;
                j.opts.device = turn % 5 > 0;
                j.opts.registered = turn % 7 < 4;
                if (counted((dcomm_coll)coll)) {
                    spread(&j, turn % 3 == 0);
                }
                run(&j);
            }
        }
        opened = opened_so_far(comm) - opened;
        bool all = !rooted((dcomm_coll)coll) &&
                   (!counted((dcomm_coll)coll) || coll == DCOMM_COLL_ALLTOALLV);
        PROCS_CHECK(opened > 0 || !all, "%s: nothing was read in place",
                    dcomm_coll_name((dcomm_coll)coll));
    }
    RANKS_OK(dcomm_comm_status(comm));
    void *p = device_double;
    RANKS_OK(dcomm_mem_free(&p));
    device_free(cudaFreeHost, ranks_registered.memory);
    ranks_registered.memory = NULL;
    CUDA_OK(cudaStreamDestroy(stream));
    return ranks_leave(&comm);
}

Test(device_shared, every_collective, .timeout = 180)
{
    for (int n = 2; n <= 4; n++) {
        if (n == 2 || test_full()) {
            cr_assert_eq(device_run(n, false, 50, everything, NULL), 0, "%d ranks", n);
        }
        if (n == 3 || test_full()) {
            cr_assert_eq(device_run(n, true, 50, everything, NULL), 0, "%d threads", n);
        }
    }
}

/* ---- lifetime ---- */

/* Free memory while peers have it open, and allocate it again at the same address. Peers must not
 * read the old memory. */
static int again(int rank, int n, procs_shared *s, void *arg)
{
    (void)arg;
    ranks_settle(rank, n, RANKS_LOCAL);
    dcomm_comm *comm = ranks_join(rank, n, s, NULL);
    void *was = NULL;
    int reused = 0;
    for (int round = 0; round < (test_full() ? 12 : 6); round++) {
        void *p = allocate(comm, BYTES);
        reused += p == was;
        was = p;
        for (int i = 0; i < TIMES; i++) {
            sum(comm, p, 10 * round + i, i % 2 ? "two_shot" : "ring", NULL);
        }
        RANKS_OK(dcomm_mem_free(&p));
        PROCS_TRUE(p == NULL);
        talk(comm);
    }
#ifdef CUDA_HOST_STAND_IN /* other allocators need not reuse addresses */
    PROCS_CHECK(reused > 0, "no address came again");
#else
    (void)reused;
#endif
    PROCS_TRUE(cudaGetLastError() == cudaSuccess);
    return ranks_leave(&comm);
}

Test(device_shared, freed_and_made_again, .timeout = 120)
{
    for (int n = 2; n <= 3; n++) {
        cr_assert_eq(runs(n, again, NULL), 0, "%d ranks", n);
    }
}

/* Freeing or closing memory must not wait for a stream that waits for another rank. */
static int held_streams(int rank, int n, procs_shared *s, void *arg)
{
    (void)arg;
    ranks_settle(rank, n, RANKS_LOCAL);
    dcomm_comm *comm = ranks_join(rank, n, s, NULL);
    cudaStream_t stream;
    dcomm_coll_opts opts = {.algo = "two_shot", .device = true};
    CUDA_OK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    opts.stream = stream;
    float *work = NULL;
    void *p = opened(comm), *fresh = allocate(comm, BYTES);
    CUDA_OK(cudaMalloc((void **)&work, BYTES));
    CUDA_OK(cudaMemset(work, 0, BYTES));
    CUDA_OK(cudaDeviceSynchronize());
    meet(s, rank, n, 1);
    for (int first = 0; first < n; first++) {
        if (rank != first) { /* the last rank to call lets the other streams continue */
            RANKS_OK(dcomm_allreduce(comm, work, work, COUNT, DCOMM_F32, DCOMM_SUM, &opts));
        }
        meet(s, rank, n, 3 * first + 2);
        if (first == 0) {
            RANKS_OK(dcomm_mem_free(&p));
            RANKS_OK(dcomm_mem_free(&fresh));
        }
        meet(s, rank, n, 3 * first + 3);
        if (rank != first) { /* another call that closes memory */
            RANKS_OK(dcomm_allreduce(comm, work, work, COUNT, DCOMM_F32, DCOMM_SUM, &opts));
        }
        meet(s, rank, n, 3 * first + 4);
        for (int i = 0; i < 2 && rank == first; i++) {
            RANKS_OK(dcomm_allreduce(comm, work, work, COUNT, DCOMM_F32, DCOMM_SUM, &opts));
        }
        CUDA_OK(cudaStreamSynchronize(stream));
    }
    RANKS_OK(dcomm_comm_status(comm));
    device_free(cudaFree, work);
    CUDA_OK(cudaStreamDestroy(stream));
    talk(comm);
    talk(comm);
    PROCS_TRUE(cudaGetLastError() == cudaSuccess);
    return ranks_leave(&comm);
}

Test(device_shared, streams_that_wait_are_not_waited_for, .timeout = 60)
{
    for (int n = 2; n <= 3; n++) {
        cr_assert_eq(runs(n, held_streams, NULL), 0, "%d ranks", n);
    }
}

/* ---- death ---- */

enum { RANKS = 3, VICTIM = 1 };

/* A rank is killed during operations on memory that all ranks have open. */
static int killed(int rank, int n, procs_shared *s, void *arg)
{
    static const char *const algos[] = {"one_shot", "ring", "two_shot", "halving_doubling"};
    (void)arg;
    ranks_settle(rank, n, RANKS_LOCAL);
    dcomm_comm *comm = ranks_join(rank, n, s, NULL), *small = NULL;
    float *p = opened(comm);
    void *memory = p;
    pthread_t thread;
    meet(s, rank, n, 1);
    if (rank == VICTIM) {
        PROCS_TRUE(pthread_create(&thread, NULL, procs_die_soon, NULL) == 0);
    }
    dcomm_status status = DCOMM_OK;
    for (int i = 0; status == DCOMM_OK; i++) {
        dcomm_coll_opts opts = {.algo = algos[i % 4], .device = true};
        status = dcomm_allreduce(comm, p, p + COUNT, COUNT, DCOMM_F32, DCOMM_SUM, &opts);
    }
    PROCS_CHECK(status == DCOMM_ERR_PEER && strstr(dcomm_last_error(), "rank 1") != NULL, "%s",
                dcomm_last_error());
    int dead = VICTIM;
    RANKS_OK(dcomm_comm_shrink(comm, &dead, 1, &small));
    RANKS_OK(dcomm_comm_destroy(&comm));
    uint64_t bytes = 0;
    for (int i = 0; i < TIMES; i++) {
        bytes = sum(small, p, i, "two_shot", NULL);
    }
    PROCS_TRUE(bytes > 0);
    RANKS_OK(dcomm_mem_free(&memory)); /* the dead rank no longer has it open */
    talk(small);
    talk(small);
    RANKS_OK(dcomm_comm_destroy(&small));
    return procs_leaks();
}

Test(device_shared, a_peer_that_dies, .timeout = 100)
{
    int ended[PROCS_MAX];
    procs_run(RANKS, 40, killed, NULL, ended);
    for (int r = 0; r < RANKS; r++) {
        int want = r == VICTIM ? 128 + SIGKILL : 0;
        cr_assert_eq(ended[r], want, "rank %d ended with %d, not %d", r, ended[r], want);
    }
}
