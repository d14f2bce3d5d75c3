/* topo_tree.h - show a machine as hwloc sees it: packages, NUMA nodes, last-level caches, cores,
 * network interfaces and GPUs. */
#ifndef TOPO_TREE_H
#define TOPO_TREE_H

#include "dcomm/all.h"
#include "perf_json.h"

/* Ranks to show in the tree: the set of hardware threads that each may run on. */
typedef struct tree_ranks {
    int n;
    hwloc_bitmap_t *set;
} tree_ranks;

static const char *tree_type(hwloc_topology_t topology, hwloc_obj_t o)
{
    switch (o->type) {
    case HWLOC_OBJ_MACHINE:
        return "machine";
    case HWLOC_OBJ_PACKAGE:
        return "package";
    case HWLOC_OBJ_NUMANODE:
        return "numa";
    case HWLOC_OBJ_CORE:
        return "core";
    case HWLOC_OBJ_PU: /* shown only if cores are unknown */
        return o->parent->type != HWLOC_OBJ_CORE ? "thread" : NULL;
    default:
        return o->type == dcommi_topo_last_cache(topology) ? "cache" : NULL;
    }
}

/* Format bytes as "16.0 GiB". */
static void tree_bytes(uint64_t bytes, char text[32])
{
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
    double value = (double)bytes;
    int unit = 0;
    for (; value >= 1024 && unit < 4; unit++) {
        value /= 1024;
    }
    snprintf(text, 32, value < 10 && unit > 0 ? "%.1f %s" : "%.0f %s", value, units[unit]);
}

static void tree_list(hwloc_const_bitmap_t set, char *text, size_t len)
{
    hwloc_bitmap_list_snprintf(text, len, set);
}

/* List the ranks for which o is the smallest shown object that holds all their threads. */
static void tree_rank_list(hwloc_topology_t topology, hwloc_obj_t o, const tree_ranks *ranks,
                           hwloc_bitmap_t list)
{
    hwloc_bitmap_zero(list);
    for (int r = 0; r < ranks->n; r++) {
        hwloc_obj_t at = hwloc_get_obj_covering_cpuset(topology, ranks->set[r]);
        while (at != NULL && at->parent != NULL && tree_type(topology, at) == NULL) {
            at = at->parent;
        }
        if (at == o) {
            hwloc_bitmap_set(list, (unsigned)r);
        }
    }
}

/* Return true if o is a network interface or a GPU, and set its type, name and PCI address. */
static bool tree_device(hwloc_obj_t o, const char **type, char name[64], char pci[32])
{
    *type = NULL;
    if (o->type != HWLOC_OBJ_PCI_DEVICE) {
        return false;
    }
    const struct hwloc_pcidev_attr_s *p = &o->attr->pcidev;
    snprintf(pci, 32, "%04x:%02x:%02x.%x", (unsigned)p->domain & 0xffff, p->bus, p->dev,
             (unsigned)p->func & 0xf);
    snprintf(name, 64, "%s", pci);
    for (hwloc_obj_t d = o->io_first_child; d != NULL; d = d->next_sibling) {
        if (d->type == HWLOC_OBJ_OS_DEVICE &&
            (d->attr->osdev.type == HWLOC_OBJ_OSDEV_NETWORK ||
             d->attr->osdev.type == HWLOC_OBJ_OSDEV_OPENFABRICS)) {
            *type = "nic";
            snprintf(name, 64, "%s", d->name);
        }
    }
    *type = *type == NULL && dcommi_topo_is_gpu(p) ? "gpu" : *type;
    return *type != NULL;
}

/* ---- text ---- */

static void tree_print_devices(hwloc_obj_t first, int indent)
{
    const char *type;
    char name[64], pci[32];
    for (hwloc_obj_t o = first; o != NULL; o = o->next_sibling) {
        if (tree_device(o, &type, name, pci)) {
            printf("%*s%s %s", indent, "", type, name);
            printf(strcmp(name, pci) != 0 ? ", PCI %s\n" : "\n", pci);
        }
        tree_print_devices(o->io_first_child, indent);
    }
}

