/* dcomm-run.c - start local ranks with torchrun's environment variables, watch them, and end all if
 * one fails, or start it again. It uses no dcomm library. */
#define _GNU_SOURCE
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "run_start.h"

#define GRACE_S 2.0

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void signal_all(launcher *l, int sig)
{
    for (int i = 0; i < l->opts->ranks; i++) {
        if (l->pids[i] > 0) {
            kill(-l->pids[i], sig);
        }
    }
}

/* Send SIGTERM to all ranks. SIGKILL follows after GRACE_S seconds. */
static void end_all(launcher *l)
{
    if (!l->ending) {
        l->ending = true;
        l->kill_at = now() + GRACE_S;
        signal_all(l, SIGTERM);
        signal_all(l, SIGCONT); /* a stopped rank cannot handle SIGTERM */
    }
}

static int exit_status(const siginfo_t *info)
{
    return info->si_code == CLD_EXITED ? info->si_status : 128 + info->si_status;
}

/* Say how a rank has failed, and what follows. */
static void report(const launcher *l, int local, const siginfo_t *info, bool restarted)
{
    int rank = rank_of(l->opts, local);
    char fate[128];
    if (info->si_code == CLD_EXITED) {
        snprintf(fate, sizeof fate, "exited with status %d", info->si_status);
    } else {
        snprintf(fate, sizeof fate, "was killed by signal %d (%s)%s", info->si_status,
                 strsignal(info->si_status), info->si_code == CLD_DUMPED ? ", core dumped" : "");
    }
    fprintf(stderr, "dcomm-run: rank %d (pid %d) %s", rank, (int)info->si_pid, fate);
    if (restarted) {
        fprintf(stderr, "; %sstarted again (%d of %d)",
                l->joins ? "" : "no rank can be joined: all are ", l->restarts, l->opts->restarts);
    } else if (!l->opts->keep_going && !l->ending && l->alive > 0) {
        fprintf(stderr, "; ending the other %d", l->alive);
    }
    fputc('\n', stderr);
}

/* Reap a rank if it has ended, and return true. */
static bool reap_rank(launcher *l, int local)
{
    const pid_t pid = l->pids[local];
    siginfo_t info = {0};
    if (pid == 0 || waitid(P_PID, (id_t)pid, &info, WEXITED | WNOHANG | WNOWAIT) != 0 ||
        info.si_pid == 0) {
        return false;
    }
    if (exit_status(&info) != 0 || l->ending) {
        kill(-pid, SIGKILL); /* its children; until it is reaped, no other process gets its id */
    }
    waitid(P_PID, (id_t)pid, &(siginfo_t){0}, WEXITED);
    l->pids[local] = 0;
    l->ends[local] = info;
    l->ended_at[local] = now();
    l->alive--;
    l->done = l->done || exit_status(&info) == 0;
    return true;
}

/* Reap every rank that has ended. If several failed at once, report one that died of a signal: it
 * is more likely the cause than one that noticed the failure and exited. */
static void reap(launcher *l)
{
    static bool bad[RANKS_MAX];
    int first = -1;
    for (int i = 0; i < l->opts->ranks; i++) {
        bad[i] = reap_rank(l, i) && exit_status(&l->ends[i]) != 0;
    }
    for (int i = 0; i < l->opts->ranks; i++) {
        if (!bad[i] || l->pids[i] > 0) { /* it runs: all have been started again */
            continue;
        }
        if (restart(l, i)) {
            report(l, i, &l->ends[i], true);
        } else if (first < 0 ||
                   (l->ends[first].si_code == CLD_EXITED && l->ends[i].si_code != CLD_EXITED)) {
            first = i;
        }
    }
    if (first >= 0 && (!l->failed || l->opts->keep_going)) {
        report(l, first, &l->ends[first], false);
        l->status = l->failed ? l->status : exit_status(&l->ends[first]);
        l->failed = true;
        if (!l->opts->keep_going) {
            end_all(l);
        }
    }
}

static void handle_signal(launcher *l, int sig)
{
    if (sig == SIGTSTP) {
        signal_all(l, SIGSTOP);
        raise(SIGSTOP);
        signal_all(l, SIGCONT);
    } else if (sig != SIGCHLD) {
        signal_all(l, sig);
        if (++l->signals > 1) {
            end_all(l);
        }
    }
}

