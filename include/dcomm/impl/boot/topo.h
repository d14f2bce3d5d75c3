/* topo.h - finds with hwloc where on its machine this process runs. */
#ifndef DCOMMI_TOPO_H
#define DCOMMI_TOPO_H

#include "../base/captured.h"
#include "../transport/transport.h"
#include "host.h"
#include "place.h"

#include <hwloc.h>
#include <sched.h>

/* Return the format of an lstopo XML file (1, 2 or 3, as hwloc's major version), or 0 if the file
 * does not say. */
static int dcommi_topo_format(const char *xml)
{
    char head[512];
    const ssize_t n = dcommi_sys_load(xml, head, sizeof head - 1);
    head[n > 0 ? n : 0] = 0;
    static const char key[] = "<topology version=\"";
    const char *at = strstr(head, key);
    return at != NULL ? atoi(at + sizeof key - 1) : 0;
}

static dcomm_status dcommi_topo_unread(const char *xml, int error)
{
    int format = dcommi_topo_format(xml), known = (int)(hwloc_get_api_version() >> 16);
    return format > known
               ? dcommi_fail(DCOMM_ERR_INVALID,
                             "%s has format %d of lstopo's files, but the installed hwloc reads "
                             "formats up to %d: install hwloc %d, or write the file with an "
                             "lstopo of version %d",
                             xml, format, known, format, known)
               : dcommi_fail(DCOMM_ERR_INVALID, "%s is no topology that hwloc can read: %s", xml,
                             strerror(error));
}

/* Load the topology of this machine, or of the lstopo XML file `xml` if it is not NULL. */
static dcomm_status dcommi_topo_load(const char *xml, hwloc_topology_t *topology_p)
{
    /* These plugins start a graphics driver, only to repeat what PCI says. */
    static const char *const slow[] = {"opencl", "gl", "cuda", "nvml", "rsmi", "levelzero"};
    hwloc_topology_t topology;
    if (hwloc_topology_init(&topology) != 0) {
        return dcommi_fail(DCOMM_ERR_SYSTEM, "hwloc does not start: %s", strerror(errno));
    }
    for (size_t i = 0; i < sizeof slow / sizeof slow[0]; i++) { /* fails without the plugin */
        hwloc_topology_set_components(topology, HWLOC_TOPOLOGY_COMPONENTS_FLAG_BLACKLIST, slow[i]);
    }
    /* Load the whole machine, so that ranks in different cgroups number its parts alike. */
    hwloc_topology_set_flags(topology, HWLOC_TOPOLOGY_FLAG_INCLUDE_DISALLOWED);
    hwloc_topology_set_io_types_filter(topology, HWLOC_TYPE_FILTER_KEEP_IMPORTANT);
    if ((xml != NULL && hwloc_topology_set_xml(topology, xml) != 0) ||
        hwloc_topology_load(topology) != 0) {
        int error = errno;
        hwloc_topology_destroy(topology);
        return xml != NULL ? dcommi_topo_unread(xml, error)
                           : dcommi_fail(DCOMM_ERR_SYSTEM, "hwloc cannot read this machine: %s",
                                         strerror(error));
    }
    *topology_p = topology;
    return DCOMM_OK;
}

/* ---- a place in a topology ---- */

/* Return the index of the object of `type` that holds all of `set`. Return DCOMMI_PLACE_MANY if
 * none holds all, DCOMMI_PLACE_NONE if there is none. */
static int32_t dcommi_topo_within(hwloc_topology_t topology, hwloc_obj_type_t type,
                                  hwloc_const_cpuset_t set)
{
    int found = DCOMMI_PLACE_NONE;
    for (hwloc_obj_t o = NULL; (o = hwloc_get_next_obj_by_type(topology, type, o)) != NULL;) {
        if (hwloc_bitmap_isincluded(set, o->cpuset)) {
            return (int32_t)o->logical_index;
        }
        found = DCOMMI_PLACE_MANY;
    }
    return found;
}

/* Return the type of cache farthest from the cores, or HWLOC_OBJ_PU if there is no cache. */
static hwloc_obj_type_t dcommi_topo_last_cache(hwloc_topology_t topology)
{
    static const hwloc_obj_type_t types[] = {HWLOC_OBJ_L5CACHE, HWLOC_OBJ_L4CACHE,
                                             HWLOC_OBJ_L3CACHE, HWLOC_OBJ_L2CACHE,
                                             HWLOC_OBJ_L1CACHE};
    for (size_t i = 0; i < sizeof types / sizeof types[0]; i++) {
        if (hwloc_get_nbobjs_by_type(topology, types[i]) > 0) {
            return types[i];
        }
    }
    return HWLOC_OBJ_PU;
}

