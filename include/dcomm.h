/* dcomm.h 0.1.0 - collective communication in one header.
 * GENERATED from include/dcomm/ by tools/amalgamate.py: do not edit.
 *
 * Include it wherever dcomm is used. In exactly one C file:
 *     #define _GNU_SOURCE
 *     #define DCOMM_IMPLEMENTATION
 *     #include "dcomm.h"
 * and link with -lucp -lucs -luct -lhwloc -lm -lpthread -ldl. */
/* ==== include/dcomm/base.h ================================================================= */
/* base.h - version, configuration macros, status codes, dtypes and reduction operators. */
#ifndef DCOMM_BASE_H
#define DCOMM_BASE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define DCOMM_VERSION_MAJOR 0
#define DCOMM_VERSION_MINOR 1
#define DCOMM_VERSION_PATCH 0
#define DCOMM_VERSION_STRING "0.1.0"

/* Storage class of every public function. A shared library of your own may define it, before the
 * include, as __attribute__((visibility("default"))). */
#ifndef DCOMM_API
#define DCOMM_API extern
#endif

/* Status of every call: 0 is good, positive is in progress, negative is an error.
 * X(name, number, text) */
#define DCOMM_STATUS_TABLE(X)                                                                      \
    X(DCOMM_OK, 0, "success")                                                                      \
    X(DCOMM_IN_PROGRESS, 1, "in progress")                                                         \
    X(DCOMM_ERR_INVALID, -1, "invalid argument")                                                   \
    X(DCOMM_ERR_NO_MEMORY, -2, "out of memory")                                                    \
    X(DCOMM_ERR_UNSUPPORTED, -3, "not supported")                                                  \
    X(DCOMM_ERR_MISMATCH, -4, "ranks disagree about a collective")                                 \
    X(DCOMM_ERR_PEER, -5, "a peer failed or was lost")                                             \
    X(DCOMM_ERR_TIMEOUT, -6, "timed out")                                                          \
    X(DCOMM_ERR_ABORTED, -7, "the communicator was aborted")                                       \
    X(DCOMM_ERR_TRANSPORT, -8, "transport failure")                                                \
    X(DCOMM_ERR_RENDEZVOUS, -9, "ranks could not find each other")                                 \
    X(DCOMM_ERR_AUTH, -10, "authentication failed")                                                \
    X(DCOMM_ERR_CORRUPT, -11, "malformed data received")                                           \
    X(DCOMM_ERR_FORKED, -12, "called in a forked child")                                           \
    X(DCOMM_ERR_PLAN, -13, "the plan is not valid")                                                \
    X(DCOMM_ERR_SYSTEM, -14, "an operating system call failed")                                    \
    X(DCOMM_ERR_INTERNAL, -15, "internal error")

typedef enum dcomm_status {
#define DCOMMI_STATUS_ENUM(name, number, text) name = number,
    DCOMM_STATUS_TABLE(DCOMMI_STATUS_ENUM)
#undef DCOMMI_STATUS_ENUM
        DCOMM_STATUS_FORCE_INT = 0x7fffffff
} dcomm_status;

/* Element types. 16-bit floats accumulate in f32 and round to nearest even when stored. */
typedef enum dcomm_dtype {
    DCOMM_F64 = 0,
    DCOMM_F32 = 1,
    DCOMM_F16 = 2,
    DCOMM_BF16 = 3,
    DCOMM_I8 = 4,
    DCOMM_U8 = 5,
    DCOMM_I32 = 6,
    DCOMM_U32 = 7,
    DCOMM_I64 = 8,
    DCOMM_U64 = 9,
    DCOMM_DTYPE_COUNT = 10
} dcomm_dtype;

/* Reduction operators.
 * min/max on floats, on every back end: a NaN operand gives a NaN (min(1, NaN) = NaN), and
 * -0 < +0. avg is the sum divided by the number of ranks (integers: truncated towards zero).
 * pre-multiplied sum multiplies each rank's input by dcomm_coll_opts.premul first.
 * Values from DCOMM_OP_USER on are operators of the caller's own (dcomm_op_create). */
typedef enum dcomm_op {
    DCOMM_SUM = 0,
    DCOMM_PROD = 1,
    DCOMM_MIN = 2,
    DCOMM_MAX = 3,
    DCOMM_AVG = 4,
    DCOMM_PREMUL_SUM = 5,
    DCOMM_OP_COUNT = 6,
    DCOMM_OP_USER = 64,
    DCOMM_OP_USER_MAX = 127
} dcomm_op;

/* The constant text of a status ("a peer failed or was lost"). Never NULL. */
DCOMM_API const char *dcomm_strerror(dcomm_status status);
/* The name of a status ("DCOMM_ERR_PEER"). Never NULL. */
DCOMM_API const char *dcomm_status_name(dcomm_status status);
/* The sentence of the last error returned to this thread, naming the argument, the ranks and the
 * values; "" when there was none. Valid until the thread's next failing dcomm call. */
DCOMM_API const char *dcomm_last_error(void);
/* Bytes of one element; 0 for an unknown dtype. */
DCOMM_API size_t dcomm_dtype_size(dcomm_dtype dtype);
/* "f32", "bf16", ...; "?" for an unknown dtype. */
DCOMM_API const char *dcomm_dtype_name(dcomm_dtype dtype);
/* "sum", "min", ...; "user" for the caller's own; "?" for an unknown operator. */
DCOMM_API const char *dcomm_op_name(dcomm_op op);
/* "0.1.0" */
DCOMM_API const char *dcomm_version(void);

/* A reduction of the caller's own: inout[i] = op(in[i], inout[i]) for `count` elements.
 * It must be associative and commutative up to rounding, must not call dcomm, and must be
 * registered in the same order on every rank. `in` and `inout` need not be aligned. */
typedef void (*dcomm_op_fn)(const void *in, void *inout, size_t count, dcomm_dtype dtype,
                            void *user);
/* Register an operator for the whole process; *op_p is a value for dcomm_op arguments, the same
 * on each rank that registers its operators in the same order. At most 64 can be alive.
 * Errors: DCOMM_ERR_INVALID (fn or op_p is NULL), DCOMM_ERR_NO_MEMORY (64 are alive). */
DCOMM_API dcomm_status dcomm_op_create(dcomm_op_fn fn, void *user, dcomm_op *op_p);
/* Forget an operator. No collective that uses it may be outstanding. */
DCOMM_API dcomm_status dcomm_op_destroy(dcomm_op op);

/* Replace the allocator that dcomm uses for its own memory (not for UCX's or hwloc's). Call it
 * before any other dcomm function, from one thread. NULLs restore aligned_alloc and free. */
typedef void *(*dcomm_alloc_fn)(size_t alignment, size_t bytes, void *user);
typedef void (*dcomm_free_fn)(void *p, void *user);
DCOMM_API void dcomm_set_allocator(dcomm_alloc_fn alloc, dcomm_free_fn release, void *user);

/* Where dcomm's warnings go; the default writes one line to stderr. level: 0 error, 1 warning,
 * 2 information (DCOMM_LOG=error|warn|info chooses what is passed on; default warn). */
typedef void (*dcomm_log_fn)(int level, const char *message, void *user);
DCOMM_API void dcomm_set_logger(dcomm_log_fn fn, void *user);

#ifdef __cplusplus
}
#endif
#endif
/* ==== include/dcomm/plan.h ================================================================= */
/* plan.h - what a collective is made of: immutable data that the engine runs, the checker proves,
 * the model prices and the printer shows.
 *
 * A plan is one rank's part of one operation. It has a few lanes, each a run of steps. Lanes run
 * concurrently; the steps of a lane run in order, each complete before the next begins, except
 * that a step with DCOMM_STEP_ASYNC only starts and a later FENCE of the same lane waits for all
 * that the lane has started.
 *
 * Everything here is plain data in memory that the plan's maker owns; the library only reads it. */
#ifndef DCOMM_PLAN_H
#define DCOMM_PLAN_H


