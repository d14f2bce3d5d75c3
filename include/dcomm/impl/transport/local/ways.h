/* ways.h - chooses between two ways to move the same bytes, by timing both now and then. The
 * faster way depends on where the bytes are and who read them last, which nothing tells us. */
#ifndef DCOMMI_WAYS_H
#define DCOMMI_WAYS_H

#include "../../base/util.h"

/* Number of uses after which both ways are tried again; fewer at first. It is a prime, so that
 * trials do not always meet the same piece of an operation. */
#define DCOMMI_WAYS_TRIALS 61
#define DCOMMI_WAYS_TRIALS_FIRST 8

typedef struct dcommi_ways {
    unsigned uses;
    bool second;    /* the second way is faster */
    double time[2]; /* mean of the last trials of each way, in s/byte */
} dcommi_ways;

/* One use of a dcommi_ways. */
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

/* End a use that has moved `len` bytes. Prefer the second way if the first takes more than `worth`
 * times as long. */
static inline void dcommi_ways_end(dcommi_ways *w, const dcommi_way *way, size_t len, double worth)
{
    if (!way->timed) {
        return;
    }
    double time = (dcommi_now() - way->start) / (double)len, *mean = &w->time[way->second];
    if (w->uses > 2) { /* bound the time: a very long trial was interrupted */
        time = *mean + ((time < 2 * *mean ? time : 2 * *mean) - *mean) / 4;
    }
    *mean = time;
    w->second = way->second ? w->time[0] > worth * time : w->second;
}

#endif
