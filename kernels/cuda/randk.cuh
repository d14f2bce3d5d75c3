/* randk.cuh - randk: one pass over the input, and a thread for each part, which encodes or decodes
 * its element. With nonfinite=pass, an earlier pass finds the parts that are sent as NaN, whose
 * residuals stay. A ledger's sums come from the pass over the input for elements that are not
 * sent, and from the part's thread for those that are. */
#ifndef DCOMMI_CUDA_RANDK_H
#define DCOMMI_CUDA_RANDK_H

#include "job.cuh"
#include "topk_scan.cuh"
#include "../randk.h"

#define DCOMMI_CUDA_RANDK_THREADS 256u
#define DCOMMI_CUDA_RANDK_ROWS 4u /* rows of four elements that a thread reads */
#define DCOMMI_CUDA_RANDK_TILE (DCOMMI_CUDA_RANDK_THREADS * DCOMMI_CUDA_RANDK_ROWS * 4)

struct dcommi_cuda_randk {
    const float *x, *residual;
    float *next; /* for decoding: the output */
    unsigned char *wire;
    dcomm_cuda_report *report;
    bool refuses;             /* see dcommi_cuda_job */
    dcommi_cuda_tally *tally; /* one for each tile, with a ledger; then for blocks that take */
    uint64_t tiles;
    uint32_t count, kept;
    uint64_t seed;
    dcommi_rng rng;
    uint32_t *odd; /* word 0: set if there are any; then a bit for each part; NULL: ignore */
    bool counts;   /* report numbers that are not finite */
    bool unbiased, pass, add, vectors;
};

DCOMMI_CUDA_INLINE bool dcommi_cuda_randk_odd(const dcommi_cuda_randk &p, uint64_t part)
{
    return (p.odd[1 + part / 32] >> part % 32 & 1) != 0;
}

/* Return the element of a part that is sent. */
DCOMMI_CUDA_INLINE uint64_t dcommi_cuda_randk_index(const dcommi_rng &rng, uint64_t part,
                                                    uint64_t begin, uint64_t end)
{
    uint32_t word[4];
    dcommi_rng_block(&rng, part / 4, word);
    const uint32_t low = part % 2 == 0 ? word[0] : word[1];
    const uint32_t high = part % 2 == 0 ? word[2] : word[3];
    return dcommi_randk_index(begin, end, part % 4 < 2 ? low : high);
}

/* ---- encoding ---- */

/* Set a bit for each element of this block's tile that is sent. All its threads call this. */
DCOMMI_CUDA_INLINE void dcommi_cuda_randk_sent(const dcommi_cuda_randk &p, uint32_t *sent)
{
    const uint64_t first = (uint64_t)blockIdx.x * DCOMMI_CUDA_RANDK_TILE;
    const uint64_t left = p.count - first;
    const uint32_t n = left < DCOMMI_CUDA_RANDK_TILE ? (uint32_t)left : DCOMMI_CUDA_RANDK_TILE;
    const uint64_t last = dcommi_randk_part(p.count, p.kept, first + n - 1);
    for (uint32_t i = threadIdx.x; i < DCOMMI_CUDA_RANDK_TILE / 32; i += blockDim.x) {
        sent[i] = 0;
    }
    __syncthreads();
    for (uint64_t part = dcommi_randk_part(p.count, p.kept, first) + threadIdx.x; part <= last;
         part += blockDim.x) {
        const uint64_t at =
            dcommi_cuda_randk_index(p.rng, part, dcommi_randk_begin(p.count, p.kept, part),
                                    dcommi_randk_begin(p.count, p.kept, part + 1));
        if (at >= first && at - first < n) { /* may be another tile's, for parts at its ends */
            atomicOr(&sent[(at - first) / 32], 1u << (at - first) % 32);
        }
    }
    __syncthreads();
}

/* Return true if element i arrives as 0: it is not sent, and its part is not sent as NaN. */
DCOMMI_CUDA_INLINE bool dcommi_cuda_randk_stays(const dcommi_cuda_randk &p, const uint32_t *sent,
                                                uint64_t i, bool marked)
{
    const uint32_t at = (uint32_t)(i % DCOMMI_CUDA_RANDK_TILE);
    return (sent[at / 32] >> at % 32 & 1) == 0 &&
           !(marked && dcommi_cuda_randk_odd(p, dcommi_randk_part(p.count, p.kept, i)));
}