#ifdef __cplusplus
extern "C" {
#endif

#define DCOMM_LOOP_DEPTH 3         /* loops may nest this deep within one lane */
#define DCOMM_PLAN_MAX_LANES 64    /* lanes of one plan */
#define DCOMM_PLAN_MAX_SLOTS 64    /* exposed regions of one run */
#define DCOMM_PLAN_MAX_WORDS 65536 /* words of one run */
#define DCOMM_ALL_PEERS (-1)       /* EXPOSE and SIGNAL: every other rank of the plan */

/* Memory that an operand lies in. */
typedef enum dcomm_space {
    DCOMM_SPACE_NONE = 0,
    DCOMM_SPACE_IN = 1,      /* the caller's input, read only */
    DCOMM_SPACE_OUT = 2,     /* the caller's output */
    DCOMM_SPACE_SCRATCH = 3, /* scratch_bytes, undefined at the start of each run */
    DCOMM_SPACE_STATE = 4,   /* state_bytes, kept from run to run by the caller (residuals) */
    DCOMM_SPACE_WORDS = 5,   /* nwords 64-bit words, zero at the start of each run */
    DCOMM_SPACE_PEER = 6,    /* what another rank has exposed in a slot */
    DCOMM_SPACE_MSG = 7      /* RECV_REDUCE only: the message being received */
} dcomm_space;

/* How an expression gets its value. i[0..2] are the indices of the lane's open loops, outermost
 * first, counted from 0; an index of a loop that is not open is 0.
 *   CONST   value = add
 *   AFFINE  value = scale * x        + sum(post[d] * i[d]) + add
 *   TABLE   value = scale * table[x] + sum(post[d] * i[d]) + add
 *   WORD    value = scale * words[x] + sum(post[d] * i[d]) + add
 * where x = base + sum(coef[d] * i[d]), taken modulo `mod` into [0, mod) when mod is not 0.
 * All zero is the constant 0. */
typedef enum dcomm_expr_kind {
    DCOMM_EXPR_CONST = 0,
    DCOMM_EXPR_AFFINE = 1,
    DCOMM_EXPR_TABLE = 2,
    DCOMM_EXPR_WORD = 3
} dcomm_expr_kind;

typedef struct dcomm_expr {
    uint8_t kind; /* dcomm_expr_kind */
    int64_t add;
    int64_t scale;
    int64_t post[DCOMM_LOOP_DEPTH];
    int64_t base;
    int64_t coef[DCOMM_LOOP_DEPTH];
    int64_t mod;
} dcomm_expr;

/* `repeat` consecutive pieces of memory (0 means 1). Piece r begins at offset + r*stride and has
 *   min(max(length, 0), max_length, clip > 0 ? max(clip - (offset + r*stride), 0) : infinity)
 * bytes, so that a partition into equal blocks needs no special last block. In PEER space, piece r
 * belongs to rank (peer + r) mod nranks and offsets count from the start of what it exposed.
 * max_length is the static maximum: it sizes scratch, bounds what may be received, prices the
 * step. */
typedef struct dcomm_operand {
    uint8_t space; /* dcomm_space */
    uint16_t slot; /* PEER: which of that rank's exposed slots */
    uint32_t repeat;
    int64_t stride;   /* bytes from one piece to the next */
    dcomm_expr peer;  /* PEER: rank in the plan */
    dcomm_expr offset; /* bytes */
    dcomm_expr length; /* bytes */
    int64_t max_length; /* bytes */
    int64_t clip;       /* bytes; 0: none */
} dcomm_operand;

/* X(kind, name). `src` are the step's source operands in order, with their repeats unfolded.
 *
 * Moves (may be ASYNC):
 *   SEND         src[0] -> rank `peer`, matched by `tag`; done when src may be overwritten
 *   RECV         dst <- rank `peer`; the length that arrived goes to words[word] if word >= 0;
 *                without a word, a length other than dst's is an error
 *   RECV_REDUCE  dst <- fold(src...), exactly one of which is in MSG space (the arriving message);
 *                `stage` is scratch that the engine may receive into; dst may equal any src
 *   COPY         dst <- src[0]; from PEER space it reads the other rank's memory
 *   EXPOSE       offers src[0] to rank `peer` (or DCOMM_ALL_PEERS) as `slot` of this rank; memory
 *                must stay until the readers have said, by SIGNAL, that they are done
 * Transforms:
 *   REDUCE       dst <- fold(src...) in operand order; PEER operands are read where they lie.
 *                `stage` unused: the engine brings its own blocks
 *   ENCODE       dst <- codec.encode(src[0]); encoded length -> words[word]
 *   DECODE       dst <- codec.decode(src[0])
 *   DECODE_REDUCE dst <- dst (+) codec.decode(src[0])
 *   COMMIT       STATE operand dst <- src[0]
 *   COMPUTE      plan.kernels[kernel](dst, src...)
 * Order:
 *   SIGNAL       adds `value` to counter `slot` of rank `peer` (DCOMM_ALL_PEERS: of every other;
 *                its own rank: a counter between lanes)
 *   WAIT         until this rank's counter `slot` >= `value`
 *   FENCE        until all that this lane started with ASYNC is complete
 * Shape:
 *   LOOP         runs the steps up to the matching END `value` times (`body` steps in between)
 *   END
 *   CALL         runs subs[sub] with its IN = src[0] and OUT = dst; its rank r is this plan's rank
 *                table[group + r]; its tags are shifted by `tag`, its counters by `slot`, its
 *                exposed slots by `word` (0 if it has none)
 *
 * A counter belongs to the run, is 64 bit, only grows, and starts at 0. FINAL on a folding step
 * says that it completes the reduction, which is where DCOMM_AVG divides. */
#define DCOMM_STEP_TABLE(X)                                                                        \
    X(SEND, "send")                                                                                \
    X(RECV, "recv")                                                                                \
    X(RECV_REDUCE, "recv_reduce")                                                                  \
    X(COPY, "copy")                                                                                \
    X(EXPOSE, "expose")                                                                            \
    X(REDUCE, "reduce")                                                                            \
    X(ENCODE, "encode")                                                                            \
    X(DECODE, "decode")                                                                            \
    X(DECODE_REDUCE, "decode_reduce")                                                              \
    X(COMMIT, "commit")                                                                            \
    X(COMPUTE, "compute")                                                                          \
    X(SIGNAL, "signal")                                                                            \
    X(WAIT, "wait")                                                                                \
    X(FENCE, "fence")                                                                              \
    X(LOOP, "loop")                                                                                \
    X(END, "end")                                                                                  \
    X(CALL, "call")

typedef enum dcomm_step_kind {
#define DCOMMI_STEP_ENUM(kind, name) DCOMM_STEP_##kind,
    DCOMM_STEP_TABLE(DCOMMI_STEP_ENUM)
#undef DCOMMI_STEP_ENUM
        DCOMM_STEP_KIND_COUNT
} dcomm_step_kind;

#define DCOMM_STEP_ASYNC 1u /* start, and let the lane go on; see FENCE */
#define DCOMM_STEP_FINAL 2u /* this fold completes the reduction */

typedef struct dcomm_step {
    uint8_t kind;  /* dcomm_step_kind */
    uint8_t flags; /* DCOMM_STEP_ASYNC | DCOMM_STEP_FINAL */
    uint16_t slot; /* EXPOSE: slot; SIGNAL, WAIT: counter; CALL: first counter */
    uint16_t kernel; /* COMPUTE */
    uint32_t src;    /* first source operand, an index into plan.operands */
    uint32_t nsrc;   /* number of source operands, repeats not unfolded */
    uint32_t body;   /* LOOP: steps between LOOP and END; END: the same number */
    uint32_t sub;    /* CALL: index into plan.subs */
    uint32_t group;  /* CALL: index into plan.table of the first of subs[sub]->nranks ranks */
    int32_t word;    /* RECV, ENCODE: index of the word that takes the length, -1 for none */
    dcomm_operand dst;
    dcomm_operand stage;
    dcomm_expr peer;  /* rank in the plan */
    dcomm_expr tag;   /* in [0, plan.ntags); (source, destination, tag) is unique within a run */
    dcomm_expr value; /* SIGNAL, WAIT, LOOP */
} dcomm_step;

typedef struct dcomm_lane {
    uint32_t first; /* index into plan.steps */
    uint32_t count;
} dcomm_lane;

/* Encoding for ENCODE, DECODE and DECODE_REDUCE: all lengths in bytes. encode returns the encoded
 * length (at most dst_len) in *encoded; decode must fill dst exactly. `user` is plan.codec_user.
 * DCOMM_ERR_CORRUPT when the bytes to decode are malformed. */
typedef struct dcomm_plan_codec {
    const char *name;
    dcomm_status (*encode)(void *user, const void *src, size_t src_len, void *dst, size_t dst_len,
                           size_t *encoded);
    dcomm_status (*decode)(void *user, const void *src, size_t src_len, void *dst, size_t dst_len);
    dcomm_status (*decode_reduce)(void *user, const void *src, size_t src_len, void *dst,
                                  size_t dst_len);
} dcomm_plan_codec;

typedef dcomm_status (*dcomm_plan_kernel)(void *user, void *dst, size_t dst_len,
                                          const void *const *src, const size_t *src_len,
                                          size_t nsrc);

typedef struct dcomm_plan dcomm_plan;

/* The next stage: a pure function of the words of the stage before, of which it may only use such
 * as every rank holds alike (produced by an all-gather or all-reduce in that stage). Words are
 * carried over; scratch is not. Returns NULL with *status = DCOMM_OK when nothing is left to do.
 * The engine gives each plan back through `release` of the plan that made it. */
typedef const dcomm_plan *(*dcomm_plan_next)(void *user, const uint64_t *words, uint32_t nwords,
                                             dcomm_status *status);

struct dcomm_plan {
    const char *name; /* algorithm, for people */
    int32_t rank;
    int32_t nranks;
    uint8_t dtype; /* dcomm_dtype of all folds */
    uint8_t op;    /* dcomm_op of all folds */
    uint32_t nlanes, nsteps, noperands, ntable, nsubs, nkernels;
    uint32_t nwords, ncounters, nslots;
    uint32_t ntags; /* tags are in [0, ntags), those of called sub-plans included */
    const dcomm_lane *lanes;
    const dcomm_step *steps;
    const dcomm_operand *operands;
    const int64_t *table;
    const dcomm_plan *const *subs;
    const dcomm_plan_kernel *kernels;
    void *kernel_user;
    const dcomm_plan_codec *codec;
    void *codec_user;
    int64_t in_bytes, out_bytes; /* how much of IN and OUT the plan may touch */
    int64_t scratch_bytes, state_bytes;
    dcomm_plan_next next; /* NULL: this is the last stage */
    void (*release)(void *user, const dcomm_plan *plan);
    void *next_user;
};

/* What the checker holds a set of plans to. */
typedef enum dcomm_coll {
    DCOMM_COLL_ALLREDUCE = 0,
    DCOMM_COLL_REDUCE_SCATTER = 1,
    DCOMM_COLL_ALLGATHER = 2,
    DCOMM_COLL_BROADCAST = 3,
    DCOMM_COLL_REDUCE = 4,
    DCOMM_COLL_GATHER = 5,
    DCOMM_COLL_SCATTER = 6,
    DCOMM_COLL_ALLTOALL = 7,
    DCOMM_COLL_REDUCE_SCATTERV = 8,
    DCOMM_COLL_ALLGATHERV = 9,
    DCOMM_COLL_GATHERV = 10,
    DCOMM_COLL_SCATTERV = 11,
    DCOMM_COLL_ALLTOALLV = 12,
    DCOMM_COLL_BARRIER = 13,
    DCOMM_COLL_SEND = 14,
    DCOMM_COLL_RECV = 15,
    DCOMM_COLL_PLAN = 16, /* a plan of the caller's own */
    DCOMM_COLL_COUNT = 17
} dcomm_coll;
DCOMM_API const char *dcomm_coll_name(dcomm_coll coll);

/* What the set of plans should compute. For the v-collectives, counts and displacements are in
 * elements; matrices are row-major [rank][peer]. Unused fields are zero. */
typedef struct dcomm_check_spec {
    dcomm_coll coll; /* DCOMM_COLL_PLAN: only safety (order, matching, deadlock), not the result */
    size_t count;    /* elements: the operation's own `count` argument */
    dcomm_dtype dtype;
    int root;
    bool in_place;
    bool rank_order;        /* folds must combine contributions in rank order */
    const size_t *counts;   /* v: [nranks], all-to-all-v: [nranks][nranks], sent by row to column */
    const size_t *displs;   /* v: [nranks] in the concatenated buffer; NULL: packed */
} dcomm_check_spec;

/* Totals that the checker counted, for one set of plans. */
typedef struct dcomm_check_report {
    char message[512];        /* why the plans were refused; "" when they are right */
    int64_t messages;         /* point-to-point messages, signals not counted */
    int64_t signals;          /* signals and expositions between ranks */
    int64_t max_rank_bytes;   /* most payload bytes one rank sends (or reads from peers) */
    int64_t total_bytes;      /* payload bytes of all ranks */
    int64_t steps;            /* longest chain of dependent messages: the alpha term */
} dcomm_check_report;

/* Prove that plans[0..nranks-1] together (plans[r] is rank r's) are safe and right: every send
 * meets its receive with a fitting length; nothing is read before it is there, no two unordered
 * steps touch the same bytes with a write among them, every operand lies inside its space; nothing
 * deadlocks even when no message is buffered; and each output element holds each contribution that
 * `spec` asks for exactly once. Loops are unrolled, so meant for up to 64 ranks; run-time lengths
 * are tried at 0, 1, the maximum and random values. report may be NULL.
 * Errors: DCOMM_ERR_PLAN, with the reason in report->message and dcomm_last_error(). */
DCOMM_API dcomm_status dcomm_plan_check(const dcomm_plan *const *plans, int nranks,
                                        const dcomm_check_spec *spec, dcomm_check_report *report);

/* Write one rank's plan as text into buf (at most len bytes with the ending NUL); *needed_p, if
 * not NULL, is the length it wants. */
DCOMM_API dcomm_status dcomm_plan_print(const dcomm_plan *plan, char *buf, size_t len,
                                        size_t *needed_p);

#ifdef __cplusplus
}
#endif
#endif
/* ==== include/dcomm/comm.h ================================================================= */
/* comm.h - contexts, how ranks find each other, the life of a communicator. */
#ifndef DCOMM_COMM_H
#define DCOMM_COMM_H


