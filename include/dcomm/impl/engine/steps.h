/* steps.h - the meaning of each step of a plan. */
#ifndef DCOMMI_STEPS_H
#define DCOMMI_STEPS_H

#include "device/steps_device.h"

static enum dcommi_outcome dcommi_step_send(dcommi_lane *lane, const dcomm_step *step)
{
    dcommi_frame *frame = lane->frame;
    int rank = dcommi_frame_rank(frame, dcommi_lane_value(lane, &step->peer));
    if (rank < 0 || rank == frame->run->comm->rank) {
        return dcommi_step_error(lane, DCOMM_ERR_PLAN, "sends to rank %d", rank);
    }
    if (lane->forwarded) {
        lane->forwarded = false;
        return DCOMMI_NEXT;
    }
    if (!dcommi_has_credit(lane, rank)) {
        return DCOMMI_RETRY;
    }
    size_t len;
    const uint8_t *data = dcommi_lane_piece(lane, &frame->plan->operands[step->src], 0, &len);
    if (data == NULL) {
        return dcommi_outside(lane, "source");
    }
    uint32_t tag = (uint32_t)(frame->tag_base + dcommi_lane_value(lane, &step->tag));
    bool async = step->flags & DCOMM_STEP_ASYNC;
    bool device = dcommi_on_device(frame, frame->plan->operands[step->src].space) && len > 0;
    return dcommi_moving(
        lane, (device ? dcommi_device_send : dcommi_send_start)(lane, rank, tag, data, len, async),
        async);
}

/* A copy into a slot that peers copy out of; where they fold, it is better in a cache. */
static inline bool dcommi_step_fills(const dcommi_frame *frame, const dcomm_step *step, size_t len)
{
    return frame->shared != NULL && step->dst.space == DCOMM_SPACE_SCRATCH &&
           (step->flags & DCOMM_STEP_RESULT) && len >= DCOMMI_FILL_LEAST && dcommi_is_bulk(frame);
}

/* Whether what a step stores is better kept out of the caches; the result of a sub-plan is read
 * again by who called it. */
static inline bool dcommi_step_past(const dcommi_frame *frame, const dcomm_step *step)
{
    return frame->caller == NULL && dcommi_result_past(step, frame->space_len[DCOMM_SPACE_OUT]);
}

static enum dcommi_outcome dcommi_step_recv(dcommi_lane *lane, const dcomm_step *step)
{
    dcommi_frame *frame = lane->frame;
    dcommi_run *run = frame->run;
    int rank = dcommi_frame_rank(frame, dcommi_lane_value(lane, &step->peer));
    if (rank < 0 || rank == run->comm->rank) {
        return dcommi_step_error(lane, DCOMM_ERR_PLAN, "receives from rank %d", rank);
    }
    size_t len;
    bool fits;
    int32_t word = dcommi_word_of(lane, step, &fits);
    uint8_t *dst = dcommi_lane_piece(lane, &step->dst, 0, &len);
    if (dst == NULL || !fits) {
        return dcommi_outside(lane, dst == NULL ? "destination" : "word");
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
        for (uint32_t i = 0; i < step->nsrc && i < DCOMMI_FOLD_SOURCES; i++) {
            const dcomm_operand *o = &frame->plan->operands[step->src + i];
            size_t n = len;
            move->src[i] = NULL;
            if (o->space == DCOMM_SPACE_MSG) {
                move->msg_at = (uint8_t)i;
            } else if ((move->src[i] = dcommi_lane_piece(lane, o, 0, &n)) == NULL || n != len) {
                return dcommi_outside(lane, "source");
            }
        }
        move->nsrc = (uint8_t)step->nsrc;
        if ((step->flags & (DCOMM_STEP_FORWARD | DCOMM_STEP_ASYNC)) == DCOMM_STEP_FORWARD &&
            lane->pc + 1 < lane->count && step[1].kind == DCOMM_STEP_SEND) {
            move->forward_rank = dcommi_frame_rank(frame, dcommi_lane_value(lane, &step[1].peer));
            move->forward_tag = (uint32_t)(frame->tag_base + dcommi_lane_value(lane, &step[1].tag));
        }
        size_t room;
        move->buf = dcommi_lane_piece(lane, &step->stage, 0, &room);
        if (step->nsrc > DCOMMI_FOLD_SOURCES || move->buf == NULL || room < len) {
            return dcommi_outside(lane, "stage");
        }
    }
    /* The move may complete within the post, so the lane must already look as if it waited. */
    bool async = move->async;
    uint32_t tag = (uint32_t)(frame->tag_base + dcommi_lane_value(lane, &step->tag));
    if (async) {
        lane->pending++;
    } else {
        lane->state = DCOMMI_LANE_MOVE;
    }
    dcommi_recv_post(move, rank, tag);
    if (!run->active) {
        return DCOMMI_GONE;
    }
    return async ? DCOMMI_NEXT : DCOMMI_STOP;
}

