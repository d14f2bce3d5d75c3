/* case.h - a case from a seed: draw it, run it, and have it judged. */
#ifndef SIM_CASE_H
#define SIM_CASE_H

#include "judge.h"
#include "serve.h"

#include "dcomm/impl/engine/control.h"

#include <math.h>

static const char *const case_faults[LIFE_FAULTS] = {[LIFE_WHOLE] = "does nothing wrong",
                                                     [LIFE_DEATH] = "dies",
                                                     [LIFE_ABORT] = "aborts",
                                                     [LIFE_MISMATCH] = "makes another call",
                                                     [LIFE_HANG] = "is away",
                                                     [LIFE_LEAVE] = "leaves",
                                                     [LIFE_CUT] = "sees the network cut",
                                                     [LIFE_STOP] = "is stopped",
                                                     [LIFE_SUSPEND] = "and all others are stopped"};

/* ---- drawing ---- */

/* Draw how messages go. */
static void case_draw_wire(void)
{
    static const double delays[] = {0, 1e-5, 1e-3, 0.03};
    static const double lates[] = {1e-3, 0.1, 3};
    static const double chances[] = {0, 0, 0.3, 0.9};
    /* The least limit leaves the engine's own messages whole. */
    static const int limits[] = {DCOMMI_TEXT_MAX, 1024, 4096, 32768};
    wire_rules.delay = delays[world_below(4)];
    wire_rules.slow = world_chance(0.3) && wire_rules.delay < 1e-2 ? 0.02 : 0;
    wire_rules.buffers = chances[world_below(4)];
    wire_rules.copied = chances[world_below(4)];
    wire_rules.hold = chances[world_below(4)] / 2;
    wire_rules.late = lates[world_below(3)];
    wire_rules.deaf = world_chance(0.2);
    wire_rules.ordered_max = (size_t)limits[world_below(4)];
    wire_rules.eager_max = (size_t)limits[world_below(4)];
    wire_rules.eager_max = wire_rules.eager_max > wire_rules.ordered_max ? wire_rules.eager_max
                                                                         : wire_rules.ordered_max;
    wire_rules.common = world_chance(0.3);
    sockets.delay = wire_rules.delay;
    world.starve = world_chance(0.3) ? 0.002 : 0;
    system_of.unreadable = world_chance(0.3);
}

/* Draw how long processes may be silent, and how late their threads beat. */
static void case_draw_liveness(void)
{
    static const double livenesses[] = {INFINITY, 2, 5, 10};
    const bool needed = life.fault == LIFE_CUT || life.fault == LIFE_STOP;
    life.liveness_s = livenesses[needed ? 1 + world_below(3) : world_below(4)];
    if (world.starve > 0 && life.liveness_s < 10) {
        life.liveness_s = 10; /* nobody is starved for so long */
    }
    sockets.oversleep = world_chance(0.5) && life.liveness_s < INFINITY ? 0.3 * life.liveness_s : 0;
    world.preempts = world_chance(0.5) ? 0.1 : 0;
}

/* Draw what befalls the network or the processes, and for how long. */
static void case_draw_outage(void)
{
    const double u = world_unit(), liveness_s = life.liveness_s;
    life.weight = (life_weight)world_below(3);
    if (life.fault == LIFE_SUSPEND) {
        life.weight = LIFE_MILD;
        life.lasts = 0.2 + 30 * u * u;
    } else if (life.fault == LIFE_STOP) {
        life.lasts = liveness_s * (life.weight == LIFE_MILD     ? 0.05 + 0.45 * u
                                   : life.weight == LIFE_EITHER ? 0.5 + u
                                                                : 2.5 + 2.5 * u);
    } else {
        life.lasts = life.weight == LIFE_MILD     ? liveness_s * (0.05 + 0.85 * u)
                     : life.weight == LIFE_EITHER ? liveness_s * (0.9 + 1.3 * u)
                     : world_chance(0.7)          ? WORLD_NEVER
                                                  : liveness_s * (2.5 + 2 * u);
    }
    network.again = life.weight == LIFE_MILD || life.lasts < 1 ? life.lasts : 1;
    const int hosts = 1 + system_host(life.n - 1);
    const unsigned some = 1 + (unsigned)world_below((1 << hosts) - 2 > 0 ? (1 << hosts) - 2 : 1);
    network.side = 0;
    for (int r = 0; r < life.n; r++) {
        network.side |= (some >> system_host(r) & 1u) << r;
    }
}

