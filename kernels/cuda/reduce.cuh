/* reduce.cuh - folds of n operands in one pass, and scaling, on the device.
 *
 * A block takes 256 * WIDE pieces of 16 bytes. A thread reads WIDE pieces at a time and loads
 * those of the next operand while it folds the current ones. If operands are aligned differently
 * modulo 16 bytes, pieces are single elements. The last block takes the elements before the first
 * piece and behind the last. */
#ifndef DCOMMI_CUDA_REDUCE_H
#define DCOMMI_CUDA_REDUCE_H

#include "base.cuh"

#define DCOMMI_CUDA_FOLD_THREADS 256u

enum dcommi_cuda_kind {
    DCOMMI_CUDA_SUM = 0,
    DCOMMI_CUDA_PROD = 1,
    DCOMMI_CUDA_MIN = 2,
    DCOMMI_CUDA_MAX = 3,
    DCOMMI_CUDA_SCALE = 4
};

struct dcommi_cuda_fold {
    dcommi_cuda_operands src;
    void *dst;
    uint64_t count;  /* elements */
    uint64_t pieces; /* whole pieces */
    uint32_t head;   /* elements before the first piece */
    double factor;   /* for scaling */
    int64_t divisor; /* for averages; 1: none */
};

/* ---- elements ---- */

/* stored: the type in memory; acc: the type that is folded. */
struct dcommi_cuda_f64 {
    typedef double stored, acc;
    DCOMMI_CUDA_INLINE acc from(stored x)
    {
        return x;
    }
    DCOMMI_CUDA_INLINE stored to(acc x)
    {
        return x;
    }
    DCOMMI_CUDA_INLINE acc sum(acc a, acc b)
    {
        return __dadd_rn(a, b);
    }
    DCOMMI_CUDA_INLINE acc prod(acc a, acc b)
    {
        return __dmul_rn(a, b);
    }
    DCOMMI_CUDA_INLINE acc least(acc a, acc b)
    {
        return dcommi_f64_min(a, b);
    }
    DCOMMI_CUDA_INLINE acc most(acc a, acc b)
    {
        return dcommi_f64_max(a, b);
    }
    DCOMMI_CUDA_INLINE acc scale(acc x, double by)
    {
        return dcommi_f64_scale(x, by);
    }
    DCOMMI_CUDA_INLINE acc divide(acc x, int64_t by)
    {
        return __ddiv_rn(x, (double)by);
    }
    DCOMMI_CUDA_INLINE acc finish(acc x)
    {
        return dcommi_f64_canonical(x);
    }
};

struct dcommi_cuda_single {
    typedef float acc;
    DCOMMI_CUDA_INLINE acc sum(acc a, acc b)
    {
        return __fadd_rn(a, b);
    }
    DCOMMI_CUDA_INLINE acc prod(acc a, acc b)
    {
        return __fmul_rn(a, b);
    }
    /* One instruction, which also orders -0 below +0; finish makes its NaN canonical. */
    DCOMMI_CUDA_INLINE acc least(acc a, acc b)
    {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
        acc least;
        asm("min.NaN.f32 %0, %1, %2;" : "=f"(least) : "f"(a), "f"(b));
        return least;
#else
        return dcommi_f32_min(a, b);
#endif
    }
    DCOMMI_CUDA_INLINE acc most(acc a, acc b)
    {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
        acc most;
        asm("max.NaN.f32 %0, %1, %2;" : "=f"(most) : "f"(a), "f"(b));
        return most;
#else
        return dcommi_f32_max(a, b);
#endif
    }
    DCOMMI_CUDA_INLINE acc scale(acc x, double by)
    {
        return dcommi_f32_scale(x, by);
    }
    DCOMMI_CUDA_INLINE acc divide(acc x, int64_t by)
    {
        return __fdiv_rn(x, (float)(double)by);
    }
    DCOMMI_CUDA_INLINE acc finish(acc x)
    {
        return dcommi_f32_canonical(x);
    }
};

