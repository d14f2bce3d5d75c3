/* api_codec.h - the functions of compress.h: they check arguments and call the codec. */
#ifndef DCOMMI_API_CODEC_H
#define DCOMMI_API_CODEC_H

#include "spec.h"
#include "ledger.h"

/* ---- life ---- */

/* Return the spec of the codec itself: SPEC of "auto:SPEC", a default for "auto". *automatic: it
 * was one of these. All-reduce then chooses between SPEC, a cast to bf16 and no codec
 * (api_auto.h); everything else uses SPEC. */
static const char *dcommi_codec_candidate(const char *spec, bool *automatic)
{
    static const char word[] = "auto";
    size_t len = sizeof word - 1;
    *automatic = strncmp(spec, word, len) == 0 && (spec[len] == '\0' || spec[len] == ':');
    return !*automatic ? spec : spec[len] == '\0' ? "qsgd:bits=8" : spec + len + 1;
}

DCOMM_API dcomm_status dcomm_codec_create(const char *spec, dcomm_codec **codec_p)
{
    DCOMMI_NEED(spec);
    DCOMMI_NEED(codec_p);
    dcomm_codec *codec = dcommi_alloc(sizeof *codec);
    if (codec == NULL) {
        return DCOMM_ERR_NO_MEMORY;
    }
    const char *candidate = dcommi_codec_candidate(spec, &codec->automatic);
    dcomm_status status = dcommi_codec_parse(codec, candidate);
    if (status == DCOMM_OK && codec->ops->make != NULL) {
        status = codec->ops->make(codec);
    }
    if (status == DCOMM_OK && codec->automatic) {
        char cast[64];
        snprintf(cast, sizeof cast, "bf16:nonfinite=%s",
                 codec->nonfinite == DCOMMI_NONFINITE_FAIL   ? "fail"
                 : codec->nonfinite == DCOMMI_NONFINITE_ZERO ? "zero"
                                                             : "pass");
        status = dcomm_codec_create(cast, &codec->cast);
    }
    if (status != DCOMM_OK) {
        dcomm_codec_destroy(&codec);
        return status;
    }
    dcommi_codec_write_spec(codec);
    *codec_p = codec;
    return DCOMM_OK;
}

DCOMM_API dcomm_status dcomm_codec_destroy(dcomm_codec **codec_p)
{
    if (codec_p != NULL && *codec_p != NULL) {
        dcomm_codec_destroy(&(*codec_p)->inner);
        dcomm_codec_destroy(&(*codec_p)->cast);
        dcommi_free(*codec_p);
        *codec_p = NULL;
    }
    return DCOMM_OK;
}

/* Return the place of option k in a codec's spec, or NULL if the codec has none. */
static const char *dcommi_codec_find_k(const dcomm_codec *codec)
{
    const char *option = strpbrk(codec->spec, ":,");
    while (option != NULL && strncmp(option + 1, "k=", 2) != 0) {
        option = strpbrk(option + 1, ":,");
    }
    return option != NULL ? option + 1 : NULL;
}

/* Return option k: below 1 a share of the elements, else their number; -1 if the codec has
 * none. */
static double dcommi_codec_k(const dcomm_codec *codec)
{
    const char *at = dcommi_codec_find_k(codec);
    double k = -1;
    return at != NULL && dcommi_text_decimal(at + 2, &k) != NULL ? k : -1;
}

/* Create the same codec with another k. A share is at least what the option allows. It is written
 * exactly, so that a share just below 1 does not become the number 1. */
static dcomm_status dcommi_codec_with_k(const dcomm_codec *codec, double k, dcomm_codec **codec_p)
{
    char spec[DCOMMI_CODEC_SPEC_MAX];
    const char *at = dcommi_codec_find_k(codec);
    k = k < 1 ? dcommi_f64_max(k, 1e-9) : k;
    dcommi_snprintf(spec, sizeof spec, "%.*sk=%.17g%s", (int)(at - codec->spec), codec->spec, k,
                    at + strcspn(at, ","));
    return dcomm_codec_create(spec, codec_p);
}

/* ---- properties ---- */

