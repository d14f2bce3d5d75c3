/* test_model_device.c - prices of device memory: data through pinned memory and data read in
 * place, whose numbers price them, and the explanation of either path. */
#define _GNU_SOURCE
#define DCOMM_IMPLEMENTATION
#include "dcomm/all.h"

#include "explained.h"

#include <criterion/criterion.h>

enum { BYTES = 1 << 20, COUNT = BYTES / sizeof(float) };

static const dcomm_coll_opts promised_device = {.device = true};
static const dcomm_coll_opts promised_open = {.device = true, .registered = true};

/* Return an algorithm's price in seconds; set *assumed if that price is assumed. */
static double priced(const dcomm_tuning *tuning, int nranks, const int *hosts,
                     const dcomm_coll_opts *opts, const char *algo, bool *assumed)
{
    dcomm_alternative rows[16];
    int n = 0;
    cr_assert_eq(explained_on(tuning, nranks, hosts, DCOMM_COLL_ALLREDUCE, COUNT, DCOMM_F32, opts,
                              rows, 16, &n),
                 DCOMM_OK, "%s", dcomm_last_error());
    for (int i = 0; i < n; i++) {
        if (strcmp(rows[i].algo, algo) == 0) {
            *assumed = rows[i].assumed;
            return rows[i].seconds;
        }
    }
    cr_assert_fail("there is no %s", algo);
    return 0;
}

/* Return a tuning in which everything is free until the test sets a price. */
static dcomm_tuning measured(void)
{
    dcomm_tuning t;
    cr_assert_eq(dcomm_tuning_uniform(0, 0, 0, &t), DCOMM_OK);
    t.device_stage_ps = t.device_ucx_ps = 1;
    t.device_copy = t.device_fold = dcommi_curve_line(0);
    t.device_read = t.device_reduce = dcommi_curve_line(0);
    return t;
}

Test(model_device, reads_in_place, .timeout = 30)
{
    bool assumed;
    for (int n = 2; n <= 8; n *= 2) {
        dcomm_tuning t = measured();
        t.device_read = t.device_reduce = dcommi_curve_line(0.01);
        t.device_reduce.ps[0] += 7000000;
        t.device_reduce.ps[1] += 7000000;
        const double chunks = (double)BYTES / (double)DCOMMI_SLOT_BYTES;
        double rate = 0.01e-9 * 2 * (n - 1) / n * (double)BYTES, direct, staged;
        direct = priced(&t, n, NULL, &promised_open, "two_shot", &assumed);
        cr_assert(!assumed);
        cr_assert(direct >= rate + 7e-6 && direct <= 1.01 * rate + 7e-6 * chunks,
                  "one kernel reads all: %g of %g s", direct, rate);
        staged = priced(&t, n, NULL, &promised_device, "two_shot", &assumed);
        cr_assert(staged < 1e-6, "%g s", staged);
        t = measured();
        t.device_stage_ps = 50000000;
        cr_assert_gt(priced(&t, n, NULL, &promised_device, "two_shot", &assumed), 49e-6);
        cr_assert_lt(priced(&t, n, NULL, &promised_open, "two_shot", &assumed), 1e-6);
        /* The call may be in place, which nobody knows here. Then one_shot exposes scratch. */
        cr_assert_gt(priced(&t, n, NULL, &promised_open, "one_shot", &assumed), 49e-6);
        cr_assert_gt(priced(&t, n, NULL, &promised_device, "ring", &assumed), 49e-6);
        cr_assert_lt(priced(&t, n, NULL, &promised_open, "ring", &assumed),
                     priced(&t, n, NULL, &promised_device, "ring", &assumed));
    }
}

/* Numbers that a tuning lacks are assumed, and reported as such. */
Test(model_device, whose_numbers, .timeout = 30)
{
    bool assumed;
    dcomm_tuning t = measured();
    double plain = priced(&t, 4, NULL, NULL, "ring", &assumed);
    cr_assert(!assumed, "host memory has no device's numbers");
    t.device_read.n = 0;
    (void)priced(&t, 4, NULL, &promised_device, "ring", &assumed);
    cr_assert(!assumed, "nothing is read in place");
    (void)priced(&t, 4, NULL, &promised_open, "ring", &assumed);
    cr_assert(assumed);
    t = measured();
    t.device_stage_ps = 0;
    double staged = priced(&t, 4, NULL, &promised_device, "ring", &assumed);
    cr_assert(assumed && staged > plain + 1e-12 * DCOMMI_DEVICE_STAGE_PS, "%g s", staged);
    t = measured();
    t.device_fold.ps[0] = -1;
    cr_assert_eq(
        explained_on(&t, 4, NULL, DCOMM_COLL_ALLREDUCE, COUNT, DCOMM_F32, NULL, NULL, 0, NULL),
        DCOMM_ERR_INVALID);
    dcomm_tuning_default(&t);
    for (int open = 0; open < 2; open++) {
        (void)priced(&t, 4, NULL, open ? &promised_open : &promised_device, "ring", &assumed);
        cr_assert(assumed, "nobody has measured a device");
    }
}

