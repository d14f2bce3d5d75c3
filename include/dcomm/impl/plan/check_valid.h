/* check_valid.h - check that a plan is well formed: every index is in range, loops match, spaces
 * fit the step, sub-plans fit their caller. The cursor checks values that depend on loop indices.
 */
#ifndef DCOMMI_CHECK_VALID_H
#define DCOMMI_CHECK_VALID_H

#include "print.h"

#define DCOMMI_CHECK_REPEAT 65536     /* pieces of one operand */
#define DCOMMI_CHECK_SUBPLANS 100000u /* visits to sub-plans in all; shared ones count again */

#define DCOMMI_CHECK_BIT(space) (1u << DCOMM_SPACE_##space)
#define DCOMMI_CHECK_OWN (DCOMMI_CHECK_BIT(IN) | DCOMMI_CHECK_BIT(OUT) | DCOMMI_CHECK_BIT(SCRATCH))
#define DCOMMI_CHECK_LOCAL (DCOMMI_CHECK_OWN | DCOMMI_CHECK_BIT(WORDS))
#define DCOMMI_CHECK_ANY (DCOMMI_CHECK_LOCAL | DCOMMI_CHECK_BIT(PEER))
#define DCOMMI_CHECK_RESULT \
    (DCOMMI_CHECK_BIT(OUT) | DCOMMI_CHECK_BIT(SCRATCH) | DCOMMI_CHECK_BIT(WORDS))
#define DCOMMI_CHECK_BYTES (DCOMMI_CHECK_BIT(OUT) | DCOMMI_CHECK_BIT(SCRATCH))

/* Features that a kind of step may have. */
enum { DCOMMI_CHECK_ASYNC = 1, DCOMMI_CHECK_REPEATS = 2, DCOMMI_CHECK_MESSAGE = 4 };

typedef struct dcommi_check_form {
    unsigned dst, src; /* bits of spaces; dst 0: none */
    uint32_t src_min, src_max;
    unsigned may;
} dcommi_check_form;

static const dcommi_check_form *dcommi_check_form_of(unsigned kind)
{
    static const dcommi_check_form forms[DCOMM_STEP_KIND_COUNT] = {
        [DCOMM_STEP_SEND] = {0, DCOMMI_CHECK_LOCAL, 1, 1,
                             DCOMMI_CHECK_ASYNC | DCOMMI_CHECK_MESSAGE},
        [DCOMM_STEP_RECV] = {DCOMMI_CHECK_RESULT, 0, 0, 0,
                             DCOMMI_CHECK_ASYNC | DCOMMI_CHECK_MESSAGE},
        [DCOMM_STEP_RECV_REDUCE] = {DCOMMI_CHECK_BYTES, DCOMMI_CHECK_OWN | DCOMMI_CHECK_BIT(MSG), 2,
                                    DCOMMI_FOLD_SOURCES, DCOMMI_CHECK_ASYNC | DCOMMI_CHECK_MESSAGE},
        [DCOMM_STEP_COPY] = {DCOMMI_CHECK_RESULT, DCOMMI_CHECK_ANY, 1, 1, DCOMMI_CHECK_ASYNC},
        [DCOMM_STEP_EXPOSE] = {0, DCOMMI_CHECK_OWN, 1, 1, DCOMMI_CHECK_ASYNC},
        [DCOMM_STEP_REDUCE] = {DCOMMI_CHECK_RESULT, DCOMMI_CHECK_ANY, 1, UINT32_MAX,
                               DCOMMI_CHECK_REPEATS},
        [DCOMM_STEP_ENCODE] = {DCOMMI_CHECK_BYTES, DCOMMI_CHECK_LOCAL, 1, 1, 0},
        [DCOMM_STEP_DECODE] = {DCOMMI_CHECK_BYTES, DCOMMI_CHECK_LOCAL, 1, UINT32_MAX,
                               DCOMMI_CHECK_REPEATS},
        [DCOMM_STEP_RECODE] = {DCOMMI_CHECK_BYTES, DCOMMI_CHECK_LOCAL, 1, UINT32_MAX,
                               DCOMMI_CHECK_REPEATS},
        [DCOMM_STEP_COMPUTE] = {DCOMMI_CHECK_RESULT, DCOMMI_CHECK_LOCAL, 0, DCOMMI_FOLD_SOURCES, 0},
        [DCOMM_STEP_CALL] = {DCOMMI_CHECK_BYTES | DCOMMI_CHECK_BIT(NONE),
                             DCOMMI_CHECK_OWN | DCOMMI_CHECK_BIT(NONE), 1, 1, 0},
    }; /* the other kinds have no destination and no sources */
    return &forms[kind];
}

