/* control.h - the control connections: a TCP connection of ours between two ranks on different
 * hosts. If it ends without a goodbye, the other process has ended.
 *
 * UCX cannot always tell, because children that a rank has forked keep UCX's sockets open. Ours
 * are closed in them. A waiting rank polls the connections every few milliseconds. While all goes
 * well, only beats are sent (beat.h). Of two ranks, the one with the smaller uuid connects:
 *   acceptor   CHALLENGE  magic, version, nonce
 *   connector  HELLO      both uuids, nonce, proof = HMAC(key, "hello" | CHALLENGE | HELLO so far)
 *   acceptor   WELCOME    HMAC(key, "welcome" | CHALLENGE | HELLO)
 *   either     frames: type, communicator, number, HMAC(session, direction | sequence | the frame)
 *              LEAVE    has left that communicator after that number of collectives
 *              GOODBYE  closes
 *              BEAT     the process runs
 *              DEAD     the other side counts as dead
 * The key is the HMAC, under the rendezvous' secret, of what rank 0 drew for the communicator. */
#ifndef DCOMMI_CONTROL_H
#define DCOMMI_CONTROL_H

#include "../boot/rendezvous_wire.h"
#include "../boot/socket.h"
#include "failure.h"

#include <sys/epoll.h>

#define DCOMMI_CTL_MAGIC 0x64634374u /* "dcCt" */
#define DCOMMI_CTL_VERSION 1u
#define DCOMMI_CTL_KEY DCOMMI_SHA256_BYTES
#define DCOMMI_CTL_CHALLENGE 32
#define DCOMMI_CTL_HELLO 96 /* the last DCOMMI_CTL_KEY bytes are the proof */
#define DCOMMI_CTL_FRAME 56
#define DCOMMI_CTL_STRANGERS 64 /* connections at a time without a proof */
#define DCOMMI_CTL_S 5.0        /* seconds for a handshake */
/* Most control connections of a rank. In larger jobs each pair of ranks has one with a probability
 * that keeps to this limit. A rank that sees a death tells the others. */
#define DCOMMI_CTL_MOST 256
#define DCOMMI_CTL_TOGETHER_MS 2500 /* hosts that fall silent within this time go together */
#define DCOMMI_CTL_SILENT_MAX 1.9   /* times liveness_s: then a host counts as dead */
#define DCOMMI_CTL_PROBE_MS 1000    /* between two probes of an idle connection */
#ifndef TCP_RTO_MAX_MS
#define TCP_RTO_MAX_MS 44
#endif

enum { DCOMMI_CTL_LEAVE = 1, DCOMMI_CTL_GOODBYE = 2, DCOMMI_CTL_BEAT = 3, DCOMMI_CTL_DEAD = 4 };

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
    /* with the lock */
    uint8_t in[DCOMMI_CTL_HELLO];
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
    const int probe_s = DCOMMI_CTL_PROBE_MS / 1000;
    const int options[][2] = {
        {TCP_KEEPIDLE, probe_s},
        {TCP_KEEPINTVL, probe_s},
        {TCP_KEEPCNT, 127},
        {TCP_RTO_MAX_MS, DCOMMI_CTL_PROBE_MS}, /* since Linux 6.15 */
        {TCP_USER_TIMEOUT, limited && l->liveness_s < 1e6 ? (int)dcommi_ctl_patience_ms(l) : 0}};
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

static void dcommi_ctl_frame_tag(const dcommi_ctl_line *l, bool by_connector, uint64_t sequence,
                                 const uint8_t *frame, uint8_t tag[DCOMMI_CTL_KEY])
{
    uint8_t head[9] = {by_connector};
    dcommi_hmac h;
    dcommi_put64(head + 1, sequence);
    dcommi_hmac_begin(&h, l->session, sizeof l->session);
    dcommi_hmac_add(&h, head, sizeof head);
    dcommi_hmac_add(&h, frame, DCOMMI_CTL_FRAME - DCOMMI_CTL_KEY);
    dcommi_hmac_end(&h, tag);
}

