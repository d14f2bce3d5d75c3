/* message.h - messages under way in a priced execution: they keep ports and processors busy, and
 * move when both sides have met. */
#ifndef DCOMMI_MODEL_MESSAGE_H
#define DCOMMI_MODEL_MESSAGE_H

#include "queue.h"

/* ---- ports and processors ---- */

static inline const dcommi_link *dcommi_sim_link(const dcommi_sim *s, int depth)
{
    return &s->terrain->link[dcommi_terrain_kind(s->terrain, depth)];
}

/* Do `work` ps on a rank's processor, at `from` or when it is free. Return the end. */
static inline int64_t dcommi_sim_work(dcommi_sim *s, int actor, int64_t from, int64_t work)
{
    if (work > 0) {
        const dcommi_sim_actor *a = &s->actor[actor];
        int64_t *core = &s->actor[a->seat].core;
        *core = from = dcommi_max64(from, *core) + a->turns * work;
    }
    return from;
}

/* Send `len` bytes through the ports of an actor, at `from` or when these are free. Return the
 * time of the first byte; *end: that of the last. */
static int64_t dcommi_sim_port(dcommi_sim *s, int actor, int depth, bool out, int64_t from,
                               int64_t len, int64_t *end)
{
    const dcommi_terrain *t = s->terrain;
    const dcommi_link *link = dcommi_sim_link(s, depth);
    int64_t *own = out ? &s->actor[actor].out : &s->actor[actor].in;
    int64_t start = dcommi_max64(from, *own), busy = dcommi_curve_at(&link->message, len);
    if (link->shared.n > 0 && t->groups != NULL && depth < t->groups->nlevels) {
        const dcommi_sim_port_of *port = &s->port[depth * s->period + actor];
        int64_t at = (2 * depth + out) * t->nranks + port->group, *until = &s->until[at];
        int64_t all = port->alike * dcommi_curve_at(&link->shared, len);
        s->carried[at] += port->alike * len;
        start = dcommi_max64(start, *until);
        busy = dcommi_max64(busy, all);
        *until = start + all;
    }
    *own = *end = start + busy;
    return start;
}

/* ---- ends ---- */

/* End a move of a lane at time `end`, now or later. */
static void dcommi_sim_complete(dcommi_sim *s, dcommi_sim_lane *lane, bool async, int64_t end)
{
    if (!async) {
        dcommi_sim_resume(s, lane, end);
        return;
    }
    lane->pending--;
    lane->async_end = dcommi_max64(lane->async_end, end);
    if (lane->pending == 0 && lane->state == DCOMMI_SIM_FENCED) {
        dcommi_sim_resume(s, lane, dcommi_max64(s->now, lane->async_end));
    }
}

/* Let the receiver take a message, which has arrived and whose receive is posted. */
static void dcommi_sim_take(dcommi_sim *s, dcommi_sim_msg *m)
{
    const dcommi_link *link = dcommi_sim_link(s, m->depth);
    const dcommi_terrain *t = s->terrain;
    int64_t work = link->overhead;
    if (m->open) {
        work += dcommi_curve_at(m->folds ? &t->open_reduce : &t->open_read, m->len);
    } else {
        work += (link->by_core ? dcommi_curve_at(&link->message, m->len) : 0) +
                (m->folds ? dcommi_curve_at(&link->fold, m->len) : 0);
    }
    int64_t end = dcommi_sim_work(s, m->to, s->now, work);
    dcommi_sim_complete(s, m->receiver, m->async, end);
    if (m->sender != NULL) {
        dcommi_sim_complete(s, m->sender, m->sender_async, end + link->signal);
    }
    dcommi_sim_msg_free(s, m);
}

/* Send the bytes of a message through the sender's port, and end the send. */
static void dcommi_sim_leave(dcommi_sim *s, dcommi_sim_msg *m, int64_t from)
{
    int64_t end, start = dcommi_sim_port(s, m->from, m->depth, true, from, m->len, &end);
    const dcommi_link *link = dcommi_sim_link(s, m->depth);
    int64_t stage = m->host ? 0 : m->waits || m->join != NULL ? link->straight : link->stage;
    dcommi_sim_at(s, start + link->alpha + stage, DCOMMI_SIM_HEAD, m);
    if (m->sender != NULL) {
        dcommi_sim_complete(s, m->sender, m->sender_async, end);
        m->sender = NULL;
    }
}

/* Join the two sides of a message, then move it or take it. */
static void dcommi_sim_meet(dcommi_sim *s, dcommi_sim_msg *m, dcommi_sim_msg *receive)
{
    m->receiver = receive->receiver;
    m->async = receive->async;
    m->folds = receive->folds;
    dcommi_sim_msg_free(s, receive);
    if (m->waits && !m->open && !dcommi_sim_link(s, m->depth)->by_core) {
        dcommi_sim_leave(s, m, s->now);
    } else {
        dcommi_sim_take(s, m);
    }
}

/* ---- events of messages ---- */

/* Handle the last byte of a message. */
static void dcommi_sim_tail(dcommi_sim *s, dcommi_sim_msg *m)
{
    dcommi_sim_join *join = m->join;
    if (join == NULL) {
        dcommi_sim_msg *receive = m->receiver == NULL ? dcommi_sim_match(s, m) : NULL;
        if (receive != NULL) {
            dcommi_sim_meet(s, m, receive);
        } else if (m->receiver != NULL) {
            dcommi_sim_take(s, m);
        }
        return;
    }
    if (--join->left == 0) {
        int64_t end = dcommi_sim_work(s, m->to, s->now, join->work);
        dcommi_sim_complete(s, join->lane, join->async, end);
        *(join->prev != NULL ? &join->prev->next : &s->joins) = join->next;
        if (join->next != NULL) {
            join->next->prev = join->prev;
        }
        dcommi_free(join);
    }
    dcommi_sim_msg_free(s, m);
}

/* Handle an event of a message. */
static void dcommi_sim_happen(dcommi_sim *s, int kind, dcommi_sim_msg *m)
{
    int64_t end;
    if (kind == DCOMMI_SIM_OFFER) {
        dcommi_sim_msg *receive = dcommi_sim_match(s, m);
        if (receive != NULL) {
            dcommi_sim_meet(s, m, receive);
        }
    } else if (kind == DCOMMI_SIM_HEAD) {
        dcommi_sim_port(s, m->to, m->depth, false, s->now, m->len, &end);
        dcommi_sim_at(s, end, DCOMMI_SIM_TAIL, m);
    } else if (kind == DCOMMI_SIM_TAIL) {
        dcommi_sim_tail(s, m);
    } else {
        const dcommi_link *link = dcommi_sim_link(s, m->depth);
        dcommi_sim_leave(s, m, dcommi_sim_work(s, m->from, s->now, link->overhead));
    }
}

#endif
