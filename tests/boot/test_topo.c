/* test_topo.c - places read from lstopo's files, the groups that follow from them, warnings to
 * unbound ranks, and the places that a communicator reports. Rings and trees cross slow boundaries
 * no more often than they must. */
#define _GNU_SOURCE
#include "ranks.h"

#include "dcomm/impl/device/host.h"

#include "dcomm/impl/algo/table.h"
#include "dcomm/impl/check/check.h"
#include "dcomm/impl/comm/select.h"
#include "dcomm/impl/boot/topo.h"

#include <criterion/criterion.h>

#define SERVER DCOMM_TESTS_DIR "/data/topo/server.xml"
#define LAPTOP DCOMM_TESTS_DIR "/data/topo/laptop.xml"
#define NESTED DCOMM_TESTS_DIR "/data/topo/packages_in_numa.xml"
#define PLAIN DCOMM_TESTS_DIR "/data/topo/plain.xml"

/* ---- places ---- */

static dcommi_site site_of(const char *xml, const char *cpus, const char *iface)
{
    dcommi_site site;
    hwloc_topology_t topology = NULL;
    cr_assert_eq(dcommi_topo_load(xml, &topology), DCOMM_OK, "%s", dcommi_message);
    hwloc_bitmap_t set = hwloc_bitmap_alloc();
    hwloc_bitmap_list_sscanf(set, cpus);
    dcommi_topo_locate(topology, set, iface, &site);
    hwloc_bitmap_free(set);
    hwloc_topology_destroy(topology);
    return site;
}

static void expect_site(const char *xml, const char *cpus, int package, int numa, int cache,
                        int core, int count)
{
    dcommi_site s = site_of(xml, cpus, NULL);
    char list[64];
    dcommi_place_cpu_list(&s, list, sizeof list);
    cr_expect(s.package == package && s.numa == numa && s.cache == cache && s.core == core &&
                  s.cpus == count && s.unknown == 0,
              "%s of %s: package %d numa %d cache %d core %d, %d threads", cpus, xml, s.package,
              s.numa, s.cache, s.core, s.cpus);
    cr_expect_str_eq(list, cpus);
}

Test(topo, places)
{
    enum { NONE = DCOMMI_PLACE_NONE, MANY = DCOMMI_PLACE_MANY };
    expect_site(SERVER, "0", 0, 0, 0, 0, 1);
    expect_site(SERVER, "6-7", 0, 0, 0, 3, 2);
    expect_site(SERVER, "8,10-12", 0, 1, 1, MANY, 4);
    expect_site(SERVER, "6-9", 0, MANY, MANY, MANY, 4);
    expect_site(SERVER, "15-16", MANY, MANY, MANY, MANY, 2);
    expect_site(SERVER, "31", 1, 3, 3, 15, 1);
    expect_site(LAPTOP, "3", 0, 0, 0, 1, 1);
    expect_site(LAPTOP, "0-7", 0, 0, 0, MANY, 8);
    expect_site(PLAIN, "2", NONE, 0, 2, NONE, 1);
    expect_site(PLAIN, "0-3", NONE, 0, MANY, NONE, 4);
}

Test(topo, devices)
{
    cr_expect_str_eq(site_of(SERVER, "0", NULL).nic, "eth0");
    cr_expect_str_eq(site_of(SERVER, "16-31", NULL).nic, "eth1");
    cr_expect_str_eq(site_of(SERVER, "0", "eth1").nic, "eth1"); /* the NIC in use */
    cr_expect_str_eq(site_of(SERVER, "0", "lo").nic, "");
    cr_expect_str_eq(site_of(SERVER, "0", "eth1:1").nic, "eth1");
    cr_expect_str_eq(site_of(SERVER, "0", NULL).gpu, "0000:80:00.0"); /* not the screen's chip */
    cr_expect_str_eq(site_of(LAPTOP, "0", NULL).gpu, "");
    cr_expect_str_eq(site_of(LAPTOP, "0", NULL).nic, "");
}

Test(topo, no_such_file)
{
    hwloc_topology_t topology = NULL;
    cr_expect_eq(dcommi_topo_load("/nosuch.xml", &topology), DCOMM_ERR_INVALID);
    cr_expect(strstr(dcommi_message, "/nosuch.xml") != NULL);
    cr_expect_eq(dcommi_topo_load(__FILE__, &topology), DCOMM_ERR_INVALID);
}

