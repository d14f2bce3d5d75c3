/* base.cuh - shared by all CUDA kernels: launches, errors, memory, single operations.
 *
 * The code is C++17. Tests also compile it for the CPU, after tests/kernels/cuda_shim.h, which
 * replaces CUDA's runtime and runs a block's threads in lock step.
 *
 * Arithmetic uses intrinsics of one rounding each. Otherwise nvcc would fuse products with sums
 * where it can, and change results. */
#ifndef DCOMMI_CUDA_BASE_H
#define DCOMMI_CUDA_BASE_H

#include "../rng.h"
#include "../wire.h"

#include <stdarg.h>
#include <stdio.h>

#ifndef DCOMMI_CUDA_SHIM
#include <cuda_pipeline_primitives.h>
#include <cuda_runtime.h>

/* Start a kernel that has one argument, a structure. */
template <class P>
static cudaError_t dcommi_cuda_start(void (*kernel)(P), unsigned blocks, unsigned threads,
                                     const P &p, cudaStream_t stream)
{
    void *args[] = {const_cast<P *>(&p)};
    return cudaLaunchKernel(reinterpret_cast<const void *>(kernel), dim3(blocks), dim3(threads),
                            args, 0, stream);
}
#endif

#define DCOMMI_CUDA_INLINE __device__ static __forceinline__
#define DCOMMI_CUDA_TRY(expression)          \
    do {                                     \
        dcomm_status status_ = (expression); \
        if (status_ != DCOMM_OK) {           \
            return status_;                  \
        }                                    \
    } while (0)

/* ---- host side ---- */

__attribute__((format(printf, 2, 3))) static dcomm_status dcommi_cuda_fail(dcomm_status status,
                                                                           const char *format, ...)
{
    char text[512];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    return dcomm_set_error(status, text);
}

/* Return the status of work that was given to a stream. Without a stream, wait for it. */
static dcomm_status dcommi_cuda_given(const char *call, cudaError_t error, void *stream)
{
    if (error == cudaSuccess && stream == NULL) {
        error = cudaStreamSynchronize(NULL);
    }
    if (error != cudaSuccess) {
        (void)cudaGetLastError(); /* the caller has the status: clear it for the next check */
        return dcommi_cuda_fail(DCOMM_ERR_SYSTEM, "%s: the launch failed: %s", call,
                                cudaGetErrorString(error));
    }
    return DCOMM_OK;
}

/* Return how many blocks of `each` elements hold `n` elements. */
static uint64_t dcommi_cuda_blocks(uint64_t n, uint64_t each)
{
    return n / each + (n % each != 0 ? 1 : 0);
}

/* Launch a kernel; do nothing if there are no blocks. */
template <class P>
static dcomm_status dcommi_cuda_launch(const char *call, void (*kernel)(P), uint64_t blocks,
                                       unsigned threads, const P &p, void *stream)
{
    if (blocks == 0) {
        return DCOMM_OK;
    }
    if (blocks > 0x7fffffffu) {
        return dcommi_cuda_fail(DCOMM_ERR_INVALID, "%s: the arrays are too long for one launch",
                                call);
    }
    return dcommi_cuda_given(
        call,
        dcommi_cuda_start(kernel, (unsigned)blocks, threads, p, static_cast<cudaStream_t>(stream)),
        stream);
}

static dcomm_codec_key dcommi_cuda_key(const dcomm_codec_key *key)
{
    return key != NULL ? *key : dcomm_codec_key();
}

static bool dcommi_cuda_aligned(const void *p, size_t to)
{
    return reinterpret_cast<uintptr_t>(p) % to == 0;
}

static dcomm_status dcommi_cuda_array(const char *call, const char *name, const void *p,
                                      size_t count, size_t to)
{
    if ((p == NULL && count > 0) || !dcommi_cuda_aligned(p, to)) {
        return dcommi_cuda_fail(DCOMM_ERR_INVALID, "%s: %s is %s", call, name,
                                p == NULL ? "NULL" : "not aligned to its elements");
    }
    return DCOMM_OK;
}

/* ---- one element at a time ---- */

#define DCOMMI_CUDA_EACH_THREADS 256u
#define DCOMMI_CUDA_SOME 8u /* elements of a thread of dcommi_cuda_some */

/* Call p.one(i) for each i < p.count. */
template <class P>
static __global__ void __launch_bounds__(DCOMMI_CUDA_EACH_THREADS)
    dcommi_cuda_each_kernel(const __grid_constant__ P p)
{
    const uint64_t i = (uint64_t)blockIdx.x * DCOMMI_CUDA_EACH_THREADS + threadIdx.x;
    if (i < p.count) {
        p.one(i);
    }
}

template <class P> static dcomm_status dcommi_cuda_each(const char *call, const P &p, void *stream)
{
    return dcommi_cuda_launch(call, dcommi_cuda_each_kernel<P>,
                              dcommi_cuda_blocks(p.count, DCOMMI_CUDA_EACH_THREADS),
                              DCOMMI_CUDA_EACH_THREADS, p, stream);
}

/* Call p.put(i, p.get(i)) for each i < p.count. Put may store where get of another element loads
 * from, for all that the compiler knows. So a thread gets all of its elements first; then their
 * loads are under way together. They are spaced so that a warp accesses neighbours. */