/* coded_sparse sends from host memory, wherever the elements lie. */
Test(model_device, messages_of_the_host, .timeout = 30)
{
    bool assumed;
    const int apart[] = {0, 1, 2, 3}, *const where[] = {NULL, apart};
    dcomm_codec *codec = NULL;
    cr_assert_eq(dcomm_codec_create("topk:k=0.01", &codec), DCOMM_OK);
    const dcomm_coll_opts opts = {.device = true, .codec = codec};
    for (int h = 0; h < 2; h++) {
        dcomm_tuning t = measured();
        t.device_stage_ps = t.device_ucx_ps = 50000000;
        cr_assert_lt(priced(&t, 4, where[h], &opts, "coded_sparse", &assumed), 1e-6);
        cr_assert_gt(priced(&t, 4, where[h], &opts, "coded_allgather", &assumed), 49e-6);
    }
    cr_assert_eq(dcomm_codec_destroy(&codec), DCOMM_OK);
}

/* Between hosts nothing is read in place. */
Test(model_device, hosts, .timeout = 30)
{
    bool assumed;
    dcomm_tuning t;
    const int one[] = {0, 0, 0, 0}, pairs[] = {0, 0, 1, 1}, apart[] = {0, 1, 2, 3};
    dcomm_tuning_default(&t);
    double direct = priced(&t, 4, one, &promised_open, "two_shot", &assumed);
    cr_assert_lt(direct, priced(&t, 4, one, &promised_device, "two_shot", &assumed));
    direct = priced(&t, 4, pairs, &promised_open, "hier", &assumed);
    cr_assert_lt(direct, priced(&t, 4, pairs, &promised_device, "hier", &assumed));
    direct = priced(&t, 4, apart, &promised_open, "two_shot", &assumed);
    double staged = priced(&t, 4, apart, &promised_device, "two_shot", &assumed);
    cr_assert(direct == staged, "%g, %g s", direct, staged);
}

/* If UCX moves device memory between hosts, only these transfers have another price, and only
 * those that are not short. */
Test(model_device, moved_by_ucx, .timeout = 30)
{
    bool assumed;
    const int one[] = {0, 0, 0, 0}, pairs[] = {0, 0, 1, 1}, apart[] = {0, 1, 2, 3};
    dcomm_tuning t = measured(), ucx;
    t.device_stage_ps = 50000000;
    ucx = t;
    ucx.device_ucx = 1;
    cr_assert_gt(priced(&t, 4, apart, &promised_device, "ring", &assumed), 49e-6);
    cr_assert_lt(priced(&ucx, 4, apart, &promised_device, "ring", &assumed), 1e-6);
    cr_assert_lt(priced(&ucx, 4, apart, &promised_device, "two_shot", &assumed), 1e-6);
    cr_assert_lt(priced(&ucx, 4, apart, &promised_open, "ring", &assumed), 1e-6);
    cr_assert_gt(priced(&ucx, 4, pairs, &promised_device, "two_shot", &assumed), 49e-6);
    double alone = priced(&t, 4, one, &promised_device, "ring", &assumed);
    cr_assert(alone == priced(&ucx, 4, one, &promised_device, "ring", &assumed) && !assumed);
    dcomm_alternative rows[16];
    int n = 0; /* elements of short messages */
    cr_assert_eq(explained_on(&ucx, 4, apart, DCOMM_COLL_ALLREDUCE, 1024, DCOMM_F32,
                              &promised_device, rows, 16, &n),
                 DCOMM_OK);
    for (int i = 0; i < n; i++) {
        cr_assert(strcmp(rows[i].algo, "ring") != 0 || rows[i].seconds > 49e-6);
    }
    ucx.device_ucx_ps = 0;
    (void)priced(&ucx, 4, apart, &promised_device, "ring", &assumed);
    cr_assert(assumed);
    (void)priced(&ucx, 4, one, &promised_device, "ring", &assumed);
    cr_assert(!assumed);
}

/* ---- what can be opened ---- */

typedef struct exchange {
    dcomm_space space; /* the space that is exposed or sent */
    bool sends, called;
    int64_t bytes;
    dcomm_plan *inner[2];
} exchange;

