/* test_bucket_errors.c - errors of gradient buckets: every rank gets one that names the parameter,
 * and the communicator that the buckets were made from stays as it was. */
#define _GNU_SOURCE
#include "bucket_set.h"
#include "placed.h"

static void expect(dcomm_status got, dcomm_status wanted, const char *words)
{
    PROCS_CHECK(got == wanted, "%s, not %s: %s", dcomm_status_name(got), dcomm_status_name(wanted),
                dcomm_last_error());
    PROCS_CHECK(strstr(dcomm_last_error(), words) != NULL, "\"%s\" is not in: %s", words,
                dcomm_last_error());
}

static void good_step(dcomm_comm *comm)
{
    static set t;
    uint64_t seed = 1;
    set_shape(&t, 5, 50, false, 1);
    set_settle(&t, comm, SET_APART);
    set_make(&t, &(dcomm_buckets_opts){.sum = true});
    set_backward(&t, 0, 1, &seed);
    RANKS_OK(dcomm_buckets_wait(t.b));
    set_compare(&t, 4, 0);
    set_end(&t);
}

/* ---- registration ---- */

static int differences(int rank, int n, procs_shared *s, void *arg)
{
    (void)arg;
    enum { CASES = 16 };
    dcomm_comm *comm = join(rank, n, s);
    float grad[40];
    for (int c = 0; c < CASES; c++) {
        bool odd = rank == n - 1;
        dcomm_bucket_param params[] = {
            {.name = "first", .count = 10, .dtype = DCOMM_F32, .grad = grad},
            {.name = "second", .count = 20, .dtype = DCOMM_F32},
            {.name = "third", .count = 8, .dtype = DCOMM_F32}};
        dcomm_buckets_opts opts = {.bucket_bytes = 100};
        dcomm_feedback_opts feedback = {.seed = 0}, apart = {.seed = c == 14 && odd ? 5 : 4};
        dcomm_bucket_rule rule = {"second", "qsgd:bits=8", &apart, false};
        size_t nparams = 3;
        const char *words[CASES] = {
            ("parameter 1 is not the same on all ranks: rank 0 has \"second\" "
             "of 20 f32 with no codec, rank"),
            "has \"other\" of 20",
            "of 20 bf16",
            "with qsgd",
            "has no parameter 2",
            "opts.bucket_bytes is 100 on rank 0 and 200 on rank",
            "opts.weighted is 0 on rank 0 and 1",
            "opts.feedback is 0",
            "opts.unused is 0 on rank 0 and 1",
            "opts.coll.lanes is 0 on rank 0 and 2",
            "opts.coll.chunk_bytes is 0 on rank 0 and 4096",
            "opts.feedback->seed is 0 on rank 0 and 3",
            "opts.feedback->momentum is 0 on rank 0 and 0.5",
            "opts.coll.codec_seed is 0 on rank 0 and 9",
            "feedback (classic, bf16 0, scale 0, seed 5, ",
            "feedback (classic, bf16 0, scale 0, seed 4, "};
        params[1].count = c == 0 && odd ? 21 : 20;
        params[1].name = c == 1 && odd ? "other" : "second";
        params[1].dtype = c == 2 && odd ? DCOMM_BF16 : DCOMM_F32;
        params[1].codec = c == 3 && odd ? "qsgd:bits=4" : NULL;
        nparams -= c == 4 && odd;
        opts.bucket_bytes += c == 5 && odd ? 100 : 0;
        opts.weighted = c == 6 && odd;
        opts.codec = c == 7 || c == 11 || c == 12 ? "qsgd:bits=8" : NULL;
        opts.feedback = (c == 7 && odd) || c == 11 || c == 12 ? &feedback : NULL;
        opts.unused = c == 8 && odd;
        opts.coll.lanes = c == 9 && odd ? 2 : 0;
        opts.coll.chunk_bytes = c == 10 && odd ? 4096 : 0;
        feedback.seed = c == 11 && odd ? 3 : 0;
        feedback.momentum = c == 12 && odd ? 0.5 : 0;
        opts.coll.codec_seed = c == 13 && odd ? 9 : 0;
        opts.rules = &rule;
        opts.nrules = c >= 14;
        rule.feedback = c == 15 && odd ? NULL : &apart;
        dcomm_buckets *b = NULL;
        expect(dcomm_buckets_create(comm, params, nparams, &opts, &b), DCOMM_ERR_MISMATCH,
               words[c]);
        PROCS_TRUE(b == NULL);
    }
    good_step(comm);
    return ranks_leave(&comm);
}

