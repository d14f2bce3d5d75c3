/* rebind_case.h - for tests of dcomm_buckets_rebind: processes that train with buckets whose ranks
 * come and go, and the books of that. Each process has a number, which it keeps when its rank
 * changes. Gradients are known for each number and step, so every process can say what went in;
 * what came out and what is held back must add up to that. */
#ifndef REBIND_CASE_H
#define REBIND_CASE_H

#include "ranks.h"

#include "dcomm/impl/train/bucket/rebind.h"

#include <criterion/criterion.h>

enum { PARAMS = 3, LENGTH = 2500, TOTAL = PARAMS * LENGTH };

/* Memory that all processes share. */
typedef struct common {
    double owed[PROCS_MAX][TOTAL]; /* of a process that is about to die */
    unsigned char state[PROCS_MAX][1 << 18];
    size_t bytes[PROCS_MAX];
} common;

typedef struct trainer {
    int number, rank, size;
    procs_shared *s;
    dcomm_comm *comm; /* of which this process is a rank */
    dcomm_buckets *b;
    float grad[PARAMS][LENGTH];
    int ids[PROCS_MAX]; /* number of each rank */
    double in[TOTAL], out[TOTAL];
    float last[TOTAL]; /* the result of the last step */
    int step;          /* that is next */
} trainer;

/* Return element i of a process's gradient of a step. */
static inline float case_gradient(int number, int step, size_t i)
{
    uint64_t seed = ((uint64_t)number << 40) ^ ((uint64_t)step << 20) ^ i;
    return (float)((double)(ranks_random(&seed) >> 40) * 0x1p-24 - 0.5) + 0.1f * (float)number;
}

static inline void case_params(trainer *t, dcomm_bucket_param *params)
{
    static const char *const names[PARAMS] = {"first", "second", "third"};
    for (int p = 0; p < PARAMS; p++) {
        params[p] = (dcomm_bucket_param){
            .name = names[p], .grad = t->grad[p], .count = LENGTH, .dtype = DCOMM_F32};
    }
}

/* Make a bucket of each parameter. */
static inline dcomm_buckets_opts case_opts(const char *codec, const dcomm_feedback_opts *feedback)
{
    return (dcomm_buckets_opts){.bucket_bytes = LENGTH * sizeof(float),
                                .codec = codec,
                                .feedback = feedback,
                                .coll = {.timeout_s = 20}};
}

/* Take note of the ranks of the trainer's communicator. */
static inline void case_seated(trainer *t)
{
    int32_t own = t->number, all[PROCS_MAX];
    t->rank = dcomm_comm_rank(t->comm);
    t->size = dcomm_comm_size(t->comm);
    RANKS_OK(dcomm_allgather(t->comm, &own, all, 1, DCOMM_I32, NULL));
    for (int r = 0; r < t->size; r++) {
        t->ids[r] = all[r];
    }
}

static inline void case_create(trainer *t, const dcomm_buckets_opts *opts)
{
    dcomm_bucket_param params[PARAMS];
    case_params(t, params);
    RANKS_OK(dcomm_buckets_create(t->comm, params, PARAMS, opts, &t->b));
}

/* Compute the gradients of the next step, and mark them ready. */
static inline dcomm_status case_backward(trainer *t)
{
    dcomm_status status = DCOMM_OK;
    for (int p = PARAMS - 1; p >= 0; p--) {
        for (size_t i = 0; i < LENGTH; i++) {
            t->grad[p][i] = case_gradient(t->number, t->step, (size_t)p * LENGTH + i);
        }
        if (status >= 0) {
            status = dcomm_param_mark_ready(t->b, (size_t)p, NULL);
        }
    }
    return status;
}

/* Enter a step that all ranks have completed in the books. `average`: of the result. */
static inline void case_book(trainer *t, bool average)
{
    for (size_t i = 0; i < TOTAL; i++) {
        t->last[i] = t->grad[i / LENGTH][i % LENGTH];
        t->out[i] += (double)t->last[i] * (average ? t->size : 1);
        for (int r = 0; r < t->size; r++) {
            t->in[i] += (double)case_gradient(t->ids[r], t->step, i);
        }
    }
    t->step++;
}

static inline void case_steps(trainer *t, int n)
{
    for (int i = 0; i < n; i++) {
        PROCS_CHECK(case_backward(t) == DCOMM_OK, "step %d: %s", t->step, dcomm_last_error());
        RANKS_OK(dcomm_buckets_wait(t->b));
        case_book(t, true);
    }
}

/* Return what this process still owes of element i. */
static inline double case_owed(const trainer *t, size_t i)
{
    size_t bucket, first;
    RANKS_OK(dcomm_param_get_bucket(t->b, i / LENGTH, &bucket, &first));
    const dcomm_feedback *fb = t->b->layout.buckets[bucket].feedback;
    return fb != NULL ? dcommi_feedback_owed(fb, first + i % LENGTH) : 0;
}

