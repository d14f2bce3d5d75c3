/* test_transport.c - the UCX transports between processes: messages of every length and verdict,
 * their order, mapped memory, and the process around them. */
#define _GNU_SOURCE
#include "transport_node.h"

#include <dirent.h>
#include <dlfcn.h>
#include <sys/mount.h>

/* ---- messages ---- */

static int every_size(int rank, int n, procs_shared *s, void *arg)
{
    node *me = join(rank, n, s, *(int *)arg);
    size_t eager = me->t->eager_max;
    const size_t sizes[] = {0,         1,     7,     64,    1000,    eager - 1,     eager,
                            eager + 1, 65535, 65536, 65537, 1 << 20, (1 << 20) + 3, BIG};
    const int n_sizes = sizeof sizes / sizeof *sizes;
    for (int i = 0; i < n_sizes; i++) {
        for (int to = 0; to < n; to++) { /* itself as well */
            size_t header_len = i % 2 ? DCOMMI_HEADER_MAX : sizeof(head);
            PROCS_CHECK(post(me, to, (unsigned)i, sizes[i], PLAIN, header_len) >= 0, "%s",
                        dcommi_message);
        }
    }
    for (int from = 0; from < n; from++) {
        while (me->received[from] < n_sizes) {
            work(me);
        }
    }
    while (me->under_way > 0) {
        work(me);
    }
    meet(me, 1, -1);
    PROCS_TRUE(me->failed == 0);
    leave(me, false);
    return 0;
}
ALL(every_size, 3, 40)

static int in_order(int rank, int n, procs_shared *s, void *arg)
{
    enum { MESSAGES = 5000 };
    node *me = join(rank, n, s, *(int *)arg);
    unsigned x = 12345;
    me->ordered = true;
    for (unsigned i = 0; i < MESSAGES; i++) {
        x = x * 1664525u + 1013904223u;
        size_t len = (x >> 28) < 4 ? (x >> 8) % (me->t->ordered_max + 1) : (x >> 8) % 100;
        while (me->under_way > 2000) {
            work(me);
        }
        PROCS_TRUE(post(me, 1 - rank, i, len, PLAIN, sizeof(head)) >= 0);
        if (i % 500 == 0) {
            PROCS_TRUE(post(me, 1 - rank, i, 100000, PLAIN, sizeof(head)) >= 0);
        }
    }
    while (me->received[1 - rank] < MESSAGES + MESSAGES / 500 || me->under_way > 0) {
        work(me);
    }
    meet(me, 1, -1);
    leave(me, false);
    return 0;
}
ALL(in_order, 2, 40)

/* A message is passed on from within progress, as the first one to its receiver. */
static int passed_on(int rank, int n, procs_shared *s, void *arg)
{
    node *me = join(rank, n, s, *(int *)arg);
    const int before = (rank + n - 1) % n;
    if (rank == 0) {
        PROCS_TRUE(post(me, 1, 7, 100, PASS, sizeof(head)) >= 0);
    }
    const double until = procs_now() + 10;
    while (rank > 0 && me->received[before] == 0) {
        PROCS_CHECK(procs_now() < until, "nothing came from %d", before);
        work(me);
    }
    meet(me, 1, -1);
    leave(me, false);
    return 0;
}
ALL(passed_on, 3, 40)

