/* life.h - the life of simulated ranks in one case: they create a communicator, perhaps a second
 * one from it, call collectives until one of them does what faults.h says, shrink, call again and
 * leave. */
#ifndef SIM_LIFE_H
#define SIM_LIFE_H

#include <math.h>
#include "calls.h"
#include "port.h"

enum { LIFE_CALLS = 8, LIFE_BLOB = 8192 };

#define LIFE_LIMIT 400.0 /* seconds until a case must be over */

/* What the victim does. */
typedef enum life_fault {
    LIFE_WHOLE,    /* nothing */
    LIFE_DEATH,    /* it dies at a point */
    LIFE_DEATHS,   /* and so does a second one, before the others shrink */
    LIFE_ABORT,    /* it aborts before a call */
    LIFE_MISMATCH, /* it makes another call than the others */
    LIFE_HANG,     /* it is away until the others' time is up */
    LIFE_LEAVE,    /* it destroys its communicators before a call */
    LIFE_FAULTS
} life_fault;

/* A case: all that the seed has drawn before anything happens. */
typedef struct life_case {
    uint64_t seed;
    int n, ncalls;
    calls_one call[LIFE_CALLS + 1]; /* the last: on the communicator of the survivors */
    life_fault fault;
    int victim, when; /* when: the call before which it does it */
    int second_victim;
    uint64_t point, second_point; /* of the victims' deaths, from their first calls on */
    bool second;                  /* there is a second communicator */
    double timeout_s;
} life_case;

static life_case life;

/* How a rank has fared. */
static struct life_report {
    bool over;
    dcomm_status status; /* of the first call that failed */
    char error[DCOMMI_MESSAGE_MAX];
    int calls;       /* calls that were over without an error */
    uint64_t points; /* of the calls */
    double failed, recovered, died;
} life_report[WORLD_MAX];

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

/* End the rank that runs and the case, which is not as it should be. */
static void life_give_up(const char *what)
{
    world_trouble("rank %d %s: %s", world.in, what, dcomm_last_error());
    world_yield();
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
                            .quorum = DCOMM_QUORUM_NONE,
                            .liveness_s = INFINITY, /* no thread beats here */
                            .on_error = DCOMM_ON_ERROR_RETURN};
    if (dcomm_comm_create(&opts, &comm) != DCOMM_OK) {
        life_give_up("creates nothing");
    }
    return comm;
}

static void life_destroy(dcomm_comm **comm)
{
    if (dcomm_comm_destroy(comm) != DCOMM_OK) {
        life_give_up("destroys a communicator");
    }
}

/* ---- surviving ---- */

/* Return true if a rank is to die. */
static bool life_dies(int rank)
{
    return (rank == life.victim && (life.fault == LIFE_DEATH || life.fault == LIFE_DEATHS)) ||
           (rank == life.second_victim && life.fault == LIFE_DEATHS);
}

/* Return true if a rank does not go on with the others. */
static bool life_is_out(int rank)
{
    return life_dies(rank) || (rank == life.victim && life.fault == LIFE_LEAVE);
}

/* Return true if a rank is still to die. */
static bool life_waits_for_death(void)
{
    bool waits = false;
    for (int r = 0; r < life.n; r++) {
        waits = waits || (life_dies(r) && world.rank[r].state != WORLD_DEAD);
    }
    return waits;
}

/* Call on a communicator of those that are left. Return DCOMM_OK if all is over. */
static dcomm_status life_call_again(dcomm_comm *small, int rank)
{
    int32_t mine = rank, all[WORLD_MAX];
    int who[WORLD_MAX];
    const int n = dcomm_comm_size(small), me = dcomm_comm_rank(small);
    dcomm_status status = dcomm_allgather(small, &mine, all, 1, DCOMM_I32, NULL);
    for (int i = 0; status == DCOMM_OK && i < n; i++) {
        who[i] = all[i];
    }
    if (status == DCOMM_OK) {
        calls_one call = life.call[life.ncalls];
        call.root %= n;
        calls_job job = calls_job_make(&call, who, n, me, life.ncalls);
        status = calls_make(small, &job, 1);
    }
    for (bool dead = true; status == DCOMM_OK && dead;) {
        dead = life_waits_for_death();
        for (int i = 0; i < n; i++) {
            dead = dead || life_is_out(who[i]);
        }
        if (dead) {
            status = dcomm_barrier(small, NULL);
        }
    }
    return status;
}

