/* tune.h - the algorithms, their prices by the cost model, the choice among them, and counters. */
#ifndef DCOMM_TUNE_H
#define DCOMM_TUNE_H

#include "coll.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Facts about an algorithm, as tools and docs show them. Texts are constant. */
typedef struct dcomm_algo_info {
    const char *name;   /* as in dcomm_coll_opts.algo */
    dcomm_coll coll;    /* the operation */
    bool rank_order;    /* the algorithm can fold in rank order (deterministic) */
    const char *cost;   /* steps and bytes on the wire, for N ranks and S bytes */
    const char *source; /* paper or origin */
} dcomm_algo_info;

/* Describe the i-th algorithm of an operation, i = 0, 1, ..., in *info.
 * Errors: DCOMM_ERR_INVALID (past the last one, NULL). */
DCOMM_API dcomm_status dcomm_algo_get_info(dcomm_coll coll, int i, dcomm_algo_info *info);

/* Describe the i-th of the algorithms for calls with opts.codec; otherwise as
 * dcomm_algo_get_info. */
DCOMM_API dcomm_status dcomm_coded_algo_get_info(dcomm_coll coll, int i, dcomm_algo_info *info);

/* Create one rank's plan for an operation, as the engine would run it. spec has the arguments of
 * the call, and the hosts, because algorithms keep ranks of one host together. opts (may be NULL)
 * has algo, lanes, chunk_bytes and codec. A plan with a codec cannot be run: it lacks the codec's
 * memory and keys. Destroy the plan with dcomm_plan_destroy.
 * Errors: DCOMM_ERR_INVALID (unknown algorithm, bad rank), DCOMM_ERR_UNSUPPORTED (the algorithm
 * cannot do this: the sentence says why), DCOMM_ERR_NO_MEMORY. */
DCOMM_API DCOMM_CHECKED dcomm_status dcomm_plan_create(const dcomm_check_spec *spec, dcomm_op op,
                                                       int rank, int nranks,
                                                       const dcomm_coll_opts *opts,
                                                       dcomm_plan **plan_p);
/* Destroy a plan of dcomm_plan_create and set *plan_p to NULL. NULL and *plan_p NULL are fine. */
DCOMM_API void dcomm_plan_destroy(dcomm_plan **plan_p);

/* ---- the model's numbers ---- */

/* Kinds of links between two ranks, named by the coarsest level that the ranks do not share. */
typedef enum dcomm_link_kind {
    DCOMM_LINK_HOST = 0,    /* the ranks are on different hosts */
    DCOMM_LINK_PACKAGE = 1, /* on one host, on different packages */
    DCOMM_LINK_NUMA = 2,    /* on different NUMA nodes of one package, or of a host whose NUMA
                               nodes hold packages */
    DCOMM_LINK_CACHE = 3,   /* on one NUMA node, with no cache in common */
    DCOMM_LINK_CORE = 4,    /* on different cores that share a cache */
    DCOMM_LINK_NEAR = 5,    /* they share all levels that are known */
    DCOMM_LINK_COUNT = 6    /* number of kinds */
} dcomm_link_kind;

#define DCOMM_CURVE_POINTS 12 /* most points of a curve */

/* Picoseconds as a function of bytes: straight lines through n points with ascending bytes. Before
 * the first point the value is ps[0]. After the last point the last slope goes on. n = 0: the
 * value is 0 everywhere. */
typedef struct dcomm_curve {
    int64_t n;                         /* number of points */
    int64_t bytes[DCOMM_CURVE_POINTS]; /* bytes of each point */
    int64_t ps[DCOMM_CURVE_POINTS];    /* picoseconds of each point */
} dcomm_curve;

/* Costs of messages and reads between two ranks. Times are in picoseconds. */
typedef struct dcomm_link {
    int64_t alpha_ps;    /* latency from the end of the sender's work to the receiver's notice */
    int64_t overhead_ps; /* work per message, once for the sender and once for the receiver */
    int64_t signal_ps;   /* latency of SIGNAL and EXPOSE */
    int64_t tell_ps;     /* work of a rank for SIGNAL and EXPOSE, for each rank addressed */
    int64_t eager_bytes; /* a longer message waits until its receive is posted (0: no message
                            waits) */
    /* Not 0: the reader's processor moves the bytes (memory of one host). 0: each rank has a port
     * that sends and a port that receives. Both work at the same time, with one message each. */
    int64_t by_core;
    dcomm_curve message; /* time for which a message keeps each end busy */
    dcomm_curve fold;    /* additional time of a receiver that folds the message */
    dcomm_curve read;    /* time to copy exposed memory */
    dcomm_curve reduce;  /* time to fold exposed memory, for each rank that is read */
    /* read and reduce for memory that a call promises to be registered (n = 0: as other memory)
     * ... */
    dcomm_curve mapped_read, mapped_reduce;
    /* ... and for memory that a call promises to be on huge pages. */
    dcomm_curve huge_read, huge_reduce;
    /* Time for which a message keeps the shared port busy. All ranks on this side of the link
     * share that port (the host's network interface). */
    dcomm_curve shared;
    /* Least time of that port for all bytes of an operation. It matters on a shaped link, where a
     * burst is faster than the sustained rate. */
    dcomm_curve sustained;
} dcomm_link;

