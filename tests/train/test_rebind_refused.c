/* test_rebind_refused.c - bad arguments, scalers that differ, states that would count twice, ranks
 * that join with other options: an error on all ranks, with a sentence, and the buckets stay as
 * they were. */
#define _GNU_SOURCE
#include "rebind_case.h"

/* Move to a communicator of the same ranks, which must fail on all of them with these words; then
 * the buckets still work where they were. */
static void move_refused(trainer *t, dcomm_status want, const char *words)
{
    dcomm_comm *next;
    RANKS_OK(dcomm_comm_dup(t->comm, &next));
    ranks_refused(dcomm_buckets_rebind(t->b, next), want, words);
    RANKS_OK(dcomm_comm_destroy(&next));
    PROCS_TRUE(case_info(t).source == -1);
    case_steps(t, 1);
}

static int refused(int rank, int n, procs_shared *s, void *arg)
{
    common *c = arg;
    const dcomm_feedback_opts feedback = {0};
    const dcomm_buckets_opts opts = case_opts("topk:k=0.1", &feedback);
    trainer *t = case_join(rank, n, s);
    const int other = 1 - rank;
    case_create(t, &opts);
    ranks_refused(dcomm_buckets_rebind(NULL, t->comm), DCOMM_ERR_INVALID, "b is NULL");
    ranks_refused(dcomm_buckets_rebind(t->b, NULL), DCOMM_ERR_INVALID, "comm is NULL");
    ranks_refused(dcomm_buckets_get_rebind(t->b, NULL), DCOMM_ERR_INVALID, "info is NULL");
    ranks_refused(dcomm_buckets_inherit(t->b, NULL, 8), DCOMM_ERR_INVALID, "state is NULL");
    ranks_refused(dcomm_buckets_inherit(t->b, "not a state", 11), DCOMM_ERR_CORRUPT, "too short");
    case_leave_state(t, c);
    case_meet(t, n, 1);
    ranks_refused(dcomm_buckets_inherit(t->b, c->state[rank], c->bytes[rank]), DCOMM_ERR_INVALID,
                  rank == 0 ? "is of rank 0 of 2, and this was rank 0 of 2"
                            : "is of rank 1 of 2, and this was rank 1 of 2");
    if (rank == 0) {
        RANKS_OK(dcomm_buckets_inherit(t->b, c->state[other], c->bytes[other]));
    }
    move_refused(t, DCOMM_ERR_INVALID,
                 "rank 0 inherits from the former rank 1, and that is now rank 1");
    dcomm_scaler *scaler = NULL; /* on one rank alone, behind its back */
    if (rank == 1) {
        t->b->watched = true;
    }
    dcomm_comm *next;
    RANKS_OK(dcomm_comm_dup(t->comm, &next));
    ranks_refused(dcomm_buckets_rebind(t->b, next), DCOMM_ERR_MISMATCH,
                  "rank 0 has no scaler, and rank 1 has one");
    t->b->watched = false;
    RANKS_OK(dcomm_comm_destroy(&next));
    RANKS_OK(dcomm_scaler_create(t->b, NULL, &scaler));
    t->b->scale = rank == 0 ? 2 : 4;
    RANKS_OK(dcomm_comm_dup(t->comm, &next));
    ranks_refused(dcomm_buckets_rebind(t->b, next), DCOMM_ERR_MISMATCH,
                  "the scaler is at 2 after 0 good steps on rank 0, and at 4 after 0 on rank 1");
    RANKS_OK(dcomm_comm_destroy(&next));
    RANKS_OK(dcomm_scaler_destroy(&scaler));
    case_steps(t, 1);
    return case_end(t);
}

