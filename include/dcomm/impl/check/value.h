/* value.h - the plan checker's arithmetic: expressions, regions of operands, and the effect of a
 * fold, an encoding or a message on the contributions. */
#ifndef DCOMMI_CHECK_VALUE_H
#define DCOMMI_CHECK_VALUE_H

#include "state.h"

typedef struct dcommi_check_region {
    dcommi_check_mem *mem;
    int64_t at, len;
} dcommi_check_region;

enum {
    DCOMMI_CHECK_SHORTEST = 0, /* run-time lengths are 0 */
    DCOMMI_CHECK_ONE,
    DCOMMI_CHECK_LONGEST,
    DCOMMI_CHECK_RANDOM,
    DCOMMI_CHECK_RANDOM_TOO,
    DCOMMI_CHECK_SCENARIOS
};

/* Return the value of a run-time length or unknown word in this scenario, in [0, most]. */
static int64_t dcommi_check_choose(const dcommi_check *c, uint64_t identity, int64_t most)
{
    switch (c->scenario) {
    case DCOMMI_CHECK_SHORTEST:
        return 0;
    case DCOMMI_CHECK_ONE:
        return dcommi_min64(1, most);
    case DCOMMI_CHECK_LONGEST:
        return most;
    default:
        if (most <= 1) {
            return most;
        }
        uint64_t r = dcommi_mix(identity, (uint64_t)c->scenario);
        return 1 + (int64_t)(r % (uint64_t)most);
    }
}

static bool dcommi_check_read_region(dcommi_check *c, const dcommi_check_op *op,
                                     const dcommi_check_region *r, dcommi_check_runs *runs)
{
    dcommi_check_who who = dcommi_check_who_of(op);
    dcommi_check_race race = {0};
    runs->n = 0;
    if (!dcommi_check_good(c,
                           dcommi_check_read(r->mem, &c->pool, r->at, r->len, &who, runs, &race))) {
        return false;
    }
    dcommi_check_found(c, op, &race);
    int64_t at = r->at;
    for (size_t i = 0; i < runs->n; i++) {
        if (runs->run[i].v.kind == DCOMMI_CHECK_UNDEF) {
            return dcommi_check_refuse(
                c, op,
                "reads bytes %" PRId64 " to %" PRId64 " of rank %d's %s, which nothing has "
                "written",
                at, at + runs->run[i].len, r->mem->rank, dcommi_print_space(r->mem->space));
        }
        at += runs->run[i].len;
    }
    if (r->mem->rank != op->lane->frame->rank && r->len > 0) {
        dcommi_check_mem *mem = r->mem;
        if (mem->peer_last == NULL) {
            mem->peer_last = dcommi_check_get(c, c->ncomps * sizeof *mem->peer_last);
            if (mem->peer_last == NULL) {
                return false;
            }
        }
        if (mem->peer_last[op->comp] < op->clock) {
            mem->peer_last[op->comp] = op->clock;
        }
    }
    return true;
}

static bool dcommi_check_order_write(dcommi_check *c, const dcommi_check_op *op,
                                     const dcommi_check_region *r)
{
    dcommi_check_who who = dcommi_check_who_of(op);
    dcommi_check_race race = {0};
    if (r->mem->read_only && r->len > 0) {
        return dcommi_check_refuse(c, op, "writes to %s, which is read-only on rank %d",
                                   dcommi_print_space(r->mem->space), r->mem->rank);
    }
    if (!dcommi_check_good(
            c, dcommi_check_write_order(r->mem, &c->pool, r->at, r->len, &who, &race))) {
        return false;
    }
    dcommi_check_found(c, op, &race);
    return true;
}

static bool dcommi_check_put(dcommi_check *c, const dcommi_check_op *op,
                             const dcommi_check_region *r, const dcommi_check_runs *runs)
{
    dcommi_check_who who = dcommi_check_who_of(op);
    return dcommi_check_good(c, dcommi_check_write(r->mem, &c->pool, r->at, runs, &who));
}

/* Fill a region with one value. */
static bool dcommi_check_put_value(dcommi_check *c, const dcommi_check_op *op,
                                   const dcommi_check_region *r, dcommi_check_value v)
{
    dcommi_check_run run = {r->len, v};
    dcommi_check_runs runs = {&run, r->len > 0, 1};
    return dcommi_check_put(c, op, r, &runs);
}

/* ---- words and expressions ---- */

static bool dcommi_check_put_word(dcommi_check *c, const dcommi_check_op *op, int64_t index,
                                  int64_t number)
{
    const dcommi_check_frame *f = op->lane->frame;
    dcommi_check_region r = {f->mem[DCOMM_SPACE_WORDS], f->base[DCOMM_SPACE_WORDS] + 8 * index, 8};
    dcommi_check_value v = {.kind = DCOMMI_CHECK_WORD, .src = number};
    return dcommi_check_order_write(c, op, &r) && dcommi_check_put_value(c, op, &r, v);
}

