/* moe_routes.h - synthetic routings, the same in dcomm-moe and in the programs that measure other
 * libraries (peers/). */
#ifndef MOE_ROUTES_H
#define MOE_ROUTES_H

#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOE_EXPERTS_MAX = 4096, MOE_K_MAX = 8 };

/* A routing with a skew. uniform: all experts are equally likely. zipf:S: expert i is chosen in
 * proportion to 1/(i+1)^S. hot: the first expert of each token is expert 0. adversarial: all
 * tokens choose the last k experts. hosts:M: the experts are divided evenly over M hosts, and all
 * experts of a token are on one host. The experts of a token differ. */
typedef struct moe_routes {
    size_t tokens; /* tokens of each rank */
    int experts, k, nranks;
    char skew[32];
    double share[MOE_EXPERTS_MAX]; /* cumulative share of experts 0 to this one */
} moe_routes;

static inline bool moe_routes_make(moe_routes *r, size_t tokens, int experts, int k, int nranks,
                                   const char *skew)
{
    double exponent = 0, sum = 0;
    char *end = NULL;
    bool zipf = strncmp(skew, "zipf:", 5) == 0, hosts = strncmp(skew, "hosts:", 6) == 0;
    if (zipf || hosts) {
        exponent = strtod(skew + (zipf ? 5 : 6), &end);
    }
    bool known = zipf || hosts || strcmp(skew, "uniform") == 0 || strcmp(skew, "hot") == 0 ||
                 strcmp(skew, "adversarial") == 0;
    if (!known || (end != NULL && (*end != 0 || !(exponent > 0 && exponent < 1000))) ||
        strlen(skew) >= sizeof r->skew || experts < k || experts > MOE_EXPERTS_MAX || k < 1 ||
        k > MOE_K_MAX || (hosts && (int)(experts / exponent) < k)) {
        return false;
    }
    r->tokens = tokens;
    r->experts = experts;
    r->k = k;
    r->nranks = nranks;
    snprintf(r->skew, sizeof r->skew, "%s", skew);
    for (int e = 0; e < experts; e++) {
        sum += zipf ? pow(e + 1, -exponent) : 1;
        r->share[e] = sum;
    }
    return true;
}

static inline uint64_t moe_routes_random(uint64_t *state)
{
    uint64_t z = *state += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

static inline int moe_routes_draw(const moe_routes *r, uint64_t *state)
{
    double at =
        (double)(moe_routes_random(state) >> 11) / 9007199254740992.0 * r->share[r->experts - 1];
    int low = 0, high = r->experts - 1;
    while (low < high) {
        int middle = (low + high) / 2;
        *(r->share[middle] > at ? &high : &low) = r->share[middle] > at ? middle : middle + 1;
    }
    return low;
}

/* Choose the experts of one token. *state continues from token to token. */
static inline void moe_routes_token(const moe_routes *r, uint64_t *state, int32_t *experts)
{
    bool adversarial = strcmp(r->skew, "adversarial") == 0, hot = strcmp(r->skew, "hot") == 0;
    int first = 0, span = r->experts;
    if (strncmp(r->skew, "hosts:", 6) == 0) {
        int hosts = atoi(r->skew + 6);
        span = r->experts / hosts;
        first = (int)(moe_routes_random(state) % (uint64_t)hosts) * span;
    }
    for (int j = 0; j < r->k; j++) {
        bool again;
        do {
            experts[j] = adversarial     ? r->experts - 1 - j
                         : hot && j == 0 ? 0
                                         : first + moe_routes_draw(r, state) % span;
            again = false;
            for (int i = 0; i < j; i++) {
                again = again || experts[i] == experts[j];
            }
        } while (again);
    }
}

static inline uint64_t moe_routes_seed(int rank)
{
    return 0x1234567 + (uint64_t)rank * 0x9e3779b9;
}

/* Return the rank of an expert. Experts are spread over ranks evenly, in order. */
static inline int moe_routes_owner(const moe_routes *r, int expert)
{
    return (int)((int64_t)expert * r->nranks / r->experts);
}

/* Set counts[q] to the number of rows that `rank` sends to rank q. */
static inline void moe_routes_counts(const moe_routes *r, int rank, size_t *counts)
{
    uint64_t state = moe_routes_seed(rank);
    int32_t experts[MOE_K_MAX];
    memset(counts, 0, (size_t)r->nranks * sizeof *counts);
    for (size_t t = 0; t < r->tokens; t++) {
        moe_routes_token(r, &state, experts);
        for (int j = 0; j < r->k; j++) {
            counts[moe_routes_owner(r, experts[j])]++;
        }
    }
}

/* Counts and displacements, in rows, of the rows that a rank sends and receives. */
typedef struct moe_routes_rows {
    size_t *send, *send_at, *recv, *recv_at, sent, received;
} moe_routes_rows;

static inline bool moe_routes_rows_make(const moe_routes *r, int rank, moe_routes_rows *w)
{
    size_t n = (size_t)r->nranks;
    size_t *all = (size_t *)calloc(5 * n, sizeof *all);
    if (all == NULL) {
        return false;
    }
    *w = (moe_routes_rows){all, all + n, all + 2 * n, all + 3 * n, 0, 0};
    moe_routes_counts(r, rank, w->send);
    for (int q = 0; q < r->nranks; q++) {
        moe_routes_counts(r, q, all + 4 * n);
        w->recv[q] = all[4 * n + (size_t)rank];
        w->send_at[q] = w->sent;
        w->recv_at[q] = w->received;
        w->sent += w->send[q];
        w->received += w->recv[q];
    }
    return true;
}

#endif
