/* test_grow.c - a communicator gets new ranks: as many as come in time, whoever dies meanwhile, on
 * one host and on several, again and again with one id. */
#define _GNU_SOURCE
#include "grow_ranks.h"

#include <sys/stat.h>

/* ---- all goes well ---- */

static int grows(int rank, int n, procs_shared *s, void *arg)
{
    const part *p = arg;
    dcomm_comm *comm = NULL, *more = NULL;
    dcomm_id id;
    if (rank >= p->old) {
        RANKS_OK(come(rank, s, p, &more));
        PROCS_TRUE(dcomm_comm_rank(more) >= p->old);
    } else {
        comm = begin(rank, s, p);
        sums(comm, p->old);
        invite(rank, s, &id);
        const double start = procs_now();
        RANKS_OK(dcomm_comm_grow(comm, rank == 0 ? &id : NULL, n - p->old, 30, &more));
        PROCS_TRUE(procs_now() - start < 10);
        PROCS_TRUE(dcomm_comm_rank(more) == rank);
        sums(comm, p->old);
        RANKS_OK(dcomm_comm_destroy(&comm));
    }
    sums(more, n);
    return ranks_leave(&more);
}

Test(grow, two_to_four, .timeout = 60)
{
    run(4, grows, &(part){2, RANKS_LOCAL, 10}, 0);
}

Test(grow, two_to_four_hosts, .timeout = 60)
{
    run(4, grows, &(part){2, RANKS_HOSTS, 10}, 0); /* one host becomes several */
    run(4, grows, &(part){2, RANKS_PAIRS, 10}, 0);
}

Test(grow, one_to_three, .timeout = 60)
{
    run(3, grows, &(part){1, RANKS_LOCAL, 10}, 0);
    run(3, grows, &(part){1, RANKS_MESSAGE, 10}, 0);
}

/* Nobody comes: the wait is longer than an operation may take. */
static int alone(int rank, int n, procs_shared *s, void *arg)
{
    const part *p = arg;
    dcomm_comm *comm = begin(rank, s, p), *same = NULL;
    dcomm_id id;
    invite(rank, s, &id);
    for (int i = 0; i < 2; i++) {
        const double wait_s = i == 0 ? 0.7 : 0, start = procs_now();
        RANKS_OK(dcomm_comm_grow(comm, &id, 2, wait_s, &same));
        const double took = procs_now() - start;
        PROCS_CHECK(took >= (rank == 0 ? wait_s : 0) && took < wait_s + 2, "%.2f s", took);
        PROCS_TRUE(dcomm_comm_rank(same) == rank);
        sums(same, n);
        sums(comm, n);
        RANKS_OK(dcomm_comm_destroy(&comm));
        comm = same;
    }
    return ranks_leave(&comm);
}

Test(grow, nobody_comes, .timeout = 60)
{
    run(3, alone, &(part){3, RANKS_LOCAL, 0.5}, 0);
    run(2, alone, &(part){2, RANKS_HOSTS, 1}, 0);
}

/* One more at a time: the others wait for the next time, and help to take in those after them. */
static int one_by_one(int rank, int n, procs_shared *s, void *arg)
{
    const part *p = arg;
    dcomm_comm *comm = NULL;
    dcomm_id id;
    int size = p->old;
    if (rank < p->old) {
        comm = begin(rank, s, p);
        invite(rank, s, &id);
    } else {
        RANKS_OK(come(rank, s, p, &comm));
        size = dcomm_comm_size(comm);
        PROCS_TRUE(dcomm_comm_rank(comm) == size - 1);
    }
    while (sums(comm, size), size < n) {
        dcomm_comm *more = NULL;
        RANKS_OK(dcomm_comm_grow(comm, rank == 0 ? &id : NULL, 1, 20, &more));
        RANKS_OK(dcomm_comm_destroy(&comm));
        comm = more;
        size++;
    }
    return ranks_leave(&comm);
}

Test(grow, one_by_one, .timeout = 60)
{
    run(5, one_by_one, &(part){2, RANKS_LOCAL, 20}, 0);
    run(4, one_by_one, &(part){2, RANKS_PAIRS, 20}, 0);
}

/* ---- a restart ---- */

/* A rank leaves, the others shrink, and it comes back: by the program's own id, or by the file. */
static int comes_back(int rank, int n, procs_shared *s, void *arg)
{
    const part *p = arg;
    dcomm_comm *comm = begin(rank, s, p), *next = NULL;
    for (int i = 0; i < 2; i++) {
        if (rank == n - 1) {
            RANKS_OK(dcomm_comm_destroy(&comm));
            setenv("DCOMM_JOIN", "1", 1);
            RANKS_OK(dcomm_comm_create(NULL, &comm));
        } else {
            RANKS_OK(dcomm_comm_shrink(comm, (int[]){n - 1}, 1, &next));
            RANKS_OK(dcomm_comm_destroy(&comm));
            sums(next, n - 1);
            RANKS_OK(dcomm_comm_grow(next, NULL, 1, 20, &comm));
            RANKS_OK(dcomm_comm_destroy(&next));
        }
        PROCS_TRUE(dcomm_comm_rank(comm) == rank);
        sums(comm, n);
    }
    return ranks_leave(&comm);
}

