/* test_ps_faults.c - a parameter server when something is wrong: arguments, workers that die or are
 * late, servers that die. */
#define _GNU_SOURCE
#include "ps_case.h"

/* Bad options and arguments are refused by name, and what is good goes on. */
static int arguments(int rank, int n, procs_shared *s, void *arg)
{
    (void)arg;
    dcomm_comm *comm = join(rank, n, s);
    dcomm_ps *ps = NULL;
    static const struct {
        dcomm_status status;
        const char *words;
    } cases[] = {{DCOMM_ERR_INVALID, "opts.servers"},
                 {DCOMM_ERR_INVALID, "opts.dedicated"},
                 {DCOMM_ERR_INVALID, "opts.staleness"},
                 {DCOMM_ERR_INVALID, "opts.update"},
                 {DCOMM_ERR_INVALID, "opts.lr"},
                 {DCOMM_ERR_INVALID, "opts.momentum"},
                 {DCOMM_ERR_INVALID, "opts.weight"},
                 {DCOMM_ERR_INVALID, "opts.quorum"},
                 {DCOMM_ERR_INVALID, "opts.timeout_s"},
                 {DCOMM_ERR_INVALID, "0 rows"},
                 {DCOMM_ERR_UNSUPPORTED, "dtype f64"},
                 {DCOMM_ERR_MISMATCH, "opts.lr is not the same"},
                 {DCOMM_ERR_MISMATCH, "params is not the same"},
                 {DCOMM_ERR_INVALID, "opts.pull_dtype"}};
    for (int c = 0; c < (int)(sizeof cases / sizeof *cases); c++) {
        dcomm_ps_opts o = {.lr = 1};
        dcomm_ps_param p = {.rows = 4, .cols = 2, .dtype = DCOMM_F32};
        if (rank == n - 1) {
            o.servers = c == 0 ? n + 1 : 0;
            o.dedicated = c == 1;
            o.staleness = c == 2 ? -2 : 0;
            o.update = c == 3 ? DCOMM_PS_ELASTIC : DCOMM_PS_SGD;
            o.lr = c == 4 ? 0 : c == 11 ? 2 : 1;
            o.momentum = c == 5 ? 1 : 0;
            o.weight = c == 6 ? DCOMM_PS_WEIGHT_INVERSE : DCOMM_PS_WEIGHT_ONE;
            o.quorum = c == 7 ? n + 1 : 0;
            o.timeout_s = c == 8 ? -1 : 0;
            o.pull_dtype = c == 13 ? DCOMM_I8 : DCOMM_F32;
            p.rows = c == 9 ? 0 : c == 12 ? 5 : 4;
            p.dtype = c == 10 ? DCOMM_F64 : DCOMM_F32;
        }
        ranks_refused(dcomm_ps_create(comm, &p, 1, &o, &ps), cases[c].status, cases[c].words);
        PROCS_TRUE(ps == NULL);
    }
    static ps_case t;
    t = (ps_case){.opts = {.lr = 1}};
    ps_begin(&t, comm);
    const uint64_t twice[] = {3, 5, 3}, beyond[] = {3, 40};
    float x[PS_MOST] = {0};
    ranks_refused(dcomm_ps_push(t.ps, 2, 0, 1, x, NULL), DCOMM_ERR_INVALID, "there are 2 param");
    ranks_refused(dcomm_ps_push(t.ps, 0, 39, 2, x, NULL), DCOMM_ERR_INVALID, "has 40 rows");
    ranks_refused(dcomm_ps_pull(t.ps, 0, 41, 0, x, NULL), DCOMM_ERR_INVALID, "has 40 rows");
    ranks_refused(dcomm_ps_pull(t.ps, 0, 0, 1, NULL, NULL), DCOMM_ERR_INVALID, "is NULL");
    ranks_refused(dcomm_ps_pull_rows(t.ps, 0, NULL, 1, x, NULL), DCOMM_ERR_INVALID, "rows is NULL");
    ranks_refused(dcomm_ps_pull_rows(t.ps, 0, twice, 3, x, NULL), DCOMM_ERR_INVALID,
                  "rows[0] and rows[2] are both 3");
    ranks_refused(dcomm_ps_push_rows(t.ps, 0, beyond, 2, x, NULL), DCOMM_ERR_INVALID,
                  "rows[1] is 40; \"table\" has 40 rows");
    x[7] = NAN;
    ranks_refused(dcomm_ps_push(t.ps, 0, 4, 2, x, NULL), DCOMM_ERR_INVALID,
                  "element 1 of row 1 of the gradient of \"table\" is");
    RANKS_OK(dcomm_ps_push(t.ps, 0, 4, 0, NULL, NULL));
    ps_push(&t, 0);
    RANKS_OK(dcomm_ps_clock(t.ps));
    ps_expect_sgd(&t, 0, (1u << n) - 1);
    ps_compare(&t, 1e-6, "after refusals");
    RANKS_OK(dcomm_ps_destroy(&t.ps));
    RANKS_OK(dcomm_ps_destroy(&t.ps));
    return ranks_leave(&comm);
}

