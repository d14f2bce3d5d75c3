/* shared.h - the protocols of shared memory as they are in the library, on simulated memory. A seed
 * chooses the processor whose choices they use. Files are areas of the simulated memory, and
 * processes end when the world says so. */
#ifndef SIM_SHARED_H
#define SIM_SHARED_H

#include "accesses.h"

#include "dcomm/impl/base/huge.h"
#include "../../../kernels/cpu/isa.h"

#include <sched.h>
#include <sys/epoll.h>

enum {
    SHARED_FILE = 1000,  /* descriptor of the file of process 0 */
    SHARED_LIMIT = 10000 /* seconds: about 300000 turns in which nothing happens */
};

static struct {
    bool amd;    /* records fill wide units */
    size_t file; /* bytes of a process's file */
    int victim;  /* a process that dies; -1: none */
    uint64_t dies_at;
    uint64_t random; /* draws a case, before its world begins */
    void (*process)(int rank);
    int (*ended)(struct epoll_event *events, int max);
} shared_case;

static bool shared_is_amd(void)
{
    return shared_case.amd;
}

static bool shared_is_intel(void) /* whose copies are instructions of their own */
{
    return false;
}

static void *shared_map(void *at, size_t len, int protection, int flags, int file, off_t offset)
{
    (void)at, (void)len, (void)protection, (void)flags;
    return arena.base + (size_t)(file - SHARED_FILE) * shared_case.file + offset;
}

static int shared_unmap(void *at, size_t len)
{
    (void)at, (void)len;
    return 0;
}

/* Get the users of the processes whose end this process hears of. */
static int shared_epoll_wait(int epoll, struct epoll_event *events, int max, int timeout)
{
    (void)epoll, (void)timeout;
    return shared_case.ended != NULL ? shared_case.ended(events, max) : 0;
}

/* Give up the turn where the library yields its core. */
static int shared_yield(void)
{
    memory_yield();
    return 0;
}

#define dcommi_isa_is_amd shared_is_amd
#define dcommi_isa_is_intel shared_is_intel
#define mmap shared_map
#define munmap shared_unmap
#define epoll_wait shared_epoll_wait
#define sched_yield shared_yield

/* The library itself, so that the compiler's calls are in it. */
#define DCOMM_IMPLEMENTATION
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wshadow" /* the world */
#include "dcomm/all.h"
#pragma GCC diagnostic pop

/* ---- cases ---- */

/* Draw a number from 0 to n - 1. */
static int shared_draw(int n)
{
    shared_case.random = dcommi_mix(shared_case.random, 1);
    return (int)(shared_case.random % (uint64_t)n);
}

static bool shared_over(int rank)
{
    return world.rank[rank].state != WORLD_LIVES;
}

/* Return true if this process has heard that another has ended, as it does some time later. */
static bool shared_hears_end(int rank)
{
    const bool heard = shared_over(rank) && world_chance(0.3);
    if (heard) {
        memory_learn(rank);
    }
    return heard;
}

static double shared_no_event(void)
{
    return WORLD_NEVER;
}

/* Draw how stores and loads are delayed, and who dies. `points`: about how many accesses a process
 * makes. */
static void shared_prepare(uint64_t seed, int n, int points)
{
    static const double drains[] = {0.05, 0.15, 0.3, 0.6}, stale[] = {0, 0.2, 0.5, 0.8},
                        switches[] = {0.02, 0.1, 0.3, 0.6};
    shared_case.random = dcommi_mix(seed, 77);
    shared_case.amd = shared_draw(2) == 0;
    arena.drains = drains[shared_draw(4)];
    arena.stale = stale[shared_draw(4)];
    arena.switches = switches[shared_draw(4)];
    world.starve = shared_draw(3) == 0 ? 0.01 : 0;
    shared_case.victim = shared_draw(2) == 0 ? shared_draw(n) : -1;
    shared_case.dies_at = 1 + (uint64_t)shared_draw(points);
}

/* Run a process, which may die. */
static void shared_main(int rank)
{
    world.rank[rank].struck_at = rank == shared_case.victim ? shared_case.dies_at : UINT64_MAX;
    shared_case.process(rank);
}

static void shared_strike(int rank)
{
    (void)rank;
    world_die();
}

/* Run the processes of a case, whose memory has been prepared. Return true if nothing went wrong.
 */
static bool shared_run(uint64_t seed, int n, void (*process)(int rank))
{
    dcomm_set_allocator(world_alloc, world_free, NULL);
    shared_case.process = process;
    world.main = shared_main;
    world.strike = shared_strike;
    world.died = memory_died;
    world.next_event = shared_no_event;
    world.now = 0;
    world.quiet = 0;
    world.idle = 0;
    world.turns = 0;
    world.trouble[0] = 0;
    world_run(n, dcommi_mix(seed, 3), SHARED_LIMIT);
    arena.open.is = false;
    world_end();
    dcomm_set_allocator(NULL, NULL, NULL);
    return world.trouble[0] == 0;
}

#endif