/* Rank 2 of 3 leaves on purpose: its state is inherited twice, then when it is stale, then once. */
static int leaves(int rank, int n, procs_shared *s, void *arg)
{
    common *c = arg;
    const dcomm_feedback_opts feedback = {0};
    const dcomm_buckets_opts opts = case_opts("qsgd:bits=8", &feedback);
    dcomm_ledger ledger = {0};
    dcomm_bucket_info bucket;
    trainer *t = case_join(rank, n, s);
    case_create(t, &opts);
    case_steps(t, 2);
    if (rank == 1) {
        case_leave_state(t, c); /* stale, for the second attempt */
        memcpy(c->state[4], c->state[1], sizeof c->state[1]);
    }
    if (rank == 2) {
        case_leave_state(t, c);
        memcpy(c->state[3], c->state[2], sizeof c->state[2]);
    }
    case_steps(t, 1);
    if (rank == 2) {
        case_leave_state(t, c);
    }
    case_meet(t, n, 1);
    if (rank == 2) {
        dcomm_buckets_destroy(&t->b);
        dcomm_comm_destroy(&t->comm);
        return 0;
    }
    dcomm_comm *rest = NULL;
    RANKS_OK(dcomm_comm_shrink(t->comm, (int[]){2}, 1, &rest));
    RANKS_OK(dcomm_buckets_inherit(t->b, c->state[2], c->bytes[2]));
    ranks_refused(dcomm_buckets_rebind(t->b, rest), DCOMM_ERR_INVALID,
                  "rank 1 inherits from the former rank 2, and so does rank 0");
    if (rank == 1) {
        RANKS_OK(dcomm_buckets_inherit(t->b, c->state[3], c->bytes[2]));
    }
    ranks_refused(dcomm_buckets_rebind(t->b, rest), DCOMM_ERR_INVALID,
                  "the state of the former rank 2 was saved before step 2, and the ranks go on at "
                  "step 3; what that rank has sent in between would count twice");
    if (rank == 1) {
        RANKS_OK(dcomm_buckets_inherit(t->b, c->state[2], c->bytes[2]));
    }
    RANKS_OK(dcomm_bucket_get_info(t->b, 0, &bucket));
    RANKS_OK(dcomm_feedback_set_ledger(bucket.feedback, &ledger));
    RANKS_OK(dcomm_buckets_rebind(t->b, rest));
    dcomm_comm_destroy(&t->comm);
    t->comm = rest;
    PROCS_TRUE(ledger.missing == 0 && ledger.carried > 0 && ledger.lost == 0);
    const dcomm_buckets_rebind_info info = case_info(t);
    PROCS_TRUE(info.step == 3 && info.left == 1 && info.missing == 0 && info.reset == 0);
    PROCS_TRUE(ledger.carried <= info.carried_norm);
    case_seated(t);
    case_steps(t, 2);
    case_balance(t, false, NULL);
    RANKS_OK(dcomm_feedback_set_ledger(bucket.feedback, NULL));
    return case_end(t);
}

/* A rank that joins with other options is an error on all; the buckets work on where they were. */
static int joins_badly(int rank, int n, procs_shared *s, void *arg)
{
    dcomm_buckets_opts opts = case_opts(NULL, NULL);
    dcomm_bucket_param params[PARAMS];
    dcomm_comm *all;
    (void)arg;
    trainer *t = case_first_ones(rank, n, s, 2, &all);
    if (t->b == NULL && rank < 2) {
        case_create(t, &opts);
        case_steps(t, 1);
        ranks_refused(dcomm_buckets_rebind(t->b, all), DCOMM_ERR_MISMATCH,
                      "opts.bucket_bytes is 10000 on rank 0 and 77 on rank 2");
        case_steps(t, 1);
    } else {
        case_params(t, params);
        opts.bucket_bytes = opts.first_bytes = 77;
        ranks_refused(dcomm_buckets_create(all, params, PARAMS, &opts, &t->b), DCOMM_ERR_MISMATCH,
                      "opts.bucket_bytes is 10000 on rank 0 and 77 on rank 2");
        opts = case_opts(NULL, NULL);
    }
    case_come(t, all, &opts);
    case_steps(t, 1);
    PROCS_TRUE(t->step == 3);
    return case_end(t);
}

Test(rebind_refused, refused, .timeout = 60)
{
    common *c = case_common();
    case_run(2, refused, c, 0);
    case_run(3, leaves, c, 0);
    case_run(3, joins_badly, NULL, 0);
    munmap(c, sizeof *c);
}
