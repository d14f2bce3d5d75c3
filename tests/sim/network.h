/* network.h - which simulated ranks reach each other: a cut between two halves of the hosts, for
 * some time or for good. What was sent into a cut arrives after its end, by retransmissions whose
 * intervals grow. Who has heard nothing for too long gives the connection up (sockets.h). */
#ifndef SIM_NETWORK_H
#define SIM_NETWORK_H

#include "world.h"

#define NETWORK_PROBE 1.0 /* seconds between two signs of life of an idle connection */

/* Set by the case that runs. */
static struct {
    unsigned side;        /* the ranks of one half, a bit each */
    double begins, heals; /* when; WORLD_NEVER: it does not */
    double again;         /* most seconds until what got lost is sent again */
    void (*on_cut)(void); /* when it begins */
} network = {.begins = WORLD_NEVER, .heals = WORLD_NEVER};

/* Return true if a cut that has begun lies between two ranks. */
static bool network_between(int a, int b)
{
    return network.begins <= world.now && ((network.side >> a ^ network.side >> b) & 1) != 0;
}

/* Return true if nothing gets from one rank to another now. */
static bool network_cut(int a, int b)
{
    return network_between(a, b) && world.now < network.heals;
}

/* Return when something arrives that would arrive at `when`. `share`: from 0 to 1, of the time
 * until it is sent again. */
static double network_arrives(int from, int to, double when, double share)
{
    if (!network_cut(from, to)) {
        return when;
    }
    return network.heals >= WORLD_NEVER ? WORLD_NEVER
           : when > network.heals       ? when
                                        : network.heals + network.again * share;
}

/* Cut the network for some seconds. */
static void network_begin(double seconds)
{
    network.begins = world.now;
    network.heals = seconds < WORLD_NEVER ? world.now + seconds : WORLD_NEVER;
    world_trace("the network is cut for %g s", seconds);
    world_busy();
    network.on_cut();
}

static void network_end(void)
{
    network.begins = network.heals = WORLD_NEVER;
}

#endif
