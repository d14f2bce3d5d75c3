/* topk.h - codecs that send the largest elements: topk (exactly k), threshold (those above a
 * sampled threshold) and topk+qsgd (k values, quantized). Wire: kernels/wire_sparse.h. */
#ifndef DCOMMI_CODEC_TOPK_H
#define DCOMMI_CODEC_TOPK_H

#include "sparse.h"
#include "read.h"
#include "../../../../kernels/cpu/topk.h"

enum { DCOMMI_TOPK_CHUNK = 256 };
enum { DCOMMI_TOPK_F32 = 0, DCOMMI_TOPK_F16 = 1, DCOMMI_TOPK_BF16 = 2 };
enum { DCOMMI_TOPK_K = 0, DCOMMI_TOPK_VALUES = 1 }; /* options, in order */
enum { DCOMMI_TOPK_BITS = 1, DCOMMI_TOPK_BUCKET = 2, DCOMMI_TOPK_ROUNDING = 3 };

static dcomm_status dcommi_topk_bad_wire(const dcomm_codec *codec, const char *what, size_t kept,
                                         size_t count)
{
    return dcommi_fail(DCOMM_ERR_CORRUPT, "%s: a wire with %zu of %zu elements %s",
                       codec->ops->name, kept, count, what);
}

/* ---- lengths ---- */

static inline bool dcommi_topk_is_exact(const dcomm_codec *codec)
{
    return !dcommi_codec_is(codec, DCOMMI_IS_SAMPLED);
}

/* Return true if exactly the largest are chosen, as also if there are too few elements to
 * sample. */
static bool dcommi_topk_is_chosen(const dcomm_codec *codec, size_t count)
{
    return dcommi_topk_is_exact(codec) || dcommi_topk_sample_lines(count) == 0;
}

/* Return the most elements that are sent: twice the number wanted if a sample sets the
 * threshold. */
static size_t dcommi_topk_most(const dcomm_codec *codec, size_t count)
{
    size_t k = dcommi_codec_wanted(codec, count);
    return dcommi_topk_is_exact(codec) ? k : k > count / 2 ? count : 2 * k;
}

static size_t dcommi_topk_value_bytes(const dcomm_codec *codec, size_t kept)
{
    return codec->inner != NULL ? codec->inner->ops->max_bytes(codec->inner, kept)
           : codec->value[DCOMMI_TOPK_VALUES] == DCOMMI_TOPK_F32 ? 4 * kept
                                                                 : 2 * kept;
}

static size_t dcommi_topk_bytes(const dcomm_codec *codec, size_t count, size_t kept)
{
    size_t index = (size_t)dcommi_sparse_index_bytes(count, kept);
    return dcommi_size_add(DCOMMI_SPARSE_HEAD + index, dcommi_topk_value_bytes(codec, kept));
}

static size_t dcommi_topk_max_bytes(const dcomm_codec *codec, size_t count)
{
    return count > UINT32_MAX ? SIZE_MAX
                              : dcommi_topk_bytes(codec, count, dcommi_topk_most(codec, count));
}

/* Return the bytes for candidates' bits and indices and, with an inner codec, for its decoded
 * values and its workspace. */
static size_t dcommi_topk_workspace(const dcomm_codec *codec, size_t count)
{
    if (count > UINT32_MAX) {
        return 0;
    }
    size_t most = dcommi_topk_most(codec, count);
    size_t bytes = 2 * dcommi_size_lines(4 * dcommi_topk_room(count, most));
    if (codec->inner != NULL) {
        bytes += dcommi_size_lines(4 * most);
        bytes += codec->inner->ops->workspace == NULL
                     ? 0
                     : codec->inner->ops->workspace(codec->inner, most);
    }
    return bytes;
}

/* ---- values ---- */

static inline uint32_t dcommi_topk_flush(uint32_t bits)
{
    return (bits & DCOMMI_INF_BITS) == 0 ? bits & 0x80000000u : bits;
}

