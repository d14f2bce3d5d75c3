/* cast.h - casts to f16 and bf16: one 16-bit number for each element, in order. */
#ifndef DCOMMI_CODEC_CAST_H
#define DCOMMI_CODEC_CAST_H

#include "bucket.h"

#define DCOMMI_CAST_BLOCK 2048 /* elements; three such arrays fit in the L1 cache */

enum { DCOMMI_CAST_ROUNDING };

static const dcommi_codec_option dcommi_cast_options[] = {
    {"rounding", DCOMMI_CODEC_CHOICE, "nearest|stochastic", 0, 0, 0,
     "to the nearest, ties to even; or up or down by chance, without bias"},
    {.kind = DCOMMI_CODEC_END}};

static inline bool dcommi_cast_stochastic(const dcomm_codec *codec)
{
    return dcommi_codec_int(codec, DCOMMI_CAST_ROUNDING) == 1;
}

static unsigned dcommi_cast_traits(const dcomm_codec *codec)
{
    return DCOMMI_CODEC_EXACT_BYTES | DCOMMI_CODEC_FEEDBACK |
           (dcommi_cast_stochastic(codec) ? DCOMMI_CODEC_UNBIASED : 0u);
}

static size_t dcommi_cast_bytes(const dcomm_codec *codec, size_t count)
{
    (void)codec;
    return dcommi_size_mul(count, 2);
}

/* Return the bytes for a stage, its 16-bit numbers, and a sum of wires. */
static size_t dcommi_cast_workspace(const dcomm_codec *codec, size_t count)
{
    (void)codec, (void)count;
    return 3 * DCOMMI_CAST_BLOCK * sizeof(float);
}

typedef struct dcommi_cast {
    const dcomm_codec *codec;
    const dcommi_codec_kernels *kernels;
    bool half;
    dcommi_clip clip; /* cuts numbers that would become infinite */
    dcommi_encoding *call;
    dcommi_rng rng;
    dcommi_quant quant;
    float *stage;
    unsigned char *numbers; /* the stage, cast */
    float *sum;             /* a sum of wires; for a ledger, decoded elements */
} dcommi_cast;

static void dcommi_cast_begin(dcommi_cast *cast, const dcomm_codec *codec, dcommi_encoding *call)
{
    const dcomm_codec_key *key = &call->key;
    const bool stochastic = dcommi_cast_stochastic(codec);
    const bool half = dcommi_codec_is(codec, DCOMMI_IS_F16);
    const float largest = half ? 65504.0f : dcommi_f32_from_bits(0x7f7f0000);
    const uint32_t above = stochastic ? 1 : half ? 0x1000 : 0x8000;
    *cast = (dcommi_cast){
        .codec = codec,
        .kernels = dcommi_codec_kernels_get(),
        .half = half,
        .clip = {dcommi_f32_bits(largest) + above, largest},
        .call = call,
        .rng = dcommi_rng_make(key->seed, key->tensor, key->step, key->rank, key->first)};
    cast->stage = call->workspace;
    cast->numbers = (unsigned char *)(cast->stage + DCOMMI_CAST_BLOCK);
    cast->sum = cast->stage + 2 * DCOMMI_CAST_BLOCK;
    cast->quant.rng = stochastic ? &cast->rng : NULL;
    call->bytes = 2 * call->count;
    cast->quant.stream = call->bytes >= DCOMMI_BUCKET_STREAM && (uintptr_t)call->wire % 64 == 0 &&
                         call->tally == NULL; /* a ledger reads the wire again */
    cast->quant.stream_next =
        cast->quant.stream && (uintptr_t)call->next % 64 == 0 && call->next != call->residual;
    if (call->tally != NULL) {
        call->tally->done = true;
    }
}

/* Encode elements [at, at + n) through the stage: the block needs padding, or a number is to be
 * clipped or is not finite. x begins at element `at`. */
static void dcommi_cast_staged(dcommi_cast *cast, const float *x, size_t at, size_t n)
{
    dcommi_encoding *call = cast->call;
    const float *residual = call->residual != NULL ? call->residual + at : NULL;
    const size_t padded = dcommi_bucket_up(n, DCOMMI_RNG_GROUP);
    const size_t clipped = call->report.clipped;
    const bool passed = dcommi_clip_copy(cast->clip, call, x, residual, cast->stage, at, n) &&
                        cast->codec->nonfinite == DCOMMI_NONFINITE_PASS;
    memset(cast->stage + n, 0, (padded - n) * sizeof(float));
    dcommi_quant q = cast->quant;
    q.x = cast->stage;
    q.count = padded;
    q.group = cast->rng.group + at / DCOMMI_RNG_GROUP;
    q.wire = cast->numbers;
    q.next = residual != NULL ? cast->stage : NULL;
    q.stream = q.stream_next = false;
    cast->kernels->cast(&q, cast->half);
    if (residual != NULL && call->report.clipped > clipped) {
        dcommi_clip_excess(cast->clip, x, residual, cast->stage, n);
    }
    for (size_t i = 0; passed && i < n; i++) {
        if (dcommi_f32_nonfinite(x[i])) {
            uint16_t h = cast->half ? dcommi_f32_to_f16(x[i]) : dcommi_f32_to_bf16(x[i]);
            memcpy(cast->numbers + 2 * i, &h, 2);
            cast->stage[i] = residual != NULL ? residual[i] : 0;
        }
    }
    memcpy(call->wire + 2 * at, cast->numbers, 2 * n);
    if (residual != NULL) {
        memcpy(call->next + at, cast->stage, n * sizeof(float));
    }
}

