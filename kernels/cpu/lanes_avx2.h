/* lanes_avx2.h - the lanes of lanes_portable.h in two AVX2 registers (with F16C and FMA). */
#ifndef DCOMMI_LANES_AVX2_H
#define DCOMMI_LANES_AVX2_H

#include "lanes_portable.h"

#include <immintrin.h>

#define DCOMMI_v256_TARGET __attribute__((target("avx2,fma,f16c")))
#define DCOMMI_v256_INLINE DCOMMI_v256_TARGET __attribute__((always_inline, unused)) static inline

typedef struct dcommi_v256_i {
    __m256i lo, hi;
} dcommi_v256_i;
typedef struct dcommi_v256_f {
    __m256 lo, hi;
} dcommi_v256_f;
typedef __m256i dcommi_v256_h;

/* Define functions of one, two and three vectors, half by half. */
#define DCOMMI_V256_1(R, NAME, T, OP)                                        \
    DCOMMI_v256_INLINE dcommi_v256_##R dcommi_v256_##NAME(dcommi_v256_##T a) \
    {                                                                        \
        dcommi_v256_##R r = {OP(a.lo), OP(a.hi)};                            \
        return r;                                                            \
    }
#define DCOMMI_V256_2(R, NAME, OP)                                                              \
    DCOMMI_v256_INLINE dcommi_v256_##R dcommi_v256_##NAME(dcommi_v256_##R a, dcommi_v256_##R b) \
    {                                                                                           \
        dcommi_v256_##R r = {OP(a.lo, b.lo), OP(a.hi, b.hi)};                                   \
        return r;                                                                               \
    }
#define DCOMMI_V256_3(R, NAME, OP)                                                              \
    DCOMMI_v256_INLINE dcommi_v256_##R dcommi_v256_##NAME(dcommi_v256_##R a, dcommi_v256_##R b, \
                                                          dcommi_v256_##R c)                    \
    {                                                                                           \
        dcommi_v256_##R r = {OP(a.lo, b.lo, c.lo), OP(a.hi, b.hi, c.hi)};                       \
        return r;                                                                               \
    }

#define DCOMMI_V256_AND_OR(a, b, c) _mm256_or_si256(_mm256_and_si256(a, b), c)
#define DCOMMI_V256_AND_XOR(a, b, c) _mm256_xor_si256(_mm256_and_si256(a, b), c)
#define DCOMMI_V256_LESS(a, b) _mm256_cmpgt_epi32(b, a)
#define DCOMMI_V256_PICK(mask, a, b) _mm256_blendv_epi8(b, a, mask)
#define DCOMMI_V256_NORMAL(a)                                                                     \
    _mm256_andnot_ps(_mm256_castsi256_ps(_mm256_cmpeq_epi32(                                      \
                         _mm256_and_si256(_mm256_castps_si256(a), _mm256_set1_epi32(0x7f800000)), \
                         _mm256_setzero_si256())),                                                \
                     a)

DCOMMI_V256_1(i, as_i, f, _mm256_castps_si256)
DCOMMI_V256_1(f, as_f, i, _mm256_castsi256_ps)
DCOMMI_V256_1(i, to_int, f, _mm256_cvttps_epi32)
DCOMMI_V256_1(f, from_int, i, _mm256_cvtepi32_ps)
DCOMMI_V256_1(f, normal, f, DCOMMI_V256_NORMAL)
DCOMMI_V256_2(i, add_i, _mm256_add_epi32)
DCOMMI_V256_2(i, sub_i, _mm256_sub_epi32)
DCOMMI_V256_2(i, and_i, _mm256_and_si256)
DCOMMI_V256_2(i, or_i, _mm256_or_si256)
DCOMMI_V256_2(i, xor_i, _mm256_xor_si256)
DCOMMI_V256_3(i, and_or, DCOMMI_V256_AND_OR)
DCOMMI_V256_3(i, and_xor, DCOMMI_V256_AND_XOR)
DCOMMI_V256_2(i, max_i, _mm256_max_epi32)
DCOMMI_V256_2(i, min_i, _mm256_min_epi32)
DCOMMI_V256_2(i, sll, _mm256_sllv_epi32)
DCOMMI_V256_2(i, srl, _mm256_srlv_epi32)
DCOMMI_V256_2(i, sra, _mm256_srav_epi32)
DCOMMI_V256_2(i, less_i, DCOMMI_V256_LESS)
DCOMMI_V256_3(i, pick, DCOMMI_V256_PICK)

DCOMMI_v256_INLINE dcommi_v256_i dcommi_v256_pick_less(dcommi_v256_i a, dcommi_v256_i b,
                                                       dcommi_v256_i x, dcommi_v256_i y)
{
    return dcommi_v256_pick(dcommi_v256_less_i(a, b), x, y);
}

