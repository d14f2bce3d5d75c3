/* ops.h - the operations of the model: matrix products, RMS norm, GELU, causal attention. */
#ifndef OPS_H
#define OPS_H

/* Compute c[m][n] += a b. Element (i, k) of a is a[i*row + k*step], and b is [depth][n]. n must be
 * a multiple of 8. To transpose a, exchange row and step. */
void matmul_add(float *c, const float *a, int row, int step, const float *b, int m, int depth,
                int n);
/* Transpose: to[n][m] = from[m][n]. */
void transpose(float *to, const float *from, int m, int n);

/* Compute y[t] = gain * x[t] / rms(x[t]) and inverse[t] = 1 / rms(x[t]), which the backward pass
 * needs. */
void rmsnorm(float *y, float *inverse, const float *x, const float *gain, int n, int dim);
/* Add the derivatives to dx and dgain. */
void rmsnorm_back(float *dx, float *dgain, const float *dy, const float *x, const float *inverse,
                  const float *gain, int n, int dim);

/* Compute y = gelu(x) by the tanh formula, and dx = dy * gelu'(x). */
void gelu(float *y, const float *x, int count);
void gelu_back(float *dx, const float *dy, const float *x, int count);

/* Compute causal attention. qkv is [n][3*dim]: queries, keys and values, each of `heads` parts.
 * weights is [heads][n][n]: the softmax of the scores, over a position and those before it. A
 * slope times the distance is subtracted from each score. It is the only position encoding of the
 * model (ALiBi, Press et al. 2022). y is [n][dim]. */
void attention(float *y, float *weights, const float *qkv, int n, int dim, int heads);
/* Set dqkv to the derivatives. `row` is scratch of n floats. */
void attention_back(float *dqkv, const float *dy, const float *weights, const float *qkv,
                    float *row, int n, int dim, int heads);

#endif