static int keep_and_release(int rank, int n, procs_shared *s, void *arg)
{
    node *me = join(rank, n, s, *(int *)arg);
    size_t eager = me->t->eager_max;
    const size_t sizes[] = {0, 8, 3000, eager, eager + 1, 300000};
    int copied = 0;
    for (unsigned i = 0; i < 48; i++) {
        PROCS_TRUE(post(me, 1 - rank, i, sizes[i % 6], i % 7 == 6 ? DROP : HOLD, sizeof(head)) >=
                   0);
    }
    while (me->held_n + me->received[1 - rank] - me->late < 48) {
        work(me);
    }
    copied = 48 - me->held_n;
    /* More traffic must not touch kept messages. */
    for (unsigned i = 0; i < 300; i++) {
        PROCS_TRUE(post(me, 1 - rank, LATE + i, eager, PLAIN, sizeof(head)) >= 0);
    }
    while (me->late < 300) {
        work(me);
    }
    int fetched = 0;
    for (int i = me->held_n - 1; i >= 0; i--) {
        if (me->held[i].data != NULL) {
            check_payload(&me->held[i].h, me->held[i].data);
            me->t->call->release(me->t, me->held[i].desc);
        } else if (i % 3 == 0) {
            me->t->call->release(me->t, me->held[i].desc);
        } else {
            fetch(me, &me->held[i].h, me->held[i].desc);
            fetched++;
        }
    }
    while (me->received[1 - rank] < copied + 300 + fetched || me->under_way > 0) {
        work(me);
    }
    meet(me, 1, -1);
    PROCS_TRUE(me->failed == 0 && fetched > 0);
    leave(me, false);
    return 0;
}
ALL(keep_and_release, 2, 40)

/* Send messages of all lengths at once, in both directions, while the number of connections
 * changes. */
static int mixed(int rank, int n, procs_shared *s, void *arg)
{
    enum { MESSAGES = 1500 };
    node *me = join(rank, n, s, *(int *)arg);
    unsigned x = 777u + (unsigned)rank, seq = 0;
    int others = 0;
    me->ordered = true;
    for (unsigned i = 0; i < MESSAGES; i++) {
        x = x * 1664525u + 1013904223u;
        unsigned kind = x >> 29;
        size_t most = kind < 4 ? me->t->ordered_max : kind < 7 ? me->t->eager_max : 1000000;
        size_t len = (x >> 4) % (most + 1);
        bool in_order = len <= me->t->ordered_max;
        others += !in_order;
        while (me->under_way > 60) {
            work(me);
        }
        PROCS_TRUE(post(me, 1 - rank, in_order ? seq++ : i, len, PLAIN, sizeof(head)) >= 0);
        if (i % 200 == 0 && me->kind == SPREAD) {
            me->t->call->connect(me->t, 1 - rank, 1 + (int)(i / 200) % (CONNECTIONS + 2));
        }
    }
    while (me->received[1 - rank] < MESSAGES || me->under_way > 0) {
        work(me);
    }
    PROCS_TRUE(others > 100 && me->next_seq[1 - rank] > 300 && me->failed == 0);
    meet(me, 1, -1);
    leave(me, false);
    return 0;
}
ALL(mixed, 2, 40)

static int sockets(void)
{
    int count = 0;
    char path[300], to[32];
    DIR *dir = opendir("/proc/self/fd");
    PROCS_TRUE(dir != NULL);
    for (struct dirent *e; (e = readdir(dir)) != NULL;) {
        snprintf(path, sizeof path, "/proc/self/fd/%s", e->d_name);
        ssize_t len = readlink(path, to, sizeof to);
        count += len > 7 && memcmp(to, "socket:", 7) == 0;
    }
    closedir(dir);
    return count;
}

/* Connections are opened when a long message is sent, one each, shared by both directions. They
 * end with the peer. */
static int opens_connections(int rank, int n, procs_shared *s, void *arg)
{
    node *me = join(rank, n, s, *(int *)arg);
    int got = 0, before = 0;
    for (int round = 0; round < 4; round++) {
        post(me, 1 - rank, 0, round < 1 ? 100 : 1000000, PLAIN, sizeof(head));
        got++;
        while (me->received[1 - rank] < got || me->under_way > 0) {
            work(me);
        }
        meet(me, 2 * round + 1, -1);
        before = round == 0 ? sockets() : before;
        int more = sockets() - before;
        PROCS_CHECK(more == (round > 0 ? CONNECTIONS - 1 : 0), "%d more in round %d", more, round);
        meet(me, 2 * round + 2, -1);
    }
    me->t->call->remove_peer(me->t, 1 - rank);
    for (double start = procs_now(); procs_now() - start < 2 && sockets() >= before;) {
        work(me);
    }
    PROCS_CHECK(sockets() < before, "%d sockets are left of %d", sockets(), before);
    meet(me, 9, -1);
    leave(me, false);
    return 0;
}
ONE(opens_connections, , SPREAD, 2, 20, -1)

