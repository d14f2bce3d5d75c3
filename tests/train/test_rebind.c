/* test_rebind.c - buckets go on when a rank dies: averages follow the new number of ranks, and all
 * that went into error feedback comes out, is held back, or is reported as lost. */
#define _GNU_SOURCE
#include "rebind_case.h"

#include <pthread.h>

typedef struct course {
    const char *codec;
    dcomm_feedback_opts feedback;
    int n, victim, marks; /* the victim marks so many parameters before it dies, not all: others may
                           * complete the step then */
    bool inherits;
    common *c;
} course;

static void die(void)
{
    kill(getpid(), SIGKILL);
}

static int lose_one(int rank, int n, procs_shared *s, void *arg)
{
    const course *k = arg;
    const bool ef21 = k->feedback.variant == DCOMM_FEEDBACK_EF21;
    trainer *t = case_join(rank, n, s);
    const dcomm_buckets_opts opts = case_opts(k->codec, k->codec != NULL ? &k->feedback : NULL);
    case_create(t, &opts);
    case_steps(t, 4);
    if (rank == k->victim) {
        case_leave_state(t, k->c);
    }
    case_meet(t, n, 1);
    if (rank == k->victim) {
        for (int p = PARAMS - 1; p >= PARAMS - k->marks; p--) {
            RANKS_OK(dcomm_param_mark_ready(t->b, (size_t)p, NULL));
        }
        die();
    }
    dcomm_status status = case_backward(t);
    status = status >= 0 ? dcomm_buckets_wait(t->b) : status;
    PROCS_CHECK(status == DCOMM_ERR_PEER, "%s: %s", dcomm_status_name(status), dcomm_last_error());
    case_shrink(t);
    case_seated(t);
    if (k->inherits && t->rank == 0) {
        RANKS_OK(dcomm_buckets_inherit(t->b, k->c->state[k->victim], k->c->bytes[k->victim]));
    }
    const double begun = procs_now();
    RANKS_OK(dcomm_buckets_rebind(t->b, t->comm));
    PROCS_CHECK(procs_now() - begun < 2, "rebind took %g s", procs_now() - begun);
    const dcomm_buckets_rebind_info info = case_info(t);
    PROCS_CHECK(info.step == 4 && !info.undone && info.source == 0, "step %d", (int)info.step);
    PROCS_TRUE(info.carried == n - 1 && info.joined == 0 && info.left == 1);
    PROCS_TRUE(info.missing == (k->codec != NULL && !k->inherits));
    if (!k->feedback.in_place) {
        PROCS_CHECK(info.reset == 0, "%zu residuals were reset", info.reset);
        PROCS_TRUE(info.lost_norm == 0 || ef21);
    }
    case_steps(t, 4);
    if (!k->feedback.in_place) {
        case_balance(t, ef21, k->inherits || ef21 ? NULL : k->c->owed[k->victim]);
    }
    return case_end(t);
}

static void lose(course k)
{
    k.c = case_common();
    case_run(k.n, lose_one, &k, 1u << k.victim);
    munmap(k.c, sizeof *k.c);
}

Test(rebind, exact, .timeout = 60)
{
    lose((course){.n = 3, .victim = 1, .marks = 0});
    lose((course){.n = 4, .victim = 0, .marks = 2});
    lose((course){.n = 2, .victim = 0, .marks = 1});
}

Test(rebind, residuals, .timeout = 60)
{
    lose((course){.n = 4, .victim = 2, .marks = 1, .codec = "qsgd:bits=8"});
    lose((course){.n = 3, .victim = 0, .marks = 2, .codec = "topk:k=0.1"});
    lose((course){.n = 3, .victim = 2, .marks = 0, .codec = "sign", .inherits = true});
    lose((course){.n = 3, .victim = 1, .marks = 2, .codec = "powersgd:rank=2"});
    lose((course){.n = 4, .victim = 3, .marks = 1, .codec = "topk:k=0.1", .inherits = true});
    lose((course){.n = 3,
                  .victim = 1,
                  .marks = 1,
                  .codec = "qsgd:bits=8",
                  .feedback = {.variant = DCOMM_FEEDBACK_EF21}});
    lose((course){.n = 3,
                  .victim = 1,
                  .marks = 1,
                  .codec = "qsgd:bits=8",
                  .feedback = {.variant = DCOMM_FEEDBACK_EF21},
                  .inherits = true});
    lose((course){
        .n = 3, .victim = 1, .marks = 1, .codec = "qsgd:bits=8", .feedback = {.in_place = true}});
}

/* ---- ranks that stand at different steps ---- */

