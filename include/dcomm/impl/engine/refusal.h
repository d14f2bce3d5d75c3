/* refusal.h - collectives that a rank refuses because of its arguments. The rank takes the
 * operation's number all the same and tells the others, which then fail with that message instead
 * of waiting. Each rank that learns of the refusal passes it on once, to ranks at powers of two,
 * as with errors. Mostly all ranks refuse the same call: then these are the fewest messages that
 * reach every rank.
 *
 * The communicator stays usable: messages of the operation are dropped by its number. It is
 * poisoned only where a rank cannot take its part back: the operation is over there, or a later
 * one has been called, or it is on a stream. */
#ifndef DCOMMI_REFUSAL_H
#define DCOMMI_REFUSAL_H

#include "failure.h"

#define DCOMMI_REFUSALS_OVER 64   /* records of operations that are over; older ones are merged */
#define DCOMMI_REFUSALS_AHEAD 256 /* of operations to come; others are asked for */

/* ---- records ---- */

static dcommi_refusal *dcommi_refusal_find(const dcomm_comm *comm, uint64_t seq)
{
    dcommi_refusal *r = comm->refusals;
    while (r != NULL && (seq < r->from || seq > r->to)) {
        r = r->next;
    }
    return r;
}

/* Remember a refusal. Without memory it is forgotten, and the other ranks ask for it later. */
static void dcommi_refusal_add(dcomm_comm *comm, uint64_t seq, int rank, const char *text,
                               bool over)
{
    const size_t len = strlen(text) + 1;
    dcommi_refusal *r = dcommi_alloc(sizeof *r + len);
    if (r != NULL) {
        r->from = r->to = seq;
        r->rank = rank;
        r->over = over;
        memcpy(r->text, text, len);
        r->next = comm->refusals;
        comm->refusals = r;
        comm->early_count += !over; /* the fast path checks this count */
    }
}

static void dcommi_refusal_drop(dcommi_refusal **at)
{
    dcommi_refusal *r = *at;
    *at = r->next;
    dcommi_free(r);
}

/* Forget what was heard of an operation that begins now. */
static void dcommi_refusal_begin(dcomm_comm *comm, uint64_t seq)
{
    for (dcommi_refusal **at = &comm->refusals; *at != NULL; at = &(*at)->next) {
        if (!(*at)->over && (*at)->from == seq) {
            comm->early_count -= comm->early_count > 0;
            dcommi_refusal_drop(at);
            return;
        }
    }
}

/* Keep few records of operations that are over. A late announcement must still find its number, so
 * merge the oldest two where they are adjacent. */
static void dcommi_refusal_trim(dcomm_comm *comm)
{
    dcommi_refusal **oldest = NULL, *before = NULL, *last = NULL;
    unsigned n = 0;
    for (dcommi_refusal **at = &comm->refusals; *at != NULL; at = &(*at)->next) {
        if ((*at)->over) {
            before = last;
            last = *at;
            oldest = at;
            n++;
        }
    }
    if (n > DCOMMI_REFUSALS_OVER) {
        if (before->from == last->to + 1) {
            before->from = last->from;
        }
        dcommi_refusal_drop(oldest);
    }
}

static void dcommi_refusals_free(dcomm_comm *comm)
{
    while (comm->refusals != NULL) {
        dcommi_refusal_drop(&comm->refusals);
    }
}

/* ---- telling ---- */

static void dcommi_refusal_tell(dcomm_comm *comm, int to, uint64_t seq, int rank, const char *text)
{
    const dcommi_member *m = &comm->members[to];
    if (m->peer >= 0 && !m->gone && !comm->context->peers[m->peer].lost) {
        dcommi_header h = {.type = DCOMMI_MSG_REFUSED, .seq = seq, .a = (uint64_t)rank};
        dcommi_send_header(comm, to, &h, text, strnlen(text, DCOMMI_TEXT_MAX));
    }
}

static void dcommi_refusal_pass_on(dcomm_comm *comm, uint64_t seq, int rank, const char *text)
{
    for (int64_t step = 1; step < comm->size; step *= 2) {
        dcommi_refusal_tell(comm, (int)((comm->rank + step) % comm->size), seq, rank, text);
    }
}

static bool dcommi_refusal_answer(dcomm_comm *comm, const dcommi_header *h)
{
    const dcommi_refusal *r = comm->refusals != NULL && h->stream == DCOMMI_STREAM_COLL
                                  ? dcommi_refusal_find(comm, h->seq)
                                  : NULL;
    if (r == NULL || !r->over) {
        return false;
    }
    dcommi_refusal_tell(comm, (int)h->src, h->seq, r->rank, r->text);
    return true;
}

/* ---- taking part ---- */

