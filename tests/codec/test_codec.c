/* test_codec.c - the promises of the codec interface for every codec: specs, arguments, lengths,
 * corner values, feedback. */
#define _GNU_SOURCE
#include "dcomm.h"
#include "comma.h"
#include "make_codec.h"

#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void refused(const char *spec, const char *sentence)
{
    dcomm_codec *codec = NULL;
    cr_assert_eq(dcomm_codec_create(spec, &codec), DCOMM_ERR_INVALID, "%s", spec);
    cr_assert_null(codec);
    cr_assert_not_null(strstr(dcomm_last_error(), sentence), "%s: %s", spec, dcomm_last_error());
}

Test(codec, specs_are_read_and_written)
{
    dcomm_codec *codec = make("bf16");
    cr_assert_not_null(strstr(dcomm_codec_spec(codec), "nonfinite=fail"));
    dcomm_codec *again = make(dcomm_codec_spec(codec));
    cr_assert_str_eq(dcomm_codec_spec(again), dcomm_codec_spec(codec));
    dcomm_codec_destroy(&again);
    dcomm_codec_destroy(&codec);
    cr_assert_null(codec);
    cr_assert_eq(dcomm_codec_destroy(&codec), DCOMM_OK);
    for (size_t i = 0; dcomm_codec_name(i) != NULL; i++) {
        codec = make(dcomm_codec_name(i));
        again = make(dcomm_codec_spec(codec));
        cr_assert_str_eq(dcomm_codec_spec(again), dcomm_codec_spec(codec));
        cr_assert_not_null(dcomm_codec_help(dcomm_codec_name(i)));
        dcomm_codec_destroy(&again);
        dcomm_codec_destroy(&codec);
    }
    cr_assert_null(dcomm_codec_help("zip"));
}

Test(codec, bad_specs_get_a_sentence)
{
    refused("zip", "there is no codec 'zip'");
    refused("", "there is no codec ''");
    refused("bf16:", "nothing behind the colon");
    refused("bf16:level=3", "no option 'level'");
    refused("bf16:nonfinite", "'nonfinite' is not option=value");
    refused("bf16:nonfinite=ignore", "one of fail|zero|pass");
    refused("bf16:nonfinite=zero,nonfinite=zero", "given twice");
    refused("bf16:nonfinite=zero,", "is not option=value");
    refused("bf16:=zero", "is not option=value");
    dcomm_codec *codec = NULL;
    cr_assert_eq(dcomm_codec_create(NULL, &codec), DCOMM_ERR_INVALID);
    cr_assert_eq(dcomm_codec_create("bf16", NULL), DCOMM_ERR_INVALID);
}

/* A spec written under a locale with a decimal comma equals the C locale's, and both locales read
 * it. */
Test(codec, the_locale_does_not_matter, .timeout = 60)
{
    static const char *const specs[] = {"topk:k=0.01", "threshold:k=0.05", "topk+qsgd:k=0.001",
                                        "randk:k=0.25", "powersgd:rank=3"};
    const dcomm_feedback_opts opts = {.scale = true};
    char plain[5][256];
    for (int i = 0; i < 5; i++) {
        dcomm_codec *codec = make(specs[i]);
        snprintf(plain[i], sizeof plain[i], "%s", dcomm_codec_spec(codec));
        dcomm_codec_destroy(&codec);
    }
    comma_locale();
    for (int i = 0; i < 5; i++) {
        setlocale(LC_ALL, "de_DE");
        dcomm_codec *codec = make(specs[i]), *other = NULL;
        dcomm_feedback *fb = NULL, *again = NULL;
        cr_assert_str_eq(dcomm_codec_spec(codec), plain[i]);
        refused("topk:k=0,01", "k=0: it must be a number from 1e-09");
        cr_assert_eq(dcomm_feedback_create(codec, 500, &opts, &fb), DCOMM_OK, "%s",
                     dcomm_last_error());
        size_t bytes = dcomm_feedback_save_bytes(fb);
        void *saved = malloc(bytes);
        cr_assert_eq(dcomm_feedback_save(fb, saved, bytes), DCOMM_OK);
        setlocale(LC_ALL, "C");
        other = make(specs[i]);
        cr_assert_eq(dcomm_feedback_load(other, saved, bytes, &again), DCOMM_OK, "%s: %s", specs[i],
                     dcomm_last_error());
        free(saved);
        dcomm_feedback_destroy(&fb);
        dcomm_feedback_destroy(&again);
        dcomm_codec_destroy(&codec);
        dcomm_codec_destroy(&other);
    }
}

