/* mpi-perf.c - an MPI library's collectives, timed by the rule of peer_perf.h. */
#define _GNU_SOURCE
#include "peer_perf.h"

#include <mpi.h>

/* "openmpi-4.1.4" of "Open MPI v4.1.4, package: ...", "mpich-4.0.2" of "MPICH Version: 4.0.2". */
static void peer_library_name(char *name, size_t len)
{
    char text[MPI_MAX_LIBRARY_VERSION_STRING];
    int unused = 0;
    char version[32] = "unknown";
    MPI_Get_library_version(text, &unused);
    const char *family = "mpi";
    if (sscanf(text, "Open MPI v%31[0-9.]", version) == 1) {
        family = "openmpi";
    } else if (sscanf(text, "MPICH Version: %31[0-9.]", version) == 1) {
        family = "mpich";
    } else if (sscanf(text, "Intel(R) MPI Library %31[0-9.]", version) == 1) {
        family = "intelmpi";
    }
    snprintf(name, len, "%s-%s", family, version);
}

static bool peer_can(peer_op op, bool in_place)
{
    (void)in_place;
    return op < PEER_OP_COUNT;
}

/* MPI's default error handler ends the program with a message, so results need no look. */
static void peer_barrier(void)
{
    MPI_Barrier(MPI_COMM_WORLD);
}

static void peer_call(const peer_case *c)
{
    const void *send = c->in_place ? MPI_IN_PLACE : c->input;
    int count = (int)c->count;
    MPI_Comm world = MPI_COMM_WORLD;
    switch (c->op) {
    case PEER_ALLREDUCE:
        MPI_Allreduce(send, c->work, count, MPI_FLOAT, MPI_SUM, world);
        break;
    case PEER_REDUCE_SCATTER:
        MPI_Reduce_scatter_block(send, c->work, count, MPI_FLOAT, MPI_SUM, world);
        break;
    case PEER_ALLGATHER:
        MPI_Allgather(send, count, MPI_FLOAT, c->work, count, MPI_FLOAT, world);
        break;
    case PEER_BROADCAST:
        MPI_Bcast(c->work, count, MPI_FLOAT, 0, world);
        break;
    default:
        MPI_Alltoall(send, count, MPI_FLOAT, c->work, count, MPI_FLOAT, world);
        break;
    }
}

static void peer_max(double *values, int n)
{
    MPI_Allreduce(MPI_IN_PLACE, values, n, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
}

static void peer_abort(int status)
{
    MPI_Abort(MPI_COMM_WORLD, status);
}

int main(int argc, char **argv)
{
    int rank = 0, nranks = 1;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &nranks);
    int result = peer_main(argc, argv, rank, nranks);
    MPI_Finalize();
    return result;
}
