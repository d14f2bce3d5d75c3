/* receive.h - takes messages from a peer of this host: the records of its fifo, and long payloads,
 * which the engine fetches or declines. */
#ifndef DCOMMI_LOCAL_RECEIVE_H
#define DCOMMI_LOCAL_RECEIVE_H

#include "send.h"

/* Most records taken from one peer before the next gets its turn. */
#define DCOMMI_LOCAL_BURST 32

/* ---- long payloads ---- */

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
        dcommi_local_end(p, "there is no memory for its message");
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

/* ---- records ---- */

/* Find the long payload with this number. Return NULL if it has ended. */
static dcommi_local_flight **dcommi_local_flight_at(dcommi_local_flight **at, uint64_t id)
{
    while (*at != NULL && (*at)->id != id) {
        at = &(*at)->next;
    }
    return *at != NULL ? at : NULL;
}

/* Complete a long payload. */
static void dcommi_local_landed(dcommi_local_peer *p, dcommi_local_flight **at)
{
    dcommi_local_flight *f = *at;
    *at = f->next;
    dcommi_local_flight_done(p->local, f, DCOMM_OK);
}

/* Handle GO or NO: the peer fetches or declines a long payload of ours. */
static void dcommi_local_on_verdict(dcommi_local_peer *p, uint64_t id, bool go)
{
    dcommi_local_flight **at = dcommi_local_flight_at(&p->sends, id);
    if (at != NULL && go) {
        (*at)->going = true;
        dcommi_local_waiting(p, true);
    } else if (at != NULL) {
        dcommi_local_landed(p, at);
    }
}

static void dcommi_local_on_fragment(dcommi_local_peer *p, uint64_t id, const dcommi_record *r)
{
    dcommi_local_flight **at = dcommi_local_flight_at(&p->fetches, id);
    if (at == NULL) {
        return;
    }
    dcommi_local_flight *f = *at;
    if (r->len > f->len - f->at) {
        dcommi_local_end(p, "what it sent cannot be right");
        return;
    }
    memcpy(f->bytes + f->at, r->data, r->len);
    f->at += r->len;
    if (f->at == f->len) {
        dcommi_local_landed(p, at);
    }
}

/* Handle a record. Return false if it must stay in the fifo. */
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
        p->out.scripted = 0;
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

#endif
