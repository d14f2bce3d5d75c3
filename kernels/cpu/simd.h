/* simd.h - the loop that all SIMD folds share, and the lanes that AVX2 and AVX-512 have in common.
 *
 * An instruction set ISA defines DCOMMI_ISA_TARGET, a raw vector type with load, store, stream,
 * load of a part and store of a part. For each KIND of element it defines a vector type (for
 * 16-bit floats a pair of f32 vectors) with unpack, pack, finish and scale. avx2.h and avx512.h
 * have the lanes that differ. Multiplication and addition never meet in one kernel, so that no
 * compiler can fuse them. */
#ifndef DCOMMI_CPU_SIMD_H
#define DCOMMI_CPU_SIMD_H

#include "portable.h"

#include <immintrin.h>

/* Distance in bytes at which sources are prefetched into the L2 cache (the L1 cache is slower):
 * FAR for long sources, where a shorter distance is slower, NEAR for pieces of some tens of
 * KiB. */
#define DCOMMI_SIMD_AHEAD_FAR 12288
#define DCOMMI_SIMD_AHEAD_NEAR 4096
/* An expression at each use: a variable makes folds of 1 KiB slower (gcc 12). */
#define DCOMMI_SIMD_AHEAD(how) \
    ((how)&DCOMMI_FOLD_NEAR ? DCOMMI_SIMD_AHEAD_NEAR : DCOMMI_SIMD_AHEAD_FAR)

/* Four vectors at a time, written out. Compilers unroll no loop at -O2, and an indexed accumulator
 * would live in memory. */
#define DCOMMI_SIMD_GET(ISA, KIND, p) dcommi_##ISA##_##KIND##_unpack(dcommi_##ISA##_load(p))

#define DCOMMI_SIMD_PUT(ISA, past, p, v) \
    do {                                 \
        if (past) {                      \
            dcommi_##ISA##_stream(p, v); \
        } else {                         \
            dcommi_##ISA##_store(p, v);  \
        }                                \
    } while (0)

#define DCOMMI_SIMD_PUT4(ISA, past, p)                  \
    DCOMMI_SIMD_PUT(ISA, past, (p) + i, r0);            \
    DCOMMI_SIMD_PUT(ISA, past, (p) + i + wide, r1);     \
    DCOMMI_SIMD_PUT(ISA, past, (p) + i + 2 * wide, r2); \
    DCOMMI_SIMD_PUT(ISA, past, (p) + i + 3 * wide, r3)

#define DCOMMI_SIMD_PACK(ISA, KIND, FINISH, acc) \
    dcommi_##ISA##_##KIND##_pack(dcommi_##ISA##_##KIND##_##FINISH(acc, scalar))

/* Fold four vectors of source s. Each of the first eight sources has its own code: prefetchers
 * predict what an instruction reads next from its earlier reads, and alternating between streams
 * misleads them. */
#define DCOMMI_SIMD_NEXT(ISA, KIND, OP, s)                    \
    from = src[s] + i;                                        \
    a0 = OP(a0, DCOMMI_SIMD_GET(ISA, KIND, from));            \
    a1 = OP(a1, DCOMMI_SIMD_GET(ISA, KIND, from + wide));     \
    a2 = OP(a2, DCOMMI_SIMD_GET(ISA, KIND, from + 2 * wide)); \
    a3 = OP(a3, DCOMMI_SIMD_GET(ISA, KIND, from + 3 * wide)); \
    if (how & DCOMMI_FOLD_AHEAD) {                            \
        dcommi_##ISA##_ahead(from + DCOMMI_SIMD_AHEAD(how));  \
    }
#define DCOMMI_SIMD_MORE(ISA, KIND, OP, s) \
    if (nsrc == (s)) {                     \
        break;                             \
    }                                      \
    DCOMMI_SIMD_NEXT(ISA, KIND, OP, s)

