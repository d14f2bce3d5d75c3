/* build.h - the builder that algorithms write plans with, and the arguments that they see.
 *
 * An algorithm is a pure function (shape -> plan). It appends steps to lanes in any order; finish
 * lays them out as one immutable plan. Errors are sticky: the builder remembers the first, ignores
 * the rest, and finish reports it. */
#ifndef DCOMMI_BUILD_H
#define DCOMMI_BUILD_H

#include "../../plan.h"
#include "groups.h"
#include "copy.h"

/* What the engine executes and the checker accepts. */
#define DCOMMI_FOLD_SOURCES 8           /* sources of one RECV_REDUCE or COMPUTE */
#define DCOMMI_SHARED_SCRATCH (3 << 19) /* bytes of scratch that peers can map */
#define DCOMMI_CALL_DEPTH 8 /* sub-plans within sub-plans, the outermost plan included */

/* What an algorithm may know about a codec: sizes, not data. */
typedef struct dcommi_coding {
    const dcomm_plan_codec *codec;
    size_t (*max_bytes)(const void *sizes, size_t count); /* for so many f32; grows with count */
    const void *sizes;
    uint64_t hash;    /* of the codec with all its options */
    int64_t granule;  /* elements, at whose multiples pieces had best begin */
    bool whole;       /* encode as much as possible at once */
    int parts;        /* of an encoding, that can be summed as f32 one after the other; 0: none */
    int64_t part[3];  /* bytes: where they begin, and where the last one ends */
    int rounds;       /* sums; round i is of part i % parts */
    bool feedback;    /* what is rounded away is kept, of contributions and of sums, */
    bool variant;     /* in another way than the classic one, */
    bool clips;       /* a rank's gradient is clipped by its norm, */
    bool differences; /* or what is sent is a difference (EF21) */
    uint32_t cost_length, cost_encode, cost_decode; /* as in dcomm_plan */
    /* Of selected elements that can be sent apart: how; NULL: they cannot. */
    const dcomm_plan_codec *spread;
    int64_t most;                                                       /* are selected */
    size_t (*part_bytes)(const void *sizes, size_t count, size_t kept); /* grows with both */
    size_t (*samples)(const void *sizes, size_t count, size_t nranks);
} dcommi_coding;

/* Where the caller promises that all ranks' buffers lie. */
enum dcommi_memory {
    DCOMMI_MEMORY_ANY,
    DCOMMI_MEMORY_HUGE,
    DCOMMI_MEMORY_REGISTERED,
    DCOMMI_MEMORY_DEVICE,
    DCOMMI_MEMORY_OPEN, /* a device's, which peers on the host read where it lies */
    DCOMMI_MEMORY_UCX,  /* a device's, which UCX moves between hosts */
    DCOMMI_MEMORY_KINDS
};

/* A longer message out of device memory is offered. It is sent with its message on every transport.
 */
#define DCOMMI_DEVICE_EAGER 32768

/* All that an algorithm may know about a call. */
typedef struct dcommi_shape {
    dcomm_coll coll;
    int rank, nranks, root;
    dcomm_dtype dtype;
    dcomm_op op;
    size_t count;                /* the collective's own count argument, elements */
    bool in_place;               /* the input lies in OUT, where the collective's rules put it */
    bool rank_order;             /* fold in rank order or refuse */
    enum dcommi_memory memory;   /* what the choice may count on */
    int lanes;                   /* parallel instances, >= 1 */
    int64_t chunk_bytes;         /* pipelining grain, 0: the algorithm's own default */
    const dcommi_groups *groups; /* who is near whom; NULL: nothing is known */
    const dcommi_coding *coding; /* NULL: without compression */
    bool apart;                  /* compressed: the f32 to be coded have to be made first */
    /* v-collectives, elements: [nranks] each; displacements are never NULL here. All-to-all-v:
     * counts/displs are the receiving side, send_counts/send_displs the sending side. */
    const size_t *counts, *displs;
    const size_t *send_counts, *send_displs;
    /* All-to-all-v: what each rank sends to each, [from * nranks + to]; NULL: each knows its own.
     */
    const size_t *matrix;
} dcommi_shape;

