/* lane.h - executes lanes, for the plan checker: loops, fences and calls of sub-plans. Reports
 * deadlocks. */
#ifndef DCOMMI_CHECK_LANE_H
#define DCOMMI_CHECK_LANE_H

#include "message.h"

/* Return how many lanes one lane of a plan can need: itself, and the lanes of its widest call. */
static uint32_t dcommi_check_width(dcommi_check *c, const dcomm_plan *p, uint32_t lane)
{
    uint64_t most = 0;
    for (uint32_t i = 0; i < p->lanes[lane].count; i++) {
        const dcomm_step *s = &p->steps[p->lanes[lane].first + i];
        if (s->kind == DCOMM_STEP_CALL && --c->budget > 0) {
            uint64_t width = 0;
            for (uint32_t j = 0; j < p->subs[s->sub]->nlanes; j++) {
                width += dcommi_check_width(c, p->subs[s->sub], j);
            }
            most = width > most ? width : most;
        }
    }
    return most < 1u << 20 ? 1 + (uint32_t)most : 1u << 20;
}

static dcommi_check_frame *dcommi_check_frame_new(dcommi_check *c, int rank)
{
    dcommi_check_frame *f = dcommi_check_get(c, sizeof *f);
    if (f != NULL) {
        f->check = c;
        f->rank = rank;
    }
    return f;
}

/* Make a frame's lanes ready. `first` is the component of lane 0. */
static bool dcommi_check_start(dcommi_check *c, dcommi_check_frame *f, uint32_t first,
                               const uint32_t *vc, int32_t level)
{
    const dcomm_plan *p = f->scope.plan;
    f->lanes_left = p->nlanes;
    f->level = level;
    f->end_vc = dcommi_check_vc_copy(c, vc);
    if (f->end_vc == NULL) {
        return false;
    }
    for (uint32_t i = p->nlanes; i-- > 0;) {
        dcommi_check_lane *lane = dcommi_check_get(c, sizeof *lane);
        if (lane == NULL || (lane->vc = dcommi_check_vc_copy(c, vc)) == NULL) {
            return false;
        }
        lane->frame = f;
        lane->number = i;
        dcommi_cursor_start(&lane->cursor, &f->scope, i);
        lane->level = level;
        lane->all = c->lanes;
        c->lanes = lane;
        dcommi_check_wake(c, lane);
    }
    /* The loop above ends with lane 0, so c->lanes begins with it: give components in order. */
    uint32_t comp = first;
    dcommi_check_lane *lane = c->lanes;
    for (uint32_t i = 0; i < p->nlanes; i++, lane = lane->all) {
        lane->comp = comp;
        if (lane->vc[comp] == 0) {
            lane->vc[comp] = 1;
        }
        dcommi_check_component k = {f->rank, i, f->caller == NULL ? UINT32_MAX : f->caller->comp};
        c->comps[comp / 2] = k;
        comp += 2 * dcommi_check_width(c, p, i);
    }
    return c->status == DCOMM_OK;
}

/* Give a called sub-plan its own SCRATCH or WORDS. */
static bool dcommi_check_own_mem(dcommi_check *c, dcommi_check_frame *f, unsigned space,
                                 int64_t size, unsigned kind)
{
    dcommi_check_value v = {.kind = (uint8_t)kind};
    f->mem[space] = dcommi_check_mem_new(c, f->rank, space);
    f->size[space] = size;
    return f->mem[space] != NULL &&
           dcommi_check_good(c, dcommi_check_mem_fill(f->mem[space], 0, size, v));
}

static bool dcommi_check_bind(dcommi_check *c, dcommi_check_op *op, dcommi_check_frame *f,
                              unsigned space, const dcomm_operand *o, int64_t need)
{
    dcommi_check_region r = {op->lane->frame->mem[space], 0, 0};
    int owner = -1;
    if (o != NULL && o->space != DCOMM_SPACE_NONE && !dcommi_check_piece(c, op, o, 0, &r, &owner)) {
        return false;
    }
    if (r.len < need) {
        return dcommi_check_refuse(c, op,
                                   "gives %" PRId64 " bytes of %s to a sub-plan that "
                                   "touches %" PRId64,
                                   r.len, dcommi_print_space(space), need);
    }
    f->mem[space] = r.mem;
    f->base[space] = r.at;
    f->size[space] = need;
    return true;
}

static bool dcommi_check_call(dcommi_check *c, dcommi_check_op *op)
{
    dcommi_check_lane *lane = op->lane;
    const dcommi_check_frame *outer = lane->frame;
    const dcomm_step *s = op->step;
    dcommi_check_frame *f = dcommi_check_frame_new(c, outer->rank);
    if (f == NULL || !dcommi_check_walked(c, op, dcommi_cursor_call(&op->cursor, s, &f->scope))) {
        return false;
    }
    const dcomm_plan *sub = f->scope.plan;
    f->scope.word = dcommi_check_word;
    f->caller = lane;
    f->linear = outer->linear || sub->codec_linear;
    const dcomm_operand *in = s->nsrc > 0 ? &outer->scope.plan->operands[s->src] : NULL;
    if (!dcommi_check_bind(c, op, f, DCOMM_SPACE_IN, in, sub->in_bytes) ||
        !dcommi_check_bind(c, op, f, DCOMM_SPACE_OUT, &s->dst, sub->out_bytes) ||
        !dcommi_check_own_mem(c, f, DCOMM_SPACE_SCRATCH, sub->scratch_bytes, DCOMMI_CHECK_UNDEF) ||
        !dcommi_check_own_mem(c, f, DCOMM_SPACE_WORDS, 8 * (int64_t)sub->nwords,
                              DCOMMI_CHECK_ZERO)) {
        return false;
    }
    lane->blocked = true;
    return sub->nlanes == 0 ? dcommi_check_complete(c, op)
                            : dcommi_check_start(c, f, lane->comp + 2, lane->vc, lane->level);
}

