/* avx2.h - lanes of the SIMD folds for AVX2 with F16C. */
#ifndef DCOMMI_CPU_AVX2_H
#define DCOMMI_CPU_AVX2_H

#include "simd.h"

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
    /* See cpu/avx512.h. */                                                             \
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
