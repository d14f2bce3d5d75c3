/* soak.c - kills, stops, cuts and restarts at random, trial after trial, on one host and on
 * emulated hosts. Every sum is checked, every decision compared. Prints counts and percentiles, and
 * exits with 1 if anything was wrong.
 *
 *   soak [--seconds S] [--seed N] [--trial SEED] [--verbose]
 *
 * A trial follows from its seed, though not to the microsecond: --trial repeats one until the time
 * is over (default: 60 s of new trials). */
#define _GNU_SOURCE
#include "soak_plan.h"
#include "soak_rank.h"

#include <net/if.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

enum { TIMES = 1 << 16 };

typedef struct times {
    long n;
    double ms[TIMES];
} times;

/* Results of all trials; shared with the trials' processes. */
typedef struct soak {
    soak_faults faults;
    long trials[3], kills, stops, cuts, outages, joined, unable; /* trials by place */
    times knew, summed;
    double liveness_s;
    bool verbose;
} soak;

static void nap_until(double when)
{
    while (procs_now() < when) {
        nanosleep(&(struct timespec){.tv_nsec = 50000}, NULL);
    }
}

static void note(times *t, double ms)
{
    if (t->n < TIMES) {
        t->ms[t->n++] = ms;
    }
}

/* ---- a trial ---- */

typedef struct trial {
    soak *soak;
    soak_plan plan;
    soak_shared *all;
    procs_shared *meet;
    pid_t pid[SOAK_MARKS];
    int ended[SOAK_MARKS]; /* exit status; 128 + n for signal n; -1: it runs */
    int nprocs;
    unsigned dead, outcast; /* sets of marks */
} trial;

static void settle(void)
{
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    setenv("DCOMM_WARN_UNBOUND", "0", 1);
    setenv("DCOMM_TUNE_CACHE", "off", 1);
    setenv("DCOMM_ERRORS", "return", 1);
    setenv("DCOMM_LOG", "error", 0);
    setenv("DCOMM_TUNE", "0", 1);
    setenv("LOCAL_WORLD_SIZE", "16", 1);
}

static int be_rank(trial *t, int mark)
{
    static fault_rank f;
    soak_rank r = {.all = t->all, .mark = mark, .grow_s = 2};
    fault_join(&f, mark, t->plan.n, t->meet, t->plan.place, 20);
    r.comm = f.comm;
    return soak_live(&r);
}

static int be_newcomer(trial *t, int mark)
{
    soak_rank r = {.all = t->all, .mark = mark, .grow_s = 2};
    char host[32];
    snprintf(host, sizeof host, "host-%d",
             t->plan.place == NET     ? mark
             : t->plan.place == PAIRS ? mark / 2
                                      : 0);
    dcomm_comm_opts opts = {
        .context_opts = {.host_id = host, .iface = "lo"}, .boot = DCOMM_BOOT_JOIN, .timeout_s = 10};
    dcomm_status status = dcomm_comm_create(&opts, &r.comm);
    if (status != DCOMM_OK) {
        fprintf(stderr, "soak: process %d cannot join: %s\n", mark, dcomm_last_error());
        return 1;
    }
    return soak_live(&r);
}

static void start(trial *t, int (*be)(trial *t, int mark))
{
    const int mark = t->nprocs++;
    fflush(NULL);
    t->ended[mark] = -1;
    t->pid[mark] = fork();
    if (t->pid[mark] == 0) {
        settle();
        _exit(be(t, mark));
    }
}

static void reap(trial *t)
{
    for (int m = 0; m < t->nprocs; m++) {
        int status;
        if (t->ended[m] < 0 && waitpid(t->pid[m], &status, WNOHANG) == t->pid[m]) {
            t->ended[m] = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
        }
    }
}

static void kill_one(trial *t, int mark)
{
    kill(t->pid[mark], SIGKILL);
    t->dead |= 1u << mark;
    t->soak->kills++;
}

/* Return the marks of the processes that should be at work. */
static unsigned living(const trial *t)
{
    return ((1u << t->nprocs) - 1) & ~t->dead & ~t->outcast;
}

