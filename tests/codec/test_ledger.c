/* test_ledger.c - the ledger's figures match their definitions and the state of error feedback. */
#define _GNU_SOURCE
#pragma GCC diagnostic ignored "-Wunused-function"
#define DCOMM_NO_COMM
#define DCOMM_IMPLEMENTATION
#include "dcomm/all.h"

#include "feedback_books.h"
#include "full.h"

Test(ledger, against_the_definitions)
{
    enum { N = 1003 };
    static float x[N], y[N];
    static double wide[N];
    codec_input in;
    double xx = 0, yy = 0, xy = 0, ee = 0, bias = 0, size = 0;
    input(&in, "gaussian");
    input_fill(&in, 0, 0, 0, N, x);
    input_fill(&in, 1, 0, 0, N, y);
    for (int i = 0; i < N; i++) {
        y[i] = 0.9f * x[i] + 0.1f * y[i];
        wide[i] = (double)x[i];
        double e = (double)y[i] - (double)x[i];
        xx += (double)x[i] * (double)x[i];
        yy += (double)y[i] * (double)y[i];
        xy += (double)x[i] * (double)y[i];
        ee += e * e;
        bias += x[i] > 0 ? e : -e;
        size += fabs((double)x[i]);
    }
    dcomm_ledger l = {0}, parts = {0}, other = {0}, f64 = {0};
    dcomm_ledger_compare(&l, x, y, N);
    cr_assert_eq(l.count, N);
    cr_assert_float_eq(l.nmse, ee / xx, 1e-9);
    cr_assert_float_eq(l.cosine, xy / sqrt(xx * yy), 1e-12);
    cr_assert_float_eq(l.mean_signed_error, bias / size, 1e-9);
    dcomm_ledger_compare(&parts, x, y, 400);
    dcomm_ledger_compare(&other, x + 400, y + 400, N - 400);
    dcomm_ledger_merge(&parts, &other);
    cr_assert_float_eq(parts.nmse, l.nmse, 1e-12);
    const dcomm_codec_report told = {.bytes = 5, .kept = 4, .clipped = 3, .nonfinite = 2};
    dcomm_ledger_encoded(&parts, 10, &told);
    other = parts;
    dcomm_ledger_merge(&parts, &other);
    cr_assert(parts.encoded == 20 && parts.wire_bytes == 10 && parts.kept == 8);
    cr_assert(parts.clipped == 6 && parts.nonfinite == 4);
    dcomm_ledger_compare_f64(&f64, wide, y, N); /* errors of f64 are not rounded to f32 */
    cr_assert_float_eq(f64.nmse, l.nmse, 1e-9);
    cr_assert_eq(f64.count, l.count);
    x[5] = NAN;
    y[6] = INFINITY;
    l = (dcomm_ledger){0};
    dcomm_ledger_compare(&l, x, y, N);
    cr_assert_eq(l.count, N - 2);
    cr_assert(isfinite(l.nmse));
    l = (dcomm_ledger){0};
    dcomm_ledger_compare(&l, x, x, 0);
    cr_assert_eq(l.nmse, 0);
}

/* With feedback the residual's norm and the measured contraction are those of the state. */
Test(ledger, of_a_state)
{
    enum { N = 1600 };
    for (int variant = 0; variant < DCOMM_FEEDBACK_VARIANT_COUNT; variant++) {
        dcomm_codec *codec;
        dcomm_feedback *fb = NULL;
        codec_input in;
        dcomm_ledger l;
        dcomm_feedback_info info;
        float before[N];
        size_t bytes, total = 0;
        input(&in, "constant");
        GOOD(dcomm_codec_create("topk:k=0.25", &codec));
        GOOD(dcomm_feedback_create(
            codec, N,
            &(dcomm_feedback_opts){.variant = (dcomm_feedback_variant)variant, .momentum = -1},
            &fb));
        for (uint64_t s = 0; s < 6; s++) {
            double ee = 0;
            memset(&l, 0, sizeof l);
            GOOD(dcomm_feedback_set_ledger(fb, &l));
            input_fill(&in, 0, s, 0, N, gradient[0]);
            memcpy(before, fb->worker.now, sizeof before);
            GOOD(dcomm_feedback_begin(fb, &(dcomm_feedback_step){.x = gradient[0]}));
            for (size_t at = 0; at < N; at += N / 4) {
                GOOD(dcomm_feedback_encode(fb, at, N / 4, again, sizeof again, &bytes, NULL));
                GOOD(dcomm_decode(codec, again, bytes, result + at, N / 4));
                total += bytes;
            }
            GOOD(dcomm_feedback_finish(fb, 0, N, result));
            GOOD(dcomm_feedback_commit(fb));
            GOOD(dcomm_feedback_get_info(fb, &info));
            for (int i = 0; i < N; i++) {
                double e = variant == DCOMM_FEEDBACK_EF21
                               ? (double)gradient[0][i] - (double)before[i]
                               : (double)gradient[0][i] + (double)before[i];
                ee += e * e;
            }
            if (variant != DCOMM_FEEDBACK_EF21) {
                cr_assert_float_eq(l.residual_norm, info.worker_norm, 1e-6);
            }
            cr_assert_float_eq(l.contraction, l.residual_norm * l.residual_norm / ee, 1e-6);
            cr_assert(l.contraction <= 0.75 + 1e-6);
            cr_assert(s > 0 || l.contraction > 0.75 - 1e-6); /* equal if all magnitudes are */
            cr_assert_eq(l.count, N);
            cr_assert_eq(l.kept, N / 4);
            cr_assert_eq(l.wire_bytes, total);
            total = 0;
        }
        dcomm_feedback_destroy(&fb);
        dcomm_codec_destroy(&codec);
    }
}

