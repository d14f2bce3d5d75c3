/* feedback_books.h - a group of error feedback states that take steps together, and sums of all
 * that goes in and comes out. */
#ifndef FEEDBACK_BOOKS_H
#define FEEDBACK_BOOKS_H

#include "../../bench/codec_input.h"

#include <criterion/criterion.h>

enum { MOST = 2208, RANKS = 3 };

#define GOOD(call) cr_assert_eq((call), DCOMM_OK, "%s: %s", #call, dcomm_last_error())
#define BAD(status, text, call)                                                 \
    do {                                                                        \
        cr_assert_eq((call), (status), "%s", #call);                            \
        cr_assert_not_null(strstr(dcomm_last_error(), (text)), "%s: %s", #call, \
                           dcomm_last_error());                                 \
    } while (0)

/* ---- all codecs, and how error feedback takes them ---- */

typedef struct composition {
    const char *spec;
    dcomm_feedback_opts opts;
} composition;

static const char *const specs[] = {
    "bf16",
    "bf16:rounding=stochastic",
    "f16",
    "fp8:type=e4m3",
    "fp8:type=e5m2",
    "qsgd:bits=8",
    "qsgd:bits=4",
    "qsgd:bits=2",
    "qsgd:bits=4,norm=two,bucket=128",
    "tern",
    "sign",
    "topk:k=0.01",
    "topk:k=0.1,values=bf16",
    "topk:k=0.1,values=f16",
    "topk+qsgd:k=0.1",
    "threshold:k=0.05",
    "randk:k=0.1",
    "randk:k=0.1,scale=none",
    "powersgd:rank=2",
};
enum { SPECS = sizeof specs / sizeof *specs };

static void input(codec_input *in, const char *text)
{
    char why[INPUT_TEXT];
    cr_assert(input_parse(in, text, why), "%s", why);
    cr_assert(input_open(in, RANKS, 0, why), "%s", why);
}

/* Sums of one run, in f64. */
typedef struct books {
    double in[MOST], out[MOST];
} books;

static float gradient[RANKS][MOST], result[MOST];
static unsigned char wire[RANKS][64 * MOST], again[64 * MOST];

/* Run one step of a two-shot exchange of RANKS ranks: shards are thirds. */
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
            GOOD(
                dcomm_feedback_encode(fb[r], own, count, wire[r], sizeof wire[r], &bytes[r], NULL));
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

/* Return the largest |in - out - residuals| of n elements; set *size to the size of what went
 * through. */
static double imbalance(dcomm_feedback **fb, size_t first, size_t n, const books *b, double *size)
{
    double off = 0;
    *size = 0;
    for (size_t i = first; i < first + n; i++) {
        double held = 0;
        for (int r = 0; r < RANKS; r++) {
            held += dcommi_feedback_owed(fb[r], i);
        }
        off = fmax(off, fabs(b->in[i] - b->out[i] - held));
        *size = fmax(*size, fabs(b->in[i]) + fabs(held));
    }
    return off;
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

#endif