/* Cast one value to 16 bits; a finite value stays finite. */
static inline uint16_t dcommi_topk_half(uint32_t bits, bool bf16, size_t *clipped)
{
    float x = dcommi_f32_from_bits(dcommi_topk_flush(bits));
    uint16_t infinity = bf16 ? 0x7f80 : 0x7c00;
    uint16_t h = bf16 ? dcommi_f32_to_bf16(x) : dcommi_f32_to_f16(x);
    if ((h & 0x7fffu) == infinity && (bits & DCOMMI_ABS_BITS) < DCOMMI_INF_BITS) {
        ++*clipped;
        h--;
    }
    return h;
}

static inline float dcommi_topk_from_half(uint16_t h, bool bf16)
{
    return bf16 ? dcommi_bf16_to_f32(h) : dcommi_f16_to_f32(h);
}

/* Write the values; with a residual, store the rounding errors in `next`. */
static void dcommi_topk_put_plain(const dcommi_topk *t, int values, dcommi_encoding *call,
                                  unsigned char *out)
{
    for (size_t i = 0; i < t->have; i++) {
        uint32_t b = t->bits[i];
        float sent;
        if (values == DCOMMI_TOPK_F32) {
            uint32_t flushed = dcommi_topk_flush(b);
            memcpy(out + 4 * i, &flushed, 4);
            if (flushed == b) { /* nothing lost: next is already 0, or the old residual */
                continue;
            }
            sent = dcommi_f32_from_bits(flushed);
        } else {
            bool bf16 = values == DCOMMI_TOPK_BF16;
            uint16_t h = dcommi_topk_half(b, bf16, &call->report.clipped);
            memcpy(out + 2 * i, &h, 2);
            sent = dcommi_topk_from_half(h, bf16);
        }
        if (call->residual != NULL && (b & DCOMMI_ABS_BITS) < DCOMMI_INF_BITS) {
            call->next[t->index[i]] = dcommi_f32_from_bits(b) - sent;
        }
    }
}

static dcomm_status dcommi_topk_put_inner(const dcomm_codec *codec, const dcommi_topk *t,
                                          dcommi_encoding *call, unsigned char *out,
                                          unsigned char *workspace)
{
    const dcomm_codec *inner = codec->inner;
    const float *sum = (const float *)(const void *)t->bits;
    float *sent = (float *)(void *)workspace;
    dcommi_encoding of = {.x = sum,
                          .count = t->have,
                          .key = call->key,
                          .wire = out,
                          .workspace = workspace + dcommi_size_lines(4 * t->have),
                          .report = {.kept = t->have, .first_nonfinite = SIZE_MAX}};
    DCOMMI_TRY(inner->ops->encode(inner, &of));
    call->report.clipped += of.report.clipped;
    if (call->residual == NULL) {
        return DCOMM_OK;
    }
    DCOMMI_TRY(inner->ops->decode(inner, out, of.bytes, sent, t->have, false));
    for (size_t i = 0; i < t->have; i++) {
        call->next[t->index[i]] = sum[i] - sent[i];
    }
    return DCOMM_OK;
}

/* ---- decode ---- */

/* A checked wire, and its reader's position. */
typedef struct dcommi_topk_wire {
    dcommi_sparse_reader reader;
    const unsigned char *values;
    float *decoded; /* by the inner codec; freed by the owner */
} dcommi_topk_wire;

/* Check that all values are finite, unless nonfinite=pass. */
static dcomm_status dcommi_topk_check_values(const dcomm_codec *codec, const unsigned char *values,
                                             size_t kept, size_t count)
{
    if (codec->value[DCOMMI_TOPK_VALUES] == DCOMMI_TOPK_F32) {
        return dcommi_read_check(codec, values, kept);
    }
    uint32_t odd = 0, least = codec->value[DCOMMI_TOPK_VALUES] == DCOMMI_TOPK_BF16 ? 0x80 : 0x400;
    for (size_t i = 0; i < kept; i++) {
        uint16_t h;
        memcpy(&h, values + 2 * i, 2);
        odd |= (h & 0x7fffu) + least;
    }
    return (odd & 0x8000u) == 0 || codec->nonfinite == DCOMMI_NONFINITE_PASS
               ? DCOMM_OK
               : dcommi_topk_bad_wire(codec, "has one that is not finite", kept, count);
}

