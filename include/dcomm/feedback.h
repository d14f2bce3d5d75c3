/* feedback.h - error feedback: keep a codec's error and add it to the next input.
 *
 * There is one state per tensor and rank. It holds two residuals. The worker residual covers the
 * whole tensor. The owner residual covers the shard whose sum this rank encodes again in a
 * two-shot exchange. A step:
 *
 *     dcomm_feedback_begin(fb, &step);                      the gradient, and what this rank owns
 *     dcomm_feedback_encode(fb, first, count, wire, ...);   once for each range of the tensor
 *     dcomm_feedback_recode(fb, wires, ...);                the owned shard: sum, encode again
 *     dcomm_feedback_finish(fb, first, count, result);      EF21: differences become gradients
 *     dcomm_feedback_commit(fb);                            or dcomm_feedback_fail(fb)
 *
 * Until the commit the residuals are those of the step before, so a step that failed can begin
 * again. But other ranks may have used the wires of the failed step. So the state is stale after a
 * failure: begin refuses it until dcomm_feedback_recover decides how to go on (in buckets,
 * dcomm_buckets_rebind does that for all ranks). The codec's memory
 * from step to step (powersgd's Q) is part of the state and also changes at the commit. If a range
 * is encoded with other bounds than in the last step, this memory starts anew for it.
 *
 * Variants, with g the gradient, r the residual and C(x) the decoded encoding of x:
 *
 *     classic   e = g + r, sends C(e), r = e - C(e)
 *               (Seide 2014; Karimireddy 2019)
 *
 *     ef21      sends C(g - w), w += C(g - w); the sum of all w stands for the sum of all g
 *               (Richtarik 2021)
 *
 *     dgc       u = m u + g, v += u, sends C(v), v -= C(v), u = 0 for the elements sent
 *               (Lin 2018)
 *
 * Nothing is lost: sent values and residuals add up to the inputs, except for the rounding of f32
 * additions (with bf16 residuals: the rounding to bf16).
 *
 * One thread at a time may use a state. The collectives of coll.h take all these steps by
 * themselves. If the buffers are in device memory, the residuals lie on the device after the first
 * call. The functions below then still work, but not while a collective is under way. save and
 * get_info copy the residuals, and undo leaves them on the device. The other functions bring them
 * back to host memory until the next collective. Such calls wait for the device's work on
 * residuals, never for another rank or a stream of the caller's. Destroy waits for nothing. */
#ifndef DCOMM_FEEDBACK_H
#define DCOMM_FEEDBACK_H

#include "compress.h"
#include "ledger.h"

