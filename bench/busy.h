/* busy.h - find out if other programs run on this machine. */
#ifndef BUSY_H
#define BUSY_H

#include "../include/dcomm/impl/base/busy.h"

#define BUSY_SHARE 0.25   /* if more rows than this share are disturbed, something else ran */
enum { BUSY_TEXT = 200 }; /* bytes of a sentence */

/* Signs of other programs while a tool measured. */
typedef struct busy_seen {
    int ours; /* number of ranks on this host; 0: this rank does not look */
    dcommi_busy others;
    int rows, disturbed;
} busy_seen;

/* Look for other programs that want our processors. */
static inline void busy_look(busy_seen *b)
{
    if (b->ours > 0) {
        dcommi_busy_look(&b->others, b->ours);
    }
}

/* Note a row's times, in seconds. If ranks share processors, ignore the times: the ranks disturb
 * each other. */
static inline void busy_row(busy_seen *b, double least, double median)
{
    if (b->ours > 0 && b->ours <= sysconf(_SC_NPROCESSORS_ONLN)) {
        b->rows++;
        b->disturbed += dcommi_busy_disturbed(least, median);
    }
}

/* Return true if the machine was busy, and write a sentence about it to text. */
static inline bool busy_was(const busy_seen *b, char text[BUSY_TEXT])
{
    bool crowded = dcommi_busy_crowded(&b->others), disturbed = b->disturbed > BUSY_SHARE * b->rows;
    int used = snprintf(text, BUSY_TEXT, "this machine was busy while it was measured:");
    if (crowded) {
        snprintf(text + used, (size_t)(BUSY_TEXT - used), " others ran in %d of %d looks",
                 b->others.crowds, b->others.looks);
    } else if (disturbed) {
        snprintf(text + used, (size_t)(BUSY_TEXT - used),
                 " %d of %d medians are over twice the minimum", b->disturbed, b->rows);
    }
    return crowded || disturbed;
}

/* Print the sentence if the machine was busy. Return true if it was. */
static inline bool busy_print(const busy_seen *b)
{
    char text[BUSY_TEXT];
    const bool was = busy_was(b, text);
    if (was) {
        printf("# %s\n", text);
    }
    return was;
}

#endif
