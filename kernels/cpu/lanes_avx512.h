/* lanes_avx512.h - the lanes of lanes_portable.h in one AVX-512 register (F, BW, VL, DQ).
 * Half-width vectors use lanes_avx2.h. */
#ifndef DCOMMI_LANES_AVX512_H
#define DCOMMI_LANES_AVX512_H

#include "lanes_avx2.h"

#include <math.h>

#define DCOMMI_v512_TARGET \
    __attribute__((target("avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq")))
#define DCOMMI_v512_INLINE DCOMMI_v512_TARGET __attribute__((always_inline, unused)) static inline

typedef __m512i dcommi_v512_i;
typedef __m512 dcommi_v512_f;
typedef __m256i dcommi_v512_h;

#define DCOMMI_V512(RESULT, NAME, ARGUMENTS, EXPRESSION)                 \
    DCOMMI_v512_INLINE dcommi_v512_##RESULT dcommi_v512_##NAME ARGUMENTS \
    {                                                                    \
        return (EXPRESSION);                                             \
    }

DCOMMI_V512(i, set_i, (int32_t x), _mm512_set1_epi32(x))
DCOMMI_V512(f, set_f, (float x), _mm512_set1_ps(x))
DCOMMI_V512(i, as_i, (__m512 a), _mm512_castps_si512(a))
DCOMMI_V512(f, as_f, (__m512i a), _mm512_castsi512_ps(a))
DCOMMI_V512(i, add_i, (__m512i a, __m512i b), _mm512_add_epi32(a, b))
DCOMMI_V512(i, sub_i, (__m512i a, __m512i b), _mm512_sub_epi32(a, b))
DCOMMI_V512(i, and_i, (__m512i a, __m512i b), _mm512_and_si512(a, b))
DCOMMI_V512(i, or_i, (__m512i a, __m512i b), _mm512_or_si512(a, b))
DCOMMI_V512(i, xor_i, (__m512i a, __m512i b), _mm512_xor_si512(a, b))
DCOMMI_V512(i, and_or, (__m512i a, __m512i b, __m512i c), _mm512_ternarylogic_epi32(a, b, c, 0xea))
DCOMMI_V512(i, and_xor, (__m512i a, __m512i b, __m512i c), _mm512_ternarylogic_epi32(a, b, c, 0x6a))
DCOMMI_V512(i, max_i, (__m512i a, __m512i b), _mm512_max_epi32(a, b))
DCOMMI_V512(i, min_i, (__m512i a, __m512i b), _mm512_min_epi32(a, b))
DCOMMI_V512(i, sll, (__m512i a, __m512i n), _mm512_sllv_epi32(a, n))
DCOMMI_V512(i, srl, (__m512i a, __m512i n), _mm512_srlv_epi32(a, n))
DCOMMI_V512(i, sra, (__m512i a, __m512i n), _mm512_srav_epi32(a, n))
/* In this form compilers see a rotation by a constant if n is one. */
typedef uint32_t dcommi_v512_words __attribute__((vector_size(64)));
DCOMMI_V512(i, rol, (__m512i a, unsigned n),
            (__m512i)(((dcommi_v512_words)a << n) | ((dcommi_v512_words)a >> ((32 - n) & 31))))
DCOMMI_V512(i, less_i, (__m512i a, __m512i b), _mm512_movm_epi32(_mm512_cmplt_epi32_mask(a, b)))
DCOMMI_V512(i, pick_less, (__m512i a, __m512i b, __m512i x, __m512i y),
            _mm512_mask_mov_epi32(y, _mm512_cmplt_epi32_mask(a, b), x))
DCOMMI_V512(f, normal, (__m512 a),
            _mm512_maskz_mov_ps(_mm512_test_epi32_mask(_mm512_castps_si512(a),
                                                       _mm512_set1_epi32(0x7f800000)),
                                a))
/* normal(a) * b */
DCOMMI_V512(f, mul_normal, (__m512 a, __m512 b),
            _mm512_maskz_mul_ps(_mm512_test_epi32_mask(_mm512_castps_si512(a),
                                                       _mm512_set1_epi32(0x7f800000)),
                                a, b))
