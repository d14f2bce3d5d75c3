/* optimizer.c - optimizers that treat each weight alone: Adam, Adam with a variance that stays
 * constant, SGD and Adagrad. */
#include "trainer.h"

#include <math.h>

static const float EPSILON = 1e-8f;

/* The rate rises during the warm-up, then falls along a cosine to a tenth. It is scaled by the
 * number of ranks at the start: if some die, the batch stays. */
float optimizer_rate(const trainer *t)
{
    const options *o = t->o;
    float progress = (float)t->step / (float)o->steps, ranks = (float)t->wanted;
    float scale = o->scale_rate == SCALE_LINEAR ? ranks
                  : o->scale_rate == SCALE_SQRT ? sqrtf(ranks)
                                                : 1;
    float rate = scale * o->rate * (0.55f + 0.45f * cosf(3.14159265f * progress));
    return t->step < o->rate_warmup ? rate * (float)(t->step + 1) / (float)o->rate_warmup : rate;
}

static void update_adam(trainer *t, float rate)
{
    const float keep1 = t->o->momentum, keep2 = KEEP_VARIANCE;
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
        params[i] -=
            rate * t->momentum[i] * correct1 / (sqrtf(t->variance[i] * correct2) + EPSILON);
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
        t->variance[i] = 1 / (sqrtf(t->variance[i] * correct2) + EPSILON);
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

static void update_frozen(trainer *t, float rate)
{
    float *params = model_params(t->model);
    const float *sum = model_gradients(t->model);
    for (size_t i = 0; i < model_count(t->model); i++) {
        params[i] -= rate * sum[i];
    }
}

/* SGD with momentum. */
static void update_sgd(trainer *t, float rate)
{
    float per_sample = 1 / (float)t->o->batch;
    float *params = model_params(t->model);
    const float *gradients = model_gradients(t->model);
    for (size_t i = 0; i < model_count(t->model); i++) {
        t->momentum[i] = t->o->momentum * t->momentum[i] + gradients[i] * per_sample;
        params[i] -= rate * t->momentum[i];
    }
}

/* The variance is the sum of all squares. */
static void update_adagrad(trainer *t, float rate)
{
    float per_sample = 1 / (float)t->o->batch;
    float *params = model_params(t->model);
    const float *gradients = model_gradients(t->model);
    for (size_t i = 0; i < model_count(t->model); i++) {
        float g = gradients[i] * per_sample;
        t->variance[i] += g * g;
        params[i] -= rate * g / (sqrtf(t->variance[i]) + EPSILON);
    }
}

void optimizer_update(trainer *t)
{
    float rate = optimizer_rate(t);
    switch (t->o->kind) {
    case OPTIMIZER_SGD:
        update_sgd(t, rate);
        break;
    case OPTIMIZER_ADAGRAD:
        update_adagrad(t, rate);
        break;
    case OPTIMIZER_LARS:
        optimizer_lars(t, rate);
        break;
    case OPTIMIZER_LAMB:
        optimizer_lamb(t, rate);
        break;
    case OPTIMIZER_ADAM:
    case OPTIMIZER_FROZEN:
    default:
        (optimizer_frozen(t) ? update_frozen : update_adam)(t, rate);
    }
}
