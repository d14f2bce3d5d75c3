/* mix.h - hash two words into one. C, C++ and CUDA alike. */
#ifndef DCOMMI_MIX_H
#define DCOMMI_MIX_H

#include "math.h"

/* Hash a and b with the finalizer of splitmix64. Every rank derives the same identities and
 * signatures from it. */
DCOMMI_HD static inline uint64_t dcommi_mix(uint64_t a, uint64_t b)
{
    uint64_t z = a + 0x9e3779b97f4a7c15u + (b << 6) + b * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

#endif
