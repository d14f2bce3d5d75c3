/* avx512.h - lanes of the SIMD folds for AVX-512 (F, BW, VL, DQ). */
#ifndef DCOMMI_CPU_AVX512_H
#define DCOMMI_CPU_AVX512_H

#include "simd.h"

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
