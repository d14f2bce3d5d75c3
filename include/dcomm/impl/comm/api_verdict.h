/* api_verdict.h - the verdict on a codec: its measured times and the priced network, compared with
 * exact all-reduces of the call's dtype and of bf16. */
#ifndef DCOMMI_API_VERDICT_H
#define DCOMMI_API_VERDICT_H

#include "../model/api_model.h"
#include "verdict_device.h"

#define DCOMMI_VERDICT_COUNT ((size_t)1 << 20) /* most elements measured; more are scaled up */

/* Fill `x` with values like a gradient's: no two are alike, and most are small. */
static void dcommi_verdict_fill(float *x, size_t count)
{
    uint64_t h = 1;
    for (size_t i = 0; i < count; i++) {
        h = dcommi_mix(h, i);
        float u = (float)(int32_t)(uint32_t)h * 0x1p-31f;
        x[i] = u * u * u;
    }
}

static dcomm_status dcommi_verdict_time(const dcomm_codec *codec, dcommi_verdict_work *w)
{
    for (int i = 0; i < DCOMMI_VERDICT_TIMES; i++) {
        double start = dcommi_now();
        DCOMMI_TRY(dcomm_encode(codec, w->x, w->count, NULL, w->wire, w->capacity, &w->bytes,
                                w->workspace, NULL));
        double middle = dcommi_now();
        DCOMMI_TRY(dcomm_decode_add(codec, w->wire, w->bytes, w->y, w->count));
        double end = dcommi_now();
        w->encode = i == 0 || middle - start < w->encode ? middle - start : w->encode;
        w->decode = i == 0 || end - middle < w->decode ? end - middle : w->decode;
    }
    return DCOMM_OK;
}

/* Time the codec on arrays of random numbers, on `device` or, if that is negative, in host
 * memory. */
static dcomm_status dcommi_verdict_arrays(const dcomm_codec *codec, int device,
                                          dcommi_verdict_work *w)
{
    size_t workspace = dcomm_codec_workspace_bytes(codec, w->count);
    w->capacity = dcomm_codec_max_bytes(codec, w->count);
    w->x = dcommi_alloc(w->count * sizeof(float));
    w->y = dcommi_alloc(w->count * sizeof(float));
    w->wire = dcommi_alloc(w->capacity + 1);
    w->workspace = dcommi_alloc(workspace + 1);
    dcomm_status status = DCOMM_ERR_NO_MEMORY;
    if (w->x != NULL && w->y != NULL && w->wire != NULL && w->workspace != NULL) {
        dcommi_verdict_fill(w->x, w->count);
        status = device < 0 ? dcommi_verdict_time(codec, w)
                            : dcommi_verdict_time_there(codec, device, w);
    }
    dcommi_free(w->x);
    dcommi_free(w->y);
    dcommi_free(w->wire);
    dcommi_free(w->workspace);
    return status;
}

/* Time the codec on at most DCOMMI_VERDICT_COUNT elements. A codec that keeps k of `count`
 * elements keeps the same share of those measured. */
static dcomm_status dcommi_verdict_measure(const dcomm_codec *codec, size_t count, int device,
                                           dcommi_verdict_work *w)
{
    const double k = dcommi_codec_k(codec);
    if (dcomm_codec_max_bytes(codec, count) == SIZE_MAX) {
        return dcommi_fail(DCOMM_ERR_UNSUPPORTED, "%zu elements may take any number of bytes",
                           count);
    }
    w->count = count < DCOMMI_VERDICT_COUNT ? count : DCOMMI_VERDICT_COUNT;
    if (k < 1 || w->count == count) {
        return dcommi_verdict_arrays(codec, device, w);
    }
    dcomm_codec *share;
    const double all = (double)(count - 1); /* a share of 1 would mean one element */
    DCOMMI_TRY(dcommi_codec_with_k(codec, dcommi_f64_min(k, all) / (double)count, &share));
    dcomm_status status = dcommi_verdict_arrays(share, device, w);
    dcomm_codec_destroy(&share);
    return status;
}

/* Price the algorithm that would run, in seconds. The caller holds comm->lock. */
static dcomm_status dcommi_verdict_price(dcomm_comm *comm, const dcommi_shape *s, double *seconds,
                                         const char **algo_p)
{
    const dcommi_algo *algo = NULL;
    dcommi_price price = {.ps = 0};
    DCOMMI_TRY(dcommi_algo_pick(s, NULL, true, comm->chooser, &algo));
    if (s->nranks > 1) {
        DCOMMI_TRY(dcommi_choice_price(comm->chooser, s, algo, DCOMMI_PRICE_LIMIT,
                                       DCOMMI_CHOICE_BUDGET, &price));
    }
    *seconds = 1e-12 * (double)price.ps;
    *algo_p = algo->name;
    return DCOMM_OK;
}

/* Return the device on which such calls encode: the current one, or -1 for host memory. */
static int dcommi_verdict_device(const dcommi_shape *s)
{
    return dcommi_devices != NULL && dcommi_memory_of_device(s->memory) ? dcommi_devices->current()
                                                                        : -1;
}

/* Return a codec's time divided by that of a copy, in 1/1024. No codec reaches the upper bound of
 * 1024 copies. */
static uint32_t dcommi_verdict_cost(double seconds, double copy)
{
    return (uint32_t)dcommi_f64_min(1048576, dcommi_f64_max(1, 1024 * seconds / copy));
}

/* Fill in all of *v but its text: the codec's times, and the prices of the call as it is, in bf16,
 * and compressed. The caller does not hold comm->lock. */
