/* 05_mpi_bootstrap.c - use dcomm inside an MPI program. MPI broadcasts the id, and dcomm does the
 * rest. It needs no support from the launcher, so it works with any MPI:
 *
 *   mpirun -n 4 ./05_mpi_bootstrap
 */
#include "dcomm.h"

#include <mpi.h>
#include <stdio.h>

/* Return the exit status: 0 good, 1 wrong result, 3 communication error. */
static int run(int rank, int size)
{
    dcomm_comm_opts opts = {.boot = DCOMM_BOOT_ID, .rank = rank, .size = size};
    int made = rank != 0 || dcomm_id_create(&opts.id) >= 0;
    MPI_Bcast(&made, 1, MPI_INT, 0, MPI_COMM_WORLD);
    MPI_Bcast(&opts.id, sizeof opts.id, MPI_BYTE, 0, MPI_COMM_WORLD);

    dcomm_comm *comm = NULL;
    int64_t sum = rank;
    if (!made || dcomm_comm_create(&opts, &comm) < 0 ||
        dcomm_allreduce(comm, DCOMM_IN_PLACE, &sum, 1, DCOMM_I64, DCOMM_SUM, NULL) < 0) {
        fprintf(stderr, "rank %d: %s\n", rank, dcomm_last_error());
        dcomm_comm_destroy(&comm);
        return 3;
    }
    long long by_mpi = 0, mine = rank;
    MPI_Allreduce(&mine, &by_mpi, 1, MPI_LONG_LONG, MPI_SUM, MPI_COMM_WORLD);
    printf("rank %d of %d: %lld by dcomm, %lld by MPI\n", rank, size, (long long)sum, by_mpi);
    dcomm_comm_destroy(&comm);
    return sum == by_mpi ? 0 : 1;
}

int main(int argc, char **argv)
{
    int rank = 0, size = 1;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    int result = run(rank, size);
    MPI_Finalize();
    return result;
}
