/* crossover_sweep.h - compute times by size and algorithm, by the model and by a fit, and find the
 * sizes where two algorithms cross over. */
#ifndef CROSSOVER_SWEEP_H
#define CROSSOVER_SWEEP_H

#include "crossover_args.h"

enum { CROSS_MEASURED, CROSS_PREDICTED, CROSS_FITTED, CROSS_KINDS };
static const char *const cross_kinds[CROSS_KINDS] = {"measured", "predicted", "fitted"};

typedef struct cross_sweep {
    const cross_args *args;
    int rank, nranks;
    int *hosts; /* [nranks] */
    const char *algo[CROSS_ALGOS];
    int nalgos, nsizes;
    size_t *bytes;
    double *time[CROSS_KINDS]; /* [nsizes][nalgos], seconds; NaN: none */
    double fit[3];             /* alpha in us, beta and gamma in ns/B; NaN: there is no fit */
    busy_seen busy;            /* rank 0's */
    tool_out json, svg, save;
} cross_sweep;

static inline double *cross_time(const cross_sweep *s, int kind, int size, int algo)
{
    return &s->time[kind][size * s->nalgos + algo];
}

static size_t cross_count(const cross_sweep *s, size_t bytes)
{
    size_t count = bytes / 4 / (s->args->op->blocks ? (size_t)s->nranks : 1);
    return count > 0 ? count : 1;
}

/* ---- the model ---- */

/* Return the model's time for exactly this size; NaN if the algorithm cannot do it. */
static double cross_price(const cross_sweep *s, const char *algo, size_t bytes,
                          const dcomm_tuning *tuning)
{
    dcomm_check_spec spec = {.coll = s->args->op->coll,
                             .count = cross_count(s, bytes),
                             .dtype = DCOMM_F32,
                             .hosts = s->hosts};
    dcomm_coll_opts opts = {.algo = algo, .chunk_bytes = s->args->chunk};
    dcomm_plan **plans = calloc((size_t)s->nranks, sizeof *plans);
    double seconds = NAN;
    bool good = plans != NULL;
    for (int r = 0; r < s->nranks && good; r++) {
        good = dcomm_plan_create(&spec, DCOMM_SUM, r, s->nranks, &opts, &plans[r]) >= 0;
    }
    if (good && dcomm_plan_price((const dcomm_plan *const *)plans, s->nranks, s->hosts, tuning,
                                 &seconds) < 0) {
        seconds = NAN;
    }
    for (int r = 0; plans != NULL && r < s->nranks; r++) {
        dcomm_plan_destroy(&plans[r]);
    }
    free(plans);
    return seconds;
}

/* ---- crossovers ---- */

typedef struct cross_point {
    double bytes; /* NaN: one of the two is cheaper everywhere */
    int first;    /* the algorithm that is cheaper below */
} cross_point;

/* Return how well the sweep fits a change from a to b at size k: the sum of the differences (as
 * logarithms) that agree with it, less those that disagree. The whole sweep counts, because noise
 * can swap the order at single sizes. */
static double cross_agreement(const cross_sweep *s, int kind, int a, int b, int k)
{
    double sum = 0;
    for (int i = 0; i < s->nsizes; i++) {
        double d = log(*cross_time(s, kind, i, b) / *cross_time(s, kind, i, a));
        sum += isnan(d) ? 0 : i < k ? d : -d;
    }
    return sum;
}

/* Return the size between sizes k-1 and k at which both take equally long. With the model alone it
 * is found by bisection, else by interpolation. */
static double cross_between(const cross_sweep *s, int kind, int a, int b, int k)
{
    double low = (double)s->bytes[k - 1], high = (double)s->bytes[k];
    if (kind == CROSS_PREDICTED && s->args->model) {
        for (int i = 0; i < 14; i++) {
            double middle = sqrt(low * high);
            double ta = cross_price(s, s->algo[a], (size_t)middle, &s->args->tuning);
            double tb = cross_price(s, s->algo[b], (size_t)middle, &s->args->tuning);
            *(ta <= tb ? &low : &high) = middle;
        }
        return sqrt(low * high);
    }
    double below = log(*cross_time(s, kind, k - 1, b) / *cross_time(s, kind, k - 1, a));
    double above = log(*cross_time(s, kind, k, b) / *cross_time(s, kind, k, a));
    double part = below > 0 && above < 0 ? below / (below - above) : 0.5;
    return low * pow(high / low, part);
}

static cross_point cross_find(const cross_sweep *s, int kind, int a, int b)
{
    cross_point found = {NAN, a};
    double best = fmax(cross_agreement(s, kind, a, b, 0), cross_agreement(s, kind, b, a, 0));
    int at = 0;
    for (int k = 1; k < s->nsizes; k++) {
        for (int turned = 0; turned < 2; turned++) {
            double agreed = cross_agreement(s, kind, turned ? b : a, turned ? a : b, k);
            if (agreed > best + 1e-9) {
                best = agreed;
                at = k;
                found.first = turned ? b : a;
            }
        }
    }
    if (at > 0) {
        int second = found.first == a ? b : a;
        found.bytes = cross_between(s, kind, found.first, second, at);
    }
    return found;
}

/* ---- the fit ---- */

/* Find the x that minimizes the sum over rows f of (sum_k x_k f_k - 1)^2, over the columns in
 * `used`. Return false if there is no x with all x_k >= 0. */
