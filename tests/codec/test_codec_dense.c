/* test_codec_dense.c - the dense codecs: the same bytes from every instruction set, unbiased
 * roundings and their variance, error bounds, sums. */
#define _GNU_SOURCE
#pragma GCC diagnostic ignored "-Wunused-function"
#define DCOMM_NO_COMM
#define DCOMM_IMPLEMENTATION
#include "dcomm/all.h"

#include "codec_numbers.h"
#include "full.h"

static const char *const specs[] = {
    "f16",
    "f16:rounding=stochastic",
    "bf16",
    "bf16:rounding=stochastic",
    "bf16:nonfinite=pass",
    "fp8",
    "fp8:rounding=stochastic",
    "fp8:type=e5m2,block=256",
    "fp8:type=e5m2,rounding=stochastic",
    "qsgd:bits=8",
    "qsgd:bits=8,bucket=128",
    "qsgd",
    "qsgd:rounding=nearest",
    "qsgd:norm=two,bucket=1024",
    "qsgd:bits=2",
    "qsgd:bits=2,norm=two,nonfinite=pass",
    "qsgd:bits=1",
    "qsgd:bits=1,rounding=nearest",
    "qsgd:bits=1,nonfinite=zero,norm=two",
    "tern",
    "sign",
    "sign:bucket=2048,nonfinite=zero",
};
enum { SPECS = sizeof specs / sizeof *specs };

/* ---- the same bytes ---- */

typedef struct results {
    unsigned char *wire[4];
    float *next, *decoded, *added, *sum;
    size_t bytes;
} results;

static results results_of(const dcomm_codec *codec, size_t count)
{
    results r = {0};
    for (int w = 0; w < 4; w++) {
        r.wire[w] = aligned_alloc(64, (dcomm_codec_max_bytes(codec, count) + 128) & ~(size_t)63);
    }
    float **arrays[4] = {&r.next, &r.decoded, &r.added, &r.sum};
    for (int a = 0; a < 4; a++) {
        *arrays[a] = aligned_alloc(64, (count * sizeof(float) + 128) & ~(size_t)63);
    }
    return r;
}

static void free_results(results *r)
{
    for (int w = 0; w < 4; w++) {
        free(r->wire[w]);
    }
    free(r->next);
    free(r->decoded);
    free(r->added);
    free(r->sum);
}

static void good_or_nonfinite(dcomm_status status)
{
    cr_assert(status == DCOMM_OK ||
                  (status == DCOMM_ERR_INVALID && strstr(dcomm_last_error(), "finite") != NULL) ||
                  (status == DCOMM_ERR_RANGE && strstr(dcomm_last_error(), "beyond f32") != NULL),
              "%s", dcomm_last_error());
}

/* Run all calls of a codec. wire 0: encode x; 1: encode with feedback; 2: encode the residual; 3:
 * wires 0 to 2 and 0 again, summed and encoded again. */
static void run(const dcomm_codec *codec, const float *x, const float *residual, size_t count,
                size_t first, results *r)
{
    const size_t room = dcomm_codec_max_bytes(codec, count);
    dcomm_codec_key key = {.seed = 7, .step = 5, .rank = 3, .tensor = 2, .first = first};
    size_t bytes[4];
    good_or_nonfinite(dcomm_encode(codec, x, count, &key, r->wire[0], room, &bytes[0], NULL, NULL));
    good_or_nonfinite(dcomm_encode_feedback(codec, x, residual, r->next, count, &key, r->wire[1],
                                            room, &bytes[1], NULL, NULL));
    good_or_nonfinite(
        dcomm_encode(codec, residual, count, &key, r->wire[2], room, &bytes[2], NULL, NULL));
    const void *wires[4] = {r->wire[0], r->wire[1], r->wire[2], r->wire[0]};
    bytes[3] = bytes[0];
    cr_assert_eq(dcomm_decode(codec, wires[0], bytes[0], r->decoded, count), DCOMM_OK, "%s",
                 dcomm_last_error());
    memcpy(r->added, residual, count * sizeof(float));
    cr_assert_eq(dcomm_decode_add(codec, wires[1], bytes[1], r->added, count), DCOMM_OK);
    cr_assert_eq(dcomm_decode_sum(codec, wires, bytes, 3, r->sum, count), DCOMM_OK);
    good_or_nonfinite(dcomm_recode(codec, wires, bytes, 4, 1.0f / 3, NULL, NULL, count, &key,
                                   r->wire[3], room, &r->bytes, NULL, NULL));
}

