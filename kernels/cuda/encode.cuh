/* encode.cuh - encode buckets, of an array or of a sum of wires, with or without feedback.
 *
 * 8, 16 or 32 lanes of a warp hold a bucket of 128, 256 or 512 elements. A block of up to 512
 * threads holds any other bucket of up to 8192 elements. Then each input is read once. For longer
 * buckets, a block reads one piece after the other to measure the bucket, and again to encode it.
 * By then much of it is in the L2 cache. */
#ifndef DCOMMI_CUDA_ENCODE_H
#define DCOMMI_CUDA_ENCODE_H

#include "ledger.cuh"
#include "recode.cuh"

/* ---- input ---- */

struct dcommi_cuda_found {
    unsigned clipped, nonfinite;
    uint64_t first; /* UINT64_MAX - index */
    bool poisoned;
};

/* Count element i, which is not finite. */
DCOMMI_CUDA_INLINE void dcommi_cuda_found_odd(dcommi_cuda_found *found, uint64_t i)
{
    found->nonfinite++;
    found->first = UINT64_MAX - i > found->first ? UINT64_MAX - i : found->first;
}

/* Add to the report. refuses: the inputs are sums of wires, and one that is not finite is
 * refused. */
DCOMMI_CUDA_INLINE void dcommi_cuda_report_add(dcomm_cuda_report *report,
                                               const dcommi_cuda_found &found, bool refuses)
{
    if (report == NULL) {
        return;
    }
    if (found.clipped > 0) {
        atomicAdd(reinterpret_cast<unsigned long long *>(&report->clipped),
                  (unsigned long long)found.clipped);
    }
    if (found.nonfinite > 0) {
        atomicAdd(reinterpret_cast<unsigned long long *>(&report->nonfinite),
                  (unsigned long long)found.nonfinite);
        atomicMax(reinterpret_cast<unsigned long long *>(&report->first),
                  (unsigned long long)found.first);
        if (refuses) {
            dcommi_cuda_report_beyond(report);
        }
    }
}

/* Load the thread's input, from the array or from the wires. */
template <int FORMAT, bool SUMS>
DCOMMI_CUDA_INLINE void dcommi_cuda_input(const dcommi_cuda_bucket &p, uint64_t at, uint32_t left,
                                          float v[DCOMMI_CUDA_OWN], bool *bad)
{
    if constexpr (!SUMS) {
        dcommi_cuda_own_load(p.x + at, left, p.pairs, v);
    } else {
        bool nan = false;
        dcommi_cuda_own_nothing(v);
        if (left > 0) {
            dcommi_cuda_wires_add<FORMAT>(p.wires, at, v, &nan, bad);
        }
#pragma unroll
        for (int e = 0; e < DCOMMI_CUDA_OWN; e++) {
            v[e] = __fmul_rn(v[e], p.factor);
        }
        if (nan || left < DCOMMI_CUDA_REACH) {
#pragma unroll
            for (int e = 0; e < DCOMMI_CUDA_OWN; e++) {
                v[e] = DCOMMI_CUDA_OFF(e) >= left ? 0
                       : nan                      ? dcommi_f32_from_bits(DCOMMI_F32_NAN)
                                                  : v[e];
            }
        }
    }
}

/* Set v = input + residual. If `clean`, replace and count numbers that are not finite or too
 * large. */
template <int FORMAT, bool SUMS>
DCOMMI_CUDA_INLINE void dcommi_cuda_take(const dcommi_cuda_bucket &p, uint64_t at, uint32_t left,
                                         bool clean, float v[DCOMMI_CUDA_OWN],
                                         dcommi_cuda_found *found, bool *bad)
{
    float r[DCOMMI_CUDA_OWN];
    dcommi_cuda_input<FORMAT, SUMS>(p, at, left, v, bad);
    if (p.residual != NULL) {
        dcommi_cuda_own_load(p.residual + at, left, p.pairs, r);
    }
    if (clean) {
#pragma unroll
        for (int e = 0; e < DCOMMI_CUDA_OWN; e++) {
            if (DCOMMI_CUDA_OFF(e) < left && (dcommi_f32_bits(v[e]) & 0x7f800000u) == 0x7f800000u) {
                dcommi_cuda_found_odd(found, at + DCOMMI_CUDA_OFF(e));
                found->poisoned = found->poisoned || p.pass;
                v[e] = 0;
            }
        }
    }
    if (p.residual != NULL) {
#pragma unroll
        for (int e = 0; e < DCOMMI_CUDA_OWN; e++) {
            v[e] = __fadd_rn(v[e], r[e]);
        }
    }
    if (clean) {
        const uint32_t largest = 0x7f000000u; /* DCOMMI_WIRE_LARGEST */
#pragma unroll
        for (int e = 0; e < DCOMMI_CUDA_OWN; e++) {
            if ((dcommi_f32_bits(v[e]) & 0x7fffffffu) > largest) {
                v[e] = dcommi_f32_signed(DCOMMI_WIRE_LARGEST, dcommi_f32_bounded(v[e]));
                found->clipped++;
            }
        }
    }
}

