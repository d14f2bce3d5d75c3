/* full.h - tell the full run, with all cases, from the everyday run, with some of each kind. */
#ifndef FULL_H
#define FULL_H

#include <stdbool.h>
#include <stdlib.h>

/* Return true in tools/test.sh --full. */
static inline bool test_full(void)
{
    return getenv("DCOMM_TEST_FULL") != NULL;
}

#endif
