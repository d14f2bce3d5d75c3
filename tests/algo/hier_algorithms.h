/* hier_algorithms.h - the hierarchical algorithms, for tests of all of them. */
#ifndef HIER_ALGORITHMS_H
#define HIER_ALGORITHMS_H

static const struct {
    dcomm_coll coll;
    const char *name;
} algorithms[] = {
    {DCOMM_COLL_ALLREDUCE, "hier"},       {DCOMM_COLL_ALLREDUCE, "hier_leader"},
    {DCOMM_COLL_BROADCAST, "hier"},       {DCOMM_COLL_BROADCAST, "hier_leader"},
    {DCOMM_COLL_REDUCE_SCATTER, "hier"},  {DCOMM_COLL_REDUCE_SCATTER, "hier_leader"},
    {DCOMM_COLL_ALLGATHER, "hier"},       {DCOMM_COLL_ALLGATHER, "hier_leader"},
    {DCOMM_COLL_ALLTOALL, "hier"},        {DCOMM_COLL_ALLTOALL, "hier_leader"},
    {DCOMM_COLL_REDUCE_SCATTERV, "hier"}, {DCOMM_COLL_REDUCE_SCATTERV, "hier_leader"},
    {DCOMM_COLL_ALLGATHERV, "hier"},      {DCOMM_COLL_ALLGATHERV, "hier_leader"},
};
/* The first OF_BLOCKS algorithms take equal blocks. */
enum { ALGORITHMS = sizeof algorithms / sizeof algorithms[0], OF_BLOCKS = 10 };

/* Return true if `coll` takes the whole buffer from each rank, not a block. */
static bool whole(dcomm_coll coll)
{
    return coll == DCOMM_COLL_ALLREDUCE || coll == DCOMM_COLL_BROADCAST;
}

#endif
