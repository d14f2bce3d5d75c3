/* halves.h - compressed reduce-scatter and all-gather of f32: the halves of coded_two_shot, for the
 * gradients and the parameters of sharded training (qgZ and qwZ of Wang et al., "ZeRO++", 2023).
 *
 * coded_direct, reduce-scatter: each rank encodes its part of each block and sends it to the
 * block's owner, which decodes and adds all parts in rank order, in f32. N-1 encodings of a block
 * per rank, one rounding.
 * coded_direct, all-gather: each rank encodes its block once and sends it to all others. All decode
 * the same encoding, its maker too, so that all ranks have the same bits. */
#ifndef DCOMMI_ALGO_CODED_HALVES_H
#define DCOMMI_ALGO_CODED_HALVES_H

#include "coded.h"

/* Cut the blocks of a call. */
static dcommi_coded_cut dcommi_coded_halves_cut(const dcommi_shape *s, dcomm_builder *b)
{
    int64_t longest = dcommi_shape_bytes(s, s->count), total = 0;
    if (s->counts != NULL) {
        longest = dcommi_longest(s, s->counts);
    }
    int64_t offsets = (int64_t)b->ntable;
    for (int r = 0; r < s->nranks; r++) {
        int64_t at = (int64_t)(s->counts != NULL ? s->displs[r] : s->count * (size_t)r);
        dcomm_build_table(b, &at, 1);
    }
    for (int r = 0; r < s->nranks; r++) {
        int64_t count = (int64_t)(s->counts != NULL ? s->counts[r] : s->count);
        total += count * (int64_t)sizeof(float);
        dcomm_build_table(b, &count, 1);
    }
    dcommi_coded_cut k = dcommi_coded_cut_of(s, b, total, longest);
    k.listed = true;
    k.offsets = offsets;
    k.lengths = offsets + s->nranks;
    return k;
}

/* Return the byte of the tensor at which this rank's block begins. */
static int64_t dcommi_coded_own(const dcommi_shape *s)
{
    return dcommi_shape_bytes(s,
                              s->counts != NULL ? s->displs[s->rank] : s->count * (size_t)s->rank);
}

/* ---- reduce-scatter ---- */

static void dcommi_coded_scatter_track(const dcommi_coded_track *t, int64_t tag)
{
    const dcommi_shape *s = t->k->s;
    dcomm_builder *b = t->k->b;
    dcommi_coded_slots out = dcommi_coded_slots_make(t, s->nranks - 1);
    dcommi_coded_slots in = dcommi_coded_slots_make(t, s->nranks);
    uint16_t encoded = dcomm_build_counter(b), sent = dcomm_build_counter(b);
    uint16_t received = dcomm_build_counter(b), added = dcomm_build_counter(b);
    dcommi_coded_exchange(t, &out, &in, (const uint16_t[]){encoded, sent, received, added}, tag);

    int lane = t->lane + 3, u = dcomm_build_loop(b, lane, dcomm_const(t->trips));
    dcommi_coded_after(t, lane, encoded, u);
    dcommi_coded_after(t, lane, received, u);
    dcomm_operand all[2];
    size_t n = dcommi_coded_all(t, &in, u, all);
    dcommi_coded_decode(b, lane, dcommi_coded_piece(t, DCOMM_SPACE_OUT, u, dcommi_turn_at(s->rank)),
                        s->in_place ? 0 : dcommi_coded_own(s), all, n, DCOMM_STEP_FINAL);
    dcommi_coded_count(t, lane, added, 1);
    dcomm_build_end(b, lane);
}

static dcomm_status dcommi_coded_reduce_scatter(const dcommi_shape *s, dcomm_builder *b)
{
    DCOMMI_TRY(dcommi_coded_able(s, b));
    dcommi_coded_cut k = dcommi_coded_halves_cut(s, b);
    int tracks = dcommi_coded_tracks(&k);
    int64_t tag = dcomm_build_tags(b, k.chunks);
    for (int i = 0; i < tracks; i++) {
        dcommi_coded_track t = dcommi_coded_track_make(&k, i, tracks, 4);
        dcommi_coded_scatter_track(&t, tag);
    }
    return b->status;
}

/* ---- all-gather ---- */

static dcomm_status dcommi_coded_gather(const dcommi_shape *s, dcomm_builder *b)
{
    DCOMMI_TRY(dcommi_coded_able(s, b));
    dcommi_coded_cut k = dcommi_coded_halves_cut(s, b);
    int tracks = dcommi_coded_tracks(&k);
    int64_t tag = dcomm_build_tags(b, k.chunks);
    k.before = s->in_place ? 0 : dcommi_coded_own(s);
    for (int i = 0; i < tracks; i++) {
        dcommi_coded_track t = dcommi_coded_track_make(&k, i, tracks, 4);
        dcommi_coded_allgather_track(&t, tag, dcommi_turn_at(s->rank), true);
    }
    return b->status;
}

#endif
