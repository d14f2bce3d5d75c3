/* test_topk.c - top-k against a plain selection, its wire against every kind of damage, and its
 * error bound. */
#define _GNU_SOURCE
#pragma GCC diagnostic ignored "-Wunused-function" /* tests use a part of the functions */
#include "dcomm/impl/base/base_impl.h"
#include "dcomm/impl/codec/api_codec.h"

#include "full.h"
#include "gradients.h"
#include "make_codec.h"

enum { MOST = 150000 };

static _Alignas(64) float x[MOST], residual[MOST], next[MOST], y[MOST], z[MOST];
static uint32_t order[MOST];
static uint64_t state = 1;

static uint64_t random_bits(void)
{
    return dcommi_mix(state++, 5);
}

static float normal(void)
{
    double sum = 0;
    for (int i = 0; i < 6; i++) {
        sum += (double)(random_bits() >> 11) * 0x1p-53;
    }
    return (float)(sum - 3);
}

enum { GAUSS, FEW_VALUES, SPARSE, CONSTANT, RISING, TINY, KINDS };

static void fill(float *p, size_t n, int kind)
{
    for (size_t i = 0; i < n; i++) {
        switch (kind) {
        case GAUSS:
            p[i] = normal();
            break;
        case FEW_VALUES:
            p[i] = (float)((int)(random_bits() % 7) - 3);
            break;
        case SPARSE:
            p[i] = random_bits() % 500 == 0 ? normal() : 0.0f;
            break;
        case CONSTANT:
            p[i] = random_bits() % 2 == 0 ? 1.5f : -1.5f;
            break;
        case RISING: /* each beats all before it, and samples do not show it */
            p[i] = (float)i * (float)i;
            break;
        default: /* with denormals and zeros of both signs */
            p[i] = dcommi_f32_from_bits((uint32_t)random_bits() & 0x80ffffffu);
            p[i] = random_bits() % 2 == 0 ? p[i] : -0.0f;
        }
    }
}

/* Put the indices of the k largest magnitudes of z into `order`, ascending. Of equal ones take
 * the first. Find the smallest magnitude with fewer than k above it, bit by bit: faster than a
 * sort. */
static void plain_topk(size_t n, size_t k)
{
    uint32_t least = 0;
    size_t above = 0;
    for (uint32_t bit = (DCOMMI_ABS_BITS >> 1) + 1; bit > 0 && k > 0; bit /= 2) {
        size_t reach = 0;
        for (size_t i = 0; i < n; i++) {
            reach += (dcommi_f32_bits(z[i]) & DCOMMI_ABS_BITS) >= (least | bit);
        }
        least |= reach >= k ? bit : 0;
    }
    for (size_t i = 0; i < n; i++) {
        above += (dcommi_f32_bits(z[i]) & DCOMMI_ABS_BITS) > least;
    }
    for (size_t i = 0, have = 0, equal = 0; have < k; i++) {
        const uint32_t magnitude = dcommi_f32_bits(z[i]) & DCOMMI_ABS_BITS;
        if (magnitude > least || (magnitude == least && equal < k - above)) {
            equal += magnitude == least;
            order[have++] = (uint32_t)i;
        }
    }
}

