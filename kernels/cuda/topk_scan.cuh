/* topk_scan.cuh - top-k's threshold, and its pass over the input. */
#ifndef DCOMMI_CUDA_TOPK_SCAN_H
#define DCOMMI_CUDA_TOPK_SCAN_H

#include "topk.cuh"

#define DCOMMI_CUDA_TOPK_BEGIN_THREADS 1024u
#define DCOMMI_CUDA_TOPK_LINES 1024u /* runs of the sample for a threshold that may be wrong */
#define DCOMMI_CUDA_TOPK_DRAWN \
    (DCOMMI_CUDA_TOPK_LINES * DCOMMI_TOPK_LINE / DCOMMI_CUDA_TOPK_BEGIN_THREADS)
#define DCOMMI_CUDA_TOPK_SCAN_THREADS 512u
#define DCOMMI_CUDA_TOPK_OWN (DCOMMI_CUDA_TOPK_TILE / DCOMMI_CUDA_TOPK_SCAN_THREADS)
#define DCOMMI_CUDA_TOPK_ROWS (DCOMMI_CUDA_TOPK_OWN / 4)

/* ---- the threshold ---- */

DCOMMI_CUDA_INLINE uint32_t dcommi_cuda_topk_sample(const dcommi_cuda_topk &p, uint32_t i)
{
    const uint64_t at =
        dcommi_topk_sample_at(i / DCOMMI_TOPK_LINE, p.lines, p.count) + i % DCOMMI_TOPK_LINE;
    const float sum = p.residual == NULL ? p.x[at] : __fadd_rn(p.x[at], p.residual[at]);
    return dcommi_f32_bits(sum) & DCOMMI_CUDA_ABS;
}

/* Set up the state, in one block. Take the threshold from a sample, unless the last call left one.
 * With a ledger, never use the last call's: the order of the ledger's sums depends on the
 * threshold, and sums should be the same in every run. */
static __global__ void __launch_bounds__(DCOMMI_CUDA_TOPK_BEGIN_THREADS)
    dcommi_cuda_topk_begin_kernel(const __grid_constant__ dcommi_cuda_topk p)
{
    __shared__ uint32_t bins[DCOMMI_CUDA_TOPK_BINS];
    __shared__ dcommi_cuda_picked picked;
    dcommi_cuda_topk_state *s = p.state;
    const bool known = s->known == DCOMMI_CUDA_TOPK_MAGIC && s->count == p.count &&
                       s->wanted == p.wanted && p.exact && p.tally == NULL;
    __syncthreads(); /* all threads have read the state that is set below */
    uint32_t low = 0, need = p.rank;
    if (p.exact && p.rank > 0 && !known) {
        uint32_t key[DCOMMI_CUDA_TOPK_DRAWN];
#pragma unroll
        for (uint32_t j = 0; j < DCOMMI_CUDA_TOPK_DRAWN; j++) {
            const uint32_t i = j * DCOMMI_CUDA_TOPK_BEGIN_THREADS + threadIdx.x;
            key[j] = i < p.lines * DCOMMI_TOPK_LINE ? dcommi_cuda_topk_sample(p, i) : UINT32_MAX;
        }
        for (uint32_t width = 19;; width = 7) { /* two digits: the lowest bits do not matter */
            for (uint32_t b = threadIdx.x; b < DCOMMI_CUDA_TOPK_BINS; b += blockDim.x) {
                bins[b] = 0;
            }
            __syncthreads();
#pragma unroll
            for (uint32_t j = 0; j < DCOMMI_CUDA_TOPK_DRAWN; j++) {
                const uint32_t bin = (key[j] - low) >> width;
                if (key[j] >= low && bin < DCOMMI_CUDA_TOPK_BINS) {
                    atomicAdd(&bins[bin], 1u);
                }
            }
            __syncthreads();
            dcommi_cuda_pick(bins, need, &picked);
            low += picked.bin << width;
            need = picked.need;
            if (width == 7) {
                break;
            }
        }
    }
    for (uint32_t b = threadIdx.x; b < DCOMMI_CUDA_TOPK_BINS; b += blockDim.x) {
        p.hist[b] = 0;
    }
    if (threadIdx.x == 0) {
        s->threshold = p.rank == 0 ? 0 : known ? s->guess : low;
        s->threshold = s->threshold < DCOMMI_CUDA_INF ? s->threshold : DCOMMI_CUDA_INF;
        s->known = 0;
        s->have = 0;
        s->full = 0;
        s->ticket = 0;
        s->coded = dcomm_cuda_report();
        /* The selection from the sample of the codec threshold. */
        s->low = p.rank == 0 ? DCOMMI_CUDA_NORMAL : 0;
        s->high = p.rank == 0 ? DCOMMI_CUDA_NORMAL : DCOMMI_CUDA_ABS;
        s->need = p.rank;
        s->items = p.lines * DCOMMI_TOPK_LINE;
    }
}

/* Take the sample of the codec threshold. */
struct dcommi_cuda_topk_gather {
    dcommi_cuda_topk topk;
    uint64_t count;
    __device__ void one(uint64_t i) const
    {
        topk.bits[i] = dcommi_cuda_topk_sample(topk, (uint32_t)i);
    }
};

