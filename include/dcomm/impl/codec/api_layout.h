/* api_layout.h - the functions of cuda.h that need no device: they describe a codec to other back
 * ends and interpret their reports. */
#ifndef DCOMMI_API_LAYOUT_H
#define DCOMMI_API_LAYOUT_H

#include "../../cuda.h"
#include "api_codec.h"

_Static_assert((int)DCOMM_FORMAT_SIGN == (int)DCOMMI_FORMAT_SIGN &&
                   (int)DCOMM_FORMAT_F16 == (int)DCOMMI_FORMAT_COUNT,
               "the public numbers of the formats are those of kernels/wire.h");

DCOMM_API dcomm_status dcomm_codec_get_layout(const dcomm_codec *codec, dcomm_codec_layout *layout)
{
    DCOMMI_NEED(codec);
    DCOMMI_NEED(layout);
    *layout = (dcomm_codec_layout){.nonfinite = codec->nonfinite};
    if (dcommi_codec_is(codec, DCOMMI_IS_CAST)) {
        layout->format =
            dcommi_codec_is(codec, DCOMMI_IS_F16) ? DCOMM_FORMAT_F16 : DCOMM_FORMAT_BF16;
        layout->stochastic = dcommi_cast_stochastic(codec);
        return DCOMM_OK;
    }
    if (!dcommi_codec_is(codec, DCOMMI_IS_BUCKETED)) {
        return dcommi_fail(DCOMM_ERR_UNSUPPORTED,
                           "codec %s is not dense: f16, bf16, fp8, qsgd, tern and sign are",
                           codec->spec);
    }
    const dcommi_bucketing *as = &codec->bucketing;
    layout->format = (dcomm_codec_format)as->format;
    layout->bucket = as->bucket;
    layout->two_norm = as->two_norm;
    layout->stochastic = as->stochastic;
    return DCOMM_OK;
}

DCOMM_API dcomm_status dcomm_codec_get_sparse_layout(const dcomm_codec *codec, size_t count,
                                                     dcomm_sparse_layout *layout)
{
    static const dcomm_codec_format formats[] = {DCOMM_FORMAT_F32, DCOMM_FORMAT_F16,
                                                 DCOMM_FORMAT_BF16};
    DCOMMI_NEED(codec);
    DCOMMI_NEED(layout);
    if (!dcommi_codec_is(codec, DCOMMI_IS_SELECTION) || count > UINT32_MAX) {
        return dcommi_fail(DCOMM_ERR_UNSUPPORTED,
                           "codec %s of %zu elements: topk, threshold and topk+qsgd have such a "
                           "layout, of up to 2^32 - 1",
                           codec->spec, count);
    }
    const size_t most = dcommi_topk_most(codec, count);
    const bool exact = dcommi_topk_is_exact(codec);
    *layout = (dcomm_sparse_layout){.wanted = dcommi_codec_wanted(codec, count),
                                    .least = exact ? most : 0,
                                    .most = most,
                                    .exact = dcommi_topk_is_chosen(codec, count)};
    if (!layout->exact) {
        layout->lines = (size_t)dcommi_topk_sample_lines(count);
        layout->rank = (size_t)dcommi_topk_sample_rank(layout->lines, count, layout->wanted, 0);
    }
    if (codec->inner != NULL) {
        DCOMMI_TRY(dcomm_codec_get_layout(codec->inner, &layout->values));
    } else {
        layout->values.format = formats[(int)codec->value[DCOMMI_TOPK_VALUES]];
    }
    layout->values.nonfinite = codec->nonfinite;
    return DCOMM_OK;
}

DCOMM_API dcomm_status dcomm_codec_get_randk_layout(const dcomm_codec *codec, size_t count,
                                                    dcomm_randk_layout *layout)
{
    DCOMMI_NEED(codec);
    DCOMMI_NEED(layout);
    if (!dcommi_codec_is(codec, DCOMMI_IS_DRAWN) || count > UINT32_MAX) {
        return dcommi_fail(DCOMM_ERR_UNSUPPORTED,
                           "codec %s of %zu elements: randk has such a layout, of up to 2^32 - 1",
                           codec->spec, count);
    }
    *layout =
        (dcomm_randk_layout){.kept = dcommi_codec_wanted(codec, count),
                             .unbiased = codec->value[DCOMMI_RANDK_SCALE] == DCOMMI_RANDK_UNBIASED,
                             .nonfinite = codec->nonfinite};
    return DCOMM_OK;
}

