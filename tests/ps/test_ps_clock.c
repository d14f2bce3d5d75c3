/* test_ps_clock.c - the clocks of a parameter server against what its documentation promises, in
 * every order of seven events of three workers. */
#define _GNU_SOURCE
#pragma GCC diagnostic ignored "-Wunused-function"
#include "dcomm/impl/ps/clock.h"

#include <criterion/criterion.h>

enum { MOST = 5 };

typedef struct world {
    dcommi_ps_clock c;
    dcommi_ps_clock_of of[MOST];
    uint64_t ended[MOST]; /* clocks that each worker has ended */
    bool gone[MOST];
    double now;
} world;

static void begin(world *w, int n, int staleness, int quorum, double deadline_s)
{
    *w = (world){.now = 1};
    w->c = (dcommi_ps_clock){.n = n,
                             .staleness = staleness,
                             .quorum = quorum,
                             .deadline_s = deadline_s,
                             .last = -1,
                             .of = w->of};
    for (int r = 0; r < n; r++) {
        w->of[r].works = true;
    }
}

/* Check the present state against the promises. */
static void look(world *w)
{
    int left = 0;
    uint64_t slowest = UINT64_MAX;
    for (int r = 0; r < w->c.n; r++) {
        left += !w->gone[r];
        slowest = !w->gone[r] && w->ended[r] < slowest ? w->ended[r] : slowest;
    }
    cr_assert_eq(dcommi_ps_working(&w->c), left);
    cr_assert(!dcommi_ps_may_close(&w->c, w->now), "a clock is left open");
    for (int r = 0; r < w->c.n; r++) {
        if (w->gone[r] || dcommi_ps_partial(&w->c)) {
            continue;
        }
        const uint64_t clock = w->ended[r], s = (uint64_t)w->c.staleness;
        const bool may = w->c.staleness < 0 || slowest + s >= clock;
        cr_assert_eq(dcommi_ps_may_pull(&w->c, r), may, "staleness %d: worker %d at clock %d",
                     w->c.staleness, r, (int)clock);
        cr_assert(may || w->ended[dcommi_ps_awaited(&w->c)] == slowest);
    }
    if (w->c.staleness == 0 && !dcommi_ps_partial(&w->c) && left > 0) {
        cr_assert_eq(w->c.closed, slowest);
    }
}

static void settle(world *w)
{
    while (dcommi_ps_may_close(&w->c, w->now)) {
        const uint64_t before = w->c.closed;
        dcommi_ps_close(&w->c, w->now);
        cr_assert_eq(w->c.closed, before + 1);
    }
    look(w);
}

static void end(world *w, int r)
{
    w->ended[r]++;
    const uint64_t clock = w->of[r].clock + 1;
    cr_assert(dcommi_ps_clock_fits(&w->c, r, clock) && !dcommi_ps_clock_fits(&w->c, r, clock - 1));
    dcommi_ps_clock_end(&w->c, r, clock, w->now);
    settle(w);
}

static void leave(world *w, int r)
{
    w->gone[r] = true;
    w->of[r].works = false;
    settle(w);
}

/* Try every order of events: workers end clocks or go. In BSP the server holds back what a worker
 * that has ended the open clock sends. */
static void every_order(const world *before, int depth)
{
    for (int r = 0; r < before->c.n && depth > 0; r++) {
        const bool held = before->c.staleness == 0 && dcommi_ps_ended(&before->c, r);
        for (int goes = held ? 1 : 0; goes < 2 && !before->gone[r]; goes++) {
            world w = *before;
            w.c.of = w.of;
            if (goes) {
                leave(&w, r);
            } else {
                end(&w, r);
            }
            every_order(&w, depth - 1);
        }
    }
}

Test(ps_clock, every_order)
{
    for (int staleness = -1; staleness <= 2; staleness++) {
        world w;
        begin(&w, 3, staleness, 0, 0);
        look(&w);
        every_order(&w, 7);
    }
}

/* A quorum of two of three ends each clock, and the third goes on with the open one. */
Test(ps_clock, quorum)
{
    world w;
    begin(&w, 3, 0, 2, 0);
    end(&w, 0);
    cr_assert_eq(w.c.closed, 0);
    cr_assert(!dcommi_ps_may_pull(&w.c, 0) && dcommi_ps_may_pull(&w.c, 2));
    end(&w, 1);
    cr_assert_eq(w.c.closed, 1);
    cr_assert(dcommi_ps_may_pull(&w.c, 0));
    end(&w, 1);
    end(&w, 0);
    cr_assert_eq(w.c.closed, 2);
    end(&w, 2); /* its first clock, two behind */
    end(&w, 1);
    cr_assert_eq(w.c.closed, 2);
    dcommi_ps_catch_up(&w.c, 2);
    cr_assert_eq(w.of[2].clock, 2);
    end(&w, 2);
    cr_assert_eq(w.c.closed, 3);
    leave(&w, 0);
    leave(&w, 1);
    end(&w, 2); /* alone, it is all that are left */
    cr_assert_eq(w.c.closed, 4);
}

/* A clock ends when its time is up, with those that have come; not with nobody. */
Test(ps_clock, deadline)
{
    world w;
    begin(&w, 3, 0, 0, 0.5);
    w.now += 10;
    cr_assert(!dcommi_ps_may_close(&w.c, w.now));
    end(&w, 1);
    w.now += 0.4;
    end(&w, 0); /* the time runs from the first */
    cr_assert_eq(w.c.closed, 0);
    w.now += 0.2;
    cr_assert(dcommi_ps_may_close(&w.c, w.now));
    settle(&w);
    cr_assert_eq(w.c.closed, 1);
    end(&w, 2);
    w.now += 10;
    cr_assert(!dcommi_ps_may_close(&w.c, w.now), "late is not early");
    dcommi_ps_clock_end(&w.c, 1, 5, w.now); /* another server has gone on without it */
    w.now += 0.6;
    cr_assert(dcommi_ps_may_close(&w.c, w.now));
    dcommi_ps_close(&w.c, w.now);
    cr_assert(!dcommi_ps_may_close(&w.c, w.now), "each clock has its own time");
    w.now += 0.6;
    cr_assert(dcommi_ps_may_close(&w.c, w.now));
}

/* Late pushes count even if nobody ends another clock. */
Test(ps_clock, late)
{
    world w;
    begin(&w, 2, 0, 1, 0);
    end(&w, 0);
    cr_assert_eq(w.c.closed, 1);
    end(&w, 1);
    leave(&w, 0);
    cr_assert_eq(w.c.closed, 1, "it may push more");
    leave(&w, 1);
    cr_assert_eq(w.c.closed, 2);
}

/* Only with backup workers may a worker skip clocks. */
Test(ps_clock, skips)
{
    world w;
    begin(&w, 2, 0, 0, 0);
    cr_assert(!dcommi_ps_clock_fits(&w.c, 0, 0) && dcommi_ps_clock_fits(&w.c, 0, 1) &&
              !dcommi_ps_clock_fits(&w.c, 0, 2));
    begin(&w, 2, 0, 1, 0);
    cr_assert(!dcommi_ps_clock_fits(&w.c, 0, 0) && dcommi_ps_clock_fits(&w.c, 0, 7));
}

/* All waited for the worker that ended a clock last. */
Test(ps_clock, last)
{
    world w;
    begin(&w, 3, 1, 0, 0);
    end(&w, 2);
    end(&w, 2);
    end(&w, 0);
    cr_assert_eq(w.c.last, -1);
    end(&w, 1);
    cr_assert_eq(w.c.last, 1);
}
