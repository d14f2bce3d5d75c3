/* test_rebind_join.c - ranks join those whose buckets move: they get step, order and scaler.
 * Shards, gradients inside buckets, and a scaler that stands differently. */
#define _GNU_SOURCE
#include "rebind_case.h"

/* ---- a communicator that grows ---- */

static int grows(int rank, int n, procs_shared *s, void *arg)
{
    const char *codec = arg;
    const bool ef21 = codec != NULL && codec[0] == '!';
    const dcomm_feedback_opts feedback = {.variant =
                                              ef21 ? DCOMM_FEEDBACK_EF21 : DCOMM_FEEDBACK_CLASSIC};
    dcomm_buckets_opts opts =
        case_opts(codec != NULL ? codec + ef21 : NULL, codec != NULL ? &feedback : NULL);
    opts.rebuild = true;
    dcomm_comm *all;
    trainer *t = case_first_ones(rank, n, s, 2, &all);
    if (t->comm != NULL) {
        case_create(t, &opts);
        for (int i = 0; i < 3; i++) { /* in an order that rebuilds them */
            static const size_t order[PARAMS] = {1, 2, 0};
            for (size_t p = 0; p < PARAMS; p++) {
                for (size_t j = 0; j < LENGTH; j++) {
                    t->grad[order[p]][j] = case_gradient(rank, t->step, order[p] * LENGTH + j);
                }
                RANKS_OK(dcomm_param_mark_ready(t->b, order[p], NULL));
            }
            RANKS_OK(dcomm_buckets_wait(t->b));
            case_book(t, true);
        }
    }
    case_come(t, all, &opts);
    const dcomm_buckets_rebind_info info = case_info(t);
    PROCS_TRUE(info.step == 3 && info.source == 0 && !info.undone && info.carried == 2);
    PROCS_TRUE(info.joined == n - 2 && info.left == 0 && info.missing == 0 && info.reset == 0);
    PROCS_TRUE(info.lost_norm < 1e-5 && (info.carried_norm > 0) == (codec != NULL));
    dcomm_buckets_info facts;
    RANKS_OK(dcomm_buckets_get_info(t->b, &facts));
    PROCS_TRUE(facts.steps == 3 && facts.sent_steps == 3 && facts.built == 2);
    size_t bucket, first;
    RANKS_OK(dcomm_param_get_bucket(t->b, 1, &bucket, &first));
    PROCS_CHECK(bucket == 0, "parameter 1 is in bucket %zu", bucket);
    /* The books of the newcomers begin with those of the others. */
    RANKS_OK(dcomm_broadcast(all, t->in, t->in, TOTAL, DCOMM_F64, 0, NULL));
    RANKS_OK(dcomm_broadcast(all, t->out, t->out, TOTAL, DCOMM_F64, 0, NULL));
    case_steps(t, 3);
    case_balance(t, ef21, NULL);
    return case_end(t);
}

