/* 17_lbfgs.c - L-BFGS over owned shards, as Sandblaster does it (Dean et al., 2012): a rank owns a
 * part of every vector, and only scalar products are all-reduced, all of a step in one call. The
 * problem is logistic regression. Each rank also solves it alone, and compares the minima. */
#include "comm.h"

#include <math.h>
#include <string.h>

enum { DIM = 2000, ROWS = 200, PAIRS = 5, STEPS = 60 };
/* VECTORS: those that a step works with, the differences of x, the differences of the gradient, and
 * the gradient itself, number G. PRODUCTS: scalar products of any two of them. */
enum { VECTORS = 2 * PAIRS + 1, G = 2 * PAIRS, PRODUCTS = VECTORS * (VECTORS + 1) / 2 };

static const double mu = 1e-2; /* factor of |x|^2 / 2 in the loss: it is strongly convex */
static const double small_enough = 1e-8; /* length of the gradient at which the search ends */

static double row[ROWS][DIM]; /* the data, scaled by labels 1 and -1; a rank reads its own rows */

/* One rank's part of a search. */
typedef struct search {
    dcomm_comm *vectors, *scalars; /* the same ranks, to count bytes apart */
    size_t *counts, first, count;  /* elements of a vector on each rank; on this one */
    double x[DIM], trial[DIM];     /* [count] */
    double v[VECTORS][DIM];        /* [count] */
    double product[VECTORS][VECTORS];
    int steps, evaluations;         /* the pair of step k is v[k % PAIRS], v[PAIRS + k % PAIRS] */
    double loss[STEPS + 1], length; /* after each step; of the gradient */
} search;

static double noise(uint32_t *state)
{
    *state = *state * 1664525u + 1013904223u;
    return (double)(*state >> 8) / 8388608 - 1;
}

/* Make rows whose columns have different scales, and labels that a plane with errors gives. */
static void make_data(void)
{
    uint32_t state = 7;
    for (int r = 0; r < ROWS; r++) {
        double score = 0.5 * noise(&state);
        for (int j = 0; j < DIM; j++) {
            row[r][j] = noise(&state) / (1 + j % 20);
            score += j % 3 == 0 ? row[r][j] : -row[r][j];
        }
        for (int j = 0; j < DIM; j++) {
            row[r][j] = score > 0 ? row[r][j] : -row[r][j];
        }
    }
}

static double dot(const double *a, const double *b, size_t n)
{
    double sum = 0;
    for (size_t j = 0; j < n; j++) {
        sum += a[j] * b[j];
    }
    return sum;
}

/* Compute a += factor * b. */
static void add(double *a, double factor, const double *b, size_t n)
{
    for (size_t j = 0; j < n; j++) {
        a[j] += factor * b[j];
    }
}

static void sum_scalars(search *s, double *values, size_t n)
{
    CHECK(dcomm_allreduce(s->scalars, DCOMM_IN_PLACE, values, n, DCOMM_F64, DCOMM_SUM, NULL));
}

/* Return the loss at a point of which this rank has a shard, and write this rank's shard of the
 * gradient. The loss of a row is log(1 + exp(-score)). */
static double evaluate(search *s, const double *shard, double *gradient)
{
    static double x[DIM], partial[DIM];
    const int rank = dcomm_comm_rank(s->vectors), size = dcomm_comm_size(s->vectors);
    double loss = 0;
    CHECK(dcomm_allgatherv(s->vectors, shard, x, s->counts, NULL, DCOMM_F64, NULL));
    memset(partial, 0, sizeof partial);
    for (int r = ROWS * rank / size; r < ROWS * (rank + 1) / size; r++) {
        double score = 0;
        for (int j = 0; j < DIM; j++) {
            score += row[r][j] * x[j];
        }
        loss += log1p(exp(-score)) / ROWS;
        for (int j = 0; j < DIM; j++) {
            partial[j] -= row[r][j] / (1 + exp(score)) / ROWS;
        }
    }
    CHECK(dcomm_reduce_scatterv(s->vectors, partial, gradient, s->counts, DCOMM_F64, DCOMM_SUM,
                                NULL));
    for (size_t j = 0; j < s->count; j++) {
        loss += mu / 2 * shard[j] * shard[j];
        gradient[j] += mu * shard[j];
    }
    sum_scalars(s, &loss, 1);
    s->evaluations++;
    return loss;
}

