/* test_engine.c - what the engine must do when it is used in unusual order: groups that hold
 * numbers back, calls that cannot be queued, communicators that are not there yet, plans that go
 * away. */
#define _GNU_SOURCE
#include "run_ranks.h"

#include <pthread.h>

/* ---- groups ---- */

enum { LATER = 40 }; /* what the window lets go ahead */

static void *broadcast_from_0(void *comm)
{
    for (int i = 0; i < LATER; i++) {
        int32_t value = 7 + i;
        RANKS_OK(dcomm_broadcast(comm, &value, &value, 1, DCOMM_I32, 0, NULL));
        PROCS_TRUE(value == 7 + i);
    }
    return NULL;
}

/* Rank 0 numbers an all-reduce in a group, and starts it when another thread's later broadcasts are
 * over; the others' parts of the all-reduce come in between. */
static int held_back(int rank, int n, procs_shared *s, void *arg)
{
    (void)arg;
    ranks_settle(rank, n, RANKS_LOCAL);
    dcomm_comm *comm = ranks_join(rank, n, s, &(dcomm_comm_opts){.timeout_s = 8});
    int32_t in = rank + 1, out = 0;
    dcomm_request *request = NULL;
    if (rank == 0) {
        RANKS_OK(dcomm_group_start());
    } else {
        while (!procs_all(s, 1, 1, -1)) {
            procs_nap();
        }
    }
    RANKS_OK(dcomm_iallreduce(comm, &in, &out, 1, DCOMM_I32, DCOMM_SUM, NULL, &request));
    if (rank == 0) {
        pthread_t other;
        PROCS_TRUE(pthread_create(&other, NULL, broadcast_from_0, comm) == 0);
        pthread_join(other, NULL);
        procs_post(s, rank, 1);
        while (!procs_all(s, n, 1, -1)) {
            procs_nap();
        }
        for (int i = 0; i < 10; i++) {
            nanosleep(&(struct timespec){.tv_nsec = 10000000}, NULL);
            RANKS_OK(dcomm_context_progress(dcomm_comm_context(comm)));
        }
        RANKS_OK(dcomm_group_end());
    } else {
        procs_post(s, rank, 1);
        broadcast_from_0(comm);
    }
    RANKS_OK(dcomm_wait(&request));
    PROCS_CHECK(out == n * (n + 1) / 2, "the sum is %d", out);
    for (int i = 0; i < LATER; i++) { /* and the window moves on */
        RANKS_OK(dcomm_allreduce(comm, &in, &out, 1, DCOMM_I32, DCOMM_SUM, NULL));
    }
    RANKS_OK(dcomm_comm_destroy(&comm));
    return 0;
}

Test(engine, a_group_holds_a_number_back, .timeout = 60)
{
    run(3, held_back, NULL);
}

static int not_in_a_group(int rank, int n, procs_shared *s, void *arg)
{
    (void)arg;
    ranks_settle(rank, n, RANKS_LOCAL);
    dcomm_comm *comm = ranks_join(rank, n, s, NULL), *other = NULL;
    int last = n - 1;
    RANKS_OK(dcomm_group_start());
    PROCS_TRUE(dcomm_comm_split(comm, 0, 0, &other) == DCOMM_ERR_INVALID && other == NULL);
    PROCS_TRUE(strstr(dcomm_last_error(), "group") != NULL);
    PROCS_TRUE(dcomm_comm_dup(comm, &other) == DCOMM_ERR_INVALID);
    PROCS_TRUE(rank == last || dcomm_comm_shrink(comm, &last, 1, &other) == DCOMM_ERR_INVALID);
    RANKS_OK(dcomm_group_end());
    RANKS_OK(dcomm_comm_dup(comm, &other));
    RANKS_OK(dcomm_barrier(other, NULL));
    RANKS_OK(dcomm_comm_destroy(&other));
    RANKS_OK(dcomm_comm_destroy(&comm));
    return 0;
}

Test(engine, a_group_queues_no_split, .timeout = 60)
{
    run(2, not_in_a_group, NULL);
}

/* ---- creation ---- */

