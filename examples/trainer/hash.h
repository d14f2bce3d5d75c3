/* hash.h - hashes of the weights now and then (--hash-every), to compare ranks and runs. */
#ifndef HASH_H
#define HASH_H

#include "dcomm.h"

typedef struct trainer trainer;

/* Every options.hash_every steps: compare the ranks' weights. If they are equal, rank 0 prints
 * their hash. Else set t->differ; rank 0 says which rank differs from most others, and in which
 * tensor first. */
dcomm_status hash_step(trainer *t);

#endif
