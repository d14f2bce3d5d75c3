/* test_feedback.c - error feedback loses nothing, whatever the codec, the variant and the
 * exchange; steps that fail; refused calls. */
#define _GNU_SOURCE
#pragma GCC diagnostic ignored "-Wunused-function"
#define DCOMM_NO_COMM
#define DCOMM_IMPLEMENTATION
#include "dcomm/all.h"

#include "feedback_books.h"
#include "full.h"

static void conserve(const char *spec, const char *text, const dcomm_feedback_opts *opts, size_t n,
                     int steps, bool average, double tolerance)
{
    codec_input in;
    dcomm_codec *codec;
    dcomm_feedback *fb[RANKS];
    static books b;
    GOOD(dcomm_codec_create(spec, &codec));
    input(&in, text);
    n = in.kind == INPUT_FILE ? (in.n < n ? in.n : n) : n;
    memset(&b, 0, sizeof b);
    make_all(fb, codec, n, opts);
    for (int s = 0; s < steps; s++) {
        for (int r = 0; r < RANKS; r++) {
            input_fill(&in, (uint32_t)r, (uint64_t)s, 0, n, gradient[r]);
        }
        two_shot(fb, n, &b, average);
    }
    double size, off = imbalance(fb, 0, n, &b, &size);
    cr_assert(off <= tolerance * size, "%s, %s, variant %d: %g of %g is lost after %d steps", spec,
              text, (int)opts->variant, off, size, steps);
    destroy_all(fb);
    input_close(&in);
    dcomm_codec_destroy(&codec);
}

static const char *const inputs[] = {"gaussian", "laplace:seed=2", "lognormal:seed=3,sigma=2",
                                     "sparse:density=0.1", "constant:scale=0.01"};

Test(feedback, nothing_is_lost_with_any_codec_and_distribution)
{
    dcomm_feedback_opts opts = {.scale = true};
    for (int c = 0; c < SPECS; c++) {
        for (size_t k = 0; k < sizeof inputs / sizeof *inputs; k++) {
            if (!test_full() && ((size_t)c + k) % 3 != 0) {
                continue;
            }
            conserve(specs[c], inputs[k], &opts, 700, 100, false, 2e-6);
        }
    }
}

Test(feedback, nothing_is_lost_of_real_gradients)
{
    dcomm_feedback_opts opts = {.scale = true};
    for (int c = 0; c < SPECS; c++) {
        conserve(specs[c], DCOMM_TESTS_DIR "/data/gradients/rank%r.npy", &opts, MOST, 50, false,
                 2e-6);
    }
}

/* Every codec and composition, long enough for rounding to show a bias if it had one. */
Test(feedback, nothing_is_lost_in_many_steps)
{
    const int steps = (test_full() ? 5000 : 1000) / (DCOMM_TEST_RANK_STEP == 1 ? 1 : 10);
    dcomm_feedback_opts opts = {.scale = true};
    for (int c = 0; c < SPECS; c++) {
        conserve(specs[c], "gaussian:seed=5", &opts, 96, steps, false, 2e-6);
        conserve(specs[c], "lognormal:seed=6", &opts, 33, steps, true, 2e-6);
    }
}

Test(feedback, nothing_is_lost_in_place_or_with_ef21)
{
    for (int c = 0; c < SPECS; c++) {
        dcomm_feedback_opts opts = {.scale = true, .in_place = true};
        conserve(specs[c], "laplace", &opts, 333, 200, false, 2e-6);
    }
}

/* Add up half a unit in the last place of each bf16 residual of element i: the most that storing
 * it may have lost. */
static void rounding(dcomm_feedback **fb, size_t i, double *most, double *variance)
{
    for (int r = 0; r < RANKS; r++) {
        const dcommi_feedback_store *o = &fb[r]->owner;
        bool owns = i >= fb[r]->own_first && i - fb[r]->own_first < o->count;
        double held[] = {
            (double)dcommi_feedback_get(&fb[r]->worker, fb[r]->worker.now, i),
            owns ? (double)dcommi_feedback_get(o, o->now, i - fb[r]->own_first) : 0,
        };
        for (int k = 0; k < 2; k++) {
            int exponent;
            frexp(held[k], &exponent); /* 8 bits: half of the last is 2^-9 of the next power */
            double half = held[k] != 0 ? ldexp(1, exponent - 9) : 0;
            *most += half;
            *variance += half * half / 3;
        }
    }
}

