/* test_ps.c - what a parameter server's workers see: averages of clocks, staleness, lists of rows,
 * updates, weights of late pushes. */
#define _GNU_SOURCE
#include "ps_case.h"

static const double rounding = 1e-6;

/* All workers see the average of each clock, with any number of servers. */
static int average(int rank, int n, procs_shared *s, void *arg)
{
    (void)arg;
    dcomm_comm *comm = join(rank, n, s);
    for (int servers = 1; servers <= n; servers++) {
        static ps_case t;
        t = (ps_case){.opts = {.servers = servers, .lr = 0.5}};
        ps_begin(&t, comm);
        for (int clock = 0; clock < 4; clock++) {
            ps_compare(&t, rounding, "average");
            ps_push(&t, clock);
            RANKS_OK(dcomm_ps_clock(t.ps));
            ps_expect_sgd(&t, clock, (1u << n) - 1);
        }
        ps_compare(&t, rounding, "average");
        RANKS_OK(dcomm_ps_destroy(&t.ps));
        PROCS_TRUE(t.ps == NULL);
    }
    return ranks_leave(&comm);
}

Test(ps, average, .timeout = 60)
{
    on(1, RANKS_LOCAL, 25, average);
    on(2, RANKS_LOCAL, 25, average);
    on(3, RANKS_HOSTS, 25, average);
    on(4, RANKS_PAIRS, 25, average);
}

/* Workers that do not pull run ahead. What they push counts in the clock in which they pushed it,
 * as momentum shows, and a pull sees the clocks before its worker's, no more. */
static int ahead(int rank, int n, procs_shared *s, void *arg)
{
    (void)arg;
    enum { CLOCKS = 5 };
    dcomm_comm *comm = join(rank, n, s);
    static ps_case t;
    t = (ps_case){.opts = {.lr = 0.5, .update = DCOMM_PS_MOMENTUM, .momentum = 0.5}};
    ps_begin(&t, comm);
    for (int clock = 0; clock < CLOCKS; clock++) {
        for (int i = 0; rank == n - 1 && i < 3; i++) {
            procs_nap();
        }
        ps_push(&t, clock);
        RANKS_OK(dcomm_ps_clock(t.ps));
        ps_expect_momentum(&t, clock);
        if (rank == n - 1) {
            ps_compare(&t, 1e-5, "the last one");
        }
    }
    ps_compare(&t, 1e-5, "all clocks");
    RANKS_OK(dcomm_ps_destroy(&t.ps));
    return ranks_leave(&comm);
}

Test(ps, ahead, .timeout = 60)
{
    on(3, RANKS_LOCAL, 25, ahead);
    on(3, RANKS_HOSTS, 25, ahead);
}

/* Lists of rows, in any order: each worker pushes to rows of its own choice, some by lists, some by
 * ranges, several times in a clock. */
