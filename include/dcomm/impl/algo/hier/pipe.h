/* pipe.h - a pipeline of phases over many chunks, with a lane for each phase. A phase of a chunk
 * waits for the phase before of the same chunk, so phases of different levels run at the same
 * time. Two such pipelines take chunks in turn, so that the network does not wait for the end of a
 * chunk.
 */
#ifndef DCOMMI_ALGO_HIER_PIPE_H
#define DCOMMI_ALGO_HIER_PIPE_H

#include "tree.h"

#define DCOMMI_HIER_PHASES (2 * DCOMMI_HIER_TIERS + 3)
#define DCOMMI_HIER_CHUNK (512 << 10) /* bytes by default; more for long buffers */
#define DCOMMI_HIER_DEFAULT_CHUNKS 16 /* chunks by default, at most */
#define DCOMMI_HIER_MAX_CHUNKS 64     /* chunks of the caller's chunk_bytes, at most */

/* The chunk that a phase works on: first + step * i[depth]; step 0: `first` only. */
typedef struct dcommi_hier_turn {
    int64_t first, step;
    int depth;
} dcommi_hier_turn;

/* The place of chunk 0, and bytes from one chunk to the next. */
typedef struct dcommi_hier_place {
    dcomm_space space;
    int64_t at, step;
} dcommi_hier_place;

/* One phase of a chunk: a call, copies of pieces, or nothing. Index 0: all chunks but the last, 1:
 * the last, which may be shorter. */
typedef struct dcommi_hier_phase {
    const dcomm_plan *plan[2];
    int64_t group;
    dcomm_operand in[2], out[2];       /* of chunk 0; copies: space and base */
    int64_t in_step, out_step;         /* bytes from one chunk to the next */
    int64_t tags, counters, slots;     /* that a call may need */
    int64_t tag, counter, slot;        /* of the call for chunk 0 */
    int64_t pieces;                    /* to copy; 0: the phase is a call or nothing */
    int64_t from[2], to[2], length[2]; /* of the pieces: first indices into the plan's table */
} dcommi_hier_phase;

typedef struct dcommi_hier_pipe {
    dcommi_hier *h;
    dcommi_hier_phase phase[DCOMMI_HIER_PHASES];
    int nphases;
    int64_t chunks;
    bool odd; /* the last chunk differs from the others */
} dcommi_hier_pipe;

static bool dcommi_hier_active(const dcommi_hier_phase *p, int kind)
{
    return p->pieces > 0 || p->plan[kind] != NULL;
}

static dcomm_operand dcommi_hier_moved(dcomm_operand o, int64_t bytes, dcommi_hier_turn turn)
{
    o.offset = dcomm_plus(o.offset, turn.first * bytes);
    o.offset = turn.step > 0 ? dcomm_plus_loop(o.offset, turn.depth, turn.step * bytes) : o.offset;
    return o;
}

static dcomm_expr dcommi_hier_number(int64_t base, int64_t per, dcommi_hier_turn turn)
{
    return turn.step > 0 ? dcomm_linear(base + per * turn.first, turn.depth, per * turn.step)
                         : dcomm_const(base + per * turn.first);
}

/* Build the copies of the pieces that the table lists. */
static void dcommi_hier_copies(dcomm_builder *b, const dcommi_hier_phase *p, int kind, int lane,
                               dcommi_hier_turn turn)
{
    int d = dcomm_build_loop(b, lane, dcomm_const(p->pieces));
    dcomm_operand in = p->in[kind], out = p->out[kind];
    in.offset = dcomm_plus(dcomm_lookup(p->from[kind], 0, d, 1, p->pieces), in.offset.add);
    out.offset = dcomm_plus(dcomm_lookup(p->to[kind], 0, d, 1, p->pieces), out.offset.add);
    in.length = out.length = dcomm_lookup(p->length[kind], 0, d, 1, p->pieces);
    dcomm_build_copy(b, lane, dcommi_hier_moved(out, p->out_step, turn),
                     dcommi_hier_moved(in, p->in_step, turn), 0);
    dcomm_build_end(b, lane);
}

/* Build one phase of some chunks. */
static void dcommi_hier_phase_step(dcommi_hier *h, const dcommi_hier_phase *p, int kind, int lane,
                                   dcommi_hier_turn turn)
{
    if (p->plan[kind] == NULL) {
        dcommi_hier_copies(h->b, p, kind, lane, turn);
        return;
    }
    dcomm_operand in = dcommi_hier_moved(p->in[kind], p->in_step, turn);
    dcomm_step *call = dcomm_build_call(h->b, lane, p->plan[kind], p->group, in,
                                        dcommi_hier_moved(p->out[kind], p->out_step, turn),
                                        dcommi_hier_number(p->tag, p->tags, turn));
    if (call != NULL) {
        call->value = dcommi_hier_number(p->counter, p->counters, turn);
        call->peer = dcommi_hier_number(p->slot, p->slots, turn);
        if (p->plan[kind]->codec != NULL) { /* the first element of the shard in the buffer */
            call->index = dcommi_coded_number(in.offset);
        }
    }
}

