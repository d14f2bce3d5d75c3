/* test_transport_failure.c - the UCX transports when peers die, stop, or close first. */
#define _GNU_SOURCE
#include "transport_node.h"

#include <sys/socket.h>
#include <sys/stat.h>

/* ---- death ---- */

static void expect_loss(node *me, int victim, double within)
{
    double start = procs_now();
    while (me->lost[victim] == 0 && procs_now() - start < within) {
        work(me);
    }
    PROCS_CHECK(me->lost[victim] == 1, "not noticed within %.1f s", within);
}

static void still_works(node *me, int victim, int step, int round)
{
    int other = 1 - me->rank;
    for (unsigned i = 0; i < 100; i++) {
        PROCS_TRUE(post(me, other, LATE + i, i % 10 == 0 ? 300000 : 100, PLAIN, sizeof(head)) >= 0);
    }
    while (me->late < 100 * round) {
        work(me);
    }
    meet(me, step, victim);
    for (int r = 0; r < me->n; r++) {
        PROCS_CHECK(me->lost[r] == (r == victim), "%d lost %d times", r, me->lost[r]);
    }
}

static int killed_idle(int rank, int n, procs_shared *s, void *arg)
{
    int victim = n - 1;
    node *me = join(rank, n, s, *(int *)arg);
    for (int to = 0; to < n; to++) {
        PROCS_TRUE(post(me, to, 0, 100, PLAIN, sizeof(head)) >= 0);
    }
    for (int from = 0; from < n; from++) {
        while (me->received[from] < 1) {
            work(me);
        }
    }
    meet(me, 1, -1);
    if (rank == victim) {
        raise(SIGKILL);
    }
    expect_loss(me, victim, 3);
    PROCS_TRUE(post(me, victim, 0, 10, PLAIN, sizeof(head)) == DCOMM_ERR_PEER);
    still_works(me, victim, 2, 1);
    me->t->call->remove_peer(me->t, victim);
    still_works(me, victim, 3, 2);
    leave(me, false);
    return 0;
}
ALL_KILLED(killed_idle, 3, 20)

/* Nothing was ever sent, so UCX knows no endpoint. */
static int killed_unseen(int rank, int n, procs_shared *s, void *arg)
{
    node *me = join(rank, n, s, *(int *)arg);
    meet(me, 1, -1);
    if (rank == n - 1) {
        raise(SIGKILL);
    }
    expect_loss(me, n - 1, 3);
    still_works(me, n - 1, 2, 1);
    leave(me, false);
    return 0;
}

Test(transport, killed_unseen_local, .timeout = 20)
{
    expect(3, 15, killed_unseen, LOCAL, 2);
}

static int killed_busy(int rank, int n, procs_shared *s, void *arg)
{
    int victim = n - 1;
    node *me = join(rank, n, s, *(int *)arg);
    double start = procs_now();
    unsigned seq = 0;
    bool ready = false;
    if (rank == victim) {
        while (procs_now() - start < 10) {
            for (int to = 0; to < n; to++) {
                /* The other ranks' messages alone may keep 40 under way. */
                if (to != rank && (me->under_way < 40 || seq < 40)) {
                    seq++;
                    post(me, to, seq, seq % 3 ? 1 << 20 : 4000, PLAIN, sizeof(head));
                }
            }
            work(me);
            if (me->received[0] > 5 && me->received[1] > 5 && procs_all(s, n, 1, rank)) {
                raise(SIGKILL);
            }
        }
        return 1;
    }
    while (me->lost[victim] == 0 && procs_now() - start < 10) {
        if (me->under_way < 40) {
            seq++;
            post(me, victim, seq, seq % 3 ? 1 << 20 : 4000, PLAIN, sizeof(head));
        }
        if (!ready && me->received[victim] > 5) {
            ready = true;
            procs_post(s, rank, 1);
        }
        work(me);
    }
    PROCS_TRUE(me->lost[victim] == 1);
    me->t->call->remove_peer(me->t, victim);
    start = procs_now();
    while (me->under_way > 0 && procs_now() - start < 3) {
        work(me);
    }
    PROCS_CHECK(me->under_way == 0, "%d ops with the dead hang", me->under_way);
    meet(me, 2, victim);
    still_works(me, victim, 3, 1);
    leave(me, false);
    return 0;
}
ALL_KILLED(killed_busy, 3, 12)

