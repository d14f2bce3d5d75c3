/* exchange.c - sum the gradients over all ranks, exactly or through a codec with error
 * feedback. */
#define _GNU_SOURCE
#include "exchange.h"
#include "narrow.h"
#include "noise.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { SPEC = 256, NAME = 32 };

/* Return the options of error feedback. DGC gets no momentum of its own, because the optimizer has
 * momentum. */
static dcomm_feedback_opts feedback_of(const options *o, uint32_t tensor)
{
    return (dcomm_feedback_opts){.momentum = -1,
                                 .warmup_steps = (uint64_t)o->warmup,
                                 .variant = strcmp(o->feedback, "ef21") == 0 ? DCOMM_FEEDBACK_EF21
                                            : strcmp(o->feedback, "dgc") == 0
                                                ? DCOMM_FEEDBACK_DGC
                                                : DCOMM_FEEDBACK_CLASSIC,
                                 .scale = true,
                                 .seed = (uint64_t)o->seed,
                                 .tensor = tensor};
}

static bool is_powersgd(const options *o)
{
    return o->codec != NULL && strncmp(o->codec, "powersgd", 8) == 0;
}

/* Write the codec's spec for a matrix of `rows` rows. */
static void spec_of(const options *o, size_t rows, char spec[SPEC])
{
    if (is_powersgd(o)) {
        snprintf(spec, SPEC, "%s%srows=%zu", o->codec, strchr(o->codec, ':') != NULL ? "," : ":",
                 rows);
    } else {
        snprintf(spec, SPEC, "%s", o->codec != NULL ? o->codec : "none");
    }
}

static dcomm_status open_part(exchange_part *part, const options *o, const char *spec,
                              uint32_t tensor)
{
    if (o->codec == NULL) {
        return DCOMM_OK;
    }
    dcomm_status status = dcomm_codec_create(spec, &part->codec);
    if (status == DCOMM_OK && o->feedback != NULL) {
        dcomm_feedback_opts opts = feedback_of(o, tensor);
        status = dcomm_feedback_create(part->codec, part->count, &opts, &part->feedback);
    }
    return status;
}

/* Cut the gradients into parts. PowerSGD needs each weight matrix by itself. With the frozen
 * optimizer, other codecs also work better on single matrices than on all gradients. Otherwise all
 * gradients are one part. */
static dcomm_status open_parts(exchange *e, const options *o, const model *m)
{
    bool matrices = is_powersgd(o) || (o->codec != NULL && o->frozen);
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
        if (matrices) {
            model_tensor(m, i, &part->first, &part->count, &rows);
        }
        spec_of(o, rows, spec);
        dcomm_status status = open_part(part, o, spec, (uint32_t)i);
        if (status != DCOMM_OK) {
            return status;
        }
    }
    return DCOMM_OK;
}

/* Create the buckets. Register the tensors one by one, and then the element that is summed
 * exactly. The gradients lie one behind another, so nothing is copied. */
