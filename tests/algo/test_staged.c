/* test_staged.c - staged collectives run for real: peers read each other's slots in place, with
 * any number of concurrent operations, and also where memory cannot be mapped. */
#define _GNU_SOURCE
#include "ranks.h"

#include <criterion/criterion.h>

enum { COUNT = 300001, MANY = 5 };

static const dcomm_coll_opts staged = {.algo = "staged"};

static void on(int n, ranks_place place, procs_fn fn)
{
    int ended[PROCS_MAX];
    cr_assert_eq(procs_run(n, 50, fn, &place, ended), 0, "%d ranks, %s", n,
                 ranks_place_name(place));
}

static dcomm_comm *join(int rank, int n, procs_shared *s, const void *place)
{
    ranks_settle(rank, n, *(const ranks_place *)place);
    return ranks_join(rank, n, s, NULL);
}

static float value(int rank, int salt, size_t i)
{
    return (float)((i * 3 + (size_t)rank * 7 + (size_t)salt) % 61);
}

static void fill(float *data, size_t count, int rank, int salt)
{
    for (size_t i = 0; i < count; i++) {
        data[i] = value(rank, salt, i);
    }
}

static void expect_sum(const float *data, int n, int salt)
{
    float sums[61]; /* values repeat */
    for (size_t i = 0; i < 61; i++) {
        sums[i] = 0;
        for (int r = 0; r < n; r++) {
            sums[i] += value(r, salt, i);
        }
    }
    for (size_t i = 0; i < COUNT; i++) {
        float want = sums[i % 61];
        PROCS_CHECK(data[i] == want, "salt %d: element %zu is %g, not %g", salt, i, (double)data[i],
                    (double)want);
    }
}

/* Measure the bytes of one call that were read from peers in place. */
static int reads(int rank, int n, procs_shared *s, void *place)
{
    dcomm_comm *comm = join(rank, n, s, place);
    static float in[COUNT], out[COUNT];
    dcomm_stats before, after;
    bool local = *(const ranks_place *)place != RANKS_HOSTS;
    for (int salt = 0; salt < 4; salt++) {
        fill(in, COUNT, rank, salt);
        RANKS_OK(dcomm_comm_get_stats(comm, &before));
        RANKS_OK(dcomm_allreduce(comm, in, out, COUNT, DCOMM_F32, DCOMM_SUM, &staged));
        RANKS_OK(dcomm_comm_get_stats(comm, &after));
        expect_sum(out, n, salt);
    }
    /* Each rank reads the results of all other shares, and all peers' inputs of its own share. */
    uint64_t share = COUNT * sizeof(float) / (uint64_t)n,
             mapped = after.bytes_mapped - before.bytes_mapped;
    uint64_t wanted = local ? 2 * (uint64_t)(n - 1) * share : 0;
    /* Shares are whole cache lines. */
    uint64_t slack = local ? 4096 : 0;
    PROCS_CHECK(mapped + slack >= wanted && mapped <= wanted + slack,
                "%lu bytes were read in place, not about %lu", (unsigned long)mapped,
                (unsigned long)wanted);
    return ranks_leave(&comm);
}

Test(staged, reads_slots_in_place, .timeout = 100)
{
    on(2, RANKS_LOCAL, reads);
    on(5, RANKS_LOCAL, reads);
    on(3, RANKS_MESSAGE, reads);
    on(3, RANKS_HOSTS, reads);
}

/* Start more concurrent operations than mapped scratch can hold. */
static int many(int rank, int n, procs_shared *s, void *place)
{
    dcomm_comm *comm = join(rank, n, s, place);
    static float in[MANY][COUNT], out[MANY][COUNT], all[4 * COUNT], mine[4 * COUNT];
    dcomm_request *request[MANY + 2];
    for (int round = 0; round < 3; round++) {
        for (int k = 0; k < MANY; k++) {
            fill(in[k], COUNT, rank, round + k);
            RANKS_OK(dcomm_iallreduce(comm, in[k], out[k], COUNT, DCOMM_F32, DCOMM_SUM, &staged,
                                      &request[k]));
        }
        RANKS_OK(dcomm_iallgather(comm, in[0], all, COUNT, DCOMM_F32, &staged, &request[MANY]));
        for (int to = 0; to < n; to++) {
            fill(mine + (size_t)to * COUNT, COUNT, rank, round + to);
        }
        RANKS_OK(dcomm_ialltoall(comm, DCOMM_IN_PLACE, mine, COUNT, DCOMM_F32, &staged,
                                 &request[MANY + 1]));
        for (int k = MANY + 1; k >= 0; k--) {
            RANKS_OK(dcomm_wait(&request[k]));
        }
        for (int k = 0; k < MANY; k++) {
            expect_sum(out[k], n, round + k);
        }
        for (size_t i = 0; i < (size_t)n * COUNT; i++) {
            int from = (int)(i / COUNT);
            PROCS_CHECK(all[i] == value(from, round, i % COUNT), "element %zu", i);
            PROCS_CHECK(mine[i] == value(from, round + rank, i % COUNT),
                        "element %zu of all-to-all", i);
        }
    }
    return ranks_leave(&comm);
}

Test(staged, many_at_a_time, .timeout = 100)
{
    on(4, RANKS_LOCAL, many);
    on(3, RANKS_PAIRS, many);
}

/* Destroying a communicator ends its peers' mappings; the context keeps its scratch. */
static int again(int rank, int n, procs_shared *s, void *place)
{
    dcomm_comm *comm = join(rank, n, s, place), *half = NULL;
    static float in[COUNT], out[COUNT];
    for (int k = 0; k < 3; k++) {
        RANKS_OK(dcomm_comm_split(comm, rank % 2, rank, &half));
        fill(in, COUNT, rank / 2, k);
        RANKS_OK(dcomm_allreduce(half, in, out, COUNT, DCOMM_F32, DCOMM_SUM, &staged));
        expect_sum(out, dcomm_comm_size(half), k);
        RANKS_OK(dcomm_comm_destroy(&half));
    }
    return ranks_leave(&comm);
}

Test(staged, communicators_come_and_go, .timeout = 100)
{
    on(4, RANKS_LOCAL, again);
}
