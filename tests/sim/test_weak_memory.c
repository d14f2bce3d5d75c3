/* test_weak_memory.c - the protocols of shared memory on simulated memory (memory.h): stores and
 * loads overtake each other as C11 allows, and a process dies between any two accesses.
 *
 *     test_weak_memory --case NAME --seed N [--trace]        replay a seed
 *     test_weak_memory --case NAME --from N --count N        run many */
#define _GNU_SOURCE
#pragma GCC diagnostic ignored "-Wunused-function"
#pragma GCC diagnostic ignored "-Wnonnull" /* of copies of no bytes: memcpy is no builtin here */
#include "slots.h"
#include "records.h"

#include "full.h"
#include "suite.h"

#include <criterion/criterion.h>

enum { RECORDS, HOST, SLOTS, CASES };

static const struct {
    const char *name;
    bool (*run)(uint64_t seed);
} cases[CASES] = {[RECORDS] = {"records", records_case},
                  [HOST] = {"host", host_case},
                  [SLOTS] = {"slots", slots_case}};

/* Return the number of seeds that go wrong. Say how to run the first of them again. */
static uint64_t run_seeds(int which, uint64_t from, uint64_t count)
{
    const double start = dcommi_now();
    uint64_t bad = 0, seeds = 0;
    arena.accesses = 0;
    for (uint64_t seed = from; seed < from + count && bad < 3; seed++) {
        seeds++;
        if (!cases[which].run(seed)) {
            bad++;
            printf("# %s\n# replay: test_weak_memory --case %s --seed %" PRIu64 "\n", world.trouble,
                   cases[which].name, seed);
        }
    }
    const double took = dcommi_now() - start;
    printf("# %s: %" PRIu64 " seeds, %" PRIu64 " bad, %.0f accesses each, %.0f an hour\n",
           cases[which].name, seeds, bad, (double)arena.accesses / (double)seeds,
           3600 * (double)seeds / took);
    fflush(stdout);
    return bad;
}

Test(weak_memory, records, .timeout = 240)
{
    cr_expect(run_seeds(RECORDS, 1, test_full() ? 30000 : 600) == 0);
}

Test(weak_memory, host, .timeout = 240)
{
    cr_expect(run_seeds(HOST, 1, test_full() ? 15000 : 500) == 0);
}

Test(weak_memory, slots, .timeout = 240)
{
    cr_expect(run_seeds(SLOTS, 1, test_full() ? 20000 : 800) == 0);
}

/* One seed is one history, whatever ran before. */
Test(weak_memory, replays, .timeout = 60)
{
    uint64_t turns[CASES][10], stores[CASES][10];
    for (int i = 0; i < 20; i++) {
        const int seed = i < 10 ? i : 19 - i;
        for (int c = 0; c < CASES; c++) {
            const uint64_t before = arena.now;
            cases[c].run((uint64_t)seed + 1);
            if (i < 10) {
                turns[c][seed] = world.turns;
                stores[c][seed] = arena.now - before;
            }
            cr_expect(turns[c][seed] == world.turns && stores[c][seed] == arena.now - before,
                      "%s, seed %d", cases[c].name, seed + 1);
        }
    }
}

int main(int argc, char **argv)
{
    uint64_t seed = 0, from = 1, count = 0;
    int which = -1;
    for (int i = 1; i < argc; i++) {
        const char *value = i + 1 < argc ? argv[i + 1] : "0";
        const uint64_t number = strtoull(value, NULL, 10);
        seed = strcmp(argv[i], "--seed") == 0 ? number : seed;
        from = strcmp(argv[i], "--from") == 0 ? number : from;
        count = strcmp(argv[i], "--count") == 0 ? number : count;
        world.traced = world.traced || strcmp(argv[i], "--trace") == 0;
        for (int c = 0; c < CASES && strcmp(argv[i], "--case") == 0; c++) {
            which = strcmp(value, cases[c].name) == 0 ? c : which;
        }
    }
    if (which >= 0) {
        return run_seeds(which, seed > 0 ? seed : from, seed > 0 ? 1 : count) > 0;
    }
    return suite_run(argc, argv);
}
