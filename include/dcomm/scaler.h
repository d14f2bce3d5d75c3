/* scaler.h - safe mixed precision: scale the loss so that small gradients survive 16 bits, and skip
 * a step on all ranks if any gradient of any rank is infinite or NaN.
 *
 *     dcomm_scaler_create(b, &opts, &s);                        once, after the buckets
 *     for each step:
 *         backward(loss * dcomm_scaler_scale(s));               gradients are scaled
 *         dcomm_param_mark_ready(b, i, NULL); ...
 *         dcomm_buckets_wait(b);
 *         dcomm_scaler_step(s, &verdict);                       gradients are unscaled, and clipped
 *         if (!verdict.skip) optimizer();
 *     dcomm_scaler_destroy(&s);                                 before the buckets
 *
 * Each gradient is checked when it is marked ready, while it is copied into its bucket or in place.
 * The findings go to all ranks after the last bucket, 48 bytes a rank, while that is under way. The
 * pass that computes the norm checks the sums. So all ranks know the same in the same step,
 * including whose gradient it was.
 *
 * Kernels check, unscale and clip gradients in device memory, in the order of their bucket's
 * stream: after the work that the stream of dcomm_param_mark_ready held. The findings go to all
 * ranks when the last bucket on a device has its result.
 *
 * A skipped step halves the scale, and a number of good steps doubles it, by findings that all
 * ranks share: the scale is the same everywhere. If scales differ all the same (a rank loaded
 * another state), the next step finds out.
 *
 * docs/mixed-precision.md has a program to start from, and explains sums in 16 bits. */
#ifndef DCOMM_SCALER_H
#define DCOMM_SCALER_H

#include "bucket.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The loss scale of a set of buckets. */
typedef struct dcomm_scaler dcomm_scaler;

/* All zero means the defaults. Must be the same on every rank. Powers of two lose no bits. */
typedef struct dcomm_scaler_opts {
    double scale;      /* at the beginning (default: 32768) */
    double growth;     /* multiplies the scale after `interval` good steps in a row; at least 1; 1:
                          the scale never grows (default: 2) */
    double backoff;    /* multiplies the scale after a skipped step; above 0 and at most 1 (default:
                          0.5) */
    uint64_t interval; /* good steps in a row before the scale grows (default: 2000) */
    double least, most; /* limits of the scale (default: 2^-14, 2^24) */
    double clip; /* clip the two-norm of all unscaled gradients to this (default: 0, do not) */
    bool leave;  /* leave the gradients as they are; the optimizer multiplies them with
                    verdict.factor. For f16 gradients, which are too small for f16 once they
                    are unscaled (default: multiply them in place) */
} dcomm_scaler_opts;

/* The outcome of a step; the same on all ranks. */
typedef struct dcomm_scaler_verdict {
    bool skip;     /* do not use the gradients: they are undefined */
    double scale;  /* of this step */
    double next;   /* scale of the next step */
    double norm;   /* two-norm of the unscaled gradients before clipping; 0 if skip */
    double factor; /* 1/scale, times the clipping factor: the gradients were multiplied with it, or
                      with opts.leave should be; 0 if skip */
    int bad_ranks; /* number of ranks that had a non-finite gradient */
    int rank; /* the rank that had one earliest in its order of readiness, the lowest of several;
                 -1: all gradients were finite, and their sum is not */
    size_t param; /* parameter: the first bad one that this rank marked ready, or the first bad sum;
                     the number of parameters: none, only the norm is not finite */
    const char *name; /* of the parameter, as long as the buckets live; NULL: none */
    size_t index;     /* its first non-finite element */
    double value;     /* of that element */
} dcomm_scaler_verdict;

/* Create a scaler for buckets; collective, not in a step. opts may be NULL. The buckets must
 * outlive it, and have one at a time.
 * Errors, on all ranks: DCOMM_ERR_INVALID (an option of some rank; there is a scaler already),
 * DCOMM_ERR_MISMATCH (an option differs), DCOMM_ERR_NO_MEMORY, DCOMM_ERR_SYSTEM (a device has no
 * memory, or fails). */
DCOMM_API DCOMM_CHECKED dcomm_status dcomm_scaler_create(dcomm_buckets *b,
                                                         const dcomm_scaler_opts *opts,
                                                         dcomm_scaler **s_p);
/* Destroy a scaler and set *s_p to NULL. Not in a step, and between the same steps on all ranks. */
DCOMM_API dcomm_status dcomm_scaler_destroy(dcomm_scaler **s_p);

/* Return the scale: multiply the loss with it before backward. 1 if s is NULL. */
DCOMM_API double dcomm_scaler_scale(const dcomm_scaler *s);

/* Judge a step that sent, after dcomm_buckets_wait: unscale and clip this rank's part of the
 * gradients of floats, and move the scale. Parameters with dcomm_bucket_param.aside are left alone.
 * After a skipped step, error feedback is undone (not with its in_place). With opts.sharded it is
 * collective and exchanges 48 bytes a rank; else each rank calls it alone, with the same outcome.
 * It takes one pass over the gradients, two if they are clipped. It returns when gradients on
 * devices are done, too: no work of the caller's may be under way for them.
 * Errors: DCOMM_ERR_INVALID (an argument; no step has sent since the last call), those of
 * all-gather, DCOMM_ERR_SYSTEM and DCOMM_ERR_TIMEOUT (a device; the other ranks get
 * DCOMM_ERR_ABORTED in their next call). */
DCOMM_API DCOMM_CHECKED dcomm_status dcomm_scaler_step(dcomm_scaler *s,
                                                       dcomm_scaler_verdict *verdict);

/* A scaler's state. */
typedef struct dcomm_scaler_info {
    double scale;            /* of the next step */
    uint64_t good;           /* steps in a row that were not skipped, towards opts.interval */
    uint64_t steps, skipped; /* since creation, including those of a loaded state */
} dcomm_scaler_info;
/* Describe the scaler in *info.
 * Errors: DCOMM_ERR_INVALID (NULL). */
DCOMM_API dcomm_status dcomm_scaler_get_info(const dcomm_scaler *s, dcomm_scaler_info *info);

enum { DCOMM_SCALER_BYTES = 40 }; /* of a saved state */
/* Save the state as DCOMM_SCALER_BYTES bytes that any machine can load.
 * Errors: DCOMM_ERR_INVALID (an argument, a step is under way). */
DCOMM_API dcomm_status dcomm_scaler_save(const dcomm_scaler *s, void *bytes);
/* Load a saved state. All ranks must load the same, between the same steps.
 * Errors: DCOMM_ERR_INVALID (an argument, a step is under way), DCOMM_ERR_CORRUPT (not what save
 * wrote; the scaler is as it was). */
DCOMM_API dcomm_status dcomm_scaler_load(dcomm_scaler *s, const void *bytes);

#ifdef __cplusplus
}
#endif
#endif
