/* 11_parameter_server.c - a table of vectors, one for each pair of bytes, that learns to predict
 * the next byte of a text. All ranks hold a part of the table and train; a step moves only the rows
 * of the pairs that it has seen. Each rank also trains alone, and compares: bulk-synchronous clocks
 * give the same losses, stale ones others, which fall, too. */
#include "dcomm.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BYTES = 128, PAIRS = BYTES * BYTES, HIDDEN = 16, TOKENS = 240, STEPS = 40 };

typedef struct model {
    float row[TOKENS][HIDDEN], drow[TOKENS][HIDDEN]; /* of this step's pairs */
    float out[HIDDEN][BYTES], dout[HIDDEN][BYTES];
    uint64_t pairs[TOKENS];    /* the row of the table that each of them is */
    size_t npairs, at[TOKENS]; /* at: the place in `row` of a token's pair */
    double loss[STEPS];
    dcomm_ps_stats stats;
} model;

/* List the pairs of some tokens, each once. */
static void list_pairs(model *m, const unsigned char *text, int tokens)
{
    m->npairs = 0;
    for (int t = 0; t < tokens; t++) {
        const uint64_t pair = (uint64_t)(text[t] % BYTES) * BYTES + text[t + 1] % BYTES;
        size_t k = 0;
        while (k < m->npairs && m->pairs[k] != pair) {
            k++;
        }
        m->pairs[k] = pair;
        m->npairs += k == m->npairs;
        m->at[t] = k;
    }
}

/* Predict the byte after token t. Return the loss, and add to the gradients, times `share`. */
static double guess(model *m, int t, int next, float share)
{
    const float *x = m->row[m->at[t]];
    float p[BYTES] = {0}, sum = 0;
    for (int b = 0; b < BYTES; b++) {
        for (int h = 0; h < HIDDEN; h++) {
            p[b] += x[h] * m->out[h][b];
        }
        p[b] = expf(p[b]);
        sum += p[b];
    }
    for (int b = 0; b < BYTES; b++) {
        const float d = (p[b] / sum - (b == next)) * share;
        for (int h = 0; h < HIDDEN; h++) {
            m->dout[h][b] += d * x[h];
            m->drow[m->at[t]][h] += d * m->out[h][b];
        }
    }
    return -log((double)(p[next] / sum)) / TOKENS;
}

/* Do this worker's part of a step. The server averages over workers, so a worker of n counts its
 * tokens n times. */
static dcomm_status train_step(model *m, dcomm_ps *ps, int n, const unsigned char *text, int tokens,
                               double *loss)
{
    list_pairs(m, text, tokens);
    dcomm_status s = dcomm_ps_pull_rows(ps, 0, m->pairs, m->npairs, m->row, NULL);
    s = s >= 0 ? dcomm_ps_pull(ps, 1, 0, HIDDEN, m->out, NULL) : s;
    memset(m->drow, 0, sizeof m->drow);
    memset(m->dout, 0, sizeof m->dout);
    for (int t = 0; t < tokens && s >= 0; t++) {
        *loss += guess(m, t, text[t + 2] % BYTES, (float)n / TOKENS);
    }
    s = s >= 0 ? dcomm_ps_push_rows(ps, 0, m->pairs, m->npairs, m->drow, NULL) : s;
    s = s >= 0 ? dcomm_ps_push(ps, 1, 0, HIDDEN, m->dout, NULL) : s;
    return s >= 0 ? dcomm_ps_clock(ps) : s;
}

