/* found.h - found a communicator over a rendezvous: the steps in order. */
#ifndef DCOMMI_COMM_FOUND_H
#define DCOMMI_COMM_FOUND_H

#include "meet.h"
#include "tune_comm.h"

/* Meet the other ranks. All steps that can fail on one rank alone come before the ranks agree.
 * *tuner_p: the tuner to measure with afterwards; NULL: measure nothing. */
static dcomm_status dcommi_comm_meet(dcomm_comm *comm, dcommi_boot *boot, dcommi_tuner **tuner_p)
{
    dcommi_gathering m = {0};
    comm->rank = boot->rank;
    comm->members = dcommi_calloc((size_t)boot->size, sizeof *comm->members);
    if (comm->members == NULL) {
        return DCOMM_ERR_NO_MEMORY;
    }
    comm->size = boot->size;
    for (int r = 0; r < comm->size; r++) {
        comm->members[r].peer = -1;
    }
    if (!dcommi_quorum_fits(comm->quorum, comm->size)) {
        return dcommi_fail(DCOMM_ERR_INVALID,
                           "quorum is %d; it may be %d to %d of these %d ranks, "
                           "DCOMM_QUORUM_NONE, or 0 for the default",
                           comm->quorum, comm->size / 2 + 1, comm->size, comm->size);
    }
    dcomm_status status = dcommi_comm_locate(comm, boot, &m);
    if (status >= 0) {
        dcommi_comm_adopt(comm, &m);
        status = dcommi_comm_chooser(comm, NULL);
        DCOMMI_THEN(status, dcommi_agreements_open(comm));
        status = status >= 0 ? dcommi_comm_peers(comm, &m) : status;
        if (status >= 0 && comm->nhosts > 1 && comm->context->control != NULL) {
            status = dcommi_comm_control(comm, m.net.card, boot);
        }
        if (status >= 0 && comm->tunes && comm->size > 1) {
            status = dcommi_tuner_new(comm, tuner_p);
        }
        status = dcommi_comm_agree(comm, boot, status);
    }
    if (status >= 0) {
        int connections = (int)comm->chooser->tuning.connections;
        connections = comm->connections > 0 ? comm->connections : connections;
        dcommi_token_take(comm->context);
        dcommi_comm_connections(comm, connections > 0 ? connections : 1);
        dcommi_token_release(comm->context);
    }
    dcommi_gathering_free(&m);
    return status;
}

/* Leave a communicator that this rank does not enter. Others may have entered it, or may do so
 * later, and must not wait for this rank. */
static void dcommi_comm_renounce(dcomm_comm *comm)
{
    dcomm_context *context = comm->context;
    char why[DCOMMI_MESSAGE_MAX];
    memcpy(why, dcommi_message, sizeof why);
    dcommi_token_take(context);
    if (comm->members != NULL) {
        dcommi_comm_say_goodbye(comm);
        dcommi_bury(context, comm->id);
    }
    dcommi_token_release(context);
    dcommi_pay(context, NULL);
    memcpy(dcommi_message, why, sizeof why);
}

/* Meet the others, measure unless rank 0 has `given` numbers, and agree with them that all have a
 * communicator now. */
static dcomm_status dcommi_comm_constitute(dcomm_comm *comm, dcommi_boot *boot,
                                           const dcomm_tuning *given)
{
    dcommi_tuner *tuner = NULL;
    dcomm_status status = dcommi_comm_meet(comm, boot, &tuner);
    if (status >= 0 && tuner != NULL) {
        status = dcommi_comm_agree(comm, boot, dcommi_tuner_run(tuner, comm, given, false));
        boot->guilty = boot->guilty && !tuner->by_another;
    }
    if (status < 0 && !boot->agreed && !boot->client.told) { /* the others may have gone on */
        dcommi_comm_renounce(tuner != NULL && tuner->comm != NULL ? tuner->comm : comm);
    }
    dcommi_tuner_free(tuner);
    return status;
}

/* Found a communicator as comm->opts say; the engine does not see it yet. The context is there.
 * `given` (NULL: none) are rank 0's numbers. *guilty (may be NULL) tells if it failed because of
 * this rank. */
static dcomm_status dcommi_comm_found(dcomm_comm *comm, double timeout_s, const dcomm_tuning *given,
                                      bool *guilty)
{
    dcommi_boot boot;
    dcomm_status status = dcommi_boot_open(&comm->opts, timeout_s, &comm->cancel, &boot);
    DCOMMI_THEN(status, dcommi_comm_constitute(comm, &boot, given));
    if (status < 0) {
        dcommi_boot_tell(&boot, status);
    }
    dcommi_boot_close(&boot, status);
    if (guilty != NULL) {
        *guilty = boot.guilty;
    }
    return status;
}

/* Let go of the peers of a communicator that was founded in vain, and of their goodbyes. */
static void dcommi_comm_abandon_peers(dcomm_comm *comm)
{
    dcomm_context *context = comm->context;
    dcommi_token_take(context);
    dcommi_bury(context, comm->id);
    for (int r = 0; comm->members != NULL && r < comm->size; r++) {
        dcommi_remote *p =
            comm->members[r].peer >= 0 ? &context->peers[comm->members[r].peer] : NULL;
        if (p != NULL && --p->users == 0 && p->lost) {
            p->transport->call->remove_peer(p->transport, comm->members[r].peer);
        }
    }
    dcommi_token_release(context);
}

#endif