/* Check a wire of `least` to `most` elements and open it. */
static dcomm_status dcommi_topk_open_some(const dcomm_codec *codec, const void *wire, size_t bytes,
                                          size_t count, size_t least, size_t most,
                                          dcommi_topk_wire *w)
{
    dcommi_sparse_head head = {0};
    *w = (dcommi_topk_wire){0};
    if (count > UINT32_MAX || bytes < DCOMMI_SPARSE_HEAD) {
        return dcommi_codec_bad_length(codec, bytes, dcommi_topk_bytes(codec, count, most), count);
    }
    memcpy(&head, wire, sizeof head);
    size_t kept = head.kept;
    if (kept < least || kept > most) {
        return dcommi_fail(DCOMM_ERR_CORRUPT,
                           "%s: a wire holds %zu elements, where %zu were to come",
                           codec->ops->name, kept, most);
    }
    DCOMMI_TRY(dcommi_codec_length(codec, bytes, dcommi_topk_bytes(codec, count, kept), count));
    w->values = (const unsigned char *)wire + DCOMMI_SPARSE_HEAD;
    size_t value_bytes = dcommi_topk_value_bytes(codec, kept);
    if (!dcommi_sparse_check(w->values + value_bytes, kept, count)) {
        return dcommi_topk_bad_wire(codec, "has indices that are out of order or of range", kept,
                                    count);
    }
    dcommi_sparse_open(&w->reader, w->values + value_bytes, kept, count);
    if (codec->inner == NULL) {
        return dcommi_topk_check_values(codec, w->values, kept, count);
    }
    w->decoded = dcommi_alloc_raw(4 * kept);
    dcomm_status status = w->decoded == NULL
                              ? DCOMM_ERR_NO_MEMORY
                              : codec->inner->ops->decode(codec->inner, w->values, value_bytes,
                                                          w->decoded, kept, false);
    if (status != DCOMM_OK) {
        dcommi_free(w->decoded);
        w->decoded = NULL;
    }
    return status;
}

static dcomm_status dcommi_topk_open(const dcomm_codec *codec, const void *wire, size_t bytes,
                                     size_t count, dcommi_topk_wire *w)
{
    size_t most = count <= UINT32_MAX ? dcommi_topk_most(codec, count) : 0;
    return dcommi_topk_open_some(codec, wire, bytes, count, dcommi_topk_is_exact(codec) ? most : 0,
                                 most, w);
}

/* Copy values [at, at + n) as f32. */
static void dcommi_topk_values(const dcomm_codec *codec, const dcommi_topk_wire *w, size_t at,
                               size_t n, float *value)
{
    if (w->decoded != NULL) {
        memcpy(value, w->decoded + at, 4 * n);
    } else if (codec->value[DCOMMI_TOPK_VALUES] == DCOMMI_TOPK_F32) {
        memcpy(value, w->values + 4 * at, 4 * n);
    } else {
        bool bf16 = codec->value[DCOMMI_TOPK_VALUES] == DCOMMI_TOPK_BF16;
        for (size_t i = 0; i < n; i++) {
            uint16_t h;
            memcpy(&h, w->values + 2 * (at + i), 2);
            value[i] = dcommi_topk_from_half(h, bf16);
        }
    }
}

/* Store or add the elements of a wire below `until`. */
static void dcommi_topk_scatter(const dcomm_codec *codec, dcommi_topk_wire *w, uint64_t until,
                                float *x, bool add)
{
    uint32_t index[DCOMMI_TOPK_CHUNK];
    float value[DCOMMI_TOPK_CHUNK];
    for (;;) {
        size_t at = w->reader.at;
        size_t n = dcommi_sparse_next(&w->reader, until, index, DCOMMI_TOPK_CHUNK);
        if (n == 0) {
            return;
        }
        dcommi_topk_values(codec, w, at, n, value);
        for (size_t i = 0; i < n; i++) {
            x[index[i]] = add ? dcommi_f32_canonical(x[index[i]] + value[i]) : value[i];
        }
    }
}

