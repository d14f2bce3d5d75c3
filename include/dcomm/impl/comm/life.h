/* life.h - abort, destroy and read out communicators. */
#ifndef DCOMMI_COMM_LIFE_H
#define DCOMMI_COMM_LIFE_H

#include "comm.h"

#define DCOMMI_GOODBYE_S 5.0       /* seconds that destroy waits for its peers */
#define DCOMMI_FAILED_LEAVE_S 0.02 /* the same after an error */
#define DCOMMI_FAILED_MEMORY_S 0.5 /* likewise, if peers may still move the caller's memory */
#define DCOMMI_SHUT_S 0.5          /* and for their device memory to be shut here */

/* ---- abort and destroy ---- */

DCOMM_API dcomm_status dcomm_comm_abort(dcomm_comm *comm, const char *reason)
{
    DCOMMI_TRY(dcommi_check_comm(comm));
    dcommi_comm_lock(comm);
    if (atomic_load(&comm->abort_wanted) == 0) {
        snprintf(comm->abort_reason, sizeof comm->abort_reason, "rank %d aborted: %.*s", comm->rank,
                 DCOMMI_TEXT_MAX - 32, reason != NULL ? reason : "no reason given");
        atomic_store(&comm->abort_wanted, 1);
        atomic_store(&comm->told, true);
    }
    dcommi_comm_unlock(comm);
    atomic_store(&comm->context->aborts, 1);
    /* Try more than once: the thread that progresses now may be about to stop. Give up in the end:
     * a callback may be our caller, and its thread holds the token. */
    for (int i = 0; i < 1000 && atomic_load(&comm->context->aborts) != 0; i++) {
        if (dcommi_token_try(comm->context)) {
            dcommi_progress(comm->context);
            dcommi_token_release(comm->context);
        } else {
            sched_yield();
        }
    }
    return DCOMM_OK;
}

DCOMM_API dcomm_status dcomm_comm_revoke(dcomm_comm *comm, const char *reason)
{
    return dcomm_comm_abort(comm, reason);
}

/* Return true if a run of the communicator waits for its stream. */
static bool dcommi_comm_gated(const dcomm_comm *comm)
{
    for (const dcommi_run *run = comm->context->gated; run != NULL; run = run->next_gated) {
        if (run->comm == comm) {
            return true;
        }
    }
    return false;
}

/* Wait for the outstanding operations. No run takes longer than its timeout. Streams have
 * comm->timeout_s to reach theirs. */
static void dcommi_comm_await_runs(dcomm_comm *comm)
{
    double until = dcommi_now() + comm->timeout_s;
    bool outstanding = true;
    while (outstanding) {
        dcommi_token_take(comm->context);
        dcommi_start_submitted(comm->context);
        outstanding = comm->runs != NULL || (dcommi_comm_gated(comm) && dcommi_now() < until);
        dcommi_token_release(comm->context);
        if (outstanding) {
            dcommi_progress_or_yield(comm->context);
        }
    }
}

/* Return true if the transport still holds memory of the caller's, or if a run waits for its
 * stream. A context that closes now gives all memory back. */
static bool dcommi_comm_holds(dcomm_comm *comm)
{
    dcommi_token_take(comm->context);
    bool closes = atomic_load(&comm->context->refs) == 1;
    bool holds = (comm->in_transport > 0 && !closes) || dcommi_comm_gated(comm);
    dcommi_token_release(comm->context);
    return holds;
}

/* Return true if a peer that we have exchanged messages with has not said goodbye yet and does not
 * know of an error, or if messages have still to leave. Our own goodbye is one: nobody makes
 * progress for it while the caller computes, and the peer waits for it. */
static bool dcommi_comm_awaits(dcomm_comm *comm)
{
    dcommi_token_take(comm->context);
    bool awaits = comm->in_transport > 0 || dcommi_owes(comm->context);
    for (int r = 0; r < comm->size && !awaits; r++) {
        const dcommi_member *m = &comm->members[r];
        awaits = m->peer >= 0 && (m->heard || m->addressed) && !m->gone && !m->told_us &&
                 !comm->context->peers[m->peer].lost;
    }
    dcommi_token_release(comm->context);
    return awaits;
}

