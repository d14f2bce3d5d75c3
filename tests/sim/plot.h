/* plot.h - the story of a case: the faults that strike its ranks, and the ranks' ends. */
#ifndef SIM_PLOT_H
#define SIM_PLOT_H

#include "calls.h"
#include "port.h"

enum { LIFE_CALLS = 8 };

#define LIFE_LIMIT 400.0 /* seconds until a case must be over */

/* The fault of a case: an act of the victim, or an event at one of the victim's points. */
typedef enum life_fault {
    LIFE_WHOLE,    /* nothing */
    LIFE_DEATH,    /* it dies at a point */
    LIFE_ABORT,    /* it aborts before a call */
    LIFE_MISMATCH, /* it makes another call than the others */
    LIFE_HANG,     /* it is away until the others' time is up */
    LIFE_LEAVE,    /* it destroys its communicators before a call */
    LIFE_CUT,      /* the network is cut at a point */
    LIFE_STOP,     /* its process is stopped at a point */
    LIFE_SUSPEND,  /* all processes are stopped at a point */
    LIFE_FAULTS
} life_fault;

/* The length of a cut or a stop. */
typedef enum life_weight {
    LIFE_MILD,   /* clearly less than liveness_s: nobody errs */
    LIFE_EITHER, /* near it */
    LIFE_HARD    /* clearly more than twice that */
} life_weight;

typedef struct life_death {
    int rank;
    uint64_t point; /* from its first call on, or from its first agreement on */
    bool later;     /* from its first agreement on */
} life_death;

enum { LIFE_DEATHS = 3 };

/* A case: all that the seed has drawn before anything happens. */
typedef struct life_case {
    uint64_t seed;
    int n, ncalls;
    calls_one call[LIFE_CALLS + 1]; /* the last: on the communicator of the survivors */
    life_fault fault;
    int victim, when; /* when: the call before which it does it */
    uint64_t point;   /* from its first call on */
    life_weight weight;
    double lasts;
    life_death death[LIFE_DEATHS];
    int ndeaths;
    bool second; /* there is a second communicator */
    bool traced; /* a debugger holds it while it is away */
    int quorum;
    double timeout_s, liveness_s;
    double rest; /* seconds for which all compute before their first call */
} life_case;

static life_case life;

/* The end of a rank. */
typedef enum life_outcome {
    LIFE_LEFT, /* it has left, or died */
    LIFE_ON,   /* it has gone on */
    LIFE_FEW,  /* too few ranks were left */
    LIFE_OUT   /* it counts as dead for the others */
} life_outcome;

static struct life_report {
    bool over, leaves;
    dcomm_status status; /* of the first call that failed */
    char error[DCOMMI_MESSAGE_MAX];
    double waits_since; /* that call's begin, or the last poll in the fast path */
    int calls;          /* calls that were over without an error */
    uint64_t points;    /* of the calls */
    double failed;
    life_outcome outcome;
    unsigned with; /* the ranks with which it has gone on, a bit each */
} life_report[WORLD_MAX];

/* The events of the case so far. */
static struct {
    bool struck; /* the victim */
    double struck_at, last_blow;
} life_so_far;

/* End the rank that runs and the case, which is not as it should be. */
static void life_give_up(const char *what)
{
    world_trouble("rank %d %s: %s", world.in, what, dcomm_last_error());
    world_yield();
}

/* ---- blows ---- */

/* Return the death of a rank; NULL: it has none. */
static const life_death *life_death_of(int rank)
{
    for (int i = 0; i < life.ndeaths; i++) {
        if (life.death[i].rank == rank) {
            return &life.death[i];
        }
    }
    return NULL;
}

/* Return true if a rank is to die. */
static bool life_dies(int rank)
{
    return life_death_of(rank) != NULL;
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

/* Return true if the fault happens at a point of the victim's. */
static bool life_strikes(void)
{
    return life.fault == LIFE_CUT || life.fault == LIFE_STOP || life.fault == LIFE_SUSPEND;
}

/* Let happen to a rank what the case has for it. */
static void life_strike(int rank)
{
    life_so_far.last_blow = world.now;
    if (life_dies(rank)) {
        world_die();
    }
    life_so_far.struck = true;
    life_so_far.struck_at = world.now;
    world_trace("is struck at point %" PRIu64, world.rank[rank].points);
    if (life.fault == LIFE_CUT) {
        network_begin(life.lasts);
    }
    for (int r = 0; life.fault == LIFE_SUSPEND && r < life.n; r++) {
        world_stop(r, life.lasts + 0.05 * world_unit(), false);
    }
    if (life.fault == LIFE_STOP) {
        world_stop(rank, life.lasts, false);
    }
    world_busy();
}

/* Arm the blow of a rank that is counted from now on. */
static void life_arm(int rank, bool later)
{
    const life_death *death = life_death_of(rank);
    world_rank *me = &world.rank[rank];
    if (death != NULL && death->later == later) {
        me->struck_at = me->points + 1 + death->point;
    } else if (rank == life.victim && life_strikes() && !later) {
        me->struck_at = me->points + 1 + life.point;
    }
}

/* Let a blow that has waited for a later point come now, when the calls have ended. */
static void life_strike_now(int rank)
{
    if (rank == life.victim &&
        (life.fault == LIFE_DEATH || (life_strikes() && !life_so_far.struck))) {
        world.rank[rank].struck_at = UINT64_MAX;
        life_strike(rank);
        world_yield();
    }
}

#endif