/* Draw who dies, and when. The victim of an outage does not. */
static void case_draw_deaths(void)
{
    const bool outage = life.fault == LIFE_CUT || life.fault == LIFE_STOP;
    const double more = life.fault == LIFE_DEATH             ? 0.4
                        : outage && life.weight == LIFE_HARD ? 0.3
                                                             : 0;
    int most = life.n - (outage ? 2 : 1);
    most = most < LIFE_DEATHS ? most : LIFE_DEATHS;
    if (life.fault == LIFE_DEATH) {
        life.death[life.ndeaths++] = (life_death){life.victim, life.point, false};
    }
    while (life.ndeaths < most && world_chance(more)) {
        int rank = world_below(life.n);
        while (rank == life.victim || life_dies(rank)) {
            rank = (rank + 1) % life.n;
        }
        life.death[life.ndeaths++] = (life_death){
            rank, world_random() % (uint64_t)(1 << world_below(10)), world_chance(0.7)};
    }
}

static life_fault case_draw_fault(void)
{
    static const life_fault faults[] = {LIFE_DEATH, LIFE_DEATH, LIFE_DEATH,    LIFE_DEATH,
                                        LIFE_DEATH, LIFE_DEATH, LIFE_CUT,      LIFE_CUT,
                                        LIFE_STOP,  LIFE_STOP,  LIFE_WHOLE,    LIFE_ABORT,
                                        LIFE_HANG,  LIFE_LEAVE, LIFE_MISMATCH, LIFE_SUSPEND};
    const life_fault fault = faults[world_below((int)(sizeof faults / sizeof *faults))];
    const bool one = system_host(life.n - 1) == 0;
    return one && fault == LIFE_CUT ? LIFE_STOP : fault;
}

/* Draw a case of at most `most` ranks. */
static void case_draw(uint64_t seed, int most)
{
    world.random = seed;
    world.random = world_random(); /* streams of near seeds must not overlap */
    memset(&life, 0, sizeof life);
    memset(&serve, 0, sizeof serve);
    life.seed = seed;
    life.n = 2 + world_below(most - 1);
    system_of.per_host = world_chance(0.4) ? life.n : 1 + world_below(life.n);
    case_draw_wire();
    life.ncalls = 3 + world_below(LIFE_CALLS - 2);
    for (int i = 0; i <= life.ncalls; i++) {
        life.call[i] = calls_draw(life.n);
    }
    life.fault = case_draw_fault();
    life.weight = life.fault == LIFE_WHOLE ? LIFE_MILD : LIFE_HARD;
    life.victim = world_below(life.n);
    life.when = world_below(life.ncalls);
    life.point = world_random() % (uint64_t)(1 << world_below(10));
    case_draw_liveness();
    if (life.fault == LIFE_CUT || life.fault == LIFE_STOP || life.fault == LIFE_SUSPEND) {
        case_draw_outage();
    }
    case_draw_deaths();
    life.second = world_chance(0.3) && life.fault != LIFE_ABORT && life.fault != LIFE_HANG &&
                  life.fault != LIFE_MISMATCH;
    life.traced = system_host(life.n - 1) == 0 && world_chance(0.5);
    life.timeout_s = life.fault == LIFE_HANG ? 20 : 60;
    life.rest = seed % 3 == 1 && life.liveness_s < INFINITY ? 2 * life.liveness_s : 0;
    life.quorum = world_chance(0.6)   ? 0
                  : world_chance(0.5) ? DCOMM_QUORUM_NONE
                                      : life.n / 2 + 1 + world_below(life.n - life.n / 2);
}

/* Algorithms of the table, but for those of operations that are not drawn. */
enum { CASE_ALGOS = DCOMMI_ALGO_COUNT };

/* Draw the death of a rank at a point of its only call. */
static void case_draw_death(int algo, int n, int victim, uint64_t point)
{
    const dcommi_algo *a = &dcommi_algo_table[algo];
    case_draw((uint64_t)algo * 100 + (uint64_t)n, n);
    world.starve = 0;
    world.preempts = 0;
    life.n = n;
    system_of.per_host = n == 2 ? 1 + algo % 2 : 1 + (algo + n) % n;
    life.ncalls = 1;
    life.call[0] = (calls_one){.coll = a->coll,
                               .algo = a->name,
                               .count = 1 + calls_draw_count() % 700,
                               .dtype = DCOMM_F32,
                               .root = (victim + algo) % n};
    life.call[1] = (calls_one){.coll = DCOMM_COLL_ALLREDUCE, .count = 5, .dtype = DCOMM_I32};
    life.fault = LIFE_DEATH;
    life.weight = LIFE_HARD;
    life.victim = victim;
    life.death[0] = (life_death){victim, point, false};
    life.ndeaths = 1;
    life.quorum = 0;
    life.second = false;
    life.timeout_s = 60;
}

