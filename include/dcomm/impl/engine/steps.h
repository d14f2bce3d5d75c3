/* steps.h - the execution of each step of a plan. */
#ifndef DCOMMI_STEPS_H
#define DCOMMI_STEPS_H

#include "steps_codec.h"

static enum dcommi_outcome dcommi_step_send(dcommi_lane *lane, const dcomm_step *step)
{
    dcommi_frame *frame = lane->frame;
    const dcomm_operand *src = &frame->scope.plan->operands[step->src];
    int64_t tag;
    int rank;
    if (lane->forwarded) {
        lane->forwarded = false;
        return DCOMMI_NEXT;
    }
    if (dcommi_cursor_peer(&lane->cursor, &step->peer, &rank) < 0 ||
        dcommi_cursor_tag(&lane->cursor, step, &tag) < 0) {
        return dcommi_step_wrong(lane);
    }
    if (!dcommi_has_credit(lane, rank)) {
        return DCOMMI_RETRY;
    }
    size_t len;
    const uint8_t *data = dcommi_lane_piece(lane, src, 0, &len);
    if (data == NULL) {
        return dcommi_outside(lane, "source");
    }
    bool async = step->flags & DCOMM_STEP_ASYNC;
    bool device = dcommi_on_device(frame, src->space) && len > 0;
    return dcommi_moving(lane,
                         (device ? dcommi_device_send
                                 : dcommi_send_start)(lane, rank, (uint32_t)tag, data, len, async),
                         async);
}

/* Return true if a copy fills a slot that peers copy out of. Where peers fold from the slot, it is
 * better in a cache. */
static inline bool dcommi_step_fills(const dcommi_frame *frame, const dcomm_step *step, size_t len)
{
    return frame->shared != NULL && step->dst.space == DCOMM_SPACE_SCRATCH &&
           (step->flags & DCOMM_STEP_RESULT) && len >= DCOMMI_FILL_LEAST && dcommi_is_bulk(frame);
}

/* Return true if a step should use nontemporal stores. The caller of a sub-plan reads its result
 * again, so a sub-plan's steps should not. */
static inline bool dcommi_step_past(const dcommi_frame *frame, const dcomm_step *step)
{
    return frame->caller == NULL && dcommi_result_past(step, frame->space_len[DCOMM_SPACE_OUT]);
}

static enum dcommi_outcome dcommi_step_recv(dcommi_lane *lane, const dcomm_step *step)
{
    dcommi_frame *frame = lane->frame;
    dcommi_run *run = frame->run;
    int rank;
    int32_t word;
    int64_t tag;
    if (dcommi_cursor_peer(&lane->cursor, &step->peer, &rank) < 0 ||
        dcommi_cursor_tag(&lane->cursor, step, &tag) < 0 ||
        dcommi_cursor_word(&lane->cursor, step, &word) < 0) {
        return dcommi_step_wrong(lane);
    }
    size_t len;
    uint8_t *dst = dcommi_lane_piece(lane, &step->dst, 0, &len);
    if (dst == NULL) {
        return dcommi_outside(lane, "destination");
    }
    dcommi_move *move = dcommi_move_new(run, lane);
    if (move == NULL) {
        return dcommi_step_error(lane, DCOMM_ERR_NO_MEMORY, "%s", dcommi_message);
    }
    move->async = step->flags & DCOMM_STEP_ASYNC;
    move->final = step->flags & DCOMM_STEP_FINAL;
    move->device = dcommi_on_device(frame, step->dst.space);
    move->past = dcommi_step_past(frame, step);
    move->kind = DCOMMI_MOVE_RECV;
    move->buf = dst;
    move->dst = dst;
    move->len = len;
    move->word = word;
    if (step->kind == DCOMM_STEP_RECV_REDUCE) {
        move->kind = DCOMMI_MOVE_FOLD;
        if (!dcommi_sources_on(frame, step, move->device) ||
            dcommi_on_device(frame, step->stage.space) != move->device) {
            return dcommi_step_mixed(lane);
        }
        for (uint32_t i = 0; i < step->nsrc; i++) {
            const dcomm_operand *o = &frame->scope.plan->operands[step->src + i];
            size_t n;
            move->src[i] = NULL;
            if (o->space == DCOMM_SPACE_MSG) {
                move->msg_at = (uint8_t)i;
            } else if ((move->src[i] = dcommi_lane_piece(lane, o, 0, &n)) == NULL) {
                return dcommi_outside(lane, "source");
            } else if (n != len) {
                return dcommi_step_lengths(lane, n, len);
            }
        }
        move->nsrc = (uint8_t)step->nsrc;
        if (step->flags & DCOMM_STEP_FORWARD) { /* a SEND follows */
            int64_t forward_tag;
            if (dcommi_cursor_peer(&lane->cursor, &step[1].peer, &move->forward_rank) < 0 ||
                dcommi_cursor_tag(&lane->cursor, step + 1, &forward_tag) < 0) {
                return dcommi_step_wrong(lane);
            }
            move->forward_tag = (uint32_t)forward_tag;
        }
        size_t room;
        move->buf = dcommi_lane_piece(lane, &step->stage, 0, &room);
        if (move->buf == NULL) {
            return dcommi_outside(lane, "stage");
        }
        if (room < len) {
            return dcommi_step_lengths(lane, room, len);
        }
    }
    /* The move may complete within the post, so the lane must already look as if it waited. */
    bool async = move->async;
    if (async) {
        lane->pending++;
    } else {
        lane->state = DCOMMI_LANE_MOVE;
    }
    dcommi_recv_post(move, rank, (uint32_t)tag);
    if (!run->active) {
        return DCOMMI_GONE;
    }
    return async ? DCOMMI_NEXT : DCOMMI_STOP;
}