/* Update the measure of a bucket, as bits: its largest |x|, or for signs the sum of |x|. */
template <int FORMAT, bool BLOCK>
DCOMMI_CUDA_INLINE void dcommi_cuda_measure(const float v[DCOMMI_CUDA_OWN], bool squares,
                                            unsigned team, uint32_t *most, dcommi_cuda_columns *sum,
                                            dcommi_cuda_shared *shared)
{
    if (!dcommi_cuda_format<FORMAT>::SIGN) {
        const uint32_t own = dcommi_cuda_own_most(v);
        *most = own > *most ? own : *most;
    }
    if (dcommi_cuda_format<FORMAT>::SIGN || squares) {
        *sum = BLOCK ? dcommi_cuda_block_columns(v, squares, *sum, shared)
                     : dcommi_cuda_team_sizes(v, team, *sum);
    }
}

/* ---- the kernel ---- */

/* Add the part that clipping cut off to p.next, which has the rounding errors. Read the inputs
 * again, because there are no registers to keep them. r: the residuals, because p.next may
 * overwrite them. */
template <int FORMAT, bool SUMS>
DCOMMI_CUDA_INLINE void dcommi_cuda_excess(const dcommi_cuda_bucket &p, uint64_t at, uint32_t left,
                                           const float r[DCOMMI_CUDA_OWN])
{
    float v[DCOMMI_CUDA_OWN];
    bool bad = false;
    dcommi_cuda_input<FORMAT, SUMS>(p, at, left, v, &bad);
#pragma unroll
    for (int e = 0; e < DCOMMI_CUDA_OWN; e++) {
        const bool odd = (dcommi_f32_bits(v[e]) & 0x7f800000u) == 0x7f800000u;
        const float sum = dcommi_f32_bounded(__fadd_rn(odd ? 0 : v[e], r[e]));
        const uint32_t bits = dcommi_f32_bits(sum);
        if (DCOMMI_CUDA_OFF(e) < left && (bits & 0x7fffffffu) > 0x7f000000u) {
            float *next = p.next + at + DCOMMI_CUDA_OFF(e);
            const float clipped = dcommi_f32_from_bits((bits & 0x80000000u) | 0x7f000000u);
            *next = __fadd_rn(*next, __fsub_rn(sum, clipped));
        }
    }
}

/* Add the thread's elements to a ledger; `next` is their residual. Read the input again: the L1
 * cache still has it. */
template <int FORMAT>
DCOMMI_CUDA_INLINE void
dcommi_cuda_tally_own(const dcommi_cuda_bucket &p, uint64_t at, uint32_t left, float step,
                      bool poisoned, const dcommi_cuda_codes<FORMAT> &codes,
                      const float next[DCOMMI_CUDA_OWN], dcommi_cuda_tally *tally)
{
    float y[DCOMMI_CUDA_OWN];
    dcommi_cuda_own_nothing(y);
    dcommi_cuda_decode_own<FORMAT>(codes, step, y);
#pragma unroll
    for (int e = 0; e < DCOMMI_CUDA_OWN; e++) {
        if (DCOMMI_CUDA_OFF(e) < left) {
            dcommi_cuda_tally_one(tally, p.x[at + DCOMMI_CUDA_OFF(e)],
                                  poisoned ? dcommi_f32_from_bits(DCOMMI_F32_NAN) : y[e],
                                  p.residual != NULL, next[e]);
        }
    }
}

/* Encode the thread's elements and store codes and residuals. clean: inputs may have been
 * clipped. */
