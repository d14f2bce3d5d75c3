/* model.c - the transformer: embeddings, layers of attention and MLP, cross-entropy, and the
 * backward pass. */
#include "model.h"
#include "ops.h"

#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Results of a layer's forward pass that its backward pass needs; [n][...] for a sequence of n
 * tokens. */
typedef struct layer_trace {
    float *x, *inverse1, *normed1, *qkv, *weights, *mixed;   /* attention */
    float *middle, *inverse2, *normed2, *hidden, *activated; /* MLP */
} layer_trace;

struct model {
    model_config config;
    int padded_vocab; /* a multiple of 8, which matmul_add needs */
    size_t count;
    model_weights params, grads;
    layer_trace *traces;
    float *x, *inverse, *normed, *logits; /* after the last layer */
    float *memory;                        /* memory of all traces and scratch */
    float *dx, *dwide, *dqkv, *dnarrow, *dlogits, *turned, *row;
    float scale;        /* backward differentiates scale * loss */
    model_done_fn done; /* NULL: not called */
    model_pause_fn pause;
    void *watcher;
};

/* Allocates pieces of one block; with base NULL it only counts them. */
typedef struct arena {
    float *base;
    size_t used;
} arena;

static float *take(arena *a, size_t count)
{
    float *p = a->base != NULL ? a->base + a->used : NULL;
    a->used += (count + 15) / 16 * 16;
    return p;
}

static void place_weights(const model *m, model_weights *w, arena *a)
{
    size_t d = (size_t)m->config.dim;
    w->token = take(a, (size_t)m->config.vocab * d);
    for (int l = 0; l < m->config.layers; l++) {
        model_layer *layer = &w->layers[l];
        layer->norm1 = take(a, d);
        layer->qkv = take(a, d * 3 * d);
        layer->out = take(a, d * d);
        layer->norm2 = take(a, d);
        layer->up = take(a, d * 4 * d);
        layer->down = take(a, 4 * d * d);
    }
    w->norm = take(a, d);
    w->head = take(a, d * (size_t)m->padded_vocab);
}

static void place_traces(model *m, arena *a)
{
    size_t d = (size_t)m->config.dim;
    size_t n = (size_t)m->config.seq;
    size_t v = (size_t)m->padded_vocab;
    for (int l = 0; l < m->config.layers; l++) {
        layer_trace *t = &m->traces[l];
        t->x = take(a, n * d);
        t->inverse1 = take(a, n);
        t->normed1 = take(a, n * d);
        t->qkv = take(a, n * 3 * d);
        t->weights = take(a, (size_t)m->config.heads * n * n);
        t->mixed = take(a, n * d);
        t->middle = take(a, n * d);
        t->inverse2 = take(a, n);
        t->normed2 = take(a, n * d);
        t->hidden = take(a, n * 4 * d);
        t->activated = take(a, n * 4 * d);
    }
    m->x = take(a, n * d);
    m->inverse = take(a, n);
    m->normed = take(a, n * d);
    m->logits = take(a, n * v);
    m->dx = take(a, n * d);
    m->dwide = take(a, n * 4 * d);
    m->dqkv = take(a, n * 3 * d);
    m->dnarrow = take(a, n * d);
    m->dlogits = take(a, n * v);
    m->turned = take(a, d * (v > 4 * d ? v : 4 * d));
    m->row = take(a, n);
}

model *model_create(const model_config *config)
{
    model *m = calloc(1, sizeof *m);
    if (m == NULL) {
        return NULL;
    }
    size_t layers = (size_t)config->layers;
    m->config = *config;
    m->scale = 1;
    m->padded_vocab = (config->vocab + 7) / 8 * 8;
    m->params.layers = calloc(layers, sizeof *m->params.layers);
    m->grads.layers = calloc(layers, sizeof *m->grads.layers);
    m->traces = calloc(layers, sizeof *m->traces);
    bool good = m->params.layers != NULL && m->grads.layers != NULL && m->traces != NULL;
    if (good) {
        arena weights = {0}, traces = {0};
        place_weights(m, &m->params, &weights);
        place_traces(m, &traces);
        m->count = weights.used;
        m->params.all = calloc(m->count, sizeof(float));
        m->grads.all = calloc(m->count + 1, sizeof(float));
        m->memory = calloc(traces.used, sizeof(float));
        good = m->params.all != NULL && m->grads.all != NULL && m->memory != NULL;
    }
    if (!good) {
        model_destroy(m);
        return NULL;
    }
    place_weights(m, &m->params, &(arena){.base = m->params.all});
    place_weights(m, &m->grads, &(arena){.base = m->grads.all});
    place_traces(m, &(arena){.base = m->memory});
    return m;
}

