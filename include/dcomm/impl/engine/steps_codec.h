/* steps_codec.h - the steps of a plan's codec: ENCODE, DECODE and RECODE. */
#ifndef DCOMMI_STEPS_CODEC_H
#define DCOMMI_STEPS_CODEC_H

#include "device/steps_device.h"

/* The operands of a codec's step, with repeats unfolded. */
typedef struct dcommi_step_operands {
    const void **src; /* in memory of the context */
    size_t *len;
    size_t n;
    dcomm_codec_place place;
} dcommi_step_operands;

static dcomm_status dcommi_step_operands_of(dcommi_lane *lane, const dcomm_step *step,
                                            dcommi_step_operands *o)
{
    const dcommi_frame *frame = lane->frame;
    dcomm_context *context = frame->run->comm->context;
    const dcomm_plan *plan = frame->scope.plan;
    size_t n = 0;
    for (uint32_t i = 0; i < step->nsrc; i++) {
        n += dcommi_operand_pieces(&plan->operands[step->src + i]);
    }
    DCOMMI_TRY(
        dcommi_grow((void **)&context->pointers, &context->pointers_capacity, n, sizeof(void *)));
    DCOMMI_TRY(
        dcommi_grow((void **)&context->lengths, &context->lengths_capacity, n, sizeof(size_t)));
    o->src = context->pointers;
    o->len = context->lengths;
    o->n = 0;
    for (uint32_t i = 0; i < step->nsrc; i++) {
        const dcomm_operand *operand = &plan->operands[step->src + i];
        for (uint32_t r = 0; r < dcommi_operand_pieces(operand); r++, o->n++) {
            o->src[o->n] = dcommi_lane_piece(lane, operand, r, &o->len[o->n]);
            if (o->src[o->n] == NULL) {
                return DCOMM_ERR_PLAN;
            }
        }
    }
    int64_t first;
    DCOMMI_TRY(dcommi_cursor_element(&lane->cursor, step, &first));
    bool final = (step->flags & DCOMM_STEP_FINAL) && plan->op == DCOMM_AVG;
    o->place.first = (uint64_t)first;
    o->place.round = step->slot;
    o->place.divisor = final ? (uint32_t)frame->run->plan->nranks : 1;
    return DCOMM_OK;
}

static dcomm_status dcommi_step_recode(dcommi_lane *lane, const dcomm_step *step, void *user,
                                       const dcommi_step_operands *o, uint8_t *dst, size_t len,
                                       size_t *encoded)
{
    const dcomm_plan_codec *codec = lane->frame->scope.plan->codec;
    size_t room;
    uint8_t *stage = dcommi_lane_piece(lane, &step->stage, 0, &room);
    if (stage == NULL) {
        return DCOMM_ERR_PLAN;
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
    const bool spread = dcommi_spread_plan(frame->scope.plan); /* its wires lie on the host */
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
    const dcomm_plan *plan = lane->frame->scope.plan;
    const dcomm_plan_codec *codec = plan->codec;
    void *user = lane->frame->run->coded != NULL ? lane->frame->run->coded : plan->codec_user;
    size_t dst_len, encoded = 0;
    uint8_t *dst = dcommi_lane_piece(lane, &step->dst, 0, &dst_len);
    bool encodes = step->kind == DCOMM_STEP_ENCODE || step->kind == DCOMM_STEP_RECODE;
    dcommi_step_operands o;
    int32_t word;
    if (dst == NULL) {
        return dcommi_outside(lane, "destination");
    }
    dcomm_status status = dcommi_cursor_word(&lane->cursor, step, &word);
    DCOMMI_THEN(status, dcommi_step_operands_of(lane, step, &o));
    if (status < 0) {
        return dcommi_step_error(lane, status, "%s", dcommi_message);
    }
    const bool spread = dcommi_spread_plan(plan);
    if (DCOMMI_UNLIKELY(spread ? dcommi_spread_by_device(lane->frame, step)
                               : dcommi_on_device(lane->frame, step->dst.space))) {
        return dcommi_step_codec_device(lane, step, &o, dst, dst_len, word);
    }
    if (!spread && !dcommi_sources_on(lane->frame, step, false)) {
        return dcommi_step_mixed(lane);
    }
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

#endif
