/* join.h - create this rank's communicator by joining one that grows. */
#ifndef DCOMMI_COMM_JOIN_H
#define DCOMMI_COMM_JOIN_H

#include "../boot/newcomer.h"
#include "found.h"

/* Take part in one attempt. *guilty: it failed because of this rank. */
static dcomm_status dcommi_comm_join_once(dcomm_comm *comm, const dcommi_newcomer_place *place,
                                          bool *guilty)
{
    comm->opts.boot = DCOMM_BOOT_ID;
    comm->opts.id = place->id;
    comm->opts.rank = place->rank;
    comm->opts.size = place->size;
    dcomm_status status = dcommi_comm_found(comm, place->timeout_s, NULL, guilty);
    if (status < 0) {
        dcommi_comm_abandon_peers(comm);
        dcommi_comm_unman(comm);
    }
    return status;
}

/* Leave a communicator that was founded, but not confirmed by rank 0. If rank 0 died meanwhile, it
 * may have been by the other ranks, who would wait for this one. */
static void dcommi_comm_forsake(dcomm_comm *comm)
{
    dcommi_comm_renounce(comm);
    dcommi_comm_abandon_peers(comm);
    dcommi_comm_unman(comm);
}

/* Wait for a communicator that grows, and take part in attempts to create it until one succeeds on
 * all ranks. If another rank has spoilt an attempt, wait for the next one. */
static dcomm_status dcommi_comm_join(dcomm_comm *comm)
{
    dcommi_newcomer newcomer;
    dcommi_newcomer_place place;
    bool guilty = false, founded = false;
    dcomm_status status =
        dcommi_newcomer_begin(&newcomer, &comm->opts.id, comm->timeout_s, &comm->cancel);
    while (status >= 0) {
        status = dcommi_newcomer_next(&newcomer, &place);
        if (status == DCOMM_OK) {
            break;
        }
        if (founded) {
            dcommi_comm_forsake(comm);
            founded = false;
        }
        if (status == DCOMM_IN_PROGRESS) {
            const dcomm_status tried = dcommi_comm_join_once(comm, &place, &guilty);
            founded = tried >= 0;
            status = guilty || tried == DCOMM_ERR_ABORTED ? tried : DCOMM_IN_PROGRESS;
        }
    }
    char why[DCOMMI_MESSAGE_MAX];
    memcpy(why, dcommi_message, sizeof why);
    dcommi_newcomer_end(&newcomer);
    memcpy(dcommi_message, why, sizeof why);
    if (status == DCOMM_OK && !founded) {
        return dcommi_fail(DCOMM_ERR_CORRUPT, "rank 0 says that an attempt has succeeded that "
                                              "failed here");
    }
    return status;
}

#endif
