/* bucket_encode.h - encode floats into buckets, by the loops of kernels/cpu/codec_loops.h. While a
 * loop codes bucket b, it measures bucket b + 2. A step takes two dependent divisions, and the
 * loop over the bucket in between hides their latency. A partial line, and a bucket with a number
 * that is not finite, go through a stage: a padded copy. */
#ifndef DCOMMI_CODEC_BUCKET_ENCODE_H
#define DCOMMI_CODEC_BUCKET_ENCODE_H

#include "bucket_decode.h"
#include "../../../../kernels/root.h"
#include "../../../../kernels/cpu/tally_pieces.h"

#include <math.h>

#define DCOMMI_BUCKET_STAGES 3 /* for this bucket and the next two */

/* Return the bytes for the stages, the lines of one stage, and two sums of wires. */
static inline size_t dcommi_bucket_workspace(const dcomm_codec *codec, size_t count)
{
    const dcommi_bucketing *as = &codec->bucketing;
    size_t most = count < as->bucket ? count : as->bucket;
    return (DCOMMI_BUCKET_STAGES + 3) * dcommi_bucket_up(most, as->group) * sizeof(float);
}

/* Copy the lines of `n` elements to the wire; the last line may be partial. */
static void dcommi_bucket_lines_out(const dcommi_bucketing *as, const unsigned char *lines,
                                    unsigned char *wire, size_t n)
{
    const unsigned bits = dcommi_format_bits[as->format];
    const size_t line = 8 * DCOMMI_WIRE_LINE / bits;
    size_t whole = n / line * line;
    memcpy(wire, lines, n / line * DCOMMI_WIRE_LINE);
    lines += n / line * DCOMMI_WIRE_LINE;
    wire += n / line * DCOMMI_WIRE_LINE;
    memset(wire, 0, dcommi_wire_codes(n, bits) - n / line * DCOMMI_WIRE_LINE);
    if (as->format >= DCOMMI_FORMAT_E4M3) {
        memcpy(wire, lines, n - whole);
        return;
    }
    for (size_t e = 0; e < n - whole; e++) {
        unsigned code = dcommi_wire_get(lines, (unsigned)e, bits);
        wire[e * bits / 8] |= (unsigned char)(code << (e * bits % 8));
    }
}

typedef struct dcommi_bucket_encoder {
    const dcomm_codec *codec;
    const dcommi_bucketing *as;
    const dcommi_codec_kernels *kernels;
    dcommi_encoding *call;
    dcommi_rng rng;
    dcommi_quant quant;
    float *stage[DCOMMI_BUCKET_STAGES]; /* input + residual, or a padded or cleaned copy */
    unsigned char *lines;               /* the codes of a stage */
    float *sum[2];                      /* sums of wires; for a ledger, decoded elements */
} dcommi_bucket_encoder;

static void dcommi_bucket_begin(dcommi_bucket_encoder *en, const dcomm_codec *codec,
                                dcommi_encoding *call)
{
    const dcommi_bucketing *as = &codec->bucketing;
    size_t most = call->count < as->bucket ? call->count : as->bucket;
    size_t padded = dcommi_bucket_up(most, as->group);
    const dcomm_codec_key *key = &call->key;
    const unsigned bits = dcommi_format_bits[as->format];
    *en = (dcommi_bucket_encoder){
        .codec = codec,
        .as = as,
        .kernels = dcommi_codec_kernels_get(),
        .call = call,
        .rng = dcommi_rng_make(key->seed, key->tensor, key->step, key->rank, key->first)};
    float *room = call->workspace;
    for (int i = 0; i < DCOMMI_BUCKET_STAGES; i++, room += padded) {
        en->stage[i] = room;
    }
    en->sum[0] = room;
    en->sum[1] = room + padded;
    en->lines = (unsigned char *)(room + 2 * padded);
    en->quant.soon_group = en->rng.group - DCOMMI_CODEC_SOON;
    en->quant.rng = as->stochastic ? &en->rng : NULL;
    if (bits < 8 || as->format == DCOMMI_FORMAT_Q8) {
        /* Stochastic: add random bits, with the last ten fixed at their mean. Nearest: add one
         * half. */
        uint32_t fraction = 0xffffffffu >> bits;
        en->quant.mask = as->stochastic ? fraction & ~(uint32_t)1023 : 0;
        en->quant.half = as->stochastic ? 512 : fraction / 2 + 1;
    }
    call->bytes = dcommi_bucket_wire_bytes(codec, call->count);
    /* A ledger reads the output again, so keep it in the cache. */
    bool stream = call->bytes >= DCOMMI_BUCKET_STREAM && call->tally == NULL;
    en->quant.stream = stream && (uintptr_t)call->wire % 64 == 0;
    en->quant.stream_next =
        stream && (uintptr_t)call->next % 64 == 0 && call->next != call->residual;
    if (call->tally != NULL) {
        call->tally->done = true;
    }
}

/* A codec's clipping: a number whose magnitude, as bits, is at least `limit` becomes `largest`. */
typedef struct dcommi_clip {
    uint32_t limit;
    float largest;
} dcommi_clip;