DCOMM_API const char *dcomm_codec_spec(const dcomm_codec *codec)
{
    return codec != NULL ? codec->spec : "";
}

DCOMM_API const char *dcomm_codec_name(size_t i)
{
    size_t n = sizeof dcommi_codec_table / sizeof *dcommi_codec_table - 1;
    return i < n ? dcommi_codec_table[i]->name : NULL;
}

static void dcommi_codec_help_line(dcommi_print_text *to, const dcommi_codec_option *option,
                                   double preset)
{
    dcommi_print_add(to, "  %s=", option->name);
    dcommi_codec_show(to, option, preset);
    dcommi_print_add(to, "  (");
    dcommi_codec_allowed(to, option);
    dcommi_print_add(to, ")  %s\n", option->meaning);
}

DCOMM_API const char *dcomm_codec_help(const char *name)
{
    static _Thread_local char help[2048];
    const dcommi_codec_ops *ops = name != NULL ? dcommi_codec_find(name, strlen(name)) : NULL;
    if (ops == NULL) {
        return NULL;
    }
    dcommi_print_text to = {help, sizeof help, 0};
    dcommi_print_add(&to, "%s: %s\n", ops->name, ops->summary);
    for (const dcommi_codec_option *o = ops->options; o->kind != DCOMMI_CODEC_END; o++) {
        dcommi_codec_help_line(&to, o, o->preset);
    }
    dcommi_codec_help_line(&to, &dcommi_codec_common, 0);
    return help;
}

DCOMM_API size_t dcomm_codec_max_bytes(const dcomm_codec *codec, size_t count)
{
    return codec != NULL ? codec->ops->max_bytes(codec, count) : 0;
}

static size_t dcommi_codec_own_workspace(const dcomm_codec *codec, size_t count)
{
    return codec->ops->workspace != NULL ? dcommi_size_lines(codec->ops->workspace(codec, count))
                                         : 0;
}

/* Return the bytes of an array of `count` f32 in a workspace. */
static size_t dcommi_codec_array_bytes(size_t count)
{
    return dcommi_size_lines(dcommi_size_mul(count, sizeof(float)));
}

/* Return the bytes of the arrays that feedback in two passes needs beside the codec's own
 * workspace. */
static size_t dcommi_codec_feedback_bytes(const dcomm_codec *codec, size_t count)
{
    bool fused = dcommi_codec_has(codec, DCOMMI_CODEC_FEEDBACK);
    return fused ? 0 : dcommi_size_mul(2, dcommi_codec_array_bytes(count));
}

DCOMM_API size_t dcomm_codec_workspace_bytes(const dcomm_codec *codec, size_t count)
{
    return codec == NULL ? 0
                         : dcommi_size_add(dcommi_codec_own_workspace(codec, count),
                                           dcommi_codec_feedback_bytes(codec, count));
}

DCOMM_API size_t dcomm_codec_recode_workspace_bytes(const dcomm_codec *codec, size_t count)
{
    size_t bytes = dcomm_codec_workspace_bytes(codec, count);
    return codec == NULL || codec->ops->recode != NULL
               ? bytes
               : dcommi_size_add(bytes, dcommi_codec_array_bytes(count));
}

DCOMM_API dcomm_status dcomm_codec_get_info(const dcomm_codec *codec, size_t count,
                                            dcomm_codec_info *info)
{
    DCOMMI_NEED(codec);
    DCOMMI_NEED(info);
    unsigned traits = codec->ops->traits(codec);
    *info = (dcomm_codec_info){.name = codec->ops->name,
                               .unbiased = (traits & DCOMMI_CODEC_UNBIASED) != 0,
                               .linear = (traits & DCOMMI_CODEC_LINEAR) != 0,
                               .sparse = (traits & DCOMMI_CODEC_SPARSE) != 0,
                               .exact_bytes = (traits & DCOMMI_CODEC_EXACT_BYTES) != 0,
                               .granule = 1,
                               .max_bytes = codec->ops->max_bytes(codec, count),
                               .omega = (double)NAN,
                               .contraction = (double)NAN};
    info->bits = count > 0 ? 8.0 * (double)info->max_bytes / (double)count : 0;
    if (codec->ops->info != NULL) {
        codec->ops->info(codec, count, info);
    }
    return DCOMM_OK;
}