template <int FORMAT, bool SUMS, bool LEDGER>
DCOMMI_CUDA_INLINE void dcommi_cuda_put(const dcommi_cuda_bucket &p, uint64_t at, uint64_t end,
                                        uint32_t left, const dcommi_cuda_scale &scale, bool clean,
                                        bool poisoned, bool rest, float v[DCOMMI_CUDA_OWN],
                                        dcommi_cuda_tally *tally)
{
    dcommi_cuda_codes<FORMAT> codes;
    const uint64_t block = dcommi_cuda_random_block(p.how.rng, at);
    const bool feedback = p.residual != NULL, excess = feedback && clean && !poisoned;
    float r[DCOMMI_CUDA_OWN];
    if (feedback) {
        codes = p.how.stochastic
                    ? dcommi_cuda_encode_own<FORMAT, true, true>(v, scale, p.how, block)
                    : dcommi_cuda_encode_own<FORMAT, false, true>(v, scale, p.how, block);
        if (poisoned) {
            dcommi_cuda_own_load(p.residual + at, left, p.pairs, v);
        }
        if (excess) {
            dcommi_cuda_own_load(p.residual + at, left, p.pairs, r);
        }
        dcommi_cuda_own_store(p.next + at, left, p.pairs, v);
    } else {
        codes = p.how.stochastic
                    ? dcommi_cuda_encode_own<FORMAT, true, false>(v, scale, p.how, block)
                    : dcommi_cuda_encode_own<FORMAT, false, false>(v, scale, p.how, block);
    }
    /* A thread of a block may be behind the end of its bucket. */
    dcommi_cuda_codes_store<FORMAT>(p.wire, at, left, p.wire_pairs, codes);
    if (rest) {
        dcommi_cuda_rest_store<FORMAT>(p.wire, end, left, codes);
    }
    if (excess) {
        dcommi_cuda_excess<FORMAT, SUMS>(p, at, left, r);
    }
    if (LEDGER && excess) {
        dcommi_cuda_own_load(p.next + at, left, p.pairs, v);
    }
    if (LEDGER) {
        dcommi_cuda_tally_own<FORMAT>(p, at, left, scale.step, poisoned, codes, v, tally);
    }
}

/* Return the number of blocks that must fit on a multiprocessor, as the registers allow. */
DCOMMI_HD constexpr unsigned dcommi_cuda_encode_blocks_of(bool block, bool ledger, bool sums,
                                                          unsigned bits)
{
    return block ? 1 : ledger || (sums && bits == 8) ? 4 : sums ? 5 : 6;
}

/* Encode. LEDGER only for an array, never for wires. NORMS: norm=two of buckets of teams, which
 * takes shared memory; a block's take none, so p.two_norm tells. */