static int many_outstanding(int rank, int n, procs_shared *s, void *arg)
{
    node *me = join(rank, n, s, *(int *)arg);
    int each = 60;
    for (int i = 0; i < each; i++) {
        for (int to = 0; to < n; to++) {
            if (to != rank) {
                PROCS_TRUE(post(me, to, (unsigned)i, 200000 + (size_t)i, PLAIN, sizeof(head)) >= 0);
            }
        }
    }
    for (int from = 0; from < n; from++) {
        while (from != rank && me->received[from] < each) {
            work(me);
        }
    }
    while (me->under_way > 0) {
        work(me);
    }
    meet(me, 1, -1);
    PROCS_TRUE(me->failed == 0);
    leave(me, false);
    return 0;
}
ALL(many_outstanding, 4, 60)

/* ---- mapped memory ---- */

static int mapped(int rank, int n, procs_shared *s, void *arg)
{
    enum { LEN = 3 << 20 };
    node *me = join(rank, n, s, *(int *)arg);
    int own = dcommi_share_file(LEN), theirs = -1;
    unsigned char *base = dcommi_share_map_huge(own, LEN, PROT_READ | PROT_WRITE), *ptr = NULL;
    PROCS_TRUE(own >= 0 && base != NULL && (uintptr_t)base % DCOMMI_HUGE_PAGE == 0);
    memset(base, rank + 1, LEN);
    meet(me, 1, -1);
    PROCS_TRUE(me->t->call->region_take(me->t, 1 - rank, 1, LEN, &theirs) == DCOMM_ERR_PEER);
    for (int round = 0; round < 2; round++) {
        uint32_t number = (uint32_t)round + 7;
        PROCS_TRUE(me->t->call->region_give(me->t, 1 - rank, number, own) == DCOMM_OK);
        meet(me, 2 + 4 * round, -1);
        PROCS_CHECK(me->t->call->region_take(me->t, 1 - rank, number, LEN, &theirs) == DCOMM_OK,
                    "%s", dcommi_message);
        ptr = dcommi_share_map(theirs, 0, LEN);
        PROCS_TRUE(ptr != NULL && close(theirs) == 0);
        if (round == 0) {
            PROCS_TRUE(ptr[LEN - 1] == 2 - rank);
        }
        /* Count up in turns through the peer's word. */
        _Atomic long *mine = (void *)base, *other = (void *)ptr;
        meet(me, 3 + 4 * round, -1);
        atomic_store(mine, 0);
        meet(me, 4 + 4 * round, -1);
        for (long i = 1; i <= 1000; i++) {
            atomic_store(other, i);
            while (atomic_load(mine) < i) {
                sched_yield();
            }
        }
        meet(me, 5 + 4 * round, -1);
        munmap(ptr, LEN);
    }
    dcommi_huge_release(base, LEN);
    close(own);
    leave(me, false);
    return 0;
}
ONE(mapped, , LOCAL, 2, 30, -1)

/* Take memory only if it has the promised length and nobody can cut it, and only from processes
 * that know our address; close the rest at once. */
