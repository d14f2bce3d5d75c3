/* control_line.h - a control connection: its state, and the frames that it carries. It is a TCP
 * connection of ours between two ranks on different hosts. If it ends without a goodbye, the other
 * process has ended.
 *
 * UCX cannot always tell, because children that a rank has forked keep UCX's sockets open. Ours
 * are closed in them. A waiting rank polls the connections every few milliseconds. While all goes
 * well, only beats are sent (beat.h). Of two ranks, the one with the smaller uuid connects:
 *   acceptor   CHALLENGE  magic, version, nonce
 *   connector  HELLO      both uuids, nonce, proof = HMAC(key, "hello" | CHALLENGE | HELLO so far)
 *   acceptor   WELCOME    HMAC(key, "welcome" | CHALLENGE | HELLO)
 *   either     frames: type, bytes of message, communicator, number,
 *              HMAC(session, direction | sequence | the frame), message
 *              LEAVE    has left that communicator after that number of collectives
 *              GOODBYE  closes
 *              BEAT     the process runs
 *              DEAD     the other side counts as dead
 *              MESSAGE  an error that UCX could not send at once: a header with its sentence
 * The key is the HMAC, under the rendezvous' secret, of what rank 0 drew for the communicator. */
#ifndef DCOMMI_CONTROL_LINE_H
#define DCOMMI_CONTROL_LINE_H

#include "../boot/rendezvous_wire.h"
#include "../boot/socket.h"
#include "failure.h"

#include <sys/epoll.h>

#define DCOMMI_CTL_MAGIC 0x64634374u /* "dcCt" */
#define DCOMMI_CTL_VERSION 2u
#define DCOMMI_CTL_KEY DCOMMI_SHA256_BYTES
#define DCOMMI_CTL_CHALLENGE 32
#define DCOMMI_CTL_HELLO 96 /* the last DCOMMI_CTL_KEY bytes are the proof */
#define DCOMMI_CTL_HEAD 24  /* bytes ahead of a frame's HMAC */
#define DCOMMI_CTL_FRAME (DCOMMI_CTL_HEAD + DCOMMI_CTL_KEY)
#define DCOMMI_CTL_PASSED 8 /* messages to a rank that may not read: more could fill the socket */
#define DCOMMI_CTL_MESSAGE_MAX (sizeof(dcommi_header) + DCOMMI_TEXT_MAX)
#define DCOMMI_CTL_IN (DCOMMI_CTL_FRAME + DCOMMI_CTL_MESSAGE_MAX)
#define DCOMMI_CTL_S 5.0 /* seconds for a handshake */
/* Most control connections of a rank. In larger jobs each pair of ranks has one with a probability
 * that keeps to this limit. A rank that sees a death tells the others. */
#define DCOMMI_CTL_MOST 256
#define DCOMMI_CTL_SILENT_MAX 1.9 /* times liveness_s: then a host counts as dead */
#ifndef TCP_RTO_MAX_MS
#define TCP_RTO_MAX_MS 44
#endif

enum dcommi_ctl_type {
    DCOMMI_CTL_LEAVE = 1,
    DCOMMI_CTL_GOODBYE,
    DCOMMI_CTL_BEAT,
    DCOMMI_CTL_DEAD,
    DCOMMI_CTL_MESSAGE
};

enum dcommi_ctl_state {
    DCOMMI_CTL_SHUT = 0, /* the peer has to connect, or connecting failed */
    DCOMMI_CTL_STRANGER, /* waits for HELLO */
    DCOMMI_CTL_ASKED,    /* waits for CHALLENGE */
    DCOMMI_CTL_PROVED,   /* waits for WELCOME */
    DCOMMI_CTL_OPEN,
    DCOMMI_CTL_OVER /* the peer has left or died */
};

/* Fields below `with the lock` are read and written with dcommi_ctl_lock, because the thread of
 * beat.h uses them, too. */