static void check_deadlines(launcher *l)
{
    if (l->timeout_at > 0 && now() >= l->timeout_at) {
        fprintf(stderr, "dcomm-run: not done after %g s; ending the ranks that are left (%d)\n",
                l->opts->timeout, l->alive);
        l->timeout_at = 0;
        l->status = l->failed ? l->status : EXIT_TIMED_OUT;
        l->failed = true;
        end_all(l);
    }
    if (l->ending && !l->killed && now() >= l->kill_at) {
        fprintf(stderr, "dcomm-run: %d of the ranks outlived SIGTERM by %g s; killing them\n",
                l->alive, GRACE_S);
        l->killed = true;
        signal_all(l, SIGKILL);
    }
}

static int milliseconds_to_deadline(const launcher *l)
{
    double at = l->timeout_at;
    if (l->ending && !l->killed && (at <= 0 || l->kill_at < at)) {
        at = l->kill_at;
    }
    if (at <= 0) {
        return -1;
    }
    double left = (at - now()) * 1000 + 1;
    return left < 0 ? 0 : left > 1e6 ? 1000000 : (int)left;
}

static void supervise(launcher *l, int signals, run_tags *tags)
{
    while (l->alive > 0) {
        struct pollfd *fds = run_tag_poll_set(tags, signals);
        nfds_t n = 1 + run_tag_streams(tags);
        if (poll(fds, n, milliseconds_to_deadline(l)) < 0 && errno != EINTR) {
            fprintf(stderr, "dcomm-run: poll: %s\n", strerror(errno));
            end_all(l);
        }
        run_tag_forward(tags);
        struct signalfd_siginfo info;
        while (read(signals, &info, sizeof info) == (ssize_t)sizeof info) {
            handle_signal(l, (int)info.ssi_signo);
        }
        reap(l);
        check_deadlines(l);
    }
    run_tag_finish(tags);
}

/* Write the results as JSON, if --json was given. */
static void write_json(const launcher *l)
{
    const options *o = l->opts;
    FILE *f = o->json.file;
    if (f == NULL) {
        return;
    }
    fprintf(f, "{\"schema\":1,\n \"status\":%d,\n \"ranks\":[", l->status);
    for (int i = 0; i < o->ranks; i++) {
        bool exited = l->ends[i].si_code == CLD_EXITED;
        char number[16];
        snprintf(number, sizeof number, "%d", l->ends[i].si_status);
        fprintf(
            f,
            "%s\n  {\"rank\":%d,\"exit_status\":%s,\"signal\":%s,\"time_s\":%.6f,\"restarts\":%d}",
            i > 0 ? "," : "", rank_of(o, i), exited ? number : "null", exited ? "null" : number,
            l->ended_at[i] - l->started_at, l->restarted[i]);
    }
    fprintf(f, "]}\n");
}

int main(int argc, char **argv)
{
    static launcher l;
    static run_tags tags;
    options opts;
    char run[17];
    sigset_t ours, before;
    tool_begin(false);
    parse(&opts, argc, argv);
    l.opts = &opts;
    sigemptyset(&ours);
    static const int watched[] = {SIGCHLD, SIGINT, SIGTERM, SIGHUP, SIGTSTP};
    for (size_t i = 0; i < sizeof watched / sizeof watched[0]; i++) {
        sigaddset(&ours, watched[i]);
    }
    sigprocmask(SIG_BLOCK, &ours, &before);
    int signals = signalfd(-1, &ours, SFD_NONBLOCK | SFD_CLOEXEC);
    if (signals < 0) {
        fprintf(stderr, "dcomm-run: signalfd: %s\n", strerror(errno));
        return 1;
    }
    prepare_environment(&opts, run);
    run_tag_init(&tags, opts.tag ? opts.ranks : 0, rank_of(&opts, 0), opts.cyclic ? opts.nodes : 1);
    l.timeout_at = opts.timeout > 0 ? now() + opts.timeout : 0;
    l.started_at = now();
    l.run = run;
    l.mask = &before;
    l.tags = &tags;
    start(&l);
    supervise(&l, signals, &tags);
    write_json(&l);
    bool written = tool_close(&opts.json);
    return tool_end(l.status == TOOL_GOOD && !written ? TOOL_USAGE : l.status);
}
