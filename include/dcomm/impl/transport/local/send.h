/* send.h - sends messages to a peer of this host: into its fifo, or into a queue while the fifo is
 * full. Long messages are offered, and follow in fragments when the peer answers GO. */
#ifndef DCOMMI_LOCAL_SEND_H
#define DCOMMI_LOCAL_SEND_H

#include "peer.h"

/* Bytes of a fifo that long payloads (fill.h) leave free. A payload that is written long before it
 * is read would have left the cache by then. They leave more free if payloads were written in
 * place (reserve) lately. Those would otherwise wait in the queue, and leave the cache before they
 * are copied. */
#define DCOMMI_LOCAL_SPARE ((size_t)3 * DCOMMI_LOCAL_EAGER)
#define DCOMMI_LOCAL_SPARE_IN_PLACE ((size_t)4 * DCOMMI_LOCAL_EAGER)
#define DCOMMI_LOCAL_LATELY 64 /* payloads for which "lately" lasts */
/* Longest payload, in bytes, that is copied to the queue when the fifo is full. */
#define DCOMMI_LOCAL_COPIED 256

/* Queue a record until there is room. */
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

/* Write a record to the peer's fifo, or queue it if others are queued or there is no room. */
static inline dcomm_status dcommi_local_put(dcommi_local_peer *p, unsigned kind, const void *header,
                                            size_t header_len, const void *data, size_t len,
                                            dcommi_op *op)
{
    if (DCOMMI_LIKELY(p->queue == NULL && p->out.lines != NULL)) {
        unsigned char *body =
            dcommi_fifo_reserve(&p->out, header_len + len, dcommi_local_spare(p, len));
        if (DCOMMI_LIKELY(body != NULL)) {
            /* Write the header last: the reader polls its line. */
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

/* Write queued records and fragments while the fifo has room. Return the number of records. */
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

#endif
