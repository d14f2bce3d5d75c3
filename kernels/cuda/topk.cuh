/* topk.cuh - shared by the kernels of top-k: their arguments, their state in device memory, and
 * how blocks work together.
 *
 * The launches are always the same, whatever the data. A state in the workspace tells each of them
 * how to proceed:
 * - begin: set a threshold that slightly more than k elements should reach, from the last call or
 *   from a sample. For the codec threshold, gather takes the sample, and the selection from it is
 *   exact.
 * - scan: pass over the input once. Elements that reach the threshold are the candidates. Those of
 *   a tile lie together and in order; tiles lie in the order of their completion. With a residual,
 *   the pass also adds it and stores the new one.
 * - digit, three times: find the k-th magnitude of the candidates, by digits.
 * - count: count the elements that each tile sends, which gives their places on the wire.
 * - emit: write the wire.
 * A ledger's sums come from scan for elements below the threshold, and from emit for candidates.
 * If the threshold was wrong, there are fewer than k candidates or too many for the room. Then
 * digit, count and emit read all elements instead, which takes longer but is still exact.
 *
 * Magnitudes are compared as the bits of |x|, as in cpu/topk.h, which gives the same bytes. */
#ifndef DCOMMI_CUDA_TOPK_H
#define DCOMMI_CUDA_TOPK_H

#include "cast.cuh"
#include "../topk_sample.h"
#include "../wire_sparse.h"

#define DCOMMI_CUDA_TOPK_TILE 8192u /* elements that a block scans, and a warp sends */
#define DCOMMI_CUDA_TOPK_WARPS 8u   /* warps of blocks that count and emit: a group of tiles */
#define DCOMMI_CUDA_TOPK_GROUP (DCOMMI_CUDA_TOPK_TILE * DCOMMI_CUDA_TOPK_WARPS)
#define DCOMMI_CUDA_TOPK_THREADS (DCOMMI_CUDA_WARP * DCOMMI_CUDA_TOPK_WARPS)
#define DCOMMI_CUDA_TOPK_BINS 4096u
#define DCOMMI_CUDA_ABS 0x7fffffffu
#define DCOMMI_CUDA_INF 0x7f800000u
#define DCOMMI_CUDA_NORMAL 0x00800000u /* of the least normal number */

static_assert(DCOMMI_CUDA_TOPK_GROUP == DCOMMI_SPARSE_BLOCK, "a group is a block of offsets");

/* State in the workspace. The first four fields outlive a call. */
struct dcommi_cuda_topk_state {
    uint32_t known, count, wanted, guess; /* known = MAGIC: `guess` is valid for the others */
    uint32_t threshold;                   /* for the scan */
    uint32_t have;                        /* number of candidates */
    /* The selection: of `items` magnitudes, those in [low, high] remain, and the `need` largest of
     * these are wanted. At the end low = high, and `need` of the elements that equal it are
     * sent. */
    uint32_t low, high, need, items;
    uint32_t full; /* items are all elements, not only the candidates */
    uint32_t kept;
    uint32_t ticket; /* blocks of this launch that are done */
    dcomm_cuda_report coded;
};

#define DCOMMI_CUDA_TOPK_MAGIC 0x746f706bu

struct dcommi_cuda_topk {
    const float *x, *residual;
    float *next;
    unsigned char *wire;
    dcomm_cuda_report *report;
    bool refuses;                 /* see dcommi_cuda_job */
    uint32_t count, wanted, most; /* elements; elements wanted; elements sent at most */
    uint32_t room;                /* candidates that fit */
    uint32_t lines, rank;         /* of the sample; rank 0: no sample */
    int values;                   /* dcomm_codec_format */
    uint64_t value_bytes;         /* bytes of coded values */
    bool exact, pass, vectors;    /* vectors: arrays are aligned to 16 */
    bool first;                   /* digit: the first of a selection */
    dcommi_cuda_topk_state *state;
    uint32_t *hist;             /* BINS counters, zero between launches */
    uint2 *tile;                /* of each tile: x: begin of its candidates, y: their number */
    uint2 *found;               /* of each tile: x: above the k-th magnitude, y: equal to it */
    uint2 *group;               /* likewise, summed over the groups before */
    uint32_t *bits, *index;     /* of candidates */
    uint32_t *value, *at;       /* elements sent, if values are coded; else NULL */
    dcommi_cuda_tally *tally;   /* one for each group, if there is a ledger */
    dcommi_cuda_tally *scanned; /* one for each tile: of elements below the threshold */
};

