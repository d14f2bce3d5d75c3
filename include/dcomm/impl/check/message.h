/* message.h - executes messages, EXPOSE, SIGNAL and WAIT, for the plan checker. */
#ifndef DCOMMI_CHECK_MESSAGE_H
#define DCOMMI_CHECK_MESSAGE_H

#include "step.h"

/* ---- messages ---- */

static bool dcommi_check_match(dcommi_check *c, dcommi_check_op *send, dcommi_check_op *recv)
{
    const dcomm_step *r = recv->step;
    const dcommi_check_frame *from_frame = send->lane->frame;
    dcommi_check_region src, dst, stage;
    int owner = -1;
    if (!dcommi_check_piece(c, send, from_frame->scope.plan->operands + send->step->src, 0, &src,
                            &owner) ||
        !dcommi_check_piece(c, recv, &r->dst, 0, &dst, &owner)) {
        return false;
    }
    bool reduces = r->kind == DCOMM_STEP_RECV_REDUCE;
    bool any_length = !reduces && r->word >= 0;
    if (src.len > dst.len || (src.len != dst.len && !any_length)) {
        return dcommi_check_refuse(c, recv, "takes %" PRId64 " bytes, but %s sends %" PRId64,
                                   dst.len, dcommi_check_op_text(c, send).s, src.len);
    }
    dst.len = src.len;
    /* The completion of a send orders nothing, because its message may have been buffered. */
    dcommi_check_join(c, recv->vc, send->vc);
    int32_t level = (send->level > recv->level ? send->level : recv->level) + 1;
    send->level = recv->level = level;
    c->steps = c->steps > level ? c->steps : level;
    if (!dcommi_check_order_write(c, recv, &dst) ||
        !dcommi_check_read_region(c, send, &src, &c->arrived)) {
        return false;
    }
    if (reduces) {
        dcommi_check_value undefined = {.kind = DCOMMI_CHECK_UNDEF};
        if (!dcommi_check_piece(c, recv, &r->stage, 0, &stage, &owner) ||
            !dcommi_check_order_write(c, recv, &stage) ||
            !dcommi_check_put_value(c, recv, &stage, undefined)) {
            return false;
        }
        if (stage.len < dst.len) {
            return dcommi_check_refuse(c, recv,
                                       "has a stage of %" PRId64 " bytes for a message of %" PRId64,
                                       stage.len, dst.len);
        }
    }
    if (reduces ? !dcommi_check_do_fold(c, recv, &dst, &owner)
                : !dcommi_check_put(c, recv, &dst, &c->arrived)) {
        return false;
    }
    if (any_length && !dcommi_check_set_word(c, recv, src.len)) {
        return false;
    }
    c->messages++;
    c->rank[from_frame->rank].bytes += src.len;
    dcommi_check_event_of(c, recv, from_frame->rank, src.len);
    return dcommi_check_complete(c, send) && dcommi_check_complete(c, recv);
}

static dcommi_check_message *dcommi_check_message_find(dcommi_check *c, uint64_t key)
{
    if (c->nmessages * 2 >= c->messages_capacity) {
        size_t capacity = c->messages_capacity == 0 ? 1024 : c->messages_capacity * 2;
        dcommi_check_message *bigger = dcommi_calloc(capacity, sizeof *bigger);
        if (bigger == NULL) {
            c->status = DCOMM_ERR_NO_MEMORY;
            return NULL;
        }
        for (size_t i = 0; i < c->messages_capacity; i++) {
            if (c->message[i].key != 0) {
                size_t at = dcommi_mix(c->message[i].key, 0) & (capacity - 1);
                while (bigger[at].key != 0) {
                    at = (at + 1) & (capacity - 1);
                }
                bigger[at] = c->message[i];
            }
        }
        dcommi_free(c->message);
        c->message = bigger;
        c->messages_capacity = capacity;
    }
    size_t at = dcommi_mix(key, 0) & (c->messages_capacity - 1);
    while (c->message[at].key != 0 && c->message[at].key != key) {
        at = (at + 1) & (c->messages_capacity - 1);
    }
    c->nmessages += c->message[at].key == 0;
    c->message[at].key = key;
    return &c->message[at];
}

/* Begin a SEND, RECV or RECV_REDUCE. Match it if the other side is posted already; otherwise the
 * other side will find it. */
