/* cast.cuh - casts to f16 and bf16, of an array or of a sum of casts, with or without feedback;
 * and back. Threads have the elements that cuda/bucket.cuh gives them, so that random numbers
 * agree. */
#ifndef DCOMMI_CUDA_CAST_H
#define DCOMMI_CUDA_CAST_H

#include "decode.cuh"

#define DCOMMI_CUDA_CAST_THREADS 256u
#define DCOMMI_CUDA_CAST_TILE (DCOMMI_CUDA_CAST_THREADS * DCOMMI_CUDA_OWN)

struct dcommi_cuda_cast {
    dcommi_cuda_operands in; /* wires to sum */
    const float *x, *residual;
    float *next; /* also the output of decoding */
    unsigned char *wire;
    dcomm_cuda_report *report;
    bool refuses;             /* see dcommi_cuda_job */
    dcommi_cuda_tally *tally; /* one for each block, if there is a ledger */
    uint64_t count;
    float factor;
    uint32_t limit; /* |x| from here on, as bits, would become infinite */
    float largest;
    dcommi_cuda_rounding how;
    bool pass, pairs, add;
};

template <bool HALF> DCOMMI_CUDA_INLINE float dcommi_cuda_uncast(uint32_t h)
{
    if (!HALF) {
        return dcommi_bf16_to_f32((uint16_t)h);
    }
    return (h & 0x7c00) == 0x7c00 ? dcommi_f16_to_f32((uint16_t)h)
                                  : dcommi_cuda_from_f16((uint16_t)h);
}

/* Load the thread's numbers of one wire, two of a row in a word; 0 if there is none. */
DCOMMI_CUDA_INLINE void dcommi_cuda_cast_load(const void *wire, uint64_t at, uint32_t left,
                                              uint32_t row[8])
{
    const uint16_t *from = static_cast<const uint16_t *>(wire) + at;
    if (left >= DCOMMI_CUDA_REACH) {
#pragma unroll
        for (int k = 0; k < 8; k++) {
            row[k] = dcommi_cuda_load<uint32_t>(from + DCOMMI_CUDA_ROW * k);
        }
        return;
    }
#pragma unroll
    for (int k = 0; k < 8; k++) {
        const unsigned off = (unsigned)k * DCOMMI_CUDA_ROW;
        row[k] = off + 1 < left ? dcommi_cuda_load<uint32_t>(from + off)
                 : off < left   ? dcommi_cuda_load<uint16_t>(from + off)
                                : 0;
    }
}

/* Add wires to `sum` if `onto`, else set it to their sum. *odd is set if a number is not
 * finite. */
template <bool HALF>
DCOMMI_CUDA_INLINE void dcommi_cuda_cast_add(const dcommi_cuda_cast &p, bool onto, uint64_t at,
                                             uint32_t left, float sum[DCOMMI_CUDA_OWN], bool *odd)
{
    /* Adding one in its last place carries an exponent of ones into the sign bit. */
    const uint32_t exponents = HALF ? 0x7c007c00u : 0x7f807f80u;
    const uint32_t ones = HALF ? 0x04000400u : 0x00800080u;
#pragma unroll 2
    for (uint32_t w = 0; w < p.in.n; w++) {
        uint32_t row[8], carried = 0;
        dcommi_cuda_cast_load(p.in.at[w], at, left, row);
#pragma unroll
        for (int k = 0; k < 8; k++) {
            carried |= (row[k] & exponents) + ones;
        }
        const bool some = (carried & 0x80008000u) != 0;
        *odd = *odd || some;
#pragma unroll
        for (int e = 0; e < DCOMMI_CUDA_OWN; e++) {
            const uint32_t h = e % 2 == 0 ? row[e / 2] & 0xffff : row[e / 2] >> 16;
            float x = HALF ? dcommi_cuda_from_f16((uint16_t)h) : dcommi_bf16_to_f32((uint16_t)h);
            if (HALF && some) { /* make a NaN as the CPU does */
                x = dcommi_cuda_uncast<HALF>(h);
            }
            sum[e] = onto || w > 0 ? dcommi_cuda_add(sum[e], x) : x;
        }
    }
}

/* Return the code of v, which is finite and below the limit. */
template <bool HALF, bool STOCHASTIC>
DCOMMI_CUDA_INLINE uint32_t dcommi_cuda_cast_one(float v, const dcommi_cuda_rounding &how,
                                                 const dcommi_cuda_random &random, int k, int c)
{
    const uint32_t bits = dcommi_f32_bits(v);
    const uint32_t a = (bits & 0x7f800000u) != 0 ? bits : bits & 0x80000000u;
    const uint32_t turned = STOCHASTIC ? dcommi_cuda_turned(random, k, c, 0) : 0;
    if (HALF && STOCHASTIC) {
        return (a >> 16 & 0x8000u) | dcommi_cuda_mini<true>(v, turned, how);
    }
    if (HALF) {
        return dcommi_cuda_to_f16(dcommi_f32_from_bits(a));
    }
    return (a + (STOCHASTIC ? turned >> 16 : (a >> 16 & 1) + 0x7fff)) >> 16;
}

