/* world.h - the simulated world: ranks that run in turn on one thread, their clock, and the seed
 * that decides every turn.
 *
 * A rank has one strand or more: its program, the thread that beats for it, and one that makes
 * progress (threads.h). Each strand has a stack of its own and runs until it yields. It yields
 * wherever it waits, and wherever it asks its transport for progress. Before each of its actions
 * towards others it passes a point (world_point), where it may be struck: a rank that dies never
 * runs again, one that is stopped does not run for some time. Time stands still while a strand
 * runs. It creeps from turn to turn, and jumps to the next event when no strand has anything to do.
 * So one seed is one history, however fast the machine is. */
#ifndef SIM_WORLD_H
#define SIM_WORLD_H

#include "dcomm/all.h"
#include "dcomm/impl/engine/types.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <ucontext.h>

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

enum {
    WORLD_MAX = 16,
    WORLD_STRANDS = 3 * WORLD_MAX, /* those of rank r: r, WORLD_MAX + r, 2 * WORLD_MAX + r */
    WORLD_STACK = 256 << 10,
    WORLD_TEXT = 1024
};

#define WORLD_TICK 2e-6 /* most seconds of one turn */
/* Most seconds that the clock jumps at first: the engine looks so often. Most times that it jumps
 * further when nothing happens for long. */
#define WORLD_JUMP 0.05
#define WORLD_IDLE 10
#define WORLD_NEVER 1e18

/* Begin a function that the linker binds the library's calls of `name` to (--wrap). */
#define WORLD_WRAP(type, name, ...)  \
    type __real_##name(__VA_ARGS__); \
    type __wrap_##name(__VA_ARGS__); \
    type __wrap_##name(__VA_ARGS__)

typedef enum world_state { WORLD_LIVES, WORLD_DEAD, WORLD_ENDED } world_state;

typedef struct world_strand {
    ucontext_t begins;
    jmp_buf at; /* where it yielded: a jump makes no system call, as a change of contexts does */
    void *stack;
    bool there, begun;         /* it has not ended; it has had a turn */
    double wakes;              /* it gets no turn before */
    void *(*main)(void *user); /* NULL: the rank's program */
    void *user;
    void *fake_stack;                 /* of AddressSanitizer's, while others run */
    char message[DCOMMI_MESSAGE_MAX]; /* its last error, while others run */
} world_strand;

typedef struct world_rank {
    world_state state;
    uint64_t points;    /* actions so far */
    uint64_t struck_at; /* the point at which it is struck; UINT64_MAX: none */
    double resumes;     /* it is stopped until then */
    bool traced;        /* by a debugger, which has stopped it */
    uint64_t turns;
    size_t held; /* bytes of the library's memory */
} world_rank;

/* A block of the library's memory, in a list of the rank that asked for it. */
typedef struct world_block {
    struct world_block *next, **prev;
    size_t bytes;
    int rank;
} world_block;

