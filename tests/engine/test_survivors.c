/* test_survivors.c - ranks that are left agree on who has failed, and go on together: killed before
 * and while they agree and shrink, with too few left, with unequal numbers of calls. */
#define _GNU_SOURCE
#include "faults.h"
#include "ranks.h"

#include <criterion/criterion.h>
#include <pthread.h>

enum { AGREED = 16, SHRUNK = 32 }; /* words: results of each rank; those before are faults.h's */

/* Run n ranks; those in `victims` must end by SIGKILL, the others with 0. */
static void run(int n, procs_fn fn, void *arg, unsigned victims)
{
    int ended[PROCS_MAX];
    procs_run(n, 30, fn, arg, ended);
    for (int r = 0; r < n; r++) {
        const int want = victims >> r & 1 ? 128 + SIGKILL : 0;
        cr_expect(ended[r] == want, "rank %d ended with %d, not %d", r, ended[r], want);
    }
}

/* Agree on flags, and return the failed ranks as bits. */
static unsigned agree(dcomm_comm *comm, uint64_t *flags)
{
    int failed[PROCS_MAX], n = -1;
    RANKS_OK(dcomm_comm_agree(comm, flags, failed, PROCS_MAX, &n));
    unsigned set = 0;
    for (int i = 0; i < n; i++) {
        PROCS_TRUE(i == 0 || failed[i] > failed[i - 1]);
        set |= 1u << failed[i];
    }
    return set;
}

/* The word of a rank: all bits but its own. */
static uint64_t all_but(int rank)
{
    return ~(UINT64_C(1) << rank);
}

/* Sum a vector in which each rank has a 1 at its first number. Return the members as bits. */
static dcomm_status members(dcomm_comm *comm, int first, unsigned *set)
{
    static float in[4][PROCS_MAX], out[4][PROCS_MAX]; /* of failed calls, too */
    static int turn;
    const int t = turn++ % 4;
    memset(in[t], 0, sizeof in[t]);
    in[t][first] = 1;
    dcomm_status status =
        dcomm_allreduce(comm, in[t], out[t], PROCS_MAX, DCOMM_F32, DCOMM_SUM, NULL);
    *set = 0;
    for (int r = 0; r < PROCS_MAX && status == DCOMM_OK; r++) {
        PROCS_CHECK(out[t][r] == 0 || out[t][r] == 1, "the sum of rank %d is %g", r,
                    (double)out[t][r]);
        *set |= out[t][r] == 1 ? 1u << r : 0;
    }
    return status;
}

/* ---- nobody fails ---- */

static int everybody(int rank, int n, procs_shared *s, void *arg)
{
    fault_rank f;
    fault_join(&f, rank, n, s, *(fault_place *)arg, 10);
    for (int i = 0; i < 5; i++) {
        uint64_t flags = all_but(rank) & all_but(20 + i);
        PROCS_TRUE(agree(f.comm, &flags) == 0);
        PROCS_CHECK(flags == ((UINT64_MAX << n) & all_but(20 + i)), "the flags are %llx",
                    (unsigned long long)flags);
    }
    RANKS_OK(dcomm_comm_agree(f.comm, NULL, NULL, 0, NULL));
    PROCS_TRUE(fault_allreduce(f.comm, rank, NULL, 1000, NULL) == DCOMM_OK);
    fault_meet(&f, -1);
    if (rank == 1) { /* a revoked communicator agrees, too */
        RANKS_OK(dcomm_comm_revoke(f.comm, "enough"));
    }
    PROCS_TRUE(agree(f.comm, &(uint64_t){0}) == 0);
    int failed = -1;
    RANKS_OK(dcomm_comm_failed(f.comm, NULL, 0, &failed));
    PROCS_TRUE(failed == 0);
    fault_recover(&f, -1);
    return fault_leave(&f);
}

Test(survivors, everybody, .timeout = 60)
{
    run(1, everybody, &(fault_place){LOCAL}, 0);
    run(4, everybody, &(fault_place){LOCAL}, 0);
    run(4, everybody, &(fault_place){PAIRS}, 0);
    run(3, everybody, &(fault_place){NET}, 0);
}

/* ---- deaths at any moment ---- */

typedef struct trial {
    fault_place place;
    unsigned victims; /* a set of ranks */
    uint64_t seed;
} trial;

static void *die_later(void *nanoseconds)
{
    nanosleep(&(struct timespec){.tv_nsec = (long)(intptr_t)nanoseconds}, NULL);
    kill(getpid(), SIGKILL);
    return NULL;
}

/* Shrink until a sum succeeds on all ranks, which only an agreement can tell. Return its members.
 */