struct dcommi_cuda_f32 : dcommi_cuda_single {
    typedef float stored;
    DCOMMI_CUDA_INLINE acc from(stored x)
    {
        return x;
    }
    DCOMMI_CUDA_INLINE stored to(acc x)
    {
        return x;
    }
};

/* 16-bit types: storing makes any NaN the canonical one. */
struct dcommi_cuda_f16 : dcommi_cuda_single {
    typedef uint16_t stored;
    DCOMMI_CUDA_INLINE acc from(stored x)
    {
        return dcommi_cuda_from_f16(x);
    }
    DCOMMI_CUDA_INLINE stored to(acc x)
    {
        return dcommi_cuda_to_f16(x);
    }
    DCOMMI_CUDA_INLINE acc finish(acc x)
    {
        return x;
    }
};

struct dcommi_cuda_bf16 : dcommi_cuda_single {
    typedef uint16_t stored;
    DCOMMI_CUDA_INLINE acc from(stored x)
    {
        return dcommi_bf16_to_f32(x);
    }
    DCOMMI_CUDA_INLINE stored to(acc x)
    {
        stored h;
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
        asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(h) : "f"(x));
#else
        h = dcommi_f32_to_bf16(x);
#endif
        return dcommi_f32_isnan(dcommi_f32_bits(x)) ? (stored)0x7fc0 : h;
    }
    DCOMMI_CUDA_INLINE acc finish(acc x)
    {
        return x;
    }
};

/* Sums and products wrap around, in U. W holds every quotient. */
template <class T, class U, class W> struct dcommi_cuda_int {
    typedef T stored, acc;
    DCOMMI_CUDA_INLINE acc from(stored x)
    {
        return x;
    }
    DCOMMI_CUDA_INLINE stored to(acc x)
    {
        return x;
    }
    DCOMMI_CUDA_INLINE acc sum(acc a, acc b)
    {
        return (acc)(U)((U)a + (U)b);
    }
    DCOMMI_CUDA_INLINE acc prod(acc a, acc b)
    {
        return (acc)(U)((U)a * (U)b);
    }
    DCOMMI_CUDA_INLINE acc least(acc a, acc b)
    {
        return a < b ? a : b;
    }
    DCOMMI_CUDA_INLINE acc most(acc a, acc b)
    {
        return a > b ? a : b;
    }
    DCOMMI_CUDA_INLINE acc scale(acc x, double by)
    {
        const int bits = 8 * (int)sizeof(T) - ((T)-1 < (T)0 ? 1 : 0);
        const double past = 2.0 * (double)((uint64_t)1 << (bits - 1));
        const double product = __dmul_rn(by, (double)x);
        if ((T)-1 < (T)0) {
            const int64_t most = (int64_t)(~(uint64_t)0 >> (64 - bits));
            return (acc)dcommi_scale_signed(product, -most - 1, most, past);
        }
        return (acc)dcommi_scale_unsigned(product, ~(uint64_t)0 >> (64 - bits), past);
    }
    DCOMMI_CUDA_INLINE acc divide(acc x, int64_t by)
    {
        return (acc)((W)x / (W)by);
    }
    DCOMMI_CUDA_INLINE acc finish(acc x)
    {
        return x;
    }
};

typedef dcommi_cuda_int<int8_t, uint32_t, int64_t> dcommi_cuda_i8;
typedef dcommi_cuda_int<uint8_t, uint32_t, int64_t> dcommi_cuda_u8;
typedef dcommi_cuda_int<uint16_t, uint32_t, int64_t> dcommi_cuda_u16;
typedef dcommi_cuda_int<int32_t, uint32_t, int64_t> dcommi_cuda_i32;
typedef dcommi_cuda_int<uint32_t, uint32_t, int64_t> dcommi_cuda_u32;
typedef dcommi_cuda_int<int64_t, uint64_t, int64_t> dcommi_cuda_i64;
typedef dcommi_cuda_int<uint64_t, uint64_t, uint64_t> dcommi_cuda_u64;