#define DCOMMI_V256_MUL_NORMAL(a, b) _mm256_mul_ps(DCOMMI_V256_NORMAL(a), b)
DCOMMI_V256_2(f, mul_normal, DCOMMI_V256_MUL_NORMAL)
DCOMMI_V256_2(f, add_f, _mm256_add_ps)
DCOMMI_V256_2(f, sub_f, _mm256_sub_ps)
DCOMMI_V256_2(f, mul_f, _mm256_mul_ps)
DCOMMI_V256_3(f, exact_add, _mm256_fmadd_ps)
DCOMMI_V256_3(f, exact_sub, _mm256_fnmadd_ps)

#define DCOMMI_V256(RESULT, NAME, ARGUMENTS, LO, HI)                     \
    DCOMMI_v256_INLINE dcommi_v256_##RESULT dcommi_v256_##NAME ARGUMENTS \
    {                                                                    \
        dcommi_v256_##RESULT r = {LO, HI};                               \
        return r;                                                        \
    }

DCOMMI_V256(i, set_i, (int32_t x), _mm256_set1_epi32(x), _mm256_set1_epi32(x))
DCOMMI_V256(f, set_f, (float x), _mm256_set1_ps(x), _mm256_set1_ps(x))
/* In this form compilers see a shift by a constant if n is one. */
typedef uint32_t dcommi_v256_words __attribute__((vector_size(32)));
#define DCOMMI_V256_ROL(a, n) \
    (__m256i)(((dcommi_v256_words)(a) << (n)) | ((dcommi_v256_words)(a) >> ((32 - (n)) & 31)))
DCOMMI_V256(i, rol, (dcommi_v256_i a, unsigned n), DCOMMI_V256_ROL(a.lo, n),
            DCOMMI_V256_ROL(a.hi, n))
DCOMMI_V256(i, unpack_h, (__m256i a), _mm256_cvtepu16_epi32(_mm256_castsi256_si128(a)),
            _mm256_cvtepu16_epi32(_mm256_extracti128_si256(a, 1)))
DCOMMI_V256(f, from_f16, (__m256i a), _mm256_cvtph_ps(_mm256_castsi256_si128(a)),
            _mm256_cvtph_ps(_mm256_extracti128_si256(a, 1)))

/* Return the lower halves of all lanes. */
DCOMMI_v256_INLINE __m256i dcommi_v256_pack_h(dcommi_v256_i a)
{
    const __m256i low = _mm256_set1_epi32(0xffff);
    __m256i mixed = _mm256_packus_epi32(_mm256_and_si256(a.lo, low), _mm256_and_si256(a.hi, low));
    return _mm256_permute4x64_epi64(mixed, 0xd8);
}

DCOMMI_v256_INLINE __m256i dcommi_v256_to_f16(dcommi_v256_f a)
{
    __m128i lo = _mm256_cvtps_ph(a.lo, _MM_FROUND_TO_NEAREST_INT);
    __m128i hi = _mm256_cvtps_ph(a.hi, _MM_FROUND_TO_NEAREST_INT);
    return _mm256_inserti128_si256(_mm256_castsi128_si256(lo), hi, 1);
}

/* Code k of a line, `bits` bits each, times a step. */
#define DCOMMI_v256_MARKS 0
typedef struct dcommi_v256_table {
    float step;
    bool binary;
} dcommi_v256_table;

DCOMMI_v256_INLINE dcommi_v256_table dcommi_v256_make_table(float step, unsigned bits, bool binary)
{
    dcommi_v256_table r = {step, binary};
    (void)bits;
    return r;
}

DCOMMI_v256_INLINE dcommi_v256_f dcommi_v256_look(const dcommi_v256_table *table,
                                                  dcommi_v256_i line, unsigned k, unsigned bits)
{
    dcommi_v256_i up = dcommi_v256_set_i((int32_t)(32 - bits * (k + 1)));
    dcommi_v256_i top = dcommi_v256_sll(line, up);
    dcommi_v256_f step = dcommi_v256_set_f(table->step);
    if (table->binary) {
        return dcommi_v256_as_f(dcommi_v256_and_xor(top, dcommi_v256_set_i((int32_t)0x80000000u),
                                                    dcommi_v256_as_i(step)));
    }
    top = dcommi_v256_sra(top, dcommi_v256_set_i((int32_t)(32 - bits)));
    return dcommi_v256_mul_f(dcommi_v256_from_int(top), step);
}

/* ---- memory ---- */

DCOMMI_V256(f, load_f, (const float *p), _mm256_loadu_ps(p), _mm256_loadu_ps(p + 8))
DCOMMI_V256(i, load_i, (const void *p), _mm256_loadu_si256((const __m256i *)p),
            _mm256_loadu_si256((const __m256i *)p + 1))

