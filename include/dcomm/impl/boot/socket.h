/* socket.h - addresses and sockets for the rendezvous. Every descriptor is non-blocking and closed
 * on exec. No call raises SIGPIPE. Calls keep their deadlines, except for name look-ups. */
#ifndef DCOMMI_SOCKET_H
#define DCOMMI_SOCKET_H

#include "../base/iface_list.h"
#include "../base/sys.h"
#include "../base/util.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>

#define DCOMMI_SOCK_TEXT 64 /* "[address]:port" */
#define DCOMMI_SOCK_ADDRS 8
#define DCOMMI_SOCK_SLICE_MS 50 /* milliseconds after which a wait notices that it is cancelled */

typedef union dcommi_addr {
    struct sockaddr any;
    struct sockaddr_in v4;
    struct sockaddr_in6 v6;
} dcommi_addr;

static socklen_t dcommi_addr_len(const dcommi_addr *a)
{
    return a->any.sa_family == AF_INET ? sizeof a->v4 : sizeof a->v6;
}

static void dcommi_addr_set_port(dcommi_addr *a, uint16_t port)
{
    if (a->any.sa_family == AF_INET) {
        a->v4.sin_port = htons(port);
    } else {
        a->v6.sin6_port = htons(port);
    }
}

static void dcommi_addr_text(const dcommi_addr *a, char text[DCOMMI_SOCK_TEXT])
{
    char host[INET6_ADDRSTRLEN] = "?";
    if (a->any.sa_family == AF_INET) {
        inet_ntop(AF_INET, &a->v4.sin_addr, host, sizeof host);
        snprintf(text, DCOMMI_SOCK_TEXT, "%s:%u", host, ntohs(a->v4.sin_port));
    } else {
        inet_ntop(AF_INET6, &a->v6.sin6_addr, host, sizeof host);
        snprintf(text, DCOMMI_SOCK_TEXT, "[%s]:%u", host, ntohs(a->v6.sin6_port));
    }
}

static bool dcommi_addr_loopback(const dcommi_addr *a)
{
    if (a->any.sa_family == AF_INET) {
        return (ntohl(a->v4.sin_addr.s_addr) >> 24) == 127;
    }
    return IN6_IS_ADDR_LOOPBACK(&a->v6.sin6_addr);
}

/* Parse an address in digits, with or without brackets. Return false if `text` is none. */
static bool dcommi_addr_literal(const char *text, uint16_t port, dcommi_addr *a)
{
    char bare[DCOMMI_SOCK_TEXT];
    size_t len = strlen(text);
    if (len > 2 && text[0] == '[' && text[len - 1] == ']') {
        text++;
        len -= 2;
    }
    if (len == 0 || len >= sizeof bare) {
        return false;
    }
    memcpy(bare, text, len);
    bare[len] = '\0';
    memset(a, 0, sizeof *a);
    if (inet_pton(AF_INET, bare, &a->v4.sin_addr) == 1) {
        a->any.sa_family = AF_INET;
    } else if (inet_pton(AF_INET6, bare, &a->v6.sin6_addr) == 1) {
        a->any.sa_family = AF_INET6;
    } else {
        return false;
    }
    dcommi_addr_set_port(a, port);
    return true;
}

/* Look up the addresses of a host. Return how many there are; if 0, *why tells the reason. */
static int dcommi_addr_resolve(const char *host, uint16_t port, dcommi_addr *list, int max,
                               const char **why)
{
    if (max > 0 && dcommi_addr_literal(host, port, &list[0])) {
        return 1;
    }
    struct addrinfo hints = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM};
    struct addrinfo *found = NULL;
    char bare[256];
    size_t len = strlen(host);
    bool brackets = len > 2 && host[0] == '[' && host[len - 1] == ']';
    snprintf(bare, sizeof bare, "%.*s", (int)(brackets ? len - 2 : len), host + brackets);
    int rc = getaddrinfo(bare, NULL, &hints, &found);
    if (rc != 0) {
        *why = gai_strerror(rc);
        return 0;
    }
    int n = 0;
    for (struct addrinfo *f = found; f != NULL && n < max; f = f->ai_next) {
        if ((f->ai_family == AF_INET || f->ai_family == AF_INET6) &&
            f->ai_addrlen <= sizeof list[n]) {
            memset(&list[n], 0, sizeof list[n]);
            memcpy(&list[n], f->ai_addr, f->ai_addrlen);
            dcommi_addr_set_port(&list[n], port);
            n++;
        }
    }
    freeaddrinfo(found);
    *why = n == 0 ? "it has no IPv4 or IPv6 address" : "";
    return n;
}

