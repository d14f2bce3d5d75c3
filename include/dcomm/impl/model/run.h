/* run.h - the priced execution of a set of plans, in order of time. It runs all ranks or, if ranks
 * are alike, those that stand for the others. Loops are not unrolled: an execution needs memory
 * for its ranks and for the messages under way only. */
#ifndef DCOMMI_MODEL_RUN_H
#define DCOMMI_MODEL_RUN_H

#include "../plan/check_valid.h"
#include "step.h"

/* The source of the plans: get makes or finds the plan of a rank, put gives it back. */
typedef struct dcommi_plans {
    dcomm_status (*get)(void *user, int rank, const dcomm_plan **plan_p);
    void (*put)(void *user, const dcomm_plan *plan);
    void *user;
    bool scripted; /* the plans run as scripts: the call and the steps take no time of their own */
} dcommi_plans;

/* The result of an execution. */
typedef struct dcommi_price {
    int64_t ps;
    int64_t burst; /* ps if links could keep their burst rate, without `sustained` */
    int64_t steps; /* executed steps of plans */
    bool over;     /* given up, because `burst` exceeds the limit */
} dcommi_price;

/* ---- frames and lanes ---- */

static dcommi_sim_frame *dcommi_sim_frame_new(dcommi_sim *s, const dcomm_plan *plan, int rank)
{
    dcommi_sim_frame *f = dcommi_alloc(sizeof *f + plan->nlanes * sizeof(dcommi_sim_lane));
    if (f == NULL) {
        dcommi_sim_fail(s, DCOMM_ERR_NO_MEMORY);
        return NULL;
    }
    f->scope.plan = plan;
    f->rank = rank;
    f->lanes_left = plan->nlanes;
    for (uint32_t i = 0; i < plan->nlanes; i++) {
        f->lanes[i].frame = f;
        dcommi_cursor_start(&f->lanes[i].cursor, &f->scope, i);
    }
    f->next = s->frames;
    if (s->frames != NULL) {
        s->frames->prev = f;
    }
    s->frames = f;
    return f;
}

static void dcommi_sim_frame_free(dcommi_sim *s, dcommi_sim_frame *f)
{
    *(f->prev != NULL ? &f->prev->next : &s->frames) = f->next;
    if (f->next != NULL) {
        f->next->prev = f->prev;
    }
    dcommi_free(f);
}

/* End a frame whose lanes are all over: resume its caller, or end the actor. */
static void dcommi_sim_frame_over(dcommi_sim *s, dcommi_sim_frame *f)
{
    if (f->caller == NULL) {
        s->end = dcommi_max64(s->end, s->now);
        s->left--;
        return;
    }
    dcommi_sim_resume(s, f->caller, s->now);
    dcommi_sim_frame_free(s, f);
}

static int64_t dcommi_sim_call(dcommi_sim *s, dcommi_sim_lane *lane, const dcomm_step *step)
{
    const dcommi_sim_frame *caller = lane->frame;
    const dcomm_plan *plan = caller->scope.plan;
    dcommi_sim_frame *f = dcommi_sim_frame_new(s, plan->subs[step->sub], caller->rank);
    if (f == NULL || !dcommi_sim_good(s, dcommi_cursor_call(&lane->cursor, step, &f->scope))) {
        return DCOMMI_SIM_STOP;
    }
    f->caller = lane;
    f->open =
        (uint8_t)(dcommi_sim_open_space(caller, plan->operands[step->src].space) << DCOMM_SPACE_IN |
                  dcommi_sim_open_space(caller, step->dst.space) << DCOMM_SPACE_OUT);
    lane->state = DCOMMI_SIM_CALLING;
    for (uint32_t i = 0; i < f->scope.plan->nlanes; i++) {
        dcommi_sim_resume(s, &f->lanes[i], s->now);
    }
    if (f->scope.plan->nlanes == 0) {
        dcommi_sim_frame_over(s, f);
    }
    return DCOMMI_SIM_STOP;
}

static int64_t dcommi_sim_wait(dcommi_sim *s, dcommi_sim_lane *lane, const dcomm_step *step)
{
    dcommi_sim_actor *own = &s->actor[lane->frame->rank];
    lane->counter = lane->frame->scope.counter + step->slot;
    lane->target = dcommi_sim_value(s, lane, &step->value);
    if (own->counters[lane->counter] >= lane->target) {
        return s->now;
    }
    lane->state = DCOMMI_SIM_WAITING;
    lane->next_waiter = own->waiters;
    own->waiters = lane;
    return DCOMMI_SIM_STOP;
}