/* Return true if all numbers have the same bits; all NaNs are equal. */
static bool same_numbers(const float *a, const float *b, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        if (dcommi_f32_bits(a[i]) != dcommi_f32_bits(b[i]) && !(isnan(a[i]) && isnan(b[i]))) {
            return false;
        }
    }
    return true;
}

static void compare(const char *spec, const float *x, const float *residual, size_t count,
                    size_t first)
{
    dcomm_codec *codec = make(spec);
    results plain = results_of(codec, count), fast = results_of(codec, count);
    dcommi_isa_force(DCOMMI_ISA_PORTABLE);
    run(codec, x, residual, count, first, &plain);
    for (int isa = 1; isa <= (int)dcommi_isa_best(); isa++) {
        dcommi_isa_force(isa);
        run(codec, x, residual, count, first, &fast);
        for (int w = 0; w < 4; w++) {
            cr_assert_eq(memcmp(plain.wire[w], fast.wire[w], plain.bytes), 0,
                         "%s, %s, %zu: wire %d", spec, dcommi_isa_names[isa], count, w);
        }
        cr_assert(same_numbers(plain.next, fast.next, count), "%s, %s", spec,
                  dcommi_isa_names[isa]);
        cr_assert(same_numbers(plain.decoded, fast.decoded, count), "%s", spec);
        cr_assert(same_numbers(plain.added, fast.added, count), "%s", spec);
        cr_assert(same_numbers(plain.sum, fast.sum, count), "%s", spec);
    }
    free_results(&plain);
    free_results(&fast);
    dcomm_codec_destroy(&codec);
}

Test(codec_dense, the_same_bytes_from_each_isa, .timeout = 3600)
{
    const size_t most = test_full() ? 10000000 : 20000;
    const size_t counts[] = {1, 17, 500, 512, 1300, 4097, most};
    float *x = aligned_alloc(64, most * sizeof *x + 64);
    float *residual = aligned_alloc(64, most * sizeof *x + 64);
    for (int s = 0; s < SPECS; s++) {
        for (int distribution = 0; distribution < DISTRIBUTIONS; distribution++) {
            if (distribution == BITS && strstr(specs[s], "rounding") != NULL) {
                continue;
            }
            for (size_t c = 0; c < sizeof counts / sizeof *counts; c++) {
                if (test_full() ? counts[c] > 20000 && distribution > LOGNORMAL
                                : (s + distribution + (int)c) % 2 != 0) {
                    continue;
                }
                fill(x, counts[c], distribution);
                fill(residual, counts[c], distribution == BITS ? GAUSSIAN : distribution);
                compare(specs[s], x, residual, counts[c], c % 2 == 0 ? 0 : 1000);
            }
        }
    }
    free(x);
    free(residual);
}

/* Buckets clip at 2^127. The clipped parts stay in the residual, for every instruction set, in
 * place or not, in whole buckets and in the last one. */
Test(codec_dense, what_buckets_clip_stays_in_the_residual)
{
    enum { N = 1500 };
    static float x[N], residual[N], next[N], y[N];
    static unsigned char wire[4 * N];
    for (int s = 0; s < SPECS; s++) {
        dcomm_codec *codec = make(specs[s]);
        const int isas = codec->bucketing.bucket > 0 ? (int)dcommi_isa_best() + 1 : 0;
        for (int round = 0; round < 2 * isas; round++) {
            size_t clipped = 0, bytes;
            dcomm_codec_report report;
            dcommi_isa_force(round % isas);
            for (int i = 0; i < N; i++) {
                x[i] = (float)(gaussian() * 0x1p120);
                residual[i] = (float)(gaussian() * 0x1p123);
                if (i % 97 == round || i >= N - 2) { /* in most buckets; x alone, or as a sum */
                    x[i] = copysignf(FLT_MAX * (float)(0.51 + 0.49 * uniform()), x[i]);
                    residual[i] = i % 2 == 0 ? copysignf(0x1p127f, x[i]) : residual[i];
                }
                clipped += fabsf(dcommi_codec_e(x[i], residual[i])) > 0x1p127f;
            }
            const float *from = round < isas ? residual : memcpy(next, residual, sizeof next);
            cr_assert_eq(dcomm_encode_feedback(codec, x, from, next, N, NULL, wire, sizeof wire,
                                               &bytes, NULL, &report),
                         DCOMM_OK);
            cr_assert_eq(report.clipped, clipped, "%s: %zu, not %zu", specs[s], report.clipped,
                         clipped);
            cr_assert_eq(dcomm_decode(codec, wire, bytes, y, N), DCOMM_OK);
            for (int i = 0; i < N; i++) {
                double e = (double)dcommi_codec_e(x[i], residual[i]), left = e - (double)y[i];
                double unit = fmax(fabs(left), fabs(e) - 0x1p127) * 0x1p-23;
                cr_assert(fabs((double)next[i] - left) <= unit, "%s, element %d: %g - %g left %g",
                          specs[s], i, e, (double)y[i], (double)next[i]);
            }
        }
        dcomm_codec_destroy(&codec);
    }
    dcommi_isa_force(-1);
}

