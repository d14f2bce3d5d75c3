/* pipeline_run.h - run a schedule (pipeline_schedule.h): the stages of a pipeline hand activations
 * up and gradients down by dcomm_isend and dcomm_irecv. */
#ifndef PIPELINE_RUN_H
#define PIPELINE_RUN_H

#include "dcomm.h"
#include "pipeline_schedule.h"

#include <stdlib.h>

/* The work of one operation: `in` is what came from the stage before it in its direction (NULL: it
 * is the first), and `out` takes what the stage after it gets (NULL: it is the last). */
typedef dcomm_status (*pipeline_work)(void *user, const pipeline_op *op, const float *in,
                                      float *out);

typedef struct pipeline {
    dcomm_comm *comm;
    pipeline_shape shape; /* of dcomm_comm_size(comm) ranks */
    size_t count;         /* floats that a stage hands on */
    pipeline_work work;
    void *user;
} pipeline;

/* Return the rank that an operation's input comes from (step -1) or its result goes to (step 1), or
 * -1 at the end of the pipeline. */
static inline int pipeline_peer(const pipeline *l, const pipeline_op *op, int step)
{
    const int p = l->shape.p, rank = dcomm_comm_rank(l->comm), way = op->backward ? -step : step;
    const int stage = pipeline_stage(&l->shape, rank, op->chunk) + way;
    return stage < 0 || stage == p * l->shape.v ? -1 : stage % p;
}

/* Start to receive an operation's input, if it has one. */
static inline dcomm_status pipeline_receive(const pipeline *l, const pipeline_op *op, float *into,
                                            dcomm_request **request)
{
    const int from = pipeline_peer(l, op, -1);
    return from < 0 ? DCOMM_OK
                    : dcomm_irecv(l->comm, into, l->count, DCOMM_F32, from, NULL, request);
}

/* Take one batch through the pipeline. The next input is received while an operation works. Results
 * wait in an outbox until their receivers have taken them, so no rank waits for a send and the
 * ranks cannot block each other. */
static inline dcomm_status pipeline_run(const pipeline *l)
{
    const int n = pipeline_ops(&l->shape);
    pipeline_op *ops = calloc((size_t)n, sizeof *ops);
    dcomm_request **sent = calloc((size_t)n, sizeof(dcomm_request *)), *received[2] = {NULL, NULL};
    float *box = malloc(((size_t)n + 2) * l->count * sizeof *box); /* 2 to receive, n to send */
    dcomm_status status =
        ops != NULL && sent != NULL && box != NULL ? DCOMM_OK : DCOMM_ERR_NO_MEMORY;
    if (status >= 0) {
        pipeline_schedule(&l->shape, dcomm_comm_rank(l->comm), ops);
        status = pipeline_receive(l, &ops[0], box, &received[0]);
    }
    for (int k = 0; k < n && status >= 0; k++) {
        float *in = box + (size_t)(k % 2) * l->count, *out = box + (size_t)(k + 2) * l->count;
        const int from = pipeline_peer(l, &ops[k], -1), to = pipeline_peer(l, &ops[k], 1);
        if (k + 1 < n) {
            status = pipeline_receive(l, &ops[k + 1], box + (size_t)((k + 1) % 2) * l->count,
                                      &received[(k + 1) % 2]);
        }
        status = status >= 0 ? dcomm_wait(&received[k % 2]) : status;
        status = status >= 0
                     ? l->work(l->user, &ops[k], from >= 0 ? in : NULL, to >= 0 ? out : NULL)
                     : status;
        if (status >= 0 && to >= 0) {
            status = dcomm_isend(l->comm, out, l->count, DCOMM_F32, to, NULL, &sent[k]);
        }
    }
    if (status < 0) { /* the buffers may still be in use: leave them to the process's end */
        return status;
    }
    status = dcomm_wait_all(sent, (size_t)n);
    if (status >= 0) {
        free(box);
        free(sent);
        free(ops);
    }
    return status;
}

#endif
