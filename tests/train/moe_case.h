/* moe_case.h - a layer of experts whose result every rank knows: expert e multiplies its rows by e
 * + 1. Tokens, routing and gradients follow from seeds, so that each rank can compute those of the
 * others. */
#ifndef MOE_CASE_H
#define MOE_CASE_H

#include "placed.h"

#include <math.h>

enum { MOE_TOKENS = 40, MOE_HIDDEN = 24, MOE_EXPERTS = 32 };

/* Distributions of tokens over experts. */
typedef enum moe_skew { MOE_RANDOM, MOE_ONE, MOE_NONE, MOE_SOME_EMPTY, MOE_SKEWS } moe_skew;

typedef struct moe_case {
    dcomm_moe_opts opts;
    int owner[MOE_EXPERTS];
    moe_skew skew;
    uint64_t seed;
    double tolerance; /* relative, of sums; 0: they are exact */
    int rank, size;
    size_t tokens;
    int32_t experts[MOE_TOKENS * DCOMM_MOE_K_MAX];
    float weights[MOE_TOKENS * DCOMM_MOE_K_MAX];
    dcomm_moe *m;
} moe_case;

static inline size_t moe_tokens_of(const moe_case *t, int rank)
{
    uint64_t state = t->seed * 31 + (uint64_t)rank;
    size_t tokens = (size_t)(ranks_random(&state) % (MOE_TOKENS + 1));
    return t->skew == MOE_SOME_EMPTY && rank % 2 == 1 ? 0 : tokens;
}

/* Choose different experts for a token; leave some places empty. */
static inline void moe_choose(const moe_case *t, int rank, size_t token, int32_t *experts,
                              float *weights)
{
    uint64_t state = t->seed * 1000003 + (uint64_t)rank * 1009 + token;
    for (int j = 0; j < t->opts.k; j++) {
        int32_t e = (int32_t)(ranks_random(&state) % t->opts.experts);
        for (int i = 0; i < j; i++) {
            if (experts[i] == e) { /* start again: `e` may now equal an earlier one */
                e = (int32_t)((size_t)(e + 1) % t->opts.experts);
                i = -1;
            }
            if (t->opts.experts <= (size_t)j) {
                break;
            }
        }
        bool none = t->skew == MOE_NONE || (t->skew == MOE_RANDOM && ranks_random(&state) % 9 == 0);
        experts[j] = t->skew == MOE_ONE ? (int32_t)(t->opts.experts - 1) : e;
        experts[j] = none || (t->skew == MOE_ONE && j > 0) ? -1 : experts[j];
        weights[j] = t->opts.k == 1 ? 1 : (float)(1 + ranks_random(&state) % 4) / 4;
    }
}

/* Return a small whole number, exact in all types. */
static inline double moe_value(const moe_case *t, int rank, size_t token, size_t i, bool gradient)
{
    uint64_t state = t->seed * 77 + (uint64_t)rank * 100003 + token * 1009 + i * 2 + gradient;
    return (double)(ranks_random(&state) % 7) - 3;
}

static inline void moe_fill(const moe_case *t, void *x, bool gradient)
{
    for (size_t i = 0; i < t->tokens * t->opts.hidden; i++) {
        ranks_put(x, i, t->opts.dtype,
                  moe_value(t, t->rank, i / t->opts.hidden, i % t->opts.hidden, gradient));
    }
}

static inline void moe_check(const moe_case *t, const char *what, size_t at, double got,
                             double wanted, double size)
{
    PROCS_CHECK(fabs(got - wanted) <= t->tolerance * size,
                "rank %d of %d, seed %d, k %d, form %d: %s[%zu] is %.9g, not %.9g", t->rank,
                t->size, (int)t->seed, t->opts.k, (int)t->opts.form, what, at, got, wanted);
}

/* Return the owner of an expert as the library must see it. */
static inline int moe_owner(const moe_case *t, size_t e)
{
    return t->opts.owner != NULL ? t->owner[e] : (int)(e * (size_t)t->size / t->opts.experts);
}

static inline void moe_begin(moe_case *t, dcomm_comm *comm)
{
    t->rank = dcomm_comm_rank(comm);
    t->size = dcomm_comm_size(comm);
    RANKS_OK(dcomm_moe_create(comm, &t->opts, &t->m));
}

static inline void moe_route(moe_case *t)
{
    t->tokens = moe_tokens_of(t, t->rank);
    for (size_t token = 0; token < t->tokens; token++) {
        moe_choose(t, t->rank, token, t->experts + token * (size_t)t->opts.k,
                   t->weights + token * (size_t)t->opts.k);
    }
    RANKS_OK(dcomm_moe_route(t->m, t->tokens, t->experts, t->weights));
}

static inline int moe_chunks(const moe_case *t)
{
    return t->opts.chunks > 0 ? t->opts.chunks : 1;
}

/* Check that a batch holds the rows that ranks have sent, in order, times `weight` if they are
 * gradients. Only without capacity limits. */