static void tree_print(hwloc_topology_t topology, hwloc_obj_t o, const tree_ranks *ranks,
                       int indent)
{
    const char *type = tree_type(topology, o);
    if (type != NULL) {
        char size[32], list[256];
        printf("%*s%s", indent, "", type);
        if (o->type == HWLOC_OBJ_MACHINE) {
            int cores = hwloc_get_nbobjs_by_type(topology, HWLOC_OBJ_CORE);
            int threads = hwloc_get_nbobjs_by_type(topology, HWLOC_OBJ_PU);
            tree_bytes(o->total_memory, size);
            printf(": %d core%s, %d hardware thread%s, %s", cores, cores == 1 ? "" : "s", threads,
                   threads == 1 ? "" : "s", size);
        } else {
            printf(" %u", o->logical_index);
        }
        if (o->type == HWLOC_OBJ_NUMANODE) {
            tree_bytes(o->attr->numanode.local_memory, size);
            printf(": %s", size);
        } else if (strcmp(type, "cache") == 0) {
            tree_bytes(o->attr->cache.size, size);
            printf(": L%u, %s", o->attr->cache.depth, size);
        } else if (strcmp(type, "core") == 0 || strcmp(type, "thread") == 0) {
            tree_list(o->cpuset, list, sizeof list);
            printf(": cpu %s", list);
        }
        hwloc_bitmap_t here = hwloc_bitmap_alloc();
        tree_rank_list(topology, o, ranks, here);
        if (!hwloc_bitmap_iszero(here)) {
            tree_list(here, list, sizeof list);
            printf("   <- rank%s %s", hwloc_bitmap_weight(here) > 1 ? "s" : "", list);
        }
        hwloc_bitmap_free(here);
        putchar('\n');
        indent += 2;
    }
    for (hwloc_obj_t c = o->memory_first_child; c != NULL; c = c->next_sibling) {
        tree_print(topology, c, ranks, indent);
    }
    for (hwloc_obj_t c = o->first_child; c != NULL; c = c->next_sibling) {
        tree_print(topology, c, ranks, indent);
    }
    tree_print_devices(o->io_first_child, indent);
}

/* ---- JSON ---- */

static void tree_json_devices(perf_json *j, hwloc_obj_t first)
{
    const char *type;
    char name[64], pci[32];
    for (hwloc_obj_t o = first; o != NULL; o = o->next_sibling) {
        if (tree_device(o, &type, name, pci)) {
            perf_json_open(j, NULL, '{');
            perf_json_text(j, "type", type);
            perf_json_text(j, "name", name);
            perf_json_text(j, "pci", pci);
            perf_json_close(j, '}');
        }
        tree_json_devices(j, o->io_first_child);
    }
}

static void tree_json(perf_json *j, hwloc_topology_t topology, const char *key, hwloc_obj_t o);

static void tree_json_children(perf_json *j, hwloc_topology_t topology, hwloc_obj_t o)
{
    const hwloc_obj_t first[] = {o->memory_first_child, o->first_child};
    for (int i = 0; i < 2; i++) {
        for (hwloc_obj_t c = first[i]; c != NULL; c = c->next_sibling) {
            if (tree_type(topology, c) != NULL) {
                tree_json(j, topology, NULL, c);
            } else {
                tree_json_children(j, topology, c);
            }
        }
    }
    tree_json_devices(j, o->io_first_child);
}

static void tree_json(perf_json *j, hwloc_topology_t topology, const char *key, hwloc_obj_t o)
{
    char list[256];
    const char *type = tree_type(topology, o);
    tree_list(o->cpuset, list, sizeof list);
    perf_json_open(j, key, '{');
    perf_json_text(j, "type", type);
    perf_json_int(j, "index", o->logical_index);
    perf_json_text(j, "cpus", list);
    if (o->type == HWLOC_OBJ_NUMANODE || o->type == HWLOC_OBJ_MACHINE) {
        perf_json_int(j, "memory_bytes", (int64_t)o->total_memory);
    } else if (strcmp(type, "cache") == 0) {
        perf_json_int(j, "cache_bytes", (int64_t)o->attr->cache.size);
        perf_json_int(j, "cache_level", o->attr->cache.depth);
    }
    perf_json_open(j, "children", '[');
    tree_json_children(j, topology, o);
    perf_json_close(j, ']');
    perf_json_close(j, '}');
}

#endif
