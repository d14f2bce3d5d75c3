/* test_bcast.c - short messages to all ranks of a host go by broadcast slots: which messages do,
 * other messages in between, and the slots' life with their communicators. */
#define _GNU_SOURCE
#include "ranks.h"

#include <criterion/criterion.h>
#include <inttypes.h>

enum { MOST = 1100 }; /* elements */

static void on(int n, procs_fn fn, void *arg, int dies)
{
    int ended[PROCS_MAX];
    procs_run(n, 50, fn, arg, ended);
    for (int r = 0; r < n; r++) {
        cr_expect(r == dies || ended[r] == 0, "%d ranks: rank %d ended with %d", n, r, ended[r]);
    }
}

static dcomm_comm *join(int rank, int n, procs_shared *s)
{
    ranks_settle(rank, n, RANKS_LOCAL);
    return ranks_join(rank, n, s, NULL);
}

static uint64_t posted(dcomm_comm *comm)
{
    dcomm_stats stats;
    RANKS_OK(dcomm_comm_get_stats(comm, &stats));
    return stats.messages_posted;
}

static float value(int rank, int salt, size_t i)
{
    return (float)((i * 3 + (size_t)rank * 7 + (size_t)salt) % 61);
}

static void check_sum(dcomm_comm *comm, const char *algo, size_t count, int salt)
{
    static _Thread_local float in[MOST], out[MOST];
    const int rank = dcomm_comm_rank(comm), n = dcomm_comm_size(comm);
    for (size_t i = 0; i < count; i++) {
        in[i] = value(rank, salt, i);
        out[i] = -1;
    }
    const dcomm_coll_opts opts = {.algo = algo};
    RANKS_OK(dcomm_allreduce(comm, in, out, count, DCOMM_F32, DCOMM_SUM, &opts));
    for (size_t i = 0; i < count; i++) {
        float want = 0;
        for (int r = 0; r < n; r++) {
            want += value(r, salt, i);
        }
        PROCS_CHECK(out[i] == want, "%s of %zu, salt %d: element %zu is %g, not %g", algo, count,
                    salt, i, (double)out[i], (double)want);
    }
}

/* Run sums until all ranks poll each other's broadcast slots. They start to at the latest when an
 * operation depends on all ranks. */
static void settle(dcomm_comm *comm)
{
    for (int i = 0; i < 4; i++) {
        check_sum(comm, "one_shot", 1, i);
    }
}

/* ---- which ---- */

static int which(int rank, int n, procs_shared *s, void *unused)
{
    (void)unused;
    static const struct {
        size_t count;
        bool fits;
    } cases[] = {{1, true},   {3, true},    {4, true},    {5, true},
                 {250, true}, {1024, true}, {1025, false}};
    const int calls = test_full() ? 300 : 150; /* calls of each size */
    dcomm_comm *comm = join(rank, n, s);
    settle(comm);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const uint64_t before = posted(comm);
        for (int k = 0; k < calls; k++) {
            check_sum(comm, "one_shot", cases[i].count, k);
        }
        const uint64_t more = posted(comm) - before;
        /* The engine runs one in 64 operations, and sends messages. A rank that has waited for
         * long does so too. */
        const bool some = more >= (uint64_t)(n - 1) && more <= (uint64_t)(calls * (n - 1));
        PROCS_CHECK(n > 2 && cases[i].fits ? some : more == 0,
                    "%zu elements on %d ranks: %" PRIu64 " of %d messages", cases[i].count, n, more,
                    calls * (n - 1));
    }
    return ranks_leave(&comm);
}

Test(bcast, what_goes_by_it, .timeout = 120)
{
    for (int n = 2; n <= 6; n++) {
        if (n < 4 || n == 6 || test_full()) {
            on(n, which, NULL, -1);
        }
    }
}

/* ---- among other things ---- */

