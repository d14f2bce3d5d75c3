/* host.h - a case: the processes of a host send each other messages by the local transport, short,
 * long, written in place, while some leave and come back, give others up, end or die. Every message
 * must arrive once, whole and in order. Every loss must be noticed, and for what it is. */
#ifndef SIM_HOST_H
#define SIM_HOST_H

#include "shared.h"

enum {
    HOST_PROCESSES = 3,
    HOST_MESSAGES = 16,  /* most from one process to another */
    HOST_BYTES = 100000, /* most of a message */
    HOST_KEPT = 4,
    HOST_TURNS = 3000 /* in which a process that waits for nobody ends */
};

typedef struct host_header {
    int from, number;
    size_t len;
} host_header;

/* A message that has arrived, until its bytes are looked at. */
typedef struct host_message {
    dcommi_op op;
    int from, number;
    size_t len;
    bool fetched; /* its bytes are there */
    bool used;
    unsigned char *bytes;
} host_message;

typedef struct host_process {
    dcommi_local *u;
    dcommi_local_card card;
    int sent[HOST_PROCESSES], pending[HOST_PROCESSES]; /* messages, sends that are not done */
    int next[HOST_PROCESSES], got[HOST_PROCESSES];     /* short ones; all */
    bool seen[HOST_PROCESSES][HOST_MESSAGES];
    bool told[HOST_PROCESSES]; /* the system has told it of that process's end */
    bool lost[HOST_PROCESSES];
    bool closes;
    host_message kept[HOST_KEPT];
    dcommi_op send[HOST_PROCESSES][HOST_MESSAGES];
} host_process;

static host_process host[HOST_PROCESSES];
static unsigned char host_bytes[HOST_PROCESSES][HOST_KEPT][HOST_BYTES];
static struct {
    int n;
    size_t len[HOST_PROCESSES][HOST_PROCESSES][HOST_MESSAGES];
    int count[HOST_PROCESSES][HOST_PROCESSES];
    int giver, given; /* who gives up whom */
    int leaver;       /* it ends when it has sent all, whatever others send */
} host_case_of;

static unsigned char host_byte(int from, int to, int number, size_t k)
{
    return (unsigned char)((size_t)(from * 7 + to * 31 + number * 59) + k * 5 + k / 251);
}

static size_t host_file_at(int process)
{
    return (size_t)process * shared_case.file;
}

/* Return true if `by` has given up `process`, as far as the memory shows that. */
static MEMORY_MODEL bool host_is_given_up(int by, int process)
{
    const dcommi_local_directory *d = (void *)(arena.base + host_file_at(by));
    unsigned char value = 0;
    for (uint32_t i = 0; i < HOST_PROCESSES; i++) {
        if (d->writer[i] == host[process].card.hand.id) {
            __real_memcpy(&value, (const void *)&d->given_up[i], 1);
        }
    }
    return value != 0;
}

/* ---- arrivals ---- */

static void host_use(int me, host_message *m)
{
    memory_loaded();
    for (size_t k = 0; k < m->len; k++) {
        if (m->bytes[k] != host_byte(m->from, me, m->number, k)) {
            world_trouble("message %d of %zu bytes from %d to %d is torn at byte %zu", m->number,
                          m->len, m->from, me, k);
            break;
        }
    }
    m->used = true;
}

static void host_fetched(dcommi_op *op, dcomm_status status)
{
    host_message *m = op->handle;
    m->fetched = status == DCOMM_OK;
    m->used = status != DCOMM_OK;
}

static void host_note(host_process *h, const host_header *m, size_t len)
{
    if (m->from < 0 || m->from >= host_case_of.n || m->number < 0 ||
        m->number >= host_case_of.count[m->from][world.in] || h->seen[m->from][m->number] ||
        len != m->len || len != host_case_of.len[m->from][world.in][m->number]) {
        world_trouble("message %d of %zu bytes from %d makes no sense", m->number, len, m->from);
        memory_yield();
    }
    if (len <= DCOMMI_LOCAL_EAGER && m->number < h->next[m->from]) {
        world_trouble("message %d from %d comes after %d", m->number, m->from, h->next[m->from]);
    }
    h->next[m->from] = len <= DCOMMI_LOCAL_EAGER ? m->number : h->next[m->from];
    h->seen[m->from][m->number] = true;
    h->got[m->from]++;
}

static dcommi_verdict host_on_message(void *user, dcommi_transport *t, const dcommi_arrival *a)
{
    host_process *h = user;
    host_header header;
    int slot = 0;
    while (slot < HOST_KEPT && !h->kept[slot].used) {
        slot++;
    }
    if (a->stays && (slot == HOST_KEPT || world_chance(0.1))) {
        return DCOMMI_LATER;
    }
    if (a->header_len != sizeof header) {
        world_trouble("a header of %zu bytes", a->header_len);
        return DCOMMI_CONSUMED;
    }
    memcpy(&header, a->header, sizeof header);
    host_note(h, &header, a->len);
    if (a->data == NULL && (slot == HOST_KEPT || world_chance(0.2))) {
        t->call->release(t, a->desc);
        return DCOMMI_KEEP;
    }
    host_message *m = &h->kept[slot];
    *m = (host_message){.op = {.done = host_fetched, .handle = m},
                        .from = header.from,
                        .number = header.number,
                        .len = a->len,
                        .fetched = a->data != NULL,
                        .bytes = host_bytes[world.in][slot]};
    if (a->data != NULL) {
        memcpy(m->bytes, a->data, a->len);
        return DCOMMI_CONSUMED;
    }
    if (t->call->fetch(t, a->desc, m->bytes, a->len, &m->op) != DCOMM_IN_PROGRESS) {
        world_trouble("a long message cannot be fetched: %s", dcommi_message);
    }
    return DCOMMI_KEEP;
}

