/* sign.h - one bit an element: its sign, times the mean of |x| over the bucket, which makes the
 * codec a contraction (Karimireddy et al. 2019). */
#ifndef DCOMMI_CODEC_SIGN_H
#define DCOMMI_CODEC_SIGN_H

#include "bucket.h"

static const dcommi_codec_option dcommi_sign_options[] = {
    {"bucket", DCOMMI_CODEC_INTEGER, NULL, 512, 512, 65536, "elements that share a scale"},
    {.kind = DCOMMI_CODEC_END}};

static dcomm_status dcommi_sign_make(dcomm_codec *codec)
{
    return dcommi_bucket_make(codec, DCOMMI_FORMAT_SIGN, dcommi_codec_int(codec, 0));
}

static unsigned dcommi_sign_traits(const dcomm_codec *codec)
{
    (void)codec;
    return DCOMMI_CODEC_EXACT_BYTES | DCOMMI_CODEC_FEEDBACK;
}

/* Give the bound: |x - C(x)|^2 = |x|_2^2 - |x|_1^2 / d, and |x|_1 >= |x|_2. */
static void dcommi_sign_info(const dcomm_codec *codec, size_t count, dcomm_codec_info *info)
{
    size_t bucket = codec->bucketing.bucket;
    double d = (double)(count < bucket ? count : bucket);
    info->granule = bucket;
    info->contraction = d > 1 ? 1 - 1 / d : 0;
}

static const dcommi_codec_ops dcommi_codec_sign = {
    .name = "sign",
    .summary = "the sign times the mean magnitude of the bucket",
    .options = dcommi_sign_options,
    .make = dcommi_sign_make,
    .traits = dcommi_sign_traits,
    .info = dcommi_sign_info,
    DCOMMI_BUCKET_ROW,
};

#endif
