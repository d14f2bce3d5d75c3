/* noise.c - the gradient noise scale. */
#include "trainer.h"

#include <math.h>
#include <stdio.h>

static const double KEEP = 0.95; /* of the averages, in a step */

double noise_square(const float *x, size_t n)
{
    double sum = 0;
    for (size_t i = 0; i < n; i++) {
        sum += (double)x[i] * (double)x[i];
    }
    return sum;
}

dcomm_status noise_parts(trainer *t, int samples, double square, double scale)
{
    double sums[3] = {0}; /* of squares, of 1 / samples, of ranks */
    if (samples > 0) {
        sums[0] = square / (scale * scale) / samples / samples;
        sums[1] = 1.0 / samples;
        sums[2] = 1;
    }
    dcomm_status status =
        dcomm_allreduce(t->comm, DCOMM_IN_PLACE, sums, 3, DCOMM_F64, DCOMM_SUM, NULL);
    if (status >= 0) {
        t->noise.small_square = sums[0] / sums[2];
        t->noise.small_batch = sums[2] / sums[1];
    }
    return status;
}

void noise_update(trainer *t)
{
    noise *n = &t->noise;
    double batch = t->o->batch, small = n->small_batch;
    if (small > 0.999 * batch) { /* one rank had all samples */
        return;
    }
    double square = noise_square(model_gradients(t->model), model_count(t->model)) / batch / batch;
    double seen = (batch * square - small * n->small_square) / (batch - small);
    double trace = (n->small_square - square) / (1 / small - 1 / batch);
    n->square = KEEP * n->square + (1 - KEEP) * seen;
    n->trace = KEEP * n->trace + (1 - KEEP) * trace;
    n->steps++;
}

double noise_scale(const trainer *t)
{
    /* Both averages began at 0. The correction for it is the same factor, so it cancels out. */
    return t->noise.steps > 0 && t->noise.square > 0 ? t->noise.trace / t->noise.square : NAN;
}

void noise_report(const trainer *t)
{
    if (t->o->noise_scale && isfinite(noise_scale(t))) {
        printf("gradient noise scale: %.3g sequences; a batch far above it gains little\n",
               noise_scale(t));
    } else if (t->o->noise_scale) {
        printf("gradient noise scale: not known, %s\n",
               t->noise.steps == 0 ? "because no two ranks had sequences"
                                   : "because the noise hides the gradient");
    }
}
