/* step.h - what one step does when the plan checker executes it: local steps, messages,
 * signals. */
#ifndef DCOMMI_CHECK_STEP_H
#define DCOMMI_CHECK_STEP_H

#include "value.h"

/* ---- completion ---- */

static void dcommi_check_wake(dcommi_check *c, dcommi_check_lane *lane)
{
    lane->blocked = false;
    if (lane != c->running &&
        dcommi_check_good(c, dcommi_grow((void **)&c->ready, &c->ready_capacity, c->nready + 1,
                                         sizeof(dcommi_check_lane *)))) {
        c->ready[c->nready++] = lane;
    }
}

/* A step is complete: its lane goes on, or its lane's fence comes nearer. */
static bool dcommi_check_complete(dcommi_check *c, dcommi_check_op *op)
{
    dcommi_check_lane *lane = op->lane;
    if (!op->async) {
        lane->vc[lane->comp]++;
        lane->level = op->level;
        lane->pc++;
        dcommi_check_wake(c, lane);
        return true;
    }
    if (lane->async_vc == NULL) {
        lane->async_vc = dcommi_check_vc_copy(c, op->vc);
        if (lane->async_vc == NULL) {
            return false;
        }
    } else {
        dcommi_check_join(c, lane->async_vc, op->vc);
    }
    lane->async_level = lane->async_level > op->level ? lane->async_level : op->level;
    dcommi_check_op **link = &lane->pending;
    while (*link != op) {
        link = &(*link)->pending;
    }
    *link = op->pending;
    dcommi_check_vc_free(c, op->vc);
    op->next = c->free_ops;
    c->free_ops = op;
    if (--lane->outstanding == 0 && lane->at_fence) {
        dcommi_check_wake(c, lane);
    }
    return true;
}

/* Make the lane's current step an operation of its own that the lane does not wait for. */
static dcommi_check_op *dcommi_check_detach(dcommi_check *c, dcommi_check_lane *lane)
{
    dcommi_check_op *op = c->free_ops;
    if (op != NULL) {
        c->free_ops = op->next;
    } else if ((op = dcommi_check_get(c, sizeof *op)) == NULL) {
        return NULL;
    }
    *op = lane->op;
    op->async = true;
    op->vc = dcommi_check_vc_copy(c, lane->vc);
    if (op->vc == NULL) {
        return NULL;
    }
    op->comp = lane->comp + 1;
    op->clock = lane->vc[op->comp] + 1;
    op->pending = lane->pending;
    lane->pending = op;
    lane->outstanding++;
    return op;
}

static void dcommi_check_event_of(dcommi_check *c, const dcommi_check_op *op, int peer,
                                  uint32_t peer_lane, int64_t bytes)
{
    dcommi_check_event e = {.kind = op->step->kind,
                            .rank = (int16_t)op->lane->frame->rank,
                            .peer = (int16_t)peer,
                            .lane = (int32_t)op->lane->number,
                            .peer_lane = (int32_t)peer_lane,
                            .level = op->level,
                            .bytes = bytes,
                            .tag = op->tag};
    dcommi_check_event_add(c, e);
}

/* ---- folds, encodings, kernels ---- */

