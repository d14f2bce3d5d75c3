/* checks.h - looks at each run several times a second: is its time up, is it time to ask? Says whom
 * a time-out is to blame on. */
#ifndef DCOMMI_CHECKS_H
#define DCOMMI_CHECKS_H

#include "failure.h"

/* Return true if a rank that was asked does not answer. One that has answered before gets some
 * time: the last query may just be on its way. */
static bool dcommi_peer_silent(const dcommi_run *run, const dcommi_peer_state *peer)
{
    const double quarter = run->timeout_s / 4;
    const double least = quarter < DCOMMI_SILENT_AFTER ? quarter : DCOMMI_SILENT_AFTER;
    return !peer->replied && (!peer->known || dcommi_now() - peer->asked > least);
}

/* Write a sentence that begins with the run and `what`, and names the ranks to blame as far as
 * their answers tell. */
static void dcommi_run_blame(dcommi_run *run, const char *what, char text[DCOMMI_MESSAGE_MAX])
{
    dcomm_comm *comm = run->comm;
    enum { NEVER, BEHIND, SILENT, THERE, GROUPS };
    const size_t room = DCOMMI_MESSAGE_MAX;
    char name[64], where[64], ranks[GROUPS][112] = {{0}};
    bool *flags = dcommi_calloc((size_t)comm->size, GROUPS * sizeof *flags);
    bool one = true, several[GROUPS] = {false};
    if (flags != NULL) {
        for (int r = 0; r < comm->size; r++) {
            const dcommi_peer_state *peer = run->peers != NULL ? &run->peers[r] : NULL;
            bool asked = peer != NULL && dcommi_run_involves(run, r);
            bool heard = asked && !dcommi_peer_silent(run, peer);
            int group = r == comm->rank || (heard && peer->entry == DCOMMI_ENTERED) ? THERE
                        : asked && !heard                                           ? SILENT
                        : heard && peer->entry == DCOMMI_NOT_ENTERED                ? NEVER
                        : heard && peer->entry == DCOMMI_BEHIND                     ? BEHIND
                                                                                    : GROUPS;
            if (group < GROUPS) {
                flags[group * comm->size + r] = true;
            }
            one = one && (group != THERE || r == comm->rank);
        }
        for (int g = 0; g < GROUPS; g++) {
            several[g] = dcommi_ranks_text(dcommi_rank_wanted, flags + g * comm->size, comm->size,
                                           "", ranks[g], sizeof ranks[g]);
        }
    }
    dcommi_free(flags);
    dcommi_run_where(run, where, sizeof where);
    snprintf(name, sizeof name, "%s #%" PRIu64, dcomm_coll_name((dcomm_coll)run->signature.coll),
             run->seq);
    size_t at = (size_t)snprintf(text, room, "%s %s: ", name, what);
    if (ranks[NEVER][0] != 0) {
        at += (size_t)snprintf(text + at, room - at, "%s never entered %s; ", ranks[NEVER], name);
    }
    if (ranks[BEHIND][0] != 0) {
        at += (size_t)snprintf(text + at, room - at,
                               "%s %s called it on %s not come to it, and may be waiting for this "
                               "operation's end on another rank; ",
                               ranks[BEHIND], several[BEHIND] ? "have" : "has",
                               several[BEHIND] ? "streams that have" : "a stream that has");
    }
    if (ranks[SILENT][0] != 0) {
        at += (size_t)snprintf(text + at, room - at, "%s %s not answer; ", ranks[SILENT],
                               several[SILENT] ? "do" : "does");
    }
    snprintf(text + at, room - at, "%s wait%s for %s in %s",
             ranks[THERE][0] != 0 ? ranks[THERE] : "this rank", one ? "s" : "",
             ranks[NEVER][0] != 0 || ranks[BEHIND][0] != 0 || ranks[SILENT][0] != 0 ? "it"
                                                                                    : "progress",
             where[0] != 0 ? where : "no step");
}

/* Fail a run whose time is up. */
static void dcommi_run_timeout(dcommi_run *run)
{
    char what[48], text[DCOMMI_MESSAGE_MAX];
    dcommi_snprintf(what, sizeof what, "timed out after %.3g s", run->timeout_s);
    dcommi_run_blame(run, what, text);
    dcommi_poison(run->comm, DCOMM_ERR_TIMEOUT, "%s", text);
}

/* Say once, in the log, why a run without a limit takes so long. */
static void dcommi_run_long(dcommi_run *run)
{
    char what[64], text[DCOMMI_MESSAGE_MAX];
    run->told_long = true;
    snprintf(what, sizeof what, "has waited %d s, without a limit", DCOMMI_LONG_S);
    dcommi_run_blame(run, what, text);
    dcommi_log(DCOMMI_LOG_WARN, "%s", text);
}

/* Check every run of a communicator, about 20 times a second while there are any. */
static void dcommi_comm_check(dcomm_comm *comm, double now)
{
    for (dcommi_run *run = comm->runs, *next; run != NULL; run = next) {
        next = run->next;
        if (DCOMMI_UNLIKELY(run->why != NULL)) {
            dcommi_run_give_up(run);
            if (!run->active) {
                continue;
            }
        }
        if (run->submitted_at == 0) { /* its time begins when it is first looked at */
            run->submitted_at = run->idle_since = now;
            run->next_query = now + DCOMMI_QUERY_AFTER;
        }
        if (run->events != run->events_seen) {
            run->events_seen = run->events;
            run->idle_since = now;
            run->next_query = now + DCOMMI_QUERY_AFTER;
        }
        if (now - run->submitted_at > run->timeout_s) {
            dcommi_run_timeout(run);
            return;
        }
        if (!run->told_long && run->timeout_s > DCOMMI_LIMIT_MAX_S &&
            now - run->submitted_at > DCOMMI_LONG_S) {
            dcommi_run_long(run);
        }
        if (now >= run->next_query) {
            run->next_query =
                now + (now - run->idle_since < 1.0 ? 2 * DCOMMI_QUERY_AFTER : DCOMMI_QUERY_EVERY);
            dcommi_run_ask(run, now);
            if (atomic_load(&comm->poisoned) != 0) {
                return;
            }
        }
    }
}

#endif
