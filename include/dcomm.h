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
#define DCOMM_STATUS_TABLE(X)                                      \
    X(DCOMM_OK, 0, "success")                                      \
    X(DCOMM_IN_PROGRESS, 1, "in progress")                         \
    X(DCOMM_ERR_INVALID, -1, "invalid argument")                   \
    X(DCOMM_ERR_NO_MEMORY, -2, "out of memory")                    \
    X(DCOMM_ERR_UNSUPPORTED, -3, "not supported")                  \
    X(DCOMM_ERR_MISMATCH, -4, "ranks disagree about a collective") \
    X(DCOMM_ERR_PEER, -5, "a peer failed or was lost")             \
    X(DCOMM_ERR_TIMEOUT, -6, "timed out")                          \
    X(DCOMM_ERR_ABORTED, -7, "the communicator was aborted")       \
    X(DCOMM_ERR_TRANSPORT, -8, "transport failure")                \
    X(DCOMM_ERR_RENDEZVOUS, -9, "ranks could not find each other") \
    X(DCOMM_ERR_AUTH, -10, "authentication failed")                \
    X(DCOMM_ERR_CORRUPT, -11, "malformed data received")           \
    X(DCOMM_ERR_FORKED, -12, "called in a forked child")           \
    X(DCOMM_ERR_PLAN, -13, "the plan is not valid")                \
    X(DCOMM_ERR_SYSTEM, -14, "an operating system call failed")    \
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
 *   TABLE   value = scale * table[first + x] + sum(post[d] * i[d]) + add
 *   WORD    value = scale * words[first + x] + sum(post[d] * i[d]) + add
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
    int64_t first; /* TABLE, WORD: where this expression's part begins */
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
    int64_t stride;     /* bytes from one piece to the next */
    dcomm_expr peer;    /* PEER: rank in the plan */
    dcomm_expr offset;  /* bytes */
    dcomm_expr length;  /* bytes */
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
#define DCOMM_STEP_TABLE(X)           \
    X(SEND, "send")                   \
    X(RECV, "recv")                   \
    X(RECV_REDUCE, "recv_reduce")     \
    X(COPY, "copy")                   \
    X(EXPOSE, "expose")               \
    X(REDUCE, "reduce")               \
    X(ENCODE, "encode")               \
    X(DECODE, "decode")               \
    X(DECODE_REDUCE, "decode_reduce") \
    X(COMMIT, "commit")               \
    X(COMPUTE, "compute")             \
    X(SIGNAL, "signal")               \
    X(WAIT, "wait")                   \
    X(FENCE, "fence")                 \
    X(LOOP, "loop")                   \
    X(END, "end")                     \
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
    uint8_t kind;    /* dcomm_step_kind */
    uint8_t flags;   /* DCOMM_STEP_ASYNC | DCOMM_STEP_FINAL */
    uint16_t slot;   /* EXPOSE: slot; SIGNAL, WAIT: counter; CALL: first counter */
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
    bool rank_order;      /* folds must combine contributions in rank order */
    const size_t *counts; /* v: [nranks], all-to-all-v: [nranks][nranks], sent by row to column */
    const size_t *displs; /* v: [nranks] in the concatenated buffer; NULL: packed */
} dcomm_check_spec;

/* Totals that the checker counted, for one set of plans. */
typedef struct dcomm_check_report {
    char message[512];      /* why the plans were refused; "" when they are right */
    int64_t messages;       /* point-to-point messages, signals not counted */
    int64_t signals;        /* signals and expositions between ranks */
    int64_t max_rank_bytes; /* most payload bytes one rank sends (or reads from peers) */
    int64_t total_bytes;    /* payload bytes of all ranks */
    int64_t steps;          /* longest chain of dependent messages: the alpha term */
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
    bool progress_thread; /* a thread that progresses while the caller computes (default: no;
                             environment DCOMM_PROGRESS_THREAD=1) */
    const char *iface;    /* network interface for other hosts, e.g. "eth0" (default: DCOMM_IFACE,
                             else the one towards MASTER_ADDR, else the default route's, else
                             the first that is up; the loopback only when there is no other) */
    const char *host_id;  /* ranks share memory only where this is equal (default: DCOMM_HOSTID,
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
    dcomm_context *context; /* (default: a new one that lives as long as the communicator) */
    dcomm_context_opts context_opts; /* for that new one */
    dcomm_boot boot;                 /* (default: DCOMM_BOOT_AUTO) */
    int rank, size;                  /* with DCOMM_BOOT_ID and DCOMM_BOOT_ALLGATHER */
    dcomm_id id;                     /* with DCOMM_BOOT_ID */
    dcomm_allgather_fn allgather;    /* with DCOMM_BOOT_ALLGATHER */
    void *allgather_user;
    double timeout_s;   /* creation and every operation (default: DCOMM_TIMEOUT, else 300) */
    const char *algo;   /* algorithm forced for every call where it applies (default:
                           DCOMM_ALGO, else "auto"); rank 0's is taken by all ranks */
    bool deterministic; /* fold in rank order always (default: DCOMM_DETERMINISTIC, else no);
                           rank 0's is taken by all ranks */
    size_t chunk_bytes; /* pipelining grain of long messages (default: DCOMM_CHUNK, else
                           chosen per algorithm); rank 0's is taken by all ranks */
    int tune;           /* 1: measure what things cost, some milliseconds once per process and set
                           of hosts, so that algorithms are chosen by it (or read it, where
                           DCOMM_TUNE_FILE names a file); -1: choose by built-in numbers (default:
                           DCOMM_TUNE=1|0, else 1); rank 0's is taken by all ranks */
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

/* Close a communicator and set *comm_p to NULL. No other thread may be inside a call on it: abort,
 * join, then destroy. Waits up to 5 s for the goodbyes of its peers.
 * Outstanding requests fail with DCOMM_ERR_ABORTED. NULL and *comm_p NULL are good. */
DCOMM_API dcomm_status dcomm_comm_destroy(dcomm_comm **comm_p);

/* Split by colour (ranks with equal colour end up together, ordered by key, then by old rank);
 * collective. A negative colour takes part and gets *new_p = NULL. Like dup and shrink it waits,
 * and so cannot stand between dcomm_group_start and dcomm_group_end. */
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

/* -1, -1 and NULL of NULL, and of a communicator that is not created yet. */
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
                                      const size_t *counts, const size_t *displs, dcomm_dtype dtype,
                                      int root, const dcomm_coll_opts *opts,
                                      dcomm_request **request_p);
DCOMM_API dcomm_status dcomm_gatherv(dcomm_comm *comm, const void *sendbuf, void *recvbuf,
                                     const size_t *counts, const size_t *displs, dcomm_dtype dtype,
                                     int root, const dcomm_coll_opts *opts);

/* recvcount elements from root's sendbuf to each rank, in rank order. In place on root: recvbuf
 * == sendbuf + root*recvcount (DCOMM_IN_PLACE: recvbuf is the whole buffer). */
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
                                      const size_t *counts, const size_t *displs, dcomm_dtype dtype,
                                      int root, const dcomm_coll_opts *opts);

/* Block p of sendbuf (count elements) goes to rank p, which puts it at block `rank` of its recvbuf.
 * In place: sendbuf == recvbuf. Algorithms: pairwise, bruck, linear. */
DCOMM_API dcomm_status dcomm_ialltoall(dcomm_comm *comm, const void *sendbuf, void *recvbuf,
                                       size_t count, dcomm_dtype dtype, const dcomm_coll_opts *opts,
                                       dcomm_request **request_p);
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
 * communicator, with equal counts; a rank does not send to itself. A send may complete before the
 * receive is posted, and may also not: write programs that do not depend on it. */
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
 * NULL if that is 0. The plan stays in use until the operation is complete. The call refuses, with
 * DCOMM_ERR_PLAN, what is wrong on the face of it; an operand outside its space fails the operation
 * when the engine comes to it. Table lookups out of bounds, races and deadlocks are not found here:
 * check a plan first (dcomm_plan_check). */
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
/* tune.h - which algorithms there are, what the model says they cost, which one runs, and what was
 * moved. */
#ifndef DCOMM_TUNE_H
#define DCOMM_TUNE_H


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

/* ---- what things cost: the numbers that the model works with ---- */

/* What separates two ranks: the coarsest thing that they do not share. */
typedef enum dcomm_link_kind {
    DCOMM_LINK_HOST = 0,    /* they are on different hosts */
    DCOMM_LINK_PACKAGE = 1, /* on one host, on different packages */
    DCOMM_LINK_NUMA = 2,    /* on one package, on different NUMA nodes */
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
    /* The port of all ranks that are together on this side of the link (the host's network
     * interface) is busy for so long with a message. */
    dcomm_curve shared;
} dcomm_link;

/* All the numbers: plain data, the same on all ranks of a communicator. All zero: everything is
 * free. */
typedef struct dcomm_tuning {
    dcomm_link link[DCOMM_LINK_COUNT];
    dcomm_curve copy; /* within a rank's own memory */
    dcomm_curve fold; /* of each operand but the first, in its own memory */
    int64_t step_ps;  /* work for each step of a plan, whatever it does */
    int64_t call_ps;  /* of the call itself, whatever the plan */
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

/* One algorithm, as the choice sees it. */
typedef struct dcomm_alternative {
    const char *algo;
    double seconds; /* by the model; below 0: it has no price */
    bool chosen;    /* this one runs */
    char why[192];  /* why it does not; "" where it does */
} dcomm_alternative;

/* All algorithms of an operation with their prices, and why one of them runs: what dcomm_explain
 * tells the name of. At most `max` rows are written, in the order of dcomm_algo_get; *n_p, if not
 * NULL, is how many there are. Prices are those of the size on the model's grid (four to the
 * octave) that is next to `count`, for equal blocks, from rank 0. */
DCOMM_API dcomm_status dcomm_explain_all(dcomm_comm *comm, dcomm_coll coll, size_t count,
                                         dcomm_dtype dtype, dcomm_op op,
                                         const dcomm_coll_opts *opts, dcomm_alternative *rows,
                                         int max, int *n_p);
/* The same without a communicator: by `tuning` (NULL: the built-in numbers) for nranks ranks on
 * hosts[nranks] (NULL: on one). */
DCOMM_API dcomm_status dcomm_explain_on(const dcomm_tuning *tuning, int nranks, const int *hosts,
                                        dcomm_coll coll, size_t count, dcomm_dtype dtype,
                                        const dcomm_coll_opts *opts, dcomm_alternative *rows,
                                        int max, int *n_p);

/* Give a communicator other numbers to choose by, collectively: rank 0's `tuning`, or, where that
 * is NULL, what is measured now. The other ranks' argument is not looked at. Communicators derived
 * from this one later inherit them. Not between dcomm_group_start and dcomm_group_end. */
DCOMM_API dcomm_status dcomm_comm_tune(dcomm_comm *comm, const dcomm_tuning *tuning);
/* The numbers that a communicator chooses by. */
DCOMM_API dcomm_status dcomm_comm_tuning(dcomm_comm *comm, dcomm_tuning *tuning);

/* Counters of one rank of a communicator since its creation. */
typedef struct dcomm_stats {
    uint64_t operations;           /* completed */
    uint64_t messages_sent;        /* payload messages */
    uint64_t bytes_sent;           /* payload bytes sent, headers not counted */
    uint64_t bytes_read;           /* payload bytes read from peers' exposed memory */
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
#error \
    "dcomm: the implementation is C; compile DCOMM_IMPLEMENTATION in one .c file (C++ projects: a two-line dcomm.c)"
#endif
#ifndef _GNU_SOURCE
#error "dcomm: define _GNU_SOURCE before the first include of the file with DCOMM_IMPLEMENTATION"
#endif
#ifdef __FAST_MATH__
#error \
    "dcomm: do not compile DCOMM_IMPLEMENTATION with -ffast-math; results would depend on the compiler"
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

#define DCOMMI_TRY(expression)                         \
    do {                                               \
        dcomm_status dcommi_try_status = (expression); \
        if (DCOMMI_UNLIKELY(dcommi_try_status < 0)) {  \
            return dcommi_try_status;                  \
        }                                              \
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

/* Undefined contents, cache-line aligned; NULL (and a sentence) when there is none. Never of 0
 * bytes. */
static void *dcommi_alloc_raw(size_t bytes)
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
    }
    return p;
}

/* The same, zeroed. */
static void *dcommi_alloc(size_t bytes)
{
    void *p = dcommi_alloc_raw(bytes);
    if (p != NULL) {
        memset(p, 0, bytes);
    }
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

/* memset to 0 by the C library: for a size known at compile time gcc -O2 writes "rep stos", which
 * takes longer to start than the whole rest of a small message takes. */
static inline void dcommi_zero(void *p, size_t bytes)
{
    __asm__("" : "+r"(bytes));
    memset(p, 0, bytes);
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
/* ==== include/dcomm/impl/base_impl.h ======================================================= */
/* base_impl.h - the functions of base.h: names, the last error, hooks, the caller's operators. */
#ifndef DCOMMI_BASE_IMPL_H
#define DCOMMI_BASE_IMPL_H


/* ---- names ---- */

DCOMM_API const char *dcomm_strerror(dcomm_status status)
{
    switch (status) {
#define DCOMMI_STATUS_TEXT(name, number, text) \
    case name:                                 \
        return text;
        DCOMM_STATUS_TABLE(DCOMMI_STATUS_TEXT)
#undef DCOMMI_STATUS_TEXT
    case DCOMM_STATUS_FORCE_INT:
        break;
    }
    return "unknown status";
}

DCOMM_API const char *dcomm_status_name(dcomm_status status)
{
    switch (status) {
#define DCOMMI_STATUS_NAME(name, number, text) \
    case name:                                 \
        return #name;
        DCOMM_STATUS_TABLE(DCOMMI_STATUS_NAME)
#undef DCOMMI_STATUS_NAME
    case DCOMM_STATUS_FORCE_INT:
        break;
    }
    return "DCOMM_STATUS_UNKNOWN";
}

DCOMM_API const char *dcomm_last_error(void)
{
    return dcommi_message;
}

DCOMM_API const char *dcomm_version(void)
{
    return DCOMM_VERSION_STRING;
}

DCOMM_API size_t dcomm_dtype_size(dcomm_dtype dtype)
{
    static const unsigned char size[DCOMM_DTYPE_COUNT] = {8, 4, 2, 2, 1, 1, 4, 4, 8, 8};
    return (unsigned)dtype < DCOMM_DTYPE_COUNT ? size[dtype] : 0;
}

DCOMM_API const char *dcomm_dtype_name(dcomm_dtype dtype)
{
    static const char *const name[DCOMM_DTYPE_COUNT] = {"f64", "f32", "f16", "bf16", "i8",
                                                        "u8",  "i32", "u32", "i64",  "u64"};
    return (unsigned)dtype < DCOMM_DTYPE_COUNT ? name[dtype] : "?";
}

static inline bool dcommi_op_is_user(dcomm_op op)
{
    return (int)op >= DCOMM_OP_USER && (int)op <= DCOMM_OP_USER_MAX;
}

DCOMM_API const char *dcomm_op_name(dcomm_op op)
{
    static const char *const name[DCOMM_OP_COUNT] = {"sum", "prod", "min",
                                                     "max", "avg",  "premul_sum"};
    if ((unsigned)op < DCOMM_OP_COUNT) {
        return name[op];
    }
    return dcommi_op_is_user(op) ? "user" : "?";
}

/* ---- hooks ---- */

DCOMM_API void dcomm_set_allocator(dcomm_alloc_fn alloc, dcomm_free_fn release, void *user)
{
    dcommi_alloc_fn = alloc;
    dcommi_free_fn = release;
    dcommi_alloc_user = user;
}

DCOMM_API void dcomm_set_logger(dcomm_log_fn fn, void *user)
{
    dcommi_log_fn = fn;
    dcommi_log_user = user;
}

/* ---- the caller's operators ---- */

enum { DCOMMI_USER_OPS = DCOMM_OP_USER_MAX - DCOMM_OP_USER + 1 };

/* `user` is written before `fn` is published, so that looking up takes no lock. */
typedef struct dcommi_user_op {
    _Atomic(dcomm_op_fn) fn;
    void *user;
} dcommi_user_op;

static dcommi_user_op dcommi_user_ops[DCOMMI_USER_OPS];
static pthread_mutex_t dcommi_user_ops_lock = PTHREAD_MUTEX_INITIALIZER;

/* The operator's function, NULL when there is none alive under this value. */
static dcomm_op_fn dcommi_user_op_find(dcomm_op op, void **user)
{
    if (!dcommi_op_is_user(op)) {
        return NULL;
    }
    dcommi_user_op *entry = &dcommi_user_ops[(int)op - DCOMM_OP_USER];
    dcomm_op_fn fn = atomic_load_explicit(&entry->fn, memory_order_acquire);
    *user = fn != NULL ? entry->user : NULL;
    return fn;
}

/* Whether collectives may be called with it. */
static inline bool dcommi_op_known(dcomm_op op)
{
    void *user;
    return (unsigned)op < DCOMM_OP_COUNT || dcommi_user_op_find(op, &user) != NULL;
}

DCOMM_API dcomm_status dcomm_op_create(dcomm_op_fn fn, void *user, dcomm_op *op_p)
{
    if (fn == NULL || op_p == NULL) {
        return dcommi_fail(DCOMM_ERR_INVALID, "dcomm_op_create: %s is NULL",
                           fn == NULL ? "fn" : "op_p");
    }
    int i = 0;
    pthread_mutex_lock(&dcommi_user_ops_lock);
    while (i < DCOMMI_USER_OPS &&
           atomic_load_explicit(&dcommi_user_ops[i].fn, memory_order_relaxed) != NULL) {
        i++;
    }
    if (i < DCOMMI_USER_OPS) {
        dcommi_user_ops[i].user = user;
        atomic_store_explicit(&dcommi_user_ops[i].fn, fn, memory_order_release);
    }
    pthread_mutex_unlock(&dcommi_user_ops_lock);
    if (i == DCOMMI_USER_OPS) {
        return dcommi_fail(DCOMM_ERR_NO_MEMORY,
                           "dcomm_op_create: %d operators are alive, which is the limit", i);
    }
    *op_p = (dcomm_op)(DCOMM_OP_USER + i);
    return DCOMM_OK;
}

DCOMM_API dcomm_status dcomm_op_destroy(dcomm_op op)
{
    dcomm_op_fn fn = NULL;
    if (dcommi_op_is_user(op)) {
        pthread_mutex_lock(&dcommi_user_ops_lock);
        fn = atomic_exchange(&dcommi_user_ops[(int)op - DCOMM_OP_USER].fn, NULL);
        pthread_mutex_unlock(&dcommi_user_ops_lock);
    }
    if (fn == NULL) {
        return dcommi_fail(DCOMM_ERR_INVALID,
                           "dcomm_op_destroy: %d is no operator that dcomm_op_create made",
                           (int)op);
    }
    return DCOMM_OK;
}

#endif
/* ==== include/dcomm/impl/device_host.h ===================================================== */
/* device_host.h - the transforms of device.h on host memory, by the kernels of kernels/cpu.h. */
#ifndef DCOMMI_DEVICE_HOST_H
#define DCOMMI_DEVICE_HOST_H

/* ==== include/dcomm/impl/device.h ========================================================== */
/* device.h - transforms of bytes by memory kind. The host kind is here; other kinds come with
 * their own table. The device layer knows no rank. */
#ifndef DCOMMI_DEVICE_H
#define DCOMMI_DEVICE_H


/* dst[i] = fold over s of src[s][i], from s = 0 up, for `count` elements; nsrc >= 1. dst may be
 * exactly equal to any src, or disjoint from it. 16-bit floats fold in f32 and round once. With
 * divisor > 1 the fold is then divided by it (DCOMM_AVG). op is DCOMM_SUM, PROD, MIN, MAX, AVG,
 * PREMUL_SUM (both like SUM) or a caller's own. Any alignment. */
static dcomm_status dcommi_host_reduce(void *dst, const void *const *src, size_t nsrc, size_t count,
                                       dcomm_dtype dtype, dcomm_op op, int64_t divisor);
/* dst[i] = factor * src[i], in f64 for f64, in f32 for other floats, and in the integer type after
 * rounding of the f64 product towards zero; dst may equal src. */
static void dcommi_host_scale(void *dst, const void *src, size_t count, dcomm_dtype dtype,
                              double factor);
/* memcpy for long, cold copies (non-temporal where that is faster). */
static void dcommi_host_copy(void *dst, const void *src, size_t len);

#endif
/* ==== kernels/cpu.h ======================================================================== */
/* cpu.h - which kernels this machine runs, chosen once at run time. */
#ifndef DCOMMI_CPU_H
#define DCOMMI_CPU_H

/* ==== kernels/cpu_portable.h =============================================================== */
/* cpu_portable.h - folds of n operands in plain C: what every SIMD loop must equal bit for bit. */
#ifndef DCOMMI_CPU_PORTABLE_H
#define DCOMMI_CPU_PORTABLE_H

/* ==== kernels/math.h ======================================================================= */
/* math.h - what one element means: conversions, rounding, the operators. C, C++ and CUDA alike.
 *
 * Decisions are taken on the bits, and arithmetic is single IEEE operations, never a product and a
 * sum together, so that the compiler's floating-point flags cannot change a result. Every NaN that
 * an operator makes or passes on is the canonical quiet NaN (0x7fc00000 and its like): back ends
 * disagree about which payload survives, and about its sign. */
#ifndef DCOMMI_MATH_H
#define DCOMMI_MATH_H

#include <stdint.h>
#include <string.h>

#ifdef __CUDACC__
#define DCOMMI_HD __host__ __device__
#else
#define DCOMMI_HD
#endif

#define DCOMMI_F32_NAN 0x7fc00000u
#define DCOMMI_F64_NAN 0x7ff8000000000000u

/* ---- bits ---- */

DCOMMI_HD static inline uint32_t dcommi_f32_bits(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

DCOMMI_HD static inline float dcommi_f32_from_bits(uint32_t bits)
{
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

DCOMMI_HD static inline uint64_t dcommi_f64_bits(double x)
{
    uint64_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

DCOMMI_HD static inline double dcommi_f64_from_bits(uint64_t bits)
{
    double x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

DCOMMI_HD static inline int dcommi_f32_isnan(uint32_t bits)
{
    return (bits & 0x7fffffffu) > 0x7f800000u;
}

DCOMMI_HD static inline int dcommi_f64_isnan(uint64_t bits)
{
    return (bits & 0x7fffffffffffffffu) > 0x7ff0000000000000u;
}

DCOMMI_HD static inline float dcommi_f32_canonical(float x)
{
    uint32_t bits = dcommi_f32_bits(x);
    return dcommi_f32_from_bits(dcommi_f32_isnan(bits) ? DCOMMI_F32_NAN : bits);
}

DCOMMI_HD static inline double dcommi_f64_canonical(double x)
{
    uint64_t bits = dcommi_f64_bits(x);
    return dcommi_f64_from_bits(dcommi_f64_isnan(bits) ? DCOMMI_F64_NAN : bits);
}

/* ---- 16-bit floats. To f32: exact. From f32: to nearest, ties to even, beyond the largest to
 * infinity. A NaN keeps its sign and the payload bits that fit, and becomes quiet. ---- */

DCOMMI_HD static inline float dcommi_f16_to_f32(uint16_t h)
{
    uint32_t sign = (uint32_t)(h & 0x8000u) << 16;
    uint32_t a = h & 0x7fffu;
    uint32_t small = dcommi_f32_bits((float)(int32_t)a * 5.9604644775390625e-8f); /* 2^-24: exact */
    uint32_t bits = (a << 13) + (a >= 0x7c00u ? 224u << 23 : 112u << 23);
    bits = a < 0x400u ? small : bits;
    bits |= a > 0x7c00u ? 0x400000u : 0;
    return dcommi_f32_from_bits(sign | bits);
}

/* Every case is computed and one is chosen, so that plain loops vectorize. */
DCOMMI_HD static inline uint16_t dcommi_f32_to_f16(float x)
{
    uint32_t bits = dcommi_f32_bits(x);
    uint32_t sign = (bits >> 16) & 0x8000u;
    uint32_t a = bits & 0x7fffffffu;
    uint32_t h = (a - 0x38000000u + 0xfffu + ((a >> 13) & 1u)) >> 13;
    /* Denormals count in 2^-24, the last place of 0.5f, where this addition rounds them. */
    uint32_t small = dcommi_f32_bits(dcommi_f32_from_bits(a) + 0.5f) - 0x3f000000u;
    h = a < 0x38800000u ? small : h;
    h = a >= 0x477ff000u ? 0x7c00u : h; /* 65520 is halfway to 2^16 */
    h = a > 0x7f800000u ? 0x7e00u | ((a >> 13) & 0x3ffu) : h;
    return (uint16_t)(sign | h);
}

DCOMMI_HD static inline float dcommi_bf16_to_f32(uint16_t h)
{
    return dcommi_f32_from_bits((uint32_t)h << 16);
}

DCOMMI_HD static inline uint16_t dcommi_f32_to_bf16(float x)
{
    uint32_t bits = dcommi_f32_bits(x);
    uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
    return (uint16_t)(dcommi_f32_isnan(bits) ? (bits >> 16) | 0x40u : rounded);
}

/* ---- operators. sum, prod: one IEEE operation; min, max: a NaN operand gives NaN, -0 < +0 ---- */

/* Signed order of the keys is the order of the numbers, -0 below +0. */
DCOMMI_HD static inline int32_t dcommi_f32_key(uint32_t bits)
{
    return (int32_t)(bits ^ ((0u - (bits >> 31)) & 0x7fffffffu));
}

DCOMMI_HD static inline int64_t dcommi_f64_key(uint64_t bits)
{
    return (int64_t)(bits ^ (((uint64_t)0 - (bits >> 63)) & 0x7fffffffffffffffu));
}

DCOMMI_HD static inline float dcommi_f32_min(float x, float y)
{
    uint32_t a = dcommi_f32_bits(x), b = dcommi_f32_bits(y);
    uint32_t least = dcommi_f32_key(a) <= dcommi_f32_key(b) ? a : b;
    int nan = dcommi_f32_isnan(a) | dcommi_f32_isnan(b);
    return dcommi_f32_from_bits(nan ? DCOMMI_F32_NAN : least);
}

DCOMMI_HD static inline float dcommi_f32_max(float x, float y)
{
    uint32_t a = dcommi_f32_bits(x), b = dcommi_f32_bits(y);
    uint32_t most = dcommi_f32_key(a) >= dcommi_f32_key(b) ? a : b;
    int nan = dcommi_f32_isnan(a) | dcommi_f32_isnan(b);
    return dcommi_f32_from_bits(nan ? DCOMMI_F32_NAN : most);
}

DCOMMI_HD static inline double dcommi_f64_min(double x, double y)
{
    uint64_t a = dcommi_f64_bits(x), b = dcommi_f64_bits(y);
    uint64_t least = dcommi_f64_key(a) <= dcommi_f64_key(b) ? a : b;
    int nan = dcommi_f64_isnan(a) | dcommi_f64_isnan(b);
    return dcommi_f64_from_bits(nan ? DCOMMI_F64_NAN : least);
}

DCOMMI_HD static inline double dcommi_f64_max(double x, double y)
{
    uint64_t a = dcommi_f64_bits(x), b = dcommi_f64_bits(y);
    uint64_t most = dcommi_f64_key(a) >= dcommi_f64_key(b) ? a : b;
    int nan = dcommi_f64_isnan(a) | dcommi_f64_isnan(b);
    return dcommi_f64_from_bits(nan ? DCOMMI_F64_NAN : most);
}

/* The end of a fold: divided when it is an average. */
DCOMMI_HD static inline float dcommi_f32_finish(float x, double divisor)
{
    return dcommi_f32_canonical(divisor > 1 ? x / (float)divisor : x);
}

DCOMMI_HD static inline double dcommi_f64_finish(double x, double divisor)
{
    return dcommi_f64_canonical(divisor > 1 ? x / divisor : x);
}

DCOMMI_HD static inline float dcommi_f32_scale(float x, double factor)
{
    return dcommi_f32_canonical(x * (float)factor);
}

DCOMMI_HD static inline double dcommi_f64_scale(double x, double factor)
{
    return dcommi_f64_canonical(x * factor);
}

/* ---- integers: wrap around in their width ---- */

/* The product as an f64, truncated into [least, most]; NaN gives 0. `past` is most + 1, a power of
 * two, which f64 can hold where it cannot hold `most` itself. */
DCOMMI_HD static inline int64_t dcommi_scale_signed(double product, int64_t least, int64_t most,
                                                    double past)
{
    if (dcommi_f64_isnan(dcommi_f64_bits(product))) {
        return 0;
    }
    return product >= past ? most : product <= -past ? least : (int64_t)product;
}

DCOMMI_HD static inline uint64_t dcommi_scale_unsigned(double product, uint64_t most, double past)
{
    if (!(product > 0)) {
        return 0;
    }
    return product >= past ? most : (uint64_t)product;
}

#endif

#include <stdbool.h>
#include <stddef.h>

/* What a fold kernel may do to the caches. */
enum {
    DCOMMI_FOLD_STREAM = 1, /* store past the caches; dst is aligned to its element */
    DCOMMI_FOLD_AHEAD = 2   /* ask for the sources ahead of time */
};

/* dst = fold of src[0..nsrc-1], `len` bytes each, finished with `scalar` (the divisor of a float
 * average; the factor of a scaling). dst may equal any src. */
typedef void (*dcommi_fold_fn)(unsigned char *dst, const unsigned char *const *src, size_t nsrc,
                               size_t len, double scalar, unsigned how);

/* The kernels of one dtype. */
typedef enum dcommi_fold_kind {
    DCOMMI_FOLD_SUM = 0,
    DCOMMI_FOLD_PROD = 1,
    DCOMMI_FOLD_MIN = 2,
    DCOMMI_FOLD_MAX = 3,
    DCOMMI_FOLD_SCALE = 4, /* nsrc is 1 */
    DCOMMI_FOLD_KINDS = 5
} dcommi_fold_kind;

#define DCOMMI_PORT_BLOCK 128 /* elements: accumulators that stay in the first cache */

/* Two calls of one inlined body: with a constant count, compilers vectorize it even at -O2. */
#define DCOMMI_PORT_FOLD(NAME, STORED, ACC, LOAD, OP, FINISH, STORE)                           \
    __attribute__((always_inline)) static inline void dcommi_port_some_##NAME(                 \
        unsigned char *dst, const unsigned char *const *src, size_t nsrc, size_t at, size_t n, \
        double scalar)                                                                         \
    {                                                                                          \
        (void)scalar;                                                                          \
        ACC acc[DCOMMI_PORT_BLOCK];                                                            \
        const unsigned char *from = src[0] + at;                                               \
        for (size_t i = 0; i < n; i++) {                                                       \
            STORED x;                                                                          \
            memcpy(&x, from + i * sizeof x, sizeof x);                                         \
            acc[i] = LOAD(x);                                                                  \
        }                                                                                      \
        for (size_t s = 1; s < nsrc; s++) {                                                    \
            from = src[s] + at;                                                                \
            for (size_t i = 0; i < n; i++) {                                                   \
                STORED x;                                                                      \
                memcpy(&x, from + i * sizeof x, sizeof x);                                     \
                acc[i] = OP(acc[i], LOAD(x));                                                  \
            }                                                                                  \
        }                                                                                      \
        for (size_t i = 0; i < n; i++) {                                                       \
            STORED x = STORE(FINISH(acc[i], scalar));                                          \
            memcpy(dst + at + i * sizeof x, &x, sizeof x);                                     \
        }                                                                                      \
    }                                                                                          \
    static void dcommi_port_fold_##NAME(unsigned char *dst, const unsigned char *const *src,   \
                                        size_t nsrc, size_t len, double scalar, unsigned how)  \
    {                                                                                          \
        (void)how;                                                                             \
        const size_t block = DCOMMI_PORT_BLOCK * sizeof(STORED);                               \
        size_t at = 0;                                                                         \
        for (; len - at >= block; at += block) {                                               \
            dcommi_port_some_##NAME(dst, src, nsrc, at, DCOMMI_PORT_BLOCK, scalar);            \
        }                                                                                      \
        dcommi_port_some_##NAME(dst, src, nsrc, at, (len - at) / sizeof(STORED), scalar);      \
    }

#define DCOMMI_PORT_SAME(x) (x)
#define DCOMMI_PORT_DONE(x, scalar) (x)
#define DCOMMI_PORT_ADD(a, b) ((a) + (b))
#define DCOMMI_PORT_MUL(a, b) ((a) * (b))
#define DCOMMI_PORT_LESS(a, b) ((a) < (b) ? (a) : (b))
#define DCOMMI_PORT_MORE(a, b) ((a) > (b) ? (a) : (b))

#define DCOMMI_PORT_FLOAT(DTYPE, STORED, ACC, LOAD, WIDE, STORE)                                  \
    DCOMMI_PORT_FOLD(DTYPE##_sum, STORED, ACC, LOAD, DCOMMI_PORT_ADD, dcommi_##WIDE##_finish,     \
                     STORE)                                                                       \
    DCOMMI_PORT_FOLD(DTYPE##_prod, STORED, ACC, LOAD, DCOMMI_PORT_MUL, dcommi_##WIDE##_finish,    \
                     STORE)                                                                       \
    DCOMMI_PORT_FOLD(DTYPE##_min, STORED, ACC, LOAD, dcommi_##WIDE##_min, dcommi_##WIDE##_finish, \
                     STORE)                                                                       \
    DCOMMI_PORT_FOLD(DTYPE##_max, STORED, ACC, LOAD, dcommi_##WIDE##_max, dcommi_##WIDE##_finish, \
                     STORE)                                                                       \
    DCOMMI_PORT_FOLD(DTYPE##_scale, STORED, ACC, LOAD, DCOMMI_PORT_ADD, dcommi_##WIDE##_scale,    \
                     STORE)

DCOMMI_PORT_FLOAT(f64, double, double, DCOMMI_PORT_SAME, f64, DCOMMI_PORT_SAME)
DCOMMI_PORT_FLOAT(f32, float, float, DCOMMI_PORT_SAME, f32, DCOMMI_PORT_SAME)
DCOMMI_PORT_FLOAT(f16, uint16_t, float, dcommi_f16_to_f32, f32, dcommi_f32_to_f16)
DCOMMI_PORT_FLOAT(bf16, uint16_t, float, dcommi_bf16_to_f32, f32, dcommi_f32_to_bf16)

/* Sums and products of signed integers are those of unsigned ones. */
#define DCOMMI_PORT_UINT(DTYPE, STORED, CAST, FACTOR)                                             \
    DCOMMI_PORT_FOLD(DTYPE##_sum, STORED, STORED, CAST, DCOMMI_PORT_ADD, DCOMMI_PORT_DONE, CAST)  \
    DCOMMI_PORT_FOLD(DTYPE##_prod, STORED, STORED, CAST, DCOMMI_PORT_MUL, DCOMMI_PORT_DONE, CAST) \
    DCOMMI_PORT_INT(DTYPE, STORED, FACTOR)

#define DCOMMI_PORT_INT(DTYPE, STORED, FACTOR)                                                 \
    DCOMMI_PORT_FOLD(DTYPE##_min, STORED, STORED, DCOMMI_PORT_SAME, DCOMMI_PORT_LESS,          \
                     DCOMMI_PORT_DONE, DCOMMI_PORT_SAME)                                       \
    DCOMMI_PORT_FOLD(DTYPE##_max, STORED, STORED, DCOMMI_PORT_SAME, DCOMMI_PORT_MORE,          \
                     DCOMMI_PORT_DONE, DCOMMI_PORT_SAME)                                       \
    DCOMMI_PORT_FOLD(DTYPE##_scale, STORED, STORED, DCOMMI_PORT_SAME, DCOMMI_PORT_ADD, FACTOR, \
                     DCOMMI_PORT_SAME)

#define DCOMMI_PORT_U8(x) ((uint8_t)(x))
#define DCOMMI_PORT_SCALE_I8(x, f) \
    ((int8_t)dcommi_scale_signed((f) * (double)(x), INT8_MIN, INT8_MAX, 128.0))
#define DCOMMI_PORT_SCALE_I32(x, f) \
    ((int32_t)dcommi_scale_signed((f) * (double)(x), INT32_MIN, INT32_MAX, 2147483648.0))
#define DCOMMI_PORT_SCALE_I64(x, f) \
    dcommi_scale_signed((f) * (double)(x), INT64_MIN, INT64_MAX, 9223372036854775808.0)
#define DCOMMI_PORT_SCALE_U8(x, f) \
    ((uint8_t)dcommi_scale_unsigned((f) * (double)(x), UINT8_MAX, 256.0))
#define DCOMMI_PORT_SCALE_U32(x, f) \
    ((uint32_t)dcommi_scale_unsigned((f) * (double)(x), UINT32_MAX, 4294967296.0))
#define DCOMMI_PORT_SCALE_U64(x, f) \
    dcommi_scale_unsigned((f) * (double)(x), UINT64_MAX, 18446744073709551616.0)

DCOMMI_PORT_UINT(u8, uint8_t, DCOMMI_PORT_U8, DCOMMI_PORT_SCALE_U8)
DCOMMI_PORT_UINT(u32, uint32_t, DCOMMI_PORT_SAME, DCOMMI_PORT_SCALE_U32)
DCOMMI_PORT_UINT(u64, uint64_t, DCOMMI_PORT_SAME, DCOMMI_PORT_SCALE_U64)
DCOMMI_PORT_INT(i8, int8_t, DCOMMI_PORT_SCALE_I8)
DCOMMI_PORT_INT(i32, int32_t, DCOMMI_PORT_SCALE_I32)
DCOMMI_PORT_INT(i64, int64_t, DCOMMI_PORT_SCALE_I64)

/* Kernels of `ISA` in the order of dcommi_fold_kind; A signs as itself, U as its unsigned kin. */
#define DCOMMI_FOLD_ROW(ISA, A, U, SCALE)                                 \
    {                                                                     \
        dcommi_##ISA##_fold_##U##_sum, dcommi_##ISA##_fold_##U##_prod,    \
            dcommi_##ISA##_fold_##A##_min, dcommi_##ISA##_fold_##A##_max, \
            dcommi_##SCALE##_fold_##A##_scale                             \
    }

/* In the order of dcomm_dtype. SIMD does not pay for scaled integers, which few use. */
#define DCOMMI_FOLD_TABLE(ISA)                                                          \
    {                                                                                   \
        DCOMMI_FOLD_ROW(ISA, f64, f64, ISA), DCOMMI_FOLD_ROW(ISA, f32, f32, ISA),       \
            DCOMMI_FOLD_ROW(ISA, f16, f16, ISA), DCOMMI_FOLD_ROW(ISA, bf16, bf16, ISA), \
            DCOMMI_FOLD_ROW(ISA, i8, u8, port), DCOMMI_FOLD_ROW(ISA, u8, u8, port),     \
            DCOMMI_FOLD_ROW(ISA, i32, u32, port), DCOMMI_FOLD_ROW(ISA, u32, u32, port), \
            DCOMMI_FOLD_ROW(ISA, i64, u64, port), DCOMMI_FOLD_ROW(ISA, u64, u64, port)  \
    }

static const dcommi_fold_fn dcommi_port_folds[10][DCOMMI_FOLD_KINDS] = DCOMMI_FOLD_TABLE(port);

#endif


#if defined(__x86_64__)
/* ==== kernels/cpu_avx2.h =================================================================== */
/* cpu_avx2.h - lanes of the SIMD folds for AVX2 with F16C. */
#ifndef DCOMMI_CPU_AVX2_H
#define DCOMMI_CPU_AVX2_H

/* ==== kernels/cpu_simd.h =================================================================== */
/* cpu_simd.h - the loop that all SIMD folds share; cpu_avx2.h and cpu_avx512.h fill in the lanes.
 *
 * An instruction set ISA brings DCOMMI_ISA_TARGET, a raw vector type with load, store, stream,
 * load of a part and store of a part, and for each KIND of element a vector type (for 16-bit
 * floats: a pair of f32 vectors) with unpack, pack, finish and scale. Multiplication and addition
 * never meet in one kernel, so that no compiler can fuse them. */
#ifndef DCOMMI_CPU_SIMD_H
#define DCOMMI_CPU_SIMD_H


#include <immintrin.h>

/* How far ahead sources are asked for, into the second cache (nearer, or into the first, is
 * slower). */
#define DCOMMI_SIMD_AHEAD 12288

/* Four vectors at a time, written out: compilers unroll no loop at -O2, and an indexed accumulator
 * would live in memory. */
#define DCOMMI_SIMD_GET(ISA, KIND, p) dcommi_##ISA##_##KIND##_unpack(dcommi_##ISA##_load(p))

#define DCOMMI_SIMD_PUT(ISA, KIND, FINISH, STORE, p, acc) \
    dcommi_##ISA##_##STORE(                               \
        p, dcommi_##ISA##_##KIND##_pack(dcommi_##ISA##_##KIND##_##FINISH(acc, scalar)))

#define DCOMMI_SIMD_PUT4(ISA, KIND, FINISH, STORE)                     \
    DCOMMI_SIMD_PUT(ISA, KIND, FINISH, STORE, dst + i, a0);            \
    DCOMMI_SIMD_PUT(ISA, KIND, FINISH, STORE, dst + i + wide, a1);     \
    DCOMMI_SIMD_PUT(ISA, KIND, FINISH, STORE, dst + i + 2 * wide, a2); \
    DCOMMI_SIMD_PUT(ISA, KIND, FINISH, STORE, dst + i + 3 * wide, a3)

#define DCOMMI_SIMD_FOLD(ISA, NAME, KIND, OP, FINISH)                                             \
    DCOMMI_##ISA##_TARGET static void dcommi_##ISA##_fold_##NAME##_part(                          \
        unsigned char *dst, const unsigned char *const *src, size_t nsrc, size_t i, size_t n,     \
        double scalar)                                                                            \
    {                                                                                             \
        dcommi_##ISA##_##KIND acc =                                                               \
            dcommi_##ISA##_##KIND##_unpack(dcommi_##ISA##_load_part(src[0] + i, n));              \
        for (size_t s = 1; s < nsrc; s++) {                                                       \
            acc =                                                                                 \
                OP(acc, dcommi_##ISA##_##KIND##_unpack(dcommi_##ISA##_load_part(src[s] + i, n))); \
        }                                                                                         \
        dcommi_##ISA##_store_part(                                                                \
            dst + i, n,                                                                           \
            dcommi_##ISA##_##KIND##_pack(dcommi_##ISA##_##KIND##_##FINISH(acc, scalar)));         \
    }                                                                                             \
    DCOMMI_##ISA##_TARGET static void dcommi_##ISA##_fold_##NAME(                                 \
        unsigned char *dst, const unsigned char *const *src, size_t nsrc, size_t len,             \
        double scalar, unsigned how)                                                              \
    {                                                                                             \
        const size_t wide = sizeof(dcommi_##ISA##_raw);                                           \
        const bool stream = (how & DCOMMI_FOLD_STREAM) != 0;                                      \
        size_t i = 0;                                                                             \
        if (stream) {                                                                             \
            size_t head = (size_t)(0 - (uintptr_t)dst) & 63;                                      \
            for (size_t n = 0; i < head; i += n) {                                                \
                n = head - i < wide ? head - i : wide;                                            \
                dcommi_##ISA##_fold_##NAME##_part(dst, src, nsrc, i, n, scalar);                  \
            }                                                                                     \
        }                                                                                         \
        for (; len - i >= 4 * wide; i += 4 * wide) {                                              \
            const unsigned char *from = src[0] + i;                                               \
            dcommi_##ISA##_##KIND a0 = DCOMMI_SIMD_GET(ISA, KIND, from);                          \
            dcommi_##ISA##_##KIND a1 = DCOMMI_SIMD_GET(ISA, KIND, from + wide);                   \
            dcommi_##ISA##_##KIND a2 = DCOMMI_SIMD_GET(ISA, KIND, from + 2 * wide);               \
            dcommi_##ISA##_##KIND a3 = DCOMMI_SIMD_GET(ISA, KIND, from + 3 * wide);               \
            if (how & DCOMMI_FOLD_AHEAD) {                                                        \
                dcommi_##ISA##_ahead(from + DCOMMI_SIMD_AHEAD);                                   \
            }                                                                                     \
            for (size_t s = 1; s < nsrc; s++) {                                                   \
                from = src[s] + i;                                                                \
                a0 = OP(a0, DCOMMI_SIMD_GET(ISA, KIND, from));                                    \
                a1 = OP(a1, DCOMMI_SIMD_GET(ISA, KIND, from + wide));                             \
                a2 = OP(a2, DCOMMI_SIMD_GET(ISA, KIND, from + 2 * wide));                         \
                a3 = OP(a3, DCOMMI_SIMD_GET(ISA, KIND, from + 3 * wide));                         \
                if (how & DCOMMI_FOLD_AHEAD) {                                                    \
                    dcommi_##ISA##_ahead(from + DCOMMI_SIMD_AHEAD);                               \
                }                                                                                 \
            }                                                                                     \
            if (stream) {                                                                         \
                DCOMMI_SIMD_PUT4(ISA, KIND, FINISH, stream);                                      \
            } else {                                                                              \
                DCOMMI_SIMD_PUT4(ISA, KIND, FINISH, store);                                       \
            }                                                                                     \
        }                                                                                         \
        for (size_t n = 0; i < len; i += n) {                                                     \
            n = len - i < wide ? len - i : wide;                                                  \
            dcommi_##ISA##_fold_##NAME##_part(dst, src, nsrc, i, n, scalar);                      \
        }                                                                                         \
        if (stream) {                                                                             \
            _mm_sfence();                                                                         \
        }                                                                                         \
    }

#define DCOMMI_SIMD_FLOAT(ISA, KIND)                                               \
    DCOMMI_SIMD_FOLD(ISA, KIND##_sum, KIND, dcommi_##ISA##_##KIND##_add, finish)   \
    DCOMMI_SIMD_FOLD(ISA, KIND##_prod, KIND, dcommi_##ISA##_##KIND##_mul, finish)  \
    DCOMMI_SIMD_FOLD(ISA, KIND##_min, KIND, dcommi_##ISA##_##KIND##_least, finish) \
    DCOMMI_SIMD_FOLD(ISA, KIND##_max, KIND, dcommi_##ISA##_##KIND##_most, finish)  \
    DCOMMI_SIMD_FOLD(ISA, KIND##_scale, KIND, dcommi_##ISA##_##KIND##_add, scale)

/* A pair of f32 vectors takes each operation half by half. */
#define DCOMMI_SIMD_PAIR_OP(ISA, KIND, OP)                                    \
    DCOMMI_##ISA##_INLINE dcommi_##ISA##_##KIND dcommi_##ISA##_##KIND##_##OP( \
        dcommi_##ISA##_##KIND a, dcommi_##ISA##_##KIND b)                     \
    {                                                                         \
        a.lo = dcommi_##ISA##_f32_##OP(a.lo, b.lo);                           \
        a.hi = dcommi_##ISA##_f32_##OP(a.hi, b.hi);                           \
        return a;                                                             \
    }

#define DCOMMI_SIMD_PAIR_END(ISA, KIND, FINISH)                                   \
    DCOMMI_##ISA##_INLINE dcommi_##ISA##_##KIND dcommi_##ISA##_##KIND##_##FINISH( \
        dcommi_##ISA##_##KIND a, double scalar)                                   \
    {                                                                             \
        a.lo = dcommi_##ISA##_f32_##FINISH(a.lo, scalar);                         \
        a.hi = dcommi_##ISA##_f32_##FINISH(a.hi, scalar);                         \
        return a;                                                                 \
    }

#define DCOMMI_SIMD_PAIR(ISA, KIND)         \
    DCOMMI_SIMD_PAIR_OP(ISA, KIND, add)     \
    DCOMMI_SIMD_PAIR_OP(ISA, KIND, mul)     \
    DCOMMI_SIMD_PAIR_OP(ISA, KIND, least)   \
    DCOMMI_SIMD_PAIR_OP(ISA, KIND, most)    \
    DCOMMI_SIMD_PAIR_END(ISA, KIND, finish) \
    DCOMMI_SIMD_PAIR_END(ISA, KIND, scale)

/* Integer lanes in the order that DCOMMI_FOLD_TABLE names them. */
#define DCOMMI_SIMD_INTS(ISA, A, U, BITS)                                  \
    DCOMMI_SIMD_FOLD(ISA, U##_sum, int, dcommi_##ISA##_add##BITS, finish)  \
    DCOMMI_SIMD_FOLD(ISA, U##_prod, int, dcommi_##ISA##_mul##BITS, finish) \
    DCOMMI_SIMD_FOLD(ISA, U##_min, int, dcommi_##ISA##_min_##U, finish)    \
    DCOMMI_SIMD_FOLD(ISA, U##_max, int, dcommi_##ISA##_max_##U, finish)    \
    DCOMMI_SIMD_FOLD(ISA, A##_min, int, dcommi_##ISA##_min_##A, finish)    \
    DCOMMI_SIMD_FOLD(ISA, A##_max, int, dcommi_##ISA##_max_##A, finish)

#endif

#define DCOMMI_avx2_TARGET __attribute__((target("avx2,f16c")))
#define DCOMMI_avx2_INLINE DCOMMI_avx2_TARGET __attribute__((always_inline)) static inline

typedef __m256i dcommi_avx2_raw;
typedef __m256i dcommi_avx2_int;
typedef __m256 dcommi_avx2_f32;
typedef __m256d dcommi_avx2_f64;
typedef struct dcommi_avx2_pair {
    __m256 lo, hi;
} dcommi_avx2_pair;
typedef dcommi_avx2_pair dcommi_avx2_f16;
typedef dcommi_avx2_pair dcommi_avx2_bf16;

DCOMMI_avx2_INLINE __m256i dcommi_avx2_load(const unsigned char *p)
{
    return _mm256_loadu_si256((const __m256i *)(const void *)p);
}

DCOMMI_avx2_INLINE void dcommi_avx2_store(unsigned char *p, __m256i v)
{
    _mm256_storeu_si256((__m256i *)(void *)p, v);
}

DCOMMI_avx2_INLINE void dcommi_avx2_stream(unsigned char *p, __m256i v)
{
    _mm256_stream_si256((__m256i *)(void *)p, v);
}

/* The lines of four vectors. */
DCOMMI_avx2_INLINE void dcommi_avx2_ahead(const unsigned char *at)
{
    const char *p = (const char *)at;
    _mm_prefetch(p, _MM_HINT_T1);
    _mm_prefetch(p + 64, _MM_HINT_T1);
}

/* 1 <= n <= 32 bytes; the rest of the vector is zero. */
DCOMMI_avx2_INLINE __m256i dcommi_avx2_load_part(const unsigned char *p, size_t n)
{
    if (n == sizeof(__m256i)) {
        return dcommi_avx2_load(p);
    }
    unsigned char whole[sizeof(__m256i)] = {0};
    memcpy(whole, p, n);
    return dcommi_avx2_load(whole);
}

DCOMMI_avx2_INLINE void dcommi_avx2_store_part(unsigned char *p, size_t n, __m256i v)
{
    if (n == sizeof(__m256i)) {
        dcommi_avx2_store(p, v);
        return;
    }
    unsigned char whole[sizeof(__m256i)];
    dcommi_avx2_store(whole, v);
    memcpy(p, whole, n);
}

/* ---- f32, f64 ---- */

#define DCOMMI_AVX2_FLOAT(KIND, VEC, PS, NAN_BITS, SET, INT_SET, SCALAR)                \
    DCOMMI_avx2_INLINE VEC dcommi_avx2_##KIND##_unpack(__m256i v)                       \
    {                                                                                   \
        return _mm256_castsi256_##PS(v);                                                \
    }                                                                                   \
    DCOMMI_avx2_INLINE __m256i dcommi_avx2_##KIND##_pack(VEC v)                         \
    {                                                                                   \
        return _mm256_cast##PS##_si256(v);                                              \
    }                                                                                   \
    DCOMMI_avx2_INLINE VEC dcommi_avx2_##KIND##_add(VEC a, VEC b)                       \
    {                                                                                   \
        return _mm256_add_##PS(a, b);                                                   \
    }                                                                                   \
    DCOMMI_avx2_INLINE VEC dcommi_avx2_##KIND##_mul(VEC a, VEC b)                       \
    {                                                                                   \
        return _mm256_mul_##PS(a, b);                                                   \
    }                                                                                   \
    /* See cpu_avx512.h. */                                                             \
    DCOMMI_avx2_INLINE VEC dcommi_avx2_##KIND##_least(VEC a, VEC b)                     \
    {                                                                                   \
        return _mm256_or_##PS(_mm256_min_##PS(a, b), _mm256_min_##PS(b, a));            \
    }                                                                                   \
    DCOMMI_avx2_INLINE VEC dcommi_avx2_##KIND##_most(VEC a, VEC b)                      \
    {                                                                                   \
        VEC most = _mm256_and_##PS(_mm256_max_##PS(a, b), _mm256_max_##PS(b, a));       \
        return _mm256_or_##PS(most, _mm256_cmp_##PS(a, b, _CMP_UNORD_Q));               \
    }                                                                                   \
    DCOMMI_avx2_INLINE VEC dcommi_avx2_##KIND##_canonical(VEC v)                        \
    {                                                                                   \
        return _mm256_blendv_##PS(v, _mm256_castsi256_##PS(INT_SET(NAN_BITS)),          \
                                  _mm256_cmp_##PS(v, v, _CMP_UNORD_Q));                 \
    }                                                                                   \
    DCOMMI_avx2_INLINE VEC dcommi_avx2_##KIND##_finish(VEC v, double divisor)           \
    {                                                                                   \
        if (divisor > 1) {                                                              \
            v = _mm256_div_##PS(v, SET((SCALAR)divisor));                               \
        }                                                                               \
        return dcommi_avx2_##KIND##_canonical(v);                                       \
    }                                                                                   \
    DCOMMI_avx2_INLINE VEC dcommi_avx2_##KIND##_scale(VEC v, double factor)             \
    {                                                                                   \
        return dcommi_avx2_##KIND##_canonical(_mm256_mul_##PS(v, SET((SCALAR)factor))); \
    }

DCOMMI_AVX2_FLOAT(f32, __m256, ps, (int)DCOMMI_F32_NAN, _mm256_set1_ps, _mm256_set1_epi32, float)
DCOMMI_AVX2_FLOAT(f64, __m256d, pd, (long long)DCOMMI_F64_NAN, _mm256_set1_pd, _mm256_set1_epi64x,
                  double)
DCOMMI_SIMD_FLOAT(avx2, f32)
DCOMMI_SIMD_FLOAT(avx2, f64)

/* ---- 16-bit floats; a fold ends in canonical NaNs, which rounding leaves as they are ---- */

DCOMMI_avx2_INLINE dcommi_avx2_pair dcommi_avx2_f16_unpack(__m256i v)
{
    dcommi_avx2_pair r = {_mm256_cvtph_ps(_mm256_castsi256_si128(v)),
                          _mm256_cvtph_ps(_mm256_extracti128_si256(v, 1))};
    return r;
}

DCOMMI_avx2_INLINE __m256i dcommi_avx2_f16_pack(dcommi_avx2_pair v)
{
    __m128i lo = _mm256_cvtps_ph(v.lo, _MM_FROUND_TO_NEAREST_INT);
    __m128i hi = _mm256_cvtps_ph(v.hi, _MM_FROUND_TO_NEAREST_INT);
    return _mm256_inserti128_si256(_mm256_castsi128_si256(lo), hi, 1);
}

/* lo: the even elements, hi: the odd ones, which stay where they are. */
DCOMMI_avx2_INLINE dcommi_avx2_pair dcommi_avx2_bf16_unpack(__m256i v)
{
    dcommi_avx2_pair r = {
        _mm256_castsi256_ps(_mm256_slli_epi32(v, 16)),
        _mm256_castsi256_ps(_mm256_and_si256(v, _mm256_set1_epi32((int)0xffff0000u)))};
    return r;
}

DCOMMI_avx2_INLINE __m256i dcommi_avx2_bf16_round(__m256 x)
{
    __m256i v = _mm256_castps_si256(x);
    __m256i odd = _mm256_and_si256(_mm256_srli_epi32(v, 16), _mm256_set1_epi32(1));
    return _mm256_add_epi32(v, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
}

DCOMMI_avx2_INLINE __m256i dcommi_avx2_bf16_pack(dcommi_avx2_pair v)
{
    __m256i lo = _mm256_srli_epi32(dcommi_avx2_bf16_round(v.lo), 16);
    return _mm256_blend_epi16(dcommi_avx2_bf16_round(v.hi), lo, 0x55);
}

DCOMMI_SIMD_PAIR(avx2, f16)
DCOMMI_SIMD_PAIR(avx2, bf16)
DCOMMI_SIMD_FLOAT(avx2, f16)
DCOMMI_SIMD_FLOAT(avx2, bf16)

/* ---- integers ---- */

DCOMMI_avx2_INLINE __m256i dcommi_avx2_int_unpack(__m256i v)
{
    return v;
}

DCOMMI_avx2_INLINE __m256i dcommi_avx2_int_pack(__m256i v)
{
    return v;
}

DCOMMI_avx2_INLINE __m256i dcommi_avx2_int_finish(__m256i v, double scalar)
{
    (void)scalar;
    return v;
}

DCOMMI_avx2_INLINE __m256i dcommi_avx2_mul8(__m256i a, __m256i b)
{
    __m256i even = _mm256_mullo_epi16(a, b);
    __m256i odd = _mm256_mullo_epi16(_mm256_srli_epi16(a, 8), _mm256_srli_epi16(b, 8));
    return _mm256_blendv_epi8(_mm256_slli_epi16(odd, 8), even, _mm256_set1_epi16(0x00ff));
}

DCOMMI_avx2_INLINE __m256i dcommi_avx2_mul64(__m256i a, __m256i b)
{
    __m256i cross = _mm256_add_epi64(_mm256_mul_epu32(_mm256_srli_epi64(a, 32), b),
                                     _mm256_mul_epu32(a, _mm256_srli_epi64(b, 32)));
    return _mm256_add_epi64(_mm256_mul_epu32(a, b), _mm256_slli_epi64(cross, 32));
}

/* All ones where a > b. AVX2 compares 64-bit lanes as signed ones only. */
DCOMMI_avx2_INLINE __m256i dcommi_avx2_more_i64(__m256i a, __m256i b)
{
    return _mm256_cmpgt_epi64(a, b);
}

DCOMMI_avx2_INLINE __m256i dcommi_avx2_more_u64(__m256i a, __m256i b)
{
    __m256i top = _mm256_set1_epi64x(INT64_MIN);
    return _mm256_cmpgt_epi64(_mm256_xor_si256(a, top), _mm256_xor_si256(b, top));
}

#define DCOMMI_AVX2_OP(NAME, RESULT)                                    \
    DCOMMI_avx2_INLINE __m256i dcommi_avx2_##NAME(__m256i a, __m256i b) \
    {                                                                   \
        return RESULT;                                                  \
    }

DCOMMI_AVX2_OP(add8, _mm256_add_epi8(a, b))
DCOMMI_AVX2_OP(add32, _mm256_add_epi32(a, b))
DCOMMI_AVX2_OP(add64, _mm256_add_epi64(a, b))
DCOMMI_AVX2_OP(mul32, _mm256_mullo_epi32(a, b))
DCOMMI_AVX2_OP(min_i8, _mm256_min_epi8(a, b))
DCOMMI_AVX2_OP(min_u8, _mm256_min_epu8(a, b))
DCOMMI_AVX2_OP(min_i32, _mm256_min_epi32(a, b))
DCOMMI_AVX2_OP(min_u32, _mm256_min_epu32(a, b))
DCOMMI_AVX2_OP(min_i64, _mm256_blendv_epi8(a, b, dcommi_avx2_more_i64(a, b)))
DCOMMI_AVX2_OP(min_u64, _mm256_blendv_epi8(a, b, dcommi_avx2_more_u64(a, b)))
DCOMMI_AVX2_OP(max_i8, _mm256_max_epi8(a, b))
DCOMMI_AVX2_OP(max_u8, _mm256_max_epu8(a, b))
DCOMMI_AVX2_OP(max_i32, _mm256_max_epi32(a, b))
DCOMMI_AVX2_OP(max_u32, _mm256_max_epu32(a, b))
DCOMMI_AVX2_OP(max_i64, _mm256_blendv_epi8(b, a, dcommi_avx2_more_i64(a, b)))
DCOMMI_AVX2_OP(max_u64, _mm256_blendv_epi8(b, a, dcommi_avx2_more_u64(a, b)))

DCOMMI_SIMD_INTS(avx2, i8, u8, 8)
DCOMMI_SIMD_INTS(avx2, i32, u32, 32)
DCOMMI_SIMD_INTS(avx2, i64, u64, 64)

static const dcommi_fold_fn dcommi_avx2_folds[10][DCOMMI_FOLD_KINDS] = DCOMMI_FOLD_TABLE(avx2);

#endif
/* ==== kernels/cpu_avx512.h ================================================================= */
/* cpu_avx512.h - lanes of the SIMD folds for AVX-512 (F, BW, VL, DQ). */
#ifndef DCOMMI_CPU_AVX512_H
#define DCOMMI_CPU_AVX512_H


#define DCOMMI_avx512_TARGET __attribute__((target("avx2,f16c,avx512f,avx512bw,avx512vl,avx512dq")))
#define DCOMMI_avx512_INLINE DCOMMI_avx512_TARGET __attribute__((always_inline)) static inline

typedef __m512i dcommi_avx512_raw;
typedef __m512i dcommi_avx512_int;
typedef __m512 dcommi_avx512_f32;
typedef __m512d dcommi_avx512_f64;
typedef struct dcommi_avx512_pair {
    __m512 lo, hi;
} dcommi_avx512_pair;
typedef dcommi_avx512_pair dcommi_avx512_f16;
typedef dcommi_avx512_pair dcommi_avx512_bf16;

DCOMMI_avx512_INLINE __m512i dcommi_avx512_load(const unsigned char *p)
{
    return _mm512_loadu_si512(p);
}

DCOMMI_avx512_INLINE void dcommi_avx512_store(unsigned char *p, __m512i v)
{
    _mm512_storeu_si512(p, v);
}

DCOMMI_avx512_INLINE void dcommi_avx512_stream(unsigned char *p, __m512i v)
{
    _mm512_stream_si512((__m512i *)(void *)p, v);
}

/* The lines of four vectors. */
DCOMMI_avx512_INLINE void dcommi_avx512_ahead(const unsigned char *at)
{
    const char *p = (const char *)at;
    _mm_prefetch(p, _MM_HINT_T1);
    _mm_prefetch(p + 64, _MM_HINT_T1);
    _mm_prefetch(p + 128, _MM_HINT_T1);
    _mm_prefetch(p + 192, _MM_HINT_T1);
}

/* 1 <= n <= 64 bytes; the rest of the vector is zero. */
DCOMMI_avx512_INLINE __m512i dcommi_avx512_load_part(const unsigned char *p, size_t n)
{
    return _mm512_maskz_loadu_epi8(~(__mmask64)0 >> (64 - n), p);
}

DCOMMI_avx512_INLINE void dcommi_avx512_store_part(unsigned char *p, size_t n, __m512i v)
{
    _mm512_mask_storeu_epi8(p, ~(__mmask64)0 >> (64 - n), v);
}

/* ---- f32, f64 ---- */

#define DCOMMI_AVX512_FLOAT(KIND, VEC, PS, NAN_BITS, SET, INT_SET, SCALAR)                    \
    DCOMMI_avx512_INLINE VEC dcommi_avx512_##KIND##_unpack(__m512i v)                         \
    {                                                                                         \
        return _mm512_castsi512_##PS(v);                                                      \
    }                                                                                         \
    DCOMMI_avx512_INLINE __m512i dcommi_avx512_##KIND##_pack(VEC v)                           \
    {                                                                                         \
        return _mm512_cast##PS##_si512(v);                                                    \
    }                                                                                         \
    DCOMMI_avx512_INLINE VEC dcommi_avx512_##KIND##_add(VEC a, VEC b)                         \
    {                                                                                         \
        return _mm512_add_##PS(a, b);                                                         \
    }                                                                                         \
    DCOMMI_avx512_INLINE VEC dcommi_avx512_##KIND##_mul(VEC a, VEC b)                         \
    {                                                                                         \
        return _mm512_mul_##PS(a, b);                                                         \
    }                                                                                         \
    /* min gives its second operand when the two are zeros or one is a NaN: the union of both \
     * orders has the sign of -0, and is a NaN if one was. */                                 \
    DCOMMI_avx512_INLINE VEC dcommi_avx512_##KIND##_least(VEC a, VEC b)                       \
    {                                                                                         \
        return _mm512_or_##PS(_mm512_min_##PS(a, b), _mm512_min_##PS(b, a));                  \
    }                                                                                         \
    DCOMMI_avx512_INLINE VEC dcommi_avx512_##KIND##_most(VEC a, VEC b)                        \
    {                                                                                         \
        VEC most = _mm512_and_##PS(_mm512_max_##PS(a, b), _mm512_max_##PS(b, a));             \
        return _mm512_mask_mov_##PS(most, _mm512_cmp_##PS##_mask(a, b, _CMP_UNORD_Q),         \
                                    _mm512_castsi512_##PS(INT_SET(NAN_BITS)));                \
    }                                                                                         \
    DCOMMI_avx512_INLINE VEC dcommi_avx512_##KIND##_canonical(VEC v)                          \
    {                                                                                         \
        return _mm512_mask_mov_##PS(v, _mm512_cmp_##PS##_mask(v, v, _CMP_UNORD_Q),            \
                                    _mm512_castsi512_##PS(INT_SET(NAN_BITS)));                \
    }                                                                                         \
    DCOMMI_avx512_INLINE VEC dcommi_avx512_##KIND##_finish(VEC v, double divisor)             \
    {                                                                                         \
        if (divisor > 1) {                                                                    \
            v = _mm512_div_##PS(v, SET((SCALAR)divisor));                                     \
        }                                                                                     \
        return dcommi_avx512_##KIND##_canonical(v);                                           \
    }                                                                                         \
    DCOMMI_avx512_INLINE VEC dcommi_avx512_##KIND##_scale(VEC v, double factor)               \
    {                                                                                         \
        return dcommi_avx512_##KIND##_canonical(_mm512_mul_##PS(v, SET((SCALAR)factor)));     \
    }

DCOMMI_AVX512_FLOAT(f32, __m512, ps, (int)DCOMMI_F32_NAN, _mm512_set1_ps, _mm512_set1_epi32, float)
DCOMMI_AVX512_FLOAT(f64, __m512d, pd, (long long)DCOMMI_F64_NAN, _mm512_set1_pd, _mm512_set1_epi64,
                    double)
DCOMMI_SIMD_FLOAT(avx512, f32)
DCOMMI_SIMD_FLOAT(avx512, f64)

/* ---- 16-bit floats; a fold ends in canonical NaNs, which rounding leaves as they are ---- */

DCOMMI_avx512_INLINE dcommi_avx512_pair dcommi_avx512_f16_unpack(__m512i v)
{
    dcommi_avx512_pair r = {_mm512_cvtph_ps(_mm512_castsi512_si256(v)),
                            _mm512_cvtph_ps(_mm512_extracti64x4_epi64(v, 1))};
    return r;
}

DCOMMI_avx512_INLINE __m512i dcommi_avx512_f16_pack(dcommi_avx512_pair v)
{
    __m256i lo = _mm512_cvtps_ph(v.lo, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    __m256i hi = _mm512_cvtps_ph(v.hi, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    return _mm512_inserti64x4(_mm512_castsi256_si512(lo), hi, 1);
}

/* lo: the even elements, hi: the odd ones, which stay where they are. */
DCOMMI_avx512_INLINE dcommi_avx512_pair dcommi_avx512_bf16_unpack(__m512i v)
{
    dcommi_avx512_pair r = {
        _mm512_castsi512_ps(_mm512_slli_epi32(v, 16)),
        _mm512_castsi512_ps(_mm512_and_si512(v, _mm512_set1_epi32((int)0xffff0000u)))};
    return r;
}

DCOMMI_avx512_INLINE __m512i dcommi_avx512_bf16_round(__m512 x)
{
    __m512i v = _mm512_castps_si512(x);
    __m512i odd = _mm512_and_si512(_mm512_srli_epi32(v, 16), _mm512_set1_epi32(1));
    return _mm512_add_epi32(v, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
}

DCOMMI_avx512_INLINE __m512i dcommi_avx512_bf16_pack(dcommi_avx512_pair v)
{
    __m512i lo = _mm512_srli_epi32(dcommi_avx512_bf16_round(v.lo), 16);
    return _mm512_mask_mov_epi16(dcommi_avx512_bf16_round(v.hi), 0x55555555u, lo);
}

DCOMMI_SIMD_PAIR(avx512, f16)
DCOMMI_SIMD_PAIR(avx512, bf16)
DCOMMI_SIMD_FLOAT(avx512, f16)
DCOMMI_SIMD_FLOAT(avx512, bf16)

/* ---- integers ---- */

DCOMMI_avx512_INLINE __m512i dcommi_avx512_int_unpack(__m512i v)
{
    return v;
}

DCOMMI_avx512_INLINE __m512i dcommi_avx512_int_pack(__m512i v)
{
    return v;
}

DCOMMI_avx512_INLINE __m512i dcommi_avx512_int_finish(__m512i v, double scalar)
{
    (void)scalar;
    return v;
}

DCOMMI_avx512_INLINE __m512i dcommi_avx512_mul8(__m512i a, __m512i b)
{
    __m512i even = _mm512_mullo_epi16(a, b);
    __m512i odd = _mm512_mullo_epi16(_mm512_srli_epi16(a, 8), _mm512_srli_epi16(b, 8));
    return _mm512_mask_mov_epi8(_mm512_slli_epi16(odd, 8), 0x5555555555555555u, even);
}

#define DCOMMI_AVX512_OP(NAME, INTRINSIC)                                   \
    DCOMMI_avx512_INLINE __m512i dcommi_avx512_##NAME(__m512i a, __m512i b) \
    {                                                                       \
        return INTRINSIC(a, b);                                             \
    }

DCOMMI_AVX512_OP(add8, _mm512_add_epi8)
DCOMMI_AVX512_OP(add32, _mm512_add_epi32)
DCOMMI_AVX512_OP(add64, _mm512_add_epi64)
DCOMMI_AVX512_OP(mul32, _mm512_mullo_epi32)
DCOMMI_AVX512_OP(mul64, _mm512_mullo_epi64)
DCOMMI_AVX512_OP(min_i8, _mm512_min_epi8)
DCOMMI_AVX512_OP(min_u8, _mm512_min_epu8)
DCOMMI_AVX512_OP(min_i32, _mm512_min_epi32)
DCOMMI_AVX512_OP(min_u32, _mm512_min_epu32)
DCOMMI_AVX512_OP(min_i64, _mm512_min_epi64)
DCOMMI_AVX512_OP(min_u64, _mm512_min_epu64)
DCOMMI_AVX512_OP(max_i8, _mm512_max_epi8)
DCOMMI_AVX512_OP(max_u8, _mm512_max_epu8)
DCOMMI_AVX512_OP(max_i32, _mm512_max_epi32)
DCOMMI_AVX512_OP(max_u32, _mm512_max_epu32)
DCOMMI_AVX512_OP(max_i64, _mm512_max_epi64)
DCOMMI_AVX512_OP(max_u64, _mm512_max_epu64)

DCOMMI_SIMD_INTS(avx512, i8, u8, 8)
DCOMMI_SIMD_INTS(avx512, i32, u32, 32)
DCOMMI_SIMD_INTS(avx512, i64, u64, 64)

static const dcommi_fold_fn dcommi_avx512_folds[10][DCOMMI_FOLD_KINDS] = DCOMMI_FOLD_TABLE(avx512);

#endif

#include <cpuid.h>
#endif

typedef enum dcommi_isa {
    DCOMMI_ISA_PORTABLE = 0,
    DCOMMI_ISA_AVX2 = 1,
    DCOMMI_ISA_AVX512 = 2,
    DCOMMI_ISA_COUNT = 3
} dcommi_isa;

static const char *const dcommi_isa_names[DCOMMI_ISA_COUNT] = {"portable", "avx2", "avx512"};

/* The best that the processor and the operating system carry. */
static dcommi_isa dcommi_isa_best(void)
{
#if defined(__x86_64__)
    unsigned a, b, c, d;
    bool f16c = __get_cpuid(1, &a, &b, &c, &d) != 0 && (c & bit_F16C) != 0;
    if (f16c && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq")) {
        return DCOMMI_ISA_AVX512;
    }
    if (f16c && __builtin_cpu_supports("avx2")) {
        return DCOMMI_ISA_AVX2;
    }
#endif
    return DCOMMI_ISA_PORTABLE;
}

static _Atomic int dcommi_isa_chosen = -1;

/* Use this one; the best when it is unknown or cannot run here. Returns what is used. */
static dcommi_isa dcommi_isa_force(int wanted)
{
    dcommi_isa best = dcommi_isa_best();
    dcommi_isa isa = wanted >= 0 && wanted <= (int)best ? (dcommi_isa)wanted : best;
    atomic_store_explicit(&dcommi_isa_chosen, (int)isa, memory_order_relaxed);
    return isa;
}

/* DCOMM_ISA=portable|avx2|avx512 forces one. */
static dcommi_isa dcommi_isa_get(void)
{
    int known = atomic_load_explicit(&dcommi_isa_chosen, memory_order_relaxed);
    if (DCOMMI_LIKELY(known >= 0)) {
        return (dcommi_isa)known;
    }
    const char *name = getenv("DCOMM_ISA");
    int wanted = DCOMMI_ISA_COUNT - 1;
    while (name != NULL && wanted >= 0 && strcmp(name, dcommi_isa_names[wanted]) != 0) {
        wanted--;
    }
    dcommi_isa isa = dcommi_isa_force(wanted);
    if (name != NULL && (int)isa != wanted) {
        static atomic_flag warned = ATOMIC_FLAG_INIT;
        if (!atomic_flag_test_and_set(&warned)) {
            dcommi_log(DCOMMI_LOG_WARN, "DCOMM_ISA=%s is %s; using %s", name,
                       wanted < 0 ? "not known (portable, avx2, avx512)" : "not available here",
                       dcommi_isa_names[isa]);
        }
    }
    return isa;
}

static dcommi_fold_fn dcommi_fold_get(dcomm_dtype dtype, dcommi_fold_kind kind)
{
    switch (dcommi_isa_get()) {
#if defined(__x86_64__)
    case DCOMMI_ISA_AVX512:
        return dcommi_avx512_folds[dtype][kind];
    case DCOMMI_ISA_AVX2:
        return dcommi_avx2_folds[dtype][kind];
#endif
    default:
        return dcommi_port_folds[dtype][kind];
    }
}

#endif

/* Outputs from this length on are stored past the caches: they would only push out what else is
 * there, and each line of them would first be read from memory. Shorter ones are soon read again,
 * by a send or the next step. */
#define DCOMMI_STREAM_MIN ((size_t)4 << 20)
/* One or two sources from this length on are asked for ahead of time; below it, and with more
 * streams, the processor's own prefetching is better left alone (measured on Zen 5). */
#define DCOMMI_AHEAD_MIN ((size_t)16 << 20)
/* From here on a vector loop copies faster than the `rep movsb` of glibc's memcpy. */
#define DCOMMI_COPY_MIN ((size_t)512 << 10)
#define DCOMMI_AVERAGE_BLOCK 16384 /* bytes folded before they are divided */
#define DCOMMI_AVERAGE_GROUP 16    /* operands folded at once */
#define DCOMMI_BYTE_VALUES 256
#define DCOMMI_USER_BLOCK 4096 /* bytes; a multiple of every element's */

static unsigned dcommi_fold_how(const unsigned char *dst, const unsigned char *const *src,
                                size_t nsrc, size_t len, size_t element)
{
    unsigned how = DCOMMI_FOLD_STREAM;
    if (len < DCOMMI_STREAM_MIN || (uintptr_t)dst % element != 0) {
        how = 0;
    }
    for (size_t s = 0; how != 0 && s < nsrc; s++) {
        if (src[s] == dst) { /* its lines are in the cache anyway */
            how = 0;
        }
    }
    if (nsrc <= 2 && len >= DCOMMI_AHEAD_MIN && dcommi_isa_get() == DCOMMI_ISA_AVX512) {
        how |= DCOMMI_FOLD_AHEAD;
    }
    return how;
}

static void dcommi_host_copy(void *dst, const void *src, size_t len)
{
    if (dst == src || len == 0) {
        return;
    }
    if (len < DCOMMI_COPY_MIN || dcommi_isa_get() == DCOMMI_ISA_PORTABLE) {
        memcpy(dst, src, len);
        return;
    }
    /* The sum of one operand of bytes. */
    const unsigned char *in = src;
    unsigned how = len >= DCOMMI_STREAM_MIN ? DCOMMI_FOLD_STREAM | DCOMMI_FOLD_AHEAD : 0;
    dcommi_fold_get(DCOMM_U8, DCOMMI_FOLD_SUM)(dst, &in, 1, len, 0, how);
}

#define DCOMMI_DIVIDE(NAME, TYPE, WIDE)                                             \
    static void dcommi_divide_##NAME(unsigned char *p, size_t len, int64_t divisor) \
    {                                                                               \
        WIDE by = (WIDE)divisor;                                                    \
        for (size_t i = 0; i + sizeof(TYPE) <= len; i += sizeof(TYPE)) {            \
            TYPE x;                                                                 \
            memcpy(&x, p + i, sizeof x);                                            \
            x = (TYPE)((WIDE)x / by);                                               \
            memcpy(p + i, &x, sizeof x);                                            \
        }                                                                           \
    }

/* Up to 32 bits, the f64 quotient is never rounded up to a whole number, and it vectorizes. */
DCOMMI_DIVIDE(i8, int8_t, double)
DCOMMI_DIVIDE(u8, uint8_t, double)
DCOMMI_DIVIDE(i32, int32_t, double)
DCOMMI_DIVIDE(u32, uint32_t, double)
DCOMMI_DIVIDE(i64, int64_t, int64_t)
DCOMMI_DIVIDE(u64, uint64_t, uint64_t)

static void dcommi_divide(unsigned char *p, size_t len, dcomm_dtype dtype, int64_t divisor)
{
    static void (*const divide[DCOMM_DTYPE_COUNT])(unsigned char *, size_t, int64_t) = {
        [DCOMM_I8] = dcommi_divide_i8,   [DCOMM_U8] = dcommi_divide_u8,
        [DCOMM_I32] = dcommi_divide_i32, [DCOMM_U32] = dcommi_divide_u32,
        [DCOMM_I64] = dcommi_divide_i64, [DCOMM_U64] = dcommi_divide_u64,
    };
    /* A byte has few quotients: looking them up is several times faster. */
    if (dcomm_dtype_size(dtype) == 1 && len > DCOMMI_BYTE_VALUES) {
        unsigned char quotient[DCOMMI_BYTE_VALUES];
        for (int i = 0; i < DCOMMI_BYTE_VALUES; i++) {
            quotient[i] = (unsigned char)i;
        }
        divide[dtype](quotient, sizeof quotient, divisor);
        for (size_t i = 0; i < len; i++) {
            p[i] = quotient[p[i]];
        }
        return;
    }
    divide[dtype](p, len, divisor);
}

/* An integer average is folded and divided block by block, while the block is in the cache. */
static void dcommi_host_average(unsigned char *dst, const unsigned char *const *src, size_t nsrc,
                                size_t len, dcomm_dtype dtype, dcommi_fold_fn fold, int64_t divisor)
{
    const unsigned char *at[DCOMMI_AVERAGE_GROUP];
    for (size_t done = 0, n = 0; done < len; done += n) {
        n = len - done < DCOMMI_AVERAGE_BLOCK ? len - done : DCOMMI_AVERAGE_BLOCK;
        unsigned char sum[DCOMMI_AVERAGE_BLOCK];
        /* In groups: the sum is exact modulo 2^width, so the grouping does not show. */
        for (size_t s = 0; s < nsrc;) {
            size_t k = 0;
            if (s > 0) {
                at[k++] = sum;
            }
            while (k < DCOMMI_AVERAGE_GROUP && s < nsrc) {
                at[k++] = src[s++] + done;
            }
            fold(sum, at, k, n, 0, 0);
        }
        dcommi_divide(sum, n, dtype, divisor);
        memcpy(dst + done, sum, n);
    }
}

static void dcommi_host_user(unsigned char *dst, const unsigned char *const *src, size_t nsrc,
                             size_t len, dcomm_dtype dtype, dcomm_op_fn fn, void *user)
{
    size_t element = dcomm_dtype_size(dtype);
    _Alignas(DCOMMI_CACHE_LINE) unsigned char acc[DCOMMI_USER_BLOCK];
    for (size_t done = 0, n = 0; done < len; done += n) {
        n = len - done < sizeof acc ? len - done : sizeof acc;
        memcpy(acc, src[0] + done, n);
        for (size_t s = 1; s < nsrc; s++) {
            fn(src[s] + done, acc, n / element, dtype, user);
        }
        memcpy(dst + done, acc, n);
    }
}

static dcomm_status dcommi_host_reduce(void *dst, const void *const *src, size_t nsrc, size_t count,
                                       dcomm_dtype dtype, dcomm_op op, int64_t divisor)
{
    size_t element = dcomm_dtype_size(dtype);
    size_t len;
    if (element == 0 || nsrc == 0 || __builtin_mul_overflow(count, element, &len)) {
        return dcommi_fail(DCOMM_ERR_INVALID, "reduce of %zu operands of %zu elements of dtype %d",
                           nsrc, count, (int)dtype);
    }
    unsigned char *out = dst;
    const unsigned char *const *in = (const unsigned char *const *)src;
    dcommi_fold_kind kind = DCOMMI_FOLD_SUM;
    switch (op) {
    case DCOMM_SUM:
    case DCOMM_AVG:
    case DCOMM_PREMUL_SUM:
        break;
    case DCOMM_PROD:
        kind = DCOMMI_FOLD_PROD;
        break;
    case DCOMM_MIN:
        kind = DCOMMI_FOLD_MIN;
        break;
    case DCOMM_MAX:
        kind = DCOMMI_FOLD_MAX;
        break;
    default: {
        void *user;
        dcomm_op_fn fn = dcommi_user_op_find(op, &user);
        if (fn == NULL || divisor > 1) {
            return dcommi_fail(DCOMM_ERR_INVALID, "reduce with operator %d%s", (int)op,
                               fn == NULL ? ", which does not exist" : " cannot divide");
        }
        dcommi_host_user(out, in, nsrc, len, dtype, fn, user);
        return DCOMM_OK;
    }
    }
    if (len == 0) {
        return DCOMM_OK;
    }
    if (nsrc == 1 && divisor <= 1) {
        dcommi_host_copy(dst, src[0], len);
        return DCOMM_OK;
    }
    dcommi_fold_fn fold = dcommi_fold_get(dtype, kind);
    if (divisor > 1 && dtype > DCOMM_BF16) {
        dcommi_host_average(out, in, nsrc, len, dtype, fold, divisor);
        return DCOMM_OK;
    }
    fold(out, in, nsrc, len, divisor > 1 ? (double)divisor : 0,
         dcommi_fold_how(out, in, nsrc, len, element));
    return DCOMM_OK;
}

static void dcommi_host_scale(void *dst, const void *src, size_t count, dcomm_dtype dtype,
                              double factor)
{
    size_t len = count * dcomm_dtype_size(dtype);
    const unsigned char *in = src;
    if (len > 0) {
        dcommi_fold_get(dtype, DCOMMI_FOLD_SCALE)(
            dst, &in, 1, len, factor, dcommi_fold_how(dst, &in, 1, len, dcomm_dtype_size(dtype)));
    }
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

/* ==== include/dcomm/impl/groups.h ========================================================== */
/* groups.h - who is near whom, as algorithms, the model and the choice see it. Every rank of a
 * communicator has the same table. */
#ifndef DCOMMI_GROUPS_H
#define DCOMMI_GROUPS_H


#define DCOMMI_LEVELS_MAX 6

/* What the ranks of one group share. */
enum dcommi_level_kind {
    DCOMMI_LEVEL_HOST,
    DCOMMI_LEVEL_PACKAGE,
    DCOMMI_LEVEL_NUMA,
    DCOMMI_LEVEL_CACHE,
    DCOMMI_LEVEL_CORE
};

/* Level 0 is the coarsest; each group lies within one group of the level above. Groups of a level
 * are numbered from 0 in the order of their lowest rank. */
typedef struct dcommi_groups {
    int nranks, nlevels;
    uint8_t kind[DCOMMI_LEVELS_MAX];
    int32_t count[DCOMMI_LEVELS_MAX]; /* groups of each level */
    int32_t *order;                   /* [nranks]: all ranks, each group's next to each other */
    int32_t *group;                   /* [nlevels * nranks]: the group of each rank */
} dcommi_groups;

static inline int32_t dcommi_group_of(const dcommi_groups *g, int level, int rank)
{
    return g->group[level * g->nranks + rank];
}

/* At how many levels two ranks are in the same group: 0, different hosts. */
static inline int dcommi_groups_depth(const dcommi_groups *g, int a, int b)
{
    int level = 0;
    while (level < g->nlevels && dcommi_group_of(g, level, a) == dcommi_group_of(g, level, b)) {
        level++;
    }
    return level;
}

static void dcommi_groups_free(dcommi_groups **g_p)
{
    dcommi_free(*g_p);
    *g_p = NULL;
}

/* From any numbers that say which ranks share something: ids[l * nranks + r], coarsest first. A
 * group is split where the level above is; a level that divides no group of the level above, but
 * for level 0, is left out. One block of memory; NULL without it. */
static dcommi_groups *dcommi_groups_make(int nranks, int nlevels, const uint8_t *kinds,
                                         const int64_t *ids)
{
    size_t n = (size_t)nranks, table = (size_t)nlevels * n;
    dcommi_groups *g = dcommi_alloc(sizeof *g + (n + table) * sizeof(int32_t));
    if (g == NULL) {
        return NULL;
    }
    g->nranks = nranks;
    g->order = (int32_t *)(g + 1);
    g->group = g->order + n;
    for (int l = 0; l < nlevels && g->nlevels < DCOMMI_LEVELS_MAX; l++) {
        int32_t *now = g->group + (size_t)g->nlevels * n, count = 0;
        const int32_t *above = g->nlevels > 0 ? now - n : NULL;
        for (int r = 0; r < nranks; r++) {
            now[r] = -1;
            for (int q = 0; q < r && now[r] < 0; q++) {
                bool same = ids[(size_t)l * n + (size_t)q] == ids[(size_t)l * n + (size_t)r] &&
                            (above == NULL || above[q] == above[r]);
                now[r] = same ? now[q] : -1;
            }
            now[r] = now[r] < 0 ? count++ : now[r];
        }
        if (above == NULL || count > g->count[g->nlevels - 1]) {
            g->kind[g->nlevels] = kinds[l];
            g->count[g->nlevels++] = count;
        }
    }
    /* Insertion keeps the ranks of a group together at every level, each in the order of ranks. */
    for (int r = 0; r < nranks; r++) {
        int at = r, best = -1;
        for (int i = 0; i < r; i++) {
            int depth = dcommi_groups_depth(g, g->order[i], r);
            if (depth >= best) {
                best = depth;
                at = i + 1;
            }
        }
        memmove(g->order + at + 1, g->order + at, (size_t)(r - at) * sizeof *g->order);
        g->order[at] = (int32_t)r;
    }
    return g;
}

/* The groups of a part of the ranks: members[i] is the parent's rank of rank i. */
static dcommi_groups *dcommi_groups_restrict(const dcommi_groups *parent, const int *members, int n)
{
    int64_t *ids = dcommi_calloc((size_t)n * (size_t)parent->nlevels + 1, sizeof *ids);
    if (ids == NULL) {
        return NULL;
    }
    for (int l = 0; l < parent->nlevels; l++) {
        for (int i = 0; i < n; i++) {
            ids[l * n + i] = dcommi_group_of(parent, l, members[i]);
        }
    }
    dcommi_groups *g = dcommi_groups_make(n, parent->nlevels, parent->kind, ids);
    dcommi_free(ids);
    return g;
}

#endif

/* What the engine executes and the checker accepts. */
#define DCOMMI_FOLD_MAX 8   /* sources of one RECV_REDUCE or COMPUTE */
#define DCOMMI_CALL_DEPTH 8 /* sub-plans within sub-plans, the outermost plan included */

/* All that an algorithm may know about a call. */
typedef struct dcommi_shape {
    dcomm_coll coll;
    int rank, nranks, root;
    dcomm_dtype dtype;
    dcomm_op op;
    size_t count;        /* the collective's own count argument, elements */
    bool in_place;       /* the input lies in OUT, where the collective's rules put it */
    bool rank_order;     /* fold in rank order or refuse */
    int lanes;           /* parallel instances, >= 1 */
    int64_t chunk_bytes; /* pipelining grain, 0: the algorithm's own default */
    const dcommi_groups *groups; /* who is near whom; NULL: nothing is known */
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

/* table[first + (base + coef * i[depth]) mod m] */
static inline dcomm_expr dcommi_lookup(int64_t first, int64_t base, int depth, int64_t coef,
                                       int64_t mod)
{
    dcomm_expr e = {.kind = DCOMM_EXPR_TABLE, .scale = 1, .base = base, .mod = mod, .first = first};
    e.coef[depth] = coef;
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
                                          "larger chunk_bytes",
                                          b->head.name));
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
        x = table[e->first + x];
    } else if (e->kind == DCOMM_EXPR_WORD) {
        x = (int64_t)words[e->first + x];
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
/* ==== include/dcomm/impl/print.h =========================================================== */
/* print.h - a plan as text that people read: lanes, indented loops, places as formulas. */
#ifndef DCOMMI_PRINT_H
#define DCOMMI_PRINT_H


/* Text that goes on counting when the buffer is full. */
typedef struct dcommi_print_text {
    char *buf;
    size_t len, used;
} dcommi_print_text;

static void DCOMMI_PRINTF(2, 3) dcommi_print_add(dcommi_print_text *t, const char *format, ...)
{
    size_t room = t->used < t->len ? t->len - t->used : 0;
    va_list args;
    va_start(args, format);
    int n = vsnprintf(room > 0 ? t->buf + t->used : NULL, room, format, args);
    va_end(args);
    t->used += n > 0 ? (size_t)n : 0;
}

static const char *dcommi_print_index(int depth)
{
    static const char *const names[DCOMM_LOOP_DEPTH] = {"i", "j", "k"};
    return names[depth];
}

/* factor * name, as a term of a sum. */
static void dcommi_print_term(dcommi_print_text *t, int64_t factor, const char *name, bool *first)
{
    if (factor == 0) {
        return;
    }
    const char *sign = factor < 0 ? "-" : *first ? "" : "+";
    uint64_t size = factor < 0 ? 0 - (uint64_t)factor : (uint64_t)factor;
    if (name[0] != '\0' && size == 1) {
        dcommi_print_add(t, "%s%s", sign, name);
    } else if (name[0] != '\0') {
        dcommi_print_add(t, "%s%" PRIu64 "*%s", sign, size, name);
    } else {
        dcommi_print_add(t, "%s%" PRIu64, sign, size);
    }
    *first = false;
}

static void dcommi_print_linear(dcommi_print_text *t, int64_t add, const int64_t *factor)
{
    bool first = true;
    bool leads = add > 0; /* a positive constant before what is subtracted from it */
    if (leads) {
        dcommi_print_term(t, add, "", &first);
    }
    for (int d = 0; d < DCOMM_LOOP_DEPTH; d++) {
        dcommi_print_term(t, factor[d], dcommi_print_index(d), &first);
    }
    if (!leads) {
        dcommi_print_term(t, add, "", &first);
    }
    if (first) {
        dcommi_print_add(t, "0");
    }
}

static void dcommi_print_x(dcommi_print_text *t, const dcomm_expr *e)
{
    if (e->mod != 0) {
        dcommi_print_add(t, "(");
    }
    dcommi_print_linear(t, e->base, e->coef);
    if (e->mod != 0) {
        dcommi_print_add(t, ") mod %" PRId64, e->mod);
    }
}

static void dcommi_print_expr(dcommi_print_text *t, const dcomm_expr *e)
{
    static const int64_t none[DCOMM_LOOP_DEPTH];
    bool looks_up = e->kind == DCOMM_EXPR_TABLE || e->kind == DCOMM_EXPR_WORD;
    if (e->kind == DCOMM_EXPR_CONST) {
        dcommi_print_add(t, "%" PRId64, e->add);
        return;
    }
    if (e->kind > DCOMM_EXPR_WORD) {
        dcommi_print_add(t, "?");
        return;
    }
    bool rest = e->add != 0 || memcmp(e->post, none, sizeof none) != 0;
    if (e->scale != 0) {
        if (e->scale != 1) {
            dcommi_print_add(t, "%" PRId64 "*", e->scale);
        }
        dcommi_print_add(t, "%s",
                         e->kind == DCOMM_EXPR_TABLE  ? "table["
                         : e->kind == DCOMM_EXPR_WORD ? "words["
                                                      : "(");
        if (looks_up && e->first != 0) {
            dcommi_print_add(t, "%" PRId64 "+", e->first);
        }
        dcommi_print_x(t, e);
        dcommi_print_add(t, looks_up ? "]" : ")");
    }
    if (e->scale != 0 && rest) {
        dcommi_print_add(t, " + ");
    }
    if (e->scale == 0 || rest) {
        dcommi_print_linear(t, e->add, e->post);
    }
}

static const char *dcommi_print_space(unsigned space)
{
    static const char *const names[] = {"none",  "IN",    "OUT",  "SCRATCH",
                                        "STATE", "WORDS", "PEER", "message"};
    return space < sizeof names / sizeof names[0] ? names[space] : "?";
}

static void dcommi_print_operand(dcommi_print_text *t, const dcomm_operand *o)
{
    dcommi_print_add(t, "%s", dcommi_print_space(o->space));
    if (o->space == DCOMM_SPACE_NONE || o->space == DCOMM_SPACE_MSG) {
        return;
    }
    if (o->space == DCOMM_SPACE_PEER) {
        dcommi_print_add(t, "(");
        dcommi_print_expr(t, &o->peer);
        dcommi_print_add(t, " slot %d)", o->slot);
    }
    dcommi_print_add(t, "[");
    dcommi_print_expr(t, &o->offset);
    dcommi_print_add(t, ", ");
    dcommi_print_expr(t, &o->length);
    if (o->length.kind != DCOMM_EXPR_CONST || o->length.add != o->max_length) {
        dcommi_print_add(t, " <= %" PRId64, o->max_length);
    }
    if (o->clip > 0) {
        dcommi_print_add(t, ", clip %" PRId64, o->clip);
    }
    dcommi_print_add(t, "]");
    if (o->repeat > 1) {
        dcommi_print_add(t, " x%" PRIu32 " every %" PRId64, o->repeat, o->stride);
    }
}

static void dcommi_print_sources(dcommi_print_text *t, const dcomm_plan *p, const dcomm_step *s)
{
    if (s->src > p->noperands || p->noperands - s->src < s->nsrc) {
        dcommi_print_add(t, "?");
        return;
    }
    for (uint32_t i = 0; i < s->nsrc; i++) {
        dcommi_print_add(t, "%s", i > 0 ? " (+) " : "");
        dcommi_print_operand(t, &p->operands[s->src + i]);
    }
}

static void dcommi_print_peer(dcommi_print_text *t, const char *word, const dcomm_expr *peer)
{
    if (peer->kind == DCOMM_EXPR_CONST && peer->add == DCOMM_ALL_PEERS) {
        dcommi_print_add(t, " %s all", word);
    } else {
        dcommi_print_add(t, " %s ", word);
        dcommi_print_expr(t, peer);
    }
}

static void dcommi_print_call(dcommi_print_text *t, const dcomm_plan *p, const dcomm_step *s)
{
    const dcomm_plan *sub = s->sub < p->nsubs ? p->subs[s->sub] : NULL;
    dcommi_print_add(t, " sub %" PRIu32, s->sub);
    if (sub == NULL) {
        return;
    }
    dcommi_print_add(t, " \"%s\" ranks (", sub->name != NULL ? sub->name : "");
    for (int i = 0; i < sub->nranks && s->group < p->ntable && (uint32_t)i < p->ntable - s->group;
         i++) {
        dcommi_print_add(t, "%s%" PRId64, i > 0 ? " " : "", p->table[s->group + (uint32_t)i]);
    }
    dcommi_print_add(t, ") IN = ");
    dcommi_print_sources(t, p, s);
    dcommi_print_add(t, ", OUT = ");
    dcommi_print_operand(t, &s->dst);
    dcommi_print_add(t, ", tags + ");
    dcommi_print_expr(t, &s->tag);
}

static void dcommi_print_step(dcommi_print_text *t, const dcomm_plan *p, const dcomm_step *s,
                              int depth)
{
    static const char *const names[] = {
#define DCOMMI_PRINT_STEP(kind, name) name,
        DCOMM_STEP_TABLE(DCOMMI_PRINT_STEP)
#undef DCOMMI_PRINT_STEP
    };
    if (s->kind >= DCOMM_STEP_KIND_COUNT) {
        dcommi_print_add(t, "kind %d?", s->kind);
        return;
    }
    dcommi_print_add(t, "%s", names[s->kind]);
    bool tagged = false;
    switch (s->kind) {
    case DCOMM_STEP_SEND:
        dcommi_print_add(t, " ");
        dcommi_print_sources(t, p, s);
        dcommi_print_peer(t, "to", &s->peer);
        tagged = true;
        break;
    case DCOMM_STEP_RECV:
        dcommi_print_add(t, " ");
        dcommi_print_operand(t, &s->dst);
        dcommi_print_peer(t, "from", &s->peer);
        tagged = true;
        break;
    case DCOMM_STEP_RECV_REDUCE:
        dcommi_print_add(t, " ");
        dcommi_print_operand(t, &s->dst);
        dcommi_print_add(t, " <- ");
        dcommi_print_sources(t, p, s);
        dcommi_print_peer(t, "from", &s->peer);
        tagged = true;
        break;
    case DCOMM_STEP_EXPOSE:
        dcommi_print_add(t, " ");
        dcommi_print_sources(t, p, s);
        dcommi_print_add(t, " as slot %d", s->slot);
        dcommi_print_peer(t, "to", &s->peer);
        break;
    case DCOMM_STEP_SIGNAL:
        dcommi_print_add(t, " counter %d", s->slot);
        dcommi_print_peer(t, "of", &s->peer);
        dcommi_print_add(t, " by ");
        dcommi_print_expr(t, &s->value);
        break;
    case DCOMM_STEP_WAIT:
        dcommi_print_add(t, " counter %d >= ", s->slot);
        dcommi_print_expr(t, &s->value);
        break;
    case DCOMM_STEP_LOOP:
        dcommi_print_add(t, " %s < ", depth < DCOMM_LOOP_DEPTH ? dcommi_print_index(depth) : "?");
        dcommi_print_expr(t, &s->value);
        break;
    case DCOMM_STEP_CALL:
        dcommi_print_call(t, p, s);
        break;
    case DCOMM_STEP_FENCE:
    case DCOMM_STEP_END:
        break;
    default: /* the steps with a destination and sources */
        dcommi_print_add(t, " ");
        dcommi_print_operand(t, &s->dst);
        dcommi_print_add(t, " <- ");
        dcommi_print_sources(t, p, s);
        if (s->kind == DCOMM_STEP_COMPUTE) {
            dcommi_print_add(t, " by kernel %d", s->kernel);
        }
        break;
    }
    if (tagged) {
        dcommi_print_add(t, ", tag ");
        dcommi_print_expr(t, &s->tag);
    }
    if ((s->kind == DCOMM_STEP_RECV || s->kind == DCOMM_STEP_ENCODE) && s->word >= 0) {
        dcommi_print_add(t, ", length -> words[%d]", s->word);
    }
    dcommi_print_add(t, "%s%s", (s->flags & DCOMM_STEP_ASYNC) != 0 ? " ASYNC" : "",
                     (s->flags & DCOMM_STEP_FINAL) != 0 ? " FINAL" : "");
}

dcomm_status dcomm_plan_print(const dcomm_plan *p, char *buf, size_t len, size_t *needed_p)
{
    if (p == NULL || (buf == NULL && len > 0)) {
        return dcommi_fail(DCOMM_ERR_INVALID, "dcomm_plan_print: %s is NULL",
                           p == NULL ? "plan" : "buf");
    }
    dcommi_print_text t = {buf, len, 0};
    dcommi_print_add(
        &t, "plan \"%s\" rank %d of %d, %s %s: IN %" PRId64 ", OUT %" PRId64 ", SCRATCH %" PRId64,
        p->name != NULL ? p->name : "", p->rank, p->nranks, dcomm_op_name((dcomm_op)p->op),
        dcomm_dtype_name((dcomm_dtype)p->dtype), p->in_bytes, p->out_bytes, p->scratch_bytes);
    if (p->state_bytes > 0) {
        dcommi_print_add(&t, ", STATE %" PRId64, p->state_bytes);
    }
    dcommi_print_add(
        &t,
        " bytes; %" PRIu32 " tags, %" PRIu32 " counters, %" PRIu32 " slots, %" PRIu32 " words%s\n",
        p->ntags, p->ncounters, p->nslots, p->nwords, p->next != NULL ? "; a stage follows" : "");
    for (uint32_t i = 0; i < p->nlanes; i++) {
        const dcomm_lane *lane = &p->lanes[i];
        int depth = 0;
        dcommi_print_add(&t, "lane %" PRIu32 "\n", i);
        if (lane->first > p->nsteps || p->nsteps - lane->first < lane->count) {
            dcommi_print_add(&t, "  ?\n");
            continue;
        }
        for (uint32_t k = 0; k < lane->count; k++) {
            const dcomm_step *s = &p->steps[lane->first + k];
            depth -= s->kind == DCOMM_STEP_END && depth > 0;
            dcommi_print_add(&t, "%4" PRIu32 "  %*s", k, 2 * (depth < 8 ? depth : 8), "");
            dcommi_print_step(&t, p, s, depth);
            dcommi_print_add(&t, "\n");
            depth += s->kind == DCOMM_STEP_LOOP;
        }
    }
    if (needed_p != NULL) {
        *needed_p = t.used;
    }
    return DCOMM_OK;
}

#endif
/* ==== include/dcomm/impl/check.h =========================================================== */
/* check.h - the plan checker: executes all ranks' plans together on symbolic contributions.
 *
 * Messages are matched by (source, destination, tag), so what meets what does not depend on timing,
 * and one execution that goes as far as it can decides whether there is a deadlock. Order is proved
 * by vector clocks: a race that this execution happens to survive is found all the same. Waiting
 * on counters needs to know which signals may come early, so executions are repeated, each with the
 * orders that the one before has proved, until nothing is missing or nothing is added.
 *
 * Lengths that are known at run time only are tried at their maximum, at 0, 1 and at random; words
 * that come out of the caller's data count as such. A stage after the first is checked where the
 * words that it is made from are known (lengths received, constants); where they are data, only the
 * stages before it are, without their results. */
#ifndef DCOMMI_CHECK_H
#define DCOMMI_CHECK_H

/* ==== include/dcomm/impl/check_stage.h ===================================================== */
/* check_stage.h - the stages of a run in the plan checker: what each starts from, who has heard of
 * whom at its end, which plans come next. */
#ifndef DCOMMI_CHECK_STAGE_H
#define DCOMMI_CHECK_STAGE_H

/* ==== include/dcomm/impl/check_lane.h ====================================================== */
/* check_lane.h - how the plan checker executes lanes: loops, fences, calls of sub-plans, and what
 * to say when nothing can go on. */
#ifndef DCOMMI_CHECK_LANE_H
#define DCOMMI_CHECK_LANE_H

/* ==== include/dcomm/impl/check_step.h ====================================================== */
/* check_step.h - what one step does when the plan checker executes it: local steps, messages,
 * signals. */
#ifndef DCOMMI_CHECK_STEP_H
#define DCOMMI_CHECK_STEP_H

/* ==== include/dcomm/impl/check_value.h ===================================================== */
/* check_value.h - the plan checker's arithmetic: expressions, where operands lie, what a fold, an
 * encoding or a message does to the contributions. */
#ifndef DCOMMI_CHECK_VALUE_H
#define DCOMMI_CHECK_VALUE_H

/* ==== include/dcomm/impl/check_state.h ===================================================== */
/* check_state.h - the plan checker's picture of a run: ranks, lanes, vector clocks, messages,
 * counters, what is exposed. */
#ifndef DCOMMI_CHECK_STATE_H
#define DCOMMI_CHECK_STATE_H

/* ==== include/dcomm/impl/check_mem.h ======================================================= */
/* check_mem.h - what the plan checker knows of memory: for each run of bytes, whose contributions
 * it holds, and which steps have touched it. */
#ifndef DCOMMI_CHECK_MEM_H
#define DCOMMI_CHECK_MEM_H


#define DCOMMI_CHECK_RANKS 64 /* contributions are sets of ranks in one 64-bit word */

typedef enum dcommi_check_kind {
    DCOMMI_CHECK_UNDEF = 0, /* nothing was written here */
    DCOMMI_CHECK_SUM,       /* fold of input byte `src` of every rank in `mask` */
    DCOMMI_CHECK_ENCODED,   /* byte `src` of encoding number `mask` */
    DCOMMI_CHECK_ZERO,      /* words at the start of a run */
    DCOMMI_CHECK_WORD,      /* the 64-bit number `src` */
    DCOMMI_CHECK_OPAQUE     /* defined, but nothing is known of it */
} dcommi_check_kind;

#define DCOMMI_CHECK_DIVIDED 1u /* a FINAL fold made it */
#define DCOMMI_CHECK_ORDERED 2u /* a left fold of ranks 0, 1, 2, ... (or one contribution) */

typedef struct dcommi_check_value {
    uint8_t kind, flags;
    uint64_t mask;
    int64_t src;
} dcommi_check_value;

typedef struct dcommi_check_run {
    int64_t len;
    dcommi_check_value v;
} dcommi_check_run;

typedef struct dcommi_check_runs {
    dcommi_check_run *run;
    size_t n, capacity;
} dcommi_check_runs;

/* A step that touches memory. Each lane has two components in the vector clocks: its steps, and
 * its fences. What an ASYNC step touches counts as touched at the lane's next fence, so that it is
 * ordered before nothing earlier. */
typedef struct dcommi_check_who {
    const uint32_t *vc; /* what is known to lie before the step */
    uint32_t comp, clock;
    uint32_t step; /* index in its plan, for messages */
} dcommi_check_who;

typedef struct dcommi_check_reader {
    uint32_t comp, clock, step;
    uint32_t next; /* index in the pool, 0: the end */
} dcommi_check_reader;

typedef struct dcommi_check_cell {
    int64_t start; /* ends where the next cell begins */
    dcommi_check_value v;
    uint32_t comp, clock, step; /* the last writer; clock 0: before the run */
    uint32_t readers;           /* those since then that nothing supersedes */
} dcommi_check_cell;

/* One space of one rank (or of one called sub-plan). */
typedef struct dcommi_check_mem {
    struct dcommi_check_mem *next;
    dcommi_check_cell *cell;
    size_t ncells, capacity;
    int64_t size;
    uint32_t *peer_last;    /* per component: the last read through PEER; NULL: none */
    const uint32_t *end_vc; /* a sub-plan's memory: what was known when its call returned */
    int rank;
    uint8_t space;
    bool read_only;
} dcommi_check_mem;

/* Two unordered accesses, as the memory finds them; the checker puts them into words. */
typedef struct dcommi_check_race {
    const dcommi_check_mem *mem;
    int64_t at;
    bool first_writes, second_writes;
    uint32_t comp, step; /* of the first */
} dcommi_check_race;

typedef struct dcommi_check_pool {
    dcommi_check_reader *reader;
    size_t n, capacity;
    uint32_t free;
} dcommi_check_pool;

static dcommi_check_value dcommi_check_shift(dcommi_check_value v, int64_t by)
{
    if (v.kind == DCOMMI_CHECK_SUM || v.kind == DCOMMI_CHECK_ENCODED) {
        v.src += by;
    } else if (v.kind == DCOMMI_CHECK_WORD && by != 0) {
        v.kind = DCOMMI_CHECK_OPAQUE;
    }
    return v;
}

/* Does b continue a, which is `len` bytes long? */
static bool dcommi_check_continues(const dcommi_check_value *a, int64_t len,
                                   const dcommi_check_value *b)
{
    if (a->kind != b->kind || a->flags != b->flags || a->kind == DCOMMI_CHECK_WORD) {
        return false;
    }
    if (a->kind == DCOMMI_CHECK_SUM || a->kind == DCOMMI_CHECK_ENCODED) {
        return a->mask == b->mask && a->src + len == b->src;
    }
    return true;
}

static dcomm_status dcommi_check_append(dcommi_check_runs *runs, int64_t len, dcommi_check_value v)
{
    if (len == 0) {
        return DCOMM_OK;
    }
    if (runs->n > 0) {
        dcommi_check_run *last = &runs->run[runs->n - 1];
        if (dcommi_check_continues(&last->v, last->len, &v)) {
            last->len += len;
            return DCOMM_OK;
        }
    }
    DCOMMI_TRY(dcommi_grow((void **)&runs->run, &runs->capacity, runs->n + 1, sizeof *runs->run));
    runs->run[runs->n].len = len;
    runs->run[runs->n].v = v;
    runs->n++;
    return DCOMM_OK;
}

/* ---- readers ---- */

static dcomm_status dcommi_check_reader_add(dcommi_check_pool *pool, uint32_t *list,
                                            dcommi_check_reader reader)
{
    uint32_t at = pool->free;
    if (at != 0) {
        pool->free = pool->reader[at].next;
    } else {
        pool->n += pool->n == 0;
        if (pool->n >= UINT32_MAX) {
            return dcommi_fail(DCOMM_ERR_NO_MEMORY, "too many reads to remember");
        }
        DCOMMI_TRY(dcommi_grow((void **)&pool->reader, &pool->capacity, pool->n + 1,
                               sizeof *pool->reader));
        at = (uint32_t)pool->n++;
    }
    reader.next = *list;
    pool->reader[at] = reader;
    *list = at;
    return DCOMM_OK;
}

static void dcommi_check_reader_drop(dcommi_check_pool *pool, uint32_t *list)
{
    uint32_t at = *list;
    *list = pool->reader[at].next;
    pool->reader[at].next = pool->free;
    pool->free = at;
}

/* ---- cells ---- */

static dcomm_status dcommi_check_mem_fill(dcommi_check_mem *mem, int64_t from, int64_t to,
                                          dcommi_check_value v)
{
    if (to <= from) {
        return DCOMM_OK;
    }
    DCOMMI_TRY(
        dcommi_grow((void **)&mem->cell, &mem->capacity, mem->ncells + 1, sizeof *mem->cell));
    dcommi_check_cell cell = {.start = from, .v = v};
    mem->cell[mem->ncells++] = cell;
    mem->size = to;
    return DCOMM_OK;
}

/* The cell that holds byte `at` (in [0, size)). */
static size_t dcommi_check_find(const dcommi_check_mem *mem, int64_t at)
{
    size_t low = 0, high = mem->ncells;
    while (high - low > 1) {
        size_t middle = low + (high - low) / 2;
        if (mem->cell[middle].start <= at) {
            low = middle;
        } else {
            high = middle;
        }
    }
    return low;
}

static int64_t dcommi_check_cell_end(const dcommi_check_mem *mem, size_t i)
{
    return i + 1 < mem->ncells ? mem->cell[i + 1].start : mem->size;
}

/* Make a cell begin at `at`; *index_p is that cell (ncells when `at` is the end). */
static dcomm_status dcommi_check_split(dcommi_check_mem *mem, dcommi_check_pool *pool, int64_t at,
                                       size_t *index_p)
{
    if (at >= mem->size) {
        *index_p = mem->ncells;
        return DCOMM_OK;
    }
    size_t i = dcommi_check_find(mem, at);
    *index_p = i;
    if (mem->cell[i].start == at) {
        return DCOMM_OK;
    }
    DCOMMI_TRY(
        dcommi_grow((void **)&mem->cell, &mem->capacity, mem->ncells + 1, sizeof *mem->cell));
    dcommi_check_cell *cell = mem->cell + i;
    memmove(cell + 1, cell, (mem->ncells - i) * sizeof *cell);
    mem->ncells++;
    cell[1].v = dcommi_check_shift(cell->v, at - cell->start);
    cell[1].start = at;
    cell[1].readers = 0;
    for (uint32_t r = cell->readers; r != 0; r = pool->reader[r].next) {
        DCOMMI_TRY(dcommi_check_reader_add(pool, &cell[1].readers, pool->reader[r]));
    }
    *index_p = i + 1;
    return DCOMM_OK;
}

/* Append what [at, at+len) holds to runs, without counting as a read. */
static dcomm_status dcommi_check_peek(const dcommi_check_mem *mem, int64_t at, int64_t len,
                                      dcommi_check_runs *runs)
{
    int64_t end = at + len;
    for (size_t i = len > 0 ? dcommi_check_find(mem, at) : 0; at < end; i++) {
        int64_t stop = dcommi_min64(end, dcommi_check_cell_end(mem, i));
        DCOMMI_TRY(dcommi_check_append(
            runs, stop - at, dcommi_check_shift(mem->cell[i].v, at - mem->cell[i].start)));
        at = stop;
    }
    return DCOMM_OK;
}

/* Is the step not known to come after (comp, clock)? A synchronous step comes after itself. */
static bool dcommi_check_unordered(const dcommi_check_who *who, uint32_t comp, uint32_t clock)
{
    bool self = comp == who->comp && clock == who->clock && comp % 2 == 0;
    return clock > who->vc[comp] && !self;
}

/* Read [at, at+len): remember the reader, note a race with an unordered writer, append the
 * values. */
static dcomm_status dcommi_check_read(dcommi_check_mem *mem, dcommi_check_pool *pool, int64_t at,
                                      int64_t len, const dcommi_check_who *who,
                                      dcommi_check_runs *runs, dcommi_check_race *race)
{
    if (len == 0) {
        return DCOMM_OK;
    }
    if (mem->read_only) {
        return dcommi_check_peek(mem, at, len, runs);
    }
    size_t first, last;
    DCOMMI_TRY(dcommi_check_split(mem, pool, at, &first));
    DCOMMI_TRY(dcommi_check_split(mem, pool, at + len, &last));
    for (size_t i = first; i < last; i++) {
        dcommi_check_cell *cell = &mem->cell[i];
        if (dcommi_check_unordered(who, cell->comp, cell->clock) && race->mem == NULL) {
            dcommi_check_race found = {mem, cell->start, true, false, cell->comp, cell->step};
            *race = found;
        }
        /* Whatever is after this read is also after the reads that lie before it. */
        bool known = false;
        for (uint32_t *r = &cell->readers; *r != 0;) {
            dcommi_check_reader *old = &pool->reader[*r];
            known = known || (old->comp == who->comp && old->clock == who->clock);
            if (old->clock <= who->vc[old->comp]) {
                dcommi_check_reader_drop(pool, r);
            } else {
                r = &old->next;
            }
        }
        dcommi_check_reader reader = {who->comp, who->clock, who->step, 0};
        if (!known) {
            DCOMMI_TRY(dcommi_check_reader_add(pool, &cell->readers, reader));
        }
    }
    return dcommi_check_peek(mem, at, len, runs);
}

/* Note a race of a coming write to [at, at+len) with what touched it before. Called before the
 * step's own reads are remembered, so that an asynchronous step does not race with itself. */
static dcomm_status dcommi_check_write_order(dcommi_check_mem *mem, dcommi_check_pool *pool,
                                             int64_t at, int64_t len, const dcommi_check_who *who,
                                             dcommi_check_race *race)
{
    size_t first, last;
    if (len == 0 || race->mem != NULL) {
        return DCOMM_OK;
    }
    DCOMMI_TRY(dcommi_check_split(mem, pool, at, &first));
    DCOMMI_TRY(dcommi_check_split(mem, pool, at + len, &last));
    for (size_t i = first; i < last; i++) {
        const dcommi_check_cell *cell = &mem->cell[i];
        if (dcommi_check_unordered(who, cell->comp, cell->clock)) {
            dcommi_check_race found = {mem, cell->start, true, true, cell->comp, cell->step};
            *race = found;
            return DCOMM_OK;
        }
        for (uint32_t r = cell->readers; r != 0; r = pool->reader[r].next) {
            const dcommi_check_reader *reader = &pool->reader[r];
            if (dcommi_check_unordered(who, reader->comp, reader->clock)) {
                dcommi_check_race found = {mem,  cell->start,  false,
                                           true, reader->comp, reader->step};
                *race = found;
                return DCOMM_OK;
            }
        }
    }
    return DCOMM_OK;
}

/* Put the runs (their lengths sum up to at most the rest of mem) at `at`. */
static dcomm_status dcommi_check_write(dcommi_check_mem *mem, dcommi_check_pool *pool, int64_t at,
                                       const dcommi_check_runs *runs, const dcommi_check_who *who)
{
    int64_t len = 0;
    for (size_t i = 0; i < runs->n; i++) {
        len += runs->run[i].len;
    }
    if (len == 0) {
        return DCOMM_OK;
    }
    size_t first, last;
    DCOMMI_TRY(dcommi_check_split(mem, pool, at, &first));
    DCOMMI_TRY(dcommi_check_split(mem, pool, at + len, &last));
    for (size_t i = first; i < last; i++) {
        while (mem->cell[i].readers != 0) {
            dcommi_check_reader_drop(pool, &mem->cell[i].readers);
        }
    }
    size_t ncells = mem->ncells - (last - first) + runs->n;
    DCOMMI_TRY(dcommi_grow((void **)&mem->cell, &mem->capacity, ncells, sizeof *mem->cell));
    memmove(mem->cell + first + runs->n, mem->cell + last,
            (mem->ncells - last) * sizeof *mem->cell);
    mem->ncells = ncells;
    for (size_t i = 0; i < runs->n; i++) {
        dcommi_check_cell cell = {at, runs->run[i].v, who->comp, who->clock, who->step, 0};
        mem->cell[first + i] = cell;
        at += runs->run[i].len;
    }
    return DCOMM_OK;
}

/* Forget who touched what: between stages. */
static void dcommi_check_mem_settle(dcommi_check_mem *mem)
{
    for (size_t i = 0; i < mem->ncells; i++) {
        mem->cell[i].clock = 0;
        mem->cell[i].comp = 0;
        mem->cell[i].readers = 0;
    }
    mem->peer_last = NULL;
}

#endif
/* ==== include/dcomm/impl/check_valid.h ===================================================== */
/* check_valid.h - is a plan well formed? Every index is in range, loops match, spaces fit the step,
 * sub-plans fit their caller. What depends on loop indices is checked when it is executed. */
#ifndef DCOMMI_CHECK_VALID_H
#define DCOMMI_CHECK_VALID_H


#define DCOMMI_CHECK_REPEAT 65536     /* pieces of one operand */
#define DCOMMI_CHECK_SUBPLANS 100000u /* validated in all, to bound shared ones */

#define DCOMMI_CHECK_BIT(space) (1u << DCOMM_SPACE_##space)
#define DCOMMI_CHECK_OWN                                                        \
    (DCOMMI_CHECK_BIT(IN) | DCOMMI_CHECK_BIT(OUT) | DCOMMI_CHECK_BIT(SCRATCH) | \
     DCOMMI_CHECK_BIT(STATE))
#define DCOMMI_CHECK_LOCAL (DCOMMI_CHECK_OWN | DCOMMI_CHECK_BIT(WORDS))
#define DCOMMI_CHECK_ANY (DCOMMI_CHECK_LOCAL | DCOMMI_CHECK_BIT(PEER))
#define DCOMMI_CHECK_RESULT \
    (DCOMMI_CHECK_BIT(OUT) | DCOMMI_CHECK_BIT(SCRATCH) | DCOMMI_CHECK_BIT(WORDS))
#define DCOMMI_CHECK_BYTES (DCOMMI_CHECK_BIT(OUT) | DCOMMI_CHECK_BIT(SCRATCH))

/* What a step kind may have. */
typedef struct dcommi_check_form {
    const char *name;
    unsigned dst, src; /* bits of spaces; dst 0: none */
    uint32_t src_min, src_max;
    bool async, repeats, messages;
} dcommi_check_form;

static const dcommi_check_form *dcommi_check_form_of(unsigned kind)
{
    static const dcommi_check_form forms[DCOMM_STEP_KIND_COUNT] = {
        [DCOMM_STEP_SEND] = {"send", 0, DCOMMI_CHECK_LOCAL, 1, 1, true, false, true},
        [DCOMM_STEP_RECV] = {"recv", DCOMMI_CHECK_RESULT, 0, 0, 0, true, false, true},
        [DCOMM_STEP_RECV_REDUCE] = {"recv_reduce", DCOMMI_CHECK_BYTES,
                                    DCOMMI_CHECK_OWN | DCOMMI_CHECK_BIT(MSG), 2, DCOMMI_FOLD_MAX,
                                    true, false, true},
        [DCOMM_STEP_COPY] = {"copy", DCOMMI_CHECK_RESULT, DCOMMI_CHECK_ANY, 1, 1, true, false,
                             false},
        [DCOMM_STEP_EXPOSE] = {"expose", 0, DCOMMI_CHECK_OWN, 1, 1, true, false, false},
        [DCOMM_STEP_REDUCE] = {"reduce", DCOMMI_CHECK_RESULT, DCOMMI_CHECK_ANY, 1, UINT32_MAX,
                               false, true, false},
        [DCOMM_STEP_ENCODE] = {"encode", DCOMMI_CHECK_BYTES, DCOMMI_CHECK_LOCAL, 1, 1, false, false,
                               false},
        [DCOMM_STEP_DECODE] = {"decode", DCOMMI_CHECK_BYTES, DCOMMI_CHECK_LOCAL, 1, 1, false, false,
                               false},
        [DCOMM_STEP_DECODE_REDUCE] = {"decode_reduce", DCOMMI_CHECK_BYTES, DCOMMI_CHECK_LOCAL, 1, 1,
                                      false, false, false},
        [DCOMM_STEP_COMMIT] = {"commit", DCOMMI_CHECK_BIT(STATE), DCOMMI_CHECK_LOCAL, 1, 1, false,
                               false, false},
        [DCOMM_STEP_COMPUTE] = {"compute", DCOMMI_CHECK_RESULT, DCOMMI_CHECK_LOCAL, 0,
                                DCOMMI_FOLD_MAX, false, false, false},
        [DCOMM_STEP_SIGNAL] = {"signal", 0, 0, 0, 0, false, false, false},
        [DCOMM_STEP_WAIT] = {"wait", 0, 0, 0, 0, false, false, false},
        [DCOMM_STEP_FENCE] = {"fence", 0, 0, 0, 0, false, false, false},
        [DCOMM_STEP_LOOP] = {"loop", 0, 0, 0, 0, false, false, false},
        [DCOMM_STEP_END] = {"end", 0, 0, 0, 0, false, false, false},
        [DCOMM_STEP_CALL] = {"call", DCOMMI_CHECK_BYTES | DCOMMI_CHECK_BIT(NONE),
                             DCOMMI_CHECK_OWN | DCOMMI_CHECK_BIT(NONE), 1, 1, false, false, false},
    };
    return &forms[kind];
}

static dcomm_status dcommi_check_expr_valid(const dcomm_plan *p, const dcomm_expr *e,
                                            const char *where, const char *what)
{
    if (e->kind > DCOMM_EXPR_WORD) {
        return dcommi_fail(DCOMM_ERR_PLAN, "%s: %s has expression kind %d", where, what, e->kind);
    }
    if (e->kind != DCOMM_EXPR_CONST && e->mod < 0) {
        return dcommi_fail(DCOMM_ERR_PLAN, "%s: %s is modulo %" PRId64, where, what, e->mod);
    }
    if ((e->kind == DCOMM_EXPR_TABLE && p->ntable == 0) ||
        (e->kind == DCOMM_EXPR_WORD && p->nwords == 0)) {
        return dcommi_fail(DCOMM_ERR_PLAN, "%s: %s reads a %s of an empty %s", where, what,
                           e->kind == DCOMM_EXPR_TABLE ? "value" : "word",
                           e->kind == DCOMM_EXPR_TABLE ? "table" : "WORDS space");
    }
    return DCOMM_OK;
}

static dcomm_status dcommi_check_operand_valid(const dcomm_plan *p, const dcomm_operand *o,
                                               unsigned allowed, bool repeats, const char *where,
                                               const char *what)
{
    if (o->space > DCOMM_SPACE_MSG || (allowed & (1u << o->space)) == 0) {
        return dcommi_fail(DCOMM_ERR_PLAN, "%s: %s may not be in %s (%d)", where, what,
                           dcommi_print_space(o->space), o->space);
    }
    if (o->space == DCOMM_SPACE_NONE || o->space == DCOMM_SPACE_MSG) {
        return DCOMM_OK;
    }
    if (o->max_length < 0 || o->clip < 0) {
        return dcommi_fail(DCOMM_ERR_PLAN, "%s: %s has max_length %" PRId64 ", clip %" PRId64,
                           where, what, o->max_length, o->clip);
    }
    if (o->repeat > (repeats ? DCOMMI_CHECK_REPEAT : 1u)) {
        return dcommi_fail(DCOMM_ERR_PLAN, "%s: %s has %" PRIu32 " pieces, more than %u", where,
                           what, o->repeat, repeats ? DCOMMI_CHECK_REPEAT : 1u);
    }
    DCOMMI_TRY(dcommi_check_expr_valid(p, &o->offset, where, what));
    DCOMMI_TRY(dcommi_check_expr_valid(p, &o->length, where, what));
    if (o->space == DCOMM_SPACE_PEER) {
        DCOMMI_TRY(dcommi_check_expr_valid(p, &o->peer, where, what));
        if (o->slot >= p->nslots) {
            return dcommi_fail(DCOMM_ERR_PLAN, "%s: %s is in slot %d of %" PRIu32, where, what,
                               o->slot, p->nslots);
        }
    }
    return DCOMM_OK;
}

static dcomm_status dcommi_check_call_valid(const dcomm_plan *p, const dcomm_step *s,
                                            const char *where)
{
    if (s->sub >= p->nsubs || p->subs[s->sub] == NULL) {
        return dcommi_fail(DCOMM_ERR_PLAN, "%s: there is no sub-plan %" PRIu32 " of %" PRIu32,
                           where, s->sub, p->nsubs);
    }
    const dcomm_plan *sub = p->subs[s->sub];
    if (sub->nranks < 1 || sub->nranks > p->nranks || sub->rank < 0 || sub->rank >= sub->nranks ||
        s->group > p->ntable || p->ntable - s->group < (uint32_t)sub->nranks) {
        return dcommi_fail(DCOMM_ERR_PLAN,
                           "%s: the group of %d ranks (this is %d) at table[%" PRIu32
                           "] does not fit %d ranks and %" PRIu32 " table values",
                           where, sub->nranks, sub->rank, s->group, p->nranks, p->ntable);
    }
    const int64_t *group = p->table + s->group;
    for (int i = 0; i < sub->nranks; i++) {
        if (group[i] < 0 || group[i] >= p->nranks) {
            return dcommi_fail(DCOMM_ERR_PLAN, "%s: rank %" PRId64 " in the group is none of %d",
                               where, group[i], p->nranks);
        }
        for (int j = 0; j < i; j++) {
            if (group[i] == group[j]) {
                return dcommi_fail(DCOMM_ERR_PLAN, "%s: rank %" PRId64 " is twice in the group",
                                   where, group[i]);
            }
        }
    }
    if (group[sub->rank] != p->rank) {
        return dcommi_fail(DCOMM_ERR_PLAN, "%s: rank %d of the group is %" PRId64 ", not %d", where,
                           sub->rank, group[sub->rank], p->rank);
    }
    int64_t slots = s->word > 0 ? s->word : 0;
    if (sub->ncounters > p->ncounters || s->slot > p->ncounters - sub->ncounters ||
        sub->nslots > p->nslots || slots > (int64_t)(p->nslots - sub->nslots)) {
        return dcommi_fail(DCOMM_ERR_PLAN,
                           "%s: counters %d+%" PRIu32 " of %" PRIu32 ", slots %" PRId64 "+%" PRIu32
                           " of %" PRIu32 ": the sub-plan's do not fit",
                           where, s->slot, sub->ncounters, p->ncounters, slots, sub->nslots,
                           p->nslots);
    }
    if (sub->next != NULL) {
        return dcommi_fail(DCOMM_ERR_PLAN, "%s: a sub-plan may not have stages", where);
    }
    return dcommi_check_expr_valid(p, &s->tag, where, "tag");
}

static dcomm_status dcommi_check_step_valid(const dcomm_plan *p, const dcomm_step *s,
                                            const char *where)
{
    const dcommi_check_form *form = dcommi_check_form_of(s->kind);
    if ((s->flags & ~(DCOMM_STEP_ASYNC | DCOMM_STEP_FINAL)) != 0 ||
        ((s->flags & DCOMM_STEP_ASYNC) != 0 && !form->async)) {
        return dcommi_fail(DCOMM_ERR_PLAN, "%s: flags 0x%x do not fit a %s", where, s->flags,
                           form->name);
    }
    if (s->src > p->noperands || p->noperands - s->src < s->nsrc) {
        return dcommi_fail(DCOMM_ERR_PLAN,
                           "%s: sources %" PRIu32 "+%" PRIu32 " of %" PRIu32 " operands", where,
                           s->src, s->nsrc, p->noperands);
    }
    if (s->nsrc < form->src_min || s->nsrc > form->src_max) {
        return dcommi_fail(DCOMM_ERR_PLAN, "%s: %" PRIu32 " sources", where, s->nsrc);
    }
    uint32_t arriving = 0;
    for (uint32_t i = 0; i < s->nsrc; i++) {
        const dcomm_operand *o = &p->operands[s->src + i];
        DCOMMI_TRY(dcommi_check_operand_valid(p, o, form->src, form->repeats, where, "the source"));
        arriving += o->space == DCOMM_SPACE_MSG;
    }
    if (form->dst != 0) {
        DCOMMI_TRY(
            dcommi_check_operand_valid(p, &s->dst, form->dst, false, where, "the destination"));
    }
    if (s->kind == DCOMM_STEP_RECV_REDUCE) {
        if (arriving != 1) {
            return dcommi_fail(DCOMM_ERR_PLAN, "%s: %" PRIu32 " sources are the message", where,
                               arriving);
        }
        DCOMMI_TRY(dcommi_check_operand_valid(p, &s->stage, DCOMMI_CHECK_BIT(SCRATCH), false, where,
                                              "the stage"));
    }
    bool peers = form->messages || s->kind == DCOMM_STEP_EXPOSE || s->kind == DCOMM_STEP_SIGNAL;
    if (peers) {
        DCOMMI_TRY(dcommi_check_expr_valid(p, &s->peer, where, "peer"));
    }
    if (form->messages) {
        DCOMMI_TRY(dcommi_check_expr_valid(p, &s->tag, where, "tag"));
    }
    switch (s->kind) {
    case DCOMM_STEP_RECV:
    case DCOMM_STEP_ENCODE:
        if (s->word < -1 || (s->word >= 0 && (uint32_t)s->word >= p->nwords)) {
            return dcommi_fail(DCOMM_ERR_PLAN, "%s: word %d of %" PRIu32, where, s->word,
                               p->nwords);
        }
        break;
    case DCOMM_STEP_EXPOSE:
        if (s->slot >= p->nslots) {
            return dcommi_fail(DCOMM_ERR_PLAN, "%s: slot %d of %" PRIu32, where, s->slot,
                               p->nslots);
        }
        break;
    case DCOMM_STEP_SIGNAL:
    case DCOMM_STEP_WAIT:
        if (s->slot >= p->ncounters) {
            return dcommi_fail(DCOMM_ERR_PLAN, "%s: counter %d of %" PRIu32, where, s->slot,
                               p->ncounters);
        }
        return dcommi_check_expr_valid(p, &s->value, where, "value");
    case DCOMM_STEP_LOOP:
        return dcommi_check_expr_valid(p, &s->value, where, "value");
    case DCOMM_STEP_COMPUTE:
        if (s->kernel >= p->nkernels) {
            return dcommi_fail(DCOMM_ERR_PLAN, "%s: kernel %d of %" PRIu32, where, s->kernel,
                               p->nkernels);
        }
        break;
    case DCOMM_STEP_CALL:
        return dcommi_check_call_valid(p, s, where);
    default:
        break;
    }
    bool codes = s->kind == DCOMM_STEP_ENCODE || s->kind == DCOMM_STEP_DECODE ||
                 s->kind == DCOMM_STEP_DECODE_REDUCE;
    if (codes && p->codec == NULL) {
        return dcommi_fail(DCOMM_ERR_PLAN, "%s: the plan has no codec", where);
    }
    return DCOMM_OK;
}

static dcomm_status dcommi_check_lane_valid(const dcomm_plan *p, uint32_t lane, const char *where)
{
    uint32_t open[DCOMM_LOOP_DEPTH];
    int depth = 0;
    const dcomm_lane *l = &p->lanes[lane];
    if (l->first > p->nsteps || p->nsteps - l->first < l->count) {
        return dcommi_fail(DCOMM_ERR_PLAN,
                           "%s lane %" PRIu32 ": steps %" PRIu32 "+%" PRIu32 " of %" PRIu32, where,
                           lane, l->first, l->count, p->nsteps);
    }
    for (uint32_t i = 0; i < l->count; i++) {
        const dcomm_step *s = &p->steps[l->first + i];
        char place[160];
        if (s->kind >= DCOMM_STEP_KIND_COUNT) {
            return dcommi_fail(DCOMM_ERR_PLAN, "%s lane %" PRIu32 " step %" PRIu32 ": kind %d",
                               where, lane, i, s->kind);
        }
        snprintf(place, sizeof place, "%s lane %" PRIu32 " step %" PRIu32 " (%s)", where, lane, i,
                 dcommi_check_form_of(s->kind)->name);
        DCOMMI_TRY(dcommi_check_step_valid(p, s, place));
        if (s->kind == DCOMM_STEP_LOOP) {
            if (depth == DCOMM_LOOP_DEPTH) {
                return dcommi_fail(DCOMM_ERR_PLAN, "%s: loops nest deeper than %d", place,
                                   DCOMM_LOOP_DEPTH);
            }
            open[depth++] = i;
        } else if (s->kind == DCOMM_STEP_END) {
            if (depth == 0) {
                return dcommi_fail(DCOMM_ERR_PLAN, "%s: no loop is open", place);
            }
            uint32_t body = i - open[--depth] - 1;
            if (s->body != body || p->steps[l->first + open[depth]].body != body) {
                return dcommi_fail(DCOMM_ERR_PLAN,
                                   "%s: its loop has %" PRIu32 " steps, not %" PRIu32
                                   " and %" PRIu32,
                                   place, body, p->steps[l->first + open[depth]].body, s->body);
            }
        }
    }
    if (depth != 0) {
        return dcommi_fail(DCOMM_ERR_PLAN, "%s lane %" PRIu32 " step %" PRIu32 " (loop): no end",
                           where, lane, open[depth - 1]);
    }
    return DCOMM_OK;
}

/* `where` names the plan in messages ("rank 2"); budget bounds how many sub-plans are looked at. */
static dcomm_status dcommi_check_plan_valid(const dcomm_plan *p, const char *where, int depth,
                                            uint32_t *budget)
{
    if (depth >= DCOMMI_CALL_DEPTH || *budget == 0) {
        return dcommi_fail(DCOMM_ERR_PLAN, "%s: sub-plans nest deeper than %d, or are too many",
                           where, DCOMMI_CALL_DEPTH);
    }
    --*budget;
    if (p->nlanes > DCOMM_PLAN_MAX_LANES || p->nslots > DCOMM_PLAN_MAX_SLOTS ||
        p->nwords > DCOMM_PLAN_MAX_WORDS || p->ncounters > UINT16_MAX + 1u) {
        return dcommi_fail(DCOMM_ERR_PLAN,
                           "%s: too many lanes (%" PRIu32 "), slots (%" PRIu32 "), words (%" PRIu32
                           ") or counters (%" PRIu32 ")",
                           where, p->nlanes, p->nslots, p->nwords, p->ncounters);
    }
    if (p->in_bytes < 0 || p->out_bytes < 0 || p->scratch_bytes < 0 || p->state_bytes < 0) {
        return dcommi_fail(DCOMM_ERR_PLAN,
                           "%s: a space has a negative size: IN %" PRId64 ", OUT %" PRId64
                           ", SCRATCH %" PRId64 ", STATE %" PRId64,
                           where, p->in_bytes, p->out_bytes, p->scratch_bytes, p->state_bytes);
    }
    if (p->dtype >= DCOMM_DTYPE_COUNT || p->op > DCOMM_OP_USER_MAX) {
        return dcommi_fail(DCOMM_ERR_PLAN, "%s: dtype %d, op %d", where, p->dtype, p->op);
    }
    if ((p->nlanes > 0 && p->lanes == NULL) || (p->nsteps > 0 && p->steps == NULL) ||
        (p->noperands > 0 && p->operands == NULL) || (p->ntable > 0 && p->table == NULL) ||
        (p->nsubs > 0 && p->subs == NULL) || (p->nkernels > 0 && p->kernels == NULL)) {
        return dcommi_fail(DCOMM_ERR_PLAN, "%s: a table of the plan is NULL", where);
    }
    for (uint32_t i = 0; i < p->nlanes; i++) {
        DCOMMI_TRY(dcommi_check_lane_valid(p, i, where));
    }
    for (uint32_t i = 0; i < p->nsubs; i++) {
        char place[96];
        if (p->subs[i] != NULL) {
            snprintf(place, sizeof place, "%.64s sub %" PRIu32, where, i);
            DCOMMI_TRY(dcommi_check_plan_valid(p->subs[i], place, depth + 1, budget));
        }
    }
    return DCOMM_OK;
}

/* Do lengths depend on the data? Then several are tried. */
static bool dcommi_check_expr_varies(const dcomm_expr *e)
{
    return e->kind == DCOMM_EXPR_WORD;
}

static bool dcommi_check_plan_varies(const dcomm_plan *p)
{
    for (uint32_t i = 0; i < p->noperands; i++) {
        if (dcommi_check_expr_varies(&p->operands[i].length)) {
            return true;
        }
    }
    for (uint32_t i = 0; i < p->nsteps; i++) {
        const dcomm_step *s = &p->steps[i];
        if (s->kind == DCOMM_STEP_ENCODE || dcommi_check_expr_varies(&s->dst.length) ||
            dcommi_check_expr_varies(&s->value)) {
            return true;
        }
    }
    for (uint32_t i = 0; i < p->nsubs; i++) {
        if (p->subs[i] != NULL && dcommi_check_plan_varies(p->subs[i])) {
            return true;
        }
    }
    return p->next != NULL;
}

#endif

#define DCOMMI_CHECK_BUDGET 50000000 /* steps and pieces executed before we give up */

/* What happened, for pictures. `level` counts the messages on the longest chain up to here. */
typedef struct dcommi_check_event {
    uint8_t kind;       /* dcomm_step_kind; a message is one event, of the receiver's kind */
    int16_t rank, peer; /* peer: sender, owner, or target of a signal; -1: none */
    int32_t lane, peer_lane;
    int32_t level;
    int64_t bytes, tag;
} dcommi_check_event;

typedef struct dcommi_check_trace {
    dcommi_check_event *event;
    size_t n, capacity;
} dcommi_check_trace;

/* A plan in execution: a rank's own, or a called sub-plan. */
typedef struct dcommi_check_frame {
    const dcomm_plan *plan;
    struct dcommi_check_lane *caller; /* NULL: the rank's own plan */
    const int *ranks;                 /* rank of the plan -> rank of the run */
    int rank;
    int64_t tag, counter, slot; /* added to the plan's own */
    dcommi_check_mem *mem[DCOMM_SPACE_MSG];
    int64_t base[DCOMM_SPACE_MSG], size[DCOMM_SPACE_MSG];
    uint32_t lanes_left;
    uint32_t *end_vc; /* join of the lanes that have ended */
    int32_t level;
} dcommi_check_frame;

/* A step under way. */
typedef struct dcommi_check_op {
    struct dcommi_check_op *next;    /* among the free ones */
    struct dcommi_check_op *pending; /* among the lane's asynchronous ones */
    struct dcommi_check_lane *lane;
    const dcomm_step *step;
    uint32_t at; /* index in its lane */
    int64_t index[DCOMM_LOOP_DEPTH];
    uint32_t *vc; /* the lane's, or its own when asynchronous */
    uint32_t comp, clock;
    int32_t level;
    int peer; /* rank of the run */
    int64_t tag;
    bool async;
} dcommi_check_op;

typedef struct dcommi_check_lane {
    dcommi_check_frame *frame;
    struct dcommi_check_lane *next_waiter; /* on the same counter, or the same rank's EXPOSE */
    struct dcommi_check_lane *all;         /* every lane of the stage, for deadlock reports */
    uint32_t number;                       /* in its plan */
    uint32_t pc;
    int depth;
    uint32_t open[DCOMM_LOOP_DEPTH];
    int64_t index[DCOMM_LOOP_DEPTH], trips[DCOMM_LOOP_DEPTH];
    uint32_t comp; /* of its steps; comp + 1 is of its fences */
    uint32_t *vc;
    uint32_t *async_vc; /* join of what its completed asynchronous steps have learnt */
    int32_t level, async_level;
    uint32_t outstanding;
    dcommi_check_op *pending;
    dcommi_check_op op; /* the synchronous step under way */
    bool blocked, done, at_fence;
    int64_t wants; /* WAIT: the value */
} dcommi_check_lane;

/* One lane's signals to one counter. */
typedef struct dcommi_check_source {
    uint32_t comp;
    struct dcommi_check_pulse {
        int64_t before; /* what this lane had added before it */
        const uint32_t *vc;
        int32_t level;
    } * pulse;
    size_t n, capacity;
    int64_t total;
} dcommi_check_source;

typedef struct dcommi_check_counter {
    int64_t total;
    dcommi_check_source *source;
    size_t nsources, capacity;
    dcommi_check_lane *waiters;
} dcommi_check_counter;

typedef struct dcommi_check_exposed {
    dcommi_check_mem *mem;
    int64_t at, len;
    const uint32_t *vc;
    int32_t level;
} dcommi_check_exposed;

typedef struct dcommi_check_message {
    uint64_t key; /* 0: free */
    dcommi_check_op *send, *recv;
    bool done;
} dcommi_check_message;

/* What an encoding encodes. */
typedef struct dcommi_check_encoding {
    int64_t len; /* encoded */
    dcommi_check_runs runs;
} dcommi_check_encoding;

typedef struct dcommi_check_component {
    int rank;
    uint32_t lane;
    uint32_t caller; /* component of the calling lane, UINT32_MAX: none */
} dcommi_check_component;

typedef struct dcommi_check_rank {
    const dcomm_plan *plan; /* of this stage */
    dcommi_check_mem *mem[DCOMM_SPACE_MSG];
    dcommi_check_frame *frame;
    dcommi_check_lane *peer_waiters; /* wait until this rank exposes something */
    dcommi_check_counter *counters;
    dcommi_check_exposed *exposed; /* [nslots][n]: by slot and reader */
    uint64_t heard;                /* ranks whose start lies before this rank's now */
    int64_t bytes;
} dcommi_check_rank;

/* The counters of one stage, kept from one pass to the next. */
typedef struct dcommi_check_log {
    dcommi_check_counter *counters[DCOMMI_CHECK_RANKS];
    uint32_t ncounters[DCOMMI_CHECK_RANKS];
} dcommi_check_log;

#define DCOMMI_CHECK_STAGES 64

typedef struct dcommi_check_block {
    struct dcommi_check_block *next;
    size_t used, size;
} dcommi_check_block;

typedef struct dcommi_check {
    const dcomm_plan *const *plans;
    int n;
    int identity[DCOMMI_CHECK_RANKS];
    uint64_t all; /* every rank */
    const dcomm_check_spec *spec;
    bool spec_holds; /* this scenario and all words known: results are checked */
    bool reduces, averages;
    int64_t element;
    int scenario;

    dcomm_status status; /* the first hard error; its text is the thread's last error */
    char finding[DCOMMI_MESSAGE_MAX]; /* the first missing order of this pass */
    int64_t budget;

    dcommi_check_block *blocks, *log_blocks; /* this pass's memory; that which logs live in */
    dcommi_check_mem *mems;
    dcommi_check_pool pool;
    dcommi_check_runs arrived, given, folded, merged; /* values under way */
    dcommi_check_encoding *encoding;
    size_t nencodings, encodings_capacity;

    dcommi_check_rank rank[DCOMMI_CHECK_RANKS];
    int stage;
    uint32_t ncomps;
    dcommi_check_component *comps;
    uint32_t **free_vc;
    size_t nfree_vc, free_vc_capacity;
    dcommi_check_op *free_ops;
    dcommi_check_lane *lanes; /* all of this stage */
    dcommi_check_lane *running;
    dcommi_check_lane **ready;
    size_t nready, ready_capacity;
    dcommi_check_message *message;
    size_t nmessages, messages_capacity;
    dcommi_check_log log[DCOMMI_CHECK_STAGES], old_log[DCOMMI_CHECK_STAGES];
    bool has_old_log, waited;
    uint64_t edges; /* how many signal -> wait edges this pass found, and which */

    int64_t messages, signals, total_bytes;
    int32_t steps;
    dcommi_check_trace *trace;
} dcommi_check;

/* ---- memory of one pass ---- */

static void *dcommi_check_get(dcommi_check *c, size_t bytes)
{
    bytes = (bytes + 15) & ~(size_t)15;
    dcommi_check_block *b = c->blocks;
    if (b == NULL || b->size - b->used < bytes) {
        size_t size = bytes > (1u << 18) ? bytes : 1u << 18;
        b = dcommi_alloc(DCOMMI_CACHE_LINE + size);
        if (b == NULL) {
            c->status = DCOMM_ERR_NO_MEMORY;
            return NULL;
        }
        b->size = size;
        b->next = c->blocks;
        c->blocks = b;
    }
    void *p = (char *)b + DCOMMI_CACHE_LINE + b->used;
    b->used += bytes;
    return p;
}

static void dcommi_check_blocks_free(dcommi_check_block **blocks)
{
    while (*blocks != NULL) {
        dcommi_check_block *next = (*blocks)->next;
        dcommi_free(*blocks);
        *blocks = next;
    }
}

static dcommi_check_mem *dcommi_check_mem_new(dcommi_check *c, int rank, unsigned space)
{
    dcommi_check_mem *mem = dcommi_check_get(c, sizeof *mem);
    if (mem != NULL) {
        mem->rank = rank;
        mem->space = (uint8_t)space;
        mem->read_only = space == DCOMM_SPACE_IN;
        mem->next = c->mems;
        c->mems = mem;
    }
    return mem;
}

/* ---- vector clocks ---- */

static uint32_t *dcommi_check_vc_new(dcommi_check *c)
{
    if (c->nfree_vc > 0) {
        return c->free_vc[--c->nfree_vc];
    }
    return dcommi_check_get(c, c->ncomps * sizeof(uint32_t));
}

static uint32_t *dcommi_check_vc_copy(dcommi_check *c, const uint32_t *vc)
{
    uint32_t *copy = dcommi_check_vc_new(c);
    if (copy != NULL) {
        memcpy(copy, vc, c->ncomps * sizeof *copy);
    }
    return copy;
}

static void dcommi_check_vc_free(dcommi_check *c, uint32_t *vc)
{
    if (dcommi_grow((void **)&c->free_vc, &c->free_vc_capacity, c->nfree_vc + 1,
                    sizeof *c->free_vc) == DCOMM_OK) {
        c->free_vc[c->nfree_vc++] = vc;
    }
}

static void dcommi_check_join(const dcommi_check *c, uint32_t *into, const uint32_t *from)
{
    for (uint32_t i = 0; i < c->ncomps; i++) {
        into[i] = into[i] > from[i] ? into[i] : from[i];
    }
}

/* ---- words about places ---- */

typedef struct dcommi_check_text {
    char s[128];
} dcommi_check_text;

static dcommi_check_text dcommi_check_lane_text(const dcommi_check *c, uint32_t comp)
{
    dcommi_check_text t = {""};
    const dcommi_check_component *k = &c->comps[comp / 2];
    if (k->caller == UINT32_MAX) {
        snprintf(t.s, sizeof t.s, "rank %d lane %" PRIu32, k->rank, k->lane);
    } else {
        const dcommi_check_component *outer = &c->comps[k->caller / 2];
        while (outer->caller != UINT32_MAX) {
            outer = &c->comps[outer->caller / 2];
        }
        snprintf(t.s, sizeof t.s, "rank %d lane %" PRIu32 " sub-plan lane %" PRIu32, k->rank,
                 outer->lane, k->lane);
    }
    return t;
}

static dcommi_check_text dcommi_check_op_text(const dcommi_check *c, const dcommi_check_op *op)
{
    dcommi_check_text t = dcommi_check_lane_text(c, op->lane->comp);
    size_t n = strlen(t.s);
    const dcomm_step *s = op->step;
    const char *name = dcommi_check_form_of(s->kind)->name;
    if (op->peer >= 0) {
        snprintf(t.s + n, sizeof t.s - n, " step %" PRIu32 " (%s %s %d, tag %" PRId64 ")", op->at,
                 name, s->kind == DCOMM_STEP_SEND ? "to" : "from", op->peer, op->tag);
    } else if (s->kind == DCOMM_STEP_WAIT) {
        snprintf(t.s + n, sizeof t.s - n,
                 " step %" PRIu32 " (wait for counter %" PRId64 " >= %" PRId64 ")", op->at,
                 op->lane->frame->counter + s->slot, op->lane->wants);
    } else {
        snprintf(t.s + n, sizeof t.s - n, " step %" PRIu32 " (%s)", op->at, name);
    }
    return t;
}

/* Refuse the plans at this step. Always false. */
static bool DCOMMI_PRINTF(3, 4)
    dcommi_check_refuse(dcommi_check *c, const dcommi_check_op *op, const char *format, ...)
{
    char text[384];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    if (c->status == DCOMM_OK) {
        c->status = dcommi_fail(DCOMM_ERR_PLAN, "%s: %s", dcommi_check_op_text(c, op).s, text);
    }
    return false;
}

/* Pass a status of the parts below on; true when it is good. */
static bool dcommi_check_good(dcommi_check *c, dcomm_status status)
{
    if (status < 0 && c->status == DCOMM_OK) {
        c->status = status;
    }
    return status >= 0;
}

/* Remember the first missing order of this pass. */
static void dcommi_check_found(dcommi_check *c, const dcommi_check_op *op,
                               const dcommi_check_race *race)
{
    if (race->mem == NULL || c->finding[0] != '\0') {
        return;
    }
    snprintf(c->finding, sizeof c->finding,
             "%s %s byte %" PRId64 " of rank %d's %s, which %s step %" PRIu32
             " %s%s: nothing orders the two",
             dcommi_check_op_text(c, op).s, race->second_writes ? "writes" : "reads", race->at,
             race->mem->rank, dcommi_print_space(race->mem->space),
             dcommi_check_lane_text(c, race->comp).s, race->step,
             race->first_writes ? "writes" : "reads", race->comp % 2 != 0 ? " (async)" : "");
}

/* The step's place in the vector clocks. */
static dcommi_check_who dcommi_check_who_of(const dcommi_check_op *op)
{
    dcommi_check_who who = {op->vc, op->comp, op->clock, op->at};
    return who;
}

static void dcommi_check_event_add(dcommi_check *c, dcommi_check_event event)
{
    dcommi_check_trace *t = c->trace;
    if (t != NULL && dcommi_check_good(c, dcommi_grow((void **)&t->event, &t->capacity, t->n + 1,
                                                      sizeof *t->event))) {
        t->event[t->n++] = event;
    }
}

#endif

typedef struct dcommi_check_region {
    dcommi_check_mem *mem;
    int64_t at, len;
} dcommi_check_region;

enum {
    DCOMMI_CHECK_SHORTEST = 0, /* run-time lengths are 0 */
    DCOMMI_CHECK_ONE,
    DCOMMI_CHECK_LONGEST,
    DCOMMI_CHECK_RANDOM,
    DCOMMI_CHECK_RANDOM_TOO,
    DCOMMI_CHECK_SCENARIOS
};

/* A run-time length or an unknown word in this scenario, in [0, most]. */
static int64_t dcommi_check_choose(const dcommi_check *c, uint64_t identity, int64_t most)
{
    switch (c->scenario) {
    case DCOMMI_CHECK_SHORTEST:
        return 0;
    case DCOMMI_CHECK_ONE:
        return dcommi_min64(1, most);
    case DCOMMI_CHECK_LONGEST:
        return most;
    default:
        if (most <= 1) {
            return most;
        }
        uint64_t r = dcommi_mix(identity, (uint64_t)c->scenario);
        return 1 + (int64_t)(r % (uint64_t)most);
    }
}

static bool dcommi_check_read_region(dcommi_check *c, const dcommi_check_op *op,
                                     const dcommi_check_region *r, dcommi_check_runs *runs)
{
    dcommi_check_who who = dcommi_check_who_of(op);
    dcommi_check_race race = {0};
    runs->n = 0;
    if (!dcommi_check_good(c,
                           dcommi_check_read(r->mem, &c->pool, r->at, r->len, &who, runs, &race))) {
        return false;
    }
    dcommi_check_found(c, op, &race);
    int64_t at = r->at;
    for (size_t i = 0; i < runs->n; i++) {
        if (runs->run[i].v.kind == DCOMMI_CHECK_UNDEF) {
            return dcommi_check_refuse(
                c, op,
                "reads bytes %" PRId64 " to %" PRId64 " of rank %d's %s, which nothing has "
                "written",
                at, at + runs->run[i].len, r->mem->rank, dcommi_print_space(r->mem->space));
        }
        at += runs->run[i].len;
    }
    if (r->mem->rank != op->lane->frame->rank && r->len > 0) {
        dcommi_check_mem *mem = r->mem;
        if (mem->peer_last == NULL) {
            mem->peer_last = dcommi_check_get(c, c->ncomps * sizeof *mem->peer_last);
            if (mem->peer_last == NULL) {
                return false;
            }
        }
        if (mem->peer_last[op->comp] < op->clock) {
            mem->peer_last[op->comp] = op->clock;
        }
    }
    return true;
}

static bool dcommi_check_order_write(dcommi_check *c, const dcommi_check_op *op,
                                     const dcommi_check_region *r)
{
    dcommi_check_who who = dcommi_check_who_of(op);
    dcommi_check_race race = {0};
    if (r->mem->read_only && r->len > 0) {
        return dcommi_check_refuse(c, op, "writes to %s, which is not to be touched on rank %d",
                                   dcommi_print_space(r->mem->space), r->mem->rank);
    }
    if (!dcommi_check_good(
            c, dcommi_check_write_order(r->mem, &c->pool, r->at, r->len, &who, &race))) {
        return false;
    }
    dcommi_check_found(c, op, &race);
    return true;
}

static bool dcommi_check_put(dcommi_check *c, const dcommi_check_op *op,
                             const dcommi_check_region *r, const dcommi_check_runs *runs)
{
    dcommi_check_who who = dcommi_check_who_of(op);
    return dcommi_check_good(c, dcommi_check_write(r->mem, &c->pool, r->at, runs, &who));
}

/* One value all over a region. */
static bool dcommi_check_put_value(dcommi_check *c, const dcommi_check_op *op,
                                   const dcommi_check_region *r, dcommi_check_value v)
{
    dcommi_check_run run = {r->len, v};
    dcommi_check_runs runs = {&run, r->len > 0, 1};
    return dcommi_check_put(c, op, r, &runs);
}

/* ---- words and expressions ---- */

static bool dcommi_check_set_word(dcommi_check *c, const dcommi_check_op *op, int64_t index,
                                  int64_t number)
{
    const dcommi_check_frame *f = op->lane->frame;
    dcommi_check_region r = {f->mem[DCOMM_SPACE_WORDS], f->base[DCOMM_SPACE_WORDS] + 8 * index, 8};
    dcommi_check_value v = {.kind = DCOMMI_CHECK_WORD, .src = number};
    return dcommi_check_order_write(c, op, &r) && dcommi_check_put_value(c, op, &r, v);
}

/* The number in a word, and whether it is known (not the scenario's choice). */
static int64_t dcommi_check_number(const dcommi_check *c, const dcommi_check_runs *runs,
                                   bool *known)
{
    const dcommi_check_value *v = &runs->run[0].v;
    *known = runs->n == 1 && (v->kind == DCOMMI_CHECK_ZERO || v->kind == DCOMMI_CHECK_WORD);
    if (*known) {
        return v->kind == DCOMMI_CHECK_ZERO ? 0 : v->src;
    }
    return dcommi_check_choose(c, dcommi_mix(v->mask, (uint64_t)v->src), (int64_t)1 << 40);
}

static bool dcommi_check_word(dcommi_check *c, const dcommi_check_op *op, int64_t index,
                              int64_t *number)
{
    const dcommi_check_frame *f = op->lane->frame;
    dcommi_check_region r = {f->mem[DCOMM_SPACE_WORDS], f->base[DCOMM_SPACE_WORDS] + 8 * index, 8};
    bool known;
    if (!dcommi_check_read_region(c, op, &r, &c->merged)) {
        return false;
    }
    *number = dcommi_check_number(c, &c->merged, &known);
    return true;
}

static bool dcommi_check_eval(dcommi_check *c, const dcommi_check_op *op, const dcomm_expr *e,
                              int64_t *value_p)
{
    const dcomm_plan *p = op->lane->frame->plan;
    if (e->kind == DCOMM_EXPR_CONST) {
        *value_p = e->add;
        return true;
    }
    int64_t x = e->base, value = e->add, term = 0;
    bool over = false;
    for (int d = 0; d < DCOMM_LOOP_DEPTH; d++) {
        over |= __builtin_mul_overflow(e->coef[d], op->index[d], &term);
        over |= __builtin_add_overflow(x, term, &x);
        over |= __builtin_mul_overflow(e->post[d], op->index[d], &term);
        over |= __builtin_add_overflow(value, term, &value);
    }
    if (e->mod > 0) {
        x %= e->mod;
        x += x < 0 ? e->mod : 0;
    }
    if (e->kind != DCOMM_EXPR_AFFINE) {
        over |= __builtin_add_overflow(x, e->first, &x);
    }
    if (!over && e->kind == DCOMM_EXPR_TABLE) {
        if (x < 0 || x >= p->ntable) {
            return dcommi_check_refuse(c, op, "an expression reads table[%" PRId64 "] of %" PRIu32,
                                       x, p->ntable);
        }
        x = p->table[x];
    } else if (!over && e->kind == DCOMM_EXPR_WORD) {
        if (x < 0 || x >= p->nwords) {
            return dcommi_check_refuse(c, op, "an expression reads words[%" PRId64 "] of %" PRIu32,
                                       x, p->nwords);
        }
        if (!dcommi_check_word(c, op, x, &x)) {
            return false;
        }
    }
    over |= __builtin_mul_overflow(e->scale, x, &term);
    over |= __builtin_add_overflow(value, term, &value);
    if (over) {
        return dcommi_check_refuse(c, op, "an expression exceeds 64 bits");
    }
    *value_p = value;
    return true;
}

/* ---- operands ---- */

/* Piece r of an operand. In PEER space that nobody has exposed yet, *owner is the rank to wait
 * for; otherwise it is left alone. */
static bool dcommi_check_piece(dcommi_check *c, dcommi_check_op *op, const dcomm_operand *o,
                               uint32_t r, dcommi_check_region *region, int *owner)
{
    const dcommi_check_frame *f = op->lane->frame;
    int64_t at = 0, len = 0, shift, room, start;
    if (--c->budget < 0) {
        return dcommi_check_refuse(c, op, "too many steps to check");
    }
    if (!dcommi_check_eval(c, op, &o->offset, &at) || !dcommi_check_eval(c, op, &o->length, &len)) {
        return false;
    }
    if (__builtin_mul_overflow((int64_t)r, o->stride, &shift) ||
        __builtin_add_overflow(at, shift, &at)) {
        return dcommi_check_refuse(c, op, "the offset of piece %" PRIu32 " exceeds 64 bits", r);
    }
    len = dcommi_min64(dcommi_max64(len, 0), o->max_length);
    if (o->clip > 0) {
        room = 0;
        if (at < o->clip && __builtin_sub_overflow(o->clip, at, &room)) {
            room = INT64_MAX;
        }
        len = dcommi_min64(len, room);
    }
    if (o->space == DCOMM_SPACE_PEER) {
        int64_t peer;
        if (!dcommi_check_eval(c, op, &o->peer, &peer)) {
            return false;
        }
        if (peer < 0 || peer >= f->plan->nranks) {
            return dcommi_check_refuse(c, op, "reads from rank %" PRId64 " of %d", peer,
                                       f->plan->nranks);
        }
        int rank = f->ranks[(peer + r) % f->plan->nranks];
        if (rank == f->rank) {
            return dcommi_check_refuse(c, op, "reads its own memory as a peer's");
        }
        int64_t slot = f->slot + o->slot;
        if (slot >= c->rank[rank].plan->nslots) {
            return dcommi_check_refuse(c, op, "rank %d has no slot %" PRId64, rank, slot);
        }
        const dcommi_check_exposed *x = &c->rank[rank].exposed[slot * c->n + f->rank];
        if (x->mem == NULL) {
            *owner = rank;
            return true;
        }
        dcommi_check_join(c, op->vc, x->vc);
        op->level = op->level > x->level ? op->level : x->level;
        region->mem = x->mem;
        start = x->at;
        room = x->len;
    } else {
        region->mem = f->mem[o->space];
        start = f->base[o->space];
        room = f->size[o->space];
    }
    if (len > 0 && (at < 0 || at > room || len > room - at)) {
        return dcommi_check_refuse(
            c, op, "touches bytes %" PRId64 " to %" PRId64 " of %s, which has %" PRId64, at,
            at > INT64_MAX - len ? INT64_MAX : at + len, dcommi_print_space(o->space), room);
    }
    region->at = len > 0 ? start + at : 0;
    region->len = len;
    return true;
}

static uint32_t dcommi_check_pieces(const dcomm_operand *o)
{
    return o->repeat > 0 ? o->repeat : 1;
}

static bool dcommi_check_apart(dcommi_check *c, const dcommi_check_op *op,
                               const dcommi_check_region *a, const dcommi_check_region *b)
{
    bool same = a->at == b->at && a->len == b->len;
    if (a->mem == b->mem && a->len > 0 && b->len > 0 && !same && a->at < b->at + b->len &&
        b->at < a->at + a->len) {
        return dcommi_check_refuse(c, op,
                                   "source and destination overlap in %s: bytes %" PRId64
                                   "+%" PRId64 " and %" PRId64 "+%" PRId64,
                                   dcommi_print_space(a->mem->space), a->at, a->len, b->at, b->len);
    }
    return true;
}

/* ---- folds ---- */

static bool dcommi_check_single(uint64_t mask)
{
    return mask != 0 && (mask & (mask - 1)) == 0;
}

/* a (+) b for one run. */
static bool dcommi_check_fold_values(dcommi_check *c, const dcommi_check_op *op,
                                     const dcommi_check_value *a, const dcommi_check_value *b,
                                     dcommi_check_value *out)
{
    bool free_form = c->spec->coll == DCOMM_COLL_PLAN || !c->spec_holds;
    if (a->kind == DCOMMI_CHECK_ENCODED || b->kind == DCOMMI_CHECK_ENCODED) {
        return dcommi_check_refuse(c, op, "folds encoded bytes");
    }
    bool sums = a->kind == DCOMMI_CHECK_SUM && b->kind == DCOMMI_CHECK_SUM;
    if (sums && (a->mask & b->mask) == 0 && a->src == b->src) {
        out->kind = DCOMMI_CHECK_SUM;
        out->mask = a->mask | b->mask;
        out->src = a->src;
        out->flags = 0;
        /* A left fold goes on with the next rank alone. */
        bool goes_on = (a->flags & DCOMMI_CHECK_ORDERED) != 0 && (a->mask & 1) != 0 &&
                       dcommi_check_single(b->mask) && b->mask == a->mask + 1;
        out->flags |= goes_on ? DCOMMI_CHECK_ORDERED : 0;
        if (c->averages && ((a->flags | b->flags) & DCOMMI_CHECK_DIVIDED) != 0) {
            return dcommi_check_refuse(c, op, "folds what a FINAL fold has completed already");
        }
        return true;
    }
    if (free_form) {
        dcommi_check_value opaque = {.kind = DCOMMI_CHECK_OPAQUE};
        *out = opaque;
        return true;
    }
    if (!sums) {
        return dcommi_check_refuse(c, op, "folds bytes that are no contribution of any rank");
    }
    if (a->src != b->src) {
        return dcommi_check_refuse(c, op, "folds input byte %" PRId64 " with input byte %" PRId64,
                                   a->src, b->src);
    }
    return dcommi_check_refuse(c, op,
                               "adds the contribution of rank %d a second time (input byte "
                               "%" PRId64 ")",
                               __builtin_ctzll(a->mask & b->mask), a->src);
}

/* c->folded <- c->folded (+) more, both `len` bytes. */
static bool dcommi_check_fold(dcommi_check *c, const dcommi_check_op *op,
                              const dcommi_check_runs *more)
{
    dcommi_check_runs *a = &c->folded;
    c->merged.n = 0;
    size_t i = 0, j = 0;
    int64_t done_a = 0, done_b = 0;
    while (i < a->n && j < more->n) {
        int64_t len = dcommi_min64(a->run[i].len - done_a, more->run[j].len - done_b);
        dcommi_check_value x = dcommi_check_shift(a->run[i].v, done_a);
        dcommi_check_value y = dcommi_check_shift(more->run[j].v, done_b);
        dcommi_check_value z;
        if (!dcommi_check_fold_values(c, op, &x, &y, &z) ||
            !dcommi_check_good(c, dcommi_check_append(&c->merged, len, z))) {
            return false;
        }
        done_a += len;
        done_b += len;
        if (done_a == a->run[i].len) {
            i++;
            done_a = 0;
        }
        if (done_b == more->run[j].len) {
            j++;
            done_b = 0;
        }
    }
    dcommi_check_runs swap = c->folded;
    c->folded = c->merged;
    c->merged = swap;
    return true;
}

/* Add one operand's runs to the fold; `first` starts it. */
static bool dcommi_check_fold_in(dcommi_check *c, const dcommi_check_op *op, bool first,
                                 const dcommi_check_runs *runs)
{
    int64_t at = 0;
    for (size_t i = 0; i < runs->n; i++) {
        const dcommi_check_value *v = &runs->run[i].v;
        if (c->reduces && v->kind == DCOMMI_CHECK_SUM && (v->src - at) % c->element != 0) {
            return dcommi_check_refuse(c, op,
                                       "folds from the middle of an element (input byte "
                                       "%" PRId64 ")",
                                       v->src);
        }
        at += runs->run[i].len;
    }
    if (!first) {
        return dcommi_check_fold(c, op, runs);
    }
    c->folded.n = 0;
    for (size_t i = 0; i < runs->n; i++) {
        dcommi_check_value v = runs->run[i].v;
        /* A 16-bit partial result has been rounded: a sum in rank order must not start with it. */
        if (c->element == 2 && !dcommi_check_single(v.mask)) {
            v.flags &= (uint8_t)~DCOMMI_CHECK_ORDERED;
        }
        if (!dcommi_check_good(c, dcommi_check_append(&c->folded, runs->run[i].len, v))) {
            return false;
        }
    }
    return true;
}

/* The fold in c->folded is complete: apply FINAL. */
static bool dcommi_check_fold_end(dcommi_check *c, const dcommi_check_op *op)
{
    if ((op->step->flags & DCOMM_STEP_FINAL) == 0 || !c->averages) {
        return true;
    }
    for (size_t i = 0; i < c->folded.n; i++) {
        dcommi_check_value *v = &c->folded.run[i].v;
        if (c->spec_holds && v->mask != c->all) {
            return dcommi_check_refuse(c, op, "is FINAL with only ranks 0x%" PRIx64 " folded in",
                                       v->mask);
        }
        v->flags |= DCOMMI_CHECK_DIVIDED;
    }
    return true;
}

#endif

/* ---- completion ---- */

static void dcommi_check_wake(dcommi_check *c, dcommi_check_lane *lane)
{
    lane->blocked = false;
    if (lane != c->running &&
        dcommi_check_good(c, dcommi_grow((void **)&c->ready, &c->ready_capacity, c->nready + 1,
                                         sizeof(dcommi_check_lane *)))) {
        c->ready[c->nready++] = lane;
    }
}

/* A step is complete: its lane goes on, or its lane's fence comes nearer. */
static bool dcommi_check_complete(dcommi_check *c, dcommi_check_op *op)
{
    dcommi_check_lane *lane = op->lane;
    if (!op->async) {
        lane->vc[lane->comp]++;
        lane->level = op->level;
        lane->pc++;
        dcommi_check_wake(c, lane);
        return true;
    }
    if (lane->async_vc == NULL) {
        lane->async_vc = dcommi_check_vc_copy(c, op->vc);
        if (lane->async_vc == NULL) {
            return false;
        }
    } else {
        dcommi_check_join(c, lane->async_vc, op->vc);
    }
    lane->async_level = lane->async_level > op->level ? lane->async_level : op->level;
    dcommi_check_op **link = &lane->pending;
    while (*link != op) {
        link = &(*link)->pending;
    }
    *link = op->pending;
    dcommi_check_vc_free(c, op->vc);
    op->next = c->free_ops;
    c->free_ops = op;
    if (--lane->outstanding == 0 && lane->at_fence) {
        dcommi_check_wake(c, lane);
    }
    return true;
}

/* Make the lane's current step an operation of its own that the lane does not wait for. */
static dcommi_check_op *dcommi_check_detach(dcommi_check *c, dcommi_check_lane *lane)
{
    dcommi_check_op *op = c->free_ops;
    if (op != NULL) {
        c->free_ops = op->next;
    } else if ((op = dcommi_check_get(c, sizeof *op)) == NULL) {
        return NULL;
    }
    *op = lane->op;
    op->async = true;
    op->vc = dcommi_check_vc_copy(c, lane->vc);
    if (op->vc == NULL) {
        return NULL;
    }
    op->comp = lane->comp + 1;
    op->clock = lane->vc[op->comp] + 1;
    op->pending = lane->pending;
    lane->pending = op;
    lane->outstanding++;
    return op;
}

static void dcommi_check_event_of(dcommi_check *c, const dcommi_check_op *op, int peer,
                                  uint32_t peer_lane, int64_t bytes)
{
    dcommi_check_event e = {.kind = op->step->kind,
                            .rank = (int16_t)op->lane->frame->rank,
                            .peer = (int16_t)peer,
                            .lane = (int32_t)op->lane->number,
                            .peer_lane = (int32_t)peer_lane,
                            .level = op->level,
                            .bytes = bytes,
                            .tag = op->tag};
    dcommi_check_event_add(c, e);
}

/* ---- folds, encodings, kernels ---- */

/* The values that a source piece gives to a step: decoded where the step decodes. */
static bool dcommi_check_take(dcommi_check *c, dcommi_check_op *op, const dcommi_check_region *from,
                              const dcommi_check_region *to, dcommi_check_runs *runs)
{
    if (!dcommi_check_read_region(c, op, from, runs)) {
        return false;
    }
    if (op->lane->frame->rank != from->mem->rank) {
        c->rank[op->lane->frame->rank].bytes += from->len;
        dcommi_check_event_of(c, op, from->mem->rank, 0, from->len);
    }
    if (op->step->kind != DCOMM_STEP_DECODE && op->step->kind != DCOMM_STEP_DECODE_REDUCE) {
        return true;
    }
    const dcommi_check_value *v = runs->n == 1 ? &runs->run[0].v : NULL;
    if (v == NULL || v->kind != DCOMMI_CHECK_ENCODED || v->src != 0 ||
        c->encoding[v->mask].len != from->len) {
        if (c->spec_holds && c->spec->coll != DCOMM_COLL_PLAN) {
            return dcommi_check_refuse(c, op, "decodes %" PRId64 " bytes that are not one encoding",
                                       from->len);
        }
        dcommi_check_value opaque = {.kind = DCOMMI_CHECK_OPAQUE};
        runs->n = 0;
        return dcommi_check_good(c, dcommi_check_append(runs, to->len, opaque));
    }
    const dcommi_check_runs *was = &c->encoding[v->mask].runs;
    int64_t len = 0;
    runs->n = 0;
    for (size_t i = 0; i < was->n; i++) {
        len += was->run[i].len;
        if (!dcommi_check_good(c, dcommi_check_append(runs, was->run[i].len, was->run[i].v))) {
            return false;
        }
    }
    if (len != to->len) {
        return dcommi_check_refuse(c, op, "decodes %" PRId64 " bytes into %" PRId64, len, to->len);
    }
    return true;
}

/* dst <- fold of the sources, `arrived` being the message if one is among them. */
static bool dcommi_check_do_fold(dcommi_check *c, dcommi_check_op *op,
                                 const dcommi_check_region *dst, int *owner)
{
    const dcomm_step *s = op->step;
    const dcomm_operand *operand = op->lane->frame->plan->operands + s->src;
    bool first = true;
    if (s->kind == DCOMM_STEP_DECODE_REDUCE) {
        if (!dcommi_check_read_region(c, op, dst, &c->given) ||
            !dcommi_check_fold_in(c, op, true, &c->given)) {
            return false;
        }
        first = false;
    }
    for (uint32_t i = 0; i < s->nsrc; i++) {
        if (operand[i].space == DCOMM_SPACE_MSG) {
            if (!dcommi_check_fold_in(c, op, first, &c->arrived)) {
                return false;
            }
            first = false;
            continue;
        }
        for (uint32_t r = 0; r < dcommi_check_pieces(&operand[i]); r++) {
            dcommi_check_region from;
            if (!dcommi_check_piece(c, op, &operand[i], r, &from, owner)) {
                return false;
            }
            if (s->kind != DCOMM_STEP_DECODE_REDUCE &&
                (from.len != dst->len || !dcommi_check_apart(c, op, &from, dst))) {
                return dcommi_check_refuse(c, op, "folds %" PRId64 " bytes into %" PRId64, from.len,
                                           dst->len);
            }
            if (!dcommi_check_take(c, op, &from, dst, &c->given) ||
                !dcommi_check_fold_in(c, op, first, &c->given)) {
                return false;
            }
            first = false;
        }
    }
    if (c->reduces && dst->len % c->element != 0) {
        return dcommi_check_refuse(c, op, "folds %" PRId64 " bytes, no whole number of elements",
                                   dst->len);
    }
    return dcommi_check_fold_end(c, op) && dcommi_check_put(c, op, dst, &c->folded);
}

static bool dcommi_check_do_encode(dcommi_check *c, dcommi_check_op *op,
                                   const dcommi_check_region *dst, const dcommi_check_region *src)
{
    if (!dcommi_check_take(c, op, src, dst, &c->given) ||
        !dcommi_check_good(c, dcommi_grow((void **)&c->encoding, &c->encodings_capacity,
                                          c->nencodings + 1, sizeof *c->encoding))) {
        return false;
    }
    dcommi_check_encoding *e = &c->encoding[c->nencodings];
    e->len = dcommi_check_choose(c, c->nencodings + 1, dst->len);
    for (size_t i = 0; i < c->given.n; i++) {
        if (!dcommi_check_good(
                c, dcommi_check_append(&e->runs, c->given.run[i].len, c->given.run[i].v))) {
            return false;
        }
    }
    dcommi_check_value undefined = {.kind = DCOMMI_CHECK_UNDEF};
    dcommi_check_value encoded = {.kind = DCOMMI_CHECK_ENCODED, .mask = c->nencodings++};
    dcommi_check_region head = {dst->mem, dst->at, e->len};
    return dcommi_check_put_value(c, op, dst, undefined) &&
           dcommi_check_put_value(c, op, &head, encoded) &&
           (op->step->word < 0 || dcommi_check_set_word(c, op, op->step->word, head.len));
}

static bool dcommi_check_do_compute(dcommi_check *c, dcommi_check_op *op,
                                    const dcommi_check_region *dst, int *owner)
{
    const dcomm_operand *operand = op->lane->frame->plan->operands + op->step->src;
    for (uint32_t i = 0; i < op->step->nsrc; i++) {
        for (uint32_t r = 0; r < dcommi_check_pieces(&operand[i]); r++) {
            dcommi_check_region from;
            if (!dcommi_check_piece(c, op, &operand[i], r, &from, owner) ||
                !dcommi_check_take(c, op, &from, dst, &c->given)) {
                return false;
            }
        }
    }
    dcommi_check_value opaque = {.kind = DCOMMI_CHECK_OPAQUE};
    return dcommi_check_put_value(c, op, dst, opaque);
}

/* Does the lane have to wait until somebody exposes what its step reads? Even an ASYNC step does
 * not start before. */
static bool dcommi_check_must_wait(dcommi_check *c, dcommi_check_lane *lane)
{
    dcommi_check_op *op = &lane->op;
    int waits_for = -1, *owner = &waits_for;
    const dcomm_operand *operand = op->lane->frame->plan->operands + op->step->src;
    for (uint32_t i = 0; i < op->step->nsrc && *owner < 0; i++) {
        for (uint32_t r = 0; operand[i].space == DCOMM_SPACE_PEER && *owner < 0 &&
                             r < dcommi_check_pieces(&operand[i]);
             r++) {
            dcommi_check_region from;
            if (!dcommi_check_piece(c, op, &operand[i], r, &from, owner)) {
                return false;
            }
        }
    }
    if (*owner >= 0) {
        op->peer = *owner;
        lane->blocked = true;
        lane->next_waiter = c->rank[*owner].peer_waiters;
        c->rank[*owner].peer_waiters = lane;
    }
    return true;
}

/* COPY, REDUCE, the codec's steps, COMMIT, COMPUTE. */
static bool dcommi_check_do_local(dcommi_check *c, dcommi_check_op *op)
{
    const dcomm_step *s = op->step;
    dcommi_check_region dst, src = {0};
    int owner = -1;
    if (!dcommi_check_piece(c, op, &s->dst, 0, &dst, &owner) ||
        !dcommi_check_order_write(c, op, &dst)) {
        return false;
    }
    bool single = s->kind != DCOMM_STEP_REDUCE && s->kind != DCOMM_STEP_COMPUTE &&
                  s->kind != DCOMM_STEP_DECODE_REDUCE;
    if (single) {
        const dcomm_operand *operand = op->lane->frame->plan->operands + s->src;
        if (!dcommi_check_piece(c, op, operand, 0, &src, &owner) ||
            !dcommi_check_apart(c, op, &src, &dst)) {
            return false;
        }
        if ((s->kind == DCOMM_STEP_COPY || s->kind == DCOMM_STEP_COMMIT) && src.len != dst.len) {
            return dcommi_check_refuse(c, op, "copies %" PRId64 " bytes into %" PRId64, src.len,
                                       dst.len);
        }
    }
    bool good;
    if (s->kind == DCOMM_STEP_ENCODE) {
        good = dcommi_check_do_encode(c, op, &dst, &src);
    } else if (s->kind == DCOMM_STEP_COMPUTE) {
        good = dcommi_check_do_compute(c, op, &dst, &owner);
    } else if (single) {
        good = dcommi_check_take(c, op, &src, &dst, &c->given) &&
               dcommi_check_put(c, op, &dst, &c->given);
    } else {
        good = dcommi_check_do_fold(c, op, &dst, &owner);
    }
    dcommi_check_event_of(c, op, -1, 0, dst.len);
    return good && dcommi_check_complete(c, op);
}

/* ---- messages ---- */

static bool dcommi_check_match(dcommi_check *c, dcommi_check_op *send, dcommi_check_op *recv)
{
    const dcomm_step *r = recv->step;
    const dcommi_check_frame *from_frame = send->lane->frame;
    dcommi_check_region src, dst, stage;
    int owner = -1;
    if (!dcommi_check_piece(c, send, from_frame->plan->operands + send->step->src, 0, &src,
                            &owner) ||
        !dcommi_check_piece(c, recv, &r->dst, 0, &dst, &owner)) {
        return false;
    }
    bool reduces = r->kind == DCOMM_STEP_RECV_REDUCE;
    bool any_length = !reduces && r->word >= 0;
    if (src.len > dst.len || (src.len != dst.len && !any_length)) {
        return dcommi_check_refuse(c, recv, "takes %" PRId64 " bytes, but %s sends %" PRId64,
                                   dst.len, dcommi_check_op_text(c, send).s, src.len);
    }
    dst.len = src.len;
    /* Completing a send orders nothing: its message may have been buffered. */
    dcommi_check_join(c, recv->vc, send->vc);
    int32_t level = (send->level > recv->level ? send->level : recv->level) + 1;
    send->level = recv->level = level;
    c->steps = c->steps > level ? c->steps : level;
    if (!dcommi_check_order_write(c, recv, &dst) ||
        !dcommi_check_read_region(c, send, &src, &c->arrived)) {
        return false;
    }
    if (reduces) {
        dcommi_check_value undefined = {.kind = DCOMMI_CHECK_UNDEF};
        if (!dcommi_check_piece(c, recv, &r->stage, 0, &stage, &owner) ||
            !dcommi_check_order_write(c, recv, &stage) ||
            !dcommi_check_put_value(c, recv, &stage, undefined)) {
            return false;
        }
        if (stage.len < dst.len) {
            return dcommi_check_refuse(c, recv, "has a stage of %" PRId64 " bytes for %" PRId64,
                                       stage.len, dst.len);
        }
    }
    if (reduces ? !dcommi_check_do_fold(c, recv, &dst, &owner)
                : !dcommi_check_put(c, recv, &dst, &c->arrived)) {
        return false;
    }
    if (any_length && !dcommi_check_set_word(c, recv, r->word, src.len)) {
        return false;
    }
    c->messages++;
    c->rank[from_frame->rank].bytes += src.len;
    dcommi_check_event_of(c, recv, from_frame->rank, send->lane->number, src.len);
    return dcommi_check_complete(c, send) && dcommi_check_complete(c, recv);
}

static dcommi_check_message *dcommi_check_message_find(dcommi_check *c, uint64_t key)
{
    if (c->nmessages * 2 >= c->messages_capacity) {
        size_t capacity = c->messages_capacity == 0 ? 1024 : c->messages_capacity * 2;
        dcommi_check_message *bigger = dcommi_calloc(capacity, sizeof *bigger);
        if (bigger == NULL) {
            c->status = DCOMM_ERR_NO_MEMORY;
            return NULL;
        }
        for (size_t i = 0; i < c->messages_capacity; i++) {
            if (c->message[i].key != 0) {
                size_t at = dcommi_mix(c->message[i].key, 0) & (capacity - 1);
                while (bigger[at].key != 0) {
                    at = (at + 1) & (capacity - 1);
                }
                bigger[at] = c->message[i];
            }
        }
        dcommi_free(c->message);
        c->message = bigger;
        c->messages_capacity = capacity;
    }
    size_t at = dcommi_mix(key, 0) & (c->messages_capacity - 1);
    while (c->message[at].key != 0 && c->message[at].key != key) {
        at = (at + 1) & (c->messages_capacity - 1);
    }
    c->nmessages += c->message[at].key == 0;
    c->message[at].key = key;
    return &c->message[at];
}

/* A SEND, RECV or RECV_REDUCE begins. The other side is there already, or will find this one. */
static bool dcommi_check_post(dcommi_check *c, dcommi_check_op *op)
{
    const dcommi_check_frame *f = op->lane->frame;
    bool sends = op->step->kind == DCOMM_STEP_SEND;
    int64_t peer, tag;
    if (!dcommi_check_eval(c, op, &op->step->peer, &peer) ||
        !dcommi_check_eval(c, op, &op->step->tag, &tag)) {
        return false;
    }
    if (peer < 0 || peer >= f->plan->nranks || f->ranks[peer] == f->rank) {
        return dcommi_check_refuse(c, op, "its peer is rank %" PRId64 " of %d%s", peer,
                                   f->plan->nranks,
                                   peer == f->plan->rank ? ", which is itself" : "");
    }
    if (tag < 0 || tag >= f->plan->ntags) {
        return dcommi_check_refuse(c, op, "tag %" PRId64 " is not in [0, %" PRIu32 ")", tag,
                                   f->plan->ntags);
    }
    op->peer = f->ranks[peer];
    op->tag = f->tag + tag;
    int from = sends ? f->rank : op->peer, to = sends ? op->peer : f->rank;
    uint64_t key =
        1 + (((uint64_t)from * DCOMMI_CHECK_RANKS + (uint64_t)to) << 40 | (uint64_t)op->tag);
    dcommi_check_message *m = dcommi_check_message_find(c, key);
    if (m == NULL) {
        return false;
    }
    if (m->done || (sends ? m->send : m->recv) != NULL) {
        return dcommi_check_refuse(c, op,
                                   "there is another message from rank %d to %d with tag "
                                   "%" PRId64,
                                   from, to, op->tag);
    }
    op->lane->blocked = op->lane->blocked || !op->async;
    if (sends) {
        m->send = op;
    } else {
        m->recv = op;
    }
    if (m->send == NULL || m->recv == NULL) {
        return true;
    }
    m->done = true;
    return dcommi_check_match(c, m->send, m->recv);
}

/* ---- expositions and signals ---- */

/* The ranks of the run that EXPOSE or SIGNAL is for: a mask. */
static bool dcommi_check_targets(dcommi_check *c, dcommi_check_op *op, uint64_t *mask)
{
    const dcommi_check_frame *f = op->lane->frame;
    int64_t peer = 0;
    if (!dcommi_check_eval(c, op, &op->step->peer, &peer)) {
        return false;
    }
    *mask = 0;
    if (peer != DCOMM_ALL_PEERS && (peer < 0 || peer >= f->plan->nranks)) {
        return dcommi_check_refuse(c, op, "its peer is rank %" PRId64 " of %d", peer,
                                   f->plan->nranks);
    }
    for (int i = 0; i < f->plan->nranks; i++) {
        if (i == peer || (peer == DCOMM_ALL_PEERS && f->ranks[i] != f->rank)) {
            *mask |= (uint64_t)1 << f->ranks[i];
        }
    }
    return true;
}

static bool dcommi_check_do_expose(dcommi_check *c, dcommi_check_op *op)
{
    const dcommi_check_frame *f = op->lane->frame;
    dcommi_check_rank *owner = &c->rank[f->rank];
    dcommi_check_region r;
    uint64_t targets;
    int nobody = -1;
    if (!dcommi_check_targets(c, op, &targets) ||
        !dcommi_check_piece(c, op, f->plan->operands + op->step->src, 0, &r, &nobody)) {
        return false;
    }
    const uint32_t *vc = dcommi_check_vc_copy(c, op->vc);
    if (vc == NULL) {
        return false;
    }
    dcommi_check_exposed *row = owner->exposed + (f->slot + op->step->slot) * c->n;
    for (int i = 0; i < c->n; i++) {
        if ((targets >> i & 1) == 0 || i == f->rank) {
            continue;
        }
        if (row[i].mem != NULL) {
            return dcommi_check_refuse(c, op, "slot %" PRId64 " is exposed to rank %d twice",
                                       f->slot + op->step->slot, i);
        }
        dcommi_check_exposed x = {r.mem, r.at, r.len, vc, op->level + 1};
        row[i] = x;
        c->signals++;
        c->steps = c->steps > x.level ? c->steps : x.level;
        dcommi_check_event_of(c, op, i, 0, r.len);
    }
    while (owner->peer_waiters != NULL) {
        dcommi_check_lane *lane = owner->peer_waiters;
        owner->peer_waiters = lane->next_waiter;
        dcommi_check_wake(c, lane);
    }
    return dcommi_check_complete(c, op);
}

static bool dcommi_check_pulse_add(dcommi_check *c, dcommi_check_counter *counter, uint32_t comp,
                                   struct dcommi_check_pulse pulse, int64_t value)
{
    dcommi_check_source *s = NULL;
    for (size_t i = 0; i < counter->nsources && s == NULL; i++) {
        s = counter->source[i].comp == comp ? &counter->source[i] : NULL;
    }
    if (s == NULL) {
        if (counter->nsources == counter->capacity) {
            size_t capacity = counter->capacity == 0 ? 4 : 2 * counter->capacity;
            dcommi_check_source *bigger = dcommi_check_get(c, capacity * sizeof *bigger);
            if (bigger == NULL) {
                return false;
            }
            if (counter->nsources > 0) {
                memcpy(bigger, counter->source, counter->nsources * sizeof *bigger);
            }
            counter->source = bigger;
            counter->capacity = capacity;
        }
        s = &counter->source[counter->nsources++];
        s->comp = comp;
    }
    if (s->n == s->capacity) {
        size_t capacity = s->capacity == 0 ? 4 : 2 * s->capacity;
        struct dcommi_check_pulse *bigger = dcommi_check_get(c, capacity * sizeof *bigger);
        if (bigger == NULL) {
            return false;
        }
        if (s->n > 0) {
            memcpy(bigger, s->pulse, s->n * sizeof *bigger);
        }
        s->pulse = bigger;
        s->capacity = capacity;
    }
    pulse.before = s->total;
    s->pulse[s->n++] = pulse;
    s->total += value;
    counter->total += value;
    return true;
}

static bool dcommi_check_do_signal(dcommi_check *c, dcommi_check_op *op)
{
    const dcommi_check_frame *f = op->lane->frame;
    uint64_t targets;
    int64_t value, at = f->counter + op->step->slot;
    if (!dcommi_check_targets(c, op, &targets) ||
        !dcommi_check_eval(c, op, &op->step->value, &value)) {
        return false;
    }
    if (value < 0 || value > INT64_MAX / 4) {
        return dcommi_check_refuse(c, op, "signals %" PRId64, value);
    }
    struct dcommi_check_pulse pulse = {.vc = dcommi_check_vc_copy(c, op->vc)};
    if (pulse.vc == NULL) {
        return false;
    }
    for (int i = 0; i < c->n; i++) {
        if ((targets >> i & 1) == 0) {
            continue;
        }
        if (at >= c->rank[i].plan->ncounters) {
            return dcommi_check_refuse(c, op, "rank %d has no counter %" PRId64, i, at);
        }
        dcommi_check_counter *counter = &c->rank[i].counters[at];
        if (counter->total > INT64_MAX - value) {
            return dcommi_check_refuse(c, op, "counter %" PRId64 " exceeds 63 bits", at);
        }
        pulse.level = op->level + (i != f->rank);
        if (value > 0 && !dcommi_check_pulse_add(c, counter, op->comp, pulse, value)) {
            return false;
        }
        if (i != f->rank) {
            c->signals++;
            c->steps = c->steps > pulse.level ? c->steps : pulse.level;
            dcommi_check_event_of(c, op, i, 0, 0);
        }
        dcommi_check_lane **link = &counter->waiters;
        while (*link != NULL) {
            dcommi_check_lane *lane = *link;
            if (lane->wants <= counter->total) {
                *link = lane->next_waiter;
                dcommi_check_wake(c, lane);
            } else {
                link = &lane->next_waiter;
            }
        }
    }
    return dcommi_check_complete(c, op);
}

/* How much a lane can have added to a counter before this WAIT, by the last pass. */
static int64_t dcommi_check_possible(const dcommi_check_source *s, const dcommi_check_op *wait)
{
    size_t low = 0, high = s->n; /* pulses that do not come after the WAIT: [0, low) */
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (s->pulse[middle].vc[wait->comp] < wait->clock) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low < s->n ? s->pulse[low].before : s->total;
}

/* WAIT comes after those signals without which its counter could not have got there: from the other
 * lanes all that may come early counts as come. Which may come early is known from the pass before
 * this one, with fewer edges, so that no edge is ever assumed that is not certain. */
static bool dcommi_check_do_wait(dcommi_check *c, dcommi_check_op *op)
{
    dcommi_check_lane *lane = op->lane;
    int64_t at = lane->frame->counter + op->step->slot, possible = 0;
    if (!dcommi_check_eval(c, op, &op->step->value, &lane->wants)) {
        return false;
    }
    if (lane->wants < 0) {
        return dcommi_check_refuse(c, op, "waits for a negative value");
    }
    dcommi_check_counter *counter = &c->rank[lane->frame->rank].counters[at];
    if (counter->total < lane->wants) {
        lane->next_waiter = counter->waiters;
        counter->waiters = lane;
        lane->blocked = true;
        return true;
    }
    c->waited = true;
    const dcommi_check_log *log = &c->old_log[c->stage];
    int rank = lane->frame->rank;
    const dcommi_check_counter *old =
        c->has_old_log && at < log->ncounters[rank] ? &log->counters[rank][at] : NULL;
    for (size_t i = 0; old != NULL && i < old->nsources; i++) {
        possible += dcommi_check_possible(&old->source[i], op);
    }
    for (size_t i = 0; old != NULL && i < old->nsources; i++) {
        int64_t own = dcommi_check_possible(&old->source[i], op);
        int64_t needed = lane->wants - (possible - own);
        for (size_t j = 0; j < counter->nsources; j++) {
            const dcommi_check_source *s = &counter->source[j];
            if (s->comp != old->source[i].comp) {
                continue;
            }
            size_t low = 0, high = s->n; /* the last pulse that begins below what is needed */
            while (low < high) {
                size_t middle = low + (high - low) / 2;
                if (s->pulse[middle].before < needed) {
                    low = middle + 1;
                } else {
                    high = middle;
                }
            }
            if (low > 0) {
                const struct dcommi_check_pulse *p = &s->pulse[low - 1];
                dcommi_check_join(c, op->vc, p->vc);
                op->level = op->level > p->level ? op->level : p->level;
                c->edges = dcommi_mix(c->edges, low);
            }
        }
    }
    return dcommi_check_complete(c, op);
}

#endif

/* How many lanes run, one after another or at once, below one lane of a plan; itself included. */
static uint32_t dcommi_check_width(dcommi_check *c, const dcomm_plan *p, uint32_t lane)
{
    uint64_t most = 0;
    for (uint32_t i = 0; i < p->lanes[lane].count; i++) {
        const dcomm_step *s = &p->steps[p->lanes[lane].first + i];
        if (s->kind == DCOMM_STEP_CALL && --c->budget > 0) {
            uint64_t width = 0;
            for (uint32_t j = 0; j < p->subs[s->sub]->nlanes; j++) {
                width += dcommi_check_width(c, p->subs[s->sub], j);
            }
            most = width > most ? width : most;
        }
    }
    return most < 1u << 20 ? 1 + (uint32_t)most : 1u << 20;
}

/* Make a frame's lanes ready; `first` is the component of the first. */
static bool dcommi_check_start(dcommi_check *c, dcommi_check_frame *f, uint32_t first,
                               const uint32_t *vc, int32_t level)
{
    const dcomm_plan *p = f->plan;
    f->lanes_left = p->nlanes;
    f->level = level;
    f->end_vc = dcommi_check_vc_copy(c, vc);
    if (f->end_vc == NULL) {
        return false;
    }
    for (uint32_t i = p->nlanes; i-- > 0;) {
        dcommi_check_lane *lane = dcommi_check_get(c, sizeof *lane);
        if (lane == NULL || (lane->vc = dcommi_check_vc_copy(c, vc)) == NULL) {
            return false;
        }
        lane->frame = f;
        lane->number = i;
        lane->level = level;
        lane->all = c->lanes;
        c->lanes = lane;
        dcommi_check_wake(c, lane);
    }
    /* wake pushed them last to first, so the newest is lane 0: give components in order */
    uint32_t comp = first;
    dcommi_check_lane *lane = c->lanes;
    for (uint32_t i = 0; i < p->nlanes; i++, lane = lane->all) {
        lane->comp = comp;
        if (lane->vc[comp] == 0) {
            lane->vc[comp] = 1;
        }
        dcommi_check_component k = {f->rank, i, f->caller == NULL ? UINT32_MAX : f->caller->comp};
        c->comps[comp / 2] = k;
        comp += 2 * dcommi_check_width(c, p, i);
    }
    return c->status == DCOMM_OK;
}

/* SCRATCH and WORDS of a called sub-plan are its own. */
static bool dcommi_check_own_mem(dcommi_check *c, dcommi_check_frame *f, unsigned space,
                                 int64_t size, unsigned kind)
{
    dcommi_check_value v = {.kind = (uint8_t)kind};
    f->mem[space] = dcommi_check_mem_new(c, f->rank, space);
    f->size[space] = size;
    return f->mem[space] != NULL &&
           dcommi_check_good(c, dcommi_check_mem_fill(f->mem[space], 0, size, v));
}

static bool dcommi_check_bind(dcommi_check *c, dcommi_check_op *op, dcommi_check_frame *f,
                              unsigned space, const dcomm_operand *o, int64_t need)
{
    dcommi_check_region r = {op->lane->frame->mem[space], 0, 0};
    int owner = -1;
    if (o != NULL && o->space != DCOMM_SPACE_NONE && !dcommi_check_piece(c, op, o, 0, &r, &owner)) {
        return false;
    }
    if (r.len < need) {
        return dcommi_check_refuse(c, op,
                                   "gives %" PRId64 " bytes of %s to a sub-plan that "
                                   "touches %" PRId64,
                                   r.len, dcommi_print_space(space), need);
    }
    f->mem[space] = r.mem;
    f->base[space] = r.at;
    f->size[space] = need;
    return true;
}

static bool dcommi_check_call(dcommi_check *c, dcommi_check_op *op)
{
    dcommi_check_lane *lane = op->lane;
    const dcommi_check_frame *outer = lane->frame;
    const dcomm_step *s = op->step;
    const dcomm_plan *sub = outer->plan->subs[s->sub];
    int64_t tag;
    if (!dcommi_check_eval(c, op, &s->tag, &tag)) {
        return false;
    }
    if (tag < 0 || tag > (int64_t)outer->plan->ntags - (int64_t)sub->ntags) {
        return dcommi_check_refuse(c, op, "tags %" PRId64 "+%" PRIu32 " of %" PRIu32, tag,
                                   sub->ntags, outer->plan->ntags);
    }
    dcommi_check_frame *f = dcommi_check_get(c, sizeof *f);
    int *ranks = f != NULL ? dcommi_check_get(c, (size_t)sub->nranks * sizeof *ranks) : NULL;
    if (ranks == NULL) {
        return false;
    }
    for (int i = 0; i < sub->nranks; i++) {
        ranks[i] = outer->ranks[outer->plan->table[s->group + (uint32_t)i]];
    }
    f->plan = sub;
    f->caller = lane;
    f->ranks = ranks;
    f->rank = outer->rank;
    f->tag = outer->tag + tag;
    f->counter = outer->counter + s->slot;
    f->slot = outer->slot + (s->word > 0 ? s->word : 0);
    const dcomm_operand *in = s->nsrc > 0 ? &outer->plan->operands[s->src] : NULL;
    f->mem[DCOMM_SPACE_STATE] = outer->mem[DCOMM_SPACE_STATE];
    f->base[DCOMM_SPACE_STATE] = outer->base[DCOMM_SPACE_STATE];
    f->size[DCOMM_SPACE_STATE] = outer->size[DCOMM_SPACE_STATE];
    if (!dcommi_check_bind(c, op, f, DCOMM_SPACE_IN, in, sub->in_bytes) ||
        !dcommi_check_bind(c, op, f, DCOMM_SPACE_OUT, &s->dst, sub->out_bytes) ||
        !dcommi_check_own_mem(c, f, DCOMM_SPACE_SCRATCH, sub->scratch_bytes, DCOMMI_CHECK_UNDEF) ||
        !dcommi_check_own_mem(c, f, DCOMM_SPACE_WORDS, 8 * (int64_t)sub->nwords,
                              DCOMMI_CHECK_ZERO)) {
        return false;
    }
    lane->blocked = true;
    return sub->nlanes == 0 ? dcommi_check_complete(c, op)
                            : dcommi_check_start(c, f, lane->comp + 2, lane->vc, lane->level);
}

/* A lane has run to its end, all that it started included. */
static bool dcommi_check_lane_end(dcommi_check *c, dcommi_check_lane *lane)
{
    dcommi_check_frame *f = lane->frame;
    lane->done = true;
    dcommi_check_join(c, f->end_vc, lane->vc);
    f->level = f->level > lane->level ? f->level : lane->level;
    dcommi_check_vc_free(c, lane->vc);
    if (--f->lanes_left > 0 || f->caller == NULL) {
        return true;
    }
    dcommi_check_lane *caller = f->caller;
    dcommi_check_join(c, caller->vc, f->end_vc);
    f->mem[DCOMM_SPACE_SCRATCH]->end_vc = f->end_vc;
    caller->op.level = caller->op.level > f->level ? caller->op.level : f->level;
    return dcommi_check_complete(c, &caller->op);
}

/* FENCE, and the end of a lane: false when there is still something to wait for. */
static bool dcommi_check_fence(dcommi_check *c, dcommi_check_lane *lane)
{
    lane->at_fence = lane->outstanding > 0;
    if (lane->at_fence) {
        lane->blocked = true;
        return false;
    }
    if (lane->async_vc != NULL) {
        dcommi_check_join(c, lane->vc, lane->async_vc);
        dcommi_check_vc_free(c, lane->async_vc);
        lane->async_vc = NULL;
    }
    lane->level = lane->level > lane->async_level ? lane->level : lane->async_level;
    lane->op.level = lane->level;
    lane->vc[lane->comp + 1]++;
    return true;
}

static bool dcommi_check_loop(dcommi_check *c, dcommi_check_lane *lane)
{
    dcommi_check_op *op = &lane->op;
    int64_t trips;
    if (!dcommi_check_eval(c, op, &op->step->value, &trips)) {
        return false;
    }
    if (trips <= 0 || op->step->body == 0) {
        lane->pc += op->step->body + 1;
    } else {
        lane->open[lane->depth] = lane->pc;
        lane->index[lane->depth] = 0;
        lane->trips[lane->depth++] = trips;
    }
    return dcommi_check_complete(c, op);
}

static bool dcommi_check_step(dcommi_check *c, dcommi_check_lane *lane)
{
    const dcomm_plan *p = lane->frame->plan;
    const dcomm_step *s = &p->steps[p->lanes[lane->number].first + lane->pc];
    dcommi_check_op *op = &lane->op;
    memset(op, 0, sizeof *op);
    op->lane = lane;
    op->step = s;
    op->at = lane->pc;
    memcpy(op->index, lane->index, sizeof op->index);
    op->vc = lane->vc;
    op->comp = lane->comp;
    op->clock = lane->vc[lane->comp] + 1;
    op->level = lane->level;
    op->peer = -1;
    if (--c->budget < 0) {
        return dcommi_check_refuse(c, op, "too many steps to check");
    }
    if ((s->kind == DCOMM_STEP_COPY || s->kind == DCOMM_STEP_REDUCE) &&
        (!dcommi_check_must_wait(c, lane) || lane->blocked)) {
        return c->status == DCOMM_OK;
    }
    if ((s->flags & DCOMM_STEP_ASYNC) != 0 && s->kind != DCOMM_STEP_EXPOSE) {
        op = dcommi_check_detach(c, lane);
        if (op == NULL) {
            return false;
        }
        lane->vc[lane->comp]++;
        lane->pc++;
    }
    switch (s->kind) {
    case DCOMM_STEP_SEND:
    case DCOMM_STEP_RECV:
    case DCOMM_STEP_RECV_REDUCE:
        return dcommi_check_post(c, op);
    case DCOMM_STEP_EXPOSE:
        return dcommi_check_do_expose(c, op);
    case DCOMM_STEP_SIGNAL:
        return dcommi_check_do_signal(c, op);
    case DCOMM_STEP_WAIT:
        return dcommi_check_do_wait(c, op);
    case DCOMM_STEP_FENCE:
        return !dcommi_check_fence(c, lane) || dcommi_check_complete(c, op);
    case DCOMM_STEP_LOOP:
        return dcommi_check_loop(c, lane);
    case DCOMM_STEP_END: {
        int d = lane->depth - 1;
        if (++lane->index[d] < lane->trips[d]) {
            lane->pc = lane->open[d];
        } else {
            lane->index[d] = 0;
            lane->depth = d;
        }
        return dcommi_check_complete(c, op);
    }
    case DCOMM_STEP_CALL:
        return dcommi_check_call(c, op);
    default:
        return dcommi_check_do_local(c, op);
    }
}

/* Go on with a lane as far as it can. */
static bool dcommi_check_advance(dcommi_check *c, dcommi_check_lane *lane)
{
    c->running = lane;
    while (!lane->blocked && !lane->done && c->status == DCOMM_OK) {
        uint32_t count = lane->frame->plan->lanes[lane->number].count;
        if (lane->pc < count) {
            if (!dcommi_check_step(c, lane)) {
                return false;
            }
        } else if (dcommi_check_fence(c, lane) && !dcommi_check_lane_end(c, lane)) {
            return false;
        }
    }
    c->running = NULL;
    return c->status == DCOMM_OK;
}

/* Nothing can go on: say who waits for what. */
static void dcommi_check_deadlock(dcommi_check *c)
{
    char text[DCOMMI_MESSAGE_MAX];
    size_t used = 0;
    int named = 0, left = 0;
    for (const dcommi_check_lane *l = c->lanes; l != NULL; l = l->all) {
        if (l->done || (!l->at_fence && l->op.step->kind == DCOMM_STEP_CALL)) {
            continue;
        }
        if (named == 3 || used + 160 > sizeof text) {
            left++;
            continue;
        }
        const dcommi_check_op *op = l->at_fence ? l->pending : &l->op;
        used += (size_t)snprintf(text + used, sizeof text - used, "%s%s waits%s",
                                 named++ > 0 ? "; " : "", dcommi_check_op_text(c, op).s,
                                 l->at_fence ? " (async, at a fence)" : "");
    }
    if (left > 0) {
        snprintf(text + used, sizeof text - used, "; and %d more lanes", left);
    }
    c->status = dcommi_fail(DCOMM_ERR_PLAN, "deadlock: %s", text);
}

#endif
/* ==== include/dcomm/impl/check_spec.h ====================================================== */
/* check_spec.h - what each collective is to compute: where inputs lie, and what the results are. */
#ifndef DCOMMI_CHECK_SPEC_H
#define DCOMMI_CHECK_SPEC_H


/* Bytes of a buffer that hold input bytes [src, src+len) folded over the ranks in mask. */
typedef struct dcommi_check_part {
    int64_t at, len, src;
    uint64_t mask;
} dcommi_check_part;

/* One rank's buffers. */
typedef struct dcommi_check_layout {
    int64_t in_bytes, out_bytes;
    int64_t in_place_at; /* where in OUT an input in place begins; -1: it is in IN */
    int64_t input_bytes; /* how much of it lies there */
    dcommi_check_part part[DCOMMI_CHECK_RANKS];
    int nparts;
} dcommi_check_layout;

typedef struct dcommi_check_shape {
    int64_t length[DCOMMI_CHECK_RANKS], at[DCOMMI_CHECK_RANKS]; /* v: each rank's block, bytes */
    int64_t total;                                              /* end of the last block */
} dcommi_check_shape;

static bool dcommi_check_is_v(dcomm_coll coll)
{
    return coll == DCOMM_COLL_REDUCE_SCATTERV || coll == DCOMM_COLL_ALLGATHERV ||
           coll == DCOMM_COLL_GATHERV || coll == DCOMM_COLL_SCATTERV;
}

/* count elements in bytes; -1 when that is beyond what a plan can say. */
static int64_t dcommi_check_bytes(const dcommi_check *c, size_t count)
{
    int64_t bytes;
    if (__builtin_mul_overflow(count, c->element, &bytes) || bytes > INT64_MAX / 128) {
        return -1;
    }
    return bytes;
}

/* The ranks' blocks of the operation, which for the plain collectives are all `count` long. */
static dcomm_status dcommi_check_shape_of(const dcommi_check *c, dcommi_check_shape *shape)
{
    const dcomm_check_spec *spec = c->spec;
    bool v = dcommi_check_is_v(spec->coll);
    memset(shape, 0, sizeof *shape);
    int64_t packed = 0;
    for (int i = 0; i < c->n; i++) {
        int64_t length = dcommi_check_bytes(c, v ? spec->counts[i] : spec->count);
        int64_t at = v && spec->displs != NULL ? dcommi_check_bytes(c, spec->displs[i]) : packed;
        if (length < 0 || at < 0) {
            return dcommi_fail(DCOMM_ERR_INVALID, "the spec's sizes exceed 2^63 bytes");
        }
        shape->length[i] = length;
        shape->at[i] = at;
        packed += length;
        shape->total = dcommi_max64(shape->total, at + length);
    }
    return DCOMM_OK;
}

static void dcommi_check_expect(dcommi_check_layout *l, int64_t at, int64_t len, uint64_t mask,
                                int64_t src)
{
    dcommi_check_part part = {at, len, src, mask};
    l->part[l->nparts++] = part;
}

static dcomm_status dcommi_check_alltoallv(const dcommi_check *c, int rank, dcommi_check_layout *l)
{
    const size_t *counts = c->spec->counts;
    for (int p = 0; p < c->n; p++) {
        int64_t src = 0;
        for (int q = 0; q < rank; q++) {
            src += dcommi_check_bytes(c, counts[p * c->n + q]);
        }
        int64_t out = dcommi_check_bytes(c, counts[rank * c->n + p]);
        int64_t len = dcommi_check_bytes(c, counts[p * c->n + rank]);
        if (out < 0 || len < 0) {
            return dcommi_fail(DCOMM_ERR_INVALID, "the spec's sizes exceed 2^63 bytes");
        }
        dcommi_check_expect(l, l->out_bytes, len, (uint64_t)1 << p, src);
        l->out_bytes += len;
        l->in_bytes += out;
    }
    return DCOMM_OK;
}

/* Where rank's input lies and what its output should be. */
static dcomm_status dcommi_check_layout_of(const dcommi_check *c, int rank, dcommi_check_layout *l)
{
    const dcomm_check_spec *spec = c->spec;
    dcommi_check_shape s;
    bool root = rank == spec->root, here = spec->in_place;
    memset(l, 0, sizeof *l);
    l->in_place_at = -1;
    if (spec->coll == DCOMM_COLL_ALLTOALLV) {
        return dcommi_check_alltoallv(c, rank, l);
    }
    DCOMMI_TRY(dcommi_check_shape_of(c, &s));
    int64_t mine = s.length[rank], at = s.at[rank];
    switch (spec->coll) {
    case DCOMM_COLL_ALLREDUCE:
    case DCOMM_COLL_REDUCE:
        l->in_bytes = l->out_bytes = mine;
        if (spec->coll == DCOMM_COLL_ALLREDUCE || root) {
            dcommi_check_expect(l, 0, mine, c->all, 0);
        } else if (!here) {
            l->out_bytes = 0;
        }
        l->in_place_at = here ? 0 : -1;
        break;
    case DCOMM_COLL_REDUCE_SCATTER:
    case DCOMM_COLL_REDUCE_SCATTERV:
        l->in_bytes = s.total;
        l->out_bytes = here ? s.total : mine;
        l->in_place_at = here ? 0 : -1;
        dcommi_check_expect(l, here ? at : 0, mine, c->all, at);
        break;
    case DCOMM_COLL_ALLGATHER:
    case DCOMM_COLL_ALLGATHERV:
    case DCOMM_COLL_GATHER:
    case DCOMM_COLL_GATHERV: {
        bool all = spec->coll == DCOMM_COLL_ALLGATHER || spec->coll == DCOMM_COLL_ALLGATHERV;
        l->in_bytes = mine;
        l->out_bytes = all || root ? s.total : 0;
        l->in_place_at = here && (all || root) ? at : -1;
        for (int p = 0; p < c->n && (all || root); p++) {
            dcommi_check_expect(l, s.at[p], s.length[p], (uint64_t)1 << p, 0);
        }
        break;
    }
    case DCOMM_COLL_BROADCAST:
        l->in_bytes = root ? mine : 0;
        l->out_bytes = mine;
        l->in_place_at = here && root ? 0 : -1;
        dcommi_check_expect(l, 0, mine, (uint64_t)1 << spec->root, 0);
        break;
    case DCOMM_COLL_SCATTER:
    case DCOMM_COLL_SCATTERV:
        l->in_bytes = root ? s.total : 0;
        l->out_bytes = here && root ? s.total : mine;
        l->in_place_at = here && root ? 0 : -1;
        dcommi_check_expect(l, here && root ? at : 0, mine, (uint64_t)1 << spec->root, at);
        break;
    case DCOMM_COLL_ALLTOALL:
        l->in_bytes = l->out_bytes = s.total;
        l->in_place_at = here ? 0 : -1;
        for (int p = 0; p < c->n; p++) {
            dcommi_check_expect(l, s.at[p], s.length[p], (uint64_t)1 << p, at);
        }
        break;
    case DCOMM_COLL_BARRIER:
        break;
    default: /* send, recv, a plan of the caller's own: the plans say what they touch */
        l->in_bytes = c->rank[rank].plan->in_bytes;
        l->out_bytes = c->rank[rank].plan->out_bytes;
        l->in_place_at = here ? 0 : -1;
        break;
    }
    l->input_bytes = l->in_place_at < 0 ? 0 : l->in_bytes;
    if (l->in_place_at >= 0) {
        l->input_bytes = dcommi_min64(l->in_bytes, l->out_bytes - l->in_place_at);
    }
    return DCOMM_OK;
}

/* The caller's own mistakes in the spec. */
static dcomm_status dcommi_check_spec_valid(const dcomm_check_spec *spec, int nranks)
{
    bool rooted = spec->coll == DCOMM_COLL_BROADCAST || spec->coll == DCOMM_COLL_REDUCE ||
                  spec->coll == DCOMM_COLL_GATHER || spec->coll == DCOMM_COLL_SCATTER ||
                  spec->coll == DCOMM_COLL_GATHERV || spec->coll == DCOMM_COLL_SCATTERV;
    if ((unsigned)spec->coll >= DCOMM_COLL_COUNT ||
        (unsigned)spec->dtype >= (unsigned)DCOMM_DTYPE_COUNT) {
        return dcommi_fail(DCOMM_ERR_INVALID, "spec: collective %d, dtype %d", (int)spec->coll,
                           (int)spec->dtype);
    }
    if (rooted && (spec->root < 0 || spec->root >= nranks)) {
        return dcommi_fail(DCOMM_ERR_INVALID, "spec: root %d of %d ranks", spec->root, nranks);
    }
    if ((dcommi_check_is_v(spec->coll) || spec->coll == DCOMM_COLL_ALLTOALLV) &&
        spec->counts == NULL) {
        return dcommi_fail(DCOMM_ERR_INVALID, "spec: counts is NULL");
    }
    if (spec->coll == DCOMM_COLL_ALLTOALLV && spec->in_place) {
        return dcommi_fail(DCOMM_ERR_INVALID, "spec: all-to-all-v is never in place");
    }
    return DCOMM_OK;
}

/* Compare a rank's OUT with what it should hold. */
static dcomm_status dcommi_check_results(dcommi_check *c, int rank)
{
    static const char *const refusal = "rank %d: OUT bytes %" PRId64 " to %" PRId64 " %s";
    dcommi_check_layout l;
    DCOMMI_TRY(dcommi_check_layout_of(c, rank, &l));
    const dcommi_check_mem *out = c->rank[rank].mem[DCOMM_SPACE_OUT];
    for (int i = 0; i < l.nparts; i++) {
        const dcommi_check_part *part = &l.part[i];
        dcommi_check_runs *runs = &c->merged;
        int64_t at = part->at, src = part->src;
        runs->n = 0;
        DCOMMI_TRY(dcommi_check_peek(out, part->at, part->len, runs));
        for (size_t k = 0; k < runs->n; k++) {
            const dcommi_check_value *v = &runs->run[k].v;
            int64_t end = at + runs->run[k].len;
            char text[192] = "";
            if (v->kind == DCOMMI_CHECK_UNDEF) {
                snprintf(text, sizeof text, "are never written");
            } else if (v->kind != DCOMMI_CHECK_SUM) {
                snprintf(text, sizeof text, "hold no contribution of any rank");
            } else if (v->mask != part->mask) {
                snprintf(text, sizeof text,
                         "hold the ranks 0x%" PRIx64 ", and should hold 0x%" PRIx64, v->mask,
                         part->mask);
            } else if (v->src != src) {
                snprintf(text, sizeof text,
                         "hold input from byte %" PRId64 ", and should from byte %" PRId64, v->src,
                         src);
            } else if (c->averages && (v->flags & DCOMMI_CHECK_DIVIDED) == 0) {
                snprintf(text, sizeof text, "were completed by no FINAL fold, so are no average");
            } else if (c->reduces && c->spec->rank_order &&
                       (v->flags & DCOMMI_CHECK_ORDERED) == 0) {
                snprintf(text, sizeof text, "were not folded in rank order%s",
                         c->element == 2 ? " in one step, as 16-bit sums must be" : "");
            }
            if (text[0] != '\0') {
                return dcommi_fail(DCOMM_ERR_PLAN, refusal, rank, at, end, text);
            }
            src += runs->run[k].len;
            at = end;
        }
    }
    return DCOMM_OK;
}

#endif

/* The memory of a rank at the start of a stage. */
static dcomm_status dcommi_check_stage_mem(dcommi_check *c, int rank)
{
    dcommi_check_rank *k = &c->rank[rank];
    const dcomm_plan *p = k->plan;
    dcommi_check_layout l;
    DCOMMI_TRY(dcommi_check_layout_of(c, rank, &l));
    dcommi_check_value undefined = {.kind = DCOMMI_CHECK_UNDEF};
    dcommi_check_value opaque = {.kind = DCOMMI_CHECK_OPAQUE};
    dcommi_check_value zero = {.kind = DCOMMI_CHECK_ZERO};
    dcommi_check_value input = {
        .kind = DCOMMI_CHECK_SUM, .flags = DCOMMI_CHECK_ORDERED, .mask = (uint64_t)1 << rank};
    for (unsigned space = DCOMM_SPACE_IN; space <= DCOMM_SPACE_WORDS; space++) {
        dcommi_check_mem *m = k->mem[space];
        if (m == NULL || space == DCOMM_SPACE_SCRATCH) {
            m = k->mem[space] = dcommi_check_mem_new(c, rank, space);
            if (m == NULL) {
                return DCOMM_ERR_NO_MEMORY;
            }
        } else {
            dcommi_check_mem_settle(m);
        }
    }
    dcommi_check_mem **mem = k->mem;
    /* In place, only the root of a reduce may write its buffer. */
    bool untouched =
        c->spec->coll == DCOMM_COLL_REDUCE && c->spec->in_place && rank != c->spec->root;
    mem[DCOMM_SPACE_OUT]->read_only = untouched;
    if (l.in_place_at < 0 || untouched) {
        input.src = mem[DCOMM_SPACE_IN]->size;
        DCOMMI_TRY(dcommi_check_mem_fill(mem[DCOMM_SPACE_IN], input.src, l.in_bytes, input));
    }
    int64_t out = mem[DCOMM_SPACE_OUT]->size;
    if (l.in_place_at >= 0 && out <= l.in_place_at + l.input_bytes) {
        int64_t from = dcommi_max64(out, l.in_place_at);
        DCOMMI_TRY(dcommi_check_mem_fill(mem[DCOMM_SPACE_OUT], out, l.in_place_at, undefined));
        input.src = from - l.in_place_at;
        DCOMMI_TRY(dcommi_check_mem_fill(mem[DCOMM_SPACE_OUT], from, l.in_place_at + l.input_bytes,
                                         input));
        out = dcommi_max64(out, l.in_place_at + l.input_bytes);
    }
    DCOMMI_TRY(dcommi_check_mem_fill(mem[DCOMM_SPACE_OUT], out, l.out_bytes, undefined));
    DCOMMI_TRY(dcommi_check_mem_fill(mem[DCOMM_SPACE_SCRATCH], 0, p->scratch_bytes, undefined));
    DCOMMI_TRY(dcommi_check_mem_fill(mem[DCOMM_SPACE_STATE], mem[DCOMM_SPACE_STATE]->size,
                                     p->state_bytes, opaque));
    return dcommi_check_mem_fill(mem[DCOMM_SPACE_WORDS], mem[DCOMM_SPACE_WORDS]->size,
                                 8 * (int64_t)p->nwords, zero);
}

/* Are the plans of this stage well formed, and do they belong together? */
static dcomm_status dcommi_check_stage_valid(dcommi_check *c)
{
    uint32_t budget = DCOMMI_CHECK_SUBPLANS;
    uint64_t width = 0;
    for (int i = 0; i < c->n; i++) {
        const dcomm_plan *p = c->rank[i].plan, *zero = c->rank[0].plan;
        char where[48];
        snprintf(where, sizeof where, c->stage > 0 ? "rank %d stage %d" : "rank %d", i, c->stage);
        if (p->rank != i || p->nranks != c->n) {
            return dcommi_fail(DCOMM_ERR_PLAN, "%s: its plan is for rank %d of %d, not %d of %d",
                               where, p->rank, p->nranks, i, c->n);
        }
        if (p->dtype != zero->dtype || p->op != zero->op) {
            return dcommi_fail(
                DCOMM_ERR_PLAN, "%s: dtype %s, op %s; rank 0 has %s, %s", where,
                dcomm_dtype_name((dcomm_dtype)p->dtype), dcomm_op_name((dcomm_op)p->op),
                dcomm_dtype_name((dcomm_dtype)zero->dtype), dcomm_op_name((dcomm_op)zero->op));
        }
        if (c->reduces && p->dtype != (unsigned)c->spec->dtype) {
            return dcommi_fail(DCOMM_ERR_PLAN, "%s: dtype %s, where the operation has %s", where,
                               dcomm_dtype_name((dcomm_dtype)p->dtype),
                               dcomm_dtype_name(c->spec->dtype));
        }
        DCOMMI_TRY(dcommi_check_plan_valid(p, where, 0, &budget));
        for (uint32_t j = 0; j < p->nlanes; j++) {
            width += dcommi_check_width(c, p, j);
        }
    }
    if (width > 8192 || c->budget <= 0) {
        return dcommi_fail(DCOMM_ERR_PLAN, "more than 8192 lanes in all: too many to check");
    }
    c->ncomps = 2 * (uint32_t)width;
    return DCOMM_OK;
}

static dcomm_status dcommi_check_stage_start(dcommi_check *c)
{
    c->lanes = NULL;
    c->running = NULL;
    c->nready = 0;
    c->nfree_vc = 0;
    c->free_ops = NULL;
    c->nmessages = 0;
    if (c->messages_capacity > 0) {
        memset(c->message, 0, c->messages_capacity * sizeof *c->message);
    }
    c->comps = dcommi_check_get(c, (c->ncomps + 1) / 2 * sizeof *c->comps);
    uint32_t *nothing = dcommi_check_vc_new(c);
    if (c->comps == NULL || nothing == NULL) {
        return DCOMM_ERR_NO_MEMORY;
    }
    uint32_t comp = 0;
    dcommi_check_log *log = &c->log[c->stage];
    for (int i = 0; i < c->n; i++) {
        dcommi_check_rank *k = &c->rank[i];
        const dcomm_plan *p = k->plan;
        DCOMMI_TRY(dcommi_check_stage_mem(c, i));
        k->peer_waiters = NULL;
        k->counters = dcommi_check_get(c, (size_t)p->ncounters * sizeof *k->counters);
        k->exposed = dcommi_check_get(c, (size_t)p->nslots * (size_t)c->n * sizeof *k->exposed);
        dcommi_check_frame *f = dcommi_check_get(c, sizeof *f);
        if (k->counters == NULL || k->exposed == NULL || f == NULL) {
            return DCOMM_ERR_NO_MEMORY;
        }
        log->counters[i] = k->counters;
        log->ncounters[i] = p->ncounters;
        c->identity[i] = i;
        f->plan = p;
        f->ranks = c->identity;
        f->rank = i;
        for (unsigned space = DCOMM_SPACE_IN; space <= DCOMM_SPACE_WORDS; space++) {
            f->mem[space] = k->mem[space];
            f->size[space] = k->mem[space]->size;
        }
        f->size[DCOMM_SPACE_IN] = dcommi_min64(p->in_bytes, f->size[DCOMM_SPACE_IN]);
        f->size[DCOMM_SPACE_OUT] = dcommi_min64(p->out_bytes, f->size[DCOMM_SPACE_OUT]);
        f->size[DCOMM_SPACE_STATE] = p->state_bytes;
        k->frame = f;
        if (!dcommi_check_start(c, f, comp, nothing, 0)) {
            return c->status;
        }
        for (uint32_t j = 0; j < p->nlanes; j++) {
            comp += 2 * dcommi_check_width(c, p, j);
        }
    }
    return DCOMM_OK;
}

/* Who has heard of whom, and whether exposed memory is still being read when its owner is done. */
static void dcommi_check_stage_end(dcommi_check *c)
{
    uint64_t heard[DCOMMI_CHECK_RANKS];
    for (int i = 0; i < c->n; i++) {
        const uint32_t *end = c->rank[i].frame->end_vc;
        heard[i] = c->rank[i].heard;
        for (uint32_t k = 0; k < c->ncomps; k += 2) {
            if (end[k] > 0) {
                heard[i] |= c->rank[c->comps[k / 2].rank].heard;
            }
        }
    }
    for (int i = 0; i < c->n; i++) {
        c->rank[i].heard = heard[i];
    }
    for (dcommi_check_mem *m = c->mems; m != NULL && c->finding[0] == '\0'; m = m->next) {
        const uint32_t *end = m->end_vc != NULL ? m->end_vc : c->rank[m->rank].frame->end_vc;
        for (uint32_t k = 0; m->peer_last != NULL && k < c->ncomps; k++) {
            if (m->peer_last[k] > end[k]) {
                snprintf(c->finding, sizeof c->finding,
                         "rank %d may be done before %s has read the %s that it exposes: it waits "
                         "for no signal of that lane after the read",
                         m->rank, dcommi_check_lane_text(c, k).s, dcommi_print_space(m->space));
                break;
            }
        }
        m->peer_last = NULL;
    }
}

/* A stage that a plan has made, to be given back to it. */
typedef struct dcommi_check_made {
    const dcomm_plan *maker, *plan;
    int rank;
} dcommi_check_made;

/* Let every rank say what comes next. *more: there is another stage, to be executed. */
static dcomm_status dcommi_check_next_stage(dcommi_check *c, dcommi_check_made *made, size_t *nmade,
                                            bool *more)
{
    int going = 0;
    *more = false;
    for (int i = 0; i < c->n; i++) {
        const dcommi_check_mem *words = c->rank[i].mem[DCOMM_SPACE_WORDS];
        for (uint32_t w = 0; c->rank[i].plan->next != NULL && w < c->rank[i].plan->nwords; w++) {
            bool known;
            c->merged.n = 0;
            DCOMMI_TRY(dcommi_check_peek(words, 8 * (int64_t)w, 8, &c->merged));
            dcommi_check_number(c, &c->merged, &known);
            if (!known) {
                c->spec_holds = false;
                return DCOMM_OK;
            }
        }
    }
    for (int i = 0; i < c->n; i++) {
        const dcomm_plan *p = c->rank[i].plan;
        if (p->next == NULL) {
            continue;
        }
        uint64_t *numbers = dcommi_check_get(c, (size_t)p->nwords * sizeof *numbers);
        if (numbers == NULL) {
            return DCOMM_ERR_NO_MEMORY;
        }
        for (uint32_t w = 0; w < p->nwords; w++) {
            bool known;
            c->merged.n = 0;
            DCOMMI_TRY(dcommi_check_peek(c->rank[i].mem[DCOMM_SPACE_WORDS], 8 * (int64_t)w, 8,
                                         &c->merged));
            numbers[w] = (uint64_t)dcommi_check_number(c, &c->merged, &known);
        }
        dcomm_status status = DCOMM_OK;
        const dcomm_plan *next = p->next(p->next_user, numbers, p->nwords, &status);
        if (next == NULL && status < 0) {
            return dcommi_fail(DCOMM_ERR_PLAN, "rank %d: its stage %d fails: %s", i, c->stage + 1,
                               dcomm_strerror(status));
        }
        if (next != NULL) {
            dcommi_check_made m = {p, next, i};
            made[(*nmade)++] = m;
            going++;
        }
    }
    if (going > 0 && going < c->n) {
        return dcommi_fail(DCOMM_ERR_PLAN, "after stage %d only %d of %d ranks go on", c->stage,
                           going, c->n);
    }
    for (int i = 0; i < going; i++) {
        c->rank[i].plan = made[*nmade - (size_t)going + (size_t)i].plan;
    }
    *more = going > 0;
    if (*more && ++c->stage == DCOMMI_CHECK_STAGES) {
        return dcommi_fail(DCOMM_ERR_PLAN, "more than %d stages", DCOMMI_CHECK_STAGES);
    }
    return DCOMM_OK;
}

static dcomm_status dcommi_check_end(dcommi_check *c)
{
    if (c->spec->coll == DCOMM_COLL_BARRIER) {
        for (int i = 0; i < c->n && c->finding[0] == '\0'; i++) {
            if (c->rank[i].heard != c->all) {
                snprintf(c->finding, sizeof c->finding,
                         "rank %d may leave the barrier before rank %d has come", i,
                         __builtin_ctzll(c->all & ~c->rank[i].heard));
            }
        }
    }
    for (int i = 0; i < c->n && c->spec_holds; i++) {
        DCOMMI_TRY(dcommi_check_results(c, i));
    }
    return DCOMM_OK;
}

static dcomm_status dcommi_check_stages(dcommi_check *c, dcommi_check_made *made, size_t *nmade)
{
    bool more = true;
    while (more) {
        DCOMMI_TRY(dcommi_check_stage_valid(c));
        DCOMMI_TRY(dcommi_check_stage_start(c));
        while (c->nready > 0) {
            if (!dcommi_check_advance(c, c->ready[--c->nready])) {
                return c->status;
            }
        }
        for (const dcommi_check_lane *l = c->lanes; l != NULL; l = l->all) {
            if (!l->done) {
                dcommi_check_deadlock(c);
                return c->status;
            }
        }
        dcommi_check_stage_end(c);
        DCOMMI_TRY(dcommi_check_next_stage(c, made, nmade, &more));
    }
    return dcommi_check_end(c);
}

#endif

static void dcommi_check_pass_free(dcommi_check *c)
{
    for (dcommi_check_mem *m = c->mems; m != NULL; m = m->next) {
        dcommi_free(m->cell);
    }
    for (size_t i = 0; i < c->nencodings; i++) {
        dcommi_free(c->encoding[i].runs.run);
        memset(&c->encoding[i], 0, sizeof c->encoding[i]);
    }
    c->mems = NULL;
    c->nencodings = 0;
    c->pool.n = 0;
    c->pool.free = 0;
}

/* Execute everything once. */
static dcomm_status dcommi_check_pass(dcommi_check *c)
{
    dcommi_check_made *made = dcommi_calloc((size_t)c->n * DCOMMI_CHECK_STAGES, sizeof *made);
    size_t nmade = 0;
    if (made == NULL) {
        return DCOMM_ERR_NO_MEMORY;
    }
    c->status = DCOMM_OK;
    c->budget = DCOMMI_CHECK_BUDGET;
    c->finding[0] = '\0';
    c->stage = 0;
    c->waited = false;
    c->edges = 0;
    c->messages = c->signals = c->steps = 0;
    c->spec_holds = c->spec->coll < DCOMM_COLL_SEND && (c->scenario != DCOMMI_CHECK_SHORTEST);
    memset(c->log, 0, sizeof c->log);
    if (c->trace != NULL) {
        c->trace->n = 0;
    }
    for (int i = 0; i < c->n; i++) {
        memset(&c->rank[i], 0, sizeof c->rank[i]);
        c->rank[i].plan = c->plans[i];
        c->rank[i].heard = (uint64_t)1 << i;
    }
    dcomm_status status = dcommi_check_stages(c, made, &nmade);
    while (nmade-- > 0) {
        const dcomm_plan *maker = made[nmade].maker;
        if (maker->release != NULL) {
            maker->release(maker->next_user, made[nmade].plan);
        }
    }
    dcommi_free(made);
    c->total_bytes = 0;
    for (int i = 0; i < c->n; i++) {
        c->total_bytes += c->rank[i].bytes;
    }
    dcommi_check_pass_free(c);
    return status;
}

/* Passes until the order of everything is proved, or no further order is. */
static dcomm_status dcommi_check_scenario(dcommi_check *c)
{
    dcomm_status status = DCOMM_OK;
    uint64_t edges = 0;
    c->has_old_log = false;
    for (int pass = 0; pass < 16; pass++) {
        status = dcommi_check_pass(c);
        dcommi_check_blocks_free(&c->log_blocks);
        c->log_blocks = c->blocks;
        c->blocks = NULL;
        memcpy(c->old_log, c->log, sizeof c->log);
        bool settled = !c->waited || (c->has_old_log && c->edges == edges);
        edges = c->edges;
        /* The first pass has no order from counters at all, so its depth of messages is wrong. */
        bool counted = !c->waited || c->has_old_log;
        c->has_old_log = true;
        if (status < 0 || (counted && c->finding[0] == '\0') || settled) {
            break;
        }
    }
    dcommi_check_blocks_free(&c->log_blocks);
    if (status == DCOMM_OK && c->finding[0] != '\0') {
        status = dcommi_fail(DCOMM_ERR_PLAN, "%s", c->finding);
    }
    return status;
}

static void dcommi_check_fill_report(const dcommi_check *c, dcomm_check_report *report)
{
    report->messages = c->messages;
    report->signals = c->signals;
    report->total_bytes = c->total_bytes;
    report->steps = c->steps;
    report->max_rank_bytes = 0;
    for (int i = 0; i < c->n; i++) {
        report->max_rank_bytes = dcommi_max64(report->max_rank_bytes, c->rank[i].bytes);
    }
}

/* dcomm_plan_check, and what happened, if trace is not NULL (free trace->event). */
static dcomm_status dcommi_check_plans(const dcomm_plan *const *plans, int nranks,
                                       const dcomm_check_spec *spec, dcomm_check_report *report,
                                       dcommi_check_trace *trace)
{
    static const int order[DCOMMI_CHECK_SCENARIOS] = {DCOMMI_CHECK_LONGEST, DCOMMI_CHECK_SHORTEST,
                                                      DCOMMI_CHECK_ONE, DCOMMI_CHECK_RANDOM,
                                                      DCOMMI_CHECK_RANDOM_TOO};
    if (report != NULL) {
        memset(report, 0, sizeof *report);
    }
    if (plans == NULL || spec == NULL || nranks < 1 || nranks > DCOMMI_CHECK_RANKS) {
        return dcommi_fail(DCOMM_ERR_INVALID, "dcomm_plan_check: %s, for %d ranks of at most %d",
                           plans == NULL  ? "plans is NULL"
                           : spec == NULL ? "spec is NULL"
                                          : "bad nranks",
                           nranks, DCOMMI_CHECK_RANKS);
    }
    DCOMMI_TRY(dcommi_check_spec_valid(spec, nranks));
    dcomm_status status = DCOMM_OK;
    dcommi_check *c = dcommi_alloc(sizeof *c);
    if (c == NULL) {
        return DCOMM_ERR_NO_MEMORY;
    }
    c->plans = plans;
    c->n = nranks;
    c->all = nranks == 64 ? ~(uint64_t)0 : ((uint64_t)1 << nranks) - 1;
    c->spec = spec;
    c->trace = trace;
    c->element = (int64_t)dcomm_dtype_size(spec->dtype);
    c->reduces = spec->coll == DCOMM_COLL_ALLREDUCE || spec->coll == DCOMM_COLL_REDUCE ||
                 spec->coll == DCOMM_COLL_REDUCE_SCATTER ||
                 spec->coll == DCOMM_COLL_REDUCE_SCATTERV;
    bool varies = false;
    uint32_t budget = DCOMMI_CHECK_SUBPLANS;
    for (int i = 0; i < nranks && status == DCOMM_OK; i++) {
        char where[24];
        snprintf(where, sizeof where, "rank %d", i);
        status = plans[i] == NULL ? dcommi_fail(DCOMM_ERR_INVALID, "plans[%d] is NULL", i)
                                  : dcommi_check_plan_valid(plans[i], where, 0, &budget);
        varies = varies || (status == DCOMM_OK && dcommi_check_plan_varies(plans[i]));
    }
    c->averages =
        status == DCOMM_OK && c->reduces && nranks > 1 && plans[0]->op == (unsigned)DCOMM_AVG;
    for (int i = 0; i < (varies ? DCOMMI_CHECK_SCENARIOS : 1) && status == DCOMM_OK; i++) {
        c->scenario = order[i];
        status = dcommi_check_scenario(c);
        if (i == 0 && report != NULL && status == DCOMM_OK) {
            dcommi_check_fill_report(c, report);
        }
        c->trace = NULL; /* it is of the longest lengths, like the report */
    }
    if (status < 0 && report != NULL) {
        snprintf(report->message, sizeof report->message, "%s", dcommi_message);
    }
    dcommi_free(c->pool.reader);
    dcommi_free(c->arrived.run);
    dcommi_free(c->given.run);
    dcommi_free(c->folded.run);
    dcommi_free(c->merged.run);
    dcommi_free(c->encoding);
    dcommi_free(c->free_vc);
    dcommi_free(c->ready);
    dcommi_free(c->message);
    dcommi_free(c);
    return status;
}

dcomm_status dcomm_plan_check(const dcomm_plan *const *plans, int nranks,
                              const dcomm_check_spec *spec, dcomm_check_report *report)
{
    return dcommi_check_plans(plans, nranks, spec, report, NULL);
}

#endif
/* ==== include/dcomm/impl/api_model.h ======================================================= */
/* api_model.h - the public side of the model: a textbook's network, the price of a set of plans. */
#ifndef DCOMMI_API_MODEL_H
#define DCOMMI_API_MODEL_H

/* ==== include/dcomm/impl/model_run.h ======================================================= */
/* model_run.h - the priced execution of a set of plans: all ranks of them in order of time, or,
 * where ranks are alike, those that stand for the others. Loops are not unrolled: an execution
 * takes memory for its ranks and for the messages under way. */
#ifndef DCOMMI_MODEL_RUN_H
#define DCOMMI_MODEL_RUN_H

/* ==== include/dcomm/impl/model_step.h ====================================================== */
/* model_step.h - what each step of a plan costs, and what it sets going. */
#ifndef DCOMMI_MODEL_STEP_H
#define DCOMMI_MODEL_STEP_H

/* ==== include/dcomm/impl/model_queue.h ===================================================== */
/* model_queue.h - what a priced execution is made of: ranks, frames and lanes; what is going to
 * happen, ordered by time; messages of which one side has come. */
#ifndef DCOMMI_MODEL_QUEUE_H
#define DCOMMI_MODEL_QUEUE_H

/* ==== include/dcomm/impl/model.h =========================================================== */
/* model.h - the network that the model prices plans on: times as functions of bytes, what is
 * between two ranks, and which ranks are alike. Integer picoseconds throughout, so that every rank
 * comes to the same answer. */
#ifndef DCOMMI_MODEL_H
#define DCOMMI_MODEL_H


_Static_assert((int)DCOMMI_LEVEL_HOST == (int)DCOMM_LINK_HOST &&
                   (int)DCOMMI_LEVEL_CORE == (int)DCOMM_LINK_CORE,
               "links are named after the level at which two ranks part");

/* ---- times as functions of bytes ---- */

#define DCOMMI_MODEL_MOST (INT64_MAX >> 10) /* of one duration: two and a half hours */
#define DCOMMI_SLOPE_MOST 1000000000000     /* 1 us per byte, in ps per MiB */

/* A dcomm_curve with its slopes: ps per MiB from each point on. */
typedef struct dcommi_curve {
    int64_t n;
    int64_t from[DCOMM_CURVE_POINTS], ps[DCOMM_CURVE_POINTS], slope[DCOMM_CURVE_POINTS];
} dcommi_curve;

static dcommi_curve dcommi_curve_make(const dcomm_curve *c)
{
    dcommi_curve k = {.n = c->n};
    for (int64_t i = 0; i < c->n; i++) {
        k.from[i] = c->bytes[i];
        k.ps[i] = c->ps[i];
        if (i + 1 < c->n) {
            /* Double has room for the product, and the quotient is rounded the same everywhere. */
            double slope = (double)(c->ps[i + 1] - c->ps[i]) * 1048576.0 /
                           (double)(c->bytes[i + 1] - c->bytes[i]);
            slope = slope > DCOMMI_SLOPE_MOST ? DCOMMI_SLOPE_MOST : slope;
            k.slope[i] = (int64_t)(slope < -DCOMMI_SLOPE_MOST ? -DCOMMI_SLOPE_MOST : slope);
        } else if (i > 0) {
            k.slope[i] = dcommi_max64(k.slope[i - 1], 0);
        }
    }
    return k;
}

static inline int64_t dcommi_curve_at(const dcommi_curve *k, int64_t bytes)
{
    if (k->n == 0) {
        return 0;
    }
    int64_t i = k->n - 1;
    while (i > 0 && bytes < k->from[i]) {
        i--;
    }
    int64_t more = dcommi_max64(bytes - k->from[i], 0), whole;
    if (__builtin_mul_overflow(more >> 20, k->slope[i], &whole) || whole > DCOMMI_MODEL_MOST) {
        return DCOMMI_MODEL_MOST;
    }
    return k->ps[i] + whole + (((more & 1048575) * k->slope[i]) >> 20);
}

/* A curve that makes sense: points ascending, no time negative or beyond what sums can hold. */
static bool dcommi_curve_valid(const dcomm_curve *c)
{
    bool good = c->n >= 0 && c->n <= DCOMM_CURVE_POINTS;
    for (int64_t i = 0; good && i < c->n; i++) {
        good = c->ps[i] >= 0 && c->ps[i] <= DCOMMI_MODEL_MOST && c->bytes[i] >= 0 &&
               (i == 0 || c->bytes[i] > c->bytes[i - 1]);
    }
    return good;
}

/* ---- the network ---- */

typedef struct dcommi_link {
    int64_t alpha, overhead, signal, tell, eager;
    bool by_core;
    dcommi_curve message, fold, read, reduce, shared;
} dcommi_link;

/* Ranks r and r + period are alike: a plan that looks the same to all ranks is priced by the first
 * `period` of them, which stand for the others. period == nranks: nobody stands for anybody. */
typedef struct dcommi_terrain {
    const dcommi_groups *groups; /* NULL: everybody is near everybody */
    int nranks, period;
    bool rough; /* some of those share a port, where they would take turns that one does not see */
    dcommi_link link[DCOMM_LINK_COUNT];
    dcommi_curve copy, fold;
    int64_t step, call;
} dcommi_terrain;

static dcomm_status dcommi_tuning_check(const dcomm_tuning *t)
{
    bool good = dcommi_curve_valid(&t->copy) && dcommi_curve_valid(&t->fold) && t->step_ps >= 0 &&
                t->call_ps >= 0;
    for (int k = 0; k < DCOMM_LINK_COUNT && good; k++) {
        const dcomm_link *l = &t->link[k];
        const int64_t most = DCOMMI_MODEL_MOST;
        good = l->alpha_ps >= 0 && l->alpha_ps <= most && l->overhead_ps >= 0 &&
               l->overhead_ps <= most && l->signal_ps >= 0 && l->signal_ps <= most &&
               l->tell_ps >= 0 && l->tell_ps <= most && l->eager_bytes >= 0 &&
               dcommi_curve_valid(&l->message) && dcommi_curve_valid(&l->fold) &&
               dcommi_curve_valid(&l->read) && dcommi_curve_valid(&l->reduce) &&
               dcommi_curve_valid(&l->shared);
    }
    return good ? DCOMM_OK
                : dcommi_fail(
                      DCOMM_ERR_INVALID,
                      "tuning: a time is negative or beyond two hours, or the points of a curve "
                      "do not ascend");
}

/* Does adding `shift` to every rank lead each group to a group? */
static bool dcommi_groups_shift(const dcommi_groups *g, int shift, int32_t *to)
{
    for (int l = 0; l < g->nlevels; l++) {
        for (int i = 0; i < g->count[l]; i++) {
            to[i] = -1;
        }
        for (int r = 0; r < g->nranks; r++) {
            int32_t from = dcommi_group_of(g, l, r);
            int32_t at = dcommi_group_of(g, l, (r + shift) % g->nranks);
            if (to[from] >= 0 && to[from] != at) {
                return false;
            }
            to[from] = at;
        }
    }
    return true;
}

static int dcommi_groups_period(const dcommi_groups *g, int nranks)
{
    if (g == NULL) {
        return 1;
    }
    int32_t *to = dcommi_calloc((size_t)nranks, sizeof *to);
    int period = nranks;
    for (int p = 1; to != NULL && p < period; p++) {
        if (nranks % p == 0 && dcommi_groups_shift(g, p, to)) {
            period = p;
        }
    }
    dcommi_free(to);
    return period;
}

/* Whether a rank and others that it stands for share a port. */
static bool dcommi_terrain_rough(const dcommi_terrain *t)
{
    const dcommi_groups *g = t->groups;
    for (int l = 0; g != NULL && l < g->nlevels; l++) {
        for (int r = t->period; t->link[g->kind[l]].shared.n > 0 && r < t->nranks; r++) {
            if (dcommi_group_of(g, l, r) == dcommi_group_of(g, l, r % t->period)) {
                return true;
            }
        }
    }
    return false;
}

static dcomm_status dcommi_terrain_make(const dcommi_groups *groups, int nranks,
                                        const dcomm_tuning *t, dcommi_terrain *terrain)
{
    DCOMMI_TRY(dcommi_tuning_check(t));
    memset(terrain, 0, sizeof *terrain);
    terrain->groups = groups;
    terrain->nranks = nranks;
    terrain->period = dcommi_groups_period(groups, nranks);
    for (int k = 0; k < DCOMM_LINK_COUNT; k++) {
        const dcomm_link *from = &t->link[k];
        dcommi_link *to = &terrain->link[k];
        to->alpha = from->alpha_ps;
        to->overhead = from->overhead_ps;
        to->signal = from->signal_ps;
        to->tell = from->tell_ps;
        to->eager = from->eager_bytes > 0 ? from->eager_bytes : INT64_MAX;
        to->by_core = from->by_core != 0;
        to->message = dcommi_curve_make(&from->message);
        to->fold = dcommi_curve_make(&from->fold);
        to->read = dcommi_curve_make(&from->read);
        to->reduce = dcommi_curve_make(&from->reduce);
        to->shared = dcommi_curve_make(&from->shared);
    }
    terrain->copy = dcommi_curve_make(&t->copy);
    terrain->fold = dcommi_curve_make(&t->fold);
    terrain->step = t->step_ps;
    terrain->call = t->call_ps;
    terrain->rough = dcommi_terrain_rough(terrain);
    return DCOMM_OK;
}

/* At how many levels two ranks are together, which is the level at which they part. */
static inline int dcommi_terrain_depth(const dcommi_terrain *t, int a, int b)
{
    return t->groups != NULL ? dcommi_groups_depth(t->groups, a, b) : 0;
}

static inline int dcommi_terrain_kind(const dcommi_terrain *t, int depth)
{
    return t->groups != NULL && depth < t->groups->nlevels ? t->groups->kind[depth]
                                                           : (int)DCOMM_LINK_NEAR;
}

#endif

enum dcommi_sim_state {
    DCOMMI_SIM_RUNNING,
    DCOMMI_SIM_MOVING, /* waits for a move of its own */
    DCOMMI_SIM_FENCED,
    DCOMMI_SIM_WAITING, /* for a counter */
    DCOMMI_SIM_READING, /* for something to be exposed */
    DCOMMI_SIM_CALLING,
    DCOMMI_SIM_OVER
};

typedef struct dcommi_sim_frame dcommi_sim_frame;

typedef struct dcommi_sim_lane {
    dcommi_sim_frame *frame;
    const dcomm_step *steps;
    uint32_t pc, count;
    uint8_t state;
    int depth;
    int64_t index[DCOMM_LOOP_DEPTH], trips[DCOMM_LOOP_DEPTH];
    int64_t pending;   /* asynchronous moves whose end is not known yet */
    int64_t async_end; /* the last end that is known */
    int64_t counter, target;
    struct dcommi_sim_lane *next_waiter;
} dcommi_sim_lane;

typedef struct dcommi_sim_actor {
    const dcomm_plan *plan;
    dcommi_sim_frame *root;
    int64_t core, out, in; /* until when its processor and its ports are busy */
    int64_t *counters;
    int64_t *exposed;         /* [nslots]: when; -1: not yet */
    dcommi_sim_lane *waiters; /* for counters */
    dcommi_sim_lane *readers; /* for what this rank is to expose */
} dcommi_sim_actor;

/* A plan under way on one rank. */
struct dcommi_sim_frame {
    dcommi_sim_frame *next, *prev; /* all of the execution, to be freed */
    const dcomm_plan *plan;
    dcommi_sim_frame *parent;
    dcommi_sim_lane *caller;
    const int64_t *group;
    int rank; /* in the whole plan: the number of its actor */
    int64_t tag_base, counter_base, slot_base;
    uint32_t lanes_left;
    dcommi_sim_lane lanes[];
};

/* A message, a request for exposed memory, or a receive that waits for its message. */
typedef struct dcommi_sim_msg {
    struct dcommi_sim_msg *next; /* in its bucket, or in the free list */
    int from, to;                /* actors */
    int64_t tag;
    uint8_t depth;
    bool waits; /* for its receive, before it moves */
    bool async, folds, sender_async;
    dcommi_sim_lane *sender, *receiver; /* sender: NULL when it need not be told */
    struct dcommi_sim_join *join;
    int64_t len;
} dcommi_sim_msg;

/* A step that reads the memory of several ranks by message. */
typedef struct dcommi_sim_join {
    struct dcommi_sim_join *next, *prev; /* all of the execution, to be freed */
    dcommi_sim_lane *lane;
    int left;
    bool async;
    int64_t work; /* when all has come */
} dcommi_sim_join;

enum dcommi_sim_kind {
    DCOMMI_SIM_LANE,    /* a lane goes on */
    DCOMMI_SIM_OFFER,   /* the sender's word of a message that waits for its receive */
    DCOMMI_SIM_HEAD,    /* the first byte is at the receiver's port */
    DCOMMI_SIM_TAIL,    /* the last byte has come */
    DCOMMI_SIM_REQUEST, /* for exposed memory, at its owner */
    DCOMMI_SIM_SIGNAL
};

typedef struct dcommi_sim_event {
    int64_t time;
    uint64_t order; /* first come, first served */
    int kind;
    union {
        dcommi_sim_lane *lane;
        dcommi_sim_msg *msg;
        struct {
            int32_t actor, counter;
        } signal;
    } at;
    int64_t value; /* SIGNAL */
} dcommi_sim_event;

typedef struct dcommi_sim_bucket {
    dcommi_sim_msg *first, *last;
} dcommi_sim_bucket;

/* The port that an actor shares at a level. */
typedef struct dcommi_sim_port_of {
    int group;     /* its number */
    int64_t alike; /* how many of the ranks behind it the actor stands for */
} dcommi_sim_port_of;

#define DCOMMI_SIM_SLAB 256

typedef struct dcommi_sim {
    const dcommi_terrain *terrain;
    dcommi_sim_actor *actor;
    int64_t now, limit, steps, budget, end;
    dcommi_sim_event *heap;
    size_t nheap, heap_capacity;
    uint64_t order;
    dcommi_sim_bucket *bucket;
    size_t nbuckets, nmessages;
    dcommi_sim_msg *free_messages;
    void **slab; /* of messages, to be freed */
    size_t nslabs, slab_capacity;
    dcommi_sim_frame *frames;
    dcommi_sim_join *joins;
    int period, left;         /* actors, and those that are not done */
    dcommi_sim_port_of *port; /* [levels][period] */
    int64_t *until;           /* [levels][in, out][ranks]: a group's port is busy */
    int64_t *tally;           /* [period][links]: ranks that a signal goes to */
    dcomm_status status;
} dcommi_sim;

static void dcommi_sim_fail(dcommi_sim *s, dcomm_status status)
{
    if (s->status == DCOMM_OK) {
        s->status = status;
    }
}

/* ---- what is going to happen ---- */

static inline bool dcommi_sim_before(const dcommi_sim_event *a, const dcommi_sim_event *b)
{
    return a->time < b->time || (a->time == b->time && a->order < b->order);
}

static void dcommi_sim_push(dcommi_sim *s, dcommi_sim_event e)
{
    dcomm_status status =
        dcommi_grow((void **)&s->heap, &s->heap_capacity, s->nheap + 1, sizeof *s->heap);
    if (status < 0) {
        dcommi_sim_fail(s, status);
        return;
    }
    e.order = s->order++;
    size_t at = s->nheap++;
    while (at > 0 && dcommi_sim_before(&e, &s->heap[(at - 1) / 2])) {
        s->heap[at] = s->heap[(at - 1) / 2];
        at = (at - 1) / 2;
    }
    s->heap[at] = e;
}

static dcommi_sim_event dcommi_sim_pop(dcommi_sim *s)
{
    dcommi_sim_event top = s->heap[0], e = s->heap[--s->nheap];
    size_t at = 0;
    for (;;) {
        size_t child = 2 * at + 1;
        if (child >= s->nheap) {
            break;
        }
        if (child + 1 < s->nheap && dcommi_sim_before(&s->heap[child + 1], &s->heap[child])) {
            child++;
        }
        if (!dcommi_sim_before(&s->heap[child], &e)) {
            break;
        }
        s->heap[at] = s->heap[child];
        at = child;
    }
    s->heap[at] = e;
    return top;
}

static void dcommi_sim_at(dcommi_sim *s, int64_t time, int kind, dcommi_sim_msg *msg)
{
    dcommi_sim_event e = {.time = time, .kind = kind, .at = {.msg = msg}};
    dcommi_sim_push(s, e);
}

static void dcommi_sim_resume(dcommi_sim *s, dcommi_sim_lane *lane, int64_t time)
{
    dcommi_sim_event e = {.time = time, .kind = DCOMMI_SIM_LANE, .at = {.lane = lane}};
    lane->state = DCOMMI_SIM_RUNNING;
    dcommi_sim_push(s, e);
}

/* ---- messages ---- */

static dcommi_sim_msg *dcommi_sim_msg_new(dcommi_sim *s)
{
    if (s->free_messages == NULL) {
        dcommi_sim_msg *slab = dcommi_alloc(DCOMMI_SIM_SLAB * sizeof *slab);
        if (slab == NULL ||
            dcommi_grow((void **)&s->slab, &s->slab_capacity, s->nslabs + 1, sizeof *s->slab) < 0) {
            dcommi_free(slab);
            dcommi_sim_fail(s, DCOMM_ERR_NO_MEMORY);
            return NULL;
        }
        s->slab[s->nslabs++] = slab;
        for (int i = 0; i < DCOMMI_SIM_SLAB; i++) {
            slab[i].next = s->free_messages;
            s->free_messages = &slab[i];
        }
    }
    dcommi_sim_msg *m = s->free_messages;
    s->free_messages = m->next;
    memset(m, 0, sizeof *m);
    return m;
}

static void dcommi_sim_msg_free(dcommi_sim *s, dcommi_sim_msg *m)
{
    m->next = s->free_messages;
    s->free_messages = m;
}

static inline size_t dcommi_sim_slot(const dcommi_sim *s, const dcommi_sim_msg *m)
{
    uint64_t h = ((uint64_t)(uint32_t)m->from << 32 | (uint32_t)m->to) * 0x9e3779b97f4a7c15u;
    h = (h ^ (h >> 32) ^ (uint64_t)m->tag) * 0xd6e8feb86659fd93u;
    return (size_t)(h >> 32) & (s->nbuckets - 1);
}

static void dcommi_sim_insert(dcommi_sim_bucket *bucket, dcommi_sim_msg *m)
{
    m->next = NULL;
    *(bucket->last != NULL ? &bucket->last->next : &bucket->first) = m;
    bucket->last = m;
}

/* Twice as many buckets; messages of one key keep their order. */
static void dcommi_sim_rehash(dcommi_sim *s)
{
    size_t old = s->nbuckets;
    dcommi_sim_bucket *from = s->bucket;
    dcommi_sim_bucket *to = dcommi_calloc(2 * old, sizeof *to);
    if (to == NULL) {
        dcommi_sim_fail(s, DCOMM_ERR_NO_MEMORY);
        return;
    }
    s->bucket = to;
    s->nbuckets = 2 * old;
    for (size_t i = 0; i < old; i++) {
        for (dcommi_sim_msg *m = from[i].first, *next; m != NULL; m = next) {
            next = m->next;
            dcommi_sim_insert(&to[dcommi_sim_slot(s, m)], m);
        }
    }
    dcommi_free(from);
}

/* The other side of a message, taken out of the table; NULL: it has not come, and `m` waits there.
 * Where ranks stand for others, several have the same key, and the oldest is taken. */
static dcommi_sim_msg *dcommi_sim_match(dcommi_sim *s, dcommi_sim_msg *m)
{
    dcommi_sim_bucket *bucket = &s->bucket[dcommi_sim_slot(s, m)];
    dcommi_sim_msg *before = NULL;
    bool receive = m->receiver != NULL;
    for (dcommi_sim_msg *other = bucket->first; other != NULL;
         before = other, other = other->next) {
        if (other->from == m->from && other->to == m->to && other->tag == m->tag &&
            (other->receiver != NULL) != receive) {
            *(before != NULL ? &before->next : &bucket->first) = other->next;
            if (bucket->last == other) {
                bucket->last = before;
            }
            s->nmessages--;
            return other;
        }
    }
    if (s->nmessages++ >= 2 * s->nbuckets) {
        dcommi_sim_rehash(s);
        bucket = &s->bucket[dcommi_sim_slot(s, m)];
    }
    dcommi_sim_insert(bucket, m);
    return NULL;
}

#endif

/* ---- where and how much ---- */

/* Rank of the whole plan that rank r of a frame's plan is; -1: there is none. */
static int dcommi_sim_rank(const dcommi_sim_frame *f, int64_t r)
{
    for (; f != NULL; f = f->parent) {
        if (r < 0 || r >= f->plan->nranks) {
            return -1;
        }
        r = f->group != NULL ? f->group[r] : r;
    }
    return (int)r;
}

/* A value that no word decides and no table lookup leaves its table for. */
static int64_t dcommi_sim_value(dcommi_sim *s, const dcommi_sim_lane *lane, const dcomm_expr *e)
{
    const dcomm_plan *plan = lane->frame->plan;
    if (e->kind == DCOMM_EXPR_CONST) {
        return e->add;
    }
    if (e->kind == DCOMM_EXPR_WORD) {
        dcommi_sim_fail(s, dcommi_fail(DCOMM_ERR_UNSUPPORTED,
                                       "%s: what comes next depends on a word", plan->name));
        return 0;
    }
    if (e->kind == DCOMM_EXPR_TABLE) {
        dcomm_expr at = *e;
        at.kind = DCOMM_EXPR_AFFINE;
        at.scale = 1;
        at.add = e->first;
        memset(at.post, 0, sizeof at.post);
        int64_t x = dcommi_expr_value(&at, lane->index, NULL, NULL);
        if (x < 0 || x >= plan->ntable) {
            dcommi_sim_fail(s, dcommi_fail(DCOMM_ERR_PLAN, "%s: looks up %" PRId64 " of %u",
                                           plan->name, x, plan->ntable));
            return 0;
        }
    }
    return dcommi_expr_value(e, lane->index, plan->table, NULL);
}

/* Bytes of piece r of an operand; its maximum, where words decide. */
static int64_t dcommi_sim_length(dcommi_sim *s, const dcommi_sim_lane *lane, const dcomm_operand *o,
                                 int64_t r)
{
    if (o->length.kind == DCOMM_EXPR_WORD) {
        return o->max_length;
    }
    int64_t len = dcommi_max64(dcommi_sim_value(s, lane, &o->length), 0);
    len = dcommi_min64(len, o->max_length);
    if (o->clip > 0 && o->offset.kind != DCOMM_EXPR_WORD) {
        int64_t at = dcommi_sim_value(s, lane, &o->offset) + r * o->stride;
        len = dcommi_min64(len, dcommi_max64(o->clip - at, 0));
    }
    return len;
}

static inline const dcommi_link *dcommi_sim_link(const dcommi_sim *s, int depth)
{
    return &s->terrain->link[dcommi_terrain_kind(s->terrain, depth)];
}

/* Work of a rank's processor that may begin at `from`; returns its end. */
static inline int64_t dcommi_sim_work(dcommi_sim_actor *a, int64_t from, int64_t work)
{
    if (work > 0) {
        a->core = from = dcommi_max64(from, a->core) + work;
    }
    return from;
}

/* `len` bytes through the ports of an actor on the way over a link, from `from` on: when they
 * begin; *end: when they are through. */
static int64_t dcommi_sim_port(dcommi_sim *s, int actor, int depth, bool out, int64_t from,
                               int64_t len, int64_t *end)
{
    const dcommi_terrain *t = s->terrain;
    const dcommi_link *link = dcommi_sim_link(s, depth);
    int64_t *own = out ? &s->actor[actor].out : &s->actor[actor].in;
    int64_t start = dcommi_max64(from, *own), busy = dcommi_curve_at(&link->message, len);
    if (link->shared.n > 0 && t->groups != NULL && depth < t->groups->nlevels) {
        const dcommi_sim_port_of *port = &s->port[depth * s->period + actor];
        int64_t *until = &s->until[(2 * depth + out) * t->nranks + port->group];
        int64_t all = port->alike * dcommi_curve_at(&link->shared, len);
        start = dcommi_max64(start, *until);
        busy = dcommi_max64(busy, all);
        *until = start + all;
    }
    *own = *end = start + busy;
    return start;
}

/* ---- ends ---- */

/* A move of a lane is over at `end`, which may be yet to come. */
static void dcommi_sim_complete(dcommi_sim *s, dcommi_sim_lane *lane, bool async, int64_t end)
{
    if (!async) {
        dcommi_sim_resume(s, lane, end);
        return;
    }
    lane->pending--;
    lane->async_end = dcommi_max64(lane->async_end, end);
    if (lane->pending == 0 && lane->state == DCOMMI_SIM_FENCED) {
        dcommi_sim_resume(s, lane, dcommi_max64(s->now, lane->async_end));
    }
}

/* A message is there and its receive is posted: the receiver takes it. */
static void dcommi_sim_take(dcommi_sim *s, dcommi_sim_msg *m)
{
    const dcommi_link *link = dcommi_sim_link(s, m->depth);
    int64_t work = link->overhead + (link->by_core ? dcommi_curve_at(&link->message, m->len) : 0) +
                   (m->folds ? dcommi_curve_at(&link->fold, m->len) : 0);
    int64_t end = dcommi_sim_work(&s->actor[m->to], s->now, work);
    dcommi_sim_complete(s, m->receiver, m->async, end);
    if (m->sender != NULL) {
        dcommi_sim_complete(s, m->sender, m->sender_async, end + link->signal);
    }
    dcommi_sim_msg_free(s, m);
}

/* The bytes of a message leave by the sender's port, which tells the sender. */
static void dcommi_sim_leave(dcommi_sim *s, dcommi_sim_msg *m, int64_t from)
{
    int64_t end, start = dcommi_sim_port(s, m->from, m->depth, true, from, m->len, &end);
    dcommi_sim_at(s, start + dcommi_sim_link(s, m->depth)->alpha, DCOMMI_SIM_HEAD, m);
    if (m->sender != NULL) {
        dcommi_sim_complete(s, m->sender, m->sender_async, end);
        m->sender = NULL;
    }
}

/* Both sides of a message have come; what the receive was is known. */
static void dcommi_sim_meet(dcommi_sim *s, dcommi_sim_msg *m, dcommi_sim_msg *receive)
{
    m->receiver = receive->receiver;
    m->async = receive->async;
    m->folds = receive->folds;
    dcommi_sim_msg_free(s, receive);
    if (m->waits && !dcommi_sim_link(s, m->depth)->by_core) {
        dcommi_sim_leave(s, m, s->now);
    } else {
        dcommi_sim_take(s, m);
    }
}

/* ---- events of messages ---- */

static void dcommi_sim_tail(dcommi_sim *s, dcommi_sim_msg *m)
{
    dcommi_sim_join *join = m->join;
    if (join == NULL) {
        dcommi_sim_msg *receive = m->receiver == NULL ? dcommi_sim_match(s, m) : NULL;
        if (receive != NULL) {
            dcommi_sim_meet(s, m, receive);
        } else if (m->receiver != NULL) {
            dcommi_sim_take(s, m);
        }
        return;
    }
    if (--join->left == 0) {
        int64_t end = dcommi_sim_work(&s->actor[m->to], s->now, join->work);
        dcommi_sim_complete(s, join->lane, join->async, end);
        *(join->prev != NULL ? &join->prev->next : &s->joins) = join->next;
        if (join->next != NULL) {
            join->next->prev = join->prev;
        }
        dcommi_free(join);
    }
    dcommi_sim_msg_free(s, m);
}

static void dcommi_sim_happen(dcommi_sim *s, int kind, dcommi_sim_msg *m)
{
    int64_t end;
    if (kind == DCOMMI_SIM_OFFER) {
        dcommi_sim_msg *receive = dcommi_sim_match(s, m);
        if (receive != NULL) {
            dcommi_sim_meet(s, m, receive);
        }
    } else if (kind == DCOMMI_SIM_HEAD) {
        dcommi_sim_port(s, m->to, m->depth, false, s->now, m->len, &end);
        dcommi_sim_at(s, end, DCOMMI_SIM_TAIL, m);
    } else if (kind == DCOMMI_SIM_TAIL) {
        dcommi_sim_tail(s, m);
    } else {
        const dcommi_link *link = dcommi_sim_link(s, m->depth);
        dcommi_sim_leave(s, m, dcommi_sim_work(&s->actor[m->from], s->now, link->overhead));
    }
}

/* ---- steps: each returns when the lane goes on, or one of these ---- */

enum { DCOMMI_SIM_STOP = -1, DCOMMI_SIM_AGAIN = -2 }; /* AGAIN: the same step, once woken */

/* The rank that a step addresses, and how far it is; -1 after an error. */
static int dcommi_sim_peer(dcommi_sim *s, const dcommi_sim_lane *lane, int64_t r, int *depth)
{
    const dcommi_sim_frame *f = lane->frame;
    int rank = dcommi_sim_rank(f, r);
    if (rank < 0 || rank == f->rank) {
        dcommi_sim_fail(s, dcommi_fail(DCOMM_ERR_PLAN, "%s: rank %d exchanges with rank %" PRId64,
                                       f->plan->name, f->rank, r));
        return -1;
    }
    *depth = dcommi_terrain_depth(s->terrain, f->rank, rank);
    return rank;
}

/* A move that was started: the lane waits for it, or counts it. */
static int64_t dcommi_sim_started(dcommi_sim_lane *lane, bool async, int64_t now)
{
    if (async) {
        lane->pending++;
        return now;
    }
    lane->state = DCOMMI_SIM_MOVING;
    return DCOMMI_SIM_STOP;
}

static int64_t dcommi_sim_send(dcommi_sim *s, dcommi_sim_lane *lane, const dcomm_step *step)
{
    int depth, rank = dcommi_sim_peer(s, lane, dcommi_sim_value(s, lane, &step->peer), &depth);
    dcommi_sim_msg *m = rank >= 0 ? dcommi_sim_msg_new(s) : NULL;
    if (m == NULL) {
        return DCOMMI_SIM_STOP;
    }
    dcommi_sim_frame *f = lane->frame;
    const dcommi_link *link = dcommi_sim_link(s, depth);
    m->from = f->rank;
    m->to = rank % s->period;
    m->tag = f->tag_base + dcommi_sim_value(s, lane, &step->tag);
    m->depth = (uint8_t)depth;
    m->len = dcommi_sim_length(s, lane, &f->plan->operands[step->src], 0);
    m->waits = m->len > link->eager;
    int64_t t = dcommi_sim_work(&s->actor[f->rank], s->now, link->overhead);
    if (link->by_core && !m->waits) {
        dcommi_sim_at(s, t + link->alpha, DCOMMI_SIM_TAIL, m);
        return t;
    }
    m->sender = lane;
    m->sender_async = step->flags & DCOMM_STEP_ASYNC;
    int64_t next = dcommi_sim_started(lane, m->sender_async, t);
    if (m->waits) {
        dcommi_sim_at(s, t + link->alpha, DCOMMI_SIM_OFFER, m);
    } else {
        dcommi_sim_leave(s, m, t);
    }
    return next;
}

static int64_t dcommi_sim_recv(dcommi_sim *s, dcommi_sim_lane *lane, const dcomm_step *step)
{
    int depth, rank = dcommi_sim_peer(s, lane, dcommi_sim_value(s, lane, &step->peer), &depth);
    dcommi_sim_msg *m = rank >= 0 ? dcommi_sim_msg_new(s) : NULL;
    if (m == NULL) {
        return DCOMMI_SIM_STOP;
    }
    m->from = rank % s->period;
    m->to = lane->frame->rank;
    m->tag = lane->frame->tag_base + dcommi_sim_value(s, lane, &step->tag);
    m->receiver = lane;
    m->async = step->flags & DCOMM_STEP_ASYNC;
    m->folds = step->kind == DCOMM_STEP_RECV_REDUCE;
    int64_t next = dcommi_sim_started(lane, m->async, s->now);
    dcommi_sim_msg *sent = dcommi_sim_match(s, m);
    if (sent != NULL) {
        dcommi_sim_meet(s, sent, m);
    }
    return next;
}

/* Ask for the pieces of exposed memory that lie on other hosts. */
static int64_t dcommi_sim_ask(dcommi_sim *s, dcommi_sim_lane *lane, const dcomm_step *step,
                              int64_t work, int remote)
{
    const dcomm_plan *plan = lane->frame->plan;
    dcommi_sim_join *join = dcommi_alloc(sizeof *join);
    if (join == NULL) {
        dcommi_sim_fail(s, DCOMM_ERR_NO_MEMORY);
        return DCOMMI_SIM_STOP;
    }
    join->next = s->joins;
    if (s->joins != NULL) {
        s->joins->prev = join;
    }
    s->joins = join;
    join->lane = lane;
    join->left = remote;
    join->async = step->flags & DCOMM_STEP_ASYNC;
    join->work = work;
    int64_t t = s->now;
    for (uint32_t i = 0; i < step->nsrc; i++) {
        const dcomm_operand *o = &plan->operands[step->src + i];
        int64_t first = o->space == DCOMM_SPACE_PEER ? dcommi_sim_value(s, lane, &o->peer) : 0;
        for (int64_t r = 0; o->space == DCOMM_SPACE_PEER && r < dcommi_max64(o->repeat, 1); r++) {
            int depth, rank = dcommi_sim_peer(s, lane, (first + r) % plan->nranks, &depth);
            const dcommi_link *link = dcommi_sim_link(s, depth);
            dcommi_sim_msg *m = link->by_core ? NULL : dcommi_sim_msg_new(s);
            if (m == NULL) {
                continue;
            }
            t = dcommi_sim_work(&s->actor[lane->frame->rank], t, link->overhead);
            m->from = rank % s->period;
            m->to = lane->frame->rank;
            m->depth = (uint8_t)depth;
            m->len = dcommi_sim_length(s, lane, o, r);
            m->join = join;
            dcommi_sim_at(s, t + link->alpha, DCOMMI_SIM_REQUEST, m);
        }
    }
    return dcommi_sim_started(lane, join->async, t);
}

/* COPY and REDUCE. */
static int64_t dcommi_sim_transform(dcommi_sim *s, dcommi_sim_lane *lane, const dcomm_step *step)
{
    const dcomm_plan *plan = lane->frame->plan;
    const dcommi_terrain *t = s->terrain;
    bool fold = step->kind == DCOMM_STEP_REDUCE;
    int64_t len = dcommi_sim_length(s, lane, &step->dst, 0), work = 0, ready = s->now, local = 0;
    int remote = 0;
    for (uint32_t i = 0; i < step->nsrc && len > 0; i++) {
        const dcomm_operand *o = &plan->operands[step->src + i];
        int64_t repeat = dcommi_max64(o->repeat, 1);
        if (o->space != DCOMM_SPACE_PEER) {
            local += repeat;
            continue;
        }
        int64_t first = dcommi_sim_value(s, lane, &o->peer);
        for (int64_t r = 0; r < repeat; r++) {
            int depth, rank = dcommi_sim_peer(s, lane, (first + r) % plan->nranks, &depth);
            int64_t slot = lane->frame->slot_base + o->slot;
            if (rank < 0 || slot >= s->actor[rank % s->period].plan->nslots) {
                dcommi_sim_fail(s,
                                dcommi_fail(DCOMM_ERR_PLAN, "%s: slot %" PRId64, plan->name, slot));
                return DCOMMI_SIM_STOP;
            }
            dcommi_sim_actor *owner = &s->actor[rank % s->period];
            if (owner->exposed[slot] < 0) {
                lane->state = DCOMMI_SIM_READING;
                lane->next_waiter = owner->readers;
                owner->readers = lane;
                return DCOMMI_SIM_AGAIN;
            }
            const dcommi_link *link = dcommi_sim_link(s, depth);
            ready = dcommi_max64(ready, owner->exposed[slot] + link->signal);
            remote += !link->by_core;
            if (link->by_core) {
                work += dcommi_curve_at(fold ? &link->reduce : &link->read, len);
            } else if (fold) {
                work += dcommi_curve_at(&link->fold, len);
            }
        }
    }
    if (ready > s->now) {
        dcommi_sim_resume(s, lane, ready);
        return DCOMMI_SIM_AGAIN;
    }
    if (fold && local > 1) {
        work += (local - 1) * dcommi_curve_at(&t->fold, len);
    } else if (!fold && local > 0 && len > 0) {
        work += dcommi_curve_at(&t->copy, len);
    }
    if (remote > 0) {
        return dcommi_sim_ask(s, lane, step, work, remote);
    }
    return dcommi_sim_work(&s->actor[lane->frame->rank], s->now, work);
}

/* ---- signals ---- */

static void dcommi_sim_signal(dcommi_sim *s, dcommi_sim_actor *a, int64_t counter, int64_t value)
{
    a->counters[counter] += value;
    for (dcommi_sim_lane **at = &a->waiters; *at != NULL;) {
        dcommi_sim_lane *lane = *at;
        if (lane->counter == counter && a->counters[counter] >= lane->target) {
            *at = lane->next_waiter;
            dcommi_sim_resume(s, lane, s->now);
        } else {
            at = &lane->next_waiter;
        }
    }
}

/* A signal to every other rank: one event for all that hear of it at the same time. */
static int64_t dcommi_sim_signal_all(dcommi_sim *s, dcommi_sim_lane *lane, int64_t counter,
                                     int64_t value)
{
    const dcommi_sim_frame *f = lane->frame;
    int64_t work = 0;
    for (int64_t r = 0; r < f->plan->nranks; r++) {
        int rank = dcommi_sim_rank(f, r);
        if (rank < 0 || rank == f->rank) {
            continue;
        }
        int kind = dcommi_terrain_kind(s->terrain, dcommi_terrain_depth(s->terrain, f->rank, rank));
        s->tally[rank % s->period * DCOMM_LINK_COUNT + kind]++;
        work += s->terrain->link[kind].tell;
    }
    int64_t t = dcommi_sim_work(&s->actor[f->rank], s->now, work);
    for (int a = 0; a < s->period; a++) {
        for (int kind = 0; kind < DCOMM_LINK_COUNT; kind++) {
            int64_t *n = &s->tally[a * DCOMM_LINK_COUNT + kind];
            if (*n > 0) {
                dcommi_sim_event e = {.time = t + s->terrain->link[kind].signal,
                                      .kind = DCOMMI_SIM_SIGNAL,
                                      .at = {.signal = {a, (int32_t)counter}},
                                      .value = *n * value};
                dcommi_sim_push(s, e);
                *n = 0;
            }
        }
    }
    return t;
}

static int64_t dcommi_sim_expose(dcommi_sim *s, const dcommi_sim_lane *lane, const dcomm_step *step,
                                 int64_t peer)
{
    const dcommi_sim_frame *f = lane->frame;
    dcommi_sim_actor *own = &s->actor[f->rank];
    int64_t slot = f->slot_base + step->slot, work = 0;
    if (slot >= own->plan->nslots) {
        dcommi_sim_fail(s, dcommi_fail(DCOMM_ERR_PLAN, "%s: slot %" PRId64, f->plan->name, slot));
        return DCOMMI_SIM_STOP;
    }
    int64_t last = peer == DCOMM_ALL_PEERS ? f->plan->nranks - 1 : peer;
    for (int64_t r = peer == DCOMM_ALL_PEERS ? 0 : peer; r <= last; r++) {
        int rank = dcommi_sim_rank(f, r);
        if (rank >= 0 && rank != f->rank) {
            work += dcommi_sim_link(s, dcommi_terrain_depth(s->terrain, f->rank, rank))->tell;
        }
    }
    int64_t t = own->exposed[slot] = dcommi_sim_work(own, s->now, work);
    while (own->readers != NULL) {
        dcommi_sim_lane *reader = own->readers;
        own->readers = reader->next_waiter;
        dcommi_sim_resume(s, reader, t);
    }
    return t;
}

/* SIGNAL and EXPOSE. */
static int64_t dcommi_sim_tell(dcommi_sim *s, dcommi_sim_lane *lane, const dcomm_step *step)
{
    const dcommi_sim_frame *f = lane->frame;
    dcommi_sim_actor *own = &s->actor[f->rank];
    int64_t peer = dcommi_sim_value(s, lane, &step->peer);
    if (step->kind == DCOMM_STEP_EXPOSE) {
        return dcommi_sim_expose(s, lane, step, peer);
    }
    int64_t counter = f->counter_base + step->slot, value = dcommi_sim_value(s, lane, &step->value);
    if (counter >= own->plan->ncounters) {
        dcommi_sim_fail(
            s, dcommi_fail(DCOMM_ERR_PLAN, "%s: counter %" PRId64, f->plan->name, counter));
        return DCOMMI_SIM_STOP;
    }
    if (peer == DCOMM_ALL_PEERS) {
        return dcommi_sim_signal_all(s, lane, counter, value);
    }
    int rank = dcommi_sim_rank(f, peer);
    if (rank == f->rank) {
        dcommi_sim_signal(s, own, counter, value);
        return s->now;
    }
    int depth;
    rank = dcommi_sim_peer(s, lane, peer, &depth);
    const dcommi_link *link = dcommi_sim_link(s, depth);
    int64_t t = dcommi_sim_work(own, s->now, link->tell);
    if (rank >= 0) {
        dcommi_sim_event e = {.time = t + link->signal,
                              .kind = DCOMMI_SIM_SIGNAL,
                              .at = {.signal = {rank % s->period, (int32_t)counter}},
                              .value = value};
        dcommi_sim_push(s, e);
    }
    return t;
}

#endif

/* Where the plans come from: get makes or finds rank r's, put gives it back. */
typedef struct dcommi_plans {
    dcomm_status (*get)(void *user, int rank, const dcomm_plan **plan_p);
    void (*put)(void *user, const dcomm_plan *plan);
    void *user;
} dcommi_plans;

/* What an execution came to. */
typedef struct dcommi_price {
    int64_t ps;
    int64_t steps; /* of plans, executed */
    bool over;     /* given up at the limit, which ps is: it takes longer */
} dcommi_price;

/* ---- frames and lanes ---- */

static dcommi_sim_frame *dcommi_sim_frame_new(dcommi_sim *s, const dcomm_plan *plan, int rank)
{
    dcommi_sim_frame *f = dcommi_alloc(sizeof *f + plan->nlanes * sizeof(dcommi_sim_lane));
    if (f == NULL) {
        dcommi_sim_fail(s, DCOMM_ERR_NO_MEMORY);
        return NULL;
    }
    f->plan = plan;
    f->rank = rank;
    f->lanes_left = plan->nlanes;
    for (uint32_t i = 0; i < plan->nlanes; i++) {
        f->lanes[i].frame = f;
        f->lanes[i].steps = plan->steps + plan->lanes[i].first;
        f->lanes[i].count = plan->lanes[i].count;
    }
    f->next = s->frames;
    if (s->frames != NULL) {
        s->frames->prev = f;
    }
    s->frames = f;
    return f;
}

static void dcommi_sim_frame_free(dcommi_sim *s, dcommi_sim_frame *f)
{
    *(f->prev != NULL ? &f->prev->next : &s->frames) = f->next;
    if (f->next != NULL) {
        f->next->prev = f->prev;
    }
    dcommi_free(f);
}

/* All lanes of a frame are over. */
static void dcommi_sim_frame_over(dcommi_sim *s, dcommi_sim_frame *f)
{
    if (f->caller == NULL) {
        s->end = dcommi_max64(s->end, s->now);
        s->left--;
        return;
    }
    dcommi_sim_resume(s, f->caller, s->now);
    dcommi_sim_frame_free(s, f);
}

static int64_t dcommi_sim_call(dcommi_sim *s, dcommi_sim_lane *lane, const dcomm_step *step)
{
    dcommi_sim_frame *parent = lane->frame;
    dcommi_sim_frame *f = dcommi_sim_frame_new(s, parent->plan->subs[step->sub], parent->rank);
    if (f == NULL) {
        return DCOMMI_SIM_STOP;
    }
    f->parent = parent;
    f->caller = lane;
    f->group = parent->plan->table + step->group;
    f->tag_base = parent->tag_base + dcommi_sim_value(s, lane, &step->tag);
    f->counter_base = parent->counter_base + step->slot;
    f->slot_base = parent->slot_base + (step->word > 0 ? step->word : 0);
    if (dcommi_sim_rank(f, f->plan->rank) != f->rank) {
        dcommi_sim_fail(s, dcommi_fail(DCOMM_ERR_PLAN,
                                       "%s: rank %d calls %s as its rank %d, which is another",
                                       parent->plan->name, f->rank, f->plan->name, f->plan->rank));
    }
    lane->state = DCOMMI_SIM_CALLING;
    for (uint32_t i = 0; i < f->plan->nlanes; i++) {
        dcommi_sim_resume(s, &f->lanes[i], s->now);
    }
    if (f->plan->nlanes == 0) {
        dcommi_sim_frame_over(s, f);
    }
    return DCOMMI_SIM_STOP;
}

static void dcommi_sim_loop(dcommi_sim *s, dcommi_sim_lane *lane, const dcomm_step *step)
{
    int64_t trips = dcommi_sim_value(s, lane, &step->value);
    if (trips <= 0) {
        lane->pc += step->body + 1;
        return;
    }
    lane->trips[lane->depth] = trips;
    lane->index[lane->depth++] = 0;
}

static void dcommi_sim_end(dcommi_sim_lane *lane, const dcomm_step *step)
{
    int d = lane->depth - 1;
    if (++lane->index[d] < lane->trips[d]) {
        lane->pc -= step->body + 1;
        return;
    }
    lane->index[d] = 0;
    lane->depth = d;
}

static int64_t dcommi_sim_wait(dcommi_sim *s, dcommi_sim_lane *lane, const dcomm_step *step)
{
    dcommi_sim_actor *own = &s->actor[lane->frame->rank];
    lane->counter = lane->frame->counter_base + step->slot;
    lane->target = dcommi_sim_value(s, lane, &step->value);
    if (lane->counter >= own->plan->ncounters) {
        dcommi_sim_fail(s, dcommi_fail(DCOMM_ERR_PLAN, "%s: counter %" PRId64,
                                       lane->frame->plan->name, lane->counter));
        return DCOMMI_SIM_STOP;
    }
    if (own->counters[lane->counter] >= lane->target) {
        return s->now;
    }
    lane->state = DCOMMI_SIM_WAITING;
    lane->next_waiter = own->waiters;
    own->waiters = lane;
    return DCOMMI_SIM_STOP;
}

/* Encoding and the caller's kernels: as much as copying what they write or read. */
static int64_t dcommi_sim_compute(dcommi_sim *s, dcommi_sim_lane *lane, const dcomm_step *step)
{
    int64_t len = dcommi_sim_length(s, lane, &step->dst, 0);
    for (uint32_t i = 0; i < step->nsrc; i++) {
        const dcomm_operand *o = &lane->frame->plan->operands[step->src + i];
        len = dcommi_max64(len, dcommi_sim_length(s, lane, o, 0));
    }
    return dcommi_sim_work(&s->actor[lane->frame->rank], s->now,
                           dcommi_curve_at(&s->terrain->copy, len));
}

static int64_t dcommi_sim_step(dcommi_sim *s, dcommi_sim_lane *lane, const dcomm_step *step)
{
    switch (step->kind) {
    case DCOMM_STEP_SEND:
        return dcommi_sim_send(s, lane, step);
    case DCOMM_STEP_RECV:
    case DCOMM_STEP_RECV_REDUCE:
        return dcommi_sim_recv(s, lane, step);
    case DCOMM_STEP_COPY:
    case DCOMM_STEP_REDUCE:
        return dcommi_sim_transform(s, lane, step);
    case DCOMM_STEP_EXPOSE:
    case DCOMM_STEP_SIGNAL:
        return dcommi_sim_tell(s, lane, step);
    case DCOMM_STEP_WAIT:
        return dcommi_sim_wait(s, lane, step);
    case DCOMM_STEP_CALL:
        return dcommi_sim_call(s, lane, step);
    case DCOMM_STEP_FENCE:
        if (lane->pending > 0) {
            lane->state = DCOMMI_SIM_FENCED;
            return DCOMMI_SIM_STOP;
        }
        return dcommi_max64(s->now, lane->async_end);
    case DCOMM_STEP_LOOP:
        dcommi_sim_loop(s, lane, step);
        return s->now;
    case DCOMM_STEP_END:
        dcommi_sim_end(lane, step);
        return s->now;
    default:
        return dcommi_sim_compute(s, lane, step);
    }
}

/* Run a lane until it waits, or until something else happens first. */
static void dcommi_sim_lane_run(dcommi_sim *s, dcommi_sim_lane *lane)
{
    while (s->status == DCOMM_OK) {
        int64_t next = s->now;
        if (lane->pc == lane->count) { /* the end of a lane is a fence */
            if (lane->pending > 0) {
                lane->state = DCOMMI_SIM_FENCED;
                return;
            }
            if (lane->async_end <= s->now) {
                lane->state = DCOMMI_SIM_OVER;
                if (--lane->frame->lanes_left == 0) {
                    dcommi_sim_frame_over(s, lane->frame);
                }
                return;
            }
            next = lane->async_end;
        } else {
            const dcomm_step *step = &lane->steps[lane->pc];
            bool free_of_charge = step->kind == DCOMM_STEP_LOOP || step->kind == DCOMM_STEP_END;
            if (++s->steps > s->budget) {
                dcommi_sim_fail(s, dcommi_fail(DCOMM_ERR_UNSUPPORTED,
                                               "%s: more than %" PRId64 " steps to price",
                                               lane->frame->plan->name, s->budget));
                return;
            }
            next = dcommi_sim_step(s, lane, step);
            if (next == DCOMMI_SIM_AGAIN) {
                return;
            }
            lane->pc++;
            if (next == DCOMMI_SIM_STOP) {
                return;
            }
            if (!free_of_charge) {
                next = dcommi_sim_work(&s->actor[lane->frame->rank], next, s->terrain->step);
            }
        }
        if (next > s->now && s->nheap > 0 && s->heap[0].time < next) {
            dcommi_sim_resume(s, lane, next);
            return;
        }
        s->now = next;
    }
}

/* ---- the execution ---- */

/* Which ports the actors share, and with how many that they stand for. */
static dcomm_status dcommi_sim_ports(dcommi_sim *s)
{
    const dcommi_groups *g = s->terrain->groups;
    int n = s->terrain->nranks, levels = g != NULL ? g->nlevels : 0;
    s->port = dcommi_calloc((size_t)levels * (size_t)s->period + 1, sizeof *s->port);
    s->until = dcommi_calloc(2 * (size_t)levels * (size_t)n + 1, sizeof *s->until);
    s->tally = dcommi_calloc((size_t)s->period * DCOMM_LINK_COUNT, sizeof *s->tally);
    if (s->port == NULL || s->until == NULL || s->tally == NULL) {
        return DCOMM_ERR_NO_MEMORY;
    }
    for (int i = 0; i < levels * s->period; i++) {
        int level = i / s->period, actor = i % s->period;
        dcommi_sim_port_of *port = &s->port[i];
        int own = port->group = dcommi_group_of(g, level, actor);
        for (int r = actor; r < n; r += s->period) {
            int group = dcommi_group_of(g, level, r);
            port->group = group < port->group ? group : port->group;
            port->alike += group == own;
        }
    }
    return DCOMM_OK;
}

static dcomm_status dcommi_sim_open(dcommi_sim *s, const dcommi_plans *plans)
{
    s->actor = dcommi_calloc((size_t)s->period, sizeof *s->actor);
    s->nbuckets = 64;
    s->bucket = dcommi_calloc(s->nbuckets, sizeof *s->bucket);
    if (s->actor == NULL || s->bucket == NULL) {
        return DCOMM_ERR_NO_MEMORY;
    }
    DCOMMI_TRY(dcommi_sim_ports(s));
    for (int i = 0; i < s->period; i++) {
        dcommi_sim_actor *a = &s->actor[i];
        DCOMMI_TRY(plans->get(plans->user, i, &a->plan));
        a->counters = dcommi_calloc(a->plan->ncounters + 1, sizeof *a->counters);
        a->exposed = dcommi_calloc(a->plan->nslots + 1, sizeof *a->exposed);
        a->root = dcommi_sim_frame_new(s, a->plan, i);
        if (a->counters == NULL || a->exposed == NULL || a->root == NULL) {
            return DCOMM_ERR_NO_MEMORY;
        }
        for (uint32_t k = 0; k < a->plan->nslots; k++) {
            a->exposed[k] = -1;
        }
        for (uint32_t k = 0; k < a->plan->nlanes; k++) {
            dcommi_sim_resume(s, &a->root->lanes[k], 0);
        }
        s->left += a->plan->nlanes > 0;
    }
    return s->status;
}

static void dcommi_sim_close(dcommi_sim *s, const dcommi_plans *plans)
{
    for (int i = 0; s->actor != NULL && i < s->period; i++) {
        if (s->actor[i].plan != NULL) {
            plans->put(plans->user, s->actor[i].plan);
        }
        dcommi_free(s->actor[i].counters);
        dcommi_free(s->actor[i].exposed);
    }
    while (s->frames != NULL) {
        dcommi_sim_frame_free(s, s->frames);
    }
    for (dcommi_sim_join *j = s->joins, *next; j != NULL; j = next) {
        next = j->next;
        dcommi_free(j);
    }
    for (size_t i = 0; i < s->nslabs; i++) {
        dcommi_free(s->slab[i]);
    }
    dcommi_free(s->slab);
    dcommi_free(s->actor);
    dcommi_free(s->bucket);
    dcommi_free(s->heap);
    dcommi_free(s->port);
    dcommi_free(s->until);
    dcommi_free(s->tally);
}

static void dcommi_sim_execute(dcommi_sim *s)
{
    while (s->nheap > 0 && s->status == DCOMM_OK && s->now <= s->limit) {
        dcommi_sim_event e = dcommi_sim_pop(s);
        s->now = e.time;
        if (s->now > s->limit) {
            break;
        }
        if (e.kind == DCOMMI_SIM_LANE) {
            dcommi_sim_lane_run(s, e.at.lane);
        } else if (e.kind == DCOMMI_SIM_SIGNAL) {
            dcommi_sim_signal(s, &s->actor[e.at.signal.actor], e.at.signal.counter, e.value);
        } else {
            dcommi_sim_happen(s, e.kind, e.at.msg);
        }
    }
}

/* One execution by `period` actors. */
static dcomm_status dcommi_sim_run(const dcommi_terrain *t, const dcommi_plans *plans, int period,
                                   int64_t limit, int64_t budget, dcommi_price *price)
{
    dcommi_sim s = {.terrain = t, .period = period, .limit = limit, .budget = budget};
    dcomm_status status = dcommi_sim_open(&s, plans);
    if (status >= 0) {
        dcommi_sim_execute(&s);
        status = s.status;
    }
    price->over = status >= 0 && s.now > limit;
    if (status >= 0 && !price->over && s.left > 0) {
        status = dcommi_fail(DCOMM_ERR_PLAN, "%s: %d of %d ranks wait for each other for ever",
                             s.actor[0].plan->name, s.left, period);
    }
    price->ps = (price->over ? limit : s.end) + t->call;
    price->steps = s.steps;
    dcommi_sim_close(&s, plans);
    return status;
}

/* ---- ranks that are alike ---- */

/* What a plan looks like to somebody who does not know which rank it is for. */
static uint64_t dcommi_plan_look(const dcomm_plan *p, uint64_t h)
{
    h = dcommi_mix(h, (uint64_t)p->nlanes << 32 | p->nsteps);
    h = dcommi_mix(h, (uint64_t)p->ncounters << 32 | p->nslots);
    for (uint32_t i = 0; i < p->nlanes; i++) {
        h = dcommi_mix(h, p->lanes[i].count);
    }
    for (uint32_t i = 0; i < p->nsteps; i++) {
        const dcomm_step *s = &p->steps[i];
        h = dcommi_mix(h, (uint64_t)s->kind << 40 | (uint64_t)s->flags << 32 | s->body);
        h = dcommi_mix(h, (uint64_t)s->dst.max_length);
        h = dcommi_mix(h, (uint64_t)(s->peer.kind == DCOMM_EXPR_CONST && s->peer.add < 0));
        if (s->kind == DCOMM_STEP_LOOP || s->kind == DCOMM_STEP_WAIT) {
            h = dcommi_mix(h, (uint64_t)s->value.add);
        }
        bool ordered = s->kind != DCOMM_STEP_REDUCE; /* else a fold in rank order differs */
        for (uint32_t k = 0; k < s->nsrc && ordered; k++) {
            const dcomm_operand *o = &p->operands[s->src + k];
            h = dcommi_mix(h, (uint64_t)o->space << 32 | o->repeat);
            h = dcommi_mix(h, (uint64_t)o->max_length);
        }
        if (s->kind == DCOMM_STEP_CALL) {
            h = dcommi_plan_look(p->subs[s->sub], h);
        }
    }
    return h;
}

#define DCOMMI_ALIKE_MIN 33    /* fewer ranks are priced one by one, which is exact */
#define DCOMMI_ALIKE_ALL 64    /* so many are looked at one by one, */
#define DCOMMI_ALIKE_SAMPLE 48 /* and of more so many */

/* Whether, as far as we look, every rank's plan looks like that of the rank that stands for it. */
static bool dcommi_plans_alike(const dcommi_plans *plans, int nranks, int period)
{
    uint64_t *look = dcommi_calloc((size_t)period, sizeof *look);
    bool alike = look != NULL;
    int tries = nranks <= DCOMMI_ALIKE_ALL ? nranks : DCOMMI_ALIKE_SAMPLE + period;
    for (int i = 0; i < tries && alike; i++) {
        int r = i;
        if (i >= period && nranks > DCOMMI_ALIKE_ALL) { /* spread over all, the last one included */
            r = nranks - 1 - (int)((int64_t)(i - period) * (nranks - period) / DCOMMI_ALIKE_SAMPLE);
        }
        const dcomm_plan *plan = NULL;
        alike = plans->get(plans->user, r, &plan) >= 0;
        if (alike) {
            uint64_t own = dcommi_plan_look(plan, 1);
            if (i < period) {
                look[r] = own;
            }
            alike = look[r % period] == own;
            plans->put(plans->user, plan);
        }
    }
    dcommi_free(look);
    return alike;
}

/* The price of a set of plans, which is given up beyond `limit` picoseconds. */
static dcomm_status dcommi_price_plans(const dcommi_terrain *t, const dcommi_plans *plans,
                                       int64_t limit, int64_t budget, dcommi_price *price)
{
    memset(price, 0, sizeof *price);
    bool few = t->nranks >= (t->rough ? DCOMMI_ALIKE_ALL + 1 : DCOMMI_ALIKE_MIN);
    if (few && t->period < t->nranks && dcommi_plans_alike(plans, t->nranks, t->period)) {
        dcomm_status status = dcommi_sim_run(t, plans, t->period, limit, budget, price);
        if (status != DCOMM_ERR_PLAN) { /* else they only look alike */
            return status;
        }
    }
    return dcommi_sim_run(t, plans, t->nranks, limit, budget, price);
}

#endif
/* ==== include/dcomm/impl/tuning_file.h ===================================================== */
/* tuning_file.h - a tuning as text: "near.alpha_us = 0.25", curves as "bytes:microseconds" points.
 */
#ifndef DCOMMI_TUNING_FILE_H
#define DCOMMI_TUNING_FILE_H

/* ==== include/dcomm/impl/tuning_default.h ================================================== */
/* tuning_default.h - the numbers that the model works with where nothing was measured. The one
 * place to change them. */
#ifndef DCOMMI_TUNING_DEFAULT_H
#define DCOMMI_TUNING_DEFAULT_H


/* Within a host: two cores of a server of 2023 that share a cache. A longer way costs a little more
 * latency. */
static dcomm_link dcommi_link_near(int64_t further_ps)
{
    dcomm_link link = {
        .alpha_ps = 220000 + further_ps,
        .overhead_ps = 70000,
        .signal_ps = 220000 + further_ps,
        .tell_ps = 60000,
        .eager_bytes = 8192,
        .by_core = 1,
        .message = {.n = 5,
                    .bytes = {0, 1024, 8192, 65536, 1 << 20},
                    .ps = {0, 100000, 700000, 5500000, 95000000}},
        .fold = {.n = 3, .bytes = {0, 8192, 1 << 20}, .ps = {0, 300000, 40000000}},
        .read = {.n = 4,
                 .bytes = {0, 8192, 65536, 1 << 20},
                 .ps = {500000, 1200000, 6000000, 95000000}},
        .reduce = {.n = 4,
                   .bytes = {0, 8192, 65536, 1 << 20},
                   .ps = {500000, 1500000, 8000000, 125000000}},
    };
    return link;
}

/* Between hosts: TCP at 10 Gbit/s. */
static dcomm_link dcommi_link_far(void)
{
    dcomm_link link = {
        .alpha_ps = 20000000,
        .overhead_ps = 2000000,
        .signal_ps = 20000000,
        .tell_ps = 2000000,
        .eager_bytes = 65536,
        .message = {.n = 2, .bytes = {0, 1 << 20}, .ps = {0, 840000000}},
        .fold = {.n = 3, .bytes = {0, 8192, 1 << 20}, .ps = {0, 500000, 70000000}},
        .shared = {.n = 2, .bytes = {0, 1 << 20}, .ps = {0, 840000000}},
    };
    link.read = link.reduce = link.message;
    return link;
}

DCOMM_API void dcomm_tuning_default(dcomm_tuning *tuning)
{
    static const int64_t further[DCOMM_LINK_COUNT] = {0, 150000, 60000, 20000, 0, 0};
    if (tuning == NULL) {
        return;
    }
    memset(tuning, 0, sizeof *tuning);
    tuning->link[DCOMM_LINK_HOST] = dcommi_link_far();
    for (int k = DCOMM_LINK_HOST + 1; k < DCOMM_LINK_COUNT; k++) {
        tuning->link[k] = dcommi_link_near(further[k]);
    }
    tuning->copy = (dcomm_curve){
        .n = 4, .bytes = {0, 8192, 262144, 1 << 20}, .ps = {20000, 200000, 12000000, 70000000}};
    tuning->fold = (dcomm_curve){
        .n = 4, .bytes = {0, 8192, 262144, 1 << 20}, .ps = {30000, 400000, 18000000, 90000000}};
    tuning->step_ps = 15000;
    tuning->call_ps = 100000;
    snprintf(tuning->source, sizeof tuning->source, "built in");
}

#endif

#define DCOMMI_TUNING_LINE 1024

/* X(key, field, kind): what a link has; then what a tuning has beside its links. T: microseconds,
 * N: a number, C: a curve. */
#define DCOMMI_LINK_FIELDS(X)        \
    X("alpha_us", alpha_ps, T)       \
    X("overhead_us", overhead_ps, T) \
    X("signal_us", signal_ps, T)     \
    X("tell_us", tell_ps, T)         \
    X("eager_bytes", eager_bytes, N) \
    X("by_core", by_core, N)         \
    X("message", message, C)         \
    X("fold", fold, C)               \
    X("read", read, C)               \
    X("reduce", reduce, C)           \
    X("shared", shared, C)
#define DCOMMI_TUNING_FIELDS(X) \
    X("copy", copy, C)          \
    X("fold", fold, C)          \
    X("step_us", step_ps, T)    \
    X("call_us", call_ps, T)

static const char *const dcommi_link_names[DCOMM_LINK_COUNT] = {"host",  "package", "numa",
                                                                "cache", "core",    "near"};

/* ---- one value ---- */

static void dcommi_write_T(FILE *file, const int64_t *ps)
{
    fprintf(file, "%.6f", 1e-6 * (double)*ps);
}

static void dcommi_write_N(FILE *file, const int64_t *n)
{
    fprintf(file, "%" PRId64, *n);
}

static void dcommi_write_C(FILE *file, const dcomm_curve *c)
{
    for (int64_t i = 0; i < c->n; i++) {
        fprintf(file, "%s%" PRId64 ":%.6f", i > 0 ? " " : "", c->bytes[i], 1e-6 * (double)c->ps[i]);
    }
}

static bool dcommi_read_T(const char *text, int64_t *ps)
{
    char *end = NULL;
    double us = strtod(text, &end);
    bool good = end != text && *end == 0 && us >= 0 && us <= 1e-6 * (double)DCOMMI_MODEL_MOST;
    *ps = good ? (int64_t)(us * 1e6 + 0.5) : 0;
    return good;
}

static bool dcommi_read_N(const char *text, int64_t *n)
{
    char *end = NULL;
    errno = 0;
    *n = strtoll(text, &end, 10);
    return end != text && *end == 0 && errno == 0 && *n >= 0;
}

static bool dcommi_read_C(const char *text, dcomm_curve *c)
{
    char copy[DCOMMI_TUNING_LINE], *save = NULL;
    memset(c, 0, sizeof *c);
    snprintf(copy, sizeof copy, "%s", text);
    for (char *at = strtok_r(copy, " \t", &save); at != NULL; at = strtok_r(NULL, " \t", &save)) {
        char *colon = strchr(at, ':');
        if (colon == NULL || c->n == DCOMM_CURVE_POINTS) {
            return false;
        }
        *colon = 0;
        if (!dcommi_read_N(at, &c->bytes[c->n]) || !dcommi_read_T(colon + 1, &c->ps[c->n])) {
            return false;
        }
        c->n++;
    }
    return dcommi_curve_valid(c);
}

/* ---- the file ---- */

DCOMM_API dcomm_status dcomm_tuning_save(const dcomm_tuning *tuning, const char *path)
{
    if (tuning == NULL || path == NULL) {
        return dcommi_fail(DCOMM_ERR_INVALID, "%s is NULL", tuning == NULL ? "tuning" : "path");
    }
    FILE *file = fopen(path, "we");
    if (file == NULL) {
        return dcommi_fail(DCOMM_ERR_SYSTEM, "cannot write %s: %s", path, strerror(errno));
    }
    fprintf(file, "# dcomm tuning, read where DCOMM_TUNE_FILE names it; curves: bytes:us ...\n");
    fprintf(file, "source = %s\n", tuning->source);
#define DCOMMI_WRITE(key, field, kind)       \
    fprintf(file, "%s = ", key);             \
    dcommi_write_##kind(file, &part->field); \
    fputc('\n', file);
    const dcomm_tuning *part = tuning;
    DCOMMI_TUNING_FIELDS(DCOMMI_WRITE)
#undef DCOMMI_WRITE
    for (int k = 0; k < DCOMM_LINK_COUNT; k++) {
        const dcomm_link *link = &tuning->link[k];
#define DCOMMI_WRITE(key, field, kind)                    \
    fprintf(file, "%s.%s = ", dcommi_link_names[k], key); \
    dcommi_write_##kind(file, &link->field);              \
    fputc('\n', file);
        DCOMMI_LINK_FIELDS(DCOMMI_WRITE)
#undef DCOMMI_WRITE
    }
    bool bad = ferror(file) != 0;
    bad = fclose(file) != 0 || bad;
    return bad ? dcommi_fail(DCOMM_ERR_SYSTEM, "cannot write %s: %s", path, strerror(errno))
               : DCOMM_OK;
}

/* Set what `key` names; false: there is no such thing, or the value is none. */
static bool dcommi_tuning_assign(dcomm_tuning *t, const char *key, const char *value)
{
    if (strcmp(key, "source") == 0) {
        memset(t->source, 0, sizeof t->source);
        snprintf(t->source, sizeof t->source, "%s", value);
        return true;
    }
#define DCOMMI_READ(name, field, kind)                  \
    if (strcmp(key, name) == 0) {                       \
        return dcommi_read_##kind(value, &part->field); \
    }
    dcomm_tuning *part = t;
    DCOMMI_TUNING_FIELDS(DCOMMI_READ)
    const char *dot = strchr(key, '.');
    for (int k = 0; dot != NULL && k < DCOMM_LINK_COUNT; k++) {
        size_t len = strlen(dcommi_link_names[k]);
        if ((size_t)(dot - key) == len && strncmp(key, dcommi_link_names[k], len) == 0) {
            dcomm_link *link = &t->link[k];
#undef DCOMMI_READ
#define DCOMMI_READ(name, field, kind)                  \
    if (strcmp(dot + 1, name) == 0) {                   \
        return dcommi_read_##kind(value, &link->field); \
    }
            DCOMMI_LINK_FIELDS(DCOMMI_READ)
        }
    }
#undef DCOMMI_READ
    return false;
}

static char *dcommi_trim(char *text)
{
    while (*text == ' ' || *text == '\t') {
        text++;
    }
    for (char *end = text + strlen(text);
         end > text && (end[-1] == ' ' || end[-1] == '\t' || end[-1] == '\r' || end[-1] == '\n');) {
        *--end = 0;
    }
    return text;
}

DCOMM_API dcomm_status dcomm_tuning_load(const char *path, dcomm_tuning *tuning)
{
    if (tuning == NULL || path == NULL) {
        return dcommi_fail(DCOMM_ERR_INVALID, "%s is NULL", tuning == NULL ? "tuning" : "path");
    }
    dcomm_tuning_default(tuning);
    FILE *file = fopen(path, "re");
    if (file == NULL) {
        return dcommi_fail(DCOMM_ERR_SYSTEM, "cannot read %s: %s", path, strerror(errno));
    }
    snprintf(tuning->source, sizeof tuning->source, "%.100s", path);
    dcomm_status status = DCOMM_OK;
    char line[DCOMMI_TUNING_LINE];
    for (int number = 1; status == DCOMM_OK && fgets(line, sizeof line, file) != NULL; number++) {
        char *text = dcommi_trim(line), *equals = strchr(text, '=');
        if (*text == 0 || *text == '#') {
            continue;
        }
        if (equals != NULL) {
            *equals = 0;
        }
        if (equals == NULL ||
            !dcommi_tuning_assign(tuning, dcommi_trim(text), dcommi_trim(equals + 1))) {
            status = dcommi_fail(DCOMM_ERR_INVALID, "%s, line %d: \"%.60s\" is not a setting", path,
                                 number, text);
        }
    }
    fclose(file);
    return status == DCOMM_OK ? dcommi_tuning_check(tuning) : status;
}

#endif

#define DCOMMI_PRICE_LIMIT (INT64_MAX >> 2)    /* a month */
#define DCOMMI_PRICE_BUDGET ((int64_t)1 << 32) /* steps that somebody waits for */

static dcomm_curve dcommi_curve_line(double ns_per_B)
{
    dcomm_curve c = {.n = 2, .bytes = {0, 1 << 20}, .ps = {0, 0}};
    c.ps[1] = (int64_t)(ns_per_B * 1e3 * (double)c.bytes[1] + 0.5);
    return c;
}

DCOMM_API dcomm_status dcomm_tuning_uniform(double alpha_us, double beta_ns_per_B,
                                            double gamma_ns_per_B, dcomm_tuning *tuning)
{
    const double most = 1e6;
    if (tuning == NULL) {
        return dcommi_fail(DCOMM_ERR_INVALID, "tuning is NULL");
    }
    memset(tuning, 0, sizeof *tuning);
    /* Written so that a NaN is refused as well. */
    if (!(alpha_us >= 0 && alpha_us <= most && beta_ns_per_B >= 0 && beta_ns_per_B <= most / 1e3 &&
          gamma_ns_per_B >= 0 && gamma_ns_per_B <= most / 1e3)) {
        return dcommi_fail(DCOMM_ERR_INVALID,
                           "alpha %g us, beta %g ns/B, gamma %g ns/B: each from 0, to 1e6 us and "
                           "1000 ns/B",
                           alpha_us, beta_ns_per_B, gamma_ns_per_B);
    }
    dcomm_link link = {.alpha_ps = (int64_t)(alpha_us * 1e6 + 0.5)};
    link.signal_ps = link.alpha_ps;
    link.message = dcommi_curve_line(beta_ns_per_B);
    link.fold = dcommi_curve_line(gamma_ns_per_B);
    for (int k = 0; k < DCOMM_LINK_COUNT; k++) {
        tuning->link[k] = link;
    }
    tuning->fold = link.fold;
    snprintf(tuning->source, sizeof tuning->source, "alpha %g us, beta %g ns/B, gamma %g ns/B",
             alpha_us, beta_ns_per_B, gamma_ns_per_B);
    return DCOMM_OK;
}

/* Groups of a table of host numbers; *groups_p NULL: nothing is known. */
static dcomm_status dcommi_groups_of_hosts(const int *hosts, int nranks, dcommi_groups **groups_p)
{
    static const uint8_t kinds[] = {DCOMMI_LEVEL_HOST};
    *groups_p = NULL;
    if (hosts == NULL) {
        return DCOMM_OK;
    }
    int64_t *ids = dcommi_calloc((size_t)nranks, sizeof *ids);
    for (int r = 0; ids != NULL && r < nranks; r++) {
        ids[r] = hosts[r];
    }
    *groups_p = ids != NULL ? dcommi_groups_make(nranks, 1, kinds, ids) : NULL;
    dcommi_free(ids);
    return *groups_p != NULL ? DCOMM_OK : DCOMM_ERR_NO_MEMORY;
}

static dcomm_status dcommi_plans_listed(void *user, int rank, const dcomm_plan **plan_p)
{
    *plan_p = ((const dcomm_plan *const *)user)[rank];
    return DCOMM_OK;
}

static void dcommi_plans_keep(void *user, const dcomm_plan *plan)
{
    (void)user;
    (void)plan;
}

DCOMM_API dcomm_status dcomm_plan_price(const dcomm_plan *const *plans, int nranks,
                                        const int *hosts, const dcomm_tuning *tuning,
                                        double *seconds)
{
    if (plans == NULL || nranks < 1 || tuning == NULL || seconds == NULL) {
        return dcommi_fail(DCOMM_ERR_INVALID, "plans, tuning or seconds is NULL, or nranks is %d",
                           nranks);
    }
    *seconds = 0;
    for (int r = 0; r < nranks; r++) {
        char where[32];
        uint32_t budget = DCOMMI_CHECK_SUBPLANS;
        snprintf(where, sizeof where, "rank %d", r);
        if (plans[r] == NULL || plans[r]->rank != r || plans[r]->nranks != nranks) {
            return dcommi_fail(DCOMM_ERR_PLAN, "plans[%d] is not the plan of rank %d of %d", r, r,
                               nranks);
        }
        DCOMMI_TRY(dcommi_check_plan_valid(plans[r], where, 0, &budget));
    }
    dcommi_groups *groups = NULL;
    dcommi_terrain terrain;
    dcommi_price price;
    dcommi_plans source = {dcommi_plans_listed, dcommi_plans_keep, (void *)(uintptr_t)plans};
    DCOMMI_TRY(dcommi_groups_of_hosts(hosts, nranks, &groups));
    dcomm_status status = dcommi_terrain_make(groups, nranks, tuning, &terrain);
    if (status >= 0) {
        status =
            dcommi_price_plans(&terrain, &source, DCOMMI_PRICE_LIMIT, DCOMMI_PRICE_BUDGET, &price);
    }
    dcommi_groups_free(&groups);
    if (status >= 0) {
        *seconds = 1e-12 * (double)price.ps;
    }
    return status;
}

#endif
/* ==== include/dcomm/impl/api_coll.h ======================================================== */
/* api_coll.h - the public collectives: each names its buffers' rules and leaves the rest to call.h.
 * The blocking form is the non-blocking one without a request. */
#ifndef DCOMMI_API_COLL_H
#define DCOMMI_API_COLL_H

/* ==== include/dcomm/impl/call.h ============================================================ */
/* call.h - what every collective call does: check the arguments, pick the algorithm, find or make
 * the plan, number the operation, hand it to the engine. Requests and groups. */
#ifndef DCOMMI_CALL_H
#define DCOMMI_CALL_H

/* ==== include/dcomm/impl/comm_life.h ======================================================= */
/* comm_life.h - communicators: derived from each other, shrunk after an error, aborted, destroyed,
 * read out. */
#ifndef DCOMMI_COMM_LIFE_H
#define DCOMMI_COMM_LIFE_H

/* ==== include/dcomm/impl/comm_create.h ===================================================== */
/* comm_create.h - communicators: made, and created over a rendezvous. */
#ifndef DCOMMI_COMM_CREATE_H
#define DCOMMI_COMM_CREATE_H

/* ==== include/dcomm/impl/boot.h ============================================================ */
/* boot.h - how the ranks of a new communicator meet: by the launcher, an id, or the caller's own
 * all-gather. */
#ifndef DCOMMI_BOOT_H
#define DCOMMI_BOOT_H

/* ==== include/dcomm/impl/launcher.h ======================================================== */
/* launcher.h - which launcher started this process, as the environment tells: rank, size, and
 * where the ranks meet. */
#ifndef DCOMMI_LAUNCHER_H
#define DCOMMI_LAUNCHER_H

/* ==== include/dcomm/impl/nodelist.h ======================================================== */
/* nodelist.h - the first host of a list as Slurm writes it: "n[01-03,7]-ib,m2" begins with
 * "n01-ib". */
#ifndef DCOMMI_NODELIST_H
#define DCOMMI_NODELIST_H


/* Copies the first host's name; false where the text is no such list, or the name does not fit.
 * A name may hold several brackets; of each, the first number is taken. */
static bool dcommi_nodelist_first(const char *list, char *host, size_t max)
{
    size_t n = 0;
    const char *p = list;
    while (*p != '\0' && *p != ',') {
        if (*p == '[') {
            size_t digits = strspn(p + 1, "0123456789");
            const char *close = strchr(p, ']');
            if (digits == 0 || close == NULL || strchr(",-]", p[1 + digits]) == NULL ||
                strspn(p + 1, "0123456789,-") != (size_t)(close - p - 1) || n + digits >= max) {
                return false;
            }
            memcpy(host + n, p + 1, digits);
            n += digits;
            p = close + 1;
            continue;
        }
        bool good = (*p >= 'a' && *p <= 'z') || (*p >= 'A' && *p <= 'Z') ||
                    (*p >= '0' && *p <= '9') || *p == '-' || *p == '.' || *p == '_';
        if (!good || n + 1 >= max) {
            return false;
        }
        host[n++] = *p++;
    }
    if (max == 0 || n == 0) {
        return false;
    }
    host[n] = '\0';
    return true;
}

#endif
/* ==== include/dcomm/impl/rendezvous_wire.h ================================================= */
/* rendezvous_wire.h - the rendezvous on the wire: ids, frames, the handshake, keys. Pure functions
 * on bytes; all numbers are big-endian.
 *
 * The server speaks first, the client proves itself first:
 *   server  CHALLENGE  version, nonce
 *   client  HELLO      version, rank, size, generation, timeout, instance, nonce,
 *                      proof = HMAC(key, "client" | CHALLENGE | HELLO up to here)
 *   server  WELCOME    proof = HMAC(key, "server" | CHALLENGE | HELLO)      or REJECT
 * Later frames carry a number that counts up from 0 in each direction, and end with
 *   tag = HMAC(direction's key, header | SHA-256(payload))
 *   server  READY      all ranks are here
 *   client  GATHER     timeout, blob; any number of rounds, each ending with
 *   server  RESULT     number of ranks, their lengths, their blobs
 *   client  BYE
 *   server  FAIL       why the rendezvous failed, for every rank, at any time
 * Without a secret the key is all zero and the rest the same. CHALLENGE and HELLO keep their
 * layout in all versions, so that different ones can tell each other. */
#ifndef DCOMMI_RENDEZVOUS_WIRE_H
#define DCOMMI_RENDEZVOUS_WIRE_H

/* ==== include/dcomm/impl/sha256.h ========================================================== */
/* sha256.h - SHA-256 (FIPS 180-4), HMAC-SHA-256 (RFC 2104) and the kernel's random bytes: what the
 * rendezvous needs to know its friends. */
#ifndef DCOMMI_SHA256_H
#define DCOMMI_SHA256_H


#include <sys/random.h>

#define DCOMMI_SHA256_BYTES 32
#define DCOMMI_SHA256_BLOCK 64

typedef struct dcommi_sha256 {
    uint32_t state[8];
    uint64_t length; /* bytes so far */
    uint8_t block[DCOMMI_SHA256_BLOCK];
} dcommi_sha256;

static inline uint32_t dcommi_sha256_rotate(uint32_t x, int n)
{
    return (x >> n) | (x << (32 - n));
}

static void dcommi_sha256_compress(uint32_t state[8], const uint8_t *block)
{
    /* First 32 bits of the fractional parts of the cube roots of the first 64 primes. */
    static const uint32_t k[64] = {
        0x428a2f98u, 0x71374491u, 0xb5c0fbcfu, 0xe9b5dba5u, 0x3956c25bu, 0x59f111f1u, 0x923f82a4u,
        0xab1c5ed5u, 0xd807aa98u, 0x12835b01u, 0x243185beu, 0x550c7dc3u, 0x72be5d74u, 0x80deb1feu,
        0x9bdc06a7u, 0xc19bf174u, 0xe49b69c1u, 0xefbe4786u, 0x0fc19dc6u, 0x240ca1ccu, 0x2de92c6fu,
        0x4a7484aau, 0x5cb0a9dcu, 0x76f988dau, 0x983e5152u, 0xa831c66du, 0xb00327c8u, 0xbf597fc7u,
        0xc6e00bf3u, 0xd5a79147u, 0x06ca6351u, 0x14292967u, 0x27b70a85u, 0x2e1b2138u, 0x4d2c6dfcu,
        0x53380d13u, 0x650a7354u, 0x766a0abbu, 0x81c2c92eu, 0x92722c85u, 0xa2bfe8a1u, 0xa81a664bu,
        0xc24b8b70u, 0xc76c51a3u, 0xd192e819u, 0xd6990624u, 0xf40e3585u, 0x106aa070u, 0x19a4c116u,
        0x1e376c08u, 0x2748774cu, 0x34b0bcb5u, 0x391c0cb3u, 0x4ed8aa4au, 0x5b9cca4fu, 0x682e6ff3u,
        0x748f82eeu, 0x78a5636fu, 0x84c87814u, 0x8cc70208u, 0x90befffau, 0xa4506cebu, 0xbef9a3f7u,
        0xc67178f2u};
    uint32_t w[64];
    for (int i = 0; i < 16; i++) {
        w[i] = (uint32_t)block[4 * i] << 24 | (uint32_t)block[4 * i + 1] << 16 |
               (uint32_t)block[4 * i + 2] << 8 | block[4 * i + 3];
    }
    for (int i = 16; i < 64; i++) {
        uint32_t s0 = dcommi_sha256_rotate(w[i - 15], 7) ^ dcommi_sha256_rotate(w[i - 15], 18) ^
                      (w[i - 15] >> 3);
        uint32_t s1 = dcommi_sha256_rotate(w[i - 2], 17) ^ dcommi_sha256_rotate(w[i - 2], 19) ^
                      (w[i - 2] >> 10);
        w[i] = w[i - 16] + s0 + w[i - 7] + s1;
    }
    uint32_t v[8];
    memcpy(v, state, sizeof v);
    for (int i = 0; i < 64; i++) {
        uint32_t s1 = dcommi_sha256_rotate(v[4], 6) ^ dcommi_sha256_rotate(v[4], 11) ^
                      dcommi_sha256_rotate(v[4], 25);
        uint32_t choice = (v[4] & v[5]) ^ (~v[4] & v[6]);
        uint32_t t1 = v[7] + s1 + choice + k[i] + w[i];
        uint32_t s0 = dcommi_sha256_rotate(v[0], 2) ^ dcommi_sha256_rotate(v[0], 13) ^
                      dcommi_sha256_rotate(v[0], 22);
        uint32_t majority = (v[0] & v[1]) ^ (v[0] & v[2]) ^ (v[1] & v[2]);
        memmove(v + 1, v, 7 * sizeof v[0]);
        v[4] += t1;
        v[0] = t1 + s0 + majority;
    }
    for (int i = 0; i < 8; i++) {
        state[i] += v[i];
    }
}

static void dcommi_sha256_begin(dcommi_sha256 *s)
{
    /* First 32 bits of the fractional parts of the square roots of the first 8 primes. */
    static const uint32_t initial[8] = {0x6a09e667u, 0xbb67ae85u, 0x3c6ef372u, 0xa54ff53au,
                                        0x510e527fu, 0x9b05688cu, 0x1f83d9abu, 0x5be0cd19u};
    memcpy(s->state, initial, sizeof initial);
    s->length = 0;
}

static void dcommi_sha256_add(dcommi_sha256 *s, const void *data, size_t len)
{
    const uint8_t *p = data;
    size_t used = (size_t)(s->length % DCOMMI_SHA256_BLOCK);
    s->length += len;
    while (len > 0) {
        if (used == 0 && len >= DCOMMI_SHA256_BLOCK) {
            dcommi_sha256_compress(s->state, p);
            p += DCOMMI_SHA256_BLOCK;
            len -= DCOMMI_SHA256_BLOCK;
            continue;
        }
        size_t part = DCOMMI_SHA256_BLOCK - used;
        part = part < len ? part : len;
        memcpy(s->block + used, p, part);
        used += part;
        p += part;
        len -= part;
        if (used == DCOMMI_SHA256_BLOCK) {
            dcommi_sha256_compress(s->state, s->block);
            used = 0;
        }
    }
}

static void dcommi_sha256_end(dcommi_sha256 *s, uint8_t digest[DCOMMI_SHA256_BYTES])
{
    uint64_t bits = s->length * 8;
    size_t used = (size_t)(s->length % DCOMMI_SHA256_BLOCK);
    s->block[used++] = 0x80;
    if (used > DCOMMI_SHA256_BLOCK - 8) {
        memset(s->block + used, 0, DCOMMI_SHA256_BLOCK - used);
        dcommi_sha256_compress(s->state, s->block);
        used = 0;
    }
    memset(s->block + used, 0, DCOMMI_SHA256_BLOCK - 8 - used);
    for (int i = 0; i < 8; i++) {
        s->block[DCOMMI_SHA256_BLOCK - 8 + i] = (uint8_t)(bits >> (56 - 8 * i));
    }
    dcommi_sha256_compress(s->state, s->block);
    for (int i = 0; i < DCOMMI_SHA256_BYTES; i++) {
        digest[i] = (uint8_t)(s->state[i / 4] >> (24 - 8 * (i % 4)));
    }
}

static void dcommi_sha256_digest(const void *data, size_t len, uint8_t digest[DCOMMI_SHA256_BYTES])
{
    dcommi_sha256 s;
    dcommi_sha256_begin(&s);
    dcommi_sha256_add(&s, data, len);
    dcommi_sha256_end(&s, digest);
}

typedef struct dcommi_hmac {
    dcommi_sha256 inner;
    uint8_t outer_pad[DCOMMI_SHA256_BLOCK];
} dcommi_hmac;

static void dcommi_hmac_begin(dcommi_hmac *h, const void *key, size_t key_len)
{
    uint8_t pad[DCOMMI_SHA256_BLOCK] = {0};
    if (key_len > sizeof pad) {
        dcommi_sha256_digest(key, key_len, pad);
    } else {
        memcpy(pad, key, key_len);
    }
    for (size_t i = 0; i < sizeof pad; i++) {
        h->outer_pad[i] = pad[i] ^ 0x5c;
        pad[i] ^= 0x36;
    }
    dcommi_sha256_begin(&h->inner);
    dcommi_sha256_add(&h->inner, pad, sizeof pad);
}

static void dcommi_hmac_add(dcommi_hmac *h, const void *data, size_t len)
{
    dcommi_sha256_add(&h->inner, data, len);
}

static void dcommi_hmac_end(dcommi_hmac *h, uint8_t tag[DCOMMI_SHA256_BYTES])
{
    uint8_t inner[DCOMMI_SHA256_BYTES];
    dcommi_sha256_end(&h->inner, inner);
    dcommi_sha256 outer;
    dcommi_sha256_begin(&outer);
    dcommi_sha256_add(&outer, h->outer_pad, sizeof h->outer_pad);
    dcommi_sha256_add(&outer, inner, sizeof inner);
    dcommi_sha256_end(&outer, tag);
}

/* Equal, in a time that does not tell where they differ. */
static bool dcommi_same_secret(const uint8_t *a, const uint8_t *b, size_t len)
{
    volatile uint8_t differ = 0;
    for (size_t i = 0; i < len; i++) {
        differ = (uint8_t)(differ | (a[i] ^ b[i]));
    }
    return differ == 0;
}

static dcomm_status dcommi_random_bytes(void *p, size_t len)
{
    size_t have = 0;
    while (have < len) {
        ssize_t n = getrandom((uint8_t *)p + have, len - have, 0);
        if (n < 0 && errno != EINTR) {
            return dcommi_fail(DCOMM_ERR_SYSTEM, "getrandom: %s", strerror(errno));
        }
        have += n > 0 ? (size_t)n : 0;
    }
    return DCOMM_OK;
}

#endif

#define DCOMMI_RDV_MAGIC 0x64635256u /* "dcRV" */
#define DCOMMI_RDV_WIRE_VERSION 1u
#define DCOMMI_RDV_LIB_VERSION                                                  \
    ((uint32_t)DCOMM_VERSION_MAJOR << 16 | (uint32_t)DCOMM_VERSION_MINOR << 8 | \
     (uint32_t)DCOMM_VERSION_PATCH)
#define DCOMMI_RDV_HEADER 16
#define DCOMMI_RDV_NONCE 16
#define DCOMMI_RDV_TAG DCOMMI_SHA256_BYTES
#define DCOMMI_RDV_KEY DCOMMI_SHA256_BYTES
#define DCOMMI_RDV_CHALLENGE_LEN 24
#define DCOMMI_RDV_HELLO_LEN 80
#define DCOMMI_RDV_WELCOME_LEN DCOMMI_RDV_TAG
#define DCOMMI_RDV_REASON_MAX 384
#define DCOMMI_RDV_SIZE_MAX 65536          /* ranks */
#define DCOMMI_RDV_BLOB_MAX (1u << 20)     /* bytes of one rank in one round */
#define DCOMMI_RDV_RESULT_MAX (512u << 20) /* bytes of all of them */

typedef enum dcommi_rdv_type {
    DCOMMI_RDV_CHALLENGE = 1,
    DCOMMI_RDV_HELLO,
    DCOMMI_RDV_WELCOME,
    DCOMMI_RDV_REJECT,
    DCOMMI_RDV_READY,
    DCOMMI_RDV_GATHER,
    DCOMMI_RDV_RESULT,
    DCOMMI_RDV_BYE,
    DCOMMI_RDV_FAIL
} dcommi_rdv_type;

/* ---- numbers ---- */

static inline void dcommi_put16(uint8_t *p, uint16_t v)
{
    p[0] = (uint8_t)(v >> 8);
    p[1] = (uint8_t)v;
}

static inline void dcommi_put32(uint8_t *p, uint32_t v)
{
    dcommi_put16(p, (uint16_t)(v >> 16));
    dcommi_put16(p + 2, (uint16_t)v);
}

static inline void dcommi_put64(uint8_t *p, uint64_t v)
{
    dcommi_put32(p, (uint32_t)(v >> 32));
    dcommi_put32(p + 4, (uint32_t)v);
}

static inline uint16_t dcommi_get16(const uint8_t *p)
{
    return (uint16_t)(p[0] << 8 | p[1]);
}

static inline uint32_t dcommi_get32(const uint8_t *p)
{
    return (uint32_t)dcommi_get16(p) << 16 | dcommi_get16(p + 2);
}

static inline uint64_t dcommi_get64(const uint8_t *p)
{
    return (uint64_t)dcommi_get32(p) << 32 | dcommi_get32(p + 4);
}

/* ---- frames ---- */

typedef struct dcommi_rdv_header {
    uint16_t type;
    uint32_t sequence;
    uint32_t length; /* of the payload */
} dcommi_rdv_header;

static void dcommi_rdv_put_header(uint8_t *p, uint16_t type, uint32_t sequence, uint32_t length)
{
    dcommi_put32(p, DCOMMI_RDV_MAGIC);
    dcommi_put16(p + 4, type);
    dcommi_put16(p + 6, 0);
    dcommi_put32(p + 8, sequence);
    dcommi_put32(p + 12, length);
}

/* The longest payload that a frame of this type may have; 0 also for unknown types. */
static uint32_t dcommi_rdv_length_max(uint16_t type)
{
    switch (type) {
    case DCOMMI_RDV_CHALLENGE:
        return DCOMMI_RDV_CHALLENGE_LEN;
    case DCOMMI_RDV_HELLO:
        return DCOMMI_RDV_HELLO_LEN;
    case DCOMMI_RDV_WELCOME:
        return DCOMMI_RDV_WELCOME_LEN;
    case DCOMMI_RDV_REJECT:
    case DCOMMI_RDV_FAIL:
        return 4 + DCOMMI_RDV_REASON_MAX;
    case DCOMMI_RDV_GATHER:
        return 4 + DCOMMI_RDV_BLOB_MAX;
    case DCOMMI_RDV_RESULT:
        return DCOMMI_RDV_RESULT_MAX;
    default:
        return 0;
    }
}

/* False where these 16 bytes begin no frame of the rendezvous. */
static bool dcommi_rdv_get_header(const uint8_t *p, dcommi_rdv_header *h)
{
    h->type = dcommi_get16(p + 4);
    h->sequence = dcommi_get32(p + 8);
    h->length = dcommi_get32(p + 12);
    return dcommi_get32(p) == DCOMMI_RDV_MAGIC && h->type >= DCOMMI_RDV_CHALLENGE &&
           h->type <= DCOMMI_RDV_FAIL && dcommi_get16(p + 6) == 0 &&
           h->length <= dcommi_rdv_length_max(h->type);
}

/* The digest is of the payload: one pass over it serves every receiver of a RESULT. */
static void dcommi_rdv_tag(const uint8_t key[DCOMMI_RDV_KEY], const uint8_t *header,
                           const uint8_t digest[DCOMMI_SHA256_BYTES], uint8_t tag[DCOMMI_RDV_TAG])
{
    dcommi_hmac h;
    dcommi_hmac_begin(&h, key, DCOMMI_RDV_KEY);
    dcommi_hmac_add(&h, header, DCOMMI_RDV_HEADER);
    dcommi_hmac_add(&h, digest, DCOMMI_SHA256_BYTES);
    dcommi_hmac_end(&h, tag);
}

/* Write a whole small tagged frame; returns its length. */
static size_t dcommi_rdv_put_tagged(uint8_t *p, uint16_t type, uint32_t sequence,
                                    const void *payload, uint32_t length,
                                    const uint8_t key[DCOMMI_RDV_KEY])
{
    uint8_t digest[DCOMMI_SHA256_BYTES];
    dcommi_rdv_put_header(p, type, sequence, length);
    if (length > 0) {
        memcpy(p + DCOMMI_RDV_HEADER, payload, length);
    }
    dcommi_sha256_digest(p + DCOMMI_RDV_HEADER, length, digest);
    dcommi_rdv_tag(key, p, digest, p + DCOMMI_RDV_HEADER + length);
    return DCOMMI_RDV_HEADER + (size_t)length + DCOMMI_RDV_TAG;
}

/* Whether a whole tagged frame (header, payload, tag) is genuine and the next in order. */
static bool dcommi_rdv_genuine(const uint8_t *frame, const dcommi_rdv_header *h, uint32_t sequence,
                               const uint8_t key[DCOMMI_RDV_KEY])
{
    uint8_t digest[DCOMMI_SHA256_BYTES], tag[DCOMMI_RDV_TAG];
    dcommi_sha256_digest(frame + DCOMMI_RDV_HEADER, h->length, digest);
    dcommi_rdv_tag(key, frame, digest, tag);
    return dcommi_same_secret(tag, frame + DCOMMI_RDV_HEADER + h->length, sizeof tag) &&
           h->sequence == sequence;
}

/* ---- the handshake ---- */

typedef struct dcommi_rdv_hello {
    uint16_t wire;
    uint32_t lib;
    uint32_t rank, size;
    uint32_t generation; /* which of a launcher's communicators this is; 0 with an id */
    uint32_t timeout_ms; /* how long this rank waits for the others */
    uint64_t instance;   /* tells a rank that tries again from a second process of the same rank */
} dcommi_rdv_hello;

/* Both write header and payload and return the length. */
static size_t dcommi_rdv_put_challenge(uint8_t *p, const uint8_t nonce[DCOMMI_RDV_NONCE])
{
    dcommi_rdv_put_header(p, DCOMMI_RDV_CHALLENGE, 0, DCOMMI_RDV_CHALLENGE_LEN);
    uint8_t *q = p + DCOMMI_RDV_HEADER;
    dcommi_put16(q, DCOMMI_RDV_WIRE_VERSION);
    dcommi_put16(q + 2, 0);
    dcommi_put32(q + 4, DCOMMI_RDV_LIB_VERSION);
    memcpy(q + 8, nonce, DCOMMI_RDV_NONCE);
    return DCOMMI_RDV_HEADER + DCOMMI_RDV_CHALLENGE_LEN;
}

static void dcommi_rdv_proof(const uint8_t key[DCOMMI_RDV_KEY], const char *role,
                             const uint8_t *challenge, const uint8_t *hello, size_t hello_len,
                             uint8_t proof[DCOMMI_RDV_TAG])
{
    dcommi_hmac h;
    dcommi_hmac_begin(&h, key, DCOMMI_RDV_KEY);
    dcommi_hmac_add(&h, role, strlen(role) + 1);
    dcommi_hmac_add(&h, challenge, DCOMMI_RDV_HEADER + DCOMMI_RDV_CHALLENGE_LEN);
    dcommi_hmac_add(&h, hello, hello_len);
    dcommi_hmac_end(&h, proof);
}

#define DCOMMI_RDV_HELLO_FRAME (DCOMMI_RDV_HEADER + DCOMMI_RDV_HELLO_LEN)
#define DCOMMI_RDV_CHALLENGE_FRAME (DCOMMI_RDV_HEADER + DCOMMI_RDV_CHALLENGE_LEN)
#define DCOMMI_RDV_WELCOME_FRAME (DCOMMI_RDV_HEADER + DCOMMI_RDV_WELCOME_LEN)

/* The answer to a whole CHALLENGE frame. */
static size_t dcommi_rdv_put_hello(uint8_t *p, const dcommi_rdv_hello *hello,
                                   const uint8_t nonce[DCOMMI_RDV_NONCE], const uint8_t *challenge,
                                   const uint8_t key[DCOMMI_RDV_KEY])
{
    dcommi_rdv_put_header(p, DCOMMI_RDV_HELLO, 0, DCOMMI_RDV_HELLO_LEN);
    uint8_t *q = p + DCOMMI_RDV_HEADER;
    dcommi_put16(q, hello->wire);
    dcommi_put16(q + 2, 0);
    dcommi_put32(q + 4, hello->lib);
    dcommi_put32(q + 8, hello->rank);
    dcommi_put32(q + 12, hello->size);
    dcommi_put32(q + 16, hello->generation);
    dcommi_put32(q + 20, hello->timeout_ms);
    dcommi_put64(q + 24, hello->instance);
    memcpy(q + 32, nonce, DCOMMI_RDV_NONCE);
    dcommi_rdv_proof(key, "client", challenge, p, DCOMMI_RDV_HELLO_FRAME - DCOMMI_RDV_TAG,
                     q + 32 + DCOMMI_RDV_NONCE);
    return DCOMMI_RDV_HELLO_FRAME;
}

/* Read a whole HELLO frame; false where its proof is wrong. */
static bool dcommi_rdv_get_hello(const uint8_t *frame, const uint8_t *challenge,
                                 const uint8_t key[DCOMMI_RDV_KEY], dcommi_rdv_hello *hello)
{
    const uint8_t *q = frame + DCOMMI_RDV_HEADER;
    hello->wire = dcommi_get16(q);
    hello->lib = dcommi_get32(q + 4);
    hello->rank = dcommi_get32(q + 8);
    hello->size = dcommi_get32(q + 12);
    hello->generation = dcommi_get32(q + 16);
    hello->timeout_ms = dcommi_get32(q + 20);
    hello->instance = dcommi_get64(q + 24);
    uint8_t proof[DCOMMI_RDV_TAG];
    dcommi_rdv_proof(key, "client", challenge, frame, DCOMMI_RDV_HELLO_FRAME - DCOMMI_RDV_TAG,
                     proof);
    return dcommi_same_secret(proof, frame + DCOMMI_RDV_HELLO_FRAME - DCOMMI_RDV_TAG, sizeof proof);
}

static size_t dcommi_rdv_put_welcome(uint8_t *p, const uint8_t *challenge, const uint8_t *hello,
                                     const uint8_t key[DCOMMI_RDV_KEY])
{
    dcommi_rdv_put_header(p, DCOMMI_RDV_WELCOME, 0, DCOMMI_RDV_WELCOME_LEN);
    dcommi_rdv_proof(key, "server", challenge, hello, DCOMMI_RDV_HELLO_FRAME,
                     p + DCOMMI_RDV_HEADER);
    return DCOMMI_RDV_WELCOME_FRAME;
}

/* The keys of the frames after the handshake. */
typedef struct dcommi_rdv_keys {
    uint8_t client[DCOMMI_RDV_KEY]; /* of what the client sends */
    uint8_t server[DCOMMI_RDV_KEY];
} dcommi_rdv_keys;

static void dcommi_rdv_derive(const uint8_t key[DCOMMI_RDV_KEY], const uint8_t *challenge,
                              const uint8_t *hello, dcommi_rdv_keys *keys)
{
    dcommi_rdv_proof(key, "client key", challenge, hello, DCOMMI_RDV_HELLO_FRAME, keys->client);
    dcommi_rdv_proof(key, "server key", challenge, hello, DCOMMI_RDV_HELLO_FRAME, keys->server);
}

/* The key that a secret of any length stands for. */
static void dcommi_rdv_key_of(const void *secret, size_t len, uint8_t key[DCOMMI_RDV_KEY])
{
    dcommi_hmac h;
    dcommi_hmac_begin(&h, "dcomm rendezvous 1", 18);
    dcommi_hmac_add(&h, secret, len);
    dcommi_hmac_end(&h, key);
}

/* ---- REJECT and FAIL ---- */

/* Payload of a reason; returns its length. */
static uint32_t dcommi_rdv_put_reason(uint8_t *p, dcomm_status status, const char *why)
{
    size_t len = strlen(why);
    len = len < DCOMMI_RDV_REASON_MAX ? len : DCOMMI_RDV_REASON_MAX;
    dcommi_put32(p, (uint32_t)(int32_t)status);
    memcpy(p + 4, why, len);
    return (uint32_t)(4 + len);
}

/* The sentence is made printable: it came over a network and goes to a terminal. */
static dcomm_status dcommi_rdv_get_reason(const uint8_t *p, size_t len,
                                          char why[DCOMMI_RDV_REASON_MAX + 1])
{
    why[0] = '\0';
    if (len < 4 || len > 4 + DCOMMI_RDV_REASON_MAX) {
        return DCOMM_ERR_CORRUPT;
    }
    size_t n = len - 4;
    for (size_t i = 0; i < n; i++) {
        why[i] = p[4 + i] >= 0x20 && p[4 + i] < 0x7f ? (char)p[4 + i] : '?';
    }
    why[n] = '\0';
    int32_t code = (int32_t)dcommi_get32(p);
    return code == DCOMM_IN_PROGRESS || (code < 0 && code >= DCOMM_ERR_INTERNAL)
               ? (dcomm_status)code
               : DCOMM_ERR_CORRUPT;
}

/* ---- RESULT ---- */

/* Checks a RESULT's payload for `size` ranks; fills lens[size] and where the blobs begin. */
static bool dcommi_rdv_get_result(const uint8_t *p, size_t len, uint32_t size, size_t *lens,
                                  size_t *blobs)
{
    size_t head = 4 + 4 * (size_t)size;
    if (len < head || dcommi_get32(p) != size) {
        return false;
    }
    size_t total = 0;
    for (uint32_t r = 0; r < size; r++) {
        lens[r] = dcommi_get32(p + 4 + 4 * (size_t)r);
        if (lens[r] > DCOMMI_RDV_BLOB_MAX) {
            return false;
        }
        total += lens[r];
    }
    *blobs = head;
    return total == len - head;
}

#endif
/* ==== include/dcomm/impl/socket.h ========================================================== */
/* socket.h - addresses, listening, connecting and bounded reading for the rendezvous. Every
 * descriptor is non-blocking and closed on exec; no call raises SIGPIPE or waits past its
 * deadline. */
#ifndef DCOMMI_SOCKET_H
#define DCOMMI_SOCKET_H


#include <arpa/inet.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>

#define DCOMMI_SOCK_TEXT 64 /* "[address]:port" */
#define DCOMMI_SOCK_ADDRS 8
#define DCOMMI_SOCK_SLICE_MS 50 /* how soon a cancelled wait notices */

typedef union dcommi_addr {
    struct sockaddr any;
    struct sockaddr_in v4;
    struct sockaddr_in6 v6;
} dcommi_addr;

static socklen_t dcommi_addr_len(const dcommi_addr *a)
{
    return a->any.sa_family == AF_INET ? sizeof a->v4 : sizeof a->v6;
}

static void dcommi_addr_set_port(dcommi_addr *a, uint16_t port)
{
    if (a->any.sa_family == AF_INET) {
        a->v4.sin_port = htons(port);
    } else {
        a->v6.sin6_port = htons(port);
    }
}

static void dcommi_addr_text(const dcommi_addr *a, char text[DCOMMI_SOCK_TEXT])
{
    char host[INET6_ADDRSTRLEN] = "?";
    if (a->any.sa_family == AF_INET) {
        inet_ntop(AF_INET, &a->v4.sin_addr, host, sizeof host);
        snprintf(text, DCOMMI_SOCK_TEXT, "%s:%u", host, ntohs(a->v4.sin_port));
    } else {
        inet_ntop(AF_INET6, &a->v6.sin6_addr, host, sizeof host);
        snprintf(text, DCOMMI_SOCK_TEXT, "[%s]:%u", host, ntohs(a->v6.sin6_port));
    }
}

static bool dcommi_addr_loopback(const dcommi_addr *a)
{
    if (a->any.sa_family == AF_INET) {
        return (ntohl(a->v4.sin_addr.s_addr) >> 24) == 127;
    }
    return IN6_IS_ADDR_LOOPBACK(&a->v6.sin6_addr);
}

/* An address written in digits, with or without brackets. False: it is a name. */
static bool dcommi_addr_literal(const char *text, uint16_t port, dcommi_addr *a)
{
    char bare[DCOMMI_SOCK_TEXT];
    size_t len = strlen(text);
    if (len > 2 && text[0] == '[' && text[len - 1] == ']') {
        text++;
        len -= 2;
    }
    if (len == 0 || len >= sizeof bare) {
        return false;
    }
    memcpy(bare, text, len);
    bare[len] = '\0';
    memset(a, 0, sizeof *a);
    if (inet_pton(AF_INET, bare, &a->v4.sin_addr) == 1) {
        a->any.sa_family = AF_INET;
    } else if (inet_pton(AF_INET6, bare, &a->v6.sin6_addr) == 1) {
        a->any.sa_family = AF_INET6;
    } else {
        return false;
    }
    dcommi_addr_set_port(a, port);
    return true;
}

/* Addresses of a host; returns how many (0: unknown, *why says it). */
static int dcommi_addr_resolve(const char *host, uint16_t port, dcommi_addr *list, int max,
                               const char **why)
{
    if (max > 0 && dcommi_addr_literal(host, port, &list[0])) {
        return 1;
    }
    struct addrinfo hints = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM};
    struct addrinfo *found = NULL;
    char bare[256];
    size_t len = strlen(host);
    bool brackets = len > 2 && host[0] == '[' && host[len - 1] == ']';
    snprintf(bare, sizeof bare, "%.*s", (int)(brackets ? len - 2 : len), host + brackets);
    int rc = getaddrinfo(bare, NULL, &hints, &found);
    if (rc != 0) {
        *why = gai_strerror(rc);
        return 0;
    }
    int n = 0;
    for (struct addrinfo *f = found; f != NULL && n < max; f = f->ai_next) {
        if ((f->ai_family == AF_INET || f->ai_family == AF_INET6) &&
            f->ai_addrlen <= sizeof list[n]) {
            memset(&list[n], 0, sizeof list[n]);
            memcpy(&list[n], f->ai_addr, f->ai_addrlen);
            dcommi_addr_set_port(&list[n], port);
            n++;
        }
    }
    freeaddrinfo(found);
    *why = n == 0 ? "it has no IPv4 or IPv6 address" : "";
    return n;
}

/* This machine's addresses that others may reach: of interface `only` if not NULL, else all that
 * are up, loopback last. Link-local IPv6 is left out: its scope means nothing elsewhere. */
static int dcommi_addr_mine(const char *only, uint16_t port, dcommi_addr *list, int max)
{
    struct ifaddrs *all = NULL;
    int n = 0;
    if (getifaddrs(&all) != 0) {
        return 0;
    }
    for (int loopback = 0; loopback <= 1; loopback++) {
        for (struct ifaddrs *i = all; i != NULL && n < max; i = i->ifa_next) {
            if (i->ifa_addr == NULL || (i->ifa_flags & IFF_UP) == 0 ||
                (only != NULL && strcmp(only, i->ifa_name) != 0)) {
                continue;
            }
            dcommi_addr a;
            memset(&a, 0, sizeof a);
            if (i->ifa_addr->sa_family == AF_INET) {
                memcpy(&a.v4, i->ifa_addr, sizeof a.v4);
            } else if (i->ifa_addr->sa_family == AF_INET6) {
                memcpy(&a.v6, i->ifa_addr, sizeof a.v6);
                if (IN6_IS_ADDR_LINKLOCAL(&a.v6.sin6_addr)) {
                    continue;
                }
            } else {
                continue;
            }
            if (dcommi_addr_loopback(&a) == (loopback != 0)) {
                dcommi_addr_set_port(&a, port);
                list[n++] = a;
            }
        }
    }
    freeifaddrs(all);
    return n;
}

/* ---- sockets ---- */

/* Listen on one address (port 0: any free one); -1 and errno where that fails. */
static int dcommi_sock_listen(const dcommi_addr *a, bool both_families)
{
    int fd = socket(a->any.sa_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0) {
        return -1;
    }
    int on = 1, v6only = !both_families;
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (a->any.sa_family == AF_INET6) {
        setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &v6only, sizeof v6only);
    }
    if (bind(fd, &a->any, dcommi_addr_len(a)) != 0 || listen(fd, SOMAXCONN) != 0) {
        int saved = errno;
        close(fd);
        errno = saved;
        return -1;
    }
    return fd;
}

/* On every address of this machine: both families, or IPv4 where there is no IPv6. */
static int dcommi_sock_listen_any(uint16_t port)
{
    dcommi_addr a;
    memset(&a, 0, sizeof a);
    a.v6.sin6_family = AF_INET6;
    a.v6.sin6_addr = in6addr_any;
    a.v6.sin6_port = htons(port);
    int fd = dcommi_sock_listen(&a, true);
    if (fd < 0 && errno != EADDRINUSE && errno != EACCES) {
        memset(&a, 0, sizeof a);
        a.v4.sin_family = AF_INET;
        a.v4.sin_addr.s_addr = htonl(INADDR_ANY);
        a.v4.sin_port = htons(port);
        fd = dcommi_sock_listen(&a, false);
    }
    return fd;
}

static void dcommi_sock_tune(int fd)
{
    int on = 1;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
}

/* Wait for events until the deadline. DCOMM_OK, DCOMM_ERR_TIMEOUT or DCOMM_ERR_ABORTED. */
static dcomm_status dcommi_sock_wait(int fd, short events, double deadline,
                                     const _Atomic int *cancel)
{
    for (;;) {
        if (cancel != NULL && atomic_load_explicit(cancel, memory_order_relaxed) != 0) {
            return DCOMM_ERR_ABORTED;
        }
        double left = deadline - dcommi_now();
        if (left <= 0) {
            return DCOMM_ERR_TIMEOUT;
        }
        int ms = left * 1000 < DCOMMI_SOCK_SLICE_MS ? (int)(left * 1000) + 1 : DCOMMI_SOCK_SLICE_MS;
        struct pollfd p = {.fd = fd, .events = events};
        int n = poll(&p, fd < 0 ? 0 : 1, ms);
        if (n > 0) {
            return DCOMM_OK;
        }
    }
}

/* Sleep; DCOMM_ERR_ABORTED when cancelled. */
static dcomm_status dcommi_sock_pause(double seconds, const _Atomic int *cancel)
{
    dcomm_status status = dcommi_sock_wait(-1, 0, dcommi_now() + seconds, cancel);
    return status == DCOMM_ERR_TIMEOUT ? DCOMM_OK : status;
}

/* Connect; *fd_p is -1 and *error_p an errno where that fails (DCOMM_ERR_SYSTEM). */
static dcomm_status dcommi_sock_connect(const dcommi_addr *a, double deadline,
                                        const _Atomic int *cancel, int *fd_p, int *error_p)
{
    *fd_p = -1;
    *error_p = 0;
    int fd = socket(a->any.sa_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0) {
        *error_p = errno;
        return DCOMM_ERR_SYSTEM;
    }
    dcomm_status status = DCOMM_OK;
    if (connect(fd, &a->any, dcommi_addr_len(a)) != 0) {
        *error_p = errno;
        status = DCOMM_ERR_SYSTEM;
        if (errno == EINPROGRESS) {
            socklen_t len = sizeof *error_p;
            status = dcommi_sock_wait(fd, POLLOUT, deadline, cancel);
            if (status == DCOMM_ERR_TIMEOUT) {
                *error_p = ETIMEDOUT;
                status = DCOMM_ERR_SYSTEM;
            } else if (status == DCOMM_OK) {
                getsockopt(fd, SOL_SOCKET, SO_ERROR, error_p, &len);
                status = *error_p == 0 ? DCOMM_OK : DCOMM_ERR_SYSTEM;
            }
        }
    }
    /* A connection to a free port of the own machine may meet itself. */
    dcommi_addr self;
    socklen_t self_len = sizeof self;
    if (status == DCOMM_OK && getsockname(fd, &self.any, &self_len) == 0 &&
        self_len == dcommi_addr_len(a) &&
        (a->any.sa_family == AF_INET
             ? self.v4.sin_port == a->v4.sin_port &&
                   self.v4.sin_addr.s_addr == a->v4.sin_addr.s_addr
             : self.v6.sin6_port == a->v6.sin6_port &&
                   IN6_ARE_ADDR_EQUAL(&self.v6.sin6_addr, &a->v6.sin6_addr))) {
        *error_p = ECONNREFUSED;
        status = DCOMM_ERR_SYSTEM;
    }
    if (status < 0) {
        close(fd);
        return status;
    }
    dcommi_sock_tune(fd);
    *fd_p = fd;
    return DCOMM_OK;
}

/* Read exactly len bytes. DCOMM_ERR_PEER: the other side closed. */
static dcomm_status dcommi_sock_read(int fd, void *buf, size_t len, double deadline,
                                     const _Atomic int *cancel)
{
    size_t have = 0;
    while (have < len) {
        ssize_t n = recv(fd, (uint8_t *)buf + have, len - have, 0);
        if (n > 0) {
            have += (size_t)n;
        } else if (n == 0 || (errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR)) {
            return DCOMM_ERR_PEER;
        } else {
            DCOMMI_TRY(dcommi_sock_wait(fd, POLLIN, deadline, cancel));
        }
    }
    return DCOMM_OK;
}

/* Write len bytes, or stop when something has arrived (*stopped): the peer may have given up. */
static dcomm_status dcommi_sock_write(int fd, const void *buf, size_t len, double deadline,
                                      const _Atomic int *cancel, bool *stopped)
{
    size_t done = 0;
    *stopped = false;
    while (done < len) {
        ssize_t n = send(fd, (const uint8_t *)buf + done, len - done, MSG_NOSIGNAL);
        if (n > 0) {
            done += (size_t)n;
            continue;
        }
        if (errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR) {
            *stopped = true; /* what the peer said before it went may still be readable */
            return DCOMM_OK;
        }
        DCOMMI_TRY(dcommi_sock_wait(fd, POLLIN | POLLOUT, deadline, cancel));
        struct pollfd p = {.fd = fd, .events = POLLIN};
        if (poll(&p, 1, 0) > 0 && (p.revents & POLLIN) != 0) {
            *stopped = true;
            return DCOMM_OK;
        }
    }
    return DCOMM_OK;
}

#endif

#define DCOMMI_SECRET_MAX 4096
#define DCOMMI_HOST_MAX 256

typedef enum dcommi_meeting {
    DCOMMI_MEET_ALONE = 0, /* one rank of one */
    DCOMMI_MEET_TCP,       /* rank 0 serves at host:port */
    DCOMMI_MEET_PMI,       /* rank 0 hands an id round by PMI-1 */
    DCOMMI_MEET_PMIX       /* by PMIx; where that is missing, by TCP if there is a host */
} dcommi_meeting;

typedef struct dcommi_launcher {
    const char *name; /* for people */
    dcommi_meeting meeting;
    int rank, size; /* size 0: PMIx knows both */
    int local_rank; /* -1: not told */
    int pmi_fd;
    char host[DCOMMI_HOST_MAX]; /* "": none */
    uint16_t port;
    bool loopback; /* host is this machine alone */
    bool secret;   /* key comes from one */
    uint8_t key[DCOMMI_RDV_KEY];
} dcommi_launcher;

static const char *dcommi_env(const char *name)
{
    const char *value = getenv(name);
    return value != NULL && value[0] != '\0' ? value : NULL;
}

/* A decimal variable within [min, max]; one that is not set leaves *value as it is. */
static dcomm_status dcommi_env_int(const char *name, long min, long max, int *value)
{
    const char *text = dcommi_env(name);
    if (text == NULL) {
        return DCOMM_OK;
    }
    char *end = NULL;
    errno = 0;
    long n = strtol(text, &end, 10);
    if (errno != 0 || end == text || *end != '\0' || n < min || n > max) {
        return dcommi_fail(DCOMM_ERR_INVALID,
                           "environment variable %s=\"%.64s\" is no number from %ld to %ld", name,
                           text, min, max);
    }
    *value = (int)n;
    return DCOMM_OK;
}

static dcomm_status dcommi_env_missing(const char *name, const char *because)
{
    return dcommi_fail(DCOMM_ERR_INVALID, "environment variable %s is not set, but %s", name,
                       because);
}

/* rank and size from two variables that must both be there and fit each other. */
static dcomm_status dcommi_launcher_world(dcommi_launcher *l, const char *rank_name,
                                          const char *size_name)
{
    int rank = -1, size = -1;
    DCOMMI_TRY(dcommi_env_int(size_name, 1, DCOMMI_RDV_SIZE_MAX, &size));
    DCOMMI_TRY(dcommi_env_int(rank_name, 0, DCOMMI_RDV_SIZE_MAX - 1, &rank));
    if (rank < 0) {
        return dcommi_env_missing(rank_name, "the number of ranks is");
    }
    if (size < 0) {
        return dcommi_env_missing(size_name, "the rank is");
    }
    if (rank >= size) {
        return dcommi_fail(DCOMM_ERR_INVALID, "environment variable %s=%d is not below %s=%d",
                           rank_name, rank, size_name, size);
    }
    l->rank = rank;
    l->size = size;
    return DCOMM_OK;
}

static dcomm_status dcommi_launcher_secret_file(const char *path, dcommi_launcher *l)
{
    char text[DCOMMI_SECRET_MAX + 1];
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t n = fd < 0 ? -1 : read(fd, text, sizeof text);
    int saved = errno;
    if (fd >= 0) {
        close(fd);
    }
    if (n < 0) {
        return dcommi_fail(DCOMM_ERR_INVALID, "cannot read DCOMM_SECRET_FILE=\"%.200s\": %s", path,
                           strerror(saved));
    }
    size_t len = (size_t)n;
    while (len > 0 && (text[len - 1] == '\n' || text[len - 1] == '\r')) {
        len--;
    }
    if (len == 0 || len > DCOMMI_SECRET_MAX) {
        return dcommi_fail(DCOMM_ERR_INVALID,
                           "DCOMM_SECRET_FILE=\"%.200s\" must hold 1 to %d bytes", path,
                           DCOMMI_SECRET_MAX);
    }
    dcommi_rdv_key_of(text, len, l->key);
    l->secret = true;
    return DCOMM_OK;
}

static dcomm_status dcommi_launcher_secret(dcommi_launcher *l)
{
    const char *secret = dcommi_env("DCOMM_SECRET"), *file = dcommi_env("DCOMM_SECRET_FILE");
    memset(l->key, 0, sizeof l->key);
    if (secret != NULL && file != NULL) {
        return dcommi_fail(DCOMM_ERR_INVALID,
                           "both DCOMM_SECRET and DCOMM_SECRET_FILE=\"%.200s\" are set; unset one",
                           file);
    }
    if (secret != NULL) {
        dcommi_rdv_key_of(secret, strlen(secret), l->key);
        l->secret = true;
    }
    return file != NULL ? dcommi_launcher_secret_file(file, l) : DCOMM_OK;
}

/* Meet at MASTER_ADDR (or `host`) and DCOMM_PORT, else MASTER_PORT + 1, else `port`. */
static dcomm_status dcommi_launcher_tcp(dcommi_launcher *l, const char *host, int port)
{
    const char *master = dcommi_env("MASTER_ADDR");
    int master_port = -1;
    host = master != NULL ? master : host;
    if (host == NULL) {
        return dcommi_env_missing("MASTER_ADDR", "there are several ranks");
    }
    if (strlen(host) >= sizeof l->host) {
        return dcommi_fail(DCOMM_ERR_INVALID, "MASTER_ADDR has %zu bytes, more than a host name",
                           strlen(host));
    }
    strcpy(l->host, host);
    dcommi_addr literal;
    l->loopback = strcmp(host, "localhost") == 0 ||
                  (dcommi_addr_literal(host, 0, &literal) && dcommi_addr_loopback(&literal));
    DCOMMI_TRY(dcommi_env_int("MASTER_PORT", 1, 65535, &master_port));
    if (master_port == 65535 && dcommi_env("DCOMM_PORT") == NULL) {
        return dcommi_fail(DCOMM_ERR_INVALID,
                           "MASTER_PORT=65535 leaves no next port for dcomm; set DCOMM_PORT");
    }
    if (master_port > 0) {
        port = master_port + 1;
    }
    DCOMMI_TRY(dcommi_env_int("DCOMM_PORT", 1, 65535, &port));
    if (port <= 0) {
        return dcommi_env_missing("MASTER_PORT", "there are several ranks (or set DCOMM_PORT)");
    }
    l->port = (uint16_t)port;
    return dcommi_launcher_secret(l);
}

static dcomm_status dcommi_launcher_slurm(dcommi_launcher *l)
{
    char host[DCOMMI_HOST_MAX] = "";
    const char *nodes = dcommi_env("SLURM_STEP_NODELIST");
    const char *job = dcommi_env("SLURM_JOB_ID"), *step = dcommi_env("SLURM_STEP_ID");
    l->name = "Slurm";
    DCOMMI_TRY(dcommi_launcher_world(
        l, "SLURM_PROCID",
        dcommi_env("SLURM_STEP_NUM_TASKS") != NULL ? "SLURM_STEP_NUM_TASKS" : "SLURM_NTASKS"));
    DCOMMI_TRY(dcommi_env_int("SLURM_LOCALID", 0, DCOMMI_RDV_SIZE_MAX, &l->local_rank));
    if (l->size == 1) {
        return DCOMM_OK;
    }
    if (dcommi_env("PMIX_RANK") != NULL && dcommi_env("PMIX_NAMESPACE") != NULL) {
        l->meeting = DCOMMI_MEET_PMIX;
    } else {
        l->meeting = DCOMMI_MEET_TCP;
    }
    int node_count = 0;
    DCOMMI_TRY(dcommi_env_int("SLURM_STEP_NUM_NODES", 1, DCOMMI_RDV_SIZE_MAX, &node_count));
    if (node_count == 1) {
        nodes = "127.0.0.1"; /* out of other machines' reach, and needs no name service */
    }
    if (nodes == NULL && dcommi_env("MASTER_ADDR") == NULL) {
        return l->meeting == DCOMMI_MEET_PMIX
                   ? DCOMM_OK
                   : dcommi_env_missing("SLURM_STEP_NODELIST", "SLURM_STEP_ID is");
    }
    if (nodes != NULL && !dcommi_nodelist_first(nodes, host, sizeof host)) {
        return dcommi_fail(
            DCOMM_ERR_INVALID,
            "environment variable SLURM_STEP_NODELIST=\"%.100s\" is no list of hosts", nodes);
    }
    /* Below the ephemeral ports; the same for all ranks of a step, others for other steps. */
    uint64_t mixed =
        dcommi_mix(strtoull(job != NULL ? job : "0", NULL, 10), strtoull(step, NULL, 10));
    return dcommi_launcher_tcp(l, nodes != NULL ? host : NULL, (int)(20000 + mixed % 12000));
}

/* Every variable that says how to meet is judged here; DCOMM_ERR_INVALID names the bad one.
 * The innermost launcher wins: torchrun runs inside Slurm's tasks, mpirun inside its jobs. */
static dcomm_status dcommi_launcher_detect(dcommi_launcher *l)
{
    memset(l, 0, sizeof *l);
    l->name = "no launcher";
    l->size = 1;
    l->local_rank = -1;
    l->pmi_fd = -1;
    bool rank = dcommi_env("RANK") != NULL, world = dcommi_env("WORLD_SIZE") != NULL;
    bool master = dcommi_env("MASTER_ADDR") != NULL && dcommi_env("MASTER_PORT") != NULL;
    /* A batch script has SLURM_PROCID too, but is no step. */
    bool slurm = dcommi_env("SLURM_STEP_ID") != NULL && dcommi_env("SLURM_PROCID") != NULL;
    /* Batch scripts for PyTorch export all but RANK, which each task takes from Slurm. */
    world = world && (rank || !slurm);
    if ((rank && world) || (master && (rank || world))) {
        l->name = "torchrun";
        DCOMMI_TRY(dcommi_launcher_world(l, "RANK", "WORLD_SIZE"));
        DCOMMI_TRY(dcommi_env_int("LOCAL_RANK", 0, DCOMMI_RDV_SIZE_MAX, &l->local_rank));
        l->meeting = l->size > 1 ? DCOMMI_MEET_TCP : DCOMMI_MEET_ALONE;
        return l->size > 1 ? dcommi_launcher_tcp(l, NULL, 0) : DCOMM_OK;
    }
    if (dcommi_env("OMPI_COMM_WORLD_SIZE") != NULL || dcommi_env("OMPI_COMM_WORLD_RANK") != NULL) {
        l->name = "Open MPI";
        DCOMMI_TRY(dcommi_launcher_world(l, "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"));
        DCOMMI_TRY(
            dcommi_env_int("OMPI_COMM_WORLD_LOCAL_RANK", 0, DCOMMI_RDV_SIZE_MAX, &l->local_rank));
        l->meeting = l->size > 1 ? DCOMMI_MEET_PMIX : DCOMMI_MEET_ALONE;
        return l->size > 1 && master ? dcommi_launcher_tcp(l, NULL, 0) : DCOMM_OK;
    }
    /* Slurm's own PMI_FD takes "init" only once: we would leave MPI none, or MPI us. Hydra inside
     * Slurm inherits PMI_JOBID, but tells local ranks. */
    bool slurm_pmi =
        slurm && dcommi_env("PMI_JOBID") != NULL && dcommi_env("MPI_LOCALRANKID") == NULL;
    if (dcommi_env("PMI_FD") != NULL && !slurm_pmi) {
        l->name = "PMI";
        DCOMMI_TRY(dcommi_launcher_world(l, "PMI_RANK", "PMI_SIZE"));
        DCOMMI_TRY(dcommi_env_int("PMI_FD", 0, INT32_MAX, &l->pmi_fd));
        DCOMMI_TRY(dcommi_env_int("MPI_LOCALRANKID", 0, DCOMMI_RDV_SIZE_MAX, &l->local_rank));
        l->meeting = l->size > 1 ? DCOMMI_MEET_PMI : DCOMMI_MEET_ALONE;
        return DCOMM_OK;
    }
    if (slurm) {
        return dcommi_launcher_slurm(l);
    }
    if (dcommi_env("PMIX_RANK") != NULL && dcommi_env("PMIX_NAMESPACE") != NULL) {
        l->name = "PMIx";
        l->meeting = DCOMMI_MEET_PMIX;
        l->size = 0;
        return master ? dcommi_launcher_tcp(l, NULL, 0) : DCOMM_OK;
    }
    if (dcommi_env("PMI_RANK") != NULL && dcommi_env("PMI_SIZE") != NULL) {
        l->name = "PMI";
        DCOMMI_TRY(dcommi_launcher_world(l, "PMI_RANK", "PMI_SIZE"));
        l->meeting = l->size > 1 ? DCOMMI_MEET_TCP : DCOMMI_MEET_ALONE;
        return l->size > 1 ? dcommi_launcher_tcp(l, NULL, 0) : DCOMM_OK;
    }
    return DCOMM_OK;
}

#endif
/* ==== include/dcomm/impl/pmi.h ============================================================= */
/* pmi.h - PMI-1, the wire protocol of MPICH's process managers: used to hand an id round.
 *
 * A line of text goes each way on the socket PMI_FD. The MPI library of the same program talks on
 * it too, before us or after us, but the protocol is question and answer and Hydra takes "init"
 * twice, so we share the socket as long as MPI is not initializing in another thread meanwhile.
 * Hydra kills the job when a rank that has spoken ends without "finalize", and hangs up after it;
 * hence we say it when the process exits, and only if MPI has not taken over. */
#ifndef DCOMMI_PMI_H
#define DCOMMI_PMI_H


#include <dlfcn.h>

#define DCOMMI_PMI_LINE 2048
#define DCOMMI_PMI_NAME 128

/* The value of `key` in "cmd=x key=value ...": false where it is absent or longer than max - 1. */
static bool dcommi_pmi_value(const char *line, size_t len, const char *key, char *value, size_t max)
{
    size_t key_len = strlen(key);
    for (size_t at = 0; at < len;) {
        size_t end = at;
        while (end < len && line[end] != ' ' && line[end] != '\n' && line[end] != '\0') {
            end++;
        }
        if (end - at > key_len && memcmp(line + at, key, key_len) == 0 &&
            line[at + key_len] == '=') {
            size_t n = end - at - key_len - 1;
            if (n >= max) {
                return false;
            }
            memcpy(value, line + at + key_len + 1, n);
            value[n] = '\0';
            return true;
        }
        at = end + 1;
    }
    return false;
}

/* Whether a line is the answer `cmd`, with rc=0 where it has one. */
static bool dcommi_pmi_answers(const char *line, size_t len, const char *cmd)
{
    char text[64];
    if (!dcommi_pmi_value(line, len, "cmd", text, sizeof text) || strcmp(text, cmd) != 0) {
        return false;
    }
    return !dcommi_pmi_value(line, len, "rc", text, sizeof text) || strcmp(text, "0") == 0;
}

typedef struct dcommi_pmi {
    int fd; /* our own copy: MPI closes its one when it ends */
    pid_t pid;
    bool open, broken;
    char kvs[DCOMMI_PMI_NAME];
} dcommi_pmi;

static dcommi_pmi dcommi_pmi_state = {.fd = -1};
static pthread_mutex_t dcommi_pmi_lock = PTHREAD_MUTEX_INITIALIZER;

/* One question and its answer. */
static dcomm_status dcommi_pmi_ask(const char *question, const char *expected,
                                   char answer[DCOMMI_PMI_LINE], size_t *len_p, double deadline,
                                   const _Atomic int *cancel)
{
    dcommi_pmi *p = &dcommi_pmi_state;
    size_t len = strlen(question), have = 0;
    ssize_t n = send(p->fd, question, len, MSG_NOSIGNAL);
    p->broken = true; /* until the answer is whole */
    if (n != (ssize_t)len) {
        return dcommi_fail(DCOMM_ERR_RENDEZVOUS,
                           "the process manager (PMI_FD) does not listen: %s (MPI_Finalize ends "
                           "it: create the communicator before, or with an id)",
                           strerror(errno));
    }
    /* Byte by byte: what follows the line may be meant for MPI. */
    while (have == 0 || answer[have - 1] != '\n') {
        dcomm_status status = dcommi_sock_wait(p->fd, POLLIN, deadline, cancel);
        if (status < 0) {
            return dcommi_fail(status, "waiting for the process manager (PMI): %s",
                               status == DCOMM_ERR_TIMEOUT
                                   ? "some ranks do not take part, or it does not answer"
                                   : "cancelled");
        }
        n = have < DCOMMI_PMI_LINE - 1 ? recv(p->fd, answer + have, 1, MSG_DONTWAIT) : 0;
        if (n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR)) {
            return dcommi_fail(DCOMM_ERR_RENDEZVOUS, "the process manager (PMI_FD) hung up");
        }
        have += n > 0 ? (size_t)n : 0;
    }
    answer[have] = '\0';
    *len_p = have;
    p->broken = false;
    if (!dcommi_pmi_answers(answer, have, expected)) {
        return dcommi_fail(DCOMM_ERR_RENDEZVOUS, "the process manager (PMI) answered \"%.*s\"",
                           (int)strcspn(answer, "\n"), answer);
    }
    return DCOMM_OK;
}

static void dcommi_pmi_at_exit(void)
{
    dcommi_pmi *p = &dcommi_pmi_state;
    if (!p->open || p->broken || p->pid != getpid()) {
        return;
    }
    int by_mpi = 0;
    int (*initialized)(int *) = NULL;
    *(void **)&initialized = dlsym(RTLD_DEFAULT, "MPI_Initialized");
    if (initialized != NULL && initialized(&by_mpi) == 0 && by_mpi) {
        return;
    }
    char answer[DCOMMI_PMI_LINE];
    size_t len;
    dcommi_pmi_ask("cmd=finalize\n", "finalize_ack", answer, &len, dcommi_now() + 5, NULL);
}

static dcomm_status dcommi_pmi_open(int fd, double deadline, const _Atomic int *cancel)
{
    dcommi_pmi *p = &dcommi_pmi_state;
    char answer[DCOMMI_PMI_LINE];
    size_t len;
    if (p->broken) {
        return dcommi_fail(DCOMM_ERR_RENDEZVOUS,
                           "the process manager (PMI) failed in an earlier communicator");
    }
    if (p->open && p->pid == getpid()) {
        return DCOMM_OK;
    }
    p->fd = fcntl(fd, F_DUPFD_CLOEXEC, 3);
    if (p->fd < 0) {
        return dcommi_fail(DCOMM_ERR_INVALID,
                           "PMI_FD=%d is no open descriptor (%s); if MPI has been finalized, "
                           "create the communicator before, or with an id",
                           fd, strerror(errno));
    }
    p->pid = getpid();
    DCOMMI_TRY(dcommi_pmi_ask("cmd=init pmi_version=1 pmi_subversion=1\n", "response_to_init",
                              answer, &len, deadline, cancel));
    p->open = true;
    atexit(dcommi_pmi_at_exit);
    DCOMMI_TRY(
        dcommi_pmi_ask("cmd=get_my_kvsname\n", "my_kvsname", answer, &len, deadline, cancel));
    if (!dcommi_pmi_value(answer, len, "kvsname", p->kvs, sizeof p->kvs)) {
        return dcommi_fail(DCOMM_ERR_RENDEZVOUS, "the process manager (PMI) names no key space");
    }
    return DCOMM_OK;
}

static dcomm_status dcommi_pmi_share_locked(int fd, const char *key, const char *mine, char *text,
                                            size_t max, double deadline, const _Atomic int *cancel)
{
    char line[DCOMMI_PMI_LINE], answer[DCOMMI_PMI_LINE];
    size_t len;
    dcommi_pmi *p = &dcommi_pmi_state;
    DCOMMI_TRY(dcommi_pmi_open(fd, deadline, cancel));
    if (mine != NULL) {
        snprintf(line, sizeof line, "cmd=put kvsname=%s key=%s value=%s\n", p->kvs, key, mine);
        DCOMMI_TRY(dcommi_pmi_ask(line, "put_result", answer, &len, deadline, cancel));
    }
    DCOMMI_TRY(dcommi_pmi_ask("cmd=barrier_in\n", "barrier_out", answer, &len, deadline, cancel));
    snprintf(line, sizeof line, "cmd=get kvsname=%s key=%s\n", p->kvs, key);
    DCOMMI_TRY(dcommi_pmi_ask(line, "get_result", answer, &len, deadline, cancel));
    if (!dcommi_pmi_value(answer, len, "value", text, max)) {
        return dcommi_fail(DCOMM_ERR_RENDEZVOUS, "the process manager (PMI) lost the id");
    }
    return DCOMM_OK;
}

/* Publish `mine` under `key` (rank 0; else NULL), and read it (all ranks; collective). */
static dcomm_status dcommi_pmi_share(int fd, const char *key, const char *mine, char *text,
                                     size_t max, double deadline, const _Atomic int *cancel)
{
    pthread_mutex_lock(&dcommi_pmi_lock);
    dcomm_status status = dcommi_pmi_share_locked(fd, key, mine, text, max, deadline, cancel);
    pthread_mutex_unlock(&dcommi_pmi_lock);
    return status;
}

#endif
/* ==== include/dcomm/impl/pmix.h ============================================================ */
/* pmix.h - PMIx, the process manager interface of Open MPI and Slurm: used to hand an id round.
 *
 * The library is loaded at run time, so that dcomm needs it neither to build nor elsewhere. The
 * few structures below have had this layout since PMIx 2. An MPI library in the same program uses
 * the same client, which counts its users. Once the last one has finalized it cannot be opened
 * again for MPI_Init, so we stay a user until the process exits. */
#ifndef DCOMMI_PMIX_H
#define DCOMMI_PMIX_H


#include <dlfcn.h>

enum { DCOMMI_PMIX_BOOL = 1, DCOMMI_PMIX_STRING = 3, DCOMMI_PMIX_UINT32 = 14 };
enum { DCOMMI_PMIX_GLOBAL = 3 };
#define DCOMMI_PMIX_ANY_RANK (UINT32_MAX - 1)

typedef struct dcommi_pmix_proc {
    char nspace[256];
    uint32_t rank;
} dcommi_pmix_proc;

typedef struct dcommi_pmix_value {
    uint16_t type;
    union {
        bool flag;
        uint32_t u32;
        char *string;
        void *room[3];
    } data;
} dcommi_pmix_value;

typedef struct dcommi_pmix_info {
    char key[512];
    uint32_t flags;
    dcommi_pmix_value value;
} dcommi_pmix_info;

typedef void (*dcommi_pmix_done)(int status, void *user);

typedef struct dcommi_pmix {
    bool open;
    pid_t pid;
    dcommi_pmix_proc me;
    int (*init)(dcommi_pmix_proc *me, dcommi_pmix_info *info, size_t n);
    int (*finalize)(const dcommi_pmix_info *info, size_t n);
    int (*put)(uint8_t scope, const char *key, dcommi_pmix_value *value);
    int (*commit)(void);
    int (*fence)(const dcommi_pmix_proc *procs, size_t nprocs, const dcommi_pmix_info *info,
                 size_t n, dcommi_pmix_done done, void *user);
    int (*get)(const dcommi_pmix_proc *proc, const char *key, const dcommi_pmix_info *info,
               size_t n, dcommi_pmix_value **value);
} dcommi_pmix;

static dcommi_pmix dcommi_pmix_state;
static pthread_mutex_t dcommi_pmix_lock = PTHREAD_MUTEX_INITIALIZER;

static void dcommi_pmix_at_exit(void)
{
    if (dcommi_pmix_state.open && dcommi_pmix_state.pid == getpid()) {
        dcommi_pmix_state.finalize(NULL, 0);
    }
}

static dcomm_status dcommi_pmix_open(void)
{
    dcommi_pmix *p = &dcommi_pmix_state;
    if (p->open && p->pid == getpid()) {
        return DCOMM_OK;
    }
    void *library = dlopen("libpmix.so.2", RTLD_NOW | RTLD_LOCAL);
    if (library == NULL) {
        return dcommi_fail(DCOMM_ERR_UNSUPPORTED, "%.200s", dlerror());
    }
    const struct {
        const char *name;
        void **function;
    } wanted[] = {{"PMIx_Init", (void **)&p->init},      {"PMIx_Finalize", (void **)&p->finalize},
                  {"PMIx_Put", (void **)&p->put},        {"PMIx_Commit", (void **)&p->commit},
                  {"PMIx_Fence_nb", (void **)&p->fence}, {"PMIx_Get", (void **)&p->get}};
    for (size_t i = 0; i < sizeof wanted / sizeof wanted[0]; i++) {
        *wanted[i].function = dlsym(library, wanted[i].name);
        if (*wanted[i].function == NULL) {
            return dcommi_fail(DCOMM_ERR_UNSUPPORTED, "libpmix.so.2 has no %s", wanted[i].name);
        }
    }
    int rc = p->init(&p->me, NULL, 0);
    if (rc != 0) {
        return dcommi_fail(DCOMM_ERR_UNSUPPORTED, "PMIx_Init failed with %d", rc);
    }
    p->open = true;
    p->pid = getpid();
    atexit(dcommi_pmix_at_exit);
    return DCOMM_OK;
}

/* What an unfinished fence still uses when its caller has given up. */
typedef struct dcommi_pmix_fence {
    _Atomic int refs;
    _Atomic int done;
    int status;
    dcommi_pmix_info collect;
} dcommi_pmix_fence;

static void dcommi_pmix_fence_release(dcommi_pmix_fence *f)
{
    if (atomic_fetch_sub(&f->refs, 1) == 1) {
        dcommi_free(f);
    }
}

static void dcommi_pmix_fence_done(int status, void *user)
{
    dcommi_pmix_fence *f = user;
    f->status = status;
    atomic_store(&f->done, 1);
    dcommi_pmix_fence_release(f);
}

static dcomm_status dcommi_pmix_fence_all(double deadline, const _Atomic int *cancel)
{
    dcommi_pmix_fence *f = dcommi_alloc(sizeof *f);
    if (f == NULL) {
        return DCOMM_ERR_NO_MEMORY;
    }
    atomic_store(&f->refs, 2);
    snprintf(f->collect.key, sizeof f->collect.key, "pmix.collect");
    f->collect.value.type = DCOMMI_PMIX_BOOL;
    f->collect.value.data.flag = true;
    int rc = dcommi_pmix_state.fence(NULL, 0, &f->collect, 1, dcommi_pmix_fence_done, f);
    if (rc != 0) {
        dcommi_free(f);
        return dcommi_fail(DCOMM_ERR_RENDEZVOUS, "PMIx_Fence_nb failed with %d", rc);
    }
    dcomm_status status = DCOMM_OK;
    double pause = 0.0005;
    while (status == DCOMM_OK && atomic_load(&f->done) == 0) {
        if (dcommi_sock_pause(pause, cancel) < 0) {
            status = dcommi_fail(DCOMM_ERR_ABORTED, "cancelled while waiting for PMIx");
        } else if (dcommi_now() > deadline) {
            status = dcommi_fail(DCOMM_ERR_TIMEOUT, "some ranks do not take part (PMIx)");
        }
        pause = pause < 0.02 ? pause * 1.5 : pause;
    }
    if (status == DCOMM_OK && f->status != 0) {
        status = dcommi_fail(DCOMM_ERR_RENDEZVOUS, "PMIx_Fence_nb ended with %d", f->status);
    }
    dcommi_pmix_fence_release(f);
    return status;
}

static dcomm_status dcommi_pmix_get(uint32_t rank, const char *key, dcommi_pmix_value **value_p)
{
    dcommi_pmix_proc from = dcommi_pmix_state.me;
    from.rank = rank;
    *value_p = NULL;
    int rc = dcommi_pmix_state.get(&from, key, NULL, 0, value_p);
    if (rc != 0 || *value_p == NULL) {
        return dcommi_fail(DCOMM_ERR_RENDEZVOUS, "PMIx_Get of %s failed with %d", key, rc);
    }
    return DCOMM_OK;
}

/* This process's rank in its job, and the job's size, where the environment does not say. */
static dcomm_status dcommi_pmix_world(int *rank_p, int *size_p)
{
    dcommi_pmix_value *value = NULL;
    pthread_mutex_lock(&dcommi_pmix_lock);
    dcomm_status status = dcommi_pmix_open();
    if (status == DCOMM_OK) {
        status = dcommi_pmix_get(DCOMMI_PMIX_ANY_RANK, "pmix.job.size", &value);
    }
    if (status == DCOMM_OK) {
        *rank_p = (int)dcommi_pmix_state.me.rank;
        *size_p = value->type == DCOMMI_PMIX_UINT32 ? (int)value->data.u32 : 0;
        free(value);
    }
    pthread_mutex_unlock(&dcommi_pmix_lock);
    return status;
}

static dcomm_status dcommi_pmix_share_locked(const char *key, char *mine, char *text, size_t max,
                                             double deadline, const _Atomic int *cancel)
{
    dcommi_pmix *p = &dcommi_pmix_state;
    DCOMMI_TRY(dcommi_pmix_open());
    if (mine != NULL) {
        dcommi_pmix_value value = {.type = DCOMMI_PMIX_STRING};
        value.data.string = mine;
        int rc = p->put(DCOMMI_PMIX_GLOBAL, key, &value);
        rc = rc == 0 ? p->commit() : rc;
        if (rc != 0) {
            return dcommi_fail(DCOMM_ERR_RENDEZVOUS, "PMIx_Put failed with %d", rc);
        }
    }
    DCOMMI_TRY(dcommi_pmix_fence_all(deadline, cancel));
    dcommi_pmix_value *value = NULL;
    DCOMMI_TRY(dcommi_pmix_get(0, key, &value));
    dcomm_status status = DCOMM_OK;
    if (value->type != DCOMMI_PMIX_STRING || value->data.string == NULL ||
        strlen(value->data.string) >= max) {
        status = dcommi_fail(DCOMM_ERR_RENDEZVOUS, "PMIx returned something else than the id");
    } else {
        strcpy(text, value->data.string);
        free(value->data.string);
    }
    free(value);
    return status;
}

/* Publish `mine` under `key` (rank 0; else NULL), and read it (all ranks; collective).
 * DCOMM_ERR_UNSUPPORTED where there is no PMIx to talk to. */
static dcomm_status dcommi_pmix_share(const char *key, char *mine, char *text, size_t max,
                                      double deadline, const _Atomic int *cancel)
{
    pthread_mutex_lock(&dcommi_pmix_lock);
    dcomm_status status = dcommi_pmix_share_locked(key, mine, text, max, deadline, cancel);
    pthread_mutex_unlock(&dcommi_pmix_lock);
    return status;
}

#endif
/* ==== include/dcomm/impl/rendezvous_client.h =============================================== */
/* rendezvous_client.h - a rank's side of the rendezvous: connect, prove itself, gather, leave. */
#ifndef DCOMMI_RENDEZVOUS_CLIENT_H
#define DCOMMI_RENDEZVOUS_CLIENT_H


#define DCOMMI_RDV_ATTEMPT_S 5.0 /* for one handshake */
#define DCOMMI_RDV_REFUSED_S 2.0 /* all addresses of an id refuse for so long: it is over */

/* Where the server may be. */
typedef struct dcommi_rdv_target {
    const char *host; /* a name or address, resolved at each attempt; NULL: addrs */
    uint16_t port;
    dcommi_addr addrs[DCOMMI_SOCK_ADDRS];
    int naddrs;
    bool exists;             /* the server was there before us: do not wait for it to start */
    const char *secret_hint; /* what to look at when the secrets differ */
} dcommi_rdv_target;

typedef struct dcommi_rdv_client {
    int fd;
    uint32_t rank, size;
    dcommi_rdv_keys keys;
    uint32_t in_seq, out_seq;
    double timeout_s;
    const _Atomic int *cancel;
    dcomm_status over; /* of DCOMMI_RDV_OVER */
} dcommi_rdv_client;

/* What became of one attempt. */
typedef enum dcommi_rdv_outcome {
    DCOMMI_RDV_IN = 0,  /* joined */
    DCOMMI_RDV_AGAIN,   /* worth another try */
    DCOMMI_RDV_REFUSED, /* nobody listens */
    DCOMMI_RDV_STRANGE, /* another secret */
    DCOMMI_RDV_OVER     /* an error for good */
} dcommi_rdv_outcome;

static uint32_t dcommi_rdv_ms(double seconds)
{
    /* A little less than we wait ourselves: the server knows who is missing and shall say it. */
    double s = seconds > 10 ? seconds - 0.5 : seconds * 0.95;
    return s <= 0 ? 0 : s > 4e6 ? UINT32_MAX : (uint32_t)(s * 1000);
}

static dcomm_status dcommi_rdv_cancelled(void)
{
    return dcommi_fail(DCOMM_ERR_ABORTED, "the creation of the communicator was cancelled");
}

static dcomm_status dcommi_rdv_reason(const dcommi_rdv_client *c, const uint8_t *payload,
                                      size_t len)
{
    char why[DCOMMI_RDV_REASON_MAX + 1];
    dcomm_status status = dcommi_rdv_get_reason(payload, len, why);
    if (status >= 0) {
        status = DCOMM_ERR_CORRUPT;
    }
    return dcommi_fail(status, "rank %" PRIu32 " of %" PRIu32 ": %s", c->rank, c->size, why);
}

/* One handshake on c->fd. */
static dcommi_rdv_outcome dcommi_rdv_handshake(dcommi_rdv_client *c,
                                               const uint8_t key[DCOMMI_RDV_KEY],
                                               const dcommi_rdv_hello *hello, double deadline,
                                               char *note, size_t note_max)
{
    uint8_t challenge[DCOMMI_RDV_CHALLENGE_FRAME], ours[DCOMMI_RDV_HELLO_FRAME];
    uint8_t answer[DCOMMI_RDV_HEADER + 4 + DCOMMI_RDV_REASON_MAX], nonce[DCOMMI_RDV_NONCE];
    dcommi_rdv_header h;
    bool stopped;
    dcomm_status status =
        dcommi_sock_read(c->fd, challenge, DCOMMI_RDV_HEADER, deadline, c->cancel);
    if (status == DCOMM_OK &&
        (!dcommi_rdv_get_header(challenge, &h) || h.type != DCOMMI_RDV_CHALLENGE ||
         h.length != DCOMMI_RDV_CHALLENGE_LEN)) {
        snprintf(note, note_max, "what answers there is no dcomm rendezvous");
        return DCOMMI_RDV_AGAIN;
    }
    if (status == DCOMM_OK) {
        status = dcommi_sock_read(c->fd, challenge + DCOMMI_RDV_HEADER, DCOMMI_RDV_CHALLENGE_LEN,
                                  deadline, c->cancel);
    }
    if (status == DCOMM_OK) {
        c->over = dcommi_random_bytes(nonce, sizeof nonce);
        if (c->over < 0) {
            return DCOMMI_RDV_OVER;
        }
        dcommi_rdv_put_hello(ours, hello, nonce, challenge, key);
        status = dcommi_sock_write(c->fd, ours, sizeof ours, deadline, c->cancel, &stopped);
    }
    if (status == DCOMM_OK) {
        status = dcommi_sock_read(c->fd, answer, DCOMMI_RDV_HEADER, deadline, c->cancel);
    }
    if (status == DCOMM_OK && (!dcommi_rdv_get_header(answer, &h) ||
                               (h.type != DCOMMI_RDV_WELCOME && h.type != DCOMMI_RDV_REJECT))) {
        snprintf(note, note_max, "it broke off the handshake");
        return DCOMMI_RDV_AGAIN;
    }
    if (status == DCOMM_OK) {
        status = dcommi_sock_read(c->fd, answer + DCOMMI_RDV_HEADER, h.length, deadline, c->cancel);
    }
    if (status == DCOMM_ERR_ABORTED) {
        c->over = dcommi_rdv_cancelled();
        return DCOMMI_RDV_OVER;
    }
    if (status < 0) {
        snprintf(note, note_max, "%s",
                 status == DCOMM_ERR_TIMEOUT ? "it accepts but says nothing"
                                             : "it closed the connection");
        return DCOMMI_RDV_AGAIN;
    }
    if (h.type == DCOMMI_RDV_REJECT) {
        char why[DCOMMI_RDV_REASON_MAX + 1];
        dcomm_status said = dcommi_rdv_get_reason(answer + DCOMMI_RDV_HEADER, h.length, why);
        snprintf(note, note_max, "%.200s", why);
        return said == DCOMM_ERR_AUTH ? DCOMMI_RDV_STRANGE : DCOMMI_RDV_AGAIN;
    }
    uint8_t expected[DCOMMI_RDV_WELCOME_FRAME];
    dcommi_rdv_put_welcome(expected, challenge, ours, key);
    if (h.length != DCOMMI_RDV_WELCOME_LEN ||
        !dcommi_same_secret(expected + DCOMMI_RDV_HEADER, answer + DCOMMI_RDV_HEADER,
                            DCOMMI_RDV_WELCOME_LEN)) {
        snprintf(note, note_max, "the server does not know the secret");
        return DCOMMI_RDV_STRANGE;
    }
    dcommi_rdv_derive(key, challenge, ours, &c->keys);
    c->in_seq = c->out_seq = 0;
    return DCOMMI_RDV_IN;
}

/* One pass over the target's addresses. The note says what the last address answered. */
static dcommi_rdv_outcome dcommi_rdv_attempt(dcommi_rdv_client *c, const dcommi_rdv_target *target,
                                             const uint8_t key[DCOMMI_RDV_KEY],
                                             dcommi_rdv_hello *hello, double deadline,
                                             double connect_s, char *note, size_t note_max)
{
    dcommi_addr found[DCOMMI_SOCK_ADDRS];
    const dcommi_addr *list = target->addrs;
    int n = target->naddrs, refused = 0, strange = 0, again = 0;
    if (target->host != NULL) {
        const char *why = "";
        n = dcommi_addr_resolve(target->host, target->port, found, DCOMMI_SOCK_ADDRS, &why);
        list = found;
        if (n == 0) {
            snprintf(note, note_max, "%.200s: %s", target->host, why);
            return DCOMMI_RDV_AGAIN;
        }
    }
    for (int i = 0; i < n; i++) {
        char where[DCOMMI_SOCK_TEXT], what[256] = "";
        int error = 0;
        double now = dcommi_now();
        dcommi_addr_text(&list[i], where);
        dcomm_status status =
            dcommi_sock_connect(&list[i], now + connect_s < deadline ? now + connect_s : deadline,
                                c->cancel, &c->fd, &error);
        if (status == DCOMM_ERR_ABORTED) {
            c->over = dcommi_rdv_cancelled();
            return DCOMMI_RDV_OVER;
        }
        if (status < 0) {
            snprintf(note, note_max, "%s: %s", where, strerror(error));
            refused += error == ECONNREFUSED;
            again += error != ECONNREFUSED && error != ENETUNREACH && error != EADDRNOTAVAIL &&
                     error != EAFNOSUPPORT;
            continue;
        }
        now = dcommi_now();
        hello->timeout_ms = dcommi_rdv_ms(deadline - now);
        double until = now + DCOMMI_RDV_ATTEMPT_S;
        dcommi_rdv_outcome outcome = dcommi_rdv_handshake(
            c, key, hello, until < deadline ? until : deadline, what, sizeof what);
        if (outcome == DCOMMI_RDV_IN) {
            return outcome;
        }
        close(c->fd);
        c->fd = -1;
        if (outcome == DCOMMI_RDV_OVER) {
            return outcome;
        }
        snprintf(note, note_max, "%s: %.240s", where, what);
        strange += outcome == DCOMMI_RDV_STRANGE;
        again += outcome == DCOMMI_RDV_AGAIN;
    }
    return again > 0     ? DCOMMI_RDV_AGAIN
           : strange > 0 ? DCOMMI_RDV_STRANGE
           : refused > 0 ? DCOMMI_RDV_REFUSED
                         : DCOMMI_RDV_AGAIN;
}

/* Read a whole genuine frame into *frame_p (dcommi_free it). A FAIL becomes its status. */
static dcomm_status dcommi_rdv_next(dcommi_rdv_client *c, uint16_t wanted, double deadline,
                                    dcommi_rdv_header *h, uint8_t **frame_p)
{
    enum { STEP = 1 << 20 };
    uint8_t *frame = NULL;
    size_t capacity = 0, have = 0, need = DCOMMI_RDV_HEADER;
    dcomm_status status = DCOMM_OK;
    bool known = false;
    while (status == DCOMM_OK && have < need) {
        /* Memory grows with what has arrived, not with what the header promises. */
        size_t step = need - have < STEP ? need - have : STEP;
        status = dcommi_grow((void **)&frame, &capacity, have + step, 1);
        if (status == DCOMM_OK) {
            status = dcommi_sock_read(c->fd, frame + have, step, deadline, c->cancel);
            have += step;
        }
        if (status == DCOMM_OK && !known) {
            known = true;
            if (!dcommi_rdv_get_header(frame, h) ||
                (h->type != wanted && h->type != DCOMMI_RDV_FAIL)) {
                status =
                    dcommi_fail(DCOMM_ERR_CORRUPT,
                                "rank %" PRIu32 " received no frame of the rendezvous", c->rank);
            }
            need += (size_t)h->length + DCOMMI_RDV_TAG;
        }
    }
    if (status == DCOMM_OK && !dcommi_rdv_genuine(frame, h, c->in_seq++, c->keys.server)) {
        status = dcommi_fail(DCOMM_ERR_AUTH, "rank %" PRIu32 " received a forged frame", c->rank);
    } else if (status == DCOMM_OK && h->type == DCOMMI_RDV_FAIL) {
        status = dcommi_rdv_reason(c, frame + DCOMMI_RDV_HEADER, h->length);
    } else if (status == DCOMM_ERR_PEER) {
        dcommi_fail(status, "rank %" PRIu32 " lost the process that serves the rendezvous",
                    c->rank);
    } else if (status == DCOMM_ERR_TIMEOUT) {
        dcommi_fail(status, "rank %" PRIu32 " waited %.3g s in vain for the rendezvous", c->rank,
                    c->timeout_s);
    } else if (status == DCOMM_ERR_ABORTED) {
        dcommi_rdv_cancelled();
    }
    if (status < 0) {
        dcommi_free(frame);
        frame = NULL;
    }
    *frame_p = frame;
    return status;
}

/* Close without a word: the others learn that this rank was lost. */
static void dcommi_rdv_drop(dcommi_rdv_client *c)
{
    if (c->fd >= 0) {
        close(c->fd);
        c->fd = -1;
    }
}

/* Connect and wait until all ranks are there. */
static dcomm_status dcommi_rdv_join(dcommi_rdv_client *c, const dcommi_rdv_target *target,
                                    const uint8_t key[DCOMMI_RDV_KEY], uint32_t generation)
{
    double start = dcommi_now(), deadline = start + c->timeout_s, refused_since = 0;
    double pause = 0.01, connect_s = 1;
    char note[320] = "";
    dcommi_rdv_hello hello = {.wire = DCOMMI_RDV_WIRE_VERSION,
                              .lib = DCOMMI_RDV_LIB_VERSION,
                              .rank = c->rank,
                              .size = c->size,
                              .generation = generation};
    c->fd = -1;
    DCOMMI_TRY(dcommi_random_bytes(&hello.instance, sizeof hello.instance));
    for (;;) {
        dcommi_rdv_outcome outcome =
            dcommi_rdv_attempt(c, target, key, &hello, deadline, connect_s, note, sizeof note);
        double now = dcommi_now();
        if (outcome == DCOMMI_RDV_IN) {
            break;
        }
        if (outcome == DCOMMI_RDV_OVER) {
            return c->over;
        }
        if (outcome == DCOMMI_RDV_STRANGE) {
            return dcommi_fail(DCOMM_ERR_AUTH,
                               "rank %" PRIu32 " is not let in: %s; compare %s on all ranks",
                               c->rank, note, target->secret_hint);
        }
        if (outcome != DCOMMI_RDV_REFUSED) {
            refused_since = 0;
        } else if (refused_since == 0) {
            refused_since = now;
        }
        if (target->exists && refused_since != 0 && now - refused_since >= DCOMMI_RDV_REFUSED_S) {
            return dcommi_fail(
                DCOMM_ERR_RENDEZVOUS,
                "rank %" PRIu32 ": nobody serves this id any more (%s); its maker "
                "has ended, or all its ranks have met: an id serves one communicator",
                c->rank, note);
        }
        if (now >= deadline) {
            return dcommi_fail(DCOMM_ERR_TIMEOUT,
                               "rank %" PRIu32 " of %" PRIu32
                               " could not reach the rendezvous within %.3g s; last: %s",
                               c->rank, c->size, c->timeout_s, note);
        }
        if (dcommi_sock_pause(pause < deadline - now ? pause : deadline - now, c->cancel) < 0) {
            return dcommi_rdv_cancelled();
        }
        pause = pause * 1.5 < 0.5 ? pause * 1.5 : 0.5;
        connect_s = connect_s * 2 < 8 ? connect_s * 2 : 8;
    }
    dcommi_rdv_header h;
    uint8_t *frame = NULL;
    dcomm_status status = dcommi_rdv_next(c, DCOMMI_RDV_READY, deadline, &h, &frame);
    dcommi_free(frame);
    if (status < 0) {
        dcommi_rdv_drop(c);
    }
    return status;
}

/* Every rank's bytes to every rank, as dcommi_boot_allgather. */
static dcomm_status dcommi_rdv_gather(dcommi_rdv_client *c, const void *mine, size_t len,
                                      void **all_p, size_t **lens_p)
{
    double deadline = dcommi_now() + c->timeout_s;
    size_t frame_len = DCOMMI_RDV_HEADER + 4 + len + DCOMMI_RDV_TAG, blobs = 0;
    uint8_t *frame = dcommi_alloc(frame_len);
    size_t *lens = dcommi_calloc(c->size, sizeof *lens);
    dcomm_status status = frame == NULL || lens == NULL ? DCOMM_ERR_NO_MEMORY : DCOMM_OK;
    dcommi_rdv_header h = {0};
    bool stopped;
    if (status == DCOMM_OK) {
        uint8_t digest[DCOMMI_SHA256_BYTES];
        uint8_t *payload = frame + DCOMMI_RDV_HEADER;
        dcommi_rdv_put_header(frame, DCOMMI_RDV_GATHER, c->out_seq++, (uint32_t)len + 4);
        dcommi_put32(payload, dcommi_rdv_ms(c->timeout_s));
        if (len > 0) {
            memcpy(payload + 4, mine, len);
        }
        dcommi_sha256_digest(payload, len + 4, digest);
        dcommi_rdv_tag(c->keys.client, frame, digest, payload + 4 + len);
        status = dcommi_sock_write(c->fd, frame, frame_len, deadline, c->cancel, &stopped);
        if (status == DCOMM_ERR_ABORTED) {
            dcommi_rdv_cancelled();
        } else if (status < 0) {
            dcommi_fail(status, "rank %" PRIu32 " could not send to the rendezvous within %.3g s",
                        c->rank, c->timeout_s);
        }
    }
    dcommi_free(frame);
    frame = NULL;
    if (status == DCOMM_OK) {
        status = dcommi_rdv_next(c, DCOMMI_RDV_RESULT, deadline, &h, &frame);
    }
    if (status == DCOMM_OK &&
        !dcommi_rdv_get_result(frame + DCOMMI_RDV_HEADER, h.length, c->size, lens, &blobs)) {
        status =
            dcommi_fail(DCOMM_ERR_CORRUPT, "rank %" PRIu32 " received a malformed result", c->rank);
    }
    if (status < 0) {
        dcommi_free(frame);
        dcommi_free(lens);
        return status;
    }
    memmove(frame, frame + DCOMMI_RDV_HEADER + blobs, h.length - blobs);
    *all_p = frame;
    *lens_p = lens;
    return DCOMM_OK;
}

static void dcommi_rdv_leave(dcommi_rdv_client *c)
{
    if (c->fd < 0) {
        return;
    }
    uint8_t bye[DCOMMI_RDV_HEADER + DCOMMI_RDV_TAG] = {0};
    dcommi_rdv_put_tagged(bye, DCOMMI_RDV_BYE, c->out_seq++, NULL, 0, c->keys.client);
    (void)!send(c->fd, bye, sizeof bye, MSG_NOSIGNAL);
    dcommi_rdv_drop(c);
}

#endif
/* ==== include/dcomm/impl/rendezvous_id.h =================================================== */
/* rendezvous_id.h - what a dcomm_id holds.
 *
 *   0  "dcid"         8  secret, 16 bytes
 *   4  version (1)   24  addresses: family (4 or 6), then 4 or 16 bytes; 0 ends the list
 *   5  0            124  first 4 bytes of SHA-256 of bytes 0..123
 *   6  port */
#ifndef DCOMMI_RENDEZVOUS_ID_H
#define DCOMMI_RENDEZVOUS_ID_H


#define DCOMMI_ID_VERSION 1
#define DCOMMI_ID_SECRET 16
#define DCOMMI_ID_ADDRS 8 /* an id has room for 5 of IPv6, or more of IPv4 */
#define DCOMMI_ID_FIRST 24
#define DCOMMI_ID_CHECK (DCOMM_ID_BYTES - 4)

typedef struct dcommi_id_parts {
    uint16_t port;
    uint8_t secret[DCOMMI_ID_SECRET];
    int naddrs;
    dcommi_addr addrs[DCOMMI_ID_ADDRS];
} dcommi_id_parts;

static void dcommi_id_checksum(const uint8_t *bytes, uint8_t check[4])
{
    uint8_t digest[DCOMMI_SHA256_BYTES];
    dcommi_sha256_digest(bytes, DCOMMI_ID_CHECK, digest);
    memcpy(check, digest, 4);
}

/* Addresses that do not fit are left out, the last first. */
static void dcommi_id_format(const dcommi_id_parts *parts, dcomm_id *id)
{
    uint8_t *b = id->bytes;
    memset(b, 0, DCOMM_ID_BYTES);
    memcpy(b, "dcid", 4);
    b[4] = DCOMMI_ID_VERSION;
    dcommi_put16(b + 6, parts->port);
    memcpy(b + 8, parts->secret, DCOMMI_ID_SECRET);
    size_t at = DCOMMI_ID_FIRST;
    for (int i = 0; i < parts->naddrs; i++) {
        const dcommi_addr *a = &parts->addrs[i];
        bool v4 = a->any.sa_family == AF_INET;
        size_t len = v4 ? 4 : 16;
        if (at + 1 + len <= DCOMMI_ID_CHECK) {
            b[at] = v4 ? 4 : 6;
            memcpy(b + at + 1, v4 ? (const void *)&a->v4.sin_addr : &a->v6.sin6_addr, len);
            at += 1 + len;
        }
    }
    dcommi_id_checksum(b, b + DCOMMI_ID_CHECK);
}

/* DCOMM_ERR_INVALID, with a sentence, for bytes that dcomm_id_create did not make. */
static dcomm_status dcommi_id_parse(const dcomm_id *id, dcommi_id_parts *parts)
{
    const uint8_t *b = id->bytes;
    uint8_t check[4];
    memset(parts, 0, sizeof *parts);
    dcommi_id_checksum(b, check);
    if (memcmp(b, "dcid", 4) != 0 || memcmp(check, b + DCOMMI_ID_CHECK, 4) != 0) {
        return dcommi_fail(DCOMM_ERR_INVALID,
                           "opts.id does not hold an id of dcomm_id_create (damaged, cut short, or "
                           "never filled in)");
    }
    if (b[4] != DCOMMI_ID_VERSION) {
        return dcommi_fail(DCOMM_ERR_MISMATCH,
                           "opts.id has version %d, made by another version of dcomm; this one "
                           "understands version %d",
                           b[4], DCOMMI_ID_VERSION);
    }
    parts->port = dcommi_get16(b + 6);
    memcpy(parts->secret, b + 8, DCOMMI_ID_SECRET);
    size_t at = DCOMMI_ID_FIRST;
    while (at < DCOMMI_ID_CHECK && b[at] != 0) {
        size_t len = b[at] == 4 ? 4 : b[at] == 6 ? 16 : 0;
        if (len == 0 || at + 1 + len > DCOMMI_ID_CHECK) {
            return dcommi_fail(DCOMM_ERR_INVALID, "opts.id holds an address of unknown family %d",
                               b[at]);
        }
        if (parts->naddrs < DCOMMI_ID_ADDRS) {
            dcommi_addr *a = &parts->addrs[parts->naddrs++];
            if (len == 4) {
                a->v4.sin_family = AF_INET;
                memcpy(&a->v4.sin_addr, b + at + 1, len);
            } else {
                a->v6.sin6_family = AF_INET6;
                memcpy(&a->v6.sin6_addr, b + at + 1, len);
            }
            dcommi_addr_set_port(a, parts->port);
        }
        at += 1 + len;
    }
    if (parts->port == 0 || parts->naddrs == 0) {
        return dcommi_fail(DCOMM_ERR_INVALID, "opts.id holds no %s",
                           parts->port == 0 ? "port" : "address");
    }
    return DCOMM_OK;
}

#endif
/* ==== include/dcomm/impl/rendezvous_server.h =============================================== */
/* rendezvous_server.h - the thread that serves a rendezvous: sockets and the clock around the
 * state machine of rendezvous.h. */
#ifndef DCOMMI_RENDEZVOUS_SERVER_H
#define DCOMMI_RENDEZVOUS_SERVER_H

/* ==== include/dcomm/impl/rendezvous.h ====================================================== */
/* rendezvous.h - the server's side of the rendezvous as a state machine without sockets or clock:
 * bytes and the time go in, bytes come out. rendezvous_server.h gives it both. */
#ifndef DCOMMI_RENDEZVOUS_H
#define DCOMMI_RENDEZVOUS_H


#define DCOMMI_RDV_GUESTS_MAX 64    /* connections that are no ranks */
#define DCOMMI_RDV_HANDSHAKE_S 10.0 /* to prove themselves */
#define DCOMMI_RDV_RETURN_S 3.0     /* for a rank whose connection broke before all were there */
#define DCOMMI_RDV_FAREWELL_S 10.0  /* to read why it failed */
#define DCOMMI_RDV_STRAGGLER_S 60.0 /* to leave after the first has left */
#define DCOMMI_RDV_OUT_MAX 1024

typedef enum dcommi_rdv_state {
    DCOMMI_RDV_STRANGER = 0, /* CHALLENGE sent */
    DCOMMI_RDV_JOINED,       /* a rank */
    DCOMMI_RDV_FAREWELL,     /* last words on their way out; input is thrown away */
    DCOMMI_RDV_GONE          /* to be closed and freed */
} dcommi_rdv_state;

/* A round's result, shared by all connections that it goes out on. */
typedef struct dcommi_rdv_result {
    size_t refs, len;
    uint8_t digest[DCOMMI_SHA256_BYTES];
    uint8_t *payload;
} dcommi_rdv_result;

typedef struct dcommi_rdv_conn {
    dcommi_rdv_state state;
    int fd; /* the socket layer's */
    uint32_t rank;
    uint64_t instance;
    double born, deadline; /* of a stranger: to prove itself; of a rank: to wait for others */
    bool guest;            /* counts as one: never joined */
    bool waiting;          /* this rank waits for the others */
    bool gathered;         /* its blob of this round is in `in` */
    bool left;             /* said BYE */
    bool fail_due;
    uint32_t in_seq, out_seq;
    dcommi_rdv_keys keys;
    uint8_t challenge[DCOMMI_RDV_CHALLENGE_FRAME];
    uint8_t small[DCOMMI_RDV_HELLO_FRAME]; /* all that a stranger can make us keep */
    uint8_t *in; /* of a rank: header, payload and tag of the frame under way */
    size_t in_len, in_capacity;
    uint8_t out[DCOMMI_RDV_OUT_MAX];
    size_t out_len, out_at;
    dcommi_rdv_result *result; /* goes out after `out`, then result_tag */
    size_t result_at;
    uint8_t result_tag[DCOMMI_RDV_TAG];
} dcommi_rdv_conn;

typedef struct dcommi_rdv_core {
    uint8_t key[DCOMMI_RDV_KEY];
    uint32_t size;      /* 0: not known until the first rank has come */
    uint32_t size_from; /* the rank that said it */
    uint32_t generation;
    dcommi_rdv_conn **conns;
    size_t nconns, conns_capacity;
    size_t guests;
    dcommi_rdv_conn **ranks; /* [size], NULL: not there */
    double *lost_at;         /* [size], 0: not lost */
    uint8_t *told;           /* [size], 1: knows that it failed */
    uint32_t njoined, ngathered, nleft, ntold;
    size_t round_bytes;
    double first_leave;
    bool ready; /* all were there at once */
    dcomm_status status;
    char why[DCOMMI_RDV_REASON_MAX + 1];
} dcommi_rdv_core;

/* size 0: taken from the first rank that comes. */
static void dcommi_rdv_core_begin(dcommi_rdv_core *c, const uint8_t key[DCOMMI_RDV_KEY],
                                  uint32_t generation)
{
    memset(c, 0, sizeof *c);
    memcpy(c->key, key, DCOMMI_RDV_KEY);
    c->generation = generation;
}

static void dcommi_rdv_result_release(dcommi_rdv_result *result)
{
    if (result != NULL && --result->refs == 0) {
        dcommi_free(result->payload);
        dcommi_free(result);
    }
}

static void dcommi_rdv_conn_free(dcommi_rdv_conn *conn)
{
    dcommi_rdv_result_release(conn->result);
    dcommi_free(conn->in);
    dcommi_free(conn);
}

static void dcommi_rdv_core_end(dcommi_rdv_core *c)
{
    for (size_t i = 0; i < c->nconns; i++) {
        dcommi_rdv_conn_free(c->conns[i]);
    }
    dcommi_free(c->conns);
    dcommi_free(c->ranks);
    dcommi_free(c->lost_at);
    dcommi_free(c->told);
    memset(c, 0, sizeof *c);
}

/* ---- words for people ---- */

/* "1, 3-5" of the ranks for which `absent` holds (0: not there, 1: no blob in this round). */
static void dcommi_rdv_list_ranks(const dcommi_rdv_core *c, bool blob, char *text, size_t max)
{
    size_t at = 0;
    text[0] = '\0';
    for (uint32_t r = 0; r < c->size;) {
        uint32_t last = r;
        while (last < c->size &&
               (blob ? !c->ranks[last] || !c->ranks[last]->gathered : !c->ranks[last])) {
            last++;
        }
        if (last == r) {
            r++;
            continue;
        }
        if (max - at < 32) {
            snprintf(text + at, max - at, ", ...");
            return;
        }
        int n = last - r == 1 ? snprintf(text + at, max - at, "%s%" PRIu32, at > 0 ? ", " : "", r)
                              : snprintf(text + at, max - at, "%s%" PRIu32 "-%" PRIu32,
                                         at > 0 ? ", " : "", r, last - 1);
        at += (size_t)n;
        r = last;
    }
}

/* ---- output ---- */

static void dcommi_rdv_say(dcommi_rdv_conn *conn, const uint8_t *bytes, size_t len)
{
    if (conn->out_at > 0) {
        memmove(conn->out, conn->out + conn->out_at, conn->out_len - conn->out_at);
        conn->out_len -= conn->out_at;
        conn->out_at = 0;
    }
    if (len > sizeof conn->out - conn->out_len) {
        conn->state = DCOMMI_RDV_GONE; /* reads nothing that we say */
        return;
    }
    memcpy(conn->out + conn->out_len, bytes, len);
    conn->out_len += len;
}

static void dcommi_rdv_say_tagged(dcommi_rdv_conn *conn, uint16_t type, const void *payload,
                                  uint32_t len)
{
    uint8_t frame[DCOMMI_RDV_HEADER + 4 + DCOMMI_RDV_REASON_MAX + DCOMMI_RDV_TAG];
    dcommi_rdv_say(
        conn, frame,
        dcommi_rdv_put_tagged(frame, type, conn->out_seq++, payload, len, conn->keys.server));
}

/* The next bytes to send; 0: none. */
static size_t dcommi_rdv_output(dcommi_rdv_core *c, dcommi_rdv_conn *conn, const uint8_t **bytes)
{
    if (conn->out_at == conn->out_len && conn->result == NULL && conn->fail_due) {
        uint8_t reason[4 + DCOMMI_RDV_REASON_MAX];
        conn->fail_due = false;
        dcommi_rdv_say_tagged(conn, DCOMMI_RDV_FAIL, reason,
                              dcommi_rdv_put_reason(reason, c->status, c->why));
    }
    if (conn->out_at < conn->out_len) {
        *bytes = conn->out + conn->out_at;
        return conn->out_len - conn->out_at;
    }
    if (conn->result == NULL) {
        return 0;
    }
    if (conn->result_at < conn->result->len) {
        *bytes = conn->result->payload + conn->result_at;
        return conn->result->len - conn->result_at;
    }
    *bytes = conn->result_tag + (conn->result_at - conn->result->len);
    return conn->result->len + DCOMMI_RDV_TAG - conn->result_at;
}

/* n of those bytes are sent. */
static void dcommi_rdv_sent(dcommi_rdv_conn *conn, size_t n)
{
    if (conn->out_at < conn->out_len) {
        conn->out_at += n;
        return;
    }
    conn->result_at += n;
    if (conn->result != NULL && conn->result_at == conn->result->len + DCOMMI_RDV_TAG) {
        dcommi_rdv_result_release(conn->result);
        conn->result = NULL;
    }
}

static bool dcommi_rdv_output_pending(const dcommi_rdv_conn *conn)
{
    return conn->out_at < conn->out_len || conn->result != NULL || conn->fail_due;
}

/* ---- failure ---- */

static void dcommi_rdv_farewell(dcommi_rdv_conn *conn, double now)
{
    conn->state = DCOMMI_RDV_FAREWELL;
    conn->waiting = false;
    conn->deadline = now + DCOMMI_RDV_FAREWELL_S;
}

static void dcommi_rdv_tell(dcommi_rdv_core *c, dcommi_rdv_conn *conn, double now)
{
    if (c->ranks != NULL && conn->rank < c->size && !c->told[conn->rank]) {
        c->told[conn->rank] = 1;
        c->ntold++;
    }
    conn->fail_due = true;
    dcommi_rdv_farewell(conn, now);
}

/* The rendezvous is over for everyone: those here now, and those who still come. */
static void DCOMMI_PRINTF(4, 5)
    dcommi_rdv_poison(dcommi_rdv_core *c, double now, dcomm_status status, const char *format, ...)
{
    if (c->status < 0) {
        return;
    }
    va_list args;
    va_start(args, format);
    vsnprintf(c->why, sizeof c->why, format, args);
    va_end(args);
    c->status = status;
    for (size_t i = 0; i < c->nconns; i++) {
        if (c->conns[i]->state == DCOMMI_RDV_JOINED && !c->conns[i]->left) {
            dcommi_rdv_tell(c, c->conns[i], now);
        }
    }
}

static void dcommi_rdv_unguest(dcommi_rdv_core *c, dcommi_rdv_conn *conn)
{
    c->guests -= conn->guest;
    conn->guest = false;
}

/* A connection is over. */
static void dcommi_rdv_lost(dcommi_rdv_core *c, dcommi_rdv_conn *conn, double now)
{
    dcommi_rdv_state was = conn->state;
    conn->state = DCOMMI_RDV_GONE;
    dcommi_rdv_unguest(c, conn);
    if (was != DCOMMI_RDV_JOINED || c->ranks[conn->rank] != conn || conn->left) {
        return;
    }
    if (!c->ready) {
        c->ranks[conn->rank] = NULL;
        c->njoined--;
        c->lost_at[conn->rank] = now;
    } else {
        dcommi_rdv_poison(c, now, DCOMM_ERR_PEER,
                          "rank %" PRIu32 " was lost while the ranks found each other", conn->rank);
    }
}

/* ---- joining ---- */

/* A connection has come in; where there are too many guests the oldest one goes, so that silent
 * strangers keep no rank out. NULL: without memory. */
static dcommi_rdv_conn *dcommi_rdv_accept(dcommi_rdv_core *c, const uint8_t nonce[DCOMMI_RDV_NONCE],
                                          double now)
{
    if (c->guests >= DCOMMI_RDV_GUESTS_MAX) {
        dcommi_rdv_conn *oldest = NULL;
        for (size_t i = 0; i < c->nconns; i++) {
            dcommi_rdv_conn *conn = c->conns[i];
            if (conn->guest && (oldest == NULL || conn->born < oldest->born)) {
                oldest = conn;
            }
        }
        dcommi_rdv_lost(c, oldest, now);
    }
    if (dcommi_grow((void **)&c->conns, &c->conns_capacity, c->nconns + 1, sizeof *c->conns) < 0) {
        return NULL;
    }
    dcommi_rdv_conn *conn = dcommi_alloc(sizeof *conn);
    if (conn == NULL) {
        return NULL;
    }
    conn->fd = -1;
    conn->born = now;
    conn->deadline = now + DCOMMI_RDV_HANDSHAKE_S;
    dcommi_rdv_put_challenge(conn->challenge, nonce);
    dcommi_rdv_say(conn, conn->challenge, sizeof conn->challenge);
    c->conns[c->nconns++] = conn;
    conn->guest = true;
    c->guests++;
    return conn;
}

static void DCOMMI_PRINTF(4, 5) dcommi_rdv_reject(dcommi_rdv_conn *conn, double now,
                                                  dcomm_status status, const char *format, ...)
{
    uint8_t frame[DCOMMI_RDV_HEADER + 4 + DCOMMI_RDV_REASON_MAX];
    char why[DCOMMI_RDV_REASON_MAX + 1];
    va_list args;
    va_start(args, format);
    vsnprintf(why, sizeof why, format, args);
    va_end(args);
    uint32_t len = dcommi_rdv_put_reason(frame + DCOMMI_RDV_HEADER, status, why);
    dcommi_rdv_put_header(frame, DCOMMI_RDV_REJECT, 0, len);
    dcommi_rdv_say(conn, frame, DCOMMI_RDV_HEADER + len);
    dcommi_rdv_farewell(conn, now);
}

static bool dcommi_rdv_set_size(dcommi_rdv_core *c, uint32_t size, uint32_t from)
{
    c->ranks = dcommi_calloc(size, sizeof *c->ranks);
    c->lost_at = dcommi_calloc(size, sizeof *c->lost_at);
    c->told = dcommi_calloc(size, 1);
    if (c->ranks == NULL || c->lost_at == NULL || c->told == NULL) {
        return false;
    }
    c->size = size;
    c->size_from = from;
    return true;
}

/* What is wrong with a rank that has proved itself, for all; else DCOMM_OK. */
static dcomm_status dcommi_rdv_judge(dcommi_rdv_core *c, const dcommi_rdv_hello *h, double now)
{
    if (h->wire != DCOMMI_RDV_WIRE_VERSION || h->lib != DCOMMI_RDV_LIB_VERSION) {
        dcommi_rdv_poison(c, now, DCOMM_ERR_MISMATCH,
                          "rank %" PRIu32 " runs dcomm %u.%u.%u, the rank that serves the "
                          "rendezvous runs %s",
                          h->rank, h->lib >> 16, h->lib >> 8 & 255, h->lib & 255,
                          DCOMM_VERSION_STRING);
    } else if (h->size == 0 || h->size > DCOMMI_RDV_SIZE_MAX || h->rank >= h->size) {
        dcommi_rdv_poison(c, now, DCOMM_ERR_MISMATCH,
                          "a process says that it is rank %" PRIu32 " of %" PRIu32, h->rank,
                          h->size);
    } else if (c->size != 0 && h->size != c->size) {
        dcommi_rdv_poison(c, now, DCOMM_ERR_MISMATCH,
                          "rank %" PRIu32 " says that there are %" PRIu32 " ranks, rank %" PRIu32
                          " says %" PRIu32,
                          h->rank, h->size, c->size_from, c->size);
    } else if (c->size == 0 && !dcommi_rdv_set_size(c, h->size, h->rank)) {
        dcommi_rdv_poison(c, now, DCOMM_ERR_NO_MEMORY,
                          "the rank that serves the rendezvous has no memory for %" PRIu32 " ranks",
                          h->size);
    } else if (!c->ready && c->ranks[h->rank] != NULL &&
               c->ranks[h->rank]->instance != h->instance) {
        dcommi_rdv_poison(c, now, DCOMM_ERR_RENDEZVOUS,
                          "two processes say that they are rank %" PRIu32 " of %" PRIu32, h->rank,
                          h->size);
    }
    return c->status;
}

static void dcommi_rdv_hello_in(dcommi_rdv_core *c, dcommi_rdv_conn *conn, double now)
{
    dcommi_rdv_hello h;
    if (!dcommi_rdv_get_hello(conn->small, conn->challenge, c->key, &h)) {
        dcommi_rdv_reject(conn, now, DCOMM_ERR_AUTH, "the secrets differ");
        return;
    }
    if (h.generation != c->generation) {
        dcommi_rdv_reject(conn, now, DCOMM_IN_PROGRESS,
                          "communicator %" PRIu32 " of this job is being created, not %" PRIu32,
                          c->generation, h.generation);
        return;
    }
    uint8_t welcome[DCOMMI_RDV_WELCOME_FRAME];
    dcommi_rdv_derive(c->key, conn->challenge, conn->small, &conn->keys);
    dcommi_rdv_say(conn, welcome,
                   dcommi_rdv_put_welcome(welcome, conn->challenge, conn->small, c->key));
    conn->rank = h.rank;
    conn->instance = h.instance;
    if (c->status < 0 || dcommi_rdv_judge(c, &h, now) < 0) {
        dcommi_rdv_tell(c, conn, now);
        return;
    }
    if (c->ready) {
        uint8_t reason[4 + DCOMMI_RDV_REASON_MAX];
        char why[128];
        snprintf(why, sizeof why,
                 "all %" PRIu32 " ranks have met already: an id serves one communicator", c->size);
        dcommi_rdv_say_tagged(conn, DCOMMI_RDV_FAIL, reason,
                              dcommi_rdv_put_reason(reason, DCOMM_ERR_RENDEZVOUS, why));
        dcommi_rdv_farewell(conn, now);
        return;
    }
    dcommi_rdv_conn *before = c->ranks[h.rank];
    if (before != NULL) {
        before->state = DCOMMI_RDV_GONE; /* the same process tries again */
        c->njoined--;
    }
    dcommi_rdv_unguest(c, conn);
    conn->state = DCOMMI_RDV_JOINED;
    conn->waiting = true;
    conn->deadline = now + h.timeout_ms / 1000.0;
    c->ranks[h.rank] = conn;
    c->lost_at[h.rank] = 0;
    if (++c->njoined < c->size) {
        return;
    }
    c->ready = true;
    for (uint32_t r = 0; r < c->size; r++) {
        c->ranks[r]->waiting = false;
        dcommi_rdv_say_tagged(c->ranks[r], DCOMMI_RDV_READY, NULL, 0);
    }
}

/* ---- rounds ---- */

static void dcommi_rdv_round_done(dcommi_rdv_core *c, double now)
{
    dcommi_rdv_result *result = dcommi_alloc(sizeof *result);
    size_t len = 4 + 4 * (size_t)c->size + c->round_bytes;
    uint8_t *payload = result != NULL ? dcommi_alloc(len) : NULL;
    if (payload == NULL) {
        dcommi_free(result);
        dcommi_rdv_poison(c, now, DCOMM_ERR_NO_MEMORY,
                          "the rank that serves the rendezvous has no memory for %zu bytes", len);
        return;
    }
    dcommi_put32(payload, c->size);
    uint8_t *at = payload + 4 + 4 * (size_t)c->size;
    for (uint32_t r = 0; r < c->size; r++) {
        dcommi_rdv_conn *conn = c->ranks[r];
        uint32_t n = dcommi_get32(conn->in + 12) - 4; /* of the header that came before the blob */
        dcommi_put32(payload + 4 + 4 * (size_t)r, n);
        memcpy(at, conn->in + DCOMMI_RDV_HEADER + 4, n);
        at += n;
        dcommi_free(conn->in);
        conn->in = NULL;
        conn->in_len = conn->in_capacity = 0;
    }
    result->payload = payload;
    result->len = len;
    dcommi_sha256_digest(payload, len, result->digest);
    for (uint32_t r = 0; r < c->size; r++) {
        dcommi_rdv_conn *conn = c->ranks[r];
        uint8_t header[DCOMMI_RDV_HEADER];
        dcommi_rdv_put_header(header, DCOMMI_RDV_RESULT, conn->out_seq++, (uint32_t)len);
        dcommi_rdv_tag(conn->keys.server, header, result->digest, conn->result_tag);
        dcommi_rdv_say(conn, header, sizeof header);
        conn->result = result;
        conn->result_at = 0;
        conn->gathered = conn->waiting = false;
        result->refs++;
    }
    c->ngathered = 0;
    c->round_bytes = 0;
}

/* A whole genuine frame of a rank lies in conn->in. */
static void dcommi_rdv_frame_in(dcommi_rdv_core *c, dcommi_rdv_conn *conn,
                                const dcommi_rdv_header *h, double now)
{
    if (h->type == DCOMMI_RDV_BYE) {
        conn->left = true;
        conn->in_len = 0;
        c->nleft++;
        if (c->first_leave == 0) {
            c->first_leave = now;
        }
        dcommi_rdv_farewell(conn, now);
        if (!c->ready || c->ngathered > 0) {
            dcommi_rdv_poison(c, now, DCOMM_ERR_PEER,
                              "rank %" PRIu32 " left while others waited for it", conn->rank);
        }
        return;
    }
    conn->gathered = conn->waiting = true;
    conn->deadline = now + dcommi_get32(conn->in + DCOMMI_RDV_HEADER) / 1000.0;
    c->round_bytes += h->length - 4;
    c->ngathered++;
    if (c->nleft > 0) {
        dcommi_rdv_poison(c, now, DCOMM_ERR_PEER,
                          "rank %" PRIu32 " waits for ranks of which some have left", conn->rank);
    } else if (c->round_bytes > DCOMMI_RDV_RESULT_MAX - 4 - 4 * (size_t)c->size) {
        dcommi_rdv_poison(c, now, DCOMM_ERR_UNSUPPORTED,
                          "the ranks have more than %u bytes to tell each other",
                          DCOMMI_RDV_RESULT_MAX);
    } else if (c->ngathered == c->size) {
        dcommi_rdv_round_done(c, now);
    }
}

/* Whether more input may be given: not while a rank has not read what it was sent, nor while its
 * blob waits for the others', so that no rank can make us keep more than one frame. */
static bool dcommi_rdv_wants_input(const dcommi_rdv_conn *conn)
{
    return conn->state == DCOMMI_RDV_FAREWELL || conn->state == DCOMMI_RDV_STRANGER ||
           (conn->state == DCOMMI_RDV_JOINED && conn->result == NULL && !conn->gathered);
}

/* The frame in conn->small or conn->in has this many bytes in all, as far as is known; 0: no frame
 * that this connection may send now. */
static size_t dcommi_rdv_frame_len(const dcommi_rdv_core *c, const dcommi_rdv_conn *conn,
                                   dcommi_rdv_header *h)
{
    bool stranger = conn->state == DCOMMI_RDV_STRANGER;
    if (conn->in_len < DCOMMI_RDV_HEADER) {
        return DCOMMI_RDV_HEADER;
    }
    if (!dcommi_rdv_get_header(stranger ? conn->small : conn->in, h)) {
        return 0;
    }
    if (stranger) {
        return h->type == DCOMMI_RDV_HELLO && h->length == DCOMMI_RDV_HELLO_LEN
                   ? DCOMMI_RDV_HELLO_FRAME
                   : 0;
    }
    if ((h->type == DCOMMI_RDV_GATHER && c->ready && h->length >= 4) ||
        (h->type == DCOMMI_RDV_BYE && h->length == 0)) {
        return DCOMMI_RDV_HEADER + (size_t)h->length + DCOMMI_RDV_TAG;
    }
    return 0;
}

/* Bytes have come on a connection that wants input; returns how many of them are used up. */
static size_t dcommi_rdv_input(dcommi_rdv_core *c, dcommi_rdv_conn *conn, const uint8_t *bytes,
                               size_t len, double now)
{
    size_t used = 0;
    while (used < len && dcommi_rdv_wants_input(conn)) {
        if (conn->state == DCOMMI_RDV_FAREWELL) {
            return len;
        }
        dcommi_rdv_header h = {0};
        size_t need = dcommi_rdv_frame_len(c, conn, &h);
        size_t take = need > conn->in_len ? need - conn->in_len : 0;
        take = take < len - used ? take : len - used;
        bool stranger = conn->state == DCOMMI_RDV_STRANGER;
        if (need == 0 || (!stranger && dcommi_grow((void **)&conn->in, &conn->in_capacity,
                                                   conn->in_len + take, 1) < 0)) {
            dcommi_rdv_lost(c, conn, now);
            return len;
        }
        memcpy((stranger ? conn->small : conn->in) + conn->in_len, bytes + used, take);
        conn->in_len += take;
        used += take;
        need = dcommi_rdv_frame_len(c, conn, &h);
        if (need == 0) {
            dcommi_rdv_lost(c, conn, now);
            return len;
        }
        if (conn->in_len < need || conn->in_len == DCOMMI_RDV_HEADER) {
            continue;
        }
        if (stranger) {
            conn->in_len = 0;
            dcommi_rdv_hello_in(c, conn, now);
        } else if (!dcommi_rdv_genuine(conn->in, &h, conn->in_seq++, conn->keys.client)) {
            dcommi_rdv_lost(c, conn, now);
        } else {
            dcommi_rdv_frame_in(c, conn, &h, now);
        }
    }
    return used;
}

/* ---- time ---- */

/* Let deadlines pass; returns the time of the next one. */
static double dcommi_rdv_tick(dcommi_rdv_core *c, double now)
{
    double next = now + 3600;
    for (uint32_t r = 0; r < c->size && !c->ready && c->status == DCOMM_OK; r++) {
        double due = c->lost_at[r] + DCOMMI_RDV_RETURN_S;
        if (c->lost_at[r] != 0 && due <= now) {
            dcommi_rdv_poison(c, now, DCOMM_ERR_PEER,
                              "rank %" PRIu32 " was lost before all ranks had come", r);
        } else if (c->lost_at[r] != 0 && due < next) {
            next = due;
        }
    }
    for (size_t i = 0; i < c->nconns; i++) {
        dcommi_rdv_conn *conn = c->conns[i];
        bool timed = conn->state == DCOMMI_RDV_STRANGER || conn->state == DCOMMI_RDV_FAREWELL ||
                     (conn->state == DCOMMI_RDV_JOINED && conn->waiting);
        if (timed && conn->deadline <= now && conn->state == DCOMMI_RDV_JOINED) {
            char who[200];
            dcommi_rdv_list_ranks(c, c->ready, who, sizeof who);
            dcommi_rdv_poison(c, now, DCOMM_ERR_TIMEOUT,
                              "rank(s) %s of %" PRIu32 " did not %s in the time that rank %" PRIu32
                              " waits",
                              who, c->size, c->ready ? "take part" : "come", conn->rank);
        } else if (timed && conn->deadline <= now) {
            dcommi_rdv_lost(c, conn, now);
        } else if (timed && conn->deadline < next) {
            next = conn->deadline;
        }
        if (conn->state == DCOMMI_RDV_JOINED && c->first_leave != 0 &&
            now - c->first_leave > DCOMMI_RDV_STRAGGLER_S) {
            dcommi_rdv_lost(c, conn, now);
        }
    }
    return c->first_leave != 0 && c->first_leave + DCOMMI_RDV_STRAGGLER_S < next
               ? c->first_leave + DCOMMI_RDV_STRAGGLER_S + 1
               : next;
}

/* Whether somebody is here whom the server must not leave: a rank, or a guest whose last words are
 * not sent yet. */
static bool dcommi_rdv_attended(const dcommi_rdv_core *c)
{
    for (size_t i = 0; i < c->nconns; i++) {
        const dcommi_rdv_conn *conn = c->conns[i];
        if (conn->state != DCOMMI_RDV_GONE && conn->state != DCOMMI_RDV_STRANGER &&
            (!conn->guest || dcommi_rdv_output_pending(conn))) {
            return true;
        }
    }
    return false;
}

/* Nothing is left to do: all have left, or all know that it failed. */
static bool dcommi_rdv_finished(const dcommi_rdv_core *c)
{
    return !dcommi_rdv_attended(c) &&
           (c->ready || (c->size != 0 && c->status < 0 && c->ntold >= c->size));
}

/* Free what is gone; `closing` is called on each first. */
static void dcommi_rdv_sweep(dcommi_rdv_core *c, void (*closing)(dcommi_rdv_conn *conn))
{
    size_t kept = 0;
    for (size_t i = 0; i < c->nconns; i++) {
        dcommi_rdv_conn *conn = c->conns[i];
        if (conn->state != DCOMMI_RDV_GONE) {
            c->conns[kept++] = conn;
            continue;
        }
        if (c->ranks != NULL && conn->rank < c->size && c->ranks[conn->rank] == conn) {
            c->ranks[conn->rank] = NULL;
        }
        dcommi_rdv_unguest(c, conn);
        closing(conn);
        dcommi_rdv_conn_free(conn);
    }
    c->nconns = kept;
}

#endif

#include <signal.h>
#include <sys/eventfd.h>

/* Shared by its thread, the list of servers and the boots of this process that use it. */
typedef struct dcommi_rdv_server {
    struct dcommi_rdv_server *next; /* in the list */
    int refs;                       /* under the list's lock, as are the next two */
    bool ended;                     /* the thread is through, nothing listens any more */
    bool retired;                   /* the owner has left: end when the others know */
    uint16_t port;
    dcommi_addr self; /* where this process reaches it */
    uint8_t key[DCOMMI_RDV_KEY];
    int listen_fd, wake_fd;
    double refuse_until; /* do not accept before: out of descriptors */
    dcommi_rdv_core core;
    struct pollfd *polls;
    size_t polls_capacity;
} dcommi_rdv_server;

static pthread_mutex_t dcommi_rdv_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t dcommi_rdv_changed = PTHREAD_COND_INITIALIZER;
static dcommi_rdv_server *dcommi_rdv_servers;

static void dcommi_rdv_close_fd(dcommi_rdv_conn *conn)
{
    if (conn->fd >= 0) {
        close(conn->fd);
        conn->fd = -1;
    }
}

/* shutdown too: a forked child may hold a copy, which would go on taking connections. */
static void dcommi_rdv_stop_listening(dcommi_rdv_server *s)
{
    if (s->listen_fd >= 0) {
        shutdown(s->listen_fd, SHUT_RDWR);
        close(s->listen_fd);
        s->listen_fd = -1;
    }
}

/* Drop a reference; the lock is held. */
static void dcommi_rdv_server_release(dcommi_rdv_server *s)
{
    if (--s->refs > 0) {
        return;
    }
    close(s->wake_fd);
    dcommi_free(s->polls);
    dcommi_free(s);
}

static void dcommi_rdv_accept_all(dcommi_rdv_server *s, double now)
{
    /* A bounded number at a time, so that a flood cannot keep ranks waiting. */
    for (int i = 0; i < DCOMMI_RDV_GUESTS_MAX; i++) {
        int fd = accept4(s->listen_fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
        if (fd < 0) {
            if ((errno == EMFILE || errno == ENFILE) && s->refuse_until == 0) {
                dcommi_log(DCOMMI_LOG_WARN,
                           "the rendezvous cannot take more connections: %s (raise `ulimit -n` in "
                           "the process that serves it)",
                           strerror(errno));
            }
            if (errno != EAGAIN && errno != EWOULDBLOCK && errno != ECONNABORTED &&
                errno != EINTR) {
                s->refuse_until = now + 0.5;
            }
            return;
        }
        uint8_t nonce[DCOMMI_RDV_NONCE];
        dcommi_rdv_conn *conn = NULL;
        if (dcommi_random_bytes(nonce, sizeof nonce) == DCOMM_OK) {
            conn = dcommi_rdv_accept(&s->core, nonce, now);
        }
        if (conn == NULL) {
            close(fd);
            return;
        }
        dcommi_sock_tune(fd);
        conn->fd = fd;
    }
}

static void dcommi_rdv_receive(dcommi_rdv_server *s, dcommi_rdv_conn *conn, uint8_t *buf,
                               size_t max, double now)
{
    /* What is left of a chunk when a rank must wait stays in the socket. */
    ssize_t n = recv(conn->fd, buf, max, MSG_PEEK);
    if (n > 0) {
        size_t used = dcommi_rdv_input(&s->core, conn, buf, (size_t)n, now);
        n = recv(conn->fd, buf, used, MSG_TRUNC);
    } else if (n == 0 || (errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR)) {
        dcommi_rdv_lost(&s->core, conn, now);
    }
}

static void dcommi_rdv_transmit(dcommi_rdv_server *s, dcommi_rdv_conn *conn, double now)
{
    const uint8_t *bytes = NULL;
    size_t len;
    while (conn->state != DCOMMI_RDV_GONE &&
           (len = dcommi_rdv_output(&s->core, conn, &bytes)) > 0) {
        ssize_t n = send(conn->fd, bytes, len, MSG_NOSIGNAL);
        if (n > 0) {
            dcommi_rdv_sent(conn, (size_t)n);
        } else {
            if (errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR) {
                dcommi_rdv_lost(&s->core, conn, now);
            }
            return;
        }
    }
    if (conn->state == DCOMMI_RDV_FAREWELL) {
        shutdown(conn->fd, SHUT_WR); /* and read to its end, so that no reset eats our words */
    }
}

/* Whether the thread should go on. */
static bool dcommi_rdv_server_goes_on(dcommi_rdv_server *s)
{
    pthread_mutex_lock(&dcommi_rdv_lock);
    bool retired = s->retired;
    pthread_mutex_unlock(&dcommi_rdv_lock);
    if (s->core.ready || retired) {
        dcommi_rdv_stop_listening(s);
    }
    if (retired && !s->core.ready) {
        dcommi_rdv_poison(&s->core, dcommi_now(), DCOMM_ERR_PEER,
                          "the rank that serves the rendezvous gave up");
    }
    return !dcommi_rdv_finished(&s->core) && (!retired || dcommi_rdv_attended(&s->core));
}

static bool dcommi_rdv_server_turn(dcommi_rdv_server *s, uint8_t *buf, size_t max)
{
    dcommi_rdv_core *c = &s->core;
    double now = dcommi_now();
    double next = dcommi_rdv_tick(c, now);
    dcommi_rdv_sweep(c, dcommi_rdv_close_fd);
    if (!dcommi_rdv_server_goes_on(s) ||
        dcommi_grow((void **)&s->polls, &s->polls_capacity, c->nconns + 2, sizeof *s->polls) < 0) {
        return false;
    }
    bool accepts = s->listen_fd >= 0 && now >= s->refuse_until;
    size_t n = c->nconns;
    s->polls[0] = (struct pollfd){.fd = s->wake_fd, .events = POLLIN};
    s->polls[1] = (struct pollfd){.fd = accepts ? s->listen_fd : -1, .events = POLLIN};
    for (size_t i = 0; i < n; i++) {
        /* Hang-ups are seen without asking; a rank that waits is polled for them alone. */
        short events = dcommi_rdv_wants_input(c->conns[i]) ? POLLIN : POLLRDHUP;
        if (dcommi_rdv_output_pending(c->conns[i])) {
            events |= POLLOUT;
        }
        s->polls[i + 2] = (struct pollfd){.fd = c->conns[i]->fd, .events = events};
    }
    double wait = next - now;
    if (s->listen_fd >= 0 && !accepts) {
        wait = 0.1;
    }
    poll(s->polls, n + 2, wait > 0 ? (int)(wait * 1000) + 1 : 0);
    now = dcommi_now();
    if (s->polls[0].revents != 0) {
        uint64_t count;
        (void)!read(s->wake_fd, &count, sizeof count);
    }
    for (size_t i = 0; i < n; i++) {
        dcommi_rdv_conn *conn = c->conns[i];
        short got = s->polls[i + 2].revents;
        if (conn->state == DCOMMI_RDV_GONE || got == 0) {
            continue;
        }
        if (dcommi_rdv_wants_input(conn)) {
            dcommi_rdv_receive(s, conn, buf, max, now);
        } else if ((got & (POLLERR | POLLHUP | POLLRDHUP)) != 0) {
            dcommi_rdv_lost(c, conn, now);
        }
    }
    if (s->polls[1].revents != 0) {
        dcommi_rdv_accept_all(s, now);
    }
    for (size_t i = 0; i < c->nconns; i++) {
        if (c->conns[i]->state != DCOMMI_RDV_GONE && dcommi_rdv_output_pending(c->conns[i])) {
            dcommi_rdv_transmit(s, c->conns[i], now);
        }
    }
    return true;
}

static void *dcommi_rdv_server_main(void *argument)
{
    dcommi_rdv_server *s = argument;
    enum { CHUNK = 1 << 16 };
    uint8_t *buf = dcommi_alloc(CHUNK);
    while (buf != NULL && dcommi_rdv_server_turn(s, buf, CHUNK)) {
    }
    dcommi_free(buf);
    dcommi_rdv_stop_listening(s);
    for (size_t i = 0; i < s->core.nconns; i++) {
        dcommi_rdv_close_fd(s->core.conns[i]);
    }
    dcommi_rdv_core_end(&s->core);
    pthread_mutex_lock(&dcommi_rdv_lock);
    dcommi_rdv_server **at = &dcommi_rdv_servers;
    while (*at != s) {
        at = &(*at)->next;
    }
    *at = s->next;
    s->ended = true;
    pthread_cond_broadcast(&dcommi_rdv_changed);
    dcommi_rdv_server_release(s);
    pthread_mutex_unlock(&dcommi_rdv_lock);
    return NULL;
}

/* Let the owner's reference go: the server ends when all others know how it went. Waits at most
 * `patience` seconds for that, so that a process that ends now does not cut them off. */
static void dcommi_rdv_server_retire(dcommi_rdv_server *s, double patience)
{
    uint64_t one = 1;
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    int64_t ns = until.tv_nsec + (int64_t)(patience * 1e9);
    until.tv_sec += (time_t)(ns / 1000000000);
    until.tv_nsec = (long)(ns % 1000000000);
    pthread_mutex_lock(&dcommi_rdv_lock);
    s->retired = true;
    (void)!write(s->wake_fd, &one, sizeof one);
    while (!s->ended &&
           pthread_cond_timedwait(&dcommi_rdv_changed, &dcommi_rdv_lock, &until) == 0) {
    }
    dcommi_rdv_server_release(s);
    pthread_mutex_unlock(&dcommi_rdv_lock);
}

/* A server of this process with this key, with a reference for the caller; NULL: none. */
static dcommi_rdv_server *dcommi_rdv_server_find(const uint8_t key[DCOMMI_RDV_KEY], uint16_t port)
{
    pthread_mutex_lock(&dcommi_rdv_lock);
    dcommi_rdv_server *s = dcommi_rdv_servers;
    while (s != NULL && (s->port != port || memcmp(s->key, key, DCOMMI_RDV_KEY) != 0)) {
        s = s->next;
    }
    if (s != NULL) {
        s->refs++;
    }
    pthread_mutex_unlock(&dcommi_rdv_lock);
    return s;
}

/* Drop the reference of dcommi_rdv_server_find. */
static void dcommi_rdv_server_forget(dcommi_rdv_server *s)
{
    pthread_mutex_lock(&dcommi_rdv_lock);
    dcommi_rdv_server_release(s);
    pthread_mutex_unlock(&dcommi_rdv_lock);
}

/* Serve on `on` (NULL: on every address, at `port`, 0 for any). *server_p is the owner's
 * reference, for dcommi_rdv_server_retire or dcommi_rdv_server_forget. Keeps errno when it fails.
 */
static dcomm_status dcommi_rdv_server_start(const dcommi_addr *on, uint16_t port,
                                            const uint8_t key[DCOMMI_RDV_KEY], uint32_t generation,
                                            dcommi_rdv_server **server_p)
{
    dcommi_rdv_server *s = dcommi_alloc(sizeof *s);
    if (s == NULL) {
        return DCOMM_ERR_NO_MEMORY;
    }
    s->refs = 2;
    memcpy(s->key, key, DCOMMI_RDV_KEY);
    s->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    s->listen_fd = on != NULL ? dcommi_sock_listen(on, false) : dcommi_sock_listen_any(port);
    socklen_t len = sizeof s->self;
    if (s->wake_fd < 0 || s->listen_fd < 0 || getsockname(s->listen_fd, &s->self.any, &len) != 0) {
        int saved = errno;
        close(s->listen_fd);
        close(s->wake_fd);
        dcommi_free(s);
        errno = saved;
        return dcommi_fail(DCOMM_ERR_SYSTEM, "cannot serve the rendezvous on port %u: %s", port,
                           strerror(saved));
    }
    bool v4 = s->self.any.sa_family == AF_INET;
    s->port = ntohs(v4 ? s->self.v4.sin_port : s->self.v6.sin6_port);
    if (on == NULL) {
        /* A socket of both families is reached by IPv4 too, which is always there. */
        dcommi_addr_literal("127.0.0.1", s->port, &s->self);
    }
    dcommi_rdv_core_begin(&s->core, key, generation);
    sigset_t all, before;
    pthread_t thread;
    pthread_attr_t detached;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    pthread_attr_init(&detached);
    pthread_attr_setdetachstate(&detached, PTHREAD_CREATE_DETACHED);
    pthread_mutex_lock(&dcommi_rdv_lock);
    int rc = pthread_create(&thread, &detached, dcommi_rdv_server_main, s);
    if (rc == 0) {
        s->next = dcommi_rdv_servers;
        dcommi_rdv_servers = s;
    }
    pthread_mutex_unlock(&dcommi_rdv_lock);
    pthread_attr_destroy(&detached);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (rc != 0) {
        dcommi_rdv_stop_listening(s);
        close(s->wake_fd);
        dcommi_free(s);
        return dcommi_fail(DCOMM_ERR_SYSTEM, "cannot start the thread of the rendezvous: %s",
                           strerror(rc));
    }
    *server_p = s;
    return DCOMM_OK;
}

#endif

#define DCOMMI_BOOT_LINGER_S 1.0 /* for the others to have left, when this process serves them */
#define DCOMMI_BOOT_PORT_S 5.0   /* for a port of an earlier communicator to become free */

typedef struct dcommi_boot {
    int rank, size;
    int local_rank; /* rank within the host as the launcher counts, -1 if it does not say */
    /* private: */
    dcomm_allgather_fn allgather; /* NULL: client, or alone */
    void *allgather_user;
    dcommi_rdv_client client;
    dcommi_rdv_server *server; /* NULL: another process serves */
} dcommi_boot;

/* Number of the launcher's communicators that this process has begun: it keeps a slow rank of one
 * apart from the next one's at the same port. Every rank creates them in the same order. */
static _Atomic uint32_t dcommi_boot_generation;

/* ---- ids ---- */

static void dcommi_boot_id_key(const dcommi_id_parts *parts, uint8_t key[DCOMMI_RDV_KEY])
{
    dcommi_rdv_key_of(parts->secret, sizeof parts->secret, key);
}

/* The server lives on with no owner until a boot of this process adopts it. */
dcomm_status dcomm_id_create(dcomm_id *id)
{
    if (id == NULL) {
        return dcommi_fail(DCOMM_ERR_INVALID, "dcomm_id_create: id is NULL");
    }
    memset(id, 0, sizeof *id);
    dcommi_id_parts parts = {0};
    uint8_t key[DCOMMI_RDV_KEY];
    DCOMMI_TRY(dcommi_random_bytes(parts.secret, sizeof parts.secret));
    dcommi_boot_id_key(&parts, key);
    const char *iface = dcommi_env("DCOMM_IFACE");
    parts.naddrs = dcommi_addr_mine(iface, 0, parts.addrs, DCOMMI_ID_ADDRS);
    if (parts.naddrs == 0) {
        return dcommi_fail(iface != NULL ? DCOMM_ERR_INVALID : DCOMM_ERR_SYSTEM,
                           "no address that other ranks could reach%s%s",
                           iface != NULL ? ": no interface is up with the name DCOMM_IFACE=" : "",
                           iface != NULL ? iface : "");
    }
    dcommi_rdv_server *server = NULL;
    DCOMMI_TRY(dcommi_rdv_server_start(NULL, 0, key, 0, &server));
    parts.port = server->port;
    dcommi_id_format(&parts, id);
    dcommi_rdv_server_forget(server);
    return DCOMM_OK;
}

static dcomm_status dcommi_boot_join_id(dcommi_boot *boot, const dcomm_id *id)
{
    dcommi_id_parts parts;
    uint8_t key[DCOMMI_RDV_KEY];
    DCOMMI_TRY(dcommi_id_parse(id, &parts));
    dcommi_boot_id_key(&parts, key);
    dcommi_rdv_target target = {.port = parts.port, .exists = true, .secret_hint = "the dcomm_id"};
    dcommi_rdv_server *server = dcommi_rdv_server_find(key, parts.port);
    if (server != NULL) {
        target.addrs[target.naddrs++] = server->self;
        /* Rank 0 takes it over when several ranks live in this process. */
        if (boot->rank == 0) {
            boot->server = server;
        } else {
            dcommi_rdv_server_forget(server);
        }
    }
    for (int i = 0; i < parts.naddrs && target.naddrs < DCOMMI_SOCK_ADDRS; i++) {
        target.addrs[target.naddrs++] = parts.addrs[i];
    }
    if (boot->size == 1) {
        return DCOMM_OK;
    }
    return dcommi_rdv_join(&boot->client, &target, key, 0);
}

/* ---- launchers ---- */

static void dcommi_boot_hex(const dcomm_id *id, char text[2 * DCOMM_ID_BYTES + 1])
{
    for (int i = 0; i < DCOMM_ID_BYTES; i++) {
        snprintf(text + (size_t)2 * (size_t)i, 3, "%02x", id->bytes[i]);
    }
}

static bool dcommi_boot_unhex(const char *text, dcomm_id *id)
{
    for (size_t i = 0; i < DCOMM_ID_BYTES; i++) {
        unsigned byte = 0;
        for (size_t k = 2 * i; k < 2 * i + 2; k++) {
            char c = text[k];
            if (!((c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'))) {
                return false;
            }
            byte = byte << 4 | (unsigned)(c <= '9' ? c - '0' : c - 'a' + 10);
        }
        id->bytes[i] = (uint8_t)byte;
    }
    return text[(size_t)2 * DCOMM_ID_BYTES] == '\0';
}

/* Rank 0 makes an id, the process manager hands it round. */
static dcomm_status dcommi_boot_managed(dcommi_boot *boot, const dcommi_launcher *l,
                                        uint32_t generation)
{
    char key[32], text[2 * DCOMM_ID_BYTES + 1] = "", got[2 * DCOMM_ID_BYTES + 1] = "";
    double deadline = dcommi_now() + boot->client.timeout_s;
    const _Atomic int *cancel = boot->client.cancel;
    dcomm_id id;
    snprintf(key, sizeof key, "dcomm-%" PRIu32, generation);
    if (boot->rank == 0) {
        DCOMMI_TRY(dcomm_id_create(&id));
        dcommi_boot_hex(&id, text);
    }
    char *mine = boot->rank == 0 ? text : NULL;
    dcomm_status status =
        l->meeting == DCOMMI_MEET_PMI
            ? dcommi_pmi_share(l->pmi_fd, key, mine, got, sizeof got, deadline, cancel)
            : dcommi_pmix_share(key, mine, got, sizeof got, deadline, cancel);
    if (status == DCOMM_OK && !dcommi_boot_unhex(got, &id)) {
        status = dcommi_fail(DCOMM_ERR_RENDEZVOUS, "the process manager handed round no id");
    }
    if (status == DCOMM_OK) {
        boot->client.timeout_s = dcommi_now() < deadline ? deadline - dcommi_now() : 0;
        return dcommi_boot_join_id(boot, &id);
    }
    if (boot->rank == 0) {
        /* Adopt the server that nobody will come to, so that closing ends it. */
        dcommi_id_parts parts;
        uint8_t id_key[DCOMMI_RDV_KEY];
        dcommi_boot_unhex(text, &id);
        if (dcommi_id_parse(&id, &parts) == DCOMM_OK) {
            dcommi_boot_id_key(&parts, id_key);
            boot->server = dcommi_rdv_server_find(id_key, parts.port);
        }
    }
    return status;
}

/* Rank 0 serves where the launcher says. */
static dcomm_status dcommi_boot_serve(dcommi_boot *boot, const dcommi_launcher *l,
                                      uint32_t generation)
{
    dcommi_addr on[DCOMMI_SOCK_ADDRS];
    const char *why = "";
    double patience = dcommi_now() + DCOMMI_BOOT_PORT_S;
    int n = l->loopback ? dcommi_addr_resolve(l->host, l->port, on, DCOMMI_SOCK_ADDRS, &why) : 0;
    for (int turn = 0;; turn++) {
        const dcommi_addr *at = n > 0 ? &on[turn % n] : NULL;
        dcomm_status status =
            dcommi_rdv_server_start(at, l->port, l->key, generation, &boot->server);
        bool again = errno == EADDRINUSE || turn + 1 < n;
        if (status != DCOMM_ERR_SYSTEM || !again || dcommi_now() > patience) {
            return status;
        }
        if (dcommi_sock_pause(0.05, boot->client.cancel) < 0) {
            return dcommi_rdv_cancelled();
        }
    }
}

static dcomm_status dcommi_boot_tcp(dcommi_boot *boot, const dcommi_launcher *l,
                                    uint32_t generation)
{
    dcommi_rdv_target target = {
        .host = l->host, .port = l->port, .secret_hint = "DCOMM_SECRET or DCOMM_SECRET_FILE"};
    if (boot->rank == 0) {
        if (!l->secret && !l->loopback) {
            static atomic_flag warned = ATOMIC_FLAG_INIT;
            if (!atomic_flag_test_and_set(&warned)) {
                dcommi_log(DCOMMI_LOG_WARN,
                           "ranks meet at %s:%u without authentication: whoever reaches that port "
                           "can join; set DCOMM_SECRET or DCOMM_SECRET_FILE on all ranks",
                           l->host, l->port);
            }
        }
        DCOMMI_TRY(dcommi_boot_serve(boot, l, generation));
        target.host = NULL;
        target.addrs[0] = boot->server->self;
        target.naddrs = 1;
        target.exists = true;
    }
    return dcommi_rdv_join(&boot->client, &target, l->key, generation);
}

static dcomm_status dcommi_boot_auto(dcommi_boot *boot)
{
    dcommi_launcher l;
    DCOMMI_TRY(dcommi_launcher_detect(&l));
    boot->local_rank = l.local_rank;
    if (l.size == 0) {
        DCOMMI_TRY(dcommi_pmix_world(&l.rank, &l.size));
        if (l.size < 1 || l.rank >= l.size) {
            return dcommi_fail(DCOMM_ERR_RENDEZVOUS, "PMIx says that this is rank %d of %d", l.rank,
                               l.size);
        }
    }
    boot->rank = l.rank;
    boot->size = l.size;
    boot->client.rank = (uint32_t)l.rank;
    boot->client.size = (uint32_t)l.size;
    if (l.size == 1) {
        return DCOMM_OK;
    }
    uint32_t generation = atomic_fetch_add(&dcommi_boot_generation, 1);
    if (l.meeting == DCOMMI_MEET_TCP) {
        return dcommi_boot_tcp(boot, &l, generation);
    }
    dcomm_status status = dcommi_boot_managed(boot, &l, generation);
    if (status == DCOMM_ERR_UNSUPPORTED && l.meeting == DCOMMI_MEET_PMIX) {
        if (l.host[0] != '\0') {
            if (boot->server != NULL) {
                dcommi_rdv_server_retire(boot->server, 0);
                boot->server = NULL;
            }
            return dcommi_boot_tcp(boot, &l, generation);
        }
        char why[256];
        snprintf(why, sizeof why, "%.255s", dcommi_message);
        return dcommi_fail(DCOMM_ERR_UNSUPPORTED,
                           "%s started this rank, but its PMIx cannot be used (%s); install "
                           "libpmix.so.2, set MASTER_ADDR and MASTER_PORT, or pass an id",
                           l.name, why);
    }
    return status;
}

/* ---- the interface ---- */

/* Leave; waits at most a second for the others to have left when this process serves them. */
static void dcommi_boot_close(dcommi_boot *boot)
{
    if (boot == NULL) {
        return;
    }
    dcommi_rdv_leave(&boot->client);
    if (boot->server != NULL) {
        dcommi_rdv_server_retire(boot->server, DCOMMI_BOOT_LINGER_S);
    }
    dcommi_free(boot);
}

static dcomm_status dcommi_boot_given(dcommi_boot *boot, const dcomm_comm_opts *opts)
{
    if (opts->size < 1 || opts->size > DCOMMI_RDV_SIZE_MAX || opts->rank < 0 ||
        opts->rank >= opts->size) {
        return dcommi_fail(DCOMM_ERR_INVALID, "opts.rank=%d of opts.size=%d", opts->rank,
                           opts->size);
    }
    boot->rank = opts->rank;
    boot->size = opts->size;
    boot->client.rank = (uint32_t)opts->rank;
    boot->client.size = (uint32_t)opts->size;
    if (opts->boot == DCOMM_BOOT_ID) {
        return dcommi_boot_join_id(boot, &opts->id);
    }
    if (opts->allgather == NULL) {
        return dcommi_fail(DCOMM_ERR_INVALID, "opts.boot is DCOMM_BOOT_ALLGATHER and "
                                              "opts.allgather is NULL");
    }
    boot->allgather = opts->allgather;
    boot->allgather_user = opts->allgather_user;
    return DCOMM_OK;
}

/* Resolve how to meet from opts (boot kind, environment), connect, and wait for all ranks. opts
 * may be NULL. Blocks at most timeout_s, besides name look-ups and the caller's all-gather. cancel
 * may be NULL; when *cancel becomes non-zero, returns DCOMM_ERR_ABORTED soon. It must stay until
 * close. */
static dcomm_status dcommi_boot_open(const dcomm_comm_opts *opts, double timeout_s,
                                     const _Atomic int *cancel, dcommi_boot **boot_p)
{
    *boot_p = NULL;
    dcommi_boot *boot = dcommi_alloc(sizeof *boot);
    if (boot == NULL) {
        return DCOMM_ERR_NO_MEMORY;
    }
    boot->local_rank = -1;
    boot->client.fd = -1;
    boot->client.timeout_s = timeout_s;
    boot->client.cancel = cancel;
    dcomm_boot kind = opts != NULL ? opts->boot : DCOMM_BOOT_AUTO;
    dcomm_status status;
    if (kind == DCOMM_BOOT_AUTO) {
        status = dcommi_boot_auto(boot);
    } else if (kind == DCOMM_BOOT_ID || kind == DCOMM_BOOT_ALLGATHER) {
        status = dcommi_boot_given(boot, opts);
    } else {
        status = dcommi_fail(DCOMM_ERR_INVALID, "opts.boot=%d is no dcomm_boot", (int)kind);
    }
    boot->client.timeout_s = timeout_s;
    if (status < 0) {
        char why[DCOMMI_MESSAGE_MAX]; /* closing may fail too, of which nobody wants to hear */
        memcpy(why, dcommi_message, sizeof why);
        dcommi_boot_close(boot);
        memcpy(dcommi_message, why, sizeof why);
        return status;
    }
    *boot_p = boot;
    return DCOMM_OK;
}

static dcomm_status dcommi_boot_call(const dcommi_boot *boot, const void *mine, size_t bytes,
                                     void *all)
{
    int rc = boot->allgather(mine, bytes, all, boot->allgather_user);
    return rc == 0
               ? DCOMM_OK
               : dcommi_fail(DCOMM_ERR_RENDEZVOUS, "opts.allgather failed with %d on rank %d of %d",
                             rc, boot->rank, boot->size);
}

/* By the caller's function: the lengths first, then blobs padded to the longest. */
static dcomm_status dcommi_boot_by_caller(const dcommi_boot *boot, const void *mine, size_t len,
                                          void **all_p, size_t **lens_p)
{
    size_t n = (size_t)boot->size, longest = 0, total = 0;
    uint64_t my_len = len;
    uint64_t *wide = dcommi_calloc(n, sizeof *wide);
    size_t *lens = dcommi_calloc(n, sizeof *lens);
    uint8_t *padded = NULL, *all = NULL;
    dcomm_status status = wide == NULL || lens == NULL
                              ? DCOMM_ERR_NO_MEMORY
                              : dcommi_boot_call(boot, &my_len, sizeof my_len, wide);
    for (size_t r = 0; r < n && status == DCOMM_OK; r++) {
        if (wide[r] > DCOMMI_RDV_BLOB_MAX) {
            status = dcommi_fail(DCOMM_ERR_CORRUPT,
                                 "opts.allgather returned %" PRIu64 " as the length of rank %zu",
                                 wide[r], r);
            break;
        }
        lens[r] = (size_t)wide[r];
        longest = lens[r] > longest ? lens[r] : longest;
    }
    if (status == DCOMM_OK) {
        padded = dcommi_alloc(longest);
        all = dcommi_calloc(n, longest);
        status = padded == NULL || all == NULL ? DCOMM_ERR_NO_MEMORY : DCOMM_OK;
    }
    if (status == DCOMM_OK && longest > 0) {
        if (len > 0) {
            memcpy(padded, mine, len);
        }
        status = dcommi_boot_call(boot, padded, longest, all);
    }
    for (size_t r = 0; r < n && status == DCOMM_OK; r++) {
        memmove(all + total, all + r * longest, lens[r]);
        total += lens[r];
    }
    dcommi_free(padded);
    dcommi_free(wide);
    if (status < 0) {
        dcommi_free(all);
        dcommi_free(lens);
        return status;
    }
    *all_p = all;
    *lens_p = lens;
    return DCOMM_OK;
}

/* Every rank's blob to every rank: *all_p (dcommi_free it) is the concatenation, (*lens_p)[size]
 * (dcommi_free it) the lengths. A blob has at most 1 MiB. Blocks at most timeout_s of open. After
 * an error only close is allowed. */
static dcomm_status dcommi_boot_allgather(dcommi_boot *boot, const void *mine, size_t len,
                                          void **all_p, size_t **lens_p)
{
    *all_p = NULL;
    *lens_p = NULL;
    if (len > DCOMMI_RDV_BLOB_MAX) {
        return dcommi_fail(DCOMM_ERR_UNSUPPORTED,
                           "rank %d has %zu bytes for the other ranks, more than %u", boot->rank,
                           len, DCOMMI_RDV_BLOB_MAX);
    }
    if (boot->allgather != NULL) {
        return dcommi_boot_by_caller(boot, mine, len, all_p, lens_p);
    }
    if (boot->size > 1) {
        dcomm_status status = dcommi_rdv_gather(&boot->client, mine, len, all_p, lens_p);
        if (status < 0) {
            dcommi_rdv_drop(&boot->client);
        }
        return status;
    }
    void *all = dcommi_alloc(len);
    size_t *lens = dcommi_alloc(sizeof *lens);
    if (all == NULL || lens == NULL) {
        dcommi_free(all);
        dcommi_free(lens);
        return DCOMM_ERR_NO_MEMORY;
    }
    if (len > 0) {
        memcpy(all, mine, len);
    }
    lens[0] = len;
    *all_p = all;
    *lens_p = lens;
    return DCOMM_OK;
}

#endif
/* ==== include/dcomm/impl/cache.h =========================================================== */
/* cache.h - plans by what they were made for: bounded, least recently used goes first, a plan in
 * use stays until its last run has ended. */
#ifndef DCOMMI_CACHE_H
#define DCOMMI_CACHE_H

/* ==== include/dcomm/impl/types.h =========================================================== */
/* types.h - contexts, communicators and runs as the engine sees them. */
#ifndef DCOMMI_TYPES_H
#define DCOMMI_TYPES_H

/* ==== include/dcomm/impl/algo.h ============================================================ */
/* algo.h - the table of algorithms: what every algo_*.h registers and everything else looks up. */
#ifndef DCOMMI_ALGO_H
#define DCOMMI_ALGO_H


/* Appends the steps for `shape` to `b` (begun by the caller, who also finishes it). The caller has
 * already handled nranks == 1 and zero-byte operations, and set head.in_bytes and out_bytes. */
typedef dcomm_status (*dcommi_algo_fn)(const dcommi_shape *shape, dcommi_builder *b);

typedef struct dcommi_algo {
    const char *name;
    dcomm_coll coll;
    dcommi_algo_fn make;
    bool rank_order; /* can fold in rank order */
    const char *cost;
    const char *source;
} dcommi_algo;

/* Bytes of one element, and of `count`. */
static inline int64_t dcommi_shape_bytes(const dcommi_shape *s, size_t count)
{
    return (int64_t)(count * dcomm_dtype_size(s->dtype));
}

/* Where this rank's input lies. `in_base` is where it begins in OUT when the call is in place
 * (0, or rank*block for all-gather and gather). */
typedef struct dcommi_input {
    dcomm_space space;
    int64_t base;
} dcommi_input;

static inline dcommi_input dcommi_input_of(const dcommi_shape *s, int64_t in_base)
{
    dcommi_input in = {s->in_place ? DCOMM_SPACE_OUT : DCOMM_SPACE_IN, s->in_place ? in_base : 0};
    return in;
}

/* `total` bytes cut into `nblocks` blocks of `chunks` chunks each: all equal, multiples of `grain`
 * bytes (>= the element), the tail cut off at `total`. Block b starts at b*block. */
typedef struct dcommi_partition {
    int64_t total, block, chunk;
    int64_t nblocks, chunks;
} dcommi_partition;

static inline dcommi_partition dcommi_partition_make(int64_t total, int64_t nblocks,
                                                     int64_t chunk_bytes, int64_t element)
{
    dcommi_partition p = {.total = total, .nblocks = nblocks, .chunks = 1};
    int64_t share = dcommi_ceil_div(total, nblocks);
    if (chunk_bytes > 0) {
        p.chunks = dcommi_max64(1, dcommi_ceil_div(share, chunk_bytes));
    }
    /* Cache lines keep chunks from sharing one; tiny blocks would only become uneven by it. */
    int64_t grain = share >= 64 * 64 * p.chunks ? 64 : element;
    p.chunk = dcommi_ceil_div(dcommi_ceil_div(share, p.chunks), grain) * grain;
    p.block = p.chunk * p.chunks;
    return p;
}

#endif
/* ==== include/dcomm/impl/host.h ============================================================ */
/* host.h - a string that is equal on two ranks exactly where they can share memory. */
#ifndef DCOMMI_HOST_H
#define DCOMMI_HOST_H


#include <fcntl.h>
#include <sys/stat.h>

#define DCOMMI_HOST_ID_MAX 256

/* The first line of a small file without its newline; "" where it cannot be read. */
static void dcommi_host_line(const char *path, char *line, size_t max)
{
    line[0] = '\0';
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) {
        return;
    }
    ssize_t n = read(fd, line, max - 1);
    close(fd);
    line[n > 0 ? n : 0] = '\0';
    line[strcspn(line, "\n")] = '\0';
}

static uint64_t dcommi_host_namespace(const char *name)
{
    char path[64];
    struct stat st;
    snprintf(path, sizeof path, "/proc/self/ns/%s", name);
    return stat(path, &st) == 0 ? (uint64_t)st.st_ino : 0;
}

/* The identity: wanted (opts.host_id) if not NULL or empty, else DCOMM_HOSTID, else what decides
 * whether memory can be shared:
 *   boot id            one running kernel;
 *   pid namespace      process_vm_readv names the peer by its pid;
 *   ipc namespace      System V segments;
 *   user namespace     process_vm_readv asks for rights in the target's;
 *   effective user     segments are made for their owner alone;
 *   device of /dev/shm POSIX segments: the same file system gives the same number, also seen
 *                      through different mount namespaces;
 *   host name          keeps apart what a faked or missing boot id does not. */
static void dcommi_host_identity(const char *wanted, char id[DCOMMI_HOST_ID_MAX])
{
    if (wanted == NULL || wanted[0] == '\0') {
        wanted = getenv("DCOMM_HOSTID");
    }
    if (wanted != NULL && wanted[0] != '\0') {
        snprintf(id, DCOMMI_HOST_ID_MAX, "%s", wanted);
        return;
    }
    char boot[64], name[65] = "";
    dcommi_host_line("/proc/sys/kernel/random/boot_id", boot, sizeof boot);
    if (gethostname(name, sizeof name - 1) != 0) {
        name[0] = '\0';
    }
    struct stat shm;
    uint64_t device = stat("/dev/shm", &shm) == 0 ? (uint64_t)shm.st_dev : 0;
    snprintf(id, DCOMMI_HOST_ID_MAX,
             "%s pid:%" PRIu64 " ipc:%" PRIu64 " user:%" PRIu64 " uid:%lu shm:%" PRIu64 " %s", boot,
             dcommi_host_namespace("pid"), dcommi_host_namespace("ipc"),
             dcommi_host_namespace("user"), (unsigned long)geteuid(), device, name);
}

#endif
/* ==== include/dcomm/impl/message.h ========================================================= */
/* message.h - the header of every message between engines, and its validation. All ranks of a
 * communicator run on machines of one byte order (checked when it is created). */
#ifndef DCOMMI_MESSAGE_H
#define DCOMMI_MESSAGE_H

/* ==== include/dcomm/impl/transport.h ======================================================= */
/* transport.h - what the engine needs of any transport: active messages, mapped memory, news of a
 * peer's death. A transport moves bytes and knows neither ranks nor dtypes; peers are small
 * integers of the context's own. One thread at a time calls into a transport. */
#ifndef DCOMMI_TRANSPORT_H
#define DCOMMI_TRANSPORT_H


typedef struct dcommi_transport dcommi_transport;

/* A send or a fetch that was not complete at once. The caller owns it, sets `done` and keeps it
 * until done has been called, exactly once, from within progress or close. */
typedef struct dcommi_op {
    void (*done)(struct dcommi_op *op, dcomm_status status);
    void *handle; /* the transport's own */
} dcommi_op;

/* What arrived. data is NULL when the payload still lies at the sender (a long message): then
 * on_message must return DCOMMI_KEEP and later either fetch or release it. */
typedef struct dcommi_arrival {
    int peer; /* who sent it, if the transport knows, else -1: the header tells */
    const void *header;
    size_t header_len;
    const void *data;
    size_t len;
    void *desc; /* names the payload for fetch and release; NULL: it cannot be kept, copy it */
} dcommi_arrival;

typedef enum dcommi_verdict {
    DCOMMI_CONSUMED = 0, /* done with it */
    DCOMMI_KEEP = 1      /* desc (and data, if not NULL) stay valid until fetch or release */
} dcommi_verdict;

typedef struct dcommi_transport_handlers {
    void *user;
    /* Called from within progress. */
    dcommi_verdict (*on_message)(void *user, dcommi_transport *t, const dcommi_arrival *arrival);
    /* A peer is lost; called once per peer from within progress. */
    void (*on_peer_lost)(void *user, dcommi_transport *t, int peer, const char *why);
} dcommi_transport_handlers;

/* Memory that peers on this host may map. */
typedef struct dcommi_region {
    void *base;
    size_t len;
    void *handle;
    const void *key; /* to be sent to peers, key_len bytes; owned by the region */
    size_t key_len;
} dcommi_region;

#define DCOMMI_HEADER_MAX 64 /* bytes of header that send takes */

struct dcommi_transport {
    const char *name; /* "local", "net" */
    const struct dcommi_transport_vtable *call;
    dcommi_transport_handlers handlers;
    const void *address; /* how peers reach us; owned by the transport */
    size_t address_len;
    size_t eager_max; /* a payload up to this long is copied out before send returns */
};

typedef struct dcommi_transport_vtable {
    /* Remember a peer's address (copied). No traffic: endpoints open at the first send. */
    dcomm_status (*add_peer)(dcommi_transport *t, int peer, const void *address, size_t len);
    /* Forget a peer: close its endpoint; force = do not flush. Its pending ops are completed. */
    void (*remove_peer)(dcommi_transport *t, int peer, bool force);
    /* Send header and payload as one message. The header is copied; the payload must stay until
     * the op is done. DCOMM_OK: done already, op untouched; DCOMM_IN_PROGRESS: op->done will be
     * called; an error: not sent. Messages to one peer that are at most eager_max long arrive in
     * order; longer ones may be overtaken. */
    dcomm_status (*send)(dcommi_transport *t, int peer, const void *header, size_t header_len,
                         const void *data, size_t len, dcommi_op *op);
    /* Bring a kept payload whose data is NULL into buf (len bytes, the arrival's); releases desc.
     */
    dcomm_status (*fetch)(dcommi_transport *t, void *desc, void *buf, size_t len, dcommi_op *op);
    /* Drop a kept payload. */
    void (*release)(dcommi_transport *t, void *desc);
    /* Never blocks; returns how much happened. */
    unsigned (*progress)(dcommi_transport *t);
    /* Mapped memory: DCOMM_ERR_UNSUPPORTED on a transport that has none. */
    dcomm_status (*region_create)(dcommi_transport *t, size_t len, dcommi_region *region);
    void (*region_destroy)(dcommi_transport *t, dcommi_region *region);
    /* Map a peer's region by its key; *map is for unmap. */
    dcomm_status (*region_map)(dcommi_transport *t, int peer, const void *key, size_t key_len,
                               void *remote_base, void **ptr, void **map);
    void (*region_unmap)(dcommi_transport *t, void *map);
    /* Wait at most timeout_s for sends to leave, then close everything; force = at once. */
    void (*close)(dcommi_transport *t, double timeout_s, bool force);
} dcommi_transport_vtable;

#endif

/* a, b and the payload by type:
 *   DATA        payload of a send                         a = length
 *   RTS         a send that waits in the sender's memory  a = address, b = length
 *   PULL        the receiver of an RTS cannot read that memory: answer with DATA
 *   FIN         the receiver has read what RTS offered
 *   EXPOSE      `slot` of the sender can be read          a = address, b = length
 *   READ        asks for a part of an exposed slot        a = offset, b = length; tag = reader's id
 *   READ_REPLY  the part                                  a = length, tag = reader's id
 *   SIGNAL      counter `slot` grows                      a = by how much
 *   CREDIT      only carries `done`                       b = 1: and asks for the receiver's
 *   QUERY       have you entered `seq`?                   payload = the asker's description of it
 *   REPLY       a = dcommi_entry, b = how often it has entered; payload = where it waits
 *   ABORT       a = status (two's complement)             payload = sentence
 *   GOODBYE     a = number of collectives it took part in */
enum dcommi_message_type {
    DCOMMI_MSG_DATA = 1,
    DCOMMI_MSG_RTS,
    DCOMMI_MSG_PULL,
    DCOMMI_MSG_FIN,
    DCOMMI_MSG_EXPOSE,
    DCOMMI_MSG_READ,
    DCOMMI_MSG_READ_REPLY,
    DCOMMI_MSG_SIGNAL,
    DCOMMI_MSG_CREDIT,
    DCOMMI_MSG_QUERY,
    DCOMMI_MSG_REPLY,
    DCOMMI_MSG_ABORT,
    DCOMMI_MSG_GOODBYE,
    DCOMMI_MSG_TYPE_END
};

/* Collectives and point-to-point count their sequence numbers apart. */
enum dcommi_stream { DCOMMI_STREAM_COLL = 0, DCOMMI_STREAM_P2P = 1 };

enum dcommi_entry { DCOMMI_NOT_ENTERED = 0, DCOMMI_ENTERED = 1, DCOMMI_COMPLETED = 2 };

typedef struct dcommi_header {
    uint8_t type;
    uint8_t stream;
    uint16_t stage;
    uint16_t slot;
    uint16_t reserved;
    uint32_t signature;
    uint32_t src; /* rank in the communicator */
    uint64_t comm;
    uint64_t seq;
    uint32_t tag;
    uint32_t done; /* low bits of the number of collectives that src has completed */
    uint64_t a, b;
} dcommi_header;

_Static_assert(sizeof(dcommi_header) == 56, "the header has no padding");
_Static_assert(sizeof(dcommi_header) <= DCOMMI_HEADER_MAX, "the header fits the transport");

#define DCOMMI_TEXT_MAX 400 /* bytes of text in QUERY, REPLY and ABORT */

/* Whether bytes are a header that may be acted upon, as far as can be said without knowing the
 * communicator: length, type, and a payload that the type can have. `len` is the payload's. */
static bool dcommi_header_parse(const void *bytes, size_t bytes_len, size_t len,
                                dcommi_header *header)
{
    if (bytes_len != sizeof *header) {
        return false;
    }
    memcpy(header, bytes, sizeof *header);
    if (header->type < DCOMMI_MSG_DATA || header->type >= DCOMMI_MSG_TYPE_END ||
        header->stream > DCOMMI_STREAM_P2P || header->reserved != 0) {
        return false;
    }
    switch (header->type) {
    case DCOMMI_MSG_DATA:
    case DCOMMI_MSG_READ_REPLY:
        return header->a == len;
    case DCOMMI_MSG_QUERY:
    case DCOMMI_MSG_REPLY:
    case DCOMMI_MSG_ABORT:
        return len <= DCOMMI_TEXT_MAX;
    default:
        return len == 0;
    }
}

#endif

#define DCOMMI_WINDOW 64        /* collectives that a rank may be ahead of any peer it sends to */
#define DCOMMI_CREDIT_EVERY 16  /* completions after which silent peers are told */
#define DCOMMI_HISTORY 256      /* past operations whose signatures can still be asked for */
#define DCOMMI_BUCKETS 1024     /* of a communicator's match table */
#define DCOMMI_RTS_BYTES 8192   /* on one host, longer sends wait in the sender's memory */
#define DCOMMI_PULL_BLOCK 65536 /* bytes read from a peer before they are folded */

typedef struct dcommi_run dcommi_run;
typedef struct dcommi_frame dcommi_frame;
typedef struct dcommi_lane dcommi_lane;
typedef struct dcommi_move dcommi_move;
typedef struct dcommi_pull dcommi_pull;

/* ---- matching ---- */

enum dcommi_node_class {
    DCOMMI_NODE_POSTED,   /* a receive that waits for its message */
    DCOMMI_NODE_SENT,     /* an RTS that waits for FIN or PULL */
    DCOMMI_NODE_PULL,     /* a READ that waits for its reply */
    DCOMMI_NODE_EXPOSED,  /* what a peer has exposed to a run */
    DCOMMI_NODE_EARLY,    /* a message for a receive that is not posted yet */
    DCOMMI_NODE_EARLY_RUN /* a signal or exposition for a run or stage that is not there yet */
};

typedef struct dcommi_match_node {
    struct dcommi_match_node *next;
    uint64_t seq;
    uint32_t tag; /* EXPOSED: the slot */
    int32_t peer; /* EARLY_RUN: 0 */
    uint16_t stage;
    uint8_t stream;
    uint8_t cls;
} dcommi_match_node;

/* A message that came before anybody asked for it. */
typedef struct dcommi_early {
    dcommi_match_node node;
    dcommi_header header;
    dcommi_transport *transport;
    void *desc; /* the transport's, to be fetched or released; NULL: data is a copy of ours */
    void *data; /* NULL: still at the sender */
    size_t len;
} dcommi_early;

/* A peer's memory that this run may read. */
typedef struct dcommi_exposed {
    dcommi_match_node node;
    struct dcommi_exposed *next_of_run;
    uint64_t address, len;
} dcommi_exposed;

/* ---- runs ---- */

enum dcommi_lane_state {
    DCOMMI_LANE_READY = 0,
    DCOMMI_LANE_MOVE,    /* the step's move is under way */
    DCOMMI_LANE_FENCE,   /* asynchronous moves are */
    DCOMMI_LANE_COUNTER, /* a counter is too low */
    DCOMMI_LANE_EXPOSE,  /* a peer has not exposed yet */
    DCOMMI_LANE_CREDIT,  /* too far ahead of a peer */
    DCOMMI_LANE_CALL,    /* a sub-plan runs */
    DCOMMI_LANE_DONE
};

struct dcommi_lane {
    dcommi_frame *frame;
    dcommi_lane *next_ready;
    const dcomm_step *steps;
    uint32_t count, pc;
    int64_t index[DCOMM_LOOP_DEPTH];
    int64_t trips[DCOMM_LOOP_DEPTH];
    int depth;
    uint8_t state;
    bool queued;
    uint32_t pending; /* asynchronous moves under way */
    uint32_t counter; /* what it waits for, where it waits */
    uint64_t target;
    int32_t peer;
};

/* A plan being executed: the run's own, or a sub-plan's. */
struct dcommi_frame {
    dcommi_run *run;
    dcommi_frame *parent;
    dcommi_lane *caller; /* lane of the parent that waits for this frame */
    dcommi_frame *next;  /* in run->children */
    const dcomm_plan *plan;
    const int64_t *group; /* rank here -> rank in the parent; NULL: the same */
    uint8_t *space[DCOMM_SPACE_STATE + 1];
    int64_t space_len[DCOMM_SPACE_STATE + 1];
    uint64_t *words;
    int64_t tag_base;
    uint32_t counter_base, slot_base;
    uint32_t lanes_left;
    int depth;
    dcommi_lane *lanes;
};

enum dcommi_move_kind { DCOMMI_MOVE_SEND, DCOMMI_MOVE_RECV, DCOMMI_MOVE_FOLD, DCOMMI_MOVE_REPLY };

/* A send or receive under way. */
struct dcommi_move {
    dcommi_op op; /* first: the transport gives it back */
    dcommi_match_node node;
    dcommi_lane *lane;
    dcommi_run *run;
    dcommi_move *next; /* in run->moves */
    dcommi_move **prev;
    dcommi_pull *pull; /* of a PULL node */
    uint8_t kind;
    bool async, final, in_transport;
    uint8_t nsrc, msg_at;
    int32_t word; /* absolute pointer is lane->frame->words + word */
    uint8_t *buf; /* SEND: payload; RECV: dst; FOLD: stage */
    size_t len;   /* SEND: payload; RECV, FOLD: most that may arrive */
    uint8_t *dst;
    const void *src[DCOMMI_FOLD_MAX];
    size_t arrived;
};

/* What all ranks must agree on, kept for the sentence that says they do not. */
typedef struct dcommi_signature {
    uint32_t hash;
    uint8_t coll, dtype, op;
    int32_t root;
    uint64_t count;
    const char *algo;
} dcommi_signature;

typedef struct dcommi_peer_state {
    uint8_t entry; /* dcommi_entry as last heard */
    bool replied;  /* since the last query */
    char where[64];
} dcommi_peer_state;

/* What a plan was made for. Counts that differ by rank are in it by two independent hashes. */
typedef struct dcommi_plan_key {
    uint64_t call; /* operation, dtype, operator, root */
    uint64_t mode; /* lanes, rank order, in place, name of the algorithm asked for */
    uint64_t count, chunk;
    uint64_t counts[2];
} dcommi_plan_key;

/* A cached plan with its users counted. */
typedef struct dcommi_cached {
    struct dcommi_cached *next; /* in its bucket */
    dcommi_plan_key key;
    const dcommi_algo *algo;
    uint32_t signature;
    uint64_t used; /* clock for eviction */
    int refs;
    bool retired; /* not in the cache any more: free at the last release */
    dcomm_plan *plan;
    dcomm_plan *inner; /* called by plan; NULL without */
} dcommi_cached;

struct dcommi_run {
    dcomm_comm *comm;
    dcommi_run *next, *prev;    /* comm's active runs, by sequence number */
    dcommi_run *next_submitted; /* in the context's submission queue */
    dcommi_run *next_group;     /* in the thread's group */
    dcommi_run *next_finished;  /* in the context, until the engine has left it */
    dcommi_cached *cached;
    const dcomm_plan *plan; /* of the current stage */
    dcommi_signature signature;
    uint64_t seq;
    uint8_t stream;
    int32_t p2p_peer;
    uint16_t stage;
    void (*give_back)(void *user, const dcomm_plan *plan); /* of the stage before, for plan */
    void *give_back_user;
    const void *in;
    void *out, *state;
    double premul;
    _Atomic int status;            /* DCOMM_IN_PROGRESS until complete */
    bool active, blocking, queued; /* queued: in a group that has not ended */
    _Atomic int refs;              /* its user, the engine, moves that the transport holds */
    double timeout_s, submitted_at, idle_since, next_query;
    uint64_t events, events_seen;
    dcommi_frame root;
    dcommi_frame *children;
    dcommi_move *moves;
    dcommi_pull *pulls;
    dcommi_exposed *exposed_list;
    uint64_t *counters;
    struct dcommi_offer {
        uint8_t *base;
        int64_t len;
    } * offers;               /* [nslots] of what we exposed */
    dcommi_peer_state *peers; /* [size], from the first query on */
    uint32_t next_pull;
    uint8_t *memory; /* lanes, words, counters, scratch */
    size_t memory_len;
};

struct dcomm_request {
    dcommi_run run; /* a request is its run */
};

/* ---- communicators ---- */

typedef struct dcommi_history {
    uint64_t seq;
    bool known;
    dcommi_signature signature;
} dcommi_history;

typedef struct dcommi_member {
    int peer;                                /* the context's number for it; -1: this rank itself */
    uint64_t done;                           /* collectives that it has told us it completed */
    uint64_t told;                           /* what we told it of ours */
    _Atomic uint64_t p2p_sent, p2p_received; /* operations called here, towards and from it */
    uint64_t p2p_done; /* of our sends, received there as far as we were told */
    uint64_t p2p_completed, p2p_told;
    bool heard;     /* has sent to us: gets credits and a goodbye */
    bool addressed; /* we have sent to it: gets a goodbye */
    bool gone;      /* has said goodbye */
    bool asked;     /* for credit, and has not answered */
    uint64_t gone_after;
    char *hostname;
} dcommi_member;

#define DCOMMI_CACHE_PLANS 64
#define DCOMMI_CACHE_BUCKETS 128

struct dcomm_comm {
    dcomm_context *context;
    dcomm_comm *next; /* in the context */
    int refs;         /* its creator, its runs; with lock */
    uint64_t id;
    int rank, size, nhosts;
    dcommi_groups *groups;
    struct dcommi_chooser *chooser; /* with lock */
    dcommi_member *members;
    double timeout_s;
    char algo[32];
    bool deterministic;
    bool tunes; /* measures what things cost when it is created */
    int64_t chunk_bytes;
    pthread_mutex_t lock; /* sequence numbers, plan cache, free runs */
    uint64_t next_seq;
    uint64_t children; /* communicators derived so far, for their ids */
    uint64_t shrinks;
    dcommi_run *free_runs;
    dcommi_cached *cache[DCOMMI_CACHE_BUCKETS];
    int ncached;
    uint64_t cache_clock;
    /* below: only with the context's token */
    dcommi_run *runs, *last_run;
    uint64_t entered; /* one more than the highest number that has reached the engine */
    uint64_t started; /* how many have: fewer while a group of another thread holds some back */
    uint64_t done;    /* collectives completed, without gaps */
    dcommi_match_node *table[DCOMMI_BUCKETS];
    dcommi_history history[DCOMMI_HISTORY];
    size_t early_bytes, early_count;
    size_t in_transport; /* moves whose buffers the transport may still touch */
    dcomm_stats stats;
    _Atomic int abort_wanted;
    char abort_reason[DCOMMI_TEXT_MAX];
    _Atomic int poisoned; /* the status, 0: none */
    char message[DCOMMI_MESSAGE_MAX];
    /* non-blocking creation */
    _Atomic int ready; /* DCOMM_IN_PROGRESS, DCOMM_OK or why not */
    _Atomic int cancel;
    pthread_t creator;
    bool has_creator;
    dcomm_comm_opts opts;
    char *names[2]; /* the strings of opts.context_opts */
};

/* ---- contexts ---- */

typedef struct dcommi_remote {
    uint8_t uuid[16];
    dcommi_transport *transport;
    pid_t pid;
    uint64_t started; /* start time of that process, 0: unknown */
    bool same_host, lost;
    bool cannot_read_us; /* it asked us to send by message instead */
    bool unreadable;     /* we may not read its memory */
    int users;           /* communicators */
    char why[160];
} dcommi_remote;

/* A message for a communicator that does not exist here yet. */
typedef struct dcommi_stray {
    struct dcommi_stray *next;
    dcommi_early *early;
} dcommi_stray;

struct dcomm_context {
    _Atomic int refs;  /* its creator, its communicators */
    _Atomic int token; /* who holds it progresses */
    uint8_t uuid[16];
    char host_id[DCOMMI_HOST_ID_MAX];
    char iface[64];
    _Atomic(dcommi_run *) submitted;
    dcommi_transport *local, *net;
    dcommi_remote *peers;
    size_t npeers, peers_capacity;
    dcomm_comm *comms;
    dcommi_lane *ready_first, *ready_last;
    dcommi_move *free_moves;
    struct dcommi_control *free_controls;
    dcommi_stray *strays, *last_stray;
    size_t nstrays, stray_bytes, strays_dropped;
    uint64_t buried[64]; /* ids of communicators that are no more */
    unsigned nburied;
    uint8_t *staging; /* blocks read from peers */
    size_t staging_len;
    const void **pointers;
    struct dcommi_piece *pieces;
    size_t pointers_capacity, pieces_capacity;
    size_t active; /* runs under way */
    dcommi_run *finished;
    _Atomic int aborts;  /* some communicator has abort_wanted */
    unsigned idle;       /* polls in a row in which nothing happened */
    unsigned busy;       /* polls in which something did */
    unsigned spin_limit; /* polls before yielding the core */
    double next_check;
    bool has_thread;
    _Atomic int stop;
    pthread_t thread;
};

/* ---- what the parts of the engine call of each other ---- */

static void dcommi_poison(dcomm_comm *comm, dcomm_status status, int skip_rank, const char *text);
static void dcommi_run_finish(dcommi_run *run, dcomm_status status);
static inline void dcommi_run_event(dcommi_run *run);
static void dcommi_run_signal(dcommi_run *run, uint32_t counter, uint64_t value);
static void dcommi_lane_ready(dcommi_lane *lane);
static void dcommi_lane_moved(dcommi_lane *lane, bool async);
static dcomm_status dcommi_send_header(dcomm_comm *comm, int rank, dcommi_header *header,
                                       const void *data, size_t len);
static void dcommi_suspect_mismatch(dcomm_comm *comm, dcommi_run *run, const dcommi_header *h,
                                    size_t len);
static dcomm_status dcommi_context_release(dcomm_context *context);
static void dcommi_comm_free(dcomm_comm *comm);

#endif

static void dcommi_cached_free(dcommi_cached *cached)
{
    dcommi_free(cached->plan);
    dcommi_free(cached->inner);
    dcommi_free(cached);
}

/* With comm->lock, like all below. */
static void dcommi_cached_release(dcomm_comm *comm, dcommi_cached *cached)
{
    (void)comm;
    if (--cached->refs == 0 && cached->retired) {
        dcommi_cached_free(cached);
    }
}

static void dcommi_cache_retire(dcomm_comm *comm, dcommi_cached **at)
{
    dcommi_cached *cached = *at;
    *at = cached->next;
    comm->ncached--;
    cached->retired = true;
    if (cached->refs == 0) {
        dcommi_cached_free(cached);
    }
}

static void dcommi_cache_clear(dcomm_comm *comm)
{
    for (int i = 0; i < DCOMMI_CACHE_BUCKETS; i++) {
        while (comm->cache[i] != NULL) {
            dcommi_cache_retire(comm, &comm->cache[i]);
        }
    }
}

static inline dcommi_cached **dcommi_cache_bucket(dcomm_comm *comm, const dcommi_plan_key *key)
{
    uint64_t h = (key->call ^ key->mode << 20 ^ key->counts[0]) * 0x9e3779b97f4a7c15u;
    h = (h ^ key->count ^ key->chunk << 32) * 0xd6e8feb86659fd93u;
    return &comm->cache[(h >> 32) % DCOMMI_CACHE_BUCKETS];
}

/* The plan of a key with a reference taken; NULL: not there. */
static dcommi_cached *dcommi_cache_find(dcomm_comm *comm, const dcommi_plan_key *key)
{
    for (dcommi_cached *c = *dcommi_cache_bucket(comm, key); c != NULL; c = c->next) {
        if (memcmp(&c->key, key, sizeof *key) == 0) {
            c->used = ++comm->cache_clock;
            c->refs++;
            comm->stats.plans_reused++;
            return c;
        }
    }
    return NULL;
}

/* Take over a plan, and the one that it calls (or NULL), with one reference for the caller. NULL
 * without memory, in which case the plans are freed. */
static dcommi_cached *dcommi_cache_add(dcomm_comm *comm, const dcommi_plan_key *key,
                                       dcomm_plan *plan, dcomm_plan *inner)
{
    dcommi_cached *cached = dcommi_alloc(sizeof *cached);
    if (cached == NULL) {
        dcommi_free(plan);
        dcommi_free(inner);
        return NULL;
    }
    while (comm->ncached >= DCOMMI_CACHE_PLANS) {
        dcommi_cached **oldest = NULL;
        for (int i = 0; i < DCOMMI_CACHE_BUCKETS; i++) {
            for (dcommi_cached **at = &comm->cache[i]; *at != NULL; at = &(*at)->next) {
                if (oldest == NULL || (*at)->used < (*oldest)->used) {
                    oldest = at;
                }
            }
        }
        dcommi_cache_retire(comm, oldest);
    }
    cached->key = *key;
    cached->used = ++comm->cache_clock;
    cached->refs = 1;
    cached->plan = plan;
    cached->inner = inner;
    dcommi_cached **bucket = dcommi_cache_bucket(comm, key);
    cached->next = *bucket;
    *bucket = cached;
    comm->ncached++;
    comm->stats.plans_built++;
    return cached;
}

#endif
/* ==== include/dcomm/impl/context.h ========================================================= */
/* context.h - the life of a context: transports, peers, the optional progress thread. */
#ifndef DCOMMI_CONTEXT_H
#define DCOMMI_CONTEXT_H

/* ==== include/dcomm/impl/engine.h ========================================================== */
/* engine.h - the only progress loop. Whoever holds the context's token is in here, one thread at a
 * time. */
#ifndef DCOMMI_ENGINE_H
#define DCOMMI_ENGINE_H

/* ==== include/dcomm/impl/arrivals.h ======================================================== */
/* arrivals.h - what becomes of each message: credits, early messages, messages for communicators
 * that do not exist here yet. */
#ifndef DCOMMI_ARRIVALS_H
#define DCOMMI_ARRIVALS_H

/* ==== include/dcomm/impl/runs.h ============================================================ */
/* runs.h - the life of a run: bound to memory, started, taken from stage to stage, finished. */
#ifndef DCOMMI_RUNS_H
#define DCOMMI_RUNS_H

/* ==== include/dcomm/impl/failure.h ========================================================= */
/* failure.h - errors found by one rank become errors everywhere, and a sentence says why.
 *
 * Nothing is asked while all goes well. A run without an event for 200 ms sends QUERY to every
 * rank that it might wait for, with its own description of the operation; who has entered the same
 * number with another description has found the mismatch. Silence makes a suspect whose process is
 * looked at, and when the time is up the answers make the report. */
#ifndef DCOMMI_FAILURE_H
#define DCOMMI_FAILURE_H

/* ==== include/dcomm/impl/lanes.h =========================================================== */
/* lanes.h - running a lane step by step, and the events that wake lanes. */
#ifndef DCOMMI_LANES_H
#define DCOMMI_LANES_H

/* ==== include/dcomm/impl/steps.h =========================================================== */
/* steps.h - the meaning of each step of a plan. */
#ifndef DCOMMI_STEPS_H
#define DCOMMI_STEPS_H

/* ==== include/dcomm/impl/frames.h ========================================================== */
/* frames.h - a plan being executed: its lanes, and what its ranks and operands are in this process.
 */
#ifndef DCOMMI_FRAMES_H
#define DCOMMI_FRAMES_H

/* ==== include/dcomm/impl/pull.h ============================================================ */
/* pull.h - COPY and REDUCE with operands in peers' memory. How a peer is read follows from what it
 * is to us: memory of a process on this host is read directly, any other is asked for by message.
 * The plan does not know. */
#ifndef DCOMMI_PULL_H
#define DCOMMI_PULL_H

/* ==== include/dcomm/impl/moves.h =========================================================== */
/* moves.h - sends and receives of the engine: the payload goes along with the message, or, on one
 * host and when long, waits in the sender's memory until the receiver has read it. */
#ifndef DCOMMI_MOVES_H
#define DCOMMI_MOVES_H

/* ==== include/dcomm/impl/match.h =========================================================== */
/* match.h - the table in which messages and the steps that want them meet. */
#ifndef DCOMMI_MATCH_H
#define DCOMMI_MATCH_H


static inline dcommi_match_node **dcommi_bucket(dcomm_comm *comm, const dcommi_match_node *key)
{
    uint64_t h = key->seq * 0x9e3779b97f4a7c15u;
    h ^= ((uint64_t)key->tag << 24) ^ ((uint64_t)(uint32_t)key->peer << 8) ^ key->cls ^
         ((uint64_t)key->stage << 56) ^ ((uint64_t)key->stream << 7);
    h *= 0xd6e8feb86659fd93u;
    return &comm->table[(h >> 32) % DCOMMI_BUCKETS];
}

static inline bool dcommi_node_equal(const dcommi_match_node *a, const dcommi_match_node *b)
{
    return a->seq == b->seq && a->tag == b->tag && a->peer == b->peer && a->stage == b->stage &&
           a->stream == b->stream && a->cls == b->cls;
}

static inline dcommi_match_node dcommi_key(uint8_t cls, uint8_t stream, uint64_t seq,
                                           uint16_t stage, int32_t peer, uint32_t tag)
{
    dcommi_match_node key = {
        .seq = seq, .tag = tag, .peer = peer, .stage = stage, .stream = stream, .cls = cls};
    return key;
}

static inline void dcommi_match_insert(dcomm_comm *comm, dcommi_match_node *node)
{
    dcommi_match_node **bucket = dcommi_bucket(comm, node);
    node->next = *bucket;
    *bucket = node;
}

static inline dcommi_match_node *dcommi_match_find(dcomm_comm *comm, const dcommi_match_node *key)
{
    dcommi_match_node *node = *dcommi_bucket(comm, key);
    while (node != NULL && !dcommi_node_equal(node, key)) {
        node = node->next;
    }
    return node;
}

/* Take a node out; false when it was not in. */
static inline bool dcommi_match_remove(dcomm_comm *comm, dcommi_match_node *node)
{
    for (dcommi_match_node **at = dcommi_bucket(comm, node); *at != NULL; at = &(*at)->next) {
        if (*at == node) {
            *at = node->next;
            return true;
        }
    }
    return false;
}

static inline dcommi_match_node *dcommi_match_take(dcomm_comm *comm, const dcommi_match_node *key)
{
    for (dcommi_match_node **at = dcommi_bucket(comm, key); *at != NULL; at = &(*at)->next) {
        if (dcommi_node_equal(*at, key)) {
            dcommi_match_node *node = *at;
            *at = node->next;
            return node;
        }
    }
    return NULL;
}

/* Of several equal nodes the one that came first, which lies last in its bucket. */
static inline dcommi_match_node *dcommi_match_take_oldest(dcomm_comm *comm,
                                                          const dcommi_match_node *key)
{
    dcommi_match_node **found = NULL;
    for (dcommi_match_node **at = dcommi_bucket(comm, key); *at != NULL; at = &(*at)->next) {
        if (dcommi_node_equal(*at, key)) {
            found = at;
        }
    }
    if (found == NULL) {
        return NULL;
    }
    dcommi_match_node *node = *found;
    *found = node->next;
    return node;
}

/* ---- messages that came early ---- */

/* Remember an arrival. *verdict tells the transport what became of it. NULL without memory. */
static dcommi_early *dcommi_early_make(dcommi_transport *transport, const dcommi_header *header,
                                       const dcommi_arrival *arrival, dcommi_verdict *verdict)
{
    *verdict = DCOMMI_CONSUMED;
    dcommi_early *early = dcommi_alloc(sizeof *early);
    if (early == NULL) {
        return NULL;
    }
    early->header = *header;
    early->transport = transport;
    early->len = arrival->len;
    if (arrival->len > 0 && arrival->desc != NULL) {
        early->desc = arrival->desc;
        early->data = (void *)(uintptr_t)arrival->data;
        *verdict = DCOMMI_KEEP;
    } else if (arrival->len > 0) {
        early->data = dcommi_alloc_raw(arrival->len);
        if (early->data == NULL) {
            dcommi_free(early);
            return NULL;
        }
        memcpy(early->data, arrival->data, arrival->len);
    }
    return early;
}

static void dcommi_early_free(dcommi_early *early)
{
    if (early->desc != NULL) {
        early->transport->call->release(early->transport, early->desc);
    } else {
        dcommi_free(early->data);
    }
    dcommi_free(early);
}

static void dcommi_early_keep(dcomm_comm *comm, dcommi_early *early, uint8_t cls)
{
    const dcommi_header *h = &early->header;
    bool of_run = cls == DCOMMI_NODE_EARLY_RUN;
    early->node = dcommi_key(cls, h->stream, h->seq, h->stage, of_run ? 0 : (int32_t)h->src,
                             of_run ? 0 : h->tag);
    dcommi_match_insert(comm, &early->node);
    comm->early_count++;
    comm->early_bytes += early->len;
    if (comm->early_bytes > comm->stats.unexpected_bytes_max) {
        comm->stats.unexpected_bytes_max = comm->early_bytes;
    }
}

/* Forget everything that is still waited for or kept. */
static void dcommi_match_clear(dcomm_comm *comm)
{
    for (int i = 0; i < DCOMMI_BUCKETS; i++) {
        dcommi_match_node **at = &comm->table[i];
        while (*at != NULL) {
            dcommi_match_node *node = *at;
            if (node->cls == DCOMMI_NODE_EARLY || node->cls == DCOMMI_NODE_EARLY_RUN) {
                *at = node->next;
                dcommi_early_free((dcommi_early *)node);
            } else {
                at = &node->next;
            }
        }
    }
    comm->early_bytes = 0;
    comm->early_count = 0;
}

#endif

#include <sys/uio.h>

static inline dcommi_remote *dcommi_peer_of(dcomm_comm *comm, int rank)
{
    return &comm->context->peers[comm->members[rank].peer];
}

/* ---- the life of a move ---- */

static dcommi_move *dcommi_move_new(dcommi_run *run, dcommi_lane *lane)
{
    dcomm_context *context = run->comm->context;
    dcommi_move *move = context->free_moves;
    if (move != NULL) {
        context->free_moves = move->next;
        dcommi_zero(move, offsetof(dcommi_move, src));
    } else {
        move = dcommi_alloc(sizeof *move);
        if (move == NULL) {
            return NULL;
        }
    }
    move->run = run;
    move->lane = lane;
    move->word = -1;
    move->next = run->moves;
    move->prev = &run->moves;
    if (move->next != NULL) {
        move->next->prev = &move->next;
    }
    run->moves = move;
    return move;
}

static void dcommi_move_free(dcommi_move *move)
{
    dcomm_context *context = move->run->comm->context;
    *move->prev = move->next;
    if (move->next != NULL) {
        move->next->prev = move->prev;
    }
    move->next = context->free_moves;
    context->free_moves = move;
}

static void dcommi_run_unref(dcommi_run *run);

static void dcommi_move_in_transport(dcommi_move *move)
{
    move->in_transport = true;
    move->run->comm->in_transport++;
    atomic_fetch_add_explicit(&move->run->refs, 1, memory_order_relaxed);
}

static void dcommi_move_out_of_transport(dcommi_move *move)
{
    move->in_transport = false;
    move->run->comm->in_transport--;
}

static void dcommi_move_complete(dcommi_move *move)
{
    dcommi_lane *lane = move->lane;
    bool async = move->async;
    dcommi_run_event(move->run);
    dcommi_move_free(move);
    if (lane != NULL) {
        dcommi_lane_moved(lane, async);
    }
}

/* ---- reading a peer's memory ---- */

static void dcommi_peer_lost(dcomm_context *context, int peer, const char *why);

/* Copy from the memory of a rank on this host. DCOMM_ERR_UNSUPPORTED: the kernel forbids it.
 * DCOMM_ERR_PEER: its process has ended, and the run may have failed with it. */
static dcomm_status dcommi_read_process(dcomm_comm *comm, int rank, void *dst, uint64_t address,
                                        size_t len)
{
    dcommi_remote *peer = dcommi_peer_of(comm, rank);
    uint8_t *to = dst;
    while (len > 0) {
        struct iovec local = {to, len};
        struct iovec remote = {(void *)(uintptr_t)address, len};
        ssize_t n = process_vm_readv(peer->pid, &local, 1, &remote, 1, 0);
        if (n <= 0) {
            if (n == 0) {
                errno = EFAULT;
            }
            if (errno == ESRCH) {
                dcommi_peer_lost(comm->context, comm->members[rank].peer, "its process has ended");
                return dcommi_fail(DCOMM_ERR_PEER, "the process of rank %d has ended", rank);
            }
            /* A bad address (the peer's buffer is gone, it has failed) says nothing of the next. */
            peer->unreadable = peer->unreadable || errno != EFAULT;
            return DCOMM_ERR_UNSUPPORTED;
        }
        to += n;
        address += (uint64_t)n;
        len -= (size_t)n;
    }
    return DCOMM_OK;
}

static inline bool dcommi_peer_readable(const dcommi_remote *peer)
{
    return peer->same_host && !peer->unreadable;
}

/* Staging memory of the context, at least `len` bytes. */
static uint8_t *dcommi_staging(dcomm_context *context, size_t len)
{
    if (context->staging_len < len) {
        dcommi_free(context->staging);
        context->staging = dcommi_alloc_raw(len);
        context->staging_len = context->staging != NULL ? len : 0;
    }
    return context->staging;
}

/* ---- posting ---- */

/* Give a header with the communicator's facts filled in, and a payload, to the transport. */
static dcomm_status dcommi_post(dcomm_comm *comm, int rank, dcommi_header *header, const void *data,
                                size_t len, dcommi_op *op)
{
    dcommi_member *member = &comm->members[rank];
    dcommi_remote *peer = &comm->context->peers[member->peer];
    if (peer->lost) {
        return dcommi_fail(DCOMM_ERR_PEER, "rank %d is lost: %s", rank, peer->why);
    }
    header->comm = comm->id;
    header->src = (uint32_t)comm->rank;
    header->done = (uint32_t)comm->done;
    member->told = comm->done;
    member->addressed = true;
    dcomm_status status = peer->transport->call->send(peer->transport, member->peer, header,
                                                      sizeof *header, data, len, op);
    return status < 0 ? dcommi_fail(status, "rank %d cannot be sent to: %s", rank, dcommi_message)
                      : status;
}

/* Header fields of a message of a run. */
static inline dcommi_header dcommi_header_of(const dcommi_run *run, uint8_t type, uint32_t tag)
{
    dcommi_header h = {.type = type,
                       .stream = run->stream,
                       .stage = run->stage,
                       .signature = run->signature.hash,
                       .seq = run->seq,
                       .tag = tag};
    return h;
}

typedef struct dcommi_control {
    dcommi_op op;
    dcomm_context *context;
    struct dcommi_control *next; /* in context->free_controls, all without data */
    uint8_t data[];
} dcommi_control;

static void dcommi_control_free(dcommi_control *control, size_t len)
{
    if (len > 0) {
        dcommi_free(control);
    } else {
        control->next = control->context->free_controls;
        control->context->free_controls = control;
    }
}

/* A peer that cannot be told is reported as lost by the transport. */
static void dcommi_control_done(dcommi_op *op, dcomm_status status)
{
    (void)status;
    dcommi_control_free((dcommi_control *)op, 0);
}

static void dcommi_text_done(dcommi_op *op, dcomm_status status)
{
    (void)status;
    dcommi_control_free((dcommi_control *)op, 1);
}

/* Send a control message; its payload is copied. */
static dcomm_status dcommi_send_header(dcomm_comm *comm, int rank, dcommi_header *header,
                                       const void *data, size_t len)
{
    dcommi_control *control = len == 0 ? comm->context->free_controls : NULL;
    if (control != NULL) {
        comm->context->free_controls = control->next;
    } else {
        control = dcommi_alloc_raw(sizeof *control + len);
        if (control == NULL) {
            return DCOMM_ERR_NO_MEMORY;
        }
        control->context = comm->context;
    }
    control->op.handle = NULL;
    control->op.done = len == 0 ? dcommi_control_done : dcommi_text_done;
    if (len > 0) {
        memcpy(control->data, data, len);
    }
    dcomm_status status =
        dcommi_post(comm, rank, header, len > 0 ? control->data : NULL, len, &control->op);
    if (status != DCOMM_IN_PROGRESS) {
        dcommi_control_free(control, len);
    }
    return status < 0 ? status : DCOMM_OK;
}

/* ---- sending ---- */

/* The transport could not do what a move needs of its peer. */
static void dcommi_move_failed(const dcommi_move *move, dcomm_status status, const char *doing)
{
    char text[DCOMMI_MESSAGE_MAX];
    int rank = move->node.peer;
    snprintf(text, sizeof text, "%s rank %d (process %d) failed: %s", doing, rank,
             (int)dcommi_peer_of(move->run->comm, rank)->pid, dcomm_strerror(status));
    dcommi_poison(move->run->comm, status == DCOMM_ERR_PEER ? DCOMM_ERR_PEER : DCOMM_ERR_TRANSPORT,
                  -1, text);
}

static void dcommi_sent(dcommi_op *op, dcomm_status status)
{
    dcommi_move *move = (dcommi_move *)op;
    dcommi_run *run = move->run;
    bool live = run->active;
    if (live && status < 0) {
        dcommi_move_failed(move, status, "sending to");
        live = false; /* poisoning has finished the run and orphaned the move */
    }
    dcommi_move_out_of_transport(move);
    if (live) {
        dcommi_move_complete(move);
    } else {
        dcommi_move_free(move);
    }
    dcommi_run_unref(run);
}

/* Start a send. DCOMM_OK: over at once; DCOMM_IN_PROGRESS: the lane will hear. */
static dcomm_status dcommi_send_start(dcommi_lane *lane, int rank, uint32_t tag, const void *data,
                                      size_t len, bool async)
{
    dcommi_run *run = lane->frame->run;
    dcomm_comm *comm = run->comm;
    dcommi_remote *peer = dcommi_peer_of(comm, rank);
    dcommi_move *move = dcommi_move_new(run, lane);
    if (move == NULL) {
        return DCOMM_ERR_NO_MEMORY;
    }
    move->op.done = dcommi_sent;
    move->kind = DCOMMI_MOVE_SEND;
    move->async = async;
    move->buf = (uint8_t *)(uintptr_t)data;
    move->len = len;
    move->node = dcommi_key(DCOMMI_NODE_SENT, run->stream, run->seq, run->stage, rank, tag);
    comm->stats.messages_sent++;
    comm->stats.bytes_sent += len;

    dcommi_header header = dcommi_header_of(run, DCOMMI_MSG_DATA, tag);
    if (peer->same_host && len > DCOMMI_RTS_BYTES && !peer->cannot_read_us) {
        header.type = DCOMMI_MSG_RTS;
        header.a = (uint64_t)(uintptr_t)data;
        header.b = len;
        dcommi_match_insert(comm, &move->node);
        dcomm_status status = dcommi_send_header(comm, rank, &header, NULL, 0);
        if (status < 0) {
            dcommi_match_remove(comm, &move->node);
            dcommi_move_free(move);
            return status;
        }
        return DCOMM_IN_PROGRESS;
    }
    header.a = len;
    dcomm_status status = dcommi_post(comm, rank, &header, data, len, &move->op);
    if (status == DCOMM_IN_PROGRESS) {
        dcommi_move_in_transport(move);
    } else {
        dcommi_move_free(move);
    }
    return status;
}

/* FIN or PULL for one of our RTS. */
static void dcommi_on_answer(dcomm_comm *comm, const dcommi_header *h)
{
    dcommi_match_node key =
        dcommi_key(DCOMMI_NODE_SENT, h->stream, h->seq, h->stage, (int32_t)h->src, h->tag);
    dcommi_match_node *node = dcommi_match_take(comm, &key);
    if (node == NULL) {
        return; /* of a run that failed meanwhile */
    }
    dcommi_move *move = (dcommi_move *)((char *)node - offsetof(dcommi_move, node));
    if (h->type == DCOMMI_MSG_FIN) {
        dcommi_move_complete(move);
        return;
    }
    dcommi_peer_of(comm, (int)h->src)->cannot_read_us = true;
    dcommi_header header = dcommi_header_of(move->run, DCOMMI_MSG_DATA, h->tag);
    header.stage = h->stage;
    header.a = move->len;
    dcomm_status status = dcommi_post(comm, (int)h->src, &header, move->buf, move->len, &move->op);
    if (status == DCOMM_OK) {
        dcommi_move_complete(move);
    } else if (status == DCOMM_IN_PROGRESS) {
        dcommi_move_in_transport(move);
    } else {
        dcommi_poison(comm, status, -1, dcommi_message);
    }
}

/* ---- receiving ---- */

static dcomm_status dcommi_fold(dcommi_move *move, const void *message, size_t offset, size_t len)
{
    const dcomm_plan *plan = move->lane->frame->plan;
    const void *src[DCOMMI_FOLD_MAX];
    for (int i = 0; i < move->nsrc; i++) {
        src[i] = i == move->msg_at ? message : (const uint8_t *)move->src[i] + offset;
    }
    size_t element = dcomm_dtype_size((dcomm_dtype)plan->dtype);
    return dcommi_host_reduce(move->dst + offset, src, move->nsrc, len / element,
                              (dcomm_dtype)plan->dtype, (dcomm_op)plan->op,
                              move->final && plan->op == DCOMM_AVG ? move->run->plan->nranks : 1);
}

/* The payload has come: fold it, or it is where it belongs. */
static void dcommi_received(dcommi_move *move, const void *message, size_t len)
{
    dcomm_status status = DCOMM_OK;
    if (move->kind == DCOMMI_MOVE_FOLD) {
        status = dcommi_fold(move, message, 0, len);
    } else if (message != move->buf && len > 0) {
        memcpy(move->buf, message, len);
    }
    if (move->word >= 0) {
        move->lane->frame->words[move->word] = len;
    }
    if (status < 0) {
        dcommi_poison(move->run->comm, status, -1, dcommi_message);
        return;
    }
    dcommi_move_complete(move);
}

static void dcommi_fetched(dcommi_op *op, dcomm_status status)
{
    dcommi_move *move = (dcommi_move *)op;
    dcommi_run *run = move->run;
    bool live = run->active;
    dcommi_move_out_of_transport(move);
    if (live && status < 0) {
        dcommi_move_failed(move, status, "receiving from");
    } else if (live) {
        dcommi_received(move, move->buf, move->arrived);
    } else {
        dcommi_move_free(move);
    }
    dcommi_run_unref(run);
}

/* Whether reading may be left to messages: not once a part has been folded, which would count it
 * twice where the result lies on an operand. */
static dcomm_status dcommi_read_part(dcomm_status status, size_t at, int rank)
{
    return status == DCOMM_ERR_UNSUPPORTED && at > 0
               ? dcommi_fail(DCOMM_ERR_SYSTEM, "memory of rank %d ends within a message", rank)
               : status;
}

/* Read what an RTS offers, folding it block by block while it is in cache. */
static dcomm_status dcommi_read_offer(dcommi_move *move, uint64_t address, size_t len)
{
    dcomm_comm *comm = move->run->comm;
    dcommi_remote *peer = dcommi_peer_of(comm, move->node.peer);
    if (!dcommi_peer_readable(peer)) {
        return DCOMM_ERR_UNSUPPORTED;
    }
    if (move->kind == DCOMMI_MOVE_RECV) {
        return dcommi_read_process(comm, move->node.peer, move->buf, address, len);
    }
    uint8_t *staging = dcommi_staging(comm->context, DCOMMI_PULL_BLOCK);
    if (staging == NULL) {
        return DCOMM_ERR_NO_MEMORY;
    }
    for (size_t at = 0; at < len; at += DCOMMI_PULL_BLOCK) {
        size_t n = len - at < DCOMMI_PULL_BLOCK ? len - at : DCOMMI_PULL_BLOCK;
        DCOMMI_TRY(
            dcommi_read_part(dcommi_read_process(comm, move->node.peer, staging, address + at, n),
                             at, move->node.peer));
        DCOMMI_TRY(dcommi_fold(move, staging, at, n));
    }
    return DCOMM_OK;
}

/* A message meets its receive. Returns what becomes of the arrival. */
static dcommi_verdict dcommi_deliver(dcommi_move *move, const dcommi_header *h,
                                     dcommi_transport *transport, const void *data, void *desc)
{
    dcommi_run *run = move->run;
    dcomm_comm *comm = run->comm;
    size_t len = h->type == DCOMMI_MSG_RTS ? h->b : h->a;
    if (h->signature != run->signature.hash) {
        dcommi_suspect_mismatch(comm, run, h, len);
        if (run->active) {
            dcommi_match_insert(comm, &move->node);
        }
        return DCOMMI_CONSUMED;
    }
    bool exact = move->word < 0;
    if (len > move->len || (exact && len != move->len)) {
        char text[DCOMMI_MESSAGE_MAX];
        snprintf(text, sizeof text,
                 "%s #%" PRIu64 ": rank %d sent %zu bytes to rank %d, which expected %s%zu",
                 dcomm_coll_name((dcomm_coll)run->signature.coll), run->seq, (int)h->src, len,
                 comm->rank, exact ? "" : "at most ", move->len);
        dcommi_poison(comm, DCOMM_ERR_MISMATCH, -1, text);
        return DCOMMI_CONSUMED;
    }
    move->arrived = len;
    if (h->type == DCOMMI_MSG_RTS) {
        dcommi_header answer = dcommi_header_of(run, DCOMMI_MSG_FIN, h->tag);
        answer.stage = h->stage;
        dcomm_status status = dcommi_read_offer(move, h->a, len);
        if (status == DCOMM_ERR_UNSUPPORTED) {
            answer.type = DCOMMI_MSG_PULL;
            dcommi_match_insert(comm, &move->node); /* the same receive now waits for DATA */
            status = DCOMM_OK;
        }
        if (status == DCOMM_OK) {
            status = dcommi_send_header(comm, (int)h->src, &answer, NULL, 0);
        }
        if (status < 0) {
            char text[DCOMMI_MESSAGE_MAX + 64];
            snprintf(text, sizeof text, "reading from rank %d failed: %s", (int)h->src,
                     dcommi_message);
            dcommi_poison(comm, status, -1, text);
        } else if (answer.type == DCOMMI_MSG_FIN) {
            if (move->word >= 0) {
                move->lane->frame->words[move->word] = len;
            }
            dcommi_move_complete(move);
        }
        return DCOMMI_CONSUMED;
    }
    if (data != NULL || len == 0) {
        dcommi_received(move, data, len);
        return DCOMMI_CONSUMED;
    }
    move->op.done = dcommi_fetched;
    dcommi_move_in_transport(move);
    dcomm_status status = transport->call->fetch(transport, desc, move->buf, len, &move->op);
    if (status == DCOMM_OK) {
        dcommi_fetched(&move->op, DCOMM_OK);
    } else if (status < 0) {
        dcommi_fetched(&move->op, status);
    }
    return DCOMMI_KEEP;
}

/* Post the receive of a filled-in move: it may have come already. */
static void dcommi_recv_post(dcommi_move *move, int rank, uint32_t tag)
{
    dcommi_run *run = move->run;
    dcomm_comm *comm = run->comm;
    move->node = dcommi_key(DCOMMI_NODE_POSTED, run->stream, run->seq, run->stage, rank, tag);
    if (comm->early_count > 0) {
        dcommi_match_node key = move->node;
        key.cls = DCOMMI_NODE_EARLY;
        dcommi_match_node *node = dcommi_match_take(comm, &key);
        if (node != NULL) {
            dcommi_early *early = (dcommi_early *)node;
            comm->early_bytes -= early->len;
            comm->early_count--;
            dcommi_run_event(run);
            dcommi_verdict verdict =
                dcommi_deliver(move, &early->header, early->transport, early->data, early->desc);
            if (verdict == DCOMMI_KEEP) {
                early->desc = NULL; /* the fetch has taken it */
                early->data = NULL;
            }
            dcommi_early_free(early);
            return;
        }
    }
    dcommi_match_insert(comm, &move->node);
}

#endif

/* One source of the fold: our own memory, or a rank's. */
typedef struct dcommi_piece {
    const uint8_t *local; /* NULL: the rank's */
    int rank;
    uint16_t slot;
    uint64_t address; /* in that rank's process */
    uint64_t offset;  /* in what it exposed */
} dcommi_piece;

/* A step under way that reads at least one peer by message. */
struct dcommi_pull {
    struct dcommi_pull *next; /* in run->pulls, which owns it */
    dcommi_lane *lane;
    dcommi_run *run;
    bool async, final, fold;
    uint8_t *dst;
    size_t len, at, block; /* at: start of the block whose pieces are under way */
    size_t npieces;
    unsigned outstanding;
    uint8_t *staging; /* one block per piece; NULL when reading straight into dst */
    dcommi_piece *pieces;
};

static void dcommi_pull_block(dcommi_pull *pull);

static void dcommi_pull_free(dcommi_pull *pull)
{
    for (dcommi_pull **at = &pull->run->pulls; *at != NULL; at = &(*at)->next) {
        if (*at == pull) {
            *at = pull->next;
            break;
        }
    }
    dcommi_free(pull->staging);
    dcommi_free(pull->pieces);
    dcommi_free(pull);
}

static dcomm_status dcommi_fold_pieces(dcommi_lane *lane, uint8_t *dst, const void *const *src,
                                       size_t nsrc, size_t len, bool final)
{
    const dcomm_plan *plan = lane->frame->plan;
    size_t element = dcomm_dtype_size((dcomm_dtype)plan->dtype);
    return dcommi_host_reduce(dst, src, nsrc, len / element, (dcomm_dtype)plan->dtype,
                              (dcomm_op)plan->op,
                              final && plan->op == DCOMM_AVG ? lane->frame->run->plan->nranks : 1);
}

/* Bytes of a block such that the blocks of all pieces stay in cache. */
static size_t dcommi_pull_grain(size_t npieces)
{
    size_t grain = (size_t)8 * DCOMMI_PULL_BLOCK / (npieces > 0 ? npieces : 1);
    grain = grain > DCOMMI_PULL_BLOCK ? DCOMMI_PULL_BLOCK : grain;
    return grain < 4096 ? 4096 : grain & ~(size_t)63;
}

/* Fold from memory that can all be read directly. DCOMM_ERR_UNSUPPORTED: some of it can not. */
static dcomm_status dcommi_pull_direct(dcommi_lane *lane, uint8_t *dst, const dcommi_piece *pieces,
                                       size_t n, size_t len, bool final)
{
    dcomm_comm *comm = lane->frame->run->comm;
    size_t grain = dcommi_pull_grain(n);
    uint8_t *staging = dcommi_staging(comm->context, n * grain);
    if (staging == NULL) {
        return DCOMM_ERR_NO_MEMORY;
    }
    const void **src = comm->context->pointers;
    for (size_t at = 0; at < len; at += grain) {
        size_t part = len - at < grain ? len - at : grain;
        for (size_t i = 0; i < n; i++) {
            if (pieces[i].local != NULL) {
                src[i] = pieces[i].local + at;
                continue;
            }
            uint8_t *block = staging + i * grain;
            DCOMMI_TRY(dcommi_read_part(
                dcommi_read_process(comm, pieces[i].rank, block, pieces[i].address + at, part), at,
                pieces[i].rank));
            src[i] = block;
        }
        DCOMMI_TRY(dcommi_fold_pieces(lane, dst + at, src, n, part, final));
    }
    return DCOMM_OK;
}

/* The block's pieces are all here. */
static void dcommi_pull_ready(dcommi_pull *pull)
{
    dcomm_status status = DCOMM_OK;
    if (pull->fold) {
        size_t part = dcommi_min64((int64_t)(pull->len - pull->at), (int64_t)pull->block);
        const void **src = dcommi_calloc(pull->npieces, sizeof *src);
        status = src == NULL ? DCOMM_ERR_NO_MEMORY : DCOMM_OK;
        for (size_t i = 0; src != NULL && i < pull->npieces; i++) {
            src[i] = pull->pieces[i].local != NULL ? pull->pieces[i].local + pull->at
                                                   : pull->staging + i * pull->block;
        }
        if (src != NULL) {
            status = dcommi_fold_pieces(pull->lane, pull->dst + pull->at, src, pull->npieces, part,
                                        pull->final);
        }
        dcommi_free((void *)src);
    }
    if (status < 0) {
        dcommi_poison(pull->run->comm, status, -1, dcommi_message);
        return;
    }
    pull->at += pull->block;
    dcommi_pull_block(pull);
}

static void dcommi_pull_arrived(dcommi_move *move)
{
    dcommi_pull *pull = move->pull;
    dcommi_run_event(move->run);
    dcommi_move_free(move);
    if (--pull->outstanding == 0) {
        dcommi_pull_ready(pull);
    }
}

/* Ask for every piece of the next block, or finish. */
static void dcommi_pull_block(dcommi_pull *pull)
{
    dcommi_run *run = pull->run;
    if (pull->at >= pull->len) {
        dcommi_lane *lane = pull->lane;
        bool async = pull->async;
        dcommi_pull_free(pull);
        dcommi_lane_moved(lane, async);
        return;
    }
    size_t part = dcommi_min64((int64_t)(pull->len - pull->at), (int64_t)pull->block);
    pull->outstanding = 1; /* keeps the block open while its reads are sent */
    for (size_t i = 0; i < pull->npieces; i++) {
        const dcommi_piece *piece = &pull->pieces[i];
        if (piece->local != NULL) {
            continue;
        }
        dcommi_move *move = dcommi_move_new(run, pull->lane);
        if (move == NULL) {
            dcommi_poison(run->comm, DCOMM_ERR_NO_MEMORY, -1, dcommi_message);
            return;
        }
        move->pull = pull;
        move->buf = pull->staging != NULL ? pull->staging + i * pull->block : pull->dst + pull->at;
        move->len = part;
        pull->outstanding++;
        uint32_t id = run->next_pull++;
        move->node =
            dcommi_key(DCOMMI_NODE_PULL, run->stream, run->seq, run->stage, piece->rank, id);
        dcommi_match_insert(run->comm, &move->node);
        dcommi_header header = dcommi_header_of(run, DCOMMI_MSG_READ, id);
        header.slot = piece->slot;
        header.a = piece->offset + pull->at;
        header.b = part;
        run->comm->stats.bytes_read += part;
        dcomm_status status = dcommi_send_header(run->comm, piece->rank, &header, NULL, 0);
        if (status < 0) {
            dcommi_poison(run->comm, status, -1, dcommi_message);
            return;
        }
    }
    if (--pull->outstanding == 0) {
        dcommi_pull_ready(pull);
    }
}

/* Start dst <- fold(pieces), or dst <- pieces[0] without `fold`. */
static dcomm_status dcommi_pull_start(dcommi_lane *lane, uint8_t *dst, dcommi_piece *pieces,
                                      size_t n, size_t len, bool fold, bool final, bool async)
{
    dcommi_run *run = lane->frame->run;
    dcomm_comm *comm = run->comm;
    bool direct = true;
    for (size_t i = 0; i < n; i++) {
        direct = direct && (pieces[i].local != NULL ||
                            dcommi_peer_readable(dcommi_peer_of(comm, pieces[i].rank)));
    }
    if (direct) {
        dcomm_status status =
            fold ? dcommi_pull_direct(lane, dst, pieces, n, len, final)
                 : dcommi_read_process(comm, pieces[0].rank, dst, pieces[0].address, len);
        if (status != DCOMM_ERR_UNSUPPORTED) {
            for (size_t i = 0; i < n; i++) {
                comm->stats.bytes_read += pieces[i].local == NULL ? len : 0;
            }
            return status;
        }
    }
    dcommi_pull *pull = dcommi_alloc(sizeof *pull);
    if (pull == NULL) {
        return DCOMM_ERR_NO_MEMORY;
    }
    pull->lane = lane;
    pull->run = run;
    pull->async = async;
    pull->final = final;
    pull->fold = fold;
    pull->dst = dst;
    pull->len = len;
    pull->npieces = n;
    pull->block = fold ? dcommi_pull_grain(n) * 4 : (size_t)8 * DCOMMI_PULL_BLOCK;
    pull->pieces = dcommi_calloc(n, sizeof *pieces);
    pull->staging = fold ? dcommi_alloc_raw(n * pull->block) : NULL;
    if (pull->pieces == NULL || (fold && pull->staging == NULL)) {
        dcommi_pull_free(pull);
        return DCOMM_ERR_NO_MEMORY;
    }
    memcpy(pull->pieces, pieces, n * sizeof *pieces);
    pull->next = run->pulls;
    run->pulls = pull;
    dcommi_pull_block(pull);
    return DCOMM_IN_PROGRESS;
}

/* ---- the other side ---- */

static void dcommi_reply_sent(dcommi_op *op, dcomm_status status)
{
    dcommi_move *move = (dcommi_move *)op;
    dcommi_run *run = move->run;
    (void)status; /* the reader that cannot be reached is reported as lost */
    dcommi_move_out_of_transport(move);
    dcommi_move_free(move);
    dcommi_run_unref(run);
}

/* A peer asks for a part of what `run` exposed. */
static void dcommi_on_read(dcomm_comm *comm, dcommi_run *run, const dcommi_header *h)
{
    if (h->slot >= run->plan->nslots || run->offers == NULL || run->offers[h->slot].base == NULL ||
        h->a > (uint64_t)run->offers[h->slot].len ||
        h->b > (uint64_t)run->offers[h->slot].len - h->a) {
        char text[DCOMMI_MESSAGE_MAX];
        snprintf(text, sizeof text,
                 "rank %d asked for bytes %" PRIu64 "+%" PRIu64 " of slot %d, which rank %d has "
                 "not exposed",
                 (int)h->src, h->a, h->b, (int)h->slot, comm->rank);
        dcommi_poison(comm, DCOMM_ERR_CORRUPT, -1, text);
        return;
    }
    dcommi_move *move = dcommi_move_new(run, NULL);
    if (move == NULL) {
        dcommi_poison(comm, DCOMM_ERR_NO_MEMORY, -1, dcommi_message);
        return;
    }
    move->op.done = dcommi_reply_sent;
    move->kind = DCOMMI_MOVE_REPLY;
    dcommi_header reply = dcommi_header_of(run, DCOMMI_MSG_READ_REPLY, h->tag);
    reply.a = h->b;
    comm->stats.bytes_sent += h->b;
    dcommi_move_in_transport(move);
    dcomm_status status =
        dcommi_post(comm, (int)h->src, &reply, run->offers[h->slot].base + h->a, h->b, &move->op);
    if (status != DCOMM_IN_PROGRESS) {
        dcommi_reply_sent(&move->op, status);
        if (status < 0) {
            dcommi_poison(comm, status, -1, dcommi_message);
        }
    }
}

static void dcommi_reply_fetched(dcommi_op *op, dcomm_status status)
{
    dcommi_move *move = (dcommi_move *)op;
    dcommi_run *run = move->run;
    bool live = run->active;
    dcommi_move_out_of_transport(move);
    if (live && status < 0) {
        dcommi_move_failed(move, status, "reading memory of");
    } else if (live) {
        dcommi_pull_arrived(move);
    } else {
        dcommi_move_free(move);
    }
    dcommi_run_unref(run);
}

static dcommi_verdict dcommi_on_read_reply(dcomm_comm *comm, const dcommi_header *h,
                                           dcommi_transport *transport, const void *data,
                                           void *desc)
{
    dcommi_match_node key =
        dcommi_key(DCOMMI_NODE_PULL, h->stream, h->seq, h->stage, (int32_t)h->src, h->tag);
    dcommi_match_node *node = dcommi_match_take(comm, &key);
    if (node == NULL) {
        return DCOMMI_CONSUMED; /* of a run that failed meanwhile */
    }
    dcommi_move *move = (dcommi_move *)((char *)node - offsetof(dcommi_move, node));
    if (h->a != move->len) {
        char text[DCOMMI_MESSAGE_MAX];
        snprintf(text, sizeof text, "rank %d answered %" PRIu64 " bytes where %zu were asked for",
                 (int)h->src, h->a, move->len);
        dcommi_poison(comm, DCOMM_ERR_CORRUPT, -1, text);
        return DCOMMI_CONSUMED;
    }
    if (data != NULL) {
        memcpy(move->buf, data, move->len);
        dcommi_pull_arrived(move);
        return DCOMMI_CONSUMED;
    }
    move->op.done = dcommi_reply_fetched;
    dcommi_move_in_transport(move);
    dcomm_status status = transport->call->fetch(transport, desc, move->buf, move->len, &move->op);
    if (status != DCOMM_IN_PROGRESS) {
        dcommi_reply_fetched(&move->op, status);
    }
    return DCOMMI_KEEP;
}

#endif

static void dcommi_lane_ready(dcommi_lane *lane)
{
    if (lane->state == DCOMMI_LANE_DONE || lane->queued) {
        return;
    }
    dcomm_context *context = lane->frame->run->comm->context;
    lane->state = DCOMMI_LANE_READY;
    lane->queued = true;
    lane->next_ready = NULL;
    if (context->ready_last != NULL) {
        context->ready_last->next_ready = lane;
    } else {
        context->ready_first = lane;
    }
    context->ready_last = lane;
}

/* A move of the lane is complete. */
static void dcommi_lane_moved(dcommi_lane *lane, bool async)
{
    if (async) {
        lane->pending--;
    }
    if (async ? lane->state == DCOMMI_LANE_FENCE && lane->pending == 0
              : lane->state == DCOMMI_LANE_MOVE) {
        dcommi_lane_ready(lane);
    }
}

static inline void dcommi_run_event(dcommi_run *run)
{
    run->events++;
}

/* ---- resolving ---- */

/* Rank of the communicator that rank r of a frame's plan is; -1 when there is none. */
static int dcommi_frame_rank(const dcommi_frame *frame, int64_t r)
{
    while (frame != NULL) {
        if (r < 0 || r >= frame->plan->nranks) {
            return -1;
        }
        if (frame->group != NULL) {
            r = frame->group[r];
        }
        frame = frame->parent;
    }
    return (int)r;
}

static inline int64_t dcommi_lane_value(const dcommi_lane *lane, const dcomm_expr *e)
{
    return dcommi_expr_value(e, lane->index, lane->frame->plan->table, lane->frame->words);
}

/* Memory of piece r of an operand in a space of our own; NULL when it lies outside. */
static uint8_t *dcommi_lane_piece(const dcommi_lane *lane, const dcomm_operand *o, uint32_t r,
                                  size_t *len)
{
    const dcommi_frame *frame = lane->frame;
    int64_t offset, length;
    dcommi_operand_piece(o, r, lane->index, frame->plan->table, frame->words, &offset, &length);
    *len = (size_t)length;
    if (length == 0) {
        return (uint8_t *)lane; /* any address: nothing is read or written */
    }
    if (o->space == DCOMM_SPACE_WORDS) {
        int64_t limit = (int64_t)frame->plan->nwords * 8;
        return offset < 0 || offset > limit - length ? NULL : (uint8_t *)frame->words + offset;
    }
    if (o->space > DCOMM_SPACE_STATE || frame->space[o->space] == NULL || offset < 0 ||
        offset > frame->space_len[o->space] - length) {
        return NULL;
    }
    return frame->space[o->space] + offset;
}

/* ---- frames ---- */

static void dcommi_frame_bind(dcommi_frame *frame, dcommi_run *run, const dcomm_plan *plan,
                              dcommi_lane *lanes)
{
    frame->run = run;
    frame->plan = plan;
    frame->lanes = lanes;
    frame->lanes_left = plan->nlanes;
    for (uint32_t i = 0; i < plan->nlanes; i++) {
        dcommi_lane *lane = &lanes[i];
        dcommi_zero(lane, sizeof *lane);
        lane->frame = frame;
        lane->steps = plan->steps + plan->lanes[i].first;
        lane->count = plan->lanes[i].count;
    }
}

static void dcommi_frame_start(dcommi_frame *frame)
{
    for (uint32_t i = 0; i < frame->plan->nlanes; i++) {
        dcommi_lane_ready(&frame->lanes[i]);
    }
}

static void dcommi_stage_done(dcommi_run *run);

static void dcommi_frame_done(dcommi_frame *frame)
{
    dcommi_run *run = frame->run;
    dcommi_lane *caller = frame->caller;
    if (caller == NULL) {
        dcommi_stage_done(run);
        return;
    }
    for (dcommi_frame **at = &run->children; *at != NULL; at = &(*at)->next) {
        if (*at == frame) {
            *at = frame->next;
            break;
        }
    }
    const uint8_t *scratch = frame->space[DCOMM_SPACE_SCRATCH];
    for (uint32_t i = 0; i < run->plan->nslots; i++) { /* nobody reads memory that is gone */
        const uint8_t *base = run->offers[i].base;
        if (base >= scratch && base < scratch + frame->space_len[DCOMM_SPACE_SCRATCH]) {
            run->offers[i].base = NULL;
        }
    }
    dcommi_free(frame);
    dcommi_lane_ready(caller);
}

#endif

enum dcommi_outcome {
    DCOMMI_NEXT,  /* complete */
    DCOMMI_STOP,  /* the lane waits and goes on behind this step */
    DCOMMI_RETRY, /* the lane waits and runs this step again */
    DCOMMI_GONE   /* the run has failed */
};

static enum dcommi_outcome DCOMMI_PRINTF(3, 4)
    dcommi_step_error(dcommi_lane *lane, dcomm_status status, const char *format, ...)
{
    dcommi_run *run = lane->frame->run;
    char what[256], text[DCOMMI_MESSAGE_MAX];
    va_list args;
    va_start(args, format);
    vsnprintf(what, sizeof what, format, args);
    va_end(args);
    snprintf(text, sizeof text, "%s #%" PRIu64 " (%s), rank %d, lane %d, step %u: %s",
             dcomm_coll_name((dcomm_coll)run->signature.coll), run->seq, lane->frame->plan->name,
             run->comm->rank, (int)(lane - lane->frame->lanes), lane->pc, what);
    dcommi_poison(run->comm, status, -1, text);
    return DCOMMI_GONE;
}

/* Whether the word that a step writes to is one of the plan's. */
static inline bool dcommi_word_fits(const dcommi_lane *lane, const dcomm_step *step)
{
    return step->word < 0 || (uint32_t)step->word < lane->frame->plan->nwords;
}

static enum dcommi_outcome dcommi_outside(dcommi_lane *lane, const char *what)
{
    return dcommi_step_error(lane, DCOMM_ERR_PLAN, "%s lies outside its space", what);
}

/* What follows a move that was started. */
static enum dcommi_outcome dcommi_moving(dcommi_lane *lane, dcomm_status status, bool async)
{
    if (status < 0) {
        return lane->frame->run->active ? dcommi_step_error(lane, status, "%s", dcommi_message)
                                        : DCOMMI_GONE;
    }
    if (status == DCOMM_OK) {
        return DCOMMI_NEXT;
    }
    if (async) {
        lane->pending++;
        return DCOMMI_NEXT;
    }
    lane->state = DCOMMI_LANE_MOVE;
    return DCOMMI_STOP;
}

/* Whether this run may still send to a rank, or is too far ahead of it. */
static bool dcommi_has_credit(dcommi_lane *lane, int rank)
{
    dcommi_run *run = lane->frame->run;
    dcommi_member *member = &run->comm->members[rank];
    uint64_t done = run->stream == DCOMMI_STREAM_COLL ? member->done : member->p2p_done;
    if (DCOMMI_LIKELY(run->seq < done + DCOMMI_WINDOW)) {
        return true;
    }
    if (!member->asked) {
        dcommi_header header = {.type = DCOMMI_MSG_CREDIT, .stream = run->stream, .b = 1};
        member->asked = dcommi_send_header(run->comm, rank, &header, NULL, 0) == DCOMM_OK;
    }
    lane->state = DCOMMI_LANE_CREDIT;
    lane->peer = rank;
    return false;
}

static enum dcommi_outcome dcommi_step_send(dcommi_lane *lane, const dcomm_step *step)
{
    dcommi_frame *frame = lane->frame;
    int rank = dcommi_frame_rank(frame, dcommi_lane_value(lane, &step->peer));
    if (rank < 0 || rank == frame->run->comm->rank) {
        return dcommi_step_error(lane, DCOMM_ERR_PLAN, "sends to rank %d", rank);
    }
    if (!dcommi_has_credit(lane, rank)) {
        return DCOMMI_RETRY;
    }
    size_t len;
    const uint8_t *data = dcommi_lane_piece(lane, &frame->plan->operands[step->src], 0, &len);
    if (data == NULL) {
        return dcommi_outside(lane, "source");
    }
    uint32_t tag = (uint32_t)(frame->tag_base + dcommi_lane_value(lane, &step->tag));
    bool async = step->flags & DCOMM_STEP_ASYNC;
    return dcommi_moving(lane, dcommi_send_start(lane, rank, tag, data, len, async), async);
}

static enum dcommi_outcome dcommi_step_recv(dcommi_lane *lane, const dcomm_step *step)
{
    dcommi_frame *frame = lane->frame;
    dcommi_run *run = frame->run;
    int rank = dcommi_frame_rank(frame, dcommi_lane_value(lane, &step->peer));
    if (rank < 0 || rank == run->comm->rank) {
        return dcommi_step_error(lane, DCOMM_ERR_PLAN, "receives from rank %d", rank);
    }
    size_t len;
    uint8_t *dst = dcommi_lane_piece(lane, &step->dst, 0, &len);
    if (dst == NULL || !dcommi_word_fits(lane, step)) {
        return dcommi_outside(lane, dst == NULL ? "destination" : "word");
    }
    dcommi_move *move = dcommi_move_new(run, lane);
    if (move == NULL) {
        return dcommi_step_error(lane, DCOMM_ERR_NO_MEMORY, "%s", dcommi_message);
    }
    move->async = step->flags & DCOMM_STEP_ASYNC;
    move->final = step->flags & DCOMM_STEP_FINAL;
    move->kind = DCOMMI_MOVE_RECV;
    move->buf = dst;
    move->dst = dst;
    move->len = len;
    move->word = step->word;
    if (step->kind == DCOMM_STEP_RECV_REDUCE) {
        move->kind = DCOMMI_MOVE_FOLD;
        for (uint32_t i = 0; i < step->nsrc && i < DCOMMI_FOLD_MAX; i++) {
            const dcomm_operand *o = &frame->plan->operands[step->src + i];
            size_t n = len;
            move->src[i] = NULL;
            if (o->space == DCOMM_SPACE_MSG) {
                move->msg_at = (uint8_t)i;
            } else if ((move->src[i] = dcommi_lane_piece(lane, o, 0, &n)) == NULL || n != len) {
                return dcommi_outside(lane, "source");
            }
        }
        move->nsrc = (uint8_t)step->nsrc;
        size_t room;
        move->buf = dcommi_lane_piece(lane, &step->stage, 0, &room);
        if (step->nsrc > DCOMMI_FOLD_MAX || move->buf == NULL || room < len) {
            return dcommi_outside(lane, "stage");
        }
    }
    /* The move may complete within the post, so the lane must already look as if it waited. */
    bool async = move->async;
    uint32_t tag = (uint32_t)(frame->tag_base + dcommi_lane_value(lane, &step->tag));
    if (async) {
        lane->pending++;
    } else {
        lane->state = DCOMMI_LANE_MOVE;
    }
    dcommi_recv_post(move, rank, tag);
    if (!run->active) {
        return DCOMMI_GONE;
    }
    return async ? DCOMMI_NEXT : DCOMMI_STOP;
}

/* The exposed memory that a PEER piece means; NULL: the lane waits for it, or failed. */
static const dcommi_exposed *dcommi_lane_exposed(dcommi_lane *lane, int rank, uint32_t slot)
{
    dcommi_run *run = lane->frame->run;
    dcommi_match_node key =
        dcommi_key(DCOMMI_NODE_EXPOSED, run->stream, run->seq, run->stage, rank, slot);
    const dcommi_exposed *e = (const dcommi_exposed *)dcommi_match_find(run->comm, &key);
    if (e == NULL) {
        lane->state = DCOMMI_LANE_EXPOSE;
        lane->peer = rank;
    }
    return e;
}

/* Turn the operands of a COPY or REDUCE into pieces. */
static enum dcommi_outcome dcommi_lane_pieces(dcommi_lane *lane, const dcomm_step *step, size_t len,
                                              dcommi_piece *pieces)
{
    dcommi_frame *frame = lane->frame;
    size_t at = 0;
    for (uint32_t i = 0; i < step->nsrc; i++) {
        const dcomm_operand *o = &frame->plan->operands[step->src + i];
        uint32_t repeat = o->repeat > 1 ? o->repeat : 1;
        int64_t first = o->space == DCOMM_SPACE_PEER ? dcommi_lane_value(lane, &o->peer) : 0;
        for (uint32_t r = 0; r < repeat; r++, at++) {
            dcommi_piece *piece = &pieces[at];
            memset(piece, 0, sizeof *piece);
            size_t n;
            if (o->space != DCOMM_SPACE_PEER) {
                piece->local = dcommi_lane_piece(lane, o, r, &n);
                if (piece->local == NULL || n != len) {
                    return dcommi_outside(lane, "source");
                }
                continue;
            }
            int64_t offset, length;
            dcommi_operand_piece(o, r, lane->index, frame->plan->table, frame->words, &offset,
                                 &length);
            int rank = dcommi_frame_rank(frame, (first + r) % frame->plan->nranks);
            if (rank < 0 || rank == frame->run->comm->rank) {
                return dcommi_step_error(lane, DCOMM_ERR_PLAN, "reads memory of rank %d", rank);
            }
            uint32_t slot = frame->slot_base + o->slot;
            const dcommi_exposed *e = dcommi_lane_exposed(lane, rank, slot);
            if (e == NULL) {
                return DCOMMI_RETRY;
            }
            if ((size_t)length != len || offset < 0 || (uint64_t)offset > e->len ||
                len > e->len - (uint64_t)offset) {
                return dcommi_step_error(lane, DCOMM_ERR_MISMATCH,
                                         "reads %zu bytes at %" PRId64 " of the %" PRIu64
                                         " that rank %d exposed",
                                         len, offset, e->len, rank);
            }
            piece->rank = rank;
            piece->slot = (uint16_t)slot;
            piece->address = e->address + (uint64_t)offset;
            piece->offset = (uint64_t)offset;
        }
    }
    return DCOMMI_NEXT;
}

static enum dcommi_outcome dcommi_step_fold(dcommi_lane *lane, const dcomm_step *step)
{
    dcommi_frame *frame = lane->frame;
    dcomm_context *context = frame->run->comm->context;
    size_t len, n = 0;
    uint8_t *dst = dcommi_lane_piece(lane, &step->dst, 0, &len);
    if (dst == NULL) {
        return dcommi_outside(lane, "destination");
    }
    bool remote = false;
    for (uint32_t i = 0; i < step->nsrc; i++) {
        const dcomm_operand *o = &frame->plan->operands[step->src + i];
        n += o->repeat > 1 ? o->repeat : 1;
        remote = remote || o->space == DCOMM_SPACE_PEER;
    }
    if (len == 0) {
        return DCOMMI_NEXT;
    }
    if (dcommi_grow((void **)&context->pieces, &context->pieces_capacity, n, sizeof(dcommi_piece)) <
            0 ||
        dcommi_grow((void **)&context->pointers, &context->pointers_capacity, n, sizeof(void *)) <
            0) {
        return dcommi_step_error(lane, DCOMM_ERR_NO_MEMORY, "%s", dcommi_message);
    }
    enum dcommi_outcome outcome = dcommi_lane_pieces(lane, step, len, context->pieces);
    if (outcome != DCOMMI_NEXT) {
        return outcome;
    }
    bool fold = step->kind == DCOMM_STEP_REDUCE, final = step->flags & DCOMM_STEP_FINAL;
    if (remote) {
        bool async = step->flags & DCOMM_STEP_ASYNC;
        return dcommi_moving(
            lane, dcommi_pull_start(lane, dst, context->pieces, n, len, fold, final, async), async);
    }
    if (!fold) {
        if (dst != context->pieces[0].local) {
            dcommi_host_copy(dst, context->pieces[0].local, len);
        }
        return DCOMMI_NEXT;
    }
    for (size_t i = 0; i < n; i++) {
        context->pointers[i] = context->pieces[i].local;
    }
    dcomm_status status = dcommi_fold_pieces(lane, dst, context->pointers, n, len, final);
    return status < 0 ? dcommi_step_error(lane, status, "%s", dcommi_message) : DCOMMI_NEXT;
}

/* Run fn for each rank that EXPOSE or SIGNAL addresses. */
static enum dcommi_outcome dcommi_step_tell(dcommi_lane *lane, const dcomm_step *step)
{
    dcommi_frame *frame = lane->frame;
    dcommi_run *run = frame->run;
    int64_t peer = dcommi_lane_value(lane, &step->peer);
    uint64_t value = 0;
    dcommi_header header = dcommi_header_of(run, DCOMMI_MSG_SIGNAL, 0);
    if (step->kind == DCOMM_STEP_EXPOSE) {
        size_t len;
        uint8_t *base = dcommi_lane_piece(lane, &frame->plan->operands[step->src], 0, &len);
        if (base == NULL) {
            return dcommi_outside(lane, "what it exposes");
        }
        header.type = DCOMMI_MSG_EXPOSE;
        header.slot = (uint16_t)(frame->slot_base + step->slot);
        header.a = (uint64_t)(uintptr_t)base;
        header.b = len;
        if (run->offers == NULL || header.slot >= run->plan->nslots) {
            return dcommi_step_error(lane, DCOMM_ERR_PLAN, "slot %d of %u", (int)header.slot,
                                     run->plan->nslots);
        }
        run->offers[header.slot].base = base;
        run->offers[header.slot].len = (int64_t)len;
    } else {
        value = (uint64_t)dcommi_lane_value(lane, &step->value);
        header.slot = (uint16_t)(frame->counter_base + step->slot);
        header.a = value;
        if (header.slot >= run->plan->ncounters) {
            return dcommi_step_error(lane, DCOMM_ERR_PLAN, "counter %d of %u", (int)header.slot,
                                     run->plan->ncounters);
        }
    }
    int64_t first = peer == DCOMM_ALL_PEERS ? 0 : peer;
    int64_t last = peer == DCOMM_ALL_PEERS ? frame->plan->nranks - 1 : peer;
    for (int64_t r = first; r <= last; r++) {
        int rank = dcommi_frame_rank(frame, r);
        if (rank < 0) {
            return dcommi_step_error(lane, DCOMM_ERR_PLAN, "addresses rank %" PRId64, r);
        }
        if (rank != run->comm->rank && !dcommi_has_credit(lane, rank)) {
            return DCOMMI_RETRY;
        }
    }
    for (int64_t r = first; r <= last; r++) {
        int rank = dcommi_frame_rank(frame, r);
        if (rank == run->comm->rank) {
            if (peer != DCOMM_ALL_PEERS && step->kind == DCOMM_STEP_SIGNAL) {
                dcommi_run_signal(run, header.slot, value);
            }
            continue;
        }
        dcomm_status status = dcommi_send_header(run->comm, rank, &header, NULL, 0);
        if (status < 0) {
            return dcommi_step_error(lane, status, "%s", dcommi_message);
        }
    }
    return DCOMMI_NEXT;
}

static enum dcommi_outcome dcommi_step_codec(dcommi_lane *lane, const dcomm_step *step)
{
    const dcomm_plan *plan = lane->frame->plan;
    size_t src_len, dst_len, encoded = 0;
    const uint8_t *src = dcommi_lane_piece(lane, &plan->operands[step->src], 0, &src_len);
    uint8_t *dst = dcommi_lane_piece(lane, &step->dst, 0, &dst_len);
    if (src == NULL || dst == NULL) {
        return dcommi_outside(lane, src == NULL ? "source" : "destination");
    }
    dcomm_status status = DCOMM_ERR_PLAN;
    if (step->kind == DCOMM_STEP_COMMIT) {
        if (src_len != dst_len) {
            return dcommi_step_error(lane, DCOMM_ERR_PLAN, "commits %zu bytes to %zu", src_len,
                                     dst_len);
        }
        memmove(dst, src, src_len);
        return DCOMMI_NEXT;
    }
    if (plan->codec == NULL) {
        return dcommi_step_error(lane, DCOMM_ERR_PLAN, "the plan has no codec");
    }
    if (!dcommi_word_fits(lane, step)) {
        return dcommi_outside(lane, "word");
    }
    if (step->kind == DCOMM_STEP_ENCODE) {
        status = plan->codec->encode(plan->codec_user, src, src_len, dst, dst_len, &encoded);
        if (status == DCOMM_OK && encoded > dst_len) {
            return dcommi_step_error(lane, DCOMM_ERR_PLAN, "%s encoded %zu bytes into %zu",
                                     plan->codec->name, encoded, dst_len);
        }
        if (step->word >= 0) {
            lane->frame->words[step->word] = encoded;
        }
    } else if (step->kind == DCOMM_STEP_DECODE) {
        status = plan->codec->decode(plan->codec_user, src, src_len, dst, dst_len);
    } else {
        status = plan->codec->decode_reduce(plan->codec_user, src, src_len, dst, dst_len);
    }
    return status < 0
               ? dcommi_step_error(lane, status, "%s cannot %s %zu bytes", plan->codec->name,
                                   step->kind == DCOMM_STEP_ENCODE ? "encode" : "decode", src_len)
               : DCOMMI_NEXT;
}

static enum dcommi_outcome dcommi_step_compute(dcommi_lane *lane, const dcomm_step *step)
{
    const dcomm_plan *plan = lane->frame->plan;
    const void *src[DCOMMI_FOLD_MAX];
    size_t src_len[DCOMMI_FOLD_MAX], dst_len;
    uint8_t *dst = dcommi_lane_piece(lane, &step->dst, 0, &dst_len);
    if (step->kernel >= plan->nkernels || step->nsrc > DCOMMI_FOLD_MAX || dst == NULL) {
        return dcommi_step_error(lane, DCOMM_ERR_PLAN, "kernel %d of %u, %u sources",
                                 (int)step->kernel, plan->nkernels, step->nsrc);
    }
    for (uint32_t i = 0; i < step->nsrc; i++) {
        src[i] = dcommi_lane_piece(lane, &plan->operands[step->src + i], 0, &src_len[i]);
        if (src[i] == NULL) {
            return dcommi_outside(lane, "source");
        }
    }
    dcomm_status status =
        plan->kernels[step->kernel](plan->kernel_user, dst, dst_len, src, src_len, step->nsrc);
    return status < 0 ? dcommi_step_error(lane, status, "kernel %d failed", (int)step->kernel)
                      : DCOMMI_NEXT;
}

static enum dcommi_outcome dcommi_step_call(dcommi_lane *lane, const dcomm_step *step)
{
    dcommi_frame *parent = lane->frame;
    dcommi_run *run = parent->run;
    const dcomm_plan *sub = parent->plan->subs[step->sub];
    if (parent->depth + 1 >= DCOMMI_CALL_DEPTH) {
        return dcommi_step_error(lane, DCOMM_ERR_PLAN, "sub-plans nest deeper than %d",
                                 DCOMMI_CALL_DEPTH);
    }
    size_t in_len = 0, out_len = 0;
    uint8_t *in = dcommi_lane_piece(lane, &parent->plan->operands[step->src], 0, &in_len);
    uint8_t *out = dcommi_lane_piece(lane, &step->dst, 0, &out_len);
    if (in == NULL || out == NULL) {
        return dcommi_outside(lane, in == NULL ? "input" : "output");
    }
    size_t head = (sizeof(dcommi_frame) + 63) & ~(size_t)63;
    size_t lanes = (sub->nlanes * sizeof(dcommi_lane) + 63) & ~(size_t)63;
    size_t words = (sub->nwords * sizeof(uint64_t) + 63) & ~(size_t)63;
    uint8_t *memory = dcommi_alloc_raw(head + lanes + words + (size_t)sub->scratch_bytes);
    if (memory == NULL) {
        return dcommi_step_error(lane, DCOMM_ERR_NO_MEMORY, "%s", dcommi_message);
    }
    memset(memory, 0, head + lanes + words);
    dcommi_frame *frame = (dcommi_frame *)memory;
    dcommi_frame_bind(frame, run, sub, (dcommi_lane *)(memory + head));
    frame->parent = parent;
    frame->caller = lane;
    frame->depth = parent->depth + 1;
    frame->group = parent->plan->table + step->group;
    frame->words = (uint64_t *)(memory + head + lanes);
    frame->tag_base = parent->tag_base + dcommi_lane_value(lane, &step->tag);
    frame->counter_base = parent->counter_base + step->slot;
    frame->slot_base = parent->slot_base + (step->word > 0 ? (uint32_t)step->word : 0);
    frame->space[DCOMM_SPACE_IN] = in;
    frame->space_len[DCOMM_SPACE_IN] = (int64_t)in_len;
    frame->space[DCOMM_SPACE_OUT] = out;
    frame->space_len[DCOMM_SPACE_OUT] = (int64_t)out_len;
    frame->space[DCOMM_SPACE_SCRATCH] = memory + head + lanes + words;
    frame->space_len[DCOMM_SPACE_SCRATCH] = sub->scratch_bytes;
    frame->space[DCOMM_SPACE_STATE] = parent->space[DCOMM_SPACE_STATE];
    frame->space_len[DCOMM_SPACE_STATE] = parent->space_len[DCOMM_SPACE_STATE];
    frame->next = run->children;
    run->children = frame;
    lane->state = DCOMMI_LANE_CALL;
    if (sub->nlanes == 0) {
        dcommi_frame_done(frame);
    } else {
        dcommi_frame_start(frame);
    }
    return DCOMMI_STOP;
}

/* Open a loop, or jump behind it when it has no trips. */
static void dcommi_step_loop(dcommi_lane *lane, const dcomm_step *step)
{
    int64_t trips = dcommi_lane_value(lane, &step->value);
    if (trips <= 0) {
        lane->pc += step->body + 1;
        return;
    }
    lane->trips[lane->depth] = trips;
    lane->index[lane->depth] = 0;
    lane->depth++;
}

static void dcommi_step_end(dcommi_lane *lane, const dcomm_step *step)
{
    int d = lane->depth - 1;
    if (++lane->index[d] < lane->trips[d]) {
        lane->pc -= step->body + 1; /* to the LOOP step; the increment enters the body */
        return;
    }
    lane->index[d] = 0;
    lane->depth = d;
}

static enum dcommi_outcome dcommi_step_run(dcommi_lane *lane, const dcomm_step *step)
{
    switch (step->kind) {
    case DCOMM_STEP_SEND:
        return dcommi_step_send(lane, step);
    case DCOMM_STEP_RECV:
    case DCOMM_STEP_RECV_REDUCE:
        return dcommi_step_recv(lane, step);
    case DCOMM_STEP_COPY:
    case DCOMM_STEP_REDUCE:
        return dcommi_step_fold(lane, step);
    case DCOMM_STEP_EXPOSE:
    case DCOMM_STEP_SIGNAL:
        return dcommi_step_tell(lane, step);
    case DCOMM_STEP_ENCODE:
    case DCOMM_STEP_DECODE:
    case DCOMM_STEP_DECODE_REDUCE:
    case DCOMM_STEP_COMMIT:
        return dcommi_step_codec(lane, step);
    case DCOMM_STEP_COMPUTE:
        return dcommi_step_compute(lane, step);
    case DCOMM_STEP_CALL:
        return dcommi_step_call(lane, step);
    case DCOMM_STEP_FENCE:
        if (lane->pending > 0) {
            lane->state = DCOMMI_LANE_FENCE;
            return DCOMMI_STOP;
        }
        return DCOMMI_NEXT;
    case DCOMM_STEP_WAIT: {
        uint32_t counter = lane->frame->counter_base + step->slot;
        uint64_t target = (uint64_t)dcommi_lane_value(lane, &step->value);
        if (counter >= lane->frame->run->plan->ncounters || (int64_t)target < 0) {
            return dcommi_step_error(lane, DCOMM_ERR_PLAN, "waits for counter %u >= %" PRId64,
                                     counter, (int64_t)target);
        }
        if (lane->frame->run->counters[counter] >= target) {
            return DCOMMI_NEXT;
        }
        lane->state = DCOMMI_LANE_COUNTER;
        lane->counter = counter;
        lane->target = target;
        return DCOMMI_STOP;
    }
    case DCOMM_STEP_LOOP:
        dcommi_step_loop(lane, step);
        return DCOMMI_NEXT;
    case DCOMM_STEP_END:
        dcommi_step_end(lane, step);
        return DCOMMI_NEXT;
    default:
        return dcommi_step_error(lane, DCOMM_ERR_PLAN, "step of unknown kind %d", step->kind);
    }
}

#endif

/* Run a lane until it waits or ends. */
static void dcommi_lane_run(dcommi_lane *lane)
{
    const dcommi_run *run = lane->frame->run;
    while (lane->pc < lane->count) {
        enum dcommi_outcome outcome = dcommi_step_run(lane, &lane->steps[lane->pc]);
        if (outcome == DCOMMI_GONE || outcome == DCOMMI_RETRY || DCOMMI_UNLIKELY(!run->active)) {
            return; /* a step may fail the run in what it starts, and then say that it goes on */
        }
        lane->pc++;
        if (outcome == DCOMMI_STOP) {
            return;
        }
    }
    if (lane->pending > 0) { /* the end of a lane is a fence */
        lane->state = DCOMMI_LANE_FENCE;
        return;
    }
    lane->state = DCOMMI_LANE_DONE;
    dcommi_frame *frame = lane->frame;
    if (--frame->lanes_left == 0) {
        dcommi_frame_done(frame);
    }
}

/* ---- events for a whole run ---- */

static void dcommi_frame_wake(dcommi_frame *frame, uint8_t state, int64_t what)
{
    for (uint32_t i = 0; i < frame->plan->nlanes; i++) {
        dcommi_lane *lane = &frame->lanes[i];
        if (lane->state != state) {
            continue;
        }
        dcommi_run *run = frame->run;
        if (state == DCOMMI_LANE_COUNTER
                ? (int64_t)lane->counter == what && run->counters[lane->counter] >= lane->target
                : lane->peer == (int32_t)what) {
            dcommi_lane_ready(lane);
        }
    }
}

/* Wake the lanes that wait in `state` for counter or peer `what`. */
static void dcommi_run_wake(dcommi_run *run, uint8_t state, int64_t what)
{
    dcommi_frame_wake(&run->root, state, what);
    for (dcommi_frame *f = run->children; f != NULL; f = f->next) {
        dcommi_frame_wake(f, state, what);
    }
}

static void dcommi_run_signal(dcommi_run *run, uint32_t counter, uint64_t value)
{
    run->counters[counter] += value;
    dcommi_run_event(run);
    dcommi_run_wake(run, DCOMMI_LANE_COUNTER, counter);
}

/* A peer's exposition or signal reaches its run. */
static void dcommi_run_told(dcommi_run *run, const dcommi_header *h)
{
    dcomm_comm *comm = run->comm;
    if (h->signature != run->signature.hash) {
        dcommi_suspect_mismatch(comm, run, h, 0);
        return;
    }
    if (h->slot >= (h->type == DCOMMI_MSG_SIGNAL ? run->plan->ncounters : run->plan->nslots)) {
        dcommi_poison(comm, DCOMM_ERR_CORRUPT, -1,
                      "a peer named a counter or slot that the plan does not have");
        return;
    }
    if (h->type == DCOMMI_MSG_SIGNAL) {
        dcommi_run_signal(run, h->slot, h->a);
        return;
    }
    dcommi_exposed *e = dcommi_alloc(sizeof *e);
    if (e == NULL) {
        dcommi_poison(comm, DCOMM_ERR_NO_MEMORY, -1, dcommi_message);
        return;
    }
    e->node = dcommi_key(DCOMMI_NODE_EXPOSED, run->stream, run->seq, run->stage, (int32_t)h->src,
                         h->slot);
    e->address = h->a;
    e->len = h->b;
    dcommi_match_node *old = dcommi_match_take(comm, &e->node);
    if (old != NULL) { /* exposed anew: the old place is no longer offered */
        for (dcommi_exposed **at = &run->exposed_list; *at != NULL; at = &(*at)->next_of_run) {
            if (*at == (dcommi_exposed *)old) {
                *at = (*at)->next_of_run;
                break;
            }
        }
        dcommi_free(old);
    }
    e->next_of_run = run->exposed_list;
    run->exposed_list = e;
    dcommi_match_insert(comm, &e->node);
    dcommi_run_event(run);
    dcommi_run_wake(run, DCOMMI_LANE_EXPOSE, (int64_t)h->src);
}

#endif

#define DCOMMI_QUERY_AFTER 0.2 /* seconds without an event */
#define DCOMMI_QUERY_EVERY 1.0 /* seconds between queries, after the first few */

/* ---- descriptions ---- */

static void dcommi_signature_text(const dcommi_signature *s, char *text, size_t len)
{
    snprintf(text, len, "%s(count %" PRIu64 ", %s, %s, root %d, algorithm %s, signature %08x)",
             dcomm_coll_name((dcomm_coll)s->coll), s->count,
             dcomm_dtype_name((dcomm_dtype)s->dtype), dcomm_op_name((dcomm_op)s->op), s->root,
             s->algo, s->hash);
}

/* Text from a peer, fit to be printed. `text` has room for len + 1 bytes. */
static void dcommi_peer_text(char *text, const void *data, size_t len)
{
    for (size_t i = 0; i < len; i++) {
        char c = ((const char *)data)[i];
        text[i] = c >= ' ' && c != 127 ? c : c < 0 ? c : '?';
    }
    text[len] = 0;
}

/* What the first waiting lane of a run waits for. */
static void dcommi_run_where(const dcommi_run *run, char *text, size_t len)
{
    text[0] = 0;
    for (uint32_t i = 0; i < run->plan->nlanes; i++) {
        const dcommi_lane *lane = &run->root.lanes[i];
        if (lane->state == DCOMMI_LANE_DONE || lane->state == DCOMMI_LANE_READY) {
            continue;
        }
        uint32_t pc = lane->pc;
        if ((lane->state == DCOMMI_LANE_MOVE || lane->state == DCOMMI_LANE_FENCE ||
             lane->state == DCOMMI_LANE_COUNTER || lane->state == DCOMMI_LANE_CALL) &&
            pc > 0) {
            pc--; /* these go on behind the step that they wait in */
        }
        static const char *const names[] = {
#define DCOMMI_STEP_NAME(kind, name) name,
            DCOMM_STEP_TABLE(DCOMMI_STEP_NAME)
#undef DCOMMI_STEP_NAME
        };
        const dcomm_step *step = pc < lane->count ? &lane->steps[pc] : NULL;
        snprintf(text, len, "lane %u step %u (%s)", i, pc,
                 step != NULL ? names[step->kind] : "end");
        return;
    }
}

/* "0-2, 5": the ranks r with wanted[r]. */
static void dcommi_rank_list(const bool *wanted, int size, char *text, size_t len)
{
    size_t at = 0;
    text[0] = 0;
    for (int r = 0; r < size && at + 32 < len; r++) {
        if (!wanted[r]) {
            continue;
        }
        int last = r;
        while (last + 1 < size && wanted[last + 1]) {
            last++;
        }
        at += (size_t)snprintf(text + at, len - at, last > r + 1 ? "%s%d-%d" : "%s%d",
                               at > 0 ? ", " : "", r, last);
        r = last > r + 1 ? last : r;
    }
}

/* ---- poison ---- */

static void dcommi_send_abort(dcomm_comm *comm, int rank)
{
    dcommi_member *m = &comm->members[rank];
    if (m->peer < 0 || m->gone || comm->context->peers[m->peer].lost) {
        return;
    }
    dcommi_header h = {.type = DCOMMI_MSG_ABORT,
                       .a = (uint64_t)(int64_t)atomic_load(&comm->poisoned)};
    size_t len = strnlen(comm->message, DCOMMI_TEXT_MAX);
    dcommi_send_header(comm, rank, &h, comm->message, len);
}

/* Fail the communicator: all its operations here, and on all other ranks. `from` is the rank that
 * told us, or -1 when we found it: the finder tells all, the others pass it on to ranks at powers
 * of two, so that it arrives even when the finder dies meanwhile. The first error stays. */
static void dcommi_poison(dcomm_comm *comm, dcomm_status status, int from, const char *text)
{
    if (atomic_load_explicit(&comm->poisoned, memory_order_relaxed) != 0) {
        return;
    }
    snprintf(comm->message, sizeof comm->message, "%s", text);
    atomic_store_explicit(&comm->poisoned, status, memory_order_release);
    dcommi_log(DCOMMI_LOG_INFO, "rank %d: %s: %s", comm->rank, dcomm_strerror(status), text);
    if (from < 0) {
        for (int r = 0; r < comm->size; r++) {
            dcommi_send_abort(comm, r);
        }
    } else {
        for (int64_t step = 1; step < comm->size; step *= 2) {
            dcommi_send_abort(comm, (int)((comm->rank + step) % comm->size));
        }
    }
    while (comm->runs != NULL) {
        dcommi_run_finish(comm->runs, status);
    }
    dcommi_match_clear(comm);
}

static void dcommi_peer_lost(dcomm_context *context, int peer, const char *why)
{
    dcommi_remote *p = &context->peers[peer];
    if (p->lost) {
        return;
    }
    p->lost = true;
    snprintf(p->why, sizeof p->why, "%s", why);
    for (dcomm_comm *comm = context->comms; comm != NULL; comm = comm->next) {
        for (int r = 0; r < comm->size; r++) {
            if (comm->members[r].peer == peer && !comm->members[r].gone) {
                char text[DCOMMI_MESSAGE_MAX];
                snprintf(text, sizeof text, "rank %d (process %d on %s) was lost: %s", r,
                         (int)p->pid, comm->members[r].hostname, p->why);
                dcommi_poison(comm, DCOMM_ERR_PEER, -1, text);
            }
        }
    }
}

/* ---- looking at a process of this host ---- */

/* Start time of a process in clock ticks since boot; 0 when it is gone or a zombie. */
static uint64_t dcommi_process_started(pid_t pid)
{
    char path[64], text[1024];
    snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
    FILE *file = fopen(path, "re");
    if (file == NULL) {
        return 0;
    }
    size_t n = fread(text, 1, sizeof text - 1, file);
    fclose(file);
    text[n] = 0;
    const char *at = strrchr(text, ')'); /* the name before it may hold anything */
    char state = 0;
    unsigned long long started = 0;
    if (at == NULL ||
        sscanf(at + 1,
               " %c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %*u %*u %*d %*d %*d %*d %*d "
               "%*d %llu",
               &state, &started) != 2) {
        return 0;
    }
    return state == 'Z' || state == 'X' ? 0 : started;
}

/* ---- queries ---- */

/* Ask a rank about operation `seq`, which is `mine` here. */
static void dcommi_query(dcomm_comm *comm, int rank, uint8_t stream, uint64_t seq,
                         const dcommi_signature *mine)
{
    char text[DCOMMI_TEXT_MAX];
    dcommi_signature_text(mine, text, sizeof text);
    dcommi_header h = {.type = DCOMMI_MSG_QUERY,
                       .stream = stream,
                       .slot = mine->coll,
                       .signature = mine->hash,
                       .seq = seq};
    dcommi_send_header(comm, rank, &h, text, strlen(text));
}

/* A message of a run's sequence number carries another signature. In a collective let the peer,
 * which will then know both descriptions, say so; a peer whose send is over has forgotten it. */
static void dcommi_suspect_mismatch(dcomm_comm *comm, dcommi_run *run, const dcommi_header *h,
                                    size_t len)
{
    if (run->stream == DCOMMI_STREAM_COLL) {
        dcommi_query(comm, (int)h->src, run->stream, run->seq, &run->signature);
        return;
    }
    char ours[DCOMMI_TEXT_MAX], text[DCOMMI_MESSAGE_MAX];
    dcommi_signature_text(&run->signature, ours, sizeof ours);
    snprintf(text, sizeof text,
             "ranks disagree about operation #%" PRIu64 ": rank %d calls send(%zu bytes, signature "
             "%08x) to rank %d, rank %d calls %s",
             h->seq, (int)h->src, len, h->signature, comm->rank, comm->rank, ours);
    dcommi_poison(comm, DCOMM_ERR_MISMATCH, -1, text);
}

static dcommi_run *dcommi_run_find(dcomm_comm *comm, const dcommi_header *h)
{
    for (dcommi_run *run = comm->runs; run != NULL; run = run->next) {
        if (run->stream == h->stream && run->seq == h->seq &&
            (run->stream == DCOMMI_STREAM_COLL || run->p2p_peer == (int32_t)h->src)) {
            return run;
        }
    }
    return NULL;
}

static void dcommi_on_query(dcomm_comm *comm, const dcommi_header *h, const void *data, size_t len)
{
    dcommi_header reply = {.type = DCOMMI_MSG_REPLY,
                           .stream = h->stream,
                           .seq = h->seq,
                           .slot = h->slot,
                           .a = DCOMMI_NOT_ENTERED};
    char where[64] = "";
    if (atomic_load(&comm->poisoned) != 0) {
        dcommi_send_abort(comm, (int)h->src);
        return;
    }
    const dcommi_signature *mine = NULL;
    dcommi_run *run = NULL;
    if (h->stream == DCOMMI_STREAM_COLL) {
        const dcommi_history *entry = &comm->history[h->seq % DCOMMI_HISTORY];
        run = dcommi_run_find(comm, h);
        reply.b = comm->entered;
        if (run != NULL) {
            reply.a = DCOMMI_ENTERED;
            dcommi_run_where(run, where, sizeof where);
        }
        mine = entry->known && entry->seq == h->seq ? &entry->signature : NULL;
        if (run == NULL && (mine != NULL || h->seq < comm->done)) {
            reply.a = DCOMMI_COMPLETED;
        }
    } else {
        /* The asker's send meets our receive and the other way round. */
        uint8_t wanted = h->slot == DCOMM_COLL_SEND ? DCOMM_COLL_RECV : DCOMM_COLL_SEND;
        const dcommi_member *m = &comm->members[h->src];
        reply.a = h->seq < (wanted == DCOMM_COLL_RECV ? m->p2p_received : m->p2p_sent)
                      ? DCOMMI_COMPLETED
                      : DCOMMI_NOT_ENTERED;
        for (run = comm->runs; run != NULL; run = run->next) {
            if (run->stream == DCOMMI_STREAM_P2P && run->seq == h->seq &&
                run->p2p_peer == (int32_t)h->src && run->signature.coll == wanted) {
                reply.a = DCOMMI_ENTERED;
                mine = &run->signature;
                dcommi_run_where(run, where, sizeof where);
                break;
            }
        }
    }
    if (mine != NULL && mine->hash != h->signature) {
        char theirs[DCOMMI_TEXT_MAX + 1], ours[DCOMMI_TEXT_MAX], text[2 * DCOMMI_TEXT_MAX + 128];
        dcommi_peer_text(theirs, data, len);
        dcommi_signature_text(mine, ours, sizeof ours);
        snprintf(text, sizeof text,
                 "ranks disagree about operation #%" PRIu64 ": rank %d calls %s, rank %d calls %s",
                 h->seq, (int)h->src, theirs, comm->rank, ours);
        dcommi_poison(comm, DCOMM_ERR_MISMATCH, -1, text);
        return;
    }
    dcommi_send_header(comm, (int)h->src, &reply, where, strlen(where));
}

static void dcommi_on_reply(dcomm_comm *comm, const dcommi_header *h, const void *data, size_t len)
{
    for (dcommi_run *run = comm->runs; run != NULL; run = run->next) {
        if (run->peers == NULL || run->stream != h->stream || run->seq != h->seq ||
            run->signature.coll != h->slot || h->a > DCOMMI_COMPLETED) {
            continue;
        }
        dcommi_peer_state *peer = &run->peers[h->src];
        peer->replied = true;
        peer->entry = (uint8_t)h->a;
        size_t n = len < sizeof peer->where - 1 ? len : sizeof peer->where - 1;
        dcommi_peer_text(peer->where, data, n);
    }
}

/* Whether a run may wait for a rank. */
static bool dcommi_run_involves(const dcommi_run *run, int rank)
{
    return rank != run->comm->rank && (run->stream == DCOMMI_STREAM_COLL || run->p2p_peer == rank);
}

/* A run has been idle: ask around, look at silent processes, notice who has left. */
static void dcommi_run_ask(dcommi_run *run, double now)
{
    dcomm_comm *comm = run->comm;
    if (run->peers == NULL) {
        run->peers = dcommi_calloc((size_t)comm->size, sizeof *run->peers);
        if (run->peers == NULL) {
            return;
        }
        for (int r = 0; r < comm->size; r++) {
            run->peers[r].replied = true; /* nobody has been asked yet */
        }
    }
    for (int r = 0; r < comm->size; r++) {
        if (!dcommi_run_involves(run, r)) {
            continue;
        }
        dcommi_member *m = &comm->members[r];
        dcommi_remote *p = &comm->context->peers[m->peer];
        if (m->gone) {
            if (run->stream == DCOMMI_STREAM_COLL ? m->gone_after <= run->seq
                                                  : now - run->idle_since > 2.0) {
                char text[DCOMMI_MESSAGE_MAX];
                snprintf(text, sizeof text,
                         "rank %d has left the communicator after %" PRIu64
                         " collectives; %s #%" PRIu64 " cannot complete",
                         r, m->gone_after, dcomm_coll_name((dcomm_coll)run->signature.coll),
                         run->seq);
                dcommi_poison(comm, DCOMM_ERR_PEER, -1, text);
                return;
            }
            continue;
        }
        if (p->lost) {
            char text[DCOMMI_MESSAGE_MAX];
            snprintf(text, sizeof text, "rank %d (process %d on %s) was lost: %s", r, (int)p->pid,
                     m->hostname, p->why);
            dcommi_poison(comm, DCOMM_ERR_PEER, -1, text);
            return;
        }
        if (!run->peers[r].replied && p->same_host && p->pid != getpid() && p->started != 0 &&
            dcommi_process_started(p->pid) != p->started) {
            dcommi_peer_lost(comm->context, m->peer, "its process has ended");
            return;
        }
        run->peers[r].replied = false;
        dcommi_query(comm, r, run->stream, run->seq, &run->signature);
        if (!run->active) {
            return;
        }
    }
}

/* "rank 3", "ranks 0-2, 5"; "" for none. */
static void dcommi_ranks_text(const bool *wanted, int size, char *text, size_t len)
{
    char list[96];
    int n = 0;
    for (int r = 0; r < size; r++) {
        n += wanted[r];
    }
    dcommi_rank_list(wanted, size, list, sizeof list);
    snprintf(text, len, "%s%s", n == 0 ? "" : n == 1 ? "rank " : "ranks ", list);
}

/* The time of a run is up: say who is to blame, as far as their answers tell. */
static void dcommi_run_timeout(dcommi_run *run)
{
    dcomm_comm *comm = run->comm;
    enum { NEVER, SILENT, THERE, GROUPS };
    char text[DCOMMI_MESSAGE_MAX], name[64], where[64], ranks[GROUPS][112] = {{0}};
    bool *flags = dcommi_calloc((size_t)comm->size, GROUPS * sizeof *flags);
    bool one = true;
    if (flags != NULL) {
        for (int r = 0; r < comm->size; r++) {
            const dcommi_peer_state *peer = run->peers != NULL ? &run->peers[r] : NULL;
            bool asked = peer != NULL && dcommi_run_involves(run, r);
            bool heard = asked && peer->replied;
            int group = r == comm->rank || (heard && peer->entry == DCOMMI_ENTERED) ? THERE
                        : asked && !peer->replied                                   ? SILENT
                        : heard && peer->entry == DCOMMI_NOT_ENTERED                ? NEVER
                                                                                    : GROUPS;
            if (group < GROUPS) {
                flags[group * comm->size + r] = true;
            }
            one = one && (group != THERE || r == comm->rank);
        }
        for (int g = 0; g < GROUPS; g++) {
            dcommi_ranks_text(flags + g * comm->size, comm->size, ranks[g], sizeof ranks[g]);
        }
    }
    dcommi_free(flags);
    dcommi_run_where(run, where, sizeof where);
    snprintf(name, sizeof name, "%s #%" PRIu64, dcomm_coll_name((dcomm_coll)run->signature.coll),
             run->seq);
    size_t at =
        (size_t)snprintf(text, sizeof text, "%s timed out after %.3g s: ", name, run->timeout_s);
    if (ranks[NEVER][0] != 0) {
        at += (size_t)snprintf(text + at, sizeof text - at, "%s never entered %s; ", ranks[NEVER],
                               name);
    }
    if (ranks[SILENT][0] != 0) {
        at += (size_t)snprintf(text + at, sizeof text - at, "%s %s not answer; ", ranks[SILENT],
                               strncmp(ranks[SILENT], "ranks", 5) == 0 ? "do" : "does");
    }
    snprintf(text + at, sizeof text - at, "%s wait%s for %s in %s",
             ranks[THERE][0] != 0 ? ranks[THERE] : "this rank", one ? "s" : "",
             ranks[NEVER][0] != 0 || ranks[SILENT][0] != 0 ? "it" : "progress",
             where[0] != 0 ? where : "no step");
    dcommi_poison(comm, DCOMM_ERR_TIMEOUT, -1, text);
}

/* Look after every run of a communicator; about 20 times a second while there are any. */
static void dcommi_comm_check(dcomm_comm *comm, double now)
{
    for (dcommi_run *run = comm->runs; run != NULL; run = run->next) {
        if (run->submitted_at == 0) { /* its time begins when it is first looked at */
            run->submitted_at = run->idle_since = now;
            run->next_query = now + DCOMMI_QUERY_AFTER;
        }
        if (run->events != run->events_seen) {
            run->events_seen = run->events;
            run->idle_since = now;
            run->next_query = now + DCOMMI_QUERY_AFTER;
        }
        if (now - run->submitted_at > run->timeout_s) {
            dcommi_run_timeout(run);
            return;
        }
        if (now >= run->next_query) {
            run->next_query =
                now + (now - run->idle_since < 1.0 ? 2 * DCOMMI_QUERY_AFTER : DCOMMI_QUERY_EVERY);
            dcommi_run_ask(run, now);
            if (atomic_load(&comm->poisoned) != 0) {
                return;
            }
        }
    }
}

#endif

static void dcommi_cached_release(dcomm_comm *comm, dcommi_cached *cached);

/* Drop a reference; the last one gives the run back to its communicator. */
static void dcommi_run_unref(dcommi_run *run)
{
    if (atomic_fetch_sub_explicit(&run->refs, 1, memory_order_acq_rel) != 1) {
        return;
    }
    dcomm_comm *comm = run->comm;
    while (run->pulls != NULL) {
        dcommi_pull_free(run->pulls);
    }
    while (run->children != NULL) { /* of a run that failed: transfers used their scratch */
        dcommi_frame *frame = run->children;
        run->children = frame->next;
        dcommi_free(frame);
    }
    pthread_mutex_lock(&comm->lock);
    if (run->cached != NULL) {
        dcommi_cached_release(comm, run->cached);
        run->cached = NULL;
    }
    run->next = comm->free_runs;
    comm->free_runs = run;
    bool last = --comm->refs == 0;
    pthread_mutex_unlock(&comm->lock);
    if (last) {
        dcommi_comm_free(comm);
    }
}

/* Memory for a plan's lanes, words, counters, offers and scratch, kept from run to run. Words are
 * zero but for those that a stage before left. */
static dcomm_status dcommi_run_bind(dcommi_run *run, const dcomm_plan *plan, const uint64_t *words,
                                    uint32_t nwords)
{
    size_t lanes = (plan->nlanes * sizeof(dcommi_lane) + 63) & ~(size_t)63;
    size_t word_bytes = (plan->nwords * sizeof(uint64_t) + 63) & ~(size_t)63;
    size_t counters = (plan->ncounters * sizeof(uint64_t) + 63) & ~(size_t)63;
    size_t offers = (plan->nslots * sizeof(*run->offers) + 63) & ~(size_t)63;
    size_t zeroed = lanes + word_bytes + counters + offers;
    size_t need = zeroed + (size_t)plan->scratch_bytes;
    if (run->memory_len < need) {
        uint8_t *bigger = dcommi_alloc_raw(need);
        if (bigger == NULL) {
            return DCOMM_ERR_NO_MEMORY;
        }
        dcommi_free(run->memory);
        run->memory = bigger;
        run->memory_len = need;
    }
    uint8_t *memory = run->memory;
    if (zeroed > 0) {
        dcommi_zero(memory, zeroed);
    }
    run->plan = plan;
    dcommi_frame *root = &run->root;
    dcommi_zero(root, sizeof *root);
    dcommi_frame_bind(root, run, plan, (dcommi_lane *)memory);
    root->words = (uint64_t *)(memory + lanes);
    run->counters = (uint64_t *)(memory + lanes + word_bytes);
    run->offers = (struct dcommi_offer *)(memory + lanes + word_bytes + counters);
    if (nwords > 0) {
        memcpy(root->words, words, (nwords < plan->nwords ? nwords : plan->nwords) * sizeof *words);
    }
    root->space[DCOMM_SPACE_IN] = (uint8_t *)(uintptr_t)run->in;
    root->space_len[DCOMM_SPACE_IN] = plan->in_bytes;
    root->space[DCOMM_SPACE_OUT] = run->out;
    root->space_len[DCOMM_SPACE_OUT] = plan->out_bytes;
    root->space[DCOMM_SPACE_SCRATCH] = memory + zeroed;
    root->space_len[DCOMM_SPACE_SCRATCH] = plan->scratch_bytes;
    root->space[DCOMM_SPACE_STATE] = run->state;
    root->space_len[DCOMM_SPACE_STATE] = plan->state_bytes;
    return DCOMM_OK;
}

/* Signals and expositions that came before this stage was there. */
static void dcommi_run_take_early(dcommi_run *run)
{
    dcomm_comm *comm = run->comm;
    dcommi_match_node key =
        dcommi_key(DCOMMI_NODE_EARLY_RUN, run->stream, run->seq, run->stage, 0, 0);
    while (run->active && comm->early_count > 0) {
        dcommi_early *early = (dcommi_early *)dcommi_match_take_oldest(comm, &key);
        if (early == NULL) {
            return;
        }
        comm->early_count--;
        dcommi_run_told(run, &early->header);
        dcommi_early_free(early);
    }
}

static void dcommi_run_forget_exposed(dcommi_run *run)
{
    while (run->exposed_list != NULL) {
        dcommi_exposed *e = run->exposed_list;
        run->exposed_list = e->next_of_run;
        dcommi_match_remove(run->comm, &e->node);
        dcommi_free(e);
    }
}

static void dcommi_run_return_plan(dcommi_run *run)
{
    if (run->give_back != NULL) {
        run->give_back(run->give_back_user, run->plan);
    }
    run->give_back = NULL;
}

static void dcommi_advance_done(dcomm_comm *comm);
static void dcommi_send_credit(dcomm_comm *comm, int rank, uint8_t stream);

/* Take a run out of the engine with its result. */
static void dcommi_run_finish(dcommi_run *run, dcomm_status status)
{
    dcomm_comm *comm = run->comm;
    dcomm_context *context = comm->context;
    run->active = false;
    *(run->prev != NULL ? &run->prev->next : &comm->runs) = run->next;
    *(run->next != NULL ? &run->next->prev : &comm->last_run) = run->prev;
    context->active--;
    if (status < 0) {
        dcommi_lane **at = &context->ready_first;
        context->ready_last = NULL;
        while (*at != NULL) {
            if ((*at)->frame->run == run) {
                *at = (*at)->next_ready;
            } else {
                context->ready_last = *at;
                at = &(*at)->next_ready;
            }
        }
        for (dcommi_move *move = run->moves, *next; move != NULL; move = next) {
            next = move->next;
            dcommi_match_remove(comm, &move->node);
            move->lane = NULL;
            if (!move->in_transport) {
                dcommi_move_free(move);
            }
        }
    }
    dcommi_run_forget_exposed(run);
    dcommi_run_return_plan(run);
    dcommi_free(run->peers);
    run->peers = NULL;
    if (run->stream == DCOMMI_STREAM_COLL) {
        dcommi_advance_done(comm);
    } else if (run->signature.coll == DCOMM_COLL_RECV && status == DCOMM_OK) {
        dcommi_member *m = &comm->members[run->p2p_peer];
        if (++m->p2p_completed - m->p2p_told >= DCOMMI_CREDIT_EVERY) {
            dcommi_send_credit(comm, run->p2p_peer, DCOMMI_STREAM_P2P);
        }
    }
    comm->stats.operations += status == DCOMM_OK;
    run->next_finished = context->finished; /* the engine may still stand in one of its lanes */
    context->finished = run;
    atomic_store_explicit(&run->status, status, memory_order_release);
}

/* All lanes of the current plan have ended. */
static void dcommi_stage_done(dcommi_run *run)
{
    const dcomm_plan *plan = run->plan;
    if (plan->next == NULL) {
        dcommi_run_finish(run, DCOMM_OK);
        return;
    }
    dcomm_status status = DCOMM_OK;
    uint32_t nwords = plan->nwords;
    uint64_t *words = dcommi_calloc(nwords, sizeof *words);
    const dcomm_plan *next = NULL;
    if (words == NULL) {
        status = DCOMM_ERR_NO_MEMORY;
    } else {
        memcpy(words, run->root.words, nwords * sizeof *words);
        next = plan->next(plan->next_user, words, nwords, &status);
    }
    if (status >= 0 && next != NULL) {
        void (*give_back)(void *, const dcomm_plan *) = plan->release;
        void *user = plan->next_user;
        dcommi_run_forget_exposed(run);
        dcommi_run_return_plan(run);
        run->give_back = give_back;
        run->give_back_user = user;
        run->plan = next; /* also when it cannot be bound: it is the one to be given back */
        run->stage++;
        status = dcommi_run_bind(run, next, words, nwords);
    }
    dcommi_free(words);
    if (status < 0) {
        char text[DCOMMI_MESSAGE_MAX];
        snprintf(text, sizeof text, "rank %d: stage %d of %s failed: %s", run->comm->rank,
                 run->stage, run->plan->name, dcomm_strerror(status));
        dcommi_poison(run->comm, status, -1, text);
    } else if (next == NULL) {
        dcommi_run_finish(run, DCOMM_OK);
    } else {
        dcommi_run_event(run);
        dcommi_frame_start(&run->root);
        dcommi_run_take_early(run);
        if (run->active && run->root.lanes_left == 0) {
            dcommi_stage_done(run);
        }
    }
}

/* A submitted run enters the engine. */
static void dcommi_run_start(dcommi_run *run)
{
    dcomm_comm *comm = run->comm;
    dcomm_context *context = comm->context;
    dcommi_run *before = comm->last_run;
    if (DCOMMI_UNLIKELY(run->stream == DCOMMI_STREAM_COLL && run->seq < comm->entered)) {
        while (before != NULL && (before->stream != DCOMMI_STREAM_COLL || before->seq > run->seq)) {
            before = before->prev;
        }
    }
    run->prev = before;
    run->next = before != NULL ? before->next : comm->runs;
    *(before != NULL ? &before->next : &comm->runs) = run;
    *(run->next != NULL ? &run->next->prev : &comm->last_run) = run;
    run->active = true;
    context->active++;
    context->idle = 0;
    if (run->stream == DCOMMI_STREAM_COLL) {
        dcommi_history *entry = &comm->history[run->seq % DCOMMI_HISTORY];
        entry->seq = run->seq;
        entry->known = true;
        entry->signature = run->signature;
        if (run->signature.coll == DCOMM_COLL_PLAN) {
            entry->signature.algo = "the caller's own"; /* the plan and its name may go */
        }
        comm->started++;
        if (run->seq >= comm->entered) {
            comm->entered = run->seq + 1;
        }
    }
    int poisoned = atomic_load(&comm->poisoned);
    if (poisoned != 0) {
        dcommi_run_finish(run, (dcomm_status)poisoned);
        return;
    }
    dcomm_status status = dcommi_run_bind(run, run->plan, NULL, 0);
    if (status < 0) {
        dcommi_poison(comm, status, -1, dcommi_message);
        return;
    }
    if (run->plan->nwords > 0 && run->premul != 0) {
        memcpy(run->root.words, &run->premul, sizeof run->premul);
    }
    if (run->plan->nlanes == 0) {
        dcommi_stage_done(run);
        return;
    }
    dcommi_frame_start(&run->root);
    dcommi_run_take_early(run);
}

#endif

/* What is kept for communicators that do not exist here yet. */
#define DCOMMI_STRAYS_MAX 65536
#define DCOMMI_STRAY_BYTES_MAX ((size_t)256 << 20)

/* ---- credits ---- */

static void dcommi_send_credit(dcomm_comm *comm, int rank, uint8_t stream)
{
    dcommi_header h = {.type = DCOMMI_MSG_CREDIT, .stream = stream};
    if (stream == DCOMMI_STREAM_P2P) {
        h.a = comm->members[rank].p2p_completed;
        comm->members[rank].p2p_told = h.a;
    }
    dcommi_send_header(comm, rank, &h, NULL, 0);
}

/* The oldest run has changed: tell ranks that send to us and have not heard for long. */
static void dcommi_advance_done(dcomm_comm *comm)
{
    if (comm->started != comm->entered) {
        return; /* some number below has not come yet: nothing above it counts */
    }
    uint64_t done = comm->entered;
    for (dcommi_run *run = comm->runs; run != NULL; run = run->next) {
        if (run->stream == DCOMMI_STREAM_COLL) {
            done = run->seq < done ? run->seq : done;
            break;
        }
    }
    if (done == comm->done) {
        return;
    }
    bool round = done / DCOMMI_CREDIT_EVERY != comm->done / DCOMMI_CREDIT_EVERY;
    comm->done = done;
    if (!round || atomic_load(&comm->poisoned) != 0) {
        return;
    }
    for (int r = 0; r < comm->size; r++) {
        dcommi_member *m = &comm->members[r];
        if (m->heard && !m->gone && done - m->told >= DCOMMI_CREDIT_EVERY) {
            dcommi_send_credit(comm, r, DCOMMI_STREAM_COLL);
        }
    }
}

/* What a header says of its sender's progress. */
static void dcommi_learn_done(dcomm_comm *comm, const dcommi_header *h)
{
    dcommi_member *m = &comm->members[h->src];
    m->heard = true;
    uint64_t done = m->done + (uint32_t)(h->done - (uint32_t)m->done);
    bool news = (uint32_t)(h->done - (uint32_t)m->done) < UINT32_MAX / 2 && done != m->done;
    if (news) {
        m->done = done;
    }
    if (h->type == DCOMMI_MSG_CREDIT && h->stream == DCOMMI_STREAM_P2P && h->a > m->p2p_done) {
        m->p2p_done = h->a;
        news = true;
    }
    if (h->type == DCOMMI_MSG_CREDIT && h->b != 0) { /* it may never have sent to us before */
        dcommi_send_credit(comm, (int)h->src, h->stream);
    }
    if (news) {
        m->asked = false;
        for (dcommi_run *run = comm->runs; run != NULL; run = run->next) {
            dcommi_run_wake(run, DCOMMI_LANE_CREDIT, (int64_t)h->src);
        }
    }
}

/* ---- arrivals ---- */

static bool dcommi_is_buried(const dcomm_context *context, uint64_t id)
{
    for (unsigned i = 0; i < 64; i++) {
        if (context->buried[i] == id) {
            return true;
        }
    }
    return false;
}

static dcomm_comm *dcommi_comm_find(dcomm_context *context, uint64_t id)
{
    dcomm_comm *comm = context->comms;
    while (comm != NULL && comm->id != id) {
        comm = comm->next;
    }
    return comm;
}

/* Whether a peer that keeps to the window can be at this operation: what is kept is bounded. */
static bool dcommi_within_window(const dcomm_comm *comm, const dcommi_header *h)
{
    uint64_t done =
        h->stream == DCOMMI_STREAM_COLL ? comm->done : comm->members[h->src].p2p_completed;
    return h->seq < done + DCOMMI_WINDOW;
}

/* DATA, RTS, EXPOSE or SIGNAL for which there is no receive or no run yet. */
static dcommi_verdict dcommi_keep_early(dcomm_comm *comm, const dcommi_header *h,
                                        dcommi_transport *transport, const dcommi_arrival *arrival,
                                        uint8_t cls)
{
    if (h->stream == DCOMMI_STREAM_COLL) {
        const dcommi_history *entry = &comm->history[h->seq % DCOMMI_HISTORY];
        dcommi_run *run = dcommi_run_find(comm, h);
        bool known = entry->known && entry->seq == h->seq;
        if (h->seq < comm->done || (known && run == NULL)) { /* it is over here */
            if (known && entry->signature.hash != h->signature) {
                dcommi_query(comm, (int)h->src, h->stream, h->seq, &entry->signature);
            }
            return DCOMMI_CONSUMED;
        }
        if (run != NULL && run->signature.hash != h->signature) {
            dcommi_suspect_mismatch(comm, run, h, arrival->len);
            return DCOMMI_CONSUMED;
        }
    }
    if (!dcommi_within_window(comm, h)) {
        return DCOMMI_CONSUMED;
    }
    dcommi_verdict verdict;
    dcommi_early *early = dcommi_early_make(transport, h, arrival, &verdict);
    if (early == NULL) {
        dcommi_poison(comm, DCOMM_ERR_NO_MEMORY, -1, dcommi_message);
        return DCOMMI_CONSUMED;
    }
    dcommi_early_keep(comm, early, cls);
    return verdict;
}

/* A valid header for a communicator that exists. */
static dcommi_verdict dcommi_dispatch(dcomm_comm *comm, const dcommi_header *h,
                                      dcommi_transport *transport, const dcommi_arrival *arrival)
{
    dcommi_learn_done(comm, h);
    switch (h->type) {
    case DCOMMI_MSG_DATA:
    case DCOMMI_MSG_RTS: {
        dcommi_match_node key =
            dcommi_key(DCOMMI_NODE_POSTED, h->stream, h->seq, h->stage, (int32_t)h->src, h->tag);
        dcommi_match_node *node = dcommi_match_take(comm, &key);
        if (node == NULL) {
            return dcommi_keep_early(comm, h, transport, arrival, DCOMMI_NODE_EARLY);
        }
        dcommi_move *move = (dcommi_move *)((char *)node - offsetof(dcommi_move, node));
        return dcommi_deliver(move, h, transport, arrival->data, arrival->desc);
    }
    case DCOMMI_MSG_PULL:
    case DCOMMI_MSG_FIN:
        dcommi_on_answer(comm, h);
        return DCOMMI_CONSUMED;
    case DCOMMI_MSG_EXPOSE:
    case DCOMMI_MSG_SIGNAL: {
        dcommi_run *run = dcommi_run_find(comm, h);
        if (run == NULL || run->stage != h->stage) {
            if (run != NULL && h->stage < run->stage) {
                return DCOMMI_CONSUMED;
            }
            return dcommi_keep_early(comm, h, transport, arrival, DCOMMI_NODE_EARLY_RUN);
        }
        dcommi_run_told(run, h);
        return DCOMMI_CONSUMED;
    }
    case DCOMMI_MSG_READ: {
        dcommi_run *run = dcommi_run_find(comm, h);
        if (run != NULL && run->stage == h->stage) {
            dcommi_on_read(comm, run, h);
        }
        return DCOMMI_CONSUMED;
    }
    case DCOMMI_MSG_READ_REPLY:
        return dcommi_on_read_reply(comm, h, transport, arrival->data, arrival->desc);
    case DCOMMI_MSG_QUERY:
        dcommi_on_query(comm, h, arrival->data, arrival->len);
        return DCOMMI_CONSUMED;
    case DCOMMI_MSG_REPLY:
        dcommi_on_reply(comm, h, arrival->data, arrival->len);
        return DCOMMI_CONSUMED;
    case DCOMMI_MSG_ABORT: {
        char text[DCOMMI_TEXT_MAX + 1];
        dcommi_peer_text(text, arrival->data, arrival->len);
        int64_t status = (int64_t)h->a;
        dcommi_poison(comm,
                      status < 0 && status >= DCOMM_ERR_INTERNAL ? (dcomm_status)status
                                                                 : DCOMM_ERR_ABORTED,
                      (int)h->src, text);
        return DCOMMI_CONSUMED;
    }
    case DCOMMI_MSG_GOODBYE:
        comm->members[h->src].gone = true;
        comm->members[h->src].gone_after = h->a;
        return DCOMMI_CONSUMED;
    default: /* CREDIT: learned above */
        return DCOMMI_CONSUMED;
    }
}

/* A message for a communicator that does not exist here yet. */
static dcommi_verdict dcommi_stray_keep(dcomm_context *context, const dcommi_header *h,
                                        dcommi_transport *transport, const dcommi_arrival *arrival)
{
    size_t bytes = arrival->data != NULL ? arrival->len : 0;
    if (context->nstrays >= DCOMMI_STRAYS_MAX ||
        context->stray_bytes + bytes > DCOMMI_STRAY_BYTES_MAX) {
        dcommi_log(context->strays_dropped++ == 0 ? DCOMMI_LOG_WARN : DCOMMI_LOG_INFO,
                   "a message of rank %u for a communicator that is not created here is dropped: "
                   "%zu messages, %zu bytes are kept",
                   h->src, context->nstrays, context->stray_bytes);
        return DCOMMI_CONSUMED;
    }
    dcommi_verdict verdict = DCOMMI_CONSUMED;
    dcommi_stray *stray = dcommi_alloc(sizeof *stray);
    dcommi_early *early = stray != NULL ? dcommi_early_make(transport, h, arrival, &verdict) : NULL;
    if (early == NULL) {
        dcommi_free(stray);
        return DCOMMI_CONSUMED;
    }
    *stray = (dcommi_stray){.early = early};
    *(context->last_stray != NULL ? &context->last_stray->next : &context->strays) = stray;
    context->last_stray = stray;
    context->nstrays++;
    context->stray_bytes += bytes;
    return verdict;
}

/* Any message. What cannot be right is dropped: it is not from a dcomm of ours. */
static dcommi_verdict dcommi_on_message(void *user, dcommi_transport *transport,
                                        const dcommi_arrival *arrival)
{
    dcomm_context *context = user;
    dcommi_header h;
    dcommi_verdict verdict = DCOMMI_CONSUMED;
    bool lies_at_sender = arrival->data == NULL && arrival->len > 0;
    if (dcommi_header_parse(arrival->header, arrival->header_len, arrival->len, &h) &&
        !(lies_at_sender && h.type != DCOMMI_MSG_DATA && h.type != DCOMMI_MSG_READ_REPLY)) {
        dcomm_comm *comm = dcommi_comm_find(context, h.comm);
        bool known = comm != NULL && h.src < (uint32_t)comm->size && (int)h.src != comm->rank &&
                     dcommi_peer_of(comm, (int)h.src)->transport == transport;
        if (known && atomic_load_explicit(&comm->poisoned, memory_order_relaxed) == 0) {
            verdict = dcommi_dispatch(comm, &h, transport, arrival);
        } else if (known && h.type == DCOMMI_MSG_GOODBYE) {
            comm->members[h.src].gone = true;
        } else if (known && h.type == DCOMMI_MSG_QUERY) {
            dcommi_send_abort(comm, (int)h.src);
        } else if (comm == NULL && !dcommi_is_buried(context, h.comm) &&
                   h.type != DCOMMI_MSG_QUERY) {
            verdict = dcommi_stray_keep(context, &h, transport, arrival);
        }
    }
    if (verdict == DCOMMI_CONSUMED && lies_at_sender) {
        transport->call->release(transport, arrival->desc);
        return DCOMMI_KEEP;
    }
    return verdict;
}

/* A communicator is there now: what came for it meanwhile. */
static void dcommi_deliver_strays(dcomm_context *context, dcomm_comm *comm)
{
    dcommi_stray *left = context->strays;
    context->strays = context->last_stray = NULL;
    while (left != NULL) {
        dcommi_stray *stray = left;
        dcommi_early *early = stray->early;
        left = stray->next;
        if (early->header.comm != comm->id) {
            stray->next = NULL;
            *(context->last_stray != NULL ? &context->last_stray->next : &context->strays) = stray;
            context->last_stray = stray;
            continue;
        }
        context->nstrays--;
        context->stray_bytes -= early->data != NULL ? early->len : 0;
        dcommi_arrival arrival = {.peer = -1,
                                  .header = &early->header,
                                  .header_len = sizeof early->header,
                                  .data = early->data,
                                  .len = early->len,
                                  .desc = early->desc};
        bool kept = dcommi_on_message(context, early->transport, &arrival) == DCOMMI_KEEP;
        if (kept) {
            early->desc = NULL;
            early->data = NULL;
        }
        dcommi_early_free(early);
        dcommi_free(stray);
    }
}

static void dcommi_on_peer_lost(void *user, dcommi_transport *transport, int peer, const char *why)
{
    (void)transport;
    dcommi_peer_lost(user, peer, why);
}

#endif

#include <sched.h>

#define DCOMMI_CHECK_EVERY 0.05 /* seconds between looks at idle runs */
#define DCOMMI_TURN 64          /* passes in a row by one waiting thread */

static inline bool dcommi_token_try(dcomm_context *context)
{
    return atomic_exchange_explicit(&context->token, 1, memory_order_acquire) == 0;
}

static inline void dcommi_token_release(dcomm_context *context)
{
    atomic_store_explicit(&context->token, 0, memory_order_release);
}

static void dcommi_token_take(dcomm_context *context)
{
    while (!dcommi_token_try(context)) {
        sched_yield();
    }
}

/* Start what other threads have submitted, oldest first. */
static void dcommi_start_submitted(dcomm_context *context)
{
    dcommi_run *run = atomic_exchange_explicit(&context->submitted, NULL, memory_order_acquire);
    dcommi_run *ordered = NULL;
    while (run != NULL) {
        dcommi_run *next = run->next_submitted;
        run->next_submitted = ordered;
        ordered = run;
        run = next;
    }
    while (ordered != NULL) {
        dcommi_run *next = ordered->next_submitted;
        dcommi_run_start(ordered);
        ordered = next;
    }
}

static void dcommi_housekeeping(dcomm_context *context)
{
    double now = dcommi_now();
    if (now < context->next_check) {
        return;
    }
    context->next_check = now + DCOMMI_CHECK_EVERY;
    for (dcomm_comm *comm = context->comms; comm != NULL; comm = comm->next) {
        if (atomic_load(&comm->poisoned) == 0) {
            dcommi_comm_check(comm, now);
        }
    }
}

/* One pass, with the token. Returns whether anything happened. */
static bool dcommi_progress(dcomm_context *context)
{
    if (atomic_load_explicit(&context->submitted, memory_order_relaxed) != NULL) {
        dcommi_start_submitted(context);
    }
    if (atomic_load_explicit(&context->aborts, memory_order_relaxed) != 0) {
        atomic_store(&context->aborts, 0);
        for (dcomm_comm *comm = context->comms; comm != NULL; comm = comm->next) {
            int wanted = 1; /* 2: taken up, so that the reason stays as it is */
            if (atomic_compare_exchange_strong(&comm->abort_wanted, &wanted, 2)) {
                dcommi_poison(comm, DCOMM_ERR_ABORTED, -1, comm->abort_reason);
            }
        }
    }
    unsigned n = context->local->call->progress(context->local);
    if (context->net != NULL) {
        n += context->net->call->progress(context->net);
    }
    while (context->ready_first != NULL) {
        dcommi_lane *lane = context->ready_first;
        context->ready_first = lane->next_ready;
        if (context->ready_first == NULL) {
            context->ready_last = NULL;
        }
        lane->queued = false;
        dcommi_lane_run(lane);
        n++;
    }
    while (context->finished != NULL) {
        dcommi_run *run = context->finished;
        context->finished = run->next_finished;
        dcommi_run_unref(run);
        n++;
    }
    if (n > 0) {
        context->idle = 0;
        context->busy++;
        if ((context->busy & 1023) == 0) {
            dcommi_housekeeping(context);
        }
        return true;
    }
    context->idle++;
    if ((context->idle & 255) == 0) {
        dcommi_housekeeping(context);
    }
    return false;
}

/* Progress if nobody else does, until `run` (may be NULL: once) is complete or it is another
 * thread's turn; give the core away when there has been nothing to do for long. */
static void dcommi_progress_for(dcomm_context *context, const dcommi_run *run)
{
    bool yield = true;
    /* A pass over the network takes as long as many over shared memory alone. */
    unsigned limit = context->net != NULL ? context->spin_limit / 16 : context->spin_limit;
    if (dcommi_token_try(context)) {
        for (int i = 0; i < DCOMMI_TURN; i++) {
            yield = !dcommi_progress(context) && context->idle > limit;
            if (yield || run == NULL ||
                atomic_load_explicit(&run->status, memory_order_relaxed) != DCOMM_IN_PROGRESS) {
                break;
            }
        }
        dcommi_token_release(context);
    }
    if (yield) {
        sched_yield();
    }
}

static void dcommi_progress_or_yield(dcomm_context *context)
{
    dcommi_progress_for(context, NULL);
}

/* Hand a run to the engine: at once where the token is free, else by the queue. */
static void dcommi_submit(dcomm_context *context, dcommi_run *run)
{
    if (dcommi_token_try(context)) {
        if (atomic_load_explicit(&context->submitted, memory_order_relaxed) != NULL) {
            dcommi_start_submitted(context);
        }
        dcommi_run_start(run);
        dcommi_progress(context);
        dcommi_token_release(context);
        return;
    }
    dcommi_run *head = atomic_load_explicit(&context->submitted, memory_order_relaxed);
    do {
        run->next_submitted = head;
    } while (!atomic_compare_exchange_weak_explicit(&context->submitted, &head, run,
                                                    memory_order_release, memory_order_relaxed));
}

#endif
/* ==== include/dcomm/impl/ucx.h ============================================================= */
/* ucx.h - the transport table over UCX: "local" (shared memory: active messages and mapped
 * memory) and "net" (active messages over one interface). Two separate UCX contexts, because one
 * worker with both polls ten times slower and would listen on every interface. */
#ifndef DCOMMI_UCX_H
#define DCOMMI_UCX_H

/* ==== include/dcomm/impl/ucx_iface.h ======================================================= */
/* ucx_iface.h - which network interface connects this host with the others. */
#ifndef DCOMMI_UCX_IFACE_H
#define DCOMMI_UCX_IFACE_H

/* ==== include/dcomm/impl/ucx_config.h ====================================================== */
/* ucx_config.h - how dcomm sets UCX up: its log, its signal handlers, its options, and its status
 * codes as ours. */
#ifndef DCOMMI_UCX_CONFIG_H
#define DCOMMI_UCX_CONFIG_H


#include <dirent.h>
#include <net/if.h>
#include <signal.h>
#include <sys/statvfs.h>
#include <ucp/api/ucp.h>

static dcomm_status dcommi_ucx_status(ucs_status_t status)
{
    switch (status) {
    case UCS_OK:
        return DCOMM_OK;
    case UCS_INPROGRESS:
        return DCOMM_IN_PROGRESS;
    case UCS_ERR_NO_MEMORY:
        return DCOMM_ERR_NO_MEMORY;
    case UCS_ERR_UNSUPPORTED:
    case UCS_ERR_NOT_IMPLEMENTED:
        return DCOMM_ERR_UNSUPPORTED;
    case UCS_ERR_UNREACHABLE:
    case UCS_ERR_CONNECTION_RESET:
    case UCS_ERR_NOT_CONNECTED:
    case UCS_ERR_ENDPOINT_TIMEOUT:
    case UCS_ERR_TIMED_OUT:
    case UCS_ERR_REJECTED:
    case UCS_ERR_CANCELED:
        return DCOMM_ERR_PEER;
    default:
        return DCOMM_ERR_TRANSPORT;
    }
}

/* ---- what UCX does to the whole process ---- */

/* Calls in which UCX may complain of what we know and report ourselves. */
static _Thread_local int dcommi_ucx_hush;

/* UCX exports these, but newer versions' headers for them do not compile as C11. */
typedef int (*dcommi_ucx_log_fn)(const char *file, unsigned line, const char *function,
                                 ucs_log_level_t level, const void *component, const char *format,
                                 va_list args);
extern void dcommi_ucx_push_log(dcommi_ucx_log_fn fn) __asm__("ucs_log_push_handler");
extern void dcommi_ucx_drop_signal(int number) __asm__("ucs_debug_disable_signal");

static int __attribute__((format(printf, 6, 0)))
dcommi_ucx_log(const char *file, unsigned line, const char *function, ucs_log_level_t level,
               const void *component, const char *format, va_list args)
{
    (void)component;
    char text[DCOMMI_MESSAGE_MAX - 128];
    int ours = DCOMMI_LOG_INFO;
    if (level <= UCS_LOG_LEVEL_ERROR) {
        ours = DCOMMI_LOG_ERROR;
    } else if (level == UCS_LOG_LEVEL_WARN) {
        ours = DCOMMI_LOG_WARN;
    }
    if (dcommi_ucx_hush > 0) {
        ours = DCOMMI_LOG_INFO;
    }
    const char *slash = strrchr(file, '/');
    vsnprintf(text, sizeof text, format, args);
    dcommi_log(ours, "UCX %s:%u %s: %s", slash != NULL ? slash + 1 : file, line, function, text);
    return 0; /* no other handler */
}

/* UCX writes its log to stdout and catches SIGSEGV and friends for the whole process, and keeps
 * the program from installing its own. A user who sets UCX_HANDLE_ERRORS has asked for that. */
static void dcommi_ucx_tame(void)
{
    dcommi_ucx_push_log(dcommi_ucx_log);
    if (getenv("UCX_HANDLE_ERRORS") == NULL) {
        dcommi_ucx_hush++;
        static const int caught[] = {SIGILL, SIGSEGV, SIGBUS, SIGFPE};
        for (size_t i = 0; i < sizeof caught / sizeof *caught; i++) {
            dcommi_ucx_drop_signal(caught[i]);
        }
        dcommi_ucx_hush--;
    }
}

static void dcommi_ucx_tame_once(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, dcommi_ucx_tame);
}

/* ---- options ---- */

typedef struct dcommi_ucx_option {
    const char *name; /* of a transport's own option: without the transport's name */
    const char *value;
    const char *user; /* the environment variable that overrides it; NULL: none may */
} dcommi_ucx_option;

static dcomm_status dcommi_ucx_set_options(ucp_config_t *config, const dcommi_ucx_option *options,
                                           size_t n)
{
    for (size_t i = 0; i < n; i++) {
        if (options[i].name == NULL ||
            (options[i].user != NULL && getenv(options[i].user) != NULL)) {
            continue;
        }
        ucs_status_t status = ucp_config_modify(config, options[i].name, options[i].value);
        if (status != UCS_OK) {
            return dcommi_fail(DCOMM_ERR_TRANSPORT, "UCX refuses its option %s=%s: %s",
                               options[i].name, options[i].value, ucs_status_string(status));
        }
    }
    return DCOMM_OK;
}

/* ---- shared memory's limits ---- */

/* A tmpfs that is full kills its users by SIGBUS when they first touch a page: ask before. */
static dcomm_status dcommi_ucx_shm_check(size_t need)
{
    const char *dir = getenv("UCX_POSIX_DIR");
    struct statvfs fs;
    if (dir == NULL) {
        dir = "/dev/shm";
    }
    if (statvfs(dir, &fs) != 0) {
        return dcommi_fail(DCOMM_ERR_SYSTEM, "%s, where shared memory is made, is not usable: %s",
                           dir, strerror(errno));
    }
    unsigned long long left = (unsigned long long)fs.f_bavail * fs.f_frsize;
    if (fs.f_blocks != 0 && left < need) {
        return dcommi_fail(DCOMM_ERR_SYSTEM,
                           "%s is too small: %zu bytes of shared memory are needed, %llu are left "
                           "(containers: raise --shm-size)",
                           dir, need, left);
    }
    return DCOMM_OK;
}

/* ---- the network interface ---- */

typedef char dcommi_ucx_name[64];

static bool dcommi_ucx_is_netdev(const char *name)
{
    return strlen(name) < IF_NAMESIZE && if_nametoindex(name) != 0;
}

#endif

#include <ifaddrs.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>

/* The interface of the IPv4, else the IPv6 default route with the lowest metric. */
static bool dcommi_ucx_default_iface(dcommi_ucx_name name)
{
    char line[512], device[64];
    unsigned long best = ~0ul;
    FILE *f = fopen("/proc/net/route", "re");
    while (f != NULL && fgets(line, sizeof line, f) != NULL) {
        unsigned destination, gateway, flags, mask;
        unsigned long metric;
        if (sscanf(line, "%63s %x %x %x %*d %*d %lu %x", device, &destination, &gateway, &flags,
                   &metric, &mask) == 6 &&
            destination == 0 && mask == 0 && (flags & 1) != 0 && metric < best) {
            best = metric;
            strcpy(name, device);
        }
    }
    if (f != NULL) {
        fclose(f);
    }
    if (best != ~0ul) {
        return true;
    }
    f = fopen("/proc/net/ipv6_route", "re");
    while (f != NULL && fgets(line, sizeof line, f) != NULL) {
        char destination[33];
        unsigned prefix, flags;
        unsigned long metric;
        if (sscanf(line, "%32s %x %*s %*x %*s %lx %*x %*x %x %63s", destination, &prefix, &metric,
                   &flags, device) == 5 &&
            prefix == 0 && strspn(destination, "0") == 32 && (flags & 1) != 0 &&
            (flags & 0x200) == 0 && strcmp(device, "lo") != 0 && metric < best) {
            best = metric;
            strcpy(name, device);
        }
    }
    if (f != NULL) {
        fclose(f);
    }
    return best != ~0ul;
}

/* The interface that has an address and is not the loopback; false: none is. */
static bool dcommi_ucx_iface_with(const struct sockaddr *wanted, dcommi_ucx_name name)
{
    struct ifaddrs *all = NULL;
    bool found = false;
    if (getifaddrs(&all) != 0) {
        return false;
    }
    for (struct ifaddrs *i = all; i != NULL && !found; i = i->ifa_next) {
        if (i->ifa_addr == NULL || i->ifa_addr->sa_family != wanted->sa_family ||
            strlen(i->ifa_name) >= sizeof(dcommi_ucx_name)) {
            continue;
        }
        bool same =
            wanted->sa_family == AF_INET
                ? memcmp(&((const struct sockaddr_in *)(const void *)i->ifa_addr)->sin_addr,
                         &((const struct sockaddr_in *)(const void *)wanted)->sin_addr,
                         sizeof(struct in_addr)) == 0
                : memcmp(&((const struct sockaddr_in6 *)(const void *)i->ifa_addr)->sin6_addr,
                         &((const struct sockaddr_in6 *)(const void *)wanted)->sin6_addr,
                         sizeof(struct in6_addr)) == 0;
        found = same && (i->ifa_flags & IFF_LOOPBACK) == 0; /* a name may mean 127.0.1.1 at home */
        if (found) {
            strcpy(name, i->ifa_name);
        }
    }
    freeifaddrs(all);
    return found;
}

/* The interface by which a host is reached: its ranks will be, too. Sends nothing. */
static bool dcommi_ucx_iface_towards(const char *host, dcommi_ucx_name name)
{
    char plain[256];
    size_t len = strlen(host);
    bool brackets = len > 2 && host[0] == '[' && host[len - 1] == ']';
    snprintf(plain, sizeof plain, "%.*s", (int)(brackets ? len - 2 : len),
             brackets ? host + 1 : host);
    struct addrinfo hints = {.ai_socktype = SOCK_DGRAM}, *list = NULL;
    if (getaddrinfo(plain, "9", &hints, &list) != 0) {
        return false;
    }
    bool found = false;
    for (struct addrinfo *a = list; a != NULL && !found; a = a->ai_next) {
        struct sockaddr_storage own;
        socklen_t own_len = sizeof own;
        int fd = socket(a->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
        found = fd >= 0 && connect(fd, a->ai_addr, a->ai_addrlen) == 0 &&
                getsockname(fd, (struct sockaddr *)&own, &own_len) == 0 &&
                dcommi_ucx_iface_with((struct sockaddr *)&own, name);
        if (fd >= 0) {
            close(fd);
        }
    }
    freeaddrinfo(list);
    return found;
}

/* The first interface that is up, has an address and is not the loopback. */
static bool dcommi_ucx_first_iface(dcommi_ucx_name name)
{
    struct ifaddrs *all = NULL;
    bool found = false;
    if (getifaddrs(&all) != 0) {
        return false;
    }
    for (struct ifaddrs *i = all; i != NULL && !found; i = i->ifa_next) {
        found = i->ifa_addr != NULL &&
                (i->ifa_addr->sa_family == AF_INET || i->ifa_addr->sa_family == AF_INET6) &&
                (i->ifa_flags & IFF_RUNNING) != 0 && (i->ifa_flags & IFF_LOOPBACK) == 0 &&
                strlen(i->ifa_name) < sizeof(dcommi_ucx_name);
        if (found) {
            strcpy(name, i->ifa_name);
        }
    }
    freeifaddrs(all);
    return found;
}

/* "eth0 lo mlx5_0": what a user may choose from. */
static void dcommi_ucx_list_devices(char *text, size_t size)
{
    static const char *const folders[] = {"/sys/class/net", "/sys/class/infiniband"};
    size_t used = 0;
    text[0] = '\0';
    for (size_t i = 0; i < sizeof folders / sizeof *folders; i++) {
        DIR *dir = opendir(folders[i]);
        for (struct dirent *e; dir != NULL && (e = readdir(dir)) != NULL;) {
            if (e->d_name[0] != '.' && used < size) {
                int n = snprintf(text + used, size - used, "%s%s", used > 0 ? " " : "", e->d_name);
                used += n > 0 ? (size_t)n : 0;
            }
        }
        if (dir != NULL) {
            closedir(dir);
        }
    }
}

/* What UCX is to use, and whether it is a network interface (TCP) or an RDMA device, which may
 * carry a port: "mlx5_0:1". */
static dcomm_status dcommi_ucx_choose_iface(const char *wanted, dcommi_ucx_name name, bool *tcp)
{
    const char *source = "iface";
    if (wanted == NULL || *wanted == '\0') {
        wanted = getenv("DCOMM_IFACE");
        source = "DCOMM_IFACE";
    }
    *tcp = true;
    if (wanted == NULL || *wanted == '\0') {
        const char *master = getenv("MASTER_ADDR");
        bool chosen = master != NULL && dcommi_ucx_iface_towards(master, name);
        if (!chosen && !dcommi_ucx_default_iface(name) && !dcommi_ucx_first_iface(name)) {
            strcpy(name, "lo");
        }
        return DCOMM_OK;
    }
    bool fits = strlen(wanted) + 2 < sizeof(dcommi_ucx_name) && strpbrk(wanted, "/,^*") == NULL;
    if (fits && dcommi_ucx_is_netdev(wanted)) {
        strcpy(name, wanted);
        return DCOMM_OK;
    }
    if (fits) {
        char path[sizeof(dcommi_ucx_name) + 32];
        int device = (int)strcspn(wanted, ":");
        snprintf(path, sizeof path, "/sys/class/infiniband/%.*s", device, wanted);
        if (device > 0 && access(path, F_OK) == 0) {
            *tcp = false;
            snprintf(name, sizeof(dcommi_ucx_name), "%.*s%s", (int)sizeof(dcommi_ucx_name) - 3,
                     wanted, wanted[device] == ':' ? "" : ":1");
            return DCOMM_OK;
        }
    }
    char devices[256];
    dcommi_ucx_list_devices(devices, sizeof devices);
    return dcommi_fail(DCOMM_ERR_INVALID, "%s: no network interface '%.64s'; this host has: %s",
                       source, wanted, devices);
}

#endif
/* ==== include/dcomm/impl/ucx_peer.h ======================================================== */
/* ucx_peer.h - one UCX worker's state: its peers and their endpoints, the sends and fetches under
 * way, the messages that the engine keeps. */
#ifndef DCOMMI_UCX_PEER_H
#define DCOMMI_UCX_PEER_H

/* ==== include/dcomm/impl/ucx_region.h ====================================================== */
/* ucx_region.h - memory that peers on this host can map, by UCX's shared-memory keys. */
#ifndef DCOMMI_UCX_REGION_H
#define DCOMMI_UCX_REGION_H


/* What must be given back before the worker goes: our own memory, or a peer's key. */
typedef struct dcommi_ucx_mapping {
    struct dcommi_ucx_mapping *prev, *next;
    ucp_mem_h memory;
    void *key;
    ucp_rkey_h rkey;
} dcommi_ucx_mapping;

static void dcommi_ucx_mapping_add(dcommi_ucx_mapping *list, dcommi_ucx_mapping *m)
{
    m->prev = list;
    m->next = list->next;
    list->next->prev = m;
    list->next = m;
}

static void dcommi_ucx_mapping_drop(ucp_context_h context, dcommi_ucx_mapping *m)
{
    m->prev->next = m->next;
    m->next->prev = m->prev;
    if (m->rkey != NULL) {
        ucp_rkey_destroy(m->rkey);
    }
    if (m->key != NULL) {
        ucp_rkey_buffer_release(m->key);
    }
    if (m->memory != NULL) {
        ucp_mem_unmap(context, m->memory);
    }
    dcommi_free(m);
}

static dcomm_status dcommi_ucx_region_allocate(ucp_context_h context, dcommi_ucx_mapping *list,
                                               size_t len, dcommi_region *region)
{
    dcommi_ucx_mapping *m = dcommi_alloc(sizeof *m);
    if (m == NULL) {
        return DCOMM_ERR_NO_MEMORY;
    }
    dcommi_ucx_mapping_add(list, m);
    ucp_mem_map_params_t params = {.field_mask = UCP_MEM_MAP_PARAM_FIELD_LENGTH |
                                                 UCP_MEM_MAP_PARAM_FIELD_FLAGS,
                                   .length = len,
                                   .flags = UCP_MEM_MAP_ALLOCATE};
    ucp_mem_attr_t attr = {.field_mask = UCP_MEM_ATTR_FIELD_ADDRESS | UCP_MEM_ATTR_FIELD_LENGTH};
    size_t key_len = 0;
    dcommi_ucx_hush++;
    ucs_status_t status = ucp_mem_map(context, &params, &m->memory);
    dcommi_ucx_hush--;
    if (status != UCS_OK) {
        m->memory = NULL;
    } else {
        status = ucp_mem_query(m->memory, &attr);
    }
    if (status == UCS_OK) {
        status = ucp_rkey_pack(context, m->memory, &m->key, &key_len);
    }
    if (status != UCS_OK) {
        dcommi_ucx_mapping_drop(context, m);
        return dcommi_fail(
            status == UCS_ERR_NO_MEMORY ? DCOMM_ERR_SYSTEM : dcommi_ucx_status(status),
            "no shared memory of %zu bytes: %s (see /proc/sys/kernel/shmmax and the size "
            "of /dev/shm)",
            len, ucs_status_string(status));
    }
    *region = (dcommi_region){
        .base = attr.address, .len = len, .handle = m, .key = m->key, .key_len = key_len};
    return DCOMM_OK;
}

static dcomm_status dcommi_ucx_region_attach(ucp_context_h context, dcommi_ucx_mapping *list,
                                             ucp_ep_h ep, const void *key, void *remote_base,
                                             void **ptr, void **map)
{
    dcommi_ucx_mapping *m = dcommi_alloc(sizeof *m);
    if (m == NULL) {
        return DCOMM_ERR_NO_MEMORY;
    }
    dcommi_ucx_mapping_add(list, m);
    ucs_status_t status = ucp_ep_rkey_unpack(ep, key, &m->rkey);
    if (status != UCS_OK) {
        m->rkey = NULL;
    } else {
        status = ucp_rkey_ptr(m->rkey, (uint64_t)(uintptr_t)remote_base, ptr);
    }
    if (status != UCS_OK) {
        dcommi_ucx_mapping_drop(context, m);
        return dcommi_fail(dcommi_ucx_status(status), "a peer's shared memory cannot be mapped: %s",
                           ucs_status_string(status));
    }
    *map = m;
    return DCOMM_OK;
}

#endif
/* ==== include/dcomm/impl/ucx_watch.h ======================================================= */
/* ucx_watch.h - sees the processes of this host end. UCX's own check needs an endpoint, comes once
 * a second and takes a zombie for alive; a pidfd has none of these faults. */
#ifndef DCOMMI_UCX_WATCH_H
#define DCOMMI_UCX_WATCH_H


#include <sys/epoll.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/syscall.h>

/* What stands before UCX's own bytes in an address. */
typedef struct dcommi_ucx_card {
    uint64_t id; /* of the transport, random: long messages name their sender by it */
    uint64_t pid_space;
    int64_t pid;
} dcommi_ucx_card;

static void dcommi_ucx_card_make(dcommi_ucx_card *card)
{
    static _Atomic uint64_t counter;
    struct stat space = {0};
    *card = (dcommi_ucx_card){.pid = getpid()};
    if (stat("/proc/self/ns/pid", &space) == 0) {
        card->pid_space = (uint64_t)space.st_ino;
    }
    if (getrandom(&card->id, sizeof card->id, GRND_NONBLOCK) != (ssize_t)sizeof card->id) {
        card->id = dcommi_mix((uint64_t)(1e9 * dcommi_now()), (uint64_t)card->pid);
    }
    card->id = dcommi_mix(card->id, atomic_fetch_add(&counter, 1)) | 1;
}

/* A descriptor that becomes readable when the process ends, registered in the epoll set with
 * `user`; -1 where there is none to be had: another pid namespace, an old kernel, ourselves. */
static int dcommi_ucx_watch_add(int *epoll, const dcommi_ucx_card *mine,
                                const dcommi_ucx_card *theirs, void *user)
{
#ifdef SYS_pidfd_open
    if (theirs->pid == mine->pid || theirs->pid_space != mine->pid_space || mine->pid_space == 0 ||
        theirs->pid <= 0) {
        return -1;
    }
    if (*epoll < 0) {
        *epoll = epoll_create1(EPOLL_CLOEXEC);
    }
    int fd = (int)syscall(SYS_pidfd_open, (pid_t)theirs->pid, 0u);
    if (fd < 0) {
        return -1;
    }
    struct epoll_event event = {.events = EPOLLIN | EPOLLONESHOT, .data.ptr = user};
    if (epoll_ctl(*epoll, EPOLL_CTL_ADD, fd, &event) != 0) {
        close(fd);
        return -1;
    }
    return fd;
#else
    (void)epoll, (void)mine, (void)theirs, (void)user;
    return -1;
#endif
}

/* The users of some processes that have ended, each once. */
static int dcommi_ucx_watch_poll(int epoll, void **users, int max)
{
    struct epoll_event events[16];
    int n = epoll < 0 ? 0 : epoll_wait(epoll, events, max < 16 ? max : 16, 0);
    for (int i = 0; i < n; i++) {
        users[i] = events[i].data.ptr;
    }
    return n < 0 ? 0 : n;
}

static inline double dcommi_ucx_coarse_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC_COARSE, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

#endif

typedef struct dcommi_ucx dcommi_ucx;

typedef struct dcommi_ucx_peer {
    struct dcommi_ucx_peer *next; /* among the removed */
    dcommi_ucx *ucx;
    int index;
    uint64_t id;
    int pidfd;
    void *address;
    ucp_ep_h ep; /* NULL: not opened yet, or closed */
    ucs_status_t failure;
    bool ended;    /* its process, but what it sent may still be on its way */
    bool reported; /* its loss */
    bool flushing;
    double closed_at; /* coarse clock; 0: not closed */
    size_t flights;   /* under way, to or from it */
} dcommi_ucx_peer;

/* One send or fetch that UCX has not finished. UCX reads the header from here until then. */
typedef struct dcommi_ucx_flight {
    struct dcommi_ucx_flight *prev, *next;
    dcommi_ucx *ucx;
    dcommi_ucx_peer *peer; /* NULL: not known */
    dcommi_op *op;         /* NULL: given up; only UCX still knows it */
    bool is_fetch;
    dcomm_status status;
    unsigned char header[DCOMMI_HEADER_MAX + sizeof(uint64_t)];
} dcommi_ucx_flight;

/* A message that may be, or is, kept: what the engine knows as desc. */
typedef struct dcommi_ucx_kept {
    struct dcommi_ucx_kept *prev, *next;
    void *data;
    bool is_long;
    bool arriving, dropped; /* in its callback; released there */
    dcommi_ucx_peer *peer;  /* of a long message; NULL: not known, or removed */
    bool removed;
} dcommi_ucx_kept;

#define DCOMMI_UCX_SLAB 32

typedef struct dcommi_ucx_slab {
    struct dcommi_ucx_slab *next;
    dcommi_ucx_flight flights[DCOMMI_UCX_SLAB];
    dcommi_ucx_kept kept[DCOMMI_UCX_SLAB];
} dcommi_ucx_slab;

struct dcommi_ucx {
    dcommi_transport base;
    ucp_context_h context;
    ucp_worker_h worker;
    dcommi_ucx_card card;
    bool maps;   /* peers' memory can be mapped */
    bool inside; /* UCX's progress is on the stack */
    bool direct; /* an op's done may be called from UCX's callback: only straight in progress */
    bool chores; /* something waits for the end of progress */
    bool closing;
    unsigned turns;    /* of progress */
    double last_watch; /* coarse clock */
    int epoll;         /* of the peers' pidfds; -1: none */
    int ended;         /* processes that ended, not reported yet */
    int ended_turns;
    dcommi_ucx_peer **peers;
    size_t peers_capacity;
    dcommi_ucx_peer *removed;        /* not yet closed, or UCX still works for them */
    dcommi_ucx_flight pending, done; /* heads of rings */
    dcommi_ucx_flight *spare;
    dcommi_ucx_kept kept; /* head of a ring */
    dcommi_ucx_kept *spare_kept;
    dcommi_ucx_slab *slabs;
    dcommi_ucx_mapping mappings; /* head of a ring */
};

/* ---- flights ---- */

static bool dcommi_ucx_refill(dcommi_ucx *u)
{
    dcommi_ucx_slab *slab = dcommi_alloc(sizeof *slab);
    if (slab == NULL) {
        return false;
    }
    slab->next = u->slabs;
    u->slabs = slab;
    for (size_t i = 0; i < DCOMMI_UCX_SLAB; i++) {
        slab->flights[i].ucx = u;
        slab->flights[i].next = u->spare;
        u->spare = &slab->flights[i];
        slab->kept[i].next = u->spare_kept;
        u->spare_kept = &slab->kept[i];
    }
    return true;
}

static void dcommi_ucx_flight_link(dcommi_ucx_flight *ring, dcommi_ucx_flight *f)
{
    f->next = ring;
    f->prev = ring->prev;
    ring->prev->next = f;
    ring->prev = f;
}

static void dcommi_ucx_flight_unlink(dcommi_ucx_flight *f)
{
    f->prev->next = f->next;
    f->next->prev = f->prev;
}

static dcommi_ucx_flight *dcommi_ucx_flight_start(dcommi_ucx *u, dcommi_ucx_peer *p, bool is_fetch,
                                                  dcommi_op *op)
{
    if (DCOMMI_UNLIKELY(u->spare == NULL) && !dcommi_ucx_refill(u)) {
        return NULL;
    }
    dcommi_ucx_flight *f = u->spare;
    u->spare = f->next;
    f->peer = p;
    f->op = op;
    f->is_fetch = is_fetch;
    op->handle = f;
    if (p != NULL) {
        p->flights++;
    }
    dcommi_ucx_flight_link(&u->pending, f);
    return f;
}

/* Out of its ring; its peer no longer waits for it. */
static void dcommi_ucx_flight_leave(dcommi_ucx_flight *f)
{
    dcommi_ucx_flight_unlink(f);
    if (f->peer != NULL) {
        f->peer->flights--;
        f->peer = NULL;
    }
}

static void dcommi_ucx_flight_end(dcommi_ucx_flight *f)
{
    dcommi_ucx_flight_leave(f);
    f->next = f->ucx->spare;
    f->ucx->spare = f;
}

static void dcommi_ucx_flight_finish(dcommi_ucx_flight *f)
{
    dcommi_op *op = f->op;
    dcomm_status status = f->status;
    dcommi_ucx_flight_end(f);
    if (op != NULL) {
        op->handle = NULL;
        op->done(op, status);
    }
}

static void dcommi_ucx_flight_landed(void *request, ucs_status_t status, dcommi_ucx_flight *f)
{
    dcommi_ucx *u = f->ucx;
    ucp_request_free(request);
    f->status = dcommi_ucx_status(status);
    if (u->direct) {
        dcommi_ucx_flight_finish(f);
        return;
    }
    dcommi_ucx_flight_leave(f);
    dcommi_ucx_flight_link(&u->done, f);
    u->chores = true;
}

static void dcommi_ucx_on_sent(void *request, ucs_status_t status, void *user)
{
    dcommi_ucx_flight_landed(request, status, user);
}

static void dcommi_ucx_on_fetched(void *request, ucs_status_t status, size_t length, void *user)
{
    (void)length;
    dcommi_ucx_flight_landed(request, status, user);
}

static unsigned dcommi_ucx_deliver(dcommi_ucx *u)
{
    unsigned n = 0;
    while (u->done.next != &u->done) {
        dcommi_ucx_flight_finish(u->done.next);
        n++;
    }
    return n;
}

/* UCX cannot cancel what is under way to a dead process whose queue is full: give such ops back
 * a moment after the endpoint was closed. A fetch from a peer that may be alive has to wait: its
 * data might still arrive in the buffer. */
static unsigned dcommi_ucx_give_up(dcommi_ucx *u, double now)
{
    unsigned n = 0;
    for (dcommi_ucx_flight *f = u->pending.next, *next; f != &u->pending; f = next) {
        dcommi_ucx_peer *p = f->peer;
        next = f->next;
        if (p == NULL || p->closed_at <= 0 || now < p->closed_at + 0.1 ||
            (f->is_fetch && p->failure == UCS_OK)) {
            continue;
        }
        dcommi_op *op = f->op;
        f->op = NULL;
        f->peer = NULL;
        p->flights--;
        if (op != NULL) {
            op->handle = NULL;
            op->done(op, DCOMM_ERR_PEER);
            n++;
            next = u->pending.next; /* done may have started others */
        }
    }
    return n;
}

/* ---- kept messages ---- */

static void dcommi_ucx_kept_link(dcommi_ucx *u, dcommi_ucx_kept *k)
{
    k->next = u->kept.next;
    k->prev = &u->kept;
    k->next->prev = k;
    u->kept.next = k;
}

static void dcommi_ucx_kept_put(dcommi_ucx *u, dcommi_ucx_kept *k)
{
    k->prev->next = k->next;
    k->next->prev = k->prev;
    k->next = u->spare_kept;
    u->spare_kept = k;
}

static void dcommi_ucx_kept_forget_peer(dcommi_ucx *u, const dcommi_ucx_peer *p)
{
    for (dcommi_ucx_kept *k = u->kept.next; k != &u->kept; k = k->next) {
        if (k->peer == p) {
            k->peer = NULL;
            k->removed = true;
        }
    }
}

/* ---- peers ---- */

static void dcommi_ucx_on_failure(void *arg, ucp_ep_h ep, ucs_status_t status)
{
    dcommi_ucx_peer *p = arg;
    (void)ep;
    if (p->failure == UCS_OK) {
        p->failure = status;
    }
    p->ucx->chores = true;
}

static dcommi_ucx_peer *dcommi_ucx_peer_at(dcommi_ucx *u, int peer)
{
    return peer >= 0 && (size_t)peer < u->peers_capacity ? u->peers[peer] : NULL;
}

static dcommi_ucx_peer *dcommi_ucx_peer_by_id(dcommi_ucx *u, uint64_t id)
{
    for (size_t i = 0; i < u->peers_capacity; i++) {
        if (u->peers[i] != NULL && u->peers[i]->id == id) {
            return u->peers[i];
        }
    }
    return NULL;
}

static dcomm_status dcommi_ucx_peer_open(dcommi_ucx *u, int peer, dcommi_ucx_peer **p_p)
{
    dcommi_ucx_peer *p = dcommi_ucx_peer_at(u, peer);
    if (DCOMMI_UNLIKELY(p == NULL)) {
        return dcommi_fail(DCOMM_ERR_INTERNAL, "%s: peer %d was never added", u->base.name, peer);
    }
    if (DCOMMI_UNLIKELY(p->failure != UCS_OK || u->closing)) {
        return dcommi_fail(DCOMM_ERR_PEER, "%s: peer %d is lost: %s", u->base.name, peer,
                           p->failure != UCS_OK ? ucs_status_string(p->failure) : "closed");
    }
    if (DCOMMI_UNLIKELY(p->ep == NULL)) {
        ucp_ep_params_t params = {.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS |
                                                UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE |
                                                UCP_EP_PARAM_FIELD_ERR_HANDLER,
                                  .address = p->address,
                                  .err_mode = UCP_ERR_HANDLING_MODE_PEER,
                                  .err_handler = {.cb = dcommi_ucx_on_failure, .arg = p}};
        dcommi_ucx_hush++;
        ucs_status_t status = ucp_ep_create(u->worker, &params, &p->ep);
        dcommi_ucx_hush--;
        if (status != UCS_OK) {
            p->ep = NULL;
            return dcommi_fail(p->ended ? DCOMM_ERR_PEER : dcommi_ucx_status(status),
                               "%s: peer %d cannot be reached: %s", u->base.name, peer,
                               ucs_status_string(status));
        }
    }
    *p_p = p;
    return DCOMM_OK;
}

/* Not inside UCX's progress: closing calls back. */
static void dcommi_ucx_peer_close(dcommi_ucx_peer *p)
{
    if (p->closed_at <= 0) {
        p->closed_at = dcommi_ucx_coarse_now();
    }
    if (p->ep == NULL) {
        return;
    }
    ucp_ep_h ep = p->ep;
    p->ep = NULL;
    ucp_request_param_t param = {.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS,
                                 .flags = UCP_EP_CLOSE_FLAG_FORCE};
    ucs_status_ptr_t request = ucp_ep_close_nbx(ep, &param);
    if (UCS_PTR_IS_PTR(request)) {
        ucp_request_free(request);
    }
}

static void dcommi_ucx_on_flushed(void *request, ucs_status_t status, void *user)
{
    dcommi_ucx_peer *p = user;
    (void)status;
    ucp_request_free(request);
    p->flushing = false;
    p->ucx->chores = true;
}

/* Everything is closed by force in the end, so that closing never waits; before that, flush. */
static void dcommi_ucx_peer_flush(dcommi_ucx_peer *p)
{
    if (p->ep == NULL || p->failure != UCS_OK || p->flushing) {
        return;
    }
    ucp_request_param_t param = {.op_attr_mask =
                                     UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA,
                                 .cb.send = dcommi_ucx_on_flushed,
                                 .user_data = p};
    ucs_status_ptr_t request = ucp_ep_flush_nbx(p->ep, &param);
    p->flushing = UCS_PTR_IS_PTR(request);
}

static void dcommi_ucx_peer_free(dcommi_ucx_peer *p)
{
    if (p == NULL) {
        return;
    }
    if (p->pidfd >= 0) {
        epoll_ctl(p->ucx->epoll, EPOLL_CTL_DEL, p->pidfd, NULL); /* a forked child may hold it */
        close(p->pidfd);
    }
    dcommi_free(p->address);
    dcommi_free(p);
}

static void dcommi_ucx_sweep_removed(dcommi_ucx *u)
{
    for (dcommi_ucx_peer **link = &u->removed; *link != NULL;) {
        dcommi_ucx_peer *p = *link;
        if (!p->flushing || p->failure != UCS_OK) {
            dcommi_ucx_peer_close(p);
        }
        if (p->flushing || p->flights > 0) { /* they name p */
            link = &p->next;
            continue;
        }
        *link = p->next;
        dcommi_ucx_peer_free(p);
    }
}

static unsigned dcommi_ucx_report_lost(dcommi_ucx *u)
{
    unsigned n = 0;
    for (size_t i = 0; i < u->peers_capacity; i++) {
        dcommi_ucx_peer *p = u->peers[i];
        if (p == NULL || p->failure == UCS_OK || p->reported) {
            continue;
        }
        p->reported = true;
        dcommi_ucx_peer_close(p);
        n++;
        if (!u->closing) {
            u->base.handlers.on_peer_lost(u->base.handlers.user, &u->base, p->index,
                                          p->ended ? "its process has ended"
                                                   : ucs_status_string(p->failure));
        }
    }
    return n;
}

/* ---- the watch ---- */

/* Now and then: have processes ended, must ops be given up? */
static unsigned dcommi_ucx_watch(dcommi_ucx *u)
{
    double now = dcommi_ucx_coarse_now();
    if (now - u->last_watch < 0.05) {
        return 0;
    }
    u->last_watch = now;
    void *users[16];
    int n = dcommi_ucx_watch_poll(u->epoll, users, 16);
    for (int i = 0; i < n; i++) {
        ((dcommi_ucx_peer *)users[i])->ended = true;
    }
    u->ended += n;
    unsigned given_up = u->pending.next != &u->pending ? dcommi_ucx_give_up(u, now) : 0;
    if (u->removed != NULL) {
        dcommi_ucx_sweep_removed(u);
    }
    return given_up;
}

/* What the ended processes had sent is read: now they are lost. */
static void dcommi_ucx_bury(dcommi_ucx *u)
{
    for (size_t i = 0; i < u->peers_capacity; i++) {
        dcommi_ucx_peer *p = u->peers[i];
        if (p != NULL && p->ended && p->failure == UCS_OK) {
            p->failure = UCS_ERR_CONNECTION_RESET;
        }
    }
    for (dcommi_ucx_peer *p = u->removed; p != NULL; p = p->next) {
        if (p->ended && p->failure == UCS_OK) {
            p->failure = UCS_ERR_CONNECTION_RESET;
        }
    }
    u->ended = 0;
    u->ended_turns = 0;
    u->chores = true;
}

#endif

#include <sched.h>

#define DCOMMI_UCX_AM_ID 1
/* Longest payload that is sent without asking the receiver for a place first. The local one and
 * our largest header fill one segment (DCOMMI_UCX_SEG) of UCX's shared-memory queue. */
#define DCOMMI_UCX_EAGER_LOCAL 8192
#define DCOMMI_UCX_EAGER_NET 65536
#define DCOMMI_UCX_SEG "8448"
/* What a worker's own queues take of /dev/shm at first. */
#define DCOMMI_UCX_SHM_NEED ((size_t)8 << 20)

/* ---- the table ---- */

static dcomm_status dcommi_ucx_add_peer(dcommi_transport *t, int peer, const void *address,
                                        size_t len)
{
    dcommi_ucx *u = (dcommi_ucx *)t;
    dcommi_ucx_card card;
    if (peer < 0 || len <= sizeof card || dcommi_ucx_peer_at(u, peer) != NULL) {
        return dcommi_fail(DCOMM_ERR_INTERNAL, "%s: peer %d (%zu bytes of address) cannot be added",
                           t->name, peer, len);
    }
    void *array = u->peers;
    DCOMMI_TRY(dcommi_grow(&array, &u->peers_capacity, (size_t)peer + 1, sizeof *u->peers));
    u->peers = array;
    dcommi_ucx_peer *p = dcommi_alloc(sizeof *p);
    void *copy = p != NULL ? dcommi_alloc(len - sizeof card) : NULL;
    if (copy == NULL) {
        dcommi_free(p);
        return DCOMM_ERR_NO_MEMORY;
    }
    memcpy(&card, address, sizeof card);
    memcpy(copy, (const char *)address + sizeof card, len - sizeof card);
    *p = (dcommi_ucx_peer){
        .ucx = u, .index = peer, .id = card.id, .pidfd = -1, .address = copy, .failure = UCS_OK};
    if (u->maps) {
        p->pidfd = dcommi_ucx_watch_add(&u->epoll, &u->card, &card, p);
    }
    u->peers[peer] = p;
    return DCOMM_OK;
}

static void dcommi_ucx_remove_peer(dcommi_transport *t, int peer, bool force)
{
    dcommi_ucx *u = (dcommi_ucx *)t;
    dcommi_ucx_peer *p = dcommi_ucx_peer_at(u, peer);
    if (p == NULL) {
        return;
    }
    bool direct = u->direct;
    u->direct = false;
    u->peers[peer] = NULL;
    dcommi_ucx_kept_forget_peer(u, p);
    p->next = u->removed;
    u->removed = p;
    u->chores = true;
    if (!force) {
        dcommi_ucx_peer_flush(p);
    }
    if (!u->inside) {
        dcommi_ucx_sweep_removed(u);
    }
    u->direct = direct;
}

/* What UCX answered: done, under way (the flight stays pending), or refused. */
static dcomm_status dcommi_ucx_launched(dcommi_ucx_flight *f, ucs_status_ptr_t answer)
{
    if (UCS_PTR_IS_PTR(answer)) {
        return DCOMM_IN_PROGRESS;
    }
    dcommi_ucx_flight_end(f);
    return dcommi_ucx_status(UCS_PTR_STATUS(answer));
}

static dcomm_status dcommi_ucx_send(dcommi_transport *t, int peer, const void *header,
                                    size_t header_len, const void *data, size_t len, dcommi_op *op)
{
    dcommi_ucx *u = (dcommi_ucx *)t;
    dcommi_ucx_peer *p = NULL;
    if (header_len > DCOMMI_HEADER_MAX) {
        return dcommi_fail(DCOMM_ERR_INTERNAL, "a header of %zu bytes is too long", header_len);
    }
    DCOMMI_TRY(dcommi_ucx_peer_open(u, peer, &p));
    dcommi_ucx_flight *f = dcommi_ucx_flight_start(u, p, false, op);
    if (f == NULL) {
        return DCOMM_ERR_NO_MEMORY;
    }
    memcpy(f->header, header, header_len);
    ucp_request_param_t param = {.op_attr_mask =
                                     UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA |
                                     UCP_OP_ATTR_FIELD_FLAGS | UCP_OP_ATTR_FIELD_MEMORY_TYPE,
                                 .flags = UCP_AM_SEND_FLAG_EAGER,
                                 .cb.send = dcommi_ucx_on_sent,
                                 .user_data = f,
                                 .memory_type = UCS_MEMORY_TYPE_HOST};
    if (len > t->eager_max) {
        memcpy(f->header + header_len, &u->card.id, sizeof u->card.id);
        header_len += sizeof u->card.id;
        param.flags = UCP_AM_SEND_FLAG_RNDV;
    }
    bool direct = u->direct;
    u->direct = false;
    ucs_status_ptr_t answer =
        ucp_am_send_nbx(p->ep, DCOMMI_UCX_AM_ID, f->header, header_len, data, len, &param);
    u->direct = direct;
    dcomm_status status = dcommi_ucx_launched(f, answer);
    if (DCOMMI_UNLIKELY(status < 0)) {
        dcommi_fail(status, "%s: a message of %zu bytes to peer %d was not sent: %s", t->name, len,
                    peer, ucs_status_string(UCS_PTR_STATUS(answer)));
    }
    return status;
}

static void dcommi_ucx_release(dcommi_transport *t, void *desc)
{
    dcommi_ucx *u = (dcommi_ucx *)t;
    dcommi_ucx_kept *k = desc;
    if (k->arriving) { /* UCX still holds it, and drops it when it is told so by the callback */
        k->dropped = true;
        return;
    }
    bool direct = u->direct;
    u->direct = false;
    ucp_am_data_release(u->worker, k->data);
    dcommi_ucx_kept_put(u, k);
    u->direct = direct;
}

static dcomm_status dcommi_ucx_fetch(dcommi_transport *t, void *desc, void *buf, size_t len,
                                     dcommi_op *op)
{
    dcommi_ucx *u = (dcommi_ucx *)t;
    dcommi_ucx_kept *k = desc;
    if (k->removed || (k->peer != NULL && k->peer->failure != UCS_OK)) {
        dcommi_ucx_release(t, desc);
        return dcommi_fail(DCOMM_ERR_PEER, "%s: the sender of a message of %zu bytes is lost",
                           t->name, len);
    }
    dcommi_ucx_flight *f = dcommi_ucx_flight_start(u, k->peer, true, op);
    if (f == NULL) {
        return DCOMM_ERR_NO_MEMORY;
    }
    ucp_request_param_t param = {.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK |
                                                 UCP_OP_ATTR_FIELD_USER_DATA |
                                                 UCP_OP_ATTR_FIELD_MEMORY_TYPE,
                                 .cb.recv_am = dcommi_ucx_on_fetched,
                                 .user_data = f,
                                 .memory_type = UCS_MEMORY_TYPE_HOST};
    bool direct = u->direct;
    u->direct = false;
    ucs_status_ptr_t answer = ucp_am_recv_data_nbx(u->worker, k->data, buf, len, &param);
    dcommi_ucx_kept_put(u, k);
    u->direct = direct;
    dcomm_status status = dcommi_ucx_launched(f, answer);
    if (status < 0) {
        dcommi_fail(status, "%s: a message of %zu bytes was not received: %s", t->name, len,
                    ucs_status_string(UCS_PTR_STATUS(answer)));
    }
    return status;
}

static ucs_status_t dcommi_ucx_on_am(void *arg, const void *header, size_t header_len, void *data,
                                     size_t len, const ucp_am_recv_param_t *param)
{
    dcommi_ucx *u = arg;
    bool is_long = (param->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV) != 0;
    bool stays = is_long || (param->recv_attr & UCP_AM_RECV_ATTR_FLAG_DATA) != 0;
    dcommi_arrival arrival = {.peer = -1,
                              .header = header,
                              .header_len = header_len,
                              .data = data != NULL ? data : "",
                              .len = len};
    if (DCOMMI_UNLIKELY(u->closing)) {
        return UCS_OK;
    }
    if (!stays) {
        u->base.handlers.on_message(u->base.handlers.user, &u->base, &arrival);
        return UCS_OK;
    }
    if (u->spare_kept == NULL && !dcommi_ucx_refill(u)) {
        return is_long ? UCS_ERR_NO_MEMORY : UCS_OK;
    }
    dcommi_ucx_kept *k = u->spare_kept;
    u->spare_kept = k->next;
    k->data = data;
    k->is_long = is_long;
    k->peer = NULL;
    k->removed = k->dropped = false;
    k->arriving = true;
    dcommi_ucx_kept_link(u, k);
    arrival.desc = k;
    if (is_long) {
        uint64_t id = 0;
        if (header_len < sizeof id) {
            dcommi_ucx_kept_put(u, k);
            return UCS_ERR_INVALID_PARAM;
        }
        arrival.header_len -= sizeof id;
        memcpy(&id, (const char *)header + arrival.header_len, sizeof id);
        k->peer = dcommi_ucx_peer_by_id(u, id);
        arrival.peer = k->peer != NULL ? k->peer->index : -1;
        arrival.data = NULL;
    }
    dcommi_verdict verdict = u->base.handlers.on_message(u->base.handlers.user, &u->base, &arrival);
    k->arriving = false;
    if (verdict == DCOMMI_KEEP && !k->dropped) {
        return UCS_INPROGRESS;
    }
    dcommi_ucx_kept_put(u, k);
    return UCS_OK;
}

static unsigned dcommi_ucx_chores(dcommi_ucx *u)
{
    u->chores = false;
    unsigned n = dcommi_ucx_report_lost(u);
    dcommi_ucx_sweep_removed(u);
    return n + dcommi_ucx_deliver(u);
}

static unsigned dcommi_ucx_progress(dcommi_transport *t)
{
    dcommi_ucx *u = (dcommi_ucx *)t;
    if (u->inside) {
        return 0;
    }
    u->inside = true;
    u->direct = true;
    unsigned n = ucp_worker_progress(u->worker);
    u->direct = false;
    u->inside = false;
    if (DCOMMI_UNLIKELY((++u->turns & 63) == 0)) {
        n += dcommi_ucx_watch(u);
    }
    if (DCOMMI_UNLIKELY(u->ended > 0) && (n == 0 || ++u->ended_turns > 1000)) {
        dcommi_ucx_bury(u);
    }
    if (DCOMMI_UNLIKELY(u->chores)) {
        n += dcommi_ucx_chores(u);
    }
    return n;
}

static dcomm_status dcommi_ucx_region_create(dcommi_transport *t, size_t len, dcommi_region *region)
{
    dcommi_ucx *u = (dcommi_ucx *)t;
    if (!u->maps || len == 0) {
        return dcommi_fail(DCOMM_ERR_UNSUPPORTED, "%s: no mapped memory of %zu bytes", t->name,
                           len);
    }
    return dcommi_ucx_region_allocate(u->context, &u->mappings, len, region);
}

static void dcommi_ucx_region_destroy(dcommi_transport *t, dcommi_region *region)
{
    if (region->handle != NULL) {
        dcommi_ucx_mapping_drop(((dcommi_ucx *)t)->context, region->handle);
    }
    *region = (dcommi_region){0};
}

static dcomm_status dcommi_ucx_region_map(dcommi_transport *t, int peer, const void *key,
                                          size_t key_len, void *remote_base, void **ptr, void **map)
{
    dcommi_ucx *u = (dcommi_ucx *)t;
    dcommi_ucx_peer *p = NULL;
    if (!u->maps) {
        return dcommi_fail(DCOMM_ERR_UNSUPPORTED, "%s: no mapped memory", t->name);
    }
    if (key_len == 0) {
        return dcommi_fail(DCOMM_ERR_CORRUPT, "peer %d's memory key is empty", peer);
    }
    DCOMMI_TRY(dcommi_ucx_peer_open(u, peer, &p));
    return dcommi_ucx_region_attach(u->context, &u->mappings, p->ep, key, remote_base, ptr, map);
}

static void dcommi_ucx_region_unmap(dcommi_transport *t, void *map)
{
    if (map != NULL) {
        dcommi_ucx_mapping_drop(((dcommi_ucx *)t)->context, map);
    }
}

/* ---- closing ---- */

static bool dcommi_ucx_is_busy(const dcommi_ucx *u)
{
    bool busy = u->done.next != &u->done;
    for (const dcommi_ucx_flight *f = u->pending.next; f != &u->pending && !busy; f = f->next) {
        busy = f->op != NULL;
    }
    for (size_t i = 0; i < u->peers_capacity && !busy; i++) {
        busy = u->peers[i] != NULL && u->peers[i]->flushing && u->peers[i]->failure == UCS_OK;
    }
    for (const dcommi_ucx_peer *p = u->removed; p != NULL && !busy; p = p->next) {
        busy = p->flushing && p->failure == UCS_OK;
    }
    return busy;
}

static void dcommi_ucx_settle(dcommi_ucx *u, double deadline)
{
    while (dcommi_ucx_is_busy(u) && dcommi_now() < deadline) {
        if (dcommi_ucx_progress(&u->base) == 0) {
            sched_yield();
        }
    }
}

static void dcommi_ucx_free(dcommi_ucx *u)
{
    while (u->mappings.next != &u->mappings) {
        dcommi_ucx_mapping_drop(u->context, u->mappings.next);
    }
    if (u->worker != NULL) {
        ucp_worker_destroy(u->worker);
    }
    if (u->context != NULL) {
        ucp_cleanup(u->context);
    }
    dcommi_ucx_deliver(u);
    while (u->pending.next != &u->pending) { /* UCX has forgotten them with the worker */
        u->pending.next->status = DCOMM_ERR_ABORTED;
        dcommi_ucx_flight_finish(u->pending.next);
    }
    for (size_t i = 0; i < u->peers_capacity; i++) {
        dcommi_ucx_peer_free(u->peers[i]);
    }
    if (u->epoll >= 0) {
        close(u->epoll);
    }
    while (u->removed != NULL) {
        dcommi_ucx_peer *p = u->removed;
        u->removed = p->next;
        dcommi_ucx_peer_free(p);
    }
    while (u->slabs != NULL) {
        dcommi_ucx_slab *slab = u->slabs;
        u->slabs = slab->next;
        dcommi_free(slab);
    }
    dcommi_free(u->peers);
    dcommi_free((void *)(uintptr_t)u->base.address);
    dcommi_free(u);
}

static void dcommi_ucx_close(dcommi_transport *t, double timeout_s, bool force)
{
    dcommi_ucx *u = (dcommi_ucx *)t;
    double deadline = dcommi_now() + timeout_s;
    if (!force) {
        dcommi_ucx_settle(u, deadline);
        for (size_t i = 0; i < u->peers_capacity; i++) {
            if (u->peers[i] != NULL) {
                dcommi_ucx_peer_flush(u->peers[i]);
            }
        }
        dcommi_ucx_settle(u, deadline);
    }
    u->closing = true;
    while (u->kept.next != &u->kept) {
        dcommi_ucx_release(t, u->kept.next);
    }
    for (size_t i = 0; i < u->peers_capacity; i++) {
        if (u->peers[i] != NULL) {
            dcommi_ucx_peer_close(u->peers[i]);
        }
    }
    for (dcommi_ucx_peer *p = u->removed; p != NULL; p = p->next) {
        dcommi_ucx_peer_close(p);
    }
    /* Cancelled requests come back in a few rounds; what UCX keeps longer goes with the worker. */
    dcommi_ucx_settle(u, dcommi_now() + 0.1);
    dcommi_ucx_hush++;
    dcommi_ucx_free(u);
    dcommi_ucx_hush--;
}

static const dcommi_transport_vtable dcommi_ucx_vtable = {
    .add_peer = dcommi_ucx_add_peer,
    .remove_peer = dcommi_ucx_remove_peer,
    .send = dcommi_ucx_send,
    .fetch = dcommi_ucx_fetch,
    .release = dcommi_ucx_release,
    .progress = dcommi_ucx_progress,
    .region_create = dcommi_ucx_region_create,
    .region_destroy = dcommi_ucx_region_destroy,
    .region_map = dcommi_ucx_region_map,
    .region_unmap = dcommi_ucx_region_unmap,
    .close = dcommi_ucx_close,
};

/* ---- opening ---- */

static dcomm_status dcommi_ucx_make_worker(dcommi_ucx *u, uint64_t features,
                                           const dcommi_ucx_option *options, size_t n_options)
{
    ucp_config_t *config = NULL;
    ucs_status_t status = ucp_config_read(NULL, NULL, &config);
    if (status != UCS_OK) {
        return dcommi_fail(DCOMM_ERR_TRANSPORT, "%s: UCX cannot read its configuration: %s",
                           u->base.name, ucs_status_string(status));
    }
    dcomm_status set = dcommi_ucx_set_options(config, options, n_options);
    if (set == DCOMM_OK) {
        ucp_params_t params = {.field_mask = UCP_PARAM_FIELD_FEATURES, .features = features};
        status = ucp_init(&params, config, &u->context);
    }
    ucp_config_release(config);
    DCOMMI_TRY(set);
    if (status != UCS_OK) {
        u->context = NULL;
        return dcommi_fail(dcommi_ucx_status(status), "%s: UCX does not start: %s", u->base.name,
                           ucs_status_string(status));
    }
    ucp_worker_params_t worker_params = {.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE,
                                         .thread_mode = UCS_THREAD_MODE_SERIALIZED};
    status = ucp_worker_create(u->context, &worker_params, &u->worker);
    if (status != UCS_OK) {
        u->worker = NULL;
        return dcommi_fail(dcommi_ucx_status(status), "%s: UCX makes no worker: %s", u->base.name,
                           ucs_status_string(status));
    }
    ucp_am_handler_param_t handler = {
        .field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_FLAGS |
                      UCP_AM_HANDLER_PARAM_FIELD_CB | UCP_AM_HANDLER_PARAM_FIELD_ARG,
        .id = DCOMMI_UCX_AM_ID,
        .flags = UCP_AM_FLAG_WHOLE_MSG,
        .cb = dcommi_ucx_on_am,
        .arg = u};
    status = ucp_worker_set_am_recv_handler(u->worker, &handler);
    ucp_worker_attr_t attr = {.field_mask = UCP_WORKER_ATTR_FIELD_ADDRESS};
    if (status == UCS_OK) {
        status = ucp_worker_query(u->worker, &attr);
    }
    if (status != UCS_OK) {
        return dcommi_fail(dcommi_ucx_status(status), "%s: UCX gives no address: %s", u->base.name,
                           ucs_status_string(status));
    }
    dcommi_ucx_card_make(&u->card);
    char *copy = dcommi_alloc(sizeof u->card + attr.address_length);
    if (copy != NULL) {
        memcpy(copy, &u->card, sizeof u->card);
        memcpy(copy + sizeof u->card, attr.address, attr.address_length);
        u->base.address = copy;
        u->base.address_len = sizeof u->card + attr.address_length;
    }
    ucp_worker_release_address(u->worker, attr.address);
    return copy != NULL ? DCOMM_OK : DCOMM_ERR_NO_MEMORY;
}

static dcomm_status dcommi_ucx_open(const char *name, const dcommi_transport_handlers *handlers,
                                    size_t eager_max, uint64_t features,
                                    const dcommi_ucx_option *options, size_t n_options,
                                    dcommi_transport **t_p)
{
    dcommi_ucx *u = dcommi_alloc(sizeof *u);
    if (u == NULL) {
        return DCOMM_ERR_NO_MEMORY;
    }
    u->base = (dcommi_transport){
        .name = name, .call = &dcommi_ucx_vtable, .handlers = *handlers, .eager_max = eager_max};
    u->maps = (features & UCP_FEATURE_RMA) != 0;
    u->pending.next = u->pending.prev = &u->pending;
    u->done.next = u->done.prev = &u->done;
    u->kept.next = u->kept.prev = &u->kept;
    u->mappings.next = u->mappings.prev = &u->mappings;
    u->epoll = -1;
    dcomm_status status = dcommi_ucx_make_worker(u, features, options, n_options);
    if (status != DCOMM_OK) {
        dcommi_ucx_free(u);
        return status;
    }
    *t_p = &u->base;
    return DCOMM_OK;
}

/* Shared memory with the processes of this host. */
static dcomm_status dcommi_ucx_open_local(const dcommi_transport_handlers *handlers,
                                          dcommi_transport **t_p)
{
    static const dcommi_ucx_option options[] = {
        {"TLS", "posix,sysv,self", NULL},
        {"SHM_DEVICES", "all", NULL},
        {"SELF_DEVICES", "all", NULL},
        {"NET_DEVICES", "all", NULL},
        {"MM_ERROR_HANDLING", "y", NULL},
        /* Memory that peers can map, or none. System V's is not bounded by /dev/shm. */
        {"ALLOC_PRIO", "md:sysv,md:posix", NULL},
        {"MM_SEG_SIZE", DCOMMI_UCX_SEG, NULL},
        /* Messages of some hundred bytes go within the queue, not by a segment beside it. */
        {"MM_FIFO_ELEM_SIZE", "512", NULL},
        {"MAX_EAGER_LANES", "1", NULL}, /* several would break the order of messages */
        {"KEEPALIVE_INTERVAL", "1s", "UCX_KEEPALIVE_INTERVAL"},
        {"KEEPALIVE_NUM_EPS", "inf", "UCX_KEEPALIVE_NUM_EPS"},
    };
    dcommi_ucx_tame_once();
    DCOMMI_TRY(dcommi_ucx_shm_check(DCOMMI_UCX_SHM_NEED));
    return dcommi_ucx_open("local", handlers, DCOMMI_UCX_EAGER_LOCAL,
                           UCP_FEATURE_AM | UCP_FEATURE_RMA, options,
                           sizeof options / sizeof *options, t_p);
}

/* One network interface. iface: "eth0", or an RDMA device, "mlx5_0" or "mlx5_0:1";
 * NULL: DCOMM_IFACE, else the default route's, else lo. */
static dcomm_status dcommi_ucx_open_net(const dcommi_transport_handlers *handlers,
                                        const char *iface, dcommi_transport **t_p)
{
    dcommi_ucx_name device;
    bool tcp = true;
    dcommi_ucx_tame_once();
    DCOMMI_TRY(dcommi_ucx_choose_iface(iface, device, &tcp));
    const dcommi_ucx_option options[] = {
        {"TLS", tcp ? "tcp" : "ib", NULL},
        {"NET_DEVICES", device, NULL},
        {"MAX_EAGER_LANES", "1", NULL},
        {"KEEPALIVE_INTERVAL", "1s", "UCX_KEEPALIVE_INTERVAL"},
        {"KEEPALIVE_NUM_EPS", "inf", "UCX_KEEPALIVE_NUM_EPS"},
        /* UCX 1.13 aborts when a connection breaks under a zero-copy send. Longer segments make
         * up for the copy; both ends must agree on them. */
        {tcp ? "ZCOPY_THRESH" : NULL, "inf", NULL},
        {tcp ? "PUT_ENABLE" : NULL, "n", NULL},
        /* UCX 1.13 asserts when a connection that ends has another event in the same batch. */
        {tcp ? "MAX_POLL" : NULL, "1", NULL},
        {tcp ? "TX_SEG_SIZE" : NULL, "64k", NULL},
        {tcp ? "RX_SEG_SIZE" : NULL, "64k", NULL},
        /* One event of epoll at a time: where a connection breaks while another's event is handled,
         * UCX 1.13 goes on to the broken one's event of the same round, and aborts. */
        {tcp ? "MAX_POLL" : NULL, "1", NULL},
        /* Connecting to a dead host must not stop progress. */
        {tcp ? "CONN_NB" : NULL, "y", "UCX_TCP_CONN_NB"},
        /* A host that vanished sends no reset. */
        {tcp ? "KEEPIDLE" : NULL, "1s", "UCX_TCP_KEEPIDLE"},
        {tcp ? "KEEPINTVL" : NULL, "1s", "UCX_TCP_KEEPINTVL"},
        {tcp ? "KEEPCNT" : NULL, "3", "UCX_TCP_KEEPCNT"},
    };
    dcommi_log(DCOMMI_LOG_INFO, "net: %s over %s", tcp ? "TCP" : "RDMA", device);
    return dcommi_ucx_open("net", handlers, DCOMMI_UCX_EAGER_NET, UCP_FEATURE_AM, options,
                           sizeof options / sizeof *options, t_p);
}

#endif

/* ---- forked children ---- */

static _Atomic int dcommi_forked;
static pthread_once_t dcommi_fork_once = PTHREAD_ONCE_INIT;

static void dcommi_in_child(void)
{
    atomic_store(&dcommi_forked, 1);
}

static void dcommi_watch_forks(void)
{
    pthread_atfork(NULL, NULL, dcommi_in_child);
}

static inline dcomm_status dcommi_check_fork(void)
{
    if (DCOMMI_UNLIKELY(atomic_load_explicit(&dcommi_forked, memory_order_relaxed) != 0)) {
        return dcommi_fail(DCOMM_ERR_FORKED,
                           "process %d was forked after dcomm was initialized and shares its "
                           "parent's connections; create communicators in the child before, or "
                           "use exec",
                           (int)getpid());
    }
    return DCOMM_OK;
}

/* ---- peers ---- */

/* What one rank tells the others of itself when a communicator is created. Fixed layout; checked
 * for version, byte order and header size before anything else is believed. */
typedef struct dcommi_card {
    uint32_t magic, version;
    uint8_t uuid[16];
    uint64_t nonce; /* rank 0's makes the communicator's id */
    uint64_t started;
    int32_t pid, size;
    double timeout_s;
    uint64_t chunk_bytes;
    uint32_t deterministic, tunes;
    uint32_t local_address, net_address; /* lengths of what follows the card */
    char algo[32];
    char hostname[64];
    char host_id[DCOMMI_HOST_ID_MAX];
} dcommi_card;

#define DCOMMI_CARD_MAGIC 0x44434f4du
#define DCOMMI_CARD_VERSION (DCOMM_VERSION_MAJOR * 10000u + DCOMM_VERSION_MINOR * 100u + 2u)

/* The context's number for a peer, new or known. */
static dcomm_status dcommi_peer_add(dcomm_context *context, const dcommi_card *card,
                                    const void *local_address, const void *net_address, int *peer_p)
{
    for (size_t i = 0; i < context->npeers; i++) {
        if (memcmp(context->peers[i].uuid, card->uuid, sizeof card->uuid) == 0) {
            context->peers[i].users++;
            *peer_p = (int)i;
            return DCOMM_OK;
        }
    }
    DCOMMI_TRY(dcommi_grow((void **)&context->peers, &context->peers_capacity, context->npeers + 1,
                           sizeof *context->peers));
    dcommi_remote *peer = &context->peers[context->npeers];
    memset(peer, 0, sizeof *peer);
    memcpy(peer->uuid, card->uuid, sizeof card->uuid);
    peer->pid = card->pid;
    peer->started = card->started;
    peer->same_host = strcmp(card->host_id, context->host_id) == 0;
    peer->transport = peer->same_host ? context->local : context->net;
    peer->users = 1;
    const char *no_cma = getenv("DCOMM_CMA");
    if (no_cma != NULL && strcmp(no_cma, "0") == 0) {
        peer->unreadable = true;
    }
    /* A host identity of the user's may span pid namespaces: that pid is another process here, to
     * be neither read nor taken for the peer's life. */
    if (peer->same_host && dcommi_process_started(peer->pid) != peer->started) {
        peer->unreadable = true;
        peer->started = 0;
    }
    DCOMMI_TRY(peer->transport->call->add_peer(
        peer->transport, (int)context->npeers, peer->same_host ? local_address : net_address,
        peer->same_host ? card->local_address : card->net_address));
    *peer_p = (int)context->npeers++;
    return DCOMM_OK;
}

/* ---- progress thread ---- */

static void *dcommi_progress_main(void *user)
{
    dcomm_context *context = user;
    while (atomic_load_explicit(&context->stop, memory_order_acquire) == 0) {
        bool idle = true;
        if (dcommi_token_try(context)) {
            idle = !dcommi_progress(context) && context->active == 0;
            dcommi_token_release(context);
        }
        if (idle) {
            struct timespec nap = {0, 50000};
            nanosleep(&nap, NULL); /* nothing is outstanding: peers can wait this long */
        } else {
            sched_yield();
        }
    }
    return NULL;
}

/* ---- create and destroy ---- */

static unsigned dcommi_spin_limit(void)
{
    cpu_set_t cores;
    const char *local = getenv("LOCAL_WORLD_SIZE");
    int mine = 1;
    if (sched_getaffinity(0, sizeof cores, &cores) == 0) {
        mine = CPU_COUNT(&cores);
    }
    long online = sysconf(_SC_NPROCESSORS_ONLN);
    int ranks = local != NULL ? atoi(local) : 1;
    /* With a core to itself a rank loses nothing by spinning; where ranks share cores, the one
     * that is waited for must get the core. */
    return ranks <= online && mine >= 1 ? 2000 : 20;
}

DCOMM_API dcomm_status dcomm_context_create(const dcomm_context_opts *opts,
                                            dcomm_context **context_p)
{
    dcomm_context_opts defaults = {0};
    if (context_p == NULL) {
        return dcommi_fail(DCOMM_ERR_INVALID, "context_p is NULL");
    }
    *context_p = NULL;
    pthread_once(&dcommi_fork_once, dcommi_watch_forks);
    DCOMMI_TRY(dcommi_check_fork());
    opts = opts != NULL ? opts : &defaults;
    dcomm_context *context = dcommi_alloc(sizeof *context);
    if (context == NULL) {
        return DCOMM_ERR_NO_MEMORY;
    }
    atomic_store(&context->refs, 1);
    context->spin_limit = dcommi_spin_limit();
    dcomm_status status = dcommi_random_bytes(context->uuid, sizeof context->uuid);
    dcommi_host_identity(opts->host_id, context->host_id);
    if (status >= 0 && opts->iface != NULL) {
        if (strlen(opts->iface) >= sizeof context->iface) {
            status = dcommi_fail(DCOMM_ERR_INVALID, "iface \"%s\" is too long", opts->iface);
        } else {
            snprintf(context->iface, sizeof context->iface, "%s", opts->iface);
        }
    }
    if (status >= 0) {
        dcommi_transport_handlers handlers = {context, dcommi_on_message, dcommi_on_peer_lost};
        status = dcommi_ucx_open_local(&handlers, &context->local);
    }
    const char *wanted = getenv("DCOMM_PROGRESS_THREAD");
    if (status >= 0 && (opts->progress_thread || (wanted != NULL && atoi(wanted) != 0))) {
        int error = pthread_create(&context->thread, NULL, dcommi_progress_main, context);
        context->has_thread = error == 0;
        if (error != 0) {
            status = dcommi_fail(DCOMM_ERR_SYSTEM, "no progress thread: %s", strerror(error));
        }
    }
    if (status < 0) {
        dcommi_context_release(context);
        return status;
    }
    *context_p = context;
    return DCOMM_OK;
}

/* Other hosts take part: open the network. With the token. */
static dcomm_status dcommi_context_open_net(dcomm_context *context)
{
    if (context->net != NULL) {
        return DCOMM_OK;
    }
    dcommi_transport_handlers handlers = {context, dcommi_on_message, dcommi_on_peer_lost};
    return dcommi_ucx_open_net(&handlers, context->iface[0] != 0 ? context->iface : NULL,
                               &context->net);
}

static dcomm_status dcommi_context_release(dcomm_context *context)
{
    if (atomic_fetch_sub(&context->refs, 1) != 1) {
        return DCOMM_OK;
    }
    if (context->has_thread) {
        atomic_store_explicit(&context->stop, 1, memory_order_release);
        pthread_join(context->thread, NULL);
    }
    while (context->strays != NULL) {
        dcommi_stray *stray = context->strays;
        context->strays = stray->next;
        dcommi_early_free(stray->early);
        dcommi_free(stray);
    }
    if (context->net != NULL) {
        context->net->call->close(context->net, 1.0, false);
    }
    if (context->local != NULL) {
        context->local->call->close(context->local, 1.0, false);
    }
    while (context->finished != NULL) { /* ended by the close */
        dcommi_run *run = context->finished;
        context->finished = run->next_finished;
        dcommi_run_unref(run);
    }
    while (context->free_moves != NULL) {
        dcommi_move *move = context->free_moves;
        context->free_moves = move->next;
        dcommi_free(move);
    }
    while (context->free_controls != NULL) {
        dcommi_control *control = context->free_controls;
        context->free_controls = control->next;
        dcommi_free(control);
    }
    dcommi_free(context->staging);
    dcommi_free((void *)context->pointers);
    dcommi_free(context->pieces);
    dcommi_free(context->peers);
    dcommi_free(context);
    return DCOMM_OK;
}

DCOMM_API dcomm_status dcomm_context_destroy(dcomm_context **context_p)
{
    if (context_p == NULL || *context_p == NULL) {
        return DCOMM_OK;
    }
    DCOMMI_TRY(dcommi_check_fork());
    dcomm_context *context = *context_p;
    *context_p = NULL;
    return dcommi_context_release(context);
}

DCOMM_API dcomm_status dcomm_context_progress(dcomm_context *context)
{
    if (context == NULL) {
        return dcommi_fail(DCOMM_ERR_INVALID, "context is NULL");
    }
    DCOMMI_TRY(dcommi_check_fork());
    if (dcommi_token_try(context)) {
        dcommi_progress(context);
        dcommi_token_release(context);
    }
    return DCOMM_OK;
}

#endif
/* ==== include/dcomm/impl/select.h ========================================================== */
/* select.h - from a call's arguments to an algorithm and its plan. Reads only what all ranks
 * share. */
#ifndef DCOMMI_SELECT_H
#define DCOMMI_SELECT_H

/* ==== include/dcomm/impl/choose.h ========================================================== */
/* choose.h - the choice of an algorithm by what the model says it costs. It depends on what all
 * ranks share: the shape without what may differ by rank, the groups, and rank 0's numbers. */
#ifndef DCOMMI_CHOOSE_H
#define DCOMMI_CHOOSE_H

/* ==== include/dcomm/impl/algo_table.h ====================================================== */
/* algo_table.h - the table of all algorithms. */
#ifndef DCOMMI_ALGO_TABLE_H
#define DCOMMI_ALGO_TABLE_H

/* ==== include/dcomm/impl/algo_alltoall.h =================================================== */
/* algo_alltoall.h - all-to-all: pairwise, linear and Bruck's.
 *
 * pairwise: in round k = 1 .. N/2 each rank exchanges with the ranks k ahead and k behind, so that
 * few messages are under way at a time; (N-1) blocks per rank, N/2 rounds. In place, only the
 * blocks of the round are set aside.
 * linear: everything at once, (N-1) blocks per rank; long blocks of equal length are read where
 * they lie.
 * bruck: Bruck, Ho, Kipnis, Upfal and Weathersby, "Efficient algorithms for all-to-all
 * communications in multiport message-passing systems", IEEE TPDS 8 (1997): ceil(log2 N) steps, in
 * step k all blocks whose distance to go has bit k set; about N/2 blocks in each. */
#ifndef DCOMMI_ALGO_ALLTOALL_H
#define DCOMMI_ALGO_ALLTOALL_H

/* ==== include/dcomm/impl/algo_parts.h ====================================================== */
/* algo_parts.h - what several families of algorithms share: how a buffer is cut into the blocks of
 * the ranks, chunk loops, folds in rank order. */
#ifndef DCOMMI_ALGO_PARTS_H
#define DCOMMI_ALGO_PARTS_H


#define DCOMMI_CHUNK_DEFAULT (256 << 10)
/* Blocks up to this long travel as messages; longer ones are read where they lie. A constant, so
 * that every rank decides alike. */
#define DCOMMI_PEER_READ_MIN 4097

/* One block per rank in a buffer: equal ones, or listed in the plan's table. A lane may own only
 * the part of each block that begins at `skip`. */
typedef struct dcommi_blocks {
    int64_t n;
    int64_t base;   /* where the blocks begin in their space */
    int64_t stride; /* equal blocks: bytes from one to the next */
    int64_t length; /* equal blocks: bytes of each */
    int64_t clip;   /* cut all off here, 0: never */
    int64_t skip;
    bool listed;
    int64_t offsets, lengths; /* listed: first index in the table */
} dcommi_blocks;

/* A block number that depends on a loop: index + coef * i[depth]. */
typedef struct dcommi_turn {
    int64_t index;
    int depth;
    int64_t coef;
} dcommi_turn;

static inline dcommi_turn dcommi_turn_at(int64_t index)
{
    dcommi_turn t = {index, 0, 0};
    return t;
}

/* Length of all of block `turn`. */
static inline dcomm_expr dcommi_block_length(const dcommi_blocks *k, dcommi_turn turn)
{
    return k->listed ? dcommi_lookup(k->lengths, turn.index, turn.depth, turn.coef, k->n)
                     : dcommi_const(k->length);
}

/* Chunk i[chunk_depth] of this lane's part of block `turn`. */
static inline dcomm_operand dcommi_block_chunk(const dcommi_blocks *k, dcomm_space space,
                                               dcommi_turn turn, int64_t chunk, int chunk_depth)
{
    dcomm_expr offset = k->listed
                            ? dcommi_lookup(k->offsets, turn.index, turn.depth, turn.coef, k->n)
                            : dcommi_modular(k->stride, turn.index, turn.depth, turn.coef, k->n);
    dcomm_operand o = {.space = (uint8_t)space, .max_length = chunk, .clip = k->clip};
    o.offset = dcommi_plus_loop(dcommi_plus(offset, k->base + k->skip), chunk_depth, chunk);
    o.length =
        dcommi_plus_loop(dcommi_plus(dcommi_block_length(k, turn), -k->skip), chunk_depth, -chunk);
    return o;
}

/* All of block `turn`, at most max_length bytes. */
static inline dcomm_operand dcommi_block_whole(const dcommi_blocks *k, dcomm_space space,
                                               dcommi_turn turn, int64_t max_length)
{
    dcomm_operand o = dcommi_block_chunk(k, space, turn, 0, 0);
    o.max_length = max_length;
    return o;
}

/* The chunk at offset + chunk*i[depth] of a span of `length` bytes. */
static inline dcomm_operand dcommi_span_chunk(dcomm_space space, int64_t offset, int64_t length,
                                              int64_t chunk, int depth)
{
    dcomm_operand o = dcommi_at(space, dcommi_linear(offset, depth, chunk), chunk);
    o.length = dcommi_linear(length, depth, -chunk);
    return o;
}

/* Rank number (index + coef * i[depth]) mod n. */
static inline dcomm_expr dcommi_rank_at(int64_t n, dcommi_turn turn)
{
    return dcommi_modular(1, turn.index, turn.depth, turn.coef, n);
}

/* Open a loop where there is more than one trip, and return the depth to use in expressions: that
 * of a loop, or of the innermost possible one, which nobody opens, so that its index stays 0. */
static inline int dcommi_loop_many(dcommi_builder *b, int lane, int64_t trips)
{
    return trips > 1 ? dcommi_loop(b, lane, dcommi_const(trips)) : DCOMM_LOOP_DEPTH - 1;
}

static inline void dcommi_end_many(dcommi_builder *b, int lane, int64_t trips)
{
    if (trips > 1) {
        dcommi_end(b, lane);
    }
}

/* The chunk that cuts `length` bytes into pieces of about `wanted` (0: `fallback`), a multiple of
 * the element, at least one element. */
static inline int64_t dcommi_chunk_for(const dcommi_shape *s, int64_t length, int64_t fallback)
{
    int64_t wanted = s->chunk_bytes > 0 ? s->chunk_bytes : fallback;
    return dcommi_partition_make(length, 1, wanted, (int64_t)dcomm_dtype_size(s->dtype)).chunk;
}

/* Chunks that the longest block has; 1 for empty blocks, which still travel as empty messages. */
static inline int64_t dcommi_chunks_of(int64_t longest, int64_t chunk)
{
    return chunk > 0 ? dcommi_max64(1, dcommi_ceil_div(longest, chunk)) : 1;
}

/* Put a list of n element counts into the table as bytes; returns the first index. */
static inline int64_t dcommi_table_bytes(const dcommi_shape *s, dcommi_builder *b,
                                         const size_t *elements)
{
    int64_t first = (int64_t)b->ntable;
    for (int i = 0; i < s->nranks; i++) {
        int64_t bytes = dcommi_shape_bytes(s, elements[i]);
        dcommi_build_table(b, &bytes, 1);
    }
    return first;
}

/* The longest of n counts, in bytes. */
static inline int64_t dcommi_longest(const dcommi_shape *s, const size_t *elements)
{
    size_t longest = 0;
    for (int i = 0; i < s->nranks; i++) {
        longest = elements[i] > longest ? elements[i] : longest;
    }
    return dcommi_shape_bytes(s, longest);
}

/* The other ranks, one per trip of a loop at `depth`: rank+1, rank+2, ... */
static inline dcommi_turn dcommi_others(const dcommi_shape *s, int depth)
{
    dcommi_turn t = {s->rank + 1, depth, 1};
    return t;
}

/* Send `what` to every other rank, without waiting. */
static inline void dcommi_send_to_others(const dcommi_shape *s, dcommi_builder *b,
                                         dcomm_operand what, int64_t tag)
{
    int d = dcommi_loop(b, 0, dcommi_const(s->nranks - 1));
    dcommi_send(b, 0, what, dcommi_rank_at(s->nranks, dcommi_others(s, d)), dcommi_const(tag),
                DCOMM_STEP_ASYNC);
    dcommi_end(b, 0);
}

/* The blocks of an operation, equal or listed in counts and displs, and the longest of them. */
static inline dcommi_blocks dcommi_blocks_of(const dcommi_shape *s, dcommi_builder *b,
                                             int64_t *longest)
{
    dcommi_blocks blocks = {.n = s->nranks};
    if (s->coll == DCOMM_COLL_ALLGATHERV || s->coll == DCOMM_COLL_REDUCE_SCATTERV ||
        s->coll == DCOMM_COLL_GATHERV || s->coll == DCOMM_COLL_SCATTERV) {
        blocks.listed = true;
        blocks.offsets = dcommi_table_bytes(s, b, s->displs);
        blocks.lengths = dcommi_table_bytes(s, b, s->counts);
        *longest = dcommi_longest(s, s->counts);
    } else {
        blocks.stride = blocks.length = *longest = dcommi_shape_bytes(s, s->count);
    }
    return blocks;
}

/* Where this rank's own block begins, and how long it is. */
static inline int64_t dcommi_own_offset(const dcommi_shape *s, const dcommi_blocks *blocks)
{
    return blocks->listed ? dcommi_shape_bytes(s, s->displs[s->rank]) : s->rank * blocks->stride;
}

static inline int64_t dcommi_own_length(const dcommi_shape *s, const dcommi_blocks *blocks)
{
    return blocks->listed ? dcommi_shape_bytes(s, s->counts[s->rank]) : blocks->length;
}

/* The operands 0 .. n-1 in rank order, where all but this rank's come from an array of equal
 * pieces (by rank, in scratch) or from the peers. Returns how many operands it wrote (at most 3).
 */
static inline size_t dcommi_in_rank_order(const dcommi_shape *s, dcomm_operand others,
                                          int64_t stride, dcomm_operand own, dcomm_operand out[3])
{
    size_t n = 0;
    if (s->rank > 0) {
        out[n] = others;
        out[n].repeat = (uint32_t)s->rank;
        out[n].stride = stride;
        n++;
    }
    out[n++] = own;
    if (s->rank + 1 < s->nranks) {
        out[n] = others;
        out[n].repeat = (uint32_t)(s->nranks - s->rank - 1);
        out[n].stride = stride;
        out[n].offset = dcommi_plus(others.offset, (s->rank + 1) * stride);
        out[n].peer = dcommi_const(s->rank + 1);
        n++;
    }
    return n;
}

#endif

/* The two sides of an all-to-all: blocks to send and blocks to receive, by rank. */
typedef struct dcommi_a2a {
    dcommi_blocks send, recv;
    int64_t longest_send, longest_recv;
    dcomm_space space; /* of the blocks to send */
} dcommi_a2a;

static dcommi_a2a dcommi_a2a_make(const dcommi_shape *s, dcommi_builder *b)
{
    dcommi_a2a a = {.send = {.n = s->nranks}, .recv = {.n = s->nranks}};
    a.space = dcommi_input_of(s, 0).space;
    if (s->coll == DCOMM_COLL_ALLTOALLV) {
        a.send.listed = a.recv.listed = true;
        a.send.offsets = dcommi_table_bytes(s, b, s->send_displs);
        a.send.lengths = dcommi_table_bytes(s, b, s->send_counts);
        a.recv.offsets = dcommi_table_bytes(s, b, s->displs);
        a.recv.lengths = dcommi_table_bytes(s, b, s->counts);
        a.longest_send = dcommi_longest(s, s->send_counts);
        a.longest_recv = dcommi_longest(s, s->counts);
    } else {
        int64_t block = dcommi_shape_bytes(s, s->count);
        a.send.stride = a.send.length = a.recv.stride = a.recv.length = block;
        a.longest_send = a.longest_recv = block;
    }
    return a;
}

/* This rank's block for itself. */
static void dcommi_a2a_own(const dcommi_shape *s, dcommi_builder *b, const dcommi_a2a *a)
{
    if (!s->in_place) {
        dcommi_turn own = dcommi_turn_at(s->rank);
        dcommi_copy(b, 0, dcommi_block_whole(&a->recv, DCOMM_SPACE_OUT, own, a->longest_recv),
                    dcommi_block_whole(&a->send, a->space, own, a->longest_recv), 0);
    }
}

/* Start the exchange with rank `to` (send) and rank `from` (receive). */
static void dcommi_a2a_start(const dcommi_shape *s, dcommi_builder *b, const dcommi_a2a *a,
                             dcomm_operand sent, dcommi_turn to, dcommi_turn from, dcomm_expr tag)
{
    dcommi_send(b, 0, sent, dcommi_rank_at(s->nranks, to), tag, DCOMM_STEP_ASYNC);
    dcommi_recv(b, 0, dcommi_block_whole(&a->recv, DCOMM_SPACE_OUT, from, a->longest_recv),
                dcommi_rank_at(s->nranks, from), tag, DCOMM_STEP_ASYNC);
}

/* What goes to rank `to`: where it lies or, in place, a copy in scratch at `aside`. */
static dcomm_operand dcommi_a2a_outgoing(const dcommi_shape *s, dcommi_builder *b,
                                         const dcommi_a2a *a, dcommi_turn to, int64_t aside)
{
    dcomm_operand block = dcommi_block_whole(&a->send, a->space, to, a->longest_send);
    if (!s->in_place) {
        return block;
    }
    dcomm_operand copy = dcommi_span(DCOMM_SPACE_SCRATCH, aside, a->longest_send);
    dcommi_copy(b, 0, copy, block, 0);
    return copy;
}

static dcomm_status dcommi_a2a_pairwise(const dcommi_shape *s, dcommi_builder *b)
{
    dcommi_a2a a = dcommi_a2a_make(s, b);
    int64_t n = s->nranks, rounds = (n - 1) / 2;
    dcomm_expr tag = dcommi_const(dcommi_build_tags(b, 1));
    int64_t aside[2] = {0, 0};
    if (s->in_place) {
        aside[0] = dcommi_build_scratch(b, a.longest_send);
        aside[1] = dcommi_build_scratch(b, a.longest_send);
    }
    dcommi_a2a_own(s, b, &a);
    if (rounds > 0) {
        int d = dcommi_loop(b, 0, dcommi_const(rounds));
        dcommi_turn ahead = {s->rank + 1, d, 1}, behind = {s->rank - 1, d, -1};
        dcomm_operand up = dcommi_a2a_outgoing(s, b, &a, ahead, aside[0]);
        dcomm_operand down = dcommi_a2a_outgoing(s, b, &a, behind, aside[1]);
        dcommi_a2a_start(s, b, &a, up, ahead, behind, tag);
        dcommi_a2a_start(s, b, &a, down, behind, ahead, tag);
        dcommi_fence(b, 0);
        dcommi_end(b, 0);
    }
    if (n % 2 == 0) {
        dcommi_turn opposite = dcommi_turn_at(s->rank + n / 2);
        dcomm_operand across = dcommi_a2a_outgoing(s, b, &a, opposite, aside[0]);
        dcommi_a2a_start(s, b, &a, across, opposite, opposite, tag);
        dcommi_fence(b, 0);
    }
    return b->status;
}

static dcomm_status dcommi_a2a_linear(const dcommi_shape *s, dcommi_builder *b)
{
    dcommi_a2a a = dcommi_a2a_make(s, b);
    int64_t n = s->nranks, block = a.longest_send;
    bool read = !a.send.listed && block >= DCOMMI_PEER_READ_MIN;
    if (s->in_place) {
        /* All of it has to leave before any of it may be overwritten. */
        int64_t aside = dcommi_build_scratch(b, n * block);
        dcommi_copy(b, 0, dcommi_span(DCOMM_SPACE_SCRATCH, aside, n * block),
                    dcommi_span(a.space, 0, n * block), 0);
        a.space = DCOMM_SPACE_SCRATCH;
        a.send.base = aside;
    }
    uint16_t slot = read ? dcommi_build_slot(b) : 0, readers = read ? dcommi_build_counter(b) : 0;
    int64_t tag = read ? 0 : dcommi_build_tags(b, 1);
    if (read) {
        dcommi_expose(b, 0, dcommi_span(a.space, a.send.base, n * block), slot,
                      dcommi_const(DCOMM_ALL_PEERS));
    }
    int d = dcommi_loop(b, 0, dcommi_const(n - 1));
    dcommi_turn to = dcommi_others(s, d), from = {s->rank - 1, d, -1};
    if (read) {
        dcommi_copy(
            b, 0, dcommi_block_whole(&a.recv, DCOMM_SPACE_OUT, from, block),
            dcommi_peer(dcommi_rank_at(n, from), slot, dcommi_const(s->rank * block), block),
            DCOMM_STEP_ASYNC);
    } else {
        dcommi_a2a_start(s, b, &a, dcommi_block_whole(&a.send, a.space, to, block), to, from,
                         dcommi_const(tag));
    }
    dcommi_end(b, 0);
    dcommi_a2a_own(s, b, &a);
    dcommi_fence(b, 0);
    if (read) {
        dcommi_signal(b, 0, readers, dcommi_const(DCOMM_ALL_PEERS), dcommi_const(1));
        dcommi_await(b, 0, readers, dcommi_const(n - 1));
    }
    return b->status;
}

/* Move the blocks with bit `bit` between `blocks` (n of them) and `packed`, where they lie one
 * after the other: runs of `bit` blocks, of which the last may be shorter. */
static void dcommi_bruck_pack(dcommi_builder *b, int64_t n, int64_t block, int64_t bit,
                              int64_t blocks, int64_t packed, int64_t length, bool unpack)
{
    int64_t runs = dcommi_ceil_div(n - bit, 2 * bit);
    int d = dcommi_loop_many(b, 0, runs);
    dcomm_operand spread = dcommi_at(
        DCOMM_SPACE_SCRATCH, dcommi_linear(blocks + bit * block, d, 2 * bit * block), bit * block);
    dcomm_operand dense =
        dcommi_at(DCOMM_SPACE_SCRATCH, dcommi_linear(packed, d, bit * block), bit * block);
    spread.length = dense.length = dcommi_linear(length, d, -bit * block);
    dcommi_copy(b, 0, unpack ? spread : dense, unpack ? dense : spread, 0);
    dcommi_end_many(b, 0, runs);
}

/* Blocks with bit `bit` among the distances 0 .. n-1. */
static int64_t dcommi_bruck_count(int64_t n, int64_t bit)
{
    return n / (2 * bit) * bit + dcommi_max64(0, n % (2 * bit) - bit);
}

static dcomm_status dcommi_a2a_bruck(const dcommi_shape *s, dcommi_builder *b)
{
    int64_t n = s->nranks, rank = s->rank, block = dcommi_shape_bytes(s, s->count);
    dcomm_space input = dcommi_input_of(s, 0).space;
    int64_t half = dcommi_bruck_count(n, 1);
    for (int64_t bit = 2; bit < n; bit *= 2) {
        half = dcommi_max64(half, dcommi_bruck_count(n, bit));
    }
    int64_t blocks = dcommi_build_scratch(b, n * block);
    int64_t leaving = dcommi_build_scratch(b, half * block);
    int64_t coming = dcommi_build_scratch(b, half * block);
    int64_t tag = 0;

    /* Block i is the one that has distance i to go: rotate the input by rank. */
    dcommi_copy(b, 0, dcommi_span(DCOMM_SPACE_SCRATCH, blocks, (n - rank) * block),
                dcommi_span(input, rank * block, (n - rank) * block), 0);
    if (rank > 0) {
        dcommi_copy(b, 0,
                    dcommi_span(DCOMM_SPACE_SCRATCH, blocks + (n - rank) * block, rank * block),
                    dcommi_span(input, 0, rank * block), 0);
    }
    for (int64_t bit = 1; bit < n; bit *= 2) {
        int64_t length = dcommi_bruck_count(n, bit) * block;
        tag = dcommi_build_tags(b, 1);
        dcommi_bruck_pack(b, n, block, bit, blocks, leaving, length, false);
        dcommi_send(b, 0, dcommi_span(DCOMM_SPACE_SCRATCH, leaving, length),
                    dcommi_const((rank + bit) % n), dcommi_const(tag), DCOMM_STEP_ASYNC);
        dcommi_recv(b, 0, dcommi_span(DCOMM_SPACE_SCRATCH, coming, length),
                    dcommi_const((rank - bit + n) % n), dcommi_const(tag), DCOMM_STEP_ASYNC);
        dcommi_fence(b, 0);
        dcommi_bruck_pack(b, n, block, bit, blocks, coming, length, true);
    }
    /* What travelled distance i came from rank-i. */
    int d = dcommi_loop(b, 0, dcommi_const(n));
    dcommi_copy(b, 0, dcommi_at(DCOMM_SPACE_OUT, dcommi_modular(block, rank, d, -1, n), block),
                dcommi_at(DCOMM_SPACE_SCRATCH, dcommi_linear(blocks, d, block), block), 0);
    dcommi_end(b, 0);
    return b->status;
}

#endif
/* ==== include/dcomm/impl/algo_direct.h ===================================================== */
/* algo_direct.h - direct exchange: every rank talks to every other, or all to one. Few steps, and
 * folds in rank order.
 *
 * Short blocks travel as messages. Long ones are offered to the peers (EXPOSE), who read them where
 * they lie, so that a reduction of N inputs passes over memory once; then everybody says that it
 * has read, because memory must stay until then.
 *
 * one_shot: all-reduce in one step, (N-1) S per rank. two_shot: direct reduce-scatter and direct
 * all-gather, 2 steps, 2(N-1)/N S per rank, as in Thakur, Rabenseifner and Gropp, "Optimization of
 * collective communication operations in MPICH", IJHPCA 19 (2005). star: all to rank 0 and back,
 * what a parameter server does (Li et al., OSDI 2014): (N-1) S in and out of rank 0. */
#ifndef DCOMMI_ALGO_DIRECT_H
#define DCOMMI_ALGO_DIRECT_H


/* Nobody leaves before everybody has read what it needs. */
static void dcommi_direct_read_barrier(const dcommi_shape *s, dcommi_builder *b)
{
    uint16_t readers = dcommi_build_counter(b);
    dcommi_signal(b, 0, readers, dcommi_const(DCOMM_ALL_PEERS), dcommi_const(1));
    dcommi_await(b, 0, readers, dcommi_const(s->nranks - 1));
}

/* All-reduce of two ranks: one message, folded as it arrives. */
static void dcommi_direct_pair(const dcommi_shape *s, dcommi_builder *b, int64_t bytes)
{
    dcommi_input in = dcommi_input_of(s, 0);
    dcomm_operand own = dcommi_span(in.space, 0, bytes), sent = own;
    int64_t stage = dcommi_build_scratch(b, bytes);
    dcomm_expr peer = dcommi_const(1 - s->rank);
    int64_t tag = dcommi_build_tags(b, 1);
    if (s->in_place) {
        sent = dcommi_span(DCOMM_SPACE_SCRATCH, dcommi_build_scratch(b, bytes), bytes);
        dcommi_copy(b, 0, sent, own, 0);
    }
    dcommi_send(b, 0, sent, peer, dcommi_const(tag), DCOMM_STEP_ASYNC);
    dcommi_recv_reduce(b, 0, dcommi_span(DCOMM_SPACE_OUT, 0, bytes),
                       s->rank == 0 ? own : dcommi_msg(), s->rank == 0 ? dcommi_msg() : own,
                       dcommi_span(DCOMM_SPACE_SCRATCH, stage, bytes), peer, dcommi_const(tag),
                       DCOMM_STEP_FINAL);
    dcommi_fence(b, 0);
}

/* Start receiving `max_length` bytes at most from every other rank into its slot of scratch. */
static void dcommi_direct_into_slots(const dcommi_shape *s, dcommi_builder *b, int64_t slots,
                                     int64_t length, int64_t tag)
{
    int d = dcommi_loop(b, 0, dcommi_const(s->nranks - 1));
    dcommi_turn peer = dcommi_others(s, d);
    dcomm_expr slot = dcommi_modular(length, peer.index, d, 1, s->nranks);
    dcommi_recv(b, 0, dcommi_at(DCOMM_SPACE_SCRATCH, dcommi_plus(slot, slots), length),
                dcommi_rank_at(s->nranks, peer), dcommi_const(tag), DCOMM_STEP_ASYNC);
    dcommi_end(b, 0);
}

/* out <- fold of one piece per rank in rank order: own, and the others' from the slots. */
static void dcommi_direct_fold_slots(const dcommi_shape *s, dcommi_builder *b, dcomm_operand out,
                                     int64_t slots, int64_t length, dcomm_operand own)
{
    dcomm_operand ordered[3];
    dcomm_operand others = dcommi_span(DCOMM_SPACE_SCRATCH, slots, length);
    size_t count = dcommi_in_rank_order(s, others, length, own, ordered);
    dcommi_reduce(b, 0, out, ordered, count, DCOMM_STEP_FINAL);
}

/* The same where the others' pieces lie at `offset` of what they have exposed. */
static void dcommi_direct_fold_peers(const dcommi_shape *s, dcommi_builder *b, dcomm_operand out,
                                     uint16_t slot, int64_t offset, int64_t length,
                                     dcomm_operand own)
{
    dcomm_operand ordered[3];
    dcomm_operand others = dcommi_peer(dcommi_const(0), slot, dcommi_const(offset), length);
    size_t count = dcommi_in_rank_order(s, others, 0, own, ordered);
    dcommi_reduce(b, 0, out, ordered, count, DCOMM_STEP_FINAL);
}

/* ---- all-reduce ---- */

static dcomm_status dcommi_direct_one_shot(const dcommi_shape *s, dcommi_builder *b)
{
    int64_t bytes = dcommi_shape_bytes(s, s->count);
    dcomm_operand own = dcommi_span(dcommi_input_of(s, 0).space, 0, bytes);
    dcomm_operand out = dcommi_span(DCOMM_SPACE_OUT, 0, bytes);
    if (bytes >= DCOMMI_PEER_READ_MIN) {
        uint16_t slot = dcommi_build_slot(b);
        if (s->in_place) {
            /* Others still read the input while the result is written. */
            own = dcommi_span(DCOMM_SPACE_SCRATCH, dcommi_build_scratch(b, bytes), bytes);
            dcommi_copy(b, 0, own, out, 0);
        }
        dcommi_expose(b, 0, own, slot, dcommi_const(DCOMM_ALL_PEERS));
        dcommi_direct_fold_peers(s, b, out, slot, 0, bytes, own);
        dcommi_direct_read_barrier(s, b);
    } else if (s->nranks == 2) {
        dcommi_direct_pair(s, b, bytes);
    } else {
        int64_t slots = dcommi_build_scratch(b, s->nranks * bytes);
        int64_t tag = dcommi_build_tags(b, 1);
        dcommi_send_to_others(s, b, own, tag);
        dcommi_direct_into_slots(s, b, slots, bytes, tag);
        dcommi_fence(b, 0);
        dcommi_direct_fold_slots(s, b, out, slots, bytes, own);
    }
    return b->status;
}

static dcomm_status dcommi_direct_two_shot(const dcommi_shape *s, dcommi_builder *b)
{
    int64_t n = s->nranks, total = dcommi_shape_bytes(s, s->count);
    dcommi_partition p = dcommi_partition_make(total, n, 0, (int64_t)dcomm_dtype_size(s->dtype));
    dcommi_blocks blocks = {.n = n, .stride = p.block, .length = p.block, .clip = total};
    dcomm_space input = dcommi_input_of(s, 0).space;
    int64_t begin = dcommi_min64(s->rank * p.block, total);
    int64_t length = dcommi_min64(p.block, total - begin);
    dcomm_operand own = dcommi_span(input, begin, length);
    dcomm_operand out = dcommi_span(DCOMM_SPACE_OUT, begin, length);
    if (p.block >= DCOMMI_PEER_READ_MIN) {
        uint16_t inputs = dcommi_build_slot(b), results = dcommi_build_slot(b);
        dcommi_expose(b, 0, dcommi_span(input, 0, total), inputs, dcommi_const(DCOMM_ALL_PEERS));
        dcommi_direct_fold_peers(s, b, out, inputs, begin, length, own);
        dcommi_expose(b, 0, out, results, dcommi_const(DCOMM_ALL_PEERS));
        int d = dcommi_loop(b, 0, dcommi_const(n - 1));
        dcommi_turn peer = dcommi_others(s, d);
        dcomm_operand block = dcommi_block_whole(&blocks, DCOMM_SPACE_OUT, peer, p.block);
        dcomm_operand theirs =
            dcommi_peer(dcommi_rank_at(n, peer), results, dcommi_const(0), p.block);
        /* The last blocks are shorter: total - block*rank. */
        theirs.length = dcommi_plus(dcommi_modular(-p.block, peer.index, d, 1, n), total);
        dcommi_copy(b, 0, block, theirs, DCOMM_STEP_ASYNC);
        dcommi_end(b, 0);
        dcommi_fence(b, 0);
        dcommi_direct_read_barrier(s, b);
        return b->status;
    }
    int64_t slots = dcommi_build_scratch(b, n * length);
    int64_t tag = dcommi_build_tags(b, 2);
    int d = dcommi_loop(b, 0, dcommi_const(n - 1));
    dcommi_turn peer = dcommi_others(s, d);
    dcommi_send(b, 0, dcommi_block_whole(&blocks, input, peer, p.block), dcommi_rank_at(n, peer),
                dcommi_const(tag), DCOMM_STEP_ASYNC);
    dcommi_end(b, 0);
    dcommi_direct_into_slots(s, b, slots, length, tag);
    dcommi_fence(b, 0);
    dcommi_direct_fold_slots(s, b, out, slots, length, own);
    dcommi_send_to_others(s, b, out, tag + 1);
    d = dcommi_loop(b, 0, dcommi_const(n - 1));
    peer = dcommi_others(s, d);
    dcommi_recv(b, 0, dcommi_block_whole(&blocks, DCOMM_SPACE_OUT, peer, p.block),
                dcommi_rank_at(n, peer), dcommi_const(tag + 1), DCOMM_STEP_ASYNC);
    dcommi_end(b, 0);
    dcommi_fence(b, 0);
    return b->status;
}

/* ---- reduce-scatter and all-gather ---- */

static dcomm_status dcommi_direct_reduce_scatter(const dcommi_shape *s, dcommi_builder *b)
{
    int64_t n = s->nranks, longest = 0;
    dcommi_blocks blocks = dcommi_blocks_of(s, b, &longest);
    dcomm_space input = dcommi_input_of(s, 0).space;
    int64_t begin = dcommi_own_offset(s, &blocks), length = dcommi_own_length(s, &blocks);
    dcomm_operand own = dcommi_span(input, begin, length);
    dcomm_operand out = dcommi_span(DCOMM_SPACE_OUT, s->in_place ? begin : 0, length);
    if (longest >= DCOMMI_PEER_READ_MIN) {
        uint16_t slot = dcommi_build_slot(b);
        int64_t total = n * blocks.stride;
        for (int64_t i = 0; blocks.listed && i < n; i++) {
            total = dcommi_max64(total, dcommi_shape_bytes(s, s->displs[i] + s->counts[i]));
        }
        dcommi_expose(b, 0, dcommi_span(input, 0, total), slot, dcommi_const(DCOMM_ALL_PEERS));
        dcommi_direct_fold_peers(s, b, out, slot, begin, length, own);
        dcommi_direct_read_barrier(s, b);
        return b->status;
    }
    int64_t slots = dcommi_build_scratch(b, n * length);
    int64_t tag = dcommi_build_tags(b, 1);
    int d = dcommi_loop(b, 0, dcommi_const(n - 1));
    dcommi_turn peer = dcommi_others(s, d);
    dcommi_send(b, 0, dcommi_block_whole(&blocks, input, peer, longest), dcommi_rank_at(n, peer),
                dcommi_const(tag), DCOMM_STEP_ASYNC);
    dcommi_end(b, 0);
    dcommi_direct_into_slots(s, b, slots, length, tag);
    dcommi_fence(b, 0);
    dcommi_direct_fold_slots(s, b, out, slots, length, own);
    return b->status;
}

static dcomm_status dcommi_direct_allgather(const dcommi_shape *s, dcommi_builder *b)
{
    int64_t n = s->nranks, longest = 0;
    dcommi_blocks blocks = dcommi_blocks_of(s, b, &longest);
    int64_t begin = dcommi_own_offset(s, &blocks), length = dcommi_own_length(s, &blocks);
    dcommi_input in = dcommi_input_of(s, begin);
    dcomm_operand own = dcommi_span(in.space, in.base, length);
    bool read = longest >= DCOMMI_PEER_READ_MIN;
    uint16_t slot = read ? dcommi_build_slot(b) : 0;
    int64_t tag = read ? 0 : dcommi_build_tags(b, 1);
    if (read) {
        dcommi_expose(b, 0, own, slot, dcommi_const(DCOMM_ALL_PEERS));
    } else {
        dcommi_send_to_others(s, b, own, tag);
    }
    int d = dcommi_loop(b, 0, dcommi_const(n - 1));
    dcommi_turn peer = dcommi_others(s, d);
    dcomm_operand block = dcommi_block_whole(&blocks, DCOMM_SPACE_OUT, peer, longest);
    if (read) {
        dcomm_operand theirs = dcommi_peer(dcommi_rank_at(n, peer), slot, dcommi_const(0), longest);
        theirs.length = dcommi_block_length(&blocks, peer);
        dcommi_copy(b, 0, block, theirs, DCOMM_STEP_ASYNC);
    } else {
        dcommi_recv(b, 0, block, dcommi_rank_at(n, peer), dcommi_const(tag), DCOMM_STEP_ASYNC);
    }
    dcommi_end(b, 0);
    if (!s->in_place) {
        dcommi_copy(b, 0, dcommi_span(DCOMM_SPACE_OUT, begin, length), own, 0);
    }
    dcommi_fence(b, 0);
    if (read) {
        dcommi_direct_read_barrier(s, b);
    }
    return b->status;
}

/* ---- all to one, one to all ---- */

/* Chunks for which the root of a star has room from everybody. */
static int64_t dcommi_star_chunk(const dcommi_shape *s, int64_t total)
{
    int64_t room = dcommi_max64(1 << 12, (64 << 20) / s->nranks);
    return dcommi_chunk_for(s, total, dcommi_min64(DCOMMI_CHUNK_DEFAULT, room));
}

/* Rank 0 folds chunk by chunk in rank order and hands each chunk back. */
static dcomm_status dcommi_star_allreduce(const dcommi_shape *s, dcommi_builder *b)
{
    int64_t n = s->nranks, total = dcommi_shape_bytes(s, s->count);
    int64_t chunk = dcommi_star_chunk(s, total), chunks = dcommi_chunks_of(total, chunk);
    int64_t tag = dcommi_build_tags(b, chunks);
    uint16_t sent = dcommi_build_counter(b);
    dcomm_space input = dcommi_input_of(s, 0).space;
    if (s->rank > 0) {
        int c = dcommi_loop_many(b, 0, chunks);
        dcommi_send(b, 0, dcommi_span_chunk(input, 0, total, chunk, c), dcommi_const(0),
                    dcommi_linear(tag, c, 1), 0);
        dcommi_signal(b, 0, sent, dcommi_const(s->rank), dcommi_const(1));
        dcommi_end_many(b, 0, chunks);
        c = dcommi_loop_many(b, 1, chunks);
        dcommi_await(b, 1, sent, dcommi_linear(1, c, 1));
        dcommi_recv(b, 1, dcommi_span_chunk(DCOMM_SPACE_OUT, 0, total, chunk, c), dcommi_const(0),
                    dcommi_linear(tag, c, 1), 0);
        dcommi_end_many(b, 1, chunks);
        return b->status;
    }
    int64_t slots = dcommi_build_scratch(b, (n - 1) * chunk);
    int c = dcommi_loop_many(b, 0, chunks);
    dcomm_expr length = dcommi_linear(total, c, -chunk), order = dcommi_linear(tag, c, 1);
    dcomm_operand out = dcommi_span_chunk(DCOMM_SPACE_OUT, 0, total, chunk, c);
    int d = dcommi_loop(b, 0, dcommi_const(n - 1));
    dcomm_operand slot = dcommi_at(DCOMM_SPACE_SCRATCH, dcommi_linear(slots, d, chunk), chunk);
    slot.length = length;
    dcommi_recv(b, 0, slot, dcommi_linear(1, d, 1), order, DCOMM_STEP_ASYNC);
    dcommi_end(b, 0);
    dcommi_fence(b, 0);
    dcomm_operand pieces[2] = {dcommi_span_chunk(input, 0, total, chunk, c),
                               dcommi_span(DCOMM_SPACE_SCRATCH, slots, chunk)};
    pieces[1].repeat = (uint32_t)(n - 1);
    pieces[1].stride = chunk;
    pieces[1].length = length;
    dcommi_reduce(b, 0, out, pieces, 2, DCOMM_STEP_FINAL);
    d = dcommi_loop(b, 0, dcommi_const(n - 1));
    dcommi_send(b, 0, out, dcommi_linear(1, d, 1), order, DCOMM_STEP_ASYNC);
    dcommi_end(b, 0);
    dcommi_end_many(b, 0, chunks);
    dcommi_fence(b, 0);
    return b->status;
}

/* Reduction at the root, in rank order: it reads long inputs where they lie. */
static dcomm_status dcommi_linear_reduce(const dcommi_shape *s, dcommi_builder *b)
{
    int64_t total = dcommi_shape_bytes(s, s->count);
    bool root = s->rank == s->root, read = total >= DCOMMI_PEER_READ_MIN;
    dcomm_operand own = dcommi_span(dcommi_input_of(s, 0).space, 0, total);
    dcomm_operand out = dcommi_span(DCOMM_SPACE_OUT, 0, total);
    if (read) {
        uint16_t slot = dcommi_build_slot(b), done = dcommi_build_counter(b);
        if (root) {
            dcommi_direct_fold_peers(s, b, out, slot, 0, total, own);
            dcommi_signal(b, 0, done, dcommi_const(DCOMM_ALL_PEERS), dcommi_const(1));
        } else {
            dcommi_expose(b, 0, own, slot, dcommi_const(s->root));
            dcommi_await(b, 0, done, dcommi_const(1));
        }
        return b->status;
    }
    int64_t tag = dcommi_build_tags(b, 1);
    if (!root) {
        dcommi_send(b, 0, own, dcommi_const(s->root), dcommi_const(tag), 0);
        return b->status;
    }
    int64_t slots = dcommi_build_scratch(b, s->nranks * total);
    dcommi_direct_into_slots(s, b, slots, total, tag);
    dcommi_fence(b, 0);
    dcommi_direct_fold_slots(s, b, out, slots, total, own);
    return b->status;
}

static dcomm_status dcommi_linear_broadcast(const dcommi_shape *s, dcommi_builder *b)
{
    int64_t total = dcommi_shape_bytes(s, s->count);
    bool root = s->rank == s->root, read = total >= DCOMMI_PEER_READ_MIN;
    uint16_t slot = read ? dcommi_build_slot(b) : 0, done = read ? dcommi_build_counter(b) : 0;
    int64_t tag = read ? 0 : dcommi_build_tags(b, 1);
    dcomm_operand out = dcommi_span(DCOMM_SPACE_OUT, 0, total);
    if (!root) {
        if (read) {
            dcommi_copy(b, 0, out, dcommi_peer(dcommi_const(s->root), slot, dcommi_const(0), total),
                        0);
            dcommi_signal(b, 0, done, dcommi_const(s->root), dcommi_const(1));
        } else {
            dcommi_recv(b, 0, out, dcommi_const(s->root), dcommi_const(tag), 0);
        }
        return b->status;
    }
    dcomm_operand own = dcommi_span(dcommi_input_of(s, 0).space, 0, total);
    if (read) {
        dcommi_expose(b, 0, own, slot, dcommi_const(DCOMM_ALL_PEERS));
    } else {
        dcommi_send_to_others(s, b, own, tag);
    }
    if (!s->in_place) {
        dcommi_copy(b, 0, out, own, 0);
    }
    if (read) {
        dcommi_await(b, 0, done, dcommi_const(s->nranks - 1));
    } else {
        dcommi_fence(b, 0);
    }
    return b->status;
}

#endif
/* ==== include/dcomm/impl/algo_doubling.h =================================================== */
/* algo_doubling.h - exchanges over doubling or halving distances, in ceil(log2 N) steps.
 *
 * recursive_doubling (all-reduce): in step k each rank exchanges all that it has with the rank
 * whose number differs in bit k; log2 N steps of S. For other rank counts, the first 2(N-2^k) ranks
 * pair up: one of two folds for both and hands the result back, two steps more. Thakur et al. 2005.
 * halving_doubling: Rabenseifner, "Optimization of collective reduction operations", ICCS 2004: a
 * reduce-scatter that halves what it exchanges, then the all-gather that doubles it again;
 * 2 ceil(log2 N) steps, 2(N-1)/N S per rank.
 * For rank counts that are no power of two, reduce-scatter and all-gather go over the circulant
 * graph with distances ceil(N/2), ceil(N/4), ... 1: Traeff, "Optimal, non-pipelined reduce-scatter
 * and allreduce algorithms", 2024; its all-gather is that of Bruck et al., IEEE TPDS 8 (1997). They
 * need the same number of bytes as for powers of two and no step before or after. */
#ifndef DCOMMI_ALGO_DOUBLING_H
#define DCOMMI_ALGO_DOUBLING_H


static bool dcommi_is_power_of_two(int64_t n)
{
    return (n & (n - 1)) == 0;
}

/* A constant run of bytes. */
typedef struct dcommi_range {
    dcomm_space space;
    int64_t offset, length;
} dcommi_range;

static dcomm_operand dcommi_range_chunk(dcommi_range r, int64_t chunk, int depth)
{
    return dcommi_span_chunk(r.space, r.offset, r.length, chunk, depth);
}

/* What the exchanges of one plan have in common. */
typedef struct dcommi_exchange {
    const dcommi_shape *s;
    dcommi_builder *b;
    int64_t chunk, stage;
    int64_t tags; /* that one message may take */
    int64_t tag;  /* next free one; counted alike on every rank */
} dcommi_exchange;

/* `messages` of at most `longest` bytes to come. */
static dcommi_exchange dcommi_exchange_make(const dcommi_shape *s, dcommi_builder *b,
                                            int64_t longest, int64_t messages, bool folds)
{
    dcommi_exchange x = {.s = s, .b = b};
    x.chunk = dcommi_chunk_for(s, longest, DCOMMI_CHUNK_DEFAULT);
    x.tags = dcommi_chunks_of(longest, x.chunk);
    x.tag = dcommi_build_tags(b, x.tags * messages);
    x.stage = folds ? dcommi_build_scratch(b, x.chunk) : 0;
    return x;
}

static void dcommi_exchange_send(dcommi_exchange *x, dcommi_range from, int64_t peer, int64_t tag)
{
    int64_t chunks = dcommi_chunks_of(from.length, x->chunk);
    int c = dcommi_loop_many(x->b, 0, chunks);
    dcommi_send(x->b, 0, dcommi_range_chunk(from, x->chunk, c), dcommi_const(peer),
                dcommi_linear(tag, c, 1), DCOMM_STEP_ASYNC);
    dcommi_end_many(x->b, 0, chunks);
}

static void dcommi_exchange_recv(dcommi_exchange *x, dcommi_range into, int64_t peer, int64_t tag)
{
    int64_t chunks = dcommi_chunks_of(into.length, x->chunk);
    int c = dcommi_loop_many(x->b, 0, chunks);
    dcommi_recv(x->b, 0, dcommi_range_chunk(into, x->chunk, c), dcommi_const(peer),
                dcommi_linear(tag, c, 1), DCOMM_STEP_ASYNC);
    dcommi_end_many(x->b, 0, chunks);
}

/* into <- fold(own, message), or fold(message, own) where the message comes first. */
static void dcommi_exchange_fold(dcommi_exchange *x, dcommi_range into, dcommi_range own,
                                 bool message_first, int64_t peer, int64_t tag, unsigned flags)
{
    int64_t chunks = dcommi_chunks_of(into.length, x->chunk);
    int c = dcommi_loop_many(x->b, 0, chunks);
    dcomm_operand mine = dcommi_range_chunk(own, x->chunk, c);
    dcommi_recv_reduce(x->b, 0, dcommi_range_chunk(into, x->chunk, c),
                       message_first ? dcommi_msg() : mine, message_first ? mine : dcommi_msg(),
                       dcommi_span(DCOMM_SPACE_SCRATCH, x->stage, x->chunk), dcommi_const(peer),
                       dcommi_linear(tag, c, 1), flags);
    dcommi_end_many(x->b, 0, chunks);
}

/* ---- recursive doubling ---- */

/* Each step reads one buffer and writes another, because what is being sent must not change. The
 * two take turns so that the last step writes to OUT. Both partners fold the lower one's part
 * first, which makes their bits equal. */
static dcomm_status dcommi_doubling_allreduce(const dcommi_shape *s, dcommi_builder *b)
{
    int64_t n = s->nranks, bytes = dcommi_shape_bytes(s, s->count), power = 1;
    int steps = 0;
    while (2 * power <= n) {
        power *= 2;
        steps++;
    }
    int64_t paired = 2 * (n - power), rank = s->rank;
    dcommi_exchange x = dcommi_exchange_make(s, b, bytes, steps + 2, true);
    dcommi_range out = {DCOMM_SPACE_OUT, 0, bytes};
    dcommi_range input = {dcommi_input_of(s, 0).space, 0, bytes};
    int64_t back = x.tag + (steps + 1) * x.tags;
    if (rank < paired && rank % 2 == 0) {
        dcommi_exchange_send(&x, input, rank + 1, x.tag);
        dcommi_fence(b, 0);
        dcommi_exchange_recv(&x, out, rank + 1, back);
        dcommi_fence(b, 0);
        return b->status;
    }
    bool turns = steps > 1 || paired > 0 || s->in_place;
    dcommi_range scratch = {DCOMM_SPACE_SCRATCH, turns ? dcommi_build_scratch(b, bytes) : 0, bytes};
    dcommi_range current = input;
    if (rank < paired) {
        current = steps % 2 == 0 ? out : scratch;
        dcommi_exchange_fold(&x, current, input, true, rank - 1, x.tag, 0);
    } else if (s->in_place && steps % 2 == 1) {
        current = scratch;
        dcommi_copy(b, 0, dcommi_span(current.space, current.offset, bytes),
                    dcommi_span(input.space, input.offset, bytes), 0);
    }
    int64_t number = rank < paired ? rank / 2 : rank - paired / 2;
    for (int k = 0; k < steps; k++) {
        int64_t other = number ^ ((int64_t)1 << k);
        int64_t peer = other < paired / 2 ? 2 * other + 1 : other + paired / 2;
        int64_t tag = x.tag + (k + 1) * x.tags;
        dcommi_range next = (steps - k - 1) % 2 == 0 ? out : scratch;
        dcommi_exchange_send(&x, current, peer, tag);
        dcommi_exchange_fold(&x, next, current, other < number, peer, tag,
                             k == steps - 1 ? DCOMM_STEP_FINAL : 0);
        dcommi_fence(b, 0);
        current = next;
    }
    if (rank < paired) {
        dcommi_exchange_send(&x, out, rank - 1, back);
        dcommi_fence(b, 0);
    }
    return b->status;
}

/* ---- recursive halving and its reverse ---- */

/* How a packed buffer is cut into one block per rank. */
typedef struct dcommi_cut {
    const dcommi_shape *s;
    bool listed;
    int64_t stride, total;
} dcommi_cut;

/* Where block i (0 .. n) begins. */
static int64_t dcommi_cut_at(const dcommi_cut *cut, int64_t i)
{
    if (!cut->listed) {
        return dcommi_min64(i * cut->stride, cut->total);
    }
    int64_t sum = 0;
    for (int64_t k = 0; k < i; k++) {
        sum += dcommi_shape_bytes(cut->s, cut->s->counts[k]);
    }
    return sum;
}

static dcommi_cut dcommi_cut_make(const dcommi_shape *s)
{
    dcommi_cut cut = {.s = s};
    if (s->coll == DCOMM_COLL_ALLREDUCE) {
        cut.total = dcommi_shape_bytes(s, s->count);
        cut.stride =
            dcommi_partition_make(cut.total, s->nranks, 0, (int64_t)dcomm_dtype_size(s->dtype))
                .block;
    } else if (s->coll == DCOMM_COLL_ALLGATHERV || s->coll == DCOMM_COLL_REDUCE_SCATTERV) {
        cut.listed = true;
        cut.total = dcommi_cut_at(&cut, s->nranks);
    } else {
        cut.stride = dcommi_shape_bytes(s, s->count);
        cut.total = cut.stride * s->nranks;
    }
    return cut;
}

/* Where partial or complete blocks lie: as in the packed buffer, from `offset` on (which may point
 * before a space that has only some of them), or, `rotated`, this rank's own block first. */
typedef struct dcommi_place {
    dcomm_space space;
    int64_t offset;
    bool rotated;
} dcommi_place;

/* Blocks first .. first+count-1, which must not wrap around. */
static dcommi_range dcommi_cut_range(const dcommi_cut *cut, dcommi_place place, int64_t first,
                                     int64_t count)
{
    int64_t at = dcommi_cut_at(cut, first), rank = cut->s->rank;
    dcommi_range r = {place.space, place.offset + at, dcommi_cut_at(cut, first + count) - at};
    if (place.rotated) {
        int64_t own = dcommi_cut_at(cut, rank);
        r.offset += first >= rank ? -own : cut->total - own;
    }
    return r;
}

/* Reduce-scatter of a power of two of ranks. What is kept lies in `work` between the steps; the
 * last one writes to `result`. */
static void dcommi_halving_xor(dcommi_exchange *x, const dcommi_cut *cut, dcommi_place input,
                               dcommi_place work, dcommi_place result)
{
    int64_t rank = x->s->rank;
    for (int64_t d = x->s->nranks / 2; d >= 1; d /= 2) {
        int64_t keep = rank & ~(d - 1), give = keep ^ d, peer = rank ^ d;
        dcommi_exchange_send(x, dcommi_cut_range(cut, input, give, d), peer, x->tag);
        dcommi_exchange_fold(x, dcommi_cut_range(cut, d == 1 ? result : work, keep, d),
                             dcommi_cut_range(cut, input, keep, d), false, peer, x->tag,
                             d == 1 ? DCOMM_STEP_FINAL : 0);
        dcommi_fence(x->b, 0);
        x->tag += x->tags;
        input = work;
    }
}

static void dcommi_doubling_xor(dcommi_exchange *x, const dcommi_cut *cut, dcommi_place work)
{
    int64_t rank = x->s->rank;
    for (int64_t d = 1; d < x->s->nranks; d *= 2) {
        int64_t have = rank & ~(d - 1), peer = rank ^ d;
        dcommi_exchange_send(x, dcommi_cut_range(cut, work, have, d), peer, x->tag);
        dcommi_exchange_recv(x, dcommi_cut_range(cut, work, have ^ d, d), peer, x->tag);
        dcommi_fence(x->b, 0);
        x->tag += x->tags;
    }
}

/* Blocks rank+from .. rank+to-1 modulo N, as at most two runs that do not wrap. */
static int dcommi_circulant_runs(const dcommi_shape *s, int64_t from, int64_t to, int64_t first[2],
                                 int64_t count[2])
{
    int64_t n = s->nranks;
    first[0] = (s->rank + from) % n;
    count[0] = dcommi_min64(to - from, n - first[0]);
    first[1] = 0;
    count[1] = to - from - count[0];
    return count[1] > 0 ? 2 : 1;
}

/* Send blocks rank+from .. rank+to-1; each run is a message, and both ends know the runs. */
static void dcommi_circulant_send(dcommi_exchange *x, const dcommi_cut *cut, dcommi_place place,
                                  int64_t from, int64_t to, int64_t peer)
{
    int64_t first[2], count[2];
    int runs = dcommi_circulant_runs(x->s, from, to, first, count);
    for (int i = 0; i < runs; i++) {
        dcommi_exchange_send(x, dcommi_cut_range(cut, place, first[i], count[i]), peer,
                             x->tag + i * x->tags);
    }
}

/* The distances of the circulant graph: `reach` blocks are shared out over `reach` ranks in the
 * step with distance (reach+1)/2. */
static int64_t dcommi_circulant_reach(int64_t n, int step)
{
    while (step-- > 0) {
        n = (n + 1) / 2;
    }
    return n;
}

static int dcommi_circulant_steps(int64_t n)
{
    int steps = 0;
    for (; n > 1; n = (n + 1) / 2) {
        steps++;
    }
    return steps;
}

static void dcommi_halving_circulant(dcommi_exchange *x, const dcommi_cut *cut, dcommi_place input,
                                     dcommi_place work, dcommi_place result)
{
    int64_t n = x->s->nranks, rank = x->s->rank, first[2], count[2];
    int steps = dcommi_circulant_steps(n);
    if (n % 2 == 1 && (input.space != work.space || input.offset != work.offset)) {
        /* The first step folds into n/2 blocks; one more is sent on from `work` as it is. */
        int64_t block = (rank + n / 2) % n;
        dcommi_range to = dcommi_cut_range(cut, work, block, 1);
        dcommi_range from = dcommi_cut_range(cut, input, block, 1);
        dcommi_copy(x->b, 0, dcommi_span(to.space, to.offset, to.length),
                    dcommi_span(from.space, from.offset, from.length), 0);
    }
    for (int k = 0; k < steps; k++) {
        int64_t reach = dcommi_circulant_reach(n, k), d = (reach + 1) / 2;
        bool last = k == steps - 1;
        dcommi_circulant_send(x, cut, input, d, reach, (rank + d) % n);
        int runs = dcommi_circulant_runs(x->s, 0, reach - d, first, count);
        for (int i = 0; i < runs; i++) {
            dcommi_exchange_fold(x, dcommi_cut_range(cut, last ? result : work, first[i], count[i]),
                                 dcommi_cut_range(cut, input, first[i], count[i]), false,
                                 (rank - d + n) % n, x->tag + i * x->tags,
                                 last ? DCOMM_STEP_FINAL : 0);
        }
        dcommi_fence(x->b, 0);
        x->tag += 2 * x->tags;
        input = work;
    }
}

static void dcommi_doubling_circulant(dcommi_exchange *x, const dcommi_cut *cut, dcommi_place work)
{
    int64_t n = x->s->nranks, rank = x->s->rank, first[2], count[2];
    for (int k = dcommi_circulant_steps(n) - 1; k >= 0; k--) {
        int64_t reach = dcommi_circulant_reach(n, k), d = (reach + 1) / 2;
        dcommi_circulant_send(x, cut, work, 0, reach - d, (rank - d + n) % n);
        int runs = dcommi_circulant_runs(x->s, d, reach, first, count);
        for (int i = 0; i < runs; i++) {
            dcommi_exchange_recv(x, dcommi_cut_range(cut, work, first[i], count[i]), (rank + d) % n,
                                 x->tag + i * x->tags);
        }
        dcommi_fence(x->b, 0);
        x->tag += 2 * x->tags;
    }
}

/* Messages of one half: a step's range may be two runs on the circulant graph. */
static int64_t dcommi_halving_messages(int64_t n)
{
    return dcommi_circulant_steps(n) * (dcommi_is_power_of_two(n) ? 1 : 2);
}

static dcomm_status dcommi_halving_doubling(const dcommi_shape *s, dcommi_builder *b)
{
    dcommi_cut cut = dcommi_cut_make(s);
    dcommi_exchange x =
        dcommi_exchange_make(s, b, cut.total, 2 * dcommi_halving_messages(s->nranks), true);
    dcommi_place input = {dcommi_input_of(s, 0).space, 0, false}, out = {DCOMM_SPACE_OUT, 0, false};
    if (dcommi_is_power_of_two(s->nranks)) {
        dcommi_halving_xor(&x, &cut, input, out, out);
        dcommi_doubling_xor(&x, &cut, out);
    } else {
        dcommi_halving_circulant(&x, &cut, input, out, out);
        dcommi_doubling_circulant(&x, &cut, out);
    }
    return b->status;
}

static dcomm_status dcommi_halving_reduce_scatter(const dcommi_shape *s, dcommi_builder *b)
{
    int64_t n = s->nranks, rank = s->rank;
    dcommi_cut cut = dcommi_cut_make(s);
    dcommi_exchange x = dcommi_exchange_make(s, b, cut.total, dcommi_halving_messages(n), true);
    dcommi_place input = {dcommi_input_of(s, 0).space, 0, false};
    /* The one block of the result, placed so that its position in the packed buffer fits. */
    dcommi_place result = {DCOMM_SPACE_OUT, s->in_place ? 0 : -dcommi_cut_at(&cut, rank), false};
    dcommi_place work = {DCOMM_SPACE_SCRATCH, 0, false};
    if (dcommi_is_power_of_two(n)) {
        int64_t keep = rank & ~(n / 2 - 1), at = dcommi_cut_at(&cut, keep);
        int64_t length = dcommi_cut_at(&cut, keep + n / 2) - at;
        work.offset = n > 2 ? dcommi_build_scratch(b, length) - at : 0;
        dcommi_halving_xor(&x, &cut, input, work, result);
    } else {
        int64_t first[2], count[2], length = 0;
        int runs = dcommi_circulant_runs(s, 0, (n + 1) / 2, first, count);
        for (int i = 0; i < runs; i++) {
            length += dcommi_cut_range(&cut, input, first[i], count[i]).length;
        }
        work.rotated = true;
        work.offset = dcommi_build_scratch(b, length);
        dcommi_halving_circulant(&x, &cut, input, work, result);
    }
    return b->status;
}

/* Do the blocks of an all-gather lie one after the other? */
static bool dcommi_doubling_packed(const dcommi_shape *s)
{
    size_t next = 0;
    for (int i = 0; s->coll == DCOMM_COLL_ALLGATHERV && i < s->nranks; i++) {
        if (s->counts[i] > 0 && s->displs[i] != next) {
            return false;
        }
        next += s->counts[i];
    }
    return true;
}

/* Ranges of blocks travel as one message each, so blocks that do not lie one after the other are
 * gathered in scratch first. */
static dcomm_status dcommi_doubling_allgather(const dcommi_shape *s, dcommi_builder *b)
{
    int64_t n = s->nranks, rank = s->rank;
    dcommi_cut cut = dcommi_cut_make(s);
    dcommi_exchange x = dcommi_exchange_make(s, b, cut.total, dcommi_halving_messages(n), false);
    bool packed = dcommi_doubling_packed(s);
    dcommi_place work = {DCOMM_SPACE_OUT, 0, false};
    if (!packed) {
        work.space = DCOMM_SPACE_SCRATCH;
        work.offset = dcommi_build_scratch(b, cut.total);
    }
    dcommi_range own = dcommi_cut_range(&cut, work, rank, 1);
    dcommi_input in = dcommi_input_of(s, cut.listed ? dcommi_shape_bytes(s, s->displs[rank])
                                                    : dcommi_cut_at(&cut, rank));
    if (!s->in_place || !packed) {
        dcommi_copy(b, 0, dcommi_span(own.space, own.offset, own.length),
                    dcommi_span(in.space, in.base, own.length), 0);
    }
    if (dcommi_is_power_of_two(n)) {
        dcommi_doubling_xor(&x, &cut, work);
    } else {
        dcommi_doubling_circulant(&x, &cut, work);
    }
    if (!packed) {
        int64_t longest = dcommi_longest(s, s->counts);
        dcommi_blocks blocks = {.n = n, .listed = true};
        blocks.offsets = (int64_t)b->ntable;
        int64_t at = work.offset;
        for (int64_t i = 0; i < n; i++) {
            dcommi_build_table(b, &at, 1);
            at += dcommi_shape_bytes(s, s->counts[i]);
        }
        blocks.lengths = dcommi_table_bytes(s, b, s->counts);
        int d = dcommi_loop(b, 0, dcommi_const(n));
        dcommi_turn each = {0, d, 1};
        dcomm_operand from = dcommi_block_whole(&blocks, DCOMM_SPACE_SCRATCH, each, longest);
        blocks.offsets = dcommi_table_bytes(s, b, s->displs);
        dcommi_copy(b, 0, dcommi_block_whole(&blocks, DCOMM_SPACE_OUT, each, longest), from, 0);
        dcommi_end(b, 0);
    }
    return b->status;
}

#endif
/* ==== include/dcomm/impl/algo_misc.h ======================================================= */
/* algo_misc.h - barrier, gather, scatter, send and receive.
 *
 * barrier, dissemination: Hensgen, Finkel and Manber, "Two algorithms for barrier synchronization",
 * IJPP 17 (1988): in step k each rank signals the one 2^k ahead and waits for the one 2^k behind.
 * gather and scatter: linear, all with the root at once; binomial, where inner ranks of the tree
 * carry whole subtrees, ceil(log2 N) steps. */
#ifndef DCOMMI_ALGO_MISC_H
#define DCOMMI_ALGO_MISC_H


static dcomm_status dcommi_barrier_dissemination(const dcommi_shape *s, dcommi_builder *b)
{
    for (int64_t d = 1; d < s->nranks; d *= 2) {
        uint16_t step = dcommi_build_counter(b);
        dcommi_signal(b, 0, step, dcommi_const((s->rank + d) % s->nranks), dcommi_const(1));
        dcommi_await(b, 0, step, dcommi_const(1));
    }
    return b->status;
}

/* The peer of a send or receive is shape->root; one message, whatever its length. */
static dcomm_status dcommi_p2p_direct(const dcommi_shape *s, dcommi_builder *b)
{
    int64_t bytes = dcommi_shape_bytes(s, s->count);
    dcomm_expr peer = dcommi_const(s->root), tag = dcommi_const(dcommi_build_tags(b, 1));
    if (s->coll == DCOMM_COLL_SEND) {
        dcommi_send(b, 0, dcommi_span(DCOMM_SPACE_IN, 0, bytes), peer, tag, 0);
    } else {
        dcommi_recv(b, 0, dcommi_span(DCOMM_SPACE_OUT, 0, bytes), peer, tag, 0);
    }
    return b->status;
}

/* ---- linear ---- */

static dcomm_status dcommi_gather_linear(const dcommi_shape *s, dcommi_builder *b)
{
    int64_t n = s->nranks, longest = 0;
    dcommi_blocks blocks = dcommi_blocks_of(s, b, &longest);
    int64_t begin = dcommi_own_offset(s, &blocks), length = dcommi_own_length(s, &blocks);
    dcomm_expr tag = dcommi_const(dcommi_build_tags(b, 1));
    dcomm_operand own = dcommi_span(DCOMM_SPACE_IN, 0, length);
    if (s->rank != s->root) {
        dcommi_send(b, 0, own, dcommi_const(s->root), tag, 0);
        return b->status;
    }
    int d = dcommi_loop(b, 0, dcommi_const(n - 1));
    dcommi_turn peer = dcommi_others(s, d);
    dcommi_recv(b, 0, dcommi_block_whole(&blocks, DCOMM_SPACE_OUT, peer, longest),
                dcommi_rank_at(n, peer), tag, DCOMM_STEP_ASYNC);
    dcommi_end(b, 0);
    if (!s->in_place) {
        dcommi_copy(b, 0, dcommi_span(DCOMM_SPACE_OUT, begin, length), own, 0);
    }
    dcommi_fence(b, 0);
    return b->status;
}

static dcomm_status dcommi_scatter_linear(const dcommi_shape *s, dcommi_builder *b)
{
    int64_t n = s->nranks, longest = 0;
    dcommi_blocks blocks = dcommi_blocks_of(s, b, &longest);
    int64_t begin = dcommi_own_offset(s, &blocks), length = dcommi_own_length(s, &blocks);
    dcomm_expr tag = dcommi_const(dcommi_build_tags(b, 1));
    dcomm_operand out = dcommi_span(DCOMM_SPACE_OUT, 0, length);
    if (s->rank != s->root) {
        dcommi_recv(b, 0, out, dcommi_const(s->root), tag, 0);
        return b->status;
    }
    dcomm_space input = dcommi_input_of(s, 0).space;
    int d = dcommi_loop(b, 0, dcommi_const(n - 1));
    dcommi_turn peer = dcommi_others(s, d);
    dcommi_send(b, 0, dcommi_block_whole(&blocks, input, peer, longest), dcommi_rank_at(n, peer),
                tag, DCOMM_STEP_ASYNC);
    dcommi_end(b, 0);
    if (!s->in_place) {
        dcommi_copy(b, 0, out, dcommi_span(input, begin, length), 0);
    }
    dcommi_fence(b, 0);
    return b->status;
}

/* ---- binomial ---- */

/* A subtree holds the ranks root+from .. root+to-1 modulo N. Its blocks travel as one message, or
 * as two where the numbers wrap around, so that the root needs no copy of them. */
typedef struct dcommi_subtree {
    int64_t from, to;
} dcommi_subtree;

static dcommi_subtree dcommi_subtree_of(const dcommi_shape *s, int64_t v)
{
    int64_t low = v == 0 ? s->nranks : v & -v;
    dcommi_subtree t = {v, dcommi_min64(s->nranks, v + low)};
    return t;
}

/* Move the blocks of a subtree to or from rank `peer`, without waiting. Root's buffer is in rank
 * order from its start, the others' scratch in order of the relative rank `first` on. */
static void dcommi_subtree_move(const dcommi_shape *s, dcommi_builder *b, bool send,
                                dcommi_subtree t, dcomm_space space, int64_t base, int64_t first,
                                int64_t peer_v, int64_t tag)
{
    int64_t n = s->nranks, block = dcommi_shape_bytes(s, s->count), wrap = n - s->root;
    dcommi_subtree run[2] = {{t.from, dcommi_min64(t.to, wrap)},
                             {dcommi_max64(t.from, wrap), t.to}};
    for (int i = 0; i < 2; i++) {
        if (run[i].from >= run[i].to) {
            continue;
        }
        int64_t at = s->rank == s->root ? (run[i].from + s->root) % n : run[i].from - first;
        dcomm_operand blocks =
            dcommi_span(space, base + at * block, (run[i].to - run[i].from) * block);
        dcomm_expr peer = dcommi_const((peer_v + s->root) % n);
        if (send) {
            dcommi_send(b, 0, blocks, peer, dcommi_const(tag + i), DCOMM_STEP_ASYNC);
        } else {
            dcommi_recv(b, 0, blocks, peer, dcommi_const(tag + i), DCOMM_STEP_ASYNC);
        }
    }
}

static dcomm_status dcommi_gather_binomial(const dcommi_shape *s, dcommi_builder *b)
{
    int64_t n = s->nranks, block = dcommi_shape_bytes(s, s->count);
    int64_t v = (s->rank - s->root + n) % n, tag = dcommi_build_tags(b, 2);
    dcommi_subtree mine = dcommi_subtree_of(s, v);
    dcomm_operand own = dcommi_span(DCOMM_SPACE_IN, 0, block);
    dcomm_space space = v == 0 ? DCOMM_SPACE_OUT : DCOMM_SPACE_SCRATCH;
    int64_t base = 0;
    bool leaf = mine.to - mine.from == 1;
    if (v > 0 && leaf) {
        space = DCOMM_SPACE_IN;
    } else if (v > 0) {
        base = dcommi_build_scratch(b, (mine.to - mine.from) * block);
    }
    for (int64_t d = 1; v + d < mine.to; d *= 2) {
        dcommi_subtree_move(s, b, false, dcommi_subtree_of(s, v + d), space, base, v, v + d, tag);
    }
    if (v == 0 ? !s->in_place : !leaf) {
        dcommi_copy(b, 0, dcommi_span(space, base + (v == 0 ? s->root * block : 0), block), own, 0);
    }
    dcommi_fence(b, 0);
    if (v > 0) {
        dcommi_subtree_move(s, b, true, mine, space, base, v, v - (v & -v), tag);
        dcommi_fence(b, 0);
    }
    return b->status;
}

static dcomm_status dcommi_scatter_binomial(const dcommi_shape *s, dcommi_builder *b)
{
    int64_t n = s->nranks, block = dcommi_shape_bytes(s, s->count);
    int64_t v = (s->rank - s->root + n) % n, tag = dcommi_build_tags(b, 2);
    dcommi_subtree mine = dcommi_subtree_of(s, v);
    dcomm_operand out = dcommi_span(DCOMM_SPACE_OUT, 0, block);
    dcomm_space space = v == 0 ? dcommi_input_of(s, 0).space : DCOMM_SPACE_SCRATCH;
    int64_t base = 0, own = v == 0 ? s->root * block : 0, top = 1;
    bool leaf = mine.to - mine.from == 1;
    if (v > 0) {
        if (leaf) {
            space = DCOMM_SPACE_OUT;
        } else {
            base = dcommi_build_scratch(b, (mine.to - mine.from) * block);
        }
        dcommi_subtree_move(s, b, false, mine, space, base, v, v - (v & -v), tag);
        dcommi_fence(b, 0);
    }
    while (v + 2 * top < mine.to) {
        top *= 2;
    }
    for (int64_t d = top; d >= 1 && v + d < mine.to; d /= 2) {
        dcommi_subtree_move(s, b, true, dcommi_subtree_of(s, v + d), space, base, v, v + d, tag);
    }
    if (v == 0 ? !s->in_place : !leaf) {
        dcommi_copy(b, 0, out, dcommi_span(space, base + own, block), 0);
    }
    dcommi_fence(b, 0);
    return b->status;
}

#endif
/* ==== include/dcomm/impl/algo_ring.h ======================================================= */
/* algo_ring.h - rings: bandwidth-optimal reduce-scatter, all-gather and all-reduce.
 *
 * Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations",
 * JPDC 69 (2009). The buffer is one block per rank. In step u of the reduce-scatter, each rank
 * sends a partial block to its neighbour and folds the one that comes from the other side; after
 * N-1 steps rank r holds block r complete. The all-gather passes complete blocks on in the same
 * way. Per rank: (N-1)/N of the buffer in each half, 2(N-1)/N for all-reduce; N-1 or 2(N-1) steps.
 *
 * Blocks travel in chunks. A sending and a receiving lane run side by side, and a counter of
 * received chunks lets chunk c of step u leave as soon as chunk c of step u-1 has been folded.
 * Several rings split the buffer; every other one runs backwards. */
#ifndef DCOMMI_ALGO_RING_H
#define DCOMMI_ALGO_RING_H


/* One ring: who the neighbours are and how far the chunks go. */
typedef struct dcommi_ring {
    dcommi_builder *b;
    int64_t n, rank, step; /* step: +1, or -1 for a ring that runs backwards */
    int send_lane, recv_lane;
    int64_t chunk, chunks, tag;
    uint16_t received; /* counter of chunks that the receiving lane has */
    uint16_t sent;     /* counter of chunks that the sending lane is done with */
} dcommi_ring;

static dcommi_ring dcommi_ring_make(const dcommi_shape *s, dcommi_builder *b, int index,
                                    int64_t chunk, int64_t chunks, int64_t steps)
{
    dcommi_ring ring = {.b = b,
                        .n = s->nranks,
                        .rank = s->rank,
                        .step = index % 2 == 0 ? 1 : -1,
                        .send_lane = 2 * index,
                        .recv_lane = 2 * index + 1,
                        .chunk = chunk,
                        .chunks = chunks};
    ring.tag = dcommi_build_tags(b, steps * chunks);
    ring.received = dcommi_build_counter(b);
    ring.sent = dcommi_build_counter(b);
    return ring;
}

static dcomm_expr dcommi_ring_next(const dcommi_ring *ring)
{
    return dcommi_const((ring->rank + ring->step + ring->n) % ring->n);
}

static dcomm_expr dcommi_ring_previous(const dcommi_ring *ring)
{
    return dcommi_const((ring->rank - ring->step + ring->n) % ring->n);
}

/* Where a run of steps is: step u = first + i[u], chunk i[c]. */
typedef struct dcommi_ring_run {
    int64_t first, trips;
    int u, c;
} dcommi_ring_run;

static dcommi_ring_run dcommi_ring_open(const dcommi_ring *ring, int lane, int64_t first,
                                        int64_t trips)
{
    dcommi_ring_run run = {.first = first, .trips = trips};
    run.u = dcommi_loop_many(ring->b, lane, trips);
    run.c = dcommi_loop_many(ring->b, lane, ring->chunks);
    return run;
}

static void dcommi_ring_close(const dcommi_ring *ring, int lane, const dcommi_ring_run *run)
{
    dcommi_end_many(ring->b, lane, ring->chunks);
    dcommi_end_many(ring->b, lane, run->trips);
}

/* add + (u * chunks + c) */
static dcomm_expr dcommi_ring_count(const dcommi_ring *ring, const dcommi_ring_run *run,
                                    int64_t add)
{
    dcomm_expr e = dcommi_linear(add + run->first * ring->chunks, run->c, 1);
    return dcommi_plus_loop(e, run->u, run->trips > 1 ? ring->chunks : 0);
}

/* The block that step u sends (ahead = 1 for a reduction, 0 for an all-gather, where u = 0 sends
 * the own block); the block that it receives is one further back. */
static dcommi_turn dcommi_ring_turn(const dcommi_ring *ring, const dcommi_ring_run *run,
                                    int64_t ahead)
{
    dcommi_turn t = {ring->rank - ring->step * (run->first + ahead), run->u,
                     run->trips > 1 ? -ring->step : 0};
    return t;
}

/* Steps first .. first+trips-1 of the sending lane. relay: what they send was received one step
 * before. */
static void dcommi_ring_sends(const dcommi_ring *ring, const dcommi_blocks *blocks,
                              dcomm_space space, int64_t ahead, int64_t first, int64_t trips,
                              bool relay)
{
    if (trips <= 0) {
        return;
    }
    int lane = ring->send_lane;
    dcommi_ring_run run = dcommi_ring_open(ring, lane, first, trips);
    if (relay) {
        dcommi_await(ring->b, lane, ring->received,
                     dcommi_ring_count(ring, &run, 1 - ring->chunks));
    }
    dcommi_send(
        ring->b, lane,
        dcommi_block_chunk(blocks, space, dcommi_ring_turn(ring, &run, ahead), ring->chunk, run.c),
        dcommi_ring_next(ring), dcommi_ring_count(ring, &run, ring->tag), 0);
    dcommi_signal(ring->b, lane, ring->sent, dcommi_const(ring->rank), dcommi_const(1));
    dcommi_ring_close(ring, lane, &run);
}

/* Steps of the receiving lane that only pass blocks on. overwrites: the block was sent, partial, in
 * the step N-1 before, which must be over. */
static void dcommi_ring_recvs(const dcommi_ring *ring, const dcommi_blocks *blocks, int64_t ahead,
                              int64_t first, int64_t trips, bool overwrites)
{
    int lane = ring->recv_lane;
    dcommi_ring_run run = dcommi_ring_open(ring, lane, first, trips);
    if (overwrites) {
        dcommi_await(ring->b, lane, ring->sent,
                     dcommi_ring_count(ring, &run, 1 - (ring->n - 1) * ring->chunks));
    }
    dcommi_recv(ring->b, lane,
                dcommi_block_chunk(blocks, DCOMM_SPACE_OUT, dcommi_ring_turn(ring, &run, ahead + 1),
                                   ring->chunk, run.c),
                dcommi_ring_previous(ring), dcommi_ring_count(ring, &run, ring->tag), 0);
    dcommi_signal(ring->b, lane, ring->received, dcommi_const(ring->rank), dcommi_const(1));
    dcommi_ring_close(ring, lane, &run);
}

/* Steps of the receiving lane that fold into OUT, where the blocks lie as in the input. */
static void dcommi_ring_folds(const dcommi_ring *ring, const dcommi_blocks *blocks,
                              dcomm_space input, int64_t stage, int64_t first, int64_t trips,
                              unsigned flags)
{
    if (trips <= 0) {
        return;
    }
    int lane = ring->recv_lane;
    dcommi_ring_run run = dcommi_ring_open(ring, lane, first, trips);
    dcommi_turn turn = dcommi_ring_turn(ring, &run, 2);
    dcommi_recv_reduce(ring->b, lane,
                       dcommi_block_chunk(blocks, DCOMM_SPACE_OUT, turn, ring->chunk, run.c),
                       dcommi_msg(), dcommi_block_chunk(blocks, input, turn, ring->chunk, run.c),
                       dcommi_span(DCOMM_SPACE_SCRATCH, stage, ring->chunk),
                       dcommi_ring_previous(ring), dcommi_ring_count(ring, &run, ring->tag), flags);
    dcommi_signal(ring->b, lane, ring->received, dcommi_const(ring->rank), dcommi_const(1));
    dcommi_ring_close(ring, lane, &run);
}

/* How many rings: two lanes each. */
static int dcommi_ring_lanes(const dcommi_shape *s)
{
    int most = DCOMM_PLAN_MAX_LANES / 2;
    return s->lanes < 1 ? 1 : s->lanes > most ? most : s->lanes;
}

static dcomm_status dcommi_ring_allreduce(const dcommi_shape *s, dcommi_builder *b)
{
    int rings = dcommi_ring_lanes(s);
    int64_t n = s->nranks, total = dcommi_shape_bytes(s, s->count);
    int64_t wanted = s->chunk_bytes > 0 ? s->chunk_bytes : DCOMMI_CHUNK_DEFAULT;
    dcommi_partition p =
        dcommi_partition_make(total, n * rings, wanted, (int64_t)dcomm_dtype_size(s->dtype));
    dcomm_space input = dcommi_input_of(s, 0).space;
    for (int i = 0; i < rings; i++) {
        dcommi_ring ring = dcommi_ring_make(s, b, i, p.chunk, p.chunks, 2 * (n - 1));
        dcommi_blocks blocks = {
            .n = n, .base = i * n * p.block, .stride = p.block, .length = p.block, .clip = total};
        int64_t stage = dcommi_build_scratch(b, p.chunk);
        dcommi_ring_sends(&ring, &blocks, input, 1, 0, 1, false);
        dcommi_ring_sends(&ring, &blocks, DCOMM_SPACE_OUT, 1, 1, 2 * n - 3, true);
        dcommi_ring_folds(&ring, &blocks, input, stage, 0, n - 2, 0);
        dcommi_ring_folds(&ring, &blocks, input, stage, n - 2, 1, DCOMM_STEP_FINAL);
        dcommi_ring_recvs(&ring, &blocks, 1, n - 1, n - 1, true);
    }
    return b->status;
}

static dcomm_status dcommi_ring_allgather(const dcommi_shape *s, dcommi_builder *b)
{
    int rings = dcommi_ring_lanes(s);
    int64_t n = s->nranks, longest = 0;
    dcommi_blocks blocks = dcommi_blocks_of(s, b, &longest);
    int64_t wanted = s->chunk_bytes > 0 ? s->chunk_bytes : DCOMMI_CHUNK_DEFAULT;
    dcommi_partition p =
        dcommi_partition_make(longest, rings, wanted, (int64_t)dcomm_dtype_size(s->dtype));
    int64_t own = dcommi_own_offset(s, &blocks);
    int64_t length = dcommi_own_length(s, &blocks);
    dcommi_input in = dcommi_input_of(s, own);
    for (int i = 0; i < rings; i++) {
        dcommi_ring ring = dcommi_ring_make(s, b, i, p.chunk, p.chunks, n - 1);
        blocks.skip = i * p.block;
        int c = dcommi_loop_many(b, ring.send_lane, p.chunks);
        dcommi_send(
            b, ring.send_lane,
            dcommi_span_chunk(in.space, in.base + blocks.skip, length - blocks.skip, p.chunk, c),
            dcommi_ring_next(&ring), dcommi_linear(ring.tag, c, 1), 0);
        dcommi_end_many(b, ring.send_lane, p.chunks);
        dcommi_ring_sends(&ring, &blocks, DCOMM_SPACE_OUT, 0, 1, n - 2, true);
        if (i == 0 && !s->in_place) {
            dcommi_copy(b, ring.recv_lane, dcommi_span(DCOMM_SPACE_OUT, own, length),
                        dcommi_span(in.space, in.base, length), 0);
        }
        dcommi_ring_recvs(&ring, &blocks, 0, 0, n - 1, false);
    }
    return b->status;
}

/* As the first half of all-reduce, except that OUT has room for the own block only: what is on its
 * way is folded into scratch, in two slots that take turns. Step u may write to a slot when what
 * came in step u-2 has left it, in step u-1; credit for one step lets step 0 begin. */
static dcomm_status dcommi_ring_reduce_scatter(const dcommi_shape *s, dcommi_builder *b)
{
    int rings = dcommi_ring_lanes(s);
    int64_t n = s->nranks, longest = 0;
    dcommi_blocks blocks = dcommi_blocks_of(s, b, &longest);
    int64_t wanted = s->chunk_bytes > 0 ? s->chunk_bytes : DCOMMI_CHUNK_DEFAULT;
    dcommi_partition p =
        dcommi_partition_make(longest, rings, wanted, (int64_t)dcomm_dtype_size(s->dtype));
    int64_t own = dcommi_own_offset(s, &blocks);
    int64_t length = dcommi_own_length(s, &blocks);
    dcomm_space input = dcommi_input_of(s, 0).space;
    int64_t out = s->in_place ? own : 0;
    for (int i = 0; i < rings; i++) {
        dcommi_ring ring = dcommi_ring_make(s, b, i, p.chunk, p.chunks, n - 1);
        int64_t stage = dcommi_build_scratch(b, p.chunk);
        int64_t slots = n > 2 ? dcommi_build_scratch(b, 2 * p.block) : 0;
        int send = ring.send_lane, recv = ring.recv_lane;
        blocks.skip = i * p.block;

        dcommi_ring_sends(&ring, &blocks, input, 1, 0, 1, false);
        if (n > 2) {
            dcommi_ring_run run = dcommi_ring_open(&ring, send, 1, n - 2);
            dcomm_operand part = dcommi_block_chunk(
                &blocks, DCOMM_SPACE_SCRATCH, dcommi_ring_turn(&ring, &run, 1), p.chunk, run.c);
            part.offset = dcommi_modular(p.block, 0, run.u, run.trips > 1, 2);
            part.offset = dcommi_plus_loop(dcommi_plus(part.offset, slots), run.c, p.chunk);
            dcommi_await(b, send, ring.received, dcommi_ring_count(&ring, &run, 1 - p.chunks));
            dcommi_send(b, send, part, dcommi_ring_next(&ring),
                        dcommi_ring_count(&ring, &run, ring.tag), 0);
            dcommi_signal(b, send, ring.sent, dcommi_const(s->rank), dcommi_const(1));
            dcommi_ring_close(&ring, send, &run);

            dcommi_signal(b, recv, ring.sent, dcommi_const(s->rank), dcommi_const(p.chunks));
            run = dcommi_ring_open(&ring, recv, 0, n - 2);
            dcommi_turn turn = dcommi_ring_turn(&ring, &run, 2);
            part = dcommi_block_chunk(&blocks, DCOMM_SPACE_SCRATCH, turn, p.chunk, run.c);
            part.offset = dcommi_modular(p.block, 0, run.u, run.trips > 1, 2);
            part.offset = dcommi_plus_loop(dcommi_plus(part.offset, slots), run.c, p.chunk);
            dcommi_await(b, recv, ring.sent, dcommi_ring_count(&ring, &run, 1));
            dcommi_recv_reduce(b, recv, part, dcommi_msg(),
                               dcommi_block_chunk(&blocks, input, turn, p.chunk, run.c),
                               dcommi_span(DCOMM_SPACE_SCRATCH, stage, p.chunk),
                               dcommi_ring_previous(&ring),
                               dcommi_ring_count(&ring, &run, ring.tag), 0);
            dcommi_signal(b, recv, ring.received, dcommi_const(s->rank), dcommi_const(1));
            dcommi_ring_close(&ring, recv, &run);
        }
        dcommi_ring_run last = dcommi_ring_open(&ring, recv, n - 2, 1);
        dcommi_recv_reduce(
            b, recv,
            dcommi_span_chunk(DCOMM_SPACE_OUT, out + blocks.skip, length - blocks.skip, p.chunk,
                              last.c),
            dcommi_msg(),
            dcommi_block_chunk(&blocks, input, dcommi_turn_at(s->rank), p.chunk, last.c),
            dcommi_span(DCOMM_SPACE_SCRATCH, stage, p.chunk), dcommi_ring_previous(&ring),
            dcommi_ring_count(&ring, &last, ring.tag), DCOMM_STEP_FINAL);
        dcommi_ring_close(&ring, recv, &last);
    }
    return b->status;
}

#endif
/* ==== include/dcomm/impl/algo_tree.h ======================================================= */
/* algo_tree.h - trees: binomial, and two binary trees that share the work.
 *
 * binomial: ceil(log2 N) steps; the root sends or receives S in each.
 * tree: Sanders, Speck and Traeff, "Two-tree algorithms for full bandwidth broadcast, reduction and
 * scan", Parallel Computing 35 (2009). A rank that is an inner node of one tree is a leaf of the
 * other, and each tree carries half of the data, so that every rank sends and receives about S per
 * direction; about 2 log2 N steps each way. Chunks are pipelined: while chunk c+1 arrives, chunk c
 * is on its way further. */
#ifndef DCOMMI_ALGO_TREE_H
#define DCOMMI_ALGO_TREE_H


#define DCOMMI_TREE_CHILDREN 32

/* A rank's place in a tree. */
typedef struct dcommi_node {
    int parent; /* -1: root */
    int nchildren;
    int child[DCOMMI_TREE_CHILDREN];
} dcommi_node;

/* Binomial tree over n ranks from `root`: the parent is the relative rank without its lowest set
 * bit. Children in order of growing distance. */
static dcommi_node dcommi_tree_binomial(int n, int root, int rank)
{
    dcommi_node node = {.parent = -1};
    int v = (rank - root + n) % n;
    for (int64_t bit = 1; bit < n; bit *= 2) {
        if (v & bit) {
            node.parent = (int)((v - bit + root) % n);
            break;
        }
        if (v + bit < n) {
            node.child[node.nchildren++] = (int)((v + bit + root) % n);
        }
    }
    return node;
}

/* One of the two binary trees over positions 0 .. n-1. The first is the in-order tree of 1 .. n: x
 * stands as high as its lowest set bit, odd x are leaves. The second is the mirror image for even
 * n and a shift by one for odd n, so that its leaves are inner nodes of the first. Positions are
 * mapped to ranks by adding `shift` modulo `nranks`; the root of the tree gets `above` as its
 * parent. */
static dcommi_node dcommi_tree_binary(int64_t n, int which, int64_t position, int64_t shift,
                                      int64_t nranks, int above)
{
    dcommi_node node = {.parent = above};
    int64_t x = position + 1;
    if (which == 1) {
        x = n % 2 == 0 ? n - position : (position + 1) % n + 1;
    }
    int64_t relatives[3] = {0, 0, 0};
    int64_t low = x & -x;
    relatives[0] = ((x ^ low) | (2 * low)) <= n ? (x ^ low) | (2 * low) : x ^ low;
    if (low > 1) {
        relatives[1] = x - low / 2;
        int64_t reach = low / 2;
        while (reach >= 1 && x + reach > n) {
            reach /= 2;
        }
        relatives[2] = reach >= 1 ? x + reach : 0;
    }
    for (int i = 0; i < 3; i++) {
        if (relatives[i] == 0) {
            continue;
        }
        int64_t at = relatives[i] - 1;
        if (which == 1) {
            at = n % 2 == 0 ? n - relatives[i] : (relatives[i] - 2 + n) % n;
        }
        int rank = (int)((at + shift) % nranks);
        if (i == 0) {
            node.parent = rank;
        } else {
            node.child[node.nchildren++] = rank;
        }
    }
    return node;
}

/* The same trees over all ranks but `root`, which stands above both. */
static dcommi_node dcommi_tree_rooted(const dcommi_shape *s, int which)
{
    int64_t n = s->nranks, v = (s->rank - s->root + n) % n;
    if (v > 0) {
        return dcommi_tree_binary(n - 1, which, v - 1, s->root + 1, n, s->root);
    }
    dcommi_node top = {.parent = -1, .nchildren = 1};
    for (int64_t position = 0; position < n - 1; position++) {
        dcommi_node node = dcommi_tree_binary(n - 1, which, position, s->root + 1, n, s->root);
        if (node.parent == s->root) {
            top.child[0] = (int)((position + s->root + 1) % n);
        }
    }
    return top;
}

/* What flows along one tree: `length` bytes from `base` on, in OUT as in the input, in chunks. */
typedef struct dcommi_flow {
    int64_t base, length, chunk, chunks;
} dcommi_flow;

static dcomm_operand dcommi_flow_chunk(const dcommi_flow *f, dcomm_space space, int depth)
{
    return dcommi_span_chunk(space, f->base, f->length, f->chunk, depth);
}

/* Flow i of `flows` into which `total` bytes are cut. */
static dcommi_flow dcommi_flow_make(const dcommi_shape *s, int64_t total, int flows, int i)
{
    int64_t wanted = s->chunk_bytes > 0 ? s->chunk_bytes : DCOMMI_CHUNK_DEFAULT;
    dcommi_partition p =
        dcommi_partition_make(total, flows, wanted, (int64_t)dcomm_dtype_size(s->dtype));
    dcommi_flow f = {.base = i * p.block, .chunk = p.chunk, .chunks = p.chunks};
    f.length = dcommi_max64(0, dcommi_min64(p.block, total - f.base));
    return f;
}

/* Send a chunk to all children, the largest subtree first. */
static void dcommi_tree_to_children(dcommi_builder *b, int lane, const dcommi_node *node,
                                    dcomm_operand chunk, dcomm_expr tag)
{
    for (int i = node->nchildren - 1; i >= 0; i--) {
        dcommi_send(b, lane, chunk, dcommi_const(node->child[i]), tag, DCOMM_STEP_ASYNC);
    }
}

/* Pass chunks from the parent to the children; at the root they come from `source`. The fence lets
 * one chunk leave while the next one arrives. after: chunk c may be written when this counter has
 * reached c+1 (-1: at once). */
static void dcommi_tree_down(dcommi_builder *b, int lane, const dcommi_flow *f,
                             const dcommi_node *node, dcomm_space source, int64_t first_tag,
                             int after)
{
    int c = dcommi_loop_many(b, lane, f->chunks);
    if (after >= 0) {
        dcommi_await(b, lane, (uint16_t)after, dcommi_linear(1, c, 1));
    }
    dcomm_expr tag = dcommi_linear(first_tag, c, 1);
    dcomm_operand chunk = dcommi_flow_chunk(f, node->parent < 0 ? source : DCOMM_SPACE_OUT, c);
    if (node->parent >= 0) {
        dcommi_recv(b, lane, chunk, dcommi_const(node->parent), tag, 0);
    }
    if (node->nchildren > 0) {
        dcommi_fence(b, lane);
        dcommi_tree_to_children(b, lane, node, chunk, tag);
    }
    dcommi_end_many(b, lane, f->chunks);
    if (node->nchildren > 0) {
        dcommi_fence(b, lane);
    }
}

/* Fold what the children send into `into`, beginning with the own input. */
static void dcommi_tree_fold(const dcommi_shape *s, dcommi_builder *b, int lane,
                             const dcommi_flow *f, const dcommi_node *node, dcomm_operand into,
                             int64_t stage, dcomm_expr tag, int c)
{
    dcomm_operand own = dcommi_flow_chunk(f, dcommi_input_of(s, 0).space, c);
    for (int i = 0; i < node->nchildren; i++) {
        bool last = node->parent < 0 && i == node->nchildren - 1;
        dcommi_recv_reduce(b, lane, into, i == 0 ? own : into, dcommi_msg(),
                           dcommi_span(DCOMM_SPACE_SCRATCH, stage, f->chunk),
                           dcommi_const(node->child[i]), tag, last ? DCOMM_STEP_FINAL : 0);
    }
}

/* Up and down one tree. The root turns chunks round in one lane; the others fold, send up and pass
 * down in three, so that the directions do not wait for each other. Returns the next free lane. */
static int dcommi_tree_both_ways(const dcommi_shape *s, dcommi_builder *b, int lane,
                                 const dcommi_flow *f, const dcommi_node *node)
{
    int64_t up = dcommi_build_tags(b, f->chunks), down = dcommi_build_tags(b, f->chunks);
    bool inner = node->nchildren > 0;
    uint16_t folded = dcommi_build_counter(b), sent = dcommi_build_counter(b);
    if (inner) {
        int64_t stage = dcommi_build_scratch(b, f->chunk);
        int c = dcommi_loop_many(b, lane, f->chunks);
        dcomm_operand chunk = dcommi_flow_chunk(f, DCOMM_SPACE_OUT, c);
        dcommi_tree_fold(s, b, lane, f, node, chunk, stage, dcommi_linear(up, c, 1), c);
        if (node->parent < 0) {
            dcommi_fence(b, lane);
            dcommi_tree_to_children(b, lane, node, chunk, dcommi_linear(down, c, 1));
        } else {
            dcommi_signal(b, lane, folded, dcommi_const(s->rank), dcommi_const(1));
        }
        dcommi_end_many(b, lane, f->chunks);
        if (node->parent < 0) {
            dcommi_fence(b, lane);
        }
        lane++;
    }
    if (node->parent >= 0) {
        dcomm_space from = inner ? DCOMM_SPACE_OUT : dcommi_input_of(s, 0).space;
        int c = dcommi_loop_many(b, lane, f->chunks);
        if (inner) {
            dcommi_await(b, lane, folded, dcommi_linear(1, c, 1));
        }
        dcommi_send(b, lane, dcommi_flow_chunk(f, from, c), dcommi_const(node->parent),
                    dcommi_linear(up, c, 1), 0);
        if (from == DCOMM_SPACE_OUT) {
            dcommi_signal(b, lane, sent, dcommi_const(s->rank), dcommi_const(1));
        }
        dcommi_end_many(b, lane, f->chunks);
        dcommi_tree_down(b, lane + 1, f, node, DCOMM_SPACE_OUT, down,
                         from == DCOMM_SPACE_OUT ? sent : -1);
        lane += 2;
    }
    return lane;
}

/* Up one tree only. Inner nodes that are not the root fold into two scratch slots in turn. */
static void dcommi_tree_up(const dcommi_shape *s, dcommi_builder *b, int lane, const dcommi_flow *f,
                           const dcommi_node *node)
{
    int64_t first_tag = dcommi_build_tags(b, f->chunks);
    int64_t stage = node->nchildren > 0 ? dcommi_build_scratch(b, f->chunk) : 0;
    bool relay = node->nchildren > 0 && node->parent >= 0;
    int64_t slots = relay ? dcommi_build_scratch(b, 2 * f->chunk) : 0;
    int c = dcommi_loop_many(b, lane, f->chunks);
    dcomm_expr tag = dcommi_linear(first_tag, c, 1);
    dcomm_operand chunk =
        dcommi_flow_chunk(f, node->parent < 0 ? DCOMM_SPACE_OUT : dcommi_input_of(s, 0).space, c);
    if (relay) {
        chunk.space = DCOMM_SPACE_SCRATCH;
        chunk.offset = dcommi_plus(dcommi_modular(f->chunk, 0, c, f->chunks > 1, 2), slots);
    }
    dcommi_tree_fold(s, b, lane, f, node, chunk, stage, tag, c);
    if (node->parent >= 0) {
        dcommi_fence(b, lane);
        dcommi_send(b, lane, chunk, dcommi_const(node->parent), tag, DCOMM_STEP_ASYNC);
    }
    dcommi_end_many(b, lane, f->chunks);
    if (node->parent >= 0) {
        dcommi_fence(b, lane);
    }
}

/* The root of a broadcast has its input in place of its output as well. */
static void dcommi_tree_keep_own(const dcommi_shape *s, dcommi_builder *b, int64_t total)
{
    if (s->rank == s->root && !s->in_place) {
        dcommi_copy(b, 0, dcommi_span(DCOMM_SPACE_OUT, 0, total),
                    dcommi_span(DCOMM_SPACE_IN, 0, total), 0);
    }
}

/* How many flows the two trees carry, at most three lanes each. */
static int dcommi_tree_flows(const dcommi_shape *s)
{
    int most = DCOMM_PLAN_MAX_LANES / 6;
    return 2 * (s->lanes < 1 ? 1 : s->lanes > most ? most : s->lanes);
}

static dcomm_status dcommi_tree_allreduce(const dcommi_shape *s, dcommi_builder *b)
{
    int64_t total = dcommi_shape_bytes(s, s->count);
    int lane = 0, flows = dcommi_tree_flows(s);
    for (int i = 0; i < flows; i++) {
        dcommi_flow f = dcommi_flow_make(s, total, flows, i);
        dcommi_node node = dcommi_tree_binary(s->nranks, i % 2, s->rank, 0, s->nranks, -1);
        lane = dcommi_tree_both_ways(s, b, lane, &f, &node);
    }
    return b->status;
}

static dcomm_status dcommi_tree_allreduce_binomial(const dcommi_shape *s, dcommi_builder *b)
{
    dcommi_flow f = dcommi_flow_make(s, dcommi_shape_bytes(s, s->count), 1, 0);
    dcommi_node node = dcommi_tree_binomial(s->nranks, 0, s->rank);
    dcommi_tree_both_ways(s, b, 0, &f, &node);
    return b->status;
}

static dcomm_status dcommi_tree_broadcast(const dcommi_shape *s, dcommi_builder *b)
{
    int64_t total = dcommi_shape_bytes(s, s->count);
    int flows = dcommi_tree_flows(s);
    for (int i = 0; i < flows; i++) {
        dcommi_flow f = dcommi_flow_make(s, total, flows, i);
        dcommi_node node = dcommi_tree_rooted(s, i % 2);
        dcommi_tree_down(b, i, &f, &node, dcommi_input_of(s, 0).space,
                         dcommi_build_tags(b, f.chunks), -1);
    }
    dcommi_tree_keep_own(s, b, total);
    return b->status;
}

static dcomm_status dcommi_tree_broadcast_binomial(const dcommi_shape *s, dcommi_builder *b)
{
    int64_t total = dcommi_shape_bytes(s, s->count);
    dcommi_flow f = dcommi_flow_make(s, total, 1, 0);
    dcommi_node node = dcommi_tree_binomial(s->nranks, s->root, s->rank);
    dcommi_tree_down(b, 0, &f, &node, dcommi_input_of(s, 0).space, dcommi_build_tags(b, f.chunks),
                     -1);
    dcommi_tree_keep_own(s, b, total);
    return b->status;
}

static dcomm_status dcommi_tree_reduce(const dcommi_shape *s, dcommi_builder *b)
{
    int flows = dcommi_tree_flows(s);
    for (int i = 0; i < flows; i++) {
        dcommi_flow f = dcommi_flow_make(s, dcommi_shape_bytes(s, s->count), flows, i);
        dcommi_node node = dcommi_tree_rooted(s, i % 2);
        dcommi_tree_up(s, b, i, &f, &node);
    }
    return b->status;
}

static dcomm_status dcommi_tree_reduce_binomial(const dcommi_shape *s, dcommi_builder *b)
{
    dcommi_flow f = dcommi_flow_make(s, dcommi_shape_bytes(s, s->count), 1, 0);
    dcommi_node node = dcommi_tree_binomial(s->nranks, s->root, s->rank);
    dcommi_tree_up(s, b, 0, &f, &node);
    return b->status;
}

#endif

static const dcommi_algo dcommi_algo_table[] = {
    {"ring", DCOMM_COLL_ALLREDUCE, dcommi_ring_allreduce, false,
     "2(N-1) steps; 2(N-1)/N S per rank", "Patarasuk and Yuan 2009"},
    {"tree", DCOMM_COLL_ALLREDUCE, dcommi_tree_allreduce, false,
     "about 4 log2 N steps, pipelined; at most 2 S per rank", "Sanders, Speck and Traeff 2009"},
    {"binomial", DCOMM_COLL_ALLREDUCE, dcommi_tree_allreduce_binomial, false,
     "2 ceil(log2 N) steps; at most ceil(log2 N) S per rank",
     "Thakur, Rabenseifner and Gropp 2005"},
    {"recursive_doubling", DCOMM_COLL_ALLREDUCE, dcommi_doubling_allreduce, false,
     "log2 N steps and times S (other N: floor(log2 N) + 2 steps, + 1 times S)",
     "Thakur, Rabenseifner and Gropp 2005"},
    {"halving_doubling", DCOMM_COLL_ALLREDUCE, dcommi_halving_doubling, false,
     "2 ceil(log2 N) steps; 2(N-1)/N S per rank", "Rabenseifner 2004; Traeff 2024"},
    {"one_shot", DCOMM_COLL_ALLREDUCE, dcommi_direct_one_shot, true, "1 step; (N-1) S per rank",
     "direct exchange"},
    {"two_shot", DCOMM_COLL_ALLREDUCE, dcommi_direct_two_shot, true, "2 steps; 2(N-1)/N S per rank",
     "Thakur, Rabenseifner and Gropp 2005"},
    {"star", DCOMM_COLL_ALLREDUCE, dcommi_star_allreduce, true,
     "2 steps; (N-1) S in and out of rank 0, S of the others", "Li et al. 2014 (parameter server)"},
    {"ring", DCOMM_COLL_REDUCE_SCATTER, dcommi_ring_reduce_scatter, false,
     "N-1 steps; N-1 blocks per rank", "Patarasuk and Yuan 2009"},
    {"recursive_halving", DCOMM_COLL_REDUCE_SCATTER, dcommi_halving_reduce_scatter, false,
     "ceil(log2 N) steps; N-1 blocks per rank", "Rabenseifner 2004; Traeff 2024"},
    {"direct", DCOMM_COLL_REDUCE_SCATTER, dcommi_direct_reduce_scatter, true,
     "1 step; N-1 blocks per rank", "direct exchange"},
    {"ring", DCOMM_COLL_ALLGATHER, dcommi_ring_allgather, false, "N-1 steps; N-1 blocks per rank",
     "Patarasuk and Yuan 2009"},
    {"recursive_doubling", DCOMM_COLL_ALLGATHER, dcommi_doubling_allgather, false,
     "ceil(log2 N) steps; N-1 blocks per rank", "Thakur et al. 2005; Bruck et al. 1997"},
    {"direct", DCOMM_COLL_ALLGATHER, dcommi_direct_allgather, false, "1 step; N-1 blocks per rank",
     "direct exchange"},
    {"ring", DCOMM_COLL_REDUCE_SCATTERV, dcommi_ring_reduce_scatter, false,
     "N-1 steps; all blocks but one per rank", "Patarasuk and Yuan 2009"},
    {"recursive_halving", DCOMM_COLL_REDUCE_SCATTERV, dcommi_halving_reduce_scatter, false,
     "ceil(log2 N) steps; all blocks but one per rank", "Rabenseifner 2004; Traeff 2024"},
    {"direct", DCOMM_COLL_REDUCE_SCATTERV, dcommi_direct_reduce_scatter, true,
     "1 step; all blocks but one per rank", "direct exchange"},
    {"ring", DCOMM_COLL_ALLGATHERV, dcommi_ring_allgather, false,
     "N-1 steps; all blocks but one per rank", "Patarasuk and Yuan 2009"},
    {"recursive_doubling", DCOMM_COLL_ALLGATHERV, dcommi_doubling_allgather, false,
     "ceil(log2 N) steps; all blocks but one per rank", "Thakur et al. 2005; Bruck et al. 1997"},
    {"direct", DCOMM_COLL_ALLGATHERV, dcommi_direct_allgather, false,
     "1 step; N-1 times the own block per rank", "direct exchange"},
    {"binomial", DCOMM_COLL_BROADCAST, dcommi_tree_broadcast_binomial, false,
     "ceil(log2 N) steps; at most ceil(log2 N) S per rank", "Thakur, Rabenseifner and Gropp 2005"},
    {"tree", DCOMM_COLL_BROADCAST, dcommi_tree_broadcast, false,
     "about 2 log2 N steps, pipelined; about S per rank", "Sanders, Speck and Traeff 2009"},
    {"linear", DCOMM_COLL_BROADCAST, dcommi_linear_broadcast, false,
     "1 step; (N-1) S at the root, S where long buffers are read", "direct exchange"},
    {"binomial", DCOMM_COLL_REDUCE, dcommi_tree_reduce_binomial, false,
     "ceil(log2 N) steps; S per rank", "Thakur, Rabenseifner and Gropp 2005"},
    {"tree", DCOMM_COLL_REDUCE, dcommi_tree_reduce, false,
     "about 2 log2 N steps, pipelined; S per rank", "Sanders, Speck and Traeff 2009"},
    {"linear", DCOMM_COLL_REDUCE, dcommi_linear_reduce, true, "1 step; (N-1) S into the root",
     "direct exchange"},
    {"linear", DCOMM_COLL_GATHER, dcommi_gather_linear, false, "1 step; the own block per rank",
     "direct exchange"},
    {"binomial", DCOMM_COLL_GATHER, dcommi_gather_binomial, false,
     "ceil(log2 N) steps; at most N/2 blocks per rank", "Thakur, Rabenseifner and Gropp 2005"},
    {"linear", DCOMM_COLL_SCATTER, dcommi_scatter_linear, false,
     "1 step; all blocks but one at the root", "direct exchange"},
    {"binomial", DCOMM_COLL_SCATTER, dcommi_scatter_binomial, false,
     "ceil(log2 N) steps; N-1 blocks at the root", "Thakur, Rabenseifner and Gropp 2005"},
    {"linear", DCOMM_COLL_GATHERV, dcommi_gather_linear, false, "1 step; the own block per rank",
     "direct exchange"},
    {"linear", DCOMM_COLL_SCATTERV, dcommi_scatter_linear, false,
     "1 step; all blocks but one at the root", "direct exchange"},
    {"pairwise", DCOMM_COLL_ALLTOALL, dcommi_a2a_pairwise, false,
     "ceil((N-1)/2) rounds of two exchanges; N-1 blocks per rank",
     "Thakur, Rabenseifner and Gropp 2005"},
    {"bruck", DCOMM_COLL_ALLTOALL, dcommi_a2a_bruck, false,
     "ceil(log2 N) steps; about N/2 log2 N blocks per rank", "Bruck et al. 1997"},
    {"linear", DCOMM_COLL_ALLTOALL, dcommi_a2a_linear, false, "1 step; N-1 blocks per rank",
     "direct exchange"},
    {"pairwise", DCOMM_COLL_ALLTOALLV, dcommi_a2a_pairwise, false,
     "ceil((N-1)/2) rounds of two exchanges; all blocks but the own per rank",
     "Thakur, Rabenseifner and Gropp 2005"},
    {"linear", DCOMM_COLL_ALLTOALLV, dcommi_a2a_linear, false,
     "1 step; all blocks but the own per rank", "direct exchange"},
    {"dissemination", DCOMM_COLL_BARRIER, dcommi_barrier_dissemination, false,
     "ceil(log2 N) steps; one signal each", "Hensgen, Finkel and Manber 1988"},
    {"direct", DCOMM_COLL_SEND, dcommi_p2p_direct, false, "1 step; the message", "point to point"},
    {"direct", DCOMM_COLL_RECV, dcommi_p2p_direct, false, "1 step; nothing", "point to point"},
};

enum { DCOMMI_ALGO_COUNT = sizeof dcommi_algo_table / sizeof dcommi_algo_table[0] };

/* The i-th algorithm of an operation, NULL past the last one. */
static inline const dcommi_algo *dcommi_algo_at(dcomm_coll coll, int i)
{
    for (size_t k = 0; k < DCOMMI_ALGO_COUNT; k++) {
        if (dcommi_algo_table[k].coll == coll && i-- == 0) {
            return &dcommi_algo_table[k];
        }
    }
    return NULL;
}

/* An algorithm by name, NULL when the operation has none such. */
static inline const dcommi_algo *dcommi_algo_find(dcomm_coll coll, const char *name)
{
    for (size_t k = 0; k < DCOMMI_ALGO_COUNT; k++) {
        if (dcommi_algo_table[k].coll == coll && strcmp(dcommi_algo_table[k].name, name) == 0) {
            return &dcommi_algo_table[k];
        }
    }
    return NULL;
}

#endif

#define DCOMMI_CHOICES 256             /* remembered */
#define DCOMMI_CHOICE_BUDGET (1 << 20) /* steps of one execution within a call */
#define DCOMMI_CHOICE_MOST (256 << 20) /* bytes: with more nothing changes but the time */
#define DCOMMI_CHOICE_UNKNOWN 65536    /* bytes of a block, where each rank knows only its own */

typedef struct dcommi_chooser {
    dcomm_tuning tuning;
    dcommi_terrain terrain;
    struct dcommi_choice {
        uint64_t key; /* 0: none */
        const dcommi_algo *algo;
    } choice[DCOMMI_CHOICES];
} dcommi_chooser;

static dcomm_status dcommi_plan_make(const dcommi_shape *s, const dcommi_algo *algo,
                                     dcomm_plan **plan_p);
static int64_t dcommi_shape_size(const dcommi_shape *s);

/* The groups must outlive the chooser. */
static dcomm_status dcommi_chooser_set(dcommi_chooser *c, const dcommi_groups *groups, int nranks,
                                       const dcomm_tuning *tuning)
{
    memset(c->choice, 0, sizeof c->choice);
    c->tuning = *tuning;
    return dcommi_terrain_make(groups, nranks, tuning, &c->terrain);
}

/* ---- what is priced ---- */

/* Sizes are priced on a grid of four to the octave, so that a program whose sizes are all different
 * does not price them all. */
static int64_t dcommi_choice_grid(int64_t bytes)
{
    int64_t step = 1;
    while (bytes >= 8 * step) {
        step *= 2;
    }
    return dcommi_min64((bytes + step / 2) / step * step, DCOMMI_CHOICE_MOST);
}

/* What stands for a call: the operation with equal blocks, at a size of the grid, not in place
 * (which ranks need not agree on), from rank 0. */
static dcommi_shape dcommi_choice_shape(const dcommi_shape *s)
{
    dcommi_shape q = *s;
    int64_t element = (int64_t)dcomm_dtype_size(s->dtype), bytes = dcommi_shape_size(s);
    switch (s->coll) {
    case DCOMM_COLL_REDUCE_SCATTERV:
        q.coll = DCOMM_COLL_REDUCE_SCATTER;
        break;
    case DCOMM_COLL_ALLGATHERV:
        q.coll = DCOMM_COLL_ALLGATHER;
        break;
    case DCOMM_COLL_ALLTOALLV:
        q.coll = DCOMM_COLL_ALLTOALL;
        bytes = DCOMMI_CHOICE_UNKNOWN;
        break;
    default:
        break;
    }
    q.counts = q.displs = q.send_counts = q.send_displs = NULL;
    q.in_place = false;
    q.root = 0;
    q.op = q.op >= DCOMM_OP_USER || q.op == DCOMM_PREMUL_SUM ? DCOMM_SUM : q.op;
    q.count = (size_t)dcommi_max64(dcommi_choice_grid(bytes) / element, 1);
    return q;
}

typedef struct dcommi_priced_plans {
    dcommi_shape shape;
    const dcommi_algo *algo;
} dcommi_priced_plans;

static dcomm_status dcommi_choice_get(void *user, int rank, const dcomm_plan **plan_p)
{
    dcommi_priced_plans *p = user;
    dcomm_plan *plan = NULL;
    p->shape.rank = rank;
    dcomm_status status = dcommi_plan_make(&p->shape, p->algo, &plan);
    *plan_p = plan;
    return status;
}

static void dcommi_choice_put(void *user, const dcomm_plan *plan)
{
    (void)user;
    dcommi_free((void *)(uintptr_t)plan);
}

/* The price of one algorithm for the shape of a call; DCOMM_ERR_UNSUPPORTED when it cannot do it.
 */
static dcomm_status dcommi_choice_price(const dcommi_terrain *t, const dcommi_shape *s,
                                        const dcommi_algo *algo, int64_t limit, int64_t budget,
                                        dcommi_price *price)
{
    dcommi_priced_plans p = {.shape = dcommi_choice_shape(s), .algo = algo};
    dcommi_plans plans = {dcommi_choice_get, dcommi_choice_put, &p};
    if (s->rank_order && !algo->rank_order) {
        return dcommi_fail(DCOMM_ERR_UNSUPPORTED,
                           "it cannot fold in rank order, which deterministic asks for");
    }
    if (p.shape.coll != s->coll) {
        p.algo = dcommi_algo_find(p.shape.coll, algo->name);
    }
    if (p.algo == NULL) {
        return dcommi_fail(DCOMM_ERR_UNSUPPORTED, "%s has no %s to price it by",
                           dcomm_coll_name(p.shape.coll), algo->name);
    }
    return dcommi_price_plans(t, &plans, limit, budget, price);
}

/* ---- the choice ---- */

static uint64_t dcommi_choice_key(const dcommi_shape *s)
{
    dcommi_shape q = dcommi_choice_shape(s);
    uint64_t key = dcommi_mix((uint64_t)s->coll << 32 | (uint64_t)s->lanes << 8 | s->rank_order,
                              (uint64_t)q.count);
    key = dcommi_mix(key, dcomm_dtype_size(s->dtype));
    return dcommi_mix(key, (uint64_t)s->chunk_bytes) | 1;
}

/* The cheapest algorithm; NULL without memory, or where there is none. Among equals, the first of
 * the table. */
static const dcommi_algo *dcommi_choose(dcommi_chooser *c, const dcommi_shape *s)
{
    if (s->nranks == 1 || dcommi_algo_at(s->coll, 1) == NULL) { /* nothing to choose from */
        return dcommi_algo_at(s->coll, 0);
    }
    uint64_t key = dcommi_choice_key(s);
    struct dcommi_choice *known = &c->choice[(key >> 32) % DCOMMI_CHOICES];
    if (known->key == key) {
        return known->algo;
    }
    const dcommi_algo *best = NULL;
    int64_t limit = INT64_MAX >> 2;
    char kept[DCOMMI_MESSAGE_MAX];
    memcpy(kept, dcommi_message, sizeof kept);         /* that one cannot do it is nobody's error */
    for (int i = DCOMMI_ALGO_COUNT - 1; i >= 0; i--) { /* rings, of most steps, come last */
        dcommi_price price;
        const dcommi_algo *algo = &dcommi_algo_table[i];
        if (algo->coll == s->coll &&
            dcommi_choice_price(&c->terrain, s, algo, limit, DCOMMI_CHOICE_BUDGET, &price) >= 0 &&
            !price.over) {
            limit = price.ps - c->terrain.call;
            best = algo;
        }
    }
    memcpy(dcommi_message, kept, sizeof kept);
    for (int i = 0; best == NULL && dcommi_algo_at(s->coll, i) != NULL; i++) {
        const dcommi_algo *algo = dcommi_algo_at(s->coll, i); /* too many ranks to price any */
        best = !s->rank_order || algo->rank_order ? algo : NULL;
    }
    known->key = key;
    known->algo = best;
    return best;
}

/* The choice of a plan that is for no communicator: on one host, by the built-in numbers. */
static const dcommi_algo *dcommi_choose_alone(const dcommi_shape *s)
{
    static _Thread_local struct dcommi_choice last; /* each rank's plan is asked for in turn */
    uint64_t key = dcommi_mix(dcommi_choice_key(s), (uint64_t)s->nranks) | 1;
    dcomm_tuning tuning;
    if (last.key == key) {
        return last.algo;
    }
    dcommi_chooser *c = dcommi_alloc(sizeof *c);
    dcomm_tuning_default(&tuning);
    if (c == NULL || dcommi_chooser_set(c, s->groups, s->nranks, &tuning) < 0) {
        dcommi_free(c);
        return NULL;
    }
    last.algo = dcommi_choose(c, s);
    last.key = key;
    dcommi_free(c);
    return last.algo;
}

#endif

/* Bytes that one rank contributes or receives: what the choice depends on. All ranks agree on it,
 * or the operation is a mismatch anyway; all-to-all-v is the exception and never looks at it. */
static int64_t dcommi_shape_size(const dcommi_shape *s)
{
    size_t count = s->count;
    if (s->coll == DCOMM_COLL_ALLTOALLV) {
        return 0;
    }
    if (s->counts != NULL) {
        count = 0;
        for (int r = 0; r < s->nranks; r++) {
            count = s->counts[r] > count ? s->counts[r] : count;
        }
    }
    return dcommi_shape_bytes(s, count);
}

/* Names of the algorithms of an operation, or of those that fold in rank order. */
static void dcommi_algo_names(dcomm_coll coll, bool rank_order, char *text, size_t len)
{
    size_t at = 0;
    text[0] = 0;
    const dcommi_algo *algo;
    for (int i = 0; (algo = dcommi_algo_at(coll, i)) != NULL && at + 1 < len; i++) {
        if (algo->rank_order || !rank_order) {
            at += (size_t)snprintf(text + at, len - at, "%s%s", at > 0 ? ", " : "", algo->name);
        }
    }
}

/* The algorithm by name, or by choice. `soft`: the name comes from the communicator, which holds
 * for all operations, and is passed over by those that have no such algorithm. chooser NULL: there
 * is no communicator. */
static dcomm_status dcommi_algo_pick(const dcommi_shape *s, const char *name, bool soft,
                                     dcommi_chooser *chooser, const dcommi_algo **algo_p)
{
    char names[256];
    bool chosen = name == NULL || name[0] == 0 || strcmp(name, "auto") == 0;
    const dcommi_algo *algo = chosen ? NULL : dcommi_algo_find(s->coll, name);
    if (algo == NULL && !chosen && !soft) {
        dcommi_algo_names(s->coll, false, names, sizeof names);
        return dcommi_fail(DCOMM_ERR_UNSUPPORTED, "%s has no algorithm \"%s\"; it has %s",
                           dcomm_coll_name(s->coll), name, names);
    }
    if (algo == NULL) {
        algo = chooser != NULL ? dcommi_choose(chooser, s) : dcommi_choose_alone(s);
    }
    if (algo == NULL) {
        return dcommi_fail(DCOMM_ERR_UNSUPPORTED, "there is no algorithm for %s",
                           dcomm_coll_name(s->coll));
    }
    if (s->rank_order && !algo->rank_order) {
        dcommi_algo_names(s->coll, true, names, sizeof names);
        return dcommi_fail(DCOMM_ERR_UNSUPPORTED,
                           "algorithm %s cannot fold in rank order, which deterministic asks for; "
                           "%s can",
                           algo->name, names);
    }
    *algo_p = algo;
    return DCOMM_OK;
}

/* Whether the result of an operation depends on the order of folds. */
static inline bool dcommi_coll_folds(dcomm_coll coll)
{
    return coll == DCOMM_COLL_ALLREDUCE || coll == DCOMM_COLL_REDUCE_SCATTER ||
           coll == DCOMM_COLL_REDUCE_SCATTERV || coll == DCOMM_COLL_REDUCE;
}

/* ---- the plan ---- */

/* Sizes of IN and OUT that an operation's rules give this rank, in bytes. */
static void dcommi_shape_spaces(const dcommi_shape *s, int64_t *in, int64_t *out)
{
    int64_t element = (int64_t)dcomm_dtype_size(s->dtype);
    int64_t one = dcommi_shape_bytes(s, s->count), all = one * s->nranks;
    int64_t mine = 0, total = 0, end = 0, send_end = 0;
    bool root = s->rank == s->root;
    if (s->counts != NULL) {
        mine = (int64_t)s->counts[s->rank] * element;
        for (int r = 0; r < s->nranks; r++) {
            total += (int64_t)s->counts[r] * element;
            end = dcommi_max64(end, (int64_t)(s->displs[r] + s->counts[r]) * element);
            if (s->send_counts != NULL) {
                send_end = dcommi_max64(send_end,
                                        (int64_t)(s->send_displs[r] + s->send_counts[r]) * element);
            }
        }
    }
    switch (s->coll) {
    case DCOMM_COLL_ALLREDUCE:
        *in = *out = one;
        break;
    case DCOMM_COLL_REDUCE:
        *in = one;
        *out = root ? one : 0;
        break;
    case DCOMM_COLL_BROADCAST:
        *in = root ? one : 0;
        *out = one;
        break;
    case DCOMM_COLL_REDUCE_SCATTER:
        *in = all;
        *out = one;
        break;
    case DCOMM_COLL_ALLGATHER:
        *in = one;
        *out = all;
        break;
    case DCOMM_COLL_GATHER:
        *in = one;
        *out = root ? all : 0;
        break;
    case DCOMM_COLL_SCATTER:
        *in = root ? all : 0;
        *out = one;
        break;
    case DCOMM_COLL_ALLTOALL:
        *in = *out = all;
        break;
    case DCOMM_COLL_REDUCE_SCATTERV:
        *in = total;
        *out = mine;
        break;
    case DCOMM_COLL_ALLGATHERV:
        *in = mine;
        *out = end;
        break;
    case DCOMM_COLL_GATHERV:
        *in = mine;
        *out = root ? end : 0;
        break;
    case DCOMM_COLL_SCATTERV:
        *in = root ? end : 0;
        *out = mine;
        break;
    case DCOMM_COLL_ALLTOALLV:
        *in = send_end;
        *out = end;
        break;
    case DCOMM_COLL_SEND:
        *in = one;
        *out = 0;
        break;
    case DCOMM_COLL_RECV:
        *in = 0;
        *out = one;
        break;
    default:
        *in = *out = 0;
        break;
    }
    if (s->in_place) { /* both lie in OUT, which is the longer one */
        *out = dcommi_max64(*in, *out);
    }
}

/* Whether no rank moves a byte. Every rank comes to the same answer. */
static bool dcommi_shape_empty(const dcommi_shape *s)
{
    if (s->coll == DCOMM_COLL_BARRIER || s->coll == DCOMM_COLL_ALLTOALLV ||
        s->coll == DCOMM_COLL_SEND || s->coll == DCOMM_COLL_RECV) {
        return false; /* counts may differ between ranks, which only a message shows */
    }
    return dcommi_shape_size(s) == 0;
}

/* One rank alone: its output is its input. */
static void dcommi_make_alone(const dcommi_shape *s, dcommi_builder *b)
{
    int64_t element = (int64_t)dcomm_dtype_size(s->dtype);
    int64_t bytes = dcommi_shape_bytes(s, s->count), from = 0, to = 0;
    if (s->counts != NULL) {
        bytes = (int64_t)s->counts[0] * element;
        from = s->coll == DCOMM_COLL_SCATTERV ? (int64_t)s->displs[0] * element : 0;
        to = s->coll == DCOMM_COLL_ALLGATHERV || s->coll == DCOMM_COLL_GATHERV ||
                     s->coll == DCOMM_COLL_ALLTOALLV
                 ? (int64_t)s->displs[0] * element
                 : 0;
        from = s->coll == DCOMM_COLL_ALLTOALLV ? (int64_t)s->send_displs[0] * element : from;
    }
    if (bytes > 0 && s->coll != DCOMM_COLL_BARRIER && !s->in_place) {
        dcommi_copy(b, 0, dcommi_span(DCOMM_SPACE_OUT, to, bytes),
                    dcommi_span(DCOMM_SPACE_IN, from, bytes), 0);
    }
}

static dcomm_status dcommi_plan_make(const dcommi_shape *s, const dcommi_algo *algo,
                                     dcomm_plan **plan_p)
{
    dcommi_builder b;
    dcommi_build_begin(&b, algo->name, s->rank, s->nranks, s->dtype, s->op);
    dcommi_shape_spaces(s, &b.head.in_bytes, &b.head.out_bytes);
    if (s->nranks == 1) {
        dcommi_make_alone(s, &b);
    } else if (!dcommi_shape_empty(s)) {
        dcomm_status status = algo->make(s, &b);
        if (status < 0) {
            dcommi_build_discard(&b);
            return status;
        }
    }
    return dcommi_build_finish(&b, plan_p);
}

/* ---- pre-multiplied sum ---- */

static dcomm_status dcommi_kernel_scale(void *user, void *dst, size_t dst_len,
                                        const void *const *src, const size_t *src_len, size_t nsrc)
{
    dcomm_dtype dtype = (dcomm_dtype)(uintptr_t)user;
    double factor;
    (void)nsrc;
    if (src_len[0] != dst_len || src_len[1] != sizeof factor) {
        return DCOMM_ERR_PLAN;
    }
    memcpy(&factor, src[1], sizeof factor);
    dcommi_host_scale(dst, src[0], dst_len / dcomm_dtype_size(dtype), dtype, factor);
    return DCOMM_OK;
}

static const dcomm_plan_kernel dcommi_scale_kernels[] = {dcommi_kernel_scale};

/* scratch <- factor * input, then the sum of that: word 0 is the factor, which may differ by rank.
 * `inner` reads its input from IN. */
static dcomm_status dcommi_plan_premul(const dcommi_shape *s, const dcomm_plan *inner,
                                       dcomm_plan **plan_p)
{
    dcommi_builder b;
    dcommi_build_begin(&b, inner->name, s->rank, s->nranks, s->dtype, s->op);
    dcommi_shape_spaces(s, &b.head.in_bytes, &b.head.out_bytes);
    b.head.nwords = 1;
    b.head.ntags = inner->ntags;
    b.head.ncounters = inner->ncounters;
    b.head.nslots = inner->nslots;
    b.head.kernels = dcommi_scale_kernels;
    b.head.nkernels = 1;
    b.head.kernel_user = (void *)(uintptr_t)s->dtype;
    int64_t bytes = b.head.in_bytes;
    int64_t scratch = dcommi_build_scratch(&b, bytes);
    dcomm_step *step = bytes > 0 ? dcommi_build_step(&b, 0, DCOMM_STEP_COMPUTE) : NULL;
    if (step != NULL) {
        dcomm_operand src[2] = {
            dcommi_span(s->in_place ? DCOMM_SPACE_OUT : DCOMM_SPACE_IN, 0, bytes),
            dcommi_span(DCOMM_SPACE_WORDS, 0, 8)};
        step->dst = dcommi_span(DCOMM_SPACE_SCRATCH, scratch, bytes);
        dcommi_build_sources(&b, step, src, 2);
    }
    int64_t group = (int64_t)b.ntable;
    for (int64_t r = 0; r < s->nranks; r++) {
        dcommi_build_table(&b, &r, 1);
    }
    dcommi_call(&b, 0, inner, group, dcommi_span(DCOMM_SPACE_SCRATCH, scratch, bytes),
                dcommi_span(DCOMM_SPACE_OUT, 0, b.head.out_bytes), dcommi_const(0));
    return dcommi_build_finish(&b, plan_p);
}

#endif

/* ---- making and freeing ---- */

static dcomm_comm *dcommi_comm_new(dcomm_context *context)
{
    dcomm_comm *comm = dcommi_alloc(sizeof *comm);
    if (comm != NULL) {
        comm->refs = 1;
        pthread_mutex_init(&comm->lock, NULL);
        comm->context = context;
        if (context != NULL) {
            atomic_fetch_add(&context->refs, 1);
        }
    }
    return comm;
}

static void dcommi_comm_free(dcomm_comm *comm)
{
    while (comm->free_runs != NULL) {
        dcommi_run *run = comm->free_runs;
        comm->free_runs = run->next;
        dcommi_free(run->memory);
        dcommi_free(run);
    }
    dcommi_cache_clear(comm);
    for (int r = 0; comm->members != NULL && r < comm->size; r++) {
        dcommi_free(comm->members[r].hostname);
    }
    dcommi_free(comm->members);
    dcommi_groups_free(&comm->groups);
    dcommi_free(comm->chooser);
    dcommi_free(comm->names[0]);
    dcommi_free(comm->names[1]);
    pthread_mutex_destroy(&comm->lock);
    dcommi_free(comm);
}

/* The creator lets go of a communicator and of its context. Runs hold only the communicator: the
 * last of them may end while the context closes. */
static void dcommi_comm_drop(dcomm_comm *comm)
{
    dcomm_context *context = comm->context;
    pthread_mutex_lock(&comm->lock);
    bool last = --comm->refs == 0;
    pthread_mutex_unlock(&comm->lock);
    if (last) {
        dcommi_comm_free(comm);
    }
    if (context != NULL) {
        dcommi_context_release(context);
    }
}

/* Let the engine see it, and give it what has come for it. */
static void dcommi_comm_enter(dcomm_comm *comm)
{
    dcomm_context *context = comm->context;
    dcommi_token_take(context);
    comm->next = context->comms;
    context->comms = comm;
    for (int r = 0; r < comm->size; r++) {
        int peer = comm->members[r].peer;
        if (peer >= 0 && context->peers[peer].lost) {
            char text[DCOMMI_MESSAGE_MAX];
            snprintf(text, sizeof text, "rank %d was lost before: %s", r, context->peers[peer].why);
            dcommi_poison(comm, DCOMM_ERR_PEER, -1, text);
        }
    }
    dcommi_deliver_strays(context, comm);
    dcommi_token_release(context);
}

/* ---- creation over a rendezvous ---- */

static char *dcommi_strdup(const char *text)
{
    size_t len = strlen(text) + 1;
    char *copy = dcommi_alloc_raw(len);
    if (copy != NULL) {
        memcpy(copy, text, len);
    }
    return copy;
}

/* Defaults: the environment's where the caller has not said. */
static dcomm_status dcommi_comm_settings(dcomm_comm *comm)
{
    const dcomm_comm_opts *opts = &comm->opts;
    const char *timeout = getenv("DCOMM_TIMEOUT"), *algo = getenv("DCOMM_ALGO");
    const char *deterministic = getenv("DCOMM_DETERMINISTIC"), *chunk = getenv("DCOMM_CHUNK");
    const char *tune = getenv("DCOMM_TUNE");
    comm->timeout_s = opts->timeout_s;
    if (comm->timeout_s == 0) {
        comm->timeout_s = timeout != NULL ? strtod(timeout, NULL) : 300.0;
    }
    if (!(comm->timeout_s > 0)) {
        return dcommi_fail(DCOMM_ERR_INVALID, "timeout_s (DCOMM_TIMEOUT) is %g; it must be > 0",
                           comm->timeout_s);
    }
    algo = opts->algo != NULL ? opts->algo : algo != NULL ? algo : "auto";
    if (strlen(algo) >= sizeof comm->algo) {
        return dcommi_fail(DCOMM_ERR_INVALID, "algorithm \"%s\" is too long a name", algo);
    }
    bool known = strcmp(algo, "auto") == 0 || algo[0] == 0;
    for (size_t i = 0; i < DCOMMI_ALGO_COUNT && !known; i++) {
        known = strcmp(dcommi_algo_table[i].name, algo) == 0;
    }
    if (!known) {
        return dcommi_fail(DCOMM_ERR_INVALID, "no operation has an algorithm \"%s\" (DCOMM_ALGO)",
                           algo);
    }
    snprintf(comm->algo, sizeof comm->algo, "%s", algo);
    /* Creation may go on in a thread when the caller's strings are gone. */
    dcomm_context_opts *names = &comm->opts.context_opts;
    const char **copied[2] = {&names->iface, &names->host_id};
    for (int i = 0; i < 2; i++) {
        if (*copied[i] != NULL) {
            comm->names[i] = dcommi_strdup(*copied[i]);
            if (comm->names[i] == NULL) {
                return DCOMM_ERR_NO_MEMORY;
            }
            *copied[i] = comm->names[i];
        }
    }
    comm->opts.algo = NULL;
    comm->deterministic =
        opts->deterministic || (deterministic != NULL && atoi(deterministic) != 0);
    comm->tunes = opts->tune != 0 ? opts->tune > 0 : tune == NULL || strcmp(tune, "0") != 0;
    comm->chunk_bytes = (int64_t)opts->chunk_bytes;
    if (comm->chunk_bytes == 0 && chunk != NULL) {
        comm->chunk_bytes = strtoll(chunk, NULL, 10);
    }
    if (comm->chunk_bytes < 0) {
        return dcommi_fail(DCOMM_ERR_INVALID, "chunk_bytes (DCOMM_CHUNK) is %" PRId64,
                           comm->chunk_bytes);
    }
    return DCOMM_OK;
}

static void dcommi_card_fill(dcomm_comm *comm, dcommi_card *card)
{
    memset(card, 0, sizeof *card);
    card->magic = DCOMMI_CARD_MAGIC;
    card->version = DCOMMI_CARD_VERSION;
    memcpy(card->uuid, comm->context->uuid, sizeof card->uuid);
    card->pid = (int32_t)getpid();
    card->started = dcommi_process_started(getpid());
    card->size = comm->size;
    card->timeout_s = comm->timeout_s;
    card->chunk_bytes = (uint64_t)comm->chunk_bytes;
    card->deterministic = comm->deterministic;
    card->tunes = comm->tunes;
    memcpy(card->algo, comm->algo, sizeof card->algo);
    gethostname(card->hostname, sizeof card->hostname - 1);
    memcpy(card->host_id, comm->context->host_id, sizeof card->host_id);
}

/* The card at the start of a rank's blob, if it is one of ours. */
static dcomm_status dcommi_card_parse(const uint8_t *blob, size_t len, int rank, int size,
                                      dcommi_card *card)
{
    if (len < sizeof *card) {
        return dcommi_fail(DCOMM_ERR_CORRUPT, "rank %d sent %zu bytes about itself, less than %zu",
                           rank, len, sizeof *card);
    }
    memcpy(card, blob, sizeof *card);
    card->algo[sizeof card->algo - 1] = 0;
    card->hostname[sizeof card->hostname - 1] = 0;
    card->host_id[sizeof card->host_id - 1] = 0;
    if (card->magic != DCOMMI_CARD_MAGIC || card->version != DCOMMI_CARD_VERSION) {
        return dcommi_fail(DCOMM_ERR_MISMATCH,
                           "rank %d runs another dcomm or byte order (version word %u, here %u)",
                           rank, card->version, DCOMMI_CARD_VERSION);
    }
    if (card->size != size) {
        return dcommi_fail(DCOMM_ERR_MISMATCH, "rank %d says there are %d ranks, this one %d", rank,
                           card->size, size);
    }
    if ((uint64_t)card->local_address + card->net_address != len - sizeof *card) {
        return dcommi_fail(DCOMM_ERR_CORRUPT, "rank %d sent addresses of a wrong length", rank);
    }
    return DCOMM_OK;
}

/* Every rank's blob, parsed: cards[size] and where each blob starts. */
typedef struct dcommi_cards {
    uint8_t *all;
    size_t *lens;
    dcommi_card *card;
    const uint8_t **extra; /* addresses behind each card */
} dcommi_cards;

static void dcommi_cards_free(dcommi_cards *cards)
{
    dcommi_free(cards->all);
    dcommi_free(cards->lens);
    dcommi_free(cards->card);
    dcommi_free((void *)cards->extra);
    memset(cards, 0, sizeof *cards);
}

static dcomm_status dcommi_cards_exchange(dcommi_boot *boot, const void *mine, size_t len,
                                          dcommi_cards *cards)
{
    memset(cards, 0, sizeof *cards);
    void *all = NULL;
    DCOMMI_TRY(dcommi_boot_allgather(boot, mine, len, &all, &cards->lens));
    cards->all = all;
    cards->card = dcommi_calloc((size_t)boot->size, sizeof *cards->card);
    cards->extra = dcommi_calloc((size_t)boot->size, sizeof *cards->extra);
    if (cards->card == NULL || cards->extra == NULL) {
        return DCOMM_ERR_NO_MEMORY;
    }
    size_t at = 0;
    for (int r = 0; r < boot->size; r++) {
        DCOMMI_TRY(
            dcommi_card_parse(cards->all + at, cards->lens[r], r, boot->size, &cards->card[r]));
        cards->extra[r] = cards->all + at + sizeof(dcommi_card);
        at += cards->lens[r];
    }
    return DCOMM_OK;
}

/* Who is where. */
static dcomm_status dcommi_comm_groups(dcomm_comm *comm, const dcommi_cards *cards)
{
    static const uint8_t kinds[] = {DCOMMI_LEVEL_HOST};
    int64_t *ids = dcommi_calloc((size_t)comm->size, sizeof *ids);
    for (int r = 0; ids != NULL && r < comm->size; r++) {
        while (strcmp(cards->card[ids[r]].host_id, cards->card[r].host_id) != 0) {
            ids[r]++;
        }
    }
    comm->groups = ids != NULL ? dcommi_groups_make(comm->size, 1, kinds, ids) : NULL;
    dcommi_free(ids);
    if (comm->groups == NULL) {
        return DCOMM_ERR_NO_MEMORY;
    }
    comm->nhosts = comm->groups->count[0];
    return DCOMM_OK;
}

/* Something to choose algorithms by: the numbers of `from`, or the built-in ones. */
static dcomm_status dcommi_comm_chooser(dcomm_comm *comm, const dcommi_chooser *from)
{
    dcomm_tuning tuning;
    dcomm_tuning_default(&tuning);
    comm->chooser = dcommi_alloc(sizeof *comm->chooser);
    return comm->chooser != NULL ? dcommi_chooser_set(comm->chooser, comm->groups, comm->size,
                                                      from != NULL ? &from->tuning : &tuning)
                                 : DCOMM_ERR_NO_MEMORY;
}

static dcomm_status dcommi_comm_meet(dcomm_comm *comm, dcommi_boot *boot, dcommi_cards *cards)
{
    dcomm_context *context = comm->context;
    dcommi_card card;
    comm->rank = boot->rank;
    comm->size = boot->size;
    comm->members = dcommi_calloc((size_t)comm->size, sizeof *comm->members);
    if (comm->members == NULL) {
        return DCOMM_ERR_NO_MEMORY;
    }
    /* First who and where, so that the network is opened only when some rank is elsewhere. */
    dcommi_card_fill(comm, &card);
    DCOMMI_TRY(dcommi_cards_exchange(boot, &card, sizeof card, cards));
    dcomm_status status = dcommi_comm_groups(comm, cards);
    dcommi_cards_free(cards);
    DCOMMI_TRY(status);
    dcommi_token_take(context);
    status = comm->nhosts > 1 ? dcommi_context_open_net(context) : DCOMM_OK;
    size_t local = context->local->address_len;
    size_t net = status >= 0 && comm->nhosts > 1 ? context->net->address_len : 0;
    uint8_t *blob = dcommi_alloc(sizeof card + local + net);
    if (blob != NULL) {
        card.local_address = (uint32_t)local;
        card.net_address = (uint32_t)net;
        if (dcommi_random_bytes(&card.nonce, sizeof card.nonce) < 0) {
            status = DCOMM_ERR_SYSTEM;
        }
        memcpy(blob, &card, sizeof card);
        memcpy(blob + sizeof card, context->local->address, local);
        if (net > 0) {
            memcpy(blob + sizeof card + local, context->net->address, net);
        }
    }
    dcommi_token_release(context);
    if (blob == NULL || status < 0) {
        dcommi_free(blob);
        return blob == NULL ? DCOMM_ERR_NO_MEMORY : status;
    }
    status = dcommi_cards_exchange(boot, blob, sizeof card + local + net, cards);
    dcommi_free(blob);
    DCOMMI_TRY(status);

    const dcommi_card *first = &cards->card[0];
    comm->id = dcommi_mix(first->nonce, 1);
    comm->timeout_s = first->timeout_s;
    comm->chunk_bytes = (int64_t)first->chunk_bytes;
    comm->deterministic = first->deterministic != 0;
    comm->tunes = first->tunes != 0;
    memcpy(comm->algo, first->algo, sizeof comm->algo);
    DCOMMI_TRY(dcommi_comm_chooser(comm, NULL));
    dcommi_token_take(context);
    for (int r = 0; r < comm->size && status >= 0; r++) {
        dcommi_member *m = &comm->members[r];
        m->peer = -1;
        m->hostname = dcommi_strdup(cards->card[r].hostname);
        if (m->hostname == NULL) {
            status = DCOMM_ERR_NO_MEMORY;
        } else if (r != comm->rank) {
            status = dcommi_peer_add(context, &cards->card[r], cards->extra[r],
                                     cards->extra[r] + cards->card[r].local_address, &m->peer);
        }
    }
    dcommi_token_release(context);
    return status;
}

static void dcommi_comm_tune_new(dcomm_comm *comm);

/* Everything that creation does, in the caller's thread or one of its own. */
static dcomm_status dcommi_comm_build(dcomm_comm *comm)
{
    dcommi_boot *boot = NULL;
    dcommi_cards cards = {0};
    dcomm_status status = DCOMM_OK;
    if (comm->context == NULL) {
        if (comm->opts.context != NULL) {
            comm->context = comm->opts.context;
            atomic_fetch_add(&comm->context->refs, 1);
        } else {
            status = dcomm_context_create(&comm->opts.context_opts, &comm->context);
        }
    }
    if (status >= 0) {
        status = dcommi_boot_open(&comm->opts, comm->timeout_s, &comm->cancel, &boot);
    }
    if (status >= 0) {
        status = dcommi_comm_meet(comm, boot, &cards);
    }
    dcommi_cards_free(&cards);
    dcommi_boot_close(boot);
    if (status >= 0) {
        dcommi_comm_enter(comm);
        dcommi_comm_tune_new(comm);
    }
    return status;
}

static void *dcommi_comm_create_main(void *user)
{
    dcomm_comm *comm = user;
    dcomm_status status = dcommi_comm_build(comm);
    if (status < 0) { /* else the message is the engine's: a peer may be lost already */
        memcpy(comm->message, dcommi_message, sizeof comm->message);
    }
    atomic_store_explicit(&comm->ready, status, memory_order_release);
    return NULL;
}

static dcomm_status dcommi_comm_prepare(const dcomm_comm_opts *opts, dcomm_comm **comm_p)
{
    if (comm_p == NULL) {
        return dcommi_fail(DCOMM_ERR_INVALID, "comm_p is NULL");
    }
    *comm_p = NULL;
    pthread_once(&dcommi_fork_once, dcommi_watch_forks);
    DCOMMI_TRY(dcommi_check_fork());
    dcomm_comm *comm = dcommi_comm_new(NULL);
    if (comm == NULL) {
        return DCOMM_ERR_NO_MEMORY;
    }
    if (opts != NULL) {
        comm->opts = *opts;
    }
    dcomm_status status = dcommi_comm_settings(comm);
    if (status < 0) {
        dcommi_comm_drop(comm);
        return status;
    }
    *comm_p = comm;
    return DCOMM_OK;
}

DCOMM_API dcomm_status dcomm_comm_create(const dcomm_comm_opts *opts, dcomm_comm **comm_p)
{
    DCOMMI_TRY(dcommi_comm_prepare(opts, comm_p));
    dcomm_status status = dcommi_comm_build(*comm_p);
    if (status < 0) {
        dcommi_comm_drop(*comm_p);
        *comm_p = NULL;
    }
    return status;
}

DCOMM_API dcomm_status dcomm_comm_create_start(const dcomm_comm_opts *opts, dcomm_comm **comm_p)
{
    DCOMMI_TRY(dcommi_comm_prepare(opts, comm_p));
    dcomm_comm *comm = *comm_p;
    atomic_store(&comm->ready, DCOMM_IN_PROGRESS);
    int error = pthread_create(&comm->creator, NULL, dcommi_comm_create_main, comm);
    if (error != 0) {
        dcommi_comm_drop(comm);
        *comm_p = NULL;
        return dcommi_fail(DCOMM_ERR_SYSTEM, "no thread to create the communicator in: %s",
                           strerror(error));
    }
    comm->has_creator = true;
    return DCOMM_OK;
}

DCOMM_API dcomm_status dcomm_comm_ready(dcomm_comm *comm)
{
    if (comm == NULL) {
        return dcommi_fail(DCOMM_ERR_INVALID, "comm is NULL");
    }
    int ready = atomic_load_explicit(&comm->ready, memory_order_acquire);
    return ready < 0 ? dcommi_fail((dcomm_status)ready, "%s", comm->message) : (dcomm_status)ready;
}

#endif

#define DCOMMI_GOODBYE_S 5.0 /* how long destroy waits for its peers */

/* ---- derived communicators ---- */

/* A communicator of some ranks of another, in the order given; every one of them derives the same
 * id from the parent's and `salt`. */
static dcomm_status dcommi_comm_derive(dcomm_comm *parent, const int *ranks, int size,
                                       uint64_t salt, dcomm_comm **new_p)
{
    dcomm_comm *comm = dcommi_comm_new(parent->context);
    if (comm == NULL) {
        return DCOMM_ERR_NO_MEMORY;
    }
    comm->id = dcommi_mix(parent->id, salt);
    comm->size = size;
    comm->rank = -1;
    comm->timeout_s = parent->timeout_s;
    comm->chunk_bytes = parent->chunk_bytes;
    comm->deterministic = parent->deterministic;
    memcpy(comm->algo, parent->algo, sizeof comm->algo);
    comm->members = dcommi_calloc((size_t)size, sizeof *comm->members);
    comm->groups = dcommi_groups_restrict(parent->groups, ranks, size);
    bool bad = comm->members == NULL || comm->groups == NULL ||
               dcommi_comm_chooser(comm, parent->chooser) < 0;
    comm->nhosts = bad ? 0 : comm->groups->count[0];
    for (int i = 0; i < size && !bad; i++) {
        const dcommi_member *from = &parent->members[ranks[i]];
        dcommi_member *m = &comm->members[i];
        m->peer = from->peer;
        m->hostname = dcommi_strdup(from->hostname);
        bad = m->hostname == NULL;
        if (ranks[i] == parent->rank) {
            comm->rank = i;
        }
    }
    if (bad) {
        dcommi_comm_drop(comm);
        return DCOMM_ERR_NO_MEMORY;
    }
    dcommi_token_take(parent->context);
    for (int i = 0; i < size; i++) {
        if (comm->members[i].peer >= 0) {
            parent->context->peers[comm->members[i].peer].users++;
        }
    }
    dcommi_token_release(parent->context);
    dcommi_comm_enter(comm);
    *new_p = comm;
    return DCOMM_OK;
}

static dcomm_status dcommi_check_comm(const dcomm_comm *comm);
static dcomm_status dcommi_check_no_group(const char *what);

typedef struct dcommi_color {
    int32_t color, key, rank;
} dcommi_color;

static int dcommi_color_compare(const void *a, const void *b)
{
    const dcommi_color *x = a, *y = b;
    if (x->key != y->key) {
        return x->key < y->key ? -1 : 1;
    }
    return x->rank < y->rank ? -1 : 1;
}

/* The number of a derivation, the same on all ranks, which derive in the same order. */
static uint64_t dcommi_comm_next_child(dcomm_comm *comm)
{
    pthread_mutex_lock(&comm->lock);
    uint64_t n = ++comm->children;
    pthread_mutex_unlock(&comm->lock);
    return n;
}

DCOMM_API dcomm_status dcomm_comm_split(dcomm_comm *comm, int color, int key, dcomm_comm **new_p)
{
    if (new_p == NULL) {
        return dcommi_fail(DCOMM_ERR_INVALID, "new_p is NULL");
    }
    *new_p = NULL;
    DCOMMI_TRY(dcommi_check_comm(comm));
    DCOMMI_TRY(dcommi_check_no_group("split"));
    uint64_t child = dcommi_comm_next_child(comm);
    dcommi_color mine = {color, key, comm->rank};
    dcommi_color *all = dcommi_calloc((size_t)comm->size, sizeof *all);
    int *ranks = dcommi_calloc((size_t)comm->size, sizeof *ranks);
    dcomm_status status = all == NULL || ranks == NULL ? DCOMM_ERR_NO_MEMORY : DCOMM_OK;
    if (status >= 0) {
        status = dcomm_allgather(comm, &mine, all, sizeof mine, DCOMM_U8, NULL);
    }
    if (status >= 0 && color >= 0) {
        int size = 0;
        for (int r = 0; r < comm->size; r++) {
            if (all[r].color == color) {
                all[size++] = all[r];
            }
        }
        qsort(all, (size_t)size, sizeof *all, dcommi_color_compare);
        for (int i = 0; i < size; i++) {
            ranks[i] = all[i].rank;
        }
        status =
            dcommi_comm_derive(comm, ranks, size, dcommi_mix(child, (uint64_t)color + 1), new_p);
    }
    dcommi_free(all);
    dcommi_free(ranks);
    return status;
}

DCOMM_API dcomm_status dcomm_comm_dup(dcomm_comm *comm, dcomm_comm **new_p)
{
    DCOMMI_TRY(dcommi_check_comm(comm));
    if (new_p == NULL) {
        return dcommi_fail(DCOMM_ERR_INVALID, "new_p is NULL");
    }
    return dcomm_comm_split(comm, 0, comm->rank, new_p);
}

DCOMM_API dcomm_status dcomm_comm_shrink(dcomm_comm *comm, const int *excluded, int n,
                                         dcomm_comm **new_p)
{
    if (new_p == NULL) {
        return dcommi_fail(DCOMM_ERR_INVALID, "new_p is NULL");
    }
    *new_p = NULL;
    DCOMMI_TRY(dcommi_check_comm(comm));
    DCOMMI_TRY(dcommi_check_no_group("shrink"));
    if (n < 0 || (n > 0 && excluded == NULL)) {
        return dcommi_fail(DCOMM_ERR_INVALID, "excluded is %s with n = %d",
                           excluded == NULL ? "NULL" : "given", n);
    }
    bool *out = dcommi_calloc((size_t)comm->size, sizeof *out);
    int *ranks = dcommi_calloc((size_t)comm->size, sizeof *ranks);
    dcomm_status status = out == NULL || ranks == NULL ? DCOMM_ERR_NO_MEMORY : DCOMM_OK;
    for (int i = 0; i < n && status >= 0; i++) {
        if (excluded[i] < 0 || excluded[i] >= comm->size || excluded[i] == comm->rank) {
            status = dcommi_fail(
                DCOMM_ERR_INVALID, "excluded[%d] is rank %d%s; there are %d", i, excluded[i],
                excluded[i] == comm->rank ? ", the caller itself" : "", comm->size);
        } else {
            out[excluded[i]] = true;
        }
    }
    if (status >= 0) {
        /* The parent may be beyond use, so the id comes from what the survivors know alike: who
         * they are, and how often they have shrunk it. Derivations they have not counted alike. */
        uint64_t salt = dcommi_mix(comm->id, 0x736872696e6bu);
        pthread_mutex_lock(&comm->lock);
        salt = dcommi_mix(salt, ++comm->shrinks);
        pthread_mutex_unlock(&comm->lock);
        int size = 0;
        for (int r = 0; r < comm->size; r++) {
            if (!out[r]) {
                ranks[size++] = r;
                salt = dcommi_mix(salt, (uint64_t)r + 1);
            }
        }
        status = dcommi_comm_derive(comm, ranks, size, salt, new_p);
    }
    dcommi_free(out);
    dcommi_free(ranks);
    if (status >= 0) {
        status = dcomm_barrier(*new_p, NULL); /* all survivors have come, with the same list */
        if (status < 0) {
            dcomm_comm_destroy(new_p);
        }
    }
    return status;
}

/* ---- abort and destroy ---- */

DCOMM_API dcomm_status dcomm_comm_abort(dcomm_comm *comm, const char *reason)
{
    DCOMMI_TRY(dcommi_check_comm(comm));
    pthread_mutex_lock(&comm->lock);
    if (atomic_load(&comm->abort_wanted) == 0) {
        snprintf(comm->abort_reason, sizeof comm->abort_reason, "rank %d aborted: %s", comm->rank,
                 reason != NULL ? reason : "no reason given");
        atomic_store(&comm->abort_wanted, 1);
    }
    pthread_mutex_unlock(&comm->lock);
    atomic_store(&comm->context->aborts, 1);
    /* Whoever progresses at this moment may be about to stop; a callback may also be our caller. */
    for (int i = 0; i < 1000 && atomic_load(&comm->context->aborts) != 0; i++) {
        if (dcommi_token_try(comm->context)) {
            dcommi_progress(comm->context);
            dcommi_token_release(comm->context);
        } else {
            sched_yield();
        }
    }
    return DCOMM_OK;
}

/* Whether a peer that we have spoken with has not said goodbye yet, or the transport still holds
 * memory of the caller's. */
static bool dcommi_comm_awaits(dcomm_comm *comm)
{
    dcommi_token_take(comm->context);
    bool awaits = comm->in_transport > 0;
    for (int r = 0; r < comm->size && !awaits; r++) {
        const dcommi_member *m = &comm->members[r];
        awaits = m->peer >= 0 && (m->heard || m->addressed) && !m->gone &&
                 !comm->context->peers[m->peer].lost;
    }
    dcommi_token_release(comm->context);
    return awaits;
}

DCOMM_API dcomm_status dcomm_comm_destroy(dcomm_comm **comm_p)
{
    if (comm_p == NULL || *comm_p == NULL) {
        return DCOMM_OK;
    }
    dcomm_comm *comm = *comm_p;
    DCOMMI_TRY(dcommi_check_fork());
    *comm_p = NULL;
    if (comm->has_creator) {
        atomic_store(&comm->cancel, 1);
        pthread_join(comm->creator, NULL);
        if (atomic_load(&comm->ready) != DCOMM_OK) {
            dcommi_comm_drop(comm);
            return DCOMM_OK;
        }
    }
    dcomm_context *context = comm->context;
    dcommi_token_take(context);
    dcommi_start_submitted(context);
    bool failed = atomic_load(&comm->poisoned) != 0;
    if (comm->runs != NULL) {
        dcommi_poison(comm, DCOMM_ERR_ABORTED, -1, "the communicator was destroyed meanwhile");
        failed = true;
    }
    for (int r = 0; r < comm->size; r++) {
        dcommi_member *m = &comm->members[r];
        if (m->peer < 0 || context->peers[m->peer].lost) {
            continue;
        }
        /* Processes of this host see this one end, also those that it has never spoken with: they
         * must not take it for dead. */
        bool spoken = m->heard || m->addressed;
        if (spoken || (context->peers[m->peer].same_host && !m->gone)) {
            dcommi_header h = {.type = DCOMMI_MSG_GOODBYE, .a = comm->entered};
            dcommi_send_header(comm, r, &h, NULL, 0);
            m->addressed = spoken; /* nobody waits for the answer to a goodbye */
        }
    }
    dcommi_token_release(context);
    /* A peer may still have to read from us, or to be told of the error. */
    double until = dcommi_now() + (failed ? 0.5 : DCOMMI_GOODBYE_S);
    while (dcommi_comm_awaits(comm) && dcommi_now() < until) {
        dcommi_progress_or_yield(context);
    }
    dcommi_token_take(context);
    dcomm_comm **at = &context->comms;
    while (*at != comm) {
        at = &(*at)->next;
    }
    *at = comm->next;
    context->buried[context->nburied++ % 64] = comm->id;
    dcommi_match_clear(comm);
    dcommi_progress(context);
    for (int r = 0; r < comm->size; r++) {
        int peer = comm->members[r].peer;
        if (peer >= 0 && --context->peers[peer].users == 0 && context->peers[peer].lost) {
            dcommi_transport *t = context->peers[peer].transport;
            t->call->remove_peer(t, peer, true);
        }
    }
    dcommi_token_release(context);
    dcommi_comm_drop(comm);
    return DCOMM_OK;
}

/* ---- read-out ---- */

static bool dcommi_comm_usable(const dcomm_comm *comm)
{
    return comm != NULL && atomic_load_explicit(&comm->ready, memory_order_acquire) == DCOMM_OK;
}

DCOMM_API int dcomm_comm_rank(const dcomm_comm *comm)
{
    return dcommi_comm_usable(comm) ? comm->rank : -1;
}

DCOMM_API int dcomm_comm_size(const dcomm_comm *comm)
{
    return dcommi_comm_usable(comm) ? comm->size : -1;
}

DCOMM_API dcomm_context *dcomm_comm_context(const dcomm_comm *comm)
{
    return dcommi_comm_usable(comm) ? comm->context : NULL;
}

DCOMM_API dcomm_status dcomm_comm_status(const dcomm_comm *comm)
{
    return comm != NULL ? (dcomm_status)atomic_load_explicit(&comm->poisoned, memory_order_acquire)
                        : DCOMM_ERR_INVALID;
}

DCOMM_API const char *dcomm_comm_error(const dcomm_comm *comm)
{
    if (comm == NULL) {
        return "";
    }
    bool failed = atomic_load_explicit(&comm->poisoned, memory_order_acquire) != 0 ||
                  atomic_load_explicit(&comm->ready, memory_order_acquire) < 0;
    return failed ? comm->message : "";
}

DCOMM_API int dcomm_comm_host(const dcomm_comm *comm, int rank)
{
    return dcommi_comm_usable(comm) && rank >= 0 && rank < comm->size
               ? dcommi_group_of(comm->groups, 0, rank)
               : -1;
}

DCOMM_API const char *dcomm_comm_hostname(const dcomm_comm *comm, int rank)
{
    return dcommi_comm_usable(comm) && rank >= 0 && rank < comm->size ? comm->members[rank].hostname
                                                                      : NULL;
}

DCOMM_API dcomm_status dcomm_comm_stats(const dcomm_comm *comm, dcomm_stats *stats)
{
    DCOMMI_TRY(dcommi_check_comm(comm));
    if (stats == NULL) {
        return dcommi_fail(DCOMM_ERR_INVALID, "stats is NULL");
    }
    DCOMMI_TRY(dcommi_check_comm(comm));
    dcommi_token_take(comm->context);
    pthread_mutex_lock((pthread_mutex_t *)(uintptr_t)&comm->lock);
    *stats = comm->stats;
    pthread_mutex_unlock((pthread_mutex_t *)(uintptr_t)&comm->lock);
    dcommi_token_release(comm->context);
    return DCOMM_OK;
}

#endif

/* ---- groups ---- */

/* Operations that this thread has queued since dcomm_group_start. */
typedef struct dcommi_group {
    int depth;
    dcommi_run *first, *last;
    dcomm_status status;
    char message[DCOMMI_MESSAGE_MAX];
} dcommi_group;

static _Thread_local dcommi_group dcommi_this_group;

/* ---- checks ---- */

static dcomm_status dcommi_check_comm(const dcomm_comm *comm)
{
    DCOMMI_TRY(dcommi_check_fork());
    if (comm == NULL) {
        return dcommi_fail(DCOMM_ERR_INVALID, "comm is NULL");
    }
    if (DCOMMI_UNLIKELY(atomic_load_explicit(&comm->ready, memory_order_acquire) != DCOMM_OK)) {
        return dcommi_fail(DCOMM_ERR_INVALID, "comm is not created yet (see dcomm_comm_ready)");
    }
    return DCOMM_OK;
}

/* What must be over when the call returns cannot wait for the end of a group. */
static dcomm_status dcommi_check_no_group(const char *what)
{
    return dcommi_this_group.depth == 0
               ? DCOMM_OK
               : dcommi_fail(DCOMM_ERR_INVALID,
                             "%s is not possible between dcomm_group_start and dcomm_group_end",
                             what);
}

static const dcomm_coll_opts dcommi_default_opts;

/* Fill in the parts of a shape that all calls have, and check them. */
static dcomm_status dcommi_shape_begin(dcomm_comm *comm, dcomm_coll coll, size_t count,
                                       dcomm_dtype dtype, dcomm_op op, int root,
                                       const dcomm_coll_opts *opts, dcommi_shape *s)
{
    DCOMMI_TRY(dcommi_check_comm(comm));
    const char *name = dcomm_coll_name(coll);
    size_t element = dcomm_dtype_size(dtype);
    if (element == 0) {
        return dcommi_fail(DCOMM_ERR_INVALID, "%s: dtype is %d, which is none", name, (int)dtype);
    }
    if (!dcommi_op_known(op)) {
        return dcommi_fail(DCOMM_ERR_INVALID, "%s: op is %d, which is none", name, (int)op);
    }
    if (root < 0 || root >= comm->size) {
        return dcommi_fail(DCOMM_ERR_INVALID, "%s: rank %d is not one of the %d ranks", name, root,
                           comm->size);
    }
    if (count > (size_t)INT64_MAX / 2 / element / (size_t)comm->size) {
        return dcommi_fail(DCOMM_ERR_INVALID,
                           "%s: count %zu of %zu-byte elements on %d ranks "
                           "exceeds 2^62 bytes",
                           name, count, element, comm->size);
    }
    if (opts->lanes < 0 || opts->lanes > DCOMM_PLAN_MAX_LANES / 4) {
        return dcommi_fail(DCOMM_ERR_INVALID, "%s: opts.lanes is %d; it may be 0 to %d", name,
                           opts->lanes, DCOMM_PLAN_MAX_LANES / 4);
    }
    if (opts->timeout_s < 0 || opts->chunk_bytes > (size_t)INT64_MAX / 2) {
        return dcommi_fail(DCOMM_ERR_INVALID, "%s: opts.timeout_s is %g, opts.chunk_bytes %zu",
                           name, opts->timeout_s, opts->chunk_bytes);
    }
    dcommi_zero(s, sizeof *s);
    s->coll = coll;
    s->rank = comm->rank;
    s->nranks = comm->size;
    s->root = root;
    s->dtype = dtype;
    s->op = op;
    s->count = count;
    s->groups = comm->groups;
    s->lanes = opts->lanes > 0 ? opts->lanes : 1;
    s->chunk_bytes = opts->chunk_bytes > 0 ? (int64_t)opts->chunk_bytes : comm->chunk_bytes;
    if (s->chunk_bytes > 0) {
        s->chunk_bytes = dcommi_ceil_div(s->chunk_bytes, 64) * 64; /* whole elements, whole lines */
    }
    s->rank_order = dcommi_coll_folds(coll) && (opts->deterministic || comm->deterministic);
    return DCOMM_OK;
}

static dcomm_status dcommi_check_buffer(const dcommi_shape *s, const char *name, const void *buffer,
                                        int64_t bytes)
{
    return buffer == NULL && bytes > 0
               ? dcommi_fail(DCOMM_ERR_INVALID, "%s: %s is NULL and %" PRId64 " bytes long",
                             dcomm_coll_name(s->coll), name, bytes)
               : DCOMM_OK;
}

/* ---- keys ---- */

static void dcommi_mix_counts(uint64_t key[2], const size_t *values, int n)
{
    for (int i = 0; values != NULL && i < n; i++) {
        key[0] = dcommi_mix(key[0], values[i]);
        key[1] = dcommi_mix(key[1], values[i] ^ 0x5bd1e9955bd1e995u);
    }
}

/* What the ranks must agree on, as a number. */
static uint32_t dcommi_shape_signature(const dcommi_shape *s, const dcommi_algo *algo)
{
    if (s->coll == DCOMM_COLL_SEND || s->coll == DCOMM_COLL_RECV) { /* one's is the other's */
        uint64_t pair = dcommi_mix(s->count, (uint64_t)s->dtype);
        return (uint32_t)(pair ^ (pair >> 32));
    }
    uint64_t h =
        dcommi_mix((uint64_t)s->coll << 32 | (uint64_t)s->dtype << 16 | (uint64_t)s->op, s->count);
    h = dcommi_mix(h, (uint64_t)s->root << 32 | (uint64_t)s->lanes << 8 | s->rank_order);
    h = dcommi_mix(h, (uint64_t)s->chunk_bytes);
    h = dcommi_mix(h, (uint64_t)(algo - dcommi_algo_table));
    if (s->send_counts == NULL) { /* all-to-all-v: each pair of ranks has counts of its own */
        uint64_t key[2] = {h, h};
        dcommi_mix_counts(key, s->counts, s->nranks);
        h = key[0];
    }
    return (uint32_t)(h ^ (h >> 32));
}

static dcommi_plan_key dcommi_shape_key(const dcommi_shape *s, const char *algo)
{
    dcommi_plan_key key = {.call = (uint64_t)(uint32_t)s->root << 32 | (uint64_t)s->coll << 16 |
                                   (uint64_t)s->dtype << 8 | (uint64_t)s->op,
                           .mode =
                               (uint64_t)s->lanes << 8 | (uint64_t)s->rank_order << 1 | s->in_place,
                           .count = s->count,
                           .chunk = (uint64_t)s->chunk_bytes};
    for (; algo != NULL && *algo != 0; algo++) {
        key.mode = key.mode * 0x100000001b3u ^ (uint8_t)*algo;
    }
    if (s->counts != NULL) {
        key.counts[0] = 1;
        key.counts[1] = 2;
        dcommi_mix_counts(key.counts, s->counts, s->nranks);
        dcommi_mix_counts(key.counts, s->displs, s->nranks);
        dcommi_mix_counts(key.counts, s->send_counts, s->nranks);
        dcommi_mix_counts(key.counts, s->send_displs, s->nranks);
    }
    return key;
}

/* ---- submission ---- */

/* With comm->lock. */
static dcommi_run *dcommi_run_new(dcomm_comm *comm)
{
    dcommi_run *run = comm->free_runs;
    if (run != NULL) {
        comm->free_runs = run->next;
        uint8_t *memory = run->memory;
        size_t memory_len = run->memory_len;
        dcommi_zero(run, sizeof *run);
        run->memory = memory;
        run->memory_len = memory_len;
    } else {
        run = dcommi_alloc(sizeof(dcomm_request));
        if (run == NULL) {
            return NULL;
        }
    }
    run->comm = comm;
    atomic_store_explicit(&run->refs, 2, memory_order_relaxed); /* its user's and the engine's */
    atomic_store_explicit(&run->status, DCOMM_IN_PROGRESS, memory_order_relaxed);
    comm->refs++;
    return run;
}

static dcomm_status dcommi_run_wait(dcommi_run *run)
{
    int status;
    while ((status = atomic_load_explicit(&run->status, memory_order_acquire)) ==
           DCOMM_IN_PROGRESS) {
        dcommi_progress_for(run->comm->context, run);
    }
    if (status < 0) {
        dcommi_fail((dcomm_status)status, "%s", run->comm->message);
    }
    dcommi_run_unref(run);
    return (dcomm_status)status;
}

/* A run is filled in and numbered: start it, or queue it in the thread's group. request_p NULL:
 * the call is blocking. */
static dcomm_status dcommi_run_launch(dcommi_run *run, double timeout_s, dcomm_request **request_p)
{
    dcommi_group *group = &dcommi_this_group;
    run->timeout_s = timeout_s;
    run->blocking = request_p == NULL;
    if (request_p != NULL) {
        *request_p = (dcomm_request *)run;
    }
    if (group->depth > 0) {
        run->queued = true;
        *(group->last != NULL ? &group->last->next_group : &group->first) = run;
        group->last = run;
        return DCOMM_OK;
    }
    dcommi_submit(run->comm->context, run);
    return request_p == NULL ? dcommi_run_wait(run) : DCOMM_OK;
}

/* An error before anything was sent. Within a group it also becomes the group's. */
static dcomm_status dcommi_call_failed(dcomm_status status)
{
    dcommi_group *group = &dcommi_this_group;
    if (group->depth > 0 && group->status == DCOMM_OK) {
        group->status = status;
        memcpy(group->message, dcommi_message, sizeof group->message);
    }
    return status;
}

/* The plan of a shape, from the cache or made now; with comm->lock. */
static dcomm_status dcommi_plan_find(dcomm_comm *comm, const dcommi_shape *s, const char *forced,
                                     dcommi_cached **cached_p)
{
    dcommi_plan_key key = dcommi_shape_key(s, forced);
    *cached_p = dcommi_cache_find(comm, &key);
    if (DCOMMI_LIKELY(*cached_p != NULL)) {
        return DCOMM_OK;
    }
    const dcommi_algo *algo = NULL;
    DCOMMI_TRY(dcommi_algo_pick(s, forced != NULL ? forced : comm->algo, forced == NULL,
                                comm->chooser, &algo));
    dcomm_plan *plan = NULL, *inner = NULL;
    if (s->op == DCOMM_PREMUL_SUM && dcommi_coll_folds(s->coll)) {
        dcommi_shape sum = *s;
        sum.in_place = false;
        DCOMMI_TRY(dcommi_plan_make(&sum, algo, &inner));
        dcomm_status status = dcommi_plan_premul(s, inner, &plan);
        if (status < 0) {
            dcommi_free(inner);
            return status;
        }
    } else {
        DCOMMI_TRY(dcommi_plan_make(s, algo, &plan));
    }
    *cached_p = dcommi_cache_add(comm, &key, plan, inner);
    if (*cached_p == NULL) {
        return DCOMM_ERR_NO_MEMORY;
    }
    (*cached_p)->algo = algo;
    (*cached_p)->signature = dcommi_shape_signature(s, algo);
    return DCOMM_OK;
}

/* Run a checked shape on its buffers. `p2p` is the other rank of SEND and RECV, else -1. */
static dcomm_status dcommi_collective(dcomm_comm *comm, const dcommi_shape *s, const void *in,
                                      void *out, int p2p, const dcomm_coll_opts *opts,
                                      dcomm_request **request_p)
{
    pthread_mutex_lock(&comm->lock);
    dcommi_cached *cached = NULL;
    dcomm_status status = dcommi_plan_find(comm, s, opts->algo, &cached);
    dcommi_run *run = status >= 0 ? dcommi_run_new(comm) : NULL;
    if (run == NULL) {
        if (cached != NULL) {
            dcommi_cached_release(comm, cached);
        }
        pthread_mutex_unlock(&comm->lock);
        return status < 0 ? status : DCOMM_ERR_NO_MEMORY;
    }
    run->cached = cached;
    run->plan = cached->plan;
    run->in = in;
    run->out = out;
    run->premul = s->op == DCOMM_PREMUL_SUM ? (opts->premul != 0 ? opts->premul : 1.0) : 0.0;
    run->signature.hash = cached->signature;
    run->signature.coll = (uint8_t)s->coll;
    run->signature.dtype = (uint8_t)s->dtype;
    run->signature.op = (uint8_t)s->op;
    run->signature.root = s->root;
    run->signature.count = s->count;
    run->signature.algo = cached->algo->name;
    run->p2p_peer = p2p;
    if (p2p < 0) {
        run->stream = DCOMMI_STREAM_COLL;
        run->seq = comm->next_seq++;
    } else {
        run->stream = DCOMMI_STREAM_P2P;
        dcommi_member *m = &comm->members[p2p];
        run->seq =
            atomic_fetch_add(s->coll == DCOMM_COLL_SEND ? &m->p2p_sent : &m->p2p_received, 1);
    }
    pthread_mutex_unlock(&comm->lock);
    return dcommi_run_launch(run, opts->timeout_s > 0 ? opts->timeout_s : comm->timeout_s,
                             request_p);
}

/* ---- requests ---- */

DCOMM_API dcomm_status dcomm_wait(dcomm_request **request_p)
{
    if (request_p == NULL) {
        return dcommi_fail(DCOMM_ERR_INVALID, "request_p is NULL");
    }
    if (*request_p == NULL) {
        return DCOMM_OK;
    }
    DCOMMI_TRY(dcommi_check_fork());
    if ((*request_p)->run.queued) {
        return dcommi_fail(DCOMM_ERR_INVALID, "the operation is still queued in a group; call "
                                              "dcomm_group_end before waiting for it");
    }
    dcommi_run *run = &(*request_p)->run;
    *request_p = NULL;
    return dcommi_run_wait(run);
}

DCOMM_API dcomm_status dcomm_wait_all(dcomm_request **requests, size_t n)
{
    if (requests == NULL && n > 0) {
        return dcommi_fail(DCOMM_ERR_INVALID, "requests is NULL and n is %zu", n);
    }
    dcomm_status first = DCOMM_OK;
    char message[DCOMMI_MESSAGE_MAX];
    for (size_t i = 0; i < n; i++) {
        dcomm_status status = dcomm_wait(&requests[i]);
        if (status < 0 && first == DCOMM_OK) {
            first = status;
            memcpy(message, dcommi_message, sizeof message);
        }
    }
    return first < 0 ? dcommi_fail(first, "%s", message) : DCOMM_OK;
}

DCOMM_API dcomm_status dcomm_test(dcomm_request **request_p)
{
    if (request_p == NULL) {
        return dcommi_fail(DCOMM_ERR_INVALID, "request_p is NULL");
    }
    if (*request_p == NULL) {
        return DCOMM_OK;
    }
    DCOMMI_TRY(dcommi_check_fork());
    dcommi_run *run = &(*request_p)->run;
    if (!run->queued &&
        atomic_load_explicit(&run->status, memory_order_acquire) == DCOMM_IN_PROGRESS) {
        dcomm_context_progress(run->comm->context);
    }
    if (run->queued ||
        atomic_load_explicit(&run->status, memory_order_acquire) == DCOMM_IN_PROGRESS) {
        return DCOMM_IN_PROGRESS;
    }
    return dcomm_wait(request_p);
}

DCOMM_API dcomm_status dcomm_request_query(const dcomm_request *request, dcomm_request_info *info)
{
    if (request == NULL || info == NULL) {
        return dcommi_fail(DCOMM_ERR_INVALID, "%s is NULL", request == NULL ? "request" : "info");
    }
    info->coll = (dcomm_coll)request->run.signature.coll;
    info->algo = request->run.signature.algo;
    info->sequence = request->run.seq;
    return DCOMM_OK;
}

DCOMM_API dcomm_status dcomm_group_start(void)
{
    dcommi_this_group.depth++;
    return DCOMM_OK;
}

DCOMM_API dcomm_status dcomm_group_end(void)
{
    dcommi_group *group = &dcommi_this_group;
    if (group->depth == 0) {
        return dcommi_fail(DCOMM_ERR_INVALID, "dcomm_group_end without dcomm_group_start");
    }
    if (--group->depth > 0) {
        return DCOMM_OK;
    }
    DCOMMI_TRY(dcommi_check_fork());
    dcommi_run *first = group->first;
    dcomm_status status = group->status;
    group->first = group->last = NULL;
    group->status = DCOMM_OK;
    /* Once started, a non-blocking run may end and be waited for: hold them all until the end. */
    for (dcommi_run *run = first; run != NULL; run = run->next_group) {
        run->queued = false;
        atomic_fetch_add_explicit(&run->refs, 1, memory_order_relaxed);
        dcommi_submit(run->comm->context, run);
    }
    /* The other side of a blocking run may wait for a non-blocking one in another context first. */
    bool all_done = false;
    while (!all_done) {
        all_done = true;
        for (dcommi_run *run = first; run != NULL; run = run->next_group) {
            if (atomic_load_explicit(&run->status, memory_order_acquire) == DCOMM_IN_PROGRESS) {
                all_done = all_done && !run->blocking;
                dcommi_progress_or_yield(run->comm->context);
            }
        }
    }
    for (dcommi_run *run = first, *next; run != NULL; run = next) {
        next = run->next_group;
        dcomm_status one = run->blocking ? dcommi_run_wait(run) : DCOMM_OK;
        dcommi_run_unref(run);
        if (one < 0 && status == DCOMM_OK) {
            status = one;
            memcpy(group->message, dcommi_message, sizeof group->message);
        }
    }
    return status < 0 ? dcommi_fail(status, "%s", group->message) : DCOMM_OK;
}

#endif

/* Sizes of both buffers checked; `in` at `alias` bytes behind `out` is the in-place call. */
static dcomm_status dcommi_call_buffers(dcomm_comm *comm, dcommi_shape *s, const void *in,
                                        void *out, int64_t alias, bool aliased,
                                        const dcomm_coll_opts *opts, dcomm_request **request_p)
{
    int64_t in_bytes, out_bytes;
    dcommi_shape_spaces(s, &in_bytes, &out_bytes);
    if (in == DCOMM_IN_PLACE) {
        in = out != NULL ? (const uint8_t *)out + alias : NULL;
    }
    DCOMMI_TRY(dcommi_check_buffer(s, "sendbuf", in, in_bytes));
    DCOMMI_TRY(dcommi_check_buffer(s, "recvbuf", out, out_bytes));
    s->in_place = aliased && in != NULL && out != NULL && in == (const uint8_t *)out + alias;
    return dcommi_collective(comm, s, in, out, -1, opts, request_p);
}

static dcomm_status dcommi_allreduce(dcomm_comm *comm, const void *sendbuf, void *recvbuf,
                                     size_t count, dcomm_dtype dtype, dcomm_op op,
                                     const dcomm_coll_opts *opts, dcomm_request **request_p)
{
    dcommi_shape s;
    opts = opts != NULL ? opts : &dcommi_default_opts;
    DCOMMI_TRY(dcommi_shape_begin(comm, DCOMM_COLL_ALLREDUCE, count, dtype, op, 0, opts, &s));
    return dcommi_call_buffers(comm, &s, sendbuf, recvbuf, 0, true, opts, request_p);
}

/* In place the output is a part of the input: algorithms write it only as they read it last, so it
 * needs no plan of its own. */
static dcomm_status dcommi_reduce_scatter(dcomm_comm *comm, const void *sendbuf, void *recvbuf,
                                          size_t recvcount, dcomm_dtype dtype, dcomm_op op,
                                          const dcomm_coll_opts *opts, dcomm_request **request_p)
{
    dcommi_shape s;
    opts = opts != NULL ? opts : &dcommi_default_opts;
    DCOMMI_TRY(
        dcommi_shape_begin(comm, DCOMM_COLL_REDUCE_SCATTER, recvcount, dtype, op, 0, opts, &s));
    if (sendbuf == DCOMM_IN_PLACE) {
        sendbuf = recvbuf;
        recvbuf = recvbuf != NULL
                      ? (uint8_t *)recvbuf + dcommi_shape_bytes(&s, recvcount) * comm->rank
                      : NULL;
    }
    return dcommi_call_buffers(comm, &s, sendbuf, recvbuf, 0, false, opts, request_p);
}

static dcomm_status dcommi_allgather(dcomm_comm *comm, const void *sendbuf, void *recvbuf,
                                     size_t sendcount, dcomm_dtype dtype,
                                     const dcomm_coll_opts *opts, dcomm_request **request_p)
{
    dcommi_shape s;
    opts = opts != NULL ? opts : &dcommi_default_opts;
    DCOMMI_TRY(
        dcommi_shape_begin(comm, DCOMM_COLL_ALLGATHER, sendcount, dtype, DCOMM_SUM, 0, opts, &s));
    return dcommi_call_buffers(comm, &s, sendbuf, recvbuf,
                               dcommi_shape_bytes(&s, sendcount) * comm->rank, true, opts,
                               request_p);
}

static dcomm_status dcommi_broadcast(dcomm_comm *comm, const void *sendbuf, void *recvbuf,
                                     size_t count, dcomm_dtype dtype, int root,
                                     const dcomm_coll_opts *opts, dcomm_request **request_p)
{
    dcommi_shape s;
    opts = opts != NULL ? opts : &dcommi_default_opts;
    DCOMMI_TRY(
        dcommi_shape_begin(comm, DCOMM_COLL_BROADCAST, count, dtype, DCOMM_SUM, root, opts, &s));
    return dcommi_call_buffers(comm, &s, comm->rank == root ? sendbuf : NULL, recvbuf, 0, true,
                               opts, request_p);
}

static dcomm_status dcommi_reduce_to(dcomm_comm *comm, const void *sendbuf, void *recvbuf,
                                     size_t count, dcomm_dtype dtype, dcomm_op op, int root,
                                     const dcomm_coll_opts *opts, dcomm_request **request_p)
{
    dcommi_shape s;
    opts = opts != NULL ? opts : &dcommi_default_opts;
    DCOMMI_TRY(dcommi_shape_begin(comm, DCOMM_COLL_REDUCE, count, dtype, op, root, opts, &s));
    if (sendbuf == DCOMM_IN_PLACE && comm->rank != root) {
        sendbuf = recvbuf;
    }
    return dcommi_call_buffers(comm, &s, sendbuf, recvbuf, 0, comm->rank == root, opts, request_p);
}

static dcomm_status dcommi_gather(dcomm_comm *comm, const void *sendbuf, void *recvbuf,
                                  size_t sendcount, dcomm_dtype dtype, int root,
                                  const dcomm_coll_opts *opts, dcomm_request **request_p)
{
    dcommi_shape s;
    opts = opts != NULL ? opts : &dcommi_default_opts;
    DCOMMI_TRY(
        dcommi_shape_begin(comm, DCOMM_COLL_GATHER, sendcount, dtype, DCOMM_SUM, root, opts, &s));
    if (sendbuf == DCOMM_IN_PLACE && comm->rank != root) {
        return dcommi_fail(DCOMM_ERR_INVALID, "gather: in place is for the root, %d, only", root);
    }
    return dcommi_call_buffers(comm, &s, sendbuf, recvbuf,
                               dcommi_shape_bytes(&s, sendcount) * comm->rank, comm->rank == root,
                               opts, request_p);
}

static dcomm_status dcommi_scatter(dcomm_comm *comm, const void *sendbuf, void *recvbuf,
                                   size_t recvcount, dcomm_dtype dtype, int root,
                                   const dcomm_coll_opts *opts, dcomm_request **request_p)
{
    dcommi_shape s;
    opts = opts != NULL ? opts : &dcommi_default_opts;
    DCOMMI_TRY(
        dcommi_shape_begin(comm, DCOMM_COLL_SCATTER, recvcount, dtype, DCOMM_SUM, root, opts, &s));
    if (sendbuf == DCOMM_IN_PLACE && comm->rank != root) {
        return dcommi_fail(DCOMM_ERR_INVALID, "scatter: in place is for the root, %d, only", root);
    }
    if (sendbuf == DCOMM_IN_PLACE && recvbuf != NULL) { /* recvbuf is the whole buffer */
        sendbuf = recvbuf;
        recvbuf = (uint8_t *)recvbuf + dcommi_shape_bytes(&s, recvcount) * root;
    }
    return dcommi_call_buffers(comm, &s, comm->rank == root ? sendbuf : NULL, recvbuf, 0, false,
                               opts, request_p);
}

static dcomm_status dcommi_alltoall(dcomm_comm *comm, const void *sendbuf, void *recvbuf,
                                    size_t count, dcomm_dtype dtype, const dcomm_coll_opts *opts,
                                    dcomm_request **request_p)
{
    dcommi_shape s;
    opts = opts != NULL ? opts : &dcommi_default_opts;
    DCOMMI_TRY(dcommi_shape_begin(comm, DCOMM_COLL_ALLTOALL, count, dtype, DCOMM_SUM, 0, opts, &s));
    return dcommi_call_buffers(comm, &s, sendbuf, recvbuf, 0, true, opts, request_p);
}

static dcomm_status dcommi_barrier(dcomm_comm *comm, const dcomm_coll_opts *opts,
                                   dcomm_request **request_p)
{
    dcommi_shape s;
    opts = opts != NULL ? opts : &dcommi_default_opts;
    DCOMMI_TRY(dcommi_shape_begin(comm, DCOMM_COLL_BARRIER, 0, DCOMM_U8, DCOMM_SUM, 0, opts, &s));
    return dcommi_collective(comm, &s, NULL, NULL, -1, opts, request_p);
}

/* ---- counts that differ by rank ---- */

/* Counts checked, and displacements filled in where there are none; *packed must be freed. */
static dcomm_status dcommi_check_counts(const dcommi_shape *s, const char *name,
                                        const size_t *counts, const size_t **displs,
                                        size_t **packed)
{
    size_t limit = (size_t)INT64_MAX / 2 / dcomm_dtype_size(s->dtype), sum = 0;
    *packed = NULL;
    if (counts == NULL) {
        return dcommi_fail(DCOMM_ERR_INVALID, "%s: %s is NULL", dcomm_coll_name(s->coll), name);
    }
    if (*displs == NULL) {
        *packed = dcommi_calloc((size_t)s->nranks, sizeof **packed);
        if (*packed == NULL) {
            return DCOMM_ERR_NO_MEMORY;
        }
    }
    for (int r = 0; r < s->nranks; r++) {
        size_t at = *displs != NULL ? (*displs)[r] : sum;
        if (counts[r] > limit || at > limit - counts[r] || sum > limit - counts[r]) {
            dcommi_free(*packed);
            *packed = NULL;
            return dcommi_fail(DCOMM_ERR_INVALID, "%s: %s[%d] is %zu at %zu, beyond 2^62 bytes",
                               dcomm_coll_name(s->coll), name, r, counts[r], at);
        }
        if (*packed != NULL) {
            (*packed)[r] = sum;
        }
        sum += counts[r];
    }
    *displs = *packed != NULL ? *packed : *displs;
    return DCOMM_OK;
}

/* reduce-scatter-v, all-gather-v, gather-v, scatter-v. */
static dcomm_status dcommi_call_v(dcomm_comm *comm, dcomm_coll coll, const void *in, void *out,
                                  const size_t *counts, const size_t *displs, dcomm_dtype dtype,
                                  dcomm_op op, int root, const dcomm_coll_opts *opts,
                                  dcomm_request **request_p)
{
    dcommi_shape s;
    size_t *packed;
    opts = opts != NULL ? opts : &dcommi_default_opts;
    DCOMMI_TRY(dcommi_shape_begin(comm, coll, 0, dtype, op, root, opts, &s));
    DCOMMI_TRY(dcommi_check_counts(&s, "counts", counts, &displs, &packed));
    s.counts = counts;
    s.displs = displs;
    int64_t own = dcommi_shape_bytes(&s, displs[comm->rank]);
    bool rooted = coll == DCOMM_COLL_GATHERV || coll == DCOMM_COLL_SCATTERV;
    bool gathers = coll == DCOMM_COLL_GATHERV || coll == DCOMM_COLL_ALLGATHERV;
    dcomm_status status = DCOMM_OK;
    if (in == DCOMM_IN_PLACE && rooted && comm->rank != root) {
        status = dcommi_fail(DCOMM_ERR_INVALID, "%s: in place is for the root, %d, only",
                             dcomm_coll_name(coll), root);
    } else if (in == DCOMM_IN_PLACE && !gathers && out != NULL) {
        in = out;
        out = (uint8_t *)out + own;
    }
    if (coll == DCOMM_COLL_SCATTERV && comm->rank != root) {
        in = NULL;
    }
    if (status == DCOMM_OK) {
        status = dcommi_call_buffers(comm, &s, in, out, gathers ? own : 0,
                                     gathers && (!rooted || comm->rank == root), opts, request_p);
    }
    dcommi_free(packed);
    return status;
}

static dcomm_status dcommi_alltoallv(dcomm_comm *comm, const void *sendbuf,
                                     const size_t *sendcounts, const size_t *sdispls, void *recvbuf,
                                     const size_t *recvcounts, const size_t *rdispls,
                                     dcomm_dtype dtype, const dcomm_coll_opts *opts,
                                     dcomm_request **request_p)
{
    dcommi_shape s;
    size_t *packed_send = NULL, *packed_recv = NULL;
    opts = opts != NULL ? opts : &dcommi_default_opts;
    DCOMMI_TRY(dcommi_shape_begin(comm, DCOMM_COLL_ALLTOALLV, 0, dtype, DCOMM_SUM, 0, opts, &s));
    if (sendbuf == DCOMM_IN_PLACE || (sendbuf == recvbuf && sendbuf != NULL)) {
        return dcommi_fail(DCOMM_ERR_INVALID, "all-to-all-v cannot work in place");
    }
    dcomm_status status = dcommi_check_counts(&s, "sendcounts", sendcounts, &sdispls, &packed_send);
    if (status >= 0) {
        status = dcommi_check_counts(&s, "recvcounts", recvcounts, &rdispls, &packed_recv);
    }
    if (status >= 0 && sendcounts[comm->rank] != recvcounts[comm->rank]) {
        status = dcommi_fail(DCOMM_ERR_INVALID,
                             "all-to-all-v: rank %d sends %zu elements to itself and expects %zu",
                             comm->rank, sendcounts[comm->rank], recvcounts[comm->rank]);
    }
    if (status >= 0) {
        s.counts = recvcounts;
        s.displs = rdispls;
        s.send_counts = sendcounts;
        s.send_displs = sdispls;
        status = dcommi_call_buffers(comm, &s, sendbuf, recvbuf, 0, false, opts, request_p);
    }
    dcommi_free(packed_send);
    dcommi_free(packed_recv);
    return status;
}

/* ---- point-to-point ---- */

static dcomm_status dcommi_p2p(dcomm_comm *comm, dcomm_coll coll, const void *in, void *out,
                               size_t count, dcomm_dtype dtype, int peer,
                               const dcomm_coll_opts *opts, dcomm_request **request_p)
{
    dcommi_shape s;
    opts = opts != NULL ? opts : &dcommi_default_opts;
    DCOMMI_TRY(dcommi_shape_begin(comm, coll, count, dtype, DCOMM_SUM, peer, opts, &s));
    if (peer == comm->rank) {
        return dcommi_fail(DCOMM_ERR_INVALID, "%s: rank %d is the caller itself",
                           dcomm_coll_name(coll), peer);
    }
    DCOMMI_TRY(dcommi_check_buffer(&s, "buf", coll == DCOMM_COLL_SEND ? in : out,
                                   dcommi_shape_bytes(&s, count)));
    return dcommi_collective(comm, &s, in, out, peer, opts, request_p);
}

/* ---- plans of the caller's own ---- */

static dcomm_status dcommi_run_plan(dcomm_comm *comm, const dcomm_plan *plan, const void *in,
                                    void *out, void *state, uint32_t signature,
                                    const dcomm_coll_opts *opts, dcomm_request **request_p)
{
    opts = opts != NULL ? opts : &dcommi_default_opts;
    DCOMMI_TRY(dcommi_check_comm(comm));
    if (plan == NULL || plan->rank != comm->rank || plan->nranks != comm->size) {
        return dcommi_fail(DCOMM_ERR_INVALID, "plan is %s; this is rank %d of %d",
                           plan == NULL ? "NULL" : "for another rank or number of ranks",
                           comm->rank, comm->size);
    }
    if (dcomm_dtype_size((dcomm_dtype)plan->dtype) == 0 || !dcommi_op_known((dcomm_op)plan->op)) {
        return dcommi_fail(DCOMM_ERR_INVALID, "plan %s: dtype %d or op %d is none", plan->name,
                           plan->dtype, plan->op);
    }
    uint32_t budget = DCOMMI_CHECK_SUBPLANS;
    DCOMMI_TRY(dcommi_check_plan_valid(plan, "plan", 0, &budget)); /* its indices can be trusted */
    pthread_mutex_lock(&comm->lock);
    dcommi_run *run = dcommi_run_new(comm);
    if (run == NULL) {
        pthread_mutex_unlock(&comm->lock);
        return DCOMM_ERR_NO_MEMORY;
    }
    run->plan = plan;
    run->in = in;
    run->out = out;
    run->state = state;
    run->signature.hash = signature;
    run->signature.coll = DCOMM_COLL_PLAN;
    run->signature.dtype = plan->dtype;
    run->signature.op = plan->op;
    run->signature.algo = plan->name;
    run->p2p_peer = -1;
    run->seq = comm->next_seq++;
    pthread_mutex_unlock(&comm->lock);
    return dcommi_run_launch(run, opts->timeout_s > 0 ? opts->timeout_s : comm->timeout_s,
                             request_p);
}

/* ---- the two forms of each ---- */

/* A non-blocking call needs somewhere to put its request. */
static inline dcomm_status dcommi_check_request(dcomm_request **request_p)
{
    if (request_p == NULL) {
        return dcommi_fail(DCOMM_ERR_INVALID, "request_p is NULL");
    }
    *request_p = NULL;
    return DCOMM_OK;
}

static inline dcomm_status dcommi_called(dcomm_status status)
{
    return DCOMMI_LIKELY(status >= 0) ? status : dcommi_call_failed(status);
}

DCOMM_API dcomm_status dcomm_iallreduce(dcomm_comm *comm, const void *sendbuf, void *recvbuf,
                                        size_t count, dcomm_dtype dtype, dcomm_op op,
                                        const dcomm_coll_opts *opts, dcomm_request **request_p)
{
    DCOMMI_TRY(dcommi_check_request(request_p));
    return dcommi_called(
        dcommi_allreduce(comm, sendbuf, recvbuf, count, dtype, op, opts, request_p));
}

DCOMM_API dcomm_status dcomm_allreduce(dcomm_comm *comm, const void *sendbuf, void *recvbuf,
                                       size_t count, dcomm_dtype dtype, dcomm_op op,
                                       const dcomm_coll_opts *opts)
{
    return dcommi_called(dcommi_allreduce(comm, sendbuf, recvbuf, count, dtype, op, opts, NULL));
}

DCOMM_API dcomm_status dcomm_ireduce_scatter(dcomm_comm *comm, const void *sendbuf, void *recvbuf,
                                             size_t recvcount, dcomm_dtype dtype, dcomm_op op,
                                             const dcomm_coll_opts *opts, dcomm_request **request_p)
{
    DCOMMI_TRY(dcommi_check_request(request_p));
    return dcommi_called(
        dcommi_reduce_scatter(comm, sendbuf, recvbuf, recvcount, dtype, op, opts, request_p));
}

DCOMM_API dcomm_status dcomm_reduce_scatter(dcomm_comm *comm, const void *sendbuf, void *recvbuf,
                                            size_t recvcount, dcomm_dtype dtype, dcomm_op op,
                                            const dcomm_coll_opts *opts)
{
    return dcommi_called(
        dcommi_reduce_scatter(comm, sendbuf, recvbuf, recvcount, dtype, op, opts, NULL));
}

DCOMM_API dcomm_status dcomm_ireduce_scatterv(dcomm_comm *comm, const void *sendbuf, void *recvbuf,
                                              const size_t *recvcounts, dcomm_dtype dtype,
                                              dcomm_op op, const dcomm_coll_opts *opts,
                                              dcomm_request **request_p)
{
    DCOMMI_TRY(dcommi_check_request(request_p));
    return dcommi_called(dcommi_call_v(comm, DCOMM_COLL_REDUCE_SCATTERV, sendbuf, recvbuf,
                                       recvcounts, NULL, dtype, op, 0, opts, request_p));
}

DCOMM_API dcomm_status dcomm_reduce_scatterv(dcomm_comm *comm, const void *sendbuf, void *recvbuf,
                                             const size_t *recvcounts, dcomm_dtype dtype,
                                             dcomm_op op, const dcomm_coll_opts *opts)
{
    return dcommi_called(dcommi_call_v(comm, DCOMM_COLL_REDUCE_SCATTERV, sendbuf, recvbuf,
                                       recvcounts, NULL, dtype, op, 0, opts, NULL));
}

DCOMM_API dcomm_status dcomm_iallgather(dcomm_comm *comm, const void *sendbuf, void *recvbuf,
                                        size_t sendcount, dcomm_dtype dtype,
                                        const dcomm_coll_opts *opts, dcomm_request **request_p)
{
    DCOMMI_TRY(dcommi_check_request(request_p));
    return dcommi_called(
        dcommi_allgather(comm, sendbuf, recvbuf, sendcount, dtype, opts, request_p));
}

DCOMM_API dcomm_status dcomm_allgather(dcomm_comm *comm, const void *sendbuf, void *recvbuf,
                                       size_t sendcount, dcomm_dtype dtype,
                                       const dcomm_coll_opts *opts)
{
    return dcommi_called(dcommi_allgather(comm, sendbuf, recvbuf, sendcount, dtype, opts, NULL));
}

DCOMM_API dcomm_status dcomm_iallgatherv(dcomm_comm *comm, const void *sendbuf, void *recvbuf,
                                         const size_t *recvcounts, const size_t *displs,
                                         dcomm_dtype dtype, const dcomm_coll_opts *opts,
                                         dcomm_request **request_p)
{
    DCOMMI_TRY(dcommi_check_request(request_p));
    return dcommi_called(dcommi_call_v(comm, DCOMM_COLL_ALLGATHERV, sendbuf, recvbuf, recvcounts,
                                       displs, dtype, DCOMM_SUM, 0, opts, request_p));
}

DCOMM_API dcomm_status dcomm_allgatherv(dcomm_comm *comm, const void *sendbuf, void *recvbuf,
                                        const size_t *recvcounts, const size_t *displs,
                                        dcomm_dtype dtype, const dcomm_coll_opts *opts)
{
    return dcommi_called(dcommi_call_v(comm, DCOMM_COLL_ALLGATHERV, sendbuf, recvbuf, recvcounts,
                                       displs, dtype, DCOMM_SUM, 0, opts, NULL));
}

DCOMM_API dcomm_status dcomm_ibroadcast(dcomm_comm *comm, const void *sendbuf, void *recvbuf,
                                        size_t count, dcomm_dtype dtype, int root,
                                        const dcomm_coll_opts *opts, dcomm_request **request_p)
{
    DCOMMI_TRY(dcommi_check_request(request_p));
    return dcommi_called(
        dcommi_broadcast(comm, sendbuf, recvbuf, count, dtype, root, opts, request_p));
}

DCOMM_API dcomm_status dcomm_broadcast(dcomm_comm *comm, const void *sendbuf, void *recvbuf,
                                       size_t count, dcomm_dtype dtype, int root,
                                       const dcomm_coll_opts *opts)
{
    return dcommi_called(dcommi_broadcast(comm, sendbuf, recvbuf, count, dtype, root, opts, NULL));
}

DCOMM_API dcomm_status dcomm_ireduce(dcomm_comm *comm, const void *sendbuf, void *recvbuf,
                                     size_t count, dcomm_dtype dtype, dcomm_op op, int root,
                                     const dcomm_coll_opts *opts, dcomm_request **request_p)
{
    DCOMMI_TRY(dcommi_check_request(request_p));
    return dcommi_called(
        dcommi_reduce_to(comm, sendbuf, recvbuf, count, dtype, op, root, opts, request_p));
}

DCOMM_API dcomm_status dcomm_reduce(dcomm_comm *comm, const void *sendbuf, void *recvbuf,
                                    size_t count, dcomm_dtype dtype, dcomm_op op, int root,
                                    const dcomm_coll_opts *opts)
{
    return dcommi_called(
        dcommi_reduce_to(comm, sendbuf, recvbuf, count, dtype, op, root, opts, NULL));
}

DCOMM_API dcomm_status dcomm_igather(dcomm_comm *comm, const void *sendbuf, void *recvbuf,
                                     size_t sendcount, dcomm_dtype dtype, int root,
                                     const dcomm_coll_opts *opts, dcomm_request **request_p)
{
    DCOMMI_TRY(dcommi_check_request(request_p));
    return dcommi_called(
        dcommi_gather(comm, sendbuf, recvbuf, sendcount, dtype, root, opts, request_p));
}

DCOMM_API dcomm_status dcomm_gather(dcomm_comm *comm, const void *sendbuf, void *recvbuf,
                                    size_t sendcount, dcomm_dtype dtype, int root,
                                    const dcomm_coll_opts *opts)
{
    return dcommi_called(dcommi_gather(comm, sendbuf, recvbuf, sendcount, dtype, root, opts, NULL));
}

DCOMM_API dcomm_status dcomm_igatherv(dcomm_comm *comm, const void *sendbuf, void *recvbuf,
                                      const size_t *counts, const size_t *displs, dcomm_dtype dtype,
                                      int root, const dcomm_coll_opts *opts,
                                      dcomm_request **request_p)
{
    DCOMMI_TRY(dcommi_check_request(request_p));
    return dcommi_called(dcommi_call_v(comm, DCOMM_COLL_GATHERV, sendbuf, recvbuf, counts, displs,
                                       dtype, DCOMM_SUM, root, opts, request_p));
}

DCOMM_API dcomm_status dcomm_gatherv(dcomm_comm *comm, const void *sendbuf, void *recvbuf,
                                     const size_t *counts, const size_t *displs, dcomm_dtype dtype,
                                     int root, const dcomm_coll_opts *opts)
{
    return dcommi_called(dcommi_call_v(comm, DCOMM_COLL_GATHERV, sendbuf, recvbuf, counts, displs,
                                       dtype, DCOMM_SUM, root, opts, NULL));
}

DCOMM_API dcomm_status dcomm_iscatter(dcomm_comm *comm, const void *sendbuf, void *recvbuf,
                                      size_t recvcount, dcomm_dtype dtype, int root,
                                      const dcomm_coll_opts *opts, dcomm_request **request_p)
{
    DCOMMI_TRY(dcommi_check_request(request_p));
    return dcommi_called(
        dcommi_scatter(comm, sendbuf, recvbuf, recvcount, dtype, root, opts, request_p));
}

DCOMM_API dcomm_status dcomm_scatter(dcomm_comm *comm, const void *sendbuf, void *recvbuf,
                                     size_t recvcount, dcomm_dtype dtype, int root,
                                     const dcomm_coll_opts *opts)
{
    return dcommi_called(
        dcommi_scatter(comm, sendbuf, recvbuf, recvcount, dtype, root, opts, NULL));
}

DCOMM_API dcomm_status dcomm_iscatterv(dcomm_comm *comm, const void *sendbuf, void *recvbuf,
                                       const size_t *counts, const size_t *displs,
                                       dcomm_dtype dtype, int root, const dcomm_coll_opts *opts,
                                       dcomm_request **request_p)
{
    DCOMMI_TRY(dcommi_check_request(request_p));
    return dcommi_called(dcommi_call_v(comm, DCOMM_COLL_SCATTERV, sendbuf, recvbuf, counts, displs,
                                       dtype, DCOMM_SUM, root, opts, request_p));
}

DCOMM_API dcomm_status dcomm_scatterv(dcomm_comm *comm, const void *sendbuf, void *recvbuf,
                                      const size_t *counts, const size_t *displs, dcomm_dtype dtype,
                                      int root, const dcomm_coll_opts *opts)
{
    return dcommi_called(dcommi_call_v(comm, DCOMM_COLL_SCATTERV, sendbuf, recvbuf, counts, displs,
                                       dtype, DCOMM_SUM, root, opts, NULL));
}

DCOMM_API dcomm_status dcomm_ialltoall(dcomm_comm *comm, const void *sendbuf, void *recvbuf,
                                       size_t count, dcomm_dtype dtype, const dcomm_coll_opts *opts,
                                       dcomm_request **request_p)
{
    DCOMMI_TRY(dcommi_check_request(request_p));
    return dcommi_called(dcommi_alltoall(comm, sendbuf, recvbuf, count, dtype, opts, request_p));
}

DCOMM_API dcomm_status dcomm_alltoall(dcomm_comm *comm, const void *sendbuf, void *recvbuf,
                                      size_t count, dcomm_dtype dtype, const dcomm_coll_opts *opts)
{
    return dcommi_called(dcommi_alltoall(comm, sendbuf, recvbuf, count, dtype, opts, NULL));
}

DCOMM_API dcomm_status dcomm_ialltoallv(dcomm_comm *comm, const void *sendbuf,
                                        const size_t *sendcounts, const size_t *sdispls,
                                        void *recvbuf, const size_t *recvcounts,
                                        const size_t *rdispls, dcomm_dtype dtype,
                                        const dcomm_coll_opts *opts, dcomm_request **request_p)
{
    DCOMMI_TRY(dcommi_check_request(request_p));
    return dcommi_called(dcommi_alltoallv(comm, sendbuf, sendcounts, sdispls, recvbuf, recvcounts,
                                          rdispls, dtype, opts, request_p));
}

DCOMM_API dcomm_status dcomm_alltoallv(dcomm_comm *comm, const void *sendbuf,
                                       const size_t *sendcounts, const size_t *sdispls,
                                       void *recvbuf, const size_t *recvcounts,
                                       const size_t *rdispls, dcomm_dtype dtype,
                                       const dcomm_coll_opts *opts)
{
    return dcommi_called(dcommi_alltoallv(comm, sendbuf, sendcounts, sdispls, recvbuf, recvcounts,
                                          rdispls, dtype, opts, NULL));
}

DCOMM_API dcomm_status dcomm_ibarrier(dcomm_comm *comm, const dcomm_coll_opts *opts,
                                      dcomm_request **request_p)
{
    DCOMMI_TRY(dcommi_check_request(request_p));
    return dcommi_called(dcommi_barrier(comm, opts, request_p));
}

DCOMM_API dcomm_status dcomm_barrier(dcomm_comm *comm, const dcomm_coll_opts *opts)
{
    return dcommi_called(dcommi_barrier(comm, opts, NULL));
}

DCOMM_API dcomm_status dcomm_isend(dcomm_comm *comm, const void *buf, size_t count,
                                   dcomm_dtype dtype, int peer, const dcomm_coll_opts *opts,
                                   dcomm_request **request_p)
{
    DCOMMI_TRY(dcommi_check_request(request_p));
    return dcommi_called(
        dcommi_p2p(comm, DCOMM_COLL_SEND, buf, NULL, count, dtype, peer, opts, request_p));
}

DCOMM_API dcomm_status dcomm_send(dcomm_comm *comm, const void *buf, size_t count,
                                  dcomm_dtype dtype, int peer, const dcomm_coll_opts *opts)
{
    return dcommi_called(
        dcommi_p2p(comm, DCOMM_COLL_SEND, buf, NULL, count, dtype, peer, opts, NULL));
}

DCOMM_API dcomm_status dcomm_irecv(dcomm_comm *comm, void *buf, size_t count, dcomm_dtype dtype,
                                   int peer, const dcomm_coll_opts *opts, dcomm_request **request_p)
{
    DCOMMI_TRY(dcommi_check_request(request_p));
    return dcommi_called(
        dcommi_p2p(comm, DCOMM_COLL_RECV, NULL, buf, count, dtype, peer, opts, request_p));
}

DCOMM_API dcomm_status dcomm_recv(dcomm_comm *comm, void *buf, size_t count, dcomm_dtype dtype,
                                  int peer, const dcomm_coll_opts *opts)
{
    return dcommi_called(
        dcommi_p2p(comm, DCOMM_COLL_RECV, NULL, buf, count, dtype, peer, opts, NULL));
}

DCOMM_API dcomm_status dcomm_iplan_run(dcomm_comm *comm, const dcomm_plan *plan, const void *in,
                                       void *out, void *state, uint32_t signature,
                                       const dcomm_coll_opts *opts, dcomm_request **request_p)
{
    DCOMMI_TRY(dcommi_check_request(request_p));
    return dcommi_called(dcommi_run_plan(comm, plan, in, out, state, signature, opts, request_p));
}

DCOMM_API dcomm_status dcomm_plan_run(dcomm_comm *comm, const dcomm_plan *plan, const void *in,
                                      void *out, void *state, uint32_t signature,
                                      const dcomm_coll_opts *opts)
{
    return dcommi_called(dcommi_run_plan(comm, plan, in, out, state, signature, opts, NULL));
}

#endif
/* ==== include/dcomm/impl/api_tune.h ======================================================== */
/* api_tune.h - the public read-out of algorithms and plans. */
#ifndef DCOMMI_API_TUNE_H
#define DCOMMI_API_TUNE_H


DCOMM_API const char *dcomm_coll_name(dcomm_coll coll)
{
    static const char *const names[DCOMM_COLL_COUNT] = {"all-reduce",
                                                        "reduce-scatter",
                                                        "all-gather",
                                                        "broadcast",
                                                        "reduce",
                                                        "gather",
                                                        "scatter",
                                                        "all-to-all",
                                                        "reduce-scatter-v",
                                                        "all-gather-v",
                                                        "gather-v",
                                                        "scatter-v",
                                                        "all-to-all-v",
                                                        "barrier",
                                                        "send",
                                                        "recv",
                                                        "plan"};
    return (unsigned)coll < DCOMM_COLL_COUNT ? names[coll] : "?";
}

DCOMM_API dcomm_status dcomm_algo_get(dcomm_coll coll, int i, dcomm_algo_info *info)
{
    if (info == NULL) {
        return dcommi_fail(DCOMM_ERR_INVALID, "info is NULL");
    }
    const dcommi_algo *algo = i >= 0 ? dcommi_algo_at(coll, i) : NULL;
    if (algo == NULL) {
        return dcommi_fail(DCOMM_ERR_INVALID, "%s has no algorithm number %d",
                           dcomm_coll_name(coll), i);
    }
    info->name = algo->name;
    info->coll = algo->coll;
    info->rank_order = algo->rank_order;
    info->cost = algo->cost;
    info->source = algo->source;
    return DCOMM_OK;
}

/* Counts of all-to-all-v for one rank out of the matrix, and packed displacements, in one block:
 * recv counts, recv displacements, send counts, send displacements. */
static size_t *dcommi_spec_counts(const dcomm_check_spec *spec, int rank, int nranks)
{
    size_t n = (size_t)nranks;
    size_t *block = dcommi_calloc(4 * n, sizeof *block);
    if (block == NULL) {
        return NULL;
    }
    size_t at = 0, send_at = 0;
    for (size_t r = 0; r < n; r++) {
        bool matrix = spec->coll == DCOMM_COLL_ALLTOALLV;
        block[r] = matrix ? spec->counts[r * n + (size_t)rank] : spec->counts[r];
        block[n + r] = spec->displs != NULL && !matrix ? spec->displs[r] : at;
        at += block[r];
        block[2 * n + r] = matrix ? spec->counts[(size_t)rank * n + r] : 0;
        block[3 * n + r] = send_at;
        send_at += block[2 * n + r];
    }
    return block;
}

DCOMM_API dcomm_status dcomm_plan_create(const dcomm_check_spec *spec, dcomm_op op, int rank,
                                         int nranks, const dcomm_coll_opts *opts,
                                         dcomm_plan **plan_p)
{
    if (spec == NULL || plan_p == NULL) {
        return dcommi_fail(DCOMM_ERR_INVALID, "%s is NULL", spec == NULL ? "spec" : "plan_p");
    }
    *plan_p = NULL;
    opts = opts != NULL ? opts : &dcommi_default_opts;
    /* A communicator in name only: the checks of a call, and nothing to run on. */
    dcomm_comm fake;
    memset(&fake, 0, sizeof fake);
    fake.rank = rank;
    fake.size = nranks;
    if (nranks < 1 || rank < 0 || rank >= nranks) {
        return dcommi_fail(DCOMM_ERR_INVALID, "rank %d of %d", rank, nranks);
    }
    bool listed = spec->coll == DCOMM_COLL_REDUCE_SCATTERV || spec->coll == DCOMM_COLL_ALLGATHERV ||
                  spec->coll == DCOMM_COLL_GATHERV || spec->coll == DCOMM_COLL_SCATTERV ||
                  spec->coll == DCOMM_COLL_ALLTOALLV;
    if (listed && spec->counts == NULL) {
        return dcommi_fail(DCOMM_ERR_INVALID, "%s: counts is NULL", dcomm_coll_name(spec->coll));
    }
    dcommi_shape s;
    const dcommi_algo *algo = NULL;
    DCOMMI_TRY(
        dcommi_shape_begin(&fake, spec->coll, spec->count, spec->dtype, op, spec->root, opts, &s));
    s.in_place = spec->in_place;
    s.rank_order = s.rank_order || (spec->rank_order && dcommi_coll_folds(spec->coll));
    size_t *counts = NULL;
    if (listed) {
        counts = dcommi_spec_counts(spec, rank, nranks);
        if (counts == NULL) {
            return DCOMM_ERR_NO_MEMORY;
        }
        s.counts = counts;
        s.displs = counts + nranks;
        if (spec->coll == DCOMM_COLL_ALLTOALLV) {
            s.send_counts = counts + 2 * (size_t)nranks;
            s.send_displs = counts + 3 * (size_t)nranks;
        }
    }
    dcomm_status status = dcommi_algo_pick(&s, opts->algo, false, NULL, &algo);
    if (status >= 0) {
        status = dcommi_plan_make(&s, algo, plan_p);
    }
    dcommi_free(counts);
    return status;
}

DCOMM_API void dcomm_plan_destroy(dcomm_plan **plan_p)
{
    if (plan_p != NULL) {
        dcommi_free(*plan_p);
        *plan_p = NULL;
    }
}

DCOMM_API dcomm_status dcomm_explain(dcomm_comm *comm, dcomm_coll coll, size_t count,
                                     dcomm_dtype dtype, dcomm_op op, const dcomm_coll_opts *opts,
                                     const char **algo_p)
{
    dcommi_shape s;
    const dcommi_algo *algo = NULL;
    if (algo_p == NULL) {
        return dcommi_fail(DCOMM_ERR_INVALID, "algo_p is NULL");
    }
    opts = opts != NULL ? opts : &dcommi_default_opts;
    DCOMMI_TRY(dcommi_shape_begin(comm, coll, count, dtype, op, 0, opts, &s));
    bool soft = opts->algo == NULL;
    pthread_mutex_lock(&comm->lock);
    dcomm_status status =
        dcommi_algo_pick(&s, soft ? comm->algo : opts->algo, soft, comm->chooser, &algo);
    pthread_mutex_unlock(&comm->lock);
    DCOMMI_TRY(status);
    *algo_p = algo->name;
    return DCOMM_OK;
}

#endif
/* ==== include/dcomm/impl/api_explain.h ===================================================== */
/* api_explain.h - the public read-out of the choice: every algorithm with its price. */
#ifndef DCOMMI_API_EXPLAIN_H
#define DCOMMI_API_EXPLAIN_H


/* Fill in the rows for a shape. `chosen` is what runs, `forced` whether somebody asked for it. */
static void dcommi_explain_rows(const dcommi_terrain *t, const dcommi_shape *s,
                                const dcommi_algo *chosen, bool forced, dcomm_alternative *rows,
                                int max, int *n_p)
{
    dcommi_price price, best = {.ps = 0};
    const dcommi_algo *algo;
    int n = 0;
    bool known = chosen != NULL && dcommi_choice_price(t, s, chosen, DCOMMI_PRICE_LIMIT,
                                                       DCOMMI_CHOICE_BUDGET, &best) >= 0;
    for (; (algo = dcommi_algo_at(s->coll, n)) != NULL; n++) {
        if (n >= max) {
            continue;
        }
        dcomm_alternative *row = &rows[n];
        memset(row, 0, sizeof *row);
        row->algo = algo->name;
        row->seconds = -1;
        row->chosen = algo == chosen;
        dcomm_status status =
            dcommi_choice_price(t, s, algo, DCOMMI_PRICE_LIMIT, DCOMMI_CHOICE_BUDGET, &price);
        if (status < 0) {
            snprintf(row->why, sizeof row->why, "%.190s", dcommi_message);
            continue;
        }
        row->seconds = 1e-12 * (double)price.ps;
        if (row->chosen) {
            continue;
        }
        if (forced) {
            snprintf(row->why, sizeof row->why, "%s is asked for", chosen->name);
        } else if (known && best.ps > 0) {
            snprintf(row->why, sizeof row->why, "%.2f times the price of %s",
                     (double)price.ps / (double)best.ps, chosen->name);
        } else {
            snprintf(row->why, sizeof row->why, "nothing to choose between");
        }
    }
    if (n_p != NULL) {
        *n_p = n;
    }
}

static dcomm_status dcommi_explain_with(dcommi_chooser *c, const dcommi_shape *s, const char *name,
                                        bool soft, dcomm_alternative *rows, int max, int *n_p)
{
    const dcommi_algo *chosen = NULL;
    if (max < 0 || (rows == NULL && max > 0)) {
        return dcommi_fail(DCOMM_ERR_INVALID, "rows is NULL, or max is %d", max);
    }
    DCOMMI_TRY(dcommi_algo_pick(s, name, soft, c, &chosen));
    bool forced = name != NULL && strcmp(name, chosen->name) == 0;
    dcommi_explain_rows(&c->terrain, s, chosen, forced, rows, max, n_p);
    return DCOMM_OK;
}

DCOMM_API dcomm_status dcomm_explain_all(dcomm_comm *comm, dcomm_coll coll, size_t count,
                                         dcomm_dtype dtype, dcomm_op op,
                                         const dcomm_coll_opts *opts, dcomm_alternative *rows,
                                         int max, int *n_p)
{
    dcommi_shape s;
    opts = opts != NULL ? opts : &dcommi_default_opts;
    DCOMMI_TRY(dcommi_shape_begin(comm, coll, count, dtype, op, 0, opts, &s));
    bool soft = opts->algo == NULL;
    pthread_mutex_lock(&comm->lock);
    dcomm_status status = dcommi_explain_with(comm->chooser, &s, soft ? comm->algo : opts->algo,
                                              soft, rows, max, n_p);
    pthread_mutex_unlock(&comm->lock);
    return status;
}

DCOMM_API dcomm_status dcomm_explain_on(const dcomm_tuning *tuning, int nranks, const int *hosts,
                                        dcomm_coll coll, size_t count, dcomm_dtype dtype,
                                        const dcomm_coll_opts *opts, dcomm_alternative *rows,
                                        int max, int *n_p)
{
    dcomm_tuning usual;
    dcommi_shape s;
    dcomm_comm fake; /* in name only: the checks of a call */
    memset(&fake, 0, sizeof fake);
    fake.size = nranks;
    if (nranks < 1) {
        return dcommi_fail(DCOMM_ERR_INVALID, "nranks is %d", nranks);
    }
    opts = opts != NULL ? opts : &dcommi_default_opts;
    if (tuning == NULL) {
        dcomm_tuning_default(&usual);
        tuning = &usual;
    }
    DCOMMI_TRY(dcommi_groups_of_hosts(hosts, nranks, &fake.groups));
    dcommi_chooser *c = dcommi_alloc(sizeof *c);
    dcomm_status status =
        c == NULL ? DCOMM_ERR_NO_MEMORY : dcommi_chooser_set(c, fake.groups, nranks, tuning);
    if (status >= 0) {
        status = dcommi_shape_begin(&fake, coll, count, dtype, DCOMM_SUM, 0, opts, &s);
    }
    if (status >= 0) {
        status = dcommi_explain_with(c, &s, opts->algo, false, rows, max, n_p);
    }
    dcommi_groups_free(&fake.groups);
    dcommi_free(c);
    return status;
}

DCOMM_API dcomm_status dcomm_comm_tuning(dcomm_comm *comm, dcomm_tuning *tuning)
{
    DCOMMI_TRY(dcommi_check_comm(comm));
    if (tuning == NULL) {
        return dcommi_fail(DCOMM_ERR_INVALID, "tuning is NULL");
    }
    pthread_mutex_lock(&comm->lock);
    *tuning = comm->chooser->tuning;
    pthread_mutex_unlock(&comm->lock);
    return DCOMM_OK;
}

#endif
/* ==== include/dcomm/impl/tune_measure.h ==================================================== */
/* tune_measure.h - measuring what things cost on a communicator, and agreeing on it: rank 0's times
 * count, all ranks take part in the same probes. */
#ifndef DCOMMI_TUNE_MEASURE_H
#define DCOMMI_TUNE_MEASURE_H

/* ==== include/dcomm/impl/tune_probe.h ====================================================== */
/* tune_probe.h - small ordinary plans whose times tell what things cost: pairs of ranks, all at
 * once or one alone, exchange messages and signals, and read and fold each other's memory. */
#ifndef DCOMMI_TUNE_PROBE_H
#define DCOMMI_TUNE_PROBE_H


enum dcommi_probe_kind {
    DCOMMI_PROBE_NOTHING,  /* a plan without steps */
    DCOMMI_PROBE_STEPS,    /* signals to itself */
    DCOMMI_PROBE_SIGNALS,  /* one each way */
    DCOMMI_PROBE_MESSAGES, /* one each way */
    DCOMMI_PROBE_FOLDS,    /* messages, folded as they arrive */
    DCOMMI_PROBE_BURSTS,   /* DCOMMI_PROBE_BURST messages each way */
    DCOMMI_PROBE_READS,    /* both copy what the other exposes */
    DCOMMI_PROBE_REDUCES,  /* both fold it with their own */
    DCOMMI_PROBE_COPY,     /* in their own memory */
    DCOMMI_PROBE_FOLD
};

#define DCOMMI_PROBE_BURST 8
#define DCOMMI_PROBE_SIGNATURE 0x74756e65u

typedef struct dcommi_probe {
    enum dcommi_probe_kind kind;
    int64_t len, trips;
} dcommi_probe;

/* ---- pairs ---- */

/* The i-th rank that is with `rank` at all levels above `level`, and in the group `group` of it
 * (-1: any); -1: there are not so many. */
static int dcommi_probe_member(const dcommi_groups *g, int rank, int level, int32_t group, int i)
{
    for (int r = 0; r < g->nranks; r++) {
        bool with = dcommi_groups_depth(g, rank, r) >= level;
        if (with && (group < 0 || dcommi_group_of(g, level, r) == group) && i-- == 0) {
            return r;
        }
    }
    return -1;
}

/* The rank that `rank` works with in probes of pairs that part at level `depth`; -1: it looks on.
 * Siblings pair up, first with second, third with fourth, and their ranks in order. */
static int dcommi_probe_partner(const dcommi_groups *g, int rank, int depth)
{
    int at = 0;
    if (depth == g->nlevels) {
        while (dcommi_probe_member(g, rank, depth, -1, at) != rank) {
            at++;
        }
        return dcommi_probe_member(g, rank, depth, -1, at ^ 1);
    }
    /* Groups are numbered by their lowest rank, so siblings come in the order of their numbers. */
    int32_t mine = dcommi_group_of(g, depth, rank), below = -1, above = -1;
    int before = 0;
    for (int r = 0; r < g->nranks; r++) {
        int32_t group = dcommi_group_of(g, depth, r);
        if (dcommi_groups_depth(g, rank, r) < depth) {
            continue;
        }
        if (group < mine && group > below) {
            below = group;
            before++;
        } else if (group > mine && above < 0) {
            above = group;
        }
    }
    int32_t other = before % 2 == 1 ? below : above;
    while (dcommi_probe_member(g, rank, depth, mine, at) != rank) {
        at++;
    }
    return other < 0 ? -1 : dcommi_probe_member(g, rank, depth, other, at);
}

/* ---- plans ---- */

static void dcommi_probe_messages(dcommi_builder *b, const dcommi_probe *p, dcomm_expr peer)
{
    int64_t each = p->kind == DCOMMI_PROBE_BURSTS ? DCOMMI_PROBE_BURST : 1;
    int64_t tag = dcommi_build_tags(b, p->trips * each);
    int64_t stage = p->kind == DCOMMI_PROBE_FOLDS ? dcommi_build_scratch(b, p->len) : 0;
    int d = dcommi_loop(b, 0, dcommi_const(p->trips));
    /* Each trip sends what the one before has received: memory that was just written, as in a
     * collective. Two buffers of `each` messages take turns. */
    dcomm_operand in =
        dcommi_at(DCOMM_SPACE_OUT, dcommi_modular(each * p->len, 0, d, 1, 2), p->len);
    for (int64_t i = 0; i < each; i++) {
        dcommi_send(b, 0, in, peer, dcommi_linear(tag + i, d, each), DCOMM_STEP_ASYNC);
    }
    for (int64_t i = 0; i < each; i++) {
        dcomm_expr order = dcommi_linear(tag + i, d, each);
        dcomm_expr into = dcommi_modular(each * p->len, 1, d, 1, 2);
        dcomm_operand out = dcommi_at(DCOMM_SPACE_OUT, dcommi_plus(into, i * p->len), p->len);
        if (p->kind == DCOMMI_PROBE_FOLDS) {
            dcommi_recv_reduce(b, 0, out, in, dcommi_msg(),
                               dcommi_span(DCOMM_SPACE_SCRATCH, stage, p->len), peer, order,
                               DCOMM_STEP_ASYNC);
        } else {
            dcommi_recv(b, 0, out, peer, order, DCOMM_STEP_ASYNC);
        }
    }
    dcommi_fence(b, 0);
    dcommi_end(b, 0);
}

/* What is folded lies where it has lain, like the inputs of a collective; what is copied was just
 * written, like its results. */
static void dcommi_probe_reads(dcommi_builder *b, const dcommi_probe *p, dcomm_expr peer)
{
    uint16_t slot = dcommi_build_slot(b), done = dcommi_build_counter(b);
    bool fold = p->kind == DCOMMI_PROBE_REDUCES;
    dcomm_operand src[2] = {dcommi_span(DCOMM_SPACE_IN, 0, p->len),
                            dcommi_peer(peer, slot, dcommi_const(0), p->len)};
    dcomm_operand out = dcommi_span(DCOMM_SPACE_OUT, fold ? 0 : p->len, p->len);
    if (!fold) {
        dcommi_copy(b, 0, dcommi_span(DCOMM_SPACE_OUT, 0, p->len), src[0], 0);
    }
    dcommi_expose(b, 0, fold ? src[0] : dcommi_span(DCOMM_SPACE_OUT, 0, p->len), slot, peer);
    if (fold) {
        dcommi_reduce(b, 0, out, src, 2, DCOMM_STEP_FINAL);
    } else {
        dcommi_copy(b, 0, out, src[1], 0);
    }
    dcommi_signal(b, 0, done, peer, dcommi_const(1));
    dcommi_await(b, 0, done, dcommi_const(1));
}

static void dcommi_probe_local(dcommi_builder *b, const dcommi_probe *p)
{
    dcomm_operand src[2] = {dcommi_span(DCOMM_SPACE_IN, 0, p->len),
                            dcommi_span(DCOMM_SPACE_OUT, 0, p->len)};
    dcommi_loop(b, 0, dcommi_const(p->trips));
    if (p->kind == DCOMMI_PROBE_STEPS) {
        dcommi_signal(b, 0, dcommi_build_counter(b), dcommi_const(b->head.rank), dcommi_const(1));
    } else if (p->kind == DCOMMI_PROBE_COPY) {
        dcommi_copy(b, 0, src[1], src[0], 0);
    } else {
        dcommi_reduce(b, 0, src[1], src, 2, DCOMM_STEP_FINAL);
    }
    dcommi_end(b, 0);
}

/* One rank's plan of a probe. partner -1: it looks on. */
static dcomm_status dcommi_probe_plan(const dcommi_probe *p, int rank, int nranks, int partner,
                                      dcomm_plan **plan_p)
{
    dcommi_builder b;
    bool local = p->kind == DCOMMI_PROBE_STEPS || p->kind >= DCOMMI_PROBE_COPY;
    dcommi_build_begin(&b, "tuning", rank, nranks, DCOMM_F32, DCOMM_SUM);
    b.head.in_bytes = p->len;
    b.head.out_bytes = 2 * p->len * DCOMMI_PROBE_BURST;
    if (local) {
        dcommi_probe_local(&b, p);
    } else if (partner >= 0 && p->kind >= DCOMMI_PROBE_READS) {
        dcommi_probe_reads(&b, p, dcommi_const(partner));
    } else if (partner >= 0 && p->kind >= DCOMMI_PROBE_MESSAGES) {
        dcommi_probe_messages(&b, p, dcommi_const(partner));
    } else if (partner >= 0 && p->kind == DCOMMI_PROBE_SIGNALS) {
        uint16_t counter = dcommi_build_counter(&b);
        int d = dcommi_loop(&b, 0, dcommi_const(p->trips));
        dcommi_signal(&b, 0, counter, dcommi_const(partner), dcommi_const(1));
        dcommi_await(&b, 0, counter, dcommi_linear(1, d, 1));
        dcommi_end(&b, 0);
    }
    return dcommi_build_finish(&b, plan_p);
}

/* Run a plan on a communicator that only we know of, whatever groups this thread has open. */
static dcomm_status dcommi_probe_run(dcomm_comm *comm, const dcomm_plan *plan, const void *in,
                                     void *out)
{
    pthread_mutex_lock(&comm->lock);
    dcommi_run *run = dcommi_run_new(comm);
    if (run == NULL) {
        pthread_mutex_unlock(&comm->lock);
        return DCOMM_ERR_NO_MEMORY;
    }
    run->plan = plan;
    run->in = in;
    run->out = out;
    run->signature.hash = DCOMMI_PROBE_SIGNATURE;
    run->signature.coll = DCOMM_COLL_PLAN;
    run->signature.dtype = plan->dtype;
    run->signature.op = plan->op;
    run->signature.algo = plan->name;
    run->p2p_peer = -1;
    run->seq = comm->next_seq++;
    pthread_mutex_unlock(&comm->lock);
    run->timeout_s = comm->timeout_s;
    run->blocking = true;
    dcommi_submit(comm->context, run);
    return dcommi_run_wait(run);
}

#endif

#define DCOMMI_TUNE_LONGEST (1 << 20)  /* bytes of a probe within a host */
#define DCOMMI_TUNE_FARTHEST (4 << 20) /* and between hosts */
#define DCOMMI_TUNE_ROUNDS 9           /* of short probes; of long ones DCOMMI_TUNE_FEW */
#define DCOMMI_TUNE_FEW 3
#define DCOMMI_TUNE_PROBES 40       /* of a round */
#define DCOMMI_TUNE_OVERHEAD_S 2e-7 /* within a host: what is longer was the scheduler */
#define DCOMMI_TUNE_FAR_S 0.04      /* after so long no longer message is tried between hosts */
#define DCOMMI_TUNE_NEAR_S 0.015    /* and no other round of long probes is run within one */

/* Probes that run in turn, round by round: what disturbs a core for a while then disturbs one round
 * of all of them, and not all of one. */
typedef struct dcommi_rounds {
    int n;
    struct dcommi_timed {
        dcommi_probe probe;
        dcomm_plan *plan;
        double took[DCOMMI_TUNE_ROUNDS];
    } timed[DCOMMI_TUNE_PROBES];
} dcommi_rounds;

typedef struct dcommi_tuner {
    dcomm_comm *comm; /* for the probes alone */
    dcomm_tuning tuning;
    uint8_t *in, *out;
    dcommi_rounds rounds;
    dcomm_status status;        /* the first error; nothing is run after it */
    double step, signal, empty; /* seconds, by rank 0's clock */
} dcommi_tuner;

static int64_t dcommi_ps(double seconds)
{
    double ps = seconds * 1e12 + 0.5;
    return !(ps > 0) ? 0 : ps > 1e15 ? (int64_t)1e15 : (int64_t)ps;
}

/* ---- probes ---- */

static int dcommi_tune_compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Put a probe into the rounds to come; returns where its time will be. */
static int dcommi_tune_add(dcommi_tuner *t, enum dcommi_probe_kind kind, int64_t len, int64_t trips,
                           int depth, bool alone)
{
    dcomm_comm *comm = t->comm;
    struct dcommi_timed *timed = &t->rounds.timed[t->rounds.n];
    bool pairs = kind >= DCOMMI_PROBE_SIGNALS && kind < DCOMMI_PROBE_COPY;
    int partner = pairs ? dcommi_probe_partner(comm->groups, comm->rank, depth) : -1;
    if (alone && comm->rank != 0 && partner != 0) {
        partner = -1;
    }
    timed->probe = (dcommi_probe){kind, len, trips};
    timed->plan = NULL;
    if (t->status >= 0) {
        t->status = dcommi_probe_plan(&timed->probe, comm->rank, comm->size, partner, &timed->plan);
    }
    return t->rounds.n++;
}

static bool dcommi_tune_goes_on(dcommi_tuner *t, double until);

/* Run the rounds, the first of which warms up; `until`: no more than one other after that. */
static void dcommi_tune_run(dcommi_tuner *t, int rounds, double until)
{
    dcommi_rounds *all = &t->rounds;
    int done = 0;
    for (int round = -1; round < rounds && t->status >= 0; round++) {
        if (round > 0 && until > 0 && !dcommi_tune_goes_on(t, until)) {
            break;
        }
        for (int i = 0; i < all->n && t->status >= 0; i++) {
            double start = dcommi_now();
            t->status = dcommi_probe_run(t->comm, all->timed[i].plan, t->in, t->out);
            all->timed[i].took[round < 0 ? 0 : round] = dcommi_now() - start;
        }
        done += round >= 0;
    }
    for (int i = 0; i < all->n; i++) {
        double *took = all->timed[i].took;
        dcommi_free(all->timed[i].plan);
        qsort(took, (size_t)done, sizeof *took, dcommi_tune_compare);
        took[0] = done > 0 ? took[(done - 1) / 2] / (double)all->timed[i].probe.trips : 0;
    }
    all->n = 0;
}

/* Seconds of one trip of a probe that has run: the median. */
static double dcommi_tune_time(const dcommi_tuner *t, int i)
{
    return t->rounds.timed[i].took[0];
}

/* Everybody gets rank 0's bytes. */
static void dcommi_tune_share(dcommi_tuner *t, void *data, size_t bytes)
{
    dcomm_comm *comm = t->comm;
    dcomm_plan *plan = NULL;
    dcommi_shape s = {.coll = DCOMM_COLL_BROADCAST,
                      .rank = comm->rank,
                      .nranks = comm->size,
                      .dtype = DCOMM_U8,
                      .count = bytes,
                      .in_place = true,
                      .lanes = 1};
    if (t->status >= 0) {
        t->status = dcommi_plan_make(&s, dcommi_algo_find(DCOMM_COLL_BROADCAST, "binomial"), &plan);
    }
    if (t->status >= 0) {
        t->status = dcommi_probe_run(comm, plan, data, data);
    }
    dcommi_free(plan);
}

/* Whether to go on to longer probes: rank 0 looks at its clock. */
static bool dcommi_tune_goes_on(dcommi_tuner *t, double until)
{
    uint64_t on = dcommi_now() < until;
    dcommi_tune_share(t, &on, sizeof on);
    return t->status >= 0 && on != 0;
}

/* ---- curves ---- */

/* No less for more bytes, however the measurements fell out. */
static void dcommi_tune_point(dcomm_curve *c, int64_t bytes, double seconds)
{
    if (c->n < DCOMM_CURVE_POINTS) {
        int64_t least = c->n > 0 ? c->ps[c->n - 1] : 0;
        c->bytes[c->n] = bytes;
        c->ps[c->n++] = dcommi_max64(dcommi_ps(seconds), least);
    }
}

static int64_t dcommi_tune_at(const dcomm_curve *c, int64_t bytes)
{
    dcommi_curve k = dcommi_curve_make(c);
    return dcommi_curve_at(&k, bytes);
}

/* The probes of a short message and of a signal, and what they say. */
static int dcommi_tune_add_short(dcommi_tuner *t, int depth, bool alone)
{
    int first = dcommi_tune_add(t, DCOMMI_PROBE_SIGNALS, 0, 8, depth, alone);
    dcommi_tune_add(t, DCOMMI_PROBE_MESSAGES, 8, 8, depth, alone);
    dcommi_tune_add(t, DCOMMI_PROBE_BURSTS, 8, 4, depth, alone);
    return first;
}

static double dcommi_tune_short(dcommi_tuner *t, dcomm_link *link, int first)
{
    double signal = dcommi_tune_time(t, first), message = dcommi_tune_time(t, first + 1);
    double burst = dcommi_tune_time(t, first + 2);
    /* Each message more is two steps more, and work at both ends, which both are. */
    double overhead = ((burst - message) / (DCOMMI_PROBE_BURST - 1) - 2 * t->step) / 2;
    double most = link->by_core ? DCOMMI_TUNE_OVERHEAD_S : message / 3;
    overhead = overhead < 0 ? 0 : overhead > most ? most : overhead;
    link->overhead_ps = dcommi_ps(overhead);
    link->alpha_ps = dcommi_ps(message - 2 * overhead - 3 * t->step);
    double tell = signal / 4 < overhead ? signal / 4 : overhead;
    link->tell_ps = dcommi_ps(tell);
    link->signal_ps = dcommi_ps(signal - tell - 2 * t->step);
    t->signal = signal;
    return message;
}

enum { DCOMMI_TUNE_KINDS = 4, DCOMMI_TUNE_SIZES = 7, DCOMMI_TUNE_SHORT_SIZES = 4 };
static const int64_t dcommi_tune_sizes[DCOMMI_TUNE_SIZES] = {512,   2048,   8192,   16384,
                                                             65536, 262144, 1 << 20};

/* Messages as they are and folded, memory read and folded. */
static int dcommi_tune_add_size(dcommi_tuner *t, int64_t len, int depth)
{
    int64_t trips = len <= 8192 ? 8 : len <= 65536 ? 4 : 2;
    int first = dcommi_tune_add(t, DCOMMI_PROBE_MESSAGES, len, trips, depth, false);
    dcommi_tune_add(t, DCOMMI_PROBE_FOLDS, len, trips, depth, false);
    dcommi_tune_add(t, DCOMMI_PROBE_READS, len, 1, depth, false);
    dcommi_tune_add(t, DCOMMI_PROBE_REDUCES, len, 1, depth, false);
    return first;
}

static void dcommi_tune_size(dcommi_tuner *t, dcomm_link *link, int64_t len, double least,
                             int first)
{
    double message = dcommi_tune_time(t, first), folded = dcommi_tune_time(t, first + 1);
    double around = 2 * t->signal + t->empty;
    double copied = 1e-12 * (double)dcommi_tune_at(&t->tuning.copy, len);
    double waits = link->eager_bytes > 0 && len > link->eager_bytes ? t->signal : 0;
    dcommi_tune_point(&link->message, len, message - least - waits);
    dcommi_tune_point(&link->fold, len, folded - message);
    if (len >= 2048) {
        dcommi_tune_point(&link->read, len, dcommi_tune_time(t, first + 2) - around - copied);
        dcommi_tune_point(&link->reduce, len, dcommi_tune_time(t, first + 3) - around);
    }
}

/* Within a host. */
static void dcommi_tune_near(dcommi_tuner *t, dcomm_link *link, int depth)
{
    int first = dcommi_tune_add_short(t, depth, false);
    for (int i = 0; i < DCOMMI_TUNE_SHORT_SIZES; i++) {
        dcommi_tune_add_size(t, dcommi_tune_sizes[i], depth);
    }
    dcommi_tune_run(t, DCOMMI_TUNE_ROUNDS, 0);
    double least = dcommi_tune_short(t, link, first);
    link->message.n = link->fold.n = link->read.n = link->reduce.n = 0;
    dcommi_tune_point(&link->message, 8, 0);
    dcommi_tune_point(&link->fold, 8, 0);
    for (int i = 0; i < DCOMMI_TUNE_SHORT_SIZES; i++) {
        dcommi_tune_size(t, link, dcommi_tune_sizes[i], least, first + 3 + i * DCOMMI_TUNE_KINDS);
    }
    for (int i = DCOMMI_TUNE_SHORT_SIZES; i < DCOMMI_TUNE_SIZES; i++) {
        dcommi_tune_add_size(t, dcommi_tune_sizes[i], depth);
    }
    dcommi_tune_run(t, DCOMMI_TUNE_FEW, dcommi_now() + DCOMMI_TUNE_NEAR_S);
    for (int i = DCOMMI_TUNE_SHORT_SIZES; i < DCOMMI_TUNE_SIZES; i++) {
        dcommi_tune_size(t, link, dcommi_tune_sizes[i], least,
                         (i - DCOMMI_TUNE_SHORT_SIZES) * DCOMMI_TUNE_KINDS);
    }
}

/* How many of rank 0's host have a partner on another one. */
static int dcommi_tune_crowd(const dcommi_groups *g)
{
    int n = 0;
    for (int r = 0; r < g->nranks; r++) {
        n += dcommi_group_of(g, 0, r) == 0 && dcommi_probe_partner(g, r, 0) >= 0;
    }
    return n;
}

static double dcommi_tune_far_time(dcommi_tuner *t, int64_t len, bool alone)
{
    int at = dcommi_tune_add(t, DCOMMI_PROBE_MESSAGES, len, len <= 65536 ? 4 : 1, 0, alone);
    dcommi_tune_run(t, DCOMMI_TUNE_FEW, 0);
    return dcommi_tune_time(t, at);
}

/* Between hosts: one pair alone, then all at once through the same interfaces. */
static void dcommi_tune_far(dcommi_tuner *t, dcomm_link *link)
{
    int64_t len = 4096, last = 0;
    int crowd = dcommi_tune_crowd(t->comm->groups);
    int first = dcommi_tune_add_short(t, 0, true);
    dcommi_tune_run(t, DCOMMI_TUNE_ROUNDS, 0);
    double least = dcommi_tune_short(t, link, first), until = dcommi_now() + DCOMMI_TUNE_FAR_S;
    link->message.n = link->shared.n = 0;
    link->eager_bytes = 0; /* what long messages wait for is in the times of the probes */
    dcommi_tune_point(&link->message, 8, 0);
    while (len <= DCOMMI_TUNE_FARTHEST && (len == 4096 || dcommi_tune_goes_on(t, until))) {
        dcommi_tune_point(&link->message, len, dcommi_tune_far_time(t, len, true) - least);
        last = len;
        len *= 4;
    }
    /* A shaped link lets a burst through faster than it can go on. The longest probe has seen the
     * rate; in a stream, shorter messages go no faster. */
    double slope = (double)link->message.ps[link->message.n - 1] / (double)last;
    for (int64_t i = 1; i < link->message.n; i++) {
        int64_t least_ps = (int64_t)(slope * (double)link->message.bytes[i]);
        link->message.ps[i] = dcommi_max64(link->message.ps[i], least_ps);
    }
    double each = 1e-12 * slope * (double)last;
    if (crowd > 1) {
        each = (dcommi_tune_far_time(t, last, false) - least) / crowd;
    }
    dcommi_tune_point(&link->shared, 0, 0);
    dcommi_tune_point(&link->shared, last, each);
}

/* Work in a rank's own memory, on all ranks at once, as in a collective. */
static void dcommi_tune_local(dcommi_tuner *t)
{
    static const int64_t sizes[] = {512, 8192, 65536, 1 << 20};
    enum { SIZES = sizeof sizes / sizeof sizes[0] };
    dcommi_tune_add(t, DCOMMI_PROBE_NOTHING, 0, 1, 0, false);
    dcommi_tune_add(t, DCOMMI_PROBE_STEPS, 0, 64, 0, false);
    for (int i = 0; i < SIZES; i++) {
        dcommi_tune_add(t, DCOMMI_PROBE_COPY, sizes[i], sizes[i] <= 8192 ? 8 : 1, 0, false);
        dcommi_tune_add(t, DCOMMI_PROBE_FOLD, sizes[i], sizes[i] <= 8192 ? 8 : 1, 0, false);
    }
    dcommi_tune_run(t, DCOMMI_TUNE_ROUNDS, dcommi_now() + DCOMMI_TUNE_NEAR_S / 4);
    t->empty = dcommi_tune_time(t, 0);
    t->step = dcommi_tune_time(t, 1) - t->empty / 64;
    t->step = t->step > 0 ? t->step : 0;
    t->tuning.step_ps = dcommi_ps(t->step);
    t->tuning.call_ps = dcommi_ps(t->empty);
    t->tuning.copy.n = t->tuning.fold.n = 0;
    for (int i = 0; i < SIZES; i++) {
        double around = t->empty / (sizes[i] <= 8192 ? 8 : 1) + t->step;
        dcommi_tune_point(&t->tuning.copy, sizes[i], dcommi_tune_time(t, 2 + 2 * i) - around);
        dcommi_tune_point(&t->tuning.fold, sizes[i], dcommi_tune_time(t, 3 + 2 * i) - around);
    }
}

/* ---- all of it ---- */

/* Run the probes; every rank returns, with rank 0's findings on rank 0. */
static void dcommi_tune_probe_all(dcommi_tuner *t)
{
    const dcommi_groups *g = t->comm->groups;
    int known = -1;
    size_t most = 2 * (t->comm->nhosts > 1 ? DCOMMI_TUNE_FARTHEST : DCOMMI_TUNE_LONGEST);
    t->in = dcommi_alloc(most);
    t->out = dcommi_alloc(most);
    if (t->in == NULL || t->out == NULL) {
        t->status = DCOMM_ERR_NO_MEMORY;
        return;
    }
    dcommi_tune_local(t);
    for (int depth = g->nlevels; depth >= 0; depth--) {
        int kind = depth < g->nlevels ? g->kind[depth] : (int)DCOMM_LINK_NEAR;
        if (dcommi_probe_partner(g, 0, depth) < 0) {
            continue; /* rank 0 has nobody there */
        }
        if (kind == DCOMM_LINK_HOST) {
            dcommi_tune_far(t, &t->tuning.link[kind]);
            t->tuning.link[kind].fold = t->tuning.fold;
        } else {
            dcommi_tune_near(t, &t->tuning.link[kind], depth);
            /* Until a longer way is measured, it is taken to cost what this one does. */
            int first = known < 0 ? DCOMM_LINK_NEAR : kind;
            for (int k = DCOMM_LINK_HOST + 1; k <= first; k++) {
                t->tuning.link[k] = t->tuning.link[kind];
            }
            known = kind;
        }
    }
    snprintf(t->tuning.source, sizeof t->tuning.source, "measured by %d ranks on %d host%s",
             t->comm->size, t->comm->nhosts, t->comm->nhosts == 1 ? "" : "s");
}

/* What rank 0 of this process has measured before, by who was where. */
typedef struct dcommi_tuned {
    struct dcommi_tuned *next;
    uint64_t hosts;
    dcomm_tuning tuning;
} dcommi_tuned;

static pthread_mutex_t dcommi_tuned_lock = PTHREAD_MUTEX_INITIALIZER;
static dcommi_tuned *dcommi_tuned_list;

static uint64_t dcommi_tuned_key(const dcomm_comm *comm)
{
    const dcommi_groups *g = comm->groups;
    uint64_t key = dcommi_mix((uint64_t)g->nlevels, (uint64_t)comm->size);
    for (int r = 0; r < comm->size; r++) {
        for (const char *c = comm->members[r].hostname; *c != 0; c++) {
            key = dcommi_mix(key, (uint64_t)*c);
        }
        for (int l = 0; l < g->nlevels; l++) {
            key = dcommi_mix(key, (uint64_t)dcommi_group_of(g, l, r) << 8 | g->kind[l]);
        }
    }
    return key;
}

static bool dcommi_tuned_find(uint64_t key, dcomm_tuning *tuning)
{
    bool found = false;
    pthread_mutex_lock(&dcommi_tuned_lock);
    for (dcommi_tuned *k = dcommi_tuned_list; k != NULL && !found; k = k->next) {
        if (k->hosts == key) {
            *tuning = k->tuning;
            found = true;
        }
    }
    pthread_mutex_unlock(&dcommi_tuned_lock);
    return found;
}

static void dcommi_tuned_add(uint64_t key, const dcomm_tuning *tuning)
{
    dcommi_tuned *k = dcommi_alloc(sizeof *k);
    if (k != NULL) {
        pthread_mutex_lock(&dcommi_tuned_lock);
        k->hosts = key;
        k->tuning = *tuning;
        k->next = dcommi_tuned_list;
        dcommi_tuned_list = k;
        pthread_mutex_unlock(&dcommi_tuned_lock);
    }
}

/* All ranks of comm take rank 0's numbers: `given` there, else those of its process or its file,
 * else what is measured now. Runs on a communicator of its own, so that nothing of it shows. */
static dcomm_status dcommi_comm_tune(dcomm_comm *comm, const dcomm_tuning *given, bool again)
{
    if (comm->size == 1) {
        return DCOMM_OK;
    }
    dcommi_tuner *t = dcommi_alloc(sizeof *t);
    int *ranks = dcommi_calloc((size_t)comm->size, sizeof *ranks);
    dcomm_status status = t == NULL || ranks == NULL ? DCOMM_ERR_NO_MEMORY : DCOMM_OK;
    for (int r = 0; status >= 0 && r < comm->size; r++) {
        ranks[r] = r;
    }
    if (status >= 0) {
        uint64_t salt = dcommi_mix(dcommi_comm_next_child(comm), 0x74756e696e67u);
        status = dcommi_comm_derive(comm, ranks, comm->size, salt, &t->comm);
    }
    if (status < 0) {
        dcommi_free(ranks);
        dcommi_free(t);
        return status;
    }
    struct {
        uint64_t measure;
        dcomm_tuning tuning;
    } word = {1, {.step_ps = 0}};
    uint64_t key = dcommi_tuned_key(comm);
    const char *path = getenv("DCOMM_TUNE_FILE");
    if (comm->rank == 0 && given != NULL) {
        word.tuning = *given;
        word.measure = 0;
    } else if (comm->rank == 0 && !again && path != NULL && path[0] != 0) {
        word.measure = dcomm_tuning_load(path, &word.tuning) < 0;
        if (word.measure != 0) {
            dcommi_log(DCOMMI_LOG_WARN, "DCOMM_TUNE_FILE: %s; measuring instead", dcommi_message);
        }
    } else if (comm->rank == 0 && !again) {
        word.measure = !dcommi_tuned_find(key, &word.tuning);
    }
    dcommi_tune_share(t, &word, sizeof word);
    if (t->status >= 0 && word.measure != 0) {
        dcomm_tuning_default(&t->tuning);
        dcommi_tune_probe_all(t);
        word.tuning = t->tuning;
        dcommi_tune_share(t, &word, sizeof word);
        if (t->status >= 0 && comm->rank == 0) {
            dcommi_tuned_add(key, &word.tuning);
        }
    }
    status = t->status;
    pthread_mutex_lock(&comm->lock);
    if (status >= 0) {
        status = dcommi_chooser_set(comm->chooser, comm->groups, comm->size, &word.tuning);
        dcommi_cache_clear(comm);
    }
    pthread_mutex_unlock(&comm->lock);
    dcomm_comm_destroy(&t->comm);
    dcommi_free(t->in);
    dcommi_free(t->out);
    dcommi_free(t);
    dcommi_free(ranks);
    return status;
}

/* At the end of creation. What fails here has failed the communicator: ranks that choose by
 * different numbers must not meet. */
static void dcommi_comm_tune_new(dcomm_comm *comm)
{
    dcomm_status status = comm->tunes ? dcommi_comm_tune(comm, NULL, false) : DCOMM_OK;
    if (status < 0) {
        char text[DCOMMI_MESSAGE_MAX];
        snprintf(text, sizeof text, "%s", dcommi_message);
        dcommi_token_take(comm->context);
        dcommi_poison(comm, status, -1, text);
        dcommi_token_release(comm->context);
    }
}

DCOMM_API dcomm_status dcomm_comm_tune(dcomm_comm *comm, const dcomm_tuning *tuning)
{
    DCOMMI_TRY(dcommi_check_comm(comm));
    DCOMMI_TRY(dcommi_check_no_group("dcomm_comm_tune"));
    return dcommi_comm_tune(comm, tuning, true);
}

#endif
#endif

/* ==== helper macros end here =========================================================== */
#undef DCOMMI_AHEAD_MIN
#undef DCOMMI_ALIKE_ALL
#undef DCOMMI_ALIKE_MIN
#undef DCOMMI_ALIKE_SAMPLE
#undef DCOMMI_AVERAGE_BLOCK
#undef DCOMMI_AVERAGE_GROUP
#undef DCOMMI_AVX2_FLOAT
#undef DCOMMI_AVX2_OP
#undef DCOMMI_AVX512_FLOAT
#undef DCOMMI_AVX512_OP
#undef DCOMMI_BOOT_LINGER_S
#undef DCOMMI_BOOT_PORT_S
#undef DCOMMI_BUCKETS
#undef DCOMMI_BYTE_VALUES
#undef DCOMMI_CACHE_BUCKETS
#undef DCOMMI_CACHE_LINE
#undef DCOMMI_CACHE_PLANS
#undef DCOMMI_CALL_DEPTH
#undef DCOMMI_CARD_MAGIC
#undef DCOMMI_CARD_VERSION
#undef DCOMMI_CHECK_ANY
#undef DCOMMI_CHECK_BIT
#undef DCOMMI_CHECK_BUDGET
#undef DCOMMI_CHECK_BYTES
#undef DCOMMI_CHECK_DIVIDED
#undef DCOMMI_CHECK_EVERY
#undef DCOMMI_CHECK_LOCAL
#undef DCOMMI_CHECK_ORDERED
#undef DCOMMI_CHECK_OWN
#undef DCOMMI_CHECK_RANKS
#undef DCOMMI_CHECK_REPEAT
#undef DCOMMI_CHECK_RESULT
#undef DCOMMI_CHECK_STAGES
#undef DCOMMI_CHECK_SUBPLANS
#undef DCOMMI_CHOICES
#undef DCOMMI_CHOICE_BUDGET
#undef DCOMMI_CHOICE_MOST
#undef DCOMMI_CHOICE_UNKNOWN
#undef DCOMMI_CHUNK_DEFAULT
#undef DCOMMI_COPY_MIN
#undef DCOMMI_CREDIT_EVERY
#undef DCOMMI_DIVIDE
#undef DCOMMI_F32_NAN
#undef DCOMMI_F64_NAN
#undef DCOMMI_FOLD_MAX
#undef DCOMMI_FOLD_ROW
#undef DCOMMI_FOLD_TABLE
#undef DCOMMI_GOODBYE_S
#undef DCOMMI_HD
#undef DCOMMI_HEADER_MAX
#undef DCOMMI_HISTORY
#undef DCOMMI_HOST_ID_MAX
#undef DCOMMI_HOST_MAX
#undef DCOMMI_ID_ADDRS
#undef DCOMMI_ID_CHECK
#undef DCOMMI_ID_FIRST
#undef DCOMMI_ID_SECRET
#undef DCOMMI_ID_VERSION
#undef DCOMMI_LEVELS_MAX
#undef DCOMMI_LIKELY
#undef DCOMMI_LINK_FIELDS
#undef DCOMMI_MESSAGE_MAX
#undef DCOMMI_MODEL_MOST
#undef DCOMMI_PEER_READ_MIN
#undef DCOMMI_PMIX_ANY_RANK
#undef DCOMMI_PMI_LINE
#undef DCOMMI_PMI_NAME
#undef DCOMMI_PORT_ADD
#undef DCOMMI_PORT_BLOCK
#undef DCOMMI_PORT_DONE
#undef DCOMMI_PORT_FLOAT
#undef DCOMMI_PORT_FOLD
#undef DCOMMI_PORT_INT
#undef DCOMMI_PORT_LESS
#undef DCOMMI_PORT_MORE
#undef DCOMMI_PORT_MUL
#undef DCOMMI_PORT_SAME
#undef DCOMMI_PORT_SCALE_I32
#undef DCOMMI_PORT_SCALE_I64
#undef DCOMMI_PORT_SCALE_I8
#undef DCOMMI_PORT_SCALE_U32
#undef DCOMMI_PORT_SCALE_U64
#undef DCOMMI_PORT_SCALE_U8
#undef DCOMMI_PORT_U8
#undef DCOMMI_PORT_UINT
#undef DCOMMI_PRICE_BUDGET
#undef DCOMMI_PRICE_LIMIT
#undef DCOMMI_PRINTF
#undef DCOMMI_PROBE_BURST
#undef DCOMMI_PROBE_SIGNATURE
#undef DCOMMI_PULL_BLOCK
#undef DCOMMI_QUERY_AFTER
#undef DCOMMI_QUERY_EVERY
#undef DCOMMI_RDV_ATTEMPT_S
#undef DCOMMI_RDV_BLOB_MAX
#undef DCOMMI_RDV_CHALLENGE_FRAME
#undef DCOMMI_RDV_CHALLENGE_LEN
#undef DCOMMI_RDV_FAREWELL_S
#undef DCOMMI_RDV_GUESTS_MAX
#undef DCOMMI_RDV_HANDSHAKE_S
#undef DCOMMI_RDV_HEADER
#undef DCOMMI_RDV_HELLO_FRAME
#undef DCOMMI_RDV_HELLO_LEN
#undef DCOMMI_RDV_KEY
#undef DCOMMI_RDV_LIB_VERSION
#undef DCOMMI_RDV_MAGIC
#undef DCOMMI_RDV_NONCE
#undef DCOMMI_RDV_OUT_MAX
#undef DCOMMI_RDV_REASON_MAX
#undef DCOMMI_RDV_REFUSED_S
#undef DCOMMI_RDV_RESULT_MAX
#undef DCOMMI_RDV_RETURN_S
#undef DCOMMI_RDV_SIZE_MAX
#undef DCOMMI_RDV_STRAGGLER_S
#undef DCOMMI_RDV_TAG
#undef DCOMMI_RDV_WELCOME_FRAME
#undef DCOMMI_RDV_WELCOME_LEN
#undef DCOMMI_RDV_WIRE_VERSION
#undef DCOMMI_RTS_BYTES
#undef DCOMMI_SECRET_MAX
#undef DCOMMI_SHA256_BLOCK
#undef DCOMMI_SHA256_BYTES
#undef DCOMMI_SIMD_AHEAD
#undef DCOMMI_SIMD_FLOAT
#undef DCOMMI_SIMD_FOLD
#undef DCOMMI_SIMD_GET
#undef DCOMMI_SIMD_INTS
#undef DCOMMI_SIMD_PAIR
#undef DCOMMI_SIMD_PAIR_END
#undef DCOMMI_SIMD_PAIR_OP
#undef DCOMMI_SIMD_PUT
#undef DCOMMI_SIMD_PUT4
#undef DCOMMI_SIM_SLAB
#undef DCOMMI_SLOPE_MOST
#undef DCOMMI_SOCK_ADDRS
#undef DCOMMI_SOCK_SLICE_MS
#undef DCOMMI_SOCK_TEXT
#undef DCOMMI_STRAYS_MAX
#undef DCOMMI_STRAY_BYTES_MAX
#undef DCOMMI_STREAM_MIN
#undef DCOMMI_TEXT_MAX
#undef DCOMMI_TREE_CHILDREN
#undef DCOMMI_TRY
#undef DCOMMI_TUNE_FARTHEST
#undef DCOMMI_TUNE_FAR_S
#undef DCOMMI_TUNE_FEW
#undef DCOMMI_TUNE_LONGEST
#undef DCOMMI_TUNE_NEAR_S
#undef DCOMMI_TUNE_OVERHEAD_S
#undef DCOMMI_TUNE_PROBES
#undef DCOMMI_TUNE_ROUNDS
#undef DCOMMI_TUNING_FIELDS
#undef DCOMMI_TUNING_LINE
#undef DCOMMI_TURN
#undef DCOMMI_UCX_AM_ID
#undef DCOMMI_UCX_EAGER_LOCAL
#undef DCOMMI_UCX_EAGER_NET
#undef DCOMMI_UCX_SEG
#undef DCOMMI_UCX_SHM_NEED
#undef DCOMMI_UCX_SLAB
#undef DCOMMI_UNLIKELY
#undef DCOMMI_UNUSED
#undef DCOMMI_USER_BLOCK
#undef DCOMMI_WINDOW
#undef DCOMMI_avx2_INLINE
#undef DCOMMI_avx2_TARGET
#undef DCOMMI_avx512_INLINE
#undef DCOMMI_avx512_TARGET