static int impostors(int rank, int n, procs_shared *s, void *arg)
{
    node *me = join(rank, n, s, *(int *)arg);
    void *common = NULL;
    PROCS_TRUE(me->t->call->common(me->t, 0, &common) == DCOMM_OK && common != NULL);
    int before = sockets(), fd = -1;
    dcommi_local *u = (dcommi_local *)me->t;
    dcommi_local_peer *p = dcommi_local_peer_at(u, 0);
    int shorter = dcommi_share_file(4096), loose = (int)syscall(SYS_memfd_create, "loose", 1u);
    PROCS_TRUE(shorter >= 0 && loose >= 0 && ftruncate(loose, 8192) == 0);
    PROCS_TRUE(ftruncate(shorter, 100) != 0 && ftruncate(shorter, 8192) != 0);
    PROCS_TRUE(me->t->call->region_give(me->t, 0, 1, shorter) == DCOMM_OK);
    PROCS_TRUE(me->t->call->region_give(me->t, 0, 2, loose) == DCOMM_OK);
    PROCS_TRUE(me->t->call->region_take(me->t, 0, 1, 8192, &fd) == DCOMM_ERR_CORRUPT && fd < 0);
    PROCS_TRUE(me->t->call->region_take(me->t, 0, 2, 8192, &fd) == DCOMM_ERR_CORRUPT && fd < 0);
    dcommi_local_card card = p->card;
    card.hand.secret[3] ^= 1;
    PROCS_TRUE(me->t->call->greet(me->t, &card, sizeof card, true) == DCOMM_OK);
    PROCS_TRUE(me->t->call->listen(me->t) == DCOMM_OK);
    PROCS_TRUE(u->hands.handed == NULL && sockets() == before);
    /* When its queue is full, greeting must wait until the receiver looks. */
    dcomm_status status = DCOMM_OK;
    for (int i = 0; i < 100000 && status == DCOMM_OK; i++) {
        status = me->t->call->greet(me->t, &card, sizeof card, true);
    }
    PROCS_TRUE(status == DCOMM_IN_PROGRESS && me->t->call->listen(me->t) == DCOMM_OK);
    PROCS_TRUE(me->t->call->greet(me->t, &card, sizeof card, true) == DCOMM_OK);
    PROCS_TRUE(me->t->call->listen(me->t) == DCOMM_OK && u->hands.handed == NULL);
    card.hand.id ^= 1; /* nobody listens there */
    PROCS_TRUE(me->t->call->greet(me->t, &card, sizeof card, true) == DCOMM_ERR_UNSUPPORTED);
    /* Wait without blocking for a process that connects and says nothing yet. */
    struct sockaddr_un name;
    socklen_t len = dcommi_hand_name(u->card.hand.id, &name);
    int slow = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    PROCS_TRUE(connect(slow, (struct sockaddr *)&name, len) == 0);
    PROCS_TRUE(me->t->call->listen(me->t) == DCOMM_OK && u->hands.handed != NULL);
    close(slow);
    PROCS_TRUE(me->t->call->listen(me->t) == DCOMM_OK && u->hands.handed == NULL);
    PROCS_TRUE(sockets() == before);
    close(shorter);
    close(loose);
    leave(me, false);
    return 0;
}
ONE(impostors, , LOCAL, 1, 20, -1)

/* ---- doors ---- */

static void age(const char *path)
{
    struct timespec old[2] = {{.tv_sec = time(NULL) - DCOMMI_DOOR_OLD - 1}};
    old[1] = old[0];
    PROCS_TRUE(utimensat(AT_FDCWD, path, old, AT_SYMLINK_NOFOLLOW) == 0);
}

