/* algo_hier.h - hierarchical all-reduce and broadcast: the plans of the levels, called chunk by
 * chunk.
 *
 * hier: within each host the ranks reduce-scatter, so that each owns a shard; the owners of a shard
 * on all hosts all-reduce it, all of them at once; then each host all-gathers. With M hosts, each
 * host sends 2(M-1)/M S, however many ranks it has. There are as many shards as the smallest host
 * has ranks; more ranks than that only give and take. Broadcast: the root's host spreads, each
 * shard is broadcast across hosts, and the other hosts all-gather.
 * hier_leader: one shard. Each host reduces to its leader, the leaders all-reduce, and each leader
 * broadcasts.
 *
 * The levels overlap: a lane for each phase, which waits for its chunk in the phase before. Two
 * such pipelines take chunks in turn, so that the network never waits for the end of a chunk. */
#ifndef DCOMMI_ALGO_HIER_H
#define DCOMMI_ALGO_HIER_H

#include "algo_hier_blocks.h"

#define DCOMMI_HIER_CHUNK (512 << 10) /* default; at most DCOMMI_HIER_DEFAULT_CHUNKS of them */
#define DCOMMI_HIER_DEFAULT_CHUNKS 16
#define DCOMMI_HIER_MAX_CHUNKS 64    /* also when the caller asks for smaller chunks */
#define DCOMMI_HIER_GRAIN (64 << 10) /* of a chunk's exchange across groups */
#define DCOMMI_HIER_SHARD_MIN 4096   /* bytes; shorter shards are not worth their messages */

/* One phase of a chunk: a call within the group or across groups, a copy, or nothing. Index 0:
 * all chunks but the last, 1: the last, which may be shorter. */
typedef struct dcommi_hier_phase {
    const dcomm_plan *plan[2];
    bool copies;
    int64_t group;
    dcomm_operand in[2], out[2];   /* of chunk 0 */
    int64_t tags, counters, slots; /* that a call may need */
    int64_t tag, counter, slot;    /* of the call for chunk 0 */
} dcommi_hier_phase;

enum { DCOMMI_HIER_BEFORE, DCOMMI_HIER_ACROSS, DCOMMI_HIER_AFTER, DCOMMI_HIER_PHASES };

/* How the buffer is cut. */
typedef struct dcommi_hier_cut {
    int64_t chunk, chunks;
    int64_t length[2]; /* of a chunk; the last's */
    int shards;
} dcommi_hier_cut;

static dcommi_hier_cut dcommi_hier_cut_make(const dcommi_hier *h, int shards)
{
    const dcommi_shape *s = h->s;
    int64_t total = dcommi_shape_bytes(s, s->count);
    int64_t wanted = s->chunk_bytes, most = DCOMMI_HIER_MAX_CHUNKS;
    if (wanted <= 0) {
        wanted = DCOMMI_HIER_CHUNK;
        most = DCOMMI_HIER_DEFAULT_CHUNKS;
    }
    wanted = dcommi_max64(wanted, dcommi_ceil_div(total, most));
    dcommi_hier_cut cut = {.shards = shards};
    cut.chunk = dcommi_partition_make(total, 1, wanted, (int64_t)dcomm_dtype_size(s->dtype)).chunk;
    cut.chunks = dcommi_ceil_div(total, cut.chunk);
    cut.length[0] = cut.chunk;
    cut.length[1] = total - (cut.chunks - 1) * cut.chunk;
    cut.shards = (int)dcommi_max64(
        1, dcommi_min64(shards, dcommi_min64(total, cut.chunk) / DCOMMI_HIER_SHARD_MIN));
    return cut;
}

/* Where shard k of a chunk of `length` bytes begins, and how long it is. */
static int64_t dcommi_hier_shard(const dcommi_hier *h, const dcommi_hier_cut *cut, int64_t length,
                                 int k, int64_t *bytes)
{
    int64_t element = (int64_t)dcomm_dtype_size(h->s->dtype);
    int64_t block = dcommi_partition_make(length, cut->shards, 0, element).block;
    int64_t begin = dcommi_min64(k * block, length);
    *bytes = dcommi_min64(block, length - begin);
    return begin;
}

static bool dcommi_hier_active(const dcommi_hier_phase *p, int kind)
{
    return p->copies || p->plan[kind] != NULL;
}

