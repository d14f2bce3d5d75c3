/* ops.h - what the model is made of: matrix products, RMS norm, GELU, causal attention. */
#ifndef OPS_H
#define OPS_H

/* c[m][n] += a b, where a's element (i, k) is a[i*row + k*step] and b is [depth][n]. n must be a
 * multiple of 8. With row and step exchanged, a is taken transposed. */
void matmul_add(float *c, const float *a, int row, int step, const float *b, int m, int depth,
                int n);
/* to[n][m] = from[m][n] transposed. */
void transpose(float *to, const float *from, int m, int n);

/* y[t] = gain * x[t] / rms(x[t]); inverse[t] = 1 / rms(x[t]), for the way back. */
void rmsnorm(float *y, float *inverse, const float *x, const float *gain, int n, int dim);
/* Adds to dx and dgain. */
void rmsnorm_back(float *dx, float *dgain, const float *dy, const float *x, const float *inverse,
                  const float *gain, int n, int dim);

/* y = gelu(x), by the tanh formula; dx = dy * gelu'(x). */
void gelu(float *y, const float *x, int count);
void gelu_back(float *dx, const float *dy, const float *x, int count);

/* qkv is [n][3*dim]: queries, keys, values, each of `heads` parts. weights is [heads][n][n], the
 * softmax over positions up to one's own, less a slope times their distance, which is all that the
 * model knows of positions (ALiBi, Press et al. 2022). y is [n][dim]. */
void attention(float *y, float *weights, const float *qkv, int n, int dim, int heads);
/* Sets dqkv; `row` is scratch of n floats. */
void attention_back(float *dqkv, const float *dy, const float *weights, const float *qkv,
                    float *row, int n, int dim, int heads);

#endif
