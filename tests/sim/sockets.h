/* sockets.h - simulated TCP for the control connections: streams between ranks, whose bytes come
 * late but in order. A rank's death or a close ends a stream behind its last bytes; the other side
 * hears of a death late. */
#ifndef SIM_SOCKETS_H
#define SIM_SOCKETS_H

#include "dcomm/impl/boot/socket.h"
#include "world.h"

#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/epoll.h>

enum { SOCKETS_MAX = 1024, SOCKETS_FIRST = 100000, SOCKETS_BYTES = 8192 };

typedef enum sockets_kind {
    SOCKETS_FREE,
    SOCKETS_NEW,
    SOCKETS_LISTENER,
    SOCKETS_STREAM,
    SOCKETS_EPOLL
} sockets_kind;

typedef struct sockets_one {
    sockets_kind kind;
    int owner, other; /* other: of a stream, the socket at its far end; -1: it is closed */
    int epoll;        /* watches this one; -1: none */
    bool accepted;    /* the far end of a stream has been accepted, or is the connector's */
    void *user;       /* for epoll */
    unsigned char in[SOCKETS_BYTES];
    size_t have;
    double ready, ends; /* when the bytes are there; when the end is */
    bool reset;
} sockets_one;

static struct {
    sockets_one all[SOCKETS_MAX];
    int n;
    double delay; /* most seconds that bytes take */
} sockets;

static sockets_one *sockets_at(int fd)
{
    const int i = fd - SOCKETS_FIRST;
    return i >= 0 && i < sockets.n && sockets.all[i].kind != SOCKETS_FREE ? &sockets.all[i] : NULL;
}

static bool sockets_known(int fd)
{
    return sockets_at(fd) != NULL;
}

static int sockets_make(sockets_kind kind, int owner)
{
    if (sockets.n == SOCKETS_MAX) {
        errno = EMFILE;
        return -1;
    }
    sockets_one *s = &sockets.all[sockets.n];
    memset(s, 0, offsetof(sockets_one, in));
    s->kind = kind;
    s->owner = owner;
    s->other = s->epoll = -1;
    s->have = 0;
    s->ready = 0;
    s->ends = WORLD_NEVER;
    s->reset = false;
    return SOCKETS_FIRST + sockets.n++;
}

static int sockets_open(void)
{
    return sockets_make(SOCKETS_NEW, world.in);
}

/* Connect to the rank whose address this is. */
static int sockets_connect(int fd, const struct sockaddr_in *to)
{
    const int rank = (int)ntohl(to->sin_addr.s_addr) - 0x0a000001;
    sockets_one *s = sockets_at(fd);
    world_point();
    world_busy();
    if (rank < 0 || rank >= world.n || world.rank[rank].state != WORLD_LIVES) {
        errno = ECONNREFUSED;
        return -1;
    }
    const int far = sockets_make(SOCKETS_STREAM, rank);
    if (far < 0) {
        return -1;
    }
    s->kind = SOCKETS_STREAM;
    s->accepted = true;
    s->other = far;
    sockets_at(far)->other = fd;
    errno = EINPROGRESS;
    return -1;
}

/* Take a connection that waits for this rank. */
static int sockets_accept(int listener)
{
    (void)listener;
    for (int i = 0; i < sockets.n; i++) {
        sockets_one *s = &sockets.all[i];
        if (s->kind == SOCKETS_STREAM && s->owner == world.in && !s->accepted) {
            s->accepted = true;
            world_busy();
            return SOCKETS_FIRST + i;
        }
    }
    errno = EAGAIN;
    return -1;
}

static ssize_t sockets_send(int fd, const void *bytes, size_t len)
{
    world_point();
    const sockets_one *s = sockets_at(fd);
    sockets_one *far = s->other >= 0 ? sockets_at(s->other) : NULL;
    if (s->reset || far == NULL) {
        errno = EPIPE;
        return -1;
    }
    world_busy();
    if (far->have + len > sizeof far->in) {
        world_trouble("a control connection holds more than %zu bytes", sizeof far->in);
        len = 0;
    }
    memcpy(far->in + far->have, bytes, len);
    far->have += len;
    const double ready = world.now + sockets.delay * world_unit();
    far->ready = ready > far->ready ? ready : far->ready;
    return (ssize_t)len;
}

static bool sockets_over(const sockets_one *s)
{
    return s->have == 0 && s->ends <= world.now;
}

static ssize_t sockets_receive(int fd, void *bytes, size_t len)
{
    sockets_one *s = sockets_at(fd);
    if (s->have == 0 || s->ready > world.now) {
        const bool over = sockets_over(s);
        errno = over ? ECONNRESET : EAGAIN;
        return over && !s->reset ? 0 : -1;
    }
    len = len < s->have ? len : s->have;
    len = world_chance(0.3) ? 1 + (size_t)world_below((int)len) : len; /* a part of them */
    memcpy(bytes, s->in, len);
    memmove(s->in, s->in + len, s->have - len);
    s->have -= len;
    world_busy();
    return (ssize_t)len;
}

/* End the far side of a stream behind its last bytes. */
static void sockets_end(const sockets_one *s, double when, bool reset)
{
    sockets_one *far = s->other >= 0 ? sockets_at(s->other) : NULL;
    if (s->kind == SOCKETS_STREAM && far != NULL) {
        far->ends = when > far->ready ? when : far->ready;
        far->reset = reset;
        far->other = -1;
    }
}

