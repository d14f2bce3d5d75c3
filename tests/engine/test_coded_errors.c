/* test_coded_errors.c - compressed all-reduce where ranks disagree, or numbers or bytes are bad:
 * every rank gets an error. */
#define _GNU_SOURCE
#include "coded_ranks.h"

#include <inttypes.h>

/* ---- errors ---- */

static int another_codec(int rank, int n, procs_shared *shared, void *arg)
{
    static float x[5000], y[5000];
    (void)arg;
    ranks_settle(rank, n, RANKS_LOCAL);
    dcomm_comm *comm = ranks_join(rank, n, shared, NULL);
    dcomm_codec *codec = make_codec(rank == 1 ? "topk:k=0.02" : "topk:k=0.01");
    dcomm_feedback *fb = NULL;
    RANKS_OK(dcomm_feedback_create(codec, 5000, NULL, &fb));
    normal_gradient(x, 5000, rank, 0);
    dcomm_coll_opts opts = {.feedback = fb};
    dcomm_status status = dcomm_allreduce(comm, x, y, 5000, DCOMM_F32, DCOMM_SUM, &opts);
    PROCS_CHECK(status == DCOMM_ERR_MISMATCH, "%s", dcomm_status_name(status));
    /* Nobody knows how much of this rank's gradient the others have received. */
    PROCS_TRUE(dcomm_allreduce(comm, x, y, 5000, DCOMM_F32, DCOMM_SUM, &opts) == DCOMM_ERR_INVALID);
    PROCS_TRUE(strstr(dcomm_last_error(), "stale") != NULL);
    dcomm_feedback_destroy(&fb);
    dcomm_codec_destroy(&codec);
    return ranks_leave(&comm);
}

Test(coded, ranks_with_another_codec, .timeout = 60)
{
    run(3, another_codec, NULL);
}

/* Where encodings are summed, all inputs of the random numbers must be the same on all ranks. */
typedef struct odd_key {
    const char *spec;
    uint64_t seed, step;
    bool feedback;
    uint64_t own_seed;
    uint32_t tensor;
    uint64_t own_step;
} odd_key;

static int another_key(int rank, int n, procs_shared *shared, void *arg)
{
    static float x[5000], y[5000];
    const odd_key *k = arg;
    ranks_settle(rank, n, RANKS_LOCAL);
    dcomm_comm *comm = ranks_join(rank, n, shared, NULL);
    dcomm_codec *codec = make_codec(k->spec);
    dcomm_feedback *fb = NULL;
    dcomm_feedback_opts with = {.seed = 1, .tensor = 1};
    dcomm_coll_opts opts = {.codec = codec, .codec_seed = 1, .codec_step = 1};
    normal_gradient(x, 5000, rank, 0);
    /* The plan is the same. Other ranks may start the next call before this one ends here. */
    dcomm_status status = dcomm_allreduce(comm, x, y, 5000, DCOMM_F32, DCOMM_SUM, &opts);
    PROCS_CHECK(status == DCOMM_OK || status == DCOMM_ERR_MISMATCH, "%s", dcomm_last_error());
    if (rank == 1) {
        opts.codec_seed += k->seed;
        opts.codec_step += k->step;
        with.seed += k->own_seed;
        with.tensor += k->tensor;
    }
    if (k->feedback) {
        RANKS_OK(dcomm_feedback_create(codec, 5000, &with, &fb));
        opts.feedback = fb;
        for (uint64_t step = 0; rank == 1 && step < k->own_step; step++) {
            static unsigned char wire[40000];
            size_t bytes;
            RANKS_OK(dcomm_feedback_begin(fb, &(dcomm_feedback_step){.x = x}));
            RANKS_OK(dcomm_feedback_encode(fb, 0, 5000, wire, sizeof wire, &bytes, NULL));
            RANKS_OK(dcomm_feedback_commit(fb));
        }
    }
    status = dcomm_allreduce(comm, x, y, 5000, DCOMM_F32, DCOMM_SUM, &opts);
    PROCS_CHECK(status == DCOMM_ERR_MISMATCH, "%s: %s", k->spec, dcomm_status_name(status));
    dcomm_feedback_destroy(&fb);
    dcomm_codec_destroy(&codec);
    return ranks_leave(&comm);
}

Test(coded, ranks_with_another_key, .timeout = 60)
{
    static const odd_key keys[] = {
        {.spec = "randk:k=0.1,scale=none", .seed = 1},
        {.spec = "randk:k=0.1,scale=none", .step = 1},
        {.spec = "powersgd:rank=2", .seed = 1},
        {.spec = "randk:k=0.1,scale=none", .feedback = true, .own_seed = 1},
        {.spec = "randk:k=0.1,scale=none", .feedback = true, .tensor = 1},
        {.spec = "randk:k=0.1,scale=none", .feedback = true, .own_step = 1},
        {.spec = "powersgd:rank=2", .feedback = true, .own_step = 1},
    };
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        run(3, another_key, (void *)(uintptr_t)&keys[i]);
    }
}

