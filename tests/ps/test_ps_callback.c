/* test_ps_callback.c - updates by a function of the caller's: it does what a built-in one does,
 * sees the rows that it changes, and cannot call dcomm. */
#define _GNU_SOURCE
#include "ps_case.h"

typedef struct seen {
    double momentum, lr;
    dcomm_comm *comm;
    dcomm_ps *ps;
    size_t rows, calls;
    bool wrong; /* a call had what cannot be */
    int refused;
    char why[200];
} seen;

/* Do as DCOMM_PS_MOMENTUM, with the second of two numbers for each value; the first counts. */
static void momentum(float *w, const float *g, size_t n, const dcomm_ps_update_info *info,
                     void *user)
{
    seen *s = user;
    float *count = info->state[0], *v = info->state[1];
    s->wrong = s->wrong || info->i >= PS_PARAMS || info->cols != ps_cols[info->i] ||
               n != info->nrows * info->cols || info->first + info->nrows > ps_rows[info->i] ||
               info->state[2] != NULL || info->scale != 1;
    for (size_t k = 0; k < n; k++) {
        s->wrong = s->wrong || count[k] != (float)(s->calls / PS_PARAMS);
        count[k]++;
        v[k] = (float)s->momentum * v[k] + g[k];
        w[k] -= (float)s->lr * v[k];
    }
    s->rows += info->nrows;
    s->calls++;
}

static int like_momentum(int rank, int n, procs_shared *s, void *arg)
{
    (void)arg;
    enum { CLOCKS = 4 };
    dcomm_comm *comm = join(rank, n, s);
    seen what = {.momentum = 0.5, .lr = 0.5};
    static ps_case t;
    t = (ps_case){.opts = {.momentum = 0.5,
                           .lr = 0.5,
                           .update = DCOMM_PS_CALLBACK,
                           .update_fn = momentum,
                           .update_user = &what,
                           .update_states = 2}};
    ps_begin(&t, comm);
    for (int clock = 0; clock < CLOCKS; clock++) {
        ps_push(&t, clock);
        RANKS_OK(dcomm_ps_clock(t.ps));
        ps_expect_momentum(&t, clock);
        ps_compare(&t, 1e-6, "by a callback");
    }
    RANKS_OK(dcomm_ps_destroy(&t.ps));
    size_t rows = 0; /* of this server */
    for (size_t i = 0; i < PS_PARAMS; i++) {
        rows += ps_rows[i] / (size_t)n + ((size_t)rank < ps_rows[i] % (size_t)n);
    }
    PROCS_CHECK(!what.wrong && what.rows == CLOCKS * rows && what.calls >= CLOCKS,
                "rank %d: wrong %d, %zu rows in %zu calls", rank, (int)what.wrong, what.rows,
                what.calls);
    return ranks_leave(&comm);
}

Test(ps_callback, like_momentum, .timeout = 60)
{
    on(1, RANKS_LOCAL, 25, like_momentum);
    on(3, RANKS_LOCAL, 25, like_momentum);
}

/* Take the share of a push from w, of a row's second push twice as much, and so on. */
static void share(float *w, const float *g, size_t n, const dcomm_ps_update_info *info, void *user)
{
    (void)user;
    for (size_t k = 0; k < n; k++) {
        w[k] -= ++info->state[0][k] * info->scale * g[k] * (float)(info->first + k / info->cols);
    }
}

/* Asynchronously each push is an update. Listed rows come with their numbers and their state, and a
 * push with its share. */
static int listed(int rank, int n, procs_shared *s, void *arg)
{
    (void)arg;
    enum { ROWS = 40, COLS = 2 };
    static const uint64_t rows[] = {39, 3, 4, 17};
    static const float grad[4][COLS] = {{1, 2}, {3, 4}, {5, 6}, {7, 8}};
    dcomm_comm *comm = join(rank, n, s);
    const dcomm_ps_param param = {.rows = ROWS, .cols = COLS, .dtype = DCOMM_F32};
    const dcomm_ps_opts opts = {.staleness = DCOMM_PS_ASYNC,
                                .update = DCOMM_PS_CALLBACK,
                                .update_fn = share,
                                .update_states = 1};
    float got[4][COLS];
    dcomm_ps *ps = NULL;
    RANKS_OK(dcomm_ps_create(comm, &param, 1, &opts, &ps));
    RANKS_OK(rank == 0 ? dcomm_ps_push_rows(ps, 0, rows, 4, grad, NULL) : DCOMM_OK);
    RANKS_OK(rank == 0 ? dcomm_ps_push_rows(ps, 0, rows, 2, grad, NULL) : DCOMM_OK);
    RANKS_OK(rank == 0 ? dcomm_ps_pull_rows(ps, 0, rows, 4, got, NULL) : DCOMM_OK);
    for (size_t k = 0; k < 4 * COLS && rank == 0; k++) {
        const float times = k / COLS < 2 ? 1 + 2 : 1;
        const float must = 0 - times * grad[k / COLS][k % COLS] * (float)rows[k / COLS] / (float)n;
        PROCS_CHECK(got[k / COLS][k % COLS] == must, "row %d: %g, not %g", (int)rows[k / COLS],
                    (double)got[k / COLS][k % COLS], (double)must);
    }
    RANKS_OK(dcomm_ps_destroy(&ps));
    return ranks_leave(&comm);
}

