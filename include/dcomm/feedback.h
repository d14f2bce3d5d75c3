/* feedback.h - error feedback: what a codec rounds away is kept and sent later.
 *
 * One state per tensor and rank. It holds the worker residual, of the whole tensor, and the owner
 * residual, of the shard whose sum this rank encodes again in a two-shot exchange. A step:
 *
 *     dcomm_feedback_begin(fb, &step);                      the gradient, and what this rank owns
 *     dcomm_feedback_encode(fb, first, count, wire, ...);   each range of the tensor once
 *     dcomm_feedback_recode(fb, wires, ...);                the owned shard: sum, encode again
 *     dcomm_feedback_finish(fb, first, count, result);      EF21: differences become gradients
 *     dcomm_feedback_commit(fb);                            or dcomm_feedback_fail(fb)
 *
 * Until the commit the residuals are those of the step before: a step that failed can be begun
 * again. But other ranks may have used what they got of it, so the state is then stale, and begin
 * refuses it until dcomm_feedback_recover says how to go on. What the codec remembers from step to
 * step (powersgd's Q) is part of the state, and as it was until the commit. A range that is encoded
 * with other bounds than in the last step begins anew.
 *
 * What is kept, with g the gradient, r the residual and C what arrives after rounding:
 *
 *     classic   e = g + r, sends C(e), r = e - C(e)
 *               (Seide 2014; Karimireddy 2019)
 *
 *     ef21      sends C(g - w), w += C(g - w); the sum of all w stands for the sum of all g
 *               (Richtarik 2021)
 *
 *     dgc       u = m u + g, v += u, sends C(v), v -= C(v), u = 0 where something was sent
 *               (Lin 2018)
 *
 * Nothing is lost: the sum of what was sent and of the residuals is the sum of what came in, to the
 * rounding of f32 additions (with bf16 residuals: of bf16).
 *
 * A state is used by one thread at a time. The collectives of coll.h do all this by themselves.
 * With buffers in device memory, its residuals lie there after the first call. What is said here
 * works all the same, but not while a collective is under way: saving and asking copy them, undo
 * leaves them there, and the rest brings them back to host memory, for the next collective to take
 * along. Such calls wait for the device's work on residuals, never for a rank or a stream of the
 * caller's. To destroy a state waits for nothing. */
#ifndef DCOMM_FEEDBACK_H
#define DCOMM_FEEDBACK_H

#include "compress.h"
#include "ledger.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct dcomm_feedback dcomm_feedback;

typedef enum dcomm_feedback_variant {
    DCOMM_FEEDBACK_CLASSIC = 0,
    DCOMM_FEEDBACK_EF21 = 1,
    DCOMM_FEEDBACK_DGC = 2,
    DCOMM_FEEDBACK_VARIANT_COUNT = 3
} dcomm_feedback_variant;

/* All zero means the defaults. */
typedef struct dcomm_feedback_opts {
    dcomm_feedback_variant variant; /* (default: classic) */
    bool bf16;                      /* keep residuals in bf16: half the memory, but each loses up to
                                       2^-8 of itself in every step (default: f32) */
    bool
        in_place; /* one buffer instead of two: a failed step cannot be begun again (default: no) */
    bool scale;   /* an unbiased codec whose variance factor is 1 or more is scaled by
                     1/(1+omega), which makes it contractive (default: it is refused) */
    uint64_t seed;   /* of the random numbers of stochastic codecs (default: 0) */
    uint32_t tensor; /* likewise, which tensor this is (default: 0) */
    double momentum; /* dgc: m; below 0: none (default: 0.9) */
    double clip;     /* dgc: the gradient's norm over all ranks is clipped to this, each rank's to
                        clip / sqrt(nranks) (default: no clipping) */
    uint64_t warmup_steps; /* dgc: sparsity grows over so many steps, in four stages that send 25%,
                              6.25%, 1.6% and 0.4% of the elements, as long as that is more than the
                              codec's own k (default: 0, none) */
} dcomm_feedback_opts;

/* The gradient of a step, and what this rank has to do with it. The same ranges in each step: when
 * they change, an owner residual that nobody owns any more goes into the worker residual. */
