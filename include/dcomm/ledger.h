/* ledger.h - what a lossy encoding did to numbers: errors, bits, and what error feedback holds.
 *
 * A ledger is a plain struct, zero at first. Each call adds to it, so that one ledger serves a
 * call, the pieces of a tensor, or a training run. Sums are taken in f64, in an order that depends
 * on the count (topk and randk: and on what is kept) alone; errors are rounded to f32 first. */
#ifndef DCOMM_LEDGER_H
#define DCOMM_LEDGER_H

#include "compress.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct dcomm_ledger {
    uint64_t count; /* elements compared */
    double nmse;    /* sum (y-x)^2 / sum x^2: 0 is exact; 0 too where all x and y are 0 */
    double cosine;  /* of the angle between x and y; NaN where one of them is 0 */
    /* sum sign(x)(y-x) / sum |x|: below 0, y is too small; where rounding is unbiased, near 0 */
    double mean_signed_error;
    uint64_t clipped, nonfinite, kept; /* as in dcomm_codec_report */
    uint64_t encoded;                  /* elements */
    uint64_t wire_bytes;
    double bits;          /* on the wire per encoded element */
    double residual_norm; /* two-norm of what error feedback holds back since the last encoding */
    double contraction;   /* measured: sum |e-C(e)|^2 / sum |e|^2, e being gradient + residual */
    double sums[8];       /* what the rest is computed from */
} dcomm_ledger;

/* Compare y with x. Elements where one of them, or y - x, is not finite are left out. */
DCOMM_API void dcomm_ledger_compare(dcomm_ledger *ledger, const float *x, const float *y,
                                    size_t count);
/* The same where x is known in f64: a sum over ranks. */
DCOMM_API void dcomm_ledger_compare_f64(dcomm_ledger *ledger, const double *x, const float *y,
                                        size_t count);
/* dcomm_encode, or where residual is not NULL dcomm_encode_feedback, and in the same pass what it
 * did into the ledger: what arrives is compared with x, and with feedback the residual and the
 * contraction are counted. Sums are the same from every instruction set. powersgd knows what
 * arrives only after its last product, so that it is compared as the residual is taken; sparse
 * codecs take a decoding and a second pass where numbers were not finite or were clipped, or where
 * what was sent makes up all but 2^-24 of the squares. Errors:
 * as these two; of non-finite inputs the ledger has counted the others. */
DCOMM_API dcomm_status dcomm_encode_ledger(const dcomm_codec *codec, const float *x,
                                           const float *residual, float *next, size_t count,
                                           const dcomm_codec_key *key, void *wire, size_t capacity,
                                           size_t *bytes_p, void *workspace,
                                           dcomm_codec_report *report, dcomm_ledger *ledger);
/* Count an encoding of `count` elements. */
DCOMM_API void dcomm_ledger_encoded(dcomm_ledger *ledger, size_t count,
                                    const dcomm_codec_report *report);
/* Add what another ledger saw (of another piece, or received from another rank). */
DCOMM_API void dcomm_ledger_merge(dcomm_ledger *ledger, const dcomm_ledger *other);

#ifdef __cplusplus
}
#endif
#endif
