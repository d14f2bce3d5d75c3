/* test_engine.c - the engine in unusual orders of calls: groups that hold numbers back, calls that
 * cannot be queued, communicators that are not ready yet, plans that are freed. */
#define _GNU_SOURCE
#include "run_ranks.h"

#include <pthread.h>
#include <sched.h>

/* ---- groups ---- */

enum { LATER = 40 }; /* operations that the window lets go ahead */

static void *broadcast_from_0(void *comm)
{
    for (int i = 0; i < LATER; i++) {
        int32_t value = 7 + i;
        RANKS_OK(dcomm_broadcast(comm, &value, &value, 1, DCOMM_I32, 0, NULL));
        PROCS_TRUE(value == 7 + i);
    }
    return NULL;
}

/* Rank 0 numbers an all-reduce in a group, and starts it after another thread's later broadcasts
 * have ended. The other ranks' parts of the all-reduce arrive in between. */
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

/* ---- destroyed while in use ---- */

static void add_i32(const void *in, void *inout, size_t count, dcomm_dtype dtype, void *user)
{
    (void)dtype;
    ++*(int *)user;
    for (size_t i = 0; i < count; i++) {
        int32_t a, b;
        memcpy(&a, (const char *)in + 4 * i, 4);
        memcpy(&b, (char *)inout + 4 * i, 4);
        b += a;
        memcpy((char *)inout + 4 * i, &b, 4);
    }
}

/* Ranks destroy operators at different times; a new operator still gets the same number on all
 * ranks. */
static int numbered_operators(int rank, int n, procs_shared *s, void *arg)
{
    enum { COUNT = 5000 };
    (void)arg;
    ranks_settle(rank, n, RANKS_LOCAL);
    dcomm_comm *comm = ranks_join(rank, n, s, NULL);
    dcomm_op first, second, third;
    int calls = 0;
    int32_t in[COUNT], out[COUNT];
    dcomm_request *request = NULL;
    for (int i = 0; i < COUNT; i++) {
        in[i] = rank + i;
    }
    RANKS_OK(dcomm_op_create(add_i32, &calls, &first));
    if (rank == 0) {
        RANKS_OK(dcomm_op_destroy(first));
    }
    RANKS_OK(dcomm_op_create(add_i32, &calls, &second));
    if (rank != 0) {
        RANKS_OK(dcomm_op_destroy(first));
    }
    RANKS_OK(dcomm_op_create(add_i32, &calls, &third));
    PROCS_TRUE(second == first + 1 && third == first + 2);
    for (size_t count = 1; count <= COUNT; count *= 10) {
        RANKS_OK(dcomm_allreduce(comm, in, out, count, DCOMM_I32, second, NULL));
        PROCS_TRUE(out[count - 1] == n * (n - 1) / 2 + n * ((int)count - 1));
    }
    /* A destroyed operator serves outstanding calls only. */
    RANKS_OK(dcomm_iallreduce(comm, in, out, COUNT, DCOMM_I32, third, NULL, &request));
    RANKS_OK(dcomm_op_destroy(third));
    ranks_refused(dcomm_allreduce(comm, in, out, 1, DCOMM_I32, third, NULL), DCOMM_ERR_INVALID,
                  "op");
    RANKS_OK(dcomm_wait(&request));
    PROCS_TRUE(out[COUNT - 1] == n * (n - 1) / 2 + n * (COUNT - 1) && calls > 0);
    RANKS_OK(dcomm_op_destroy(second));
    return ranks_leave(&comm);
}

Test(engine, operators_are_numbered_by_creation, .timeout = 60)
{
    run(3, numbered_operators, NULL);
}

/* Destroying waits for outstanding operations, also for those that another rank starts late. */
static int destroyed_early(int rank, int n, procs_shared *s, void *arg)
{
    enum { OPS = 20, COUNT = 3000 };
    (void)arg;
    ranks_settle(rank, n, RANKS_LOCAL);
    dcomm_comm *comm = ranks_join(rank, n, s, NULL);
    static int32_t data[OPS][COUNT];
    dcomm_request *requests[OPS] = {NULL};
    int calls = 0;
    dcomm_op op;
    RANKS_OK(dcomm_op_create(add_i32, &calls, &op));
    RANKS_OK(dcomm_group_start());
    RANKS_OK(dcomm_barrier(comm, NULL));
    ranks_refused(dcomm_comm_destroy(&comm), DCOMM_ERR_INVALID, "group");
    PROCS_TRUE(comm != NULL);
    RANKS_OK(dcomm_group_end());
    if (rank == n - 1) {
        nanosleep(&(struct timespec){.tv_nsec = 200000000}, NULL);
    }
    for (int k = 0; k < OPS; k++) {
        for (int i = 0; i < COUNT; i++) {
            data[k][i] = rank * k + i;
        }
        RANKS_OK(
            dcomm_iallreduce(comm, data[k], data[k], COUNT, DCOMM_I32, op, NULL, &requests[k]));
    }
    RANKS_OK(dcomm_op_destroy(op));
    RANKS_OK(dcomm_comm_destroy(&comm));
    for (int k = 0; k < OPS; k++) {
        PROCS_TRUE(data[k][COUNT - 1] == n * (n - 1) / 2 * k + n * (COUNT - 1));
    }
    RANKS_OK(dcomm_wait_all(requests, OPS));
    return ranks_are_threads ? 0 : procs_leaks();
}

