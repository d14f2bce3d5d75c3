/* test_codec_auto.c - codec "auto": its spec, and decisions. Every rank takes rank 0's decision.
 * Calls within a host are not compressed; calls over a network that the tuning calls slow are.
 * Decisions are kept. */
#define _GNU_SOURCE
#include "coded_ranks.h"
#include "explained.h"

#include <math.h>

#define COUNT ((size_t)300000)

/* ---- the spec ---- */

static void expect_spec(const char *spec, const char *begins)
{
    dcomm_codec *codec = make_codec(spec), *again = NULL;
    cr_expect_eq(strncmp(dcomm_codec_spec(codec), begins, strlen(begins)), 0, "%s: %s", spec,
                 dcomm_codec_spec(codec));
    cr_expect_eq(dcomm_codec_create(dcomm_codec_spec(codec), &again), DCOMM_OK);
    cr_expect_str_eq(dcomm_codec_spec(again), dcomm_codec_spec(codec));
    dcomm_codec_destroy(&again);
    dcomm_codec_destroy(&codec);
}

static void refuse_spec(const char *spec, const char *sentence)
{
    dcomm_codec *codec = NULL;
    cr_expect_eq(dcomm_codec_create(spec, &codec), DCOMM_ERR_INVALID, "%s", spec);
    cr_expect(strstr(dcomm_last_error(), sentence) != NULL, "%s: %s", spec, dcomm_last_error());
}

Test(codec_auto, specs)
{
    expect_spec("auto", "auto:qsgd:bits=8,");
    expect_spec("auto:topk:k=0.02", "auto:topk:k=0.02,");
    expect_spec("auto:sign", "auto:sign:");
    refuse_spec("auto:", "there is no codec ''");
    refuse_spec("auto:auto", "there is no codec 'auto'");
    refuse_spec("automatic", "there is no codec 'automatic'");
    refuse_spec("auto:qsgd:bits=3", "bits");
}

/* In all but all-reduce, "auto" acts as the codec that it names. */
Test(codec_auto, encodes_as_its_candidate)
{
    dcomm_codec *automatic = make_codec("auto:qsgd:bits=4"), *plain = make_codec("qsgd:bits=4");
    float x[1000], y[1000];
    unsigned char a[2048], b[2048];
    size_t a_bytes, b_bytes;
    for (int i = 0; i < 1000; i++) {
        x[i] = sinf((float)i);
    }
    cr_assert_eq(dcomm_encode(automatic, x, 1000, NULL, a, sizeof a, &a_bytes, NULL, NULL), 0);
    cr_assert_eq(dcomm_encode(plain, x, 1000, NULL, b, sizeof b, &b_bytes, NULL, NULL), 0);
    cr_assert_eq(a_bytes, b_bytes);
    cr_assert_arr_eq(a, b, a_bytes);
    cr_assert_eq(dcomm_decode(automatic, b, b_bytes, y, 1000), DCOMM_OK);
    dcomm_codec_destroy(&automatic);
    dcomm_codec_destroy(&plain);
}

/* ---- the decision ---- */

typedef struct setting {
    const char *spec;
    double beta;       /* ns per byte; 0: the built-in numbers, within a host */
    const char *taken; /* the start of the taken codec's spec; "" for exact */
    bool feedback;
} setting;

/* Check that all ranks hold the same bytes. */
static void same_everywhere(dcomm_comm *comm, const void *bytes, size_t len)
{
    uint64_t own = ranks_hash(bytes, len), all[PROCS_MAX];
    RANKS_OK(dcomm_allgather(comm, &own, all, 1, DCOMM_U64, NULL));
    for (int r = 0; r < dcomm_comm_size(comm); r++) {
        PROCS_CHECK(all[r] == own, "ranks %d and %d differ", dcomm_comm_rank(comm), r);
    }
}

/* Return the largest error of an all-reduce whose exact result is the same on every rank. */
static double allreduce_error(dcomm_comm *comm, const dcomm_coll_opts *opts, size_t count)
{
    int n = dcomm_comm_size(comm), rank = dcomm_comm_rank(comm);
    float *x = calloc(count, sizeof *x);
    double worst = 0;
    PROCS_TRUE(x != NULL);
    for (size_t i = 0; i < count; i++) {
        x[i] = sinf((float)i) * (float)(rank + 1);
    }
    RANKS_OK(dcomm_allreduce(comm, DCOMM_IN_PLACE, x, count, DCOMM_F32, DCOMM_SUM, opts));
    same_everywhere(comm, x, count * sizeof *x);
    for (size_t i = 0; i < count; i++) {
        double exact = (double)sinf((float)i) * n * (n + 1) / 2;
        worst = fmax(worst, fabs((double)x[i] - exact));
    }
    free(x);
    return worst;
}

