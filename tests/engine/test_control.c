/* test_control.c - control connections: who may connect, how a connection ends, and how each end
 * is understood. */
#define _GNU_SOURCE
#pragma GCC diagnostic ignored "-Wunused-function"
#include "control_sides.h"

#include <pthread.h>
#include <signal.h>
#include <sys/wait.h>

/* ---- how it ends ---- */

Test(control, a_goodbye_is_no_death, .timeout = LIMIT)
{
    for (int leaver = 0; leaver < 2; leaver++) {
        connect_sides();
        dcommi_ctl_close(&sides[leaver].context);
        until_over(1 - leaver);
        cr_expect(sides[1 - leaver].lost == 0 && !sides[1 - leaver].peer.proven);
        close_sides();
    }
}

Test(control, an_end_without_one_is, .timeout = LIMIT)
{
    for (int dead = 0; dead < 2; dead++) {
        connect_sides();
        dcommi_ctl_shut(sides[dead].context.control, sides[dead].line, DCOMMI_CTL_OVER);
        until_over(1 - dead);
        look();
        cr_expect(sides[1 - dead].lost == 1, "reported %d times", sides[1 - dead].lost);
        cr_expect(sides[1 - dead].peer.proven);
        close_sides();
    }
}

/* A reset is proof, but not after a silence in which the other side may have given this one up. */
Test(control, a_reset_after_a_silence_proves_nothing, .timeout = LIMIT)
{
    const struct linger none = {.l_onoff = 1};
    for (int late = 0; late < 2; late++) {
        connect_sides();
        for (int i = 0; late && i < LOOKS / 4; i++) {
            look();
        }
        sides[0].line->liveness_s = late ? 0.05 : 10;
        setsockopt(sides[1].line->fd, SOL_SOCKET, SO_LINGER, &none, sizeof none);
        dcommi_ctl_shut(sides[1].context.control, sides[1].line, DCOMMI_CTL_OVER);
        until_over(0);
        cr_expect(sides[0].peer.proven == !late && sides[0].peer.lost == (late != 0));
        close_sides();
    }
}

/* So is one that the system reports because it hears nothing, but nothing proves it. */
Test(control, silence_proves_nothing, .timeout = LIMIT)
{
    connect_sides();
    sides[1].line->error = ETIMEDOUT;
    dcommi_ctl_shut(sides[0].context.control, sides[0].line, DCOMMI_CTL_OVER);
    until_over(1);
    cr_expect(sides[1].lost == 1 && sides[1].peer.lost && !sides[1].peer.proven);
    close_sides();
}

/* A beat is for the thread; the holder of the token gets what comes behind it. */
Test(control, a_beat_hides_nothing, .timeout = LIMIT)
{
    connect_sides();
    dcommi_ctl_line *l = sides[1].line;
    pthread_mutex_lock(&dcommi_ctl_lock);
    dcommi_ctl_say(sides[0].line, DCOMMI_CTL_BEAT, 0, 0);
    dcommi_ctl_say(sides[0].line, DCOMMI_CTL_GOODBYE, 0, 0);
    for (int i = 0; i < LOOKS && l->have < DCOMMI_CTL_FRAME; i++) {
        dcommi_beat_listen(sides[1].context.control, l);
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    }
    cr_expect(l->heard && sides[1].context.control->pending && l->received == 1);
    pthread_mutex_unlock(&dcommi_ctl_lock);
    until_over(1);
    cr_expect(sides[1].lost == 0 && l->received == 2);
    close_sides();
}

