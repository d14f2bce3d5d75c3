/* system.h - the system as simulated ranks see it: their clock, their processes, random numbers,
 * where they run, and each other's memory. The linker binds the library's calls to these
 * functions (--wrap); calls of what is no rank go to the real ones. */
#ifndef SIM_SYSTEM_H
#define SIM_SYSTEM_H

#include "threads.h"

#include "dcomm/impl/transport/local/watch.h"

#include <errno.h>
#include <sched.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <time.h>

/* Set by the case that runs. */
static struct {
    int per_host;    /* ranks of one host */
    bool unreadable; /* the kernel forbids reading other processes */
} system_of;

static int system_host(int rank)
{
    return rank / system_of.per_host;
}

/* ---- time ---- */

WORLD_WRAP(int, clock_gettime, clockid_t clock, struct timespec *t)
{
    if (world.in < 0) {
        return __real_clock_gettime(clock, t);
    }
    const double now = 1000 + world.now;
    t->tv_sec = (time_t)now;
    t->tv_nsec = (long)((now - (double)t->tv_sec) * 1e9);
    return 0;
}

WORLD_WRAP(int, sched_yield, void)
{
    if (world.in < 0) {
        return __real_sched_yield();
    }
    world_yield();
    return 0;
}

WORLD_WRAP(int, nanosleep, const struct timespec *time, struct timespec *left)
{
    if (world.in < 0) {
        return __real_nanosleep(time, left);
    }
    world_sleep((double)time->tv_sec + 1e-9 * (double)time->tv_nsec);
    return 0;
}

/* ---- processes ---- */

WORLD_WRAP(pid_t, getpid, void)
{
    return world.in < 0 ? __real_getpid() : 1000 + world.in;
}

/* Return the rank with a process number; -1: none. */
static int system_rank_of(pid_t pid)
{
    return pid >= 1000 && pid < 1000 + world.n ? (int)pid - 1000 : -1;
}

WORLD_WRAP(uint64_t, dcommi_process_started, pid_t pid)
{
    if (world.in < 0) {
        return __real_dcommi_process_started(pid);
    }
    const int rank = system_rank_of(pid);
    return rank >= 0 && world.rank[rank].state == WORLD_LIVES ? 1 + (uint64_t)rank : 0;
}

WORLD_WRAP(dcommi_process, dcommi_process_read, pid_t pid)
{
    if (world.in < 0) {
        return __real_dcommi_process_read(pid);
    }
    const int rank = system_rank_of(pid);
    if (rank < 0 || world.rank[rank].state != WORLD_LIVES) {
        return (dcommi_process){0};
    }
    const world_rank *r = &world.rank[rank];
    return (dcommi_process){.started = 1 + (uint64_t)rank,
                            .ticks = r->turns / 64,
                            .state = !world_stopped(rank) ? 'S'
                                     : r->traced          ? 't'
                                                          : 'T'};
}

WORLD_WRAP(ssize_t, process_vm_readv, pid_t pid, const struct iovec *local, unsigned long nlocal,
           const struct iovec *remote, unsigned long nremote, unsigned long flags)
{
    if (world.in < 0) {
        return __real_process_vm_readv(pid, local, nlocal, remote, nremote, flags);
    }
    const int rank = system_rank_of(pid);
    world_point();
    if (system_of.unreadable || rank < 0 || world.rank[rank].state != WORLD_LIVES) {
        errno = system_of.unreadable ? EPERM : ESRCH;
        return -1;
    }
    world_busy();
    memcpy(local->iov_base, remote->iov_base, local->iov_len);
    return (ssize_t)local->iov_len;
}

/* ---- system calls by number ---- */

long __real_syscall(long number, ...);
long __wrap_syscall(long number, ...);

long __wrap_syscall(long number, ...)
{
    long a[6];
    va_list args;
    va_start(args, number);
    for (int i = 0; i < 6; i++) {
        a[i] = va_arg(args, long);
    }
    va_end(args);
    if (world.in < 0) {
        return __real_syscall(number, a[0], a[1], a[2], a[3], a[4], a[5]);
    }
    switch (number) {
    case SYS_getrandom:
        for (long i = 0; i < a[1]; i++) {
            ((unsigned char *)a[0])[i] = (unsigned char)world_random();
        }
        return a[1];
#ifdef SYS_membarrier
    case SYS_membarrier:
        return 0;
#endif
    case SYS_memfd_create: /* no rank maps another's memory */
        errno = ENOMEM;
        return -1;
    case SYS_socket:
        return sockets_open();
    case SYS_bind:
    case SYS_listen:
        return 0;
    case SYS_connect:
        return sockets_connect((int)a[0], (const struct sockaddr_in *)a[1]);
    case SYS_sendto:
        return sockets_send((int)a[0], (const void *)a[1], (size_t)a[2]);
    case SYS_write:
        return sockets_known((int)a[0]) ? sockets_wake((int)a[0], (size_t)a[2])
                                        : __real_syscall(number, a[0], a[1], a[2], 0, 0, 0);
    case SYS_recvfrom:
        return sockets_receive((int)a[0], (void *)a[1], (size_t)a[2]);
    case SYS_close:
        return sockets_known((int)a[0]) ? sockets_close((int)a[0])
                                        : __real_syscall(number, a[0], 0, 0, 0, 0, 0);
    default:
        return __real_syscall(number, a[0], a[1], a[2], a[3], a[4], a[5]);
    }
}

/* ---- where a rank runs ---- */

WORLD_WRAP(dcomm_status, dcommi_topo_here, const char *iface, dcommi_site *place)
{
    if (world.in < 0) {
        return __real_dcommi_topo_here(iface, place);
    }
    memset(place, 0, sizeof *place);
    place->package = place->numa = place->cache = place->core = DCOMMI_PLACE_NONE;
    place->machine = 1 + (uint64_t)system_host(world.in);
    place->cpus = 1;
    place->mask[0] = 1; /* ranks take turns, so each polls a few times only */
    return DCOMM_OK;
}

WORLD_WRAP(void, dcommi_net_iface, const char *wanted, dcommi_iface name)
{
    if (world.in < 0) {
        __real_dcommi_net_iface(wanted, name);
    } else {
        snprintf(name, sizeof(dcommi_iface), "sim0");
    }
}

#endif