/* ---- encoding ---- */

static dcomm_status dcommi_codec_encode_args(const char *call, const dcomm_codec *codec,
                                             const void *wire, size_t capacity, size_t count,
                                             const size_t *bytes_p)
{
    if (codec == NULL || bytes_p == NULL) {
        return dcommi_fail(DCOMM_ERR_INVALID, "%s: %s is NULL", call,
                           codec == NULL ? "codec" : "bytes_p");
    }
    size_t need = codec->ops->max_bytes(codec, count);
    if (need == SIZE_MAX || capacity < need) {
        return dcommi_fail(DCOMM_ERR_INVALID,
                           "%s: %s may write %zu bytes for %zu elements, and capacity is %zu", call,
                           codec->ops->name, need, count, capacity);
    }
    if (wire == NULL && need > 0) {
        return dcommi_fail(DCOMM_ERR_INVALID, "%s: wire is NULL", call);
    }
    return DCOMM_OK;
}

/* Use the caller's workspace, or allocate one of `bytes` for this call; the caller frees *own. */
static dcomm_status dcommi_codec_workspace(void **workspace, size_t bytes, void **own)
{
    static float none; /* an address for a workspace of 0 bytes */
    *own = NULL;
    if (*workspace == NULL) {
        *own = bytes > 0 ? dcommi_alloc_raw(bytes) : NULL;
        *workspace = bytes > 0 ? *own : &none;
    }
    return *workspace == NULL ? DCOMM_ERR_NO_MEMORY : DCOMM_OK;
}

/* Encode with feedback by a codec that takes no residual. */
static dcomm_status dcommi_codec_two_passes(const dcomm_codec *codec, dcommi_encoding *call)
{
    const float *x = call->x, *residual = call->residual;
    unsigned char *at = call->workspace;
    float *e = (float *)(void *)at;
    float *sent = (float *)(void *)(at + dcommi_codec_array_bytes(call->count));
    size_t clipped = 0;
    dcommi_encoding plain = *call;
    for (size_t i = 0; i < call->count; i++) {
        if (!dcommi_f32_nonfinite(x[i])) {
            e[i] = x[i] + residual[i];
            if (dcommi_f32_nonfinite(e[i])) {
                e[i] = dcommi_f32_bounded(e[i]);
                clipped++;
            }
        } else if (codec->nonfinite == DCOMMI_NONFINITE_PASS) {
            e[i] = x[i];
        } else {
            dcommi_codec_nonfinite(&plain, i);
            clipped += dcommi_f32_nonfinite(residual[i]);
            e[i] = dcommi_f32_bounded(residual[i]);
        }
    }
    plain.x = e;
    plain.residual = NULL;
    plain.next = NULL;
    plain.tally = NULL;
    plain.workspace = at + 2 * dcommi_codec_array_bytes(call->count);
    DCOMMI_TRY(codec->ops->encode(codec, &plain));
    DCOMMI_TRY(codec->ops->decode(codec, plain.wire, plain.bytes, sent, call->count, false));
    for (size_t from = 0, n; from < call->count; from += n) {
        n = call->count - from < DCOMMI_TALLY_ZEROS ? call->count - from : DCOMMI_TALLY_ZEROS;
        for (size_t i = from; i < from + n; i++) {
            /* Test e too: the codec may have left out an element that is not finite. */
            bool odd = dcommi_f32_nonfinite(sent[i]) || dcommi_f32_nonfinite(e[i]);
            call->next[i] = odd ? residual[i] : dcommi_f32_bounded(e[i] - sent[i]);
        }
        if (call->tally != NULL) {
            dcommi_tally_compare(call->tally, from, sent + from, n);
            dcommi_tally_held(call->tally, sent + from, call->next + from, n);
            call->tally->done = true;
        }
    }
    call->bytes = plain.bytes;
    call->report = plain.report;
    call->report.clipped += clipped;
    return DCOMM_OK;
}