/* A forked child inherits no descriptor of the connection, so the peer sees its parent's end. */
Test(control, a_forked_child_keeps_none, .timeout = LIMIT)
{
    connect_sides();
    int fds[] = {sides[0].line->fd, sides[1].line->fd, sides[0].context.control->listener,
                 sides[1].context.control->listener};
    int there[2];
    cr_assert(pipe(there) == 0);
    pid_t child = fork();
    if (child == 0) {
        char open_ones = 0;
        for (size_t i = 0; i < sizeof fds / sizeof *fds; i++) {
            open_ones = (char)(open_ones + (fcntl(fds[i], F_GETFD) >= 0));
        }
        _exit(write(there[1], &open_ones, 1) == 1 ? pause() : 1);
    }
    char open_ones = 9;
    cr_assert(read(there[0], &open_ones, 1) == 1 && open_ones == 0, "%d are open", open_ones);
    dcommi_ctl_shut(sides[0].context.control, sides[0].line, DCOMMI_CTL_OVER);
    until_over(1);
    cr_expect(sides[1].lost == 1);
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
    close_sides();
}

Test(control, leaving_a_communicator, .timeout = LIMIT)
{
    connect_sides();
    static dcomm_comm comm;
    dcommi_member members[2] = {{.peer = -1}, {.peer = 0}};
    comm = (dcomm_comm){.id = 77, .size = 2, .members = members};
    sides[1].context.comms = &comm;
    dcommi_ctl_leave(&sides[0].context, 0, 78, 3);
    dcommi_ctl_leave(&sides[0].context, 0, 77, 5);
    for (int i = 0; i < LOOKS && !members[1].gone; i++) {
        look();
    }
    cr_expect(members[1].gone && members[1].gone_after == 5 && !members[0].gone);
    cr_expect(both(DCOMMI_CTL_OPEN));
    sides[1].context.comms = NULL;
    close_sides();
}

enum { LEAVES, PASSES, READS, USES };

typedef struct use {
    int what;
    _Atomic bool begun;
} use;

/* Use a connection as the holder of the token does: leave a communicator, pass an error on, or
 * read. */
static void *use_it(void *arg)
{
    const dcommi_header header = {.type = DCOMMI_MSG_ABORT};
    use *u = arg;
    atomic_store(&u->begun, true);
    if (u->what == LEAVES) {
        dcommi_ctl_leave(&sides[0].context, 0, 77, 5);
    } else if (u->what == PASSES) {
        dcommi_ctl_pass(&sides[0].context, 0, &header, "why", 3);
    } else {
        dcommi_ctl_look(&sides[1].context);
    }
    return NULL;
}

/* Frames have numbers, and one that is out of turn counts as forged. So no frame is sent or read
 * while the thread of beat.h sends or reads. */
Test(control, frames_wait_for_the_lock, .timeout = LIMIT)
{
    for (int what = 0; what < USES; what++) {
        connect_sides();
        const uint64_t *frames = what == READS ? &sides[1].line->received : &sides[0].line->sent;
        use u = {.what = what};
        pthread_t thread;
        pthread_mutex_lock(&dcommi_ctl_lock);
        if (what == READS) {
            dcommi_ctl_say(sides[0].line, DCOMMI_CTL_BEAT, 0, 0);
            cr_assert(comes(1));
        }
        cr_assert(pthread_create(&thread, NULL, use_it, &u) == 0);
        while (!atomic_load(&u.begun)) {
            sched_yield();
        }
        nanosleep(&(struct timespec){.tv_nsec = 20000000}, NULL);
        cr_expect(*frames == 0, "use %d did not wait", what);
        pthread_mutex_unlock(&dcommi_ctl_lock);
        pthread_join(thread, NULL);
        cr_expect(*frames == 1, "use %d: %d frames", what, (int)*frames);
        close_sides();
    }
}

/* ---- strangers ---- */

Test(control, another_key_is_not_let_in, .timeout = LIMIT)
{
    open_sides();
    want(1, 7);
    want(0, 8);
    for (int i = 0; i < LOOKS && sides[0].line->error == 0; i++) {
        look();
    }
    cr_expect(sides[0].line->error != 0 && both(DCOMMI_CTL_SHUT));
    want(0, 7); /* and disturbs nobody */
    for (int i = 0; i < LOOKS && !both(DCOMMI_CTL_OPEN); i++) {
        look();
    }
    cr_expect(both(DCOMMI_CTL_OPEN));
    close_sides();
}

