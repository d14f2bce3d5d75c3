/* tuning_default.h - the numbers of the model where nothing was measured. They stand here only. */
#ifndef DCOMMI_TUNING_DEFAULT_H
#define DCOMMI_TUNING_DEFAULT_H

#include "../../tune.h"
#include "../base/util.h"

/* Return a link within a host: two cores of a server of 2023 that share a cache. further_ps: added
 * to the latency of ranks that are further apart. */
static dcomm_link dcommi_link_near(int64_t further_ps)
{
    dcomm_link link = {
        .alpha_ps = 220000 + further_ps,
        .overhead_ps = 70000,
        .signal_ps = 220000 + further_ps,
        .tell_ps = 60000,
        .eager_bytes = 32768,
        .by_core = 1,
        .message = {.n = 6,
                    .bytes = {0, 1024, 8192, 32768, 65536, 1 << 20},
                    .ps = {0, 60000, 350000, 1300000, 6000000, 95000000}},
        .fold = {.n = 3, .bytes = {0, 8192, 1 << 20}, .ps = {0, 300000, 40000000}},
        .read = {.n = 4,
                 .bytes = {0, 8192, 65536, 1 << 20},
                 .ps = {500000, 1200000, 6000000, 95000000}},
        .reduce = {.n = 4,
                   .bytes = {0, 8192, 65536, 1 << 20},
                   .ps = {500000, 1500000, 8000000, 125000000}},
    };
    return link;
}

/* Return a link between hosts: TCP at 10 Gbit/s. */
static dcomm_link dcommi_link_far(void)
{
    dcomm_link link = {
        .alpha_ps = 20000000,
        .overhead_ps = 2000000,
        .signal_ps = 20000000,
        .tell_ps = 2000000,
        .eager_bytes = 65536,
        .message = {.n = 2, .bytes = {0, 1 << 20}, .ps = {0, 840000000}},
        .fold = {.n = 3, .bytes = {0, 8192, 1 << 20}, .ps = {0, 500000, 70000000}},
        .shared = {.n = 2, .bytes = {0, 1 << 20}, .ps = {0, 840000000}},
    };
    link.read = link.reduce = link.message;
    return link;
}

DCOMM_API void dcomm_tuning_default(dcomm_tuning *tuning)
{
    static const int64_t further[DCOMM_LINK_COUNT] = {0, 150000, 60000, 20000, 0, 0};
    if (tuning == NULL) {
        return;
    }
    memset(tuning, 0, sizeof *tuning);
    tuning->link[DCOMM_LINK_HOST] = dcommi_link_far();
    for (int k = DCOMM_LINK_HOST + 1; k < DCOMM_LINK_COUNT; k++) {
        tuning->link[k] = dcommi_link_near(further[k]);
    }
    tuning->copy = (dcomm_curve){
        .n = 4, .bytes = {0, 8192, 262144, 1 << 20}, .ps = {20000, 200000, 12000000, 70000000}};
    tuning->fold = (dcomm_curve){
        .n = 4, .bytes = {0, 8192, 262144, 1 << 20}, .ps = {30000, 400000, 18000000, 90000000}};
    tuning->step_ps = 15000;
    tuning->call_ps = 100000;
    tuning->connections = 1;
    snprintf(tuning->source, sizeof tuning->source, "built in");
}

#endif
