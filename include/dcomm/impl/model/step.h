/* step.h - price each step of a plan, and start the messages and signals of it. */
#ifndef DCOMMI_MODEL_STEP_H
#define DCOMMI_MODEL_STEP_H

#include "message.h"

/* ---- values and lengths ---- */

/* Return true if a status of the cursor is good; else the execution fails with it. */
static inline bool dcommi_sim_good(dcommi_sim *s, dcomm_status status)
{
    if (DCOMMI_UNLIKELY(status < 0)) {
        dcommi_sim_fail(s, status);
    }
    return status >= 0;
}

/* Evaluate an expression that reads no word; 0 after an error. */
static int64_t dcommi_sim_value(dcommi_sim *s, const dcommi_sim_lane *lane, const dcomm_expr *e)
{
    int64_t value;
    return dcommi_sim_good(s, dcommi_cursor_value(&lane->cursor, e, &value)) ? value : 0;
}

/* Return the bytes of piece r of an operand. A length that is in a word is unknown: take the share
 * of the maximum that the plan expects of its codec. */
static int64_t dcommi_sim_length(dcommi_sim *s, const dcommi_sim_lane *lane, const dcomm_operand *o,
                                 uint32_t r)
{
    if (o->length.kind == DCOMM_EXPR_WORD) {
        uint32_t share = lane->frame->scope.plan->codec_length;
        return share > 0 ? (int64_t)((double)o->max_length * share / 1024) : o->max_length;
    }
    if (o->offset.kind == DCOMM_EXPR_WORD) { /* the offset is unknown: ignore clip */
        return dcommi_min64(dcommi_max64(dcommi_sim_value(s, lane, &o->length), 0), o->max_length);
    }
    dcommi_interval x;
    return dcommi_sim_good(s, dcommi_cursor_piece(&lane->cursor, o, r, &x)) ? x.length : 0;
}

static inline bool dcommi_sim_open_space(const dcommi_sim_frame *f, uint8_t space)
{
    return f->open >> space & 1;
}

/* ---- steps: each returns the time at which the lane goes on, or one of these ---- */

/* STOP: an event resumes the lane; AGAIN: at the same step. */
enum { DCOMMI_SIM_STOP = -1, DCOMMI_SIM_AGAIN = -2 };

/* Return the link between the lane's rank and another. *depth: the level at which they part. */
static inline const dcommi_link *
dcommi_sim_link_to(const dcommi_sim *s, const dcommi_sim_lane *lane, int rank, int *depth)
{
    *depth = dcommi_terrain_depth(s->terrain, lane->frame->rank, rank);
    return dcommi_sim_link(s, *depth);
}

/* Make one side of the message of the lane's step. *rank: the peer. NULL after an error. */
static dcommi_sim_msg *dcommi_sim_message(dcommi_sim *s, dcommi_sim_lane *lane,
                                          const dcomm_step *step, int *rank)
{
    int64_t tag;
    if (!dcommi_sim_good(s, dcommi_cursor_peer(&lane->cursor, &step->peer, rank)) ||
        !dcommi_sim_good(s, dcommi_cursor_tag(&lane->cursor, step, &tag))) {
        return NULL;
    }
    dcommi_sim_msg *m = dcommi_sim_msg_new(s);
    if (m != NULL) {
        m->tag = tag;
    }
    return m;
}

/* Wait for a move that was started, or, if `async`, count it and go on. */
static int64_t dcommi_sim_started(dcommi_sim_lane *lane, bool async, int64_t now)
{
    if (async) {
        lane->pending++;
        return now;
    }
    lane->state = DCOMMI_SIM_MOVING;
    return DCOMMI_SIM_STOP;
}

/* Return true if a send repeats the message that the lane's loop has already sent to another rank.
 * A broadcast slot carries it to all ranks at once. */
static bool dcommi_sim_posted(const dcommi_sim *s, const dcommi_sim_lane *lane,
                              const dcomm_step *step, int64_t len)
{
    const dcomm_operand *o = &lane->frame->scope.plan->operands[step->src];
    const dcommi_position *at = &lane->cursor.at;
    int d = at->depth - 1;
    return s->terrain->posts && len <= DCOMMI_BCAST_PAYLOAD && d >= 0 && at->index[d] > 0 &&
           at->trips[d] == s->terrain->nranks - 1 && o->offset.kind == DCOMM_EXPR_CONST &&
           o->length.kind == DCOMM_EXPR_CONST && step->tag.kind == DCOMM_EXPR_CONST;
}

#define DCOMMI_SIM_CACHED 262144 /* bytes; longer data does not stay in the nearest caches */

