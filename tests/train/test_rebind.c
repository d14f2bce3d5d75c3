/* test_rebind.c - buckets go on when a rank dies: averages follow the new number of ranks, and all
 * that went into error feedback comes out, is held back, or is reported as lost. */
#define _GNU_SOURCE
#include "rebind_case.h"

typedef struct course {
    const char *codec;
    dcomm_feedback_opts feedback;
    int n, victim, marks; /* the victim marks so many parameters before it dies */
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
        for (int p = PARAMS - 1; p >= PARAMS - k->marks; p--) {
            RANKS_OK(dcomm_param_mark_ready(t->b, (size_t)p, NULL));
        }
        procs_post(s, rank, 1);
        die();
    }
    dcomm_status status = case_backward(t);
    status = status >= 0 ? dcomm_buckets_wait(t->b) : status;
    PROCS_TRUE(status == DCOMM_ERR_PEER);
    case_shrink(t);
    case_seated(t);
    if (k->inherits && t->rank == 0) {
        RANKS_OK(dcomm_buckets_inherit(t->b, k->c->state[k->victim], k->c->bytes[k->victim]));
    }
    const double begun = procs_now();
    RANKS_OK(dcomm_buckets_rebind(t->b, t->comm));
    PROCS_CHECK(procs_now() - begun < 2, "rebind took %g s", procs_now() - begun);
    const dcomm_buckets_rebind_info info = case_info(t);
    PROCS_CHECK(info.step == 4 && !info.undone && info.source == 0, "step %d",
                (int)info.step);
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
    lose((course){.n = 3, .victim = 0, .marks = 3, .codec = "topk:k=0.1"});
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
    lose((course){.n = 3,
                  .victim = 1,
                  .marks = 1,
                  .codec = "qsgd:bits=8",
                  .feedback = {.in_place = true}});
}
