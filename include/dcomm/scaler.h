/* scaler.h - safe mixed precision. Scale the loss so that small gradients do not underflow in 16
 * bits, and skip a step on all ranks if any gradient of any rank is infinite or NaN.
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
 * Each gradient is checked when it is marked ready: in place, or while it is copied into its
 * bucket. The findings, 48 bytes per rank, go to all ranks while the last bucket is under way. The
 * pass that computes the norm checks the sums. So in the same step all ranks have the same
 * findings, including the rank and the parameter of a bad gradient.
 *
 * For gradients in device memory, kernels check, unscale and clip. They run on their bucket's
 * stream, after the work that the stream of dcomm_param_mark_ready held. The findings go to all
 * ranks when the last bucket on a device has its result.
 *
 * A skipped step halves the scale, and a number of good steps doubles it. All ranks decide from
 * the same findings, so the scale is the same everywhere. If scales differ anyway (a rank loaded
 * another state), the next step fails with DCOMM_ERR_MISMATCH.
 *
 * After an error the scale is that of the last step that this rank has judged. dcomm_buckets_rebind
 * brings the scaler along, and all ranks to the same step and scale.
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

/* All zero means the defaults. Must be the same on every rank. Scales that are powers of two lose
 * no bits. */
typedef struct dcomm_scaler_opts {
    double scale;      /* scale at the beginning (default: 32768) */
    double growth;     /* multiplies the scale after `interval` good steps in a row; at least 1,
                          which means that the scale never grows (default: 2) */
    double backoff;    /* multiplies the scale after a skipped step; above 0 and at most 1 (default:
                          0.5) */
    uint64_t interval; /* good steps in a row before the scale grows (default: 2000) */
    double least, most; /* limits of the scale (default: 2^-14, 2^24) */
    double clip; /* limit for the two-norm of all unscaled gradients, to which they are clipped
                    (default: 0, no clipping) */
    bool leave;  /* do not change the gradients: the optimizer multiplies them by verdict.factor.
                    This is for f16 gradients, which may be too small for f16 after unscaling
                    (default: multiply them in place) */
} dcomm_scaler_opts;

/* The outcome of a step; the same on all ranks. */
typedef struct dcomm_scaler_verdict {
    bool skip;     /* do not use the gradients: they are undefined */
    double scale;  /* scale of this step */
    double next;   /* scale of the next step */
    double norm;   /* two-norm of the unscaled gradients before clipping; 0 if skip */
    double factor; /* 1/scale, times the clipping factor: the gradients were multiplied by it, or
                      with opts.leave the optimizer should do so; 0 if skip */
    int bad_ranks; /* number of ranks that had a non-finite gradient */
    int rank; /* the rank that had a non-finite gradient earliest in its order of marking; if there
                 are several, the lowest one; -1: all gradients were finite, but their sum is
                 not */
    size_t param; /* the first bad parameter that `rank` marked ready, or the first with a bad sum;
                     the number of parameters: none, only the norm is not finite */
    const char *name; /* name of the parameter, valid as long as the buckets; NULL: none */
    size_t index;     /* index of its first non-finite element */
    double value;     /* value of that element */
} dcomm_scaler_verdict;

/* Create a scaler for buckets; collective, not in a step. opts may be NULL. The buckets must
 * outlive the scaler, and they have at most one at a time. A rank that has joined ranks with a
 * scaler (dcomm_buckets_rebind) calls this alone, before its first step, and gets their state; an
 * error is then its own.
 * Errors, on all ranks: DCOMM_ERR_INVALID (a bad option on some rank; there is a scaler already),
 * DCOMM_ERR_MISMATCH (an option differs), DCOMM_ERR_NO_MEMORY, DCOMM_ERR_SYSTEM (a device has no
 * memory, or fails). */
DCOMM_API DCOMM_CHECKED dcomm_status dcomm_scaler_create(dcomm_buckets *b,
                                                         const dcomm_scaler_opts *opts,
                                                         dcomm_scaler **s_p);
/* Destroy a scaler and set *s_p to NULL. Call it outside a step, and between the same two steps on
 * all ranks. */
DCOMM_API dcomm_status dcomm_scaler_destroy(dcomm_scaler **s_p);

/* Return the scale. Multiply the loss by it before backward. 1 if s is NULL. */
DCOMM_API double dcomm_scaler_scale(const dcomm_scaler *s);

/* Judge a step that sent, after dcomm_buckets_wait. Unscale and clip this rank's part of the
 * gradients of floats, and update the scale. Parameters with dcomm_bucket_param.aside do not
 * change. If the step is skipped, its error feedback is undone (not with in_place of the
 * feedback). With opts.sharded of the buckets, the call is collective and exchanges 48 bytes per
 * rank. Otherwise each rank calls it alone, with the same outcome. It takes one pass over the
 * gradients, two if they are clipped. It returns when gradients on devices are done, too. No work
 * of the caller's may use them meanwhile.
 * Errors: DCOMM_ERR_INVALID (a bad argument; no step has sent since the last call), those of
 * all-gather, DCOMM_ERR_SYSTEM and DCOMM_ERR_TIMEOUT (a device; the other ranks get
 * DCOMM_ERR_ABORTED in their next call). */
DCOMM_API DCOMM_CHECKED dcomm_status dcomm_scaler_step(dcomm_scaler *s,
                                                       dcomm_scaler_verdict *verdict);

/* Facts about a scaler. */
typedef struct dcomm_scaler_info {
    double scale;            /* scale of the next step */
    uint64_t good;           /* steps in a row that were not skipped, towards opts.interval */
    uint64_t steps, skipped; /* numbers since creation, including those of a loaded state */
} dcomm_scaler_info;
/* Describe the scaler in *info.
 * Errors: DCOMM_ERR_INVALID (NULL). */
DCOMM_API dcomm_status dcomm_scaler_get_info(const dcomm_scaler *s, dcomm_scaler_info *info);

enum { DCOMM_SCALER_BYTES = 40 }; /* bytes of a saved state */
/* Save the state as DCOMM_SCALER_BYTES bytes that any machine can load.
 * Errors: DCOMM_ERR_INVALID (an argument, a step is under way). */
DCOMM_API dcomm_status dcomm_scaler_save(const dcomm_scaler *s, void *bytes);
/* Load a saved state. All ranks must load the same state, between the same two steps.
 * Errors: DCOMM_ERR_INVALID (a bad argument, a step is under way), DCOMM_ERR_CORRUPT
 * (dcomm_scaler_save did not write these bytes; the scaler does not change). */
DCOMM_API dcomm_status dcomm_scaler_load(dcomm_scaler *s, const void *bytes);

#ifdef __cplusplus
}
#endif
#endif
