/* test_transport.c - the UCX transports between processes: messages of every length and verdict,
 * their order, mapped memory, the death of peers, closing. */
#define _GNU_SOURCE
#include "../include/dcomm/impl/ucx.h"
#include "procs.h"

#include <criterion/criterion.h>
#include <criterion/parameterized.h>
#include <dlfcn.h>
#include <sched.h>
#include <sys/mount.h>

enum { LOCAL = 0, NET = 1, SLOTS = 4096, BIG = 4 << 20 };

typedef struct head {
    int from, kind;
    unsigned seq, salt;
    size_t len;
} head;

enum { PLAIN = 0, HOLD = 1, DROP = 2, LATE = 1000000 };

typedef struct node node;

typedef struct slot {
    dcommi_op op;
    node *owner;
    int state; /* 0 free, 1 under way, 2 done */
    dcomm_status status;
    head h;
    void *buf;
} slot;

struct node {
    dcommi_transport *t;
    int rank, n;
    procs_shared *s;
    slot slots[SLOTS];
    int under_way, failed;
    int received[PROCS_MAX]; /* whole and right, held ones aside */
    int late;                /* of them, those of the second part: seq >= LATE */
    unsigned next_seq[PROCS_MAX];
    int held_n;
    struct {
        head h;
        void *desc;
        const void *data;
    } held[256];
    int lost[PROCS_MAX];
    bool ordered;
};

static unsigned char pattern[BIG + 65536];
static unsigned char outbox[BIG + 65536];

static void fill_pattern(void)
{
    unsigned x = 1;
    for (size_t i = 0; i < sizeof pattern; i++) {
        x = x * 1664525u + 1013904223u;
        pattern[i] = outbox[i] = (unsigned char)(x >> 24);
    }
}

static void check_payload(const head *h, const void *data)
{
    PROCS_CHECK(memcmp(data, pattern + h->salt % 65536, h->len) == 0, "message %u of %d, %zu bytes",
                h->seq, h->from, h->len);
}

static void count(node *me, const head *h)
{
    me->received[h->from]++;
    me->late += h->seq >= LATE;
}

static void on_done(dcommi_op *op, dcomm_status status)
{
    slot *s = (slot *)op;
    PROCS_CHECK(s->state == 1, "an op was done twice");
    s->state = 2;
    s->status = status;
    s->owner->under_way--;
    s->owner->failed += status < 0;
    if (s->buf != NULL) {
        if (status == DCOMM_OK) {
            check_payload(&s->h, s->buf);
            count(s->owner, &s->h);
        }
        free(s->buf);
        s->buf = NULL;
    }
}

static slot *new_slot(node *me)
{
    for (int i = 0; i < SLOTS; i++) {
        if (me->slots[i].state != 1) {
            me->slots[i] = (slot){.op = {.done = on_done}, .owner = me, .state = 1};
            me->under_way++;
            return &me->slots[i];
        }
    }
    PROCS_CHECK(false, "out of slots");
    return NULL;
}

static void settle(slot *s, dcomm_status status)
{
    if (status != DCOMM_IN_PROGRESS) {
        PROCS_CHECK(s->state == 1, "done was called although the call said %d", status);
        on_done(&s->op, status);
    }
}

static void fetch(node *me, const head *h, void *desc)
{
    slot *s = new_slot(me);
    s->h = *h;
    s->buf = malloc(h->len + 1);
    settle(s, me->t->call->fetch(me->t, desc, s->buf, h->len, &s->op));
}

static dcommi_verdict on_message(void *user, dcommi_transport *t, const dcommi_arrival *a)
{
    node *me = user;
    head h;
    PROCS_TRUE(t == me->t && a->header_len >= sizeof h && a->header_len <= DCOMMI_HEADER_MAX);
    memcpy(&h, a->header, sizeof h);
    PROCS_CHECK(h.len == a->len, "%zu bytes arrived of %zu", a->len, h.len);
    PROCS_CHECK((a->data == NULL) == (h.len > t->eager_max), "%zu bytes", h.len);
    if (me->ordered && h.len <= t->eager_max) {
        PROCS_CHECK(h.seq == me->next_seq[h.from], "%u came, not %u", h.seq, me->next_seq[h.from]);
        me->next_seq[h.from]++;
    }
    if (h.kind == HOLD && a->desc != NULL) {
        PROCS_TRUE(me->held_n < 256);
        me->held[me->held_n].h = h;
        me->held[me->held_n].desc = a->desc;
        me->held[me->held_n++].data = a->data;
        return DCOMMI_KEEP;
    }
    if (a->data != NULL) {
        check_payload(&h, a->data);
        count(me, &h);
        return DCOMMI_CONSUMED;
    }
    if (h.kind == DROP) {
        t->call->release(t, a->desc);
        count(me, &h);
        return DCOMMI_KEEP;
    }
    fetch(me, &h, a->desc);
    return DCOMMI_KEEP;
}

