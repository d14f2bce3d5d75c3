/* local.h - the transport between the processes of one host. Messages go through fifos in memory
 * that processes map from each other (fifo.h, hand.h). User memory is mapped in the same way. */
#ifndef DCOMMI_LOCAL_H
#define DCOMMI_LOCAL_H

#include "receive.h"

#include <sched.h>

/* ---- peers ---- */

static dcomm_status dcommi_local_add_peer(dcommi_transport *t, int peer, const void *address,
                                          size_t len)
{
    dcommi_local *u = (dcommi_local *)t;
    dcommi_local_card card;
    if (peer < 0 || len != sizeof card || u->card.hand.id == 0 ||
        dcommi_local_peer_at(u, peer) != NULL) {
        return dcommi_fail(DCOMM_ERR_INTERNAL, "%s: peer %d (%zu bytes of address) cannot be added",
                           t->name, peer, len);
    }
    memcpy(&card, address, sizeof card);
    DCOMMI_TRY(
        dcommi_grow((void **)&u->peers, &u->peers_capacity, (size_t)peer + 1, sizeof *u->peers));
    DCOMMI_TRY(
        dcommi_grow((void **)&u->polled, &u->polled_capacity, u->npolled + 1, sizeof *u->polled));
    uint32_t fifo = 0;
    DCOMMI_TRY(dcommi_local_fifo_find(u, card.hand.id, &fifo));
    dcommi_local_peer *p = dcommi_alloc(sizeof *p);
    if (p == NULL) {
        return DCOMM_ERR_NO_MEMORY;
    }
    p->local = u;
    p->index = peer;
    p->card = card;
    p->file = p->lock = -1;
    p->fifo = fifo;
    p->in = u->fifos[fifo];
    p->pidfd = dcommi_watch_add(&u->epoll, &u->card.process, &card.process, p);
    u->peers[peer] = p;
    u->polled[u->npolled++] = p;
    return DCOMM_OK;
}

/* Map our fifo at the peer before the first message, so that the descriptor can be closed. */
static void dcommi_local_open_way(dcommi_transport *t, int peer, int connections)
{
    dcommi_local_peer *p = dcommi_local_peer_at((dcommi_local *)t, peer);
    (void)connections;
    if (p != NULL && p->out.lines == NULL && !p->ended && !p->lost) {
        (void)dcommi_local_connect(p); /* the first send reports an error */
    }
}

static void dcommi_local_sweep(dcommi_local *u)
{
    while (u->removed != NULL) {
        dcommi_local_peer *p = u->removed;
        u->removed = p->next;
        dcommi_local_peer_free(p);
    }
}

static void dcommi_local_remove_peer(dcommi_transport *t, int peer)
{
    dcommi_local *u = (dcommi_local *)t;
    dcommi_local_peer *p = dcommi_local_peer_at(u, peer);
    if (p == NULL) {
        return;
    }
    u->peers[peer] = NULL;
    u->fifos[p->fifo] = p->in;
    dcommi_local_unpoll(u, p);
    dcommi_local_drop_all(p, DCOMM_ERR_PEER);
    u->nended -= p->ended && !p->lost;
    p->removed = true;
    p->next = u->removed;
    u->removed = p;
    if (!u->inside) {
        dcommi_local_sweep(u);
    }
}

/* ---- progress ---- */

#define DCOMMI_LOCAL_GIVEN_UP "it counts this process as dead"

/* Return true if a peer counts this process as dead. */
static bool dcommi_local_is_given_up(const dcommi_local_peer *p)
{
    return p->out.lines != NULL &&
           atomic_load_explicit(&p->directory->given_up[p->ours], memory_order_acquire) != 0;
}

/* Return true if a peer that has ended counted this process as dead. A look before its end could
 * come too early. Taking its end for a death would let this process go on alone. */
static bool dcommi_local_gave_up_before(dcommi_local_peer *p)
{
    if (p->out.lines == NULL && !p->ended) {
        (void)dcommi_local_connect(p); /* to know which mark is ours */
    }
    return dcommi_local_is_given_up(p);
}

static bool dcommi_local_gave_up(dcommi_transport *t, int peer)
{
    dcommi_local_peer *p = dcommi_local_peer_at((dcommi_local *)t, peer);
    return p != NULL && dcommi_local_gave_up_before(p);
}

/* Mark a peer whose end is certain. */
static void dcommi_local_end_proven(dcommi_local_peer *p, const char *why)
{
    const bool given_up = dcommi_local_gave_up_before(p);
    dcommi_local_end_as(p, given_up ? DCOMMI_LOSS_GIVEN_UP : DCOMMI_LOSS_PROVEN,
                        given_up ? DCOMMI_LOCAL_GIVEN_UP : why);
}