typedef struct dcommi_ctl_line {
    struct dcommi_ctl_line *next;
    int fd;   /* -1: none */
    int peer; /* the context's number */
    _Atomic int error;
    _Atomic uint8_t state;
    bool beats;        /* both processes beat on it */
    bool connector;    /* this rank connects */
    uint8_t uuid[16];  /* the peer's */
    dcommi_addr where; /* where the peer listens */
    uint8_t key[DCOMMI_CTL_KEY], session[DCOMMI_CTL_KEY];
    uint8_t challenge[DCOMMI_CTL_CHALLENGE], hello[DCOMMI_CTL_HELLO];
    double liveness_s; /* INFINITY: off */
    bool over;         /* its peer is being given up */
    unsigned passed;   /* messages since the peer's last frame that was no beat */
    /* with the lock */
    uint8_t in[DCOMMI_CTL_IN];
    size_t have;
    uint64_t sent, received; /* frames */
    bool heard;              /* since the last beat of ours */
    double silent_s;         /* for which nothing was heard though the peer's system answers */
    double deadline;         /* of a stranger's handshake */
} dcommi_ctl_line;

typedef struct dcommi_ctl {
    struct dcommi_ctl *next; /* in the list of the process */
    int epoll, listener;
    dcommi_addr address; /* where it listens */
    uint8_t uuid[16];
    dcommi_ctl_line *lines, *strangers;
    unsigned nstrangers;
    bool pending; /* the thread has read a frame for the holder of the token; with the lock */
    bool looking; /* the holder of the token is in dcommi_ctl_look */
    bool beating; /* there is a thread */
    double every; /* seconds between beats; with the lock */
    pthread_t thread;
    int wake; /* ends its sleep */
} dcommi_ctl;

/* ---- forked children ---- */

/* Held while descriptors are opened or closed, so that a forked child finds all of them. */
static pthread_mutex_t dcommi_ctl_lock = PTHREAD_MUTEX_INITIALIZER;
static dcommi_ctl *dcommi_ctl_all;
static pthread_once_t dcommi_ctl_once = PTHREAD_ONCE_INIT;

static void dcommi_ctl_before_fork(void)
{
    pthread_mutex_lock(&dcommi_ctl_lock);
}

static void dcommi_ctl_in_parent(void)
{
    pthread_mutex_unlock(&dcommi_ctl_lock);
}

/* Close the connections in a child, because they must end with the parent's death. */
static void dcommi_ctl_in_child(void)
{
    for (dcommi_ctl *c = dcommi_ctl_all; c != NULL; c = c->next) {
        dcommi_sys_close(c->listener);
        c->listener = -1;
        for (int i = 0; i < 2; i++) {
            for (dcommi_ctl_line *l = i == 0 ? c->lines : c->strangers; l != NULL; l = l->next) {
                dcommi_sys_close(l->fd);
                l->fd = -1;
            }
        }
    }
    dcommi_ctl_all = NULL;
    pthread_mutex_unlock(&dcommi_ctl_lock);
}

static void dcommi_ctl_watch_forks(void)
{
    pthread_atfork(dcommi_ctl_before_fork, dcommi_ctl_in_parent, dcommi_ctl_in_child);
}

/* ---- a connection ---- */

static void dcommi_ctl_shut(dcommi_ctl *c, dcommi_ctl_line *l, uint8_t state)
{
    pthread_mutex_lock(&dcommi_ctl_lock);
    if (l->fd >= 0) {
        epoll_ctl(c->epoll, EPOLL_CTL_DEL, l->fd, NULL);
        dcommi_sys_close(l->fd);
        l->fd = -1;
    }
    l->state = state;
    l->have = 0;
    pthread_mutex_unlock(&dcommi_ctl_lock);
}

/* Return the milliseconds of silence after which a connection ends. */
static double dcommi_ctl_patience_ms(const dcommi_ctl_line *l)
{
    return 1000 * DCOMMI_CTL_SILENT_MAX * l->liveness_s;
}

/* Say how long the peer's system may be silent. An outage of less than liveness_s must heal: after
 * it the next retransmission may take as long again. The kernel probes an idle connection each
 * second, and where it can, it retransmits as often. */
