/* test_faults.c - ranks that die, never come, stop or leave: every survivor gets the named error
 * in bounded time, and can work on after it. */
#define _GNU_SOURCE
#include "faults.h"
#include "ranks.h"

#include <criterion/criterion.h>
#include <fenv.h>
#include <pthread.h>

enum { N = 4, VICTIM = 2, COUNT = 100000 };

typedef struct scenario {
    fault_place place;
    int when;
    bool has_child; /* the victim has forked a child that lives on */
} scenario;

enum { MIDWAY, OTHERS_WAIT, IDLE };

/* Run n ranks; `victim` (-1: none) must end by SIGKILL, the others with 0. */
static void run(int n, procs_fn fn, void *arg, int victim)
{
    int ended[PROCS_MAX];
    procs_run(n, 30, fn, arg, ended);
    for (int r = 0; r < n; r++) {
        int want = r == victim ? 128 + SIGKILL : 0;
        cr_expect(ended[r] == want, "rank %d ended with %d, not %d", r, ended[r], want);
    }
}

/* ---- death ---- */

static void die(procs_shared *s)
{
    atomic_store(&s->words[63], (long)(procs_now() * 1000));
    kill(getpid(), SIGKILL);
}

/* Fork a child that outlives its parent and keeps the descriptors it inherited. */
static void leave_a_child(void)
{
    if (fork() == 0) {
        for (int fd = 0; fd < 3; fd++) {
            close(fd); /* do not keep the test's output open */
        }
        sleep(8);
        _exit(0);
    }
}

/* Return the seconds since the victim died. */
static double since_death(procs_shared *s)
{
    long at = atomic_load(&s->words[63]);
    return at > 0 ? procs_now() - (double)at / 1000 : 0;
}

static void *die_soon(void *s)
{
    nanosleep(&(struct timespec){.tv_nsec = 5000000 + getpid() % 64 * 1000000}, NULL);
    die(s);
    return NULL;
}

/* Run all-reduces by every algorithm in turn, until the victim's death fails one. */
static dcomm_status work(dcomm_comm *comm, int times)
{
    static const char *const algos[] = {"ring",     "tree",
                                        "binomial", "one_shot",
                                        "two_shot", "recursive_doubling",
                                        "star",     "halving_doubling"};
    static float in[COUNT], out[COUNT];
    dcomm_status status = DCOMM_OK;
    for (int i = 0; i < times && status == DCOMM_OK; i++) {
        dcomm_coll_opts opts = {.algo = algos[i % 8]};
        status = dcomm_allreduce(comm, in, out, COUNT, DCOMM_F32, DCOMM_SUM, &opts);
    }
    return status;
}

static int killed(int rank, int n, procs_shared *s, void *arg)
{
    const scenario *what = arg;
    fault_rank f;
    fault_join(&f, rank, n, s, what->place, what->when == MIDWAY ? 8 : 20);
    dcomm_status status = fault_allreduce(f.comm, rank, NULL, COUNT, NULL);
    PROCS_CHECK(status == DCOMM_OK, "%s", dcomm_last_error());
    fault_meet(&f, -1);
    if (rank == VICTIM) {
        pthread_t thread;
        if (what->has_child) {
            leave_a_child();
        }
        if (what->when == OTHERS_WAIT) {
            nanosleep(&(struct timespec){.tv_nsec = 300000000}, NULL);
        } else if (what->when == MIDWAY) {
            PROCS_TRUE(pthread_create(&thread, NULL, die_soon, s) == 0);
            work(f.comm, 1000000);
        }
        die(s);
    }
    if (what->when == IDLE) {
        nanosleep(&(struct timespec){.tv_nsec = 500000000}, NULL);
    }
    status = work(f.comm, 1000000);
    static const char *const words[] = {"rank 2", NULL};
    fault_expect(&f, status, DCOMM_ERR_PEER, words);
    double took = since_death(s);
    PROCS_CHECK(took < 5, "it took %.1f s", took);
    status = fault_allreduce(f.comm, rank, NULL, 3, NULL);
    fault_expect(&f, status, DCOMM_ERR_PEER, words);
    dcomm_comm *all = NULL;
    if (rank != 1) {
        status = dcomm_comm_shrink(f.comm, &(int){1}, 1, &all); /* a dead rank cannot be a member */
        ranks_refused(status, DCOMM_ERR_PEER, "rank 2");
        PROCS_TRUE(all == NULL);
    }
    fault_recover(&f, VICTIM);
    return fault_leave(&f);
}

