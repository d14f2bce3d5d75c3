/* bucket.h - gradients in buckets. Each bucket is summed over the ranks as soon as its last
 * gradient is ready, while the backward pass goes on with the rest.
 *
 *     dcomm_buckets_create(comm, params, n, &opts, &b);      once
 *     for each step:
 *         dcomm_param_mark_ready(b, i, NULL);                when backward is done with gradient i
 *         dcomm_buckets_progress(b);                         now and then
 *         dcomm_buckets_wait(b);                             all gradients are the average now
 *     dcomm_buckets_destroy(&b);
 *
 * Names: dcomm_buckets_x acts on all buckets, dcomm_param_x(b, i, ...) on parameter i, and
 * dcomm_bucket_x(b, k, ...) on bucket k.
 *
 * All ranks register the same parameters in the same order, with the same names, counts, dtypes
 * and codecs. A rank may mark them ready in any order, from any thread. Buckets are sent in the
 * same order on every rank. They have a communicator of their own, so the caller's other
 * collectives may come in between. That communicator takes some KiB of memory on each rank.
 *
 * An error on one rank (a parameter marked twice, or never) fails the step on all ranks. The error
 * sentence names the rank and the parameter. Gradients are undefined then, and calls are refused.
 * Destroy the buckets, or go on with them and their error feedback: dcomm_buckets_rebind, on a
 * communicator of the ranks that are left. The one that they were created from still works.
 *
 * Gradients may be device memory if the implementation is built with DCOMM_WITH_CUDA
 * (docs/cuda.md). They are then marked ready in the order of a stream (dcomm_param_mark_ready).
 *
 * docs/bucketing.md has a program to start from. */
#ifndef DCOMM_BUCKET_H
#define DCOMM_BUCKET_H

#include "coll.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The buckets of a set of parameters. */
typedef struct dcomm_buckets dcomm_buckets;

/* One parameter. Every rank must give the same name, count, dtype, codec and aside, and agree on
 * whether the gradient is device memory. If a rank has gradients on several devices, the same
 * parameters must share a device on every rank; device numbers may differ. */
typedef struct dcomm_bucket_param {
    const char *name; /* for errors, reports and rules; copied (default: "param" and its number) */
    /* The gradient: `count` elements in the caller's memory, which must stay valid as long as the
     * buckets. Its place may differ by rank. If the gradients of a bucket lie one behind another
     * in the order of registration, they are summed in place. Otherwise they are gathered into the
     * bucket and scattered back. Device memory must be aligned to its elements. The host never
     * reads or writes it: its bucket is on the same device. A gradient that is alone in its bucket
     * is summed in place (default: NULL, the gradient lives inside its bucket in host memory, see
     * dcomm_param_grad). */
    void *grad;
    size_t count;      /* elements; may be 0 */
    dcomm_dtype dtype; /* of the gradient */
    const char *codec; /* spec of its codec, or "none"; copied (default: by opts.rules, else
                          opts.codec) */
    void *value; /* with opts.sharded: the parameter itself, `count` elements of the same dtype,
                    which dcomm_buckets_gather completes. Set it for all parameters or for none. It
                    must lie where the gradient lies: in host memory or on the same device */
    bool aside;  /* this is not a gradient but a loss or a count: a scaler (scaler.h) neither
                    checks nor changes it (default: a gradient) */
} dcomm_bucket_param;

/* A rule that gives a codec to parameters whose name matches a pattern. Parameters that name a
 * codec themselves keep it. */
typedef struct dcomm_bucket_rule {
    const char *match; /* as in a shell: "*", "?", "[a-z]"; the first match decides */
    const char *codec; /* spec, or "none" */
    const dcomm_feedback_opts *feedback; /* error feedback; copied (default: opts.feedback) */
    bool no_feedback;                    /* no error feedback, whatever opts.feedback is */
} dcomm_bucket_rule;

