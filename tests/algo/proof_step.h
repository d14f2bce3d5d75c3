/* proof_step.h - how far proofs go from one number of ranks to the next. */
#ifndef PROOF_STEP_H
#define PROOF_STEP_H

#include "full.h"

/* Above a dozen ranks a proof need not try each number: what it looks for does not depend on it.
 * From ten the everyday run comes to 64. The step is odd, because options alternate with the
 * number. */
static inline int proof_step(void)
{
    return (test_full() ? 1 : 27) * DCOMM_TEST_RANK_STEP;
}

#endif
