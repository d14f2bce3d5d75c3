/* moe.h - experts on different ranks: token rows go to the experts that a router has chosen, and
 * what the experts make of them comes back and is added up.
 *
 *     dcomm_moe_create(comm, &opts, &m);                        once per layer
 *     for each step:
 *         dcomm_moe_route(m, tokens, experts, weights);         who sends what to whom
 *         for each chunk c: dcomm_moe_dispatch_start(m, c, x);
 *         for each chunk c: dcomm_moe_dispatch_wait(m, c, &batch);
 *                           out = the experts' work on batch.rows, in the same places
 *                           dcomm_moe_combine_start(m, c, out);
 *         for each chunk c: dcomm_moe_combine_wait(m, c, y);    y[t] = sum over j of w[t][j] out
 *     dcomm_moe_destroy(&m);
 *
 * and backwards, of the same routing: combine_backward brings the gradients of y to the experts and
 * makes those of the weights, dispatch_backward brings the gradients of the experts' inputs back.
 *
 * All ranks make the same calls in the same order, those of chunks included; tokens, experts and
 * weights are each rank's own. A chunk is a part of every rank's tokens, chunk c the tokens from
 * c * tokens / chunks to (c + 1) * tokens / chunks: while experts work on one chunk the next is on
 * its way. Rows are `hidden` elements without gaps, in host memory. One thread at a time calls; a
 * progress thread of the context, waiting, or dcomm_moe_progress moves what is under way.
 *
 * Buffers belong to the object and are kept from step to step: a step allocates only where it needs
 * more than any before. Sums are in f32, in an order that depends on nothing but the routing and
 * the form; rows of 16 bits are rounded once when they are stored. In the flat form y depends on
 * how experts are spread over ranks in no bit.
 *
 * An error of one rank – an expert that does not exist – is an error of the call on all ranks, and
 * the sentence names rank and token; after one of dcomm_moe_route the object can be used again.
 * After any other the object is beyond use, but not the communicator that it was made from.
 *
 * docs/moe.md has the program that one starts from, costs and figures. */
#ifndef DCOMM_MOE_H
#define DCOMM_MOE_H

#include "coll.h"