static int not_there_yet(int rank, int n, procs_shared *s, void *arg)
{
    (void)arg;
    ranks_settle(rank, n, RANKS_LOCAL);
    char host[] = "one host", algo[] = "ring";
    dcomm_comm_opts opts = {.boot = DCOMM_BOOT_ID,
                            .rank = rank,
                            .size = n,
                            .algo = "no such algorithm",
                            .context_opts = {.host_id = host}};
    dcomm_comm *comm = NULL;
    dcomm_stats stats;
    size_t len;
    PROCS_TRUE(dcomm_comm_create_start(&opts, &comm) == DCOMM_ERR_INVALID && comm == NULL);
    opts.algo = algo;
    if (rank == 0) {
        RANKS_OK(dcomm_id_create(&opts.id));
    } else {
        memcpy(&opts.id, procs_take(s, 0, &len), sizeof opts.id);
    }
    RANKS_OK(dcomm_comm_create_start(&opts, &comm));
    memset(host, 'x', sizeof host - 1);
    memset(algo, 'x', sizeof algo - 1);
    if (rank == 0) { /* the other rank has no id yet, so it cannot be ready */
        PROCS_TRUE(dcomm_comm_ready(comm) == DCOMM_IN_PROGRESS);
        PROCS_TRUE(dcomm_comm_rank(comm) == -1 && dcomm_comm_size(comm) == -1);
        PROCS_TRUE(dcomm_comm_context(comm) == NULL && dcomm_comm_hostname(comm, 0) == NULL);
        PROCS_TRUE(dcomm_comm_host(comm, 0) == -1);
        PROCS_TRUE(dcomm_comm_stats(comm, &stats) == DCOMM_ERR_INVALID);
        PROCS_TRUE(dcomm_comm_abort(comm, "too early") == DCOMM_ERR_INVALID);
        PROCS_TRUE(dcomm_barrier(comm, NULL) == DCOMM_ERR_INVALID);
        procs_give(s, 0, &opts.id, sizeof opts.id);
    }
    while (dcomm_comm_ready(comm) == DCOMM_IN_PROGRESS) {
        procs_nap();
    }
    RANKS_OK(dcomm_comm_ready(comm));
    PROCS_TRUE(dcomm_comm_rank(comm) == rank && dcomm_comm_size(comm) == n);
    PROCS_TRUE(dcomm_comm_host(comm, n - 1) == 0);
    int32_t in[4] = {rank, 1, 2, 3}, out[4];
    dcomm_request *request = NULL;
    dcomm_request_info info;
    RANKS_OK(dcomm_iallreduce(comm, in, out, 4, DCOMM_I32, DCOMM_SUM, NULL, &request));
    RANKS_OK(dcomm_request_query(request, &info));
    PROCS_CHECK(strcmp(info.algo, "ring") == 0, "%s runs", info.algo);
    RANKS_OK(dcomm_wait(&request));
    PROCS_TRUE(out[0] == n * (n - 1) / 2 && out[3] == 3 * n);
    RANKS_OK(dcomm_comm_destroy(&comm));
    return 0;
}

Test(engine, creation_in_a_thread_has_its_own_options, .timeout = 60)
{
    run(2, not_there_yet, NULL);
}

/* ---- plans ---- */

/* Rank 0's plan does nothing, and is gone when rank 1 calls another thing in its place. */
static int gone_plan(int rank, int n, procs_shared *s, void *arg)
{
    (void)arg;
    ranks_settle(rank, n, RANKS_LOCAL);
    dcomm_comm *comm = ranks_join(rank, n, s, NULL);
    float value = 1, sum = 0;
    dcomm_status status = DCOMM_OK;
    if (rank == 0) {
        char *name = malloc(16);
        dcomm_plan *plan = calloc(1, sizeof *plan);
        PROCS_TRUE(name != NULL && plan != NULL);
        snprintf(name, 16, "%s", "a name");
        *plan = (dcomm_plan){.name = name, .rank = rank, .nranks = n, .dtype = DCOMM_F32};
        RANKS_OK(dcomm_plan_run(comm, plan, NULL, NULL, NULL, 1, NULL));
        free(name);
        free(plan);
        while (status == DCOMM_OK) {
            status = dcomm_allreduce(comm, &value, &sum, 1, DCOMM_F32, DCOMM_SUM, NULL);
        }
    } else {
        status = dcomm_allreduce(comm, &value, &sum, 1, DCOMM_F32, DCOMM_SUM, NULL);
    }
    PROCS_CHECK(status == DCOMM_ERR_MISMATCH, "%s: %s", dcomm_status_name(status),
                dcomm_last_error());
    PROCS_CHECK(strstr(dcomm_last_error(), "plan(") != NULL, "%s", dcomm_last_error());
    RANKS_OK(dcomm_comm_destroy(&comm));
    return 0;
}

Test(engine, a_plan_may_go_after_its_run, .timeout = 60)
{
    run(2, gone_plan, NULL);
}

Test(engine, no_plan_without_counts)
{
    static const dcomm_coll colls[] = {DCOMM_COLL_REDUCE_SCATTERV, DCOMM_COLL_ALLGATHERV,
                                       DCOMM_COLL_GATHERV, DCOMM_COLL_SCATTERV,
                                       DCOMM_COLL_ALLTOALLV};
    for (size_t i = 0; i < sizeof colls / sizeof colls[0]; i++) {
        dcomm_check_spec spec = {.coll = colls[i], .count = 3, .dtype = DCOMM_F32};
        dcomm_plan *plan = NULL;
        cr_expect(dcomm_plan_create(&spec, DCOMM_SUM, 0, 3, NULL, &plan) == DCOMM_ERR_INVALID);
        cr_expect(plan == NULL);
    }
}
