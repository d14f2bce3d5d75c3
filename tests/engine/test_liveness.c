/* test_liveness.c - how soon survivors know of a dead or silent rank, and whom they name. The
 * bounds are loose, for busy cores; DCOMM_TEST_FULL prints what was measured over more trials. */
#define _GNU_SOURCE
#include "faults.h"
#include "ranks.h"

#include <criterion/criterion.h>
#include <net/if.h>
#include <pthread.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/ptrace.h>
#include <sys/socket.h>

enum { N = 4, VICTIM = 2, COUNT = 20000, TRIALS = 64 };

/* Run n ranks; `victim` (-1: none) must end by SIGKILL, the others with 0. */
static void run(int n, procs_fn fn, void *arg, int victim)
{
    int ended[PROCS_MAX];
    procs_run(n, 60, fn, arg, ended);
    for (int r = 0; r < n; r++) {
        int want = r == victim ? 128 + SIGKILL : 0;
        cr_expect(ended[r] == want, "rank %d ended with %d, not %d", r, ended[r], want);
    }
}

/* ---- a killed rank ---- */

/* Measurements of the ranks in all trials. The memory is shared with the test. */
typedef struct trials {
    fault_place place;
    bool waits; /* the survivors wait for the victim, rather than work with it */
    int n;
    _Atomic long died_us[TRIALS]; /* when the victim was killed */
    _Atomic long knew_us[TRIALS]; /* when the last survivor's call failed */
    _Atomic long shut_us[TRIALS]; /* what the slowest survivor's destroy took */
} trials;

static long now_us(void)
{
    return (long)(procs_now() * 1e6);
}

static void highest(_Atomic long *at, long value)
{
    for (long was = atomic_load(at);
         was < value && !atomic_compare_exchange_weak(at, &was, value);) {
    }
}

typedef struct death {
    trials *t;
    int i;
} death;

static void *die_soon(void *arg)
{
    death *d = arg;
    nanosleep(&(struct timespec){.tv_nsec = 5000000 + getpid() % 32 * 1000000}, NULL);
    atomic_store(&d->t->died_us[d->i], now_us());
    kill(getpid(), SIGKILL);
    return NULL;
}

static int killed(int rank, int n, procs_shared *s, void *arg)
{
    static float in[COUNT], out[COUNT];
    static fault_rank f;
    death *d = arg;
    fault_join(&f, rank, n, s, d->t->place, 20);
    dcomm_status status = fault_allreduce(f.comm, rank, NULL, COUNT, NULL);
    PROCS_CHECK(status == DCOMM_OK, "%s", dcomm_last_error());
    fault_meet(&f, -1);
    if (rank == VICTIM) {
        pthread_t thread;
        PROCS_TRUE(pthread_create(&thread, NULL, die_soon, d) == 0);
        if (d->t->waits) {
            pause();
        }
    }
    while (status == DCOMM_OK) {
        status = dcomm_allreduce(f.comm, in, out, COUNT, DCOMM_F32, DCOMM_SUM, NULL);
    }
    highest(&d->t->knew_us[d->i], now_us());
    fault_expect(&f, status, DCOMM_ERR_PEER, (const char *[]){"rank 2", NULL});
    long begun = now_us();
    fault_destroy(&f.comm, 1);
    highest(&d->t->shut_us[d->i], now_us() - begun);
    return 0;
}

static int by_value(const void *a, const void *b)
{
    return *(const double *)a < *(const double *)b ? -1 : *(const double *)a > *(const double *)b;
}

/* Print the percentiles of n values in milliseconds. Return the median. */
static double percentiles(const char *what, double *ms, int n)
{
    qsort(ms, (size_t)n, sizeof *ms, by_value);
    if (test_full()) {
        fprintf(stderr, "%s: p50 %.1f ms, p90 %.1f ms, p99 %.1f ms, most %.1f ms (%d trials)\n",
                what, ms[n / 2], ms[n * 9 / 10], ms[(n * 99 - 1) / 100], ms[n - 1], n);
    }
    return ms[n / 2];
}

