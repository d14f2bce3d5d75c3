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

/* Weights, or, with the same shape, their gradients. All of them lie one after another. */
typedef struct model_weights {
    float *all;
    float *token, *norm, *head;
    model_layer *layers;
} model_weights;

typedef struct model model;

/* NULL without memory. All weights and gradients are zero. */
model *model_create(const model_config *config);
void model_destroy(model *m);
/* Random weights, the same for the same seed. `scale` 1 is right for training. */
void model_init(model *m, uint64_t seed, float scale);

size_t model_count(const model *m);
float *model_params(model *m);    /* [count] */
float *model_gradients(model *m); /* [count + 1]: the last one is the caller's */

/* The weight matrices and vectors, which lie one after another: tensor i is [first, first + count),
 * and has `rows` rows. */
size_t model_tensors(const model *m);
void model_tensor(const model *m, size_t i, size_t *first, size_t *count, size_t *rows);
/* "layer1.qkv" and its like. */
void model_tensor_name(const model *m, size_t i, char *name, size_t room);

/* One sequence of n <= seq tokens; returns the mean over its positions of the cross-entropy of
 * `targets` (nats). targets NULL: only the logits, and 0. */
double model_forward(model *m, const int *tokens, const int *targets, int n);
/* From now on backward passes are of `scale` times the result (1). */
void model_scale(model *m, float scale);
/* After a forward pass with the same arguments: adds the gradient of its result. */
void model_backward(model *m, const int *tokens, const int *targets, int n);
/* From now on, a backward pass tells when it is done with the gradient of a tensor, and pauses
 * every millisecond or less, so that others get their turn; NULL: no more. */
typedef void (*model_done_fn)(void *user, size_t tensor);
typedef void (*model_pause_fn)(void *user);
void model_watch(model *m, model_done_fn done, model_pause_fn pause, void *user);
/* [vocab], of position t of the last forward pass. */
const float *model_logits(const model *m, int t);

/* Compare the backward pass with finite differences on a tiny model; the largest error, relative
 * to the gradient's size. Negative without memory. */
double model_gradient_error(uint64_t seed);

/* A random number for each (seed, a, b): the same on every rank, whatever was drawn before. */
uint64_t model_random(uint64_t seed, uint64_t a, uint64_t b);

#endif
