/* 12_pipeline.c - a model with two layers for each rank, trained as a pipeline by three schedules:
 * GPipe, 1F1B and interleaved 1F1B. Each rank also trains the whole model alone, and compares:
 * losses and weights have the same bits. Then passes sleep, in place of an accelerator's kernels,
 * and the measured bubble stands beside the formula's.
 *
 * One rank is no pipeline: there, all schedules are gradient accumulation. */
#define _POSIX_C_SOURCE 200809L
#include "dcomm.h"
#include "noise.h"
#include "pipeline_run.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { WIDTH = 16, ROWS = 4, AREA = ROWS * WIDTH, WEIGHTS = WIDTH * WIDTH, STEPS = 12 };
enum { FORWARD_US = 1000, BACKWARD_US = 2000 }; /* of two layers, when passes sleep */

typedef struct layer {
    float w[WEIGHTS], grad[WEIGHTS];
} layer;

typedef struct trainer {
    pipeline line;
    layer *layers;          /* of the whole model; a rank trains those of its chunks */
    int nlayers, per;       /* per: layers of a chunk */
    float *kept;            /* for each slot: the input of each layer, and the result */
    double loss[STEPS + 1]; /* the last one is of the step in which passes sleep */
    int step;
    double busy; /* seconds in passes */
} trainer;

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* y = x + tanh(x w) */
static void layer_forward(const layer *l, const float *x, float *y)
{
    for (int k = 0; k < AREA; k++) {
        const float *row = x + k / WIDTH * WIDTH, *column = l->w + k % WIDTH;
        float sum = 0;
        for (int i = 0; i < WIDTH; i++) {
            sum += row[i] * column[i * WIDTH];
        }
        y[k] = x[k] + tanhf(sum);
    }
}

/* Turn d, the gradient of y, into that of x, and add to the gradient of w. */
static void layer_backward(layer *l, const float *x, const float *y, float *d)
{
    float inner[AREA];
    for (int k = 0; k < AREA; k++) {
        inner[k] = d[k] * (1 - (y[k] - x[k]) * (y[k] - x[k]));
    }
    for (int k = 0; k < AREA; k++) {
        const float *row = inner + k / WIDTH * WIDTH;
        const int i = k % WIDTH * WIDTH;
        for (int o = 0; o < WIDTH; o++) {
            l->grad[i + o] += x[k] * row[o];
            d[k] += row[o] * l->w[i + o];
        }
    }
}

static float input(int micro, int k)
{
    return noise(micro, k);
}

/* The model learns to turn each row round. */
static float target(int micro, int k)
{
    return input(micro, k / WIDTH * WIDTH + WIDTH - 1 - k % WIDTH);
}

static void forward(trainer *t, const pipeline_op *op, const layer *l, const float *in, float *out)
{
    float *x = t->kept + op->slot * (t->per + 1) * AREA;
    for (int k = 0; k < AREA; k++) {
        x[k] = in != NULL ? in[k] : input(op->micro, k);
    }
    for (int j = 0; j < t->per; j++, x += AREA) {
        layer_forward(&l[j], x, x + AREA);
    }
    for (int k = 0; k < AREA; k++) {
        if (out != NULL) {
            out[k] = x[k];
        } else { /* the last stage has the loss */
            const double off = (double)(x[k] - target(op->micro, k));
            t->loss[t->step] += off * off / (AREA * t->line.shape.m);
        }
    }
}

static void backward(trainer *t, const pipeline_op *op, layer *l, const float *in, float *out)
{
    const float *x = t->kept + (op->slot * (t->per + 1) + t->per) * AREA;
    float d[AREA];
    for (int k = 0; k < AREA; k++) {
        d[k] = in != NULL ? in[k]
                          : 2 * (x[k] - target(op->micro, k)) / (float)(AREA * t->line.shape.m);
    }
    for (int j = t->per - 1; j >= 0; j--, x -= AREA) {
        layer_backward(&l[j], x - AREA, x, d);
    }
    if (out != NULL) {
        memcpy(out, d, sizeof d);
    }
}

/* Do one operation of the schedule. */
static dcomm_status work(void *user, const pipeline_op *op, const float *in, float *out)
{
    trainer *t = user;
    const pipeline_shape *s = &t->line.shape;
    const double start = now();
    layer *l = t->layers + pipeline_stage(s, dcomm_comm_rank(t->line.comm), op->chunk) * t->per;
    if (op->backward) {
        backward(t, op, l, in, out);
    } else {
        forward(t, op, l, in, out);
    }
    if (t->step == STEPS) {
        const long us = (op->backward ? BACKWARD_US : FORWARD_US) / s->v;
        nanosleep(&(struct timespec){.tv_nsec = us * 1000}, NULL);
    }
    t->busy += now() - start;
    return DCOMM_OK;
}

