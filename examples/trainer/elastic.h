/* elastic.h - go on when ranks die.
 *
 * Each piece of work that ranks do together goes through together(). If a rank dies, those that are
 * left agree that the work has failed, make a communicator without it, and do the work again. So
 * the work must not change what it starts from: gradients are computed and summed in it, but
 * weights are updated after it. Batches are divided by the new number of ranks, in the same order,
 * so no sample is lost.
 *
 * A rank that was started again joins between two steps, and gets the state from rank 0. */
#ifndef ELASTIC_H
#define ELASTIC_H

#include "trainer.h"

typedef dcomm_status (*elastic_work)(trainer *t);

/* Do a piece of work with all ranks. With options.elastic, until all ranks that are left have done
 * it. */
dcomm_status together(trainer *t, elastic_work work);

/* While ranks are missing, look every few steps for ranks that were started again, and let them
 * join. */
dcomm_status elastic_grow(trainer *t);
/* Return true on a rank that was started again. */
bool elastic_joins(void);
/* Give the state to the ranks that have joined. All ranks call it then. */
dcomm_status elastic_share(trainer *t);

#endif