/* The values that a source piece gives to a step: decoded where the step decodes. */
static bool dcommi_check_take(dcommi_check *c, dcommi_check_op *op, const dcommi_check_region *from,
                              const dcommi_check_region *to, dcommi_check_runs *runs)
{
    if (!dcommi_check_read_region(c, op, from, runs)) {
        return false;
    }
    if (op->lane->frame->rank != from->mem->rank) {
        c->rank[op->lane->frame->rank].bytes += from->len;
        dcommi_check_event_of(c, op, from->mem->rank, 0, from->len);
    }
    if (op->step->kind != DCOMM_STEP_DECODE && op->step->kind != DCOMM_STEP_RECODE) {
        return true;
    }
    const dcommi_check_value *v = runs->n == 1 ? &runs->run[0].v : NULL;
    if (v == NULL || v->kind != DCOMMI_CHECK_ENCODED || v->src != 0 ||
        c->encoding[v->mask].len != from->len) {
        if (c->spec_holds && c->spec->coll != DCOMM_COLL_PLAN) {
            return dcommi_check_refuse(c, op, "decodes %" PRId64 " bytes that are not one encoding",
                                       from->len);
        }
        dcommi_check_value opaque = {.kind = DCOMMI_CHECK_OPAQUE};
        runs->n = 0;
        return dcommi_check_good(c, dcommi_check_append(runs, to->len, opaque));
    }
    const dcommi_check_runs *was = &c->encoding[v->mask].runs;
    int64_t len = 0;
    runs->n = 0;
    for (size_t i = 0; i < was->n; i++) {
        len += was->run[i].len;
        if (!dcommi_check_good(c, dcommi_check_append(runs, was->run[i].len, was->run[i].v))) {
            return false;
        }
    }
    if (len != to->len) {
        return dcommi_check_refuse(c, op, "decodes %" PRId64 " bytes into %" PRId64, len, to->len);
    }
    return true;
}

/* Fold the sources into c->folded, `arrived` being the message if one is among them. */
static bool dcommi_check_fold_sources(dcommi_check *c, dcommi_check_op *op,
                                      const dcommi_check_region *dst, int *owner)
{
    const dcomm_step *s = op->step;
    const dcomm_operand *operand = op->lane->frame->plan->operands + s->src;
    bool decodes = s->kind == DCOMM_STEP_DECODE || s->kind == DCOMM_STEP_RECODE;
    bool first = true;
    for (uint32_t i = 0; i < s->nsrc; i++) {
        if (operand[i].space == DCOMM_SPACE_MSG) {
            if (!dcommi_check_fold_in(c, op, first, &c->arrived)) {
                return false;
            }
            first = false;
            continue;
        }
        for (uint32_t r = 0; r < dcommi_check_pieces(&operand[i]); r++) {
            dcommi_check_region from;
            if (!dcommi_check_piece(c, op, &operand[i], r, &from, owner)) {
                return false;
            }
            if (!decodes && (from.len != dst->len || !dcommi_check_apart(c, op, &from, dst))) {
                return dcommi_check_refuse(c, op, "folds %" PRId64 " bytes into %" PRId64, from.len,
                                           dst->len);
            }
            if (!dcommi_check_take(c, op, &from, dst, &c->given) ||
                !dcommi_check_fold_in(c, op, first, &c->given)) {
                return false;
            }
            first = false;
        }
    }
    if (c->reduces && dst->len % c->element != 0) {
        return dcommi_check_refuse(c, op, "folds %" PRId64 " bytes, no whole number of elements",
                                   dst->len);
    }
    return dcommi_check_fold_end(c, op);
}

static bool dcommi_check_do_fold(dcommi_check *c, dcommi_check_op *op,
                                 const dcommi_check_region *dst, int *owner)
{
    return dcommi_check_fold_sources(c, op, dst, owner) && dcommi_check_put(c, op, dst, &c->folded);
}

