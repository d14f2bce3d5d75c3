/* 07_sharded.c - each rank updates its shard of the parameters and keeps momentum only for that
 * shard (ZeRO, stage 2). Then all ranks get the other shards from their owners. */
#include "dcomm.h"

#include <stdio.h>

enum { LAYERS = 4, COUNT = 5000, STEPS = 3 };
static float value[LAYERS][COUNT], grad[LAYERS][COUNT], momentum[LAYERS][COUNT];

static void backward(int layer, int rank)
{
    for (int i = 0; i < COUNT; i++) {
        grad[layer][i] = (float)(i % 50 + layer + rank);
    }
}

/* Update the elements of a layer that this rank owns. */
static dcomm_status update(dcomm_buckets *b, int layer)
{
    size_t first, count;
    dcomm_status status = dcomm_param_get_owned(b, (size_t)layer, &first, &count);
    for (size_t i = first; status >= 0 && i < first + count; i++) {
        momentum[layer][i] = 0.5f * momentum[layer][i] + grad[layer][i];
        value[layer][i] -= momentum[layer][i];
    }
    return status;
}

int main(void)
{
    dcomm_comm *comm = NULL;
    dcomm_buckets *b = NULL;
    dcomm_bucket_param params[LAYERS] = {{.count = 0}};
    dcomm_buckets_opts opts = {.bucket_bytes = 50000, .sharded = true};
    for (int l = 0; l < LAYERS; l++) {
        params[l].grad = grad[l];
        params[l].value = value[l];
        params[l].count = COUNT;
        params[l].dtype = DCOMM_F32;
    }
    dcomm_status status = dcomm_comm_create(NULL, &comm);
    if (status >= 0) {
        status = dcomm_buckets_create(comm, params, LAYERS, &opts, &b);
    }
    int rank = dcomm_comm_rank(comm), size = dcomm_comm_size(comm);
    for (int step = 0; step < STEPS && status >= 0; step++) {
        for (int l = LAYERS - 1; l >= 0 && status >= 0; l--) {
            backward(l, rank);
            status = dcomm_param_mark_ready(b, (size_t)l, NULL);
        }
        status = status >= 0 ? dcomm_buckets_wait(b) : status;
        for (int l = 0; l < LAYERS && status >= 0; l++) {
            status = update(b, l);
        }
        status = status >= 0 ? dcomm_buckets_gather(b) : status;
    }
    int wrong = 0;
    for (int i = 0; i < LAYERS * COUNT && status >= 0; i++) {
        float mean = (float)(i % COUNT % 50 + i / COUNT) + (float)(size - 1) / 2;
        float off = value[i / COUNT][i % COUNT] + mean * (1 + 1.5f + 1.75f); /* after 3 steps */
        wrong += off > 1e-2f || off < -1e-2f;
    }
    if (status < 0) {
        fprintf(stderr, "rank %d: %s\n", rank, dcomm_last_error());
    } else {
        printf("rank %d of %d: %d wrong parameters\n", rank, size, wrong);
    }
    dcomm_buckets_destroy(&b);
    dcomm_comm_destroy(&comm);
    return status < 0 ? 3 : wrong > 0;
}
