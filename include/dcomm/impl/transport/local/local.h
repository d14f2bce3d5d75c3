/* local.h - the transport between the processes of one host: messages through fifos in memory that
 * they map from each other (fifo.h, hand.h), and memory of the user's that they map likewise. */
#ifndef DCOMMI_LOCAL_H
#define DCOMMI_LOCAL_H

#include "peer.h"

#include <sched.h>

/* Records taken from one peer before the next gets its turn. */
#define DCOMMI_LOCAL_BURST 32
#define DCOMMI_LOCAL_WATCH 0.05 /* seconds between looks for peers that have ended */

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

/* Map the fifo at the peer ahead of the first message, so that its descriptor can be closed. */
static void dcommi_local_open_way(dcommi_transport *t, int peer, int connections)
{
    dcommi_local_peer *p = dcommi_local_peer_at((dcommi_local *)t, peer);
    (void)connections;
    if (p != NULL && p->out.lines == NULL && !p->ended && !p->lost) {
        (void)dcommi_local_connect(p); /* what is wrong is said when something is to be sent */
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

/* A peer that cannot be written to, or writes nonsense, is as good as dead. */
static void dcommi_local_end(dcommi_local_peer *p, const char *why)
{
    if (!p->ended && !p->lost) {
        p->ended = true;
        p->why = why;
        p->local->nended++;
    }
}

/* ---- sending ---- */

/* Payloads that may go past the caches (fill.h) do not fill a fifo: what was written long before it
 * is read has left the cache. Still more is left to payloads that are written in place (reserve),
 * where there were any lately: these would otherwise have to wait behind the others, to be copied
 * when they have left the cache too. */
#define DCOMMI_LOCAL_SPARE ((size_t)3 * DCOMMI_LOCAL_EAGER)
#define DCOMMI_LOCAL_SPARE_IN_PLACE ((size_t)4 * DCOMMI_LOCAL_EAGER)
#define DCOMMI_LOCAL_LATELY 64 /* payloads */
/* Payloads up to this long are copied when the fifo is full. */
#define DCOMMI_LOCAL_COPIED 256

/* A record that has to wait for room. */
static dcomm_status dcommi_local_enqueue(dcommi_local_peer *p, unsigned kind, const void *header,
                                         size_t header_len, const void *data, size_t len,
                                         dcommi_op *op)
{
    bool copy = op == NULL || len <= DCOMMI_LOCAL_COPIED;
    if (!copy) {
        DCOMMI_TRY(dcommi_local_promise(p->local));
    }
    dcommi_local_queued *q = dcommi_alloc_raw(sizeof *q + header_len + (copy ? len : 0));
    if (q == NULL) {
        p->local->npromised -= copy ? 0 : 1;
        return DCOMM_ERR_NO_MEMORY;
    }
    *q = (dcommi_local_queued){.op = copy ? NULL : op,
                               .data = copy ? q->bytes + header_len : data,
                               .kind = kind,
                               .header_len = header_len,
                               .len = len};
    memcpy(q->bytes, header, header_len);
    if (copy && len > 0) {
        memcpy(q->bytes + header_len, data, len);
    }
    *(p->queue != NULL ? &p->queue_last->next : &p->queue) = q;
    p->queue_last = q;
    dcommi_local_waiting(p, true);
    return copy ? DCOMM_OK : DCOMM_IN_PROGRESS;
}

static inline size_t dcommi_local_spare(const dcommi_local_peer *p, size_t len)
{
    return len < DCOMMI_FILL_LEAST ? 0
           : p->in_place > 0       ? DCOMMI_LOCAL_SPARE_IN_PLACE
                                   : DCOMMI_LOCAL_SPARE;
}

static inline void dcommi_local_fill(dcommi_local_peer *p, unsigned char *to, const void *data,
                                     size_t len)
{
    if (len >= DCOMMI_FILL_LEAST && p->local->base.bulk) {
        p->in_place -= p->in_place > 0;
        dcommi_fill(&p->filler, to, data, len);
    } else {
        dcommi_fifo_copy(&p->out, to, data, len);
    }
}

/* Put a record into the peer's fifo, or behind those that wait for room. */
static inline dcomm_status dcommi_local_put(dcommi_local_peer *p, unsigned kind, const void *header,
                                            size_t header_len, const void *data, size_t len,
                                            dcommi_op *op)
{
    if (DCOMMI_LIKELY(p->queue == NULL && p->out.lines != NULL)) {
        unsigned char *body =
            dcommi_fifo_reserve(&p->out, header_len + len, dcommi_local_spare(p, len));
        if (DCOMMI_LIKELY(body != NULL)) {
            /* The header last: its line is the one that the reader looks at. */
            dcommi_local_fill(p, body + header_len, data, len);
            memcpy(body, header, header_len);
            dcommi_fifo_commit(&p->out, kind, header_len, len);
            return DCOMM_OK;
        }
    }
    return dcommi_local_enqueue(p, kind, header, header_len, data, len, op);
}

static dcomm_status dcommi_local_writable(dcommi_local *u, int peer, dcommi_local_peer **p_p)
{
    dcommi_local_peer *p = dcommi_local_peer_at(u, peer);
    if (DCOMMI_UNLIKELY(p == NULL)) {
        return dcommi_fail(DCOMM_ERR_INTERNAL, "%s: peer %d was never added", u->base.name, peer);
    }
    if (DCOMMI_UNLIKELY(p->lost || u->closing)) {
        return dcommi_fail(DCOMM_ERR_PEER, "%s: peer %d is lost: %s", u->base.name, peer,
                           p->lost ? p->why : "closed");
    }
    if (DCOMMI_UNLIKELY(p->out.lines == NULL && !p->ended)) {
        dcomm_status status = dcommi_local_connect(p);
        if (status < 0) {
            dcommi_local_end(p, "its memory cannot be mapped");
        }
    }
    *p_p = p;
    return DCOMM_OK;
}

static void *dcommi_local_reserve(dcommi_transport *t, int peer, size_t header_len, size_t len,
                                  bool *past)
{
    dcommi_local_peer *p = dcommi_local_peer_at((dcommi_local *)t, peer);
    if (p == NULL || p->lost || p->ended || p->out.lines == NULL || len > DCOMMI_LOCAL_EAGER) {
        return NULL;
    }
    p->in_place = len < DCOMMI_FILL_LEAST ? p->in_place : DCOMMI_LOCAL_LATELY;
    unsigned char *body = dcommi_fifo_reserve(&p->out, header_len + len, 0);
    *past = p->filler.past.second && t->bulk;
    return body != NULL ? body + header_len : NULL;
}

static void dcommi_local_commit(dcommi_transport *t, int peer, const void *header,
                                size_t header_len, size_t len)
{
    dcommi_local_peer *p = dcommi_local_peer_at((dcommi_local *)t, peer);
    unsigned char *body = (unsigned char *)dcommi_fifo_word(&p->out, p->out.at) + sizeof(uint64_t);
    memcpy(body, header, header_len);
    dcommi_fifo_commit(&p->out, DCOMMI_LOCAL_MSG, header_len, len);
}

static dcomm_status dcommi_local_send(dcommi_transport *t, int peer, const void *header,
                                      size_t header_len, const void *data, size_t len,
                                      dcommi_op *op)
{
    dcommi_local *u = (dcommi_local *)t;
    dcommi_local_peer *p = NULL;
    if (DCOMMI_UNLIKELY(header_len > DCOMMI_HEADER_MAX)) {
        return dcommi_fail(DCOMM_ERR_INTERNAL, "a header of %zu bytes is too long", header_len);
    }
    DCOMMI_TRY(dcommi_local_writable(u, peer, &p));
    if (len <= DCOMMI_LOCAL_EAGER) {
        return dcommi_local_put(p, DCOMMI_LOCAL_MSG, header, header_len, data, len, op);
    }
    dcommi_local_flight *f = dcommi_local_flight_new(u, op);
    if (f == NULL) {
        return DCOMM_ERR_NO_MEMORY;
    }
    f->id = u->next_flight++;
    f->bytes = (unsigned char *)(uintptr_t)data;
    f->len = len;
    unsigned char long_header[DCOMMI_HEADER_MAX + sizeof(dcommi_local_offer_tail)];
    dcommi_local_offer_tail tail = {f->id, len};
    memcpy(long_header, header, header_len);
    memcpy(long_header + header_len, &tail, sizeof tail);
    dcomm_status status = dcommi_local_put(p, DCOMMI_LOCAL_OFFER, long_header,
                                           header_len + sizeof tail, NULL, 0, NULL);
    if (status < 0) {
        u->npromised--;
        dcommi_free(f);
        return status;
    }
    f->next = p->sends;
    p->sends = f;
    return DCOMM_IN_PROGRESS;
}

/* What waits for room in the fifo, as far as there is some. */
static unsigned dcommi_local_pump(dcommi_local_peer *p)
{
    unsigned n = 0;
    if (p->out.lines == NULL) {
        dcomm_status status = p->ended ? DCOMM_IN_PROGRESS : dcommi_local_connect(p);
        if (status < 0) {
            dcommi_local_end(p, "its memory cannot be mapped");
        }
        if (status != DCOMM_OK) {
            return 0;
        }
    }
    while (p->queue != NULL) {
        dcommi_local_queued *q = p->queue;
        unsigned char *body =
            dcommi_fifo_reserve(&p->out, q->header_len + q->len, dcommi_local_spare(p, q->len));
        if (body == NULL) {
            return n;
        }
        memcpy(body, q->bytes, q->header_len);
        dcommi_local_fill(p, body + q->header_len, q->data, q->len);
        dcommi_fifo_commit(&p->out, q->kind, q->header_len, q->len);
        p->queue = q->next;
        if (q->op != NULL) {
            dcommi_local_done(p->local, q->op, DCOMM_OK);
        }
        dcommi_free(q);
        n++;
    }
    bool going = false;
    for (dcommi_local_flight **at = &p->sends; *at != NULL;) {
        dcommi_local_flight *f = *at;
        while (f->going && f->at < f->len) {
            size_t part = f->len - f->at;
            part = part < DCOMMI_LOCAL_EAGER ? part : DCOMMI_LOCAL_EAGER;
            unsigned char *body =
                dcommi_fifo_reserve(&p->out, sizeof f->id + part, dcommi_local_spare(p, part));
            if (body == NULL) {
                return n;
            }
            memcpy(body, &f->id, sizeof f->id);
            dcommi_local_fill(p, body + sizeof f->id, f->bytes + f->at, part);
            dcommi_fifo_commit(&p->out, DCOMMI_LOCAL_FRAG, sizeof f->id, part);
            f->at += part;
            n++;
        }
        if (f->going) {
            *at = f->next;
            dcommi_local_flight_done(p->local, f, DCOMM_OK);
        } else {
            at = &f->next;
        }
        going = going || (*at != NULL && (*at)->going);
    }
    dcommi_local_waiting(p, going);
    return n;
}

/* ---- receiving ---- */

static void dcommi_local_offer_free(dcommi_local_offer *o)
{
    *o->prev = o->next;
    if (o->next != NULL) {
        o->next->prev = o->prev;
    }
    dcommi_free(o);
}

static void dcommi_local_release(dcommi_transport *t, void *desc)
{
    dcommi_local_offer *o = desc;
    (void)t;
    if (o->peer != NULL) {
        dcommi_local_put(o->peer, DCOMMI_LOCAL_NO, &o->id, sizeof o->id, NULL, 0, NULL);
    }
    dcommi_local_offer_free(o);
}

static dcomm_status dcommi_local_fetch(dcommi_transport *t, void *desc, void *buf, size_t len,
                                       dcommi_op *op)
{
    dcommi_local_offer *o = desc;
    dcommi_local_peer *p = o->peer;
    if (p == NULL) {
        dcommi_local_offer_free(o);
        return dcommi_fail(DCOMM_ERR_PEER, "%s: the sender of a message of %zu bytes is lost",
                           t->name, len);
    }
    dcommi_local_flight *f = dcommi_local_flight_new(p->local, op);
    if (f == NULL) {
        return DCOMM_ERR_NO_MEMORY;
    }
    f->id = o->id;
    f->bytes = buf;
    f->len = len;
    f->next = p->fetches;
    p->fetches = f;
    dcommi_local_offer_free(o);
    dcomm_status status = dcommi_local_put(p, DCOMMI_LOCAL_GO, &f->id, sizeof f->id, NULL, 0, NULL);
    if (status < 0) {
        p->fetches = f->next;
        p->local->npromised--;
        dcommi_free(f);
        return status;
    }
    return DCOMM_IN_PROGRESS;
}

static void dcommi_local_on_offer(dcommi_local_peer *p, const dcommi_record *r)
{
    dcommi_local *u = p->local;
    dcommi_local_offer_tail tail;
    if (r->header_len < sizeof tail) {
        dcommi_local_end(p, "what it sent cannot be right");
        return;
    }
    dcommi_arrival arrival = {
        .peer = p->index, .header = r->header, .header_len = r->header_len - sizeof tail};
    memcpy(&tail, r->header + arrival.header_len, sizeof tail);
    dcommi_local_offer *o = dcommi_alloc(sizeof *o);
    if (o == NULL || tail.len == 0) {
        dcommi_free(o);
        dcommi_local_end(p, "there is no memory for what it sends");
        return;
    }
    *o = (dcommi_local_offer){.next = u->offers, .prev = &u->offers, .peer = p, .id = tail.id};
    if (o->next != NULL) {
        o->next->prev = &o->next;
    }
    u->offers = o;
    arrival.len = tail.len;
    arrival.desc = o;
    u->base.handlers.on_message(u->base.handlers.user, &u->base, &arrival);
}

/* GO and NO: a send of ours is wanted, or not. */
static void dcommi_local_on_verdict(dcommi_local_peer *p, uint64_t id, bool go)
{
    for (dcommi_local_flight **at = &p->sends; *at != NULL; at = &(*at)->next) {
        dcommi_local_flight *f = *at;
        if (f->id != id) {
            continue;
        }
        if (go) {
            f->going = true;
            dcommi_local_waiting(p, true);
        } else {
            *at = f->next;
            dcommi_local_flight_done(p->local, f, DCOMM_OK);
        }
        return;
    }
}

static void dcommi_local_on_fragment(dcommi_local_peer *p, uint64_t id, const dcommi_record *r)
{
    for (dcommi_local_flight **at = &p->fetches; *at != NULL; at = &(*at)->next) {
        dcommi_local_flight *f = *at;
        if (f->id != id) {
            continue;
        }
        if (r->len > f->len - f->at) {
            dcommi_local_end(p, "what it sent cannot be right");
            return;
        }
        memcpy(f->bytes + f->at, r->data, r->len);
        f->at += r->len;
        if (f->at == f->len) {
            *at = f->next;
            dcommi_local_flight_done(p->local, f, DCOMM_OK);
        }
        return;
    }
}

/* False: the record is to stay where it is. */
static bool dcommi_local_handle(dcommi_local_peer *p, const dcommi_record *r)
{
    dcommi_local *u = p->local;
    uint64_t id;
    if (r->kind == DCOMMI_LOCAL_MSG) {
        dcommi_arrival arrival = {.peer = p->index,
                                  .header = r->header,
                                  .header_len = r->header_len,
                                  .data = r->data,
                                  .len = r->len,
                                  .stays = true};
        return u->base.handlers.on_message(u->base.handlers.user, &u->base, &arrival) !=
               DCOMMI_LATER;
    }
    if (r->kind == DCOMMI_LOCAL_OFFER) {
        dcommi_local_on_offer(p, r);
        return true;
    }
    if (r->header_len != sizeof id || r->kind > DCOMMI_LOCAL_FRAG) {
        dcommi_local_end(p, "what it sent cannot be right");
        return true;
    }
    memcpy(&id, r->header, sizeof id);
    if (r->kind == DCOMMI_LOCAL_FRAG) {
        dcommi_local_on_fragment(p, id, r);
    } else {
        dcommi_local_on_verdict(p, id, r->kind == DCOMMI_LOCAL_GO);
    }
    return true;
}

static unsigned dcommi_local_poll(dcommi_local_peer *p)
{
    dcommi_record r;
    unsigned n = 0;
    int got = 0;
    while (n < DCOMMI_LOCAL_BURST && (got = dcommi_fifo_next(&p->in, &r)) > 0) {
        n++;
        if (!dcommi_local_handle(p, &r)) {
            return n;
        }
        p->out.brisk = 0;
        dcommi_fifo_pass(&p->in, &r);
        if (p->removed) {
            p->local->fifos[p->fifo] = p->in;
            return n;
        }
    }
    if (DCOMMI_UNLIKELY(got < 0)) {
        dcommi_local_end(p, "what it sent cannot be right");
    }
    return n;
}

/* ---- progress ---- */

/* Have peers ended? */
static void dcommi_local_watch(dcommi_local *u)
{
    double now = dcommi_coarse_now();
    void *users[16];
    if (now - u->last_watch < DCOMMI_LOCAL_WATCH) {
        return;
    }
    u->last_watch = now;
    int n = dcommi_watch_poll(u->epoll, users, 16);
    for (int i = 0; i < n; i++) {
        dcommi_local_end(users[i], "its process has ended");
    }
    for (size_t i = 0; i < u->npolled; i++) {
        dcommi_local_peer *p = u->polled[i];
        bool dead = p->lock >= 0 && !p->ended && dcommi_watch_unlocked(p->lock);
        if (p->directory != NULL &&
            atomic_load_explicit(&p->directory->closed, memory_order_acquire) != 0) {
            dcommi_local_end(p, "it has closed its connections");
        } else if (dead) {
            dcommi_local_end(p, "its process has ended");
        }
    }
}

/* What the peers that ended had sent is read: now they are lost. */
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
            u->base.handlers.on_peer_lost(u->base.handlers.user, &u->base, p->index, p->why);
        }
    }
    return n;
}

static unsigned dcommi_local_deliver(dcommi_local *u)
{
    unsigned n = 0;
    while (u->ndone > 0) { /* an op that is done may start others */
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
    if (DCOMMI_UNLIKELY((++u->turns & 63) == 0)) {
        dcommi_local_watch(u);
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
    p->out.brisk++;
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

/* Those outside find us only once we have opened our door, and we them. */
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
        return dcommi_fail(DCOMM_ERR_CORRUPT, "%s: an address of %zu bytes", t->name, len);
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
    if (u->file >= 0) {
        dcommi_sys_close(u->file);
    }
    if (u->lock >= 0) {
        dcommi_sys_close(u->lock);
    }
    if (u->epoll >= 0) {
        dcommi_sys_close(u->epoll);
    }
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
    /* Peers keep what they have mapped for as long as they want. */
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

/* Without shared memory or a Unix socket there can be no peers: others see it by our address. */
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

/* Shared memory with the processes of this host. */
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