static unsigned go_on(fault_rank *f)
{
    unsigned set = 0;
    for (int i = 0; i < 4; i++) {
        dcomm_comm *rest = NULL;
        dcomm_status status = dcomm_comm_shrink(f->comm, NULL, 0, &rest);
        PROCS_CHECK(status == DCOMM_OK, "rank %d: shrink: %s", f->rank, dcomm_last_error());
        fault_destroy(&f->comm, 2);
        f->comm = rest;
        uint64_t succeeded = members(f->comm, f->rank, &set) == DCOMM_OK;
        agree(f->comm, &succeeded);
        if (succeeded) {
            return set;
        }
    }
    return 0;
}

static int dying(int rank, int n, procs_shared *s, void *arg)
{
    const trial *t = arg;
    fault_rank f;
    uint64_t random = t->seed + (uint64_t)rank;
    fault_join(&f, rank, n, s, t->place, 10);
    PROCS_TRUE(fault_allreduce(f.comm, rank, NULL, 1000, NULL) == DCOMM_OK);
    fault_meet(&f, -1);
    if (t->victims >> rank & 1) {
        pthread_t thread;
        const intptr_t after = (intptr_t)(ranks_random(&random) % 12000000);
        PROCS_TRUE(pthread_create(&thread, NULL, die_later, (void *)after) == 0);
    }
    uint64_t flags = all_but(rank);
    const unsigned failed = agree(f.comm, &flags);
    atomic_store(&s->words[AGREED + rank], (long)(failed << 16 | (unsigned)(~flags & 0xffff)));
    const unsigned left = go_on(&f);
    atomic_store(&s->words[SHRUNK + rank], (long)left);
    if (t->victims >> rank & 1) {
        pause();
    }
    PROCS_CHECK((~flags & 0xffff) == (((1u << n) - 1) & ~failed), "flags %llx, failed %x",
                (unsigned long long)flags, failed);
    procs_post(s, rank, 1000);
    for (int r = 0; r < n; r++) {
        while (!(t->victims >> r & 1) && atomic_load(&s->posted[r]) < 1000) {
            procs_nap();
        }
        long agreed = atomic_load(&s->words[AGREED + r]); /* 0: it died before */
        long mine = atomic_load(&s->words[AGREED + rank]);
        PROCS_CHECK(agreed == mine || agreed == 0, "rank %d agreed on %lx, rank %d on %lx", r,
                    (unsigned long)agreed, rank, (unsigned long)mine);
        long there = atomic_load(&s->words[SHRUNK + r]);
        PROCS_CHECK((t->victims >> r & 1) || there == (long)left, "rank %d has %lx, rank %d %x", r,
                    (unsigned long)there, rank, left);
        PROCS_CHECK((t->victims >> r & 1) || (left >> r & 1), "rank %d is missing in %x", r, left);
    }
    return fault_leave(&f);
}

/* Try deaths of `deaths` ranks of n at random moments. */
static void killed(fault_place place, int n, int deaths, int times)
{
    uint64_t random = (uint64_t)(1000 * place + 10 * n + deaths);
    for (int i = 0; i < times * (test_full() ? 10 : 1); i++) {
        trial t = {place, 0, ranks_random(&random)};
        while (__builtin_popcount(t.victims) < deaths) {
            t.victims |= 1u << ranks_random(&random) % (uint64_t)n;
        }
        run(n, dying, &t, t.victims);
    }
}

Test(survivors, one_dies, .timeout = 120)
{
    killed(LOCAL, 3, 1, 6);
}

Test(survivors, two_die, .timeout = 120)
{
    killed(LOCAL, 4, 2, 12);
}

Test(survivors, three_die, .timeout = 120)
{
    killed(LOCAL, 6, 3, 8);
}

Test(survivors, one_dies_net, .timeout = 120)
{
    killed(PAIRS, 4, 1, 6);
}

/* ---- ranks that call more often, or late ---- */

