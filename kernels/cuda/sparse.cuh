/* sparse.cuh - decode sparse wires: scatter their elements, wire after wire.
 *
 * A block of threads has 65,536 elements, which is one entry of a wire's ends. Each of its warps
 * has the bits of 8192 elements of a bitmap. For a bitmap, a launch before this one finds which
 * value is the first of each block. A wire that no encoder writes is reported, and never causes a
 * store outside the array. */
#ifndef DCOMMI_CUDA_SPARSE_H
#define DCOMMI_CUDA_SPARSE_H

#include "topk.cuh"

#define DCOMMI_CUDA_MAP_WORDS (DCOMMI_CUDA_TOPK_TILE / 32 / DCOMMI_CUDA_WARP) /* of a lane */

struct dcommi_cuda_scatter {
    const unsigned char *wire;
    const float *decoded; /* decoded values, if values are coded; else NULL */
    float *x;
    dcomm_cuda_report *report;
    uint32_t count, least, most; /* least, most: elements of a wire */
    uint64_t bytes, max_bytes;
    uint64_t value_bytes; /* bytes of coded values */
    int values;           /* dcomm_codec_format */
    bool add, pass;
    uint32_t *ticket;
    uint32_t *rank; /* for each block: the number of its first value */
};

/* The parts of a wire, as far as its head can be trusted. */
struct dcommi_cuda_sparse {
    bool good;
    uint32_t kept;
    dcommi_sparse_form form;
    const unsigned char *index;
};

DCOMMI_CUDA_INLINE dcommi_cuda_sparse dcommi_cuda_sparse_open(const dcommi_cuda_scatter &p)
{
    dcommi_cuda_sparse w;
    w.kept = *reinterpret_cast<const uint32_t *>(p.wire);
    w.good = w.kept >= p.least && w.kept <= p.most;
    w.kept = w.good ? w.kept : 0;
    w.form = dcommi_sparse_form_of(p.count, w.kept);
    const uint64_t values = p.decoded != NULL              ? p.value_bytes
                            : p.values == DCOMM_FORMAT_F32 ? 4 * (uint64_t)w.kept
                                                           : 2 * (uint64_t)w.kept;
    const uint64_t bytes = DCOMMI_SPARSE_HEAD + values + dcommi_sparse_index_bytes(p.count, w.kept);
    w.good = w.good && (p.bytes == bytes || p.bytes == p.max_bytes);
    w.index = p.wire + DCOMMI_SPARSE_HEAD + values;
    return w;
}

/* Return 32 bits at an even address. */
DCOMMI_CUDA_INLINE uint32_t dcommi_cuda_get32(const unsigned char *from)
{
    const uint16_t *half = reinterpret_cast<const uint16_t *>(from);
    return half[0] | (uint32_t)half[1] << 16;
}

/* Return the bitmap's word of elements from 32 * i on; elements behind its end are 0. */
DCOMMI_CUDA_INLINE uint32_t dcommi_cuda_map_word(const unsigned char *map, uint64_t i,
                                                 uint32_t count)
{
    const uint64_t bytes = count / 8 + (count % 8 != 0 ? 1 : 0), at = 4 * i;
    if (at + 4 <= bytes) {
        return dcommi_cuda_get32(map + at);
    }
    uint32_t word = 0;
    for (uint32_t b = 0; b < 4 && at + b < bytes; b++) {
        word |= (uint32_t)map[at + b] << 8 * b;
    }
    return word;
}

/* ---- ranks in a bitmap ---- */

