/* submit.h - hand a run to the engine: in the order of a stream, at the end of a group, or at
 * once; and tell the other ranks of a call that this rank refuses. */
#ifndef DCOMMI_SUBMIT_H
#define DCOMMI_SUBMIT_H

#include "comm.h"

/* Return a numbered run of a plan that is not in the cache, or NULL without memory. The caller
 * holds the operator; the run takes it over. */
static dcommi_run *dcommi_run_of_plan(dcomm_comm *comm, const dcomm_plan *plan, const void *in,
                                      void *out, uint32_t signature)
{
    dcommi_comm_lock(comm);
    dcommi_run *run = dcommi_run_new(comm);
    if (run != NULL) {
        run->op = (dcomm_op)plan->op;
        run->plan = plan;
        run->in = in;
        run->out = out;
        run->signature = (dcommi_signature){.hash = signature,
                                            .coll = DCOMM_COLL_PLAN,
                                            .dtype = plan->dtype,
                                            .op = plan->op,
                                            .algo = plan->name};
        run->p2p_peer = -1;
        run->seq = dcommi_number(comm, &run->signature);
    }
    dcommi_comm_unlock(comm);
    return run;
}

/* Wait for what the default stream of a device holds, before a call without a stream. */
static dcomm_status dcommi_default_await(const char *name, dcomm_context *context, int device,
                                         double timeout_s)
{
    const double until = dcommi_now() + timeout_s;
    dcomm_status status;
    while ((status = dcommi_devices->default_poll(device)) == DCOMM_IN_PROGRESS) {
        if (dcommi_now() >= until) {
            return dcommi_fail(DCOMM_ERR_TIMEOUT,
                               "%s: the default stream of device %d has not done within %g s what "
                               "it held before the call",
                               name, device, timeout_s);
        }
        dcommi_progress_or_yield(context);
    }
    return status;
}

/* Set the stream that a run is to be tied to; NULL: none. */
static void dcommi_run_stream(dcommi_run *run, void *stream)
{
    if (DCOMMI_UNLIKELY(stream != NULL)) {
        run->gate.stream = stream;
        run->gate.device = dcommi_devices->current();
    }
}

/* Tie a run to its stream by one half of the gate. If that fails, abort the communicator: the run
 * has its number, so other ranks would wait for it. */
static dcomm_status dcommi_run_tie(dcommi_run *run, dcomm_status (*half)(dcommi_run *))
{
    dcomm_status status = half(run);
    if (status < 0) {
        char why[DCOMMI_MESSAGE_MAX];
        memcpy(why, dcommi_message, sizeof why);
        dcomm_comm_abort(run->comm, why);
        dcommi_fail(status, "%s", why);
    }
    return status;
}

/* Return true if a call waits for its run: a blocking one, unless its stream does. */
static bool dcommi_run_awaited(const dcommi_run *run)
{
    return run->blocking && (run->gate.stream == NULL || dcommi_devices->synchronous());
}

/* Start a run in the order of its stream. */
static dcomm_status dcommi_run_put(dcommi_run *run)
{
    bool blocking = run->blocking;
    dcommi_gate_room(run);
    dcomm_status status = dcommi_run_tie(run, dcommi_gate_mark);
    if (status >= 0) {
        status = dcommi_run_tie(run, dcommi_gate_hold);
    }
    dcommi_submit(run->comm->context, run);
    while (dcommi_run_awaited(run) &&
           atomic_load_explicit(&run->status, memory_order_acquire) == DCOMM_IN_PROGRESS) {
        dcommi_progress_or_yield(run->comm->context);
    }
    if (blocking) {
        dcommi_run_unref(run);
    }
    return status;
}

/* Start a run that is filled in and numbered, or queue it in the thread's group. request_p NULL:
 * the call is blocking. */
static dcomm_status dcommi_run_launch(dcommi_run *run, double timeout_s, dcomm_request **request_p)
{
    dcommi_group *group = &dcommi_this_group;
    run->timeout_s = timeout_s;
    run->blocking = request_p == NULL;
    if (request_p != NULL) {
        *request_p = (dcomm_request *)run;
    }
    if (group->depth > 0) {
        run->queued = true;
        *(group->last != NULL ? &group->last->next_group : &group->first) = run;
        group->last = run;
        return DCOMM_OK;
    }
    if (DCOMMI_UNLIKELY(run->gate.stream != NULL)) {
        return dcommi_run_put(run);
    }
    dcommi_submit(run->comm->context, run);
    return request_p == NULL ? dcommi_run_wait_here(run) : DCOMM_OK;
}

/* Refuse a collective: take its number, and tell the others why, so that they do not wait for
 * it. */
static void dcommi_refuse(dcomm_comm *comm)
{
    char why[DCOMMI_MESSAGE_MAX];
    memcpy(why, dcommi_message, sizeof why);
    dcommi_comm_lock(comm);
    dcommi_run *run = dcommi_run_new(comm);
    if (run != NULL) {
        run->refused = true;
        run->why = dcommi_strdup(why);
        run->stream = DCOMMI_STREAM_COLL;
        run->seq = comm->next_seq++;
        comm->chain = 0; /* the others get no signature of this call */
    }
    dcommi_comm_unlock(comm);
    if (run == NULL || run->why == NULL) {
        dcomm_comm_abort(comm, why);
    }
    if (run != NULL) {
        dcommi_submit(comm->context, run);
        dcommi_run_unref(run);
    }
    memcpy(dcommi_message, why, sizeof why);
}

/* Handle a failed call. This rank refuses it, unless its run was started or the communicator has
 * failed. Within a group the error also becomes the group's. comm NULL: not a collective. */
static dcomm_status dcommi_call_failed(dcomm_comm *comm, dcomm_status status)
{
    dcommi_group *group = &dcommi_this_group;
    const bool ran = group->ran;
    if (dcommi_callback != NULL) {
        return status; /* a call where none can be made: no rank waits for it */
    }
    group->ran = false;
    if (comm != NULL && status != DCOMM_ERR_FORKED && !ran &&
        atomic_load_explicit(&comm->ready, memory_order_acquire) == DCOMM_OK && comm->size > 1 &&
        atomic_load(&comm->poisoned) == 0 && atomic_load(&comm->abort_wanted) == 0) {
        dcommi_refuse(comm);
    }
    if (group->depth > 0 && group->status == DCOMM_OK) {
        group->status = status;
        memcpy(group->message, dcommi_message, sizeof group->message);
    }
    return status;
}

#endif