static void dcommi_ctl_patience(const dcommi_ctl_line *l)
{
    const bool limited = l->liveness_s < DCOMMI_LIMIT_MAX_S;
    const int options[][2] = {
        {TCP_KEEPIDLE, 1},
        {TCP_KEEPINTVL, 1},
        {TCP_KEEPCNT, 127},
        {TCP_RTO_MAX_MS, 1000}, /* since Linux 6.15 */
        {TCP_USER_TIMEOUT,
         limited && l->liveness_s < 1e6 ? (int)dcommi_ctl_patience_ms(l) : 0}};
    const int on = limited;
    for (size_t i = 0; i < sizeof options / sizeof *options; i++) {
        setsockopt(l->fd, IPPROTO_TCP, options[i][0], &options[i][1], sizeof options[i][1]);
    }
    setsockopt(l->fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
}

/* Poll a new descriptor from now on. */
static void dcommi_ctl_begin(dcommi_ctl *c, dcommi_ctl_line *l, uint8_t state)
{
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = l};
    dcommi_sock_tune(l->fd);
    l->have = 0;
    l->state = state;
    if (epoll_ctl(c->epoll, EPOLL_CTL_ADD, l->fd, &event) != 0) {
        l->error = errno;
        dcommi_ctl_shut(c, l, DCOMMI_CTL_SHUT);
    }
}

/* Read until there are `need` bytes, and return 1. Return 0 if they are not there yet, -1 if the
 * connection has ended. With the lock. */
static int dcommi_ctl_fill(dcommi_ctl_line *l, size_t need)
{
    while (l->have < need) {
        ssize_t n = dcommi_sys_recv(l->fd, l->in + l->have, need - l->have, 0);
        if (n > 0) {
            l->have += (size_t)n;
            continue;
        }
        bool later = n < 0 && dcommi_sys_later();
        l->error = n < 0 && !later ? errno : l->error;
        return later ? 0 : -1;
    }
    return 1;
}

/* Read `need` bytes into l->in, as dcommi_ctl_fill does, and begin anew. */
static int dcommi_ctl_read(dcommi_ctl_line *l, size_t need)
{
    pthread_mutex_lock(&dcommi_ctl_lock);
    const int there = dcommi_ctl_fill(l, need);
    l->have = there > 0 ? 0 : l->have;
    pthread_mutex_unlock(&dcommi_ctl_lock);
    return there;
}

/* Send all bytes at once. A socket that has sent next to nothing takes them all. */
static bool dcommi_ctl_write(const dcommi_ctl_line *l, const void *bytes, size_t len)
{
    return dcommi_sys_send(l->fd, bytes, len, MSG_NOSIGNAL) == (ssize_t)len;
}

static void dcommi_ctl_hmac(const dcommi_ctl_line *l, const char *what, size_t hello_len,
                            uint8_t tag[DCOMMI_CTL_KEY])
{
    dcommi_hmac h;
    dcommi_hmac_begin(&h, l->key, sizeof l->key);
    dcommi_hmac_add(&h, what, strlen(what) + 1);
    dcommi_hmac_add(&h, l->challenge, sizeof l->challenge);
    dcommi_hmac_add(&h, l->hello, hello_len);
    dcommi_hmac_end(&h, tag);
}

/* Return the bytes of the message behind a frame; SIZE_MAX: more than there can be. */
static size_t dcommi_ctl_message_len(const uint8_t *frame)
{
    const uint32_t len = dcommi_get32(frame + 4);
    return len <= DCOMMI_CTL_MESSAGE_MAX ? len : SIZE_MAX;
}

static void dcommi_ctl_frame_tag(const dcommi_ctl_line *l, bool by_connector, uint64_t sequence,
                                 const uint8_t *frame, size_t message_len,
                                 uint8_t tag[DCOMMI_CTL_KEY])
{
    uint8_t head[9] = {by_connector};
    dcommi_hmac h;
    dcommi_put64(head + 1, sequence);
    dcommi_hmac_begin(&h, l->session, sizeof l->session);
    dcommi_hmac_add(&h, head, sizeof head);
    dcommi_hmac_add(&h, frame, DCOMMI_CTL_HEAD);
    dcommi_hmac_add(&h, frame + DCOMMI_CTL_FRAME, message_len);
    dcommi_hmac_end(&h, tag);
}

/* Sign and send a frame with the message that lies behind it. With the lock. */
static void dcommi_ctl_send(dcommi_ctl_line *l, uint8_t *frame, uint32_t type, size_t message_len)
{
    dcommi_put32(frame, type);
    dcommi_put32(frame + 4, (uint32_t)message_len);
    dcommi_ctl_frame_tag(l, l->connector, l->sent++, frame, message_len, frame + DCOMMI_CTL_HEAD);
    dcommi_ctl_write(l, frame, DCOMMI_CTL_FRAME + message_len);
}

