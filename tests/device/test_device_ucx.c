/* test_device_ucx.c - device memory that UCX itself sends and receives between hosts, by a wrapped
 * UCX (ucx_device.h). Every collective is compared with the same references as through pinned
 * memory, and the path is checked. */
#define _GNU_SOURCE
#include "device_sums.h"
#include "ucx_device.h"

#include <criterion/criterion.h>
#include <signal.h>

typedef struct where {
    ranks_place place;
    int without;   /* the rank whose UCX does not take device memory; -1: none */
    int host_rank; /* the rank with buffers in host memory; -1: none */
    bool threads;
} where;

static dcomm_comm *join(int rank, int n, procs_shared *s, const where *w)
{
    char host[16]; /* threads share the environment */
    snprintf(host, sizeof host, "host%d", rank);
    const dcomm_comm_opts apart = {.context_opts = {.host_id = host}};
    if (!w->threads || rank == 0) {
        ranks_settle(rank, n, w->place);
    }
    ucx_device_takes = rank != w->without;
    return ranks_join(rank, n, s, w->threads ? &apart : NULL);
}

static uint64_t straight(dcomm_comm *comm)
{
    dcomm_stats stats;
    RANKS_OK(dcomm_comm_get_stats(comm, &stats));
    return stats.bytes_straight;
}

/* Every collective by every algorithm; dtypes, operators, forms and streams take turns. */
static int everything(int rank, int n, procs_shared *s, void *arg)
{
    static const dcomm_dtype dtypes[] = {DCOMM_F32, DCOMM_BF16, DCOMM_F64, DCOMM_I32, DCOMM_F16,
                                         DCOMM_U8,  DCOMM_I64,  DCOMM_U32, DCOMM_I8,  DCOMM_U64};
    static const size_t counts[] = {1023, 20011, 150001};
    const where *w = arg;
    dcomm_comm *comm = join(rank, n, s, w);
    cudaStream_t stream;
    const bool thin = !test_full();
    unsigned turn = 0;
    CUDA_OK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    device_arena_make();
    for (int coll = 0; coll <= DCOMM_COLL_BARRIER; coll++) {
        dcomm_algo_info info;
        uint64_t before = straight(comm);
        for (int a = -1; a < 0 || dcomm_algo_get_info((dcomm_coll)coll, a, &info) == DCOMM_OK;
             a++) {
            for (int c = 0; c < 3; c++, turn++) {
                if (thin && c != 0 && c != 1 + (a + coll) % 2) {
                    continue; /* short and long calls take turns */
                }
                job j = {.comm = comm,
                         .rank = rank,
                         .n = n,
                         .coll = (dcomm_coll)coll,
                         .algo = a < 0 ? NULL : info.name,
                         .dtype = dtypes[turn % 10],
                         .op = turn % 3 == 0   ? DCOMM_AVG
                               : turn % 3 == 1 ? DCOMM_MAX
                                               : DCOMM_SUM,
                         .count = counts[c] / (c < 2 ? 1 : dcomm_dtype_size(dtypes[turn % 10])),
                         .root = rooted((dcomm_coll)coll) ? (int)(turn % (unsigned)n) : 0,
                         .form = (form)(turn % FORMS),
                         .blocking = turn % 2 == 0,
                         .lanes = turn % 5 == 0 ? 2 : 0};
                device_stream = turn % 4 > 0 ? stream : NULL;
                j.opts.device = turn % 7 > 0;
                if (rank != w->host_rank) {
                    j.opts.stream = device_stream;
                    j.there = device_there;
                    j.back = device_back;
                }
                if (counted((dcomm_coll)coll)) {
                    spread(&j, turn % 3 == 0);
                }
                run(&j);
            }
        }
        bool all = !rooted((dcomm_coll)coll) && coll != DCOMM_COLL_BARRIER &&
                   (!counted((dcomm_coll)coll) || coll == DCOMM_COLL_ALLTOALLV) &&
                   rank != w->host_rank;
        bool some = rank != w->without && n - (w->without >= 0) > 1;
        PROCS_CHECK(!all || (straight(comm) > before) == some, "%s: %lu bytes came straight",
                    dcomm_coll_name((dcomm_coll)coll), (unsigned long)(straight(comm) - before));
    }
    RANKS_OK(dcomm_comm_status(comm));
    PROCS_CHECK(ucx_device_get_counts().sent == straight(comm), "%lu bytes sent, %lu counted",
                (unsigned long)ucx_device_get_counts().sent, (unsigned long)straight(comm));
    device_arena_free();
    CUDA_OK(cudaStreamDestroy(stream));
    return ranks_leave(&comm);
}

