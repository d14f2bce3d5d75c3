/* test_nccl_wait.c - NCCL's interface: how long ranks wait for each other. There is no time-out but
 * the user's own. */
#define _GNU_SOURCE
#include "nccl_ranks.h"
#include <criterion/criterion.h>
#include <stdatomic.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

/* The process's clock, in place of the C library's: it can be put forward. */
static _Atomic int64_t put_forward_s;

int clock_gettime(clockid_t clock, struct timespec *t)
{
    const int rc = (int)syscall(SYS_clock_gettime, clock, t);
    t->tv_sec += clock == CLOCK_MONOTONIC ? atomic_load(&put_forward_s) : 0;
    return rc;
}

static double seconds(void)
{
    struct timespec t;
    syscall(SYS_clock_gettime, CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static bool said(const char *path, const char *words)
{
    char text[8192];
    FILE *f = fopen(path, "r");
    const size_t len = f != NULL ? fread(text, 1, sizeof text - 1, f) : 0;
    text[len] = '\0';
    if (f != NULL) {
        fclose(f);
    }
    return strstr(text, words) != NULL;
}

/* Wait until the communicator has an error, 20 s at most; without `wanted`, half a second. */
static ncclResult_t error_of(ncclComm_t comm, bool wanted)
{
    const double until = seconds() + (wanted ? 20 : 0.5);
    ncclResult_t state = ncclSuccess;
    while (state == ncclSuccess && seconds() < until) {
        procs_nap();
        NCCL(ncclCommGetAsyncError(comm, &state));
    }
    return state;
}

typedef struct limit {
    const char *variable, *name; /* of the environment; of the communicator */
    bool limited;
} limit;

static void rank_waits(int rank, int n, procs_shared *s)
{
    while (!procs_all(s, n, 1, rank)) {
        procs_nap();
    }
}

/* Rank 1 comes 1,000 s after rank 0, by rank 0's clock. */
static int comes_late(int rank, int n, procs_shared *s, void *arg)
{
    const limit *l = arg;
    char path[] = "/tmp/nccl_wait.XXXXXX";
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    ncclComm_t comm = NULL;
    cudaStream_t stream;
    float one = 1, *x;
    const int log = mkstemp(path);
    PROCS_TRUE(log >= 0 && dup2(log, 2) == 2);
    setenv("DCOMM_TIMEOUT", l->variable, 1);
    config.commName = l->name;
    CUDA(cudaSetDevice(rank));
    NCCL(ncclCommInitRankConfig(&comm, n, ranks_id(rank, s), rank, &config));
    CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    CUDA(cudaMalloc((void **)&x, sizeof one));
    CUDA(cudaMemcpy(x, &one, sizeof one, cudaMemcpyHostToDevice));
    CUDA(cudaStreamSynchronize(cudaStreamLegacy));
    if (rank == 1) {
        rank_waits(rank, n, s);
    }
    if (rank == 0 || !l->limited) {
        NCCL(ncclAllReduce(x, x, 1, ncclFloat, ncclSum, comm, stream));
    }
    if (rank == 0) {
        PROCS_TRUE(error_of(comm, false) == ncclSuccess);
        atomic_store(&put_forward_s, 1000);
        PROCS_CHECK(error_of(comm, l->limited) == (l->limited ? ncclRemoteError : ncclSuccess),
                    "%s", ncclGetLastError(comm));
        PROCS_TRUE(!l->limited || strstr(ncclGetLastError(comm), "timed out after 100 s") != NULL);
        for (double until = seconds() + 20; !l->limited && seconds() < until; procs_nap()) {
            if (said(path, "has waited 300 s, without a limit: rank 1 never entered")) {
                break;
            }
        }
        PROCS_TRUE(l->limited || said(path, "without a limit: rank 1 never entered"));
        procs_post(s, rank, 1);
    }
    CUDA(cudaStreamSynchronize(stream));
    CUDA(cudaMemcpy(&one, x, sizeof one, cudaMemcpyDeviceToHost));
    unlink(path);
    if (l->limited) {
        NCCL(ncclCommAbort(comm));
        return 0;
    }
    PROCS_CHECK(one == (float)n, "the sum is %g", (double)one);
    return ranks_leave(rank, n, -1, s, comm);
}

static void both(procs_fn fn, const limit *l)
{
    int ended[PROCS_MAX];
    (void)procs_run(2, 100, fn, (void *)l, ended);
    cr_expect(ended[0] == 0 && ended[1] == 0, "DCOMM_TIMEOUT=%s, %s: %d %d", l->variable, l->name,
              ended[0], ended[1]);
}

Test(nccl_wait, a_late_rank_is_waited_for)
{
    both(comes_late, &(limit){.variable = "", .name = "late"});
}

Test(nccl_wait, not_beyond_the_users_own_limit)
{
    both(comes_late, &(limit){.variable = "100", .name = "late", .limited = true});
    both(comes_late, &(limit){.variable = "", .name = "late dcomm:timeout=100", .limited = true});
}

/* Rank 1 joins 1,000 s after rank 0, by rank 0's clock. */
static int joins_late(int rank, int n, procs_shared *s, void *arg)
{
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    ncclResult_t state = ncclInProgress;
    ncclComm_t comm = NULL;
    (void)arg;
    const ncclUniqueId id = ranks_id(rank, s);
    config.blocking = 0;
    CUDA(cudaSetDevice(rank));
    if (rank == 1) {
        rank_waits(rank, n, s);
    }
    PROCS_TRUE(ncclCommInitRankConfig(&comm, n, id, rank, &config) == ncclInProgress);
    if (rank == 0) {
        for (int i = 0; i < 2; i++) {
            for (double until = seconds() + 0.5; seconds() < until; procs_nap()) {
                NCCL(ncclCommGetAsyncError(comm, &state));
                PROCS_TRUE(state == ncclInProgress);
            }
            atomic_store(&put_forward_s, 1000);
        }
        procs_post(s, rank, 1);
    }
    while (state == ncclInProgress) {
        procs_nap();
        NCCL(ncclCommGetAsyncError(comm, &state));
    }
    PROCS_CHECK(state == ncclSuccess, "%s", ncclGetLastError(comm));
    return ranks_leave(rank, n, -1, s, comm);
}

Test(nccl_wait, even_when_communicators_begin)
{
    unsetenv("DCOMM_TIMEOUT");
    both(joins_late, &(limit){.name = "late"});
}
