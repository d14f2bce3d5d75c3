/* hand.h - hands descriptors from one process of a host to another. Each context listens on a Unix
 * socket with a random name in the abstract namespace. Processes of another network namespace do
 * not see that name, so the context also opens a door (door.h) for them. To hand over a
 * descriptor, the owner connects, sends one message with it, and closes. The kernel keeps the
 * message until the receiver looks, so neither side waits and no thread serves.
 *
 * Each side checks that the other is a process of the same user. The message also proves that its
 * sender knows the receiver's address, which comes over the rendezvous. */
#ifndef DCOMMI_HAND_H
#define DCOMMI_HAND_H

#include "../../base/sha256.h"
#include "door.h"
#include "share.h"

#include <stddef.h>

/* The address of a context. */
typedef struct dcommi_hand_address {
    uint64_t id;  /* 0: descriptors cannot be handed to it */
    uint64_t net; /* its network namespace; 0: unknown */
    uint8_t secret[16];
} dcommi_hand_address;

typedef struct dcommi_hand_message {
    uint64_t from, number; /* the sender's id, and the number of its file */
    uint8_t secret[16];    /* the receiver's */
} dcommi_hand_message;

/* A message with room for one descriptor, for sendmsg and recvmsg. */
typedef struct dcommi_hand_packet {
    dcommi_hand_message message;
    _Alignas(struct cmsghdr) char control[CMSG_SPACE(sizeof(int))];
    struct iovec part;
    struct msghdr head;
} dcommi_hand_packet;

/* An accepted connection, and then the descriptor that came over it. */
typedef struct dcommi_handed {
    struct dcommi_handed *next;
    int socket; /* -1: the message has been read */
    int fd;
    uint64_t from, number;
} dcommi_handed;

/* The file of another process's door. */
typedef struct dcommi_hand_way {
    struct dcommi_hand_way *next;
    uint64_t id;
    int file;
} dcommi_hand_way;

typedef struct dcommi_hands {
    dcommi_hand_address me;
    int *sockets; /* the abstract one, then one for each time that our door was open */
    size_t nsockets, sockets_capacity;
    bool door;        /* our door is open */
    unsigned seekers; /* creations that may need the door */
    dcommi_hand_way *ways;
    dcommi_handed *handed;
} dcommi_hands;

static socklen_t dcommi_hand_name(uint64_t id, struct sockaddr_un *name)
{
    memset(name, 0, sizeof *name);
    name->sun_family = AF_UNIX;
    int len = snprintf(name->sun_path + 1, sizeof name->sun_path - 1, "dcomm-%016" PRIx64, id);
    return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)len);
}

static void dcommi_hand_packet_init(dcommi_hand_packet *p)
{
    memset(p, 0, sizeof *p);
    p->part = (struct iovec){&p->message, sizeof p->message};
    p->head.msg_iov = &p->part;
    p->head.msg_iovlen = 1;
    p->head.msg_control = p->control;
    p->head.msg_controllen = CMSG_LEN(sizeof(int));
}

/* Return true if the other end of a connection is a process of our user. */
static bool dcommi_hand_trusts(int fd)
{
    struct ucred who;
    socklen_t len = sizeof who;
    return getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &who, &len) == 0 && who.uid == geteuid();
}

static bool dcommi_hands_grow(dcommi_hands *h)
{
    return dcommi_grow((void **)&h->sockets, &h->sockets_capacity, h->nsockets + 1,
                       sizeof *h->sockets) >= 0;
}

/* Listen. On an error errno is set and `me.id` stays 0: nothing can be handed to this context. */
static bool dcommi_hands_open(dcommi_hands *h, uint64_t id)
{
    struct sockaddr_un name;
    struct stat net;
    socklen_t len = dcommi_hand_name(id, &name);
    if (dcommi_random_bytes(h->me.secret, sizeof h->me.secret) < 0) {
        return false;
    }
    errno = ENOMEM;
    int s = dcommi_hands_grow(h)
                ? dcommi_sys_socket(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0)
                : -1;
    if (s < 0) {
        return false;
    }
    h->sockets[h->nsockets++] = s;
    if (dcommi_sys_bind(s, (struct sockaddr *)&name, len) != 0 ||
        dcommi_sys_listen(s, DCOMMI_DOOR_BACKLOG) != 0) {
        return false;
    }
    h->me.net = dcommi_sys_stat("/proc/self/ns/net", &net) == 0 ? (uint64_t)net.st_ino : 0;
    h->me.id = id;
    return true;
}

/* ---- processes of another network namespace ---- */

/* Return true if descriptors go to process `to` through its door. */
static bool dcommi_hand_is_outside(const dcommi_hands *h, const dcommi_hand_address *to)
{
    return h->me.id != 0 && to->id != 0 && to->net != h->me.net && to->net != 0 && h->me.net != 0;
}

