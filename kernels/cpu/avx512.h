/* avx512.h - lanes of the SIMD folds for AVX-512 (F, BW, VL, DQ). */
#ifndef DCOMMI_CPU_AVX512_H
#define DCOMMI_CPU_AVX512_H

#include "simd.h"

#define DCOMMI_avx512_TARGET __attribute__((target("avx2,f16c,avx512f,avx512bw,avx512vl,avx512dq")))
#define DCOMMI_avx512_INLINE DCOMMI_avx512_TARGET __attribute__((always_inline)) static inline

DCOMMI_SIMD_RAW(avx512, 512)

/* Load 1 to 64 bytes; the rest of the vector is zero. */
DCOMMI_avx512_INLINE __m512i dcommi_avx512_load_part(const unsigned char *p, size_t n)
{
    return _mm512_maskz_loadu_epi8(~(__mmask64)0 >> (64 - n), p);
}

DCOMMI_avx512_INLINE void dcommi_avx512_store_part(unsigned char *p, size_t n, __m512i v)
{
    _mm512_mask_storeu_epi8(p, ~(__mmask64)0 >> (64 - n), v);
}

/* ---- f32, f64 ---- */

#define DCOMMI_AVX512_NANS(KIND, VEC, PS, NANS)                                    \
    DCOMMI_avx512_INLINE VEC dcommi_avx512_##KIND##_unordered(VEC v, VEC a, VEC b) \
    {                                                                              \
        return _mm512_mask_mov_##PS(v, _mm512_cmp_##PS##_mask(a, b, _CMP_UNORD_Q), \
                                    _mm512_castsi512_##PS(NANS));                  \
    }                                                                              \
    DCOMMI_avx512_INLINE VEC dcommi_avx512_##KIND##_canonical(VEC v)               \
    {                                                                              \
        return dcommi_avx512_##KIND##_unordered(v, v, v);                          \
    }

DCOMMI_AVX512_NANS(f32, __m512, ps, _mm512_set1_epi32((int)DCOMMI_F32_NAN))
DCOMMI_AVX512_NANS(f64, __m512d, pd, _mm512_set1_epi64((long long)DCOMMI_F64_NAN))
DCOMMI_SIMD_LANES(avx512, 512, f32, __m512, ps, float)
DCOMMI_SIMD_LANES(avx512, 512, f64, __m512d, pd, double)
DCOMMI_SIMD_FLOAT(avx512, f32)
DCOMMI_SIMD_FLOAT(avx512, f64)

/* ---- 16-bit floats; a fold ends in canonical NaNs, which rounding does not change ---- */

DCOMMI_SIMD_HALVES(avx512, 512)

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

DCOMMI_avx512_INLINE __m512i dcommi_avx512_mul8(__m512i a, __m512i b)
{
    __m512i even = _mm512_mullo_epi16(a, b);
    __m512i odd = _mm512_mullo_epi16(_mm512_srli_epi16(a, 8), _mm512_srli_epi16(b, 8));
    return _mm512_mask_mov_epi8(_mm512_slli_epi16(odd, 8), 0x5555555555555555u, even);
}

DCOMMI_SIMD_OPS(avx512, 512)
DCOMMI_SIMD_OP(avx512, 512, mul64, _mm512_mullo_epi64(a, b))
DCOMMI_SIMD_OP(avx512, 512, min_i64, _mm512_min_epi64(a, b))
DCOMMI_SIMD_OP(avx512, 512, min_u64, _mm512_min_epu64(a, b))
DCOMMI_SIMD_OP(avx512, 512, max_i64, _mm512_max_epi64(a, b))
DCOMMI_SIMD_OP(avx512, 512, max_u64, _mm512_max_epu64(a, b))

DCOMMI_SIMD_INTS(avx512, i8, u8, 8)
DCOMMI_SIMD_INTS(avx512, i32, u32, 32)
DCOMMI_SIMD_INTS(avx512, i64, u64, 64)

static const dcommi_fold_fn dcommi_avx512_folds[10][DCOMMI_FOLD_KINDS] = DCOMMI_FOLD_TABLE(avx512);

#endif
