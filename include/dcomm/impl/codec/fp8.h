/* fp8.h - 8-bit floats with a scale for each block (Micikevicius et al. 2022): E4M3, which has no
 * infinity and the largest number 448, and E5M2, a short f16. */
#ifndef DCOMMI_CODEC_FP8_H
#define DCOMMI_CODEC_FP8_H

#include "bucket.h"

enum { DCOMMI_FP8_TYPE, DCOMMI_FP8_BLOCK, DCOMMI_FP8_ROUNDING };

static const dcommi_codec_option dcommi_fp8_options[] = {
    {"type", DCOMMI_CODEC_CHOICE, "e4m3|e5m2", 0, 0, 0, "exponent and fraction bits"},
    {"block", DCOMMI_CODEC_INTEGER, NULL, 128, 128, 65536, "elements that share a scale"},
    {"rounding", DCOMMI_CODEC_CHOICE, "nearest|stochastic", 0, 0, 0,
     "to the nearest, ties to even; or up or down by chance, without bias"},
    {.kind = DCOMMI_CODEC_END}};

static dcomm_status dcommi_fp8_make(dcomm_codec *codec)
{
    bool e4m3 = dcommi_codec_int(codec, DCOMMI_FP8_TYPE) == 0;
    DCOMMI_TRY(dcommi_bucket_make(codec, e4m3 ? DCOMMI_FORMAT_E4M3 : DCOMMI_FORMAT_E5M2,
                                  dcommi_codec_int(codec, DCOMMI_FP8_BLOCK)));
    codec->bucketing.stochastic = dcommi_codec_int(codec, DCOMMI_FP8_ROUNDING) == 1;
    return DCOMM_OK;
}

static unsigned dcommi_fp8_traits(const dcomm_codec *codec)
{
    return DCOMMI_CODEC_EXACT_BYTES | DCOMMI_CODEC_FEEDBACK |
           (codec->bucketing.stochastic ? DCOMMI_CODEC_UNBIASED : 0u);
}

/* Give the error bound. A normal number rounded to nearest is off by at most 2^-(fraction+1) of
 * itself; rounded stochastically, its variance is at most the square of that times x^2. A number
 * below the smallest normal one is off by at most half of the smallest number (variance: a quarter
 * of its square). `smallest` is in units of the block's largest |x|; |x|_2 is at least that
 * large. */
static void dcommi_fp8_info(const dcomm_codec *codec, size_t count, dcomm_codec_info *info)
{
    const dcommi_bucketing *as = &codec->bucketing;
    const dcommi_mini *mini =
        as->format == DCOMMI_FORMAT_E4M3 ? &dcommi_mini_e4m3 : &dcommi_mini_e5m2;
    double d = (double)(count < as->bucket ? count : as->bucket);
    double relative = 1 / (double)(1u << 2 * (mini->fraction + 1));
    double smallest = 1 / ((double)mini->units * (double)dcommi_format_most[as->format]);
    double bound = (relative + d * smallest * smallest / 4) * (1 + 0x1p-10);
    info->granule = as->bucket;
    *(as->stochastic ? &info->omega : &info->contraction) = bound;
}

static const dcommi_codec_ops dcommi_codec_fp8 = {
    .name = "fp8",
    .summary = "floats of 8 bits, scaled by block",
    .options = dcommi_fp8_options,
    .make = dcommi_fp8_make,
    .traits = dcommi_fp8_traits,
    .info = dcommi_fp8_info,
    DCOMMI_BUCKET_ROW,
};

#endif
