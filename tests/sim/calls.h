/* calls.h - the collectives that simulated ranks call: drawn by the seed, with inputs that a rank
 * can compute for all others, so that it knows the result. */
#ifndef SIM_CALLS_H
#define SIM_CALLS_H

#include "ranks.h"
#include "world.h"

#include "dcomm/impl/algo/table.h"

typedef struct calls_one {
    dcomm_coll coll;
    const char *algo; /* NULL: the library's choice */
    size_t count;
    dcomm_dtype dtype;
    dcomm_op op;
    int root;
    bool together; /* with the next one: both are under way at the same time */
    bool second;   /* on the second communicator, if there is one */
} calls_one;

/* A buffer that was given to a call. It is kept until the case ends, because a failed call may
 * still use it. */
typedef struct calls_buffer {
    struct calls_buffer *next;
    int rank;
    size_t bytes;
    uint64_t hash; /* once the communicator is destroyed: nobody may write to it any more */
    bool sealed;
    unsigned char at[];
} calls_buffer;

static calls_buffer *calls_buffers;

static unsigned char *calls_take(size_t bytes, int rank)
{
    calls_buffer *b = malloc(sizeof *b + bytes + 1);
    b->next = calls_buffers;
    b->rank = rank;
    b->bytes = bytes;
    b->sealed = false;
    memset(b->at, 0xa5, bytes);
    calls_buffers = b;
    return b->at;
}

/* Return n aligned numbers of 4 bytes in such a buffer. */
static void *calls_take_numbers(size_t n, int rank)
{
    unsigned char *at = calls_take((n + 1) * sizeof(uint32_t), rank);
    return at + (4 - (uintptr_t)at % 4) % 4;
}

/* Note what a rank's buffers hold now that no communicator of its own is left. */
static void calls_seal(int rank)
{
    for (calls_buffer *b = calls_buffers; b != NULL; b = b->next) {
        if (b->rank == rank) {
            b->hash = ranks_hash(b->at, b->bytes);
            b->sealed = true;
        }
    }
}

/* Free all buffers, after a look at those that must not have changed. */
static void calls_end(void)
{
    while (calls_buffers != NULL) {
        calls_buffer *b = calls_buffers;
        if (b->sealed && b->hash != ranks_hash(b->at, b->bytes)) {
            world_trouble("a buffer of rank %d was written after its communicator was destroyed",
                          b->rank);
        }
        calls_buffers = b->next;
        free(b);
    }
}

/* ---- drawing calls ---- */

static const dcomm_coll calls_colls[] = {
    DCOMM_COLL_ALLREDUCE, DCOMM_COLL_REDUCE_SCATTER, DCOMM_COLL_ALLGATHER,
    DCOMM_COLL_BROADCAST, DCOMM_COLL_REDUCE,         DCOMM_COLL_ALLTOALL,
    DCOMM_COLL_BARRIER,   DCOMM_COLL_GATHER,         DCOMM_COLL_SCATTER};

enum { CALLS_COLLS = sizeof calls_colls / sizeof *calls_colls };

static bool calls_knows(dcomm_coll coll)
{
    bool knows = false;
    for (int i = 0; i < CALLS_COLLS; i++) {
        knows = knows || calls_colls[i] == coll;
    }
    return knows;
}

static size_t calls_draw_count(void)
{
    const double u = world_unit();
    return u < 0.5   ? (size_t)world_below(20)
           : u < 0.9 ? (size_t)world_below(3000)
                     : (size_t)world_below(30000);
}

static calls_one calls_draw(int n)
{
    static const dcomm_dtype dtypes[] = {DCOMM_F32, DCOMM_F32, DCOMM_F64, DCOMM_I32,
                                         DCOMM_U8,  DCOMM_F16, DCOMM_BF16};
    static const dcomm_op ops[] = {DCOMM_SUM, DCOMM_SUM, DCOMM_MIN, DCOMM_MAX};
    calls_one c = {.coll = calls_colls[world_chance(0.4) ? 0 : world_below(CALLS_COLLS)],
                   .count = calls_draw_count(),
                   .dtype = dtypes[world_below(7)],
                   .op = ops[world_below(4)],
                   .root = world_below(n),
                   .together = world_chance(0.2),
                   .second = world_chance(0.3)};
    int algos = 0;
    while (dcommi_algo_at(c.coll, algos) != NULL) {
        algos++;
    }
    const int algo = world_below(algos + 1);
    c.algo = algo < algos ? dcommi_algo_at(c.coll, algo)->name : NULL;
    return c;
}

