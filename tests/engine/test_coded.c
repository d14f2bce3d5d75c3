/* test_coded.c - compressed all-reduce between processes: the result is what the codec's own
 * functions compute, with the same bits on every rank; error feedback loses nothing. */
#define _GNU_SOURCE
#include "coded_ranks.h"

#include <inttypes.h>
#include <math.h>

typedef struct setting {
    ranks_place place;
    const char *spec, *algo;
    size_t count;
    dcomm_op op;
    bool in_place;
} setting;

static float *floats(size_t count)
{
    float *x = calloc(count + 1, sizeof *x);
    PROCS_TRUE(x != NULL);
    return x;
}

/* Check that all ranks hold the same bytes. */
static void same_everywhere(dcomm_comm *comm, const void *bytes, size_t len, const char *what)
{
    uint64_t own = ranks_hash(bytes, len), all[PROCS_MAX];
    RANKS_OK(dcomm_allgather(comm, &own, all, 1, DCOMM_U64, NULL));
    for (int r = 0; r < dcomm_comm_size(comm); r++) {
        PROCS_CHECK(all[r] == own, "%s: ranks %d and %d differ", what, dcomm_comm_rank(comm), r);
    }
}

/* Return the squared two-norm of y minus the sum of all ranks' gradients, relative to that of the
 * sum. */
static double error_of(const float *y, size_t count, int n, int step, double factor)
{
    double wrong = 0, all = 0;
    double *sum = calloc(count + 1, sizeof *sum);
    float *x = floats(count);
    PROCS_TRUE(sum != NULL);
    for (int r = 0; r < n; r++) {
        normal_gradient(x, count, r, step);
        for (size_t i = 0; i < count; i++) {
            sum[i] += factor * (double)x[i];
        }
    }
    for (size_t i = 0; i < count; i++) {
        wrong += ((double)y[i] - sum[i]) * ((double)y[i] - sum[i]);
        all += sum[i] * sum[i];
    }
    free(sum);
    free(x);
    return all > 0 ? wrong / all : 0;
}

/* ---- the values ---- */

/* Compute the expected all-gather with dcomm_encode and dcomm_decode: add all encodings in rank
 * order. */
static void expect_allgather(const setting *s, const dcomm_codec *codec, int n, float *y)
{
    size_t bytes;
    unsigned char *wire = malloc(dcomm_codec_max_bytes(codec, s->count) + 1);
    float *x = floats(s->count);
    PROCS_TRUE(wire != NULL);
    for (int r = 0; r < n; r++) {
        normal_gradient(x, s->count, r, 0);
        RANKS_OK(dcomm_encode(codec, x, s->count, NULL, wire,
                              dcomm_codec_max_bytes(codec, s->count), &bytes, NULL, NULL));
        RANKS_OK(r == 0 ? dcomm_decode(codec, wire, bytes, y, s->count)
                        : dcomm_decode_add(codec, wire, bytes, y, s->count));
    }
    free(wire);
    free(x);
}

static int one_call(int rank, int n, procs_shared *shared, void *arg)
{
    setting s = *(setting *)arg;
    ranks_settle(rank, n, s.place);
    dcomm_comm *comm = ranks_join(rank, n, shared, NULL);
    dcomm_codec *codec = make_codec(s.spec);
    dcomm_codec_report report;
    dcomm_coll_opts opts = {.algo = s.algo, .codec = codec, .codec_report = &report};
    const size_t counts[] = {1, 700, 2048, 5000, 300001};
    char what[128];
    for (size_t k = 0; k < sizeof counts / sizeof *counts; k++) {
        s.count = counts[k];
        s.in_place = k % 2 == 1;
        s.op = k % 3 == 2 ? DCOMM_AVG : DCOMM_SUM;
        ranks_buffer in = ranks_buffer_make(4 * s.count, 0),
                     out = ranks_buffer_make(4 * s.count, 0);
        float *y = (float *)(void *)(s.in_place ? in.at : out.at);
        snprintf(what, sizeof what, "%s %s, %d ranks, %zu elements", s.spec, s.algo, n, s.count);
        normal_gradient((float *)(void *)in.at, s.count, rank, 0);
        RANKS_OK(dcomm_allreduce(comm, in.at, y, s.count, DCOMM_F32, s.op, &opts));
        same_everywhere(comm, y, 4 * s.count, what);
        if (strcmp(s.algo, "coded_allgather") == 0 && s.op == DCOMM_SUM && s.count < 100000) {
            float *z = floats(s.count);
            expect_allgather(&s, codec, n, z);
            PROCS_CHECK(memcmp(y, z, 4 * s.count) == 0, "%s: not what the codec computes", what);
            free(z);
        }
        if (strncmp(s.spec, "bf16", 4) == 0) {
            double nmse = error_of(y, s.count, n, 0, s.op == DCOMM_AVG ? 1.0 / n : 1);
            PROCS_CHECK(nmse < 4e-5, "%s: NMSE %g", what, nmse);
        }
        /* Two shards need more elements than this: only one rank of a host has a shard. */
        bool idle = strcmp(s.algo, "coded_hier") == 0 && 4 * s.count < 8192;
        PROCS_CHECK((idle || report.bytes > 0) && report.nonfinite == 0, "%s: %zu bytes", what,
                    report.bytes);
        ranks_buffer_free(&in, what);
        ranks_buffer_free(&out, what);
    }
    dcomm_codec_destroy(&codec);
    return ranks_leave(&comm);
}

