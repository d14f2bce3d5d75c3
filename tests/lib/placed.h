/* placed.h - puts the ranks of a test at a place: on one host, on several, by message alone. */
#ifndef PLACED_H
#define PLACED_H

#include "ranks.h"

#include <criterion/criterion.h>

static ranks_place place_now;

static inline void on(int n, ranks_place place, double timeout_s, procs_fn fn)
{
    int ended[PROCS_MAX];
    place_now = place;
    cr_assert_eq(procs_run(n, timeout_s, fn, NULL, ended), 0, "%d ranks, %s", n,
                 ranks_place_name(place));
}

static inline dcomm_comm *join(int rank, int n, procs_shared *s)
{
    ranks_settle(rank, n, place_now);
    return ranks_join(rank, n, s, NULL);
}

#endif