static dcomm_status dcommi_check_expr_valid(const dcomm_plan *p, const dcomm_expr *e,
                                            const char *what)
{
    if (e->kind > DCOMM_EXPR_WORD) {
        return dcommi_fail(DCOMM_ERR_PLAN, "%s has expression kind %d", what, e->kind);
    }
    if (e->kind != DCOMM_EXPR_CONST && e->mod < 0) {
        return dcommi_fail(DCOMM_ERR_PLAN, "%s is modulo %" PRId64 ", below 0", what, e->mod);
    }
    if ((e->kind == DCOMM_EXPR_TABLE && p->ntable == 0) ||
        (e->kind == DCOMM_EXPR_WORD && p->nwords == 0)) {
        return dcommi_fail(DCOMM_ERR_PLAN, "%s reads a %s of an empty %s", what,
                           e->kind == DCOMM_EXPR_TABLE ? "value" : "word",
                           e->kind == DCOMM_EXPR_TABLE ? "table" : "WORDS space");
    }
    return DCOMM_OK;
}

static dcomm_status dcommi_check_operand_valid(const dcomm_plan *p, const dcomm_operand *o,
                                               unsigned allowed, bool repeats, const char *what)
{
    if (o->space > DCOMM_SPACE_MSG || (allowed & (1u << o->space)) == 0) {
        return dcommi_fail(DCOMM_ERR_PLAN, "%s may not be in %s (%d)", what,
                           dcommi_print_space(o->space), o->space);
    }
    if (o->space == DCOMM_SPACE_NONE || o->space == DCOMM_SPACE_MSG) {
        return DCOMM_OK;
    }
    if (o->max_length < 0 || o->clip < 0) {
        return dcommi_fail(DCOMM_ERR_PLAN,
                           "%s has max_length %" PRId64 " and clip %" PRId64
                           "; neither may be below 0",
                           what, o->max_length, o->clip);
    }
    if (o->repeat > (repeats ? DCOMMI_CHECK_REPEAT : 1u)) {
        return dcommi_fail(DCOMM_ERR_PLAN, "%s has %" PRIu32 " pieces, more than %u", what,
                           o->repeat, repeats ? DCOMMI_CHECK_REPEAT : 1u);
    }
    DCOMMI_TRY(dcommi_check_expr_valid(p, &o->offset, what));
    DCOMMI_TRY(dcommi_check_expr_valid(p, &o->length, what));
    if (o->space == DCOMM_SPACE_PEER) {
        DCOMMI_TRY(dcommi_check_expr_valid(p, &o->peer, what));
        if (o->slot >= p->nslots) {
            return dcommi_fail(DCOMM_ERR_PLAN, "%s is in slot %d; the plan has %" PRIu32, what,
                               o->slot, p->nslots);
        }
    }
    return DCOMM_OK;
}

