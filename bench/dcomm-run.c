/* dcomm-run.c - start local ranks with torchrun's environment variables, bind them to cores, and
 * end all if one fails. It uses no dcomm library. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "run_busy.h"
#include "run_tag.h"
#include "tool.h"

enum { EXIT_TIMED_OUT = 124, EXIT_CANNOT_RUN = 126, EXIT_NOT_FOUND = 127 };
#define RANKS_MAX 4096
#define GRACE_S 2.0

static const char usage[] =
    "usage: dcomm-run -n N [options] [--] PROGRAM [ARGUMENTS]\n"
    "\n"
    "Starts N ranks of PROGRAM on this machine, with the environment variables of torchrun: RANK,\n"
    "WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR, MASTER_PORT. When a rank fails, says\n"
    "which and how, ends the others, and exits as that rank did (128+n for signal n).\n"
    "\n"
    "  -n N                   ranks on this machine\n"
    "  --bind slice|core|none|auto  cores of a rank: an equal share, one, or any; auto: slice,\n"
    "                         but none where ranks outnumber the cores or where other programs\n"
    "                         use half of a core (default: auto)\n"
    "  --host-id-every K      ranks 0..K-1, K..2K-1, ... pass for hosts that share no memory\n"
    "  --nnodes M             machines in all; needs --node-rank and --master (default: 1)\n"
    "  --node-rank R          which of them this is, from 0\n"
    "  --master HOST:PORT     machine 0; every machine needs the same DCOMM_SECRET or\n"
    "                         DCOMM_SECRET_FILE\n"
    "  --rank-order block|cyclic  a machine's ranks follow each other, or are M apart, so that\n"
    "                         neighbours sit on different machines (default: block)\n"
    "  --timeout S            end all ranks after S seconds, and exit with 124\n"
    "  --keep-going           leave the other ranks alone when one fails\n"
    "  --tag-output           begin each line of output with its rank\n"
    "  --json FILE            write how each rank ended: status, signal, seconds (\"-\": standard\n"
    "                         output; that of the ranks then goes to standard error)\n"
    "  --help                 this text\n"
    "  --version              " TOOL_VERSION_HELP "\n"
    "\n"
    "SIGINT, SIGTERM and SIGHUP are passed on to the ranks; a second one ends them within 2 s.\n"
    "Only rank 0 reads standard input, and only where that is no terminal.\n"
    "Exit status, but for that of a rank: 1 no ranks can be started,\n"
    TOOL_USAGE_HELP ", 124 --timeout is over,\n"
    "126 PROGRAM cannot be run, 127 it is not there.\n";

typedef struct options {
    int ranks, nodes, node, host_id_every;
    enum run_bind bind;
    double timeout;
    bool keep_going, tag, cyclic;
    char *master_addr, *master_port;
    tool_out json;
    char **command;
} options;

typedef struct launcher {
    const options *opts;
    pid_t pids[RANKS_MAX]; /* 0 once the rank has ended */
    siginfo_t ends[RANKS_MAX];
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

static int rank_of(const options *o, int local)
{
    return o->cyclic ? local * o->nodes + o->node : o->node * o->ranks + local;
}

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* ---- command line ---- */

static _Noreturn void usage_error(const char *what, const char *value)
{
    exit(tool_refuse(what, value));
}

/* Parse HOST:PORT or [IPV6]:PORT. */
static bool parse_master(options *o, char *text)
{
    char *colon = strrchr(text, ':');
    int port = 0;
    if (colon == NULL || colon == text || !numbers_int(colon + 1, 1, 65534, &port)) {
        return numbers_want("it must be HOST:PORT, with a port from 1 to 65534");
    }
    *colon = '\0';
    o->master_port = colon + 1;
    o->master_addr = text;
    size_t length = strlen(text);
    if (text[0] == '[' && text[length - 1] == ']') {
        text[length - 1] = '\0';
        o->master_addr = text + 1;
    }
    return true;
}