static int sockets_close(int fd)
{
    sockets_one *s = sockets_at(fd);
    sockets_end(s, world.now + sockets.delay * world_unit(), false);
    s->kind = SOCKETS_FREE;
    return 0;
}

/* Close all sockets of a rank that has died. `late`: most seconds until the others hear of it. */
static void sockets_died(int rank, double late)
{
    for (int i = 0; i < sockets.n; i++) {
        sockets_one *s = &sockets.all[i];
        if (s->owner == rank && s->kind != SOCKETS_FREE) {
            sockets_end(s, world.now + late * world_unit(), world_chance(0.5));
            s->kind = SOCKETS_FREE;
        }
    }
}

/* Return true if a socket has something for its owner. */
static bool sockets_readable(const sockets_one *s)
{
    if (s->kind == SOCKETS_STREAM) {
        return (s->have > 0 && s->ready <= world.now) || sockets_over(s);
    }
    for (int i = 0; i < sockets.n && s->kind == SOCKETS_LISTENER; i++) {
        const sockets_one *c = &sockets.all[i];
        if (c->kind == SOCKETS_STREAM && c->owner == s->owner && !c->accepted) {
            return true;
        }
    }
    return false;
}

/* Return when a socket that waits becomes readable. */
static double sockets_next(void)
{
    double next = WORLD_NEVER;
    for (int i = 0; i < sockets.n; i++) {
        const sockets_one *s = &sockets.all[i];
        const double when = s->have > 0 ? s->ready : s->ends;
        if (s->kind == SOCKETS_STREAM && world.rank[s->owner].state == WORLD_LIVES &&
            when > world.now && when < next) {
            next = when;
        }
    }
    return next;
}

static int sockets_poll(int epoll, struct epoll_event *events, int max)
{
    int n = 0;
    for (int i = 0; i < sockets.n && n < max; i++) {
        const sockets_one *s = &sockets.all[i];
        if (s->epoll == epoll && s->kind != SOCKETS_FREE && sockets_readable(s)) {
            if (events != NULL) {
                events[n].events = EPOLLIN;
                events[n].data.ptr = s->user;
            }
            n++;
        }
    }
    return n;
}

/* ---- the C library's functions ---- */

#define SOCKETS_WRAP(type, name, ...) \
    type __real_##name(__VA_ARGS__);  \
    type __wrap_##name(__VA_ARGS__);  \
    type __wrap_##name(__VA_ARGS__)

SOCKETS_WRAP(int, epoll_create1, int flags)
{
    return world.in < 0 ? __real_epoll_create1(flags) : sockets_make(SOCKETS_EPOLL, world.in);
}

SOCKETS_WRAP(int, epoll_ctl, int epoll, int how, int fd, struct epoll_event *event)
{
    sockets_one *s = sockets_at(fd);
    if (world.in < 0 || s == NULL) {
        return __real_epoll_ctl(epoll, how, fd, event);
    }
    s->epoll = how == EPOLL_CTL_DEL ? -1 : epoll;
    s->user = how == EPOLL_CTL_DEL ? NULL : event->data.ptr;
    return 0;
}

SOCKETS_WRAP(int, epoll_wait, int epoll, struct epoll_event *events, int max, int ms)
{
    return world.in < 0 ? __real_epoll_wait(epoll, events, max, ms)
                        : sockets_poll(epoll, events, max);
}

SOCKETS_WRAP(int, ppoll, struct pollfd *fds, nfds_t n, const struct timespec *most,
             const __sigset_t *mask)
{
    if (world.in < 0) {
        return __real_ppoll(fds, n, most, mask);
    }
    const double until = world.now + (double)most->tv_sec + 1e-9 * (double)most->tv_nsec;
    while (world.now < until) {
        if (n > 0 && sockets_poll(fds[0].fd, NULL, 1) > 0) {
            return 1;
        }
        world_yield();
    }
    return 0;
}

SOCKETS_WRAP(int, accept4, int fd, struct sockaddr *address, socklen_t *len, int flags)
{
    return world.in < 0 ? __real_accept4(fd, address, len, flags) : sockets_accept(fd);
}

SOCKETS_WRAP(int, setsockopt, int fd, int level, int name, const void *value, socklen_t len)
{
    return world.in < 0 ? __real_setsockopt(fd, level, name, value, len) : 0;
}

SOCKETS_WRAP(int, dcommi_addr_mine, const char *only, dcommi_addr *list, int max)
{
    if (world.in < 0) {
        return __real_dcommi_addr_mine(only, list, max);
    }
    memset(list, 0, sizeof *list);
    list->v4 = (struct sockaddr_in){.sin_family = AF_INET,
                                    .sin_addr.s_addr = htonl(0x0a000001u + (unsigned)world.in)};
    return 1;
}

/* Give a rank's address: what listens is a listener from now on. */
SOCKETS_WRAP(int, getsockname, int fd, struct sockaddr *address, socklen_t *len)
{
    sockets_one *s = sockets_at(fd);
    if (world.in < 0 || s == NULL) {
        return __real_getsockname(fd, address, len);
    }
    struct sockaddr_in *a = (struct sockaddr_in *)address;
    s->kind = SOCKETS_LISTENER;
    *a = (struct sockaddr_in){.sin_family = AF_INET,
                              .sin_port = htons(7),
                              .sin_addr.s_addr = htonl(0x0a000001u + (unsigned)world.in)};
    *len = sizeof *a;
    return 0;
}

#endif
