/* feedback.h - error feedback: keep a codec's error, and add it to the next input.
 *
 * One state per tensor and rank. It holds the worker residual, of the whole tensor, and the owner
 * residual, of the shard whose sum this rank encodes again in a two-shot exchange. A step:
 *
 *     dcomm_feedback_begin(fb, &step);                      the gradient, and what this rank owns
 *     dcomm_feedback_encode(fb, first, count, wire, ...);   once for each range of the tensor
 *     dcomm_feedback_recode(fb, wires, ...);                the owned shard: sum, encode again
 *     dcomm_feedback_finish(fb, first, count, result);      EF21: differences become gradients
 *     dcomm_feedback_commit(fb);                            or dcomm_feedback_fail(fb)
 *
 * Until the commit the residuals are those of the step before, so a step that failed can begin
 * again. But other ranks may have used its wires: the state is then stale, and begin refuses it
 * until dcomm_feedback_recover says how to go on. The codec's memory from step to step (powersgd's
 * Q) is part of the state and also changes at the commit. A range that is encoded with other bounds
 * than in the last step begins anew.
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
 * Nothing is lost: sent values and residuals add up to the inputs, to the rounding of f32 additions
 * (with bf16 residuals: of bf16).
 *
 * One thread at a time uses a state. The collectives of coll.h take all these steps by themselves.
 * With buffers in device memory, the residuals lie on the device after the first call. The
 * functions below still work, but not while a collective is under way: save and get_info copy the
 * residuals, undo leaves them on the device, and the others bring them back to host memory until
 * the next collective. Such calls wait for the device's work on residuals, never for a rank or for
 * a stream of the caller's. Destroy waits for nothing. */
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
    bool bf16;                      /* keep residuals in bf16: half the memory, but each loses up to
                                       2^-8 of itself in every step (default: f32) */
    bool in_place;   /* one buffer instead of two: a failed step cannot begin again (default: no) */
    bool scale;      /* scale an unbiased codec whose variance factor omega is 1 or more by
                        1/(1+omega), which makes it contractive (default: refuse it) */
    uint64_t seed;   /* of the random numbers of stochastic codecs (default: 0) */
    uint32_t tensor; /* number of the tensor, for the same random numbers (default: 0) */
    double momentum; /* dgc: m; below 0: none (default: 0.9) */
    double clip; /* dgc: clip the two-norm of the gradient over all ranks to this, each rank's to
                    clip / sqrt(nranks) (default: 0, no clipping) */
    uint64_t warmup_steps; /* dgc: sparsity grows over this many steps, in four stages that send
                              25%, 6.25%, 1.6% and 0.4% of the elements, while that is more than the
                              codec's own k (default: 0, none) */
} dcomm_feedback_opts;

/* The gradient of a step, and this rank's part. Ranges should be the same in each step: when they
 * change, an owner residual that no rank owns any more goes into the worker residual. */
typedef struct dcomm_feedback_step {
    const float *x;   /* the gradient from element `first` on; in use until the commit */
    size_t first;     /* this rank encodes [first, first + count) of the tensor ... */
    size_t count;     /* ... (default, with both 0: all of it) */
    size_t own_first; /* it owns [own_first, own_first + own_count) of the sum (default: nothing) */
    size_t own_count; /* elements that it owns */
    uint32_t rank, nranks; /* this rank, of how many; nranks 0 is taken as 1 */
    bool average;          /* the result is the average over the ranks (default: the sum) */
    bool partly;           /* encode only some of [first, first + count); the residual of the rest
                              stays as it is (default: all of it) */
} dcomm_feedback_step;

/* A state. */
typedef struct dcomm_feedback_info {
    dcomm_feedback_variant variant; /* as created */
    size_t count;                   /* elements of the tensor */
    uint64_t step;                  /* steps committed */
    bool stale;                     /* a step failed: see dcomm_feedback_recover */
    bool begun;                     /* a step is under way */
    size_t own_first, own_count;    /* elements of the owner residual */
    double worker_norm, owner_norm; /* two-norms of the residuals (ef21: of gradient estimates) */
    double factor;                  /* the encoder multiplies its input by this: 1 or 1/(1+omega) */
    size_t state_bytes;             /* bytes of memory */
    int device;                     /* number of the device that holds the residuals; -1: host */
} dcomm_feedback_info;

