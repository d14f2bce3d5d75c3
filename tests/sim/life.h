/* life.h - a case, and the life of simulated ranks in it: they create a communicator, perhaps a
 * second one from it, call collectives until something goes wrong, recover (recover.h) and leave.
 */
#ifndef SIM_LIFE_H
#define SIM_LIFE_H

#include "recover.h"

enum { LIFE_BLOB = 8192 };

/* ---- meeting ---- */

static struct {
    int round[WORLD_MAX];
    unsigned char blob[2][WORLD_MAX][LIFE_BLOB];
} life_meeting;

/* Gather for the creation. */
static int life_allgather(const void *mine, size_t bytes, void *all, void *user)
{
    const int me = world.in, round = ++life_meeting.round[me];
    (void)user;
    if (bytes > LIFE_BLOB) {
        world_trouble("a description of %zu bytes", bytes);
        return -1;
    }
    memcpy(life_meeting.blob[round % 2][me], mine, bytes);
    world_busy();
    for (int r = 0; r < life.n; r++) {
        while (life_meeting.round[r] < round) {
            world_yield();
        }
        memcpy((char *)all + (size_t)r * bytes, life_meeting.blob[round % 2][r], bytes);
    }
    return 0;
}

static dcomm_comm *life_create(int rank)
{
    char host[16];
    dcomm_comm *comm = NULL;
    snprintf(host, sizeof host, "host%d", system_host(rank));
    dcomm_comm_opts opts = {.context_opts = {.host_id = host, .iface = "sim0"},
                            .boot = DCOMM_BOOT_ALLGATHER,
                            .rank = rank,
                            .size = life.n,
                            .allgather = life_allgather,
                            .timeout_s = life.timeout_s,
                            .tune = -1,
                            .quorum = life.quorum,
                            .liveness_s = life.liveness_s,
                            .on_error = DCOMM_ON_ERROR_RETURN};
    if (dcomm_comm_create(&opts, &comm) != DCOMM_OK) {
        life_give_up("creates nothing");
    }
    return comm;
}

/* ---- a life ---- */

/* Be away until some seconds after the others have begun to wait. In the fast path a rank counts
 * its polls, during which time jumps. Its time-out begins with the first look behind them. */
static void life_be_away(double seconds)
{
    double until = world.now + seconds;
    while (world.now < until) {
        if (life.traced) {
            world_stop(world.in, until - world.now, true);
            world_yield();
        } else {
            world_sleep(until - world.now);
        }
        for (int r = 0; r < life.n; r++) {
            const double last = wire.waits_since[r] + seconds;
            if (life_report[r].status < 0) { /* the others' time is up */
                return;
            }
            until = r != world.in && last > until ? last : until;
        }
    }
}

/* Do what the fault asks of the victim before its call `number`. Return false if it has left. */
static bool life_misbehave(dcomm_comm *comm, calls_one *call)
{
    switch (life.fault) {
    case LIFE_ABORT:
        (void)dcomm_comm_abort(comm, "out of spirits");
        return true;
    case LIFE_MISMATCH:
        call->coll = call->coll == DCOMM_COLL_BARRIER ? DCOMM_COLL_ALLREDUCE : call->coll;
        call->algo = NULL;
        call->count++;
        return true;
    case LIFE_HANG:
        life_be_away(life.timeout_s + 1 + 2 * world_unit());
        return true;
    default:
        return life.fault != LIFE_LEAVE;
    }
}

/* Make all calls, until one fails or the victim leaves. Return false if it leaves. */
static bool life_call(dcomm_comm *const comms[2], int rank, dcomm_status *status, dcomm_comm **at)
{
    struct life_report *mine = &life_report[rank];
    int who[WORLD_MAX];
    for (int r = 0; r < life.n; r++) {
        who[r] = r;
    }
    *status = DCOMM_OK;
    world_trace("begins");
    for (int i = 0, several; *status == DCOMM_OK && i < life.ncalls; i += several) {
        calls_one calls[2] = {life.call[i], life.call[i + 1]};
        calls_job jobs[2];
        *at = comms[calls[0].second && life.second];
        several = calls[0].together && i + 1 < life.ncalls ? 2 : 1;
        if (rank == life.victim && i <= life.when && life.when < i + several &&
            !life_misbehave(*at, &calls[0])) {
            return false;
        }
        for (int k = 0; k < several; k++) {
            jobs[k] = calls_job_make(&calls[k], who, life.n, rank, i + k);
        }
        wire.waits_since[rank] = world.now;
        *status = calls_make(*at, jobs, several);
        world_trace("call %d: %s", i, dcomm_status_name(*status));
        mine->calls += *status == DCOMM_OK ? several : 0;
    }
    return true;
}

/* Return true if nothing can go wrong any more. */
static bool life_is_calm(void)
{
    const double longest = life.weight == LIFE_MILD ? life.lasts : 2.2 * life.liveness_s;
    return life_so_far.struck && world.now > life_so_far.struck_at + longest + 2;
}