/* Return the exposed memory that a PEER piece means. NULL: the lane waits for it. */
static const dcommi_exposed *dcommi_lane_exposed(dcommi_lane *lane, int rank, uint32_t slot)
{
    dcommi_run *run = lane->frame->run;
    dcommi_match_node key =
        dcommi_key(DCOMMI_NODE_EXPOSED, run->stream, run->seq, run->stage, rank, slot);
    const dcommi_exposed *e = (const dcommi_exposed *)dcommi_match_find(run->comm, &key);
    if (e == NULL) {
        lane->state = DCOMMI_LANE_EXPOSE;
        lane->peer = rank;
    }
    return e;
}

/* Turn the operands of a COPY or REDUCE into pieces. */
static enum dcommi_outcome dcommi_lane_pieces(dcommi_lane *lane, const dcomm_step *step, size_t len,
                                              bool device, dcommi_piece *pieces)
{
    dcommi_frame *frame = lane->frame;
    size_t at = 0;
    for (uint32_t i = 0; i < step->nsrc; i++) {
        const dcomm_operand *o = &frame->scope.plan->operands[step->src + i];
        const uint32_t slot = (uint32_t)(frame->scope.slot + o->slot);
        int64_t first = 0;
        if (o->space == DCOMM_SPACE_PEER &&
            dcommi_cursor_value(&lane->cursor, &o->peer, &first) < 0) {
            return dcommi_step_wrong(lane);
        }
        for (uint32_t r = 0; r < dcommi_operand_pieces(o); r++, at++) {
            dcommi_piece *piece = &pieces[at];
            memset(piece, 0, sizeof *piece);
            size_t n;
            if (o->space != DCOMM_SPACE_PEER) {
                piece->local = dcommi_lane_piece(lane, o, r, &n);
                if (piece->local == NULL) {
                    return dcommi_outside(lane, "source");
                }
                if (n != len) {
                    return dcommi_step_lengths(lane, n, len);
                }
                continue;
            }
            dcommi_interval x;
            int rank;
            if (dcommi_cursor_piece(&lane->cursor, o, r, &x) < 0 ||
                dcommi_cursor_owner(&lane->cursor, first, r, &rank) < 0) {
                return dcommi_step_wrong(lane);
            }
            const dcommi_exposed *e = dcommi_lane_exposed(lane, rank, slot);
            if (e == NULL) {
                return DCOMMI_RETRY;
            }
            if ((size_t)x.length != len || x.offset < 0 || (uint64_t)x.offset > e->len ||
                len > e->len - (uint64_t)x.offset) {
                return dcommi_step_error(lane, DCOMM_ERR_MISMATCH,
                                         "reads %zu bytes at %" PRId64 " of the %" PRIu64
                                         " that rank %d exposed",
                                         len, x.offset, e->len, rank);
            }
            piece->rank = rank;
            piece->region = e->device == 0 ? e->region : 0;
            piece->slot = (uint16_t)slot;
            piece->address = e->address + (uint64_t)x.offset;
            piece->offset = (uint64_t)x.offset;
            piece->device = e->device != 0;
            if (device && piece->device) {
                piece->straight = dcommi_comes_straight(frame->run, rank, e->region);
                dcommi_piece_on_device(frame->run, piece, e, len);
            }
        }
    }
    return DCOMMI_NEXT;
}

