/* failure.h - an error found by one rank becomes an error on all ranks, with a message that says
 * why.
 *
 * Nothing is asked while all goes well. A run without an event for 200 ms sends QUERY to every
 * rank that it might wait for, with its own description of the operation. A rank that has entered
 * the same number with another description has found the mismatch. If a rank stays silent, its
 * process is looked at. When the time is up, the answers make the report. */
#ifndef DCOMMI_FAILURE_H
#define DCOMMI_FAILURE_H

#include "agreement.h"
#include "lanes.h"
#include "../transport/local/watch.h"

#define DCOMMI_QUERY_AFTER 0.2 /* seconds without an event */
#define DCOMMI_QUERY_EVERY 1.0 /* seconds between queries, after the first few */
#define DCOMMI_SILENT_AFTER                                                                      \
    1.0                        /* seconds without an answer, after which a rank counts as silent \
                                */
#define DCOMMI_LIMIT_MAX_S 1e9 /* a longer time-out is none */
#define DCOMMI_LONG_S 300      /* seconds after which the log tells of a run without a limit */

/* ---- descriptions ---- */

/* Return the hash of an operation alone, without those before it. */
static inline uint32_t dcommi_signature_plain(const dcommi_signature *s)
{
    return s->hash ^ s->chain;
}

/* Write the name of a dtype: "f32", "opaque type 0 of 24 bytes". */
static void dcommi_dtype_text(dcomm_dtype dtype, char *text, size_t len)
{
    if (dcommi_dtype_is_opaque(dtype)) {
        snprintf(text, len, "opaque type %d of %zu bytes", dcommi_opaque_number(dtype),
                 dcomm_dtype_size(dtype));
    } else {
        snprintf(text, len, "%s", dcomm_dtype_name(dtype));
    }
}

/* Describe an operation by the arguments that it has: only folds have an operator, and a send has
 * a peer in place of a root. */
static void dcommi_signature_text(const dcommi_signature *s, char *text, size_t len)
{
    const dcomm_coll coll = (dcomm_coll)s->coll;
    char dtype[48], op[48] = "", rank[32] = "";
    dcommi_dtype_text((dcomm_dtype)s->dtype, dtype, sizeof dtype);
    if (dcommi_op_is_user((dcomm_op)s->op)) {
        snprintf(op, sizeof op, ", user operator %d", (int)s->op - DCOMM_OP_USER);
    } else if (dcommi_coll_folds(coll) || coll == DCOMM_COLL_PLAN) {
        snprintf(op, sizeof op, ", %s", dcomm_op_name((dcomm_op)s->op));
    }
    if (coll == DCOMM_COLL_SEND || coll == DCOMM_COLL_RECV) {
        snprintf(rank, sizeof rank, ", %s rank %d", coll == DCOMM_COLL_SEND ? "to" : "from",
                 s->root);
    } else if (dcommi_coll_rooted(coll)) {
        snprintf(rank, sizeof rank, ", root %d", s->root);
    }
    snprintf(text, len, "%s(count %" PRIu64 ", %s%s%s, algorithm %s, signature %08x)",
             dcomm_coll_name(coll), s->count, dtype, op, rank, s->algo, dcommi_signature_plain(s));
}

/* Copy text from a peer, and make it printable. `text` has room for len + 1 bytes. */
static void dcommi_peer_text(char *text, const void *data, size_t len)
{
    for (size_t i = 0; i < len; i++) {
        char c = ((const char *)data)[i];
        text[i] = c >= ' ' && c != 127 ? c : c < 0 ? c : '?';
    }
    text[len] = 0;
}

