/* fast.h - the fast path: the caller's thread runs the script of a cached plan (script.h) on the
 * transport, without a run, moves or the match table. Plan and messages are the same; only the way
 * through the engine is shorter. Anything out of the ordinary is left to the engine, which takes
 * over where the plan stands: an unexpected message, a late peer, a poisoned communicator.
 *
 * The entry is dcommi_fast_call; its conditions are dcommi_fast_asked and dcommi_fast_able. */
#ifndef DCOMMI_FAST_H
#define DCOMMI_FAST_H

#include "../../../coll.h"
#include "../../base/forked.h"
#include "../../base/pause.h"
#include "../launch.h"
#include "script.h"

/* One operation in so many goes through the engine, which also looks after everything else. */
#define DCOMMI_FAST_TURN 64
/* Polls of a wait before the first pause. A pause takes half as long as a message between two
 * threads of one core. */
#define DCOMMI_FAST_POLLS 64
/* Bytes: a longer message takes longer than the pauses before the first poll, so skip these. */
#define DCOMMI_FAST_PAUSED 2048
/* One poll in so many is of the fifo if the message is expected in a broadcast slot. */
#define DCOMMI_FAST_FIFO 8

typedef struct dcommi_fast {
    dcomm_comm *comm;
    dcommi_cached *cached;
    uint64_t seq;
    dcommi_signature signature;
    uint8_t *base[DCOMM_SPACE_SCRATCH + 1];
    dcommi_header header;
    bool in_slot; /* the last polled message is in a broadcast slot */
    uint64_t counters[DCOMMI_SCRIPT_COUNTERS];
} dcommi_fast;

static inline uint8_t *dcommi_fast_at(const dcommi_fast *f, dcommi_script_piece piece)
{
    return f->base[piece.space] + piece.offset;
}

static inline size_t dcommi_fast_header_len(bool data, size_t len)
{
    return data && len <= DCOMMI_SHORT_MAX ? DCOMMI_HEADER_SHORT : sizeof(dcommi_header);
}

/* Send the message of an op. Return how many ops this does; 0: it cannot be sent now. */
static inline uint32_t dcommi_fast_send(dcommi_fast *f, const dcommi_script_op *op,
                                        const void *data, size_t len)
{
    dcomm_comm *comm = f->comm;
    size_t header_len = dcommi_fast_header_len(f->header.type == DCOMMI_MSG_DATA, len);
    if (op->alike > 0 && dcommi_bcast_post(comm, &f->header, header_len, data, len)) {
        return op->alike;
    }
    dcommi_member *m = &comm->members[op->rank];
    dcommi_transport *t = comm->context->peers[m->peer].transport;
    m->told = comm->done;
    m->addressed = true;
    return t->call->send(t, m->peer, &f->header, header_len, data, len, NULL) >= 0;
}

/* Release the message of a rank that was polled last. */
static inline void dcommi_fast_pass(const dcommi_fast *f, dcommi_member *m)
{
    dcommi_transport *t = f->comm->context->peers[m->peer].transport;
    if (f->in_slot) {
        dcommi_bcast_pass(m);
    } else {
        t->call->pass(t, m->peer);
    }
}

/* Note that a rank has completed `done` collectives. Older messages may be read later, so never go
 * back. */
static inline void dcommi_fast_heard(dcommi_member *m, uint32_t done)
{
    uint32_t more = done - (uint32_t)m->done;
    m->heard = true;
    m->done += more < UINT32_MAX / 2 ? more : 0;
}

/* Return true if a message is of a later operation. The fifo may then hold one of this
 * operation. */
static inline bool dcommi_fast_ahead(const dcommi_fast *f, const dcommi_arrival *arrival)
{
    uint64_t seq = 0;
    memcpy(&seq, (const char *)arrival->header + offsetof(dcommi_header, seq), sizeof seq);
    return seq > f->seq;
}

