/* table.h - the table of all algorithms. The order within an operation is the tie-break of the
 * choice (comm/choose.h, docs/choice.md). */
#ifndef DCOMMI_ALGO_TABLE_H
#define DCOMMI_ALGO_TABLE_H

#include "alltoall.h"
#include "bruck_v.h"
#include "coded/halves.h"
#include "coded/hier.h"
#include "coded/linear.h"
#include "coded/sparse.h"
#include "direct.h"
#include "doubling.h"
#include "hier/hier.h"
#include "hier/note.h"
#include "hier/alltoall_v.h"
#include "misc.h"
#include "ring.h"
#include "staged.h"
#include "tree.h"

static const dcommi_algo dcommi_algo_table[] = {
    {"hier", DCOMM_COLL_ALLREDUCE, dcommi_hier_allreduce, false, dcommi_hier_note,
     "within hosts, across M of them, within; 2(M-1)/M S per host between hosts",
     "Jia et al. 2018; Cho et al. 2019"},
    {"one_shot", DCOMM_COLL_ALLREDUCE, dcommi_direct_one_shot, true, NULL,
     "1 step; (N-1) S per rank", "direct exchange"},
    {"recursive_doubling", DCOMM_COLL_ALLREDUCE, dcommi_doubling_allreduce, false, NULL,
     "log2 N steps and times S (other N: floor(log2 N) + 2 steps, + 1 times S)",
     "Thakur, Rabenseifner and Gropp 2005"},
    {"staged", DCOMM_COLL_ALLREDUCE, dcommi_staged_allreduce, true, NULL,
     "pipelined by chunk; 2(N-1)/N S written once by each rank, for all",
     "Graham and Shipman 2008"},
    {"halving_doubling", DCOMM_COLL_ALLREDUCE, dcommi_halving_doubling, false, NULL,
     "2 ceil(log2 N) steps; 2(N-1)/N S per rank", "Rabenseifner 2004; Traeff 2024"},
    {"ring", DCOMM_COLL_ALLREDUCE, dcommi_ring_allreduce, false, NULL,
     "2(N-1) steps; 2(N-1)/N S per rank", "Patarasuk and Yuan 2009"},
    {"two_shot", DCOMM_COLL_ALLREDUCE, dcommi_direct_two_shot, true, NULL,
     "2 steps; 2(N-1)/N S per rank", "Thakur, Rabenseifner and Gropp 2005"},
    {"hier_leader", DCOMM_COLL_ALLREDUCE, dcommi_hier_allreduce_leader, false,
     dcommi_hier_note_flat, "as hier, by one rank of each host; 2(M-1)/M S per host between hosts",
     "Karonis et al. 2000"},
    {"star", DCOMM_COLL_ALLREDUCE, dcommi_star_allreduce, true, NULL,
     "2 steps; (N-1) S in and out of rank 0, S of the others", "Li et al. 2014 (parameter server)"},
    {"binomial", DCOMM_COLL_ALLREDUCE, dcommi_tree_allreduce_binomial, false, NULL,
     "2 ceil(log2 N) steps; at most ceil(log2 N) S per rank",
     "Thakur, Rabenseifner and Gropp 2005"},
    {"tree", DCOMM_COLL_ALLREDUCE, dcommi_tree_allreduce, false, NULL,
     "about 4 log2 N steps, pipelined; at most 2 S per rank", "Sanders, Speck and Traeff 2009"},
    {"direct", DCOMM_COLL_REDUCE_SCATTER, dcommi_direct_reduce_scatter, true, NULL,
     "1 step; N-1 blocks per rank", "direct exchange"},
    {"hier", DCOMM_COLL_REDUCE_SCATTER, dcommi_hier_reduce_scatter, false, dcommi_hier_note,
     "within hosts, M-1 rounds across; each block once from each host", "Traeff and Hunold 2020"},
    {"staged", DCOMM_COLL_REDUCE_SCATTER, dcommi_staged_reduce_scatter, true, NULL,
     "pipelined by chunk; N-1 blocks written by each rank", "Graham and Shipman 2008"},
    {"ring", DCOMM_COLL_REDUCE_SCATTER, dcommi_ring_reduce_scatter, false, NULL,
     "N-1 steps; N-1 blocks per rank", "Patarasuk and Yuan 2009"},
    {"recursive_halving", DCOMM_COLL_REDUCE_SCATTER, dcommi_halving_reduce_scatter, false, NULL,
     "ceil(log2 N) steps; N-1 blocks per rank", "Rabenseifner 2004; Traeff 2024"},
    {"hier_leader", DCOMM_COLL_REDUCE_SCATTER, dcommi_hier_reduce_scatter_leader, false,
     dcommi_hier_note_flat,
     "within hosts to one rank of each, across, within; each block once from each host",
     "Karonis et al. 2000"},
    {"direct", DCOMM_COLL_ALLGATHER, dcommi_direct_allgather, false, NULL,
     "1 step; N-1 blocks per rank", "direct exchange"},
    {"hier", DCOMM_COLL_ALLGATHER, dcommi_hier_allgather, false, dcommi_hier_note,
     "M-1 rounds across hosts, within; each block once to each host", "Traeff and Hunold 2020"},
    {"staged", DCOMM_COLL_ALLGATHER, dcommi_staged_allgather, false, NULL,
     "pipelined by chunk; its block written once by each rank, for all", "Graham and Shipman 2008"},
    {"recursive_doubling", DCOMM_COLL_ALLGATHER, dcommi_doubling_allgather, false, NULL,
     "ceil(log2 N) steps; N-1 blocks per rank", "Thakur et al. 2005; Bruck et al. 1997"},
    {"ring", DCOMM_COLL_ALLGATHER, dcommi_ring_allgather, false, NULL,
     "N-1 steps; N-1 blocks per rank", "Patarasuk and Yuan 2009"},
    {"hier_leader", DCOMM_COLL_ALLGATHER, dcommi_hier_allgather_leader, false,
     dcommi_hier_note_flat,
     "within hosts to one rank of each, across, within; each block once to each host",
     "Karonis et al. 2000"},
    {"direct", DCOMM_COLL_REDUCE_SCATTERV, dcommi_direct_reduce_scatter, true, NULL,
     "1 step; all blocks but one per rank", "direct exchange"},
    {"hier", DCOMM_COLL_REDUCE_SCATTERV, dcommi_hier_reduce_scatter, false, dcommi_hier_note,
     "within hosts, M-1 rounds across; each block once from each host", "Traeff and Hunold 2020"},
    {"staged", DCOMM_COLL_REDUCE_SCATTERV, dcommi_staged_reduce_scatter, true, NULL,
     "pipelined by chunk; N-1 blocks written by each rank", "Graham and Shipman 2008"},
    {"ring", DCOMM_COLL_REDUCE_SCATTERV, dcommi_ring_reduce_scatter, false, NULL,
     "N-1 steps; all blocks but one per rank", "Patarasuk and Yuan 2009"},
    {"recursive_halving", DCOMM_COLL_REDUCE_SCATTERV, dcommi_halving_reduce_scatter, false, NULL,
     "ceil(log2 N) steps; all blocks but one per rank", "Rabenseifner 2004; Traeff 2024"},
    {"hier_leader", DCOMM_COLL_REDUCE_SCATTERV, dcommi_hier_reduce_scatter_leader, false,
     dcommi_hier_note_flat,
     "within hosts to one rank of each, across, within; each block once from each host",
     "Karonis et al. 2000"},
    {"direct", DCOMM_COLL_ALLGATHERV, dcommi_direct_allgather, false, NULL,
     "1 step; N-1 times the own block per rank", "direct exchange"},
    {"hier", DCOMM_COLL_ALLGATHERV, dcommi_hier_allgather, false, dcommi_hier_note,
     "M-1 rounds across hosts, within; each block once to each host", "Traeff and Hunold 2020"},
    {"staged", DCOMM_COLL_ALLGATHERV, dcommi_staged_allgather, false, NULL,
     "pipelined by chunk; its block written once by each rank, for all", "Graham and Shipman 2008"},
    {"recursive_doubling", DCOMM_COLL_ALLGATHERV, dcommi_doubling_allgather, false, NULL,
     "ceil(log2 N) steps; all blocks but one per rank", "Thakur et al. 2005; Bruck et al. 1997"},
    {"ring", DCOMM_COLL_ALLGATHERV, dcommi_ring_allgather, false, NULL,
     "N-1 steps; all blocks but one per rank", "Patarasuk and Yuan 2009"},
    {"hier_leader", DCOMM_COLL_ALLGATHERV, dcommi_hier_allgather_leader, false,
     dcommi_hier_note_flat,
     "within hosts to one rank of each, across, within; each block once to each host",
     "Karonis et al. 2000"},
    {"hier", DCOMM_COLL_BROADCAST, dcommi_hier_broadcast, false, dcommi_hier_note,
     "across hosts by shards, within; about S per host between hosts", "Traeff and Hunold 2020"},
    {"linear", DCOMM_COLL_BROADCAST, dcommi_linear_broadcast, false, NULL,
     "1 step; (N-1) S at the root, S where long buffers are read", "direct exchange"},
    {"staged", DCOMM_COLL_BROADCAST, dcommi_staged_broadcast, false, NULL,
     "pipelined by chunk; S written once by the root, for all", "Graham and Shipman 2008"},
    {"hier_leader", DCOMM_COLL_BROADCAST, dcommi_hier_broadcast_leader, false,
     dcommi_hier_note_flat,
     "across hosts by one rank of each, within; about S per host between hosts",
     "Karonis et al. 2000"},
    {"binomial", DCOMM_COLL_BROADCAST, dcommi_tree_broadcast_binomial, false, NULL,
     "ceil(log2 N) steps; at most ceil(log2 N) S per rank", "Thakur, Rabenseifner and Gropp 2005"},
    {"tree", DCOMM_COLL_BROADCAST, dcommi_tree_broadcast, false, NULL,
     "about 2 log2 N steps, pipelined; about S per rank", "Sanders, Speck and Traeff 2009"},
    {"linear", DCOMM_COLL_REDUCE, dcommi_linear_reduce, true, NULL, "1 step; (N-1) S into the root",
     "direct exchange"},
    {"binomial", DCOMM_COLL_REDUCE, dcommi_tree_reduce_binomial, false, NULL,
     "ceil(log2 N) steps; S per rank", "Thakur, Rabenseifner and Gropp 2005"},
    {"tree", DCOMM_COLL_REDUCE, dcommi_tree_reduce, false, NULL,
     "about 2 log2 N steps, pipelined; S per rank", "Sanders, Speck and Traeff 2009"},
    {"linear", DCOMM_COLL_GATHER, dcommi_gather_linear, false, NULL,
     "1 step; the own block per rank", "direct exchange"},
    {"binomial", DCOMM_COLL_GATHER, dcommi_gather_binomial, false, NULL,
     "ceil(log2 N) steps; at most N/2 blocks per rank", "Thakur, Rabenseifner and Gropp 2005"},
    {"linear", DCOMM_COLL_SCATTER, dcommi_scatter_linear, false, NULL,
     "1 step; all blocks but one at the root", "direct exchange"},
    {"binomial", DCOMM_COLL_SCATTER, dcommi_scatter_binomial, false, NULL,
     "ceil(log2 N) steps; N-1 blocks at the root", "Thakur, Rabenseifner and Gropp 2005"},
    {"linear", DCOMM_COLL_GATHERV, dcommi_gather_linear, false, NULL,
     "1 step; the own block per rank", "direct exchange"},
    {"linear", DCOMM_COLL_SCATTERV, dcommi_scatter_linear, false, NULL,
     "1 step; all blocks but one at the root", "direct exchange"},
    {"hier", DCOMM_COLL_ALLTOALL, dcommi_hier_alltoall, false, dcommi_hier_note,
     "within hosts, M-1 rounds across; one message per rank of the other hosts, N-G blocks",
     "Traeff and Hunold 2020"},
    {"staged", DCOMM_COLL_ALLTOALL, dcommi_staged_alltoall, false, NULL,
     "pipelined by chunk; N-1 blocks written by each rank", "Graham and Shipman 2008"},
    {"linear", DCOMM_COLL_ALLTOALL, dcommi_a2a_linear, false, NULL, "1 step; N-1 blocks per rank",
     "direct exchange"},
    {"pairwise", DCOMM_COLL_ALLTOALL, dcommi_a2a_pairwise, false, NULL,
     "ceil((N-1)/2) rounds of two exchanges; N-1 blocks per rank",
     "Thakur, Rabenseifner and Gropp 2005"},
    {"bruck", DCOMM_COLL_ALLTOALL, dcommi_a2a_bruck, false, NULL,
     "ceil(log2 N) steps; about N/2 log2 N blocks per rank", "Bruck et al. 1997"},
    {"hier_leader", DCOMM_COLL_ALLTOALL, dcommi_hier_alltoall_leader, false, dcommi_hier_note_flat,
     "within hosts to one rank of each, one message to each other host, within",
     "Karonis et al. 2000"},
    {"hier", DCOMM_COLL_ALLTOALLV, dcommi_hier_alltoallv, false, dcommi_hier_note_flat,
     "counts to all; within hosts, M-1 rounds across; one message per rank of the other hosts",
     "Traeff and Hunold 2020"},
    {"linear", DCOMM_COLL_ALLTOALLV, dcommi_a2a_linear, false, NULL,
     "1 step; all blocks but the own per rank", "direct exchange"},
    {"pairwise", DCOMM_COLL_ALLTOALLV, dcommi_a2a_pairwise, false, NULL,
     "ceil((N-1)/2) rounds of two exchanges; all blocks but the own per rank",
     "Thakur, Rabenseifner and Gropp 2005"},
    {"bruck", DCOMM_COLL_ALLTOALLV, dcommi_bruck_v, false, NULL,
     "counts to all; ceil(log2 N) steps; about half of all blocks in each", "Bruck et al. 1997"},
    {"direct", DCOMM_COLL_BARRIER, dcommi_barrier_direct, false, NULL,
     "1 step; N-1 signals per rank", "direct exchange"},
    {"dissemination", DCOMM_COLL_BARRIER, dcommi_barrier_dissemination, false, NULL,
     "ceil(log2 N) steps; one signal each", "Hensgen, Finkel and Manber 1988"},
    {"direct", DCOMM_COLL_SEND, dcommi_p2p_direct, false, NULL, "1 step; the message",
     "point to point"},
    {"direct", DCOMM_COLL_RECV, dcommi_p2p_direct, false, NULL, "1 step; nothing",
     "point to point"},
};

