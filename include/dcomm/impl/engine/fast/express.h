/* express.h - running a plan's script (script.h) in the caller's thread, straight at the transport:
 * no run, no moves, no table. It is the same plan with the same messages; only the way through the
 * engine is shorter. Whatever is out of the ordinary - a message that is not the one waited for, a
 * peer that lets us wait, a poisoned communicator - is left to the engine, which takes the plan
 * over where it stands. */
#ifndef DCOMMI_EXPRESS_H
#define DCOMMI_EXPRESS_H

#include "../../base/pause.h"
#include "../arrivals.h"
#include "script.h"

/* Every so many operations go through the engine, which also looks after everything else. */
#define DCOMMI_EXPRESS_TURN 64
/* Polls of a wait before the first pause: a pause is half as long as a message between two threads
 * of one core takes. */
#define DCOMMI_EXPRESS_KEEN 64
/* Longer messages are not there so soon. */
#define DCOMMI_EXPRESS_PAUSED 2048
/* Where boards are expected to be written to, one poll in so many looks into the fifo, too. */
#define DCOMMI_EXPRESS_FIFO 8

typedef struct dcommi_express {
    dcomm_comm *comm;
    dcommi_cached *cached;
    uint64_t seq;
    dcommi_signature signature;
    uint8_t *base[DCOMM_SPACE_SCRATCH + 1];
    dcommi_header header;
    bool posted; /* what was looked at last is on a board */
    uint64_t counters[DCOMMI_SCRIPT_COUNTERS];
} dcommi_express;

/* Give a collective its number, and its signature what came before. With comm->lock or the token.
 */
static inline uint64_t dcommi_number(dcomm_comm *comm, dcommi_signature *s)
{
    const uint32_t chain = comm->chain;
    comm->chain = (chain ^ s->hash) * 0x9e3779b1u + 1;
    s->chain = chain;
    s->hash ^= chain;
    return comm->next_seq++;
}

/* Whether the next operation can run by a script now. With the token and comm->lock. */
static inline bool dcommi_express_able(const dcomm_comm *comm, const dcommi_script *script)
{
    const dcomm_context *context = comm->context;
    uint64_t seq = comm->next_seq;
    if (context->active != 0 || seq % DCOMMI_EXPRESS_TURN == DCOMMI_EXPRESS_TURN - 1 ||
        comm->entered != seq || comm->started != seq || comm->early_count != 0 ||
        atomic_load_explicit(&context->submitted, memory_order_relaxed) != NULL ||
        atomic_load_explicit(&context->aborts, memory_order_relaxed) != 0 ||
        atomic_load_explicit(&comm->poisoned, memory_order_relaxed) != 0) {
        return false;
    }
    for (uint32_t i = 0; i < script->npeers; i++) {
        const dcommi_member *m = &comm->members[script->peers[i]];
        if (seq >= m->done + DCOMMI_WINDOW || context->peers[m->peer].lost) {
            return false;
        }
    }
    return true;
}

static inline uint8_t *dcommi_express_at(const dcommi_express *e, dcommi_script_piece piece)
{
    return e->base[piece.space] + piece.offset;
}

static inline size_t dcommi_express_header_len(bool data, size_t len)
{
    return data && len <= DCOMMI_SHORT_MAX ? DCOMMI_HEADER_SHORT : sizeof(dcommi_header);
}

/* Ops that are done by it; 0: none can be now. */
static inline uint32_t dcommi_express_send(dcommi_express *e, const dcommi_script_op *op,
                                           const void *data, size_t len)
{
    dcomm_comm *comm = e->comm;
    size_t header_len = dcommi_express_header_len(e->header.type == DCOMMI_MSG_DATA, len);
    if (op->alike > 0 && dcommi_board_post(comm, &e->header, header_len, data, len)) {
        return op->alike;
    }
    dcommi_member *m = &comm->members[op->rank];
    dcommi_transport *t = comm->context->peers[m->peer].transport;
    m->told = comm->done;
    m->addressed = true;
    return t->call->send(t, m->peer, &e->header, header_len, data, len, NULL) >= 0;
}

/* The message of a rank that was looked at last is done with. */
static inline void dcommi_express_pass(const dcommi_express *e, dcommi_member *m)
{
    dcommi_transport *t = e->comm->context->peers[m->peer].transport;
    if (e->posted) {
        dcommi_board_pass(m);
    } else {
        t->call->pass(t, m->peer);
    }
}

/* A rank has completed so many collectives; what it has sent earlier may be read later. */
static inline void dcommi_express_heard(dcommi_member *m, uint32_t done)
{
    uint32_t more = done - (uint32_t)m->done;
    m->heard = true;
    m->done += more < UINT32_MAX / 2 ? more : 0;
}

