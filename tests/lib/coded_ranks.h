/* coded_ranks.h - shared by tests of compressed collectives. */
#ifndef CODED_RANKS_H
#define CODED_RANKS_H

#include "run_ranks.h"

#include <math.h>

static inline dcomm_codec *make_codec(const char *spec)
{
    dcomm_codec *codec = NULL;
    RANKS_OK(dcomm_codec_create(spec, &codec));
    return codec;
}

/* Fill x with normal numbers, different ones on each rank and in each step. */
static inline void normal_gradient(float *x, size_t count, int rank, int step)
{
    uint64_t state = (uint64_t)rank * 7919 + (uint64_t)step * 104729 + 1;
    for (size_t i = 0; i < count; i++) {
        uint64_t r = ranks_random(&state);
        float u = (float)((r >> 40) + 1) / 16777217.0f, v = (float)(r & 0xffffff) / 16777216.0f;
        x[i] = sqrtf(-2 * logf(u)) * cosf(6.2831853f * v);
    }
}

#endif