static dcomm_status dcommi_verdict_of(dcomm_comm *comm, const dcomm_codec *codec,
                                      const dcommi_shape *call, dcomm_verdict *v)
{
    dcomm_coll_opts opts = {.codec = codec};
    dcommi_shape s = *call;
    dcommi_coding coding;
    const char *algo;
    memset(v, 0, sizeof *v);
    v->device = dcommi_verdict_device(&s);
    DCOMMI_TRY(dcommi_coding_of(&opts, s.count, &coding));
    dcommi_verdict_work w = {0};
    DCOMMI_TRY(dcommi_verdict_measure(codec, s.count, v->device, &w));
    double scale = (double)s.count / (double)w.count;
    v->encode_seconds = w.encode * scale;
    v->decode_seconds = w.decode * scale;
    /* Not every wire format grows linearly with the count. Assume that it is as full as
     * measured. */
    double full = (double)w.bytes / (double)w.capacity;
    v->bits = 8 * full * (double)dcomm_codec_max_bytes(codec, s.count) / (double)s.count;
    dcommi_comm_lock(comm);
    double copy = 1e-12 * (double)dcommi_curve_at(&comm->chooser->terrain[s.memory].copy,
                                                  (int64_t)(w.count * sizeof(float)));
    if (copy > 0) {
        coding.cost_encode = dcommi_verdict_cost(w.encode, copy);
        coding.cost_decode = dcommi_verdict_cost(w.decode, copy);
    }
    coding.cost_length = (uint32_t)(1024.0 * full);
    /* Without feedback nobody would send so few elements. "auto" cannot know whether a call has
     * it. */
    coding.feedback = coding.spread != NULL && !codec->automatic;
    coding.hash = dcommi_mix(coding.hash, (uint64_t)coding.cost_encode << 32 | coding.cost_decode);
    dcomm_status status = dcommi_verdict_price(comm, &s, &v->exact_seconds, &algo);
    if (status >= 0) {
        s.dtype = DCOMM_BF16;
        status = dcommi_verdict_price(comm, &s, &v->bf16_seconds, &algo);
    }
    if (status >= 0) {
        s.dtype = DCOMM_F32;
        s.coding = &coding;
        status = dcommi_verdict_price(comm, &s, &v->seconds, &v->algo);
    }
    dcommi_comm_unlock(comm);
    v->worth = v->seconds < v->bf16_seconds;
    return status;
}

/* Decisions of codec "auto". Rank 0 sends these numbers to the other ranks. */
enum {
    DCOMMI_AUTO_UNKNOWN = 0,
    DCOMMI_AUTO_EXACT = 1,
    DCOMMI_AUTO_CAST = 2,
    DCOMMI_AUTO_CODEC = 3
};
/* A lossier choice must take less than this share of the time of a less lossy one. */
#define DCOMMI_AUTO_GAIN 0.9

/* Judge a codec for a call. *taken: what codec "auto" does with such a call. */
static dcomm_status dcommi_verdict_judge(dcomm_comm *comm, const dcomm_codec *codec,
                                         const dcommi_shape *s, dcomm_verdict *v, int *taken)
{
    dcomm_verdict cast;
    DCOMMI_TRY(dcommi_verdict_of(comm, codec, s, v));
    double least = v->exact_seconds;
    *taken = DCOMMI_AUTO_EXACT;
    if (codec->automatic && dcomm_dtype_size(s->dtype) > 2 && v->bits != 16) {
        DCOMMI_TRY(dcommi_verdict_of(comm, codec->cast, s, &cast));
        if (cast.seconds < DCOMMI_AUTO_GAIN * least) {
            least = cast.seconds;
            *taken = DCOMMI_AUTO_CAST;
        }
    }
    if (v->worth && v->seconds < DCOMMI_AUTO_GAIN * least) {
        *taken = DCOMMI_AUTO_CODEC;
    }
    dcommi_snprintf(
        v->text, sizeof v->text,
        "%s for %zu %s: %s. %.4g ms by %s (of it %.4g ms to encode, %.4g ms to decode one%s, "
        "%.3g bits an element), bf16 %.4g ms, exact %.4g ms%s%s",
        dcomm_codec_spec(codec), s->count, dcomm_dtype_name(s->dtype),
        v->worth ? "worth it" : "not worth it", 1e3 * v->seconds, v->algo, 1e3 * v->encode_seconds,
        1e3 * v->decode_seconds, v->device < 0 ? "" : ", on its device", v->bits,
        1e3 * v->bf16_seconds, 1e3 * v->exact_seconds, codec->automatic ? "; auto is " : "",
        !codec->automatic             ? ""
        : *taken == DCOMMI_AUTO_EXACT ? "exact"
        : *taken == DCOMMI_AUTO_CAST  ? "a cast to bf16"
                                      : "the codec");
    return DCOMM_OK;
}

DCOMM_API dcomm_status dcomm_codec_measure(dcomm_comm *comm, const dcomm_codec *codec, size_t count,
                                           bool device, dcomm_verdict *v)
{
    const dcomm_coll_opts opts = {.device = device};
    dcommi_shape s;
    int taken;
    if (codec == NULL || v == NULL || count == 0) {
        return dcommi_fail(DCOMM_ERR_INVALID, "dcomm_codec_measure: %s",
                           codec == NULL ? "codec is NULL"
                           : v == NULL   ? "v is NULL"
                                         : "count is 0");
    }
    DCOMMI_TRY(
        dcommi_shape_begin(comm, DCOMM_COLL_ALLREDUCE, count, DCOMM_F32, DCOMM_SUM, 0, &opts, &s));
    return dcommi_verdict_judge(comm, codec, &s, v, &taken);
}

#endif