/* ---- the ledger of a call ---- */

/* Check the ledger of a rank's own encodings: from a call with a codec only, and from a call with
 * a state, whose ledger is ready after the call. */
static int ledgers(int rank, int n, procs_shared *shared, void *arg)
{
    enum { COUNT = 40000 };
    static const struct {
        const char *spec, *algo;
    } calls[] = {{"topk:k=0.02", "coded_allgather"},         {"topk:k=0.02", "coded_sparse"},
                 {"qsgd:bits=8", "coded_two_shot"},          {"bf16", "coded_two_shot"},
                 {"randk:k=0.1,scale=none", "coded_linear"}, {"powersgd:rank=2", "coded_linear"}};
    (void)arg;
    ranks_settle(rank, n, RANKS_LOCAL);
    dcomm_comm *comm = ranks_join(rank, n, shared, NULL);
    float *x = floats(COUNT), *y = floats(COUNT);
    normal_gradient(x, COUNT, rank, 0);
    for (size_t i = 0; i < sizeof calls / sizeof *calls; i++) {
        dcomm_codec *codec = make_codec(calls[i].spec);
        dcomm_ledger own = {0}, call = {0}, state = {0};
        size_t room = dcomm_codec_max_bytes(codec, COUNT), bytes;
        unsigned char *wire = malloc(room);
        RANKS_OK(dcomm_encode_ledger(codec, x, NULL, NULL, COUNT, NULL, wire, room, &bytes, NULL,
                                     NULL, &own));
        dcomm_codec_report report;
        dcomm_coll_opts opts = {
            .algo = calls[i].algo, .codec = codec, .codec_report = &report, .codec_ledger = &call};
        RANKS_OK(dcomm_allreduce(comm, x, y, COUNT, DCOMM_F32, DCOMM_SUM, &opts));
        PROCS_CHECK(call.nmse > 0.2 * own.nmse && call.nmse < 5 * own.nmse,
                    "%s by %s: NMSE %g, of one encoding %g", calls[i].spec, calls[i].algo,
                    call.nmse, own.nmse);
        PROCS_CHECK(call.count > 0 && call.encoded >= call.count && call.wire_bytes > 0 &&
                        call.bits > 0.5 * own.bits && call.bits < 2 * own.bits,
                    "%s by %s: %g bits, of one encoding %g", calls[i].spec, calls[i].algo,
                    call.bits, own.bits);
        PROCS_CHECK(call.wire_bytes == report.bytes, "%s by %s: %" PRIu64 " bytes, reported %zu",
                    calls[i].spec, calls[i].algo, call.wire_bytes, report.bytes);
        dcomm_feedback *fb = NULL;
        RANKS_OK(dcomm_feedback_create(codec, COUNT, NULL, &fb));
        RANKS_OK(dcomm_feedback_set_ledger(fb, &state));
        call = (dcomm_ledger){0};
        opts = (dcomm_coll_opts){
            .algo = calls[i].algo, .feedback = fb, .codec_report = &report, .codec_ledger = &call};
        RANKS_OK(dcomm_allreduce(comm, x, y, COUNT, DCOMM_F32, DCOMM_SUM, &opts));
        PROCS_CHECK(call.wire_bytes == report.bytes,
                    "%s by %s, feedback: %" PRIu64 " bytes, reported %zu", calls[i].spec,
                    calls[i].algo, call.wire_bytes, report.bytes);
        PROCS_CHECK(call.count == COUNT && call.residual_norm > 0 && call.contraction > 0 &&
                        call.bits > 0,
                    "%s by %s: residual %g, contraction %g", calls[i].spec, calls[i].algo,
                    call.residual_norm, call.contraction);
        PROCS_CHECK(state.encoded == 0, "%s: the state's ledger has %" PRIu64, calls[i].spec,
                    state.encoded);
        opts.codec_ledger = NULL;
        RANKS_OK(dcomm_allreduce(comm, x, y, COUNT, DCOMM_F32, DCOMM_SUM, &opts));
        PROCS_CHECK(state.count == COUNT, "%s: the state's ledger is lost", calls[i].spec);
        dcomm_feedback_destroy(&fb);
        free(wire);
        dcomm_codec_destroy(&codec);
    }
    free(x);
    free(y);
    return ranks_leave(&comm);
}

Test(coded, ledgers_of_calls, .timeout = 60)
{
    run(2, ledgers, NULL);
    run(3, ledgers, NULL);
}

/* Check the ledgers where ranks encode shards of sums. All ranks together count the tensor as
 * often as it crosses between hosts. What they hold back is what the states hold, second shots
 * included. */
