/* 15_grid.c - ranks in a grid of data, pipeline and tensor parallelism: 8 ranks are 2 * 2 * 2,
 * other numbers the product of their prime factors, which pipeline, tensor and data take in turn.
 * Each rank also trains alone, and compares losses and weights. Each group's bytes are the
 * formula's.
 *
 * Ranks next to each other are a tensor group, which talks most; then come the stages of a
 * pipeline, then data parallelism, which talks once a step. So a tensor group stays within a host
 * (Narayanan and others, "Efficient Large-Scale Language Model Training on GPU Clusters", 2021). */
#include "dcomm.h"
#include "noise.h"
#include "pipeline_run.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { WIDTH = 16, ROWS = 12, AREA = ROWS * WIDTH, WIDE = 8, STEPS = 20 };
enum { TENSOR, PIPE, DATA, KINDS };

static const char *const kinds[] = {"tensor", "pipeline", "data"};
static const dcomm_coll_opts ring = {.algo = "ring"}; /* the formula's, for every number of bytes */

/* A model with two layers for each stage, y = x + tanh(x a) b, and a batch with two micro-batches
 * for each stage of each pipeline. */
typedef struct model {
    int layers, wide, micro; /* wide: columns of a, which are rows of b */
} model;

typedef struct trainer {
    dcomm_comm *comm[KINDS];
    int size[KINDS], at[KINDS]; /* of the grid, and this rank's place */
    pipeline line;
    model whole, mine;         /* mine: this rank's layers, columns and micro-batches */
    int count;                 /* of this rank's weights: [layer][a, b][wide][WIDTH] */
    float *weights, *gradient; /* a is stored transposed; gradient and kept follow */
    float *kept; /* for each slot: each layer's x, the last one's y, each one's tanh(x a) */
    double loss[STEPS];
    int step;
    double bytes[2][KINDS]; /* sent, and read from other ranks, in all steps */
} trainer;

/* Return where one of this rank's weights is in the whole model. */
static int place(const trainer *t, int k)
{
    const int matrix = t->mine.wide * WIDTH, first = t->at[PIPE] * t->mine.layers * 2;
    const int from = t->at[TENSOR] * matrix;
    return (first + k / matrix) * t->whole.wide * WIDTH + from + k % matrix;
}

/* Add up floats of all ranks of a group. */
static dcomm_status add_up(dcomm_comm *comm, float *x, int n)
{
    return dcomm_allreduce(comm, DCOMM_IN_PLACE, x, (size_t)n, DCOMM_F32, DCOMM_SUM, &ring);
}

/* Compute y. Each rank of the tensor group has a part of it; the first one's has x, too. */
static dcomm_status forward(const trainer *t, const float *a, const float *x, float *h, float *y)
{
    const int wide = t->mine.wide, matrix = wide * WIDTH;
    for (int k = 0; k < AREA; k++) {
        y[k] = t->at[TENSOR] == 0 ? x[k] : 0;
    }
    for (int k = 0; k < ROWS * wide; k++) {
        const int r = k / wide * WIDTH, o = k % wide * WIDTH;
        float sum = 0;
        for (int i = 0; i < WIDTH; i++) {
            sum += x[r + i] * a[o + i];
        }
        h[k] = tanhf(sum);
        for (int i = 0; i < WIDTH; i++) {
            y[r + i] += h[k] * a[matrix + o + i];
        }
    }
    return add_up(t->comm[TENSOR], y, AREA);
}

/* Turn d, the gradient of y, into that of x, and add to those of a and b. */
static dcomm_status backward(const trainer *t, const float *a, float *grad, const float *x,
                             const float *h, float *d)
{
    const int wide = t->mine.wide, matrix = wide * WIDTH;
    float dy[AREA];
    memcpy(dy, d, sizeof dy);
    memset(d, 0, t->at[TENSOR] == 0 ? 0 : sizeof dy);
    for (int k = 0; k < ROWS * wide; k++) {
        const int r = k / wide * WIDTH, o = k % wide * WIDTH;
        float inner = 0;
        for (int i = 0; i < WIDTH; i++) {
            inner += dy[r + i] * a[matrix + o + i];
            grad[matrix + o + i] += h[k] * dy[r + i];
        }
        inner *= 1 - h[k] * h[k];
        for (int i = 0; i < WIDTH; i++) {
            grad[o + i] += inner * x[r + i];
            d[r + i] += inner * a[o + i];
        }
    }
    return add_up(t->comm[TENSOR], d, AREA);
}

/* Return how far an element of the result is from what the model learns: to turn each row round. */
static float error_of(int micro, int k, float y)
{
    return y - noise(micro, k / WIDTH * WIDTH + WIDTH - 1 - k % WIDTH);
}