Test(codec, numbers_are_read_strictly)
{
    static const char *const bad[] = {"topk:k=0x1p-4", "topk:k= 0.1", "topk:k=0.1 ", "topk:k=nan",
                                      "topk:k=1e",     "topk:k=.",    "topk:k=",     "topk:k=--1"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        refused(bad[i], "it must be a number from");
    }
    refused("qsgd:bits=2.5", "it must be");
}

Test(codec, arguments_are_checked)
{
    dcomm_codec *codec = make("bf16");
    float x[4] = {1, 2, 3, 4};
    unsigned char wire[8];
    size_t bytes;
    cr_assert_eq(dcomm_codec_max_bytes(codec, 4), 8);
    cr_assert_eq(dcomm_encode(codec, x, 4, NULL, wire, 7, &bytes, NULL, NULL), DCOMM_ERR_INVALID);
    cr_assert_not_null(strstr(dcomm_last_error(), "capacity is 7"));
    cr_assert_eq(dcomm_encode(NULL, x, 4, NULL, wire, 8, &bytes, NULL, NULL), DCOMM_ERR_INVALID);
    cr_assert_eq(dcomm_encode(codec, NULL, 4, NULL, wire, 8, &bytes, NULL, NULL),
                 DCOMM_ERR_INVALID);
    cr_assert_eq(dcomm_encode(codec, x, 4, NULL, wire, 8, NULL, NULL, NULL), DCOMM_ERR_INVALID);
    cr_assert_eq(dcomm_encode(codec, x, SIZE_MAX, NULL, wire, SIZE_MAX, &bytes, NULL, NULL),
                 DCOMM_ERR_INVALID);
    cr_assert_eq(dcomm_encode(codec, x, 4, NULL, wire, 8, &bytes, NULL, NULL), DCOMM_OK);
    cr_assert_eq(bytes, 8);
    cr_assert_eq(dcomm_decode(codec, wire, 7, x, 4), DCOMM_ERR_CORRUPT);
    cr_assert_eq(dcomm_decode(codec, wire, 8, x, 3), DCOMM_ERR_CORRUPT);
    cr_assert_eq(dcomm_decode(codec, wire, 8, NULL, 4), DCOMM_ERR_INVALID);
    cr_assert_eq(dcomm_decode(codec, wire, 8, x, 4), DCOMM_OK);
    const void *wires[2] = {wire, NULL};
    size_t lengths[2] = {8, 8};
    cr_assert_eq(dcomm_decode_sum(codec, wires, lengths, 2, x, 4), DCOMM_ERR_INVALID);
    cr_assert_eq(dcomm_decode_sum(codec, wires, lengths, 0, x, 4), DCOMM_ERR_INVALID);
    dcomm_codec_destroy(&codec);
}

/* ---- every codec, in its default form ---- */

enum { MOST = 3000 };
static const size_t sizes[] = {0,   1,   2,   3,   7,   15,  16,   17,  63,
                               127, 128, 129, 511, 512, 513, 1000, 2999};

static float normal(void)
{
    float sum = 0;
    for (int i = 0; i < 12; i++) {
        sum += (float)drand48();
    }
    return sum - 6;
}

typedef struct buffers {
    unsigned char *wire, *wire2;
    size_t room;
} buffers;

static buffers room_for(const dcomm_codec *codec, size_t count)
{
    buffers b = {.room = dcomm_codec_max_bytes(codec, count)};
    cr_assert_neq(b.room, SIZE_MAX);
    b.wire = malloc(b.room + 1);
    b.wire2 = malloc(b.room + 1);
    return b;
}

static void release(buffers *b)
{
    free(b->wire);
    free(b->wire2);
}