static struct {
    int n, in, on; /* in: the rank that runs, -1: none; on: its strand */
    uint64_t random;
    double now;
    unsigned quiet; /* turns in a row in which nothing happened */
    int idle;       /* jumps in a row in which no program did anything */
    uint64_t turns;
    double starve; /* chance that a strand gets no turn for long */
    double
        preempts; /* chance that a rank's strands change where one locks or makes a system call */
    world_rank rank[WORLD_MAX];
    world_strand strand[WORLD_STRANDS];
    jmp_buf scheduler;
    const void *scheduler_stack; /* for AddressSanitizer */
    size_t scheduler_bytes;
    bool ends; /* the strands that are left are to leave their stacks */
    void (*main)(int rank);
    void (*died)(int rank);
    void (*strike)(int rank); /* what happens to a rank at its point */
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

/* ---- stacks ---- */

/* Tell AddressSanitizer that another stack is next, and then that we are on it. `fake_stack`: where
 * it keeps what belongs to the one that we leave; NULL: nothing, we do not come back to it. */
static void world_leaving(void **fake_stack, const void *stack, size_t bytes)
{
#ifdef __SANITIZE_ADDRESS__
    __sanitizer_start_switch_fiber(fake_stack, stack, bytes);
#else
    (void)fake_stack, (void)stack, (void)bytes;
#endif
}

static void world_arrived(void *fake_stack, const void **from, size_t *bytes)
{
#ifdef __SANITIZE_ADDRESS__
    __sanitizer_finish_switch_fiber(fake_stack, from, bytes);
#else
    (void)fake_stack, (void)from, (void)bytes;
#endif
}

/* Forget the marks of frames that were never left. */
static void world_clean(void *stack)
{
#ifdef __SANITIZE_ADDRESS__
    __asan_unpoison_memory_region(stack, WORLD_STACK);
#else
    (void)stack;
#endif
}

/* Go to the scheduler. `for_good`: this strand does not run any more. */
static void world_to_scheduler(world_strand *me, bool for_good)
{
    world_leaving(for_good ? NULL : &me->fake_stack, world.scheduler_stack, world.scheduler_bytes);
    if (_setjmp(me->at) == 0) {
        _longjmp(world.scheduler, 1);
    }
    world_arrived(me->fake_stack, NULL, NULL);
}

/* Let a strand run until it yields. */
static void world_to_strand(world_strand *strand)
{
    void *fake_stack = NULL;
    world_leaving(&fake_stack, strand->stack, WORLD_STACK);
    if (_setjmp(world.scheduler) == 0) {
        if (strand->begun) {
            _longjmp(strand->at, 1);
        }
        strand->begun = true;
        setcontext(&strand->begins);
    }
    world_arrived(fake_stack, NULL, NULL);
}

/* ---- turns ---- */

/* Note that something has happened, so that time does not jump. */
static void world_busy(void)
{
    world.quiet = 0;
    world.idle = world.on < WORLD_MAX ? 0 : world.idle;
}

/* Give up the turn. */
static void world_yield(void)
{
    world_strand *me = &world.strand[world.on];
    memcpy(me->message, dcommi_message, sizeof me->message);
    world_to_scheduler(me, false);
    if (world.ends) {
        world_to_scheduler(me, true);
    }
    memcpy(dcommi_message, me->message, sizeof me->message);
}

/* Give up the turn for some time. */
static void world_sleep(double seconds)
{
    world.strand[world.on].wakes = world.now + seconds;
    world_yield();
}

/* Return true if a rank has more than one strand. */
static bool world_has_thread(int rank)
{
    return world.strand[WORLD_MAX + rank].there || world.strand[2 * WORLD_MAX + rank].there;
}

/* Perhaps let others run, where the kernel could take a rank with threads off its core. */
static void world_preempt(void)
{
    if (world_has_thread(world.in) && world_chance(world.preempts)) {
        world_yield();
    }
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

/* Stop a rank for some time. If it runs, it goes on until it yields. */
static void world_stop(int rank, double seconds, bool traced)
{
    world.rank[rank].resumes = world.now + seconds;
    world.rank[rank].traced = traced;
}

static bool world_stopped(int rank)
{
    return world.rank[rank].resumes > world.now;
}

/* Pass a point between two actions. */
static void world_point(void)
{
    world_rank *me = &world.rank[world.in];
    if (++me->points == me->struck_at) {
        world.strike(world.in);
        if (world_stopped(world.in)) {
            world_yield();
        }
    }
}

static void world_enter(void)
{
    world_strand *me = &world.strand[world.on];
    world_arrived(NULL, &world.scheduler_stack, &world.scheduler_bytes);
    if (world.ends) { /* it has had no turn */
        world_to_scheduler(me, true);
    }
    if (me->main != NULL) {
        me->main(me->user);
    } else {
        world.main(world.in);
        world.rank[world.in].state = WORLD_ENDED;
    }
    me->there = false;
    world_busy();
    world_to_scheduler(me, true);
}

/* Return the strand whose turn it is. *wakes: when the next one wakes, if none is awake (-1).
 * *looking: how many are. */
static int world_choose(double *wakes, unsigned *looking)
{
    int awake[WORLD_STRANDS], n = 0;
    *wakes = WORLD_NEVER;
    for (int s = 0; s < WORLD_STRANDS; s++) {
        const int r = s % WORLD_MAX;
        const world_strand *strand = &world.strand[s];
        if (!strand->there || r >= world.n || world.rank[r].state != WORLD_LIVES) {
            continue;
        }
        const double resumes = world.rank[r].resumes;
        const double when = strand->wakes > resumes ? strand->wakes : resumes;
        if (when <= world.now) {
            awake[n++] = s;
        } else if (when < *wakes) {
            *wakes = when;
        }
    }
    *looking = (unsigned)n;
    return n > 0 ? awake[world_below(n)] : -1;
}

static bool world_is_over(void)
{
    bool over = true;
    for (int r = 0; r < world.n; r++) {
        over = over && world.rank[r].state != WORLD_LIVES;
    }
    return over;
}

/* Let time jump to the next event, when all ranks have looked around and found nothing. */
static void world_jump(double wakes)
{
    double next = world.next_event();
    next = wakes < next ? wakes : next;
    world.idle += world.idle < WORLD_IDLE;
    double most = world.now + WORLD_JUMP * world.idle * (0.2 + 0.8 * world_unit());
    world.now = next > most ? most : next > world.now ? next : world.now;
    world.quiet = 0;
}

/* Begin a strand. `main` NULL: the rank's program. */
static void world_begin(int number, void *(*main)(void *user), void *user)
{
    world_strand *strand = &world.strand[number];
    if (strand->stack == NULL) {
        strand->stack =
            mmap(NULL, WORLD_STACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    }
    world_clean(strand->stack);
    strand->there = true;
    strand->begun = false;
    strand->wakes = 0;
    strand->main = main;
    strand->user = user;
    strand->message[0] = 0;
    getcontext(&strand->begins);
    strand->begins.uc_stack.ss_sp = strand->stack;
    strand->begins.uc_stack.ss_size = WORLD_STACK;
    strand->begins.uc_link = NULL;
    makecontext(&strand->begins, world_enter, 0);
}

/* Give a strand its turn. */
static void world_turn(int number)
{
    world.in = number % WORLD_MAX;
    world.on = number;
    world_to_strand(&world.strand[number]);
    world.in = -1;
}

/* Run `n` ranks until all have ended or died, or something goes wrong. `limit`: seconds. */
static void world_run(int n, uint64_t seed, double limit)
{
    world.n = n;
    world.in = -1;
    world.random = seed;
    for (int r = 0; r < n; r++) {
        world.rank[r] = (world_rank){.struck_at = UINT64_MAX};
        world_begin(r, NULL, NULL);
    }
    while (world.trouble[0] == 0 && !world_is_over()) {
        double wakes;
        unsigned looking;
        const int next = world_choose(&wakes, &looking);
        if (next < 0 || ++world.quiet > 3 * looking) {
            world_jump(wakes);
            if (world.now > limit) {
                world_trouble("not over after %g s", limit);
            }
            continue;
        }
        world.now += WORLD_TICK * world_unit();
        world.turns++;
        world.rank[next % WORLD_MAX].turns++;
        if (world_chance(world.starve)) {
            double u = world_unit();
            world.strand[next].wakes = world.now + u * u * u;
        }
        world_turn(next);
    }
}

/* Free what the ranks have left. */
static void world_end(void)
{
    world.ends = true;
    for (int s = 0; s < WORLD_STRANDS; s++) {
        if (world.strand[s].there) {
            world_turn(s);
            world.strand[s].there = false;
        }
    }
    world.ends = false;
    while (world.blocks != NULL) {
        world_free((char *)world.blocks + 64, NULL);
    }
}

#endif