/* All zero means the defaults. Must be the same on every rank unless a field says otherwise. */
typedef struct dcomm_buckets_opts {
    /* ---- how parameters are put into buckets ---- */

    size_t bucket_bytes; /* close a bucket before the parameter that would make it larger; a larger
                            parameter has a bucket to itself and is never split (default: 25 MiB) */
    size_t first_bytes;  /* the same for the first bucket of each dtype and codec, so that sending
                            begins early (default: 1 MiB, and at most bucket_bytes) */

    /* ---- the result ---- */

    bool sum;       /* sum over the ranks (default: average) */
    bool weighted;  /* weighted average: each rank passes its weight to dcomm_buckets_begin, such
                       as its number of samples; floats only (default: all ranks weigh the same) */
    bool predivide; /* divide by the number of ranks before the sum, so that no partial sum
                       overflows. Small numbers underflow sooner. Floats only
                       (docs/mixed-precision.md; default: divide after the sum, or before it with
                       `weighted`) */
    bool unused;    /* parameters that were not marked when dcomm_buckets_wait is called contribute
                       zeros (default: they are an error) */
    bool rebuild;   /* after the first step that is summed, build the buckets again in the order in
                       which rank 0's gradients became ready (default: no) */
    bool sharded;   /* use reduce-scatter: each rank gets only the result of its own shard of each
                       bucket (ZeRO, stages 1 and 2). Not with feedback, not with codecs that choose
                       from the whole tensor or "auto", not with `rebuild` (default: no) */

    /* ---- lossy compression ---- */

    const char *codec; /* spec of the codec for parameters of floats; copied (default: exact) */
    const dcomm_bucket_rule *rules;      /* take precedence over `codec`; copied (default: none) */
    size_t nrules;                       /* number of rules */
    const dcomm_feedback_opts *feedback; /* error feedback for each bucket with a codec, unless its
                                            rule says otherwise; copied (default: NULL, none) */

    /* ---- the all-reduce of each bucket ---- */

    dcomm_coll_opts coll; /* algo, deterministic, accumulate, timeout_s, lanes, chunk_bytes and
                             codec_seed may be set; the rest must be zero */

    /* ---- memory and reports; may differ by rank ---- */

    bool registered;    /* allocate host memory of buckets by dcomm_mem_alloc: ranks of a host read
                           it faster, but it takes shared memory. If there is not enough, buckets
                           take ordinary memory (default: ordinary memory) */
    size_t history;     /* number of steps that percentiles cover (default: 256) */
    size_t trace_steps; /* number of last steps that are kept for dcomm_buckets_trace (default:
                           0) */

    /* ---- parameters ---- */

    /* Spec of the codec for what dcomm_buckets_gather sends of floats, with `sharded`; copied. The
     * owner's values are replaced by the decoded ones, too: keep the exact ones elsewhere, and
     * write them to the values before each gather (docs/bucketing.md; default: exact). */
    const char *value_codec;
} dcomm_buckets_opts;

/* Create buckets; collective. `params`, `opts` (may be NULL) and `comm` are not needed afterwards,
 * but the gradients are. Buckets take parameters in the reverse order of registration, because
 * backward finishes them in about that order.
 * Errors, on all ranks: DCOMM_ERR_MISMATCH (ranks registered different things; the sentence names
 * the first such parameter or option), DCOMM_ERR_INVALID (a bad argument on some rank; two equal
 * names; a bad codec), DCOMM_ERR_UNSUPPORTED (a parameter on a device has error feedback that is
 * not classic in f32, or a codec that all-reduce does not take there, or "auto"; the sentence
 * names the parameter), DCOMM_ERR_NO_MEMORY. The other ranks are not told if comm or b_p is
 * NULL. */
DCOMM_API DCOMM_CHECKED dcomm_status dcomm_buckets_create(dcomm_comm *comm,
                                                          const dcomm_bucket_param *params,
                                                          size_t nparams,
                                                          const dcomm_buckets_opts *opts,
                                                          dcomm_buckets **b_p);
/* Destroy buckets and set *b_p to NULL. Gradients that live inside them are freed. No other thread
 * may be in a call on them. A step under way fails on all ranks. */
DCOMM_API dcomm_status dcomm_buckets_destroy(dcomm_buckets **b_p);

/* Return the gradient of parameter i: the caller's memory, or its place inside its bucket. A
 * gradient inside a bucket has `count` elements, is zero at first, and may move when buckets are
 * rebuilt (see dcomm_buckets_info.built). NULL for a bad i, and for count 0 inside a bucket. */
DCOMM_API void *dcomm_param_grad(dcomm_buckets *b, size_t i);

/* ---- a step ---- */