/* Return the number in a word. *known is false if the scenario chose it. */
static int64_t dcommi_check_number(const dcommi_check *c, const dcommi_check_runs *runs,
                                   bool *known)
{
    const dcommi_check_value *v = &runs->run[0].v;
    *known = runs->n == 1 && (v->kind == DCOMMI_CHECK_ZERO || v->kind == DCOMMI_CHECK_WORD);
    if (*known) {
        return v->kind == DCOMMI_CHECK_ZERO ? 0 : v->src;
    }
    return dcommi_check_choose(c, dcommi_mix(v->mask, (uint64_t)v->src), (int64_t)1 << 40);
}

/* Read a word for the cursor of a step under way. */
static dcomm_status dcommi_check_word(const dcommi_cursor *cursor, int64_t index, int64_t *number)
{
    const dcommi_check_op *op = (const dcommi_check_op *)cursor;
    const dcommi_check_frame *f = op->lane->frame;
    dcommi_check *c = f->check;
    dcommi_check_region r = {f->mem[DCOMM_SPACE_WORDS], f->base[DCOMM_SPACE_WORDS] + 8 * index, 8};
    bool known;
    if (!dcommi_check_read_region(c, op, &r, &c->merged)) {
        return c->status;
    }
    *number = dcommi_check_number(c, &c->merged, &known);
    return DCOMM_OK;
}

/* Write a length to the word that the step names. */
static bool dcommi_check_set_word(dcommi_check *c, const dcommi_check_op *op, int64_t number)
{
    int32_t index;
    return dcommi_check_walked(c, op, dcommi_cursor_word(&op->cursor, op->step, &index)) &&
           dcommi_check_put_word(c, op, index, number);
}

/* ---- operands ---- */

/* Find the region of piece `r` of an operand. If it lies in PEER space that is not exposed yet,
 * set *owner to the rank to wait for; otherwise leave *owner. */
static bool dcommi_check_piece(dcommi_check *c, dcommi_check_op *op, const dcomm_operand *o,
                               uint32_t r, dcommi_check_region *region, int *owner)
{
    const dcommi_check_frame *f = op->lane->frame;
    int64_t room, start;
    dcommi_interval bytes;
    if (--c->budget < 0) {
        return dcommi_check_refuse(c, op, "too many steps to check");
    }
    if (!dcommi_check_walked(c, op, dcommi_cursor_piece(&op->cursor, o, r, &bytes))) {
        return false;
    }
    const int64_t at = bytes.offset, len = bytes.length;
    if (o->space == DCOMM_SPACE_PEER) {
        int64_t first;
        int rank;
        if (!dcommi_check_walked(c, op, dcommi_cursor_value(&op->cursor, &o->peer, &first)) ||
            !dcommi_check_walked(c, op, dcommi_cursor_owner(&op->cursor, first, r, &rank))) {
            return false;
        }
        int64_t slot = f->scope.slot + o->slot;
        if (slot >= c->rank[rank].plan->nslots) {
            return dcommi_check_refuse(c, op, "rank %d has no slot %" PRId64, rank, slot);
        }
        const dcommi_check_exposed *x = &c->rank[rank].exposed[slot * c->n + f->rank];
        if (x->mem == NULL) {
            *owner = rank;
            return true;
        }
        dcommi_check_join(c, op->vc, x->vc);
        op->level = op->level > x->level ? op->level : x->level;
        region->mem = x->mem;
        start = x->at;
        room = x->len;
    } else {
        region->mem = f->mem[o->space];
        start = f->base[o->space];
        room = f->size[o->space];
    }
    if (!dcommi_interval_within(&bytes, room)) {
        return dcommi_check_walked(c, op, dcommi_interval_outside(&bytes, o->space, room));
    }
    region->at = len > 0 ? start + at : 0;
    region->len = len;
    return true;
}

static bool dcommi_check_apart(dcommi_check *c, const dcommi_check_op *op,
                               const dcommi_check_region *a, const dcommi_check_region *b)
{
    bool same = a->at == b->at && a->len == b->len;
    if (a->mem == b->mem && a->len > 0 && b->len > 0 && !same && a->at < b->at + b->len &&
        b->at < a->at + a->len) {
        return dcommi_check_refuse(c, op,
                                   "source and destination overlap in %s: bytes %" PRId64
                                   "+%" PRId64 " and %" PRId64 "+%" PRId64,
                                   dcommi_print_space(a->mem->space), a->at, a->len, b->at, b->len);
    }
    return true;
}

/* ---- folds ---- */

static bool dcommi_check_single(uint64_t mask)
{
    return mask != 0 && (mask & (mask - 1)) == 0;
}

