/* topk_scan.h - top-k's pass over the input: keep the elements that reach a threshold.
 *
 * Magnitudes are compared as the bits of |x|, which have the order of the numbers; infinities and
 * then NaNs are above them all. Kept elements (bits and index) are appended in order of index.
 * With a residual, the scan looks at x + residual. `next` gets the sums that are not kept, and 0
 * for kept elements. Such a scan stops before a sum that is not finite, so that it stores no such
 * number; the caller decides how it counts. */
#ifndef DCOMMI_CPU_TOPK_SCAN_H
#define DCOMMI_CPU_TOPK_SCAN_H

#include "isa.h"
#include "lanes_portable.h"

#if defined(__x86_64__)
#include "lanes_avx2.h"
#include "lanes_avx512.h"
#endif

#define DCOMMI_ABS_BITS 0x7fffffffu
#define DCOMMI_INF_BITS 0x7f800000u
#define DCOMMI_NORMAL_BITS 0x00800000u /* of the least normal number */
/* Kept elements are stored in whole vectors: up to this many are written behind the last. */
#define DCOMMI_TOPK_SLACK 16
/* Distance, in elements, at which inputs are prefetched into the L2 cache. A shorter distance, or
 * the L1 cache, is slower. */
#define DCOMMI_TOPK_AHEAD 3072

/* Scan x[0..n), whose indices start at `first`; `have` elements are kept already. Return the
 * number kept then; *done is how far the scan came. threshold <= DCOMMI_INF_BITS. stream: `next`
 * may be written with nontemporal stores, which the caller ends with dcommi_settle. */
typedef size_t (*dcommi_topk_scan_fn)(const float *x, const float *residual, float *next, size_t n,
                                      uint32_t first, uint32_t threshold, uint32_t *bits,
                                      uint32_t *index, size_t have, bool stream, size_t *done);

static size_t dcommi_topk_scan_port(const float *x, const float *residual, float *next, size_t n,
                                    uint32_t first, uint32_t threshold, uint32_t *bits,
                                    uint32_t *index, size_t have, bool stream, size_t *done)
{
    size_t i = 0;
    (void)stream;
    if (residual == NULL) {
        for (; i < n; i++) {
            uint32_t b = dcommi_f32_bits(x[i]);
            bits[have] = b;
            index[have] = first + (uint32_t)i;
            have += (b & DCOMMI_ABS_BITS) >= threshold;
        }
    }
    for (; i < n; i++) {
        uint32_t b = dcommi_f32_bits(x[i] + residual[i]);
        uint32_t key = b & DCOMMI_ABS_BITS;
        if (DCOMMI_UNLIKELY(key >= DCOMMI_INF_BITS)) {
            break;
        }
        bits[have] = b;
        index[have] = first + (uint32_t)i;
        have += key >= threshold;
        next[i] = dcommi_f32_from_bits(key >= threshold ? 0 : b);
    }
    *done = i;
    return have;
}

#if defined(__x86_64__)

/* Prefetch n elements that come later. */
static inline void dcommi_topk_ahead(const float *x, int n)
{
    for (int i = 0; i < n; i += 16) {
        dcommi_ahead(x + DCOMMI_TOPK_AHEAD + i);
    }
}

/* Append those of 32 elements whose bit in `mask` is set, reading them from memory. */
static inline size_t dcommi_topk_pick(uint32_t mask, const float *x, uint32_t first, uint32_t *bits,
                                      uint32_t *index, size_t have)
{
    for (; mask != 0; mask &= mask - 1) {
        uint32_t lane = (uint32_t)__builtin_ctz(mask);
        bits[have] = dcommi_f32_bits(x[lane]);
        index[have++] = first + lane;
    }
    return have;
}

DCOMMI_v256_INLINE uint32_t dcommi_topk_reach_avx2(__m256i v, __m256i below)
{
    __m256i key = _mm256_and_si256(v, _mm256_set1_epi32((int)DCOMMI_ABS_BITS));
    return (uint32_t)_mm256_movemask_ps(_mm256_castsi256_ps(_mm256_cmpgt_epi32(key, below)));
}

