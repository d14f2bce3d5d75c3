/* cursor.h - walk a lane of a plan step by step, and evaluate each step.
 *
 * The engine, the checker, the model, the scripts of short plans (engine/fast/script.h) and the
 * tests' simulator walk plans with this cursor. Each adds its own part: the engine moves bytes,
 * the checker tracks contributions and order, the model prices, the script records.
 *
 * State: a dcommi_scope is a plan under way on one rank. Scopes form a stack: `outer` is the plan
 * that called this one. A scope keeps the values that CALL shifts: ranks, tags, counters, slots
 * and element numbers. A dcommi_cursor is one lane of a scope: the next step, and for each open
 * loop its index and its trips.
 *
 * A cursor returns the step. On request it evaluates one part of the step, in terms of the
 * outermost plan: peer, tag, word, pieces of operands, the scope of a called sub-plan. It
 * allocates nothing.
 *
 * Trust: dcommi_check_plan_valid (check_valid.h) must have accepted the plan. It checks everything
 * that does not depend on loop indices, tables and words. The functions here check the rest during
 * the walk. For a value out of range they return DCOMM_ERR_PLAN, with the sentence in
 * dcommi_message. They do not know the sizes of spaces: the caller checks each interval with
 * dcommi_interval_within. */
#ifndef DCOMMI_CURSOR_H
#define DCOMMI_CURSOR_H

#include "print.h"

/* A lane's next step, and its open loops, outermost first. The index of a closed loop is 0. */
typedef struct dcommi_position {
    uint32_t pc; /* number of the step in its lane */
    int32_t depth;
    int64_t index[DCOMM_LOOP_DEPTH], trips[DCOMM_LOOP_DEPTH];
} dcommi_position;

typedef struct dcommi_cursor dcommi_cursor;

/* Read word number `at` of the plan that the cursor walks; `at` is in [0, nwords). */
typedef dcomm_status (*dcommi_cursor_word_fn)(const dcommi_cursor *c, int64_t at, int64_t *value);

/* A plan under way on one rank. */
typedef struct dcommi_scope {
    const dcomm_plan *plan;
    const struct dcommi_scope *outer;    /* NULL: this is the outermost plan */
    const int64_t *group;                /* rank here -> rank in outer's plan; NULL: the same */
    int64_t tag, counter, slot, element; /* added to the plan's own numbers */
    const uint64_t *words;               /* the words of the plan; NULL: call `word` */
    dcommi_cursor_word_fn word;          /* NULL: the words are unknown */
} dcommi_scope;

/* One lane of a scope. */
struct dcommi_cursor {
    const dcommi_scope *scope;
    const dcomm_step *steps;
    uint32_t count; /* steps */
    dcommi_position at;
};

/* A run of bytes in a space. */
typedef struct dcommi_interval {
    int64_t offset, length;
} dcommi_interval;

/* The ranks of the plan that EXPOSE or SIGNAL addresses: first .. last without rank `but` (-1: no
 * exception). */
typedef struct dcommi_targets {
    int64_t first, last, but;
} dcommi_targets;

/* ---- walking ---- */

static inline void dcommi_cursor_start(dcommi_cursor *c, const dcommi_scope *scope, uint32_t lane)
{
    const dcomm_lane *l = &scope->plan->lanes[lane];
    *c = (dcommi_cursor){.scope = scope, .steps = scope->plan->steps + l->first, .count = l->count};
}

/* Return the next step; NULL at the end of the lane. */
static inline const dcomm_step *dcommi_cursor_step(const dcommi_cursor *c)
{
    return c->at.pc < c->count ? &c->steps[c->at.pc] : NULL;
}

/* Go on to the next step. The current one must be neither LOOP nor END. */
static inline void dcommi_cursor_next(dcommi_cursor *c)
{
    c->at.pc++;
}

/* Return true for LOOP and END, which dcommi_cursor_turn executes. */
static inline bool dcommi_cursor_turns(const dcomm_step *step)
{
    return step->kind == DCOMM_STEP_LOOP || step->kind == DCOMM_STEP_END;
}

/* ---- expressions ---- */

static inline dcomm_status dcommi_cursor_word_at(const dcommi_cursor *c, int64_t at, int64_t *value)
{
    const dcommi_scope *s = c->scope;
    if (at < 0 || at >= s->plan->nwords) {
        return dcommi_fail(DCOMM_ERR_PLAN, "an expression reads words[%" PRId64 "] of %" PRIu32, at,
                           s->plan->nwords);
    }
    if (s->words != NULL) {
        *value = (int64_t)s->words[at];
        return DCOMM_OK;
    }
    return s->word != NULL ? s->word(c, at, value)
                           : dcommi_fail(DCOMM_ERR_UNSUPPORTED,
                                         "%s: what comes next depends on a word", s->plan->name);
}