enum { DCOMMI_ALGO_COUNT = sizeof dcommi_algo_table / sizeof dcommi_algo_table[0] };

/* The algorithms of compressed calls; the order is the tie-break here too. */
static const dcommi_algo dcommi_coded_table[] = {
    {"coded_allgather", DCOMM_COLL_ALLREDUCE, dcommi_coded_allgather, true, NULL,
     "1 step; N-1 encodings of S per rank, one rounding", "direct exchange"},
    {"coded_two_shot", DCOMM_COLL_ALLREDUCE, dcommi_coded_two_shot, true, NULL,
     "2 steps; 2(N-1)/N encodings of S per rank, two roundings",
     "Tang et al. 2019 (DoubleSqueeze)"},
    {"coded_hier", DCOMM_COLL_ALLREDUCE, dcommi_coded_hier, false, dcommi_hier_note,
     "exact within hosts, coded_two_shot or coded_allgather across M of them",
     "Jia et al. 2018; Tang et al. 2021 (1-bit Adam)"},
    {"coded_sparse", DCOMM_COLL_ALLREDUCE, dcommi_coded_sparse, true, NULL,
     "3 steps; about 2(N-1)/N encodings of S per rank, selected twice",
     "Li and Hoefler 2022 (Ok-Topk)"},
    {"coded_linear", DCOMM_COLL_ALLREDUCE, dcommi_coded_linear, false, NULL,
     "one or two exact all-reduces of an encoding, for randk and powersgd",
     "Vogels, Karimireddy and Jaggi 2019 (PowerSGD)"},
    {"coded_direct", DCOMM_COLL_REDUCE_SCATTER, dcommi_coded_reduce_scatter, true, NULL,
     "1 step; N-1 encodings of a block per rank, one rounding",
     "Wang et al. 2023 (ZeRO++)"},
    {"coded_direct", DCOMM_COLL_REDUCE_SCATTERV, dcommi_coded_reduce_scatter, true, NULL,
     "1 step; encodings of all blocks but one per rank, one rounding",
     "Wang et al. 2023 (ZeRO++)"},
    {"coded_direct", DCOMM_COLL_ALLGATHER, dcommi_coded_gather, true, NULL,
     "1 step; N-1 times the encoding of a block per rank, one rounding",
     "Wang et al. 2023 (ZeRO++)"},
    {"coded_direct", DCOMM_COLL_ALLGATHERV, dcommi_coded_gather, true, NULL,
     "1 step; N-1 times the encoding of the own block per rank, one rounding",
     "Wang et al. 2023 (ZeRO++)"},
};

