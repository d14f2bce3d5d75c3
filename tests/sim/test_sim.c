/* test_sim.c - the engine in a simulated world (world.h, wire.h): ranks die at any moment, messages
 * come in any order that a transport allows, and the survivors must agree and go on.
 *
 *     test_sim --seed N [--ranks N] [--trace]     replay the case of a seed
 *     test_sim --from N --count N [--ranks N]     run many
 *     test_sim --ps ...                           the same, with a parameter server
 *     test_sim --algo N --ranks N --victim N --point N [--trace]   replay one death in one call */
#define _GNU_SOURCE
#pragma GCC diagnostic ignored "-Wunused-function"
#include "case.h"

#include "full.h"
#include "suite.h"

#include <criterion/criterion.h>

/* Run the case that is drawn. Say how to run it again if it goes wrong. */
static bool run_case(const char *replay)
{
    const bool good = case_run();
    if (!good) {
        case_print();
        printf("# %s\n# replay: test_sim %s\n", world.trouble, replay);
        fflush(stdout);
    }
    return good;
}

static bool run_seed(uint64_t seed, int most, bool serves)
{
    char replay[64];
    snprintf(replay, sizeof replay, "%s--seed %" PRIu64 " --ranks %d", serves ? "--ps " : "", seed,
             most);
    if (serves) {
        case_draw_serve(seed, most);
    } else {
        case_draw(seed, most);
    }
    return run_case(replay);
}

static int run_seeds(uint64_t from, uint64_t count, int most, bool serves)
{
    const double start = dcommi_now();
    uint64_t bad = 0, turns = 0;
    for (uint64_t seed = from; seed < from + count; seed++) {
        bad += !run_seed(seed, most, serves);
        turns += world.turns;
    }
    const double took = dcommi_now() - start;
    printf("# %" PRIu64 " seeds, %" PRIu64 " bad, %.3g turns each, %.0f an hour\n", count, bad,
           (double)turns / (double)count, 3600 * (double)count / took);
    return bad > 0;
}

/* Let each rank of `n` die at every `step`-th of its points in one call of an algorithm. Return how
 * many cases went wrong. *cases: how many there were. */
static int sweep_algorithm(int algo, int n, uint64_t step, int *cases)
{
    int bad = 0;
    for (int victim = 0; victim < n; victim++) {
        uint64_t points = UINT64_MAX;
        for (uint64_t p = (uint64_t)(algo + victim) % step; p <= points; p += step) {
            char replay[96];
            snprintf(replay, sizeof replay, "--algo %d --ranks %d --victim %d --point %" PRIu64,
                     algo, n, victim, p);
            case_draw_death(algo, n, victim, p);
            bad += !run_case(replay);
            ++*cases;
            if (life_report[victim].points > 0) { /* it came to the end of the call */
                points = life_report[victim].points;
            }
        }
    }
    return bad;
}

static int sweep(int most, bool all)
{
    const double start = dcommi_now();
    int bad = 0, cases = 0;
    for (int algo = 0; algo < CASE_ALGOS; algo++) {
        for (int n = 2; n <= most && calls_knows(dcommi_algo_table[algo].coll); n++) {
            bad += sweep_algorithm(algo, n, all || n == 2 ? 1 : n == 3 ? 5 : 13, &cases);
        }
    }
    printf("# %d deaths, %d bad, in %.1f s\n", cases, bad, dcommi_now() - start);
    return bad;
}

/* Seeds that have found mistakes of the engine, the last four planted ones. */
Test(sim, known_seeds, .timeout = 60)
{
    static const struct {
        uint64_t seed;
        int most;
    } known[] = {
        {227, 4},   /* a rank that was given up blamed one that had ended since */
        {699, 4},   /* a cut that healed late: both halves went on */
        {2967, 4},  /* the end of a rank that had given this one up was a proof */
        {2993, 4},  /* ranks that did not all reach each other shrank for ever */
        {1331, 4},  /* a call waited for messages to a dead rank, though it knew of the error */
        {8306, 4},  /* likewise */
        {57951, 4}, /* beats that came late after an outage: their sender counted as silent */
        {861, 4},   /* a goodbye did not say after which operation */
        {1235, 4},  /* one that was given up did not tell that it goes on, too */
        {1357, 4},  /* a silence of which another rank told was certain */
        {4802, 4}   /* a silence of which another rank told was not believed */
    };
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        cr_expect(run_seed(known[i].seed, known[i].most, false), "seed %d", (int)known[i].seed);
    }
}

/* One seed is one history, whatever ran before. */
Test(sim, replays, .timeout = 60)
{
    enum { SEEDS = 20 };
    uint64_t turns[SEEDS];
    double ends[SEEDS];
    for (int round = 0; round < 2; round++) {
        for (int i = 0; i < SEEDS; i++) {
            const int seed = round == 0 ? i : SEEDS - 1 - i;
            run_seed(1 + (uint64_t)seed, 4, seed % 2);
            if (round == 0) {
                turns[seed] = world.turns;
                ends[seed] = world.now;
            }
            cr_expect(turns[seed] == world.turns && ends[seed] == world.now, "seed %d", seed + 1);
        }
    }
}

Test(sim, seeds, .timeout = 1800)
{
    cr_expect(run_seeds(1, test_full() ? 40000 : 450, 4, false) == 0);
    cr_expect(run_seeds(1, test_full() ? 10000 : 15, 8, false) == 0);
    cr_expect(run_seeds(1, test_full() ? 1000 : 3, 16, false) == 0);
}

Test(sim, parameter_server, .timeout = 1800)
{
    cr_expect(run_seeds(1, test_full() ? 40000 : 300, 4, true) == 0);
    cr_expect(run_seeds(1, test_full() ? 4000 : 10, 8, true) == 0);
}

Test(sim, death_at_every_point, .timeout = 1800)
{
    cr_expect(sweep(test_full() ? 8 : 4, test_full()) == 0);
}

int main(int argc, char **argv)
{
    uint64_t seed = 0, from = 1, count = 0, point = 0;
    int most = 4, algo = -1, victim = 0;
    bool serves = false;
    for (int i = 1; i < argc; i++) {
        const char *value = i + 1 < argc ? argv[i + 1] : "0";
        const uint64_t number = strtoull(value, NULL, 10);
        seed = strcmp(argv[i], "--seed") == 0 ? number : seed;
        from = strcmp(argv[i], "--from") == 0 ? number : from;
        count = strcmp(argv[i], "--count") == 0 ? number : count;
        point = strcmp(argv[i], "--point") == 0 ? number : point;
        most = strcmp(argv[i], "--ranks") == 0 ? (int)number : most;
        algo = strcmp(argv[i], "--algo") == 0 ? (int)number : algo;
        victim = strcmp(argv[i], "--victim") == 0 ? (int)number : victim;
        serves = serves || strcmp(argv[i], "--ps") == 0;
        world.traced = world.traced || strcmp(argv[i], "--trace") == 0;
    }
    if (most < 2 || most > WORLD_MAX || algo >= CASE_ALGOS) {
        fprintf(stderr, "test_sim: 2 to %d ranks, algorithms 0 to %d\n", WORLD_MAX, CASE_ALGOS - 1);
        return 2;
    }
    if (seed > 0) {
        return !run_seed(seed, most, serves);
    }
    if (algo >= 0) {
        case_draw_death(algo, most, victim, point);
        return !run_case("the same");
    }
    if (count > 0) {
        return run_seeds(from, count, most, serves);
    }
    return suite_run(argc, argv);
}
