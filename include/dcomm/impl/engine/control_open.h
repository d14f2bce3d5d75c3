/* control_open.h - opens, wants and closes control connections. */
#ifndef DCOMMI_CONTROL_OPEN_H
#define DCOMMI_CONTROL_OPEN_H

#include "control.h"

/* Listen on an address of the network interface `iface`. */
static dcomm_status dcommi_ctl_open(dcomm_context *context, const char *iface)
{
    dcommi_addr list[DCOMMI_SOCK_ADDRS];
    int n = dcommi_addr_mine(iface, list, DCOMMI_SOCK_ADDRS), at = 0;
    if (n == 0) {
        n = dcommi_addr_mine(NULL, list, DCOMMI_SOCK_ADDRS);
    }
    while (at < n && list[at].any.sa_family != AF_INET) {
        at++;
    }
    dcommi_ctl *c = dcommi_alloc(sizeof *c);
    if (c == NULL) {
        return DCOMM_ERR_NO_MEMORY;
    }
    memcpy(c->uuid, context->uuid, sizeof c->uuid);
    pthread_once(&dcommi_ctl_once, dcommi_ctl_watch_forks);
    c->epoll = epoll_create1(EPOLL_CLOEXEC);
    pthread_mutex_lock(&dcommi_ctl_lock);
    c->listener = n > 0 ? dcommi_sock_listen(&list[at < n ? at : 0], false) : -1;
    int error = errno;
    c->next = dcommi_ctl_all;
    dcommi_ctl_all = c->listener >= 0 ? c : dcommi_ctl_all;
    pthread_mutex_unlock(&dcommi_ctl_lock);
    struct epoll_event event = {.events = EPOLLIN};
    socklen_t len = sizeof c->address;
    context->control = c;
    if (c->listener < 0 || getsockname(c->listener, &c->address.any, &len) != 0 ||
        epoll_ctl(c->epoll, EPOLL_CTL_ADD, c->listener, &event) != 0) {
        return dcommi_fail(DCOMM_ERR_SYSTEM, "no control connections on interface %s: %s", iface,
                           n == 0            ? "it has no address"
                           : c->listener < 0 ? strerror(error)
                                             : strerror(errno));
    }
    return DCOMM_OK;
}

/* Say goodbye and close all connections, so that no peer takes the end for a death. */
static void dcommi_ctl_close(dcomm_context *context)
{
    dcommi_ctl *c = context->control;
    if (c == NULL) {
        return;
    }
    if (c->beating) {
        const uint64_t one = 1;
        (void)!dcommi_sys_write(c->wake, &one, sizeof one);
        pthread_join(c->thread, NULL);
        dcommi_sys_close(c->wake);
    }
    context->control = NULL;
    pthread_mutex_lock(&dcommi_ctl_lock);
    DCOMMI_LIST_REMOVE(dcommi_ctl_all, c, next);
    dcommi_sys_close(c->listener);
    for (int i = 0; i < 2; i++) {
        for (dcommi_ctl_line *l = i == 0 ? c->lines : c->strangers, *next; l != NULL; l = next) {
            next = l->next;
            if (l->state == DCOMMI_CTL_OPEN) {
                dcommi_ctl_say(l, DCOMMI_CTL_GOODBYE, 0, 0);
            }
            dcommi_sys_close(l->fd);
            dcommi_free(l);
        }
    }
    pthread_mutex_unlock(&dcommi_ctl_lock);
    dcommi_sys_close(c->epoll);
    dcommi_free(c);
}

/* Have a connection with a peer from now on, on which both beat if `beats`. With the token. */
static dcomm_status dcommi_ctl_want(dcomm_context *context, int peer, const dcommi_addr *where,
                                    const uint8_t key[DCOMMI_CTL_KEY], bool beats)
{
    dcommi_ctl *c = context->control;
    dcommi_ctl_line *l = dcommi_ctl_line_to(context, peer);
    if (l != NULL) {
        pthread_mutex_lock(&dcommi_ctl_lock);
        l->beats = l->beats || beats;
        l->liveness_s = context->liveness_s;
        pthread_mutex_unlock(&dcommi_ctl_lock);
        if (l->state == DCOMMI_CTL_OPEN) {
            dcommi_ctl_patience(l);
        }
    }
    if (l != NULL && l->state != DCOMMI_CTL_SHUT) {
        return DCOMM_OK;
    }
    if (l == NULL) {
        l = dcommi_alloc(sizeof *l);
        if (l == NULL) {
            return DCOMM_ERR_NO_MEMORY;
        }
        l->fd = -1;
        l->peer = peer;
        memcpy(l->uuid, context->peers[peer].uuid, sizeof l->uuid);
        l->beats = beats;
        l->liveness_s = context->liveness_s;
        l->connector = memcmp(c->uuid, l->uuid, sizeof l->uuid) < 0;
        pthread_mutex_lock(&dcommi_ctl_lock);
        l->next = c->lines;
        c->lines = l;
        pthread_mutex_unlock(&dcommi_ctl_lock);
    }
    l->where = *where;
    l->error = 0;
    memcpy(l->key, key, sizeof l->key);
    if (!l->connector) {
        return DCOMM_OK;
    }
    pthread_mutex_lock(&dcommi_ctl_lock);
    l->fd = dcommi_sys_socket(where->any.sa_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    pthread_mutex_unlock(&dcommi_ctl_lock);
    if (l->fd < 0 || (dcommi_sys_connect(l->fd, &where->any, dcommi_addr_len(where)) != 0 &&
                      errno != EINPROGRESS && errno != EINTR)) {
        l->error = errno;
        dcommi_ctl_shut(c, l, DCOMMI_CTL_SHUT);
    } else {
        dcommi_ctl_begin(c, l, DCOMMI_CTL_ASKED);
    }
    return DCOMM_OK;
}

/* Tell a peer over its control connection that this rank has left a communicator. */
static void dcommi_ctl_leave(dcomm_context *context, int peer, uint64_t comm, uint64_t number)
{
    dcommi_ctl_tell(context, peer, DCOMMI_CTL_LEAVE, comm, number);
}

#endif
