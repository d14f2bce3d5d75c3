/* base.h - version, configuration macros, status codes, dtypes and reduction operators. */
#ifndef DCOMM_BASE_H
#define DCOMM_BASE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Version of this header. DCOMM_VERSION_STRING is a string; DCOMM_VERSION_MAJOR,
 * DCOMM_VERSION_MINOR and DCOMM_VERSION_PATCH are its numbers. dcomm_version returns the version
 * of the implementation. */
#define DCOMM_VERSION_MAJOR 0
#define DCOMM_VERSION_MINOR 1
#define DCOMM_VERSION_PATCH 0
#define DCOMM_VERSION_STRING "0.1.0"

/* Storage class of every public function. A shared library of your own may define it, before the
 * include, as __attribute__((visibility("default"))). */
#ifndef DCOMM_API
#define DCOMM_API extern
#endif

/* Marks functions that create, communicate or wait: compilers warn if a caller ignores their
 * status. Define DCOMM_NO_WARN_UNUSED before the include to turn these warnings off. */
#if defined(__GNUC__) && !defined(DCOMM_NO_WARN_UNUSED)
#define DCOMM_CHECKED __attribute__((warn_unused_result))
#else
#define DCOMM_CHECKED
#endif

/* Status of a call: 0 is success, a positive value is in progress, a negative value is an error.
 * Each row is X(name, number, text). */
#define DCOMM_STATUS_TABLE(X)                                                    \
    X(DCOMM_OK, 0, "success")                                                    \
    X(DCOMM_IN_PROGRESS, 1, "in progress")                                       \
    X(DCOMM_ERR_INVALID, -1, "invalid argument")                                 \
    X(DCOMM_ERR_NO_MEMORY, -2, "out of memory")                                  \
    X(DCOMM_ERR_UNSUPPORTED, -3, "not supported")                                \
    X(DCOMM_ERR_MISMATCH, -4, "ranks disagree about a collective")               \
    X(DCOMM_ERR_PEER, -5, "a peer failed or was lost")                           \
    X(DCOMM_ERR_TIMEOUT, -6, "timed out")                                        \
    X(DCOMM_ERR_ABORTED, -7, "the communicator was aborted")                     \
    X(DCOMM_ERR_TRANSPORT, -8, "transport failure")                              \
    X(DCOMM_ERR_RENDEZVOUS, -9, "ranks could not find each other")               \
    X(DCOMM_ERR_AUTH, -10, "authentication failed")                              \
    X(DCOMM_ERR_CORRUPT, -11, "malformed data received")                         \
    X(DCOMM_ERR_FORKED, -12, "called in a forked child")                         \
    X(DCOMM_ERR_PLAN, -13, "the plan is not valid")                              \
    X(DCOMM_ERR_SYSTEM, -14, "an operating system call failed")                  \
    X(DCOMM_ERR_INTERNAL, -15, "internal error")                                 \
    X(DCOMM_ERR_RANGE, -16, "a sum of finite numbers is too large for its type") \
    X(DCOMM_ERR_QUORUM, -17, "too few ranks are left to go on")

/* The statuses of DCOMM_STATUS_TABLE. DCOMM_STATUS_FORCE_INT is not a status: it makes the enum an
 * int. */
typedef enum dcomm_status {
#define DCOMMI_STATUS_ENUM(name, number, text) name = number,
    DCOMM_STATUS_TABLE(DCOMMI_STATUS_ENUM)
#undef DCOMMI_STATUS_ENUM
        DCOMM_STATUS_FORCE_INT = 0x7fffffff
} dcomm_status;

/* Element types. Sums of 16-bit floats accumulate in f32 and round to nearest even when stored.
 * Values from DCOMM_DTYPE_COUNT on are the caller's opaque types (dcomm_dtype_create). */
typedef enum dcomm_dtype {
    DCOMM_F64 = 0,                      /* double */
    DCOMM_F32 = 1,                      /* float */
    DCOMM_F16 = 2,                      /* IEEE half */
    DCOMM_BF16 = 3,                     /* bfloat16: the upper half of an f32 */
    DCOMM_I8 = 4,                       /* int8_t */
    DCOMM_U8 = 5,                       /* uint8_t */
    DCOMM_I32 = 6,                      /* int32_t */
    DCOMM_U32 = 7,                      /* uint32_t */
    DCOMM_I64 = 8,                      /* int64_t */
    DCOMM_U64 = 9,                      /* uint64_t */
    DCOMM_DTYPE_COUNT = 10,             /* number of built-in types */
    DCOMM_DTYPE_OPAQUE_MAX = 0x7fffffff /* largest value of an opaque type */
} dcomm_dtype;

#define DCOMM_DTYPE_BYTES_MAX 4096 /* longest element of dcomm_dtype_create */

/* Reduction operators.
 * - min and max of floats: a NaN operand gives a NaN, and -0 < +0, on every back end.
 * - avg divides the sum by the number of ranks; integers truncate towards zero.
 * - The pre-multiplied sum multiplies each rank's input by dcomm_coll_opts.premul or premul_p
 *   first.
 *
 * Values from DCOMM_OP_USER on are the caller's operators (dcomm_op_create): DCOMM_OP_USER + n is
 * the n-th operator that the process created, counted from 0. */