static dcomm_status dcommi_check_call_valid(const dcomm_plan *p, const dcomm_step *s)
{
    if (s->sub >= p->nsubs || p->subs[s->sub] == NULL) {
        return dcommi_fail(DCOMM_ERR_PLAN, "there is no sub-plan %" PRIu32 " of %" PRIu32, s->sub,
                           p->nsubs);
    }
    const dcomm_plan *sub = p->subs[s->sub];
    if (sub->nranks < 1 || sub->nranks > p->nranks || sub->rank < 0 || sub->rank >= sub->nranks ||
        s->group > p->ntable || p->ntable - s->group < (uint32_t)sub->nranks) {
        return dcommi_fail(DCOMM_ERR_PLAN,
                           "the group of %d ranks (this is %d) at table[%" PRIu32
                           "] does not fit %d ranks and %" PRIu32 " table values",
                           sub->nranks, sub->rank, s->group, p->nranks, p->ntable);
    }
    const int64_t *group = p->table + s->group;
    for (int i = 0; i < sub->nranks; i++) {
        if (group[i] < 0 || group[i] >= p->nranks) {
            return dcommi_fail(DCOMM_ERR_PLAN, "rank %" PRId64 " in the group is none of %d",
                               group[i], p->nranks);
        }
        for (int j = 0; j < i; j++) {
            if (group[i] == group[j]) {
                return dcommi_fail(DCOMM_ERR_PLAN, "rank %" PRId64 " is twice in the group",
                                   group[i]);
            }
        }
    }
    if (group[sub->rank] != p->rank) {
        return dcommi_fail(DCOMM_ERR_PLAN, "rank %d of the group is %" PRId64 ", not %d", sub->rank,
                           group[sub->rank], p->rank);
    }
    int64_t slots = s->word > 0 ? s->word : 0;
    if (sub->ncounters > p->ncounters || s->slot > p->ncounters - sub->ncounters ||
        sub->nslots > p->nslots || slots > (int64_t)(p->nslots - sub->nslots)) {
        return dcommi_fail(DCOMM_ERR_PLAN,
                           "counters %d+%" PRIu32 " of %" PRIu32 ", slots %" PRId64 "+%" PRIu32
                           " of %" PRIu32 ": the sub-plan's do not fit",
                           s->slot, sub->ncounters, p->ncounters, slots, sub->nslots, p->nslots);
    }
    if (sub->next != NULL) {
        return dcommi_fail(DCOMM_ERR_PLAN, "a sub-plan may not have stages");
    }
    DCOMMI_TRY(dcommi_check_expr_valid(p, &s->value, "counter"));
    DCOMMI_TRY(dcommi_check_expr_valid(p, &s->peer, "slot"));
    DCOMMI_TRY(dcommi_check_expr_valid(p, &s->index, "index"));
    return dcommi_check_expr_valid(p, &s->tag, "tag");
}

