/* build.h - the builder: the functions of dcomm/build.h. The library's own algorithms use them
 * too.
 *
 * An algorithm is a pure function (shape -> plan). It appends steps to lanes in any order; finish
 * lays them out as one immutable plan. The builder keeps the first error, ignores every later
 * call, and finish returns the error. */
#ifndef DCOMMI_BUILD_H
#define DCOMMI_BUILD_H

#include "expr.h"
#include "shape.h"
#include "copy.h"

/* Limits of the engine and of the checker. */
#define DCOMMI_FOLD_SOURCES 8           /* sources of one RECV_REDUCE or COMPUTE */
#define DCOMMI_SHARED_SCRATCH (3 << 19) /* bytes of scratch that peers can map */
#define DCOMMI_CALL_DEPTH 8 /* sub-plans within sub-plans, the outermost plan included */

typedef struct dcommi_lane_builder {
    dcomm_step *steps;
    size_t count, capacity;
    uint32_t open[DCOMM_LOOP_DEPTH];
    int depth;
} dcommi_lane_builder;

struct dcomm_builder {
    dcomm_plan head; /* its scalars are filled in while the plan is built */
    dcommi_lane_builder lanes[DCOMM_PLAN_MAX_LANES];
    dcomm_operand *operands;
    size_t noperands, operands_capacity;
    int64_t *table;
    size_t ntable, table_capacity;
    const dcomm_plan **subs;
    size_t nsubs, subs_capacity;
    dcomm_plan **adopted; /* sub-plans that finish copies into the plan's own memory */
    size_t nadopted, adopted_capacity;
    dcomm_status status;
    char why[DCOMMI_MESSAGE_MAX];
};

/* Start a plan. The algorithm sets the other fields of head later. */
static void dcommi_build_begin(dcomm_builder *b, const char *name, int rank, int nranks,
                               dcomm_dtype dtype, dcomm_op op)
{
    memset(b, 0, sizeof *b);
    b->head.name = name;
    b->head.rank = rank;
    b->head.nranks = nranks;
    b->head.dtype = (uint32_t)dtype;
    b->head.op = (uint32_t)op;
}

static void dcommi_build_error(dcomm_builder *b, dcomm_status status)
{
    if (b->status == DCOMM_OK) {
        b->status = status;
        memcpy(b->why, dcommi_message, sizeof b->why);
    }
}

/* Return true if there is a builder and it has no error yet. */
static bool dcommi_build_good(const dcomm_builder *b)
{
    return b != NULL && b->status == DCOMM_OK;
}

/* Append a step to a lane. Return it, zeroed, with word -1; NULL after an error. */
static dcomm_step *dcommi_build_step(dcomm_builder *b, int lane, dcomm_step_kind kind)
{
    if (!dcommi_build_good(b)) {
        return NULL;
    }
    if (lane < 0 || lane >= DCOMM_PLAN_MAX_LANES) {
        dcommi_build_error(b,
                           dcommi_fail(DCOMM_ERR_UNSUPPORTED, "%s: lane is %d; it may be 0 to %d",
                                       b->head.name, lane, DCOMM_PLAN_MAX_LANES - 1));
        return NULL;
    }
    dcommi_lane_builder *l = &b->lanes[lane];
    dcomm_status status =
        dcommi_grow((void **)&l->steps, &l->capacity, l->count + 1, sizeof *l->steps);
    if (status < 0) {
        dcommi_build_error(b, status);
        return NULL;
    }
    if ((uint32_t)lane >= b->head.nlanes) {
        b->head.nlanes = (uint32_t)lane + 1;
    }
    dcomm_step *step = &l->steps[l->count++];
    memset(step, 0, sizeof *step);
    step->kind = (uint8_t)kind;
    step->word = -1;
    return step;
}

/* Append source operands to the pool and give them to `step`, which must be the last one made. */
static void dcommi_build_sources(dcomm_builder *b, dcomm_step *step, const dcomm_operand *src,
                                 size_t n)
{
    if (step == NULL || !dcommi_build_good(b)) {
        return;
    }
    dcomm_status status = dcommi_grow((void **)&b->operands, &b->operands_capacity,
                                      b->noperands + n, sizeof *b->operands);
    if (status < 0) {
        dcommi_build_error(b, status);
        return;
    }
    memcpy(b->operands + b->noperands, src, n * sizeof *src);
    step->src = (uint32_t)b->noperands;
    step->nsrc = (uint32_t)n;
    b->noperands += n;
}