static inline dcommi_clip dcommi_bucket_clip(void)
{
    return (dcommi_clip){dcommi_f32_bits(DCOMMI_WIRE_LARGEST) + 1, DCOMMI_WIRE_LARGEST};
}

static inline bool dcommi_clip_cuts(dcommi_clip clip, float v)
{
    return (dcommi_f32_bits(v) & 0x7fffffffu) >= clip.limit;
}

/* Make a clean copy of elements [at, at + n): numbers that are not finite become 0 and are counted,
 * numbers that are too large are clipped. x, residual (NULL: none) and `to` begin at element `at`.
 * Return true if one was not finite. */
static bool dcommi_clip_copy(dcommi_clip clip, dcommi_encoding *call, const float *x,
                             const float *residual, float *to, size_t at, size_t n)
{
    const size_t before = call->report.nonfinite;
    for (size_t i = 0; i < n; i++) {
        float v = x[i];
        if (dcommi_f32_nonfinite(v)) {
            dcommi_codec_nonfinite(call, at + i);
            v = 0;
        }
        v = residual != NULL ? v + residual[i] : v;
        if (dcommi_clip_cuts(clip, v)) {
            v = dcommi_f32_signed(clip.largest, dcommi_f32_bounded(v));
            call->report.clipped++;
        }
        to[i] = v;
    }
    return call->report.nonfinite > before;
}

/* Add the part that clipping cut off to the residual: the kernel sees only the clipped number. */
static void dcommi_clip_excess(dcommi_clip clip, const float *x, const float *residual, float *next,
                               size_t n)
{
    for (size_t i = 0; i < n; i++) {
        float e = dcommi_codec_e(x[i], residual[i]);
        if (dcommi_clip_cuts(clip, e)) {
            next[i] += e - dcommi_f32_signed(clip.largest, e);
        }
    }
}

/* Return true if a measure shows that the bucket needs cleaning. */
static inline bool dcommi_bucket_dirty(uint32_t measure)
{
    return measure > dcommi_f32_bits(DCOMMI_WIRE_LARGEST);
}

/* Return the step of a bucket of n elements; x is padded. */
static float dcommi_bucket_step(dcommi_bucket_encoder *en, const float *x, size_t n, size_t padded,
                                uint32_t measure)
{
    const dcommi_bucketing *as = en->as;
    float largest = dcommi_f32_from_bits(measure);
    if (as->format == DCOMMI_FORMAT_SIGN) {
        double sum = 0; /* only if the f32 sum is infinite */
        for (size_t i = 0; dcommi_bucket_dirty(measure) && i < n; i++) {
            sum += fabs((double)x[i]);
        }
        float mean = sum > 0 ? (float)(sum / (double)n) : largest / (float)n;
        return mean >= DCOMMI_WIRE_LEAST ? mean : 0;
    }
    if (as->two_norm) {
        double norm = dcommi_sqrt(en->kernels->squares(x, padded));
        if (!(norm < (double)DCOMMI_WIRE_LARGEST)) { /* no |x| exceeds LARGEST */
            return dcommi_wire_step(DCOMMI_WIRE_LARGEST, dcommi_format_most[as->format]);
        }
        largest = (float)norm;
        largest = dcommi_f32_from_bits(dcommi_f32_bits(largest) + ((double)largest < norm));
    }
    return dcommi_wire_step(largest, dcommi_format_most[as->format]);
}

static void dcommi_bucket_scale(dcommi_bucket_encoder *en, float step)
{
    dcommi_format format = en->as->format;
    float unit = format <= DCOMMI_FORMAT_Q8 && format != DCOMMI_FORMAT_Q1
                     ? (float)(1u << (32 - dcommi_format_bits[format]))
                 : format == DCOMMI_FORMAT_Q1 ? 0x1p30f
                                              : 1.0f;
    en->quant.step = step;
    en->quant.inverse = step > 0 ? unit / step : 0;
}

/* Encode bucket b, the `n` elements x. If the bucket is whole groups, `measure` is its measure,
 * and x + residual is already in its stage. `ahead` is the input of bucket b + 2, or NULL. Return
 * the measure of that bucket. */