/* The exposed memory that a PEER piece means; NULL: the lane waits for it, or failed. */
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
        const dcomm_operand *o = &frame->plan->operands[step->src + i];
        uint32_t repeat = o->repeat > 1 ? o->repeat : 1;
        int64_t first = o->space == DCOMM_SPACE_PEER ? dcommi_lane_value(lane, &o->peer) : 0;
        for (uint32_t r = 0; r < repeat; r++, at++) {
            dcommi_piece *piece = &pieces[at];
            memset(piece, 0, sizeof *piece);
            size_t n;
            if (o->space != DCOMM_SPACE_PEER) {
                piece->local = dcommi_lane_piece(lane, o, r, &n);
                if (piece->local == NULL || n != len) {
                    return dcommi_outside(lane, "source");
                }
                continue;
            }
            int64_t offset, length;
            dcommi_operand_piece(o, r, lane->index, frame->plan->table, frame->words, &offset,
                                 &length);
            int rank = dcommi_frame_rank(frame, (first + r) % frame->plan->nranks);
            if (rank < 0 || rank == frame->run->comm->rank) {
                return dcommi_step_error(lane, DCOMM_ERR_PLAN, "reads memory of rank %d", rank);
            }
            uint32_t slot = frame->slot_base + o->slot;
            const dcommi_exposed *e = dcommi_lane_exposed(lane, rank, slot);
            if (e == NULL) {
                return DCOMMI_RETRY;
            }
            if ((size_t)length != len || offset < 0 || (uint64_t)offset > e->len ||
                len > e->len - (uint64_t)offset) {
                return dcommi_step_error(lane, DCOMM_ERR_MISMATCH,
                                         "reads %zu bytes at %" PRId64 " of the %" PRIu64
                                         " that rank %d exposed",
                                         len, offset, e->len, rank);
            }
            piece->rank = rank;
            piece->region = e->device == 0 ? e->region : 0;
            piece->slot = (uint16_t)slot;
            piece->address = e->address + (uint64_t)offset;
            piece->offset = (uint64_t)offset;
            piece->device = e->device != 0;
            if (device && piece->device) {
                piece->straight = dcommi_comes_straight(frame->run, rank, e->region);
                dcommi_piece_on_device(frame->run, piece, e, len);
            }
        }
    }
    return DCOMMI_NEXT;
}

