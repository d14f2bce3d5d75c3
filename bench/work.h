/* work.h - arithmetic with which benchmarks overlap communication. No compiler can remove it. The
 * amount of work is fixed, not its time: if communication takes the core, the work takes
 * longer. */
#ifndef WORK_H
#define WORK_H

#include "perf_rule.h"

static volatile float work_sink;

/* Do `units` units of work. A unit is 300 dependent multiply-adds, about a microsecond. */
static inline void work(double units)
{
    float x = work_sink;
    for (long i = 0; i < (long)(units * 300); i++) {
        x = x * 0.999f + 0.001f;
    }
    work_sink = x;
}

/* Return the seconds that a unit takes. */
static inline double work_unit(void)
{
    double start = perf_now();
    work(20000);
    return (perf_now() - start) / 20000;
}

#endif