static int lists(int rank, int n, procs_shared *s, void *arg)
{
    (void)arg;
    enum { ROWS = 40, COLS = 6 };
    dcomm_comm *comm = join(rank, n, s);
    static ps_case t;
    t = (ps_case){.opts = {.lr = 1}};
    ps_begin(&t, comm);
    for (int clock = 0; clock < 5; clock++) {
        float sum[ROWS][COLS] = {{0}};
        bool touched[ROWS] = {false};
        for (int r = 0; r < n; r++) {
            for (int part = 0; part < 3; part++) {
                uint64_t rows[ROWS], state = (uint64_t)(clock * 100 + r * 10 + part);
                float grad[ROWS][COLS];
                size_t count = 0;
                const bool range = part == 2;
                const size_t first = (size_t)(ranks_random(&state) % 20);
                for (size_t j = 0; j < ROWS; j++) { /* 11 has no factor in common with 40 */
                    const size_t row = range ? j : (j * 11 + 3) % ROWS;
                    if (range ? row >= first && row < first + 9 : ranks_random(&state) % 3 == 0) {
                        rows[count] = row;
                        for (size_t c = 0; c < COLS; c++) {
                            grad[count][c] = ps_gradient(r, clock * 3 + part, 0, row, c);
                            sum[row][c] += grad[count][c];
                        }
                        touched[row] = true;
                        count++;
                    }
                }
                if (r == rank && range) {
                    RANKS_OK(dcomm_ps_push(t.ps, 0, first, count, grad, NULL));
                } else if (r == rank) {
                    RANKS_OK(dcomm_ps_push_rows(t.ps, 0, rows, count, grad, NULL));
                }
            }
        }
        RANKS_OK(dcomm_ps_clock(t.ps));
        for (size_t row = 0; row < ROWS; row++) {
            for (size_t c = 0; c < COLS && touched[row]; c++) {
                t.value[0][row * COLS + c] -= sum[row][c] / (float)n;
            }
        }
        uint64_t wanted[] = {39, 0, 17, 3, 20};
        float got[5][COLS];
        RANKS_OK(dcomm_ps_pull_rows(t.ps, 0, wanted, 5, got, NULL));
        for (size_t j = 0; j < 5; j++) {
            for (size_t c = 0; c < COLS; c++) {
                const float must = t.value[0][wanted[j] * COLS + c];
                PROCS_CHECK(fabs((double)(got[j][c] - must)) <= rounding * 20,
                            "row %d, element %zu is %g, not %g", (int)wanted[j], c,
                            (double)got[j][c], (double)must);
            }
        }
    }
    RANKS_OK(dcomm_ps_destroy(&t.ps));
    return ranks_leave(&comm);
}

Test(ps, lists, .timeout = 60)
{
    on(1, RANKS_LOCAL, 25, lists);
    on(3, RANKS_LOCAL, 25, lists);
    on(4, RANKS_PAIRS, 25, lists);
}

/* With all ranks as servers, a clock's average has the bits of a deterministic two_shot. */
static int bits(int rank, int n, procs_shared *s, void *arg)
{
    (void)arg;
    enum { N = 3001 };
    static float grad[N], average_of[N], pulled[N];
    dcomm_comm *comm = join(rank, n, s);
    const dcomm_ps_param param = {.rows = N, .cols = 1, .dtype = DCOMM_F32};
    const dcomm_ps_opts opts = {.lr = 1};
    const dcomm_coll_opts coll = {.algo = "two_shot", .deterministic = true};
    dcomm_ps *ps = NULL;
    uint64_t state = 77 + (uint64_t)rank;
    for (size_t i = 0; i < N; i++) {
        grad[i] = (float)((double)(int64_t)ranks_random(&state) / 9e18);
    }
    RANKS_OK(dcomm_ps_create(comm, &param, 1, &opts, &ps));
    RANKS_OK(dcomm_ps_push(ps, 0, 0, N, grad, NULL));
    RANKS_OK(dcomm_ps_clock(ps));
    RANKS_OK(dcomm_ps_pull(ps, 0, 0, N, pulled, NULL));
    RANKS_OK(dcomm_allreduce(comm, grad, average_of, N, DCOMM_F32, DCOMM_AVG, &coll));
    for (size_t i = 0; i < N; i++) {
        average_of[i] = 0 - average_of[i];
    }
    PROCS_TRUE(memcmp(pulled, average_of, sizeof pulled) == 0);
    RANKS_OK(dcomm_ps_destroy(&ps));
    return ranks_leave(&comm);
}

Test(ps, bits_of_two_shot, .timeout = 60)
{
    on(2, RANKS_LOCAL, 25, bits);
    on(3, RANKS_LOCAL, 25, bits);
    on(5, RANKS_LOCAL, 25, bits);
}