static void dcommi_cast_block(dcommi_cast *cast, const float *x, size_t at, size_t n)
{
    dcommi_encoding *call = cast->call;
    dcommi_quant *q = &cast->quant;
    if (n % DCOMMI_RNG_GROUP != 0) {
        dcommi_cast_staged(cast, x, at, n);
        return;
    }
    q->x = x;
    if (call->residual != NULL) {
        uint32_t most = cast->kernels->add_measure(x, call->residual + at, cast->stage, n, false);
        if (most >= cast->clip.limit) {
            dcommi_cast_staged(cast, x, at, n);
            return;
        }
        q->x = cast->stage;
        q->next = call->next + at;
    }
    q->count = n;
    q->group = cast->rng.group + at / DCOMMI_RNG_GROUP;
    q->wire = call->wire + 2 * at;
    if (cast->kernels->cast(q, cast->half) >= cast->clip.limit) {
        dcommi_cast_staged(cast, x, at, n);
    }
}

/* Set x to the sum of elements [at, at + n) of all wires, or add it if `add`. x begins at element
 * `at`. */
static dcomm_status dcommi_cast_sum(const dcomm_codec *codec, const unsigned char *const *wires,
                                    size_t n_wires, size_t at, size_t n, float factor, float *x,
                                    bool add, bool stream)
{
    const dcommi_codec_kernels *kernels = dcommi_codec_kernels_get();
    const unsigned char *from[DCOMMI_DEQUANT_WIRES];
    const size_t whole = n / 64 * 64;
    const bool half = dcommi_codec_is(codec, DCOMMI_IS_F16);
    const uint32_t infinity = half ? 0x7c00 : 0x7f80;
    for (size_t w = 0; w < n_wires; w++) {
        from[w] = wires[w] + 2 * at;
    }
    dcommi_dequant d = {.wires = from,
                        .n = n_wires,
                        .x = x,
                        .count = whole,
                        .factor = factor,
                        .add = add,
                        .stream = stream};
    uint32_t most = kernels->uncast(&d, half);
    if (whole < n) {
        _Alignas(64) float stage[64] = {0};
        _Alignas(64) unsigned char numbers[DCOMMI_DEQUANT_WIRES][128];
        for (size_t w = 0; w < n_wires; w++) {
            memset(numbers[w], 0, sizeof numbers[w]);
            memcpy(numbers[w], from[w] + 2 * whole, 2 * (n - whole));
            from[w] = numbers[w];
        }
        memcpy(stage, x + whole, add ? (n - whole) * sizeof *x : 0);
        d.x = stage;
        d.count = 64;
        d.stream = false;
        uint32_t rest = kernels->uncast(&d, half);
        most = rest > most ? rest : most;
        memcpy(x + whole, stage, (n - whole) * sizeof *x);
    }
    return most >= infinity && codec->nonfinite != DCOMMI_NONFINITE_PASS
               ? dcommi_fail(DCOMM_ERR_CORRUPT,
                             "%s: a number that is not finite, without nonfinite=pass",
                             codec->ops->name)
               : DCOMM_OK;
}

/* Add a block of this encoding to the ledger. */
static void dcommi_cast_tally(dcommi_cast *cast, size_t at, size_t n)
{
    const unsigned char *wire = cast->call->wire;
    if (cast->call->tally != NULL) {
        dcomm_status status =
            dcommi_cast_sum(cast->codec, &wire, 1, at, n, 1, cast->sum, false, false);
        dcommi_codec_sent(cast->call, at, cast->sum, n, status == DCOMM_OK);
    }
}

static dcomm_status dcommi_cast_encode(const dcomm_codec *codec, dcommi_encoding *call)
{
    dcommi_cast cast;
    dcommi_cast_begin(&cast, codec, call);
    for (size_t at = 0, n = 0; at < call->count; at += n) {
        n = call->count - at < DCOMMI_CAST_BLOCK ? call->count - at : DCOMMI_CAST_BLOCK;
        dcommi_cast_block(&cast, call->x + at, at, n);
        dcommi_cast_tally(&cast, at, n);
    }
    dcommi_settle();
    return DCOMM_OK;
}

