/* script.h - a short plan written out: the expressions of its one lane are evaluated and its loops
 * unrolled, once, when the plan is cached. fast.h runs the script without the engine's machinery.
 * Only plans whose steps are all known beforehand and complete by themselves have a script. */
#ifndef DCOMMI_SCRIPT_H
#define DCOMMI_SCRIPT_H

#include "../../device/host.h"
#include "../engine.h"

#define DCOMMI_SCRIPT_OPS 64
#define DCOMMI_SCRIPT_PIECES 128
#define DCOMMI_SCRIPT_PEERS 15
#define DCOMMI_SCRIPT_COUNTERS 16
#define DCOMMI_SCRIPT_SCRATCH 131072
#define DCOMMI_SCRIPT_BYTES 32768  /* bytes: longest message */
#define DCOMMI_SCRIPT_ONE_WAY 8192 /* bytes: longest where a peer sends nothing back */
/* Bytes to one peer in all, if some message is longer than DCOMMI_SCRIPT_ONE_WAY: data without
 * room in the peer's fifo would have to wait. */
#define DCOMMI_SCRIPT_SENT 65536
/* Bytes of a fold that the next step sends or copies. For a longer one, the engine stores the
 * result in both places at once. */
#define DCOMMI_SCRIPT_FORWARD 8192

typedef struct dcommi_script_piece {
    uint8_t space; /* DCOMM_SPACE_MSG: the message being received */
    uint32_t offset;
} dcommi_script_piece;

typedef struct dcommi_script_op {
    uint8_t kind; /* dcomm_step_kind: SEND, RECV, RECV_REDUCE, COPY, REDUCE, SIGNAL, WAIT */
    bool final, async;
    bool past;     /* copy or receive by nontemporal stores */
    uint8_t alike; /* SEND, SIGNAL: ops from here on that tell all other ranks the same; else 0 */
    uint16_t pieces, npieces; /* sources */
    int32_t rank;
    uint32_t tag, len;
    dcommi_script_piece dst, stage;
    uint16_t slot; /* SIGNAL, WAIT */
    uint64_t value;
    /* The step at which the engine takes over if this op cannot be done yet. For an asynchronous
     * op, it is the fence behind that. */
    uint32_t order, resume_order;
    dcommi_position at;
} dcommi_script_op;

struct dcommi_script {
    uint32_t nops, npeers;
    int32_t peers[DCOMMI_SCRIPT_PEERS]; /* ranks */
    bool broadcasts;                    /* some ops tell all other ranks the same */
    dcommi_fold_fn fold;                /* NULL: use dcommi_host_reduce */
    const dcommi_script_piece *pieces;
    dcommi_script_op ops[];
};

/* ---- writing one ---- */

typedef struct dcommi_scribe {
    const dcomm_plan *plan;
    uint32_t nops, npieces, npeers;
    int32_t peers[DCOMMI_SCRIPT_PEERS];
    uint32_t sent[DCOMMI_SCRIPT_PEERS], received[DCOMMI_SCRIPT_PEERS]; /* bytes to and from each */
    uint32_t longest;                                                  /* longest message */
    dcommi_script_piece pieces[DCOMMI_SCRIPT_PIECES];
    dcommi_script_op ops[DCOMMI_SCRIPT_OPS];
    uint32_t order;
    dcommi_scope scope;
    dcommi_cursor cursor;
    uint32_t ndeferred; /* asynchronous receives, held until a fence */
    dcommi_script_op held[DCOMMI_SCRIPT_OPS];
} dcommi_scribe;

/* Evaluate piece `r` of an operand. Return false unless it lies in memory of this rank. */
static bool dcommi_scribe_operand(const dcommi_scribe *s, const dcomm_operand *o, uint32_t r,
                                  dcommi_script_piece *piece, uint32_t *len)
{
    const int64_t limit[] = {[DCOMM_SPACE_IN] = s->plan->in_bytes,
                             [DCOMM_SPACE_OUT] = s->plan->out_bytes,
                             [DCOMM_SPACE_SCRATCH] = s->plan->scratch_bytes};
    dcommi_interval x;
    if (o->space < DCOMM_SPACE_IN || o->space > DCOMM_SPACE_SCRATCH ||
        dcommi_cursor_piece(&s->cursor, o, r, &x) < 0 || x.offset < 0 ||
        x.offset > limit[o->space] - x.length || /* empty ones, too: they become addresses */
        x.offset > INT32_MAX || x.length > DCOMMI_SCRIPT_BYTES) {
        return false;
    }
    *piece = (dcommi_script_piece){.space = o->space, .offset = (uint32_t)x.offset};
    *len = (uint32_t)x.length;
    return true;
}

