/* test_sparse.c - the sparse exchange between processes: regions hold about equally many elements
 * however gradients cluster; the result is the sum of the selected elements; nothing is lost;
 * wrong bytes are errors on every rank; the model's choice of it. */
#define _GNU_SOURCE
#define DCOMM_IMPLEMENTATION
#include "coded_ranks.h"

enum { COUNT = 60000 };

/* Places of the large elements. */
enum { SPREAD, ONE_CLUSTER, OWN_CLUSTERS, SAME, SHAPES };
static const char *const shapes[SHAPES] = {"spread", "one cluster", "a cluster each", "the same"};

static void fill(float *x, int rank, int n, int shape)
{
    uint64_t state = (uint64_t)(shape == SAME ? 1 : rank) * 7919 + (uint64_t)shape + 1;
    size_t from = 0, to = COUNT;
    if (shape == ONE_CLUSTER) {
        from = COUNT / 2;
        to = from + COUNT / 40;
    } else if (shape == OWN_CLUSTERS) {
        from = (size_t)rank * COUNT / (size_t)n;
        to = from + COUNT / 40;
    }
    for (size_t i = 0; i < COUNT; i++) {
        float u = (float)(int32_t)(uint32_t)ranks_random(&state) * 0x1p-31f;
        x[i] = (i >= from && i < to ? 1000 : 1) * (u + copysignf(0.01f, u));
    }
}

/* Add what all ranks select, in rank order; return the number of sums that are not 0. */
static size_t sum_of(const dcomm_codec *codec, int n, int shape, float *sum)
{
    static float x[COUNT];
    size_t bytes, capacity = dcomm_codec_max_bytes(codec, COUNT), nonzero = 0;
    unsigned char *wire = malloc(capacity);
    PROCS_TRUE(wire != NULL);
    memset(sum, 0, COUNT * sizeof *sum);
    for (int r = 0; r < n; r++) {
        fill(x, r, n, shape);
        RANKS_OK(dcomm_encode(codec, x, COUNT, NULL, wire, capacity, &bytes, NULL, NULL));
        RANKS_OK(dcomm_decode_add(codec, wire, bytes, sum, COUNT));
    }
    for (size_t i = 0; i < COUNT; i++) {
        nonzero += sum[i] != 0;
    }
    free(wire);
    return nonzero;
}

/* ---- the regions ---- */

static int clusters(int rank, int n, procs_shared *shared, void *arg)
{
    static float x[COUNT], y[COUNT], sum[COUNT];
    const char *spec = arg;
    ranks_settle(rank, n, RANKS_LOCAL);
    dcomm_comm *comm = ranks_join(rank, n, shared, NULL);
    dcomm_codec *codec = make_codec(spec);
    for (int shape = 0; shape < SHAPES; shape++) {
        dcomm_codec_report report;
        dcomm_coll_opts opts = {.algo = "coded_sparse", .codec = codec, .codec_report = &report};
        dcomm_stats before, after;
        fill(x, rank, n, shape);
        RANKS_OK(dcomm_comm_get_stats(comm, &before));
        RANKS_OK(dcomm_allreduce(comm, x, y, COUNT, DCOMM_F32, DCOMM_SUM, &opts));
        RANKS_OK(dcomm_comm_get_stats(comm, &after));
        size_t all = sum_of(codec, n, shape, sum), got = 0;
        double in_result = 0, dropped = 0;
        for (size_t i = 0; i < COUNT; i++) {
            got += y[i] != 0;
            PROCS_CHECK(y[i] == 0 || y[i] == sum[i], "%s, %s, %d ranks: element %zu is %g, not %g",
                        spec, shapes[shape], n, i, (double)y[i], (double)sum[i]);
            in_result += y[i] != 0 ? fabs((double)sum[i]) : 0;
            dropped += y[i] == 0 ? fabs((double)sum[i]) : 0;
        }
        size_t k = dcommi_codec_wanted(codec, COUNT);
        PROCS_CHECK(report.nonzero == got && report.summed == all,
                    "%s, %s, %d ranks: %zu of %zu, reported %zu of %zu", spec, shapes[shape], n,
                    got, all, report.nonzero, report.summed);
        PROCS_CHECK(got <= k + (size_t)n && got + k / 5 >= (all < k ? all : k),
                    "%s, %s, %d ranks: %zu elements of %zu, k %zu", spec, shapes[shape], n, got,
                    all, k);
        /* The largest sums are in the result. */
        PROCS_CHECK(got == all || in_result / (double)got > dropped / (double)(all - got),
                    "%s, %s, %d ranks: in the result %g, left out %g", spec, shapes[shape], n,
                    in_result, dropped);
        /* No rank adds up a whole cluster alone, which the bytes it sends show. A rank sends its
         * selection without its own region, and its region's result to all others. */
        double sent = (double)(after.bytes_sent - before.bytes_sent);
        double most = 8.0 * (double)k * (1 + 1.3 * (n - 1.0) / n) + 64.0 * n * n + 4096.0 * n;
        PROCS_CHECK(sent < most, "%s, %s, %d ranks: rank %d sent %.0f bytes, more than %.0f", spec,
                    shapes[shape], n, rank, sent, most);
    }
    dcomm_codec_destroy(&codec);
    return ranks_leave(&comm);
}