/* Save the state for those who live on. */
static inline void case_leave_state(trainer *t, common *c)
{
    for (size_t i = 0; i < TOTAL; i++) {
        c->owed[t->number][i] = case_owed(t, i);
    }
    RANKS_OK(dcomm_buckets_save(t->b, c->state[t->number], sizeof c->state[0]));
    c->bytes[t->number] = dcomm_buckets_save_bytes(t->b);
}

/* Check that all that went in came out, is held back by a rank, or was lost with `lost` (NULL:
 * nothing was). EF21: the last result is all that the ranks claim. */
static inline void case_balance(trainer *t, bool ef21, const double *lost)
{
    static double held[TOTAL];
    for (size_t i = 0; i < TOTAL; i++) {
        held[i] = case_owed(t, i);
    }
    RANKS_OK(dcomm_allreduce(t->comm, DCOMM_IN_PLACE, held, TOTAL, DCOMM_F64, DCOMM_SUM, NULL));
    for (size_t i = 0; i < TOTAL; i++) {
        const double in = ef21 ? t->size * (double)t->last[i] : t->in[i];
        const double out = ef21 ? 0 : t->out[i], gone = lost != NULL ? lost[i] : 0;
        const double size = fabs(in) + fabs(held[i]) + t->size;
        PROCS_CHECK(fabs(in - out - held[i] - gone) < 2e-5 * size,
                    "element %zu: %g in, %g out, %g held, %g gone", i, in, out, held[i], gone);
    }
}

/* Wait until all n processes have come here. */
static inline void case_meet(const trainer *t, int n, int round)
{
    procs_post(t->s, t->number, round);
    while (!procs_all(t->s, n, round, -1)) {
        procs_nap();
    }
}

/* Go on with the processes that are left: shrink, and move the buckets there. */
static inline void case_shrink(trainer *t)
{
    dcomm_comm *rest = NULL;
    RANKS_OK(dcomm_comm_shrink(t->comm, NULL, 0, &rest));
    dcomm_comm_destroy(&t->comm);
    t->comm = rest;
}

static inline dcomm_buckets_rebind_info case_info(const trainer *t)
{
    dcomm_buckets_rebind_info info;
    RANKS_OK(dcomm_buckets_get_rebind(t->b, &info));
    return info;
}

static inline trainer *case_join(int rank, int n, procs_shared *s)
{
    trainer *t = calloc(1, sizeof *t);
    PROCS_TRUE(t != NULL);
    t->number = rank;
    t->s = s;
    ranks_settle(rank, n, RANKS_LOCAL);
    t->comm = ranks_join(rank, n, s, &(dcomm_comm_opts){.timeout_s = 20});
    case_seated(t);
    return t;
}

/* Make a communicator of the first `old` processes, in which they train. The others wait. */
static inline trainer *case_first_ones(int rank, int n, procs_shared *s, int old, dcomm_comm **all)
{
    trainer *t = case_join(rank, n, s);
    *all = t->comm;
    t->comm = NULL;
    RANKS_OK(dcomm_comm_split(*all, rank < old ? 0 : -1, rank, &t->comm));
    if (t->comm != NULL) {
        case_seated(t);
    }
    return t;
}

/* Come to the communicator of all: with buckets, or to create them. */
static inline void case_come(trainer *t, dcomm_comm *all, const dcomm_buckets_opts *opts)
{
    RANKS_OK(dcomm_comm_destroy(&t->comm));
    t->comm = all;
    case_seated(t);
    if (t->b != NULL) {
        RANKS_OK(dcomm_buckets_rebind(t->b, all));
    } else {
        case_create(t, opts);
    }
    t->step = (int)case_info(t).step;
}

static inline int case_end(trainer *t)
{
    RANKS_OK(dcomm_buckets_destroy(&t->b));
    int code = ranks_leave(&t->comm);
    free(t);
    return code;
}

/* Run n processes; those in `victims` must end by SIGKILL, the others with 0. */
static inline void case_run(int n, procs_fn fn, void *arg, unsigned victims)
{
    int ended[PROCS_MAX];
    procs_run(n, 40, fn, arg, ended);
    for (int r = 0; r < n; r++) {
        const int want = victims >> r & 1 ? 128 + SIGKILL : 0;
        cr_expect(ended[r] == want, "process %d ended with %d, not %d", r, ended[r], want);
    }
}

static inline common *case_common(void)
{
    common *c = mmap(NULL, sizeof *c, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    cr_assert(c != MAP_FAILED);
    return c;
}

#endif