enum { DCOMMI_CODED_COUNT = sizeof dcommi_coded_table / sizeof dcommi_coded_table[0] };

/* Return the table for compressed (`coded`) or exact calls, and its length in *n. */
static inline const dcommi_algo *dcommi_algos(bool coded, int *n)
{
    *n = coded ? (int)DCOMMI_CODED_COUNT : (int)DCOMMI_ALGO_COUNT;
    return coded ? dcommi_coded_table : dcommi_algo_table;
}

/* Return algorithm i of an operation, or of its compressed form; NULL after the last one. */
static inline const dcommi_algo *dcommi_algo_number(bool coded, dcomm_coll coll, int i)
{
    int n;
    const dcommi_algo *table = dcommi_algos(coded, &n);
    for (int k = 0; k < n; k++) {
        if (table[k].coll == coll && i-- == 0) {
            return &table[k];
        }
    }
    return NULL;
}

static inline const dcommi_algo *dcommi_algo_at(dcomm_coll coll, int i)
{
    return dcommi_algo_number(false, coll, i);
}

/* Find the algorithm of a compressed operation by its name, with or without "coded_"; NULL: none.
 */
static inline const dcommi_algo *dcommi_coded_find(dcomm_coll coll, const char *name)
{
    const dcommi_algo *algo;
    for (int i = 0; (algo = dcommi_algo_number(true, coll, i)) != NULL; i++) {
        if (strcmp(algo->name, name) == 0 || strcmp(algo->name + strlen("coded_"), name) == 0) {
            return algo;
        }
    }
    return NULL;
}

/* Find an algorithm of an operation by its name; NULL: none. */
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
