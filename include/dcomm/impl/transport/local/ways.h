/* ways.h - two ways of moving the same bytes, of which now and then both are timed. Which is faster
 * depends on where the bytes are and who has read them last, and nobody says either. */
#ifndef DCOMMI_WAYS_H
#define DCOMMI_WAYS_H

#include "../../base/util.h"

/* Both are tried at every so manieth use, and sooner at first. A prime, so that the same piece of
 * an operation does not always come to be tried. */
#define DCOMMI_WAYS_TRIALS 61
#define DCOMMI_WAYS_TRIALS_FIRST 8

typedef struct dcommi_ways {
    unsigned uses;
    bool second;    /* it is faster */
    double time[2]; /* s/byte of the last trials */
} dcommi_ways;

/* One use. */
typedef struct dcommi_way {
    bool second, timed;
    double start;
} dcommi_way;

static inline dcommi_way dcommi_ways_begin(dcommi_ways *w)
{
    unsigned every = w->uses < DCOMMI_WAYS_TRIALS ? DCOMMI_WAYS_TRIALS_FIRST : DCOMMI_WAYS_TRIALS;
    unsigned turn = w->uses++ % every;
    dcommi_way way = {.second = turn < 2 ? turn == 1 : w->second, .timed = turn < 2};
    way.start = way.timed ? dcommi_now() : 0;
    return way;
}

/* `len` bytes have been moved. The second way is taken where the first takes more than `worth`
 * times as long. */
static inline void dcommi_ways_end(dcommi_ways *w, const dcommi_way *way, size_t len, double worth)
{
    if (!way->timed) {
        return;
    }
    double time = (dcommi_now() - way->start) / (double)len, *mean = &w->time[way->second];
    if (w->uses > 2) { /* what takes very long was interrupted */
        time = *mean + ((time < 2 * *mean ? time : 2 * *mean) - *mean) / 4;
    }
    *mean = time;
    w->second = way->second ? w->time[0] > worth * time : w->second;
}

#endif