/* Return the place of an operand, which is then in a cache; length 0: it does not stay there. */
static struct dcommi_sim_place dcommi_sim_place(dcommi_sim *s, const dcommi_sim_lane *lane,
                                                const dcomm_operand *o, int64_t len)
{
    struct dcommi_sim_place place = {.space = o->space};
    if (len <= DCOMMI_SIM_CACHED && o->offset.kind != DCOMM_EXPR_WORD) {
        place.at = dcommi_sim_value(s, lane, &o->offset);
        place.length = len;
    }
    return place;
}

static int64_t dcommi_sim_send(dcommi_sim *s, dcommi_sim_lane *lane, const dcomm_step *step)
{
    int depth, rank;
    dcommi_sim_msg *m = dcommi_sim_message(s, lane, step, &rank);
    if (m == NULL) {
        return DCOMMI_SIM_STOP;
    }
    const dcommi_sim_frame *f = lane->frame;
    const dcomm_operand *src = &f->scope.plan->operands[step->src];
    const dcommi_link *link = dcommi_sim_link_to(s, lane, rank, &depth);
    m->from = f->rank;
    m->to = rank % s->period;
    m->depth = (uint8_t)depth;
    m->len = dcommi_sim_length(s, lane, src, 0);
    m->waits = m->len > link->eager;
    m->host = f->scope.plan->scratch_on_host && src->space == DCOMM_SPACE_SCRATCH;
    m->open = m->waits && link->open && dcommi_sim_open_space(f, src->space);
    bool posted = dcommi_sim_posted(s, lane, step, m->len);
    int64_t t = dcommi_sim_work(s, f->rank, s->now, posted ? 0 : link->overhead);
    if (link->by_core && !m->waits) {
        lane->read = dcommi_sim_place(s, lane, src, m->len);
        dcommi_sim_at(s, t + link->alpha + (m->host ? 0 : link->stage), DCOMMI_SIM_TAIL, m);
        return t;
    }
    m->sender = lane;
    m->sender_async = step->flags & DCOMM_STEP_ASYNC;
    int64_t next = dcommi_sim_started(lane, m->sender_async, t);
    if (m->waits) {
        /* The reader copies the bytes itself, after they have been staged. */
        bool copied = link->by_core && !m->open && !m->host;
        dcommi_sim_at(s, t + link->alpha + (copied ? link->stage : 0), DCOMMI_SIM_OFFER, m);
    } else {
        dcommi_sim_leave(s, m, t);
    }
    return next;
}

static int64_t dcommi_sim_recv(dcommi_sim *s, dcommi_sim_lane *lane, const dcomm_step *step)
{
    int rank;
    dcommi_sim_msg *m = dcommi_sim_message(s, lane, step, &rank);
    if (m == NULL) {
        return DCOMMI_SIM_STOP;
    }
    m->from = rank % s->period;
    m->to = lane->frame->rank;
    m->receiver = lane;
    m->async = step->flags & DCOMM_STEP_ASYNC;
    m->folds = step->kind == DCOMM_STEP_RECV_REDUCE;
    int64_t next = dcommi_sim_started(lane, m->async, s->now);
    dcommi_sim_msg *sent = dcommi_sim_match(s, m);
    if (sent != NULL) {
        dcommi_sim_meet(s, sent, m);
    }
    return next;
}

/* Request the pieces of the ranks after this one, or of those before it, from time t on. Return
 * the time of the last request. *order counts the requests and is added to their time, in ps: a
 * port that several requests reach at the same time then serves them by turns, not by rank. */
static int64_t dcommi_sim_ask_side(dcommi_sim *s, dcommi_sim_lane *lane, const dcomm_step *step,
                                   dcommi_sim_join *join, bool after, int64_t t, int64_t *order)
{
    const int own = lane->frame->rank;
    for (uint32_t i = 0; i < step->nsrc; i++) {
        const dcomm_operand *o = &lane->frame->scope.plan->operands[step->src + i];
        const uint32_t pieces = o->space == DCOMM_SPACE_PEER ? dcommi_operand_pieces(o) : 0;
        int64_t first = pieces > 0 ? dcommi_sim_value(s, lane, &o->peer) : 0;
        for (uint32_t r = 0; r < pieces; r++) {
            int depth, rank;
            if (!dcommi_sim_good(s, dcommi_cursor_owner(&lane->cursor, first, r, &rank))) {
                return t;
            }
            const dcommi_link *link = dcommi_sim_link_to(s, lane, rank, &depth);
            bool asked = !link->by_core && (rank > own) == after;
            dcommi_sim_msg *m = asked ? dcommi_sim_msg_new(s) : NULL;
            if (m == NULL) {
                continue;
            }
            t = dcommi_sim_work(s, own, t, link->overhead);
            m->from = rank % s->period;
            m->to = own;
            m->depth = (uint8_t)depth;
            m->len = dcommi_sim_length(s, lane, o, r);
            m->join = join;
            dcommi_sim_at(s, t + link->alpha + (*order)++, DCOMMI_SIM_REQUEST, m);
        }
    }
    return t;
}