Test(codec, every_codec_every_size)
{
    static float x[MOST], y[MOST], z[MOST], sum[MOST];
    for (size_t c = 0; dcomm_codec_name(c) != NULL; c++) {
        dcomm_codec *codec = make(dcomm_codec_name(c));
        for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
            size_t count = sizes[s], bytes = 0, bytes2 = 0;
            for (size_t i = 0; i < count; i++) {
                x[i] = normal();
                sum[i] = normal();
            }
            buffers b = room_for(codec, count);
            dcomm_codec_key key = {.seed = 3, .step = s};
            dcomm_codec_report report;
            cr_assert_eq(dcomm_encode(codec, x, count, &key, b.wire, b.room, &bytes, NULL, &report),
                         DCOMM_OK, "%s", dcomm_last_error());
            dcomm_codec_info info;
            cr_assert_eq(dcomm_codec_get_info(codec, count, &info), DCOMM_OK);
            cr_assert(info.exact_bytes ? bytes == b.room : bytes <= b.room);
            cr_assert_eq(report.bytes, bytes);
            cr_assert_eq(report.nonfinite, 0);
            cr_assert_eq(dcomm_encode(codec, x, count, &key, b.wire2, b.room, &bytes2, NULL, NULL),
                         DCOMM_OK);
            cr_assert_eq(bytes, bytes2);
            cr_assert_eq(memcmp(b.wire, b.wire2, bytes), 0);
            cr_assert_eq(dcomm_decode(codec, b.wire, bytes, y, count), DCOMM_OK, "%s: %s",
                         dcomm_codec_spec(codec), dcomm_last_error());
            memcpy(z, sum, sizeof z);
            cr_assert_eq(dcomm_decode_add(codec, b.wire, bytes, z, count), DCOMM_OK);
            for (size_t i = 0; i < count; i++) {
                cr_assert_eq(z[i], sum[i] + y[i]);
            }
            const void *wires[3] = {b.wire, b.wire, b.wire};
            size_t lengths[3] = {bytes, bytes, bytes};
            cr_assert_eq(dcomm_decode_sum(codec, wires, lengths, 3, z, count), DCOMM_OK);
            for (size_t i = 0; i < count; i++) {
                cr_assert_eq(z[i], y[i] + y[i] + y[i]);
            }
            for (size_t cut = 0; cut < bytes; cut += 1 + cut / 3) {
                cr_assert_eq(dcomm_decode(codec, b.wire, cut, y, count), DCOMM_ERR_CORRUPT);
            }
            release(&b);
        }
        dcomm_codec_destroy(&codec);
    }
}

/* x + residual = decoded + next, up to rounding, in place and not. */
Test(codec, feedback_conserves)
{
    static float x[MOST], r[MOST], in_place[MOST], next[MOST], y[MOST];
    for (size_t c = 0; dcomm_codec_name(c) != NULL; c++) {
        dcomm_codec *codec = make(dcomm_codec_name(c));
        for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
            size_t count = sizes[s], bytes = 0;
            for (size_t i = 0; i < count; i++) {
                x[i] = normal();
                r[i] = in_place[i] = 0.3f * normal();
            }
            buffers b = room_for(codec, count);
            cr_assert_eq(dcomm_encode_feedback(codec, x, r, next, count, NULL, b.wire, b.room,
                                               &bytes, NULL, NULL),
                         DCOMM_OK);
            cr_assert_eq(dcomm_encode_feedback(codec, x, in_place, in_place, count, NULL, b.wire2,
                                               b.room, &bytes, NULL, NULL),
                         DCOMM_OK);
            cr_assert_eq(memcmp(b.wire, b.wire2, bytes), 0);
            cr_assert_eq(memcmp(in_place, next, count * sizeof *next), 0);
            cr_assert_eq(dcomm_decode(codec, b.wire, bytes, y, count), DCOMM_OK);
            for (size_t i = 0; i < count; i++) {
                cr_assert_eq(next[i], (x[i] + r[i]) - y[i], "%s, %zu of %zu",
                             dcomm_codec_spec(codec), i, count);
            }
            release(&b);
        }
        dcomm_codec_destroy(&codec);
    }
}

