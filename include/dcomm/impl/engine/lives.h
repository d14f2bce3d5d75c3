/* lives.h - the end of communicators and contexts. The last one that uses them frees them: the
 * creator, a run under way, registered memory. */
#ifndef DCOMMI_LIVES_H
#define DCOMMI_LIVES_H

#include "progress.h"
#include "../base/forked.h"
#include "../boot/lobby.h"

#define DCOMMI_CLOSE_S 1.0         /* seconds that a context waits for its last messages to leave */
#define DCOMMI_FAILED_CLOSE_S 0.01 /* the same if its last communicator had failed */

/* ---- contexts ---- */

/* Drop a reference to a context's memory. A run may outlive the open context, and still reads its
 * owner. */
static void dcommi_context_unhold(dcomm_context *context)
{
    if (atomic_fetch_sub(&context->holders, 1) == 1) {
        dcommi_free(context);
    }
}

/* Drop a reference; the last one closes the context. */
static dcomm_status dcommi_context_release(dcomm_context *context)
{
    if (atomic_fetch_sub(&context->refs, 1) != 1) {
        return DCOMM_OK;
    }
    if (context->has_thread) {
        atomic_store_explicit(&context->stop, 1, memory_order_release);
        pthread_join(context->thread, NULL);
    }
    dcommi_lobbies_close(&context->lobbies);
    while (context->strays != NULL) {
        dcommi_stray *stray = context->strays;
        context->strays = stray->next;
        dcommi_early_free(stray->early);
        dcommi_free(stray);
    }
    dcommi_scratch_free(context);
    dcommi_regions_free(context);
    dcommi_ctl_close(context);
    const double patience = context->hurries ? DCOMMI_FAILED_CLOSE_S : DCOMMI_CLOSE_S;
    const double until = dcommi_now() + patience; /* of both */
    if (context->net != NULL) {
        context->net->call->close(context->net, patience, false);
    }
    if (context->local != NULL) {
        context->local->call->close(context->local, until - dcommi_now(), false);
    }
    while (context->finished != NULL) { /* ended by the close */
        dcommi_run *run = context->finished;
        context->finished = run->next_finished;
        dcommi_run_unref(run);
    }
    while (context->free_moves != NULL) {
        dcommi_move *move = context->free_moves;
        context->free_moves = move->next;
        dcommi_free(move);
    }
    while (context->free_controls != NULL) {
        dcommi_control *control = context->free_controls;
        context->free_controls = control->next;
        dcommi_free(control);
    }
    dcommi_gates_drop(context);
    dcommi_devices_free(context);
    dcommi_free(context->staging);
    dcommi_free((void *)context->pointers);
    dcommi_free(context->lengths);
    dcommi_free(context->pieces);
    dcommi_free(context->peers);
    dcommi_context_unhold(context);
    dcommi_shared_reclaim();
    atomic_fetch_sub(&dcommi_in_use, 1);
    return DCOMM_OK;
}

/* ---- communicators ---- */

/* Make a communicator of a context (NULL: it gets one later), with one reference. NULL without
 * memory. */
static dcomm_comm *dcommi_comm_new(dcomm_context *context)
{
    dcomm_comm *comm = dcommi_alloc(sizeof *comm);
    if (comm != NULL) {
        atomic_fetch_add(&dcommi_in_use, 1);
        comm->refs = 1;
        comm->context = context;
        if (context != NULL) {
            atomic_fetch_add(&context->refs, 1);
            atomic_fetch_add(&context->holders, 1);
        }
    }
    return comm;
}

/* Free all that depends on which ranks a communicator has. */
static void dcommi_comm_unman(dcomm_comm *comm)
{
    dcommi_cache_clear(comm);
    dcommi_agreements_free(comm);
    for (int r = 0; comm->members != NULL && r < comm->size; r++) {
        dcommi_free(comm->members[r].hostname);
    }
    dcommi_free(comm->members);
    dcommi_groups_free(&comm->groups);
    dcommi_free(comm->chooser);
    dcommi_free(comm->places);
    comm->members = NULL;
    comm->chooser = NULL;
    comm->places = NULL;
    comm->children = 0; /* of ranks that found it again, all must count from the same number */
    comm->all_connected = false;
}

static void dcommi_comm_free(dcomm_comm *comm)
{
    dcommi_coded_free_all(comm);
    while (comm->free_runs != NULL) {
        dcommi_run *run = comm->free_runs;
        comm->free_runs = run->next;
        dcommi_free(run->memory);
        dcommi_free(run);
    }
    dcommi_refusals_free(comm);
    dcommi_free(comm->scratch);
    dcommi_free(comm->bcast);
    while (comm->loans != NULL) {
        dcommi_loan *loan = comm->loans;
        comm->loans = loan->next;
        dcommi_free(loan);
    }
    dcommi_comm_unman(comm);
    if (comm->context != NULL) {
        dcommi_context_unhold(comm->context);
    }
    dcommi_free(comm->names[0]);
    dcommi_free(comm->names[1]);
    dcommi_free(comm);
    atomic_fetch_sub(&dcommi_in_use, 1);
}

/* Drop a reference to a communicator. */
static void dcommi_comm_unref(dcomm_comm *comm)
{
    dcommi_comm_lock(comm);
    bool last = --comm->refs == 0;
    dcommi_comm_unlock(comm);
    if (last) {
        dcommi_comm_free(comm);
    }
}

/* Drop the creator's references to a communicator and to its context. Runs hold only the
 * communicator: the last of them may end while the context closes. */
static void dcommi_comm_drop(dcomm_comm *comm)
{
    dcomm_context *context = comm->context;
    dcommi_comm_unref(comm);
    if (context != NULL) {
        dcommi_context_release(context);
    }
}

/* Drop this rank's part of a communicator that was not confirmed. */
static void dcommi_agreement_drop_part(dcommi_agreement *g)
{
    if (g->part != NULL) {
        dcommi_comm_drop(g->part);
        g->part = NULL;
    }
}

#endif
