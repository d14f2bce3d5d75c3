/* case.h - a case from a seed: draw it, run it, and compare what the survivors report. */
#ifndef SIM_CASE_H
#define SIM_CASE_H

#include "life.h"

#include "dcomm/impl/engine/control.h"

static const char *const case_faults[LIFE_FAULTS] = {[LIFE_WHOLE] = "does nothing wrong",
                                                     [LIFE_DEATH] = "dies",
                                                     [LIFE_DEATHS] = "dies, and another",
                                                     [LIFE_ABORT] = "aborts",
                                                     [LIFE_MISMATCH] = "makes another call",
                                                     [LIFE_HANG] = "is away",
                                                     [LIFE_LEAVE] = "leaves"};

#define CASE_SPREAD 0.1 /* seconds until an error has reached all */

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

/* Draw a case of at most `most` ranks. */
static void case_draw(uint64_t seed, int most)
{
    world.random = seed;
    world.random = world_random(); /* streams of near seeds must not overlap */
    memset(&life, 0, sizeof life);
    life.seed = seed;
    life.n = 2 + world_below(most - 1);
    system_of.per_host = world_chance(0.4) ? life.n : 1 + world_below(life.n);
    case_draw_wire();
    life.ncalls = 3 + world_below(LIFE_CALLS - 2);
    for (int i = 0; i <= life.ncalls; i++) {
        life.call[i] = calls_draw(life.n);
    }
    life.fault = world_chance(0.6) ? LIFE_DEATH : (life_fault)world_below(LIFE_FAULTS);
    life.victim = world_below(life.n);
    life.when = world_below(life.ncalls);
    life.point = world_random() % (uint64_t)(1 << world_below(10));
    life.fault = life.fault == LIFE_DEATHS && life.n < 3 ? LIFE_DEATH : life.fault;
    life.second_victim = (life.victim + 1 + world_below(life.n - 1)) % life.n;
    life.second_point = world_random() % (uint64_t)(1 << world_below(10));
    life.second = world_chance(0.3) && (life.fault == LIFE_DEATH || life.fault == LIFE_DEATHS ||
                                        life.fault == LIFE_LEAVE || life.fault == LIFE_WHOLE);
    life.timeout_s = life.fault == LIFE_HANG ? 20 : 60;
}

/* Algorithms of the table, but for those of operations that are not drawn. */
enum { CASE_ALGOS = DCOMMI_ALGO_COUNT };

/* Draw the death of a rank at a point of its only call. */
static void case_draw_death(int algo, int n, int victim, uint64_t point)
{
    const dcommi_algo *a = &dcommi_algo_table[algo];
    case_draw((uint64_t)algo * 100 + (uint64_t)n, n);
    world.starve = 0;
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
    life.victim = victim;
    life.point = point;
    life.second = false;
    life.timeout_s = 60;
}

/* ---- judging ---- */

/* Return where a sentence goes on behind a rank's name, from `at` on; NULL: nowhere. */
static const char *case_named(const char *at, int rank)
{
    char name[16];
    const size_t len = (size_t)snprintf(name, sizeof name, "rank %d", rank);
    while ((at = strstr(at, name)) != NULL && at[len] >= '0' && at[len] <= '9') {
        at += len;
    }
    return at != NULL ? at + len : NULL;
}

/* Return true if a sentence says of a rank what is said of the one at fault. */
static bool case_accuses(const char *text, int rank)
{
    static const char *const said[] = {" (process", " was lost", " is lost", " cannot", " does not",
                                       " has left", " freed",    " aborted", " calls"};
    for (const char *at = text; (at = case_named(at, rank)) != NULL;) {
        for (size_t i = 0; i < sizeof said / sizeof *said; i++) {
            if (strncmp(at, said[i], strlen(said[i])) == 0) {
                return true;
            }
        }
    }
    return false;
}

