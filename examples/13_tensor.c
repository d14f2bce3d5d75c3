/* 13_tensor.c - a pair of matrices over several ranks: the first is cut by columns and the second
 * by rows, so that one all-reduce forward and one backward are enough (tensor parallelism: Shoeybi
 * and others, "Megatron-LM", 2019). Then ranks also divide the tokens outside the pair, with
 * all-gather and reduce-scatter in place of all-reduce (sequence parallelism: Korthikanti and
 * others, "Reducing Activation Recomputation in Large Transformer Models", 2022). Each rank also
 * trains alone, and compares losses, weights, and bytes with the formula.
 *
 * The number of ranks must divide TOKENS and FFN. Of other numbers of ranks, the last ones rest. */
#include "dcomm.h"
#include "noise.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { TOKENS = 48, WIDTH = 32, FFN = 96, LAYERS = 2, STEPS = 20 };
enum { AREA = TOKENS * WIDTH, WEIGHTS = WIDTH * FFN };

/* A sum of FFN terms in another order differs by at most FFN * 2^-24 of the sum of their sizes, and
 * each step adds such differences. */
static const double bound = STEPS * FFN / 16777216.0;
static const dcomm_coll_opts ring = {.algo = "ring"}; /* the formula's, for every number of bytes */

/* One layer: y = x + tanh(norm(x) a) b. */
typedef struct layer {
    float a[WEIGHTS], b[WEIGHTS]; /* [WIDTH][wide] and [wide][WIDTH] */
    float x[AREA];                /* this rank's tokens */
    float norm[AREA];             /* of all tokens */
    float hidden[TOKENS * FFN];   /* [TOKENS][wide] */
} layer;

typedef struct trainer {
    dcomm_comm *comm;
    bool sequence;
    int n, rank;
    int wide;          /* columns of a and rows of b that this rank has */
    int tokens, first; /* those whose rows this rank has outside the pair */
    layer layers[LAYERS];
    double loss[STEPS];
    uint64_t bytes; /* sent, or read from other ranks, in all steps */
} trainer;

/* A matrix as a product reads it; `across` is the step from one column to the next. */
typedef struct view {
    const float *at;
    int down, across;
} view;

static view rows_of(const float *at, int columns)
{
    return (view){at, columns, 1};
}

static view columns_of(const float *at, int columns)
{
    return (view){at, 1, columns};
}

/* c = c * keep + scale * a b; c has `rows` rows of `columns`. */
static void multiply(view a, view b, float *c, int rows, int inner, int columns, float keep,
                     float scale)
{
    for (int r = 0; r < rows; r++) {
        for (int o = 0; o < columns; o++) {
            float sum = 0;
            for (int i = 0; i < inner; i++) {
                sum += a.at[r * a.down + i * a.across] * b.at[i * b.down + o * b.across];
            }
            c[r * columns + o] = c[r * columns + o] * keep + scale * sum;
        }
    }
}

static float scale_of(const float *x)
{
    float squares = 1e-6f;
    for (int i = 0; i < WIDTH; i++) {
        squares += x[i] * x[i] / WIDTH;
    }
    return 1 / sqrtf(squares);
}

/* Fill the rows of all tokens from each rank's. `whole` has this rank's in their place. */
static dcomm_status gather(const trainer *t, float *whole)
{
    return t->sequence ? dcomm_allgather(t->comm, DCOMM_IN_PLACE, whole, (size_t)t->tokens * WIDTH,
                                         DCOMM_F32, &ring)
                       : DCOMM_OK;
}

/* Add the ranks' parts of all rows. This rank's tokens get their sums in their place. */
static dcomm_status reduce(const trainer *t, float *whole)
{
    return t->sequence
               ? dcomm_reduce_scatter(t->comm, DCOMM_IN_PLACE, whole, (size_t)t->tokens * WIDTH,
                                      DCOMM_F32, DCOMM_SUM, &ring)
               : dcomm_allreduce(t->comm, DCOMM_IN_PLACE, whole, AREA, DCOMM_F32, DCOMM_SUM, &ring);
}