/* ---- the scan ---- */

/* Load four neighbours; those from `left` on do not exist and become 0. */
DCOMMI_CUDA_INLINE void dcommi_cuda_quad_load(const float *x, uint32_t left, bool vectors,
                                              float v[4])
{
    if (left >= 4 && vectors) {
        const float4 quad = dcommi_cuda_load<float4>(x);
        v[0] = quad.x;
        v[1] = quad.y;
        v[2] = quad.z;
        v[3] = quad.w;
    } else {
#pragma unroll
        for (uint32_t c = 0; c < 4; c++) {
            v[c] = c < left ? dcommi_cuda_load<float>(x + c) : 0;
        }
    }
}

DCOMMI_CUDA_INLINE void dcommi_cuda_quad_store(float *x, uint32_t left, bool vectors,
                                               const float v[4])
{
    if (left >= 4 && vectors) {
        float4 quad;
        quad.x = v[0];
        quad.y = v[1];
        quad.z = v[2];
        quad.w = v[3];
        dcommi_cuda_store<float4>(x, quad);
    } else {
#pragma unroll
        for (uint32_t c = 0; c < 4; c++) {
            if (c < left) {
                dcommi_cuda_store<float>(x + c, v[c]);
            }
        }
    }
}

/* Return the bits that an element counts as. */
template <bool ADDS>
DCOMMI_CUDA_INLINE uint32_t dcommi_cuda_topk_take(const dcommi_cuda_topk &p, float x, float r,
                                                  uint32_t i, dcommi_cuda_found *found)
{
    uint32_t b = dcommi_f32_bits(ADDS ? __fadd_rn(x, r) : x);
    if (dcommi_cuda_odd(b)) {
        const bool odd = dcommi_cuda_odd(dcommi_f32_bits(x));
        if (odd) {
            dcommi_cuda_found_odd(found, i);
            b = p.pass ? dcommi_f32_bits(x) : ADDS ? dcommi_f32_bits(r) : 0;
        }
        if (!odd || !p.pass) { /* it becomes finite, as does the residual r */
            found->clipped += dcommi_cuda_odd(b);
            b = dcommi_f32_bits(dcommi_f32_bounded(dcommi_f32_from_bits(b)));
        }
    }
    return b;
}

/* Decide how to proceed after the scan. */
DCOMMI_CUDA_INLINE void dcommi_cuda_topk_decide(const dcommi_cuda_topk &p, uint32_t threshold)
{
    dcommi_cuda_topk_state *s = p.state;
    const uint32_t have = __ldcg(&s->have);
    const uint32_t most = p.exact ? p.wanted : p.most;
    const bool few = p.exact && have < p.wanted, full = few || have > p.room;
    const bool all = !p.exact && have <= most;
    if (threadIdx.x == 0) {
        s->full = full;
        s->items = full ? p.count : have;
        s->kept = have < most && !few ? have : most;
        s->low = few ? 0 : threshold;
        s->high = all ? threshold : DCOMMI_CUDA_ABS;
        s->need = all ? UINT32_MAX : most;
    }
    /* All sums must be in `next`, because later kernels read all elements. */
    for (uint32_t j = threadIdx.x; full && p.residual != NULL && j < have && j < p.room;
         j += blockDim.x) {
        const uint32_t b = __ldcg(p.bits + j);
        if (!dcommi_cuda_odd(b)) {
            p.next[__ldcg(p.index + j)] = dcommi_f32_from_bits(b);
        }
    }
}

