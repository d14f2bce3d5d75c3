/* test_determinism.c - deterministic sums have the same bits however they are cut, with any
 * algorithm, wherever the ranks run. Algorithms that cannot promise this refuse. */
#define _GNU_SOURCE
#include "ranks.h"

#include <criterion/criterion.h>

#include <sched.h>

#define COUNT 70001 /* long enough to be read in place; its pieces are sent */
#define PIECES 7

typedef struct setting {
    ranks_place place;
    int cores;              /* 0: unbound; 1: rank r on core r; 2: in reverse; 3: all on one */
    _Atomic uint64_t *hash; /* [2] of f32 and bf16; 0: not known yet; shared by all processes */
} setting;

static void bind_core(int rank, int n, int cores)
{
    cpu_set_t all, one;
    int want = cores == 3 ? 0 : cores == 2 ? n - 1 - rank : rank, found = 0;
    PROCS_TRUE(sched_getaffinity(0, sizeof all, &all) == 0);
    want %= CPU_COUNT(&all);
    for (int c = 0; c < CPU_SETSIZE; c++) {
        if (CPU_ISSET(c, &all) && found++ == want) {
            CPU_ZERO(&one);
            CPU_SET(c, &one);
            PROCS_TRUE(sched_setaffinity(0, sizeof one, &one) == 0);
        }
    }
}

/* Fill data with magnitudes over 12 binary orders, so that each order of additions gives other
 * bits. */
static void fill(unsigned char *data, dcomm_dtype dtype, int rank)
{
    uint64_t state = 1000 + (uint64_t)rank;
    for (size_t i = 0; i < COUNT; i++) {
        uint64_t x = ranks_random(&state);
        float f = ((float)(x >> 40) - 8388608.0f) / (float)(1 << (x & 15));
        if (dtype == DCOMM_F32) {
            memcpy(data + 4 * i, &f, 4);
        } else {
            memcpy(data + 2 * i, (unsigned char *)&f + 2, 2);
        }
    }
}

static void same(_Atomic uint64_t *hash, const void *data, size_t len, const char *what)
{
    uint64_t mine = ranks_hash(data, len), none = 0;
    PROCS_CHECK(atomic_compare_exchange_strong(hash, &none, mine) || none == mine,
                "%s has other bits", what);
}

static void sums(dcomm_comm *comm, dcomm_dtype dtype, _Atomic uint64_t *hash)
{
    const size_t element = dcomm_dtype_size(dtype), bytes = COUNT * element;
    static const size_t cut[PIECES + 1] = {0, 1, 8, 1001, 1003, 20000, 60007, COUNT};
    int rank = dcomm_comm_rank(comm), n = dcomm_comm_size(comm);
    unsigned char *in = malloc(bytes), *out = malloc(bytes), *all = malloc(bytes);
    dcomm_algo_info info;
    PROCS_TRUE(in != NULL && out != NULL && all != NULL);
    if (dtype == DCOMM_F32) { /* rank after rank, folded in f32 */
        fill(all, dtype, 0);
        for (int r = 1; r < n; r++) {
            fill(in, dtype, r);
            for (size_t i = 0; i < COUNT; i++) {
                ((float *)(void *)all)[i] += ((const float *)(const void *)in)[i];
            }
        }
        same(hash, all, bytes, "the sum in rank order");
    }
    fill(in, dtype, rank);
    for (int a = -1; a < 0 || dcomm_algo_get_info(DCOMM_COLL_ALLREDUCE, a, &info) == DCOMM_OK;
         a++) {
        dcomm_coll_opts opts = {.algo = a < 0 ? NULL : info.name, .deterministic = true};
        const char *name = a < 0 ? "auto" : info.name;
        if (a >= 0 && !info.rank_order) {
            dcomm_status status = dcomm_allreduce(comm, in, out, COUNT, dtype, DCOMM_SUM, &opts);
            PROCS_CHECK(status == DCOMM_ERR_UNSUPPORTED, "%s: %s", name, dcomm_status_name(status));
            PROCS_CHECK(strstr(dcomm_last_error(), name) != NULL &&
                            strstr(dcomm_last_error(), "two_shot") != NULL,
                        "%s", dcomm_last_error());
            continue;
        }
        memset(out, 0, bytes);
        RANKS_OK(dcomm_allreduce(comm, in, out, COUNT, dtype, DCOMM_SUM, &opts));
        same(hash, out, bytes, name);
        /* The sum in pieces, in place, all at once. */
        dcomm_request *requests[PIECES];
        memcpy(out, in, bytes);
        for (int p = 0; p < PIECES; p++) {
            opts.chunk_bytes = p % 2 ? 4096 : 0;
            RANKS_OK(dcomm_iallreduce(comm, out + cut[p] * element, out + cut[p] * element,
                                      cut[p + 1] - cut[p], dtype, DCOMM_SUM, &opts, &requests[p]));
        }
        RANKS_OK(dcomm_wait_all(requests, PIECES));
        same(hash, out, bytes, name);
    }
    /* The same sum by reduce-scatter, and by reduce. */
    size_t counts[PROCS_MAX], at = 0;
    for (int r = 0; r < n; r++) {
        counts[r] = r + 1 < n ? COUNT / (size_t)n - (size_t)(r % 2) : COUNT - at;
        at += counts[r];
    }
    for (int a = 0; dcomm_algo_get_info(DCOMM_COLL_REDUCE_SCATTERV, a, &info) == DCOMM_OK; a++) {
        dcomm_coll_opts opts = {.algo = info.name, .deterministic = true};
        dcomm_status status = dcomm_reduce_scatterv(comm, in, out, counts, dtype, DCOMM_SUM, &opts);
        PROCS_TRUE(status == (info.rank_order ? DCOMM_OK : DCOMM_ERR_UNSUPPORTED));
        if (info.rank_order) {
            RANKS_OK(dcomm_allgatherv(comm, out, all, counts, NULL, dtype, NULL));
            same(hash, all, bytes, info.name);
        }
    }
    for (int a = 0; dcomm_algo_get_info(DCOMM_COLL_REDUCE, a, &info) == DCOMM_OK; a++) {
        dcomm_coll_opts opts = {.algo = info.name, .deterministic = true};
        dcomm_status status = dcomm_reduce(comm, in, out, COUNT, dtype, DCOMM_SUM, n - 1, &opts);
        PROCS_TRUE(status == (info.rank_order ? DCOMM_OK : DCOMM_ERR_UNSUPPORTED));
        if (info.rank_order && rank == n - 1) {
            same(hash, out, bytes, info.name);
        }
    }
    free(in);
    free(out);
    free(all);
}