static void on_lost(void *user, dcommi_transport *t, int peer, const char *why)
{
    node *me = user;
    PROCS_TRUE(t == me->t && why != NULL && why[0] != '\0');
    me->lost[peer]++;
}

static node *join(int rank, int n, procs_shared *s, int kind)
{
    node *me = calloc(1, sizeof *me);
    dcommi_transport_handlers handlers = {me, on_message, on_lost};
    me->rank = rank;
    me->n = n;
    me->s = s;
    fill_pattern();
    dcomm_status status = kind == NET ? dcommi_ucx_open_net(&handlers, "lo", &me->t)
                                      : dcommi_ucx_open_local(&handlers, &me->t);
    PROCS_CHECK(status == DCOMM_OK, "%s", dcommi_message);
    procs_give(s, rank, me->t->address, me->t->address_len);
    for (int r = 0; r < n; r++) {
        size_t len;
        const void *address = procs_take(s, r, &len);
        PROCS_TRUE(me->t->call->add_peer(me->t, r, address, len) == DCOMM_OK);
    }
    return me;
}

static void work(node *me)
{
    if (me->t->call->progress(me->t) == 0) {
        sched_yield();
    }
}

/* Wait, with progress, until all (but skip) are here. */
static void meet(node *me, int step, int skip)
{
    procs_post(me->s, me->rank, step);
    while (!procs_all(me->s, me->n, step, skip)) {
        work(me);
    }
}

static dcomm_status post(node *me, int to, unsigned seq, size_t len, int kind, size_t header_len)
{
    unsigned char header[DCOMMI_HEADER_MAX] = {0};
    head h = {.from = me->rank, .kind = kind, .seq = seq, .salt = seq * 97u, .len = len};
    slot *s = new_slot(me);
    memcpy(header, &h, sizeof h);
    dcomm_status status =
        me->t->call->send(me->t, to, header, header_len, outbox + h.salt % 65536, len, &s->op);
    memset(header, 0xee, sizeof header);
    settle(s, status);
    return status;
}

static void leave_within(node *me, double timeout_s, bool force)
{
    double start = procs_now();
    me->t->call->close(me->t, timeout_s, force);
    PROCS_CHECK(procs_now() - start < timeout_s + 1, "closing took %.1f s", procs_now() - start);
    PROCS_CHECK(me->under_way == 0, "%d ops were never done", me->under_way);
    free(me);
}

static void leave(node *me, bool force)
{
    leave_within(me, 5, force);
}

static void expect(int n, double timeout_s, procs_fn fn, int kind, int victim)
{
    int ended[PROCS_MAX];
    procs_run(n, timeout_s, fn, &kind, ended);
    for (int r = 0; r < n; r++) {
        int want = r == victim ? 128 + SIGKILL : 0;
        cr_expect(ended[r] == want, "%s: process %d ended with %d, not %d",
                  kind == NET ? "net" : "local", r, ended[r], want);
    }
}