static bool dcommi_check_post(dcommi_check *c, dcommi_check_op *op)
{
    const dcommi_check_frame *f = op->lane->frame;
    bool sends = op->step->kind == DCOMM_STEP_SEND;
    int64_t tag;
    int peer;
    if (!dcommi_check_walked(c, op, dcommi_cursor_peer(&op->cursor, &op->step->peer, &peer)) ||
        !dcommi_check_walked(c, op, dcommi_cursor_tag(&op->cursor, op->step, &tag))) {
        return false;
    }
    op->peer = peer;
    op->tag = tag;
    int from = sends ? f->rank : op->peer, to = sends ? op->peer : f->rank;
    uint64_t key =
        1 + (((uint64_t)from * DCOMMI_CHECK_RANKS + (uint64_t)to) << 40 | (uint64_t)op->tag);
    dcommi_check_message *m = dcommi_check_message_find(c, key);
    if (m == NULL) {
        return false;
    }
    if (m->done || (sends ? m->send : m->recv) != NULL) {
        return dcommi_check_refuse(c, op,
                                   "there is another message from rank %d to %d with tag "
                                   "%" PRId64,
                                   from, to, op->tag);
    }
    op->lane->blocked = op->lane->blocked || !op->async;
    if (sends) {
        m->send = op;
    } else {
        m->recv = op;
    }
    if (m->send == NULL || m->recv == NULL) {
        return true;
    }
    m->done = true;
    return dcommi_check_match(c, m->send, m->recv);
}

/* ---- expositions and signals ---- */

/* Set *mask to the ranks of the run that EXPOSE or SIGNAL addresses. */
static bool dcommi_check_targets(dcommi_check *c, dcommi_check_op *op, uint64_t *mask)
{
    const dcommi_scope *scope = &op->lane->frame->scope;
    dcommi_targets to;
    *mask = 0;
    if (!dcommi_check_walked(c, op, dcommi_cursor_targets(&op->cursor, op->step, &to))) {
        return false;
    }
    for (int64_t r = to.first; r <= to.last; r++) {
        *mask |= r != to.but ? (uint64_t)1 << dcommi_scope_rank(scope, r) : 0;
    }
    return true;
}

static bool dcommi_check_do_expose(dcommi_check *c, dcommi_check_op *op)
{
    const dcommi_check_frame *f = op->lane->frame;
    dcommi_check_rank *owner = &c->rank[f->rank];
    dcommi_check_region r;
    uint64_t targets;
    int nobody = -1;
    if (!dcommi_check_targets(c, op, &targets) ||
        !dcommi_check_piece(c, op, f->scope.plan->operands + op->step->src, 0, &r, &nobody)) {
        return false;
    }
    const uint32_t *vc = dcommi_check_vc_copy(c, op->vc);
    if (vc == NULL) {
        return false;
    }
    dcommi_check_exposed *row = owner->exposed + (f->scope.slot + op->step->slot) * c->n;
    for (int i = 0; i < c->n; i++) {
        if ((targets >> i & 1) == 0 || i == f->rank) {
            continue;
        }
        if (row[i].mem != NULL) {
            return dcommi_check_refuse(c, op, "slot %" PRId64 " is exposed to rank %d twice",
                                       f->scope.slot + op->step->slot, i);
        }
        dcommi_check_exposed x = {r.mem, r.at, r.len, vc, op->level + 1};
        row[i] = x;
        c->signals++;
        c->steps = c->steps > x.level ? c->steps : x.level;
        dcommi_check_event_of(c, op, i, r.len);
    }
    while (owner->peer_waiters != NULL) {
        dcommi_check_lane *lane = owner->peer_waiters;
        owner->peer_waiters = lane->next_waiter;
        dcommi_check_wake(c, lane);
    }
    return dcommi_check_complete(c, op);
}

/* Return an array of `n` elements with room for one more, or NULL without memory. */
static void *dcommi_check_more(dcommi_check *c, void *array, size_t n, size_t *capacity,
                               size_t size)
{
    if (n < *capacity) {
        return array;
    }
    *capacity = *capacity == 0 ? 4 : 2 * *capacity;
    void *bigger = dcommi_check_get(c, *capacity * size);
    if (bigger != NULL && n > 0) {
        memcpy(bigger, array, n * size);
    }
    return bigger;
}

static bool dcommi_check_pulse_add(dcommi_check *c, dcommi_check_counter *counter, uint32_t comp,
                                   struct dcommi_check_pulse pulse, int64_t value)
{
    dcommi_check_source *s = NULL;
    for (size_t i = 0; i < counter->nsources && s == NULL; i++) {
        s = counter->source[i].comp == comp ? &counter->source[i] : NULL;
    }
    if (s == NULL) {
        counter->source = dcommi_check_more(c, counter->source, counter->nsources,
                                            &counter->capacity, sizeof *counter->source);
        if (counter->source == NULL) {
            return false;
        }
        s = &counter->source[counter->nsources++];
        s->comp = comp;
    }
    s->pulse = dcommi_check_more(c, s->pulse, s->n, &s->capacity, sizeof *s->pulse);
    if (s->pulse == NULL) {
        return false;
    }
    pulse.before = s->total;
    s->pulse[s->n++] = pulse;
    s->total += value;
    counter->total += value;
    return true;
}

