/* bucket.h - gradients in buckets: each bucket is summed over the ranks as soon as the last of its
 * gradients is ready, while the backward pass goes on with the rest.
 *
 *     dcomm_buckets_create(comm, params, n, &opts, &b);      once
 *     for each step:
 *         dcomm_param_mark_ready(b, i, NULL);                as backward is done with gradient i
 *         dcomm_buckets_progress(b);                         now and then
 *         dcomm_buckets_wait(b);                             all gradients are the average now
 *     dcomm_buckets_destroy(&b);
 *
 * All ranks register the same parameters in the same order: names, counts, dtypes and codecs. A
 * rank may mark them ready in any order, from any thread. Buckets are sent in the same order on
 * every rank. They have a communicator of their own, so the caller's other collectives may come
 * between; its memory is some KiB a rank.
 *
 * An error of one rank – a parameter marked twice, one that is never marked – fails the step on all
 * ranks, and the sentence names the rank and the parameter. The buckets are then beyond use, but
 * not the communicator that they were made from: destroy them and make new ones.
 *
 * Gradients may be device memory, where the implementation is built with DCOMM_WITH_CUDA
 * (docs/cuda.md): then they are marked in the order of a stream, see dcomm_param_mark_ready.
 *
 * docs/bucketing.md has the program that one starts from. */
#ifndef DCOMM_BUCKET_H
#define DCOMM_BUCKET_H

#include "coll.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct dcomm_buckets dcomm_buckets;

/* One parameter. Name, count, dtype, codec and aside must be the same on every rank, and whether
 * its gradient is device memory. Where a rank has gradients on several devices, which parameters
 * are on one must be the same, too; the devices' numbers need not be. */
typedef struct dcomm_bucket_param {
    const char *name; /* for errors, reports and rules; copied (default: "param" and its number) */
    void *grad;       /* its gradient, `count` elements, the caller's and alive as long as the
                         buckets; it may be anywhere, also elsewhere on other ranks. Where the
                         gradients of a bucket lie one behind another, in the order of registration,
                         they are summed where they are; else they are gathered into the bucket and
                         scattered back. Device memory, aligned to its elements, is never read or
                         written by the host; its bucket is on the same device, and summed where the
                         gradient is if it is alone in there (default: NULL, it lives inside its
                         bucket, which is in host memory then, see dcomm_param_grad) */
    size_t count;     /* elements; may be 0 */
    dcomm_dtype dtype;
    const char *codec; /* spec of its codec, or "none"; copied (default: by opts.rules, else
                          opts.codec) */
    void *value; /* with opts.sharded: the parameter itself, `count` elements of the same dtype,
                    which dcomm_buckets_gather completes; of all parameters or of none, and where
                    the gradient is, in host memory or on its device */
    bool aside;  /* no gradient but a loss, a count: a scaler (scaler.h) neither looks at it nor
                    changes it (default: a gradient) */
} dcomm_bucket_param;

/* Parameters whose name matches a pattern, and which name no codec themselves, have this one. */
typedef struct dcomm_bucket_rule {
    const char *match; /* as in a shell: "*", "?", "[a-z]"; the first that matches decides */
    const char *codec; /* spec, or "none" */
    const dcomm_feedback_opts *feedback; /* its error feedback; copied (default: opts.feedback) */
    bool no_feedback;                    /* none, whatever opts.feedback is */
} dcomm_bucket_rule;