/* With staleness 2, a worker may be two clocks ahead, and sees its own pushes. */
static int stale(int rank, int n, procs_shared *s, void *arg)
{
    (void)arg;
    enum { S = 2 };
    dcomm_comm *comm = join(rank, n, s);
    const dcomm_ps_param param = {.name = "w", .rows = 4, .cols = 1, .dtype = DCOMM_F32};
    const dcomm_ps_opts opts = {.staleness = S, .lr = 1, .timeout_s = rank == 0 ? 0.8 : 30};
    const float one[4] = {-1, -1, -1, -1};
    float w[4];
    dcomm_ps *ps = NULL;
    RANKS_OK(dcomm_ps_create(comm, &param, 1, &opts, &ps));
    for (int clock = 0; rank == 0 && clock <= S; clock++) {
        RANKS_OK(dcomm_ps_pull(ps, 0, 0, 4, w, NULL));
        PROCS_CHECK(fabs((double)w[0] - clock / (double)n) < 1e-6, "clock %d: %g", clock,
                    (double)w[0]);
        RANKS_OK(dcomm_ps_push(ps, 0, 0, 4, one, NULL));
        RANKS_OK(dcomm_ps_clock(ps));
    }
    if (rank == 0) {
        ranks_refused(dcomm_ps_pull(ps, 0, 0, 4, w, NULL), DCOMM_ERR_TIMEOUT, "waits for worker");
        PROCS_TRUE(strstr(dcomm_last_error(), "has ended 0 clocks; this one has ended 3") != NULL);
        procs_post(s, 0, 1);
        while (!procs_all(s, n, 1, -1)) {
            procs_nap();
        }
        RANKS_OK(dcomm_ps_pull(ps, 0, 0, 4, w, NULL));
        PROCS_CHECK(fabs((double)w[0] - (S + n) / (double)n) < 1e-6, "%g", (double)w[0]);
    } else {
        while (!procs_all(s, 1, 1, -1)) {
            procs_nap();
        }
        RANKS_OK(dcomm_ps_push(ps, 0, 0, 4, one, NULL));
        RANKS_OK(dcomm_ps_clock(ps));
        procs_post(s, rank, 1);
    }
    RANKS_OK(dcomm_ps_destroy(&ps));
    return ranks_leave(&comm);
}

Test(ps, stale, .timeout = 60)
{
    on(2, RANKS_LOCAL, 25, stale);
    on(3, RANKS_PAIRS, 25, stale);
}

/* Do to one value what an update does that one of `n` workers pushes. *state: its numbers, and the
 * updates so far. */
static double update(double w, double g, double state[3], const dcomm_ps_opts *o, int n)
{
    switch (o->update) {
    case DCOMM_PS_MOMENTUM:
        state[0] = o->momentum * state[0] + g;
        return w - o->lr * state[0];
    case DCOMM_PS_ADAGRAD:
        state[0] += g * g;
        return w - o->lr * g / (sqrt(state[0]) + 1e-8);
    case DCOMM_PS_ADAM:
        state[2]++;
        state[0] = 0.9 * state[0] + 0.1 * g;
        state[1] = 0.999 * state[1] + 0.001 * g * g;
        return w - o->lr * (state[0] / (1 - pow(0.9, state[2]))) /
                       (sqrt(state[1] / (1 - pow(0.999, state[2]))) + 1e-8);
    case DCOMM_PS_ELASTIC:
        return w + o->rho / n * (g - w);
    default:
        return w - o->lr * g;
    }
}