/* Evaluate an expression by the rules of dcomm_expr_kind. A WORD expression reads the word that is
 * `behind` places after its own. */
static inline dcomm_status dcommi_cursor_eval(const dcommi_cursor *c, const dcomm_expr *e,
                                              uint32_t behind, int64_t *value)
{
    int64_t x = e->base, sum = e->add, term = 0;
    bool over = false;
    *value = e->add;
    if (e->kind == DCOMM_EXPR_CONST) {
        return DCOMM_OK;
    }
    for (int d = 0; d < c->at.depth; d++) {
        over |= __builtin_mul_overflow(e->coef[d], c->at.index[d], &term);
        over |= __builtin_add_overflow(x, term, &x);
        over |= __builtin_mul_overflow(e->post[d], c->at.index[d], &term);
        over |= __builtin_add_overflow(sum, term, &sum);
    }
    if (e->mod > 0) {
        x %= e->mod;
        x += x < 0 ? e->mod : 0;
    }
    if (e->kind != DCOMM_EXPR_AFFINE) {
        over |= __builtin_add_overflow(x, e->first, &x);
    }
    if (e->kind == DCOMM_EXPR_TABLE && !over) {
        const dcomm_plan *plan = c->scope->plan;
        if (DCOMMI_UNLIKELY(x < 0 || x >= plan->ntable)) {
            return dcommi_fail(DCOMM_ERR_PLAN, "an expression reads table[%" PRId64 "] of %" PRIu32,
                               x, plan->ntable);
        }
        x = plan->table[x];
    } else if (e->kind == DCOMM_EXPR_WORD && !over) {
        over |= __builtin_add_overflow(x, (int64_t)behind, &x);
        DCOMMI_TRY(dcommi_cursor_word_at(c, over ? -1 : x, &x));
    }
    over |= __builtin_mul_overflow(e->scale, x, &term);
    over |= __builtin_add_overflow(sum, term, &sum);
    if (DCOMMI_UNLIKELY(over)) {
        return dcommi_fail(DCOMM_ERR_PLAN, "an expression exceeds 64 bits");
    }
    *value = sum;
    return DCOMM_OK;
}

static inline dcomm_status dcommi_cursor_value(const dcommi_cursor *c, const dcomm_expr *e,
                                               int64_t *value)
{
    return dcommi_cursor_eval(c, e, 0, value);
}

/* Execute LOOP or END: enter the body, go back to its first step, or go on behind the loop. */
static inline dcomm_status dcommi_cursor_turn(dcommi_cursor *c, const dcomm_step *step)
{
    dcommi_position *at = &c->at;
    if (step->kind == DCOMM_STEP_END) {
        const int d = at->depth - 1;
        if (++at->index[d] < at->trips[d]) {
            at->pc -= step->body;
        } else {
            at->index[d] = 0;
            at->depth = d;
            at->pc++;
        }
        return DCOMM_OK;
    }
    int64_t trips;
    DCOMMI_TRY(dcommi_cursor_value(c, &step->value, &trips));
    if (trips <= 0 || step->body == 0) {
        at->pc += step->body + 2;
    } else {
        at->trips[at->depth] = trips;
        at->index[at->depth++] = 0;
        at->pc++;
    }
    return DCOMM_OK;
}

/* ---- operands ---- */

static inline uint32_t dcommi_operand_pieces(const dcomm_operand *o)
{
    return o->repeat > 1 ? o->repeat : 1;
}

/* Return offset and length of piece r of an operand in *x. */
static inline dcomm_status dcommi_cursor_piece(const dcommi_cursor *c, const dcomm_operand *o,
                                               uint32_t r, dcommi_interval *x)
{
    int64_t at, len, room = 0;
    *x = (dcommi_interval){0, 0};
    DCOMMI_TRY(dcommi_cursor_value(c, &o->offset, &at));
    DCOMMI_TRY(dcommi_cursor_eval(c, &o->length, r, &len));
    if (r > 0 && (__builtin_mul_overflow((int64_t)r, o->stride, &room) ||
                  __builtin_add_overflow(at, room, &at))) {
        return dcommi_fail(DCOMM_ERR_PLAN, "the offset of piece %" PRIu32 " exceeds 64 bits", r);
    }
    len = dcommi_min64(dcommi_max64(len, 0), o->max_length);
    if (o->clip > 0) {
        if (__builtin_sub_overflow(o->clip, at, &room)) {
            room = INT64_MAX;
        }
        len = dcommi_min64(len, dcommi_max64(room, 0));
    }
    x->offset = at;
    x->length = len;
    return DCOMM_OK;
}