static void on(int n, where w, procs_fn fn)
{
    cr_assert_eq(device_run(n, w.threads, 100, fn, &w), 0, "%d ranks, %s, without %d%s", n,
                 ranks_place_name(w.place), w.without, w.threads ? ", threads" : "");
}

Test(device_ucx, every_collective, .timeout = 180)
{
    if (test_full()) {
        on(2, (where){.place = RANKS_HOSTS, .without = -1, .host_rank = -1}, everything);
        on(3, (where){.place = RANKS_HOSTS, .without = -1, .host_rank = -1}, everything);
    }
    if (procs_step() == 1) {
        on(4, (where){.place = RANKS_PAIRS, .without = -1, .host_rank = -1}, everything);
    }
    setenv("DCOMM_CONNECTIONS", "3", 1);
    on(2, (where){.place = RANKS_HOSTS, .without = -1, .host_rank = -1}, everything);
}

Test(device_ucx, one_rank_in_host_memory, .timeout = 60)
{
    if (test_full()) {
        on(2, (where){.place = RANKS_HOSTS, .without = -1, .host_rank = 1}, everything);
    }
    on(3, (where){.place = RANKS_HOSTS, .without = -1, .host_rank = 0}, everything);
}

/* Two ranks use this path if the UCX of both takes device memory. */
Test(device_ucx, one_rank_without, .timeout = 60)
{
    if (test_full()) {
        on(2, (where){.place = RANKS_HOSTS, .without = 1, .host_rank = -1}, everything);
    }
    on(3, (where){.place = RANKS_HOSTS, .without = 0, .host_rank = -1}, everything);
}

/* ---- sums ---- */

/* The last one is compressed, and copies kernels' reports back. */
static const char *const algos[] = {"ring", "two_shot",         "one_shot",
                                    "tree", "halving_doubling", "coded_two_shot"};
enum { ALGOS = sizeof algos / sizeof *algos, EXACT = ALGOS - 1 };

/* No bytes go through pinned memory, unless DCOMM_UCX_CUDA=0 or a rank's UCX does not take device
 * memory. */
static int whole_way(int rank, int n, procs_shared *s, void *arg)
{
    const where *w = arg;
    const bool off = getenv("DCOMM_UCX_CUDA") != NULL, goes = !off && w->without < 0;
    dcomm_comm *comm = join(rank, n, s, w);
    for (int a = 0; a < ALGOS; a++) {
        ucx_device_counts before = ucx_device_get_counts();
        device_sum sum = {.algo = algos[a], .salt = a, .device = true};
        dcomm_status status = device_sum_run(comm, &sum);
        ucx_device_counts after = ucx_device_get_counts();
        PROCS_CHECK(status == DCOMM_OK && sum.wrong == 0, "%s: %s; %zu are wrong", algos[a],
                    dcomm_comm_error(comm), sum.wrong);
        PROCS_CHECK(a < EXACT ? (sum.copied == 0) == goes : (sum.copied < 65536) == goes,
                    "%s: %lu bytes were copied", algos[a], (unsigned long)sum.copied);
        PROCS_CHECK((after.sent + after.received > before.sent + before.received) == goes,
                    "%s: %lu bytes sent, %lu received", algos[a],
                    (unsigned long)(after.sent - before.sent),
                    (unsigned long)(after.received - before.received));
    }
    dcomm_path paths[4];
    dcomm_tuning tuning;
    const dcomm_coll_opts promised = {.device = true};
    dcomm_explanation e = {.coll = DCOMM_COLL_ALLREDUCE,
                           .count = COUNT,
                           .dtype = DCOMM_F32,
                           .opts = &promised,
                           .paths = paths,
                           .max_paths = 4};
    RANKS_OK(dcomm_comm_explain(comm, &e));
    RANKS_OK(dcomm_comm_get_tuning(comm, &tuning));
    PROCS_TRUE(e.npaths == 3 && strcmp(paths[2].name, "ucx") == 0);
    PROCS_CHECK(paths[2].taken == goes && paths[0].taken == !goes && tuning.device_ucx == goes,
                "%s", paths[2].why);
    return ranks_leave(&comm);
}