/* One connection of several breaks: the peer is lost, on both sides, once. */
static int one_breaks(int rank, int n, procs_shared *s, void *arg)
{
    node *me = join(rank, n, s, *(int *)arg);
    int known[64], count = 0, last = -1;
    for (int round = 0; round < 2; round++) {
        /* The first opens one, the second the others. */
        for (int fd = 3; fd < 64 && round == 1; fd++) {
            struct stat st;
            known[fd] = fstat(fd, &st) == 0;
        }
        meet(me, 2 * round + 1, -1);
        post(me, 1 - rank, 0, round == 0 ? 10 : 1000000, PLAIN, sizeof(head));
        while (me->received[1 - rank] < round + 1 || me->under_way > 0) {
            work(me);
        }
        meet(me, 2 * round + 2, -1);
    }
    for (int fd = 3; fd < 64; fd++) {
        struct stat st;
        if (!known[fd] && fstat(fd, &st) == 0 && S_ISSOCK(st.st_mode)) {
            last = fd;
            count++;
        }
    }
    PROCS_CHECK(count == CONNECTIONS - 1, "%d new connections", count);
    double start = procs_now();
    if (rank == 0) {
        shutdown(last, SHUT_RDWR);
    }
    while (me->lost[1 - rank] == 0 && procs_now() - start < 3) {
        if (rank == 0) {
            post(me, 1, 1, 1000000, PLAIN, sizeof(head));
        }
        work(me);
    }
    PROCS_TRUE(me->lost[1 - rank] == 1);
    PROCS_TRUE(post(me, 1 - rank, 0, 10, PLAIN, sizeof(head)) == DCOMM_ERR_PEER);
    for (start = procs_now(); procs_now() - start < (test_full() ? 0.5 : 0.2);) {
        work(me);
    }
    PROCS_TRUE(me->lost[1 - rank] == 1 && me->under_way == 0);
    procs_post(s, rank, 5);
    while (!procs_all(s, n, 5, -1)) {
        work(me);
    }
    leave(me, false);
    return 0;
}
ONE(one_breaks, , SPREAD, 2, 20, -1)

/* A stopped peer is not dead: its queue fills up, and the others must not wait for it forever. */
static int stopped(int rank, int n, procs_shared *s, void *arg)
{
    node *me = join(rank, n, s, *(int *)arg);
    atomic_store(&s->words[rank], (long)getpid());
    for (unsigned i = 0; i < 3; i++) {
        post(me, 1 - rank, i, i == 2 ? 300000 : 100, HOLD, sizeof(head));
    }
    while (me->held_n + me->received[1 - rank] < 3) {
        work(me);
    }
    meet(me, 1, -1);
    if (rank == 1) {
        raise(SIGSTOP);
        leave(me, true);
        return 0;
    }
    for (unsigned i = 0; i < 600; i++) {
        post(me, 1, i, i % 10 == 0 ? 300000 : 8000, PLAIN, sizeof(head));
    }
    for (double start = procs_now(); procs_now() - start < 0.3;) {
        work(me);
    }
    int hanging = me->under_way;
    me->t->call->remove_peer(me->t, 1);
    for (double start = procs_now(); me->under_way > 0 && procs_now() - start < 2;) {
        work(me);
    }
    PROCS_CHECK(hanging > 0 && me->under_way == 0, "%d of %d ops hang", me->under_way, hanging);
    leave_within(me, 1, false);
    kill((pid_t)atomic_load(&s->words[1]), SIGCONT);
    return 0;
}
ALL(stopped, 2, 20)

