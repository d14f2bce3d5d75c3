/* exchange.c - the sum of the gradients over all ranks: exact, or through a codec with error
 * feedback. */
#define _GNU_SOURCE
#include "exchange.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SPEC = 256 };

static dcomm_status open_part(exchange_part *part, const options *o, const char *spec,
                              uint32_t tensor)
{
    if (o->codec == NULL) {
        return DCOMM_OK;
    }
    dcomm_status status = dcomm_codec_create(spec, &part->codec);
    if (status == DCOMM_OK && o->feedback != NULL) {
        /* The optimizer has momentum; DGC's own would come on top of it. */
        dcomm_feedback_opts opts = {.momentum = -1,
                                    .warmup_steps = (uint64_t)o->warmup,
                                    .variant =
                                        strcmp(o->feedback, "ef21") == 0  ? DCOMM_FEEDBACK_EF21
                                        : strcmp(o->feedback, "dgc") == 0 ? DCOMM_FEEDBACK_DGC
                                                                          : DCOMM_FEEDBACK_CLASSIC,
                                    .scale = true,
                                    .seed = (uint64_t)o->seed,
                                    .tensor = tensor};
        status = dcomm_feedback_create(part->codec, part->count, &opts, &part->feedback);
    }
    return status;
}

/* PowerSGD wants each weight matrix by itself, and a share of each matrix is better than one of all
 * gradients; to other codecs, these are one array. */
static dcomm_status open_parts(exchange *e, const options *o, const model *m)
{
    bool powersgd = o->codec != NULL && strncmp(o->codec, "powersgd", 8) == 0;
    bool matrices = powersgd || (o->codec != NULL && o->frozen);
    size_t n = matrices ? model_tensors(m) : 1;
    e->parts = calloc(n, sizeof *e->parts);
    if (e->parts == NULL) {
        return DCOMM_ERR_NO_MEMORY;
    }
    e->nparts = n;
    for (size_t i = 0; i < n; i++) {
        char spec[SPEC];
        size_t rows = 0;
        exchange_part *part = &e->parts[i];
        part->count = e->count;
        snprintf(spec, sizeof spec, "%s", o->codec != NULL ? o->codec : "");
        if (matrices) {
            model_tensor(m, i, &part->first, &part->count, &rows);
        }
        if (powersgd) {
            snprintf(spec, sizeof spec, "%s%srows=%zu", o->codec,
                     strchr(o->codec, ':') != NULL ? "," : ":", rows);
        }
        dcomm_status status = open_part(part, o, spec, (uint32_t)i);
        if (status != DCOMM_OK) {
            return status;
        }
    }
    return DCOMM_OK;
}

dcomm_status exchange_open(exchange *e, dcomm_comm *comm, const options *o, const model *m)
{
    *e = (exchange){.comm = comm,
                    .coll = {.algo = o->algo,
                             .deterministic = o->deterministic,
                             .codec_seed = (uint64_t)o->seed},
                    .count = model_count(m)};
    dcomm_status status = open_parts(e, o, m);
    if (status != DCOMM_OK) {
        exchange_close(e);
    }
    return status;
}

void exchange_close(exchange *e)
{
    for (size_t i = 0; i < e->nparts; i++) {
        dcomm_feedback_destroy(&e->parts[i].feedback);
        dcomm_codec_destroy(&e->parts[i].codec);
    }
    free(e->parts);
    e->parts = NULL;
    e->nparts = 0;
}

dcomm_status exchange_sum(exchange *e, float *gradients, bool exactly)
{
    dcomm_coll_opts exact = e->coll;
    bool coded = e->parts[0].codec != NULL;
    if (!coded || exactly) {
        exact.algo = coded ? NULL : e->coll.algo; /* it may be one for codecs */
        return dcomm_allreduce(e->comm, DCOMM_IN_PLACE, gradients, e->count + 1, DCOMM_F32,
                               DCOMM_SUM, &exact);
    }
    for (size_t i = 0; i < e->nparts; i++) {
        exchange_part *part = &e->parts[i];
        dcomm_coll_opts coll = e->coll;
        coll.codec = part->codec;
        coll.feedback = part->feedback;
        dcomm_status status = dcomm_allreduce(e->comm, DCOMM_IN_PLACE, gradients + part->first,
                                              part->count, DCOMM_F32, DCOMM_SUM, &coll);
        if (status < 0) {
            return status;
        }
    }
    exact.algo = NULL;
    return dcomm_allreduce(e->comm, DCOMM_IN_PLACE, gradients + e->count, 1, DCOMM_F32, DCOMM_SUM,
                           &exact);
}

dcomm_status exchange_explain(const exchange *e, const char **algo)
{
    const exchange_part *longest = &e->parts[0];
    for (size_t i = 1; i < e->nparts; i++) {
        longest = e->parts[i].count > longest->count ? &e->parts[i] : longest;
    }
    dcomm_coll_opts coll = e->coll;
    coll.codec = longest->codec;
    coll.feedback = longest->feedback;
    size_t count = longest->codec == NULL ? longest->count + 1 : longest->count;
    return dcomm_explain(e->comm, DCOMM_COLL_ALLREDUCE, count, DCOMM_F32, DCOMM_SUM, &coll, algo);
}