/* All zero means the defaults. The same on every rank. */
typedef struct dcomm_buckets_opts {
    size_t bucket_bytes; /* a bucket is closed before the parameter that would make it larger; a
                            parameter is never split, a larger one has a bucket to itself (default:
                            25 MiB) */
    size_t first_bytes;  /* the same for the first bucket of each dtype and codec, which is smaller
                            so that sending begins early (default: 1 MiB, and at most bucket_bytes)
                            */
    bool sum;            /* the result is the sum over the ranks (default: the average) */
    bool weighted;       /* the result is the average weighted by what dcomm_buckets_begin is told,
                            the number of samples say; floats only (default: ranks weigh the same) */
    bool predivide; /* each rank divides by the number of ranks before the sum instead of behind
                       it, so that no partial sum overflows, and small numbers underflow sooner;
                       floats only (docs/mixed-precision.md; default: behind it, and opts.weighted
                       before it in any case) */
    bool unused;    /* parameters that were not marked when dcomm_buckets_wait is called
                       contribute zeros (default: they are an error) */
    bool rebuild;   /* after the first step that is summed, buckets are built again by the order
                       in which rank 0's gradients became ready (default: no) */
    bool sharded; /* each rank gets the result of its shard of each bucket only (ZeRO, stages 1 and
                     2), by reduce-scatter; not with codecs and not with rebuild (default: no) */
    const char *codec; /* spec of the codec of parameters of floats; copied (default: exact) */
    const dcomm_bucket_rule *rules; /* that come before `codec`; copied (default: none) */
    size_t nrules;
    const dcomm_feedback_opts *feedback; /* each bucket with a codec has error feedback, unless its
                                            rule says otherwise; copied (default: NULL, none) */
    dcomm_coll_opts coll; /* of each all-reduce: algo, deterministic, accumulate, timeout_s, lanes,
                             chunk_bytes, codec_seed; the rest must be zero */
    bool registered;    /* host memory of buckets comes from dcomm_mem_alloc, which ranks of a host
                           read faster and which takes shared memory; ordinary memory where there
                           is not enough (default: ordinary; may differ by rank) */
    size_t history;     /* steps that percentiles are taken over; may differ by rank (default: 256)
                         */
    size_t trace_steps; /* the last so many steps are kept for dcomm_buckets_trace; may differ by
                           rank (default: 0, none) */
} dcomm_buckets_opts;

/* Make buckets; collective. `params` and `opts` (may be NULL) are not needed afterwards; gradients
 * are, and `comm` is not. Parameters are taken in the reverse order of registration, which is about
 * the order in which backward is done with them.
 * Errors, on all ranks: DCOMM_ERR_MISMATCH (ranks have registered something else; the sentence
 * names the first such parameter or option), DCOMM_ERR_INVALID (an argument of some rank; two names
 * that are the same, a codec that is none), DCOMM_ERR_UNSUPPORTED (a parameter on a device has
 * error feedback that is not classic in f32, or a codec that all-reduce does not take there, or
 * "auto": the sentence names it), DCOMM_ERR_NO_MEMORY. Only where comm or b_p is NULL do the other
 * ranks not know. */
DCOMM_API DCOMM_CHECKED dcomm_status dcomm_buckets_create(dcomm_comm *comm,
                                                          const dcomm_bucket_param *params,
                                                          size_t nparams,
                                                          const dcomm_buckets_opts *opts,
                                                          dcomm_buckets **b_p);
/* Destroy them and set *b_p to NULL; gradients that live inside buckets are gone. No other thread
 * may be in a call on them. A step under way fails on all ranks. */
DCOMM_API dcomm_status dcomm_buckets_destroy(dcomm_buckets **b_p);

/* The gradient of parameter i: the caller's own, or where it lies inside its bucket, `count`
 * elements, at first zero. It may move when buckets are rebuilt (see dcomm_buckets_info.built).
 * NULL for a bad i, and for count 0 inside a bucket. */
DCOMM_API void *dcomm_param_grad(dcomm_buckets *b, size_t i);

/* ---- a step ---- */

/* What a step is to do. The same on every rank, but for the weight. */
typedef struct dcomm_buckets_step {
    double weight;   /* with opts.weighted: of this rank, 0 or more. A rank of weight 0 contributes
                        zeros; where all have weight 0 the result is zero */
    bool accumulate; /* do not send: a later step sends what has been added up in the gradients by
                        then (default: send) */
} dcomm_buckets_step;

/* Begin a step. Not needed where all of it has its default and opts.weighted is not set: the first
 * gradient that is ready begins it.
 * Errors: DCOMM_ERR_INVALID (a step is under way, the weight is negative or not finite). */
DCOMM_API DCOMM_CHECKED dcomm_status dcomm_buckets_begin(dcomm_buckets *b,
                                                         const dcomm_buckets_step *step);

/* The gradient of parameter i is computed. It is the library's until dcomm_param_wait or
 * dcomm_buckets_wait has succeeded; after an error until dcomm_buckets_destroy, since other ranks
 * may still read it. From any thread; waits for no other rank, nor for a device.
 *
 * `stream` is for gradients in device memory: a cudaStream_t of that device. The gradient is computed when what the stream holds now has been done. The
 * stream itself waits for nothing: what is put on it next runs while the bucket is summed, on a
 * stream of the buckets' own. Gradients of a bucket may be marked on different streams. NULL is
 * no stream (cuda.h): the gradient is there already. From the first device on, the context has a progress thread.
 * Errors: DCOMM_ERR_INVALID (a bad i; marked twice in this step; a stream, and the gradient is in
 * host memory), DCOMM_ERR_UNSUPPORTED (a stream, and the implementation was built without
 * DCOMM_WITH_CUDA, or it is being captured into a graph), DCOMM_ERR_SYSTEM (not a stream of that
 * device; the step has not failed then), or why the step has failed. */