/* Options of a step. Must be the same on every rank, except the weight. */
typedef struct dcomm_buckets_step {
    double weight;   /* this rank's weight with opts.weighted, 0 or more. A rank of weight 0
                        contributes zeros; if all have weight 0 the result is zero */
    bool accumulate; /* do not send: add to the gradients until a later step sends the sums
                        (default: send) */
} dcomm_buckets_step;

/* Begin a step. The first gradient that is marked ready begins a step with the default options. So
 * call this only for other options or with opts.weighted.
 * Errors: DCOMM_ERR_INVALID (a step is under way, the weight is negative or not finite). */
DCOMM_API DCOMM_CHECKED dcomm_status dcomm_buckets_begin(dcomm_buckets *b,
                                                         const dcomm_buckets_step *step);

/* Mark the gradient of parameter i ready. The library owns it until dcomm_param_wait or
 * dcomm_buckets_wait has succeeded. After an error the library owns it until dcomm_buckets_rebind
 * or dcomm_buckets_destroy, since other ranks may still read it. May be called from any thread.
 * Waits for no other rank.
 *
 * For a gradient in device memory, pass a cudaStream_t of that device as `stream`. The gradient is
 * ready when the work that the stream holds now is done. The stream itself waits for nothing: the
 * buckets sum on a stream of their own, while later work runs on this one. Gradients of one bucket
 * may be marked on different streams. NULL means no stream (cuda.h): the call waits for the default
 * stream, and the gradient is there then. If any gradient is on a device, the context starts a
 * progress thread.
 * Errors: DCOMM_ERR_INVALID (a bad i; marked twice in this step; a stream for a gradient in host
 * memory), DCOMM_ERR_UNSUPPORTED (a stream is given but dcomm is built without DCOMM_WITH_CUDA, or
 * the stream is being captured into a graph), DCOMM_ERR_SYSTEM (not a stream of that device; the
 * step has not failed then), or the error that the step failed with. */
DCOMM_API DCOMM_CHECKED dcomm_status dcomm_param_mark_ready(dcomm_buckets *b, size_t i,
                                                            void *stream);
/* Mark parameter i unused: it has no gradient in this step and contributes zeros. No work on a
 * device may use its memory any more, because the result is written there.
 * Errors: as dcomm_param_mark_ready. */
DCOMM_API DCOMM_CHECKED dcomm_status dcomm_param_mark_unused(dcomm_buckets *b, size_t i);
/* Make progress, and start the buckets that can start, without blocking. May be called from any
 * thread. Every wait of the context does the same, and so does its progress thread
 * (dcomm_context_opts). With a progress thread this call is needed only with opts.weighted or error
 * feedback, because then all ranks must have begun the step before a bucket can start. */
DCOMM_API dcomm_status dcomm_buckets_progress(dcomm_buckets *b);

/* Wait until the gradient of parameter i holds the result. For device memory the calling thread
 * waits for the device. The step goes on. May be called from any thread.
 * Errors: DCOMM_ERR_INVALID (its bucket or an earlier one lacks a gradient, which the sentence
 * names; or the step does not send; the step has not failed then), or the error that the step
 * failed with. */
DCOMM_API DCOMM_CHECKED dcomm_status dcomm_param_wait(dcomm_buckets *b, size_t i);
/* Wait until all gradients hold the result, and end the step. Meanwhile other threads may call
 * only dcomm_buckets_progress on b. After a step that does not send, work on streams may still be
 * under way.
 * Errors: DCOMM_ERR_INVALID (parameters were never marked, opts.unused is not set, and the step
 * sends), DCOMM_ERR_MISMATCH (ranks are in different steps), or the error that the step failed
 * with, here or on another rank (DCOMM_ERR_ABORTED; the sentence says what and where). */
DCOMM_API DCOMM_CHECKED dcomm_status dcomm_buckets_wait(dcomm_buckets *b);

/* ---- shards (opts.sharded) ---- */

/* Say which elements of parameter i this rank owns: [*first_p, *first_p + *count_p), perhaps none.
 * After the wait, these elements of its gradient hold the result and the others are undefined.
 * Each element has one owner, which only dcomm_buckets_rebind changes. Without opts.sharded a rank
 * owns all.
 * Errors: DCOMM_ERR_INVALID (a bad i, NULL). */
DCOMM_API dcomm_status dcomm_param_get_owned(const dcomm_buckets *b, size_t i, size_t *first_p,
                                             size_t *count_p);