/* Chunk `first`, `first` + step * i[depth]. */
static dcomm_operand dcommi_hier_moved(dcomm_operand o, const dcommi_hier_cut *cut, int64_t first,
                                       int64_t step, int depth)
{
    o.offset = dcommi_plus(o.offset, first * cut->chunk);
    o.offset = step > 0 ? dcommi_plus_loop(o.offset, depth, step * cut->chunk) : o.offset;
    return o;
}

static dcomm_expr dcommi_hier_number(int64_t base, int64_t per, int64_t first, int64_t step,
                                     int depth)
{
    return step > 0 ? dcommi_linear(base + per * first, depth, per * step)
                    : dcommi_const(base + per * first);
}

/* One phase of the chunks first, first + step, ... */
static void dcommi_hier_phase_step(dcommi_hier *h, const dcommi_hier_phase *p, int kind,
                                   const dcommi_hier_cut *cut, int lane, int64_t first,
                                   int64_t step, int depth)
{
    dcomm_operand in = dcommi_hier_moved(p->in[kind], cut, first, step, depth);
    dcomm_operand out = dcommi_hier_moved(p->out[kind], cut, first, step, depth);
    if (p->plan[kind] == NULL) {
        dcommi_copy(h->b, lane, out, in, 0);
        return;
    }
    dcomm_step *call = dcommi_call(h->b, lane, p->plan[kind], p->group, in, out,
                                   dcommi_hier_number(p->tag, p->tags, first, step, depth));
    if (call != NULL) {
        call->value = dcommi_hier_number(p->counter, p->counters, first, step, depth);
        call->peer = dcommi_hier_number(p->slot, p->slots, first, step, depth);
        if (p->plan[kind]->codec != NULL) { /* the shard's place in the whole, in f32 */
            call->index = dcommi_coded_number(in.offset);
        }
    }
}

/* All phases of every flows-th chunk from `flow` on. */
static void dcommi_hier_flow(dcommi_hier *h, const dcommi_hier_phase *phase,
                             const dcommi_hier_cut *cut, const uint16_t *done, int flow, int flows)
{
    dcommi_builder *b = h->b;
    int64_t whole = cut->length[0] == cut->length[1] ? cut->chunks : cut->chunks - 1;
    int64_t trips = whole > flow ? (whole - flow - 1) / flows + 1 : 0;
    bool last = whole < cut->chunks && whole % flows == flow;
    for (int i = 0; i < DCOMMI_HIER_PHASES; i++) {
        int lane = DCOMMI_HIER_PHASES * flow + i;
        for (int kind = 0; kind < 2; kind++) {
            if ((kind == 0 ? trips == 0 : !last) || !dcommi_hier_active(&phase[i], kind)) {
                continue;
            }
            int64_t count = kind == 0 ? trips : 1, first = kind == 0 ? flow : whole;
            int before = i - 1;
            while (before >= 0 && !dcommi_hier_active(&phase[before], kind)) {
                before--;
            }
            int d = dcommi_loop_many(b, lane, count);
            if (before >= 0) {
                int64_t earlier = kind == 1 && dcommi_hier_active(&phase[before], 0) ? trips : 0;
                dcommi_await(b, lane, done[before],
                             count > 1 ? dcommi_linear(1, d, 1) : dcommi_const(earlier + 1));
            }
            dcommi_hier_phase_step(h, &phase[i], kind, cut, lane, first, count > 1 ? flows : 0, d);
            if (i + 1 < DCOMMI_HIER_PHASES) {
                dcommi_signal(b, lane, done[i], dcommi_const(h->s->rank), dcommi_const(1));
            }
            dcommi_end_many(b, lane, count);
        }
    }
}

/* Give each call its tags, counters and slots, and write the lanes. Across groups comes first: what
 * it needs is the same in groups of any size. */
