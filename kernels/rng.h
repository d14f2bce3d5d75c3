/* rng.h - random numbers as a function of a key and an index: Philox4x32 with ten rounds (Salmon,
 * Moraes, Dror, Shaw: Parallel random numbers: as easy as 1, 2, 3, SC 2011). C, C++ and CUDA
 * alike.
 *
 * A block of 16 bytes serves 16 elements, eight bits each. Elements form groups of 128. Element
 * 16k+i of group g has byte 3 - k%4 of word 2(k/4) + i%2 of block 8g + i/2. Its random number is
 * that whole word, rotated so that its own byte is on top. This gives full resolution, but the low
 * bits are shared with three other elements. */
#ifndef DCOMMI_RNG_H
#define DCOMMI_RNG_H

#include "math.h"

#define DCOMMI_RNG_GROUP 128
#define DCOMMI_RNG_ROUNDS 10
#define DCOMMI_PHILOX_M0 0xd2511f53u
#define DCOMMI_PHILOX_M1 0xcd9e8d57u
#define DCOMMI_PHILOX_W0 0x9e3779b9u
#define DCOMMI_PHILOX_W1 0xbb67ae85u

/* The random numbers of one array. */
typedef struct dcommi_rng {
    uint32_t key[2 * DCOMMI_RNG_ROUNDS]; /* two words for each round */
    uint32_t high[2];                    /* the upper half of every counter */
    uint64_t group;                      /* of the array's first element */
} dcommi_rng;

DCOMMI_HD static inline uint64_t dcommi_rng_mix(uint64_t a, uint64_t b)
{
    uint64_t z = a + 0x9e3779b97f4a7c15u + b * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

/* Prepare the random numbers of one array. An array that begins inside a group draws from counters
 * of its own. */
DCOMMI_HD static inline dcommi_rng dcommi_rng_make(uint64_t seed, uint64_t tensor, uint64_t step,
                                                   uint64_t rank, uint64_t first)
{
    dcommi_rng rng;
    uint64_t key = dcommi_rng_mix(seed, tensor);
    uint64_t high = dcommi_rng_mix(step, rank);
    if (first % DCOMMI_RNG_GROUP != 0) {
        high = dcommi_rng_mix(high, first % DCOMMI_RNG_GROUP);
    }
    for (uint32_t i = 0; i < DCOMMI_RNG_ROUNDS; i++) {
        rng.key[2 * i] = (uint32_t)key + i * DCOMMI_PHILOX_W0;
        rng.key[2 * i + 1] = (uint32_t)(key >> 32) + i * DCOMMI_PHILOX_W1;
    }
    rng.high[0] = (uint32_t)high;
    rng.high[1] = (uint32_t)(high >> 32);
    rng.group = first / DCOMMI_RNG_GROUP;
    return rng;
}

DCOMMI_HD static inline void dcommi_rng_block(const dcommi_rng *rng, uint64_t block,
                                              uint32_t word[4])
{
    uint32_t c0 = (uint32_t)block, c1 = (uint32_t)(block >> 32);
    uint32_t c2 = rng->high[0], c3 = rng->high[1];
    for (int i = 0; i < DCOMMI_RNG_ROUNDS; i++) {
        uint64_t p0 = (uint64_t)DCOMMI_PHILOX_M0 * c0;
        uint64_t p1 = (uint64_t)DCOMMI_PHILOX_M1 * c2;
        c0 = (uint32_t)(p1 >> 32) ^ c1 ^ rng->key[2 * i];
        c1 = (uint32_t)p1;
        c2 = (uint32_t)(p0 >> 32) ^ c3 ^ rng->key[2 * i + 1];
        c3 = (uint32_t)p0;
    }
    word[0] = c0;
    word[1] = c1;
    word[2] = c2;
    word[3] = c3;
}

/* Return the random number of element `at` of the array. */
DCOMMI_HD static inline uint32_t dcommi_rng_element(const dcommi_rng *rng, uint64_t at)
{
    uint64_t group = rng->group + at / DCOMMI_RNG_GROUP;
    unsigned k = (unsigned)(at % DCOMMI_RNG_GROUP) / 16, i = (unsigned)(at % 16);
    unsigned turn = 8 * (k % 4);
    uint32_t word[4];
    dcommi_rng_block(rng, 8 * group + i / 2, word);
    uint32_t w = word[2 * (k / 4) + i % 2];
    return turn == 0 ? w : (w << turn) | (w >> (32 - turn));
}

#endif