/* Return the codes of two neighbours, which are finite and below the limit. */
template <bool HALF, bool STOCHASTIC>
DCOMMI_CUDA_INLINE uint32_t dcommi_cuda_cast_two(float x, float y, const dcommi_cuda_rounding &how,
                                                 const dcommi_cuda_random &random, int k)
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
    if (!STOCHASTIC) {
        uint32_t two;
        if (HALF) {
            asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(two) : "f"(y), "f"(x));
        } else {
            asm("cvt.rn.bf16x2.f32 %0, %1, %2;"
                : "=r"(two)
                : "f"(dcommi_cuda_flushed_mul(y, 1)), "f"(dcommi_cuda_flushed_mul(x, 1)));
        }
        return two;
    }
#endif
    return dcommi_cuda_cast_one<HALF, STOCHASTIC>(x, how, random, k, 0) |
           dcommi_cuda_cast_one<HALF, STOCHASTIC>(y, how, random, k, 1) << 16;
}

template <bool HALF, bool STOCHASTIC>
DCOMMI_CUDA_INLINE void dcommi_cuda_cast_own(const dcommi_cuda_cast &p, uint64_t at, uint32_t left,
                                             float v[DCOMMI_CUDA_OWN], float r[DCOMMI_CUDA_OWN],
                                             uint32_t row[8], dcommi_cuda_found *found)
{
    dcommi_cuda_random random = {};
    if (STOCHASTIC) {
        random = dcommi_cuda_random_of(p.how.rng, dcommi_cuda_random_block(p.how.rng, at));
    }
    if (p.residual == NULL && dcommi_cuda_own_most(v) < p.limit) {
#pragma unroll
        for (int k = 0; k < 8; k++) {
            row[k] =
                dcommi_cuda_cast_two<HALF, STOCHASTIC>(v[2 * k], v[2 * k + 1], p.how, random, k);
        }
        return;
    }
#pragma unroll
    for (int e = 0; e < DCOMMI_CUDA_OWN; e++) {
        const float x = v[e];
        const bool odd = (dcommi_f32_bits(x) & 0x7f800000u) == 0x7f800000u;
        float y = odd ? 0 : x;
        if (odd && DCOMMI_CUDA_OFF(e) < left) {
            dcommi_cuda_found_odd(found, at + DCOMMI_CUDA_OFF(e));
        }
        y = p.residual != NULL ? __fadd_rn(y, r[e]) : y;
        if ((dcommi_f32_bits(y) & 0x7fffffffu) >= p.limit) {
            y = dcommi_f32_signed(p.largest, dcommi_f32_bounded(y));
            found->clipped++;
        }
        uint32_t h = dcommi_cuda_cast_one<HALF, STOCHASTIC>(y, p.how, random, e / 2, e % 2);
        if (p.residual != NULL) {
            /* The part that clipping cuts off goes to the residual. Compute the sum again: there
             * is no register to keep it. */
            if ((dcommi_f32_bits(y) & 0x7fffffffu) == dcommi_f32_bits(p.largest)) {
                y = dcommi_f32_bounded(__fadd_rn(odd ? 0 : x, r[e]));
            }
            r[e] = odd && p.pass ? r[e] : __fsub_rn(y, dcommi_cuda_uncast<HALF>(h));
        }
        if (odd && p.pass) {
            h = HALF ? dcommi_f32_to_f16(x) : dcommi_f32_to_bf16(x);
        }
        row[e / 2] = e % 2 == 0 ? h : row[e / 2] | h << 16;
    }
}