static dcomm_status dcommi_hier_pipeline(dcommi_hier *h, dcommi_hier_phase *phase,
                                         const dcommi_hier_cut *cut)
{
    static const int order[DCOMMI_HIER_PHASES] = {DCOMMI_HIER_ACROSS, DCOMMI_HIER_BEFORE,
                                                  DCOMMI_HIER_AFTER};
    dcommi_builder *b = h->b;
    int flows = cut->chunks > 1 ? 2 : 1;
    if (b->status < 0) {
        return b->status;
    }
    uint16_t done[2][DCOMMI_HIER_PHASES];
    for (int i = 0; i < 2 * DCOMMI_HIER_PHASES; i++) {
        done[i / DCOMMI_HIER_PHASES][i % DCOMMI_HIER_PHASES] = dcommi_build_counter(b);
    }
    for (int i = 0; i < DCOMMI_HIER_PHASES; i++) {
        dcommi_hier_phase *p = &phase[order[i]];
        for (int kind = 0; kind < 2; kind++) {
            const dcomm_plan *plan = p->plan[kind];
            if (plan != NULL) {
                p->tags = dcommi_max64(p->tags, plan->ntags);
                p->counters = dcommi_max64(p->counters, plan->ncounters);
                p->slots = dcommi_max64(p->slots, plan->nslots);
            }
        }
        p->tag = dcommi_build_tags(b, cut->chunks * p->tags);
        p->counter = b->head.ncounters;
        p->slot = b->head.nslots;
        b->head.ncounters += (uint32_t)(cut->chunks * p->counters);
        b->head.nslots += (uint32_t)(cut->chunks * p->slots);
    }
    if (b->head.nslots > DCOMM_PLAN_MAX_SLOTS) {
        return dcommi_fail(DCOMM_ERR_UNSUPPORTED,
                           "%s: %" PRIu32
                           " exposed regions, more than %d; use a larger chunk_bytes",
                           b->head.name, b->head.nslots, DCOMM_PLAN_MAX_SLOTS);
    }
    for (int flow = 0; flow < flows; flow++) {
        dcommi_hier_flow(h, phase, cut, done[flow], flow, flows);
    }
    return b->status;
}

/* ---- the phases ---- */

/* All of a chunk, from chunk 0 on. */
static dcomm_operand dcommi_hier_whole(const dcommi_hier_cut *cut, dcomm_space space, int kind)
{
    return dcommi_span(space, 0, cut->length[kind]);
}

/* The owners' exchange across groups of shard `index` of the chunks. root: the group of a
 * broadcast's root. from: where the root's shard lies. */
static void dcommi_hier_across(dcommi_hier *h, const dcommi_hier_cut *cut, dcomm_coll coll,
                               const int64_t *owners, int index, int root, dcomm_space from,
                               dcommi_hier_phase *p)
{
    p->group = dcommi_build_table(h->b, owners, (size_t)h->ngroups);
    for (int kind = 0; kind < 2; kind++) {
        int64_t longest, bytes, begin;
        dcommi_shape sub = dcommi_hier_shape(h, coll, h->group, h->ngroups, true);
        dcommi_hier_shard(h, cut, cut->length[kind], 0, &longest);
        sub.root = root;
        sub.coding = h->s->coding;
        sub.chunk_bytes = sub.coding != NULL ? 0 : DCOMMI_HIER_GRAIN;
        sub.in_place = from == DCOMM_SPACE_OUT;
        /* The first shard is the longest: its counters and slots are enough for all. */
        sub.count = (size_t)longest / dcomm_dtype_size(sub.dtype);
        dcomm_plan *plan = dcommi_hier_sub(h, &sub, false, longest, longest, longest);
        if (plan == NULL) {
            return;
        }
        p->tags = dcommi_max64(p->tags, plan->ntags);
        p->counters = dcommi_max64(p->counters, plan->ncounters);
        p->slots = dcommi_max64(p->slots, plan->nslots);
        bytes = 0;
        begin = index < 0 ? 0 : dcommi_hier_shard(h, cut, cut->length[kind], index, &bytes);
        if (bytes != longest) {
            dcommi_free(plan);
            sub.count = (size_t)bytes / dcomm_dtype_size(sub.dtype);
            plan = bytes > 0 ? dcommi_hier_sub(h, &sub, false, longest, bytes, bytes) : NULL;
        }
        if (plan == NULL) {
            continue;
        }
        p->plan[kind] = dcommi_build_adopt(h->b, plan);
        p->in[kind] = dcommi_span(from, begin, bytes);
        p->out[kind] = dcommi_span(DCOMM_SPACE_OUT, begin, bytes);
    }
}

/* A phase within the group, on whole chunks. The v-collectives give the shards to the first ranks
 * of the group. in: where the chunk lies before; OUT means in place. */
