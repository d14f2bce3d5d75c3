/* recode.cuh - the fast path of recoding: sum two to four wires of 4 or 8 bits and encode the sum.
 * Nearly all warps can take it. It loads all words before it uses the first, and handles no single
 * element specially.
 *
 * With 4 bits, sums are exact in f32 if the largest step is less than about eight times the
 * smallest. A step has 16 significant bits; sums of four codes, even counted from the lowest code,
 * need five more; the ratio of the steps needs three. So the order of additions does not matter,
 * and offsets can be subtracted beforehand. A code is then used in its place in the word, as a
 * denormal number, with a step that compensates: two instructions for each code.
 *
 * With 8 bits only products are exact. Sums are rounded in the order of wires, as on a CPU. */
#ifndef DCOMMI_CUDA_RECODE_H
#define DCOMMI_CUDA_RECODE_H

#include "measure.cuh"
#include "wires.cuh"

/* As exponents of f32. BASE: given to the largest step. DOWN: by this much sums are then too
 * small, because codes count in units of 2^-149. APART: the most that steps may differ by. */
#define DCOMMI_CUDA_RECODE_BASE (250u << 23)
#define DCOMMI_CUDA_RECODE_DOWN (26u << 23)
#define DCOMMI_CUDA_RECODE_APART (3u << 23)

/* Return true if a call can use this path. */
static bool dcommi_cuda_recode_suits(const dcommi_cuda_bucket &p, int format)
{
    return (format == DCOMMI_FORMAT_Q4 || format == DCOMMI_FORMAT_Q8) && p.wires.in.n >= 2 &&
           p.wires.in.n <= 4 && p.residual == NULL && !p.two_norm && p.wires.pairs &&
           p.wire_pairs && p.count < (uint64_t)DCOMMI_CUDA_OWN << 32;
}

/* Return the offset of a thread's first two words; with 8 bits, the other two are one line
 * behind. */
template <int FORMAT> DCOMMI_CUDA_INLINE uint64_t dcommi_cuda_recode_at(uint32_t own)
{
    return FORMAT == DCOMMI_FORMAT_Q8
               ? (uint64_t)(own / DCOMMI_CUDA_TEAM) * DCOMMI_RNG_GROUP + own % DCOMMI_CUDA_TEAM * 8
               : (uint64_t)own * 8;
}

template <int FORMAT>
DCOMMI_CUDA_INLINE dcommi_cuda_codes<FORMAT> dcommi_cuda_recode_load(const unsigned char *at)
{
    const int last = dcommi_cuda_format<FORMAT>::WORDS - 2;
    dcommi_cuda_codes<FORMAT> codes;
    uint2 words = dcommi_cuda_load<uint2>(at);
    codes.w[0] = words.x;
    codes.w[1] = words.y;
    if (last > 0) {
        words = dcommi_cuda_load<uint2>(at + DCOMMI_WIRE_LINE);
        codes.w[last] = words.x;
        codes.w[last + 1] = words.y;
    }
    return codes;
}

/* The steps of the thread's bucket. odd: no encoder wrote one of them, they are extreme, or (4
 * bits) they differ so much that sums are not exact. */
template <int WIRES> struct dcommi_cuda_recode_steps {
    uint32_t step[WIRES], least, most;
    bool odd;
};

template <int FORMAT, int WIRES>
DCOMMI_CUDA_INLINE dcommi_cuda_recode_steps<WIRES>
dcommi_cuda_recode_steps_load(const dcommi_cuda_bucket &p, uint32_t own)
{
    dcommi_cuda_recode_steps<WIRES> s;
    const uint64_t at = p.codes + (uint64_t)(own >> p.team) * 4;
#pragma unroll
    for (int w = 0; w < WIRES; w++) {
        const unsigned char *wire = static_cast<const unsigned char *>(p.wires.in.at[w]);
        s.step[w] = dcommi_cuda_load<uint32_t>(wire + at);
    }
    s.least = s.most = s.step[0];
    uint32_t low = s.step[0];
#pragma unroll
    for (int w = 1; w < WIRES; w++) {
        s.least = s.step[w] < s.least ? s.step[w] : s.least;
        s.most = s.step[w] > s.most ? s.step[w] : s.most;
        low |= s.step[w];
    }
    s.odd = (low & 0xffu) != 0 || s.least < dcommi_f32_bits(0x1p-80f) ||
            s.most > dcommi_f32_bits(0x1p100f);
    if (FORMAT == DCOMMI_FORMAT_Q4) {
        s.odd =
            s.odd || (s.most & 0x7f800000u) - (s.least & 0x7f800000u) > DCOMMI_CUDA_RECODE_APART;
    }
    return s;
}

