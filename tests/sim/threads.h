/* threads.h - the threads of a simulated rank are further strands of it: one that beats, one that
 * makes progress. Locks belong to ranks, though all ranks are one process here: each has its own
 * state of every lock. */
#ifndef SIM_THREADS_H
#define SIM_THREADS_H

#include "sockets.h"

#include <pthread.h>

enum { THREADS_LOCKS = 64 };

/* The locks that are held. */
static struct {
    int n;
    struct threads_held {
        const pthread_mutex_t *lock;
        int strand;
    } held[THREADS_LOCKS];
} threads;

/* Return the place of a lock that a strand of this rank holds; -1: none does. */
static int threads_find(const pthread_mutex_t *lock)
{
    for (int i = 0; i < threads.n; i++) {
        if (threads.held[i].lock == lock && threads.held[i].strand % WORLD_MAX == world.in) {
            return i;
        }
    }
    return -1;
}

WORLD_WRAP(int, pthread_mutex_lock, pthread_mutex_t *lock)
{
    if (world.in < 0) {
        return __real_pthread_mutex_lock(lock);
    }
    world_preempt();
    for (int i; (i = threads_find(lock)) >= 0; world_yield()) {
        if (threads.held[i].strand == world.on) {
            world_trouble("rank %d locks again what it has locked", world.in);
        }
    }
    if (threads.n == THREADS_LOCKS) {
        world_trouble("more than %d locks are held", THREADS_LOCKS);
        return 0;
    }
    threads.held[threads.n++] = (struct threads_held){lock, world.on};
    return 0;
}

WORLD_WRAP(int, pthread_mutex_unlock, pthread_mutex_t *lock)
{
    if (world.in < 0) {
        return __real_pthread_mutex_unlock(lock);
    }
    const int i = threads_find(lock);
    if (i < 0 || threads.held[i].strand != world.on) {
        world_trouble("rank %d unlocks what it has not locked", world.in);
        return 0;
    }
    threads.held[i] = threads.held[--threads.n];
    world_preempt();
    return 0;
}

WORLD_WRAP(int, pthread_create, pthread_t *thread, const pthread_attr_t *attr,
           void *(*main)(void *user), void *user)
{
    if (world.in < 0) {
        return __real_pthread_create(thread, attr, main, user);
    }
    int strand = WORLD_MAX + world.in;
    while (strand < WORLD_STRANDS && world.strand[strand].there) {
        strand += WORLD_MAX;
    }
    if (strand >= WORLD_STRANDS) {
        world_trouble("rank %d begins too many threads", world.in);
        return EAGAIN;
    }
    *thread = (pthread_t)strand;
    world_begin(strand, main, user);
    return 0;
}

WORLD_WRAP(int, pthread_join, pthread_t thread, void **result)
{
    if (world.in < 0) {
        return __real_pthread_join(thread, result);
    }
    while (world.strand[thread].there) {
        world_yield();
    }
    return 0;
}

/* Forget the locks of ranks that are no more. */
static void threads_end(void)
{
    threads.n = 0;
}

#endif
