/* test_nccl_codec.c - NCCL's interface: the end of a group decides on codec "auto", for any number
 * of lengths, communicators and ranks of a thread in the group. */
#define _GNU_SOURCE
#include "nccl_ranks.h"
#include <criterion/criterion.h>

enum { LENGTHS = 3, MOST = 100000 };
static const size_t lengths[LENGTHS] = {MOST, MOST / 3, 100};

/* A network on which compression pays: 100 ns for a byte. */
static void slow_network(void)
{
    static const char *const links[] = {"host", "package", "numa", "cache", "core", "near"};
    static const char *const curves[] = {"message", "fold",        "read",
                                         "reduce",  "mapped_read", "mapped_reduce"};
    char path[] = "/tmp/dcomm-test-XXXXXX";
    int fd = mkstemp(path);
    FILE *f = fdopen(fd, "w");
    for (size_t i = 0; i < 6; i++) {
        for (size_t k = 0; k < 6; k++) {
            fprintf(f, "%s.%s = 0:20 1048576:100000\n", links[i], curves[k]);
        }
    }
    fclose(f);
    setenv("DCOMM_TUNE_FILE", path, 1);
}

static void done(void)
{
    unlink(getenv("DCOMM_TUNE_FILE"));
    unsetenv("DCOMM_TUNE_FILE");
}

/* tuned: by the tuning file, if there is one. */
static void settings(bool tuned)
{
    setenv("DCOMM_CODEC", "auto:qsgd:bits=8", 1);
    setenv("DCOMM_TUNE", tuned ? "1" : "0", 1);
}

static float number(size_t i)
{
    return (float)(i * 7919 % 1009) / 1009 - 0.5F;
}

static float *values(size_t count, int rank)
{
    float *there = NULL, *here = malloc(count * sizeof *here);
    for (size_t i = 0; i < count; i++) {
        here[i] = (float)(rank + 1) * number(i);
    }
    CUDA(cudaMalloc((void **)&there, count * sizeof *here));
    CUDA(cudaMemcpy(there, here, count * sizeof *here, cudaMemcpyHostToDevice));
    CUDA(cudaStreamSynchronize(cudaStreamLegacy));
    free(here);
    return there;
}

/* Return true if the sum over n ranks was sent compressed, which its rounding errors show. */
static bool coded(const float *there, size_t count, int n)
{
    float *here = malloc(count * sizeof *here);
    double worst = 0;
    CUDA(cudaMemcpy(here, there, count * sizeof *here, cudaMemcpyDeviceToHost));
    for (size_t i = 0; i < count; i++) {
        double off = here[i] - n * (n + 1) / 2 * (double)number(i);
        off = off < 0 ? -off : off;
        worst = off > worst ? off : worst;
    }
    free(here);
    PROCS_CHECK(worst < 0.1 * n * n, "an error of %g", worst);
    return worst > 1e-4 * n;
}

/* ---- all ranks of a thread ---- */

/* Run all lengths in one group, twice: first to decide, then with the decision known. */
static void of_one_thread(int n, bool expected)
{
    ncclComm_t comms[4];
    cudaStream_t streams[4];
    CUDA(cudaSetDevice(0));
    NCCL(ncclCommInitAll(comms, n, NULL));
    for (int i = 0; i < n; i++) {
        CUDA(cudaSetDevice(i));
        CUDA(cudaStreamCreateWithFlags(&streams[i], cudaStreamNonBlocking));
    }
    for (int round = 0; round < 2; round++) {
        float *x[4][LENGTHS];
        for (int i = 0; i < n; i++) {
            CUDA(cudaSetDevice(i));
            for (int k = 0; k < LENGTHS; k++) {
                x[i][k] = values(lengths[k], i);
            }
        }
        NCCL(ncclGroupStart());
        for (int i = 0; i < n; i++) {
            for (int k = 0; k < LENGTHS; k++) {
                NCCL(ncclAllReduce(x[i][k], x[i][k], lengths[k], ncclFloat, ncclSum, comms[i],
                                   streams[i]));
            }
        }
        NCCL(ncclGroupEnd());
        for (int i = 0; i < n; i++) {
            CUDA(cudaStreamSynchronize(streams[i]));
            for (int k = 0; k < LENGTHS; k++) {
                PROCS_CHECK(coded(x[i][k], lengths[k], n) == (expected && lengths[k] > 100),
                            "round %d, rank %d, %zu elements", round, i, lengths[k]);
                CUDA(cudaFree(x[i][k]));
            }
        }
    }
    for (int i = 0; i < n; i++) {
        CUDA(cudaStreamDestroy(streams[i]));
        NCCL(ncclCommDestroy(comms[i]));
    }
}