/* Run the first `few` of `n` scenarios, or all in the full run: the others differ only in the
 * place. */
static void killed_in(scenario *all, int few, int n)
{
    for (int i = 0; i < (test_full() ? n : few); i++) {
        run(N, killed, &all[i], VICTIM);
    }
}

Test(faults, killed_midway, .timeout = 120)
{
    scenario all[] = {{.place = LOCAL, .when = MIDWAY},
                      {.place = NET, .when = MIDWAY},
                      {.place = MESSAGE, .when = MIDWAY},
                      {.place = PAIRS, .when = MIDWAY},
                      {.place = NET, .when = MIDWAY, .has_child = true}};
    killed_in(all, 2, 5);
}

Test(faults, killed_while_others_wait, .timeout = 120)
{
    scenario all[] = {{.place = PAIRS, .when = OTHERS_WAIT, .has_child = true},
                      {.place = NET, .when = OTHERS_WAIT},
                      {.place = LOCAL, .when = OTHERS_WAIT}};
    killed_in(all, 2, 3);
}

Test(faults, killed_idle, .timeout = 120)
{
    scenario all[] = {{.place = LOCAL, .when = IDLE},
                      {.place = NET, .when = IDLE, .has_child = true},
                      {.place = NET, .when = IDLE}};
    killed_in(all, 2, 3);
}

/* The survivors test their requests only now and then. */
static int killed_seldom_asked(int rank, int n, procs_shared *s, void *arg)
{
    (void)arg;
    fault_rank f;
    fault_join(&f, rank, n, s, NET, 20);
    dcomm_status status = fault_allreduce(f.comm, rank, NULL, COUNT, NULL);
    PROCS_CHECK(status == DCOMM_OK, "%s", dcomm_last_error());
    fault_meet(&f, -1);
    if (rank == VICTIM) {
        leave_a_child();
        die(s);
    }
    static float in[COUNT], out[COUNT];
    dcomm_request *request = NULL;
    status = dcomm_iallreduce(f.comm, in, out, COUNT, DCOMM_F32, DCOMM_SUM, NULL, &request);
    while (status >= 0 && (status = dcomm_test(&request)) == DCOMM_IN_PROGRESS) {
        nanosleep(&(struct timespec){.tv_nsec = 50000000}, NULL);
    }
    fault_expect(&f, status, DCOMM_ERR_PEER, (const char *[]){"rank 2", NULL});
    PROCS_CHECK(since_death(s) < 5, "it took %.1f s", since_death(s));
    fault_recover(&f, VICTIM);
    return fault_leave(&f);
}

Test(faults, killed_seldom_asked_net, .timeout = 60)
{
    run(N, killed_seldom_asked, NULL, VICTIM);
}

/* ---- absence ---- */

static int absent(int rank, int n, procs_shared *s, void *arg)
{
    fault_rank f;
    fault_join(&f, rank, n, s, *(fault_place *)arg, 1.5);
    for (int i = 0; i < 3; i++) {
        dcomm_status status = fault_allreduce(f.comm, rank, NULL, COUNT, NULL);
        PROCS_CHECK(status == DCOMM_OK, "%s", dcomm_last_error());
    }
    static const char *const words[] = {"all-reduce #3 timed out",
                                        "rank 3 never entered",
                                        "ranks 0-2 wait for it",
                                        "in lane ",
                                        " step ",
                                        NULL};
    double start = procs_now();
    if (rank == 3) {
        while (dcomm_comm_status(f.comm) == DCOMM_OK) {
            dcomm_context_progress(dcomm_comm_context(f.comm));
            procs_nap();
        }
    }
    dcomm_status status = fault_allreduce(f.comm, rank, NULL, COUNT, NULL);
    fault_expect(&f, status, DCOMM_ERR_TIMEOUT, words);
    PROCS_CHECK(procs_now() - start < 3, "it took %.1f s", procs_now() - start);
    fault_recover(&f, -1); /* the rank is alive: all ranks go on together */
    return fault_leave(&f);
}

Test(faults, absent, .timeout = 90)
{
    run(N, absent, &(fault_place){LOCAL}, -1);
    if (test_full()) {
        run(N, absent, &(fault_place){NET}, -1);
    }
}

