/* cuda_shim.h - enough of CUDA to run kernels on the CPU, for tests: the threads of a block are
 * fibers on one core, which run until they meet at a barrier or exchange values within a warp.
 * Include it, with DCOMMI_CUDA_SHIM defined, before a kernel.
 *
 * Errors that break a device stop the program with a sentence: lanes of a mask that are at
 * different operations, a shuffle from a lane outside the mask, a barrier that some threads never
 * reach, an unaligned vector access, a copy to shared memory that nobody waits for. Fibers run in
 * an order that the test chooses, so that a missing barrier shows as wrong bytes in one order or
 * another. */
#ifndef DCOMMI_CUDA_SHIM_H
#define DCOMMI_CUDA_SHIM_H

#include "cuda_shim_runtime.h"

#include <cmath>
#include <csetjmp>
#include <cstdint>
#include <ucontext.h>

#define __global__
#define __device__
#define __host__
#define __shared__ static
#define __forceinline__ inline __attribute__((always_inline))
#define __launch_bounds__(...)
#define __grid_constant__

struct dim3 {
    unsigned x, y, z;
};
struct uint2 {
    unsigned x, y;
};
struct uint4 {
    unsigned x, y, z, w;
};
struct float2 {
    float x, y;
};
struct float4 {
    float x, y, z, w;
};

/* ---- fibers ---- */

static const unsigned SHIM_WARP = 32, SHIM_THREADS = 1024, SHIM_STACK = 128 << 10;
enum shim_state { SHIM_READY, SHIM_EXCHANGE, SHIM_BARRIER, SHIM_DONE };

/* A copy to shared memory that is under way, of a group that its thread has numbered. */
struct shim_copy {
    void *to;
    const void *from;
    size_t bytes, group;
};

struct shim_fiber {
    std::vector<shim_copy> copies;
    size_t group;     /* of the copies that begin now */
    ucontext_t begin; /* its start; later switches are jumps, without a system call */
    jmp_buf there;
    bool started;
    char *stack;
    shim_state state;
    unsigned mask; /* lanes of an exchange */
    int operation; /* the operation's line number */
    uint64_t value;
};

struct shim_block {
    shim_fiber fiber[SHIM_THREADS];
    uint64_t seen[SHIM_THREADS]; /* values of the last exchange */
    jmp_buf scheduler;
    unsigned self;
    void (*body)(void);
};

static shim_block shim;
/* Order in which fibers run: 0 upwards, 1 downwards, 2 scattered. */
static int shim_order;
/* Of a launch of more than a thousand blocks, run only this many last ones; 0: all. For very long
 * arrays. */
static unsigned shim_last;
static dim3 threadIdx, blockIdx, blockDim, gridDim;

static inline unsigned shim_skipped(void)
{
    return shim_last > 0 && gridDim.x > 1000 ? gridDim.x - shim_last : 0;
}

static inline void shim_wait(shim_state state)
{
    shim_fiber *self = &shim.fiber[shim.self];
    self->state = state;
    if (_setjmp(self->there) == 0) {
        _longjmp(shim.scheduler, 1);
    }
}

static inline void shim_enter(void)
{
    shim.fiber[shim.self].group = 0;
    shim.body();
    if (!shim.fiber[shim.self].copies.empty()) {
        shim_die("a thread ends while copies are under way: thread, copies", shim.self,
                 (unsigned)shim.fiber[shim.self].copies.size());
    }
    shim_wait(SHIM_DONE);
}

static inline void shim_resume(unsigned t)
{
    shim.self = t;
    threadIdx.x = t;
    if (_setjmp(shim.scheduler) != 0) {
        return;
    }
    if (shim.fiber[shim.self].started) {
        _longjmp(shim.fiber[shim.self].there, 1);
    }
    shim.fiber[shim.self].started = true;
    setcontext(&shim.fiber[shim.self].begin);
}

/* Complete the exchanges whose lanes have all arrived. */
static inline bool shim_exchanges(unsigned first)
{
    bool moved = false;
    for (unsigned l = 0; l < SHIM_WARP && first + l < blockDim.x; l++) {
        shim_fiber *f = &shim.fiber[first + l];
        if (f->state != SHIM_EXCHANGE) {
            continue;
        }
        if ((f->mask >> l & 1) == 0) {
            shim_die("a lane is not in its own mask: thread, line", first + l,
                     (unsigned)f->operation);
        }
        bool all = true;
        for (unsigned m = 0; m < SHIM_WARP; m++) {
            if ((f->mask >> m & 1) == 0) {
                continue;
            }
            shim_fiber *other = &shim.fiber[first + m];
            if (first + m >= blockDim.x || other->state == SHIM_DONE) {
                shim_die("a mask names a lane that is not there: thread, line", first + m,
                         (unsigned)f->operation);
            }
            all = all && other->state == SHIM_EXCHANGE;
        }
        for (unsigned m = 0; all && m < SHIM_WARP; m++) {
            shim_fiber *other = &shim.fiber[first + m];
            if ((f->mask >> m & 1) != 0 &&
                (other->operation != f->operation || other->mask != f->mask)) {
                shim_die("lanes meet at different operations: lines", (unsigned)f->operation,
                         (unsigned)other->operation);
            }
        }
        for (unsigned m = 0; all && m < SHIM_WARP; m++) {
            if ((f->mask >> m & 1) != 0 && m != l) {
                shim.seen[first + m] = shim.fiber[first + m].value;
                shim.fiber[first + m].state = SHIM_READY;
            }
        }
        if (all) {
            shim.seen[first + l] = f->value;
            f->state = SHIM_READY;
            moved = true;
        }
    }
    return moved;
}

