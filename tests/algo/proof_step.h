/* proof_step.h - how far proofs go from one number of ranks to the next. */
#ifndef PROOF_STEP_H
#define PROOF_STEP_H

#include <stdlib.h>

/* Above a dozen ranks a proof need not try each number: what it looks for does not depend on it. */
static inline int proof_step(void)
{
    return (getenv("DCOMM_TEST_FULL") != NULL ? 1 : 7) * DCOMM_TEST_RANK_STEP;
}

#endif