/* Price the codec's steps: one encoding, and one decoding for each source, at the costs in the
 * plan. */
static int64_t dcommi_sim_codec(dcommi_sim *s, dcommi_sim_lane *lane, const dcomm_step *step)
{
    const dcomm_plan *plan = lane->frame->scope.plan;
    const dcomm_operand *o = &plan->operands[step->src];
    int64_t len = step->kind == DCOMM_STEP_ENCODE   ? dcommi_sim_length(s, lane, o, 0)
                  : step->kind == DCOMM_STEP_RECODE ? dcommi_sim_length(s, lane, &step->stage, 0)
                                                    : dcommi_sim_length(s, lane, &step->dst, 0);
    int64_t copy = dcommi_curve_at(&s->terrain->copy, len), work = 0;
    if (step->kind == DCOMM_STEP_ENCODE || step->kind == DCOMM_STEP_RECODE) {
        work += copy / 1024 * (plan->codec_encode > 0 ? plan->codec_encode : 1024);
    }
    for (uint32_t i = 0; step->kind != DCOMM_STEP_ENCODE && i < step->nsrc; i++) {
        int64_t pieces = dcommi_operand_pieces(&o[i]);
        work += pieces * (copy / 1024 * (plan->codec_decode > 0 ? plan->codec_decode : 1024));
    }
    bool later = step->slot > 0 && plan->codec_later > 0 && step->kind != DCOMM_STEP_DECODE;
    work = later ? work / 1024 * plan->codec_later : work;
    return dcommi_sim_work(s, lane->frame->rank, s->now, work);
}

/* Price a kernel of the caller: as a copy of its longest operand. */
static int64_t dcommi_sim_compute(dcommi_sim *s, dcommi_sim_lane *lane, const dcomm_step *step)
{
    int64_t len = dcommi_sim_length(s, lane, &step->dst, 0);
    for (uint32_t i = 0; i < step->nsrc; i++) {
        const dcomm_operand *o = &lane->frame->scope.plan->operands[step->src + i];
        len = dcommi_max64(len, dcommi_sim_length(s, lane, o, 0));
    }
    return dcommi_sim_work(s, lane->frame->rank, s->now, dcommi_curve_at(&s->terrain->copy, len));
}

static int64_t dcommi_sim_step(dcommi_sim *s, dcommi_sim_lane *lane, const dcomm_step *step)
{
    switch (step->kind) {
    case DCOMM_STEP_SEND:
        return dcommi_sim_send(s, lane, step);
    case DCOMM_STEP_RECV:
    case DCOMM_STEP_RECV_REDUCE:
        return dcommi_sim_recv(s, lane, step);
    case DCOMM_STEP_COPY:
    case DCOMM_STEP_REDUCE:
        return dcommi_sim_transform(s, lane, step);
    case DCOMM_STEP_EXPOSE:
    case DCOMM_STEP_SIGNAL:
        return dcommi_sim_tell(s, lane, step);
    case DCOMM_STEP_WAIT:
        return dcommi_sim_wait(s, lane, step);
    case DCOMM_STEP_CALL:
        return dcommi_sim_call(s, lane, step);
    case DCOMM_STEP_FENCE:
        if (lane->pending > 0) {
            lane->state = DCOMMI_SIM_FENCED;
            return DCOMMI_SIM_STOP;
        }
        return dcommi_max64(s->now, lane->async_end);
    case DCOMM_STEP_ENCODE:
    case DCOMM_STEP_DECODE:
    case DCOMM_STEP_RECODE:
        return dcommi_sim_codec(s, lane, step);
    default:
        return dcommi_sim_compute(s, lane, step);
    }
}