static void check_taken(const setting *s, const dcomm_codec *taken)
{
    if (s->taken[0] == 0) {
        PROCS_CHECK(taken == NULL, "%s takes %s", s->spec, dcomm_codec_spec(taken));
    } else {
        PROCS_CHECK(taken != NULL, "%s is exact", s->spec);
        PROCS_CHECK(strncmp(dcomm_codec_spec(taken), s->taken, strlen(s->taken)) == 0,
                    "%s takes %s", s->spec, dcomm_codec_spec(taken));
    }
}

static uint64_t operations(dcomm_comm *comm)
{
    dcomm_stats stats;
    RANKS_OK(dcomm_comm_get_stats(comm, &stats));
    return stats.operations;
}

static int decides(int rank, int n, procs_shared *shared, void *arg)
{
    const setting *s = arg;
    ranks_settle(rank, n, RANKS_LOCAL);
    dcomm_comm *comm = ranks_join(rank, n, shared, NULL);
    dcomm_codec *codec = make_codec(s->spec);
    dcomm_feedback *feedback = NULL;
    dcomm_codec_report report;
    dcomm_coll_opts opts = {.codec = codec, .codec_report = &report};
    const dcomm_codec *taken = NULL;
    const char *algo;
    dcomm_tuning tuning;
    if (s->beta > 0) {
        RANKS_OK(dcomm_tuning_uniform(20, s->beta, 0.2, &tuning));
        tuning.copy.n = 2; /* scales the codec's times */
        tuning.copy.bytes[1] = 1 << 20;
        tuning.copy.ps[1] = (int64_t)100 << 20;
        RANKS_OK(dcomm_comm_tune(comm, &tuning));
    } else {
        dcomm_tuning_default(&tuning);
        RANKS_OK(dcomm_comm_tune(comm, &tuning));
    }
    if (s->feedback) {
        dcomm_feedback_opts how = {.scale = true};
        RANKS_OK(dcomm_feedback_create(codec, COUNT, &how, &feedback));
        opts.feedback = feedback;
    }
    /* The call decides by itself, and keeps the decision. */
    double error = allreduce_error(comm, &opts, COUNT);
    PROCS_TRUE((report.bytes > 0) == (s->taken[0] != 0));
    PROCS_TRUE((error > 1e-4) == (s->taken[0] != 0));
    uint64_t before = operations(comm);
    RANKS_OK(dcomm_codec_decide(comm, codec, COUNT, DCOMM_F32, false, &taken));
    check_taken(s, taken);
    RANKS_OK(
        dcomm_codec_decide(comm, codec, COUNT + 100, DCOMM_F32, false, &taken)); /* same class */
    check_taken(s, taken);
    PROCS_TRUE(operations(comm) == before);
    allreduce_error(comm, &opts, COUNT);
    PROCS_TRUE(operations(comm) == before + 2); /* the call, and the comparison of hashes */
    RANKS_OK(explained_algo(comm, DCOMM_COLL_ALLREDUCE, COUNT, &opts, &algo));
    PROCS_CHECK((strncmp(algo, "coded", 5) == 0) == (s->taken[0] != 0), "%s", algo);
    /* A call that is never compressed takes no communication to decide. */
    before = operations(comm);
    RANKS_OK(dcomm_codec_decide(comm, codec, 100, DCOMM_F32, false, &taken));
    PROCS_TRUE(taken == NULL);
    RANKS_OK(dcomm_codec_decide(comm, codec, COUNT, DCOMM_I32, false, &taken));
    PROCS_TRUE(taken == NULL && operations(comm) == before);
    dcomm_feedback_destroy(&feedback);
    dcomm_codec_destroy(&codec);
    return ranks_leave(&comm);
}

Test(codec_auto, exact_within_a_host, .timeout = 60)
{
    run(2, decides, &(setting){.spec = "auto", .taken = ""});
    run(3, decides, &(setting){.spec = "auto:qsgd:bits=4", .taken = ""});
}

Test(codec_auto, compressed_over_a_slow_network, .timeout = 60)
{
    run(2, decides, &(setting){.spec = "auto", .beta = 100, .taken = "auto:qsgd:bits=8"});
    run(3, decides, &(setting){.spec = "auto:qsgd:bits=4", .beta = 100, .taken = "auto:qsgd"});
}

Test(codec_auto, feedback, .timeout = 60)
{
    run(2, decides,
        &(setting){.spec = "auto:sign", .beta = 100, .taken = "auto:sign", .feedback = true});
    run(2, decides, &(setting){.spec = "auto:sign", .taken = "", .feedback = true});
}

/* A candidate that sends more than bf16 does is never taken. */
Test(codec_auto, the_cast_where_it_is_faster, .timeout = 60)
{
    run(2, decides, &(setting){.spec = "auto:randk:k=0.9", .beta = 10, .taken = "bf16"});
}

/* ---- agreement among ranks ---- */