DCOMM_API int64_t dcomm_build_table(dcomm_builder *b, const int64_t *values, size_t n)
{
    if (!dcommi_build_good(b) || n == 0) {
        return b != NULL ? (int64_t)b->ntable : 0;
    }
    dcomm_status status =
        dcommi_grow((void **)&b->table, &b->table_capacity, b->ntable + n, sizeof *b->table);
    if (status < 0) {
        dcommi_build_error(b, status);
        return 0;
    }
    memcpy(b->table + b->ntable, values, n * sizeof *values);
    b->ntable += n;
    return (int64_t)(b->ntable - n);
}

DCOMM_API int64_t dcomm_build_scratch(dcomm_builder *b, int64_t bytes)
{
    if (!dcommi_build_good(b)) {
        return 0;
    }
    int64_t offset = b->head.scratch_bytes;
    if (bytes < 0 || bytes > INT64_MAX / 2 - offset) {
        dcommi_build_error(b, dcommi_fail(DCOMM_ERR_INVALID,
                                          "%s: %" PRId64 " bytes of scratch after %" PRId64
                                          ": must be 0 or more, and below 2^62 in all",
                                          b->head.name, bytes, offset));
        return 0;
    }
    b->head.scratch_bytes += (bytes + DCOMMI_CACHE_LINE - 1) & ~(int64_t)(DCOMMI_CACHE_LINE - 1);
    return offset;
}

DCOMM_API int64_t dcomm_build_tags(dcomm_builder *b, int64_t n)
{
    if (!dcommi_build_good(b)) {
        return 0;
    }
    int64_t first = b->head.ntags;
    if (n < 0) {
        dcommi_build_error(b,
                           dcommi_fail(DCOMM_ERR_INVALID, "%s: %" PRId64 " tags", b->head.name, n));
        return 0;
    }
    if (n > INT32_MAX - first) {
        dcommi_build_error(b, dcommi_fail(DCOMM_ERR_UNSUPPORTED,
                                          "%s: more than 2^31 messages between two ranks; use a "
                                          "larger chunk_bytes",
                                          b->head.name));
        return 0;
    }
    b->head.ntags = (uint32_t)(first + n);
    return first;
}

DCOMM_API uint16_t dcomm_build_counter(dcomm_builder *b)
{
    if (dcommi_build_good(b) && b->head.ncounters > UINT16_MAX) {
        dcommi_build_error(b, dcommi_fail(DCOMM_ERR_UNSUPPORTED, "%s: more than %d counters",
                                          b->head.name, UINT16_MAX + 1));
    }
    return dcommi_build_good(b) ? (uint16_t)b->head.ncounters++ : 0;
}

DCOMM_API uint16_t dcomm_build_slot(dcomm_builder *b)
{
    if (dcommi_build_good(b) && b->head.nslots >= DCOMM_PLAN_MAX_SLOTS) {
        dcommi_build_error(b, dcommi_fail(DCOMM_ERR_UNSUPPORTED, "%s: more than %d slots",
                                          b->head.name, DCOMM_PLAN_MAX_SLOTS));
    }
    return dcommi_build_good(b) ? (uint16_t)b->head.nslots++ : 0;
}

/* ---- steps ---- */

/* Return flags as a step stores them. Flags that do not fit become UINT8_MAX, which the check
 * refuses. */
static uint8_t dcommi_build_flags(unsigned flags)
{
    return flags <= UINT8_MAX ? (uint8_t)flags : UINT8_MAX;
}

DCOMM_API void dcomm_build_send(dcomm_builder *b, int lane, dcomm_operand src, dcomm_expr peer,
                                dcomm_expr tag, unsigned flags)
{
    dcomm_step *s = dcommi_build_step(b, lane, DCOMM_STEP_SEND);
    if (s != NULL) {
        s->flags = dcommi_build_flags(flags);
        s->peer = peer;
        s->tag = tag;
        dcommi_build_sources(b, s, &src, 1);
    }
}

DCOMM_API void dcomm_build_recv(dcomm_builder *b, int lane, dcomm_operand dst, dcomm_expr peer,
                                dcomm_expr tag, unsigned flags)
{
    dcomm_step *s = dcommi_build_step(b, lane, DCOMM_STEP_RECV);
    if (s != NULL) {
        s->flags = dcommi_build_flags(flags);
        s->dst = dst;
        s->peer = peer;
        s->tag = tag;
    }
}

DCOMM_API void dcomm_build_recv_reduce(dcomm_builder *b, int lane, dcomm_operand dst,
                                       dcomm_operand first, dcomm_operand second,
                                       dcomm_operand stage, dcomm_expr peer, dcomm_expr tag,
                                       unsigned flags)
{
    dcomm_step *s = dcommi_build_step(b, lane, DCOMM_STEP_RECV_REDUCE);
    if (s != NULL) {
        dcomm_operand src[2] = {first, second};
        s->flags = dcommi_build_flags(flags);
        s->dst = dst;
        s->stage = stage;
        s->peer = peer;
        s->tag = tag;
        dcommi_build_sources(b, s, src, 2);
    }
}