/* Widen each byte with its sign; keep the seven low bits and one copy of the sign. */
DCOMMI_v256_INLINE __m256i dcommi_v256_load_e4m3(const unsigned char *p)
{
    __m256i wide = _mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i *)(const void *)p));
    return _mm256_and_si256(_mm256_slli_epi16(wide, 7), _mm256_set1_epi16((short)0xbf80));
}

DCOMMI_v256_INLINE __m256i dcommi_v256_load_e5m2(const unsigned char *p)
{
    __m256i wide = _mm256_cvtepu8_epi16(_mm_loadu_si128((const __m128i *)(const void *)p));
    return _mm256_slli_epi16(wide, 8);
}

DCOMMI_v256_INLINE __m256i dcommi_v256_load_h(const void *p)
{
    return _mm256_loadu_si256((const __m256i *)p);
}

DCOMMI_v256_INLINE void dcommi_v256_store_f(float *p, dcommi_v256_f a, bool stream)
{
    if (stream) {
        _mm256_stream_ps(p, a.lo);
        _mm256_stream_ps(p + 8, a.hi);
    } else {
        _mm256_storeu_ps(p, a.lo);
        _mm256_storeu_ps(p + 8, a.hi);
    }
}

DCOMMI_v256_INLINE void dcommi_v256_store_h2(void *p, __m256i a, __m256i b, bool stream)
{
    if (stream) {
        _mm256_stream_si256((__m256i *)p, a);
        _mm256_stream_si256((__m256i *)p + 1, b);
    } else {
        _mm256_storeu_si256((__m256i *)p, a);
        _mm256_storeu_si256((__m256i *)p + 1, b);
    }
}

DCOMMI_v256_INLINE void dcommi_v256_store_i(void *p, dcommi_v256_i a, bool stream)
{
    dcommi_v256_store_h2(p, a.lo, a.hi, stream);
}

DCOMMI_v256_INLINE void dcommi_v256_store_b4(unsigned char *p, dcommi_v256_i a, dcommi_v256_i b,
                                             dcommi_v256_i c, dcommi_v256_i d, bool stream)
{
    const __m256i low = _mm256_set1_epi16(0xff);
    __m256i ab = _mm256_packus_epi16(_mm256_and_si256(dcommi_v256_pack_h(a), low),
                                     _mm256_and_si256(dcommi_v256_pack_h(b), low));
    __m256i cd = _mm256_packus_epi16(_mm256_and_si256(dcommi_v256_pack_h(c), low),
                                     _mm256_and_si256(dcommi_v256_pack_h(d), low));
    dcommi_v256_store_h2(p, _mm256_permute4x64_epi64(ab, 0xd8), _mm256_permute4x64_epi64(cd, 0xd8),
                         stream);
}

/* ---- over all lanes ---- */

DCOMMI_v256_INLINE uint32_t dcommi_v256_most(dcommi_v256_i a)
{
    __m256i h = _mm256_max_epi32(a.lo, a.hi);
    __m128i q = _mm_max_epi32(_mm256_castsi256_si128(h), _mm256_extracti128_si256(h, 1));
    q = _mm_max_epi32(q, _mm_unpackhi_epi64(q, q));
    return (uint32_t)_mm_cvtsi128_si32(_mm_max_epi32(q, _mm_shuffle_epi32(q, 1)));
}

DCOMMI_v256_INLINE bool dcommi_v256_any(dcommi_v256_i a)
{
    __m256i either = _mm256_or_si256(a.lo, a.hi);
    return !_mm256_testz_si256(either, either);
}

DCOMMI_v256_INLINE float dcommi_v256_sum(dcommi_v256_f a)
{
    __m256 h = _mm256_add_ps(a.lo, a.hi);
    __m128 q = _mm_add_ps(_mm256_castps256_ps128(h), _mm256_extractf128_ps(h, 1));
    q = _mm_add_ps(q, _mm_movehl_ps(q, q));
    return _mm_cvtss_f32(_mm_add_ss(q, _mm_shuffle_ps(q, q, 1)));
}

typedef struct dcommi_v256_d {
    __m256d lo, hi;
} dcommi_v256_d;

DCOMMI_V256(d, no_squares, (void), _mm256_setzero_pd(), _mm256_setzero_pd())