/* Gather the parameters into dcomm_bucket_param.value. Before the call, every rank has updated the
 * elements that it owns; afterwards every rank has all elements. No device work on these values
 * may be under way, except on the default stream. Collective, between steps. The last bucket is
 * sent first: backward finishes it last, and forward needs it first. Errors: DCOMM_ERR_INVALID (not
 * sharded, no values, a step is under way), those of all-gather. */
DCOMM_API DCOMM_CHECKED dcomm_status dcomm_buckets_gather(dcomm_buckets *b);

/* ---- between runs ---- */

/* Return the bytes that dcomm_buckets_save writes. */
DCOMM_API size_t dcomm_buckets_save_bytes(const dcomm_buckets *b);
/* Save the state that the next run needs to go on as if this one had not ended. It consists of the
 * order of the buckets, the step number, the scaler if there is one, and each bucket's error
 * feedback. Gradients are not saved. Each rank saves its own state, between steps.
 * Errors: DCOMM_ERR_INVALID (capacity is too small, a step is under way), DCOMM_ERR_SYSTEM (a
 * device). */
DCOMM_API dcomm_status dcomm_buckets_save(dcomm_buckets *b, void *to, size_t capacity);
/* Load a saved state into buckets of the same parameters, codecs, sizes and feedback. If a scaler
 * was saved, create one before. Collective, between steps. The old job had `nstates` ranks; its
 * rank r saved states[r], which is bytes[r] bytes long.
 *
 * If as many ranks load as saved, each rank reads only its own state, and the others may be NULL.
 * The run goes on bit for bit as if it had never ended. One exception: a stochastic codec without
 * feedback draws other random numbers, because these depend on the calls of this communicator. A
 * job of another size needs all states and treats feedback as dcomm_feedback_reshard does: the
 * residuals of a NULL state are lost.
 * Errors, on all ranks, and the buckets are as they were: DCOMM_ERR_CORRUPT (dcomm_buckets_save
 * did not write these bytes), DCOMM_ERR_INVALID (other parameters, sizes or feedback; a state in
 * another rank's place; no scaler), DCOMM_ERR_MISMATCH (states of different steps),
 * DCOMM_ERR_NO_MEMORY. */
DCOMM_API dcomm_status dcomm_buckets_load(dcomm_buckets *b, const void *const *states,
                                          const size_t *bytes, size_t nstates);

/* ---- another communicator ---- */

/* Move buckets to another communicator, such as the result of dcomm_comm_shrink or dcomm_comm_grow;
 * collective over it, after an error or between steps. `comm` may be destroyed before the buckets,
 * and so may the one before. Ranks that have no buckets yet call dcomm_buckets_create in its place,
 * with the same parameters and options, and get the step number, the order of buckets and the
 * scaler's state from the others. No other thread may be in a call on b.
 *
 * All ranks go on at the same step: the first one that sends and that not every rank had completed
 * (with a scaler: judged), or at the first that has accumulated for it. dcomm_buckets_get_rebind
 * says which. Its gradients are undefined, so compute them anew. Averages and shards follow the new
 * number of ranks (dcomm_param_get_owned anew). Gradients stay where they are, also inside buckets,
 * except on a rank that has rebuilt the buckets in a step that others have not completed.
 *
 * Error feedback goes back to before that step. The residuals of ranks that are not there any more
 * are lost, unless a rank has inherited them. A residual that cannot go back (in_place) becomes
 * zero, and counts as lost. Owner residuals are added to worker residuals. A scaler moves along; a
 * rank that creates its buckets also calls dcomm_scaler_create, with the same options, before its
 * first step, and the others do not.
 *
 * Nobody waits for ranks that are gone. The buckets' former communicator is destroyed. A rank that
 * stays out destroys its buckets.
 * Errors, on all ranks: those of dcomm_buckets_create; DCOMM_ERR_MISMATCH (scalers differ);
 * DCOMM_ERR_INVALID (an inherited state is of another step, or of a rank that is there);
 * DCOMM_ERR_PEER (another rank has failed). After an error the buckets can be moved again or
 * destroyed. If a bad argument was the error, buckets that worked before still work. */