/* Check a survivor's error. */
static void case_judge_error(int rank)
{
    static const dcomm_status wanted[LIFE_FAULTS] = {[LIFE_WHOLE] = DCOMM_OK,
                                                     [LIFE_DEATH] = DCOMM_ERR_PEER,
                                                     [LIFE_DEATHS] = DCOMM_ERR_PEER,
                                                     [LIFE_ABORT] = DCOMM_ERR_ABORTED,
                                                     [LIFE_MISMATCH] = DCOMM_ERR_MISMATCH,
                                                     [LIFE_HANG] = DCOMM_ERR_TIMEOUT,
                                                     [LIFE_LEAVE] = DCOMM_ERR_PEER};
    const struct life_report *mine = &life_report[rank];
    const dcomm_status want = wanted[life.fault];
    if (mine->status != want) {
        world_trouble("rank %d got %s, not %s: %s", rank, dcomm_status_name(mine->status),
                      dcomm_status_name(want), mine->error);
    }
    bool named = want == DCOMM_OK;
    for (int r = 0; r < life.n && want < 0; r++) {
        const bool accused = case_accuses(mine->error, r);
        if (accused && r != life.victim && !life_dies(r) && life.fault != LIFE_MISMATCH) {
            world_trouble("rank %d accuses rank %d: %s", rank, r, mine->error);
        }
        named = named || (accused && (r == life.victim || life_dies(r)));
    }
    if (!named) {
        world_trouble("rank %d does not name rank %d: %s", rank, life.victim, mine->error);
    }
}

/* Check that all survivors fail soon after the first one, where messages are fast and everybody
 * gets turns. */
static void case_judge_times(void)
{
    const bool brisk = wire_rules.delay < 1e-2 && wire_rules.slow <= 0 && wire_rules.hold < 0.2 &&
                       world.starve <= 0 && (life.fault == LIFE_DEATH || life.fault == LIFE_ABORT);
    double first = WORLD_NEVER, last = 0;
    for (int r = 0; r < life.n; r++) {
        if (!life_is_out(r)) {
            first = life_report[r].failed < first ? life_report[r].failed : first;
            last = life_report[r].failed > last ? life_report[r].failed : last;
        }
    }
    if (brisk && last - first > CASE_SPREAD) {
        world_trouble("the last survivor fails %g s after the first", last - first);
    }
}

/* Compare what the survivors report. */
static void case_judge(void)
{
    for (int r = 0; r < life.n && world.trouble[0] == 0; r++) {
        if (!life_report[r].over && world.rank[r].state != WORLD_DEAD) {
            world_trouble("rank %d has not come to its end", r);
        } else if (!life_is_out(r)) {
            case_judge_error(r);
        }
    }
    if (world.trouble[0] == 0) {
        case_judge_times();
    }
}

/* ---- running ---- */

/* Run the case that has been drawn. Return true if all is well. */
static bool case_run(void)
{
    dcomm_set_allocator(world_alloc, world_free, NULL);
    memset(life_report, 0, sizeof life_report);
    memset(life_meeting.round, 0, sizeof life_meeting.round);
    memset(wire.common, 0, wire_rules.common ? (size_t)life.n * sizeof *wire.common : 0);
    world.trouble[0] = 0;
    world.now = 0;
    world.turns = 0;
    world.main = life_main;
    world.died = wire_died;
    world.next_event = wire_next_event;
    for (int r = 0; r < life.n; r++) {
        world.rank[r].dies_at = UINT64_MAX;
    }
    world_run(life.n, world.random, LIFE_LIMIT);
    case_judge();
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
    printf("# seed %" PRIu64 ": %d ranks, %d on a host; rank %d %s", life.seed, life.n,
           system_of.per_host, life.victim, case_faults[life.fault]);
    if (life_dies(life.victim)) {
        printf(" at point %" PRIu64 "\n", life.point);
    } else {
        printf(" at call %d\n", life.when);
    }
    for (int i = 0; i <= life.ncalls; i++) {
        char text[160];
        calls_text(&life.call[i], text, sizeof text);
        printf("# %s %d: %s%s%s\n", i < life.ncalls ? "call" : "last", i, text,
               life.call[i].together ? ", with the next" : "",
               life.second && life.call[i].second ? ", second communicator" : "");
    }
}

#endif