/* Write what the first waiting lane of a run waits for. */
static void dcommi_run_where(const dcommi_run *run, char *text, size_t len)
{
    text[0] = 0;
    for (uint32_t i = 0; i < run->plan->nlanes; i++) {
        const dcommi_lane *lane = &run->root.lanes[i];
        if (lane->state == DCOMMI_LANE_DONE || lane->state == DCOMMI_LANE_READY) {
            continue;
        }
        uint32_t pc = lane->cursor.at.pc;
        if ((lane->state == DCOMMI_LANE_MOVE || lane->state == DCOMMI_LANE_FENCE ||
             lane->state == DCOMMI_LANE_COUNTER || lane->state == DCOMMI_LANE_CALL) &&
            pc > 0) {
            pc--; /* these resume behind the step that they wait in */
        }
        static const char *const names[] = {
#define DCOMMI_STEP_NAME(kind, name) name,
            DCOMM_STEP_TABLE(DCOMMI_STEP_NAME)
#undef DCOMMI_STEP_NAME
        };
        const dcomm_step *step = pc < lane->cursor.count ? &lane->cursor.steps[pc] : NULL;
        snprintf(text, len, "lane %u step %u (%s)", i, pc,
                 step != NULL ? names[step->kind] : "end");
        return;
    }
}

/* ---- poison ---- */

/* Tell a rank of the error, unless it is lost (dcommi_tell_dead). A connection of
 * UCX is not opened for a death that the rank sees itself: its own end may be near, and UCX 1.13
 * aborts if a connection breaks while it is opened. */
static void dcommi_send_abort(dcomm_comm *comm, int rank)
{
    dcommi_member *m = &comm->members[rank];
    const dcommi_remote *p = m->peer >= 0 ? &comm->context->peers[m->peer] : NULL;
    if (p == NULL || m->gone || p->lost ||
        (comm->seen_by_all && !p->same_host && !m->heard && !m->addressed)) {
        return;
    }
    dcommi_header h = {.type = DCOMMI_MSG_ABORT,
                       .a = (uint64_t)(int64_t)atomic_load(&comm->poisoned),
                       .tag = comm->lost_proven,
                       .b = comm->lost};
    size_t len = strnlen(comm->message, DCOMMI_TEXT_MAX);
    dcommi_send_header(comm, rank, &h, comm->message, len);
}

/* Log that a communicator failed; print it and abort as `on_error` says. */
static void dcommi_say_failed(dcomm_on_error on_error, int rank, dcomm_status status,
                              const char *text)
{
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    static char said[DCOMMI_MESSAGE_MAX];
    char now[DCOMMI_MESSAGE_MAX];
    snprintf(now, sizeof now, "rank %d: %s: %.400s", rank, dcomm_strerror(status), text);
    /* One death fails many communicators: report it for the first only. */
    pthread_mutex_lock(&lock);
    bool says = on_error != DCOMM_ON_ERROR_RETURN && strcmp(said, now) != 0;
    if (says) {
        memcpy(said, now, sizeof said);
    }
    pthread_mutex_unlock(&lock);
    dcommi_log(says ? DCOMMI_LOG_ERROR : DCOMMI_LOG_INFO, "%s", now);
    if (on_error == DCOMM_ON_ERROR_ABORT) {
        abort();
    }
}

/* Fail the communicator: all its operations here, and on all other ranks. `from` is the rank that
 * told us, or -1 if we found the error. The finder tells all ranks. The others pass the error on
 * to ranks at powers of two, so that it arrives even if the finder dies meanwhile. If those die,
 * too, a rank that was not told waits no longer for that: it sees the deaths itself, and each rank
 * that knows the error and is in a call answers its queries with it. The first error stays. */