typedef struct dcomm_feedback_step {
    const float *x;   /* the gradient from element `first` on; in use until the commit */
    size_t first;     /* this rank encodes [first, first + count) of the tensor ... */
    size_t count;     /* ... (default, with both 0: all of it) */
    size_t own_first; /* it owns [own_first, own_first + own_count) of the sum (default: nothing) */
    size_t own_count;
    uint32_t rank, nranks; /* nranks 0 is taken as 1 */
    bool average;          /* the result is the average over the ranks (default: the sum) */
    bool partly; /* only some of [first, first + count) will be encoded, and the residual of the
                    rest stays as it is (default: all of it) */
} dcomm_feedback_step;

/* What a state holds. */
typedef struct dcomm_feedback_info {
    dcomm_feedback_variant variant;
    size_t count;
    uint64_t step; /* steps committed */
    bool stale, begun;
    size_t own_first, own_count;
    double worker_norm, owner_norm; /* two-norms of the residuals (ef21: of gradient estimates) */
    double factor;                  /* what is encoded is multiplied by this: 1, or 1/(1+omega) */
    size_t state_bytes;             /* memory */
    int device;                     /* whose memory the residuals lie in; -1: the host's */
} dcomm_feedback_info;

/* A state of zeros for a tensor of `count` elements. The codec must live as long.
 * Errors: DCOMM_ERR_INVALID (an argument; a codec that is not contractive, see opts.scale),
 * DCOMM_ERR_NO_MEMORY. */
DCOMM_API DCOMM_CHECKED dcomm_status dcomm_feedback_create(const dcomm_codec *codec, size_t count,
                                                           const dcomm_feedback_opts *opts,
                                                           dcomm_feedback **fb_p);
DCOMM_API dcomm_status dcomm_feedback_destroy(dcomm_feedback **fb_p);
DCOMM_API dcomm_status dcomm_feedback_get_info(const dcomm_feedback *fb, dcomm_feedback_info *info);
/* The codec of the step that comes or is under way, by which its wires are decoded: the one of
 * create, except while DGC warms up. The same on every rank. */
DCOMM_API const dcomm_codec *dcomm_feedback_codec(dcomm_feedback *fb);
/* The most bytes that one encoding of `count` elements writes in any step. */
DCOMM_API size_t dcomm_feedback_max_bytes(dcomm_feedback *fb, size_t count);
/* Count everything that is done from now on in this ledger; NULL: no more. The sums are taken as
 * the codec encodes (see dcomm_encode_ledger); with EF21 and scaled codecs, as the residual is
 * written. Its residual_norm follows what is given back. */
DCOMM_API dcomm_status dcomm_feedback_set_ledger(dcomm_feedback *fb, dcomm_ledger *ledger);

/* ---- a step ---- */

/* Errors: DCOMM_ERR_INVALID (an argument; the state is stale), DCOMM_ERR_NO_MEMORY. */
DCOMM_API dcomm_status dcomm_feedback_begin(dcomm_feedback *fb, const dcomm_feedback_step *step);
/* Encode elements [first, first + count) of the tensor with their residual. Ranges of one step must
 * not overlap, and together be what begin was told. Non-finite gradients count as 0, and the error
 * says so when the codec's policy is to fail. */
DCOMM_API dcomm_status dcomm_feedback_encode(dcomm_feedback *fb, size_t first, size_t count,
                                             void *wire, size_t capacity, size_t *bytes_p,
                                             dcomm_codec_report *report);
/* Decode n wires of elements [first, first + count) of the owned shard, add them in order, multiply
 * by `factor` (1: a sum; 1/nranks: an average), encode that again with the owner residual. */
DCOMM_API dcomm_status dcomm_feedback_recode(dcomm_feedback *fb, const void *const *wires,
                                             const size_t *bytes, size_t n, float factor,
                                             size_t first, size_t count, void *wire,
                                             size_t capacity, size_t *bytes_p,
                                             dcomm_codec_report *report);
/* The same where the sum is already there: sum[0] is element `first`. */
DCOMM_API dcomm_status dcomm_feedback_encode_owned(dcomm_feedback *fb, const float *sum,
                                                   float factor, size_t first, size_t count,
                                                   void *wire, size_t capacity, size_t *bytes_p,
                                                   dcomm_codec_report *report);
/* A sparse exchange sums only the elements that were selected globally. Of the n elements first +
 * index[i] of the tensor (ascending) that this rank sent with value[i] (as decoded), those that are
 * not among the `nagreed` of first + agreed[i] (ascending) go back into the worker residual. A
 * value that is not finite is left out: its residual was never reduced by it. */
