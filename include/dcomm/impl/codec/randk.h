/* randk.h - randk sends one random element of each of k equal parts of the array. All ranks derive
 * the indices from a seed that they share. So only values travel, and a dense all-reduce of k
 * numbers sums them.
 *
 * kernels/randk.h defines the parts. Therefore indices ascend, each element is as likely as any
 * other of its part, and the variance is that of k elements drawn from all. With scale=unbiased,
 * values are multiplied by their part's length. A value that is not finite stands for its whole
 * part. */
#ifndef DCOMMI_CODEC_RANDK_H
#define DCOMMI_CODEC_RANDK_H

#include "read.h"
#include "../../../../kernels/randk.h"

#include <math.h>

enum { DCOMMI_RANDK_K = 0, DCOMMI_RANDK_SCALE = 1 };        /* options, in order */
enum { DCOMMI_RANDK_UNBIASED = 0, DCOMMI_RANDK_PLAIN = 1 }; /* values of scale */

static size_t dcommi_randk_bytes(const dcomm_codec *codec, size_t count)
{
    return count > UINT32_MAX ? SIZE_MAX
                              : DCOMMI_RANDK_HEAD + 4 * dcommi_codec_wanted(codec, count);
}

/* A position among the parts. */
typedef struct dcommi_randk_walk {
    dcommi_rng rng;
    uint64_t count, k, part;
    uint64_t begin, end, index; /* of this part; index: the element that is sent */
    uint32_t word[4];
} dcommi_randk_walk;

static dcommi_randk_walk dcommi_randk_start(uint64_t seed, size_t count, size_t k)
{
    return (dcommi_randk_walk){.rng = dcommi_randk_rng(seed), .count = count, .k = k, .part = 0};
}

/* Step to the next part; return false after the last one. count * k must be below 2^64. */
static bool dcommi_randk_next(dcommi_randk_walk *w)
{
    if (w->part == w->k) {
        return false;
    }
    if (w->part % 4 == 0) {
        dcommi_rng_block(&w->rng, w->part / 4, w->word);
    }
    w->begin = w->end;
    w->end = dcommi_randk_begin(w->count, w->k, w->part + 1);
    w->index = dcommi_randk_index(w->begin, w->end, w->word[w->part % 4]);
    w->part++;
    return true;
}

/* Return the value to send: denormals become 0, and a value beyond f32 becomes the largest f32.
 * Multiply in f64, where the product is exact, so that no compiler fuses it with the later
 * subtraction. */
static float dcommi_randk_value(float x, float factor, size_t *clipped)
{
    uint32_t bits = dcommi_f32_bits(x);
    float value = (bits & 0x7f800000u) == 0 ? dcommi_f32_from_bits(bits & 0x80000000u)
                                            : (float)((double)x * (double)factor);
    bits = dcommi_f32_bits(value);
    if ((bits & 0x7fffffffu) == 0x7f800000u) {
        ++*clipped;
        value = dcommi_f32_from_bits(bits - 1);
    }
    return (bits & 0x7f800000u) == 0 ? dcommi_f32_from_bits(bits & 0x80000000u) : value;
}

static float dcommi_randk_take(dcommi_encoding *call, const dcommi_randk_walk *w, bool unbiased)
{
    bool adds = call->residual != NULL;
    float x = adds ? call->next[w->index] : call->x[w->index];
    x = dcommi_f32_nonfinite(x) ? 0 : x;
    float value =
        dcommi_randk_value(x, unbiased ? (float)(w->end - w->begin) : 1, &call->report.clipped);
    if (adds) {
        call->next[w->index] = x - value;
    }
    if (call->tally != NULL && !dcommi_f32_nonfinite(call->x[w->index])) {
        dcommi_tally_sent(call->tally, w->index, value);
    }
    if (call->tally != NULL && adds) {
        dcommi_tally_left(call->tally, w->index, x, value, x - value);
    }
    return value;
}

/* Gather with nonfinite=pass: send a part with a number that is not finite as NaN and keep its
 * residual. The caller has counted such numbers. */
static void dcommi_randk_gather_passing(const dcomm_codec *codec, dcommi_encoding *call,
                                        uint64_t seed, void *values)
{
    bool unbiased = codec->value[DCOMMI_RANDK_SCALE] == DCOMMI_RANDK_UNBIASED;
    dcommi_randk_walk w =
        dcommi_randk_start(seed, call->count, dcommi_codec_wanted(codec, call->count));
    dcommi_tally *tally = call->tally;
    call->tally = NULL; /* whole parts are not compared here: the library decodes and counts */
    for (size_t i = 0; dcommi_randk_next(&w); i++) {
        bool odd = false;
        for (uint64_t at = w.begin; at < w.end; at++) {
            odd = odd || dcommi_f32_nonfinite(call->x[at]);
        }
        for (uint64_t at = w.begin; call->residual != NULL && at < w.end; at++) {
            if (odd) {
                call->next[at] = call->residual[at];
            } else {
                dcommi_read_one(call, (size_t)at);
            }
        }
        float value =
            odd ? dcommi_f32_from_bits(DCOMMI_F32_NAN) : dcommi_randk_take(call, &w, unbiased);
        memcpy((char *)values + 4 * i, &value, 4);
    }
    call->tally = tally;
}

