/* balance.h - a batch that is divided by the ranks' speeds (--balance). The sum over the batch is
 * the same however it is divided. */
#ifndef BALANCE_H
#define BALANCE_H

#include "dcomm.h"

typedef struct trainer trainer;

typedef struct balance {
    double seconds; /* that this rank has computed... */
    int samples;    /* ...so many samples, since the last division */
    int *cuts;      /* [nranks + 1] first samples of the ranks' parts; NULL: parts are equal */
} balance;

/* Return the first one of a rank's samples of a batch: its part is [balance_first(t, rank),
 * balance_first(t, rank + 1)). */
int balance_first(const trainer *t, int rank);
/* Note how long this rank has computed so many samples. */
void balance_note(trainer *t, int samples, double seconds);
/* Every few steps: exchange speeds, and divide batches by them from now on. */
dcomm_status balance_step(trainer *t);
/* Divide batches equally until speeds are known again: the ranks are others now. */
void balance_reset(trainer *t);
/* Print the parts. */
void balance_report(const trainer *t);
/* With --slow, on that rank: sleep so long that what took `seconds` takes as many times that. */
void balance_slow(const trainer *t, double seconds);

#endif