typedef struct shards {
    const char *spec;
    dcomm_feedback_opts opts;
    bool average;
} shards;

static int ledgers_of_shards(int rank, int n, procs_shared *shared, void *arg)
{
    enum { COUNT = 40000, STEPS = 3 };
    const shards *c = arg;
    ranks_settle(rank, n, RANKS_PAIRS);
    dcomm_comm *comm = ranks_join(rank, n, shared, NULL);
    dcomm_codec *codec = make_codec(c->spec);
    dcomm_feedback *fb = NULL;
    RANKS_OK(dcomm_feedback_create(codec, COUNT, &c->opts, &fb));
    float *x = floats(COUNT), *y = floats(COUNT);
    for (int step = 0; step < 2 * STEPS; step++) {
        const bool feedback = step < STEPS;
        dcomm_ledger call = {0};
        dcomm_codec_report report;
        dcomm_feedback_info info;
        dcomm_coll_opts opts = {.algo = "coded_hier",
                                .codec = feedback ? NULL : codec,
                                .feedback = feedback ? fb : NULL,
                                .chunk_bytes = 20000,
                                .codec_report = &report,
                                .codec_ledger = &call};
        normal_gradient(x, COUNT, rank, step);
        x[7 * rank] = step == STEPS - 1 ? 2e38f : x[7 * rank]; /* some codecs clip this */
        RANKS_OK(dcomm_allreduce(comm, x, y, COUNT, DCOMM_F32, c->average ? DCOMM_AVG : DCOMM_SUM,
                                 &opts));
        PROCS_CHECK(call.wire_bytes == report.bytes && call.clipped == report.clipped &&
                        call.kept == report.kept,
                    "%s, step %d: %" PRIu64 " bytes, %" PRIu64 " clipped, %" PRIu64
                    " kept; reported %zu, %zu, %zu",
                    c->spec, step, call.wire_bytes, call.clipped, call.kept, report.bytes,
                    report.clipped, report.kept);
        RANKS_OK(dcomm_feedback_get_info(fb, &info));
        const double off = fabs(call.residual_norm - info.worker_norm) / info.worker_norm;
        PROCS_CHECK(!feedback || off <= (c->opts.bf16 ? 0x1p-9 : 1e-6), /* before bf16 rounds it */
                    "%s, step %d: the ledger's residual is %.12g, the state's %.12g", c->spec, step,
                    call.residual_norm, info.worker_norm);
        PROCS_CHECK(call.nmse > 0 && call.nmse < 4 && call.encoded >= call.count,
                    "%s, step %d: NMSE %g, %" PRIu64 " of %" PRIu64, c->spec, step, call.nmse,
                    call.count, call.encoded);
        uint64_t count = call.count;
        RANKS_OK(dcomm_allreduce(comm, DCOMM_IN_PLACE, &count, 1, DCOMM_U64, DCOMM_SUM, NULL));
        PROCS_CHECK(count == (uint64_t)COUNT * (uint64_t)(n / 2),
                    "%s, step %d: %" PRIu64 " elements were compared", c->spec, step, count);
    }
    free(x);
    free(y);
    dcomm_feedback_destroy(&fb);
    dcomm_codec_destroy(&codec);
    return ranks_leave(&comm);
}

Test(coded, ledgers_of_shards, .timeout = 90)
{
    shards of[] = {{"bf16", {0}, false},
                   {"qsgd:bits=8", {.bf16 = true}, true},
                   {"topk:k=0.05", {.variant = DCOMM_FEEDBACK_DGC}, true},
                   {"topk:k=0.05", {0}, false},
                   {"qsgd:bits=4", {.scale = true}, false}};
    for (size_t i = 0; i < sizeof of / sizeof *of; i += procs_step()) {
        run(i % 2 == 0 ? 4 : 6, ledgers_of_shards, &of[i]); /* 6: two shots across */
    }
}

static void values(const char *spec, const char *algo, ranks_place place, int most)
{
    for (int n = 2; n <= most; n++) {
        if (n < most && (n > 2 || most < 4 || PROCS_THIN > 1) && !test_full()) {
            continue;
        }
        setting s = {.place = place, .spec = spec, .algo = algo};
        run(n, one_call, &s);
    }
}

Test(coded, allgather, .timeout = 120)
{
    values("bf16", "coded_allgather", RANKS_LOCAL, 4);
    values("topk:k=0.05", "coded_allgather", RANKS_HOSTS, 3);
}

Test(coded, two_shot, .timeout = 120)
{
    values("bf16", "coded_two_shot", RANKS_LOCAL, 5);
    values("bf16", "two_shot", RANKS_HOSTS, 3);
    values("topk:k=0.05", "coded_two_shot", RANKS_MESSAGE, 3);
    values("sign", "coded_two_shot", RANKS_HOSTS, 3);
}