Test(device_ucx, nothing_is_copied, .timeout = 60)
{
    on(2, (where){.place = RANKS_HOSTS, .without = -1, .host_rank = -1}, whole_way);
    on(4, (where){.place = RANKS_HOSTS, .without = -1, .host_rank = -1}, whole_way);
    on(2, (where){.place = RANKS_HOSTS, .without = 0, .host_rank = -1}, whole_way);
    setenv("DCOMM_UCX_CUDA", "0", 1);
    on(2, (where){.place = RANKS_HOSTS, .without = -1, .host_rank = -1}, whole_way);
}

/* Before Hopper, what a NIC has written is flushed before anything reads it. */
static int flushed(int rank, int n, procs_shared *s, void *arg)
{
    const bool unordered = *(const bool *)arg;
    const where w = {.place = RANKS_HOSTS, .without = -1, .host_rank = -1};
    cuda_host_set_faults(&(cuda_host_faults){.rdma_unordered = unordered});
    CUDA_OK(cudaSetDevice(0)); /* the device is looked at when the communicator is created */
    dcomm_comm *comm = join(rank, n, s, &w);
    device_sum sum = {.algo = "two_shot", .device = true};
    RANKS_OK(device_sum_run(comm, &sum));
    cuda_host_counts counts;
    cuda_host_get_counts(&counts);
    PROCS_CHECK(sum.wrong == 0 && straight(comm) > 0 && (counts.flushes > 0) == unordered,
                "%zu are wrong, %lu bytes straight, %lu flushes", sum.wrong,
                (unsigned long)straight(comm), (unsigned long)counts.flushes);
    return ranks_leave(&comm);
}

Test(device_ucx, writes_of_a_nic_are_flushed, .timeout = 60)
{
    for (int unordered = 0; unordered < 2; unordered++) {
        bool arg = unordered != 0;
        cr_assert_eq(device_run(2, false, 40, flushed, &arg), 0, "%d", unordered);
    }
}

/* ---- faults ---- */

static int late(int rank, int n, procs_shared *s, void *arg)
{
    const where *w = arg;
    dcomm_comm *comm = join(rank, n, s, w);
    cudaStream_t stream;
    CUDA_OK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    /* Threads have no streams here: cudaFree would wait for another thread's stream. */
    device_sums_late(comm, algos, ALGOS, 0.001,
                     (device_sum){.stream = w->threads ? NULL : stream, .device = true});
    PROCS_TRUE(straight(comm) > 0);
    CUDA_OK(cudaStreamDestroy(stream));
    return ranks_leave(&comm);
}

Test(device_ucx, late, .timeout = 90)
{
    if (test_full()) {
        on(2, (where){.place = RANKS_HOSTS, .without = -1, .host_rank = -1}, late);
    }
    on(4, (where){.place = RANKS_PAIRS, .without = -1, .host_rank = -1}, late);
    on(3, (where){.place = RANKS_HOSTS, .without = -1, .host_rank = -1, .threads = true}, late);
}

/* The nth kernel, send or receive fails on rank 0. All ranks get an error, or the right sum. */
typedef struct failing {
    unsigned nth;
    int what; /* 0 kernel, 1 send, 2 receive */
    const char *algo;
} failing;