/* Shut the device memory of peers that share no other communicator with us. They must hear that
 * before our goodbye: they do not free it before. */
static void dcommi_comm_shut(dcomm_comm *comm)
{
    dcomm_context *context = comm->context;
    dcommi_token_take(context);
    for (int r = 0; r < comm->size; r++) {
        int peer = comm->members[r].peer;
        if (peer >= 0 && context->peers[peer].users == 1) {
            dcommi_maps_forget(context, peer);
        }
    }
    dcommi_token_release(context);
    double until = dcommi_now() + DCOMMI_SHUT_S;
    dcommi_memory_serve(context, NULL);
    while (dcommi_memory_shutting(context) && dcommi_now() < until) {
        dcommi_progress_or_yield(context);
        dcommi_memory_serve(context, NULL);
    }
}

/* Return the error that the caller has not looked at, with its message; DCOMM_OK: there is
 * none. */
static dcomm_status dcommi_comm_untold(const dcomm_comm *comm, int status)
{
    return status < 0 && !atomic_load(&comm->told)
               ? dcommi_fail((dcomm_status)status, "%s", comm->message)
               : DCOMM_OK;
}

/* Say goodbye to all other members. With the token. Processes on this host see this one end, even
 * if we never exchanged messages. They get a goodbye as well, or they take it for dead. Of a
 * communicator that this rank has not entered, others may not know yet: they keep the message. */
static void dcommi_comm_say_goodbye(dcomm_comm *comm)
{
    dcomm_context *context = comm->context;
    const bool entered = dcommi_comm_find(context, comm->id) != NULL;
    for (int r = 0; r < comm->size; r++) {
        dcommi_member *m = &comm->members[r];
        if (m->peer < 0 || context->peers[m->peer].lost) {
            continue;
        }
        bool spoken = m->heard || m->addressed, told = false;
        dcommi_header h = {.type = DCOMMI_MSG_GOODBYE, .a = comm->entered, .b = !entered};
        if (spoken || (context->peers[m->peer].same_host && !m->gone)) {
            told = dcommi_send_header(comm, r, &h, NULL, 0) >= 0;
            m->addressed = spoken; /* do not wait for an answer to a goodbye */
        }
        if (!told && !entered) {
            dcommi_header_sign(comm, m, &h);
            dcommi_ctl_pass(context, m->peer, &h, "", 0);
        } else if (!told && (spoken || !m->gone)) {
            dcommi_ctl_leave(context, m->peer, comm->id, comm->entered);
        }
    }
}

