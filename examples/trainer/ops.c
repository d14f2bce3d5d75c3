/* ops.c - the building blocks of the model and their derivatives, in loops that vectorize. */
#include "ops.h"

#include <math.h>
#include <string.h>

/* A vector of as many floats as one register holds, at any alignment. */
#ifdef __AVX__
enum { LANES = 8 };
#else
enum { LANES = 4 };
#endif
typedef float lanes __attribute__((vector_size(4 * LANES), aligned(4), may_alias));

/* Compute a tile of c of rows by vecs registers. Both are constants after inlining. */
static inline __attribute__((always_inline)) void tile(float *c, const float *a, int row, int step,
                                                       const float *b, int depth, int n,
                                                       const int rows, const int vecs)
{
    lanes sum[4][2];
    for (int r = 0; r < rows; r++) {
        for (int v = 0; v < vecs; v++) {
            sum[r][v] = *(const lanes *)(c + r * n + LANES * v);
        }
    }
    for (int k = 0; k < depth; k++) {
        for (int v = 0; v < vecs; v++) {
            lanes right = *(const lanes *)(b + k * n + LANES * v);
            for (int r = 0; r < rows; r++) {
                sum[r][v] += a[r * row + k * step] * right;
            }
        }
    }
    for (int r = 0; r < rows; r++) {
        for (int v = 0; v < vecs; v++) {
            *(lanes *)(c + r * n + LANES * v) = sum[r][v];
        }
    }
}

void matmul_add(float *c, const float *a, int row, int step, const float *b, int m, int depth,
                int n)
{
    int j = 0;
    for (; j + 2 * LANES <= n; j += 2 * LANES) {
        int i = 0;
        for (; i + 4 <= m; i += 4) {
            tile(c + i * n + j, a + i * row, row, step, b + j, depth, n, 4, 2);
        }
        for (; i < m; i++) {
            tile(c + i * n + j, a + i * row, row, step, b + j, depth, n, 1, 2);
        }
    }
    for (; j < n; j += LANES) {
        for (int i = 0; i < m; i++) {
            tile(c + i * n + j, a + i * row, row, step, b + j, depth, n, 1, 1);
        }
    }
}

void transpose(float *to, const float *from, int m, int n)
{
    for (int i = 0; i < m; i++) {
        for (int j = 0; j < n; j++) {
            to[j * m + i] = from[i * n + j];
        }
    }
}

void rmsnorm(float *y, float *inverse, const float *x, const float *gain, int n, int dim)
{
    for (int t = 0; t < n; t++, x += dim, y += dim) {
        float squares = 0;
        for (int i = 0; i < dim; i++) {
            squares += x[i] * x[i];
        }
        inverse[t] = 1 / sqrtf(squares / (float)dim + 1e-5f);
        for (int i = 0; i < dim; i++) {
            y[i] = gain[i] * x[i] * inverse[t];
        }
    }
}

void rmsnorm_back(float *dx, float *dgain, const float *dy, const float *x, const float *inverse,
                  const float *gain, int n, int dim)
{
    for (int t = 0; t < n; t++, x += dim, dx += dim, dy += dim) {
        float r = inverse[t];
        float dot = 0;
        for (int i = 0; i < dim; i++) {
            dot += gain[i] * dy[i] * x[i];
            dgain[i] += dy[i] * x[i] * r;
        }
        float pull = dot * r * r * r / (float)dim;
        for (int i = 0; i < dim; i++) {
            dx[i] += gain[i] * dy[i] * r - x[i] * pull;
        }
    }
}

/* Return tanh, computed with expf: libm's tanhf would be the slowest part of a small model. */
static float quick_tanh(float x)
{
    x = fminf(fmaxf(x, -9), 9);
    float e = expf(2 * x);
    return (e - 1) / (e + 1);
}

static const float gelu_slope = 0.7978845608f; /* sqrt(2 / pi) */
static const float gelu_cubic = 0.044715f;

void gelu(float *y, const float *x, int count)
{
    for (int i = 0; i < count; i++) {
        float v = x[i];
        y[i] = 0.5f * v * (1 + quick_tanh(gelu_slope * (v + gelu_cubic * v * v * v)));
    }
}

void gelu_back(float *dx, const float *dy, const float *x, int count)
{
    for (int i = 0; i < count; i++) {
        float v = x[i];
        float th = quick_tanh(gelu_slope * (v + gelu_cubic * v * v * v));
        float inner = gelu_slope * (1 + 3 * gelu_cubic * v * v);
        dx[i] = dy[i] * 0.5f * (1 + th + v * (1 - th * th) * inner);
    }
}

static float dot(const float *a, const float *b, int n)
{
    float sum = 0;
    for (int i = 0; i < n; i++) {
        sum += a[i] * b[i];
    }
    return sum;
}

static void add_scaled(float *y, const float *x, float scale, int n)
{
    for (int i = 0; i < n; i++) {
        y[i] += scale * x[i];
    }
}

/* Turn w[0 .. n-1] into probabilities. */
static void softmax(float *w, int n)
{
    float most = w[0];
    float sum = 0;
    for (int i = 1; i < n; i++) {
        most = fmaxf(most, w[i]);
    }
    for (int i = 0; i < n; i++) {
        w[i] = expf(w[i] - most);
        sum += w[i];
    }
    for (int i = 0; i < n; i++) {
        w[i] /= sum;
    }
}

void attention(float *y, float *weights, const float *qkv, int n, int dim, int heads)
{
    int part = dim / heads;
    float scale = 1 / sqrtf((float)part);
    memset(y, 0, (size_t)n * (size_t)dim * sizeof *y);
    for (int h = 0; h < heads; h++) {
        const float *q = qkv + h * part;
        const float *k = q + dim;
        const float *v = k + dim;
        float slope = ldexpf(2, -2 * h);
        for (int t = 0; t < n; t++) {
            float *w = weights + (h * n + t) * n;
            for (int u = 0; u <= t; u++) {
                w[u] = scale * dot(q + t * 3 * dim, k + u * 3 * dim, part);
                w[u] -= slope * (float)(t - u);
            }
            softmax(w, t + 1);
            for (int u = 0; u <= t; u++) {
                add_scaled(y + t * dim + h * part, v + u * 3 * dim, w[u], part);
            }
        }
    }
}

void attention_back(float *dqkv, const float *dy, const float *weights, const float *qkv,
                    float *row, int n, int dim, int heads)
{
    int part = dim / heads;
    float scale = 1 / sqrtf((float)part);
    memset(dqkv, 0, (size_t)n * 3 * (size_t)dim * sizeof *dqkv);
    for (int h = 0; h < heads; h++) {
        int at = h * part;
        for (int t = 0; t < n; t++) {
            const float *w = weights + (h * n + t) * n;
            const float *dout = dy + t * dim + at;
            float mean = 0; /* mean derivative, weighted by w: a term of softmax */
            for (int u = 0; u <= t; u++) {
                row[u] = dot(dout, qkv + u * 3 * dim + 2 * dim + at, part);
                mean += w[u] * row[u];
                add_scaled(dqkv + u * 3 * dim + 2 * dim + at, dout, w[u], part);
            }
            for (int u = 0; u <= t; u++) {
                float dscore = scale * w[u] * (row[u] - mean);
                add_scaled(dqkv + t * 3 * dim + at, qkv + u * 3 * dim + dim + at, dscore, part);
                add_scaled(dqkv + u * 3 * dim + dim + at, qkv + t * 3 * dim + at, dscore, part);
            }
        }
    }
}
