/* soak_plan.h - the plan of a soak trial, which follows from its seed: ranks and their places, who
 * is killed or stopped and when, and if the network is cut. */
#ifndef SOAK_PLAN_H
#define SOAK_PLAN_H

#include "faults.h"

#include <stdint.h>

enum { SOAK_DEATHS = 3 };

typedef enum soak_kind { SOAK_KILLS, SOAK_STOPS, SOAK_OUTAGE, SOAK_CUT } soak_kind;

typedef struct soak_plan {
    uint64_t seed;
    soak_kind kind;
    fault_place place;
    int n;
    int ndeaths; /* the first may be a stop */
    int victim[SOAK_DEATHS];
    double after_s[SOAK_DEATHS]; /* since the death before, or since all ranks were at work */
    bool joins;                  /* a process joins when the others have recovered */
    bool joiner_dies;
    double dies_s; /* since it was started */
} soak_plan;

static uint64_t soak_random(uint64_t *state)
{
    uint64_t x = *state += UINT64_C(0x9e3779b97f4a7c15);
    x = (x ^ x >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ x >> 27) * UINT64_C(0x94d049bb133111eb);
    return x ^ x >> 31;
}

/* Return a number from 0 to most - 1. */
static int soak_below(uint64_t *state, int most)
{
    return (int)(soak_random(state) % (uint64_t)most);
}

/* Make a trial of a seed: a network that is cut in one of 32 trials, a process that is stopped in
 * one of 16, else one to three deaths. Stopped processes are not proven dead: the others must be
 * more than half, so at most one more dies. */
static soak_plan soak_plan_of(uint64_t seed)
{
    static const fault_place places[] = {LOCAL, NET, PAIRS};
    uint64_t state = seed;
    soak_plan p = {.seed = seed, .n = soak_below(&state, 2) != 0 ? 8 : 4};
    p.place = places[soak_below(&state, 3)];
    const int kind = soak_below(&state, 32);
    p.kind = kind == 0 ? SOAK_CUT : kind == 1 ? SOAK_OUTAGE : kind < 4 ? SOAK_STOPS : SOAK_KILLS;
    if (p.kind == SOAK_CUT || p.kind == SOAK_OUTAGE) {
        p.place = PAIRS;
        return p;
    }
    p.ndeaths = 1 + soak_below(&state, p.kind == SOAK_STOPS ? 2 : SOAK_DEATHS);
    for (int i = 0; i < p.ndeaths; i++) {
        bool taken = true;
        while (taken) {
            p.victim[i] = soak_below(&state, p.n);
            taken = false;
            for (int k = 0; k < i; k++) {
                taken = taken || p.victim[k] == p.victim[i];
            }
        }
        p.after_s[i] = 1e-6 * soak_below(&state, i == 0 ? 20000 : 12000);
    }
    p.joins = p.kind == SOAK_KILLS && soak_below(&state, 4) == 0;
    p.joiner_dies = p.joins && soak_below(&state, 3) == 0;
    p.dies_s = 1e-6 * soak_below(&state, 60000);
    return p;
}

#endif
