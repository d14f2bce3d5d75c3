/* test_loan.c - memory of a communicator's own exchanges: freed at once if all went well, kept
 * until the communicator is destroyed after an error. A rank without memory tells the others. */
#define _GNU_SOURCE
#include "dcomm/impl/comm/loan.h"

#include "ranks.h"

#include <criterion/criterion.h>

enum { SOON_S = 5, TIMEOUT_S = 60 };
enum { LOANS = 3 }; /* of a split */

/* ---- an allocator that counts, fails once, and notes when one block is freed ---- */

static _Atomic long taken;
static _Atomic long *count = &taken;
static _Atomic bool fails;
static void *_Atomic watched;
static _Atomic bool freed;

static void *allocate(size_t alignment, size_t bytes, void *user)
{
    (void)user;
    atomic_fetch_add(count, 1);
    return atomic_exchange(&fails, false) ? NULL : aligned_alloc(alignment, bytes);
}

static void release(void *p, void *user)
{
    (void)user;
    if (p != NULL && p == atomic_load(&watched)) {
        atomic_store(&freed, true);
    }
    free(p);
}

static dcomm_comm *join(int rank, int n, procs_shared *s)
{
    dcomm_set_allocator(allocate, release, NULL);
    ranks_settle(rank, n, RANKS_HOSTS);
    dcomm_comm *comm = ranks_join(rank, n, s, &(dcomm_comm_opts){.timeout_s = TIMEOUT_S});
    procs_post(s, rank, 1);
    while (!procs_all(s, n, 1, -1)) {
        procs_nap();
    }
    return comm;
}

/* Borrow memory, and watch it. */
static unsigned char *borrow(dcomm_comm *comm)
{
    unsigned char *memory = dcommi_borrow(comm, 4, 25);
    PROCS_TRUE(memory != NULL && comm->loans != NULL);
    for (int i = 0; i < 100; i++) {
        PROCS_TRUE(memory[i] == 0);
    }
    atomic_store(&watched, comm->loans);
    atomic_store(&freed, false);
    return memory;
}

/* Abort on rank 1, and wait for that on the others. */
static void fail(dcomm_comm *comm, int rank)
{
    if (rank == 1) {
        dcomm_comm_abort(comm, "a test");
    }
    PROCS_TRUE(dcomm_barrier(comm, NULL) == DCOMM_ERR_ABORTED);
}

/* ---- cases ---- */

static int lend(int rank, int n, procs_shared *s, void *arg)
{
    (void)arg;
    dcomm_comm *comm = join(rank, n, s);
    dcommi_give_back(comm, NULL);
    unsigned char *first = borrow(comm), *second = dcommi_borrow(comm, 1, 1);
    dcommi_give_back(comm, first);
    PROCS_TRUE(atomic_load(&freed) && comm->loans != NULL);
    dcommi_give_back(comm, second);
    PROCS_TRUE(comm->loans == NULL);

    unsigned char *kept = borrow(comm);
    fail(comm, rank);
    dcommi_loan *loan = comm->loans;
    dcommi_give_back(comm, kept);
    PROCS_TRUE(!atomic_load(&freed) && comm->loans == loan);

    unsigned char *vain = borrow(comm); /* its exchange moves nothing */
    dcommi_give_back(comm, vain);
    PROCS_TRUE(atomic_load(&freed) && comm->loans == loan);
    atomic_store(&watched, loan);
    atomic_store(&freed, false);
    const int left = ranks_leave(&comm);
    PROCS_TRUE(atomic_load(&freed));
    return left;
}

/* Rank 1 does not split. It aborts when the others have borrowed memory: their messages to it may
 * still be under way. */
static int split_fails(int rank, int n, procs_shared *s, void *arg)
{
    (void)arg;
    dcomm_comm *comm = join(rank, n, s), *part = NULL;
    int loans = 0;
    count = &s->words[rank];
    if (rank == 1) {
        while (atomic_load(&s->words[0]) < LOANS || atomic_load(&s->words[2]) < LOANS) {
            procs_nap();
        }
        fail(comm, rank);
    } else {
        PROCS_TRUE(dcomm_comm_split(comm, 0, 0, &part) == DCOMM_ERR_ABORTED && part == NULL);
    }
    for (const dcommi_loan *loan = comm->loans; loan != NULL; loan = loan->next) {
        loans++;
    }
    PROCS_CHECK(loans == (rank == 1 ? 0 : LOANS), "%d loans", loans);
    count = &taken;
    return ranks_leave(&comm);
}

static int split_without_memory(int rank, int n, procs_shared *s, void *arg)
{
    (void)arg;
    dcomm_comm *comm = join(rank, n, s), *part = NULL;
    const double begun = procs_now();
    atomic_store(&fails, rank == 1);
    ranks_refused(dcomm_comm_split(comm, 0, 0, &part), DCOMM_ERR_NO_MEMORY, "rank 1: no memory");
    PROCS_TRUE(part == NULL && dcomm_comm_status(comm) == DCOMM_ERR_NO_MEMORY);
    PROCS_CHECK(procs_now() - begun < SOON_S, "it took %.1f s", procs_now() - begun);
    return ranks_leave(&comm);
}

static void run(procs_fn fn)
{
    int ended[PROCS_MAX];
    cr_assert_eq(procs_run(3, TIMEOUT_S, fn, NULL, ended), 0);
}

Test(loan, is_kept_after_an_error, .timeout = 2 * TIMEOUT_S)
{
    run(lend);
}

Test(loan, of_a_split_is_kept, .timeout = 2 * TIMEOUT_S)
{
    run(split_fails);
}

Test(loan, without_memory_all_ranks_fail_at_once, .timeout = 2 * TIMEOUT_S)
{
    run(split_without_memory);
}
