/* test_ways.c - the recent times of two ways decide which one is taken, and a fill copies every
 * byte whichever way it goes. */
#define _GNU_SOURCE
#include "dcomm/impl/base/base_impl.h"
#include "dcomm/impl/device/host.h"
#include "dcomm/impl/transport/local/fill.h"

#include <criterion/criterion.h>

enum { TURNS = DCOMMI_WAYS_TRIALS };

/* Make uses that take takes[way] s each. Return how many went the second way. */
static int use(dcommi_ways *w, int uses, const double *takes, double worth)
{
    int second = 0;
    for (int i = 0; i < uses; i++) {
        dcommi_way way = dcommi_ways_begin(w);
        second += way.second;
        if (way.timed) {
            way.start = dcommi_now() - takes[way.second];
        }
        dcommi_ways_end(w, &way, 1, worth);
    }
    return second;
}

Test(ways, the_faster_is_taken)
{
    const double second_is[] = {2, 1}, first_is[] = {1, 2};
    dcommi_ways w = {0};
    use(&w, 2, second_is, 1);
    cr_assert(w.second);
    cr_assert_eq(use(&w, 6, second_is, 1), 6);
    memset(&w, 0, sizeof w);
    use(&w, 2, first_is, 1);
    cr_assert_not(w.second);
    cr_assert_eq(use(&w, 6, first_is, 1), 0);
}

Test(ways, a_change_is_noticed)
{
    const double second_is[] = {2, 1}, first_is[] = {1, 2};
    dcommi_ways w = {0};
    use(&w, 10 * TURNS, second_is, 1);
    cr_assert(w.second);
    use(&w, 10 * TURNS, first_is, 1);
    cr_assert_not(w.second);
    use(&w, 10 * TURNS, second_is, 1);
    cr_assert(w.second);
}

Test(ways, both_are_tried_now_and_then)
{
    const double takes[] = {2, 1};
    dcommi_ways w = {0};
    use(&w, TURNS, takes, 1);
    int second = use(&w, 100 * TURNS, takes, 1);
    cr_assert_eq(second, 100 * (TURNS - 1), "%d", second);
}

Test(ways, an_interruption_changes_nothing)
{
    const double takes[] = {2, 1}, interrupted[] = {2, 1000};
    dcommi_ways w = {0};
    use(&w, 10 * TURNS, takes, 1);
    for (int i = 0; i < 10; i++) {
        use(&w, TURNS, interrupted, 1);
        cr_assert(w.second, "%g, %g", w.time[0], w.time[1]);
        use(&w, 9 * TURNS, takes, 1);
    }
}

Test(ways, a_little_faster_may_not_be_worth_it)
{
    const double takes[] = {1.5, 1};
    dcommi_ways w = {0};
    use(&w, 10 * TURNS, takes, 1.75);
    cr_assert_not(w.second);
    use(&w, 10 * TURNS, takes, 1.25);
    cr_assert(w.second);
}

Test(ways, fills_copy_every_byte)
{
    static unsigned char from[3 * DCOMMI_AHEAD_LEAST], to[sizeof from + 2];
    for (size_t i = 0; i < sizeof from; i++) {
        from[i] = (unsigned char)(i * 7 + i / 251);
    }
    for (int isa = 0; isa <= (int)dcommi_isa_best(); isa++) {
        dcommi_isa_force(isa);
        dcommi_filler f = {0};
        for (size_t k = 0; k < 4 * TURNS; k++) {
            size_t at = k % 3, len = sizeof from - 64 * k - k % 5 - 3;
            len = k % 2 == 0 ? len : len / 3;
            memset(to, 0xa5, sizeof to);
            (k % 7 == 0 ? dcommi_fill_near : dcommi_fill)(&f, to + at, from + k % 3, len);
            cr_assert_eq(memcmp(to + at, from + k % 3, len), 0, "%zu bytes, isa %d", len, isa);
            cr_assert(to[at + len] == 0xa5 && (at == 0 || to[at - 1] == 0xa5), "wrote past it");
        }
    }
    dcommi_isa_force(-1);
}
