/* test_ledger.c - the ledger says what the definitions say, and what a state holds. */
#define _GNU_SOURCE
#pragma GCC diagnostic ignored "-Wunused-function"
#define DCOMM_NO_COMM
#define DCOMM_IMPLEMENTATION
#include "dcomm/all.h"

#include "feedback_books.h"

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
    cr_assert_float_eq(l.nmse, ee / xx, 1e-12);
    cr_assert_float_eq(l.cosine, xy / sqrt(xx * yy), 1e-12);
    cr_assert_float_eq(l.mean_signed_error, bias / size, 1e-12);
    dcomm_ledger_compare(&parts, x, y, 400);
    dcomm_ledger_compare(&other, x + 400, y + 400, N - 400);
    dcomm_ledger_merge(&parts, &other);
    cr_assert_float_eq(parts.nmse, l.nmse, 1e-12);
    dcomm_ledger_compare_f64(&f64, wide, y, N);
    cr_assert_eq(memcmp(&f64, &l, sizeof l), 0);
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

/* With feedback: the residual's norm and the measured contraction are those of the state. */
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
            cr_assert(s > 0 || l.contraction > 0.75 - 1e-6); /* equality on constant magnitude */
            cr_assert_eq(l.count, N);
            cr_assert_eq(l.kept, N / 4);
            cr_assert_eq(l.wire_bytes, total);
            total = 0;
        }
        dcomm_feedback_destroy(&fb);
        dcomm_codec_destroy(&codec);
    }
}