/* List this machine's addresses that others may reach: those of interface `only`, or, if it is
 * NULL, of all interfaces. Interfaces must be up; the loopback comes last. Leave out link-local
 * IPv6, whose scope means nothing elsewhere. */
static int dcommi_addr_mine(const char *only, dcommi_addr *list, int max)
{
    const char *named = only == NULL ? dcommi_iface_list() : NULL;
    struct ifaddrs *all = NULL;
    int n = 0;
    if (getifaddrs(&all) != 0) {
        return 0;
    }
    for (int loopback = 0; loopback <= 1; loopback++) {
        for (struct ifaddrs *i = all; i != NULL && n < max; i = i->ifa_next) {
            if (i->ifa_addr == NULL || (i->ifa_flags & IFF_UP) == 0 ||
                (only != NULL && strcmp(only, i->ifa_name) != 0) ||
                (named != NULL && !dcommi_iface_listed(named, i->ifa_name))) {
                continue;
            }
            dcommi_addr a;
            memset(&a, 0, sizeof a);
            if (i->ifa_addr->sa_family == AF_INET) {
                memcpy(&a.v4, i->ifa_addr, sizeof a.v4);
            } else if (i->ifa_addr->sa_family == AF_INET6) {
                memcpy(&a.v6, i->ifa_addr, sizeof a.v6);
                if (IN6_IS_ADDR_LINKLOCAL(&a.v6.sin6_addr)) {
                    continue;
                }
            } else {
                continue;
            }
            if (dcommi_addr_loopback(&a) == (loopback != 0)) {
                list[n++] = a;
            }
        }
    }
    freeifaddrs(all);
    return n;
}

/* ---- sockets ---- */

/* Listen at one address (port 0: any free port). Return -1, with errno set, on failure. */
static int dcommi_sock_listen(const dcommi_addr *a, bool both_families)
{
    int fd = dcommi_sys_socket(a->any.sa_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0) {
        return -1;
    }
    int on = 1, v6only = !both_families;
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (a->any.sa_family == AF_INET6) {
        setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &v6only, sizeof v6only);
    }
    if (dcommi_sys_bind(fd, &a->any, dcommi_addr_len(a)) != 0 ||
        dcommi_sys_listen(fd, SOMAXCONN) != 0) {
        dcommi_sys_close(fd);
        return -1;
    }
    return fd;
}

/* Listen at every address of this machine: in both families, or in IPv4 if there is no IPv6. */
static int dcommi_sock_listen_any(uint16_t port)
{
    dcommi_addr a;
    memset(&a, 0, sizeof a);
    a.v6.sin6_family = AF_INET6;
    a.v6.sin6_addr = in6addr_any;
    a.v6.sin6_port = htons(port);
    int fd = dcommi_sock_listen(&a, true);
    if (fd < 0 && errno != EADDRINUSE && errno != EACCES) {
        memset(&a, 0, sizeof a);
        a.v4.sin_family = AF_INET;
        a.v4.sin_addr.s_addr = htonl(INADDR_ANY);
        a.v4.sin_port = htons(port);
        fd = dcommi_sock_listen(&a, false);
    }
    return fd;
}

static void dcommi_sock_tune(int fd)
{
    int on = 1;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
}

/* Wait for events until the deadline. Return DCOMM_OK, DCOMM_ERR_TIMEOUT or DCOMM_ERR_ABORTED. */
static dcomm_status dcommi_sock_wait(int fd, short events, double deadline,
                                     const _Atomic int *cancel)
{
    for (;;) {
        if (cancel != NULL && atomic_load_explicit(cancel, memory_order_relaxed) != 0) {
            return DCOMM_ERR_ABORTED;
        }
        double left = deadline - dcommi_now();
        if (left <= 0) {
            return DCOMM_ERR_TIMEOUT;
        }
        int ms = left * 1000 < DCOMMI_SOCK_SLICE_MS ? (int)(left * 1000) + 1 : DCOMMI_SOCK_SLICE_MS;
        struct pollfd p = {.fd = fd, .events = events};
        int n = dcommi_sys_poll(&p, fd < 0 ? 0 : 1, ms);
        if (n > 0) {
            return DCOMM_OK;
        }
    }
}

