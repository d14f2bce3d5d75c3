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

#include "base.h"

#ifdef __cplusplus
extern "C" {
#endif

#define DCOMM_LOOP_DEPTH 3         /* loops may nest this deep within one lane */
#define DCOMM_PLAN_MAX_LANES 64    /* lanes of one plan */
#define DCOMM_PLAN_MAX_SLOTS 1024  /* exposed regions of one run */
#define DCOMM_PLAN_MAX_WORDS 65536 /* words of one run */
#define DCOMM_ALL_PEERS (-1)       /* EXPOSE and SIGNAL: every other rank of the plan */

/* Memory that an operand lies in. */
typedef enum dcomm_space {
    DCOMM_SPACE_NONE = 0,    /* no operand */
    DCOMM_SPACE_IN = 1,      /* the caller's input, read only */
    DCOMM_SPACE_OUT = 2,     /* the caller's output */
    DCOMM_SPACE_SCRATCH = 3, /* scratch_bytes, undefined at the start of each run */
    DCOMM_SPACE_WORDS = 4,   /* nwords 64-bit words, zero at the start of each run */
    DCOMM_SPACE_PEER = 5,    /* what another rank has exposed in a slot */
    DCOMM_SPACE_MSG = 6      /* RECV_REDUCE only: the message being received */
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

/* A number that may depend on loops: dcomm_expr_kind has the formulas. */
typedef struct dcomm_expr {
    uint8_t kind;                   /* dcomm_expr_kind */
    int64_t add;                    /* added to all else */
    int64_t scale;                  /* multiplies x, or what the table has there */
    int64_t post[DCOMM_LOOP_DEPTH]; /* multiplies the loops' indices, outside x */
    int64_t base;                   /* constant part of x */
    int64_t coef[DCOMM_LOOP_DEPTH]; /* multiplies the loops' indices in x */
    int64_t mod;                    /* x is taken modulo this; 0: as it is */
    int64_t first;                  /* TABLE, WORD: where this expression's part begins */
} dcomm_expr;

/* `repeat` consecutive pieces of memory (0 means 1). Piece r begins at offset + r*stride and has
 *   min(max(length, 0), max_length, clip > 0 ? max(clip - (offset + r*stride), 0) : infinity)
 * bytes, so that a partition into equal blocks needs no special last block. Where the length is a
 * WORD, piece r takes that of the r-th word behind it. In PEER space, piece r
 * belongs to rank (peer + r) mod nranks and offsets count from the start of what it exposed.
 * max_length is the static maximum: it sizes scratch, bounds what may be received, prices the
 * step. */
typedef struct dcomm_operand {
    uint8_t space;      /* dcomm_space */
    uint16_t slot;      /* PEER: which of that rank's exposed slots */
    uint32_t repeat;    /* number of pieces; 0 is taken as 1 */
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
 *   RECV         dst <- rank `peer`; the length that arrived goes to words[word + value] if
 *                word >= 0; without a word, a length other than dst's is an error
 *   RECV_REDUCE  dst <- fold(src...), exactly one of which is in MSG space (the arriving message);
 *                `stage` is scratch that the engine may receive into; dst may equal any src
 *   COPY         dst <- src[0]; from PEER space it reads the other rank's memory
 *   EXPOSE       offers src[0] to rank `peer` (or DCOMM_ALL_PEERS) as `slot` of this rank; memory
 *                must stay until the readers have said, by SIGNAL, that they are done
 * Transforms:
 *   REDUCE       dst <- fold(src...) in operand order; PEER operands are read where they lie.
 *                `stage` unused: the engine brings its own blocks
 *   ENCODE       dst <- codec.encode(src[0]); encoded length -> words[word + value]
 *                (without a word, it is all of dst). The first
 *                element of src[0] is number `index` for the codec, and this is its encoding number
 *                `slot`
 *   DECODE       dst <- fold(codec.decode(src...)) in operand order; `index` is dst's
 *   RECODE       dst <- codec.encode(fold(codec.decode(src...))), otherwise like ENCODE. `stage` is
 *                scratch as long as what is decoded
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
 *                table[group + r]; its tags are shifted by `tag`, its counters by `slot` + `value`,
 *                its exposed slots by `word` (0 if that is negative) + `peer`, the numbers of the
 *                elements that it codes by `index`. All of the group
 *                shift alike. A call that may run while a peer is still in another, or has gone on
 *                to it, needs tags, counters and slots that are not that other one's: in a loop,
 *                the expressions give each iteration its own
 *
 * A counter belongs to the run, is 64 bit, only grows, and starts at 0. FINAL on a folding step
 * says that it completes the reduction, which is where DCOMM_AVG divides. Two flags change no
 * result, only how memory is used: FORWARD, that the step behind it passes on just what this one
 * stores, so that both may be done in one pass (a SEND behind a RECV_REDUCE, a COPY behind a
 * REDUCE); RESULT on a step that stores, that no later step but such a SEND reads it, so that much
 * of it may be stored past the caches. */
#define DCOMM_STEP_TABLE(X)       \
    X(SEND, "send")               \
    X(RECV, "recv")               \
    X(RECV_REDUCE, "recv_reduce") \
    X(COPY, "copy")               \
    X(EXPOSE, "expose")           \
    X(REDUCE, "reduce")           \
    X(ENCODE, "encode")           \
    X(DECODE, "decode")           \
    X(RECODE, "recode")           \
    X(COMPUTE, "compute")         \
    X(SIGNAL, "signal")           \
    X(WAIT, "wait")               \
    X(FENCE, "fence")             \
    X(LOOP, "loop")               \
    X(END, "end")                 \
    X(CALL, "call")

/* DCOMM_STEP_SEND and so on: the kinds of DCOMM_STEP_TABLE. */
typedef enum dcomm_step_kind {
#define DCOMMI_STEP_ENUM(kind, name) DCOMM_STEP_##kind,
    DCOMM_STEP_TABLE(DCOMMI_STEP_ENUM)
#undef DCOMMI_STEP_ENUM
        DCOMM_STEP_KIND_COUNT /* number of kinds */
} dcomm_step_kind;

#define DCOMM_STEP_ASYNC 1u   /* start, and let the lane go on; see FENCE */
#define DCOMM_STEP_FINAL 2u   /* this fold completes the reduction */
#define DCOMM_STEP_FORWARD 4u /* the next step sends or copies this one's dst */
#define DCOMM_STEP_RESULT 8u  /* this rank does not read dst again */

/* A step of a lane. */
typedef struct dcomm_step {
    uint8_t kind;      /* dcomm_step_kind */
    uint8_t flags;     /* DCOMM_STEP_ASYNC | FINAL | FORWARD | RESULT */
    uint16_t slot;     /* EXPOSE: slot; SIGNAL, WAIT: counter; CALL: first counter; ENCODE, RECODE:
                          which encoding of these elements it is, from 0 */
    uint16_t kernel;   /* COMPUTE: index into plan.kernels */
    uint32_t src;      /* first source operand, an index into plan.operands */
    uint32_t nsrc;     /* number of source operands, repeats not unfolded */
    uint32_t body;     /* LOOP: steps between LOOP and END; END: the same number */
    uint32_t sub;      /* CALL: index into plan.subs */
    uint32_t group;    /* CALL: index into plan.table of the first of subs[sub]->nranks ranks */
    int32_t word;      /* RECV, ENCODE, RECODE: the word that takes the length, -1 for none */
    dcomm_operand dst; /* destination */
    dcomm_operand stage; /* scratch of RECV_REDUCE and RECODE */
    dcomm_expr peer;     /* rank in the plan; CALL: added to its first slot */
    dcomm_expr tag;      /* in [0, plan.ntags); (source, destination, tag) is unique within a run */
    dcomm_expr value; /* SIGNAL, WAIT, LOOP; CALL: added to its first counter; RECV, ENCODE, RECODE:
                         added to `word` */
    dcomm_expr index; /* the codec's steps: number of the first element; CALL: added to those */
} dcomm_step;

/* A run of steps. */
typedef struct dcomm_lane {
    uint32_t first; /* index into plan.steps */
    uint32_t count; /* steps */
} dcomm_lane;

/* Facts that a codec needs beside the bytes of a step. */
typedef struct dcomm_codec_place {
    uint64_t first;   /* number of the first element */
    uint32_t round;   /* ENCODE, RECODE: which encoding of these elements within the run */
    uint32_t divisor; /* what is decoded is divided by this: 1, or the ranks of an average */
} dcomm_codec_place;

/* Encoding for ENCODE, DECODE and RECODE: all lengths in bytes. encode returns the encoded length
 * (at most dst_len) in *encoded; decode must fill dst exactly with the fold of what the sources
 * decode to, in their order.
 * `user` is what the run brings along - the key of its random numbers, its workspace, what it keeps
 * of errors - or else plan.codec_user. DCOMM_ERR_CORRUPT when the bytes to decode are malformed. */
typedef struct dcomm_plan_codec {
    const char *name; /* for people */
    dcomm_status (*encode)(void *user, const dcomm_codec_place *place, const void *src,
                           size_t src_len, void *dst, size_t dst_len, size_t *encoded);
    dcomm_status (*decode)(void *user, const dcomm_codec_place *place, const void *const *src,
                           const size_t *src_len, size_t nsrc, void *dst, size_t dst_len);
    /* All of RECODE at once; `stage` is its scratch. NULL: decode into stage, then encode. */
    dcomm_status (*recode)(void *user, const dcomm_codec_place *place, const void *const *src,
                           const size_t *src_len, size_t nsrc, void *stage, size_t stage_len,
                           void *dst, size_t dst_len, size_t *encoded);
} dcomm_plan_codec;

/* Compute dst from nsrc sources, for COMPUTE; lengths in bytes. */
typedef dcomm_status (*dcomm_plan_kernel)(void *user, void *dst, size_t dst_len,
                                          const void *const *src, const size_t *src_len,
                                          size_t nsrc);

/* One rank's part of one operation. */
typedef struct dcomm_plan dcomm_plan;

/* The next stage: a pure function of the words of the stage before, of which it may only use such
 * as every rank holds alike (produced by an all-gather or all-reduce in that stage). Words are
 * carried over; scratch is not. Returns NULL with *status = DCOMM_OK when nothing is left to do.
 * The engine gives each plan back through `release` of the plan that made it. */
typedef const dcomm_plan *(*dcomm_plan_next)(void *user, const uint64_t *words, uint32_t nwords,
                                             dcomm_status *status);

struct dcomm_plan {
    const char *name;                                            /* algorithm, for people */
    int32_t rank;                                                /* whose part this is */
    int32_t nranks;                                              /* ranks of the operation */
    uint32_t dtype;                                              /* dcomm_dtype of all folds */
    uint32_t op;                                                 /* dcomm_op of all folds */
    uint32_t nlanes, nsteps, noperands, ntable, nsubs, nkernels; /* lengths of the arrays below */
    uint32_t nwords, ncounters, nslots; /* words, counters and slots of a run */
    uint32_t ntags;                /* tags are in [0, ntags), those of called sub-plans included */
    const dcomm_lane *lanes;       /* [nlanes] */
    const dcomm_step *steps;       /* [nsteps], lane by lane */
    const dcomm_operand *operands; /* [noperands] sources of steps */
    const int64_t *table;          /* [ntable] for expressions and the groups of calls */
    const dcomm_plan *const *subs; /* [nsubs] plans that CALL runs */
    const dcomm_plan_kernel *kernels; /* [nkernels] functions that COMPUTE calls */
    void *kernel_user;                /* passed to kernels */
    const dcomm_plan_codec *codec;    /* NULL: no step encodes or decodes */
    void *codec_user;                 /* passed to the codec, unless the run brings its own */
    /* What the model takes the codec for, in 1/1024: a length known at run time of its maximum; the
     * time to encode, and to decode each source, of that to copy as many bytes; of that time, what
     * encodings take whose `slot` is not 0. 0: 1024. */
    uint32_t codec_length, codec_encode, codec_decode, codec_later;
    bool codec_linear;    /* encodings are folded before they are decoded */
    bool codec_partly;    /* this rank's ENCODE steps leave some elements out */
    bool scratch_on_host; /* even where input and output are a device's memory */
    bool scratch_shared;  /* it is exposed: had better be memory that peers on the host map */
    /* Elements that this rank's RECODE steps encode; none where these are among those that its
     * ENCODE steps encode (partly), or known at run time only (coded_sparse). */
    int64_t recoded_first, recoded_count;
    int64_t in_bytes, out_bytes; /* how much of IN and OUT the plan may touch */
    int64_t scratch_bytes;       /* size of SCRATCH */
    dcomm_plan_next next;        /* NULL: this is the last stage */
    void (*release)(void *user, const dcomm_plan *plan); /* takes back what next returned */
    void *next_user;                                     /* passed to next and release */
};

/* Operations: of calls, and those that the checker holds a set of plans to. */
typedef enum dcomm_coll {
    DCOMM_COLL_ALLREDUCE = 0,       /* dcomm_allreduce */
    DCOMM_COLL_REDUCE_SCATTER = 1,  /* dcomm_reduce_scatter */
    DCOMM_COLL_ALLGATHER = 2,       /* dcomm_allgather */
    DCOMM_COLL_BROADCAST = 3,       /* dcomm_broadcast */
    DCOMM_COLL_REDUCE = 4,          /* dcomm_reduce */
    DCOMM_COLL_GATHER = 5,          /* dcomm_gather */
    DCOMM_COLL_SCATTER = 6,         /* dcomm_scatter */
    DCOMM_COLL_ALLTOALL = 7,        /* dcomm_alltoall */
    DCOMM_COLL_REDUCE_SCATTERV = 8, /* dcomm_reduce_scatterv */
    DCOMM_COLL_ALLGATHERV = 9,      /* dcomm_allgatherv */
    DCOMM_COLL_GATHERV = 10,        /* dcomm_gatherv */
    DCOMM_COLL_SCATTERV = 11,       /* dcomm_scatterv */
    DCOMM_COLL_ALLTOALLV = 12,      /* dcomm_alltoallv */
    DCOMM_COLL_BARRIER = 13,        /* dcomm_barrier */
    DCOMM_COLL_SEND = 14,           /* dcomm_send */
    DCOMM_COLL_RECV = 15,           /* dcomm_recv */
    DCOMM_COLL_PLAN = 16,           /* a plan of the caller's own */
    DCOMM_COLL_COUNT = 17           /* number of operations */
} dcomm_coll;
/* Return the name of an operation ("all-reduce"); "?" for an unknown one. */
DCOMM_API const char *dcomm_coll_name(dcomm_coll coll);

/* The operation that a set of plans should compute. For the v-collectives, counts and displacements
 * are in elements; matrices are row-major [rank][peer]. Unused fields are zero. */
typedef struct dcomm_check_spec {
    dcomm_coll coll; /* DCOMM_COLL_PLAN: only safety (order, matching, deadlock), not the result */
    size_t count;    /* elements: the operation's own `count` argument */
    dcomm_dtype dtype;    /* of the elements */
    int root;             /* rank that sends or gets all, if the operation has one */
    bool in_place;        /* input and output are the same buffer */
    bool rank_order;      /* folds must combine contributions in rank order */
    const size_t *counts; /* v: [nranks], all-to-all-v: [nranks][nranks], sent by row to column */
    const size_t *displs; /* v: [nranks] in the concatenated buffer; NULL: packed */
    const int *hosts;     /* [nranks], any numbers, equal where ranks share a host; NULL: all do.
                             Which plans are made depends on it, what they must compute does not */
} dcomm_check_spec;

/* Write one rank's plan as text into buf (at most len bytes with the ending NUL); *needed_p, if
 * not NULL, is the length it wants. */
DCOMM_API dcomm_status dcomm_plan_print(const dcomm_plan *plan, char *buf, size_t len,
                                        size_t *needed_p);

#ifdef __cplusplus
}
#endif
#endif