Test(coded, sparse, .timeout = 120)
{
    values("topk:k=0.05", "coded_sparse", RANKS_LOCAL, 5);
    values("topk:k=0.01,values=bf16", "sparse", RANKS_HOSTS, 3);
    values("topk:k=7", "coded_sparse", RANKS_MESSAGE, 4);
    values("threshold:k=0.02", "coded_sparse", RANKS_LOCAL, 3);
}

Test(coded, between_hosts, .timeout = 60)
{
    setting s = {.place = RANKS_PAIRS, .spec = "bf16", .algo = "coded_hier"};
    run(4, one_call, &s);
}

/* ---- how far off: from an unbiased quantizer's variance to the error of a sum ---- */

/* Return the variance of the sum, relative to one contribution, for independent contributions and
 * a variance factor of `omega`. Each encoding adds `omega` times what it encodes, earlier errors
 * included. */
static double variance_of(const char *algo, int n, double omega)
{
    double error = n * omega;
    if (strcmp(algo, "coded_two_shot") == 0) { /* about 2 omega n */
        error += omega * (n + error);
    }
    return error;
}

static int error_grows(int rank, int n, procs_shared *shared, void *arg)
{
    enum { COUNT = 65536, STEPS = 4 };
    const char *algo = arg;
    size_t bytes;
    ranks_settle(rank, n, RANKS_LOCAL);
    dcomm_comm *comm = ranks_join(rank, n, shared, NULL);
    dcomm_codec *codec = make_codec("qsgd:bits=4,bucket=512");
    float *x = floats(COUNT), *y = floats(COUNT);
    unsigned char *wire = malloc(dcomm_codec_max_bytes(codec, COUNT));
    PROCS_TRUE(wire != NULL);
    double one = 0, sum = 0;
    for (int step = 0; step < STEPS; step++) {
        dcomm_codec_key key = {.step = (uint64_t)step + 1000};
        dcomm_coll_opts opts = {.algo = algo, .codec = codec, .chunk_bytes = 16384};
        dcomm_ledger ledger = {0};
        normal_gradient(x, COUNT, rank, step);
        RANKS_OK(dcomm_encode(codec, x, COUNT, &key, wire, dcomm_codec_max_bytes(codec, COUNT),
                              &bytes, NULL, NULL));
        RANKS_OK(dcomm_decode(codec, wire, bytes, y, COUNT));
        dcomm_ledger_compare(&ledger, x, y, COUNT);
        one += ledger.nmse / STEPS;
        RANKS_OK(dcomm_allreduce(comm, x, y, COUNT, DCOMM_F32, DCOMM_SUM, &opts));
        sum += error_of(y, COUNT, n, step, 1) / STEPS;
    }
    double wanted = variance_of(algo, n, one) / n;
    PROCS_CHECK(fabs(sum - wanted) < 0.07 * wanted, "%s, %d ranks: NMSE %g, not %g; of one %g",
                algo, n, sum, wanted, one);
    free(wire);
    free(x);
    free(y);
    dcomm_codec_destroy(&codec);
    return ranks_leave(&comm);
}

Test(coded, error_is_flat_with_two_shots, .timeout = 120)
{
    static const char *const algos[] = {"coded_allgather", "coded_two_shot"};
    for (int n = test_full() ? 2 : 4; n <= (PROCS_THIN == 1 && test_full() ? 8 : 4); n *= 2) {
        for (size_t a = 0; a < 2; a += procs_step()) {
            run(n, error_grows, (void *)(uintptr_t)algos[a]);
        }
    }
}

/* ---- types, operators, calls that are not compressed ---- */

