/* topk_select.cuh - top-k's selection among the candidates, and the wire. */
#ifndef DCOMMI_CUDA_TOPK_SELECT_H
#define DCOMMI_CUDA_TOPK_SELECT_H

#include "topk.cuh"

/* ---- the k-th magnitude ---- */

/* Find one digit: count the remaining items in each bin. Only those in the bin of the k-th
 * remain. */
static __global__ void __launch_bounds__(DCOMMI_CUDA_TOPK_THREADS)
    dcommi_cuda_topk_digit_kernel(const __grid_constant__ dcommi_cuda_topk p)
{
    __shared__ uint32_t bins[DCOMMI_CUDA_TOPK_BINS];
    __shared__ dcommi_cuda_picked picked;
    __shared__ uint32_t last;
    dcommi_cuda_topk_state *s = p.state;
    const uint32_t low = s->low, span = s->high - low, items = s->items, need = s->need;
    const bool full = s->full != 0;
    const uint32_t width = dcommi_cuda_bin_width(span);
    if (span == 0) {
        return;
    }
    for (uint32_t b = threadIdx.x; b < DCOMMI_CUDA_TOPK_BINS; b += blockDim.x) {
        bins[b] = 0;
    }
    __syncthreads();
    uint32_t run = 0, of = 0; /* consecutive items of one bin are counted together */
#pragma unroll 4
    for (uint64_t j = (uint64_t)blockIdx.x * blockDim.x + threadIdx.x; j < items;
         j += (uint64_t)gridDim.x * blockDim.x) {
        const uint32_t b = full ? dcommi_cuda_topk_again(p, (uint32_t)j) : p.bits[j];
        const uint32_t d = (b & DCOMMI_CUDA_ABS) - low;
        if (d <= span) {
            const uint32_t bin = dcommi_cuda_bin_of(d, p.first, width);
            if (bin != of && run > 0) {
                atomicAdd(&bins[of], run);
                run = 0;
            }
            of = bin;
            run++;
        }
    }
    if (run > 0) {
        atomicAdd(&bins[of], run);
    }
    __syncthreads();
    for (uint32_t b = threadIdx.x; b < DCOMMI_CUDA_TOPK_BINS; b += blockDim.x) {
        if (bins[b] > 0) {
            atomicAdd(&p.hist[b], bins[b]);
        }
    }
    if (!dcommi_cuda_last_block(&s->ticket, &last)) {
        return;
    }
    uint32_t sum[DCOMMI_CUDA_TOPK_BINS / DCOMMI_CUDA_TOPK_THREADS];
#pragma unroll
    for (uint32_t i = 0; i < sizeof sum / sizeof *sum; i++) {
        sum[i] = __ldcg(p.hist + i * DCOMMI_CUDA_TOPK_THREADS + threadIdx.x);
    }
#pragma unroll
    for (uint32_t i = 0; i < sizeof sum / sizeof *sum; i++) {
        bins[i * DCOMMI_CUDA_TOPK_THREADS + threadIdx.x] = sum[i];
        p.hist[i * DCOMMI_CUDA_TOPK_THREADS + threadIdx.x] = 0;
    }
    __syncthreads();
    dcommi_cuda_pick(bins, need, &picked);
    if (threadIdx.x == 0) {
        const dcommi_cuda_bin bin = dcommi_cuda_bin_at(picked.bin, p.first, width);
        const uint32_t past = (1u << bin.width) - 1, above = span - bin.low;
        s->low = low + bin.low;
        s->high = low + bin.low + (past < above ? past : above);
        s->need = picked.need;
    }
}

/* ---- places of elements ---- */

/* Return the threshold for the next call: like the last one, but so that about twice as many
 * elements as wanted reach it. Magnitudes may shrink a little from call to call. */
DCOMMI_CUDA_INLINE uint32_t dcommi_cuda_topk_guess(uint32_t threshold, uint32_t kth, uint32_t have,
                                                   uint32_t wanted)
{
    const uint32_t gap = kth - threshold, least = 4096;
    const uint32_t spare = have > wanted ? have - wanted : 1;
    const double by = (double)wanted / (double)spare;
    const double wish = (double)gap * (by < 0.25 ? 0.25 : by > 4 ? 4 : by);
    const uint32_t down = wish < (double)least ? least : (uint32_t)wish;
    return kth > down ? kth - down : 0;
}