static __global__ void __launch_bounds__(DCOMMI_CUDA_TOPK_THREADS)
    dcommi_cuda_rank_kernel(const __grid_constant__ dcommi_cuda_scatter p)
{
    __shared__ uint32_t room[DCOMMI_CUDA_TOPK_WARPS], last;
    const dcommi_cuda_sparse w = dcommi_cuda_sparse_open(p);
    if (!w.good || w.form != DCOMMI_SPARSE_BITMAP) {
        return;
    }
    uint32_t own = 0;
    bool bad = false;
#pragma unroll
    for (uint32_t k = 0; k < DCOMMI_CUDA_MAP_WORDS; k++) {
        const uint64_t i = (uint64_t)blockIdx.x * (DCOMMI_CUDA_TOPK_GROUP / 32) +
                           k * DCOMMI_CUDA_TOPK_THREADS + threadIdx.x;
        const uint32_t word = dcommi_cuda_map_word(w.index, i, p.count);
        own += (uint32_t)__popc(word);
        bad = bad || (i == p.count / 32 && word >> p.count % 32 != 0);
    }
    own = dcommi_cuda_warp_sum(own);
    if (dcommi_cuda_lane() == 0) {
        room[threadIdx.x / DCOMMI_CUDA_WARP] = own;
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        for (uint32_t v = 1; v < DCOMMI_CUDA_TOPK_WARPS; v++) {
            own += room[v];
        }
        p.rank[blockIdx.x] = own;
    }
    if (dcommi_cuda_last_block(p.ticket, &last)) {
        const uint32_t groups = gridDim.x, each = (groups + blockDim.x - 1) / blockDim.x;
        const uint32_t from = threadIdx.x * each, to = from + each < groups ? from + each : groups;
        own = 0;
        for (uint32_t g = from; g < to; g++) {
            own += __ldcg(p.rank + g);
        }
        uint32_t before = dcommi_cuda_block_before(own, room);
        bad = bad || (threadIdx.x == blockDim.x - 1 && before + own != w.kept);
        for (uint32_t g = from; g < to; g++) {
            own = __ldcg(p.rank + g);
            p.rank[g] = before;
            before += own;
        }
    }
    if (bad) {
        dcommi_cuda_report_corrupt(p.report);
    }
}

/* ---- the elements ---- */

/* Store or add value number `at` to element `index`. */
DCOMMI_CUDA_INLINE void dcommi_cuda_scatter_one(const dcommi_cuda_scatter &p, uint32_t at,
                                                uint32_t index, bool *bad)
{
    const unsigned char *values = p.wire + DCOMMI_SPARSE_HEAD;
    float value;
    if (p.decoded != NULL) {
        value = p.decoded[at];
    } else if (p.values == DCOMM_FORMAT_F32) {
        value = reinterpret_cast<const float *>(values)[at];
    } else {
        const uint16_t h = reinterpret_cast<const uint16_t *>(values)[at];
        value = p.values == DCOMM_FORMAT_BF16 ? dcommi_bf16_to_f32(h) : dcommi_f16_to_f32(h);
    }
    *bad = *bad || (!p.pass && dcommi_cuda_odd(dcommi_f32_bits(value)));
    p.x[index] = p.add ? dcommi_f32_canonical(__fadd_rn(p.x[index], value)) : value;
}

/* Scatter the elements of this block of the BLOCKS form. */
DCOMMI_CUDA_INLINE void dcommi_cuda_scatter_block(const dcommi_cuda_scatter &p,
                                                  const dcommi_cuda_sparse &w, bool *bad)
{
    const uint64_t blocks = dcommi_sparse_blocks(p.count), b = blockIdx.x;
    if (b >= blocks) {
        return;
    }
    const uint16_t *offset = reinterpret_cast<const uint16_t *>(w.index + 4 * blocks);
    const uint32_t from = b > 0 ? dcommi_cuda_get32(w.index + 4 * (b - 1)) : 0;
    const uint32_t end = dcommi_cuda_get32(w.index + 4 * b);
    if (from > end || end > w.kept || (b == blocks - 1 && end != w.kept)) {
        *bad = true;
        return;
    }
    for (uint64_t at = (uint64_t)from + threadIdx.x; at < end; at += blockDim.x) {
        const uint64_t index = b * DCOMMI_SPARSE_BLOCK + offset[at];
        if (index >= p.count || (at > from && offset[at] <= offset[at - 1])) {
            *bad = true;
        } else {
            dcommi_cuda_scatter_one(p, (uint32_t)at, (uint32_t)index, bad);
        }
    }
}

