/* watch.h - detects that a process of this host has ended; a zombie has. It uses a pidfd if the
 * process has a number in our pid namespace, else a lock. */
#ifndef DCOMMI_WATCH_H
#define DCOMMI_WATCH_H

#include "share.h"

#include <sys/epoll.h>

/* A process, as other processes identify it. */
typedef struct dcommi_watch_card {
    uint64_t pid_space;
    int64_t pid;
} dcommi_watch_card;

static dcommi_watch_card dcommi_watch_me(void)
{
    dcommi_watch_card card = {.pid = getpid()};
    struct stat space = {0};
    if (dcommi_sys_stat("/proc/self/ns/pid", &space) == 0) {
        card.pid_space = (uint64_t)space.st_ino;
    }
    return card;
}

/* Return true if a pid of one namespace may mean no process, or another one, in the other. */
static bool dcommi_watch_foreign(uint64_t mine, uint64_t theirs)
{
    return mine != theirs || mine == 0;
}

/* A process, as /proc shows it. */
typedef struct dcommi_process {
    uint64_t started; /* clock ticks since boot; 0: it is gone, or a zombie */
    uint64_t ticks;   /* time of cores that it has used */
    char state;       /* R, S, D; T: stopped; t: stopped by a debugger; 0: it is gone */
} dcommi_process;

static dcommi_process dcommi_process_read(pid_t pid)
{
    char path[64], text[1024];
    snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
    const ssize_t n = dcommi_sys_load(path, text, sizeof text - 1);
    text[n > 0 ? n : 0] = 0;
    const char *at = strrchr(text, ')'); /* the name before it may hold any character */
    char state = 0;
    unsigned long long started = 0, user = 0, kernel = 0;
    if (at == NULL ||
        sscanf(at + 1,
               " %c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %llu %llu %*d %*d %*d %*d %*d "
               "%*d %llu",
               &state, &user, &kernel, &started) != 4) {
        return (dcommi_process){0};
    }
    return (dcommi_process){.started = state == 'Z' || state == 'X' ? 0 : started,
                            .ticks = user + kernel,
                            .state = state};
}

/* Return the start time of a process in clock ticks since boot, 0 if it is gone or a zombie. */
static uint64_t dcommi_process_started(pid_t pid)
{
    return dcommi_process_read(pid).started;
}

/* Register a descriptor with `user` in the epoll set, which becomes readable when the process
 * ends. Return it, or -1 if there is none: another pid namespace, an old kernel, or ourselves. */
static int dcommi_watch_add(int *epoll, const dcommi_watch_card *mine,
                            const dcommi_watch_card *theirs, void *user)
{
#ifdef SYS_pidfd_open
    if (theirs->pid == mine->pid || dcommi_watch_foreign(mine->pid_space, theirs->pid_space) ||
        theirs->pid <= 0) {
        return -1;
    }
    if (*epoll < 0) {
        *epoll = epoll_create1(EPOLL_CLOEXEC);
    }
    int fd = (int)syscall(SYS_pidfd_open, (pid_t)theirs->pid, 0u);
    if (fd < 0) {
        return -1;
    }
    struct epoll_event event = {.events = EPOLLIN | EPOLLONESHOT, .data.ptr = user};
    if (epoll_ctl(*epoll, EPOLL_CTL_ADD, fd, &event) != 0) {
        dcommi_sys_close(fd);
        return -1;
    }
    return fd;
#else
    (void)epoll, (void)mine, (void)theirs, (void)user;
    return -1;
#endif
}

/* ---- processes of another pid namespace ---- */

/* Return true if a process must be watched by its lock. If its namespace is unknown, it may be
 * ours, and the process is not watched by a lock. */
static bool dcommi_watch_by_lock(const dcommi_watch_card *mine, const dcommi_watch_card *theirs)
{
    return mine->pid_space != theirs->pid_space && mine->pid_space != 0 && theirs->pid_space != 0;
}

/* Create a file that is locked while this process lives. Forked children do not inherit such a
 * lock. It also ends when this process closes any descriptor of the file, so give descriptors to
 * other processes only. Return -1 if there is none. */
static int dcommi_watch_lock(void)
{
    struct flock whole = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
    int fd = dcommi_share_file(1);
    if (fd >= 0 && fcntl(fd, F_SETLK, &whole) != 0) {
        dcommi_sys_close(fd);
        fd = -1;
    }
    return fd;
}

/* Return true if the process that locked this file has ended. */
static bool dcommi_watch_unlocked(int fd)
{
    struct flock whole = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
    return fcntl(fd, F_GETLK, &whole) == 0 && whole.l_type == F_UNLCK;
}

/* Get the users of processes that have ended, each once. Return how many. */
static int dcommi_watch_poll(int epoll, void **users, int max)
{
    struct epoll_event events[16];
    int n = epoll < 0 ? 0 : epoll_wait(epoll, events, max < 16 ? max : 16, 0);
    for (int i = 0; i < n; i++) {
        users[i] = events[i].data.ptr;
    }
    return n < 0 ? 0 : n;
}

#endif