#ifdef __cplusplus
extern "C" {
#endif

/* One rank's transport: UCX, the connections, the progress. Usually one per process; several work
 * (each is a rank of its own). Communicators share it and keep it alive. */
typedef struct dcomm_context dcomm_context;
/* An ordered group of ranks that run collectives together. */
typedef struct dcomm_comm dcomm_comm;
/* An outstanding non-blocking operation. */
typedef struct dcomm_request dcomm_request;

#define DCOMM_ID_BYTES 128
/* Names a rendezvous: addresses, port and a 128-bit secret. Made by one rank, handed to the others
 * by whatever means the program has (a file, MPI, a socket); plain bytes, safe to copy. Whoever
 * holds it can join: keep it as secret as the training data. */
typedef struct dcomm_id {
    uint8_t bytes[DCOMM_ID_BYTES];
} dcomm_id;

/* Gathers `bytes` bytes from every rank, in rank order, into `all` (size * bytes). Called from the
 * thread that creates the communicator, several times, in the same order on every rank. Returns 0
 * or an error of its own. */
typedef int (*dcomm_allgather_fn)(const void *mine, size_t bytes, void *all, void *user);

typedef struct dcomm_context_opts {
    bool progress_thread;   /* a thread that progresses while the caller computes (default: no;
                               environment DCOMM_PROGRESS_THREAD=1) */
    const char *iface;      /* network interface for other hosts, e.g. "eth0" (default: DCOMM_IFACE,
                               else the interface of the default route, else loopback) */
    const char *host_id;    /* ranks share memory only where this is equal (default: DCOMM_HOSTID,
                               else boot id, namespaces and host name) */
} dcomm_context_opts;

/* Open a context. It is closed when its creator has destroyed it and no communicator is left.
 * Errors: DCOMM_ERR_TRANSPORT (UCX), DCOMM_ERR_SYSTEM (e.g. /dev/shm too small). */
DCOMM_API dcomm_status dcomm_context_create(const dcomm_context_opts *opts,
                                            dcomm_context **context_p);
DCOMM_API dcomm_status dcomm_context_destroy(dcomm_context **context_p);

/* Progress every communicator of the context once, without blocking. Any wait does the same; call
 * it in long computations when there is no progress thread. */
DCOMM_API dcomm_status dcomm_context_progress(dcomm_context *context);

typedef enum dcomm_boot {
    DCOMM_BOOT_AUTO = 0,     /* the launcher's environment: torchrun, Open MPI, MPICH, Slurm; a
                                program without a launcher is one rank */
    DCOMM_BOOT_ID = 1,       /* opts.id, opts.rank, opts.size */
    DCOMM_BOOT_ALLGATHER = 2 /* opts.allgather, opts.rank, opts.size */
} dcomm_boot;

typedef struct dcomm_comm_opts {
    dcomm_context *context;   /* (default: a new one that lives as long as the communicator) */
    dcomm_context_opts context_opts; /* for that new one */
    dcomm_boot boot;          /* (default: DCOMM_BOOT_AUTO) */
    int rank, size;           /* with DCOMM_BOOT_ID and DCOMM_BOOT_ALLGATHER */
    dcomm_id id;              /* with DCOMM_BOOT_ID */
    dcomm_allgather_fn allgather; /* with DCOMM_BOOT_ALLGATHER */
    void *allgather_user;
    double timeout_s;         /* creation and every operation (default: DCOMM_TIMEOUT, else 300) */
    const char *algo;         /* algorithm forced for every call where it applies (default:
                                 DCOMM_ALGO, else "auto"); rank 0's is taken by all ranks */
    bool deterministic;       /* fold in rank order always (default: DCOMM_DETERMINISTIC, else no);
                                 rank 0's is taken by all ranks */
    size_t chunk_bytes;       /* pipelining grain of long messages (default: DCOMM_CHUNK, else
                                 chosen per algorithm); rank 0's is taken by all ranks */
} dcomm_comm_opts;

/* Make an id on one rank, and serve the rendezvous from a thread of this process until all `size`
 * ranks have come or the communicator that uses it is destroyed.
 * Errors: DCOMM_ERR_INVALID, DCOMM_ERR_SYSTEM (no socket, no randomness). */
DCOMM_API dcomm_status dcomm_id_create(dcomm_id *id);

/* Create a communicator; collective over all its ranks. opts may be NULL.
 * Errors: DCOMM_ERR_RENDEZVOUS or DCOMM_ERR_TIMEOUT (who is missing), DCOMM_ERR_AUTH (wrong
 * secret), DCOMM_ERR_MISMATCH (sizes, versions), DCOMM_ERR_INVALID, DCOMM_ERR_TRANSPORT. */
DCOMM_API dcomm_status dcomm_comm_create(const dcomm_comm_opts *opts, dcomm_comm **comm_p);
/* The same without blocking: *comm_p exists at once; dcomm_comm_ready tells when it can be used.
 * Any other call on it before then fails with DCOMM_ERR_INVALID; destroying it cancels. */
DCOMM_API dcomm_status dcomm_comm_create_start(const dcomm_comm_opts *opts, dcomm_comm **comm_p);
/* DCOMM_OK, DCOMM_IN_PROGRESS, or why creation failed. */
DCOMM_API dcomm_status dcomm_comm_ready(dcomm_comm *comm);

/* Close a communicator and set *comm_p to NULL. Waits up to 5 s for the goodbyes of its peers.
 * Outstanding requests fail with DCOMM_ERR_ABORTED. NULL and *comm_p NULL are good. */
DCOMM_API dcomm_status dcomm_comm_destroy(dcomm_comm **comm_p);

/* Split by colour (ranks with equal colour end up together, ordered by key, then by old rank);
 * collective. A negative colour takes part and gets *new_p = NULL. */
DCOMM_API dcomm_status dcomm_comm_split(dcomm_comm *comm, int color, int key, dcomm_comm **new_p);
/* A communicator with the same ranks and a message space of its own; collective. */
DCOMM_API dcomm_status dcomm_comm_dup(dcomm_comm *comm, dcomm_comm **new_p);
/* A communicator without the n ranks in `excluded`; collective over the others, which must all
 * name the same ranks. Works after an error, which is what it is for. Survivors keep their order.
 * Errors: DCOMM_ERR_INVALID (own rank excluded, bad rank), DCOMM_ERR_TIMEOUT, DCOMM_ERR_PEER. */
DCOMM_API dcomm_status dcomm_comm_shrink(dcomm_comm *comm, const int *excluded, int n,
                                         dcomm_comm **new_p);
/* Fail every outstanding and future operation on every rank with DCOMM_ERR_ABORTED and `reason`
 * (NULL: none given). From any thread; does not block. */
DCOMM_API dcomm_status dcomm_comm_abort(dcomm_comm *comm, const char *reason);

DCOMM_API int dcomm_comm_rank(const dcomm_comm *comm);
DCOMM_API int dcomm_comm_size(const dcomm_comm *comm);
DCOMM_API dcomm_context *dcomm_comm_context(const dcomm_comm *comm);
/* The error that poisoned the communicator (DCOMM_OK: none), and its sentence ("": none; valid
 * until the communicator is destroyed). */
DCOMM_API dcomm_status dcomm_comm_status(const dcomm_comm *comm);
DCOMM_API const char *dcomm_comm_error(const dcomm_comm *comm);
/* Index of the host that a rank is on: ranks that share memory have equal numbers, from 0 in
 * order of lowest rank. -1 for a bad rank. */
DCOMM_API int dcomm_comm_host(const dcomm_comm *comm, int rank);
/* Name of the machine that a rank runs on. NULL for a bad rank; owned by the communicator. */
DCOMM_API const char *dcomm_comm_hostname(const dcomm_comm *comm, int rank);

#ifdef __cplusplus
}
#endif
#endif
/* ==== include/dcomm/coll.h ================================================================= */
/* coll.h - collectives, point-to-point, requests and groups.
 *
 * Buffers are the caller's, of any alignment, and are in use from the call until the operation is
 * complete. Counts are elements. `opts` may be NULL. In place: pass DCOMM_IN_PLACE as sendbuf, or
 * the pointer that NCCL's rules name (noted at each collective). A NULL buffer is legal only with
 * count 0. Every rank calls the collectives of one communicator in the same order with fitting
 * arguments; where they do not fit, every rank gets DCOMM_ERR_MISMATCH.
 *
 * The blocking form of dcomm_ix is dcomm_x: the same arguments without the request. Between
 * dcomm_group_start and dcomm_group_end both only queue the operation.
 *
 * Results are bitwise the same on every rank, and from run to run with the same algorithm. */
