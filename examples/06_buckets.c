/* 06_buckets.c - average gradients while backward goes on. */
#include "dcomm.h"

#include <stdio.h>

enum { LAYERS = 6, COUNT = 50000 };
static float grad[LAYERS][COUNT];

/* Compute gradients, in place of the backward pass of a layer. */
static void backward(int layer, int rank)
{
    for (int i = 0; i < COUNT; i++) {
        grad[layer][i] = (float)((i + layer) % 50 + rank);
    }
}

int main(void)
{
    dcomm_comm *comm = NULL;
    dcomm_buckets *b = NULL;
    dcomm_bucket_param params[LAYERS];
    dcomm_buckets_opts opts = {.bucket_bytes = 500000, .first_bytes = 200000};
    for (int l = 0; l < LAYERS; l++) {
        params[l] = (dcomm_bucket_param){.grad = grad[l], .count = COUNT, .dtype = DCOMM_F32};
    }
    dcomm_status status = dcomm_comm_create(NULL, &comm);
    if (status >= 0) {
        status = dcomm_buckets_create(comm, params, LAYERS, &opts, &b);
    }
    int wrong = 0, rank = dcomm_comm_rank(comm), size = dcomm_comm_size(comm);
    for (int step = 0; step < 3 && status >= 0; step++) {
        for (int l = LAYERS - 1; l >= 0 && status >= 0; l--) {
            backward(l, rank);
            status = dcomm_param_mark_ready(b, (size_t)l, NULL);
            dcomm_buckets_progress(b); /* alternative: open the context with a progress thread */
        }
        if (status >= 0) {
            status = dcomm_buckets_wait(b);
        }
        float off = grad[2][7] - (float)(9 + (size - 1) / 2.0);
        wrong += status >= 0 && (off > 1e-4f || off < -1e-4f); /* then: the optimizer's step */
    }
    if (status < 0) {
        fprintf(stderr, "rank %d: %s\n", rank, dcomm_last_error());
    } else {
        printf("rank %d of %d: 3 steps, %d wrong\n", rank, size, wrong);
    }
    dcomm_buckets_destroy(&b);
    dcomm_comm_destroy(&comm);
    return status < 0 ? 3 : wrong > 0;
}
