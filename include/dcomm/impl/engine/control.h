/* control.h - handles what comes on the control connections: handshakes, frames and ends. */
#ifndef DCOMMI_CONTROL_H
#define DCOMMI_CONTROL_H

#include "control_line.h"

#define DCOMMI_CTL_STRANGERS 64     /* connections at a time without a proof */
#define DCOMMI_CTL_TOGETHER_MS 2500 /* hosts that fall silent within this time go together */

/* ---- handshakes ---- */

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
    if (dcommi_ctl_write(l, tag, sizeof tag)) {
        dcommi_ctl_opened(l);
    } else { /* the connector must not take our first frame for the welcome */
        l->error = errno;
        dcommi_ctl_shut(c, l, DCOMMI_CTL_SHUT);
    }
}

/* ---- ends and frames ---- */

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

/* Return true if the end of a connection proves that its process has ended: the other side's system
 * has sent an end or a reset, and was not silent before. After a silence of liveness_s the other
 * side may have given this one up, and answers with a reset when the network is back. */
static bool dcommi_ctl_proves(const dcommi_ctl_line *l)
{
    return (l->error == 0 || l->error == ECONNRESET || l->error == EPIPE) &&
           dcommi_ctl_silent_ms(l) < 1000 * l->liveness_s;
}

static void dcommi_ctl_tell_dead(dcomm_context *context, int peer)
{
    dcommi_ctl_tell(context, peer, DCOMMI_CTL_DEAD, 0, 0);
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

/* Handle an end without a goodbye. If it proves no death, the peer only counts as dead. */
static void dcommi_ctl_dead(dcomm_context *context, dcommi_ctl_line *l)
{
    dcommi_remote *p = &context->peers[l->peer];
    dcommi_transport *t = p->transport;
    const bool proven = dcommi_ctl_proves(l);
    dcommi_peer_prove(p, proven);
    if (!proven) {
        const char *why = "its host, or the network to it, was silent for too long (liveness_s)";
        l->over = dcommi_peer_mark(p, why, false);
        dcommi_ctl_give_up(context, dcommi_ctl_dumb, why);
    } else if (!p->lost && t->call->lose != NULL) {
        t->call->lose(t, l->peer, "its control connection has ended");
    }
}

/* Hand a message to the engine as if UCX had brought it. */
static void dcommi_ctl_deliver(dcomm_context *context, const dcommi_ctl_line *l,
                               const uint8_t *frame)
{
    dcommi_transport *t = context->peers[l->peer].transport;
    const size_t len = dcommi_ctl_message_len(frame), header_len = sizeof(dcommi_header);
    if (len >= header_len) {
        const uint8_t *message = frame + DCOMMI_CTL_FRAME;
        const dcommi_arrival arrival = {.peer = l->peer,
                                        .header = message,
                                        .header_len = header_len,
                                        .data = message + header_len,
                                        .len = len - header_len};
        t->handlers.on_message(t->handlers.user, t, &arrival);
    }
}

/* Handle a frame. Return false if the connection is over. */
static bool dcommi_ctl_heard(dcomm_context *context, dcommi_ctl_line *l, const uint8_t *frame,
                             bool genuine)
{
    if (!genuine) {
        dcommi_log(DCOMMI_LOG_WARN,
                   "the control connection with process %d brought a forged message; "
                   "it is closed",
                   (int)context->peers[l->peer].pid);
        return false;
    }
    l->passed = dcommi_get32(frame) == DCOMMI_CTL_BEAT ? l->passed : 0;
    if (dcommi_get32(frame) == DCOMMI_CTL_LEAVE) {
        dcommi_ctl_left(context, l->peer, dcommi_get64(frame + 8), dcommi_get64(frame + 16));
    } else if (dcommi_get32(frame) == DCOMMI_CTL_DEAD) {
        dcommi_given_up(context, l->peer);
    } else if (dcommi_get32(frame) == DCOMMI_CTL_MESSAGE) {
        dcommi_ctl_deliver(context, l, frame);
    }
    return dcommi_get32(frame) != DCOMMI_CTL_GOODBYE;
}

static void dcommi_ctl_event(dcomm_context *context, dcommi_ctl_line *l)
{
    static const size_t need[] = {[DCOMMI_CTL_STRANGER] = DCOMMI_CTL_HELLO,
                                  [DCOMMI_CTL_ASKED] = DCOMMI_CTL_CHALLENGE,
                                  [DCOMMI_CTL_PROVED] = DCOMMI_CTL_KEY};
    uint8_t frame[DCOMMI_CTL_IN] = {0};
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

/* ---- events ---- */

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
