/* here.h - finds where on its machine this process runs. With DCOMM_NO_HWLOC it finds only the
 * hardware threads. */
#ifndef DCOMMI_HERE_H
#define DCOMMI_HERE_H

#ifndef DCOMM_NO_HWLOC
#include "topo.h"
#else
#include "host.h"
#include "place.h"

#include <sched.h>

/* Find this thread's place on a machine without packages, caches, cores and devices. */
static dcomm_status dcommi_topo_here(const char *iface, dcommi_site *place)
{
    enum { CPUS = 8192 };
    cpu_set_t mine[CPUS / CPU_SETSIZE];
    (void)iface;
    memset(place, 0, sizeof *place);
    place->package = place->numa = place->cache = place->core = DCOMMI_PLACE_NONE;
    place->machine = dcommi_host_machine();
    if (dcommi_env("DCOMM_TOPO_XML") != NULL) {
        return dcommi_fail(DCOMM_ERR_UNSUPPORTED,
                           "environment variable DCOMM_TOPO_XML needs hwloc, which this program, "
                           "compiled with DCOMM_NO_HWLOC, leaves out");
    }
    if (sched_getaffinity(0, sizeof mine, mine) != 0) {
        place->unknown = 1;
        return DCOMM_OK;
    }
    place->cpus = (int32_t)CPU_COUNT_S(sizeof mine, mine);
    for (size_t i = 0; i < CPUS; i++) {
        const bool runs = CPU_ISSET_S(i, sizeof mine, mine);
        if (runs && i < DCOMMI_PLACE_CPUS) {
            place->mask[i / 64] |= (uint64_t)1 << (i % 64);
        }
        place->unknown |= runs && i >= DCOMMI_PLACE_CPUS;
    }
    return DCOMM_OK;
}
#endif

#endif
