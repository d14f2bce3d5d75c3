/* proof_step.h - the step between the rank counts that proofs try. */
#ifndef PROOF_STEP_H
#define PROOF_STEP_H

#include "full.h"

/* Return the step between rank counts above ten. Larger counts need not all be tried, because no
 * error depends on one count alone. The everyday run, from ten on, ends at 64. The step is odd,
 * because options alternate with the count. */
static inline int proof_step(void)
{
    return (test_full() ? 1 : 27) * DCOMM_TEST_RANK_STEP;
}

#endif