/* Residuals in bf16 are rounded to nearest in each step. An element is never off by more than the
 * sum of their half units. Rounding has no bias, so it is also not off by more than independent
 * errors: the root of the sum of squares, over 200 elements to some 20%. */
Test(feedback, bf16_residuals_lose_what_rounding_does)
{
    enum { N = 200 };
    const uint64_t steps = test_full() ? 1000 : 250;
    dcomm_feedback_opts opts = {.scale = true, .bf16 = true};
    for (int c = 0; c < SPECS; c++) {
        codec_input in;
        dcomm_codec *codec;
        dcomm_feedback *fb[RANKS];
        static books b;
        double most[N] = {0}, variance[N] = {0}, squares = 0, expected = 0;
        GOOD(dcomm_codec_create(specs[c], &codec));
        input(&in, "gaussian:seed=9");
        memset(&b, 0, sizeof b);
        make_all(fb, codec, N, &opts);
        for (uint64_t s = 0; s < steps; s++) {
            for (int r = 0; r < RANKS; r++) {
                input_fill(&in, (uint32_t)r, s, 0, N, gradient[r]);
            }
            two_shot(fb, N, &b, false);
            for (size_t i = 0; i < N; i++) {
                rounding(fb, i, &most[i], &variance[i]);
            }
        }
        for (size_t i = 0; i < N; i++) {
            double f32, off = imbalance(fb, i, 1, &b, &f32);
            cr_assert(off <= most[i] + 2e-6 * f32, "%s, element %zu: %g is lost, not up to %g",
                      specs[c], i, off, most[i]);
            squares += off * off;
            expected += variance[i] + 4e-12 * f32 * f32;
        }
        cr_assert(squares <= 1.5 * expected, "%s: rounding errors add up to %g, not %g", specs[c],
                  sqrt(squares), sqrt(expected));
        destroy_all(fb);
        dcomm_codec_destroy(&codec);
    }
}

/* DGC sends or holds back the sum of the velocities; without momentum, that of the gradients. */
Test(feedback, dgc_without_momentum_loses_nothing)
{
    dcomm_feedback_opts opts = {
        .variant = DCOMM_FEEDBACK_DGC, .scale = true, .momentum = -1, .warmup_steps = 100};
    static const char *const sparse[] = {"topk:k=0.01", "topk:k=0.1,values=bf16",
                                         "threshold:k=0.02"};
    for (int c = 0; c < 3; c++) {
        conserve(sparse[c], "gaussian:seed=7", &opts, 400, 1000, false, 2e-6);
        opts.in_place = !opts.in_place;
    }
}

/* EF21: the estimate that all ranks hold is the sum of all claims minus what the owners hold
 * back. */
Test(feedback, ef21_estimates_agree_and_converge)
{
    for (int c = 0; c < SPECS; c++) {
        for (int average = 0; average < 2; average++) {
            if (!test_full() && c % 2 != average) {
                continue;
            }
            dcomm_feedback_opts opts = {.variant = DCOMM_FEEDBACK_EF21, .scale = true};
            enum { N = 120 };
            codec_input in;
            dcomm_codec *codec;
            dcomm_feedback *fb[RANKS];
            static books b;
            GOOD(dcomm_codec_create(specs[c], &codec));
            input(&in, "gaussian:seed=11");
            make_all(fb, codec, N, &opts);
            for (int r = 0; r < RANKS; r++) {
                input_fill(&in, (uint32_t)r, 0, 0, N, gradient[r]);
            }
            for (int s = 0; s < 2000; s++) { /* the same gradient again and again */
                two_shot(fb, N, &b, average != 0);
            }
            const float *estimate = fb[0]->estimate.now;
            for (size_t i = 0; i < N; i++) {
                double claimed = 0, sum = 0;
                for (int r = 0; r < RANKS; r++) {
                    claimed += dcommi_feedback_owed(fb[r], i);
                    sum += (double)gradient[r][i];
                    cr_assert_eq(((const float *)fb[r]->estimate.now)[i], estimate[i]);
                }
                double scale = average ? RANKS : 1;
                cr_assert_float_eq(scale * (double)estimate[i], claimed, 1e-3, "%s: %g and %g",
                                   specs[c], (double)estimate[i], claimed);
                cr_assert_float_eq(scale * (double)estimate[i], sum, 0.02, "%s: %g and %g",
                                   specs[c], (double)estimate[i], sum);
            }
            destroy_all(fb);
            dcomm_codec_destroy(&codec);
        }
    }
}