/* ENCODE and RECODE. */
static bool dcommi_check_do_encode(dcommi_check *c, dcommi_check_op *op,
                                   const dcommi_check_region *dst, int *owner)
{
    const dcomm_step *s = op->step;
    const dcomm_operand *operand = op->lane->frame->plan->operands + s->src;
    const dcommi_check_runs *values = &c->given;
    dcommi_check_region src = {0};
    if (s->kind == DCOMM_STEP_RECODE) {
        dcommi_check_value undefined = {.kind = DCOMMI_CHECK_UNDEF};
        if (!dcommi_check_piece(c, op, &s->stage, 0, &src, owner) ||
            !dcommi_check_order_write(c, op, &src) ||
            !dcommi_check_put_value(c, op, &src, undefined) ||
            !dcommi_check_fold_sources(c, op, &src, owner)) {
            return false;
        }
        values = &c->folded;
    } else if (!dcommi_check_piece(c, op, operand, 0, &src, owner) ||
               !dcommi_check_apart(c, op, &src, dst) ||
               !dcommi_check_take(c, op, &src, dst, &c->given)) {
        return false;
    }
    if (!dcommi_check_good(c, dcommi_grow((void **)&c->encoding, &c->encodings_capacity,
                                          c->nencodings + 1, sizeof *c->encoding))) {
        return false;
    }
    dcommi_check_encoding *e = &c->encoding[c->nencodings];
    e->len = s->word < 0 ? dst->len : dcommi_check_choose(c, c->nencodings + 1, dst->len);
    for (size_t i = 0; i < values->n; i++) {
        if (!dcommi_check_good(
                c, dcommi_check_append(&e->runs, values->run[i].len, values->run[i].v))) {
            return false;
        }
    }
    dcommi_check_value undefined = {.kind = DCOMMI_CHECK_UNDEF};
    dcommi_check_value encoded = {.kind = DCOMMI_CHECK_ENCODED, .mask = c->nencodings++};
    dcommi_check_region head = {dst->mem, dst->at, e->len};
    return dcommi_check_put_value(c, op, dst, undefined) &&
           dcommi_check_put_value(c, op, &head, encoded) &&
           (op->step->word < 0 || dcommi_check_set_word(c, op, head.len));
}

static bool dcommi_check_do_compute(dcommi_check *c, dcommi_check_op *op,
                                    const dcommi_check_region *dst, int *owner)
{
    const dcomm_operand *operand = op->lane->frame->plan->operands + op->step->src;
    for (uint32_t i = 0; i < op->step->nsrc; i++) {
        for (uint32_t r = 0; r < dcommi_check_pieces(&operand[i]); r++) {
            dcommi_check_region from;
            if (!dcommi_check_piece(c, op, &operand[i], r, &from, owner) ||
                !dcommi_check_take(c, op, &from, dst, &c->given)) {
                return false;
            }
        }
    }
    dcommi_check_value opaque = {.kind = DCOMMI_CHECK_OPAQUE};
    return dcommi_check_put_value(c, op, dst, opaque);
}

/* Does the lane have to wait until somebody exposes what its step reads? Even an ASYNC step does
 * not start before. */
static bool dcommi_check_must_wait(dcommi_check *c, dcommi_check_lane *lane)
{
    dcommi_check_op *op = &lane->op;
    int waits_for = -1, *owner = &waits_for;
    const dcomm_operand *operand = op->lane->frame->plan->operands + op->step->src;
    for (uint32_t i = 0; i < op->step->nsrc && *owner < 0; i++) {
        for (uint32_t r = 0; operand[i].space == DCOMM_SPACE_PEER && *owner < 0 &&
                             r < dcommi_check_pieces(&operand[i]);
             r++) {
            dcommi_check_region from;
            if (!dcommi_check_piece(c, op, &operand[i], r, &from, owner)) {
                return false;
            }
        }
    }
    if (*owner >= 0) {
        op->peer = *owner;
        lane->blocked = true;
        lane->next_waiter = c->rank[*owner].peer_waiters;
        c->rank[*owner].peer_waiters = lane;
    }
    return true;
}

