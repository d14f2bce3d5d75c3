/* topk_sample.h - which elements are the sample that suggests a threshold to top-k. C, C++ and CUDA
 * alike. */
#ifndef DCOMMI_TOPK_SAMPLE_H
#define DCOMMI_TOPK_SAMPLE_H

#include "mix.h"
#include "root.h"

#define DCOMMI_TOPK_SAMPLE 256 /* one element of so many is sampled, ... */
#define DCOMMI_TOPK_LINE 16    /* ... in runs of this many, ... */
#define DCOMMI_TOPK_LEAST 4096 /* ... and at least so many */

/* How many runs a sample of `count` elements has; 0: they are too few for one. */
DCOMMI_HD static inline uint64_t dcommi_topk_sample_lines(uint64_t count)
{
    uint64_t wanted = count / DCOMMI_TOPK_SAMPLE;
    uint64_t lines = (wanted < DCOMMI_TOPK_LEAST ? DCOMMI_TOPK_LEAST : wanted) / DCOMMI_TOPK_LINE;
    return count / lines < 2 * DCOMMI_TOPK_LINE ? 0 : lines;
}

/* Where run number `line` of `lines` begins. They are scattered, so that no period of the input (a
 * row, a channel) is met again and again. */
DCOMMI_HD static inline uint64_t dcommi_topk_sample_at(uint64_t line, uint64_t lines,
                                                       uint64_t count)
{
    uint64_t stride = count / lines;
    return line * stride + dcommi_mix(line, count) % (stride - DCOMMI_TOPK_LINE + 1);
}

/* Which of that sample, by size, some more than k of all elements reach, `spare` standard
 * deviations more; 0 where that cannot be told. */
static inline uint64_t dcommi_topk_sample_rank(uint64_t lines, uint64_t count, uint64_t k,
                                               double spare)
{
    double n = (double)(lines * DCOMMI_TOPK_LINE);
    double share = (double)k * (n / (double)count);
    double rank = share + spare * (dcommi_sqrt(share) + 1);
    return lines == 0 || rank >= n ? 0 : rank < 1 ? 1 : (uint64_t)rank;
}

#endif