/* End a lane that has completed all that it started. */
static bool dcommi_check_lane_end(dcommi_check *c, dcommi_check_lane *lane)
{
    dcommi_check_frame *f = lane->frame;
    lane->done = true;
    dcommi_check_join(c, f->end_vc, lane->vc);
    f->level = f->level > lane->level ? f->level : lane->level;
    dcommi_check_vc_free(c, lane->vc);
    if (--f->lanes_left > 0 || f->caller == NULL) {
        return true;
    }
    dcommi_check_lane *caller = f->caller;
    dcommi_check_join(c, caller->vc, f->end_vc);
    f->mem[DCOMM_SPACE_SCRATCH]->end_vc = f->end_vc;
    caller->op.level = caller->op.level > f->level ? caller->op.level : f->level;
    return dcommi_check_complete(c, &caller->op);
}

/* Execute FENCE or the end of a lane. Return false if the lane must still wait. */
static bool dcommi_check_fence(dcommi_check *c, dcommi_check_lane *lane)
{
    lane->at_fence = lane->outstanding > 0;
    if (lane->at_fence) {
        lane->blocked = true;
        return false;
    }
    if (lane->async_vc != NULL) {
        dcommi_check_join(c, lane->vc, lane->async_vc);
        dcommi_check_vc_free(c, lane->async_vc);
        lane->async_vc = NULL;
    }
    lane->level = lane->level > lane->async_level ? lane->level : lane->async_level;
    lane->op.level = lane->level;
    lane->vc[lane->comp + 1]++;
    return true;
}

static bool dcommi_check_step(dcommi_check *c, dcommi_check_lane *lane)
{
    const dcomm_step *s = dcommi_cursor_step(&lane->cursor);
    dcommi_check_op *op = &lane->op;
    memset(op, 0, sizeof *op);
    op->lane = lane;
    op->step = s;
    op->cursor = lane->cursor;
    op->vc = lane->vc;
    op->comp = lane->comp;
    op->clock = lane->vc[lane->comp] + 1;
    op->level = lane->level;
    op->peer = -1;
    if (--c->budget < 0) {
        return dcommi_check_refuse(c, op, "too many steps to check");
    }
    if (dcommi_cursor_turns(s)) { /* use the op's cursor, for dcommi_check_word needs the op */
        if (!dcommi_check_walked(c, op, dcommi_cursor_turn(&op->cursor, s))) {
            return false;
        }
        lane->cursor = op->cursor;
        lane->vc[lane->comp]++;
        return true;
    }
    if ((s->kind == DCOMM_STEP_COPY || s->kind == DCOMM_STEP_REDUCE) &&
        (!dcommi_check_must_wait(c, lane) || lane->blocked)) {
        return c->status == DCOMM_OK;
    }
    if ((s->flags & DCOMM_STEP_ASYNC) != 0 && s->kind != DCOMM_STEP_EXPOSE) {
        op = dcommi_check_detach(c, lane);
        if (op == NULL) {
            return false;
        }
        lane->vc[lane->comp]++;
        dcommi_cursor_next(&lane->cursor);
    }
    switch (s->kind) {
    case DCOMM_STEP_SEND:
    case DCOMM_STEP_RECV:
    case DCOMM_STEP_RECV_REDUCE:
        return dcommi_check_post(c, op);
    case DCOMM_STEP_EXPOSE:
        return dcommi_check_do_expose(c, op);
    case DCOMM_STEP_SIGNAL:
        return dcommi_check_do_signal(c, op);
    case DCOMM_STEP_WAIT:
        return dcommi_check_do_wait(c, op);
    case DCOMM_STEP_FENCE:
        return !dcommi_check_fence(c, lane) || dcommi_check_complete(c, op);
    case DCOMM_STEP_CALL:
        return dcommi_check_call(c, op);
    default:
        return dcommi_check_do_local(c, op);
    }
}

/* Execute a lane as far as possible. */
static bool dcommi_check_advance(dcommi_check *c, dcommi_check_lane *lane)
{
    c->running = lane;
    while (!lane->blocked && !lane->done && c->status == DCOMM_OK) {
        if (dcommi_cursor_step(&lane->cursor) != NULL) {
            if (!dcommi_check_step(c, lane)) {
                return false;
            }
        } else if (dcommi_check_fence(c, lane) && !dcommi_check_lane_end(c, lane)) {
            return false;
        }
    }
    c->running = NULL;
    return c->status == DCOMM_OK;
}

/* Report a deadlock: name the waiting lanes and their steps. */
static void dcommi_check_deadlock(dcommi_check *c)
{
    char text[DCOMMI_MESSAGE_MAX];
    size_t used = 0;
    int named = 0, left = 0;
    for (const dcommi_check_lane *l = c->lanes; l != NULL; l = l->all) {
        if (l->done || (!l->at_fence && l->op.step->kind == DCOMM_STEP_CALL)) {
            continue;
        }
        if (named == 3 || used + 160 > sizeof text) {
            left++;
            continue;
        }
        const dcommi_check_op *op = l->at_fence ? l->pending : &l->op;
        used += (size_t)snprintf(text + used, sizeof text - used, "%s%s waits%s",
                                 named++ > 0 ? "; " : "", dcommi_check_op_text(c, op).s,
                                 l->at_fence ? " (async, at a fence)" : "");
    }
    if (left > 0) {
        snprintf(text + used, sizeof text - used, "; and %d more lanes", left);
    }
    c->status = dcommi_fail(DCOMM_ERR_PLAN, "deadlock: %s", text);
}

#endif