/* ADDS: there is a residual. */
template <bool ADDS, bool LEDGER>
static __global__ void __launch_bounds__(DCOMMI_CUDA_TOPK_SCAN_THREADS, LEDGER ? 1 : 2)
    dcommi_cuda_topk_scan_kernel(const __grid_constant__ dcommi_cuda_topk p)
{
    __shared__ uint32_t room[DCOMMI_CUDA_TOPK_SCAN_THREADS / DCOMMI_CUDA_WARP];
    __shared__ uint32_t begin, last;
    const uint32_t warp = threadIdx.x / DCOMMI_CUDA_WARP, warps = blockDim.x / DCOMMI_CUDA_WARP;
    const uint64_t first = (uint64_t)blockIdx.x * DCOMMI_CUDA_TOPK_TILE +
                           warp * (DCOMMI_CUDA_TOPK_OWN * DCOMMI_CUDA_WARP) +
                           dcommi_cuda_lane() * 4;
    const uint32_t threshold = p.exact                             ? p.state->threshold
                               : p.state->low < DCOMMI_CUDA_NORMAL ? DCOMMI_CUDA_NORMAL
                               : p.state->low < DCOMMI_CUDA_INF    ? p.state->low
                                                                   : DCOMMI_CUDA_INF;
    float v[DCOMMI_CUDA_TOPK_OWN], r[DCOMMI_CUDA_TOPK_OWN];
    dcommi_cuda_found found = {};
    dcommi_cuda_tally tally = {};
    uint32_t mask = 0, counts = 0; /* counts: number in each row, eight bits each */
#pragma unroll
    for (uint32_t k = 0; k < DCOMMI_CUDA_TOPK_ROWS; k++) {
        const uint64_t at = first + k * 4 * DCOMMI_CUDA_WARP;
        const uint32_t left = dcommi_cuda_left(at, p.count);
        dcommi_cuda_quad_load(p.x + at, left, p.vectors, v + 4 * k);
        if (ADDS) {
            dcommi_cuda_quad_load(p.residual + at, left, p.vectors, r + 4 * k);
        }
    }
    /* Without a residual, only compare, if all numbers are finite: at four bytes an element there
     * is time for little else. */
    const bool plain = !ADDS && !LEDGER && dcommi_cuda_own_most(v) < DCOMMI_CUDA_INF &&
                       first + (DCOMMI_CUDA_TOPK_ROWS - 1) * 4 * DCOMMI_CUDA_WARP + 4 <= p.count;
#pragma unroll
    for (uint32_t k = 0; k < DCOMMI_CUDA_TOPK_ROWS && plain; k++) {
        uint32_t row = 0;
#pragma unroll
        for (uint32_t c = 0; c < 4; c++) {
            const uint32_t b = dcommi_f32_bits(v[4 * k + c]) & DCOMMI_CUDA_ABS;
            row |= (b >= threshold ? 1u : 0u) << c;
        }
        mask |= row << 4 * k;
        counts |= (uint32_t)__popc(row) << 8 * k;
    }
#pragma unroll
    for (uint32_t k = 0; k < DCOMMI_CUDA_TOPK_ROWS && !plain; k++) {
        const uint64_t at = first + k * 4 * DCOMMI_CUDA_WARP;
        const uint32_t left = dcommi_cuda_left(at, p.count);
        uint32_t row = 0;
#pragma unroll
        for (uint32_t c = 0; c < 4; c++) {
            float *e = &v[4 * k + c], *rest = &r[4 * k + c];
            if (c < left) {
                const float x = *e;
                const uint32_t b =
                    dcommi_cuda_topk_take<ADDS>(p, x, *rest, (uint32_t)at + c, &found);
                const bool candidate = (b & DCOMMI_CUDA_ABS) >= threshold;
                row |= (candidate ? 1u : 0u) << c;
                *e = dcommi_f32_from_bits(b);
                *rest = dcommi_cuda_odd(b) ? *rest : candidate ? 0 : *e;
                if (LEDGER && !candidate) {
                    dcommi_cuda_tally_one(&tally, x, 0, ADDS, ADDS ? *rest : 0);
                }
            }
        }
        if (ADDS) {
            dcommi_cuda_quad_store(p.next + at, left, p.vectors, r + 4 * k);
        }
        mask |= row << 4 * k;
        counts |= (uint32_t)__popc(row) << 8 * k;
    }
    if (found.nonfinite > 0 || found.clipped > 0) {
        dcommi_cuda_report_add(p.report, found, p.refuses);
    }
    if (LEDGER) {
        dcommi_cuda_tally_block(&tally);
        if (threadIdx.x == 0) {
            p.scanned[blockIdx.x] = tally;
        }
    }
    /* A row of a warp has at most 128, so the four sums do not overflow. */
    const uint32_t upto = dcommi_cuda_warp_prefix(counts), before = upto - counts;
    const uint32_t sums = __shfl_sync(DCOMMI_CUDA_ALL, upto, DCOMMI_CUDA_WARP - 1);
    if (dcommi_cuda_lane() == 0) {
        room[warp] = (sums & 0xff) + (sums >> 8 & 0xff) + (sums >> 16 & 0xff) + (sums >> 24);
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        uint32_t all = 0;
        for (uint32_t w = 0; w < warps; w++) {
            const uint32_t own = room[w];
            room[w] = all;
            all += own;
        }
        uint2 tile;
        tile.x = begin = all > 0 ? atomicAdd(&p.state->have, all) : 0;
        tile.y = all;
        p.tile[blockIdx.x] = tile;
    }
    __syncthreads();
    uint32_t to = begin + room[warp];
#pragma unroll
    for (uint32_t k = 0; k < DCOMMI_CUDA_TOPK_ROWS; k++) {
        uint32_t own = to + (before >> 8 * k & 0xff);
        to += sums >> 8 * k & 0xff;
#pragma unroll
        for (uint32_t c = 0; c < 4; c++) {
            if ((mask >> (4 * k + c) & 1) != 0) {
                const uint64_t at = first + k * 4 * DCOMMI_CUDA_WARP + c;
                if (own < p.room) {
                    p.bits[own] = dcommi_f32_bits(v[4 * k + c]);
                    p.index[own] = (uint32_t)at;
                } else if (ADDS && !dcommi_cuda_odd(dcommi_f32_bits(v[4 * k + c]))) {
                    p.next[at] = v[4 * k + c];
                }
                own++;
            }
        }
    }
    if (dcommi_cuda_last_block(&p.state->ticket, &last)) {
        dcommi_cuda_topk_decide(p, threshold);
    }
}

#endif