DCOMM_API dcomm_status dcomm_codec_get_matrix(const dcomm_codec *codec, size_t count,
                                              dcomm_codec_matrix *shape)
{
    DCOMMI_NEED(codec);
    DCOMMI_NEED(shape);
    if (!dcommi_codec_is(codec, DCOMMI_IS_PRODUCTS)) {
        return dcommi_fail(DCOMM_ERR_UNSUPPORTED, "codec %s makes no matrix: powersgd does",
                           codec->spec);
    }
    dcommi_matrix m = dcommi_powersgd_shape(codec, count);
    *shape = (dcomm_codec_matrix){.count = m.count,
                                  .rows = m.rows,
                                  .cols = m.cols,
                                  .rank = m.rank,
                                  .turns = (int)codec->value[DCOMMI_POWERSGD_TURNS],
                                  .nonfinite = codec->nonfinite};
    return DCOMM_OK;
}

DCOMM_API dcomm_status dcomm_set_error(dcomm_status status, const char *sentence)
{
    return dcommi_fail(status, "%s", sentence != NULL ? sentence : "");
}

DCOMM_API dcomm_status dcomm_cuda_report_check(const dcomm_codec *codec, size_t count,
                                               const dcomm_cuda_report *report,
                                               dcomm_codec_report *out)
{
    DCOMMI_NEED(codec);
    DCOMMI_NEED(report);
    const bool sparse = dcommi_codec_is(codec, DCOMMI_IS_SELECTION) && count <= UINT32_MAX;
    const bool drawn = dcommi_codec_is(codec, DCOMMI_IS_DRAWN);
    const size_t kept = sparse  ? (size_t)report->kept
                        : drawn ? dcommi_codec_wanted(codec, count)
                                : count;
    const size_t first = report->nonfinite > 0 ? (size_t)(UINT64_MAX - report->first) : SIZE_MAX;
    const dcomm_codec_report told = {.bytes = sparse ? dcommi_topk_bytes(codec, count, kept)
                                                     : codec->ops->max_bytes(codec, count),
                                     .kept = kept,
                                     .clipped = (size_t)report->clipped,
                                     .nonfinite = (size_t)report->nonfinite,
                                     .first_nonfinite = first};
    if (out != NULL) {
        *out = told;
    }
    if (report->corrupt != 0) {
        return dcommi_fail(DCOMM_ERR_CORRUPT,
                           "%s: a wire holds a code, a step or a number that does not exist",
                           codec->ops->name);
    }
    if (report->beyond != 0) {
        return report->nonfinite == 0 ? dcommi_read_range(codec)
                                      : dcommi_codec_beyond(codec->ops->name, &told, count);
    }
    if (report->nonfinite > 0 && codec->nonfinite == DCOMMI_NONFINITE_FAIL) {
        return dcommi_fail(DCOMM_ERR_INVALID,
                           "%s: %zu of %zu inputs are not finite; the first is number %zu",
                           codec->ops->name, (size_t)report->nonfinite, count, first);
    }
    return DCOMM_OK;
}

DCOMM_API void dcomm_cuda_ledger_add(dcomm_ledger *ledger, size_t count,
                                     const dcomm_cuda_ledger *sums,
                                     const dcomm_codec_report *report)
{
    _Static_assert(sizeof sums->sums == sizeof ledger->sums, "the same sums");
    ledger->count += sums->count;
    for (int s = 0; s < DCOMMI_LEDGER_SUMS; s++) {
        ledger->sums[s] += sums->sums[s];
    }
    if (sums->sums[DCOMMI_LEDGER_ENCODED] > 0) { /* there was a residual */
        ledger->residual_norm = dcommi_sqrt(sums->sums[DCOMMI_LEDGER_RESIDUAL]);
    }
    dcomm_ledger_encoded(ledger, count, report);
}

#endif