template <class E, int KIND>
DCOMMI_CUDA_INLINE typename E::acc dcommi_cuda_op(typename E::acc a, typename E::acc b)
{
    return KIND == DCOMMI_CUDA_SUM    ? E::sum(a, b)
           : KIND == DCOMMI_CUDA_PROD ? E::prod(a, b)
           : KIND == DCOMMI_CUDA_MIN  ? E::least(a, b)
                                      : E::most(a, b);
}

template <class E, int KIND>
DCOMMI_CUDA_INLINE typename E::stored dcommi_cuda_end(typename E::acc x, const dcommi_cuda_fold &p)
{
    return E::to(KIND == DCOMMI_CUDA_SCALE ? E::scale(x, p.factor) : E::finish(x));
}

/* ---- pieces ---- */

/* 16 bytes, or one element. */
template <class E, bool WHOLE> struct dcommi_cuda_piece {
    static const int N = WHOLE ? 16 / (int)sizeof(typename E::stored) : 1;
    typename E::stored v[N];
};

template <class E, bool WHOLE>
DCOMMI_CUDA_INLINE dcommi_cuda_piece<E, WHOLE> dcommi_cuda_piece_load(const void *from, uint64_t at)
{
    dcommi_cuda_piece<E, WHOLE> piece;
    if (WHOLE) {
        uint4 raw = dcommi_cuda_load<uint4>(static_cast<const uint4 *>(from) + at);
        memcpy(&piece, &raw, sizeof piece);
    } else {
        piece.v[0] = dcommi_cuda_load<typename E::stored>(
            static_cast<const typename E::stored *>(from) + at);
    }
    return piece;
}

template <class E, bool WHOLE>
DCOMMI_CUDA_INLINE void dcommi_cuda_piece_store(void *to, uint64_t at,
                                                dcommi_cuda_piece<E, WHOLE> piece)
{
    if (WHOLE) {
        uint4 raw;
        memcpy(&raw, &piece, sizeof raw);
        dcommi_cuda_store<uint4>(static_cast<uint4 *>(to) + at, raw);
    } else {
        dcommi_cuda_store<typename E::stored>(static_cast<typename E::stored *>(to) + at,
                                              piece.v[0]);
    }
}

/* Load pieces at, at + 256, ... of operand s, counted from element `base`. ALL: every piece
 * exists. */
template <class E, bool WHOLE, int WIDE, bool ALL>
DCOMMI_CUDA_INLINE void dcommi_cuda_fold_load(const dcommi_cuda_fold &p, uint32_t s, uint64_t base,
                                              uint64_t at, dcommi_cuda_piece<E, WHOLE> piece[WIDE])
{
    const typename E::stored *from = static_cast<const typename E::stored *>(p.src.at[s]) + base;
#pragma unroll
    for (int u = 0; u < WIDE; u++) {
        const uint64_t i = at + (unsigned)u * DCOMMI_CUDA_FOLD_THREADS;
        if (ALL || i < p.pieces) {
            piece[u] = dcommi_cuda_piece_load<E, WHOLE>(from, i);
        } else {
            piece[u] = dcommi_cuda_piece<E, WHOLE>();
        }
    }
}

