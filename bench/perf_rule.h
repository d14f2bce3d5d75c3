/* perf_rule.h - the rules that make times comparable: clock, iterations, median, memory.
 * dcomm-perf shares them with the programs that measure other libraries (peers/), some of which
 * are C++. */
#ifndef PERF_RULE_H
#define PERF_RULE_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>

static const double perf_target_s = 0.3; /* seconds of timed iterations, if -n is not given */
enum { PERF_MIN_ITERATIONS = 5, PERF_MAX_ITERATIONS = 20000, PERF_WARMUP = 3 };
enum { PERF_GUARD = 64 }; /* bytes behind each result, which must not change */

static inline double perf_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Return the number of iterations to time, from the time of the fastest warm-up iteration. */
static inline int perf_iterations(double fastest_s)
{
    double wanted = perf_target_s / (fastest_s > 1e-9 ? fastest_s : 1e-9);
    return wanted > PERF_MAX_ITERATIONS   ? PERF_MAX_ITERATIONS
           : wanted < PERF_MIN_ITERATIONS ? PERF_MIN_ITERATIONS
                                          : (int)wanted;
}

static inline int perf_compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Sort the values, and return their median. */
static inline double perf_median(double *values, int n)
{
    qsort(values, (size_t)n, sizeof *values, perf_compare);
    return n % 2 != 0 ? values[n / 2] : (values[n / 2 - 1] + values[n / 2]) / 2;
}

/* ---- memory ---- */

/* Kinds of memory: ordinary; advised to be on huge pages; registered (dcomm_mem_alloc); device
 * memory; registered device memory (dcomm_mem_alloc_device). Programs in peers/ have the first
 * two. */
typedef enum perf_mem {
    PERF_MEM_HOST,
    PERF_MEM_HUGE,
    PERF_MEM_REGISTERED,
    PERF_MEM_CUDA,
    PERF_MEM_CUDA_SHARED,
    PERF_MEM_COUNT
} perf_mem;
static const char *const perf_mem_names[PERF_MEM_COUNT] = {"host", "huge", "registered", "cuda",
                                                           "cuda-shared"};
enum { PERF_PAGE = 4096, PERF_HUGE_PAGE = 2 << 20, PERF_PAIRS_MAX = 512 };

static inline bool perf_mem_on_device(perf_mem mem)
{
    return mem == PERF_MEM_CUDA || mem == PERF_MEM_CUDA_SHARED;
}

static inline size_t perf_round_up(size_t bytes, size_t to)
{
    return (bytes + to - 1) / to * to;
}

/* Several pairs of an input and a result, in one piece of memory. Iterations take them in turn, so
 * that data in the caches from one iteration does not help the next. Every buffer begins on a
 * page. */
typedef struct perf_pool {
    char *memory;
    char *device;                  /* its copy on a device, which calls use; NULL: none */
    size_t bytes, work_at, stride; /* bytes of all; offset of a result and of the next pair from a
                                      pair */
    int pairs, now;
    perf_mem mem;
} perf_pool;

/* Lay out a pool with as many pairs as fill `rotate` bytes (0: one pair). Return false if the
 * sizes overflow. */
static inline bool perf_pool_shape(perf_pool *p, size_t input, size_t work, size_t rotate,
                                   perf_mem mem)
{
    const size_t most = SIZE_MAX / 8;
    if (input > most || work > most) {
        return false;
    }
    p->memory = p->device = NULL;
    p->work_at = perf_round_up(input + PERF_GUARD, PERF_PAGE); /* never the same address */
    p->stride = p->work_at + perf_round_up(work + PERF_GUARD, PERF_PAGE);
    size_t pairs = rotate / p->stride + (rotate % p->stride != 0);
    p->pairs = pairs < 1 ? 1 : pairs > PERF_PAIRS_MAX ? PERF_PAIRS_MAX : (int)pairs;
    p->bytes = perf_round_up((size_t)p->pairs * p->stride,
                             mem == PERF_MEM_HUGE ? (size_t)PERF_HUGE_PAGE : (size_t)PERF_PAGE);
    p->now = 0;
    p->mem = mem;
    return true;
}

/* Allocate the pool. The memory is newly mapped, so that the heap has not used it before. */
static inline bool perf_pool_alloc(perf_pool *p)
{
    size_t spare = p->mem == PERF_MEM_HUGE ? (size_t)PERF_HUGE_PAGE : 0;
    void *got =
        mmap(NULL, p->bytes + spare, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (got == MAP_FAILED) {
        return false;
    }
    char *at = (char *)got;
    if (spare > 0) {
        size_t before = perf_round_up((uintptr_t)at, spare) - (uintptr_t)at;
        if (before > 0) {
            munmap(at, before);
        }
        if (spare > before) {
            munmap(at + before + p->bytes, spare - before);
        }
        at += before;
        madvise(at, p->bytes, MADV_HUGEPAGE);
    }
    p->memory = at;
    return true;
}

static inline void perf_pool_free(perf_pool *p)
{
    if (p->memory != NULL) {
        munmap(p->memory, p->bytes);
        p->memory = NULL;
    }
}

static inline char *perf_pool_input(const perf_pool *p, int pair)
{
    return p->memory + (size_t)pair * p->stride;
}

static inline char *perf_pool_work(const perf_pool *p, int pair)
{
    return perf_pool_input(p, pair) + p->work_at;
}

static inline void perf_pool_next(perf_pool *p)
{
    p->now = p->now + 1 < p->pairs ? p->now + 1 : 0;
}

/* Warn on stderr if huge pages were wanted and less than 90% of a filled pool is on them. */
static inline void perf_pool_report(const perf_pool *p)
{
    unsigned long long kib = 0;
    FILE *file = p->mem == PERF_MEM_HUGE ? fopen("/proc/self/smaps_rollup", "r") : NULL;
    if (file == NULL) {
        return;
    }
    for (char line[256]; fgets(line, sizeof line, file) != NULL;) {
        if (sscanf(line, "AnonHugePages: %llu", &kib) == 1) {
            break;
        }
    }
    fclose(file);
    double share = (double)kib * 1024 / (double)p->bytes;
    if (share < 0.9) {
        fprintf(stderr, "# of %zu bytes, only %.0f%% are on huge pages\n", p->bytes, 100 * share);
    }
}

#endif