static bool cross_solve(const double (*row)[3], int n, unsigned used, double x[3])
{
    double m[3][4] = {{0}};
    for (int i = 0; i < 3; i++) {
        for (int j = 0; j < 3; j++) {
            for (int r = 0; r < n; r++) {
                bool both = (used >> i & 1) && (used >> j & 1);
                m[i][j] += both ? row[r][i] * row[r][j] : 0;
            }
        }
        for (int r = 0; r < n; r++) {
            m[i][3] += used >> i & 1 ? row[r][i] : 0;
        }
        m[i][i] += used >> i & 1 ? 0 : 1;
    }
    for (int i = 0; i < 3; i++) {
        int pivot = i;
        for (int r = i + 1; r < 3; r++) {
            pivot = fabs(m[r][i]) > fabs(m[pivot][i]) ? r : pivot;
        }
        if (!(fabs(m[pivot][i]) > 0)) {
            return false;
        }
        for (int j = 0; j < 4; j++) {
            double keep = m[i][j];
            m[i][j] = m[pivot][j];
            m[pivot][j] = keep;
        }
        for (int r = 0; r < 3; r++) {
            double factor = r == i ? 0 : m[r][i] / m[i][i];
            for (int j = 0; j < 4; j++) {
                m[r][j] -= factor * m[i][j];
            }
        }
    }
    for (int i = 0; i < 3; i++) {
        x[i] = m[i][3] / m[i][i];
        if (!(x[i] >= 0)) {
            return false;
        }
    }
    return true;
}

/* Return the typical relative error of one kind of time against the measured one: the root mean
 * square of the logarithms' differences. */
static double cross_residual(const cross_sweep *s, int kind)
{
    double sum = 0;
    int n = 0;
    for (int i = 0; i < s->nsizes * s->nalgos; i++) {
        double off = log(s->time[kind][i] / s->time[CROSS_MEASURED][i]);
        sum += isnan(off) ? 0 : off * off;
        n += !isnan(off);
    }
    return n > 0 ? exp(sqrt(sum / n)) - 1 : NAN;
}

/* Fit one alpha, beta and gamma for all ranks. The model's time is nearly a sum with one term for
 * each of them. A term is the model's time if the other two numbers are 0. */
static void cross_fit(cross_sweep *s)
{
    static const double unit[3] = {1, 1e-3, 1e-3}; /* us, ns/B: far above the rounding to ps */
    double(*row)[3] = calloc((size_t)(s->nsizes * s->nalgos), sizeof *row);
    dcomm_tuning tuning;
    int n = 0;
    double best = INFINITY;
    for (int i = 0; row != NULL && i < s->nsizes; i++) {
        for (int a = 0; a < s->nalgos; a++) {
            double measured = *cross_time(s, CROSS_MEASURED, i, a);
            bool good = !isnan(measured);
            for (int k = 0; k < 3 && good; k++) {
                dcomm_tuning_uniform(k == 0 ? unit[0] : 0, k == 1 ? unit[1] : 0,
                                     k == 2 ? unit[2] : 0, &tuning);
                row[n][k] = cross_price(s, s->algo[a], s->bytes[i], &tuning) / measured;
                good = !isnan(row[n][k]);
            }
            n += good;
        }
    }
    for (unsigned used = 1; used < 8; used++) {
        double x[3], sum = 0;
        if (n > 3 && cross_solve((const double(*)[3])row, n, used, x)) {
            for (int r = 0; r < n; r++) {
                double off = x[0] * row[r][0] + x[1] * row[r][1] + x[2] * row[r][2] - 1;
                sum += off * off;
            }
            if (sum < best) {
                best = sum;
                for (int k = 0; k < 3; k++) {
                    s->fit[k] = x[k] * unit[k];
                }
            }
        }
    }
    free(row);
    if (isnan(s->fit[0]) || dcomm_tuning_uniform(s->fit[0], s->fit[1], s->fit[2], &tuning) < 0) {
        return;
    }
    for (int i = 0; i < s->nsizes; i++) {
        for (int a = 0; a < s->nalgos; a++) {
            *cross_time(s, CROSS_FITTED, i, a) = cross_price(s, s->algo[a], s->bytes[i], &tuning);
        }
    }
}

/* ---- closed forms ---- */

/* Return the closed form of an algorithm's time on a uniform network, without chunks; NaN if there
 * is none here. */
static double cross_closed_form(const cross_sweep *s, const char *algo, double bytes)
{
    const cross_args *a = s->args;
    double n = s->nranks, alpha = a->alpha_us * 1e-6, beta = a->beta_ns * 1e-9;
    double gamma = a->gamma_ns * 1e-9;
    if (a->op->coll != DCOMM_COLL_ALLREDUCE || a->chunk < (size_t)1 << 40) {
        return NAN;
    }
    if (strcmp(algo, "ring") == 0) {
        return 2 * (n - 1) * (alpha + bytes * beta / n) + (n - 1) * bytes * gamma / n;
    }
    bool power = (s->nranks & (s->nranks - 1)) == 0;
    return strcmp(algo, "binomial") == 0 && power
               ? 2 * log2(n) * (alpha + bytes * beta) + log2(n) * bytes * gamma
               : NAN;
}

#endif