static void dcommi_poison_by(dcomm_comm *comm, dcomm_status status, int from, const char *text)
{
    if (from < 0 && status == DCOMM_ERR_PEER && comm->context->control != NULL) {
        dcommi_ctl_look(comm->context); /* it may tell why: the others count this rank as dead */
    }
    if (atomic_load_explicit(&comm->poisoned, memory_order_relaxed) != 0) {
        return;
    }
    if (from < 0 && status == DCOMM_ERR_NO_MEMORY && strncmp(text, "rank ", 5) != 0) {
        snprintf(comm->message, sizeof comm->message, "rank %d: %.480s", comm->rank, text);
    } else { /* an allocator knows no rank; other messages name it */
        snprintf(comm->message, sizeof comm->message, "%s", text);
    }
    atomic_store_explicit(&comm->poisoned, status, memory_order_release);
    if (from < 0) {
        for (int r = 0; r < comm->size; r++) {
            dcommi_send_abort(comm, r);
        }
    } else {
        for (int64_t step = 1; step < comm->size; step *= 2) {
            dcommi_send_abort(comm, (int)((comm->rank + step) % comm->size));
        }
    }
    while (comm->runs != NULL) {
        dcommi_run_finish(comm->runs, status);
    }
    dcommi_early_purge(comm, NULL);
    if (DCOMMI_UNLIKELY(comm->service != NULL)) {
        comm->service->on_failed(comm);
    }
    dcommi_say_failed(comm->on_error, comm->rank, status, comm->message);
}

static void DCOMMI_PRINTF(3, 4)
    dcommi_poison(dcomm_comm *comm, dcomm_status status, const char *format, ...)
{
    char text[DCOMMI_MESSAGE_MAX];
    va_list args;
    va_start(args, format);
    dcommi_vsnprintf(text, sizeof text, format, args);
    va_end(args);
    dcommi_poison_by(comm, status, -1, text);
}

static bool dcommi_rank_wanted(const void *wanted, size_t rank)
{
    return ((const bool *)wanted)[rank];
}

/* Write the ranks for which `has` holds: "rank 3", "ranks 0-2, 5", or `none`. Return true for
 * several. */
static bool dcommi_ranks_text(bool (*has)(const void *of, size_t rank), const void *of, int size,
                              const char *none, char *text, size_t len)
{
    char list[96];
    const size_t n = dcommi_text_ranges(list, sizeof list, ", ", (size_t)size, has, of);
    snprintf(text, len, "%s%s", n == 0 ? none : n == 1 ? "rank " : "ranks ", list);
    return n > 1;
}

/* Return true if a member can take no part any more: its process has ended, even if the transport
 * does not know yet, or counts as dead. */
static bool dcommi_member_lost(const dcomm_comm *comm, int rank)
{
    const dcommi_member *m = &comm->members[rank];
    if (m->peer < 0 || m->gone) {
        return false;
    }
    const dcommi_remote *p = &comm->context->peers[m->peer];
    return p->lost || p->proven ||
           (p->same_host && p->started != 0 && p->pid != getpid() &&
            dcommi_process_started(p->pid) != p->started);
}

/* Fail the communicator because a rank was lost. Name all that are. */
static void dcommi_poison_lost(dcomm_comm *comm, int rank)
{
    const dcommi_member *m = &comm->members[rank];
    const dcommi_remote *p = &comm->context->peers[m->peer];
    char also[112] = "";
    bool *lost = dcommi_calloc((size_t)comm->size, sizeof *lost);
    for (int r = 0; lost != NULL && r < comm->size; r++) {
        lost[r] = r != rank && dcommi_member_lost(comm, r);
    }
    if (lost != NULL) {
        dcommi_ranks_text(dcommi_rank_wanted, lost, comm->size, "", also, sizeof also);
    }
    dcommi_free(lost);
    comm->seen_by_all = p->proven && comm->all_connected;
    comm->lost = 1 + (uint64_t)rank;
    comm->lost_proven = p->proven;
    dcommi_poison(comm, DCOMM_ERR_PEER, "rank %d (process %d on %s) was lost: %s%s%s", rank,
                  (int)p->pid, m->hostname, p->why, also[0] != 0 ? "; lost as well: " : "", also);
}

/* Note that a peer's death is certain, if `proven`. The end of one that counts us as dead proves
 * nothing of what it had decided. */
static void dcommi_peer_prove(dcommi_remote *p, bool proven)
{
    p->proven = p->proven || (proven && !p->gave_us_up);
}