/* Check that any initial threshold gives the plain selection. */
static void check_selection(size_t n, size_t k, int kind, bool feedback, uint32_t threshold)
{
    fill(x, n, kind);
    fill(residual, n, kind == CONSTANT ? FEW_VALUES : kind);
    for (size_t i = 0; i < n; i++) {
        z[i] = feedback ? x[i] + residual[i] : x[i];
    }
    plain_topk(n, k);
    size_t room = dcommi_topk_room(n, k);
    uint32_t *bits = malloc(4 * room), *index = malloc(4 * room);
    for (int isa = 0; isa <= (int)dcommi_isa_best(); isa++) {
        dcommi_isa_force(isa);
        dcommi_topk t = {.x = x,
                         .residual = feedback ? residual : NULL,
                         .next = feedback ? next : NULL,
                         .count = n,
                         .k = k,
                         .bits = bits,
                         .index = index,
                         .room = room};
        dcommi_topk_run(&t, threshold == UINT32_MAX ? dcommi_topk_guess(&t, 4) : threshold, true);
        cr_assert_eq(t.have, k, "%zu of %zu, kind %d, %s", k, n, kind, dcommi_isa_names[isa]);
        cr_assert_eq(memcmp(index, order, 4 * k), 0, "%zu of %zu, kind %d, %s, threshold %x", k, n,
                     kind, dcommi_isa_names[isa], threshold);
        for (size_t i = 0; i < k; i++) {
            cr_assert_eq(bits[i], dcommi_f32_bits(z[order[i]]));
        }
        for (size_t i = 0, j = 0; feedback && i < n; i++) {
            bool sent = j < k && order[j] == i;
            j += sent;
            cr_assert_eq(next[i], sent ? 0 : z[i], "%zu of %zu, kind %d", i, n, kind);
        }
        cr_assert_eq(t.nonfinite, 0);
    }
    dcommi_isa_force(-1);
    free(bits);
    free(index);
}

Test(topk, selects_the_largest)
{
    static const size_t sizes[] = {1, 2, 15, 63, 64, 65, 1000, 4096, 4097, 12289};
    for (int kind = 0; kind < KINDS; kind++) {
        for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
            size_t n = sizes[s];
            const size_t ks[] = {0, 1, n / 100, n / 10, n / 2, n - 1, n};
            for (size_t i = 0; i < sizeof ks / sizeof *ks; i++) {
                check_selection(n, ks[i], kind, false, UINT32_MAX);
                check_selection(n, ks[i], kind, true, UINT32_MAX);
            }
        }
        for (int feedback = 0; feedback < 2; feedback++) {
            check_selection(MOST, MOST / 100, kind, feedback, UINT32_MAX);
            check_selection(MOST, 7, kind, feedback, UINT32_MAX);
        }
    }
}

/* A threshold that is too high takes a second pass. One that is too low is raised on the way. */
Test(topk, any_threshold_gives_the_same)
{
    static const uint32_t thresholds[] = {0, 1, 0x3f800000u, 0x40400000u, DCOMMI_INF_BITS};
    for (int kind = 0; kind < KINDS; kind++) {
        for (size_t i = 0; i < sizeof thresholds / sizeof *thresholds; i++) {
            for (int feedback = 0; feedback < 2; feedback++) {
                if (test_full() || ((size_t)kind + i) % 2 == (size_t)feedback) {
                    check_selection(40000, 300, kind, feedback, thresholds[i]);
                }
            }
        }
    }
}

/* NaN and infinity under each policy: counted once, never left in a residual. */
Test(topk, numbers_that_are_not_finite)
{
    enum { N = 140000, K = 2100 }; /* long enough for nontemporal stores */
    static const uint32_t thresholds[] = {0, 0x3f800000u, 0x40400000u, DCOMMI_INF_BITS};
    size_t room = dcommi_topk_room(N, K);
    uint32_t *bits = malloc(4 * room), *index = malloc(4 * room);
    for (int round = 0; round < 64; round += test_full() ? 1 : 3) {
        bool feedback = round & 1, pass = round & 2;
        size_t wild = (round & 4) != 0 ? 5 : 1000;
        fill(x, N, GAUSS);
        fill(residual, N, (round & 8) != 0 ? GAUSS : SPARSE);
        memcpy(z, x, sizeof z);
        size_t count = 0, first = N;
        for (size_t i = 0; i < wild; i++) {
            size_t at = random_bits() % (N - 1);
            count += isfinite(x[at]) != 0;
            first = at < first ? at : first;
            x[at] = i % 2 == 0 ? NAN : -INFINITY;
        }
        x[N - 1] = residual[N - 1] = -3e38f;
        for (size_t i = 0; i < N; i++) {
            float from = pass || isfinite(x[i]) ? x[i] : 0;
            z[i] = feedback ? from + residual[i] : from;
        }
        z[N - 1] = feedback ? -3.40282347e38f : z[N - 1];
        plain_topk(N, K);
        for (int isa = 0; isa <= (int)dcommi_isa_best(); isa++) {
            dcommi_isa_force(isa);
            dcommi_topk t = {.x = x,
                             .residual = feedback ? residual : NULL,
                             .next = feedback ? next : NULL,
                             .count = N,
                             .k = K,
                             .pass = pass,
                             .bits = bits,
                             .index = index,
                             .room = room};
            dcommi_topk_run(&t, thresholds[round / 16], true);
            cr_assert_eq(t.have, K);
            cr_assert_eq(memcmp(index, order, 4 * K), 0, "round %d", round);
            cr_assert_eq(t.nonfinite, count, "round %d: %zu, not %zu", round, t.nonfinite, count);
            cr_assert_eq(t.first_nonfinite, first);
            cr_assert_eq(t.clipped, feedback);
            for (size_t i = 0, j = 0; feedback && i < N; i++) {
                bool sent = j < K && order[j] == i;
                j += sent;
                float wanted = !isfinite(z[i]) ? residual[i] : sent ? 0 : z[i];
                cr_assert_eq(next[i], wanted, "round %d, %zu: %g, not %g", round, i,
                             (double)next[i], (double)wanted);
            }
        }
    }
    dcommi_isa_force(-1);
    free(bits);
    free(index);
}

