/* ledger.h - errors and bits of lossy encodings, and the norm of the residual of error feedback.
 *
 * A ledger is a plain struct; zero it first. Each call adds to it, so one ledger serves a call,
 * the pieces of a tensor, or a training run. Sums are in f64, in an order that depends only on the
 * count (topk and randk: also on the kept elements). Errors are rounded to f32 before they are
 * added. */
#ifndef DCOMM_LEDGER_H
#define DCOMM_LEDGER_H

#include "compress.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Errors and bits, added up over encodings. x is the input, y the decoded output. */
typedef struct dcomm_ledger {
    uint64_t count; /* elements compared */
    double nmse;    /* normalized mean squared error: sum (y-x)^2 / sum x^2; 0: exact, or all x and
                       y are 0 */
    double cosine;  /* of the angle between x and y; NaN: one of them is 0 */
    /* Sum sign(x)(y-x) / sum |x|. Below 0, y is too small on average. It is near 0 with unbiased
     * rounding. */
    double mean_signed_error;
    uint64_t clipped, nonfinite, kept; /* as in dcomm_codec_report */
    uint64_t encoded;                  /* elements encoded */
    uint64_t wire_bytes;               /* bytes of all wires */
    double bits;                       /* bits on the wire per encoded element */
    double residual_norm;              /* two-norm of the residual since the last encoding */
    double contraction; /* measured: sum |e-C(e)|^2 / sum |e|^2 with e = gradient + residual */
    double sums[8];     /* sums that the fields above are computed from */
    /* The ranks have changed (dcomm_buckets_rebind): */
    uint64_t missing; /* ranks whose residuals were lost with them */
    double carried;   /* two-norm of the residuals that all ranks kept the last time */
    double lost;      /* two-norm of the residuals that were set to zero; EF21: and of the missing
                         ranks' part of the estimate */
} dcomm_ledger;

/* Compare y with x. Elements with a non-finite x, y or y - x are left out. */
DCOMM_API void dcomm_ledger_compare(dcomm_ledger *ledger, const float *x, const float *y,
                                    size_t count);
/* Compare y with an x in f64, such as a sum over ranks. */
DCOMM_API void dcomm_ledger_compare_f64(dcomm_ledger *ledger, const double *x, const float *y,
                                        size_t count);
/* Encode as dcomm_encode does, or with residual as dcomm_encode_feedback does, and count the
 * encoding in the ledger. In the same pass, compare the decoded values with x, and with feedback
 * also count residual and contraction. Every instruction set gives the same sums. powersgd
 * compares when it computes the residual, after its last product. Sparse codecs decode and take a
 * second pass in two cases: some numbers were not finite or were clipped, or the sent elements
 * make up all but 2^-24 of the sum of squares.
 * Errors: those of these two functions. After non-finite inputs the ledger has counted the finite
 * ones. */
DCOMM_API dcomm_status dcomm_encode_ledger(const dcomm_codec *codec, const float *x,
                                           const float *residual, float *next, size_t count,
                                           const dcomm_codec_key *key, void *wire, size_t capacity,
                                           size_t *bytes_p, void *workspace,
                                           dcomm_codec_report *report, dcomm_ledger *ledger);
/* Count an encoding of `count` elements. */
DCOMM_API void dcomm_ledger_encoded(dcomm_ledger *ledger, size_t count,
                                    const dcomm_codec_report *report);
/* Add another ledger to this one, such as that of another piece or another rank. */
DCOMM_API void dcomm_ledger_merge(dcomm_ledger *ledger, const dcomm_ledger *other);

#ifdef __cplusplus
}
#endif
#endif
