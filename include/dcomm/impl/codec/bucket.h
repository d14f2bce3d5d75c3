/* bucket.h - shared by qsgd, tern, sign and fp8, which code buckets with a step each in a format
 * of kernels/wire.h: their row in the table, and recoding, which sums several wires and encodes
 * the sum, bucket by bucket. */
#ifndef DCOMMI_CODEC_BUCKET_H
#define DCOMMI_CODEC_BUCKET_H

#include "bucket_encode.h"

static dcomm_status dcommi_bucket_recode_sum(const dcommi_bucket_decoder *de,
                                             const dcommi_bucket_encoder *en,
                                             const dcommi_wires *in, size_t b, size_t n,
                                             float factor, uint32_t *measured)
{
    float *sum = en->sum[b % 2];
    DCOMMI_TRY(dcommi_bucket_sum_one(de, in, b, n, factor, sum, false, measured));
    if (en->call->residual != NULL) {
        *measured = dcommi_bucket_measure(en, b, n, sum);
    }
    return DCOMM_OK;
}

static dcomm_status dcommi_bucket_recode(const dcomm_codec *codec, const dcommi_wires *in,
                                         float factor, dcommi_encoding *call)
{
    const size_t bucket = codec->bucketing.bucket;
    dcommi_bucket_decoder de;
    DCOMMI_TRY(dcommi_bucket_decoder_make(&de, codec, in, call->count));
    dcommi_bucket_encoder en;
    dcommi_bucket_begin(&en, codec, call);
    uint32_t measured[2] = {0};
    size_t n = call->count < bucket ? call->count : bucket;
    if (n > 0) {
        DCOMMI_TRY(dcommi_bucket_recode_sum(&de, &en, in, 0, n, factor, &measured[0]));
    }
    /* Sum the next bucket before coding this one, so that this one's measure has time to
     * complete. */
    for (size_t b = 0, at = 0; at < call->count; b++) {
        size_t after = at + n, left = call->count - after;
        size_t next = left < bucket ? left : bucket;
        if (next > 0) {
            DCOMMI_TRY(dcommi_bucket_recode_sum(&de, &en, in, b + 1, next, factor,
                                                &measured[(b + 1) % 2]));
        }
        dcommi_bucket_one(&en, b, n, en.sum[b % 2], NULL, measured[b % 2]);
        dcommi_bucket_tally(&en, b, n);
        at = after;
        n = next;
    }
    dcommi_settle();
    return DCOMM_OK;
}

/* dcommi_bucket_make computes the bucketing from the options. */
#define DCOMMI_BUCKET_ROW                                                     \
    .is = DCOMMI_IS_BUCKETED, .max_bytes = dcommi_bucket_wire_bytes,          \
    .workspace = dcommi_bucket_workspace, .encode = dcommi_bucket_encode,     \
    .decode = dcommi_bucket_decode, .decode_sum = dcommi_bucket_decode_sum,   \
    .recode = dcommi_bucket_recode

/* Check option `bucket`, and set the codec's bucketing. */
static dcomm_status dcommi_bucket_make(dcomm_codec *codec, dcommi_format format, int64_t bucket)
{
    size_t group = dcommi_bucket_group(format);
    if ((size_t)bucket % group != 0) {
        return dcommi_fail(DCOMM_ERR_INVALID, "codec %s: bucket=%zu is not a multiple of %zu",
                           codec->ops->name, (size_t)bucket, group);
    }
    codec->bucketing =
        (dcommi_bucketing){.format = format, .bucket = (size_t)bucket, .group = group};
    return DCOMM_OK;
}

#endif