/* Compute all scalar products of the step: the shards' on each rank, then one all-reduce. */
static void multiply(search *s)
{
    double packed[PRODUCTS], *p = packed;
    for (int a = 0; a < VECTORS; a++) {
        for (int b = 0; b <= a; b++, p++) {
            *p = dot(s->v[a], s->v[b], s->count);
        }
    }
    sum_scalars(s, packed, PRODUCTS);
    p = packed;
    for (int a = 0; a < VECTORS; a++) {
        for (int b = 0; b <= a; b++, p++) {
            s->product[a][b] = s->product[b][a] = *p;
        }
    }
}

/* Return the scalar product of v[a] with the sum of all vectors, times these factors. */
static double times(const search *s, int a, const double factor[VECTORS])
{
    double sum = 0;
    for (int b = 0; b < VECTORS; b++) {
        sum += factor[b] * s->product[a][b];
    }
    return sum;
}

/* Find the direction of the step as factors of the vectors. This is Nocedal's two-loop recursion,
 * which needs no more than scalar products (Chen et al., 2014). All ranks do it alike. */
static void find_direction(const search *s, double factor[VECTORS])
{
    double alpha[PAIRS];
    const int oldest = s->steps > PAIRS ? s->steps - PAIRS : 0;
    memset(factor, 0, VECTORS * sizeof *factor);
    factor[G] = -1;
    for (int k = s->steps - 1; k >= oldest; k--) {
        const int dx = k % PAIRS, dg = PAIRS + dx;
        alpha[dx] = times(s, dx, factor) / s->product[dx][dg];
        factor[dg] -= alpha[dx];
    }
    const int dx_last = (s->steps + PAIRS - 1) % PAIRS, dg_last = PAIRS + dx_last;
    const double scale =
        s->steps > 0 ? s->product[dx_last][dg_last] / s->product[dg_last][dg_last] : 1 / s->length;
    for (int b = 0; b < VECTORS; b++) {
        factor[b] *= scale;
    }
    for (int k = oldest; k < s->steps; k++) {
        const int dx = k % PAIRS, dg = PAIRS + dx;
        factor[dx] += alpha[dx] - times(s, dg, factor) / s->product[dx][dg];
    }
}

/* Set p to the direction, from its factors. Return the slope of the loss along it. */
static double combine(const search *s, double *p)
{
    double factor[VECTORS];
    find_direction(s, factor);
    memset(p, 0, s->count * sizeof *p);
    for (int a = 0; a < VECTORS; a++) {
        add(p, factor[a], s->v[a], s->count);
    }
    return times(s, G, factor);
}

/* The same as the textbook has it, on whole vectors, for one rank (Nocedal and Wright, algorithm
 * 7.4). */
static double textbook(const search *s, double *p)
{
    double alpha[PAIRS], scale = 1 / s->length;
    const int oldest = s->steps > PAIRS ? s->steps - PAIRS : 0;
    for (int j = 0; j < DIM; j++) {
        p[j] = -s->v[G][j];
    }
    for (int k = s->steps - 1; k >= oldest; k--) {
        const double *dx = s->v[k % PAIRS], *dg = s->v[PAIRS + k % PAIRS];
        alpha[k % PAIRS] = dot(dx, p, DIM) / dot(dx, dg, DIM);
        add(p, -alpha[k % PAIRS], dg, DIM);
        scale = k == s->steps - 1 ? dot(dx, dg, DIM) / dot(dg, dg, DIM) : scale;
    }
    for (int j = 0; j < DIM; j++) {
        p[j] *= scale;
    }
    for (int k = oldest; k < s->steps; k++) {
        const double *dx = s->v[k % PAIRS], *dg = s->v[PAIRS + k % PAIRS];
        add(p, alpha[k % PAIRS] - dot(dg, p, DIM) / dot(dx, dg, DIM), dx, DIM);
    }
    return dot(s->v[G], p, DIM);
}

/* Go along the direction p: halve the step until the loss falls enough (Armijo). Then the pair of
 * differences takes the place of the oldest one. */