/* Open our door, if possible, so that processes of other network namespaces can find it. */
static void dcommi_hands_show(dcommi_hands *h)
{
    if (h->door || !dcommi_hands_grow(h)) {
        return;
    }
    int s = dcommi_door_open(h->me.id);
    if (s < 0) {
        dcommi_log(DCOMMI_LOG_INFO,
                   "this process cannot open a Unix socket in " DCOMMI_DOOR_FOLDER ": %s",
                   strerror(errno));
        return;
    }
    h->door = true;
    h->sockets[h->nsockets++] = s;
}

/* Close our door. A process that has found us still reaches us. */
static void dcommi_hands_hide(dcommi_hands *h)
{
    if (h->door) {
        dcommi_door_hide(h->me.id);
    }
    h->door = false;
}

/* Return the file of the door of process `id`, or NULL if we have not found it. */
static dcommi_hand_way *dcommi_hand_way_to(const dcommi_hands *h, uint64_t id)
{
    dcommi_hand_way *way = h->ways;
    while (way != NULL && way->id != id) {
        way = way->next;
    }
    return way;
}

/* Find the open door of process `id` of another network namespace. `pid` is its number here, 0 if
 * it has none. */
static dcomm_status dcommi_hands_find(dcommi_hands *h, uint64_t id, int64_t pid)
{
    if (dcommi_hand_way_to(h, id) != NULL) {
        return DCOMM_OK;
    }
    dcommi_hand_way *way = dcommi_alloc(sizeof *way);
    if (way == NULL) {
        return DCOMM_ERR_NO_MEMORY;
    }
    way->id = id;
    way->file = dcommi_door_find(id, pid);
    if (way->file < 0) {
        int error = errno;
        dcommi_free(way);
        return dcommi_fail(DCOMM_ERR_UNSUPPORTED,
                           "it has another network namespace, and its Unix socket is not in "
                           "our " DCOMMI_DOOR_FOLDER ": %s",
                           strerror(error));
    }
    way->next = h->ways;
    h->ways = way;
    return DCOMM_OK;
}

/* Forget the door of process `id`, if we have found one. */
static void dcommi_hands_part(dcommi_hands *h, uint64_t id)
{
    for (dcommi_hand_way **at = &h->ways; *at != NULL; at = &(*at)->next) {
        dcommi_hand_way *way = *at;
        if (way->id == id) {
            *at = way->next;
            dcommi_sys_close(way->file);
            dcommi_free(way);
            return;
        }
    }
}

/* ---- handing over ---- */

/* Fill in the address of a process's socket. Return 0 if we have not found its door. */
static socklen_t dcommi_hand_where(const dcommi_hands *h, const dcommi_hand_address *to,
                                   struct sockaddr_un *name)
{
    if (!dcommi_hand_is_outside(h, to)) {
        return dcommi_hand_name(to->id, name);
    }
    const dcommi_hand_way *way = dcommi_hand_way_to(h, to->id);
    return way != NULL ? dcommi_door_behind(way->file, name) : 0;
}

/* Hand over a descriptor. Return DCOMM_IN_PROGRESS if too many are on their way: try again after
 * their receivers have looked. Return DCOMM_ERR_UNSUPPORTED if the process cannot be reached. */