/* With a constant gradient, what is sent per step tends to the gradient. Without feedback, top-k
 * never sends its small elements. */
Test(feedback, small_elements_arrive_in_the_end)
{
    enum { N = 100, STEPS = 4000 };
    dcomm_codec *codec;
    dcomm_feedback *fb = NULL;
    float x[N], sent[N];
    double sum[N] = {0};
    GOOD(dcomm_codec_create("topk:k=0.02", &codec));
    GOOD(dcomm_feedback_create(codec, N, NULL, &fb));
    for (int i = 0; i < N; i++) {
        x[i] = (float)(i + 1) / N;
    }
    for (int s = 0; s < STEPS; s++) {
        size_t bytes;
        GOOD(dcomm_feedback_begin(fb, &(dcomm_feedback_step){.x = x}));
        GOOD(dcomm_feedback_encode(fb, 0, N, again, sizeof again, &bytes, NULL));
        GOOD(dcomm_feedback_commit(fb));
        GOOD(dcomm_decode(codec, again, bytes, sent, N));
        for (int i = 0; i < N; i++) {
            sum[i] += (double)sent[i];
        }
    }
    for (int i = 0; i < N; i++) {
        cr_assert_float_eq(sum[i] / STEPS, (double)x[i], 0.03, "element %d: %g", i, sum[i] / STEPS);
    }
    dcomm_feedback_destroy(&fb);
    dcomm_codec_destroy(&codec);
}

/* ---- DGC ---- */

Test(feedback, dgc_forgets_the_momentum_of_what_it_sends)
{
    enum { N = 8 };
    dcomm_codec *codec;
    dcomm_feedback *fb = NULL;
    float x[N] = {1, 2, 3, 4, 5, 6, 7, 8};
    double u[N] = {0}, v[N] = {0};
    GOOD(dcomm_codec_create("topk:k=2", &codec));
    GOOD(dcomm_feedback_create(
        codec, N, &(dcomm_feedback_opts){.variant = DCOMM_FEEDBACK_DGC, .momentum = 0.5}, &fb));
    for (int s = 0; s < 50; s++) {
        size_t bytes;
        float sent[N];
        GOOD(dcomm_feedback_begin(fb, &(dcomm_feedback_step){.x = x}));
        GOOD(dcomm_feedback_encode(fb, 0, N, again, sizeof again, &bytes, NULL));
        GOOD(dcomm_feedback_commit(fb));
        GOOD(dcomm_decode(codec, again, bytes, sent, N));
        for (int i = 0; i < N; i++) {
            u[i] = 0.5 * u[i] + (double)x[i];
            v[i] += u[i];
            if (sent[i] != 0) {
                cr_assert_float_eq((double)sent[i], v[i], 1e-4);
                u[i] = v[i] = 0;
            }
            cr_assert_float_eq((double)((float *)fb->velocity.now)[i], u[i], 1e-4);
            cr_assert_float_eq((double)((float *)fb->worker.now)[i], v[i], 1e-4);
        }
    }
    dcomm_feedback_destroy(&fb);
    dcomm_codec_destroy(&codec);
}