#ifdef __cplusplus
extern "C" {
#endif

#define DCOMM_MOE_K_MAX 8

typedef struct dcomm_moe dcomm_moe;

/* What becomes of a token that an expert has no room for. */
typedef enum dcomm_moe_policy {
    DCOMM_MOE_DROP = 0,   /* it goes without that expert: nothing is added to its sum */
    DCOMM_MOE_REROUTE = 1 /* it goes to another expert that has room, with the same weight; where
                             there is none that it does not have already, it is dropped */
} dcomm_moe_policy;

/* How rows travel. */
typedef enum dcomm_moe_form {
    DCOMM_MOE_AUTO = 0, /* what costs less by the communicator's tuning, for each routing anew */
    DCOMM_MOE_FLAT = 1, /* a row for each expert of a token, straight to its rank */
    DCOMM_MOE_HIER = 2  /* a row for each host that has an expert of the token, to one rank there,
                           which spreads it inside; its sums come back the same way. Needs ranks on
                           several hosts, some of them on one */
} dcomm_moe_form;

/* All zero means the defaults, but for experts, hidden and k. The same on every rank. */
typedef struct dcomm_moe_opts {
    size_t experts;    /* of all ranks, at least 1 */
    size_t hidden;     /* elements of a row, at least 1 */
    int k;             /* experts of a token, 1 to DCOMM_MOE_K_MAX */
    dcomm_dtype dtype; /* of rows: DCOMM_F32, DCOMM_F16 or DCOMM_BF16; there is no default */
    const int *owner;  /* [experts] the rank that each is on; copied. Ranks may have none (default:
                          in order and evenly: expert e is on rank e * size / experts) */
    double capacity;   /* an expert takes at most this many times its even share of what tokens ask
                          for, rounded up: tokens * k / experts over all ranks. First come, first
                          served, by rank, then token, then place among its k (default: 0, no
                          limit) */
    dcomm_moe_policy policy; /* beyond capacity (default: DCOMM_MOE_DROP) */
    int chunks;              /* (default: 1) */
    dcomm_moe_form form;     /* (default: DCOMM_MOE_AUTO) */
    const char *algo;        /* of the exchanges between all ranks, one of all-to-all-v's: "linear",
                                "pairwise", "bruck", "hier"; copied (default: NULL, "auto": the cheapest by
                                what the busiest rank sends or gets, for each exchange anew) */
    /* Spec of a codec for rows that are dispatched, dtype DCOMM_F32 only: "bf16", "fp8",
     * "qsgd:bits=8"; one whose wires all have one length. Experts get the decoded rows; what comes
     * back, and gradients, are exact (default: NULL, exact) */
    const char *codec;
    uint64_t codec_seed; /* of its random numbers */
    double timeout_s;    /* of each exchange (default: the communicator's) */
    bool registered;     /* buffers are from dcomm_mem_alloc, which ranks of a host read faster and
                            which takes shared memory; ordinary memory where there is not enough
                            (default: ordinary) */
} dcomm_moe_opts;

/* Make one; collective. opts is not needed afterwards, nor is `comm`.
 * Errors, on all ranks: DCOMM_ERR_INVALID (an option of some rank), DCOMM_ERR_MISMATCH (options
 * that differ: the sentence names the first), DCOMM_ERR_UNSUPPORTED (DCOMM_MOE_HIER on hosts where
 * it is nothing else than flat; no such algorithm; a codec that does not fit), DCOMM_ERR_NO_MEMORY.
 * Only where comm, opts or m_p is NULL do the other ranks not know. */
DCOMM_API DCOMM_CHECKED dcomm_status dcomm_moe_create(dcomm_comm *comm, const dcomm_moe_opts *opts,
                                                      dcomm_moe **m_p);
/* Destroy it and set *m_p to NULL; batches are gone. What is under way fails on all ranks. */
DCOMM_API dcomm_status dcomm_moe_destroy(dcomm_moe **m_p);

/* ---- a step ---- */

/* Where the tokens of this step go: token t of this rank to experts[t * k + j] with
 * weights[t * k + j], j < k; -1 is no expert. Both are copied; weights NULL: all are 1. tokens may
 * be 0 and may differ by rank. All ranks tell each other how many rows each expert gets of each
 * chunk, 4 * experts * chunks * size bytes to every rank, twice where opts.capacity is set.
 * Ends the step before, all of whose chunks must have been waited for.
 * Errors, on all ranks: DCOMM_ERR_INVALID (an expert that does not exist: the sentence names rank,
 * token and expert; experts is NULL; a chunk of the step before is under way),
 * DCOMM_ERR_UNSUPPORTED (experts or weights lie in device memory), those of all-gather. */
DCOMM_API DCOMM_CHECKED dcomm_status dcomm_moe_route(dcomm_moe *m, size_t tokens,
                                                     const int32_t *experts, const float *weights);

/* A chunk's rows as the experts of this rank see them. Rows of expert experts[i] are first[i] to
 * first[i + 1] - 1: those of rank 0 first, in the order of its tokens, then rank 1's. */
typedef struct dcomm_moe_batch {
    void *rows; /* [nrows * hidden], the object's; may be overwritten by the caller. NULL
                   where nrows is 0 */
    size_t nrows;
    size_t nexperts;     /* of this rank */
    const int *experts;  /* [nexperts] their numbers, ascending */
    const size_t *first; /* [nexperts + 1] */
} dcomm_moe_batch;

/* Send the rows of chunk c: x has all tokens, [tokens * hidden], and is read before this returns.
 * Errors of this and all below: DCOMM_ERR_INVALID (no such chunk, not the time for it, NULL),
 * DCOMM_ERR_UNSUPPORTED (what is given lies in device memory), DCOMM_ERR_ABORTED (the same on
 * another rank; the sentence says what and where), those of all-to-all-v. */
DCOMM_API DCOMM_CHECKED dcomm_status dcomm_moe_dispatch_start(dcomm_moe *m, int c, const void *x);
/* Wait for the rows of chunk c. batch->rows stay until the next dcomm_moe_dispatch_start of this
 * chunk; the rest of *batch until the next dcomm_moe_dispatch_wait. */
DCOMM_API DCOMM_CHECKED dcomm_status dcomm_moe_dispatch_wait(dcomm_moe *m, int c,
                                                             dcomm_moe_batch *batch);

/* Send back what the experts have made of chunk c: rows, in the places of the batch; the batch's
 * own memory is good. In use until dcomm_moe_combine_wait. */
DCOMM_API DCOMM_CHECKED dcomm_status dcomm_moe_combine_start(dcomm_moe *m, int c, const void *rows);
/* Wait for them, and write y of the chunk's tokens: y has all tokens, [tokens * hidden]. Of a token
 * without experts it is zero. */
DCOMM_API DCOMM_CHECKED dcomm_status dcomm_moe_combine_wait(dcomm_moe *m, int c, void *y);

/* Send gradients of y of chunk c: dy has all tokens and is read before this returns. What combine
 * brought must still be here: not before dcomm_moe_combine_wait of the chunk, not after
 * dcomm_moe_dispatch_backward_start of it. */
DCOMM_API DCOMM_CHECKED dcomm_status dcomm_moe_combine_backward_start(dcomm_moe *m, int c,
                                                                      const void *dy);
/* Wait for the gradients of the experts' outputs, weights times dy, as a batch with memory of its
 * own, which stays until the next dcomm_moe_combine_backward_start of this chunk; and write
 * dweights[t * k + j] of the chunk's tokens, the scalar product of dy and what came back from that
 * expert, 0 where there was none. dweights may be NULL. */
DCOMM_API DCOMM_CHECKED dcomm_status dcomm_moe_combine_backward_wait(dcomm_moe *m, int c,
                                                                     float *dweights,
                                                                     dcomm_moe_batch *batch);

/* Send back the gradients of the experts' inputs, in the places of the batch; in use until the
 * wait, which writes dx of the chunk's tokens: the sum over the experts of a token. */
DCOMM_API DCOMM_CHECKED dcomm_status dcomm_moe_dispatch_backward_start(dcomm_moe *m, int c,
                                                                       const void *rows);
DCOMM_API DCOMM_CHECKED dcomm_status dcomm_moe_dispatch_backward_wait(dcomm_moe *m, int c,
                                                                      void *dx);

/* Move what is under way, without blocking. In the hierarchical form a chunk's second exchange
 * begins only in a call of this object, so call this now and then in long computations. */
DCOMM_API dcomm_status dcomm_moe_progress(dcomm_moe *m);

/* ---- what there is, and how it went ---- */

/* Of the last routing. Pointers are the object's, until the next dcomm_moe_route. */
typedef struct dcomm_moe_stats {
    size_t asked;             /* pairs of token and expert that tokens of all ranks asked for */
    size_t dropped, rerouted; /* of them, beyond capacity */
    size_t own_dropped, own_rerouted; /* of this rank's tokens */
    size_t capacity;                  /* rows that an expert takes; SIZE_MAX: any number */
    const uint64_t *demand;           /* [experts] rows asked for, of all ranks ... */
    const uint64_t *load;             /* [experts] ... and what it gets */
    double cv;                        /* coefficient of variation of load: deviation over mean */
    double drop_rate;                 /* dropped / asked */
    const uint64_t *rank_rows;        /* [size] rows that the experts of each rank get */
    const uint64_t *rank_bytes; /* [size] of one dispatch: the larger of what the rank sends to and
                                   gets from others */
    uint64_t network_bytes;     /* of one dispatch: what the busiest host sends or gets */
    int heaviest_rank;          /* the one with most rows */
    int slowest_rank; /* whose experts took longest in the step before (time between the calls from
                         its first dispatch_wait to its last combine_start); -1: there was none */
    double slowest_s;
    double permute_s;       /* what this rank has spent since the routing on bringing rows that are
                               dispatched into the order of ranks, and then of experts, ... */
    uint64_t permute_bytes; /* ... and the bytes of those rows, each copy counted once */
    bool hier;              /* the form that this routing takes */
    double flat_s, hier_s;  /* what the model says a dispatch takes, hier_s with what gates are told
                               before; 0: not priced */
} dcomm_moe_stats;
DCOMM_API dcomm_status dcomm_moe_get_stats(const dcomm_moe *m, dcomm_moe_stats *stats);

#ifdef __cplusplus
}
#endif
#endif
