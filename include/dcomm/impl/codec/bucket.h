/* bucket.h - what qsgd, tern, sign and fp8 share: buckets with a step each, coded by one of
 * the formats of kernels/wire.h. Buckets go through the loops of kernels/cpu/codec_loops.h, which
 * measure the bucket after the next while they code this one: what a bucket is scaled by takes two
 * divisions, one after the other, for which the loop of the bucket in between leaves time. What is
 * no whole line, or holds something that is not finite, goes through a stage: a padded copy. */
#ifndef DCOMMI_CODEC_BUCKET_H
#define DCOMMI_CODEC_BUCKET_H

#include "codec.h"
#include "../../../../kernels/root.h"
#include "../../../../kernels/cpu/tally_pieces.h"

#include <math.h>

/* Wires from this length on, and the residuals that belong to them, are written past the caches. */
#define DCOMMI_BUCKET_STREAM ((size_t)1 << 20)
#define DCOMMI_BUCKET_STAGES 3 /* of this bucket, the next, and the one after it */

static inline size_t dcommi_bucket_group(dcommi_format format)
{
    size_t line = 8 * DCOMMI_WIRE_LINE / dcommi_format_bits[format];
    return line > DCOMMI_RNG_GROUP ? line : DCOMMI_RNG_GROUP;
}

static inline size_t dcommi_bucket_up(size_t n, size_t to)
{
    return (n + to - 1) / to * to;
}

static inline size_t dcommi_bucket_wire_bytes(const dcommi_bucketing *as, size_t count)
{
    if (count > SIZE_MAX / 16) {
        return SIZE_MAX;
    }
    return dcommi_wire_codes(count, dcommi_format_bits[as->format]) +
           (count / as->bucket + (count % as->bucket != 0)) * sizeof(float);
}

/* Stages, the lines of one, and two sums of wires. */
static inline size_t dcommi_bucket_workspace(const dcommi_bucketing *as, size_t count)
{
    size_t most = count < as->bucket ? count : as->bucket;
    return (DCOMMI_BUCKET_STAGES + 3) * dcommi_bucket_up(most, as->group) * sizeof(float);
}

/* ---- whole lines and the rest ---- */

/* Lines of `n` elements to the wire. */
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

/* And back, into lines that are zero behind the last element. False: bits behind it are not zero.
 */
static bool dcommi_bucket_lines_in(const dcommi_bucketing *as, unsigned char *lines,
                                   const unsigned char *wire, size_t n)
{
    const unsigned bits = dcommi_format_bits[as->format];
    const size_t line = 8 * DCOMMI_WIRE_LINE / bits;
    size_t whole = n / line * line, at = n / line * DCOMMI_WIRE_LINE;
    memcpy(lines, wire, at);
    memset(lines + at, 0, dcommi_bucket_up(n, as->group) * bits / 8 - at);
    lines += at;
    wire += at;
    size_t used = ((n - whole) * bits + 7) / 8;
    bool clean = true;
    for (size_t i = used; i < dcommi_wire_codes(n, bits) - at; i++) {
        clean = clean && wire[i] == 0;
    }
    if (as->format >= DCOMMI_FORMAT_E4M3) {
        memcpy(lines, wire, n - whole);
        return clean;
    }
    for (size_t e = 0; e < n - whole; e++) {
        unsigned code = (wire[e * bits / 8] >> (e * bits % 8)) & ((1u << bits) - 1);
        dcommi_wire_put(lines, (unsigned)e, bits, code);
    }
    unsigned spare = (unsigned)(8 * used - (n - whole) * bits);
    return clean && (spare == 0 || wire[used - 1] >> (8 - spare) == 0);
}

/* ---- encoding ---- */

typedef struct dcommi_bucket_encoder {
    const dcomm_codec *codec;
    const dcommi_bucketing *as;
    const dcommi_codec_kernels *kernels;
    dcommi_encoding *call;
    dcommi_rng rng;
    dcommi_quant quant;
    float *stage[DCOMMI_BUCKET_STAGES]; /* sums of input and residual, padded or cleaned copies */
    unsigned char *lines;               /* of a stage */
    float *sum[2];                      /* of wires; what was decoded */
} dcommi_bucket_encoder;