/* Mark a peer as lost. Return false if it was already. */
static bool dcommi_peer_mark(dcommi_remote *p, const char *why, bool proven)
{
    dcommi_peer_prove(p, proven);
    if (p->lost) {
        return false;
    }
    p->lost = true;
    snprintf(p->why, sizeof p->why, "%s", why);
    return true;
}

/* Fail what a communicator has with a lost rank: all of it, unless it serves the others on. */
static void dcommi_member_fail(dcomm_comm *comm, int rank)
{
    if (DCOMMI_UNLIKELY(comm->service != NULL)) {
        comm->service->on_lost(comm, rank);
    } else {
        dcommi_poison_lost(comm, rank);
    }
}

/* Fail the communicators of a peer that is lost. */
static void dcommi_peer_fail(dcomm_context *context, int peer)
{
    context->appoints = true;
    for (dcomm_comm *comm = context->comms; comm != NULL; comm = comm->next) {
        for (int r = 0; r < comm->size; r++) {
            if (comm->members[r].peer == peer && !comm->members[r].gone && !comm->leaves &&
                atomic_load_explicit(&comm->poisoned, memory_order_relaxed) == 0) {
                dcommi_member_fail(comm, r);
            }
        }
        dcommi_agreements_learn(comm);
    }
}

/* Tell a peer that it counts as dead here. */
static void dcommi_tell_dead(dcomm_context *context, int peer)
{
    dcommi_transport *t = context->peers[peer].transport;
    if (t->call->give_up != NULL) {
        t->call->give_up(t, peer);
    } else {
        dcommi_ctl_tell_dead(context, peer);
    }
}

static void dcommi_peer_lost(dcomm_context *context, int peer, const char *why, bool proven)
{
    if (dcommi_peer_mark(&context->peers[peer], why, proven)) {
        if (!proven) {
            dcommi_tell_dead(context, peer);
        }
        dcommi_peer_fail(context, peer);
    }
}

/* Fail what this process has with a peer that counts it as dead. */
static void dcommi_given_up(dcomm_context *context, int peer)
{
    dcommi_remote *p = &context->peers[peer];
    p->gave_us_up = true;
    for (dcomm_comm *comm = context->comms; comm != NULL; comm = comm->next) {
        for (int r = 0; r < comm->size; r++) {
            if (comm->members[r].peer == peer && !comm->members[r].gone &&
                comm->service == NULL) { /* a service hears of it as of a loss */
                dcommi_poison(comm, DCOMM_ERR_PEER,
                              "rank %d counts rank %d as dead: nothing was heard of it for %.3g s",
                              r, comm->rank, context->liveness_s);
            }
        }
    }
    if (dcommi_peer_mark(p, "it counts this process as dead", false)) {
        dcommi_tell_dead(context, peer); /* our end must prove nothing to it either */
    }
    dcommi_peer_fail(context, peer);
}

/* Note that a peer's process has ended. If it counts us as dead, that comes first: its end would
 * let us go on alone. */
static void dcommi_peer_ended(dcomm_context *context, int peer)
{
    dcommi_transport *t = context->peers[peer].transport;
    if (t->call->gave_up != NULL && t->call->gave_up(t, peer)) {
        dcommi_given_up(context, peer);
    } else {
        dcommi_peer_lost(context, peer, "its process has ended", true);
    }
}

/* ---- queries ---- */

/* Ask a rank about operation `seq`, which `mine` describes here. */
static void dcommi_query(dcomm_comm *comm, int rank, uint8_t stream, uint64_t seq,
                         const dcommi_signature *mine)
{
    char text[DCOMMI_TEXT_MAX];
    dcommi_signature_text(mine, text, sizeof text);
    dcommi_header h = {.type = DCOMMI_MSG_QUERY,
                       .stream = stream,
                       .slot = mine->coll,
                       .signature = mine->hash,
                       .seq = seq,
                       .a = dcommi_signature_plain(mine)};
    dcommi_send_header(comm, rank, &h, text, strlen(text));
}

/* Handle a message with a run's sequence number and another signature. In a collective, query the
 * peer, which then knows both descriptions and reports the mismatch. A peer whose send is over has
 * forgotten it, so report that here. */