/* Create a state of zeros for a tensor of `count` elements. opts may be NULL. The codec must live
 * as long as the state.
 * Errors: DCOMM_ERR_INVALID (an argument; a codec that is not contractive, see opts.scale),
 * DCOMM_ERR_NO_MEMORY. */
DCOMM_API DCOMM_CHECKED dcomm_status dcomm_feedback_create(const dcomm_codec *codec, size_t count,
                                                           const dcomm_feedback_opts *opts,
                                                           dcomm_feedback **fb_p);
/* Destroy a state and set *fb_p to NULL. NULL and *fb_p NULL are fine. */
DCOMM_API dcomm_status dcomm_feedback_destroy(dcomm_feedback **fb_p);
/* Describe a state in *info.
 * Errors: DCOMM_ERR_INVALID (NULL). */
DCOMM_API dcomm_status dcomm_feedback_get_info(const dcomm_feedback *fb, dcomm_feedback_info *info);
/* Return the codec of the current or next step, which decodes its wires: that of create, except
 * while DGC warms up. The same on every rank. */
DCOMM_API const dcomm_codec *dcomm_feedback_codec(dcomm_feedback *fb);
/* Return the most bytes that encoding `count` elements writes in any step. */
DCOMM_API size_t dcomm_feedback_max_bytes(dcomm_feedback *fb, size_t count);
/* Count all later encodings of this state in a ledger; NULL: stop counting. Sums are taken as the
 * codec encodes (dcomm_encode_ledger); with EF21 and scaled codecs, as the residual is written.
 * residual_norm follows dcomm_feedback_give_back. */
DCOMM_API dcomm_status dcomm_feedback_set_ledger(dcomm_feedback *fb, dcomm_ledger *ledger);

/* ---- a step ---- */

/* Begin a step.
 * Errors: DCOMM_ERR_INVALID (an argument; the state is stale), DCOMM_ERR_NO_MEMORY. */
DCOMM_API dcomm_status dcomm_feedback_begin(dcomm_feedback *fb, const dcomm_feedback_step *step);
/* Encode elements [first, first + count) of the tensor with their residual, and set *bytes_p to the
 * bytes written. wire has room for `capacity` bytes, at least dcomm_feedback_max_bytes. report may
 * be NULL. The ranges of a step must not overlap, and together be those of dcomm_feedback_begin.
 * Errors: DCOMM_ERR_INVALID (an argument; no step has begun; non-finite gradients, with
 * nonfinite=fail: they count as 0, and the wire is complete). */
DCOMM_API dcomm_status dcomm_feedback_encode(dcomm_feedback *fb, size_t first, size_t count,
                                             void *wire, size_t capacity, size_t *bytes_p,
                                             dcomm_codec_report *report);
/* Recode elements [first, first + count) of the owned shard: decode n wires, add them in order,
 * multiply by `factor` (1: a sum; 1/nranks: an average), and encode the result with the owner
 * residual.
 * Errors: as dcomm_recode. */
DCOMM_API dcomm_status dcomm_feedback_recode(dcomm_feedback *fb, const void *const *wires,
                                             const size_t *bytes, size_t n, float factor,
                                             size_t first, size_t count, void *wire,
                                             size_t capacity, size_t *bytes_p,
                                             dcomm_codec_report *report);
/* Recode without wires: encode `factor` * sum with the owner residual; sum[0] is element
 * `first`. */
DCOMM_API dcomm_status dcomm_feedback_encode_owned(dcomm_feedback *fb, const float *sum,
                                                   float factor, size_t first, size_t count,
                                                   void *wire, size_t capacity, size_t *bytes_p,
                                                   dcomm_codec_report *report);
/* Give values that a sparse exchange left out back to the worker residual. This rank sent n
 * elements first + index[i] (ascending) with the decoded values value[i]; the exchange summed only
 * the `nagreed` elements first + agreed[i] (ascending). Non-finite values are left out: the
 * residual was never reduced by them. */
DCOMM_API dcomm_status dcomm_feedback_give_back(dcomm_feedback *fb, size_t first,
                                                const uint32_t *index, const float *value, size_t n,
                                                const uint32_t *agreed, size_t nagreed);
/* For linear codecs, whose wire is not one rank's: set *e_p to gradient + residual of the whole
 * step, in memory of the state that the caller may read until the commit. */
