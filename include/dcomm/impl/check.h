/* check.h - the plan checker: executes all ranks' plans together on symbolic contributions.
 *
 * Messages are matched by (source, destination, tag), so what meets what does not depend on timing,
 * and one execution that goes as far as it can decides whether there is a deadlock. Order is proved
 * by vector clocks: a race that this execution happens to survive is found all the same. Waiting
 * on counters needs to know which signals may come early, so executions are repeated, each with the
 * orders that the one before has proved, until nothing is missing or nothing is added.
 *
 * Lengths that are known at run time only are tried at their maximum, at 0, 1 and at random; words
 * that come out of the caller's data count as such. A stage after the first is checked where the
 * words that it is made from are known (lengths received, constants); where they are data, only the
 * stages before it are, without their results. */
#ifndef DCOMMI_CHECK_H
#define DCOMMI_CHECK_H

#include "check_spec.h"
#include "check_step.h"

/* ---- lanes and calls ---- */

/* How many lanes run, one after another or at once, below one lane of a plan; itself included. */
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

/* Make a frame's lanes ready; `first` is the component of the first. */
static bool dcommi_check_start(dcommi_check *c, dcommi_check_frame *f, uint32_t first,
                               const uint32_t *vc, int32_t level)
{
    const dcomm_plan *p = f->plan;
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
        lane->level = level;
        lane->all = c->lanes;
        c->lanes = lane;
        dcommi_check_wake(c, lane);
    }
    /* wake pushed them last to first, so the newest is lane 0: give components in order */
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

/* SCRATCH, STATE and WORDS of a called sub-plan: its own. */
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
    const dcomm_plan *sub = outer->plan->subs[s->sub];
    int64_t tag;
    if (!dcommi_check_eval(c, op, &s->tag, &tag)) {
        return false;
    }
    if (tag < 0 || tag > (int64_t)outer->plan->ntags - (int64_t)sub->ntags) {
        return dcommi_check_refuse(c, op, "tags %" PRId64 "+%" PRIu32 " of %" PRIu32, tag,
                                   sub->ntags, outer->plan->ntags);
    }
    dcommi_check_frame *f = dcommi_check_get(c, sizeof *f);
    int *ranks = f != NULL ? dcommi_check_get(c, (size_t)sub->nranks * sizeof *ranks) : NULL;
    if (ranks == NULL) {
        return false;
    }
    for (int i = 0; i < sub->nranks; i++) {
        ranks[i] = outer->ranks[outer->plan->table[s->group + (uint32_t)i]];
    }
    f->plan = sub;
    f->caller = lane;
    f->ranks = ranks;
    f->rank = outer->rank;
    f->tag = outer->tag + tag;
    f->counter = outer->counter + s->slot;
    f->slot = outer->slot + (s->word > 0 ? s->word : 0);
    const dcomm_operand *in = s->nsrc > 0 ? &outer->plan->operands[s->src] : NULL;
    if (!dcommi_check_bind(c, op, f, DCOMM_SPACE_IN, in, sub->in_bytes) ||
        !dcommi_check_bind(c, op, f, DCOMM_SPACE_OUT, &s->dst, sub->out_bytes) ||
        !dcommi_check_own_mem(c, f, DCOMM_SPACE_SCRATCH, sub->scratch_bytes, DCOMMI_CHECK_UNDEF) ||
        !dcommi_check_own_mem(c, f, DCOMM_SPACE_STATE, sub->state_bytes, DCOMMI_CHECK_OPAQUE) ||
        !dcommi_check_own_mem(c, f, DCOMM_SPACE_WORDS, 8 * (int64_t)sub->nwords,
                              DCOMMI_CHECK_ZERO)) {
        return false;
    }
    lane->blocked = true;
    return sub->nlanes == 0 ? dcommi_check_complete(c, op)
                            : dcommi_check_start(c, f, lane->comp + 2, lane->vc, lane->level);
}