/* ---- the codecs ---- */

typedef struct wire {
    unsigned char *at;
    size_t room, bytes;
    dcomm_codec_report report;
} wire;

static wire encode(const dcomm_codec *codec, size_t n, bool feedback)
{
    wire w = {.room = dcomm_codec_max_bytes(codec, n)};
    w.at = malloc(w.room + 1);
    cr_assert_eq(feedback
                     ? dcomm_encode_feedback(codec, x, residual, next, n, NULL, w.at, w.room,
                                             &w.bytes, NULL, &w.report)
                     : dcomm_encode(codec, x, n, NULL, w.at, w.room, &w.bytes, NULL, &w.report),
                 DCOMM_OK, "%s", dcomm_last_error());
    cr_assert_leq(w.bytes, w.room);
    return w;
}

static const char *const specs[] = {"topk:k=0.001",
                                    "topk:k=0.01,values=bf16",
                                    "topk:k=0.3,values=f16",
                                    "topk:k=0.07",
                                    "topk:k=13",
                                    "threshold:k=0.01",
                                    "threshold:k=0.2,values=bf16",
                                    "topk+qsgd:k=0.05,bits=8,rounding=nearest"};

enum { SPECS = sizeof specs / sizeof *specs };

/* More numbers are not finite than are sent. None may enter a residual, and an element that the
 * decoder gets as such loses nothing from its residual. */
Test(topk, more_that_are_not_finite_than_are_sent)
{
    enum { N = 20000 };
    static const char *const passing[] = {"topk:k=100,nonfinite=pass",
                                          "topk:k=0.004,values=f16,nonfinite=pass",
                                          "threshold:k=100,nonfinite=pass",
                                          "topk+qsgd:k=1000,nonfinite=pass",
                                          "topk+qsgd:k=1500,bits=8,bucket=128,nonfinite=pass",
                                          "randk:k=100,nonfinite=pass"};
    static const size_t wild[] = {1, 99, 1001, N};
    for (size_t s = 0; s < sizeof passing / sizeof *passing; s++) {
        dcomm_codec *codec = make(passing[s]);
        for (size_t c = 0; c < sizeof wild / sizeof *wild; c++) {
            fill(x, N, GAUSS);
            fill(residual, N, GAUSS);
            for (size_t i = 0; i < wild[c]; i++) {
                x[i * (N / wild[c])] = i % 3 == 0 ? NAN : i % 3 == 1 ? INFINITY : -INFINITY;
            }
            wire w = encode(codec, N, true);
            cr_assert_eq(w.report.nonfinite, wild[c], "%s", passing[s]);
            cr_assert_eq(dcomm_decode(codec, w.at, w.bytes, y, N), DCOMM_OK);
            size_t arrived = 0;
            for (size_t i = 0; i < N; i++) {
                const bool kept = !isfinite(x[i]) || !isfinite(y[i]);
                const float wanted = kept ? residual[i] : (x[i] + residual[i]) - y[i];
                arrived += !isfinite(y[i]);
                cr_assert_eq(next[i], wanted, "%s, %zu wild, %zu: %g, not %g", passing[s], wild[c],
                             i, (double)next[i], (double)wanted);
            }
            cr_assert_gt(arrived, 0, "%s", passing[s]);
            free(w.at);
        }
        dcomm_codec_destroy(&codec);
    }
}

