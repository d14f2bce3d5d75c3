/* test_mismatch.c - ranks that make different calls get DCOMM_ERR_MISMATCH on every rank, with a
 * sentence that names ranks and calls; and calls that are refused before anything is sent. */
#define _GNU_SOURCE
#include "faults.h"
#include "run_ranks.h"

#include <sys/wait.h>

enum { N = 3, ODD = 1, COUNT = 2000 };

static float in_buffer[N * N * COUNT], out_buffer[N * N * COUNT];

typedef struct field {
    const char *name;
    dcomm_status (*call)(dcomm_comm *comm, bool odd);
    const char *words[3]; /* parts of the sentence, besides both ranks */
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

/* Exchange a message between ranks 0 and 1 only. */
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
        const bool pair = strncmp(x->name, "send", 4) == 0; /* later collectives may succeed */
        for (int later = 0; status == DCOMM_OK; later++) {  /* ended here: the next call fails */
            PROCS_CHECK(pair ? procs_now() < start + 2 : later == 0, "%s, rank %d: no error",
                        x->name, rank);
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

Test(mismatch, every_field, .timeout = 90)
{
    run(N, disagree, &(fault_place){LOCAL});
    if (test_full()) {
        run(N, disagree, &(fault_place){NET});
    }
}

/* Two ranks that each act as the root send and return. The next barrier names both. */
static int both_are_roots(int rank, int n, procs_shared *s, void *arg)
{
    fault_rank f;
    fault_join(&f, rank, n, s, *(fault_place *)arg, 20);
    const size_t counts[] = {1, 500, 3000, N * N * COUNT};
    for (int i = 0; i < 4; i++) {
        for (int before = 0; before < 3; before++) { /* these calls succeed first */
            PROCS_TRUE(dcomm_barrier(f.comm, NULL) == DCOMM_OK);
        }
        dcomm_status status =
            dcomm_broadcast(f.comm, in_buffer, out_buffer, counts[i], DCOMM_F32, rank, NULL);
        if (status == DCOMM_OK) {
            status = dcomm_barrier(f.comm, NULL);
        }
        fault_expect(&f, status, DCOMM_ERR_MISMATCH,
                     (const char *[]){"rank 0", "rank 1", "broadcast", "root 0", "root 1", NULL});
        fault_recover(&f, -1);
    }
    return fault_leave(&f);
}

Test(mismatch, both_are_roots, .timeout = 60)
{
    run(2, both_are_roots, &(fault_place){LOCAL});
    run(2, both_are_roots, &(fault_place){NET});
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
    REFUSED(dcomm_allreduce(c, in, out, 1, (dcomm_dtype)10, DCOMM_SUM, NULL), bad, "no dtype 10");
    REFUSED(dcomm_allreduce(c, in, out, 1, (dcomm_dtype)-1, DCOMM_SUM, NULL), bad, "no dtype -1");
    REFUSED(dcomm_allreduce(c, in, out, 1, DCOMM_F32, (dcomm_op)6, NULL), bad, "no op 6");
    REFUSED(dcomm_allreduce(c, in, out, 1, DCOMM_F32, (dcomm_op)128, NULL), bad, "no op 128");
    REFUSED(dcomm_allreduce(c, in, out, 1, DCOMM_F32, DCOMM_OP_USER, NULL), bad, "no op 64");
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
        DCOMM_ERR_UNSUPPORTED, "no algorithm \"quick\"; it has hier");
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

/* ---- refused by one rank ---- */

#define REFUSAL(name) static dcomm_status refuse_##name(dcomm_comm *c, bool odd)

enum { ROOM = 300000 };
static float big_in[ROOM], big_out[ROOM];
static size_t room = ROOM; /* elements; on a network few enough to be sent eagerly */

REFUSAL(overlap)
{
    return dcomm_allreduce(c, big_in, odd ? big_in + 3 : big_out, room, DCOMM_F32, DCOMM_SUM, NULL);
}

REFUSAL(overlap_short)
{
    return dcomm_allreduce(c, odd ? big_out + 1 : big_in, big_out, 2, DCOMM_F32, DCOMM_SUM, NULL);
}

REFUSAL(overlap_gather)
{
    return dcomm_allgather(c, odd ? big_out + 1 : big_in, big_out, 100, DCOMM_F32, NULL);
}

REFUSAL(null)
{
    return dcomm_reduce_scatter(c, odd ? NULL : big_in, big_out, room / 4, DCOMM_F32, DCOMM_SUM,
                                NULL);
}

REFUSAL(dtype)
{
    return dcomm_alltoall(c, big_in, big_out, 10, odd ? (dcomm_dtype)10 : DCOMM_F32, NULL);
}

REFUSAL(root)
{
    return dcomm_broadcast(c, big_in, big_out, 10, DCOMM_F32, odd ? 9 : 1, NULL);
}

REFUSAL(algorithm)
{
    return dcomm_allreduce(c, big_in, big_out, room, DCOMM_F32, DCOMM_SUM,
                           &(dcomm_coll_opts){.algo = odd ? "quick" : NULL});
}

REFUSAL(request)
{
    dcomm_request *request = NULL;
    dcomm_status status = dcomm_ibarrier(c, NULL, odd ? NULL : &request);
    return status < 0 ? status : dcomm_wait(&request);
}

REFUSAL(barrier)
{
    return dcomm_barrier(c, &(dcomm_coll_opts){.timeout_s = odd ? -1 : 0});
}

REFUSAL(blocks)
{
    const size_t counts[N] = {5, 5, 5}, displs[N] = {0, odd ? 12 : 5, 10};
    return dcomm_allgatherv(c, big_in, big_out, counts, displs, DCOMM_F32, NULL);
}

static const struct refusal {
    const char *name;
    dcomm_status (*call)(dcomm_comm *c, bool odd);
    const char *word;
} refusals[] = {
    {"overlap", refuse_overlap, "bytes) begins 12 bytes behind sendbuf ("},
    {"overlap, short", refuse_overlap_short, "begins 4 bytes before sendbuf"},
    {"overlap, gather", refuse_overlap_gather, "overlaps"},
    {"null", refuse_null, "sendbuf is NULL"},
    {"dtype", refuse_dtype, "no dtype 10"},
    {"root", refuse_root, "rank 9"},
    {"algorithm", refuse_algorithm, "quick"},
    {"request", refuse_request, "request_p is NULL"},
    {"barrier", refuse_barrier, "timeout_s is -1"},
    {"blocks", refuse_blocks, "the block of rank 2 in recvbuf"},
};

/* One rank refuses a call. The others get the reason at once, and all can continue. */
static int refused_by_one(int rank, int n, procs_shared *s, void *arg)
{
    fault_rank f;
    const fault_place place = *(fault_place *)arg;
    room = place == NET ? 1000 : ROOM / 2;
    fault_join(&f, rank, n, s, place, 20);
    for (int late = 0; late < 2; late++) {
        for (size_t i = 0; i < sizeof refusals / sizeof *refusals; i++) {
            const struct refusal *c = &refusals[i];
            if (late == (rank == ODD)) { /* the refusing rank comes first, then last */
                usleep(20000);
            }
            double start = procs_now();
            dcomm_status status = c->call(f.comm, rank == ODD);
            double took = procs_now() - start;
            const char *why = dcomm_last_error();
            PROCS_CHECK(rank == ODD ? status == DCOMM_ERR_INVALID || status == DCOMM_ERR_UNSUPPORTED
                                    : status == DCOMM_ERR_MISMATCH,
                        "%s, rank %d: %s: %s", c->name, rank, dcomm_status_name(status), why);
            PROCS_CHECK(strstr(why, c->word) != NULL &&
                            (rank == ODD || strstr(why, "rank 1 refused") != NULL),
                        "%s, rank %d: %s", c->name, rank, why);
            PROCS_CHECK(took < 5, "%s took %.1f s", c->name, took);
            PROCS_TRUE(dcomm_comm_status(f.comm) == DCOMM_OK);
            PROCS_CHECK(fault_allreduce(f.comm, rank, NULL, i % 2 ? 1 : ROOM / 10, NULL) ==
                            DCOMM_OK,
                        "after %s: %s", c->name, dcomm_last_error());
        }
    }
    PROCS_TRUE(dcomm_barrier(f.comm, NULL) == DCOMM_OK);
    return fault_leave(&f);
}

Test(mismatch, refused_by_one, .timeout = 90)
{
    run(N, refused_by_one, &(fault_place){LOCAL}); /* on the fast path, too */
    if (test_full()) {
        run(N, refused_by_one, &(fault_place){NET});
    }
}

/* All ranks refuse many calls in a row, at different times. */
static int refused_by_all(int rank, int n, procs_shared *s, void *arg)
{
    (void)arg;
    fault_rank f;
    fault_join(&f, rank, n, s, LOCAL, 20);
    for (int round = 0; round < 3; round++) {
        for (int i = 0; i < 400; i++) {
            char algo[16];
            snprintf(algo, sizeof algo, "none-%d", i);
            REFUSED(dcomm_allreduce(f.comm, in_buffer, out_buffer, 9, DCOMM_F32, DCOMM_SUM,
                                    &(dcomm_coll_opts){.algo = algo}),
                    DCOMM_ERR_UNSUPPORTED, "no algorithm");
            if (rank == round) {
                usleep(100);
            }
        }
        PROCS_CHECK(fault_allreduce(f.comm, rank, NULL, COUNT, NULL) == DCOMM_OK, "%s",
                    dcomm_last_error());
    }
    return fault_leave(&f);
}

Test(mismatch, refused_by_all, .timeout = 60)
{
    run(N, refused_by_all, NULL);
}

/* A leaf refuses a broadcast after it has ended on the root. All ranks learn of it in the next
 * call. */
static int refused_when_over(int rank, int n, procs_shared *s, void *arg)
{
    (void)arg;
    fault_rank f;
    fault_join(&f, rank, n, s, LOCAL, 20);
    while (rank == ODD && !procs_all(s, 1, 1, -1)) { /* until it has ended on root 0 */
        procs_nap();
    }
    dcomm_status status = dcomm_broadcast(f.comm, in_buffer, rank == ODD ? NULL : out_buffer, COUNT,
                                          DCOMM_F32, 0, NULL);
    if (rank == 0) {
        procs_post(s, rank, 1);
    }
    PROCS_TRUE(rank == ODD ? status == DCOMM_ERR_INVALID
                           : status == DCOMM_OK || status == DCOMM_ERR_MISMATCH);
    if (status != DCOMM_ERR_MISMATCH) {
        status = dcomm_barrier(f.comm, NULL);
    }
    PROCS_CHECK(status == DCOMM_ERR_MISMATCH && strstr(dcomm_last_error(), "rank 1") != NULL,
                "rank %d: %s: %s", rank, dcomm_status_name(status), dcomm_last_error());
    fault_recover(&f, -1);
    return fault_leave(&f);
}

Test(mismatch, refused_when_over, .timeout = 60)
{
    run(N, refused_when_over, NULL);
}

/* ---- buffers that overlap ---- */

/* Check allowed and refused overlaps of every operation's buffers, in a first call and in repeated
 * ones. */
static int overlaps(int rank, int n, procs_shared *s, void *arg)
{
    enum { B = 8 }; /* elements of a block */
    (void)arg;
    fault_rank f;
    float *const own = big_in + rank * B;
    const dcomm_status bad = DCOMM_ERR_INVALID;
    const dcomm_dtype t = DCOMM_F32;
    const size_t counts[N] = {B, B, B}, gaps[N] = {0, 2 * B, 4 * B}, back[N] = {4 * B, 2 * B, 0};
    const size_t lapping[N] = {0, 2 * B, 3 * B - 1};
    fault_join(&f, rank, n, s, LOCAL, 20);
    dcomm_comm *c = f.comm;
    for (int again = 0; again < 3; again++) { /* repeated calls use the fast path */
        PROCS_TRUE(dcomm_allreduce(c, big_in, big_in, B, t, DCOMM_SUM, NULL) == DCOMM_OK);
        PROCS_TRUE(dcomm_allreduce(c, big_in, big_in + B, B, t, DCOMM_SUM, NULL) == DCOMM_OK);
        REFUSED(dcomm_allreduce(c, big_in, big_in + B - 1, B, t, DCOMM_SUM, NULL), bad,
                "all-reduce: recvbuf");
        REFUSED(dcomm_allreduce(c, big_in + 1, big_in, B, t, DCOMM_SUM, NULL), bad, "before");
        PROCS_TRUE(dcomm_reduce_scatter(c, big_in, own, B, t, DCOMM_SUM, NULL) == DCOMM_OK);
        REFUSED(dcomm_reduce_scatter(c, big_in, own + 1, B, t, DCOMM_SUM, NULL), bad, "overlaps");
        PROCS_TRUE(dcomm_allgather(c, own, big_in, B, t, NULL) == DCOMM_OK);
        REFUSED(dcomm_allgather(c, own + 1, big_in, B - 1, t, NULL), bad, "overlaps");
        PROCS_TRUE(dcomm_allgather(c, big_out, big_in, B, t, NULL) == DCOMM_OK);
        REFUSED(dcomm_allgather(c, big_in + 2 * B - 1, big_in, B, t, NULL), bad, "overlaps");
        PROCS_TRUE(dcomm_alltoall(c, big_in, big_in, B, t, NULL) == DCOMM_OK);
        REFUSED(dcomm_alltoall(c, big_in, big_in + B, B, t, NULL), bad, "overlaps");
        PROCS_TRUE(dcomm_broadcast(c, big_in, rank == 0 ? big_in : big_in + 1, B, t, 0, NULL) ==
                   DCOMM_OK);
    }
    PROCS_TRUE(dcomm_reduce(c, big_in, rank == 2 ? big_in : big_in + 1, B, t, DCOMM_SUM, 2, NULL) ==
               DCOMM_OK);
    PROCS_TRUE(dcomm_gather(c, own, big_in, B, t, 1, NULL) == DCOMM_OK);
    PROCS_TRUE(dcomm_scatter(c, big_in, own, B, t, 1, NULL) == DCOMM_OK);
    PROCS_TRUE(dcomm_reduce_scatterv(c, big_in, own, counts, t, DCOMM_SUM, NULL) == DCOMM_OK);
    REFUSED(dcomm_reduce_scatterv(c, big_in, own + 1, counts, t, DCOMM_SUM, NULL), bad, "overlaps");
    PROCS_TRUE(dcomm_allgatherv(c, big_in + gaps[rank], big_in, counts, gaps, t, NULL) == DCOMM_OK);
    PROCS_TRUE(dcomm_allgatherv(c, big_in + B, big_in, counts, gaps, t, NULL) ==
               DCOMM_OK); /* in a gap */
    PROCS_TRUE(dcomm_allgatherv(c, big_in + B, big_in, counts, back, t, NULL) == DCOMM_OK);
    REFUSED(dcomm_allgatherv(c, big_in + 2 * B - 1, big_in, counts, gaps, t, NULL), bad,
            "block of rank 1");
    REFUSED(dcomm_allgatherv(c, big_in + 9 * B, big_in, counts, lapping, t, NULL), bad,
            "block of rank 2");
    PROCS_TRUE(dcomm_gatherv(c, big_in + B, big_in, counts, gaps, t, 0, NULL) == DCOMM_OK);
    PROCS_TRUE(dcomm_scatterv(c, big_in, big_in + B, counts, gaps, t, 0, NULL) == DCOMM_OK);
    PROCS_TRUE(dcomm_alltoallv(c, big_in, counts, gaps, big_in + B, counts, gaps, t, NULL) ==
               DCOMM_OK);
    REFUSED(dcomm_alltoallv(c, big_in, counts, gaps, big_in, counts, gaps, t, NULL), bad,
            "overlaps");
    REFUSED(dcomm_alltoallv(c, big_in, counts, gaps, big_in + 5 * B, counts, lapping, t, NULL), bad,
            "rank 2");
    return fault_leave(&f);
}

Test(mismatch, overlaps, .timeout = 60)
{
    run(N, overlaps, NULL);
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

/* dcomm is no longer in use at the fork, so the child can start anew. */
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