static int one_setting(int rank, int n, procs_shared *s, void *arg)
{
    const setting *how = arg;
    ranks_settle(rank, n, how->place);
    if (how->cores > 0) {
        bind_core(rank, n, how->cores);
    }
    /* Rank 0 asks for determinism for all calls, and then each call does. */
    dcomm_comm *comm = ranks_join(rank, n, s, &(dcomm_comm_opts){.deterministic = rank == 0});
    sums(comm, DCOMM_F32, &how->hash[0]);
    sums(comm, DCOMM_BF16, &how->hash[1]);
    float x = 1, sum = 0;
    dcomm_coll_opts ring = {.algo = "ring"};
    PROCS_TRUE(dcomm_allreduce(comm, &x, &sum, 1, DCOMM_F32, DCOMM_SUM, &ring) ==
               DCOMM_ERR_UNSUPPORTED);
    return ranks_leave(&comm);
}

static void ranks(int n)
{
    static const setting settings[] = {{RANKS_LOCAL, 1, NULL},   {RANKS_LOCAL, 2, NULL},
                                       {RANKS_LOCAL, 3, NULL},   {RANKS_PAIRS, 0, NULL},
                                       {RANKS_MESSAGE, 0, NULL}, {RANKS_HOSTS, 0, NULL}};
    _Atomic uint64_t *hash =
        mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    int ended[PROCS_MAX];
    cr_assert_neq((void *)(uintptr_t)hash, MAP_FAILED);
    /* Sanitizers and the everyday run try a third of the settings with each number of ranks. */
    const size_t step = (size_t)procs_third();
    for (size_t i = (size_t)n % step; i < sizeof settings / sizeof *settings; i += step) {
        setting how = settings[i];
        how.hash = hash;
        cr_assert_eq(procs_run(n, 40, one_setting, &how, ended), 0, "%d ranks, %s, cores %d", n,
                     ranks_place_name(how.place), how.cores);
    }
    munmap((void *)(uintptr_t)hash, 4096);
}

Test(determinism, few_ranks, .timeout = 200)
{
    for (int n = 2; n <= 5; n++) {
        ranks(n);
    }
}

Test(determinism, more_ranks, .timeout = 200)
{
    for (int n = 6; n <= 9; n++) {
        if (n == 8 || test_full()) {
            ranks(n);
        }
    }
}