/* Every update is the one of its book, on rows that are pushed more and less often. */
static int updates(int rank, int n, procs_shared *s, void *arg)
{
    (void)arg;
    enum { ROWS = 6, COLS = 5 };
    dcomm_comm *comm = join(rank, n, s);
    for (int kind = 0; kind <= (int)DCOMM_PS_ELASTIC; kind++) {
        const dcomm_ps_opts opts = {.update = (dcomm_ps_update)kind,
                                    .staleness = kind == (int)DCOMM_PS_ELASTIC ? DCOMM_PS_ASYNC : 0,
                                    .lr = 0.1,
                                    .momentum = 0.9,
                                    .rho = 0.25};
        const dcomm_ps_param param = {.rows = ROWS, .cols = COLS, .dtype = DCOMM_F32};
        double w[ROWS][COLS] = {{0}}, state[ROWS][COLS][3] = {{{0}}};
        dcomm_ps *ps = NULL;
        RANKS_OK(dcomm_ps_create(comm, &param, 1, &opts, &ps));
        for (int clock = 0; clock < 8; clock++) {
            float got[ROWS][COLS], grad[ROWS][COLS];
            uint64_t rows[ROWS];
            size_t count = 0;
            for (size_t row = 0; row < ROWS; row++) {
                if ((size_t)clock % (row + 1) == 0) {
                    rows[count++] = row;
                }
            }
            for (size_t j = 0; j < count; j++) {
                for (size_t c = 0; c < COLS; c++) {
                    grad[j][c] = ps_gradient(0, clock, 0, rows[j], c);
                    w[rows[j]][c] =
                        update(w[rows[j]][c], (double)grad[j][c], state[rows[j]][c], &opts, n);
                }
            }
            /* Elastic copies count one by one: a single worker pushes. */
            if (rank == 0 || kind != (int)DCOMM_PS_ELASTIC) {
                RANKS_OK(dcomm_ps_push_rows(ps, 0, rows, count, grad, NULL));
            }
            RANKS_OK(dcomm_ps_clock(ps));
            if (rank == 0) {
                RANKS_OK(dcomm_ps_pull(ps, 0, 0, ROWS, got, NULL));
            }
            for (size_t k = 0; rank == 0 && k < ROWS * COLS; k++) {
                PROCS_CHECK(fabs((double)got[k / COLS][k % COLS] - w[k / COLS][k % COLS]) < 2e-5,
                            "update %d, clock %d: %g, not %g", kind, clock,
                            (double)got[k / COLS][k % COLS], w[k / COLS][k % COLS]);
            }
        }
        RANKS_OK(dcomm_ps_destroy(&ps));
    }
    return ranks_leave(&comm);
}

Test(ps, updates, .timeout = 60)
{
    on(1, RANKS_LOCAL, 25, updates);
    on(2, RANKS_LOCAL, 25, updates);
}

/* A push counts less the more others have updated since the pull that it rests on. Ranks take
 * turns. */
