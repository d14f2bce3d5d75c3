/* test_levels_run.c - hierarchical algorithms over two and three levels, run by processes with
 * invented places. test_levels.c proves them. */
#define _GNU_SOURCE
#define DCOMM_IMPLEMENTATION
#include "full.h"
#include "hier_values.h"
#include "levels.h"
#include "ranks.h"

/* Run one operation, in place or not, and check every element. */
static void run_once(dcomm_comm *comm, int rank, const call *c)
{
    size_t me = (size_t)rank, count = c->count, all = whole(c->coll) ? count : (size_t)c->n * count;
    bool gathers = c->coll == DCOMM_COLL_ALLGATHER, at_own = false;
    float *given = malloc(all * sizeof *given), *got = malloc(all * sizeof *got);
    PROCS_TRUE(given != NULL && got != NULL);
    float *in = c->in_place ? got : given;
    for (size_t i = 0; i < all; i++) {
        got[i] = -1e9f;
    }
    for (size_t i = 0; i < all; i++) {
        in[i] = value(rank, i);
    }
    dcomm_coll_opts opts = {.algo = c->name, .chunk_bytes = (size_t)c->chunk};
    switch (c->coll) {
    case DCOMM_COLL_ALLREDUCE:
        RANKS_OK(dcomm_allreduce(comm, in, got, count, DCOMM_F32, DCOMM_SUM, &opts));
        break;
    case DCOMM_COLL_BROADCAST:
        RANKS_OK(dcomm_broadcast(comm, in, got, count, DCOMM_F32, c->root, &opts));
        break;
    case DCOMM_COLL_REDUCE_SCATTER:
        at_own = c->in_place;
        RANKS_OK(dcomm_reduce_scatter(comm, in, got + (at_own ? me * count : 0), count, DCOMM_F32,
                                      DCOMM_SUM, &opts));
        break;
    case DCOMM_COLL_ALLGATHER:
        RANKS_OK(dcomm_allgather(comm, in + me * count, got, count, DCOMM_F32, &opts));
        break;
    default:
        RANKS_OK(dcomm_alltoall(comm, in, got, count, DCOMM_F32, &opts));
        break;
    }
    bool blocks = gathers || c->coll == DCOMM_COLL_ALLTOALL;
    for (size_t i = 0; i < (blocks ? all : count); i++) {
        int from = (int)(i / count);
        float want = c->coll == DCOMM_COLL_BROADCAST ? value(c->root, i)
                     : gathers                       ? value(from, i)
                                                     : value(from, me * count + i % count);
        if (!blocks && c->coll != DCOMM_COLL_BROADCAST) {
            bool part = c->coll == DCOMM_COLL_REDUCE_SCATTER;
            want = value_of_sum(c->n, i + (part ? me * count : 0));
        }
        float is = got[i + (at_own ? me * count : 0)];
        PROCS_CHECK(is == want, "rank %d, %s: [%zu] %g, not %g", rank, text_of(c), i, (double)is,
                    (double)want);
    }
    free(given);
    free(got);
}

/* Packages and nodes are invented. With 16 ranks hosts are invented too, because TCP connections
 * of so many ranks on few cores would time out. All plans work for any groups. */
static int run_all(int rank, int n, procs_shared *s, void *arg)
{
    static const size_t counted[] = {1, 1100, 30000};
    const call *tree = arg;
    dcommi_groups *groups = groups_of(tree);
    char host[16];
    ranks_settle(rank, n, RANKS_LOCAL);
    snprintf(host, sizeof host, "h%d", (int)dcommi_group_of(groups, 0, rank));
    if (n < 16) {
        setenv("DCOMM_HOSTID", host, 1);
    }
    dcomm_comm *comm = ranks_join(rank, n, s, NULL);
    dcommi_groups *real = comm->groups;
    comm->groups = groups;
    for (int a = 0; a < ALGORITHMS; a++) {
        for (int k = 0; k < 6 && !is_v(algorithms[a].coll); k++) {
            if (!test_full() && (a / 2 + a + k + n) % 2 != 0) {
                continue;
            }
            call c = *tree;
            c.coll = algorithms[a].coll;
            c.name = algorithms[a].name;
            c.count = counted[k % 3];
            c.in_place = k >= 3;
            c.chunk = k % 2 == 0 ? 20000 : 0;
            c.root = (k + a) % n;
            run_once(comm, rank, &c);
        }
    }
    comm->groups = real;
    dcommi_groups_free(&groups);
    return ranks_leave(&comm);
}

Test(levels_run, right_when_run, .timeout = 240)
{
    static call trees[] = {
        {.n = 8, .levels = 2, .parts = {2, 2, 1}, .numbers = CYCLIC},
        {.n = 9, .levels = 2, .parts = {2, 2, 1}, .numbers = SHUFFLED, .sizes = GROWING},
        {.n = 12, .levels = 3, .parts = {1, 3, 2}, .numbers = SHUFFLED},
        {.n = 8, .levels = 2, .parts = {2, 2, 1}},
        {.n = 16, .levels = 3, .parts = {2, 2, 2}, .numbers = CYCLIC}};
    const size_t some = test_full() ? sizeof trees / sizeof trees[0] : 3;
    for (size_t i = 0; i < some; i += PROCS_THIN) {
        int ended[PROCS_MAX];
        cr_assert_eq(procs_run(trees[i].n, 100, run_all, &trees[i], ended), 0, "%s",
                     text_of(&trees[i]));
    }
}