/* Build one of `flows` pipelines: all phases of every flows-th chunk, from `flow` on. */
static void dcommi_hier_flow(const dcommi_hier_pipe *pipe, const uint16_t *done, int flow,
                             int flows)
{
    dcomm_builder *b = pipe->h->b;
    const dcommi_hier_phase *phase = pipe->phase;
    int64_t whole = pipe->odd ? pipe->chunks - 1 : pipe->chunks;
    int64_t trips = whole > flow ? (whole - flow - 1) / flows + 1 : 0;
    bool last = pipe->odd && whole % flows == flow;
    int lane = flow;
    for (int i = 0; i < pipe->nphases; i++) {
        if ((trips == 0 || !dcommi_hier_active(&phase[i], 0)) &&
            (!last || !dcommi_hier_active(&phase[i], 1))) {
            continue;
        }
        for (int kind = 0; kind < 2; kind++) {
            if ((kind == 0 ? trips == 0 : !last) || !dcommi_hier_active(&phase[i], kind)) {
                continue;
            }
            int64_t count = kind == 0 ? trips : 1;
            int before = i - 1;
            while (before >= 0 && !dcommi_hier_active(&phase[before], kind)) {
                before--;
            }
            int d = dcomm_build_loop(b, lane, dcomm_const(count));
            if (before >= 0) {
                int64_t earlier = kind == 1 && dcommi_hier_active(&phase[before], 0) ? trips : 0;
                dcomm_build_wait(b, lane, done[before],
                                 count > 1 ? dcomm_linear(1, d, 1) : dcomm_const(earlier + 1));
            }
            dcommi_hier_turn turn = {kind == 0 ? flow : whole, count > 1 ? flows : 0, d};
            dcommi_hier_phase_step(pipe->h, &phase[i], kind, lane, turn);
            if (i + 1 < pipe->nphases) {
                dcomm_build_signal(b, lane, done[i], dcomm_const(pipe->h->s->rank), dcomm_const(1));
            }
            dcomm_build_end(b, lane);
        }
        lane += flows;
    }
}

/* Raise the tags, counters and slots of a phase's calls to those that `plan` needs. */
static void dcommi_hier_needs(dcommi_hier_phase *p, const dcomm_plan *plan)
{
    if (plan != NULL) {
        p->tags = dcommi_max64(p->tags, plan->ntags);
        p->counters = dcommi_max64(p->counters, plan->ncounters);
        p->slots = dcommi_max64(p->slots, plan->nslots);
    }
}

/* Reserve the tags, counters and slots of a phase's calls. All ranks of a call must get the same
 * numbers. So reserve for the coarsest tier first: the ranks of a group have the same tiers above
 * it. */
static void dcommi_hier_reserve(dcommi_hier_pipe *pipe, int phase)
{
    dcommi_hier_phase *p = &pipe->phase[phase];
    dcomm_builder *b = pipe->h->b;
    p->tag = dcomm_build_tags(b, pipe->chunks * p->tags);
    p->counter = b->head.ncounters;
    p->slot = b->head.nslots;
    b->head.ncounters += (uint32_t)(pipe->chunks * p->counters);
    b->head.nslots += (uint32_t)(pipe->chunks * p->slots);
}

/* Build the lanes of all phases. */
static dcomm_status dcommi_hier_pipe_end(dcommi_hier_pipe *pipe)
{
    dcomm_builder *b = pipe->h->b;
    int flows = pipe->chunks > 1 ? 2 : 1;
    if (b->status < 0) {
        return b->status;
    }
    if (b->head.nslots > DCOMM_PLAN_MAX_SLOTS) {
        return dcommi_fail(DCOMM_ERR_UNSUPPORTED,
                           "%s: %" PRIu32
                           " exposed regions, more than %d; use a larger chunk_bytes",
                           b->head.name, b->head.nslots, DCOMM_PLAN_MAX_SLOTS);
    }
    for (int flow = 0; flow < flows; flow++) {
        uint16_t done[DCOMMI_HIER_PHASES];
        for (int i = 0; i < pipe->nphases; i++) {
            done[i] = dcomm_build_counter(b);
        }
        dcommi_hier_flow(pipe, done, flow, flows);
    }
    return b->status;
}

#endif