DCOMM_API dcomm_status dcomm_comm_destroy(dcomm_comm **comm_p)
{
    if (comm_p == NULL || *comm_p == NULL) {
        return DCOMM_OK;
    }
    dcomm_comm *comm = *comm_p;
    DCOMMI_TRY(dcommi_check_fork());
    if (dcommi_comm_in_group(comm)) {
        return dcommi_fail(DCOMM_ERR_INVALID,
                           "dcomm_comm_destroy: operations of comm are queued in "
                           "a group; call dcomm_group_end first");
    }
    *comm_p = NULL;
    if (comm->has_creator) {
        int ready = atomic_load(&comm->ready); /* before it is cancelled */
        atomic_store(&comm->cancel, 1);
        pthread_join(comm->creator, NULL);
        if (atomic_load(&comm->ready) != DCOMM_OK) {
            dcomm_status failed = ready < 0 ? dcommi_comm_untold(comm, ready) : DCOMM_OK;
            dcommi_comm_drop(comm);
            return failed;
        }
    }
    dcomm_context *context = comm->context;
    bool before = atomic_load(&comm->poisoned) != 0;
    dcommi_comm_await_runs(comm);
    dcommi_comm_lock(comm);
    bool held = comm->refs > 1; /* requests are left, and tell how they ended */
    dcommi_comm_unlock(comm);
    dcommi_token_take(context);
    dcommi_start_submitted(context);
    bool failed = atomic_load(&comm->poisoned) != 0;
    if (comm->runs != NULL || dcommi_comm_gated(comm)) {
        comm->on_error = DCOMM_ON_ERROR_RETURN; /* the caller caused it */
        atomic_store(&comm->told, true);
        dcommi_poison(comm, DCOMM_ERR_ABORTED, "the communicator was destroyed meanwhile");
        failed = true;
    }
    dcommi_bcast_leave(comm);
    dcommi_token_release(context);
    dcommi_comm_shut(comm);
    dcommi_token_take(context);
    comm->leaves = true;
    dcommi_comm_say_goodbye(comm);
    dcommi_token_release(context);
    /* A peer may still have to read from us, or to hear of the error. */
    const double begun = dcommi_now();
    double until = begun + (failed ? DCOMMI_FAILED_LEAVE_S : DCOMMI_GOODBYE_S);
    double held_until = begun + (failed ? DCOMMI_FAILED_MEMORY_S : DCOMMI_GOODBYE_S);
    while ((dcommi_comm_awaits(comm) && dcommi_now() < until) ||
           (dcommi_comm_holds(comm) && dcommi_now() < held_until)) {
        dcommi_progress_or_yield(context);
    }
    dcommi_token_take(context);
    context->hurries = failed;
    dcomm_comm **at = &context->comms;
    while (*at != comm) {
        at = &(*at)->next;
    }
    *at = comm->next;
    dcommi_bury(context, comm->id);
    dcommi_bcast_close(comm);
    dcommi_early_purge(comm, NULL);
    dcommi_progress(context);
    for (int r = 0; r < comm->size; r++) {
        int peer = comm->members[r].peer;
        if (peer < 0 || --context->peers[peer].users > 0) {
            continue;
        }
        dcommi_maps_forget(context, peer); /* no communicator is left to hear when they are
                                            * freed */
        if (context->peers[peer].lost) {
            dcommi_transport *t = context->peers[peer].transport;
            t->call->remove_peer(t, peer);
        }
    }
    dcommi_leaving_look(context);
    dcommi_token_release(context);
    for (dcommi_agreement *g = comm->agreements; g != NULL; g = g->next) {
        dcommi_agreement_drop_part(g);
    }
    /* Ignore the loss of a peer while we part: our operations with it were over. */
    int error = atomic_load(&comm->poisoned);
    dcomm_status untold =
        !held && (before || error != DCOMM_ERR_PEER) ? dcommi_comm_untold(comm, error) : DCOMM_OK;
    dcommi_comm_drop(comm);
    dcommi_shared_reclaim();
    return untold;
}

/* ---- read-out ---- */

static bool dcommi_comm_usable(const dcomm_comm *comm)
{
    return comm != NULL && atomic_load_explicit(&comm->ready, memory_order_acquire) == DCOMM_OK;
}

DCOMM_API int dcomm_comm_rank(const dcomm_comm *comm)
{
    return dcommi_comm_usable(comm) ? comm->rank : -1;
}

DCOMM_API int dcomm_comm_size(const dcomm_comm *comm)
{
    return dcommi_comm_usable(comm) ? comm->size : -1;
}

DCOMM_API dcomm_context *dcomm_comm_context(const dcomm_comm *comm)
{
    return dcommi_comm_usable(comm) ? comm->context : NULL;
}

/* Note that the caller has looked at an error. */
static void dcommi_comm_looked(const dcomm_comm *comm, int status)
{
    if (status < 0) {
        atomic_store_explicit(&((dcomm_comm *)(uintptr_t)comm)->told, true, memory_order_relaxed);
    }
}

DCOMM_API dcomm_status dcomm_comm_status(const dcomm_comm *comm)
{
    if (comm == NULL) {
        return DCOMM_ERR_INVALID;
    }
    int status = atomic_load_explicit(&comm->poisoned, memory_order_acquire);
    dcommi_comm_looked(comm, status);
    return (dcomm_status)status;
}

DCOMM_API const char *dcomm_comm_error(const dcomm_comm *comm)
{
    if (comm == NULL) {
        return "";
    }
    bool failed = atomic_load_explicit(&comm->poisoned, memory_order_acquire) != 0 ||
                  atomic_load_explicit(&comm->ready, memory_order_acquire) < 0;
    dcommi_comm_looked(comm, failed ? -1 : 0);
    return failed ? comm->message : "";
}