/* Send a frame. With the lock. */
static void dcommi_ctl_say(dcommi_ctl_line *l, uint32_t type, uint64_t comm, uint64_t number)
{
    uint8_t frame[DCOMMI_CTL_FRAME] = {0};
    dcommi_put64(frame + 8, comm);
    dcommi_put64(frame + 16, number);
    dcommi_ctl_send(l, frame, type, 0);
}

/* Count the frame in l->in. Return false if it is forged. A beat is answered by beats from now on.
 * With the lock. */
static bool dcommi_ctl_genuine(dcommi_ctl_line *l)
{
    uint8_t tag[DCOMMI_CTL_KEY];
    const size_t len = dcommi_ctl_message_len(l->in);
    if (len == SIZE_MAX) {
        return false;
    }
    dcommi_ctl_frame_tag(l, !l->connector, l->received++, l->in, len, tag);
    l->heard = dcommi_same_secret(tag, l->in + DCOMMI_CTL_HEAD, sizeof tag);
    l->beats = l->beats || (l->heard && dcommi_get32(l->in) == DCOMMI_CTL_BEAT);
    return l->heard;
}

/* Read a frame, as dcommi_ctl_read does: the thread of beat.h reads, too. */
static int dcommi_ctl_read_frame(dcommi_ctl_line *l, uint8_t frame[DCOMMI_CTL_IN], bool *genuine)
{
    pthread_mutex_lock(&dcommi_ctl_lock);
    int there = dcommi_ctl_fill(l, DCOMMI_CTL_FRAME);
    const size_t len = there > 0 ? dcommi_ctl_message_len(l->in) : 0;
    if (there > 0 && len > 0 && len < SIZE_MAX) {
        there = dcommi_ctl_fill(l, DCOMMI_CTL_FRAME + len);
    }
    if (there > 0) {
        *genuine = dcommi_ctl_genuine(l);
        memcpy(frame, l->in, l->have);
        l->have = 0;
    }
    pthread_mutex_unlock(&dcommi_ctl_lock);
    return there;
}

static dcommi_ctl_line *dcommi_ctl_line_to(const dcomm_context *context, int peer)
{
    dcommi_ctl_line *l = context->control != NULL ? context->control->lines : NULL;
    while (l != NULL && l->peer != peer) {
        l = l->next;
    }
    return l;
}

/* Send a frame to a peer, if there is a connection with it. With the token. */
static void dcommi_ctl_tell(dcomm_context *context, int peer, uint32_t type, uint64_t comm,
                            uint64_t number)
{
    dcommi_ctl_line *l = dcommi_ctl_line_to(context, peer);
    if (l != NULL && l->state == DCOMMI_CTL_OPEN) {
        pthread_mutex_lock(&dcommi_ctl_lock);
        dcommi_ctl_say(l, type, comm, number);
        pthread_mutex_unlock(&dcommi_ctl_lock);
    }
}

static void dcommi_ctl_pass(dcomm_context *context, int peer, const dcommi_header *header,
                            const void *data, size_t len)
{
    dcommi_ctl_line *l = dcommi_ctl_line_to(context, peer);
    uint8_t frame[DCOMMI_CTL_IN] = {0};
    if (l != NULL && l->state == DCOMMI_CTL_OPEN && len <= DCOMMI_TEXT_MAX &&
        l->passed < DCOMMI_CTL_PASSED) {
        l->passed++;
        memcpy(frame + DCOMMI_CTL_FRAME, header, sizeof *header);
        memcpy(frame + DCOMMI_CTL_FRAME + sizeof *header, data, len);
        pthread_mutex_lock(&dcommi_ctl_lock);
        dcommi_ctl_send(l, frame, DCOMMI_CTL_MESSAGE, sizeof *header + len);
        pthread_mutex_unlock(&dcommi_ctl_lock);
    }
}

static void dcommi_ctl_opened(dcommi_ctl_line *l)
{
    dcommi_ctl_hmac(l, "session", sizeof l->hello, l->session);
    pthread_mutex_lock(&dcommi_ctl_lock);
    l->sent = l->received = 0;
    l->silent_s = 0;
    l->state = DCOMMI_CTL_OPEN;
    pthread_mutex_unlock(&dcommi_ctl_lock);
    dcommi_ctl_patience(l);
}

#endif