static dcomm_status dcommi_check_step_valid(const dcomm_plan *p, const dcomm_step *s)
{
    const dcommi_check_form *form = dcommi_check_form_of(s->kind);
    if ((s->flags &
         ~(DCOMM_STEP_ASYNC | DCOMM_STEP_FINAL | DCOMM_STEP_FORWARD | DCOMM_STEP_RESULT)) != 0 ||
        ((s->flags & DCOMM_STEP_ASYNC) != 0 && (form->may & DCOMMI_CHECK_ASYNC) == 0)) {
        return dcommi_fail(DCOMM_ERR_PLAN, "flags 0x%x do not fit a %s", s->flags,
                           dcommi_print_kind(s->kind));
    }
    if (s->src > p->noperands || p->noperands - s->src < s->nsrc) {
        return dcommi_fail(DCOMM_ERR_PLAN,
                           "it has %" PRIu32 " sources from operand %" PRIu32
                           " on; the plan has %" PRIu32,
                           s->nsrc, s->src, p->noperands);
    }
    if (s->nsrc < form->src_min || s->nsrc > form->src_max) {
        return dcommi_fail(DCOMM_ERR_PLAN, "a %s cannot have %" PRIu32 " sources",
                           dcommi_print_kind(s->kind), s->nsrc);
    }
    uint32_t arriving = 0;
    for (uint32_t i = 0; i < s->nsrc; i++) {
        const dcomm_operand *o = &p->operands[s->src + i];
        DCOMMI_TRY(dcommi_check_operand_valid(
            p, o, form->src, (form->may & DCOMMI_CHECK_REPEATS) != 0, "the source"));
        arriving += o->space == DCOMM_SPACE_MSG;
    }
    if (form->dst != 0) {
        DCOMMI_TRY(dcommi_check_operand_valid(p, &s->dst, form->dst, false, "the destination"));
    }
    if (s->kind == DCOMM_STEP_RECODE) {
        DCOMMI_TRY(dcommi_check_operand_valid(p, &s->stage, DCOMMI_CHECK_BIT(SCRATCH), false,
                                              "the stage"));
    }
    if (s->kind == DCOMM_STEP_RECV_REDUCE) {
        if (arriving != 1) {
            return dcommi_fail(DCOMM_ERR_PLAN, "one source must be the message, not %" PRIu32,
                               arriving);
        }
        DCOMMI_TRY(dcommi_check_operand_valid(p, &s->stage, DCOMMI_CHECK_BIT(SCRATCH), false,
                                              "the stage"));
    }
    bool messages = (form->may & DCOMMI_CHECK_MESSAGE) != 0;
    bool peers = messages || s->kind == DCOMM_STEP_EXPOSE || s->kind == DCOMM_STEP_SIGNAL;
    if (peers) {
        DCOMMI_TRY(dcommi_check_expr_valid(p, &s->peer, "peer"));
    }
    if (messages) {
        DCOMMI_TRY(dcommi_check_expr_valid(p, &s->tag, "tag"));
    }
    switch (s->kind) {
    case DCOMM_STEP_RECV:
    case DCOMM_STEP_ENCODE:
    case DCOMM_STEP_RECODE:
        DCOMMI_TRY(dcommi_check_expr_valid(p, &s->value, "word"));
        if (s->word < -1 || (s->word >= 0 && (uint32_t)s->word >= p->nwords)) {
            return dcommi_fail(DCOMM_ERR_PLAN, "word is %d; the plan has %" PRIu32, s->word,
                               p->nwords);
        }
        break;
    case DCOMM_STEP_EXPOSE:
        if (s->slot >= p->nslots) {
            return dcommi_fail(DCOMM_ERR_PLAN, "slot is %d; the plan has %" PRIu32, s->slot,
                               p->nslots);
        }
        break;
    case DCOMM_STEP_SIGNAL:
    case DCOMM_STEP_WAIT:
        if (s->slot >= p->ncounters) {
            return dcommi_fail(DCOMM_ERR_PLAN, "counter is %d; the plan has %" PRIu32, s->slot,
                               p->ncounters);
        }
        return dcommi_check_expr_valid(p, &s->value, "value");
    case DCOMM_STEP_LOOP:
        return dcommi_check_expr_valid(p, &s->value, "value");
    case DCOMM_STEP_COMPUTE:
        if (s->kernel >= p->nkernels) {
            return dcommi_fail(DCOMM_ERR_PLAN, "kernel is %d; the plan has %" PRIu32, s->kernel,
                               p->nkernels);
        }
        break;
    case DCOMM_STEP_CALL:
        return dcommi_check_call_valid(p, s);
    default:
        break;
    }
    bool codes = s->kind == DCOMM_STEP_ENCODE || s->kind == DCOMM_STEP_DECODE ||
                 s->kind == DCOMM_STEP_RECODE;
    if (codes) {
        DCOMMI_TRY(dcommi_check_expr_valid(p, &s->index, "index"));
    }
    if (codes && p->codec == NULL) {
        return dcommi_fail(DCOMM_ERR_PLAN, "the plan has no codec");
    }
    return DCOMM_OK;
}

