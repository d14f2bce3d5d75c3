/* arrive.h - takes messages that UCX delivers. Short ones go to the engine at once; parts of long
 * ones are gathered first. */
#ifndef DCOMMI_UCX_ARRIVE_H
#define DCOMMI_UCX_ARRIVE_H

#include "parts.h"

/* Find the sender of a long message. Note how many endpoints it uses, to open as many: then both
 * sides notice one that breaks. */
static void dcommi_ucx_know_sender(dcommi_ucx *u, dcommi_ucx_kept *k)
{
    dcommi_ucx_peer *p = k->peer = dcommi_ucx_peer_by_id(u, k->tail.id);
    if (p != NULL && k->tail.connection >= p->wanted) {
        p->wanted = k->tail.connection + 1;
        u->opens = true;
    }
}

/* Take in a message. `data` of a long one is UCX's name for it, and `len` its payload's length;
 * NULL and SIZE_MAX if the sender keeps the payload. */
static ucs_status_t dcommi_ucx_arrived(dcommi_ucx *u, const void *header, size_t header_len,
                                       void *data, size_t len, bool is_long, bool stays)
{
    dcommi_arrival arrival = {.peer = -1,
                              .header = header,
                              .header_len = header_len,
                              .data = data != NULL ? data : "",
                              .len = len};
    if (DCOMMI_UNLIKELY(u->closing)) {
        return UCS_OK;
    }
    bool kept = stays && (u->spare_kept != NULL || dcommi_ucx_refill(u));
    if (!kept && !is_long) { /* the engine copies what it cannot take at once */
        u->base.handlers.on_message(u->base.handlers.user, &u->base, &arrival);
        return UCS_OK;
    }
    if (!kept) {
        return UCS_ERR_NO_MEMORY;
    }
    dcommi_ucx_kept *k = u->spare_kept;
    u->spare_kept = k->next;
    k->data = data;
    k->peer = NULL;
    k->more = NULL;
    k->tail.parts = 1;
    k->removed = k->dropped = false;
    k->arriving = true;
    dcommi_ucx_kept_link(u, k);
    arrival.desc = k;
    if (is_long) {
        bool good = header_len >= sizeof k->tail;
        arrival.header_len -= good ? sizeof k->tail : 0;
        memcpy(&k->tail, (const char *)header + arrival.header_len, good ? sizeof k->tail : 0);
        good = good && dcommi_ucx_tail_valid(&k->tail, len);
        if (good) {
            dcommi_ucx_know_sender(u, k);
        }
        /* Accept parts only from a living peer: otherwise nothing would complete or drop them. One
         * that is unknown was removed: it does not send parts before we have added it. */
        bool dead = good && (k->peer == NULL || k->peer->failure != UCS_OK);
        if (good && !dead && k->tail.parts > 1) {
            arrival.desc = dcommi_ucx_gather(u, k, &good);
        }
        if (!good || (dead && k->tail.parts > 1)) {
            dcommi_ucx_kept_put(u, k);
            if (!good) {
                u->base.handlers.on_corrupt(u->base.handlers.user, &u->base, &arrival);
            }
            return UCS_ERR_INVALID_PARAM;
        }
        if (arrival.desc == NULL) {
            k->arriving = false;
            return UCS_INPROGRESS;
        }
        arrival.peer = k->peer != NULL ? k->peer->index : -1;
        arrival.data = NULL;
        arrival.len = (size_t)k->tail.total;
    }
    dcommi_verdict verdict = u->base.handlers.on_message(u->base.handlers.user, &u->base, &arrival);
    k->arriving = false;
    if (verdict == DCOMMI_KEEP && !k->dropped) {
        return UCS_INPROGRESS;
    }
    dcommi_ucx_kept_put(u, k);
    return UCS_OK;
}

static ucs_status_t dcommi_ucx_on_am(void *arg, const void *header, size_t header_len, void *data,
                                     size_t len, const ucp_am_recv_param_t *param)
{
    bool is_long = (param->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV) != 0;
    bool stays = is_long || (param->recv_attr & UCP_AM_RECV_ATTR_FLAG_DATA) != 0;
    return dcommi_ucx_arrived(arg, header, header_len, data, len, is_long, stays);
}

/* A long message. UCX holds nothing of it: what is not kept is declined. */
static ucs_status_t dcommi_ucx_on_ask(void *arg, const void *header, size_t header_len, void *data,
                                      size_t len, const ucp_am_recv_param_t *param)
{
    dcommi_ucx *u = arg;
    dcommi_ucx_tail tail;
    (void)data, (void)len, (void)param;
    ucs_status_t status = dcommi_ucx_arrived(u, header, header_len, NULL, SIZE_MAX, true, true);
    if (status != UCS_INPROGRESS && header_len >= sizeof tail) {
        memcpy(&tail, (const char *)header + header_len - sizeof tail, sizeof tail);
        dcommi_ucx_decline(u, &tail);
    }
    return UCS_OK;
}

#endif
