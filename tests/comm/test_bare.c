/* test_bare.c - a program without UCX and hwloc. Ranks of one host can do everything, but know
 * only their hardware threads, not the rest of the machine. Ranks of two hosts get an error with
 * the reason. */
#define _GNU_SOURCE
#include "run_ranks.h"

#include <dlfcn.h>
#include <sched.h>

/* Check that the process has loaded neither library. Otherwise these tests would prove too
 * little. */
static void neither_library(void)
{
    PROCS_TRUE(dlsym(RTLD_DEFAULT, "ucp_init_version") == NULL);
    PROCS_TRUE(dlsym(RTLD_DEFAULT, "hwloc_topology_init") == NULL);
}

static void sum_of_ranks(dcomm_comm *comm, size_t count)
{
    const int rank = dcomm_comm_rank(comm), n = dcomm_comm_size(comm);
    float *x = malloc(count * sizeof *x);
    PROCS_TRUE(x != NULL);
    for (size_t i = 0; i < count; i++) {
        x[i] = (float)(rank + (int)(i % 7));
    }
    RANKS_OK(dcomm_allreduce(comm, DCOMM_IN_PLACE, x, count, DCOMM_F32, DCOMM_SUM, NULL));
    for (size_t i = 0; i < count; i++) {
        PROCS_TRUE(x[i] == (float)(n * (n - 1) / 2 + n * (int)(i % 7)));
    }
    free(x);
}

static int collectives(int rank, int n, procs_shared *s, void *arg)
{
    (void)arg;
    neither_library();
    ranks_settle(rank, n, RANKS_LOCAL);
    dcomm_comm *comm = ranks_join(rank, n, s, NULL), *half = NULL, *fewer = NULL;
    sum_of_ranks(comm, 1);
    sum_of_ranks(comm, 100000);
    int32_t to[4 * 3], from[4 * 3];
    for (int i = 0; i < n * 3; i++) {
        to[i] = 100 * rank + i;
    }
    RANKS_OK(dcomm_alltoall(comm, to, from, 3, DCOMM_I32, NULL));
    for (int i = 0; i < n * 3; i++) {
        PROCS_TRUE(from[i] == 100 * (i / 3) + 3 * rank + i % 3);
    }
    RANKS_OK(dcomm_comm_split(comm, rank % 2, 0, &half));
    PROCS_TRUE(dcomm_comm_size(half) == 2 && dcomm_comm_rank(half) == rank / 2);
    sum_of_ranks(half, 1000);
    RANKS_OK(dcomm_comm_destroy(&half));
    if (rank != 1) {
        const int excluded = 1;
        RANKS_OK(dcomm_comm_shrink(comm, &excluded, 1, &fewer));
        PROCS_TRUE(dcomm_comm_size(fewer) == 3);
        sum_of_ranks(fewer, 1000);
        RANKS_OK(dcomm_comm_destroy(&fewer));
    }
    return ranks_leave(&comm);
}

Test(bare, collectives, .timeout = 60)
{
    run(4, collectives, NULL);
}

static int buckets(int rank, int n, procs_shared *s, void *arg)
{
    (void)arg;
    ranks_settle(rank, n, RANKS_LOCAL);
    dcomm_comm *comm = ranks_join(rank, n, s, NULL);
    static float weights[5000];
    float bias = (float)rank;
    for (size_t i = 0; i < 5000; i++) {
        weights[i] = (float)(4 * rank);
    }
    dcomm_bucket_param params[] = {
        {.name = "weights", .grad = weights, .count = 5000, .dtype = DCOMM_F32},
        {.name = "bias", .grad = &bias, .count = 1, .dtype = DCOMM_F32}};
    dcomm_buckets_opts opts = {.codec = "qsgd:bits=8"};
    for (int coded = 0; coded < 2; coded++) {
        dcomm_buckets *b = NULL;
        RANKS_OK(dcomm_buckets_create(comm, params, 2, coded ? &opts : NULL, &b));
        RANKS_OK(dcomm_param_mark_ready(b, 1, NULL));
        RANKS_OK(dcomm_param_mark_ready(b, 0, NULL));
        RANKS_OK(dcomm_buckets_wait(b));
        PROCS_TRUE(weights[17] > 5.9f && weights[17] < 6.1f && bias > 1.4f && bias < 1.6f);
        RANKS_OK(dcomm_buckets_destroy(&b));
    }
    return ranks_leave(&comm);
}