/* A lane has run to its end, all that it started included. */
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
    for (unsigned space = DCOMM_SPACE_SCRATCH; space <= DCOMM_SPACE_STATE; space++) {
        f->mem[space]->end_vc = f->end_vc;
    }
    caller->op.level = caller->op.level > f->level ? caller->op.level : f->level;
    return dcommi_check_complete(c, &caller->op);
}

/* FENCE, and the end of a lane: false when there is still something to wait for. */
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

static bool dcommi_check_loop(dcommi_check *c, dcommi_check_lane *lane)
{
    dcommi_check_op *op = &lane->op;
    int64_t trips;
    if (!dcommi_check_eval(c, op, &op->step->value, &trips)) {
        return false;
    }
    if (trips <= 0 || op->step->body == 0) {
        lane->pc += op->step->body + 1;
    } else {
        lane->open[lane->depth] = lane->pc;
        lane->index[lane->depth] = 0;
        lane->trips[lane->depth++] = trips;
    }
    return dcommi_check_complete(c, op);
}

static bool dcommi_check_step(dcommi_check *c, dcommi_check_lane *lane)
{
    const dcomm_plan *p = lane->frame->plan;
    const dcomm_step *s = &p->steps[p->lanes[lane->number].first + lane->pc];
    dcommi_check_op *op = &lane->op;
    memset(op, 0, sizeof *op);
    op->lane = lane;
    op->step = s;
    op->at = lane->pc;
    memcpy(op->index, lane->index, sizeof op->index);
    op->vc = lane->vc;
    op->comp = lane->comp;
    op->clock = lane->vc[lane->comp] + 1;
    op->level = lane->level;
    op->peer = -1;
    if (--c->budget < 0) {
        return dcommi_check_refuse(c, op, "too many steps to check");
    }
    if ((s->flags & DCOMM_STEP_ASYNC) != 0 && s->kind != DCOMM_STEP_EXPOSE) {
        op = dcommi_check_detach(c, lane);
        if (op == NULL) {
            return false;
        }
        lane->vc[lane->comp]++;
        lane->pc++;
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
    case DCOMM_STEP_LOOP:
        return dcommi_check_loop(c, lane);
    case DCOMM_STEP_END: {
        int d = lane->depth - 1;
        if (++lane->index[d] < lane->trips[d]) {
            lane->pc = lane->open[d];
        } else {
            lane->index[d] = 0;
            lane->depth = d;
        }
        return dcommi_check_complete(c, op);
    }
    case DCOMM_STEP_CALL:
        return dcommi_check_call(c, op);
    default:
        return dcommi_check_do_local(c, op);
    }
}