static bool dcommi_check_same_expr(const dcomm_expr *a, const dcomm_expr *b)
{
    return a->kind == b->kind && a->add == b->add && a->scale == b->scale && a->base == b->base &&
           a->mod == b->mod && a->first == b->first &&
           memcmp(a->post, b->post, sizeof a->post) == 0 &&
           memcmp(a->coef, b->coef, sizeof a->coef) == 0;
}

/* Check FORWARD: step `next` must send or copy exactly the bytes that step `s` stores. */
static dcomm_status dcommi_check_forward_valid(const dcomm_plan *p, const dcomm_step *s,
                                               const dcomm_step *next)
{
    if ((s->flags & DCOMM_STEP_FORWARD) == 0) {
        return DCOMM_OK;
    }
    bool sends = s->kind == DCOMM_STEP_RECV_REDUCE;
    if ((sends || s->kind == DCOMM_STEP_REDUCE) && (s->flags & DCOMM_STEP_ASYNC) == 0 &&
        next != NULL && next->kind == (sends ? DCOMM_STEP_SEND : DCOMM_STEP_COPY) &&
        (sends || (next->flags & DCOMM_STEP_ASYNC) == 0) && next->src < p->noperands) {
        const dcomm_operand *a = &s->dst, *b = &p->operands[next->src];
        if (a->space == b->space && a->max_length == b->max_length && a->clip == b->clip &&
            dcommi_check_same_expr(&a->offset, &b->offset) &&
            dcommi_check_same_expr(&a->length, &b->length)) {
            return DCOMM_OK;
        }
    }
    return dcommi_fail(DCOMM_ERR_PLAN,
                       "FORWARD is for a fold whose dst the next step sends or copies");
}

/* The loops of a lane that are open at a step. */
typedef struct dcommi_check_loops {
    uint32_t open[DCOMM_LOOP_DEPTH];
    int depth;
} dcommi_check_loops;

/* Check that step i of a lane opens or closes a loop rightly, if it does. */
static dcomm_status dcommi_check_loop_valid(const dcomm_step *lane, uint32_t i,
                                            dcommi_check_loops *loops)
{
    if (lane[i].kind == DCOMM_STEP_LOOP) {
        if (loops->depth == DCOMM_LOOP_DEPTH) {
            return dcommi_fail(DCOMM_ERR_PLAN, "loops nest deeper than %d", DCOMM_LOOP_DEPTH);
        }
        loops->open[loops->depth++] = i;
    } else if (lane[i].kind == DCOMM_STEP_END) {
        if (loops->depth == 0) {
            return dcommi_fail(DCOMM_ERR_PLAN, "no loop is open");
        }
        const dcomm_step *loop = &lane[loops->open[--loops->depth]];
        uint32_t body = (uint32_t)(&lane[i] - loop) - 1;
        if (lane[i].body != body || loop->body != body) {
            return dcommi_fail(DCOMM_ERR_PLAN,
                               "its loop has %" PRIu32 " steps, not %" PRIu32 " and %" PRIu32, body,
                               loop->body, lane[i].body);
        }
    }
    return DCOMM_OK;
}

