/* noise.h - the gradient noise scale: the batch size beyond which a larger batch gains little
 * (McCandlish et al. 2018, "An empirical model of large-batch training").
 *
 * Let G be the true gradient and S the trace of the covariance of one sample's gradient. The mean
 * over b samples then has the expected square |G|^2 + S/b. The ranks' parts of a batch are small
 * batches, their sum is a large one, so each step gives an estimate of |G|^2 and one of S, both
 * without bias. Each is averaged over steps, and then divided: noise scale = S / |G|^2. */
#ifndef NOISE_H
#define NOISE_H

#include "dcomm.h"

typedef struct trainer trainer;

typedef struct noise {
    /* Of this step. Over the ranks that have samples: */
    double small_square; /* mean square of the norm of a rank's mean gradient */
    double small_batch;  /* harmonic mean of their numbers of samples, as S/b demands */
    /* Averages over the last steps: */
    double trace, square; /* estimates of S and |G|^2 */
    int steps;            /* number of steps that they have seen */
} noise;

/* Return the sum of squares. */
double noise_square(const float *x, size_t n);
/* Take this rank's part: its number of samples, and the square of their summed gradients, which are
 * scaled by `scale`. Collective. */
dcomm_status noise_parts(trainer *t, int samples, double square, double scale);
/* Take the sum of the batch, which is in the model's gradients. */
void noise_update(trainer *t);
/* Return the noise scale in samples; NaN: it is not known, because no two ranks had samples, or
 * because the noise is so large that nothing is seen of the gradient. */
double noise_scale(const trainer *t);
/* Print it. */
void noise_report(const trainer *t);

#endif