/* Return the number that an element counts as; see dcommi_read_one. */
template <bool ADDS, bool LEDGER>
DCOMMI_CUDA_INLINE float dcommi_cuda_randk_read(const dcommi_cuda_randk &p, uint64_t i, float x,
                                                float r, bool marked, dcommi_cuda_found *found)
{
    float sum = ADDS ? __fadd_rn(x, r) : x;
    if (dcommi_cuda_odd(dcommi_f32_bits(x))) {
        dcommi_cuda_found_odd(found, i);
        sum = r;
        if (!ADDS && !LEDGER && p.odd != NULL) {
            const uint64_t part = dcommi_randk_part(p.count, p.kept, i);
            atomicOr(p.odd + 1 + part / 32, 1u << part % 32);
            atomicOr(p.odd, 1u);
        }
    }
    if (ADDS && marked && dcommi_cuda_randk_odd(p, dcommi_randk_part(p.count, p.kept, i))) {
        return r;
    }
    found->clipped += dcommi_cuda_odd(dcommi_f32_bits(sum));
    return dcommi_f32_bounded(sum);
}

/* Read the input. ADDS: there is a residual, which becomes the sum. Without residual and ledger, a
 * number that is not finite marks its part. */
template <bool ADDS, bool LEDGER>
static __global__ void __launch_bounds__(DCOMMI_CUDA_RANDK_THREADS)
    dcommi_cuda_randk_read_kernel(const __grid_constant__ dcommi_cuda_randk p)
{
    const uint64_t first = (uint64_t)blockIdx.x * DCOMMI_CUDA_RANDK_TILE + threadIdx.x * 4;
    __shared__ uint32_t sent[LEDGER ? DCOMMI_CUDA_RANDK_TILE / 32 : 1];
    const bool marked = (ADDS || LEDGER) && p.odd != NULL && p.odd[0] != 0;
    float v[4 * DCOMMI_CUDA_RANDK_ROWS], r[4 * DCOMMI_CUDA_RANDK_ROWS] = {0};
    dcommi_cuda_found found = {};
    dcommi_cuda_tally tally = {};
    uint32_t stay = 0; /* a bit for each of the thread's elements */
    if (LEDGER) {
        dcommi_cuda_randk_sent(p, sent);
    }
#pragma unroll
    for (uint32_t e = 0; LEDGER && e < 4 * DCOMMI_CUDA_RANDK_ROWS; e++) {
        const uint64_t i = first + e / 4 * 4 * DCOMMI_CUDA_RANDK_THREADS + e % 4;
        if (i < p.count && dcommi_cuda_randk_stays(p, sent, i, marked)) {
            stay |= 1u << e;
        }
    }
#pragma unroll
    for (uint32_t k = 0; k < DCOMMI_CUDA_RANDK_ROWS; k++) {
        const uint64_t at = first + k * 4 * DCOMMI_CUDA_RANDK_THREADS;
        const uint32_t left = dcommi_cuda_left(at, p.count);
        dcommi_cuda_quad_load(p.x + at, left, p.vectors, v + 4 * k);
        if (ADDS) {
            dcommi_cuda_quad_load(p.residual + at, left, p.vectors, r + 4 * k);
        }
    }
#pragma unroll
    for (uint32_t k = 0; k < DCOMMI_CUDA_RANDK_ROWS; k++) {
        const uint64_t at = first + k * 4 * DCOMMI_CUDA_RANDK_THREADS;
        const uint32_t left = dcommi_cuda_left(at, p.count);
#pragma unroll
        for (uint32_t c = 0; c < 4; c++) {
            if (c < left) {
                const float x = v[4 * k + c];
                v[4 * k + c] = dcommi_cuda_randk_read<ADDS, LEDGER>(p, at + c, x, r[4 * k + c],
                                                                    marked, &found);
                if (LEDGER && (stay >> (4 * k + c) & 1) != 0) {
                    dcommi_cuda_tally_one(&tally, x, 0, ADDS, v[4 * k + c]);
                }
            }
        }
        if (ADDS) {
            dcommi_cuda_quad_store(p.next + at, left, p.vectors, v + 4 * k);
        }
    }
    if (!p.counts) {
        found.nonfinite = 0;
    }
    if (found.nonfinite > 0 || found.clipped > 0) {
        dcommi_cuda_report_add(p.report, found, p.refuses);
    }
    if (LEDGER) {
        dcommi_cuda_tally_block(&tally);
        if (threadIdx.x == 0) {
            p.tally[blockIdx.x] = tally;
        }
    }
}