static int fails(int rank, int n, procs_shared *s, void *arg)
{
    const failing *f = arg;
    dcomm_comm *comm =
        join(rank, n, s, &(where){.place = RANKS_HOSTS, .without = -1, .host_rank = -1});
    cudaStream_t stream;
    CUDA_OK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    const cuda_host_faults faults = {.fail_kernel = rank == 0 && f->what == 0 ? f->nth : 0};
    ucx_device_fail_send = rank == 0 && f->what == 1 ? f->nth : 0;
    ucx_device_fail_receive = rank == 0 && f->what == 2 ? f->nth : 0;
    device_sum sum = {.algo = f->algo, .stream = stream, .faults = &faults, .device = true};
    dcomm_status status = device_sum_run(comm, &sum);
    PROCS_CHECK(sum.wrong == 0, "%s: %zu elements are wrong", f->algo, sum.wrong);
    if (status == DCOMM_OK) { /* another rank may still see the failure */
        status = dcomm_barrier(comm, NULL);
    }
    CUDA_OK(cudaStreamDestroy(stream));
    int left = ranks_leave(&comm);
    return left != 0 ? left : status == DCOMM_OK ? 10 : 20;
}

Test(device_ucx, failures, .timeout = 120)
{
    int ended[PROCS_MAX] = {0};
    for (int a = 0; a < (test_full() ? 3 : 2); a++) {
        for (int what = 0; what < 3; what++) {
            unsigned failures = 0;
            for (unsigned nth = 1; nth <= 3; nth += test_full() ? 1 : 2) {
                failing f = {nth, what, algos[a]};
                procs_run(3, 40, fails, &f, ended);
                for (int r = 0; r < 3; r++) {
                    cr_assert((ended[r] == 10 || ended[r] == 20) && ended[r] == ended[0],
                              "%s, %d, %u: rank %d %d, rank 0 %d", f.algo, what, nth, r, ended[r],
                              ended[0]);
                }
                failures += ended[0] == 20;
            }
            cr_assert_gt(failures, 0, "%s, %d", algos[a], what);
        }
    }
}

/* The last rank dies while working. The others get an error, and none of their streams hangs. */
static int dies(int rank, int n, procs_shared *s, void *arg)
{
    dcomm_comm *comm = join(rank, n, s, arg);
    cudaStream_t stream;
    const cuda_host_faults slow = {.delay_s = 0.002};
    dcomm_status status = DCOMM_OK;
    pthread_t killer;
    CUDA_OK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    double until = procs_now() + 30;
    for (int i = 0; status == DCOMM_OK && procs_now() < until; i++) {
        if (i == ALGOS) {
            /* Wait until all connections are open: UCX 1.13 aborts if a new one breaks. */
            nanosleep(&(struct timespec){.tv_nsec = 200000000}, NULL);
            if (rank == n - 1) {
                PROCS_TRUE(pthread_create(&killer, NULL, procs_die_soon, NULL) == 0);
            }
        }
        device_sum sum = {
            .algo = algos[i % ALGOS], .salt = i, .stream = stream, .faults = &slow, .device = true};
        status = device_sum_run(comm, &sum);
        PROCS_CHECK(sum.wrong == 0, "%zu elements are wrong", sum.wrong);
    }
    PROCS_CHECK(status == DCOMM_ERR_PEER, "%s: %s", dcomm_status_name(status),
                dcomm_comm_error(comm));
    CUDA_OK(cudaStreamSynchronize(stream));
    CUDA_OK(cudaStreamDestroy(stream));
    (void)dcomm_comm_destroy(&comm);
    return 0;
}

Test(device_ucx, dead_rank, .timeout = 60)
{
    int ended[PROCS_MAX] = {0};
    where w = {.place = RANKS_HOSTS, .without = -1, .host_rank = -1};
    procs_run(3, 50, dies, &w, ended);
    cr_assert(ended[0] == 0 && ended[1] == 0 && ended[2] == 128 + SIGKILL, "%d, %d, %d", ended[0],
              ended[1], ended[2]);
}
