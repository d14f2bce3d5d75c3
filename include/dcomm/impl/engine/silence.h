/* silence.h - a process that does not run counts as dead after `liveness_s`, although it has not
 * ended. On this host the kernel tells: a process that has been stopped (SIGSTOP) all the time, and
 * has used no time of a core, does not run. One that a debugger stops (state t) never counts, nor
 * does one that computes or sleeps.
 *
 * A waiting rank looks at those that have not answered its queries, in an agreement at all others,
 * several times in liveness_s. It counts only the time between two looks that came about when they
 * were due: if this process was stopped itself, or the machine slept, the others are not to blame.
 */
#ifndef DCOMMI_SILENCE_H
#define DCOMMI_SILENCE_H

#include "failure.h"

#define DCOMMI_SILENCE_LOOKS 8        /* looks in liveness_s */
#define DCOMMI_SILENCE_EVERY_MAX 0.5  /* seconds between looks, at most */
#define DCOMMI_SILENCE_EVERY_MIN 0.05 /* and at least */

/* Return the seconds between two looks. */
static double dcommi_silence_every(const dcomm_context *context)
{
    double every = context->liveness_s / DCOMMI_SILENCE_LOOKS;
    return every > DCOMMI_SILENCE_EVERY_MAX   ? DCOMMI_SILENCE_EVERY_MAX
           : every < DCOMMI_SILENCE_EVERY_MIN ? DCOMMI_SILENCE_EVERY_MIN
                                              : every;
}

/* Return the part of the time since a look that counts: a look that came late proves little. */
static double dcommi_silence_counted(double since, double every)
{
    return since < 2 * every ? since : 2 * every;
}

/* Look at a process of this host, and add to the time for which it has been stopped. */
static void dcommi_stopped_look(dcommi_remote *p, double now, double every)
{
    const double since = now - p->looked_at;
    if (since < every) {
        return;
    }
    const dcommi_process seen = dcommi_process_read(p->pid);
    const bool stopped = seen.state == 'T' && seen.started == p->started;
    const bool meanwhile = stopped && p->stopped && seen.ticks == p->ticks;
    p->stopped_s = meanwhile ? p->stopped_s + dcommi_silence_counted(since, every) : 0;
    p->stopped = stopped;
    p->ticks = seen.ticks;
    p->looked_at = now;
}

/* Look at a rank's process, if it is another one of this host. */
static void dcommi_suspect_look(dcomm_comm *comm, int rank, double now, double every)
{
    dcommi_remote *p = dcommi_peer_of(comm, rank);
    if (p->same_host && !p->lost && p->started != 0 && p->pid != getpid()) {
        dcommi_stopped_look(p, now, every);
    }
}

/* Look at the processes that have not answered a run. */
static void dcommi_run_suspect(const dcommi_run *run, double now, double every)
{
    for (int r = 0; run->peers != NULL && r < run->comm->size; r++) {
        if (dcommi_run_involves(run, r) && !run->peers[r].replied) {
            dcommi_suspect_look(run->comm, r, now, every);
        }
    }
}

/* Look at the processes that a caller's agreement may wait for. */
static void dcommi_agreement_suspect(const dcommi_agreement *g, double now, double every)
{
    for (int r = 0; g->busy && r < g->comm->size; r++) {
        if (r != g->comm->rank && !g->comm->members[r].gone) {
            dcommi_suspect_look(g->comm, r, now, every);
        }
    }
}

/* Fail what needs processes that have been stopped for long. Those whose time is up in two looks go
 * with the first: they stopped together. */
static void dcommi_silence_judge(dcomm_context *context, double every)
{
    bool over = false;
    for (size_t i = 0; i < context->npeers && !over; i++) {
        over = !context->peers[i].lost && context->peers[i].stopped_s >= context->liveness_s;
    }
    if (!over) {
        return;
    }
    char why[96];
    snprintf(why, sizeof why, "its process has been stopped for %.3g s", context->liveness_s);
    for (int turn = 0; turn < 2; turn++) { /* the sentences name all that were marked before */
        for (size_t i = 0; i < context->npeers; i++) {
            dcommi_remote *p = &context->peers[i];
            if (p->stopped_s > 0 && p->stopped_s >= context->liveness_s - 2 * every) {
                if (turn == 0) {
                    dcommi_peer_mark(p, why, false);
                } else {
                    dcommi_tell_dead(context, (int)i);
                    dcommi_peer_fail(context, (int)i);
                }
            }
        }
    }
}

/* Look for processes of this host that do not run. */
static void dcommi_silence_look(dcomm_context *context, double now)
{
    if (!(context->liveness_s < DCOMMI_LIMIT_MAX_S)) {
        return;
    }
    const double every = dcommi_silence_every(context);
    for (const dcomm_comm *comm = context->comms; comm != NULL; comm = comm->next) {
        for (const dcommi_run *run = comm->runs; run != NULL; run = run->next) {
            dcommi_run_suspect(run, now, every);
        }
        for (const dcommi_agreement *g = comm->agreements; g != NULL; g = g->next) {
            dcommi_agreement_suspect(g, now, every);
        }
    }
    dcommi_silence_judge(context, every);
}

#endif