/* All forms of indices and all formats of values: the same bytes from every instruction set. The
 * decoder returns elements of the input, and zero elsewhere. */
Test(topk, bytes_and_values)
{
    static const size_t sizes[] = {1, 17, 1000, 65536, 65537, MOST};
    bool seen[3] = {false};
    for (size_t s = 0; s < SPECS; s++) {
        dcomm_codec *codec = make(specs[s]);
        for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
            size_t n = sizes[i];
            if (!test_full() && n > 1000 && (s + i) % 3 != 0) {
                continue;
            }
            fill(x, n, GAUSS);
            fill(residual, n, GAUSS);
            for (int feedback = 0; feedback < 2; feedback++) {
                wire first = {0};
                for (int isa = 0; isa <= (int)dcommi_isa_best(); isa++) {
                    dcommi_isa_force(isa);
                    wire w = encode(codec, n, feedback != 0);
                    if (isa == 0) {
                        first = w;
                        memcpy(z, next, sizeof z);
                        continue;
                    }
                    cr_assert_eq(w.bytes, first.bytes);
                    cr_assert_eq(memcmp(w.at, first.at, w.bytes), 0);
                    cr_assert(!feedback || memcmp(z, next, n * sizeof *z) == 0);
                    free(w.at);
                }
                dcommi_isa_force(-1);
                seen[dcommi_sparse_form_of(n, first.report.kept)] = true;
                cr_assert_eq(dcomm_decode(codec, first.at, first.bytes, y, n), DCOMM_OK);
                size_t kept = 0;
                for (size_t e = 0; e < n; e++) {
                    float sum = feedback ? x[e] + residual[e] : x[e];
                    kept += y[e] != 0;
                    float near = codec->inner != NULL ? 0.05f : fabsf(sum) / 256;
                    cr_assert(y[e] == 0 || fabsf(y[e] - sum) <= near);
                    cr_assert(!feedback || next[e] == sum - y[e]);
                }
                cr_assert_eq(kept, first.report.kept);
                free(first.at);
            }
        }
        dcomm_codec_destroy(&codec);
    }
    cr_assert(seen[0] && seen[1] && seen[2], "a form was not tried");
}

/* Check |C(x)-x|^2 <= (1-k/d) |x|^2 for any x, with equality if all magnitudes are equal. */
static void check_contraction(const dcomm_codec *codec, size_t n, const char *kind, bool equal)
{
    wire w = encode(codec, n, false);
    cr_assert_eq(dcomm_decode(codec, w.at, w.bytes, y, n), DCOMM_OK);
    double all = 0, left = 0;
    for (size_t i = 0; i < n; i++) {
        all += (double)x[i] * (double)x[i];
        left += ((double)x[i] - (double)y[i]) * ((double)x[i] - (double)y[i]);
    }
    cr_assert(left <= 0.95 * all * (1 + 1e-12), "%s: %g of %g", kind, left, all);
    cr_assert(!equal || fabs(left / all - 0.95) < 1e-12, "%s: %g", kind, left / all);
    free(w.at);
}

Test(topk, contracts)
{
    const size_t n = 2000;
    static const char *const names[] = {"normal", "few values", "sparse", "constant", "rising"};
    dcomm_codec *codec = make("topk:k=0.05");
    dcomm_codec_info info;
    dcomm_codec_get_info(codec, n, &info);
    cr_assert_float_eq(info.contraction, 0.95, 1e-12);
    for (int kind = 0; kind <= RISING; kind++) {
        fill(x, n, kind);
        check_contraction(codec, n, names[kind], kind == CONSTANT);
    }
    for (int kind = 0; kind < GRADIENT_KINDS; kind++) {
        cr_assert_null(gradient_fill(kind, 0, 0, x, n));
        check_contraction(codec, n, gradient_kinds[kind],
                          strncmp(gradient_kinds[kind], "constant", 8) == 0);
    }
    dcomm_codec_destroy(&codec);
}