static int stopped_close(int rank, int n, procs_shared *s, void *arg)
{
    node *me = join(rank, n, s, *(int *)arg);
    atomic_store(&s->words[rank], (long)getpid());
    post(me, 1 - rank, 0, 100, PLAIN, sizeof(head));
    while (me->received[1 - rank] < 1) {
        work(me);
    }
    meet(me, 1, -1);
    if (rank == 1) {
        raise(SIGSTOP);
        leave(me, true);
        return 0;
    }
    for (unsigned i = 0; i < 600; i++) {
        post(me, 1, i, i % 10 == 0 ? 300000 : 8000, PLAIN, sizeof(head));
    }
    leave_within(me, test_full() ? 1 : 0.3, false);
    kill((pid_t)atomic_load(&s->words[1]), SIGCONT);
    return 0;
}
ALL(stopped_close, 2, 20)

static int closed_after_kill(int rank, int n, procs_shared *s, void *arg)
{
    node *me = join(rank, n, s, *(int *)arg);
    for (unsigned i = 0; i < 8; i++) {
        post(me, 1 - rank, i, 1 << 20, HOLD, sizeof(head));
    }
    while (me->held_n < 8) {
        work(me);
    }
    meet(me, 1, -1);
    if (rank == 1) {
        raise(SIGKILL);
    }
    procs_nap();
    for (int i = 0; i < 4; i++) { /* the rest stays kept */
        fetch(me, &me->held[i].h, me->held[i].desc);
    }
    me->t->call->release(me->t, me->held[5].desc);
    for (unsigned i = 0; i < 8; i++) {
        post(me, 1 - rank, i, i % 2 ? 1 << 20 : 64, PLAIN, sizeof(head));
    }
    leave(me, true);
    return 0;
}
ALL_KILLED(closed_after_kill, 2, 20)

/* ---- closing ---- */

static int close_flushes(int rank, int n, procs_shared *s, void *arg)
{
    node *me = join(rank, n, s, *(int *)arg);
    if (rank == 0) {
        for (unsigned i = 0; i < 400; i++) {
            size_t len = i % 3 == 0 ? 2000 : 20000; /* some may not be overtaken */
            post(me, 1, i, i % 100 == 0 ? 300000 : len, PLAIN, sizeof(head));
        }
        leave(me, false);
        procs_post(s, 0, 1);
        return 0;
    }
    while (me->received[0] < 400) {
        work(me);
    }
    while (!procs_all(s, 1, 1, -1)) {
        work(me);
    }
    for (int i = 0; i < 1000; i++) {
        work(me);
    }
    leave(me, false);
    return 0;
}
ALL(close_flushes, 2, 20)

static int close_by_force(int rank, int n, procs_shared *s, void *arg)
{
    node *me = join(rank, n, s, *(int *)arg);
    for (unsigned i = 0; i < 50; i++) {
        post(me, 1 - rank, i, i % 3 ? 1 << 20 : 500, i % 2 ? HOLD : PLAIN, sizeof(head));
    }
    while (me->received[1 - rank] < 10 && me->lost[1 - rank] == 0) {
        work(me);
    }
    double start = procs_now();
    me->t->call->close(me->t, 5.0, true);
    PROCS_TRUE(procs_now() - start < 2.0);
    PROCS_CHECK(me->under_way == 0, "%d", me->under_way);
    free(me);
    return 0;
}
ALL(close_by_force, 2, 20)

static int remove_and_add(int rank, int n, procs_shared *s, void *arg)
{
    node *me = join(rank, n, s, *(int *)arg);
    size_t len;
    const void *address = procs_take(s, 1 - rank, &len);
    for (int round = 0; round < (test_full() ? 6 : 4); round++) {
        int before = round * 5;
        for (unsigned i = 0; i < 5; i++) {
            PROCS_CHECK(post(me, 1 - rank, i, i == 4 ? 100000 : 10, PLAIN, sizeof(head)) >= 0, "%s",
                        dcommi_message);
        }
        while (me->received[1 - rank] < before + 5 || me->under_way > 0) {
            work(me);
        }
        meet(me, 3 * round + 1, -1);
        me->t->call->remove_peer(me->t, 1 - rank);
        meet(me, 3 * round + 2, -1);
        for (double start = procs_now(); procs_now() - start < 0.05;) {
            work(me);
        }
        know(me, 1 - rank, address, len);
        meet(me, 3 * round + 3, -1);
    }
    leave(me, false);
    return 0;
}
ALL(remove_and_add, 2, 20)