Test(ps_faults, arguments, .timeout = 60)
{
    on(2, RANKS_LOCAL, 25, arguments);
}

/* Servers that do not work serve until all workers have left. */
static int dedicated(int rank, int n, procs_shared *s, void *arg)
{
    (void)arg;
    dcomm_comm *comm = join(rank, n, s);
    static ps_case t;
    t = (ps_case){.opts = {.lr = 0.5, .servers = 2, .dedicated = true}};
    ps_begin(&t, comm);
    const bool serves = rank == 0 || rank == n / 2;
    const unsigned workers = ((1u << n) - 1) & ~(1u | 1u << n / 2);
    if (serves) {
        float x = 0;
        ranks_refused(dcomm_ps_push(t.ps, 1, 0, 1, &x, NULL), DCOMM_ERR_INVALID, "do not work");
        RANKS_OK(dcomm_ps_serve(t.ps));
    } else {
        ranks_refused(dcomm_ps_serve(t.ps), DCOMM_ERR_INVALID, "holds no rows");
    }
    for (int clock = 0; clock < 3 && !serves; clock++) {
        ps_push(&t, clock);
        RANKS_OK(dcomm_ps_clock(t.ps));
        ps_expect_sgd(&t, clock, workers);
        ps_compare(&t, 1e-6, "dedicated");
    }
    RANKS_OK(dcomm_ps_destroy(&t.ps));
    return ranks_leave(&comm);
}

Test(ps_faults, dedicated, .timeout = 60)
{
    on(4, RANKS_LOCAL, 25, dedicated);
    on(5, RANKS_HOSTS, 25, dedicated);
}

/* A worker dies in the middle of a clock: the others go on, and what it pushed there is dropped.
 * Its earlier clocks count. */
static int worker_dies(int rank, int n, procs_shared *s, void *arg)
{
    (void)arg;
    dcomm_comm *comm = join(rank, n, s);
    static ps_case t;
    t = (ps_case){.opts = {.lr = 0.5, .servers = 1}};
    ps_begin(&t, comm);
    ps_push(&t, 0);
    RANKS_OK(dcomm_ps_clock(t.ps));
    ps_expect_sgd(&t, 0, (1u << n) - 1);
    ps_compare(&t, 1e-6, "before the death");
    ps_push(&t, 1);
    if (rank == n - 1) {
        while (!procs_all(s, n, 1, rank)) {
            procs_nap();
        }
        kill(getpid(), SIGKILL);
    }
    procs_post(s, rank, 1);
    RANKS_OK(dcomm_ps_clock(t.ps));
    ps_expect_sgd(&t, 1, (1u << (n - 1)) - 1);
    ps_compare(&t, 1e-6, "after the death");
    dcomm_ps_stats stats;
    RANKS_OK(dcomm_ps_get_stats(t.ps, &stats));
    PROCS_TRUE(rank != 0 || (stats.workers == n - 1 && stats.dropped <= PS_PARAMS));
    procs_post(s, rank, 2);
    while (!procs_all(s, n, 2, n - 1)) { /* nobody leaves before */
        procs_nap();
    }
    RANKS_OK(dcomm_ps_destroy(&t.ps));
    dcomm_comm_destroy(&comm);
    return procs_leaks();
}

