/* qsgd.h - QSGD rounds each element stochastically to a multiple of the bucket's step (Alistarh et
 * al. 2017). TernGrad is the same with the multiples -1, 0 and 1 (Wen et al. 2017). */
#ifndef DCOMMI_CODEC_QSGD_H
#define DCOMMI_CODEC_QSGD_H

#include "bucket.h"

enum { DCOMMI_QSGD_BITS, DCOMMI_QSGD_BUCKET, DCOMMI_QSGD_NORM, DCOMMI_QSGD_ROUNDING };
enum { DCOMMI_TERN_BUCKET, DCOMMI_TERN_ROUNDING };

static const dcommi_codec_option dcommi_qsgd_options[] = {
    {"bits", DCOMMI_CODEC_INTEGER, NULL, 4, 1, 8, "of a code: 1, 2, 4 or 8"},
    {"bucket", DCOMMI_CODEC_INTEGER, NULL, 512, 128, 65536, "elements that share a step"},
    {"norm", DCOMMI_CODEC_CHOICE, "max|two", 0, 0, 0,
     "what the largest code stands for: the largest |x| of the bucket, or its 2-norm"},
    {"rounding", DCOMMI_CODEC_CHOICE, "stochastic|nearest", 0, 0, 0,
     "up or down by chance, without bias; or to the nearest"},
    {.kind = DCOMMI_CODEC_END}};

static const dcommi_codec_option dcommi_tern_options[] = {
    {"bucket", DCOMMI_CODEC_INTEGER, NULL, 512, 256, 65536, "elements that share a step"},
    {"rounding", DCOMMI_CODEC_CHOICE, "stochastic|nearest", 0, 0, 0,
     "up or down by chance, without bias; or to the nearest"},
    {.kind = DCOMMI_CODEC_END}};

static dcomm_status dcommi_qsgd_make(dcomm_codec *codec)
{
    int64_t bits = dcommi_codec_int(codec, DCOMMI_QSGD_BITS);
    dcommi_format format = bits == 1   ? DCOMMI_FORMAT_Q1
                           : bits == 2 ? DCOMMI_FORMAT_Q2
                           : bits == 4 ? DCOMMI_FORMAT_Q4
                                       : DCOMMI_FORMAT_Q8;
    if (dcommi_format_bits[format] != bits) {
        return dcommi_fail(DCOMM_ERR_INVALID, "codec qsgd: bits=%d: it must be 1, 2, 4 or 8",
                           (int)bits);
    }
    DCOMMI_TRY(dcommi_bucket_make(codec, format, dcommi_codec_int(codec, DCOMMI_QSGD_BUCKET)));
    codec->bucketing.two_norm = dcommi_codec_int(codec, DCOMMI_QSGD_NORM) == 1;
    codec->bucketing.stochastic = dcommi_codec_int(codec, DCOMMI_QSGD_ROUNDING) == 0;
    return DCOMM_OK;
}

static dcomm_status dcommi_tern_make(dcomm_codec *codec)
{
    DCOMMI_TRY(
        dcommi_bucket_make(codec, DCOMMI_FORMAT_Q2, dcommi_codec_int(codec, DCOMMI_TERN_BUCKET)));
    codec->bucketing.stochastic = dcommi_codec_int(codec, DCOMMI_TERN_ROUNDING) == 0;
    return DCOMM_OK;
}

static unsigned dcommi_qsgd_traits(const dcomm_codec *codec)
{
    return DCOMMI_CODEC_EXACT_BYTES | DCOMMI_CODEC_FEEDBACK |
           (codec->bucketing.stochastic ? DCOMMI_CODEC_UNBIASED : 0u);
}

/* Give the error bound. An element that is f steps from the level below has the variance f(1-f)
 * steps^2, at most f and at most 1/4. Norm `two`: with |x|_2 = s steps this gives the paper's
 * bounds. Norm `max`: one element is s steps long and exact. In the worst case the d-1 others are
 * all at the same f < 1. This gives (sqrt(1 + (d-1)/s^2) - 1) / 2. Rounded to nearest, f = 1/2.
 * With one bit there are only the two end levels. */
static void dcommi_qsgd_info(const dcomm_codec *codec, size_t count, dcomm_codec_info *info)
{
    const dcommi_bucketing *as = &codec->bucketing;
    double d = (double)(count < as->bucket ? count : as->bucket);
    double s = (double)dcommi_format_most[as->format] / (1 + 0x1p-15); /* steps are rounded up */
    double others = d > 1 ? (d - 1) / (s * s) : 0;
    info->granule = as->bucket;
    if (as->stochastic && as->format == DCOMMI_FORMAT_Q1) {
        info->omega = d;
    } else if (as->stochastic && as->two_norm) {
        info->omega = dcommi_f64_min(d / (4 * s * s), dcommi_sqrt(d) / s);
    } else if (as->stochastic) {
        info->omega = (dcommi_sqrt(1 + others) - 1) / 2 + 0x1p-13;
    } else if (as->format != DCOMMI_FORMAT_Q1 && !as->two_norm) {
        info->contraction = others / (others + 4) + 0x1p-15;
    }
}

static const dcommi_codec_ops dcommi_codec_qsgd = {
    .name = "qsgd",
    .summary = "stochastic rounding to a few levels per bucket",
    .options = dcommi_qsgd_options,
    .make = dcommi_qsgd_make,
    .traits = dcommi_qsgd_traits,
    .info = dcommi_qsgd_info,
    DCOMMI_BUCKET_ROW,
};

static const dcommi_codec_ops dcommi_codec_tern = {
    .name = "tern",
    .summary = "TernGrad: -1, 0 or 1 times the largest of the bucket; qsgd with 2 bits",
    .options = dcommi_tern_options,
    .make = dcommi_tern_make,
    .traits = dcommi_qsgd_traits,
    .info = dcommi_qsgd_info,
    DCOMMI_BUCKET_ROW,
};

#endif