static int weights(int rank, int n, procs_shared *s, void *arg)
{
    (void)arg;
    dcomm_comm *comm = join(rank, n, s);
    static const struct {
        dcomm_ps_weight weight;
        double ref, drop, wanted; /* of a push with a delay of 4 updates, by two workers */
    } cases[] = {{DCOMM_PS_WEIGHT_ONE, 0, 0, 1},
                 {DCOMM_PS_WEIGHT_INVERSE, 0, 0, 1 / 3.0},
                 {DCOMM_PS_WEIGHT_HALVED, 4, 0, 0.70710678118654752},
                 {DCOMM_PS_WEIGHT_HALVED, 0.8, 0, 0.17677669529663688},
                 {DCOMM_PS_WEIGHT_ONE, 0, 1.9, 0},
                 {DCOMM_PS_WEIGHT_ONE, 0, 2, 1}};
    const int ncases = (int)(sizeof cases / sizeof *cases);
    for (int c = 0; c < ncases; c++) {
        const dcomm_ps_param param = {.rows = 1, .cols = 1, .dtype = DCOMM_F32};
        const dcomm_ps_opts opts = {.servers = 1,
                                    .staleness = DCOMM_PS_ASYNC,
                                    .lr = 1,
                                    .weight = cases[c].weight,
                                    .weight_ref = cases[c].ref,
                                    .drop_tau = cases[c].drop};
        const float zero = 0, one = -1;
        float w = -1;
        dcomm_ps *ps = NULL;
        dcomm_ps_stats stats;
        RANKS_OK(dcomm_ps_create(comm, &param, 1, &opts, &ps));
        RANKS_OK(rank == 1 ? dcomm_ps_pull(ps, 0, 0, 1, &w, NULL) : DCOMM_OK);
        RANKS_OK(dcomm_barrier(comm, NULL));
        for (int i = 0; rank == 0 && i < 4; i++) {
            RANKS_OK(dcomm_ps_push(ps, 0, 0, 1, &zero, NULL));
        }
        RANKS_OK(rank == 0 ? dcomm_ps_pull(ps, 0, 0, 1, &w, NULL) : DCOMM_OK);
        RANKS_OK(dcomm_barrier(comm, NULL));
        if (rank == 1) {
            RANKS_OK(dcomm_ps_push(ps, 0, 0, 1, &one, NULL));
            RANKS_OK(dcomm_ps_pull(ps, 0, 0, 1, &w, NULL));
            PROCS_CHECK(fabs((double)w - cases[c].wanted / 2) < 1e-6, "case %d: %g", c, (double)w);
            RANKS_OK(dcomm_ps_push(ps, 0, 0, 1, &zero, NULL)); /* it has seen all */
            RANKS_OK(dcomm_ps_pull(ps, 0, 0, 1, &w, NULL));
        }
        RANKS_OK(dcomm_barrier(comm, NULL));
        RANKS_OK(dcomm_ps_get_stats(ps, &stats));
        PROCS_TRUE(rank != 0 || (stats.tau[0] == 5 && stats.tau[2] == 1 && stats.tau_p99 == 2 &&
                                 stats.dropped == (cases[c].wanted == 0) &&
                                 stats.updates == 6 - stats.dropped && stats.workers == 2));
        RANKS_OK(dcomm_barrier(comm, NULL)); /* nobody leaves before */
        RANKS_OK(dcomm_ps_destroy(&ps));
    }
    return ranks_leave(&comm);
}

Test(ps, weights, .timeout = 60)
{
    on(2, RANKS_LOCAL, 25, weights);
}

/* Values may be pulled in 16 bits: they are the f32 ones, rounded to nearest, in half of the bytes.
 * The server keeps f32, in which steps count that are too small for 16 bits. */
static int cast(int rank, int n, procs_shared *s, void *arg)
{
    (void)arg;
    enum { ROWS = 20000, COLS = 3, N = ROWS * COLS, CLOCKS = 16, LISTED = 3 };
    static const struct {
        dcomm_dtype dtype;
        unsigned dropped; /* bits of an f32 that the type does not have, between 1 and 2 */
    } types[] = {{DCOMM_F16, 13}, {DCOMM_BF16, 16}, {DCOMM_F32, 0}};
    static float init[N], grad[N], got[N];
    static const uint64_t rows[LISTED] = {ROWS - 1, 0, ROWS / 2};
    dcomm_comm *comm = join(rank, n, s);
    for (int c = 0; c < 3; c++) {
        const dcomm_ps_param param = {.rows = ROWS, .cols = COLS, .dtype = DCOMM_F32, .init = init};
        const dcomm_ps_opts opts = {.servers = 1, .lr = 1, .pull_dtype = types[c].dtype};
        dcomm_ps *ps = NULL;
        dcomm_ps_stats stats;
        for (size_t k = 0; k < N; k++) {
            init[k] = 1 + (float)(k % 1000) / 2048;
            grad[k] = -1.0f / 1024;
        }
        RANKS_OK(dcomm_ps_create(comm, &param, 1, &opts, &ps));
        for (int clock = 0; clock < CLOCKS; clock++) {
            RANKS_OK(dcomm_ps_push(ps, 0, 0, ROWS, grad, NULL));
            RANKS_OK(dcomm_ps_clock(ps));
        }
        for (int listed = 0; listed < 2; listed++) {
            RANKS_OK(listed ? dcomm_ps_pull_rows(ps, 0, rows, LISTED, got, NULL)
                            : dcomm_ps_pull(ps, 0, 0, ROWS, got, NULL));
            for (size_t k = 0; k < (listed ? (size_t)LISTED * COLS : (size_t)N); k++) {
                const size_t at = listed ? (size_t)rows[k / COLS] * COLS + k % COLS : k;
                const double must = (double)init[at] + CLOCKS / 1024.0;
                const double half = types[c].dropped > 0 ? ldexp(1, (int)types[c].dropped - 24) : 0;
                uint32_t bits;
                memcpy(&bits, &got[k], sizeof bits);
                PROCS_CHECK(fabs((double)got[k] - must) <= half &&
                                (bits & ((1u << types[c].dropped) - 1)) == 0,
                            "type %d: element %zu is %.9g, not %.9g", c, at, (double)got[k], must);
            }
        }
        RANKS_OK(dcomm_ps_get_stats(ps, &stats));
        const uint64_t elements = N + LISTED * COLS;
        PROCS_TRUE(stats.bytes_pulled == (rank == 0 ? 0 : elements * (c == 2 ? 4 : 2)));
        RANKS_OK(dcomm_ps_destroy(&ps));
    }
    return ranks_leave(&comm);
}