static int kinds(int rank, int n, procs_shared *shared, void *arg)
{
    enum { COUNT = 4000 };
    static double in[COUNT], out[COUNT];
    (void)arg;
    ranks_settle(rank, n, RANKS_LOCAL);
    dcomm_comm *comm = ranks_join(rank, n, shared, NULL);
    dcomm_codec *codec = make_codec("bf16");
    dcomm_coll_opts opts = {.codec = codec, .premul = rank + 1.0};
    dcomm_codec_report report;
    static const dcomm_dtype types[] = {DCOMM_F64, DCOMM_F16, DCOMM_BF16, DCOMM_F32};
    for (int t = 0; t < 4; t++) {
        for (int premul = 0; premul < 2; premul++) {
            for (int i = 0; i < COUNT; i++) { /* small whole numbers pass bf16 unchanged */
                ranks_put(in, (size_t)i, types[t], (i + rank) % 7);
            }
            dcomm_op op = premul ? DCOMM_PREMUL_SUM : DCOMM_SUM;
            opts.codec_report = &report;
            RANKS_OK(dcomm_allreduce(comm, in, out, COUNT, types[t], op, &opts));
            PROCS_CHECK(report.bytes > 0, "%s was not compressed", dcomm_dtype_name(types[t]));
            for (int i = 0; i < COUNT; i++) {
                double sum = 0;
                for (int r = 0; r < n; r++) {
                    sum += (premul ? r + 1.0 : 1.0) * ((i + r) % 7);
                }
                double got = ranks_get(out, (size_t)i, types[t]);
                PROCS_CHECK(got == sum, "%s[%d] is %g, not %g", dcomm_dtype_name(types[t]), i, got,
                            sum);
            }
        }
    }
    /* Integers, and tensors too short to gain from compression, are exact. */
    static int32_t whole[COUNT];
    for (int i = 0; i < COUNT; i++) {
        whole[i] = 1000000007 + rank;
    }
    opts = (dcomm_coll_opts){.codec = codec};
    RANKS_OK(dcomm_allreduce(comm, DCOMM_IN_PLACE, whole, 1, DCOMM_I32, DCOMM_MAX, NULL));
    PROCS_TRUE(whole[0] == 1000000007 + n - 1);
    whole[0] = whole[1];
    RANKS_OK(dcomm_allreduce(comm, DCOMM_IN_PLACE, whole, COUNT, DCOMM_U32, DCOMM_SUM, &opts));
    uint32_t all = 0;
    for (int r = 0; r < n; r++) {
        all += 1000000007u + (uint32_t)r;
    }
    PROCS_TRUE((uint32_t)whole[COUNT - 1] == all);
    float exact[100];
    for (int i = 0; i < 100; i++) {
        exact[i] = 1.0009765625f; /* not representable in bf16 */
    }
    RANKS_OK(dcomm_allreduce(comm, DCOMM_IN_PLACE, exact, 100, DCOMM_F32, DCOMM_AVG, &opts));
    PROCS_TRUE(exact[99] == 1.0009765625f);
    /* A call without a compressed form is refused before anything is sent. */
    static float x[COUNT];
    PROCS_TRUE(dcomm_broadcast(comm, x, x, COUNT, DCOMM_F32, 0, &opts) == DCOMM_ERR_UNSUPPORTED);
    PROCS_TRUE(dcomm_allreduce(comm, x, x, COUNT, DCOMM_F32, DCOMM_MAX, &opts) ==
               DCOMM_ERR_UNSUPPORTED);
    opts.algo = "tree";
    PROCS_TRUE(dcomm_allreduce(comm, x, x, COUNT, DCOMM_F32, DCOMM_SUM, &opts) ==
               DCOMM_ERR_UNSUPPORTED);
    PROCS_TRUE(strstr(dcomm_last_error(), "coded_two_shot") != NULL);
    opts = (dcomm_coll_opts){.algo = "coded_two_shot"};
    PROCS_TRUE(dcomm_allreduce(comm, x, x, COUNT, DCOMM_F32, DCOMM_SUM, &opts) ==
               DCOMM_ERR_UNSUPPORTED);
    PROCS_TRUE(strstr(dcomm_last_error(), "codec") != NULL);
    /* Encodings that are summed before they are decoded have no order of ranks. */
    dcomm_codec *linear = make_codec("powersgd:rank=3");
    for (int i = 0; i < 2; i++) {
        opts = (dcomm_coll_opts){
            .codec = linear, .deterministic = 1, .algo = i > 0 ? "coded_linear" : NULL};
        ranks_refused(dcomm_allreduce(comm, x, x, COUNT, DCOMM_F32, DCOMM_SUM, &opts),
                      DCOMM_ERR_UNSUPPORTED, "codec powersgd:rank=3,");
        PROCS_TRUE(strstr(dcomm_last_error(), "cannot fold in rank order, which deterministic") !=
                   NULL);
        PROCS_TRUE(strstr(dcomm_last_error(), "leave these options out, or take a codec") != NULL);
    }
    RANKS_OK(dcomm_barrier(comm, NULL));
    dcomm_codec_destroy(&linear);
    dcomm_codec_destroy(&codec);
    return ranks_leave(&comm);
}

Test(coded, types_and_operators, .timeout = 60)
{
    run(3, kinds, NULL);
}

/* ---- error feedback ---- */

typedef struct course {
    const char *spec, *algo;
    dcomm_feedback_opts opts;
    int quiet; /* steps of zeros at the end, in which the residuals drain */
    double within;
    ranks_place place;
    bool average;
} course;