typedef struct dcommi_builder dcommi_builder;

/* ---- expressions ---- */

static inline dcomm_expr dcommi_const(int64_t value)
{
    dcomm_expr e = {.kind = DCOMM_EXPR_CONST, .add = value};
    return e;
}

/* add + per * i[depth] */
static inline dcomm_expr dcommi_linear(int64_t add, int depth, int64_t per)
{
    dcomm_expr e = {.kind = DCOMM_EXPR_AFFINE, .add = add};
    e.post[depth] = per;
    return e;
}

/* scale * ((base + coef * i[depth]) mod m) */
static inline dcomm_expr dcommi_modular(int64_t scale, int64_t base, int depth, int64_t coef,
                                        int64_t mod)
{
    dcomm_expr e = {.kind = DCOMM_EXPR_AFFINE, .scale = scale, .base = base, .mod = mod};
    e.coef[depth] = coef;
    return e;
}

/* table[first + (base + coef * i[depth]) mod m] */
static inline dcomm_expr dcommi_lookup(int64_t first, int64_t base, int depth, int64_t coef,
                                       int64_t mod)
{
    dcomm_expr e = {.kind = DCOMM_EXPR_TABLE, .scale = 1, .base = base, .mod = mod, .first = first};
    e.coef[depth] = coef;
    return e;
}

/* words[index] */
static inline dcomm_expr dcommi_word(int64_t index)
{
    dcomm_expr e = {.kind = DCOMM_EXPR_WORD, .scale = 1, .base = index};
    return e;
}

/* e + add */
static inline dcomm_expr dcommi_plus(dcomm_expr e, int64_t add)
{
    e.add += add;
    return e;
}

/* e + per * i[depth] */
static inline dcomm_expr dcommi_plus_loop(dcomm_expr e, int depth, int64_t per)
{
    if (e.kind == DCOMM_EXPR_CONST) {
        e.kind = DCOMM_EXPR_AFFINE;
    }
    e.post[depth] += per;
    return e;
}

/* ---- operands ---- */

static inline dcomm_operand dcommi_at(dcomm_space space, dcomm_expr offset, int64_t length)
{
    dcomm_operand o = {.space = (uint8_t)space,
                       .offset = offset,
                       .length = dcommi_const(length),
                       .max_length = length};
    return o;
}

/* A constant place. */
static inline dcomm_operand dcommi_span(dcomm_space space, int64_t offset, int64_t length)
{
    return dcommi_at(space, dcommi_const(offset), length);
}

/* The message being received, in a RECV_REDUCE. */
static inline dcomm_operand dcommi_msg(void)
{
    dcomm_operand o = {.space = DCOMM_SPACE_MSG};
    return o;
}

/* What rank `peer` exposed as `slot`. */
static inline dcomm_operand dcommi_peer(dcomm_expr peer, uint16_t slot, dcomm_expr offset,
                                        int64_t length)
{
    dcomm_operand o = dcommi_at(DCOMM_SPACE_PEER, offset, length);
    o.peer = peer;
    o.slot = slot;
    return o;
}

/* ---- the builder ---- */

typedef struct dcommi_lane_builder {
    dcomm_step *steps;
    size_t count, capacity;
    uint32_t open[DCOMM_LOOP_DEPTH];
    int depth;
} dcommi_lane_builder;

struct dcommi_builder {
    dcomm_plan head; /* scalars filled in as they come to be known */
    dcommi_lane_builder lanes[DCOMM_PLAN_MAX_LANES];
    dcomm_operand *operands;
    size_t noperands, operands_capacity;
    int64_t *table;
    size_t ntable, table_capacity;
    const dcomm_plan **subs;
    size_t nsubs, subs_capacity;
    dcomm_plan **adopted; /* those that become part of this plan's memory */
    size_t nadopted, adopted_capacity;
    dcomm_status status;
    char why[DCOMMI_MESSAGE_MAX];
};