static dcomm_status open_buckets(exchange *e, const options *o, model *m)
{
    size_t n = model_tensors(m);
    dcomm_bucket_param *params = calloc(n + 1, sizeof *params);
    char(*specs)[SPEC] = calloc(n, sizeof *specs), (*names)[NAME] = calloc(n, sizeof *names);
    dcomm_feedback_opts feedback = {0};
    dcomm_buckets_opts opts = {.bucket_bytes = (size_t)o->buckets << 10,
                               .sum = true,
                               .coll = e->coll,
                               .trace_steps = o->trace != NULL ? 5 : 0};
    if (e->dtype != DCOMM_F32) {
        e->narrow = calloc(e->count, sizeof *e->narrow);
    }
    bool room = params != NULL && specs != NULL && names != NULL &&
                (e->dtype == DCOMM_F32 || e->narrow != NULL);
    dcomm_status status = room ? DCOMM_OK : DCOMM_ERR_NO_MEMORY;
    for (size_t i = 0; i < n && status == DCOMM_OK; i++) {
        size_t first, rows;
        params[i].dtype = e->dtype;
        model_tensor(m, i, &first, &params[i].count, &rows);
        params[i].grad = model_gradients(m) + first;
        if (e->narrow != NULL) {
            params[i].grad = e->narrow + first;
        }
        model_tensor_name(m, i, names[i], NAME);
        params[i].name = names[i];
        spec_of(o, rows, specs[i]);
        params[i].codec = specs[i];
    }
    if (status == DCOMM_OK) {
        params[n] = (dcomm_bucket_param){.name = "loss",
                                         .grad = model_gradients(m) + e->count,
                                         .count = 1,
                                         .dtype = DCOMM_F32,
                                         .codec = "none",
                                         .aside = true};
        if (o->feedback != NULL) {
            feedback = feedback_of(o, 0);
            opts.feedback = &feedback;
        }
        status = dcomm_buckets_create(e->comm, params, n + 1, &opts, &e->buckets);
    }
    if (status == DCOMM_OK && o->loss_scale > 0) {
        dcomm_scaler_opts scaling = {.scale = (double)o->loss_scale,
                                     .interval = (uint64_t)o->scale_interval,
                                     .clip = (double)o->clip,
                                     .leave = e->narrow != NULL};
        status = dcomm_scaler_create(e->buckets, &scaling, &e->scaler);
    }
    if (status == DCOMM_OK && o->report) {
        status = dcomm_buckets_calibrate(e->buckets, 5);
    }
    if (status == DCOMM_OK) {
        status = dcomm_comm_get_stats(dcomm_buckets_comm(e->buckets), &e->before);
    }
    free(params);
    free(specs);
    free(names);
    return status;
}

dcomm_status exchange_open(exchange *e, dcomm_comm *comm, const options *o, model *m)
{
    *e = (exchange){.comm = comm,
                    .coll = {.algo = o->algo,
                             .deterministic = o->deterministic,
                             .codec_seed = (uint64_t)o->seed},
                    .count = model_count(m),
                    .model = m,
                    .dtype = o->grad_dtype,
                    .measures = o->noise_scale};
    if (e->dtype != DCOMM_F32 && o->algo == NULL && o->codec == NULL) {
        e->coll.accumulate = DCOMM_F32; /* round once, whatever the number of ranks */
    }
    dcomm_status status = o->buckets > 0 ? open_buckets(e, o, m) : open_parts(e, o, m);
    if (status != DCOMM_OK) {
        exchange_close(e);
    }
    return status;
}

void exchange_close(exchange *e)
{
    dcomm_scaler_destroy(&e->scaler);
    dcomm_buckets_destroy(&e->buckets);
    for (size_t i = 0; i < e->nparts; i++) {
        dcomm_feedback_destroy(&e->parts[i].feedback);
        dcomm_codec_destroy(&e->parts[i].codec);
    }
    free(e->narrow);
    e->narrow = NULL;
    free(e->parts);
    e->parts = NULL;
    e->nparts = 0;
    e->comm = NULL;
}

dcomm_status exchange_move(exchange *e, dcomm_comm *comm, const options *o, model *m)
{
    if (e->buckets == NULL) {
        exchange_close(e);
        return exchange_open(e, comm, o, m);
    }
    dcomm_status status = dcomm_comm_get_stats(dcomm_buckets_comm(e->buckets), &e->before);
    if (status >= 0) {
        status = dcomm_buckets_rebind(e->buckets, comm);
    }
    if (status >= 0) {
        e->comm = comm;
        e->before = (dcomm_stats){0};
    }
    e->status = DCOMM_OK;
    return status;
}

