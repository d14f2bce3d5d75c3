/* full.h - tell the full run, which takes all cases, from the everyday run, which takes some of
 * each kind. */
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