/* Send a frame. With the lock. */
static void dcommi_ctl_say(dcommi_ctl_line *l, uint32_t type, uint64_t comm, uint64_t number)
{
    uint8_t frame[DCOMMI_CTL_FRAME] = {0};
    dcommi_put32(frame, type);
    dcommi_put64(frame + 8, comm);
    dcommi_put64(frame + 16, number);
    dcommi_ctl_frame_tag(l, l->connector, l->sent++, frame, frame + sizeof frame - DCOMMI_CTL_KEY);
    dcommi_ctl_write(l, frame, sizeof frame);
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

/* ---- what comes ---- */

/* Answer the acceptor's challenge: prove who we are. */
static bool dcommi_ctl_prove(const dcommi_ctl *c, dcommi_ctl_line *l)
{
    memcpy(l->challenge, l->in, sizeof l->challenge);
    if (dcommi_get32(l->challenge) != DCOMMI_CTL_MAGIC ||
        dcommi_get32(l->challenge + 4) != DCOMMI_CTL_VERSION) {
        l->error = EPROTO;
        return false;
    }
    memcpy(l->hello, c->uuid, 16);
    memcpy(l->hello + 16, l->uuid, 16);
    if (dcommi_random_bytes(l->hello + 32, 32) < 0) {
        return false;
    }
    dcommi_ctl_hmac(l, "hello", sizeof l->hello - DCOMMI_CTL_KEY, l->hello + 64);
    l->state = DCOMMI_CTL_PROVED;
    return dcommi_ctl_write(l, l->hello, sizeof l->hello);
}

static bool dcommi_ctl_welcomed(dcommi_ctl_line *l)
{
    uint8_t tag[DCOMMI_CTL_KEY];
    dcommi_ctl_hmac(l, "welcome", sizeof l->hello, tag);
    if (!dcommi_same_secret(tag, l->in, sizeof tag)) {
        l->error = EPROTO;
        return false;
    }
    dcommi_ctl_opened(l);
    return true;
}

/* Check a stranger's HELLO. If this rank does not know the uuid yet, the stranger is checked again
 * later. */
static void dcommi_ctl_judge(dcommi_ctl *c, dcommi_ctl_line *stranger)
{
    dcommi_ctl_line *l = c->lines;
    while (l != NULL && memcmp(l->uuid, stranger->hello, sizeof l->uuid) != 0) {
        l = l->next;
    }
    if (l == NULL) {
        return;
    }
    uint8_t tag[DCOMMI_CTL_KEY];
    memcpy(stranger->key, l->key, sizeof l->key);
    dcommi_ctl_hmac(stranger, "hello", sizeof l->hello - DCOMMI_CTL_KEY, tag);
    if (l->connector || l->state != DCOMMI_CTL_SHUT ||
        memcmp(stranger->hello + 16, c->uuid, sizeof c->uuid) != 0 ||
        !dcommi_same_secret(tag, stranger->hello + 64, sizeof tag)) {
        dcommi_ctl_shut(c, stranger, DCOMMI_CTL_SHUT);
        return;
    }
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = l};
    epoll_ctl(c->epoll, EPOLL_CTL_MOD, stranger->fd, &event);
    pthread_mutex_lock(&dcommi_ctl_lock);
    l->fd = stranger->fd;
    stranger->fd = -1;
    pthread_mutex_unlock(&dcommi_ctl_lock);
    stranger->state = DCOMMI_CTL_SHUT;
    memcpy(l->challenge, stranger->challenge, sizeof l->challenge);
    memcpy(l->hello, stranger->hello, sizeof l->hello);
    dcommi_ctl_hmac(l, "welcome", sizeof l->hello, tag);
    dcommi_ctl_write(l, tag, sizeof tag);
    dcommi_ctl_opened(l);
}

/* Note that a peer has left a communicator in which it has never spoken to us over UCX. */
static void dcommi_ctl_left(dcomm_context *context, int peer, uint64_t id, uint64_t number)
{
    for (dcomm_comm *comm = context->comms; comm != NULL; comm = comm->next) {
        for (int r = 0; comm->id == id && r < comm->size; r++) {
            dcommi_member *m = &comm->members[r];
            if (m->peer == peer && !m->gone) {
                m->gone = context->appoints = true;
                m->gone_after = number;
            }
        }
    }
}

/* Return the milliseconds for which the peer's system has been silent. */
static double dcommi_ctl_silent_ms(const dcommi_ctl_line *l)
{
    struct tcp_info info = {0};
    socklen_t len = sizeof info;
    return getsockopt(l->fd, IPPROTO_TCP, TCP_INFO, &info, &len) == 0 ? info.tcpi_last_ack_recv : 0;
}

/* Return true if a connection is about to end because the peer's system is silent. */
static bool dcommi_ctl_dumb(const dcommi_ctl_line *l)
{
    const double silent_ms = l->state == DCOMMI_CTL_OPEN ? dcommi_ctl_silent_ms(l) : 0;
    return silent_ms > DCOMMI_CTL_TOGETHER_MS &&
           silent_ms >= dcommi_ctl_patience_ms(l) - DCOMMI_CTL_TOGETHER_MS;
}

/* Return true if an end proves that the other process has ended. After a long silence a reset does
 * not: the other side may have given us up. An end in order comes behind all that it told us. */
