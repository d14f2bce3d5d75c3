/* test_device_harsh.c - operations on streams while CUDA is as harsh as it may be: it bounds a
 * stream's queue, holds a context's lock while a call waits, lets streams share hardware queues,
 * waits for all streams where memory is pinned and freed. Rules of cuda_host.h choose that. */
#define _GNU_SOURCE
#include "cuda.h"
#include "cuda_host.h"
#include "device_ranks.h"

#include <criterion/criterion.h>

enum { LATE_MS = 400 };

static dcomm_comm *join(int rank, int n, procs_shared *s)
{
    if (!ranks_are_threads || rank == 0) {
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

static float value(int rank, size_t i)
{
    return (float)((i * 7 + (size_t)rank * 5) % 1001);
}

/* Return device memory with a rank's values, and room for `more` further results. */
static float *device_values(int rank, size_t count, size_t more)
{
    float *host = malloc(count * sizeof *host), *x = NULL;
    PROCS_TRUE(host != NULL);
    for (size_t i = 0; i < count; i++) {
        host[i] = value(rank, i);
    }
    CUDA_OK(cudaMalloc((void **)&x, count * (1 + more) * sizeof *x));
    device_put(x, host, count * sizeof *x);
    free(host);
    return x;
}

static void expect_sum(const float *device, size_t count, int n, float factor)
{
    const float *got = cuda_host_peek(device, count * sizeof *got);
    PROCS_TRUE(got != NULL);
    for (size_t i = 0; i < count; i++) {
        float want = 0;
        for (int r = 0; r < n; r++) {
            want += value(r, i);
        }
        PROCS_CHECK(got[i] == factor * want, "element %zu is %g, not %g", i, (double)got[i],
                    (double)(factor * want));
    }
}

static void nap_ms(int ms)
{
    nanosleep(&(struct timespec){.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000L}, NULL);
}

/* Wait for a stream by asking, so that not even this call waits in the driver. */
static void await_stream(cudaStream_t stream)
{
    cudaError_t error;
    while ((error = cudaStreamQuery(stream)) == cudaErrorNotReady) {
        procs_nap();
    }
    CUDA_OK(error);
}

/* Memory is not freed here: cudaFree waits for all streams, and those of ranks that are threads of
 * this process may still wait for this one. */
static int leave(procs_shared *s, int rank, int n, dcomm_comm **comm)
{
    procs_post(s, rank, 99);
    while (!procs_all(s, n, 99, -1)) {
        procs_nap();
    }
    return ranks_leave(comm);
}

/* Run fn with two ranks that are processes, or threads of one. */
static void harshly(bool threads, const cuda_host_rules *rules, procs_fn fn, void *arg)
{
    cuda_host_set_rules(rules);
    cr_assert_eq(device_run(2, threads, 40, fn, arg), 0, "%s", threads ? "threads" : "processes");
}

/* Run both; the everyday run takes one of them. */
static void harshly_both(bool everyday, const cuda_host_rules *rules, procs_fn fn, void *arg)
{
    harshly(everyday, rules, fn, arg);
    if (test_full()) {
        harshly(!everyday, rules, fn, arg);
    }
}

/* ---- a full queue ---- */

/* A peer comes late to the first of many operations on one stream. The queue of the stream holds
 * less than all of them. */
static int many_behind(int rank, int n, procs_shared *s, void *arg)
{
    enum { COUNT = 256, OPERATIONS = 600 };
    (void)arg;
    dcomm_comm *comm = join(rank, n, s);
    float *x = device_values(rank, COUNT, OPERATIONS);
    cudaStream_t stream = stream_make();
    const dcomm_coll_opts opts = {.stream = stream, .timeout_s = 30};
    RANKS_OK(dcomm_allreduce(comm, x, x + COUNT, COUNT, DCOMM_F32, DCOMM_SUM, &opts));
    await_stream(stream);
    RANKS_OK(dcomm_barrier(comm, NULL));
    nap_ms(rank == 1 ? LATE_MS : 0);
    for (size_t i = 1; i <= OPERATIONS; i++) {
        RANKS_OK(dcomm_allreduce(comm, x, x + i * COUNT, COUNT, DCOMM_F32, DCOMM_SUM, &opts));
    }
    await_stream(stream);
    for (size_t i = 1; i <= OPERATIONS; i++) {
        expect_sum(x + i * COUNT, COUNT, n, 1);
    }
    RANKS_OK(dcomm_comm_status(comm));
    return leave(s, rank, n, &comm);
}

/* Rank 1 begins when rank 0 has put all operations on its stream. Calls of rank 0 wait for room
 * once, and then go on: what the stream waits for is behind them. */
static int behind_all(int rank, int n, procs_shared *s, void *arg)
{
    enum { COUNT = 256, OPERATIONS = 300, PUT = 5 };
    (void)arg;
    dcomm_comm *comm = join(rank, n, s);
    float *x = device_values(rank, COUNT, 1);
    cudaStream_t stream = stream_make();
    const dcomm_coll_opts opts = {.stream = stream, .timeout_s = 30};
    while (rank == 1 && !procs_all(s, n, PUT, 1)) {
        procs_nap();
    }
    for (int i = 0; i < OPERATIONS; i++) {
        RANKS_OK(dcomm_allreduce(comm, x, x + COUNT, COUNT, DCOMM_F32, DCOMM_SUM, &opts));
    }
    procs_post(s, rank, PUT);
    await_stream(stream);
    expect_sum(x + COUNT, COUNT, n, 1);
    RANKS_OK(dcomm_comm_status(comm));
    return leave(s, rank, n, &comm);
}

Test(device_harsh, a_stream_waits_for_what_is_behind_it, .timeout = 60)
{
    harshly_both(false, &(cuda_host_rules){0}, behind_all, NULL);
}

Test(device_harsh, more_operations_than_a_queue_holds, .timeout = 120)
{
    const cuda_host_rules rules = {.queue = 1024, .lock = true};
    harshly_both(false, &rules, many_behind, NULL);
}

/* A peer never comes. The time-out ends the operation that waits, and the calls behind it, which
 * wait for room meanwhile. */
static int never_comes(int rank, int n, procs_shared *s, void *arg)
{
    enum { COUNT = 256, OPERATIONS = 600 };
    (void)arg;
    CUDA_OK(cudaSetDevice(0));
    dcomm_comm *comm = join(rank, n, s);
    float *x = device_values(rank, COUNT, 1);
    cudaStream_t stream = stream_make();
    dcomm_coll_opts opts = {.stream = stream, .timeout_s = 20};
    RANKS_OK(dcomm_allreduce(comm, x, x + COUNT, COUNT, DCOMM_F32, DCOMM_SUM, &opts));
    await_stream(stream);
    RANKS_OK(dcomm_comm_status(comm));
    opts.timeout_s = 0.8;
    dcomm_status status = DCOMM_OK;
    for (int i = 0; rank == 0 && i < OPERATIONS && status >= 0; i++) {
        status = dcomm_allreduce(comm, x, x + COUNT, COUNT, DCOMM_F32, DCOMM_SUM, &opts);
    }
    await_stream(stream);
    if (rank == 0) {
        PROCS_CHECK(dcomm_comm_status(comm) == DCOMM_ERR_TIMEOUT, "%s", dcomm_comm_error(comm));
    }
    procs_post(s, rank, 1);
    while (!procs_all(s, n, 1, -1)) {
        procs_nap();
    }
    (void)dcomm_comm_destroy(&comm);
    return 0;
}

Test(device_harsh, time_outs_end_what_waits, .timeout = 120)
{
    const cuda_host_rules rules = {
        .queue = 1024, .lock = true, .free_waits = true, .alloc_waits = true, .load_waits = true};
    harshly_both(true, &rules, never_comes, NULL);
}

/* ---- few hardware queues ---- */

typedef struct queues {
    bool apart; /* ranks have devices of their own */
    bool ends; /* false: the ranks' streams share a queue, so one waits behind the other for ever */
    int between; /* streams of the program's, created before dcomm's */
} queues;

/* Ranks take turns to come late. */
static int aliased(int rank, int n, procs_shared *s, void *arg)
{
    enum { COUNT = 20000 };
    static const char *const algos[] = {"ring", "two_shot", NULL};
    const queues *q = arg;
    CUDA_OK(cudaSetDevice(q->apart ? rank : 0));
    float *x = device_values(rank, COUNT, 1);
    cudaStream_t stream = stream_make();
    procs_post(s, rank, 1);
    while (!procs_all(s, n, 1, -1)) {
        procs_nap();
    }
    for (int i = 0; i < q->between; i++) {
        (void)stream_make();
    }
    dcomm_comm *comm = join(rank, n, s);
    for (int round = 0; round < (q->ends ? 4 : 1); round++) {
        const dcomm_coll_opts opts = {
            .stream = stream, .algo = algos[round % 3], .timeout_s = q->ends ? 20 : 0.8};
        RANKS_OK(dcomm_barrier(comm, NULL));
        nap_ms(round % 2 == rank % 2 ? 50 : 0);
        RANKS_OK(dcomm_allreduce(comm, x, x + COUNT, COUNT, DCOMM_F32, DCOMM_SUM, &opts));
        await_stream(stream);
        if (q->ends) {
            RANKS_OK(dcomm_comm_status(comm));
            expect_sum(x + COUNT, COUNT, n, 1);
        }
    }
    if (q->ends) {
        return leave(s, rank, n, &comm);
    }
    dcomm_status status = dcomm_comm_status(comm);
    PROCS_CHECK(status == DCOMM_ERR_TIMEOUT || status == DCOMM_ERR_ABORTED, "%s: %s",
                dcomm_status_name(status), dcomm_comm_error(comm));
    procs_post(s, rank, 2);
    while (!procs_all(s, n, 2, -1)) {
        procs_nap();
    }
    (void)dcomm_comm_destroy(&comm);
    return 0;
}

Test(device_harsh, streams_share_hardware_queues, .timeout = 200)
{
    const cuda_host_rules one = {.connections = 1, .lock = true},
                          eight = {.connections = 8, .lock = true};
    queues own = {.ends = true, .between = 3}, apart = {.apart = true, .ends = true},
           together = {.ends = true, .between = 3};
    harshly(false, &one, aliased, &own);
    harshly(true, &one, aliased, &apart);
    harshly(true, &eight, aliased, &together);
}

/* Two streams of one device that wait for each other in one queue cannot go on. The time-out ends
 * it. */
Test(device_harsh, one_hardware_queue_for_two_ranks, .timeout = 60)
{
    queues stuck = {.ends = false};
    harshly(true, &(cuda_host_rules){.connections = 1, .lock = true}, aliased, &stuck);
}

static int warnings;

static void hear(int level, const char *message, void *user)
{
    (void)level;
    (void)user;
    warnings += strstr(message, "CUDA_DEVICE_MAX_CONNECTIONS is 1") != NULL;
}

/* Two communicators of a process warn once. */
static int warned(int rank, int n, procs_shared *s, void *arg)
{
    const bool one = *(const bool *)arg;
    setenv("CUDA_DEVICE_MAX_CONNECTIONS", one ? "1" : "8", 1);
    dcomm_set_logger(hear, NULL);
    CUDA_OK(cudaSetDevice(0));
    dcomm_comm *alone[2];
    (void)rank;
    (void)n;
    (void)s;
    for (int i = 0; i < 2; i++) {
        RANKS_OK(dcomm_comm_create(&(dcomm_comm_opts){.size = 1}, &alone[i]));
    }
    PROCS_CHECK(warnings == one, "%d warnings", warnings);
    for (int i = 0; i < 2; i++) {
        RANKS_OK(dcomm_comm_destroy(&alone[i]));
    }
    return 0;
}

Test(device_harsh, one_hardware_queue_is_warned_of, .timeout = 30)
{
    for (int one = 0; one < 2; one++) {
        bool arg = one != 0;
        cr_assert_eq(device_run(1, false, 20, warned, &arg), 0, "%d", one);
    }
}

/* ---- contexts ---- */

static CUcontext context_of_thread(void)
{
    CUcontext context = NULL;
    PROCS_TRUE(cuCtxGetCurrent(&context) == CUDA_SUCCESS);
    return context;
}

typedef struct bare {
    dcomm_comm *comm;
    float *x;
    size_t count;
    int failed;
} bare;

/* A thread without a context has none after its calls either. */
static void *call_without_context(void *arg)
{
    bare *b = arg;
    float host[2] = {1, 2};
    b->failed += context_of_thread() != NULL;
    b->failed += dcomm_allreduce(b->comm, host, host, 2, DCOMM_F32, DCOMM_SUM, NULL) != DCOMM_OK;
    b->failed += context_of_thread() != NULL;
    b->failed += dcomm_allreduce(b->comm, b->x, b->x + b->count, b->count, DCOMM_F32, DCOMM_SUM,
                                 NULL) != DCOMM_OK;
    b->failed += context_of_thread() != NULL;
    return NULL;
}

static int elsewhere(int rank, int n, procs_shared *s, void *arg)
{
    enum { COUNT = 100000 };
    (void)arg;
    CUDA_OK(cudaSetDevice(1));
    dcomm_comm *comm = join(rank, n, s);
    float *x = device_values(rank, COUNT, 1);
    cudaStream_t stream = stream_make();
    dcomm_coll_opts opts = {.stream = stream, .timeout_s = 20};
    dcomm_codec *codec = NULL;
    RANKS_OK(dcomm_codec_create("topk:k=0.1", &codec));
    for (int coded = 0; coded < 2; coded++) {
        if (coded) {
            RANKS_OK(dcomm_feedback_create(codec, COUNT, NULL, &opts.feedback));
        }
        RANKS_OK(dcomm_allreduce(comm, x, x + COUNT, COUNT, DCOMM_F32, DCOMM_SUM, &opts));
        await_stream(stream);
        if (!coded) {
            expect_sum(x + COUNT, COUNT, n, 1);
        }
    }
    bare b = {.comm = comm, .x = x, .count = COUNT};
    pthread_t thread;
    PROCS_TRUE(pthread_create(&thread, NULL, call_without_context, &b) == 0);
    pthread_join(thread, NULL);
    PROCS_CHECK(b.failed == 0, "%d of 5 checks failed: %s", b.failed, dcomm_comm_error(comm));
    expect_sum(x + COUNT, COUNT, n, 1);
    RANKS_OK(dcomm_feedback_destroy(&opts.feedback));
    RANKS_OK(dcomm_codec_destroy(&codec));
    int ended = leave(s, rank, n, &comm);
    cuda_host_counts counts;
    cuda_host_get_counts(&counts);
    PROCS_CHECK(counts.contexts == 2, "contexts on devices %#llx, not on device 1 alone",
                (unsigned long long)counts.contexts);
    return ended;
}

Test(device_harsh, no_contexts_on_other_devices, .timeout = 60)
{
    harshly(false, &(cuda_host_rules){0}, elsewhere, NULL);
}

/* ---- calls that wait for all streams ---- */

/* Create a second communicator, with a context of its own. */
static dcomm_comm *join_again(dcomm_comm *comm)
{
    dcomm_comm_opts o = {.boot = DCOMM_BOOT_ID,
                         .rank = dcomm_comm_rank(comm),
                         .size = dcomm_comm_size(comm),
                         .timeout_s = 20};
    dcomm_comm *again = NULL;
    if (o.rank == 0) {
        RANKS_OK(dcomm_id_create(&o.id));
    }
    RANKS_OK(dcomm_broadcast(comm, &o.id, &o.id, sizeof o.id, DCOMM_U8, 0, NULL));
    RANKS_OK(dcomm_comm_create(&o, &again));
    return again;
}

/* Rank 0's stream waits for rank 1, which comes late. Meanwhile another communicator ends, or has
 * its first calls. */
static int beside(int rank, int n, procs_shared *s, void *arg)
{
    enum { COUNT = 100000 };
    const bool begins = *(const bool *)arg;
    CUDA_OK(cudaSetDevice(0)); /* contexts that know their device pin memory when they begin */
    dcomm_comm *comm = join(rank, n, s), *other = join_again(comm);
    float *x = device_values(rank, COUNT, 2);
    cudaStream_t streams[2] = {stream_make(), stream_make()};
    const dcomm_coll_opts opts = {.stream = streams[0], .timeout_s = 20},
                          its = {.stream = streams[1], .timeout_s = 20};
    RANKS_OK(dcomm_allreduce(comm, x, x + COUNT, COUNT, DCOMM_F32, DCOMM_SUM, &opts));
    await_stream(streams[0]);
    if (!begins) {
        RANKS_OK(dcomm_allreduce(other, x, x + COUNT, COUNT, DCOMM_F32, DCOMM_SUM, &its));
        await_stream(streams[1]);
    }
    RANKS_OK(dcomm_barrier(comm, NULL));
    for (int part = 0; part < 2; part++) {
        if (part == (rank == 0 ? 0 : 1)) {
            nap_ms(rank == 0 ? 0 : LATE_MS);
            RANKS_OK(dcomm_allreduce(comm, x, x + COUNT, COUNT, DCOMM_F32, DCOMM_SUM, &opts));
        } else if (begins) {
            RANKS_OK(dcomm_allreduce(other, x, x + 2 * COUNT, COUNT, DCOMM_F32, DCOMM_SUM, &its));
            await_stream(streams[1]);
            expect_sum(x + 2 * COUNT, COUNT, n, 1);
        } else {
            RANKS_OK(dcomm_comm_destroy(&other));
        }
    }
    await_stream(streams[0]);
    expect_sum(x + COUNT, COUNT, n, 1);
    RANKS_OK(dcomm_comm_status(comm));
    if (other != NULL) {
        procs_post(s, rank, 3);
        while (!procs_all(s, n, 3, -1)) {
            procs_nap();
        }
        RANKS_OK(dcomm_comm_destroy(&other));
    }
    return leave(s, rank, n, &comm);
}

static const cuda_host_rules implicit = {
    .lock = true, .free_waits = true, .alloc_waits = true, .load_waits = true};

Test(device_harsh, a_communicator_ends_beside_a_stream_that_waits, .timeout = 100)
{
    bool begins = false;
    harshly_both(true, &implicit, beside, &begins);
}

Test(device_harsh, a_communicator_begins_beside_a_stream_that_waits, .timeout = 100)
{
    bool begins = true;
    harshly_both(false, &implicit, beside, &begins);
}

/* The first calls of ranks that share a device pin memory and load kernels. */
static int first_calls(int rank, int n, procs_shared *s, void *arg)
{
    enum { COUNT = 100000 };
    (void)arg;
    CUDA_OK(cudaSetDevice(0));
    dcomm_comm *comm = join(rank, n, s);
    float *x = device_values(rank, COUNT, 1);
    cudaStream_t stream = stream_make();
    const dcomm_coll_opts opts = {.stream = stream, .timeout_s = 20};
    RANKS_OK(dcomm_barrier(comm, NULL)); /* behind cudaMemcpy */
    nap_ms(rank == 1 ? LATE_MS : 0);
    RANKS_OK(dcomm_allreduce(comm, x, x + COUNT, COUNT, DCOMM_F32, DCOMM_SUM, &opts));
    await_stream(stream);
    RANKS_OK(dcomm_comm_status(comm));
    expect_sum(x + COUNT, COUNT, n, 1);
    return leave(s, rank, n, &comm);
}

Test(device_harsh, kernels_are_loaded_beside_a_stream_that_waits, .timeout = 60)
{
    harshly(true, &(cuda_host_rules){.lock = true, .load_waits = true}, first_calls, NULL);
}

Test(device_harsh, memory_is_pinned_beside_a_stream_that_waits, .timeout = 60)
{
    harshly(true, &implicit, first_calls, NULL);
}

/* ---- launches that wait ---- */

/* The program puts kernels before and behind an operation, which ends before its call returns. */
static int blocking(int rank, int n, procs_shared *s, void *arg)
{
    enum { COUNT = 50000 };
    (void)arg;
    dcomm_comm *comm = join(rank, n, s);
    float *x = device_values(rank, COUNT, 1), *in = device_values(rank, COUNT, 0);
    cudaStream_t stream = stream_make();
    const dcomm_coll_opts opts = {.stream = stream, .timeout_s = 20};
    for (int round = 0; round < 4; round++) {
        nap_ms(round % 2 == rank ? 50 : 0);
        RANKS_OK(dcomm_cuda_scale(x, in, COUNT, DCOMM_F32, 2, stream));
        RANKS_OK(dcomm_allreduce(comm, x, x + COUNT, COUNT, DCOMM_F32, DCOMM_SUM, &opts));
        PROCS_TRUE(cudaStreamQuery(stream) == cudaSuccess);
        RANKS_OK(dcomm_cuda_scale(x + COUNT, x + COUNT, COUNT, DCOMM_F32, 2, stream));
        await_stream(stream);
        expect_sum(x + COUNT, COUNT, n, 4);
    }
    RANKS_OK(dcomm_comm_status(comm));
    return leave(s, rank, n, &comm);
}

Test(device_harsh, launches_that_wait_for_their_kernels, .timeout = 100)
{
    setenv("CUDA_LAUNCH_BLOCKING", "1", 1);
    const cuda_host_rules rules = {.lock = true, .launch_blocking = true};
    harshly_both(false, &rules, blocking, NULL);
}

/* A kernel that is loaded when it is first launched waits for all streams, and what is launched
 * later waits for it. */
Test(device_harsh, kernels_that_are_loaded_when_they_are_launched, .timeout = 100)
{
    setenv("CUDA_MODULE_LOADING", "LAZY", 1);
    harshly_both(false, &(cuda_host_rules){.lock = true, .load_waits = true}, blocking, NULL);
}