/* Compute y from l->x. */
static dcomm_status forward(const trainer *t, layer *l, float *y)
{
    float whole[AREA];
    const int at = t->first * WIDTH, mine = t->tokens * WIDTH;
    for (int k = 0; k < mine; k++) {
        l->norm[at + k] = l->x[k] * scale_of(l->x + k / WIDTH * WIDTH);
    }
    dcomm_status s = gather(t, l->norm);
    multiply(rows_of(l->norm, WIDTH), rows_of(l->a, t->wide), l->hidden, TOKENS, WIDTH, t->wide, 0,
             1);
    for (int k = 0; k < TOKENS * t->wide; k++) {
        l->hidden[k] = tanhf(l->hidden[k]);
    }
    multiply(rows_of(l->hidden, t->wide), rows_of(l->b, WIDTH), whole, TOKENS, t->wide, WIDTH, 0,
             1);
    s = s >= 0 ? reduce(t, whole) : s;
    for (int k = 0; k < mine; k++) {
        y[k] = l->x[k] + whole[at + k];
    }
    return s;
}

/* Turn d, the gradient of y, into that of x, and update the weights. */
static dcomm_status backward(const trainer *t, layer *l, float *d)
{
    static float inner[TOKENS * FFN];
    float whole[AREA], back[AREA];
    const int at = t->first * WIDTH, mine = t->tokens * WIDTH;
    memcpy(whole + at, d, (size_t)mine * sizeof *d);
    dcomm_status s = gather(t, whole);
    multiply(rows_of(whole, WIDTH), columns_of(l->b, WIDTH), inner, TOKENS, WIDTH, t->wide, 0, 1);
    for (int k = 0; k < TOKENS * t->wide; k++) {
        inner[k] *= 1 - l->hidden[k] * l->hidden[k];
    }
    multiply(rows_of(inner, t->wide), columns_of(l->a, t->wide), back, TOKENS, t->wide, WIDTH, 0,
             1);
    multiply(columns_of(l->hidden, t->wide), rows_of(whole, WIDTH), l->b, t->wide, TOKENS, WIDTH, 1,
             -1);
    multiply(columns_of(l->norm, WIDTH), rows_of(inner, t->wide), l->a, WIDTH, TOKENS, t->wide, 1,
             -1);
    s = s >= 0 ? reduce(t, back) : s;
    for (int k = 0; k < mine; k += WIDTH) {
        const float *dnorm = back + at + k, *norm = l->norm + at + k;
        const float scale = scale_of(l->x + k);
        float along = 0;
        for (int i = 0; i < WIDTH; i++) {
            along += dnorm[i] * norm[i] / WIDTH;
        }
        for (int i = 0; i < WIDTH; i++) {
            d[k + i] += scale * (dnorm[i] - norm[i] * along);
        }
    }
    return s;
}

/* Do a step; the model learns to turn each token's row round. */
static dcomm_status train_step(trainer *t, double *loss)
{
    float y[AREA], d[AREA];
    const int mine = t->tokens * WIDTH;
    dcomm_status s = DCOMM_OK;
    for (int k = 0; k < mine; k++) {
        t->layers[0].x[k] = noise(t->first + k / WIDTH, k % WIDTH);
    }
    for (int j = 0; j < LAYERS && s >= 0; j++) {
        s = forward(t, &t->layers[j], j + 1 < LAYERS ? t->layers[j + 1].x : y);
    }
    for (int k = 0; k < mine; k++) {
        const float off = y[k] - noise(t->first + k / WIDTH, WIDTH - 1 - k % WIDTH);
        *loss += (double)(off * off) / AREA;
        d[k] = 2 * off / AREA;
    }
    for (int j = LAYERS - 1; j >= 0 && s >= 0; j--) {
        s = backward(t, &t->layers[j], d);
    }
    return s;
}