#define BOTH(fn, n, timeout_s)                              \
    Test(transport, fn##_local, .timeout = (timeout_s) + 5) \
    {                                                       \
        expect(n, timeout_s, fn, LOCAL, -1);                \
    }                                                       \
    Test(transport, fn##_net, .timeout = (timeout_s) + 5)   \
    {                                                       \
        expect(n, timeout_s, fn, NET, -1);                  \
    }

#define BOTH_KILLED(fn, n, timeout_s)                       \
    Test(transport, fn##_local, .timeout = (timeout_s) + 5) \
    {                                                       \
        expect(n, timeout_s, fn, LOCAL, (n)-1);             \
    }                                                       \
    Test(transport, fn##_net, .timeout = (timeout_s) + 5)   \
    {                                                       \
        expect(n, timeout_s, fn, NET, (n)-1);               \
    }

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
BOTH(every_size, 3, 40)

static int in_order(int rank, int n, procs_shared *s, void *arg)
{
    enum { MESSAGES = 5000 };
    node *me = join(rank, n, s, *(int *)arg);
    unsigned x = 12345;
    me->ordered = true;
    for (unsigned i = 0; i < MESSAGES; i++) {
        x = x * 1664525u + 1013904223u;
        size_t len = (x >> 28) < 4 ? (x >> 8) % (me->t->eager_max + 1) : (x >> 8) % 100;
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
BOTH(in_order, 2, 40)

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
    /* More traffic must not touch what is kept. */
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
BOTH(keep_and_release, 2, 40)

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
BOTH(many_outstanding, 4, 60)

/* ---- mapped memory ---- */

static int mapped(int rank, int n, procs_shared *s, void *arg)
{
    enum { LEN = 3 << 20 };
    node *me = join(rank, n, s, *(int *)arg);
    dcommi_region region;
    dcomm_status status = me->t->call->region_create(me->t, LEN, &region);
    if (*(int *)arg == NET) {
        PROCS_TRUE(status == DCOMM_ERR_UNSUPPORTED);
        leave(me, false);
        return 0;
    }
    PROCS_CHECK(status == DCOMM_OK, "%s", dcommi_message);
    PROCS_TRUE(region.len == LEN && region.key_len > 0 && region.key_len < 1000);
    memset(region.base, rank + 1, LEN);
    /* The blobs have served; reuse them for the keys. */
    meet(me, 1, -1);
    unsigned char blob[PROCS_BLOB];
    memcpy(blob, &region.base, sizeof region.base);
    memcpy(blob + 8, region.key, region.key_len);
    procs_give(s, rank, blob, 8 + region.key_len);
    meet(me, 2, -1);
    for (int round = 0; round < 2; round++) {
        size_t len;
        const unsigned char *theirs = procs_take(s, 1 - rank, &len);
        void *base, *ptr = NULL, *map = NULL;
        memcpy(&base, theirs, sizeof base);
        PROCS_CHECK(me->t->call->region_map(me->t, 1 - rank, theirs + 8, len - 8, base, &ptr,
                                            &map) == DCOMM_OK,
                    "%s", dcommi_message);
        if (round == 0) {
            PROCS_TRUE(((unsigned char *)ptr)[LEN - 1] == 2 - rank);
        }
        /* Count up in turns through the peer's word. */
        _Atomic long *mine = region.base, *other = ptr;
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
        me->t->call->region_unmap(me->t, map);
        meet(me, 6 + 4 * round, -1);
    }
    me->t->call->region_destroy(me->t, &region);
    leave(me, false);
    return 0;
}
BOTH(mapped, 2, 30)

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
    me->t->call->remove_peer(me->t, victim, true);
    still_works(me, victim, 3, 2);
    leave(me, false);
    return 0;
}
BOTH_KILLED(killed_idle, 3, 20)

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
                if (to != rank && me->under_way < 40) {
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
    me->t->call->remove_peer(me->t, victim, true);
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
BOTH_KILLED(killed_busy, 3, 12)

/* A stopped peer is not dead: its queue fills up, and the others must not wait for it for ever. */
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
    me->t->call->remove_peer(me->t, 1, true);
    for (double start = procs_now(); me->under_way > 0 && procs_now() - start < 2;) {
        work(me);
    }
    PROCS_CHECK(hanging > 0 && me->under_way == 0, "%d of %d ops hang", me->under_way, hanging);
    leave_within(me, 1, false);
    kill((pid_t)atomic_load(&s->words[1]), SIGCONT);
    return 0;
}
BOTH(stopped, 2, 20)

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
    leave_within(me, 1, false);
    kill((pid_t)atomic_load(&s->words[1]), SIGCONT);
    return 0;
}
BOTH(stopped_close, 2, 20)

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
BOTH_KILLED(closed_after_kill, 2, 20)

/* ---- closing ---- */

static int close_flushes(int rank, int n, procs_shared *s, void *arg)
{
    node *me = join(rank, n, s, *(int *)arg);
    if (rank == 0) {
        for (unsigned i = 0; i < 400; i++) {
            post(me, 1, i, i % 100 == 0 ? 300000 : 2000, PLAIN, sizeof(head));
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
BOTH(close_flushes, 2, 20)

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
BOTH(close_by_force, 2, 20)

static int remove_and_add(int rank, int n, procs_shared *s, void *arg)
{
    node *me = join(rank, n, s, *(int *)arg);
    size_t len;
    const void *address = procs_take(s, 1 - rank, &len);
    for (int round = 0; round < 6; round++) {
        int before = round * 5;
        for (unsigned i = 0; i < 5; i++) {
            PROCS_CHECK(post(me, 1 - rank, i, i == 4 ? 100000 : 10, PLAIN, sizeof(head)) >= 0, "%s",
                        dcommi_message);
        }
        while (me->received[1 - rank] < before + 5 || me->under_way > 0) {
            work(me);
        }
        meet(me, 3 * round + 1, -1);
        me->t->call->remove_peer(me->t, 1 - rank, round % 2 == 1);
        meet(me, 3 * round + 2, -1);
        for (double start = procs_now(); procs_now() - start < 0.05;) {
            work(me);
        }
        PROCS_TRUE(me->t->call->add_peer(me->t, 1 - rank, address, len) == DCOMM_OK);
        meet(me, 3 * round + 3, -1);
    }
    leave(me, false);
    return 0;
}
BOTH(remove_and_add, 2, 20)

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
        dcommi_transport_handlers handlers = {nodes[i], on_message, on_lost};
        dcomm_status status = i >= 2 ? dcommi_ucx_open_net(&handlers, "lo", &nodes[i]->t)
                                     : dcommi_ucx_open_local(&handlers, &nodes[i]->t);
        PROCS_CHECK(status == DCOMM_OK, "%s", dcommi_message);
        nodes[i]->rank = i % 2;
    }
    for (int i = 0; i < 4; i++) {
        dcommi_transport *other = nodes[i ^ 1]->t;
        PROCS_TRUE(nodes[i]->t->call->add_peer(nodes[i]->t, (i ^ 1) % 2, other->address,
                                               other->address_len) == DCOMM_OK);
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
BOTH(good_guest, 1, 20)

Test(transport, unknown_interface, .timeout = 10)
{
    dcommi_transport_handlers handlers = {0};
    dcommi_transport *t = NULL;
    cr_assert(dcommi_ucx_open_net(&handlers, "nosuch0", &t) == DCOMM_ERR_INVALID);
    cr_assert(strstr(dcommi_message, "nosuch0") != NULL && strstr(dcommi_message, "lo") != NULL);
    setenv("DCOMM_IFACE", "nosuch1", 1);
    cr_assert(dcommi_ucx_open_net(&handlers, NULL, &t) == DCOMM_ERR_INVALID);
    cr_assert(strstr(dcommi_message, "DCOMM_IFACE") != NULL);
}

static int small_shm(int rank, int n, procs_shared *s, void *arg)
{
    (void)n;
    (void)s;
    (void)arg;
    const char *size = rank == 0 ? "size=256k" : "size=40m";
    if (unshare(CLONE_NEWNS) != 0 || mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) != 0 ||
        mount("tmpfs", "/dev/shm", "tmpfs", 0, size) != 0) {
        return 0; /* only root can try this */
    }
    dcommi_transport_handlers handlers = {0};
    dcommi_transport *t = NULL;
    dcomm_status status = dcommi_ucx_open_local(&handlers, &t);
    if (rank == 0) {
        PROCS_CHECK(status == DCOMM_ERR_SYSTEM, "%d", status);
        PROCS_CHECK(strstr(dcommi_message, "/dev/shm") != NULL, "%s", dcommi_message);
        return 0;
    }
    dcommi_region region;
    PROCS_CHECK(status == DCOMM_OK, "%s", dcommi_message);
    PROCS_TRUE(t->call->region_create(t, 64 << 20, &region) == DCOMM_ERR_SYSTEM);
    PROCS_CHECK(strstr(dcommi_message, "/dev/shm") != NULL, "%s", dcommi_message);
    PROCS_CHECK(t->call->region_create(t, 8 << 20, &region) == DCOMM_OK, "%s", dcommi_message);
    memset(region.base, 1, 8 << 20);
    t->call->close(t, 1, false);
    return 0;
}

Test(transport, small_shared_memory, .timeout = 25)
{
    expect(2, 20, small_shm, LOCAL, -1);
}
