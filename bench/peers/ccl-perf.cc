/* ccl-perf.cc - oneCCL's collectives on a CPU host, timed by the rule of peer_perf.h. MPI starts
 * the ranks, as oneCCL's own examples have it, and serves the barrier. */
#include "peer_perf.h"

#include <exception>
#include <memory>
#include <mpi.h>
#include <oneapi/ccl.hpp>

static std::unique_ptr<ccl::communicator> peer_comm;

static void peer_library_name(char *name, size_t len)
{
    ccl::library_version version = ccl::get_library_version();
    snprintf(name, len, "oneccl-%u.%u.%u", version.major, version.minor, version.update);
}

static bool peer_can(peer_op op, bool in_place)
{
    (void)in_place;
    return op < PEER_OP_COUNT;
}

static void peer_barrier(void)
{
    MPI_Barrier(MPI_COMM_WORLD);
}

static void peer_call(const peer_case *c)
{
    float *send = c->in_place ? peer_send_at(c) : c->input;
    const auto type = ccl::datatype::float32;
    const auto sum = ccl::reduction::sum;
    switch (c->op) {
    case PEER_ALLREDUCE:
        ccl::allreduce(send, c->work, c->count, type, sum, *peer_comm).wait();
        break;
    case PEER_REDUCE_SCATTER:
        ccl::reduce_scatter(send, c->work, c->count, type, sum, *peer_comm).wait();
        break;
    case PEER_ALLGATHER: {
        ccl::vector_class<size_t> counts((size_t)c->nranks, c->count);
        ccl::allgatherv(send, c->count, c->work, counts, type, *peer_comm).wait();
        break;
    }
    case PEER_BROADCAST:
        ccl::broadcast(c->work, c->count, type, 0, *peer_comm).wait();
        break;
    default:
        ccl::alltoall(send, c->work, c->count, type, *peer_comm).wait();
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

static void peer_create(int rank, int nranks)
{
    ccl::shared_ptr_class<ccl::kvs> store;
    ccl::kvs::address_type address;
    if (rank == 0) {
        store = ccl::create_main_kvs();
        address = store->get_address();
    }
    MPI_Bcast(address.data(), (int)address.size(), MPI_BYTE, 0, MPI_COMM_WORLD);
    if (rank != 0) {
        store = ccl::create_kvs(address);
    }
    peer_comm.reset(new ccl::communicator(ccl::create_communicator(nranks, rank, store)));
}

int main(int argc, char **argv)
{
    int rank = 0, nranks = 1, provided = 0;
    int result = PEER_COMM;
    MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &provided);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &nranks);
    try {
        ccl::init();
        peer_create(rank, nranks);
        result = peer_main(argc, argv, rank, nranks);
        peer_comm.reset();
    } catch (const std::exception &error) {
        fprintf(stderr, "ccl-perf: rank %d: %s\n", rank, error.what());
        peer_abort(PEER_COMM);
    }
    MPI_Finalize();
    return result;
}
