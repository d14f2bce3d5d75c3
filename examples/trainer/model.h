/* model.h - a small decoder-only transformer over characters, with its backward pass. */
#ifndef MODEL_H
#define MODEL_H

#include <stddef.h>
#include <stdint.h>

typedef struct model_config {
    int vocab; /* tokens are 0 .. vocab-1 */
    int seq;   /* longest sequence */
    int dim;   /* a multiple of 8 and of heads */
    int layers;
    int heads;
} model_config;

typedef struct model_layer {
    float *norm1, *qkv, *out, *norm2, *up, *down; /* weights, [in][out] */
} model_layer;

/* Weights, or their gradients in the same shape. All of them lie one after another. */
typedef struct model_weights {
    float *all;
    float *token, *norm, *head;
    model_layer *layers;
} model_weights;

typedef struct model model;

/* Create a model whose weights and gradients are all zero. Return NULL if there is no memory. */
model *model_create(const model_config *config);
void model_destroy(model *m);
/* Set random weights, which depend only on the seed. `scale` 1 is right for training. */
void model_init(model *m, uint64_t seed, float scale);

size_t model_count(const model *m);
float *model_params(model *m);    /* [count] */
float *model_gradients(model *m); /* [count + 1]: the last element is for the caller */

/* Describe the weight matrices and vectors, which lie one after another. Tensor i is elements
 * [first, first + count) and has `rows` rows. */
size_t model_tensors(const model *m);
void model_tensor(const model *m, size_t i, size_t *first, size_t *count, size_t *rows);
/* Write the name of tensor i, such as "layer1.qkv". */
void model_tensor_name(const model *m, size_t i, char *name, size_t room);

/* Run one sequence of n <= seq tokens. Return the cross-entropy of `targets` in nats, as the mean
 * over the positions. targets NULL: compute only the logits, and return 0. */
double model_forward(model *m, const int *tokens, const int *targets, int n);
/* Let backward passes from now on differentiate `scale` times the result (default: 1). */
void model_scale(model *m, float scale);
/* Add the gradient of the result. Call it after model_forward with the same arguments. */
void model_backward(model *m, const int *tokens, const int *targets, int n);
/* Let backward passes from now on call `done` when they have finished the gradient of a tensor,
 * and `pause` every millisecond or less, so that other work can go on. NULL: call neither. */
typedef void (*model_done_fn)(void *user, size_t tensor);
typedef void (*model_pause_fn)(void *user);
void model_watch(model *m, model_done_fn done, model_pause_fn pause, void *user);
/* Return the logits, [vocab], of position t in the last forward pass. */
const float *model_logits(const model *m, int t);

/* Compare the backward pass with finite differences on a tiny model. Return the largest error
 * relative to the gradient's size; negative: no memory. */
double model_gradient_error(uint64_t seed);

/* Return a random number that depends only on (seed, a, b). It is the same on every rank. */
uint64_t model_random(uint64_t seed, uint64_t a, uint64_t b);

#endif
