/* test_codec_formats.c - the dense codecs' formats, bit by bit as in docs/wire-formats.md; the
 * random numbers; and wires that no encoder writes. */
#define _GNU_SOURCE
#pragma GCC diagnostic ignored "-Wunused-function"
#define DCOMM_NO_COMM
#define DCOMM_IMPLEMENTATION
#include "dcomm/all.h"

#include "codec_numbers.h"

/* ---- the random numbers ---- */

/* The known answers of Random123 for philox4x32-10. */
Test(codec_formats, philox_is_philox)
{
    dcommi_rng rng = {{0}, {0, 0}, 0};
    uint32_t word[4];
    for (uint32_t i = 0; i < 10; i++) {
        rng.key[2 * i] = i * DCOMMI_PHILOX_W0;
        rng.key[2 * i + 1] = i * DCOMMI_PHILOX_W1;
    }
    dcommi_rng_block(&rng, 0, word);
    const uint32_t zeros[4] = {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8};
    cr_assert_eq(memcmp(word, zeros, sizeof word), 0);
    for (uint32_t i = 0; i < 10; i++) {
        rng.key[2 * i] = 0xa4093822u + i * DCOMMI_PHILOX_W0;
        rng.key[2 * i + 1] = 0x299f31d0u + i * DCOMMI_PHILOX_W1;
    }
    rng.high[0] = 0x13198a2e;
    rng.high[1] = 0x03707344;
    dcommi_rng_block(&rng, 0x85a308d3243f6a88u, word);
    const uint32_t digits[4] = {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1};
    cr_assert_eq(memcmp(word, digits, sizeof word), 0);
}

/* ---- formats, element by element, from their description ---- */

/* Return element i of a qsgd wire, by docs/wire-formats.md. */
static double qsgd_element(const unsigned char *wire, size_t count, size_t i, unsigned bits,
                           size_t bucket)
{
    size_t line = 512 / bits, code_bytes = ((count * bits + 7) / 8 + 3) / 4 * 4;
    unsigned code;
    if (i / line < count / line) {
        const unsigned char *at = wire + i / line * 64;
        size_t e = i % line, bit = e / 16 * bits;
        code = at[4 * (e % 16) + bit / 8] >> (bit % 8) & ((1u << bits) - 1);
    } else {
        size_t bit = (i % line) * bits;
        code = wire[count / line * 64 + bit / 8] >> (bit % 8) & ((1u << bits) - 1);
    }
    float step;
    memcpy(&step, wire + code_bytes + i / bucket * 4, 4);
    if (bits == 1) {
        return code ? (double)step : -(double)step;
    }
    int level = code >= 1u << (bits - 1) ? (int)code - (1 << bits) : (int)code;
    return level * (double)step;
}

Test(codec_formats, qsgd_wires_are_as_described)
{
    enum { N = 1500 };
    static float x[N], y[N];
    static unsigned char wire[2 * N];
    fill(x, N, GAUSSIAN);
    for (unsigned bits = 1; bits <= 8; bits *= 2) {
        char spec[64];
        snprintf(spec, sizeof spec, "qsgd:bits=%u", bits);
        dcomm_codec *codec = make(spec);
        size_t bytes;
        dcomm_encode(codec, x, N, NULL, wire, sizeof wire, &bytes, NULL, NULL);
        cr_assert_eq(bytes, ((N * bits + 7) / 8 + 3) / 4 * 4 + 3 * 4);
        dcomm_decode(codec, wire, bytes, y, N);
        dcommi_rng rng = dcommi_rng_make(0, 0, 0, 0, 0);
        for (size_t i = 0; i < N; i++) {
            double value = qsgd_element(wire, N, i, bits, 512);
            cr_assert_eq((double)y[i], value, "%u bits, element %zu", bits, i);
            /* the level is the one below, or the one above if the random number says so */
            float step;
            memcpy(&step, wire + bytes - 12 + i / 512 * 4, 4);
            double width = bits == 1 ? 2 * (double)step : (double)step;
            double low = bits == 1 ? -(double)step : 0;
            double place = ((double)x[i] - low) / width;
            double u = dcommi_rng_element(&rng, i) * 0x1p-32, resolution = ldexp(1, -12);
            double expected = floor(place + u) * width + low;
            if (fabs(place + u - rint(place + u)) > resolution) {
                cr_assert_float_eq(value, expected, 1e-6 * width, "%u bits, %zu: %g, %g", bits, i,
                                   value, expected);
            }
        }
        dcomm_codec_destroy(&codec);
    }
}