static dcomm_status dcommi_codec_encode(const dcomm_codec *codec, dcommi_encoding *call)
{
    bool fused = dcommi_codec_has(codec, DCOMMI_CODEC_FEEDBACK);
    return call->residual != NULL && !fused ? dcommi_codec_two_passes(codec, call)
                                            : codec->ops->encode(codec, call);
}

/* Take the sums of a ledger, unless the codec did. */
static dcomm_status dcommi_codec_tally(const dcomm_codec *codec, dcommi_encoding *call)
{
    if (call->tally == NULL || call->tally->done || call->count == 0) {
        return DCOMM_OK;
    }
    float *y = dcommi_alloc_raw(dcommi_codec_array_bytes(call->count));
    if (y == NULL) {
        return DCOMM_ERR_NO_MEMORY;
    }
    *call->tally = (dcommi_tally){.x = call->tally->x, .done = true};
    dcomm_status status = codec->ops->decode(codec, call->wire, call->bytes, y, call->count, false);
    if (status == DCOMM_OK) {
        dcommi_tally_compare(call->tally, 0, y, call->count);
    }
    if (status == DCOMM_OK && call->residual != NULL) {
        dcommi_tally_held(call->tally, y, call->next, call->count);
    }
    dcommi_free(y);
    return status;
}

static dcommi_encoding dcommi_codec_call(const float *x, const float *residual, float *next,
                                         size_t count, const dcomm_codec_key *key, void *wire)
{
    dcommi_encoding call = {.x = x,
                            .residual = residual,
                            .next = next,
                            .count = count,
                            .wire = wire,
                            .report = {.kept = count, .first_nonfinite = SIZE_MAX}};
    if (key != NULL) {
        call.key = *key;
    }
    return call;
}

/* Fail because sums of a recoding are not finite, though the numbers of each wire are. */
static dcomm_status dcommi_codec_beyond(const char *what, const dcomm_codec_report *report,
                                        size_t count)
{
    return dcommi_fail(DCOMM_ERR_RANGE,
                       "%s: %zu of %zu sums of wires are beyond f32; the first is number %zu", what,
                       report->nonfinite, count, report->first_nonfinite);
}

/* Finish an encoding: take the ledger's sums, set the outputs, apply the nonfinite policy. */
static dcomm_status dcommi_codec_encoded(const dcomm_codec *codec, dcomm_status status,
                                         dcommi_encoding *call, const char *what, size_t *bytes_p,
                                         dcomm_codec_report *report)
{
    DCOMMI_TRY(status);
    DCOMMI_TRY(dcommi_codec_tally(codec, call));
    *bytes_p = call->report.bytes = call->bytes;
    if (report != NULL) {
        *report = call->report;
    }
    if (call->report.nonfinite > 0 && codec->nonfinite == DCOMMI_NONFINITE_FAIL) {
        size_t at = call->report.first_nonfinite;
        char value[32];
        if (call->x == NULL) {
            return dcommi_codec_beyond(what, &call->report, call->count);
        }
        dcommi_snprintf(value, sizeof value, "%g", (double)call->x[at]);
        return dcommi_fail(DCOMM_ERR_INVALID,
                           "%s: %zu of %zu inputs are not finite; the first is number %zu: %s",
                           what, call->report.nonfinite, call->count, at, value);
    }
    return DCOMM_OK;
}

static dcomm_status dcommi_codec_run(const char *what, const dcomm_codec *codec,
                                     dcommi_encoding *call, size_t capacity, size_t *bytes_p,
                                     void *workspace, dcomm_codec_report *report)
{
    DCOMMI_TRY(dcommi_codec_encode_args(what, codec, call->wire, capacity, call->count, bytes_p));
    if (call->x == NULL && call->count > 0) {
        return dcommi_fail(DCOMM_ERR_INVALID, "%s: x is NULL, and count is %zu", what, call->count);
    }
    size_t need = call->residual == NULL ? dcommi_codec_own_workspace(codec, call->count)
                                         : dcomm_codec_workspace_bytes(codec, call->count);
    void *own;
    DCOMMI_TRY(dcommi_codec_workspace(&workspace, need, &own));
    call->workspace = workspace;
    dcomm_status status = dcommi_codec_encode(codec, call);
    dcommi_free(own);
    return dcommi_codec_encoded(codec, status, call, what, bytes_p, report);
}