DCOMM_API DCOMM_CHECKED dcomm_status dcomm_buckets_rebind(dcomm_buckets *b, dcomm_comm *comm);
/* Let this rank inherit the residuals of a lost rank: the next dcomm_buckets_rebind adds them to
 * this rank's. If that fails, inherit again before the one after it. The lost rank has written
 * `state` by dcomm_buckets_save; it is in use until dcomm_buckets_rebind returns. It must be of the
 * step at which the ranks go on, such as one that a rank has handed over before it left: what a
 * rank has sent since an older state would count twice. A rank can inherit from up to 8 ranks.
 * Errors: DCOMM_ERR_INVALID (NULL; too many; other parameters; not of another rank of the buckets'
 * communicator), DCOMM_ERR_CORRUPT (dcomm_buckets_save did not write these bytes). */
DCOMM_API dcomm_status dcomm_buckets_inherit(dcomm_buckets *b, const void *state, size_t bytes);

/* The outcome of dcomm_buckets_rebind, or of a dcomm_buckets_create that has met one. */
typedef struct dcomm_buckets_rebind_info {
    uint64_t step; /* number of the step that is next */
    bool undone;   /* this rank had completed it: what its optimizer has done since does not count
                      any more */
    int source;    /* the lowest rank that had not: take parameters and optimizer state from it if
                      any rank has undone the step or joined; -1: there was no rebind */
    int carried, joined; /* ranks that brought their buckets, and that created them */
    int left;            /* ranks of the communicator before that are not here */
    int missing;         /* of these, ranks whose residuals are lost */
    size_t reset;        /* residuals, one for each rank and bucket, that became zero */
    double carried_norm; /* two-norm of all residuals that are there now */
    double lost_norm;    /* two-norm of those that became zero; EF21: and of the missing ranks' part
                            of the estimate. Nobody knows the norm of other missing residuals */
} dcomm_buckets_rebind_info;
/* Describe the last rebind in *info.
 * Errors: DCOMM_ERR_INVALID (NULL). */
DCOMM_API dcomm_status dcomm_buckets_get_rebind(const dcomm_buckets *b,
                                                dcomm_buckets_rebind_info *info);

/* ---- reports ---- */

/* Facts about all buckets. */
typedef struct dcomm_buckets_info {
    size_t nparams;      /* parameters registered */
    size_t nbuckets;     /* buckets built */
    size_t bytes;        /* of all gradients */
    uint64_t steps;      /* ended, including those that only accumulated: the next one's number */
    uint64_t sent_steps; /* ended, without those that only accumulated */
    int built;           /* times that buckets were built: 1, or 2 after opts.rebuild */
    dcomm_status status; /* the error that made them unusable until a rebind; DCOMM_OK: none */
} dcomm_buckets_info;
/* Describe the buckets in *info.
 * Errors: DCOMM_ERR_INVALID (NULL). */
DCOMM_API dcomm_status dcomm_buckets_get_info(const dcomm_buckets *b, dcomm_buckets_info *info);
/* Return the buckets' communicator. Use it for dcomm_comm_get_stats and dcomm_comm_explain, not
 * for collectives. NULL if b is NULL. */
DCOMM_API dcomm_comm *dcomm_buckets_comm(const dcomm_buckets *b);

/* A time in seconds: of the last step, and its percentiles over opts.history steps. */
typedef struct dcomm_bucket_time {
    double last;          /* of the last step */
    double p50, p95, p99; /* 50, 95 and 99 of 100 steps take no longer */
} dcomm_bucket_time;

/* Facts about one bucket. */
typedef struct dcomm_bucket_info {
    size_t nparams;           /* parameters in it */
    size_t count, bytes;      /* length of the bucket in elements and in bytes */
    dcomm_dtype dtype;        /* of its elements */
    const char *codec;        /* spec; NULL: exact; lives as long as the buckets */
    dcomm_feedback *feedback; /* NULL: none; do not use it while a step is under way */
    bool in_place;            /* no gradient of it is copied */
    int device;               /* number of the device that holds it; -1: host memory */
    /* Seconds from the beginning of the last step that sent. */
    double ready_s;         /* when its last gradient was ready */
    double start_s, done_s; /* when it was sent, and when the result was there */
    double alone_s;         /* seconds that it takes alone (dcomm_buckets_calibrate); 0: unknown */
    dcomm_bucket_time time; /* from sent to result */
} dcomm_bucket_info;
/* Describe bucket k, in the order of sending, in *info. Not in a step.
 * Errors: DCOMM_ERR_INVALID (a bad k, NULL, a step is under way). */