Test(ps_faults, worker_dies, .timeout = 60)
{
    ps_on_but(1u << 2, 3, RANKS_LOCAL, 25, worker_dies, NULL, "worker_dies");
    ps_on_but(1u << 3, 4, RANKS_PAIRS, 25, worker_dies, NULL, "worker_dies");
}

/* A server dies: calls that need its rows name it, the others go on. */
static int server_dies(int rank, int n, procs_shared *s, void *arg)
{
    (void)arg;
    enum { ROWS = 8 };
    dcomm_comm *comm = join(rank, n, s);
    const dcomm_ps_param param = {.name = "w", .rows = ROWS, .cols = 1, .dtype = DCOMM_F32};
    const dcomm_ps_opts opts = {.servers = 2, .staleness = DCOMM_PS_ASYNC, .lr = 1};
    const int victim = n / 2; /* holds rows 4 to 7 */
    float w[ROWS], g[ROWS] = {1, 1, 1, 1, 1, 1, 1, 1};
    dcomm_ps *ps = NULL;
    RANKS_OK(dcomm_ps_create(comm, &param, 1, &opts, &ps));
    RANKS_OK(dcomm_ps_pull(ps, 0, 0, ROWS, w, NULL));
    procs_post(s, rank, 1);
    if (rank == victim) {
        while (!procs_all(s, n, 1, -1)) {
            procs_nap();
        }
        kill(getpid(), SIGKILL);
    }
    dcomm_status status = DCOMM_OK;
    const double start = procs_now();
    while ((status = dcomm_ps_pull(ps, 0, 0, ROWS, w, NULL)) == DCOMM_OK) {
        PROCS_CHECK(procs_now() - start < 10, "no error for 10 s");
    }
    char words[32];
    snprintf(words, sizeof words, "server 1 (rank %d)", victim);
    ranks_refused(status, DCOMM_ERR_PEER, words);
    ranks_refused(dcomm_ps_push(ps, 0, 6, 2, g, NULL), DCOMM_ERR_PEER, words);
    RANKS_OK(dcomm_ps_push(ps, 0, 0, 4, g, NULL));
    RANKS_OK(dcomm_ps_pull(ps, 0, 0, 4, w, NULL));
    PROCS_TRUE(w[0] < 0);
    RANKS_OK(dcomm_ps_clock(ps));
    RANKS_OK(dcomm_ps_destroy(&ps));
    dcomm_comm_destroy(&comm);
    return procs_leaks();
}

Test(ps_faults, server_dies, .timeout = 60)
{
    ps_on_but(1u << 1, 3, RANKS_LOCAL, 25, server_dies, NULL, "server_dies");
    ps_on_but(1u << 2, 4, RANKS_PAIRS, 25, server_dies, NULL, "server_dies");
}

