/* digits.h - all-to-all over any number of levels, where the hosts (coarsest groups) are of equal
 * size: a rank talks only to ranks at the same place in other parts.
 *
 * A block goes to rank x of a host. x has one digit for each tier but the last: the number of the
 * part of that tier in which rank x is. In each of these tiers the ranks exchange all blocks by
 * that digit, for any target host. Then all blocks for rank x of any host are on rank x of this
 * host. In the last tier ranks x of all hosts exchange.
 *
 * So N blocks of each rank go through every tier, and those for one rank travel as one message.
 * Each block crosses between hosts once. Between exchanges blocks are sorted so that those for one
 * part lie together. Chunks are made of pieces of blocks, and the tiers overlap (hier/pipe.h). */
#ifndef DCOMMI_ALGO_HIER_DIGITS_H
#define DCOMMI_ALGO_HIER_DIGITS_H

#include "order.h"

/* Return true if all hosts are of equal size and one of them is divided. */
static bool dcommi_hier_digits_fit(const dcommi_hier *h)
{
    dcommi_hier_tree t = {.g = h->s->groups, .first = -1, .least = DCOMMI_HIER_DIVIDE_MIN};
    dcommi_hier_node all = {0, h->s->nranks, -1};
    int level = dcommi_hier_split(&t, all, h->smallest);
    bool fit = false;
    for (int at = 0; at < all.end;) {
        dcommi_hier_node host = dcommi_hier_part_at(&t, all, level, at);
        if (host.end - host.begin != h->smallest) {
            return false;
        }
        fit = fit || dcommi_hier_split(&t, host, h->smallest) >= 0;
        at = host.end;
    }
    return fit;
}

typedef struct dcommi_hier_digits {
    dcommi_hier_order order;
    int64_t hosts, each; /* each: ranks of a host */
    dcommi_hier_place buffer[2];
    dcommi_hier_sorting sort;
} dcommi_hier_digits;

/* Fill in the phase that sorts the input into the first buffer: the block for rank x of host k
 * becomes number x * hosts + k. */
static void dcommi_hier_digits_begin(dcommi_hier_digits *d, dcommi_hier_phase *p)
{
    dcommi_hier_order *o = &d->order;
    const dcommi_shape *s = o->h->s;
    const dcommi_hier_tier *top = &o->tree.tier[o->tree.ntiers - 1];
    dcommi_hier_place in = {dcommi_input_of(s, 0).space, 0, o->piece};
    for (int kind = 0; kind < 2; kind++) {
        int64_t piece = o->offset[kind][1], k = 0;
        for (int at = 0; at < s->nranks; k++) {
            dcommi_hier_node host = dcommi_hier_part_at(&o->tree, top->node, top->level, at);
            for (int64_t x = 0; x < d->each; x++) {
                int rank = dcommi_hier_owner(&o->tree, host, top->below, (int)x);
                dcommi_hier_sorting_add(&d->sort, dcommi_shape_bytes(s, s->count) * rank,
                                        (x * d->hosts + k) * piece, piece);
            }
            at = host.end;
        }
        dcommi_hier_sorting_phase(&d->sort, o->h->b, in, d->buffer[0], kind, p);
    }
}

/* Fill in a sort between two exchanges: [came][next][before] -> [next][came][before]. `before`
 * counts the ranks of a part; [came][before] are the ranks of the group, in order. */
static void dcommi_hier_digits_turn(dcommi_hier_digits *d, int tier, int64_t before,
                                    dcommi_hier_phase *p)
{
    dcommi_hier_order *o = &d->order;
    int64_t came = o->tree.tier[tier].n, next = o->h->s->nranks / came / before;
    for (int kind = 0; kind < 2; kind++) {
        int64_t run = before * o->offset[kind][1];
        for (int64_t i = 0; i < next; i++) {
            for (int64_t q = 0; q < came; q++) {
                dcommi_hier_sorting_add(&d->sort, (q * next + i) * run, (i * came + q) * run, run);
            }
        }
        dcommi_hier_sorting_phase(&d->sort, o->h->b, d->buffer[1], d->buffer[0], kind, p);
    }
}

static void dcommi_hier_digits_exchange(dcommi_hier_digits *d, const dcommi_hier_tier *tier,
                                        dcommi_hier_place out, dcommi_hier_phase *p)
{
    dcommi_hier_order *o = &d->order;
    dcommi_hier *h = o->h;
    p->group = dcommi_hier_tier_table(&o->tree, tier, h->b);
    p->in_step = d->buffer[0].step;
    p->out_step = out.step;
    for (int kind = 0; kind < (o->pipe.odd ? 2 : 1); kind++) {
        int64_t all = o->offset[kind][h->s->nranks], bytes = all / tier->n;
        dcommi_shape sub = dcommi_hier_shape(h, DCOMM_COLL_ALLTOALL, tier->place, tier->n, false);
        sub.count = (size_t)bytes / dcomm_dtype_size(sub.dtype);
        dcomm_plan *plan = dcommi_hier_sub_near(h, &sub, tier->near, bytes, all, all);
        dcommi_hier_needs(p, plan);
        p->plan[kind] = plan != NULL ? dcommi_build_adopt(h->b, plan) : NULL;
        p->in[kind] = dcommi_hier_order_span(d->buffer[0], all);
        p->out[kind] = dcommi_hier_order_span(out, all);
    }
}

static dcomm_status dcommi_hier_alltoall_by_digits(dcommi_hier *h)
{
    const dcommi_shape *s = h->s;
    dcommi_hier_digits d;
    memset(&d, 0, sizeof d);
    dcommi_hier_order *o = &d.order;
    DCOMMI_TRY(dcommi_hier_order_open(h, o));
    if (!dcommi_hier_sorting_open(&d.sort, s->nranks)) {
        dcommi_build_error(h->b, DCOMM_ERR_NO_MEMORY);
        return dcommi_hier_order_close(o);
    }
    int last = o->tree.ntiers - 1;
    dcommi_hier_phase *phase = o->pipe.phase;
    dcommi_hier_place result = {DCOMM_SPACE_OUT, 0, 0};
    d.hosts = o->tree.tier[last].n;
    d.each = h->smallest;
    d.buffer[0] = dcommi_hier_order_room(o, dcommi_hier_order_all(o));
    d.buffer[1] = dcommi_hier_order_room(o, dcommi_hier_order_all(o));
    o->pipe.nphases = 2 * last + 3;
    dcommi_hier_digits_begin(&d, &phase[0]);
    if (!dcommi_hier_order_plain(o)) {
        result = d.buffer[1];
        dcommi_hier_order_copies(o, DCOMM_SPACE_OUT, result, true, &phase[2 * last + 2]);
    }
    int64_t before = 1;
    for (int i = 0; i < last; i++) {
        dcommi_hier_digits_turn(&d, i, before, &phase[2 * i + 2]);
        before *= o->tree.tier[i].n;
    }
    for (int i = last; i >= 0; i--) {
        dcommi_hier_digits_exchange(&d, &o->tree.tier[i], i == last ? result : d.buffer[1],
                                    &phase[2 * i + 1]);
        dcommi_hier_reserve(&o->pipe, 2 * i + 1);
    }
    dcommi_free(d.sort.from);
    return dcommi_hier_order_close(o);
}

#endif