static void dcommi_local_watch(dcommi_transport *t)
{
    dcommi_local *u = (dcommi_local *)t;
    void *users[16];
    int n = dcommi_watch_poll(u->epoll, users, 16);
    for (int i = 0; i < n; i++) {
        dcommi_local_end_proven(users[i], "its process has ended");
    }
    for (size_t i = 0; i < u->npolled; i++) {
        dcommi_local_peer *p = u->polled[i];
        bool dead = p->lock >= 0 && !p->ended && dcommi_watch_unlocked(p->lock);
        if (p->directory != NULL &&
            atomic_load_explicit(&p->directory->closed, memory_order_acquire) != 0) {
            dcommi_local_end_proven(p, "it has closed its connections");
        } else if (dead) {
            dcommi_local_end_proven(p, "its process has ended");
        } else if (dcommi_local_is_given_up(p)) {
            dcommi_local_end_as(p, DCOMMI_LOSS_GIVEN_UP, DCOMMI_LOCAL_GIVEN_UP);
        }
    }
}

static void dcommi_local_give_up(dcommi_transport *t, int peer)
{
    dcommi_local *u = (dcommi_local *)t;
    const dcommi_local_peer *p = dcommi_local_peer_at(u, peer);
    if (p != NULL) {
        atomic_store_explicit(&u->directory->given_up[p->fifo], 1, memory_order_release);
    }
}

/* Report a peer as lost if it has ended and we have read all its records. */
static unsigned dcommi_local_bury(dcommi_local *u)
{
    unsigned n = 0;
    for (size_t i = u->npolled; i-- > 0;) {
        dcommi_local_peer *p = i < u->npolled ? u->polled[i] : NULL;
        dcommi_record r;
        if (p == NULL || !p->ended || dcommi_fifo_next(&p->in, &r) > 0) {
            continue;
        }
        p->lost = true;
        u->nended--;
        u->fifos[p->fifo] = p->in;
        dcommi_local_unpoll(u, p);
        dcommi_local_drop_all(p, DCOMM_ERR_PEER);
        n++;
        if (!u->closing) {
            u->base.handlers.on_peer_lost(u->base.handlers.user, &u->base, p->index, p->why,
                                          p->how);
        }
    }
    return n;
}

static unsigned dcommi_local_deliver(dcommi_local *u)
{
    unsigned n = 0;
    while (u->ndone > 0) { /* the `done` of an op may start others */
        struct dcommi_local_done d = u->done[--u->ndone];
        d.op->done(d.op, d.status);
        n++;
    }
    return n;
}

static unsigned dcommi_local_progress(dcommi_transport *t)
{
    dcommi_local *u = (dcommi_local *)t;
    unsigned n = 0;
    if (DCOMMI_UNLIKELY(u->inside)) {
        return 0;
    }
    u->inside = true;
    for (size_t i = 0; i < u->npolled; i++) {
        if (dcommi_fifo_ready(&u->polled[i]->in)) {
            n += dcommi_local_poll(u->polled[i]);
        }
    }
    for (size_t i = 0; u->nwaiting > 0 && i < u->npolled; i++) {
        n += u->polled[i]->waiting ? dcommi_local_pump(u->polled[i]) : 0;
    }
    if (DCOMMI_UNLIKELY(u->nended > 0)) {
        n += dcommi_local_bury(u);
    }
    u->inside = false;
    if (u->ndone > 0) {
        n += dcommi_local_deliver(u);
    }
    if (DCOMMI_UNLIKELY(u->removed != NULL)) {
        dcommi_local_sweep(u);
    }
    return n;
}

static bool dcommi_local_peek(dcommi_transport *t, int peer, size_t expected,
                              dcommi_arrival *arrival)
{
    dcommi_local *u = (dcommi_local *)t;
    dcommi_local_peer *p = dcommi_local_peer_at(u, peer);
    dcommi_record *r = &u->peeked;
    if (p == NULL || u->inside || p->lost) {
        return false;
    }
    dcommi_fifo_expecting(&p->in, expected);
    if (dcommi_fifo_next(&p->in, r) <= 0 || r->kind != DCOMMI_LOCAL_MSG) {
        return false;
    }
    *arrival = (dcommi_arrival){.peer = peer,
                                .header = r->header,
                                .header_len = r->header_len,
                                .data = r->data,
                                .len = r->len};
    return true;
}

static void dcommi_local_pass(dcommi_transport *t, int peer)
{
    dcommi_local *u = (dcommi_local *)t;
    dcommi_local_peer *p = dcommi_local_peer_at(u, peer);
    p->out.scripted++;
    dcommi_fifo_pass(&p->in, &u->peeked);
}

/* ---- mapped memory ---- */