static double fp8_value(unsigned code, int exponent_bits)
{
    int fraction = 7 - exponent_bits, bias = (1 << (exponent_bits - 1)) - 1;
    int e = (int)(code & 0x7f) >> fraction, f = (int)code & ((1 << fraction) - 1);
    double v =
        e == 0 ? ldexp(f, 1 - bias - fraction) : ldexp((1 << fraction) + f, e - bias - fraction);
    return code & 0x80 ? -v : v;
}

Test(codec_formats, fp8_decodes_every_code_and_rounds_to_nearest)
{
    for (int type = 0; type < 2; type++) {
        const int exponent_bits = type == 0 ? 4 : 5, top = type == 0 ? 0x7e : 0x7b;
        const double largest = type == 0 ? 448 : 57344;
        dcomm_codec *codec = make(type == 0 ? "fp8:block=256" : "fp8:type=e5m2,block=256");
        unsigned char wire[260];
        float y[256];
        const float one = 1;
        for (int isa = 0; isa <= (int)dcommi_isa_best(); isa++) {
            dcommi_isa_force(isa);
            for (int i = 0; i < 256; i++) {
                wire[i] = (i & 0x7f) > top ? 0 : (unsigned char)i;
            }
            memcpy(wire + 256, &one, 4);
            cr_assert_eq(dcomm_decode(codec, wire, 260, y, 256), DCOMM_OK, "%s",
                         dcomm_last_error());
            for (int i = 0; i < 256; i++) {
                cr_assert_eq((double)y[i], fp8_value(wire[i], exponent_bits), "%02x", wire[i]);
            }
            for (int i = 0; i < 256; i++) {
                if ((i & 0x7f) > top) {
                    wire[i] = (unsigned char)i;
                    cr_assert_eq(dcomm_decode(codec, wire, 260, y, 256), DCOMM_ERR_CORRUPT);
                    wire[i] = 0;
                }
            }
            float x[256];
            size_t bytes;
            for (int round = 0; round < 50; round++) {
                for (int i = 0; i < 256; i++) {
                    x[i] = (float)(gaussian() * exp(3 * gaussian()));
                }
                x[9] = x[9] < 0 ? -1000.0f : 1000.0f; /* makes the step known */
                for (int i = 0; i < 256; i++) {
                    x[i] = fminf(fmaxf(x[i], -1000.0f), 1000.0f);
                }
                cr_assert_eq(dcomm_encode(codec, x, 256, NULL, wire, 260, &bytes, NULL, NULL),
                             DCOMM_OK);
                float step;
                memcpy(&step, wire + 256, 4);
                cr_assert(step >= 1000 / (float)largest &&
                          (double)step < 1000 / largest * (1 + 0x1p-14));
                for (int i = 0; i < 256; i++) {
                    double y0 = (double)x[i] / (double)step, best = HUGE_VAL;
                    for (int code = 0; code < 256; code++) {
                        if ((code & 0x7f) <= top) {
                            best = fmin(best, fabs(fp8_value((unsigned)code, exponent_bits) - y0));
                        }
                    }
                    double error = fabs(fp8_value(wire[i], exponent_bits) - y0);
                    cr_assert(error <= best * (1 + 1e-6) + 1e-6 * fabs(y0), "%g: %g, not %g", y0,
                              error, best);
                }
            }
        }
        dcomm_codec_destroy(&codec);
    }
}

Test(codec_formats, casts_are_the_conversions)
{
    enum { N = 1 << 16 };
    static float x[N], y[N];
    static uint16_t wire[N];
    for (int half = 0; half < 2; half++) {
        dcomm_codec *codec = make(half ? "f16:nonfinite=zero" : "bf16:nonfinite=zero");
        fill(x, N, BITS);
        size_t bytes;
        dcomm_codec_report report;
        for (int isa = 0; isa <= (int)dcommi_isa_best(); isa++) {
            dcommi_isa_force(isa);
            cr_assert_eq(dcomm_encode(codec, x, N, NULL, wire, sizeof wire, &bytes, NULL, &report),
                         DCOMM_OK);
            size_t nonfinite = 0, clipped = 0;
            for (int i = 0; i < N; i++) {
                uint16_t h = half ? dcommi_f32_to_f16(x[i]) : dcommi_f32_to_bf16(x[i]);
                uint16_t infinity = half ? 0x7c00 : 0x7f80;
                if (!isfinite(x[i])) {
                    nonfinite++;
                    h = 0;
                } else if (fpclassify(x[i]) == FP_SUBNORMAL) {
                    h &= 0x8000;
                } else if ((h & 0x7fff) == infinity) {
                    clipped++;
                    h--;
                }
                cr_assert_eq(wire[i], h, "%a gave %04x, not %04x", (double)x[i], wire[i], h);
            }
            cr_assert_eq(report.nonfinite, nonfinite);
            cr_assert_eq(report.clipped, clipped);
            cr_assert_eq(dcomm_decode(codec, wire, bytes, y, N), DCOMM_OK);
            for (int i = 0; i < N; i++) {
                cr_assert_eq(y[i], half ? dcommi_f16_to_f32(wire[i]) : dcommi_bf16_to_f32(wire[i]));
            }
        }
        dcomm_codec_destroy(&codec);
    }
}
/* ---- malformed wires ---- */

