/* sys.h - system calls whose names are plain words. A program may define a function named send,
 * open or connect. The linker then binds our calls to it. So we call the kernel by syscall(), or a
 * function of the C library with a name that no program uses. Each returns what the function of
 * the plain name returns, and sets errno. docs/errors.md says which names programs must not define.
 */
#ifndef DCOMMI_SYS_H
#define DCOMMI_SYS_H

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdbool.h>
#include <stdio.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

/* ThreadSanitizer intercepts the plain names, to learn which accesses a descriptor orders. */
#ifdef __SANITIZE_THREAD__
#define DCOMMI_SYSCALL(name, ...) name(__VA_ARGS__)
#else
#define DCOMMI_SYSCALL(name, ...) syscall(SYS_##name, __VA_ARGS__)
#endif

/* ---- files ---- */

static inline int dcommi_sys_open(const char *path, int flags)
{
    return openat(AT_FDCWD, path, flags);
}

/* Return true if errno says that a call on a descriptor may succeed later. */
static inline bool dcommi_sys_later(void)
{
    return errno == EAGAIN || errno == EINTR; /* EWOULDBLOCK is EAGAIN on Linux */
}

/* Close a descriptor; ignore -1. Keep errno, which says why the caller closes it. */
static inline void dcommi_sys_close(int fd)
{
    const int saved = errno;
    if (fd >= 0) {
        (void)DCOMMI_SYSCALL(close, fd);
    }
    errno = saved;
}

static inline ssize_t dcommi_sys_read(int fd, void *buf, size_t len)
{
    return (ssize_t)DCOMMI_SYSCALL(read, fd, buf, len);
}

static inline ssize_t dcommi_sys_write(int fd, const void *buf, size_t len)
{
    return (ssize_t)DCOMMI_SYSCALL(write, fd, buf, len);
}

/* Read up to `max` bytes from the beginning of a file. Return how many, or -1 with errno set if
 * the file cannot be read. */
static inline ssize_t dcommi_sys_load(const char *path, void *buf, size_t max)
{
    const int fd = dcommi_sys_open(path, O_RDONLY | O_CLOEXEC);
    size_t have = 0;
    ssize_t n = fd < 0 ? -1 : 1;
    while (n > 0 && have < max) {
        n = dcommi_sys_read(fd, (char *)buf + have, max - have);
        have += n > 0 ? (size_t)n : 0;
    }
    dcommi_sys_close(fd);
    return n < 0 ? -1 : (ssize_t)have;
}

static inline int dcommi_sys_stat(const char *path, struct stat *st)
{
    return fstatat(AT_FDCWD, path, st, 0);
}

static inline int dcommi_sys_lstat(const char *path, struct stat *st)
{
    return fstatat(AT_FDCWD, path, st, AT_SYMLINK_NOFOLLOW);
}

static inline int dcommi_sys_fstat(int fd, struct stat *st)
{
    return fstatat(fd, "", st, AT_EMPTY_PATH);
}

static inline int dcommi_sys_access(const char *path, int mode)
{
    return faccessat(AT_FDCWD, path, mode, 0);
}

static inline int dcommi_sys_mkdir(const char *path, mode_t mode)
{
    return mkdirat(AT_FDCWD, path, mode);
}

static inline int dcommi_sys_rename(const char *from, const char *to)
{
    return renameat(AT_FDCWD, from, AT_FDCWD, to);
}

static inline int dcommi_sys_unlink(const char *path)
{
    return unlinkat(AT_FDCWD, path, 0);
}

/* ---- sockets ---- */

static inline int dcommi_sys_socket(int family, int type, int protocol)
{
    return (int)DCOMMI_SYSCALL(socket, family, type, protocol);
}

static inline int dcommi_sys_bind(int fd, const struct sockaddr *address, socklen_t len)
{
    return (int)DCOMMI_SYSCALL(bind, fd, address, len);
}

static inline int dcommi_sys_listen(int fd, int backlog)
{
    return (int)DCOMMI_SYSCALL(listen, fd, backlog);
}

static inline int dcommi_sys_connect(int fd, const struct sockaddr *address, socklen_t len)
{
    return (int)DCOMMI_SYSCALL(connect, fd, address, len);
}

static inline int dcommi_sys_shutdown(int fd, int how)
{
    return (int)DCOMMI_SYSCALL(shutdown, fd, how);
}

static inline ssize_t dcommi_sys_send(int fd, const void *buf, size_t len, int flags)
{
    return (ssize_t)DCOMMI_SYSCALL(sendto, fd, buf, len, flags, (void *)0, 0);
}

static inline ssize_t dcommi_sys_recv(int fd, void *buf, size_t len, int flags)
{
    return (ssize_t)DCOMMI_SYSCALL(recvfrom, fd, buf, len, flags, (void *)0, (void *)0);
}

/* Send `packet`. A C library may have padding in a msghdr and in its control data: the caller must
 * zero it. */
static inline ssize_t dcommi_sys_sendmsg(int fd, const struct msghdr *packet, int flags)
{
    return (ssize_t)DCOMMI_SYSCALL(sendmsg, fd, packet, flags);
}

static inline ssize_t dcommi_sys_recvmsg(int fd, struct msghdr *packet, int flags)
{
    return (ssize_t)DCOMMI_SYSCALL(recvmsg, fd, packet, flags);
}

/* Poll for up to `ms` milliseconds, which must not be negative. */
static inline int dcommi_sys_poll(struct pollfd *fds, nfds_t n, int ms)
{
    struct timespec most = {.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000L};
    return ppoll(fds, n, &most, NULL);
}

/* ---- the clock, and random numbers ---- */

static inline time_t dcommi_sys_time(void)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return now.tv_sec;
}

static inline ssize_t dcommi_sys_getrandom(void *buf, size_t len, unsigned flags)
{
    return (ssize_t)syscall(SYS_getrandom, buf, len, flags);
}

#endif