/* Poll for the next message of a rank. Return 1 if it is the expected one, which stays where it
 * is; 0 if there is none or it was dealt with; -1 if the engine must handle it. `all`: poll also
 * the fifo of a rank with broadcast slots. */
static inline int dcommi_fast_poll(dcommi_fast *f, int rank, const dcommi_script_op *op, bool all,
                                   dcommi_arrival *arrival)
{
    dcomm_comm *comm = f->comm;
    dcommi_member *m = &comm->members[rank];
    dcommi_transport *t = comm->context->peers[m->peer].transport;
    dcommi_header h;
    const size_t len = op != NULL ? op->len : 0;
    const size_t expected = dcommi_fast_header_len(op != NULL, len) + len;
    f->in_slot = dcommi_bcast_peek(m, arrival) && !dcommi_fast_ahead(f, arrival);
    if (!f->in_slot &&
        ((m->bcast != NULL && !all) || !t->call->peek(t, m->peer, expected, arrival))) {
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
    if (op == NULL && h.seq > f->seq &&
        (h.type == DCOMMI_MSG_DATA || h.type == DCOMMI_MSG_SIGNAL)) {
        return 0; /* it is ahead: all its signals for us have come */
    }
    bool ours = h.seq == f->seq && h.signature == f->header.signature && h.stage == 0;
    if (ours && h.type == DCOMMI_MSG_DATA && op != NULL && h.tag == op->tag && h.a == op->len &&
        arrival->len == op->len) {
        dcommi_fast_heard(m, h.done);
        return 1;
    }
    if (ours && h.type == DCOMMI_MSG_SIGNAL && h.slot < f->cached->plan->ncounters) {
        dcommi_fast_heard(m, h.done);
        f->counters[h.slot] += h.a;
        dcommi_fast_pass(f, m);
        return 0;
    }
    if (h.type == DCOMMI_MSG_CREDIT && h.b == 0 && arrival->len == 0) {
        dcommi_learn_done(comm, &h);
        dcommi_fast_pass(f, m);
        return 0;
    }
    return -1;
}

static inline void dcommi_fast_copy(const dcommi_fast *f, const dcommi_script_op *op,
                                    const void *src)
{
    uint8_t *dst = dcommi_fast_at(f, op->dst);
    if (DCOMMI_UNLIKELY(op->past)) {
        dcommi_result_copy(f->comm->context, dst, src, op->len, true);
    } else if (dst != src) {
        memcpy(dst, src, op->len);
    }
}

/* Run a fold or copy. `message` stands for the payload that is being received. */
static inline dcomm_status dcommi_fast_fold(const dcommi_fast *f, const dcommi_script_op *op,
                                            const void *message)
{
    const dcommi_script *script = f->cached->script;
    const dcomm_plan *plan = f->cached->plan;
    const unsigned char *src[DCOMMI_FOLD_SOURCES];
    if (op->len == 0) {
        return DCOMM_OK;
    }
    uint8_t *dst = dcommi_fast_at(f, op->dst);
    for (uint32_t i = 0; i < op->npieces; i++) {
        dcommi_script_piece piece = script->pieces[op->pieces + i];
        src[i] = piece.space == DCOMM_SPACE_MSG ? message : dcommi_fast_at(f, piece);
    }
    if (op->kind == DCOMM_STEP_COPY) {
        dcommi_fast_copy(f, op, src[0]);
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

/* Wait for the message of a receive, or for signals. Return false if the engine must go on. */
static inline bool dcommi_fast_await(dcommi_fast *f, const dcommi_script_op *op,
                                     dcommi_arrival *arrival)
{
    const dcommi_script *script = f->cached->script;
    const dcomm_context *context = f->comm->context;
    bool message = op->kind != DCOMM_STEP_WAIT;
    unsigned polls = context->spin_limit, yields = context->script_yields;
    const unsigned pause = polls > DCOMMI_FAST_POLLS ? polls - DCOMMI_FAST_POLLS : 0;
    for (unsigned i = op->len <= DCOMMI_FAST_PAUSED ? context->script_pauses : 0; i > 0; i--) {
        dcommi_relax();
    }
    for (;;) {
        bool all = !script->broadcasts || (context->spin_limit - polls) % DCOMMI_FAST_FIFO == 0;
        if (message) {
            int found = dcommi_fast_poll(f, op->rank, op, all, arrival);
            if (found != 0) {
                return found > 0;
            }
        } else {
            if (f->counters[op->slot] >= op->value) {
                return true;
            }
            for (uint32_t i = 0; i < script->npeers; i++) {
                if (dcommi_fast_poll(f, script->peers[i], NULL, all, arrival) != 0) {
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

/* Run ops until the end, or until one cannot be done now. Return its index. */
static inline uint32_t dcommi_fast_ops(dcommi_fast *f, dcomm_status *status)
{
    const dcommi_script *script = f->cached->script;
    dcomm_comm *comm = f->comm;
    dcommi_arrival arrival;
    for (uint32_t k = 0, sent = 1; k < script->nops; k += sent) {
        const dcommi_script_op *op = &script->ops[k];
        sent = 1;
        switch (op->kind) {
        case DCOMM_STEP_SEND:
            f->header.type = DCOMMI_MSG_DATA;
            f->header.slot = 0;
            f->header.tag = op->tag;
            f->header.a = op->len;
            sent = dcommi_fast_send(f, op, dcommi_fast_at(f, op->dst), op->len);
            comm->stats.messages_sent += sent;
            comm->stats.messages_posted += sent > 1 ? sent : 0;
            comm->stats.bytes_sent += sent * (uint64_t)op->len;
            break;
        case DCOMM_STEP_SIGNAL:
            f->header.type = DCOMMI_MSG_SIGNAL;
            f->header.slot = op->slot;
            f->header.tag = 0;
            f->header.a = op->value;
            sent = dcommi_fast_send(f, op, NULL, 0);
            break;
        case DCOMM_STEP_RECV:
        case DCOMM_STEP_RECV_REDUCE: {
            if (!dcommi_fast_await(f, op, &arrival)) {
                return k;
            }
            if (op->kind == DCOMM_STEP_RECV_REDUCE) {
                *status = dcommi_fast_fold(f, op, arrival.data);
            } else if (op->len > 0) {
                dcommi_fast_copy(f, op, arrival.data);
            }
            dcommi_fast_pass(f, &comm->members[op->rank]);
            break;
        }
        case DCOMM_STEP_WAIT:
            if (f->counters[op->slot] < op->value && !dcommi_fast_await(f, op, &arrival)) {
                return k;
            }
            break;
        default:
            *status = dcommi_fast_fold(f, op, NULL);
            break;
        }
        if (!dcommi_good(comm, *status)) {
            return k;
        }
        if (DCOMMI_UNLIKELY(sent == 0)) {
            return k;
        }
    }
    return script->nops;
}

/* ---- leaving it to the engine ---- */

/* Post the receive of an asynchronous op whose step comes before the takeover. */
static void dcommi_fast_post(const dcommi_fast *f, dcommi_run *run, dcommi_lane *lane,
                             const dcommi_script_op *op)
{
    dcommi_move *move = dcommi_move_new(run, lane);
    if (!dcommi_have(f->comm, move)) {
        return;
    }
    move->async = true;
    move->final = op->final;
    move->past = op->past;
    move->kind = DCOMMI_MOVE_RECV;
    move->buf = move->dst = dcommi_fast_at(f, op->dst);
    move->len = op->len;
    if (op->kind == DCOMM_STEP_RECV_REDUCE) {
        move->kind = DCOMMI_MOVE_FOLD;
        move->buf = dcommi_fast_at(f, op->stage);
        move->nsrc = (uint8_t)op->npieces;
        for (uint32_t i = 0; i < op->npieces; i++) {
            dcommi_script_piece piece = f->cached->script->pieces[op->pieces + i];
            if (piece.space == DCOMM_SPACE_MSG) {
                move->msg_at = (uint8_t)i;
            } else {
                move->src[i] = dcommi_fast_at(f, piece);
            }
        }
    }
    lane->pending++;
    dcommi_recv_post(move, op->rank, op->tag);
}

/* Move a run that has just been started to where op `k` would come next. With the token. */
static void dcommi_fast_resume(dcommi_fast *f, dcommi_run *run, uint32_t k)
{
    const dcommi_script *script = f->cached->script;
    const dcommi_script_op *at = &script->ops[k];
    dcommi_lane *lane = &run->root.lanes[0];
    lane->cursor.at = at->at;
    if (run->root.space_len[DCOMM_SPACE_SCRATCH] > 0) {
        memcpy(run->root.space[DCOMM_SPACE_SCRATCH], f->base[DCOMM_SPACE_SCRATCH],
               (size_t)run->root.space_len[DCOMM_SPACE_SCRATCH]);
        f->base[DCOMM_SPACE_SCRATCH] = run->root.space[DCOMM_SPACE_SCRATCH];
    }
    for (uint32_t i = 0; i < run->plan->ncounters; i++) {
        run->counters[i] += f->counters[i];
    }
    for (uint32_t i = k; i < script->nops && run->active; i++) {
        if (script->ops[i].async && script->ops[i].order < at->resume_order) {
            dcommi_fast_post(f, run, lane, &script->ops[i]);
        }
    }
}

/* Let the engine take over at op `k`. With the token, which is released. */
static dcomm_status dcommi_fast_leave(dcommi_fast *f, uint32_t k, double timeout_s)
{
    dcomm_comm *comm = f->comm;
    dcomm_context *context = comm->context;
    dcommi_comm_lock(comm);
    dcommi_run *run =
        dcommi_run_of(comm, f->cached, f->base[DCOMM_SPACE_IN], f->base[DCOMM_SPACE_OUT]);
    dcommi_comm_unlock(comm);
    if (!dcommi_have(comm, run)) {
        dcommi_token_release(context);
        return DCOMM_ERR_NO_MEMORY;
    }
    run->seq = f->seq;
    run->signature = f->signature;
    run->timeout_s = timeout_s;
    run->blocking = true;
    dcommi_run_start(run);
    if (run->active) {
        dcommi_fast_resume(f, run, k);
    }
    dcommi_progress(context);
    dcommi_token_release(context);
    return dcommi_run_wait_here(run);
}

/* ---- the entry ---- */

/* Return true if the caller's arguments allow the fast path: a blocking call outside of groups, on
 * a communicator that is ready, with no options but those of a plan or of the wait for it. */
static inline bool dcommi_fast_asked(const dcomm_comm *comm, const dcomm_coll_opts *opts,
                                     dcomm_request *const *request_p)
{
    return request_p == NULL && comm != NULL && dcommi_this_group.depth == 0 &&
           (opts == NULL || (opts->codec == NULL && opts->feedback == NULL &&
                             opts->stream == NULL && opts->timeout_s >= 0)) &&
           atomic_load_explicit(&comm->ready, memory_order_acquire) == DCOMM_OK &&
           atomic_load_explicit(&dcommi_forked, memory_order_relaxed) == 0;
}

/* Return true if the engine allows the fast path: nothing else is under way, or due. With the
 * token. */
static inline bool dcommi_fast_able(const dcomm_comm *comm, const dcommi_script *script)
{
    const dcomm_context *context = comm->context;
    uint64_t seq = comm->next_seq;
    if (context->active != 0 || seq % DCOMMI_FAST_TURN == DCOMMI_FAST_TURN - 1 ||
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

/* Number a call, which keeps the reference to its plan. Return false without memory. With the
 * token and comm->lock. */
static inline bool dcommi_fast_begin(dcommi_fast *f, dcomm_comm *comm, dcommi_cached *cached,
                                     const void *in, void *out)
{
    if (DCOMMI_UNLIKELY(comm->scratch == NULL && cached->plan->scratch_bytes > 0)) {
        comm->scratch = dcommi_alloc_raw(DCOMMI_SCRIPT_SCRATCH);
        if (comm->scratch == NULL) {
            return false;
        }
    }
    dcommi_bcast_attach(comm);
    f->comm = comm;
    f->cached = cached;
    f->signature = cached->signature;
    f->seq = dcommi_number(comm, &f->signature);
    f->base[DCOMM_SPACE_IN] = (uint8_t *)(uintptr_t)in;
    f->base[DCOMM_SPACE_OUT] = out;
    f->base[DCOMM_SPACE_SCRATCH] = comm->scratch;
    f->header = (dcommi_header){.stream = DCOMMI_STREAM_COLL,
                                .signature = f->signature.hash,
                                .src = (uint32_t)comm->rank,
                                .comm = comm->id,
                                .seq = f->seq,
                                .done = (uint32_t)comm->done};
    for (uint32_t i = 0; i < cached->plan->ncounters; i++) {
        f->counters[i] = 0;
    }
    comm->stats.plans_reused++;
    return true;
}

/* Count an operation whose script is complete as run. With the token. */
static inline void dcommi_fast_end(const dcommi_fast *f)
{
    dcomm_comm *comm = f->comm;
    dcommi_history *entry = &comm->history[f->seq % DCOMMI_HISTORY];
    entry->seq = f->seq;
    entry->known = true;
    entry->signature = f->signature;
    comm->started++;
    comm->entered = f->seq + 1;
    comm->stats.operations++;
    dcommi_advance_done(comm);
}

/* Take the token, and comm->lock unless this thread is the context's only one. Return false if
 * another thread has the token. */
static inline bool dcommi_fast_enter(dcomm_comm *comm, bool *locked)
{
    *locked = !dcommi_token_enter(comm->context);
    if (DCOMMI_LIKELY(!*locked)) {
        return true;
    }
    dcommi_comm_lock(comm);
    if (dcommi_token_try(comm->context)) {
        return true;
    }
    dcommi_comm_unlock(comm);
    return false;
}

/* Run the script of the plan that is cached for a blocking call. Return DCOMM_IN_PROGRESS if there
 * is none, or if it cannot run now; then nothing has happened. */
static inline dcomm_status dcommi_fast_call(dcomm_comm *comm, const dcommi_call_key *key,
                                            const char *asked, const void *in, void *out,
                                            double timeout_s)
{
    dcommi_fast f;
    dcomm_status status = DCOMM_OK;
    bool locked;
    if (dcommi_device_locate(in) >= 0 || dcommi_device_locate(out) >= 0 ||
        !dcommi_fast_enter(comm, &locked)) {
        return DCOMM_IN_PROGRESS;
    }
    dcommi_cached *cached = dcommi_cache_find(comm, key, asked);
    const bool begun = cached != NULL && cached->script != NULL &&
                       dcommi_fast_able(comm, cached->script) &&
                       dcommi_fast_begin(&f, comm, cached, in, out);
    if (DCOMMI_UNLIKELY(!begun && cached != NULL)) {
        dcommi_cached_release(cached);
    }
    if (locked) {
        dcommi_comm_unlock(comm);
    }
    if (!begun) {
        dcommi_token_release(comm->context);
        return DCOMM_IN_PROGRESS;
    }
    const uint32_t k = dcommi_fast_ops(&f, &status);
    if (DCOMMI_UNLIKELY(k < cached->script->nops)) {
        return dcommi_fast_leave(&f, k, timeout_s);
    }
    dcommi_fast_end(&f);
    if (locked) {
        dcommi_comm_lock(comm);
    }
    dcommi_cached_release(cached);
    if (locked) {
        dcommi_comm_unlock(comm);
    }
    dcommi_token_release(comm->context);
    return DCOMM_OK;
}

#endif