DCOMM_API DCOMM_CHECKED dcomm_status dcomm_param_mark_ready(dcomm_buckets *b, size_t i, void *stream);
/* Parameter i has no gradient in this step and contributes zeros. Nothing may be under way for it
 * on a device: its memory takes the result. */
DCOMM_API DCOMM_CHECKED dcomm_status dcomm_param_mark_unused(dcomm_buckets *b, size_t i);
/* Move what is under way, and start what can be. From any thread, without blocking. Any waiting of
 * the context's does the same, and so does its progress thread (dcomm_context_opts), with which
 * nobody needs to call this; except with opts.weighted, where weights must have come first. */
DCOMM_API dcomm_status dcomm_buckets_progress(dcomm_buckets *b);

/* Wait until the gradient of parameter i is the result, in device memory too: the calling thread
 * waits for the device. The step goes on. From any thread.
 * Errors: DCOMM_ERR_INVALID (its bucket or one before lacks a gradient: the sentence names it; the
 * step has not failed then; the step does not send), or why the step has failed. */
DCOMM_API DCOMM_CHECKED dcomm_status dcomm_param_wait(dcomm_buckets *b, size_t i);
/* Wait for all, likewise, and end the step. No other thread may be in a call on b but
 * dcomm_buckets_progress. After a step that does not send, what is under way on streams stays so.
 * Errors: DCOMM_ERR_INVALID (parameters that were never marked, where opts.unused is not set and
 * the step sends), DCOMM_ERR_MISMATCH (ranks are in different steps), or why the step has failed,
 * here or on another rank (DCOMM_ERR_ABORTED; the sentence says what and where). */
DCOMM_API DCOMM_CHECKED dcomm_status dcomm_buckets_wait(dcomm_buckets *b);

/* ---- shards (opts.sharded) ---- */

/* Which elements of parameter i this rank owns: [*first_p, *first_p + *count_p), perhaps none.
 * After the wait, these elements of its gradient are the result, the others undefined. Each element
 * is owned by one rank, always the same. Without opts.sharded a rank owns all. */
DCOMM_API dcomm_status dcomm_param_get_owned(const dcomm_buckets *b, size_t i, size_t *first_p,
                                          size_t *count_p);
/* Every rank has brought the elements of dcomm_bucket_param.value that it owns up to date (in
 * device memory too: nothing may be under way for them): bring all of them to all ranks.
 * Collective, between steps. Buckets are sent last one first, since forward begins with what
 * backward ends with. Errors: DCOMM_ERR_INVALID (not sharded, no values, a step is under way),
 * those of all-gather. */
DCOMM_API DCOMM_CHECKED dcomm_status dcomm_buckets_gather(dcomm_buckets *b);

/* ---- between runs ---- */

/* Write all that the next run needs to go on as if there had been no end: the order of the buckets
 * (of opts.rebuild too), the step, the scaler if there is one, and each bucket's error feedback.
 * Each rank saves its own, between steps, into dcomm_buckets_save_bytes. Gradients are not in it.
 * Errors: DCOMM_ERR_INVALID (no room, a step is under way), DCOMM_ERR_SYSTEM (a device). */
DCOMM_API size_t dcomm_buckets_save_bytes(const dcomm_buckets *b);
DCOMM_API dcomm_status dcomm_buckets_save(dcomm_buckets *b, void *to, size_t capacity);
/* Read it back into buckets of the same parameters, codecs, sizes and feedback; the scaler, where
 * there was one, is created before. Collective, between steps. states[r] of bytes[r] is what rank r
 * of the old job saved, for all its `nstates` ranks. Where as many ranks load, each reads its own
 * state alone, and the others may be NULL; the run goes on with the bits of one that never ended
 * (but a stochastic codec without feedback draws other numbers: by the calls of this communicator).
 * Another number of ranks needs all states, and does with feedback what dcomm_feedback_reshard does:
 * what a NULL one held back is lost.
 * Errors, on all ranks, and the buckets are as they were: DCOMM_ERR_CORRUPT (not what save wrote),
 * DCOMM_ERR_INVALID (other parameters, sizes or feedback; a state in another rank's place; no
 * scaler), DCOMM_ERR_MISMATCH (states of different steps), DCOMM_ERR_NO_MEMORY. */
DCOMM_API dcomm_status dcomm_buckets_load(dcomm_buckets *b, const void *const *states,
                                          const size_t *bytes, size_t nstates);

/* ---- what there is, and how it went ---- */