DCOMM_API dcomm_status dcomm_feedback_correct(dcomm_feedback *fb, const float **e_p);
/* For linear codecs: set the residual of elements [first, first + count) to e - part, where e is
 * from dcomm_feedback_correct and part[0] is the sent value of element `first`. */
DCOMM_API dcomm_status dcomm_feedback_keep(dcomm_feedback *fb, size_t first, size_t count,
                                           const float *part);
/* Finish elements [first, first + count) of the exchange's result, which is the same on all ranks.
 * With EF21, result becomes the estimate of the gradients' sum; else it does not change. */
DCOMM_API dcomm_status dcomm_feedback_finish(dcomm_feedback *fb, size_t first, size_t count,
                                             float *result);
/* Commit a step that succeeded on every rank: its residuals become the state's.
 * Errors: DCOMM_ERR_INVALID (no step was begun, or parts of it are missing). */
DCOMM_API dcomm_status dcomm_feedback_commit(dcomm_feedback *fb);
/* Fail a step: the state is stale until dcomm_feedback_recover. */
DCOMM_API dcomm_status dcomm_feedback_fail(dcomm_feedback *fb);

/* Ways in which a stale state becomes usable again. */
typedef enum dcomm_feedback_recovery {
    DCOMM_FEEDBACK_RETRY =
        0, /* as before the step (not in_place): right if no rank used its wires */
    DCOMM_FEEDBACK_RESET = 1 /* zero all residuals, on every rank */
} dcomm_feedback_recovery;
/* Make a stale state (or any other) usable; every rank must do the same. Sets *lost_p (may be NULL)
 * to the two-norm of the residuals that were thrown away. */
DCOMM_API dcomm_status dcomm_feedback_recover(dcomm_feedback *fb, dcomm_feedback_recovery how,
                                              double *lost_p);

/* ---- between steps ---- */

/* Undo the step that was committed last, if no rank has used its result: residuals are as before
 * it, and nothing is stale. Every rank must do the same.
 * Errors: DCOMM_ERR_INVALID (there is no such step, or the next has begun; in_place). */
DCOMM_API dcomm_status dcomm_feedback_undo(dcomm_feedback *fb);

/* Multiply the residuals by `factor`, the old learning rate over the new one, when it changes:
 * residuals were meant for steps of the old size. */
DCOMM_API dcomm_status dcomm_feedback_rescale(dcomm_feedback *fb, double factor);

/* Return the bytes that dcomm_feedback_save writes. */
DCOMM_API size_t dcomm_feedback_save_bytes(const dcomm_feedback *fb);
/* Save the state to memory of `capacity` bytes.
 * Errors: DCOMM_ERR_INVALID (too small, NULL). */
DCOMM_API dcomm_status dcomm_feedback_save(const dcomm_feedback *fb, void *to, size_t capacity);
/* Create a state from saved bytes, also those of older versions. The codec's spec must be the saved
 * one.
 * Errors: DCOMM_ERR_CORRUPT (not what save wrote), DCOMM_ERR_INVALID (another codec). */
DCOMM_API DCOMM_CHECKED dcomm_status dcomm_feedback_load(const dcomm_codec *codec, const void *from,
                                                         size_t bytes, dcomm_feedback **fb_p);

/* Residuals that did not survive a change of the number of ranks. */
typedef struct dcomm_feedback_loss {
    size_t missing;     /* states that were not given: their residuals are lost */
    double carried;     /* two-norm of the sum of all given residuals, including owners' */
    double lost;        /* two-norm of its difference from the new states' sum (rounding); EF21: of
                           what the missing states had contributed to the estimate */
    double lost_signed; /* sum of the elements of that difference */
} dcomm_feedback_loss;
/* Create the state of rank `rank` of `nranks` from the states old[0..nold) of all ranks of a job of
 * another size; old[r] is NULL if it is missing. Old rank r goes to rank r mod nranks, owner
 * residuals into worker residuals. loss may be NULL; it is the same on each rank. */
DCOMM_API DCOMM_CHECKED dcomm_status dcomm_feedback_reshard(const dcomm_feedback *const *old,
                                                            size_t nold, uint32_t rank,
                                                            uint32_t nranks, dcomm_feedback **fb_p,
                                                            dcomm_feedback_loss *loss);

#ifdef __cplusplus
}
#endif
#endif
