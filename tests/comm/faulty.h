/* faulty.h - counts calls of the library, and fails one. The linker binds the library's calls to
 * functions of these names (--wrap), not those of UCX, hwloc and the C library. */
#ifndef FAULTY_H
#define FAULTY_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define FAULTY_WRAP(type, name, ...) \
    type __real_##name(__VA_ARGS__); \
    type __wrap_##name(__VA_ARGS__); \
    type __wrap_##name(__VA_ARGS__)

enum faulty_kind {
    FAULTY_SYSTEM,      /* system calls fail */
    FAULTY_INTERRUPTED, /* system calls are interrupted: only those that can be count */
    FAULTY_RESULT,      /* a rank's connection with the rendezvous breaks when a result comes */
    FAULTY_UCX,         /* UCX's calls fail */
    FAULTY_UCX_BUSY     /* UCX cannot send now */
};

static enum faulty_kind faulty_kind;
static const char *faulty_only;  /* the only call that counts; NULL: all do */
static _Atomic long faulty_left; /* calls until one fails; 0: none does */
static _Atomic int faulty_hit;   /* one has failed */

/* Count a call of the kind that fails. Return true if it is to fail. */
static bool faulty_counts(const char *name)
{
    if (faulty_only != NULL && strcmp(faulty_only, name) != 0) {
        return false;
    }
    if (atomic_load(&faulty_left) <= 0 || atomic_fetch_sub(&faulty_left, 1) != 1) {
        return false;
    }
    if (getenv("FAULTY_TRACE") != NULL) {
        fprintf(stderr, "%d: %s fails\n", (int)getpid(), name);
    }
    atomic_store(&faulty_hit, 1);
    return true;
}

static void faulty_arm(long k)
{
    atomic_store(&faulty_left, k);
}

static bool faulty_was_hit(void)
{
    return atomic_exchange(&faulty_hit, 0) != 0;
}

#endif
