/* fill.h - copies into memory that a peer reads next. If the reader's core is far, lines that it
 * has read are slow to take back, and nontemporal stores are faster. If it is near, it reads
 * sooner from a cache, above all with little traffic. The source may be in memory, where
 * prefetching helps, or in a cache, where prefetching costs some. So ways.h times both choices. */
#ifndef DCOMMI_FILL_H
#define DCOMMI_FILL_H

#include "../../device/host.h"
#include "ways.h"

#define DCOMMI_FILL_LEAST 8192 /* bytes: nontemporal stores do not pay for shorter copies */
/* Ratio of times above which copies use nontemporal stores. Stores through the caches take several
 * times as long between far cores, and a little less between near ones. */
#define DCOMMI_FILL_FAR 1.75
#define DCOMMI_AHEAD_LEAST 32768 /* bytes: in shorter copies most prefetches are useless */

typedef struct dcommi_filler {
    dcommi_ways past;  /* through the caches, or by nontemporal stores */
    dcommi_ways ahead; /* without prefetching, or with it */
} dcommi_filler;

/* Copy through the caches, with or without prefetching. */
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

/* Copy, by the faster way. The copy becomes visible before later stores. */
static inline void dcommi_fill(dcommi_filler *f, void *to, const void *data, size_t len)
{
    dcommi_way way = dcommi_ways_begin(&f->past);
    if (way.second) {
        dcommi_host_copy_past(to, data, len);
    } else if (way.timed) { /* store as a fold does: `rep movsb` would not show the distance */
        dcommi_host_copy_plain(to, data, len);
    } else {
        dcommi_fill_near(f, to, data, len);
    }
    dcommi_ways_end(&f->past, &way, len, DCOMMI_FILL_FAR);
}

#endif
