/* sockets.h - simulated TCP for the control connections: streams between ranks, whose bytes come
 * late but in order. A rank's death or a close ends a stream behind its last bytes; the other side
 * hears of a death late. While the network is cut nothing comes. A side that waits for longer than
 * TCP_USER_TIMEOUT gives the stream up; the other one, if it still has it, is reset afterwards. */
#ifndef SIM_SOCKETS_H
#define SIM_SOCKETS_H

#include "dcomm/impl/boot/socket.h"
#include "network.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/epoll.h>

enum { SOCKETS_MAX = 1024, SOCKETS_FIRST = 100000, SOCKETS_BYTES = 8192 };

typedef enum sockets_kind {
    SOCKETS_FREE,
    SOCKETS_NEW,
    SOCKETS_LISTENER,
    SOCKETS_STREAM,
    SOCKETS_EPOLL,
    SOCKETS_WAKE /* an eventfd, which ends the sleep of the owner's second strand */
} sockets_kind;

typedef struct sockets_one {
    sockets_kind kind;
    int owner, other; /* other: of a stream, the socket at its far end; -1: it is closed */
    int peer;         /* the rank at the far end */
    int epoll;        /* watches this one; -1: none */
    bool accepted;    /* the far end of a stream has been accepted, or is the connector's */
    void *user;       /* for epoll */
    unsigned char in[SOCKETS_BYTES];
    size_t have, early; /* bytes; those that were there before the last ones were sent */
    double ready, ends; /* when the last bytes are there; when the end is */
    int error;          /* at the end; 0: the other side has closed */
    double patience;    /* TCP_USER_TIMEOUT in seconds; 0: none */
    double silent_since, silent_until; /* nothing comes from the other side's system, nor gets
                                          there */
    double sent_at;
    bool deaf; /* what was sent to it was lost for good: nothing comes any more */
} sockets_one;