/* Return true if all that should be at work have a right sum of exactly these. */
static bool all_sum(const trial *t)
{
    const unsigned want = living(t);
    bool all = true;
    for (int m = 0; m < t->nprocs && all; m++) {
        all = (want >> m & 1) == 0 || atomic_load(&t->all->rank[m].set) == want;
    }
    return all;
}

static bool all_ended(const trial *t)
{
    bool all = true;
    for (int m = 0; m < t->nprocs; m++) {
        all = all && t->ended[m] >= 0;
    }
    return all;
}

static bool outcasts_ended(const trial *t)
{
    bool all = true;
    for (int m = 0; m < t->nprocs; m++) {
        all = all && ((t->outcast >> m & 1) == 0 || t->ended[m] >= 0);
    }
    return all;
}

/* Wait for something. Otherwise count a hang and say where everybody is. */
static bool await(trial *t, bool (*done)(const trial *t), double most_s, const char *what)
{
    static const char *const at[] = {"creates",  "sums",  "agrees", "shrinks",
                                     "destroys", "grows", "ends"};
    const double until = procs_now() + most_s;
    while (!done(t)) {
        reap(t);
        if (procs_now() > until) {
            fprintf(stderr, "soak: trial %llu: after %.0f s not yet: %s\n",
                    (unsigned long long)t->plan.seed, most_s, what);
            for (int m = 0; m < t->nprocs; m++) {
                fprintf(stderr, "  process %d %s, set %x, ended %d; %s\n", m,
                        at[atomic_load(&t->all->rank[m].at)], atomic_load(&t->all->rank[m].set),
                        t->ended[m], t->all->rank[m].said);
            }
            atomic_fetch_add(&t->soak->faults.hangs, 1);
            return false;
        }
        nanosleep(&(struct timespec){.tv_nsec = 100000}, NULL);
    }
    return true;
}

/* Set the loopback interface of this trial's network. */
static bool loopback(bool on)
{
    struct ifreq lo = {.ifr_name = "lo"};
    int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    bool good = fd >= 0 && ioctl(fd, SIOCGIFFLAGS, &lo) == 0;
    lo.ifr_flags = (short)(on ? lo.ifr_flags | IFF_UP : lo.ifr_flags & ~IFF_UP);
    good = good && ioctl(fd, SIOCSIFFLAGS, &lo) == 0;
    close(fd);
    return good;
}

static bool own_network(void)
{
    return (unshare(CLONE_NEWNET) == 0 || unshare(CLONE_NEWUSER | CLONE_NEWNET) == 0) &&
           loopback(true);
}

/* Kill, or stop, who is to die. Return when the last one did. */
static double deaths(trial *t)
{
    double last = procs_now();
    for (int i = 0; i < t->plan.ndeaths; i++) {
        nap_until(last + t->plan.after_s[i]);
        last = procs_now();
        if (t->plan.kind == SOAK_STOPS && i == 0) {
            kill(t->pid[t->plan.victim[i]], SIGSTOP);
            t->outcast |= 1u << t->plan.victim[i];
            t->soak->stops++;
        } else {
            kill_one(t, t->plan.victim[i]);
        }
    }
    return last;
}

/* Note how long the survivors took. */
static void measure(trial *t, double died)
{
    double knew = 0, summed = 0;
    for (int m = 0; m < t->nprocs; m++) {
        if (living(t) >> m & 1) {
            const double error = 1e-6 * (double)atomic_load(&t->all->rank[m].error_us) - died;
            const double sum = 1e-6 * (double)atomic_load(&t->all->rank[m].since_us) - died;
            knew = error > knew ? error : knew;
            summed = sum > summed ? sum : summed;
        }
    }
    if (t->plan.ndeaths == 1) {
        note(&t->soak->knew, 1e3 * knew);
    }
    note(&t->soak->summed, 1e3 * summed);
}