static void parse(options *o, int argc, char **argv)
{
    enum {
        BIND = 256,
        HOST_ID,
        NNODES,
        NODE_RANK,
        MASTER,
        ORDER,
        TIMEOUT,
        KEEP_GOING,
        TAG,
        JSON,
        HELP,
        VERSION
    };
    static const struct option longs[] = {{"bind", required_argument, NULL, BIND},
                                          {"host-id-every", required_argument, NULL, HOST_ID},
                                          {"nnodes", required_argument, NULL, NNODES},
                                          {"node-rank", required_argument, NULL, NODE_RANK},
                                          {"master", required_argument, NULL, MASTER},
                                          {"rank-order", required_argument, NULL, ORDER},
                                          {"timeout", required_argument, NULL, TIMEOUT},
                                          {"keep-going", no_argument, NULL, KEEP_GOING},
                                          {"tag-output", no_argument, NULL, TAG},
                                          {"json", required_argument, NULL, JSON},
                                          {"help", no_argument, NULL, HELP},
                                          {"version", no_argument, NULL, VERSION},
                                          {NULL, 0, NULL, 0}};
    *o = (options){.nodes = 1, .node = -1, .bind = RUN_BIND_AUTO};
    static const char *const orders[] = {"block", "cyclic"};
    const char *json = NULL;
    int c, order = 0;
    opterr = 0;
    while ((c = getopt_long(argc, argv, "+n:h", longs, NULL)) != -1) {
        bool good = true;
        switch (c) {
        case 'n':
            good = numbers_int(optarg, 1, RANKS_MAX, &o->ranks);
            break;
        case BIND:
            good = run_bind_parse(optarg, &o->bind);
            break;
        case HOST_ID:
            good = numbers_int(optarg, 1, INT32_MAX, &o->host_id_every);
            break;
        case NNODES:
            good = numbers_int(optarg, 1, 65536, &o->nodes);
            break;
        case NODE_RANK:
            good = numbers_int(optarg, 0, 65535, &o->node);
            break;
        case MASTER:
            good = parse_master(o, optarg);
            break;
        case ORDER:
            good = numbers_word(optarg, orders, 2, &order);
            o->cyclic = order == 1;
            break;
        case TIMEOUT:
            good = dcommi_text_seconds(optarg, 1e-3, 1e9, &o->timeout) ||
                   numbers_want("it must be seconds from 0.001 to 1e9, such as 30 or 5m");
            break;
        case KEEP_GOING:
            o->keep_going = true;
            break;
        case TAG:
            o->tag = true;
            break;
        case JSON:
            json = optarg;
            break;
        case HELP:
        case 'h':
            fputs(usage, stdout);
            exit(tool_end(TOOL_GOOD));
        case VERSION:
            tool_print_version();
            exit(tool_end(TOOL_GOOD));
        default:
            exit(tool_refuse_option(argv));
        }
        if (!good) {
            exit(tool_refuse_value(c, longs, optarg));
        }
    }
    o->command = argv + optind;
    if (o->ranks == 0) {
        usage_error("-n is missing", NULL);
    }
    if (o->command[0] == NULL) {
        usage_error("the program is missing", NULL);
    }
    if (o->nodes > 1 && (o->node < 0 || o->master_addr == NULL)) {
        usage_error("--nnodes needs --node-rank and --master", NULL);
    }
    if (o->node >= o->nodes) {
        usage_error("--node-rank must be less than --nnodes", NULL);
    }
    o->node = o->node < 0 ? 0 : o->node;
    if (o->nodes > 1 && getenv("DCOMM_SECRET") == NULL && getenv("DCOMM_SECRET_FILE") == NULL) {
        tool_say("neither DCOMM_SECRET nor DCOMM_SECRET_FILE is set: machines will not authenticate "
                 "each other");
    }
    if (!tool_open(&o->json, json)) {
        exit(TOOL_USAGE);
    }
}

/* ---- environment ---- */

static void put_number(const char *name, long value)
{
    char text[32];
    snprintf(text, sizeof text, "%ld", value);
    setenv(name, text, 1);
}

static void random_bytes(void *p, size_t n)
{
    if (getrandom(p, n, 0) != (ssize_t)n) {
        fprintf(stderr, "dcomm-run: no random numbers: %s\n", strerror(errno));
        exit(1);
    }
}

static void random_hex(char *text, size_t bytes)
{
    uint8_t raw[32];
    random_bytes(raw, bytes);
    for (size_t i = 0; i < bytes; i++) {
        sprintf(text + 2 * i, "%02x", raw[i]);
    }
}

/* Return an unused TCP port. It lies below the kernel's ephemeral range, so that no outgoing
 * connection takes it before the ranks do. */
static int free_port(void)
{
    for (int tries = 0; tries < 1000; tries++) {
        uint16_t r;
        random_bytes(&r, sizeof r);
        struct sockaddr_in a = {.sin_family = AF_INET,
                                .sin_port = htons((uint16_t)(20000 + r % 12000)),
                                .sin_addr.s_addr = htonl(INADDR_ANY)};
        int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        if (fd < 0) {
            break;
        }
        bool is_free = bind(fd, (struct sockaddr *)&a, sizeof a) == 0;
        close(fd);
        if (is_free) {
            return ntohs(a.sin_port);
        }
    }
    fprintf(stderr, "dcomm-run: no free TCP port: %s\n", strerror(errno));
    exit(1);
}

/* Set the variables that are the same for all ranks; `run` names this run. */
static void prepare_environment(const options *o, char run[17])
{
    random_hex(run, 8);
    put_number("WORLD_SIZE", (long)o->ranks * o->nodes);
    put_number("LOCAL_WORLD_SIZE", o->ranks);
    put_number("GROUP_RANK", o->node);
    if (o->master_addr != NULL) {
        setenv("MASTER_ADDR", o->master_addr, 1);
        setenv("MASTER_PORT", o->master_port, 1);
    } else {
        setenv("MASTER_ADDR", "127.0.0.1", 1);
        put_number("MASTER_PORT", free_port());
        put_number("DCOMM_PORT", free_port());
    }
    if (o->nodes == 1) {
        char secret[33];
        random_hex(secret, 16);
        setenv("DCOMM_SECRET", secret, 1);
        unsetenv("DCOMM_SECRET_FILE");
        setenv("DCOMM_JOB", run, 1);
    }
}