/* COPY, REDUCE, the codec's steps, COMPUTE. */
static bool dcommi_check_do_local(dcommi_check *c, dcommi_check_op *op)
{
    const dcomm_step *s = op->step;
    dcommi_check_region dst, src = {0};
    int owner = -1;
    if (!dcommi_check_piece(c, op, &s->dst, 0, &dst, &owner) ||
        !dcommi_check_order_write(c, op, &dst)) {
        return false;
    }
    bool single = s->kind == DCOMM_STEP_COPY;
    if (single) {
        const dcomm_operand *operand = op->lane->frame->plan->operands + s->src;
        if (!dcommi_check_piece(c, op, operand, 0, &src, &owner) ||
            !dcommi_check_apart(c, op, &src, &dst)) {
            return false;
        }
        if (src.len != dst.len) {
            return dcommi_check_refuse(c, op, "copies %" PRId64 " bytes into %" PRId64, src.len,
                                       dst.len);
        }
    }
    bool good;
    if (s->kind == DCOMM_STEP_ENCODE || s->kind == DCOMM_STEP_RECODE) {
        good = dcommi_check_do_encode(c, op, &dst, &owner);
    } else if (s->kind == DCOMM_STEP_COMPUTE) {
        good = dcommi_check_do_compute(c, op, &dst, &owner);
    } else if (single) {
        good = dcommi_check_take(c, op, &src, &dst, &c->given) &&
               dcommi_check_put(c, op, &dst, &c->given);
    } else {
        good = dcommi_check_do_fold(c, op, &dst, &owner);
    }
    dcommi_check_event_of(c, op, -1, 0, dst.len);
    return good && dcommi_check_complete(c, op);
}

/* ---- messages ---- */

