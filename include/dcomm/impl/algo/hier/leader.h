/* leader.h - reduce-scatter, all-gather and all-to-all through leaders, over any number of levels.
 * The leader of a group is its first rank; only leaders talk to other groups.
 *
 * Reduce-scatter: each tier but the last reduces all blocks to its leader. The leaders of all
 * hosts reduce-scatter them by host, and each tier scatters the blocks of its group. All-gather:
 * each tier gathers to its leader, the leaders of all hosts all-gather, and each tier broadcasts
 * all blocks. All-to-all: each tier gathers all blocks of its ranks. The leaders of hosts sort
 * them by the target host, exchange them, and sort them by the target rank. Then each tier
 * scatters. All of it works in chunks, and the tiers overlap (hier/pipe.h). */
#ifndef DCOMMI_ALGO_HIER_LEADER_H
#define DCOMMI_ALGO_HIER_LEADER_H

#include "order.h"

/* Reserve numbers for the calls of a tier. Call it for the coarsest tier first. back: the second
 * phase of the tier. */
static void dcommi_hier_leader_reserve(dcommi_hier_order *o, int phase, int back)
{
    dcommi_hier_reserve(&o->pipe, phase);
    if (back != phase) {
        dcommi_hier_reserve(&o->pipe, back);
    }
}

/* Return the place of the blocks of this rank's part of a tier: `own` if the part is this rank
 * alone, new scratch if this rank leads it, else none. */
static dcommi_hier_place dcommi_hier_leader_place(dcommi_hier_order *o, int tier,
                                                  dcommi_hier_place own)
{
    const dcommi_hier_tier *t = &o->tree.tier[tier];
    dcommi_hier_node part = dcommi_hier_order_part(o, t, t->place);
    return part.end - part.begin == 1 ? own
           : t->owner >= 0            ? dcommi_hier_order_room(o, part)
                                      : (dcommi_hier_place){DCOMM_SPACE_NONE, 0, 0};
}

static dcomm_status dcommi_hier_reduce_scatter_by_leaders(dcommi_hier *h)
{
    const dcommi_shape *s = h->s;
    dcommi_hier_order o;
    DCOMMI_TRY(dcommi_hier_order_open(h, &o));
    int last = o.tree.ntiers - 1;
    dcomm_space input = dcommi_input_of(s, 0).space;
    dcommi_hier_place from[DCOMMI_HIER_TIERS]; /* the input of each tier's reduction */
    dcommi_hier_place sum = {DCOMM_SPACE_OUT, 0, 0}, to[DCOMMI_HIER_TIERS];
    from[0] = (dcommi_hier_place){input, 0, 0};
    if (!dcommi_hier_order_plain(&o)) {
        from[0] = dcommi_hier_order_room(&o, dcommi_hier_order_all(&o));
        dcommi_hier_order_copies(&o, input, from[0], false, &o.pipe.phase[0]);
    }
    for (int i = 0; i < last; i++) {
        const dcommi_hier_tier *tier = &o.tree.tier[i];
        bool leads = tier->owner >= 0 && tier->place == 0 && tier->n > 1;
        if (leads && sum.space == DCOMM_SPACE_OUT) {
            sum = dcommi_hier_order_room(&o, dcommi_hier_order_all(&o));
        }
        from[i + 1] = leads ? sum : from[i];
    }
    dcommi_hier_place own = dcommi_hier_order_own(&o, DCOMM_SPACE_OUT, s->in_place);
    for (int i = 0; i <= last; i++) { /* the result of a tier's part */
        to[i] = dcommi_hier_leader_place(&o, i, own);
    }
    o.pipe.nphases = 2 * last + 2;
    for (int i = last; i >= 0; i--) {
        const dcommi_hier_tier *tier = &o.tree.tier[i];
        dcommi_hier_phase *up = &o.pipe.phase[1 + i], *down = &o.pipe.phase[1 + 2 * last - i];
        if (i == last) {
            dcommi_hier_order_call(&o, tier, DCOMM_COLL_REDUCE_SCATTERV, from[i], to[i], up);
        } else if (tier->n > 1) {
            dcommi_hier_order_call(&o, tier, DCOMM_COLL_REDUCE, from[i], sum, up);
            dcommi_hier_order_call(&o, tier, DCOMM_COLL_SCATTERV, to[i + 1], to[i], down);
        }
        dcommi_hier_leader_reserve(&o, 1 + i, 1 + 2 * last - i);
    }
    return dcommi_hier_order_close(&o);
}