/* Start a plan. Zero the builder's fields of head that the algorithm sets itself later. */
static void dcommi_build_begin(dcommi_builder *b, const char *name, int rank, int nranks,
                               dcomm_dtype dtype, dcomm_op op)
{
    memset(b, 0, sizeof *b);
    b->head.name = name;
    b->head.rank = rank;
    b->head.nranks = nranks;
    b->head.dtype = (uint32_t)dtype;
    b->head.op = (uint32_t)op;
}

static void dcommi_build_error(dcommi_builder *b, dcomm_status status)
{
    if (b->status == DCOMM_OK) {
        b->status = status;
        memcpy(b->why, dcommi_message, sizeof b->why);
    }
}

/* Append a step to a lane; NULL after an error. The step is zeroed, word is -1. */
static dcomm_step *dcommi_build_step(dcommi_builder *b, int lane, dcomm_step_kind kind)
{
    if (b->status != DCOMM_OK) {
        return NULL;
    }
    if (lane < 0 || lane >= DCOMM_PLAN_MAX_LANES) {
        dcommi_build_error(b, dcommi_fail(DCOMM_ERR_UNSUPPORTED, "%s: lane %d of at most %d",
                                          b->head.name, lane, DCOMM_PLAN_MAX_LANES));
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

/* Append source operands to the pool and to the step (which must be the last one made). */
static void dcommi_build_sources(dcommi_builder *b, dcomm_step *step, const dcomm_operand *src,
                                 size_t n)
{
    if (step == NULL || b->status != DCOMM_OK) {
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

/* Append values to the plan's table; returns the index of the first. */
static int64_t dcommi_build_table(dcommi_builder *b, const int64_t *values, size_t n)
{
    if (b->status != DCOMM_OK) {
        return 0;
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

/* Reserve scratch, aligned to cache lines; returns its offset. */
static int64_t dcommi_build_scratch(dcommi_builder *b, int64_t bytes)
{
    int64_t offset = b->head.scratch_bytes;
    b->head.scratch_bytes += (bytes + DCOMMI_CACHE_LINE - 1) & ~(int64_t)(DCOMMI_CACHE_LINE - 1);
    return offset;
}

/* Reserve n tags; returns the first. */
static int64_t dcommi_build_tags(dcommi_builder *b, int64_t n)
{
    int64_t first = b->head.ntags;
    if (first + n > INT32_MAX) {
        dcommi_build_error(b, dcommi_fail(DCOMM_ERR_UNSUPPORTED,
                                          "%s: more than 2^31 messages between two ranks; use a "
                                          "larger chunk_bytes",
                                          b->head.name));
        return 0;
    }
    b->head.ntags = (uint32_t)(first + n);
    return first;
}

/* Reserve a counter or an exposed slot of the plan. */
static uint16_t dcommi_build_counter(dcommi_builder *b)
{
    return (uint16_t)b->head.ncounters++;
}

static uint16_t dcommi_build_slot(dcommi_builder *b)
{
    return (uint16_t)b->head.nslots++;
}

/* ---- steps ---- */

static void dcommi_send(dcommi_builder *b, int lane, dcomm_operand src, dcomm_expr peer,
                        dcomm_expr tag, unsigned flags)
{
    dcomm_step *s = dcommi_build_step(b, lane, DCOMM_STEP_SEND);
    if (s != NULL) {
        s->flags = (uint8_t)flags;
        s->peer = peer;
        s->tag = tag;
        dcommi_build_sources(b, s, &src, 1);
    }
}

static void dcommi_recv(dcommi_builder *b, int lane, dcomm_operand dst, dcomm_expr peer,
                        dcomm_expr tag, unsigned flags)
{
    dcomm_step *s = dcommi_build_step(b, lane, DCOMM_STEP_RECV);
    if (s != NULL) {
        s->flags = (uint8_t)flags;
        s->dst = dst;
        s->peer = peer;
        s->tag = tag;
    }
}

/* dst <- fold(first, second), one of which is dcommi_msg(). stage: scratch as long as dst. */
static void dcommi_recv_reduce(dcommi_builder *b, int lane, dcomm_operand dst, dcomm_operand first,
                               dcomm_operand second, dcomm_operand stage, dcomm_expr peer,
                               dcomm_expr tag, unsigned flags)
{
    dcomm_step *s = dcommi_build_step(b, lane, DCOMM_STEP_RECV_REDUCE);
    if (s != NULL) {
        dcomm_operand src[2] = {first, second};
        s->flags = (uint8_t)flags;
        s->dst = dst;
        s->stage = stage;
        s->peer = peer;
        s->tag = tag;
        dcommi_build_sources(b, s, src, 2);
    }
}

static void dcommi_copy(dcommi_builder *b, int lane, dcomm_operand dst, dcomm_operand src,
                        unsigned flags)
{
    dcomm_step *s = dcommi_build_step(b, lane, DCOMM_STEP_COPY);
    if (s != NULL) {
        s->flags = (uint8_t)flags;
        s->dst = dst;
        dcommi_build_sources(b, s, &src, 1);
    }
}

static void dcommi_reduce(dcommi_builder *b, int lane, dcomm_operand dst, const dcomm_operand *src,
                          size_t n, unsigned flags)
{
    dcomm_step *s = dcommi_build_step(b, lane, DCOMM_STEP_REDUCE);
    if (s != NULL) {
        s->flags = (uint8_t)flags;
        s->dst = dst;
        dcommi_build_sources(b, s, src, n);
    }
}

static void dcommi_expose(dcommi_builder *b, int lane, dcomm_operand src, uint16_t slot,
                          dcomm_expr peer)
{
    dcomm_step *s = dcommi_build_step(b, lane, DCOMM_STEP_EXPOSE);
    if (s != NULL) {
        s->slot = slot;
        s->peer = peer;
        dcommi_build_sources(b, s, &src, 1);
    }
}

static void dcommi_signal(dcommi_builder *b, int lane, uint16_t counter, dcomm_expr peer,
                          dcomm_expr value)
{
    dcomm_step *s = dcommi_build_step(b, lane, DCOMM_STEP_SIGNAL);
    if (s != NULL) {
        s->slot = counter;
        s->peer = peer;
        s->value = value;
    }
}

static void dcommi_await(dcommi_builder *b, int lane, uint16_t counter, dcomm_expr value)
{
    dcomm_step *s = dcommi_build_step(b, lane, DCOMM_STEP_WAIT);
    if (s != NULL) {
        s->slot = counter;
        s->value = value;
    }
}

static void dcommi_fence(dcommi_builder *b, int lane)
{
    dcommi_build_step(b, lane, DCOMM_STEP_FENCE);
}

/* Open a loop; returns its depth, which is the index to use in expressions. */
static int dcommi_loop(dcommi_builder *b, int lane, dcomm_expr trips)
{
    dcomm_step *s = dcommi_build_step(b, lane, DCOMM_STEP_LOOP);
    if (s == NULL) {
        return 0;
    }
    dcommi_lane_builder *l = &b->lanes[lane];
    s->value = trips;
    if (l->depth == DCOMM_LOOP_DEPTH) {
        dcommi_build_error(b, dcommi_fail(DCOMM_ERR_INTERNAL, "%s: loops nest deeper than %d",
                                          b->head.name, DCOMM_LOOP_DEPTH));
        return 0;
    }
    l->open[l->depth] = (uint32_t)(l->count - 1);
    return l->depth++;
}

static void dcommi_end(dcommi_builder *b, int lane)
{
    dcomm_step *s = dcommi_build_step(b, lane, DCOMM_STEP_END);
    if (s != NULL) {
        dcommi_lane_builder *l = &b->lanes[lane];
        uint32_t open = l->open[--l->depth];
        uint32_t body = (uint32_t)(l->count - 2) - open;
        l->steps[open].body = body;
        s->body = body;
    }
}

/* Make a finished sub-plan part of the plan under way: it is copied into the plan's block of
 * memory, and freed now or then. NULL after an error. */
static dcomm_plan *dcommi_build_adopt(dcommi_builder *b, dcomm_plan *sub)
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

/* Call a sub-plan, which must outlive this plan or be adopted by it. group: index in the table of
 * its ranks. */
static dcomm_step *dcommi_call(dcommi_builder *b, int lane, const dcomm_plan *sub, int64_t group,
                               dcomm_operand in, dcomm_operand out, dcomm_expr tag)
{
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

static void dcommi_build_discard(dcommi_builder *b)
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
static dcomm_status dcommi_build_finish(dcommi_builder *b, dcomm_plan **plan_p)
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
    *plan = b->head;
    dcomm_step *steps = (dcomm_step *)(plan + 1);
    dcomm_operand *operands = (dcomm_operand *)(steps + nsteps);
    int64_t *table = (int64_t *)(operands + b->noperands);
    const dcomm_plan **subs = (const dcomm_plan **)(table + b->ntable);
    dcomm_lane *lanes = (dcomm_lane *)(subs + b->nsubs);
    uint8_t *behind = (uint8_t *)plan + own;
    for (size_t i = 0; i < b->nadopted; i++) {
        const dcomm_plan *copy = dcommi_plan_copy(&behind, b->adopted[i]);
        for (size_t k = 0; k < b->nsubs; k++) {
            b->subs[k] = b->subs[k] == b->adopted[i] ? copy : b->subs[k];
        }
    }
    uint32_t first = 0;
    for (uint32_t i = 0; i < b->head.nlanes; i++) {
        lanes[i].first = first;
        lanes[i].count = (uint32_t)b->lanes[i].count;
        if (b->lanes[i].count > 0) {
            memcpy(steps + first, b->lanes[i].steps, b->lanes[i].count * sizeof *steps);
        }
        first += lanes[i].count;
    }
    if (b->noperands > 0) {
        memcpy(operands, b->operands, b->noperands * sizeof *operands);
    }
    if (b->ntable > 0) {
        memcpy(table, b->table, b->ntable * sizeof *table);
    }
    if (b->nsubs > 0) {
        memcpy((void *)subs, (const void *)b->subs, b->nsubs * sizeof *subs);
    }
    plan->nsteps = (uint32_t)nsteps;
    plan->noperands = (uint32_t)b->noperands;
    plan->ntable = (uint32_t)b->ntable;
    plan->nsubs = (uint32_t)b->nsubs;
    plan->steps = steps;
    plan->operands = operands;
    plan->table = table;
    plan->subs = subs;
    plan->lanes = lanes;
    dcommi_build_discard(b);
    *plan_p = plan;
    return DCOMM_OK;
}

/* ---- evaluation, shared by engine, checker, printer ---- */

static int64_t dcommi_expr_value(const dcomm_expr *e, const int64_t *index, const int64_t *table,
                                 const uint64_t *words)
{
    if (e->kind == DCOMM_EXPR_CONST) {
        return e->add;
    }
    int64_t x = e->base;
    int64_t value = e->add;
    for (int d = 0; d < DCOMM_LOOP_DEPTH; d++) {
        x += e->coef[d] * index[d];
        value += e->post[d] * index[d];
    }
    if (e->mod != 0) {
        x %= e->mod;
        x += x < 0 ? e->mod : 0;
    }
    if (e->kind == DCOMM_EXPR_TABLE) {
        x = table[e->first + x];
    } else if (e->kind == DCOMM_EXPR_WORD) {
        x = (int64_t)words[e->first + x];
    }
    return value + e->scale * x;
}

/* Offset and length of piece r of an operand. */
static void dcommi_operand_piece(const dcomm_operand *o, uint32_t r, const int64_t *index,
                                 const int64_t *table, const uint64_t *words, int64_t *offset,
                                 int64_t *length)
{
    int64_t at = dcommi_expr_value(&o->offset, index, table, words) + (int64_t)r * o->stride;
    const uint64_t *behind = o->length.kind == DCOMM_EXPR_WORD ? words + r : words;
    int64_t len = dcommi_expr_value(&o->length, index, table, behind);
    len = dcommi_min64(dcommi_max64(len, 0), o->max_length);
    if (o->clip > 0) {
        len = dcommi_min64(len, dcommi_max64(o->clip - at, 0));
    }
    *offset = at;
    *length = len;
}

#endif
