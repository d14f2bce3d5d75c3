/* world.h - the simulated world: ranks that run in turn on one thread, their clock, and the seed
 * that decides every turn.
 *
 * Each rank has a stack of its own and runs until it yields. It yields wherever it waits, and
 * wherever it asks its transport for progress. Before each of its actions towards others it passes
 * a point (world_point), where it may die: it then never runs again. Time stands still while a
 * rank runs. It creeps from turn to turn, and jumps to the next event when no rank has anything to
 * do. So one seed is one history, however fast the machine is. */
#ifndef SIM_WORLD_H
#define SIM_WORLD_H

#include "dcomm/all.h"
#include "dcomm/impl/engine/types.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <ucontext.h>

enum { WORLD_MAX = 16, WORLD_STACK = 256 << 10, WORLD_TEXT = 1024 };

#define WORLD_TICK 2e-6 /* most seconds of one turn */
#define WORLD_JUMP                                                                 \
    0.05 /* most seconds that the clock jumps at a time: the engine looks so often \
          */
#define WORLD_NEVER 1e18

typedef enum world_state { WORLD_LIVES, WORLD_DEAD, WORLD_ENDED } world_state;

typedef struct world_rank {
    ucontext_t at;
    void *stack;
    world_state state;
    uint64_t points;                  /* actions so far */
    uint64_t dies_at;                 /* the point at which it dies; UINT64_MAX: none */
    double wakes;                     /* it gets no turn before */
    size_t held;                      /* bytes of the library's memory */
    char message[DCOMMI_MESSAGE_MAX]; /* its thread's last error, while others run */
} world_rank;

/* A block of the library's memory, in a list of the rank that asked for it. */
typedef struct world_block {
    struct world_block *next, **prev;
    size_t bytes;
    int rank;
} world_block;

static struct {
    int n, in; /* in: the rank that runs; -1: none */
    uint64_t random;
    double now;
    unsigned quiet; /* turns in a row in which nothing happened */
    uint64_t turns;
    double starve; /* chance that a rank gets no turn for long */
    world_rank rank[WORLD_MAX];
    ucontext_t scheduler;
    void (*main)(int rank);
    void (*died)(int rank);
    double (*next_event)(void);
    world_block *blocks;
    char trouble[WORLD_TEXT]; /* the first thing that went wrong; "": nothing */
    bool traced;
} world = {.in = -1};

/* ---- chance ---- */

