/* test_feedback.c - error feedback: nothing is lost, whatever the codec, the variant and the way of
 * the exchange; steps that fail; states saved, loaded and moved. */
#define _GNU_SOURCE
#pragma GCC diagnostic ignored "-Wunused-function"
#define DCOMM_NO_COMM
#define DCOMM_IMPLEMENTATION
#include "dcomm/all.h"

#include "../bench/codec_input.h"

#include <criterion/criterion.h>

enum { MOST = 1600, RANKS = 3 };

#define GOOD(call) cr_assert_eq((call), DCOMM_OK, "%s: %s", #call, dcomm_last_error())
#define BAD(status, text, call)                                          \
    do {                                                                 \
        cr_assert_eq((call), (status), "%s", #call);                     \
        cr_assert_not_null(strstr(dcomm_last_error(), (text)), "%s: %s", \
                           #call, dcomm_last_error());                   \
    } while (0)

/* ---- all codecs, and how error feedback takes them ---- */

typedef struct composition {
    const char *spec;
    dcomm_feedback_opts opts;
} composition;

static const char *const specs[] = {
    "bf16",
    "bf16:round=stochastic",
    "f16",
    "fp8:format=e4m3",
    "fp8:format=e5m2",
    "qsgd:bits=8",
    "qsgd:bits=4",
    "qsgd:bits=2",
    "qsgd:bits=4,norm=two,bucket=64",
    "tern",
    "sign",
    "topk:k=0.01",
    "topk:k=0.1,values=bf16",
    "topk:k=0.1,values=f16",
    "topk:k=0.1,values=qsgd",
    "threshold:k=0.05",
    "randk:k=0.1",
};
enum { SPECS = sizeof specs / sizeof *specs };

static void input(codec_input *in, const char *text)
{
    char why[INPUT_TEXT];
    cr_assert(input_parse(in, text, why), "%s", why);
    cr_assert(input_open(in, RANKS, 0, why), "%s", why);
}

/* Some sums of one run, in f64. */
typedef struct books {
    double in[MOST], out[MOST];
} books;

static float gradient[RANKS][MOST], result[MOST];
static unsigned char wire[RANKS][64 * MOST], again[64 * MOST];

/* One step of a two-shot exchange of RANKS ranks: shards are thirds. */
static void two_shot(dcomm_feedback **fb, size_t n, books *b, bool average)
{
    float factor = average ? 1.0f / RANKS : 1;
    for (int r = 0; r < RANKS; r++) {
        size_t own = n * (size_t)r / RANKS, end = n * (size_t)(r + 1) / RANKS;
        dcomm_feedback_step step = {.x = gradient[r],
                                    .rank = (uint32_t)r,
                                    .nranks = RANKS,
                                    .own_first = own,
                                    .own_count = end - own,
                                    .average = average};
        GOOD(dcomm_feedback_begin(fb[r], &step));
        for (size_t i = 0; i < n; i++) {
            b->in[i] += (double)gradient[r][i];
        }
    }
    for (int owner = 0; owner < RANKS; owner++) {
        size_t own = n * (size_t)owner / RANKS, count = n * (size_t)(owner + 1) / RANKS - own;
        const void *wires[RANKS];
        size_t bytes[RANKS], length;
        for (int r = 0; r < RANKS; r++) {
            GOOD(dcomm_feedback_encode(fb[r], own, count, wire[r], sizeof wire[r], &bytes[r],
                                       NULL));
            wires[r] = wire[r];
        }
        GOOD(dcomm_feedback_recode(fb[owner], wires, bytes, RANKS, factor, own, count, again,
                                   sizeof again, &length, NULL));
        GOOD(dcomm_decode(dcomm_feedback_codec(fb[owner]), again, length, result + own, count));
    }
    for (size_t i = 0; i < n; i++) {
        b->out[i] += (double)result[i] / (double)factor;
    }
    for (int r = 0; r < RANKS; r++) {
        float copy[MOST];
        memcpy(copy, result, n * sizeof *copy);
        GOOD(dcomm_feedback_finish(fb[r], 0, n, copy));
        GOOD(dcomm_feedback_commit(fb[r]));
    }
}

/* |in - out - residuals|, and the size of what went through. */
static double imbalance(dcomm_feedback **fb, size_t n, const books *b, double *size)
{
    double off = 0;
    *size = 0;
    for (size_t i = 0; i < n; i++) {
        double held = 0;
        for (int r = 0; r < RANKS; r++) {
            held += dcommi_feedback_owed(fb[r], i);
        }
        off = fmax(off, fabs(b->in[i] - b->out[i] - held));
        *size = fmax(*size, fabs(b->in[i]) + fabs(held));
    }
    return off;
}

static bool made(const char *spec, dcomm_codec **codec)
{
    cr_assert_eq(dcomm_codec_create(spec, codec), DCOMM_OK, "%s", dcomm_last_error());
    return true;
}

static void make_all(dcomm_feedback **fb, const dcomm_codec *codec, size_t n,
                     const dcomm_feedback_opts *opts)
{
    for (int r = 0; r < RANKS; r++) {
        fb[r] = NULL;
        GOOD(dcomm_feedback_create(codec, n, opts, &fb[r]));
    }
}

static void destroy_all(dcomm_feedback **fb)
{
    for (int r = 0; r < RANKS; r++) {
        GOOD(dcomm_feedback_destroy(&fb[r]));
    }
}

static void conserve(const char *spec, const char *text, const dcomm_feedback_opts *opts, size_t n,
                     int steps, bool average, double tolerance)
{
    codec_input in;
    dcomm_codec *codec;
    dcomm_feedback *fb[RANKS];
    static books b;
    if (!made(spec, &codec)) {
        return;
    }
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
    double size, off = imbalance(fb, n, &b, &size);
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
            conserve(specs[c], inputs[k], &opts, 700, 100, false, 2e-6);
        }
    }
}
