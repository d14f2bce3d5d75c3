/* portable.h - folds of n operands in plain C. Every SIMD loop must equal them bit for bit. */
#ifndef DCOMMI_CPU_PORTABLE_H
#define DCOMMI_CPU_PORTABLE_H

#include "../math.h"

#include <stdbool.h>
#include <stddef.h>

/* Options of a fold kernel for the caches. */
enum {
    DCOMMI_FOLD_STREAM = 1, /* nontemporal stores to dst, which is aligned to its element */
    DCOMMI_FOLD_AHEAD = 2,  /* prefetch the sources */
    DCOMMI_FOLD_ALSO = 4,   /* nontemporal stores to `also`, which equals dst modulo 64 */
    DCOMMI_FOLD_OPEN = 8,   /* no fence after nontemporal stores */
    DCOMMI_FOLD_NEAR = 16   /* prefetch at a shorter distance: the sources are short */
};

/* Set dst to the fold of src[0..nsrc-1], `len` bytes each, finished with `scalar` (the divisor of
 * a float average; the factor of a scaling). dst may equal any src. Also store the result in
 * `also`, unless it is NULL. */
typedef void (*dcommi_fold_fn)(unsigned char *dst, unsigned char *also,
                               const unsigned char *const *src, size_t nsrc, size_t len,
                               double scalar, unsigned how);

/* The kernels of one dtype. */
typedef enum dcommi_fold_kind {
    DCOMMI_FOLD_SUM = 0,
    DCOMMI_FOLD_PROD = 1,
    DCOMMI_FOLD_MIN = 2,
    DCOMMI_FOLD_MAX = 3,
    DCOMMI_FOLD_SCALE = 4, /* nsrc is 1 */
    DCOMMI_FOLD_KINDS = 5
} dcommi_fold_kind;

#define DCOMMI_PORT_BLOCK 128 /* elements; accumulators stay in the L1 cache */

/* Call one inlined body twice: with a constant count, compilers vectorize it even at -O2. */
#define DCOMMI_PORT_FOLD(NAME, STORED, ACC, LOAD, OP, FINISH, STORE)                              \
    __attribute__((always_inline)) static inline void dcommi_port_some_##NAME(                    \
        unsigned char *dst, const unsigned char *const *src, size_t nsrc, size_t at, size_t n,    \
        double scalar)                                                                            \
    {                                                                                             \
        (void)scalar;                                                                             \
        ACC acc[DCOMMI_PORT_BLOCK];                                                               \
        const unsigned char *from = src[0] + at;                                                  \
        for (size_t i = 0; i < n; i++) {                                                          \
            STORED x;                                                                             \
            memcpy(&x, from + i * sizeof x, sizeof x);                                            \
            acc[i] = LOAD(x);                                                                     \
        }                                                                                         \
        for (size_t s = 1; s < nsrc; s++) {                                                       \
            from = src[s] + at;                                                                   \
            for (size_t i = 0; i < n; i++) {                                                      \
                STORED x;                                                                         \
                memcpy(&x, from + i * sizeof x, sizeof x);                                        \
                acc[i] = OP(acc[i], LOAD(x));                                                     \
            }                                                                                     \
        }                                                                                         \
        for (size_t i = 0; i < n; i++) {                                                          \
            STORED x = STORE(FINISH(acc[i], scalar));                                             \
            memcpy(dst + at + i * sizeof x, &x, sizeof x);                                        \
        }                                                                                         \
    }                                                                                             \
    static void dcommi_port_fold_##NAME(unsigned char *dst, unsigned char *also,                  \
                                        const unsigned char *const *src, size_t nsrc, size_t len, \
                                        double scalar, unsigned how)                              \
    {                                                                                             \
        (void)how;                                                                                \
        const size_t block = DCOMMI_PORT_BLOCK * sizeof(STORED);                                  \
        size_t at = 0;                                                                            \
        for (; len - at >= block; at += block) {                                                  \
            dcommi_port_some_##NAME(dst, src, nsrc, at, DCOMMI_PORT_BLOCK, scalar);               \
        }                                                                                         \
        dcommi_port_some_##NAME(dst, src, nsrc, at, (len - at) / sizeof(STORED), scalar);         \
        if (also != NULL) {                                                                       \
            memcpy(also, dst, len);                                                               \
        }                                                                                         \
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

/* Sums and products of signed integers have the same bits as those of unsigned ones. */
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

/* Kernels of ISA in the order of dcommi_fold_kind. A: the type; U: its unsigned counterpart. */
#define DCOMMI_FOLD_ROW(ISA, A, U, SCALE)                                 \
    {                                                                     \
        dcommi_##ISA##_fold_##U##_sum, dcommi_##ISA##_fold_##U##_prod,    \
            dcommi_##ISA##_fold_##A##_min, dcommi_##ISA##_fold_##A##_max, \
            dcommi_##SCALE##_fold_##A##_scale                             \
    }

/* In the order of dcomm_dtype. Scaling integers is rare, so SIMD is not worth it. */
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