Test(engine, destroying_waits, .timeout = 60)
{
    run(2, destroyed_early, NULL);
    run(3, destroyed_early, NULL);
}

/* A goodbye leaves before its rank computes: the connection over which it goes is only opened for
 * it, and nobody makes progress afterwards. */
static int parted(int rank, int n, procs_shared *s, void *arg)
{
    float x = 1;
    dcomm_context *context = NULL;
    (void)arg;
    ranks_settle(rank, n, RANKS_HOSTS);
    RANKS_OK(dcomm_context_create(NULL, &context));
    dcomm_comm *comm = ranks_join(rank, n, s, &(dcomm_comm_opts){.context = context, .tune = -1});
    if (rank == 0) {
        RANKS_OK(dcomm_send(comm, &x, 1, DCOMM_F32, 1, NULL));
    } else {
        RANKS_OK(dcomm_recv(comm, &x, 1, DCOMM_F32, 0, NULL));
    }
    const double start = procs_now();
    RANKS_OK(dcomm_comm_destroy(&comm));
    const double took = procs_now() - start;
    PROCS_CHECK(took < 2, "%.2f s", took);
    if (rank == 1) {
        nanosleep(&(struct timespec){.tv_sec = 3}, NULL);
    }
    RANKS_OK(dcomm_context_destroy(&context));
    return procs_leaks();
}

Test(engine, a_goodbye_leaves_at_once, .timeout = 60)
{
    run(2, parted, NULL);
}

/* ---- several requests ---- */

enum { SEVERAL = 6 };
static int32_t several[SEVERAL];

static void start_several(dcomm_comm *comm, dcomm_request **requests)
{
    for (int i = 0; i < SEVERAL; i++) {
        several[i] = dcomm_comm_rank(comm) + i;
        requests[i] = NULL;
        if (i != 2) {
            RANKS_OK(dcomm_iallreduce(comm, &several[i], &several[i], 1, DCOMM_I32, DCOMM_SUM, NULL,
                                      &requests[i]));
        }
    }
}

static void settled(int n, dcomm_request *const *requests)
{
    for (int i = 0; i < SEVERAL; i++) {
        PROCS_TRUE(requests[i] == NULL);
        PROCS_TRUE(i == 2 || several[i] == n * (n - 1) / 2 + n * i);
    }
}

static int several_requests(int rank, int n, procs_shared *s, void *arg)
{
    (void)arg;
    ranks_settle(rank, n, RANKS_LOCAL);
    dcomm_comm *comm = ranks_join(rank, n, s, NULL);
    dcomm_request *r[SEVERAL];
    size_t at, count, indices[SEVERAL];
    dcomm_status status;
    start_several(comm, r);
    while ((status = dcomm_test_all(r, SEVERAL)) == DCOMM_IN_PROGRESS) {
        PROCS_TRUE(r[0] != NULL && r[SEVERAL - 1] != NULL);
    }
    RANKS_OK(status);
    settled(n, r);
    for (int waits = 0; waits < 2; waits++) {
        bool seen[SEVERAL] = {false};
        start_several(comm, r);
        for (int i = 0; i < SEVERAL - 1; i++) {
            do {
                status = waits ? dcomm_wait_any(r, SEVERAL, &at) : dcomm_test_any(r, SEVERAL, &at);
                PROCS_TRUE(status != DCOMM_IN_PROGRESS || (at == SEVERAL && !waits));
            } while (status == DCOMM_IN_PROGRESS);
            RANKS_OK(status);
            PROCS_TRUE(at < SEVERAL && r[at] == NULL && !seen[at]);
            seen[at] = true;
        }
        settled(n, r);
        RANKS_OK(waits ? dcomm_wait_any(r, SEVERAL, &at) : dcomm_test_any(r, SEVERAL, &at));
        PROCS_TRUE(at == SEVERAL);
    }
    start_several(comm, r);
    for (size_t left = SEVERAL - 1; left > 0; left -= count) {
        RANKS_OK(dcomm_wait_some(r, SEVERAL, indices, &count));
        PROCS_TRUE(count > 0 && count <= left);
        for (size_t i = 0; i < count; i++) {
            PROCS_TRUE(r[indices[i]] == NULL && (i == 0 || indices[i] > indices[i - 1]));
        }
    }
    settled(n, r);
    RANKS_OK(dcomm_wait_some(r, SEVERAL, NULL, &count));
    PROCS_TRUE(count == 0);

    /* Requests in a group have not started. They complete even if the caller frees them. */
    RANKS_OK(dcomm_group_start());
    start_several(comm, r);
    PROCS_TRUE(dcomm_test_all(r, SEVERAL) == DCOMM_IN_PROGRESS);
    PROCS_TRUE(dcomm_test_any(r, SEVERAL, &at) == DCOMM_IN_PROGRESS && at == SEVERAL);
    ranks_refused(dcomm_wait_any(r, SEVERAL, &at), DCOMM_ERR_INVALID, "dcomm_group_end");
    for (int i = 0; i < SEVERAL; i += 3) {
        RANKS_OK(dcomm_request_free(&r[i]));
    }
    RANKS_OK(dcomm_group_end());
    for (int i = 0; i < SEVERAL; i++) {
        RANKS_OK(dcomm_request_free(&r[i]));
    }
    RANKS_OK(dcomm_request_free(NULL));
    ranks_refused(dcomm_wait_any(NULL, 1, &at), DCOMM_ERR_INVALID, "requests");
    ranks_refused(dcomm_test_any(r, 1, NULL), DCOMM_ERR_INVALID, "index_p");
    ranks_refused(dcomm_wait_some(r, 1, indices, NULL), DCOMM_ERR_INVALID, "count_p");
    RANKS_OK(dcomm_comm_destroy(&comm));
    settled(n, r);
    return ranks_are_threads ? 0 : procs_leaks();
}

