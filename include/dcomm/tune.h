/* tune.h - the algorithms, their prices by the model, the choice among them, and counters. */
#ifndef DCOMM_TUNE_H
#define DCOMM_TUNE_H

#include "coll.h"

#ifdef __cplusplus
extern "C" {
#endif

/* An algorithm, as tools and docs show it. Texts are constant. */
typedef struct dcomm_algo_info {
    const char *name;   /* as in dcomm_coll_opts.algo */
    dcomm_coll coll;    /* the operation */
    bool rank_order;    /* can fold in rank order (deterministic) */
    const char *cost;   /* steps and bytes on the wire, for N ranks and S bytes */
    const char *source; /* paper or origin */
} dcomm_algo_info;

/* Describe the i-th algorithm of an operation, i = 0, 1, ..., in *info.
 * Errors: DCOMM_ERR_INVALID (past the last one, NULL). */
DCOMM_API dcomm_status dcomm_algo_get_info(dcomm_coll coll, int i, dcomm_algo_info *info);

/* Describe the i-th algorithm that runs if opts.codec compresses; otherwise as
 * dcomm_algo_get_info. */
DCOMM_API dcomm_status dcomm_coded_algo_get_info(dcomm_coll coll, int i, dcomm_algo_info *info);

/* Create one rank's plan for an operation, as the engine would run it. spec has the arguments of
 * the call, and the hosts: algorithms keep ranks of one host together. opts (may be NULL) has algo,
 * lanes, chunk_bytes and codec. A plan with a codec cannot be run: it lacks the codec's memory and
 * keys. Destroy it with dcomm_plan_destroy.
 * Errors: DCOMM_ERR_INVALID (unknown algorithm, bad rank), DCOMM_ERR_UNSUPPORTED (the algorithm
 * cannot do this: the sentence says why), DCOMM_ERR_NO_MEMORY. */
DCOMM_API DCOMM_CHECKED dcomm_status dcomm_plan_create(const dcomm_check_spec *spec, dcomm_op op,
                                                       int rank, int nranks,
                                                       const dcomm_coll_opts *opts,
                                                       dcomm_plan **plan_p);
/* Destroy a plan of dcomm_plan_create and set *plan_p to NULL. NULL and *plan_p NULL are fine. */
DCOMM_API void dcomm_plan_destroy(dcomm_plan **plan_p);

/* ---- the model's numbers ---- */

/* A link between two ranks is named by the coarsest level that they do not share. */
typedef enum dcomm_link_kind {
    DCOMM_LINK_HOST = 0,    /* on different hosts */
    DCOMM_LINK_PACKAGE = 1, /* on one host, on different packages */
    DCOMM_LINK_NUMA = 2,    /* on different NUMA nodes of one package, or of a host whose nodes
                             * hold packages */
    DCOMM_LINK_CACHE = 3,   /* on one NUMA node, with no cache in common */
    DCOMM_LINK_CORE = 4,    /* on different cores that share a cache */
    DCOMM_LINK_NEAR = 5,    /* they share all known levels */
    DCOMM_LINK_COUNT = 6    /* number of kinds */
} dcomm_link_kind;

#define DCOMM_CURVE_POINTS 12 /* most points of a curve */

/* Picoseconds as a function of bytes: straight lines through n points, bytes ascending. Before the
 * first point it is ps[0]; after the last point the last slope goes on. n = 0: 0 everywhere. */
typedef struct dcomm_curve {
    int64_t n;                         /* number of points */
    int64_t bytes[DCOMM_CURVE_POINTS]; /* their bytes */
    int64_t ps[DCOMM_CURVE_POINTS];    /* their picoseconds */
} dcomm_curve;

/* Costs between two ranks. */
typedef struct dcomm_link {
    int64_t alpha_ps;    /* latency from the end of the sender's work to the receiver's notice */
    int64_t overhead_ps; /* work per message, of the sender and again of the receiver */
    int64_t signal_ps;   /* latency of SIGNAL and EXPOSE */
    int64_t tell_ps;     /* work of the rank that signals or exposes, for each rank addressed */
    int64_t eager_bytes; /* a longer message waits for its receive (0: no message waits) */
    /* Not 0: the reader's processor moves the bytes (memory of one host). 0: each rank has a port
     * that sends and one that receives, both at the same time, one message each. */
    int64_t by_core;
    dcomm_curve message; /* time that a message keeps each end busy */
    dcomm_curve fold;    /* additional time of a receiver that folds the message */
    dcomm_curve read;    /* copying exposed memory */
    dcomm_curve reduce;  /* folding exposed memory, for each rank that is read */
    /* The same for memory that a call promises to be registered (n = 0: as other memory) ... */
    dcomm_curve mapped_read, mapped_reduce;
    /* ... and for memory that it promises to be on huge pages. */
    dcomm_curve huge_read, huge_reduce;
    /* Time that a message keeps busy the port shared by all ranks on this side of the link (the
     * host's network interface). */
    dcomm_curve shared;
    /* Least time of that port for all bytes of an operation: a shaped link lets a burst through
     * faster than it can go on. */
    dcomm_curve sustained;
} dcomm_link;

/* Measured times of all-reduces by one algorithm, on ranks of one host. */
typedef struct dcomm_trial {
    char algo[24];    /* "": none */
    dcomm_curve took; /* the times */
} dcomm_trial;

#define DCOMM_TRIALS 12 /* most algorithms that are tried */

/* All numbers: plain data, the same on all ranks of a communicator. All zero: everything is
 * free. */
typedef struct dcomm_tuning {
    dcomm_link link[DCOMM_LINK_COUNT]; /* by dcomm_link_kind */
    dcomm_curve copy;                  /* within a rank's own memory */
    dcomm_curve fold;                  /* each operand after the first, in the rank's own memory */
    /* Device memory. 0, or n = 0: the model takes assumed numbers that nobody has measured.
     * device_stage_ps: additional time of a message, or of a read of a peer, through pinned memory.
     */
    int64_t device_stage_ps;
    /* device_ucx 1: UCX moves device memory between all hosts (path "ucx"); a communicator sets it
     * to what its ranks have found. device_ucx_ps: additional time of such a message over one of
     * host memory; short messages go through pinned memory. */
    int64_t device_ucx, device_ucx_ps;
    /* From a launch until its end is noticed. copy, fold: as above, on the device, fold also for
     * messages. read, reduce: a peer's device memory, read in place; in a fold of several peers the
     * launch counts once. */
    dcomm_curve device_copy, device_fold, device_read, device_reduce;
    /* Work of each step of any plan, and of each call. The fast path for short calls on ranks of
     * one host (docs/engine.md) is priced without either. */
    int64_t step_ps, call_ps;
    /* The numbers of link[DCOMM_LINK_HOST] are for this many connections from a rank to a rank of
     * another host, at most DCOMM_CONNECTIONS_MAX. A communicator with these numbers uses as many,
     * unless dcomm_comm_opts.connections says otherwise. 0: it keeps those that it has. */
    int64_t connections;
    /* Trials of all-reduces on `tried` ranks of one host (0: no trials) correct the model's prices:
     * a price is multiplied by the trial's time over its price. Between two points of a curve the
     * factor is interpolated; outside them it is that of the nearest point. An algorithm that was
     * not tried, because it was expensive, takes the largest factor of another one. `registered` is
     * for memory that is promised to be registered; `huge` for memory promised to be on huge pages,
     * from its first point on; `trial` for all other host memory. */
    int64_t tried;
    dcomm_trial trial[DCOMM_TRIALS], huge[DCOMM_TRIALS], registered[DCOMM_TRIALS];
    char source[128]; /* origin of the numbers, for people */
} dcomm_tuning;

/* Set *tuning to the textbook's network: every message takes alpha + bytes*beta, a rank sends one
 * and receives one at the same time, folding takes gamma a byte, all else is free.
 * Errors: DCOMM_ERR_INVALID (NULL, a negative number, one above 1e6 us or 1e6 ns/B). */
DCOMM_API dcomm_status dcomm_tuning_uniform(double alpha_us, double beta_ns_per_B,
                                            double gamma_ns_per_B, dcomm_tuning *tuning);

/* Set *tuning to the built-in numbers, which are used if nothing is measured. */
DCOMM_API void dcomm_tuning_default(dcomm_tuning *tuning);

/* Write a tuning to the file `path`: text, one setting a line.
 * Errors: DCOMM_ERR_SYSTEM (the file), DCOMM_ERR_INVALID (NULL). */
DCOMM_API dcomm_status dcomm_tuning_save(const dcomm_tuning *tuning, const char *path);
/* Read a tuning from the file `path`. Settings that it does not name have the built-in numbers.
 * Errors: DCOMM_ERR_SYSTEM (the file), DCOMM_ERR_INVALID (a line: the sentence names it). */
DCOMM_API dcomm_status dcomm_tuning_load(const char *path, dcomm_tuning *tuning);

/* Price a set of plans: set *seconds to the model's time from the call on all ranks to the end on
 * the last one. plans[r] is rank r's plan, hosts[r] the number of its host; hosts NULL: all ranks
 * share one, linked by DCOMM_LINK_NEAR. Of a plan with stages the first is priced; a length that
 * comes from a word counts as its maximum.
 * Errors: DCOMM_ERR_PLAN (a step that blocks in every execution), DCOMM_ERR_UNSUPPORTED (the steps
 * depend on a word), DCOMM_ERR_INVALID, DCOMM_ERR_NO_MEMORY. */
DCOMM_API dcomm_status dcomm_plan_price(const dcomm_plan *const *plans, int nranks,
                                        const int *hosts, const dcomm_tuning *tuning,
                                        double *seconds);

/* ---- why a call runs this algorithm ---- */

/* One algorithm, as the choice sees it. */
typedef struct dcomm_alternative {
    const char *algo; /* its name */
    double seconds;   /* the model's price; below 0: it has none */
    bool chosen;      /* this one runs */
    bool assumed;     /* the price uses numbers of devices that nobody has measured */
    char why[192];    /* why this one does not run; "": it runs */
    char note[96];    /* which levels of the topology it ignores, and why; "": none */
} dcomm_alternative;

/* One path for bytes of device memory. A plan runs on any path: each pair of ranks takes the path
 * that its memory allows, and the choice of the algorithm relies on what the options promise.
 *
 * "staged": copy to pinned memory, send, copy in and fold on the device, piece by piece. "direct":
 * within a host, the folding kernel reads the peer's memory; between hosts as the others. "ucx":
 * between hosts, UCX sends from device memory and receives into it, where UCX has CUDA transports
 * on all ranks; within a host staged. */
typedef struct dcomm_path {
    const char *name; /* "staged", "direct" or "ucx" */
    const char *algo; /* the options' algorithm, or the choice for this path; NULL: none */
    double seconds;   /* the model's price; below 0: it has none */
    bool taken;       /* the choice relies on this path */
    bool assumed;     /* the price uses numbers that nobody has measured */
    int64_t direct_pairs, staged_pairs, ucx_pairs; /* pairs of ranks that take each */
    char why[192]; /* why the choice does not rely on this path; "": it does */
} dcomm_path;

/* A question and its answer. Zero all of it, then set the call's arguments. */
typedef struct dcomm_explanation {
    /* The call. */
    dcomm_coll coll;   /* the collective */
    size_t count;      /* elements, as in the call; all blocks of a v-collective have this size */
    dcomm_dtype dtype; /* of the elements */
    dcomm_op op;       /* the operator, if the collective reduces */
    const dcomm_coll_opts *opts; /* NULL: the defaults */
    /* The ranks, if comm is NULL. Else all zero. */
    int nranks;                 /* at least 1 */
    const int *hosts;           /* [nranks] number of each rank's host; NULL: all share one */
    const dcomm_tuning *tuning; /* NULL: the built-in numbers (dcomm_tuning_default) */
    /* The caller's room for rows. NULL and 0: these rows are not wanted. */
    dcomm_alternative *alternatives; /* every algorithm, in the order of dcomm_algo_get_info */
    int max_alternatives;            /* rows that `alternatives` has room for */
    dcomm_path *paths;               /* "staged", "direct", "ucx" */
    int max_paths;                   /* rows that `paths` has room for */
    /* The answer. */
    const char *algo;  /* the algorithm that runs; constant text */
    int nalternatives; /* algorithms that there are; may be more than max_alternatives */
    int npaths;        /* paths that there are; may be more than max_paths */
} dcomm_explanation;

/* Say which algorithm a call runs on comm, and, if the caller brings room for rows, what the others
 * cost. comm NULL: explain for ranks that do not exist yet. Any rank may ask by itself.
 *
 * Prices are for root 0 and equal blocks, at the size next to `count` on the model's grid (four
 * sizes an octave). The choice relies on path "staged" with opts.device; on "ucx" with opts.device,
 * if there are several hosts and UCX takes device memory on all ranks; on "direct" with opts.device
 * and opts.registered; on none without opts.device.
 * Errors: DCOMM_ERR_INVALID (explanation is NULL, a field is out of range, nranks, hosts or tuning
 * beside a comm), DCOMM_ERR_NO_MEMORY, and those of the call itself, such as DCOMM_ERR_UNSUPPORTED
 * (opts.algo cannot do this). */
DCOMM_API dcomm_status dcomm_comm_explain(dcomm_comm *comm, dcomm_explanation *explanation);

/* ---- is a codec worth it? ---- */

/* The verdict on a codec for an all-reduce of f32. */
typedef struct dcomm_verdict {
    bool worth;                            /* faster than an all-reduce of as many bf16 */
    const char *algo;                      /* the compressed algorithm that would run */
    double seconds;                        /* the model's price, with the codec's measured times */
    double bf16_seconds, exact_seconds;    /* the model's prices for bf16 and for f32 */
    double encode_seconds, decode_seconds; /* measured: the whole tensor once, on one core or on the
                                              device, without error feedback (which takes about as
                                              long again) */
    double bits;                           /* measured: bits on the wire per element */
    int device;                            /* device that it was measured on; -1: the CPU */
    char text[640];                        /* all of this in a sentence */
} dcomm_verdict;

/* Measure a codec on at most 2^20 artificial numbers, price the all-reduce of `count` f32 with it
 * on comm, and compare with bf16. device: measure its kernels on the current device, if it has any,
 * for calls with opts.device; else the CPU's code. Any rank may ask by itself. Ranks measure
 * different times: act on one rank's verdict, on all ranks.
 * Errors: DCOMM_ERR_INVALID, DCOMM_ERR_UNSUPPORTED (no price), DCOMM_ERR_NO_MEMORY. */
DCOMM_API dcomm_status dcomm_codec_measure(dcomm_comm *comm, const dcomm_codec *codec, size_t count,
                                           bool device, dcomm_verdict *verdict);

/* Decide which codec all-reduces of sums or averages of `count` elements use on comm if opts.codec
 * is `codec`: sets *taken_p to it, or to NULL if they are exact. It lives as long as `codec`.
 *
 * It is `codec` itself unless that is "auto" or "auto:SPEC". Then rank 0's verdict decides for all
 * ranks between exact, a cast to bf16 and SPEC (default: qsgd:bits=8): a lossier one must be a
 * tenth faster, and SPEC faster than an all-reduce of as many bf16. The decision holds for a class
 * of lengths (four an octave), apart for calls with opts.device (`device`), until dcomm_comm_tune.
 *
 * Collective if the class is new: every rank calls it with the same arguments. Not between
 * dcomm_group_start and dcomm_group_end. A blocking all-reduce outside of groups decides by itself,
 * on all ranks or on none; other all-reduces are refused until the class is decided. DCOMM_LOG=info
 * prints the verdict. */
DCOMM_API DCOMM_CHECKED dcomm_status dcomm_codec_decide(dcomm_comm *comm, const dcomm_codec *codec,
                                                        size_t count, dcomm_dtype dtype,
                                                        bool device, const dcomm_codec **taken_p);

/* ---- a communicator's numbers, and its counters ---- */

/* Set the numbers that a communicator chooses by; collective. Rank 0's `tuning` counts; if it is
 * NULL, the numbers are measured now. Communicators that are derived later inherit them. Not
 * between dcomm_group_start and dcomm_group_end. */
DCOMM_API DCOMM_CHECKED dcomm_status dcomm_comm_tune(dcomm_comm *comm, const dcomm_tuning *tuning);
/* Copy the numbers that a communicator chooses by to *tuning.
 * Errors: DCOMM_ERR_INVALID (NULL). */
DCOMM_API dcomm_status dcomm_comm_get_tuning(dcomm_comm *comm, dcomm_tuning *tuning);

/* Counters of one rank of a communicator since its creation. */
typedef struct dcomm_stats {
    uint64_t operations;      /* completed operations */
    uint64_t messages_sent;   /* payload messages */
    uint64_t messages_posted; /* of these, messages that were written once for all ranks of the
                                 host; counted for each rank */
    uint64_t bytes_sent;      /* payload bytes sent, without headers */
    uint64_t bytes_read;      /* payload bytes read from peers' exposed memory */
    uint64_t bytes_mapped;   /* payload bytes, received or read, that were used in place in a peer's
                                registered memory or scratch */
    uint64_t bytes_straight; /* payload bytes that UCX has sent from device memory */
    uint64_t unexpected_bytes_max;      /* most bytes held for messages that came early */
    uint64_t plans_built, plans_reused; /* plans made, and taken from the cache */
    uint64_t codec_ns; /* nanoseconds in codecs: encoding, decoding, error feedback */
} dcomm_stats;
/* Copy the counters to *stats.
 * Errors: DCOMM_ERR_INVALID (NULL). */
DCOMM_API dcomm_status dcomm_comm_get_stats(const dcomm_comm *comm, dcomm_stats *stats);

#ifdef __cplusplus
}
#endif
#endif