DCOMMI_v256_TARGET static size_t dcommi_topk_scan_avx2(const float *x, const float *residual,
                                                       float *next, size_t n, uint32_t first,
                                                       uint32_t threshold, uint32_t *bits,
                                                       uint32_t *index, size_t have, bool stream,
                                                       size_t *done)
{
    const __m256i below = _mm256_set1_epi32((int)threshold - 1);
    const __m256i finite = _mm256_set1_epi32((int)DCOMMI_INF_BITS - 1);
    size_t i = 0;
    for (; n - i >= 32; i += 32) {
        const float *in = x + i;
        uint32_t mask = 0;
        dcommi_topk_ahead(in, 32);
        if (residual == NULL) {
            for (int v = 0; v < 4; v++) {
                mask |= dcommi_topk_reach_avx2(
                            _mm256_loadu_si256((const __m256i *)(const void *)(in + 8 * v)), below)
                        << (8 * v);
            }
            have = dcommi_topk_pick(mask, in, first + (uint32_t)i, bits, index, have);
            continue;
        }
        const float *left = residual + i;
        dcommi_topk_ahead(left, 32);
        __m256i sum[4];
        uint32_t wild = 0;
        for (int v = 0; v < 4; v++) {
            sum[v] = _mm256_castps_si256(
                _mm256_add_ps(_mm256_loadu_ps(in + 8 * v), _mm256_loadu_ps(left + 8 * v)));
            mask |= dcommi_topk_reach_avx2(sum[v], below) << (8 * v);
            wild |= dcommi_topk_reach_avx2(sum[v], finite);
        }
        if (DCOMMI_UNLIKELY(wild != 0)) {
            break;
        }
        for (int v = 0; v < 4; v++) {
            _mm256_storeu_si256((__m256i *)(void *)(next + i + 8 * v), sum[v]);
        }
        size_t had = have;
        have = dcommi_topk_pick(mask, next + i, first + (uint32_t)i, bits, index, have);
        for (; had < have; had++) {
            next[index[had] - first] = 0;
        }
    }
    size_t more;
    have = dcommi_topk_scan_port(x + i, residual == NULL ? NULL : residual + i,
                                 next == NULL ? NULL : next + i, n - i, first + (uint32_t)i,
                                 threshold, bits, index, have, stream, &more);
    *done = i + more;
    return have;
}

DCOMMI_v512_INLINE size_t dcommi_topk_keep_avx512(__mmask16 mask, __m512i v, __m512i at,
                                                  uint32_t *bits, uint32_t *index, size_t have)
{
    _mm512_storeu_si512(bits + have, _mm512_maskz_compress_epi32(mask, v));
    _mm512_storeu_si512(index + have, _mm512_maskz_compress_epi32(mask, at));
    return have + (size_t)__builtin_popcount(mask);
}

DCOMMI_v512_TARGET static size_t dcommi_topk_scan_avx512(const float *x, const float *residual,
                                                         float *next, size_t n, uint32_t first,
                                                         uint32_t threshold, uint32_t *bits,
                                                         uint32_t *index, size_t have, bool stream,
                                                         size_t *done)
{
    const __m512i magnitude = _mm512_set1_epi32((int)DCOMMI_ABS_BITS);
    const __m512i limit = _mm512_set1_epi32((int)threshold);
    const __m512i infinite = _mm512_set1_epi32((int)DCOMMI_INF_BITS);
    const __m512i step = _mm512_set1_epi32(16);
    stream = stream && (uintptr_t)next % sizeof(__m512i) == 0;
    __m512i at =
        _mm512_add_epi32(_mm512_set1_epi32((int)first),
                         _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15));
    size_t i = 0;
    for (; residual == NULL && n - i >= 64; i += 64) {
        dcommi_topk_ahead(x + i, 64);
        for (int v = 0; v < 4; v++) {
            __m512i b = _mm512_loadu_si512(x + i + 16 * v);
            __mmask16 kept = _mm512_cmpge_epi32_mask(_mm512_and_si512(b, magnitude), limit);
            have = dcommi_topk_keep_avx512(kept, b, at, bits, index, have);
            at = _mm512_add_epi32(at, step);
        }
    }
    for (size_t stored = 0; residual != NULL && n - i >= 64;) {
        dcommi_topk_ahead(x + i, 64);
        dcommi_topk_ahead(residual + i, 64);
        __m512i b[4], key[4];
        for (int v = 0; v < 4; v++) {
            b[v] = _mm512_castps_si512(_mm512_add_ps(_mm512_loadu_ps(x + i + 16 * v),
                                                     _mm512_loadu_ps(residual + i + 16 * v)));
            key[v] = _mm512_and_si512(b[v], magnitude);
        }
        __m512i most =
            _mm512_max_epi32(_mm512_max_epi32(key[0], key[1]), _mm512_max_epi32(key[2], key[3]));
        bool wild = _mm512_cmpge_epi32_mask(most, infinite) != 0;
        for (int v = 0; v < 4 && !wild; v++) {
            __mmask16 kept = _mm512_cmpge_epi32_mask(key[v], limit);
            if (!stream) {
                _mm512_storeu_si512(next + i + 16 * v,
                                    _mm512_maskz_mov_epi32((__mmask16)~kept, b[v]));
            }
            have = dcommi_topk_keep_avx512(kept, b[v], at, bits, index, have);
            at = _mm512_add_epi32(at, step);
        }
        i += wild ? 0 : 64;
        /* Use nontemporal stores in separate runs: other stores in between would break up the
         * lines. */
        if (stream && (wild || i - stored == 512 || n - i < 64)) {
            for (; stored < i; stored += 16) {
                __m512i sum = _mm512_castps_si512(
                    _mm512_add_ps(_mm512_loadu_ps(x + stored), _mm512_loadu_ps(residual + stored)));
                __mmask16 left = _mm512_cmplt_epi32_mask(_mm512_and_si512(sum, magnitude), limit);
                _mm512_stream_si512((__m512i *)(void *)(next + stored),
                                    _mm512_maskz_mov_epi32(left, sum));
            }
        }
        if (DCOMMI_UNLIKELY(wild)) {
            break;
        }
    }
    size_t more;
    have = dcommi_topk_scan_port(x + i, residual == NULL ? NULL : residual + i,
                                 next == NULL ? NULL : next + i, n - i, first + (uint32_t)i,
                                 threshold, bits, index, have, stream, &more);
    *done = i + more;
    return have;
}

