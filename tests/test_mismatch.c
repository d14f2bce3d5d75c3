/* test_mismatch.c - ranks that call different things: DCOMM_ERR_MISMATCH on every rank, with a
 * sentence that says who called what; and calls that are refused before anything is sent. */
#define _GNU_SOURCE
#include "faults.h"
#include "run_ranks.h"

#include <sys/wait.h>

enum { N = 3, ODD = 1, COUNT = 2000 };

static float in_buffer[N * N * COUNT], out_buffer[N * N * COUNT];

typedef struct field {
    const char *name;
    dcomm_status (*call)(dcomm_comm *comm, bool odd);
    const char *words[3]; /* of the sentence, besides both ranks */
} field;

#define CALL(name) static dcomm_status name(dcomm_comm *comm, bool odd)

CALL(count)
{
    return dcomm_allreduce(comm, in_buffer, out_buffer, odd ? 8 : 9, DCOMM_F32, DCOMM_SUM, NULL);
}

CALL(count_long)
{
    return dcomm_allreduce(comm, in_buffer, out_buffer, odd ? COUNT : COUNT - 1, DCOMM_F32,
                           DCOMM_SUM, &(dcomm_coll_opts){.algo = "ring"});
}

CALL(count_none)
{
    return dcomm_allreduce(comm, in_buffer, out_buffer, odd ? 0 : 9, DCOMM_F32, DCOMM_SUM, NULL);
}

CALL(dtype)
{
    return dcomm_allreduce(comm, in_buffer, out_buffer, COUNT, odd ? DCOMM_I32 : DCOMM_F32,
                           DCOMM_SUM, NULL);
}

CALL(op)
{
    return dcomm_allreduce(comm, in_buffer, out_buffer, COUNT, DCOMM_F32,
                           odd ? DCOMM_MAX : DCOMM_SUM, NULL);
}

CALL(root_of_broadcast)
{
    return dcomm_broadcast(comm, in_buffer, out_buffer, COUNT, DCOMM_F32, odd ? 1 : 0, NULL);
}

CALL(root_of_short_broadcast)
{
    return dcomm_broadcast(comm, in_buffer, out_buffer, 1, DCOMM_F32, odd ? 1 : 0, NULL);
}

CALL(root_of_reduce)
{
    return dcomm_reduce(comm, in_buffer, out_buffer, COUNT, DCOMM_F32, DCOMM_SUM, odd ? 2 : 0,
                        NULL);
}

CALL(operation)
{
    return odd ? dcomm_allgather(comm, in_buffer, out_buffer, COUNT, DCOMM_F32, NULL)
               : dcomm_allreduce(comm, in_buffer, out_buffer, COUNT, DCOMM_F32, DCOMM_SUM, NULL);
}

CALL(barrier)
{
    return odd ? dcomm_barrier(comm, NULL)
               : dcomm_allreduce(comm, in_buffer, out_buffer, COUNT, DCOMM_F32, DCOMM_SUM, NULL);
}

CALL(algorithm)
{
    dcomm_coll_opts opts = {.algo = odd ? "ring" : "tree"};
    return dcomm_allreduce(comm, in_buffer, out_buffer, COUNT, DCOMM_F32, DCOMM_SUM, &opts);
}

CALL(lanes)
{
    dcomm_coll_opts opts = {.algo = "ring", .lanes = odd ? 2 : 1};
    return dcomm_allreduce(comm, in_buffer, out_buffer, COUNT, DCOMM_F32, DCOMM_SUM, &opts);
}

CALL(chunk)
{
    dcomm_coll_opts opts = {.algo = "ring", .chunk_bytes = odd ? 256 : 512};
    return dcomm_allreduce(comm, in_buffer, out_buffer, COUNT, DCOMM_F32, DCOMM_SUM, &opts);
}

CALL(deterministic)
{
    dcomm_coll_opts opts = {.algo = "two_shot", .deterministic = odd};
    return dcomm_allreduce(comm, in_buffer, out_buffer, COUNT, DCOMM_F32, DCOMM_SUM, &opts);
}

CALL(counts)
{
    size_t counts[N] = {3, 4, odd ? 6 : 5};
    return dcomm_allgatherv(comm, in_buffer, out_buffer, counts, NULL, DCOMM_F32, NULL);
}

CALL(counts_of_scatter)
{
    size_t counts[N] = {3, odd ? 6 : 4, 5};
    return dcomm_reduce_scatterv(comm, in_buffer, out_buffer, counts, DCOMM_F32, DCOMM_SUM, NULL);
}