/* Scatter the elements of this warp from a bitmap. */
DCOMMI_CUDA_INLINE void dcommi_cuda_scatter_map(const dcommi_cuda_scatter &p,
                                                const dcommi_cuda_sparse &w, uint32_t *room,
                                                bool *bad)
{
    const uint32_t warp = threadIdx.x / DCOMMI_CUDA_WARP;
    const uint32_t first =
        (blockIdx.x * DCOMMI_CUDA_TOPK_WARPS + warp) * (DCOMMI_CUDA_TOPK_TILE / 32);
    uint32_t own = 0;
#pragma unroll
    for (uint32_t k = 0; k < DCOMMI_CUDA_MAP_WORDS; k++) {
        const uint32_t i = first + k * DCOMMI_CUDA_WARP + dcommi_cuda_lane();
        own += (uint32_t)__popc(dcommi_cuda_map_word(w.index, i, p.count));
    }
    own = dcommi_cuda_warp_sum(own);
    if (dcommi_cuda_lane() == 0) {
        room[warp] = own;
    }
    __syncthreads();
    uint32_t at = p.rank[blockIdx.x];
#pragma unroll 1
    for (uint32_t v = 0; v < warp; v++) {
        at += room[v];
    }
#pragma unroll 1
    for (uint32_t k = 0; k < DCOMMI_CUDA_MAP_WORDS; k++) {
        const uint32_t i = first + k * DCOMMI_CUDA_WARP + dcommi_cuda_lane();
        uint32_t word = dcommi_cuda_map_word(w.index, i, p.count);
        const uint32_t bits = (uint32_t)__popc(word), upto = dcommi_cuda_warp_prefix(bits);
        uint32_t mine = at + upto - bits;
        at += __shfl_sync(DCOMMI_CUDA_ALL, upto, DCOMMI_CUDA_WARP - 1);
#pragma unroll 1
        for (; word != 0; word &= word - 1, mine++) {
            const uint64_t index = 32 * (uint64_t)i + (uint32_t)__ffs((int)word) - 1;
            if (index < p.count && mine < w.kept) {
                dcommi_cuda_scatter_one(p, mine, (uint32_t)index, bad);
            }
        }
    }
}

static __global__ void __launch_bounds__(DCOMMI_CUDA_TOPK_THREADS, 4)
    dcommi_cuda_scatter_kernel(const __grid_constant__ dcommi_cuda_scatter p)
{
    __shared__ uint32_t room[DCOMMI_CUDA_TOPK_WARPS];
    const dcommi_cuda_sparse w = dcommi_cuda_sparse_open(p);
    bool bad = false;
    if (!w.good) {
        bad = blockIdx.x == 0 && threadIdx.x == 0;
    } else if (w.form == DCOMMI_SPARSE_BLOCKS) {
        dcommi_cuda_scatter_block(p, w, &bad);
    } else if (w.form == DCOMMI_SPARSE_BITMAP) {
        dcommi_cuda_scatter_map(p, w, room, &bad);
    } else { /* FLAT: at most two for each block of elements */
        const uint64_t at = (uint64_t)blockIdx.x * blockDim.x + threadIdx.x;
        const uint32_t index = at < w.kept ? dcommi_cuda_get32(w.index + 4 * at) : 0;
        if (at < w.kept &&
            (index >= p.count || (at > 0 && index <= dcommi_cuda_get32(w.index + 4 * (at - 1))))) {
            bad = true;
        } else if (at < w.kept) {
            dcommi_cuda_scatter_one(p, (uint32_t)at, index, &bad);
        }
    }
    if (bad) {
        dcommi_cuda_report_corrupt(p.report);
    }
}

#endif