Test(bare, buckets, .timeout = 60)
{
    run(4, buckets, NULL);
}

/* Two ranks may run on one hardware thread each, the others on all threads. */
static int topology(int rank, int n, procs_shared *s, void *arg)
{
    (void)arg;
    ranks_settle(rank, n, RANKS_LOCAL);
    cpu_set_t all, mine;
    PROCS_TRUE(sched_getaffinity(0, sizeof all, &all) == 0);
    int first = 0;
    while (!CPU_ISSET((size_t)first, &all)) {
        first++;
    }
    CPU_ZERO(&mine);
    CPU_SET((size_t)first, &mine);
    PROCS_TRUE(rank > 0 || sched_setaffinity(0, sizeof mine, &mine) == 0);
    dcomm_comm *comm = ranks_join(rank, n, s, NULL);
    PROCS_TRUE(dcomm_comm_level_count(comm) == 1 && dcomm_comm_host(comm, 3) == 0);
    for (int r = 0; r < n; r++) {
        dcomm_place place;
        RANKS_OK(dcomm_comm_get_place(comm, r, &place));
        PROCS_TRUE(place.package == -1 && place.numa == -1 && place.cache == -1 &&
                   place.core == -1);
        PROCS_TRUE(place.cpus == (r == 0 ? 1 : CPU_COUNT(&all)));
        PROCS_TRUE(strcmp(place.nic, "none") == 0 && strcmp(place.gpu, "none") == 0);
        PROCS_TRUE(r > 0 || atoi(place.cpu_list) == first);
    }
    sum_of_ranks(comm, 10);
    return ranks_leave(&comm);
}

Test(bare, topology, .timeout = 60)
{
    run(4, topology, NULL);
}

static int no_machine_from_a_file(int rank, int n, procs_shared *s, void *arg)
{
    dcomm_context *context = NULL;
    (void)rank, (void)n, (void)s, (void)arg;
    setenv("DCOMM_TOPO_XML", "/nosuch.xml", 1);
    ranks_refused(dcomm_context_create(NULL, &context), DCOMM_ERR_UNSUPPORTED, "DCOMM_NO_HWLOC");
    return procs_leaks();
}

Test(bare, no_machine_from_a_file, .timeout = 60)
{
    run(1, no_machine_from_a_file, NULL);
}

/* Ranks 0 and 1 are on one host, 2 and 3 on another. Each rank gets an error that names both, at
 * once. */
static int two_hosts(int rank, int n, procs_shared *s, void *arg)
{
    (void)arg;
    ranks_settle(rank, n, RANKS_PAIRS);
    dcomm_comm_opts opts = {.boot = DCOMM_BOOT_ID, .rank = rank, .size = n, .timeout_s = 60};
    dcomm_comm *comm = NULL;
    size_t len;
    double start = procs_now();
    if (rank == 0) {
        RANKS_OK(dcomm_id_create(&opts.id));
        procs_give(s, 0, &opts.id, sizeof opts.id);
    } else {
        memcpy(&opts.id, procs_take(s, 0, &len), sizeof opts.id);
    }
    ranks_refused(dcomm_comm_create(&opts, &comm), DCOMM_ERR_UNSUPPORTED, "DCOMM_NO_UCX");
    PROCS_TRUE(comm == NULL && procs_now() - start < 15);
    PROCS_TRUE(strstr(dcomm_last_error(), "rank 0 is on host") != NULL);
    PROCS_TRUE(strstr(dcomm_last_error(), "host0") != NULL);
    PROCS_TRUE(strstr(dcomm_last_error(), "rank 2 on host") != NULL);
    PROCS_TRUE(strstr(dcomm_last_error(), "host1") != NULL);
    return procs_leaks();
}

Test(bare, two_hosts, .timeout = 60)
{
    run(4, two_hosts, NULL);
}
