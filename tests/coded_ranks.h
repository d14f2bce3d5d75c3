/* coded_ranks.h - what tests of compressed collectives share. */
#ifndef CODED_RANKS_H
#define CODED_RANKS_H

#include "ranks.h"

#include <criterion/criterion.h>

/* Run fn as n ranks; all must end well. */
static inline void run(int n, procs_fn fn, void *arg)
{
    int ended[PROCS_MAX];
    cr_assert_eq(procs_run(n, 50, fn, arg, ended), 0);
}

static inline dcomm_codec *make_codec(const char *spec)
{
    dcomm_codec *codec = NULL;
    RANKS_OK(dcomm_codec_create(spec, &codec));
    return codec;
}

#endif