static dcomm_status train(trainer *t, dcomm_comm *comm, bool sequence)
{
    dcomm_stats before, after;
    memset(t, 0, sizeof *t);
    t->comm = comm;
    t->sequence = sequence;
    t->n = dcomm_comm_size(comm);
    t->rank = dcomm_comm_rank(comm);
    t->wide = FFN / t->n;
    t->tokens = sequence ? TOKENS / t->n : TOKENS;
    t->first = sequence ? t->tokens * t->rank : 0;
    for (int k = 0; k < LAYERS * WIDTH * t->wide; k++) {
        layer *l = &t->layers[k / (WIDTH * t->wide)];
        const int i = k / t->wide % WIDTH, o = k % t->wide;
        l->a[i * t->wide + o] =
            noise(-1 - k / (WIDTH * t->wide), (t->wide * t->rank + o) * WIDTH + i);
        l->b[o * WIDTH + i] =
            noise(-9 - k / (WIDTH * t->wide), (t->wide * t->rank + o) * WIDTH + i);
    }
    dcomm_status s = dcomm_comm_get_stats(comm, &before);
    for (int step = 0; step < STEPS && s >= 0; step++) {
        s = train_step(t, &t->loss[step]);
    }
    s = s >= 0 ? dcomm_barrier(comm, NULL) : s; /* others may still read from this rank */
    s = s >= 0 ? dcomm_comm_get_stats(comm, &after) : s;
    if (s >= 0) {
        /* A read that the owner answers by a message counts twice: it has sent, and the reader
         * read. */
        const uint64_t sent = after.bytes_sent - before.bytes_sent;
        const uint64_t read = after.bytes_read - before.bytes_read;
        t->bytes = sent > 0 && read == sent ? sent : sent + read;
    }
    return s >= 0 && sequence
               ? dcomm_allreduce(comm, DCOMM_IN_PLACE, t->loss, STEPS, DCOMM_F64, DCOMM_SUM, NULL)
               : s;
}

/* Return by how much this rank's weights and the losses are apart from those of one rank, as a
 * share of the largest weight, and of the loss. */
static double apart(const trainer *t, const trainer *alone)
{
    double off = 0, largest = 0, most = 0;
    for (int j = 0; j < LAYERS; j++) {
        for (int k = 0; k < WIDTH * t->wide; k++) {
            const int i = k / t->wide, o = k % t->wide, from = t->wide * t->rank + o;
            const float a = alone->layers[j].a[i * FFN + from];
            const float b = alone->layers[j].b[from * WIDTH + i];
            off = fmax(off, fabs((double)(t->layers[j].a[k] - a)));
            off = fmax(off, fabs((double)(t->layers[j].b[o * WIDTH + i] - b)));
            largest = fmax(largest, fmax(fabs((double)a), fabs((double)b)));
        }
    }
    for (int step = 0; step < STEPS; step++) {
        most = fmax(most, fabs(t->loss[step] - alone->loss[step]) / alone->loss[step]);
    }
    return fmax(most, off / largest);
}

int main(void)
{
    static trainer t, alone;
    dcomm_comm *world = NULL, *comm = NULL, *self = NULL;
    dcomm_status s = dcomm_comm_create(NULL, &world);
    const int rank = dcomm_comm_rank(world);
    int n = dcomm_comm_size(world), wrong = 0;
    while (n > 1 && (TOKENS % n != 0 || FFN % n != 0)) {
        n--;
    }
    s = s >= 0 ? dcomm_comm_split(world, rank < n ? 0 : -1, 0, &comm) : s;
    s = s >= 0 ? dcomm_comm_split(world, rank, 0, &self) : s;
    s = s >= 0 ? train(&alone, self, false) : s;
    for (int sequence = 0; sequence < 2 && s >= 0 && rank < n; sequence++) {
        s = train(&t, comm, sequence);
        /* Tensor: two all-reduces of 2 (n-1)/n. Sequence: two all-gathers and two reduce-scatters
         * of (n-1)/n. */
        const uint64_t formula =
            (uint64_t)STEPS * LAYERS * 4 * AREA * sizeof(float) * (uint64_t)(n - 1) / (uint64_t)n;
        const double off = apart(&t, &alone);
        const bool bad =
            !(off <= bound) || t.bytes != formula || !(t.loss[STEPS - 1] < 0.5 * t.loss[0]);
        wrong += s >= 0 && bad;
        if (s >= 0 && (rank == 0 || bad)) {
            printf(
                "rank %d of %d, %s parallel: loss %.4f to %.4f, %.1e apart from one rank (at most "
                "%.1e); %llu bytes a step, by the formula %llu; %d of %d tokens outside the pair\n",
                rank, n, sequence ? "sequence" : "tensor", t.loss[0], t.loss[STEPS - 1], off, bound,
                (unsigned long long)t.bytes / STEPS, (unsigned long long)formula / STEPS, t.tokens,
                TOKENS);
        }
    }
    if (s < 0) {
        fprintf(stderr, "rank %d: %s\n", rank, dcomm_last_error());
    } else if (rank >= n) {
        printf("rank %d rests: %d ranks divide the tokens and the columns\n", rank, n);
    }
    dcomm_comm_destroy(&self);
    dcomm_comm_destroy(&comm);
    dcomm_comm_destroy(&world);
    return s < 0 ? 3 : wrong > 0;
}