typedef enum dcomm_op {
    DCOMM_SUM = 0,
    DCOMM_PROD = 1, /* product */
    DCOMM_MIN = 2,
    DCOMM_MAX = 3,
    DCOMM_AVG = 4, /* average */
    DCOMM_PREMUL_SUM = 5,
    DCOMM_OP_COUNT = 6,            /* number of built-in operators */
    DCOMM_OP_USER = 64,            /* first operator of the caller's */
    DCOMM_OP_USER_MAX = 0x7fffffff /* last one */
} dcomm_op;

/* Return the text of a status ("a peer failed or was lost"): constant, never NULL. */
DCOMM_API const char *dcomm_strerror(dcomm_status status);
/* Return the name of a status ("DCOMM_ERR_PEER"): constant, never NULL. */
DCOMM_API const char *dcomm_status_name(dcomm_status status);
/* Return the sentence of the last error in this thread; "" if there was none. It names the
 * argument, the ranks and the values. It is valid until the next dcomm call in this thread. */
DCOMM_API const char *dcomm_last_error(void);
/* Return the bytes of one element; 0 for an unknown dtype. */
DCOMM_API size_t dcomm_dtype_size(dcomm_dtype dtype);
/* Return "f32", "bf16", ...; "opaque" for the caller's types; "?" for an unknown dtype. */
DCOMM_API const char *dcomm_dtype_name(dcomm_dtype dtype);
/* Return "sum", "min", ...; "user" for the caller's operators; "?" for an unknown operator. */
DCOMM_API const char *dcomm_op_name(dcomm_op op);
/* Return the version of the implementation, "0.1.0". */
DCOMM_API const char *dcomm_version(void);

/* Create an element type of `bytes` bytes, for structs, and set *dtype_p to its value. The type
 * lasts as long as the process. Collectives move such elements and never cut one. Only the caller's
 * operators reduce them: built-in operators, codecs and buckets refuse them. Types are numbered in
 * the order of creation: ranks that create the same types in the same order get the same values.
 * Errors: DCOMM_ERR_INVALID (bytes is 0 or more than DCOMM_DTYPE_BYTES_MAX; dtype_p is NULL),
 * DCOMM_ERR_UNSUPPORTED (2^18 - 1 types exist). */
DCOMM_API DCOMM_CHECKED dcomm_status dcomm_dtype_create(size_t bytes, dcomm_dtype *dtype_p);

/* Reduce: inout[i] = op(in[i], inout[i]) for `count` elements of dtype. The operator must be
 * associative, and commutative unless dcomm_op_opts.ordered is set, both up to rounding. It must
 * not call dcomm: calls return DCOMM_ERR_INVALID. `in` and `inout` need not be aligned. `count` may
 * be any number: one call reduces a message, a chunk or a block. If a struct is passed as several
 * elements (24 bytes as 3 of DCOMM_I64), the operator may see only a part of it. So give structs a
 * type of their own (dcomm_dtype_create). */
typedef void (*dcomm_op_fn)(const void *in, void *inout, size_t count, dcomm_dtype dtype,
                            void *user);
/* Create an operator for the whole process and set *op_p to its value. `user` is passed to fn.
 * Operators are numbered in the order of creation, and numbers are not reused. So ranks that
 * create the same operators in the same order get the same values, no matter when they destroy
 * them. At most 64 can be alive.
 * Errors: DCOMM_ERR_INVALID (fn or op_p is NULL), DCOMM_ERR_NO_MEMORY (64 are alive). */
DCOMM_API DCOMM_CHECKED dcomm_status dcomm_op_create(dcomm_op_fn fn, void *user, dcomm_op *op_p);

/* All zero means the defaults. Must be the same on every rank. */
typedef struct dcomm_op_opts {
    /* The operator does not commute: fold in rank order, as with dcomm_coll_opts.deterministic.
     * `inout` holds the fold of the lower ranks and `in` holds the next rank's input. So inout =
     * inout * in makes x0 * x1 * x2 ... (default: false) */
    bool ordered;
} dcomm_op_opts;
/* Create an operator with options; opts may be NULL. Otherwise as dcomm_op_create. */
DCOMM_API DCOMM_CHECKED dcomm_status dcomm_op_create_with(dcomm_op_fn fn, void *user,
                                                          const dcomm_op_opts *opts,
                                                          dcomm_op *op_p);
/* Destroy an operator: no new call can use it. Outstanding collectives still call `fn`, so `fn` and
 * `user` must stay valid until they are complete. Until then the operator counts as alive.
 * Errors: DCOMM_ERR_INVALID (no operator has this value). */
DCOMM_API dcomm_status dcomm_op_destroy(dcomm_op op);

/* Replace the allocator that dcomm uses for its own memory (not for UCX's or hwloc's). Call it
 * before any other dcomm function, from one thread. NULL for both restores aligned_alloc and free.
 * `user` is passed to both. */
typedef void *(*dcomm_alloc_fn)(size_t alignment, size_t bytes, void *user);
typedef void (*dcomm_free_fn)(void *p, void *user);
DCOMM_API void dcomm_set_allocator(dcomm_alloc_fn alloc, dcomm_free_fn release, void *user);

/* Set the function that takes dcomm's warnings; NULL restores the default, one line to stderr.
 * level: 0 error, 1 warning, 2 information. The environment variable DCOMM_LOG=error|warn|info
 * chooses which levels are passed on (default: NCCL_DEBUG, else warn). `user` is passed to fn. */
typedef void (*dcomm_log_fn)(int level, const char *message, void *user);
DCOMM_API void dcomm_set_logger(dcomm_log_fn fn, void *user);

#ifdef __cplusplus
}
#endif
#endif
