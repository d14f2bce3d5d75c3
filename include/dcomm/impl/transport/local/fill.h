/* fill.h - copies into memory that a peer reads next. Where the reader's core is far, each line
 * that it has read is slow to take back, and storing past the caches is faster; where it is near,
 * it reads what is in a cache sooner, the more so with little traffic. What is copied may come from
 * memory, where it is better asked for ahead of time, or be in a cache, where that costs some. */
#ifndef DCOMMI_FILL_H
#define DCOMMI_FILL_H

#include "../../device/host.h"
#include "ways.h"

#define DCOMMI_FILL_LEAST 8192 /* bytes: nontemporal stores do not pay for shorter copies */
/* Ratio of times above which copies go past the caches. Between far cores the caches take about
 * three times as long, between near ones a little less than nontemporal stores. */
#define DCOMMI_FILL_FAR 1.75
#define DCOMMI_AHEAD_LEAST 32768 /* bytes: of shorter copies, most prefetches would be useless */

typedef struct dcommi_filler {
    dcommi_ways past;  /* by way of the caches, and past them */
    dcommi_ways ahead; /* as it is, and asked for ahead of time */
} dcommi_filler;

/* By way of the caches. */
static inline void dcommi_fill_near(dcommi_filler *f, void *to, const void *data, size_t len)
{
    if (len < DCOMMI_AHEAD_LEAST || dcommi_isa_get() == DCOMMI_ISA_PORTABLE) {
        dcommi_host_copy(to, data, len);
        return;
    }
    dcommi_way way = dcommi_ways_begin(&f->ahead);
    if (way.second) {
        dcommi_host_copy_ahead(to, data, len);
    } else {
        dcommi_host_copy(to, data, len);
    }
    dcommi_ways_end(&f->ahead, &way, len, 1);
}

/* All of it is there before what is stored later. */
static inline void dcommi_fill(dcommi_filler *f, void *to, const void *data, size_t len)
{
    dcommi_way way = dcommi_ways_begin(&f->past);
    if (way.second) {
        dcommi_host_copy_past(to, data, len);
    } else if (way.timed) { /* as a fold stores: `rep movsb` would not show the distance */
        dcommi_host_copy_plain(to, data, len);
    } else {
        dcommi_fill_near(f, to, data, len);
    }
    dcommi_ways_end(&f->past, &way, len, DCOMMI_FILL_FAR);
}

#endif
