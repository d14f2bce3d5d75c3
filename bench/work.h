/* work.h - computation for benchmarks to overlap communication with: arithmetic that no compiler
 * can leave out and no clock shortens. */
#ifndef WORK_H
#define WORK_H

#include "perf_rule.h"

static volatile float work_sink;

/* Units of 300 additions one behind the other: about a microsecond each. */
static inline void work(double units)
{
    float x = work_sink;
    for (long i = 0; i < (long)(units * 300); i++) {
        x = x * 0.999f + 0.001f;
    }
    work_sink = x;
}

/* Seconds that a unit takes. */
static inline double work_unit(void)
{
    double start = perf_now();
    work(20000);
    return (perf_now() - start) / 20000;
}

#endif