dcomm_status exchange_sum(exchange *e, float *gradients, bool exactly)
{
    dcomm_coll_opts exact = e->coll;
    bool coded = e->parts[0].codec != NULL;
    if (!coded || exactly) {
        exact.algo = coded ? NULL : e->coll.algo; /* e->coll.algo may be an algorithm for codecs */
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

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

void exchange_ready(void *user, size_t tensor)
{
    exchange *e = user;
    double start = now();
    if (e->spoiled != NULL && tensor == e->spoils) {
        *e->spoiled = INFINITY;
        e->spoiled = NULL;
    }
    if (tensor < model_tensors(e->model)) {
        size_t first, count, rows;
        model_tensor(e->model, tensor, &first, &count, &rows);
        const float *gradient = model_gradients(e->model) + first;
        if (e->measures) {
            e->square += noise_square(gradient, count);
        }
        if (e->narrow != NULL) {
            narrow_from(e->dtype, gradient, count, e->narrow + first);
        }
    }
    dcomm_status status = dcomm_param_mark_ready(e->buckets, tensor, NULL);
    e->status = e->status < 0 ? e->status : status;
    e->seconds += now() - start;
    exchange_pause(e);
}

void exchange_pause(void *user)
{
    exchange *e = user;
    double start = now();
    if (e->status >= 0) {
        e->status = dcomm_buckets_progress(e->buckets);
    }
    e->seconds += now() - start;
}

dcomm_status exchange_finish(exchange *e)
{
    return e->status < 0 ? e->status : dcomm_buckets_wait(e->buckets);
}

dcomm_status exchange_judge(exchange *e, dcomm_scaler_verdict *verdict)
{
    dcomm_status status = DCOMM_OK;
    *verdict = (dcomm_scaler_verdict){.factor = 1};
    if (e->scaler != NULL) {
        status = dcomm_scaler_step(e->scaler, verdict);
    }
    if (e->narrow != NULL && status >= 0 && !verdict->skip) {
        narrow_to(e->dtype, e->narrow, e->count, (float)verdict->factor, model_gradients(e->model));
    }
    return status;
}

dcomm_status exchange_stats(const exchange *e, dcomm_stats *stats)
{
    *stats = (dcomm_stats){0};
    if (e->buckets == NULL) {
        return DCOMM_OK;
    }
    dcomm_status status = dcomm_comm_get_stats(dcomm_buckets_comm(e->buckets), stats);
    stats->bytes_sent -= e->before.bytes_sent;
    stats->bytes_read -= e->before.bytes_read;
    stats->codec_ns -= e->before.codec_ns;
    return status;
}

dcomm_status exchange_report(const exchange *e, dcomm_buckets_report *report)
{
    return dcomm_buckets_get_report(e->buckets, report);
}

/* Get the algorithm that sums `count` gradients. */
static dcomm_status explain_sum(dcomm_comm *comm, size_t count, dcomm_dtype dtype,
                                const dcomm_coll_opts *opts, const char **algo)
{
    dcomm_explanation why = {
        .coll = DCOMM_COLL_ALLREDUCE, .count = count, .dtype = dtype, .opts = opts};
    dcomm_status status = dcomm_comm_explain(comm, &why);
    *algo = why.algo;
    return status;
}

/* Get the algorithm that sums the largest bucket. */
static dcomm_status explain_buckets(const exchange *e, const char **algo)
{
    dcomm_buckets_info all;
    dcomm_bucket_info largest = {0}, info;
    dcomm_coll_opts coll = e->coll;
    dcomm_codec *codec = NULL;
    dcomm_status status = dcomm_buckets_get_info(e->buckets, &all);
    for (size_t k = 0; k < all.nbuckets && status >= 0; k++) {
        status = dcomm_bucket_get_info(e->buckets, k, &info);
        largest = info.count > largest.count ? info : largest;
    }
    if (status >= 0 && largest.codec != NULL) {
        status = dcomm_codec_create(largest.codec, &codec);
    }
    coll.codec = codec;
    if (status >= 0) {
        status =
            explain_sum(dcomm_buckets_comm(e->buckets), largest.count, largest.dtype, &coll, algo);
    }
    dcomm_codec_destroy(&codec);
    return status;
}

dcomm_status exchange_explain(const exchange *e, const char **algo)
{
    if (e->buckets != NULL) {
        return explain_buckets(e, algo);
    }
    const exchange_part *longest = &e->parts[0];
    for (size_t i = 1; i < e->nparts; i++) {
        longest = e->parts[i].count > longest->count ? &e->parts[i] : longest;
    }
    dcomm_coll_opts coll = e->coll;
    coll.codec = longest->codec;
    coll.feedback = longest->feedback;
    size_t count = longest->codec == NULL ? longest->count + 1 : longest->count;
    return explain_sum(e->comm, count, e->dtype, &coll, algo);
}