/* Compute the thread's sums, which are too small by the factor *scale. Return false if a wire is
 * corrupt. */
template <int WIRES>
DCOMMI_CUDA_INLINE bool
dcommi_cuda_recode_sum4(const dcommi_cuda_codes<DCOMMI_FORMAT_Q4> codes[WIRES],
                        const dcommi_cuda_recode_steps<WIRES> &s, float v[DCOMMI_CUDA_OWN],
                        float *scale)
{
    const uint32_t top = s.most & 0x7f800000u;
    *scale = dcommi_f32_from_bits(top + DCOMMI_CUDA_RECODE_DOWN);
    float by[WIRES], all = 0;
#pragma unroll
    for (int w = 0; w < WIRES; w++) {
        by[w] = dcommi_f32_from_bits(s.step[w] - top + DCOMMI_CUDA_RECODE_BASE);
        all = w > 0 ? __fadd_rn(all, by[w]) : by[w];
    }
    const float lowest = __fmul_rn(all, -0x1p-146f); /* if all codes are -8 */
#pragma unroll
    for (int e = 0; e < DCOMMI_CUDA_OWN; e++) {
        v[e] = lowest;
    }
    uint32_t bad = 0;
#pragma unroll
    for (int w = 0; w < WIRES; w++) {
        const uint32_t up[2] = {codes[w].w[0] ^ 0x88888888u, codes[w].w[1] ^ 0x88888888u};
        bad |= (up[0] - 0x11111111u) & ~up[0];
        bad |= (up[1] - 0x11111111u) & ~up[1];
#pragma unroll
        for (int k = 0; k < 8; k++) {
            const int bit = 4 * (k % 4);
            const float times = bit == 0 ? by[w] : __fmul_rn(by[w], 1.0f / (float)(1 << bit));
#pragma unroll
            for (int c = 0; c < 2; c++) {
                const uint32_t code = (k < 4 ? up[c] : up[c] >> 16) & 0xfu << bit;
                v[2 * k + c] = __fmaf_rn(dcommi_f32_from_bits(code), times, v[2 * k + c]);
            }
        }
    }
    return (bad & 0x88888888u) == 0;
}

/* Return a code of 8 bits as a number. `magic` is 2^23, which nvcc must not know: two constants
 * would cost a move for each code. */
DCOMMI_CUDA_INLINE float dcommi_cuda_recode_level8(const dcommi_cuda_codes<DCOMMI_FORMAT_Q8> &codes,
                                                   int e, float magic)
{
    const int k = e / 2, c = e % 2;
    const uint32_t up = codes.w[DCOMMI_CUDA_WORD(8, k, c)] ^ 0x80808080u;
    const uint32_t alone = __byte_perm(up, dcommi_f32_bits(magic), 0x7440u | (unsigned)(k % 4));
    return __fsub_rn(dcommi_f32_from_bits(alone), 8388608.0f + 128.0f);
}

/* Compute the thread's sums of 8-bit codes. Return false if a wire is corrupt. Steps are so large
 * that no sum but 0 is below 2^-95, so a factor may be applied at the end. */
template <int WIRES>
DCOMMI_CUDA_INLINE bool
dcommi_cuda_recode_sum8(const dcommi_cuda_codes<DCOMMI_FORMAT_Q8> codes[WIRES],
                        const dcommi_cuda_recode_steps<WIRES> &s, float magic,
                        float v[DCOMMI_CUDA_OWN])
{
    uint32_t bad = 0;
#pragma unroll
    for (int w = 0; w < WIRES; w++) {
        const float step = dcommi_f32_from_bits(s.step[w]);
        bad |= dcommi_cuda_forbidden<DCOMMI_FORMAT_Q8>(codes[w]);
#pragma unroll
        for (int e = 0; e < DCOMMI_CUDA_OWN; e++) {
            const float level = dcommi_cuda_recode_level8(codes[w], e, magic);
            v[e] = w == 0 ? __fmul_rn(level, step) : __fmaf_rn(level, step, v[e]);
        }
    }
    return bad == 0;
}