static void must_be_corrupt(const dcomm_codec *codec, const unsigned char *wire, size_t bytes,
                            size_t count, const char *what)
{
    static float y[4096];
    const void *wires[2] = {wire, wire};
    size_t lengths[2] = {bytes, bytes};
    cr_assert_eq(dcomm_decode(codec, wire, bytes, y, count), DCOMM_ERR_CORRUPT, "%s: %s",
                 dcomm_codec_spec(codec), what);
    cr_assert_eq(dcomm_decode_add(codec, wire, bytes, y, count), DCOMM_ERR_CORRUPT);
    cr_assert_eq(dcomm_decode_sum(codec, wires, lengths, 2, y, count), DCOMM_ERR_CORRUPT, "%s: %s",
                 dcomm_codec_spec(codec), what);
}

Test(codec_formats, what_no_encoder_writes_is_corrupt)
{
    static const char *const names[] = {"qsgd:bits=8", "qsgd:bits=4", "qsgd:bits=2",  "qsgd:bits=1",
                                        "sign",        "fp8",         "fp8:type=e5m2"};
    static const float bad_steps[] = {-1, NAN, INFINITY, 1e-42f, 2e38f};
    enum { N = 1337 };
    static float x[N];
    static unsigned char wire[2 * N], damaged[2 * N];
    fill(x, N, GAUSSIAN);
    for (int isa = 0; isa <= (int)dcommi_isa_best(); isa++) {
        dcommi_isa_force(isa);
        for (size_t c = 0; c < sizeof names / sizeof *names; c++) {
            dcomm_codec *codec = make(names[c]);
            size_t bytes;
            dcomm_encode(codec, x, N, NULL, wire, sizeof wire, &bytes, NULL, NULL);
            for (size_t b = 0; b < sizeof bad_steps / sizeof *bad_steps; b++) {
                memcpy(damaged, wire, bytes);
                memcpy(damaged + bytes - 4, &bad_steps[b], 4);
                must_be_corrupt(codec, damaged, bytes, N, "step");
            }
            const unsigned bits = c < 3 ? 8u >> c : 0;
            for (size_t at = 0; bits != 0 && at < (N * bits + 7) / 8; at += 1 + at / 5) {
                memcpy(damaged, wire, bytes);
                damaged[at] =
                    (unsigned char)((damaged[at] & ~((1u << bits) - 1)) | 1u << (bits - 1));
                must_be_corrupt(codec, damaged, bytes, N, "code");
            }
            /* padding bits after the last code */
            unsigned width = c < 5 ? (c == 4 ? 1u : 8u >> c) : 8u;
            size_t used = (N * width + 7) / 8;
            for (size_t at = used; at % 4 != 0; at++) {
                memcpy(damaged, wire, bytes);
                damaged[at] = 1;
                must_be_corrupt(codec, damaged, bytes, N, "padding");
            }
            if (N * width % 8 != 0) {
                memcpy(damaged, wire, bytes);
                damaged[used - 1] |= 0x80;
                must_be_corrupt(codec, damaged, bytes, N, "padding bits");
            }
            must_be_corrupt(codec, wire, bytes + 1, N, "length");
            must_be_corrupt(codec, wire, bytes, N + 700, "count");
            dcomm_codec_destroy(&codec);
        }
        const uint16_t infinite[2] = {0x7c00, 0x7f80};
        for (int half = 0; half < 2; half++) {
            dcomm_codec *codec = make(half == 0 ? "f16" : "bf16");
            for (size_t at = 0; at < 300; at += 37) {
                memset(damaged, 0, 600);
                memcpy(damaged + 2 * at, &infinite[half], 2);
                must_be_corrupt(codec, damaged, 600, 300, "infinity");
            }
            dcomm_codec_destroy(&codec);
        }
    }
}