Test(feedback, dgc_clips_and_warms_up)
{
    enum { N = 1000 };
    dcomm_codec *codec;
    dcomm_feedback *fb = NULL;
    codec_input in;
    dcomm_feedback_opts opts = {.variant = DCOMM_FEEDBACK_DGC, .clip = 3, .warmup_steps = 8};
    input(&in, "gaussian:scale=100");
    input_fill(&in, 0, 0, 0, N, gradient[0]);
    GOOD(dcomm_codec_create("topk:k=0.01", &codec));
    GOOD(dcomm_feedback_create(codec, N, &opts, &fb));
    static const size_t kept[] = {250, 250, 63, 63, 16, 16, 10, 10, 10};
    for (int s = 0; s < 9; s++) {
        size_t bytes;
        dcomm_codec_report report;
        GOOD(dcomm_feedback_begin(fb, &(dcomm_feedback_step){.x = gradient[0], .nranks = 9}));
        GOOD(dcomm_feedback_encode(fb, 0, N, again, sizeof again, &bytes, &report));
        GOOD(dcomm_decode(dcomm_feedback_codec(fb), again, bytes, result, N));
        if (s == 0) { /* 3 / sqrt(9) */
            dcomm_ledger l = {0};
            dcomm_ledger_compare(&l, fb->velocity.next, fb->velocity.next, N);
            dcomm_ledger_compare(&l, result, result, N);
            cr_assert_float_eq(l.sums[DCOMMI_LEDGER_XX], 1, 1e-4);
        }
        cr_assert(report.kept + 1 >= kept[s] && report.kept <= kept[s] + 1, "step %d: %zu", s,
                  report.kept);
        cr_assert_leq(bytes, dcomm_feedback_max_bytes(fb, N));
        GOOD(dcomm_feedback_commit(fb));
    }
    dcomm_feedback_destroy(&fb);
    dcomm_codec_destroy(&codec);
}

static double norm_rows(double row[8][32])
{
    double sum = 0;
    for (int r = 0; r < 8; r++) {
        for (int far = 16; far > 0; far /= 2) {
            for (int l = 0; l < far; l++) {
                row[r][l] += row[r][l + far];
            }
        }
        sum += row[r][0];
    }
    return sum;
}

/* Sum squares in the order of docs/wire-formats.md, element by element. */
static double norm_squares(const float *x, size_t n)
{
    static double row[8][32], tile[8][32];
    memset(tile, 0, sizeof tile);
    for (size_t t = 0; t * 8192 < n; t++) {
        memset(row, 0, sizeof row);
        for (size_t i = 8192 * t; i < n && i < 8192 * (t + 1); i++) {
            double v = isnormal(x[i]) ? (double)x[i] : 0;
            row[i / 1024 % 8][i % 32] += v * v;
        }
        tile[t / 32 % 8][t % 32] += norm_rows(row);
    }
    return norm_rows(tile);
}

Test(feedback, norms_are_summed_in_one_order)
{
    enum { N = 2200000 };
    static float x[N];
    const size_t counts[] = {0, 1, 31, 32, 1023, 1025, 8191, 8193, 70001, N};
    for (size_t i = 0; i < N; i++) {
        const uint64_t r = dcommi_mix(i, 5);
        const uint32_t bits = (uint32_t)(r >> 7); /* any float */
        x[i] = dcommi_f32_from_bits(i % 3 == 0 ? bits : (bits & 0x807fffffu) | 0x3f000000u);
    }
    for (int isa = 0; isa <= (int)dcommi_isa_best(); isa++) {
        dcommi_isa_force(isa);
        for (size_t c = 0; c < sizeof counts / sizeof *counts; c++) {
            const size_t shift = c % 3;
            const size_t n = counts[c] > shift ? counts[c] - shift : counts[c];
            const double want = norm_squares(x + shift, n), got = dcommi_norm_squares(x + shift, n);
            cr_assert_eq(got, want, "%s, %zu elements: %a, not %a", dcommi_isa_names[isa], n, got,
                         want);
        }
    }
}

/* ---- sparse and linear exchanges ---- */