static inline unsigned shim_turn(unsigned i, unsigned n)
{
    return shim_order == 0 ? i : shim_order == 1 ? n - 1 - i : (i * 5 + 3) % n;
}

static inline void shim_run_block(void)
{
    const unsigned n = blockDim.x;
    for (unsigned t = 0; t < n; t++) {
        shim_fiber *f = &shim.fiber[t];
        if (f->stack == nullptr) {
            f->stack = static_cast<char *>(std::malloc(SHIM_STACK));
        }
        getcontext(&f->begin);
        f->begin.uc_stack.ss_sp = f->stack;
        f->begin.uc_stack.ss_size = SHIM_STACK;
        f->begin.uc_link = nullptr;
        f->started = false;
        f->state = SHIM_READY;
        makecontext(&f->begin, shim_enter, 0);
    }
    const unsigned warps = (n + SHIM_WARP - 1) / SHIM_WARP;
    for (;;) {
        for (unsigned w = 0; w < warps; w++) {
            const unsigned first = shim_turn(w, warps) * SHIM_WARP;
            const unsigned lanes = n - first < SHIM_WARP ? n - first : SHIM_WARP;
            do {
                for (unsigned i = 0; i < lanes; i++) {
                    const unsigned t = first + shim_turn(i, lanes);
                    if (shim.fiber[t].state == SHIM_READY) {
                        shim_resume(t);
                    }
                }
            } while (shim_exchanges(first));
        }
        unsigned waiting = 0, done = 0;
        for (unsigned t = 0; t < n; t++) {
            waiting += shim.fiber[t].state == SHIM_BARRIER;
            done += shim.fiber[t].state == SHIM_DONE;
        }
        if (done == n) {
            return;
        }
        if (waiting == 0 || waiting + done != n) {
            shim_die("threads wait for each other in vain: at a barrier, ended", waiting, done);
        }
        for (unsigned t = 0; t < n; t++) {
            if (shim.fiber[t].state == SHIM_BARRIER) {
                shim.fiber[t].state = SHIM_READY;
            }
        }
    }
}

/* ---- what the launchers call ---- */

template <class P> struct shim_call {
    static void (*kernel)(P);
    static const P *argument;
    static void run()
    {
        kernel(*argument);
    }
};
template <class P> void (*shim_call<P>::kernel)(P);
template <class P> const P *shim_call<P>::argument;

/* Run blocks one after the other: kernels may not rely on an order among blocks. */
template <class P>
static void shim_launch(void (*kernel)(P), unsigned blocks, unsigned threads, const P &p)
{
    shim_call<P>::kernel = kernel;
    shim_call<P>::argument = &p;
    shim.body = shim_call<P>::run;
    blockDim = dim3{threads, 1, 1};
    gridDim = dim3{blocks, 1, 1};
    const unsigned first = shim_skipped();
    for (unsigned b = first; b < blocks; b++) {
        blockIdx = dim3{shim_order == 1 ? blocks - 1 - (b - first) : b, 0, 0};
        shim_run_block();
    }
    shim_call<P>::argument = nullptr;
}

template <class P>
static cudaError_t dcommi_cuda_start(void (*kernel)(P), unsigned blocks, unsigned threads,
                                     const P &p, cudaStream_t stream)
{
    if (threads == 0 || threads > SHIM_THREADS) {
        shim_die("threads in a block, blocks", threads, blocks);
    }
    shim_work(stream, [=] { shim_launch(kernel, blocks, threads, p); });
    return cudaSuccess;
}

/* ---- what kernels call ---- */

static inline void __syncthreads()
{
    shim_wait(SHIM_BARRIER);
}

/* A barrier that also returns whether any thread's predicate holds. */
static inline int __syncthreads_or(int predicate)
{
    shim.fiber[shim.self].value = predicate != 0;
    shim_wait(SHIM_BARRIER);
    int any = 0;
    for (unsigned t = 0; t < blockDim.x; t++) {
        any |= (int)shim.fiber[t].value;
    }
    shim_wait(SHIM_BARRIER); /* nobody may change its value before all have read it */
    return any;
}