/* Run a lane until it waits, or until another event comes first. */
static void dcommi_sim_lane_run(dcommi_sim *s, dcommi_sim_lane *lane)
{
    while (s->status == DCOMM_OK) {
        const dcomm_step *step = dcommi_cursor_step(&lane->cursor);
        int64_t next = s->now;
        if (step == NULL) { /* the end of a lane is a fence */
            if (lane->pending > 0) {
                lane->state = DCOMMI_SIM_FENCED;
                return;
            }
            if (lane->async_end <= s->now) {
                lane->state = DCOMMI_SIM_OVER;
                if (--lane->frame->lanes_left == 0) {
                    dcommi_sim_frame_over(s, lane->frame);
                }
                return;
            }
            next = lane->async_end;
        } else {
            if (++s->steps > s->budget) {
                dcommi_sim_fail(s, dcommi_fail(DCOMM_ERR_UNSUPPORTED,
                                               "%s: more than %" PRId64 " steps to price",
                                               lane->frame->scope.plan->name, s->budget));
                return;
            }
            if (dcommi_cursor_turns(step)) { /* loops take no time */
                dcommi_sim_good(s, dcommi_cursor_turn(&lane->cursor, step));
                continue;
            }
            next = dcommi_sim_step(s, lane, step);
            if (next == DCOMMI_SIM_AGAIN) {
                return;
            }
            dcommi_cursor_next(&lane->cursor);
            if (next == DCOMMI_SIM_STOP) {
                return;
            }
            next = dcommi_sim_work(s, lane->frame->rank, next, s->step);
        }
        if (next > s->now && s->nheap > 0 && s->heap[0].time < next) {
            dcommi_sim_resume(s, lane, next);
            return;
        }
        s->now = next;
    }
}

/* ---- the execution ---- */

/* Find the port of each actor at each level, and the ranks behind it that the actor stands for. */
static dcomm_status dcommi_sim_ports(dcommi_sim *s)
{
    const dcommi_groups *g = s->terrain->groups;
    int n = s->terrain->nranks, levels = g != NULL ? g->nlevels : 0;
    s->port = dcommi_calloc((size_t)levels * (size_t)s->period + 1, sizeof *s->port);
    s->until = dcommi_calloc(2 * (size_t)levels * (size_t)n + 1, sizeof *s->until);
    s->carried = dcommi_calloc(2 * (size_t)levels * (size_t)n + 1, sizeof *s->carried);
    s->tally = dcommi_calloc((size_t)s->period * DCOMM_LINK_COUNT, sizeof *s->tally);
    if (s->port == NULL || s->until == NULL || s->carried == NULL || s->tally == NULL) {
        return DCOMM_ERR_NO_MEMORY;
    }
    for (int i = 0; i < levels * s->period; i++) {
        int level = i / s->period, actor = i % s->period;
        dcommi_sim_port_of *port = &s->port[i];
        int own = port->group = dcommi_group_of(g, level, actor);
        for (int r = actor; r < n; r += s->period) {
            int group = dcommi_group_of(g, level, r);
            port->group = group < port->group ? group : port->group;
            port->alike += group == own;
        }
    }
    return DCOMM_OK;
}

/* Find the ranks that share a hardware thread. If each actor is one rank, the actors of a thread
 * take turns. If actors stand for others, each counts the ranks on its own thread. */
static void dcommi_sim_seats(dcommi_sim *s)
{
    const dcommi_groups *g = s->terrain->groups;
    for (int i = 0; i < s->period; i++) {
        s->actor[i].seat = i;
        s->actor[i].turns = 1;
        if (g != NULL && s->period == g->nranks) {
            s->actor[i].seat = g->seat[i];
            continue;
        }
        for (int r = 0; g != NULL && r < g->nranks; r++) {
            s->actor[i].turns += r != i && g->seat[r] == g->seat[i];
        }
    }
}

static dcomm_status dcommi_sim_open(dcommi_sim *s, const dcommi_plans *plans)
{
    s->actor = dcommi_calloc((size_t)s->period, sizeof *s->actor);
    s->nbuckets = 64;
    s->bucket = dcommi_calloc(s->nbuckets, sizeof *s->bucket);
    if (s->actor == NULL || s->bucket == NULL) {
        return DCOMM_ERR_NO_MEMORY;
    }
    DCOMMI_TRY(dcommi_sim_ports(s));
    dcommi_sim_seats(s);
    for (int i = 0; i < s->period; i++) {
        dcommi_sim_actor *a = &s->actor[i];
        DCOMMI_TRY(plans->get(plans->user, i, &a->plan));
        a->counters = dcommi_calloc(a->plan->ncounters + 1, sizeof *a->counters);
        a->exposed = dcommi_calloc(a->plan->nslots + 1, sizeof *a->exposed);
        a->offered = dcommi_calloc(a->plan->nslots + 1, sizeof *a->offered);
        a->root = dcommi_sim_frame_new(s, a->plan, i);
        if (a->counters == NULL || a->exposed == NULL || a->offered == NULL || a->root == NULL) {
            return DCOMM_ERR_NO_MEMORY;
        }
        a->root->open = 1u << DCOMM_SPACE_IN | 1u << DCOMM_SPACE_OUT;
        for (uint32_t k = 0; k < a->plan->nslots; k++) {
            a->exposed[k] = -1;
        }
        for (uint32_t k = 0; k < a->plan->nlanes; k++) {
            dcommi_sim_resume(s, &a->root->lanes[k], 0);
        }
        s->left += a->plan->nlanes > 0;
    }
    return s->status;
}