static void dcommi_suspect_mismatch(dcomm_comm *comm, dcommi_run *run, const dcommi_header *h,
                                    size_t len)
{
    if (run->stream == DCOMMI_STREAM_COLL) {
        dcommi_query(comm, (int)h->src, run->stream, run->seq, &run->signature);
        return;
    }
    char ours[DCOMMI_TEXT_MAX];
    dcommi_signature_text(&run->signature, ours, sizeof ours);
    dcommi_poison(comm, DCOMM_ERR_MISMATCH,
                  "ranks disagree about operation #%" PRIu64
                  ": rank %d calls send(%zu bytes, signature "
                  "%08x) to rank %d, rank %d calls %s",
                  h->seq, (int)h->src, len, h->signature, comm->rank, comm->rank, ours);
}

static dcommi_run *dcommi_run_find(dcomm_comm *comm, const dcommi_header *h)
{
    for (dcommi_run *run = comm->runs; run != NULL; run = run->next) {
        if (run->stream == h->stream && run->seq == h->seq &&
            (run->stream == DCOMMI_STREAM_COLL || run->p2p_peer == (int32_t)h->src)) {
            return run;
        }
    }
    return NULL;
}

/* Return true if a run is this rank's part of a query's operation. The asker's send matches our
 * receive, and vice versa. */
static bool dcommi_run_asked(const dcommi_run *run, const dcommi_header *h)
{
    return run->stream == h->stream && run->seq == h->seq &&
           (run->stream == DCOMMI_STREAM_COLL ||
            (run->p2p_peer == (int32_t)h->src &&
             run->signature.coll ==
                 (h->slot == DCOMM_COLL_SEND ? DCOMM_COLL_RECV : DCOMM_COLL_SEND)));
}

/* Return true if this rank's part of a query's operation waits for its stream. */
static bool dcommi_query_gated(const dcomm_comm *comm, const dcommi_header *h)
{
    const dcommi_run *run = comm->context->gated;
    while (run != NULL && (run->comm != comm || !dcommi_run_asked(run, h))) {
        run = run->next_gated;
    }
    return run != NULL;
}

/* Handle a query whose operation is alike on both ranks, though an earlier one was not: ask about
 * the one before, or tell that it was refused here. */
static void dcommi_query_before(dcomm_comm *comm, const dcommi_header *h)
{
    const uint64_t seq = h->seq - 1;
    const dcommi_history *entry = &comm->history[seq % DCOMMI_HISTORY];
    dcommi_header before = *h;
    before.seq = seq;
    if (h->seq == 0 || dcommi_refusal_answer(comm, &before)) {
        return;
    }
    if (entry->known && entry->seq == seq) {
        dcommi_query(comm, (int)h->src, h->stream, seq, &entry->signature);
    } else if (seq < comm->done) {
        dcommi_poison(comm, DCOMM_ERR_MISMATCH,
                      "ranks %d and %d disagree about an operation before #%" PRIu64
                      ", which is too long ago to be named",
                      (int)h->src, comm->rank, h->seq);
    }
}