static int not_a_number(int rank, int n, procs_shared *shared, void *arg)
{
    static float x[5000], y[5000];
    (void)arg;
    ranks_settle(rank, n, RANKS_LOCAL);
    dcomm_comm *comm = ranks_join(rank, n, shared, NULL);
    dcomm_codec *codec = make_codec("bf16:nonfinite=zero");
    dcomm_codec_report report;
    normal_gradient(x, 5000, rank, 0);
    if (rank == 1) {
        x[4321] = NAN;
        x[4400] = INFINITY;
    }
    dcomm_coll_opts opts = {.codec = codec, .codec_report = &report, .algo = "coded_two_shot"};
    RANKS_OK(dcomm_allreduce(comm, x, y, 5000, DCOMM_F32, DCOMM_SUM, &opts));
    PROCS_TRUE(isfinite(y[4321]) && isfinite(y[4400]));
    PROCS_CHECK(report.nonfinite == (rank == 1 ? 2u : 0u), "%zu", report.nonfinite);
    PROCS_CHECK(report.first_nonfinite == (rank == 1 ? 4321u : SIZE_MAX), "%zu",
                report.first_nonfinite);
    for (int i = 0; i < 4; i++) { /* codecs whose encodings are summed */
        dcomm_codec *linear =
            make_codec(i % 2 == 0 ? "powersgd:nonfinite=zero" : "randk:scale=none,nonfinite=zero");
        dcomm_feedback *fb = NULL;
        dcomm_ledger ledger = {0};
        RANKS_OK(dcomm_feedback_create(linear, 5000, NULL, &fb));
        dcomm_coll_opts sums = {.codec = linear,
                                .feedback = i < 2 ? NULL : fb,
                                .codec_report = &report,
                                .codec_ledger = &ledger,
                                .algo = "coded_linear"};
        RANKS_OK(dcomm_allreduce(comm, x, y, 5000, DCOMM_F32, DCOMM_SUM, &sums));
        PROCS_TRUE(isfinite(y[4321]) && isfinite(y[4400]));
        PROCS_CHECK(report.nonfinite == (rank == 1 ? 2u : 0u) &&
                        ledger.nonfinite == report.nonfinite &&
                        report.first_nonfinite == (rank == 1 ? 4321u : SIZE_MAX),
                    "%d: %zu, the first %zu; in the ledger %zu", i, report.nonfinite,
                    report.first_nonfinite, (size_t)ledger.nonfinite);
        dcomm_feedback_destroy(&fb);
        dcomm_codec_destroy(&linear);
    }
    dcomm_codec_destroy(&codec);
    return ranks_leave(&comm);
}

Test(coded, numbers_that_are_none, .timeout = 60)
{
    run(3, not_a_number, NULL);
}

/* ---- numbers that cannot be encoded ---- */

typedef struct bad_numbers {
    const char *spec, *algo;
    bool feedback;
    int place;
    float value; /* of two elements: on rank 1 if not finite, else on all ranks */
    dcomm_status status;
} bad_numbers;

static const bad_numbers bad[] = {
    {"bf16", "coded_two_shot", false, RANKS_LOCAL, NAN, DCOMM_ERR_INVALID},
    {"bf16", "coded_allgather", true, RANKS_LOCAL, INFINITY, DCOMM_ERR_INVALID},
    {"qsgd:bits=4", "coded_two_shot", false, RANKS_LOCAL, NAN, DCOMM_ERR_INVALID},
    {"qsgd:bits=4", "coded_hier", true, RANKS_PAIRS, NAN, DCOMM_ERR_INVALID},
    {"topk:k=0.01", "coded_sparse", true, RANKS_LOCAL, NAN, DCOMM_ERR_INVALID},
    {"randk:k=0.1", NULL, false, RANKS_LOCAL, NAN, DCOMM_ERR_INVALID},
    {"powersgd", NULL, true, RANKS_PAIRS, NAN, DCOMM_ERR_INVALID},
    {"powersgd", NULL, false, RANKS_LOCAL, 3e38f, DCOMM_ERR_RANGE},
    {"powersgd", NULL, true, RANKS_LOCAL, -3e38f, DCOMM_ERR_RANGE},
    {"randk:k=0.1", NULL, false, RANKS_PAIRS, 3e37f, DCOMM_ERR_RANGE},
    {"randk:k=4000,scale=none", NULL, true, RANKS_LOCAL, 3e38f, DCOMM_ERR_RANGE},
    {"bf16", "coded_two_shot", true, RANKS_LOCAL, 3e38f, DCOMM_ERR_RANGE},
};