/* Rank 1 has agreed and shrunk once more than the others: it joins their next decision. */
static int called_more_often(int rank, int n, procs_shared *s, void *arg)
{
    (void)arg;
    fault_rank f;
    dcomm_comm *rest = NULL;
    fault_join(&f, rank, n, s, LOCAL, 1);
    uint64_t flags = 7;
    PROCS_TRUE(agree(f.comm, &flags) == 0 && flags == 7);
    if (rank == 1) {
        flags = 3;
        ranks_refused(dcomm_comm_agree(f.comm, &flags, NULL, 0, NULL), DCOMM_ERR_TIMEOUT,
                      "rank 0 has not come");
        PROCS_TRUE(flags == 3);
        ranks_refused(dcomm_comm_shrink(f.comm, NULL, 0, &rest), DCOMM_ERR_TIMEOUT,
                      "rank 0 has not come");
    }
    fault_meet(&f, -1);
    flags = rank == 1 ? 4 : 6;
    PROCS_TRUE(agree(f.comm, &flags) == 0);
    PROCS_CHECK(flags == 2, "the bits of the first call count: %llx", (unsigned long long)flags);
    flags = 1;
    PROCS_TRUE(agree(f.comm, &flags) == 0 && flags == 1);
    fault_meet(&f, -1);
    if (rank == 2) {
        kill(getpid(), SIGKILL);
    }
    fault_recover(&f, 2);
    return fault_leave(&f);
}

Test(survivors, called_more_often, .timeout = 60)
{
    run(3, called_more_often, NULL, 1u << 2);
}

/* All but one rank have waited in vain. They know whom for, and go on with it. */
static int late(int rank, int n, procs_shared *s, void *arg)
{
    fault_rank f;
    dcomm_comm *rest = NULL;
    fault_join(&f, rank, n, s, *(fault_place *)arg, 1);
    uint64_t flags = 1;
    if (rank != 2) {
        ranks_refused(dcomm_comm_agree(f.comm, &flags, NULL, 0, NULL), DCOMM_ERR_TIMEOUT,
                      "rank 2 has not come");
        ranks_refused(dcomm_comm_shrink(f.comm, NULL, 0, &rest), DCOMM_ERR_TIMEOUT,
                      "rank 2 has not come");
    }
    fault_meet(&f, -1);
    unsigned set;
    PROCS_TRUE(agree(f.comm, &flags) == 0 && flags == 1);
    RANKS_OK(dcomm_comm_shrink(f.comm, NULL, 0, &rest));
    PROCS_TRUE(members(rest, rank, &set) == DCOMM_OK && set == (1u << n) - 1);
    fault_destroy(&rest, 1);
    return fault_leave(&f);
}

Test(survivors, late, .timeout = 60)
{
    run(4, late, &(fault_place){LOCAL}, 0);
    run(4, late, &(fault_place){NET}, 0);
}

/* ---- what each rank knows ---- */

/* A rank that has left counts as failed, and nobody waits for it. It waits for the others' goodbye:
 * a death meanwhile is no error of its own, or it would abort. */
static int left(int rank, int n, procs_shared *s, void *arg)
{
    fault_rank f;
    int failed[2] = {-1, -1}, count = 0;
    if (rank == 0) {
        setenv("DCOMM_ERRORS", "abort", 1);
    }
    fault_join(&f, rank, n, s, *(fault_place *)arg, 5);
    PROCS_TRUE(fault_allreduce(f.comm, rank, NULL, 1000, NULL) == DCOMM_OK);
    fault_meet(&f, -1);
    if (rank == 0) {
        fault_destroy(&f.comm, 6);
        return fault_leave(&f);
    }
    if (rank == 3) {
        nanosleep(&(struct timespec){.tv_nsec = 50000000}, NULL);
        kill(getpid(), SIGKILL);
    }
    const double start = procs_now();
    while (count < 2) {
        RANKS_OK(dcomm_comm_failed(f.comm, failed, 1, &count));
        PROCS_TRUE(count <= 2 && failed[1] == -1 && procs_now() - start < 5);
        procs_nap();
    }
    PROCS_TRUE(failed[0] == 0);
    uint64_t flags = all_but(rank);
    PROCS_TRUE(agree(f.comm, &flags) == (1u | 1u << 3) && flags == (all_but(1) & all_but(2)));
    const unsigned set = go_on(&f);
    PROCS_TRUE(set == (1u << 1 | 1u << 2));
    return fault_leave(&f);
}

Test(survivors, one_has_left, .timeout = 60)
{
    run(4, left, &(fault_place){LOCAL}, 1u << 3);
    run(4, left, &(fault_place){NET}, 1u << 3);
}

/* A rank that has left one communicator, and keeps another one, lives on: an agreement on the first
 * does not wait for it. */
static int left_one_of_two(int rank, int n, procs_shared *s, void *arg)
{
    fault_rank f;
    dcomm_comm *twin = NULL;
    fault_join(&f, rank, n, s, *(fault_place *)arg, 2);
    RANKS_OK(dcomm_comm_dup(f.comm, &twin));
    if (rank != 0) {
        uint64_t flags = all_but(rank);
        PROCS_TRUE(agree(f.comm, &flags) == 1u && flags == (all_but(1) & all_but(2)));
    }
    fault_destroy(&f.comm, 6);
    fault_meet(&f, -1);
    fault_destroy(&twin, 1.5);
    return procs_leaks();
}

