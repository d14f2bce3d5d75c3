/* test_nccl_end.c - NCCL's interface: how communicators and processes end, and what is freed. */
#define _GNU_SOURCE
#include "cuda_host.h"
#include "nccl_ranks.h"
#include <criterion/criterion.h>
#include <dlfcn.h>
#include <malloc.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/* ---- the process's clock and events, in place of the libraries' ---- */

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

static _Thread_local bool no_events; /* in this thread */

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned int flags)
{
    cudaError_t (*real)(cudaEvent_t *, unsigned int) = NULL;
    *(void **)&real = dlsym(RTLD_NEXT, "cudaEventCreateWithFlags");
    return no_events ? cudaErrorMemoryAllocation : real(event, flags);
}

/* ---- ends ---- */

static _Atomic int held;

/* Hold up a stream for *user seconds. */
static void hold(void *user)
{
    atomic_store(&held, 1);
    for (double until = seconds() + *(double *)user; seconds() < until; procs_nap()) {
    }
    atomic_store(&held, 2);
}

static void quiet(void)
{
    setenv("DCOMM_TUNE", "0", 1);
    unsetenv("DCOMM_TIMEOUT");
}

/* The end of a communicator waits for a rank's copies to itself, also if there is no event to wait
 * for. */
static int copies_to_itself(int rank, int n, procs_shared *s, void *arg)
{
    static double for_s = 0.5;
    ncclComm_t comm = NULL;
    cudaStream_t stream;
    float *x;
    (void)rank;
    (void)n;
    (void)s;
    quiet();
    NCCL(ncclCommInitAll(&comm, 1, NULL));
    CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    CUDA(cudaMalloc((void **)&x, 64));
    CUDA(cudaLaunchHostFunc(stream, hold, &for_s));
    no_events = arg != NULL;
    NCCL(ncclGroupStart());
    NCCL(ncclSend(x, 4, ncclFloat, 0, comm, stream));
    NCCL(ncclRecv(x + 8, 4, ncclFloat, 0, comm, stream));
    NCCL(ncclGroupEnd());
    no_events = false;
    CUDA(cudaGetLastError());
    NCCL(ncclCommDestroy(comm)); /* the last one: it waits */
    PROCS_CHECK(atomic_load(&held) == 2, "the stream is in state %d", atomic_load(&held));
    return 0;
}

/* No thread makes a context on a device that the communicator does not use. */
static int one_device(int rank, int n, procs_shared *s, void *arg)
{
    ncclUniqueId id;
    ncclComm_t comm = NULL;
    float *x;
    cuda_host_counts counts;
    (void)rank;
    (void)n;
    (void)s;
    (void)arg;
    quiet();
    CUDA(cudaSetDevice(1));
    NCCL(ncclGetUniqueId(&id));
    NCCL(ncclCommInitRank(&comm, 1, id, 0));
    CUDA(cudaMalloc((void **)&x, 64));
    NCCL(ncclAllReduce(x, x, 4, ncclFloat, ncclSum, comm, NULL));
    NCCL(ncclCommDestroy(comm)); /* the last one: it waits */
    cuda_host_get_counts(&counts);
    PROCS_CHECK(counts.contexts == 2, "contexts on devices %#llx, not on device 1 alone",
                (unsigned long long)counts.contexts);
    return 0;
}

Test(nccl_end, no_contexts_on_other_devices, .timeout = 30)
{
    int ended[PROCS_MAX];
    cr_assert_eq(procs_run(1, 20, one_device, NULL, ended), 0);
}

static void *put_clock_forward(void *unused)
{
    usleep(300000);
    atomic_store(&put_forward_s, 1000);
    return unused;
}

/* Return a process's exit code, or -1 if it is still there after `most_s`. */
static int ended_in(pid_t pid, double most_s)
{
    int status = 0;
    for (double until = seconds() + most_s; waitpid(pid, &status, WNOHANG) != pid; procs_nap()) {
        if (seconds() > until) {
            kill(pid, SIGKILL);
            waitpid(pid, &status, 0);
            return -1;
        }
    }
    return WIFEXITED(status) ? WEXITSTATUS(status) : -2;
}