static void dcommi_hier_within(dcommi_hier *h, const dcommi_hier_cut *cut, dcomm_coll coll,
                               int root, dcomm_space in, int64_t group, dcommi_hier_phase *p)
{
    bool shards = coll == DCOMM_COLL_REDUCE_SCATTERV || coll == DCOMM_COLL_ALLGATHERV;
    size_t element = dcomm_dtype_size(h->s->dtype);
    size_t *counts = dcommi_calloc(2 * (size_t)h->size, sizeof *counts);
    if (counts == NULL) {
        dcommi_build_error(h->b, DCOMM_ERR_NO_MEMORY);
        return;
    }
    p->group = group;
    for (int kind = 0; kind < 2; kind++) {
        int64_t length = cut->length[kind], at = 0, bytes;
        dcommi_shape sub = dcommi_hier_shape(h, coll, h->index, h->size, false);
        sub.root = root;
        sub.in_place = in == DCOMM_SPACE_OUT;
        sub.count = (size_t)length / element;
        if (shards) {
            for (int i = 0; i < h->size; i++) {
                bytes = 0;
                at = i < cut->shards ? dcommi_hier_shard(h, cut, length, i, &bytes) : length;
                counts[i] = (size_t)bytes / element;
                counts[h->size + i] = (size_t)at / element;
            }
            sub.counts = counts;
            sub.displs = counts + h->size;
        }
        int64_t out = length;
        p->in[kind] = dcommi_hier_whole(cut, in, kind);
        p->out[kind] = dcommi_hier_whole(cut, DCOMM_SPACE_OUT, kind);
        if (coll == DCOMM_COLL_REDUCE_SCATTERV && in == DCOMM_SPACE_IN) {
            at = dcommi_shape_bytes(&sub, counts[h->size + h->index]);
            out = dcommi_shape_bytes(&sub, counts[h->index]);
            p->out[kind] = dcommi_span(DCOMM_SPACE_OUT, at, out);
        }
        dcomm_plan *plan = dcommi_hier_sub(h, &sub, true, length, length, out);
        p->plan[kind] = plan != NULL ? dcommi_build_adopt(h->b, plan) : NULL;
    }
    dcommi_free(counts);
}

/* ---- all-reduce ---- */

static void dcommi_hier_owners(const dcommi_hier *h, int index, int64_t *owners)
{
    for (int k = 0; k < h->ngroups; k++) {
        owners[k] = dcommi_hier_rank(h, k, index >= 0 ? index : 0);
    }
}

static dcomm_status dcommi_hier_allreduce_of(dcommi_hier *h, int shards)
{
    dcommi_hier_cut cut = dcommi_hier_cut_make(h, shards);
    dcommi_hier_phase phase[DCOMMI_HIER_PHASES];
    memset(phase, 0, sizeof phase);
    dcomm_space in = dcommi_input_of(h->s, 0).space;
    int index = h->index < cut.shards ? h->index : -1;
    int64_t *owners = dcommi_calloc((size_t)h->ngroups, sizeof *owners);
    if (owners == NULL) {
        return DCOMM_ERR_NO_MEMORY;
    }
    dcommi_hier_owners(h, index, owners);
    dcommi_hier_across(h, &cut, DCOMM_COLL_ALLREDUCE, owners, index, 0, DCOMM_SPACE_OUT,
                       &phase[DCOMMI_HIER_ACROSS]);
    dcommi_free(owners);
    dcommi_hier_phase *before = &phase[DCOMMI_HIER_BEFORE];
    if (h->size > 1) {
        bool one = cut.shards == 1;
        int64_t group = dcommi_hier_local_table(h);
        dcommi_hier_within(h, &cut, one ? DCOMM_COLL_REDUCE : DCOMM_COLL_REDUCE_SCATTERV, 0, in,
                           group, before);
        dcommi_hier_within(h, &cut, one ? DCOMM_COLL_BROADCAST : DCOMM_COLL_ALLGATHERV, 0,
                           DCOMM_SPACE_OUT, group, &phase[DCOMMI_HIER_AFTER]);
    } else if (!h->s->in_place) {
        before->copies = true;
        for (int kind = 0; kind < 2; kind++) {
            before->in[kind] = dcommi_hier_whole(&cut, in, kind);
            before->out[kind] = dcommi_hier_whole(&cut, DCOMM_SPACE_OUT, kind);
        }
    }
    return dcommi_hier_pipeline(h, phase, &cut);
}

/* ---- broadcast ---- */

