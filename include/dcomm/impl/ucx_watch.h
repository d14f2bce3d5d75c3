/* ucx_watch.h - sees the processes of this host end. UCX's own check needs an endpoint, comes once
 * a second and takes a zombie for alive; a pidfd has none of these faults. */
#ifndef DCOMMI_UCX_WATCH_H
#define DCOMMI_UCX_WATCH_H

#include "util.h"

#include <sys/epoll.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/syscall.h>

/* What stands before UCX's own bytes in an address. */
typedef struct dcommi_ucx_card {
    uint64_t id; /* of the transport, random: long messages name their sender by it */
    uint64_t pid_space;
    int64_t pid;
} dcommi_ucx_card;

static void dcommi_ucx_card_make(dcommi_ucx_card *card)
{
    static _Atomic uint64_t counter;
    struct stat space = {0};
    *card = (dcommi_ucx_card){.pid = getpid()};
    if (stat("/proc/self/ns/pid", &space) == 0) {
        card->pid_space = (uint64_t)space.st_ino;
    }
    if (getrandom(&card->id, sizeof card->id, GRND_NONBLOCK) != (ssize_t)sizeof card->id) {
        card->id = dcommi_mix((uint64_t)(1e9 * dcommi_now()), (uint64_t)card->pid);
    }
    card->id = dcommi_mix(card->id, atomic_fetch_add(&counter, 1)) | 1;
}

/* A descriptor that becomes readable when the process ends, registered in the epoll set with
 * `user`; -1 where there is none to be had: another pid namespace, an old kernel, ourselves. */
static int dcommi_ucx_watch_add(int *epoll, const dcommi_ucx_card *mine,
                                const dcommi_ucx_card *theirs, void *user)
{
#ifdef SYS_pidfd_open
    if (theirs->pid == mine->pid || theirs->pid_space != mine->pid_space || mine->pid_space == 0 ||
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
        close(fd);
        return -1;
    }
    return fd;
#else
    (void)epoll, (void)mine, (void)theirs, (void)user;
    return -1;
#endif
}

/* The users of some processes that have ended, each once. */
static int dcommi_ucx_watch_poll(int epoll, void **users, int max)
{
    struct epoll_event events[16];
    int n = epoll < 0 ? 0 : epoll_wait(epoll, events, max < 16 ? max : 16, 0);
    for (int i = 0; i < n; i++) {
        users[i] = events[i].data.ptr;
    }
    return n < 0 ? 0 : n;
}

static inline double dcommi_ucx_coarse_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC_COARSE, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

#endif