/* Do one operation of the schedule. */
static dcomm_status work(void *user, const pipeline_op *op, const float *in, float *out)
{
    trainer *t = user;
    const int hidden = ROWS * t->mine.wide, two = 2 * t->mine.wide * WIDTH, all = t->mine.layers;
    const int micro = t->at[DATA] * t->mine.micro + op->micro, elements = AREA * t->whole.micro;
    float *x = t->kept + op->slot * (all * (AREA + hidden) + AREA), *h = x + (all + 1) * AREA;
    float *y = x + all * AREA, d[AREA];
    dcomm_status s = DCOMM_OK;
    if (op->backward) {
        for (int k = 0; k < AREA; k++) {
            d[k] = in != NULL ? in[k] : 2 * error_of(micro, k, y[k]) / (float)elements;
        }
        for (int j = all - 1; j >= 0 && s >= 0; j--) {
            s = backward(t, t->weights + j * two, t->gradient + j * two, x + j * AREA,
                         h + j * hidden, d);
        }
        if (out != NULL) {
            memcpy(out, d, sizeof d);
        }
        return s;
    }
    for (int k = 0; k < AREA; k++) {
        x[k] = in != NULL ? in[k] : noise(micro, k);
    }
    for (int j = 0; j < all && s >= 0; j++) {
        s = forward(t, t->weights + j * two, x + j * AREA, h + j * hidden, x + (j + 1) * AREA);
    }
    if (out != NULL) {
        memcpy(out, y, AREA * sizeof *y);
    } else if (t->at[TENSOR] == 0) { /* the whole group has the same loss */
        for (int k = 0; k < AREA; k++) {
            const double off = (double)error_of(micro, k, y[k]);
            t->loss[t->step] += off * off / elements;
        }
    }
    return s;
}

/* Make a grid of comm's ranks, and this rank's part of a model. */
static dcomm_status start(trainer *t, dcomm_comm *comm, const int *size, const model *whole)
{
    const int rank = dcomm_comm_rank(comm), tensor = size[TENSOR], pipe = size[PIPE];
    memcpy(t->size, size, sizeof t->size);
    t->at[TENSOR] = rank % tensor;
    t->at[PIPE] = rank / tensor % pipe;
    t->at[DATA] = rank / (tensor * pipe);
    t->whole = *whole;
    t->mine = (model){whole->layers / pipe, whole->wide / tensor, whole->micro / size[DATA]};
    t->count = t->mine.layers * 2 * t->mine.wide * WIDTH;
    const pipeline_shape shape = {PIPELINE_1F1B, pipe, t->mine.micro, 1};
    const int slot = t->mine.layers * (AREA + ROWS * t->mine.wide) + AREA;
    const int floats = 2 * t->count + pipeline_slots(&shape, t->at[PIPE]) * slot;
    t->weights = calloc((size_t)floats, sizeof(float));
    if (t->weights == NULL) {
        return DCOMM_ERR_NO_MEMORY;
    }
    t->gradient = t->weights + t->count;
    t->kept = t->gradient + t->count;
    for (int k = 0; k < t->count; k++) {
        t->weights[k] = noise(-1, place(t, k));
    }
    /* The ranks of a group are alike in the two other places. */
    const int color[KINDS] = {rank / tensor, t->at[DATA] * tensor + t->at[TENSOR],
                              rank % (tensor * pipe)};
    dcomm_status s = DCOMM_OK;
    for (int k = 0; k < KINDS && s >= 0; k++) {
        s = dcomm_comm_split(comm, color[k], rank, &t->comm[k]);
    }
    t->line = (pipeline){t->comm[PIPE], shape, AREA, work, t};
    return s;
}

/* Add what this rank has sent and read, times `sign`, to t->bytes. */
static dcomm_status count_bytes(trainer *t, int sign)
{
    dcomm_status s = DCOMM_OK;
    for (int k = 0; k < KINDS && s >= 0; k++) {
        dcomm_stats stats = {.bytes_sent = 0};
        s = dcomm_comm_get_stats(t->comm[k], &stats);
        t->bytes[0][k] += sign * (double)stats.bytes_sent;
        t->bytes[1][k] += sign * (double)stats.bytes_read;
    }
    return s;
}

/* Train a model on a grid of comm's ranks. */
static dcomm_status train(trainer *t, dcomm_comm *comm, const int *size, const model *whole)
{
    dcomm_status s = start(t, comm, size, whole);
    s = s >= 0 ? count_bytes(t, -1) : s;
    for (; t->step < STEPS && s >= 0; t->step++) {
        s = pipeline_run(&t->line);
        s = s >= 0 ? add_up(t->comm[DATA], t->gradient, t->count) : s;
        for (int k = 0; k < t->count; k++) {
            t->weights[k] -= t->gradient[k];
            t->gradient[k] = 0;
        }
    }
    s = s >= 0 ? dcomm_barrier(comm, NULL) : s; /* others may still read from this rank */
    s = s >= 0 ? count_bytes(t, 1) : s;
    return s >= 0
               ? dcomm_allreduce(comm, DCOMM_IN_PLACE, t->loss, STEPS, DCOMM_F64, DCOMM_SUM, NULL)
               : s;
}