/* Sleep for `seconds`. Return DCOMM_ERR_ABORTED if cancelled. */
static dcomm_status dcommi_sock_pause(double seconds, const _Atomic int *cancel)
{
    dcomm_status status = dcommi_sock_wait(-1, 0, dcommi_now() + seconds, cancel);
    return status == DCOMM_ERR_TIMEOUT ? DCOMM_OK : status;
}

/* Connect. On failure set *fd_p to -1; with DCOMM_ERR_SYSTEM, *error_p is an errno. */
static dcomm_status dcommi_sock_connect(const dcommi_addr *a, double deadline,
                                        const _Atomic int *cancel, int *fd_p, int *error_p)
{
    *fd_p = -1;
    *error_p = 0;
    int fd = dcommi_sys_socket(a->any.sa_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0) {
        *error_p = errno;
        return DCOMM_ERR_SYSTEM;
    }
    dcomm_status status = DCOMM_OK;
    if (dcommi_sys_connect(fd, &a->any, dcommi_addr_len(a)) != 0) {
        *error_p = errno;
        status = DCOMM_ERR_SYSTEM;
        if (errno == EINPROGRESS) {
            socklen_t len = sizeof *error_p;
            status = dcommi_sock_wait(fd, POLLOUT, deadline, cancel);
            if (status == DCOMM_ERR_TIMEOUT) {
                *error_p = ETIMEDOUT;
                status = DCOMM_ERR_SYSTEM;
            } else if (status == DCOMM_OK) {
                getsockopt(fd, SOL_SOCKET, SO_ERROR, error_p, &len);
                status = *error_p == 0 ? DCOMM_OK : DCOMM_ERR_SYSTEM;
            }
        }
    }
    /* A connection to a free port of this machine may connect to itself. */
    dcommi_addr self;
    socklen_t self_len = sizeof self;
    if (status == DCOMM_OK && getsockname(fd, &self.any, &self_len) == 0 &&
        self_len == dcommi_addr_len(a) &&
        (a->any.sa_family == AF_INET
             ? self.v4.sin_port == a->v4.sin_port &&
                   self.v4.sin_addr.s_addr == a->v4.sin_addr.s_addr
             : self.v6.sin6_port == a->v6.sin6_port &&
                   IN6_ARE_ADDR_EQUAL(&self.v6.sin6_addr, &a->v6.sin6_addr))) {
        *error_p = ECONNREFUSED;
        status = DCOMM_ERR_SYSTEM;
    }
    if (status < 0) {
        dcommi_sys_close(fd);
        return status;
    }
    dcommi_sock_tune(fd);
    *fd_p = fd;
    return DCOMM_OK;
}

/* Read exactly `len` bytes. Return DCOMM_ERR_PEER if the other side has closed. */
static dcomm_status dcommi_sock_read(int fd, void *buf, size_t len, double deadline,
                                     const _Atomic int *cancel)
{
    size_t have = 0;
    while (have < len) {
        ssize_t n = dcommi_sys_recv(fd, (uint8_t *)buf + have, len - have, 0);
        if (n > 0) {
            have += (size_t)n;
        } else if (n == 0 || !dcommi_sys_later()) {
            return DCOMM_ERR_PEER;
        } else {
            DCOMMI_TRY(dcommi_sock_wait(fd, POLLIN, deadline, cancel));
        }
    }
    return DCOMM_OK;
}

/* Write `len` bytes. Stop, with *stopped, when something arrives: the peer may have given up. If the
 * connection cannot write, tell the peer that no more comes. */
static dcomm_status dcommi_sock_write(int fd, const void *buf, size_t len, double deadline,
                                      const _Atomic int *cancel, bool *stopped)
{
    size_t done = 0;
    *stopped = false;
    while (done < len) {
        ssize_t n = dcommi_sys_send(fd, (const uint8_t *)buf + done, len - done, MSG_NOSIGNAL);
        if (n > 0) {
            done += (size_t)n;
            continue;
        }
        if (!dcommi_sys_later()) {
            *stopped = true; /* the peer's last frame may still be readable */
            (void)dcommi_sys_shutdown(fd, SHUT_WR);
            return DCOMM_OK;
        }
        DCOMMI_TRY(dcommi_sock_wait(fd, POLLIN | POLLOUT, deadline, cancel));
        struct pollfd p = {.fd = fd, .events = POLLIN};
        if (dcommi_sys_poll(&p, 1, 0) > 0 && (p.revents & POLLIN) != 0) {
            *stopped = true;
            return DCOMM_OK;
        }
    }
    return DCOMM_OK;
}

#endif