/* Request the pieces of exposed memory that lie on other hosts. */
static int64_t dcommi_sim_ask(dcommi_sim *s, dcommi_sim_lane *lane, const dcomm_step *step,
                              int64_t work, int remote)
{
    dcommi_sim_join *join = dcommi_alloc(sizeof *join);
    if (join == NULL) {
        dcommi_sim_fail(s, DCOMM_ERR_NO_MEMORY);
        return DCOMMI_SIM_STOP;
    }
    join->next = s->joins;
    if (s->joins != NULL) {
        s->joins->prev = join;
    }
    s->joins = join;
    join->lane = lane;
    join->left = remote;
    join->async = step->flags & DCOMM_STEP_ASYNC;
    join->work = work;
    /* The engine asks the ranks after its own first (dcommi_pull_ask). */
    int64_t order = lane->pending;
    int64_t t = dcommi_sim_ask_side(s, lane, step, join, true, s->now, &order);
    t = dcommi_sim_ask_side(s, lane, step, join, false, t, &order);
    return dcommi_sim_started(lane, join->async, t);
}

/* Return the time of a kernel that reads the device memory of n peers: one launch, n times the
 * bytes. */
static int64_t dcommi_sim_open_work(const dcommi_terrain *t, bool fold, int64_t n, int64_t len)
{
    const dcommi_curve *curve = fold ? &t->open_reduce : &t->open_read;
    int64_t launch = dcommi_curve_at(curve, 0);
    int64_t bytes = dcommi_max64(dcommi_curve_at(curve, len) - launch, 0);
    return launch + n * dcommi_min64(bytes, DCOMMI_MODEL_MOST / n);
}

/* Return true if an operand lies in scratch that the peers map. */
static inline bool dcommi_sim_slot_space(const dcommi_terrain *t, const dcomm_plan *plan,
                                         uint8_t space)
{
    return t->slots && plan->scratch_shared && space == DCOMM_SPACE_SCRATCH;
}

/* Return the work to read a peer's slot, which is in a cache. The copy takes half of a message,
 * which is copied into a fifo and out again. Add two signals to receive: the slot is filled, and
 * this rank's own slot was read. */
static int64_t dcommi_sim_staged(const dcommi_link *link, int64_t len, bool fold)
{
    int64_t record = dcommi_min64(len, link->eager);
    double records = record > 0 ? (double)len / (double)record : 0;
    int64_t copy = (int64_t)((double)(dcommi_curve_at(&link->message, record) / 2) * records);
    return copy + (fold ? dcommi_curve_at(&link->fold, len) : 0) + 2 * link->overhead;
}

/* Return the work of a copy within a rank's memory. It takes half the time if the source is in a
 * cache: it was read just before, or lies in a slot. A short copy into a slot takes as long as one
 * into a fifo: half of a message. */
static int64_t dcommi_sim_copy(dcommi_sim *s, dcommi_sim_lane *lane, const dcomm_step *step,
                               int64_t len)
{
    const dcomm_plan *plan = lane->frame->scope.plan;
    const dcomm_operand *src = &plan->operands[step->src];
    struct dcommi_sim_place was = lane->read;
    int depth, rank;
    lane->read = dcommi_sim_place(s, lane, src, len);
    if (dcommi_sim_slot_space(s->terrain, plan, step->dst.space) &&
        dcommi_sim_good(s, dcommi_cursor_owner(&lane->cursor, plan->rank, 1, &rank))) {
        const dcommi_link *link = dcommi_sim_link_to(s, lane, rank, &depth);
        if (link->by_core) {
            return len <= link->eager ? dcommi_curve_at(&link->message, len) / 2
                                      : dcommi_curve_at(&s->terrain->copy, len) / 2;
        }
    }
    bool cached = was.length >= len && was.space == lane->read.space && was.at == lane->read.at;
    int64_t copy = dcommi_curve_at(&s->terrain->copy, len);
    return cached || dcommi_sim_slot_space(s->terrain, plan, src->space) ? copy / 2 : copy;
}

