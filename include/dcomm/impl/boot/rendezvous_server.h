/* rendezvous_server.h - the thread that serves a rendezvous. It gives sockets and the clock to the
 * state machine of rendezvous.h. A fork finds every such thread in poll(), where the thread holds
 * no lock of any library. Elsewhere the thread holds dcommi_rdv_lock, which a fork takes first. */
#ifndef DCOMMI_RENDEZVOUS_SERVER_H
#define DCOMMI_RENDEZVOUS_SERVER_H

#include "rendezvous.h"
#include "socket.h"

#include <signal.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>

#define DCOMMI_RDV_CHUNK (1u << 16)
#define DCOMMI_RDV_TELL_S 5.0 /* seconds to tell ranks that come why another cannot take part */

/* Shared by its thread, the list of servers and the boots of this process that use it. */
typedef struct dcommi_rdv_server {
    struct dcommi_rdv_server *next; /* in the list */
    int refs;                       /* guarded by dcommi_rdv_lock, as are the thread's data */
    bool ended;                     /* the thread has ended, and nothing listens any more */
    bool retired;                   /* the owner has left: end when the others know */
    double retired_at;
    pid_t thread;
    uint16_t port;
    dcommi_addr self; /* the address by which this process reaches it */
    uint8_t key[DCOMMI_RDV_KEY];
    int listen_fd, wake_fd;
    double refuse_until; /* accept nothing before then, because descriptors are used up */
    dcommi_rdv_core core;
    struct pollfd *polls;
    size_t polls_capacity;
    uint8_t *buf;
} dcommi_rdv_server;

static pthread_mutex_t dcommi_rdv_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t dcommi_rdv_changed = PTHREAD_COND_INITIALIZER;
static dcommi_rdv_server *dcommi_rdv_servers; /* with threads that run or are about to end */

static void dcommi_rdv_close_fd(dcommi_rdv_conn *conn)
{
    dcommi_sys_close(conn->fd);
    conn->fd = -1;
}

/* Close the listening socket. Shut it down first: a forked child may hold a copy, which would go
 * on accepting connections. */
static void dcommi_rdv_stop_listening(dcommi_rdv_server *s)
{
    if (s->listen_fd >= 0) {
        dcommi_sys_shutdown(s->listen_fd, SHUT_RDWR);
        dcommi_sys_close(s->listen_fd);
        s->listen_fd = -1;
    }
}

static void dcommi_rdv_shut(dcommi_rdv_server *s)
{
    dcommi_rdv_stop_listening(s);
    for (size_t i = 0; i < s->core.nconns; i++) {
        dcommi_rdv_close_fd(s->core.conns[i]);
    }
    dcommi_sys_close(s->wake_fd);
    s->wake_fd = -1;
}

static void dcommi_rdv_server_free(dcommi_rdv_server *s)
{
    dcommi_rdv_shut(s);
    dcommi_rdv_core_end(&s->core);
    dcommi_free(s->polls);
    dcommi_free(s->buf);
    dcommi_free(s);
}

/* Free servers whose threads are gone. If `wait`, first wait for threads that have ended. The
 * caller holds dcommi_rdv_lock. */
static void dcommi_rdv_reap(bool wait)
{
    dcommi_rdv_server **at = &dcommi_rdv_servers;
    while (*at != NULL) {
        dcommi_rdv_server *s = *at;
        bool gone = s->ended && syscall(SYS_tgkill, getpid(), s->thread, 0) != 0;
        for (int tries = 0; wait && s->ended && !gone && tries < 1000; tries++) {
            nanosleep(&(struct timespec){.tv_nsec = 100000}, NULL);
            gone = syscall(SYS_tgkill, getpid(), s->thread, 0) != 0;
        }
        if (gone && s->refs == 0) {
            *at = s->next;
            dcommi_rdv_server_free(s);
        } else {
            at = &s->next;
        }
    }
}

/* ---- forks ---- */

static void dcommi_rdv_before_fork(void)
{
    pthread_mutex_lock(&dcommi_rdv_lock);
    dcommi_rdv_reap(true);
}

static void dcommi_rdv_in_parent(void)
{
    pthread_mutex_unlock(&dcommi_rdv_lock);
}