/* Return the value to send; see dcommi_randk_value. */
DCOMMI_CUDA_INLINE float dcommi_cuda_randk_value(float x, float factor, dcommi_cuda_found *found)
{
    uint32_t bits = dcommi_f32_bits(x);
    bits = (bits & DCOMMI_CUDA_INF) == 0
               ? bits & 0x80000000u
               : dcommi_f32_bits(__double2float_rn(__dmul_rn((double)x, (double)factor)));
    if (dcommi_cuda_odd(bits)) {
        found->clipped++;
        bits--;
    }
    return dcommi_f32_from_bits((bits & DCOMMI_CUDA_INF) == 0 ? bits & 0x80000000u : bits);
}

template <bool LEDGER>
static __global__ void __launch_bounds__(DCOMMI_CUDA_RANDK_THREADS)
    dcommi_cuda_randk_take_kernel(const __grid_constant__ dcommi_cuda_randk p)
{
    const uint64_t part = (uint64_t)blockIdx.x * DCOMMI_CUDA_RANDK_THREADS + threadIdx.x;
    uint32_t *to = reinterpret_cast<uint32_t *>(p.wire);
    if (part == 0) {
        to[0] = (uint32_t)p.seed;
        to[1] = (uint32_t)(p.seed >> 32);
    }
    if (!LEDGER && part >= p.kept) {
        return;
    }
    float value = dcommi_f32_from_bits(DCOMMI_F32_NAN);
    dcommi_cuda_found found = {};
    dcommi_cuda_tally tally = {};
    if (part < p.kept && (p.odd == NULL || !dcommi_cuda_randk_odd(p, part))) {
        const uint64_t begin = dcommi_randk_begin(p.count, p.kept, part);
        const uint64_t end = dcommi_randk_begin(p.count, p.kept, part + 1);
        const uint64_t index = dcommi_cuda_randk_index(p.rng, part, begin, end);
        const float x = p.residual != NULL ? p.next[index] : p.x[index];
        const float e = dcommi_cuda_odd(dcommi_f32_bits(x)) ? 0 : x;
        value = dcommi_cuda_randk_value(e, p.unbiased ? (float)(end - begin) : 1, &found);
        const float left = __fsub_rn(e, value);
        if (p.residual != NULL) {
            p.next[index] = left;
        }
        if (LEDGER) {
            dcommi_cuda_tally_one(&tally, p.x[index], value, p.residual != NULL, left);
        }
    }
    if (part < p.kept) {
        to[2 + part] = dcommi_f32_bits(value);
    }
    if (found.clipped > 0) {
        dcommi_cuda_report_add(p.report, found, false);
    }
    if (LEDGER) {
        dcommi_cuda_tally_block(&tally);
        if (threadIdx.x == 0) {
            p.tally[p.tiles + blockIdx.x] = tally;
        }
    }
}

static uint64_t dcommi_cuda_randk_takers(const dcomm_randk_layout &layout)
{
    return layout.kept / DCOMMI_CUDA_RANDK_THREADS + 1;
}

static size_t dcommi_cuda_randk_bytes(const dcomm_randk_layout &layout)
{
    return layout.nonfinite == 2 ? 4 + (layout.kept + 31) / 32 * 4 : 0;
}

static dcomm_status dcommi_cuda_randk_run(const dcommi_cuda_job &job,
                                          const dcomm_randk_layout &layout, void *workspace,
                                          const dcomm_codec_key *key, void *stream)
{
    dcommi_cuda_randk p = dcommi_cuda_randk();
    const dcomm_codec_key k = dcommi_cuda_key(key);
    const size_t need = dcommi_cuda_randk_bytes(layout);
    const bool adds = job.residual != NULL, counts = job.tally != NULL;
    dcommi_cuda_job_tell(job, &p);
    p.tally = job.tally;
    p.tiles = dcommi_cuda_blocks(job.count, DCOMMI_CUDA_RANDK_TILE);
    p.count = (uint32_t)job.count;
    p.kept = (uint32_t)layout.kept;
    p.seed = dcommi_randk_seed(k.seed, k.tensor, k.step, k.first);
    p.rng = dcommi_randk_rng(p.seed);
    p.unbiased = layout.unbiased;
    p.pass = layout.nonfinite == 2;
    p.counts = true;
    p.vectors = dcommi_cuda_job_aligned(job, 16);
    if (p.pass && job.count > 0) {
        DCOMMI_CUDA_TRY(dcommi_cuda_workspace_check(job.call, workspace, need));
        DCOMMI_CUDA_TRY(dcommi_cuda_zero(job.call, workspace, need, stream));
        p.odd = static_cast<uint32_t *>(workspace);
    }
    if (job.count > 0 && (p.pass || !(adds || counts))) {
        DCOMMI_CUDA_TRY(dcommi_cuda_launch(job.call, dcommi_cuda_randk_read_kernel<false, false>,
                                           p.tiles, DCOMMI_CUDA_RANDK_THREADS, p, stream));
        p.counts = false;
    }
    if (job.count > 0 && (adds || counts)) {
        DCOMMI_CUDA_TRY(dcommi_cuda_launch(job.call,
                                           !counts ? dcommi_cuda_randk_read_kernel<true, false>
                                           : adds  ? dcommi_cuda_randk_read_kernel<true, true>
                                                   : dcommi_cuda_randk_read_kernel<false, true>,
                                           p.tiles, DCOMMI_CUDA_RANDK_THREADS, p, stream));
    }
    return dcommi_cuda_launch(
        job.call,
        counts ? dcommi_cuda_randk_take_kernel<true> : dcommi_cuda_randk_take_kernel<false>,
        dcommi_cuda_randk_takers(layout), DCOMMI_CUDA_RANDK_THREADS, p, stream);
}

