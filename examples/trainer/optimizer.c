/* optimizer.c - Adam, and Adam with a variance that stays constant. */
#include "trainer.h"

#include <math.h>

enum { WARM_UP = 20 };                    /* steps */
static const float KEEP_VARIANCE = 0.99f; /* Adam's second decay */

/* Return the step's learning rate: it rises during WARM_UP steps, then falls along a cosine to a
 * tenth. */
static float rate_of(const options *o, int step)
{
    float progress = (float)step / (float)o->steps;
    float rate = o->rate * (0.55f + 0.45f * cosf(3.14159265f * progress));
    return step < WARM_UP ? rate * (float)(step + 1) / WARM_UP : rate;
}

/* Update by Adam, with the sum of the gradients divided by the batch size. */
static void update_adam(trainer *t)
{
    const float keep1 = t->o->momentum, keep2 = KEEP_VARIANCE;
    float rate = rate_of(t->o, t->step);
    float correct1 = 1 / (1 - powf(keep1, (float)(t->step + 1)));
    float correct2 = 1 / (1 - powf(keep2, (float)(t->step + 1)));
    float per_sample = 1 / (float)t->o->batch;
    float *params = model_params(t->model);
    const float *gradients = model_gradients(t->model);
    size_t count = model_count(t->model);
    for (size_t i = 0; i < count; i++) {
        float g = gradients[i] * per_sample;
        t->momentum[i] = keep1 * t->momentum[i] + (1 - keep1) * g;
        t->variance[i] = keep2 * t->variance[i] + (1 - keep2) * g * g;
        params[i] -= rate * t->momentum[i] * correct1 / (sqrtf(t->variance[i] * correct2) + 1e-8f);
    }
}

bool optimizer_frozen(const trainer *t)
{
    return t->o->frozen && t->step >= t->o->exact_steps;
}

void optimizer_freeze(trainer *t)
{
    float correct2 = 1 / (1 - powf(KEEP_VARIANCE, (float)t->o->exact_steps));
    for (size_t i = 0; i < model_count(t->model); i++) {
        t->variance[i] = 1 / (sqrtf(t->variance[i] * correct2) + 1e-8f);
        t->momentum[i] /= (float)t->nranks;
    }
}

/* With a constant variance the update is linear in the gradients. So a value that error feedback
 * delays has the same effect later. Momentum is applied before the exchange, so it does not act on
 * delayed values again. */
void optimizer_propose(trainer *t)
{
    const float keep = t->o->momentum;
    float per_sample = 1 / (float)t->o->batch;
    float *gradients = model_gradients(t->model);
    for (size_t i = 0; i < model_count(t->model); i++) {
        t->momentum[i] = keep * t->momentum[i] + (1 - keep) * gradients[i] * per_sample;
        gradients[i] = t->momentum[i] * t->variance[i];
    }
}

static void update_frozen(trainer *t)
{
    float rate = rate_of(t->o, t->step);
    float *params = model_params(t->model);
    const float *sum = model_gradients(t->model);
    for (size_t i = 0; i < model_count(t->model); i++) {
        params[i] -= rate * sum[i];
    }
}

void optimizer_update(trainer *t)
{
    if (optimizer_frozen(t)) {
        update_frozen(t);
    } else {
        update_adam(t);
    }
}
