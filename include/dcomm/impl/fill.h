/* fill.h - copies into memory that a peer reads next, by way of the caches or past them. Where the
 * reader's core is far, each line that it has read is slow to take back, and storing past the
 * caches is faster; where it is near, it reads what is in a cache sooner, the more so with little
 * traffic. How far it is nobody says (virtual machines least of all), so now and then both ways are
 * timed: far, the plain way takes three times as long as the other, near a little less. */
#ifndef DCOMMI_FILL_H
#define DCOMMI_FILL_H

#include "device.h"
#include "util.h"

#define DCOMMI_FILL_LEAST 8192 /* bytes: what is shorter is no trouble */
#define DCOMMI_FILL_TRIALS 64  /* both ways are tried at every so manieth */
#define DCOMMI_FILL_FAR 1.75   /* times as long by way of the caches */

typedef struct dcommi_filler {
    unsigned fills;
    bool past;      /* they go past the caches */
    double time[2]; /* s/byte of the last ones by way of the caches, and past them */
} dcommi_filler;

/* All of it is there before what is stored later. */
static inline void dcommi_fill(dcommi_filler *f, void *to, const void *data, size_t len)
{
    unsigned turn = f->fills++ % DCOMMI_FILL_TRIALS;
    bool past = turn < 2 ? turn == 1 : f->past;
    double start = turn < 2 ? dcommi_now() : 0;
    if (past) {
        dcommi_host_copy_past(to, data, len);
    } else if (turn == 0) { /* as a fold stores: `rep movsb` would not show the distance */
        dcommi_host_copy_plain(to, data, len);
    } else {
        memcpy(to, data, len);
    }
    if (turn < 2) {
        double time = (dcommi_now() - start) / (double)len;
        f->time[turn] += (time - f->time[turn]) / (f->fills <= 2 ? 1 : 4);
        f->past = turn == 1 ? f->time[0] > DCOMMI_FILL_FAR * f->time[1] : f->past;
    }
}

#endif
