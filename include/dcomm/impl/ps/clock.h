/* clock.h - a server's view of its workers' clocks: who may pull, and when a clock ends. A machine
 * without input and output. */
#ifndef DCOMMI_PS_CLOCK_H
#define DCOMMI_PS_CLOCK_H

#include "../base/util.h"

typedef struct dcommi_ps_clock_of {
    bool works;     /* is a worker that has neither died nor left */
    uint64_t clock; /* clocks that it has ended, or that have ended without it */
} dcommi_ps_clock_of;

/* Set the first four fields, last and of; the others begin as zeros. */
typedef struct dcommi_ps_clock {
    int n;                  /* ranks */
    int staleness;          /* 0: BSP; below 0: pulls never wait */
    int quorum;             /* BSP: workers that end a clock; 0: all */
    double deadline_s;      /* BSP: seconds after which those that have come end it; 0: no limit */
    uint64_t closed;        /* BSP: clocks that have ended */
    double since;           /* BSP: when the first worker ended the open clock; 0: none has */
    bool late;              /* BSP: a worker has ended a clock that had ended without it */
    int last;               /* the rank that was the last to end a clock; -1: none */
    dcommi_ps_clock_of *of; /* [n] */
} dcommi_ps_clock;

/* Return true if some clocks end without all workers. */
static bool dcommi_ps_partial(const dcommi_ps_clock *c)
{
    return c->staleness == 0 && (c->quorum > 0 || c->deadline_s > 0);
}

static int dcommi_ps_working(const dcommi_ps_clock *c)
{
    int n = 0;
    for (int r = 0; r < c->n; r++) {
        n += c->of[r].works;
    }
    return n;
}

/* Return the lowest clock of those that work; UINT64_MAX: nobody does. *rank_p: whose. */
static uint64_t dcommi_ps_slowest(const dcommi_ps_clock *c, int *rank_p)
{
    uint64_t least = UINT64_MAX;
    for (int r = 0; r < c->n; r++) {
        if (c->of[r].works && c->of[r].clock < least) {
            least = c->of[r].clock;
            *rank_p = r;
        }
    }
    return least;
}

/* Return true if a worker has ended the open clock. One that has died since counts, too: all that
 * it pushed in that clock has come. */
static inline bool dcommi_ps_ended(const dcommi_ps_clock *c, int rank)
{
    return c->of[rank].clock > c->closed;
}

/* Return true if a worker can have ended `clock` clocks now. A worker skips those that have ended
 * without it, on this server or on another. */
static bool dcommi_ps_clock_fits(const dcommi_ps_clock *c, int rank, uint64_t clock)
{
    return clock > c->of[rank].clock && (dcommi_ps_partial(c) || clock == c->of[rank].clock + 1);
}

/* A worker has ended `clock` clocks. The worker counts, so that all servers count alike: else two
 * workers could wait for each other, each on another server. */
static void dcommi_ps_clock_end(dcommi_ps_clock *c, int rank, uint64_t clock, double now)
{
    int slowest = -1;
    const uint64_t before = dcommi_ps_slowest(c, &slowest);
    c->of[rank].clock = clock;
    if (dcommi_ps_slowest(c, &slowest) > before) {
        c->last = rank;
    }
    if (!dcommi_ps_ended(c, rank)) {
        c->late = true;
    } else if (c->since == 0) {
        c->since = now;
    }
}

/* A worker gets values. With backup workers it goes on with the open clock. */
static void dcommi_ps_catch_up(dcommi_ps_clock *c, int rank)
{
    if (dcommi_ps_partial(c) && c->of[rank].clock < c->closed) {
        c->of[rank].clock = c->closed;
    }
}

/* Return true if the open clock can end now. */
static bool dcommi_ps_may_close(const dcommi_ps_clock *c, double now)
{
    int ended = 0, left = 0;
    for (int r = 0; r < c->n && c->staleness == 0; r++) {
        ended += dcommi_ps_ended(c, r);
        left += c->of[r].works && !dcommi_ps_ended(c, r);
    }
    return (left == 0 && (ended > 0 || c->late)) ||
           (ended > 0 && ((c->quorum > 0 && ended >= c->quorum) ||
                          (c->deadline_s > 0 && c->since > 0 && now - c->since >= c->deadline_s)));
}

/* End the open clock. */
static void dcommi_ps_close(dcommi_ps_clock *c, double now)
{
    c->closed++;
    c->late = false;
    c->since = 0;
    for (int r = 0; r < c->n; r++) {
        c->since = dcommi_ps_ended(c, r) ? now : c->since;
    }
}

/* Return true if a worker's pull at its present clock need not wait. */
static bool dcommi_ps_may_pull(const dcommi_ps_clock *c, int rank)
{
    const uint64_t clock = c->of[rank].clock;
    int slowest = -1;
    if (c->staleness <= 0) {
        return c->staleness < 0 || clock <= c->closed;
    }
    return clock <= (uint64_t)c->staleness ||
           dcommi_ps_slowest(c, &slowest) >= clock - (uint64_t)c->staleness;
}

/* Return the worker that a pull waits for; -1: none. */
static int dcommi_ps_awaited(const dcommi_ps_clock *c)
{
    int slowest = -1;
    dcommi_ps_slowest(c, &slowest);
    return slowest;
}

#endif