static __global__ void __launch_bounds__(DCOMMI_CUDA_TOPK_THREADS)
    dcommi_cuda_topk_count_kernel(const __grid_constant__ dcommi_cuda_topk p)
{
    __shared__ uint32_t above[DCOMMI_CUDA_TOPK_WARPS], equal[DCOMMI_CUDA_TOPK_WARPS];
    __shared__ uint32_t room[DCOMMI_CUDA_TOPK_WARPS], last;
    dcommi_cuda_topk_state *s = p.state;
    const uint32_t warp = threadIdx.x / DCOMMI_CUDA_WARP, kth = s->low;
    const uint32_t tile = blockIdx.x * DCOMMI_CUDA_TOPK_WARPS + warp;
    const dcommi_cuda_items items = dcommi_cuda_items_of(p, tile);
    uint2 own;
    own.x = 0;
    own.y = 0;
#pragma unroll 4
    for (uint32_t j = dcommi_cuda_lane(); j < items.n; j += DCOMMI_CUDA_WARP) {
        const uint32_t b =
            items.full ? dcommi_cuda_topk_again(p, items.begin + j) : p.bits[items.begin + j];
        own.x += (b & DCOMMI_CUDA_ABS) > kth ? 1u : 0u;
        own.y += (b & DCOMMI_CUDA_ABS) == kth ? 1u : 0u;
    }
    own.x = dcommi_cuda_warp_sum(own.x);
    own.y = dcommi_cuda_warp_sum(own.y);
    if (dcommi_cuda_lane() == 0) {
        p.found[tile] = own;
        above[warp] = own.x;
        equal[warp] = own.y;
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        for (uint32_t w = 1; w < DCOMMI_CUDA_TOPK_WARPS; w++) {
            own.x += above[w];
            own.y += equal[w];
        }
        p.group[blockIdx.x] = own;
    }
    if (!dcommi_cuda_last_block(&s->ticket, &last)) {
        return;
    }
    const uint32_t groups = gridDim.x, each = (groups + blockDim.x - 1) / blockDim.x;
    const uint32_t from = threadIdx.x * each, to = from + each < groups ? from + each : groups;
    own.x = 0;
    own.y = 0;
    for (uint32_t g = from; g < to; g++) {
        const uint2 of = __ldcg(p.group + g);
        own.x += of.x;
        own.y += of.y;
    }
    own.x = dcommi_cuda_block_before(own.x, room);
    own.y = dcommi_cuda_block_before(own.y, room);
    for (uint32_t g = from; g < to; g++) {
        const uint2 of = __ldcg(p.group + g);
        p.group[g] = own;
        own.x += of.x;
        own.y += of.y;
    }
    if (threadIdx.x == 0) {
        if (p.exact && s->full == 0) {
            s->guess = dcommi_cuda_topk_guess(s->threshold, kth, s->have, p.wanted);
            s->count = p.count;
            s->wanted = p.wanted;
            s->known = DCOMMI_CUDA_TOPK_MAGIC;
        }
        if (p.report != NULL) {
            p.report->kept = s->kept;
        }
    }
}

/* ---- the wire ---- */

/* Store 32 bits at an even address. */
DCOMMI_CUDA_INLINE void dcommi_cuda_put32(unsigned char *to, uint32_t v)
{
    if (reinterpret_cast<uintptr_t>(to) % 4 == 0) {
        *reinterpret_cast<uint32_t *>(to) = v;
    } else {
        reinterpret_cast<uint16_t *>(to)[0] = (uint16_t)v;
        reinterpret_cast<uint16_t *>(to)[1] = (uint16_t)(v >> 16);
    }
}

DCOMMI_CUDA_INLINE uint32_t dcommi_cuda_flushed(uint32_t bits)
{
    return (bits & DCOMMI_CUDA_INF) == 0 ? bits & 0x80000000u : bits;
}

/* Cast one value to 16 bits; a finite value stays finite. */
DCOMMI_CUDA_INLINE uint16_t dcommi_cuda_topk_half(uint32_t bits, bool bf16, uint32_t *clipped)
{
    const float x = dcommi_f32_from_bits(dcommi_cuda_flushed(bits));
    uint16_t h = bf16 ? dcommi_f32_to_bf16(x) : dcommi_f32_to_f16(x);
    if ((h & 0x7fff) == (bf16 ? 0x7f80 : 0x7c00) && !dcommi_cuda_odd(bits)) {
        ++*clipped;
        h--;
    }
    return h;
}

/* The result of sending a value. */
struct dcommi_cuda_topk_sent {
    float y, left; /* the decoded value, and the residual */
};

