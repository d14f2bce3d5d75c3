/* grow_ranks.h - processes of tests in which a communicator grows: the first are its ranks, the
 * others newcomers. */
#ifndef GROW_RANKS_H
#define GROW_RANKS_H

#include "ranks.h"

#include <criterion/criterion.h>
#include <math.h>

enum { ID = PROCS_MAX - 1 }; /* the blob with the id by which newcomers come */

/* A process's part: the first `old` are ranks of the old communicator, the others newcomers. */
typedef struct part {
    int old;
    ranks_place place;
    double timeout_s;
} part;

static inline dcomm_comm *begin(int rank, procs_shared *s, const part *p)
{
    ranks_settle(rank, PROCS_MAX, p->place);
    return ranks_join(rank, p->old, s, &(dcomm_comm_opts){.timeout_s = p->timeout_s});
}

/* Make the id, on rank 0. */
static inline void invite(int rank, procs_shared *s, dcomm_id *id)
{
    size_t len;
    if (rank == 0) {
        RANKS_OK(dcomm_id_create(id));
        procs_give(s, ID, id, sizeof *id);
    } else {
        memcpy(id, procs_take(s, ID, &len), sizeof *id);
    }
}

/* Come as a newcomer. */
static inline dcomm_status come(int rank, procs_shared *s, const part *p, dcomm_comm **comm)
{
    dcomm_comm_opts opts = {.boot = DCOMM_BOOT_JOIN, .timeout_s = p->timeout_s};
    invite(rank, s, &opts.id);
    ranks_settle(rank, PROCS_MAX, p->place);
    return dcomm_comm_create(&opts, comm);
}

/* Check that a communicator has `size` ranks, and that sums over it are right. */
static inline void sums(dcomm_comm *comm, int size)
{
    static float in[100000], out[100000];
    PROCS_CHECK(dcomm_comm_size(comm) == size, "there are %d ranks", dcomm_comm_size(comm));
    for (size_t count = 1; count <= sizeof in / sizeof in[0]; count *= 100) {
        for (size_t i = 0; i < count; i++) {
            in[i] = (float)(dcomm_comm_rank(comm) + 1);
        }
        RANKS_OK(dcomm_allreduce(comm, in, out, count, DCOMM_F32, DCOMM_SUM, NULL));
        for (size_t i = 0; i < count; i++) {
            PROCS_CHECK(out[i] == (float)(size * (size + 1) / 2), "element %zu is %g", i,
                        (double)out[i]);
        }
    }
}

/* Run n processes; those in `victims` must end by SIGKILL, the others with 0. */
static inline void run(int n, procs_fn fn, void *arg, unsigned victims)
{
    int ended[PROCS_MAX];
    procs_run(n, 40, fn, arg, ended);
    for (int r = 0; r < n; r++) {
        const int want = victims >> r & 1 ? 128 + SIGKILL : 0;
        cr_expect(ended[r] == want, "process %d ended with %d, not %d", r, ended[r], want);
    }
}

#endif
