// 04_from_cpp.cpp - use dcomm from C++17: a communicator that closes itself, and errors as
// exceptions. The implementation is C: compile dcomm.c as C and link it.
#include "dcomm.h"

#include <iostream>
#include <memory>
#include <numeric>
#include <stdexcept>
#include <vector>

namespace
{
struct Destroy {
    void operator()(dcomm_comm *comm) const
    {
        dcomm_comm_destroy(&comm);
    }
};
using Comm = std::unique_ptr<dcomm_comm, Destroy>;

void check(dcomm_status status)
{
    if (status < 0) {
        throw std::runtime_error(dcomm_last_error());
    }
}

Comm connect()
{
    dcomm_comm *comm = nullptr;
    check(dcomm_comm_create(nullptr, &comm));
    return Comm(comm);
}
} // namespace

int main()
{
    try {
        Comm comm = connect();
        int rank = dcomm_comm_rank(comm.get());
        auto size = static_cast<std::size_t>(dcomm_comm_size(comm.get()));

        std::vector<std::int32_t> mine(5), all(5 * size), expected(5 * size);
        std::iota(mine.begin(), mine.end(), 5 * rank);
        std::iota(expected.begin(), expected.end(), 0);
        check(
            dcomm_allgather(comm.get(), mine.data(), all.data(), mine.size(), DCOMM_I32, nullptr));

        bool right = all == expected;
        std::cout << "rank " << rank << ": " << all.size() << " elements gathered, "
                  << (right ? "all right\n" : "WRONG\n");
        return right ? 0 : 1;
    } catch (const std::exception &error) {
        std::cerr << error.what() << '\n';
        return 3;
    }
}