/* Opening a door removes a door that a killed process has left; others stay. */
static int swept(int rank, int n, procs_shared *s, void *arg)
{
    (void)rank, (void)n, (void)s, (void)arg;
    enum { DEAD = 0, YOUNG, ALIVE, KINDS };
    char path[KINDS][64];
    uint64_t id[KINDS];
    int alive = -1;
    for (int kind = 0; kind < KINDS; kind++) {
        id[kind] = dcommi_transport_id();
        dcommi_door_path(id[kind], path[kind], sizeof path[kind]);
        int door = dcommi_door_open(id[kind]);
        PROCS_CHECK(door >= 0, "%s: %s", path[kind], strerror(errno));
        if (kind == ALIVE) {
            alive = door;
        } else { /* as if by the end of the process */
            close(door);
        }
    }
    age(path[DEAD]);
    age(path[ALIVE]);
    uint64_t mine = dcommi_transport_id();
    int door = dcommi_door_open(mine), file = dcommi_door_find(mine, 0);
    PROCS_TRUE(door >= 0 && file >= 0);
    PROCS_TRUE(access(path[DEAD], F_OK) != 0 && access(path[YOUNG], F_OK) == 0 &&
               access(path[ALIVE], F_OK) == 0);
    dcommi_door_hide(id[YOUNG]);
    dcommi_door_hide(id[ALIVE]);
    dcommi_door_hide(mine);
    PROCS_TRUE(dcommi_door_find(mine, 0) < 0 && dcommi_door_find(mine, getpid()) < 0);
    /* A process that has found the door gets in although it is hidden. */
    struct sockaddr_un address;
    socklen_t len = dcommi_door_behind(file, &address);
    int out = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    PROCS_TRUE(connect(out, (struct sockaddr *)&address, len) == 0);
    int in = accept(door, NULL, NULL);
    PROCS_TRUE(in >= 0);
    const int open[] = {alive, door, file, out, in};
    for (size_t i = 0; i < sizeof open / sizeof *open; i++) {
        close(open[i]);
    }
    return procs_leaks();
}
ONE(swept, , LOCAL, 1, 20, -1)

/* Two creations at once: the door is open as long as one of them greets. A process that has found
 * it goes on handing over. */
static int open_for_all(int rank, int n, procs_shared *s, void *arg)
{
    node *me = join(rank, n, s, *(int *)arg);
    dcommi_local *u = (dcommi_local *)me->t;
    dcommi_local_card card = u->card;
    char path[64];
    card.hand.net ^= 1; /* as if it were outside */
    dcommi_door_path(card.hand.id, path, sizeof path);
    me->t->call->greeting(me->t, true);
    PROCS_TRUE(access(path, F_OK) != 0);
    PROCS_TRUE(me->t->call->greet(me->t, &card, sizeof card, true) == DCOMM_IN_PROGRESS);
    me->t->call->greeting(me->t, true);
    me->t->call->greeting(me->t, false);
    PROCS_TRUE(access(path, F_OK) == 0);
    dcomm_status status = me->t->call->greet(me->t, &card, sizeof card, false);
    PROCS_CHECK(status == DCOMM_OK, "%s", dcommi_message);
    me->t->call->greeting(me->t, false);
    PROCS_TRUE(access(path, F_OK) != 0);
    PROCS_TRUE(me->t->call->greet(me->t, &card, sizeof card, false) == DCOMM_OK);
    PROCS_TRUE(me->t->call->listen(me->t) == DCOMM_OK && u->hands.handed != NULL);
    card.hand.id ^= 1; /* nobody has such a door */
    status = me->t->call->greet(me->t, &card, sizeof card, false);
    PROCS_TRUE(status == DCOMM_ERR_UNSUPPORTED && strstr(dcommi_message, "/dev/shm") != NULL);
    leave(me, false);
    return procs_leaks();
}
ONE(open_for_all, , LOCAL, 1, 20, -1)

/* ---- the process around it ---- */