/* The sampled threshold keeps about k elements, never more than twice k, no zeros, and reports
 * them. */
Test(topk, threshold_keeps_about_k)
{
    dcomm_codec *codec = make("threshold:k=0.01");
    for (int kind = 0; kind <= TINY; kind++) {
        fill(x, MOST, kind);
        wire w = encode(codec, MOST, false);
        cr_assert_leq(w.report.kept, 2 * MOST / 100);
        if (kind == GAUSS) {
            cr_assert_geq(w.report.kept, MOST / 200);
        } else if (kind == SPARSE) {
            cr_assert_leq(w.report.kept, MOST / 300, "zeros were sent");
        }
        uint32_t head;
        memcpy(&head, w.at, 4);
        cr_assert_eq(head, w.report.kept);
        free(w.at);
    }
    dcomm_codec_destroy(&codec);
}

/* Σ sent + residual = Σ gradient, up to the rounding of so many additions. */
Test(topk, feedback_conserves_over_many_steps)
{
    const size_t n = 3000;
    static double sent[3000], given[3000];
    for (size_t s = 0; s < SPECS; s++) {
        dcomm_codec *codec = make(specs[s]);
        memset(sent, 0, sizeof sent);
        memset(given, 0, sizeof given);
        memset(residual, 0, sizeof residual);
        for (int step = 0; step < (test_full() ? 500 : 150); step++) {
            fill(x, n, GAUSS);
            wire w = encode(codec, n, true);
            memcpy(residual, next, sizeof *next * n);
            cr_assert_eq(dcomm_decode(codec, w.at, w.bytes, y, n), DCOMM_OK);
            for (size_t i = 0; i < n; i++) {
                sent[i] += y[i];
                given[i] += x[i];
            }
            free(w.at);
        }
        for (size_t i = 0; i < n; i++) {
            cr_assert_float_eq(sent[i] + residual[i], given[i], 1e-3);
        }
        dcomm_codec_destroy(&codec);
    }
}

Test(topk, sum_of_many_wires)
{
    enum { N = 140000, WIRES = 5 };
    dcomm_codec *codec = make("topk:k=0.02,values=f16");
    wire w[WIRES];
    const void *wires[WIRES];
    size_t bytes[WIRES];
    for (int i = 0; i < WIRES; i++) {
        fill(x, N, GAUSS);
        w[i] = encode(codec, N, false);
        wires[i] = w[i].at;
        bytes[i] = w[i].bytes;
        cr_assert_eq((i == 0 ? dcomm_decode : dcomm_decode_add)(codec, w[i].at, bytes[i], y, N),
                     DCOMM_OK);
    }
    cr_assert_eq(dcomm_decode_sum(codec, wires, bytes, WIRES, z, N), DCOMM_OK);
    cr_assert_eq(memcmp(y, z, N * sizeof *y), 0);
    bytes[3]--;
    cr_assert_eq(dcomm_decode_sum(codec, wires, bytes, WIRES, z, N), DCOMM_ERR_CORRUPT);
    for (int i = 0; i < WIRES; i++) {
        free(w[i].at);
    }
    dcomm_codec_destroy(&codec);
}

/* ---- damage ---- */

static void corrupt(const dcomm_codec *codec, const unsigned char *at, size_t bytes, size_t n,
                    const char *what)
{
    unsigned char *copy = malloc(bytes + 1); /* exact length: sanitizers see overreads */
    unsigned char *exact = realloc(copy, bytes > 0 ? bytes : 1);
    memcpy(exact, at, bytes);
    memset(y, 0, n * sizeof *y);
    cr_assert_eq(dcomm_decode_add(codec, exact, bytes, y, n), DCOMM_ERR_CORRUPT, "%s: %s",
                 dcomm_codec_spec(codec), what);
    for (size_t i = 0; i < n; i++) {
        cr_assert_eq(y[i], 0, "%s: half of a bad wire was added", what);
    }
    free(exact);
}

