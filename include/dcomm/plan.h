/* plan.h - plans: a collective as immutable data. The engine runs a plan, the checker proves it,
 * the model prices it and the printer shows it.
 *
 * A plan is one rank's part of one operation. It has a few lanes, and each lane is a sequence of
 * steps. Lanes run concurrently. The steps of a lane run in order: each is complete before the
 * next begins. A step with DCOMM_STEP_ASYNC is an exception: it only starts, and a later FENCE of
 * the same lane waits for all steps that the lane has started.
 *
 * Everything here is plain data. The maker of the plan owns its memory; the library only reads
 * it. */
#ifndef DCOMM_PLAN_H
#define DCOMM_PLAN_H

#include "base.h"

#ifdef __cplusplus
extern "C" {
#endif

#define DCOMM_LOOP_DEPTH 3         /* most levels of nested loops in one lane */
#define DCOMM_PLAN_MAX_LANES 64    /* most lanes of one plan */
#define DCOMM_PLAN_MAX_SLOTS 1024  /* most exposed regions of one run */
#define DCOMM_PLAN_MAX_WORDS 65536 /* most words of one run */
#define DCOMM_ALL_PEERS (-1)       /* EXPOSE and SIGNAL: every other rank of the plan */

/* The memory in which an operand lies. */
typedef enum dcomm_space {
    DCOMM_SPACE_NONE = 0,    /* no operand */
    DCOMM_SPACE_IN = 1,      /* the caller's input, read only */
    DCOMM_SPACE_OUT = 2,     /* the caller's output */
    DCOMM_SPACE_SCRATCH = 3, /* scratch_bytes bytes, undefined at the start of each run */
    DCOMM_SPACE_WORDS = 4,   /* nwords 64-bit words, zero at the start of each run */
    DCOMM_SPACE_PEER = 5,    /* memory that another rank has exposed in a slot */
    DCOMM_SPACE_MSG = 6      /* RECV_REDUCE only: the message being received */
} dcomm_space;

/* Kinds of expressions, with the formulas of their values. i[0..2] are the indices of the lane's
 * open loops, outermost first, counted from 0; an index of a loop that is not open is 0.
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

/* A number that may depend on loops. dcomm_expr_kind has the formulas. */
typedef struct dcomm_expr {
    uint8_t kind;                   /* dcomm_expr_kind */
    int64_t add;                    /* added at the end */
    int64_t scale;                  /* multiplies x, or the entry of the table or the word */
    int64_t post[DCOMM_LOOP_DEPTH]; /* factors of the loops' indices, outside x */
    int64_t base;                   /* constant part of x */
    int64_t coef[DCOMM_LOOP_DEPTH]; /* factors of the loops' indices in x */
    int64_t mod;                    /* x is taken modulo this; 0: x is not changed */
    int64_t first;                  /* TABLE, WORD: the index to which x is added */
} dcomm_expr;

/* `repeat` consecutive pieces of memory (0 means 1). Piece r begins at offset + r*stride and has
 *   min(max(length, 0), max_length, clip > 0 ? max(clip - (offset + r*stride), 0) : infinity)
 * bytes, so that a partition into equal blocks needs no special last block. If the length is a
 * WORD, piece r takes its length from the r-th word behind that word. In PEER space, piece r
 * belongs to rank (peer + r) mod nranks, and offsets count from the start of the memory that this
 * rank exposed. max_length is a static maximum. It sizes scratch, limits the length of a message
 * that may arrive, and prices the step. */
typedef struct dcomm_operand {
    uint8_t space;      /* dcomm_space */
    uint16_t slot;      /* PEER: number of the slot that the rank exposed */
    uint32_t repeat;    /* number of pieces; 0 is taken as 1 */
    int64_t stride;     /* bytes from one piece to the next */
    dcomm_expr peer;    /* PEER: rank in the plan */
    dcomm_expr offset;  /* bytes */
    dcomm_expr length;  /* bytes */
    int64_t max_length; /* bytes */
    int64_t clip;       /* bytes; 0: none */
} dcomm_operand;

/* The kinds of steps. Each row is X(kind, name). `src` are the step's source operands in order,
 * with their repeats unfolded.
 *
 * Moves (may be ASYNC):
 *   SEND         src[0] -> rank `peer`, matched by `tag`; done when src may be overwritten
 *   RECV         dst <- rank `peer`. If word >= 0, the length that arrived goes to
 *                words[word + value]; without a word, a length other than dst's is an error
 *   RECV_REDUCE  dst <- fold(src...). Exactly one src is in MSG space (the arriving message).
 *                `stage` is scratch into which the engine may receive; dst may equal any src
 *   COPY         dst <- src[0]; from PEER space it reads the other rank's memory
 *   EXPOSE       lets rank `peer` (or DCOMM_ALL_PEERS) read src[0] as `slot` of this rank. The
 *                memory must not change until the readers have sent a SIGNAL that they are done
 * Transforms:
 *   REDUCE       dst <- fold(src...) in operand order; PEER operands are read in place. `stage`
 *                is not used: the engine brings its own blocks
 *   ENCODE       dst <- codec.encode(src[0]). The encoded length goes to words[word + value]
 *                (without a word, it is all of dst). For the codec, the first element of src[0]
 *                has the number `index`, and this is encoding number `slot` of these elements
 *   DECODE       dst <- fold(codec.decode(src...)) in operand order; `index` is the number of the
 *                first element of dst
 *   RECODE       dst <- codec.encode(fold(codec.decode(src...))), otherwise like ENCODE. `stage` is
 *                scratch as long as the decoded data
 *   COMPUTE      plan.kernels[kernel](dst, src...)
 * Order:
 *   SIGNAL       adds `value` to counter `slot` of rank `peer` (DCOMM_ALL_PEERS: of every other
 *                rank). A SIGNAL to its own rank orders lanes
 *   WAIT         waits until this rank's counter `slot` >= `value`
 *   FENCE        waits until all steps that this lane started with ASYNC are complete
 * Shape:
 *   LOOP         runs the steps up to the matching END `value` times (`body` steps in between)
 *   END          ends the body of a LOOP
 *   CALL         runs the sub-plan subs[sub] with its IN = src[0] and OUT = dst. Rank r of the
 *                sub-plan is this plan's rank table[group + r]. The numbers of the sub-plan are
 *                shifted: its tags by `tag`, its counters by `slot` + `value`, its exposed slots
 *                by `word` (0 if that is negative) + `peer`, and its element numbers by `index`.
 *                All ranks of the group must shift alike. Two calls must not share tags, counters
 * or slots if one rank may be in the first while another rank is in the second. In a loop, the
 * expressions give each iteration its own
 *
 * A counter belongs to the run, has 64 bits, only grows, and starts at 0.
 *
 * FINAL on a folding step means that it completes the reduction. There DCOMM_AVG divides. FORWARD
 * and RESULT change no result, only the use of memory. FORWARD means that the next step passes on
 * exactly what this one stores, so that the engine may do both in one pass (a SEND after a
 * RECV_REDUCE, a COPY after a REDUCE). RESULT on a step that stores means that no later step reads
 * the data, except such a SEND. So the engine may use nontemporal stores for long results. */
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

#define DCOMM_STEP_ASYNC 1u   /* only start the step, and let the lane go on; see FENCE */
#define DCOMM_STEP_FINAL 2u   /* this fold completes the reduction */
#define DCOMM_STEP_FORWARD 4u /* the next step sends or copies this one's dst */
#define DCOMM_STEP_RESULT 8u  /* this rank does not read dst again */

/* A step of a lane. */
typedef struct dcomm_step {
    uint8_t kind;      /* dcomm_step_kind */
    uint8_t flags;     /* DCOMM_STEP_ASYNC | FINAL | FORWARD | RESULT */
    uint16_t slot;     /* EXPOSE: slot; SIGNAL, WAIT: counter; CALL: first counter; ENCODE, RECODE:
                          number of this encoding of these elements, from 0 */
    uint16_t kernel;   /* COMPUTE: index into plan.kernels */
    uint32_t src;      /* first source operand, an index into plan.operands */
    uint32_t nsrc;     /* number of source operands, repeats not unfolded */
    uint32_t body;     /* LOOP: number of steps between LOOP and END; END: the same number */
    uint32_t sub;      /* CALL: index into plan.subs */
    uint32_t group;    /* CALL: index into plan.table of the first of subs[sub]->nranks ranks */
    int32_t word;      /* RECV, ENCODE, RECODE: the word that takes the length, -1: none. CALL: the
                          first slot */
    dcomm_operand dst; /* destination */
    dcomm_operand stage; /* scratch of RECV_REDUCE and RECODE */
    dcomm_expr peer;     /* rank in the plan; CALL: added to its first slot */
    dcomm_expr tag;      /* in [0, plan.ntags); (source, destination, tag) is unique within a run */
    dcomm_expr value; /* SIGNAL, WAIT, LOOP; CALL: added to its first counter; RECV, ENCODE, RECODE:
                         added to `word` */
    dcomm_expr index; /* ENCODE, DECODE, RECODE: number of the first element; CALL: added to these
                         numbers */
} dcomm_step;

/* A sequence of steps. */
typedef struct dcomm_lane {
    uint32_t first; /* index into plan.steps */
    uint32_t count; /* steps */
} dcomm_lane;

/* Facts that a codec needs in addition to the bytes of a step. */
typedef struct dcomm_codec_place {
    uint64_t first;   /* number of the first element */
    uint32_t round;   /* ENCODE, RECODE: number of this encoding of these elements within the run,
                         from 0 */
    uint32_t divisor; /* decoded values are divided by this: 1, or the number of ranks of an
                         average */
} dcomm_codec_place;

/* The functions that ENCODE, DECODE and RECODE call. All lengths are in bytes. encode returns the
 * encoded length (at most dst_len) in *encoded. decode must fill dst exactly with the fold of the
 * decoded sources, in their order. `user` is the data that the run brings (the key of its random
 * numbers, its workspace, its error feedback), or else plan.codec_user. decode and recode return
 * DCOMM_ERR_CORRUPT if the bytes to decode are malformed. */
typedef struct dcomm_plan_codec {
    const char *name; /* for people */
    dcomm_status (*encode)(void *user, const dcomm_codec_place *place, const void *src,
                           size_t src_len, void *dst, size_t dst_len, size_t *encoded);
    dcomm_status (*decode)(void *user, const dcomm_codec_place *place, const void *const *src,
                           const size_t *src_len, size_t nsrc, void *dst, size_t dst_len);
    /* Do all of RECODE at once; `stage` is scratch. NULL: the engine decodes into stage, then
     * encodes. */
    dcomm_status (*recode)(void *user, const dcomm_codec_place *place, const void *const *src,
                           const size_t *src_len, size_t nsrc, void *stage, size_t stage_len,
                           void *dst, size_t dst_len, size_t *encoded);
} dcomm_plan_codec;

/* Compute dst from nsrc sources, for COMPUTE. Lengths are in bytes. */
typedef dcomm_status (*dcomm_plan_kernel)(void *user, void *dst, size_t dst_len,
                                          const void *const *src, const size_t *src_len,
                                          size_t nsrc);

/* One rank's part of one operation. */
typedef struct dcomm_plan dcomm_plan;

/* Return the plan of the next stage, a pure function of the words of the stage before. It may only
 * use words that are equal on every rank (an all-gather or all-reduce in that stage produced
 * them). The next stage keeps the words, but not the scratch. Return NULL with *status = DCOMM_OK
 * if nothing is left to do. The engine passes each plan to `release` of the plan that made it when
 * it is no longer needed. */
typedef const dcomm_plan *(*dcomm_plan_next)(void *user, const uint64_t *words, uint32_t nwords,
                                             dcomm_status *status);

struct dcomm_plan {
    const char *name;                                            /* algorithm, for people */
    int32_t rank;                                                /* the rank whose part this is */
    int32_t nranks;                                              /* ranks of the operation */
    uint32_t dtype;                                              /* dcomm_dtype of all folds */
    uint32_t op;                                                 /* dcomm_op of all folds */
    uint32_t nlanes, nsteps, noperands, ntable, nsubs, nkernels; /* lengths of the arrays below */
    uint32_t nwords, ncounters, nslots; /* words, counters and slots of a run */
    uint32_t ntags;                     /* tags are in [0, ntags), with those of sub-plans */
    const dcomm_lane *lanes;            /* [nlanes] */
    const dcomm_step *steps;            /* [nsteps], lane by lane */
    const dcomm_operand *operands;      /* [noperands] sources of steps */
    const int64_t *table;               /* [ntable] for expressions and groups of CALL */
    const dcomm_plan *const *subs;      /* [nsubs] plans that CALL runs */
    const dcomm_plan_kernel *kernels;   /* [nkernels] functions that COMPUTE calls */
    void *kernel_user;                  /* passed to kernels */
    const dcomm_plan_codec *codec;      /* NULL: no step encodes or decodes */
    void *codec_user;                   /* passed to the codec, unless the run brings its own */
    /* The model's numbers for the codec, in units of 1/1024; 0 is taken as 1024. codec_length: a
     * length that is known only at run time, relative to its maximum. codec_encode: the time to
     * encode, relative to copying as many bytes. codec_decode: the same for decoding one source.
     * codec_later: the time of an encoding whose `slot` is not 0, relative to the first one. */
    uint32_t codec_length, codec_encode, codec_decode, codec_later;
    bool codec_linear;    /* encodings are folded before they are decoded */
    bool codec_partly;    /* this rank's ENCODE steps skip some elements */
    bool scratch_on_host; /* scratch is host memory even if input and output are device memory */
    bool scratch_shared;  /* scratch is exposed, so it should be memory that peers on the host can
                             map */
    /* Elements that this rank's RECODE steps encode. The count is 0 if its ENCODE steps encode
     * these elements, too (codec_partly), or if they are known only at run time (coded_sparse). */
    int64_t recoded_first, recoded_count;
    int64_t in_bytes, out_bytes; /* bytes of IN and of OUT that the plan may touch */
    int64_t scratch_bytes;       /* size of SCRATCH */
    dcomm_plan_next next;        /* NULL: this is the last stage */
    void (*release)(void *user, const dcomm_plan *plan); /* frees a plan that next returned */
    void *next_user;                                     /* passed to next and release */
};

/* Operations: those of calls, and those that the checker can require of a set of plans. */
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
    dcomm_coll coll;      /* DCOMM_COLL_PLAN: check only safety (order, matching, deadlock), not the
                             result */
    size_t count;         /* elements: the operation's own `count` argument */
    dcomm_dtype dtype;    /* of the elements */
    int root;             /* the root rank, if the operation has one */
    bool in_place;        /* input and output are the same buffer */
    bool rank_order;      /* folds must combine contributions in rank order */
    const size_t *counts; /* v-collectives: [nranks]; all-to-all-v: [nranks][nranks], sent by the
                             rank of the row to the rank of the column */
    const size_t *displs; /* v-collectives: [nranks] displacements in the concatenated buffer;
                             NULL: packed */
    const int *hosts;     /* [nranks] any numbers, equal for ranks that share a host; NULL: all
                             ranks share one. They decide which plans are made, but not what the
                             plans must compute */
} dcomm_check_spec;

/* Write one rank's plan as text into buf (at most len bytes including the final NUL). *needed_p,
 * if not NULL, is set to the length of the whole text, without the NUL. */
DCOMM_API dcomm_status dcomm_plan_print(const dcomm_plan *plan, char *buf, size_t len,
                                        size_t *needed_p);

#ifdef __cplusplus
}
#endif
#endif