/* Run the same operations on all ranks; some ranks come late to some of them. */
static int among(int rank, int n, procs_shared *s, void *unused)
{
    (void)unused;
    static const char *const algos[] = {"one_shot", "recursive_doubling", "two_shot", "tree"};
    dcomm_comm *comm = join(rank, n, s);
    uint64_t same = 7, own = 11 + (uint64_t)rank;
    for (int k = 0; k < 600 / PROCS_THIN; k++) {
        const uint64_t what = ranks_random(&same) % 16;
        const size_t count = 1 + ranks_random(&same) % MOST;
        const int root = (int)(ranks_random(&same) % (uint64_t)n);
        if (ranks_random(&own) % 24 == 0) {
            procs_nap(); /* others leave the wait to the engine */
        }
        if (what < 9) {
            check_sum(comm, algos[what < 6 ? 0 : what % 4], what < 6 ? 1 + count % 16 : count, k);
        } else if (what == 9) {
            RANKS_OK(dcomm_barrier(comm, NULL));
        } else if (what == 10) { /* nobody answers the root */
            float x = rank == root ? (float)k : -1;
            RANKS_OK(dcomm_broadcast(comm, &x, &x, 1, DCOMM_F32, root,
                                     &(dcomm_coll_opts){.algo = "linear"}));
            PROCS_CHECK(x == (float)k, "%g, not %d", (double)x, k);
        } else if (what == 11) {
            float x = (float)(rank + k), all[PROCS_MAX];
            RANKS_OK(dcomm_allgather(comm, &x, all, 1, DCOMM_F32, NULL));
            for (int r = 0; r < n; r++) {
                PROCS_CHECK(all[r] == (float)(r + k), "%g, not %d", (double)all[r], r + k);
            }
        } else if (what == 12) { /* several at a time */
            float x[3] = {1, 2, 3}, y[3];
            dcomm_request *request[3];
            for (int i = 0; i < 3; i++) {
                RANKS_OK(dcomm_iallreduce(comm, &x[i], &y[i], 1, DCOMM_F32, DCOMM_SUM, NULL,
                                          &request[i]));
            }
            RANKS_OK(dcomm_wait_all(request, 3));
            for (int i = 0; i < 3; i++) {
                PROCS_CHECK(y[i] == x[i] * (float)n, "%g, not %g", (double)y[i],
                            (double)(x[i] * (float)n));
            }
        } else if (what == 13) {
            float x = (float)k, y = 0;
            const int to = (rank + 1) % n, from = (rank + n - 1) % n;
            dcomm_request *request = NULL;
            RANKS_OK(dcomm_isend(comm, &x, 1, DCOMM_F32, to, NULL, &request));
            RANKS_OK(dcomm_recv(comm, &y, 1, DCOMM_F32, from, NULL));
            RANKS_OK(dcomm_wait(&request));
            PROCS_CHECK(y == x, "%g, not %g", (double)y, (double)x);
        } else {
            check_sum(comm, "ring", count, k);
        }
    }
    PROCS_TRUE(posted(comm) > 0);
    return ranks_leave(&comm);
}

Test(bcast, among_other_operations, .timeout = 120)
{
    on(3, among, NULL, -1);
    if (test_full()) {
        on(4, among, NULL, -1);
    }
    on(7, among, NULL, -1);
}

/* ---- coming and going ---- */

/* Create more communicators than a process has sets of slots, of all ranks and of some. Released
 * sets are reused. Each call runs several times: the engine runs the first one and makes its
 * plan. */
static int many(int rank, int n, procs_shared *s, void *unused)
{
    (void)unused;
    enum { COMMS = 11, ROUNDS = 6 };
    dcomm_comm *comm = join(rank, n, s);
    for (int round = 0; round < ROUNDS; round++) {
        dcomm_comm *part[COMMS] = {NULL};
        int have = 0;
        for (int i = 0; i < COMMS; i++) {
            const bool with = i % 3 != 0 || rank != 0;
            RANKS_OK(dcomm_comm_split(comm, with ? 0 : -1, i % 2 == 0 ? rank : -rank, &part[i]));
            PROCS_TRUE(with == (part[i] != NULL));
        }
        for (int k = 0; k < 16; k++) {
            for (int i = 0; i < COMMS; i++) {
                if (part[i] != NULL) {
                    check_sum(part[i], "one_shot", 1 + (size_t)(i + k / 4) % 40, 100 * round + k);
                }
            }
        }
        for (int i = 0; i < COMMS; i++) {
            have += part[i] != NULL && posted(part[i]) > 0;
            RANKS_OK(dcomm_comm_destroy(&part[i]));
        }
        PROCS_CHECK(have >= 4 && have < COMMS, "round %d: %d have slots", round, have);
        for (int i = 0; i < COMMS; i++) { /* without an operation on them */
            RANKS_OK(dcomm_comm_dup(comm, &part[i]));
        }
        for (int i = 0; i < COMMS; i++) {
            RANKS_OK(dcomm_comm_destroy(&part[i]));
        }
    }
    return ranks_leave(&comm);
}

