/* topk_sample.h - the sample from which top-k guesses a threshold. C, C++ and CUDA alike. */
#ifndef DCOMMI_TOPK_SAMPLE_H
#define DCOMMI_TOPK_SAMPLE_H

#include "mix.h"
#include "root.h"

#define DCOMMI_TOPK_SAMPLE 256 /* sample one element of this many, */
#define DCOMMI_TOPK_LINE 16    /* in runs of this many, */
#define DCOMMI_TOPK_LEAST 4096 /* but at least this many */

/* Return the number of runs in a sample of `count` elements; 0: too few elements to sample. */
DCOMMI_HD static inline uint64_t dcommi_topk_sample_lines(uint64_t count)
{
    uint64_t wanted = count / DCOMMI_TOPK_SAMPLE;
    uint64_t lines = (wanted < DCOMMI_TOPK_LEAST ? DCOMMI_TOPK_LEAST : wanted) / DCOMMI_TOPK_LINE;
    return count / lines < 2 * DCOMMI_TOPK_LINE ? 0 : lines;
}

/* Return the begin of run number `line` of `lines`. Runs are scattered, so that they do not fall
 * into step with a period of the input (a row, a channel). */
DCOMMI_HD static inline uint64_t dcommi_topk_sample_at(uint64_t line, uint64_t lines,
                                                       uint64_t count)
{
    uint64_t stride = count / lines;
    return line * stride + dcommi_mix(line, count) % (stride - DCOMMI_TOPK_LINE + 1);
}

/* Return the rank, by magnitude within the sample, of a number that slightly more than k of all
 * elements reach: `spare` standard deviations more. 0: the sample cannot tell. */
static inline uint64_t dcommi_topk_sample_rank(uint64_t lines, uint64_t count, uint64_t k,
                                               double spare)
{
    double n = (double)(lines * DCOMMI_TOPK_LINE);
    double share = (double)k * (n / (double)count);
    double rank = share + spare * (dcommi_sqrt(share) + 1);
    return lines == 0 || rank >= n ? 0 : rank < 1 ? 1 : (uint64_t)rank;
}

#endif