/* Return true if the interval lies in a space of `room` bytes. An empty one always does. */
static inline bool dcommi_interval_within(const dcommi_interval *x, int64_t room)
{
    return x->length == 0 || (x->offset >= 0 && x->offset <= room - x->length);
}

/* Report an interval that does not lie in its space. */
static dcomm_status dcommi_interval_outside(const dcommi_interval *x, unsigned space, int64_t room)
{
    return dcommi_fail(
        DCOMM_ERR_PLAN, "touches bytes %" PRId64 " to %" PRId64 " of %s, which has %" PRId64,
        x->offset, x->offset > INT64_MAX - x->length ? INT64_MAX : x->offset + x->length,
        dcommi_print_space(space), room);
}

/* ---- ranks ---- */

/* Return the rank in the outermost plan of rank r of this plan; r is in [0, nranks). */
static inline int dcommi_scope_rank(const dcommi_scope *s, int64_t r)
{
    for (; s->group != NULL; s = s->outer) {
        r = s->group[r];
    }
    return (int)r;
}

/* Return in *rank the peer of a message, as a rank of the outermost plan. */
static inline dcomm_status dcommi_cursor_peer(const dcommi_cursor *c, const dcomm_expr *peer,
                                              int *rank)
{
    const dcomm_plan *plan = c->scope->plan;
    int64_t r;
    *rank = -1;
    DCOMMI_TRY(dcommi_cursor_value(c, peer, &r));
    if (DCOMMI_UNLIKELY(r < 0 || r >= plan->nranks || r == plan->rank)) {
        return dcommi_fail(DCOMM_ERR_PLAN, "its peer is rank %" PRId64 " of %d%s", r, plan->nranks,
                           r == plan->rank ? ", which is itself" : "");
    }
    *rank = dcommi_scope_rank(c->scope, r);
    return DCOMM_OK;
}

/* Return in *rank the owner of piece r of a PEER operand, as a rank of the outermost plan. `first`
 * is the value of the operand's `peer`. */
static inline dcomm_status dcommi_cursor_owner(const dcommi_cursor *c, int64_t first, uint32_t r,
                                               int *rank)
{
    const dcomm_plan *plan = c->scope->plan;
    *rank = -1;
    if (DCOMMI_UNLIKELY(first < 0 || first >= plan->nranks)) {
        return dcommi_fail(DCOMM_ERR_PLAN, "reads from rank %" PRId64 " of %d", first,
                           plan->nranks);
    }
    const int64_t owner = (first + r) % plan->nranks;
    if (DCOMMI_UNLIKELY(owner == plan->rank)) {
        return dcommi_fail(DCOMM_ERR_PLAN, "reads its own memory as a peer's");
    }
    *rank = dcommi_scope_rank(c->scope, owner);
    return DCOMM_OK;
}

/* Return the ranks of this plan that EXPOSE or SIGNAL addresses. */
static inline dcomm_status dcommi_cursor_targets(const dcommi_cursor *c, const dcomm_step *step,
                                                 dcommi_targets *t)
{
    const dcomm_plan *plan = c->scope->plan;
    int64_t peer;
    *t = (dcommi_targets){0, -1, -1};
    DCOMMI_TRY(dcommi_cursor_value(c, &step->peer, &peer));
    if (peer == DCOMM_ALL_PEERS) {
        *t = (dcommi_targets){0, plan->nranks - 1, plan->rank};
        return DCOMM_OK;
    }
    if (DCOMMI_UNLIKELY(peer < 0 || peer >= plan->nranks)) {
        return dcommi_fail(DCOMM_ERR_PLAN, "its peer is rank %" PRId64 " of %d", peer,
                           plan->nranks);
    }
    *t = (dcommi_targets){peer, peer, -1};
    return DCOMM_OK;
}

/* ---- tags, words, element numbers ---- */