/* Train; each rank has an equal part of every step's tokens. */
static dcomm_status train(model *m, dcomm_comm *comm, int staleness, const unsigned char *text,
                          size_t len)
{
    static float table[PAIRS][HIDDEN], out[HIDDEN][BYTES]; /* initial values */
    uint32_t state = 1;
    for (size_t k = 0; k < PAIRS * HIDDEN + HIDDEN * BYTES; k++) {
        state = state * 1664525u + 1013904223u;
        *(k < PAIRS * HIDDEN ? &table[0][0] + k : &out[0][0] + (k - PAIRS * HIDDEN)) =
            (float)(state >> 8) / 16777216 - 0.5f;
    }
    const dcomm_ps_param params[] = {
        {.name = "pairs", .rows = PAIRS, .cols = HIDDEN, .dtype = DCOMM_F32, .init = table},
        {.name = "out", .rows = HIDDEN, .cols = BYTES, .dtype = DCOMM_F32, .init = out}};
    const dcomm_ps_opts opts = {.staleness = staleness, .update = DCOMM_PS_ADAGRAD, .lr = 0.1};
    const int rank = dcomm_comm_rank(comm), n = dcomm_comm_size(comm);
    const int first = TOKENS * rank / n, tokens = TOKENS * (rank + 1) / n - first;
    dcomm_ps *ps = NULL;
    dcomm_status s = dcomm_ps_create(comm, params, 2, &opts, &ps);
    for (int step = 0; step < STEPS && s >= 0; step++) {
        const size_t at = (size_t)step * TOKENS % (len - TOKENS - 2) + (size_t)first;
        s = train_step(m, ps, n, text + at, tokens, &m->loss[step]);
    }
    s = s >= 0 ? dcomm_ps_get_stats(ps, &m->stats) : s;
    const dcomm_status ended = dcomm_ps_destroy(&ps);
    s = s >= 0 ? ended : s;
    return s >= 0
               ? dcomm_allreduce(comm, DCOMM_IN_PLACE, m->loss, STEPS, DCOMM_F64, DCOMM_SUM, NULL)
               : s;
}

int main(int argc, char **argv)
{
    static model together, stale, alone;
    static unsigned char text[1 << 16];
    const char *path = argc > 1 ? argv[1] : "/usr/share/common-licenses/GPL-3";
    FILE *file = fopen(path, "rb");
    const size_t len = file != NULL ? fread(text, 1, sizeof text, file) : 0;
    if (file != NULL) {
        fclose(file);
    }
    if (len < 2 * TOKENS) {
        fprintf(stderr, "%s is not a text of %d bytes\n", path, 2 * TOKENS);
        return 2;
    }
    dcomm_comm *comm = NULL, *self = NULL;
    dcomm_status status = dcomm_comm_create(NULL, &comm);
    const int rank = dcomm_comm_rank(comm);
    status = status >= 0 ? train(&together, comm, 0, text, len) : status;
    status = status >= 0 ? train(&stale, comm, 2, text, len) : status;
    status = status >= 0 ? dcomm_comm_split(comm, rank, 0, &self) : status;
    status = status >= 0 ? train(&alone, self, 0, text, len) : status;
    double off = 0;
    for (int step = 0; step < STEPS && status >= 0; step++) {
        off = fmax(off, fabs(together.loss[step] - alone.loss[step]) / alone.loss[step]);
    }
    const double whole = (double)(PAIRS + BYTES) * HIDDEN * sizeof(float) * STEPS;
    const bool wrong = !(off < 1e-4) || !(together.loss[STEPS - 1] < 0.8 * together.loss[0]) ||
                       !(stale.loss[STEPS - 1] < 0.8 * stale.loss[0]) ||
                       !((double)together.stats.bytes_pushed < 0.1 * whole);
    if (status < 0) {
        fprintf(stderr, "rank %d: %s\n", rank, dcomm_last_error());
    } else {
        printf(
            "rank %d of %d: loss %.4f to %.4f, alone to %.4f (%.1e apart at most), stale to %.4f; "
            "pushed %.2f%% of the tables a step\n",
            rank, dcomm_comm_size(comm), together.loss[0], together.loss[STEPS - 1],
            alone.loss[STEPS - 1], off, stale.loss[STEPS - 1],
            100 * (double)together.stats.bytes_pushed / whole);
    }
    dcomm_comm_destroy(&self);
    dcomm_comm_destroy(&comm);
    return status < 0 ? 3 : wrong;
}