static int one_thread(int rank, int n, procs_shared *s, void *arg)
{
    PROCS_TRUE(rank == 0 && n == 1 && s != NULL);
    settings(*(bool *)arg);
    for (int ranks = 2; ranks <= 4; ranks++) {
        of_one_thread(ranks, *(bool *)arg);
    }
    return 0;
}

Test(nccl_codec, all_ranks_of_one_thread, .timeout = 110)
{
    int ended[PROCS_MAX];
    bool expected = false;
    cr_assert_eq(procs_run(1, 50, one_thread, &expected, ended), 0, "within a host");
    expected = true;
    slow_network();
    cr_assert_eq(procs_run(1, 50, one_thread, &expected, ended), 0, "over a slow network");
    done();
}

/* ---- ranks that are processes ---- */

/* Two communicators in one group; one rank calls them outside of the group. */
static int divided(int rank, int n, procs_shared *s, void *arg)
{
    (void)arg;
    settings(true);
    ncclComm_t comm = ranks_join(rank, n, s), half = NULL;
    cudaStream_t streams[2];
    NCCL(ncclCommSplit(comm, rank % 2, rank, &half, NULL));
    for (int i = 0; i < 2; i++) {
        CUDA(cudaStreamCreateWithFlags(&streams[i], cudaStreamNonBlocking));
    }
    float *x = values(MOST, rank), *y = values(MOST / 2, rank / 2);
    if (rank != 1) {
        NCCL(ncclGroupStart());
    }
    NCCL(ncclAllReduce(x, x, MOST, ncclFloat, ncclSum, comm, streams[0]));
    NCCL(ncclAllReduce(y, y, MOST / 2, ncclFloat, ncclSum, half, streams[1]));
    if (rank != 1) {
        NCCL(ncclGroupEnd());
    }
    for (int i = 0; i < 2; i++) {
        CUDA(cudaStreamSynchronize(streams[i]));
        CUDA(cudaStreamDestroy(streams[i]));
    }
    PROCS_TRUE(coded(x, MOST, n) && coded(y, MOST / 2, n / 2));
    NCCL(ncclCommDestroy(half));
    return ranks_leave(rank, n, -1, s, comm);
}

Test(nccl_codec, two_communicators_in_a_group, .timeout = 60)
{
    int ended[PROCS_MAX];
    slow_network();
    cr_assert_eq(procs_run(4, 50, divided, NULL, ended), 0);
    done();
}

/* Ranks that cannot agree get an error, from the end of the group as from a single call. The
 * streams go on. */
static int lost(int rank, int n, procs_shared *s, void *arg)
{
    (void)arg;
    settings(true);
    ncclComm_t comm = ranks_join(rank, n, s);
    cudaStream_t stream;
    ncclResult_t state = ncclSuccess;
    float *x = values(MOST, rank);
    if (rank == 0) {
        _exit(7);
    }
    CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    NCCL(ncclGroupStart());
    for (int k = 0; k < LENGTHS; k++) {
        NCCL(ncclAllReduce(x, x, lengths[k], ncclFloat, ncclSum, comm, stream));
    }
    NCCL_REFUSES(ncclGroupEnd(), ncclRemoteError, "rank 0");
    CUDA(cudaStreamSynchronize(stream));
    NCCL(ncclCommGetAsyncError(comm, &state));
    PROCS_TRUE(state == ncclRemoteError);
    NCCL(ncclCommAbort(comm));
    return 0;
}

Test(nccl_codec, a_rank_that_is_lost, .timeout = 60)
{
    int ended[PROCS_MAX] = {0};
    slow_network();
    (void)procs_run(3, 50, lost, NULL, ended);
    done();
    cr_assert(ended[0] == 7 && ended[1] == 0 && ended[2] == 0, "%d %d %d", ended[0], ended[1],
              ended[2]);
}