static int stopped(int rank, int n, procs_shared *s, void *arg)
{
    fault_rank f;
    fault_join(&f, rank, n, s, *(fault_place *)arg, 2);
    dcomm_status status = fault_allreduce(f.comm, rank, NULL, COUNT, NULL);
    PROCS_CHECK(status == DCOMM_OK, "%s", dcomm_last_error());
    if (rank == VICTIM) {
        atomic_store(&s->words[62], (long)getpid());
        raise(SIGSTOP);
    }
    status = fault_allreduce(f.comm, rank, NULL, COUNT, NULL);
    fault_expect(&f, status, DCOMM_ERR_TIMEOUT,
                 (const char *[]){"rank 2 does not answer", "ranks 0-1, 3 wait for it", NULL});
    if (rank == 0) {
        kill((pid_t)atomic_load(&s->words[62]), SIGCONT);
    }
    fault_recover(&f, -1);
    return fault_leave(&f);
}

Test(faults, stopped, .timeout = 90)
{
    run(N, stopped, &(fault_place){NET}, -1);
    if (test_full()) {
        run(N, stopped, &(fault_place){LOCAL}, -1);
    }
}

/* ---- leaving ---- */

static int leaves_early(int rank, int n, procs_shared *s, void *arg)
{
    fault_rank f;
    fault_join(&f, rank, n, s, *(fault_place *)arg, 10);
    dcomm_status status = fault_allreduce(f.comm, rank, NULL, COUNT, NULL);
    PROCS_CHECK(status == DCOMM_OK, "%s", dcomm_last_error());
    if (rank == VICTIM) {
        fault_destroy(&f.comm, 5.5);
        return fault_leave(&f);
    }
    double start = procs_now();
    status = fault_allreduce(f.comm, rank, NULL, COUNT, NULL);
    fault_expect(&f, status, DCOMM_ERR_PEER,
                 (const char *[]){"rank 2 has left", "after 1 collective", NULL});
    PROCS_CHECK(procs_now() - start < 5, "it took %.1f s", procs_now() - start);
    fault_recover(&f, VICTIM);
    return fault_leave(&f);
}

Test(faults, leaves_early, .timeout = 60)
{
    run(N, leaves_early, &(fault_place){LOCAL}, -1);
}

Test(faults, leaves_early_net, .timeout = 60)
{
    run(N, leaves_early, &(fault_place){NET}, -1);
}

/* A rank that has never sent anything leaves, and its process ends. */
static int leaves_unheard(int rank, int n, procs_shared *s, void *arg)
{
    (void)arg;
    fault_rank f;
    fault_join(&f, rank, n, s, NET, 10);
    if (rank == VICTIM) {
        fault_destroy(&f.comm, 1.5);
        return fault_leave(&f);
    }
    double start = procs_now();
    while (procs_now() - start < 0.8) {
        dcomm_context_progress(dcomm_comm_context(f.comm));
        procs_nap();
    }
    PROCS_CHECK(dcomm_comm_status(f.comm) == DCOMM_OK, "%s", dcomm_comm_error(f.comm));
    dcomm_status status = fault_allreduce(f.comm, rank, NULL, COUNT, NULL);
    fault_expect(&f, status, DCOMM_ERR_PEER,
                 (const char *[]){"rank 2 has left", "after 0 collectives", NULL});
    PROCS_CHECK(procs_now() - start < 5, "it took %.1f s", procs_now() - start);
    fault_recover(&f, VICTIM);
    return fault_leave(&f);
}

Test(faults, leaves_unheard_net, .timeout = 60)
{
    run(N, leaves_unheard, NULL, -1);
}

/* One rank sleeps before it destroys; the others have never exchanged messages with most of their
 * peers. */
