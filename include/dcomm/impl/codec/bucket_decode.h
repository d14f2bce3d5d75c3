/* bucket_decode.h - decode buckets to floats: one wire, stored or added, or the sum of several in
 * one pass. A partial line goes through a padded copy. */
#ifndef DCOMMI_CODEC_BUCKET_DECODE_H
#define DCOMMI_CODEC_BUCKET_DECODE_H

#include "codec.h"
#include "../../../../kernels/cpu/codec_isa.h"

/* From this many elements of an array, or bytes of a wire, use nontemporal stores. Residuals
 * follow their wire. */
#define DCOMMI_BUCKET_STREAM ((size_t)1 << 20)

static inline size_t dcommi_bucket_group(dcommi_format format)
{
    size_t line = 8 * DCOMMI_WIRE_LINE / dcommi_format_bits[format];
    return line > DCOMMI_RNG_GROUP ? line : DCOMMI_RNG_GROUP;
}

static inline size_t dcommi_bucket_up(size_t n, size_t to)
{
    return (n + to - 1) / to * to;
}

static inline size_t dcommi_bucket_wire_bytes(const dcomm_codec *codec, size_t count)
{
    const dcommi_bucketing *as = &codec->bucketing;
    if (count > SIZE_MAX / 16) {
        return SIZE_MAX;
    }
    return dcommi_wire_codes(count, dcommi_format_bits[as->format]) +
           (count / as->bucket + (count % as->bucket != 0)) * sizeof(float);
}

/* Copy codes from a wire into lines, which are zero behind the last element. Return false if the
 * wire's bits behind it are not zero. */
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

/* Constants of decoding `count` elements. `codes` is the bytes of a wire before its steps. */
typedef struct dcommi_bucket_decoder {
    const dcomm_codec *codec;
    const dcommi_bucketing *as;
    const dcommi_codec_kernels *kernels;
    size_t count, codes;
    float largest_step;
} dcommi_bucket_decoder;

static dcommi_bucket_decoder dcommi_bucket_decoder_of(const dcomm_codec *codec, size_t count)
{
    const dcommi_bucketing *as = &codec->bucketing;
    return (dcommi_bucket_decoder){
        .codec = codec,
        .as = as,
        .kernels = dcommi_codec_kernels_get(),
        .count = count,
        .codes = dcommi_wire_codes(count, dcommi_format_bits[as->format]),
        .largest_step = dcommi_wire_step(DCOMMI_WIRE_LARGEST, dcommi_format_most[as->format])};
}

static dcomm_status dcommi_bucket_decoder_make(dcommi_bucket_decoder *de, const dcomm_codec *codec,
                                               const dcommi_wires *in, size_t count)
{
    DCOMMI_TRY(dcommi_codec_lengths(codec, in, count));
    *de = dcommi_bucket_decoder_of(codec, count);
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

/* Read the step of bucket b; refuse a step that no encoder writes. *nan: the bucket decodes as
 * NaN. */
static inline dcomm_status dcommi_bucket_read_step(const dcommi_bucket_decoder *de,
                                                   const void *wire, size_t b, float *step,
                                                   bool *nan)
{
    memcpy(step, (const unsigned char *)wire + de->codes + b * sizeof *step, sizeof *step);
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

/* Decode bucket b of one wire: store it in x, or add it. */
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
    if (whole < n) { /* at most one line */
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

static dcomm_status dcommi_bucket_decode(const dcomm_codec *codec, const void *wire, size_t bytes,
                                         float *x, size_t count, bool add)
{
    const size_t bucket = codec->bucketing.bucket;
    dcommi_bucket_decoder de;
    dcommi_wires in = {&wire, &bytes, 1};
    DCOMMI_TRY(dcommi_bucket_decoder_make(&de, codec, &in, count));
    bool stream = count >= DCOMMI_BUCKET_STREAM && (uintptr_t)x % 64 == 0 && !add;
    dcomm_status status = DCOMM_OK;
    for (size_t b = 0, at = 0; status == DCOMM_OK && at < count; b++, at += bucket) {
        size_t n = count - at < bucket ? count - at : bucket;
        status = dcommi_bucket_decode_one(&de, wire, b, n, x + at, add, stream);
    }
    dcommi_settle();
    return status;
}

/* Sum bucket b of all wires, in order, times the factor. If it is whole groups, measure the
 * sum. */
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

static dcomm_status dcommi_bucket_decode_sum(const dcomm_codec *codec, const dcommi_wires *in,
                                             float *x, size_t count)
{
    const size_t bucket = codec->bucketing.bucket;
    dcommi_bucket_decoder de;
    DCOMMI_TRY(dcommi_bucket_decoder_make(&de, codec, in, count));
    bool stream = count >= DCOMMI_BUCKET_STREAM && (uintptr_t)x % 64 == 0;
    uint32_t measured = 0;
    dcomm_status status = DCOMM_OK;
    for (size_t b = 0, at = 0; status == DCOMM_OK && at < count; b++, at += bucket) {
        size_t n = count - at < bucket ? count - at : bucket;
        status = dcommi_bucket_sum_one(&de, in, b, n, 1, x + at, stream, &measured);
    }
    dcommi_settle();
    return status;
}

#endif
