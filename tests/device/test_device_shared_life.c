/* test_device_shared_life.c - device memory that peers open: its properties, refusals, release,
 * and ranks that cannot open it. Uses the host stand-in for CUDA, which counts the bytes of each
 * path. */
#define _GNU_SOURCE
#include "device_shared.h"
#include "cuda_host.h"

#include <criterion/criterion.h>

enum { GRAIN = 2 << 20 };

static size_t available(void)
{
    size_t now = 0, total = 0;
    CUDA_OK(cudaMemGetInfo(&now, &total));
    return now;
}

/* The bytes of a sum: read in place, or copied out of the device. */
typedef struct way {
    uint64_t opened, copied;
} way;

static way look(dcomm_comm *comm, float *device, int salt, const char *algo)
{
    cuda_host_counts before, after;
    cuda_host_get_counts(&before);
    uint64_t bytes = sum(comm, device, salt, algo, NULL);
    cuda_host_get_counts(&after);
    return (way){bytes, after.to_host.bytes - before.to_host.bytes - HALF}; /* sum() checks HALF */
}

/* ---- the calls ---- */

static int calls(int rank, int n, procs_shared *s, void *arg)
{
    (void)rank, (void)n, (void)s, (void)arg;
    dcomm_context *context = NULL, *other = NULL;
    dcomm_mem_info info;
    void *p = &info, *q = NULL;
    RANKS_OK(dcomm_context_create(NULL, &context));
    RANKS_OK(dcomm_context_create(NULL, &other));
    CUDA_OK(cudaSetDevice(1));
    size_t before = available();
    ranks_refused(dcomm_mem_alloc_device(context, 100, NULL), DCOMM_ERR_INVALID, "ptr_p");
    ranks_refused(dcomm_mem_alloc_device(context, SIZE_MAX, &p), DCOMM_ERR_NO_MEMORY, "bytes");
    ranks_refused(dcomm_mem_alloc_device(context, (size_t)1 << 45, &p), DCOMM_ERR_NO_MEMORY,
                  "cudaMalloc");
    PROCS_TRUE(p == NULL);
    RANKS_OK(dcomm_mem_alloc_device(context, 0, &p));
    PROCS_TRUE(p == NULL);
    RANKS_OK(dcomm_mem_alloc_device(context, 5000, &p));
    RANKS_OK(dcomm_mem_get_info((char *)p + 4999, &info));
    PROCS_TRUE(info.base == p && info.bytes == GRAIN && info.shared && info.device == 1);
    ranks_refused(dcomm_mem_get_info((char *)p + GRAIN, &info), DCOMM_ERR_INVALID, "lies in no");
    q = (char *)p + 1;
    ranks_refused(dcomm_mem_free(&q), DCOMM_ERR_INVALID, "not from");
    RANKS_OK(dcomm_mem_share(context, p)); /* calls are counted */
    RANKS_OK(dcomm_mem_share(other, (char *)p + 10));
    RANKS_OK(dcomm_mem_unshare(other, p));
    ranks_refused(dcomm_mem_unshare(other, p), DCOMM_ERR_INVALID, "this context");
    RANKS_OK(dcomm_mem_unshare(context, p));
    RANKS_OK(dcomm_mem_unshare(context, p));
    ranks_refused(dcomm_mem_unshare(context, p), DCOMM_ERR_INVALID, "this context");
    RANKS_OK(dcomm_mem_get_info(p, &info));
    PROCS_TRUE(!info.shared);
    ranks_refused(dcomm_mem_share(NULL, p), DCOMM_ERR_INVALID, "context");
    ranks_refused(dcomm_mem_share(context, &info), DCOMM_ERR_INVALID, "dcomm_mem_alloc_device");
    RANKS_OK(dcomm_mem_share(other, p));
    RANKS_OK(dcomm_context_destroy(&other)); /* the memory keeps the context */
    q = p;
    RANKS_OK(dcomm_mem_free(&p));
    PROCS_TRUE(p == NULL && available() == before);
    ranks_refused(dcomm_mem_free(&q), DCOMM_ERR_INVALID, "free already");
    RANKS_OK(dcomm_mem_alloc_device(NULL, 5000, &p));
    RANKS_OK(dcomm_mem_get_info(p, &info));
    PROCS_TRUE(!info.shared);
    RANKS_OK(dcomm_mem_share(context, p));
    RANKS_OK(dcomm_mem_free(&p));
    RANKS_OK(dcomm_context_destroy(&context));
    PROCS_TRUE(available() == before);
    return procs_leaks();
}

Test(device_shared_life, calls, .timeout = 60)
{
    cr_assert_eq(runs(1, calls, NULL), 0);
}

/* ---- reading in place ---- */

/* No bytes are copied out of a device if the plan's steps read the buffers. */
static int straight(int rank, int n, procs_shared *s, void *arg)
{
    static const char *const algos[] = {"one_shot", "two_shot", "ring"};
    (void)arg;
    ranks_settle(rank, n, RANKS_LOCAL);
    dcomm_comm *comm = ranks_join(rank, n, s, NULL);
    void *p = opened(comm);
    for (int a = 0; a < 3; a++) {
        way w = look(comm, p, a, algos[a]);
        PROCS_CHECK(w.opened > 0 && w.copied == 0, "%s: %lu bytes were copied out", algos[a],
                    (unsigned long)w.copied);
    }
    RANKS_OK(dcomm_mem_free(&p));
    return ranks_leave(&comm);
}