/* Only ranks 0 and 1 speak. */
static dcomm_status exchange(dcomm_comm *comm, bool odd, size_t sent, size_t received,
                             dcomm_dtype dtype)
{
    int rank = dcomm_comm_rank(comm);
    if (odd) {
        return dcomm_recv(comm, in_buffer, received, dtype, 0, NULL);
    }
    return rank == 0 ? dcomm_send(comm, out_buffer, sent, DCOMM_F32, ODD, NULL) : DCOMM_OK;
}

CALL(send_count)
{
    return exchange(comm, odd, 4, 5, DCOMM_F32);
}

CALL(send_count_long)
{
    return exchange(comm, odd, 3 * COUNT, 3 * COUNT - 1, DCOMM_F32);
}

CALL(send_count_longer)
{
    return exchange(comm, odd, 3 * COUNT - 1, 3 * COUNT, DCOMM_F32);
}

CALL(send_nothing)
{
    return exchange(comm, odd, 0, 5, DCOMM_F32);
}

CALL(send_dtype)
{
    return exchange(comm, odd, 4, 4, DCOMM_I32);
}

CALL(alltoallv)
{
    size_t send[N] = {2, 2, 2}, receive[N] = {2, 2, 2};
    send[0] = odd ? 3 : 2;
    return dcomm_alltoallv(comm, in_buffer, send, NULL, out_buffer, receive, NULL, DCOMM_F32, NULL);
}

CALL(alltoallv_none)
{
    size_t send[N] = {2, 2, 2}, receive[N] = {2, 2, 2};
    send[0] = odd ? 0 : 2;
    return dcomm_alltoallv(comm, in_buffer, send, NULL, out_buffer, receive, NULL, DCOMM_F32, NULL);
}

#define FIELD(name, ...) \
    {                    \
#name, name,     \
        {                \
            __VA_ARGS__  \
        }                \
    }

static const field fields[] = {
    FIELD(count, "count 8", "count 9"),
    FIELD(count_long, "count 2000", "count 1999"),
    FIELD(count_none, "count 0", "count 9"),
    FIELD(dtype, "i32", "f32"),
    FIELD(op, "max", "sum"),
    FIELD(root_of_broadcast, "root 0", "root 1"),
    FIELD(root_of_short_broadcast, "root 0", "root 1"),
    FIELD(root_of_reduce, "root 0", "root 2"),
    FIELD(operation, "all-gather", "all-reduce"),
    FIELD(barrier, "barrier", "all-reduce"),
    FIELD(algorithm, "ring", "tree"),
    FIELD(lanes, "ring"),
    FIELD(chunk, "ring"),
    FIELD(deterministic, "two_shot"),
    FIELD(counts, "all-gather-v"),
    FIELD(counts_of_scatter, "reduce-scatter-v"),
    FIELD(send_count, "send", "from rank 0"),
    FIELD(send_count_long, "send", "recv"),
    FIELD(send_count_longer, "send", "recv"),
    FIELD(send_nothing, "send", "recv"),
    FIELD(send_dtype, "send", "recv"),
    FIELD(alltoallv, "12 bytes", "8"),
    FIELD(alltoallv_none, "0 bytes", "8"),
};

static int disagree(int rank, int n, procs_shared *s, void *arg)
{
    fault_rank f;
    fault_join(&f, rank, n, s, *(fault_place *)arg, 10);
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++) {
        const field *x = &fields[i];
        double start = procs_now();
        dcomm_status status = x->call(f.comm, rank == ODD);
        while (status == DCOMM_OK) { /* done with it before it was found: a later call tells */
            PROCS_CHECK(procs_now() < start + 2, "%s, rank %d: no error", x->name, rank);
            status = dcomm_barrier(f.comm, NULL);
        }
        double took = procs_now() - start;
        PROCS_CHECK(status == DCOMM_ERR_MISMATCH, "%s, rank %d: %s: %s", x->name, rank,
                    dcomm_status_name(status), dcomm_last_error());
        PROCS_CHECK(took < 2, "%s took %.1f s", x->name, took);
        char other[16];
        PROCS_CHECK(strstr(dcomm_last_error(), "rank 1") != NULL, "%s: %s", x->name,
                    dcomm_last_error());
        snprintf(other, sizeof other, "rank %d", strstr(dcomm_last_error(), "rank 0") ? 0 : 2);
        fault_expect(&f, status, DCOMM_ERR_MISMATCH, (const char *[]){other, NULL});
        fault_expect(&f, status, DCOMM_ERR_MISMATCH, x->words);
        PROCS_CHECK(strncmp(x->name, "send", 4) != 0 ||
                        (strstr(dcomm_last_error(), "sum") == NULL &&
                         strstr(dcomm_last_error(), "root") == NULL),
                    "%s: %s", x->name, dcomm_last_error());
        fault_recover(&f, -1);
    }
    return fault_leave(&f);
}