Test(topo, a_newer_format_is_named)
{
    char path[] = "/tmp/dcomm-topo-XXXXXX";
    hwloc_topology_t topology = NULL;
    int fd = mkstemp(path);
    cr_assert(fd >= 0);
    cr_assert(dprintf(fd, "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<!DOCTYPE topology SYSTEM "
                          "\"hwloc9.dtd\">\n<topology version=\"9.0\">\n</topology>\n") > 0);
    close(fd);
    cr_expect_eq(dcommi_topo_load(path, &topology), DCOMM_ERR_INVALID);
    cr_expect(strstr(dcommi_message, "format 9") != NULL &&
                  strstr(dcommi_message, "install hwloc 9") != NULL,
              "%s", dcommi_message);
    unlink(path);
}

Test(topo, this_machine)
{
    dcommi_site here;
    cr_expect_eq(dcommi_topo_here("", &here), DCOMM_OK);
    cr_expect_gt(here.cpus, 0);
    cr_expect_eq(here.unknown, 0);
    /* A remembered site is replaced if the binding has changed. */
    dcommi_site again, one;
    cpu_set_t first;
    int cpu = 0;
    while ((here.mask[cpu / 64] >> (cpu % 64) & 1) == 0) {
        cpu++;
    }
    cr_expect_eq(dcommi_topo_here("", &again), DCOMM_OK);
    cr_expect_eq(memcmp(&here, &again, sizeof here), 0);
    CPU_ZERO(&first);
    CPU_SET((size_t)cpu, &first);
    cr_assert_eq(sched_setaffinity(0, sizeof first, &first), 0);
    cr_expect_eq(dcommi_topo_here("", &one), DCOMM_OK);
    cr_expect_eq(one.cpus, 1);
    cr_expect_eq(dcommi_topo_here("no_such_interface", &one), DCOMM_OK);
    cr_expect_str_eq(one.nic, "");
}

Test(topo, text_of_threads_is_cut)
{
    dcommi_site s = {0};
    char list[16];
    dcommi_place_cpu_list(&s, list, sizeof list);
    cr_expect_str_eq(list, "");
    memset(s.mask, 0x55, sizeof s.mask);
    dcommi_place_cpu_list(&s, list, sizeof list);
    cr_expect_str_eq(list, "0,2,4,6,8,...");
    memset(s.mask, 0xff, sizeof s.mask);
    dcommi_place_cpu_list(&s, list, sizeof list);
    cr_expect_str_eq(list, "0-1023");
}

Test(topo, places_from_others_are_checked)
{
    dcommi_site s = site_of(SERVER, "0-3", NULL);
    memset(s.nic, 'x', sizeof s.nic);
    s.gpu[0] = '\n';
    cr_expect_eq(dcommi_place_check(&s, 1), DCOMM_OK);
    cr_expect_eq(strlen(s.nic), sizeof s.nic - 1);
    cr_expect_eq(s.gpu[0], '?');
    s.core = -3;
    cr_expect_eq(dcommi_place_check(&s, 1), DCOMM_ERR_CORRUPT);
    s.core = 0;
    s.cpus = -1;
    cr_expect_eq(dcommi_place_check(&s, 1), DCOMM_ERR_CORRUPT);
}

/* ---- groups ---- */

/* Return the groups of n ranks on one host, bound to the listed CPUs. */
static dcommi_groups *groups_on(const char *xml, int n, const char *const *cpus, dcommi_site *sites)
{
    int64_t host[64] = {0};
    for (int r = 0; r < n; r++) {
        sites[r] = site_of(xml, cpus[r], NULL);
    }
    return dcommi_place_groups(n, host, sites);
}

static void expect_groups(const dcommi_groups *g, int nlevels, const uint8_t *kinds,
                          const int *counts)
{
    cr_assert_eq(g->nlevels, nlevels);
    for (int l = 0; l < nlevels; l++) {
        cr_expect_eq(g->kind[l], kinds[l], "level %d is of kind %d", l, g->kind[l]);
        cr_expect_eq(g->count[l], counts[l], "level %d has %d groups", l, g->count[l]);
    }
}

