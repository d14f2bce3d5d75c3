/* faulty_system.h - system calls of the library that fail. */
#ifndef FAULTY_SYSTEM_H
#define FAULTY_SYSTEM_H

#include "dcomm/impl/boot/rendezvous_wire.h"
#include "faulty.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <netdb.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>

/* The same function where the C library's headers name it for 64-bit offsets. */
#define FAULTY_ALSO(type, name, ...)     \
    type __wrap_##name##64(__VA_ARGS__); \
    __attribute__((alias("__wrap_" #name))) type __wrap_##name##64(__VA_ARGS__)

/* Count a call. Return true, with errno set, if it fails. `error` 0: it is only interrupted. */
static bool faulty_now(const char *name, int error, bool interrupted)
{
    const int with = faulty_kind == FAULTY_SYSTEM                       ? error
                     : faulty_kind == FAULTY_INTERRUPTED && interrupted ? EINTR
                                                                        : 0;
    if (with == 0 || !faulty_counts(name)) {
        return false;
    }
    errno = with;
    return true;
}

/* Count a system call by number. Those of closing do not fail, nor those that tell a process's own
 * numbers. */
static bool faulty_call(long number)
{
    static const struct {
        long number;
        int error;
        bool interrupted;
        const char *name;
    } calls[] = {
        {SYS_socket, EMFILE, false, "socket"},
        {SYS_bind, EADDRINUSE, false, "bind"},
        {SYS_listen, EADDRINUSE, false, "listen"},
        {SYS_connect, ECONNREFUSED, true, "connect"},
        {SYS_sendto, ECONNRESET, true, "sendto"},
        {SYS_recvfrom, ECONNRESET, true, "recvfrom"},
        {SYS_sendmsg, ENOBUFS, true, "sendmsg"},
        {SYS_recvmsg, ENOMEM, true, "recvmsg"},
        {SYS_read, EIO, true, "read"},
        {SYS_memfd_create, EMFILE, false, "memfd_create"},
        {SYS_pidfd_open, EMFILE, false, "pidfd_open"},
        {SYS_getrandom, ENOSYS, true, "getrandom"},
        {SYS_membarrier, ENOSYS, false, "membarrier"},
    };
    for (size_t i = 0; i < sizeof calls / sizeof calls[0]; i++) {
        if (calls[i].number == number) {
            return faulty_now(calls[i].name, calls[i].error, calls[i].interrupted);
        }
    }
    return false;
}

/* Return true if a call has received the header of a result of the rendezvous, which is to be lost.
 */
static bool faulty_result(long number, const void *bytes, long len)
{
    dcommi_rdv_header h;
    return faulty_kind == FAULTY_RESULT && number == SYS_recvfrom && len == DCOMMI_RDV_HEADER &&
           dcommi_rdv_get_header(bytes, &h) && h.type == DCOMMI_RDV_RESULT &&
           faulty_counts("recvfrom");
}

long __real_syscall(long number, ...);
long __wrap_syscall(long number, ...);
long __wrap_syscall(long number, ...)
{
    long a[6];
    va_list list;
    va_start(list, number);
    for (int i = 0; i < 6; i++) {
        a[i] = va_arg(list, long);
    }
    va_end(list);
    if (faulty_call(number)) {
        return -1;
    }
    const long result = __real_syscall(number, a[0], a[1], a[2], a[3], a[4], a[5]);
    if (faulty_result(number, (const void *)a[1], result)) {
        errno = ECONNRESET;
        return -1;
    }
    return result;
}

int __real_openat(int dir, const char *path, int flags, ...);
int __wrap_openat(int dir, const char *path, int flags, ...);
int __wrap_openat(int dir, const char *path, int flags, ...)
{
    va_list list;
    va_start(list, flags);
    const mode_t mode = flags & O_CREAT ? va_arg(list, mode_t) : 0;
    va_end(list);
    return faulty_now("openat", EMFILE, true) ? -1 : __real_openat(dir, path, flags, mode);
}
FAULTY_ALSO(int, openat, int dir, const char *path, int flags, ...);

int __real_fcntl(int fd, int command, ...);
int __wrap_fcntl(int fd, int command, ...);
int __wrap_fcntl(int fd, int command, ...)
{
    va_list list;
    va_start(list, command);
    void *argument = va_arg(list, void *);
    va_end(list);
    return faulty_now("fcntl", ENOLCK, false) ? -1 : __real_fcntl(fd, command, argument);
}
FAULTY_ALSO(int, fcntl, int fd, int command, ...);

FAULTY_WRAP(void *, mmap, void *at, size_t len, int protection, int flags, int fd, off_t offset)
{
    return faulty_now("mmap", ENOMEM, false) ? MAP_FAILED
                                             : __real_mmap(at, len, protection, flags, fd, offset);
}
FAULTY_ALSO(void *, mmap, void *, size_t, int, int, int, off_t);

FAULTY_WRAP(int, mprotect, void *at, size_t len, int protection)
{
    return faulty_now("mprotect", ENOMEM, false) ? -1 : __real_mprotect(at, len, protection);
}

FAULTY_WRAP(int, madvise, void *at, size_t len, int advice)
{
    return faulty_now("madvise", ENOMEM, false) ? -1 : __real_madvise(at, len, advice);
}

FAULTY_WRAP(int, ftruncate, int fd, off_t len)
{
    return faulty_now("ftruncate", ENOSPC, true) ? -1 : __real_ftruncate(fd, len);
}
FAULTY_ALSO(int, ftruncate, int, off_t);

FAULTY_WRAP(int, fstatat, int dir, const char *path, struct stat *st, int flags)
{
    return faulty_now("fstatat", ENOMEM, false) ? -1 : __real_fstatat(dir, path, st, flags);
}
FAULTY_ALSO(int, fstatat, int, const char *, struct stat *, int);

FAULTY_WRAP(int, faccessat, int dir, const char *path, int mode, int flags)
{
    return faulty_now("faccessat", ENOMEM, false) ? -1 : __real_faccessat(dir, path, mode, flags);
}

FAULTY_WRAP(FILE *, fopen, const char *path, const char *mode)
{
    return faulty_now("fopen", EMFILE, false) ? NULL : __real_fopen(path, mode);
}
FAULTY_ALSO(FILE *, fopen, const char *, const char *);

FAULTY_WRAP(DIR *, opendir, const char *path)
{
    return faulty_now("opendir", EMFILE, false) ? NULL : __real_opendir(path);
}

FAULTY_WRAP(int, epoll_create1, int flags)
{
    return faulty_now("epoll_create1", EMFILE, false) ? -1 : __real_epoll_create1(flags);
}

/* A set that holds a descriptor needs no memory to change or remove it. */
FAULTY_WRAP(int, epoll_ctl, int epoll, int what, int fd, struct epoll_event *event)
{
    const int error = what == EPOLL_CTL_ADD ? ENOSPC : 0;
    return faulty_now("epoll_ctl", error, false) ? -1 : __real_epoll_ctl(epoll, what, fd, event);
}

FAULTY_WRAP(int, epoll_wait, int epoll, struct epoll_event *events, int max, int ms)
{
    return faulty_now("epoll_wait", 0, true) ? -1 : __real_epoll_wait(epoll, events, max, ms);
}

FAULTY_WRAP(int, ppoll, struct pollfd *fds, nfds_t n, const struct timespec *most,
            const sigset_t *mask)
{
    return faulty_now("ppoll", ENOMEM, true) ? -1 : __real_ppoll(fds, n, most, mask);
}

FAULTY_WRAP(int, eventfd, unsigned count, int flags)
{
    return faulty_now("eventfd", EMFILE, false) ? -1 : __real_eventfd(count, flags);
}

FAULTY_WRAP(int, accept4, int fd, struct sockaddr *address, socklen_t *len, int flags)
{
    return faulty_now("accept4", EMFILE, true) ? -1 : __real_accept4(fd, address, len, flags);
}

FAULTY_WRAP(int, getsockopt, int fd, int level, int option, void *value, socklen_t *len)
{
    return faulty_now("getsockopt", ENOBUFS, false)
               ? -1
               : __real_getsockopt(fd, level, option, value, len);
}

FAULTY_WRAP(int, setsockopt, int fd, int level, int option, const void *value, socklen_t len)
{
    return faulty_now("setsockopt", ENOBUFS, false)
               ? -1
               : __real_setsockopt(fd, level, option, value, len);
}

FAULTY_WRAP(int, getsockname, int fd, struct sockaddr *address, socklen_t *len)
{
    return faulty_now("getsockname", ENOBUFS, false) ? -1 : __real_getsockname(fd, address, len);
}

FAULTY_WRAP(int, getpeername, int fd, struct sockaddr *address, socklen_t *len)
{
    return faulty_now("getpeername", ENOBUFS, false) ? -1 : __real_getpeername(fd, address, len);
}

FAULTY_WRAP(int, getifaddrs, struct ifaddrs **list)
{
    return faulty_now("getifaddrs", EMFILE, false) ? -1 : __real_getifaddrs(list);
}

FAULTY_WRAP(int, getaddrinfo, const char *node, const char *service, const struct addrinfo *hints,
            struct addrinfo **list)
{
    return faulty_now("getaddrinfo", ENOMEM, false)
               ? EAI_MEMORY
               : __real_getaddrinfo(node, service, hints, list);
}

FAULTY_WRAP(int, sched_getaffinity, pid_t pid, size_t len, cpu_set_t *set)
{
    return faulty_now("sched_getaffinity", EINVAL, false) ? -1
                                                          : __real_sched_getaffinity(pid, len, set);
}

FAULTY_WRAP(ssize_t, process_vm_readv, pid_t pid, const struct iovec *local, unsigned long locals,
            const struct iovec *remote, unsigned long remotes, unsigned long flags)
{
    return faulty_now("process_vm_readv", ENOMEM, false)
               ? -1
               : __real_process_vm_readv(pid, local, locals, remote, remotes, flags);
}

FAULTY_WRAP(int, pthread_create, pthread_t *thread, const pthread_attr_t *attributes,
            void *(*start)(void *), void *user)
{
    return faulty_now("pthread_create", EAGAIN, false)
               ? EAGAIN
               : __real_pthread_create(thread, attributes, start, user);
}

#endif