/* Draw a case with a parameter server, of at most `most` ranks. */
static void case_draw_serve(uint64_t seed, int most)
{
    static const int stalenesses[] = {0, 0, 0, 1, 2, DCOMM_PS_ASYNC};
    static const life_fault faults[] = {LIFE_DEATH, LIFE_DEATH, LIFE_DEATH,
                                        LIFE_WHOLE, LIFE_STOP,  LIFE_SUSPEND};
    case_draw(seed, most);
    serve.on = true;
    serve.servers = 1 + world_below(life.n);
    serve.dedicated = serve.servers < life.n && world_chance(0.5);
    serve.staleness = stalenesses[world_below(6)];
    serve.clocks = 1 + world_below(SERVE_CLOCKS);
    serve.lists = world_chance(0.5);
    serve.requests = world_chance(0.5);
    if (serve.staleness == 0 && world_chance(0.3)) {
        serve.quorum = world_chance(0.5) ? 1 + world_below(serve_workers()) : 0;
        serve.deadline_s = serve.quorum == 0 ? 0.01 + world_unit() : 0;
    }
    serve.replicas = serve.servers > 1 && !serve_partial() && world_chance(0.4);
    life.fault = faults[world_below(6)];
    life.weight = life.fault == LIFE_DEATH ? LIFE_HARD : LIFE_MILD;
    life.quorum = life.ndeaths = 0;
    life.second = life.traced = false;
    life.timeout_s = 60;
    case_draw_liveness();
    if (life_strikes()) {
        life.lasts = (life.liveness_s < INFINITY ? life.liveness_s : 10) * 0.5 * world_unit();
    }
    case_draw_deaths();
    for (int i = 0; i < life.ndeaths; i++) {
        life.death[i].later = false;
    }
}

/* ---- running ---- */

/* Run the case that has been drawn. Return true if all is well. */
static bool case_run(void)
{
    dcomm_set_allocator(world_alloc, world_free, NULL);
    memset(life_report, 0, sizeof life_report);
    memset(serve_report, 0, sizeof serve_report);
    memset(&life_so_far, 0, sizeof life_so_far);
    recover_facts.n = 0;
    memset(life_meeting.round, 0, sizeof life_meeting.round);
    memset(wire.common, 0, wire_rules.common ? (size_t)life.n * sizeof *wire.common : 0);
    world.trouble[0] = 0;
    world.now = 0;
    world.turns = 0;
    world.main = serve.on ? serve_main : life_main;
    world.died = wire_died;
    world.strike = life_strike;
    world.next_event = wire_next_event;
    network.on_cut = wire_on_cut;
    world_run(life.n, world.random, LIFE_LIMIT);
    if (serve.on) {
        serve_judge();
    } else {
        judge();
    }
    calls_end();
    wire_end();
    world_end();
    dcommi_ctl_all = NULL; /* the control connections of the dead were in it */
    dcomm_set_allocator(NULL, NULL, NULL);
    return world.trouble[0] == 0;
}

/* Print the case. */
static void case_print(void)
{
    printf("# seed %" PRIu64 ": %d ranks, %d on a host, liveness %g s, quorum %d; rank %d %s",
           life.seed, life.n, system_of.per_host, life.liveness_s, life.quorum, life.victim,
           case_faults[life.fault]);
    if (life_strikes()) {
        printf(" at point %" PRIu64 " for %g s; one side %x\n", life.point, life.lasts,
               network.side);
    } else {
        printf(" at call %d\n", life.when);
    }
    for (int i = 0; i < life.ndeaths; i++) {
        printf("# rank %d dies at point %" PRIu64 "%s\n", life.death[i].rank, life.death[i].point,
               life.death[i].later ? " of its recovery" : "");
    }
    if (serve.on) {
        printf("# %d servers, dedicated %d, replicas %d, staleness %d, quorum %d, deadline %g s; "
               "%d clocks, lists %d, requests %d\n",
               serve.servers, serve.dedicated, serve.replicas, serve.staleness, serve.quorum,
               serve.deadline_s, serve.clocks, serve.lists, serve.requests);
    }
    for (int i = 0; i <= life.ncalls && !serve.on; i++) {
        char text[160];
        calls_text(&life.call[i], text, sizeof text);
        printf("# %s %d: %s%s%s\n", i < life.ncalls ? "call" : "last", i, text,
               life.call[i].together ? ", with the next" : "",
               life.second && life.call[i].second ? ", second communicator" : "");
    }
}

#endif