Test(mismatch, every_field, .timeout = 60)
{
    run(N, disagree, &(fault_place){LOCAL});
}

Test(mismatch, every_field_net, .timeout = 60)
{
    run(N, disagree, &(fault_place){NET});
}

/* ---- refused before anything is sent ---- */

#define REFUSED(call, want, word)                                                           \
    do {                                                                                    \
        dcomm_status got_ = (call);                                                         \
        PROCS_CHECK(got_ == (want), "%s gave %s", #call, dcomm_status_name(got_));          \
        PROCS_CHECK(strstr(dcomm_last_error(), word) != NULL, "\"%s\" is not in: %s", word, \
                    dcomm_last_error());                                                    \
    } while (0)

static int bad_arguments(int rank, int n, procs_shared *s, void *arg)
{
    (void)arg;
    fault_rank f;
    float *in = in_buffer, *out = out_buffer;
    size_t counts[N] = {1, 2, 3}, huge[N] = {1, SIZE_MAX / 2, SIZE_MAX / 2};
    dcomm_request *request = NULL;
    dcomm_comm *none = NULL;
    fault_join(&f, rank, n, s, LOCAL, 5);
    dcomm_comm *c = f.comm;
    const dcomm_status bad = DCOMM_ERR_INVALID;
    REFUSED(dcomm_allreduce(NULL, in, out, 1, DCOMM_F32, DCOMM_SUM, NULL), bad, "comm is NULL");
    REFUSED(dcomm_allreduce(c, NULL, out, 1, DCOMM_F32, DCOMM_SUM, NULL), bad, "sendbuf is NULL");
    REFUSED(dcomm_allreduce(c, in, NULL, 1, DCOMM_F32, DCOMM_SUM, NULL), bad, "recvbuf is NULL");
    REFUSED(dcomm_allreduce(c, DCOMM_IN_PLACE, NULL, 1, DCOMM_F32, DCOMM_SUM, NULL), bad, "NULL");
    REFUSED(dcomm_allreduce(c, in, out, 1, (dcomm_dtype)10, DCOMM_SUM, NULL), bad, "dtype is 10");
    REFUSED(dcomm_allreduce(c, in, out, 1, (dcomm_dtype)-1, DCOMM_SUM, NULL), bad, "dtype is -1");
    REFUSED(dcomm_allreduce(c, in, out, 1, DCOMM_F32, (dcomm_op)6, NULL), bad, "op is 6");
    REFUSED(dcomm_allreduce(c, in, out, 1, DCOMM_F32, (dcomm_op)128, NULL), bad, "op is 128");
    REFUSED(dcomm_allreduce(c, in, out, 1, DCOMM_F32, DCOMM_OP_USER, NULL), bad, "op is 64");
    REFUSED(dcomm_allreduce(c, in, out, SIZE_MAX / 4, DCOMM_F32, DCOMM_SUM, NULL), bad, "count");
    REFUSED(dcomm_broadcast(c, in, out, 1, DCOMM_F32, 3, NULL), bad, "rank 3");
    REFUSED(dcomm_broadcast(c, in, out, 1, DCOMM_F32, -1, NULL), bad, "rank -1");
    REFUSED(dcomm_send(c, in, 1, DCOMM_F32, 7, NULL), bad, "rank 7");
    REFUSED(dcomm_send(c, in, 1, DCOMM_F32, rank, NULL), bad, "rank");
    REFUSED(dcomm_recv(c, NULL, 1, DCOMM_F32, (rank + 1) % n, NULL), bad, "NULL");
    REFUSED(dcomm_allgatherv(c, in, out, NULL, NULL, DCOMM_F32, NULL), bad, "counts is NULL");
    REFUSED(dcomm_allgatherv(c, in, out, huge, NULL, DCOMM_F32, NULL), bad, "2^62");
    REFUSED(dcomm_alltoallv(c, in, NULL, NULL, out, counts, NULL, DCOMM_F32, NULL), bad, "counts");
    REFUSED(
        dcomm_allreduce(c, in, out, 1, DCOMM_F32, DCOMM_SUM, &(dcomm_coll_opts){.algo = "quick"}),
        DCOMM_ERR_UNSUPPORTED, "no algorithm \"quick\"; it has ring");
    REFUSED(dcomm_allreduce(c, in, out, 1, DCOMM_F32, DCOMM_SUM,
                            &(dcomm_coll_opts){.algo = "ring", .deterministic = true}),
            DCOMM_ERR_UNSUPPORTED, "one_shot");
    REFUSED(dcomm_allreduce(c, in, out, 1, DCOMM_F32, DCOMM_SUM, &(dcomm_coll_opts){.lanes = -1}),
            bad, "lanes is -1");
    REFUSED(
        dcomm_allreduce(c, in, out, 1, DCOMM_F32, DCOMM_SUM, &(dcomm_coll_opts){.timeout_s = -1}),
        bad, "timeout_s is -1");
    REFUSED(dcomm_iallreduce(c, in, out, 1, DCOMM_F32, DCOMM_SUM, NULL, NULL), bad, "request");
    REFUSED(dcomm_wait(NULL), bad, "request_p");
    REFUSED(dcomm_wait_all(NULL, 1), bad, "requests");
    REFUSED(dcomm_group_end(), bad, "group");
    REFUSED(dcomm_comm_shrink(c, &(int){3}, 1, &none), bad, "rank 3");
    REFUSED(dcomm_comm_shrink(c, &rank, 1, &none), bad, "the caller itself");
    REFUSED(dcomm_comm_shrink(c, NULL, 1, &none), bad, "NULL");
    REFUSED(dcomm_comm_split(c, 0, 0, NULL), bad, "new_p");
    PROCS_TRUE(request == NULL && none == NULL);
    PROCS_TRUE(dcomm_wait(&request) == DCOMM_OK);
    PROCS_TRUE(dcomm_comm_status(c) == DCOMM_OK && dcomm_comm_error(c)[0] == 0);
    PROCS_TRUE(dcomm_allreduce(c, NULL, NULL, 0, DCOMM_F32, DCOMM_SUM, NULL) == DCOMM_OK);
    PROCS_CHECK(fault_allreduce(c, rank, NULL, COUNT, NULL) == DCOMM_OK, "%s", dcomm_last_error());
    return fault_leave(&f);
}

Test(mismatch, bad_arguments, .timeout = 60)
{
    run(N, bad_arguments, NULL);
}

static int forked(int rank, int n, procs_shared *s, void *arg)
{
    (void)arg;
    fault_rank f;
    fault_join(&f, rank, n, s, LOCAL, 10);
    pid_t child = fork();
    if (child == 0) {
        dcomm_comm *other = NULL, *c = f.comm;
        const dcomm_status no = DCOMM_ERR_FORKED;
        REFUSED(dcomm_barrier(c, NULL), no, "forked");
        REFUSED(dcomm_comm_dup(c, &other), no, "forked");
        REFUSED(dcomm_comm_create(NULL, &other), no, "forked");
        REFUSED(dcomm_comm_abort(c, NULL), no, "forked");
        REFUSED(dcomm_context_progress(dcomm_comm_context(c)), no, "forked");
        REFUSED(dcomm_comm_destroy(&c), no, "forked");
        _exit(0);
    }
    int status = -1;
    PROCS_TRUE(waitpid(child, &status, 0) == child && status == 0);
    PROCS_CHECK(fault_allreduce(f.comm, rank, NULL, COUNT, NULL) == DCOMM_OK, "%s",
                dcomm_last_error());
    return fault_leave(&f);
}

/* Nothing is in use any more: the child begins anew. */
static int forked_after_all(int rank, int n, procs_shared *s, void *arg)
{
    (void)arg;
    dcomm_comm *comm = ranks_join(rank, n, s, NULL);
    RANKS_OK(dcomm_comm_destroy(&comm));
    pid_t child = fork();
    if (child == 0) {
        float x = 1;
        RANKS_OK(dcomm_comm_create(NULL, &comm));
        RANKS_OK(dcomm_allreduce(comm, DCOMM_IN_PLACE, &x, 1, DCOMM_F32, DCOMM_SUM, NULL));
        RANKS_OK(dcomm_comm_destroy(&comm));
        _exit(0);
    }
    int status = -1;
    PROCS_TRUE(waitpid(child, &status, 0) == child && status == 0);
    return 0;
}

Test(mismatch, forked_after_all_was_destroyed, .timeout = 60)
{
    run(2, forked_after_all, NULL);
}

Test(mismatch, forked, .timeout = 60)
{
    run(2, forked, NULL);
}
