/* scaler.h - mixed precision that is safe across ranks: the loss is scaled so that small gradients
 * survive 16 bits, and a step in which any gradient of any rank is infinite or NaN is skipped by
 * all ranks.
 *
 *     dcomm_scaler_create(b, &opts, &s);                        once, behind the buckets
 *     for each step:
 *         backward(loss * dcomm_scaler_scale(s));               gradients are scaled
 *         dcomm_param_mark_ready(b, i, NULL); ...
 *         dcomm_buckets_wait(b);
 *         dcomm_scaler_step(s, &verdict);                       gradients are unscaled, and clipped
 *         if (!verdict.skip) optimizer();
 *     dcomm_scaler_destroy(&s);                                 before the buckets
 *
 * Each gradient is looked at when it is marked ready: while it is copied into its bucket, or where
 * it lies. What was found goes to all ranks behind the last bucket, 48 bytes a rank, while that is
 * under way. The sums are looked at in the pass that makes the norm. So all ranks know in the same
 * step, and whose gradient it was.
 *
 * Gradients in device memory are looked at, unscaled and clipped there, by kernels in the order of
 * their bucket's stream: behind what the stream of dcomm_param_mark_ready held. What was found goes to
 * all ranks when the last bucket on a device has its result.
 *
 * The scale is halved when a step is skipped, and doubled after so many good ones, by what all
 * ranks know, so it is the same everywhere; ranks whose scales differ all the same (one has loaded
 * another state) find out in the next step.
 *
 * docs/mixed-precision.md has the program that one starts from, and what 16 bits do to sums. */
#ifndef DCOMM_SCALER_H
#define DCOMM_SCALER_H

#include "bucket.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct dcomm_scaler dcomm_scaler;

/* All zero means the defaults. The same on every rank. Powers of two lose no bits. */
typedef struct dcomm_scaler_opts {
    double scale;   /* to begin with (default: 32768) */
    double growth;  /* factor after `interval` good steps in a row, at least 1; 1: the scale
                       never grows (default: 2) */
    double backoff; /* factor after a step that is skipped, above 0 and at most 1 (default: 0.5) */
    uint64_t interval;  /* (default: 2000) */
    double least, most; /* the scale stays within (default: 2^-14, 2^24) */
    double clip;        /* the two-norm of all gradients, unscaled, is clipped to this (default: 0,
                           not clipped) */
    bool leave; /* gradients stay as they are, and verdict.factor is for the optimizer to multiply
                   them with: f16 gradients, once they are unscaled, are too small for f16 (default:
                   they are multiplied where they lie) */
} dcomm_scaler_opts;

/* What became of a step; the same on all ranks. */
typedef struct dcomm_scaler_verdict {
    bool skip;     /* do not use the gradients, which mean nothing now */
    double scale;  /* that the step was computed with */
    double next;   /* that the next one is to be computed with */
    double norm;   /* of the gradients, unscaled, before they were clipped; 0 if skip */
    double factor; /* 1/scale, times what clips: the gradients were multiplied with it, or are to
                      be (opts.leave); 0 if skip */
    int bad_ranks; /* that had a gradient which was not finite */
    int rank;      /* one of them: that had it earliest in its order of readiness, the lowest of
                      those; -1: all gradients were finite, and their sum is not */
    size_t param;  /* which one: the first that this rank marked ready; of a sum the first of all;
                      the number of parameters: none, only the norm is not finite */
    const char *name; /* its name, as long as the buckets live; NULL: none */
    size_t index;     /* the first of its elements that is not finite */
    double value;     /* which is this */
} dcomm_scaler_verdict;

/* Make a scaler for buckets; collective, not in a step. The buckets must outlive it, and have one
 * at a time. Errors, on all ranks: DCOMM_ERR_INVALID (an option of some rank; there is a scaler
 * already), DCOMM_ERR_MISMATCH (an option differs), DCOMM_ERR_NO_MEMORY, DCOMM_ERR_SYSTEM (a device
 * has no memory, or fails). */
DCOMM_API DCOMM_CHECKED dcomm_status dcomm_scaler_create(dcomm_buckets *b,
                                                         const dcomm_scaler_opts *opts,
                                                         dcomm_scaler **s_p);
/* Destroy it and set *s_p to NULL. Not in a step, and between the same steps on all ranks. */
DCOMM_API dcomm_status dcomm_scaler_destroy(dcomm_scaler **s_p);

/* What to multiply the loss with before backward. 1 of NULL. */
DCOMM_API double dcomm_scaler_scale(const dcomm_scaler *s);

/* After dcomm_buckets_wait of a step that sent: judge it, unscale and clip what this rank owns of
 * the gradients of floats, and move the scale. Parameters with dcomm_bucket_param.aside are left
 * alone. What error feedback has sent in a step that is skipped is taken back (not with its
 * in_place). Collective with opts.sharded, where it exchanges 48 bytes a rank; else this rank's own
 * affair, with the same outcome on all. Costs one pass over the gradients, two where they are
 * clipped. Returns when gradients on devices are what they are to be, too: nothing of the caller's
 * may be under way for them. Errors: DCOMM_ERR_INVALID (an argument; no step has sent since the
 * last call), those of all-gather, DCOMM_ERR_SYSTEM and DCOMM_ERR_TIMEOUT (a device; the others
 * have DCOMM_ERR_ABORTED in their next call). */
DCOMM_API DCOMM_CHECKED dcomm_status dcomm_scaler_step(dcomm_scaler *s,
                                                       dcomm_scaler_verdict *verdict);

typedef struct dcomm_scaler_info {
    double scale;
    uint64_t good;           /* steps in a row that were not skipped, towards opts.interval */
    uint64_t steps, skipped; /* since creation, those of a loaded state included */
} dcomm_scaler_info;
DCOMM_API dcomm_status dcomm_scaler_get_info(const dcomm_scaler *s, dcomm_scaler_info *info);

/* The state as bytes that any machine can load, DCOMM_SCALER_BYTES of them, and back. All ranks
 * must load the same, between the same steps. Errors: DCOMM_ERR_INVALID (an argument, a step is
 * under way), DCOMM_ERR_CORRUPT (no state; the scaler is as it was). */
enum { DCOMM_SCALER_BYTES = 40 };
DCOMM_API dcomm_status dcomm_scaler_save(const dcomm_scaler *s, void *bytes);
DCOMM_API dcomm_status dcomm_scaler_load(dcomm_scaler *s, const void *bytes);

#ifdef __cplusplus
}
#endif
#endif