/* ---- decoding ---- */

/* Store or add values at their indices. A value that is not finite goes to its whole part, which
 * the warp fills together. */
static __global__ void __launch_bounds__(DCOMMI_CUDA_RANDK_THREADS)
    dcommi_cuda_randk_bring_kernel(const __grid_constant__ dcommi_cuda_randk p)
{
    const uint64_t part = (uint64_t)blockIdx.x * DCOMMI_CUDA_RANDK_THREADS + threadIdx.x;
    const uint32_t *from = reinterpret_cast<const uint32_t *>(p.wire);
    const dcommi_rng rng = dcommi_randk_rng(from[0] | (uint64_t)from[1] << 32);
    float value = 0;
    uint64_t begin = 0, end = 0;
    bool odd = false;
    if (part < p.kept) {
        value = dcommi_f32_from_bits(from[2 + part]);
        begin = dcommi_randk_begin(p.count, p.kept, part);
        end = dcommi_randk_begin(p.count, p.kept, part + 1);
        odd = dcommi_cuda_odd(dcommi_f32_bits(value));
        if (!odd) {
            float *to = p.next + dcommi_cuda_randk_index(rng, part, begin, end);
            *to = p.add ? dcommi_cuda_add(*to, value) : value;
        } else if (!p.pass) {
            dcommi_cuda_report_beyond(p.report);
        }
    }
    for (uint32_t lanes = __ballot_sync(DCOMMI_CUDA_ALL, odd && p.pass); lanes != 0;
         lanes &= lanes - 1) {
        const unsigned lane = (unsigned)__ffs((int)lanes) - 1;
        const float same = __shfl_sync(DCOMMI_CUDA_ALL, value, lane);
        const uint64_t to = __shfl_sync(DCOMMI_CUDA_ALL, end, lane);
        for (uint64_t i = __shfl_sync(DCOMMI_CUDA_ALL, begin, lane) + dcommi_cuda_lane(); i < to;
             i += DCOMMI_CUDA_WARP) {
            p.next[i] = dcommi_f32_canonical(p.add ? __fadd_rn(p.next[i], same) : same);
        }
    }
}

static dcomm_status dcommi_cuda_randk_decode(const char *call, const dcomm_randk_layout &layout,
                                             const dcommi_cuda_operands &in, float *x, size_t count,
                                             bool add, dcomm_cuda_report *report, void *stream)
{
    dcommi_cuda_randk p = dcommi_cuda_randk();
    p.next = x;
    p.report = report;
    p.count = (uint32_t)count;
    p.kept = (uint32_t)layout.kept;
    p.pass = layout.nonfinite == 2;
    if (count == 0) {
        return DCOMM_OK;
    }
    if (!add) {
        DCOMMI_CUDA_TRY(dcommi_cuda_zero(call, x, count * sizeof *x, stream));
    }
    for (uint32_t w = 0; w < in.n; w++) {
        p.wire = static_cast<unsigned char *>(const_cast<void *>(in.at[w]));
        p.add = add || w > 0;
        DCOMMI_CUDA_TRY(dcommi_cuda_launch(call, dcommi_cuda_randk_bring_kernel,
                                           layout.kept / DCOMMI_CUDA_RANDK_THREADS + 1,
                                           DCOMMI_CUDA_RANDK_THREADS, p, stream));
    }
    return DCOMM_OK;
}

#endif
