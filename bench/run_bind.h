/* run_bind.h - choose the cores of a local rank. */
#ifndef RUN_BIND_H
#define RUN_BIND_H

#include "numbers.h"

#include <sched.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum run_bind { RUN_BIND_AUTO, RUN_BIND_SLICE, RUN_BIND_CORE, RUN_BIND_NONE };

#define RUN_CPUS_MAX 8192

typedef struct run_cpu {
    int cpu, package, core;
    int thread; /* number of the thread within its core, from 0 */
} run_cpu;

/* The CPUs that this process may use, sorted by package and core. So the CPUs of a slice share
 * caches. */
typedef struct run_cpus {
    run_cpu cpu[RUN_CPUS_MAX];
    int count;
    int cores;
} run_cpus;

static bool run_bind_parse(const char *text, enum run_bind *bind)
{
    static const char *const names[] = {"auto", "slice", "core", "none"};
    int which = 0;
    bool good = numbers_word(text, names, 4, &which);
    *bind = (enum run_bind)which;
    return good;
}

static int run_bind_topology(int cpu, const char *name, int otherwise)
{
    char path[128];
    int value = otherwise;
    snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu%d/topology/%s", cpu, name);
    FILE *f = fopen(path, "r");
    if (f != NULL) {
        if (fscanf(f, "%d", &value) != 1) {
            value = otherwise;
        }
        fclose(f);
    }
    return value;
}

static int run_bind_compare(const void *left, const void *right)
{
    const run_cpu *a = left, *b = right;
    if (a->package != b->package) {
        return a->package < b->package ? -1 : 1;
    }
    if (a->core != b->core) {
        return a->core < b->core ? -1 : 1;
    }
    return a->cpu < b->cpu ? -1 : a->cpu > b->cpu;
}

/* Number the threads of each core, once all CPUs are listed. */
static void run_bind_sort(run_cpus *cpus)
{
    qsort(cpus->cpu, (size_t)cpus->count, sizeof cpus->cpu[0], run_bind_compare);
    cpus->cores = 0;
    for (int i = 0; i < cpus->count; i++) {
        run_cpu *c = &cpus->cpu[i];
        bool same = i > 0 && c->package == c[-1].package && c->core == c[-1].core;
        c->thread = same ? c[-1].thread + 1 : 0;
        cpus->cores += !same;
    }
}

static void run_bind_read(run_cpus *cpus)
{
    static cpu_set_t mask[RUN_CPUS_MAX / CPU_SETSIZE];
    cpus->count = 0;
    cpus->cores = 0;
    if (sched_getaffinity(0, sizeof mask, mask) != 0) {
        return;
    }
    for (int i = 0; i < RUN_CPUS_MAX; i++) {
        if (CPU_ISSET_S((size_t)i, sizeof mask, mask)) {
            cpus->cpu[cpus->count++] =
                (run_cpu){.cpu = i,
                          .package = run_bind_topology(i, "physical_package_id", 0),
                          .core = run_bind_topology(i, "core_id", i)};
        }
    }
    run_bind_sort(cpus);
}

/* Return the binding that AUTO means for `ranks` ranks that have these CPUs to themselves. If
 * there are more ranks than cores, do not bind: the scheduler shares cores better than a fixed
 * assignment. */
static enum run_bind run_bind_choose(const run_cpus *cpus, enum run_bind bind, int ranks)
{
    return bind != RUN_BIND_AUTO ? bind : ranks > cpus->cores ? RUN_BIND_NONE : RUN_BIND_SLICE;
}

/* Return true if rank `rank` of `ranks` gets a CPU. The CPU is thread `thread` of core number
 * `core`, and has number `in_turn` if CPUs are sorted by thread first. */
static bool run_bind_gets(const run_cpus *cpus, enum run_bind bind, int rank, int ranks, int core,
                          int thread, int in_turn)
{
    if (bind == RUN_BIND_NONE) {
        return true;
    }
    if (ranks > cpus->cores) { /* one hardware thread per rank, round robin */
        return in_turn == rank % cpus->count;
    }
    if (bind == RUN_BIND_CORE) {
        return core == (int)((long)rank * cpus->cores / ranks) && thread == 0;
    }
    return core >= (int)((long)rank * cpus->cores / ranks) &&
           core < (int)((long)(rank + 1) * cpus->cores / ranks);
}

/* Set mask to the CPUs of rank `rank` of `ranks` on this machine. */
static void run_bind_mask(const run_cpus *cpus, enum run_bind bind, int rank, int ranks,
                          cpu_set_t mask[RUN_CPUS_MAX / CPU_SETSIZE])
{
    memset(mask, 0, RUN_CPUS_MAX / 8);
    int core = -1;
    for (int i = 0; i < cpus->count; i++) {
        const run_cpu *c = &cpus->cpu[i];
        core += c->thread == 0;
        int in_turn = 0; /* first threads of all cores come before second threads */
        for (int j = 0; j < cpus->count; j++) {
            const run_cpu *d = &cpus->cpu[j];
            in_turn += d->thread < c->thread || (d->thread == c->thread && j < i);
        }
        if (run_bind_gets(cpus, bind, rank, ranks, core, c->thread, in_turn)) {
            CPU_SET_S((size_t)c->cpu, RUN_CPUS_MAX / 8, mask);
        }
    }
}

/* Bind the calling process as rank `rank` of `ranks` on this machine. */
static inline void run_bind_apply(const run_cpus *cpus, enum run_bind bind, int rank, int ranks)
{
    static cpu_set_t mask[RUN_CPUS_MAX / CPU_SETSIZE];
    if (bind == RUN_BIND_NONE || cpus->count == 0) {
        return;
    }
    run_bind_mask(cpus, bind, rank, ranks, mask);
    if (sched_setaffinity(0, sizeof mask, mask) != 0 && rank == 0) {
        perror("dcomm-run: ranks are not bound to cores");
    }
}

#endif
