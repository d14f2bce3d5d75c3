/* busy.h - signs that other programs use the processors of this machine while something is
 * measured. The tools use it without the rest of the library. */
#ifndef DCOMMI_BUSY_H
#define DCOMMI_BUSY_H

#include <stdbool.h>
#include <stdio.h>
#include <unistd.h>

#define DCOMMI_BUSY_TIMES 2.0   /* a measurement whose median is so many times its minimum, */
#define DCOMMI_BUSY_MORE_S 2e-5 /* and so much more: the scheduler took a core away */

/* `looks` counts looks at running threads; `crowds` those that found more than ours and cores. */
typedef struct dcommi_busy {
    int looks, crowds;
} dcommi_busy;

/* Return how many threads of this machine run now, or wait for a processor; 0: unknown. */
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

/* Look whether other programs than our `ours` threads want our processors. */
static inline void dcommi_busy_look(dcommi_busy *b, int ours)
{
    const int running = dcommi_busy_running();
    b->looks += running > 0;
    b->crowds += running > ours && running > sysconf(_SC_NPROCESSORS_ONLN);
}

/* Return true if others ran in most looks. */
static inline bool dcommi_busy_crowded(const dcommi_busy *b)
{
    return 2 * b->crowds > b->looks;
}

/* Return true if times in seconds tell of a core that was taken away. */
static inline bool dcommi_busy_disturbed(double least, double median)
{
    return median > DCOMMI_BUSY_TIMES * least && median - least > DCOMMI_BUSY_MORE_S;
}

#endif