/* A residual that is NaN, of whatever sign and payload, gives the bytes of the largest positive
 * number; an infinity gives those of the largest of its sign. Also for codecs that are not dense,
 * for every instruction set, in place or not. */
Test(codec_dense, a_nan_in_a_residual_is_the_largest_number)
{
    enum { N = 3000 };
    static const char *const others[] = {
        "topk:k=0.1",      "topk:k=0.01,nonfinite=pass",     "topk:k=0.1,values=f16",
        "topk+qsgd:k=0.1", "topk+qsgd:k=0.1,nonfinite=pass", "threshold:k=0.05",
        "randk:k=0.1",     "randk:k=1,nonfinite=pass",       "powersgd:rank=2"};
    static const uint32_t odd[] = {0x7fc00000u, 0xffc00000u, 0x7f800001u, 0xff812345u,
                                   0x7fffffffu, 0x7f800000u, 0xff800000u};
    enum { OTHERS = sizeof others / sizeof *others, ODD = sizeof odd / sizeof *odd };
    static float x[N], zero[N], r[N], most[N], next[N], want[N];
    static unsigned char wire[5 * N], same[5 * N];
    for (int s = 0; s < SPECS + OTHERS; s++) {
        dcomm_codec *codec = make(s < SPECS ? specs[s] : others[s - SPECS]);
        for (int round = 0; round < 2 * ((int)dcommi_isa_best() + 1); round++) {
            size_t bytes, same_bytes;
            dcomm_codec_report report;
            dcommi_isa_force(round / 2);
            for (int i = 0; i < N; i++) {
                const uint32_t bits = odd[i / 37 % ODD];
                const bool here = i % 37 == 5 || i == N - 1;
                x[i] = (float)gaussian();
                zero[i] = here ? 0 : x[i];
                r[i] = here ? dcommi_f32_from_bits(bits) : (float)gaussian();
                most[i] = !here ? r[i] : bits == 0xff800000u ? -FLT_MAX : FLT_MAX;
            }
            cr_assert_eq(dcomm_encode_feedback(codec, zero, most, want, N, NULL, wire, sizeof wire,
                                               &bytes, NULL, NULL),
                         DCOMM_OK);
            float *to = round % 2 == 0 ? next : r;
            cr_assert_eq(dcomm_encode_feedback(codec, x, r, to, N, NULL, same, sizeof same,
                                               &same_bytes, NULL, &report),
                         DCOMM_OK);
            cr_assert(bytes == same_bytes && memcmp(wire, same, bytes) == 0, "%s",
                      dcomm_codec_spec(codec));
            for (int i = 0; i < N; i++) {
                cr_assert(memcmp(&to[i], &want[i], sizeof *to) == 0, "%s, element %d: %a, not %a",
                          dcomm_codec_spec(codec), i, (double)to[i], (double)want[i]);
            }
            cr_assert(report.nonfinite == 0 && report.clipped >= N / 37, "%s: %zu",
                      dcomm_codec_spec(codec), report.clipped);
        }
        dcomm_codec_destroy(&codec);
    }
    dcommi_isa_force(-1);
}

