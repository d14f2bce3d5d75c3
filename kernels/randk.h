/* randk.h - which elements randk sends. C, C++ and CUDA alike.
 *
 * Part i of k has the elements i*d/k to (i+1)*d/k (rounded down); one of them is sent. Wire: u64
 * seed | k f32 values. */
#ifndef DCOMMI_RANDK_H
#define DCOMMI_RANDK_H

#include "rng.h"

#define DCOMMI_RANDK_HEAD 8

typedef struct dcommi_randk_head {
    uint64_t seed;
} dcommi_randk_head;

#ifdef __cplusplus
static_assert(sizeof(dcommi_randk_head) == DCOMMI_RANDK_HEAD, "no padding");
#else
_Static_assert(sizeof(dcommi_randk_head) == DCOMMI_RANDK_HEAD, "no padding");
#endif

/* Return the seed, which is the same on every rank. */
DCOMMI_HD static inline uint64_t dcommi_randk_seed(uint64_t seed, uint64_t tensor, uint64_t step,
                                                   uint64_t first)
{
    return dcommi_rng_mix(dcommi_rng_mix(seed, tensor), dcommi_rng_mix(step, first));
}

DCOMMI_HD static inline dcommi_rng dcommi_randk_rng(uint64_t seed)
{
    return dcommi_rng_make(seed, 0, 0, 0, 0);
}

/* Return the begin of part number `part` of k, which is the end of the part before. count * k must
 * be below 2^64. */
DCOMMI_HD static inline uint64_t dcommi_randk_begin(uint64_t count, uint64_t k, uint64_t part)
{
    return part * count / k;
}

/* Return the element of [begin, end) that is sent. `word` is word part % 4 of random block part /
 * 4. */
DCOMMI_HD static inline uint64_t dcommi_randk_index(uint64_t begin, uint64_t end, uint32_t word)
{
    return begin + ((word * (end - begin)) >> 32);
}

/* Return the part that contains element i. */
DCOMMI_HD static inline uint64_t dcommi_randk_part(uint64_t count, uint64_t k, uint64_t i)
{
    return ((i + 1) * k - 1) / count;
}

#endif