static void go(search *s, const double *p, double slope)
{
    static double gradient[DIM];
    double loss, t = 1;
    for (;; t /= 2) {
        for (size_t j = 0; j < s->count; j++) {
            s->trial[j] = s->x[j] + t * p[j];
        }
        loss = evaluate(s, s->trial, gradient);
        if (loss <= s->loss[s->steps] * (1 + 1e-14) + 1e-4 * t * slope || t < 1e-6) {
            break;
        }
    }
    double *dx = s->v[s->steps % PAIRS], *dg = s->v[PAIRS + s->steps % PAIRS];
    for (size_t j = 0; j < s->count; j++) {
        dx[j] = s->trial[j] - s->x[j];
        dg[j] = gradient[j] - s->v[G][j];
        s->x[j] = s->trial[j];
        s->v[G][j] = gradient[j];
    }
    s->loss[++s->steps] = loss;
}

/* Search the minimum on the ranks of comm, and write it to minimum[DIM]. */
static void minimize(search *s, dcomm_comm *comm, double (*direction)(const search *s, double *p),
                     double *minimum)
{
    static double p[DIM];
    const size_t rank = (size_t)dcomm_comm_rank(comm), size = (size_t)dcomm_comm_size(comm);
    CHECK(dcomm_comm_dup(comm, &s->vectors));
    CHECK(dcomm_comm_dup(comm, &s->scalars));
    s->counts = calloc(size, sizeof *s->counts);
    for (size_t r = 0; r < size && s->counts != NULL; r++) {
        s->counts[r] = DIM * (r + 1) / size - DIM * r / size;
    }
    s->count = DIM * (rank + 1) / size - DIM * rank / size;
    s->loss[0] = evaluate(s, s->x, s->v[G]);
    while (s->steps < STEPS) {
        multiply(s);
        s->length = sqrt(s->product[G][G]);
        if (s->length < small_enough) {
            break;
        }
        const double slope = direction(s, p);
        go(s, p, slope);
    }
    CHECK(dcomm_allgatherv(s->vectors, s->x, minimum, s->counts, NULL, DCOMM_F64, NULL));
    free(s->counts);
}

static double sent_bytes(const dcomm_comm *comm)
{
    dcomm_stats stats;
    CHECK(dcomm_comm_get_stats(comm, &stats));
    return (double)stats.bytes_sent;
}

int main(void)
{
    static search together, alone;
    static double minimum[DIM], want[DIM];
    dcomm_comm *self = NULL;
    CHECK(dcomm_comm_create(NULL, &world));
    const int rank = dcomm_comm_rank(world), size = dcomm_comm_size(world);
    CHECK(dcomm_comm_split(world, rank, 0, &self));
    make_data();
    minimize(&together, world, combine, minimum);
    minimize(&alone, self, textbook, want);
    double apart = 0, off = 0;
    for (int j = 0; j < DIM; j++) {
        apart += (minimum[j] - want[j]) * (minimum[j] - want[j]);
    }
    apart = sqrt(apart);
    for (int k = 0; k <= together.steps && k <= alone.steps; k++) {
        off = fmax(off, fabs(together.loss[k] - alone.loss[k]) / alone.loss[k]);
    }
    /* The loss curves by mu at least, so a point is at most |gradient| / mu from the minimum. */
    const bool wrong = !(together.length < small_enough) || !(alone.length < small_enough) ||
                       !(apart <= 2 * small_enough / mu) || !(off < 1e-9);
    const double steps = together.steps;
    printf(
        "rank %d of %d: loss %.9f after %d steps and %d evaluations, alone %.9f after %d; losses "
        "%.1e apart at most, minima %.1e; sent a step: %.0f bytes of scalars, %.0f of vectors\n",
        rank, size, together.loss[together.steps], together.steps, together.evaluations,
        alone.loss[alone.steps], alone.steps, off, apart, sent_bytes(together.scalars) / steps,
        sent_bytes(together.vectors) / steps);
    CHECK(dcomm_comm_destroy(&together.vectors));
    CHECK(dcomm_comm_destroy(&together.scalars));
    CHECK(dcomm_comm_destroy(&alone.vectors));
    CHECK(dcomm_comm_destroy(&alone.scalars));
    CHECK(dcomm_comm_destroy(&self));
    CHECK(dcomm_comm_destroy(&world));
    return wrong;
}