/* Evaluate where a step stores, and how. */
static bool dcommi_scribe_target(const dcommi_scribe *s, const dcomm_step *step,
                                 dcommi_script_op *op)
{
    op->past = dcommi_result_past(step, s->plan->out_bytes);
    return dcommi_scribe_operand(s, &step->dst, 0, &op->dst, &op->len) &&
           ((step->flags & DCOMM_STEP_FORWARD) == 0 || op->len <= DCOMMI_SCRIPT_FORWARD);
}

static bool dcommi_scribe_peer(dcommi_scribe *s, const dcomm_comm *comm, int rank)
{
    if (rank == s->plan->rank ||
        (comm != NULL && !comm->context->peers[comm->members[rank].peer].same_host)) {
        return false;
    }
    for (uint32_t i = 0; i < s->npeers; i++) {
        if (s->peers[i] == rank) {
            return true;
        }
    }
    if (s->npeers == DCOMMI_SCRIPT_PEERS) {
        return false;
    }
    s->peers[s->npeers++] = rank;
    return true;
}

/* Count a message to or from a rank that is in `peers`; `bytes`: `sent` or `received`. */
static void dcommi_scribe_message(dcommi_scribe *s, int rank, uint32_t *bytes, uint32_t len)
{
    uint32_t i = 0;
    while (s->peers[i] != rank) {
        i++;
    }
    bytes[i] += len;
    s->longest = len > s->longest ? len : s->longest;
}

/* Return true if all messages find room in the fifos, however many such calls come in a row. With
 * long messages, each pair of ranks must exchange them, so that no rank gets ahead of another. */
static bool dcommi_scribe_fits(const dcommi_scribe *s)
{
    for (uint32_t i = 0; i < s->npeers && s->longest > DCOMMI_SCRIPT_ONE_WAY; i++) {
        if (s->sent[i] > DCOMMI_SCRIPT_SENT || s->sent[i] == 0 || s->received[i] == 0) {
            return false;
        }
    }
    return true;
}

/* Add an op for the current step. NULL: there are too many. */
static dcommi_script_op *dcommi_scribe_op(dcommi_scribe *s, const dcomm_step *step)
{
    if (s->nops + s->ndeferred >= DCOMMI_SCRIPT_OPS) {
        return NULL;
    }
    bool defer = (step->flags & DCOMM_STEP_ASYNC) && step->kind != DCOMM_STEP_SEND;
    dcommi_script_op *op = defer ? &s->held[s->ndeferred++] : &s->ops[s->nops++];
    memset(op, 0, sizeof *op);
    op->kind = (uint8_t)step->kind;
    op->final = step->flags & DCOMM_STEP_FINAL;
    op->async = defer;
    op->order = op->resume_order = s->order++;
    op->at = s->cursor.at;
    return op;
}

/* Add the ops that were put off until a fence or the end of the lane. */
static void dcommi_scribe_fence(dcommi_scribe *s)
{
    uint32_t order = s->order++;
    for (uint32_t i = 0; i < s->ndeferred; i++) {
        dcommi_script_op *op = &s->ops[s->nops++];
        *op = s->held[i];
        op->resume_order = order;
        op->at = s->cursor.at;
    }
    s->ndeferred = 0;
}

static bool dcommi_scribe_sources(dcommi_scribe *s, const dcomm_step *step, dcommi_script_op *op)
{
    op->pieces = (uint16_t)s->npieces;
    for (uint32_t i = 0; i < step->nsrc; i++) {
        const dcomm_operand *o = &s->plan->operands[step->src + i];
        uint32_t len = op->len;
        for (uint32_t r = 0; r < dcommi_operand_pieces(o); r++) {
            if (s->npieces == DCOMMI_SCRIPT_PIECES) {
                return false;
            }
            dcommi_script_piece *piece = &s->pieces[s->npieces++];
            if (o->space == DCOMM_SPACE_MSG && step->kind == DCOMM_STEP_RECV_REDUCE) {
                *piece = (dcommi_script_piece){.space = DCOMM_SPACE_MSG};
            } else if (!dcommi_scribe_operand(s, o, r, piece, &len) || len != op->len) {
                return false;
            }
        }
    }
    op->npieces = (uint16_t)(s->npieces - op->pieces);
    return op->npieces <= DCOMMI_FOLD_SOURCES;
}

