/* avx2.h - lanes of the SIMD folds for AVX2 with F16C. */
#ifndef DCOMMI_CPU_AVX2_H
#define DCOMMI_CPU_AVX2_H

#include "simd.h"

#define DCOMMI_avx2_TARGET __attribute__((target("avx2,f16c")))
#define DCOMMI_avx2_INLINE DCOMMI_avx2_TARGET __attribute__((always_inline)) static inline

DCOMMI_SIMD_RAW(avx2, 256)

/* Load 1 to 32 bytes; the rest of the vector is zero. */
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

#define DCOMMI_AVX2_NANS(KIND, VEC, PS, NANS)                                  \
    DCOMMI_avx2_INLINE VEC dcommi_avx2_##KIND##_unordered(VEC v, VEC a, VEC b) \
    {                                                                          \
        return _mm256_or_##PS(v, _mm256_cmp_##PS(a, b, _CMP_UNORD_Q));         \
    }                                                                          \
    DCOMMI_avx2_INLINE VEC dcommi_avx2_##KIND##_canonical(VEC v)               \
    {                                                                          \
        return _mm256_blendv_##PS(v, _mm256_castsi256_##PS(NANS),              \
                                  _mm256_cmp_##PS(v, v, _CMP_UNORD_Q));        \
    }

DCOMMI_AVX2_NANS(f32, __m256, ps, _mm256_set1_epi32((int)DCOMMI_F32_NAN))
DCOMMI_AVX2_NANS(f64, __m256d, pd, _mm256_set1_epi64x((long long)DCOMMI_F64_NAN))
DCOMMI_SIMD_LANES(avx2, 256, f32, __m256, ps, float)
DCOMMI_SIMD_LANES(avx2, 256, f64, __m256d, pd, double)
DCOMMI_SIMD_FLOAT(avx2, f32)
DCOMMI_SIMD_FLOAT(avx2, f64)

/* ---- 16-bit floats; a fold ends in canonical NaNs, which rounding does not change ---- */

DCOMMI_SIMD_HALVES(avx2, 256)

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

/* Set a lane to all ones if a > b. AVX2 compares 64-bit lanes only as signed numbers. */
DCOMMI_avx2_INLINE __m256i dcommi_avx2_more_i64(__m256i a, __m256i b)
{
    return _mm256_cmpgt_epi64(a, b);
}

DCOMMI_avx2_INLINE __m256i dcommi_avx2_more_u64(__m256i a, __m256i b)
{
    __m256i top = _mm256_set1_epi64x(INT64_MIN);
    return _mm256_cmpgt_epi64(_mm256_xor_si256(a, top), _mm256_xor_si256(b, top));
}

DCOMMI_SIMD_OPS(avx2, 256)
DCOMMI_SIMD_OP(avx2, 256, min_i64, _mm256_blendv_epi8(a, b, dcommi_avx2_more_i64(a, b)))
DCOMMI_SIMD_OP(avx2, 256, min_u64, _mm256_blendv_epi8(a, b, dcommi_avx2_more_u64(a, b)))
DCOMMI_SIMD_OP(avx2, 256, max_i64, _mm256_blendv_epi8(b, a, dcommi_avx2_more_i64(a, b)))
DCOMMI_SIMD_OP(avx2, 256, max_u64, _mm256_blendv_epi8(b, a, dcommi_avx2_more_u64(a, b)))

DCOMMI_SIMD_INTS(avx2, i8, u8, 8)
DCOMMI_SIMD_INTS(avx2, i32, u32, 32)
DCOMMI_SIMD_INTS(avx2, i64, u64, 64)

static const dcommi_fold_fn dcommi_avx2_folds[10][DCOMMI_FOLD_KINDS] = DCOMMI_FOLD_TABLE(avx2);

#endif