Test(sparse, regions_are_balanced, .timeout = 120)
{
    static const int ranks[] = {2, 3, 4, 5, 8};
    static const char *const specs[] = {"topk:k=0.02", "topk:k=0.1", "threshold:k=0.02"};
    for (int i = 0; i < 5; i++) {
        for (int k = 0; k < 3; k++) {
            if (k != i % 3 && !test_full()) {
                continue;
            }
            run(ranks[i], clusters, (void *)(uintptr_t)specs[k]);
        }
    }
}

/* Cut regions for P ranks in one process, without a communicator. */
Test(sparse, no_region_holds_much_more_than_its_share)
{
    enum { MOST = 64 };
    static float x[COUNT];
    dcomm_codec *codec = NULL;
    cr_assert_eq(dcomm_codec_create("topk:k=0.05", &codec), DCOMM_OK);
    size_t capacity = dcomm_codec_max_bytes(codec, COUNT), bytes;
    unsigned char *wire = malloc(capacity);
    for (size_t n = 2; n <= MOST; n = n < 8 ? n + 1 : 2 * n) {
        for (int shape = 0; shape < SHAPES; shape++) {
            size_t m = dcommi_exchange_samples(codec, COUNT, n), total = 0;
            uint32_t *samples = malloc(n * (m + 1) * 4), begin[MOST + 1];
            uint64_t *keys = malloc(2 * n * m * sizeof *keys);
            dcommi_exchange_pairs *p = calloc(n, sizeof *p);
            const void *src[MOST];
            size_t len[MOST], end[MOST];
            for (size_t r = 0; r < n; r++) {
                fill(x, (int)r, (int)n, shape);
                cr_assert_eq(
                    dcomm_encode(codec, x, COUNT, NULL, wire, capacity, &bytes, NULL, NULL),
                    DCOMM_OK);
                cr_assert_eq(dcommi_exchange_read(codec, wire, bytes, COUNT, 0, COUNT, &p[r]),
                             DCOMM_OK);
                src[r] = samples + r * (m + 1);
                len[r] = 4 * (m + 1);
                dcommi_exchange_sample(&p[r], COUNT, m, samples + r * (m + 1));
                total += p[r].n;
            }
            cr_assert_eq(dcommi_exchange_regions(src, len, n, m, COUNT, COUNT, keys, end, begin),
                         DCOMM_OK);
            for (size_t d = 0; d < n; d++) {
                size_t held = 0;
                for (size_t r = 0; r < n; r++) {
                    held += dcommi_sparse_lower(p[r].index, p[r].n, begin[d + 1]) -
                            dcommi_sparse_lower(p[r].index, p[r].n, begin[d]);
                }
                cr_assert(held * n <= total + total / 4 + 4 * n * n,
                          "%s, %zu ranks: region %zu holds %zu of %zu", shapes[shape], n, d, held,
                          total);
            }
            for (size_t r = 0; r < n; r++) {
                dcommi_exchange_free(&p[r]);
            }
            free(p);
            free(keys);
            free(samples);
        }
    }
    free(wire);
    dcomm_codec_destroy(&codec);
}

