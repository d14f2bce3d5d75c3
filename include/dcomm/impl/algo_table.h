/* algo_table.h - the table of all algorithms. */
#ifndef DCOMMI_ALGO_TABLE_H
#define DCOMMI_ALGO_TABLE_H

#include "algo_alltoall.h"
#include "algo_direct.h"
#include "algo_ring.h"
#include "algo_tree.h"

static const dcommi_algo dcommi_algo_table[] = {
    {"ring", DCOMM_COLL_ALLREDUCE, dcommi_ring_allreduce, false,
     "2(N-1) steps, 2(N-1)/N S per rank", "Patarasuk and Yuan 2009"},
    {"one_shot", DCOMM_COLL_ALLREDUCE, dcommi_direct_one_shot, true, "1 step, (N-1) S per rank",
     "direct exchange"},
    {"ring", DCOMM_COLL_REDUCE_SCATTER, dcommi_ring_reduce_scatter, false,
     "N-1 steps, (N-1) blocks per rank", "Patarasuk and Yuan 2009"},
    {"ring", DCOMM_COLL_REDUCE_SCATTERV, dcommi_ring_reduce_scatter, false,
     "N-1 steps, all blocks but one per rank", "Patarasuk and Yuan 2009"},
    {"ring", DCOMM_COLL_ALLGATHER, dcommi_ring_allgather, false, "N-1 steps, (N-1) blocks per rank",
     "Patarasuk and Yuan 2009"},
    {"ring", DCOMM_COLL_ALLGATHERV, dcommi_ring_allgather, false,
     "N-1 steps, all blocks but one per rank", "Patarasuk and Yuan 2009"},
    {"binomial", DCOMM_COLL_BROADCAST, dcommi_tree_broadcast_binomial, false,
     "ceil(log2 N) steps, up to ceil(log2 N) S per rank", "folklore; Thakur et al. 2005"},
    {"pairwise", DCOMM_COLL_ALLTOALL, dcommi_a2a_pairwise, false,
     "ceil((N-1)/2) rounds, (N-1) blocks per rank", "Thakur et al. 2005"},
    {"pairwise", DCOMM_COLL_ALLTOALLV, dcommi_a2a_pairwise, false,
     "ceil((N-1)/2) rounds, all blocks but the own per rank", "Thakur et al. 2005"},
};

enum { DCOMMI_ALGO_COUNT = sizeof dcommi_algo_table / sizeof dcommi_algo_table[0] };

/* The i-th algorithm of an operation, NULL past the last one. */
static inline const dcommi_algo *dcommi_algo_at(dcomm_coll coll, int i)
{
    for (size_t k = 0; k < DCOMMI_ALGO_COUNT; k++) {
        if (dcommi_algo_table[k].coll == coll && i-- == 0) {
            return &dcommi_algo_table[k];
        }
    }
    return NULL;
}

/* An algorithm by name, NULL when the operation has none such. */
static inline const dcommi_algo *dcommi_algo_find(dcomm_coll coll, const char *name)
{
    for (size_t k = 0; k < DCOMMI_ALGO_COUNT; k++) {
        if (dcommi_algo_table[k].coll == coll && strcmp(dcommi_algo_table[k].name, name) == 0) {
            return &dcommi_algo_table[k];
        }
    }
    return NULL;
}

#endif