DCOMM_API dcomm_status dcomm_bucket_get_info(dcomm_buckets *b, size_t k, dcomm_bucket_info *info);
/* Say which bucket holds parameter i, and how many elements come before it there.
 * Errors: DCOMM_ERR_INVALID (a bad i, NULL). */
DCOMM_API dcomm_status dcomm_param_get_bucket(const dcomm_buckets *b, size_t i, size_t *bucket_p,
                                              size_t *first_p);

/* Times of this rank in steps that sent, in seconds. */
typedef struct dcomm_buckets_report {
    uint64_t steps;             /* number of steps that percentiles cover */
    size_t bytes;               /* of gradients, in each step */
    dcomm_bucket_time step;     /* from the step's beginning to the end of dcomm_buckets_wait */
    dcomm_bucket_time backward; /* from the step's beginning to the call of dcomm_buckets_wait */
    dcomm_bucket_time comm;     /* time during which at least one bucket was under way */
    dcomm_bucket_time exposed;  /* time within dcomm_buckets_wait */
    double alone_s;             /* all buckets one after another with nothing else to do
                                   (dcomm_buckets_calibrate); 0: unknown */
    double hidden_s;   /* in the last step: alone_s minus exposed, at least 0. If alone_s is
                          unknown, comm is used instead, which also counts time in which buckets
                          only wait for progress */
    double efficiency; /* hidden_s divided by the most that could be hidden: the shorter of
                          backward and alone_s (or comm); 0 to 1 */
} dcomm_buckets_report;
/* Report times in *report; all zero before the first step that sent. Not in a step.
 * Errors: DCOMM_ERR_INVALID (NULL, a step is under way). */
DCOMM_API dcomm_status dcomm_buckets_get_report(dcomm_buckets *b, dcomm_buckets_report *report);

/* The lateness of a rank. A rank's own time in a step is from the end of its dcomm_buckets_wait
 * before until its last gradient was ready, without the time in dcomm_buckets_gather. It is
 * measured by the rank's own clock, so it is wrong by as much as ranks end the step before apart.
 * It travels with the next step: the last step is not counted yet. Nor is the first one. */
typedef struct dcomm_buckets_straggler {
    uint64_t steps;  /* number of steps counted, since the buckets were created or moved */
    uint64_t last;   /* of these, steps in which no rank had a longer own time */
    double caused_s; /* seconds that the other ranks waited in these steps for this rank alone:
                        each of them from when the next to last was ready */
    dcomm_bucket_time late; /* its own time less the shortest one; over opts.history steps */
} dcomm_buckets_straggler;
/* Report how late each rank was ready in steps that sent, in ranks[n], where n is the size of the
 * communicator. All ranks report the same. Not in a step. Rank 0 also logs a warning, once for
 * each rank, about a rank whose own time in 20 steps in a row was above the median by more than
 * a tenth and 1 ms (docs/bucketing.md, "Stragglers").
 * Errors: DCOMM_ERR_INVALID (NULL, another n, a step is under way), DCOMM_ERR_NO_MEMORY. */
DCOMM_API dcomm_status dcomm_buckets_get_stragglers(dcomm_buckets *b,
                                                    dcomm_buckets_straggler *ranks, size_t n);

/* Measure the seconds that each bucket takes alone. They are the median of `rounds` (1 to 10000)
 * all-reduces of zeros, without error feedback. Collective, not in a step. Gradients that are
 * summed in place are zero afterwards.
 * Errors: DCOMM_ERR_INVALID on all ranks (one rank's `rounds` is out of range), DCOMM_ERR_MISMATCH
 * (`rounds` differ), those of all-reduce. A rank that calls this alone waits at most
 * opts.coll.timeout_s for the others. */
DCOMM_API dcomm_status dcomm_buckets_calibrate(dcomm_buckets *b, int rounds);

/* Write the kept steps (opts.trace_steps) to the file `path` as a Chrome trace. That is JSON which
 * chrome://tracing and Perfetto show. One time line has backward, the gradients as they became
 * ready, and each bucket. Times are in microseconds of the machine's monotonic clock. The process
 * number is the rank. Not in a step.
 * Errors: DCOMM_ERR_SYSTEM (the file), DCOMM_ERR_INVALID (opts.trace_steps is 0). */
DCOMM_API dcomm_status dcomm_buckets_trace(dcomm_buckets *b, const char *path);

#ifdef __cplusplus
}
#endif
#endif