Test(topo, levels_are_those_that_divide)
{
    dcommi_site sites[8];
    const uint8_t host[] = {DCOMMI_LEVEL_HOST};
    /* Threads of five cores of three caches, each a NUMA node, of two packages; out of order. */
    const char *const spread[] = {"0", "16", "1", "9", "8", "2", "17", "18"};
    dcommi_groups *g = groups_on(SERVER, 8, spread, sites);
    expect_groups(
        g, 4,
        (uint8_t[]){DCOMMI_LEVEL_HOST, DCOMMI_LEVEL_PACKAGE, DCOMMI_LEVEL_NUMA, DCOMMI_LEVEL_CORE},
        (int[]){1, 2, 3, 5});
    const int order[] = {0, 2, 5, 3, 4, 1, 6, 7};
    for (int i = 0; i < 8; i++) {
        cr_expect_eq(g->order[i], order[i], "position %d: rank %d", i, g->order[i]);
    }
    dcommi_groups_free(&g);
    /* All ranks may run anywhere, so no rank is near another. */
    const char *const anywhere[] = {"0-31", "0-31", "0-31"};
    g = groups_on(SERVER, 3, anywhere, sites);
    expect_groups(g, 1, host, (int[]){1});
    dcommi_groups_free(&g);
    /* Two ranks may run anywhere; one is bound to a package. */
    const char *const mixed[] = {"0-31", "0-15", "0-31"};
    g = groups_on(SERVER, 3, mixed, sites);
    expect_groups(g, 2, (uint8_t[]){DCOMMI_LEVEL_HOST, DCOMMI_LEVEL_PACKAGE}, (int[]){1, 2});
    cr_expect_eq(dcommi_group_of(g, 1, 2), dcommi_group_of(g, 1, 0));
    dcommi_groups_free(&g);
    /* A machine with two packages in each NUMA node. */
    const char *const nested[] = {"0", "2", "4", "6", "1", "3", "5", "7"};
    g = groups_on(NESTED, 8, nested, sites);
    expect_groups(
        g, 4,
        (uint8_t[]){DCOMMI_LEVEL_HOST, DCOMMI_LEVEL_NUMA, DCOMMI_LEVEL_PACKAGE, DCOMMI_LEVEL_CORE},
        (int[]){1, 2, 4, 8});
    cr_expect_eq(dcommi_group_of(g, 1, 0), dcommi_group_of(g, 1, 5));
    dcommi_groups_free(&g);
    /* Ranks bound to several cores each do not share a core. */
    const char *const slices[] = {"0-3", "4-7", "0-3"};
    g = groups_on(LAPTOP, 3, slices, sites);
    expect_groups(g, 2, (uint8_t[]){DCOMMI_LEVEL_HOST, DCOMMI_LEVEL_CORE}, (int[]){1, 2});
    dcommi_groups_free(&g);
    const char *const unknown[] = {"0-1", "2-3"};
    g = groups_on(PLAIN, 2, unknown, sites);
    cr_expect_eq(g->count[0], 1);
    dcommi_groups_free(&g);
}

static void expect_seats(int n, const char *const *cpus, const int *seat)
{
    dcommi_site sites[8];
    dcommi_groups *g = groups_on(LAPTOP, n, cpus, sites);
    for (int r = 0; r < n; r++) {
        cr_expect_eq(g->seat[r], seat[r], "rank %d of %d takes turns with %d", r, n, g->seat[r]);
    }
    const int odd[] = {1, 3, 5};
    dcommi_groups *part = n >= 6 ? dcommi_groups_restrict(g, odd, 3) : NULL;
    for (int i = 0; part != NULL && i < 3; i++) {
        int first = 0;
        while (seat[odd[first]] != seat[odd[i]]) {
            first++;
        }
        cr_expect_eq(part->seat[i], first, "rank %d of a part", odd[i]);
    }
    dcommi_groups_free(&part);
    dcommi_groups_free(&g);
}