#ifndef DCOMM_COLL_H
#define DCOMM_COLL_H


#ifdef __cplusplus
extern "C" {
#endif

#define DCOMM_IN_PLACE ((const void *)(uintptr_t)-1)

/* All zero means the defaults. Everything here must be the same on every rank of the call. */
typedef struct dcomm_coll_opts {
    const char *algo;   /* algorithm by name; it runs or the call fails (default: the
                           communicator's, else chosen by size) */
    bool deterministic; /* fold in rank order, so that bits do not depend on size, bucketing,
                           chunking or placement (default: the communicator's) */
    double timeout_s;   /* (default: the communicator's) */
    double premul;      /* DCOMM_PREMUL_SUM: factor on this rank's input; may differ by rank
                           (default: 0 is taken as 1) */
    int lanes;          /* parallel rings or trees, where the algorithm has them (default: 1) */
    size_t chunk_bytes; /* pipelining grain (default: the communicator's) */
} dcomm_coll_opts;

/* Sum over ranks: recvbuf[i] = op over ranks of sendbuf[i], on every rank. In place: sendbuf ==
 * recvbuf. Algorithms: ring, tree, binomial, recursive_doubling, halving_doubling, one_shot,
 * two_shot, star; see docs/algorithms.md for the cost of each. */
DCOMM_API dcomm_status dcomm_iallreduce(dcomm_comm *comm, const void *sendbuf, void *recvbuf,
                                        size_t count, dcomm_dtype dtype, dcomm_op op,
                                        const dcomm_coll_opts *opts, dcomm_request **request_p);
DCOMM_API dcomm_status dcomm_allreduce(dcomm_comm *comm, const void *sendbuf, void *recvbuf,
                                       size_t count, dcomm_dtype dtype, dcomm_op op,
                                       const dcomm_coll_opts *opts);

/* sendbuf holds size*recvcount elements; rank r gets the reduced block r. In place: recvbuf ==
 * sendbuf + rank*recvcount (DCOMM_IN_PLACE: recvbuf is the whole buffer, and rank's block of it
 * takes the result). */
DCOMM_API dcomm_status dcomm_ireduce_scatter(dcomm_comm *comm, const void *sendbuf, void *recvbuf,
                                             size_t recvcount, dcomm_dtype dtype, dcomm_op op,
                                             const dcomm_coll_opts *opts,
                                             dcomm_request **request_p);
DCOMM_API dcomm_status dcomm_reduce_scatter(dcomm_comm *comm, const void *sendbuf, void *recvbuf,
                                            size_t recvcount, dcomm_dtype dtype, dcomm_op op,
                                            const dcomm_coll_opts *opts);
/* The same with recvcounts[size] elements per rank, packed in rank order in sendbuf. */
DCOMM_API dcomm_status dcomm_ireduce_scatterv(dcomm_comm *comm, const void *sendbuf, void *recvbuf,
                                              const size_t *recvcounts, dcomm_dtype dtype,
                                              dcomm_op op, const dcomm_coll_opts *opts,
                                              dcomm_request **request_p);
DCOMM_API dcomm_status dcomm_reduce_scatterv(dcomm_comm *comm, const void *sendbuf, void *recvbuf,
                                             const size_t *recvcounts, dcomm_dtype dtype,
                                             dcomm_op op, const dcomm_coll_opts *opts);

/* recvbuf holds size*sendcount elements, block r from rank r. In place: sendbuf == recvbuf +
 * rank*sendcount. */
DCOMM_API dcomm_status dcomm_iallgather(dcomm_comm *comm, const void *sendbuf, void *recvbuf,
                                        size_t sendcount, dcomm_dtype dtype,
                                        const dcomm_coll_opts *opts, dcomm_request **request_p);
DCOMM_API dcomm_status dcomm_allgather(dcomm_comm *comm, const void *sendbuf, void *recvbuf,
                                       size_t sendcount, dcomm_dtype dtype,
                                       const dcomm_coll_opts *opts);
/* Rank r's recvcounts[r] elements go to recvbuf + displs[r] (displs NULL: packed in rank order).
 * In place: rank's own part already lies there. Blocks must not overlap. */
DCOMM_API dcomm_status dcomm_iallgatherv(dcomm_comm *comm, const void *sendbuf, void *recvbuf,
                                         const size_t *recvcounts, const size_t *displs,
                                         dcomm_dtype dtype, const dcomm_coll_opts *opts,
                                         dcomm_request **request_p);
DCOMM_API dcomm_status dcomm_allgatherv(dcomm_comm *comm, const void *sendbuf, void *recvbuf,
                                        const size_t *recvcounts, const size_t *displs,
                                        dcomm_dtype dtype, const dcomm_coll_opts *opts);

/* root's sendbuf to every recvbuf. sendbuf is read on root only; in place on root: sendbuf ==
 * recvbuf. */
DCOMM_API dcomm_status dcomm_ibroadcast(dcomm_comm *comm, const void *sendbuf, void *recvbuf,
                                        size_t count, dcomm_dtype dtype, int root,
                                        const dcomm_coll_opts *opts, dcomm_request **request_p);
DCOMM_API dcomm_status dcomm_broadcast(dcomm_comm *comm, const void *sendbuf, void *recvbuf,
                                       size_t count, dcomm_dtype dtype, int root,
                                       const dcomm_coll_opts *opts);

/* Like all-reduce, with the result on root only; recvbuf is not touched elsewhere (may be NULL). */
DCOMM_API dcomm_status dcomm_ireduce(dcomm_comm *comm, const void *sendbuf, void *recvbuf,
                                     size_t count, dcomm_dtype dtype, dcomm_op op, int root,
                                     const dcomm_coll_opts *opts, dcomm_request **request_p);
DCOMM_API dcomm_status dcomm_reduce(dcomm_comm *comm, const void *sendbuf, void *recvbuf,
                                    size_t count, dcomm_dtype dtype, dcomm_op op, int root,
                                    const dcomm_coll_opts *opts);

/* sendcount elements from each rank to root's recvbuf, in rank order. In place on root: sendbuf
 * == recvbuf + root*sendcount. */
DCOMM_API dcomm_status dcomm_igather(dcomm_comm *comm, const void *sendbuf, void *recvbuf,
                                     size_t sendcount, dcomm_dtype dtype, int root,
                                     const dcomm_coll_opts *opts, dcomm_request **request_p);
DCOMM_API dcomm_status dcomm_gather(dcomm_comm *comm, const void *sendbuf, void *recvbuf,
                                    size_t sendcount, dcomm_dtype dtype, int root,
                                    const dcomm_coll_opts *opts);
/* counts[size] and displs[size] (NULL: packed) are given, alike, on every rank. */
DCOMM_API dcomm_status dcomm_igatherv(dcomm_comm *comm, const void *sendbuf, void *recvbuf,
                                      const size_t *counts, const size_t *displs,
                                      dcomm_dtype dtype, int root, const dcomm_coll_opts *opts,
                                      dcomm_request **request_p);
DCOMM_API dcomm_status dcomm_gatherv(dcomm_comm *comm, const void *sendbuf, void *recvbuf,
                                     const size_t *counts, const size_t *displs, dcomm_dtype dtype,
                                     int root, const dcomm_coll_opts *opts);

/* recvcount elements from root's sendbuf to each rank, in rank order. In place on root: recvbuf
 * == sendbuf + root*recvcount. */
DCOMM_API dcomm_status dcomm_iscatter(dcomm_comm *comm, const void *sendbuf, void *recvbuf,
                                      size_t recvcount, dcomm_dtype dtype, int root,
                                      const dcomm_coll_opts *opts, dcomm_request **request_p);
DCOMM_API dcomm_status dcomm_scatter(dcomm_comm *comm, const void *sendbuf, void *recvbuf,
                                     size_t recvcount, dcomm_dtype dtype, int root,
                                     const dcomm_coll_opts *opts);
DCOMM_API dcomm_status dcomm_iscatterv(dcomm_comm *comm, const void *sendbuf, void *recvbuf,
                                       const size_t *counts, const size_t *displs,
                                       dcomm_dtype dtype, int root, const dcomm_coll_opts *opts,
                                       dcomm_request **request_p);
DCOMM_API dcomm_status dcomm_scatterv(dcomm_comm *comm, const void *sendbuf, void *recvbuf,
                                      const size_t *counts, const size_t *displs,
                                      dcomm_dtype dtype, int root, const dcomm_coll_opts *opts);

/* Block p of sendbuf (count elements) goes to rank p, which puts it at block `rank` of its recvbuf.
 * In place: sendbuf == recvbuf. Algorithms: pairwise, bruck, linear. */
DCOMM_API dcomm_status dcomm_ialltoall(dcomm_comm *comm, const void *sendbuf, void *recvbuf,
                                       size_t count, dcomm_dtype dtype,
                                       const dcomm_coll_opts *opts, dcomm_request **request_p);
DCOMM_API dcomm_status dcomm_alltoall(dcomm_comm *comm, const void *sendbuf, void *recvbuf,
                                      size_t count, dcomm_dtype dtype, const dcomm_coll_opts *opts);
/* sendcounts[p] elements at sendbuf + sdispls[p] go to rank p, and recvcounts[p] come from it to
 * recvbuf + rdispls[p]; displacements may be NULL for packed. What p sends me must equal my
 * recvcounts[p]: a message of another length is DCOMM_ERR_MISMATCH on every rank. Not in place. */
DCOMM_API dcomm_status dcomm_ialltoallv(dcomm_comm *comm, const void *sendbuf,
                                        const size_t *sendcounts, const size_t *sdispls,
                                        void *recvbuf, const size_t *recvcounts,
                                        const size_t *rdispls, dcomm_dtype dtype,
                                        const dcomm_coll_opts *opts, dcomm_request **request_p);
DCOMM_API dcomm_status dcomm_alltoallv(dcomm_comm *comm, const void *sendbuf,
                                       const size_t *sendcounts, const size_t *sdispls,
                                       void *recvbuf, const size_t *recvcounts,
                                       const size_t *rdispls, dcomm_dtype dtype,
                                       const dcomm_coll_opts *opts);

/* Nobody leaves before everybody has come. */
DCOMM_API dcomm_status dcomm_ibarrier(dcomm_comm *comm, const dcomm_coll_opts *opts,
                                      dcomm_request **request_p);
DCOMM_API dcomm_status dcomm_barrier(dcomm_comm *comm, const dcomm_coll_opts *opts);

/* Point-to-point: the n-th send from a to b meets the n-th receive of b from a, on one
 * communicator, with equal counts. A send may complete before the receive is posted, and may also
 * not: write programs that do not depend on it. */
DCOMM_API dcomm_status dcomm_isend(dcomm_comm *comm, const void *buf, size_t count,
                                   dcomm_dtype dtype, int peer, const dcomm_coll_opts *opts,
                                   dcomm_request **request_p);
DCOMM_API dcomm_status dcomm_send(dcomm_comm *comm, const void *buf, size_t count,
                                  dcomm_dtype dtype, int peer, const dcomm_coll_opts *opts);
DCOMM_API dcomm_status dcomm_irecv(dcomm_comm *comm, void *buf, size_t count, dcomm_dtype dtype,
                                   int peer, const dcomm_coll_opts *opts,
                                   dcomm_request **request_p);
DCOMM_API dcomm_status dcomm_recv(dcomm_comm *comm, void *buf, size_t count, dcomm_dtype dtype,
                                  int peer, const dcomm_coll_opts *opts);

/* Run a plan of the caller's own as the next collective of comm: plan is this rank's part, for
 * plan->rank == comm's rank and plan->nranks == comm's size. `signature` must be equal on all
 * ranks (it is what mismatches are found by). state is plan->state_bytes of persistent memory, or
 * NULL if that is 0. words_out, if not NULL, receives the last stage's words [nwords]. Check it
 * first (dcomm_plan_check): the engine refuses an operand outside its space when it comes to it,
 * and does not find deadlocks. */
DCOMM_API dcomm_status dcomm_iplan_run(dcomm_comm *comm, const dcomm_plan *plan, const void *in,
                                       void *out, void *state, uint32_t signature,
                                       const dcomm_coll_opts *opts, dcomm_request **request_p);
DCOMM_API dcomm_status dcomm_plan_run(dcomm_comm *comm, const dcomm_plan *plan, const void *in,
                                      void *out, void *state, uint32_t signature,
                                      const dcomm_coll_opts *opts);

/* Wait until *request_p is complete, give its result and set *request_p to NULL. Progresses every
 * communicator of the context, so the order of waits cannot deadlock. */
DCOMM_API dcomm_status dcomm_wait(dcomm_request **request_p);
/* The same for n requests (NULL ones are skipped); the first error in order is returned. */
DCOMM_API dcomm_status dcomm_wait_all(dcomm_request **requests, size_t n);
/* DCOMM_IN_PROGRESS, or the result, with *request_p set to NULL. Progresses once. */
DCOMM_API dcomm_status dcomm_test(dcomm_request **request_p);

/* What ran. Ask between the call and the wait. */
typedef struct dcomm_request_info {
    dcomm_coll coll;
    const char *algo;  /* the algorithm that runs; constant text */
    uint64_t sequence; /* number of the collective on its communicator, from 0 */
} dcomm_request_info;
DCOMM_API dcomm_status dcomm_request_query(const dcomm_request *request, dcomm_request_info *info);

/* Queue every operation that this thread starts from here to dcomm_group_end, on any number of
 * communicators, and start them together there. dcomm_group_end waits for the blocking ones among
 * them, progressing every context involved; requests of the non-blocking ones are valid after it.
 * Groups nest; the outermost end starts. Errors: the first one, with the others still started. */
DCOMM_API dcomm_status dcomm_group_start(void);
DCOMM_API dcomm_status dcomm_group_end(void);

#ifdef __cplusplus
}
#endif
#endif
/* ==== include/dcomm/tune.h ================================================================= */
/* tune.h - which algorithms there are, which one runs, and what was moved. */
#ifndef DCOMM_TUNE_H
#define DCOMM_TUNE_H


