/* noise.h - numbers for examples: initial weights and inputs, alike on every rank. */
#ifndef NOISE_H
#define NOISE_H

#include <stdint.h>

/* Return a number from -0.5 to 0.5 that depends on two others. */
static inline float noise(int a, int b)
{
    uint32_t state = (uint32_t)a * 2654435761u + (uint32_t)b * 40503u + 12345;
    state = (state ^ (state >> 15)) * 2246822519u;
    state = (state ^ (state >> 13)) * 3266489917u;
    return (float)((state ^ (state >> 16)) >> 8) / 16777216 - 0.5f;
}

#endif