static void calls_text(const calls_one *c, char *text, size_t len)
{
    snprintf(text, len, "%s/%s of %zu %s, %s, root %d", dcomm_coll_name(c->coll),
             c->algo != NULL ? c->algo : "auto", c->count, dcomm_dtype_name(c->dtype),
             dcomm_op_name(c->op), c->root);
}

/* ---- values ---- */

/* Return element i of the input of the process `who` for call `number`. */
static double calls_value(int who, int number, size_t i)
{
    return (double)(((size_t)who * 7 + (size_t)number * 5 + i % 1000 * 3) % 11);
}

/* Return element i of the fold of all processes in `who`. */
static double calls_fold(const calls_one *c, const int *who, int n, int number, size_t i)
{
    double x = calls_value(who[0], number, i);
    for (int r = 1; r < n; r++) {
        const double y = calls_value(who[r], number, i);
        x = c->op == DCOMM_SUM ? x + y : (c->op == DCOMM_MIN) == (y < x) ? y : x;
    }
    return x;
}

static double calls_want(const calls_one *c, const int *who, int n, int me, int number, size_t i)
{
    switch (c->coll) {
    case DCOMM_COLL_REDUCE_SCATTER:
        return calls_fold(c, who, n, number, (size_t)me * c->count + i);
    case DCOMM_COLL_ALLGATHER:
    case DCOMM_COLL_GATHER:
        return calls_value(who[i / c->count], number, i % c->count);
    case DCOMM_COLL_SCATTER:
        return calls_value(who[c->root], number, (size_t)me * c->count + i);
    case DCOMM_COLL_ALLTOALL:
        return calls_value(who[i / c->count], number, (size_t)me * c->count + i % c->count);
    case DCOMM_COLL_BROADCAST:
        return calls_value(who[c->root], number, i);
    default:
        return calls_fold(c, who, n, number, i);
    }
}

/* ---- calling ---- */

/* A call under way. */
typedef struct calls_job {
    const calls_one *call;
    const int *who; /* the processes behind the ranks */
    int n, me, number;
    unsigned char *in, *out;
    dcomm_request *request;
} calls_job;

/* Start a call; request_p NULL: and wait for it. */
static dcomm_status calls_start(dcomm_comm *comm, const calls_job *j, dcomm_request **request_p)
{
    const calls_one *c = j->call;
    dcomm_coll_opts opts = {.algo = c->algo};
    if (request_p == NULL) {
        switch (c->coll) {
        case DCOMM_COLL_ALLREDUCE:
            return dcomm_allreduce(comm, j->in, j->out, c->count, c->dtype, c->op, &opts);
        case DCOMM_COLL_REDUCE_SCATTER:
            return dcomm_reduce_scatter(comm, j->in, j->out, c->count, c->dtype, c->op, &opts);
        case DCOMM_COLL_ALLGATHER:
            return dcomm_allgather(comm, j->in, j->out, c->count, c->dtype, &opts);
        case DCOMM_COLL_BROADCAST:
            return dcomm_broadcast(comm, j->in, j->out, c->count, c->dtype, c->root, &opts);
        case DCOMM_COLL_REDUCE:
            return dcomm_reduce(comm, j->in, j->out, c->count, c->dtype, c->op, c->root, &opts);
        case DCOMM_COLL_ALLTOALL:
            return dcomm_alltoall(comm, j->in, j->out, c->count, c->dtype, &opts);
        case DCOMM_COLL_GATHER:
            return dcomm_gather(comm, j->in, j->out, c->count, c->dtype, c->root, &opts);
        case DCOMM_COLL_SCATTER:
            return dcomm_scatter(comm, j->in, j->out, c->count, c->dtype, c->root, &opts);
        default:
            return dcomm_barrier(comm, &opts);
        }
    }
    switch (c->coll) {
    case DCOMM_COLL_ALLREDUCE:
        return dcomm_iallreduce(comm, j->in, j->out, c->count, c->dtype, c->op, &opts, request_p);
    case DCOMM_COLL_REDUCE_SCATTER:
        return dcomm_ireduce_scatter(comm, j->in, j->out, c->count, c->dtype, c->op, &opts,
                                     request_p);
    case DCOMM_COLL_ALLGATHER:
        return dcomm_iallgather(comm, j->in, j->out, c->count, c->dtype, &opts, request_p);
    case DCOMM_COLL_BROADCAST:
        return dcomm_ibroadcast(comm, j->in, j->out, c->count, c->dtype, c->root, &opts, request_p);
    case DCOMM_COLL_REDUCE:
        return dcomm_ireduce(comm, j->in, j->out, c->count, c->dtype, c->op, c->root, &opts,
                             request_p);
    case DCOMM_COLL_ALLTOALL:
        return dcomm_ialltoall(comm, j->in, j->out, c->count, c->dtype, &opts, request_p);
    case DCOMM_COLL_GATHER:
        return dcomm_igather(comm, j->in, j->out, c->count, c->dtype, c->root, &opts, request_p);
    case DCOMM_COLL_SCATTER:
        return dcomm_iscatter(comm, j->in, j->out, c->count, c->dtype, c->root, &opts, request_p);
    default:
        return dcomm_ibarrier(comm, &opts, request_p);
    }
}