/* A newcomer by dcomm_comm_grow takes the place of one that has died. */
static int comes_back(int rank, int n, procs_shared *s, void *arg)
{
    const dcomm_feedback_opts feedback = {0};
    const dcomm_buckets_opts opts = case_opts("topk:k=0.1", &feedback);
    trainer *t = calloc(1, sizeof *t);
    common *c = arg;
    dcomm_id id;
    size_t len;
    PROCS_TRUE(t != NULL);
    t->number = rank;
    t->s = s;
    ranks_settle(rank, n, RANKS_LOCAL);
    if (rank == n - 1) {
        dcomm_comm_opts joins = {.boot = DCOMM_BOOT_JOIN, .timeout_s = 20};
        memcpy(&joins.id, procs_take(s, 1, &len), sizeof id);
        RANKS_OK(dcomm_comm_create(&joins, &t->comm));
        case_seated(t);
        case_create(t, &opts);
    } else {
        t->comm = ranks_join(rank, n - 1, s, &(dcomm_comm_opts){.timeout_s = 20});
        case_seated(t);
        case_create(t, &opts);
        case_steps(t, 2);
        if (rank == 2) {
            case_leave_state(t, c);
        }
        procs_post(s, rank, 1);
        while (!procs_all(s, n - 1, 1, -1)) {
            procs_nap();
        }
        if (rank == 2) {
            kill(getpid(), SIGKILL);
        }
        PROCS_TRUE(case_backward(t) < 0 || dcomm_buckets_wait(t->b) < 0);
        dcomm_comm *more = NULL;
        case_shrink(t);
        memset(&id, 0, sizeof id);
        if (rank == 0) {
            RANKS_OK(dcomm_id_create(&id));
            procs_give(s, 1, &id, sizeof id);
        }
        RANKS_OK(dcomm_comm_grow(t->comm, &id, 1, 20, &more));
        RANKS_OK(dcomm_comm_destroy(&t->comm));
        t->comm = more;
        case_seated(t);
        RANKS_OK(dcomm_buckets_rebind(t->b, t->comm));
    }
    const dcomm_buckets_rebind_info info = case_info(t);
    PROCS_TRUE(info.step == 2 && info.source == 0 && info.carried == 2 && info.joined == 1);
    PROCS_TRUE(info.left == 1 && info.missing == 1 && info.reset == 0);
    t->step = (int)info.step;
    RANKS_OK(dcomm_broadcast(t->comm, t->in, t->in, TOTAL, DCOMM_F64, 0, NULL));
    RANKS_OK(dcomm_broadcast(t->comm, t->out, t->out, TOTAL, DCOMM_F64, 0, NULL));
    case_steps(t, 2);
    case_balance(t, false, c->owed[2]);
    return case_end(t);
}

Test(rebind_join, comes_back, .timeout = 60)
{
    common *c = case_common();
    case_run(4, comes_back, c, 1u << 2);
    munmap(c, sizeof *c);
}

Test(rebind_join, grows, .timeout = 60)
{
    static const char *const codecs[] = {NULL, "qsgd:bits=8", "topk:k=0.1", "powersgd:rank=2",
                                         "!qsgd:bits=8"};
    for (size_t i = 0; i < sizeof codecs / sizeof *codecs; i++) {
        case_run(i % 2 == 0 ? 3 : 4, grows, (void *)(uintptr_t)codecs[i], 0);
    }
}

/* ---- a scaler ---- */

static void judge(trainer *t, dcomm_scaler *scaler, double scale)
{
    dcomm_scaler_verdict v;
    PROCS_CHECK(dcomm_scaler_scale(scaler) == scale, "the scale is %g, not %g",
                dcomm_scaler_scale(scaler), scale);
    RANKS_OK(case_backward(t));
    RANKS_OK(dcomm_buckets_wait(t->b));
    RANKS_OK(dcomm_scaler_step(scaler, &v));
    PROCS_TRUE(!v.skip && v.scale == scale);
    t->step++;
}