/* The connector comes before the acceptor knows of it. */
Test(control, one_comes_early, .timeout = LIMIT)
{
    open_sides();
    want(0, 7);
    for (int i = 0; i < LOOKS && (sides[0].line->state != DCOMMI_CTL_PROVED ||
                                  sides[1].context.control->nstrangers == 0);
         i++) {
        look();
    }
    look();
    cr_assert(sides[1].context.control->nstrangers == 1);
    want(1, 7);
    for (int i = 0; i < LOOKS && !both(DCOMMI_CTL_OPEN); i++) {
        look();
    }
    cr_expect(both(DCOMMI_CTL_OPEN) && sides[1].context.control->nstrangers == 0);
    close_sides();
}

static int knock(void)
{
    int fd = -1, error = 0;
    cr_assert(dcommi_sock_connect(&sides[1].context.control->address, dcommi_now() + 2, NULL, &fd,
                                  &error) == DCOMM_OK,
              "%s", strerror(error));
    return fd;
}

/* A proof recorded on one connection is refused on another one. */
Test(control, a_recorded_proof_is_refused, .timeout = LIMIT)
{
    connect_sides();
    uint8_t recorded[DCOMMI_CTL_HELLO], answer[DCOMMI_CTL_CHALLENGE];
    memcpy(recorded, sides[0].line->hello, sizeof recorded);
    dcommi_ctl_shut(sides[1].context.control, sides[1].line, DCOMMI_CTL_SHUT);
    int fd = knock();
    look();
    cr_assert(dcommi_sock_read(fd, answer, sizeof answer, dcommi_now() + 2, NULL) == DCOMM_OK);
    cr_assert(write(fd, recorded, sizeof recorded) == (ssize_t)sizeof recorded);
    for (int i = 0; i < LOOKS && sides[1].context.control->nstrangers > 0; i++) {
        look();
    }
    cr_expect(sides[1].context.control->nstrangers == 0);
    cr_expect(sides[1].line->state == DCOMMI_CTL_SHUT);
    cr_expect(dcommi_sock_read(fd, answer, 1, dcommi_now() + 2, NULL) == DCOMM_ERR_PEER);
    close(fd);
    close_sides();
}

/* Bytes that are no frame end the connection, but do not count as a peer's death. */
Test(control, a_forged_goodbye_is_no_news, .timeout = LIMIT)
{
    connect_sides();
    uint8_t frame[DCOMMI_CTL_FRAME] = {[3] = DCOMMI_CTL_GOODBYE};
    cr_assert(dcommi_ctl_write(sides[0].line, frame, sizeof frame));
    until_over(1);
    cr_expect(sides[1].lost == 0);
    close_sides();
}

Test(control, strangers_are_few_and_short, .timeout = LIMIT)
{
    enum { KNOCKS = DCOMMI_CTL_STRANGERS + 16 };
    int fds[KNOCKS];
    open_sides();
    dcommi_ctl *c = sides[1].context.control;
    for (int i = 0; i < KNOCKS; i++) {
        fds[i] = knock();
        if (i % 2 == 0) {
            cr_assert(write(fds[i], "GET / HTTP/1.1\r\n\r\n", 18) == 18);
        }
    }
    look();
    cr_expect(c->nstrangers == DCOMMI_CTL_STRANGERS, "%u", c->nstrangers);
    for (dcommi_ctl_line *l = c->strangers; l != NULL; l = l->next) {
        cr_expect(l->deadline <= dcommi_now() + DCOMMI_CTL_S);
        l->deadline = 0;
    }
    for (int i = 0; i < KNOCKS; i++) {
        look();
        close(fds[i]);
    }
    for (int i = 0; i < LOOKS && c->nstrangers > 0; i++) {
        look();
    }
    cr_expect(c->nstrangers == 0);
    close_sides();
}