/* Unaligned arrays give the same bytes as aligned ones. */
Test(codec_dense, any_alignment)
{
    enum { N = 3333 };
    static float x[N + 16], y[N + 16], z[N + 16];
    static unsigned char wire[4 * N], other[4 * N];
    fill(x, N, GAUSSIAN);
    memmove(z + 3, x, N * sizeof *x);
    for (int s = 0; s < SPECS; s++) {
        dcomm_codec *codec = make(specs[s]);
        size_t bytes, same;
        cr_assert_eq(dcomm_encode(codec, x, N, NULL, wire, sizeof wire, &bytes, NULL, NULL),
                     DCOMM_OK);
        cr_assert_eq(
            dcomm_encode(codec, z + 3, N, NULL, other + 1, sizeof other - 1, &same, NULL, NULL),
            DCOMM_OK);
        cr_assert(bytes == same && memcmp(wire, other + 1, bytes) == 0);
        cr_assert_eq(dcomm_decode(codec, other + 1, bytes, y + 1, N), DCOMM_OK);
        cr_assert_eq(dcomm_decode(codec, wire, bytes, y, N), DCOMM_OK);
        dcomm_codec_destroy(&codec);
    }
}

/* A tensor encoded in pieces that begin at multiples of the granule gives the same as the whole
 * tensor. */
Test(codec_dense, pieces_are_coded_like_the_whole)
{
    enum { N = 8192 + 700 };
    static float x[N], whole[N], part[N];
    static unsigned char wire[4 * N];
    fill(x, N, GAUSSIAN);
    for (int s = 0; s < SPECS; s++) {
        dcomm_codec *codec = make(specs[s]);
        dcomm_codec_info info;
        dcomm_codec_get_info(codec, N, &info);
        size_t bytes, cut = 2048 / info.granule * info.granule;
        cr_assert_gt(cut, 0);
        dcomm_codec_key key = {.seed = 11, .first = 4096};
        dcomm_encode(codec, x, N, &key, wire, sizeof wire, &bytes, NULL, NULL);
        dcomm_decode(codec, wire, bytes, whole, N);
        for (size_t at = 0; at < N; at += cut) {
            size_t n = N - at < cut ? N - at : cut;
            key.first = 4096 + at;
            dcomm_encode(codec, x + at, n, &key, wire, sizeof wire, &bytes, NULL, NULL);
            dcomm_decode(codec, wire, bytes, part + at, n);
        }
        cr_assert_eq(memcmp(part, whole, sizeof whole), 0, "%s", specs[s]);
        dcomm_codec_destroy(&codec);
    }
}

/* ---- statistics ---- */

/* Check that the mean over many keys is the input, and that the variance follows from the
 * distances to the two nearest levels. */
static void check_unbiased(const char *spec, int distribution, double random_bits_of, double levels)
{
    enum { N = 512 };
    const int seeds = test_full() ? 100000 : 10000;
    static float x[N], y[N];
    static double sum[N], squares[N];
    static unsigned char wire[4 * N];
    dcomm_codec *codec = make(spec);
    memset(sum, 0, sizeof sum);
    memset(squares, 0, sizeof squares);
    fill(x, N, distribution);
    size_t bytes = 0;
    for (int seed = 0; seed < seeds; seed++) {
        dcomm_codec_key key = {.seed = (uint64_t)seed, .step = 1};
        dcomm_encode(codec, x, N, &key, wire, sizeof wire, &bytes, NULL, NULL);
        dcomm_decode(codec, wire, bytes, y, N);
        for (int i = 0; i < N; i++) {
            double error = (double)y[i] - (double)x[i];
            sum[i] += error;
            squares[i] += error * error;
        }
    }
    float step;
    memcpy(&step, wire + bytes - 4, 4);
    double width = levels * (double)step, measured = 0, expected = 0;
    /* If all magnitudes are equal, only the step's own rounding is random: a few events in
     * total. */
    double rare = distribution == CONSTANT ? width / seeds : 0;
    for (int i = 0; i < N; i++) {
        double place = ((double)x[i] + (levels == 2 ? (double)step : 0)) / width;
        double p = place - floor(place);
        double sigma = width * sqrt(p * (1 - p) / seeds);
        double bias = fabs(sum[i] / seeds);
        cr_assert(bias <= width * ldexp(1, -(int)random_bits_of - 1) + 4.5 * sigma + 1e-7 * width +
                              12 * rare,
                  "%s, element %d: %g is off by %g, sigma %g", spec, i, (double)x[i], bias, sigma);
        measured += squares[i] / seeds;
        expected += width * width * p * (1 - p);
    }
    cr_assert(fabs(measured - expected) <= 0.01 * expected + 5 * sqrt(width * rare * expected),
              "%s: variance %g, not %g", spec, measured, expected);
    dcomm_codec_info info;
    dcomm_codec_get_info(codec, N, &info);
    double norm = 0;
    for (int i = 0; i < N; i++) {
        norm += (double)x[i] * (double)x[i];
    }
    cr_assert(measured <= info.omega * norm, "%s: %g of %g", spec, measured / norm, info.omega);
    dcomm_codec_destroy(&codec);
}