/* Return the work of a step that reads n peers. sum: the work for each peer alone, added up. Those
 * were measured with one peer: three passes over memory for a fold, of its own operand, the peer's
 * and the result. With n peers there are n + 2 passes. */
static int64_t dcommi_sim_together(int64_t sum, int64_t n, bool fold)
{
    return n == 0 || !fold ? sum : dcommi_min64(sum / n / 3, DCOMMI_MODEL_MOST / (n + 2)) * (n + 2);
}

/* Price COPY and REDUCE. */
static int64_t dcommi_sim_transform(dcommi_sim *s, dcommi_sim_lane *lane, const dcomm_step *step)
{
    const dcommi_scope *scope = &lane->frame->scope;
    const dcommi_terrain *t = s->terrain;
    bool fold = step->kind == DCOMM_STEP_REDUCE;
    int64_t len = dcommi_sim_length(s, lane, &step->dst, 0), work = 0, ready = s->now, local = 0;
    int64_t mapped = 0, nmapped = 0, peers = 0, nopen = 0, staged = 0, nstaged = 0;
    int remote = 0;
    for (uint32_t i = 0; i < step->nsrc && len > 0; i++) {
        const dcomm_operand *o = &scope->plan->operands[step->src + i];
        const uint32_t pieces = dcommi_operand_pieces(o);
        if (o->space != DCOMM_SPACE_PEER) {
            local += pieces;
            continue;
        }
        int64_t first = dcommi_sim_value(s, lane, &o->peer), slot = scope->slot + o->slot;
        for (uint32_t r = 0; r < pieces; r++) {
            int depth, rank;
            if (!dcommi_sim_good(s, dcommi_cursor_owner(&lane->cursor, first, r, &rank))) {
                return DCOMMI_SIM_STOP;
            }
            dcommi_sim_actor *owner = &s->actor[rank % s->period];
            if (slot >= owner->plan->nslots) {
                dcommi_sim_fail(
                    s, dcommi_fail(DCOMM_ERR_PLAN, "%s: slot %" PRId64, scope->plan->name, slot));
                return DCOMMI_SIM_STOP;
            }
            if (owner->exposed[slot] < 0) {
                lane->state = DCOMMI_SIM_READING;
                lane->next_waiter = owner->readers;
                owner->readers = lane;
                return DCOMMI_SIM_AGAIN;
            }
            const dcommi_link *link = dcommi_sim_link_to(s, lane, rank, &depth);
            ready = dcommi_max64(ready, owner->exposed[slot] + link->signal);
            remote += !link->by_core;
            peers++;
            nopen += link->open && (owner->offered[slot] & DCOMMI_SIM_OPEN);
            if (link->by_core && (owner->offered[slot] & DCOMMI_SIM_STAGED)) {
                staged += dcommi_sim_staged(link, len, fold);
                nstaged++;
            } else if (link->by_core && fold && link->mapped) {
                mapped += dcommi_curve_at(&link->reduce, len);
                nmapped++;
            } else if (link->by_core) {
                work += dcommi_curve_at(fold ? &link->reduce : &link->read, len);
            } else if (fold) {
                work += dcommi_curve_at(&link->fold, len);
            }
        }
    }
    if (ready > s->now) {
        dcommi_sim_resume(s, lane, ready);
        return DCOMMI_SIM_AGAIN;
    }
    if (nopen > 0 && nopen == peers) { /* one kernel reads all; else all come as messages */
        work = dcommi_sim_open_work(t, fold, nopen, len);
        remote = 0;
    }
    work += dcommi_sim_together(mapped, nmapped, fold) + dcommi_sim_together(staged, nstaged, fold);
    if (fold && local > 1) {
        work += (local - 1) * dcommi_curve_at(&t->fold, len);
    } else if (!fold && local > 0 && len > 0) {
        work += dcommi_sim_copy(s, lane, step, len);
    }
    if (remote > 0) {
        return dcommi_sim_ask(s, lane, step, work, remote);
    }
    return dcommi_sim_work(s, lane->frame->rank, s->now, work);
}

/* ---- signals ---- */

/* Add to a counter of an actor, and resume the lanes that wait for it. */
static void dcommi_sim_signal(dcommi_sim *s, dcommi_sim_actor *a, int64_t counter, int64_t value)
{
    a->counters[counter] += value;
    for (dcommi_sim_lane **at = &a->waiters; *at != NULL;) {
        dcommi_sim_lane *lane = *at;
        if (lane->counter == counter && a->counters[counter] >= lane->target) {
            *at = lane->next_waiter;
            dcommi_sim_resume(s, lane, s->now);
        } else {
            at = &lane->next_waiter;
        }
    }
}