static dcomm_status dcommi_hier_broadcast_of(dcommi_hier *h, int shards)
{
    const dcommi_shape *s = h->s;
    dcommi_hier_cut cut = dcommi_hier_cut_make(h, shards);
    dcommi_hier_phase phase[DCOMMI_HIER_PHASES];
    memset(phase, 0, sizeof phase);
    int home = 0, place = 0; /* the root's group, and its place there */
    for (int k = 0; k < h->ngroups; k++) {
        for (int i = 0; i < dcommi_hier_size(h, k); i++) {
            if (dcommi_hier_rank(h, k, i) == s->root) {
                home = k;
                place = i;
            }
        }
    }
    int64_t *owners = dcommi_calloc((size_t)h->ngroups, sizeof *owners);
    if (owners == NULL) {
        return DCOMM_ERR_NO_MEMORY;
    }
    bool one = cut.shards == 1, at_home = h->group == home;
    int index = h->index < cut.shards ? h->index : -1;
    int leader = at_home ? place : 0;
    dcomm_space in = s->rank == s->root ? dcommi_input_of(s, 0).space : DCOMM_SPACE_OUT;
    dcommi_hier_owners(h, index, owners);
    if (one) { /* the root leads its group */
        owners[home] = s->root;
        index = h->index == leader ? 0 : -1;
    }
    dcommi_hier_across(h, &cut, DCOMM_COLL_BROADCAST, owners, index, home,
                       one ? in : DCOMM_SPACE_OUT, &phase[DCOMMI_HIER_ACROSS]);
    dcommi_free(owners);
    if (h->size > 1) {
        int64_t group = dcommi_hier_local_table(h);
        if (one) {
            dcommi_hier_within(h, &cut, DCOMM_COLL_BROADCAST, leader, DCOMM_SPACE_OUT, group,
                               &phase[DCOMMI_HIER_AFTER]);
        } else if (at_home) {
            dcommi_hier_within(h, &cut, DCOMM_COLL_BROADCAST, place, in, group,
                               &phase[DCOMMI_HIER_BEFORE]);
        } else {
            dcommi_hier_within(h, &cut, DCOMM_COLL_ALLGATHERV, 0, DCOMM_SPACE_OUT, group,
                               &phase[DCOMMI_HIER_AFTER]);
        }
    }
    return dcommi_hier_pipeline(h, phase, &cut);
}

/* ---- what is in the table ---- */

typedef dcomm_status (*dcommi_hier_fn)(dcommi_hier *h, int shards);

static dcomm_status dcommi_hier_run(const dcommi_shape *s, dcommi_builder *b, dcommi_hier_fn make,
                                    bool leader)
{
    dcommi_hier h;
    bool flat;
    dcomm_status status = dcommi_hier_open(s, b, &h, &flat);
    if (status == DCOMM_OK) {
        status = flat ? dcommi_hier_flat(&h) : make(&h, leader ? 1 : h.smallest);
    }
    dcommi_hier_close(&h);
    return status;
}

static dcomm_status dcommi_hier_allreduce(const dcommi_shape *s, dcommi_builder *b)
{
    return dcommi_hier_run(s, b, dcommi_hier_allreduce_of, false);
}

static dcomm_status dcommi_hier_allreduce_leader(const dcommi_shape *s, dcommi_builder *b)
{
    return dcommi_hier_run(s, b, dcommi_hier_allreduce_of, true);
}

static dcomm_status dcommi_hier_broadcast(const dcommi_shape *s, dcommi_builder *b)
{
    return dcommi_hier_run(s, b, dcommi_hier_broadcast_of, false);
}

static dcomm_status dcommi_hier_broadcast_leader(const dcommi_shape *s, dcommi_builder *b)
{
    return dcommi_hier_run(s, b, dcommi_hier_broadcast_of, true);
}

static dcomm_status dcommi_hier_reduce_scatter(const dcommi_shape *s, dcommi_builder *b)
{
    return dcommi_hier_run(s, b, dcommi_hier_reduce_scatter_of, false);
}

static dcomm_status dcommi_hier_allgather(const dcommi_shape *s, dcommi_builder *b)
{
    return dcommi_hier_run(s, b, dcommi_hier_allgather_of, false);
}

static dcomm_status dcommi_hier_alltoall(const dcommi_shape *s, dcommi_builder *b)
{
    return dcommi_hier_run(s, b, dcommi_hier_alltoall_of, false);
}

/* The hierarchical algorithm of any operation that a group may divide again. */
static dcomm_status dcommi_hier_make(const dcommi_shape *s, dcommi_builder *b)
{
    switch (s->coll) {
    case DCOMM_COLL_REDUCE_SCATTERV:
        return dcommi_hier_reduce_scatter(s, b);
    case DCOMM_COLL_ALLGATHERV:
        return dcommi_hier_allgather(s, b);
    case DCOMM_COLL_BROADCAST:
        return dcommi_hier_broadcast(s, b);
    case DCOMM_COLL_ALLTOALL:
        return dcommi_hier_alltoall(s, b);
    default:
        return dcommi_fail(DCOMM_ERR_INTERNAL, "no hierarchical form of operation %d",
                           (int)s->coll);
    }
}

#endif