template <int FORMAT, bool SUMS, bool BLOCK, bool LEDGER, bool NORMS>
static __global__ void __launch_bounds__(
    BLOCK ? DCOMMI_CUDA_BLOCK_MOST : DCOMMI_CUDA_ENCODE_THREADS,
    dcommi_cuda_encode_blocks_of(BLOCK, LEDGER, SUMS, dcommi_cuda_format<FORMAT>::BITS))
    dcommi_cuda_encode_kernel(const __grid_constant__ dcommi_cuda_bucket p)
{
    typedef dcommi_cuda_format<FORMAT> format;
    __shared__ dcommi_cuda_shared room;
    dcommi_cuda_shared *shared = BLOCK ? &room : NULL;
    /* BLOCK: [begin, end) is the block's bucket. Otherwise a thread's elements follow from its
     * number, whatever the bucket, and `end` is that of the array. */
    const unsigned team = BLOCK ? DCOMMI_CUDA_WARP : 1u << p.team;
    const unsigned lane = BLOCK ? threadIdx.x : threadIdx.x & (team - 1);
    const uint64_t own =
        BLOCK ? threadIdx.x : (uint64_t)blockIdx.x * DCOMMI_CUDA_ENCODE_THREADS + threadIdx.x;
    if constexpr (SUMS && !BLOCK && !NORMS &&
                  (FORMAT == DCOMMI_FORMAT_Q4 || FORMAT == DCOMMI_FORMAT_Q8)) {
        if (p.usual && blockIdx.x < gridDim.x - 1) {
            const uint32_t n = p.wires.in.n, number = (uint32_t)own;
            if (n == 4   ? dcommi_cuda_recode<FORMAT, 4>(p, number)
                : n == 3 ? dcommi_cuda_recode<FORMAT, 3>(p, number)
                         : dcommi_cuda_recode<FORMAT, 2>(p, number)) {
                return;
            }
        }
    }
    const uint64_t bucket = BLOCK ? blockIdx.x : own >> p.team;
    const uint64_t begin = BLOCK ? bucket * p.bucket : 0;
    const uint64_t end = BLOCK && begin + p.bucket < p.count ? begin + p.bucket : p.count;
    const uint64_t at =
        begin + own / DCOMMI_CUDA_TEAM * DCOMMI_RNG_GROUP + own % DCOMMI_CUDA_TEAM * 2;
    const unsigned piece = blockDim.x * DCOMMI_CUDA_OWN;
    const unsigned pieces = BLOCK ? (p.bucket + piece - 1) / piece : 1;
    /* The last block has the partial line. */
    const bool rest = p.count % format::LINE != 0 && blockIdx.x == gridDim.x - 1;
    if (rest) {
        dcommi_cuda_rest_clear<FORMAT>(p.wire, p.count);
    }
    float v[DCOMMI_CUDA_OWN];
    dcommi_cuda_found found = {};
    bool bad = false, clean = false;
    uint32_t measure;
    dcommi_cuda_columns sum;
    for (;;) {
        uint32_t most = 0;
        sum = dcommi_cuda_columns();
        for (unsigned i = 0; i < pieces; i++) {
            const uint64_t here = at + (uint64_t)i * piece;
            dcommi_cuda_take<FORMAT, SUMS>(p, here, dcommi_cuda_left(here, end), clean, v, &found,
                                           &bad);
            dcommi_cuda_measure<FORMAT, BLOCK>(v, BLOCK && p.two_norm, team, &most, &sum, shared);
        }
        measure = format::SIGN ? dcommi_f32_bits(dcommi_cuda_sizes_end(sum))
                  : BLOCK      ? dcommi_cuda_block_most(most, shared)
                               : dcommi_cuda_team_most(most, team);
        const bool dirty = measure > 0x7f000000u;
        if (clean || !(BLOCK ? dirty : __any_sync(DCOMMI_CUDA_ALL, dirty) != 0)) {
            break;
        }
        clean = true;
    }
    float step;
    if constexpr (NORMS) {
        __shared__ dcommi_cuda_chains chains;
        step = dcommi_cuda_teams_norm(v, p.team, p.most, p.inverse_most, &chains);
    } else if (format::SIGN) {
        const uint64_t from = bucket * p.bucket, left = p.count > from ? p.count - from : 0;
        const float n = (float)(left < p.bucket ? left : p.bucket);
        float mean = __fdiv_rn(dcommi_f32_from_bits(measure), n);
        const bool dirty = measure > 0x7f000000u;
        if (BLOCK ? dirty : __any_sync(DCOMMI_CUDA_ALL, dirty) != 0) {
            double exact = 0;
            for (unsigned i = 0; i < pieces; i++) {
                if (pieces > 1) {
                    dcommi_cuda_found again = {};
                    const uint64_t here = at + (uint64_t)i * piece;
                    dcommi_cuda_take<FORMAT, SUMS>(p, here, dcommi_cuda_left(here, end), clean, v,
                                                   &again, &bad);
                }
                exact = BLOCK ? dcommi_cuda_block_exact(v, exact, shared)
                              : dcommi_cuda_warp_exact(v, exact);
            }
            mean = dirty ? (float)__ddiv_rn(exact, (double)n) : mean;
        }
        step = mean >= DCOMMI_WIRE_LEAST ? mean : 0;
    } else if (BLOCK && p.two_norm) {
        step = dcommi_cuda_norm_step(dcommi_cuda_squares_end(sum), p.most, p.inverse_most);
    } else {
        step = dcommi_cuda_wire_step(dcommi_f32_from_bits(measure), p.most, p.inverse_most);
    }
    bool poisoned = false;
    if (BLOCK && clean) {
        poisoned = __syncthreads_or(found.poisoned) != 0;
    } else if (clean) { /* any thread of the team */
        poisoned = dcommi_cuda_team_most(found.poisoned ? 1 : 0, team) != 0;
    }
    dcommi_cuda_scale scale;
    scale.step = poisoned ? 0 : step;
    scale.inverse =
        !format::SIGN && scale.step > 0 ? dcommi_cuda_inverse(scale.step, p.how.unit) : 0;
    dcommi_cuda_tally tally = {};
    for (unsigned i = 0; i < pieces; i++) {
        const uint64_t here = at + (uint64_t)i * piece;
        const uint32_t left = dcommi_cuda_left(here, end);
        if (pieces > 1) {
            dcommi_cuda_found again = {};
            dcommi_cuda_take<FORMAT, SUMS>(p, here, left, clean, v, &again, &bad);
        }
        dcommi_cuda_put<FORMAT, SUMS, LEDGER>(p, here, end, left, scale, clean, poisoned, rest, v,
                                              &tally);
    }
    if (lane == 0 && at < p.count) {
        dcommi_cuda_store<float>(p.wire + p.codes + 4 * bucket,
                                 poisoned ? dcommi_f32_from_bits(DCOMMI_STEP_NAN) : step);
    }
    if (clean) {
        dcommi_cuda_report_add(p.report, found, SUMS && p.refuses);
    }
    if (LEDGER) {
        dcommi_cuda_tally_block(&tally);
        if (threadIdx.x == 0) {
            p.tally[blockIdx.x] = tally;
        }
    }
    if (SUMS) {
        if (rest && threadIdx.x == 0) {
            bad = bad || !dcommi_cuda_rest_clean<FORMAT>(p.wires);
        }
        if (bad) {
            dcommi_cuda_report_corrupt(p.report);
        }
    }
}