static bool dcommi_scribe_tell(dcommi_scribe *s, const dcomm_comm *comm, const dcomm_step *step)
{
    dcommi_targets to;
    int64_t value;
    if (dcommi_cursor_targets(&s->cursor, step, &to) < 0 ||
        dcommi_cursor_value(&s->cursor, &step->value, &value) < 0) {
        return false;
    }
    for (int64_t r = to.first; r <= to.last; r++) {
        if (r == to.but) {
            continue;
        }
        dcommi_script_op *op = dcommi_scribe_op(s, step);
        if (op == NULL || !dcommi_scribe_peer(s, comm, (int)r)) {
            return false;
        }
        op->rank = (int32_t)r;
        op->slot = step->slot;
        op->value = (uint64_t)value;
    }
    return true;
}

static bool dcommi_scribe_step(dcommi_scribe *s, const dcomm_comm *comm, const dcomm_step *step)
{
    int64_t tag = 0, value = 0;
    int peer = 0;
    dcommi_script_op *op;
    dcommi_script_piece piece;
    uint32_t room;
    switch (step->kind) {
    case DCOMM_STEP_SEND:
        op = dcommi_scribe_op(s, step);
        if (op == NULL || dcommi_cursor_peer(&s->cursor, &step->peer, &peer) < 0 ||
            dcommi_cursor_tag(&s->cursor, step, &tag) < 0 || !dcommi_scribe_peer(s, comm, peer) ||
            !dcommi_scribe_operand(s, &s->plan->operands[step->src], 0, &piece, &op->len)) {
            return false;
        }
        op->rank = peer;
        op->tag = (uint32_t)tag;
        op->dst = piece;
        dcommi_scribe_message(s, peer, s->sent, op->len);
        return true;
    case DCOMM_STEP_RECV:
    case DCOMM_STEP_RECV_REDUCE:
        op = dcommi_scribe_op(s, step);
        if (op == NULL || dcommi_cursor_peer(&s->cursor, &step->peer, &peer) < 0 ||
            dcommi_cursor_tag(&s->cursor, step, &tag) < 0 || !dcommi_scribe_peer(s, comm, peer) ||
            !dcommi_scribe_target(s, step, op)) {
            return false;
        }
        op->rank = peer;
        op->tag = (uint32_t)tag;
        dcommi_scribe_message(s, peer, s->received, op->len);
        return step->kind == DCOMM_STEP_RECV ||
               (dcommi_scribe_operand(s, &step->stage, 0, &op->stage, &room) && room >= op->len &&
                dcommi_scribe_sources(s, step, op));
    case DCOMM_STEP_COPY:
    case DCOMM_STEP_REDUCE:
        op = dcommi_scribe_op(s, step);
        return op != NULL && !op->async && dcommi_scribe_target(s, step, op) &&
               dcommi_scribe_sources(s, step, op);
    case DCOMM_STEP_SIGNAL:
        return dcommi_scribe_tell(s, comm, step);
    case DCOMM_STEP_WAIT:
        op = dcommi_scribe_op(s, step);
        if (op == NULL || dcommi_cursor_value(&s->cursor, &step->value, &value) < 0) {
            return false;
        }
        for (int r = 0; r < s->plan->nranks; r++) { /* poll each rank that may signal */
            if (r != s->plan->rank && !dcommi_scribe_peer(s, comm, r)) {
                return false;
            }
        }
        op->slot = step->slot;
        op->value = (uint64_t)value;
        return value >= 0;
    default:
        return false;
    }
}

static bool dcommi_scribe_lane(dcommi_scribe *s, const dcomm_comm *comm)
{
    const dcomm_step *step;
    while ((step = dcommi_cursor_step(&s->cursor)) != NULL) {
        if (dcommi_cursor_turns(step)) {
            if (dcommi_cursor_turn(&s->cursor, step) < 0 ||
                (step->kind == DCOMM_STEP_END && s->order++ > 4 * DCOMMI_SCRIPT_OPS)) {
                return false;
            }
            continue;
        }
        if (step->kind == DCOMM_STEP_FENCE) {
            dcommi_scribe_fence(s);
        } else if (!dcommi_scribe_step(s, comm, step)) {
            return false;
        }
        dcommi_cursor_next(&s->cursor);
    }
    dcommi_scribe_fence(s);
    return true;
}