/* Run a COPY between the run's device and host memory. */
static enum dcommi_outcome dcommi_step_across(dcommi_lane *lane, const dcomm_step *step,
                                              uint8_t *dst, size_t len, bool to_device)
{
    size_t n;
    const uint8_t *src =
        dcommi_lane_piece(lane, &lane->frame->scope.plan->operands[step->src], 0, &n);
    if (src == NULL) {
        return dcommi_outside(lane, "source");
    }
    return n == len
               ? dcommi_copy_across(lane, dst, src, len, to_device, step->flags & DCOMM_STEP_ASYNC)
               : dcommi_step_lengths(lane, n, len);
}

static enum dcommi_outcome dcommi_step_fold(dcommi_lane *lane, const dcomm_step *step)
{
    dcommi_frame *frame = lane->frame;
    dcomm_context *context = frame->run->comm->context;
    size_t len, n = 0;
    uint8_t *dst = dcommi_lane_piece(lane, &step->dst, 0, &len);
    if (dst == NULL) {
        return dcommi_outside(lane, "destination");
    }
    bool remote = false, device = dcommi_on_device(frame, step->dst.space);
    for (uint32_t i = 0; i < step->nsrc; i++) {
        const dcomm_operand *o = &frame->scope.plan->operands[step->src + i];
        n += dcommi_operand_pieces(o);
        remote = remote || o->space == DCOMM_SPACE_PEER;
    }
    if (len == 0 || lane->forwarded) {
        lane->forwarded = false;
        return DCOMMI_NEXT;
    }
    if (!dcommi_sources_on(frame, step, device)) {
        return step->kind == DCOMM_STEP_COPY ? dcommi_step_across(lane, step, dst, len, device)
                                             : dcommi_step_mixed(lane);
    }
    if (dcommi_grow((void **)&context->pieces, &context->pieces_capacity, n, sizeof(dcommi_piece)) <
            0 ||
        dcommi_grow((void **)&context->pointers, &context->pointers_capacity, n, sizeof(void *)) <
            0) {
        return dcommi_step_error(lane, DCOMM_ERR_NO_MEMORY, "%s", dcommi_message);
    }
    enum dcommi_outcome outcome = dcommi_lane_pieces(lane, step, len, device, context->pieces);
    if (outcome != DCOMMI_NEXT) {
        return outcome;
    }
    bool fold = step->kind == DCOMM_STEP_REDUCE, final = step->flags & DCOMM_STEP_FINAL;
    bool async = step->flags & DCOMM_STEP_ASYNC;
    if (DCOMMI_UNLIKELY(device)) {
        return dcommi_device_fold(lane, dst, context->pieces, n, len, fold, final, async);
    }
    dcommi_target to = {.dst = dst, .past = dcommi_step_past(frame, step)};
    if ((step->flags & DCOMM_STEP_FORWARD) && !dcommi_on_device(frame, step[1].dst.space)) {
        size_t room;
        to.also = dst;
        to.dst = dcommi_lane_piece(lane, &step[1].dst, 0, &room);
        to.past = dcommi_step_past(frame, step + 1);
        if (to.dst == NULL) {
            return dcommi_outside(lane, "next step's destination");
        }
        if (room != len) {
            return dcommi_step_lengths(lane, len, room);
        }
        lane->forwarded = true;
    }
    if (remote) {
        return dcommi_moving(
            lane, dcommi_pull_start(lane, &to, context->pieces, n, len, fold, final, async), async);
    }
    if (!fold) {
        const uint8_t *src = context->pieces[0].local;
        dcommi_filler *filler = &frame->run->comm->filler;
        if (dcommi_step_fills(frame, step, len)) {
            dcommi_fill(filler, dst, src, len);
        } else if (frame->shared != NULL && step->dst.space == DCOMM_SPACE_SCRATCH) {
            dcommi_fill_near(filler, dst, src, len);
        } else {
            dcommi_result_copy(context, dst, src, len, to.past);
        }
        return DCOMMI_NEXT;
    }
    for (size_t i = 0; i < n; i++) {
        context->pointers[i] = context->pieces[i].local;
    }
    dcomm_status status = dcommi_fold_pieces(lane, &to, 0, context->pointers, n, len, final);
    return status < 0 ? dcommi_step_error(lane, status, "%s", dcommi_message) : DCOMMI_NEXT;
}