static void rank_environment(const options *o, int local, const char *run)
{
    int rank = rank_of(o, local);
    put_number("RANK", rank);
    put_number("LOCAL_RANK", local);
    if (o->host_id_every > 0) {
        char id[64];
        snprintf(id, sizeof id, "run-%s-%d", run, rank / o->host_id_every);
        setenv("DCOMM_HOSTID", id, 1);
    }
}

/* ---- ranks ---- */

/* Run the program as a rank, in the child. Returns only if the program cannot be run. */
static void become_rank(const options *o, int local, const char *run, pid_t parent,
                        const sigset_t *mask, const run_cpus *cpus, enum run_bind bound)
{
    /* A process group of its own, so that the rank's children can be ended with it. */
    setpgid(0, 0);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) {
        _exit(1);
    }
    sigprocmask(SIG_SETMASK, mask, NULL);
    signal(SIGPIPE, SIG_DFL); /* only this tool ignores it */
    if (local > 0 || isatty(STDIN_FILENO)) {
        int null = open("/dev/null", O_RDONLY);
        dup2(null, STDIN_FILENO);
        close(null);
    }
    rank_environment(o, local, run);
    run_bind_apply(cpus, bound, local, o->ranks);
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

/* Start all ranks. If the program cannot be run, report it once, not for every rank. */
static void start(launcher *l, const char *run, const sigset_t *mask, run_tags *tags)
{
    const options *o = l->opts;
    run_cpus cpus;
    int trouble[2];
    pid_t parent = getpid();
    run_bind_read(&cpus);
    const enum run_bind bound = decide_binding(o, &cpus);
    if (pipe2(trouble, O_CLOEXEC) != 0) {
        fprintf(stderr, "dcomm-run: pipe: %s\n", strerror(errno));
        exit(1);
    }
    int error = 0;
    for (int i = 0; i < o->ranks && error == 0; i++) {
        if (o->tag && !run_tag_open(tags, i)) {
            error = errno;
            break;
        }
        pid_t pid = fork();
        if (pid == 0) {
            if (o->tag) {
                run_tag_child(tags, i);
            }
            become_rank(o, i, run, parent, mask, &cpus, bound);
            error = errno;
            ssize_t written = write(trouble[1], &error, sizeof error);
            _exit(written > 0 && error == ENOENT ? EXIT_NOT_FOUND : EXIT_CANNOT_RUN);
        }
        if (o->tag) {
            run_tag_parent(tags, i);
        }
        if (pid < 0) {
            error = errno;
        } else {
            setpgid(pid, pid); /* both processes set it: a signal must find the group */
            l->pids[i] = pid;
            l->alive++;
        }
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

static void report(const launcher *l, int local, const siginfo_t *info)
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
    if (!l->opts->keep_going && !l->ending && l->alive > 0) {
        fprintf(stderr, "; ending the other %d", l->alive);
    }
    fputc('\n', stderr);
}

/* Reap every rank that has ended. If several failed at once, report one that died of a signal: it
 * is more likely the cause than one that noticed the failure and exited. */
static void reap(launcher *l)
{
    int first = -1;
    siginfo_t cause = {0};
    for (int i = 0; i < l->opts->ranks; i++) {
        siginfo_t info = {0};
        if (l->pids[i] == 0 ||
            waitid(P_PID, (id_t)l->pids[i], &info, WEXITED | WNOHANG | WNOWAIT) != 0 ||
            info.si_pid == 0) {
            continue;
        }
        bool bad = exit_status(&info) != 0;
        if (bad || l->ending) {
            kill(-l->pids[i],
                 SIGKILL); /* its children; until it is reaped, no other process gets its id */
        }
        waitid(P_PID, (id_t)l->pids[i], &(siginfo_t){0}, WEXITED);
        l->pids[i] = 0;
        l->ends[i] = info;
        l->ended_at[i] = now();
        l->alive--;
        if (bad && (first < 0 || (cause.si_code == CLD_EXITED && info.si_code != CLD_EXITED))) {
            first = i;
            cause = info;
        }
    }
    if (first >= 0 && (!l->failed || l->opts->keep_going)) {
        report(l, first, &cause);
        l->status = l->failed ? l->status : exit_status(&cause);
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
        fprintf(f, "%s\n  {\"rank\":%d,\"exit_status\":%s,\"signal\":%s,\"time_s\":%.6f}",
                i > 0 ? "," : "", rank_of(o, i), exited ? number : "null", exited ? "null" : number,
                l->ended_at[i] - l->started_at);
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
    start(&l, run, &before, &tags);
    supervise(&l, signals, &tags);
    write_json(&l);
    bool written = tool_close(&opts.json);
    return tool_end(l.status == TOOL_GOOD && !written ? TOOL_USAGE : l.status);
}
