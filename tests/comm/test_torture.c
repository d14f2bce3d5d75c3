/* test_torture.c - every system call of a communicator's creation, calls, agreement, shrink, growth
 * and destruction fails once, or is interrupted once, on one host and on two. So does every call of
 * UCX's between two hosts. And each result of a rendezvous is lost on one rank, when the others may
 * have gone on. */
#define _GNU_SOURCE
#pragma GCC diagnostic ignored "-Wunused-function"
#include "walk.h"

#include "faulty_system.h"
#include "faulty_ucx.h"

/* The everyday run fails one call in `step`, up to `most`, the full run each of the first `all`:
 * waiting makes calls without end. FAULTY_FROM, FAULTY_STEP and FAULTY_MOST choose other numbers,
 * FAULTY_ONLY=name one function. */
static void torture(enum part part, ranks_place place, int first, int last, long step, long most,
                    long all, enum faulty_kind kind)
{
    const bool full = test_full();
    const char *from = getenv("FAULTY_FROM"), *by = getenv("FAULTY_STEP");
    const char *to = getenv("FAULTY_MOST");
    faulty_kind = kind;
    faulty_only = getenv("FAULTY_ONLY");
    walk_all(&(walk){.part = part,
                     .place = place,
                     .first = first,
                     .last = last,
                     .from = from != NULL ? atol(from) : 1,
                     .step = by != NULL ? atol(by)
                             : full     ? 1
                                        : step,
                     .most = to != NULL ? atol(to)
                             : full     ? all
                                        : most,
                     .misses = 6, /* how many calls there are depends on the time they take */
                     .arm = faulty_arm,
                     .hit = faulty_was_hit});
}

#define TORTURE(name, part, place, first, last, step, most, all)                      \
    Test(torture, name, .timeout = 3600)                                              \
    {                                                                                 \
        torture(part, place, first, last, step, most, all, FAULTY_SYSTEM);            \
    }                                                                                 \
    Test(torture_interrupted, name, .timeout = 3600)                                  \
    {                                                                                 \
        torture(part, place, first, last, 3 * (step), most, all, FAULTY_INTERRUPTED); \
    }
TORTURE(create, CREATE, RANKS_LOCAL, 1, 1, 5, 100, 300)
TORTURE(create_where_the_rendezvous_is, CREATE, RANKS_LOCAL, 0, 0, 7, 120, 300)
TORTURE(create_tuned, TUNED, RANKS_LOCAL, 1, 1, 23, 100, 300)
TORTURE(call, CALL, RANKS_LOCAL, 1, 1, 1, 10, 50)
TORTURE(agree, AGREE, RANKS_LOCAL, 1, 1, 1, 10, 100)
TORTURE(shrink, SHRINK, RANKS_LOCAL, 1, 1, 1, 10, 100)
TORTURE(grow, GROW, RANKS_LOCAL, 1, 1, 29, 100, 200)
TORTURE(grow_where_the_lobby_is, GROW, RANKS_LOCAL, 0, 0, 29, 100, 200)
TORTURE(grow_newcomer, GROW, RANKS_LOCAL, 2, 2, 29, 100, 200)
TORTURE(destroy, DESTROY, RANKS_LOCAL, 1, 1, 1, 5, 20)
TORTURE(create_on_hosts, CREATE, RANKS_HOSTS, 1, 1, 17, 120, 300)
TORTURE(create_on_hosts_at_0, CREATE, RANKS_HOSTS, 0, 0, 17, 120, 300)
TORTURE(call_on_hosts, CALL, RANKS_HOSTS, 1, 1, 1, 5, 50)
TORTURE(shrink_on_hosts, SHRINK, RANKS_HOSTS, 1, 1, 1, 10, 100)
TORTURE(destroy_on_hosts, DESTROY, RANKS_HOSTS, 1, 1, 1, 5, 20)

/* A creation has four rounds: the ranks' cards, shared memory, peers, measuring. */
#define TORTURE_RESULT(name, part, rank)                                 \
    Test(torture_result, name, .timeout = 3600)                          \
    {                                                                    \
        torture(part, RANKS_LOCAL, rank, rank, 1, 4, 10, FAULTY_RESULT); \
    }
TORTURE_RESULT(create_tuned, TUNED, 1)
TORTURE_RESULT(create_tuned_where_the_rendezvous_is, TUNED, 0)
TORTURE_RESULT(grow, GROW, 1)
TORTURE_RESULT(grow_where_the_lobby_is, GROW, 0)
TORTURE_RESULT(grow_newcomer, GROW, 2)

#define TORTURE_UCX(name, part, first, last, step)                              \
    Test(torture_ucx, name, .timeout = 3600)                                    \
    {                                                                           \
        torture(part, RANKS_HOSTS, first, last, step, 100, 0, FAULTY_UCX);      \
    }                                                                           \
    Test(torture_ucx_busy, name, .timeout = 3600)                               \
    {                                                                           \
        torture(part, RANKS_HOSTS, first, last, step, 100, 0, FAULTY_UCX_BUSY); \
    }
TORTURE_UCX(create, CREATE, 1, 1, 3)
TORTURE_UCX(create_where_the_rendezvous_is, CREATE, 0, 0, 3)
TORTURE_UCX(create_tuned, TUNED, 1, 1, 29)
TORTURE_UCX(split, SPLIT, 1, 1, 3)
TORTURE_UCX(call, CALL, 1, 1, 3)
TORTURE_UCX(call_at_0, CALL, 0, 0, 3)
TORTURE_UCX(agree, AGREE, 1, 1, 3)
TORTURE_UCX(shrink, SHRINK, 1, 1, 3)
TORTURE_UCX(grow, GROW, 1, 1, 29)
TORTURE_UCX(grow_where_the_lobby_is, GROW, 0, 0, 29)
TORTURE_UCX(grow_newcomer, GROW, 2, 2, 29)
TORTURE_UCX(destroy, DESTROY, 1, 1, 3)