typedef struct dcomm_buckets_info {
    size_t nparams, nbuckets;
    size_t bytes;        /* of all gradients */
    uint64_t steps;      /* ended, those included that only accumulated */
    uint64_t sent_steps; /* of them, those that did not */
    int built;           /* how often buckets were built: 1, or 2 after opts.rebuild */
    dcomm_status status; /* why they are beyond use; DCOMM_OK: they are not */
} dcomm_buckets_info;
DCOMM_API dcomm_status dcomm_buckets_get_info(const dcomm_buckets *b, dcomm_buckets_info *info);
/* Their communicator, for statistics (dcomm_comm_get_stats) and explanations; not for collectives. NULL
 * of NULL. */
DCOMM_API dcomm_comm *dcomm_buckets_comm(const dcomm_buckets *b);

/* A time in seconds: of the last step, and of 50, 95 and 99 of 100 steps no more than. */
typedef struct dcomm_bucket_time {
    double last, p50, p95, p99;
} dcomm_bucket_time;

typedef struct dcomm_bucket_info {
    size_t nparams, count, bytes;
    dcomm_dtype dtype;
    const char *codec;        /* its spec, NULL: exact; lives as long as the buckets */
    dcomm_feedback *feedback; /* NULL: none; not to be used while a step is under way */
    bool in_place;            /* no gradient of it is copied */
    int device;               /* in whose memory it lies; -1: the host's */
    double ready_s;           /* of the last step that sent, from its beginning: when the last of
                                 its gradients was ready, */
    double start_s, done_s;   /* when it was sent, when the result was there */
    double alone_s;           /* see dcomm_buckets_calibrate; 0: not known */
    dcomm_bucket_time time;   /* from sent to result */
} dcomm_bucket_info;
/* Bucket k, in the order in which they are sent. Not in a step. */
DCOMM_API dcomm_status dcomm_bucket_get_info(dcomm_buckets *b, size_t k, dcomm_bucket_info *info);
/* The bucket that parameter i is in, and the number of elements before it there. */
DCOMM_API dcomm_status dcomm_param_get_bucket(const dcomm_buckets *b, size_t i, size_t *bucket_p,
                                       size_t *first_p);

/* Times of this rank, over steps that sent. */
typedef struct dcomm_buckets_report {
    uint64_t steps;             /* that percentiles are taken over */
    size_t bytes;               /* of gradients, in each */
    dcomm_bucket_time step;     /* from its beginning to the end of dcomm_buckets_wait */
    dcomm_bucket_time backward; /* from its beginning to the call of dcomm_buckets_wait */
    dcomm_bucket_time comm;     /* in which at least one bucket was under way */
    dcomm_bucket_time exposed;  /* within dcomm_buckets_wait */
    double alone_s;             /* all buckets one after another with nothing else to do, see
                                   dcomm_buckets_calibrate; 0: not known */
    double hidden_s;            /* of the last step: alone_s (comm, where that is not known; but a
                                   bucket that nobody progresses is under way too) less exposed, not
                                   below 0 */
    double efficiency;          /* hidden_s over what can be hidden, which is the shorter of
                                   backward and alone_s (comm); from 0 to 1 */
} dcomm_buckets_report;
/* Not in a step. All zero before the first step that sent. */
DCOMM_API dcomm_status dcomm_buckets_get_report(dcomm_buckets *b, dcomm_buckets_report *report);

/* Measure what each bucket takes alone: the median of `rounds` all-reduces of zeros (at least 1;
 * without error feedback). Collective, not in a step. Gradients that are not copied are zero
 * afterwards. Errors: DCOMM_ERR_INVALID on all ranks (`rounds` of one rank is not from 1 to 10000),
 * DCOMM_ERR_MISMATCH (`rounds` differ), those of all-reduce: a rank that calls it alone waits for
 * the others no longer than opts.coll.timeout_s. */
DCOMM_API dcomm_status dcomm_buckets_calibrate(dcomm_buckets *b, int rounds);

/* Write the steps that are kept (opts.trace_steps) as a Chrome trace: JSON that chrome://tracing
 * and Perfetto show; backward, the gradients as they became ready, and each bucket on one time
 * line. Times are microseconds of the machine's monotonic clock; the rank is the process number.
 * Not in a step. Errors: DCOMM_ERR_SYSTEM (the file), DCOMM_ERR_INVALID (opts.trace_steps is 0). */
DCOMM_API dcomm_status dcomm_buckets_trace(dcomm_buckets *b, const char *path);

#ifdef __cplusplus
}
#endif
#endif
