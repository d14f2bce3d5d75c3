/* topo_ranks.h - show ranks: their places, the groups that they form, and the order of rings. */
#ifndef TOPO_RANKS_H
#define TOPO_RANKS_H

#include "dcomm/all.h"
#include "perf_json.h"

/* The ranks of a communicator, or ranks that do not exist yet. */
typedef struct ranks_view {
    int n;
    const dcommi_groups *groups;
    const dcommi_site *sites;
    const dcomm_comm *comm; /* has the hosts' names; NULL: there is one host */
} ranks_view;

static const char *const ranks_levels[] = {"host", "package", "numa", "cache", "core"};

/* Return the hardware index of a rank's group of a kind; -1: it has no single index. */
static int ranks_index(const dcommi_site *p, uint8_t kind)
{
    return (int)dcommi_max64(kind == DCOMMI_LEVEL_HOST ? 0 : dcommi_place_index(p, kind), -1);
}

/* Format an index; "-" if it is negative. */
static const char *ranks_number(int32_t index, char text[16])
{
    snprintf(text, 16, index < 0 ? "-" : "%d", (int)index);
    return text;
}

static void ranks_print_table(const ranks_view *v)
{
    printf("%5s %5s %8s %5s %6s %5s %6s  %-15s %-15s %s\n", "rank", "host", "package", "numa",
           "cache", "core", "bound", "nic", "gpu", "cpus");
    for (int r = 0; r < v->n; r++) {
        const dcommi_site *p = &v->sites[r];
        char a[16], b[16], c[16], d[16], cpus[64];
        dcommi_place_cpu_list(p, cpus, sizeof cpus);
        printf("%5d %5d %8s %5s %6s %5s %6s  %-15s %-15s %s\n", r, dcommi_group_of(v->groups, 0, r),
               ranks_number(p->package, a), ranks_number(p->numa, b), ranks_number(p->cache, c),
               ranks_number(p->core, d),
               dcommi_place_unbound(v->groups, v->sites, r) ? "no" : "yes",
               p->nic[0] != 0 ? p->nic : "none", p->gpu[0] != 0 ? p->gpu : "none", cpus);
    }
}

/* Print the groups as a tree, one level below the other, with ranks as leaves. */
static void ranks_print_tree(const ranks_view *v)
{
    const dcommi_groups *g = v->groups;
    for (int i = 0; i < v->n; i++) {
        int r = g->order[i], before = i > 0 ? g->order[i - 1] : -1, level = 0;
        if (before >= 0) {
            level = dcommi_groups_depth(g, before, r);
        }
        for (; level < g->nlevels; level++) {
            int index = ranks_index(&v->sites[r], g->kind[level]);
            const char *name = level == 0 && v->comm != NULL ? dcomm_comm_hostname(v->comm, r) : "";
            printf("%*s%s %d", 2 * level, "", ranks_levels[g->kind[level]],
                   level == 0 ? dcommi_group_of(g, 0, r) : index);
            printf(name[0] != 0 ? " (%s)\n" : "\n", name);
        }
        char cpus[64];
        dcommi_place_cpu_list(&v->sites[r], cpus, sizeof cpus);
        printf("%*srank %d: cpu %s\n", 2 * g->nlevels, "", r, cpus);
    }
}

/* Return the number of connections from a rank to each rank on another host; 0: there is no other
 * host, or no communicator. */
static int ranks_connections(const ranks_view *v)
{
    if (v->comm == NULL || v->groups->count[0] == 1) {
        return 0;
    }
    int64_t tuned = v->comm->chooser->tuning.connections;
    return v->comm->connections > 0 ? v->comm->connections : (int)dcommi_max64(tuned, 1);
}

static void ranks_print_groups(const ranks_view *v)
{
    const dcommi_groups *g = v->groups;
    for (int l = 0; l < g->nlevels; l++) {
        printf("%s: %d group%s:", ranks_levels[g->kind[l]], (int)g->count[l],
               g->count[l] == 1 ? "" : "s");
        for (int i = 0; i < g->count[l]; i++) {
            bool first = true;
            for (int r = 0; r < v->n; r++) {
                if (dcommi_group_of(g, l, r) == i) {
                    printf(first ? " {%d" : " %d", r);
                    first = false;
                }
            }
            putchar('}');
        }
        putchar('\n');
    }
    printf("ring order:");
    for (int i = 0; i < v->n; i++) {
        printf(" %d", (int)g->order[i]);
    }
    putchar('\n');
    if (ranks_connections(v) > 0) {
        printf("connections between ranks of two hosts: %d\n", ranks_connections(v));
    }
}

static void ranks_json_index(perf_json *j, const char *key, int32_t index)
{
    if (index < 0) {
        perf_json_null(j, key);
    } else {
        perf_json_int(j, key, index);
    }
}

static void ranks_json(perf_json *j, const ranks_view *v)
{
    const dcommi_groups *g = v->groups;
    perf_json_open(j, "ranks", '[');
    for (int r = 0; r < v->n; r++) {
        const dcommi_site *p = &v->sites[r];
        char cpus[4096];
        dcommi_place_cpu_list(p, cpus, sizeof cpus);
        perf_json_open(j, NULL, '{');
        perf_json_int(j, "rank", r);
        perf_json_int(j, "host", dcommi_group_of(g, 0, r));
        if (v->comm != NULL) {
            perf_json_text(j, "hostname", dcomm_comm_hostname(v->comm, r));
        } else {
            perf_json_null(j, "hostname");
        }
        ranks_json_index(j, "package", p->package);
        ranks_json_index(j, "numa", p->numa);
        ranks_json_index(j, "cache", p->cache);
        ranks_json_index(j, "core", p->core);
        perf_json_text(j, "cpus", cpus);
        perf_json_bool(j, "bound", !dcommi_place_unbound(g, v->sites, r));
        perf_json_text(j, "nic", p->nic[0] != 0 ? p->nic : "none");
        perf_json_text(j, "gpu", p->gpu[0] != 0 ? p->gpu : "none");
        perf_json_close(j, '}');
    }
    perf_json_close(j, ']');
    perf_json_open(j, "levels", '[');
    for (int l = 0; l < g->nlevels; l++) {
        perf_json_open(j, NULL, '{');
        perf_json_text(j, "kind", ranks_levels[g->kind[l]]);
        perf_json_open(j, "groups", '[');
        for (int i = 0; i < g->count[l]; i++) {
            perf_json_open(j, NULL, '[');
            for (int r = 0; r < v->n; r++) {
                if (dcommi_group_of(g, l, r) == i) {
                    perf_json_int(j, NULL, r);
                }
            }
            perf_json_close(j, ']');
        }
        perf_json_close(j, ']');
        perf_json_close(j, '}');
    }
    perf_json_close(j, ']');
    if (ranks_connections(v) > 0) {
        perf_json_int(j, "connections", ranks_connections(v));
    }
    perf_json_open(j, "order", '[');
    for (int i = 0; i < v->n; i++) {
        perf_json_int(j, NULL, g->order[i]);
    }
    perf_json_close(j, ']');
}

#endif