void model_destroy(model *m)
{
    if (m != NULL) {
        free(m->params.layers);
        free(m->params.all);
        free(m->grads.layers);
        free(m->grads.all);
        free(m->traces);
        free(m->memory);
        free(m);
    }
}

size_t model_count(const model *m)
{
    return m->count;
}

enum { LAYER_TENSORS = 6 };

size_t model_tensors(const model *m)
{
    return 3 + LAYER_TENSORS * (size_t)m->config.layers;
}

/* Return the beginning of tensor i, and set its rows. For i past the last tensor, return the end
 * of all weights. */
static const float *tensor(const model *m, size_t i, size_t *rows)
{
    const model_weights *w = &m->params;
    size_t d = (size_t)m->config.dim, last = model_tensors(m) - 1;
    const model_layer *layer = &w->layers[i > 0 && i < last - 1 ? (i - 1) / LAYER_TENSORS : 0];
    const float *within[LAYER_TENSORS] = {layer->norm1, layer->qkv, layer->out,
                                          layer->norm2, layer->up,  layer->down};
    const size_t rows_within[LAYER_TENSORS] = {1, d, d, 1, d, 4 * d};
    *rows = i == 0          ? (size_t)m->config.vocab
            : i == last     ? d
            : i == last - 1 ? 1
            : i < last      ? rows_within[(i - 1) % LAYER_TENSORS]
                            : 0;
    return i == 0          ? w->token
           : i == last     ? w->head
           : i == last - 1 ? w->norm
           : i < last      ? within[(i - 1) % LAYER_TENSORS]
                           : w->all + m->count;
}

void model_tensor_name(const model *m, size_t i, char *name, size_t room)
{
    static const char *const within[LAYER_TENSORS] = {"norm1", "qkv", "out", "norm2", "up", "down"};
    size_t last = model_tensors(m) - 1;
    if (i == 0 || i + 1 >= last) {
        snprintf(name, room, "%s", i == 0 ? "token" : i == last ? "head" : "norm");
    } else {
        snprintf(name, room, "layer%zu.%s", (i - 1) / LAYER_TENSORS,
                 within[(i - 1) % LAYER_TENSORS]);
    }
}

void model_tensor(const model *m, size_t i, size_t *first, size_t *count, size_t *rows)
{
    size_t next;
    *first = (size_t)(tensor(m, i, rows) - m->params.all);
    *count = (size_t)(tensor(m, i + 1, &next) - m->params.all) - *first;
}

float *model_params(model *m)
{
    return m->params.all;
}

float *model_gradients(model *m)
{
    return m->grads.all;
}

const float *model_logits(const model *m, int t)
{
    return m->logits + (size_t)t * (size_t)m->padded_vocab;
}

uint64_t model_random(uint64_t seed, uint64_t a, uint64_t b)
{
    uint64_t z = seed * 0x9e3779b97f4a7c15u + a * 0xd1342543de82ef95u + b + 1;
    for (int round = 0; round < 2; round++) {
        z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
        z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
        z ^= z >> 31;
    }
    return z;
}

static float gaussian(uint64_t seed, uint64_t a, uint64_t b)
{
    uint64_t bits = model_random(seed, a, b);
    double u = ((double)(bits >> 32) + 0.5) * 0x1p-32;
    double angle = 6.283185307179586 * (double)(bits & 0xffffffffu) * 0x1p-32;
    return (float)(sqrt(-2 * log(u)) * cos(angle));
}

static void init_matrix(const model *m, float *w, size_t count, uint64_t seed, float deviation)
{
    uint64_t place = (uint64_t)(w - m->params.all); /* no two weights draw the same number */
    for (size_t i = 0; i < count; i++) {
        w[i] = deviation * gaussian(seed, 1, place + i);
    }
}