DCOMM_API void dcomm_build_copy(dcomm_builder *b, int lane, dcomm_operand dst, dcomm_operand src,
                                unsigned flags)
{
    dcomm_step *s = dcommi_build_step(b, lane, DCOMM_STEP_COPY);
    if (s != NULL) {
        s->flags = dcommi_build_flags(flags);
        s->dst = dst;
        dcommi_build_sources(b, s, &src, 1);
    }
}

DCOMM_API void dcomm_build_reduce(dcomm_builder *b, int lane, dcomm_operand dst,
                                  const dcomm_operand *src, size_t n, unsigned flags)
{
    dcomm_step *s = dcommi_build_step(b, lane, DCOMM_STEP_REDUCE);
    if (s != NULL) {
        s->flags = dcommi_build_flags(flags);
        s->dst = dst;
        dcommi_build_sources(b, s, src, n);
    }
}

DCOMM_API void dcomm_build_expose(dcomm_builder *b, int lane, dcomm_operand src, uint16_t slot,
                                  dcomm_expr peer)
{
    dcomm_step *s = dcommi_build_step(b, lane, DCOMM_STEP_EXPOSE);
    if (s != NULL) {
        s->slot = slot;
        s->peer = peer;
        dcommi_build_sources(b, s, &src, 1);
    }
}

DCOMM_API void dcomm_build_signal(dcomm_builder *b, int lane, uint16_t counter, dcomm_expr peer,
                                  dcomm_expr value)
{
    dcomm_step *s = dcommi_build_step(b, lane, DCOMM_STEP_SIGNAL);
    if (s != NULL) {
        s->slot = counter;
        s->peer = peer;
        s->value = value;
    }
}

DCOMM_API void dcomm_build_wait(dcomm_builder *b, int lane, uint16_t counter, dcomm_expr value)
{
    dcomm_step *s = dcommi_build_step(b, lane, DCOMM_STEP_WAIT);
    if (s != NULL) {
        s->slot = counter;
        s->value = value;
    }
}

DCOMM_API void dcomm_build_fence(dcomm_builder *b, int lane)
{
    dcommi_build_step(b, lane, DCOMM_STEP_FENCE);
}

DCOMM_API int dcomm_build_loop(dcomm_builder *b, int lane, dcomm_expr trips)
{
    dcomm_step *s = dcommi_build_step(b, lane, DCOMM_STEP_LOOP);
    if (s == NULL) {
        return 0;
    }
    dcommi_lane_builder *l = &b->lanes[lane];
    s->value = trips;
    if (l->depth == DCOMM_LOOP_DEPTH) {
        dcommi_build_error(b, dcommi_fail(DCOMM_ERR_PLAN, "%s: loops nest deeper than %d",
                                          b->head.name, DCOMM_LOOP_DEPTH));
        return 0;
    }
    l->open[l->depth] = (uint32_t)(l->count - 1);
    return l->depth++;
}

DCOMM_API void dcomm_build_end(dcomm_builder *b, int lane)
{
    dcomm_step *s = dcommi_build_step(b, lane, DCOMM_STEP_END);
    if (s == NULL) {
        return;
    }
    dcommi_lane_builder *l = &b->lanes[lane];
    if (l->depth == 0) {
        dcommi_build_error(b, dcommi_fail(DCOMM_ERR_PLAN, "%s: lane %d has no open loop to end",
                                          b->head.name, lane));
    } else {
        uint32_t open = l->open[--l->depth];
        uint32_t body = (uint32_t)(l->count - 2) - open;
        l->steps[open].body = body;
        s->body = body;
    }
}

/* Take over a finished sub-plan: finish copies it into the plan's block of memory and frees it.
 * Return `sub`. After an error, free it at once and return NULL. */
static dcomm_plan *dcommi_build_adopt(dcomm_builder *b, dcomm_plan *sub)
{
    dcomm_status status = b->status;
    if (status == DCOMM_OK) {
        status = dcommi_grow((void **)&b->adopted, &b->adopted_capacity, b->nadopted + 1,
                             sizeof *b->adopted);
    }
    if (status < 0) {
        dcommi_build_error(b, status);
        dcommi_free(sub);
        return NULL;
    }
    b->adopted[b->nadopted++] = sub;
    return sub;
}