/* Return the value of lane `from` of the caller's warp. */
template <class T> static inline T shim_exchange(unsigned mask, int line, T value, unsigned from)
{
    shim_fiber *self = &shim.fiber[shim.self];
    static_assert(sizeof(T) <= sizeof self->value, "up to 64 bits");
    const unsigned me = shim.self;
    self->mask = mask;
    self->operation = line;
    std::memcpy(&self->value, &value, sizeof value);
    shim_wait(SHIM_EXCHANGE);
    if (from >= SHIM_WARP || (mask >> from & 1) == 0) {
        shim_die("a shuffle from a lane that is not in the mask: lane, line", from, (unsigned)line);
    }
    std::memcpy(&value, &shim.seen[me / SHIM_WARP * SHIM_WARP + from], sizeof value);
    return value;
}

/* Return true if the predicate of any lane holds. The mask must be the whole warp. */
static inline int shim_any(unsigned mask, int line, int predicate)
{
    int any = 0;
    for (unsigned l = 0; l < SHIM_WARP; l++) {
        any |= shim_exchange(mask, line, predicate, l);
    }
    return any;
}

static inline unsigned shim_ballot(unsigned mask, int line, int predicate)
{
    unsigned all = 0;
    shim_exchange(mask, line, predicate, threadIdx.x % SHIM_WARP);
    for (unsigned l = 0; l < SHIM_WARP; l++) {
        int of;
        std::memcpy(&of, &shim.seen[shim.self / SHIM_WARP * SHIM_WARP + l], sizeof of);
        all |= (unsigned)(of != 0) << l;
    }
    return all;
}

#define __shfl_xor_sync(mask, value, lanes) \
    shim_exchange(mask, __LINE__, value, threadIdx.x % SHIM_WARP ^ (unsigned)(lanes))
#define __any_sync(mask, predicate) shim_any(mask, __LINE__, (predicate) != 0)
/* A lane without a lane so far below it gets its own value. */
#define __shfl_up_sync(mask, value, lanes)                    \
    shim_exchange(mask, __LINE__, value,                      \
                  threadIdx.x % SHIM_WARP < (unsigned)(lanes) \
                      ? threadIdx.x % SHIM_WARP               \
                      : threadIdx.x % SHIM_WARP - (unsigned)(lanes))
#define __ballot_sync(mask, predicate) shim_ballot(mask, __LINE__, (predicate) != 0)
#define __shfl_sync(mask, value, lane) shim_exchange(mask, __LINE__, value, (unsigned)(lane))
#define __syncwarp() (void)shim_exchange(0xffffffffu, __LINE__, 0, 0)

template <class T> static inline T *shim_checked(const T *p)
{
    if (reinterpret_cast<uintptr_t>(p) % sizeof(T) != 0) {
        shim_die("an access is not aligned: bytes, off by", (unsigned)sizeof(T),
                 (unsigned)(reinterpret_cast<uintptr_t>(p) % sizeof(T)));
    }
    return const_cast<T *>(p);
}

template <class T> static inline T __ldcs(const T *p)
{
    T v;
    std::memcpy(&v, shim_checked(p), sizeof v);
    return v;
}

/* Load through the second-level cache, where other blocks' writes are visible. */
template <class T> static inline T __ldcg(const T *p)
{
    return __ldcs(p);
}

template <class T> static inline void __stcs(T *p, T v)
{
    std::memcpy(shim_checked(p), &v, sizeof v);
}

/* ---- copies to shared memory ---- */

/* Begin a copy. Until it lands, what it overwrites reads as ones. */
static inline void __pipeline_memcpy_async(void *to, const void *from, size_t bytes)
{
    shim_fiber *self = &shim.fiber[shim.self];
    const uintptr_t off = reinterpret_cast<uintptr_t>(to) | reinterpret_cast<uintptr_t>(from);
    if ((bytes != 4 && bytes != 8 && bytes != 16) || off % bytes != 0) {
        shim_die("a copy to shared memory is not aligned: bytes, off by", (unsigned)bytes,
                 (unsigned)(off % bytes));
    }
    std::memset(to, 0xff, bytes);
    self->copies.push_back(shim_copy{to, from, bytes, self->group});
}

static inline void __pipeline_commit()
{
    shim.fiber[shim.self].group++;
}

/* Let this thread's copies land, except those of its last `prior` groups. No copy lands before. */
static inline void __pipeline_wait_prior(size_t prior)
{
    shim_fiber *self = &shim.fiber[shim.self];
    size_t left = 0;
    for (const shim_copy &copy : self->copies) {
        if (copy.group + prior < self->group) {
            std::memcpy(copy.to, copy.from, copy.bytes);
        } else {
            self->copies[left++] = copy;
        }
    }
    self->copies.resize(left);
}