/* Sum several wires block by block, so that a block stays in the cache until its sum is
 * complete. */
static void dcommi_topk_blocks(const dcomm_codec *codec, dcommi_topk_wire *w, size_t n, float *x,
                               size_t count, bool add)
{
    for (uint64_t from = 0; from < count; from += DCOMMI_SPARSE_BLOCK) {
        uint64_t left = count - from;
        if (!add) {
            memset(x + from, 0,
                   sizeof *x * (left < DCOMMI_SPARSE_BLOCK ? left : DCOMMI_SPARSE_BLOCK));
        }
        for (size_t i = 0; i < n; i++) {
            dcommi_topk_scatter(codec, &w[i], from + DCOMMI_SPARSE_BLOCK, x, add || i > 0);
        }
    }
}

static dcomm_status dcommi_topk_decode(const dcomm_codec *codec, const void *wire, size_t bytes,
                                       float *x, size_t count, bool add)
{
    dcommi_topk_wire w;
    DCOMMI_TRY(dcommi_topk_open(codec, wire, bytes, count, &w));
    dcommi_topk_blocks(codec, &w, 1, x, count, add);
    dcommi_free(w.decoded);
    return DCOMM_OK;
}

static dcomm_status dcommi_topk_decode_sum(const dcomm_codec *codec, const dcommi_wires *in,
                                           float *x, size_t count)
{
    dcomm_status status = DCOMM_OK;
    dcommi_topk_wire *w = dcommi_calloc(in->n, sizeof *w);
    if (w == NULL) {
        return DCOMM_ERR_NO_MEMORY;
    }
    for (size_t i = 0; status == DCOMM_OK && i < in->n; i++) {
        status = dcommi_topk_open(codec, in->wires[i], in->bytes[i], count, &w[i]);
    }
    if (status == DCOMM_OK) {
        dcommi_topk_blocks(codec, w, in->n, x, count, false);
    }
    for (size_t i = 0; i < in->n; i++) {
        dcommi_free(w[i].decoded);
    }
    dcommi_free(w);
    return status;
}

/* ---- encode ---- */

/* Enter the selection into the ledger: start from the sums of an empty selection, and correct them
 * for each element that is sent. If a number was not finite or was clipped, do nothing: the library
 * then decodes the wire and counts again. */
static dcomm_status dcommi_topk_tally_kept(const dcomm_codec *codec, const dcommi_topk *t,
                                           dcommi_encoding *call, const unsigned char *values,
                                           unsigned char *workspace)
{
    dcommi_topk_wire w = {.values = values};
    dcommi_tally *tally = call->tally;
    if (call->report.nonfinite > 0 || call->report.clipped > 0) {
        return DCOMM_OK;
    }
    if (codec->inner != NULL) {
        w.decoded = (float *)(void *)workspace;
        DCOMMI_TRY(codec->inner->ops->decode(codec->inner, values,
                                             dcommi_topk_value_bytes(codec, t->have), w.decoded,
                                             t->have, false));
    }
    double(*sum)[DCOMMI_LEDGER_LANES] = tally->sum;
    if (call->residual != NULL) { /* nothing is sent, so all is held back */
        memcpy(sum[DCOMMI_LEDGER_RESIDUAL], sum[DCOMMI_LEDGER_ENCODED], sizeof sum[0]);
    }
    for (size_t at = 0, n; at < t->have; at += n) {
        float value[DCOMMI_TOPK_CHUNK];
        n = t->have - at < DCOMMI_TOPK_CHUNK ? t->have - at : DCOMMI_TOPK_CHUNK;
        dcommi_topk_values(codec, &w, at, n, value);
        for (size_t i = 0; i < n; i++) {
            const uint32_t index = t->index[at + i];
            dcommi_tally_sent(tally, index, value[i]);
            if (call->residual != NULL) {
                dcommi_tally_left(tally, index, dcommi_f32_from_bits(t->bits[at + i]), value[i],
                                  call->next[index]);
            }
        }
    }
    dcommi_tally_whole(tally);
    return DCOMM_OK;
}