static void dcommi_on_query(dcomm_comm *comm, const dcommi_header *h, const void *data, size_t len)
{
    dcommi_header reply = {.type = DCOMMI_MSG_REPLY,
                           .stream = h->stream,
                           .seq = h->seq,
                           .slot = h->slot,
                           .a = DCOMMI_NOT_ENTERED};
    char where[64] = "";
    if (dcommi_refusal_answer(comm, h)) {
        return;
    }
    const dcommi_run *run = comm->runs;
    while (run != NULL && !dcommi_run_asked(run, h)) {
        run = run->next;
    }
    if (run != NULL) {
        reply.a = DCOMMI_ENTERED;
        dcommi_run_where(run, where, sizeof where);
    }
    const dcommi_signature *mine = run != NULL ? &run->signature : NULL;
    const dcommi_member *m = &comm->members[h->src];
    uint64_t done = h->slot == DCOMM_COLL_SEND ? m->p2p_received : m->p2p_sent;
    if (h->stream == DCOMMI_STREAM_COLL) {
        const dcommi_history *entry = &comm->history[h->seq % DCOMMI_HISTORY];
        mine = entry->known && entry->seq == h->seq ? &entry->signature : NULL;
        done = mine != NULL ? UINT64_MAX : comm->done;
        reply.b = comm->entered;
    }
    if (run == NULL && h->seq < done) {
        reply.a = DCOMMI_COMPLETED;
    }
    if (run == NULL && dcommi_query_gated(comm, h)) {
        reply.a = DCOMMI_BEHIND;
    }
    if (mine != NULL && mine->hash != h->signature && dcommi_signature_plain(mine) == h->a) {
        dcommi_query_before(comm, h);
        return;
    }
    if (mine != NULL && mine->hash != h->signature) {
        char theirs[DCOMMI_TEXT_MAX + 1], ours[DCOMMI_TEXT_MAX];
        dcommi_peer_text(theirs, data, len);
        dcommi_signature_text(mine, ours, sizeof ours);
        dcommi_poison(comm, DCOMM_ERR_MISMATCH,
                      "ranks disagree about operation #%" PRIu64
                      ": rank %d calls %s, rank %d calls %s",
                      h->seq, (int)h->src, theirs, comm->rank, ours);
        return;
    }
    dcommi_send_header(comm, (int)h->src, &reply, where, strlen(where));
}

static void dcommi_on_reply(dcomm_comm *comm, const dcommi_header *h, const void *data, size_t len)
{
    for (dcommi_run *run = comm->runs; run != NULL; run = run->next) {
        if (run->peers == NULL || run->stream != h->stream || run->seq != h->seq ||
            run->signature.coll != h->slot || h->a > DCOMMI_BEHIND) {
            continue;
        }
        dcommi_peer_state *peer = &run->peers[h->src];
        peer->replied = peer->known = true;
        peer->entry = (uint8_t)h->a;
        size_t n = len < sizeof peer->where - 1 ? len : sizeof peer->where - 1;
        dcommi_peer_text(peer->where, data, n);
    }
}

/* Return true if a run may wait for a rank. */
static bool dcommi_run_involves(const dcommi_run *run, int rank)
{
    return rank != run->comm->rank && (run->stream == DCOMMI_STREAM_COLL || run->p2p_peer == rank);
}

/* Query the ranks that an idle run may wait for, look at silent processes, and notice who has
 * left. */
static void dcommi_run_ask(dcommi_run *run, double now)
{
    dcomm_comm *comm = run->comm;
    if (run->peers == NULL) {
        run->peers = dcommi_calloc((size_t)comm->size, sizeof *run->peers);
        if (run->peers == NULL) {
            return;
        }
        for (int r = 0; r < comm->size; r++) {
            run->peers[r].replied = true; /* nobody has been asked yet */
        }
    }
    for (int r = 0; r < comm->size; r++) {
        if (!dcommi_run_involves(run, r)) {
            continue;
        }
        dcommi_member *m = &comm->members[r];
        dcommi_remote *p = &comm->context->peers[m->peer];
        if (m->gone) {
            if (run->stream == DCOMMI_STREAM_COLL ? m->gone_after <= run->seq
                                                  : now - run->idle_since > 2.0) {
                dcommi_poison_left(run, r);
                return;
            }
            continue;
        }
        if (p->lost) {
            dcommi_poison_lost(comm, r);
            return;
        }
        if (!run->peers[r].replied && p->same_host && p->pid != getpid() && p->started != 0 &&
            dcommi_process_started(p->pid) != p->started) {
            dcommi_peer_ended(comm->context, m->peer);
            return;
        }
        run->peers[r].asked = run->peers[r].replied ? now : run->peers[r].asked;
        run->peers[r].replied = false;
        dcommi_query(comm, r, run->stream, run->seq, &run->signature);
        if (!run->active) {
            return;
        }
    }
}

#endif