#ifdef __cplusplus
extern "C" {
#endif

/* A state: the residuals of one tensor on one rank. */
typedef struct dcomm_feedback dcomm_feedback;

/* Variants; their formulas are at the top of this header. */
typedef enum dcomm_feedback_variant {
    DCOMM_FEEDBACK_CLASSIC = 0,      /* send the input plus the residual */
    DCOMM_FEEDBACK_EF21 = 1,         /* send the difference from an estimate */
    DCOMM_FEEDBACK_DGC = 2,          /* deep gradient compression: classic with momentum */
    DCOMM_FEEDBACK_VARIANT_COUNT = 3 /* number of variants */
} dcomm_feedback_variant;

/* All zero means the defaults. */
typedef struct dcomm_feedback_opts {
    dcomm_feedback_variant variant; /* (default: classic) */
    bool bf16;                      /* keep residuals in bf16: this takes half the memory, but each
                                       residual loses up to 2^-8 of its value in every step
                                       (default: f32) */
    bool in_place;   /* keep one buffer instead of two; then a failed step cannot begin again
                        (default: no) */
    bool scale;      /* if an unbiased codec has a variance factor omega of 1 or more, scale it by
                        1/(1+omega), which makes it contractive (default: refuse such a codec) */
    uint64_t seed;   /* seed of the random numbers of stochastic codecs (default: 0) */
    uint32_t tensor; /* number of the tensor; random numbers depend on it, too (default: 0) */
    double momentum; /* dgc: m; below 0: none (default: 0.9) */
    double clip; /* dgc: the limit for the two-norm of the gradient over all ranks; each rank clips
                    its own to clip / sqrt(nranks) (default: 0, no clipping) */
    uint64_t warmup_steps; /* dgc: sparsity grows over this many steps, in four stages that send
                              25%, 6.25%, 1.6% and 0.4% of the elements, while that is more than the
                              codec's own k (default: 0, none) */
} dcomm_feedback_opts;

/* The gradient of a step, and this rank's part. Ranges should be the same in each step. When they
 * change, the owner residual of elements that no rank owns any more is added to the worker
 * residual. */
typedef struct dcomm_feedback_step {
    const float *x;   /* the gradient from element `first` on; in use until the commit */
    size_t first;     /* this rank encodes [first, first + count) of the tensor ... */
    size_t count;     /* ... (default, with both 0: all of it) */
    size_t own_first; /* it owns [own_first, own_first + own_count) of the sum (default: nothing) */
    size_t own_count; /* elements that it owns */
    uint32_t rank, nranks; /* this rank, and the number of ranks; nranks 0 is taken as 1 */
    bool average;          /* the result is the average over the ranks (default: the sum) */
    bool partly;           /* encode only some of [first, first + count); the residual of the rest
                              stays as it is (default: all of it) */
} dcomm_feedback_step;

/* Facts about a state. */
typedef struct dcomm_feedback_info {
    dcomm_feedback_variant variant; /* the variant that it was created with */
    size_t count;                   /* elements of the tensor */
    uint64_t step;                  /* steps committed */
    bool stale;                     /* a step failed; call dcomm_feedback_recover */
    bool begun;                     /* a step is under way */
    size_t own_first, own_count;    /* elements of the owner residual */
    double worker_norm, owner_norm; /* two-norms of the residuals (ef21: of gradient estimates) */
    double factor;                  /* the encoder multiplies its input by this: 1 or 1/(1+omega) */
    size_t state_bytes;             /* bytes of memory */
    int device;                     /* number of the device that holds the residuals; -1: host */
} dcomm_feedback_info;

/* Create a state of zeros for a tensor of `count` elements. opts may be NULL. The codec must live
 * as long as the state.
 * Errors: DCOMM_ERR_INVALID (a bad argument; a codec that is not contractive, see opts.scale),
 * DCOMM_ERR_NO_MEMORY. */
DCOMM_API DCOMM_CHECKED dcomm_status dcomm_feedback_create(const dcomm_codec *codec, size_t count,
                                                           const dcomm_feedback_opts *opts,
                                                           dcomm_feedback **fb_p);
/* Destroy a state and set *fb_p to NULL. NULL and *fb_p NULL are fine. */
DCOMM_API dcomm_status dcomm_feedback_destroy(dcomm_feedback **fb_p);
/* Describe a state in *info.
 * Errors: DCOMM_ERR_INVALID (NULL). */
DCOMM_API dcomm_status dcomm_feedback_get_info(const dcomm_feedback *fb, dcomm_feedback_info *info);
/* Return the codec of the current or next step, which decodes its wires. It is the codec of
 * dcomm_feedback_create, except while DGC warms up. It is the same on every rank. */
DCOMM_API const dcomm_codec *dcomm_feedback_codec(dcomm_feedback *fb);
/* Return the most bytes that encoding `count` elements writes in any step. */
DCOMM_API size_t dcomm_feedback_max_bytes(dcomm_feedback *fb, size_t count);
/* Count all later encodings of this state in a ledger; NULL: stop counting. The sums are computed
 * while the codec encodes (dcomm_encode_ledger); with EF21 and scaled codecs, while the residual
 * is written. dcomm_feedback_give_back updates residual_norm. */
DCOMM_API dcomm_status dcomm_feedback_set_ledger(dcomm_feedback *fb, dcomm_ledger *ledger);

/* ---- a step ---- */

/* Begin a step.
 * Errors: DCOMM_ERR_INVALID (a bad argument; the state is stale), DCOMM_ERR_NO_MEMORY. */
DCOMM_API dcomm_status dcomm_feedback_begin(dcomm_feedback *fb, const dcomm_feedback_step *step);
/* Encode elements [first, first + count) of the tensor with their residual, and set *bytes_p to
 * the bytes written. wire has room for `capacity` bytes, at least dcomm_feedback_max_bytes. report
 * may be NULL. The ranges of a step must not overlap. Together they must cover the range of
 * dcomm_feedback_begin (unless step->partly is set).
 * Errors: DCOMM_ERR_INVALID (a bad argument; no step has begun; non-finite gradients, with
 * nonfinite=fail: they count as 0, and the wire is complete). */
DCOMM_API dcomm_status dcomm_feedback_encode(dcomm_feedback *fb, size_t first, size_t count,
                                             void *wire, size_t capacity, size_t *bytes_p,
                                             dcomm_codec_report *report);
/* Recode elements [first, first + count) of the owned shard. Decode n wires, add them in order,
 * multiply by `factor` (1: a sum; 1/nranks: an average), and encode the result with the owner
 * residual.
 * Errors: those of dcomm_recode. */
DCOMM_API dcomm_status dcomm_feedback_recode(dcomm_feedback *fb, const void *const *wires,
                                             const size_t *bytes, size_t n, float factor,
                                             size_t first, size_t count, void *wire,
                                             size_t capacity, size_t *bytes_p,
                                             dcomm_codec_report *report);
/* Recode a sum that is already decoded: encode `factor` * sum with the owner residual. sum[0] is
 * element `first`. */
DCOMM_API dcomm_status dcomm_feedback_encode_owned(dcomm_feedback *fb, const float *sum,
                                                   float factor, size_t first, size_t count,
                                                   void *wire, size_t capacity, size_t *bytes_p,
                                                   dcomm_codec_report *report);
/* Add values that a sparse exchange left out to the worker residual again. This rank sent n
 * elements first + index[i] (ascending) with the decoded values value[i]; the exchange summed only
 * the `nagreed` elements first + agreed[i] (ascending). Non-finite values are not added, because
 * they were never subtracted from the residual. */
DCOMM_API dcomm_status dcomm_feedback_give_back(dcomm_feedback *fb, size_t first,
                                                const uint32_t *index, const float *value, size_t n,
                                                const uint32_t *agreed, size_t nagreed);
/* Correct the gradient, for linear codecs. Set *e_p to gradient + residual of the whole step
 * (EF21: the gradient minus its estimate). The array belongs to the state; the caller may read it
 * until the commit. Linear codecs need this because ranks sum their wires, so no wire belongs to
 * one rank.
 * Errors: DCOMM_ERR_INVALID (NULL; no step has begun; non-finite gradients, with nonfinite=fail),
 * DCOMM_ERR_UNSUPPORTED (DGC), DCOMM_ERR_NO_MEMORY. */
DCOMM_API dcomm_status dcomm_feedback_correct(dcomm_feedback *fb, const float **e_p);
/* Keep the residual, for linear codecs. Set the residual of elements [first, first + count) to e -
 * part. e is from dcomm_feedback_correct; part[0] is the sent value of element `first`. */
DCOMM_API dcomm_status dcomm_feedback_keep(dcomm_feedback *fb, size_t first, size_t count,
                                           const float *part);
/* Finish elements [first, first + count) of the exchange's result, which is the same on all ranks.
 * With EF21, `result` becomes the estimate of the gradients' sum. With other variants it does not
 * change. */
DCOMM_API dcomm_status dcomm_feedback_finish(dcomm_feedback *fb, size_t first, size_t count,
                                             float *result);
/* Commit a step that succeeded on every rank: its residuals become the state's.
 * Errors: DCOMM_ERR_INVALID (no step was begun, or parts of it are missing). */
DCOMM_API dcomm_status dcomm_feedback_commit(dcomm_feedback *fb);
/* Fail a step: the state is stale until dcomm_feedback_recover. */
DCOMM_API dcomm_status dcomm_feedback_fail(dcomm_feedback *fb);

/* Ways in which a stale state becomes usable again. */
typedef enum dcomm_feedback_recovery {
    DCOMM_FEEDBACK_RETRY = 0, /* set the residuals back to those before the step (not with
                                 in_place): right if no rank used its wires */
    DCOMM_FEEDBACK_RESET = 1  /* set all residuals to zero, on every rank */
} dcomm_feedback_recovery;
/* Make a stale state (or any other) usable. Every rank must make the same call. Sets *lost_p (may
 * be NULL) to the two-norm of the residuals that were thrown away. */
DCOMM_API dcomm_status dcomm_feedback_recover(dcomm_feedback *fb, dcomm_feedback_recovery how,
                                              double *lost_p);

/* ---- between steps ---- */

/* Undo the step that was committed last, if no rank has used its result. The residuals are then
 * those before that step, and the state is not stale. Every rank must make the same call.
 * Errors: DCOMM_ERR_INVALID (there is no such step, or the next has begun; in_place). */
DCOMM_API dcomm_status dcomm_feedback_undo(dcomm_feedback *fb);

/* Multiply the residuals by `factor`. Call it when the learning rate changes, with the old rate
 * divided by the new one: the residuals were computed for steps of the old size. */
DCOMM_API dcomm_status dcomm_feedback_rescale(dcomm_feedback *fb, double factor);

/* Return the bytes that dcomm_feedback_save writes. */
DCOMM_API size_t dcomm_feedback_save_bytes(const dcomm_feedback *fb);
/* Save the state to memory of `capacity` bytes.
 * Errors: DCOMM_ERR_INVALID (too small, NULL). */
DCOMM_API dcomm_status dcomm_feedback_save(const dcomm_feedback *fb, void *to, size_t capacity);
/* Create a state from saved bytes. Bytes that older versions saved work, too. The codec's spec
 * must equal the saved one.
 * Errors: DCOMM_ERR_CORRUPT (dcomm_feedback_save did not write these bytes), DCOMM_ERR_INVALID
 * (another codec). */
DCOMM_API DCOMM_CHECKED dcomm_status dcomm_feedback_load(const dcomm_codec *codec, const void *from,
                                                         size_t bytes, dcomm_feedback **fb_p);

/* Residuals that did not survive a change of the number of ranks. */
typedef struct dcomm_feedback_loss {
    size_t missing;     /* states that were not given: their residuals are lost */
    double carried;     /* two-norm of the sum of all given residuals, including owners' */
    double lost;        /* two-norm of the difference between that sum and the new states' sum
                           (rounding); EF21: two-norm of the missing states' part of the
                           estimate */
    double lost_signed; /* sum of the elements of the same difference */
} dcomm_feedback_loss;
/* Create the state of rank `rank` of `nranks` from the states old[0..nold) of all ranks of a job
 * of another size. old[r] is NULL if it is missing. The state of old rank r goes to rank r mod
 * nranks. Owner residuals are added to worker residuals. loss may be NULL; it is the same on each
 * rank. */
DCOMM_API DCOMM_CHECKED dcomm_status dcomm_feedback_reshard(const dcomm_feedback *const *old,
                                                            size_t nold, uint32_t rank,
                                                            uint32_t nranks, dcomm_feedback **fb_p,
                                                            dcomm_feedback_loss *loss);

#ifdef __cplusplus
}
#endif
#endif
