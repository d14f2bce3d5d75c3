/* post.h - messages handed to the transport: the header that all of them have, and control
 * messages, which are a header and at most a few words. */
#ifndef DCOMMI_POST_H
#define DCOMMI_POST_H

#include "engine.h"

static inline dcommi_remote *dcommi_peer_of(dcomm_comm *comm, int rank)
{
    return &comm->context->peers[comm->members[rank].peer];
}

/* Fill in the communicator's facts, which every header has. */
static inline void dcommi_header_sign(const dcomm_comm *comm, dcommi_member *member,
                                      dcommi_header *header)
{
    header->comm = comm->id;
    header->src = (uint32_t)comm->rank;
    header->done = (uint32_t)comm->done;
    member->told = comm->done;
    member->addressed = true;
}

/* Send the message whose payload has been written where the transport had reserved room. */
static void dcommi_commit(dcomm_comm *comm, int rank, dcommi_header *header, size_t len)
{
    dcommi_member *member = &comm->members[rank];
    const dcommi_remote *peer = &comm->context->peers[member->peer];
    dcommi_header_sign(comm, member, header);
    comm->stats.messages_sent++;
    comm->stats.bytes_sent += len;
    peer->transport->call->commit(peer->transport, member->peer, header, sizeof *header, len);
}

/* Give a header, with the communicator's facts filled in, and a payload to the transport.
 * `device`: the payload lies on a device. */
static inline dcomm_status dcommi_post_from(dcomm_comm *comm, int rank, dcommi_header *header,
                                            const void *data, size_t len, bool device,
                                            dcommi_op *op)
{
    dcommi_member *member = &comm->members[rank];
    dcommi_remote *peer = &comm->context->peers[member->peer];
    if (peer->lost) {
        return dcommi_fail(DCOMM_ERR_PEER, "rank %d is lost: %s", rank, peer->why);
    }
    dcommi_header_sign(comm, member, header);
    const dcommi_transport_vtable *call = peer->transport->call;
    dcomm_status status = (device ? call->send_device : call->send)(
        peer->transport, member->peer, header, sizeof *header, data, len, op);
    return status < 0 ? dcommi_fail(status, "rank %d cannot be sent to: %s", rank, dcommi_message)
                      : status;
}

static dcomm_status dcommi_post(dcomm_comm *comm, int rank, dcommi_header *header, const void *data,
                                size_t len, dcommi_op *op)
{
    return dcommi_post_from(comm, rank, header, data, len, false, op);
}

/* Return a header for a message of a run. */
static inline dcommi_header dcommi_header_of(const dcommi_run *run, uint8_t type, uint32_t tag)
{
    dcommi_header h = {.type = type,
                       .stream = run->stream,
                       .stage = run->stage,
                       .signature = run->signature.hash ^ run->mark,
                       .seq = run->seq,
                       .tag = tag};
    return h;
}

/* ---- control messages ---- */

typedef struct dcommi_control {
    dcommi_op op;
    dcomm_context *context;
    struct dcommi_control *next; /* in context->free_controls, all without data */
    dcommi_header header;        /* while it waits in the transport: header, and receiver */
    int peer, rank;
    size_t len;
    uint8_t data[];
} dcommi_control;

static void dcommi_control_free(dcommi_control *control)
{
    if (control->len > 0) {
        dcommi_free(control);
    } else {
        control->next = control->context->free_controls;
        control->context->free_controls = control;
    }
}

/* Free a control message that was sent. The transport itself reports a peer that is lost. */
static void dcommi_control_done(dcommi_op *op, dcomm_status status)
{
    dcommi_control *control = (dcommi_control *)op;
    atomic_fetch_sub_explicit(&control->context->unsent, 1, memory_order_relaxed);
    if (status < 0 && status != DCOMM_ERR_PEER && status != DCOMM_ERR_ABORTED) {
        dcommi_control_unsent(control->context, control->peer, control->rank, &control->header,
                              status);
    }
    dcommi_control_free(control);
}

/* Send a control message; its payload is copied. */
static dcomm_status dcommi_send_header(dcomm_comm *comm, int rank, dcommi_header *header,
                                       const void *data, size_t len)
{
    dcommi_control *control = len == 0 ? comm->context->free_controls : NULL;
    if (control != NULL) {
        comm->context->free_controls = control->next;
    } else {
        control = dcommi_alloc_raw(sizeof *control + len);
        if (control == NULL) {
            return DCOMM_ERR_NO_MEMORY;
        }
        control->context = comm->context;
    }
    control->op = (dcommi_op){.done = dcommi_control_done};
    control->len = len;
    if (len > 0) {
        memcpy(control->data, data, len);
    }
    dcomm_status status =
        dcommi_post(comm, rank, header, len > 0 ? control->data : NULL, len, &control->op);
    if (status == DCOMM_IN_PROGRESS) {
        control->header = *header;
        control->peer = comm->members[rank].peer;
        control->rank = rank;
        atomic_fetch_add_explicit(&comm->context->unsent, 1, memory_order_relaxed);
    } else {
        dcommi_control_free(control);
    }
    /* UCX opens a connection only while this rank progresses. After an error a program may do
     * other work, and the others would wait. */
    if (status != DCOMM_OK &&
        (header->type == DCOMMI_MSG_ABORT || header->type == DCOMMI_MSG_REFUSED)) {
        dcommi_ctl_pass(comm->context, comm->members[rank].peer, header, data, len);
    }
    return status < 0 ? status : DCOMM_OK;
}

#define DCOMMI_OWED_S 1.0 /* seconds that a call waits for its control messages to leave */

/* Return true if control messages wait in the transports: signals of a barrier, the last words to a
 * rank. UCX may be opening a connection, which takes this rank's progress; and others wait. */
static inline bool dcommi_owes(const dcomm_context *context)
{
    return atomic_load_explicit(&context->unsent, memory_order_relaxed) > 0;
}

#endif
