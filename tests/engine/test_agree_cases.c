/* test_agree_cases.c - the agreement's machine in orders of events that test_agree.c does not come
 * to: five ranks, a death that one rank alone hears of, ranks that know that they are too few. */
#define _GNU_SOURCE
#pragma GCC diagnostic ignored "-Wunused-function"
#define AGREE_MOST 5
#include "agree_world.h"

#include <criterion/criterion.h>

static world w;

static void let(event what, int rank, int other)
{
    const char *wrong = world_let(&w, what, rank, other);
    cr_assert(wrong == NULL, "%s", wrong);
}

/* Deliver the messages among a set of ranks, until none is left. */
static void settle(unsigned set)
{
    for (bool more = true; more;) {
        more = false;
        for (int from = 0; from < w.n; from++) {
            for (int to = 0; to < w.n; to++) {
                if ((set >> from & set >> to & 1) != 0 && w.queued[from][to] > 0) {
                    let(DELIVER, to, from);
                    more = true;
                }
            }
        }
    }
}

/* Check that all ranks of a set have decided that the ranks of another one have failed. */
static void expect_decision(unsigned set, uint64_t out)
{
    for (int r = 0; r < w.n; r++) {
        const uint64_t last = dcommi_agree_look(of(&w, r), DCOMMI_AGREE_LAST)[0];
        cr_expect(!(set >> r & 1) || (of(&w, r)->number == 1 && last == out),
                  "rank %d has made %d decisions, the last one without %x", r,
                  (int)of(&w, r)->number, (unsigned)last);
    }
}

/* Rank 0 waits for rank 2, and hears of its failure from rank 1 alone. */
Test(agree_cases, a_failure_that_the_coordinator_does_not_see)
{
    const event how[] = {HEAR, SUSPECT};
    for (int i = 0; i < 2; i++) {
        world_begin(&w, 3, how[i] == SUSPECT);
        let(CALL, 0, 0);
        let(CALL, 1, 1);
        settle(0x3);
        let(DIE, 2, 2);
        let(how[i], 1, 2);
        settle(0x3);
        expect_decision(0x3, 0x4);
    }
}

/* Ranks 0 and 1 are silent for ranks 2 and 3, which both know that they are too few, until a death
 * is certain. A follower that calls again asks again if it is. */
Test(agree_cases, too_few_know_it)
{
    world_begin(&w, 4, true);
    for (int r = 2; r < 4; r++) {
        let(CALL, r, r);
        let(SUSPECT, r, 0);
        let(SUSPECT, r, 1);
    }
    settle(0xc);
    cr_expect(of(&w, 2)->stuck && of(&w, 3)->stuck);
    let(CALL, 3, 3);
    cr_expect(!of(&w, 3)->stuck && w.queued[3][2] == 1);
    settle(0xc);
    cr_expect(of(&w, 3)->stuck);
    let(DIE, 0, 0);
    let(HEAR, 2, 0);
    settle(0xc);
    expect_decision(0xc, 0x3);
}

/* A rank that has lost most others may be the one that nobody reaches: it is not believed. */
Test(agree_cases, a_lone_accuser)
{
    for (int lost = 2; lost <= 3; lost++) { /* of five ranks */
        world_begin(&w, 5, true);
        for (int r = 1; r <= lost; r++) {
            let(SUSPECT, 0, r);
        }
        let(CALL, 0, 0);
        let(DELIVER, 4, 0);
        const uint64_t failed = dcommi_agree_look(of(&w, 4), DCOMMI_AGREE_FAILED)[0];
        cr_expect(failed == (lost == 2 ? 0x6 : 0), "%x", (unsigned)failed);
    }
}

/* Rank 4 alone has accepted the value of coordinator 0, which has died. Coordinator 1 does not hear
 * from rank 4, and has decided another value with rank 3. Rank 2 hears of that, and then of the
 * first one. */
Test(agree_cases, the_value_of_the_highest_coordinator_counts)
{
    world_begin(&w, 5, true);
    for (int r = 1; r < 5; r++) {
        let(CALL, r, r);
        let(DELIVER, 0, r);
    }
    let(CALL, 0, 0);
    let(DELIVER, 4, 0); /* PROPOSE */
    let(DIE, 0, 0);
    let(SUSPECT, 1, 4);
    for (int r = 1; r < 5; r++) {
        let(HEAR, r, 0);
    }
    settle(1u << 1 | 1u << 3);
    let(DELIVER, 1, 2); /* STATE */
    settle(1u << 1 | 1u << 3);
    let(SUSPECT, 1, 2);
    expect_decision(1u << 1, 0x11);

    for (int r = 2; r < 5; r++) {
        let(SUSPECT, r, 1);
    }
    let(DELIVER, 2, 3); /* STATE of each */
    let(DELIVER, 2, 4);
    settle(0x1c);
    cr_expect(of(&w, 2)->stuck && of(&w, 2)->number == 0); /* that value leaves rank 4 out */
    let(DIE, 1, 1);
    let(HEAR, 2, 1);
    settle(0x1c);
    expect_decision(1u << 2 | 1u << 3, 0x11);
}

/* Ranks 0 and 1 have decided without rank 3. Rank 2 was silent for rank 0 then, and hears from rank
 * 1 what they have decided, and so that rank 3 has failed. */
Test(agree_cases, a_decision_tells_who_has_failed)
{
    world_begin(&w, 4, true);
    for (int r = 1; r < 3; r++) {
        let(CALL, r, r);
        let(DELIVER, 0, r);
    }
    let(SUSPECT, 0, 3);
    let(CALL, 0, 0);
    settle(0x3);
    let(SUSPECT, 0, 2);
    settle(0x3);
    let(SUSPECT, 2, 0);
    settle(0x6);
    expect_decision(0x7, 0x8);
    cr_expect(has(&w, 2, DCOMMI_AGREE_FAILED, 3));
}