/* Make a plan for two ranks, each of which gives the other the data of one space. */
static dcomm_plan *exchange_plan(const exchange *x, int rank)
{
    dcomm_builder b;
    dcomm_plan *plan = NULL;
    dcomm_operand all = dcomm_span(x->space, 0, x->bytes);
    dcomm_operand out = dcomm_span(DCOMM_SPACE_OUT, 0, x->bytes);
    dcomm_expr peer = dcomm_const(1 - rank);
    dcommi_build_begin(&b, "exchange", rank, 2, DCOMM_F32, DCOMM_SUM);
    b.head.in_bytes = b.head.out_bytes = x->bytes;
    (void)dcomm_build_scratch(&b, x->bytes);
    if (x->sends) {
        dcomm_expr tag = dcomm_const(dcomm_build_tags(&b, 1));
        dcomm_build_send(&b, 0, all, peer, tag, DCOMM_STEP_ASYNC);
        dcomm_build_recv(&b, 0, out, peer, tag, 0);
    } else {
        uint16_t slot = dcomm_build_slot(&b);
        dcomm_build_expose(&b, 0, all, slot, peer);
        dcomm_build_copy(&b, 0, out, dcomm_exposed(peer, slot, dcomm_const(0), x->bytes), 0);
    }
    cr_assert_eq(dcommi_build_finish(&b, &plan), DCOMM_OK);
    return plan;
}

/* Make the same exchange by a sub-plan, whose input is a space of the caller's. */
static dcomm_plan *exchange_caller(const exchange *x, int rank)
{
    dcomm_builder b;
    dcomm_plan *plan = NULL;
    const dcomm_plan *inner = x->inner[rank];
    dcommi_build_begin(&b, "caller", rank, 2, DCOMM_F32, DCOMM_SUM);
    b.head.in_bytes = b.head.out_bytes = x->bytes;
    b.head.nslots = inner->nslots;
    dcomm_build_tags(&b, inner->ntags);
    (void)dcomm_build_scratch(&b, x->bytes);
    int64_t group = dcomm_build_table(&b, (const int64_t[]){0, 1}, 2);
    dcomm_build_call(&b, 0, inner, group, dcomm_span(x->space, 0, x->bytes),
                     dcomm_span(DCOMM_SPACE_OUT, 0, x->bytes), dcomm_const(0));
    cr_assert_eq(dcommi_build_finish(&b, &plan), DCOMM_OK);
    return plan;
}

static int64_t exchange_price(exchange x, const dcomm_tuning *t)
{
    dcomm_plan *plan[2];
    dcommi_terrain terrain;
    dcommi_price price;
    dcommi_plans plans = {.get = dcommi_plans_listed, .put = dcommi_plans_keep, .user = plan};
    for (int r = 0; r < 2; r++) {
        exchange inner = x;
        inner.space = DCOMM_SPACE_IN;
        x.inner[r] = x.called ? exchange_plan(&inner, r) : NULL;
        plan[r] = x.called ? exchange_caller(&x, r) : exchange_plan(&x, r);
    }
    cr_assert_eq(dcommi_terrain_make(NULL, 2, t, DCOMMI_MEMORY_OPEN, &terrain), DCOMM_OK);
    cr_assert_eq(dcommi_price_plans(&terrain, &plans, DCOMMI_PRICE_LIMIT, 1 << 20, &price),
                 DCOMM_OK, "%s", dcomm_last_error());
    for (int r = 0; r < 2; r++) {
        dcomm_plan_destroy(&plan[r]);
        dcomm_plan_destroy(&x.inner[r]);
    }
    return price.ps;
}

/* Buffers are read in place, and so are long messages from them. Scratch and short messages are
 * not. */
Test(model_device, what_is_open, .timeout = 30)
{
    dcomm_tuning t = measured();
    t.device_stage_ps = 50000000;
    for (int called = 0; called < 2; called++) {
        for (int sends = 0; sends < 2; sends++) {
            for (int by_core = 0; by_core < 2; by_core++) {
                t.link[DCOMM_LINK_NEAR].by_core = by_core;
                t.link[DCOMM_LINK_NEAR].read = dcommi_curve_line(0);
                exchange x = {.sends = sends, .called = called, .bytes = BYTES};
                x.space = DCOMM_SPACE_IN;
                cr_expect_lt(exchange_price(x, &t), 1000000, "%d, %d, %d", called, sends, by_core);
                x.space = DCOMM_SPACE_SCRATCH;
                cr_expect_geq(exchange_price(x, &t), 50000000, "%d, %d, %d", called, sends,
                              by_core);
                x.space = DCOMM_SPACE_IN;
                x.bytes = DCOMMI_DEVICE_EAGER;
                cr_expect_eq(exchange_price(x, &t) >= 50000000, sends, "%d, %d, %d", called, sends,
                             by_core);
            }
        }
    }
}