Test(ps_callback, listed, .timeout = 60)
{
    on(2, RANKS_LOCAL, 25, listed);
}

static void note(seen *s, dcomm_status status)
{
    s->refused +=
        status == DCOMM_ERR_INVALID && strstr(dcomm_last_error(), "must not call dcomm") != NULL;
    snprintf(s->why, sizeof s->why, "%.199s", dcomm_last_error());
}

static void calls_dcomm(float *w, const float *g, size_t n, const dcomm_ps_update_info *info,
                        void *user)
{
    seen *s = user;
    dcomm_ps *ps = s->ps;
    (void)info;
    note(s, dcomm_barrier(s->comm, NULL));
    note(s, dcomm_ps_pull(ps, 0, 0, 1, w, NULL));
    note(s, dcomm_ps_push(ps, 0, 0, 1, g, NULL));
    note(s, dcomm_ps_clock(ps));
    note(s, dcomm_ps_destroy(&ps));
    w[0] -= g[n - 1];
}

static void sum(const void *in, void *inout, size_t count, dcomm_dtype dtype, void *user)
{
    seen *s = user;
    (void)dtype;
    note(s, dcomm_barrier(s->comm, NULL));
    for (size_t k = 0; k < count; k++) {
        ((float *)inout)[k] += ((const float *)in)[k];
    }
}

/* Calls from within an update and from within an operator are refused, and all goes on. */
static int no_calls(int rank, int n, procs_shared *s, void *arg)
{
    (void)arg;
    dcomm_comm *comm = join(rank, n, s);
    seen what = {.comm = comm};
    const dcomm_ps_param param = {.rows = 1, .cols = 1, .dtype = DCOMM_F32};
    const dcomm_ps_opts opts = {
        .servers = 1, .update = DCOMM_PS_CALLBACK, .update_fn = calls_dcomm, .update_user = &what};
    float one = 1, w = 7;
    RANKS_OK(dcomm_ps_create(comm, &param, 1, &opts, &what.ps));
    RANKS_OK(dcomm_ps_push(what.ps, 0, 0, 1, &one, NULL));
    RANKS_OK(dcomm_ps_clock(what.ps));
    RANKS_OK(dcomm_ps_pull(what.ps, 0, 0, 1, &w, NULL));
    PROCS_CHECK(w == -1, "%g", (double)w);
    RANKS_OK(dcomm_ps_destroy(&what.ps));
    PROCS_CHECK(what.refused == (rank == 0 ? 5 : 0), "%d of 5: %s", what.refused, what.why);
    dcomm_op op;
    RANKS_OK(dcomm_op_create(sum, &what, &op));
    what.refused = 0;
    RANKS_OK(dcomm_allreduce(comm, &one, &w, 1, DCOMM_F32, op, NULL));
    PROCS_TRUE(w == (float)n);
    int all = what.refused;
    RANKS_OK(dcomm_allreduce(comm, DCOMM_IN_PLACE, &all, 1, DCOMM_I32, DCOMM_SUM, NULL));
    PROCS_CHECK(all > 0, "no rank's operator was refused a call");
    RANKS_OK(dcomm_op_destroy(op));
    return ranks_leave(&comm);
}

Test(ps_callback, no_calls, .timeout = 60)
{
    on(2, RANKS_LOCAL, 25, no_calls);
}

/* Options that do not fit are refused. */
static int refused(int rank, int n, procs_shared *s, void *arg)
{
    (void)arg;
    dcomm_comm *comm = join(rank, n, s);
    const dcomm_ps_param param = {.rows = 4, .cols = 1, .dtype = DCOMM_F32};
    static const struct {
        dcomm_ps_opts opts;
        const char *words;
    } cases[] = {{{.update = DCOMM_PS_CALLBACK}, "opts.update_fn is out"},
                 {{.lr = 1, .update_fn = share}, "opts.update_fn is out"},
                 {{.lr = 1, .update_states = 1}, "opts.update_states is out"},
                 {{.update = DCOMM_PS_CALLBACK, .update_fn = share, .update_states = 5},
                  "opts.update_states is out"}};
    for (int c = 0; c < (int)(sizeof cases / sizeof *cases); c++) {
        dcomm_ps *ps = NULL;
        ranks_refused(dcomm_ps_create(comm, &param, 1, &cases[c].opts, &ps), DCOMM_ERR_INVALID,
                      cases[c].words);
    }
    return ranks_leave(&comm);
}

Test(ps_callback, refused, .timeout = 60)
{
    on(1, RANKS_LOCAL, 25, refused);
}
