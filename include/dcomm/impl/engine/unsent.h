/* unsent.h - control messages that the transport has queued and then cannot send. */
#ifndef DCOMMI_UNSENT_H
#define DCOMMI_UNSENT_H

#include "arrivals.h"

static void dcommi_control_unsent(dcomm_context *context, int peer, int rank,
                                  const dcommi_header *h, dcomm_status status)
{
    dcomm_comm *comm = dcommi_comm_find(context, h->comm);
    if (h->type == DCOMMI_MSG_GOODBYE) {
        dcommi_ctl_pass(context, peer, h, "", 0);
    } else if (comm != NULL && h->type == DCOMMI_MSG_AGREE) {
        dcommi_agreement *g = dcommi_agreement_find(comm, h->b);
        if (g != NULL) {
            g->again = true;
        }
    } else if (comm != NULL) { /* an error has gone over the control connection already */
        dcommi_poison(comm, status, "rank %d could not send to rank %d: %s", comm->rank, rank,
                      dcomm_strerror(status));
    }
}

#endif