static inline void moe_check_batch(const moe_case *t, int c, const dcomm_moe_batch *b,
                                   bool gradient)
{
    size_t at = 0, local = 0, chunks = (size_t)moe_chunks(t);
    for (size_t e = 0; e < t->opts.experts; e++) {
        if (moe_owner(t, e) != t->rank) {
            continue;
        }
        PROCS_TRUE(local < b->nexperts && b->experts[local] == (int)e && b->first[local] == at);
        local++;
        for (int r = 0; r < t->size; r++) {
            size_t tokens = moe_tokens_of(t, r);
            for (size_t token = tokens * (size_t)c / chunks;
                 token < tokens * ((size_t)c + 1) / chunks; token++) {
                int32_t experts[DCOMM_MOE_K_MAX];
                float weights[DCOMM_MOE_K_MAX];
                moe_choose(t, r, token, experts, weights);
                for (int j = 0; j < t->opts.k; j++) {
                    for (size_t i = 0; i < t->opts.hidden && experts[j] == (int32_t)e; i++) {
                        double x = moe_value(t, r, token, i, gradient);
                        moe_check(t, "batch", at,
                                  ranks_get(b->rows, at * t->opts.hidden + i, t->opts.dtype),
                                  gradient ? x * (double)weights[j] : x, 8);
                    }
                    at += experts[j] == (int32_t)e;
                }
            }
        }
    }
    PROCS_TRUE(local == b->nexperts && at == b->nrows);
    PROCS_TRUE(b->nexperts == 0 || b->first[local] == at);
}

/* Run the experts: expert e multiplies values, and gradients of its inputs, by e + 1. */
static inline void moe_work(const moe_case *t, const dcomm_moe_batch *b)
{
    for (size_t l = 0; l < b->nexperts; l++) {
        for (size_t i = b->first[l] * t->opts.hidden; i < b->first[l + 1] * t->opts.hidden; i++) {
            double x = ranks_get(b->rows, i, t->opts.dtype);
            ranks_put(b->rows, i, t->opts.dtype, x * (b->experts[l] + 1));
        }
    }
}

static inline void moe_forward(moe_case *t, const void *x, void *y, bool look)
{
    dcomm_moe_batch b;
    for (int c = 0; c < moe_chunks(t); c++) {
        RANKS_OK(dcomm_moe_dispatch_start(t->m, c, x));
    }
    for (int c = 0; c < moe_chunks(t); c++) {
        RANKS_OK(dcomm_moe_dispatch_wait(t->m, c, &b));
        if (look) {
            moe_check_batch(t, c, &b, false);
        }
        moe_work(t, &b);
        RANKS_OK(dcomm_moe_combine_start(t->m, c, b.rows));
        RANKS_OK(dcomm_moe_progress(t->m));
    }
    for (int c = 0; c < moe_chunks(t); c++) {
        RANKS_OK(dcomm_moe_combine_wait(t->m, c, y));
    }
}

static inline void moe_backward(moe_case *t, const void *dy, float *dweights, void *dx, bool look)
{
    dcomm_moe_batch b;
    for (int c = moe_chunks(t) - 1; c >= 0; c--) {
        RANKS_OK(dcomm_moe_combine_backward_start(t->m, c, dy));
    }
    for (int c = moe_chunks(t) - 1; c >= 0; c--) {
        RANKS_OK(dcomm_moe_combine_backward_wait(t->m, c, dweights, &b));
        if (look) {
            moe_check_batch(t, c, &b, true);
        }
        moe_work(t, &b);
        RANKS_OK(dcomm_moe_dispatch_backward_start(t->m, c, b.rows));
    }
    for (int c = 0; c < moe_chunks(t); c++) {
        RANKS_OK(dcomm_moe_dispatch_backward_wait(t->m, c, dx));
    }
}

/* Check y and dx: sums over a token's experts of weight * (e + 1) * x, and of dy. */
static inline void moe_check_sums(const moe_case *t, const char *what, const void *y, bool gradient)
{
    for (size_t at = 0; at < t->tokens * t->opts.hidden; at++) {
        size_t token = at / t->opts.hidden;
        double wanted = 0, size = 0;
        for (int j = 0; j < t->opts.k; j++) {
            size_t slot = token * (size_t)t->opts.k + (size_t)j;
            double x = moe_value(t, t->rank, token, at % t->opts.hidden, gradient);
            double term =
                t->experts[slot] < 0 ? 0 : (double)t->weights[slot] * (t->experts[slot] + 1) * x;
            wanted += term;
            size += fabs(term);
        }
        moe_check(t, what, at, ranks_get(y, at, t->opts.dtype), wanted, size);
    }
}

static inline void moe_check_dweights(const moe_case *t, const float *dweights)
{
    for (size_t slot = 0; slot < t->tokens * (size_t)t->opts.k; slot++) {
        size_t token = slot / (size_t)t->opts.k;
        double wanted = 0, size = 0;
        for (size_t i = 0; i < t->opts.hidden && t->experts[slot] >= 0; i++) {
            double term = moe_value(t, t->rank, token, i, false) *
                          moe_value(t, t->rank, token, i, true) * (t->experts[slot] + 1);
            wanted += term;
            size += fabs(term);
        }
        moe_check(t, "dweights", slot, (double)dweights[slot], wanted, size);
    }
}

/* Run a step forth and back, and check all of it. */
static inline void moe_step(moe_case *t)
{
    ranks_buffer x = ranks_buffer_make(MOE_TOKENS * MOE_HIDDEN * 4, 0);
    ranks_buffer y = ranks_buffer_make(MOE_TOKENS * MOE_HIDDEN * 4, 0);
    float dweights[MOE_TOKENS * DCOMM_MOE_K_MAX];
    moe_route(t);
    moe_fill(t, x.at, false);
    moe_forward(t, x.at, y.at, true);
    moe_check_sums(t, "y", y.at, false);
    moe_fill(t, x.at, true);
    moe_backward(t, x.at, dweights, y.at, true);
    moe_check_sums(t, "dx", y.at, true);
    moe_check_dweights(t, dweights);
    ranks_buffer_free(&x, "x");
    ranks_buffer_free(&y, "y");
}

#endif