/* Record that an operation is over here without having run. */
static void dcommi_refusal_over(dcomm_comm *comm, uint64_t seq, int rank, const char *text)
{
    dcommi_refusal_begin(comm, seq);
    dcommi_refusal_add(comm, seq, rank, text, true);
    dcommi_refusal_trim(comm);
    dcommi_early_purge(comm, &seq);
}

/* Start and end the run that stands for a refusal of our own. */
static void dcommi_refusal_start(dcommi_run *run)
{
    dcomm_comm *comm = run->comm;
    comm->started++;
    if (run->seq >= comm->entered) {
        comm->entered = run->seq + 1;
    }
    if (atomic_load(&comm->poisoned) == 0 && run->why != NULL) {
        dcommi_refusal_over(comm, run->seq, comm->rank, run->why);
        dcommi_refusal_pass_on(comm, run->seq, comm->rank, run->why);
    }
    dcommi_advance_done(comm);
    run->next_finished = comm->context->finished;
    comm->context->finished = run;
    atomic_store_explicit(&run->status, DCOMM_ERR_INVALID, memory_order_release);
}

static void dcommi_run_give_up(dcommi_run *run)
{
    const dcommi_move *move = run->moves;
    while (move != NULL && !move->in_transport) {
        move = move->next;
    }
    if (move == NULL) {
        dcommi_run_finish(run, DCOMM_ERR_MISMATCH);
    }
}

/* Fail a run in the engine whose operation `rank` has refused. If it cannot fail alone, fail the
 * communicator. */
static void dcommi_run_refused(dcommi_run *run, int rank, const char *text)
{
    dcomm_comm *comm = run->comm;
    char why[DCOMMI_MESSAGE_MAX];
    snprintf(why, sizeof why, "rank %d refused %s #%" PRIu64 ": %.400s", rank,
             dcomm_coll_name((dcomm_coll)run->signature.coll), run->seq, text);
    dcommi_comm_lock(comm);
    bool last = comm->next_seq == run->seq + 1;
    comm->chain = last ? 0 : comm->chain; /* as on the rank that refused */
    dcommi_comm_unlock(comm);
    run->why = last && run->gate.stream == NULL ? dcommi_strdup(why) : NULL;
    if (run->why == NULL) {
        dcommi_poison(comm, DCOMM_ERR_MISMATCH, "%s", why);
        return;
    }
    dcommi_log(DCOMMI_LOG_INFO, "rank %d: %s", comm->rank, why);
    dcommi_refusal_over(comm, run->seq, rank, text);
    dcommi_run_give_up(run);
}

/* Fail a run that begins, if its operation is known to be refused. Return true if it has ended. */
static bool dcommi_run_refused_before(dcommi_run *run)
{
    dcomm_comm *comm = run->comm;
    const dcommi_refusal *r = run->stream == DCOMMI_STREAM_COLL && comm->refusals != NULL
                                  ? dcommi_refusal_find(comm, run->seq)
                                  : NULL;
    char text[DCOMMI_TEXT_MAX + 1];
    if (r == NULL) {
        return false;
    }
    snprintf(text, sizeof text, "%s", r->text);
    dcommi_run_refused(run, r->rank, text);
    return true;
}

/* Handle a peer's message that rank h->a has refused an operation. */
static void dcommi_on_refused(dcomm_comm *comm, const dcommi_header *h, const void *data,
                              size_t len)
{
    char text[DCOMMI_TEXT_MAX + 1];
    unsigned ahead = 0;
    if (h->stream != DCOMMI_STREAM_COLL || h->a >= (uint64_t)comm->size ||
        (int)h->a == comm->rank || dcommi_refusal_find(comm, h->seq) != NULL) {
        return;
    }
    dcommi_peer_text(text, data, len);
    const dcommi_history *entry = &comm->history[h->seq % DCOMMI_HISTORY];
    dcommi_run *run = dcommi_run_find(comm, h);
    if (run != NULL) {
        dcommi_run_refused(run, (int)h->a, text);
    } else if (h->seq < comm->done || (entry->known && entry->seq == h->seq)) {
        dcommi_poison(comm, DCOMM_ERR_MISMATCH,
                      "rank %d refused operation #%" PRIu64 ", which rank %d has completed: %.400s",
                      (int)h->a, h->seq, comm->rank, text);
    } else {
        for (const dcommi_refusal *r = comm->refusals; r != NULL; r = r->next) {
            ahead += !r->over;
        }
        if (ahead < DCOMMI_REFUSALS_AHEAD) {
            dcommi_refusal_add(comm, h->seq, (int)h->a, text, false);
        }
    }
    if (atomic_load(&comm->poisoned) == 0) {
        dcommi_refusal_pass_on(comm, h->seq, (int)h->a, text);
    }
}

#endif