static dcomm_status dcommi_topk_encode(const dcomm_codec *codec, dcommi_encoding *call)
{
    unsigned char *workspace = call->workspace;
    size_t most = dcommi_topk_most(codec, call->count);
    dcommi_topk t = {.x = call->x,
                     .residual = call->residual,
                     .next = call->next,
                     .count = call->count,
                     .k = dcommi_codec_wanted(codec, call->count),
                     .pass = codec->nonfinite == DCOMMI_NONFINITE_PASS,
                     .room = dcommi_topk_room(call->count, most),
                     .tally = call->tally};
    size_t column = dcommi_size_lines(4 * t.room);
    t.bits = (uint32_t *)(void *)workspace;
    t.index = (uint32_t *)(void *)(workspace + column);
    bool exact = dcommi_topk_is_chosen(codec, t.count);
    uint32_t threshold = dcommi_topk_guess(&t, exact ? 4 : 0);
    if (!exact) {
        threshold = threshold < DCOMMI_NORMAL_BITS ? DCOMMI_NORMAL_BITS : threshold;
        t.k = most;
    }
    dcommi_topk_run(&t, threshold, exact);

    call->report.kept = t.have;
    call->report.nonfinite = t.nonfinite;
    call->report.first_nonfinite = t.nonfinite > 0 ? t.first_nonfinite : SIZE_MAX;
    call->report.clipped = t.clipped;
    dcommi_sparse_head head = {(uint32_t)t.have};
    unsigned char *values = call->wire + DCOMMI_SPARSE_HEAD;
    memcpy(call->wire, &head, sizeof head);
    if (codec->inner != NULL) {
        DCOMMI_TRY(dcommi_topk_put_inner(codec, &t, call, values, workspace + 2 * column));
    } else {
        dcommi_topk_put_plain(&t, (int)codec->value[DCOMMI_TOPK_VALUES], call, values);
    }
    dcommi_sparse_pack(t.index, t.have, call->count,
                       values + dcommi_topk_value_bytes(codec, t.have));
    call->bytes = dcommi_topk_bytes(codec, call->count, t.have);
    return call->tally == NULL
               ? DCOMM_OK
               : dcommi_topk_tally_kept(codec, &t, call, values, workspace + 2 * column);
}

/* ---- the rows ---- */

/* Give the bound: |C(x)-x|^2 <= (1 - k/d (1-c)) |x|^2, where c is the bound of the values' format.
 * f16 has none: it clips at 65504 and can lose a small number entirely. */
static void dcommi_topk_info(const dcomm_codec *codec, size_t count, dcomm_codec_info *info)
{
    static const double format[] = {0, (double)NAN, 0x1p-16};
    double c;
    if (codec->inner != NULL) {
        dcomm_codec_info of = {.contraction = (double)NAN};
        if (codec->inner->ops->info != NULL) {
            codec->inner->ops->info(codec->inner, dcommi_codec_wanted(codec, count), &of);
        }
        c = of.contraction;
    } else {
        c = format[(int)codec->value[DCOMMI_TOPK_VALUES]];
    }
    if (dcommi_topk_is_exact(codec) && count > 0) {
        double share = (double)dcommi_codec_wanted(codec, count) / (double)count;
        info->contraction = 1 - share * (1 - c);
    }
}

static unsigned dcommi_topk_traits(const dcomm_codec *codec)
{
    /* If an inner codec passes on a number that is not finite, its neighbours are lost too, and
     * their residuals must stay. The library's two passes handle that. */
    bool fused = codec->inner == NULL || codec->nonfinite != DCOMMI_NONFINITE_PASS;
    return DCOMMI_CODEC_SPARSE | (fused ? DCOMMI_CODEC_FEEDBACK : 0u) |
           (dcommi_topk_is_exact(codec) ? DCOMMI_CODEC_EXACT_BYTES : 0u);
}