/* Leave with a communicator that is ending behind a stream that does not end. A child that is
 * forked then does not wait for it at all, and cannot end the parent's. The process itself waits a
 * while only. */
static int leaves_one_behind(int rank, int n, procs_shared *s, void *arg)
{
    static double for_s = 60;
    ncclComm_t comm[2];
    pthread_t thread;
    cudaStream_t stream;
    float *x;
    (void)rank;
    (void)n;
    (void)s;
    (void)arg;
    quiet();
    for (int i = 0; i < 2; i++) {
        NCCL(ncclCommInitAll(&comm[i], 1, NULL));
    }
    CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    CUDA(cudaMalloc((void **)&x, 64));
    CUDA(cudaLaunchHostFunc(stream, hold, &for_s));
    NCCL(ncclAllReduce(x, x, 4, ncclFloat, ncclSum, comm[0], stream));
    NCCL(ncclCommDestroy(comm[0]));
    const pid_t child = fork();
    if (child == 0) {
        NCCL_REFUSES(ncclCommDestroy(comm[1]), ncclInvalidUsage, "forked");
        exit(3);
    }
    PROCS_TRUE(ended_in(child, 5) == 3);
    PROCS_TRUE(pthread_create(&thread, NULL, put_clock_forward, NULL) == 0);
    exit(4);
}

Test(nccl_end, a_destroy_waits_for_a_ranks_copy_to_itself)
{
    int ended[PROCS_MAX];
    (void)procs_run(1, 30, copies_to_itself, NULL, ended);
    cr_expect_eq(ended[0], 0, "%d", ended[0]);
    (void)procs_run(1, 30, copies_to_itself, ended, ended); /* without events */
    cr_expect_eq(ended[0], 0, "%d", ended[0]);
}

Test(nccl_end, an_exit_does_not_wait_for_ever)
{
    int ended[PROCS_MAX];
    (void)procs_run(1, 30, leaves_one_behind, NULL, ended);
    cr_expect_eq(ended[0], 4, "%d", ended[0]);
}

/* ---- memory ---- */

#ifdef __GLIBC__
static _Thread_local bool
    no_job; /* in this thread: no memory for a call that waits for its group */

void *__libc_malloc(size_t bytes);

void *malloc(size_t bytes)
{
    const bool fail = no_job && bytes > 700;
    no_job = no_job && !fail;
    return fail ? NULL : __libc_malloc(bytes);
}

/* A split that is never started frees what it has made. */
static int splits(int rank, int n, procs_shared *s, void *arg)
{
    enum { TIMES = 200, MOST = 100000 };
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    ncclSimInfo_t sim = NCCL_SIM_INFO_INITIALIZER;
    ncclComm_t comm = NULL, part = NULL;
    size_t before[2];
    (void)rank;
    (void)n;
    (void)s;
    (void)arg;
    quiet();
    NCCL(ncclCommInitAll(&comm, 1, NULL));
    config.commName = "part dcomm:codec=qsgd:bits=4";
    for (int kind = 0; kind < 2; kind++) {
        for (int i = 0; i < TIMES; i++) {
            before[kind] = i == 1 ? mallinfo2().uordblks : before[kind];
            NCCL(ncclGroupStart());
            no_job = kind == 1;
            const ncclResult_t result = ncclCommSplit(comm, 0, 0, &part, &config);
            PROCS_CHECK(result == (kind == 0 ? ncclSuccess : ncclSystemError), "%d: %d %s", kind,
                        (int)result, ncclGetLastError(NULL));
            PROCS_TRUE(!no_job && ncclGroupSimulateEnd(&sim) == ncclInvalidUsage && part == NULL);
        }
        const size_t after = mallinfo2().uordblks;
        PROCS_CHECK(after < before[kind] + MOST, "kind %d: %zu bytes more", kind,
                    after - before[kind]);
    }
    NCCL(ncclCommDestroy(comm));
    return 0;
}

Test(nccl_end, splits_that_do_not_start_leak_nothing)
{
    int ended[PROCS_MAX];
    (void)procs_run(1, 30, splits, NULL, ended);
    cr_expect_eq(ended[0], 0, "%d", ended[0]);
}
#endif