/* Backup workers: a clock ends without the slow one, whose push counts in the next. */
static int backup(int rank, int n, procs_shared *s, void *arg)
{
    (void)arg;
    dcomm_comm *comm = join(rank, n, s);
    static ps_case t;
    t = (ps_case){.opts = {.lr = 0.5, .servers = 1, .quorum = n - 1}};
    ps_begin(&t, comm);
    if (rank < n - 1) {
        ps_push(&t, 0);
        RANKS_OK(dcomm_ps_clock(t.ps));
        ps_expect_sgd(&t, 0, (1u << (n - 1)) - 1);
        ps_compare(&t, 1e-6, "without the slow one");
        procs_post(s, rank, 1);
        dcomm_ps_stats stats = {0};
        while (rank == 0 && stats.late < PS_PARAMS) { /* nothing ends without this one */
            procs_nap();
            RANKS_OK(dcomm_ps_get_stats(t.ps, &stats));
        }
        ps_push(&t, 1);
        RANKS_OK(dcomm_ps_clock(t.ps));
    } else {
        while (!procs_all(s, n, 1, rank)) {
            procs_nap();
        }
        for (size_t i = 0; i < PS_PARAMS; i++) {
            float zero[PS_MOST] = {0};
            RANKS_OK(dcomm_ps_push(t.ps, i, 0, ps_rows[i], zero, NULL));
        }
        RANKS_OK(dcomm_ps_clock(t.ps));
    }
    float w[PS_MOST];
    RANKS_OK(dcomm_ps_pull(t.ps, 0, 0, ps_rows[0], w, NULL));
    for (size_t k = 0; rank < n - 1 && k < ps_rows[0] * ps_cols[0]; k++) {
        float sum = 0;
        for (int r = 0; r < n - 1; r++) {
            sum += ps_gradient(r, 1, 0, k / ps_cols[0], k % ps_cols[0]);
        }
        const float must = t.value[0][k] - 0.5f * (sum / (float)n);
        PROCS_CHECK(fabs((double)(w[k] - must)) < 1e-5, "element %zu is %g, not %g", k,
                    (double)w[k], (double)must);
    }
    dcomm_ps_stats stats;
    RANKS_OK(dcomm_ps_get_stats(t.ps, &stats));
    PROCS_TRUE(rank != 0 || (stats.late == PS_PARAMS && stats.updates == 2));
    RANKS_OK(dcomm_ps_destroy(&t.ps));
    return ranks_leave(&comm);
}

Test(ps_faults, backup, .timeout = 60)
{
    on(3, RANKS_LOCAL, 25, backup);
}

/* Long messages, several under way, with and without a network. */
static int long_ones(int rank, int n, procs_shared *s, void *arg)
{
    (void)arg;
    enum { ROWS = 1000, COLS = 1031, CALLS = 100 };
    dcomm_comm *comm = join(rank, n, s);
    const dcomm_ps_param param = {.rows = ROWS, .cols = COLS, .dtype = DCOMM_F32};
    const dcomm_ps_opts opts = {.staleness = 1, .lr = 1};
    float *g = calloc(ROWS * COLS, sizeof *g), *w = calloc(ROWS * COLS, sizeof *w);
    dcomm_request *requests[CALLS + 1] = {NULL};
    dcomm_ps *ps = NULL;
    PROCS_TRUE(g != NULL && w != NULL);
    for (size_t k = 0; k < ROWS * COLS; k++) {
        g[k] = -(float)(k % 7);
    }
    RANKS_OK(dcomm_ps_create(comm, &param, 1, &opts, &ps));
    RANKS_OK(dcomm_ps_push(ps, 0, 0, ROWS, g, &requests[CALLS]));
    for (size_t c = 0; c < CALLS; c++) { /* more than a server's window */
        RANKS_OK(dcomm_ps_push(ps, 0, c * 10, 10, g + c * 10 * COLS, &requests[c]));
    }
    RANKS_OK(dcomm_wait_all(requests, CALLS + 1));
    RANKS_OK(dcomm_ps_clock(ps));
    RANKS_OK(dcomm_ps_clock(ps));
    RANKS_OK(dcomm_ps_pull(ps, 0, 0, ROWS, w, NULL));
    for (size_t k = 0; k < ROWS * COLS; k++) {
        PROCS_CHECK(fabs((double)w[k] - 2 * (double)(k % 7)) < 1e-4, "element %zu is %g", k,
                    (double)w[k]);
    }
    RANKS_OK(dcomm_ps_destroy(&ps));
    free(g);
    free(w);
    return ranks_leave(&comm);
}

Test(ps_faults, long_ones, .timeout = 60)
{
    on(2, RANKS_LOCAL, 25, long_ones);
    on(2, RANKS_HOSTS, 25, long_ones);
    on(3, RANKS_PAIRS, 25, long_ones);
}