/* In the end the results add up to all that went in. */
static int conserve(int rank, int n, procs_shared *shared, void *arg)
{
    enum { COUNT = 6000, STEPS = 30 };
    const course *c = arg;
    ranks_settle(rank, n, c->place);
    dcomm_comm *comm = ranks_join(rank, n, shared, NULL);
    dcomm_codec *codec = make_codec(c->spec);
    dcomm_feedback *fb = NULL;
    RANKS_OK(dcomm_feedback_create(codec, COUNT, &c->opts, &fb));
    dcomm_coll_opts opts = {.algo = c->algo, .feedback = fb};
    opts.chunk_bytes =
        c->place == RANKS_PAIRS ? 8192 : 0; /* several chunks, each cut into shards */
    float *x = floats(COUNT), *y = floats(COUNT);
    double *left = calloc(COUNT, sizeof *left), *out = calloc(COUNT, sizeof *out);
    PROCS_TRUE(left != NULL && out != NULL);
    for (int step = 0; step < STEPS + c->quiet; step++) {
        for (int r = 0; r < n && step < STEPS; r++) {
            normal_gradient(x, COUNT, r, step);
            for (int i = 0; i < COUNT; i++) {
                left[i] += (double)x[i];
            }
        }
        memset(x, 0, COUNT * sizeof *x);
        if (step < STEPS) {
            normal_gradient(x, COUNT, rank, step);
        }
        RANKS_OK(dcomm_allreduce(comm, x, y, COUNT, DCOMM_F32, c->average ? DCOMM_AVG : DCOMM_SUM,
                                 &opts));
        for (int i = 0; i < COUNT; i++) {
            out[i] += (double)y[i] * (c->average ? n : 1);
        }
    }
    same_everywhere(comm, out, COUNT * sizeof *out, c->spec);
    for (int i = 0; i < COUNT; i++) {
        PROCS_CHECK(fabs(left[i] - out[i]) <= c->within, "%s, %s: of %g in element %d came %g",
                    c->spec, c->algo, left[i], i, out[i]);
    }
    dcomm_feedback_info info;
    RANKS_OK(dcomm_feedback_get_info(fb, &info));
    PROCS_TRUE(info.step == (uint64_t)(STEPS + c->quiet) && !info.stale && !info.begun);
    free(left);
    free(out);
    free(x);
    free(y);
    dcomm_feedback_destroy(&fb);
    dcomm_codec_destroy(&codec);
    return ranks_leave(&comm);
}

Test(coded, feedback_loses_nothing, .timeout = 120)
{
    course courses[] = {
        {"topk:k=0.05", "coded_allgather", {0}, 60, 1e-4, RANKS_LOCAL, false},
        {"topk:k=0.05", "coded_two_shot", {.in_place = true}, 120, 1e-4, RANKS_LOCAL, false},
        {"topk:k=0.05", "coded_sparse", {0}, 80, 1e-4, RANKS_LOCAL, false},
        {"topk:k=0.1,values=bf16",
         "coded_sparse",
         {.in_place = true},
         120,
         1e-3,
         RANKS_LOCAL,
         false},
        {"threshold:k=0.05", "sparse", {0}, 100, 1e-4, RANKS_LOCAL, false},
        {"topk:k=1", "coded_sparse", {.variant = DCOMM_FEEDBACK_EF21}, 0, 300, RANKS_LOCAL, false},
        {"bf16", "coded_two_shot", {0}, 10, 1e-4, RANKS_LOCAL, false},
        {"bf16", "two_shot", {.in_place = true}, 20, 1e-4, RANKS_LOCAL, false},
        {"qsgd:bits=4", "coded_two_shot", {.scale = true}, 120, 1e-4, RANKS_LOCAL, false},
        {"fp8", NULL, {0}, 15, 1e-4, RANKS_LOCAL, false},
        {"randk:k=0.1,scale=none", "coded_linear", {0}, 250, 1e-4, RANKS_LOCAL, false},
        {"powersgd:rank=4", NULL, {0}, 60, 1e-3, RANKS_LOCAL, false},
        {"powersgd:rank=3,turns=3", NULL, {0}, 80, 1e-3, RANKS_LOCAL, false},
        {"bf16", "coded_allgather", {.variant = DCOMM_FEEDBACK_EF21}, 0, 0.5, RANKS_LOCAL, false},
    };
    for (size_t i = 0; i < sizeof courses / sizeof *courses; i += PROCS_THIN) {
        if (i % 2 == 0 || test_full()) {
            run(3, conserve, &courses[i]);
        }
        courses[i].average = true;
        if (i % 2 == 1 || test_full()) {
            run(2, conserve, &courses[i]);
        }
    }
}

Test(coded, feedback_loses_nothing_between_hosts, .timeout = 120)
{
    course courses[] = {
        {"topk:k=0.05", "coded_hier", {0}, 60, 1e-4, RANKS_PAIRS, false},
        {"bf16", "coded_hier", {.in_place = true}, 10, 1e-4, RANKS_PAIRS, true},
        {"qsgd:bits=4", "coded_hier", {.scale = true}, 120, 1e-4, RANKS_PAIRS, false},
        {"sign", "hier", {.bf16 = true}, 0, 300, RANKS_PAIRS, false},
    };
    const size_t step = procs_step() > 1 ? 2 : 1;
    for (size_t i = 0; i < sizeof courses / sizeof *courses; i += step) {
        for (int n = 4; n <= 6; n++) { /* 3 hosts: two shots across; 5 ranks: a host of one */
            if (((size_t)n + i) % (size_t)procs_third() == 0) {
                run(n, conserve, &courses[i]);
            }
        }
    }
}

/* An algorithm that has just run classic feedback still refuses the variants that it does not
 * support. */