static void host_on_lost(void *user, dcommi_transport *t, int peer, const char *why,
                         dcommi_loss how)
{
    host_process *h = user;
    (void)t;
    h->lost[peer] = true;
    const bool given = host_is_given_up(peer, world.in);
    if (!shared_over(peer) && !host[peer].closes && !given) {
        world_trouble("%d is lost while it lives: %s", peer, why);
    } else if (given != (how == DCOMMI_LOSS_GIVEN_UP)) {
        world_trouble("%d %s: %s", peer, given ? "has given this process up" : "is lost", why);
    }
}

static void host_on_corrupt(void *user, dcommi_transport *t, const dcommi_arrival *a)
{
    (void)user, (void)t, (void)a;
    world_trouble("a message makes no sense");
}

/* ---- a process ---- */

static void host_sent(dcommi_op *op, dcomm_status status)
{
    (void)status;
    --*(int *)op->handle;
}

/* Send the next message to a process. */
static void host_send(int me, int to)
{
    static unsigned char bytes[HOST_PROCESSES][HOST_PROCESSES][HOST_MESSAGES][512];
    host_process *h = &host[me];
    dcommi_transport *t = &h->u->base;
    const int number = h->sent[to]++;
    const size_t len = host_case_of.len[me][to][number];
    const host_header header = {me, number, len};
    unsigned char *data =
        len <= sizeof bytes[0][0][0] ? bytes[me][to][number] : dcommi_alloc_raw(len);
    for (size_t k = 0; k < len; k++) {
        data[k] = host_byte(me, to, number, k);
    }
    bool past = false;
    void *room = world_chance(0.2) && !dcommi_local_is_busy(h->u)
                     ? t->call->reserve(t, to, sizeof header, len, &past)
                     : NULL;
    if (room != NULL) {
        memcpy(room, data, len);
        t->call->commit(t, to, &header, sizeof header, len);
        return;
    }
    h->send[to][number] = (dcommi_op){.done = host_sent, .handle = &h->pending[to]};
    const dcomm_status status =
        t->call->send(t, to, &header, sizeof header, data, len, &h->send[to][number]);
    h->pending[to] += status == DCOMM_IN_PROGRESS;
    if (status < 0 && !h->lost[to]) {
        world_trouble("a message cannot be sent: %s", dcommi_message);
    }
}

static void host_meet(host_process *h, int peer)
{
    const dcommi_local_card *card = &host[peer].card;
    if (dcommi_local_add_peer(&h->u->base, peer, card, sizeof *card) != DCOMM_OK) {
        world_trouble("%d cannot be added: %s", peer, dcommi_message);
        memory_yield();
    }
    h->u->peers[peer]->file = SHARED_FILE + peer;
}

static void host_open(int me)
{
    host_process *h = &host[me];
    dcommi_local *u = dcommi_alloc(sizeof *u);
    u->base = (dcommi_transport){.name = "local",
                                 .call = &dcommi_local_vtable,
                                 .handlers = {.user = h,
                                              .on_message = host_on_message,
                                              .on_peer_lost = host_on_lost,
                                              .on_corrupt = host_on_corrupt},
                                 .eager_max = DCOMMI_LOCAL_EAGER,
                                 .ordered_max = DCOMMI_LOCAL_EAGER};
    u->file = SHARED_FILE + me;
    u->epoll = u->lock = SHARED_FILE + HOST_PROCESSES;
    u->directory = (void *)(arena.base + host_file_at(me));
    u->card = h->card;
    h->u = u;
    for (int r = 0; r < host_case_of.n; r++) {
        if (r != me) {
            host_meet(h, r);
        }
    }
}

/* Report the ends of processes, each once, some time later. */
static int host_ended(struct epoll_event *events, int max)
{
    host_process *h = &host[world.in];
    int n = 0;
    for (int r = 0; r < host_case_of.n && n < max; r++) {
        dcommi_local_peer *p = dcommi_local_peer_at(h->u, r);
        if (p != NULL && !h->told[r] && world.rank[r].state == WORLD_DEAD && world_chance(0.3)) {
            memory_learn(r);
            h->told[r] = true;
            events[n++].data.ptr = p;
        }
    }
    return n;
}