Test(feedback, what_was_not_agreed_comes_back)
{
    enum { N = 300 };
    static const char *const sparse[] = {"topk:k=0.1", "topk:k=0.1,values=bf16"};
    for (int variant = 0; variant < DCOMM_FEEDBACK_VARIANT_COUNT; variant++) {
        for (int c = 0; c < 2; c++) {
            dcomm_codec *codec;
            dcomm_feedback *fb = NULL;
            codec_input in;
            dcomm_feedback_opts opts = {.variant = (dcomm_feedback_variant)variant, .momentum = -1};
            double in_sum[N] = {0}, out_sum[N] = {0};
            input(&in, "gaussian:seed=3");
            GOOD(dcomm_codec_create(sparse[c], &codec));
            GOOD(dcomm_feedback_create(codec, N, &opts, &fb));
            for (uint64_t s = 0; s < 40; s++) {
                uint32_t index[N], agreed[N];
                float value[N], sent[N];
                size_t bytes, n = 0, m = 0;
                input_fill(&in, 0, s, 0, N, gradient[0]);
                GOOD(dcomm_feedback_begin(fb, &(dcomm_feedback_step){.x = gradient[0]}));
                GOOD(dcomm_feedback_encode(fb, 0, N, again, sizeof again, &bytes, NULL));
                GOOD(dcomm_decode(codec, again, bytes, sent, N));
                for (uint32_t i = 0; i < N; i++) {
                    if (sent[i] != 0) {
                        index[n] = i;
                        value[n++] = sent[i];
                    }
                    if (i % 3 == s % 3) { /* others would have chosen it, too */
                        agreed[m++] = i;
                        out_sum[i] += (double)sent[i];
                    }
                    in_sum[i] += (double)gradient[0][i];
                }
                GOOD(dcomm_feedback_give_back(fb, 0, index, value, n, agreed, m));
                GOOD(dcomm_feedback_finish(fb, 0, N, sent));
                GOOD(dcomm_feedback_commit(fb));
            }
            for (size_t i = 0; i < N; i++) {
                double held = (double)((float *)fb->worker.now)[i];
                double expected = variant == DCOMM_FEEDBACK_EF21 ? out_sum[i] - held
                                                                 : in_sum[i] - out_sum[i] - held;
                cr_assert_float_eq(expected, 0, 1e-4, "variant %d: %g", variant, expected);
            }
            dcomm_feedback_destroy(&fb);
            dcomm_codec_destroy(&codec);
        }
    }
}

Test(feedback, a_linear_codec_keeps_what_the_group_did_not_say)
{
    enum { N = 64 };
    for (int bf16 = 0; bf16 < 2; bf16++) {
        dcomm_codec *codec;
        dcomm_feedback *fb = NULL;
        codec_input in;
        double in_sum[N] = {0}, out_sum[N] = {0};
        input(&in, "laplace");
        GOOD(dcomm_codec_create("bf16", &codec));
        GOOD(dcomm_feedback_create(codec, N, &(dcomm_feedback_opts){.bf16 = bf16 != 0}, &fb));
        for (uint64_t s = 0; s < 30; s++) {
            const float *e = NULL;
            float part[N];
            input_fill(&in, 0, s, 0, N, gradient[0]);
            GOOD(dcomm_feedback_begin(fb, &(dcomm_feedback_step){.x = gradient[0]}));
            GOOD(dcomm_feedback_correct(fb, &e));
            for (int i = 0; i < N; i++) {
                part[i] = 0.25f * (e[i] + e[i ^ 1]);
                in_sum[i] += (double)gradient[0][i];
                out_sum[i] += (double)part[i];
            }
            GOOD(dcomm_feedback_keep(fb, 0, N / 2, part));
            GOOD(dcomm_feedback_keep(fb, N / 2, N / 2, part + N / 2));
            GOOD(dcomm_feedback_commit(fb));
        }
        for (size_t i = 0; i < N; i++) {
            double held = (double)dcommi_feedback_get(&fb->worker, fb->worker.now, i);
            cr_assert_float_eq(in_sum[i] - out_sum[i], held, bf16 ? 0.5 : 1e-4);
        }
        dcomm_feedback_destroy(&fb);
        dcomm_codec_destroy(&codec);
    }
}

/* ---- steps that fail, ranges, owners that change ---- */