/* Process 0 has judged a step that process 1 has not. Process 2 joins. */
static int scales(int rank, int n, procs_shared *s, void *arg)
{
    const dcomm_scaler_opts wanted = {.scale = 8, .interval = 2};
    const dcomm_feedback_opts feedback = {0};
    const dcomm_buckets_opts opts = case_opts("topk:k=0.1", &feedback);
    const bool forgets = arg != NULL;
    dcomm_comm *all;
    dcomm_scaler *scaler = NULL;
    trainer *t = case_first_ones(rank, n, s, 2, &all);
    if (t->comm != NULL) {
        case_create(t, &opts);
        RANKS_OK(dcomm_scaler_create(t->b, &wanted, &scaler));
        judge(t, scaler, 8);
        judge(t, scaler, 8);
        judge(t, scaler, 16);
        if (rank == 0) {
            judge(t, scaler, 16);
            PROCS_TRUE(dcomm_scaler_scale(scaler) == 32);
        } else {
            RANKS_OK(case_backward(t));
            RANKS_OK(dcomm_buckets_wait(t->b));
        }
    }
    case_come(t, all, &opts);
    const dcomm_buckets_rebind_info info = case_info(t);
    PROCS_TRUE(info.step == 3 && info.source == 1 && info.undone == (rank == 0) && info.reset == 0);
    if (forgets) {
        dcomm_status status = case_backward(t);
        status = status >= 0 ? dcomm_buckets_wait(t->b) : status;
        ranks_refused(status, rank == 2 ? DCOMM_ERR_INVALID : DCOMM_ERR_ABORTED,
                      "rank 2 has no scaler");
        RANKS_OK(dcomm_scaler_destroy(&scaler));
        dcomm_buckets_destroy(&t->b);
        dcomm_comm_destroy(&t->comm);
        return 0;
    }
    if (rank == 2) {
        dcomm_scaler_opts other = wanted;
        other.growth = 4;
        ranks_refused(dcomm_scaler_create(t->b, &other, &scaler), DCOMM_ERR_MISMATCH,
                      "opts.growth is 4, and 2 on the ranks that this one has joined");
        RANKS_OK(dcomm_scaler_create(t->b, &wanted, &scaler));
    }
    dcomm_scaler_info facts;
    RANKS_OK(dcomm_scaler_get_info(scaler, &facts));
    PROCS_TRUE(facts.scale == 16 && facts.good == 1 && facts.steps == 3 && facts.skipped == 0);
    judge(t, scaler, 16);
    judge(t, scaler, 32);
    RANKS_OK(dcomm_scaler_destroy(&scaler));
    return case_end(t);
}

Test(rebind_join, scaler, .timeout = 60)
{
    case_run(3, scales, NULL, 0);
    case_run(3, scales, "forgets", 0);
}

/* ---- shards ---- */

static int shards(int rank, int n, procs_shared *s, void *arg)
{
    static float values[PARAMS][LENGTH];
    dcomm_buckets_opts opts = {.sharded = true, .coll = {.timeout_s = 20}};
    dcomm_bucket_param params[PARAMS];
    trainer *t = case_join(rank, n, s);
    (void)arg;
    case_params(t, params);
    for (int p = 0; p < PARAMS; p++) {
        params[p].value = values[p];
    }
    RANKS_OK(dcomm_buckets_create(t->comm, params, PARAMS, &opts, &t->b));
    for (; t->step < 2; t->step++) {
        RANKS_OK(case_backward(t));
        RANKS_OK(dcomm_buckets_wait(t->b));
    }
    case_meet(t, n, 1);
    if (rank == 1) {
        kill(getpid(), SIGKILL);
    }
    dcomm_status status = case_backward(t);
    status = status >= 0 ? dcomm_buckets_wait(t->b) : status;
    PROCS_TRUE(status == DCOMM_ERR_PEER);
    case_shrink(t);
    case_seated(t);
    RANKS_OK(dcomm_buckets_rebind(t->b, t->comm));
    RANKS_OK(case_backward(t));
    RANKS_OK(dcomm_buckets_wait(t->b));
    size_t owned = 0;
    for (size_t p = 0; p < PARAMS; p++) {
        size_t first, count;
        RANKS_OK(dcomm_param_get_owned(t->b, p, &first, &count));
        memcpy(&values[p][first], &t->grad[p][first], count * sizeof(float));
        owned += count;
    }
    PROCS_TRUE(owned > 0);
    RANKS_OK(dcomm_buckets_gather(t->b));
    for (size_t i = 0; i < TOTAL; i++) {
        double sum = 0;
        for (int r = 0; r < t->size; r++) {
            sum += (double)case_gradient(t->ids[r], t->step, i) / t->size;
        }
        PROCS_CHECK(fabs((double)values[i / LENGTH][i % LENGTH] - sum) < 1e-5, "element %zu", i);
    }
    return case_end(t);
}