#ifdef __cplusplus
extern "C" {
#endif

/* An algorithm as the tools and docs show it. */
typedef struct dcomm_algo_info {
    const char *name;
    dcomm_coll coll;
    bool rank_order; /* can fold in rank order (deterministic) */
    const char *cost;   /* steps and bytes on the wire, in N ranks and S bytes */
    const char *source; /* paper or origin */
} dcomm_algo_info;

/* The i-th algorithm of an operation, for i = 0, 1, ...; DCOMM_ERR_INVALID past the last one. */
DCOMM_API dcomm_status dcomm_algo_get(dcomm_coll coll, int i, dcomm_algo_info *info);

/* One rank's plan for an operation, as the engine would run it: arguments as in
 * dcomm_check_spec, opts for algo, lanes and chunk_bytes. Free with dcomm_plan_destroy.
 * Errors: DCOMM_ERR_INVALID (unknown algorithm, bad rank), DCOMM_ERR_UNSUPPORTED (the algorithm
 * cannot do this: the sentence says why). */
DCOMM_API dcomm_status dcomm_plan_create(const dcomm_check_spec *spec, dcomm_op op, int rank,
                                         int nranks, const dcomm_coll_opts *opts,
                                         dcomm_plan **plan_p);
DCOMM_API void dcomm_plan_destroy(dcomm_plan **plan_p);

/* Which algorithm a call with these arguments would run on comm. */
DCOMM_API dcomm_status dcomm_explain(dcomm_comm *comm, dcomm_coll coll, size_t count,
                                     dcomm_dtype dtype, dcomm_op op, const dcomm_coll_opts *opts,
                                     const char **algo_p);

/* Counters of one rank of a communicator since its creation. */
typedef struct dcomm_stats {
    uint64_t operations;     /* completed */
    uint64_t messages_sent;  /* payload messages */
    uint64_t bytes_sent;     /* payload bytes sent, headers not counted */
    uint64_t bytes_read;     /* payload bytes read from peers' exposed memory */
    uint64_t unexpected_bytes_max; /* most memory held for messages that came early */
    uint64_t plans_built, plans_reused;
} dcomm_stats;
DCOMM_API dcomm_status dcomm_comm_stats(const dcomm_comm *comm, dcomm_stats *stats);

#ifdef __cplusplus
}
#endif
#endif