Test(bucket_errors, differences, .timeout = 60)
{
    on(2, RANKS_LOCAL, 25, differences);
    on(4, RANKS_PAIRS, 25, differences);
}

/* One rank's mistake is reported to all ranks. */
static int mistakes(int rank, int n, procs_shared *s, void *arg)
{
    (void)arg;
    enum { CASES = 14 };
    dcomm_comm *comm = join(rank, n, s);
    dcomm_ledger ledger = {0};
    static const char *const words[CASES] = {"parameter 1, \"second\", has dtype 77",
                                             "two parameters are named \"first\"",
                                             "\"second\": ",
                                             "opts.rules is NULL",
                                             "opts.sum and opts.weighted",
                                             "opts.feedback is for",
                                             "opts.coll has a codec",
                                             "params is NULL",
                                             "is of integers (i32)",
                                             "count 9223372036854775807",
                                             "a ledger",
                                             "timeout_s or lanes below 0",
                                             "(\"f*\") has feedback, and no codec",
                                             "(\"f*\") has feedback, and no_feedback is set"};
    for (int c = 0; c < CASES; c++) {
        bool odd = rank == 1;
        dcomm_bucket_param params[] = {{.name = "first", .count = 10, .dtype = DCOMM_F32},
                                       {.name = "second", .count = 20, .dtype = DCOMM_F32}};
        dcomm_buckets_opts opts = {.weighted = c == 8};
        dcomm_feedback_opts feedback = {.seed = 0};
        dcomm_bucket_rule rule = {"f*", c == 12 ? "none" : "sign", &feedback, c == 13};
        dcomm_buckets *b = NULL;
        if (odd) {
            params[1].dtype = c == 0 ? (dcomm_dtype)77 : c == 8 ? DCOMM_I32 : DCOMM_F32;
            params[1].name = c == 1 ? "first" : "second";
            params[1].codec = c == 2 ? "nothing:at=all" : NULL;
            params[1].count = c == 9 ? (size_t)INT64_MAX : 20;
            opts.nrules = c == 3 || c >= 12;
            opts.rules = c >= 12 ? &rule : NULL;
            opts.sum = opts.weighted = c == 4;
            opts.weighted |= c == 8;
            opts.feedback = c == 5 ? &feedback : NULL;
            opts.coll.premul = c == 6;
            opts.coll.codec_ledger = c == 10 ? &ledger : NULL;
            opts.coll.timeout_s = c == 11 ? -1 : 0;
        }
        expect(dcomm_buckets_create(comm, odd && c == 7 ? NULL : params, 2, &opts, &b),
               DCOMM_ERR_INVALID, words[c]);
        PROCS_TRUE(odd == (strstr(dcomm_last_error(), "rank 1: ") == NULL));
    }
    dcomm_buckets *b = NULL;
    expect(dcomm_buckets_create(NULL, NULL, 0, NULL, &b), DCOMM_ERR_INVALID, "comm is NULL");
    expect(dcomm_buckets_create(comm, NULL, 0, NULL, NULL), DCOMM_ERR_INVALID, "b_p is NULL");
    RANKS_OK(dcomm_buckets_create(comm, NULL, 0, NULL, &b)); /* nothing to do is no mistake */
    RANKS_OK(dcomm_buckets_wait(b));
    RANKS_OK(dcomm_buckets_destroy(&b));
    good_step(comm);
    return ranks_leave(&comm);
}

Test(bucket_errors, mistakes, .timeout = 60)
{
    on(3, RANKS_LOCAL, 45, mistakes);
}

/* ---- exchanges of the buckets' own ---- */

