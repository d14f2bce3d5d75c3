/* core-pair.c - the time in which a cache line goes from one core to another and back.
 *
 * A virtual machine's cores may be two hardware threads of one core now and two distant cores a
 * minute later; every short message then takes twice as long. This tells the two apart. */
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

/* Short batches: some fit between two turns of whatever else wants the cores. */
enum { TRIPS = 200, BATCHES = 500 };

static _Alignas(128) atomic_int ball;
static _Alignas(128) atomic_int bound; /* threads on their cores; negative: one could not be */
static int cores[2];

static double now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return 1e9 * (double)t.tv_sec + (double)t.tv_nsec;
}

static int bind_to(int core)
{
    cpu_set_t mask;
    CPU_ZERO(&mask);
    CPU_SET(core, &mask);
    int result = pthread_setaffinity_np(pthread_self(), sizeof mask, &mask);
    atomic_fetch_add(&bound, result == 0 ? 1 : -100);
    while (atomic_load(&bound) == 1) {
    }
    return atomic_load(&bound) == 2;
}

static void *echo(void *unused)
{
    (void)unused;
    if (bind_to(cores[1])) {
        for (int i = 0; i < TRIPS * BATCHES; i++) {
            while (atomic_load_explicit(&ball, memory_order_acquire) != 2 * i + 1) {
            }
            atomic_store_explicit(&ball, 2 * i + 2, memory_order_release);
        }
    }
    return NULL;
}

int main(int argc, char **argv)
{
    pthread_t thread;
    double best = 1e18;
    if (argc != 3) {
        fputs("usage: core-pair CORE CORE\nPrints nanoseconds, of the fastest of 500 batches.\n",
              stderr);
        return 2;
    }
    for (int i = 0; i < 2; i++) {
        cores[i] = atoi(argv[i + 1]);
    }
    if (cores[0] == cores[1] || cores[0] < 0 || cores[1] < 0 || cores[0] >= CPU_SETSIZE ||
        cores[1] >= CPU_SETSIZE || pthread_create(&thread, NULL, echo, NULL) != 0 ||
        !bind_to(cores[0])) {
        fprintf(stderr, "core-pair: cannot run on cores %d and %d\n", cores[0], cores[1]);
        return 3;
    }
    for (int b = 0; b < BATCHES; b++) {
        double start = now_ns();
        for (int i = b * TRIPS; i < (b + 1) * TRIPS; i++) {
            atomic_store_explicit(&ball, 2 * i + 1, memory_order_release);
            while (atomic_load_explicit(&ball, memory_order_acquire) != 2 * i + 2) {
            }
        }
        double trip = (now_ns() - start) / TRIPS;
        best = trip < best ? trip : best;
    }
    pthread_join(thread, NULL);
    printf("%.1f\n", best);
    return 0;
}
