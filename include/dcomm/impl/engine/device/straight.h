/* straight.h - device memory that UCX sends and receives itself between hosts, without a pinned
 * slot: which ranks can do so, and the transfers under way. */
#ifndef DCOMMI_STRAIGHT_H
#define DCOMMI_STRAIGHT_H

#include "../moves.h"

/* OFFER and EXPOSE carry this for such memory, in place of a region's number. */
#define DCOMMI_STRAIGHT UINT32_C(1)

/* Return true if UCX moves the run's device memory to and from a rank. UCX works in the current
 * CUDA context, so it serves one device of each context of ours: the first that is asked for. */
static bool dcommi_straight_with(const dcommi_run *run, int rank)
{
    dcomm_context *context = run->comm->context;
    if (run->device == NULL || !dcommi_peer_of(run->comm, rank)->takes_device) {
        return false;
    }
    if (context->straight_device == NULL) {
        context->straight_device = run->device;
    }
    return context->straight_device == run->device;
}

/* Return how a rank can read device memory: the number of its region or, for a rank of another
 * host, DCOMMI_STRAIGHT if UCX moves it. 0: by messages only. */
static uint32_t dcommi_device_offered(const dcommi_run *run, int rank, const void *at, size_t len)
{
    return dcommi_peer_of(run->comm, rank)->same_host
               ? dcommi_region_number(run->comm->context, at, len)
               : (dcommi_straight_with(run, rank) ? DCOMMI_STRAIGHT : 0);
}

/* Return true if UCX brings memory that a rank has offered as `offered` to the run's device
 * itself. */
static bool dcommi_comes_straight(const dcommi_run *run, int rank, uint32_t offered)
{
    return offered == DCOMMI_STRAIGHT && dcommi_straight_with(run, rank);
}

/* ---- under way ---- */

/* Begin a transfer. It keeps the run's memory on its device, as a job does. */
static void dcommi_straight_begin(dcommi_move *move)
{
    dcommi_move_in_transport(move);
    move->run->jobs++;
    move->run->comm->context->straight++;
}

/* End a transfer. The caller frees the move and drops its reference to the run. */
static void dcommi_straight_end(dcommi_move *move)
{
    dcommi_run *run = move->run;
    dcommi_move_out_of_transport(move);
    run->comm->context->straight--;
    if (--run->jobs == 0 && !run->active) {
        dcommi_run_off_device(run);
    }
}

static void dcommi_straight_sent(dcommi_op *op, dcomm_status status)
{
    dcommi_move *move = (dcommi_move *)op;
    dcommi_run *run = move->run;
    if (status < 0 && status != DCOMM_ERR_PEER && run->active) {
        dcommi_move_failed(move, status, "sending device memory to");
    }
    dcommi_straight_end(move);
    dcommi_move_free(move);
    dcommi_run_unref(run);
}

/* Answer a READ. The move's node has the reader's rank and the number of its request. */
static void dcommi_straight_send(dcommi_move *move)
{
    dcommi_run *run = move->run;
    dcomm_comm *comm = run->comm;
    dcommi_header header = dcommi_header_of(run, DCOMMI_MSG_READ_REPLY, move->node.tag);
    header.a = move->len;
    move->op.done = dcommi_straight_sent;
    dcommi_straight_begin(move);
    dcommi_device_before before = dcommi_devices->enter(run->device->handle.number);
    dcomm_status status =
        dcommi_post_from(comm, move->node.peer, &header, move->buf, move->len, true, &move->op);
    dcommi_devices->leave(before);
    comm->stats.bytes_straight += status >= 0 ? move->len : 0;
    if (status != DCOMM_IN_PROGRESS) {
        (void)dcommi_good(comm, status);
        dcommi_straight_sent(&move->op, status);
    }
}

/* Fetch into the move's memory. The move's op is told of the end. */
static dcomm_status dcommi_straight_fetch(dcommi_move *move, dcommi_transport *transport,
                                          void *desc)
{
    dcommi_straight_begin(move);
    dcommi_device_before before = dcommi_devices->enter(move->run->device->handle.number);
    dcomm_status status =
        transport->call->fetch_device(transport, desc, move->buf, move->len, &move->op);
    dcommi_devices->leave(before);
    return status;
}

static unsigned dcommi_net_progress(dcomm_context *context)
{
    dcommi_transport *net = context->net;
    if (DCOMMI_LIKELY(context->straight == 0)) {
        return net->call->progress(net);
    }
    dcommi_device_before before = dcommi_devices->enter(context->straight_device->handle.number);
    unsigned n = net->call->progress(net);
    dcommi_devices->leave(before);
    return n;
}

#endif