/* All ranks get the same status; the communicator and the state are as before the call. */
static int bad_numbers_of_a_rank(int rank, int n, procs_shared *shared, void *arg)
{
    static float x[5000], good[5000], y[5000], again[5000];
    const bad_numbers *b = arg;
    /* coded_hier sums within a host before one rank encodes. */
    const char *finder = b->place == RANKS_PAIRS && b->algo != NULL ? "rank 0" : "rank 1";
    ranks_settle(rank, n, b->place);
    dcomm_comm *comm = ranks_join(rank, n, shared, NULL);
    dcomm_codec *codec = make_codec(b->spec);
    dcomm_feedback *fb = NULL;
    if (b->feedback) {
        RANKS_OK(dcomm_feedback_create(codec, 5000, &(dcomm_feedback_opts){.scale = true}, &fb));
    }
    normal_gradient(good, 5000, rank, 0);
    for (int round = 0; round < 2; round++) { /* the second round takes its plan from the cache */
        dcomm_coll_opts opts = {
            .codec = codec, .feedback = fb, .algo = b->algo, .codec_step = 1, .timeout_s = 20};
        for (int i = 0; i < 5000; i++) {
            x[i] = isfinite(b->value) ? b->value : good[i];
        }
        if (rank == 1 && !isfinite(b->value)) {
            x[321] = x[4400] = b->value;
        }
        dcomm_status status = dcomm_allreduce(comm, x, y, 5000, DCOMM_F32, DCOMM_SUM, &opts);
        PROCS_CHECK(status == b->status, "%s, %s: rank %d has %s: %s", b->spec, b->algo, rank,
                    dcomm_status_name(status), dcomm_last_error());
        PROCS_CHECK(status == DCOMM_ERR_RANGE || strstr(dcomm_last_error(), finder) != NULL, "%s",
                    dcomm_last_error());
        RANKS_OK(dcomm_comm_status(comm));
        if (fb != NULL) {
            dcomm_feedback_info info;
            RANKS_OK(dcomm_feedback_recover(fb, DCOMM_FEEDBACK_RETRY, NULL));
            RANKS_OK(dcomm_feedback_get_info(fb, &info));
            PROCS_TRUE(isfinite(info.worker_norm) && isfinite(info.owner_norm));
            PROCS_TRUE(info.step == (uint64_t)round);
        }
        RANKS_OK(dcomm_allreduce(comm, good, y, 5000, DCOMM_F32, DCOMM_SUM, &opts));
        PROCS_TRUE(fb != NULL || round == 0 || memcmp(y, again, sizeof y) == 0);
        memcpy(again, y, sizeof y);
    }
    dcomm_feedback_destroy(&fb);
    dcomm_codec_destroy(&codec);
    return ranks_leave(&comm);
}

Test(coded, bad_numbers_end_the_call_alone, .timeout = 120)
{
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        run(bad[i].place == RANKS_PAIRS ? 4 : 3, bad_numbers_of_a_rank, (void *)(uintptr_t)&bad[i]);
    }
}

/* ---- encoders that write wrong bytes ---- */

static dcomm_status encode_or_lie(void *user, const dcomm_codec_place *place, const void *src,
                                  size_t src_len, void *dst, size_t dst_len, size_t *encoded)
{
    dcomm_codec_key key = {.first = place->first};
    dcomm_status status =
        dcomm_encode(user, src, src_len / 4, &key, dst, dst_len, encoded, NULL, NULL);
    if (place->first == 0 && place->round == 1) { /* rank 0's result */
        memset(dst, 0xff, *encoded);
    }
    return status;
}

static dcomm_status decode_all(void *user, const dcomm_codec_place *place, const void *const *src,
                               const size_t *src_len, size_t nsrc, void *dst, size_t dst_len)
{
    (void)place;
    return dcomm_decode_sum(user, src, src_len, nsrc, dst, dst_len / 4);
}

static const dcomm_plan_codec liar = {
    .name = "liar", .encode = encode_or_lie, .decode = decode_all};

static int lies(int rank, int n, procs_shared *shared, void *arg)
{
    static float x[5000], y[5000];
    (void)arg;
    ranks_settle(rank, n, RANKS_LOCAL);
    dcomm_comm *comm = ranks_join(rank, n, shared, NULL);
    dcomm_codec *codec = make_codec("topk:k=0.1");
    dcomm_coll_opts opts = {.algo = "coded_two_shot", .codec = codec};
    dcomm_check_spec spec = {.coll = DCOMM_COLL_ALLREDUCE, .count = 5000, .dtype = DCOMM_F32};
    dcomm_plan *plan = NULL;
    RANKS_OK(dcomm_plan_create(&spec, DCOMM_SUM, rank, n, &opts, &plan));
    normal_gradient(x, 5000, rank, 0);
    dcomm_plan mine = *plan;
    mine.codec = &liar;
    mine.codec_user = codec;
    dcomm_status status = dcomm_plan_run(comm, &mine, x, y, NULL, 5, NULL);
    PROCS_CHECK(status == DCOMM_ERR_CORRUPT, "rank %d: %s: %s", rank, dcomm_status_name(status),
                dcomm_last_error());
    dcomm_plan_destroy(&plan);
    dcomm_codec_destroy(&codec);
    return ranks_leave(&comm);
}

Test(coded, malformed_bytes_are_an_error_on_every_rank, .timeout = 60)
{
    run(3, lies, NULL);
}