/* Have a process join, which may die on its way. */
static bool join_one(trial *t)
{
    const double begun = procs_now();
    const int mark = t->nprocs;
    start(t, be_newcomer);
    atomic_fetch_add(&t->all->grow, 1);
    if (t->plan.joiner_dies) {
        nap_until(begun + t->plan.dies_s);
        kill_one(t, mark);
    } else {
        t->soak->joined++;
    }
    return await(t, all_sum, 20, "all sum with the newcomer, or without it if it died");
}

/* Cut the network between the hosts. One that is cut for less than liveness_s heals. */
static bool cut(trial *t)
{
    const bool heals = t->plan.kind == SOAK_OUTAGE;
    *(heals ? &t->soak->outages : &t->soak->cuts) += 1;
    loopback(false);
    nap_until(procs_now() + (heals ? 0.4 : 3.5) * t->soak->liveness_s);
    if (!heals) { /* half of the ranks go on, if they have the lowest one; no smaller part does */
        t->outcast = t->plan.n == 4 ? 0xc : (1u << t->plan.n) - 1;
    }
    loopback(true);
    return await(t, outcasts_ended, 20, "those without a quorum know it") &&
           await(t, all_sum, 20, "the others sum");
}

/* Go through a trial. Return false if it had to be ended by force. */
static bool go(trial *t)
{
    if (!await(t, all_sum, 30, "all ranks are at work")) {
        return false;
    }
    if (t->plan.kind == SOAK_CUT || t->plan.kind == SOAK_OUTAGE) {
        if (!cut(t)) {
            return false;
        }
    } else {
        const double died = deaths(t);
        if (!await(t, all_sum, 15, "the survivors sum")) {
            return false;
        }
        if (t->plan.kind == SOAK_KILLS) {
            measure(t, died);
        } else {
            kill(t->pid[t->plan.victim[0]], SIGCONT);
            if (!await(t, outcasts_ended, 15, "the one that was stopped knows that it is out")) {
                return false;
            }
        }
        if (t->plan.joins && !join_one(t)) {
            return false;
        }
    }
    atomic_store(&t->all->stop, 1);
    return await(t, all_ended, 15, "all have ended");
}

/* Check how each process has ended. */
static void judge(trial *t)
{
    for (int m = 0; m < t->nprocs; m++) {
        const int want = t->dead >> m & 1 ? 128 + SIGKILL : t->outcast >> m & 1 ? SOAK_OUTCAST : 0;
        if (t->ended[m] != want) {
            fprintf(stderr, "soak: trial %llu: process %d ended with %d, not %d; %s\n",
                    (unsigned long long)t->plan.seed, m, t->ended[m], want, t->all->rank[m].said);
            atomic_fetch_add(&t->soak->faults.lost, 1);
        }
    }
}