/* ---- launchers ---- */

/* Return the number of lanes that hold a bucket; 0: a block does. */
static unsigned dcommi_cuda_encode_team(size_t bucket)
{
    const size_t lanes = bucket / DCOMMI_CUDA_OWN;
    return lanes <= DCOMMI_CUDA_WARP && (lanes & (lanes - 1)) == 0 ? (unsigned)lanes : 0;
}

static uint64_t dcommi_cuda_encode_blocks(uint64_t count, size_t bucket)
{
    const uint64_t buckets = count / bucket + (count % bucket != 0 ? 1 : 0);
    const unsigned team = dcommi_cuda_encode_team(bucket);
    const unsigned each = team > 0 ? DCOMMI_CUDA_ENCODE_THREADS / team : 1;
    return (buckets + each - 1) / each;
}

template <int FORMAT, bool SUMS, bool LEDGER>
static dcomm_status dcommi_cuda_encode_launch(const char *call, dcommi_cuda_bucket *p, void *stream)
{
    const uint64_t blocks = dcommi_cuda_encode_blocks(p->count, p->bucket);
    const unsigned team = dcommi_cuda_encode_team(p->bucket);
    if (team > 0) {
        p->team = team == DCOMMI_CUDA_WARP ? 5 : team == DCOMMI_CUDA_WARP / 2 ? 4 : 3;
        p->usual = SUMS && dcommi_cuda_recode_suits(*p, FORMAT);
        void (*kernel)(dcommi_cuda_bucket) =
            dcommi_cuda_encode_kernel<FORMAT, SUMS, false, LEDGER, false>;
        if constexpr (!dcommi_cuda_format<FORMAT>::SIGN && !dcommi_cuda_format<FORMAT>::F8) {
            if (p->two_norm) {
                kernel = dcommi_cuda_encode_kernel<FORMAT, SUMS, false, LEDGER, true>;
            }
        }
        return dcommi_cuda_launch(call, kernel, blocks, DCOMMI_CUDA_ENCODE_THREADS, *p, stream);
    }
    const unsigned lanes = p->bucket / DCOMMI_CUDA_OWN;
    unsigned threads = (lanes + DCOMMI_CUDA_WARP - 1) / DCOMMI_CUDA_WARP * DCOMMI_CUDA_WARP;
    threads = threads < DCOMMI_CUDA_BLOCK_MOST ? threads : DCOMMI_CUDA_BLOCK_MOST;
    return dcommi_cuda_launch(call, dcommi_cuda_encode_kernel<FORMAT, SUMS, true, LEDGER, false>,
                              blocks, threads, *p, stream);
}

template <bool SUMS, bool LEDGER>
static dcomm_status dcommi_cuda_encode_format(const char *call, int format, dcommi_cuda_bucket *p,
                                              void *stream)
{
    return dcommi_cuda_of_format(format, [&](auto c) {
        return dcommi_cuda_encode_launch<decltype(c)::value, SUMS, LEDGER>(call, p, stream);
    });
}

#endif
