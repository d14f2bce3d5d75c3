/* moe_model.h - the model of 09_moe.c: bytes of a text become rows, a router chooses experts for
 * each row, and a row and the sum of its experts' outputs predict the next byte. */
#ifndef MOE_MODEL_H
#define MOE_MODEL_H

#include "dcomm.h"

#include <math.h>

enum { BYTES = 128, HIDDEN = 24, EXPERTS = 8, MAX_K = 2, TOKENS = 256, STEPS = 40 };
enum { COPIES = 2 }; /* most experts that have a second copy */

static const float rate = 1.5f;
static const float aux_factor = 0.1f;   /* of the auxiliary loss */
static const float noise_width = 0.02f; /* relative, of a router's inputs */

/* The weights that every rank has: the embeddings of bytes, the router, and the output layer. */
typedef struct dense {
    float last[BYTES][HIDDEN], before[BYTES][HIDDEN];
    float router[HIDDEN][EXPERTS], out[HIDDEN][BYTES];
} dense;

typedef struct model {
    int k;           /* experts of a token */
    bool aux, noise; /* add the auxiliary loss; disturb the router's inputs */
    dense value, grad;
    float expert[EXPERTS][HIDDEN][HIDDEN]; /* a rank trains only its own experts */
    float step[EXPERTS][HIDDEN][HIDDEN];   /* gradients of this rank's rows */
    int ncopies, copied[COPIES];           /* expert copied[i] also is number EXPERTS + i */
    float x[TOKENS][HIDDEN], y[TOKENS][HIDDEN], dy[TOKENS][HIDDEN], dx[TOKENS][HIDDEN];
    float jitter[TOKENS][HIDDEN];   /* factors of the router's inputs */
    float chance[TOKENS][EXPERTS];  /* the router's softmax over all experts */
    int32_t chosen[TOKENS * MAX_K]; /* [tokens * k]; so are the next two */
    float weight[TOKENS * MAX_K], dweight[TOKENS * MAX_K];
    float part[EXPERTS];                 /* of all pairs of token and expert, in this step */
    float given[TOKENS * MAX_K][HIDDEN]; /* outputs of this rank's experts */
    double loss[STEPS];
} model;

/* Return the expert that has this number. */
static int expert_of(const model *m, int number)
{
    return number < EXPERTS ? number : m->copied[number - EXPERTS];
}

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

/* Compute the row of token t, and choose the k experts with the highest scores for it. `number`,
 * the token's among those of all ranks and steps, decides on noise and on copies of experts. */
static void route(model *m, int t, uint32_t number, const unsigned char *text)
{
    float score[EXPERTS] = {0}, most = -INFINITY, all = 0, sum = 0;
    uint32_t state = number * 2654435761u;
    for (int h = 0; h < HIDDEN; h++) {
        m->x[t][h] = m->value.last[text[1] % BYTES][h] + m->value.before[text[0] % BYTES][h];
        m->jitter[t][h] = m->noise ? 1 + 2 * noise_width * noise(&state) : 1;
        for (int e = 0; e < EXPERTS; e++) {
            score[e] += m->x[t][h] * m->jitter[t][h] * m->value.router[h][e];
        }
    }
    for (int e = 0; e < EXPERTS; e++) {
        most = fmaxf(most, score[e]);
    }
    for (int e = 0; e < EXPERTS; e++) {
        m->chance[t][e] = expf(score[e] - most);
        all += m->chance[t][e];
    }
    for (int j = 0; j < m->k; j++) {
        int best = -1;
        for (int e = 0; e < EXPERTS; e++) {
            const bool taken = j > 0 && m->chosen[t * m->k] == e;
            best = !taken && (best < 0 || score[e] > score[best]) ? e : best;
        }
        m->chosen[t * m->k + j] = best;
        sum += m->chance[t][best];
    }
    for (int j = 0; j < m->k; j++) {
        /* GShard's two weights add up to 1. Switch's only one is the chance: it must depend on the
         * scores, or the router would not learn. */
        m->weight[t * m->k + j] = m->chance[t][m->chosen[t * m->k + j]] / (m->k > 1 ? sum : all);
    }
    for (int e = 0; e < EXPERTS; e++) {
        m->chance[t][e] /= all;
    }
    for (int j = 0; j < m->k; j++) { /* every other token goes to the copies */
        for (int i = 0; i < m->ncopies && number % 2 == 1; i++) {
            if (m->chosen[t * m->k + j] == m->copied[i]) {
                m->chosen[t * m->k + j] = EXPERTS + i;
            }
        }
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
                    sum += row[r][i] * m->expert[expert_of(m, b->experts[l])][i][o];
                }
                m->given[r][o] = tanhf(sum);
            }
        }
    }
}

/* Add to the experts' gradients. Overwrite the gradients of their outputs with the gradients of
 * their inputs. */
static void backward_experts(model *m, const dcomm_moe_batch *in, const dcomm_moe_batch *b)
{
    const float(*row)[HIDDEN] = in->rows;
    float(*gradient)[HIDDEN] = b->rows;
    for (size_t l = 0; l < b->nexperts; l++) {
        const int e = expert_of(m, b->experts[l]);
        for (size_t r = b->first[l]; r < b->first[l + 1]; r++) {
            float inner[HIDDEN];
            for (int o = 0; o < HIDDEN; o++) {
                inner[o] = gradient[r][o] * (1 - m->given[r][o] * m->given[r][o]);
            }
            for (int i = 0; i < HIDDEN; i++) {
                gradient[r][i] = 0;
                for (int o = 0; o < HIDDEN; o++) {
                    m->step[e][i][o] += row[r][i] * inner[o];
                    gradient[r][i] += inner[o] * m->expert[e][i][o];
                }
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

/* Set the gradients of token t's scores from those of its weights. The auxiliary loss of Switch and
 * GShard is aux_factor * EXPERTS * sum of part * mean chance: it lowers the chances of the experts
 * that have most. */
static void backward_scores(const model *m, int t, float dscore[EXPERTS])
{
    const float *weight = &m->weight[t * m->k], *dweight = &m->dweight[t * m->k];
    const float factor = m->aux ? aux_factor * EXPERTS / TOKENS : 0;
    float mean = 0, mean_part = 0;
    for (int j = 0; j < m->k; j++) {
        mean += weight[j] * dweight[j];
    }
    for (int e = 0; e < EXPERTS; e++) {
        mean_part += m->part[e] * m->chance[t][e];
    }
    for (int e = 0; e < EXPERTS; e++) {
        dscore[e] = factor * m->chance[t][e] * (m->part[e] - mean_part);
        dscore[e] -= m->k == 1 ? m->chance[t][e] * mean : 0;
    }
    for (int j = 0; j < m->k; j++) {
        const int e = expert_of(m, m->chosen[t * m->k + j]);
        dscore[e] += weight[j] * (dweight[j] - (m->k > 1 ? mean : 0));
    }
}

/* Compute the gradients of the router and of the token's embeddings. */
static void backward_token(model *m, int t, const unsigned char *text)
{
    float dscore[EXPERTS];
    backward_scores(m, t, dscore);
    for (int h = 0; h < HIDDEN; h++) {
        float d = m->dx[t][h] + m->dy[t][h];
        for (int e = 0; e < EXPERTS; e++) {
            m->grad.router[h][e] += dscore[e] * m->x[t][h] * m->jitter[t][h];
            d += dscore[e] * m->value.router[h][e] * m->jitter[t][h];
        }
        m->grad.last[text[1] % BYTES][h] += d;
        m->grad.before[text[0] % BYTES][h] += d;
    }
}

#endif
