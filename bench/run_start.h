/* run_start.h - start the ranks of dcomm-run, bound to cores, and start failed ones again. */
#ifndef RUN_START_H
#define RUN_START_H

#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#include "run_environment.h"
#include "run_tag.h"

enum { EXIT_TIMED_OUT = 124, EXIT_CANNOT_RUN = 126, EXIT_NOT_FOUND = 127 };

typedef struct launcher {
    const options *opts;
    pid_t pids[RANKS_MAX]; /* 0 once the rank has ended */
    siginfo_t ends[RANKS_MAX];
    int restarted[RANKS_MAX];
    int restarts; /* in all */
    bool joins;   /* ranks that are started join others */
    bool done;    /* a rank has ended with 0 */
    /* of starting ranks: */
    const char *run;
    const sigset_t *mask;
    run_tags *tags;
    run_cpus cpus;
    enum run_bind bound;
    double started_at, ended_at[RANKS_MAX];
    int alive;
    int status;  /* exit status: that of the first failure */
    bool failed; /* a rank has failed; status is set */
    bool ending; /* SIGTERM is sent; SIGKILL follows at kill_at */
    bool killed;
    int signals; /* number of signals passed on so far */
    double kill_at;
    double timeout_at;
} launcher;

/* Run the program as a rank, in the child. Returns only if the program cannot be run. */
static void become_rank(const launcher *l, int local, pid_t parent)
{
    const options *o = l->opts;
    /* A process group of its own, so that the rank's children can be ended with it. */
    setpgid(0, 0);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) {
        _exit(1);
    }
    sigprocmask(SIG_SETMASK, l->mask, NULL);
    signal(SIGPIPE, SIG_DFL); /* only this tool ignores it */
    if (local > 0 || isatty(STDIN_FILENO)) {
        int null = open("/dev/null", O_RDONLY);
        dup2(null, STDIN_FILENO);
        close(null);
    }
    rank_environment(o, local, l->run);
    if (l->joins) {
        setenv("DCOMM_JOIN", "1", 1);
    }
    run_bind_apply(&l->cpus, l->bound, local, o->ranks);
    execvp(o->command[0], o->command);
}

/* Decide how to bind ranks. If they are not bound, say why. */
static enum run_bind decide_binding(const options *o, const run_cpus *cpus)
{
    enum run_bind bind = run_bind_choose(cpus, o->bind, o->ranks);
    double busy = 0;
    if (o->bind != RUN_BIND_AUTO) {
        return bind;
    }
    if (bind == RUN_BIND_NONE) {
        tool_say("ranks are not bound to cores: %d ranks share %d (--bind says otherwise)",
                 o->ranks, cpus->cores);
    } else if ((busy = run_busy_cores(cpus)) >= 0.5) {
        tool_say("ranks are not bound to cores: other programs use %.1f of the %d (--bind says "
                 "otherwise)",
                 busy, cpus->cores);
        bind = RUN_BIND_NONE;
    }
    if (bind == RUN_BIND_NONE) {
        setenv("DCOMM_WARN_UNBOUND", "0", 0); /* the message above says it */
    }
    return bind;
}

/* Start one rank. Return false with errno set if there is no process for it. If the program cannot
 * be run, the rank writes errno to `trouble`. */
static bool start_rank(launcher *l, int local, int trouble)
{
    const bool tag = l->opts->tag;
    const pid_t parent = getpid();
    if (tag && !run_tag_open(l->tags, local)) {
        return false;
    }
    const pid_t pid = fork();
    if (pid == 0) {
        if (tag) {
            run_tag_child(l->tags, local);
        }
        become_rank(l, local, parent);
        const int error = errno;
        const ssize_t written = write(trouble, &error, sizeof error);
        _exit(written > 0 && error == ENOENT ? EXIT_NOT_FOUND : EXIT_CANNOT_RUN);
    }
    if (tag) {
        run_tag_parent(l->tags, local);
    }
    if (pid > 0) {
        setpgid(pid, pid); /* both processes set it: a signal must find the group */
        l->pids[local] = pid;
        l->alive++;
    }
    return pid > 0;
}

/* Start all ranks. If the program cannot be run, report it once, not for every rank. */
static void start(launcher *l)
{
    const options *o = l->opts;
    int trouble[2];
    run_bind_read(&l->cpus);
    l->bound = decide_binding(o, &l->cpus);
    if (pipe2(trouble, O_CLOEXEC) != 0) {
        fprintf(stderr, "dcomm-run: pipe: %s\n", strerror(errno));
        exit(1);
    }
    int error = 0;
    for (int i = 0; i < o->ranks && error == 0; i++) {
        error = start_rank(l, i, trouble[1]) ? 0 : errno;
    }
    close(trouble[1]);
    bool started = error == 0;
    if (read(trouble[0], &error, sizeof error) == (ssize_t)sizeof error || !started) {
        if (started) {
            fprintf(stderr, "dcomm-run: cannot run %s: %s\n", o->command[0], strerror(error));
        } else {
            fprintf(stderr, "dcomm-run: cannot start %d ranks: %s\n", o->ranks, strerror(error));
        }
        for (int i = 0; i < o->ranks; i++) {
            if (l->pids[i] > 0) {
                kill(-l->pids[i], SIGKILL);
            }
        }
        exit(!started ? 1 : error == ENOENT ? EXIT_NOT_FOUND : EXIT_CANNOT_RUN);
    }
    close(trouble[0]);
}

/* Return true if a rank that is started again finds others to join: a communicator has been whole,
 * after which its rank 0 has made the file, and ranks are left. */
static bool others_remain(const launcher *l)
{
    return access(getenv("DCOMM_JOIN_FILE"), F_OK) == 0 && (l->alive > 0 || l->opts->nodes > 1);
}

/* End the ranks that are left, and start all again. */
static bool start_over(launcher *l)
{
    bool started = true;
    if (l->opts->nodes == 1) {
        unlink(getenv("DCOMM_JOIN_FILE")); /* of a communicator of which no rank is left */
    }
    for (int i = 0; i < l->opts->ranks; i++) {
        if (l->pids[i] > 0) {
            kill(-l->pids[i], SIGKILL);
            waitid(P_PID, (id_t)l->pids[i], &(siginfo_t){0}, WEXITED);
            l->pids[i] = 0;
            l->alive--;
        }
        run_tag_close(l->tags, i);
    }
    for (int i = 0; i < l->opts->ranks && started; i++) {
        l->restarted[i]++;
        started = start_rank(l, i, STDERR_FILENO);
    }
    return started;
}

/* Start a rank again that has failed, or all ranks if it could not join others, if that is wanted
 * and of use. */
static bool restart(launcher *l, int local)
{
    if (l->restarts >= l->opts->restarts || l->ending || l->done || l->signals > 0) {
        return false;
    }
    l->restarts++;
    l->joins = others_remain(l);
    if (!l->joins) {
        return start_over(l);
    }
    l->restarted[local]++;
    run_tag_close(l->tags, local);
    return start_rank(l, local, STDERR_FILENO);
}

#endif