DCOMMI_v256_INLINE dcommi_v256_d dcommi_v256_add_products(dcommi_v256_d sum, dcommi_v256_f a,
                                                          dcommi_v256_f b)
{
    const __m256 x[2] = {a.lo, a.hi}, y[2] = {b.lo, b.hi};
    for (int h = 0; h < 2; h++) {
        sum.lo = _mm256_fmadd_pd(_mm256_cvtps_pd(_mm256_castps256_ps128(x[h])),
                                 _mm256_cvtps_pd(_mm256_castps256_ps128(y[h])), sum.lo);
        sum.hi = _mm256_fmadd_pd(_mm256_cvtps_pd(_mm256_extractf128_ps(x[h], 1)),
                                 _mm256_cvtps_pd(_mm256_extractf128_ps(y[h], 1)), sum.hi);
    }
    return sum;
}

DCOMMI_v256_INLINE dcommi_v256_d dcommi_v256_add_values(dcommi_v256_d sum, dcommi_v256_f a)
{
    const __m256 x[2] = {a.lo, a.hi};
    for (int h = 0; h < 2; h++) {
        sum.lo = _mm256_add_pd(sum.lo, _mm256_cvtps_pd(_mm256_castps256_ps128(x[h])));
        sum.hi = _mm256_add_pd(sum.hi, _mm256_cvtps_pd(_mm256_extractf128_ps(x[h], 1)));
    }
    return sum;
}

DCOMMI_V256(d, load_d, (const double *p), _mm256_loadu_pd(p), _mm256_loadu_pd(p + 4))

DCOMMI_v256_INLINE void dcommi_v256_store_d(double *p, dcommi_v256_d a)
{
    _mm256_storeu_pd(p, a.lo);
    _mm256_storeu_pd(p + 4, a.hi);
}

DCOMMI_v256_INLINE double dcommi_v256_sum_squares(dcommi_v256_d a)
{
    __m256d h = _mm256_add_pd(a.lo, a.hi);
    __m128d q = _mm_add_pd(_mm256_castpd256_pd128(h), _mm256_extractf128_pd(h, 1));
    return _mm_cvtsd_f64(_mm_add_sd(q, _mm_unpackhi_pd(q, q)));
}

#define DCOMMI_v256_CHAINS 1

typedef struct dcommi_v256_random {
    dcommi_v256_i word[2];
} dcommi_v256_random;

/* Two times four blocks in 64-bit lanes; see lanes_avx512.h. */
typedef struct dcommi_v256_philox {
    __m256i c0[2], c1[2], c2[2], c3[2];
} dcommi_v256_philox;

DCOMMI_v256_INLINE dcommi_v256_philox dcommi_v256_philox_begin(const dcommi_rng *rng,
                                                               uint64_t group)
{
    dcommi_v256_philox s;
    for (int h = 0; h < 2; h++) {
        s.c0[h] = _mm256_add_epi64(_mm256_set1_epi64x((long long)(8 * group) + 4 * h),
                                   _mm256_set_epi64x(3, 2, 1, 0));
        s.c1[h] = _mm256_srli_epi64(s.c0[h], 32);
        s.c2[h] = _mm256_set1_epi64x(rng->high[0]);
        s.c3[h] = _mm256_set1_epi64x(rng->high[1]);
    }
    return s;
}

DCOMMI_v256_INLINE dcommi_v256_philox dcommi_v256_philox_round(dcommi_v256_philox s,
                                                               const dcommi_rng *rng, unsigned i)
{
    for (int h = 0; h < 2; h++) {
        __m256i p0 = _mm256_mul_epu32(_mm256_set1_epi64x(DCOMMI_PHILOX_M0), s.c0[h]);
        __m256i p1 = _mm256_mul_epu32(_mm256_set1_epi64x(DCOMMI_PHILOX_M1), s.c2[h]);
        s.c0[h] = _mm256_xor_si256(_mm256_xor_si256(_mm256_srli_epi64(p1, 32), s.c1[h]),
                                   _mm256_set1_epi32((int)rng->key[2 * i]));
        s.c2[h] = _mm256_xor_si256(_mm256_xor_si256(_mm256_srli_epi64(p0, 32), s.c3[h]),
                                   _mm256_set1_epi32((int)rng->key[2 * i + 1]));
        s.c1[h] = p1;
        s.c3[h] = p0;
    }
    return s;
}

DCOMMI_v256_INLINE dcommi_v256_random dcommi_v256_philox_end(dcommi_v256_philox s)
{
    dcommi_v256_random r;
    r.word[0].lo = _mm256_blend_epi32(s.c0[0], _mm256_slli_epi64(s.c1[0], 32), 0xaa);
    r.word[0].hi = _mm256_blend_epi32(s.c0[1], _mm256_slli_epi64(s.c1[1], 32), 0xaa);
    r.word[1].lo = _mm256_blend_epi32(s.c2[0], _mm256_slli_epi64(s.c3[0], 32), 0xaa);
    r.word[1].hi = _mm256_blend_epi32(s.c2[1], _mm256_slli_epi64(s.c3[1], 32), 0xaa);
    return r;
}

#endif
