/* run_busy.h - measure how much of this process's CPUs other programs use. */
#ifndef RUN_BUSY_H
#define RUN_BUSY_H

#include "../include/dcomm/impl/base/busy.h"
#include "run_bind.h"

#include <time.h>
#include <unistd.h>

#define RUN_BUSY_LOOKS 3 /* looks for other running programs, and the time between two looks: */
#define RUN_BUSY_APART_MS 3
#define RUN_BUSY_MS 200 /* then the time to measure how much they run */

static void run_busy_sleep(int ms)
{
    struct timespec t = {.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000L};
    nanosleep(&t, NULL);
}

/* Return the clock ticks for which `cpus` have worked since the machine started. */
static long long run_busy_ticks(const run_cpus *cpus)
{
    char line[256];
    long long sum = 0;
    FILE *f = fopen("/proc/stat", "r");
    while (f != NULL && fgets(line, sizeof line, f) != NULL) {
        long long user, nice, system, idle, wait, irq, soft, steal;
        int cpu;
        if (sscanf(line, "cpu%d %lld %lld %lld %lld %lld %lld %lld %lld", &cpu, &user, &nice,
                   &system, &idle, &wait, &irq, &soft, &steal) != 9) {
            continue;
        }
        for (int i = 0; i < cpus->count; i++) {
            sum += cpus->cpu[i].cpu == cpu ? user + nice + system + irq + soft + steal : 0;
        }
    }
    if (f != NULL) {
        fclose(f);
    }
    return sum;
}

/* Return how many cores' worth of `cpus` other programs use. It takes 0.2 s, but only if another
 * program runs. */
static double run_busy_cores(const run_cpus *cpus)
{
    bool somebody = false;
    for (int i = 0; i < RUN_BUSY_LOOKS && !somebody; i++) {
        run_busy_sleep(i > 0 ? RUN_BUSY_APART_MS : 0);
        somebody = dcommi_busy_running() > 1;
    }
    if (!somebody) {
        return 0;
    }
    struct timespec from, to;
    clock_gettime(CLOCK_MONOTONIC, &from);
    long long ticks = run_busy_ticks(cpus);
    run_busy_sleep(RUN_BUSY_MS);
    ticks = run_busy_ticks(cpus) - ticks;
    clock_gettime(CLOCK_MONOTONIC, &to);
    double seconds = (double)(to.tv_sec - from.tv_sec) + 1e-9 * (double)(to.tv_nsec - from.tv_nsec);
    return (double)ticks / (double)sysconf(_SC_CLK_TCK) / seconds;
}

#endif