/* Return in *tag the tag of a message, in the outermost plan. */
static inline dcomm_status dcommi_cursor_tag(const dcommi_cursor *c, const dcomm_step *step,
                                             int64_t *tag)
{
    DCOMMI_TRY(dcommi_cursor_value(c, &step->tag, tag));
    if (DCOMMI_UNLIKELY(*tag < 0 || *tag >= c->scope->plan->ntags)) {
        return dcommi_fail(DCOMM_ERR_PLAN, "tag %" PRId64 " is not in [0, %" PRIu32 ")", *tag,
                           c->scope->plan->ntags);
    }
    *tag += c->scope->tag;
    return DCOMM_OK;
}

/* Return in *word the word of this plan that takes the step's length; -1: none. */
static inline dcomm_status dcommi_cursor_word(const dcommi_cursor *c, const dcomm_step *step,
                                              int32_t *word)
{
    const bool takes = step->kind == DCOMM_STEP_RECV || step->kind == DCOMM_STEP_ENCODE ||
                       step->kind == DCOMM_STEP_RECODE;
    int64_t at;
    *word = -1;
    if (!takes || step->word < 0) {
        return DCOMM_OK;
    }
    DCOMMI_TRY(dcommi_cursor_value(c, &step->value, &at));
    if (at < -(int64_t)step->word || at >= (int64_t)c->scope->plan->nwords - step->word) {
        return dcommi_fail(DCOMM_ERR_PLAN, "writes to words[%" PRId64 "] of %" PRIu32,
                           at > INT64_MAX - step->word ? INT64_MAX : at + step->word,
                           c->scope->plan->nwords);
    }
    *word = (int32_t)(at + step->word);
    return DCOMM_OK;
}

/* Return in *first the number of the first element of a codec step. */
static inline dcomm_status dcommi_cursor_element(const dcommi_cursor *c, const dcomm_step *step,
                                                 int64_t *first)
{
    DCOMMI_TRY(dcommi_cursor_value(c, &step->index, first));
    if (__builtin_add_overflow(*first, c->scope->element, first) || *first < 0) {
        return dcommi_fail(DCOMM_ERR_PLAN, "its first element is negative or exceeds 64 bits");
    }
    return DCOMM_OK;
}

/* ---- sub-plans ---- */

/* Fill in the scope of the sub-plan that a CALL runs, except its words. The tags, counters and
 * slots of the sub-plan must lie in the ranges of its caller. */
static inline dcomm_status dcommi_cursor_call(const dcommi_cursor *c, const dcomm_step *step,
                                              dcommi_scope *sub)
{
    const dcommi_scope *s = c->scope;
    const dcomm_plan *outer = s->plan, *plan = outer->subs[step->sub];
    const int64_t first = step->word > 0 ? step->word : 0;
    int64_t tag, counter, slot, element;
    DCOMMI_TRY(dcommi_cursor_value(c, &step->tag, &tag));
    DCOMMI_TRY(dcommi_cursor_value(c, &step->value, &counter));
    DCOMMI_TRY(dcommi_cursor_value(c, &step->peer, &slot));
    DCOMMI_TRY(dcommi_cursor_value(c, &step->index, &element));
    if (tag < 0 || tag > (int64_t)outer->ntags - (int64_t)plan->ntags) {
        return dcommi_fail(DCOMM_ERR_PLAN, "tags %" PRId64 "+%" PRIu32 " of %" PRIu32, tag,
                           plan->ntags, outer->ntags);
    }
    if (__builtin_add_overflow(counter, (int64_t)step->slot, &counter) ||
        __builtin_add_overflow(slot, first, &slot) || counter < 0 || slot < 0 ||
        counter > (int64_t)outer->ncounters - (int64_t)plan->ncounters ||
        slot > (int64_t)outer->nslots - (int64_t)plan->nslots) {
        return dcommi_fail(DCOMM_ERR_PLAN,
                           "counters %" PRId64 "+%" PRIu32 " of %" PRIu32 ", slots %" PRId64
                           "+%" PRIu32 " of %" PRIu32,
                           counter, plan->ncounters, outer->ncounters, slot, plan->nslots,
                           outer->nslots);
    }
    if (__builtin_add_overflow(element, s->element, &element)) {
        return dcommi_fail(DCOMM_ERR_PLAN, "its first element exceeds 64 bits");
    }
    *sub = (dcommi_scope){.plan = plan,
                          .outer = s,
                          .group = outer->table + step->group,
                          .tag = s->tag + tag,
                          .counter = s->counter + counter,
                          .slot = s->slot + slot,
                          .element = element};
    return DCOMM_OK;
}

#endif
