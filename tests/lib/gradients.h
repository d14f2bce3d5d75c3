/* gradients.h - the six kinds of gradients that properties of codecs are tested with. */
#ifndef GRADIENTS_H
#define GRADIENTS_H

#include "../../bench/codec_input.h"

enum { GRADIENT_KINDS = 6, GRADIENT_FILES = 3 };

/* The last kind comes from files of examples/trainer --dump. */
static const char *const gradient_kinds[GRADIENT_KINDS] = {
    "gaussian",           "laplace:seed=2",   "lognormal:seed=3,sigma=2",
    "sparse:density=0.1", "constant:scale=1", DCOMM_TESTS_DIR "/data/gradients/rank%r.npy"};

/* Fill x with `count` elements of a kind, different ones for each rank and step. Return NULL, or
 * the error. There are three files: further ranks take other stretches of the same ones. */
static const char *gradient_fill(int kind, uint32_t rank, uint64_t step, float *x, size_t count)
{
    static codec_input opened[GRADIENT_KINDS];
    static char why[INPUT_TEXT];
    codec_input *in = &opened[kind];
    if (in->n == 0 &&
        (!input_parse(in, gradient_kinds[kind], why) || !input_open(in, GRADIENT_FILES, 0, why))) {
        return why;
    }
    if (in->kind != INPUT_FILE) {
        input_fill(in, rank, step, 0, count, x);
        return NULL;
    }
    if (count > in->n) {
        return "the files are shorter";
    }
    input_fill(in, rank % GRADIENT_FILES, step, (step * 521 + rank) % (in->n - count + 1), count,
               x);
    return NULL;
}

#endif