static int several_in_one(int rank, int n, procs_shared *s, void *arg)
{
    (void)arg;
    (void)s;
    (void)n;
    node *nodes[4];
    fill_pattern();
    for (int i = 0; i < 4; i++) {
        nodes[i] = calloc(1, sizeof **nodes);
        dcommi_transport_handlers handlers = {nodes[i], on_message, on_lost, on_corrupt};
        dcomm_status status = i >= 2 ? dcommi_net_open(&handlers, "lo", &nodes[i]->t)
                                     : dcommi_local_open(&handlers, &nodes[i]->t);
        PROCS_CHECK(status == DCOMM_OK, "%s", dcommi_message);
        nodes[i]->rank = i % 2;
    }
    for (int i = 0; i < 4; i++) {
        dcommi_transport *other = nodes[i ^ 1]->t;
        nodes[i]->kind = i >= 2 ? NET : LOCAL;
        know(nodes[i], (i ^ 1) % 2, other->address, other->address_len);
        for (unsigned k = 0; k < 20; k++) {
            PROCS_TRUE(post(nodes[i], (i ^ 1) % 2, k, k * 10000, PLAIN, sizeof(head)) >= 0);
        }
    }
    for (int i = 0; i < 4; i++) {
        while (nodes[i]->received[(i ^ 1) % 2] < 20 || nodes[i]->under_way > 0) {
            for (int k = 0; k < 4; k++) {
                work(nodes[k]);
            }
        }
    }
    for (int i = 0; i < 4; i++) {
        leave_within(nodes[i], 0.5, rank > 0); /* the others stand still meanwhile */
    }
    return 0;
}

Test(transport, several_in_one_process, .timeout = 25)
{
    expect(2, 20, several_in_one, LOCAL, -1);
}

static int good_guest(int rank, int n, procs_shared *s, void *arg)
{
    int ends[2];
    struct sigaction action;
    PROCS_TRUE(pipe(ends) == 0);
    fflush(NULL);
    int kept = dup(STDOUT_FILENO);
    dup2(ends[1], STDOUT_FILENO);
    close(ends[1]);
    setenv("UCX_NO_SUCH_OPTION", "1", 1); /* UCX warns of it */
    setenv("UCX_TLS", "tcp", 1);          /* ours stands */
    setenv("UCX_NET_DEVICES", "none", 1);
    node *me = join(rank, n, s, *(int *)arg);
    sigaction(SIGSEGV, NULL, &action);
    Dl_info catcher = {0};
    if (dladdr((void *)(uintptr_t)action.sa_handler, &catcher) != 0 && catcher.dli_fname != NULL) {
        PROCS_CHECK(strstr(catcher.dli_fname, "libuc") == NULL, "UCX catches SIGSEGV");
    }
    leave(me, false);
    fflush(NULL);
    dup2(kept, STDOUT_FILENO);
    char byte;
    PROCS_CHECK(read(ends[0], &byte, 1) == 0, "something was written to stdout");
    return 0;
}
ONE(good_guest, _net, NET, 1, 20, -1)
ONE(good_guest, _spread, SPREAD, 1, 20, -1)

Test(transport, unknown_interface, .timeout = 10)
{
    dcommi_transport_handlers handlers = {0};
    dcommi_transport *t = NULL;
    cr_assert(dcommi_net_open(&handlers, "nosuch0", &t) == DCOMM_ERR_INVALID);
    cr_assert(strstr(dcommi_message, "nosuch0") != NULL && strstr(dcommi_message, "lo") != NULL);
    setenv("DCOMM_IFACE", "nosuch1", 1);
    cr_assert(dcommi_net_open(&handlers, NULL, &t) == DCOMM_ERR_INVALID);
    cr_assert(strstr(dcommi_message, "DCOMM_IFACE") != NULL);
}

/* Neither a full /dev/shm nor a missing one matters. */
static int small_shm(int rank, int n, procs_shared *s, void *arg)
{
    const char *size = rank == 0 ? "size=4k" : "size=40m";
    if (unshare(CLONE_NEWNS) != 0 || mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) != 0 ||
        mount("tmpfs", "/dev/shm", "tmpfs", 0, size) != 0) {
        size = NULL; /* only root can try this */
    }
    return every_size(rank, n, s, arg);
}

Test(transport, small_shared_memory, .timeout = 45)
{
    expect(2, 40, small_shm, LOCAL, -1);
}
