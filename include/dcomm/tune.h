/* tune.h - which algorithms there are, what the model says they cost, which one runs, and what was
 * moved. */
#ifndef DCOMM_TUNE_H
#define DCOMM_TUNE_H

#include "coll.h"

#ifdef __cplusplus
extern "C" {
#endif

/* An algorithm as the tools and docs show it. */
typedef struct dcomm_algo_info {
    const char *name;
    dcomm_coll coll;
    bool rank_order;    /* can fold in rank order (deterministic) */
    const char *cost;   /* steps and bytes on the wire, in N ranks and S bytes */
    const char *source; /* paper or origin */
} dcomm_algo_info;

/* The i-th algorithm of an operation, for i = 0, 1, ...; DCOMM_ERR_INVALID past the last one. */
DCOMM_API dcomm_status dcomm_algo_get_info(dcomm_coll coll, int i, dcomm_algo_info *info);

/* The same of those that run where opts.codec compresses. */
DCOMM_API dcomm_status dcomm_coded_algo_get_info(dcomm_coll coll, int i, dcomm_algo_info *info);

/* One rank's plan for an operation, as the engine would run it: arguments as in
 * dcomm_check_spec (hosts too: algorithms keep neighbours on one host together), opts for algo,
 * lanes, chunk_bytes and codec (a compressed plan is for looking at: what a run brings along for
 * its codec is not in it). Free with dcomm_plan_destroy. Errors: DCOMM_ERR_INVALID (unknown
 * algorithm, bad rank), DCOMM_ERR_UNSUPPORTED (the algorithm cannot do this: the sentence says
 * why). */
DCOMM_API DCOMM_CHECKED dcomm_status dcomm_plan_create(const dcomm_check_spec *spec, dcomm_op op,
                                                       int rank, int nranks,
                                                       const dcomm_coll_opts *opts,
                                                       dcomm_plan **plan_p);
DCOMM_API void dcomm_plan_destroy(dcomm_plan **plan_p);

/* ---- what things cost: the numbers that the model works with ---- */

/* What separates two ranks: the coarsest thing that they do not share. */
typedef enum dcomm_link_kind {
    DCOMM_LINK_HOST = 0,    /* they are on different hosts */
    DCOMM_LINK_PACKAGE = 1, /* on one host, on different packages */
    DCOMM_LINK_NUMA = 2,    /* on different NUMA nodes of one package, or of a host whose nodes
                             * hold packages */
    DCOMM_LINK_CACHE = 3,   /* on one NUMA node, with no cache in common */
    DCOMM_LINK_CORE = 4,    /* on different cores that share a cache */
    DCOMM_LINK_NEAR = 5,    /* nothing that is known of */
    DCOMM_LINK_COUNT = 6
} dcomm_link_kind;

#define DCOMM_CURVE_POINTS 12

/* A time as a function of bytes: straight lines through n points, bytes ascending; ps[0] before the
 * first, the slope of the last two behind the last. n = 0 is 0 everywhere. Picoseconds. */
typedef struct dcomm_curve {
    int64_t n;
    int64_t bytes[DCOMM_CURVE_POINTS];
    int64_t ps[DCOMM_CURVE_POINTS];
} dcomm_curve;

/* What it costs to get from one rank to another. */
typedef struct dcomm_link {
    int64_t alpha_ps;    /* latency: a message is seen so long after its sender is done with it */
    int64_t overhead_ps; /* work per message, of its sender and again of its receiver */
    int64_t signal_ps;   /* latency of SIGNAL and EXPOSE */
    int64_t tell_ps;     /* work of who signals or exposes, for each rank addressed */
    int64_t eager_bytes; /* a longer message moves when its receive is posted (0: any is sent) */
    /* by_core: the reader's processor moves the bytes (memory of one host). Otherwise each rank has
     * a port that sends and one that receives, both at the same time, one message each. */
    int64_t by_core;
    dcomm_curve message; /* for so long a message of so many bytes keeps each end busy */
    dcomm_curve fold;    /* and for so much longer its receiver, where it folds the message */
    dcomm_curve read;    /* copying so many bytes of exposed memory */
    dcomm_curve reduce;  /* folding so many bytes of exposed memory, for each rank that is read */
    /* The same of memory that a call promises to be registered (n = 0: as other memory). */
    dcomm_curve mapped_read, mapped_reduce;
    /* And of memory that a call promises to be on huge pages. */
    dcomm_curve huge_read, huge_reduce;
    /* The port of all ranks that are together on this side of the link (the host's network
     * interface) is busy for so long with a message. */
    dcomm_curve shared;
    /* And over a whole operation it takes at least so long, with so many bytes. A shaped link lets
     * a burst through faster than it can go on. */
    dcomm_curve sustained;
} dcomm_link;

/* What all-reduces by an algorithm took, on ranks of one host. */
typedef struct dcomm_trial {
    char algo[24]; /* "": none */
    dcomm_curve took;
} dcomm_trial;

#define DCOMM_TRIALS 12

/* All the numbers: plain data, the same on all ranks of a communicator. All zero: everything is
 * free. */
typedef struct dcomm_tuning {
    dcomm_link link[DCOMM_LINK_COUNT];
    dcomm_curve copy; /* within a rank's own memory */
    dcomm_curve fold; /* of each operand but the first, in its own memory */
    /* Of device memory; 0, or n = 0: assumed numbers are taken, which nobody has measured. stage:
     * what a message, or a read of a peer, takes longer on its way through pinned memory. copy,
     * fold: as above, on the device, from the launch until it has been seen to end; fold is also
     * what a message's takes. read, reduce: of a peer's device memory that is read where it lies,
     * likewise; of a fold of several peers the launch counts once. */
    int64_t device_stage_ps;
    /* 1: UCX moves device memory itself between all hosts (path "ucx"). A communicator puts in what
     * its ranks have found. Then a message between hosts takes so much longer than one of host
     * memory, unless it is short, which goes through pinned memory. 0 as above. */
    int64_t device_ucx, device_ucx_ps;
    dcomm_curve device_copy, device_fold, device_read, device_reduce;
    /* Work for each step of a plan, whatever it does, and of the call itself, whatever the plan.
     * Short calls on ranks of one host run past the engine, where the plan allows that
     * (docs/design.md), and are priced without either. */
    int64_t step_ps, call_ps;
    /* So many connections from a rank to one on another host, at most 16, give the numbers of
     * link[DCOMM_LINK_HOST], and a communicator that takes the numbers uses as many, unless
     * dcomm_comm_opts.connections says otherwise. 0: it goes on with those that it uses. */
    int64_t connections;
    /* The model's prices of all-reduces on `tried` ranks of one host (0: no trials) are multiplied
     * by what trials took over what the model says of them: at the points of a curve, by what lies
     * between two of them, below the first and beyond the last as there. What was not tried was
     * dear: it is multiplied by the largest factor that another one has. `registered` is of memory
     * that is promised to be, `huge` of memory that is promised to be on huge pages, in calls from
     * its first point on; `trial` is of all other memory of the host's. */
    int64_t tried;
    dcomm_trial trial[DCOMM_TRIALS], huge[DCOMM_TRIALS], registered[DCOMM_TRIALS];
    char source[128]; /* where the numbers are from, for people */
} dcomm_tuning;

/* The textbook's network: every message takes alpha + bytes*beta, a rank can send one and receive
 * one at the same time, folding takes gamma a byte, all else is free.
 * Errors: DCOMM_ERR_INVALID (NULL, a negative number, one above 1e6 us or 1e6 ns/B). */
DCOMM_API dcomm_status dcomm_tuning_uniform(double alpha_us, double beta_ns_per_B,
                                            double gamma_ns_per_B, dcomm_tuning *tuning);

/* The numbers that are used where nothing is measured. */
DCOMM_API void dcomm_tuning_default(dcomm_tuning *tuning);

/* Write them to a file, and read them: text, a setting a line. What a file does not name is as
 * built in. Errors: DCOMM_ERR_SYSTEM (the file), DCOMM_ERR_INVALID (a line of it, which the
 * sentence names). */
DCOMM_API dcomm_status dcomm_tuning_save(const dcomm_tuning *tuning, const char *path);
DCOMM_API dcomm_status dcomm_tuning_load(const char *path, dcomm_tuning *tuning);

/* What the model says a set of plans takes, from the call on all ranks to the end on the last:
 * plans[r] is rank r's. hosts[r] is the number of the host that rank r is on; NULL: all are on one,
 * and DCOMM_LINK_NEAR is what is between them. Where a plan has stages, the first is priced; where
 * a length comes from a word, its maximum is.
 * Errors: DCOMM_ERR_PLAN (a step that no execution would get past), DCOMM_ERR_UNSUPPORTED (what
 * follows depends on a word), DCOMM_ERR_INVALID, DCOMM_ERR_NO_MEMORY. */
DCOMM_API dcomm_status dcomm_plan_price(const dcomm_plan *const *plans, int nranks,
                                        const int *hosts, const dcomm_tuning *tuning,
                                        double *seconds);

/* ---- why a call runs this algorithm ---- */

/* One algorithm, as the choice sees it. */
typedef struct dcomm_alternative {
    const char *algo;
    double seconds; /* the model's price; below 0: it has none */
    bool chosen;    /* this one runs */
    bool assumed;   /* the price uses numbers of devices that nobody has measured */
    char why[192];  /* why this one does not run; "": it runs */
    char note[96];  /* which levels of the topology it ignores, and why; "": none */
} dcomm_alternative;

/* One path for bytes of device memory. A plan runs on any path: each pair of ranks takes the path
 * that its memory allows, and the choice of the algorithm relies on what the options promise.
 *
 * "staged": copy to pinned memory, send, copy in and fold on the device, piece by piece.
 * "direct": within a host, the folding kernel reads the peer's memory; between hosts as the others.
 * "ucx": between hosts, UCX sends from device memory and receives into it, where UCX has CUDA
 * transports on all ranks; within a host staged. */
typedef struct dcomm_path {
    const char *name;
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
    dcomm_coll coll;
    size_t count; /* elements, as in the call; all blocks of a v-collective have this size */
    dcomm_dtype dtype;
    dcomm_op op;
    const dcomm_coll_opts *opts; /* NULL: the defaults */
    /* Where it would run, if comm is NULL. Else all zero. */
    int nranks;                 /* at least 1 */
    const int *hosts;           /* [nranks] number of each rank's host; NULL: all share one */
    const dcomm_tuning *tuning; /* NULL: the built-in numbers (dcomm_tuning_default) */
    /* The caller's room for rows. NULL and 0: these rows are not wanted. */
    dcomm_alternative *alternatives; /* every algorithm, in the order of dcomm_algo_get_info */
    int max_alternatives;
    dcomm_path *paths; /* "staged", "direct", "ucx" */
    int max_paths;
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

/* Whether compression is worth it for an all-reduce of f32. */
typedef struct dcomm_verdict {
    bool worth;                            /* it is faster than an all-reduce of as many bf16 */
    const char *algo;                      /* the compressed algorithm that would run */
    double seconds;                        /* by the model, with the codec's times as measured */
    double bf16_seconds, exact_seconds;    /* by the model: of bf16, and of f32 */
    double encode_seconds, decode_seconds; /* measured: the whole tensor once, on one core or
                                              the device, without
                                              error feedback (about as long again) */
    double bits;                           /* measured: on the wire per element of an encoding */
    int device;                            /* where that was; -1: on the CPU */
    char text[640];                        /* all of it in a sentence */
} dcomm_verdict;

/* Measure a codec on at most 2^20 made-up numbers (device: its kernels on the current device, if it
 * has any, for calls with opts.device; else on the CPU), price the all-reduce of `count` f32 with
 * it on comm, and compare with bf16. Every rank may ask by itself; what each measures differs, so
 * do not act on it unless all ranks act on the same rank's. Errors: DCOMM_ERR_INVALID,
 * DCOMM_ERR_UNSUPPORTED (no price), DCOMM_ERR_NO_MEMORY. */
DCOMM_API dcomm_status dcomm_codec_measure(dcomm_comm *comm, const dcomm_codec *codec, size_t count,
                                           bool device, dcomm_verdict *verdict);

/* The codec that all-reduces of sums or averages of `count` elements use on comm where opts.codec
 * is `codec`: *taken_p is NULL where they are exact. It is `codec` itself, unless that is "auto" or
 * "auto:SPEC": then rank 0's verdict decides between exact, a cast to bf16 and SPEC (default:
 * qsgd:bits=8), which all ranks are told, once for each class of lengths (four to the octave), and
 * for calls with opts.device
 * (`device`) apart. What
 * loses more must be a tenth faster, and SPEC faster than an all-reduce of as many bf16. Collective
 * where the class is new: every rank calls it with the same arguments. A blocking all-reduce
 * outside of groups decides likewise, on all ranks or on none; others are refused until somebody
 * has. DCOMM_LOG=info prints the verdict. The codec taken lives as long as `codec`. Forgotten by
 * dcomm_comm_tune. Not between dcomm_group_start and dcomm_group_end. */
DCOMM_API DCOMM_CHECKED dcomm_status dcomm_codec_decide(dcomm_comm *comm, const dcomm_codec *codec,
                                                        size_t count, dcomm_dtype dtype,
                                                        bool device, const dcomm_codec **taken_p);

/* Give a communicator other numbers to choose by, collectively: rank 0's `tuning`, or, where that
 * is NULL, what is measured now. The other ranks' argument is not looked at. Communicators derived
 * from this one later inherit them. Not between dcomm_group_start and dcomm_group_end. */
DCOMM_API DCOMM_CHECKED dcomm_status dcomm_comm_tune(dcomm_comm *comm, const dcomm_tuning *tuning);
/* The numbers that a communicator chooses by. */
DCOMM_API dcomm_status dcomm_comm_get_tuning(dcomm_comm *comm, dcomm_tuning *tuning);

/* Counters of one rank of a communicator since its creation. */
typedef struct dcomm_stats {
    uint64_t operations;      /* completed */
    uint64_t messages_sent;   /* payload messages */
    uint64_t messages_posted; /* of them, those that were written once for all ranks of the host,
                                 counted for each */
    uint64_t bytes_sent;      /* payload bytes sent, headers not counted */
    uint64_t bytes_read;      /* payload bytes read from peers' exposed memory */
    uint64_t bytes_mapped;    /* payload bytes, received or read, that were used where they
                                 lie in a peer's registered memory, or scratch */
    uint64_t bytes_straight;  /* payload bytes that UCX has sent itself out of device memory */
    uint64_t unexpected_bytes_max; /* most memory held for messages that came early */
    uint64_t plans_built, plans_reused;
    uint64_t codec_ns; /* time in codecs: encoding, decoding, error feedback */
} dcomm_stats;
DCOMM_API dcomm_status dcomm_comm_get_stats(const dcomm_comm *comm, dcomm_stats *stats);

#ifdef __cplusplus
}
#endif
#endif