Test(codec_dense, qsgd_is_unbiased_with_the_variance_of_its_levels, .timeout = 600)
{
    static const int kinds[] = {GAUSSIAN, LAPLACE, LOGNORMAL, SPARSE, CONSTANT, REAL};
    for (int k = 0; k < 6; k++) {
        check_unbiased("qsgd:bits=8", kinds[k], 14, 1);
        check_unbiased("qsgd:bits=4", kinds[k], 18, 1);
        check_unbiased("qsgd:bits=2", kinds[k], 20, 1);
        check_unbiased("qsgd:bits=1", kinds[k], 21, 2);
        check_unbiased("qsgd:bits=4,norm=two", kinds[k], 18, 1);
        check_unbiased("qsgd:bits=8,norm=two", kinds[k], 14, 1);
        check_unbiased("tern", kinds[k], 20, 1);
    }
}

/* QSGD's bounds for the two norm, and the figures for Gaussian data in docs/codecs.md. */
Test(codec_dense, qsgd_keeps_its_bounds)
{
    enum { N = 1 << 18 };
    static float x[N], y[N];
    static unsigned char wire[2 * N];
    fill(x, N, GAUSSIAN);
    const struct {
        const char *spec;
        double least, most;
    } cases[] = {{"qsgd:bits=4,bucket=512,norm=two", 1.5, 1.65},
                 {"qsgd:bits=4,bucket=512,norm=max", 0.03, 0.04},
                 {"qsgd:bits=8,bucket=512,norm=max", 8e-5, 13e-5},
                 {"sign", 0.35, 0.38},
                 {"bf16", 1e-6, 4e-6},
                 {"fp8", 4e-4, 9e-4}};
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        dcomm_codec *codec = make(cases[c].spec);
        size_t bytes;
        dcomm_encode(codec, x, N, NULL, wire, sizeof wire, &bytes, NULL, NULL);
        dcomm_decode(codec, wire, bytes, y, N);
        double error = 0, norm = 0;
        for (int i = 0; i < N; i++) {
            error += ((double)y[i] - (double)x[i]) * ((double)y[i] - (double)x[i]);
            norm += (double)x[i] * (double)x[i];
        }
        cr_assert(error / norm >= cases[c].least && error / norm <= cases[c].most, "%s: NMSE %g",
                  cases[c].spec, error / norm);
        dcomm_codec_destroy(&codec);
    }
}

/* Check that casts and fp8 with stochastic rounding have the input as their mean over many keys.
 * fraction: the format's bits behind the point. */
static void check_cast_unbiased(const char *spec, int distribution, int fraction, bool scaled)
{
    enum { N = 256 };
    const int seeds = test_full() ? 10000 : 2500;
    static float x[N], y[N];
    static unsigned char wire[4 * N];
    dcomm_codec *codec = make(spec);
    double sum[N] = {0}, largest = 0;
    size_t bytes = 0;
    fill(x, N, distribution);
    for (int i = 0; i < N; i++) {
        largest = fmax(largest, fabs((double)x[i]));
    }
    for (int seed = 0; seed < seeds; seed++) {
        dcomm_codec_key key = {.seed = (uint64_t)seed};
        dcomm_encode(codec, x, N, &key, wire, sizeof wire, &bytes, NULL, NULL);
        dcomm_decode(codec, wire, bytes, y, N);
        for (int i = 0; i < N; i++) {
            sum[i] += (double)y[i] - (double)x[i];
        }
    }
    double smallest = scaled ? largest * 0x1p-9 / 448 * (1 + 0x1p-14) : 0x1p-24;
    for (int i = 0; i < N; i++) {
        /* the distance between representable numbers */
        double width = fmax(fabs((double)x[i]) * ldexp(1, -fraction), smallest);
        cr_assert(fabs(sum[i] / seeds) <= width * (4.5 * 0.5 / sqrt(seeds) + 1e-4),
                  "%s, kind %d: %g is off by %g, places are %g", spec, distribution, (double)x[i],
                  sum[i] / seeds, width);
    }
    dcomm_codec_destroy(&codec);
}

