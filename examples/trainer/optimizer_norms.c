/* optimizer_norms.c - optimizers for large batches, LARS and LAMB. Each tensor moves in proportion
 * to its own norm: by about `rate` of it in a step, however large its gradients are. */
#include "trainer.h"

#include <math.h>

static const float EPSILON = 1e-6f; /* of LAMB's paper */

/* Return norm(x) / norm(y); 1 if one of them is 0. */
static float norm_ratio(const float *x, const float *y, size_t n)
{
    double xx = 0, yy = 0;
    for (size_t i = 0; i < n; i++) {
        xx += (double)x[i] * (double)x[i];
        yy += (double)y[i] * (double)y[i];
    }
    return xx > 0 && yy > 0 ? (float)sqrt(xx / yy) : 1;
}

/* You et al. 2017, without weight decay. The trust coefficient is part of the rate: their rate
 * times 0.001. */
void optimizer_lars(trainer *t, float rate)
{
    float per_sample = 1 / (float)t->o->batch;
    float *params = model_params(t->model), *gradients = model_gradients(t->model);
    for (size_t i = 0; i < model_tensors(t->model); i++) {
        size_t first, count, rows;
        model_tensor(t->model, i, &first, &count, &rows);
        for (size_t k = first; k < first + count; k++) {
            gradients[k] *= per_sample;
        }
        float local = rate * norm_ratio(params + first, gradients + first, count);
        for (size_t k = first; k < first + count; k++) {
            t->momentum[k] = t->o->momentum * t->momentum[k] + local * gradients[k];
            params[k] -= t->momentum[k];
        }
    }
}

/* You et al. 2020, without weight decay. The gradients' array takes Adam's update, whose norm is
 * needed before it is applied. */
void optimizer_lamb(trainer *t, float rate)
{
    const float keep1 = t->o->momentum, keep2 = KEEP_VARIANCE;
    float correct1 = 1 / (1 - powf(keep1, (float)(t->step + 1)));
    float correct2 = 1 / (1 - powf(keep2, (float)(t->step + 1)));
    float per_sample = 1 / (float)t->o->batch;
    float *params = model_params(t->model), *updates = model_gradients(t->model);
    for (size_t i = 0; i < model_tensors(t->model); i++) {
        size_t first, count, rows;
        model_tensor(t->model, i, &first, &count, &rows);
        for (size_t k = first; k < first + count; k++) {
            float g = updates[k] * per_sample;
            t->momentum[k] = keep1 * t->momentum[k] + (1 - keep1) * g;
            t->variance[k] = keep2 * t->variance[k] + (1 - keep2) * g * g;
            updates[k] = t->momentum[k] * correct1 / (sqrtf(t->variance[k] * correct2) + EPSILON);
        }
        float local = rate * norm_ratio(params + first, updates + first, count);
        for (size_t k = first; k < first + count; k++) {
            params[k] -= local * updates[k];
        }
    }
}