static dcomm_status dcommi_hier_allgather_by_leaders(dcommi_hier *h)
{
    const dcommi_shape *s = h->s;
    dcommi_hier_order o;
    DCOMMI_TRY(dcommi_hier_order_open(h, &o));
    int last = o.tree.ntiers - 1;
    dcommi_hier_place held[DCOMMI_HIER_TIERS], all = {DCOMM_SPACE_OUT, 0, 0};
    if (!dcommi_hier_order_plain(&o)) {
        all = dcommi_hier_order_room(&o, dcommi_hier_order_all(&o));
        dcommi_hier_order_copies(&o, DCOMM_SPACE_OUT, all, true, &o.pipe.phase[2 * last + 1]);
    }
    dcommi_hier_place own = dcommi_hier_order_own(&o, dcommi_input_of(s, 0).space, s->in_place);
    for (int i = 0; i <= last; i++) {
        held[i] = dcommi_hier_leader_place(&o, i, own);
    }
    o.pipe.nphases = 2 * last + 2;
    for (int i = last; i >= 0; i--) {
        const dcommi_hier_tier *tier = &o.tree.tier[i];
        dcommi_hier_phase *up = &o.pipe.phase[i], *down = &o.pipe.phase[2 * last - i];
        if (i == last) {
            dcommi_hier_order_call(&o, tier, DCOMM_COLL_ALLGATHERV, held[i], all, up);
        } else if (tier->n > 1) {
            dcommi_hier_order_call(&o, tier, DCOMM_COLL_GATHERV, held[i], held[i + 1], up);
            dcommi_hier_order_call(&o, tier, DCOMM_COLL_BROADCAST, all, all, down);
        }
        dcommi_hier_leader_reserve(&o, i, 2 * last - i);
    }
    return dcommi_hier_order_close(&o);
}

/* ---- all-to-all ---- */

/* Change the offsets to those of an all-to-all: a rank has one block for each rank. */
static void dcommi_hier_leader_square(dcommi_hier_order *o)
{
    int n = o->h->s->nranks;
    for (int kind = 0; kind < 2; kind++) {
        int64_t all = o->offset[kind][n];
        for (int j = 0; j <= n; j++) {
            o->offset[kind][j] = j * all;
        }
    }
}

/* Fill in a phase that sorts the blocks of a host: from its ranks one after the other to the
 * target hosts one after the other, for the exchange. back: sort the received blocks by target
 * rank. */
static dcomm_status dcommi_hier_leader_sort(dcommi_hier_order *o, dcommi_hier_node own, bool back,
                                            dcommi_hier_place in, dcommi_hier_place out,
                                            dcommi_hier_phase *p)
{
    const dcommi_hier_tier *top = &o->tree.tier[o->tree.ntiers - 1];
    int64_t n = o->h->s->nranks, g = own.end - own.begin;
    dcommi_hier_sorting t;
    if (!dcommi_hier_sorting_open(&t, n * g)) {
        return DCOMM_ERR_NO_MEMORY;
    }
    for (int kind = 0; kind < 2; kind++) {
        int64_t one = o->offset[kind][1] / n;
        for (int at = 0; at < n;) {
            dcommi_hier_node k = dcommi_hier_part_at(&o->tree, top->node, top->level, at);
            int64_t size = k.end - k.begin;
            for (int64_t i = 0; i < g && !back; i++) {
                dcommi_hier_sorting_add(&t, (i * n + k.begin) * one, (g * k.begin + i * size) * one,
                                        size * one);
            }
            for (int64_t i = 0; i < size && back; i++) {
                for (int64_t m = 0; m < g; m++) {
                    dcommi_hier_sorting_add(&t, (g * k.begin + i * g + m) * one,
                                            (m * n + k.begin + i) * one, one);
                }
            }
            at = k.end;
        }
        dcommi_hier_sorting_phase(&t, o->h->b, in, out, kind, p);
    }
    dcommi_free(t.from);
    return DCOMM_OK;
}

