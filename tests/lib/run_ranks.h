/* run_ranks.h - processes that are ranks, all of which must end well. */
#ifndef RUN_RANKS_H
#define RUN_RANKS_H

#include "ranks.h"

#include <criterion/criterion.h>

static inline void run(int n, procs_fn fn, void *arg)
{
    int ended[PROCS_MAX];
    procs_run(n, 50, fn, arg, ended);
    for (int r = 0; r < n; r++) {
        cr_expect(ended[r] == 0, "rank %d ended with %d", r, ended[r]);
    }
}

#endif