Test(feedback, a_failed_step_can_be_begun_again)
{
    enum { N = 500 };
    dcomm_codec *codec;
    dcomm_feedback *fb[RANKS];
    codec_input in;
    static books b, before;
    memset(&b, 0, sizeof b);
    input(&in, "gaussian");
    GOOD(dcomm_codec_create("topk:k=0.05", &codec));
    make_all(fb, codec, N, NULL);
    for (int s = 0; s < 30; s++) {
        for (int r = 0; r < RANKS; r++) {
            input_fill(&in, (uint32_t)r, (uint64_t)s, 0, N, gradient[r]);
        }
        if (s % 4 == 3) { /* break off after the first range */
            size_t bytes;
            for (int r = 0; r < RANKS; r++) {
                size_t own = N * (size_t)r / RANKS;
                dcomm_feedback_step step = {.x = gradient[r],
                                            .rank = (uint32_t)r,
                                            .nranks = RANKS,
                                            .own_first = own,
                                            .own_count = N * (size_t)(r + 1) / RANKS - own};
                GOOD(dcomm_feedback_begin(fb[r], &step));
                GOOD(dcomm_feedback_encode(fb[r], 0, 100, again, sizeof again, &bytes, NULL));
                BAD(DCOMM_ERR_INVALID, "100 of 500", dcomm_feedback_commit(fb[r]));
                GOOD(dcomm_feedback_fail(fb[r]));
                BAD(DCOMM_ERR_INVALID, "an earlier step failed",
                    dcomm_feedback_begin(fb[r], &step));
                GOOD(dcomm_feedback_recover(fb[r], DCOMM_FEEDBACK_RETRY, NULL));
            }
        }
        before = b;
        two_shot(fb, N, &b, false);
        cr_assert_neq(memcmp(&before, &b, sizeof b), 0);
    }
    double size, off = imbalance(fb, 0, N, &b, &size);
    cr_assert(off <= 1e-6 * size, "%g of %g", off, size);
    double lost;
    GOOD(dcomm_feedback_fail(fb[0]));
    GOOD(dcomm_feedback_recover(fb[0], DCOMM_FEEDBACK_RESET, &lost));
    cr_assert(lost > 1);
    dcomm_feedback_info info;
    GOOD(dcomm_feedback_get_info(fb[0], &info));
    cr_assert(info.worker_norm == 0 && info.owner_norm == 0);
    cr_assert_eq(info.step, 30);
    destroy_all(fb);
    dcomm_feedback *place = NULL;
    GOOD(dcomm_feedback_create(codec, N, &(dcomm_feedback_opts){.in_place = true}, &place));
    GOOD(dcomm_feedback_fail(place));
    BAD(DCOMM_ERR_INVALID, "in_place", dcomm_feedback_recover(place, DCOMM_FEEDBACK_RETRY, NULL));
    GOOD(dcomm_feedback_recover(place, DCOMM_FEEDBACK_RESET, NULL));
    dcomm_feedback_destroy(&place);
    dcomm_codec_destroy(&codec);
}

/* In each step a rank encodes another part of the tensor, as under changing hierarchies, and owns
 * another shard. */
Test(feedback, ranges_and_owners_may_change)
{
    enum { N = 240 };
    for (int place = 0; place < 2; place++) {
        dcomm_codec *codec;
        dcomm_feedback *fb = NULL;
        codec_input in;
        double balance[N] = {0};
        input(&in, "gaussian");
        GOOD(dcomm_codec_create("topk:k=0.1", &codec));
        GOOD(dcomm_feedback_create(codec, N, &(dcomm_feedback_opts){.in_place = place != 0}, &fb));
        for (uint64_t s = 0; s < 60; s++) {
            size_t first = s % 5 * 24, count = 96, own = first + s % 3 * 10, owned = 40, bytes;
            input_fill(&in, 0, s, 0, N, gradient[0]);
            dcomm_feedback_step step = {.x = gradient[0] + first,
                                        .first = first,
                                        .count = count,
                                        .own_first = own,
                                        .own_count = owned};
            GOOD(dcomm_feedback_begin(fb, &step));
            for (size_t at = first; at < first + count; at += 48) {
                GOOD(dcomm_feedback_encode(fb, at, 48, again, sizeof again, &bytes, NULL));
                GOOD(dcomm_decode(codec, again, bytes, result + at, 48));
            }
            for (size_t i = first; i < first + count; i++) {
                balance[i] += (double)gradient[0][i];
                balance[i] -= i < own || i >= own + owned ? (double)result[i] : 0;
            }
            GOOD(dcomm_feedback_encode_owned(fb, result + own, 0.5f, own, owned, again,
                                             sizeof again, &bytes, NULL));
            GOOD(dcomm_decode(codec, again, bytes, result, owned));
            for (size_t i = 0; i < owned; i++) {
                balance[own + i] -= 2 * (double)result[i];
            }
            GOOD(dcomm_feedback_commit(fb));
        }
        for (size_t i = 0; i < N; i++) {
            cr_assert_float_eq(balance[i], dcommi_feedback_owed(fb, i), 1e-4, "element %zu", i);
        }
        dcomm_feedback_destroy(&fb);
        dcomm_codec_destroy(&codec);
    }
}