/* ---- nothing is lost ---- */

static int conserve(int rank, int n, procs_shared *shared, void *arg)
{
    const int steps = (test_full() ? 400 : 100) / (DCOMM_TEST_RANK_STEP == 1 ? 1 : 5);
    static float x[COUNT], y[COUNT];
    static double all[COUNT], in[COUNT];
    const char *spec = arg;
    ranks_settle(rank, n, RANKS_LOCAL);
    dcomm_comm *comm = ranks_join(rank, n, shared, NULL);
    dcomm_codec *codec = make_codec(spec);
    dcomm_feedback *fb = NULL;
    RANKS_OK(dcomm_feedback_create(codec, COUNT, NULL, &fb));
    dcomm_coll_opts opts = {.algo = "coded_sparse", .feedback = fb};
    dcomm_ledger ledger = {0};
    dcomm_feedback_info info = {0};
    RANKS_OK(dcomm_feedback_set_ledger(fb, &ledger));
    for (int step = 0; step < steps; step++) {
        fill(x, rank, n, step % SHAPES);
        RANKS_OK(dcomm_allreduce(comm, x, y, COUNT, DCOMM_F32, DCOMM_SUM, &opts));
        RANKS_OK(dcomm_feedback_get_info(fb, &info)); /* with elements given back */
        PROCS_CHECK(fabs(ledger.residual_norm - info.worker_norm) <= 1e-9 * info.worker_norm,
                    "%s, step %d: the ledger's residual is %.12g, the state's %.12g", spec, step,
                    ledger.residual_norm, info.worker_norm);
        for (size_t i = 0; i < COUNT; i++) {
            all[i] += (double)x[i] - (rank == 0 ? (double)y[i] : 0);
            in[i] += fabs((double)x[i]);
        }
    }
    /* All gradients minus all results are what all ranks hold back together. */
    for (size_t i = 0; i < COUNT; i++) {
        all[i] -= (double)((float *)fb->worker.now)[i];
    }
    RANKS_OK(dcomm_allreduce(comm, DCOMM_IN_PLACE, all, COUNT, DCOMM_F64, DCOMM_SUM, NULL));
    double lost = 0, size = 0;
    for (size_t i = 0; i < COUNT; i++) {
        lost += all[i] * all[i];
        size += in[i] * in[i] * n;
    }
    PROCS_CHECK(lost < 4e-12 * size, "%s, %d ranks: of %g %g is lost", spec, n, sqrt(size),
                sqrt(lost));
    dcomm_feedback_destroy(&fb);
    dcomm_codec_destroy(&codec);
    return ranks_leave(&comm);
}

Test(sparse, nothing_is_lost_over_many_steps, .timeout = 120)
{
    run(3, conserve, (void *)(uintptr_t) "topk:k=0.01");
    run(4, conserve, (void *)(uintptr_t) "topk:k=0.02,values=bf16");
    run(5, conserve, (void *)(uintptr_t) "threshold:k=0.01,values=f16");
}

/* EF21's estimate lacks the elements that were given back. */
typedef struct estimated {
    dcomm_dtype dtype;
    bool in_place;
} estimated;

