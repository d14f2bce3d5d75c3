/* pipeline_schedule.h - the order in which a stage of a pipeline works: GPipe, 1F1B and interleaved
 * 1F1B. It knows neither communication nor a clock.
 *
 * A model is cut into p * v virtual stages. Rank r has v of them, its chunks: chunk c is virtual
 * stage c * p + r. A batch is cut into m micro-batches. Each passes forward through all virtual
 * stages, then backward. Three stages, four micro-batches, a letter for each forward pass (F) and
 * backward pass (B), unit times:
 *
 *     GPipe  rank 0  F0 F1 F2 F3  .  .  .  . B0 B1 B2 B3      bubble (p-1)/(m+p-1) = 4/12
 *            rank 1   . F0 F1 F2 F3  .  . B0 B1 B2 B3  .
 *            rank 2   .  . F0 F1 F2 F3 B0 B1 B2 B3  .  .
 *
 *     1F1B   rank 0  F0 F1 F2  .  . B0 F3 B1  . B2  . B3      the same bubble, but rank r keeps the
 *            rank 1   . F0 F1  . B0 F2 B1 F3 B2  . B3  .      activations of p - r micro-batches,
 *            rank 2   .  . F0 B0 F1 B1 F2 B2 F3 B3  .  .      not of m
 *
 * Interleaved: the ranks take turns v times as often, and the bubble is (p-1)/(vm+p-1).
 *
 * GPipe: Huang and others, NeurIPS 2019. 1F1B: Narayanan and others, PipeDream, SOSP 2019, here
 * with a flush after each batch. Interleaved: Narayanan and others, "Efficient Large-Scale Language
 * Model Training on GPU Clusters", SC 2021. All passes go through the micro-batches in ascending
 * order, so gradients are added in the same order in every schedule. And what a rank receives from
 * another comes in the order in which that one sends it, activations and gradients together, so
 * messages need no tags. */
#ifndef PIPELINE_SCHEDULE_H
#define PIPELINE_SCHEDULE_H

#include <stdbool.h>

typedef enum pipeline_kind {
    PIPELINE_GPIPE,
    PIPELINE_1F1B,
    PIPELINE_INTERLEAVED /* with v = 1 it is 1F1B */
} pipeline_kind;

typedef struct pipeline_shape {
    pipeline_kind kind;
    int p; /* ranks */
    int m; /* micro-batches; with v > 1 a multiple of p */
    int v; /* chunks of each rank; more than 1 only if interleaved */
} pipeline_shape;

/* One pass of one micro-batch through one chunk. */
typedef struct pipeline_op {
    bool backward;
    int micro; /* 0 to m - 1 */
    int chunk; /* 0 to v - 1 */
    int slot;  /* room for the activations that forward leaves and backward uses */
} pipeline_op;

/* Return true if the numbers fit each other. */
static inline bool pipeline_valid(const pipeline_shape *s)
{
    return s->p >= 1 && s->m >= 1 && s->v >= 1 &&
           (s->v == 1 || (s->kind == PIPELINE_INTERLEAVED && s->m % s->p == 0));
}

/* Return the number of operations of each rank. */
static inline int pipeline_ops(const pipeline_shape *s)
{
    return 2 * s->m * s->v;
}

/* Return the virtual stage of a rank's chunk. */
static inline int pipeline_stage(const pipeline_shape *s, int rank, int chunk)
{
    return chunk * s->p + rank;
}

/* Return the forward passes of a rank that come before the one that its first backward pass
 * follows. */
static inline int pipeline_warmup(const pipeline_shape *s, int rank)
{
    const int total = s->m * s->v, below = s->p - 1 - rank;
    const int warmup = s->kind == PIPELINE_GPIPE ? total
                       : s->v == 1               ? below
                                                 : 2 * below + (s->v - 1) * s->p;
    return warmup < total ? warmup : total;
}

/* Return the most activations that a rank keeps at once, each of one micro-batch and chunk. */
static inline int pipeline_slots(const pipeline_shape *s, int rank)
{
    const int total = s->m * s->v, warmup = pipeline_warmup(s, rank);
    return warmup < total ? warmup + 1 : total;
}

/* Return the share of the time in which a rank waits, if all passes of a kind take equally long. */
static inline double pipeline_bubble(const pipeline_shape *s)
{
    return (double)(s->p - 1) / (double)(s->v * s->m + s->p - 1);
}

/* Return a rank's k-th pass of a direction. The chunks take turns, p micro-batches each; backward,
 * the last chunk comes first. */
static inline pipeline_op pipeline_pass(const pipeline_shape *s, bool backward, int k)
{
    const int turn = k / s->p, chunk = turn % s->v;
    return (pipeline_op){.backward = backward,
                         .micro = turn / s->v * s->p + k % s->p,
                         .chunk = backward ? s->v - 1 - chunk : chunk};
}

/* Write the operations of a rank, in order, to ops[0..pipeline_ops(s)): forward passes to warm up,
 * then one forward and one backward pass in turn, then the backward passes that are left. The shape
 * must be valid. */
static inline void pipeline_schedule(const pipeline_shape *s, int rank, pipeline_op *ops)
{
    const int total = s->m * s->v, warmup = pipeline_warmup(s, rank);
    for (int k = 0, n = 0; k < total + warmup; k++) {
        if (k < total) {
            ops[n] = pipeline_pass(s, false, k);
            /* After the warm-up, a forward pass takes the room that the backward pass before it has
             * left. */
            ops[n].slot = k <= warmup ? k : ops[n - 1].slot;
            n++;
        }
        if (k >= warmup) {
            ops[n] = pipeline_pass(s, true, k - warmup);
            /* Its forward pass was the j-th. */
            const int turn = ops[n].micro / s->p * s->v + ops[n].chunk;
            const int j = turn * s->p + ops[n].micro % s->p;
            ops[n].slot = ops[j < warmup ? j : 2 * j - warmup].slot;
            n++;
        }
    }
}

#endif
