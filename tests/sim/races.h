/* races.h - finds plain accesses of two processes to one place that no release and acquire order,
 * of which one is a store. C11 has no meaning for them, even where no processor could do harm: a
 * store never goes ahead of a load in the simulated memory. Each process has a clock of each other
 * one, which acquire loads bring forward. */
#ifndef SIM_RACES_H
#define SIM_RACES_H

#include "world.h"

enum { RACES_PROCESSES = 4, RACES_GRAIN = 8, RACES_PLACES = (3 << 20) / RACES_GRAIN };

#define RACES_MODEL __attribute__((no_sanitize("thread"), unused))

typedef struct races_clock {
    uint32_t of[RACES_PROCESSES];
} races_clock;

static struct {
    races_clock clock[RACES_PROCESSES]; /* what a process knows of the others */
    races_clock released[RACES_PLACES]; /* and whoever loads this place, by acquire */
    races_clock loaded[RACES_PLACES];   /* when each process has loaded it last */
    races_clock stored[RACES_PLACES];   /* and stored to it */
} races;

static RACES_MODEL void races_join(races_clock *to, const races_clock *from)
{
    for (int p = 0; p < RACES_PROCESSES; p++) {
        to->of[p] = from->of[p] > to->of[p] ? from->of[p] : to->of[p];
    }
}

/* Begin a release: return what whoever acquires it will know. */
static RACES_MODEL races_clock races_release(int process)
{
    const races_clock known = races.clock[process];
    races.clock[process].of[process]++;
    return known;
}

/* Note that a store is visible. `known`: of a release; NULL: of another store. */
static RACES_MODEL void races_publish(size_t at, const races_clock *known)
{
    races.released[at / RACES_GRAIN] = known != NULL ? *known : (races_clock){{0}};
}

/* The same of a store that belongs to an operation which has read the place, too. */
static RACES_MODEL void races_publish_more(size_t at, const races_clock *known)
{
    races_join(&races.released[at / RACES_GRAIN], known);
}

static RACES_MODEL void races_acquire(int process, size_t at)
{
    races_join(&races.clock[process], &races.released[at / RACES_GRAIN]);
}

/* Let a process know all that another one has done, from the system. */
static RACES_MODEL void races_learn(int process, int other)
{
    races_join(&races.clock[process], &races.clock[other]);
}

/* Complain if some other process's access to a place comes neither before nor after this one. */
static RACES_MODEL void races_check(const races_clock *done, int process, size_t at,
                                    const char *mine, const char *other)
{
    for (int p = 0; p < RACES_PROCESSES; p++) {
        if (p != process && done->of[p] > races.clock[process].of[p]) {
            world_trouble("a %s of %d at %zu is not ordered behind a %s of %d", mine, process, at,
                          other, p);
        }
    }
}

/* Note a plain load that is done later than it is checked. */
static RACES_MODEL void races_loaded(int process, size_t at, size_t len)
{
    for (size_t g = at / RACES_GRAIN; g <= (at + len - 1) / RACES_GRAIN; g++) {
        races.loaded[g].of[process] = races.clock[process].of[process];
    }
}

static RACES_MODEL void races_load(int process, size_t at, size_t len)
{
    for (size_t g = at / RACES_GRAIN; g <= (at + len - 1) / RACES_GRAIN; g++) {
        races_check(&races.stored[g], process, g * RACES_GRAIN, "load", "store");
    }
    races_loaded(process, at, len);
}

static RACES_MODEL void races_store(int process, size_t at, size_t len)
{
    for (size_t g = at / RACES_GRAIN; g <= (at + len - 1) / RACES_GRAIN; g++) {
        races_check(&races.loaded[g], process, g * RACES_GRAIN, "store", "load");
        races_check(&races.stored[g], process, g * RACES_GRAIN, "store", "store");
        races.stored[g].of[process] = races.clock[process].of[process];
    }
}

/* Let all processes of a new world know all that came before. */
static RACES_MODEL void races_reset(void)
{
    for (int p = 0; p < RACES_PROCESSES; p++) {
        races.clock[p].of[p]++;
        races_join(&races.clock[0], &races.clock[p]);
    }
    for (int p = RACES_PROCESSES - 1; p >= 0; p--) {
        races.clock[p] = races.clock[0];
        races.clock[p].of[p]++; /* what it does from here on is news to the others */
    }
}

#endif
