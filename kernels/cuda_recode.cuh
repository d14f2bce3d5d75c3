/* cuda_recode.cuh - two to four wires of 4 bits that are summed and encoded again, as nearly all
 * warps can do it.
 *
 * Where the largest step is less than some eight times the least, sums are exact in f32: a step has
 * 16 significant bits; sums of four codes, even counted from the lowest code, have five more, and
 * three that the steps differ by. So their order does not show, and offsets may be taken off before
 * they are added. A code is then used where it lies in its word, as a denormal number, by a step
 * that makes up for it: two instructions for each code. */
#ifndef DCOMMI_CUDA_RECODE_H
#define DCOMMI_CUDA_RECODE_H

#include "cuda_measure.cuh"
#include "cuda_wires.cuh"

/* Exponents of f32: what the largest step's becomes, and by how much sums are then too small, their
 * codes counting in 2^-149. */
#define DCOMMI_CUDA_RECODE_BASE (250u << 23)
#define DCOMMI_CUDA_RECODE_DOWN (26u << 23)
#define DCOMMI_CUDA_RECODE_APART (3u << 23)

/* Whether a call is of the kind. */
static bool dcommi_cuda_recode_suits(const dcommi_cuda_bucket &p, int format)
{
    return format == DCOMMI_FORMAT_Q4 && p.wires.in.n >= 2 && p.wires.in.n <= 4 &&
           p.residual == NULL && !p.two_norm && p.wires.pairs && p.wire_pairs &&
           p.count < (uint64_t)DCOMMI_CUDA_OWN << 32;
}

/* The thread's sums, by *scale too small. False: they are not exact, or a wire is corrupt. */
template <int WIRES>
DCOMMI_CUDA_INLINE bool dcommi_cuda_recode_sum(const dcommi_cuda_bucket &p, uint32_t own,
                                               float v[DCOMMI_CUDA_OWN], float *scale)
{
    uint2 codes[WIRES];
    uint32_t step[WIRES];
#pragma unroll
    for (int w = 0; w < WIRES; w++) {
        const unsigned char *wire = static_cast<const unsigned char *>(p.wires.in.at[w]);
        codes[w] = dcommi_cuda_load<uint2>(wire + (uint64_t)own * 8);
        step[w] = dcommi_cuda_load<uint32_t>(wire + p.codes + (uint64_t)(own >> p.team) * 4);
    }
    uint32_t least = step[0], most = step[0], low = step[0];
#pragma unroll
    for (int w = 1; w < WIRES; w++) {
        least = step[w] < least ? step[w] : least;
        most = step[w] > most ? step[w] : most;
        low |= step[w];
    }
    const uint32_t top = most & 0x7f800000u;
    *scale = dcommi_f32_from_bits(top + DCOMMI_CUDA_RECODE_DOWN);
    bool odd = (low & 0xffu) != 0;
    odd |= least < dcommi_f32_bits(0x1p-80f);
    odd |= most > dcommi_f32_bits(0x1p100f);
    odd |= top - (least & 0x7f800000u) > DCOMMI_CUDA_RECODE_APART;
    float by[WIRES], all = 0;
#pragma unroll
    for (int w = 0; w < WIRES; w++) {
        by[w] = dcommi_f32_from_bits(step[w] - top + DCOMMI_CUDA_RECODE_BASE);
        all = w > 0 ? __fadd_rn(all, by[w]) : by[w];
    }
    const float lowest = __fmul_rn(all, -0x1p-146f); /* all codes are -8 */
#pragma unroll
    for (int e = 0; e < DCOMMI_CUDA_OWN; e++) {
        v[e] = lowest;
    }
    uint32_t bad = 0;
#pragma unroll
    for (int w = 0; w < WIRES; w++) {
        const uint32_t up[2] = {codes[w].x ^ 0x88888888u, codes[w].y ^ 0x88888888u};
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
    return !odd && (bad & 0x88888888u) == 0;
}

/* What a warp's threads have to do, number `own` of all; false, and nothing is done: it is not as
 * usual. */
template <int WIRES>
DCOMMI_CUDA_INLINE bool dcommi_cuda_recode(const dcommi_cuda_bucket &p, uint32_t own)
{
    float v[DCOMMI_CUDA_OWN], factor;
    const bool exact = dcommi_cuda_recode_sum<WIRES>(p, own, v, &factor);
    factor = __fmul_rn(factor, p.factor);
    const uint32_t bits = dcommi_f32_bits(factor) & 0x7fffffffu;
    float after = factor; /* a power of two may be left to the end */
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
    if (__any_sync(DCOMMI_CUDA_ALL, !exact || !within)) {
        return false;
    }
    dcommi_cuda_scale scale;
    scale.step = dcommi_cuda_wire_step(most, p.most, p.inverse_most);
    scale.inverse = __fmul_rn(dcommi_cuda_inverse(scale.step, p.how.unit), after);
    const uint64_t block = 8 * p.how.rng.group + own;
    const dcommi_cuda_codes<DCOMMI_FORMAT_Q4> codes =
        p.how.stochastic
            ? dcommi_cuda_encode_own<DCOMMI_FORMAT_Q4, true, false>(v, scale, p.how, block)
            : dcommi_cuda_encode_own<DCOMMI_FORMAT_Q4, false, false>(v, scale, p.how, block);
    dcommi_cuda_words_store(p.wire + (uint64_t)own * 8, codes.w[0], codes.w[1], true);
    if ((own & (team - 1)) == 0) {
        dcommi_cuda_store<float>(p.wire + p.codes + (uint64_t)(own >> p.team) * 4, scale.step);
    }
    return true;
}

#endif