Test(survivors, one_has_left_one_of_two, .timeout = 60)
{
    run(3, left_one_of_two, &(fault_place){LOCAL}, 0);
    run(3, left_one_of_two, &(fault_place){NET}, 0);
}

/* Wrong arguments are refused before anything is sent. */
static int refused(int rank, int n, procs_shared *s, void *arg)
{
    (void)arg;
    fault_rank f;
    fault_join(&f, rank, n, s, LOCAL, 5);
    uint64_t flags = 0;
    int count;
    const dcomm_status bad = DCOMM_ERR_INVALID;
    ranks_refused(dcomm_comm_agree(NULL, &flags, NULL, 0, &count), bad, "comm");
    ranks_refused(dcomm_comm_agree(f.comm, &flags, NULL, 3, &count), bad, "max = 3");
    ranks_refused(dcomm_comm_agree(f.comm, &flags, &count, -1, &count), bad, "max = -1");
    ranks_refused(dcomm_comm_failed(NULL, NULL, 0, &count), bad, "comm");
    ranks_refused(dcomm_comm_failed(f.comm, NULL, 1, &count), bad, "max = 1");
    RANKS_OK(dcomm_group_start());
    ranks_refused(dcomm_comm_agree(f.comm, &flags, NULL, 0, &count), bad, "agree");
    RANKS_OK(dcomm_group_end());
    PROCS_TRUE(agree(f.comm, &flags) == 0);
    return fault_leave(&f);
}

Test(survivors, refused, .timeout = 60)
{
    run(2, refused, NULL, 0);
}

/* ---- a quorum ---- */

typedef struct needed {
    int quorum;
    bool enough; /* two of four are */
} needed;

static int two_of_four(int rank, int n, procs_shared *s, void *arg)
{
    const needed *what = arg;
    unsigned set;
    fault_rank f = {.rank = rank, .n = n, .s = s};
    ranks_settle(rank, n, RANKS_LOCAL);
    f.comm = ranks_join(rank, n, s,
                        &(dcomm_comm_opts){.quorum = rank == 0 ? what->quorum : 0, .timeout_s = 5});
    fault_meet(&f, -1);
    if (rank >= 2) {
        kill(getpid(), SIGKILL);
    }
    dcomm_comm *rest = NULL;
    dcomm_status agreed, shrunk;
    for (int i = 0; i < 2; i++) { /* again: it is as before */
        agreed = dcomm_comm_agree(f.comm, NULL, NULL, 0, NULL);
        PROCS_CHECK(agreed == (what->enough ? DCOMM_OK : DCOMM_ERR_QUORUM), "%s: %s",
                    dcomm_status_name(agreed), dcomm_last_error());
    }
    shrunk = dcomm_comm_shrink(f.comm, NULL, 0, &rest);
    PROCS_CHECK(shrunk == agreed && (rest != NULL) == what->enough, "%s: %s",
                dcomm_status_name(shrunk), dcomm_last_error());
    if (rest == NULL) {
        PROCS_CHECK(strstr(dcomm_last_error(), "ranks 2-3") != NULL, "%s", dcomm_last_error());
        RANKS_OK(dcomm_comm_shrink(f.comm, (int[]){2, 3}, 2, &rest)); /* asks for none */
    }
    PROCS_TRUE(members(rest, rank, &set) == DCOMM_OK && set == 3);
    fault_destroy(&rest, 1);
    return fault_leave(&f);
}

Test(survivors, quorum, .timeout = 60)
{
    const unsigned victims = 1u << 2 | 1u << 3;
    run(4, two_of_four, &(needed){0, true}, victims); /* the others are certainly dead */
    run(4, two_of_four, &(needed){3, false}, victims);
    run(4, two_of_four, &(needed){DCOMM_QUORUM_NONE, true}, victims);
}

static int no_quorum(int rank, int n, procs_shared *s, void *arg)
{
    (void)rank, (void)n, (void)s;
    dcomm_comm *comm = NULL;
    const dcomm_comm_opts opts = {.quorum = *(int *)arg};
    ranks_refused(dcomm_comm_create(&opts, &comm), DCOMM_ERR_INVALID, "quorum is ");
    PROCS_TRUE(comm == NULL);
    return procs_leaks();
}

Test(survivors, no_quorum, .timeout = 60)
{
    run(1, no_quorum, &(int){2}, 0);
    run(1, no_quorum, &(int){-2}, 0);
}