/* Whether a message is of a later operation: what lies in the fifo may be of this one. */
static inline bool dcommi_express_ahead(const dcommi_express *e, const dcommi_arrival *arrival)
{
    uint64_t seq = 0;
    memcpy(&seq, (const char *)arrival->header + offsetof(dcommi_header, seq), sizeof seq);
    return seq > e->seq;
}

/* What the next message of a rank is: 1 as expected (and left where it is), 0 none yet or dealt
 * with, -1 something for the engine. `all`: also in the fifo of a rank with a board. */
static inline int dcommi_express_look(dcommi_express *e, int rank, const dcommi_script_op *op,
                                      bool all, dcommi_arrival *arrival)
{
    dcomm_comm *comm = e->comm;
    dcommi_member *m = &comm->members[rank];
    dcommi_transport *t = comm->context->peers[m->peer].transport;
    dcommi_header h;
    const size_t len = op != NULL ? op->len : 0;
    const size_t expected = dcommi_express_header_len(op != NULL, len) + len;
    e->posted = dcommi_board_peek(m, arrival) && !dcommi_express_ahead(e, arrival);
    if (!e->posted &&
        ((m->board != NULL && !all) || !t->call->peek(t, m->peer, expected, arrival))) {
        return 0;
    }
    if (arrival->header_len == sizeof h) {
        memcpy(&h, arrival->header, sizeof h);
    } else if (arrival->header_len == DCOMMI_HEADER_SHORT) {
        memcpy(&h, arrival->header, DCOMMI_HEADER_SHORT);
        h.a = arrival->len;
        h.b = 0;
        if (h.type != DCOMMI_MSG_DATA) {
            return -1;
        }
    } else {
        return -1;
    }
    if (h.comm != comm->id || h.src != (uint32_t)rank || h.stream != DCOMMI_STREAM_COLL) {
        return -1;
    }
    if (op == NULL && h.seq > e->seq &&
        (h.type == DCOMMI_MSG_DATA || h.type == DCOMMI_MSG_SIGNAL)) {
        return 0; /* it is ahead: all that it signals us now has come */
    }
    bool ours = h.seq == e->seq && h.signature == e->header.signature && h.stage == 0;
    if (ours && h.type == DCOMMI_MSG_DATA && op != NULL && h.tag == op->tag && h.a == op->len &&
        arrival->len == op->len) {
        dcommi_express_heard(m, h.done);
        return 1;
    }
    if (ours && h.type == DCOMMI_MSG_SIGNAL && h.slot < e->cached->plan->ncounters) {
        dcommi_express_heard(m, h.done);
        e->counters[h.slot] += h.a;
        dcommi_express_pass(e, m);
        return 0;
    }
    if (h.type == DCOMMI_MSG_CREDIT && h.b == 0 && arrival->len == 0) {
        dcommi_learn_done(comm, &h);
        dcommi_express_pass(e, m);
        return 0;
    }
    return -1;
}

static inline void dcommi_express_copy(const dcommi_express *e, const dcommi_script_op *op,
                                       const void *src)
{
    uint8_t *dst = dcommi_express_at(e, op->dst);
    if (DCOMMI_UNLIKELY(op->past)) {
        dcommi_result_copy(e->comm->context, dst, src, op->len, true);
    } else if (dst != src) {
        memcpy(dst, src, op->len);
    }
}

/* Sources of a fold or copy; `message` stands for what is being received. */
static inline dcomm_status dcommi_express_fold(const dcommi_express *e, const dcommi_script_op *op,
                                               const void *message)
{
    const dcommi_script *script = e->cached->script;
    const dcomm_plan *plan = e->cached->plan;
    const unsigned char *src[DCOMMI_FOLD_SOURCES];
    if (op->len == 0) {
        return DCOMM_OK;
    }
    uint8_t *dst = dcommi_express_at(e, op->dst);
    for (uint32_t i = 0; i < op->npieces; i++) {
        dcommi_script_piece piece = script->pieces[op->pieces + i];
        src[i] = piece.space == DCOMM_SPACE_MSG ? message : dcommi_express_at(e, piece);
    }
    if (op->kind == DCOMM_STEP_COPY) {
        dcommi_express_copy(e, op, src[0]);
        return DCOMM_OK;
    }
    if (DCOMMI_LIKELY(script->fold != NULL && op->npieces > 1)) {
        script->fold(dst, NULL, src, op->npieces, op->len, 0, 0);
        return DCOMM_OK;
    }
    return dcommi_host_reduce(dst, (const void *const *)src, op->npieces,
                              op->len / dcomm_dtype_size((dcomm_dtype)plan->dtype),
                              (dcomm_dtype)plan->dtype, (dcomm_op)plan->op,
                              op->final && plan->op == DCOMM_AVG ? plan->nranks : 1);
}