/* Fill in the phase of the exchange between hosts. */
static void dcommi_hier_leader_exchange(dcommi_hier_order *o, dcommi_hier_place in,
                                        dcommi_hier_place out, dcommi_hier_phase *p)
{
    dcommi_hier *h = o->h;
    const dcommi_hier_tier *top = &o->tree.tier[o->tree.ntiers - 1];
    dcommi_hier_node own = dcommi_hier_order_part(o, top, top->place), k = own;
    size_t n = (size_t)top->n;
    p->group = top->owner >= 0 ? dcommi_hier_tier_table(&o->tree, top, h->b) : 0;
    p->in_step = in.step;
    p->out_step = out.step;
    for (int kind = 0; kind < (o->pipe.odd ? 2 : 1); kind++) {
        int64_t bytes = dcommi_hier_order_bytes(o, own, kind);
        size_t column = (size_t)(bytes / h->s->nranks) / dcomm_dtype_size(h->s->dtype);
        dcommi_shape sub = dcommi_hier_shape(h, DCOMM_COLL_ALLTOALLV, top->place, top->n, false);
        sub.counts = sub.send_counts = o->counts;
        sub.displs = sub.send_displs = o->counts + n;
        for (size_t i = 0; i < n; i++) { /* a host sends and receives equally many blocks */
            k = dcommi_hier_part_at(&o->tree, top->node, top->level, i == 0 ? 0 : k.end);
            o->counts[i] = (size_t)(k.end - k.begin) * column;
            o->counts[n + i] = (size_t)k.begin * column;
        }
        dcomm_plan *plan = dcommi_hier_sub_near(h, &sub, top->near, bytes, bytes, bytes);
        dcommi_hier_needs(p, plan);
        if (plan == NULL || top->owner < 0) {
            dcommi_free(plan);
            continue;
        }
        p->plan[kind] = dcommi_build_adopt(h->b, plan);
        p->in[kind] = dcommi_hier_order_span(in, bytes);
        p->out[kind] = dcommi_hier_order_span(out, bytes);
    }
}

static dcomm_status dcommi_hier_alltoall_by_leaders(dcommi_hier *h)
{
    dcommi_hier_order o;
    dcomm_status status = dcommi_hier_order_open(h, &o);
    if (status < 0) {
        return status;
    }
    int last = o.tree.ntiers - 1;
    dcommi_hier_phase *phase = o.pipe.phase + 1; /* phase 0 copies into the order, the last back */
    dcommi_hier_place input = {dcommi_input_of(h->s, 0).space, 0, 0};
    dcommi_hier_place output = {DCOMM_SPACE_OUT, 0, 0};
    o.pipe.nphases = 2 * last + 5;
    if (!dcommi_hier_order_plain(&o)) {
        dcomm_space given = input.space;
        input = dcommi_hier_order_room(&o, dcommi_hier_order_all(&o));
        output = dcommi_hier_order_room(&o, dcommi_hier_order_all(&o));
        dcommi_hier_order_copies(&o, given, input, false, &o.pipe.phase[0]);
        dcommi_hier_order_copies(&o, DCOMM_SPACE_OUT, output, true, &phase[2 * last + 3]);
    }
    dcommi_hier_leader_square(&o);
    dcommi_hier_place held[DCOMMI_HIER_TIERS], got[DCOMMI_HIER_TIERS];
    const dcommi_hier_tier *top = &o.tree.tier[last];
    dcommi_hier_node own = dcommi_hier_order_part(&o, top, top->place);
    for (int i = 0; i <= last; i++) {
        held[i] = dcommi_hier_leader_place(&o, i, input);
        got[i] = dcommi_hier_leader_place(&o, i, output);
    }
    if (top->owner >= 0) {
        dcommi_hier_place sorted = dcommi_hier_order_room(&o, own);
        dcommi_hier_place came = dcommi_hier_order_room(&o, own);
        status = dcommi_hier_leader_sort(&o, own, false, held[last], sorted, &phase[last]);
        if (status == DCOMM_OK) {
            status = dcommi_hier_leader_sort(&o, own, true, came, got[last], &phase[last + 2]);
        }
        dcommi_hier_leader_exchange(&o, sorted, came, &phase[last + 1]);
    } else {
        dcommi_hier_leader_exchange(&o, held[last], held[last], &phase[last + 1]);
    }
    if (status < 0) {
        dcommi_build_error(h->b, status);
    }
    dcommi_hier_reserve(&o.pipe, last + 2);
    for (int i = last - 1; i >= 0; i--) {
        const dcommi_hier_tier *tier = &o.tree.tier[i];
        int back = 2 * last + 2 - i;
        if (tier->n > 1) {
            dcommi_hier_order_call(&o, tier, DCOMM_COLL_GATHERV, held[i], held[i + 1], &phase[i]);
            dcommi_hier_order_call(&o, tier, DCOMM_COLL_SCATTERV, got[i + 1], got[i], &phase[back]);
        }
        dcommi_hier_leader_reserve(&o, 1 + i, 1 + back);
    }
    return dcommi_hier_order_close(&o);
}

#endif