/* ---- a ledger filled in the encoding pass ---- */

/* Compare two sums whose terms cancel; `size` is the scale of the terms. */
static bool near(double a, double b, double size)
{
    return fabs(a - b) <= 1e-13 * size;
}

/* Add what an encoding with feedback held back: `next` is left after `sent`. */
static void held_back(dcomm_ledger *ledger, const float *sent, const float *next, size_t count)
{
    dcommi_tally t = {.x = NULL};
    dcommi_tally_held(&t, sent, next, count);
    dcommi_ledger_add(ledger, &t);
}

/* Encode with and without a ledger, then compare in separate passes. Return the ledger. */
static dcomm_ledger counted(const dcomm_codec *codec, const float *x, const float *residual,
                            size_t n, const char *what)
{
    size_t room = dcomm_codec_max_bytes(codec, n), bytes, plain_bytes;
    float *next = malloc(4 * n + 4), *plain_next = malloc(4 * n + 4), *y = malloc(4 * n + 4);
    unsigned char *one = malloc(room + 1), *two = malloc(room + 1);
    dcomm_codec_key key = {.seed = 3};
    dcomm_codec_report report = {0}, plain = {0};
    dcomm_ledger ledger = {0}, passes = {0};
    dcomm_status status = dcomm_encode_ledger(codec, x, residual, next, n, &key, one, room, &bytes,
                                              NULL, &report, &ledger);
    cr_assert(status == DCOMM_OK || report.nonfinite > 0, "%s: %s", what, dcomm_last_error());
    cr_assert_eq(status,
                 residual == NULL
                     ? dcomm_encode(codec, x, n, &key, two, room, &plain_bytes, NULL, &plain)
                     : dcomm_encode_feedback(codec, x, residual, plain_next, n, &key, two, room,
                                             &plain_bytes, NULL, &plain));
    cr_assert(bytes == plain_bytes && memcmp(one, two, bytes) == 0, "%s: other bytes", what);
    cr_assert_eq(memcmp(&report, &plain, sizeof report), 0);
    GOOD(dcomm_decode(codec, one, bytes, y, n));
    dcomm_ledger_compare(&passes, x, y, n);
    if (residual != NULL) {
        cr_assert_eq(memcmp(next, plain_next, 4 * n), 0, "%s: another residual", what);
        held_back(&passes, y, next, n);
        const double held = sqrt(passes.sums[DCOMMI_LEDGER_RESIDUAL]);
        cr_assert(near(ledger.residual_norm, held, 1e3 * (1 + held)), "%s", what);
    }
    cr_assert_eq(ledger.count, passes.count, "%s", what);
    cr_assert(ledger.encoded == n && ledger.wire_bytes == bytes && ledger.kept == report.kept &&
              ledger.clipped == report.clipped && ledger.nonfinite == report.nonfinite);
    for (int s = 0; s < DCOMMI_LEDGER_SUMS; s++) {
        double size = s == DCOMMI_LEDGER_SIGNED ? passes.sums[DCOMMI_LEDGER_X]
                      : s == DCOMMI_LEDGER_RESIDUAL
                          ? passes.sums[DCOMMI_LEDGER_ENCODED]
                          : passes.sums[DCOMMI_LEDGER_XX] + fabs(passes.sums[s]);
        /* topk adds gradient and residual; the separate passes add `sent` and the rest. Both round
         * to f32. */
        size *= s >= DCOMMI_LEDGER_ENCODED ? 1e5 : 10;
        cr_assert(near(ledger.sums[s], passes.sums[s], size), "%s: sum %d is %.17g, not %.17g",
                  what, s, ledger.sums[s], passes.sums[s]);
    }
    free(next);
    free(plain_next);
    free(y);
    free(one);
    free(two);
    return ledger;
}

