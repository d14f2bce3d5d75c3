/* test_torture.c - every system call of a communicator's creation, calls, agreement, shrink, growth
 * and destruction fails once, or is interrupted once, on one host and on two. */
#define _GNU_SOURCE
#include "walk.h"

#include "faulty.h"

/* The everyday run fails one call in `step`, up to `most`, the full run each of the first `all`:
 * waiting makes calls without end. */
static void torture(enum part part, ranks_place place, int first, int last, long step, long most,
                    long all, bool interrupts)
{
    const bool full = test_full();
    const char *by = getenv("FAULTY_STEP"), *to = getenv("FAULTY_MOST");
    faulty_interrupts = interrupts;
    walk_all(&(walk){.part = part,
                     .place = place,
                     .first = first,
                     .last = last,
                     .step = by != NULL ? atol(by) : full ? 1 : step,
                     .most = to != NULL ? atol(to) : full ? all : most,
                     .misses = 6, /* how many calls there are depends on the time they take */
                     .arm = faulty_arm,
                     .hit = faulty_was_hit});
}

#define TORTURE(name, part, place, first, last, step, most, all)            \
    Test(torture, name, .timeout = 3600)                                    \
    {                                                                       \
        torture(part, place, first, last, step, most, all, false);          \
    }                                                                       \
    Test(torture_interrupted, name, .timeout = 3600)                        \
    {                                                                       \
        torture(part, place, first, last, 3 * (step), most, all, true);     \
    }
TORTURE(create, CREATE, RANKS_LOCAL, 1, 1, 5, 100, 300)
TORTURE(create_where_the_rendezvous_is, CREATE, RANKS_LOCAL, 0, 0, 7, 120, 300)
TORTURE(call, CALL, RANKS_LOCAL, 1, 1, 1, 10, 50)
TORTURE(agree, AGREE, RANKS_LOCAL, 1, 1, 1, 10, 100)
TORTURE(shrink, SHRINK, RANKS_LOCAL, 1, 1, 1, 10, 100)
TORTURE(grow, GROW, RANKS_LOCAL, 1, 1, 29, 100, 200)
TORTURE(grow_where_the_lobby_is, GROW, RANKS_LOCAL, 0, 0, 29, 100, 200)
TORTURE(grow_newcomer, GROW, RANKS_LOCAL, 2, 2, 29, 100, 200)
TORTURE(destroy, DESTROY, RANKS_LOCAL, 1, 1, 1, 5, 20)
TORTURE(create_on_hosts, CREATE, RANKS_HOSTS, 1, 1, 17, 120, 300)
TORTURE(create_on_hosts_at_0, CREATE, RANKS_HOSTS, 0, 0, 17, 120, 300)
TORTURE(call_on_hosts, CALL, RANKS_HOSTS, 1, 1, 1, 5, 50)
TORTURE(shrink_on_hosts, SHRINK, RANKS_HOSTS, 1, 1, 1, 10, 100)
TORTURE(destroy_on_hosts, DESTROY, RANKS_HOSTS, 1, 1, 1, 5, 20)
