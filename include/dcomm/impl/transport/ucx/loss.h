/* loss.h - handles the end of a peer: its connections broke, or it was removed. Forgets its
 * incomplete messages and gives up the ops under way to it. */
#ifndef DCOMMI_UCX_LOSS_H
#define DCOMMI_UCX_LOSS_H

#include "parts.h"

/* ---- lost ---- */

/* Return true if a peer counts as lost: all its connections have broken, or the first broke more
 * than DCOMMI_UCX_LAST_WORDS_S ago. Before that the last messages of a peer that has closed may
 * still arrive on another connection. */
static bool dcommi_ucx_is_lost(dcommi_ucx_peer *p)
{
    bool all = p->opened > 0 && p->failed == (UINT32_C(1) << p->opened) - 1;
    return all || dcommi_coarse_now() > p->failed_at + DCOMMI_UCX_LAST_WORDS_S;
}

static unsigned dcommi_ucx_report_lost(dcommi_ucx *u)
{
    unsigned n = 0;
    for (size_t i = 0; i < u->peers_capacity; i++) {
        dcommi_ucx_peer *p = u->peers[i];
        if (p == NULL || p->failure == UCS_OK || p->reported) {
            continue;
        }
        if (!u->closing && !dcommi_ucx_is_lost(p)) {
            u->chores = true;
            continue;
        }
        p->reported = true;
        dcommi_ucx_forget_parts(u, p);
        dcommi_ucx_peer_close(p);
        n++;
        if (!u->closing) {
            u->base.handlers.on_peer_lost(u->base.handlers.user, &u->base, p->index,
                                          dcommi_ucx_why(p), DCOMMI_LOSS_SILENT);
        }
    }
    return n;
}

/* ---- removed ---- */

static void dcommi_ucx_kept_forget_peer(dcommi_ucx *u, const dcommi_ucx_peer *p)
{
    for (dcommi_ucx_kept *k = u->kept.next; k != &u->kept; k = k->next) {
        if (k->peer == p) {
            k->peer = NULL;
            k->removed = true;
        }
    }
}

/* Return true if a peer's connections are too new to be closed. UCX 1.13 aborts a process whose
 * answer to a new connection is still queued when that connection breaks. This concerns peers with
 * several connections. */
static bool dcommi_ucx_is_fresh(const dcommi_ucx_peer *p)
{
    return !p->ucx->at_once && p->opened > 1 && p->failure == UCS_OK &&
           dcommi_coarse_now() < p->opened_at + DCOMMI_UCX_FRESH_S;
}

static void dcommi_ucx_sweep_removed(dcommi_ucx *u)
{
    for (dcommi_ucx_peer **link = &u->removed; *link != NULL;) {
        dcommi_ucx_peer *p = *link;
        bool fresh = p->closed_at <= 0 && dcommi_ucx_is_fresh(p);
        if ((p->flushing == 0 || p->failure != UCS_OK) && !fresh) {
            dcommi_ucx_peer_close(p);
        }
        if (p->flushing > 0 || p->flights > 0 || fresh) { /* these still use p */
            link = &p->next;
            continue;
        }
        *link = p->next;
        dcommi_ucx_peer_free(p);
    }
}

static void dcommi_ucx_remove_peer(dcommi_transport *t, int peer)
{
    dcommi_ucx *u = (dcommi_ucx *)t;
    dcommi_ucx_peer *p = dcommi_ucx_peer_at(u, peer);
    if (p == NULL) {
        return;
    }
    bool direct = u->direct;
    u->direct = false;
    u->peers[peer] = NULL;
    dcommi_ucx_forget_parts(u, p);
    dcommi_ucx_kept_forget_peer(u, p);
    p->next = u->removed;
    u->removed = p;
    u->chores = true;
    if (!u->inside) {
        dcommi_ucx_sweep_removed(u);
    }
    u->direct = direct;
}

/* ---- given up ---- */

/* Give ops back a moment after their endpoint was closed, because UCX cannot cancel sends to a
 * dead process whose queue is full. A fetch from a peer that may be alive must wait: its data
 * might still arrive in the buffer. Return how many ops were given back. */
static unsigned dcommi_ucx_give_up(dcommi_ucx *u, double now)
{
    unsigned n = 0;
    for (dcommi_ucx_flight *f = u->pending.next, *next; f != &u->pending; f = next) {
        dcommi_ucx_peer *p = f->peer;
        next = f->next;
        if (p == NULL || p->closed_at <= 0 || now < p->closed_at + 0.1 ||
            (f->is_fetch && p->failure == UCS_OK)) {
            continue;
        }
        dcommi_op *op = f->op;
        f->op = NULL;
        f->peer = NULL;
        p->flights--;
        if (op != NULL) {
            op->handle = NULL;
            op->done(op, DCOMM_ERR_PEER);
            n++;
            next = u->pending.next; /* `done` may have started others */
        }
    }
    return n;
}

/* Give ops back and close removed peers, at most every 50 ms. Return how many were given back. */
static unsigned dcommi_ucx_watch(dcommi_ucx *u)
{
    double now = dcommi_coarse_now();
    if (now - u->last_watch < 0.05) {
        return 0;
    }
    u->last_watch = now;
    unsigned given_up = u->pending.next != &u->pending ? dcommi_ucx_give_up(u, now) : 0;
    if (u->removed != NULL) {
        dcommi_ucx_sweep_removed(u);
    }
    return given_up;
}

#endif