static dcomm_status dcommi_local_common(dcommi_transport *t, int peer, void **common_p)
{
    dcommi_local *u = (dcommi_local *)t;
    dcommi_local_peer *p = dcommi_local_peer_at(u, peer);
    dcomm_status status = DCOMM_OK;
    if (peer >= 0) {
        status = p == NULL || p->lost || p->ended ? DCOMM_ERR_PEER : dcommi_local_look_up(p);
    }
    const bool found = status == DCOMM_OK;
    dcommi_local_directory *d = !found ? NULL : peer >= 0 ? p->directory : u->directory;
    *common_p = d != NULL ? d->common : NULL;
    return status;
}

static dcomm_status dcommi_local_listen(dcommi_transport *t)
{
    return dcommi_hands_look(&((dcommi_local *)t)->hands);
}

/* Find a process of another network namespace. Both sides must open their doors first. */
static dcomm_status dcommi_local_find(dcommi_local *u, const dcommi_local_card *card, bool first)
{
    if (!dcommi_hand_is_outside(&u->hands, &card->hand)) {
        return DCOMM_OK;
    }
    if (first) {
        dcommi_hands_show(&u->hands);
        return DCOMM_IN_PROGRESS;
    }
    const dcommi_watch_card *mine = &u->card.process;
    bool foreign = dcommi_watch_foreign(mine->pid_space, card->process.pid_space);
    return dcommi_hands_find(&u->hands, card->hand.id, foreign ? 0 : card->process.pid);
}

static dcomm_status dcommi_local_greet(dcommi_transport *t, const void *address, size_t len,
                                       bool first)
{
    dcommi_local *u = (dcommi_local *)t;
    dcommi_local_card card;
    if (len != sizeof card) {
        return dcommi_fail(DCOMM_ERR_CORRUPT, "%s: an address has %zu bytes, which is wrong",
                           t->name, len);
    }
    memcpy(&card, address, sizeof card);
    dcomm_status status = dcommi_local_find(u, &card, first);
    if (status == DCOMM_OK && dcommi_watch_by_lock(&u->card.process, &card.process)) {
        u->lock = u->lock >= 0 ? u->lock : dcommi_watch_lock();
        status = u->lock < 0 ? DCOMM_OK
                             : dcommi_hand_over(&u->hands, &card.hand, DCOMMI_LOCAL_LOCK, u->lock);
    }
    return status == DCOMM_OK ? dcommi_hand_over(&u->hands, &card.hand, 0, u->file) : status;
}

static void dcommi_local_greeting(dcommi_transport *t, bool begins)
{
    dcommi_hands *hands = &((dcommi_local *)t)->hands;
    hands->seekers += begins ? 1 : (unsigned)-1;
    if (hands->seekers == 0) {
        dcommi_hands_hide(hands);
    }
}

static bool dcommi_local_knows(const dcommi_local *u, uint64_t id)
{
    for (size_t i = 0; i < u->npolled; i++) {
        if (u->polled[i]->card.hand.id == id) {
            return true;
        }
    }
    return false;
}

static void dcommi_local_forget(dcommi_transport *t, const void *address, size_t len)
{
    dcommi_hands *hands = &((dcommi_local *)t)->hands;
    dcommi_local_card card;
    if (len != sizeof card) {
        return;
    }
    memcpy(&card, address, sizeof card);
    dcommi_hands_forget(hands, card.hand.id);
    if (dcommi_hand_way_to(hands, card.hand.id) != NULL &&
        !dcommi_local_knows((dcommi_local *)t, card.hand.id)) {
        dcommi_hands_part(hands, card.hand.id);
    }
}

static dcomm_status dcommi_local_region_give(dcommi_transport *t, int peer, uint32_t number,
                                             int file)
{
    dcommi_local *u = (dcommi_local *)t;
    const dcommi_local_peer *p = dcommi_local_peer_at(u, peer);
    return p == NULL ? dcommi_fail(DCOMM_ERR_INTERNAL, "%s: no peer %d", t->name, peer)
                     : dcommi_hand_over(&u->hands, &p->card.hand, number, file);
}

static dcomm_status dcommi_local_region_take(dcommi_transport *t, int peer, uint32_t number,
                                             size_t len, int *file)
{
    dcommi_local_peer *p = dcommi_local_peer_at((dcommi_local *)t, peer);
    dcomm_status status = p == NULL
                              ? dcommi_fail(DCOMM_ERR_INTERNAL, "%s: no peer %d", t->name, peer)
                              : dcommi_local_take(p, number, len, file);
    return status == DCOMM_IN_PROGRESS
               ? dcommi_fail(DCOMM_ERR_PEER, "%s: peer %d handed over nothing", t->name, peer)
               : status;
}