DCOMM_API dcomm_status dcomm_feedback_give_back(dcomm_feedback *fb, size_t first,
                                                const uint32_t *index, const float *value, size_t n,
                                                const uint32_t *agreed, size_t nagreed);
/* For linear codecs, which are no wire of one rank: e = gradient + residual, whole, in memory of
 * the state that the caller may read until the commit ... */
DCOMM_API dcomm_status dcomm_feedback_correct(dcomm_feedback *fb, const float **e_p);
/* ... and e - part becomes the residual of elements [first, first + count). */
DCOMM_API dcomm_status dcomm_feedback_keep(dcomm_feedback *fb, size_t first, size_t count,
                                           const float *part);
/* The result of the exchange, as all ranks have it: elements [first, first + count). With EF21 it
 * becomes the estimate of the gradients' sum, else nothing changes. */
DCOMM_API dcomm_status dcomm_feedback_finish(dcomm_feedback *fb, size_t first, size_t count,
                                             float *result);
/* The step is through on every rank: its residuals are now the state's.
 * Errors: DCOMM_ERR_INVALID (no step was begun, or parts of it are missing). */
DCOMM_API dcomm_status dcomm_feedback_commit(dcomm_feedback *fb);
/* The step failed: the state is stale until it is recovered. */
DCOMM_API dcomm_status dcomm_feedback_fail(dcomm_feedback *fb);

typedef enum dcomm_feedback_recovery {
    DCOMM_FEEDBACK_RETRY = 0, /* as before the step (not in place): right if no rank used it */
    DCOMM_FEEDBACK_RESET = 1  /* all residuals zero, on every rank */
} dcomm_feedback_recovery;
/* Make a stale state (or any other) usable; every rank must do the same. *lost_p (may be NULL): the
 * two-norm of the residuals that were thrown away. */
DCOMM_API dcomm_status dcomm_feedback_recover(dcomm_feedback *fb, dcomm_feedback_recovery how,
                                              double *lost_p);

/* ---- between steps ---- */

/* Take back the step that was committed last, whose result nobody has used: residuals are as before
 * it, and nothing is stale. Every rank must do the same. Errors: DCOMM_ERR_INVALID (there is no
 * such step, or the next was begun; in place). */
DCOMM_API dcomm_status dcomm_feedback_undo(dcomm_feedback *fb);

/* Multiply what is held back by `factor`, old learning rate over new one: it was meant for steps of
 * the old size. */
DCOMM_API dcomm_status dcomm_feedback_rescale(dcomm_feedback *fb, double factor);

/* Write the state to memory of dcomm_feedback_save_bytes. */
DCOMM_API size_t dcomm_feedback_save_bytes(const dcomm_feedback *fb);
DCOMM_API dcomm_status dcomm_feedback_save(const dcomm_feedback *fb, void *to, size_t capacity);
/* Read it back, also what older versions saved. The codec's spec must be the one that was saved.
 * Errors: DCOMM_ERR_CORRUPT (not what save wrote), DCOMM_ERR_INVALID (another codec). */
DCOMM_API DCOMM_CHECKED dcomm_status dcomm_feedback_load(const dcomm_codec *codec, const void *from,
                                                         size_t bytes, dcomm_feedback **fb_p);

typedef struct dcomm_feedback_loss {
    size_t missing;     /* states that were not given: what they held is lost */
    double carried;     /* two-norm of the sum of all residuals that were given, owners' included */
    double lost;        /* two-norm of what the new states' sum lacks of it (rounding); EF21: of
                           what the missing states had contributed to the estimate */
    double lost_signed; /* sum of those elements */
} dcomm_feedback_loss;
/* The state of rank `rank` of `nranks` from the states old[0..nold) of all ranks of a job of
 * another size; NULL where one is missing. Old rank r goes to rank r mod nranks, owner residuals
 * into worker residuals. loss may be NULL; it is the same on each rank. */
DCOMM_API DCOMM_CHECKED dcomm_status dcomm_feedback_reshard(const dcomm_feedback *const *old,
                                                            size_t nold, uint32_t rank,
                                                            uint32_t nranks, dcomm_feedback **fb_p,
                                                            dcomm_feedback_loss *loss);

#ifdef __cplusplus
}
#endif
#endif