DCOMM_API dcomm_step *dcomm_build_call(dcomm_builder *b, int lane, const dcomm_plan *sub,
                                       int64_t group, dcomm_operand in, dcomm_operand out,
                                       dcomm_expr tag)
{
    if (dcommi_build_good(b) && sub == NULL) {
        dcommi_build_error(
            b, dcommi_fail(DCOMM_ERR_INVALID, "%s: the sub-plan is NULL", b->head.name));
    }
    dcomm_step *s = dcommi_build_step(b, lane, DCOMM_STEP_CALL);
    if (s == NULL) {
        return NULL;
    }
    size_t at = 0;
    while (at < b->nsubs && b->subs[at] != sub) {
        at++;
    }
    if (at == b->nsubs) {
        dcomm_status status =
            dcommi_grow((void **)&b->subs, &b->subs_capacity, b->nsubs + 1, sizeof *b->subs);
        if (status < 0) {
            dcommi_build_error(b, status);
            return NULL;
        }
        b->subs[b->nsubs++] = sub;
    }
    s->sub = (uint32_t)at;
    s->group = (uint32_t)group;
    s->dst = out;
    s->tag = tag;
    dcommi_build_sources(b, s, &in, 1);
    return s;
}

/* ---- finishing ---- */

static void dcommi_build_discard(dcomm_builder *b)
{
    for (int i = 0; i < DCOMM_PLAN_MAX_LANES; i++) {
        dcommi_free(b->lanes[i].steps);
    }
    dcommi_free(b->operands);
    dcommi_free(b->table);
    dcommi_free((void *)b->subs);
    for (size_t i = 0; i < b->nadopted; i++) {
        dcommi_free(b->adopted[i]);
    }
    dcommi_free(b->adopted);
    memset(b, 0, sizeof *b);
}

/* Lay the plan out in one block of memory (dcommi_free it) and discard the builder. */
static dcomm_status dcommi_build_finish(dcomm_builder *b, dcomm_plan **plan_p)
{
    *plan_p = NULL;
    dcomm_status status = b->status;
    if (status < 0) {
        dcommi_fail(status, "%s", b->why);
        dcommi_build_discard(b);
        return status;
    }
    size_t nsteps = 0;
    for (uint32_t i = 0; i < b->head.nlanes; i++) {
        nsteps += b->lanes[i].count;
    }
    size_t bytes = sizeof(dcomm_plan) + nsteps * sizeof(dcomm_step) +
                   b->noperands * sizeof(dcomm_operand) + b->ntable * sizeof(int64_t) +
                   b->nsubs * sizeof(dcomm_plan *) + b->head.nlanes * sizeof(dcomm_lane);
    size_t own = (bytes + 15) & ~(size_t)15;
    bytes = own;
    for (size_t i = 0; i < b->nadopted; i++) {
        bytes += dcommi_plan_bytes(b->adopted[i]);
    }
    dcomm_plan *plan = dcommi_alloc(bytes);
    if (plan == NULL) {
        dcommi_build_discard(b);
        return DCOMM_ERR_NO_MEMORY;
    }
    uint8_t *at = (uint8_t *)plan, *behind = at + own;
    for (size_t i = 0; i < b->nadopted; i++) {
        const dcomm_plan *copy = dcommi_plan_copy(&behind, b->adopted[i]);
        for (size_t k = 0; k < b->nsubs; k++) {
            b->subs[k] = b->subs[k] == b->adopted[i] ? copy : b->subs[k];
        }
    }
    dcommi_plan_put(&at, &b->head, sizeof b->head);
    plan->steps = (const void *)at;
    for (uint32_t i = 0; i < b->head.nlanes; i++) {
        dcommi_plan_put(&at, b->lanes[i].steps, b->lanes[i].count * sizeof *plan->steps);
    }
    plan->operands = dcommi_plan_put(&at, b->operands, b->noperands * sizeof *b->operands);
    plan->table = dcommi_plan_put(&at, b->table, b->ntable * sizeof *b->table);
    plan->subs = dcommi_plan_put(&at, (const void *)b->subs, b->nsubs * sizeof *b->subs);
    plan->lanes = (const void *)at;
    uint32_t first = 0;
    for (uint32_t i = 0; i < b->head.nlanes; i++) {
        const dcomm_lane lane = {.first = first, .count = (uint32_t)b->lanes[i].count};
        dcommi_plan_put(&at, &lane, sizeof lane);
        first += lane.count;
    }
    plan->nsteps = (uint32_t)nsteps;
    plan->noperands = (uint32_t)b->noperands;
    plan->ntable = (uint32_t)b->ntable;
    plan->nsubs = (uint32_t)b->nsubs;
    dcommi_build_discard(b);
    *plan_p = plan;
    return DCOMM_OK;
}

#endif