DCOMM_API dcomm_status dcomm_encode(const dcomm_codec *codec, const float *x, size_t count,
                                    const dcomm_codec_key *key, void *wire, size_t capacity,
                                    size_t *bytes_p, void *workspace, dcomm_codec_report *report)
{
    dcommi_encoding call = dcommi_codec_call(x, NULL, NULL, count, key, wire);
    return dcommi_codec_run("dcomm_encode", codec, &call, capacity, bytes_p, workspace, report);
}

DCOMM_API dcomm_status dcomm_encode_feedback(const dcomm_codec *codec, const float *x,
                                             const float *residual, float *next, size_t count,
                                             const dcomm_codec_key *key, void *wire,
                                             size_t capacity, size_t *bytes_p, void *workspace,
                                             dcomm_codec_report *report)
{
    if ((residual == NULL || next == NULL) && count > 0) {
        return dcommi_fail(DCOMM_ERR_INVALID, "dcomm_encode_feedback: %s is NULL",
                           residual == NULL ? "residual" : "next");
    }
    dcommi_encoding call = dcommi_codec_call(x, residual, next, count, key, wire);
    return dcommi_codec_run("dcomm_encode_feedback", codec, &call, capacity, bytes_p, workspace,
                            report);
}

/* Add an encoding and its sums to the ledger. residual_norm is that of this call's residual. */
static void dcommi_ledger_count(dcomm_ledger *ledger, const dcommi_encoding *call)
{
    dcommi_ledger_add(ledger, call->tally);
    dcomm_ledger_encoded(ledger, call->count, &call->report);
    if (call->residual != NULL) {
        ledger->residual_norm = dcommi_sqrt(dcommi_tally_sum(call->tally, DCOMMI_LEDGER_RESIDUAL));
    }
}

DCOMM_API dcomm_status dcomm_encode_ledger(const dcomm_codec *codec, const float *x,
                                           const float *residual, float *next, size_t count,
                                           const dcomm_codec_key *key, void *wire, size_t capacity,
                                           size_t *bytes_p, void *workspace,
                                           dcomm_codec_report *report, dcomm_ledger *ledger)
{
    if (ledger == NULL || (residual != NULL && next == NULL)) {
        return dcommi_fail(DCOMM_ERR_INVALID, "dcomm_encode_ledger: %s is NULL",
                           ledger == NULL ? "ledger" : "next");
    }
    dcommi_tally tally = {.x = x};
    dcommi_encoding call = dcommi_codec_call(x, residual, next, count, key, wire);
    call.tally = &tally;
    dcomm_status status =
        dcommi_codec_run("dcomm_encode_ledger", codec, &call, capacity, bytes_p, workspace, report);
    if (status == DCOMM_OK || call.report.nonfinite > 0) {
        dcommi_ledger_count(ledger, &call);
    }
    return status;
}

/* ---- decoding ---- */

static dcomm_status dcommi_codec_decode_args(const char *call, const dcomm_codec *codec,
                                             const void *const *wires, const size_t *bytes,
                                             size_t n, const void *x, size_t count)
{
    if (codec == NULL || (x == NULL && count > 0) || wires == NULL || bytes == NULL || n == 0) {
        return dcommi_fail(DCOMM_ERR_INVALID, "%s: %s", call,
                           codec == NULL   ? "codec is NULL"
                           : n == 0        ? "there are no wires"
                           : wires == NULL ? "wires is NULL"
                           : bytes == NULL ? "bytes is NULL"
                                           : "x is NULL");
    }
    for (size_t i = 0; i < n; i++) {
        if (wires[i] == NULL && bytes[i] > 0) {
            return dcommi_fail(DCOMM_ERR_INVALID, "%s: wire number %zu is NULL", call, i);
        }
    }
    return DCOMM_OK;
}

DCOMM_API dcomm_status dcomm_decode(const dcomm_codec *codec, const void *wire, size_t bytes,
                                    float *x, size_t count)
{
    DCOMMI_TRY(dcommi_codec_decode_args("dcomm_decode", codec, &wire, &bytes, 1, x, count));
    return codec->ops->decode(codec, wire, bytes, x, count, false);
}

