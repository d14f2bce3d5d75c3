/* busy.h - detects that other programs use the processors of this machine during a measurement.
 * The tools use it without the rest of the library. */
#ifndef DCOMMI_BUSY_H
#define DCOMMI_BUSY_H

#include <stdbool.h>
#include <stdio.h>
#include <unistd.h>

/* The scheduler took a core away if the median of a measurement exceeds its minimum by both: */
#define DCOMMI_BUSY_TIMES 2.0   /* factor */
#define DCOMMI_BUSY_MORE_S 2e-5 /* seconds */

/* `looks` counts samples of the running threads. `crowds` counts the samples with more threads
 * than ours and than cores. */
typedef struct dcommi_busy {
    int looks, crowds;
} dcommi_busy;

/* Return how many threads of this machine run now or wait for a processor, 0 if unknown. */
static inline int dcommi_busy_running(void)
{
    int running = 0;
    FILE *file = fopen("/proc/loadavg", "re");
    if (file != NULL) {
        if (fscanf(file, "%*s %*s %*s %d/", &running) != 1) {
            running = 0;
        }
        fclose(file);
    }
    return running;
}

/* Take a sample; `ours` is the number of our threads that run. */
static inline void dcommi_busy_look(dcommi_busy *b, int ours)
{
    const int running = dcommi_busy_running();
    b->looks += running > 0;
    b->crowds += running > ours && running > sysconf(_SC_NPROCESSORS_ONLN);
}

/* Return true if most samples found other programs' threads. */
static inline bool dcommi_busy_crowded(const dcommi_busy *b)
{
    return 2 * b->crowds > b->looks;
}

/* Return true if `least` and `median`, in seconds, show that a core was taken away. */
static inline bool dcommi_busy_disturbed(double least, double median)
{
    return median > DCOMMI_BUSY_TIMES * least && median - least > DCOMMI_BUSY_MORE_S;
}

#endif
