/* limit-perf.c - what no library can beat, timed by the rule of peer_perf.h: each rank tells every
 * other by one cache line that it is there, waits for theirs, and copies its input to its result.
 * Nothing is sent, so nothing is right but the time: less than this no call can take whose result
 * depends on all ranks, and whose input is read and result written once. */
#include "meet.h"

static void peer_library_name(char *name, size_t len)
{
    snprintf(name, len, "limit");
}

static bool peer_can(peer_op op, bool in_place)
{
    (void)in_place;
    return op == PEER_ALLREDUCE || op == PEER_ALLTOALL;
}

static void peer_call(const peer_case *c)
{
    meet();
    if (!c->in_place) {
        memcpy(c->work, c->input, c->bytes);
    }
}

int main(int argc, char **argv)
{
    return meet_main("limit", 1, MEET_RANKS, 0, argc, argv);
}