/* Close the child's copies, so that they keep no port and no rank. The parent goes on serving. */
static void dcommi_rdv_in_child(void)
{
    while (dcommi_rdv_servers != NULL) {
        dcommi_rdv_server *s = dcommi_rdv_servers;
        dcommi_rdv_servers = s->next;
        dcommi_sys_close(s->listen_fd); /* a shutdown would end the parent's socket too */
        s->listen_fd = -1;
        dcommi_rdv_server_free(s);
    }
    pthread_cond_init(&dcommi_rdv_changed, NULL);
    pthread_mutex_unlock(&dcommi_rdv_lock);
}

static void dcommi_rdv_watch_forks(void)
{
    pthread_atfork(dcommi_rdv_before_fork, dcommi_rdv_in_parent, dcommi_rdv_in_child);
}

static void dcommi_rdv_accept_all(dcommi_rdv_server *s, double now)
{
    /* Accept a bounded number at a time, so that a flood cannot keep ranks waiting. */
    for (int i = 0; i < DCOMMI_RDV_GUESTS_MAX; i++) {
        int fd = accept4(s->listen_fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
        if (fd < 0) {
            if ((errno == EMFILE || errno == ENFILE) && s->refuse_until == 0) {
                snprintf(s->core.news, sizeof s->core.news,
                         "the rendezvous cannot take more connections: %s; raise `ulimit -n` in "
                         "the process that serves it",
                         strerror(errno));
            }
            if (!dcommi_sys_later() && errno != ECONNABORTED) {
                s->refuse_until = now + 0.5;
            }
            return;
        }
        uint8_t nonce[DCOMMI_RDV_NONCE];
        dcommi_rdv_conn *conn = NULL;
        if (dcommi_random_bytes(nonce, sizeof nonce) == DCOMM_OK) {
            conn = dcommi_rdv_accept(&s->core, nonce, now);
        }
        if (conn == NULL) {
            dcommi_sys_close(fd);
            return;
        }
        dcommi_sock_tune(fd);
        conn->fd = fd;
    }
}

static void dcommi_rdv_receive(dcommi_rdv_server *s, dcommi_rdv_conn *conn, uint8_t *buf,
                               size_t max, double now)
{
    /* Peek, so that the rest of a chunk stays in the socket when the rank must wait. */
    ssize_t n = dcommi_sys_recv(conn->fd, buf, max, MSG_PEEK);
    if (n > 0) {
        size_t used = dcommi_rdv_input(&s->core, conn, buf, (size_t)n, now);
        n = dcommi_sys_recv(conn->fd, buf, used, MSG_TRUNC);
    } else if (n == 0 || !dcommi_sys_later()) {
        dcommi_rdv_lost(&s->core, conn, now);
    }
}

static void dcommi_rdv_transmit(dcommi_rdv_server *s, dcommi_rdv_conn *conn, double now)
{
    const uint8_t *bytes = NULL;
    size_t len;
    while (conn->state != DCOMMI_RDV_GONE &&
           (len = dcommi_rdv_output(&s->core, conn, &bytes)) > 0) {
        ssize_t n = dcommi_sys_send(conn->fd, bytes, len, MSG_NOSIGNAL);
        if (n > 0) {
            dcommi_rdv_sent(conn, (size_t)n);
        } else {
            if (!dcommi_sys_later()) {
                dcommi_rdv_lost(&s->core, conn, now);
            }
            return;
        }
    }
    if (conn->state == DCOMMI_RDV_FAREWELL) {
        dcommi_sys_shutdown(conn->fd, SHUT_WR); /* we read on: a reset would lose our output */
    }
}

/* Return true if the thread should go on. After an announced failure it goes on for a while, to
 * tell the ranks that still come. */
static bool dcommi_rdv_server_goes_on(dcommi_rdv_server *s, double now)
{
    bool tells = s->core.announced && now < s->retired_at + DCOMMI_RDV_TELL_S;
    bool leaves = s->retired && !tells;
    if (s->core.ready || leaves) {
        dcommi_rdv_stop_listening(s);
    }
    if (s->retired && !s->core.ready) {
        dcommi_rdv_poison(&s->core, now, DCOMM_ERR_PEER,
                          "the rank that serves the rendezvous gave up");
    }
    return !dcommi_rdv_finished(&s->core) && (!leaves || dcommi_rdv_attended(&s->core));
}

/* Log the news and wait for input, both without the lock. */
static void dcommi_rdv_server_poll(dcommi_rdv_server *s, size_t n, double wait)
{
    char news[sizeof s->core.news];
    memcpy(news, s->core.news, sizeof news);
    s->core.news[0] = '\0';
    pthread_mutex_unlock(&dcommi_rdv_lock);
    if (news[0] != '\0') {
        dcommi_log(DCOMMI_LOG_WARN, "%s", news);
    }
    dcommi_sys_poll(s->polls, n, wait > 0 ? (int)(wait * 1000) + 1 : 0);
    pthread_mutex_lock(&dcommi_rdv_lock);
}

static bool dcommi_rdv_server_turn(dcommi_rdv_server *s, uint8_t *buf, size_t max)
{
    dcommi_rdv_core *c = &s->core;
    double now = dcommi_now();
    double next = dcommi_rdv_tick(c, now);
    dcommi_rdv_sweep(c, dcommi_rdv_close_fd);
    if (!dcommi_rdv_server_goes_on(s, now) ||
        dcommi_grow((void **)&s->polls, &s->polls_capacity, c->nconns + 2, sizeof *s->polls) < 0) {
        return false;
    }
    bool accepts = s->listen_fd >= 0 && now >= s->refuse_until;
    size_t n = c->nconns;
    s->polls[0] = (struct pollfd){.fd = s->wake_fd, .events = POLLIN};
    s->polls[1] = (struct pollfd){.fd = accepts ? s->listen_fd : -1, .events = POLLIN};
    for (size_t i = 0; i < n; i++) {
        /* Poll a rank that waits for hang-ups only. */
        short events = dcommi_rdv_wants_input(c->conns[i]) ? POLLIN : POLLRDHUP;
        if (dcommi_rdv_output_pending(c->conns[i])) {
            events |= POLLOUT;
        }
        s->polls[i + 2] = (struct pollfd){.fd = c->conns[i]->fd, .events = events};
    }
    double wait = next - now;
    if (s->listen_fd >= 0 && !accepts) {
        wait = 0.1;
    }
    if (s->retired && c->announced && wait > 0.5) {
        wait = 0.5; /* to notice the end of DCOMMI_RDV_TELL_S */
    }
    dcommi_rdv_server_poll(s, n + 2, wait);
    now = dcommi_now();
    if (s->polls[0].revents != 0) {
        uint64_t count;
        (void)!dcommi_sys_read(s->wake_fd, &count, sizeof count);
    }
    for (size_t i = 0; i < n; i++) {
        dcommi_rdv_conn *conn = c->conns[i];
        short got = s->polls[i + 2].revents;
        if (conn->state == DCOMMI_RDV_GONE || got == 0) {
            continue;
        }
        if (dcommi_rdv_wants_input(conn)) {
            dcommi_rdv_receive(s, conn, buf, max, now);
        } else if ((got & (POLLERR | POLLHUP | POLLRDHUP)) != 0) {
            dcommi_rdv_lost(c, conn, now);
        }
    }
    if (s->polls[1].revents != 0) {
        dcommi_rdv_accept_all(s, now);
    }
    for (size_t i = 0; i < c->nconns; i++) {
        if (c->conns[i]->state != DCOMMI_RDV_GONE && dcommi_rdv_output_pending(c->conns[i])) {
            dcommi_rdv_transmit(s, c->conns[i], now);
        }
    }
    return true;
}

static void *dcommi_rdv_server_main(void *argument)
{
    dcommi_rdv_server *s = argument;
    pthread_mutex_lock(&dcommi_rdv_lock);
    s->thread = (pid_t)syscall(SYS_gettid);
    while (dcommi_rdv_server_turn(s, s->buf, DCOMMI_RDV_CHUNK)) {
    }
    dcommi_rdv_shut(s);
    s->ended = true;
    pthread_cond_broadcast(&dcommi_rdv_changed);
    pthread_mutex_unlock(&dcommi_rdv_lock);
    return NULL;
}

/* Make the thread look at what was changed. The caller holds dcommi_rdv_lock. */
static void dcommi_rdv_server_wake(dcommi_rdv_server *s)
{
    const uint64_t one = 1;
    (void)!dcommi_sys_write(s->wake_fd, &one, sizeof one);
}

/* Drop the owner's reference. The server ends when all other ranks know the outcome. Wait at most
 * `patience` seconds for that, because the process may end next and would cut them off. */
static void dcommi_rdv_server_retire(dcommi_rdv_server *s, double patience)
{
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    int64_t ns = until.tv_nsec + (int64_t)(patience * 1e9);
    until.tv_sec += (time_t)(ns / 1000000000);
    until.tv_nsec = (long)(ns % 1000000000);
    pthread_mutex_lock(&dcommi_rdv_lock);
    s->retired = true;
    s->retired_at = dcommi_now();
    dcommi_rdv_server_wake(s);
    while (!s->ended &&
           pthread_cond_timedwait(&dcommi_rdv_changed, &dcommi_rdv_lock, &until) == 0) {
    }
    s->refs--;
    dcommi_rdv_reap(true);
    pthread_mutex_unlock(&dcommi_rdv_lock);
}

/* Find this process's server with this key and port. Take a reference. Return NULL if none. */
static dcommi_rdv_server *dcommi_rdv_server_find(const uint8_t key[DCOMMI_RDV_KEY], uint16_t port)
{
    pthread_mutex_lock(&dcommi_rdv_lock);
    dcommi_rdv_server *s = dcommi_rdv_servers;
    while (s != NULL && (s->ended || s->port != port || memcmp(s->key, key, DCOMMI_RDV_KEY) != 0)) {
        s = s->next;
    }
    if (s != NULL) {
        s->refs++;
    }
    pthread_mutex_unlock(&dcommi_rdv_lock);
    return s;
}

/* Drop the reference of dcommi_rdv_server_find. */
static void dcommi_rdv_server_forget(dcommi_rdv_server *s)
{
    pthread_mutex_lock(&dcommi_rdv_lock);
    s->refs--;
    pthread_mutex_unlock(&dcommi_rdv_lock);
}

/* Serve at the address `on`, or, if it is NULL, at every address and `port` (0: any port).
 * *server_p is the owner's reference, for dcommi_rdv_server_retire or dcommi_rdv_server_forget. On
 * failure errno tells the reason. */
static dcomm_status dcommi_rdv_server_start(const dcommi_addr *on, uint16_t port,
                                            const uint8_t key[DCOMMI_RDV_KEY], uint32_t generation,
                                            const char *job, dcommi_rdv_server **server_p)
{
    static pthread_once_t watched = PTHREAD_ONCE_INIT;
    pthread_once(&watched, dcommi_rdv_watch_forks);
    dcommi_rdv_server *s = dcommi_alloc(sizeof *s);
    uint8_t *buf = dcommi_alloc(DCOMMI_RDV_CHUNK);
    if (s == NULL || buf == NULL) {
        dcommi_free(s);
        dcommi_free(buf);
        errno = ENOMEM;
        return DCOMM_ERR_NO_MEMORY;
    }
    s->refs = 1;
    s->buf = buf;
    memcpy(s->key, key, DCOMMI_RDV_KEY);
    s->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    s->listen_fd = on != NULL ? dcommi_sock_listen(on, false) : dcommi_sock_listen_any(port);
    socklen_t len = sizeof s->self;
    if (s->wake_fd < 0 || s->listen_fd < 0 || getsockname(s->listen_fd, &s->self.any, &len) != 0) {
        int saved = errno;
        dcommi_rdv_server_free(s);
        errno = saved;
        return dcommi_fail(DCOMM_ERR_SYSTEM,
                           "this process cannot serve the rendezvous on port %u: %s", port,
                           strerror(saved));
    }
    bool v4 = s->self.any.sa_family == AF_INET;
    s->port = ntohs(v4 ? s->self.v4.sin_port : s->self.v6.sin6_port);
    if (on == NULL) {
        /* IPv4 is always there, and it reaches a socket of both families too. */
        dcommi_addr_literal("127.0.0.1", s->port, &s->self);
    }
    dcommi_rdv_core_begin(&s->core, key, generation, job);
    sigset_t all, before;
    pthread_t thread;
    pthread_attr_t detached;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    pthread_attr_init(&detached);
    pthread_attr_setdetachstate(&detached, PTHREAD_CREATE_DETACHED);
    pthread_mutex_lock(&dcommi_rdv_lock);
    dcommi_rdv_reap(false);
    int rc = pthread_create(&thread, &detached, dcommi_rdv_server_main, s);
    if (rc == 0) {
        s->next = dcommi_rdv_servers;
        dcommi_rdv_servers = s;
    }
    pthread_mutex_unlock(&dcommi_rdv_lock);
    pthread_attr_destroy(&detached);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (rc != 0) {
        dcommi_rdv_server_free(s);
        errno = rc;
        return dcommi_fail(DCOMM_ERR_SYSTEM,
                           "this process cannot start the thread of the rendezvous: %s",
                           strerror(rc));
    }
    *server_p = s;
    return DCOMM_OK;
}

#endif