static void end(trainer *t)
{
    for (int k = 0; k < KINDS; k++) {
        dcomm_comm_destroy(&t->comm[k]);
    }
    free(t->weights);
}

/* Return by how much this rank's weights and the losses are apart from those of one rank, as a
 * share of the largest weight, and of the loss. */
static double apart(const trainer *t, const trainer *alone)
{
    double off = 0, largest = 0, most = 0;
    for (int k = 0; k < t->count; k++) {
        const double want = (double)alone->weights[place(t, k)];
        off = fmax(off, fabs((double)t->weights[k] - want));
        largest = fmax(largest, fabs(want));
    }
    for (int step = 0; step < STEPS; step++) {
        most = fmax(most, fabs(t->loss[step] - alone->loss[step]) / alone->loss[step]);
    }
    return fmax(most, off / largest);
}

/* Compare the bytes of all ranks with the formulas. Return the number that differ. */
static int compare_bytes(const trainer *t, bool print)
{
    const int tensor = t->size[TENSOR], pipe = t->size[PIPE], data = t->size[DATA];
    const int between = t->whole.micro * AREA * (int)sizeof(float); /* layers, of a batch */
    const int weights = 2 * t->whole.layers * t->whole.wide * WIDTH * (int)sizeof(float);
    /* An all-reduce of n ranks sends 2 (n-1) times its bytes. Each layer has two. */
    const int formula[KINDS] = {2 * (tensor - 1) * 2 * t->whole.layers * between,
                                2 * (pipe - 1) * tensor * between, 2 * (data - 1) * weights};
    int wrong = 0;
    for (int k = 0; k < KINDS; k++) {
        /* A read that the owner answers by a message counts twice: as sent, and as read. */
        const double sent = t->bytes[0][k] / STEPS, read = t->bytes[1][k] / STEPS;
        const double bytes = sent == read ? sent : sent + read;
        wrong += bytes != formula[k];
        if (print) {
            printf("%s: %d groups of %d send %.0f bytes a step, by the formula %d\n", kinds[k],
                   tensor * pipe * data / t->size[k], t->size[k], bytes, formula[k]);
        }
    }
    return wrong;
}

int main(void)
{
    static trainer t, alone;
    static const int one[KINDS] = {1, 1, 1}, turn[KINDS] = {PIPE, TENSOR, DATA};
    int size[KINDS] = {1, 1, 1}, next = 0, wrong = 0;
    dcomm_comm *comm = NULL, *self = NULL;
    dcomm_status s = dcomm_comm_create(NULL, &comm);
    const int rank = dcomm_comm_rank(comm);
    for (int left = dcomm_comm_size(comm), prime = 2; left > 1; prime++) {
        for (; left % prime == 0; left /= prime) {
            size[turn[next++ % KINDS]] *= prime;
        }
    }
    const model whole = {2 * size[PIPE], WIDE * size[TENSOR], 2 * size[PIPE] * size[DATA]};
    /* Each step adds differences of sums in another order: of n terms at most n * 2^-24 of their
     * sizes. The longest are those of gradients over all rows of a batch. */
    const double bound = STEPS * ROWS * whole.micro / 16777216.0;
    s = s >= 0 ? dcomm_comm_split(comm, rank, 0, &self) : s;
    s = s >= 0 ? train(&alone, self, one, &whole) : s;
    s = s >= 0 ? train(&t, comm, size, &whole) : s;
    if (s >= 0) {
        const double off = apart(&t, &alone);
        wrong += !(off <= bound) || !(t.loss[STEPS - 1] < 0.5 * t.loss[0]);
        printf("rank %d: data %d of %d, pipeline %d of %d, tensor %d of %d; loss %.4f to %.4f, "
               "%.1e apart from one rank (at most %.1e)\n",
               rank, t.at[DATA], size[DATA], t.at[PIPE], size[PIPE], t.at[TENSOR], size[TENSOR],
               t.loss[0], t.loss[STEPS - 1], off, bound);
        s = dcomm_allreduce(comm, DCOMM_IN_PLACE, t.bytes, 2 * KINDS, DCOMM_F64, DCOMM_SUM, NULL);
        wrong += s >= 0 ? compare_bytes(&t, rank == 0) : 0;
    }
    if (s < 0) {
        fprintf(stderr, "rank %d: %s\n", rank, dcomm_last_error());
    }
    end(&t);
    end(&alone);
    dcomm_comm_destroy(&self);
    dcomm_comm_destroy(&comm);
    return s < 0 ? 3 : wrong > 0;
}