Test(topo, who_takes_turns)
{
    const char *const slices[] = {"0", "1", "0", "1", "0", "2"};
    const char *const pairs[] = {"0-1", "0-1", "0-1", "2-3", "0-1", "0-1"};
    const char *const apart[] = {"0", "1", "2-3", "2-3"};
    expect_seats(6, slices, (int[]){0, 1, 0, 1, 0, 5});
    expect_seats(6, pairs, (int[]){0, 1, 0, 3, 1, 0});
    expect_seats(4, apart, (int[]){0, 1, 2, 3});
}

Test(topo, containers_of_one_machine_take_turns_on_its_threads)
{
    const char *const cpus[] = {"0", "1", "0", "1"};
    const int64_t host[] = {0, 0, 1, 1};
    for (uint64_t machine = 0; machine <= 1; machine++) { /* 0: unknown, nothing is assumed */
        dcommi_site sites[4];
        for (int r = 0; r < 4; r++) {
            sites[r] = site_of(LAPTOP, cpus[r], NULL);
            cr_expect_eq(sites[r].machine, 0, "what a file describes is no machine that runs");
            sites[r].machine = machine;
        }
        dcommi_groups *g = dcommi_place_groups(4, host, sites);
        cr_expect_eq(g->count[0], 2);
        cr_expect_eq(g->seat[2], machine != 0 ? 0 : 2);
        cr_expect_eq(g->seat[3], machine != 0 ? 1 : 3);
        cr_expect_eq(dcommi_place_crowded(g, sites, 3), machine != 0);
        sites[3].machine = 2;
        cr_expect(!dcommi_place_crowded(g, sites, 3));
        dcommi_groups_free(&g);
    }
}

static void expect_unbound(const char *xml, int n, const char *const *cpus, const char *expected)
{
    dcommi_site sites[64];
    char list[64];
    dcommi_groups *g = groups_on(xml, n, cpus, sites);
    dcommi_place_unbound_list(g, sites, list, sizeof list);
    cr_expect_str_eq(list, expected);
    dcommi_groups_free(&g);
}

Test(topo, unbound_ranks)
{
    const char *const all[] = {"0-7", "0-7", "0-7", "0-7"};
    const char *const slices[] = {"0-3", "4-7"};
    const char *const cores[] = {"0-1", "0-1", "0-1"}; /* more ranks than cores: none can move */
    const char *const threads[] = {"0", "0", "1"};
    const char *const some[] = {"0-3", "2-5", "6", "6-7", "0-7"};
    expect_unbound(LAPTOP, 4, all, "0-3");
    expect_unbound(LAPTOP, 1, all, "");
    expect_unbound(LAPTOP, 2, slices, "");
    expect_unbound(LAPTOP, 3, cores, "");
    expect_unbound(LAPTOP, 3, threads, "");
    expect_unbound(LAPTOP, 5, some, "0-1, 4");
    const char *many[64];
    for (int r = 0; r < 64; r++) {
        many[r] = r % 2 == 0 ? "0-7" : "3";
    }
    dcommi_site sites[64];
    char list[24];
    dcommi_groups *g = groups_on(LAPTOP, 64, many, sites);
    cr_expect_eq(dcommi_place_unbound_list(g, sites, list, sizeof list), 32);
    cr_expect_str_eq(list, "0, 2, 4, 6, 8, 10, ...");
    dcommi_groups_free(&g);
}

/* ---- boundaries that plans cross ---- */

#define MAX_N 64

/* Return hosts of uneven size with packages in them, dealt out at random. */
static dcommi_groups *random_groups(int n, unsigned seed)
{
    static const uint8_t kinds[] = {DCOMMI_LEVEL_HOST, DCOMMI_LEVEL_PACKAGE};
    int64_t ids[2 * MAX_N];
    for (int r = 0; r < n; r++) {
        uint64_t chance = dcommi_mix(seed, (uint64_t)r);
        uint64_t hosts = 1 + seed % 7;
        ids[r] = seed % 3 == 0 ? r % (int64_t)hosts : (int64_t)(chance % hosts * (chance % 3) / 2);
        ids[n + r] = (int64_t)(chance >> 32) % 3;
    }
    return dcommi_groups_make(n, 2, kinds, ids);
}

/* Count the directed pairs of ranks that exchange messages across a level: in different groups of
 * it, but in one group of the level above. */
