/* step.h - executes a step within its rank, for the plan checker, and completes it. */
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

/* Complete a step. Its lane goes on, but at a fence only after its last asynchronous step. */
static bool dcommi_check_complete(dcommi_check *c, dcommi_check_op *op)
{
    dcommi_check_lane *lane = op->lane;
    if (!op->async) {
        lane->vc[lane->comp]++;
        lane->level = op->level;
        dcommi_cursor_next(&lane->cursor);
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

/* Make the lane's current step an operation of its own, for which the lane does not wait. */
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
                                  int64_t bytes)
{
    dcommi_check_trace *t = c->trace;
    dcommi_check_event e = {.kind = op->step->kind,
                            .rank = (int16_t)op->lane->frame->rank,
                            .peer = (int16_t)peer,
                            .lane = (int32_t)op->lane->number,
                            .level = op->level,
                            .bytes = bytes,
                            .tag = op->tag};
    if (t != NULL && dcommi_check_good(c, dcommi_grow((void **)&t->event, &t->capacity, t->n + 1,
                                                      sizeof *t->event))) {
        t->event[t->n++] = e;
    }
}

/* ---- folds, encodings, kernels ---- */

/* Read the values that a source piece gives to a step. Decode them if the step decodes. */
static bool dcommi_check_take(dcommi_check *c, dcommi_check_op *op, const dcommi_check_region *from,
                              const dcommi_check_region *to, dcommi_check_runs *runs)
{
    if (!dcommi_check_read_region(c, op, from, runs)) {
        return false;
    }
    if (op->lane->frame->rank != from->mem->rank) {
        c->rank[op->lane->frame->rank].bytes += from->len;
        dcommi_check_event_of(c, op, from->mem->rank, from->len);
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

/* Fold the sources into c->folded. A message among them is in c->arrived. */
static bool dcommi_check_fold_sources(dcommi_check *c, dcommi_check_op *op,
                                      const dcommi_check_region *dst, int *owner)
{
    const dcomm_step *s = op->step;
    const dcomm_operand *operand = op->lane->frame->scope.plan->operands + s->src;
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
        for (uint32_t r = 0; r < dcommi_operand_pieces(&operand[i]); r++) {
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

/* Execute ENCODE or RECODE. */
static bool dcommi_check_do_encode(dcommi_check *c, dcommi_check_op *op,
                                   const dcommi_check_region *dst, int *owner)
{
    const dcomm_step *s = op->step;
    const dcomm_operand *operand = op->lane->frame->scope.plan->operands + s->src;
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
    const dcomm_operand *operand = op->lane->frame->scope.plan->operands + op->step->src;
    for (uint32_t i = 0; i < op->step->nsrc; i++) {
        for (uint32_t r = 0; r < dcommi_operand_pieces(&operand[i]); r++) {
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

/* Block the lane if its step reads memory that is not exposed yet. Even an ASYNC step does not
 * start before. Return false on an error. */
static bool dcommi_check_must_wait(dcommi_check *c, dcommi_check_lane *lane)
{
    dcommi_check_op *op = &lane->op;
    int waits_for = -1, *owner = &waits_for;
    const dcomm_operand *operand = op->lane->frame->scope.plan->operands + op->step->src;
    for (uint32_t i = 0; i < op->step->nsrc && *owner < 0; i++) {
        for (uint32_t r = 0; operand[i].space == DCOMM_SPACE_PEER && *owner < 0 &&
                             r < dcommi_operand_pieces(&operand[i]);
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

/* Execute COPY, REDUCE, COMPUTE or a codec's step. */
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
        const dcomm_operand *operand = op->lane->frame->scope.plan->operands + s->src;
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
    dcommi_check_event_of(c, op, -1, dst.len);
    return good && dcommi_check_complete(c, op);
}

#endif