/* A clipped part stays in the residual, in whole blocks and in the last one. */
Test(codec, feedback_keeps_what_it_clips)
{
    static const char *const specs[] = {"f16", "f16:rounding=stochastic", "bf16",
                                        "f16:nonfinite=zero", "topk:k=0.5,values=f16"};
    static float x[MOST], r[MOST], next[MOST], y[MOST];
    for (size_t c = 0; c < sizeof specs / sizeof *specs; c++) {
        dcomm_codec *codec = make(specs[c]);
        for (size_t s = 1; s < sizeof sizes / sizeof *sizes; s++) {
            size_t count = sizes[s], bytes = 0;
            dcomm_codec_report report;
            for (size_t i = 0; i < count; i++) {
                x[i] = 1e6f * normal();
                r[i] = 0.1f * x[i];
            }
            x[0] = 1e6f;
            r[0] = 0;
            x[count - 1] = count > 1 ? FLT_MAX : x[count - 1];
            r[count - 1] = count > 1 ? FLT_MAX : r[count - 1]; /* the sum counts as FLT_MAX */
            buffers b = room_for(codec, count);
            cr_assert_eq(dcomm_encode_feedback(codec, x, r, next, count, NULL, b.wire, b.room,
                                               &bytes, NULL, &report),
                         DCOMM_OK);
            cr_assert_eq(dcomm_encode_feedback(codec, x, r, r, count, NULL, b.wire2, b.room, &bytes,
                                               NULL, NULL),
                         DCOMM_OK);
            cr_assert_eq(memcmp(r, next, count * sizeof *next), 0, "%s in place", specs[c]);
            cr_assert_eq(dcomm_decode(codec, b.wire, bytes, y, count), DCOMM_OK);
            cr_assert(report.clipped > 0 || c == 2 || count == 1, "%s", specs[c]);
            cr_assert(c == 2 || c == 4 || next[0] == 1e6f - 65504, "%s: %g", specs[c],
                      (double)next[0]);
            for (size_t i = 0; i < count; i++) {
                float e = i == count - 1 && count > 1 ? FLT_MAX : x[i] + 0.1f * x[i];
                e = i == 0 ? 1e6f : e;
                cr_assert(fabs((double)e - (double)y[i] - (double)next[i]) <=
                              1e-7 * (double)fabsf(e),
                          "%s, %zu of %zu: %g is neither sent nor kept", specs[c], i, count,
                          (double)e - (double)y[i] - (double)next[i]);
            }
            release(&b);
        }
        dcomm_codec_destroy(&codec);
    }
}

/* dcomm_recode, the owner's single pass, equals decode_sum, a factor and encode. */
Test(codec, recode_is_decode_sum_and_encode)
{
    static float x[3][MOST], r[MOST], next[MOST], next2[MOST], sum[MOST];
    for (size_t c = 0; dcomm_codec_name(c) != NULL; c++) {
        dcomm_codec *codec = make(dcomm_codec_name(c));
        for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
            size_t count = sizes[s], bytes[3], got = 0, wanted = 0;
            buffers b[3], out = room_for(codec, count);
            const void *wires[3];
            for (int w = 0; w < 3; w++) {
                b[w] = room_for(codec, count);
                wires[w] = b[w].wire;
                for (size_t i = 0; i < count; i++) {
                    x[w][i] = normal();
                    r[i] = 0.1f * normal();
                }
                dcomm_codec_key key = {.rank = (uint32_t)w};
                cr_assert_eq(dcomm_encode(codec, x[w], count, &key, b[w].wire, b[w].room, &bytes[w],
                                          NULL, NULL),
                             DCOMM_OK);
            }
            for (int feedback = 0; feedback < 2; feedback++) {
                dcomm_codec_key key = {.step = 9};
                const float *residual = feedback ? r : NULL;
                cr_assert_eq(dcomm_recode(codec, wires, bytes, 3, 0.25f, residual, next, count,
                                          &key, out.wire, out.room, &got, NULL, NULL),
                             DCOMM_OK);
                cr_assert_eq(dcomm_decode_sum(codec, wires, bytes, 3, sum, count), DCOMM_OK);
                for (size_t i = 0; i < count; i++) {
                    sum[i] *= 0.25f;
                }
                cr_assert_eq(feedback
                                 ? dcomm_encode_feedback(codec, sum, r, next2, count, &key,
                                                         out.wire2, out.room, &wanted, NULL, NULL)
                                 : dcomm_encode(codec, sum, count, &key, out.wire2, out.room,
                                                &wanted, NULL, NULL),
                             DCOMM_OK);
                cr_assert_eq(got, wanted);
                cr_assert_eq(memcmp(out.wire, out.wire2, got), 0, "%s, %zu", dcomm_codec_name(c),
                             count);
                cr_assert(!feedback || memcmp(next, next2, count * sizeof *next) == 0);
            }
            release(&out);
            for (int w = 0; w < 3; w++) {
                release(&b[w]);
            }
        }
        dcomm_codec_destroy(&codec);
    }
}