static uint64_t world_random(void)
{
    uint64_t z = world.random += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

/* Return a number from 0 to n - 1. */
static int world_below(int n)
{
    return (int)(world_random() % (uint64_t)n);
}

/* Return a number from 0 to less than 1. */
static double world_unit(void)
{
    return (double)(world_random() >> 11) * 0x1p-53;
}

static bool world_chance(double p)
{
    return p > 0 && world_unit() < p;
}

/* ---- trouble and traces ---- */

/* Note what went wrong, unless something did before. The world ends with the present turn. */
static void DCOMMI_PRINTF(1, 2) world_trouble(const char *format, ...)
{
    if (world.trouble[0] == 0) {
        va_list args;
        va_start(args, format);
        vsnprintf(world.trouble, sizeof world.trouble, format, args);
        va_end(args);
    }
}

static void DCOMMI_PRINTF(1, 2) world_trace(const char *format, ...)
{
    if (world.traced) {
        va_list args;
        printf("%12.6f  rank %d  ", world.now, world.in);
        va_start(args, format);
        vprintf(format, args);
        va_end(args);
        printf("\n");
    }
}

/* ---- the library's memory ---- */

static void *world_alloc(size_t alignment, size_t bytes, void *user)
{
    enum { HEAD = 64 };
    (void)user;
    _Static_assert(sizeof(world_block) <= HEAD, "the head of a block");
    char *memory = alignment <= HEAD ? aligned_alloc(HEAD, HEAD + bytes) : NULL;
    if (memory == NULL) {
        return NULL;
    }
    world_block *block = (world_block *)memory;
    *block = (world_block){world.blocks, &world.blocks, bytes, world.in};
    if (block->next != NULL) {
        block->next->prev = &block->next;
    }
    world.blocks = block;
    if (world.in >= 0) {
        world.rank[world.in].held += bytes;
    }
    return memory + HEAD;
}

static void world_free(void *p, void *user)
{
    world_block *block = (world_block *)((char *)p - 64);
    (void)user;
    *block->prev = block->next;
    if (block->next != NULL) {
        block->next->prev = block->prev;
    }
    if (block->rank >= 0) {
        world.rank[block->rank].held -= block->bytes;
    }
    memset(p, 0xdd, block->bytes < 256 ? block->bytes : 256);
    free(block);
}

/* ---- turns ---- */

/* Note that something has happened, so that time does not jump. */
static void world_busy(void)
{
    world.quiet = 0;
}

/* Give up the turn. */
static void world_yield(void)
{
    world_rank *me = &world.rank[world.in];
    memcpy(me->message, dcommi_message, sizeof me->message);
    swapcontext(&me->at, &world.scheduler);
    memcpy(dcommi_message, me->message, sizeof me->message);
}

/* Give up the turn for some time. */
static void world_sleep(double seconds)
{
    world.rank[world.in].wakes = world.now + seconds;
    world_yield();
}

/* End the rank that runs. */
static void world_die(void)
{
    world_rank *me = &world.rank[world.in];
    world_trace("dies at point %" PRIu64, me->points);
    me->state = WORLD_DEAD;
    world_busy();
    world.died(world.in);
    world_yield();
    abort(); /* it gets no turn any more */
}

/* Pass a point between two actions. */
static void world_point(void)
{
    world_rank *me = &world.rank[world.in];
    if (++me->points == me->dies_at) {
        world_die();
    }
}

static void world_enter(void)
{
    int rank = world.in;
    world.main(rank);
    world.rank[rank].state = WORLD_ENDED;
    world_busy();
    world_yield();
}

/* Return the rank whose turn it is. *wakes: when the next one wakes, if none is awake (-1). */
static int world_choose(double *wakes)
{
    int awake[WORLD_MAX], n = 0;
    *wakes = WORLD_NEVER;
    for (int r = 0; r < world.n; r++) {
        const world_rank *rank = &world.rank[r];
        if (rank->state == WORLD_LIVES && rank->wakes <= world.now) {
            awake[n++] = r;
        } else if (rank->state == WORLD_LIVES && rank->wakes < *wakes) {
            *wakes = rank->wakes;
        }
    }
    return n > 0 ? awake[world_below(n)] : -1;
}

static int world_living(void)
{
    int n = 0;
    for (int r = 0; r < world.n; r++) {
        n += world.rank[r].state == WORLD_LIVES;
    }
    return n;
}

/* Let time jump to the next event, when all ranks have looked around and found nothing. */
static void world_jump(double wakes)
{
    double next = world.next_event();
    next = wakes < next ? wakes : next;
    double most = world.now + WORLD_JUMP * (0.2 + 0.8 * world_unit());
    world.now = next > most ? most : next > world.now ? next : world.now;
    world.quiet = 0;
}

static void world_begin(world_rank *rank)
{
    if (rank->stack == NULL) {
        rank->stack =
            mmap(NULL, WORLD_STACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    }
    rank->state = WORLD_LIVES;
    rank->points = 0;
    rank->wakes = 0;
    rank->held = 0;
    rank->message[0] = 0;
    getcontext(&rank->at);
    rank->at.uc_stack.ss_sp = rank->stack;
    rank->at.uc_stack.ss_size = WORLD_STACK;
    rank->at.uc_link = NULL;
    makecontext(&rank->at, world_enter, 0);
}

/* Run `n` ranks until all have ended or died, or something goes wrong. `limit`: seconds. */
static void world_run(int n, uint64_t seed, double limit)
{
    world.n = n;
    world.in = -1;
    world.random = seed;
    for (int r = 0; r < n; r++) {
        world_begin(&world.rank[r]);
    }
    while (world.trouble[0] == 0 && world_living() > 0) {
        double wakes;
        int next = world_choose(&wakes);
        if (next < 0 || ++world.quiet > 3u * (unsigned)world_living()) {
            world_jump(wakes);
            if (world.now > limit) {
                world_trouble("not over after %g s", limit);
            }
            continue;
        }
        world.now += WORLD_TICK * world_unit();
        world.turns++;
        world.in = next;
        if (world_chance(world.starve)) {
            double u = world_unit();
            world.rank[next].wakes = world.now + u * u * u;
        }
        swapcontext(&world.scheduler, &world.rank[next].at);
        world.in = -1;
    }
}

/* Free what the ranks have left. */
static void world_end(void)
{
    while (world.blocks != NULL) {
        world_free((char *)world.blocks + 64, NULL);
    }
}

#endif
