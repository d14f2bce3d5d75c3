/* progress.h - the only progress loop. The thread that holds the context's token runs it, one at a
 * time. */
#ifndef DCOMMI_PROGRESS_H
#define DCOMMI_PROGRESS_H

#include "arrivals.h"
#include "checks.h"
#include "beat.h"
#include "late.h"
#include "unsent.h"

#include <sched.h>

#define DCOMMI_WATCH_EVERY 0.003 /* seconds between looks for peers that have ended */
#define DCOMMI_CHECK_EVERY 0.05  /* seconds between checks of idle runs */
#define DCOMMI_TURN 64           /* passes in a row by one waiting thread */
/* Idle passes over the network before a rank yields the core. A yield that nobody takes costs less
 * than such a pass. The rank that we wait for may need this core: a rank of another host, where
 * hosts are containers of one machine. */
#define DCOMMI_NET_SPIN 1

/* Return true if a run must wait for its stream. Otherwise it is ready to start. */
static bool dcommi_run_held(dcommi_run *run)
{
    if (DCOMMI_UNLIKELY(dcommi_gate_shut(run))) {
        return true;
    }
    if (DCOMMI_UNLIKELY(run->late != NULL)) {
        dcommi_late_read(run);
    }
    return false;
}

/* Enter a run into the engine, at once or when its stream has reached it. */
static void dcommi_run_enter(dcommi_run *run)
{
    dcomm_context *context = run->comm->context;
    if (DCOMMI_LIKELY(!dcommi_run_held(run))) {
        dcommi_run_start(run);
        return;
    }
    dcommi_run **at = &context->gated;
    while (*at != NULL) {
        at = &(*at)->next_gated;
    }
    run->next_gated = NULL;
    *at = run;
    context->active++;
    context->ngated++;
}

/* Start the runs whose streams have reached them. */
static unsigned dcommi_gates_progress(dcomm_context *context)
{
    unsigned n = 0;
    for (dcommi_run **at = &context->gated; *at != NULL;) {
        dcommi_run *run = *at;
        if (dcommi_run_held(run)) {
            at = &run->next_gated;
            continue;
        }
        *at = run->next_gated;
        context->active--;
        context->ngated--;
        run->reached_at = run->comm->timed ? dcommi_now() : 0;
        dcommi_run_start(run);
        n++;
    }
    return n;
}

/* Start, and so fail, the runs that wait for their streams when the context closes. Their streams
 * must not wait for them. */
static void dcommi_gates_drop(dcomm_context *context)
{
    while (context->gated != NULL) {
        dcommi_run *run = context->gated;
        context->gated = run->next_gated;
        context->active--;
        context->ngated--;
        dcommi_run_start(run);
    }
}

/* Start the runs that other threads have submitted, oldest first. */
static void dcommi_start_submitted(dcomm_context *context)
{
    dcommi_run *run = atomic_exchange_explicit(&context->submitted, NULL, memory_order_acquire);
    dcommi_run *ordered = NULL;
    while (run != NULL) {
        dcommi_run *next = run->next_submitted;
        run->next_submitted = ordered;
        ordered = run;
        run = next;
    }
    while (ordered != NULL) {
        dcommi_run *next = ordered->next_submitted;
        dcommi_run_enter(ordered);
        ordered = next;
    }
}

/* Do what is due. A rank that only waits comes here before each yield, and the coarse clock, which
 * costs little, then decides. */
static void dcommi_housekeeping(dcomm_context *context)
{
    double now = dcommi_coarse_now();
    if (now < context->next_watch) {
        return;
    }
    context->next_watch = now + DCOMMI_WATCH_EVERY;
    if (context->local->call->watch != NULL) {
        context->local->call->watch(context->local);
    }
    if (context->control != NULL) {
        dcommi_ctl_look(context);
    }
    if (now < context->next_check) {
        return;
    }
    context->next_check = now + DCOMMI_CHECK_EVERY;
    now = dcommi_now();
    for (dcommi_run *run = context->gated; run != NULL; run = run->next_gated) {
        dcommi_gate_look(run);
    }
    dcommi_devices_look(context);
    for (dcomm_comm *comm = context->comms; comm != NULL; comm = comm->next) {
        dcommi_agreements_check(comm, now);
        if (comm->service != NULL) {
            comm->service->check(comm, now);
        }
        if (atomic_load(&comm->poisoned) == 0) {
            dcommi_comm_check(comm, now);
        }
    }
    dcommi_silence_look(context, now);
    for (dcomm_comm *comm = context->comms; comm != NULL && context->appoints; comm = comm->next) {
        dcommi_beat_appoint(comm);
    }
    context->appoints = false;
}