static void in_the_pass(const char *spec, const float *x, const float *residual, size_t n)
{
    dcomm_codec *codec;
    char what[160];
    GOOD(dcomm_codec_create(spec, &codec));
    for (int feedback = 0; feedback < 2; feedback++) {
        dcomm_ledger first = {0};
        for (int isa = 0; isa <= (int)dcommi_isa_best(); isa++) {
            dcommi_isa_force(isa);
            snprintf(what, sizeof what, "%s, %zu elements, feedback %d, %s", spec, n, feedback,
                     dcommi_isa_names[isa]);
            dcomm_ledger l = counted(codec, x, feedback ? residual : NULL, n, what);
            first = isa == 0 ? l : first;
            cr_assert_eq(memcmp(l.sums, first.sums, sizeof l.sums), 0, "%s: other sums", what);
        }
    }
    dcommi_isa_force(-1);
    dcomm_codec_destroy(&codec);
}

/* The ledger filled while encoding equals a comparison afterwards, is the same for every
 * instruction set, and does not change the encoding. */
Test(ledger, in_the_same_pass_as_the_encoding)
{
    enum { MANY = 30011 };
    static const size_t sizes[] = {0, 1, 17, 700, 5000, MANY};
    static float x[MANY], residual[MANY];
    codec_input in;
    input(&in, "lognormal:sigma=2");
    input_fill(&in, 0, 0, 0, MANY, x);
    input_fill(&in, 1, 0, 0, MANY, residual);
    for (int c = 0; c < SPECS; c++) {
        for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
            in_the_pass(specs[c], x, residual, sizes[s]);
        }
    }
}

Test(ledger, leaves_out_what_is_not_finite)
{
    enum { MANY = 3000 };
    static const char *const policies[] = {"zero", "pass", "fail"};
    static float x[MANY], residual[MANY];
    codec_input in;
    input(&in, "gaussian");
    input_fill(&in, 0, 0, 0, MANY, x);
    input_fill(&in, 1, 0, 0, MANY, residual);
    x[0] = NAN;
    x[700] = INFINITY;
    x[2999] = -INFINITY;
    for (int c = 0; c < SPECS; c++) {
        for (int p = 0; p < 3; p++) {
            char spec[128];
            snprintf(spec, sizeof spec, "%s%snonfinite=%s", specs[c],
                     strchr(specs[c], ':') != NULL ? "," : ":", policies[p]);
            in_the_pass(spec, x, residual, MANY);
        }
    }
}

/* Finite numbers whose difference overflows: the decoded value is clipped, and has the residual's
 * sign. */
Test(ledger, leaves_out_what_overflows)
{
    enum { MANY = 3000 };
    static float x[MANY], residual[MANY];
    codec_input in;
    input(&in, "gaussian");
    input_fill(&in, 0, 0, 0, MANY, x);
    for (size_t i = 0; i < MANY; i += 100) {
        x[i] = -1.5e38f;
        residual[i] = 3.4e38f;
    }
    in_the_pass("randk:k=1500", x, residual, MANY);
}

/* A few numbers so large that all others vanish beside them. The residual of the others must not
 * be lost in a sum that has held the large ones. */
