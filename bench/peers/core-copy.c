/* core-copy.c - how fast one core copies memory, and two at once: what bandwidths are measured
 * against. Buffers are larger than caches and advised to be on huge pages. */
#define _GNU_SOURCE
#include "../perf_rule.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { COPIES = 8 };
static const size_t bytes = (size_t)48 << 20;

typedef struct copier {
    int core;
    perf_pool pool;
    double start, end;
} copier;

static atomic_int ready, wanted;

/* Waits for the others, once the memory is there. */
static void meet(void)
{
    atomic_fetch_add(&ready, 1);
    while (atomic_load(&ready) < atomic_load(&wanted)) {
        sched_yield();
    }
}

static void copy(copier *c)
{
    c->start = perf_now();
    for (int i = 0; i < COPIES; i++) {
        memcpy(perf_pool_work(&c->pool, 0), perf_pool_input(&c->pool, 0), bytes);
        __asm__ volatile("" ::: "memory"); /* none of the copies is in vain */
    }
    c->end = perf_now();
}

static void *run(void *argument)
{
    copier *c = argument;
    cpu_set_t mask;
    CPU_ZERO(&mask);
    CPU_SET(c->core, &mask);
    if (pthread_setaffinity_np(pthread_self(), sizeof mask, &mask) != 0) {
        fprintf(stderr, "core-copy: cannot run on core %d\n", c->core);
        exit(3);
    }
    memset(perf_pool_input(&c->pool, 0), 1, bytes);
    memset(perf_pool_work(&c->pool, 0), 2, bytes);
    meet();
    copy(c);
    return NULL;
}

/* Bytes per second that n cores copy together. */
static double rate(copier *copiers, int n)
{
    pthread_t threads[2];
    double first = 0, last = 0;
    atomic_store(&ready, 0);
    atomic_store(&wanted, n);
    for (int i = 0; i < n; i++) {
        if (pthread_create(&threads[i], NULL, run, &copiers[i]) != 0) {
            perror("core-copy");
            exit(3);
        }
    }
    for (int i = 0; i < n; i++) {
        pthread_join(threads[i], NULL);
        first = i == 0 || copiers[i].start < first ? copiers[i].start : first;
        last = i == 0 || copiers[i].end > last ? copiers[i].end : last;
    }
    return (double)n * COPIES * (double)bytes / (last - first);
}

int main(int argc, char **argv)
{
    copier copiers[2] = {{0}};
    if (argc != 3) {
        fputs("usage: core-copy CORE CORE\n"
              "Prints GB/s copied by the first core, and by both at once.\n",
              stderr);
        return 2;
    }
    for (int i = 0; i < 2; i++) {
        copiers[i].core = atoi(argv[i + 1]);
        if (!perf_pool_shape(&copiers[i].pool, bytes, bytes, 0, PERF_MEM_HUGE) ||
            !perf_pool_alloc(&copiers[i].pool)) {
            fputs("core-copy: no memory\n", stderr);
            return 3;
        }
    }
    double one = rate(copiers, 1);
    double two = rate(copiers, 2);
    perf_pool_report(&copiers[0].pool);
    printf("%.2f %.2f\n", one * 1e-9, two * 1e-9);
    return 0;
}