/* Run an EXPOSE or SIGNAL: tell each rank that the step addresses. */
static enum dcommi_outcome dcommi_step_tell(dcommi_lane *lane, const dcomm_step *step)
{
    const dcommi_frame *frame = lane->frame;
    const dcommi_scope *scope = &frame->scope;
    dcommi_run *run = frame->run;
    dcommi_targets to;
    int64_t value = 0;
    dcommi_header header = dcommi_header_of(run, DCOMMI_MSG_SIGNAL, 0);
    if (dcommi_cursor_targets(&lane->cursor, step, &to) < 0) {
        return dcommi_step_wrong(lane);
    }
    if (step->kind == DCOMM_STEP_EXPOSE) {
        const dcomm_operand *src = &scope->plan->operands[step->src];
        size_t len;
        uint8_t *base = dcommi_lane_piece(lane, src, 0, &len);
        if (base == NULL) {
            return dcommi_outside(lane, "source");
        }
        header.type = DCOMMI_MSG_EXPOSE;
        header.slot = (uint16_t)(scope->slot + step->slot);
        header.a = (uint64_t)(uintptr_t)base;
        header.b = len;
        bool device = dcommi_on_device(frame, src->space);
        if (DCOMMI_UNLIKELY(device)) {
            header.reserved = (uint16_t)(1 + run->device->handle.number);
        }
        header.tag = dcommi_region_number(run->comm->context, base, len);
        run->offers[header.slot].base = base;
        run->offers[header.slot].len = (int64_t)len;
        run->offers[header.slot].device = device;
    } else {
        if (dcommi_cursor_value(&lane->cursor, &step->value, &value) < 0) {
            return dcommi_step_wrong(lane);
        }
        header.slot = (uint16_t)(scope->counter + step->slot);
        header.a = (uint64_t)value;
    }
    for (int64_t r = to.first; r <= to.last; r++) {
        if (r != scope->plan->rank && !dcommi_has_credit(lane, dcommi_scope_rank(scope, r))) {
            return DCOMMI_RETRY;
        }
    }
    for (int64_t r = to.first; r <= to.last; r++) {
        if (r == scope->plan->rank) {
            if (r != to.but && step->kind == DCOMM_STEP_SIGNAL) {
                dcommi_run_signal(run, header.slot, (uint64_t)value);
            }
            continue;
        }
        const int rank = dcommi_scope_rank(scope, r);
        if (DCOMMI_UNLIKELY(header.reserved != 0)) {
            header.tag = dcommi_device_offered(run, rank, run->offers[header.slot].base,
                                               (size_t)run->offers[header.slot].len);
        }
        dcomm_status status = dcommi_send_header(run->comm, rank, &header, NULL, 0);
        if (status < 0) {
            return dcommi_step_error(lane, status, "%s", dcommi_message);
        }
    }
    return DCOMMI_NEXT;
}

static enum dcommi_outcome dcommi_step_compute(dcommi_lane *lane, const dcomm_step *step)
{
    const dcomm_plan *plan = lane->frame->scope.plan;
    const void *src[DCOMMI_FOLD_SOURCES];
    size_t src_len[DCOMMI_FOLD_SOURCES], dst_len;
    uint8_t *dst = dcommi_lane_piece(lane, &step->dst, 0, &dst_len);
    if (dst == NULL) {
        return dcommi_outside(lane, "destination");
    }
    for (uint32_t i = 0; i < step->nsrc; i++) {
        src[i] = dcommi_lane_piece(lane, &plan->operands[step->src + i], 0, &src_len[i]);
        if (src[i] == NULL) {
            return dcommi_outside(lane, "source");
        }
    }
    if (DCOMMI_UNLIKELY(dcommi_on_device(lane->frame, step->dst.space))) {
        return dcommi_device_compute(lane, plan->kernels[step->kernel], dst, dst_len, src, src_len,
                                     step->nsrc);
    }
    if (!dcommi_sources_on(lane->frame, step, false)) {
        return dcommi_step_mixed(lane);
    }
    dcomm_status status =
        plan->kernels[step->kernel](plan->kernel_user, dst, dst_len, src, src_len, step->nsrc);
    return status < 0 ? dcommi_step_error(lane, status, "kernel %d failed", (int)step->kernel)
                      : DCOMMI_NEXT;
}

