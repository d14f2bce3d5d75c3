/* hier_values.h - the input of each rank in tests of hierarchical algorithms, and the sums. */
#ifndef HIER_VALUES_H
#define HIER_VALUES_H

#include <stddef.h>

enum { VALUES = 201 }; /* the values repeat after so many */

static inline float value(int rank, size_t i)
{
    return (float)((int)(i * 7 + (size_t)rank * 31) % VALUES - VALUES / 2);
}

/* Return the sum of element i over n ranks. One process asks for one n. */
static inline float value_of_sum(int n, size_t i)
{
    static float sums[VALUES];
    static int of;
    for (size_t k = 0; of != n && k < VALUES; k++) {
        sums[k] = 0;
        for (int r = 0; r < n; r++) {
            sums[k] += value(r, k);
        }
    }
    of = n;
    return sums[i % VALUES];
}

#endif