static int crossings(const dcommi_check_trace *trace, const dcommi_groups *g, int level)
{
    static bool seen[MAX_N][MAX_N];
    int found = 0;
    memset(seen, 0, sizeof seen);
    for (size_t i = 0; i < trace->n; i++) {
        int a = trace->event[i].peer, b = trace->event[i].rank;
        if (a >= 0 && a != b && dcommi_groups_depth(g, a, b) == level && !seen[a][b]) {
            seen[a][b] = true;
            found++;
        }
    }
    return found;
}

/* Record the trace of an algorithm, after the checker has accepted the plans. */
static void trace_of(dcomm_coll coll, const char *name, const dcommi_groups *g, int root,
                     dcommi_check_trace *trace)
{
    dcomm_plan *plans[MAX_N];
    dcomm_check_report report;
    memset(trace, 0, sizeof *trace);
    for (int r = 0; r < g->nranks; r++) {
        dcommi_shape s = {.coll = coll,
                          .rank = r,
                          .nranks = g->nranks,
                          .root = root,
                          .dtype = DCOMM_F32,
                          .op = DCOMM_SUM,
                          .count = 640,
                          .lanes = 1,
                          .groups = g};
        const dcommi_algo *algo = dcommi_algo_find(coll, name);
        cr_assert(algo != NULL && dcommi_plan_make(&s, algo, &plans[r]) == DCOMM_OK, "%s",
                  dcommi_message);
    }
    dcomm_check_spec spec = {.coll = coll, .count = 640, .dtype = DCOMM_F32, .root = root};
    cr_assert_eq(
        dcommi_check_plans((const dcomm_plan *const *)plans, g->nranks, &spec, &report, trace),
        DCOMM_OK, "%s: %s", name, report.message);
    for (int r = 0; r < g->nranks; r++) {
        dcommi_free(plans[r]);
    }
}

/* Return the groups of a level, less one for each group above: the edges of trees that join
 * them. */
static int edges_needed(const dcommi_groups *g, int level)
{
    return g->count[level] - (level > 0 ? g->count[level - 1] : 1);
}

Test(topo, rings_enter_each_group_once, .timeout = 120)
{
    static const dcomm_coll colls[] = {DCOMM_COLL_ALLREDUCE, DCOMM_COLL_REDUCE_SCATTER,
                                       DCOMM_COLL_ALLGATHER};
    for (unsigned seed = 1; seed <= 60; seed++) {
        int n = seed < 60 ? 2 + (int)seed * 7 % 40 : MAX_N;
        dcommi_groups *g = random_groups(n, seed);
        dcommi_check_trace trace;
        trace_of(colls[seed % 3], "ring", g, 0, &trace);
        int hosts = g->count[0];
        cr_expect_eq(crossings(&trace, g, 0), hosts > 1 ? hosts : 0, "seed %u", seed);
        if (g->nlevels > 1) {
            /* A ring on one host closes there. A ring over several hosts is open within each. */
            int inside = hosts > 1 || g->count[1] == 1 ? edges_needed(g, 1) : g->count[1];
            cr_expect_eq(crossings(&trace, g, 1), inside, "seed %u", seed);
        }
        dcommi_free(trace.event);
        dcommi_groups_free(&g);
    }
}

Test(topo, trees_enter_each_group_once, .timeout = 120)
{
    static const struct {
        dcomm_coll coll;
        const char *name;
        int trees, ways;
    } cases[] = {{DCOMM_COLL_ALLREDUCE, "binomial", 1, 2}, {DCOMM_COLL_BROADCAST, "binomial", 1, 1},
                 {DCOMM_COLL_REDUCE, "binomial", 1, 1},    {DCOMM_COLL_ALLREDUCE, "tree", 2, 2},
                 {DCOMM_COLL_BROADCAST, "tree", 2, 1},     {DCOMM_COLL_REDUCE, "tree", 2, 1}};
    for (unsigned seed = 1; seed <= 60; seed++) {
        int n = seed < 60 ? 2 + (int)seed * 7 % 40 : MAX_N;
        dcommi_groups *g = random_groups(n, seed);
        for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
            dcommi_check_trace trace;
            trace_of(cases[i].coll, cases[i].name, g,
                     cases[i].coll == DCOMM_COLL_ALLREDUCE ? 0 : (int)seed % n, &trace);
            for (int l = 0; l < g->nlevels; l++) {
                int once = edges_needed(g, l) * cases[i].ways;
                int found = crossings(&trace, g, l);
                /* Two trees need not use the same edge. */
                cr_expect(found >= once && found <= once * cases[i].trees,
                          "seed %u, %s %d, level %d: %d crossings, not %d", seed, cases[i].name,
                          cases[i].coll, l, found, once);
            }
            dcommi_free(trace.event);
        }
        dcommi_groups_free(&g);
    }
}

