/* ps_case.h - a parameter server whose values every rank knows: gradients follow from rank, clock,
 * row and column, so each rank computes what all workers together have done. */
#ifndef PS_CASE_H
#define PS_CASE_H

#include "placed.h"

#include <math.h>

enum { PS_PARAMS = 2, PS_MOST = 40 * 6 };

static const size_t ps_rows[PS_PARAMS] = {40, 7}, ps_cols[PS_PARAMS] = {6, 1};

typedef struct ps_case {
    dcomm_ps_opts opts;
    int rank, size;
    dcomm_ps *ps;
    float init[PS_PARAMS][PS_MOST], value[PS_PARAMS][PS_MOST]; /* value: what must be there */
    float state[PS_PARAMS][PS_MOST];
} ps_case;

/* Return a gradient, exact in binary with few bits, so that sums do not depend on their order. */
static inline float ps_gradient(int rank, int clock, size_t i, size_t row, size_t col)
{
    uint64_t state = (uint64_t)rank * 977 + (uint64_t)clock * 131 + i * 53 + row * 7 + col;
    return (float)((int64_t)(ranks_random(&state) % 65) - 32) / 8;
}

static inline void ps_begin(ps_case *t, dcomm_comm *comm)
{
    dcomm_ps_param params[PS_PARAMS];
    t->rank = dcomm_comm_rank(comm);
    t->size = dcomm_comm_size(comm);
    for (size_t i = 0; i < PS_PARAMS; i++) {
        for (size_t k = 0; k < ps_rows[i] * ps_cols[i]; k++) {
            t->init[i][k] = t->value[i][k] = (float)(k % 11) / 4;
            t->state[i][k] = 0;
        }
        params[i] = (dcomm_ps_param){.name = i == 0 ? "table" : NULL,
                                     .rows = ps_rows[i],
                                     .cols = ps_cols[i],
                                     .dtype = DCOMM_F32,
                                     .init = t->init[i]};
    }
    RANKS_OK(dcomm_ps_create(comm, params, PS_PARAMS, &t->opts, &t->ps));
}

/* Push this rank's gradient of all rows for a clock. */
static inline void ps_push(const ps_case *t, int clock)
{
    for (size_t i = 0; i < PS_PARAMS; i++) {
        float grad[PS_MOST];
        for (size_t row = 0; row < ps_rows[i]; row++) {
            for (size_t col = 0; col < ps_cols[i]; col++) {
                grad[row * ps_cols[i] + col] = ps_gradient(t->rank, clock, i, row, col);
            }
        }
        RANKS_OK(dcomm_ps_push(t->ps, i, 0, ps_rows[i], grad, NULL));
    }
}

/* Return the average of some ranks' gradients of a clock. */
static inline float ps_average(const ps_case *t, int clock, unsigned ranks, size_t i, size_t k)
{
    float sum = 0;
    int n = 0;
    for (int r = 0; r < t->size; r++) {
        if (ranks >> r & 1) {
            sum += ps_gradient(r, clock, i, k / ps_cols[i], k % ps_cols[i]);
            n++;
        }
    }
    return sum / (float)n;
}

/* Do to the expected values what the average of some ranks' gradients does. */
static inline void ps_expect_sgd(ps_case *t, int clock, unsigned ranks)
{
    for (size_t i = 0; i < PS_PARAMS; i++) {
        for (size_t k = 0; k < ps_rows[i] * ps_cols[i]; k++) {
            t->value[i][k] -= (float)t->opts.lr * ps_average(t, clock, ranks, i, k);
        }
    }
}

/* Do to the expected values what all ranks' gradients do with momentum. */
static inline void ps_expect_momentum(ps_case *t, int clock)
{
    const float momentum = (float)t->opts.momentum;
    for (size_t i = 0; i < PS_PARAMS; i++) {
        for (size_t k = 0; k < ps_rows[i] * ps_cols[i]; k++) {
            t->state[i][k] =
                momentum * t->state[i][k] + ps_average(t, clock, (1u << t->size) - 1, i, k);
            t->value[i][k] -= (float)t->opts.lr * t->state[i][k];
        }
    }
}

/* Pull all rows and compare them. */
static inline void ps_compare(const ps_case *t, double tolerance, const char *what)
{
    for (size_t i = 0; i < PS_PARAMS; i++) {
        float got[PS_MOST];
        RANKS_OK(dcomm_ps_pull(t->ps, i, 0, ps_rows[i], got, NULL));
        for (size_t k = 0; k < ps_rows[i] * ps_cols[i]; k++) {
            PROCS_CHECK(fabs((double)(got[k] - t->value[i][k])) <=
                            tolerance * (1 + fabs((double)t->value[i][k])),
                        "%s: rank %d: parameter %zu, element %zu is %.9g, not %.9g", what, t->rank,
                        i, k, (double)got[k], (double)t->value[i][k]);
        }
    }
}

/* Run `fn` by n processes for at most `seconds`. Those in the set `dead` must be killed, and all
 * others end well. */
static inline void ps_on_but(unsigned dead, int n, ranks_place place, int seconds, procs_fn fn,
                             void *arg, const char *what)
{
    int ended[PROCS_MAX];
    place_now = place;
    procs_run(n, seconds, fn, arg, ended);
    for (int r = 0; r < n; r++) {
        cr_expect(ended[r] == (dead >> r & 1 ? 128 + SIGKILL : 0),
                  "%d ranks, %s, %s: rank %d ended with %d", n, ranks_place_name(place), what, r,
                  ended[r]);
    }
}

#endif