/* Run a trial in this process. */
static void run_trial(soak *s, uint64_t seed)
{
    static trial t;
    char folder[] = "/tmp/dcomm-soak-XXXXXX", file[64];
    t = (trial){.soak = s, .plan = soak_plan_of(seed)};
    const bool cuts = t.plan.kind == SOAK_CUT || t.plan.kind == SOAK_OUTAGE;
    t.all = mmap(NULL, sizeof *t.all, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    t.meet = mmap(NULL, sizeof *t.meet, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (t.all == MAP_FAILED || t.meet == MAP_FAILED || mkdtemp(folder) == NULL ||
        (cuts && !own_network())) {
        s->unable++;
        rmdir(folder);
        return;
    }
    s->trials[t.plan.place == LOCAL ? 0 : t.plan.place == NET ? 1 : 2]++;
    snprintf(file, sizeof file, "%s/id", folder);
    setenv("DCOMM_JOIN_FILE", file, 1);
    for (int m = 0; m < t.plan.n; m++) {
        start(&t, be_rank);
    }
    const bool ended = go(&t);
    for (int m = 0; m < t.nprocs && !ended; m++) {
        kill(t.pid[m], SIGKILL);
    }
    while (!all_ended(&t)) {
        reap(&t);
        procs_nap();
    }
    if (ended) {
        judge(&t);
    }
    const soak_faults *f = &t.all->faults;
    atomic_fetch_add(&s->faults.wrong, atomic_load(&f->wrong));
    atomic_fetch_add(&s->faults.disagreements, atomic_load(&f->disagreements));
    atomic_fetch_add(&s->faults.unrecovered, atomic_load(&f->unrecovered));
    unlink(file);
    rmdir(folder);
}

/* ---- all trials ---- */

static int by_value(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

static void percentiles(times *t, const char *what)
{
    qsort(t->ms, (size_t)t->n, sizeof *t->ms, by_value);
    if (t->n > 0) {
        printf("%s: p50 %.1f ms, p90 %.1f ms, p99 %.1f ms, most %.1f ms (%ld trials)\n", what,
               t->ms[t->n / 2], t->ms[t->n * 9 / 10], t->ms[(t->n * 99 - 1) / 100], t->ms[t->n - 1],
               t->n);
    }
}

static long report(soak *s, double seconds, uint64_t seed)
{
    const soak_faults *f = &s->faults;
    const long bad = f->wrong + f->disagreements + f->unrecovered + f->hangs + f->lost;
    printf(
        "%.0f s from seed %llu: %ld trials on one host, %ld on a host for each rank, %ld on a host "
        "for two ranks; %ld kills, %ld stops, %ld cuts, %ld short outages, %ld processes joined\n",
        seconds, (unsigned long long)seed, s->trials[0], s->trials[1], s->trials[2], s->kills,
        s->stops, s->cuts, s->outages, s->joined);
    if (s->unable > 0) {
        printf("%ld trials could not be made: no network of its own, or no memory\n", s->unable);
    }
    percentiles(&s->knew, "one kill, until the last survivor's call fails");
    percentiles(&s->summed, "the last kill, until the last survivor has a right sum");
    printf("%ld hangs, %ld disagreements, %ld unrecovered, %ld wrong sums, %ld lost or ended "
           "wrongly\n",
           (long)f->hangs, (long)f->disagreements, (long)f->unrecovered, (long)f->wrong,
           (long)f->lost);
    return bad;
}

static int usage(const char *why)
{
    fprintf(stderr, "soak: %s; soak [--seconds S] [--seed N] [--trial SEED] [--verbose]\n", why);
    return 2;
}

int main(int argc, char **argv)
{
    double seconds = 60;
    uint64_t seed = (uint64_t)time(NULL) << 16, only = 0;
    soak *s = mmap(NULL, sizeof *s, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (s == MAP_FAILED) {
        return usage("no memory");
    }
    for (int i = 1; i < argc; i++) {
        char *end = NULL;
        if (strcmp(argv[i], "--verbose") == 0) {
            s->verbose = true;
        } else if (i + 1 == argc) {
            return usage(argv[i]);
        } else if (strcmp(argv[i], "--seconds") == 0) {
            seconds = strtod(argv[++i], &end);
        } else if (strcmp(argv[i], "--seed") == 0) {
            seed = strtoull(argv[++i], &end, 10);
        } else if (strcmp(argv[i], "--trial") == 0) {
            only = strtoull(argv[++i], &end, 10);
        } else {
            return usage(argv[i]);
        }
        if (end != NULL && *end != 0) {
            return usage(argv[i]);
        }
    }
    s->liveness_s = 1;
    setenv("DCOMM_LIVENESS_S", "1", 1);
    const double begun = procs_now();
    for (uint64_t i = 0; procs_now() < begun + seconds; i++) {
        const uint64_t now = only != 0 ? only : seed + i;
        if (s->verbose) {
            const soak_plan p = soak_plan_of(now);
            printf("trial %llu: %d ranks, place %d, kind %d, %d deaths%s\n",
                   (unsigned long long)now, p.n, (int)p.place, (int)p.kind, p.ndeaths,
                   p.joins ? ", joins" : "");
        }
        fflush(NULL);
        const pid_t child = fork(); /* with a network of its own, where that is cut */
        if (child == 0) {
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            run_trial(s, now);
            fflush(NULL);
            _exit(0);
        }
        while (child > 0 && waitpid(child, NULL, 0) < 0 && errno == EINTR) {
        }
    }
    return report(s, procs_now() - begun, seed) > 0;
}
