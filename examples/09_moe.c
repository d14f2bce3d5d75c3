/* 09_moe.c - a mixture of experts that learns to predict the next byte of a text. Tokens and
 * experts are spread over the ranks. Then each rank trains the whole model alone, and compares the
 * losses. */
#include "dcomm.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BYTES = 128, HIDDEN = 24, EXPERTS = 8, K = 2, TOKENS = 256, STEPS = 40 };

static const float rate = 1.5f;

/* The weights that every rank has: the embeddings of bytes, the router, and the output layer. */
typedef struct dense {
    float last[BYTES][HIDDEN], before[BYTES][HIDDEN];
    float router[HIDDEN][EXPERTS], out[HIDDEN][BYTES];
} dense;

typedef struct model {
    dense value, grad;
    float expert[EXPERTS][HIDDEN][HIDDEN]; /* a rank trains only its own experts */
    float x[TOKENS][HIDDEN], y[TOKENS][HIDDEN], dy[TOKENS][HIDDEN], dx[TOKENS][HIDDEN];
    int32_t chosen[TOKENS][K];
    float weight[TOKENS][K], dweight[TOKENS][K];
    float given[TOKENS * K][HIDDEN]; /* outputs of this rank's experts */
    double loss[STEPS];
} model;

static float noise(uint32_t *state)
{
    *state = *state * 1664525u + 1013904223u;
    return (float)(*state >> 8) / 16777216 - 0.5f;
}

static void start(model *m)
{
    uint32_t state = 1;
    float *all = (float *)&m->value;
    for (size_t i = 0; i < sizeof m->value / sizeof(float); i++) {
        all[i] = noise(&state);
    }
    for (int e = 0; e < EXPERTS; e++) {
        for (int i = 0; i < HIDDEN; i++) {
            for (int o = 0; o < HIDDEN; o++) {
                m->expert[e][i][o] = 0.5f * noise(&state);
            }
        }
    }
}

/* Compute the row of token t, and choose the K experts with the highest scores for it. */
static void route(model *m, int t, const unsigned char *text)
{
    float score[EXPERTS] = {0}, sum = 0;
    for (int h = 0; h < HIDDEN; h++) {
        m->x[t][h] = m->value.last[text[1] % BYTES][h] + m->value.before[text[0] % BYTES][h];
        for (int e = 0; e < EXPERTS; e++) {
            score[e] += m->x[t][h] * m->value.router[h][e];
        }
    }
    for (int j = 0; j < K; j++) {
        int best = -1;
        for (int e = 0; e < EXPERTS; e++) {
            bool taken = j > 0 && m->chosen[t][0] == e;
            best = !taken && (best < 0 || score[e] > score[best]) ? e : best;
        }
        m->chosen[t][j] = best;
        m->weight[t][j] = expf(score[best]);
        sum += m->weight[t][j];
    }
    for (int j = 0; j < K; j++) {
        m->weight[t][j] /= sum;
    }
}

/* Run this rank's experts: given = tanh(row * expert) for each of their rows. */
static void forward_experts(model *m, const dcomm_moe_batch *b)
{
    const float(*row)[HIDDEN] = b->rows;
    for (size_t l = 0; l < b->nexperts; l++) {
        for (size_t r = b->first[l]; r < b->first[l + 1]; r++) {
            for (int o = 0; o < HIDDEN; o++) {
                float sum = 0;
                for (int i = 0; i < HIDDEN; i++) {
                    sum += row[r][i] * m->expert[b->experts[l]][i][o];
                }
                m->given[r][o] = tanhf(sum);
            }
        }
    }
}

/* Update the experts. Overwrite the gradients of their outputs with the gradients of their
 * inputs. */