template <class P>
static __global__ void __launch_bounds__(DCOMMI_CUDA_EACH_THREADS)
    dcommi_cuda_some_kernel(const __grid_constant__ P p)
{
    const uint64_t first =
        (uint64_t)blockIdx.x * DCOMMI_CUDA_EACH_THREADS * DCOMMI_CUDA_SOME + threadIdx.x;
    typename P::got got[DCOMMI_CUDA_SOME];
#pragma unroll
    for (unsigned k = 0; k < DCOMMI_CUDA_SOME; k++) {
        const uint64_t i = first + k * DCOMMI_CUDA_EACH_THREADS;
        got[k] = i < p.count ? p.get(i) : typename P::got();
    }
#pragma unroll
    for (unsigned k = 0; k < DCOMMI_CUDA_SOME; k++) {
        const uint64_t i = first + k * DCOMMI_CUDA_EACH_THREADS;
        if (i < p.count) {
            p.put(i, got[k]);
        }
    }
}

template <class P> static dcomm_status dcommi_cuda_some(const char *call, const P &p, void *stream)
{
    return dcommi_cuda_launch(
        call, dcommi_cuda_some_kernel<P>,
        dcommi_cuda_blocks(p.count, DCOMMI_CUDA_EACH_THREADS * DCOMMI_CUDA_SOME),
        DCOMMI_CUDA_EACH_THREADS, p, stream);
}

/* The operands of a call, by value, as kernels take them. */
struct dcommi_cuda_operands {
    const void *at[DCOMM_CUDA_OPERANDS];
    uint32_t n;
};

static dcommi_cuda_operands dcommi_cuda_operand(const void *at)
{
    dcommi_cuda_operands one = dcommi_cuda_operands();
    one.at[0] = at;
    one.n = 1;
    return one;
}

/* Copy the operands; refuse one that is NULL (unless `empty`) or not aligned to `to` bytes. */
static dcomm_status dcommi_cuda_operands_make(const char *call, const void *const *at, size_t n,
                                              size_t to, bool empty, dcommi_cuda_operands *out)
{
    if (at == NULL || n == 0) {
        return dcommi_cuda_fail(DCOMM_ERR_INVALID, "%s: there are no operands", call);
    }
    if (n > DCOMM_CUDA_OPERANDS) {
        return dcommi_cuda_fail(DCOMM_ERR_UNSUPPORTED, "%s: %zu operands are more than %d", call, n,
                                DCOMM_CUDA_OPERANDS);
    }
    out->n = (uint32_t)n;
    for (size_t i = 0; i < n; i++) {
        out->at[i] = at[i];
        if ((at[i] == NULL && !empty) || !dcommi_cuda_aligned(at[i], to)) {
            return dcommi_cuda_fail(DCOMM_ERR_INVALID, "%s: operand number %zu is %s", call, i,
                                    at[i] == NULL ? "NULL" : "not aligned to its elements");
        }
    }
    return DCOMM_OK;
}

/* ---- memory: streaming loads and stores, for data that is used once ---- */

template <class T> DCOMMI_CUDA_INLINE T dcommi_cuda_load(const void *p)
{
    return __ldcs(static_cast<const T *>(p));
}

template <class T> DCOMMI_CUDA_INLINE void dcommi_cuda_store(void *p, T v)
{
    __stcs(static_cast<T *>(p), v);
}

/* ---- single operations ---- */

/* Add as x86 does: a sum with a NaN is the first NaN, made quiet. Then sums of decoded numbers are
 * the same bytes on both. */
DCOMMI_CUDA_INLINE float dcommi_cuda_add(float a, float b)
{
    float sum = __fadd_rn(a, b);
    if (dcommi_f32_isnan(dcommi_f32_bits(sum))) {
        uint32_t x = dcommi_f32_bits(a), y = dcommi_f32_bits(b);
        uint32_t nan = dcommi_f32_isnan(x)   ? x | 0x400000u
                       : dcommi_f32_isnan(y) ? y | 0x400000u
                                             : 0xffc00000u;
        sum = dcommi_f32_from_bits(nan);
    }
    return sum;
}

/* Multiply likewise, by a factor that is finite. */
DCOMMI_CUDA_INLINE float dcommi_cuda_mul(float a, float b)
{
    float product = __fmul_rn(a, b);
    if (dcommi_f32_isnan(dcommi_f32_bits(product))) {
        const uint32_t x = dcommi_f32_bits(a);
        product = dcommi_f32_from_bits(dcommi_f32_isnan(x) ? x | 0x400000u : 0xffc00000u);
    }
    return product;
}

/* Convert to f32; a NaN becomes some NaN. */
DCOMMI_CUDA_INLINE float dcommi_cuda_from_f16(uint16_t h)
{
#ifdef __CUDA_ARCH__
    float x;
    asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"(h));
    return x;
#else
    return (h & 0x7fffu) > 0x7c00u ? dcommi_f32_from_bits(0x7fffffffu) : dcommi_f16_to_f32(h);
#endif
}

/* Convert to f16; a NaN becomes the canonical one. */
DCOMMI_CUDA_INLINE uint16_t dcommi_cuda_to_f16(float x)
{
#ifdef __CUDA_ARCH__
    uint16_t h;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(h) : "f"(x));
    return dcommi_f32_isnan(dcommi_f32_bits(x)) ? (uint16_t)0x7e00 : h;
#else
    return dcommi_f32_isnan(dcommi_f32_bits(x)) ? (uint16_t)0x7e00 : dcommi_f32_to_f16(x);
#endif
}

#endif
