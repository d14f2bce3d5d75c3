/* rendezvous_join.h - newcomers at the server of an id: they wait until the communicator grows, are
 * invited to attempts to create it, and report that an attempt is over. */
#ifndef DCOMMI_RENDEZVOUS_JOIN_H
#define DCOMMI_RENDEZVOUS_JOIN_H

#include "rendezvous_core.h"

/* Let a newcomer wait. It has proved that it knows the secret. */
static void dcommi_rdv_park(dcommi_rdv_core *c, dcommi_rdv_conn *conn, const dcommi_rdv_hello *h,
                            double now)
{
    char why[160];
    if (h->wire != DCOMMI_RDV_WIRE_VERSION || h->lib != DCOMMI_RDV_LIB_VERSION) {
        snprintf(why, sizeof why, "this newcomer runs dcomm %u.%u.%u, rank 0 runs %s", h->lib >> 16,
                 h->lib >> 8 & 255, h->lib & 255, DCOMM_VERSION_STRING);
        dcommi_rdv_refuse(conn, now, DCOMM_ERR_MISMATCH, why);
        return;
    }
    if (c->size != 0 || c->job[0] != '\0') {
        dcommi_rdv_refuse(conn, now, DCOMM_ERR_INVALID,
                          "this id serves the creation of a communicator; newcomers to one that "
                          "grows take another id");
        return;
    }
    dcommi_rdv_unguest(c, conn);
    conn->state = DCOMMI_RDV_PARKED;
    conn->waiting = true;
    /* It says itself that its time is up. Without a word, its host is gone. */
    conn->deadline = now + 1.1 * h->timeout_ms / 1000.0 + 1;
}

/* Send all newcomers away. */
static void dcommi_rdv_dismiss(dcommi_rdv_core *c, double now, const char *why)
{
    for (size_t i = 0; i < c->nconns; i++) {
        if (c->conns[i]->state == DCOMMI_RDV_PARKED) {
            dcommi_rdv_refuse(c->conns[i], now, DCOMM_ERR_INVALID, why);
        }
    }
}

/* Return true if a newcomer may send such a frame. */
static bool dcommi_rdv_parked_may(const dcommi_rdv_header *h)
{
    return (h->type == DCOMMI_RDV_REPORT && h->length == DCOMMI_RDV_REPORT_LEN) ||
           (h->type == DCOMMI_RDV_BYE && h->length == 0);
}

/* Handle a genuine frame of a newcomer, which lies in conn->in. */
static void dcommi_rdv_parked_frame(dcommi_rdv_conn *conn, const dcommi_rdv_header *h)
{
    conn->in_len = 0;
    if (h->type == DCOMMI_RDV_BYE) {
        conn->state = DCOMMI_RDV_GONE;
    } else if (dcommi_get32(conn->in + DCOMMI_RDV_HEADER) == conn->attempt) {
        conn->reported = true;
    }
}

/* ---- attempts ---- */

/* Return how many newcomers wait: those that came first, and are in no attempt. */
static uint32_t dcommi_rdv_parked(const dcommi_rdv_core *c)
{
    uint32_t n = 0;
    for (size_t i = 0; i < c->nconns; i++) {
        n += c->conns[i]->state == DCOMMI_RDV_PARKED && c->conns[i]->waiting;
    }
    return n;
}

/* Invite up to `most` newcomers that wait, in the order in which they came, to the ranks from
 * `old` on of a rendezvous that is served at `port`. Return how many there are. */
static uint32_t dcommi_rdv_invite(dcommi_rdv_core *c, uint32_t most, dcommi_rdv_invitation *i,
                                  uint32_t old)
{
    uint8_t payload[DCOMMI_RDV_INVITE_LEN];
    uint32_t n = dcommi_rdv_parked(c);
    n = n < most ? n : most;
    i->attempt = ++c->attempts;
    i->size = old + n;
    i->rank = old;
    for (size_t k = 0; k < c->nconns && i->rank < i->size; k++) {
        dcommi_rdv_conn *conn = c->conns[k];
        if (conn->state != DCOMMI_RDV_PARKED || !conn->waiting) {
            continue;
        }
        dcommi_rdv_put_invitation(payload, i);
        conn->attempt = i->attempt;
        conn->reported = conn->waiting = false;
        dcommi_rdv_say_tagged(conn, DCOMMI_RDV_INVITE, payload, sizeof payload);
        i->rank++;
    }
    return n;
}

/* The newcomers of an attempt. */
typedef struct dcommi_rdv_guests {
    uint32_t there;    /* whose connection is open */
    uint32_t reported; /* and that have reported */
} dcommi_rdv_guests;

static dcommi_rdv_guests dcommi_rdv_guests_of(const dcommi_rdv_core *c, uint32_t attempt)
{
    dcommi_rdv_guests g = {0};
    for (size_t i = 0; i < c->nconns; i++) {
        const dcommi_rdv_conn *conn = c->conns[i];
        const bool there = conn->state == DCOMMI_RDV_PARKED && conn->attempt == attempt;
        g.there += there;
        g.reported += there && conn->reported;
    }
    return g;
}

/* End an attempt. If it has `succeeded`, its newcomers are ranks. Else those that have reported
 * wait for another; the others do so too if they are `pardoned`, or are sent away. */
static void dcommi_rdv_end_attempt(dcommi_rdv_core *c, uint32_t attempt, bool succeeded,
                                   bool pardoned, double now)
{
    for (size_t i = 0; i < c->nconns; i++) {
        dcommi_rdv_conn *conn = c->conns[i];
        if (conn->state != DCOMMI_RDV_PARKED || conn->attempt != attempt || conn->waiting) {
            continue;
        }
        if (succeeded) {
            dcommi_rdv_say_tagged(conn, DCOMMI_RDV_READY, NULL, 0);
            if (conn->state != DCOMMI_RDV_GONE) {
                dcommi_rdv_farewell(conn, now);
            }
        } else if (conn->reported || pardoned) {
            conn->waiting = true;
            conn->deadline = now + DCOMMI_RDV_PARKED_S;
        } else {
            dcommi_rdv_refuse(conn, now, DCOMM_ERR_TIMEOUT,
                              "this newcomer did not take part in time: the communicator grows "
                              "without it");
        }
    }
}

#endif