static dcomm_status dcommi_check_lane_valid(const dcomm_plan *p, uint32_t lane, const char *where)
{
    const dcomm_lane *l = &p->lanes[lane];
    if (l->first > p->nsteps || p->nsteps - l->first < l->count) {
        return dcommi_fail(DCOMM_ERR_PLAN,
                           "%s lane %" PRIu32 ": steps %" PRIu32 "+%" PRIu32 " of %" PRIu32, where,
                           lane, l->first, l->count, p->nsteps);
    }
    dcommi_check_loops loops = {.depth = 0};
    for (uint32_t i = 0; i < l->count; i++) {
        const dcomm_step *s = &p->steps[l->first + i];
        if (s->kind >= DCOMM_STEP_KIND_COUNT) {
            return dcommi_fail(DCOMM_ERR_PLAN, "%s lane %" PRIu32 " step %" PRIu32 ": kind %d",
                               where, lane, i, s->kind);
        }
        dcomm_status status = dcommi_check_step_valid(p, s);
        if (status == DCOMM_OK) {
            status = dcommi_check_forward_valid(p, s, i + 1 < l->count ? s + 1 : NULL);
        }
        if (status == DCOMM_OK) {
            status = dcommi_check_loop_valid(s - i, i, &loops);
        }
        if (status < 0) {
            return dcommi_fail(status, "%s lane %" PRIu32 " step %" PRIu32 " (%s): %s", where, lane,
                               i, dcommi_print_kind(s->kind), dcommi_message);
        }
    }
    if (loops.depth != 0) {
        return dcommi_fail(DCOMM_ERR_PLAN, "%s lane %" PRIu32 " step %" PRIu32 " (loop): no end",
                           where, lane, loops.open[loops.depth - 1]);
    }
    return DCOMM_OK;
}

/* Check a plan and its sub-plans. `where` names the plan in messages ("rank 2"). *budget: how many
 * plans may still be visited. */
static dcomm_status dcommi_check_plan_valid(const dcomm_plan *p, const char *where, int depth,
                                            uint32_t *budget)
{
    if (depth >= DCOMMI_CALL_DEPTH || *budget == 0) {
        return dcommi_fail(DCOMM_ERR_PLAN, "%s: sub-plans nest deeper than %d, or are too many",
                           where, DCOMMI_CALL_DEPTH);
    }
    --*budget;
    if (p->nlanes > DCOMM_PLAN_MAX_LANES || p->nslots > DCOMM_PLAN_MAX_SLOTS ||
        p->nwords > DCOMM_PLAN_MAX_WORDS || p->ncounters > UINT16_MAX + 1u) {
        return dcommi_fail(DCOMM_ERR_PLAN,
                           "%s: too many lanes (%" PRIu32 "), slots (%" PRIu32 "), words (%" PRIu32
                           ") or counters (%" PRIu32 ")",
                           where, p->nlanes, p->nslots, p->nwords, p->ncounters);
    }
    if (p->in_bytes < 0 || p->out_bytes < 0 || p->scratch_bytes < 0) {
        return dcommi_fail(DCOMM_ERR_PLAN,
                           "%s: a space has a negative size: IN %" PRId64 ", OUT %" PRId64
                           ", SCRATCH %" PRId64,
                           where, p->in_bytes, p->out_bytes, p->scratch_bytes);
    }
    if (dcomm_dtype_size((dcomm_dtype)p->dtype) == 0 || p->op > (unsigned)DCOMM_OP_USER_MAX) {
        return dcommi_fail(DCOMM_ERR_PLAN, "%s: dtype %" PRIu32 ", op %" PRIu32, where, p->dtype,
                           p->op);
    }
    if ((p->nlanes > 0 && p->lanes == NULL) || (p->nsteps > 0 && p->steps == NULL) ||
        (p->noperands > 0 && p->operands == NULL) || (p->ntable > 0 && p->table == NULL) ||
        (p->nsubs > 0 && p->subs == NULL) || (p->nkernels > 0 && p->kernels == NULL)) {
        return dcommi_fail(DCOMM_ERR_PLAN, "%s: a table of the plan is NULL", where);
    }
    for (uint32_t i = 0; i < p->nlanes; i++) {
        DCOMMI_TRY(dcommi_check_lane_valid(p, i, where));
    }
    for (uint32_t i = 0; i < p->nsubs; i++) {
        char place[96];
        if (p->subs[i] != NULL) {
            snprintf(place, sizeof place, "%.64s sub %" PRIu32, where, i);
            DCOMMI_TRY(dcommi_check_plan_valid(p->subs[i], place, depth + 1, budget));
        }
    }
    return DCOMM_OK;
}

#endif