static bool dcommi_check_match(dcommi_check *c, dcommi_check_op *send, dcommi_check_op *recv)
{
    const dcomm_step *r = recv->step;
    const dcommi_check_frame *from_frame = send->lane->frame;
    dcommi_check_region src, dst, stage;
    int owner = -1;
    if (!dcommi_check_piece(c, send, from_frame->plan->operands + send->step->src, 0, &src,
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
    /* Completing a send orders nothing: its message may have been buffered. */
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
            return dcommi_check_refuse(c, recv, "has a stage of %" PRId64 " bytes for %" PRId64,
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
    dcommi_check_event_of(c, recv, from_frame->rank, send->lane->number, src.len);
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

/* A SEND, RECV or RECV_REDUCE begins. The other side is there already, or will find this one. */
static bool dcommi_check_post(dcommi_check *c, dcommi_check_op *op)
{
    const dcommi_check_frame *f = op->lane->frame;
    bool sends = op->step->kind == DCOMM_STEP_SEND;
    int64_t peer, tag;
    if (!dcommi_check_eval(c, op, &op->step->peer, &peer) ||
        !dcommi_check_eval(c, op, &op->step->tag, &tag)) {
        return false;
    }
    if (peer < 0 || peer >= f->plan->nranks || f->ranks[peer] == f->rank) {
        return dcommi_check_refuse(c, op, "its peer is rank %" PRId64 " of %d%s", peer,
                                   f->plan->nranks,
                                   peer == f->plan->rank ? ", which is itself" : "");
    }
    if (tag < 0 || tag >= f->plan->ntags) {
        return dcommi_check_refuse(c, op, "tag %" PRId64 " is not in [0, %" PRIu32 ")", tag,
                                   f->plan->ntags);
    }
    op->peer = f->ranks[peer];
    op->tag = f->tag + tag;
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

/* The ranks of the run that EXPOSE or SIGNAL is for: a mask. */
static bool dcommi_check_targets(dcommi_check *c, dcommi_check_op *op, uint64_t *mask)
{
    const dcommi_check_frame *f = op->lane->frame;
    int64_t peer = 0;
    if (!dcommi_check_eval(c, op, &op->step->peer, &peer)) {
        return false;
    }
    *mask = 0;
    if (peer != DCOMM_ALL_PEERS && (peer < 0 || peer >= f->plan->nranks)) {
        return dcommi_check_refuse(c, op, "its peer is rank %" PRId64 " of %d", peer,
                                   f->plan->nranks);
    }
    for (int i = 0; i < f->plan->nranks; i++) {
        if (i == peer || (peer == DCOMM_ALL_PEERS && f->ranks[i] != f->rank)) {
            *mask |= (uint64_t)1 << f->ranks[i];
        }
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
        !dcommi_check_piece(c, op, f->plan->operands + op->step->src, 0, &r, &nobody)) {
        return false;
    }
    const uint32_t *vc = dcommi_check_vc_copy(c, op->vc);
    if (vc == NULL) {
        return false;
    }
    dcommi_check_exposed *row = owner->exposed + (f->slot + op->step->slot) * c->n;
    for (int i = 0; i < c->n; i++) {
        if ((targets >> i & 1) == 0 || i == f->rank) {
            continue;
        }
        if (row[i].mem != NULL) {
            return dcommi_check_refuse(c, op, "slot %" PRId64 " is exposed to rank %d twice",
                                       f->slot + op->step->slot, i);
        }
        dcommi_check_exposed x = {r.mem, r.at, r.len, vc, op->level + 1};
        row[i] = x;
        c->signals++;
        c->steps = c->steps > x.level ? c->steps : x.level;
        dcommi_check_event_of(c, op, i, 0, r.len);
    }
    while (owner->peer_waiters != NULL) {
        dcommi_check_lane *lane = owner->peer_waiters;
        owner->peer_waiters = lane->next_waiter;
        dcommi_check_wake(c, lane);
    }
    return dcommi_check_complete(c, op);
}

static bool dcommi_check_pulse_add(dcommi_check *c, dcommi_check_counter *counter, uint32_t comp,
                                   struct dcommi_check_pulse pulse, int64_t value)
{
    dcommi_check_source *s = NULL;
    for (size_t i = 0; i < counter->nsources && s == NULL; i++) {
        s = counter->source[i].comp == comp ? &counter->source[i] : NULL;
    }
    if (s == NULL) {
        if (counter->nsources == counter->capacity) {
            size_t capacity = counter->capacity == 0 ? 4 : 2 * counter->capacity;
            dcommi_check_source *bigger = dcommi_check_get(c, capacity * sizeof *bigger);
            if (bigger == NULL) {
                return false;
            }
            if (counter->nsources > 0) {
                memcpy(bigger, counter->source, counter->nsources * sizeof *bigger);
            }
            counter->source = bigger;
            counter->capacity = capacity;
        }
        s = &counter->source[counter->nsources++];
        s->comp = comp;
    }
    if (s->n == s->capacity) {
        size_t capacity = s->capacity == 0 ? 4 : 2 * s->capacity;
        struct dcommi_check_pulse *bigger = dcommi_check_get(c, capacity * sizeof *bigger);
        if (bigger == NULL) {
            return false;
        }
        if (s->n > 0) {
            memcpy(bigger, s->pulse, s->n * sizeof *bigger);
        }
        s->pulse = bigger;
        s->capacity = capacity;
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
    int64_t value, at = f->counter + op->step->slot;
    if (!dcommi_check_targets(c, op, &targets) ||
        !dcommi_check_eval(c, op, &op->step->value, &value)) {
        return false;
    }
    if (value < 0 || value > INT64_MAX / 4) {
        return dcommi_check_refuse(c, op, "signals %" PRId64, value);
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
            dcommi_check_event_of(c, op, i, 0, 0);
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

/* How much a lane can have added to a counter before this WAIT, by the last pass. */
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

/* WAIT comes after those signals without which its counter could not have got there: from the other
 * lanes all that may come early counts as come. Which may come early is known from the pass before
 * this one, with fewer edges, so that no edge is ever assumed that is not certain. */
static bool dcommi_check_do_wait(dcommi_check *c, dcommi_check_op *op)
{
    dcommi_check_lane *lane = op->lane;
    int64_t at = lane->frame->counter + op->step->slot, possible = 0;
    if (!dcommi_check_eval(c, op, &op->step->value, &lane->wants)) {
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
            size_t low = 0, high = s->n; /* the last pulse that begins below what is needed */
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
