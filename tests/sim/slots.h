/* slots.h - a case: short calls of one communicator after another, over broadcast slots and, where
 * these are taken, over the fifos. Few sets are free, so communicators take over the sets of those
 * before. Some are given up before a call, and some processes die. Every message must be that of
 * its call and whole. */
#ifndef SIM_SLOTS_H
#define SIM_SLOTS_H

#include "host.h"

enum { SLOTS_RANKS = HOST_PROCESSES, SLOTS_COMMS = 24, SLOTS_CALLS = 12, SLOTS_FIRST = 100 };

typedef struct slots_process {
    dcomm_context context;
    dcommi_remote peers[SLOTS_RANKS];
    dcomm_comm comm;
    dcommi_member members[SLOTS_RANKS];
} slots_process;

static slots_process slots[SLOTS_RANKS];
static unsigned char slots_bytes[SLOTS_RANKS][SLOTS_RANKS][DCOMMI_BCAST_PAYLOAD];
static struct {
    int comms, shift;       /* communicators, and how far ranks move from one to the next */
    int calls[SLOTS_COMMS]; /* -1: it is given up before a call */
    int root[SLOTS_COMMS];  /* the rank that sends; -1: all */
    uint32_t len[SLOTS_CALLS];
} slots_case_of;

static unsigned char slots_byte(uint64_t comm, uint64_t call, int rank, size_t k)
{
    return (unsigned char)(comm * 41 + call * 67 + (uint64_t)rank * 13 + k * 3 + k / 256);
}

/* Complain if a process that lives polls a set for a communicator other than `but`. */
static void slots_is_free(const dcommi_bcast *set, uint64_t but, const char *what)
{
    for (int q = 0; q < SLOTS_RANKS; q++) {
        for (int r = 0; r < SLOTS_RANKS; r++) {
            if (slots[q].members[r].bcast == set && slots[q].comm.id != but && !shared_over(q)) {
                world_trouble("a set %s while %d polls it for communicator %" PRIu64, what, q,
                              slots[q].comm.id);
            }
        }
    }
}

/* Return true if a set shows that no communicator has it. */
static MEMORY_MODEL bool slots_is_left(const dcommi_bcast *set)
{
    uint64_t comm = 0;
    __real_memcpy(&comm, (const void *)&set->comm, sizeof comm);
    return comm == 0;
}

static void slots_make(int me, int number)
{
    slots_process *s = &slots[me];
    const int n = SLOTS_RANKS;
    memset(&s->comm, 0, sizeof s->comm);
    memset(s->members, 0, sizeof s->members);
    s->comm.context = &s->context;
    s->comm.members = s->members;
    s->comm.id = (uint64_t)(SLOTS_FIRST + number);
    s->comm.size = n;
    s->comm.rank = (me + number * slots_case_of.shift) % n;
    for (int r = 0; r < n; r++) {
        const int process = (r + n * SLOTS_COMMS - number * slots_case_of.shift) % n;
        s->members[r].peer = process == me ? -1 : process;
    }
    dcommi_bcast_open(&s->comm);
    if (s->comm.bcast != NULL) {
        slots_is_free(s->comm.bcast->set, s->comm.id, "is taken over");
    }
}

/* Say goodbye to all, and wait for their goodbyes. Return false if somebody has died. */
static bool slots_goodbye(slots_process *s)
{
    dcommi_transport *t = s->context.local;
    dcommi_header h = {.type = DCOMMI_MSG_GOODBYE, .comm = s->comm.id};
    for (int r = 0; r < s->comm.size; r++) {
        if (s->members[r].peer >= 0) {
            t->call->send(t, s->members[r].peer, &h, sizeof h, NULL, 0, NULL);
        }
    }
    for (int r = 0; r < s->comm.size; r++) {
        dcommi_member *m = &s->members[r];
        const dcommi_local_peer *p = dcommi_local_peer_at((dcommi_local *)t, m->peer);
        while (p != NULL && !m->gone) {
            dcommi_arrival a;
            const bool over = p->ended;
            m->gone = t->call->peek(t, m->peer, 0, &a);
            if (m->gone) {
                memcpy(&h, a.header, sizeof h);
                t->call->pass(t, m->peer);
            } else if (over) {
                return false;
            }
            t->call->watch(t);
            memory_yield();
        }
        if (p != NULL && (h.type != DCOMMI_MSG_GOODBYE || h.comm != s->comm.id)) {
            world_trouble("a strange message in place of a goodbye");
        }
    }
    return true;
}