/* ---- warps and blocks ---- */

DCOMMI_CUDA_INLINE uint32_t dcommi_cuda_lane(void)
{
    return threadIdx.x % DCOMMI_CUDA_WARP;
}

/* Return the sum over the lanes up to and including this one. */
DCOMMI_CUDA_INLINE uint32_t dcommi_cuda_warp_prefix(uint32_t v)
{
    for (unsigned far = 1; far < DCOMMI_CUDA_WARP; far *= 2) {
        const uint32_t other = __shfl_up_sync(DCOMMI_CUDA_ALL, v, far);
        v += dcommi_cuda_lane() >= far ? other : 0;
    }
    return v;
}

DCOMMI_CUDA_INLINE uint32_t dcommi_cuda_warp_sum(uint32_t v)
{
    for (unsigned far = DCOMMI_CUDA_WARP / 2; far > 0; far /= 2) {
        v += __shfl_xor_sync(DCOMMI_CUDA_ALL, v, far);
    }
    return v;
}

/* Return the sum over the threads of the block before this one. `room` has a number for each
 * warp. */
DCOMMI_CUDA_INLINE uint32_t dcommi_cuda_block_before(uint32_t v, uint32_t *room)
{
    const uint32_t upto = dcommi_cuda_warp_prefix(v), warp = threadIdx.x / DCOMMI_CUDA_WARP;
    uint32_t before = upto - v;
    __syncthreads(); /* old contents have been read */
    if (dcommi_cuda_lane() == DCOMMI_CUDA_WARP - 1) {
        room[warp] = upto;
    }
    __syncthreads();
    for (uint32_t w = 0; w < warp; w++) {
        before += room[w];
    }
    return before;
}

/* Return true in the last block of the launch to get here. It sees all stores of the other blocks
 * if its loads bypass the L1 cache. A fence also orders what its thread has seen through a barrier:
 * the block's stores come before the barrier, that before the first fence, and that before the
 * ticket. In the last block the ticket comes before the second fence, that before the barrier, and
 * that before all threads' loads. So one thread's fences do for the block. */
DCOMMI_CUDA_INLINE bool dcommi_cuda_last_block(uint32_t *ticket, uint32_t *room)
{
    __syncthreads();
    if (threadIdx.x == 0) {
        __threadfence();
        *room = atomicInc(ticket, gridDim.x - 1);
        __threadfence();
    }
    __syncthreads();
    return *room == gridDim.x - 1;
}

/* ---- digits ---- */

/* A bin of magnitudes: 2^width of them, from `low` on, relative to the selection's low end. */
struct dcommi_cuda_bin {
    uint32_t low, width;
};

/* Return the bin of distance d from the selection's low end. A selection starts with widening
 * bins, 128 for each power of two: if the low end is a threshold, the k-th magnitude is close to
 * it. */
DCOMMI_CUDA_INLINE uint32_t dcommi_cuda_bin_of(uint32_t d, bool widening, uint32_t width)
{
    if (!widening) {
        return d >> width;
    }
    const uint32_t log2 = d < 128 ? 7 : 31 - (uint32_t)__clz((int)d);
    return d < 128 ? d : (log2 - 7) * 128 + (d >> (log2 - 7));
}

