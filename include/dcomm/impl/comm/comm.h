/* comm.h - the base of this room: check a communicator when a call begins, give it the numbers to
 * choose algorithms by, show it to the engine. */
#ifndef DCOMMI_COMM_COMM_H
#define DCOMMI_COMM_COMM_H

#include "../engine/fast/bcast.h"
#include "../engine/launch.h"
#include "context.h"
#include "select.h"

/* ---- checks ---- */

/* The failure of this thread's last creation, for a caller that goes on without a communicator. */
static _Thread_local struct {
    dcomm_on_error on_error;
    char text[DCOMMI_MESSAGE_MAX];
} dcommi_uncreated;

/* Log, at the first call on a NULL communicator, why its creation failed: the caller may have
 * overlooked it. */
static void dcommi_say_uncreated(void)
{
    if (dcommi_uncreated.text[0] != 0 && dcommi_uncreated.on_error != DCOMM_ON_ERROR_RETURN) {
        dcommi_log(DCOMMI_LOG_ERROR,
                   "a call on a communicator that is NULL, because its creation failed: %s",
                   dcommi_uncreated.text);
    }
    dcommi_uncreated.text[0] = 0;
}

static dcomm_status dcommi_check_comm(const dcomm_comm *comm)
{
    DCOMMI_TRY(dcommi_check_fork());
    if (comm == NULL) {
        dcommi_say_uncreated();
        return dcommi_fail(DCOMM_ERR_INVALID, "comm is NULL");
    }
    if (DCOMMI_UNLIKELY(atomic_load_explicit(&comm->ready, memory_order_acquire) != DCOMM_OK)) {
        return dcommi_fail(DCOMM_ERR_INVALID, "comm is not created yet (see dcomm_comm_ready)");
    }
    return DCOMM_OK;
}

/* ---- the group of a thread ---- */

/* Return true if this thread has queued an operation of the communicator in a group. */
static bool dcommi_comm_in_group(const dcomm_comm *comm)
{
    for (const dcommi_run *run = dcommi_this_group.first; run != NULL; run = run->next_group) {
        if (run->comm == comm) {
            return true;
        }
    }
    return false;
}

/* Refuse the call `what` within a group. It must be over when it returns, but a group runs at its
 * end. */
static dcomm_status dcommi_check_no_group(const char *what)
{
    return dcommi_this_group.depth == 0
               ? DCOMM_OK
               : dcommi_fail(DCOMM_ERR_INVALID,
                             "%s is not possible between dcomm_group_start and dcomm_group_end",
                             what);
}

/* ---- shared by creation and derivation ---- */

/* Return true if opts.quorum is possible with so many ranks. */
static inline bool dcommi_quorum_fits(int quorum, int size)
{
    return quorum == 0 || quorum == DCOMM_QUORUM_NONE || (quorum > size / 2 && quorum <= size);
}

/* Make the chooser of a communicator from the numbers of `from` or, if that is NULL, the built-in
 * ones. */
static dcomm_status dcommi_comm_chooser(dcomm_comm *comm, const dcommi_chooser *from)
{
    dcomm_tuning tuning;
    dcomm_tuning_default(&tuning);
    tuning.device_ucx = comm->device_ucx;
    tuning.connections = comm->connections > 0 ? comm->connections : tuning.connections;
    comm->chooser = dcommi_alloc(sizeof *comm->chooser);
    return comm->chooser != NULL ? dcommi_chooser_set(comm->chooser, comm->groups, comm->size,
                                                      from != NULL ? &from->tuning : &tuning)
                                 : DCOMM_ERR_NO_MEMORY;
}

/* Prepare to send to all ranks, with so many connections to each rank on another host. The caller
 * holds the token. */
static void dcommi_comm_connections(dcomm_comm *comm, int connections)
{
    for (int r = 0; r < comm->size; r++) {
        int peer = comm->members[r].peer;
        dcommi_transport *t = peer >= 0 ? comm->context->peers[peer].transport : NULL;
        if (t != NULL && t->call->connect != NULL) {
            t->call->connect(t, peer, connections);
        }
    }
}

/* Show a communicator to the engine, and deliver the messages that came before. */
static void dcommi_comm_enter(dcomm_comm *comm)
{
    dcomm_context *context = comm->context;
    dcommi_token_take(context);
    comm->next = context->comms;
    context->comms = comm;
    context->liveness_s = comm->liveness_s;
    dcommi_bcast_open(comm);
    for (int r = 0; r < comm->size; r++) {
        int peer = comm->members[r].peer;
        if (peer >= 0 && context->peers[peer].lost) {
            dcommi_poison(comm, DCOMM_ERR_PEER, "rank %d was lost before: %s", r,
                          context->peers[peer].why);
        }
    }
    dcommi_beat_appoint(comm);
    dcommi_deliver_strays(context, comm);
    dcommi_token_release(context);
}

#endif