/* Return how many idle passes a rank makes before it yields the core. */
static inline unsigned dcommi_spins(const dcomm_context *context)
{
    return context->net != NULL ? DCOMMI_NET_SPIN : context->spin_limit;
}

/* Make one pass of progress, with the token. Return true if anything happened. */
static bool dcommi_progress(dcomm_context *context)
{
    if (atomic_load_explicit(&context->submitted, memory_order_relaxed) != NULL) {
        dcommi_start_submitted(context);
    }
    if (atomic_load_explicit(&context->aborts, memory_order_relaxed) != 0) {
        atomic_store(&context->aborts, 0);
        for (dcomm_comm *comm = context->comms; comm != NULL; comm = comm->next) {
            int wanted = 1; /* 2: taken up; the reason must not change any more */
            if (atomic_compare_exchange_strong(&comm->abort_wanted, &wanted, 2)) {
                dcommi_poison(comm, DCOMM_ERR_ABORTED, "%s", comm->abort_reason);
            }
        }
    }
    unsigned n = context->local->call->progress(context->local);
    if (context->net != NULL) {
        n += dcommi_net_progress(context);
    }
    n += dcommi_bcast_progress(context);
    if (DCOMMI_UNLIKELY(context->gated != NULL)) {
        n += dcommi_gates_progress(context);
    }
    if (DCOMMI_UNLIKELY(atomic_load_explicit(&context->devices, memory_order_relaxed) != NULL)) {
        n += dcommi_devices_progress(context);
    }
    while (context->ready_first != NULL) {
        dcommi_lane *lane = context->ready_first;
        context->ready_first = lane->next_ready;
        if (context->ready_first == NULL) {
            context->ready_last = NULL;
        }
        lane->queued = false;
        dcommi_lane_run(lane);
        n++;
    }
    while (context->finished != NULL) {
        dcommi_run *run = context->finished;
        context->finished = run->next_finished;
        dcommi_run_unref(run);
        n++;
    }
    if (n > 0) {
        context->idle = 0;
        context->busy++;
        if ((context->busy & 1023) == 0) {
            dcommi_housekeeping(context);
        }
        return true;
    }
    context->idle++;
    if ((context->idle & 255) == 0 || context->idle > dcommi_spins(context)) {
        dcommi_housekeeping(context);
    }
    return false;
}

/* Make progress if no other thread does, until `run` is complete (NULL: one pass) or another
 * thread's turn comes. Yield the core if there has been nothing to do for long. */
static void dcommi_progress_for(dcomm_context *context, const dcommi_run *run)
{
    bool yield = true;
    if (dcommi_token_try(context)) {
        for (int i = 0; i < DCOMMI_TURN; i++) {
            bool idle = !dcommi_progress(context);
            if (idle && run == NULL) {
                dcommi_housekeeping(context); /* or a rare caller would be late with it */
            }
            yield = idle && context->idle > dcommi_spins(context);
            if (yield || run == NULL ||
                atomic_load_explicit(&run->status, memory_order_relaxed) != DCOMM_IN_PROGRESS) {
                break;
            }
        }
        dcommi_token_release(context);
    }
    if (yield) {
        sched_yield();
    }
}

static void dcommi_progress_or_yield(dcomm_context *context)
{
    dcommi_progress_for(context, NULL);
}

/* Hand a run to the engine: at once if the token is free, else by the queue. */
static void dcommi_submit(dcomm_context *context, dcommi_run *run)
{
    if (dcommi_token_try(context)) {
        if (atomic_load_explicit(&context->submitted, memory_order_relaxed) != NULL) {
            dcommi_start_submitted(context);
        }
        dcommi_run_enter(run);
        dcommi_progress(context);
        dcommi_token_release(context);
        return;
    }
    dcommi_run *head = atomic_load_explicit(&context->submitted, memory_order_relaxed);
    do {
        run->next_submitted = head;
    } while (!atomic_compare_exchange_weak_explicit(&context->submitted, &head, run,
                                                    memory_order_release, memory_order_relaxed));
}

#endif
