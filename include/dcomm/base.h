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

/* Compilers warn of a call whose status nobody looks at: of what creates, communicates or waits.
 * Define DCOMM_NO_WARN_UNUSED before the include to have no such warnings. */
#if defined(__GNUC__) && !defined(DCOMM_NO_WARN_UNUSED)
#define DCOMM_CHECKED __attribute__((warn_unused_result))
#else
#define DCOMM_CHECKED
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
    X(DCOMM_ERR_INTERNAL, -15, "internal error")                   \
    X(DCOMM_ERR_RANGE, -16, "a sum of finite numbers is too large for its type")

typedef enum dcomm_status {
#define DCOMMI_STATUS_ENUM(name, number, text) name = number,
    DCOMM_STATUS_TABLE(DCOMMI_STATUS_ENUM)
#undef DCOMMI_STATUS_ENUM
        DCOMM_STATUS_FORCE_INT = 0x7fffffff
} dcomm_status;

/* Element types. 16-bit floats accumulate in f32 and round to nearest even when stored. Values from
 * DCOMM_DTYPE_COUNT on are opaque types of the caller's own (dcomm_dtype_create). */
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
    DCOMM_DTYPE_COUNT = 10,
    DCOMM_DTYPE_OPAQUE_MAX = 0x7fffffff
} dcomm_dtype;

#define DCOMM_DTYPE_BYTES_MAX 4096 /* of an element of dcomm_dtype_create */

/* Reduction operators.
 * min/max on floats, on every back end: a NaN operand gives a NaN (min(1, NaN) = NaN), and
 * -0 < +0. avg is the sum divided by the number of ranks (integers: truncated towards zero).
 * pre-multiplied sum multiplies each rank's input by dcomm_coll_opts.premul or premul_p first.
 * Values from DCOMM_OP_USER on are the caller's own (dcomm_op_create): DCOMM_OP_USER + n is the
 * n-th operator that the process created, counted from 0. */
typedef enum dcomm_op {
    DCOMM_SUM = 0,
    DCOMM_PROD = 1,
    DCOMM_MIN = 2,
    DCOMM_MAX = 3,
    DCOMM_AVG = 4,
    DCOMM_PREMUL_SUM = 5,
    DCOMM_OP_COUNT = 6,
    DCOMM_OP_USER = 64,
    DCOMM_OP_USER_MAX = 0x7fffffff
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
/* "f32", "bf16", ...; "opaque" for the caller's own; "?" for an unknown dtype. */
DCOMM_API const char *dcomm_dtype_name(dcomm_dtype dtype);
/* "sum", "min", ...; "user" for the caller's own; "?" for an unknown operator. */
DCOMM_API const char *dcomm_op_name(dcomm_op op);
/* "0.1.0" */
DCOMM_API const char *dcomm_version(void);

/* Make an element type of `bytes` bytes, for structs; *dtype_p is a value for dtype arguments. It
 * stays as long as the process. Every collective moves such elements, and nothing cuts one. Only
 * operators of the caller's own reduce them: built-in ones, codecs and buckets refuse them. Types
 * are numbered in the order of their creation: ranks that create the same types in the same order
 * have the same values.
 * Errors: DCOMM_ERR_INVALID (bytes is 0 or more than DCOMM_DTYPE_BYTES_MAX; dtype_p is NULL),
 * DCOMM_ERR_UNSUPPORTED (2^18 - 1 have been created). */
DCOMM_API DCOMM_CHECKED dcomm_status dcomm_dtype_create(size_t bytes, dcomm_dtype *dtype_p);

/* A reduction of the caller's own: inout[i] = op(in[i], inout[i]) for `count` elements of dtype.
 * It must be associative, and commutative unless dcomm_op_opts.ordered is set, both up to rounding.
 * It must not call dcomm. `in` and `inout` need not be aligned. `count` is what one message, chunk
 * or block holds: any number of elements, which need not be those of one struct. An operator on
 * structs that are passed as several elements (24 bytes as 3 of DCOMM_I64) sees parts of structs:
 * give structs a type of their own (dcomm_dtype_create). */
typedef void (*dcomm_op_fn)(const void *in, void *inout, size_t count, dcomm_dtype dtype,
                            void *user);
/* Register an operator for the whole process; *op_p is a value for dcomm_op arguments. Operators
 * are numbered in the order of their creation, and no number comes again: ranks that create the
 * same operators in the same order have the same values, whenever they destroy them. At most 64
 * can be alive.
 * Errors: DCOMM_ERR_INVALID (fn or op_p is NULL), DCOMM_ERR_NO_MEMORY (64 are alive). */
DCOMM_API DCOMM_CHECKED dcomm_status dcomm_op_create(dcomm_op_fn fn, void *user, dcomm_op *op_p);

/* All zero means the defaults. The same on every rank. */
typedef struct dcomm_op_opts {
    bool
        ordered; /* the operator does not commute: contributions are folded in rank order, as with
                    dcomm_coll_opts.deterministic. `inout` is what lower ranks gave, `in` what the
                    next rank gave, so inout = inout * in makes x0 * x1 * x2 ... (default: false) */
} dcomm_op_opts;
/* dcomm_op_create with options; opts may be NULL. */
DCOMM_API DCOMM_CHECKED dcomm_status dcomm_op_create_with(dcomm_op_fn fn, void *user,
                                                          const dcomm_op_opts *opts,
                                                          dcomm_op *op_p);
/* Destroy an operator: no new call can use it. Collectives that are outstanding still do, so `fn`
 * and `user` must stay until these are complete. Until then the operator counts as alive.
 * Errors: DCOMM_ERR_INVALID (there is none of this value). */
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
