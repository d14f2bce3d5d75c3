/* limit-perf.c - what no library can beat, timed by the rule of peer_perf.h: each rank tells every
 * other by one cache line that it is there, waits for theirs, and copies its input to its result.
 * Nothing is sent, so nothing is right but the time: less than this no call can take whose result
 * depends on all ranks, and whose input is read and result written once. Started by dcomm-run; the
 * lines lie in a file that PEER_STORE/limit names. */
#define _GNU_SOURCE
#include "peer_perf.h"

#include <fcntl.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <unistd.h>

enum { LIMIT_RANKS = 64, LIMIT_SPINS = 200 };

typedef struct limit_rank {
    _Alignas(64) _Atomic uint64_t at[LIMIT_RANKS][8]; /* one line for each who waits */
    double value;
} limit_rank;

static limit_rank *ranks;
static uint64_t now;
static int me, all;
static bool crowded;

static void limit_meet(void)
{
    now++;
    for (int r = 0; r < all; r++) {
        atomic_store_explicit(&ranks[me].at[r][0], now, memory_order_release);
    }
    for (int r = 0; r < all; r++) {
        int spins = 0;
        while (atomic_load_explicit(&ranks[r].at[me][0], memory_order_acquire) < now) {
            if (crowded && ++spins > LIMIT_SPINS) {
                sched_yield();
            }
        }
    }
}

static void peer_library_name(char *name, size_t len)
{
    snprintf(name, len, "limit");
}

static bool peer_can(peer_op op, bool in_place)
{
    (void)in_place;
    return op == PEER_ALLREDUCE || op == PEER_ALLTOALL;
}

static void peer_barrier(void)
{
    limit_meet();
}

static void peer_call(const peer_case *c)
{
    limit_meet();
    if (!c->in_place) {
        memcpy(c->work, c->input, c->bytes);
    }
}

static void peer_max(double *values, int n)
{
    for (int i = 0; i < n; i++) {
        ranks[me].value = values[i];
        limit_meet();
        for (int r = 0; r < all; r++) {
            values[i] = ranks[r].value > values[i] ? ranks[r].value : values[i];
        }
        limit_meet();
    }
}

static void peer_abort(int status)
{
    exit(status); /* the launcher ends the others */
}

static int limit_number(const char *name)
{
    const char *value = getenv(name);
    return value != NULL ? atoi(value) : -1;
}

int main(int argc, char **argv)
{
    const char *folder = getenv("PEER_STORE");
    char path[4096];
    cpu_set_t mask;
    me = limit_number("RANK");
    all = limit_number("WORLD_SIZE");
    if (folder == NULL || me < 0 || all < 1 || all > LIMIT_RANKS || me >= all) {
        fputs("limit-perf: wants PEER_STORE, and RANK and WORLD_SIZE up to 64\n", stderr);
        return PEER_USAGE;
    }
    crowded = all > sysconf(_SC_NPROCESSORS_ONLN);
    snprintf(path, sizeof path, "%s/limit", folder);
    int file = open(path, O_RDWR | O_CREAT, 0600);
    size_t bytes = (size_t)all * sizeof *ranks;
    if (file < 0 || ftruncate(file, (off_t)bytes) != 0 ||
        (ranks = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0)) == MAP_FAILED) {
        perror(path);
        return PEER_COMM;
    }
    if (sched_getaffinity(0, sizeof mask, &mask) != 0 || CPU_COUNT(&mask) != 1) {
        fputs("limit-perf: this rank is not bound to one core\n", stderr);
    }
    limit_meet();
    return peer_main(argc, argv, me, all);
}