static int leaves_quietly(int rank, int n, procs_shared *s, void *arg)
{
    fault_rank f;
    int late = *(int *)arg;
    fault_join(&f, rank, n, s, LOCAL, 10);
    float x = 1;
    dcomm_status status =
        dcomm_broadcast(f.comm, &x, &x, 1, DCOMM_F32, 0, &(dcomm_coll_opts){.algo = "binomial"});
    PROCS_CHECK(status == DCOMM_OK, "%s", dcomm_last_error());
    fault_meet(&f, -1);
    if (rank == late) {
        sleep(test_full() ? 2 : 1);
        for (int i = 0; i < 10000; i++) {
            dcomm_context_progress(dcomm_comm_context(f.comm));
        }
        PROCS_CHECK(dcomm_comm_status(f.comm) == DCOMM_OK, "%s", dcomm_comm_error(f.comm));
    }
    fault_destroy(&f.comm, late < 0 || rank == late ? 1 : 4);
    return fault_leave(&f);
}

Test(faults, destroy_is_quick, .timeout = 60)
{
    run(8, leaves_quietly, &(int){-1}, -1);
}

Test(faults, destroy_waits_for_the_late, .timeout = 60)
{
    run(8, leaves_quietly, &(int){5}, -1);
}

/* ---- abort and destroy ---- */

static void *abort_later(void *arg)
{
    nanosleep(&(struct timespec){.tv_nsec = 300000000}, NULL);
    return (void *)(intptr_t)dcomm_comm_abort(arg, "out of coffee");
}

static int aborted(int rank, int n, procs_shared *s, void *arg)
{
    fault_rank f;
    pthread_t thread;
    fault_join(&f, rank, n, s, *(fault_place *)arg, 10);
    dcomm_status status = fault_allreduce(f.comm, rank, NULL, COUNT, NULL);
    PROCS_CHECK(status == DCOMM_OK, "%s", dcomm_last_error());
    static const char *const words[] = {"rank 1 aborted: out of coffee", NULL};
    if (rank == 1) {
        pthread_create(&thread, NULL, abort_later, f.comm);
    }
    double start = procs_now();
    if (rank == 3) {
        while (dcomm_comm_status(f.comm) == DCOMM_OK) {
            dcomm_context_progress(dcomm_comm_context(f.comm));
        }
    }
    status = fault_allreduce(f.comm, rank, NULL, COUNT, NULL);
    fault_expect(&f, status, DCOMM_ERR_ABORTED, words);
    PROCS_CHECK(procs_now() - start < 1.5, "it took %.1f s", procs_now() - start);
    if (rank == 1) {
        pthread_join(thread, NULL);
    }
    fault_recover(&f, -1);
    return fault_leave(&f);
}

Test(faults, aborted, .timeout = 60)
{
    run(N, aborted, &(fault_place){LOCAL}, -1);
}

Test(faults, aborted_net, .timeout = 60)
{
    run(N, aborted, &(fault_place){NET}, -1);
}

static int destroyed_with_requests(int rank, int n, procs_shared *s, void *arg)
{
    (void)arg;
    static float in[8][COUNT], out[8][COUNT];
    dcomm_request *requests[8];
    fault_rank f;
    fault_join(&f, rank, n, s, LOCAL, 10);
    for (int i = 0; i < 8; i++) {
        dcomm_status status = dcomm_iallreduce(f.comm, in[i], out[i], COUNT, DCOMM_F32, DCOMM_SUM,
                                               NULL, &requests[i]);
        PROCS_CHECK(status == DCOMM_OK, "%s", dcomm_last_error());
        if (rank == VICTIM) { /* the others' operations cannot complete without this rank */
            break;
        }
    }
    if (rank != VICTIM) {
        for (int i = 0; i < 2000; i++) {
            dcomm_context_progress(dcomm_comm_context(f.comm));
        }
    }
    fault_destroy(&f.comm, 1.5);
    /* Destroying waited for the operation that the victim had joined. The others failed when it
     * had left. */
    for (int i = 0; i < (rank == VICTIM ? 1 : 8); i++) {
        dcomm_status status = dcomm_wait(&requests[i]);
        PROCS_CHECK(status == (i == 0 ? DCOMM_OK : DCOMM_ERR_PEER), "operation %d: %s: %s", i,
                    dcomm_status_name(status), dcomm_last_error());
    }
    return fault_leave(&f);
}

Test(faults, destroyed_with_requests, .timeout = 60)
{
    run(N, destroyed_with_requests, NULL, -1);
}

/* ---- shrinking ---- */