#define DCOMMI_TOPK_ROW                                               \
    .traits = dcommi_topk_traits, .max_bytes = dcommi_topk_max_bytes, \
    .workspace = dcommi_topk_workspace, .encode = dcommi_topk_encode, \
    .decode = dcommi_topk_decode, .decode_sum = dcommi_topk_decode_sum, .info = dcommi_topk_info

#define DCOMMI_TOPK_OPTION_K(MEANING)                                            \
    {                                                                            \
        "k", DCOMMI_CODEC_NUMBER, NULL, 0.01, 1e-9, (double)UINT32_MAX, MEANING, \
    }

static const dcommi_codec_option dcommi_topk_options[] = {
    DCOMMI_TOPK_OPTION_K("below 1: share of the elements that is sent; else their number"),
    {"values", DCOMMI_CODEC_CHOICE, "f32|f16|bf16", 0, 0, 0, "format of what is sent"},
    {.kind = DCOMMI_CODEC_END}};

static const dcommi_codec_option dcommi_threshold_options[] = {
    DCOMMI_TOPK_OPTION_K("what is aimed at, as topk's k; at most twice as many are sent"),
    {"values", DCOMMI_CODEC_CHOICE, "f32|f16|bf16", 0, 0, 0, "format of what is sent"},
    {.kind = DCOMMI_CODEC_END}};

static const dcommi_codec_ops dcommi_codec_topk = {
    .name = "topk",
    .is = DCOMMI_IS_SELECTION | DCOMMI_IS_SPLIT,
    .summary = "exactly the k elements of largest magnitude, ties to the lower index",
    .options = dcommi_topk_options,
    DCOMMI_TOPK_ROW,
};

static const dcommi_codec_ops dcommi_codec_threshold = {
    .name = "threshold",
    .is = DCOMMI_IS_SELECTION | DCOMMI_IS_SPLIT | DCOMMI_IS_SAMPLED,
    .summary = "elements above a threshold that a sample sets, about k of them",
    .options = dcommi_threshold_options,
    DCOMMI_TOPK_ROW,
};

static const dcommi_codec_option dcommi_topk_qsgd_options[] = {
    DCOMMI_TOPK_OPTION_K("below 1: share of the elements that is sent; else their number"),
    {"bits", DCOMMI_CODEC_INTEGER, NULL, 4, 1, 8, "of a value's code: 1, 2, 4 or 8"},
    {"bucket", DCOMMI_CODEC_INTEGER, NULL, 512, 128, 65536, "values that share a step"},
    {"rounding", DCOMMI_CODEC_CHOICE, "stochastic|nearest", 0, 0, 0, "of the values"},
    {.kind = DCOMMI_CODEC_END}};

static dcomm_status dcommi_topk_qsgd_make(dcomm_codec *codec)
{
    char spec[DCOMMI_CODEC_SPEC_MAX];
    snprintf(spec, sizeof spec, "qsgd:bits=%d,bucket=%d,rounding=%s,nonfinite=%s",
             (int)codec->value[DCOMMI_TOPK_BITS], (int)codec->value[DCOMMI_TOPK_BUCKET],
             codec->value[DCOMMI_TOPK_ROUNDING] == 0 ? "stochastic" : "nearest",
             codec->nonfinite == DCOMMI_NONFINITE_PASS ? "pass" : "zero");
    return dcomm_codec_create(spec, &codec->inner);
}

static const dcommi_codec_ops dcommi_codec_topk_qsgd = {
    .name = "topk+qsgd",
    .is = DCOMMI_IS_SELECTION,
    .summary = "topk, and the values that are sent through qsgd",
    .options = dcommi_topk_qsgd_options,
    .make = dcommi_topk_qsgd_make,
    DCOMMI_TOPK_ROW,
};

#endif