static void dcommi_bucket_begin(dcommi_bucket_encoder *en, const dcomm_codec *codec,
                                const dcommi_bucketing *as, dcommi_encoding *call)
{
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
        /* A random fraction, but for its last ten bits, or one half. */
        uint32_t fraction = 0xffffffffu >> bits;
        en->quant.mask = as->stochastic ? fraction & ~(uint32_t)1023 : 0;
        en->quant.half = as->stochastic ? 512 : fraction / 2 + 1;
    }
    call->bytes = dcommi_bucket_wire_bytes(as, call->count);
    /* What a ledger reads again stays in the cache. */
    bool stream = call->bytes >= DCOMMI_BUCKET_STREAM && call->tally == NULL;
    en->quant.stream = stream && (uintptr_t)call->wire % 64 == 0;
    en->quant.stream_next =
        stream && (uintptr_t)call->next % 64 == 0 && call->next != call->residual;
    if (call->tally != NULL) {
        call->tally->done = true;
    }
}

/* A clean copy of `n` elements: what is not finite is dealt with, what is too large is clipped.
 * Without residual, x is all there is. Whether the bucket is to decode as NaN. */
static bool dcommi_bucket_clean(dcommi_bucket_encoder *en, const float *x, const float *residual,
                                float *to, size_t at, size_t n)
{
    dcommi_encoding *call = en->call;
    bool poisoned = false;
    for (size_t i = 0; i < n; i++) {
        float v = x[i];
        if (dcommi_f32_nonfinite(v)) {
            dcommi_codec_nonfinite(call, at + i);
            poisoned = poisoned || en->codec->nonfinite == DCOMMI_NONFINITE_PASS;
            v = 0;
        }
        v = residual != NULL ? v + residual[i] : v;
        if (!(fabsf(v) <= DCOMMI_WIRE_LARGEST)) {
            v = dcommi_f32_signed(DCOMMI_WIRE_LARGEST, v);
            call->report.clipped++;
        }
        to[i] = v;
    }
    return poisoned;
}

/* What a clipped number loses stays behind; the kernel has seen only the clipped one. */
static void dcommi_bucket_excess(const float *x, const float *residual, float *next, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        float e = dcommi_codec_e(x[i], residual[i]);
        if (fabsf(e) > DCOMMI_WIRE_LARGEST) {
            next[i] += e - dcommi_f32_signed(DCOMMI_WIRE_LARGEST, e);
        }
    }
}

/* Whether a measure says that there is something to clean. */
static inline bool dcommi_bucket_dirty(uint32_t measure)
{
    return measure > dcommi_f32_bits(DCOMMI_WIRE_LARGEST);
}