static int estimates(int rank, int n, procs_shared *shared, void *arg)
{
    static float x[COUNT], y[COUNT];
    static uint16_t half[COUNT];
    const estimated *e = arg;
    ranks_settle(rank, n, RANKS_LOCAL);
    dcomm_comm *comm = ranks_join(rank, n, shared, NULL);
    dcomm_codec *codec = make_codec("topk:k=0.02");
    dcomm_feedback *fb = NULL;
    dcomm_ledger ledger = {0};
    RANKS_OK(dcomm_feedback_create(codec, COUNT,
                                   &(dcomm_feedback_opts){.variant = DCOMM_FEEDBACK_EF21}, &fb));
    RANKS_OK(dcomm_feedback_set_ledger(fb, &ledger));
    dcomm_coll_opts opts = {.algo = "coded_sparse", .feedback = fb};
    for (int step = 0; step < 20; step++) {
        double held = 0;
        fill(x, rank, n, step % SHAPES);
        for (size_t i = 0; e->dtype == DCOMM_BF16 && i < COUNT; i++) {
            half[i] = dcommi_f32_to_bf16(x[i]);
            x[i] = dcommi_bf16_to_f32(half[i]);
        }
        memcpy(y, x, sizeof y);
        const void *in = e->in_place ? DCOMM_IN_PLACE : e->dtype == DCOMM_F32 ? x : (void *)half;
        void *out = e->in_place && e->dtype == DCOMM_BF16 ? (void *)half : y;
        RANKS_OK(dcomm_allreduce(comm, in, out, COUNT, e->dtype, DCOMM_SUM, &opts));
        for (size_t i = 0; i < COUNT; i++) {
            double lacks = (double)x[i] - (double)((float *)fb->worker.now)[i];
            held += lacks * lacks;
        }
        PROCS_CHECK(fabs(ledger.residual_norm - sqrt(held)) <= 1e-6 * sqrt(held),
                    "step %d: the ledger's residual is %.12g, not %.12g", step,
                    ledger.residual_norm, sqrt(held));
    }
    dcomm_feedback_destroy(&fb);
    dcomm_codec_destroy(&codec);
    return ranks_leave(&comm);
}

Test(sparse, the_ledger_of_estimates, .timeout = 60)
{
    static const estimated all[] = {{DCOMM_F32, false}, {DCOMM_F32, true}, {DCOMM_BF16, true}};
    for (int i = 0; i < 3; i++) {
        run(3, estimates, (void *)(uintptr_t)&all[i]);
    }
}

/* ---- errors ---- */

/* The encoding and the rank to corrupt. */
typedef struct lie {
    uint32_t round;
    uint64_t first;
    int rank;
} lie;

static const lie *this_lie;
static dcommi_coded this_run;

static dcomm_status encode_or_lie(void *user, const dcomm_codec_place *place, const void *src,
                                  size_t src_len, void *dst, size_t dst_len, size_t *encoded)
{
    dcomm_status status =
        dcommi_spread_encode_step(user, place, src, src_len, dst, dst_len, encoded);
    if (place->round == this_lie->round && place->first == this_lie->first &&
        (int)this_run.rank == this_lie->rank && *encoded > 4) {
        memset((unsigned char *)dst + 4, 0xff, *encoded - 4);
    }
    return status;
}

static dcomm_status recode_or_lie(void *user, const dcomm_codec_place *place,
                                  const void *const *src, const size_t *src_len, size_t nsrc,
                                  void *stage, size_t stage_len, void *dst, size_t dst_len,
                                  size_t *encoded)
{
    dcomm_status status = dcommi_spread_owner_step(user, place, src, src_len, nsrc, stage,
                                                   stage_len, dst, dst_len, encoded);
    if (place->round == this_lie->round && (int)this_run.rank == this_lie->rank) {
        --*encoded; /* cut the encoding short */
    }
    return status;
}

static const dcomm_plan_codec liar = {.name = "liar",
                                      .encode = encode_or_lie,
                                      .decode = dcommi_spread_decode_step,
                                      .recode = recode_or_lie};

static int lies(int rank, int n, procs_shared *shared, void *arg)
{
    static float x[COUNT], y[COUNT];
    this_lie = arg;
    ranks_settle(rank, n, RANKS_LOCAL);
    dcomm_comm *comm = ranks_join(rank, n, shared, NULL);
    dcomm_codec *codec = make_codec("topk:k=0.1");
    dcomm_coll_opts opts = {.algo = "coded_sparse", .codec = codec};
    dcomm_check_spec spec = {.coll = DCOMM_COLL_ALLREDUCE, .count = COUNT, .dtype = DCOMM_F32};
    dcomm_plan *plan = NULL;
    RANKS_OK(dcomm_plan_create(&spec, DCOMM_SUM, rank, n, &opts, &plan));
    fill(x, rank, n, SPREAD);
    dcomm_plan mine = *plan;
    this_run = (dcommi_coded){.codec = codec, .rank = (uint32_t)rank};
    mine.codec = &liar;
    mine.codec_user = &this_run;
    dcomm_status status = dcomm_plan_run(comm, &mine, x, y, NULL, 5, NULL);
    PROCS_CHECK(status == DCOMM_ERR_CORRUPT, "lie %u, rank %d: %s: %s", this_lie->round, rank,
                dcomm_status_name(status), dcomm_last_error());
    dcommi_free(this_run.workspace);
    dcommi_spread_free(this_run.spread);
    dcomm_plan_destroy(&plan);
    dcomm_codec_destroy(&codec);
    return ranks_leave(&comm);
}