/* End a communicator, as its destruction does: one that is given up waits for nobody. */
static bool slots_end(slots_process *s, bool waits)
{
    bool good = true;
    for (int r = 0; r < s->comm.size; r++) {
        dcommi_bcast *set = s->members[r].bcast;
        s->members[r].bcast = NULL;
        if (set != NULL) {
            dcommi_bcast_let_go(&s->comm, set);
        }
    }
    if (waits) {
        good = slots_goodbye(s);
    }
    dcommi_bcast_close(&s->comm);
    if (s->comm.bcast != NULL && slots_is_left(s->comm.bcast->set)) {
        slots_is_free(s->comm.bcast->set, 0, "is left");
    }
    dcommi_free(s->comm.bcast);
    s->comm.bcast = NULL;
    return good;
}

/* Complain if a set is open to a process that does not know its communicator. */
static void slots_is_known(const slots_process *s)
{
    for (int q = 0; q < SLOTS_RANKS; q++) {
        if (s->comm.bcast != NULL && s->comm.bcast->open && slots[q].comm.id < s->comm.id &&
            !shared_over(q)) {
            world_trouble("a set is open to %d, which does not have its communicator yet", q);
        }
    }
}

/* Use a communicator that is then given up: some look for its sets, and some send. */
static void slots_try(slots_process *s)
{
    const dcommi_header h = {.comm = s->comm.id};
    if (world_chance(0.8)) {
        dcommi_bcast_attach(&s->comm);
    }
    for (int i = world_below(6); i > 0; i--) {
        dcommi_member *m = &s->members[world_below(s->comm.size)];
        dcommi_arrival a;
        if (world_chance(0.5)) {
            dcommi_bcast_post(&s->comm, &h, sizeof h, NULL, 0);
            slots_is_known(s);
        } else if (dcommi_bcast_peek(m, &a)) {
            dcommi_header got = {0};
            memcpy(&got, a.header, a.header_len);
            dcommi_bcast_pass(m);
            if (got.comm != s->comm.id) {
                world_trouble("a slot has a message of communicator %" PRIu64, got.comm);
            }
        }
        memory_yield();
    }
}

static void slots_send(slots_process *s, dcommi_fast *f, dcommi_script_op *op)
{
    static unsigned char bytes[SLOTS_RANKS][DCOMMI_BCAST_PAYLOAD];
    unsigned char *data = bytes[world.in];
    for (size_t k = 0; k < op->len; k++) {
        data[k] = slots_byte(s->comm.id, f->seq, s->comm.rank, k);
    }
    for (int r = 0; r < s->comm.size;) {
        op->rank = r;
        op->alike = (uint8_t)(r == 0 ? s->comm.size - 1 : 0);
        if (s->members[r].peer < 0) {
            op->alike = 0;
            r++;
        } else {
            r += dcommi_fast_send(f, op, data, op->len) > 1 ? s->comm.size : 1;
        }
    }
    slots_is_known(s);
}

/* Return true if a message in a fifo is one that the engine would keep: of a later call, of a
 * communicator that this process does not have yet, or a goodbye. */
static bool slots_is_early(const dcommi_fast *f, const dcommi_arrival *a)
{
    dcommi_header h = {0};
    memcpy(&h, a->header, a->header_len);
    return !f->in_slot && (h.comm > f->comm->id || h.seq > f->seq || h.type == DCOMMI_MSG_GOODBYE);
}

/* Wait for the message of a rank. Return false if it has died. */
static bool slots_await(slots_process *s, dcommi_fast *f, dcommi_script_op *op)
{
    dcommi_transport *t = s->context.local;
    const dcommi_local_peer *p = dcommi_local_peer_at((dcommi_local *)t, s->members[op->rank].peer);
    dcommi_arrival a;
    for (;;) {
        const bool over = p->ended;
        const int found = dcommi_fast_poll(f, op->rank, op, true, &a);
        if (found > 0) {
            memcpy(slots_bytes[world.in][op->rank], a.data, a.len);
            dcommi_fast_pass(f, &s->members[op->rank]);
            return true;
        }
        if (found < 0 && !slots_is_early(f, &a)) {
            world_trouble("call %" PRIu64 " of communicator %" PRIu64 " gets a strange message%s",
                          f->seq, f->comm->id, f->in_slot ? " in a slot" : "");
        }
        if (over) {
            return false;
        }
        t->call->watch(t);
        memory_yield();
    }
}

/* Look at the messages of a call. */
static void slots_check(const slots_process *s, const dcommi_fast *f, size_t len, int root)
{
    memory_loaded();
    for (int r = 0; r < s->comm.size; r++) {
        const bool sent = r != s->comm.rank && (root < 0 || root == r);
        for (size_t k = 0; k < len && sent; k++) {
            if (slots_bytes[world.in][r][k] != slots_byte(s->comm.id, f->seq, r, k)) {
                world_trouble("the message of rank %d in call %" PRIu64 " of communicator %" PRIu64
                              " is torn at byte %zu of %zu",
                              r, f->seq, s->comm.id, k, len);
                return;
            }
        }
    }
}