static uint32_t dcommi_bucket_one(dcommi_bucket_encoder *en, size_t b, size_t n, const float *x,
                                  const float *ahead, uint32_t measure)
{
    const dcommi_bucketing *as = en->as;
    dcommi_encoding *call = en->call;
    dcommi_quant *q = &en->quant;
    const bool sign = as->format == DCOMMI_FORMAT_SIGN;
    const unsigned bits = dcommi_format_bits[as->format];
    const size_t at = b * as->bucket, padded = dcommi_bucket_up(n, as->group);
    float *stage = en->stage[b % DCOMMI_BUCKET_STAGES];
    const float *residual = call->residual != NULL ? call->residual + at : NULL;
    const size_t clipped = call->report.clipped;
    bool staged = padded != n, poisoned = false;
    if (staged || dcommi_bucket_dirty(measure)) {
        poisoned = dcommi_clip_copy(dcommi_bucket_clip(), call, x, residual, stage, at, n) &&
                   en->codec->nonfinite == DCOMMI_NONFINITE_PASS;
        memset(stage + n, 0, (padded - n) * sizeof *stage);
        measure = en->kernels->measure(stage, padded, sign);
        staged = true;
    } else if (residual != NULL) {
        staged = true;
    }
    const float *from = staged ? stage : x;
    float step = dcommi_bucket_step(en, from, n, padded, measure);
    dcommi_bucket_scale(en, poisoned ? 0 : step);
    q->x = from;
    q->count = padded;
    q->group = en->rng.group + at / DCOMMI_RNG_GROUP;
    q->ahead = ahead;
    q->next = NULL;
    if (residual != NULL) {
        q->ahead_residual = ahead != NULL ? residual + 2 * as->bucket : NULL;
        q->ahead_sum = en->stage[(b + 2) % DCOMMI_BUCKET_STAGES];
        q->next = call->next + at;
    }
    unsigned char *wire = call->wire + at / 8 * bits;
    const bool excess = residual != NULL && call->report.clipped > clipped;
    bool through = padded != n || poisoned || excess;
    bool stream = q->stream, stream_next = q->stream_next;
    q->wire = through ? en->lines : wire;
    if (through) {
        q->stream = q->stream_next = false;
        q->next = q->next != NULL ? stage : NULL; /* in place */
    }
    const uint32_t measured = en->kernels->encode[as->format](q);
    if (through) {
        dcommi_bucket_lines_out(as, en->lines, wire, n);
        if (excess) {
            dcommi_clip_excess(dcommi_bucket_clip(), x, residual, stage, n);
        }
        if (q->next != NULL && !poisoned) {
            memcpy(call->next + at, q->next, n * sizeof(float));
        } else if (q->next != NULL && call->next != call->residual) {
            memcpy(call->next + at, call->residual + at, n * sizeof(float));
        }
        q->stream = stream;
        q->stream_next = stream_next;
    }
    step = poisoned ? dcommi_f32_from_bits(DCOMMI_STEP_NAN) : step;
    memcpy(call->wire + dcommi_wire_codes(call->count, bits) + b * sizeof step, &step, sizeof step);
    return measured;
}

/* Return the measure of bucket b, the n elements x, or 0 unless it is whole groups. With a
 * residual, write x + residual to the bucket's stage. */
static uint32_t dcommi_bucket_measure(const dcommi_bucket_encoder *en, size_t b, size_t n,
                                      const float *x)
{
    const dcommi_encoding *call = en->call;
    const bool sign = en->as->format == DCOMMI_FORMAT_SIGN;
    if (n % en->as->group != 0) {
        return 0;
    }
    return call->residual == NULL
               ? en->kernels->measure(x, n, sign)
               : en->kernels->add_measure(x, call->residual + b * en->as->bucket,
                                          en->stage[b % DCOMMI_BUCKET_STAGES], n, sign);
}

/* Add elements [at, at + n) of an encoding to the ledger. `sent` has their decoded values if
 * `decoded`. */
static void dcommi_codec_sent(dcommi_encoding *call, size_t at, const float *sent, size_t n,
                              bool decoded)
{
    if (decoded) {
        dcommi_tally_compare(call->tally, at, sent, n);
    }
    if (call->residual != NULL) {
        dcommi_tally_held(call->tally, sent, call->next + at, n);
    }
}

/* Add a bucket of this encoding to the ledger. */
static void dcommi_bucket_tally(dcommi_bucket_encoder *en, size_t b, size_t n)
{
    dcommi_encoding *call = en->call;
    if (call->tally == NULL) {
        return;
    }
    dcommi_bucket_decoder de = dcommi_bucket_decoder_of(en->codec, call->count);
    float *sent = en->sum[b % 2];
    dcomm_status status = dcommi_bucket_decode_one(&de, call->wire, b, n, sent, false, false);
    dcommi_codec_sent(call, b * en->as->bucket, sent, n, status == DCOMM_OK);
}

static dcomm_status dcommi_bucket_encode(const dcomm_codec *codec, dcommi_encoding *call)
{
    dcommi_bucket_encoder en;
    dcommi_bucket_begin(&en, codec, call);
    const size_t bucket = codec->bucketing.bucket, whole = call->count / bucket;
    uint32_t measured[2] = {0}; /* of this bucket and the next */
    for (size_t b = 0, at = 0; at < call->count; b++, at += bucket) {
        size_t n = call->count - at < bucket ? call->count - at : bucket;
        const float *x = call->x + at;
        if (b == whole || b == 0) {
            measured[b % 2] = dcommi_bucket_measure(&en, b, n, x);
        }
        if (b == 0 && whole > 1) {
            measured[1] = dcommi_bucket_measure(&en, 1, bucket, x + bucket);
        }
        const float *ahead = b + 2 < whole ? x + 2 * bucket : NULL;
        measured[b % 2] = dcommi_bucket_one(&en, b, n, x, ahead, measured[b % 2]);
        dcommi_bucket_tally(&en, b, n);
    }
    dcommi_settle();
    return DCOMM_OK;
}

#endif