/* Measured times of all-reduces with one algorithm on ranks of one host. */
typedef struct dcomm_trial {
    char algo[24];    /* "": none */
    dcomm_curve took; /* time by bytes */
} dcomm_trial;

#define DCOMM_TRIALS 12 /* most algorithms that are tried */

/* All numbers of the model: plain data, the same on all ranks of a communicator. All zero means
 * that everything is free. */
typedef struct dcomm_tuning {
    dcomm_link link[DCOMM_LINK_COUNT]; /* by dcomm_link_kind */
    dcomm_curve copy;                  /* time to copy within a rank's own memory */
    dcomm_curve fold;                  /* time to fold each operand after the first, in a rank's
                                          own memory */
    /* Device memory. 0, or n = 0: the model uses assumed numbers that nobody has measured.
     * device_stage_ps: additional time of a message or of a read from a peer that goes through
     * pinned memory. */
    int64_t device_stage_ps;
    /* device_ucx 1: UCX moves device memory between all hosts (path "ucx"). A communicator sets it
     * to what its ranks have found. device_ucx_ps: time that such a message takes longer than one
     * of host memory. Short messages go through pinned memory. */
    int64_t device_ucx, device_ucx_ps;
    /* Times on the device, from a kernel's launch until its end is noticed. device_copy and
     * device_fold: as copy and fold; device_fold is also for messages. device_read and
     * device_reduce: for a peer's device memory that is read in place. In a fold of several peers
     * the launch counts once. */
    dcomm_curve device_copy, device_fold, device_read, device_reduce;
    /* Work of each step of any plan, and of each call. The price of the fast path for short calls
     * on ranks of one host (docs/engine.md) includes neither. */
    int64_t step_ps, call_ps;
    /* Number of connections from a rank to a rank of another host that link[DCOMM_LINK_HOST] was
     * measured with, at most DCOMM_CONNECTIONS_MAX. A communicator with these numbers uses as many
     * connections, unless dcomm_comm_opts.connections says otherwise. 0: it keeps the connections
     * that it has. */
    int64_t connections;
    /* Trials of all-reduces on `tried` ranks of one host (0: no trials) correct the model's
     * prices. The model multiplies a price by a factor: the measured time of the trial divided by
     * the trial's price. Between two points of a curve the factor is interpolated. Outside it is
     * that of the nearest point. An algorithm that was not tried, because it was expensive, takes
     * the largest factor of the others. `registered` is for memory that is promised to be
     * registered. `huge` is for memory that is promised to be on huge pages, from its first point
     * on. `trial` is for all other host memory. */
    int64_t tried;
    dcomm_trial trial[DCOMM_TRIALS], huge[DCOMM_TRIALS], registered[DCOMM_TRIALS];
    char source[128]; /* origin of the numbers, for people */
} dcomm_tuning;

/* Set *tuning to the network of textbooks. Every message takes alpha + bytes * beta. A rank sends
 * one message and receives one at the same time. Folding takes gamma per byte. All else is free.
 * Errors: DCOMM_ERR_INVALID (NULL, a negative number, one above 1e6 us or 1e6 ns/B). */
DCOMM_API dcomm_status dcomm_tuning_uniform(double alpha_us, double beta_ns_per_B,
                                            double gamma_ns_per_B, dcomm_tuning *tuning);

/* Set *tuning to the built-in numbers, which are used if nothing is measured. */
DCOMM_API void dcomm_tuning_default(dcomm_tuning *tuning);

/* Write a tuning to the file `path`, as text with one setting per line.
 * Errors: DCOMM_ERR_SYSTEM (the file), DCOMM_ERR_INVALID (NULL). */
DCOMM_API dcomm_status dcomm_tuning_save(const dcomm_tuning *tuning, const char *path);
/* Read a tuning from the file `path`. Settings that the file does not name have the built-in
 * numbers.
 * Errors: DCOMM_ERR_SYSTEM (the file), DCOMM_ERR_INVALID (a bad line, which the sentence
 * names). */
DCOMM_API dcomm_status dcomm_tuning_load(const char *path, dcomm_tuning *tuning);