/* Rank 1 does not register, but creates the communicator that registering creates. */
static int unregistered(int rank, int n, procs_shared *s, void *arg)
{
    (void)arg;
    dcomm_comm *comm = join(rank, n, s), *own = NULL;
    dcomm_bucket_param param = {.count = 10, .dtype = DCOMM_F32};
    dcomm_buckets_opts opts = {.coll.timeout_s = 0.5};
    dcomm_buckets *b = NULL;
    if (rank == 1) {
        float x = 0;
        RANKS_OK(dcomm_comm_dup(comm, &own));
        PROCS_TRUE(dcomm_recv(own, &x, 1, DCOMM_F32, 0, NULL) == DCOMM_ERR_TIMEOUT);
        RANKS_OK(dcomm_comm_destroy(&own));
    } else {
        expect(dcomm_buckets_create(comm, &param, 1, &opts, &b), DCOMM_ERR_TIMEOUT, "timed out");
    }
    good_step(comm);
    return ranks_leave(&comm);
}

Test(bucket_errors, unregistered, .timeout = 60)
{
    on(3, RANKS_LOCAL, 25, unregistered);
    on(2, RANKS_HOSTS, 25, unregistered);
}

static int calibration(int rank, int n, procs_shared *s, void *arg)
{
    (void)arg;
    dcomm_comm *comm = join(rank, n, s);
    static set t;
    uint64_t seed = 1;
    set_shape(&t, 5, 50, false, 1);
    set_settle(&t, comm, SET_APART);
    set_make(&t, &(dcomm_buckets_opts){.sum = true, .coll.timeout_s = 0.5});
    expect(dcomm_buckets_calibrate(t.b, rank == 1 ? 0 : 2), DCOMM_ERR_INVALID, "rounds is 0");
    PROCS_TRUE((rank == 1) == (strstr(dcomm_last_error(), "rank 1: ") == NULL));
    expect(dcomm_buckets_calibrate(t.b, 2 + rank), DCOMM_ERR_MISMATCH,
           "2 rounds on rank 0 and 3 on rank 1");
    set_backward(&t, 0, 1, &seed);
    RANKS_OK(dcomm_buckets_wait(t.b));
    set_compare(&t, 4, 0);
    RANKS_OK(dcomm_barrier(comm, NULL));
    /* Rank 0 alone. */
    if (rank == 0) {
        expect(dcomm_buckets_calibrate(t.b, 1), DCOMM_ERR_TIMEOUT, "timed out");
    }
    while (dcomm_comm_status(dcomm_buckets_comm(t.b)) == DCOMM_OK) {
        procs_nap();
        dcomm_buckets_progress(t.b);
    }
    dcomm_status status = DCOMM_OK;
    for (size_t i = 0; i < t.n && status == DCOMM_OK; i++) {
        status = dcomm_param_mark_ready(t.b, i, NULL);
    }
    PROCS_TRUE(status == DCOMM_OK || status == DCOMM_ERR_TIMEOUT);
    expect(dcomm_buckets_wait(t.b), DCOMM_ERR_TIMEOUT, "timed out");
    set_end(&t);
    good_step(comm);
    return ranks_leave(&comm);
}

Test(bucket_errors, calibration, .timeout = 60)
{
    on(2, RANKS_LOCAL, 25, calibration);
    on(3, RANKS_HOSTS, 25, calibration);
}

/* ---- steps ---- */

enum { TWICE, NEVER, MANY_NEVER, UNUSED_TWICE, GONE, UNBEGUN, APART, STEP_CASES };