/* Shrink until a communicator works. */
static void life_recover(dcomm_comm *comm, int rank)
{
    dcomm_comm *chain[WORLD_MAX + 1] = {comm};
    int n = 0;
    dcomm_status status = DCOMM_ERR_PEER;
    while (status != DCOMM_OK && n < WORLD_MAX) {
        const dcomm_status shrunk = dcomm_comm_shrink(chain[n], NULL, 0, &chain[n + 1]);
        world_trace("shrinks: %s %d", dcomm_status_name(shrunk),
                    shrunk == DCOMM_OK ? dcomm_comm_size(chain[n + 1]) : 0);
        if (shrunk == DCOMM_ERR_PEER && life_waits_for_death()) {
            continue;
        }
        if (shrunk != DCOMM_OK) {
            life_give_up("does not shrink");
        }
        n++;
        status = life_call_again(chain[n], rank);
        if (status != DCOMM_OK && status != DCOMM_ERR_PEER) {
            life_give_up("fails on the shrunk communicator");
        }
    }
    life_report[rank].recovered = world.now;
    while (n > 0) {
        (void)dcomm_comm_status(chain[n]);
        life_destroy(&chain[n--]);
    }
}

/* ---- a life ---- */

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
        world_sleep(life.timeout_s + 1 + 2 * world_unit());
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
        *status = calls_make(*at, jobs, several);
        world_trace("call %d: %s", i, dcomm_status_name(*status));
        mine->calls += *status == DCOMM_OK ? several : 0;
    }
    return true;
}

/* Call until the fault shows. A death or a departure shows on any communicator. */
static void life_hear(dcomm_comm *const comms[2], dcomm_status *status, dcomm_comm **at)
{
    while (*status == DCOMM_OK && life.fault != LIFE_WHOLE) {
        *at = comms[life.second && life.call[0].second];
        *status = dcomm_barrier(*at, NULL);
    }
}

/* Note the first error of a rank, which its communicator must have too. */
static void life_fail(dcomm_comm *comm, int rank, dcomm_status status)
{
    struct life_report *mine = &life_report[rank];
    mine->failed = world.now;
    mine->status = status;
    snprintf(mine->error, sizeof mine->error, "%s", dcomm_last_error());
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
 * too, sooner or later. */
static void life_look(const dcomm_comm *comm, int rank)
{
    const dcomm_status status = dcomm_comm_status(comm);
    if (status != DCOMM_OK && (status != DCOMM_ERR_PEER || life.fault == LIFE_WHOLE)) {
        world_trouble("rank %d: its other communicator fails: %s: %s", rank,
                      dcomm_status_name(status), dcomm_comm_error(comm));
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
    const uint64_t first = world.rank[rank].points;
    if (life_dies(rank)) {
        world.rank[rank].dies_at =
            first + 1 + (rank == life.victim ? life.point : life.second_point);
    }
    const bool stays = life_call(comms, rank, &status, &at);
    life_report[rank].points = world.rank[rank].points - first;
    if (life_dies(rank) && rank == life.victim) {
        world_die();
    }
    if (stays) {
        life_hear(comms, &status, &at);
        if (status != DCOMM_OK) {
            life_fail(at, rank, status);
            life_recover(comms[0], rank);
            if (life_dies(rank)) {
                world_die();
            } /* all must shrink the same one, whichever failed */
        }
    }
    if (life.fault == LIFE_WHOLE) {
        life_linger(comms[0], rank);
    } else if (stays && strcmp(dcomm_comm_error(at), life_report[rank].error) != 0) {
        world_trouble("rank %d: its first error has become: %s", rank, dcomm_comm_error(at));
    }
    for (int i = 1; i >= 0; i--) {
        if (comms[i] != at && comms[i] != NULL) {
            life_look(comms[i], rank);
        }
        life_destroy(&comms[i]);
    }
    calls_seal(rank);
    life_report[rank].over = true;
    if (world.rank[rank].held != 0) {
        world_trouble("rank %d leaves %zu bytes", rank, world.rank[rank].held);
    }
}

#endif
