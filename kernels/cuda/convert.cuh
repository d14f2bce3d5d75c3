/* convert.cuh - convert floats of any width to f32, and back. A thread converts four elements,
 * with one load and one store, if both arrays are aligned. Further threads convert the remaining
 * elements, one each. */
#ifndef DCOMMI_CUDA_CONVERT_H
#define DCOMMI_CUDA_CONVERT_H

#include "job.cuh"
#include "reduce.cuh"

#define DCOMMI_CUDA_CONVERT_THREADS 256u
#define DCOMMI_CUDA_CONVERT_OWN 4u

struct dcommi_cuda_conversion {
    void *dst;
    const void *src;
    uint64_t count;
    uint64_t fours; /* groups of four elements */
    double factor;  /* for conversion to f32 */
};

template <class T> struct alignas(sizeof(T) == 2 ? 8 : 16) dcommi_cuda_four {
    T v[DCOMMI_CUDA_CONVERT_OWN];
};

/* Convert one element of E to f32; below: back. */
template <class E>
DCOMMI_CUDA_INLINE void dcommi_cuda_convert(float *to, typename E::stored from, double factor)
{
    const typename E::acc x = E::from(from);
    *to = factor == 1 ? dcommi_f32_canonical((float)x) /* f64 is slow on many devices */
                      : dcommi_f64_to_f32(__dmul_rn((double)x, factor));
}

template <class E> DCOMMI_CUDA_INLINE void dcommi_cuda_unconvert(typename E::stored *to, float from)
{
    *to = E::to(E::finish((typename E::acc)from));
}

template <class E, bool TO_F32>
static __global__ void __launch_bounds__(DCOMMI_CUDA_CONVERT_THREADS)
    dcommi_cuda_convert_kernel(const __grid_constant__ dcommi_cuda_conversion p)
{
    typedef typename E::stored stored;
    const uint64_t i = (uint64_t)blockIdx.x * DCOMMI_CUDA_CONVERT_THREADS + threadIdx.x;
    if (i < p.fours) {
        dcommi_cuda_four<stored> narrow;
        dcommi_cuda_four<float> wide;
        if (TO_F32) {
            narrow = static_cast<const dcommi_cuda_four<stored> *>(p.src)[i];
        } else {
            wide = static_cast<const dcommi_cuda_four<float> *>(p.src)[i];
        }
#pragma unroll
        for (uint32_t k = 0; k < DCOMMI_CUDA_CONVERT_OWN; k++) {
            if (TO_F32) {
                dcommi_cuda_convert<E>(&wide.v[k], narrow.v[k], p.factor);
            } else {
                dcommi_cuda_unconvert<E>(&narrow.v[k], wide.v[k]);
            }
        }
        if (TO_F32) {
            static_cast<dcommi_cuda_four<float> *>(p.dst)[i] = wide;
        } else {
            static_cast<dcommi_cuda_four<stored> *>(p.dst)[i] = narrow;
        }
        return;
    }
    const uint64_t one = i - p.fours + p.fours * DCOMMI_CUDA_CONVERT_OWN;
    if (one < p.count && TO_F32) {
        dcommi_cuda_convert<E>(static_cast<float *>(p.dst) + one,
                               static_cast<const stored *>(p.src)[one], p.factor);
    } else if (one < p.count) {
        dcommi_cuda_unconvert<E>(static_cast<stored *>(p.dst) + one,
                                 static_cast<const float *>(p.src)[one]);
    }
}

template <class E, bool TO_F32>
static dcomm_status dcommi_cuda_convert_launch(const char *call, dcommi_cuda_conversion *p,
                                               void *stream)
{
    const size_t there = alignof(dcommi_cuda_four<typename E::stored>);
    const bool whole = dcommi_cuda_aligned(TO_F32 ? p->src : p->dst, there) &&
                       dcommi_cuda_aligned(TO_F32 ? p->dst : p->src, 16);
    p->fours = whole ? p->count / DCOMMI_CUDA_CONVERT_OWN : 0;
    const uint64_t threads = p->count - p->fours * (DCOMMI_CUDA_CONVERT_OWN - 1);
    return dcommi_cuda_launch(call, dcommi_cuda_convert_kernel<E, TO_F32>,
                              (threads + DCOMMI_CUDA_CONVERT_THREADS - 1) /
                                  DCOMMI_CUDA_CONVERT_THREADS,
                              DCOMMI_CUDA_CONVERT_THREADS, *p, stream);
}

template <bool TO_F32>
static dcomm_status dcommi_cuda_convert_dtype(const char *call, void *dst, const void *src,
                                              size_t count, dcomm_dtype dtype, double factor,
                                              void *stream)
{
    const size_t element = dcomm_dtype_size(dtype);
    dcommi_cuda_conversion p = {dst, src, count, 0, factor};
    if (dtype > DCOMM_BF16) {
        return dcommi_cuda_fail(DCOMM_ERR_INVALID, "%s: dtype %d is none of floats", call,
                                (int)dtype);
    }
    DCOMMI_CUDA_TRY(dcommi_cuda_array(call, "dst", dst, count, TO_F32 ? sizeof(float) : element));
    DCOMMI_CUDA_TRY(dcommi_cuda_array(call, "src", src, count, TO_F32 ? element : sizeof(float)));
    if (count == 0) {
        return DCOMM_OK;
    }
    switch ((int)dtype) {
    case DCOMM_F64:
        return dcommi_cuda_convert_launch<dcommi_cuda_f64, TO_F32>(call, &p, stream);
    case DCOMM_F32:
        return dcommi_cuda_convert_launch<dcommi_cuda_f32, TO_F32>(call, &p, stream);
    case DCOMM_F16:
        return dcommi_cuda_convert_launch<dcommi_cuda_f16, TO_F32>(call, &p, stream);
    default:
        return dcommi_cuda_convert_launch<dcommi_cuda_bf16, TO_F32>(call, &p, stream);
    }
}

extern "C" dcomm_status dcomm_cuda_to_f32(float *dst, const void *src, size_t count,
                                          dcomm_dtype dtype, double factor, void *stream)
{
    return dcommi_cuda_convert_dtype<true>("dcomm_cuda_to_f32", dst, src, count, dtype, factor,
                                           stream);
}

extern "C" dcomm_status dcomm_cuda_from_f32(void *dst, const float *src, size_t count,
                                            dcomm_dtype dtype, void *stream)
{
    return dcommi_cuda_convert_dtype<false>("dcomm_cuda_from_f32", dst, src, count, dtype, 1,
                                            stream);
}

#endif