/* Encode. LEDGER only for an array, never for wires. */
template <bool HALF, bool SUMS, bool LEDGER>
static __global__ void __launch_bounds__(DCOMMI_CUDA_CAST_THREADS, 3)
    dcommi_cuda_cast_kernel(const __grid_constant__ dcommi_cuda_cast p)
{
    const uint64_t own = (uint64_t)blockIdx.x * DCOMMI_CUDA_CAST_THREADS + threadIdx.x;
    const uint64_t at = own / DCOMMI_CUDA_TEAM * DCOMMI_RNG_GROUP + own % DCOMMI_CUDA_TEAM * 2;
    if (!LEDGER && at >= p.count) {
        return;
    }
    const uint32_t left = dcommi_cuda_left(at, p.count);
    float v[DCOMMI_CUDA_OWN] = {}, r[DCOMMI_CUDA_OWN] = {};
    bool odd = false;
    if (SUMS) {
        dcommi_cuda_cast_add<HALF>(p, false, at, left, v, &odd);
#pragma unroll
        for (int e = 0; e < DCOMMI_CUDA_OWN; e++) {
            v[e] = dcommi_cuda_mul(v[e], p.factor);
        }
    } else {
        dcommi_cuda_own_load(p.x + at, left, p.pairs, v);
    }
    if (p.residual != NULL) {
        dcommi_cuda_own_load(p.residual + at, left, p.pairs, r);
    }
    dcommi_cuda_found found = {};
    uint32_t row[8];
    if (p.how.stochastic) {
        dcommi_cuda_cast_own<HALF, true>(p, at, left, v, r, row, &found);
    } else {
        dcommi_cuda_cast_own<HALF, false>(p, at, left, v, r, row, &found);
    }
    if (LEDGER) {
        dcommi_cuda_tally tally = {};
#pragma unroll
        for (int e = 0; e < DCOMMI_CUDA_OWN; e++) {
            const uint32_t h = e % 2 == 0 ? row[e / 2] & 0xffff : row[e / 2] >> 16;
            if (DCOMMI_CUDA_OFF(e) < left) {
                dcommi_cuda_tally_one(&tally, v[e], dcommi_cuda_uncast<HALF>(h), p.residual != NULL,
                                      r[e]);
            }
        }
        dcommi_cuda_tally_block(&tally);
        if (threadIdx.x == 0) {
            p.tally[blockIdx.x] = tally;
        }
    }
    if (p.residual != NULL) {
        dcommi_cuda_own_store(p.next + at, left, p.pairs, r);
    }
    uint16_t *to = reinterpret_cast<uint16_t *>(p.wire) + at;
#pragma unroll
    for (int k = 0; k < 8; k++) {
        const unsigned off = (unsigned)k * DCOMMI_CUDA_ROW;
        if (left >= DCOMMI_CUDA_REACH || off + 1 < left) {
            dcommi_cuda_store<uint32_t>(to + off, row[k]);
        } else if (off < left) {
            dcommi_cuda_store<uint16_t>(to + off, (uint16_t)row[k]);
        }
    }
    dcommi_cuda_report_add(p.report, found, SUMS && p.refuses);
    if (SUMS && odd && !p.pass) {
        dcommi_cuda_report_corrupt(p.report);
    }
}

template <bool HALF>
static __global__ void __launch_bounds__(DCOMMI_CUDA_CAST_THREADS)
    dcommi_cuda_uncast_kernel(const __grid_constant__ dcommi_cuda_cast p)
{
    const uint64_t own = (uint64_t)blockIdx.x * DCOMMI_CUDA_CAST_THREADS + threadIdx.x;
    const uint64_t at = own / DCOMMI_CUDA_TEAM * DCOMMI_RNG_GROUP + own % DCOMMI_CUDA_TEAM * 2;
    if (at >= p.count) {
        return;
    }
    const uint32_t left = dcommi_cuda_left(at, p.count);
    float v[DCOMMI_CUDA_OWN];
    bool odd = false;
    if (p.add) {
        dcommi_cuda_own_load(p.next + at, left, p.pairs, v);
    }
    dcommi_cuda_cast_add<HALF>(p, p.add, at, left, v, &odd);
    dcommi_cuda_own_store(p.next + at, left, p.pairs, v);
    if (odd && !p.pass) {
        dcommi_cuda_report_corrupt(p.report);
    }
}

/* ---- launchers ---- */

template <bool HALF>
static dcomm_status dcommi_cuda_cast_launch(const char *call, bool sums, const dcommi_cuda_cast &p,
                                            void *stream)
{
    void (*kernel)(dcommi_cuda_cast) = sums ? dcommi_cuda_cast_kernel<HALF, true, false>
                                       : p.tally != NULL
                                           ? dcommi_cuda_cast_kernel<HALF, false, true>
                                           : dcommi_cuda_cast_kernel<HALF, false, false>;
    return dcommi_cuda_launch(call, kernel, dcommi_cuda_blocks(p.count, DCOMMI_CUDA_CAST_TILE),
                              DCOMMI_CUDA_CAST_THREADS, p, stream);
}

static dcomm_status dcommi_cuda_uncast_launch(const char *call, bool half,
                                              const dcommi_cuda_cast &p, void *stream)
{
    void (*kernel)(dcommi_cuda_cast) =
        half ? dcommi_cuda_uncast_kernel<true> : dcommi_cuda_uncast_kernel<false>;
    return dcommi_cuda_launch(call, kernel, dcommi_cuda_blocks(p.count, DCOMMI_CUDA_CAST_TILE),
                              DCOMMI_CUDA_CAST_THREADS, p, stream);
}

#endif