DCOMM_API int dcomm_comm_host(const dcomm_comm *comm, int rank)
{
    return dcommi_comm_usable(comm) && rank >= 0 && rank < comm->size
               ? dcommi_group_of(comm->groups, 0, rank)
               : -1;
}

DCOMM_API const char *dcomm_comm_hostname(const dcomm_comm *comm, int rank)
{
    return dcommi_comm_usable(comm) && rank >= 0 && rank < comm->size ? comm->members[rank].hostname
                                                                      : NULL;
}

DCOMM_API int dcomm_comm_level_count(const dcomm_comm *comm)
{
    return dcommi_comm_usable(comm) ? comm->groups->nlevels : -1;
}

_Static_assert((int)DCOMM_LEVEL_HOST == DCOMMI_LEVEL_HOST &&
                   (int)DCOMM_LEVEL_CORE == DCOMMI_LEVEL_CORE,
               "one numbering");

DCOMM_API dcomm_status dcomm_comm_get_level(const dcomm_comm *comm, int level, dcomm_level *info)
{
    static const char *const names[] = {"host", "package", "numa", "cache", "core"};
    DCOMMI_TRY(dcommi_check_comm(comm));
    DCOMMI_NEED(info);
    if (level < 0 || level >= comm->groups->nlevels) {
        return dcommi_fail(DCOMM_ERR_INVALID, "level is %d; there are %d levels, from 0 on", level,
                           comm->groups->nlevels);
    }
    info->kind = (dcomm_level_kind)comm->groups->kind[level];
    info->name = names[info->kind];
    info->groups = comm->groups->count[level];
    return DCOMM_OK;
}

DCOMM_API int dcomm_comm_group(const dcomm_comm *comm, int level, int rank)
{
    return dcommi_comm_usable(comm) && rank >= 0 && rank < comm->size && level >= 0 &&
                   level < comm->groups->nlevels
               ? dcommi_group_of(comm->groups, level, rank)
               : -1;
}

DCOMM_API int dcomm_comm_order(const dcomm_comm *comm, int position)
{
    return dcommi_comm_usable(comm) && position >= 0 && position < comm->size
               ? comm->groups->order[position]
               : -1;
}

DCOMM_API dcomm_status dcomm_comm_get_place(const dcomm_comm *comm, int rank, dcomm_place *place)
{
    DCOMMI_TRY(dcommi_check_comm(comm));
    DCOMMI_NEED(place);
    if (rank < 0 || rank >= comm->size) {
        return dcommi_fail(DCOMM_ERR_INVALID, "rank is %d; there are %d ranks", rank, comm->size);
    }
    const dcommi_site *p = &comm->places[rank];
    place->package = (int)dcommi_max64(p->package, -1);
    place->numa = (int)dcommi_max64(p->numa, -1);
    place->cache = (int)dcommi_max64(p->cache, -1);
    place->core = (int)dcommi_max64(p->core, -1);
    place->cpus = p->cpus;
    place->bound = !dcommi_place_unbound(comm->groups, comm->places, rank);
    dcommi_place_cpu_list(p, place->cpu_list, sizeof place->cpu_list);
    snprintf(place->nic, sizeof place->nic, "%s", p->nic[0] != 0 ? p->nic : "none");
    snprintf(place->gpu, sizeof place->gpu, "%s", p->gpu[0] != 0 ? p->gpu : "none");
    return DCOMM_OK;
}

DCOMM_API dcomm_status dcomm_comm_get_stats(const dcomm_comm *comm, dcomm_stats *stats)
{
    DCOMMI_TRY(dcommi_check_comm(comm));
    DCOMMI_NEED(stats);
    dcommi_token_take(comm->context);
    dcommi_comm_lock((dcomm_comm *)(uintptr_t)comm);
    *stats = comm->stats;
    dcommi_comm_unlock((dcomm_comm *)(uintptr_t)comm);
    dcommi_token_release(comm->context);
    return DCOMM_OK;
}

#endif
