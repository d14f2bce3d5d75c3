/* test_ps_types.c - parameters of 16 bits: what a worker pulls is rounded, what the server keeps is
 * not. */
#define _GNU_SOURCE
#include "ps_case.h"

#include <stdlib.h>

enum { ROWS = 20000, COLS = 3, N = ROWS * COLS, LISTED = 3 };

static const uint64_t listed[LISTED] = {ROWS - 1, 0, ROWS / 2};

/* Return the bits of a number that the type has, 0 or normal. */
static uint16_t narrow(float x, dcomm_dtype dtype)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    const uint32_t sign = bits >> 16 & 0x8000, rest = bits & 0x7fffffff;
    const uint32_t small = rest == 0 ? 0 : rest - (112u << 23);
    return (uint16_t)(dtype == DCOMM_BF16 ? bits >> 16 : sign | small >> 13);
}

static float widen(uint16_t bits, dcomm_dtype dtype)
{
    const uint32_t rest = bits & 0x7fff;
    const uint32_t wide = dtype == DCOMM_BF16 ? (uint32_t)bits << 16
                          : rest == 0         ? 0
                                      : (bits & 0x8000u) << 16 | ((rest << 13) + (112u << 23));
    float x;
    memcpy(&x, &wide, sizeof x);
    return x;
}

/* Pull all rows and some by a list. Each value must be the nearest to what the server keeps, which
 * lies between 1 and 2. */
static void nearest(dcomm_ps *ps, dcomm_dtype dtype, const float *w)
{
    static uint16_t got[N];
    const double half = dtype == DCOMM_BF16 ? 1.0 / 256 : 1.0 / 2048;
    for (int lists = 0; lists < 2; lists++) {
        RANKS_OK(lists ? dcomm_ps_pull_rows(ps, 0, listed, LISTED, got, NULL)
                       : dcomm_ps_pull(ps, 0, 0, ROWS, got, NULL));
        for (size_t k = 0; k < (lists ? (size_t)LISTED * COLS : (size_t)N); k++) {
            const size_t at = lists ? (size_t)listed[k / COLS] * COLS + k % COLS : k;
            PROCS_CHECK(fabs((double)(widen(got[k], dtype) - w[at])) <= half,
                        "dtype %s: element %zu is %.9g, not %.9g", dcomm_dtype_name(dtype), at,
                        (double)widen(got[k], dtype), (double)w[at]);
        }
    }
}

/* Steps count that are too small for 16 bits near 1: the server keeps f32. All numbers here are
 * exact in f32, and with codec f16 pushes are exact, too. */
static int small_steps(int rank, int n, procs_shared *s, void *arg)
{
    (void)arg;
    enum { CLOCKS = 5 };
    static const float step = 1.0f / 4096;
    static uint16_t init[N], grad[N];
    static float w[N];
    dcomm_comm *comm = join(rank, n, s);
    for (int c = 0; c < 4; c++) {
        const dcomm_dtype dtype = c % 2 == 0 ? DCOMM_F16 : DCOMM_BF16;
        const dcomm_ps_param param = {.rows = ROWS, .cols = COLS, .dtype = dtype, .init = init};
        const dcomm_ps_opts opts = {.servers = n - 1, .lr = 1, .codec = c < 2 ? NULL : "f16"};
        dcomm_ps *ps = NULL;
        dcomm_ps_stats stats;
        for (size_t k = 0; k < N; k++) {
            w[k] = 1 + (float)(k % 100) / 128;
            init[k] = narrow(w[k], dtype);
            grad[k] = narrow(k % 3 == 0 ? step : -step, dtype);
        }
        RANKS_OK(dcomm_ps_create(comm, &param, 1, &opts, &ps));
        nearest(ps, dtype, w);
        for (int clock = 0; clock < CLOCKS; clock++) {
            RANKS_OK(clock % 2 == 0 ? dcomm_ps_push(ps, 0, 0, ROWS, grad, NULL)
                                    : dcomm_ps_push_rows(ps, 0, listed, LISTED, grad, NULL));
            RANKS_OK(dcomm_ps_clock(ps));
            for (size_t k = 0; k < (clock % 2 == 0 ? (size_t)N : (size_t)LISTED * COLS); k++) {
                w[clock % 2 == 0 ? k : (size_t)listed[k / COLS] * COLS + k % COLS] -=
                    widen(grad[k], dtype);
            }
            nearest(ps, dtype, w);
        }
        RANKS_OK(dcomm_ps_get_stats(ps, &stats));
        if (n == 2 && rank == 1) {
            const uint64_t row = 2 * COLS, pulls = CLOCKS + 1;
            const uint64_t pushed = (CLOCKS + 1) / 2 * ROWS, lists = CLOCKS / 2 * LISTED;
            const uint64_t numbers = 8 * (lists + pulls * LISTED);
            PROCS_TRUE(stats.bytes_pulled == row * pulls * (ROWS + LISTED) &&
                       stats.bytes_pushed == row * (pushed + lists) + numbers);
        }
        RANKS_OK(dcomm_ps_destroy(&ps));
    }
    return ranks_leave(&comm);
}

Test(ps_types, small_steps, .timeout = 60)
{
    on(2, RANKS_LOCAL, 25, small_steps);
    on(3, RANKS_HOSTS, 25, small_steps);
}

/* A NaN of 16 bits is refused, and ranks must have one type. */
static int refused(int rank, int n, procs_shared *s, void *arg)
{
    (void)arg;
    static const uint16_t nan[] = {0, 0, 0, 0x7c01}, inf[] = {0, 0xff80};
    dcomm_comm *comm = join(rank, n, s);
    const dcomm_ps_param params[] = {{.name = "h", .rows = 4, .cols = 2, .dtype = DCOMM_F16},
                                     {.name = "b", .rows = 4, .cols = 2, .dtype = DCOMM_BF16}};
    const dcomm_ps_opts opts = {.lr = 1};
    dcomm_ps *ps = NULL;
    RANKS_OK(dcomm_ps_create(comm, params, 2, &opts, &ps));
    ranks_refused(dcomm_ps_push(ps, 0, 0, 2, nan, NULL), DCOMM_ERR_INVALID,
                  "element 1 of row 1 of the gradient of \"h\" is nan");
    ranks_refused(dcomm_ps_push(ps, 1, 0, 1, inf, NULL), DCOMM_ERR_INVALID,
                  "element 1 of row 0 of the gradient of \"b\" is -inf");
    RANKS_OK(dcomm_ps_push(ps, 1, 0, 2, nan, NULL)); /* a number there */
    RANKS_OK(dcomm_ps_destroy(&ps));
    dcomm_ps_param one = params[0];
    one.dtype = rank > 0 ? DCOMM_BF16 : DCOMM_F16;
    ranks_refused(dcomm_ps_create(comm, &one, 1, &opts, &ps), DCOMM_ERR_MISMATCH,
                  "params is not the same");
    one.dtype = DCOMM_I32;
    ranks_refused(dcomm_ps_create(comm, &one, 1, &opts, &ps), DCOMM_ERR_UNSUPPORTED,
                  "dtype i32; it can be f32, f16 or bf16");
    return ranks_leave(&comm);
}

Test(ps_types, refused, .timeout = 60)
{
    on(2, RANKS_LOCAL, 25, refused);
}
