/* faults.h - ranks of a fault test: a communicator over shared memory, an all-reduce that checks
 * itself, and checks after an error. For tests of the public interface. */
#ifndef FAULTS_H
#define FAULTS_H

#include "dcomm.h"
#include "procs.h"

#include <stdarg.h>

/* One host; every rank on a host of its own; one host whose kernel forbids reading other
 * processes; two ranks on a host. */
typedef enum fault_place { LOCAL, NET, MESSAGE, PAIRS } fault_place;

typedef struct fault_rank {
    int rank, n;
    procs_shared *s;
    int round;
    dcomm_comm *comm;
} fault_rank;

/* Meet the others without dcomm. words[r] is the round that rank r has reached. */
static inline void fault_meet(fault_rank *f, int but)
{
    atomic_store(&f->s->words[f->rank], ++f->round);
    for (int r = 0; r < f->n; r++) {
        while (r != but && atomic_load(&f->s->words[r]) < f->round) {
            procs_nap();
        }
    }
}

static inline int fault_allgather(const void *mine, size_t bytes, void *all, void *user)
{
    fault_rank *f = user;
    if (bytes > PROCS_BLOB) {
        return -1;
    }
    memcpy(f->s->blobs[f->rank].bytes, mine, bytes);
    fault_meet(f, -1);
    for (int r = 0; r < f->n; r++) {
        memcpy((char *)all + (size_t)r * bytes, f->s->blobs[r].bytes, bytes);
    }
    fault_meet(f, -1);
    return 0;
}

static inline void fault_join(fault_rank *f, int rank, int n, procs_shared *s, fault_place place,
                              double timeout_s)
{
    char host[32];
    *f = (fault_rank){.rank = rank, .n = n, .s = s};
    snprintf(host, sizeof host, "host-%d", place == NET ? rank : place == PAIRS ? rank / 2 : 0);
    setenv("DCOMM_CMA", place == MESSAGE ? "0" : "1", 1);
    setenv("LOCAL_WORLD_SIZE", "16", 1); /* the ranks share the cores: do not spin */
    dcomm_comm_opts opts = {.context_opts = {.host_id = host, .iface = "lo"},
                            .boot = DCOMM_BOOT_ALLGATHER,
                            .rank = rank,
                            .size = n,
                            .allgather = fault_allgather,
                            .allgather_user = f,
                            .timeout_s = timeout_s};
    dcomm_status status = dcomm_comm_create(&opts, &f->comm);
    PROCS_CHECK(status == DCOMM_OK, "rank %d: %s", rank, dcomm_last_error());
}

/* Return element i of a rank's input: sums of these are exact. */
static inline float fault_value(int rank, size_t i)
{
    return (float)(rank + 1) + (float)(i % 7);
}

static void *fault_kept[64];
static int fault_kept_n;

/* Run an all-reduce among `n` ranks with the values of the ranks in `of` (NULL: all). */
static inline dcomm_status fault_allreduce(dcomm_comm *comm, int value_rank, const int *of,
                                           size_t count, const dcomm_coll_opts *opts)
{
    int n = dcomm_comm_size(comm);
    float *in = malloc(count * sizeof *in), *out = calloc(count, sizeof *out);
    for (size_t i = 0; i < count; i++) {
        in[i] = fault_value(value_rank, i);
    }
    dcomm_status status = dcomm_allreduce(comm, in, out, count, DCOMM_F32, DCOMM_SUM, opts);
    for (size_t i = 0; status == DCOMM_OK && i < count; i++) {
        float want = 0;
        for (int r = 0; r < n; r++) {
            want += fault_value(of != NULL ? of[r] : r, i);
        }
        PROCS_CHECK(out[i] == want, "element %zu is %g, not %g", i, (double)out[i], (double)want);
    }
    /* A failed operation uses its buffers until its communicator is destroyed: the process keeps
     * them. */
    if (status == DCOMM_OK) {
        free(in);
        free(out);
    } else {
        PROCS_TRUE(fault_kept_n + 2 <= 64);
        fault_kept[fault_kept_n++] = in;
        fault_kept[fault_kept_n++] = out;
    }
    return status;
}

/* Check the communicator's error: its status and the words of its sentence. */
static inline void fault_expect(const fault_rank *f, dcomm_status got, dcomm_status want,
                                const char *const *words)
{
    const char *sentence = dcomm_last_error();
    PROCS_CHECK(got == want, "rank %d got %s, not %s: %s", f->rank, dcomm_status_name(got),
                dcomm_status_name(want), sentence);
    PROCS_TRUE(dcomm_comm_status(f->comm) == want);
    PROCS_TRUE(strcmp(dcomm_comm_error(f->comm), sentence) == 0);
    for (int i = 0; words != NULL && words[i] != NULL; i++) {
        PROCS_CHECK(strstr(sentence, words[i]) != NULL, "rank %d: \"%s\" is not in: %s", f->rank,
                    words[i], sentence);
    }
}

/* Destroy in bounded time, and leave nothing. */
static inline void fault_destroy(dcomm_comm **comm, double most_s)
{
    double start = procs_now();
    dcomm_status status = dcomm_comm_destroy(comm);
    double took = procs_now() - start;
    PROCS_CHECK(status == DCOMM_OK && *comm == NULL, "%s", dcomm_last_error());
    PROCS_CHECK(took < most_s, "destroy took %.2f s", took);
}

static inline int fault_leave(fault_rank *f)
{
    if (f->comm != NULL) {
        fault_destroy(&f->comm, 1.5);
    }
    return procs_leaks();
}

/* Shrink to the survivors, without `dead` (-1: nobody), and work on. f->comm is the new
 * communicator. */
static inline void fault_recover(fault_rank *f, int dead)
{
    int of[PROCS_MAX], n = 0;
    for (int r = 0; r < f->n; r++) {
        if (r != dead) {
            of[n++] = r;
        }
    }
    dcomm_comm *small = NULL;
    dcomm_status status = dcomm_comm_shrink(f->comm, &dead, dead >= 0 ? 1 : 0, &small);
    PROCS_CHECK(status == DCOMM_OK, "rank %d: shrink: %s", f->rank, dcomm_last_error());
    PROCS_TRUE(dcomm_comm_size(small) == n);
    fault_destroy(&f->comm, 1.5);
    for (size_t count = 1; count <= 100000; count *= 100) {
        status = fault_allreduce(small, f->rank, of, count, NULL);
        PROCS_CHECK(status == DCOMM_OK, "rank %d: %s", f->rank, dcomm_last_error());
    }
    f->comm = small;
    fault_meet(f, dead); /* keep the next error out of this round */
}

#endif