/* Process 0 completes a step, process 1 all of it but the wait, process 2 dies. */
static int uneven(int rank, int n, procs_shared *s, void *arg)
{
    const course *k = arg;
    trainer *t = case_join(rank, n, s);
    const dcomm_buckets_opts opts = case_opts(k->codec, &k->feedback);
    case_create(t, &opts);
    case_steps(t, 3);
    if (rank == k->victim) {
        case_leave_state(t, k->c);
    }
    RANKS_OK(case_backward(t));
    if (rank == 1) {
        for (size_t p = 0; p < PARAMS; p++) {
            RANKS_OK(dcomm_param_wait(t->b, p));
        }
    } else {
        RANKS_OK(dcomm_buckets_wait(t->b));
    }
    if (rank == 0) { /* it is in the next step already */
        t->step++;
        RANKS_OK(case_backward(t));
        for (double until = procs_now() + 0.05; procs_now() < until;) {
            RANKS_OK(dcomm_buckets_progress(t->b));
        }
        t->step--;
    }
    case_meet(t, n, 1);
    if (rank == k->victim) {
        die();
    }
    case_shrink(t);
    case_seated(t);
    RANKS_OK(dcomm_buckets_rebind(t->b, t->comm));
    const dcomm_buckets_rebind_info info = case_info(t);
    PROCS_TRUE(info.step == 3 && info.undone == (rank == 0) && info.source == 1);
    PROCS_CHECK(info.reset == (k->feedback.in_place ? PARAMS * 2 : 0), "%zu are reset", info.reset);
    const bool ef21 = k->feedback.variant == DCOMM_FEEDBACK_EF21;
    PROCS_TRUE((info.lost_norm > 0) == (k->feedback.in_place || ef21));
    case_steps(t, 3);
    if (!k->feedback.in_place) {
        case_balance(t, ef21, ef21 ? NULL : k->c->owed[k->victim]);
    }
    return case_end(t);
}

static void run_uneven(course k)
{
    k.c = case_common();
    k.victim = 2;
    case_run(3, uneven, &k, 1u << k.victim);
    munmap(k.c, sizeof *k.c);
}

Test(rebind, uneven, .timeout = 60)
{
    run_uneven((course){.codec = "qsgd:bits=8"});
    run_uneven((course){.codec = "topk:k=0.1"});
    run_uneven((course){.codec = "powersgd:rank=2"});
    run_uneven((course){.codec = "qsgd:bits=8", .feedback = {.variant = DCOMM_FEEDBACK_EF21}});
    run_uneven((course){.codec = "topk:k=0.1", .feedback = {.in_place = true}});
}

/* ---- another death while the buckets move ---- */

static void *die_later(void *nanoseconds)
{
    nanosleep(&(struct timespec){.tv_nsec = (long)(intptr_t)nanoseconds}, NULL);
    die();
    return NULL;
}

typedef struct deaths {
    const char *codec;
    unsigned victims; /* the first dies in the step, the second while the others recover */
    int first;
    uint64_t seed;
} deaths;

/* Move to the ranks that are left, until that succeeds. */
static void recover(trainer *t)
{
    for (int i = 0;; i++) {
        PROCS_TRUE(i < 5);
        case_shrink(t);
        if (dcomm_buckets_rebind(t->b, t->comm) == DCOMM_OK) {
            t->step = (int)case_info(t).step;
            PROCS_TRUE(case_info(t).reset == 0);
            return;
        }
    }
}

/* Compare the result with the average of the ranks that are there, or among them. */
static bool right(trainer *t, const deaths *d)
{
    static struct {
        int64_t number;
        uint64_t hash;
    } own, all[PROCS_MAX];
    own.number = t->number;
    own.hash = ranks_hash(t->grad, sizeof t->grad);
    t->size = dcomm_comm_size(t->comm);
    if (dcomm_allgather(t->comm, &own, all, sizeof own, DCOMM_U8, NULL) < 0) {
        return false;
    }
    for (size_t i = 0; i < TOTAL; i++) {
        double sum = 0;
        for (int r = 0; r < t->size; r++) {
            PROCS_CHECK(all[r].hash == own.hash, "step %d: ranks differ", t->step);
            sum += (double)case_gradient((int)all[r].number, t->step, i);
        }
        const double got = (double)t->grad[i / LENGTH][i % LENGTH];
        PROCS_CHECK(d->codec != NULL || fabs(got - sum / t->size) < 1e-5,
                    "step %d of %d ranks: %g, not %g", t->step, t->size, got, sum / t->size);
    }
    return true;
}

static int die_twice(int rank, int n, procs_shared *s, void *arg)
{
    const deaths *d = arg;
    uint64_t random = d->seed;
    trainer *t = case_join(rank, n, s);
    const dcomm_feedback_opts feedback = {0};
    const dcomm_buckets_opts opts = case_opts(d->codec, d->codec != NULL ? &feedback : NULL);
    case_create(t, &opts);
    case_steps(t, 2);
    case_meet(t, n, 1);
    if (d->victims >> rank & 1) {
        const long after = rank == d->first ? 500000 : 0;
        pthread_t thread;
        PROCS_TRUE(pthread_create(&thread, NULL, die_later,
                                  (void *)(intptr_t)(after > 0 ? after
                                                               : (long)(ranks_random(&random) %
                                                                        60000000))) == 0);
    }
    while (t->step < 40 || dcomm_comm_size(t->comm) > n - 2) {
        dcomm_status status = case_backward(t);
        status = status >= 0 ? dcomm_buckets_wait(t->b) : status;
        uint64_t good = status >= 0 && right(t, d);
        RANKS_OK(dcomm_comm_agree(t->comm, &good, NULL, 0, NULL));
        if (good == 0) {
            recover(t);
        } else {
            t->step++;
        }
    }
    return case_end(t);
}

Test(rebind, second_death, .timeout = 100)
{
    uint64_t seed = 7;
    for (int i = 0; i < (test_full() ? 100 : 8); i++) {
        const int first = (int)(ranks_random(&seed) % 4);
        const int second = (first + 1 + (int)(ranks_random(&seed) % 3)) % 4;
        deaths d = {i % 2 == 0 ? NULL : "topk:k=0.1", 1u << first | 1u << second, first,
                    ranks_random(&seed)};
        case_run(4, die_twice, &d, d.victims);
    }
}