static dcomm_status dcommi_cast_decode(const dcomm_codec *codec, const void *wire, size_t bytes,
                                       float *x, size_t count, bool add)
{
    DCOMMI_TRY(dcommi_codec_length(codec, bytes, dcommi_cast_bytes(codec, count), count));
    if (count == 0) {
        return DCOMM_OK;
    }
    bool stream = count >= DCOMMI_BUCKET_STREAM && (uintptr_t)x % 64 == 0 && !add;
    const unsigned char *from = wire;
    dcomm_status status = dcommi_cast_sum(codec, &from, 1, 0, count, 1, x, add, stream);
    dcommi_settle();
    return status;
}

/* Sum elements [at, at + n) of all wires times the factor. Decode one by one if there is one wire,
 * or more than dcommi_cast_sum takes. */
static dcomm_status dcommi_cast_sum_block(const dcomm_codec *codec, const dcommi_wires *in,
                                          size_t at, size_t n, float factor, float *x)
{
    const unsigned char *const *wires = (const unsigned char *const *)in->wires;
    if (in->n >= 2 && in->n <= DCOMMI_DEQUANT_WIRES) {
        return dcommi_cast_sum(codec, wires, in->n, at, n, factor, x, false, false);
    }
    for (size_t w = 0; w < in->n; w++) {
        DCOMMI_TRY(dcommi_cast_sum(codec, wires + w, 1, at, n, 1, x, w > 0, false));
    }
    for (size_t i = 0; factor != 1 && i < n; i++) {
        x[i] *= factor;
    }
    return DCOMM_OK;
}

static dcomm_status dcommi_cast_decode_sum(const dcomm_codec *codec, const dcommi_wires *in,
                                           float *x, size_t count)
{
    DCOMMI_TRY(dcommi_codec_lengths(codec, in, count));
    for (size_t at = 0, n = 0; at < count; at += n) {
        n = count - at < DCOMMI_CAST_BLOCK ? count - at : DCOMMI_CAST_BLOCK;
        DCOMMI_TRY(dcommi_cast_sum_block(codec, in, at, n, 1, x + at));
    }
    return DCOMM_OK;
}

static dcomm_status dcommi_cast_recode(const dcomm_codec *codec, const dcommi_wires *in,
                                       float factor, dcommi_encoding *call)
{
    DCOMMI_TRY(dcommi_codec_lengths(codec, in, call->count));
    dcommi_cast cast;
    dcommi_cast_begin(&cast, codec, call);
    for (size_t at = 0, n = 0; at < call->count; at += n) {
        n = call->count - at < DCOMMI_CAST_BLOCK ? call->count - at : DCOMMI_CAST_BLOCK;
        DCOMMI_TRY(dcommi_cast_sum_block(codec, in, at, n, factor, cast.sum));
        dcommi_cast_block(&cast, cast.sum, at, n);
        dcommi_cast_tally(&cast, at, n);
    }
    dcommi_settle();
    return DCOMM_OK;
}

/* Give the bounds of bf16, which has the exponents of f32. f16 has none: it can lose a small
 * number entirely. */
static void dcommi_cast_info(const dcomm_codec *codec, size_t count, dcomm_codec_info *info)
{
    (void)count;
    info->granule = DCOMMI_RNG_GROUP;
    if (!dcommi_codec_is(codec, DCOMMI_IS_F16)) {
        *(dcommi_cast_stochastic(codec) ? &info->omega : &info->contraction) = 0x1p-16;
    }
}

#define DCOMMI_CAST_ROW                                                                           \
    .options = dcommi_cast_options, .traits = dcommi_cast_traits, .max_bytes = dcommi_cast_bytes, \
    .workspace = dcommi_cast_workspace, .encode = dcommi_cast_encode,                             \
    .decode = dcommi_cast_decode, .decode_sum = dcommi_cast_decode_sum,                           \
    .recode = dcommi_cast_recode, .info = dcommi_cast_info

static const dcommi_codec_ops dcommi_codec_f16 = {
    .name = "f16",
    .is = DCOMMI_IS_CAST | DCOMMI_IS_F16,
    .summary = "16-bit floats with 10 bits of fraction, up to 65504",
    DCOMMI_CAST_ROW,
};

static const dcommi_codec_ops dcommi_codec_bf16 = {
    .name = "bf16",
    .is = DCOMMI_IS_CAST,
    .summary = "the upper half of an f32: 7 bits of fraction, all of its range",
    DCOMMI_CAST_ROW,
};

#endif
