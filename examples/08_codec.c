/* 08_codec.c - use a codec without a communicator. It needs neither UCX nor hwloc.
 *
 *   cc 08_codec.c -o codec -I../include -lm
 */
#define DCOMM_NO_COMM /* only codecs */
#define DCOMM_IMPLEMENTATION
#include "dcomm.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { COUNT = 100000 };

int main(void)
{
    static float x[COUNT], residual[COUNT], y[COUNT];
    dcomm_codec *codec = NULL;
    if (dcomm_codec_create("qsgd:bits=4", &codec) < 0) {
        fprintf(stderr, "no codec: %s\n", dcomm_last_error());
        return 2;
    }
    for (int i = 0; i < COUNT; i++) {
        x[i] = sinf((float)i);
    }
    size_t room = dcomm_codec_max_bytes(codec, COUNT), bytes = 0;
    void *wire = malloc(room);
    dcomm_codec_key key = {.seed = 1}; /* set another .step in each step */
    /* The codec's rounding error goes to `residual`. The next step adds it to its input. */
    if (wire == NULL ||
        dcomm_encode_feedback(codec, x, residual, residual, COUNT, &key, wire, room, &bytes, NULL,
                              NULL) < 0 ||
        dcomm_decode(codec, wire, bytes, y, COUNT) < 0) {
        fprintf(stderr, "not encoded: %s\n", dcomm_last_error());
        return 1;
    }
    double error = 0, square = 0;
    for (int i = 0; i < COUNT; i++) {
        double e = (double)y[i] - (double)x[i];
        error += e * e;
        square += (double)x[i] * (double)x[i];
        if (fabs(e + (double)residual[i]) > 1e-6) {
            fprintf(stderr, "element %d is lost\n", i);
            return 1;
        }
    }
    printf("%s: %zu of %zu bytes, error^2 / x^2 = %.4f\n", dcomm_codec_spec(codec), bytes, sizeof x,
           error / square);
    free(wire);
    dcomm_codec_destroy(&codec);
    return error / square > 0.02;
}