/* Call until the fault shows, or can show no more. A death or a departure shows on any
 * communicator. */
static void life_hear(dcomm_comm *const comms[2], dcomm_status *status, dcomm_comm **at)
{
    const bool shows = life.fault != LIFE_WHOLE && life.weight == LIFE_HARD;
    uint32_t *mine = calls_take_numbers(2, world.in), *calm = mine + 1;
    *calm = life.fault == LIFE_WHOLE;
    while (*status == DCOMM_OK && *calm == 0) {
        *mine = !shows && life_is_calm();
        *at = comms[life.second && life.call[0].second];
        *status =
            calls_first(DCOMM_OK, dcomm_allreduce(*at, mine, calm, 1, DCOMM_U32, DCOMM_MIN, NULL));
    }
}

/* Note the first error of a rank, which its communicator must have too. */
static void life_fail(dcomm_comm *comm, int rank, dcomm_status status)
{
    struct life_report *mine = &life_report[rank];
    mine->failed = world.now;
    mine->waits_since = wire.waits_since[rank];
    mine->status = status;
    snprintf(mine->error, sizeof mine->error, "%s", calls_error[rank]);
    world_trace("fails: %s: %s", dcomm_status_name(status), mine->error);
    if (dcomm_comm_status(comm) != status || strcmp(dcomm_comm_error(comm), mine->error) != 0) {
        world_trouble("rank %d: its call failed with %s: %s; its communicator with %s: %s", rank,
                      dcomm_status_name(status), mine->error,
                      dcomm_status_name(dcomm_comm_status(comm)), dcomm_comm_error(comm));
    }
}

/* Stay for a while, in which others leave. That is no error. */
static void life_linger(dcomm_comm *comm, int rank)
{
    const double until = world.now + world_unit();
    while (world.now < until) {
        (void)dcomm_context_progress(dcomm_comm_context(comm));
    }
    if (dcomm_comm_status(comm) != DCOMM_OK) {
        world_trouble("rank %d: its communicator has failed: %s", rank, dcomm_comm_error(comm));
    }
}

/* Look at a communicator that is not the one that failed first: a death or a departure shows in it
 * too, sooner or later, and at once if this rank has seen it. */
static void life_look(const dcomm_comm *comm, int rank)
{
    const dcomm_status status = dcomm_comm_status(comm);
    if (status != DCOMM_OK && (status != DCOMM_ERR_PEER || life.weight == LIFE_MILD)) {
        world_trouble("rank %d: its other communicator fails: %s: %s", rank,
                      dcomm_status_name(status), dcomm_comm_error(comm));
    }
    for (int r = 0; r < comm->size; r++) {
        const dcommi_member *m = &comm->members[r];
        if (status == DCOMM_OK && m->peer >= 0 && !m->gone && comm->context->peers[m->peer].lost) {
            world_trouble("rank %d: its other communicator does not fail by the loss of rank %d",
                          rank, r);
        }
    }
}

/* End a life: leave all communicators, and nothing else. */
static void life_end(dcomm_comm **comms, const dcomm_comm *failed, int rank)
{
    for (int i = 1; i >= 0; i--) {
        if (comms[i] != failed && comms[i] != NULL) {
            life_look(comms[i], rank);
        }
        recover_destroy(&comms[i]);
    }
    calls_seal(rank);
    life_report[rank].over = true;
    if (world.rank[rank].held != 0) {
        world_trouble("rank %d leaves %zu bytes", rank, world.rank[rank].held);
    }
}

static void life_main(int rank)
{
    dcomm_comm *comms[2] = {life_create(rank), NULL}, *at = NULL;
    dcomm_status status = DCOMM_OK;
    if (life.second && dcomm_comm_dup(comms[0], &comms[1]) != DCOMM_OK) {
        life_give_up("gets no second communicator");
    }
    char ready = 0, all[WORLD_MAX];
    life_allgather(&ready, 1, all, NULL); /* nobody misbehaves before all are there */
    if (life.rest > 0) {
        world_sleep(life.rest);
    }
    const uint64_t first = world.rank[rank].points;
    life_arm(rank, false);
    const bool stays = life_call(comms, rank, &status, &at);
    life_report[rank].points = world.rank[rank].points - first;
    life_strike_now(rank);
    if (stays) {
        life_hear(comms, &status, &at);
        if (status != DCOMM_OK) {
            life_fail(at, rank, status);
        }
        recover(comms[0], rank); /* all must shrink the same one, whichever failed */
        if (life_dies(rank)) {
            world_die();
        }
        if (status != DCOMM_OK && strcmp(dcomm_comm_error(at), life_report[rank].error) != 0) {
            world_trouble("rank %d: its first error has become: %s", rank, dcomm_comm_error(at));
        }
        if (life.fault == LIFE_WHOLE) {
            life_linger(comms[0], rank);
        }
    }
    life_end(comms, stays ? at : NULL, rank);
}

#endif