DCOMMI_CUDA_INLINE dcommi_cuda_bin dcommi_cuda_bin_at(uint32_t bin, bool widening, uint32_t width)
{
    dcommi_cuda_bin b;
    if (!widening) {
        b.low = bin << width;
        b.width = width;
    } else if (bin < 128) {
        b.low = bin;
        b.width = 0;
    } else {
        b.width = bin / 128 - 1;
        b.low = (128 + bin % 128) << b.width;
    }
    return b;
}

/* Return the least width with which BINS bins of 2^width cover `span`. */
DCOMMI_CUDA_INLINE uint32_t dcommi_cuda_bin_width(uint32_t span)
{
    const uint32_t log2 = 32 - (uint32_t)__clz((int)span);
    return log2 > 12 ? log2 - 12 : 0;
}

struct dcommi_cuda_picked {
    uint32_t before[32];
    uint32_t bin, need;
};

/* Find the bin of the need-th largest item, and its rank in that bin. All threads of the block
 * call this; `bins` is in shared memory. */
DCOMMI_CUDA_INLINE void dcommi_cuda_pick(const uint32_t *bins, uint32_t need,
                                         dcommi_cuda_picked *picked)
{
    const uint32_t each = DCOMMI_CUDA_TOPK_BINS / blockDim.x; /* a power of two, at most 32 */
    const uint32_t end = DCOMMI_CUDA_TOPK_BINS - threadIdx.x * each;
    /* Threads begin at different bins, or those of a warp would access few banks. */
    const uint32_t turn = threadIdx.x * each / DCOMMI_CUDA_WARP;
    uint32_t own = 0;
    for (uint32_t i = 0; i < each; i++) {
        own += bins[end - 1 - (i + turn) % each];
    }
    const uint32_t before = dcommi_cuda_block_before(own, picked->before);
    if (before < need && need - before <= own) {
        uint32_t left = need - before, bin = end - 1;
        for (; bins[bin] < left; bin--) {
            left -= bins[bin];
        }
        picked->bin = bin;
        picked->need = left;
    }
    __syncthreads();
}

/* ---- elements ---- */

DCOMMI_CUDA_INLINE bool dcommi_cuda_odd(uint32_t bits)
{
    return (bits & DCOMMI_CUDA_ABS) >= DCOMMI_CUDA_INF;
}

/* Return the bits that element i counts as, after the scan. */
DCOMMI_CUDA_INLINE uint32_t dcommi_cuda_topk_again(const dcommi_cuda_topk &p, uint32_t i)
{
    if (p.residual == NULL) {
        const uint32_t b = dcommi_f32_bits(dcommi_cuda_load<float>(p.x + i));
        return !p.pass && dcommi_cuda_odd(b) ? 0 : b;
    }
    const float sum = __ldcg(p.next + i);
    if (p.pass) {
        const float x = dcommi_cuda_load<float>(p.x + i);
        if (dcommi_cuda_odd(dcommi_f32_bits(x))) {
            return dcommi_f32_bits(x);
        }
    }
    return dcommi_f32_bits(sum);
}

/* Candidates of a tile, or all its elements. */
struct dcommi_cuda_items {
    uint32_t begin, n;
    bool full;
};

DCOMMI_CUDA_INLINE dcommi_cuda_items dcommi_cuda_items_of(const dcommi_cuda_topk &p, uint32_t tile)
{
    dcommi_cuda_items items;
    const uint64_t begin = (uint64_t)tile * DCOMMI_CUDA_TOPK_TILE;
    items.full = p.state->full != 0;
    items.begin = (uint32_t)begin;
    items.n = 0;
    if (begin < p.count && items.full) {
        items.n = p.count - items.begin < DCOMMI_CUDA_TOPK_TILE ? p.count - items.begin
                                                                : DCOMMI_CUDA_TOPK_TILE;
    } else if (begin < p.count) {
        items.begin = p.tile[tile].x;
        items.n = p.tile[tile].y;
    }
    return items;
}

#endif