/* Run one call. Return false if somebody has died. */
static bool slots_call(slots_process *s, int call, int root)
{
    dcommi_fast f = {.comm = &s->comm, .seq = (uint64_t)call};
    f.header = (dcommi_header){.type = DCOMMI_MSG_DATA,
                               .stream = DCOMMI_STREAM_COLL,
                               .signature = 7,
                               .src = (uint32_t)s->comm.rank,
                               .comm = s->comm.id,
                               .seq = f.seq,
                               .tag = 5,
                               .done = (uint32_t)s->comm.done,
                               .a = slots_case_of.len[call]};
    dcommi_script_op op = {
        .kind = DCOMM_STEP_RECV, .tag = f.header.tag, .len = slots_case_of.len[call]};
    dcommi_bcast_attach(&s->comm);
    if (root < 0 || root == s->comm.rank) {
        slots_send(s, &f, &op);
    }
    for (int r = 0; r < s->comm.size; r++) {
        op.rank = r;
        if (s->members[r].peer >= 0 && (root < 0 || root == r) && !slots_await(s, &f, &op)) {
            return false;
        }
    }
    s->comm.done++;
    slots_check(s, &f, op.len, root);
    return true;
}

/* Wait until all have added this process. Return false if somebody has died. */
static bool slots_connect(const slots_process *s, int me)
{
    dcommi_transport *t = s->context.local;
    for (int r = 0; r < SLOTS_RANKS; r++) {
        const dcommi_local_peer *p = dcommi_local_peer_at((dcommi_local *)t, r);
        while (r != me && p->out.lines == NULL) {
            t->call->connect(t, r, 1);
            t->call->watch(t);
            memory_yield();
            if (p->ended) {
                return false;
            }
        }
    }
    return true;
}

static void slots_main(int me)
{
    slots_process *s = &slots[me];
    host_open(me);
    s->context.local = &host[me].u->base;
    s->context.peers = s->peers;
    for (int r = 0; r < SLOTS_RANKS; r++) {
        s->peers[r].transport = s->context.local;
    }
    memory_late(slots_bytes[me], sizeof slots_bytes[me]);
    bool good = slots_connect(s, me);
    for (int c = 0; c < slots_case_of.comms && good; c++) {
        slots_make(me, c);
        if (slots_case_of.calls[c] < 0) {
            slots_try(s);
        }
        for (int i = 0; i < slots_case_of.calls[c] && good; i++) {
            good = slots_call(s, i, slots_case_of.root[c]);
        }
        good = slots_end(s, good && slots_case_of.calls[c] >= 0) && good;
    }
    host[me].u->base.call->close(&host[me].u->base, 0, true);
    memory_ended();
}

/* Take most sets of a process, so that communicators share the others. */
static void slots_take(int process, int leave)
{
    dcommi_local_directory *d = (void *)(arena.base + host_file_at(process));
    dcommi_bcast *sets = (void *)d->common;
    arena.dirty[(size_t)((unsigned char *)sets - arena.base) / MEMORY_PAGE] = true;
    for (int i = 0; i < DCOMMI_BCAST_SETS - leave; i++) {
        const uint64_t other = 1;
        __real_memcpy((void *)&sets[i].comm, &other, sizeof other);
        arena.dirty[(size_t)((unsigned char *)&sets[i] - arena.base) / MEMORY_PAGE] = true;
    }
}

static bool slots_case(uint64_t seed)
{
    shared_prepare(seed, SLOTS_RANKS, 3000);
    memory_reset();
    memset(host, 0, sizeof host);
    memset(slots, 0, sizeof slots);
    shared_case.file = dcommi_local_fifo_at(HOST_PROCESSES);
    shared_case.ended = host_ended;
    host_case_of.n = SLOTS_RANKS;
    for (int r = 0; r < SLOTS_RANKS; r++) {
        host[r].card.hand.id = (uint64_t)r + 1;
        host[r].card.process.pid = 1;
        slots_take(r, 1 + shared_draw(2));
    }
    const bool tries = shared_draw(3) == 0;
    slots_case_of.comms = tries ? SLOTS_COMMS : 6;
    slots_case_of.shift = shared_draw(SLOTS_RANKS);
    for (int c = 0; c < SLOTS_COMMS; c++) {
        slots_case_of.calls[c] = tries || shared_draw(2) == 0 ? -1
                                 : shared_draw(2) == 0        ? 1 + shared_draw(6)
                                                              : shared_draw(SLOTS_CALLS);
        slots_case_of.root[c] = shared_draw(2) == 0 ? shared_draw(SLOTS_RANKS) : -1;
    }
    for (int i = 0; i < SLOTS_CALLS; i++) {
        slots_case_of.len[i] =
            (uint32_t)shared_draw(shared_draw(10) == 0 ? DCOMMI_BCAST_PAYLOAD : 100);
    }
    const bool good = shared_run(seed, SLOTS_RANKS, slots_main);
    shared_case.ended = NULL;
    return good;
}

#endif
