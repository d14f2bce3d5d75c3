/* test_hier_run.c - hierarchical algorithms run by processes that stand for several hosts. The
 * processes read each other's memory or talk over the network. test_hier.c proves the plans. */
#define _GNU_SOURCE
#include "run_ranks.h"

#include "full.h"
#include "hier_algorithms.h"
#include "hier_values.h"

typedef struct running {
    int rank, n;
    dcomm_comm *comm;
    bool in_place;
    dcomm_coll_opts opts;
    float *given, *got; /* each has room for n blocks */
} running;

/* Run an operation once with `count` elements per block, and check every element. */
static void run_once(const running *w, dcomm_coll coll, size_t count, int root)
{
    size_t me = (size_t)w->rank, mine = me * count,
           all = whole(coll) ? count : (size_t)w->n * count;
    size_t got_at = 0, got_count = count;
    bool gathers = coll == DCOMM_COLL_ALLGATHER, sums = coll == DCOMM_COLL_REDUCE_SCATTER;
    float *in = w->in_place ? w->got : w->given;
    for (size_t i = 0; i < all; i++) {
        w->got[i] = -1e9f;
    }
    for (size_t i = 0; i < all; i++) {
        in[i] =
            !w->in_place || !gathers || (i >= mine && i < mine + count) ? value(w->rank, i) : -1e9f;
    }
    switch (coll) {
    case DCOMM_COLL_ALLREDUCE:
        RANKS_OK(dcomm_allreduce(w->comm, in, w->got, count, DCOMM_F32, DCOMM_SUM, &w->opts));
        break;
    case DCOMM_COLL_BROADCAST:
        RANKS_OK(dcomm_broadcast(w->comm, in, w->got, count, DCOMM_F32, root, &w->opts));
        break;
    case DCOMM_COLL_REDUCE_SCATTER:
        got_at = w->in_place ? mine : 0;
        RANKS_OK(dcomm_reduce_scatter(w->comm, in, w->got + got_at, count, DCOMM_F32, DCOMM_SUM,
                                      &w->opts));
        break;
    case DCOMM_COLL_ALLGATHER:
        got_count = all;
        RANKS_OK(dcomm_allgather(w->comm, in + mine, w->got, count, DCOMM_F32, &w->opts));
        break;
    default:
        got_count = all;
        RANKS_OK(dcomm_alltoall(w->comm, in, w->got, count, DCOMM_F32, &w->opts));
        break;
    }
    for (size_t i = 0; i < got_count; i++) {
        int from = (int)(i / count);
        float want = coll == DCOMM_COLL_ALLREDUCE   ? value_of_sum(w->n, i)
                     : sums                         ? value_of_sum(w->n, mine + i)
                     : coll == DCOMM_COLL_BROADCAST ? value(root, i)
                     : gathers                      ? value(from, i)
                                                    : value(from, mine + i % count);
        float got = w->got[got_at + i];
        PROCS_CHECK(got == want,
                    "%s of %s, rank %d of %d, %zu elements, in place %d: [%zu] %g, not %g",
                    w->opts.algo, dcomm_coll_name(coll), w->rank, w->n, count, w->in_place, i,
                    (double)got, (double)want);
    }
}

/* Operators that divide or multiply do so once: averages at the end, factors before the sum. */
static void run_scaled(running *w, const char *algo)
{
    enum { COUNT = 50000 };
    w->opts = (dcomm_coll_opts){.algo = algo};
    for (int k = 0; k < 2; k++) {
        w->opts.premul = k == 1 ? w->rank + 1 : 0;
        for (size_t i = 0; i < COUNT; i++) {
            w->given[i] = value(w->rank, i);
        }
        RANKS_OK(dcomm_allreduce(w->comm, w->given, w->got, COUNT, DCOMM_F32,
                                 k == 0 ? DCOMM_AVG : DCOMM_PREMUL_SUM, &w->opts));
        for (size_t i = 0; i < COUNT; i++) {
            float want = 0;
            for (int r = 0; r < w->n; r++) {
                want += value(r, i) * (k == 0 ? 1 : (float)(r + 1));
            }
            want /= k == 0 ? (float)w->n : 1;
            float gap = w->got[i] - want;
            PROCS_CHECK(gap < 1e-4f && gap > -1e-4f,
                        "%s, rank %d of %d, operator %d: [%zu] %g, not %g", algo, w->rank, w->n, k,
                        i, (double)w->got[i], (double)want);
        }
    }
}

static int run_all(int rank, int n, procs_shared *s, void *arg)
{
    static const size_t sizes[] = {1, 37, 1100, 30000, 400000};
    const char *hosts = arg; /* one letter for each rank */
    char host[16];
    ranks_settle(rank, n, RANKS_LOCAL);
    snprintf(host, sizeof host, "h%c", hosts[rank]);
    setenv("DCOMM_HOSTID", host, 1);
    running w = {.rank = rank, .n = n, .comm = ranks_join(rank, n, s, NULL)};
    for (size_t k = 0; k < sizeof sizes / sizeof sizes[0]; k++) {
        w.given = malloc(4 * sizes[k] * (size_t)n);
        w.got = malloc(4 * sizes[k] * (size_t)n);
        PROCS_TRUE(w.given != NULL && w.got != NULL);
        for (int a = 0; a < OF_BLOCKS; a++) {
            if (!whole(algorithms[a].coll) && sizes[k] > 100000) {
                continue;
            }
            for (int way = 0; way < 4; way++) {
                if (!test_full() && ((size_t)(a + way) + k) % 4 > 1) {
                    continue; /* run two of four */
                }
                w.in_place = way % 2;
                w.opts = (dcomm_coll_opts){.algo = algorithms[a].name,
                                           .lanes = 1 + way / 2,
                                           .chunk_bytes = way >= 2 ? 20000 : 0};
                run_once(&w, algorithms[a].coll, sizes[k], (int)(k + (size_t)way) % n);
            }
        }
        if (sizes[k] >= 50000) {
            run_scaled(&w, "hier");
            run_scaled(&w, "hier_leader");
        }
        free(w.given);
        free(w.got);
    }
    return ranks_leave(&w.comm);
}

Test(hier_run, right_on_real_hosts, .timeout = 240)
{
    static const char *const layouts[] = {"01010", "0011", "011222", "000",   "012",
                                          "0101",  "0001", "001122", "00112", "012012"};
    const size_t some = test_full() ? sizeof layouts / sizeof layouts[0] : 5;
    for (size_t i = 0; i < some; i += PROCS_THIN) {
        int ended[PROCS_MAX];
        cr_assert_eq(procs_run((int)strlen(layouts[i]), 100, run_all, (void *)layouts[i], ended), 0,
                     "hosts %s", layouts[i]);
    }
}