/* Rank 1 errs in the second step. */
static void err(set *t, int what)
{
    bool odd = t->rank == 1;
    dcomm_status status = DCOMM_OK;
    static const char *const words[STEP_CASES] = {
        "parameter 3, \"layer3.weight\", was marked twice in step 1 of rank 1",
        "parameter 2, \"layer2.weight\", was never marked ready in step 1 of rank 1",
        "parameter 2, \"layer2.weight\", and 2 others, were never marked",
        "parameter 4, \"layer4.weight\", was marked twice",
        "destroyed in the middle of a step",
        "step 1 was not begun by dcomm_buckets_begin, which tells the weight of rank 1",
        "is in step "};
    dcomm_buckets_step step = {.weight = 1, .accumulate = odd && what == APART};
    if ((what == UNBEGUN && !odd) || (what == APART && odd)) {
        RANKS_OK(dcomm_buckets_begin(t->b, &step));
    }
    for (size_t i = 0; i < t->n && status == DCOMM_OK; i++) {
        if (odd && (what == NEVER || what == MANY_NEVER) && i >= 2 &&
            i < (what == NEVER ? 3u : 5u)) {
            continue;
        }
        status = dcomm_param_mark_ready(t->b, i, NULL);
        if (odd && what == TWICE && i == 3) {
            status = dcomm_param_mark_ready(t->b, i, NULL);
        }
        if (odd && what == UNUSED_TWICE && i == 4) {
            status = dcomm_param_mark_unused(t->b, i);
        }
        if (odd && what == GONE && i == 4) {
            RANKS_OK(dcomm_buckets_destroy(&t->b));
            return;
        }
    }
    if (status == DCOMM_OK) {
        status = dcomm_buckets_wait(t->b);
    }
    if (what == APART && odd) {
        PROCS_TRUE(status == DCOMM_OK); /* rank 1 sends a step later than the others */
        for (size_t i = 0; i < t->n && status == DCOMM_OK; i++) {
            status = dcomm_param_mark_ready(t->b, i, NULL);
        }
        status = status == DCOMM_OK ? dcomm_buckets_wait(t->b) : status;
    }
    if (what == APART) {
        PROCS_TRUE(status == DCOMM_ERR_MISMATCH || status == DCOMM_ERR_ABORTED);
        status = DCOMM_ERR_ABORTED;
    }
    if (what == MANY_NEVER && odd) {
        PROCS_TRUE(strstr(dcomm_last_error(), ", and 2 others, were") != NULL);
    }
    expect(status, odd && what != APART ? DCOMM_ERR_INVALID : DCOMM_ERR_ABORTED, words[what]);
    PROCS_CHECK(what == APART || odd || strstr(dcomm_last_error(), "rank 1 aborted") != NULL, "%s",
                dcomm_last_error());
    /* The error stays. */
    dcomm_buckets_info info;
    RANKS_OK(dcomm_buckets_get_info(t->b, &info));
    PROCS_TRUE(info.status < 0);
    for (int call = 0; call < 5; call++) {
        status = call == 0   ? dcomm_param_mark_ready(t->b, 0, NULL)
                 : call == 1 ? dcomm_buckets_wait(t->b)
                 : call == 2 ? dcomm_param_wait(t->b, 0)
                 : call == 3 ? dcomm_buckets_progress(t->b)
                             : dcomm_buckets_begin(t->b, &step);
        PROCS_TRUE(status == info.status);
        PROCS_TRUE(strstr(dcomm_last_error(), words[what]) != NULL);
    }
}

static int steps(int rank, int n, procs_shared *s, void *arg)
{
    (void)arg;
    dcomm_comm *comm = join(rank, n, s);
    for (int what = 0; what < STEP_CASES; what++) {
        static set t;
        uint64_t seed = (uint64_t)rank;
        dcomm_buckets_opts opts = {.bucket_bytes = 400, .weighted = what == UNBEGUN};
        dcomm_buckets_step begin = {.weight = 1};
        set_shape(&t, 12, 150, false, 1);
        set_settle(&t, comm, SET_BY_RANK);
        set_make(&t, &opts);
        RANKS_OK(dcomm_buckets_begin(t.b, &begin));
        set_backward(&t, 0, 2, &seed);
        RANKS_OK(dcomm_buckets_wait(t.b));
        RANKS_OK(dcomm_barrier(comm, NULL)); /* else the error may reach a rank in step 0 */
        err(&t, what);
        set_end(&t);
        good_step(comm);
    }
    return ranks_leave(&comm);
}

Test(bucket_errors, steps, .timeout = 60)
{
    on(2, RANKS_LOCAL, 25, steps);
    on(4, RANKS_HOSTS, 25, steps);
}