/* Forget a process that owes nothing, and meet it again. */
static void host_part(host_process *h, int peer)
{
    dcommi_local_peer *p = dcommi_local_peer_at(h->u, peer);
    if (p == NULL || p->ended || p->queue != NULL || p->sends != NULL || p->fetches != NULL ||
        h->u->offers != NULL || p->out.lines == NULL || host_is_given_up(world.in, peer)) {
        return;
    }
    h->u->base.call->remove_peer(&h->u->base, peer);
    host_meet(h, peer);
}

/* Return true if this process has all that another one sends. */
static bool host_has_all_of(int me, int from)
{
    return host[me].got[from] == host_case_of.count[from][me] || me == host_case_of.leaver;
}

/* Return true if this process has nothing left to do. */
static bool host_has_all(int me)
{
    const host_process *h = &host[me];
    bool all = !dcommi_local_is_busy(h->u);
    for (int r = 0; r < host_case_of.n; r++) {
        const bool sent = h->sent[r] == host_case_of.count[me][r];
        all = all && (r == me || h->lost[r] || (sent && host_has_all_of(me, r)));
    }
    return all;
}

static void host_turn(int me)
{
    host_process *h = &host[me];
    dcommi_transport *t = &h->u->base;
    const int to = world_below(host_case_of.n);
    if (to != me && !h->lost[to] && h->sent[to] < host_case_of.count[me][to] && world_chance(0.5)) {
        host_send(me, to);
    }
    for (int r = 0; r < host_case_of.n; r++) { /* until the other has added this one */
        t->call->connect(t, r, 1);
    }
    t->call->progress(t);
    if (world_chance(0.3)) {
        t->call->watch(t);
    }
    for (int i = 0; i < HOST_KEPT; i++) {
        if (h->kept[i].fetched && !h->kept[i].used && world_chance(0.3)) {
            host_use(me, &h->kept[i]);
        }
    }
    if (to != me && world_chance(0.02)) {
        host_part(h, to);
    }
    memory_yield();
}

/* Wait for the end of all processes that give this one up, so that it is noticed. */
static bool host_awaits_end(int me)
{
    const int giver = host_case_of.giver;
    return giver >= 0 && host_case_of.given == me && !host[me].lost[giver];
}

static void host_process_main(int me)
{
    host_process *h = &host[me];
    int gives_up = me == host_case_of.giver ? world_below(40) : -1;
    memory_late(host_bytes[me], sizeof host_bytes[me]);
    host_open(me);
    while (!host_has_all(me) || host_awaits_end(me) || gives_up > 0) {
        if (gives_up-- == 0) {
            h->u->base.call->give_up(&h->u->base, host_case_of.given);
            h->lost[host_case_of.given] = true;
            break;
        }
        host_turn(me);
    }
    for (int i = 0; i < HOST_KEPT; i++) {
        if (h->kept[i].fetched && !h->kept[i].used) {
            host_use(me, &h->kept[i]);
        }
    }
    for (int r = 0; r < host_case_of.n; r++) {
        if (r != me && world.rank[r].state != WORLD_DEAD && h->lost[r] && r != host_case_of.giver &&
            me != host_case_of.giver && !host_has_all_of(me, r)) {
            world_trouble("%d of %d messages from %d were lost",
                          host_case_of.count[r][me] - h->got[r], host_case_of.count[r][me], r);
        }
    }
    h->closes = true;
    h->u->base.call->close(&h->u->base, 0, true);
    memory_ended();
}

/* Draw the length of a message. */
static size_t host_length(void)
{
    const int kind = shared_draw(40);
    return kind == 0   ? 33000 + (size_t)shared_draw(60000)
           : kind < 3  ? (size_t)shared_draw(DCOMMI_LOCAL_EAGER + 1)
           : kind < 10 ? (size_t)shared_draw(2000)
                       : (size_t)shared_draw(100);
}

static bool host_run(uint64_t seed)
{
    memset(host, 0, sizeof host);
    host_case_of.n = 2 + shared_draw(2);
    for (int r = 0; r < host_case_of.n; r++) {
        host[r].card.hand.id = (uint64_t)r + 1;
        host[r].card.process.pid = 1;
        for (int i = 0; i < HOST_KEPT; i++) {
            host[r].kept[i].used = true;
        }
        for (int to = 0; to < host_case_of.n; to++) {
            host_case_of.count[r][to] = shared_draw(HOST_MESSAGES);
            for (int i = 0; i < HOST_MESSAGES; i++) {
                host_case_of.len[r][to][i] = host_length();
            }
        }
    }
    host_case_of.giver = shared_draw(3) == 0 ? shared_draw(host_case_of.n) : -1;
    host_case_of.leaver = shared_draw(2) == 0 ? shared_draw(host_case_of.n) : -1;
    host_case_of.given = (host_case_of.giver + 1) % host_case_of.n;
    shared_case.file = dcommi_local_fifo_at(HOST_PROCESSES);
    shared_case.ended = host_ended;
    return shared_run(seed, host_case_of.n, host_process_main);
}

static bool host_case(uint64_t seed)
{
    shared_prepare(seed, HOST_PROCESSES, 1500);
    memory_reset();
    const bool good = host_run(seed);
    shared_case.ended = NULL;
    return good;
}

#endif
