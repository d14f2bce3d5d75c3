/* test_ps_stash.c - a worker may push the same rows again and again in a clock: a server's memory
 * has a bound, and the bits do not depend on when it adds the pushes up. */
#define _GNU_SOURCE
#include "ps_case.h"

#include <stdatomic.h>
#include <stdlib.h>

enum { ROWS = 500, COLS = 16, N = ROWS * COLS, TIMES = 250 };

/* ---- an allocator that counts large memory, of pushes ---- */

static _Atomic size_t held, most;

static void *allocate(size_t align, size_t size, void *user)
{
    (void)user;
    size_t *p = aligned_alloc(align, size + align);
    if (p == NULL) {
        return NULL;
    }
    p[0] = size;
    const size_t now = atomic_fetch_add(&held, size) + size;
    size_t before = atomic_load(&most);
    while (now > before && !atomic_compare_exchange_weak(&most, &before, now)) {
    }
    return (char *)p + align;
}

static void release(void *p, void *user)
{
    (void)user;
    size_t *block = (size_t *)(void *)((char *)p - 64);
    atomic_fetch_sub(&held, block[0]);
    free(block);
}

/* ---- */

/* Return a number whose sums depend on their order. */
static float gradient(int rank, int time, size_t k)
{
    uint64_t state = (uint64_t)rank * 1000003 + (uint64_t)time * 10007 + k;
    return (float)((double)(int64_t)ranks_random(&state) / 9e18);
}

/* Return true if push `time` of a rank has a row: some are of all rows, some are lists. */
static bool has(int rank, int time, size_t row)
{
    return time % 4 == 0 || (row * 7 + (size_t)(rank + time)) % 5 == 0;
}

static void push(dcomm_ps *ps, int rank, int time)
{
    static float grad[N];
    uint64_t rows[ROWS];
    size_t n = 0;
    for (size_t row = 0; row < ROWS; row++) {
        if (has(rank, time, row)) {
            for (size_t c = 0; c < COLS; c++) {
                grad[n * COLS + c] = gradient(rank, time, row * COLS + c);
            }
            rows[n++] = row;
        }
    }
    RANKS_OK(n == ROWS ? dcomm_ps_push(ps, 0, 0, ROWS, grad, NULL)
                       : dcomm_ps_push_rows(ps, 0, rows, n, grad, NULL));
}

/* Each worker's pushes are added up in their order, then the workers' sums in the order of ranks.
 * With 2 or 4 ranks an average has the bits of a division. */
static int bounded(int rank, int n, procs_shared *s, void *arg)
{
    (void)arg;
    static float got[N];
    dcomm_set_allocator(allocate, release, NULL);
    dcomm_comm *comm = join(rank, n, s);
    const dcomm_ps_param param = {.rows = ROWS, .cols = COLS, .dtype = DCOMM_F32};
    const dcomm_ps_opts opts = {.servers = n > 1 ? 2 : 1, .lr = 1};
    dcomm_ps *ps = NULL;
    RANKS_OK(dcomm_ps_create(comm, &param, 1, &opts, &ps));
    const size_t before = atomic_load(&held), row = COLS * sizeof *got + sizeof(uint64_t);
    atomic_store(&most, before);
    for (int time = 0; time < TIMES; time++) {
        push(ps, rank, time);
    }
    RANKS_OK(dcomm_ps_clock(ps));
    RANKS_OK(dcomm_ps_pull(ps, 0, 0, ROWS, got, NULL));
    /* Of each worker: five times the rows, and what the transport holds. */
    const size_t bound = (size_t)n * 6 * ROWS * row + ((size_t)1 << 20);
    PROCS_CHECK(atomic_load(&most) - before < bound && bound < (size_t)n * TIMES * ROWS * row / 5,
                "rank %d: %zu bytes, %zu before; bound %zu", rank, atomic_load(&most), before,
                bound);
    for (size_t k = 0; k < N; k++) {
        float all = 0;
        for (int r = 0; r < n; r++) {
            float sum = 0;
            for (int time = 0; time < TIMES; time++) {
                sum += has(r, time, k / COLS) ? gradient(r, time, k) : 0;
            }
            all += sum;
        }
        PROCS_CHECK(got[k] == 0 - all / (float)n, "element %zu is %.9g, not %.9g", k,
                    (double)got[k], (double)(0 - all / (float)n));
    }
    RANKS_OK(dcomm_ps_destroy(&ps));
    return ranks_leave(&comm);
}

Test(ps_stash, bounded, .timeout = 60)
{
    on(1, RANKS_LOCAL, 25, bounded);
    on(2, RANKS_HOSTS, 25, bounded);
}
