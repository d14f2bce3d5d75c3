/* look.cuh - find the first element of an array that is not finite, and the sum of squares;
 * unscale the array in the same pass. For gradient scalers.
 *
 * Each block stores its result for one tile. One block then adds them up, in an order that depends
 * only on the count. */
#ifndef DCOMMI_CUDA_LOOK_H
#define DCOMMI_CUDA_LOOK_H

#include "job.cuh"
#include "reduce.cuh"

#define DCOMMI_CUDA_LOOK_THREADS 256u
#define DCOMMI_CUDA_LOOK_OWN 16u /* elements of a thread */
#define DCOMMI_CUDA_LOOK_TILE (DCOMMI_CUDA_LOOK_THREADS * DCOMMI_CUDA_LOOK_OWN)

struct dcommi_cuda_seen {
    double squares;
    uint64_t index; /* of the first element that is not finite; UINT64_MAX: none */
};

struct dcommi_cuda_look {
    void *x;
    uint64_t count, blocks;
    double factor;
    dcommi_cuda_seen *seen; /* one for each block; in the end the first is that of all */
    dcomm_cuda_sight *sight;
};

DCOMMI_CUDA_INLINE void dcommi_cuda_seen_add(dcommi_cuda_seen *s, double squares, uint64_t index)
{
    s->squares = __dadd_rn(s->squares, squares);
    s->index = index < s->index ? index : s->index;
}

/* Return the highest 32 bits but the sign; from those of an infinity on, x is not finite. */
DCOMMI_CUDA_INLINE uint32_t dcommi_cuda_look_size(float x)
{
    return dcommi_f32_bits(x) & 0x7fffffffu;
}

DCOMMI_CUDA_INLINE uint32_t dcommi_cuda_look_size(double x)
{
    return (uint32_t)(dcommi_f64_bits(x) >> 32) & 0x7fffffffu;
}

/* Combine the threads' results; thread 0 has the block's. All threads call it. */
DCOMMI_CUDA_INLINE void dcommi_cuda_seen_block(dcommi_cuda_seen *s)
{
    __shared__ dcommi_cuda_seen room[DCOMMI_CUDA_LOOK_THREADS / 32];
    for (unsigned far = 1; far < 32; far *= 2) {
        const double squares = __shfl_xor_sync(0xffffffffu, s->squares, far);
        const uint64_t index = __shfl_xor_sync(0xffffffffu, s->index, far);
        dcommi_cuda_seen_add(s, squares, index);
    }
    if (threadIdx.x % 32 == 0) {
        room[threadIdx.x / 32] = *s;
    }
    __syncthreads();
    for (unsigned w = 1; threadIdx.x == 0 && w < DCOMMI_CUDA_LOOK_THREADS / 32; w++) {
        dcommi_cuda_seen_add(s, room[w].squares, room[w].index);
    }
}

/* SCALES: the factor is not 1, and the array is multiplied by it. Otherwise it is only read. */
template <class E, bool SCALES>
static __global__ void __launch_bounds__(DCOMMI_CUDA_LOOK_THREADS)
    dcommi_cuda_look_kernel(const __grid_constant__ dcommi_cuda_look p)
{
    typedef typename E::stored stored;
    typedef typename E::acc acc;
    const uint64_t first = (uint64_t)blockIdx.x * DCOMMI_CUDA_LOOK_TILE + threadIdx.x;
    const uint32_t left = dcommi_cuda_left(first, p.count);
    const uint32_t inf = sizeof(acc) == sizeof(float) ? 0x7f800000u : 0x7ff00000u;
    stored *x = static_cast<stored *>(p.x) + first, own[DCOMMI_CUDA_LOOK_OWN];
    dcommi_cuda_seen seen = {0, UINT64_MAX};
    if (left > (DCOMMI_CUDA_LOOK_OWN - 1) * DCOMMI_CUDA_LOOK_THREADS) {
#pragma unroll
        for (uint32_t k = 0; k < DCOMMI_CUDA_LOOK_OWN; k++) {
            own[k] = dcommi_cuda_load<stored>(x + k * DCOMMI_CUDA_LOOK_THREADS);
        }
    } else {
#pragma unroll
        for (uint32_t k = 0; k < DCOMMI_CUDA_LOOK_OWN; k++) {
            const uint32_t at = k * DCOMMI_CUDA_LOOK_THREADS;
            own[k] = at < left ? dcommi_cuda_load<stored>(x + at) : stored(); /* adds nothing */
        }
    }
    uint32_t most = 0;
#pragma unroll
    for (uint32_t k = 0; k < DCOMMI_CUDA_LOOK_OWN; k++) {
        const acc a = E::from(own[k]);
        const uint32_t size = dcommi_cuda_look_size(a);
        most = size > most ? size : most;
        seen.squares = __fma_rn((double)a, (double)a, seen.squares);
        if (SCALES && k * DCOMMI_CUDA_LOOK_THREADS < left) {
            dcommi_cuda_store<stored>(x + k * DCOMMI_CUDA_LOOK_THREADS,
                                      E::to(E::scale(a, p.factor)));
        }
    }
    if (most >= inf) {
#pragma unroll
        for (uint32_t k = DCOMMI_CUDA_LOOK_OWN; k-- > 0;) {
            const uint32_t at = k * DCOMMI_CUDA_LOOK_THREADS;
            seen.index = dcommi_cuda_look_size(E::from(own[k])) >= inf ? first + at : seen.index;
        }
    }
    dcommi_cuda_seen_block(&seen);
    if (threadIdx.x == 0) {
        p.seen[blockIdx.x] = seen;
    }
}

