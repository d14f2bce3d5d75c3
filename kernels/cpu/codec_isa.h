/* codec_isa.h - the loops of the dense codecs for each instruction set, and the choice of one. */
#ifndef DCOMMI_CODEC_ISA_H
#define DCOMMI_CODEC_ISA_H

#include "isa.h"
#include "lanes_portable.h"
#include "../tally.h"
#include "../wire.h"

#if defined(__x86_64__)
#include "lanes_avx2.h"
#include "lanes_avx512.h"
#endif

#define DCOMMI_CODEC_SOON 4     /* groups whose random numbers are computed together */
#define DCOMMI_DEQUANT_WIRES 64 /* wires that are summed at once, at most */

/* The encoding of a bucket, or of a block for casts. */
typedef struct dcommi_quant {
    const float *x;
    size_t count; /* whole groups and lines */
    unsigned char *wire;
    float inverse, step;
    uint32_t mask, half;   /* bits used of a random number, bits added to it */
    const dcommi_rng *rng; /* NULL: round to nearest */
    uint64_t group;        /* group of x[0], for rng */
    const float *ahead;    /* `count` elements to measure as well; NULL: none */
    /* With feedback (next is not NULL): store ahead + ahead_residual in ahead_sum and measure it,
     * and store next = x - decoded. */
    const float *ahead_residual;
    float *ahead_sum;
    float *next;
    bool stream, stream_next;
    uint64_t soon_group; /* first group whose random numbers are in `soon` */
    _Alignas(64) uint32_t soon[DCOMMI_CODEC_SOON][32];
} dcommi_quant;

typedef struct dcommi_dequant {
    const unsigned char *const *wires;
    const float *steps; /* one for each wire */
    size_t n;
    float *x;
    size_t count;
    float factor; /* for sums */
    bool add, stream;
} dcommi_dequant;

/* Return how many elements ahead inputs are prefetched into the L2 cache. AMD's Zen 5 needs a long
 * distance. Intel's hardware prefetchers run a little ahead within a page. Prefetching far beyond
 * takes their resources, and an encoder's reads then no longer overlap its computing
 * (docs/results/2026-11-23-codecs.md). */
static size_t dcommi_codec_lead(void)
{
    static _Atomic size_t known = 0;
    size_t lead = atomic_load_explicit(&known, memory_order_relaxed);
    if (DCOMMI_UNLIKELY(lead == 0)) {
        lead = dcommi_isa_is_intel() ? 544 : 3072;
        atomic_store_explicit(&known, lead, memory_order_relaxed);
    }
    return lead;
}

typedef struct dcommi_codec_kernels {
    uint32_t (*measure)(const float *x, size_t n, bool sign);
    uint32_t (*add_measure)(const float *x, const float *r, float *e, size_t n, bool sign);
    double (*squares)(const float *x, size_t n);
    uint32_t (*encode[DCOMMI_FORMAT_COUNT])(dcommi_quant *q);
    bool (*decode[DCOMMI_FORMAT_COUNT])(const dcommi_dequant *d);
    bool (*sum[DCOMMI_FORMAT_COUNT])(const dcommi_dequant *d, uint32_t *measured);
    uint32_t (*cast)(const dcommi_quant *q, bool half);
    uint32_t (*uncast)(const dcommi_dequant *d, bool half);
    void (*compare)(dcommi_tally *t, const float *x, const float *y, size_t n);
    void (*held)(dcommi_tally *t, const float *sent, const float *next, size_t n);
} dcommi_codec_kernels;

/* These loops compile slowly. Tests that only link them define DCOMMI_CODEC_KERNELS as extern.
 * tests/lib/codec_kernels.c defines it as nothing and compiles the loops for all of them. */
#ifndef DCOMMI_CODEC_KERNELS
#define DCOMMI_CODEC_KERNELS static
#define DCOMMI_CODEC_LOOPS
#endif

#ifndef DCOMMI_CODEC_LOOPS
extern const dcommi_codec_kernels dcommi_vport_codec_kernels, dcommi_v256_codec_kernels,
    dcommi_v512_codec_kernels;
#else

/* codec_loops.h is expanded for each set V of lanes. DCOMMI_L(name) is V's name for it. */
#define DCOMMI_JOIN_(prefix, v, name) prefix##_##v##_##name
#define DCOMMI_JOIN(prefix, v, name) DCOMMI_JOIN_(prefix, v, name)
#define DCOMMI_L(name) DCOMMI_JOIN(dcommi, DCOMMI_V, name)
#define DCOMMI_LANE DCOMMI_JOIN(DCOMMI, DCOMMI_V, LANE)
#define DCOMMI_UNROLL DCOMMI_JOIN(DCOMMI, DCOMMI_V, UNROLL)
#define DCOMMI_LOOP DCOMMI_JOIN(DCOMMI, DCOMMI_V, TARGET) static
#if defined(__x86_64__) /* rarely run: not inlining compiles faster */
#define DCOMMI_vport_LANE __attribute__((noinline, unused)) static
#else
#define DCOMMI_vport_LANE DCOMMI_vport_INLINE
#endif
#define DCOMMI_vport_UNROLL /* lanes are already loops */
#define DCOMMI_v256_UNROLL DCOMMI_UNROLL_8
#define DCOMMI_v512_UNROLL DCOMMI_UNROLL_8
#define DCOMMI_v256_LANE DCOMMI_v256_INLINE
#define DCOMMI_v512_LANE DCOMMI_v512_INLINE

#define DCOMMI_V vport
#include "codec_loops.h"
#undef DCOMMI_V
#if defined(__x86_64__)
#define DCOMMI_V v256
#include "codec_loops.h"
#undef DCOMMI_V
#define DCOMMI_V v512
#include "codec_loops.h"
#undef DCOMMI_V
#endif

#endif

static const dcommi_codec_kernels *dcommi_codec_kernels_get(void)
{
    switch (dcommi_isa_get()) {
#if defined(__x86_64__)
    case DCOMMI_ISA_AVX512:
        return &dcommi_v512_codec_kernels;
    case DCOMMI_ISA_AVX2:
        return &dcommi_v256_codec_kernels;
#endif
    default:
        return &dcommi_vport_codec_kernels;
    }
}

#endif