Test(engine, several_requests, .timeout = 60)
{
    run(2, several_requests, NULL);
    run(3, several_requests, NULL);
}

/* Ranks share a core: a rank that tests must yield to the others, as a rank that waits does. */
static int tests_yield(int rank, int n, procs_shared *s, void *arg)
{
    enum { CALLS = 100 };
    (void)arg;
    cpu_set_t all, one;
    PROCS_TRUE(sched_getaffinity(0, sizeof all, &all) == 0);
    int core = 0;
    while (!CPU_ISSET(core, &all)) {
        core++;
    }
    CPU_ZERO(&one);
    CPU_SET(core, &one);
    PROCS_TRUE(sched_setaffinity(0, sizeof one, &one) == 0);
    ranks_settle(rank, n, RANKS_LOCAL);
    dcomm_comm *comm = ranks_join(rank, n, s, NULL);
    double took[3];
    for (int how = 0; how < 3; how++) {
        RANKS_OK(dcomm_barrier(comm, NULL));
        double start = procs_now();
        for (int i = 0; i < CALLS; i++) {
            int32_t x = rank, y = 0;
            size_t at;
            dcomm_request *request = NULL;
            RANKS_OK(dcomm_iallreduce(comm, &x, &y, 1, DCOMM_I32, DCOMM_SUM, NULL, &request));
            dcomm_status status = how == 0 ? dcomm_wait(&request) : DCOMM_IN_PROGRESS;
            while (status == DCOMM_IN_PROGRESS) {
                status = how == 1 ? dcomm_test(&request) : dcomm_test_any(&request, 1, &at);
            }
            RANKS_OK(status);
            PROCS_TRUE(y == n * (n - 1) / 2);
        }
        took[how] = procs_now() - start;
    }
    PROCS_CHECK(took[1] < 0.2 + 5 * took[0] && took[2] < 0.2 + 5 * took[0],
                "%g s with waits, %g and %g s with tests", took[0], took[1], took[2]);
    return ranks_leave(&comm);
}

Test(engine, tests_yield, .timeout = 60)
{
    run(4, tests_yield, NULL);
}

/* ---- creation ---- */

/* One rank's options are bad: the other ranks get the error at once. */
static int one_has_a_typo(int rank, int n, procs_shared *s, void *arg)
{
    (void)arg;
    ranks_settle(rank, n, RANKS_LOCAL);
    dcomm_comm_opts opts = {.boot = DCOMM_BOOT_ID, .rank = rank, .size = n, .timeout_s = 30};
    dcomm_comm *comm = NULL;
    size_t len;
    double start = procs_now();
    if (rank == 0) {
        RANKS_OK(dcomm_id_create(&opts.id));
        procs_give(s, 0, &opts.id, sizeof opts.id);
    } else {
        memcpy(&opts.id, procs_take(s, 0, &len), sizeof opts.id);
    }
    opts.algo = rank == 1 ? "rnig" : NULL;
    ranks_refused(dcomm_comm_create(&opts, &comm), DCOMM_ERR_INVALID,
                  rank == 1 ? "no operation has an algorithm \"rnig\""
                            : "rank 1 cannot take part: no operation has an algorithm \"rnig\"");
    PROCS_TRUE(comm == NULL && procs_now() - start < 15);
    return 0;
}

Test(engine, a_rank_that_cannot_take_part_says_why, .timeout = 60)
{
    run(3, one_has_a_typo, NULL);
}

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
        PROCS_TRUE(dcomm_comm_get_stats(comm, &stats) == DCOMM_ERR_INVALID);
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
    RANKS_OK(dcomm_request_get_info(request, &info));
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

/* Rank 0's plan does nothing, and is freed by the time rank 1 calls something else in its
 * place. */
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