/* Shrink repeatedly with the same list: each new communicator has its own message space. */
static int shrunk_again(int rank, int n, procs_shared *s, void *arg)
{
    (void)arg;
    fault_rank f;
    fault_join(&f, rank, n, s, LOCAL, 5);
    if (rank == n - 1) {
        die(s);
    }
    for (int i = 0; i < 3; i++) {
        int dead = n - 1;
        dcomm_comm *one = NULL, *two = NULL;
        dcomm_status status = dcomm_comm_shrink(f.comm, &dead, 1, &one);
        PROCS_CHECK(status == DCOMM_OK, "%s", dcomm_last_error());
        if (rank != i) {
            status = dcomm_comm_shrink(f.comm, &dead, 1, &two);
        } else {
            nanosleep(&(struct timespec){.tv_nsec = 50000000}, NULL);
            status = dcomm_comm_shrink(f.comm, &dead, 1, &two);
        }
        PROCS_CHECK(status == DCOMM_OK, "%s", dcomm_last_error());
        PROCS_TRUE(fault_allreduce(one, rank, NULL, 1000, NULL) == DCOMM_OK);
        PROCS_TRUE(fault_allreduce(two, rank, NULL, 1000, NULL) == DCOMM_OK);
        fault_destroy(&one, 1);
        fault_destroy(&two, 1);
    }
    return fault_leave(&f);
}

/* Ranks come late, one after the other; those before them give up and try again. */
static int shrunk_late(int rank, int n, procs_shared *s, void *arg)
{
    fault_rank f;
    fault_join(&f, rank, n, s, *(fault_place *)arg, 1);
    if (rank == n - 1) {
        die(s);
    }
    double start = procs_now();
    nanosleep(&(struct timespec){.tv_sec = rank, .tv_nsec = rank * 300000000L}, NULL);
    int dead = n - 1, tries = 0;
    dcomm_comm *small = NULL;
    while (dcomm_comm_shrink(f.comm, &dead, 1, &small) != DCOMM_OK && procs_now() - start < 8) {
        PROCS_TRUE(small == NULL);
        tries++;
    }
    PROCS_CHECK(small != NULL, "rank %d gave up after %d tries: %s", rank, tries,
                dcomm_last_error());
    PROCS_CHECK(rank == 0 ? tries >= 1 : tries <= 2, "rank %d failed %d times", rank, tries);
    PROCS_CHECK(procs_now() - start < 5, "it took %.1f s", procs_now() - start);
    PROCS_TRUE(fault_allreduce(small, rank, NULL, 1000, NULL) == DCOMM_OK);
    fault_destroy(&small, 1);
    return fault_leave(&f);
}

Test(faults, shrunk_late, .timeout = 90)
{
    run(N, shrunk_late, &(fault_place){LOCAL}, N - 1);
    if (test_full()) {
        run(N, shrunk_late, &(fault_place){NET}, N - 1);
    }
}

/* One rank alone has first tried with another list. */
static int shrunk_with_other_lists(int rank, int n, procs_shared *s, void *arg)
{
    (void)arg;
    fault_rank f;
    fault_join(&f, rank, n, s, LOCAL, 1);
    dcomm_comm *small = NULL;
    const int wrong[] = {1, n - 1};
    for (int i = 0; i < (test_full() ? 2 : 1) && rank == 0; i++) {
        dcomm_status status = dcomm_comm_shrink(f.comm, wrong, 2, &small);
        PROCS_CHECK(status == DCOMM_ERR_TIMEOUT && small == NULL, "%s", dcomm_last_error());
    }
    fault_meet(&f, -1);
    if (rank == n - 1) {
        die(s);
    }
    double start = procs_now();
    dcomm_status status = dcomm_comm_shrink(f.comm, &(int){n - 1}, 1, &small);
    PROCS_CHECK(status == DCOMM_OK, "rank %d: %s", rank, dcomm_last_error());
    PROCS_CHECK(procs_now() - start < 0.9, "it took %.1f s", procs_now() - start);
    PROCS_TRUE(fault_allreduce(small, rank, NULL, 1000, NULL) == DCOMM_OK);
    fault_destroy(&small, 1);
    return fault_leave(&f);
}

Test(faults, shrunk_with_other_lists, .timeout = 60)
{
    run(N, shrunk_with_other_lists, NULL, N - 1);
}

Test(faults, shrunk_again, .timeout = 60)
{
    run(N, shrunk_again, NULL, N - 1);
}

/* ---- programs that ignore each status ---- */

static char said[4096];
static int nsaid;