Test(grow, comes_back, .timeout = 60)
{
    char path[64];
    snprintf(path, sizeof path, "/tmp/dcomm-test-grow-%d", (int)getpid());
    setenv("DCOMM_JOIN_FILE", path, 1);
    run(3, comes_back, &(part){3, RANKS_LOCAL, 20}, 0);
    struct stat st;
    cr_expect(stat(path, &st) == 0 && (st.st_mode & 0777) == 0600);
    run(4, comes_back, &(part){4, RANKS_PAIRS, 20}, 0); /* the file has the id of the job before */
    unlink(path);
    unsetenv("DCOMM_JOIN_FILE");
}

/* ---- refused ---- */

static int refused(int rank, int n, procs_shared *s, void *arg)
{
    const part *p = arg;
    dcomm_comm *comm = begin(rank, s, p), *more = comm;
    dcomm_id id, other, old;
    size_t len;
    const dcomm_status bad = DCOMM_ERR_INVALID;
    unsetenv("DCOMM_JOIN_FILE");
    invite(rank, s, &id);
    memcpy(&old, procs_take(s, 0, &len), sizeof old);
    ranks_refused(dcomm_comm_grow(NULL, &id, 1, 1, &more), bad, "comm");
    PROCS_TRUE(more == NULL);
    ranks_refused(dcomm_comm_grow(comm, &id, 1, 1, NULL), bad, "new_p");
    RANKS_OK(dcomm_group_start());
    ranks_refused(dcomm_comm_grow(comm, &id, 1, 1, &more), bad, "grow");
    RANKS_OK(dcomm_group_end());
    /* Rank 0's arguments are refused on all ranks. */
    ranks_refused(dcomm_comm_grow(comm, &id, rank == 0 ? 0 : 1, 1, &more), bad, "max_new is 0");
    ranks_refused(dcomm_comm_grow(comm, &id, rank == 0 ? -1 : 1, 1, &more), bad, "max_new is -1");
    ranks_refused(dcomm_comm_grow(comm, &id, 1, rank == 0 ? -1 : 1, &more), bad, "wait_s is -1");
    ranks_refused(dcomm_comm_grow(comm, &id, 1, (double)NAN, &more), bad, "wait_s is");
    ranks_refused(dcomm_comm_grow(comm, NULL, 1, 1, &more), bad, "DCOMM_JOIN_FILE");
    ranks_refused(dcomm_comm_grow(comm, &(dcomm_id){{1}}, 1, 1, &more), bad, "opts.id");
    ranks_refused(dcomm_comm_grow(comm, &old, 1, 1, &more), bad, "id");
    if (rank == 1) {
        RANKS_OK(dcomm_id_create(&other));
        procs_give(s, 1, &other, sizeof other);
    }
    memcpy(&other, procs_take(s, 1, &len), sizeof other);
    ranks_refused(dcomm_comm_grow(comm, &other, 1, 1, &more), bad, "rank 0 itself");
    PROCS_TRUE(more == NULL);
    sums(comm, n); /* it is as it was */
    procs_post(s, rank, 1);
    while (!procs_all(s, n, 1, -1)) { /* none is in a call any more */
        procs_nap();
    }
    if (rank == 0) {
        RANKS_OK(dcomm_comm_abort(comm, "enough"));
    }
    ranks_refused(dcomm_comm_grow(comm, &id, 1, 5, &more), DCOMM_ERR_ABORTED, "enough");
    RANKS_OK(dcomm_comm_shrink(comm, NULL, 0, &more));
    RANKS_OK(dcomm_comm_destroy(&comm));
    RANKS_OK(dcomm_comm_grow(more, &id, 1, 0, &comm));
    sums(comm, n);
    RANKS_OK(dcomm_comm_destroy(&more));
    return ranks_leave(&comm);
}

Test(grow, refused, .timeout = 60)
{
    run(2, refused, &(part){2, RANKS_LOCAL, 10}, 0);
}

/* Newcomers to nobody. */
static int nobody_grows(int rank, int n, procs_shared *s, void *arg)
{
    (void)rank, (void)n, (void)s, (void)arg;
    dcomm_comm *comm = NULL;
    dcomm_comm_opts opts = {.boot = DCOMM_BOOT_JOIN, .timeout_s = 0.5};
    unsetenv("DCOMM_JOIN_FILE");
    ranks_refused(dcomm_comm_create(&opts, &comm), DCOMM_ERR_INVALID, "DCOMM_JOIN_FILE");
    setenv("DCOMM_JOIN_FILE", "/tmp/there-is-no-such-file", 1);
    ranks_refused(dcomm_comm_create(&opts, &comm), DCOMM_ERR_TIMEOUT, "is not there");
    RANKS_OK(dcomm_id_create(&opts.id));
    ranks_refused(dcomm_comm_create(&opts, &comm), DCOMM_ERR_TIMEOUT, "at 127.0.0.1:");
    opts.id.bytes[20] ^= 1;
    ranks_refused(dcomm_comm_create(&opts, &comm), DCOMM_ERR_INVALID, "opts.id");
    opts.id.bytes[20] ^= 1;
    opts.timeout_s = 100;
    const double start = procs_now(); /* a creation that is cancelled */
    RANKS_OK(dcomm_comm_create_start(&opts, &comm));
    procs_nap();
    PROCS_TRUE(dcomm_comm_ready(comm) == DCOMM_IN_PROGRESS);
    RANKS_OK(dcomm_comm_destroy(&comm));
    PROCS_TRUE(procs_now() - start < 2);
    return 0; /* the id is served until the process ends */
}

Test(grow, nobody_grows, .timeout = 60)
{
    run(1, nobody_grows, &(part){1, RANKS_LOCAL, 1}, 0);
}