/* Wait for the message of a receive, or for signals. False: the engine must go on. */
static inline bool dcommi_express_await(dcommi_express *e, const dcommi_script_op *op,
                                        dcommi_arrival *arrival)
{
    const dcommi_script *script = e->cached->script;
    const dcomm_context *context = e->comm->context;
    bool message = op->kind != DCOMM_STEP_WAIT;
    unsigned polls = context->spin_limit, yields = context->script_yields;
    const unsigned pause = polls > DCOMMI_EXPRESS_KEEN ? polls - DCOMMI_EXPRESS_KEEN : 0;
    for (unsigned i = op->len <= DCOMMI_EXPRESS_PAUSED ? context->script_pauses : 0; i > 0; i--) {
        dcommi_relax();
    }
    for (;;) {
        bool all = !script->posts || (context->spin_limit - polls) % DCOMMI_EXPRESS_FIFO == 0;
        if (message) {
            int found = dcommi_express_look(e, op->rank, op, all, arrival);
            if (found != 0) {
                return found > 0;
            }
        } else {
            if (e->counters[op->slot] >= op->value) {
                return true;
            }
            for (uint32_t i = 0; i < script->npeers; i++) {
                if (dcommi_express_look(e, script->peers[i], NULL, all, arrival) != 0) {
                    return false;
                }
            }
        }
        if (DCOMMI_LIKELY(--polls > 0)) {
            if (polls < pause) {
                dcommi_relax();
            }
        } else if (yields > 0) {
            yields--;
            polls = context->spin_limit;
            sched_yield();
            if (atomic_load_explicit(&context->aborts, memory_order_relaxed) != 0) {
                return false;
            }
        } else {
            return false;
        }
    }
}

/* Run ops until the end, or the first that cannot be done now: its index. */
static inline uint32_t dcommi_express_ops(dcommi_express *e, dcomm_status *status)
{
    const dcommi_script *script = e->cached->script;
    dcomm_comm *comm = e->comm;
    dcommi_arrival arrival;
    for (uint32_t k = 0, sent = 1; k < script->nops; k += sent) {
        const dcommi_script_op *op = &script->ops[k];
        sent = 1;
        switch (op->kind) {
        case DCOMM_STEP_SEND:
            e->header.type = DCOMMI_MSG_DATA;
            e->header.slot = 0;
            e->header.tag = op->tag;
            e->header.a = op->len;
            sent = dcommi_express_send(e, op, dcommi_express_at(e, op->dst), op->len);
            comm->stats.messages_sent += sent;
            comm->stats.messages_posted += sent > 1 ? sent : 0;
            comm->stats.bytes_sent += sent * (uint64_t)op->len;
            break;
        case DCOMM_STEP_SIGNAL:
            e->header.type = DCOMMI_MSG_SIGNAL;
            e->header.slot = op->slot;
            e->header.tag = 0;
            e->header.a = op->value;
            sent = dcommi_express_send(e, op, NULL, 0);
            break;
        case DCOMM_STEP_RECV:
        case DCOMM_STEP_RECV_REDUCE: {
            if (!dcommi_express_await(e, op, &arrival)) {
                return k;
            }
            if (op->kind == DCOMM_STEP_RECV_REDUCE) {
                *status = dcommi_express_fold(e, op, arrival.data);
            } else if (op->len > 0) {
                dcommi_express_copy(e, op, arrival.data);
            }
            dcommi_express_pass(e, &comm->members[op->rank]);
            break;
        }
        case DCOMM_STEP_WAIT:
            if (e->counters[op->slot] < op->value && !dcommi_express_await(e, op, &arrival)) {
                return k;
            }
            break;
        default:
            *status = dcommi_express_fold(e, op, NULL);
            break;
        }
        if (DCOMMI_UNLIKELY(*status < 0)) {
            dcommi_poison(comm, *status, -1, dcommi_message);
            return k;
        }
        if (DCOMMI_UNLIKELY(sent == 0)) {
            return k;
        }
    }
    return script->nops;
}

/* ---- leaving it to the engine ---- */