static void listen(int level, const char *message, void *user)
{
    (void)user;
    if (level == 0) {
        snprintf(said, sizeof said, "%s", message);
        nsaid++;
    }
}

/* Rank 1 leaves; rank 0 goes on with two communicators and many calls. */
static void overlooked(int rank, int n, procs_shared *s, const dcomm_comm_opts *opts)
{
    dcomm_comm *comm = ranks_join(rank, n, s, opts), *twin = NULL;
    float x = 1;
    RANKS_OK(dcomm_comm_dup(comm, &twin));
    if (rank == 1) {
        _exit(0);
    }
    for (int i = 0; i < 20; i++) {
        dcomm_status ignored =
            dcomm_allreduce(i % 2 ? comm : twin, DCOMM_IN_PLACE, &x, 1, DCOMM_F32, DCOMM_SUM, NULL);
        PROCS_CHECK(ignored == DCOMM_ERR_PEER, "%s", dcomm_last_error());
    }
    PROCS_TRUE(dcomm_comm_destroy(&twin) == DCOMM_OK); /* a call has already returned the error */
    PROCS_TRUE(dcomm_comm_destroy(&comm) == DCOMM_OK);
}

/* The error is printed once, or not at all if that is switched off. */
static int printed(int rank, int n, procs_shared *s, void *arg)
{
    const char *variable = arg;
    dcomm_set_logger(listen, NULL);
    if (variable != NULL) {
        setenv("DCOMM_ERRORS", variable, 1);
    } else {
        unsetenv("DCOMM_ERRORS");
    }
    overlooked(rank, n, s, NULL);
    if (variable != NULL) {
        PROCS_CHECK(nsaid == 0, "%s", said);
    } else {
        PROCS_CHECK(nsaid == 1, "%d times, last: %s", nsaid, said);
        PROCS_CHECK(strstr(said, "rank 0: a peer failed") != NULL && strstr(said, "rank 1") != NULL,
                    "%s", said);
    }
    return 0;
}

Test(faults, printed_once, .timeout = 60)
{
    run(2, printed, NULL, -1);
    run(2, printed, "return", -1);
}

/* An option overrides the environment variable. */
static int aborts(int rank, int n, procs_shared *s, void *arg)
{
    const dcomm_comm_opts opts = {.on_error = *(dcomm_on_error *)arg};
    signal(SIGABRT, SIG_DFL);
    setenv("DCOMM_ERRORS", "abort", 1);
    dcomm_set_logger(listen, NULL);
    overlooked(rank, n, s, &opts);
    PROCS_TRUE(nsaid == 0);
    return 0;
}

Test(faults, aborts_where_that_is_wanted, .timeout = 60)
{
    int ended[PROCS_MAX];
    dcomm_on_error choice = DCOMM_ON_ERROR_RETURN;
    run(2, aborts, &choice, -1);
    choice = DCOMM_ON_ERROR_DEFAULT;
    procs_run(2, 30, aborts, &choice, ended);
    cr_assert(ended[0] == 128 + SIGABRT && ended[1] == 0, "%d, %d", ended[0], ended[1]);
}

enum { UNTOLD, RETURNED, ASKED };

/* Rank 1 aborts; rank 0 receives the abort and destroys. Destroying returns the error if no call
 * has yet. */
static int untold(int rank, int n, procs_shared *s, void *arg)
{
    int how = *(int *)arg;
    float x = 1;
    dcomm_comm *comm = ranks_join(rank, n, s, NULL);
    RANKS_OK(dcomm_barrier(comm, NULL));
    procs_post(s, rank, 1);
    if (rank == 1) {
        while (!procs_all(s, n, 1, -1)) {
            RANKS_OK(dcomm_context_progress(dcomm_comm_context(comm)));
        }
        RANKS_OK(dcomm_comm_abort(comm, "the disk is full"));
        procs_post(s, rank, 2);
        RANKS_OK(dcomm_comm_destroy(&comm)); /* this rank aborted itself */
        return 0;
    }
    for (int i = 0; how == UNTOLD && (i < 100 || !procs_all(s, n, 2, 0)); i++) {
        RANKS_OK(dcomm_context_progress(dcomm_comm_context(comm)));
    }
    dcomm_status status = DCOMM_OK;
    while (how == RETURNED && status == DCOMM_OK) {
        status = dcomm_allreduce(comm, DCOMM_IN_PLACE, &x, 1, DCOMM_F32, DCOMM_SUM, NULL);
    }
    while (how == ASKED && dcomm_comm_status(comm) == DCOMM_OK) {
        RANKS_OK(dcomm_context_progress(dcomm_comm_context(comm)));
    }
    status = dcomm_comm_destroy(&comm);
    PROCS_TRUE(comm == NULL);
    if (how == UNTOLD) {
        ranks_refused(status, DCOMM_ERR_ABORTED, "the disk is full");
    } else {
        PROCS_CHECK(status == DCOMM_OK, "%s", dcomm_last_error());
    }
    return 0;
}