static dcomm_status dcommi_hand_over(const dcommi_hands *h, const dcommi_hand_address *to,
                                     uint64_t number, int fd)
{
    if (h->me.id == 0 || to->id == 0) {
        return dcommi_fail(DCOMM_ERR_UNSUPPORTED, "%s has no shared memory or no Unix socket",
                           h->me.id == 0 ? "this process" : "that process");
    }
    dcommi_hand_packet packet;
    dcommi_hand_packet_init(&packet);
    packet.message.from = h->me.id;
    packet.message.number = number;
    memcpy(packet.message.secret, to->secret, sizeof packet.message.secret);
    struct cmsghdr *control = CMSG_FIRSTHDR(&packet.head);
    control->cmsg_level = SOL_SOCKET;
    control->cmsg_type = SCM_RIGHTS;
    control->cmsg_len = CMSG_LEN(sizeof fd);
    memcpy(CMSG_DATA(control), &fd, sizeof fd);

    struct sockaddr_un name;
    socklen_t len = dcommi_hand_where(h, to, &name);
    if (len == 0) {
        return dcommi_fail(DCOMM_ERR_UNSUPPORTED, "its Unix socket was not found");
    }
    int s = dcommi_sys_socket(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    bool done = s >= 0 && dcommi_sys_connect(s, (struct sockaddr *)&name, len) == 0;
    if (done && !dcommi_hand_trusts(s)) {
        dcommi_sys_close(s);
        return dcommi_fail(DCOMM_ERR_UNSUPPORTED, "it is a process of another user");
    }
    done =
        done && dcommi_sys_sendmsg(s, &packet.head, MSG_NOSIGNAL) == (ssize_t)sizeof packet.message;
    dcommi_sys_close(s);
    if (done) {
        return DCOMM_OK;
    }
    if (errno == EAGAIN || errno == ETOOMANYREFS || errno == ENOBUFS || errno == EINTR) {
        return DCOMM_IN_PROGRESS;
    }
    return dcommi_fail(DCOMM_ERR_UNSUPPORTED, "its Unix socket cannot be reached: %s",
                       strerror(errno));
}

/* Read the message of an accepted connection. Return false if it has not come yet. */
static bool dcommi_handed_read(const dcommi_hands *h, dcommi_handed *d)
{
    dcommi_hand_packet packet;
    dcommi_hand_packet_init(&packet);
    ssize_t n = dcommi_sys_recvmsg(d->socket, &packet.head, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) {
        return false;
    }
    struct cmsghdr *c = n >= 0 ? CMSG_FIRSTHDR(&packet.head) : NULL;
    if (c != NULL && c->cmsg_level == SOL_SOCKET && c->cmsg_type == SCM_RIGHTS &&
        c->cmsg_len == CMSG_LEN(sizeof d->fd)) {
        memcpy(&d->fd, CMSG_DATA(c), sizeof d->fd);
    }
    dcommi_sys_close(d->socket);
    d->socket = -1;
    const dcommi_hand_message *m = &packet.message;
    if (n == (ssize_t)sizeof *m && memcmp(m->secret, h->me.secret, sizeof m->secret) == 0) {
        d->from = m->from;
        d->number = m->number;
    }
    return true;
}

static void dcommi_handed_drop(dcommi_handed **at)
{
    dcommi_handed *d = *at;
    *at = d->next;
    dcommi_sys_close(d->socket);
    dcommi_sys_close(d->fd);
    dcommi_free(d);
}

/* Read the message of a connection. Drop the connection if the message is no use. */
static dcommi_handed **dcommi_handed_look(const dcommi_hands *h, dcommi_handed **at)
{
    dcommi_handed *d = *at;
    if (d->socket >= 0 && dcommi_handed_read(h, d) && (d->from == 0 || d->fd < 0)) {
        dcommi_handed_drop(at);
        return at;
    }
    return &d->next;
}

/* Take in all that has come to one of our sockets. */
static dcomm_status dcommi_hands_accept(dcommi_hands *h, int listener)
{
    while (true) {
        dcommi_handed *d = dcommi_alloc(sizeof *d);
        if (d == NULL) {
            return DCOMM_ERR_NO_MEMORY;
        }
        d->fd = -1;
        d->socket = accept4(listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
        if (d->socket < 0) {
            int error = errno;
            dcommi_free(d);
            if (error == EINTR || error == ECONNABORTED) {
                continue;
            }
            return error == EAGAIN || error == EWOULDBLOCK
                       ? DCOMM_OK
                       : dcommi_fail(DCOMM_ERR_SYSTEM,
                                     "connections of peers cannot be accepted: %s",
                                     strerror(error));
        }
        d->next = h->handed;
        h->handed = d;
        if (dcommi_hand_trusts(d->socket)) {
            dcommi_handed_look(h, &h->handed);
        } else {
            dcommi_handed_drop(&h->handed);
        }
    }
}

/* Take in all that has been handed to us. Never blocks. */
static dcomm_status dcommi_hands_look(dcommi_hands *h)
{
    for (dcommi_handed **at = &h->handed; *at != NULL;) {
        at = dcommi_handed_look(h, at);
    }
    for (size_t i = 0; h->me.id != 0 && i < h->nsockets; i++) {
        DCOMMI_TRY(dcommi_hands_accept(h, h->sockets[i]));
    }
    return DCOMM_OK;
}

/* Return the descriptor of a peer's file, which the caller then owns, or -1 if it has not come. */
static int dcommi_hands_take(dcommi_hands *h, uint64_t from, uint64_t number)
{
    for (dcommi_handed **at = &h->handed; *at != NULL; at = &(*at)->next) {
        if ((*at)->socket < 0 && (*at)->from == from && (*at)->number == number) {
            int fd = (*at)->fd;
            (*at)->fd = -1;
            dcommi_handed_drop(at);
            return fd;
        }
    }
    return -1;
}

/* Close the descriptors that a peer has handed over and nobody has taken. */
static void dcommi_hands_forget(dcommi_hands *h, uint64_t from)
{
    for (dcommi_handed **at = &h->handed; *at != NULL;) {
        if ((*at)->socket < 0 && (*at)->from == from) {
            dcommi_handed_drop(at);
        } else {
            at = &(*at)->next;
        }
    }
}

static void dcommi_hands_close(dcommi_hands *h)
{
    while (h->handed != NULL) {
        dcommi_handed_drop(&h->handed);
    }
    while (h->ways != NULL) {
        dcommi_hands_part(h, h->ways->id);
    }
    dcommi_hands_hide(h);
    while (h->nsockets > 0) {
        dcommi_sys_close(h->sockets[--h->nsockets]);
    }
    dcommi_free(h->sockets);
    h->sockets = NULL;
    h->sockets_capacity = 0;
}

#endif