/* Recode the elements of thread number `own` of all. Return false, having done nothing, if the
 * warp cannot take the fast path. */
template <int FORMAT, int WIRES>
DCOMMI_CUDA_INLINE bool dcommi_cuda_recode(const dcommi_cuda_bucket &p, uint32_t own)
{
    const uint64_t at = dcommi_cuda_recode_at<FORMAT>(own);
    dcommi_cuda_codes<FORMAT> codes[WIRES];
#pragma unroll
    for (int w = 0; w < WIRES; w++) {
        codes[w] = dcommi_cuda_recode_load<FORMAT>(
            static_cast<const unsigned char *>(p.wires.in.at[w]) + at);
    }
    const dcommi_cuda_recode_steps<WIRES> s = dcommi_cuda_recode_steps_load<FORMAT, WIRES>(p, own);
    if (__any_sync(DCOMMI_CUDA_ALL, s.odd)) { /* decide early: steps may all be zero */
        return false;
    }
    float v[DCOMMI_CUDA_OWN], factor = 1;
    bool fine;
    if constexpr (FORMAT == DCOMMI_FORMAT_Q8) {
        fine = dcommi_cuda_recode_sum8<WIRES>(codes, s, p.how.magic, v);
    } else {
        fine = dcommi_cuda_recode_sum4<WIRES>(codes, s, v, &factor);
    }
    factor = __fmul_rn(factor, p.factor);
    const uint32_t bits = dcommi_f32_bits(factor) & 0x7fffffffu;
    float after = factor; /* a power of two may be applied at the end */
    if ((dcommi_f32_bits(p.factor) & 0x007fffffu) != 0) {
#pragma unroll
        for (int e = 0; e < DCOMMI_CUDA_OWN; e++) {
            v[e] = __fmul_rn(v[e], factor);
        }
        after = 1;
    }
    float size = fabsf(v[0]);
#pragma unroll
    for (int e = 1; e < DCOMMI_CUDA_OWN; e++) {
        size = fmaxf(size, fabsf(v[e]));
    }
    const unsigned team = 1u << p.team;
    const float most = fabsf(
        __fmul_rn(dcommi_f32_from_bits(dcommi_cuda_team_most(dcommi_f32_bits(size), team)), after));
    const bool within = bits - 0x00800000u < 0x7f000000u && most >= DCOMMI_WIRE_LEAST &&
                        most <= DCOMMI_WIRE_LARGEST;
    if (__any_sync(DCOMMI_CUDA_ALL, !fine || !within)) {
        return false;
    }
    dcommi_cuda_scale scale;
    scale.step = dcommi_cuda_wire_step(most, p.most, p.inverse_most);
    scale.inverse = __fmul_rn(dcommi_cuda_inverse(scale.step, p.how.unit), after);
    const uint64_t block = 8 * p.how.rng.group + own;
    const dcommi_cuda_codes<FORMAT> sent =
        p.how.stochastic ? dcommi_cuda_encode_own<FORMAT, true, false>(v, scale, p.how, block)
                         : dcommi_cuda_encode_own<FORMAT, false, false>(v, scale, p.how, block);
    const int last = dcommi_cuda_format<FORMAT>::WORDS - 2;
    dcommi_cuda_words_store(p.wire + at, sent.w[0], sent.w[1], true);
    if (last > 0) {
        dcommi_cuda_words_store(p.wire + at + DCOMMI_WIRE_LINE, sent.w[last], sent.w[last + 1],
                                true);
    }
    if ((own & (team - 1)) == 0) {
        dcommi_cuda_store<float>(p.wire + p.codes + (uint64_t)(own >> p.team) * 4, scale.step);
    }
    return true;
}

#endif