static int kinds_of_feedback(int rank, int n, procs_shared *shared, void *arg)
{
    enum { COUNT = 6000 };
    static float x[COUNT], y[COUNT];
    static const struct {
        const char *algo, *spec;
        dcomm_feedback_opts opts;
    } refused[] = {
        {"coded_hier", "topk:k=0.05", {.variant = DCOMM_FEEDBACK_DGC, .clip = 1}},
        {"coded_hier", "bf16", {.variant = DCOMM_FEEDBACK_EF21}},
    };
    (void)arg;
    ranks_settle(rank, n, RANKS_PAIRS);
    dcomm_comm *comm = ranks_join(rank, n, shared, NULL);
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        dcomm_codec *codec = make_codec(refused[i].spec);
        dcomm_feedback *classic = NULL, *other = NULL;
        RANKS_OK(dcomm_feedback_create(codec, COUNT, NULL, &classic));
        RANKS_OK(dcomm_feedback_create(codec, COUNT, &refused[i].opts, &other));
        dcomm_coll_opts opts = {.algo = refused[i].algo, .feedback = classic};
        RANKS_OK(dcomm_allreduce(comm, x, y, COUNT, DCOMM_F32, DCOMM_SUM, &opts));
        opts.feedback = other;
        PROCS_CHECK(dcomm_allreduce(comm, x, y, COUNT, DCOMM_F32, DCOMM_SUM, &opts) ==
                        DCOMM_ERR_UNSUPPORTED,
                    "%s, case %zu", refused[i].algo, i);
        dcomm_feedback_destroy(&classic);
        dcomm_feedback_destroy(&other);
        dcomm_codec_destroy(&codec);
    }
    return ranks_leave(&comm);
}

Test(coded, kinds_of_feedback, .timeout = 60)
{
    run(4, kinds_of_feedback, NULL);
}

/* ---- linear codecs ---- */

/* Matrices of rank 1 with the same columns add up to a matrix of rank 1, so rank 1 loses
 * nothing. */
static int low_rank(int rank, int n, procs_shared *shared, void *arg)
{
    enum { SIDE = 80, COUNT = SIDE * SIDE };
    static float x[COUNT], y[COUNT];
    (void)arg;
    ranks_settle(rank, n, RANKS_PAIRS);
    dcomm_comm *comm = ranks_join(rank, n, shared, NULL);
    dcomm_codec *codec = make_codec("powersgd:rank=1");
    dcomm_coll_opts opts = {.codec = codec};
    dcomm_stats before, after;
    for (int i = 0; i < COUNT; i++) {
        x[i] = (float)(rank + 1) * (float)(i / SIDE % 7 - 3) * (float)(i % SIDE % 5 + 1);
    }
    RANKS_OK(dcomm_comm_get_stats(comm, &before));
    RANKS_OK(dcomm_allreduce(comm, x, y, COUNT, DCOMM_F32, DCOMM_AVG, &opts));
    RANKS_OK(dcomm_comm_get_stats(comm, &after));
    same_everywhere(comm, y, sizeof y, "powersgd");
    double mean = (n + 1) / 2.0;
    for (int i = 0; i < COUNT; i++) {
        double wanted = mean * (i / SIDE % 7 - 3) * (i % SIDE % 5 + 1);
        PROCS_CHECK(fabs((double)y[i] - wanted) < 1e-3, "element %d is %g, not %g", i, (double)y[i],
                    wanted);
    }
    PROCS_TRUE(after.bytes_sent - before.bytes_sent < COUNT); /* uncompressed: 4 COUNT */
    dcomm_codec_destroy(&codec);
    return ranks_leave(&comm);
}

Test(coded, powersgd_sums_before_it_decodes, .timeout = 60)
{
    run(4, low_rank, NULL);
}

/* Check the use of `turns`: from a random start, a second turn finds the larger of many columns
 * better than the first. Each turn costs two sums. */
static int turned(int rank, int n, procs_shared *shared, void *arg)
{
    enum { SIDE = 64, COUNT = SIDE * SIDE };
    static const char *const specs[] = {"powersgd:rank=2", "powersgd:rank=2,turns=4"};
    static float x[COUNT], y[COUNT];
    double off[2] = {0};
    uint64_t sent[2], sizes[2];
    (void)arg;
    ranks_settle(rank, n, RANKS_PAIRS);
    dcomm_comm *comm = ranks_join(rank, n, shared, NULL);
    for (int i = 0; i < COUNT; i++) {
        x[i] = 0;
        for (int k = 0; k < 8; k++) { /* cosines of falling weight */
            double row = cos(3.14159265 * k * (i / SIDE + 0.5) / SIDE);
            double column = cos(3.14159265 * k * (i % SIDE + 0.5) / SIDE);
            x[i] += (float)(pow(0.6, k) * row * column);
        }
    }
    for (int t = 0; t < 2; t++) {
        dcomm_codec *codec = make_codec(specs[t]);
        dcomm_codec_report report;
        dcomm_coll_opts opts = {.codec = codec, .codec_report = &report};
        dcomm_stats before, after;
        RANKS_OK(dcomm_comm_get_stats(comm, &before));
        RANKS_OK(dcomm_allreduce(comm, x, y, COUNT, DCOMM_F32, DCOMM_AVG, &opts));
        RANKS_OK(dcomm_comm_get_stats(comm, &after));
        same_everywhere(comm, y, sizeof y, specs[t]);
        for (int i = 0; i < COUNT; i++) {
            off[t] += ((double)y[i] - (double)x[i]) * ((double)y[i] - (double)x[i]);
        }
        sent[t] = after.bytes_sent - before.bytes_sent;
        sizes[t] = report.bytes;
        PROCS_CHECK(report.kept == COUNT, "%zu", report.kept);
        dcomm_codec_destroy(&codec);
    }
    PROCS_CHECK(off[1] < 0.9 * off[0], "off by %g in four turns, by %g in one", off[1], off[0]);
    PROCS_CHECK(sent[1] > 3 * sent[0] && sizes[1] == 4 * sizes[0], "%lu and %lu bytes",
                (unsigned long)sent[0], (unsigned long)sent[1]);
    return ranks_leave(&comm);
}

