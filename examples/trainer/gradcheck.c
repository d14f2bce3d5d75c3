/* gradcheck.c - check by finite differences that the backward pass is the derivative of the
 * forward pass. */
#include "model.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { LENGTH = 8, DIRECTIONS = 200 };

/* Return the error along a random direction over a random range of weights: the difference between
 * (loss(+e) - loss(-e)) / 2e and gradient . direction. It is relative to the typical slope of a
 * gradient of this size along such directions. */
static double direction_error(model *m, const float *base, const int *tokens, const int *targets,
                              uint64_t seed, int which)
{
    const float step = 1e-2f;
    size_t count = model_count(m);
    float *params = model_params(m);
    const float *gradients = model_gradients(m);
    size_t length = 1 + model_random(seed, 10, (uint64_t)which) % (count / 8);
    size_t first = model_random(seed, 11, (uint64_t)which) % (count - length);
    double expected = 0, size = 0, loss[2];
    for (int side = 0; side < 2; side++) {
        for (size_t i = first; i < first + length; i++) {
            float sign = model_random(seed, 12 + (uint64_t)which, i) & 1 ? 1.0f : -1.0f;
            float shift = sign * step / sqrtf((float)length);
            params[i] = base[i] + (side == 0 ? shift : -shift);
            expected += side == 0 ? (double)gradients[i] * shift / step : 0;
            size += side == 0 ? (double)gradients[i] * gradients[i] : 0;
        }
        loss[side] = model_forward(m, tokens, targets, LENGTH);
    }
    memcpy(params + first, base + first, length * sizeof *params);
    double found = (loss[0] - loss[1]) / (2 * (double)step);
    double usual = sqrt(size / (double)length) + 1e-3; /* 1e-3: the precision of f32 */
    return fabs(found - expected) / usual;
}

double model_gradient_error(uint64_t seed)
{
    model_config config = {.vocab = 11, .seq = LENGTH, .dim = 16, .layers = 2, .heads = 2};
    int tokens[LENGTH], targets[LENGTH];
    model *m = model_create(&config);
    float *base = m != NULL ? malloc(model_count(m) * sizeof *base) : NULL;
    if (base == NULL) {
        model_destroy(m);
        return -1;
    }
    for (int t = 0; t < LENGTH; t++) {
        tokens[t] = (int)(model_random(seed, 8, (uint64_t)t) % 11);
        targets[t] = (int)(model_random(seed, 9, (uint64_t)t) % 11);
    }
    model_init(m, seed, 2); /* larger weights than in training, so that no part is nearly linear */
    memcpy(base, model_params(m), model_count(m) * sizeof *base);
    model_forward(m, tokens, targets, LENGTH);
    model_backward(m, tokens, targets, LENGTH);
    double worst = 0;
    for (int i = 0; i < DIRECTIONS; i++) {
        double error = direction_error(m, base, tokens, targets, seed, i);
        worst = error > worst || isnan(error) ? error : worst;
    }
    free(base);
    model_destroy(m);
    return worst;
}