static void dcommi_sim_close(dcommi_sim *s, const dcommi_plans *plans)
{
    for (int i = 0; s->actor != NULL && i < s->period; i++) {
        if (s->actor[i].plan != NULL) {
            plans->put(plans->user, s->actor[i].plan);
        }
        dcommi_free(s->actor[i].counters);
        dcommi_free(s->actor[i].exposed);
        dcommi_free(s->actor[i].offered);
    }
    while (s->frames != NULL) {
        dcommi_sim_frame_free(s, s->frames);
    }
    for (dcommi_sim_join *j = s->joins, *next; j != NULL; j = next) {
        next = j->next;
        dcommi_free(j);
    }
    for (size_t i = 0; i < s->nslabs; i++) {
        dcommi_free(s->slab[i]);
    }
    dcommi_free(s->slab);
    dcommi_free(s->actor);
    dcommi_free(s->bucket);
    dcommi_free(s->heap);
    dcommi_free(s->port);
    dcommi_free(s->until);
    dcommi_free(s->carried);
    dcommi_free(s->tally);
}

static void dcommi_sim_execute(dcommi_sim *s)
{
    while (s->nheap > 0 && s->status == DCOMM_OK && s->now <= s->limit) {
        dcommi_sim_event e = dcommi_sim_pop(s);
        s->now = e.time;
        if (s->now > s->limit) {
            break;
        }
        if (e.kind == DCOMMI_SIM_LANE) {
            dcommi_sim_lane_run(s, e.at.lane);
        } else if (e.kind == DCOMMI_SIM_SIGNAL) {
            dcommi_sim_signal(s, &s->actor[e.at.signal.actor], e.at.signal.counter, e.value);
        } else {
            dcommi_sim_happen(s, e.kind, e.at.msg);
        }
    }
}

/* Return the end of the execution, but no earlier than the shared ports can carry all bytes at
 * their sustained rate. */
static int64_t dcommi_sim_sustained(const dcommi_sim *s)
{
    const dcommi_groups *g = s->terrain->groups;
    int64_t end = s->end, n = s->terrain->nranks;
    for (int l = 0; g != NULL && l < g->nlevels; l++) {
        const dcommi_curve *curve = &s->terrain->link[g->kind[l]].sustained;
        for (int64_t i = 2 * l * n; curve->n > 0 && i < 2 * (l + 1) * n; i++) {
            end = dcommi_max64(end, dcommi_curve_at(curve, s->carried[i]));
        }
    }
    return end;
}

/* Run one execution of `period` actors. */
static dcomm_status dcommi_sim_run(const dcommi_terrain *t, const dcommi_plans *plans, int period,
                                   int64_t limit, int64_t budget, dcommi_price *price)
{
    const int64_t call = plans->scripted ? 0 : t->call;
    dcommi_sim s = {.terrain = t,
                    .period = period,
                    .step = plans->scripted ? 0 : t->step,
                    .limit = limit - call,
                    .budget = budget};
    dcomm_status status = dcommi_sim_open(&s, plans);
    price->ps = limit;
    if (status >= 0) {
        dcommi_sim_execute(&s);
        status = s.status;
        price->over = status >= 0 && s.now > s.limit;
        price->burst = s.end + call;
        price->ps = price->over ? limit : dcommi_sim_sustained(&s) + call;
    }
    if (status >= 0 && !price->over && s.left > 0) {
        status = dcommi_fail(DCOMM_ERR_PLAN, "%s: %d of %d ranks wait for each other for ever",
                             s.actor[0].plan->name, s.left, period);
    }
    price->steps = s.steps;
    dcommi_sim_close(&s, plans);
    return status;
}