static void init_ones(float *w, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        w[i] = 1;
    }
}

void model_init(model *m, uint64_t seed, float scale)
{
    size_t d = (size_t)m->config.dim;
    const model_weights *p = &m->params;
    float narrow = scale / sqrtf((float)d);
    float residual = narrow / sqrtf(2 * (float)m->config.layers);
    init_matrix(m, p->token, (size_t)m->config.vocab * d, seed, 0.1f * scale);
    for (int l = 0; l < m->config.layers; l++) {
        init_ones(p->layers[l].norm1, d);
        init_matrix(m, p->layers[l].qkv, d * 3 * d, seed, narrow);
        init_matrix(m, p->layers[l].out, d * d, seed, residual);
        init_ones(p->layers[l].norm2, d);
        init_matrix(m, p->layers[l].up, d * 4 * d, seed, narrow);
        init_matrix(m, p->layers[l].down, 4 * d * d, seed, residual / 2);
    }
    init_ones(p->norm, d);
    init_matrix(m, p->head, d * (size_t)m->padded_vocab, seed, 0.2f * narrow);
}

/* Compute y[n][out] = x[n][in] w. */
static void linear(float *y, const float *x, const float *w, int n, int in, int out)
{
    memset(y, 0, (size_t)n * (size_t)out * sizeof *y);
    matmul_add(y, x, in, 1, w, n, in, out);
}

/* Do matmul_add with pauses. */
static void matmul_add_paused(const model *m, float *c, const float *a, int row, int step,
                              const float *b, int rows, int depth, int n)
{
    enum { WORK = 1 << 21 }; /* multiplications between pauses: a fraction of a millisecond */
    int most = WORK / (depth * n) / 4 * 4; /* matmul_add takes rows by fours */
    most = most < 4 ? 4 : most;
    for (int i = 0; i < rows; i += most) {
        int now = rows - i < most ? rows - i : most;
        matmul_add(c + i * n, a + i * row, row, step, b, now, depth, n);
        if (m->pause != NULL) {
            m->pause(m->watcher);
        }
    }
}

/* Compute dx = dy w^T and dw += x^T dy. */
static void linear_back(model *m, float *dx, float *dw, const float *dy, const float *x,
                        const float *w, int n, int in, int out)
{
    matmul_add_paused(m, dw, x, 1, in, dy, in, n, out);
    transpose(m->turned, w, in, out);
    memset(dx, 0, (size_t)n * (size_t)in * sizeof *dx);
    matmul_add_paused(m, dx, dy, out, 1, m->turned, n, out, in);
}

static void layer_forward(const model *m, int l, float *y, int n)
{
    int d = m->config.dim;
    const model_layer *w = &m->params.layers[l];
    const layer_trace *t = &m->traces[l];
    rmsnorm(t->normed1, t->inverse1, t->x, w->norm1, n, d);
    linear(t->qkv, t->normed1, w->qkv, n, d, 3 * d);
    attention(t->mixed, t->weights, t->qkv, n, d, m->config.heads);
    memcpy(t->middle, t->x, (size_t)n * (size_t)d * sizeof(float));
    matmul_add(t->middle, t->mixed, d, 1, w->out, n, d, d);
    rmsnorm(t->normed2, t->inverse2, t->middle, w->norm2, n, d);
    linear(t->hidden, t->normed2, w->up, n, d, 4 * d);
    gelu(t->activated, t->hidden, n * 4 * d);
    memcpy(y, t->middle, (size_t)n * (size_t)d * sizeof(float));
    matmul_add(y, t->activated, 4 * d, 1, w->down, n, 4 * d, d);
}

void model_watch(model *m, model_done_fn done, model_pause_fn pause, void *user)
{
    m->done = done;
    m->pause = pause;
    m->watcher = user;
}

static void done(const model *m, size_t tensor_number)
{
    if (m->done != NULL) {
        m->done(m->watcher, tensor_number);
    }
}

/* Run a layer's backward pass. m->dx has the derivatives of the layer's output on entry, and those
 * of its input on return. */
