/* tsan_bucket.c - for ThreadSanitizer: gradients become ready in random orders, in several
 * threads, while others progress and wait for single ones. 1,000 schedules: some watched by a
 * scaler, some after steps that only accumulate, some of shards. */
#define _GNU_SOURCE
#include "bucket_set.h"

enum { STEPS = 25, SETS = 10 };

typedef struct waiter {
    pthread_t thread;
    set *t;
    int step;
    bool sharded; /* test_bucket_shard checks a rank's shard */
    _Atomic int stop;
} waiter;

/* Wait for single parameters while others are still being computed. */
static void *wait_here_and_there(void *arg)
{
    waiter *w = arg;
    uint64_t seed = (uint64_t)w->step;
    while (atomic_load(&w->stop) == 0) {
        size_t i = ranks_random(&seed) % w->t->n;
        dcomm_status status = dcomm_param_wait(w->t->b, i);
        if (status == DCOMM_OK && !w->sharded) {
            set_compare(w->t, i, w->step);
        } else if (status != DCOMM_OK) {
            PROCS_CHECK(status == DCOMM_ERR_INVALID, "%s", dcomm_last_error());
        }
        RANKS_OK(dcomm_buckets_progress(w->t->b));
    }
    return NULL;
}

static int schedules(int rank, int n, procs_shared *s, void *arg)
{
    ranks_settle(rank, n, *(ranks_place *)arg);
    dcomm_comm_opts join = {.context_opts = {.progress_thread = rank % 2 == 0}};
    dcomm_comm *comm = ranks_join(rank, n, s, &join);
    uint64_t seed = (uint64_t)rank * 1000 + (uint64_t)n;
    for (int round = 0; round < SETS; round++) {
        static set t;
        dcomm_buckets_opts opts = {.bucket_bytes = 900,
                                   .sum = round % 3 != 2,
                                   .weighted = round % 3 == 2,
                                   .rebuild = round % 4 == 1,
                                   .sharded = round % 5 == 4,
                                   .registered = round % 2};
        dcomm_scaler *scaler = NULL;
        dcomm_scaler_verdict verdict = {0};
        set_shape(&t, 12, 200, false, (uint64_t)round);
        set_settle(&t, comm, (set_place)(round % 5));
        opts.rebuild = opts.rebuild && !opts.sharded;
        set_make(&t, &opts);
        if (round % 2 == 0) {
            RANKS_OK(dcomm_scaler_create(t.b, &(dcomm_scaler_opts){.leave = true}, &scaler));
        }
        for (int step = 0; step < STEPS; step++) {
            waiter w = {.t = &t, .step = step, .sharded = opts.sharded};
            dcomm_buckets_step begin = {.weight = set_weight(rank, n), .accumulate = true};
            bool waits = step % 3 == 0;
            if (step % 4 == 3) {
                RANKS_OK(dcomm_buckets_begin(t.b, &begin));
                set_backward(&t, step + 1, 1 + step % 3, &seed);
                RANKS_OK(dcomm_buckets_wait(t.b));
            }
            begin.accumulate = false;
            if (opts.weighted) {
                RANKS_OK(dcomm_buckets_begin(t.b, &begin));
            }
            if (waits) {
                PROCS_TRUE(pthread_create(&w.thread, NULL, wait_here_and_there, &w) == 0);
            }
            set_backward(&t, step, 1 + step % 3, &seed);
            if (waits) {
                atomic_store(&w.stop, 1);
                pthread_join(w.thread, NULL);
            }
            RANKS_OK(dcomm_buckets_wait(t.b));
            for (size_t i = 0; i < t.n && !opts.sharded; i++) {
                set_compare(&t, i, step);
            }
            if (scaler != NULL) {
                RANKS_OK(dcomm_scaler_step(scaler, &verdict));
                PROCS_CHECK(!verdict.skip, "%s[%zu] of rank %d is %g", verdict.name, verdict.index,
                            verdict.rank, verdict.value);
            }
        }
        RANKS_OK(dcomm_scaler_destroy(&scaler));
        set_end(&t);
    }
    RANKS_OK(dcomm_comm_destroy(&comm));
    return 0;
}

int main(void)
{
    int ended[PROCS_MAX], bad = 0;
    ranks_place local = RANKS_LOCAL, hosts = RANKS_HOSTS, message = RANKS_MESSAGE;
    bad += procs_run(2, 200, schedules, &local, ended);
    bad += procs_run(4, 200, schedules, &local, ended);
    bad += procs_run(3, 200, schedules, &hosts, ended);
    bad += procs_run(2, 200, schedules, &message, ended);
    return bad > 0;
}
