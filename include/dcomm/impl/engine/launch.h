/* launch.h - a run of a cached plan, from its creation to the wait for its end. */
#ifndef DCOMMI_LAUNCH_H
#define DCOMMI_LAUNCH_H

#include "progress.h"

/* ---- groups ---- */

/* Operations that this thread has queued since dcomm_group_start. */
typedef struct dcommi_group {
    int depth;
    dcommi_run *first, *last;
    dcomm_status status;
    char message[DCOMMI_MESSAGE_MAX];
    bool ran; /* the thread's last call that failed had started its run */
} dcommi_group;

static _Thread_local dcommi_group dcommi_this_group;

/* ---- making a run ---- */

/* Number a collective, and chain its signature to those before. With comm->lock or the token. */
static inline uint64_t dcommi_number(dcomm_comm *comm, dcommi_signature *s)
{
    const uint32_t chain = comm->chain;
    comm->chain = (chain ^ s->hash) * 0x9e3779b1u + 1;
    s->chain = chain;
    s->hash ^= chain;
    return comm->next_seq++;
}

/* Make a run; NULL without memory. With comm->lock. */
static dcommi_run *dcommi_run_new(dcomm_comm *comm)
{
    dcommi_run *run = comm->free_runs;
    if (run != NULL) {
        comm->free_runs = run->next;
        uint8_t *memory = run->memory;
        size_t memory_len = run->memory_len;
        dcommi_zero(run, sizeof *run);
        run->memory = memory;
        run->memory_len = memory_len;
    } else {
        run = dcommi_alloc(sizeof(dcomm_request));
        if (run == NULL) {
            return NULL;
        }
    }
    run->comm = comm;
    atomic_store_explicit(&run->refs, 2, memory_order_relaxed); /* its user's and the engine's */
    atomic_store_explicit(&run->status, DCOMM_IN_PROGRESS, memory_order_relaxed);
    comm->refs++;
    return run;
}

/* Make a run of a cached plan, and take over the caller's reference to that. With comm->lock. */
static dcommi_run *dcommi_run_of(dcomm_comm *comm, dcommi_cached *cached, const void *in, void *out)
{
    dcommi_run *run = dcommi_run_new(comm);
    if (run == NULL) {
        dcommi_cached_release(cached);
        return NULL;
    }
    dcommi_op_hold((dcomm_op)cached->plan->op); /* as its caller does */
    run->op = (dcomm_op)cached->plan->op;
    run->cached = cached;
    run->plan = cached->plan;
    run->signature = cached->signature;
    run->stream = DCOMMI_STREAM_COLL;
    run->p2p_peer = -1;
    run->in = in;
    run->out = out;
    return run;
}

/* ---- waiting for its end ---- */

/* Set the error message of a run that has failed: its verdict, which rank has refused it, or why
 * the communicator is poisoned. */
static void dcommi_run_why(const dcommi_run *run, dcomm_status status)
{
    const char *call = dcomm_coll_name((dcomm_coll)run->signature.coll);
    if (run->comm->service != NULL || (run->why != NULL && status == DCOMM_ERR_MISMATCH)) {
        dcommi_fail(status, "%s", run->why != NULL ? run->why : dcomm_strerror(status));
    } else if (DCOMMI_LIKELY(run->verdict != status)) {
        dcommi_fail(status, "%s", run->comm->message);
    } else if (run->verdict_rank == run->comm->rank) {
        dcommi_fail(status, "%s #%" PRIu64 ", rank %d: %s", call, run->seq, run->verdict_rank,
                    run->coded->said);
    } else {
        dcommi_fail(status, "%s #%" PRIu64 ": rank %d found %s; its own error names the first",
                    call, run->seq, run->verdict_rank,
                    status == DCOMM_ERR_RANGE ? "sums of finite numbers that are beyond f32"
                                              : "inputs that are not finite");
    }
}

/* Let this rank's control messages leave before its call returns: it may compute next. Stop when
 * `comm` (NULL: none) fails. Messages to a dead rank stay until this rank notices the death, and
 * the caller must hear of the error before that. */
static void dcommi_pay(dcomm_context *context, const dcomm_comm *comm)
{
    const double until = dcommi_now() + DCOMMI_OWED_S;
    while (dcommi_owes(context) && dcommi_now() < until &&
           (comm == NULL || atomic_load_explicit(&comm->poisoned, memory_order_relaxed) == 0)) {
        dcommi_progress_or_yield(context);
    }
}

static dcomm_status dcommi_run_wait(dcommi_run *run)
{
    int status;
    while ((status = atomic_load_explicit(&run->status, memory_order_acquire)) ==
           DCOMM_IN_PROGRESS) {
        dcommi_progress_for(run->comm->context, run);
    }
    if (DCOMMI_UNLIKELY(status >= 0 && dcommi_owes(run->comm->context))) {
        dcommi_pay(run->comm->context, run->comm);
    }
    if (status < 0) {
        dcommi_run_why(run, (dcomm_status)status);
        if (atomic_load_explicit(&run->comm->poisoned, memory_order_relaxed) != 0) {
            atomic_store_explicit(&run->comm->told, true, memory_order_relaxed);
        }
    }
    dcommi_run_unref(run);
    return (dcomm_status)status;
}

/* Wait for a run in the call that started it. If the run fails, note that the call was not
 * refused. */
static dcomm_status dcommi_run_wait_here(dcommi_run *run)
{
    dcomm_status status = dcommi_run_wait(run);
    if (DCOMMI_UNLIKELY(status < 0)) {
        dcommi_this_group.ran = true;
    }
    return status;
}

#endif