Test(rebind_join, shards, .timeout = 60)
{
    case_run(4, shards, NULL, 1u << 1);
}

/* ---- gradients inside buckets ---- */

static int inside(int rank, int n, procs_shared *s, void *arg)
{
    const dcomm_buckets_opts opts = {.registered = arg != NULL, .coll = {.timeout_s = 20}};
    dcomm_bucket_param params[PARAMS] = {{0}};
    trainer *t = case_join(rank, n, s);
    dcomm_comm *next;
    float *at[PARAMS];
    for (int p = 0; p < PARAMS; p++) {
        params[p] = (dcomm_bucket_param){.count = LENGTH, .dtype = DCOMM_F32};
    }
    RANKS_OK(dcomm_buckets_create(t->comm, params, PARAMS, &opts, &t->b));
    for (size_t p = 0; p < PARAMS; p++) {
        at[p] = dcomm_param_grad(t->b, p);
        for (size_t i = 0; i < LENGTH; i++) {
            at[p][i] = case_gradient(rank, 0, p * LENGTH + i);
        }
    }
    RANKS_OK(dcomm_comm_dup(t->comm, &next));
    RANKS_OK(dcomm_comm_destroy(&t->comm));
    t->comm = next;
    RANKS_OK(dcomm_buckets_rebind(t->b, t->comm));
    for (size_t p = 0; p < PARAMS; p++) {
        PROCS_TRUE(dcomm_param_grad(t->b, p) == at[p]);
        PROCS_TRUE(at[p][5] == case_gradient(rank, 0, p * LENGTH + 5));
        RANKS_OK(dcomm_param_mark_ready(t->b, p, NULL));
    }
    RANKS_OK(dcomm_buckets_wait(t->b));
    for (size_t i = 0; i < TOTAL; i++) {
        double sum = 0;
        for (int r = 0; r < n; r++) {
            sum += (double)case_gradient(r, 0, i) / n;
        }
        PROCS_TRUE(fabs((double)at[i / LENGTH][i % LENGTH] - sum) < 1e-5);
    }
    return case_end(t);
}

Test(rebind_join, inside, .timeout = 60)
{
    case_run(2, inside, NULL, 0);
    case_run(2, inside, "registered", 0);
}

/* ---- another order ---- */

/* Process 0 has completed the first step and rebuilt its buckets, process 1 has not: a death within
 * the rebuild, which no test can place, leaves them so. */
static int another_order(int rank, int n, procs_shared *s, void *arg)
{
    const dcomm_feedback_opts feedback = {0};
    dcomm_buckets_opts opts = case_opts("topk:k=0.1", &feedback);
    trainer *t = case_join(rank, n, s);
    (void)arg;
    opts.rebuild = true;
    case_create(t, &opts);
    if (rank == 0) {
        dcommi_bkt_layout layout = {0};
        static const uint32_t order[PARAMS] = {1, 0, 2};
        RANKS_OK(dcommi_bkt_build(t->b, order, &layout));
        dcommi_bkt_layout_free(&t->b->layout);
        dcommi_bkt_settle(t->b, &layout);
        memcpy(t->b->sequence, order, sizeof order);
        t->b->steps = t->b->base = t->b->sent_steps = 1;
    }
    dcomm_comm *next;
    RANKS_OK(dcomm_comm_dup(t->comm, &next));
    RANKS_OK(dcomm_comm_destroy(&t->comm));
    t->comm = next;
    RANKS_OK(dcomm_buckets_rebind(t->b, t->comm));
    const dcomm_buckets_rebind_info info = case_info(t);
    PROCS_TRUE(info.step == 0 && info.undone == (rank == 0) && info.source == 1);
    PROCS_TRUE(info.reset == 0 && info.lost_norm == 0);
    case_steps(t, 3);
    case_balance(t, false, NULL);
    return case_end(t);
}

Test(rebind_join, another_order, .timeout = 60)
{
    case_run(2, another_order, NULL, 0);
}