static bool dcommi_ctl_proves(const dcommi_ctl_line *l)
{
    const bool reset = l->error == ECONNRESET || l->error == EPIPE;
    return l->error == 0 ||
           (reset && dcommi_ctl_silent_ms(l) < dcommi_ctl_patience_ms(l) - DCOMMI_CTL_PROBE_MS);
}

/* Fail what needs the peers that `silent` tells of. The sentences name all of them. With the
 * token. */
static void dcommi_ctl_give_up(dcomm_context *context, bool (*silent)(const dcommi_ctl_line *l),
                               const char *why)
{
    for (dcommi_ctl_line *l = context->control->lines; l != NULL; l = l->next) {
        if (!l->over && silent(l)) {
            l->over = dcommi_peer_mark(&context->peers[l->peer], why, false);
        }
    }
    for (dcommi_ctl_line *l = context->control->lines; l != NULL; l = l->next) {
        dcommi_transport *t = context->peers[l->peer].transport;
        if (l->over) {
            l->over = false;
            dcommi_tell_dead(context, l->peer);
            dcommi_peer_fail(context, l->peer);
            if (t->call->lose != NULL) {
                t->call->lose(t, l->peer, why);
            }
        }
    }
}

/* Handle an end without a goodbye. If it does not prove a death, the peer only counts as dead. */
static void dcommi_ctl_dead(dcomm_context *context, dcommi_ctl_line *l)
{
    dcommi_remote *p = &context->peers[l->peer];
    dcommi_transport *t = p->transport;
    const bool proven = dcommi_ctl_proves(l);
    p->proven = p->proven || (proven && !p->gave_us_up);
    if (!proven) {
        const char *why = "its host, or the network to it, was silent for too long (liveness_s)";
        l->over = dcommi_peer_mark(p, why, false);
        dcommi_ctl_give_up(context, dcommi_ctl_dumb, why);
    } else if (!p->lost && t->call->lose != NULL) {
        t->call->lose(t, l->peer, "its control connection has ended");
    }
}

/* Count the frame in l->in. Return false if it is forged. A beat is answered by beats from now on.
 * With the lock. */
static bool dcommi_ctl_genuine(dcommi_ctl_line *l)
{
    uint8_t tag[DCOMMI_CTL_KEY];
    dcommi_ctl_frame_tag(l, !l->connector, l->received++, l->in, tag);
    l->heard = dcommi_same_secret(tag, l->in + DCOMMI_CTL_FRAME - DCOMMI_CTL_KEY, sizeof tag);
    l->beats = l->beats || (l->heard && dcommi_get32(l->in) == DCOMMI_CTL_BEAT);
    return l->heard;
}

/* Read a frame, as dcommi_ctl_read does: the thread of beat.h reads, too. */
static int dcommi_ctl_read_frame(dcommi_ctl_line *l, uint8_t frame[DCOMMI_CTL_FRAME], bool *genuine)
{
    pthread_mutex_lock(&dcommi_ctl_lock);
    const int there = dcommi_ctl_fill(l, DCOMMI_CTL_FRAME);
    if (there > 0) {
        *genuine = dcommi_ctl_genuine(l);
        memcpy(frame, l->in, DCOMMI_CTL_FRAME);
        l->have = 0;
    }
    pthread_mutex_unlock(&dcommi_ctl_lock);
    return there;
}

/* Handle a frame. Return false if the connection is over. */
static bool dcommi_ctl_heard(dcomm_context *context, const dcommi_ctl_line *l, const uint8_t *frame,
                             bool genuine)
{
    if (!genuine) {
        dcommi_log(DCOMMI_LOG_WARN,
                   "the control connection with process %d brought a forged message; "
                   "it is closed",
                   (int)context->peers[l->peer].pid);
        return false;
    }
    if (dcommi_get32(frame) == DCOMMI_CTL_LEAVE) {
        dcommi_ctl_left(context, l->peer, dcommi_get64(frame + 8), dcommi_get64(frame + 16));
    } else if (dcommi_get32(frame) == DCOMMI_CTL_DEAD) {
        dcommi_given_up(context, l->peer);
    }
    return dcommi_get32(frame) != DCOMMI_CTL_GOODBYE;
}

