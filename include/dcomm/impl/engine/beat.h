/* beat.h - a thread that beats for the process, so that others know that it runs while it computes.
 * The first ranks of two hosts beat on their control connection. When one fails or leaves, the next
 * rank of its host begins. Each process answers a beat by beating there from then on.
 *
 * A process is silent if no beat comes though its system acknowledges ours. If its system is
 * silent, too, the network or the machine is down, and TCP's time-out decides
 * (dcommi_ctl_patience). The time of a silence counts only as far as this thread ran when it was
 * due: a machine that slept accuses nobody. The thread takes the context's token only to report a
 * silent process. */
#ifndef DCOMMI_BEAT_H
#define DCOMMI_BEAT_H

#include "control_open.h"
#include "silence.h"

#include <signal.h>
#include <sys/eventfd.h>

#define DCOMMI_BEAT_EVERY_MAX 1.0 /* seconds between two beats, at most */

/* Read what has come. Leave a frame that is no beat, and an end, to the holder of the token; beats
 * may lie behind it, so return false then. With the lock. */
static bool dcommi_beat_listen(dcommi_ctl *c, dcommi_ctl_line *l)
{
    while (dcommi_ctl_fill(l, DCOMMI_CTL_FRAME) > 0) {
        if (dcommi_get32(l->in) != DCOMMI_CTL_BEAT) {
            c->pending = true;
            return false;
        }
        if (!dcommi_ctl_genuine(l)) {
            l->received--; /* the holder of the token checks it again, and closes */
            c->pending = true;
            return false;
        }
        l->have = 0;
    }
    return true;
}

/* Return true if the peer's system has acknowledged all that we have sent. */
static bool dcommi_beat_arrives(const dcommi_ctl_line *l)
{
    struct tcp_info info = {0};
    socklen_t len = sizeof info;
    return getsockopt(l->fd, IPPROTO_TCP, TCP_INFO, &info, &len) == 0 && info.tcpi_unacked == 0;
}

/* Listen and beat on every connection, `since` seconds after the last time. Return true if a
 * process has been silent for too long. */
static bool dcommi_beat_turn(const dcomm_context *context, double since, double every)
{
    dcommi_ctl *c = context->control;
    bool over = false;
    pthread_mutex_lock(&dcommi_ctl_lock);
    for (dcommi_ctl_line *l = c->lines; l != NULL; l = l->next) {
        if (l->state != DCOMMI_CTL_OPEN || l->fd < 0) {
            continue;
        }
        const bool all = dcommi_beat_listen(c, l);
        if (!l->beats) {
            continue;
        }
        /* After an outage its beats may come as late as the outage was long. */
        if (l->heard || !all || !dcommi_beat_arrives(l)) {
            l->silent_s = 0;
        } else {
            l->silent_s += dcommi_silence_counted(since, every);
        }
        l->heard = false;
        over = over || l->silent_s >= l->liveness_s;
        dcommi_ctl_say(l, DCOMMI_CTL_BEAT, 0, 0);
    }
    pthread_mutex_unlock(&dcommi_ctl_lock);
    return over;
}

/* Return true if a process has been silent for too long. One whose time is up in two turns goes
 * with the first: they fell silent together. */
static bool dcommi_beat_silent(const dcommi_ctl_line *l)
{
    const double late = 2 * l->liveness_s / DCOMMI_SILENCE_LOOKS;
    return l->beats && l->state == DCOMMI_CTL_OPEN && l->silent_s > 0 &&
           l->silent_s >= l->liveness_s - late;
}

static void *dcommi_beat_main(void *user)
{
    dcomm_context *context = user;
    dcommi_ctl *c = context->control;
    struct pollfd wake = {.fd = c->wake, .events = POLLIN};
    double last = dcommi_now();
    for (;;) {
        pthread_mutex_lock(&dcommi_ctl_lock);
        const double every = c->every;
        pthread_mutex_unlock(&dcommi_ctl_lock);
        const double due = last + every, left = due - dcommi_now();
        if (dcommi_sys_poll(&wake, 1, left > 0 ? (int)(left * 1000) + 1 : 0) > 0) {
            return NULL;
        }
        const double now = dcommi_now();
        if (now < due) {
            continue;
        }
        if (dcommi_beat_turn(context, now - last, every)) {
            dcommi_token_take(context);
            dcommi_ctl_give_up(context, dcommi_beat_silent,
                               "its process does not run: no beat of it came for liveness_s");
            dcommi_token_release(context);
        }
        last = now;
    }
}

/* Note the first rank of each host, counted from 1, among the ranks that are left if `left`. NULL
 * without memory; the caller frees it. */
static int *dcommi_beat_firsts(const dcomm_comm *comm, bool left)
{
    int *first = dcommi_calloc((size_t)comm->nhosts, sizeof *first);
    for (int r = comm->size - 1; r >= 0 && first != NULL; r--) {
        const dcommi_member *m = &comm->members[r];
        if (!left || m->peer < 0 || (!m->gone && !comm->context->peers[m->peer].lost)) {
            first[dcommi_group_of(comm->groups, 0, r)] = 1 + r;
        }
    }
    return first;
}

/* Return true if this rank and another one beat with each other: both are the first of their
 * hosts. */
static bool dcommi_beat_with(const dcomm_comm *comm, const int *first, int rank)
{
    const int own = dcommi_group_of(comm->groups, 0, comm->rank);
    const int other = dcommi_group_of(comm->groups, 0, rank);
    return own != other && first[own] == 1 + comm->rank && first[other] == 1 + rank;
}

/* Beat with the first ranks of other hosts, if this rank is the first of its own, among those that
 * are left. With the token. */
static void dcommi_beat_appoint(const dcomm_comm *comm)
{
    const dcomm_context *context = comm->context;
    int *first = context->control != NULL && context->control->beating
                     ? dcommi_beat_firsts(comm, true)
                     : NULL;
    pthread_mutex_lock(&dcommi_ctl_lock);
    for (int r = 0; first != NULL && r < comm->size; r++) {
        dcommi_ctl_line *l = dcommi_beat_with(comm, first, r)
                                 ? dcommi_ctl_line_to(context, comm->members[r].peer)
                                 : NULL;
        if (l != NULL && !l->beats) {
            l->beats = true;
            l->silent_s = 0;
        }
    }
    pthread_mutex_unlock(&dcommi_ctl_lock);
    dcommi_free(first);
}

/* Beat for this process from now on. With the token. */
static dcomm_status dcommi_beat_start(dcomm_context *context)
{
    dcommi_ctl *c = context->control;
    const double every = context->liveness_s / DCOMMI_SILENCE_LOOKS;
    pthread_mutex_lock(&dcommi_ctl_lock);
    c->every = every < DCOMMI_BEAT_EVERY_MAX ? every : DCOMMI_BEAT_EVERY_MAX;
    pthread_mutex_unlock(&dcommi_ctl_lock);
    if (c->beating) {
        return DCOMM_OK;
    }
    sigset_t all, before;
    c->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int error = c->wake < 0 ? errno : pthread_create(&c->thread, NULL, dcommi_beat_main, context);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    c->beating = error == 0;
    if (error != 0) {
        dcommi_sys_close(c->wake);
        return dcommi_fail(DCOMM_ERR_SYSTEM, "no thread that beats for this process: %s",
                           strerror(error));
    }
    return DCOMM_OK;
}

#endif