DCOMM_API dcomm_status dcomm_decode_add(const dcomm_codec *codec, const void *wire, size_t bytes,
                                        float *acc, size_t count)
{
    DCOMMI_TRY(dcommi_codec_decode_args("dcomm_decode_add", codec, &wire, &bytes, 1, acc, count));
    return codec->ops->decode(codec, wire, bytes, acc, count, true);
}

static dcomm_status dcommi_codec_sum(const dcomm_codec *codec, const dcommi_wires *in, float *x,
                                     size_t count)
{
    if (in->n > 1 && codec->ops->decode_sum != NULL) {
        return codec->ops->decode_sum(codec, in, x, count);
    }
    for (size_t i = 0; i < in->n; i++) {
        DCOMMI_TRY(codec->ops->decode(codec, in->wires[i], in->bytes[i], x, count, i > 0));
    }
    return DCOMM_OK;
}

DCOMM_API dcomm_status dcomm_decode_sum(const dcomm_codec *codec, const void *const *wires,
                                        const size_t *bytes, size_t n, float *x, size_t count)
{
    DCOMMI_TRY(dcommi_codec_decode_args("dcomm_decode_sum", codec, wires, bytes, n, x, count));
    dcommi_wires in = {wires, bytes, n};
    return dcommi_codec_sum(codec, &in, x, count);
}

/* ---- decoding and encoding again ---- */

static dcomm_status dcommi_codec_recode(const dcomm_codec *codec, const dcommi_wires *in,
                                        float factor, dcommi_encoding *call)
{
    if (codec->ops->recode != NULL) {
        return codec->ops->recode(codec, in, factor, call);
    }
    float *sum = call->workspace;
    DCOMMI_TRY(dcommi_codec_sum(codec, in, sum, call->count));
    for (size_t i = 0; factor != 1 && i < call->count; i++) {
        sum[i] *= factor;
    }
    call->workspace = (unsigned char *)call->workspace + dcommi_codec_array_bytes(call->count);
    call->x = sum;
    dcomm_status status = dcommi_codec_encode(codec, call);
    call->x = NULL;
    return status;
}

static dcomm_status dcommi_codec_recode_run(const dcomm_codec *codec, const dcommi_wires *in,
                                            float factor, dcommi_encoding *call, size_t capacity,
                                            size_t *bytes_p, void *workspace,
                                            dcomm_codec_report *report)
{
    const size_t count = call->count;
    DCOMMI_TRY(
        dcommi_codec_encode_args("dcomm_recode", codec, call->wire, capacity, count, bytes_p));
    DCOMMI_TRY(dcommi_codec_decode_args("dcomm_recode", codec, in->wires, in->bytes, in->n,
                                        call->wire, count));
    if ((call->residual != NULL && call->next == NULL) || dcommi_f32_nonfinite(factor)) {
        return dcommi_fail(DCOMM_ERR_INVALID, "dcomm_recode: %s",
                           dcommi_f32_nonfinite(factor) ? "factor is not finite" : "next is NULL");
    }
    void *own;
    DCOMMI_TRY(
        dcommi_codec_workspace(&workspace, dcomm_codec_recode_workspace_bytes(codec, count), &own));
    call->workspace = workspace;
    dcomm_status status = dcommi_codec_recode(codec, in, factor, call);
    dcommi_free(own);
    return dcommi_codec_encoded(codec, status, call, "dcomm_recode", bytes_p, report);
}

DCOMM_API dcomm_status dcomm_recode(const dcomm_codec *codec, const void *const *wires,
                                    const size_t *bytes, size_t n, float factor,
                                    const float *residual, float *next, size_t count,
                                    const dcomm_codec_key *key, void *wire, size_t capacity,
                                    size_t *bytes_p, void *workspace, dcomm_codec_report *report)
{
    dcommi_wires in = {wires, bytes, n};
    dcommi_encoding call = dcommi_codec_call(NULL, residual, next, count, key, wire);
    return dcommi_codec_recode_run(codec, &in, factor, &call, capacity, bytes_p, workspace, report);
}

#endif