Test(faults, destroying_returns_what_nobody_looked_at, .timeout = 60)
{
    for (int how = UNTOLD; how <= ASKED; how++) {
        run(2, untold, &how, -1);
    }
}

/* Creation fails and its status is ignored: the first call on the missing communicator says
 * why. */
static int uncreated(int rank, int n, procs_shared *s, void *arg)
{
    float x = 1;
    dcomm_comm *comm = NULL;
    const dcomm_comm_opts opts = {.algo = "rong", .on_error = DCOMM_ON_ERROR_PRINT};
    (void)rank, (void)n, (void)s, (void)arg;
    dcomm_set_logger(listen, NULL);
    PROCS_TRUE(dcomm_comm_create(&opts, &comm) == DCOMM_ERR_INVALID && comm == NULL && nsaid == 0);
    for (int i = 0; i < 3; i++) {
        dcomm_status status =
            dcomm_allreduce(comm, DCOMM_IN_PLACE, &x, 1, DCOMM_F32, DCOMM_SUM, NULL);
        PROCS_TRUE(status == DCOMM_ERR_INVALID);
    }
    PROCS_CHECK(nsaid == 1 && strstr(said, "rong") != NULL, "%d times, last: %s", nsaid, said);
    return 0;
}

Test(faults, calls_on_no_communicator_say_why, .timeout = 60)
{
    run(1, uncreated, NULL, -1);
}

/* ---- ranks that round differently ---- */

enum { ALIKE, ONE_ROUNDS_UP, ONE_FLUSHES, ALL_FLUSH };

static int floats(int rank, int n, procs_shared *s, void *arg)
{
    int how = *(int *)arg;
    dcomm_comm *comm = NULL;
    dcomm_comm_opts opts = {.boot = DCOMM_BOOT_ID, .rank = rank, .size = n, .timeout_s = 20};
    size_t len;
    if (rank == 0) {
        RANKS_OK(dcomm_id_create(&opts.id));
        procs_give(s, 0, &opts.id, sizeof opts.id);
    } else {
        memcpy(&opts.id, procs_take(s, 0, &len), sizeof opts.id);
    }
    if (how == ONE_ROUNDS_UP && rank == 1) {
        PROCS_TRUE(fesetround(FE_UPWARD) == 0);
    }
    if (how == ALL_FLUSH || (how == ONE_FLUSHES && rank == 2)) {
#ifdef __SSE__
        __builtin_ia32_ldmxcsr(__builtin_ia32_stmxcsr() | 0x8040);
#else
        return 0;
#endif
    }
    double begun = procs_now();
    dcomm_status status = dcomm_comm_create(&opts, &comm);
    if (how == ALIKE || how == ALL_FLUSH) {
        PROCS_CHECK(status == DCOMM_OK, "%s", dcomm_last_error());
        return dcomm_comm_destroy(&comm) == DCOMM_OK ? 0 : 1;
    }
    ranks_refused(status, DCOMM_ERR_MISMATCH, how == ONE_ROUNDS_UP ? "rank 1" : "rank 2");
    ranks_refused(status, DCOMM_ERR_MISMATCH, how == ONE_ROUNDS_UP ? "rounds upward" : "FTZ, DAZ");
    PROCS_TRUE(comm == NULL && procs_now() - begun < 4);
    return 0;
}

Test(faults, ranks_that_compute_otherwise_are_named, .timeout = 60)
{
#ifdef __SSE__
    const int last = ALL_FLUSH;
#else
    const int last = ONE_ROUNDS_UP;
#endif
    for (int how = ALIKE; how <= last; how++) {
        run(3, floats, &how, -1);
    }
}