/* ---- ranks that are alike ---- */

/* Return a hash of the parts of a plan that do not depend on its rank. */
static uint64_t dcommi_plan_look(const dcomm_plan *p, uint64_t h)
{
    h = dcommi_mix(h, (uint64_t)p->nlanes << 32 | p->nsteps);
    h = dcommi_mix(h, (uint64_t)p->ncounters << 32 | p->nslots);
    for (uint32_t i = 0; i < p->nlanes; i++) {
        h = dcommi_mix(h, p->lanes[i].count);
    }
    for (uint32_t i = 0; i < p->nsteps; i++) {
        const dcomm_step *s = &p->steps[i];
        h = dcommi_mix(h, (uint64_t)s->kind << 40 | (uint64_t)s->flags << 32 | s->body);
        h = dcommi_mix(h, (uint64_t)s->dst.max_length);
        h = dcommi_mix(h, (uint64_t)(s->peer.kind == DCOMM_EXPR_CONST && s->peer.add < 0));
        if (s->kind == DCOMM_STEP_LOOP || s->kind == DCOMM_STEP_WAIT) {
            h = dcommi_mix(h, (uint64_t)s->value.add);
        }
        bool ordered = s->kind != DCOMM_STEP_REDUCE; /* folds in rank order differ by rank */
        for (uint32_t k = 0; k < s->nsrc && ordered; k++) {
            const dcomm_operand *o = &p->operands[s->src + k];
            h = dcommi_mix(h, (uint64_t)o->space << 32 | o->repeat);
            h = dcommi_mix(h, (uint64_t)o->max_length);
        }
        if (s->kind == DCOMM_STEP_CALL) {
            h = dcommi_plan_look(p->subs[s->sub], h);
        }
    }
    return h;
}

#define DCOMMI_ALIKE_MIN 33    /* fewer ranks are all executed, which is exact */
#define DCOMMI_ALIKE_ALL 64    /* ranks whose plans are all compared, at most */
#define DCOMMI_ALIKE_SAMPLE 48 /* plans that are compared where there are more ranks */

/* Compare plans. *alike: each compared plan looks like that of the rank that stands for its rank.
 */
static dcomm_status dcommi_plans_alike(const dcommi_plans *plans, int nranks, int period,
                                       bool *alike)
{
    uint64_t *look = dcommi_calloc((size_t)period, sizeof *look);
    dcomm_status status = look != NULL ? DCOMM_OK : DCOMM_ERR_NO_MEMORY;
    int tries = nranks <= DCOMMI_ALIKE_ALL ? nranks : DCOMMI_ALIKE_SAMPLE + period;
    *alike = true;
    for (int i = 0; i < tries && status >= 0 && *alike; i++) {
        int r = i;
        if (i >= period && nranks > DCOMMI_ALIKE_ALL) { /* evenly spread, with the last rank */
            r = nranks - 1 - (int)((int64_t)(i - period) * (nranks - period) / DCOMMI_ALIKE_SAMPLE);
        }
        const dcomm_plan *plan = NULL;
        status = plans->get(plans->user, r, &plan);
        if (status >= 0) {
            uint64_t own = dcommi_plan_look(plan, 1);
            if (i < period) {
                look[r] = own;
            }
            *alike = look[r % period] == own;
            plans->put(plans->user, plan);
        }
    }
    dcommi_free(look);
    return status;
}

/* Price a set of plans. Give up when `burst` exceeds `limit` picoseconds, and fail after `budget`
 * steps. */
static dcomm_status dcommi_price_plans(const dcommi_terrain *t, const dcommi_plans *plans,
                                       int64_t limit, int64_t budget, dcommi_price *price)
{
    memset(price, 0, sizeof *price);
    bool many = t->nranks >= (t->rough ? DCOMMI_ALIKE_ALL + 1 : DCOMMI_ALIKE_MIN);
    bool alike = many && t->period < t->nranks;
    if (alike) {
        DCOMMI_TRY(dcommi_plans_alike(plans, t->nranks, t->period, &alike));
    }
    if (alike) {
        dcomm_status status = dcommi_sim_run(t, plans, t->period, limit, budget, price);
        if (status != DCOMM_ERR_PLAN) { /* an error: they only look alike, so execute all */
            return status;
        }
    }
    return dcommi_sim_run(t, plans, t->nranks, limit, budget, price);
}

#endif