/* The ranks' own measurements would differ: only rank 0 has a tuning with a slow network. */
static int by_file(int rank, int n, procs_shared *shared, void *arg)
{
    ranks_settle(rank, n, RANKS_LOCAL);
    if (rank == 0) {
        setenv("DCOMM_TUNE_FILE", arg, 1);
    }
    dcomm_comm *comm = ranks_join(rank, n, shared, &(dcomm_comm_opts){.tune = 1});
    dcomm_codec *codec = make_codec("auto");
    const dcomm_codec *taken = NULL;
    RANKS_OK(dcomm_codec_decide(comm, codec, COUNT, DCOMM_F32, false, &taken));
    PROCS_TRUE(taken == codec);
    dcomm_verdict verdict;
    RANKS_OK(dcomm_codec_measure(comm, codec, COUNT, false, &verdict));
    PROCS_CHECK(strstr(verdict.text, "auto is the codec") != NULL, "%s", verdict.text);
    dcomm_codec_destroy(&codec);
    return ranks_leave(&comm);
}

Test(codec_auto, rank_0s_tuning_file, .timeout = 60)
{
    char path[] = "/tmp/codec-auto-XXXXXX";
    int file = mkstemp(path);
    dcomm_tuning tuning;
    cr_assert_geq(file, 0);
    close(file);
    cr_assert_eq(dcomm_tuning_uniform(50, 8, 0.2, &tuning), DCOMM_OK);
    cr_assert_eq(dcomm_tuning_save(&tuning, path), DCOMM_OK);
    run(3, by_file, path);
    unlink(path);
}

/* Decide for more elements than are measured. Bytes that do not grow with the array must not be
 * scaled with it. */
static int of_many(int rank, int n, procs_shared *shared, void *arg)
{
    enum { MANY = 1 << 22 };
    static const char *const specs[] = {"topk:k=1000",  "topk:k=3000000",  "topk:k=0.01",
                                        "randk:k=5000", "powersgd:rank=2", "qsgd:bits=4"};
    (void)arg;
    ranks_settle(rank, n, RANKS_LOCAL);
    dcomm_comm *comm = ranks_join(rank, n, shared, NULL);
    for (size_t s = 0; s < sizeof specs / sizeof *specs; s++) {
        dcomm_codec *codec = make_codec(specs[s]);
        dcomm_verdict verdict;
        double bits = 8.0 * (double)dcomm_codec_max_bytes(codec, MANY) / MANY;
        RANKS_OK(dcomm_codec_measure(comm, codec, MANY, false, &verdict));
        PROCS_CHECK(fabs(verdict.bits - bits) < 1e-3 * bits, "%s: %g bits, not %g", specs[s],
                    verdict.bits, bits);
        dcomm_codec_destroy(&codec);
    }
    return ranks_leave(&comm);
}

Test(codec_auto, of_more_elements_than_are_measured, .timeout = 60)
{
    run(2, of_many, NULL);
}

/* Nonblocking calls are refused on every rank until the codec is decided. */
static int not_blocking(int rank, int n, procs_shared *shared, void *arg)
{
    (void)arg;
    ranks_settle(rank, n, RANKS_LOCAL);
    dcomm_comm *comm = ranks_join(rank, n, shared, NULL);
    dcomm_codec *codec = make_codec("auto");
    dcomm_coll_opts opts = {.codec = codec};
    dcomm_request *request = NULL;
    const dcomm_codec *taken = NULL;
    float *x = calloc(COUNT, sizeof *x);
    PROCS_TRUE(x != NULL);
    PROCS_TRUE(dcomm_iallreduce(comm, DCOMM_IN_PLACE, x, COUNT, DCOMM_F32, DCOMM_SUM, &opts,
                                &request) == DCOMM_ERR_INVALID);
    PROCS_TRUE(strstr(dcomm_last_error(), "dcomm_codec_decide") != NULL && request == NULL);
    RANKS_OK(dcomm_codec_decide(comm, codec, COUNT, DCOMM_F32, false, &taken));
    RANKS_OK(
        dcomm_iallreduce(comm, DCOMM_IN_PLACE, x, COUNT, DCOMM_F32, DCOMM_SUM, &opts, &request));
    RANKS_OK(dcomm_wait(&request));
    PROCS_TRUE(dcomm_allreduce(comm, DCOMM_IN_PLACE, x, COUNT, DCOMM_F32, DCOMM_MAX, &opts) ==
               DCOMM_ERR_UNSUPPORTED);
    PROCS_TRUE(dcomm_codec_decide(comm, NULL, COUNT, DCOMM_F32, false, &taken) ==
               DCOMM_ERR_INVALID);
    /* A caller that names an algorithm has decided. */
    opts.algo = "coded_two_shot";
    RANKS_OK(dcomm_allreduce(comm, DCOMM_IN_PLACE, x, 5 * COUNT / 8, DCOMM_F32, DCOMM_SUM, &opts));
    opts.algo = "ring";
    RANKS_OK(dcomm_allreduce(comm, DCOMM_IN_PLACE, x, 5 * COUNT / 8, DCOMM_F32, DCOMM_SUM, &opts));
    free(x);
    dcomm_codec_destroy(&codec);
    return ranks_leave(&comm);
}

Test(codec_auto, calls_that_must_not_block, .timeout = 60)
{
    run(2, not_blocking, NULL);
}