static inline unsigned long long atomicAdd(unsigned long long *p, unsigned long long v)
{
    const unsigned long long before = *p;
    *p = before + v;
    return before;
}

static inline unsigned atomicAdd(unsigned *p, unsigned v)
{
    const unsigned before = *p;
    *p = before + v;
    return before;
}

/* Count to `most`, then start again. Kernels count blocks with it, so the blocks that a launch
 * leaves out count as done. */
static inline unsigned atomicInc(unsigned *p, unsigned most)
{
    const unsigned before = *p < shim_skipped() ? shim_skipped() : *p;
    *p = before >= most ? 0 : before + 1;
    return before;
}

static inline void __threadfence()
{
}

static inline int __popc(unsigned v)
{
    return __builtin_popcount(v);
}

static inline int __clz(int v)
{
    return v == 0 ? 32 : __builtin_clz((unsigned)v);
}

static inline int __ffs(int v)
{
    return __builtin_ffs(v);
}

static inline unsigned atomicOr(unsigned *p, unsigned v)
{
    const unsigned before = *p;
    *p = before | v;
    return before;
}

static inline unsigned long long atomicMax(unsigned long long *p, unsigned long long v)
{
    const unsigned long long before = *p;
    *p = before > v ? before : v;
    return before;
}

/* ---- arithmetic ---- */

/* NVIDIA's rule: an f32 operation whose result is NaN gives 0x7fffffff, whatever its operands. An
 * x86 keeps a NaN operand's sign and payload, or makes 0xffc00000. Of f64 the manuals promise only
 * some quiet NaN. The shim gives one that an x86 never makes of the tests' inputs, so that no code
 * can rely on a NaN's bits. */
static inline float shim_nan(float x)
{
    const uint32_t nan = 0x7fffffffu;
    if (x != x) {
        std::memcpy(&x, &nan, sizeof x);
    }
    return x;
}

static inline double shim_nan(double x)
{
    const uint64_t nan = 0x7fffffffffffffffu;
    if (x != x) {
        std::memcpy(&x, &nan, sizeof x);
    }
    return x;
}

/* f32 operations flush denormal operands and results, as with nvcc's -ftz=true. */
static bool shim_flushes;

static inline float shim_flushed(float x)
{
    return shim_flushes && std::fpclassify(x) == FP_SUBNORMAL ? std::copysign(0.0f, x) : x;
}

static inline double shim_flushed(double x)
{
    return x;
}

#define SHIM_ROUNDED(NAME, TYPE, OPERATOR)                          \
    static inline TYPE NAME(TYPE a, TYPE b)                         \
    {                                                               \
        volatile TYPE r = shim_flushed(a) OPERATOR shim_flushed(b); \
        return shim_nan(shim_flushed((TYPE)r));                     \
    }
SHIM_ROUNDED(__fadd_rn, float, +)
SHIM_ROUNDED(__fsub_rn, float, -)
SHIM_ROUNDED(__fmul_rn, float, *)
SHIM_ROUNDED(__fdiv_rn, float, /)
SHIM_ROUNDED(__dadd_rn, double, +)
SHIM_ROUNDED(__dmul_rn, double, *)
SHIM_ROUNDED(__ddiv_rn, double, /)

static inline double __dsqrt_rn(double a)
{
    return shim_nan(std::sqrt(a));
}

static inline float __fmaf_rn(float a, float b, float c)
{
    const float r = std::fma(shim_flushed(a), shim_flushed(b), shim_flushed(c));
    return shim_nan(shim_flushed(r));
}

static inline double __fma_rn(double a, double b, double c)
{
    return shim_nan(std::fma(a, b, c));
}

static inline float __double2float_rn(double a)
{
    return shim_nan(shim_flushed((float)a));
}

static inline int __float2int_rz(float a)
{
    if (!(a >= -2147483648.0f && a < 2147483648.0f)) {
        shim_die("a number is too large for an integer", 0, 0);
    }
    return (int)a;
}

/* Select four of the eight bytes of lo and hi by the digits of `of`. */
static inline unsigned __byte_perm(unsigned lo, unsigned hi, unsigned of)
{
    const uint64_t all = (uint64_t)hi << 32 | lo;
    unsigned v = 0;
    for (unsigned i = 0; i < 4; i++) {
        v |= (unsigned)(all >> 8 * (of >> 4 * i & 7) & 0xff) << 8 * i;
    }
    return v;
}

static inline unsigned __funnelshift_l(unsigned lo, unsigned hi, unsigned n)
{
    return n % 32 == 0 ? hi : hi << n % 32 | lo >> (32 - n % 32);
}

#endif