/* Go on with a lane as far as it can. */
static bool dcommi_check_advance(dcommi_check *c, dcommi_check_lane *lane)
{
    c->running = lane;
    while (!lane->blocked && !lane->done && c->status == DCOMM_OK) {
        uint32_t count = lane->frame->plan->lanes[lane->number].count;
        if (lane->pc < count) {
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

/* Nothing can go on: say who waits for what. */
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

/* ---- stages ---- */

/* The memory of a rank at the start of a stage. */
static dcomm_status dcommi_check_stage_mem(dcommi_check *c, int rank)
{
    dcommi_check_rank *k = &c->rank[rank];
    const dcomm_plan *p = k->plan;
    dcommi_check_layout l;
    DCOMMI_TRY(dcommi_check_layout_of(c, rank, &l));
    dcommi_check_value undefined = {.kind = DCOMMI_CHECK_UNDEF};
    dcommi_check_value opaque = {.kind = DCOMMI_CHECK_OPAQUE};
    dcommi_check_value zero = {.kind = DCOMMI_CHECK_ZERO};
    dcommi_check_value input = {
        .kind = DCOMMI_CHECK_SUM, .flags = DCOMMI_CHECK_ORDERED, .mask = (uint64_t)1 << rank};
    for (unsigned space = DCOMM_SPACE_IN; space <= DCOMM_SPACE_WORDS; space++) {
        dcommi_check_mem *m = k->mem[space];
        if (m == NULL || space == DCOMM_SPACE_SCRATCH) {
            m = k->mem[space] = dcommi_check_mem_new(c, rank, space);
            if (m == NULL) {
                return DCOMM_ERR_NO_MEMORY;
            }
        } else {
            dcommi_check_mem_settle(m);
        }
    }
    dcommi_check_mem **mem = k->mem;
    /* In place, only the root of a reduce may write its buffer. */
    bool untouched =
        c->spec->coll == DCOMM_COLL_REDUCE && c->spec->in_place && rank != c->spec->root;
    mem[DCOMM_SPACE_OUT]->read_only = untouched;
    if (l.in_place_at < 0 || untouched) {
        input.src = mem[DCOMM_SPACE_IN]->size;
        DCOMMI_TRY(dcommi_check_mem_fill(mem[DCOMM_SPACE_IN], input.src, l.in_bytes, input));
    }
    int64_t out = mem[DCOMM_SPACE_OUT]->size;
    if (l.in_place_at >= 0 && out <= l.in_place_at + l.input_bytes) {
        int64_t from = dcommi_max64(out, l.in_place_at);
        DCOMMI_TRY(dcommi_check_mem_fill(mem[DCOMM_SPACE_OUT], out, l.in_place_at, undefined));
        input.src = from - l.in_place_at;
        DCOMMI_TRY(dcommi_check_mem_fill(mem[DCOMM_SPACE_OUT], from, l.in_place_at + l.input_bytes,
                                         input));
        out = dcommi_max64(out, l.in_place_at + l.input_bytes);
    }
    DCOMMI_TRY(dcommi_check_mem_fill(mem[DCOMM_SPACE_OUT], out, l.out_bytes, undefined));
    DCOMMI_TRY(dcommi_check_mem_fill(mem[DCOMM_SPACE_SCRATCH], 0, p->scratch_bytes, undefined));
    DCOMMI_TRY(dcommi_check_mem_fill(mem[DCOMM_SPACE_STATE], mem[DCOMM_SPACE_STATE]->size,
                                     p->state_bytes, opaque));
    return dcommi_check_mem_fill(mem[DCOMM_SPACE_WORDS], mem[DCOMM_SPACE_WORDS]->size,
                                 8 * (int64_t)p->nwords, zero);
}

/* Are the plans of this stage well formed, and do they belong together? */
static dcomm_status dcommi_check_stage_valid(dcommi_check *c)
{
    uint32_t budget = DCOMMI_CHECK_SUBPLANS;
    uint64_t width = 0;
    for (int i = 0; i < c->n; i++) {
        const dcomm_plan *p = c->rank[i].plan, *zero = c->rank[0].plan;
        char where[48];
        snprintf(where, sizeof where, c->stage > 0 ? "rank %d stage %d" : "rank %d", i, c->stage);
        if (p->rank != i || p->nranks != c->n) {
            return dcommi_fail(DCOMM_ERR_PLAN, "%s: its plan is for rank %d of %d, not %d of %d",
                               where, p->rank, p->nranks, i, c->n);
        }
        if (p->dtype != zero->dtype || p->op != zero->op) {
            return dcommi_fail(
                DCOMM_ERR_PLAN, "%s: dtype %s, op %s; rank 0 has %s, %s", where,
                dcomm_dtype_name((dcomm_dtype)p->dtype), dcomm_op_name((dcomm_op)p->op),
                dcomm_dtype_name((dcomm_dtype)zero->dtype), dcomm_op_name((dcomm_op)zero->op));
        }
        if (c->reduces && p->dtype != (unsigned)c->spec->dtype) {
            return dcommi_fail(DCOMM_ERR_PLAN, "%s: dtype %s, where the operation has %s", where,
                               dcomm_dtype_name((dcomm_dtype)p->dtype),
                               dcomm_dtype_name(c->spec->dtype));
        }
        DCOMMI_TRY(dcommi_check_plan_valid(p, where, 0, &budget));
        for (uint32_t j = 0; j < p->nlanes; j++) {
            width += dcommi_check_width(c, p, j);
        }
    }
    if (width > 8192 || c->budget <= 0) {
        return dcommi_fail(DCOMM_ERR_PLAN, "more than 8192 lanes in all: too many to check");
    }
    c->ncomps = 2 * (uint32_t)width;
    return DCOMM_OK;
}

static dcomm_status dcommi_check_stage_start(dcommi_check *c)
{
    c->lanes = NULL;
    c->running = NULL;
    c->nready = 0;
    c->nfree_vc = 0;
    c->free_ops = NULL;
    c->nmessages = 0;
    if (c->messages_capacity > 0) {
        memset(c->message, 0, c->messages_capacity * sizeof *c->message);
    }
    c->comps = dcommi_check_get(c, (c->ncomps + 1) / 2 * sizeof *c->comps);
    uint32_t *nothing = dcommi_check_vc_new(c);
    if (c->comps == NULL || nothing == NULL) {
        return DCOMM_ERR_NO_MEMORY;
    }
    uint32_t comp = 0;
    dcommi_check_log *log = &c->log[c->stage];
    for (int i = 0; i < c->n; i++) {
        dcommi_check_rank *k = &c->rank[i];
        const dcomm_plan *p = k->plan;
        DCOMMI_TRY(dcommi_check_stage_mem(c, i));
        k->peer_waiters = NULL;
        k->counters = dcommi_check_get(c, (size_t)p->ncounters * sizeof *k->counters);
        k->exposed = dcommi_check_get(c, (size_t)p->nslots * (size_t)c->n * sizeof *k->exposed);
        dcommi_check_frame *f = dcommi_check_get(c, sizeof *f);
        if (k->counters == NULL || k->exposed == NULL || f == NULL) {
            return DCOMM_ERR_NO_MEMORY;
        }
        log->counters[i] = k->counters;
        log->ncounters[i] = p->ncounters;
        c->identity[i] = i;
        f->plan = p;
        f->ranks = c->identity;
        f->rank = i;
        for (unsigned space = DCOMM_SPACE_IN; space <= DCOMM_SPACE_WORDS; space++) {
            f->mem[space] = k->mem[space];
            f->size[space] = k->mem[space]->size;
        }
        f->size[DCOMM_SPACE_IN] = dcommi_min64(p->in_bytes, f->size[DCOMM_SPACE_IN]);
        f->size[DCOMM_SPACE_OUT] = dcommi_min64(p->out_bytes, f->size[DCOMM_SPACE_OUT]);
        f->size[DCOMM_SPACE_STATE] = p->state_bytes;
        k->frame = f;
        if (!dcommi_check_start(c, f, comp, nothing, 0)) {
            return c->status;
        }
        for (uint32_t j = 0; j < p->nlanes; j++) {
            comp += 2 * dcommi_check_width(c, p, j);
        }
    }
    return DCOMM_OK;
}

/* Who has heard of whom, and whether exposed memory is still being read when its owner is done. */
static void dcommi_check_stage_end(dcommi_check *c)
{
    uint64_t heard[DCOMMI_CHECK_RANKS];
    for (int i = 0; i < c->n; i++) {
        const uint32_t *end = c->rank[i].frame->end_vc;
        heard[i] = c->rank[i].heard;
        for (uint32_t k = 0; k < c->ncomps; k += 2) {
            if (end[k] > 0) {
                heard[i] |= c->rank[c->comps[k / 2].rank].heard;
            }
        }
    }
    for (int i = 0; i < c->n; i++) {
        c->rank[i].heard = heard[i];
    }
    for (dcommi_check_mem *m = c->mems; m != NULL && c->finding[0] == '\0'; m = m->next) {
        const uint32_t *end = m->end_vc != NULL ? m->end_vc : c->rank[m->rank].frame->end_vc;
        for (uint32_t k = 0; m->peer_last != NULL && k < c->ncomps; k++) {
            if (m->peer_last[k] > end[k]) {
                snprintf(c->finding, sizeof c->finding,
                         "rank %d may be done before %s has read the %s that it exposes: it waits "
                         "for no signal of that lane after the read",
                         m->rank, dcommi_check_lane_text(c, k).s,
                         dcommi_print_space(m->space));
                break;
            }
        }
        m->peer_last = NULL;
    }
}

/* ---- a run: all stages, once ---- */

typedef struct dcommi_check_made {
    const dcomm_plan *maker, *plan;
    int rank;
} dcommi_check_made;

/* Let every rank say what comes next. *more: there is another stage, to be executed. */
static dcomm_status dcommi_check_next_stage(dcommi_check *c, dcommi_check_made *made, size_t *nmade,
                                            bool *more)
{
    int going = 0;
    *more = false;
    for (int i = 0; i < c->n; i++) {
        const dcommi_check_mem *words = c->rank[i].mem[DCOMM_SPACE_WORDS];
        for (uint32_t w = 0; c->rank[i].plan->next != NULL && w < c->rank[i].plan->nwords; w++) {
            bool known;
            c->merged.n = 0;
            DCOMMI_TRY(dcommi_check_peek(words, 8 * (int64_t)w, 8, &c->merged));
            dcommi_check_number(c, &c->merged, &known);
            if (!known) {
                c->spec_holds = false;
                return DCOMM_OK;
            }
        }
    }
    for (int i = 0; i < c->n; i++) {
        const dcomm_plan *p = c->rank[i].plan;
        if (p->next == NULL) {
            continue;
        }
        uint64_t *numbers = dcommi_check_get(c, (size_t)p->nwords * sizeof *numbers);
        if (numbers == NULL) {
            return DCOMM_ERR_NO_MEMORY;
        }
        for (uint32_t w = 0; w < p->nwords; w++) {
            bool known;
            c->merged.n = 0;
            DCOMMI_TRY(dcommi_check_peek(c->rank[i].mem[DCOMM_SPACE_WORDS], 8 * (int64_t)w, 8,
                                         &c->merged));
            numbers[w] = (uint64_t)dcommi_check_number(c, &c->merged, &known);
        }
        dcomm_status status = DCOMM_OK;
        const dcomm_plan *next = p->next(p->next_user, numbers, p->nwords, &status);
        if (next == NULL && status < 0) {
            return dcommi_fail(DCOMM_ERR_PLAN, "rank %d: its stage %d fails: %s", i, c->stage + 1,
                               dcomm_strerror(status));
        }
        if (next != NULL) {
            dcommi_check_made m = {p, next, i};
            made[(*nmade)++] = m;
            going++;
        }
    }
    if (going > 0 && going < c->n) {
        return dcommi_fail(DCOMM_ERR_PLAN, "after stage %d only %d of %d ranks go on", c->stage,
                           going, c->n);
    }
    for (int i = 0; i < going; i++) {
        c->rank[i].plan = made[*nmade - (size_t)going + (size_t)i].plan;
    }
    *more = going > 0;
    if (*more && ++c->stage == DCOMMI_CHECK_STAGES) {
        return dcommi_fail(DCOMM_ERR_PLAN, "more than %d stages", DCOMMI_CHECK_STAGES);
    }
    return DCOMM_OK;
}

static dcomm_status dcommi_check_end(dcommi_check *c)
{
    if (c->spec->coll == DCOMM_COLL_BARRIER) {
        for (int i = 0; i < c->n && c->finding[0] == '\0'; i++) {
            if (c->rank[i].heard != c->all) {
                snprintf(c->finding, sizeof c->finding,
                         "rank %d may leave the barrier before rank %d has come", i,
                         __builtin_ctzll(c->all & ~c->rank[i].heard));
            }
        }
    }
    for (int i = 0; i < c->n && c->spec_holds; i++) {
        DCOMMI_TRY(dcommi_check_results(c, i));
    }
    return DCOMM_OK;
}

static dcomm_status dcommi_check_stages(dcommi_check *c, dcommi_check_made *made, size_t *nmade)
{
    bool more = true;
    while (more) {
        DCOMMI_TRY(dcommi_check_stage_valid(c));
        DCOMMI_TRY(dcommi_check_stage_start(c));
        while (c->nready > 0) {
            if (!dcommi_check_advance(c, c->ready[--c->nready])) {
                return c->status;
            }
        }
        for (const dcommi_check_lane *l = c->lanes; l != NULL; l = l->all) {
            if (!l->done) {
                dcommi_check_deadlock(c);
                return c->status;
            }
        }
        dcommi_check_stage_end(c);
        DCOMMI_TRY(dcommi_check_next_stage(c, made, nmade, &more));
    }
    return dcommi_check_end(c);
}

static void dcommi_check_pass_free(dcommi_check *c)
{
    for (dcommi_check_mem *m = c->mems; m != NULL; m = m->next) {
        dcommi_free(m->cell);
    }
    for (size_t i = 0; i < c->nencodings; i++) {
        dcommi_free(c->encoding[i].runs.run);
        memset(&c->encoding[i], 0, sizeof c->encoding[i]);
    }
    c->mems = NULL;
    c->nencodings = 0;
    c->pool.n = 0;
    c->pool.free = 0;
}

/* Execute everything once. */
static dcomm_status dcommi_check_pass(dcommi_check *c)
{
    dcommi_check_made *made = dcommi_calloc((size_t)c->n * DCOMMI_CHECK_STAGES, sizeof *made);
    size_t nmade = 0;
    if (made == NULL) {
        return DCOMM_ERR_NO_MEMORY;
    }
    c->status = DCOMM_OK;
    c->budget = DCOMMI_CHECK_BUDGET;
    c->finding[0] = '\0';
    c->stage = 0;
    c->waited = false;
    c->edges = 0;
    c->messages = c->signals = c->steps = 0;
    c->spec_holds = c->spec->coll < DCOMM_COLL_SEND && (c->scenario != DCOMMI_CHECK_SHORTEST);
    memset(c->log, 0, sizeof c->log);
    if (c->trace != NULL) {
        c->trace->n = 0;
    }
    for (int i = 0; i < c->n; i++) {
        memset(&c->rank[i], 0, sizeof c->rank[i]);
        c->rank[i].plan = c->plans[i];
        c->rank[i].heard = (uint64_t)1 << i;
    }
    dcomm_status status = dcommi_check_stages(c, made, &nmade);
    while (nmade-- > 0) {
        const dcomm_plan *maker = made[nmade].maker;
        if (maker->release != NULL) {
            maker->release(maker->next_user, made[nmade].plan);
        }
    }
    dcommi_free(made);
    c->total_bytes = 0;
    for (int i = 0; i < c->n; i++) {
        c->total_bytes += c->rank[i].bytes;
    }
    dcommi_check_pass_free(c);
    return status;
}

/* Passes until the order of everything is proved, or no further order is. */
static dcomm_status dcommi_check_scenario(dcommi_check *c)
{
    dcomm_status status = DCOMM_OK;
    uint64_t edges = 0;
    c->has_old_log = false;
    for (int pass = 0; pass < 16; pass++) {
        status = dcommi_check_pass(c);
        dcommi_check_blocks_free(&c->log_blocks);
        c->log_blocks = c->blocks;
        c->blocks = NULL;
        memcpy(c->old_log, c->log, sizeof c->log);
        bool settled = !c->waited || (c->has_old_log && c->edges == edges);
        edges = c->edges;
        /* The first pass has no order from counters at all, so its depth of messages is wrong. */
        bool counted = !c->waited || c->has_old_log;
        c->has_old_log = true;
        if (status < 0 || (counted && c->finding[0] == '\0') || settled) {
            break;
        }
    }
    dcommi_check_blocks_free(&c->log_blocks);
    if (status == DCOMM_OK && c->finding[0] != '\0') {
        status = dcommi_fail(DCOMM_ERR_PLAN, "%s", c->finding);
    }
    return status;
}

static void dcommi_check_fill_report(const dcommi_check *c, dcomm_check_report *report)
{
    report->messages = c->messages;
    report->signals = c->signals;
    report->total_bytes = c->total_bytes;
    report->steps = c->steps;
    report->max_rank_bytes = 0;
    for (int i = 0; i < c->n; i++) {
        report->max_rank_bytes = dcommi_max64(report->max_rank_bytes, c->rank[i].bytes);
    }
}

/* dcomm_plan_check, and what happened, if trace is not NULL (free trace->event). */
static dcomm_status dcommi_check_plans(const dcomm_plan *const *plans, int nranks,
                                       const dcomm_check_spec *spec, dcomm_check_report *report,
                                       dcommi_check_trace *trace)
{
    static const int order[DCOMMI_CHECK_SCENARIOS] = {DCOMMI_CHECK_LONGEST, DCOMMI_CHECK_SHORTEST,
                                                      DCOMMI_CHECK_ONE, DCOMMI_CHECK_RANDOM,
                                                      DCOMMI_CHECK_RANDOM_TOO};
    if (report != NULL) {
        memset(report, 0, sizeof *report);
    }
    if (plans == NULL || spec == NULL || nranks < 1 || nranks > DCOMMI_CHECK_RANKS) {
        return dcommi_fail(DCOMM_ERR_INVALID, "dcomm_plan_check: %s, for %d ranks of at most %d",
                           plans == NULL  ? "plans is NULL"
                           : spec == NULL ? "spec is NULL"
                                          : "bad nranks",
                           nranks, DCOMMI_CHECK_RANKS);
    }
    DCOMMI_TRY(dcommi_check_spec_valid(spec, nranks));
    dcomm_status status = DCOMM_OK;
    dcommi_check *c = dcommi_alloc(sizeof *c);
    if (c == NULL) {
        return DCOMM_ERR_NO_MEMORY;
    }
    c->plans = plans;
    c->n = nranks;
    c->all = nranks == 64 ? ~(uint64_t)0 : ((uint64_t)1 << nranks) - 1;
    c->spec = spec;
    c->trace = trace;
    c->element = (int64_t)dcomm_dtype_size(spec->dtype);
    c->reduces = spec->coll == DCOMM_COLL_ALLREDUCE || spec->coll == DCOMM_COLL_REDUCE ||
                 spec->coll == DCOMM_COLL_REDUCE_SCATTER ||
                 spec->coll == DCOMM_COLL_REDUCE_SCATTERV;
    bool varies = false;
    uint32_t budget = DCOMMI_CHECK_SUBPLANS;
    for (int i = 0; i < nranks && status == DCOMM_OK; i++) {
        char where[24];
        snprintf(where, sizeof where, "rank %d", i);
        status = plans[i] == NULL ? dcommi_fail(DCOMM_ERR_INVALID, "plans[%d] is NULL", i)
                                  : dcommi_check_plan_valid(plans[i], where, 0, &budget);
        varies = varies || (status == DCOMM_OK && dcommi_check_plan_varies(plans[i]));
    }
    c->averages =
        status == DCOMM_OK && c->reduces && nranks > 1 && plans[0]->op == (unsigned)DCOMM_AVG;
    for (int i = 0; i < (varies ? DCOMMI_CHECK_SCENARIOS : 1) && status == DCOMM_OK; i++) {
        c->scenario = order[i];
        status = dcommi_check_scenario(c);
        if (i == 0 && report != NULL && status == DCOMM_OK) {
            dcommi_check_fill_report(c, report);
        }
        c->trace = NULL; /* it is of the longest lengths, like the report */
    }
    if (status < 0 && report != NULL) {
        snprintf(report->message, sizeof report->message, "%s", dcommi_message);
    }
    dcommi_free(c->pool.reader);
    dcommi_free(c->arrived.run);
    dcommi_free(c->given.run);
    dcommi_free(c->folded.run);
    dcommi_free(c->merged.run);
    dcommi_free(c->encoding);
    dcommi_free(c->free_vc);
    dcommi_free(c->ready);
    dcommi_free(c->message);
    dcommi_free(c);
    return status;
}

dcomm_status dcomm_plan_check(const dcomm_plan *const *plans, int nranks,
                              const dcomm_check_spec *spec, dcomm_check_report *report)
{
    return dcommi_check_plans(plans, nranks, spec, report, NULL);
}

#endif