static void backward_experts(model *m, const dcomm_moe_batch *in, const dcomm_moe_batch *b)
{
    const float(*row)[HIDDEN] = in->rows;
    float(*gradient)[HIDDEN] = b->rows;
    for (size_t l = 0; l < b->nexperts; l++) {
        float(*expert)[HIDDEN] = m->expert[b->experts[l]], step[HIDDEN][HIDDEN] = {{0}};
        for (size_t r = b->first[l]; r < b->first[l + 1]; r++) {
            float inner[HIDDEN];
            for (int o = 0; o < HIDDEN; o++) {
                inner[o] = gradient[r][o] * (1 - m->given[r][o] * m->given[r][o]);
            }
            for (int i = 0; i < HIDDEN; i++) {
                gradient[r][i] = 0;
                for (int o = 0; o < HIDDEN; o++) {
                    step[i][o] += row[r][i] * inner[o];
                    gradient[r][i] += inner[o] * expert[i][o];
                }
            }
        }
        for (int i = 0; i < HIDDEN; i++) {
            for (int o = 0; o < HIDDEN; o++) {
                expert[i][o] -= rate * step[i][o];
            }
        }
    }
}

/* Predict the byte after token t from its row and the sum of its experts. Return the loss, and
 * compute the gradients. */
static double guess(model *m, int t, int next)
{
    float p[BYTES], most = -INFINITY, sum = 0;
    for (int b = 0; b < BYTES; b++) {
        p[b] = 0;
        for (int h = 0; h < HIDDEN; h++) {
            p[b] += (m->x[t][h] + m->y[t][h]) * m->value.out[h][b];
        }
        most = fmaxf(most, p[b]);
    }
    for (int b = 0; b < BYTES; b++) {
        p[b] = expf(p[b] - most);
        sum += p[b];
    }
    double loss = -log((double)(p[next] / sum)) / TOKENS;
    for (int h = 0; h < HIDDEN; h++) {
        m->dy[t][h] = 0;
        for (int b = 0; b < BYTES; b++) {
            float d = (p[b] / sum - (b == next)) / TOKENS;
            m->grad.out[h][b] += d * (m->x[t][h] + m->y[t][h]);
            m->dy[t][h] += d * m->value.out[h][b];
        }
    }
    return loss;
}

/* Compute the gradients of the router and of the token's embeddings from those of its weights and
 * row. */
static void backward_token(model *m, int t, const unsigned char *text)
{
    float mean = 0;
    for (int j = 0; j < K; j++) {
        mean += m->weight[t][j] * m->dweight[t][j];
    }
    for (int h = 0; h < HIDDEN; h++) {
        float d = m->dx[t][h] + m->dy[t][h];
        for (int j = 0; j < K; j++) {
            float score = m->weight[t][j] * (m->dweight[t][j] - mean);
            m->grad.router[h][m->chosen[t][j]] += score * m->x[t][h];
            d += score * m->value.router[h][m->chosen[t][j]];
        }
        m->grad.last[text[1] % BYTES][h] += d;
        m->grad.before[text[0] % BYTES][h] += d;
    }
}

/* Do this rank's part of a step, on `tokens` tokens from `text` on. Set *loss to the loss over all
 * ranks. */
static dcomm_status train_step(model *m, dcomm_comm *comm, dcomm_moe *moe, int tokens,
                               const unsigned char *text, double *loss)
{
    dcomm_moe_batch in, back;
    memset(&m->grad, 0, sizeof m->grad);
    for (int t = 0; t < tokens; t++) {
        route(m, t, text + t);
    }
    dcomm_status s = dcomm_moe_route(moe, (size_t)tokens, m->chosen[0], m->weight[0]);
    s = s >= 0 ? dcomm_moe_dispatch_start(moe, 0, m->x) : s;
    s = s >= 0 ? dcomm_moe_dispatch_wait(moe, 0, &in) : s;
    if (s >= 0) {
        forward_experts(m, &in);
    }
    s = s >= 0 ? dcomm_moe_combine_start(moe, 0, m->given) : s;
    s = s >= 0 ? dcomm_moe_combine_wait(moe, 0, m->y) : s;
    *loss = 0;
    for (int t = 0; t < tokens && s >= 0; t++) {
        *loss += guess(m, t, text[t + 2] % BYTES);
    }
    s = s >= 0 ? dcomm_moe_combine_backward_start(moe, 0, m->dy) : s;
    s = s >= 0 ? dcomm_moe_combine_backward_wait(moe, 0, m->dweight[0], &back) : s;
    if (s >= 0) {
        backward_experts(m, &in, &back);
    }
    s = s >= 0 ? dcomm_moe_dispatch_backward_start(moe, 0, back.rows) : s;
    s = s >= 0 ? dcomm_moe_dispatch_backward_wait(moe, 0, m->dx) : s;
    for (int t = 0; t < tokens && s >= 0; t++) {
        backward_token(m, t, text + t);
    }
    s = s >= 0 ? dcomm_allreduce(comm, DCOMM_IN_PLACE, &m->grad, sizeof m->grad / sizeof(float),
                                 DCOMM_F32, DCOMM_SUM, NULL)
               : s;
    return s >= 0 ? dcomm_allreduce(comm, DCOMM_IN_PLACE, loss, 1, DCOMM_F64, DCOMM_SUM, NULL) : s;
}