static enum dcommi_outcome dcommi_step_call(dcommi_lane *lane, const dcomm_step *step)
{
    dcommi_frame *caller = lane->frame;
    const dcomm_operand *src = &caller->scope.plan->operands[step->src];
    dcommi_run *run = caller->run;
    dcommi_scope scope;
    if (dcommi_cursor_call(&lane->cursor, step, &scope) < 0) {
        return dcommi_step_wrong(lane);
    }
    const dcomm_plan *sub = scope.plan;
    size_t in_len = 0, out_len = 0;
    uint8_t *in = dcommi_lane_piece(lane, src, 0, &in_len);
    uint8_t *out = dcommi_lane_piece(lane, &step->dst, 0, &out_len);
    if (in == NULL || out == NULL) {
        return dcommi_outside(lane, in == NULL ? "input" : "output");
    }
    size_t head = (sizeof(dcommi_frame) + 63) & ~(size_t)63;
    size_t lanes = (sub->nlanes * sizeof(dcommi_lane) + 63) & ~(size_t)63;
    size_t words = (sub->nwords * sizeof(uint64_t) + 63) & ~(size_t)63;
    uint8_t *memory = dcommi_alloc_raw(head + lanes + words + (size_t)sub->scratch_bytes);
    if (memory == NULL) {
        return dcommi_step_error(lane, DCOMM_ERR_NO_MEMORY, "%s", dcommi_message);
    }
    memset(memory, 0, head + lanes + words);
    dcommi_frame *frame = (dcommi_frame *)memory;
    frame->scope = scope;
    dcommi_frame_bind(frame, run, (dcommi_lane *)(memory + head),
                      (uint64_t *)(memory + head + lanes));
    frame->caller = lane;
    frame->space[DCOMM_SPACE_IN] = in;
    frame->space_len[DCOMM_SPACE_IN] = (int64_t)in_len;
    frame->space[DCOMM_SPACE_OUT] = out;
    frame->space_len[DCOMM_SPACE_OUT] = (int64_t)out_len;
    if (DCOMMI_UNLIKELY(run->device != NULL)) {
        frame->on_device = (uint8_t)(dcommi_on_device(caller, src->space) << DCOMM_SPACE_IN |
                                     dcommi_on_device(caller, step->dst.space) << DCOMM_SPACE_OUT);
    }
    frame->next = run->children;
    run->children = frame;
    dcomm_status status = dcommi_frame_scratch(frame, memory + head + lanes + words);
    if (status < 0) {
        return dcommi_step_error(lane, status, "%s", dcommi_message);
    }
    lane->state = DCOMMI_LANE_CALL;
    if (sub->nlanes == 0) {
        dcommi_frame_done(frame);
    } else {
        dcommi_frame_start(frame);
    }
    return DCOMMI_STOP;
}

static enum dcommi_outcome dcommi_step_run(dcommi_lane *lane, const dcomm_step *step)
{
    switch (step->kind) {
    case DCOMM_STEP_SEND:
        return dcommi_step_send(lane, step);
    case DCOMM_STEP_RECV:
    case DCOMM_STEP_RECV_REDUCE:
        return dcommi_step_recv(lane, step);
    case DCOMM_STEP_COPY:
    case DCOMM_STEP_REDUCE:
        return dcommi_step_fold(lane, step);
    case DCOMM_STEP_EXPOSE:
    case DCOMM_STEP_SIGNAL:
        return dcommi_step_tell(lane, step);
    case DCOMM_STEP_ENCODE:
    case DCOMM_STEP_DECODE:
    case DCOMM_STEP_RECODE:
        return dcommi_step_codec(lane, step);
    case DCOMM_STEP_COMPUTE:
        return dcommi_step_compute(lane, step);
    case DCOMM_STEP_CALL:
        return dcommi_step_call(lane, step);
    case DCOMM_STEP_FENCE:
        if (lane->pending > 0) {
            lane->state = DCOMMI_LANE_FENCE;
            return DCOMMI_STOP;
        }
        return DCOMMI_NEXT;
    case DCOMM_STEP_WAIT: {
        const uint32_t counter = (uint32_t)(lane->frame->scope.counter + step->slot);
        int64_t target;
        if (dcommi_cursor_value(&lane->cursor, &step->value, &target) < 0) {
            return dcommi_step_wrong(lane);
        }
        if (target < 0) {
            return dcommi_step_error(lane, DCOMM_ERR_PLAN, "waits for a negative value");
        }
        if (lane->frame->run->counters[counter] >= (uint64_t)target) {
            return DCOMMI_NEXT;
        }
        lane->state = DCOMMI_LANE_COUNTER;
        lane->counter = counter;
        lane->target = (uint64_t)target;
        return DCOMMI_STOP;
    }
    default:
        return dcommi_step_error(lane, DCOMM_ERR_PLAN, "step of unknown kind %d", step->kind);
    }
}

#endif