static struct {
    sockets_one all[SOCKETS_MAX];
    int n;
    double delay;     /* most seconds that bytes take */
    double oversleep; /* most seconds by which a sleep that ends by time is too long */
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
    s->have = s->early = 0;
    s->ready = 0;
    s->ends = WORLD_NEVER;
    s->error = 0;
    s->patience = s->silent_since = s->silent_until = s->sent_at = 0;
    s->deaf = false;
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
    s->peer = rank;
    sockets_at(far)->other = fd;
    sockets_at(far)->peer = world.in;
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

/* Return how many bytes can be read. */
static size_t sockets_there(const sockets_one *s)
{
    return s->ready <= world.now ? s->have : s->early;
}

static ssize_t sockets_send(int fd, const void *bytes, size_t len)
{
    world_point();
    world_preempt();
    sockets_one *s = sockets_at(fd);
    sockets_one *far = s->other >= 0 ? sockets_at(s->other) : NULL;
    const bool cut = network_cut(s->owner, s->peer);
    if (s->ends <= world.now || (far == NULL && !cut)) {
        errno = EPIPE;
        return -1;
    }
    world_busy();
    s->sent_at = world.now;
    const double soon = world.now + sockets.delay * world_unit();
    const double ready = network_arrives(s->owner, s->peer, soon, world_unit());
    if (far == NULL || far->deaf || ready >= far->ends) {
        if (far != NULL) {
            far->deaf = true;
        }
        return (ssize_t)len; /* nobody will read it */
    }
    if (far->have + len > sizeof far->in) {
        world_trouble("a control connection holds more than %zu bytes", sizeof far->in);
        len = 0;
    }
    far->early = sockets_there(far);
    memcpy(far->in + far->have, bytes, len);
    far->have += len;
    far->ready = ready > far->ready ? ready : far->ready;
    return (ssize_t)len;
}

static bool sockets_over(const sockets_one *s)
{
    return s->have == 0 && s->ends <= world.now;
}

static ssize_t sockets_receive(int fd, void *bytes, size_t len)
{
    world_preempt();
    sockets_one *s = sockets_at(fd);
    const size_t there = sockets_there(s);
    if (there == 0) {
        const bool over = sockets_over(s);
        errno = over ? s->error : EAGAIN;
        return over && s->error == 0 ? 0 : -1;
    }
    len = len < there ? len : there;
    len = world_chance(0.3) ? 1 + (size_t)world_below((int)len) : len; /* a part of them */
    memcpy(bytes, s->in, len);
    memmove(s->in, s->in + len, s->have - len);
    s->have -= len;
    s->early -= len < s->early ? len : s->early;
    world_busy();
    return (ssize_t)len;
}

/* End a stream at a time, behind its last bytes, unless it ends before. */
static void sockets_end_at(sockets_one *s, double when, int error)
{
    when = s->have > 0 && s->ready > when ? s->ready : when;
    if (when < s->ends) {
        s->ends = when;
        s->error = error;
    }
}

/* End the far side of a stream. */
static void sockets_end(const sockets_one *s, double when, bool reset)
{
    sockets_one *far = s->other >= 0 ? sockets_at(s->other) : NULL;
    if (s->kind == SOCKETS_STREAM && far != NULL) {
        const bool known = s->ends > world.now || s->error != ETIMEDOUT;
        when = network_arrives(s->owner, s->peer, when, world_unit());
        sockets_end_at(far, known ? when : WORLD_NEVER, reset ? ECONNRESET : 0);
        far->other = -1;
    }
}

/* Let a stream feel a cut that begins. */
static void sockets_cut_one(sockets_one *s)
{
    s->silent_since = network.begins - NETWORK_PROBE * world_unit();
    const double most = s->silent_since + s->patience;
    const double tick = 0.05 * s->patience < NETWORK_PROBE ? 0.05 * s->patience : NETWORK_PROBE;
    s->silent_until = network_arrives(s->owner, s->peer, world.now, world_unit());
    if (s->ends > world.now && s->ends < s->silent_until && s->error != ETIMEDOUT) {
        s->ends = s->silent_until; /* the news of it is on its way */
    }
    if (s->patience > 0 && most < network.heals) {
        s->silent_until = WORLD_NEVER;
        s->have = s->early = sockets_there(s);
        sockets_end_at(s, most + tick * world_unit(), ETIMEDOUT);
    } else if (s->have > 0 && s->ready > world.now) {
        s->ready = s->silent_until;
    }
}

/* Let all streams feel a cut that begins. Of a stream that one side gives up before the network
 * heals, the other side is reset afterwards. */
static void sockets_cut(void)
{
    for (int i = 0; i < sockets.n; i++) {
        sockets_one *s = &sockets.all[i];
        if (s->kind == SOCKETS_STREAM && network_cut(s->owner, s->peer)) {
            sockets_cut_one(s);
        }
    }
    for (int i = 0; i < sockets.n; i++) {
        const sockets_one *s = &sockets.all[i];
        sockets_one *far = s->kind == SOCKETS_STREAM && s->other >= 0 ? sockets_at(s->other) : NULL;
        if (far != NULL && s->error == ETIMEDOUT && s->ends < network.heals &&
            far->error != ETIMEDOUT) {
            sockets_end_at(far, network_arrives(s->owner, s->peer, world.now, world_unit()),
                           ECONNRESET);
            far->silent_until = WORLD_NEVER;
        }
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
        return sockets_there(s) > 0 || sockets_over(s);
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

WORLD_WRAP(int, epoll_create1, int flags)
{
    return world.in < 0 ? __real_epoll_create1(flags) : sockets_make(SOCKETS_EPOLL, world.in);
}

WORLD_WRAP(int, epoll_ctl, int epoll, int how, int fd, struct epoll_event *event)
{
    sockets_one *s = sockets_at(fd);
    if (world.in < 0 || s == NULL) {
        return __real_epoll_ctl(epoll, how, fd, event);
    }
    s->epoll = how == EPOLL_CTL_DEL ? -1 : epoll;
    s->user = how == EPOLL_CTL_DEL ? NULL : event->data.ptr;
    return 0;
}

WORLD_WRAP(int, epoll_wait, int epoll, struct epoll_event *events, int max, int ms)
{
    return world.in < 0 ? __real_epoll_wait(epoll, events, max, ms)
                        : sockets_poll(epoll, events, max);
}

WORLD_WRAP(int, ppoll, struct pollfd *fds, nfds_t n, const struct timespec *most,
           const __sigset_t *mask)
{
    if (world.in < 0) {
        return __real_ppoll(fds, n, most, mask);
    }
    const double until = world.now + (double)most->tv_sec + 1e-9 * (double)most->tv_nsec;
    const sockets_one *s = n > 0 ? sockets_at(fds[0].fd) : NULL;
    if (s != NULL && s->kind == SOCKETS_WAKE && s->have == 0) {
        world_sleep(until - world.now + (world_chance(0.2) ? sockets.oversleep * world_unit() : 0));
        return s->have > 0;
    }
    while (world.now < until) {
        if (s != NULL && (s->kind == SOCKETS_WAKE || sockets_poll(fds[0].fd, NULL, 1) > 0)) {
            return 1;
        }
        world_yield();
    }
    return 0;
}

WORLD_WRAP(int, eventfd, unsigned first, int flags)
{
    return world.in < 0 ? __real_eventfd(first, flags) : sockets_make(SOCKETS_WAKE, world.in);
}

/* Wake the strands that sleep. */
static ssize_t sockets_wake(int fd, size_t len)
{
    sockets_at(fd)->have = len;
    for (int strand = WORLD_MAX + world.in; strand < WORLD_STRANDS; strand += WORLD_MAX) {
        world.strand[strand].wakes = world.now;
    }
    world_busy();
    return (ssize_t)len;
}

WORLD_WRAP(int, accept4, int fd, struct sockaddr *address, socklen_t *len, int flags)
{
    return world.in < 0 ? __real_accept4(fd, address, len, flags) : sockets_accept(fd);
}

WORLD_WRAP(int, setsockopt, int fd, int level, int name, const void *value, socklen_t len)
{
    if (world.in < 0) {
        return __real_setsockopt(fd, level, name, value, len);
    }
    if (level == IPPROTO_TCP && name == TCP_USER_TIMEOUT) {
        sockets_at(fd)->patience = 1e-3 * *(const int *)value;
    }
    return 0;
}

/* Tell if the other side's system has acknowledged all, and when something came from it last. */
WORLD_WRAP(int, getsockopt, int fd, int level, int name, void *value, socklen_t *len)
{
    if (world.in < 0 || level != IPPROTO_TCP || name != TCP_INFO) {
        return __real_getsockopt(fd, level, name, value, len);
    }
    const sockets_one *s = sockets_at(fd);
    const bool silent = s->silent_since <= world.now && world.now < s->silent_until;
    const double since = silent ? world.now - s->silent_since : NETWORK_PROBE * world_unit();
    struct tcp_info info = {.tcpi_unacked = silent && s->sent_at >= s->silent_since,
                            .tcpi_last_ack_recv = (unsigned)(1e3 * since)};
    memcpy(value, &info, *len < sizeof info ? *len : sizeof info);
    return 0;
}

WORLD_WRAP(int, dcommi_addr_mine, const char *only, dcommi_addr *list, int max)
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
WORLD_WRAP(int, getsockname, int fd, struct sockaddr *address, socklen_t *len)
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