/* Write value number `at`, and store its residual. */
DCOMMI_CUDA_INLINE dcommi_cuda_topk_sent dcommi_cuda_topk_put(const dcommi_cuda_topk &p,
                                                              uint32_t at, uint32_t bits,
                                                              uint32_t index, bool full,
                                                              uint32_t *clipped)
{
    unsigned char *values = p.wire + DCOMMI_SPARSE_HEAD;
    dcommi_cuda_topk_sent sent = {};
    if (p.value != NULL) {
        p.value[at] = bits;
        p.at[at] = index;
        return sent;
    }
    if (p.values == DCOMM_FORMAT_F32) {
        const uint32_t flushed = dcommi_cuda_flushed(bits);
        reinterpret_cast<uint32_t *>(values)[at] = flushed;
        sent.y = dcommi_f32_from_bits(flushed);
        sent.left = dcommi_f32_from_bits(flushed == bits ? 0 : bits);
    } else {
        const bool bf16 = p.values == DCOMM_FORMAT_BF16;
        const uint16_t h = dcommi_cuda_topk_half(bits, bf16, clipped);
        reinterpret_cast<uint16_t *>(values)[at] = h;
        sent.y = bf16 ? dcommi_bf16_to_f32(h) : dcommi_f16_to_f32(h);
        sent.left = __fsub_rn(dcommi_f32_from_bits(bits), sent.y);
    }
    /* For a candidate, the scan stored 0 there, or the old residual. */
    if (p.residual != NULL && !dcommi_cuda_odd(bits) && (full || dcommi_f32_bits(sent.left) != 0)) {
        p.next[index] = sent.left;
    }
    return sent;
}

/* Add element `index`, which counts as `bits`, to a ledger. If that is not finite, its residual
 * did not change. */
DCOMMI_CUDA_INLINE void dcommi_cuda_topk_tally(const dcommi_cuda_topk &p, uint32_t index,
                                               uint32_t bits, const dcommi_cuda_topk_sent &sent,
                                               dcommi_cuda_tally *tally)
{
    const bool feedback = p.residual != NULL;
    const float next = feedback && dcommi_cuda_odd(bits) ? __ldcg(p.next + index) : sent.left;
    dcommi_cuda_tally_one(tally, dcommi_cuda_load<float>(p.x + index), sent.y, feedback, next);
}