/* ---- places that a communicator reports ---- */

static int warnings;
static char warning[512];

static void hear(int level, const char *message, void *user)
{
    (void)user;
    if (level == 1 && strstr(message, "bound") != NULL) {
        warnings++;
        snprintf(warning, sizeof warning, "%s", message);
    }
}

/* Join ranks on hosts like the server, dealt round to them. */
static dcomm_comm *join_server(int rank, int n, procs_shared *s, const char *cpus, int hosts,
                               const char *warn)
{
    char host[16];
    snprintf(host, sizeof host, "host%d", rank % hosts);
    ranks_settle(rank, n, RANKS_LOCAL);
    setenv("DCOMM_WARN_UNBOUND", warn, 1);
    setenv("DCOMM_HOSTID", host, 1);
    setenv("DCOMM_TOPO_XML", SERVER, 1);
    setenv("DCOMM_TOPO_CPUS", cpus, 1);
    dcomm_set_logger(hear, NULL);
    return ranks_join(rank, n, s, NULL);
}

static void expect_level(const dcomm_comm *comm, int level, dcomm_level_kind kind, const char *name,
                         int groups)
{
    dcomm_level info = {0};
    RANKS_OK(dcomm_comm_get_level(comm, level, &info));
    PROCS_CHECK(info.kind == kind && strcmp(info.name, name) == 0 && info.groups == groups,
                "level %d is %s with %d groups", level, info.name, info.groups);
}

static int reads_out(int rank, int n, procs_shared *s, void *arg)
{
    static const char *const cpus[] = {"0-7", "0-3", "16-19", "8-11", "20-23", "24"};
    static const int order[] = {0, 2, 4, 1, 3, 5}, package[] = {0, 0, 1, 0, 1, 1};
    (void)arg;
    dcomm_comm *comm = join_server(rank, n, s, cpus[rank], 2, "1"), *back = NULL, *few = NULL;
    PROCS_TRUE(dcomm_comm_level_count(comm) >= 2);
    expect_level(comm, 0, DCOMM_LEVEL_HOST, "host", 2);
    expect_level(comm, 1, DCOMM_LEVEL_PACKAGE, "package", 4);
    for (int r = 0; r < n; r++) {
        dcomm_place place = {0};
        RANKS_OK(dcomm_comm_get_place(comm, r, &place));
        PROCS_TRUE(dcomm_comm_group(comm, 0, r) == r % 2);
        PROCS_TRUE(dcomm_comm_order(comm, r) == order[r]);
        PROCS_TRUE(place.package == package[r] && place.bound);
        PROCS_TRUE(strcmp(place.cpu_list, cpus[r]) == 0);
        PROCS_TRUE(strcmp(place.nic, package[r] == 0 ? "eth0" : "eth1") == 0);
        PROCS_TRUE(place.core == (r == 5 ? 12 : -1));
    }
    dcomm_level info = {0};
    dcomm_place place = {0};
    PROCS_TRUE(dcomm_comm_get_level(comm, dcomm_comm_level_count(comm), &info) ==
               DCOMM_ERR_INVALID);
    PROCS_TRUE(dcomm_comm_get_level(comm, 0, NULL) == DCOMM_ERR_INVALID);
    PROCS_TRUE(dcomm_comm_get_place(comm, n, &place) == DCOMM_ERR_INVALID);
    PROCS_TRUE(dcomm_comm_get_place(comm, 0, NULL) == DCOMM_ERR_INVALID);
    PROCS_TRUE(dcomm_comm_get_place(NULL, 0, &place) == DCOMM_ERR_INVALID);
    PROCS_TRUE(dcomm_comm_group(comm, 0, -1) == -1 && dcomm_comm_group(comm, 9, 0) == -1);
    PROCS_TRUE(dcomm_comm_order(comm, n) == -1 && dcomm_comm_level_count(NULL) == -1);

    /* Split into reverse order, and shrink without the first rank. */
    RANKS_OK(dcomm_comm_split(comm, 0, -rank, &back));
    for (int r = 0; r < n; r++) {
        RANKS_OK(dcomm_comm_get_place(back, r, &place));
        PROCS_TRUE(strcmp(place.cpu_list, cpus[n - 1 - r]) == 0);
        PROCS_TRUE(dcomm_comm_group(back, 0, r) == r % 2);
    }
    if (rank != 0) {
        int out = 0;
        RANKS_OK(dcomm_comm_shrink(comm, &out, 1, &few));
        RANKS_OK(dcomm_comm_get_place(few, 3, &place));
        PROCS_TRUE(place.package == 1 && strcmp(place.cpu_list, cpus[4]) == 0);
        RANKS_OK(dcomm_comm_destroy(&few));
    }
    static const char *const algos[] = {"ring", "tree", "binomial"};
    for (int i = 0; i < 3; i++) {
        dcomm_coll_opts opts = {.algo = algos[i]};
        static int32_t x[3000];
        for (int k = 0; k < 3000; k++) {
            x[k] = rank * k;
        }
        RANKS_OK(dcomm_allreduce(back, x, x, 3000, DCOMM_I32, DCOMM_SUM, &opts));
        PROCS_TRUE(x[0] == 0 && x[2999] == 15 * 2999);
    }
    PROCS_CHECK(warnings == 0, "%s", warning);
    RANKS_OK(dcomm_comm_destroy(&back));
    return ranks_leave(&comm);
}