/* ---- numbers that are not finite ---- */

Test(feedback, what_is_not_finite_enters_no_residual)
{
    enum { N = 70 };
    for (int variant = 0; variant < DCOMM_FEEDBACK_VARIANT_COUNT; variant++) {
        for (int pass = 0; pass < 2; pass++) {
            dcomm_codec *codec;
            dcomm_feedback *fb = NULL;
            codec_input in;
            input(&in, "gaussian");
            GOOD(dcomm_codec_create(pass ? "topk:k=0.2,nonfinite=pass" : "topk:k=0.2", &codec));
            GOOD(dcomm_feedback_create(
                codec, N, &(dcomm_feedback_opts){.variant = (dcomm_feedback_variant)variant}, &fb));
            for (uint64_t s = 0; s < 5; s++) {
                size_t bytes;
                dcomm_codec_report report;
                input_fill(&in, 0, s, 0, N, gradient[0]);
                gradient[0][13 + s] = NAN;
                gradient[0][50] = s % 2 == 0 ? INFINITY : -INFINITY;
                GOOD(dcomm_feedback_begin(fb, &(dcomm_feedback_step){.x = gradient[0]}));
                dcomm_status status =
                    dcomm_feedback_encode(fb, 0, N, again, sizeof again, &bytes, &report);
                cr_assert_eq(status, pass ? DCOMM_OK : DCOMM_ERR_INVALID);
                if (!pass) {
                    cr_assert_eq(report.nonfinite, 2);
                    cr_assert_eq(report.first_nonfinite, 13 + s);
                }
                GOOD(dcomm_decode(codec, again, bytes, result, N));
                GOOD(dcomm_feedback_finish(fb, 0, N, result));
                GOOD(dcomm_feedback_commit(fb));
                for (int i = 0; i < N; i++) {
                    cr_assert(isfinite(((float *)fb->worker.now)[i]));
                    cr_assert(variant != 2 || isfinite(((float *)fb->velocity.now)[i]));
                }
            }
            dcomm_feedback_destroy(&fb);
            dcomm_codec_destroy(&codec);
        }
    }
}

/* Non-finite numbers that a caller gives back or keeps enter no residual either. */
Test(feedback, what_is_given_back_is_finite)
{
    enum { N = 64 };
    static const uint32_t index[] = {1, 2, 3};
    const float value[] = {NAN, 0.5f, -INFINITY};
    dcomm_codec *codec;
    dcomm_feedback *fb = NULL;
    codec_input in;
    size_t bytes;
    const float *e;
    float part[N] = {0}, before[N];
    input(&in, "gaussian");
    input_fill(&in, 0, 0, 0, N, gradient[0]);
    GOOD(dcomm_codec_create("topk:k=0.2,nonfinite=pass", &codec));
    GOOD(dcomm_feedback_create(codec, N, NULL, &fb));
    GOOD(dcomm_feedback_begin(fb, &(dcomm_feedback_step){.x = gradient[0]}));
    GOOD(dcomm_feedback_encode(fb, 0, N, again, sizeof again, &bytes, NULL));
    memcpy(before, fb->worker.next, sizeof before);
    GOOD(dcomm_feedback_give_back(fb, 0, index, value, 3, NULL, 0));
    GOOD(dcomm_feedback_commit(fb));
    const float *now = fb->worker.now;
    cr_assert(now[1] == before[1] && now[2] == before[2] + 0.5f && now[3] == before[3]);
    part[5] = NAN;
    part[6] = gradient[0][6];
    GOOD(dcomm_feedback_begin(fb, &(dcomm_feedback_step){.x = gradient[0]}));
    GOOD(dcomm_feedback_correct(fb, &e));
    memcpy(before, e, sizeof before);
    GOOD(dcomm_feedback_keep(fb, 0, N, part));
    GOOD(dcomm_feedback_commit(fb));
    now = fb->worker.now;
    cr_assert(now[5] == before[5] && now[6] == before[6] - part[6]);
    dcomm_feedback_destroy(&fb);
    dcomm_codec_destroy(&codec);
}