Test(ledger, large_numbers_hide_nothing)
{
    enum { MANY = 20000 };
    static const char *const sending[] = {"topk:k=0.01", "topk:k=0.3,values=bf16",
                                          "threshold:k=0.01", "topk+qsgd:k=0.05,bits=8",
                                          "randk:k=20000,scale=none"};
    static const float large[] = {1e4f, 1e12f, 1e38f, 3.3e38f};
    static float x[MANY], residual[MANY], next[MANY], y[MANY];
    static unsigned char to[5 * MANY];
    codec_input in;
    input(&in, "gaussian");
    for (size_t c = 0; c < 4 * (sizeof sending / sizeof *sending); c++) {
        const char *spec = sending[c / 4];
        dcomm_codec *codec;
        dcomm_ledger l = {0};
        size_t bytes;
        double held = 0, wrong = 0, all = 0;
        GOOD(dcomm_codec_create(spec, &codec));
        input_fill(&in, 0, 0, 0, MANY, x);
        input_fill(&in, 1, 0, 0, MANY, residual);
        for (size_t i = 0; i < MANY; i += 501) {
            x[i] = i % 2 == 0 ? large[c % 4] : -large[c % 4];
        }
        in_the_pass(spec, x, residual, MANY);
        GOOD(dcomm_encode_ledger(codec, x, residual, next, MANY, NULL, to, sizeof to, &bytes, NULL,
                                 NULL, &l));
        GOOD(dcomm_decode(codec, to, bytes, y, MANY));
        for (size_t i = 0; i < MANY; i++) {
            const double e = (double)(y[i] - x[i]);
            held += (double)next[i] * (double)next[i];
            wrong += e * e;
            all += (double)x[i] * (double)x[i];
        }
        cr_assert(fabs(l.residual_norm - sqrt(held)) <= 1e-7 * sqrt(held),
                  "%s, %g: %.12g is held back, not %.12g", spec, (double)large[c % 4],
                  l.residual_norm, sqrt(held));
        cr_assert(fabs(l.nmse - wrong / all) <= 1e-7 * wrong / all, "%s, %g: NMSE %.12g, not %.12g",
                  spec, (double)large[c % 4], l.nmse, wrong / all);
        dcomm_codec_destroy(&codec);
    }
}

/* More numbers are not finite than are sent. */
Test(ledger, leaves_out_what_is_not_finite_nor_sent)
{
    enum { MANY = 5000 };
    static float x[MANY], residual[MANY];
    codec_input in;
    input(&in, "gaussian");
    input_fill(&in, 0, 0, 0, MANY, x);
    input_fill(&in, 1, 0, 0, MANY, residual);
    for (size_t i = 0; i < MANY; i += 10) {
        x[i] = NAN;
    }
    in_the_pass("topk:k=70,nonfinite=pass", x, residual, MANY);
    in_the_pass("threshold:k=70,nonfinite=pass", x, residual, MANY);
    in_the_pass("topk+qsgd:k=70,nonfinite=pass", x, residual, MANY);
}

/* An array long enough for nontemporal stores in the encoder. */
Test(ledger, of_a_long_array)
{
    enum { MANY = (1 << 20) + (1 << 19) };
    static const char *const some[] = {"bf16", "topk:k=0.01", "qsgd:bits=8", "fp8"};
    float *x = malloc(4 * (size_t)MANY), *residual = malloc(4 * (size_t)MANY);
    codec_input in;
    input(&in, "laplace");
    input_fill(&in, 0, 0, 0, MANY, x);
    input_fill(&in, 1, 0, 0, MANY, residual);
    for (size_t c = 0; c < (test_full() ? sizeof some / sizeof *some : 2); c++) {
        in_the_pass(some[c], x, residual, MANY);
    }
    free(x);
    free(residual);
}

/* An owner's encoding of a sum compares with nothing; only the residual is counted. */
Test(ledger, of_an_owner)
{
    enum { N = 1500 };
    for (int c = 0; c < SPECS; c++) {
        dcomm_codec *codec;
        dcomm_feedback *fb = NULL;
        dcomm_feedback_info info;
        dcomm_ledger l = {0};
        codec_input in;
        size_t bytes, again_bytes;
        input(&in, "gaussian");
        GOOD(dcomm_codec_create(specs[c], &codec));
        GOOD(dcomm_feedback_create(codec, N, &(dcomm_feedback_opts){.scale = true}, &fb));
        input_fill(&in, 0, 0, 0, N, gradient[0]);
        dcomm_feedback_step step = {.x = gradient[0], .own_count = N};
        GOOD(dcomm_feedback_begin(fb, &step));
        GOOD(dcomm_feedback_encode(fb, 0, N, wire[0], sizeof wire[0], &bytes, NULL));
        GOOD(dcomm_feedback_set_ledger(fb, &l));
        const void *wires[] = {wire[0], wire[0]};
        size_t lengths[] = {bytes, bytes};
        GOOD(dcomm_feedback_recode(fb, wires, lengths, 2, 1, 0, N, again, sizeof again,
                                   &again_bytes, NULL));
        GOOD(dcomm_feedback_commit(fb));
        GOOD(dcomm_feedback_get_info(fb, &info));
        cr_assert_eq(l.count, 0);
        cr_assert_eq(l.encoded, N);
        cr_assert_float_eq(l.residual_norm, info.owner_norm, 1e-6 * (1 + info.owner_norm), "%s",
                           specs[c]);
        dcomm_feedback_destroy(&fb);
        dcomm_codec_destroy(&codec);
    }
}