template <bool LEDGER>
static __global__ void __launch_bounds__(DCOMMI_CUDA_TOPK_THREADS)
    dcommi_cuda_topk_emit_kernel(const __grid_constant__ dcommi_cuda_topk p)
{
    __shared__ uint32_t map[DCOMMI_CUDA_TOPK_WARPS][DCOMMI_CUDA_TOPK_TILE / 32];
    const dcommi_cuda_topk_state *s = p.state;
    const uint32_t warp = threadIdx.x / DCOMMI_CUDA_WARP, lane = dcommi_cuda_lane();
    const uint32_t tile = blockIdx.x * DCOMMI_CUDA_TOPK_WARPS + warp;
    const uint32_t kth = s->low, need = s->need, kept = s->kept;
    const dcommi_cuda_items items = dcommi_cuda_items_of(p, tile);
    const dcommi_sparse_form form = dcommi_sparse_form_of(p.count, kept);
    const uint64_t values = p.value != NULL                ? p.value_bytes
                            : p.values == DCOMM_FORMAT_F32 ? 4 * (uint64_t)kept
                                                           : 2 * (uint64_t)kept;
    unsigned char *out = p.wire + DCOMMI_SPARSE_HEAD + values;
    unsigned char *offsets =
        out + (form == DCOMMI_SPARSE_BLOCKS ? 4 * dcommi_sparse_blocks(p.count) : 0);
    /* The counts before this tile. */
    uint2 own = p.group[blockIdx.x];
    for (uint32_t w = 0; w < warp; w++) {
        const uint2 of = p.found[blockIdx.x * DCOMMI_CUDA_TOPK_WARPS + w];
        own.x += of.x;
        own.y += of.y;
    }
    if (form == DCOMMI_SPARSE_BITMAP) {
        for (uint32_t i = lane; i < DCOMMI_CUDA_TOPK_TILE / 32; i += DCOMMI_CUDA_WARP) {
            map[warp][i] = 0;
        }
        __syncwarp();
    }
    dcommi_cuda_tally tally = {};
    if (LEDGER && lane == 0 && !items.full && (uint64_t)tile * DCOMMI_CUDA_TOPK_TILE < p.count) {
        tally = p.scanned[tile];
    }
    uint32_t clipped = 0;
    const uint32_t below = (1u << lane) - 1;
    for (uint32_t from = 0; from < items.n; from += DCOMMI_CUDA_WARP) {
        const uint32_t j = items.begin + from + lane;
        const bool there = from + lane < items.n;
        uint32_t bits = 0, index = j;
        if (there && items.full) {
            bits = dcommi_cuda_topk_again(p, j);
        } else if (there) {
            bits = p.bits[j];
            index = p.index[j];
        }
        const uint32_t key = bits & DCOMMI_CUDA_ABS;
        const bool more = there && key > kth, ties = there && key == kth;
        const uint32_t all_more = __ballot_sync(DCOMMI_CUDA_ALL, more);
        const uint32_t all_ties = __ballot_sync(DCOMMI_CUDA_ALL, ties);
        const uint32_t equal = own.y + (uint32_t)__popc(all_ties & below);
        const uint32_t at =
            own.x + (uint32_t)__popc(all_more & below) + (equal < need ? equal : need);
        own.x += (uint32_t)__popc(all_more);
        own.y += (uint32_t)__popc(all_ties);
        if (more || (ties && equal < need)) {
            const dcommi_cuda_topk_sent sent =
                dcommi_cuda_topk_put(p, at, bits, index, items.full, &clipped);
            if (LEDGER && p.value == NULL) {
                dcommi_cuda_topk_tally(p, index, bits, sent, &tally);
            }
            if (form == DCOMMI_SPARSE_FLAT) {
                dcommi_cuda_put32(out + 4 * (uint64_t)at, index);
            } else if (form == DCOMMI_SPARSE_BLOCKS) {
                reinterpret_cast<uint16_t *>(offsets)[at] = (uint16_t)index;
            } else {
                atomicOr(&map[warp][index % DCOMMI_CUDA_TOPK_TILE / 32], 1u << index % 32);
            }
        } else if (there) {
            if (!items.full && p.residual != NULL && !dcommi_cuda_odd(bits)) {
                p.next[index] = dcommi_f32_from_bits(bits);
            }
            if (LEDGER) {
                const dcommi_cuda_topk_sent nothing = {0, dcommi_f32_from_bits(bits)};
                dcommi_cuda_topk_tally(p, index, bits, nothing, &tally);
            }
        }
    }
    if (LEDGER) {
        dcommi_cuda_tally_block(&tally);
        if (threadIdx.x == 0) {
            p.tally[blockIdx.x] = tally;
        }
    }
    if (clipped > 0 && p.report != NULL) {
        atomicAdd(reinterpret_cast<unsigned long long *>(&p.report->clipped),
                  (unsigned long long)clipped);
    }
    if (form == DCOMMI_SPARSE_BITMAP) {
        const uint64_t bytes = p.count / 8 + (p.count % 8 != 0 ? 1 : 0);
        __syncwarp();
        for (uint32_t i = lane; i < DCOMMI_CUDA_TOPK_TILE / 16; i += DCOMMI_CUDA_WARP) {
            const uint64_t to = (uint64_t)tile * (DCOMMI_CUDA_TOPK_TILE / 8) + 2 * i;
            const uint32_t half = map[warp][i / 2] >> i % 2 * 16;
            if (to + 1 < bytes) {
                *reinterpret_cast<uint16_t *>(out + to) = (uint16_t)half;
            } else if (to < bytes) {
                out[to] = (unsigned char)half;
            }
        }
    }
    if (lane == 0 && warp == DCOMMI_CUDA_TOPK_WARPS - 1 && form == DCOMMI_SPARSE_BLOCKS) {
        dcommi_cuda_put32(out + 4 * (uint64_t)blockIdx.x, own.x + (own.y < need ? own.y : need));
    }
    if (blockIdx.x == gridDim.x - 1 && threadIdx.x == 0) {
        dcommi_cuda_put32(p.wire, kept);
    }
}

/* Store the errors of coded values as residuals. */
struct dcommi_cuda_topk_lost {
    dcommi_cuda_topk topk;
    const float *sent;        /* decoded values; NULL without residual and ledger */
    dcommi_cuda_tally *tally; /* one for each block, if there is a ledger */
};

template <bool LEDGER>
static __global__ void __launch_bounds__(DCOMMI_CUDA_TOPK_THREADS)
    dcommi_cuda_topk_lost_kernel(const __grid_constant__ dcommi_cuda_topk_lost p)
{
    const uint64_t i = (uint64_t)blockIdx.x * DCOMMI_CUDA_TOPK_THREADS + threadIdx.x;
    const dcommi_cuda_topk &t = p.topk;
    dcommi_cuda_tally tally = {};
    if (i < t.wanted && p.sent != NULL) {
        const float left = __fsub_rn(dcommi_f32_from_bits(t.value[i]), p.sent[i]);
        if (t.residual != NULL) {
            t.next[t.at[i]] = left;
        }
        if (LEDGER) {
            dcommi_cuda_tally_one(&tally, t.x[t.at[i]], p.sent[i], t.residual != NULL, left);
        }
    }
    if (LEDGER) {
        dcommi_cuda_tally_block(&tally);
        if (threadIdx.x == 0) {
            p.tally[blockIdx.x] = tally;
        }
    }
    if (i == 0 && t.report != NULL && t.state->coded.clipped > 0) {
        atomicAdd(reinterpret_cast<unsigned long long *>(&t.report->clipped),
                  (unsigned long long)t.state->coded.clipped);
    }
}

#endif