Test(coded, powersgd_in_several_turns, .timeout = 60)
{
    run(4, turned, NULL);
}

/* A saved and loaded state continues like the original one, and starts with the same Q. */
static int saved(int rank, int n, procs_shared *shared, void *arg)
{
    enum { COUNT = 5000 };
    static float x[COUNT], y[2][COUNT];
    (void)arg;
    ranks_settle(rank, n, RANKS_LOCAL);
    dcomm_comm *comm = ranks_join(rank, n, shared, NULL);
    dcomm_codec *codec = make_codec("powersgd:rank=2");
    dcomm_feedback *fb[2] = {NULL};
    RANKS_OK(dcomm_feedback_create(codec, COUNT, NULL, &fb[0]));
    dcomm_coll_opts opts = {.feedback = fb[0]};
    for (int step = 0; step < 4; step++) {
        normal_gradient(x, COUNT, rank, step);
        RANKS_OK(dcomm_allreduce(comm, x, y[0], COUNT, DCOMM_F32, DCOMM_SUM, &opts));
    }
    size_t bytes = dcomm_feedback_save_bytes(fb[0]);
    unsigned char *room = malloc(bytes);
    RANKS_OK(dcomm_feedback_save(fb[0], room, bytes));
    RANKS_OK(dcomm_feedback_load(codec, room, bytes, &fb[1]));
    PROCS_TRUE(dcomm_feedback_save_bytes(fb[1]) == bytes);
    for (size_t cut = 1; cut < 8 * 80; cut += 8) {
        dcomm_feedback *none = NULL;
        PROCS_TRUE(dcomm_feedback_load(codec, room, bytes - cut, &none) == DCOMM_ERR_CORRUPT);
    }
    for (int step = 4; step < 6; step++) {
        normal_gradient(x, COUNT, rank, step);
        for (int i = 0; i < 2; i++) {
            opts.feedback = fb[i];
            RANKS_OK(dcomm_allreduce(comm, x, y[i], COUNT, DCOMM_F32, DCOMM_SUM, &opts));
        }
        PROCS_CHECK(memcmp(y[0], y[1], sizeof y[0]) == 0, "step %d differs", step);
    }
    free(room);
    dcomm_feedback_destroy(&fb[0]);
    dcomm_feedback_destroy(&fb[1]);
    dcomm_codec_destroy(&codec);
    return ranks_leave(&comm);
}

Test(coded, powersgd_goes_on_after_a_save, .timeout = 60)
{
    run(3, saved, NULL);
}

/* ---- many at once ---- */

static int overlapping(int rank, int n, procs_shared *shared, void *arg)
{
    enum { COUNT = 20000, CALLS = 6 };
    (void)arg;
    ranks_settle(rank, n, RANKS_LOCAL);
    dcomm_comm *comm = ranks_join(rank, n, shared, NULL);
    dcomm_codec *codec = make_codec("bf16");
    dcomm_coll_opts opts = {.codec = codec};
    float *x[CALLS];
    dcomm_request *requests[CALLS];
    for (int i = 0; i < CALLS; i++) {
        x[i] = floats(COUNT);
        normal_gradient(x[i], COUNT, rank, i);
        RANKS_OK(dcomm_iallreduce(comm, DCOMM_IN_PLACE, x[i], COUNT, DCOMM_F32, DCOMM_SUM,
                                  i % 3 == 2 ? NULL : &opts, &requests[i]));
    }
    RANKS_OK(dcomm_wait_all(requests, CALLS));
    for (int i = 0; i < CALLS; i++) {
        double nmse = error_of(x[i], COUNT, n, i, 1);
        PROCS_CHECK(nmse < (i % 3 == 2 ? 1e-10 : 4e-5), "call %d: %g", i, nmse);
        free(x[i]);
    }
    dcomm_codec_destroy(&codec);
    return ranks_leave(&comm);
}

Test(coded, many_at_once, .timeout = 60)
{
    run(4, overlapping, NULL);
}