/* Kill rank 2 again and again. Half of the trials must be quick: the others may have lost their
 * core. */
static void kills(fault_place place, bool waits, const char *name, double most_ms)
{
    double knew[TRIALS], shut[TRIALS];
    char what[96];
    trials *t = mmap(NULL, sizeof *t, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    cr_assert(t != MAP_FAILED);
    t->place = place;
    t->waits = waits;
    t->n = test_full() ? TRIALS : 5;
    for (int i = 0; i < t->n; i++) {
        run(N, killed, &(death){t, i}, VICTIM);
        knew[i] = (double)(t->knew_us[i] - t->died_us[i]) / 1e3;
        shut[i] = (double)t->shut_us[i] / 1e3;
    }
    snprintf(what, sizeof what, "%s: kill to the last survivor's error", name);
    double middle = percentiles(what, knew, t->n);
    cr_expect(middle < most_ms, "%s: the median is %.1f ms", what, middle);
    snprintf(what, sizeof what, "%s: the slowest destroy", name);
    middle = percentiles(what, shut, t->n);
    cr_expect(middle < 50, "%s: the median is %.1f ms", what, middle);
    munmap(t, sizeof *t);
}

Test(liveness, killed_while_others_wait, .timeout = 300)
{
    kills(LOCAL, true, "one host, waiting", 25);
}

Test(liveness, killed_at_work, .timeout = 300)
{
    kills(LOCAL, false, "one host, working", 25);
}

Test(liveness, killed_on_another_host, .timeout = 300)
{
    kills(NET, true, "four hosts, waiting", 60);
}

Test(liveness, killed_among_pairs, .timeout = 300)
{
    kills(PAIRS, false, "two hosts, working", 60);
}

/* ---- destroying after an error ---- */

/* Rank 0 destroys at once. The other survivors have not even heard of the error. */
static int destroyed_alone(int rank, int n, procs_shared *s, void *arg)
{
    static float in[8 * COUNT], out[8 * COUNT];
    fault_rank f;
    fault_join(&f, rank, n, s, *(fault_place *)arg, 20);
    dcomm_status status = fault_allreduce(f.comm, rank, NULL, COUNT, NULL);
    PROCS_CHECK(status == DCOMM_OK, "%s", dcomm_last_error());
    fault_meet(&f, -1);
    if (rank == VICTIM) {
        kill(getpid(), SIGKILL);
    }
    dcomm_request *request = NULL;
    status = dcomm_iallreduce(f.comm, in, out, 8 * COUNT, DCOMM_F32, DCOMM_SUM,
                              &(dcomm_coll_opts){.algo = "ring"}, &request);
    if (rank != 0) {
        nanosleep(&(struct timespec){.tv_nsec = 700000000}, NULL);
    }
    while (status >= 0 && (status = dcomm_test(&request)) == DCOMM_IN_PROGRESS) {
    }
    PROCS_CHECK(status == DCOMM_ERR_PEER, "rank %d: %s", rank, dcomm_last_error());
    fault_destroy(&f.comm, 0.35);
    return 0;
}

Test(liveness, destroyed_alone, .timeout = 60)
{
    run(N, destroyed_alone, &(fault_place){LOCAL}, VICTIM);
    run(N, destroyed_alone, &(fault_place){NET}, VICTIM);
    run(N, destroyed_alone, &(fault_place){PAIRS}, VICTIM);
}

/* Rank 0 destroys at once. The other survivor knows of the error, and has said so, but stays. */
static int destroyed_first(int rank, int n, procs_shared *s, void *arg)
{
    fault_rank f;
    death *d = arg;
    fault_join(&f, rank, n, s, d->t->place, 20);
    RANKS_OK(dcomm_barrier(f.comm, NULL));
    fault_meet(&f, -1);
    if (rank == VICTIM) {
        kill(getpid(), SIGKILL);
    }
    PROCS_TRUE(dcomm_barrier(f.comm, NULL) == DCOMM_ERR_PEER);
    fault_meet(&f, VICTIM);
    if (rank == 0) {
        const long begun = now_us();
        fault_destroy(&f.comm, 1);
        atomic_store(&d->t->shut_us[d->i], now_us() - begun);
    }
    fault_meet(&f, VICTIM);
    if (rank != 0) {
        fault_destroy(&f.comm, 1);
    }
    return 0;
}

/* The quickest of some trials has no reason to wait. */
Test(liveness, destroyed_first, .timeout = 120)
{
    const fault_place places[] = {LOCAL, NET};
    trials *t = mmap(NULL, sizeof *t, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    cr_assert(t != MAP_FAILED);
    for (int p = 0; p < 2; p++) {
        long least = 1000000;
        t->place = places[p];
        for (int i = 0; i < 5; i++) {
            run(3, destroyed_first, &(death){t, i}, VICTIM);
            least = t->shut_us[i] < least ? t->shut_us[i] : least;
        }
        cr_expect(least < 15000, "place %d: destroying took %ld us", places[p], least);
    }
    munmap(t, sizeof *t);
}

/* ---- silence ---- */

/* Join with a liveness of 1 s: rank 0's counts. */
static void join_alive(fault_rank *f, int rank, int n, procs_shared *s, fault_place place)
{
    setenv("DCOMM_LIVENESS_S", rank == 0 ? "1" : "30", 1);
    fault_join(f, rank, n, s, place, 20);
    PROCS_TRUE(fault_allreduce(f->comm, rank, NULL, COUNT, NULL) == DCOMM_OK);
    fault_meet(f, -1);
}

static void stop_here(fault_rank *f)
{
    atomic_store(&f->s->words[40 + f->rank], (long)getpid());
    raise(SIGSTOP);
}

static void wake(fault_rank *f, int rank)
{
    kill((pid_t)atomic_load(&f->s->words[40 + rank]), SIGCONT);
}

/* Ranks 1 and 2 stop, and rank 3 computes for a while. Where one rank can see both, its sentence
 * names both; none names another rank. */
static int two_stop(int rank, int n, procs_shared *s, void *arg)
{
    const fault_place place = *(fault_place *)arg;
    fault_rank f;
    join_alive(&f, rank, n, s, place);
    double begun = procs_now();
    if (rank == 1 || rank == 2) {
        stop_here(&f);
    }
    while (rank == 3 && procs_now() - begun < 0.8) {
    }
    dcomm_status status = fault_allreduce(f.comm, rank, NULL, COUNT, NULL);
    const char *said = dcomm_last_error();
    PROCS_CHECK(status == DCOMM_ERR_PEER, "%s", said);
    if (rank == 0 || rank == 3) {
        PROCS_CHECK(procs_now() - begun < 8, "place %d: it took %.1f s: %s", place,
                    procs_now() - begun, said);
        PROCS_CHECK(strncmp(said, "rank 1 (", 8) == 0 || strncmp(said, "rank 2 (", 8) == 0 ||
                        strstr(said, " as dead") != NULL,
                    "%s", said);
        PROCS_CHECK(place != NET || strstr(said, "no beat of it came") != NULL, "%s", said);
        PROCS_CHECK(place != LOCAL || strstr(said, "has been stopped for 1 s") != NULL, "%s", said);
        const char *also = strstr(said, "; lost as well: ");
        PROCS_CHECK(place == PAIRS || also != NULL, "%s", said);
        PROCS_CHECK(also == NULL || strcmp(also + 16, said[5] == '1' ? "rank 2" : "rank 1") == 0,
                    "%s", said);
    }
    PROCS_CHECK(strstr(said, "rank 0 (") == NULL && strstr(said, "rank 3 (") == NULL, "%s", said);
    if (rank == 0) {
        wake(&f, 1);
        wake(&f, 2);
    }
    for (begun = procs_now(); procs_now() - begun < 0.3;) { /* so that they hear it of us */
        dcomm_context_progress(dcomm_comm_context(f.comm));
        procs_nap();
    }
    fault_destroy(&f.comm, 1.5);
    return 0;
}

Test(liveness, two_stop, .timeout = 60)
{
    run(N, two_stop, &(fault_place){LOCAL}, -1);
}

Test(liveness, two_stop_on_their_hosts, .timeout = 60)
{
    run(N, two_stop, &(fault_place){NET}, -1);
}

Test(liveness, two_stop_beside_others, .timeout = 60)
{
    run(N, two_stop, &(fault_place){PAIRS}, -1);
}

/* Rank 3 stops. Rank 1 waits for it in a communicator without those that see it. */
static int stops_in_a_part(int rank, int n, procs_shared *s, void *arg)
{
    (void)arg;
    fault_rank f;
    dcomm_comm *part = NULL;
    join_alive(&f, rank, n, s, PAIRS);
    RANKS_OK(dcomm_comm_split(f.comm, rank % 2, 0, &part));
    RANKS_OK(dcomm_barrier(part, NULL));
    fault_meet(&f, -1);
    double begun = procs_now();
    if (rank == 3) {
        stop_here(&f);
    }
    dcomm_status status = dcomm_barrier(rank == 1 ? part : f.comm, NULL);
    PROCS_CHECK(status == DCOMM_ERR_PEER, "%s", dcomm_last_error());
    PROCS_CHECK(procs_now() - begun < 8, "it took %.1f s", procs_now() - begun);
    if (rank == 1) {
        PROCS_CHECK(strncmp(dcomm_last_error(), "rank 1 (", 8) == 0, "%s", dcomm_last_error());
        wake(&f, 3);
    }
    for (begun = procs_now(); procs_now() - begun < 0.3;) {
        dcomm_context_progress(dcomm_comm_context(f.comm));
        procs_nap();
    }
    dcomm_status ignored = dcomm_comm_destroy(&part);
    ignored = dcomm_comm_destroy(&f.comm);
    (void)ignored;
    return 0;
}

Test(liveness, stops_in_a_part, .timeout = 60)
{
    run(N, stops_in_a_part, NULL, -1);
}

enum { COMPUTES, COMPUTES_AFAR, TRACED };

/* Have a child hold this process as a debugger does, for some seconds. Return false if the system
 * does not allow it. */
static bool be_traced(double seconds)
{
    const pid_t self = getpid();
    int told[2], status = 0;
    PROCS_TRUE(pipe(told) == 0);
    pid_t child = fork();
    if (child == 0) {
        char go = 0;
        bool held = read(told[0], &go, 1) == 1 && ptrace(PTRACE_SEIZE, self, NULL, NULL) == 0 &&
                    ptrace(PTRACE_INTERRUPT, self, NULL, NULL) == 0 &&
                    waitpid(self, &status, 0) == self;
        if (held) {
            nanosleep(&(struct timespec){.tv_sec = (time_t)seconds}, NULL);
            ptrace(PTRACE_DETACH, self, NULL, NULL);
        }
        _exit(held ? 0 : 1);
    }
    prctl(PR_SET_PTRACER, child, 0, 0, 0);
    PROCS_TRUE(write(told[1], "g", 1) == 1);
    while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
    }
    close(told[0]);
    close(told[1]);
    return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

/* Rank 1 does not come for three times liveness_s, because it computes or a debugger holds it. */
static int busy(int rank, int n, procs_shared *s, void *arg)
{
    const int how = *(int *)arg;
    fault_rank f;
    join_alive(&f, rank, n, s, how == COMPUTES_AFAR ? NET : LOCAL);
    double begun = procs_now();
    while (rank == 1 && how != TRACED && procs_now() - begun < 3) {
    }
    if (rank == 1 && how == TRACED && !be_traced(3)) {
        fprintf(stderr, "no process may be traced here\n");
    }
    dcomm_status status = fault_allreduce(f.comm, rank, NULL, COUNT, NULL);
    PROCS_CHECK(status == DCOMM_OK, "%s", dcomm_last_error());
    fault_destroy(&f.comm, 2);
    return 0;
}

Test(liveness, a_rank_that_computes_is_alive, .timeout = 60)
{
    run(N, busy, &(int){COMPUTES}, -1);
    run(N, busy, &(int){COMPUTES_AFAR}, -1);
}

Test(liveness, a_rank_in_a_debugger_is_alive, .timeout = 60)
{
    run(N, busy, &(int){TRACED}, -1);
}

/* All ranks stop for longer than liveness_s, as ^Z does, and go on. Nobody accuses anybody. */
static int all_stop(int rank, int n, procs_shared *s, void *arg)
{
    fault_rank f;
    (void)arg;
    join_alive(&f, rank, n, s, LOCAL);
    const pid_t self = getpid();
    if (rank == 0) { /* a child of rank 0 stops all, and wakes them */
        while (!procs_all(s, n, 7, 0)) {
            procs_nap();
        }
        if (fork() == 0) {
            for (int turn = 0; turn < (test_full() ? 2 : 1); turn++) {
                nanosleep(&(struct timespec){.tv_nsec = 900000000}, NULL);
                for (int r = n - 1; r >= 0; r--) {
                    kill(r == 0 ? self : (pid_t)atomic_load(&s->words[40 + r]), SIGSTOP);
                }
                nanosleep(&(struct timespec){.tv_sec = 2}, NULL);
                kill(self, SIGCONT); /* rank 0 sees the others stopped */
                nanosleep(&(struct timespec){.tv_nsec = 300000000}, NULL);
                for (int r = 1; r < n; r++) {
                    kill((pid_t)atomic_load(&s->words[40 + r]), SIGCONT);
                }
            }
            _exit(0);
        }
    } else {
        atomic_store(&s->words[40 + rank], (long)self);
        procs_post(s, rank, 7);
    }
    double begun = procs_now();
    if (rank == 1) { /* comes last, so that the others wait and look */
        while (procs_now() - begun < (test_full() ? 7 : 4)) {
            procs_nap();
        }
    }
    dcomm_status status = fault_allreduce(f.comm, rank, NULL, COUNT, NULL);
    PROCS_CHECK(status == DCOMM_OK, "rank %d: %s", rank, dcomm_last_error());
    fault_destroy(&f.comm, 2);
    return 0;
}

Test(liveness, all_stop_and_go_on, .timeout = 60)
{
    run(N, all_stop, NULL, -1);
}

/* ---- a cut network ---- */

/* Enter a network of our own, with a loopback alone. Return false if the system does not allow it.
 */
static bool own_network(void)
{
    return unshare(CLONE_NEWNET) == 0 || unshare(CLONE_NEWUSER | CLONE_NEWNET) == 0;
}

/* Switch the network on or off. */
static void network(bool on)
{
    struct ifreq lo = {.ifr_name = "lo"};
    int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    PROCS_TRUE(fd >= 0 && ioctl(fd, SIOCGIFFLAGS, &lo) == 0);
    lo.ifr_flags = (short)(on ? lo.ifr_flags | IFF_UP : lo.ifr_flags & ~IFF_UP);
    PROCS_TRUE(ioctl(fd, SIOCSIFFLAGS, &lo) == 0);
    close(fd);
}

/* The network between all ranks is cut for some seconds while they work. */
static int cut(int rank, int n, procs_shared *s, void *arg)
{
    const double seconds = *(double *)arg, liveness = 2;
    fault_rank f;
    setenv("DCOMM_LIVENESS_S", "2", 1);
    fault_join(&f, rank, n, s, NET, 30);
    dcomm_status status = fault_allreduce(f.comm, rank, NULL, COUNT, NULL);
    PROCS_CHECK(status == DCOMM_OK, "%s", dcomm_last_error());
    fault_meet(&f, -1);
    if (rank == 0) {
        network(false);
    }
    fault_meet(&f, -1);
    double begun = procs_now(), knew = 0;
    bool is_cut = true;
    static float in[COUNT], out[COUNT];
    while (status == DCOMM_OK && out[0] <= 0) {
        dcomm_request *request = NULL;
        in[0] = rank == 0 && procs_now() - begun > seconds + 1; /* all end after this call */
        status = dcomm_iallreduce(f.comm, in, out, COUNT, DCOMM_F32, DCOMM_SUM, NULL, &request);
        while (status >= 0 && (status = dcomm_test(&request)) == DCOMM_IN_PROGRESS) {
            if (rank == 0 && is_cut && procs_now() - begun > seconds) {
                network(true);
                is_cut = false;
            }
        }
        knew = procs_now() - begun;
    }
    if (seconds < liveness) {
        PROCS_CHECK(status == DCOMM_OK, "rank %d after %.1f s: %s", rank, knew, dcomm_last_error());
    } else {
        PROCS_CHECK(status == DCOMM_ERR_PEER, "rank %d: %s", rank, dcomm_last_error());
        PROCS_CHECK(strstr(dcomm_last_error(), "silent") != NULL, "%s", dcomm_last_error());
        PROCS_CHECK(strstr(dcomm_last_error(), "lost as well: ranks ") != NULL, "%s",
                    dcomm_last_error());
        PROCS_CHECK(knew > liveness && knew < 2 * liveness + 2, "it took %.1f s", knew);
    }
    if (test_full()) {
        fprintf(stderr, "rank %d, cut for %.1f s: %.1f s: %s\n", rank, seconds, knew,
                status < 0 ? dcomm_last_error() : "all is well");
    }
    _exit(0);
}

Test(liveness, a_cut_network, .timeout = 100)
{
    if (!own_network()) {
        cr_skip_test("no network of our own: %s", strerror(errno));
    }
    network(true);
    run(N, cut, &(double){1.2}, -1);
    run(N, cut, &(double){6}, -1);
}

/* ---- after the death of all ---- */

static void *die_after(void *ms)
{
    nanosleep(&(struct timespec){.tv_nsec = *(int *)ms * 1000000L}, NULL);
    kill(getpid(), SIGKILL);
    return NULL;
}

/* Every rank is killed so many milliseconds after it began: in creation, or at work. */
static int all_die(int rank, int n, procs_shared *s, void *arg)
{
    static fault_rank f;
    pthread_t thread;
    PROCS_TRUE(pthread_create(&thread, NULL, die_after, arg) == 0);
    fault_join(&f, rank, n, s, *(int *)arg % 2 == 0 ? LOCAL : PAIRS, 20);
    while (fault_allreduce(f.comm, rank, NULL, COUNT, NULL) == DCOMM_OK) {
    }
    pause();
    return 0;
}

/* Return how many lines of a file have this word. */
static int lines_with(const char *path, const char *word)
{
    char line[512];
    int found = 0;
    FILE *f = fopen(path, "r");
    while (f != NULL && fgets(line, sizeof line, f) != NULL) {
        found += strstr(line, word) != NULL;
    }
    if (f != NULL) {
        fclose(f);
    }
    return found;
}

Test(liveness, nothing_is_left, .timeout = 100)
{
    if (!own_network()) {
        cr_skip_test("no network of our own: %s", strerror(errno));
    }
    network(true);
    for (int ms = 1; ms < 200; ms += test_full() ? 3 : 17) {
        int ended[PROCS_MAX];
        cr_expect(procs_run(N, 30, all_die, &ms, ended) == N && ended[0] == 128 + SIGKILL);
        int unix_sockets = lines_with("/proc/net/unix", "dcomm");
        int listeners = lines_with("/proc/net/tcp", " 0A ") + lines_with("/proc/net/tcp6", " 0A ");
        cr_expect(unix_sockets == 0 && listeners == 0, "%d and %d sockets after %d ms",
                  unix_sockets, listeners, ms);
    }
}