/* The receive of an op that the plan has already posted. */
static void dcommi_express_post(const dcommi_express *e, dcommi_run *run, dcommi_lane *lane,
                                const dcommi_script_op *op)
{
    dcommi_move *move = dcommi_move_new(run, lane);
    if (move == NULL) {
        dcommi_poison(e->comm, DCOMM_ERR_NO_MEMORY, -1, dcommi_message);
        return;
    }
    move->async = true;
    move->final = op->final;
    move->past = op->past;
    move->kind = DCOMMI_MOVE_RECV;
    move->buf = move->dst = dcommi_express_at(e, op->dst);
    move->len = op->len;
    if (op->kind == DCOMM_STEP_RECV_REDUCE) {
        move->kind = DCOMMI_MOVE_FOLD;
        move->buf = dcommi_express_at(e, op->stage);
        move->nsrc = (uint8_t)op->npieces;
        for (uint32_t i = 0; i < op->npieces; i++) {
            dcommi_script_piece piece = e->cached->script->pieces[op->pieces + i];
            if (piece.space == DCOMM_SPACE_MSG) {
                move->msg_at = (uint8_t)i;
            } else {
                move->src[i] = dcommi_express_at(e, piece);
            }
        }
    }
    lane->pending++;
    dcommi_recv_post(move, op->rank, op->tag);
}

/* Put a run that has just been started to where op k would come next. With the token. */
static void dcommi_express_resume(dcommi_express *e, dcommi_run *run, uint32_t k)
{
    const dcommi_script *script = e->cached->script;
    const dcommi_script_op *at = &script->ops[k];
    dcommi_lane *lane = &run->root.lanes[0];
    lane->pc = at->pc;
    lane->depth = at->depth;
    memcpy(lane->index, at->index, sizeof lane->index);
    memcpy(lane->trips, at->trips, sizeof lane->trips);
    if (run->root.space_len[DCOMM_SPACE_SCRATCH] > 0) {
        memcpy(run->root.space[DCOMM_SPACE_SCRATCH], e->base[DCOMM_SPACE_SCRATCH],
               (size_t)run->root.space_len[DCOMM_SPACE_SCRATCH]);
        e->base[DCOMM_SPACE_SCRATCH] = run->root.space[DCOMM_SPACE_SCRATCH];
    }
    for (uint32_t i = 0; i < run->plan->ncounters; i++) {
        run->counters[i] += e->counters[i];
    }
    for (uint32_t i = k; i < script->nops && run->active; i++) {
        if (script->ops[i].async && script->ops[i].order < at->resume_order) {
            dcommi_express_post(e, run, lane, &script->ops[i]);
        }
    }
}

/* ---- the whole operation ---- */

/* All that a script needs beyond what `able` has checked; NULL base: no memory. With comm->lock. */
static inline bool dcommi_express_begin(dcommi_express *e, dcomm_comm *comm, dcommi_cached *cached,
                                        const void *in, void *out)
{
    if (DCOMMI_UNLIKELY(comm->scratch == NULL && cached->plan->scratch_bytes > 0)) {
        comm->scratch = dcommi_alloc_raw(DCOMMI_SCRIPT_SCRATCH);
        if (comm->scratch == NULL) {
            return false;
        }
    }
    dcommi_board_attach(comm);
    e->comm = comm;
    e->cached = cached;
    e->signature = cached->signature;
    e->seq = dcommi_number(comm, &e->signature);
    e->base[DCOMM_SPACE_IN] = (uint8_t *)(uintptr_t)in;
    e->base[DCOMM_SPACE_OUT] = out;
    e->base[DCOMM_SPACE_SCRATCH] = comm->scratch;
    e->header = (dcommi_header){.stream = DCOMMI_STREAM_COLL,
                                .signature = e->signature.hash,
                                .src = (uint32_t)comm->rank,
                                .comm = comm->id,
                                .seq = e->seq,
                                .done = (uint32_t)comm->done};
    for (uint32_t i = 0; i < cached->plan->ncounters; i++) {
        e->counters[i] = 0;
    }
    atomic_store_explicit(&comm->running, cached, memory_order_release);
    return true;
}

/* Run it. script->nops: complete; else the engine goes on at the op returned. With the token. */
static inline uint32_t dcommi_express_run(dcommi_express *e)
{
    dcomm_comm *comm = e->comm;
    dcomm_status status = DCOMM_OK;
    uint32_t k = dcommi_express_ops(e, &status);
    if (DCOMMI_LIKELY(k == e->cached->script->nops)) {
        dcommi_history *entry = &comm->history[e->seq % DCOMMI_HISTORY];
        entry->seq = e->seq;
        entry->known = true;
        entry->signature = e->signature;
        comm->started++;
        comm->entered = e->seq + 1;
        comm->stats.operations++;
        dcommi_advance_done(comm);
    }
    return k;
}

#endif