static void dcommi_ctl_event(dcomm_context *context, dcommi_ctl_line *l)
{
    static const size_t need[] = {[DCOMMI_CTL_STRANGER] = DCOMMI_CTL_HELLO,
                                  [DCOMMI_CTL_ASKED] = DCOMMI_CTL_CHALLENGE,
                                  [DCOMMI_CTL_PROVED] = DCOMMI_CTL_KEY};
    uint8_t frame[DCOMMI_CTL_FRAME] = {0};
    dcommi_ctl *c = context->control;
    while (l->fd >= 0) {
        const uint8_t state = l->state;
        if (state == DCOMMI_CTL_SHUT) { /* a stranger after its HELLO */
            dcommi_ctl_shut(c, l, DCOMMI_CTL_SHUT);
            return;
        }
        bool genuine = false;
        int there = state == DCOMMI_CTL_OPEN ? dcommi_ctl_read_frame(l, frame, &genuine)
                                             : dcommi_ctl_read(l, need[state]);
        if (there == 0) {
            return;
        }
        bool goes_on = there > 0;
        if (there > 0 && state == DCOMMI_CTL_STRANGER) {
            memcpy(l->hello, l->in, sizeof l->hello);
            l->state = DCOMMI_CTL_SHUT;
            dcommi_ctl_judge(c, l);
            return;
        }
        if (there > 0 && state == DCOMMI_CTL_ASKED) {
            goes_on = dcommi_ctl_prove(c, l);
        } else if (there > 0 && state == DCOMMI_CTL_PROVED) {
            goes_on = dcommi_ctl_welcomed(l);
        } else if (there > 0) {
            goes_on = dcommi_ctl_heard(context, l, frame, genuine);
        } else if (state == DCOMMI_CTL_OPEN) {
            dcommi_ctl_dead(context, l);
        }
        if (!goes_on) {
            l->error = l->error != 0 ? l->error : ECONNRESET;
            dcommi_ctl_shut(c, l, state == DCOMMI_CTL_OPEN ? DCOMMI_CTL_OVER : DCOMMI_CTL_SHUT);
        }
    }
}

static void dcommi_ctl_accept(dcommi_ctl *c)
{
    while (c->nstrangers < DCOMMI_CTL_STRANGERS) {
        dcommi_ctl_line *l = dcommi_alloc(sizeof *l);
        if (l == NULL || dcommi_random_bytes(l->challenge, sizeof l->challenge) < 0) {
            dcommi_free(l);
            return;
        }
        dcommi_put32(l->challenge, DCOMMI_CTL_MAGIC);
        dcommi_put32(l->challenge + 4, DCOMMI_CTL_VERSION);
        pthread_mutex_lock(&dcommi_ctl_lock);
        l->fd = accept4(c->listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
        l->next = c->strangers;
        c->strangers = l->fd >= 0 ? l : c->strangers;
        pthread_mutex_unlock(&dcommi_ctl_lock);
        if (l->fd < 0) {
            dcommi_free(l);
            return;
        }
        c->nstrangers++;
        l->deadline = dcommi_now() + DCOMMI_CTL_S;
        dcommi_ctl_begin(c, l, DCOMMI_CTL_STRANGER);
        if (!dcommi_ctl_write(l, l->challenge, sizeof l->challenge)) {
            dcommi_ctl_shut(c, l, DCOMMI_CTL_SHUT);
        }
    }
}

/* Check again the strangers that have sent HELLO, and free those that are done. */
static void dcommi_ctl_sweep(dcommi_ctl *c)
{
    double now = c->strangers != NULL ? dcommi_now() : 0;
    for (dcommi_ctl_line **at = &c->strangers; *at != NULL;) {
        dcommi_ctl_line *l = *at;
        if (l->fd >= 0 && l->state == DCOMMI_CTL_SHUT) {
            dcommi_ctl_judge(c, l);
        }
        if (l->fd >= 0 && now < l->deadline) {
            at = &l->next;
            continue;
        }
        dcommi_ctl_shut(c, l, DCOMMI_CTL_SHUT);
        pthread_mutex_lock(&dcommi_ctl_lock);
        *at = l->next;
        pthread_mutex_unlock(&dcommi_ctl_lock);
        dcommi_free(l);
        c->nstrangers--;
    }
}

/* Handle what has come on all connections. With the token. */
static void dcommi_ctl_look(dcomm_context *context)
{
    dcommi_ctl *c = context->control;
    struct epoll_event events[16];
    int n = 16;
    if (c->looking) { /* what it has found fails a communicator */
        return;
    }
    c->looking = true;
    for (int turn = 0; n == 16 && turn < 64; turn++) {
        n = epoll_wait(c->epoll, events, 16, 0);
        for (int i = 0; i < n; i++) {
            if (events[i].data.ptr == NULL) {
                dcommi_ctl_accept(c);
            } else {
                dcommi_ctl_event(context, events[i].data.ptr);
            }
        }
    }
    dcommi_ctl_sweep(c);
    pthread_mutex_lock(&dcommi_ctl_lock);
    const bool pending = c->pending;
    c->pending = false;
    pthread_mutex_unlock(&dcommi_ctl_lock);
    for (dcommi_ctl_line *l = pending ? c->lines : NULL; l != NULL; l = l->next) {
        dcommi_ctl_event(context, l);
    }
    c->looking = false;
}

#endif