template <class E, int KIND, bool WHOLE, int WIDE, bool ALL>
DCOMMI_CUDA_INLINE void dcommi_cuda_fold_pieces(const dcommi_cuda_fold &p, uint64_t base,
                                                uint64_t at)
{
    typedef dcommi_cuda_piece<E, WHOLE> piece;
    piece now[WIDE], next[WIDE];
    typename E::acc acc[WIDE][piece::N];
    dcommi_cuda_fold_load<E, WHOLE, WIDE, ALL>(p, 0, base, at, now);
    if (p.src.n > 1) {
        dcommi_cuda_fold_load<E, WHOLE, WIDE, ALL>(p, 1, base, at, next);
    }
#pragma unroll
    for (int i = 0; i < WIDE * piece::N; i++) {
        acc[i / piece::N][i % piece::N] = E::from(now[i / piece::N].v[i % piece::N]);
    }
#pragma unroll 1
    for (uint32_t s = 1; s < p.src.n; s++) {
#pragma unroll
        for (int u = 0; u < WIDE; u++) {
            now[u] = next[u];
        }
        if (s + 1 < p.src.n) {
            dcommi_cuda_fold_load<E, WHOLE, WIDE, ALL>(p, s + 1, base, at, next);
        }
#pragma unroll
        for (int i = 0; i < WIDE * piece::N; i++) {
            const int u = i / piece::N, e = i % piece::N;
            acc[u][e] = dcommi_cuda_op<E, KIND>(acc[u][e], E::from(now[u].v[e]));
        }
    }
    if (KIND == DCOMMI_CUDA_SUM && p.divisor > 1) {
#pragma unroll
        for (int i = 0; i < WIDE * piece::N; i++) {
            const int u = i / piece::N, e = i % piece::N;
            acc[u][e] = E::divide(acc[u][e], p.divisor);
        }
    }
    typename E::stored *to = static_cast<typename E::stored *>(p.dst) + base;
#pragma unroll
    for (int u = 0; u < WIDE; u++) {
        const uint64_t i = at + (unsigned)u * DCOMMI_CUDA_FOLD_THREADS;
        piece out;
#pragma unroll
        for (int e = 0; e < piece::N; e++) {
            out.v[e] = dcommi_cuda_end<E, KIND>(acc[u][e], p);
        }
        if (ALL || i < p.pieces) {
            dcommi_cuda_piece_store<E, WHOLE>(to, i, out);
        }
    }
}

/* Pieces of a thread. A piece of bytes has sixteen accumulators, which need many registers. */
template <class E, bool WHOLE> struct dcommi_cuda_wide {
    static const int N = !WHOLE ? 4 : sizeof(typename E::stored) == 1 ? 1 : 2;
};

template <class E, int KIND, bool WHOLE>
static __global__ void __launch_bounds__(DCOMMI_CUDA_FOLD_THREADS, 3)
    dcommi_cuda_fold_kernel(const __grid_constant__ dcommi_cuda_fold p)
{
    const int wide = dcommi_cuda_wide<E, WHOLE>::N;
    const int n = dcommi_cuda_piece<E, WHOLE>::N;
    const uint64_t first = (uint64_t)blockIdx.x * (uint64_t)(DCOMMI_CUDA_FOLD_THREADS * wide);
    if (first + (uint64_t)(DCOMMI_CUDA_FOLD_THREADS * wide) <= p.pieces) {
        dcommi_cuda_fold_pieces<E, KIND, WHOLE, wide, true>(p, p.head, first + threadIdx.x);
    } else {
        dcommi_cuda_fold_pieces<E, KIND, WHOLE, wide, false>(p, p.head, first + threadIdx.x);
    }
    if (WHOLE && blockIdx.x == gridDim.x - 1) {
        if (threadIdx.x < p.head) {
            dcommi_cuda_fold_pieces<E, KIND, false, 1, true>(p, 0, threadIdx.x);
        }
        const uint64_t rest = p.head + p.pieces * (uint64_t)n;
        if (rest + threadIdx.x < p.count) {
            dcommi_cuda_fold_pieces<E, KIND, false, 1, true>(p, rest, threadIdx.x);
        }
    }
}

/* ---- launchers ---- */