#ifdef DCOMM_IMPLEMENTATION
/* ==== include/dcomm/impl/util.h ============================================================ */
/* util.h - errors with a sentence, logging, memory, checked sizes, time. */
#ifndef DCOMMI_UTIL_H
#define DCOMMI_UTIL_H

#ifdef __cplusplus
#error "dcomm: the implementation is C; compile DCOMM_IMPLEMENTATION in one .c file (C++ projects: a two-line dcomm.c)"
#endif
#ifndef _GNU_SOURCE
#error "dcomm: define _GNU_SOURCE before the first include of the file with DCOMM_IMPLEMENTATION"
#endif
#ifdef __FAST_MATH__
#error "dcomm: do not compile DCOMM_IMPLEMENTATION with -ffast-math; results would depend on the compiler"
#endif


#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define DCOMMI_UNUSED __attribute__((unused))
#define DCOMMI_PRINTF(a, b) __attribute__((format(printf, a, b)))
#define DCOMMI_LIKELY(x) __builtin_expect(!!(x), 1)
#define DCOMMI_UNLIKELY(x) __builtin_expect(!!(x), 0)
#define DCOMMI_CACHE_LINE 64

#define DCOMMI_TRY(expression)                                                                     \
    do {                                                                                           \
        dcomm_status dcommi_try_status = (expression);                                             \
        if (DCOMMI_UNLIKELY(dcommi_try_status < 0)) {                                              \
            return dcommi_try_status;                                                              \
        }                                                                                          \
    } while (0)

/* ---- the last error's sentence, per thread ---- */

#define DCOMMI_MESSAGE_MAX 512
static _Thread_local char dcommi_message[DCOMMI_MESSAGE_MAX];

/* Remember the sentence for dcomm_last_error and return the status. */
static dcomm_status DCOMMI_PRINTF(2, 3) dcommi_fail(dcomm_status status, const char *format, ...)
{
    char text[DCOMMI_MESSAGE_MAX]; /* the arguments may point into dcommi_message */
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    memcpy(dcommi_message, text, sizeof text);
    return status;
}

/* ---- logging ---- */

enum { DCOMMI_LOG_ERROR = 0, DCOMMI_LOG_WARN = 1, DCOMMI_LOG_INFO = 2 };

static dcomm_log_fn dcommi_log_fn;
static void *dcommi_log_user;

static int dcommi_log_level(void)
{
    static _Atomic int level = -1;
    int known = atomic_load_explicit(&level, memory_order_relaxed);
    if (known < 0) {
        const char *wanted = getenv("DCOMM_LOG");
        known = DCOMMI_LOG_WARN;
        if (wanted != NULL && strcmp(wanted, "error") == 0) {
            known = DCOMMI_LOG_ERROR;
        } else if (wanted != NULL && strcmp(wanted, "info") == 0) {
            known = DCOMMI_LOG_INFO;
        }
        atomic_store_explicit(&level, known, memory_order_relaxed);
    }
    return known;
}

static void DCOMMI_PRINTF(2, 3) dcommi_log(int level, const char *format, ...)
{
    if (level > dcommi_log_level()) {
        return;
    }
    char text[DCOMMI_MESSAGE_MAX];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    if (dcommi_log_fn != NULL) {
        dcommi_log_fn(level, text, dcommi_log_user);
    } else {
        fprintf(stderr, "dcomm: %s\n", text);
    }
}

/* ---- memory ---- */

static dcomm_alloc_fn dcommi_alloc_fn;
static dcomm_free_fn dcommi_free_fn;
static void *dcommi_alloc_user;

/* Zeroed, cache-line aligned; NULL (and a sentence) when there is none. Never of 0 bytes. */
static void *dcommi_alloc(size_t bytes)
{
    size_t padded = 0;
    void *p = NULL;
    if (!__builtin_add_overflow(bytes, (size_t)(bytes == 0) + DCOMMI_CACHE_LINE - 1, &padded)) {
        padded &= ~(size_t)(DCOMMI_CACHE_LINE - 1);
        p = dcommi_alloc_fn != NULL ? dcommi_alloc_fn(DCOMMI_CACHE_LINE, padded, dcommi_alloc_user)
                                    : aligned_alloc(DCOMMI_CACHE_LINE, padded);
    }
    if (p == NULL) {
        dcommi_fail(DCOMM_ERR_NO_MEMORY, "no memory for %zu bytes", bytes);
        return NULL;
    }
    memset(p, 0, padded);
    return p;
}

static void dcommi_free(void *p)
{
    if (p == NULL) {
        return;
    }
    if (dcommi_free_fn != NULL) {
        dcommi_free_fn(p, dcommi_alloc_user);
    } else if (dcommi_alloc_fn == NULL) {
        free(p);
    }
}

/* Zeroed array; NULL on overflow or without memory. */
static void *dcommi_calloc(size_t n, size_t size)
{
    size_t bytes = 0;
    if (__builtin_mul_overflow(n, size, &bytes)) {
        dcommi_fail(DCOMM_ERR_NO_MEMORY, "%zu elements of %zu bytes exceed the address space", n,
                    size);
        return NULL;
    }
    return dcommi_alloc(bytes);
}

/* Grow an array to hold at least `need` elements, doubling; contents kept, the rest zeroed. */
static dcomm_status dcommi_grow(void **array, size_t *capacity, size_t need, size_t size)
{
    if (need <= *capacity) {
        return DCOMM_OK;
    }
    size_t wanted = *capacity < 8 ? 8 : *capacity;
    while (wanted < need) {
        if (__builtin_mul_overflow(wanted, 2, &wanted)) {
            return dcommi_fail(DCOMM_ERR_NO_MEMORY, "an array of %zu elements is too long", need);
        }
    }
    void *bigger = dcommi_calloc(wanted, size);
    if (bigger == NULL) {
        return DCOMM_ERR_NO_MEMORY;
    }
    if (*array != NULL) {
        memcpy(bigger, *array, *capacity * size);
        dcommi_free(*array);
    }
    *array = bigger;
    *capacity = wanted;
    return DCOMM_OK;
}

/* ---- numbers ---- */