/* ---- opening and closing ---- */

static bool dcommi_local_is_busy(const dcommi_local *u)
{
    bool busy = u->ndone > 0;
    for (size_t i = 0; i < u->npolled && !busy; i++) {
        const dcommi_local_peer *p = u->polled[i];
        busy = p->queue != NULL || p->sends != NULL || p->fetches != NULL;
    }
    return busy;
}

static void dcommi_local_free(dcommi_local *u)
{
    for (size_t i = 0; i < u->peers_capacity; i++) {
        if (u->peers[i] != NULL) {
            dcommi_local_drop_all(u->peers[i], DCOMM_ERR_ABORTED);
            dcommi_local_peer_free(u->peers[i]);
        }
    }
    dcommi_local_sweep(u);
    dcommi_local_deliver(u);
    while (u->offers != NULL) {
        dcommi_local_offer_free(u->offers);
    }
    dcommi_hands_close(&u->hands);
    for (size_t i = 0; i < DCOMMI_LOCAL_PEERS; i++) {
        dcommi_local_fifo_unmap(&u->fifos[i]);
    }
    if (u->directory != NULL) {
        munmap(u->directory, dcommi_local_fifo_at(0));
    }
    dcommi_sys_close(u->file);
    dcommi_sys_close(u->lock);
    dcommi_sys_close(u->epoll);
    dcommi_free(u->peers);
    dcommi_free(u->polled);
    dcommi_free(u->done);
    dcommi_free(u);
}

static void dcommi_local_close(dcommi_transport *t, double timeout_s, bool force)
{
    dcommi_local *u = (dcommi_local *)t;
    double deadline = dcommi_now() + timeout_s;
    while (!force && dcommi_local_is_busy(u) && dcommi_now() < deadline) {
        if (dcommi_local_progress(t) == 0) {
            sched_yield();
        }
    }
    u->closing = true;
    /* Peers may keep our memory mapped for as long as they want. All records, and marks of those
     * that we gave up, come before it. */
    if (u->directory != NULL) {
        atomic_store_explicit(&u->directory->closed, 1, memory_order_release);
    }
    dcommi_local_free(u);
}

static const dcommi_transport_vtable dcommi_local_vtable = {
    .add_peer = dcommi_local_add_peer,
    .connect = dcommi_local_open_way,
    .remove_peer = dcommi_local_remove_peer,
    .send = dcommi_local_send,
    .reserve = dcommi_local_reserve,
    .commit = dcommi_local_commit,
    .fetch = dcommi_local_fetch,
    .release = dcommi_local_release,
    .progress = dcommi_local_progress,
    .watch = dcommi_local_watch,
    .give_up = dcommi_local_give_up,
    .gave_up = dcommi_local_gave_up,
    .peek = dcommi_local_peek,
    .pass = dcommi_local_pass,
    .common = dcommi_local_common,
    .listen = dcommi_local_listen,
    .greet = dcommi_local_greet,
    .greeting = dcommi_local_greeting,
    .forget = dcommi_local_forget,
    .region_give = dcommi_local_region_give,
    .region_take = dcommi_local_region_take,
    .close = dcommi_local_close,
};

/* Open the shared memory and the socket. Without them there can be no peers, and our address says
 * so to others. */
static void dcommi_local_start(dcommi_local *u)
{
    u->file = dcommi_share_file(dcommi_local_fifo_at(DCOMMI_LOCAL_PEERS));
    u->directory = u->file >= 0 ? dcommi_share_map(u->file, 0, dcommi_local_fifo_at(0)) : NULL;
    if (u->directory == NULL || !dcommi_hands_open(&u->hands, dcommi_transport_id())) {
        dcommi_log(DCOMMI_LOG_INFO, "memory cannot be shared with other processes: %s",
                   strerror(errno));
    }
    u->card.hand = u->hands.me;
    u->card.process = dcommi_watch_me();
    u->base.address = &u->card;
    u->base.address_len = sizeof u->card;
}

/* Open the transport to the processes of this host. */
static dcomm_status dcommi_local_open(const dcommi_transport_handlers *handlers,
                                      dcommi_transport **t_p)
{
    dcommi_local *u = dcommi_alloc(sizeof *u);
    if (u == NULL) {
        return DCOMM_ERR_NO_MEMORY;
    }
    u->base = (dcommi_transport){.name = "local",
                                 .call = &dcommi_local_vtable,
                                 .handlers = *handlers,
                                 .eager_max = DCOMMI_LOCAL_EAGER,
                                 .ordered_max = DCOMMI_LOCAL_EAGER};
    u->epoll = u->file = u->lock = -1;
    dcommi_local_start(u);
    *t_p = &u->base;
    return DCOMM_OK;
}

#endif