/* NaN and infinity are counted, named, and never left in a residual. */
Test(codec, nonfinite_inputs)
{
    static float x[MOST], r[MOST], next[MOST], y[MOST];
    const char *policies[3] = {"fail", "zero", "pass"};
    const size_t count = 2000;
    for (size_t c = 0; dcomm_codec_name(c) != NULL; c++) {
        for (int p = 0; p < 3; p++) {
            char spec[64];
            snprintf(spec, sizeof spec, "%s:nonfinite=%s", dcomm_codec_name(c), policies[p]);
            dcomm_codec *codec = make(spec);
            for (size_t i = 0; i < count; i++) {
                x[i] = 3 * normal();
                r[i] = normal();
            }
            x[700] = NAN;
            x[701] = -INFINITY;
            x[1999] = INFINITY;
            buffers b = room_for(codec, count);
            size_t bytes = 0;
            dcomm_codec_report report;
            for (int feedback = 0; feedback < 2; feedback++) {
                dcomm_status status =
                    feedback ? dcomm_encode_feedback(codec, x, r, next, count, NULL, b.wire, b.room,
                                                     &bytes, NULL, &report)
                             : dcomm_encode(codec, x, count, NULL, b.wire, b.room, &bytes, NULL,
                                            &report);
                cr_assert_eq(status, p == 0 ? DCOMM_ERR_INVALID : DCOMM_OK, "%s", spec);
                cr_assert_eq(report.nonfinite, 3, "%s: %zu", spec, report.nonfinite);
                cr_assert_eq(report.first_nonfinite, 700);
                if (p == 0) {
                    cr_assert_not_null(strstr(dcomm_last_error(), "number 700"), "%s",
                                       dcomm_last_error());
                }
                cr_assert_eq(dcomm_decode(codec, b.wire, bytes, y, count), DCOMM_OK, "%s: %s", spec,
                             dcomm_last_error());
                for (size_t i = 0; i < count; i++) {
                    cr_assert(p == 2 || isfinite(y[i]), "%s: %zu", spec, i);
                    if (feedback) {
                        float e = isfinite(x[i]) ? x[i] + r[i] : r[i];
                        cr_assert_eq(next[i], isfinite(y[i]) ? e - y[i] : r[i], "%s: %zu", spec, i);
                    }
                }
                if (p == 2) {
                    cr_assert(!isfinite(y[700]) && !isfinite(y[701]) && !isfinite(y[1999]), "%s",
                              spec);
                }
            }
            release(&b);
            dcomm_codec_destroy(&codec);
        }
    }
}

/* Zeros, denormals and numbers at both ends of the range. */
Test(codec, corner_values)
{
    static float x[MOST], y[MOST];
    const size_t count = 1300;
    for (size_t c = 0; dcomm_codec_name(c) != NULL; c++) {
        dcomm_codec *codec = make(dcomm_codec_name(c));
        buffers b = room_for(codec, count);
        for (int kind = 0; kind < 6; kind++) {
            for (size_t i = 0; i < count; i++) {
                float sign = i % 3 == 0 ? -1.0f : 1.0f;
                const float values[6] = {0, 1e-40f, FLT_MIN, FLT_MAX, 1e-30f, i < 600 ? 0 : 1};
                x[i] = sign * values[kind];
            }
            size_t bytes = 0;
            dcomm_codec_report report;
            cr_assert_eq(dcomm_encode(codec, x, count, NULL, b.wire, b.room, &bytes, NULL, &report),
                         DCOMM_OK);
            cr_assert_eq(report.nonfinite, 0);
            cr_assert_eq(dcomm_decode(codec, b.wire, bytes, y, count), DCOMM_OK);
            for (size_t i = 0; i < count; i++) {
                cr_assert(isfinite(y[i]), "%s: %a gave %a", dcomm_codec_name(c), (double)x[i],
                          (double)y[i]);
                cr_assert(kind > 1 || y[i] == 0, "%s: %a gave %a", dcomm_codec_name(c),
                          (double)x[i], (double)y[i]);
                cr_assert(kind != 5 || i >= 512 || y[i] == 0);
            }
        }
        release(&b);
        dcomm_codec_destroy(&codec);
    }
}