/* Price a set of plans. Set *seconds to the model's time from the call on all ranks until the last
 * rank is done. plans[r] is rank r's plan and hosts[r] the number of its host. hosts NULL: all
 * ranks share one host, linked by DCOMM_LINK_NEAR. If a plan has stages, only the first is priced.
 * A length that comes from a word counts as its maximum (with a codec, as the plan's
 * codec_length).
 * Errors: DCOMM_ERR_PLAN (a step that blocks in every execution), DCOMM_ERR_UNSUPPORTED (the steps
 * depend on a word), DCOMM_ERR_INVALID, DCOMM_ERR_NO_MEMORY. */
DCOMM_API dcomm_status dcomm_plan_price(const dcomm_plan *const *plans, int nranks,
                                        const int *hosts, const dcomm_tuning *tuning,
                                        double *seconds);

/* ---- why a call runs this algorithm ---- */

/* One algorithm in the choice. */
typedef struct dcomm_alternative {
    const char *algo; /* name of the algorithm */
    double seconds;   /* the model's price; below 0: it has none */
    bool chosen;      /* this algorithm runs */
    bool assumed;     /* the price uses numbers of devices that nobody has measured */
    char why[192];    /* why this algorithm does not run; "": it runs */
    char note[96];    /* the levels of the topology that it ignores, and why; "": none */
} dcomm_alternative;

/* One path for bytes of device memory. A plan runs on any path: each pair of ranks takes the path
 * that its memory allows. The choice of the algorithm relies on the promises in the options.
 *
 * - "staged": copy to pinned memory, send, copy to the device and fold there, piece by piece.
 * - "direct": within a host, the kernel that folds reads the peer's memory. Between hosts, one of
 *   the other paths.
 * - "ucx": between hosts, UCX sends from device memory and receives into it, if UCX has CUDA
 *   transports on all ranks. Within a host, staged. */
typedef struct dcomm_path {
    const char *name; /* "staged", "direct" or "ucx" */
    const char *algo; /* the options' algorithm, or the choice for this path; NULL: none */
    double seconds;   /* the model's price; below 0: it has none */
    bool taken;       /* the choice relies on this path */
    bool assumed;     /* the price uses numbers that nobody has measured */
    int64_t direct_pairs, staged_pairs, ucx_pairs; /* pairs of ranks that take each path */
    char why[192]; /* why the choice does not rely on this path; "": it does */
} dcomm_path;

/* A question to dcomm_comm_explain, and its answer. Set the whole struct to zero, then set the
 * arguments of the call. */
typedef struct dcomm_explanation {
    /* The call. */
    dcomm_coll coll;   /* the collective */
    size_t count;      /* elements, as in the call; in a v-collective all blocks have this size */
    dcomm_dtype dtype; /* of the elements */
    dcomm_op op;       /* the operator, if the collective reduces */
    const dcomm_coll_opts *opts; /* NULL: the defaults */
    /* The ranks, if comm is NULL. Otherwise all of these are zero. */
    int nranks;                 /* at least 1 */
    const int *hosts;           /* [nranks] number of each rank's host; NULL: all share one */
    const dcomm_tuning *tuning; /* NULL: the built-in numbers (dcomm_tuning_default) */
    /* The caller's memory for rows. NULL and 0: the caller does not want these rows. */
    dcomm_alternative *alternatives; /* takes every algorithm, in the order of
                                        dcomm_algo_get_info */
    int max_alternatives;            /* rows that `alternatives` has room for */
    dcomm_path *paths;               /* takes "staged", "direct" and "ucx" */
    int max_paths;                   /* rows that `paths` has room for */
    /* The answer. */
    const char *algo;  /* the algorithm that runs; constant text */
    int nalternatives; /* number of algorithms; may be more than max_alternatives */
    int npaths;        /* number of paths; may be more than max_paths */
} dcomm_explanation;

/* Say which algorithm a call on comm runs. If the caller gives memory for rows, also say what the
 * other algorithms cost. comm NULL: explain for ranks that do not exist yet. The call is not
 * collective: any rank may make it alone.
 *
 * Prices are for root 0 and equal blocks, at the size nearest to `count` on the model's grid (four
 * sizes per octave). Without opts.device the choice relies on no path. With opts.device it relies
 * on "staged", or on "ucx" if there are several hosts and UCX takes device memory on all ranks.
 * With opts.device and opts.registered it relies on "direct".
 * Errors: DCOMM_ERR_INVALID (explanation is NULL, a field is out of range, nranks, hosts or tuning
 * beside a comm), DCOMM_ERR_NO_MEMORY, and those of the call itself, such as DCOMM_ERR_UNSUPPORTED
 * (opts.algo cannot do this). */
DCOMM_API dcomm_status dcomm_comm_explain(dcomm_comm *comm, dcomm_explanation *explanation);

/* ---- does a codec save time? ---- */