#define DCOMMI_SIMD_FOLD(ISA, NAME, KIND, OP, FINISH)                                             \
    DCOMMI_##ISA##_TARGET static void dcommi_##ISA##_fold_##NAME##_part(                          \
        unsigned char *dst, unsigned char *also, const unsigned char *const *src, size_t nsrc,    \
        size_t i, size_t n, double scalar)                                                        \
    {                                                                                             \
        dcommi_##ISA##_##KIND acc =                                                               \
            dcommi_##ISA##_##KIND##_unpack(dcommi_##ISA##_load_part(src[0] + i, n));              \
        for (size_t s = 1; s < nsrc; s++) {                                                       \
            acc =                                                                                 \
                OP(acc, dcommi_##ISA##_##KIND##_unpack(dcommi_##ISA##_load_part(src[s] + i, n))); \
        }                                                                                         \
        dcommi_##ISA##_raw r = DCOMMI_SIMD_PACK(ISA, KIND, FINISH, acc);                          \
        dcommi_##ISA##_store_part(dst + i, n, r);                                                 \
        if (also != NULL) {                                                                       \
            dcommi_##ISA##_store_part(also + i, n, r);                                            \
        }                                                                                         \
    }                                                                                             \
    DCOMMI_##ISA##_TARGET static void dcommi_##ISA##_fold_##NAME(                                 \
        unsigned char *dst, unsigned char *also, const unsigned char *const *src, size_t nsrc,    \
        size_t len, double scalar, unsigned how)                                                  \
    {                                                                                             \
        const size_t wide = sizeof(dcommi_##ISA##_raw);                                           \
        const bool stream = (how & DCOMMI_FOLD_STREAM) != 0;                                      \
        const bool stream_also = also != NULL && (how & DCOMMI_FOLD_ALSO) != 0;                   \
        size_t i = 0;                                                                             \
        if (stream || stream_also) {                                                              \
            size_t head = (size_t)(0 - (uintptr_t)dst) & 63;                                      \
            head = head < len ? head : len;                                                       \
            for (size_t n = 0; i < head; i += n) {                                                \
                n = head - i < wide ? head - i : wide;                                            \
                dcommi_##ISA##_fold_##NAME##_part(dst, also, src, nsrc, i, n, scalar);            \
            }                                                                                     \
        }                                                                                         \
        for (; len - i >= 4 * wide; i += 4 * wide) {                                              \
            const unsigned char *from = src[0] + i;                                               \
            dcommi_##ISA##_##KIND a0 = DCOMMI_SIMD_GET(ISA, KIND, from);                          \
            dcommi_##ISA##_##KIND a1 = DCOMMI_SIMD_GET(ISA, KIND, from + wide);                   \
            dcommi_##ISA##_##KIND a2 = DCOMMI_SIMD_GET(ISA, KIND, from + 2 * wide);               \
            dcommi_##ISA##_##KIND a3 = DCOMMI_SIMD_GET(ISA, KIND, from + 3 * wide);               \
            if (how & DCOMMI_FOLD_AHEAD) {                                                        \
                dcommi_##ISA##_ahead(from + DCOMMI_SIMD_AHEAD(how));                              \
            }                                                                                     \
            do {                                                                                  \
                DCOMMI_SIMD_MORE(ISA, KIND, OP, 1);                                               \
                DCOMMI_SIMD_MORE(ISA, KIND, OP, 2);                                               \
                DCOMMI_SIMD_MORE(ISA, KIND, OP, 3);                                               \
                DCOMMI_SIMD_MORE(ISA, KIND, OP, 4);                                               \
                DCOMMI_SIMD_MORE(ISA, KIND, OP, 5);                                               \
                DCOMMI_SIMD_MORE(ISA, KIND, OP, 6);                                               \
                DCOMMI_SIMD_MORE(ISA, KIND, OP, 7);                                               \
                for (size_t s = 8; s < nsrc; s++) {                                               \
                    DCOMMI_SIMD_NEXT(ISA, KIND, OP, s);                                           \
                }                                                                                 \
            } while (0);                                                                          \
            dcommi_##ISA##_raw r0 = DCOMMI_SIMD_PACK(ISA, KIND, FINISH, a0);                      \
            dcommi_##ISA##_raw r1 = DCOMMI_SIMD_PACK(ISA, KIND, FINISH, a1);                      \
            dcommi_##ISA##_raw r2 = DCOMMI_SIMD_PACK(ISA, KIND, FINISH, a2);                      \
            dcommi_##ISA##_raw r3 = DCOMMI_SIMD_PACK(ISA, KIND, FINISH, a3);                      \
            DCOMMI_SIMD_PUT4(ISA, stream, dst);                                                   \
            if (also != NULL) {                                                                   \
                DCOMMI_SIMD_PUT4(ISA, stream_also, also);                                         \
            }                                                                                     \
        }                                                                                         \
        for (size_t n = 0; i < len; i += n) {                                                     \
            n = len - i < wide ? len - i : wide;                                                  \
            dcommi_##ISA##_fold_##NAME##_part(dst, also, src, nsrc, i, n, scalar);                \
        }                                                                                         \
        if ((stream || stream_also) && (how & DCOMMI_FOLD_OPEN) == 0) {                           \
            _mm_sfence();                                                                         \
        }                                                                                         \
    }

/* ---- lanes of W bits ---- */

#define DCOMMI_SIMD_RAW(ISA, W)                                                         \
    typedef __m##W##i dcommi_##ISA##_raw, dcommi_##ISA##_int;                           \
    DCOMMI_##ISA##_INLINE __m##W##i dcommi_##ISA##_load(const unsigned char *p)         \
    {                                                                                   \
        return _mm##W##_loadu_si##W((const __m##W##i *)(const void *)p);                \
    }                                                                                   \
    DCOMMI_##ISA##_INLINE void dcommi_##ISA##_store(unsigned char *p, __m##W##i v)      \
    {                                                                                   \
        _mm##W##_storeu_si##W((__m##W##i *)(void *)p, v);                               \
    }                                                                                   \
    DCOMMI_##ISA##_INLINE void dcommi_##ISA##_stream(unsigned char *p, __m##W##i v)     \
    {                                                                                   \
        _mm##W##_stream_si##W((__m##W##i *)(void *)p, v);                               \
    }                                                                                   \
    /* Prefetch the lines of four vectors. */                                           \
    DCOMMI_##ISA##_INLINE void dcommi_##ISA##_ahead(const unsigned char *p)             \
    {                                                                                   \
        _mm_prefetch((const char *)p, _MM_HINT_T1);                                     \
        _mm_prefetch((const char *)p + 64, _MM_HINT_T1);                                \
        if (W == 512) {                                                                 \
            _mm_prefetch((const char *)p + 128, _MM_HINT_T1);                           \
            _mm_prefetch((const char *)p + 192, _MM_HINT_T1);                           \
        }                                                                               \
    }                                                                                   \
    DCOMMI_##ISA##_INLINE __m##W##i dcommi_##ISA##_int_unpack(__m##W##i v)              \
    {                                                                                   \
        return v;                                                                       \
    }                                                                                   \
    DCOMMI_##ISA##_INLINE __m##W##i dcommi_##ISA##_int_pack(__m##W##i v)                \
    {                                                                                   \
        return v;                                                                       \
    }                                                                                   \
    DCOMMI_##ISA##_INLINE __m##W##i dcommi_##ISA##_int_finish(__m##W##i v, double none) \
    {                                                                                   \
        (void)none;                                                                     \
        return v;                                                                       \
    }

#define DCOMMI_SIMD_OP(ISA, W, NAME, RESULT)                                        \
    DCOMMI_##ISA##_INLINE __m##W##i dcommi_##ISA##_##NAME(__m##W##i a, __m##W##i b) \
    {                                                                               \
        return RESULT;                                                              \
    }

#define DCOMMI_SIMD_OPS(ISA, W)                               \
    DCOMMI_SIMD_OP(ISA, W, add8, _mm##W##_add_epi8(a, b))     \
    DCOMMI_SIMD_OP(ISA, W, add32, _mm##W##_add_epi32(a, b))   \
    DCOMMI_SIMD_OP(ISA, W, add64, _mm##W##_add_epi64(a, b))   \
    DCOMMI_SIMD_OP(ISA, W, mul32, _mm##W##_mullo_epi32(a, b)) \
    DCOMMI_SIMD_OP(ISA, W, min_i8, _mm##W##_min_epi8(a, b))   \
    DCOMMI_SIMD_OP(ISA, W, min_u8, _mm##W##_min_epu8(a, b))   \
    DCOMMI_SIMD_OP(ISA, W, min_i32, _mm##W##_min_epi32(a, b)) \
    DCOMMI_SIMD_OP(ISA, W, min_u32, _mm##W##_min_epu32(a, b)) \
    DCOMMI_SIMD_OP(ISA, W, max_i8, _mm##W##_max_epi8(a, b))   \
    DCOMMI_SIMD_OP(ISA, W, max_u8, _mm##W##_max_epu8(a, b))   \
    DCOMMI_SIMD_OP(ISA, W, max_i32, _mm##W##_max_epi32(a, b)) \
    DCOMMI_SIMD_OP(ISA, W, max_u32, _mm##W##_max_epu32(a, b))

/* Lanes of f32 or f64, in vectors VEC. The instruction set defines `unordered`, which is v but a
 * NaN where a or b is one, and `canonical`, which makes NaNs canonical. */
#define DCOMMI_SIMD_LANES(ISA, W, KIND, VEC, PS, SCALAR)                                      \
    typedef VEC dcommi_##ISA##_##KIND;                                                        \
    DCOMMI_##ISA##_INLINE VEC dcommi_##ISA##_##KIND##_unpack(__m##W##i v)                     \
    {                                                                                         \
        return _mm##W##_castsi##W##_##PS(v);                                                  \
    }                                                                                         \
    DCOMMI_##ISA##_INLINE __m##W##i dcommi_##ISA##_##KIND##_pack(VEC v)                       \
    {                                                                                         \
        return _mm##W##_cast##PS##_si##W(v);                                                  \
    }                                                                                         \
    DCOMMI_##ISA##_INLINE VEC dcommi_##ISA##_##KIND##_add(VEC a, VEC b)                       \
    {                                                                                         \
        return _mm##W##_add_##PS(a, b);                                                       \
    }                                                                                         \
    DCOMMI_##ISA##_INLINE VEC dcommi_##ISA##_##KIND##_mul(VEC a, VEC b)                       \
    {                                                                                         \
        return _mm##W##_mul_##PS(a, b);                                                       \
    }                                                                                         \
    /* min gives its second operand when the two are zeros or one is a NaN. The union of both \
     * orders has the sign of -0, and is a NaN if one was. */                                 \
    DCOMMI_##ISA##_INLINE VEC dcommi_##ISA##_##KIND##_least(VEC a, VEC b)                     \
    {                                                                                         \
        return _mm##W##_or_##PS(_mm##W##_min_##PS(a, b), _mm##W##_min_##PS(b, a));            \
    }                                                                                         \
    DCOMMI_##ISA##_INLINE VEC dcommi_##ISA##_##KIND##_most(VEC a, VEC b)                      \
    {                                                                                         \
        return dcommi_##ISA##_##KIND##_unordered(                                             \
            _mm##W##_and_##PS(_mm##W##_max_##PS(a, b), _mm##W##_max_##PS(b, a)), a, b);       \
    }                                                                                         \
    DCOMMI_##ISA##_INLINE VEC dcommi_##ISA##_##KIND##_finish(VEC v, double divisor)           \
    {                                                                                         \
        if (divisor > 1) {                                                                    \
            v = _mm##W##_div_##PS(v, _mm##W##_set1_##PS((SCALAR)divisor));                    \
        }                                                                                     \
        return dcommi_##ISA##_##KIND##_canonical(v);                                          \
    }                                                                                         \
    DCOMMI_##ISA##_INLINE VEC dcommi_##ISA##_##KIND##_scale(VEC v, double factor)             \
    {                                                                                         \
        return dcommi_##ISA##_##KIND##_canonical(                                             \
            _mm##W##_mul_##PS(v, _mm##W##_set1_##PS((SCALAR)factor)));                        \
    }

/* A pair of f32 vectors. For bf16, lo has the even elements and hi the odd ones, which stay in
 * place. `round` does not change the canonical NaN. */
#define DCOMMI_SIMD_HALVES(ISA, W)                                                              \
    typedef struct dcommi_##ISA##_pair {                                                        \
        __m##W lo, hi;                                                                          \
    } dcommi_##ISA##_pair, dcommi_##ISA##_f16, dcommi_##ISA##_bf16;                             \
    DCOMMI_##ISA##_INLINE dcommi_##ISA##_pair dcommi_##ISA##_bf16_unpack(__m##W##i v)           \
    {                                                                                           \
        const __m##W##i odd = _mm##W##_set1_epi32((int)0xffff0000u);                            \
        dcommi_##ISA##_pair r = {_mm##W##_castsi##W##_ps(_mm##W##_slli_epi32(v, 16)),           \
                                 _mm##W##_castsi##W##_ps(_mm##W##_and_si##W(v, odd))};          \
        return r;                                                                               \
    }                                                                                           \
    DCOMMI_##ISA##_INLINE __m##W##i dcommi_##ISA##_bf16_round(__m##W x)                         \
    {                                                                                           \
        __m##W##i v = _mm##W##_castps_si##W(x);                                                 \
        __m##W##i odd = _mm##W##_and_si##W(_mm##W##_srli_epi32(v, 16), _mm##W##_set1_epi32(1)); \
        return _mm##W##_add_epi32(v, _mm##W##_add_epi32(odd, _mm##W##_set1_epi32(0x7fff)));     \
    }

/* ---- the folds of each type ---- */

#define DCOMMI_SIMD_FLOAT(ISA, KIND)                                               \
    DCOMMI_SIMD_FOLD(ISA, KIND##_sum, KIND, dcommi_##ISA##_##KIND##_add, finish)   \
    DCOMMI_SIMD_FOLD(ISA, KIND##_prod, KIND, dcommi_##ISA##_##KIND##_mul, finish)  \
    DCOMMI_SIMD_FOLD(ISA, KIND##_min, KIND, dcommi_##ISA##_##KIND##_least, finish) \
    DCOMMI_SIMD_FOLD(ISA, KIND##_max, KIND, dcommi_##ISA##_##KIND##_most, finish)  \
    DCOMMI_SIMD_FOLD(ISA, KIND##_scale, KIND, dcommi_##ISA##_##KIND##_add, scale)

/* Apply each operation to both halves of a pair of f32 vectors. */
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

/* Integer lanes, under the names in DCOMMI_FOLD_TABLE. */
#define DCOMMI_SIMD_INTS(ISA, A, U, BITS)                                  \
    DCOMMI_SIMD_FOLD(ISA, U##_sum, int, dcommi_##ISA##_add##BITS, finish)  \
    DCOMMI_SIMD_FOLD(ISA, U##_prod, int, dcommi_##ISA##_mul##BITS, finish) \
    DCOMMI_SIMD_FOLD(ISA, U##_min, int, dcommi_##ISA##_min_##U, finish)    \
    DCOMMI_SIMD_FOLD(ISA, U##_max, int, dcommi_##ISA##_max_##U, finish)    \
    DCOMMI_SIMD_FOLD(ISA, A##_min, int, dcommi_##ISA##_min_##A, finish)    \
    DCOMMI_SIMD_FOLD(ISA, A##_max, int, dcommi_##ISA##_max_##A, finish)

#endif