/* ---- paths ---- */

static void paths_of(const dcomm_tuning *tuning, const int *hosts, const dcomm_coll_opts *opts,
                     dcomm_path rows[3])
{
    dcomm_explanation e = {.coll = DCOMM_COLL_ALLREDUCE,
                           .count = COUNT,
                           .dtype = DCOMM_F32,
                           .opts = opts,
                           .nranks = 4,
                           .hosts = hosts,
                           .tuning = tuning,
                           .paths = rows,
                           .max_paths = 3};
    cr_assert_eq(dcomm_comm_explain(NULL, &e), DCOMM_OK, "%s", dcomm_last_error());
    cr_assert_eq(e.npaths, 3);
    cr_assert_str_eq(rows[0].name, "staged");
    cr_assert_str_eq(rows[1].name, "direct");
    cr_assert_str_eq(rows[2].name, "ucx");
    for (int i = 0; i < 3; i++) {
        cr_assert(rows[i].assumed && rows[i].seconds > 0 && rows[i].algo != NULL);
        cr_assert(rows[i].taken == (rows[i].why[0] == 0), "%s: %s", rows[i].name, rows[i].why);
        cr_assert_eq(rows[i].direct_pairs + rows[i].staged_pairs + rows[i].ucx_pairs, 6);
    }
    cr_assert_eq(rows[0].staged_pairs, 6);
    cr_assert_eq(rows[2].direct_pairs, 0);
}

/* Each path has a price, by the choice that would count on it, and the reason why the choice does
 * not. */
Test(model_device, paths, .timeout = 30)
{
    const int pairs[] = {0, 1, 0, 1}, apart[] = {0, 1, 2, 3};
    dcomm_path rows[3];
    dcomm_alternative all[16];
    dcomm_tuning ucx;
    int n = 0;
    dcomm_tuning_default(&ucx);
    ucx.device_ucx = 1;
    paths_of(NULL, NULL, &promised_device, rows);
    cr_assert(rows[0].taken && rows[1].direct_pairs == 6);
    cr_assert_lt(rows[1].seconds, rows[0].seconds);
    cr_assert(strstr(rows[1].why, "dcomm_mem_alloc_device") != NULL, "%s", rows[1].why);
    for (int i = 0; i < 2; i++) {
        cr_assert_eq(explained_on(NULL, 4, NULL, DCOMM_COLL_ALLREDUCE, COUNT, DCOMM_F32,
                                  i == 0 ? &promised_device : &promised_open, all, 16, &n),
                     DCOMM_OK);
        for (int k = 0; k < n; k++) {
            cr_assert(!all[k].chosen || (strcmp(all[k].algo, rows[i].algo) == 0 &&
                                         all[k].seconds == rows[i].seconds),
                      "%s", all[k].algo);
        }
    }
    paths_of(NULL, pairs, &promised_open, rows);
    cr_assert(rows[1].taken && rows[1].direct_pairs == 2 && rows[1].staged_pairs == 4);
    paths_of(&ucx, pairs, &promised_open, rows);
    cr_assert(rows[1].taken && rows[1].direct_pairs == 2 && rows[1].ucx_pairs == 4);
    cr_assert(rows[2].ucx_pairs == 4 && strstr(rows[2].why, "opts.registered") != NULL);
    paths_of(NULL, apart, &promised_device, rows);
    cr_assert(rows[1].direct_pairs == 0 && strstr(rows[1].why, "no two ranks") != NULL);
    cr_assert(rows[0].taken && rows[2].ucx_pairs == 6 && strstr(rows[2].why, "UCX") != NULL);
    paths_of(&ucx, apart, &promised_device, rows);
    cr_assert(rows[2].taken && rows[2].ucx_pairs == 6 && strstr(rows[0].why, "UCX") != NULL);
    cr_assert_lt(rows[2].seconds, rows[0].seconds);
    paths_of(&ucx, NULL, &promised_device, rows);
    cr_assert(rows[0].taken && rows[2].ucx_pairs == 0 && strstr(rows[2].why, "a host") != NULL);
    paths_of(NULL, NULL, NULL, rows);
    cr_assert(!rows[0].taken && !rows[1].taken && strstr(rows[0].why, "opts.device") != NULL);
    paths_of(NULL, NULL, &(dcomm_coll_opts){.device = true, .algo = "ring"}, rows);
    cr_assert(strcmp(rows[0].algo, "ring") == 0 && strcmp(rows[1].algo, "ring") == 0);
}