static dcomm_status train(model *m, dcomm_comm *comm, const unsigned char *text, size_t len)
{
    int rank = dcomm_comm_rank(comm), size = dcomm_comm_size(comm);
    int first = TOKENS * rank / size, tokens = TOKENS * (rank + 1) / size - first;
    dcomm_moe *moe = NULL;
    dcomm_moe_opts opts = {.experts = EXPERTS, .hidden = HIDDEN, .k = K, .dtype = DCOMM_F32};
    dcomm_status status = dcomm_moe_create(comm, &opts, &moe);
    start(m);
    for (int step = 0; step < STEPS && status >= 0; step++) {
        size_t at = (size_t)step * TOKENS % (len - TOKENS - 2) + (size_t)first;
        status = train_step(m, comm, moe, tokens, text + at, &m->loss[step]);
        for (size_t i = 0; i < sizeof m->value / sizeof(float) && status >= 0; i++) {
            ((float *)&m->value)[i] -= rate * ((float *)&m->grad)[i];
        }
    }
    dcomm_moe_destroy(&moe);
    return status;
}

int main(int argc, char **argv)
{
    static model together, alone;
    static unsigned char text[1 << 16];
    const char *path = argc > 1 ? argv[1] : "/usr/share/common-licenses/GPL-3";
    FILE *file = fopen(path, "rb");
    size_t len = file != NULL ? fread(text, 1, sizeof text, file) : 0;
    if (file != NULL) {
        fclose(file);
    }
    if (len < 2 * TOKENS) {
        fprintf(stderr, "%s is not a text of %d bytes\n", path, 2 * TOKENS);
        return 2;
    }
    dcomm_comm *comm = NULL, *self = NULL;
    dcomm_status status = dcomm_comm_create(NULL, &comm);
    int rank = dcomm_comm_rank(comm);
    status = status >= 0 ? train(&together, comm, text, len) : status;
    status = status >= 0 ? dcomm_comm_split(comm, rank, 0, &self) : status;
    status = status >= 0 ? train(&alone, self, text, len) : status;
    double off = 0;
    for (int step = 0; step < STEPS && status >= 0; step++) {
        off = fmax(off, fabs(together.loss[step] - alone.loss[step]) / alone.loss[step]);
    }
    bool wrong = !(off < 1e-4) || !(together.loss[STEPS - 1] < 0.8 * together.loss[0]);
    if (status < 0) {
        fprintf(stderr, "rank %d: %s\n", rank, dcomm_last_error());
    } else {
        printf("rank %d of %d: loss %.4f to %.4f; by one rank %.4f to %.4f; %.1e apart at most\n",
               rank, dcomm_comm_size(comm), together.loss[0], together.loss[STEPS - 1],
               alone.loss[0], alone.loss[STEPS - 1], off);
    }
    dcomm_comm_destroy(&self);
    dcomm_comm_destroy(&comm);
    return status < 0 ? 3 : wrong;
}