Test(device_shared_life, nothing_is_copied_out, .timeout = 60)
{
    for (int n = 2; n <= 4; n++) {
        cr_assert_eq(runs(n, straight, NULL), 0, "%d ranks", n);
    }
}

/* ---- lifetime ---- */

/* Memory stays allocated as long as a peer has it open, and no longer. */
static int stays(int rank, int n, procs_shared *s, void *arg)
{
    (void)arg;
    ranks_settle(rank, n, RANKS_LOCAL);
    dcomm_comm *comm = ranks_join(rank, n, s, NULL), *second = NULL;
    void *p = opened(comm);
    talk(comm);
    size_t held = available();
    meet(s, rank, n, 1); /* no rank calls dcomm until all have freed */
    RANKS_OK(dcomm_mem_free(&p));
    PROCS_CHECK(available() == held, "it was given back while peers have it open");
    meet(s, rank, n, 2);
    talk(comm);
    talk(comm);
    size_t before = held + (BYTES + GRAIN - 1) / GRAIN * GRAIN;
    PROCS_CHECK(available() == before, "%zu bytes are available, not %zu", available(), before);
    /* Memory is freed, then the communicator that would carry the news is destroyed. Peers confirm
     * before. */
    p = opened(comm);
    RANKS_OK(dcomm_comm_dup(comm, &second));
    RANKS_OK(dcomm_mem_free(&p));
    RANKS_OK(dcomm_comm_destroy(&second));
    p = opened(comm);
    void *q = opened(comm);
    RANKS_OK(dcomm_mem_free(&q));
    RANKS_OK(dcomm_comm_destroy(&comm));
    RANKS_OK(dcomm_mem_free(&p)); /* the memory has kept its context */
    PROCS_CHECK(available() >= before, "%zu bytes are available, not %zu", available(), before);
    return ranks_leave(&comm);
}

Test(device_shared_life, stays_while_it_is_open, .timeout = 60)
{
    for (int n = 2; n <= 3; n++) {
        cr_assert_eq(runs(n, stays, NULL), 0, "%d ranks", n);
    }
}

/* ---- ranks that cannot open memory ---- */

/* The first opening fails on rank 1. From then on it reads that memory by messages. */
static int fails(int rank, int n, procs_shared *s, void *arg)
{
    (void)arg;
    ranks_settle(rank, n, RANKS_LOCAL);
    dcomm_comm *comm = ranks_join(rank, n, s, NULL);
    void *p = allocate(comm, BYTES);
    cuda_host_faults faults = {.fail_open = rank == 1};
    cuda_host_set_faults(&faults);
    for (int i = 0; i < 2 * TIMES; i++) {
        way w = look(comm, p, i, i % 2 ? "two_shot" : "ring");
        PROCS_CHECK(i < TIMES || (w.opened > 0) == (rank != 1), "%lu bytes were read in place",
                    (unsigned long)w.opened);
        PROCS_TRUE(i < TIMES || (w.copied > 0) == (rank != 1));
    }
    PROCS_TRUE(cudaGetLastError() == cudaSuccess);
    RANKS_OK(dcomm_mem_free(&p));
    p = opened(comm);
    RANKS_OK(dcomm_mem_free(&p));
    return ranks_leave(&comm);
}

Test(device_shared_life, what_cannot_be_opened_comes_by_messages, .timeout = 60)
{
    cr_assert_eq(runs(2, fails, NULL), 0);
}

/* The devices that the ranks see and take. apart: devices have no peer access. */
typedef struct sight {
    const char *visible[2];
    int device[2];
    bool apart, opened;
} sight;

static int sees(int rank, int n, procs_shared *s, void *arg)
{
    const sight *w = arg;
    setenv("CUDA_VISIBLE_DEVICES", w->visible[rank], 1);
    ranks_settle(rank, n, RANKS_LOCAL);
    cuda_host_faults faults = {.no_peer_access = w->apart};
    cuda_host_set_faults(&faults);
    CUDA_OK(cudaSetDevice(w->device[rank]));
    dcomm_comm *comm = ranks_join(rank, n, s, NULL);
    void *p = allocate(comm, BYTES);
    way last = {0};
    for (int i = 0; i < TIMES; i++) {
        last = look(comm, p, i, "two_shot");
    }
    PROCS_CHECK((last.opened > 0) == w->opened && (last.copied == 0) == w->opened,
                "%lu bytes were read in place, %lu copied out", (unsigned long)last.opened,
                (unsigned long)last.copied);
    RANKS_OK(dcomm_mem_free(&p));
    return ranks_leave(&comm);
}

Test(device_shared_life, devices_are_known_by_where_they_sit, .timeout = 60)
{
    const sight cases[] = {
        {{"0,1", "1,0"}, {1, 0}, true, true},   /* the same device with two numbers */
        {{"0,1", "1,0"}, {0, 0}, true, false},  /* two devices, one number */
        {{"0,1", "1,0"}, {0, 0}, false, true},  /* with peer access */
        {{"0", "1"}, {0, 0}, false, false},     /* one device is not visible */
        {{"0,1,2", "2"}, {2, 0}, false, true}}; /* with peer access, of three */
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        sight w = cases[c];
        cr_assert_eq(runs(2, sees, &w), 0, "case %zu", c);
    }
}