Test(sparse, malformed_bytes_are_an_error_on_every_rank, .timeout = 60)
{
    static const lie all[] = {
        {DCOMMI_SPREAD_SAMPLES, 0, 1}, {DCOMMI_SPREAD_PART, 0, 2}, {DCOMMI_SPREAD_OWNER, 0, 1}};
    for (int i = 0; i < 3; i++) {
        run(3, lies, (void *)(uintptr_t)&all[i]);
    }
}

static int disagree(int rank, int n, procs_shared *shared, void *arg)
{
    static float x[COUNT], y[COUNT];
    (void)arg;
    ranks_settle(rank, n, RANKS_LOCAL);
    dcomm_comm *comm = ranks_join(rank, n, shared, NULL);
    dcomm_codec *codec = make_codec("topk:k=0.01"), *other = make_codec("topk+qsgd:k=0.01");
    dcomm_coll_opts opts = {.algo = "coded_sparse", .codec = other};
    fill(x, rank, n, SPREAD);
    PROCS_TRUE(dcomm_allreduce(comm, x, y, COUNT, DCOMM_F32, DCOMM_SUM, &opts) ==
               DCOMM_ERR_UNSUPPORTED);
    PROCS_CHECK(strstr(dcomm_last_error(), "threshold") != NULL, "%s", dcomm_last_error());
    opts =
        (dcomm_coll_opts){.algo = rank == 0 ? "coded_allgather" : "coded_sparse", .codec = codec};
    dcomm_status status = dcomm_allreduce(comm, x, y, COUNT, DCOMM_F32, DCOMM_SUM, &opts);
    PROCS_CHECK(status == DCOMM_ERR_MISMATCH, "%s: %s", dcomm_status_name(status),
                dcomm_last_error());
    dcomm_codec_destroy(&codec);
    dcomm_codec_destroy(&other);
    return ranks_leave(&comm);
}

Test(sparse, ranks_that_disagree, .timeout = 60)
{
    run(3, disagree, NULL);
}

/* ---- the choice ---- */

static const char *chosen(const char *spec, int n, size_t count, bool feedback)
{
    int host[64];
    dcommi_groups *groups = NULL;
    dcommi_coding coding;
    dcomm_codec *codec = NULL;
    for (int r = 0; r < n; r++) {
        host[r] = r;
    }
    cr_assert_eq(dcomm_codec_create(spec, &codec), DCOMM_OK);
    cr_assert_eq(dcommi_groups_of_hosts(host, n, &groups), DCOMM_OK);
    dcomm_coll_opts opts = {.codec = codec};
    cr_assert_eq(dcommi_coding_of(&opts, count, &coding), DCOMM_OK);
    coding.feedback = feedback;
    dcommi_shape s = {.coll = DCOMM_COLL_ALLREDUCE,
                      .nranks = n,
                      .dtype = DCOMM_F32,
                      .op = DCOMM_SUM,
                      .count = count,
                      .lanes = 1,
                      .groups = groups,
                      .coding = &coding};
    const dcommi_algo *algo = NULL;
    cr_assert_eq(dcommi_choose_alone(&s, &algo), DCOMM_OK);
    cr_assert_not_null(algo);
    dcommi_groups_free(&groups);
    dcomm_codec_destroy(&codec);
    return algo->name;
}

Test(sparse, the_model_takes_it_where_an_allgather_sends_more, .timeout = 60)
{
    cr_assert_str_eq(chosen("topk:k=0.01", 16, 16 << 20, true), "coded_sparse");
    cr_assert_str_eq(chosen("topk:k=0.01", 2, 16 << 20, true), "coded_allgather");
    cr_assert_str_eq(chosen("topk:k=0.01", 16, 16 << 20, false), "coded_allgather");
    cr_assert_str_eq(chosen("topk+qsgd:k=0.01", 16, 16 << 20, true), "coded_allgather");
}