static inline int64_t dcommi_min64(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static inline int64_t dcommi_max64(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

static inline int64_t dcommi_ceil_div(int64_t a, int64_t b)
{
    return a / b + (a % b != 0);
}

/* 64-bit mix of two words (the finalizer of splitmix64 over their combination): identities and
 * signatures that every rank derives alike. */
static inline uint64_t dcommi_mix(uint64_t a, uint64_t b)
{
    uint64_t z = a + 0x9e3779b97f4a7c15u + (b << 6) + b * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

/* Monotonic seconds. */
static inline double dcommi_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

#endif
/* ==== include/dcomm/impl/build.h =========================================================== */
/* build.h - the builder that algorithms write plans with, and the arguments that they see.
 *
 * An algorithm is a pure function (shape -> plan). It appends steps to lanes in any order; finish
 * lays them out as one immutable plan. Errors are sticky: the builder remembers the first, ignores
 * the rest, and finish reports it. */
#ifndef DCOMMI_BUILD_H
#define DCOMMI_BUILD_H


/* All that an algorithm may know about a call. */
typedef struct dcommi_shape {
    dcomm_coll coll;
    int rank, nranks, root;
    dcomm_dtype dtype;
    dcomm_op op;
    size_t count;   /* the collective's own count argument, elements */
    bool in_place;  /* the input lies in OUT, where the collective's rules put it */
    bool rank_order; /* fold in rank order or refuse */
    int lanes;            /* parallel instances, >= 1 */
    int64_t chunk_bytes;  /* pipelining grain, 0: the algorithm's own default */
    /* v-collectives, elements: [nranks] each; displacements are never NULL here. All-to-all-v:
     * counts/displs are the receiving side, send_counts/send_displs the sending side. */
    const size_t *counts, *displs;
    const size_t *send_counts, *send_displs;
} dcommi_shape;

typedef struct dcommi_builder dcommi_builder;

/* ---- expressions ---- */

static inline dcomm_expr dcommi_const(int64_t value)
{
    dcomm_expr e = {.kind = DCOMM_EXPR_CONST, .add = value};
    return e;
}

/* add + per * i[depth] */
static inline dcomm_expr dcommi_linear(int64_t add, int depth, int64_t per)
{
    dcomm_expr e = {.kind = DCOMM_EXPR_AFFINE, .add = add};
    e.post[depth] = per;
    return e;
}

/* scale * ((base + coef * i[depth]) mod m) */
static inline dcomm_expr dcommi_modular(int64_t scale, int64_t base, int depth, int64_t coef,
                                        int64_t mod)
{
    dcomm_expr e = {.kind = DCOMM_EXPR_AFFINE, .scale = scale, .base = base, .mod = mod};
    e.coef[depth] = coef;
    return e;
}

/* scale * table[first + (base + coef * i[depth]) mod m]: the table's part begins at `first`, which
 * must be a multiple of what mod leaves free, so the caller gives absolute tables per use. */
static inline dcomm_expr dcommi_lookup(int64_t scale, int64_t index)
{
    dcomm_expr e = {.kind = DCOMM_EXPR_TABLE, .scale = scale, .base = index};
    return e;
}

/* words[index] */
static inline dcomm_expr dcommi_word(int64_t index)
{
    dcomm_expr e = {.kind = DCOMM_EXPR_WORD, .scale = 1, .base = index};
    return e;
}

/* e + add */
static inline dcomm_expr dcommi_plus(dcomm_expr e, int64_t add)
{
    e.add += add;
    return e;
}

/* e + per * i[depth] */
static inline dcomm_expr dcommi_plus_loop(dcomm_expr e, int depth, int64_t per)
{
    if (e.kind == DCOMM_EXPR_CONST) {
        e.kind = DCOMM_EXPR_AFFINE;
    }
    e.post[depth] += per;
    return e;
}

/* ---- operands ---- */

static inline dcomm_operand dcommi_at(dcomm_space space, dcomm_expr offset, int64_t length)
{
    dcomm_operand o = {.space = (uint8_t)space,
                       .offset = offset,
                       .length = dcommi_const(length),
                       .max_length = length};
    return o;
}

/* A constant place. */
static inline dcomm_operand dcommi_span(dcomm_space space, int64_t offset, int64_t length)
{
    return dcommi_at(space, dcommi_const(offset), length);
}

/* As dcommi_at, cut off at byte `clip` of its space (> 0). */
static inline dcomm_operand dcommi_clipped(dcomm_space space, dcomm_expr offset, int64_t length,
                                           int64_t clip)
{
    dcomm_operand o = dcommi_at(space, offset, length);
    o.clip = clip;
    return o;
}

/* The message being received, in a RECV_REDUCE. */
static inline dcomm_operand dcommi_msg(void)
{
    dcomm_operand o = {.space = DCOMM_SPACE_MSG};
    return o;
}

/* What rank `peer` exposed as `slot`. */
static inline dcomm_operand dcommi_peer(dcomm_expr peer, uint16_t slot, dcomm_expr offset,
                                        int64_t length)
{
    dcomm_operand o = dcommi_at(DCOMM_SPACE_PEER, offset, length);
    o.peer = peer;
    o.slot = slot;
    return o;
}

/* ---- the builder ---- */

typedef struct dcommi_lane_builder {
    dcomm_step *steps;
    size_t count, capacity;
    uint32_t open[DCOMM_LOOP_DEPTH];
    int depth;
} dcommi_lane_builder;

struct dcommi_builder {
    dcomm_plan head; /* scalars filled in as they come to be known */
    dcommi_lane_builder lanes[DCOMM_PLAN_MAX_LANES];
    dcomm_operand *operands;
    size_t noperands, operands_capacity;
    int64_t *table;
    size_t ntable, table_capacity;
    const dcomm_plan **subs;
    size_t nsubs, subs_capacity;
    dcomm_status status;
    char why[DCOMMI_MESSAGE_MAX];
};

/* Start a plan. Zero the builder's fields of head that the algorithm sets itself later. */
static void dcommi_build_begin(dcommi_builder *b, const char *name, int rank, int nranks,
                               dcomm_dtype dtype, dcomm_op op)
{
    memset(b, 0, sizeof *b);
    b->head.name = name;
    b->head.rank = rank;
    b->head.nranks = nranks;
    b->head.dtype = (uint8_t)dtype;
    b->head.op = (uint8_t)op;
}

static void dcommi_build_error(dcommi_builder *b, dcomm_status status)
{
    if (b->status == DCOMM_OK) {
        b->status = status;
        memcpy(b->why, dcommi_message, sizeof b->why);
    }
}

/* Append a step to a lane; NULL after an error. The step is zeroed, word is -1. */
static dcomm_step *dcommi_build_step(dcommi_builder *b, int lane, dcomm_step_kind kind)
{
    if (b->status != DCOMM_OK) {
        return NULL;
    }
    if (lane < 0 || lane >= DCOMM_PLAN_MAX_LANES) {
        dcommi_build_error(b, dcommi_fail(DCOMM_ERR_UNSUPPORTED, "%s: lane %d of at most %d",
                                          b->head.name, lane, DCOMM_PLAN_MAX_LANES));
        return NULL;
    }
    dcommi_lane_builder *l = &b->lanes[lane];
    dcomm_status status =
        dcommi_grow((void **)&l->steps, &l->capacity, l->count + 1, sizeof *l->steps);
    if (status < 0) {
        dcommi_build_error(b, status);
        return NULL;
    }
    if ((uint32_t)lane >= b->head.nlanes) {
        b->head.nlanes = (uint32_t)lane + 1;
    }
    dcomm_step *step = &l->steps[l->count++];
    memset(step, 0, sizeof *step);
    step->kind = (uint8_t)kind;
    step->word = -1;
    return step;
}

/* Append source operands to the pool and to the step (which must be the last one made). */
static void dcommi_build_sources(dcommi_builder *b, dcomm_step *step, const dcomm_operand *src,
                                 size_t n)
{
    if (step == NULL || b->status != DCOMM_OK) {
        return;
    }
    dcomm_status status = dcommi_grow((void **)&b->operands, &b->operands_capacity,
                                      b->noperands + n, sizeof *b->operands);
    if (status < 0) {
        dcommi_build_error(b, status);
        return;
    }
    memcpy(b->operands + b->noperands, src, n * sizeof *src);
    step->src = (uint32_t)b->noperands;
    step->nsrc = (uint32_t)n;
    b->noperands += n;
}

/* Append values to the plan's table; returns the index of the first. */
static int64_t dcommi_build_table(dcommi_builder *b, const int64_t *values, size_t n)
{
    if (b->status != DCOMM_OK) {
        return 0;
    }
    dcomm_status status =
        dcommi_grow((void **)&b->table, &b->table_capacity, b->ntable + n, sizeof *b->table);
    if (status < 0) {
        dcommi_build_error(b, status);
        return 0;
    }
    memcpy(b->table + b->ntable, values, n * sizeof *values);
    b->ntable += n;
    return (int64_t)(b->ntable - n);
}

/* Reserve scratch, aligned to cache lines; returns its offset. */
static int64_t dcommi_build_scratch(dcommi_builder *b, int64_t bytes)
{
    int64_t offset = b->head.scratch_bytes;
    b->head.scratch_bytes += (bytes + DCOMMI_CACHE_LINE - 1) & ~(int64_t)(DCOMMI_CACHE_LINE - 1);
    return offset;
}

/* Reserve n tags; returns the first. */
static int64_t dcommi_build_tags(dcommi_builder *b, int64_t n)
{
    int64_t first = b->head.ntags;
    if (first + n > INT32_MAX) {
        dcommi_build_error(b, dcommi_fail(DCOMM_ERR_UNSUPPORTED,
                                          "%s: more than 2^31 messages between two ranks; use a "
                                          "larger chunk_bytes", b->head.name));
        return 0;
    }
    b->head.ntags = (uint32_t)(first + n);
    return first;
}

/* Reserve a counter or an exposed slot of the plan. */
static uint16_t dcommi_build_counter(dcommi_builder *b)
{
    return (uint16_t)b->head.ncounters++;
}

static uint16_t dcommi_build_slot(dcommi_builder *b)
{
    return (uint16_t)b->head.nslots++;
}

/* ---- steps ---- */

static void dcommi_send(dcommi_builder *b, int lane, dcomm_operand src, dcomm_expr peer,
                        dcomm_expr tag, unsigned flags)
{
    dcomm_step *s = dcommi_build_step(b, lane, DCOMM_STEP_SEND);
    if (s != NULL) {
        s->flags = (uint8_t)flags;
        s->peer = peer;
        s->tag = tag;
        dcommi_build_sources(b, s, &src, 1);
    }
}

static void dcommi_recv(dcommi_builder *b, int lane, dcomm_operand dst, dcomm_expr peer,
                        dcomm_expr tag, unsigned flags)
{
    dcomm_step *s = dcommi_build_step(b, lane, DCOMM_STEP_RECV);
    if (s != NULL) {
        s->flags = (uint8_t)flags;
        s->dst = dst;
        s->peer = peer;
        s->tag = tag;
    }
}

/* dst <- fold(first, second), one of which is dcommi_msg(). stage: scratch as long as dst. */
static void dcommi_recv_reduce(dcommi_builder *b, int lane, dcomm_operand dst, dcomm_operand first,
                               dcomm_operand second, dcomm_operand stage, dcomm_expr peer,
                               dcomm_expr tag, unsigned flags)
{
    dcomm_step *s = dcommi_build_step(b, lane, DCOMM_STEP_RECV_REDUCE);
    if (s != NULL) {
        dcomm_operand src[2] = {first, second};
        s->flags = (uint8_t)flags;
        s->dst = dst;
        s->stage = stage;
        s->peer = peer;
        s->tag = tag;
        dcommi_build_sources(b, s, src, 2);
    }
}

static void dcommi_copy(dcommi_builder *b, int lane, dcomm_operand dst, dcomm_operand src,
                        unsigned flags)
{
    dcomm_step *s = dcommi_build_step(b, lane, DCOMM_STEP_COPY);
    if (s != NULL) {
        s->flags = (uint8_t)flags;
        s->dst = dst;
        dcommi_build_sources(b, s, &src, 1);
    }
}

static void dcommi_reduce(dcommi_builder *b, int lane, dcomm_operand dst, const dcomm_operand *src,
                          size_t n, unsigned flags)
{
    dcomm_step *s = dcommi_build_step(b, lane, DCOMM_STEP_REDUCE);
    if (s != NULL) {
        s->flags = (uint8_t)flags;
        s->dst = dst;
        dcommi_build_sources(b, s, src, n);
    }
}

static void dcommi_expose(dcommi_builder *b, int lane, dcomm_operand src, uint16_t slot,
                          dcomm_expr peer)
{
    dcomm_step *s = dcommi_build_step(b, lane, DCOMM_STEP_EXPOSE);
    if (s != NULL) {
        s->slot = slot;
        s->peer = peer;
        dcommi_build_sources(b, s, &src, 1);
    }
}

static void dcommi_signal(dcommi_builder *b, int lane, uint16_t counter, dcomm_expr peer,
                          dcomm_expr value)
{
    dcomm_step *s = dcommi_build_step(b, lane, DCOMM_STEP_SIGNAL);
    if (s != NULL) {
        s->slot = counter;
        s->peer = peer;
        s->value = value;
    }
}

static void dcommi_await(dcommi_builder *b, int lane, uint16_t counter, dcomm_expr value)
{
    dcomm_step *s = dcommi_build_step(b, lane, DCOMM_STEP_WAIT);
    if (s != NULL) {
        s->slot = counter;
        s->value = value;
    }
}

static void dcommi_fence(dcommi_builder *b, int lane)
{
    dcommi_build_step(b, lane, DCOMM_STEP_FENCE);
}

/* Open a loop; returns its depth, which is the index to use in expressions. */
static int dcommi_loop(dcommi_builder *b, int lane, dcomm_expr trips)
{
    dcomm_step *s = dcommi_build_step(b, lane, DCOMM_STEP_LOOP);
    if (s == NULL) {
        return 0;
    }
    dcommi_lane_builder *l = &b->lanes[lane];
    s->value = trips;
    if (l->depth == DCOMM_LOOP_DEPTH) {
        dcommi_build_error(b, dcommi_fail(DCOMM_ERR_INTERNAL, "%s: loops nest deeper than %d",
                                          b->head.name, DCOMM_LOOP_DEPTH));
        return 0;
    }
    l->open[l->depth] = (uint32_t)(l->count - 1);
    return l->depth++;
}

static void dcommi_end(dcommi_builder *b, int lane)
{
    dcomm_step *s = dcommi_build_step(b, lane, DCOMM_STEP_END);
    if (s != NULL) {
        dcommi_lane_builder *l = &b->lanes[lane];
        uint32_t open = l->open[--l->depth];
        uint32_t body = (uint32_t)(l->count - 2) - open;
        l->steps[open].body = body;
        s->body = body;
    }
}

/* Call a sub-plan, which must outlive this plan. group: index in the table of its ranks. */
static dcomm_step *dcommi_call(dcommi_builder *b, int lane, const dcomm_plan *sub, int64_t group,
                               dcomm_operand in, dcomm_operand out, dcomm_expr tag)
{
    dcomm_step *s = dcommi_build_step(b, lane, DCOMM_STEP_CALL);
    if (s == NULL) {
        return NULL;
    }
    dcomm_status status =
        dcommi_grow((void **)&b->subs, &b->subs_capacity, b->nsubs + 1, sizeof *b->subs);
    if (status < 0) {
        dcommi_build_error(b, status);
        return NULL;
    }
    b->subs[b->nsubs] = sub;
    s->sub = (uint32_t)b->nsubs++;
    s->group = (uint32_t)group;
    s->dst = out;
    s->tag = tag;
    dcommi_build_sources(b, s, &in, 1);
    return s;
}

/* ---- finishing ---- */

static void dcommi_build_discard(dcommi_builder *b)
{
    for (int i = 0; i < DCOMM_PLAN_MAX_LANES; i++) {
        dcommi_free(b->lanes[i].steps);
    }
    dcommi_free(b->operands);
    dcommi_free(b->table);
    dcommi_free((void *)b->subs);
    memset(b, 0, sizeof *b);
}

/* Lay the plan out in one block of memory (dcommi_free it) and discard the builder. */
static dcomm_status dcommi_build_finish(dcommi_builder *b, dcomm_plan **plan_p)
{
    *plan_p = NULL;
    dcomm_status status = b->status;
    if (status < 0) {
        dcommi_fail(status, "%s", b->why);
        dcommi_build_discard(b);
        return status;
    }
    size_t nsteps = 0;
    for (uint32_t i = 0; i < b->head.nlanes; i++) {
        nsteps += b->lanes[i].count;
    }
    size_t bytes = sizeof(dcomm_plan) + nsteps * sizeof(dcomm_step) +
                   b->noperands * sizeof(dcomm_operand) + b->ntable * sizeof(int64_t) +
                   b->nsubs * sizeof(dcomm_plan *) + b->head.nlanes * sizeof(dcomm_lane);
    dcomm_plan *plan = dcommi_alloc(bytes);
    if (plan == NULL) {
        dcommi_build_discard(b);
        return DCOMM_ERR_NO_MEMORY;
    }
    *plan = b->head;
    dcomm_step *steps = (dcomm_step *)(plan + 1);
    dcomm_operand *operands = (dcomm_operand *)(steps + nsteps);
    int64_t *table = (int64_t *)(operands + b->noperands);
    const dcomm_plan **subs = (const dcomm_plan **)(table + b->ntable);
    dcomm_lane *lanes = (dcomm_lane *)(subs + b->nsubs);
    uint32_t first = 0;
    for (uint32_t i = 0; i < b->head.nlanes; i++) {
        lanes[i].first = first;
        lanes[i].count = (uint32_t)b->lanes[i].count;
        if (b->lanes[i].count > 0) {
            memcpy(steps + first, b->lanes[i].steps, b->lanes[i].count * sizeof *steps);
        }
        first += lanes[i].count;
    }
    if (b->noperands > 0) {
        memcpy(operands, b->operands, b->noperands * sizeof *operands);
    }
    if (b->ntable > 0) {
        memcpy(table, b->table, b->ntable * sizeof *table);
    }
    if (b->nsubs > 0) {
        memcpy((void *)subs, (const void *)b->subs, b->nsubs * sizeof *subs);
    }
    plan->nsteps = (uint32_t)nsteps;
    plan->noperands = (uint32_t)b->noperands;
    plan->ntable = (uint32_t)b->ntable;
    plan->nsubs = (uint32_t)b->nsubs;
    plan->steps = steps;
    plan->operands = operands;
    plan->table = table;
    plan->subs = subs;
    plan->lanes = lanes;
    dcommi_build_discard(b);
    *plan_p = plan;
    return DCOMM_OK;
}

/* ---- evaluation, shared by engine, checker, printer ---- */

static int64_t dcommi_expr_value(const dcomm_expr *e, const int64_t *index, const int64_t *table,
                                 const uint64_t *words)
{
    if (e->kind == DCOMM_EXPR_CONST) {
        return e->add;
    }
    int64_t x = e->base;
    int64_t value = e->add;
    for (int d = 0; d < DCOMM_LOOP_DEPTH; d++) {
        x += e->coef[d] * index[d];
        value += e->post[d] * index[d];
    }
    if (e->mod != 0) {
        x %= e->mod;
        x += x < 0 ? e->mod : 0;
    }
    if (e->kind == DCOMM_EXPR_TABLE) {
        x = table[x];
    } else if (e->kind == DCOMM_EXPR_WORD) {
        x = (int64_t)words[x];
    }
    return value + e->scale * x;
}

/* Offset and length of piece r of an operand. */
static void dcommi_operand_piece(const dcomm_operand *o, uint32_t r, const int64_t *index,
                                 const int64_t *table, const uint64_t *words, int64_t *offset,
                                 int64_t *length)
{
    int64_t at = dcommi_expr_value(&o->offset, index, table, words) + (int64_t)r * o->stride;
    int64_t len = dcommi_expr_value(&o->length, index, table, words);
    len = dcommi_min64(dcommi_max64(len, 0), o->max_length);
    if (o->clip > 0) {
        len = dcommi_min64(len, dcommi_max64(o->clip - at, 0));
    }
    *offset = at;
    *length = len;
}

#endif
#endif

/* ==== helper macros end here =========================================================== */
#undef DCOMMI_CACHE_LINE
#undef DCOMMI_LIKELY
#undef DCOMMI_MESSAGE_MAX
#undef DCOMMI_PRINTF
#undef DCOMMI_TRY
#undef DCOMMI_UNLIKELY
#undef DCOMMI_UNUSED