/* Fold one run: *out = a (+) b. */
static bool dcommi_check_fold_values(dcommi_check *c, const dcommi_check_op *op,
                                     const dcommi_check_value *a, const dcommi_check_value *b,
                                     dcommi_check_value *out)
{
    bool free_form = c->spec->coll == DCOMM_COLL_PLAN || !c->spec_holds;
    if (!op->lane->frame->linear &&
        (a->kind == DCOMMI_CHECK_ENCODED || b->kind == DCOMMI_CHECK_ENCODED)) {
        return dcommi_check_refuse(c, op, "folds encoded bytes");
    }
    bool sums = a->kind == DCOMMI_CHECK_SUM && b->kind == DCOMMI_CHECK_SUM;
    if (sums && (a->mask & b->mask) == 0 && a->src == b->src) {
        out->kind = DCOMMI_CHECK_SUM;
        out->mask = a->mask | b->mask;
        out->src = a->src;
        out->flags = 0;
        /* Only the next rank alone continues a left fold. */
        bool goes_on = (a->flags & DCOMMI_CHECK_ORDERED) != 0 && (a->mask & 1) != 0 &&
                       dcommi_check_single(b->mask) && b->mask == a->mask + 1;
        out->flags |= goes_on ? DCOMMI_CHECK_ORDERED : 0;
        if (c->averages && ((a->flags | b->flags) & DCOMMI_CHECK_DIVIDED) != 0) {
            return dcommi_check_refuse(c, op,
                                       "folds a value that a FINAL fold has completed already");
        }
        return true;
    }
    if (free_form) {
        dcommi_check_value opaque = {.kind = DCOMMI_CHECK_OPAQUE};
        *out = opaque;
        return true;
    }
    if (!sums) {
        return dcommi_check_refuse(c, op, "folds bytes that are no contribution of any rank");
    }
    if (a->src != b->src) {
        return dcommi_check_refuse(c, op, "folds input byte %" PRId64 " with input byte %" PRId64,
                                   a->src, b->src);
    }
    return dcommi_check_refuse(c, op,
                               "adds the contribution of rank %d a second time (input byte "
                               "%" PRId64 ")",
                               __builtin_ctzll(a->mask & b->mask), a->src);
}

/* Fold `more` into c->folded, which has the same length. */
static bool dcommi_check_fold(dcommi_check *c, const dcommi_check_op *op,
                              const dcommi_check_runs *more)
{
    dcommi_check_runs *a = &c->folded;
    c->merged.n = 0;
    size_t i = 0, j = 0;
    int64_t done_a = 0, done_b = 0;
    while (i < a->n && j < more->n) {
        int64_t len = dcommi_min64(a->run[i].len - done_a, more->run[j].len - done_b);
        dcommi_check_value x = dcommi_check_shift(a->run[i].v, done_a);
        dcommi_check_value y = dcommi_check_shift(more->run[j].v, done_b);
        dcommi_check_value z;
        if (!dcommi_check_fold_values(c, op, &x, &y, &z) ||
            !dcommi_check_good(c, dcommi_check_append(&c->merged, len, z))) {
            return false;
        }
        done_a += len;
        done_b += len;
        if (done_a == a->run[i].len) {
            i++;
            done_a = 0;
        }
        if (done_b == more->run[j].len) {
            j++;
            done_b = 0;
        }
    }
    dcommi_check_runs swap = c->folded;
    c->folded = c->merged;
    c->merged = swap;
    return true;
}

/* Add one operand's runs to the fold; `first` starts it. */
static bool dcommi_check_fold_in(dcommi_check *c, const dcommi_check_op *op, bool first,
                                 const dcommi_check_runs *runs)
{
    int64_t at = 0;
    for (size_t i = 0; i < runs->n; i++) {
        const dcommi_check_value *v = &runs->run[i].v;
        if (c->reduces && v->kind == DCOMMI_CHECK_SUM && (v->src - at) % c->element != 0) {
            return dcommi_check_refuse(c, op,
                                       "folds from the middle of an element (input byte "
                                       "%" PRId64 ")",
                                       v->src);
        }
        at += runs->run[i].len;
    }
    if (!first) {
        return dcommi_check_fold(c, op, runs);
    }
    c->folded.n = 0;
    for (size_t i = 0; i < runs->n; i++) {
        dcommi_check_value v = runs->run[i].v;
        /* A 16-bit partial result has been rounded: a sum in rank order must not start with it. */
        if (c->element == 2 && !dcommi_check_single(v.mask)) {
            v.flags &= (uint8_t)~DCOMMI_CHECK_ORDERED;
        }
        if (!dcommi_check_good(c, dcommi_check_append(&c->folded, runs->run[i].len, v))) {
            return false;
        }
    }
    return true;
}

/* Apply FINAL to the complete fold in c->folded. */
static bool dcommi_check_fold_end(dcommi_check *c, const dcommi_check_op *op)
{
    if ((op->step->flags & DCOMM_STEP_FINAL) == 0 || !c->averages ||
        op->lane->frame->scope.plan->op != (unsigned)DCOMM_AVG) {
        return true;
    }
    for (size_t i = 0; i < c->folded.n; i++) {
        dcommi_check_value *v = &c->folded.run[i].v;
        if (c->spec_holds && v->mask != c->all) {
            return dcommi_check_refuse(c, op, "is FINAL with only ranks 0x%" PRIx64 " folded in",
                                       v->mask);
        }
        v->flags |= DCOMMI_CHECK_DIVIDED;
    }
    return true;
}

#endif