/* Return true if two ops tell different ranks the same. */
static bool dcommi_scribe_alike(const dcommi_script_op *a, const dcommi_script_op *b)
{
    return a->kind == b->kind && a->rank != b->rank && a->tag == b->tag && a->len == b->len &&
           a->dst.space == b->dst.space && a->dst.offset == b->dst.offset && a->slot == b->slot &&
           a->value == b->value;
}

/* Note where ops in a row tell all other ranks the same. Return true if any do. */
static bool dcommi_scribe_note_alike(dcommi_scribe *s)
{
    uint32_t others = (uint32_t)s->plan->nranks - 1;
    bool broadcasts = false;
    for (uint32_t k = 0; k + others <= s->nops; k++) {
        dcommi_script_op *op = &s->ops[k];
        bool alike = op->kind == DCOMM_STEP_SEND || op->kind == DCOMM_STEP_SIGNAL;
        for (uint32_t i = 1; i < others && alike; i++) {
            for (uint32_t j = 0; j < i && alike; j++) {
                alike = dcommi_scribe_alike(op + j, op + i);
            }
        }
        op->alike = alike ? (uint8_t)others : 0;
        broadcasts = broadcasts || alike;
    }
    return broadcasts;
}

/* Count the steps of a plan that become ops. */
static uint32_t dcommi_scribe_steps(const dcomm_plan *plan)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < plan->nsteps; i++) {
        uint8_t kind = plan->steps[i].kind;
        n += kind != DCOMM_STEP_LOOP && kind != DCOMM_STEP_END;
    }
    return n;
}

/* Write out a plan for the ranks of `comm` (NULL: for ranks of one host). *scribe_p NULL: the plan
 * cannot be written out, or there is no memory. */
static dcomm_status dcommi_scribe_plan(const dcomm_comm *comm, const dcomm_plan *plan,
                                       dcommi_scribe **scribe_p)
{
    *scribe_p = NULL;
    if (plan->nlanes != 1 || plan->nwords > 0 || plan->nslots > 0 || plan->next != NULL ||
        plan->nsubs > 0 || dcommi_scribe_steps(plan) > DCOMMI_SCRIPT_OPS ||
        plan->ncounters > DCOMMI_SCRIPT_COUNTERS || plan->scratch_bytes > DCOMMI_SCRIPT_SCRATCH) {
        return DCOMM_OK;
    }
    dcommi_scribe *s = dcommi_alloc(sizeof *s);
    if (s == NULL) {
        return DCOMM_ERR_NO_MEMORY;
    }
    s->plan = s->scope.plan = plan;
    dcommi_cursor_start(&s->cursor, &s->scope, 0);
    if (dcommi_scribe_lane(s, comm) && s->nops > 0 && dcommi_scribe_fits(s)) {
        *scribe_p = s;
    } else {
        dcommi_free(s);
    }
    return DCOMM_OK;
}

/* Set *possible if blocking calls of a plan run by a script where all ranks share a host. */
static dcomm_status dcommi_script_possible(const dcomm_plan *plan, bool *possible)
{
    dcommi_scribe *s = NULL;
    dcomm_status status = dcommi_scribe_plan(NULL, plan, &s);
    dcommi_free(s);
    *possible = s != NULL;
    return status;
}

/* Make the script of a plan for the ranks of `comm`. NULL: the plan has none, or there is no
 * memory. The engine runs the plan then. */
static dcommi_script *dcommi_script_make(const dcomm_comm *comm, const dcomm_plan *plan)
{
    dcommi_scribe *s = NULL;
    dcommi_script *script = NULL;
    if (dcommi_scribe_plan(comm, plan, &s) >= 0 && s != NULL) {
        const size_t pieces = sizeof *script + s->nops * sizeof *s->ops;
        script = dcommi_alloc(pieces + s->npieces * sizeof *s->pieces);
        if (script != NULL) {
            script->nops = s->nops;
            script->npeers = s->npeers;
            script->broadcasts = dcommi_scribe_note_alike(s);
            memcpy(script->peers, s->peers, sizeof s->peers);
            memcpy(script->ops, s->ops, s->nops * sizeof *s->ops);
            script->pieces =
                memcpy((char *)script + pieces, s->pieces, s->npieces * sizeof *s->pieces);
            if (plan->op == DCOMM_SUM && !dcommi_dtype_is_opaque((dcomm_dtype)plan->dtype)) {
                script->fold = dcommi_fold_get((dcomm_dtype)plan->dtype, DCOMMI_FOLD_SUM);
            }
        }
    }
    dcommi_free(s);
    return script;
}

#endif
