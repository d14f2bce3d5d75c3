/* perf_rule.h - what makes times comparable: clock, iterations, median, memory. dcomm-perf and the
 * programs that measure other libraries (peers/) share it. */
#ifndef PERF_RULE_H
#define PERF_RULE_H

#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>

static const double perf_target_s = 0.3; /* of timed iterations, when -n is not given */
enum { PERF_MIN_ITERATIONS = 5, PERF_MAX_ITERATIONS = 20000, PERF_WARMUP = 3 };
enum { PERF_GUARD = 64 }; /* bytes after each result that nobody may touch */

static double perf_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* How many to time, after the fastest warm-up iteration took so long. */
static int perf_iterations(double fastest_s)
{
    double wanted = perf_target_s / (fastest_s > 1e-9 ? fastest_s : 1e-9);
    return wanted > PERF_MAX_ITERATIONS   ? PERF_MAX_ITERATIONS
           : wanted < PERF_MIN_ITERATIONS ? PERF_MIN_ITERATIONS
                                          : (int)wanted;
}

static int perf_compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Sorts the values. */
static double perf_median(double *values, int n)
{
    qsort(values, (size_t)n, sizeof *values, perf_compare);
    return n % 2 != 0 ? values[n / 2] : (values[n / 2 - 1] + values[n / 2]) / 2;
}

/* Ordinary memory from a page boundary on, with room for the guard. */
static char *perf_alloc(size_t bytes)
{
    size_t padded = (bytes + PERF_GUARD + 4095) / 4096 * 4096;
    return padded < bytes ? NULL : aligned_alloc(4096, padded);
}

/* The same on huge pages, where the kernel gives them for the asking. */
static inline char *perf_alloc_huge(size_t bytes)
{
    size_t page = (size_t)2 << 20;
    size_t padded = (bytes + PERF_GUARD + page - 1) / page * page;
    char *p = padded < bytes ? NULL : aligned_alloc(page, padded);
    if (p != NULL) {
        madvise(p, padded, MADV_HUGEPAGE);
    }
    return p;
}

#endif
