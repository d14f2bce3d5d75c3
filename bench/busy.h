/* busy.h - looks at the other programs that run on this machine. */
#ifndef BUSY_H
#define BUSY_H

#include <stdbool.h>
#include <stdio.h>
#include <unistd.h>

#define BUSY_TIMES 2.0    /* a row whose median is so many times its minimum, */
#define BUSY_MORE_S 2e-5  /* and so much more: the scheduler took a core away */
#define BUSY_SHARE 0.25   /* of the rows: something else ran */
enum { BUSY_TEXT = 200 }; /* of a sentence */

/* Return how many threads of this machine run now, or wait for a CPU; 0: nobody knows. */
static inline int busy_running(void)
{
    int running = 0;
    FILE *f = fopen("/proc/loadavg", "r");
    if (f != NULL) {
        if (fscanf(f, "%*s %*s %*s %d/", &running) != 1) {
            running = 0;
        }
        fclose(f);
    }
    return running;
}

/* What was seen while a tool measured. */
typedef struct busy_seen {
    int ours; /* ranks on this host; 0: this rank does not look */
    int looks, crowds, rows, disturbed;
} busy_seen;

/* Look whether other programs want our processors. */
static inline void busy_look(busy_seen *b)
{
    int running = b->ours > 0 ? busy_running() : 0;
    b->looks += running > 0;
    b->crowds += running > b->ours && running > sysconf(_SC_NPROCESSORS_ONLN);
}

/* Note a row's times, in seconds. Ranks that share processors disturb each other: nothing is said
 * by their times. */
static inline void busy_row(busy_seen *b, double least, double median)
{
    if (b->ours > 0 && b->ours <= sysconf(_SC_NPROCESSORS_ONLN)) {
        b->rows++;
        b->disturbed += median > BUSY_TIMES * least && median - least > BUSY_MORE_S;
    }
}

/* Return true if the machine was busy, with a sentence. */
static inline bool busy_was(const busy_seen *b, char text[BUSY_TEXT])
{
    bool crowded = 2 * b->crowds > b->looks, disturbed = b->disturbed > BUSY_SHARE * b->rows;
    int used = snprintf(text, BUSY_TEXT, "this machine was busy while it was measured:");
    if (crowded) {
        snprintf(text + used, (size_t)(BUSY_TEXT - used), " others ran in %d of %d looks",
                 b->crowds, b->looks);
    } else if (disturbed) {
        snprintf(text + used, (size_t)(BUSY_TEXT - used),
                 " %d of %d medians are over twice the minimum", b->disturbed, b->rows);
    }
    return crowded || disturbed;
}

#endif