Test(ps, cast, .timeout = 60)
{
    on(2, RANKS_LOCAL, 25, cast);
    on(2, RANKS_HOSTS, 25, cast);
}

/* Each clock's update has the rate that its servers were given after their pull, not the rates
 * before or after. */
static int rate(int rank, int n, procs_shared *s, void *arg)
{
    (void)arg;
    enum { ROWS = 7, CLOCKS = 6 };
    dcomm_comm *comm = join(rank, n, s);
    const dcomm_ps_param param = {.rows = ROWS, .cols = 1, .dtype = DCOMM_F32};
    float grad[ROWS], got[ROWS], must = 0;
    dcomm_ps *ps = NULL;
    for (int servers = 1; servers <= n; servers++) {
        const dcomm_ps_opts opts = {.lr = 99, .servers = servers};
        RANKS_OK(dcomm_ps_create(comm, &param, 1, &opts, &ps));
        must = 0;
        for (int clock = 0; clock < CLOCKS; clock++) {
            RANKS_OK(dcomm_ps_pull(ps, 0, 0, ROWS, got, NULL));
            for (int i = 0; i < ROWS; i++) {
                PROCS_CHECK(got[i] == must, "clock %d, row %d: %g, not %g", clock, i,
                            (double)got[i], (double)must);
                grad[i] = 1;
            }
            RANKS_OK(dcomm_ps_set_lr(ps, ldexp(1, -clock)));
            RANKS_OK(dcomm_ps_push(ps, 0, 0, ROWS, grad, NULL));
            RANKS_OK(dcomm_ps_clock(ps));
            must -= (float)ldexp(1, -clock);
        }
        PROCS_TRUE(dcomm_ps_set_lr(ps, 0) == DCOMM_ERR_INVALID);
        PROCS_TRUE(dcomm_ps_set_lr(ps, (double)NAN) == DCOMM_ERR_INVALID);
        PROCS_TRUE(dcomm_ps_set_lr(NULL, 1) == DCOMM_ERR_INVALID);
        RANKS_OK(dcomm_ps_destroy(&ps));
    }
    const dcomm_ps_opts elastic = {.update = DCOMM_PS_ELASTIC, .rho = 1, .staleness = 1};
    RANKS_OK(dcomm_ps_create(comm, &param, 1, &elastic, &ps));
    PROCS_TRUE(dcomm_ps_set_lr(ps, 1) == DCOMM_ERR_INVALID);
    RANKS_OK(dcomm_ps_destroy(&ps));
    return ranks_leave(&comm);
}

Test(ps, rate, .timeout = 60)
{
    on(1, RANKS_LOCAL, 25, rate);
    on(3, RANKS_LOCAL, 25, rate);
    on(3, RANKS_HOSTS, 25, rate);
}