/* Make mistakes that a step survives. */
static int slips(int rank, int n, procs_shared *s, void *arg)
{
    (void)arg;
    dcomm_comm *comm = join(rank, n, s);
    static set t;
    dcomm_buckets_opts opts = {.bucket_bytes = 400};
    dcomm_buckets_step wrong = {.weight = -1};
    size_t bucket, first;
    set_shape(&t, 12, 150, false, 1);
    set_settle(&t, comm, SET_MIXED);
    set_make(&t, &opts);
    for (int step = 0; step < 2; step++) {
        expect(dcomm_param_wait(t.b, 0), DCOMM_ERR_INVALID, "no step is under way");
        expect(dcomm_buckets_begin(t.b, &wrong), DCOMM_ERR_INVALID, "weight");
        expect(dcomm_buckets_begin(t.b, NULL), DCOMM_ERR_INVALID, "NULL");
        set_compute(&t, 0, step, false);
        expect(dcomm_param_mark_ready(t.b, 0, &t), DCOMM_ERR_UNSUPPORTED,
               "without DCOMM_WITH_CUDA");
        expect(dcomm_param_mark_ready(t.b, 12, NULL), DCOMM_ERR_INVALID,
               "i is 12; there are 12 parameters");
        expect(dcomm_param_mark_ready(NULL, 0, NULL), DCOMM_ERR_INVALID, "b is NULL");
        RANKS_OK(dcomm_group_start());
        expect(dcomm_param_mark_ready(t.b, 0, NULL), DCOMM_ERR_INVALID, "dcomm_group_start");
        RANKS_OK(dcomm_group_end());
        RANKS_OK(dcomm_param_mark_ready(t.b, 0, NULL));
        expect(dcomm_param_wait(t.b, 0), DCOMM_ERR_INVALID,
               "\"layer11.weight\", which is not ready");
        expect(dcomm_param_wait(t.b, 12), DCOMM_ERR_INVALID, "parameter 12 of 12");
        expect(dcomm_buckets_calibrate(t.b, 1), DCOMM_ERR_INVALID, "under way");
        for (size_t i = 1; i < t.n; i++) {
            set_compute(&t, i, step, false);
            RANKS_OK(dcomm_param_mark_ready(t.b, i, NULL));
        }
        RANKS_OK(dcomm_buckets_wait(t.b));
        for (size_t i = 0; i < t.n; i++) {
            set_compare(&t, i, step);
        }
    }
    expect(dcomm_buckets_calibrate(t.b, 0), DCOMM_ERR_INVALID, "rounds is 0");
    expect(dcomm_buckets_trace(t.b, "x"), DCOMM_ERR_INVALID, "trace_steps is 0");
    expect(dcomm_param_get_bucket(t.b, 12, &bucket, &first), DCOMM_ERR_INVALID, "no parameter 12");
    PROCS_TRUE(dcomm_param_grad(t.b, 12) == NULL && dcomm_param_grad(NULL, 0) == NULL);
    set_end(&t);
    return ranks_leave(&comm);
}

Test(bucket_errors, slips, .timeout = 30)
{
    on(2, RANKS_LOCAL, 25, slips);
}

/* A rank dies in the middle of a step. */
static int death(int rank, int n, procs_shared *s, void *arg)
{
    (void)arg;
    dcomm_comm *comm = join(rank, n, s);
    static set t;
    set_shape(&t, 12, 5000, false, 1);
    set_settle(&t, comm, SET_INSIDE);
    set_make(&t, &(dcomm_buckets_opts){.bucket_bytes = 400});
    dcomm_status status = DCOMM_OK;
    for (size_t i = t.n; i-- > 0 && status == DCOMM_OK;) {
        if (rank == 1 && i == 4) {
            _exit(0);
        }
        status = dcomm_param_mark_ready(t.b, i, NULL);
    }
    status = status == DCOMM_OK ? dcomm_buckets_wait(t.b) : status;
    expect(status, DCOMM_ERR_PEER, "rank 1");
    set_end(&t);
    /* The buckets' communicator has returned the error; the caller's own may have noticed it
     * too. */
    status = dcomm_comm_destroy(&comm);
    PROCS_TRUE(status == DCOMM_OK || status == DCOMM_ERR_PEER);
    return 0;
}

Test(bucket_errors, death, .timeout = 60)
{
    on(3, RANKS_LOCAL, 25, death);
}