/* Write the k values (f32) that are sent; a dense all-reduce can sum them. */
static void dcommi_randk_gather(const dcomm_codec *codec, dcommi_encoding *call, uint64_t seed,
                                void *values)
{
    bool unbiased = codec->value[DCOMMI_RANDK_SCALE] == DCOMMI_RANDK_UNBIASED;
    if (codec->nonfinite == DCOMMI_NONFINITE_PASS) {
        dcommi_read_count(call);
        if (call->report.nonfinite > 0) {
            dcommi_randk_gather_passing(codec, call, seed, values);
            return;
        }
    }
    dcommi_read_all(call);
    dcommi_randk_walk w =
        dcommi_randk_start(seed, call->count, dcommi_codec_wanted(codec, call->count));
    for (size_t i = 0; dcommi_randk_next(&w); i++) {
        float value = dcommi_randk_take(call, &w, unbiased);
        memcpy((char *)values + 4 * i, &value, 4);
    }
    if (call->tally != NULL) {
        dcommi_tally_whole(call->tally);
    }
}

/* Set x to the k values at their indices and 0 elsewhere, or add them if `add`. */
static void dcommi_randk_scatter(uint64_t seed, const void *values, size_t k, float *x,
                                 size_t count, bool add)
{
    dcommi_randk_walk w = dcommi_randk_start(seed, count, k);
    for (size_t i = 0; dcommi_randk_next(&w); i++) {
        float value;
        memcpy(&value, (const char *)values + 4 * i, 4);
        if (!add) {
            memset(x + w.begin, 0, sizeof *x * (size_t)(w.end - w.begin));
        }
        if (DCOMMI_UNLIKELY(dcommi_f32_nonfinite(value))) {
            for (uint64_t at = w.begin; at < w.end; at++) {
                x[at] = dcommi_f32_canonical(add ? x[at] + value : value);
            }
            continue;
        }
        x[w.index] = add ? x[w.index] + value : value;
    }
}

static dcomm_status dcommi_randk_encode(const dcomm_codec *codec, dcommi_encoding *call)
{
    const dcomm_codec_key *key = &call->key;
    dcommi_randk_head head = {dcommi_randk_seed(key->seed, key->tensor, key->step, key->first)};
    memcpy(call->wire, &head, sizeof head);
    dcommi_randk_gather(codec, call, head.seed, call->wire + DCOMMI_RANDK_HEAD);
    call->bytes = dcommi_randk_bytes(codec, call->count);
    call->report.kept = dcommi_codec_wanted(codec, call->count);
    return DCOMM_OK;
}

static dcomm_status dcommi_randk_decode(const dcomm_codec *codec, const void *wire, size_t bytes,
                                        float *x, size_t count, bool add)
{
    DCOMMI_TRY(dcommi_codec_length(codec, bytes, dcommi_randk_bytes(codec, count), count));
    dcommi_randk_head head;
    size_t k = dcommi_codec_wanted(codec, count);
    const char *values = (const char *)wire + DCOMMI_RANDK_HEAD;
    DCOMMI_TRY(dcommi_read_check(codec, values, k));
    memcpy(&head, wire, sizeof head);
    dcommi_randk_scatter(head.seed, values, k, x, count, add);
    return DCOMM_OK;
}

static unsigned dcommi_randk_traits(const dcomm_codec *codec)
{
    bool unbiased = codec->value[DCOMMI_RANDK_SCALE] == DCOMMI_RANDK_UNBIASED;
    return DCOMMI_CODEC_SPARSE | DCOMMI_CODEC_LINEAR | DCOMMI_CODEC_EXACT_BYTES |
           DCOMMI_CODEC_FEEDBACK | (unbiased ? DCOMMI_CODEC_UNBIASED : 0);
}

/* Give the bounds in the mean over keys. |C(x)-x|^2 is (s-1)|x|^2 if values are multiplied by the
 * part's length s, else (1-1/s)|x|^2. */
static void dcommi_randk_info(const dcomm_codec *codec, size_t count, dcomm_codec_info *info)
{
    size_t k = dcommi_codec_wanted(codec, count);
    double longest = k > 0 ? (double)(count / k + (count % k != 0)) : 1;
    if (codec->value[DCOMMI_RANDK_SCALE] == DCOMMI_RANDK_UNBIASED) {
        info->omega = longest - 1;
    } else {
        info->contraction = 1 - 1 / longest;
    }
}

static const dcommi_codec_option dcommi_randk_options[] = {
    {"k", DCOMMI_CODEC_NUMBER, NULL, 0.01, 1e-9, (double)UINT32_MAX,
     "below 1: share of the elements that is sent; else their number"},
    {"scale", DCOMMI_CODEC_CHOICE, "unbiased|none", 0, 0, 0,
     "unbiased: values are multiplied by d/k; none: as they are, for error feedback"},
    {.kind = DCOMMI_CODEC_END}};

static const dcommi_codec_ops dcommi_codec_randk = {
    .name = "randk",
    .is = DCOMMI_IS_DRAWN,
    .summary = "k random elements, the same on every rank: only their values are sent",
    .options = dcommi_randk_options,
    .traits = dcommi_randk_traits,
    .max_bytes = dcommi_randk_bytes,
    .encode = dcommi_randk_encode,
    .decode = dcommi_randk_decode,
    .info = dcommi_randk_info,
};

#endif
