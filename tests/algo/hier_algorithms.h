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
/* OF_BLOCKS: those of equal blocks, which come first. */
enum { ALGORITHMS = sizeof algorithms / sizeof algorithms[0], OF_BLOCKS = 10 };

/* Whether what an operation is given is the whole, not a rank's block. */
static bool whole(dcomm_coll coll)
{
    return coll == DCOMM_COLL_ALLREDUCE || coll == DCOMM_COLL_BROADCAST;
}

#endif