DCOMMI_V512(f, add_f, (__m512 a, __m512 b), _mm512_add_ps(a, b))
DCOMMI_V512(f, sub_f, (__m512 a, __m512 b), _mm512_sub_ps(a, b))
DCOMMI_V512(f, mul_f, (__m512 a, __m512 b), _mm512_mul_ps(a, b))
DCOMMI_V512(f, exact_add, (__m512 a, __m512 b, __m512 c), _mm512_fmadd_ps(a, b, c))
DCOMMI_V512(f, exact_sub, (__m512 a, __m512 b, __m512 c), _mm512_fnmadd_ps(a, b, c))
DCOMMI_V512(i, to_int, (__m512 a), _mm512_cvttps_epi32(a))
DCOMMI_V512(f, from_int, (__m512i a), _mm512_cvtepi32_ps(a))
DCOMMI_V512(h, pack_h, (__m512i a), _mm512_cvtepi32_epi16(a))
DCOMMI_V512(i, unpack_h, (__m256i a), _mm512_cvtepu16_epi32(a))
DCOMMI_V512(h, to_f16, (__m512 a),
            _mm512_cvtps_ph(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC))
DCOMMI_V512(f, from_f16, (__m256i a), _mm512_cvtph_ps(a))

/* Code k of a line, `bits` bits each (1, 2 or 4), times a step. The lookup uses the four lowest
 * bits of each lane, so the table of shorter codes is repeated. The lowest code, which no encoder
 * writes, becomes NaN. */
#define DCOMMI_v512_MARKS 1
typedef __m512 dcommi_v512_table;

DCOMMI_v512_INLINE __m512 dcommi_v512_make_table(float step, unsigned bits, bool binary)
{
    const __m512i index = _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
    const __m512i rest = _mm512_set1_epi32((int)(32 - bits));
    __m512i level = _mm512_srav_epi32(_mm512_sllv_epi32(index, rest), rest);
    if (binary) { /* for signs bit 1 means -step; otherwise the step comes negated */
        level = _mm512_or_si512(level, _mm512_set1_epi32(1));
    }
    __m512 value = _mm512_mul_ps(_mm512_cvtepi32_ps(level), _mm512_set1_ps(step));
    __mmask16 lowest = _mm512_cmpeq_epi32_mask(level, _mm512_set1_epi32(-(1 << (bits - 1))));
    return binary ? value : _mm512_mask_mov_ps(value, lowest, _mm512_set1_ps(NAN));
}

/* Multiply to skip bits within a byte: more shifts would compete for the units that add. */
DCOMMI_v512_INLINE __m512 dcommi_v512_look(const __m512 *table, __m512i line, unsigned k,
                                           unsigned bits)
{
    const unsigned down = k * bits % 8;
    line = _mm512_srlv_epi32(line, _mm512_set1_epi32((int)(k * bits - down)));
    if (down != 0) {
        line = _mm512_mulhi_epu16(line, _mm512_set1_epi16((short)(1 << (16 - down))));
    }
    return _mm512_permutexvar_ps(line, *table);
}

/* ---- memory ---- */

DCOMMI_V512(f, load_f, (const float *p), _mm512_loadu_ps(p))
DCOMMI_V512(i, load_i, (const void *p), _mm512_loadu_si512(p))
DCOMMI_V512(h, load_h, (const void *p), dcommi_v256_load_h(p))
DCOMMI_V512(h, load_e4m3, (const unsigned char *p), dcommi_v256_load_e4m3(p))
DCOMMI_V512(h, load_e5m2, (const unsigned char *p), dcommi_v256_load_e5m2(p))

DCOMMI_v512_INLINE void dcommi_v512_store_f(float *p, __m512 a, bool stream)
{
    if (stream) {
        _mm512_stream_ps(p, a);
    } else {
        _mm512_storeu_ps(p, a);
    }
}

DCOMMI_v512_INLINE void dcommi_v512_store_i(void *p, __m512i a, bool stream)
{
    if (stream) {
        _mm512_stream_si512((__m512i *)p, a);
    } else {
        _mm512_storeu_si512(p, a);
    }
}

DCOMMI_v512_INLINE void dcommi_v512_store_h2(void *p, __m256i a, __m256i b, bool stream)
{
    dcommi_v512_store_i(p, _mm512_inserti64x4(_mm512_castsi256_si512(a), b, 1), stream);
}

DCOMMI_v512_INLINE void dcommi_v512_store_b4(unsigned char *p, __m512i a, __m512i b, __m512i c,
                                             __m512i d, bool stream)
{
    /* Packing interleaves four lanes of each vector. */
    const __m512i order = _mm512_set_epi32(15, 11, 7, 3, 14, 10, 6, 2, 13, 9, 5, 1, 12, 8, 4, 0);
    __m512i mixed = _mm512_packus_epi16(_mm512_packs_epi32(a, b), _mm512_packs_epi32(c, d));
    dcommi_v512_store_i(p, _mm512_permutexvar_epi32(order, mixed), stream);
}

/* ---- over all lanes ---- */