static void layer_backward(model *m, int l, int n)
{
    int d = m->config.dim;
    const model_layer *w = &m->params.layers[l];
    const model_layer *g = &m->grads.layers[l];
    const layer_trace *t = &m->traces[l];
    size_t norm1 = 1 + LAYER_TENSORS * (size_t)l; /* number of the layer's first tensor */
    linear_back(m, m->dwide, g->down, m->dx, t->activated, w->down, n, 4 * d, d);
    done(m, norm1 + 5);
    gelu_back(m->dwide, m->dwide, t->hidden, n * 4 * d);
    linear_back(m, m->dnarrow, g->up, m->dwide, t->normed2, w->up, n, d, 4 * d);
    done(m, norm1 + 4);
    rmsnorm_back(m->dx, g->norm2, m->dnarrow, t->middle, t->inverse2, w->norm2, n, d);
    done(m, norm1 + 3);
    linear_back(m, m->dnarrow, g->out, m->dx, t->mixed, w->out, n, d, d);
    done(m, norm1 + 2);
    attention_back(m->dqkv, m->dnarrow, t->weights, t->qkv, m->row, n, d, m->config.heads);
    linear_back(m, m->dnarrow, g->qkv, m->dqkv, t->normed1, w->qkv, n, d, 3 * d);
    done(m, norm1 + 1);
    rmsnorm_back(m->dx, g->norm1, m->dnarrow, t->x, t->inverse1, w->norm1, n, d);
    done(m, norm1);
}

/* Return the cross-entropy of one position. Put its derivative, scaled and divided by n positions,
 * into dlogits. */
static double position_loss(const model *m, int t, int target, int n)
{
    int vocab = m->config.vocab;
    const float *logits = model_logits(m, t);
    float *dlogits = m->dlogits + (size_t)t * (size_t)m->padded_vocab;
    float most = logits[0];
    for (int i = 1; i < vocab; i++) {
        most = fmaxf(most, logits[i]);
    }
    float sum = 0;
    for (int i = 0; i < vocab; i++) {
        dlogits[i] = expf(logits[i] - most);
        sum += dlogits[i];
    }
    float scale = m->scale / (sum * (float)n);
    for (int i = 0; i < vocab; i++) {
        dlogits[i] *= scale;
    }
    dlogits[target] -= m->scale / (float)n;
    return log(sum) - (double)(logits[target] - most);
}

void model_scale(model *m, float scale)
{
    m->scale = scale;
}

double model_forward(model *m, const int *tokens, const int *targets, int n)
{
    int d = m->config.dim;
    float *first = m->config.layers > 0 ? m->traces[0].x : m->x;
    for (int t = 0; t < n; t++) {
        for (int i = 0; i < d; i++) {
            first[t * d + i] = m->params.token[tokens[t] * d + i];
        }
    }
    for (int l = 0; l < m->config.layers; l++) {
        layer_forward(m, l, l + 1 < m->config.layers ? m->traces[l + 1].x : m->x, n);
    }
    rmsnorm(m->normed, m->inverse, m->x, m->params.norm, n, d);
    linear(m->logits, m->normed, m->params.head, n, d, m->padded_vocab);
    double loss = 0;
    for (int t = 0; targets != NULL && t < n; t++) {
        loss += position_loss(m, t, targets[t], n) / n;
    }
    return loss;
}

void model_backward(model *m, const int *tokens, const int *targets, int n)
{
    int d = m->config.dim;
    (void)targets; /* position_loss has used them */
    linear_back(m, m->dnarrow, m->grads.head, m->dlogits, m->normed, m->params.head, n, d,
                m->padded_vocab);
    done(m, model_tensors(m) - 1);
    memset(m->dx, 0, (size_t)n * (size_t)d * sizeof(float));
    rmsnorm_back(m->dx, m->grads.norm, m->dnarrow, m->x, m->inverse, m->params.norm, n, d);
    done(m, model_tensors(m) - 2);
    for (int l = m->config.layers - 1; l >= 0; l--) {
        layer_backward(m, l, n);
    }
    for (int t = 0; t < n; t++) {
        for (int i = 0; i < d; i++) {
            m->grads.token[tokens[t] * d + i] += m->dx[t * d + i];
        }
    }
    done(m, 0);
}