Test(codec_dense, stochastic_casts_are_unbiased, .timeout = 600)
{
    for (int kind = 0; kind < WELL_BEHAVED; kind++) {
        check_cast_unbiased("bf16:rounding=stochastic", kind, 7, false);
        check_cast_unbiased("f16:rounding=stochastic", kind, 10, false);
        check_cast_unbiased("fp8:rounding=stochastic", kind, 3, true);
        check_cast_unbiased("fp8:type=e5m2,rounding=stochastic", kind, 2, true);
    }
}

/* Each bucket's worth of any data keeps |C(x) - x|^2 <= contraction |x|^2. */
Test(codec_dense, contractions_hold)
{
    enum { N = 512 };
    static float x[N], y[N];
    static unsigned char wire[4 * N];
    for (int s = 0; s < SPECS; s++) {
        dcomm_codec *codec = make(specs[s]);
        dcomm_codec_info info;
        size_t bytes;
        dcomm_codec_get_info(codec, N, &info);
        for (int round = 0; round < (test_full() ? 700 : 140) && !isnan(info.contraction);
             round++) {
            fill(x, N, round % WELL_BEHAVED);
            dcomm_encode(codec, x, N, NULL, wire, sizeof wire, &bytes, NULL, NULL);
            dcomm_decode(codec, wire, bytes, y, N);
            double error = 0, norm = 0;
            for (int i = 0; i < N; i++) {
                error += ((double)y[i] - (double)x[i]) * ((double)y[i] - (double)x[i]);
                norm += (double)x[i] * (double)x[i];
            }
            cr_assert(error <= info.contraction * norm * (1 + 1e-6) + 1e-12 * norm, "%s: %g of %g",
                      specs[s], error / norm, info.contraction);
        }
        dcomm_codec_destroy(&codec);
    }
    /* sign is exact if all magnitudes are equal */
    dcomm_codec *codec = make("sign");
    size_t bytes;
    fill(x, N, CONSTANT);
    dcomm_encode(codec, x, N, NULL, wire, sizeof wire, &bytes, NULL, NULL);
    dcomm_decode(codec, wire, bytes, y, N);
    for (int i = 0; i < N; i++) {
        cr_assert_float_eq(y[i], x[i], 1e-7);
    }
    dcomm_codec_destroy(&codec);
}

/* Sum more wires than one pass handles. */
Test(codec_dense, sums_of_many_wires)
{
    enum { N = 900, WIRES = 130 };
    static float x[N], sum[N], expected[N], y[N];
    for (int s = 0; s < SPECS; s++) {
        dcomm_codec *codec = make(specs[s]);
        const size_t room = dcomm_codec_max_bytes(codec, N);
        unsigned char *memory = malloc(room * WIRES);
        const void *wires[WIRES];
        size_t lengths[WIRES];
        for (int w = 0; w < WIRES; w++) {
            dcomm_codec_key key = {.rank = (uint32_t)w};
            fill(x, N, GAUSSIAN);
            wires[w] = memory + (size_t)w * room;
            cr_assert_eq(dcomm_encode(codec, x, N, &key, memory + (size_t)w * room, room,
                                      &lengths[w], NULL, NULL),
                         DCOMM_OK);
            dcomm_decode(codec, wires[w], lengths[w], y, N);
            for (int i = 0; i < N; i++) {
                expected[i] = w == 0 ? y[i] : expected[i] + y[i];
            }
        }
        cr_assert_eq(dcomm_decode_sum(codec, wires, lengths, WIRES, sum, N), DCOMM_OK);
        cr_assert_eq(memcmp(sum, expected, sizeof sum), 0, "%s", specs[s]);
        free(memory);
        dcomm_codec_destroy(&codec);
    }
}