static bool calls_wide(const calls_one *c, bool in)
{
    return c->coll == DCOMM_COLL_ALLTOALL ||
           c->coll == (in ? DCOMM_COLL_REDUCE_SCATTER : DCOMM_COLL_ALLGATHER) ||
           c->coll == (in ? DCOMM_COLL_SCATTER : DCOMM_COLL_GATHER);
}

/* Make the buffers of call `number`, as rank `me` of the processes in `who`. */
static calls_job calls_job_make(const calls_one *c, const int *who, int n, int me, int number)
{
    const size_t element = dcomm_dtype_size(c->dtype), all = (size_t)n * c->count;
    const size_t nin = calls_wide(c, true) ? all : c->count;
    const size_t nout = calls_wide(c, false) ? all : c->count;
    calls_job j = {.call = c, .who = who, .n = n, .me = me, .number = number};
    j.in = calls_take(nin * element, who[me]);
    j.out = calls_take(nout * element, who[me]);
    for (size_t i = 0; i < nin; i++) {
        ranks_put(j.in, i, c->dtype, calls_value(who[me], number, i));
    }
    return j;
}

/* Check the result of a call that is over without an error. */
static void calls_check(const calls_job *j)
{
    const calls_one *c = j->call;
    const bool at_root = c->coll == DCOMM_COLL_REDUCE || c->coll == DCOMM_COLL_GATHER;
    const bool has = c->coll != DCOMM_COLL_BARRIER && (!at_root || j->me == c->root);
    const size_t nout = calls_wide(c, false) ? (size_t)j->n * c->count : c->count;
    for (size_t i = 0; has && i < nout; i++) {
        const double got = ranks_get(j->out, i, c->dtype);
        const double want = calls_want(c, j->who, j->n, j->me, j->number, i);
        if (got != want) {
            char text[160];
            calls_text(c, text, sizeof text);
            world_trouble("a wrong result: rank %d of %d, call %d (%s), element %zu is %g, not %g",
                          j->me, j->n, j->number, text, i, got, want);
            return;
        }
    }
}

/* The sentence of each rank's first call that failed: a later call may replace the last error. */
static char calls_error[WORLD_MAX][DCOMMI_MESSAGE_MAX];

/* Return the first error of two, and note its sentence if it is the second one's. */
static dcomm_status calls_first(dcomm_status before, dcomm_status status)
{
    if (before >= 0 && status < 0) {
        snprintf(calls_error[world.in], sizeof calls_error[world.in], "%s", dcomm_last_error());
    }
    return before < 0 ? before : status;
}

/* Make `n` calls, all at the same time if there are several, and check their results. Return the
 * first error. */
static dcomm_status calls_make(dcomm_comm *comm, calls_job *jobs, int n)
{
    dcomm_status status = DCOMM_OK;
    for (int i = 0; i < n; i++) {
        status = calls_first(status, calls_start(comm, &jobs[i], n > 1 ? &jobs[i].request : NULL));
    }
    for (int i = 0; i < n; i++) {
        const dcomm_status one = jobs[i].request != NULL ? dcomm_wait(&jobs[i].request) : status;
        if (one == DCOMM_OK) {
            calls_check(&jobs[i]);
        }
        status = calls_first(status, one);
    }
    return status;
}

#endif