/* Return how near a device is to `set`: the depth of the smallest object that holds both. */
static int dcommi_topo_nearness(hwloc_topology_t topology, hwloc_obj_t device,
                                hwloc_const_cpuset_t set)
{
    hwloc_obj_t o = hwloc_get_non_io_ancestor_obj(topology, device);
    while (o != NULL && o->parent != NULL && !hwloc_bitmap_isincluded(set, o->cpuset)) {
        o = o->parent;
    }
    return o != NULL ? o->depth : -1;
}

/* Return true if a PCI device can compute. The screen chip of many servers cannot. */
static bool dcommi_topo_is_gpu(const struct hwloc_pcidev_attr_s *pci)
{
    bool maker = pci->vendor_id == 0x10de || pci->vendor_id == 0x1002;
    return pci->class_id == 0x0302 || pci->class_id == 0x1200 ||
           (maker && pci->class_id >> 8 == 0x03);
}

/* Find the PCI address of the nearest GPU. */
static void dcommi_topo_gpu(hwloc_topology_t topology, hwloc_const_cpuset_t set, char name[16])
{
    int best = -1;
    name[0] = 0;
    for (hwloc_obj_t o = NULL; (o = hwloc_get_next_pcidev(topology, o)) != NULL;) {
        int near =
            dcommi_topo_is_gpu(&o->attr->pcidev) ? dcommi_topo_nearness(topology, o, set) : -1;
        if (near > best) {
            const struct hwloc_pcidev_attr_s *pci = &o->attr->pcidev;
            best = near;
            snprintf(name, 16, "%04x:%02x:%02x.%x", (unsigned)pci->domain & 0xffff, pci->bus,
                     pci->dev, (unsigned)pci->func & 0xf);
        }
    }
}

/* Find the device of the interface `wanted`, or the nearest one if `wanted` is NULL. Set `name` to
 * "" if the machine shows no device for it (the loopback, a bridge). */
static void dcommi_topo_nic(hwloc_topology_t topology, hwloc_const_cpuset_t set, const char *wanted,
                            char name[16])
{
    int best = -1;
    size_t len = wanted != NULL ? strcspn(wanted, ":") : 0; /* "mlx5_0:1" is a port of mlx5_0 */
    name[0] = 0;
    for (hwloc_obj_t o = NULL; (o = hwloc_get_next_osdev(topology, o)) != NULL;) {
        hwloc_obj_osdev_type_t type = o->attr->osdev.type;
        bool named =
            wanted == NULL || (strlen(o->name) == len && memcmp(o->name, wanted, len) == 0);
        int near = (type == HWLOC_OBJ_OSDEV_NETWORK || type == HWLOC_OBJ_OSDEV_OPENFABRICS) && named
                       ? dcommi_topo_nearness(topology, o, set)
                       : -1;
        if (near > best && strlen(o->name) < 16) {
            best = near;
            strcpy(name, o->name);
        }
    }
}

/* Fill in the place of a process that may run on `set`, which holds the system's numbers. */
static void dcommi_topo_locate(hwloc_topology_t topology, hwloc_const_cpuset_t set,
                               const char *iface, dcommi_site *place)
{
    memset(place, 0, sizeof *place);
    place->package = dcommi_topo_within(topology, HWLOC_OBJ_PACKAGE, set);
    place->numa = dcommi_topo_within(topology, HWLOC_OBJ_NUMANODE, set);
    place->cache = dcommi_topo_within(topology, dcommi_topo_last_cache(topology), set);
    place->core = dcommi_topo_within(topology, HWLOC_OBJ_CORE, set);
    place->cpus = (int32_t)dcommi_max64(hwloc_bitmap_weight(set), 0);
    place->unknown = hwloc_bitmap_last(set) >= DCOMMI_PLACE_CPUS;
    for (int i = hwloc_bitmap_first(set); i >= 0 && i < DCOMMI_PLACE_CPUS;
         i = hwloc_bitmap_next(set, i)) {
        place->mask[i / 64] |= (uint64_t)1 << (i % 64);
    }
    dcommi_topo_nic(topology, set, iface, place->nic);
    dcommi_topo_gpu(topology, set, place->gpu);
}