/* COPY between the run's device and host memory. */
static enum dcommi_outcome dcommi_step_across(dcommi_lane *lane, const dcomm_step *step,
                                              uint8_t *dst, size_t len, bool to_device)
{
    size_t n;
    const uint8_t *src = dcommi_lane_piece(lane, &lane->frame->plan->operands[step->src], 0, &n);
    return src != NULL && n == len
               ? dcommi_copy_across(lane, dst, src, len, to_device, step->flags & DCOMM_STEP_ASYNC)
               : dcommi_outside(lane, "source");
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
        const dcomm_operand *o = &frame->plan->operands[step->src + i];
        n += o->repeat > 1 ? o->repeat : 1;
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
        if (to.dst == NULL || room != len) {
            return dcommi_outside(lane, "next step's destination");
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

/* Run fn for each rank that EXPOSE or SIGNAL addresses. */
static enum dcommi_outcome dcommi_step_tell(dcommi_lane *lane, const dcomm_step *step)
{
    dcommi_frame *frame = lane->frame;
    dcommi_run *run = frame->run;
    int64_t peer = dcommi_lane_value(lane, &step->peer);
    uint64_t value = 0;
    dcommi_header header = dcommi_header_of(run, DCOMMI_MSG_SIGNAL, 0);
    if (step->kind == DCOMM_STEP_EXPOSE) {
        size_t len;
        uint8_t *base = dcommi_lane_piece(lane, &frame->plan->operands[step->src], 0, &len);
        if (base == NULL) {
            return dcommi_outside(lane, "what it exposes");
        }
        header.type = DCOMMI_MSG_EXPOSE;
        header.slot = (uint16_t)(frame->slot_base + step->slot);
        header.a = (uint64_t)(uintptr_t)base;
        header.b = len;
        bool device = dcommi_on_device(frame, frame->plan->operands[step->src].space);
        if (DCOMMI_UNLIKELY(device)) {
            header.reserved = (uint16_t)(1 + run->device->handle.number);
        }
        header.tag = dcommi_region_number(run->comm->context, base, len);
        if (run->offers == NULL || header.slot >= run->plan->nslots) {
            return dcommi_step_error(lane, DCOMM_ERR_PLAN, "slot %d of %u", (int)header.slot,
                                     run->plan->nslots);
        }
        run->offers[header.slot].base = base;
        run->offers[header.slot].len = (int64_t)len;
        run->offers[header.slot].device = device;
    } else {
        value = (uint64_t)dcommi_lane_value(lane, &step->value);
        header.slot = (uint16_t)(frame->counter_base + step->slot);
        header.a = value;
        if (header.slot >= run->plan->ncounters) {
            return dcommi_step_error(lane, DCOMM_ERR_PLAN, "counter %d of %u", (int)header.slot,
                                     run->plan->ncounters);
        }
    }
    int64_t first = peer == DCOMM_ALL_PEERS ? 0 : peer;
    int64_t last = peer == DCOMM_ALL_PEERS ? frame->plan->nranks - 1 : peer;
    for (int64_t r = first; r <= last; r++) {
        int rank = dcommi_frame_rank(frame, r);
        if (rank < 0) {
            return dcommi_step_error(lane, DCOMM_ERR_PLAN, "addresses rank %" PRId64, r);
        }
        if (rank != run->comm->rank && !dcommi_has_credit(lane, rank)) {
            return DCOMMI_RETRY;
        }
    }
    for (int64_t r = first; r <= last; r++) {
        int rank = dcommi_frame_rank(frame, r);
        if (rank == run->comm->rank) {
            if (peer != DCOMM_ALL_PEERS && step->kind == DCOMM_STEP_SIGNAL) {
                dcommi_run_signal(run, header.slot, value);
            }
            continue;
        }
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

/* The operands of a step of the codec's, repeats unfolded. */
typedef struct dcommi_step_operands {
    const void **src; /* the context's */
    size_t *len;
    size_t n;
    dcomm_codec_place place;
} dcommi_step_operands;

/* NULL, or what lies outside its space. */
static const char *dcommi_step_operands_of(dcommi_lane *lane, const dcomm_step *step,
                                           dcommi_step_operands *o)
{
    const dcommi_frame *frame = lane->frame;
    dcomm_context *context = frame->run->comm->context;
    size_t n = 0;
    for (uint32_t i = 0; i < step->nsrc; i++) {
        n += dcommi_max64(frame->plan->operands[step->src + i].repeat, 1);
    }
    if (dcommi_grow((void **)&context->pointers, &context->pointers_capacity, n, sizeof(void *)) <
            0 ||
        dcommi_grow((void **)&context->lengths, &context->lengths_capacity, n, sizeof(size_t)) <
            0) {
        return dcommi_message;
    }
    o->src = context->pointers;
    o->len = context->lengths;
    o->n = 0;
    for (uint32_t i = 0; i < step->nsrc; i++) {
        const dcomm_operand *operand = &frame->plan->operands[step->src + i];
        for (uint32_t r = 0; r == 0 || r < operand->repeat; r++, o->n++) {
            o->src[o->n] = dcommi_lane_piece(lane, operand, r, &o->len[o->n]);
            if (o->src[o->n] == NULL) {
                return "source lies outside its space";
            }
        }
    }
    int64_t first = frame->index_base + dcommi_lane_value(lane, &step->index);
    bool final = (step->flags & DCOMM_STEP_FINAL) && frame->plan->op == DCOMM_AVG;
    o->place.first = (uint64_t)first;
    o->place.round = step->slot;
    o->place.divisor = final ? (uint32_t)frame->run->plan->nranks : 1;
    return first < 0 ? "index is negative" : NULL;
}

static dcomm_status dcommi_step_recode(dcommi_lane *lane, const dcomm_step *step, void *user,
                                       const dcommi_step_operands *o, uint8_t *dst, size_t len,
                                       size_t *encoded)
{
    const dcomm_plan_codec *codec = lane->frame->plan->codec;
    size_t room;
    uint8_t *stage = dcommi_lane_piece(lane, &step->stage, 0, &room);
    if (stage == NULL) {
        return dcommi_fail(DCOMM_ERR_PLAN, "stage lies outside its space");
    }
    if (codec->recode != NULL) {
        return codec->recode(user, &o->place, o->src, o->len, o->n, stage, room, dst, len, encoded);
    }
    DCOMMI_TRY(codec->decode(user, &o->place, o->src, o->len, o->n, stage, room));
    return codec->encode(user, &o->place, stage, room, dst, len, encoded);
}

static enum dcommi_outcome dcommi_step_codec_device(dcommi_lane *lane, const dcomm_step *step,
                                                    const dcommi_step_operands *o, uint8_t *dst,
                                                    size_t dst_len, int32_t word)
{
    const dcommi_frame *frame = lane->frame;
    size_t bytes = step->kind == DCOMM_STEP_ENCODE ? o->len[0] : dst_len;
    const bool spread = dcommi_spread_plan(frame->plan); /* whose wires are the host's */
    if (frame->run->coded == NULL || (!spread && !dcommi_sources_on(frame, step, true))) {
        return dcommi_step_mixed(lane);
    }
    if (step->kind == DCOMM_STEP_RECODE) {
        dcommi_lane_piece(lane, &step->stage, 0, &bytes);
    }
    dcommi_device_code code = {.kind = step->kind,
                               .count = bytes / sizeof(float),
                               .src = o->src,
                               .len = o->len,
                               .n = o->n,
                               .dst = dst,
                               .dst_len = dst_len};
    return dcommi_moving(lane,
                         spread && step->kind == DCOMM_STEP_DECODE
                             ? dcommi_spread_result_on_device(lane, &o->place, &code)
                             : dcommi_coded_on_device(lane, &o->place, &code, word),
                         false);
}

static enum dcommi_outcome dcommi_step_codec(dcommi_lane *lane, const dcomm_step *step)
{
    const dcomm_plan *plan = lane->frame->plan;
    const dcomm_plan_codec *codec = plan->codec;
    void *user = lane->frame->run->coded != NULL ? lane->frame->run->coded : plan->codec_user;
    size_t dst_len, encoded = 0;
    uint8_t *dst = dcommi_lane_piece(lane, &step->dst, 0, &dst_len);
    bool fits, encodes = step->kind == DCOMM_STEP_ENCODE || step->kind == DCOMM_STEP_RECODE;
    int32_t word = dcommi_word_of(lane, step, &fits);
    dcommi_step_operands o;
    if (codec == NULL) {
        return dcommi_step_error(lane, DCOMM_ERR_PLAN, "the plan has no codec");
    }
    if (dst == NULL || !fits) {
        return dcommi_outside(lane, dst == NULL ? "destination" : "word");
    }
    const char *wrong = dcommi_step_operands_of(lane, step, &o);
    if (wrong != NULL) {
        return dcommi_step_error(lane, DCOMM_ERR_PLAN, "%s", wrong);
    }
    const bool spread = dcommi_spread_plan(plan);
    if (DCOMMI_UNLIKELY(spread ? dcommi_spread_by_device(lane->frame, step)
                               : dcommi_on_device(lane->frame, step->dst.space))) {
        return dcommi_step_codec_device(lane, step, &o, dst, dst_len, word);
    }
    if (!spread && !dcommi_sources_on(lane->frame, step, false)) {
        return dcommi_step_mixed(lane);
    }
    dcomm_status status;
    dcommi_message[0] = 0;
    double start = dcommi_now();
    switch (step->kind) {
    case DCOMM_STEP_ENCODE:
        status = codec->encode(user, &o.place, o.src[0], o.len[0], dst, dst_len, &encoded);
        break;
    case DCOMM_STEP_RECODE:
        status = dcommi_step_recode(lane, step, user, &o, dst, dst_len, &encoded);
        break;
    default:
        status = codec->decode(user, &o.place, o.src, o.len, o.n, dst, dst_len);
        break;
    }
    lane->frame->run->comm->stats.codec_ns += (uint64_t)(1e9 * (dcommi_now() - start));
    if (status < 0) {
        return dcommi_step_error(
            lane, status, "%s cannot %s %zu bytes of elements from %" PRIu64 "%s%s", codec->name,
            step->kind == DCOMM_STEP_ENCODE ? "encode" : "decode", o.n > 0 ? o.len[0] : 0,
            o.place.first, dcommi_message[0] != 0 ? ": " : "", dcommi_message);
    }
    if (dcommi_coded_verdict(lane) < 0) {
        return DCOMMI_GONE;
    }
    if (encoded > dst_len || (encodes && word < 0 && encoded != dst_len)) {
        return dcommi_step_error(lane, DCOMM_ERR_PLAN, "%s encoded %zu bytes into %zu", codec->name,
                                 encoded, dst_len);
    }
    if (encodes && word >= 0) {
        lane->frame->words[word] = encoded;
    }
    return DCOMMI_NEXT;
}

static enum dcommi_outcome dcommi_step_compute(dcommi_lane *lane, const dcomm_step *step)
{
    const dcomm_plan *plan = lane->frame->plan;
    const void *src[DCOMMI_FOLD_SOURCES];
    size_t src_len[DCOMMI_FOLD_SOURCES], dst_len;
    uint8_t *dst = dcommi_lane_piece(lane, &step->dst, 0, &dst_len);
    if (step->kernel >= plan->nkernels || step->nsrc > DCOMMI_FOLD_SOURCES || dst == NULL) {
        return dcommi_step_error(lane, DCOMM_ERR_PLAN, "kernel %d of %u, %u sources",
                                 (int)step->kernel, plan->nkernels, step->nsrc);
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
    dcommi_frame *parent = lane->frame;
    dcommi_run *run = parent->run;
    const dcomm_plan *sub = parent->plan->subs[step->sub];
    if (parent->depth + 1 >= DCOMMI_CALL_DEPTH) {
        return dcommi_step_error(lane, DCOMM_ERR_PLAN, "sub-plans nest deeper than %d",
                                 DCOMMI_CALL_DEPTH);
    }
    int64_t counter = step->slot + dcommi_lane_value(lane, &step->value);
    int64_t slot = (step->word > 0 ? step->word : 0) + dcommi_lane_value(lane, &step->peer);
    if (counter < 0 || counter > (int64_t)parent->plan->ncounters - sub->ncounters || slot < 0 ||
        slot > (int64_t)parent->plan->nslots - sub->nslots) {
        return dcommi_step_error(lane, DCOMM_ERR_PLAN,
                                 "counters %" PRId64 "+%" PRIu32 " of %" PRIu32 ", slots %" PRId64
                                 "+%" PRIu32 " of %" PRIu32 ": the sub-plan's do not fit",
                                 counter, sub->ncounters, parent->plan->ncounters, slot,
                                 sub->nslots, parent->plan->nslots);
    }
    size_t in_len = 0, out_len = 0;
    uint8_t *in = dcommi_lane_piece(lane, &parent->plan->operands[step->src], 0, &in_len);
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
    dcommi_frame_bind(frame, run, sub, (dcommi_lane *)(memory + head));
    frame->parent = parent;
    frame->caller = lane;
    frame->depth = parent->depth + 1;
    frame->group = parent->plan->table + step->group;
    frame->words = (uint64_t *)(memory + head + lanes);
    frame->tag_base = parent->tag_base + dcommi_lane_value(lane, &step->tag);
    frame->counter_base = parent->counter_base + (uint32_t)counter;
    frame->slot_base = parent->slot_base + (uint32_t)slot;
    frame->space[DCOMM_SPACE_IN] = in;
    frame->space_len[DCOMM_SPACE_IN] = (int64_t)in_len;
    frame->space[DCOMM_SPACE_OUT] = out;
    frame->space_len[DCOMM_SPACE_OUT] = (int64_t)out_len;
    if (DCOMMI_UNLIKELY(run->device != NULL)) {
        frame->on_device =
            (uint8_t)(dcommi_on_device(parent, parent->plan->operands[step->src].space)
                          << DCOMM_SPACE_IN |
                      dcommi_on_device(parent, step->dst.space) << DCOMM_SPACE_OUT);
    }
    frame->index_base = parent->index_base + dcommi_lane_value(lane, &step->index);
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

/* Open a loop, or jump behind it when it has no trips. */
static void dcommi_step_loop(dcommi_lane *lane, const dcomm_step *step)
{
    int64_t trips = dcommi_lane_value(lane, &step->value);
    if (trips <= 0) {
        lane->pc += step->body + 1;
        return;
    }
    lane->trips[lane->depth] = trips;
    lane->index[lane->depth] = 0;
    lane->depth++;
}

static void dcommi_step_end(dcommi_lane *lane, const dcomm_step *step)
{
    int d = lane->depth - 1;
    if (++lane->index[d] < lane->trips[d]) {
        lane->pc -= step->body + 1; /* to the LOOP step; the increment enters the body */
        return;
    }
    lane->index[d] = 0;
    lane->depth = d;
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
        uint32_t counter = lane->frame->counter_base + step->slot;
        uint64_t target = (uint64_t)dcommi_lane_value(lane, &step->value);
        if (counter >= lane->frame->run->plan->ncounters || (int64_t)target < 0) {
            return dcommi_step_error(lane, DCOMM_ERR_PLAN, "waits for counter %u >= %" PRId64,
                                     counter, (int64_t)target);
        }
        if (lane->frame->run->counters[counter] >= target) {
            return DCOMMI_NEXT;
        }
        lane->state = DCOMMI_LANE_COUNTER;
        lane->counter = counter;
        lane->target = target;
        return DCOMMI_STOP;
    }
    case DCOMM_STEP_LOOP:
        dcommi_step_loop(lane, step);
        return DCOMMI_NEXT;
    case DCOMM_STEP_END:
        dcommi_step_end(lane, step);
        return DCOMMI_NEXT;
    default:
        return dcommi_step_error(lane, DCOMM_ERR_PLAN, "step of unknown kind %d", step->kind);
    }
}

#endif