Test(topo, read_out, .timeout = 60)
{
    int ended[PROCS_MAX];
    cr_assert_eq(procs_run(6, 40, reads_out, NULL, ended), 0);
}

typedef struct warn_case {
    const char *warn; /* the value of DCOMM_WARN_UNBOUND */
    int hosts;
    bool expected;
} warn_case;

/* Ranks 1 and 2 of three may run on the same cores. */
static int warns(int rank, int n, procs_shared *s, void *arg)
{
    static const char *const cpus[] = {"0-7", "8-23", "16-31"};
    const warn_case *c = arg;
    dcomm_comm *comm = join_server(rank, n, s, cpus[rank], c->hosts, c->warn);
    PROCS_CHECK(warnings == (rank == 0 && c->expected), "%d warnings", warnings);
    PROCS_CHECK(warnings == 0 || (strstr(warning, "ranks 1-2 of 3") != NULL &&
                                  strstr(warning, "--bind") != NULL),
                "%s", warning);
    dcomm_place place = {0};
    RANKS_OK(dcomm_comm_get_place(comm, rank, &place));
    PROCS_TRUE(place.bound == (rank == 0 || c->hosts == 3));
    return ranks_leave(&comm);
}

Test(topo, unbound_ranks_are_told_so, .timeout = 120)
{
    int ended[PROCS_MAX];
    warn_case cases[] = {{"1", 1, true}, {"", 1, true}, {"0", 1, false}, {"1", 3, false}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        cr_expect_eq(procs_run(3, 40, warns, &cases[i], ended), 0, "case %zu", i);
    }
}

static int no_xml(int rank, int n, procs_shared *s, void *arg)
{
    (void)s;
    (void)arg;
    ranks_settle(rank, n, RANKS_LOCAL);
    setenv("DCOMM_TOPO_XML", "/nosuch.xml", 1);
    dcomm_comm *comm = NULL;
    PROCS_TRUE(dcomm_comm_create(NULL, &comm) == DCOMM_ERR_INVALID && comm == NULL);
    PROCS_TRUE(strstr(dcomm_last_error(), "/nosuch.xml") != NULL);
    return 0;
}

Test(topo, a_wrong_file_is_an_error, .timeout = 30)
{
    int ended[PROCS_MAX];
    cr_expect_eq(procs_run(1, 20, no_xml, NULL, ended), 0);
}