/* ---- refused calls ---- */

Test(feedback, an_expanding_codec_is_refused_or_scaled)
{
    dcomm_codec *codec;
    dcomm_feedback *fb = NULL;
    dcomm_feedback_info info;
    GOOD(dcomm_codec_create("randk:k=0.1", &codec));
    BAD(DCOMM_ERR_INVALID, "grow without bound", dcomm_feedback_create(codec, 100, NULL, &fb));
    GOOD(dcomm_feedback_create(codec, 100, &(dcomm_feedback_opts){.scale = true}, &fb));
    GOOD(dcomm_feedback_get_info(fb, &info));
    cr_assert_float_eq(info.factor, 0.1, 1e-3); /* omega = d/k - 1 */
    dcomm_feedback_destroy(&fb);
    dcomm_codec_destroy(&codec);
}

Test(feedback, arguments)
{
    dcomm_codec *codec;
    dcomm_feedback *fb = NULL;
    size_t bytes;
    GOOD(dcomm_codec_create("bf16", &codec));
    BAD(DCOMM_ERR_INVALID, "codec is NULL", dcomm_feedback_create(NULL, 1, NULL, &fb));
    BAD(DCOMM_ERR_INVALID, "DGC needs a sparse codec",
        dcomm_feedback_create(codec, 1, &(dcomm_feedback_opts){.variant = DCOMM_FEEDBACK_DGC},
                              &fb));
    BAD(DCOMM_ERR_INVALID, "momentum",
        dcomm_feedback_create(codec, 1, &(dcomm_feedback_opts){.momentum = 1}, &fb));
    BAD(DCOMM_ERR_INVALID, "drift",
        dcomm_feedback_create(
            codec, 1, &(dcomm_feedback_opts){.variant = DCOMM_FEEDBACK_EF21, .bf16 = true}, &fb));
    GOOD(dcomm_feedback_create(codec, 10, NULL, &fb));
    BAD(DCOMM_ERR_INVALID, "no step was begun", dcomm_feedback_commit(fb));
    BAD(DCOMM_ERR_INVALID, "step->x is NULL",
        dcomm_feedback_begin(fb, &(dcomm_feedback_step){.rank = 0}));
    BAD(DCOMM_ERR_INVALID, "do not lie within",
        dcomm_feedback_begin(fb,
                             &(dcomm_feedback_step){.x = result, .own_first = 5, .own_count = 6}));
    GOOD(dcomm_feedback_begin(fb, &(dcomm_feedback_step){.x = result}));
    BAD(DCOMM_ERR_INVALID, "under way",
        dcomm_feedback_begin(fb, &(dcomm_feedback_step){.x = result}));
    BAD(DCOMM_ERR_INVALID, "do not lie within",
        dcomm_feedback_encode(fb, 5, 6, again, sizeof again, &bytes, NULL));
    GOOD(dcomm_feedback_encode(fb, 5, 5, again, sizeof again, &bytes, NULL));
    BAD(DCOMM_ERR_INVALID, "5 are done",
        dcomm_feedback_encode(fb, 0, 6, again, sizeof again, &bytes, NULL));
    BAD(DCOMM_ERR_INVALID, "capacity", dcomm_feedback_encode(fb, 0, 5, again, 4, &bytes, NULL));
    GOOD(dcomm_feedback_destroy(&fb));
    cr_assert_null(fb);
    GOOD(dcomm_feedback_destroy(&fb));
    dcomm_codec_destroy(&codec);
}