#endif

/* Keep, in order, the elements above `kth` and the first `equal` that equal it. Put the others
 * back into `next`, unless it is NULL or the number is not finite. Return how many stay. */
typedef size_t (*dcommi_topk_filter_fn)(uint32_t *bits, uint32_t *index, size_t n, uint32_t kth,
                                        size_t equal, float *next);

static size_t dcommi_topk_filter_from(uint32_t *bits, uint32_t *index, size_t n, uint32_t kth,
                                      size_t equal, float *next, size_t i, size_t to)
{
    for (; i < n; i++) {
        uint32_t b = bits[i], at = index[i];
        uint32_t key = b & DCOMMI_ABS_BITS;
        bool tie = key == kth && equal > 0;
        bool keep = key > kth || tie;
        equal -= tie;
        bits[to] = b;
        index[to] = at;
        to += keep;
        if (!keep && next != NULL && key < DCOMMI_INF_BITS) {
            next[at] = dcommi_f32_from_bits(b);
        }
    }
    return to;
}

static size_t dcommi_topk_filter_port(uint32_t *bits, uint32_t *index, size_t n, uint32_t kth,
                                      size_t equal, float *next)
{
    return dcommi_topk_filter_from(bits, index, n, kth, equal, next, 0, 0);
}

#if defined(__x86_64__)

DCOMMI_v512_TARGET static size_t dcommi_topk_filter_avx512(uint32_t *bits, uint32_t *index,
                                                           size_t n, uint32_t kth, size_t equal,
                                                           float *next)
{
    const __m512i magnitude = _mm512_set1_epi32((int)DCOMMI_ABS_BITS);
    const __m512i limit = _mm512_set1_epi32((int)kth);
    size_t i = 0, to = 0;
    for (; n - i >= 16; i += 16) {
        __m512i b = _mm512_loadu_si512(bits + i);
        __m512i at = _mm512_loadu_si512(index + i);
        __m512i key = _mm512_and_si512(b, magnitude);
        __mmask16 keep = _mm512_cmpgt_epi32_mask(key, limit);
        uint32_t tie = _mm512_cmpeq_epi32_mask(key, limit);
        for (; tie != 0 && equal > 0; tie &= tie - 1, equal--) {
            keep = (__mmask16)(keep | (tie & (0 - tie)));
        }
        if (next != NULL) {
            for (uint32_t drop = (uint16_t)~keep; drop != 0; drop &= drop - 1) {
                size_t lane = i + (unsigned)__builtin_ctz(drop);
                if ((bits[lane] & DCOMMI_ABS_BITS) < DCOMMI_INF_BITS) {
                    next[index[lane]] = dcommi_f32_from_bits(bits[lane]);
                }
            }
        }
        _mm512_storeu_si512(bits + to, _mm512_maskz_compress_epi32(keep, b));
        _mm512_storeu_si512(index + to, _mm512_maskz_compress_epi32(keep, at));
        to += (size_t)__builtin_popcount(keep);
    }
    return dcommi_topk_filter_from(bits, index, n, kth, equal, next, i, to);
}

#endif

static dcommi_topk_filter_fn dcommi_topk_filter_get(void)
{
#if defined(__x86_64__)
    if (dcommi_isa_get() == DCOMMI_ISA_AVX512) {
        return dcommi_topk_filter_avx512;
    }
#endif
    return dcommi_topk_filter_port;
}

static dcommi_topk_scan_fn dcommi_topk_scan_get(void)
{
    switch (dcommi_isa_get()) {
#if defined(__x86_64__)
    case DCOMMI_ISA_AVX512:
        return dcommi_topk_scan_avx512;
    case DCOMMI_ISA_AVX2:
        return dcommi_topk_scan_avx2;
#endif
    default:
        return dcommi_topk_scan_port;
    }
}

#endif