/* Train the model on comm's ranks, with m micro-batches a step. */
static dcomm_status train(trainer *t, dcomm_comm *comm, pipeline_kind kind, int nlayers, int m)
{
    const int p = dcomm_comm_size(comm), all = nlayers * WEIGHTS;
    const pipeline_shape shape = {kind, p, m, kind == PIPELINE_INTERLEAVED && p > 1 ? 2 : 1};
    *t = (trainer){.nlayers = nlayers, .per = nlayers / (p * shape.v)};
    t->line = (pipeline){.comm = comm, .shape = shape, .count = AREA, .work = work, .user = t};
    const int slots = pipeline_slots(&shape, dcomm_comm_rank(comm));
    t->layers = calloc((size_t)nlayers, sizeof(layer));
    t->kept = calloc((size_t)(slots * (t->per + 1)) * AREA, sizeof(float));
    if (t->layers == NULL || t->kept == NULL) {
        return DCOMM_ERR_NO_MEMORY;
    }
    for (int i = 0; i < all; i++) {
        t->layers[i / WEIGHTS].w[i % WEIGHTS] = noise(-1 - i / WEIGHTS, i % WEIGHTS);
    }
    dcomm_status s = DCOMM_OK;
    for (; t->step < STEPS && s >= 0; t->step++) {
        s = pipeline_run(&t->line);
        for (int i = 0; i < all; i++) {
            layer *l = &t->layers[i / WEIGHTS];
            l->w[i % WEIGHTS] -= l->grad[i % WEIGHTS];
            l->grad[i % WEIGHTS] = 0;
        }
    }
    /* Only the last stage has a loss; the others add zeros. */
    return s >= 0
               ? dcomm_allreduce(comm, DCOMM_IN_PLACE, t->loss, STEPS, DCOMM_F64, DCOMM_SUM, NULL)
               : s;
}

/* Take one more step with passes that sleep. Set *bubble to the share of time in which ranks
 * waited. */
static dcomm_status measure(trainer *t, double *bubble)
{
    t->busy = 0;
    dcomm_status s = dcomm_barrier(t->line.comm, NULL);
    const double start = now();
    s = s >= 0 ? pipeline_run(&t->line) : s;
    s = s >= 0 ? dcomm_barrier(t->line.comm, NULL) : s;
    double times[2] = {t->busy, now() - start};
    s = s >= 0 ? dcomm_allreduce(t->line.comm, DCOMM_IN_PLACE, times, 2, DCOMM_F64, DCOMM_SUM, NULL)
               : s;
    *bubble = 1 - times[0] / times[1];
    return s;
}

static void end(trainer *t)
{
    free(t->layers);
    free(t->kept);
}

/* Return true if the losses, and the weights of this rank's chunks, have the same bits as alone. */
static bool same(const trainer *t, const trainer *alone, int rank)
{
    bool equal = memcmp(t->loss, alone->loss, STEPS * sizeof *t->loss) == 0;
    for (int j = 0; j < t->nlayers; j++) {
        equal = equal && (j / t->per % t->line.shape.p != rank ||
                          memcmp(t->layers[j].w, alone->layers[j].w, sizeof t->layers[j].w) == 0);
    }
    return equal;
}

int main(void)
{
    static const char *const names[] = {"GPipe", "1F1B", "interleaved"};
    trainer alone = {.step = 0}, t = {.step = 0};
    dcomm_comm *comm = NULL, *self = NULL;
    int wrong = 0;
    dcomm_status s = dcomm_comm_create(NULL, &comm);
    const int rank = dcomm_comm_rank(comm), p = dcomm_comm_size(comm);
    s = s >= 0 ? dcomm_comm_split(comm, rank, 0, &self) : s;
    s = s >= 0 ? train(&alone, self, PIPELINE_1F1B, 2 * p, 4 * p) : s;
    for (int kind = PIPELINE_GPIPE; kind <= PIPELINE_INTERLEAVED && s >= 0; kind++) {
        double bubble = 0;
        s = train(&t, comm, (pipeline_kind)kind, alone.nlayers, alone.line.shape.m);
        s = s >= 0 ? measure(&t, &bubble) : s;
        const bool differ = s >= 0 && !same(&t, &alone, rank);
        wrong += differ;
        if (s >= 0 && (rank == 0 || differ)) {
            const pipeline_shape *shape = &t.line.shape;
            printf(
                "rank %d of %d, %-11s: loss %.5f to %.5f, %s bits as alone; bubble %.1f%%, by the "
                "formula %.1f%%; keeps activations of up to %g micro-batches\n",
                rank, p, names[kind], t.loss[0], t.loss[STEPS - 1], differ ? "not the" : "the same",
                100 * bubble, 100 * pipeline_bubble(shape),
                (double)pipeline_slots(shape, rank) / shape->v);
        }
        end(&t);
    }
    if (s < 0) {
        fprintf(stderr, "rank %d: %s\n", rank, dcomm_last_error());
    } else if (!(alone.loss[STEPS - 1] < 0.5 * alone.loss[0])) {
        fprintf(stderr, "rank %d: the loss did not fall: %g to %g\n", rank, alone.loss[0],
                alone.loss[STEPS - 1]);
        wrong++;
    }
    end(&alone);
    dcomm_comm_destroy(&self);
    dcomm_comm_destroy(&comm);
    return s < 0 ? 3 : wrong > 0;
}
