/* update.h - what a gradient does to a row. */
#ifndef DCOMMI_PS_UPDATE_H
#define DCOMMI_PS_UPDATE_H

#include "../../ps.h"
#include "../base/forked.h"

/* A server's rows of a parameter. */
typedef struct dcommi_ps_table {
    size_t i;                      /* the parameter */
    uint64_t first, rows, cols;    /* first: the number of its first row */
    float *value;                  /* [rows * cols] */
    float *state[DCOMM_PS_STATES]; /* [rows * cols] of the update; NULL: it needs none */
    uint32_t *updates;             /* [rows] of each row, for Adam; NULL: not needed */
} dcommi_ps_table;

/* Return how many numbers the update keeps for each value. */
static int dcommi_ps_states(const dcomm_ps_opts *o)
{
    return o->update == DCOMM_PS_ADAM                                        ? 2
           : o->update == DCOMM_PS_MOMENTUM || o->update == DCOMM_PS_ADAGRAD ? 1
                                                                             : o->update_states;
}

/* Return a to the power of n. */
static double dcommi_ps_power(double a, uint32_t n)
{
    double result = 1;
    for (; n > 0; n >>= 1, a *= a) {
        result *= n & 1 ? a : 1;
    }
    return result;
}

static void dcommi_ps_sgd(float *w, const float *g, size_t n, float rate)
{
    for (size_t k = 0; k < n; k++) {
        w[k] -= rate * g[k];
    }
}

static void dcommi_ps_momentum(float *w, float *v, const float *g, size_t n, float scale,
                               const dcomm_ps_opts *o)
{
    const float momentum = (float)o->momentum, lr = (float)o->lr;
    for (size_t k = 0; k < n; k++) {
        v[k] = momentum * v[k] + scale * g[k];
        w[k] -= lr * v[k];
    }
}

static void dcommi_ps_adagrad(float *w, float *a, const float *g, size_t n, float scale,
                              const dcomm_ps_opts *o)
{
    const float lr = (float)o->lr, eps = (float)o->eps;
    for (size_t k = 0; k < n; k++) {
        const float x = scale * g[k];
        a[k] += x * x;
        w[k] -= lr * x / ((float)dcommi_sqrt(a[k]) + eps);
    }
}

static void dcommi_ps_adam(float *w, float *m, float *v, const float *g, size_t n, float scale,
                           uint32_t step, const dcomm_ps_opts *o)
{
    const float b1 = (float)o->beta1, b2 = (float)o->beta2, eps = (float)o->eps;
    const float rate = (float)(o->lr / (1 - dcommi_ps_power(o->beta1, step)));
    const float whole = (float)(1 / (1 - dcommi_ps_power(o->beta2, step)));
    for (size_t k = 0; k < n; k++) {
        const float x = scale * g[k];
        m[k] = b1 * m[k] + (1 - b1) * x;
        v[k] = b2 * v[k] + (1 - b2) * x * x;
        w[k] -= rate * m[k] / ((float)dcommi_sqrt(v[k] * whole) + eps);
    }
}

/* Let the caller's function update rows. */
static void dcommi_ps_call_back(const dcommi_ps_table *t, uint64_t row, uint64_t nrows,
                                const float *g, float scale, const dcomm_ps_opts *o)
{
    const size_t cols = (size_t)t->cols, at = (size_t)row * cols;
    dcomm_ps_update_info info = {
        .i = t->i, .first = t->first + row, .nrows = (size_t)nrows, .cols = cols, .scale = scale};
    for (int s = 0; s < o->update_states; s++) {
        info.state[s] = t->state[s] + at;
    }
    dcommi_callback_begin("update_fn of a parameter server");
    o->update_fn(t->value + at, g, (size_t)nrows * cols, &info, o->update_user);
    dcommi_callback_end();
}

/* Update nrows rows of a table, from row `row` on, counted from its first. `scale` multiplies g;
 * for an elastic update it is the share of a worker's copy. */
static void dcommi_ps_apply(dcommi_ps_table *t, uint64_t row, uint64_t nrows, const float *g,
                            float scale, const dcomm_ps_opts *o)
{
    const size_t cols = (size_t)t->cols, at = (size_t)row * cols, n = (size_t)nrows * cols;
    float *w = t->value + at;
    switch (o->update) {
    case DCOMM_PS_MOMENTUM:
        dcommi_ps_momentum(w, t->state[0] + at, g, n, scale, o);
        break;
    case DCOMM_PS_ADAGRAD:
        dcommi_ps_adagrad(w, t->state[0] + at, g, n, scale, o);
        break;
    case DCOMM_PS_ADAM:
        for (size_t r = 0; r < (size_t)nrows; r++) {
            const size_t from = r * cols;
            dcommi_ps_adam(w + from, t->state[0] + at + from, t->state[1] + at + from, g + from,
                           cols, scale, ++t->updates[row + r], o);
        }
        break;
    case DCOMM_PS_ELASTIC:
        for (size_t k = 0; k < n; k++) {
            w[k] += scale * (float)o->rho * (g[k] - w[k]);
        }
        break;
    case DCOMM_PS_CALLBACK:
        dcommi_ps_call_back(t, row, nrows, g, scale, o);
        break;
    default:
        dcommi_ps_sgd(w, g, n, scale * (float)o->lr);
    }
}

/* ---- the weight of a push ---- */

/* Return 2 to the power of -x, x at least 0. */
static double dcommi_ps_halved(double x)
{
    double power = 1, term = 1, sum = 1;
    for (; x >= 1 && power > 0; x -= 1) {
        power /= 2;
    }
    for (int k = 1; k < 20; k++) {
        term *= -0.69314718055994530942 * x / k;
        sum += term;
    }
    return power * sum;
}

static double dcommi_ps_weight(const dcomm_ps_opts *o, double tau)
{
    return o->weight == DCOMM_PS_WEIGHT_INVERSE  ? 1 / (1 + tau)
           : o->weight == DCOMM_PS_WEIGHT_HALVED ? dcommi_ps_halved(tau / o->weight_ref)
                                                 : 1;
}

#endif