template <class E>
static __global__ void __launch_bounds__(DCOMMI_CUDA_LOOK_THREADS)
    dcommi_cuda_sight_kernel(const __grid_constant__ dcommi_cuda_look p)
{
    dcommi_cuda_seen seen = {0, UINT64_MAX};
    for (uint64_t b = threadIdx.x; b < p.blocks; b += DCOMMI_CUDA_LOOK_TILE) {
        const uint32_t left = dcommi_cuda_left(b, p.blocks);
        dcommi_cuda_seen some[DCOMMI_CUDA_LOOK_OWN];
#pragma unroll
        for (uint32_t k = 0; k < DCOMMI_CUDA_LOOK_OWN; k++) {
            const dcommi_cuda_seen nothing = {0, UINT64_MAX};
            const uint32_t at = k * DCOMMI_CUDA_LOOK_THREADS;
            some[k] = at < left ? p.seen[b + at] : nothing;
        }
#pragma unroll
        for (uint32_t k = 0; k < DCOMMI_CUDA_LOOK_OWN; k++) {
            dcommi_cuda_seen_add(&seen, some[k].squares, some[k].index);
        }
    }
    dcommi_cuda_seen_block(&seen);
    if (threadIdx.x == 0) {
        dcomm_cuda_sight sight = {seen.index, 0, seen.squares};
        if (seen.index < p.count) {
            sight.value = (double)E::from(static_cast<typename E::stored *>(p.x)[seen.index]);
        }
        *p.sight = sight;
        if (p.blocks > 0) {
            p.seen[0] = seen;
        }
    }
}

/* Zero the array if an element is not finite. */
template <class E>
static __global__ void __launch_bounds__(DCOMMI_CUDA_LOOK_THREADS)
    dcommi_cuda_drop_kernel(const __grid_constant__ dcommi_cuda_look p)
{
    uint64_t i = (uint64_t)blockIdx.x * DCOMMI_CUDA_LOOK_TILE + threadIdx.x;
    if (p.seen[0].index == UINT64_MAX) {
        return;
    }
    for (uint32_t k = 0; k < DCOMMI_CUDA_LOOK_OWN; k++, i += DCOMMI_CUDA_LOOK_THREADS) {
        if (i < p.count) {
            static_cast<typename E::stored *>(p.x)[i] = typename E::stored();
        }
    }
}

template <class E>
static dcomm_status dcommi_cuda_look_launch(const char *call, const dcommi_cuda_look &p, bool drop,
                                            void *stream)
{
    const unsigned threads = DCOMMI_CUDA_LOOK_THREADS;
    DCOMMI_CUDA_TRY(dcommi_cuda_launch(
        call, p.factor == 1 ? dcommi_cuda_look_kernel<E, false> : dcommi_cuda_look_kernel<E, true>,
        p.blocks, threads, p, stream));
    DCOMMI_CUDA_TRY(dcommi_cuda_launch(call, dcommi_cuda_sight_kernel<E>, 1, threads, p, stream));
    return dcommi_cuda_launch(call, dcommi_cuda_drop_kernel<E>, drop ? p.blocks : 0, threads, p,
                              stream);
}

extern "C" size_t dcomm_cuda_look_workspace_bytes(size_t count)
{
    return (size_t)dcommi_cuda_blocks(count, DCOMMI_CUDA_LOOK_TILE) * sizeof(dcommi_cuda_seen);
}

extern "C" dcomm_status dcomm_cuda_look(void *x, size_t count, dcomm_dtype dtype, double factor,
                                        bool drop, dcomm_cuda_sight *sight, void *workspace,
                                        void *stream)
{
    const char *call = "dcomm_cuda_look";
    const dcommi_cuda_look p = {x,
                                count,
                                dcommi_cuda_blocks(count, DCOMMI_CUDA_LOOK_TILE),
                                factor,
                                static_cast<dcommi_cuda_seen *>(workspace),
                                sight};
    if ((int)dtype < 0 || dtype > DCOMM_BF16) {
        return dcommi_cuda_fail(DCOMM_ERR_INVALID, "%s: dtype %d is not of floats", call,
                                (int)dtype);
    }
    DCOMMI_CUDA_TRY(dcommi_cuda_array(call, "x", x, count, dcomm_dtype_size(dtype)));
    DCOMMI_CUDA_TRY(dcommi_cuda_array(call, "sight", sight, 1, 8));
    DCOMMI_CUDA_TRY(dcommi_cuda_array(call, "workspace", workspace, count, 8));
    switch ((int)dtype) {
    case DCOMM_F64:
        return dcommi_cuda_look_launch<dcommi_cuda_f64>(call, p, drop, stream);
    case DCOMM_F32:
        return dcommi_cuda_look_launch<dcommi_cuda_f32>(call, p, drop, stream);
    case DCOMM_F16:
        return dcommi_cuda_look_launch<dcommi_cuda_f16>(call, p, drop, stream);
    default:
        return dcommi_cuda_look_launch<dcommi_cuda_bf16>(call, p, drop, stream);
    }
}

#endif