template <class E, int KIND>
static dcomm_status dcommi_cuda_fold_launch(const char *call, dcommi_cuda_fold *p, void *stream)
{
    const size_t element = sizeof(typename E::stored);
    const uintptr_t dst = reinterpret_cast<uintptr_t>(p->dst);
    bool whole = true;
    for (uint32_t s = 0; s < p->src.n; s++) {
        whole = whole && (reinterpret_cast<uintptr_t>(p->src.at[s]) - dst) % 16 == 0;
    }
    if (whole) {
        const uint64_t head = (16 - dst % 16) % 16 / element;
        p->head = (uint32_t)(head < p->count ? head : p->count);
        p->pieces = (p->count - p->head) / (16 / element);
        const uint64_t tile = DCOMMI_CUDA_FOLD_THREADS * dcommi_cuda_wide<E, true>::N;
        const uint64_t blocks = dcommi_cuda_blocks(p->pieces, tile);
        return dcommi_cuda_launch(call, dcommi_cuda_fold_kernel<E, KIND, true>,
                                  blocks > 0 ? blocks : 1, DCOMMI_CUDA_FOLD_THREADS, *p, stream);
    }
    p->pieces = p->count;
    const uint64_t tile = DCOMMI_CUDA_FOLD_THREADS * dcommi_cuda_wide<E, false>::N;
    return dcommi_cuda_launch(call, dcommi_cuda_fold_kernel<E, KIND, false>,
                              dcommi_cuda_blocks(p->pieces, tile), DCOMMI_CUDA_FOLD_THREADS, *p,
                              stream);
}

/* Sums and products of signed integers have the same bits as those of unsigned ones. */
template <class E, class U>
static dcomm_status dcommi_cuda_fold_kinds(const char *call, dcommi_cuda_kind kind, bool divides,
                                           dcommi_cuda_fold *p, void *stream)
{
    switch (kind) {
    case DCOMMI_CUDA_PROD:
        return dcommi_cuda_fold_launch<U, DCOMMI_CUDA_PROD>(call, p, stream);
    case DCOMMI_CUDA_MIN:
        return dcommi_cuda_fold_launch<E, DCOMMI_CUDA_MIN>(call, p, stream);
    case DCOMMI_CUDA_MAX:
        return dcommi_cuda_fold_launch<E, DCOMMI_CUDA_MAX>(call, p, stream);
    case DCOMMI_CUDA_SCALE:
        return dcommi_cuda_fold_launch<E, DCOMMI_CUDA_SCALE>(call, p, stream);
    case DCOMMI_CUDA_SUM:
        break;
    }
    return divides ? dcommi_cuda_fold_launch<E, DCOMMI_CUDA_SUM>(call, p, stream)
                   : dcommi_cuda_fold_launch<U, DCOMMI_CUDA_SUM>(call, p, stream);
}

static dcomm_status dcommi_cuda_fold_dtype(const char *call, dcomm_dtype dtype,
                                           dcommi_cuda_kind kind, dcommi_cuda_fold *p, void *stream)
{
    const bool divides = p->divisor > 1;
#define DCOMMI_CUDA_DTYPE(NAME, E, U)                                                           \
    case NAME:                                                                                  \
        return dcommi_cuda_fold_kinds<dcommi_cuda_##E, dcommi_cuda_##U>(call, kind, divides, p, \
                                                                        stream)
    switch ((int)dtype) {
        DCOMMI_CUDA_DTYPE(DCOMM_F64, f64, f64);
        DCOMMI_CUDA_DTYPE(DCOMM_F32, f32, f32);
        DCOMMI_CUDA_DTYPE(DCOMM_F16, f16, f16);
        DCOMMI_CUDA_DTYPE(DCOMM_BF16, bf16, bf16);
        DCOMMI_CUDA_DTYPE(DCOMM_I8, i8, u8);
        DCOMMI_CUDA_DTYPE(DCOMM_U8, u8, u8);
        DCOMMI_CUDA_DTYPE(DCOMM_I32, i32, u32);
        DCOMMI_CUDA_DTYPE(DCOMM_U32, u32, u32);
        DCOMMI_CUDA_DTYPE(DCOMM_I64, i64, u64);
        DCOMMI_CUDA_DTYPE(DCOMM_U64, u64, u64);
    }
#undef DCOMMI_CUDA_DTYPE
    return dcommi_cuda_fail(DCOMM_ERR_INVALID, "%s: dtype %d does not exist", call, (int)dtype);
}

