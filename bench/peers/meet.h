/* meet.h - ranks of one host, started by dcomm-run, that share a file in PEER_STORE, and no library:
 * what limit-perf.c and bare-perf.c have in common. Behind the lines of meet_rank lies what a
 * program wants there. */
#ifndef MEET_H
#define MEET_H

#define _GNU_SOURCE
#include "peer_perf.h"

#include <fcntl.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <unistd.h>

enum { MEET_RANKS = 64, MEET_SPINS = 16 };

typedef struct meet_rank {
    _Alignas(64) _Atomic uint64_t at[MEET_RANKS][8]; /* one line for each who waits */
    double value;
} meet_rank;

static meet_rank *meet_ranks;
static unsigned char *meet_shared; /* what is behind them, zeroed */
static uint64_t meet_now;
static int me, all;
static bool crowded;

/* Until a counter is there. */
static void meet_wait(_Atomic uint64_t *counter, uint64_t there)
{
    int spins = 0;
    while (atomic_load_explicit(counter, memory_order_acquire) < there) {
        if (crowded && ++spins > MEET_SPINS) {
            sched_yield();
        }
    }
}

/* Each rank tells every other by one line that it is there, and waits for theirs. */
static void meet(void)
{
    meet_now++;
    for (int r = 0; r < all; r++) {
        atomic_store_explicit(&meet_ranks[me].at[r][0], meet_now, memory_order_release);
    }
    for (int r = 0; r < all; r++) {
        meet_wait(&meet_ranks[r].at[me][0], meet_now);
    }
}

static void peer_barrier(void)
{
    meet();
}

static void peer_max(double *values, int n)
{
    for (int i = 0; i < n; i++) {
        meet_ranks[me].value = values[i];
        meet();
        for (int r = 0; r < all; r++) {
            values[i] = meet_ranks[r].value > values[i] ? meet_ranks[r].value : values[i];
        }
        meet();
    }
}

static void peer_abort(int status)
{
    exit(status); /* the launcher ends the others */
}

static int meet_number(const char *name)
{
    const char *value = getenv(name);
    return value != NULL ? atoi(value) : -1;
}

/* The program, for `least` to `most` ranks, with so many bytes for itself in the file PEER_STORE/name. */
static int meet_main(const char *name, int least, int most, size_t shared, int argc, char **argv)
{
    const char *folder = getenv("PEER_STORE");
    char path[4096];
    cpu_set_t mask;
    me = meet_number("RANK");
    all = meet_number("WORLD_SIZE");
    if (folder == NULL || me < 0 || all < least || all > most || me >= all) {
        fprintf(stderr, "%s-perf: wants PEER_STORE, RANK, and WORLD_SIZE from %d to %d\n", name,
                least, most);
        return PEER_USAGE;
    }
    crowded = all > sysconf(_SC_NPROCESSORS_ONLN);
    snprintf(path, sizeof path, "%s/%s", folder, name);
    int file = open(path, O_RDWR | O_CREAT, 0600);
    size_t ranks = (size_t)all * sizeof *meet_ranks, bytes = ranks + shared;
    if (file < 0 || ftruncate(file, (off_t)bytes) != 0 ||
        (meet_ranks = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0)) ==
            MAP_FAILED) {
        perror(path);
        return PEER_COMM;
    }
    meet_shared = (unsigned char *)meet_ranks + ranks;
    if (sched_getaffinity(0, sizeof mask, &mask) != 0 || CPU_COUNT(&mask) != 1) {
        fprintf(stderr, "%s-perf: this rank is not bound to one core\n", name);
    }
    meet();
    return peer_main(argc, argv, me, all);
}

#endif