DCOMMI_v512_INLINE uint32_t dcommi_v512_most(__m512i a)
{
    return (uint32_t)_mm512_reduce_max_epi32(a);
}

DCOMMI_v512_INLINE bool dcommi_v512_any(__m512i a)
{
    return _mm512_test_epi32_mask(a, a) != 0;
}

DCOMMI_v512_INLINE float dcommi_v512_sum(__m512 a)
{
    dcommi_v256_f halves = {_mm512_castps512_ps256(a), _mm512_extractf32x8_ps(a, 1)};
    return dcommi_v256_sum(halves);
}

typedef __m512d dcommi_v512_d;

DCOMMI_v512_INLINE __m512d dcommi_v512_no_squares(void)
{
    return _mm512_setzero_pd();
}

DCOMMI_v512_INLINE __m512d dcommi_v512_add_products(__m512d sum, __m512 a, __m512 b)
{
    __m512d lo = _mm512_cvtps_pd(_mm512_castps512_ps256(a));
    __m512d hi = _mm512_cvtps_pd(_mm512_extractf32x8_ps(a, 1));
    sum = _mm512_fmadd_pd(lo, _mm512_cvtps_pd(_mm512_castps512_ps256(b)), sum);
    return _mm512_fmadd_pd(hi, _mm512_cvtps_pd(_mm512_extractf32x8_ps(b, 1)), sum);
}

DCOMMI_v512_INLINE __m512d dcommi_v512_add_values(__m512d sum, __m512 a)
{
    sum = _mm512_add_pd(sum, _mm512_cvtps_pd(_mm512_castps512_ps256(a)));
    return _mm512_add_pd(sum, _mm512_cvtps_pd(_mm512_extractf32x8_ps(a, 1)));
}

DCOMMI_V512(d, load_d, (const double *p), _mm512_loadu_pd(p))

DCOMMI_v512_INLINE void dcommi_v512_store_d(double *p, __m512d a)
{
    _mm512_storeu_pd(p, a);
}

DCOMMI_v512_INLINE double dcommi_v512_sum_squares(__m512d a)
{
    dcommi_v256_d halves = {_mm512_castpd512_pd256(a), _mm512_extractf64x4_pd(a, 1)};
    return dcommi_v256_sum_squares(halves);
}

#define DCOMMI_v512_CHAINS 4

typedef struct dcommi_v512_random {
    __m512i word[2];
} dcommi_v512_random;

/* Eight blocks in 64-bit lanes. Multiplication reads only the lower halves, so the upper halves do
 * not matter until the end. */
typedef struct dcommi_v512_philox {
    __m512i c0, c1, c2, c3;
} dcommi_v512_philox;

DCOMMI_v512_INLINE dcommi_v512_philox dcommi_v512_philox_begin(const dcommi_rng *rng,
                                                               uint64_t group)
{
    dcommi_v512_philox s;
    s.c0 = _mm512_add_epi64(_mm512_set1_epi64((long long)(8 * group)),
                            _mm512_set_epi64(7, 6, 5, 4, 3, 2, 1, 0));
    s.c1 = _mm512_srli_epi64(s.c0, 32);
    s.c2 = _mm512_set1_epi64(rng->high[0]);
    s.c3 = _mm512_set1_epi64(rng->high[1]);
    return s;
}

DCOMMI_v512_INLINE dcommi_v512_philox dcommi_v512_philox_round(dcommi_v512_philox s,
                                                               const dcommi_rng *rng, unsigned i)
{
    __m512i p0 = _mm512_mul_epu32(_mm512_set1_epi64(DCOMMI_PHILOX_M0), s.c0);
    __m512i p1 = _mm512_mul_epu32(_mm512_set1_epi64(DCOMMI_PHILOX_M1), s.c2);
    s.c0 = _mm512_ternarylogic_epi32(_mm512_srli_epi64(p1, 32), s.c1,
                                     _mm512_set1_epi32((int)rng->key[2 * i]), 0x96);
    s.c2 = _mm512_ternarylogic_epi32(_mm512_srli_epi64(p0, 32), s.c3,
                                     _mm512_set1_epi32((int)rng->key[2 * i + 1]), 0x96);
    s.c1 = p1;
    s.c3 = p0;
    return s;
}

DCOMMI_v512_INLINE dcommi_v512_random dcommi_v512_philox_end(dcommi_v512_philox s)
{
    dcommi_v512_random r = {{_mm512_mask_mov_epi32(s.c0, 0xaaaa, _mm512_slli_epi64(s.c1, 32)),
                             _mm512_mask_mov_epi32(s.c2, 0xaaaa, _mm512_slli_epi64(s.c3, 32))}};
    return r;
}

#endif