/* Copy the bits of one operand. */
static dcomm_status dcommi_cuda_copy(const char *call, size_t element, dcommi_cuda_fold *p,
                                     void *stream)
{
    switch (element) {
    case 8:
        return dcommi_cuda_fold_launch<dcommi_cuda_u64, DCOMMI_CUDA_SUM>(call, p, stream);
    case 4:
        return dcommi_cuda_fold_launch<dcommi_cuda_u32, DCOMMI_CUDA_SUM>(call, p, stream);
    case 2:
        return dcommi_cuda_fold_launch<dcommi_cuda_u16, DCOMMI_CUDA_SUM>(call, p, stream);
    default:
        return dcommi_cuda_fold_launch<dcommi_cuda_u8, DCOMMI_CUDA_SUM>(call, p, stream);
    }
}

static dcomm_status dcommi_cuda_fold_args(const char *call, void *dst, const void *const *src,
                                          size_t nsrc, size_t count, dcomm_dtype dtype,
                                          dcommi_cuda_fold *p)
{
    const size_t element = dcomm_dtype_size(dtype);
    if (element == 0 || count > SIZE_MAX / element) {
        return dcommi_cuda_fail(DCOMM_ERR_INVALID, "%s: %zu elements of dtype %d", call, count,
                                (int)dtype);
    }
    DCOMMI_CUDA_TRY(dcommi_cuda_array(call, "dst", dst, count, element));
    *p = dcommi_cuda_fold();
    p->dst = dst;
    p->count = count;
    p->divisor = 1;
    return dcommi_cuda_operands_make(call, src, nsrc, element, count == 0, &p->src);
}

/* Refuse an operator that has no kernel, or a divisor for one that cannot divide. */
static dcomm_status dcommi_cuda_fold_op(const char *call, dcomm_op op, int64_t divisor)
{
    const bool sums = op == DCOMM_SUM || op == DCOMM_AVG || op == DCOMM_PREMUL_SUM;
    if (!sums && op != DCOMM_PROD && op != DCOMM_MIN && op != DCOMM_MAX) {
        return dcommi_cuda_fail(DCOMM_ERR_INVALID, "%s: operator %d has no kernel", call, (int)op);
    }
    if (!sums && divisor > 1) {
        return dcommi_cuda_fail(DCOMM_ERR_INVALID, "%s: operator %s cannot divide", call,
                                dcomm_op_name(op));
    }
    return DCOMM_OK;
}

extern "C" dcomm_status dcomm_cuda_reduce(void *dst, const void *const *src, size_t nsrc,
                                          size_t count, dcomm_dtype dtype, dcomm_op op,
                                          int64_t divisor, void *stream)
{
    const char *call = "dcomm_cuda_reduce";
    dcommi_cuda_fold p;
    DCOMMI_CUDA_TRY(dcommi_cuda_fold_args(call, dst, src, nsrc, count, dtype, &p));
    DCOMMI_CUDA_TRY(dcommi_cuda_fold_op(call, op, divisor));
    p.divisor = divisor > 1 ? divisor : 1;
    if (count == 0) {
        return DCOMM_OK;
    }
    if (nsrc == 1 && divisor <= 1) {
        return dst == src[0] ? DCOMM_OK
                             : dcommi_cuda_copy(call, dcomm_dtype_size(dtype), &p, stream);
    }
    dcommi_cuda_kind kind = op == DCOMM_PROD  ? DCOMMI_CUDA_PROD
                            : op == DCOMM_MIN ? DCOMMI_CUDA_MIN
                            : op == DCOMM_MAX ? DCOMMI_CUDA_MAX
                                              : DCOMMI_CUDA_SUM;
    return dcommi_cuda_fold_dtype(call, dtype, kind, &p, stream);
}

extern "C" dcomm_status dcomm_cuda_scale(void *dst, const void *src, size_t count,
                                         dcomm_dtype dtype, double factor, void *stream)
{
    const char *call = "dcomm_cuda_scale";
    dcommi_cuda_fold p;
    dcomm_status status = dcommi_cuda_fold_args(call, dst, &src, 1, count, dtype, &p);
    if (status != DCOMM_OK || count == 0) {
        return status;
    }
    p.factor = factor;
    return dcommi_cuda_fold_dtype(call, dtype, DCOMMI_CUDA_SCALE, &p, stream);
}

#endif