/* ---- this process ---- */

/* Make the place unknown. This is no error: hwloc may be unable to read the machine. */
static void dcommi_topo_nowhere(dcommi_site *place)
{
    memset(place, 0, sizeof *place);
    place->package = place->numa = place->cache = place->core = DCOMMI_PLACE_NONE;
    place->unknown = 1;
}

/* Fill in the place of a thread that may run on `set`, clipped to the topology. If nothing is
 * left, use the whole topology. */
static void dcommi_topo_clip(hwloc_topology_t topology, hwloc_cpuset_t set, const char *iface,
                             dcommi_site *place)
{
    hwloc_const_cpuset_t all = hwloc_topology_get_topology_cpuset(topology);
    hwloc_bitmap_and(set, set, all);
    if (hwloc_bitmap_iszero(set)) {
        hwloc_bitmap_copy(set, all);
    }
    dcommi_topo_locate(topology, set, iface, place);
}

/* The last result, for programs that create several contexts: the machine stays the same. */
typedef struct dcommi_topo_memory {
    pthread_mutex_t lock;
    bool known;
    hwloc_cpuset_t set;
    dcommi_iface iface;
    dcommi_site place;
} dcommi_topo_memory;

static void dcommi_topo_machine(hwloc_cpuset_t set, const char *iface, dcommi_site *place)
{
    static dcommi_topo_memory last = {.lock = PTHREAD_MUTEX_INITIALIZER};
    hwloc_topology_t topology = NULL;
    pthread_mutex_lock(&last.lock);
    if (!last.known || !hwloc_bitmap_isequal(set, last.set) || strcmp(iface, last.iface) != 0) {
        dcommi_topo_nowhere(&last.place);
        strcpy(last.iface, iface);
        last.set = last.set != NULL ? last.set : hwloc_bitmap_alloc();
        last.known = last.set != NULL && hwloc_bitmap_copy(last.set, set) == 0;
        dcommi_topo_load(NULL, &topology);
        if (topology != NULL) {
            dcommi_topo_clip(topology, set, iface, &last.place);
            hwloc_topology_destroy(topology);
        }
        last.place.machine = dcommi_host_machine();
    }
    *place = last.place;
    pthread_mutex_unlock(&last.lock);
}

/* Add to `set` the hardware threads on which the kernel lets this thread run. */
static void dcommi_topo_allowed(hwloc_cpuset_t set)
{
    enum { BYTES = 8192 / 8 };
    cpu_set_t *mine = dcommi_alloc(BYTES);
    if (mine != NULL && sched_getaffinity(0, BYTES, mine) == 0) {
        for (int i = 0; i < BYTES * 8; i++) {
            if (CPU_ISSET_S((size_t)i, BYTES, mine)) {
                hwloc_bitmap_set(set, (unsigned)i);
            }
        }
    }
    dcommi_free(mine);
}

/* Find this thread's place. `iface` is the context's interface, or "". DCOMM_TOPO_XML names a file
 * that replaces the machine. DCOMM_TOPO_CPUS then lists the hardware threads of this rank. */
static dcomm_status dcommi_topo_here(const char *iface, dcommi_site *place)
{
    const char *xml = dcommi_env("DCOMM_TOPO_XML"), *given = dcommi_env("DCOMM_TOPO_CPUS");
    hwloc_topology_t topology = NULL;
    dcommi_captured_warn_host();
    hwloc_cpuset_t set = hwloc_bitmap_alloc();
    dcommi_topo_nowhere(place);
    if (set == NULL) {
        return dcommi_fail(DCOMM_ERR_NO_MEMORY, "no memory for a set of processors");
    }
    dcommi_topo_allowed(set);
    dcomm_status status = DCOMM_OK;
    if (xml == NULL) {
        dcommi_topo_machine(set, iface, place);
    } else {
        if (given != NULL && hwloc_bitmap_list_sscanf(set, given) < 0) {
            status = dcommi_fail(DCOMM_ERR_INVALID,
                                 "environment variable DCOMM_TOPO_CPUS=\"%.64s\": it must be a "
                                 "list of hardware threads, such as 0-3,8",
                                 given);
        } else {
            status = dcommi_topo_load(xml, &topology);
        }
        if (topology != NULL) {
            dcommi_topo_clip(topology, set, NULL, place);
            hwloc_topology_destroy(topology);
        }
    }
    hwloc_bitmap_free(set);
    return status;
}

#endif