Test(bcast, communicators_come_and_go, .timeout = 120)
{
    on(5, many, NULL, -1);
}

/* Part ranks that poll each other's broadcast slots but have never sent each other a message. */
static int silent(int rank, int n, procs_shared *s, void *unused)
{
    (void)unused;
    enum { ROUNDS = 20 }; /* a process has fewer sets */
    dcomm_comm *comm = join(rank, n, s), *next = NULL;
    const dcomm_coll_opts opts = {.algo = "linear"};
    for (int round = 0; round < ROUNDS; round++) {
        RANKS_OK(dcomm_comm_dup(comm, &next));
        for (int k = 0; k < 3; k++) { /* only the root sends */
            float x = rank == 0 ? (float)round : -1;
            RANKS_OK(dcomm_broadcast(next, &x, &x, 1, DCOMM_F32, 0, &opts));
            PROCS_CHECK(x == (float)round, "%g, not %d", (double)x, round);
        }
        for (int k = 0; k < 20 && rank == 1 + round % (n - 1); k++) {
            procs_nap(); /* the others do not wait for its goodbye */
        }
        RANKS_OK(dcomm_comm_destroy(&next));
    }
    RANKS_OK(dcomm_comm_dup(comm, &next));
    settle(next);
    for (int k = 0; k < (test_full() ? 300 : 150); k++) {
        check_sum(next, "one_shot", 3, k);
    }
    PROCS_CHECK(posted(next) > 0, "rank %d has no slots left", rank);
    RANKS_OK(dcomm_comm_destroy(&next));
    return ranks_leave(&comm);
}

Test(bcast, ranks_part_without_a_word, .timeout = 60)
{
    on(4, silent, NULL, -1);
}

/* ---- the end of a rank ---- */

/* The others receive what the victim sent before its end; then they notice its end. */
static int ends(int rank, int n, procs_shared *s, void *unused)
{
    (void)unused;
    enum { VICTIM = 1 };
    dcomm_comm *comm = join(rank, n, s);
    settle(comm);
    check_sum(comm, "one_shot", 5, 1);
    if (rank == VICTIM) {
        _exit(0);
    }
    const dcomm_coll_opts opts = {.algo = "one_shot"};
    float x = 1, y = 0;
    dcomm_status status = dcomm_allreduce(comm, &x, &y, 1, DCOMM_F32, DCOMM_SUM, &opts);
    ranks_refused(status, DCOMM_ERR_PEER, "rank 1");
    dcomm_comm *rest = NULL;
    RANKS_OK(dcomm_comm_shrink(comm, (const int[]){VICTIM}, 1, &rest));
    RANKS_OK(dcomm_comm_destroy(&comm));
    settle(rest);
    check_sum(rest, "one_shot", 9, 2);
    RANKS_OK(dcomm_comm_destroy(&rest));
    return 0;
}

Test(bcast, a_rank_ends, .timeout = 60)
{
    on(4, ends, NULL, -1);
}

/* Every rank gets an error when ranks call different things. */
static int differ(int rank, int n, procs_shared *s, void *unused)
{
    (void)unused;
    dcomm_comm *comm = join(rank, n, s);
    settle(comm);
    const dcomm_coll_opts opts = {.algo = "one_shot"};
    float x[2] = {1, 2}, y[2];
    dcomm_status status = rank == 2 ? dcomm_broadcast(comm, x, x, 1, DCOMM_F32, 0, NULL)
                                    : dcomm_allreduce(comm, x, y, 2, DCOMM_F32, DCOMM_SUM, &opts);
    PROCS_CHECK(status == DCOMM_ERR_MISMATCH, "%s: %s", dcomm_status_name(status),
                dcomm_last_error());
    RANKS_OK(dcomm_comm_destroy(&comm));
    return 0;
}

Test(bcast, ranks_differ, .timeout = 60)
{
    on(4, differ, NULL, -1);
}