/* Signal every other rank. An actor gets one event for all ranks that it stands for and that the
 * signal reaches by the same kind of link. */
static int64_t dcommi_sim_signal_all(dcommi_sim *s, dcommi_sim_lane *lane, int64_t counter,
                                     int64_t value)
{
    const dcommi_sim_frame *f = lane->frame;
    int64_t work = 0;
    for (int64_t r = 0; r < f->scope.plan->nranks; r++) {
        if (r == f->scope.plan->rank) {
            continue;
        }
        int rank = dcommi_scope_rank(&f->scope, r);
        int kind = dcommi_terrain_kind(s->terrain, dcommi_terrain_depth(s->terrain, f->rank, rank));
        s->tally[rank % s->period * DCOMM_LINK_COUNT + kind]++;
        int64_t tell = s->terrain->link[kind].tell;
        work = s->terrain->posts ? dcommi_max64(work, tell) : work + tell;
    }
    int64_t t = dcommi_sim_work(s, f->rank, s->now, work);
    for (int a = 0; a < s->period; a++) {
        for (int kind = 0; kind < DCOMM_LINK_COUNT; kind++) {
            int64_t *n = &s->tally[a * DCOMM_LINK_COUNT + kind];
            if (*n > 0) {
                dcommi_sim_event e = {.time = t + s->terrain->link[kind].signal,
                                      .kind = DCOMMI_SIM_SIGNAL,
                                      .at = {.signal = {a, (int32_t)counter}},
                                      .value = *n * value};
                dcommi_sim_push(s, e);
                *n = 0;
            }
        }
    }
    return t;
}

/* Expose memory, and resume the lanes that wait to read it. */
static int64_t dcommi_sim_expose(dcommi_sim *s, const dcommi_sim_lane *lane, const dcomm_step *step,
                                 const dcommi_targets *to)
{
    const dcommi_sim_frame *f = lane->frame;
    dcommi_sim_actor *own = &s->actor[f->rank];
    const uint8_t space = f->scope.plan->operands[step->src].space;
    const bool staged = dcommi_sim_slot_space(s->terrain, f->scope.plan, space);
    int64_t slot = f->scope.slot + step->slot, work = 0;
    for (int64_t r = to->first; r <= to->last; r++) {
        if (r != f->scope.plan->rank) {
            int depth, rank = dcommi_scope_rank(&f->scope, r);
            const dcommi_link *link = dcommi_sim_link_to(s, lane, rank, &depth);
            /* The engine runs staged plans, not a script: measured, that takes a signal more. */
            work += link->tell + (staged ? link->signal : 0);
        }
    }
    int64_t t = own->exposed[slot] = dcommi_sim_work(s, f->rank, s->now, work);
    own->offered[slot] =
        (dcommi_sim_open_space(f, space) ? DCOMMI_SIM_OPEN : 0) | (staged ? DCOMMI_SIM_STAGED : 0);
    while (own->readers != NULL) {
        dcommi_sim_lane *reader = own->readers;
        own->readers = reader->next_waiter;
        dcommi_sim_resume(s, reader, t);
    }
    return t;
}

/* Price SIGNAL and EXPOSE. */
static int64_t dcommi_sim_tell(dcommi_sim *s, dcommi_sim_lane *lane, const dcomm_step *step)
{
    const dcommi_sim_frame *f = lane->frame;
    dcommi_targets to;
    if (!dcommi_sim_good(s, dcommi_cursor_targets(&lane->cursor, step, &to))) {
        return DCOMMI_SIM_STOP;
    }
    if (step->kind == DCOMM_STEP_EXPOSE) {
        return dcommi_sim_expose(s, lane, step, &to);
    }
    int64_t counter = f->scope.counter + step->slot;
    int64_t value = dcommi_sim_value(s, lane, &step->value);
    if (to.but >= 0) {
        return dcommi_sim_signal_all(s, lane, counter, value);
    }
    int depth, rank = dcommi_scope_rank(&f->scope, to.first);
    if (rank == f->rank) {
        dcommi_sim_signal(s, &s->actor[rank], counter, value);
        return s->now;
    }
    const dcommi_link *link = dcommi_sim_link_to(s, lane, rank, &depth);
    int64_t t = dcommi_sim_work(s, f->rank, s->now, link->tell);
    dcommi_sim_event e = {.time = t + link->signal,
                          .kind = DCOMMI_SIM_SIGNAL,
                          .at = {.signal = {rank % s->period, (int32_t)counter}},
                          .value = value};
    dcommi_sim_push(s, e);
    return t;
}

#endif