/* The step of a bucket of n elements that lies, padded, at x. */
static float dcommi_bucket_step(dcommi_bucket_encoder *en, const float *x, size_t n, size_t padded,
                                uint32_t measure)
{
    const dcommi_bucketing *as = en->as;
    float largest = dcommi_f32_from_bits(measure);
    if (as->format == DCOMMI_FORMAT_SIGN) {
        double sum = 0; /* of numbers whose sum as f32 is infinite */
        for (size_t i = 0; dcommi_bucket_dirty(measure) && i < n; i++) {
            sum += fabs((double)x[i]);
        }
        float mean = sum > 0 ? (float)(sum / (double)n) : largest / (float)n;
        return mean >= DCOMMI_WIRE_LEAST ? mean : 0;
    }
    if (as->two_norm) {
        double norm = dcommi_sqrt(en->kernels->squares(x, padded));
        if (!(norm < (double)DCOMMI_WIRE_LARGEST)) { /* no |x| is larger */
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

/* Bucket `b` of `n` elements, input x, to which a residual was already added in its stage.
 * `measure` is its own, if it is of whole groups. Returns that of the bucket `ahead`, two further;
 * NULL: none.
 */
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
        poisoned = dcommi_bucket_clean(en, x, residual, stage, at, n);
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
            dcommi_bucket_excess(x, residual, stage, n);
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

static void dcommi_bucket_tally(dcommi_bucket_encoder *en, size_t b, size_t n);

/* Of bucket b of n elements x, if it is of whole groups; with a residual, the sum goes to its
 * stage.
 */
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

static dcomm_status dcommi_bucket_encode(const dcomm_codec *codec, const dcommi_bucketing *as,
                                         dcommi_encoding *call)
{
    dcommi_bucket_encoder en;
    dcommi_bucket_begin(&en, codec, as, call);
    const size_t bucket = as->bucket, whole = call->count / bucket;
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
    en.kernels->settle();
    return DCOMM_OK;
}

/* ---- decoding ---- */

static float dcommi_bucket_wire_step(const void *wire, size_t codes, size_t b)
{
    float step;
    memcpy(&step, (const unsigned char *)wire + codes + b * sizeof step, sizeof step);
    return step;
}

/* Bucket b of n elements: the sum of some wires to x, padded as lines are. */
typedef struct dcommi_bucket_decoder {
    const dcomm_codec *codec;
    const dcommi_bucketing *as;
    const dcommi_codec_kernels *kernels;
    size_t count, codes;
    float largest_step;
} dcommi_bucket_decoder;

static dcommi_bucket_decoder dcommi_bucket_decoder_of(const dcomm_codec *codec,
                                                      const dcommi_bucketing *as, size_t count)
{
    return (dcommi_bucket_decoder){
        .codec = codec,
        .as = as,
        .kernels = dcommi_codec_kernels_get(),
        .count = count,
        .codes = dcommi_wire_codes(count, dcommi_format_bits[as->format]),
        .largest_step = dcommi_wire_step(DCOMMI_WIRE_LARGEST, dcommi_format_most[as->format])};
}

static dcomm_status dcommi_bucket_decoder_make(dcommi_bucket_decoder *de, const dcomm_codec *codec,
                                               const dcommi_bucketing *as, const dcommi_wires *in,
                                               size_t count)
{
    size_t wanted = dcommi_bucket_wire_bytes(as, count);
    for (size_t w = 0; w < in->n; w++) {
        if (in->bytes[w] != wanted) {
            return dcommi_codec_bad_length(codec, in->bytes[w], wanted, count);
        }
    }
    *de = dcommi_bucket_decoder_of(codec, as, count);
    return DCOMM_OK;
}

static dcomm_status dcommi_bucket_odd_step(const dcommi_bucket_decoder *de, size_t b, float *step,
                                           bool *nan)
{
    if (dcommi_f32_bits(*step) == DCOMMI_STEP_NAN &&
        de->codec->nonfinite == DCOMMI_NONFINITE_PASS) {
        *nan = true;
        *step = 0;
        return DCOMM_OK;
    }
    return dcommi_fail(DCOMM_ERR_CORRUPT, "%s: the step of bucket %zu is %g", de->codec->ops->name,
                       b, (double)*step);
}

/* The step, if an encoder can have written it; *nan: the bucket decodes as NaN. */
static inline dcomm_status dcommi_bucket_read_step(const dcommi_bucket_decoder *de,
                                                   const void *wire, size_t b, float *step,
                                                   bool *nan)
{
    *step = dcommi_bucket_wire_step(wire, de->codes, b);
    return DCOMMI_LIKELY(dcommi_wire_step_within(*step, de->largest_step,
                                                 de->as->format != DCOMMI_FORMAT_SIGN))
               ? DCOMM_OK
               : dcommi_bucket_odd_step(de, b, step, nan);
}

static dcomm_status dcommi_bucket_bad_code(const dcommi_bucket_decoder *de, size_t b)
{
    return dcommi_fail(DCOMM_ERR_CORRUPT, "%s: bucket %zu holds a code that does not exist",
                       de->codec->ops->name, b);
}

/* One wire's bucket to x, or onto x. */
static dcomm_status dcommi_bucket_decode_one(const dcommi_bucket_decoder *de, const void *wire,
                                             size_t b, size_t n, float *x, bool add, bool stream)
{
    const dcommi_bucketing *as = de->as;
    const unsigned bits = dcommi_format_bits[as->format];
    const size_t line = 8 * DCOMMI_WIRE_LINE / bits, whole = n / line * line;
    const unsigned char *from = (const unsigned char *)wire + b * as->bucket / 8 * bits;
    float step;
    bool nan = false;
    DCOMMI_TRY(dcommi_bucket_read_step(de, wire, b, &step, &nan));
    dcommi_dequant d = {.wires = &from,
                        .steps = &step,
                        .n = 1,
                        .x = x,
                        .count = whole,
                        .add = add,
                        .stream = stream};
    if (!de->kernels->decode[as->format](&d)) {
        return dcommi_bucket_bad_code(de, b);
    }
    if (whole < n) { /* at most a line: through a stage */
        _Alignas(64) float stage[DCOMMI_WIRE_STAGE];
        _Alignas(64) unsigned char lines[DCOMMI_WIRE_STAGE];
        if (!dcommi_bucket_lines_in(as, lines, from + whole / 8 * bits, n - whole)) {
            return dcommi_bucket_bad_code(de, b);
        }
        const unsigned char *short_line = lines;
        d = (dcommi_dequant){
            .wires = &short_line, .steps = &step, .n = 1, .x = stage, .count = line, .add = add};
        if (add) {
            memcpy(stage, x + whole, (n - whole) * sizeof *x);
            memset(stage + (n - whole), 0, (DCOMMI_WIRE_STAGE - (n - whole)) * sizeof *x);
        }
        if (!de->kernels->decode[as->format](&d)) {
            return dcommi_bucket_bad_code(de, b);
        }
        memcpy(x + whole, stage, (n - whole) * sizeof *x);
    }
    for (size_t i = 0; nan && i < n; i++) {
        x[i] = dcommi_f32_from_bits(DCOMMI_F32_NAN);
    }
    return DCOMM_OK;
}

static dcomm_status dcommi_bucket_decode(const dcomm_codec *codec, const dcommi_bucketing *as,
                                         const void *wire, size_t bytes, float *x, size_t count,
                                         bool add)
{
    dcommi_bucket_decoder de;
    dcommi_wires in = {&wire, &bytes, 1};
    DCOMMI_TRY(dcommi_bucket_decoder_make(&de, codec, as, &in, count));
    bool stream = count >= DCOMMI_BUCKET_STREAM && (uintptr_t)x % 64 == 0 && !add;
    dcomm_status status = DCOMM_OK;
    for (size_t b = 0, at = 0; status == DCOMM_OK && at < count; b++, at += as->bucket) {
        size_t n = count - at < as->bucket ? count - at : as->bucket;
        status = dcommi_bucket_decode_one(&de, wire, b, n, x + at, add, stream);
    }
    de.kernels->settle();
    return status;
}

/* Bucket b of all wires, in order, times the factor; measured, if it is of whole groups. */
static dcomm_status dcommi_bucket_sum_one(const dcommi_bucket_decoder *de, const dcommi_wires *in,
                                          size_t b, size_t n, float factor, float *x, bool stream,
                                          uint32_t *measured)
{
    const dcommi_bucketing *as = de->as;
    const unsigned bits = dcommi_format_bits[as->format];
    const size_t line = 8 * DCOMMI_WIRE_LINE / bits;
    const unsigned char *from[DCOMMI_DEQUANT_WIRES];
    float steps[DCOMMI_DEQUANT_WIRES];
    bool nan = false;
    if (in->n <= DCOMMI_DEQUANT_WIRES && n % line == 0) {
        for (size_t w = 0; w < in->n; w++) {
            from[w] = (const unsigned char *)in->wires[w] + b * as->bucket / 8 * bits;
            DCOMMI_TRY(dcommi_bucket_read_step(de, in->wires[w], b, &steps[w], &nan));
        }
        dcommi_dequant d = {.wires = from,
                            .steps = steps,
                            .n = in->n,
                            .x = x,
                            .count = n,
                            .factor = factor,
                            .stream = stream};
        if (!de->kernels->sum[as->format](&d, measured)) {
            return dcommi_bucket_bad_code(de, b);
        }
        for (size_t i = 0; nan && i < n; i++) {
            x[i] = dcommi_f32_from_bits(DCOMMI_F32_NAN);
            *measured = DCOMMI_F32_NAN;
        }
        return DCOMM_OK;
    }
    for (size_t w = 0; w < in->n; w++) {
        DCOMMI_TRY(dcommi_bucket_decode_one(de, in->wires[w], b, n, x, w > 0, false));
    }
    for (size_t i = 0; factor != 1 && i < n; i++) {
        x[i] *= factor;
    }
    if (n % as->group == 0) {
        *measured = de->kernels->measure(x, n, as->format == DCOMMI_FORMAT_SIGN);
    }
    return DCOMM_OK;
}

static dcomm_status dcommi_bucket_decode_sum(const dcomm_codec *codec, const dcommi_bucketing *as,
                                             const dcommi_wires *in, float *x, size_t count)
{
    dcommi_bucket_decoder de;
    DCOMMI_TRY(dcommi_bucket_decoder_make(&de, codec, as, in, count));
    bool stream = count >= DCOMMI_BUCKET_STREAM && (uintptr_t)x % 64 == 0;
    uint32_t measured = 0;
    dcomm_status status = DCOMM_OK;
    for (size_t b = 0, at = 0; status == DCOMM_OK && at < count; b++, at += as->bucket) {
        size_t n = count - at < as->bucket ? count - at : as->bucket;
        status = dcommi_bucket_sum_one(&de, in, b, n, 1, x + at, stream, &measured);
    }
    de.kernels->settle();
    return status;
}

/* What a bucket of this encoding became, for the ledger. */
static void dcommi_bucket_tally(dcommi_bucket_encoder *en, size_t b, size_t n)
{
    dcommi_encoding *call = en->call;
    const size_t at = b * en->as->bucket;
    if (call->tally == NULL) {
        return;
    }
    dcommi_bucket_decoder de = dcommi_bucket_decoder_of(en->codec, en->as, call->count);
    float *sent = en->sum[b % 2];
    if (dcommi_bucket_decode_one(&de, call->wire, b, n, sent, false, false) == DCOMM_OK) {
        dcommi_tally_compare(call->tally, at, sent, n);
    }
    if (call->residual != NULL) {
        dcommi_tally_held(call->tally, sent, call->next + at, n);
    }
}

/* ---- decoding several wires and encoding their sum, bucket by bucket ---- */

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

static dcomm_status dcommi_bucket_recode(const dcomm_codec *codec, const dcommi_bucketing *as,
                                         const dcommi_wires *in, float factor,
                                         dcommi_encoding *call)
{
    dcommi_bucket_decoder de;
    DCOMMI_TRY(dcommi_bucket_decoder_make(&de, codec, as, in, call->count));
    dcommi_bucket_encoder en;
    dcommi_bucket_begin(&en, codec, as, call);
    uint32_t measured[2] = {0};
    size_t n = call->count < as->bucket ? call->count : as->bucket;
    if (n > 0) {
        DCOMMI_TRY(dcommi_bucket_recode_sum(&de, &en, in, 0, n, factor, &measured[0]));
    }
    /* The next bucket is summed before this one is coded, which its measure takes some time for. */
    for (size_t b = 0, at = 0; at < call->count; b++) {
        size_t after = at + n, left = call->count - after;
        size_t next = left < as->bucket ? left : as->bucket;
        if (next > 0) {
            DCOMMI_TRY(dcommi_bucket_recode_sum(&de, &en, in, b + 1, next, factor,
                                                &measured[(b + 1) % 2]));
        }
        dcommi_bucket_one(&en, b, n, en.sum[b % 2], NULL, measured[b % 2]);
        dcommi_bucket_tally(&en, b, n);
        at = after;
        n = next;
    }
    en.kernels->settle();
    return DCOMM_OK;
}

/* ---- rows of the table: the bucketing is computed from the options when the codec is made ---- */

static size_t dcommi_bucket_row_bytes(const dcomm_codec *codec, size_t count)
{
    return dcommi_bucket_wire_bytes(&codec->bucketing, count);
}

static size_t dcommi_bucket_row_workspace(const dcomm_codec *codec, size_t count)
{
    return dcommi_bucket_workspace(&codec->bucketing, count);
}

static dcomm_status dcommi_bucket_row_encode(const dcomm_codec *codec, dcommi_encoding *call)
{
    return dcommi_bucket_encode(codec, &codec->bucketing, call);
}

static dcomm_status dcommi_bucket_row_decode(const dcomm_codec *codec, const void *wire,
                                             size_t bytes, float *x, size_t count, bool add)
{
    return dcommi_bucket_decode(codec, &codec->bucketing, wire, bytes, x, count, add);
}

static dcomm_status dcommi_bucket_row_sum(const dcomm_codec *codec, const dcommi_wires *in,
                                          float *x, size_t count)
{
    return dcommi_bucket_decode_sum(codec, &codec->bucketing, in, x, count);
}

static dcomm_status dcommi_bucket_row_recode(const dcomm_codec *codec, const dcommi_wires *in,
                                             float factor, dcommi_encoding *call)
{
    return dcommi_bucket_recode(codec, &codec->bucketing, in, factor, call);
}

#define DCOMMI_BUCKET_ROW                                                         \
    .is = DCOMMI_IS_BUCKETED, .max_bytes = dcommi_bucket_row_bytes,               \
    .workspace = dcommi_bucket_row_workspace, .encode = dcommi_bucket_row_encode, \
    .decode = dcommi_bucket_row_decode, .decode_sum = dcommi_bucket_row_sum,      \
    .recode = dcommi_bucket_row_recode

/* Checks option `bucket`. */
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