Test(topk, damaged_wires)
{
    const size_t n = 70000;
    static const char *const forms[] = {"topk:k=3", "topk:k=0.01", "topk:k=0.3"};
    for (int form = 0; form < 3; form++) {
        dcomm_codec *codec = make(forms[form]);
        fill(x, n, GAUSS);
        wire w = encode(codec, n, false);
        size_t kept = w.report.kept, index = 4 + 4 * kept;
        cr_assert_eq((int)dcommi_sparse_form_of(n, kept), form);
        for (size_t cut = 0; cut < w.bytes; cut += 1 + cut / 2) {
            corrupt(codec, w.at, cut, n, "truncated");
        }
        for (int delta = -1; delta <= 1; delta += 2) {
            uint32_t lie = (uint32_t)((int)kept + delta);
            memcpy(w.at, &lie, 4);
            corrupt(codec, w.at, w.bytes, n, "the count lies");
        }
        uint32_t lie = UINT32_MAX;
        memcpy(w.at, &lie, 4);
        corrupt(codec, w.at, w.bytes, n, "the count lies much");
        lie = (uint32_t)kept;
        memcpy(w.at, &lie, 4);
        unsigned char keep[8];
        size_t last = form == 1 ? w.bytes - 2 : w.bytes - 4;
        if (form == 0) {
            memcpy(keep, w.at + last, 4);
            lie = (uint32_t)n;
            memcpy(w.at + last, &lie, 4);
            corrupt(codec, w.at, w.bytes, n, "an index is out of range");
            memcpy(w.at + last, keep, 4);
            memcpy(keep, w.at + index, 8);
            memcpy(w.at + index, keep + 4, 4);
            corrupt(codec, w.at, w.bytes, n, "an index is there twice");
            memcpy(w.at + index + 4, keep, 4);
            corrupt(codec, w.at, w.bytes, n, "indices are not sorted");
            memcpy(w.at + index, keep, 8);
        } else if (form == 1) {
            memcpy(keep, w.at + last, 2);
            memset(w.at + last, 0xff, 2);
            corrupt(codec, w.at, w.bytes, n, "an offset is out of range");
            memcpy(w.at + last, keep, 2);
            for (int b = 0; b < 2; b++) {
                for (int delta = -1; delta <= 1; delta += 2) {
                    memcpy(keep, w.at + index + 4 * b, 4);
                    memcpy(&lie, keep, 4);
                    lie += (uint32_t)(delta * (int)kept);
                    memcpy(w.at + index + 4 * b, &lie, 4);
                    corrupt(codec, w.at, w.bytes, n, "a block's end lies");
                    memcpy(w.at + index + 4 * b, keep, 4);
                }
            }
            memcpy(keep, w.at + index + 8, 4);
            memcpy(w.at + index + 8, keep + 2, 2);
            memcpy(w.at + index + 10, keep, 2);
            corrupt(codec, w.at, w.bytes, n, "offsets are not sorted");
            memcpy(w.at + index + 8, keep, 4);
        } else {
            w.at[index + 1000] ^= 16;
            corrupt(codec, w.at, w.bytes, n, "a bit of the bitmap is flipped");
            w.at[index + 1000] ^= 16;
        }
        cr_assert_eq(dcomm_decode(codec, w.at, w.bytes, y, n), DCOMM_OK);
        memset(w.at + 4, 0xff, 4);
        corrupt(codec, w.at, w.bytes, n, "a value is NaN");
        free(w.at);
        dcomm_codec_destroy(&codec);
    }
}

/* A bitmap's last byte may have bits after the end. */
Test(topk, bits_behind_the_end)
{
    const size_t n = 1003;
    dcomm_codec *codec = make("topk:k=0.5");
    fill(x, n, GAUSS);
    x[0] = 9;
    wire w = encode(codec, n, false);
    size_t index = 4 + 4 * w.report.kept;
    cr_assert_eq(dcommi_sparse_form_of(n, w.report.kept), DCOMMI_SPARSE_BITMAP);
    w.at[index] ^= 1;
    w.at[w.bytes - 1] ^= 0x80;
    corrupt(codec, w.at, w.bytes, n, "as many bits, one behind the end");
    free(w.at);
    dcomm_codec_destroy(&codec);
}
