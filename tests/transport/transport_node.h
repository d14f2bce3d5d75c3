/* transport_node.h - a process of the transport's tests: opens a transport, knows its peers,
 * checks every message that arrives and that each op completes exactly once. */
#ifndef TRANSPORT_NODE_H
#define TRANSPORT_NODE_H

#include "dcomm/impl/transport/local/local.h"
#include "dcomm/impl/transport/ucx/ucx.h"
#include "procs.h"

#include <criterion/criterion.h>
#include <sched.h>

/* SPREAD: the network with several connections to each peer. */
enum { LOCAL = 0, NET = 1, SPREAD = 2, CONNECTIONS = 4, SLOTS = 4096, BIG = 4 << 20 };

typedef struct head {
    int from, kind;
    unsigned seq, salt;
    size_t len;
} head;

enum { PLAIN = 0, HOLD = 1, DROP = 2, PASS = 3, LATE = 1000000 };

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
    int rank, n, kind;
    procs_shared *s;
    slot slots[SLOTS];
    int under_way, failed;
    int received[PROCS_MAX]; /* complete and correct; held ones apart */
    int late;                /* those of the second part: seq >= LATE */
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

static inline void fill_pattern(void)
{
    unsigned x = 1;
    for (size_t i = 0; i < sizeof pattern; i++) {
        x = x * 1664525u + 1013904223u;
        pattern[i] = outbox[i] = (unsigned char)(x >> 24);
    }
}

static inline void check_payload(const head *h, const void *data)
{
    PROCS_CHECK(memcmp(data, pattern + h->salt % 65536, h->len) == 0, "message %u of %d, %zu bytes",
                h->seq, h->from, h->len);
}

static inline void count(node *me, const head *h)
{
    me->received[h->from]++;
    me->late += h->seq >= LATE;
}

static inline void on_done(dcommi_op *op, dcomm_status status)
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

static inline slot *new_slot(node *me)
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

static inline void settle(slot *s, dcomm_status status)
{
    if (status != DCOMM_IN_PROGRESS) {
        PROCS_CHECK(s->state == 1, "done was called although the call said %d", status);
        on_done(&s->op, status);
    }
}

static inline void fetch(node *me, const head *h, void *desc)
{
    slot *s = new_slot(me);
    s->h = *h;
    s->buf = malloc(h->len + 1);
    settle(s, me->t->call->fetch(me->t, desc, s->buf, h->len, &s->op));
}

static inline dcomm_status post(node *me, int to, unsigned seq, size_t len, int kind,
                                size_t header_len)
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

static inline dcommi_verdict on_message(void *user, dcommi_transport *t, const dcommi_arrival *a)
{
    node *me = user;
    head h;
    PROCS_TRUE(t == me->t && a->header_len >= sizeof h && a->header_len <= DCOMMI_HEADER_MAX);
    memcpy(&h, a->header, sizeof h);
    PROCS_CHECK(h.len == a->len, "%zu bytes arrived of %zu", a->len, h.len);
    PROCS_CHECK((a->data == NULL) == (h.len > t->eager_max), "%zu bytes", h.len);
    if (me->ordered && h.len <= t->ordered_max) {
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
        if (h.kind == PASS) {
            PROCS_TRUE(post(me, (me->rank + 1) % me->n, h.seq, h.len, PLAIN, sizeof h) >= 0);
        }
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

static inline void on_corrupt(void *user, dcommi_transport *t, const dcommi_arrival *arrival)
{
    (void)user, (void)t, (void)arrival;
    PROCS_CHECK(false, "%s", "what peers send here is whole");
}

static inline void on_lost(void *user, dcommi_transport *t, int peer, const char *why,
                           dcommi_loss how)
{
    node *me = user;
    PROCS_TRUE(t == me->t && why != NULL && why[0] != '\0');
    PROCS_TRUE(how == (me->kind == LOCAL ? DCOMMI_LOSS_PROVEN : DCOMMI_LOSS_SILENT));
    me->lost[peer]++;
}

static inline void know(node *me, int peer, const void *address, size_t len)
{
    bool first = true;
    while (me->kind == LOCAL && me->t->call->greet(me->t, address, len, first) != DCOMM_OK) {
        PROCS_TRUE(me->t->call->listen(me->t) == DCOMM_OK);
        first = false;
    }
    PROCS_TRUE(me->t->call->add_peer(me->t, peer, address, len) == DCOMM_OK);
    if (me->kind == SPREAD) {
        me->t->call->connect(me->t, peer, CONNECTIONS);
    }
}

static inline node *join(int rank, int n, procs_shared *s, int kind)
{
    node *me = calloc(1, sizeof *me);
    dcommi_transport_handlers handlers = {me, on_message, on_lost, on_corrupt};
    me->rank = rank;
    me->n = n;
    me->kind = kind;
    me->s = s;
    fill_pattern();
    dcomm_status status = kind != LOCAL ? dcommi_net_open(&handlers, "lo", &me->t)
                                        : dcommi_local_open(&handlers, &me->t);
    PROCS_CHECK(status == DCOMM_OK, "%s", dcommi_message);
    procs_give(s, rank, me->t->address, me->t->address_len);
    for (int r = 0; r < n; r++) {
        size_t len;
        const void *address = procs_take(s, r, &len);
        know(me, r, address, len);
    }
    return me;
}

static inline void work(node *me)
{
    if (me->t->call->progress(me->t) == 0) {
        if (me->t->call->watch != NULL) {
            me->t->call->watch(me->t);
        }
        sched_yield();
    }
}

/* Wait, with progress, until all (but skip) are here. */
static inline void meet(node *me, int step, int skip)
{
    procs_post(me->s, me->rank, step);
    while (!procs_all(me->s, me->n, step, skip)) {
        work(me);
    }
}

static inline void leave_within(node *me, double timeout_s, bool force)
{
    double start = procs_now();
    me->t->call->close(me->t, timeout_s, force);
    PROCS_CHECK(procs_now() - start < timeout_s + 1, "closing took %.1f s", procs_now() - start);
    PROCS_CHECK(me->under_way == 0, "%d ops were never done", me->under_way);
    free(me);
}

static inline void leave(node *me, bool force)
{
    leave_within(me, 5, force);
}

static inline void expect(int n, double timeout_s, procs_fn fn, int kind, int victim)
{
    int ended[PROCS_MAX];
    static const char *const names[] = {"local", "net", "spread"};
    procs_run(n, timeout_s, fn, &kind, ended);
    for (int r = 0; r < n; r++) {
        int want = r == victim ? 128 + SIGKILL : 0;
        cr_expect(ended[r] == want, "%s: process %d ended with %d, not %d", names[kind], r,
                  ended[r], want);
    }
}

#define ONE(fn, name, kind, n, timeout_s, victim)         \
    Test(transport, fn##name, .timeout = (timeout_s) + 5) \
    {                                                     \
        expect(n, timeout_s, fn, kind, victim);           \
    }
#define ALL(fn, n, timeout_s)                \
    ONE(fn, _local, LOCAL, n, timeout_s, -1) \
    ONE(fn, _net, NET, n, timeout_s, -1)     \
    ONE(fn, _spread, SPREAD, n, timeout_s, -1)
/* The last process is killed. */
#define ALL_KILLED(fn, n, timeout_s)            \
    ONE(fn, _local, LOCAL, n, timeout_s, (n)-1) \
    ONE(fn, _net, NET, n, timeout_s, (n)-1)     \
    ONE(fn, _spread, SPREAD, n, timeout_s, (n)-1)

#endif