/* A verdict on a codec for an all-reduce of f32: does it save time? */
typedef struct dcomm_verdict {
    bool worth;                            /* it is faster than an all-reduce of as many bf16 */
    const char *algo;                      /* the compressed algorithm that would run */
    double seconds;                        /* the model's price, with the codec's measured times */
    double bf16_seconds, exact_seconds;    /* the model's prices for bf16 and for f32 */
    double encode_seconds, decode_seconds; /* measured: for the whole tensor once, on one core or
                                              on the device, without error feedback (error feedback
                                              takes about as long again) */
    double bits;                           /* measured: bits per element on the wire */
    int device;                            /* device that it was measured on; -1: the CPU */
    char text[640];                        /* all of this as a sentence */
} dcomm_verdict;

/* Measure a codec on at most 2^20 artificial numbers. Price the all-reduce of `count` f32 with it
 * on comm, and compare it with one of bf16. device: true measures the codec's kernels on the
 * current device, if it has kernels, for calls with opts.device; false measures the CPU's code.
 * Any rank may call it alone. Ranks measure different times, so let all ranks act on the verdict
 * of one rank.
 * Errors: DCOMM_ERR_INVALID, DCOMM_ERR_UNSUPPORTED (no price), DCOMM_ERR_NO_MEMORY. */
DCOMM_API dcomm_status dcomm_codec_measure(dcomm_comm *comm, const dcomm_codec *codec, size_t count,
                                           bool device, dcomm_verdict *verdict);

/* Decide which codec an all-reduce with opts.codec `codec` uses. It is a sum or average of `count`
 * elements on comm. Set *taken_p to that codec, or to NULL if the all-reduce is exact. *taken_p
 * lives as long as `codec`.
 *
 * The decision is `codec` itself unless that is "auto" or "auto:SPEC". With these, rank 0's
 * verdict decides for all ranks between exact, a cast to bf16, and SPEC (default: qsgd:bits=8). A
 * lossier choice must be a tenth faster, and SPEC must be faster than an all-reduce of as many
 * bf16. The decision holds for a class of lengths (four classes per octave) until dcomm_comm_tune.
 * Calls with opts.device (`device`) have a decision of their own.
 *
 * The call is collective if the class is new: every rank calls it with the same arguments. It is
 * not allowed between dcomm_group_start and dcomm_group_end. A blocking all-reduce outside of
 * groups makes the decision itself, on all ranks or on none. Other all-reduces are refused until
 * there is a decision for the class. DCOMM_LOG=info prints the verdict. */
DCOMM_API DCOMM_CHECKED dcomm_status dcomm_codec_decide(dcomm_comm *comm, const dcomm_codec *codec,
                                                        size_t count, dcomm_dtype dtype,
                                                        bool device, const dcomm_codec **taken_p);

/* ---- a communicator's numbers, and its counters ---- */

/* Set the numbers by which a communicator chooses algorithms; collective. Rank 0's `tuning`
 * counts. If it is NULL, the numbers are measured now. Communicators that are derived later
 * inherit them. The call is not allowed between dcomm_group_start and dcomm_group_end. */
DCOMM_API DCOMM_CHECKED dcomm_status dcomm_comm_tune(dcomm_comm *comm, const dcomm_tuning *tuning);
/* Copy the numbers by which a communicator chooses algorithms to *tuning.
 * Errors: DCOMM_ERR_INVALID (NULL). */
DCOMM_API dcomm_status dcomm_comm_get_tuning(dcomm_comm *comm, dcomm_tuning *tuning);

/* Counters of one rank of a communicator since its creation. */
typedef struct dcomm_stats {
    uint64_t operations;      /* completed operations */
    uint64_t messages_sent;   /* payload messages */
    uint64_t messages_posted; /* of these, messages in broadcast slots, which were written once for
                                 all ranks of the host; counted for each rank */
    uint64_t bytes_sent;      /* payload bytes sent, without headers */
    uint64_t bytes_read;      /* payload bytes read from peers' exposed memory */
    uint64_t bytes_mapped;    /* payload bytes that were received or read and used in place, in a
                                 peer's registered memory or scratch */
    uint64_t bytes_straight;  /* payload bytes that UCX has sent from device memory */
    uint64_t unexpected_bytes_max;      /* most bytes that were held for messages that came before
                                           their receive */
    uint64_t plans_built, plans_reused; /* plans that were made, and plans that were taken from the
                                           cache */
    uint64_t codec_ns; /* nanoseconds in codecs: encoding, decoding, error feedback */
} dcomm_stats;
/* Copy the counters to *stats.
 * Errors: DCOMM_ERR_INVALID (NULL). */
DCOMM_API dcomm_status dcomm_comm_get_stats(const dcomm_comm *comm, dcomm_stats *stats);

#ifdef __cplusplus
}
#endif
#endif