static bool dcommi_check_do_signal(dcommi_check *c, dcommi_check_op *op)
{
    const dcommi_check_frame *f = op->lane->frame;
    uint64_t targets;
    int64_t value, at = f->scope.counter + op->step->slot;
    if (!dcommi_check_targets(c, op, &targets) ||
        !dcommi_check_walked(c, op, dcommi_cursor_value(&op->cursor, &op->step->value, &value))) {
        return false;
    }
    if (value < 0 || value > INT64_MAX / 4) {
        return dcommi_check_refuse(c, op, "signals %" PRId64 ", which is negative or too large",
                                   value);
    }
    struct dcommi_check_pulse pulse = {.vc = dcommi_check_vc_copy(c, op->vc)};
    if (pulse.vc == NULL) {
        return false;
    }
    for (int i = 0; i < c->n; i++) {
        if ((targets >> i & 1) == 0) {
            continue;
        }
        if (at >= c->rank[i].plan->ncounters) {
            return dcommi_check_refuse(c, op, "rank %d has no counter %" PRId64, i, at);
        }
        dcommi_check_counter *counter = &c->rank[i].counters[at];
        if (counter->total > INT64_MAX - value) {
            return dcommi_check_refuse(c, op, "counter %" PRId64 " exceeds 63 bits", at);
        }
        pulse.level = op->level + (i != f->rank);
        if (value > 0 && !dcommi_check_pulse_add(c, counter, op->comp, pulse, value)) {
            return false;
        }
        if (i != f->rank) {
            c->signals++;
            c->steps = c->steps > pulse.level ? c->steps : pulse.level;
            dcommi_check_event_of(c, op, i, 0);
        }
        dcommi_check_lane **link = &counter->waiters;
        while (*link != NULL) {
            dcommi_check_lane *lane = *link;
            if (lane->wants <= counter->total) {
                *link = lane->next_waiter;
                dcommi_check_wake(c, lane);
            } else {
                link = &lane->next_waiter;
            }
        }
    }
    return dcommi_check_complete(c, op);
}

/* Return the most that a lane can have added to a counter before this WAIT, according to the pass
 * before. */
static int64_t dcommi_check_possible(const dcommi_check_source *s, const dcommi_check_op *wait)
{
    size_t low = 0, high = s->n; /* pulses that do not come after the WAIT: [0, low) */
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (s->pulse[middle].vc[wait->comp] < wait->clock) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low < s->n ? s->pulse[low].before : s->total;
}

/* Execute WAIT. It comes after each signal without which its counter could not reach the value,
 * even if all signals of other lanes that may come early have come. The pass before tells which
 * may come early. That pass had fewer edges, so we never assume an edge that is not certain. */
static bool dcommi_check_do_wait(dcommi_check *c, dcommi_check_op *op)
{
    dcommi_check_lane *lane = op->lane;
    int64_t at = lane->frame->scope.counter + op->step->slot, possible = 0;
    if (!dcommi_check_walked(c, op,
                             dcommi_cursor_value(&op->cursor, &op->step->value, &lane->wants))) {
        return false;
    }
    if (lane->wants < 0) {
        return dcommi_check_refuse(c, op, "waits for a negative value");
    }
    dcommi_check_counter *counter = &c->rank[lane->frame->rank].counters[at];
    if (counter->total < lane->wants) {
        lane->next_waiter = counter->waiters;
        counter->waiters = lane;
        lane->blocked = true;
        return true;
    }
    c->waited = true;
    const dcommi_check_log *log = &c->old_log[c->stage];
    int rank = lane->frame->rank;
    const dcommi_check_counter *old =
        c->has_old_log && at < log->ncounters[rank] ? &log->counters[rank][at] : NULL;
    for (size_t i = 0; old != NULL && i < old->nsources; i++) {
        possible += dcommi_check_possible(&old->source[i], op);
    }
    for (size_t i = 0; old != NULL && i < old->nsources; i++) {
        int64_t own = dcommi_check_possible(&old->source[i], op);
        int64_t needed = lane->wants - (possible - own);
        for (size_t j = 0; j < counter->nsources; j++) {
            const dcommi_check_source *s = &counter->source[j];
            if (s->comp != old->source[i].comp) {
                continue;
            }
            size_t low = 0, high = s->n; /* finds the last pulse that begins below `needed` */
            while (low < high) {
                size_t middle = low + (high - low) / 2;
                if (s->pulse[middle].before < needed) {
                    low = middle + 1;
                } else {
                    high = middle;
                }
            }
            if (low > 0) {
                const struct dcommi_check_pulse *p = &s->pulse[low - 1];
                dcommi_check_join(c, op->vc, p->vc);
                op->level = op->level > p->level ? op->level : p->level;
                c->edges = dcommi_mix(c->edges, low);
            }
        }
    }
    return dcommi_check_complete(c, op);
}

#endif
