/* moe.h - mixture of experts across ranks. Send token rows to the experts that a router has
 * chosen, bring back the experts' outputs, and add them up.
 *
 *     dcomm_moe_create(comm, &opts, &m);                        once per layer
 *     for each step:
 *         dcomm_moe_route(m, tokens, experts, weights);         which token goes to which expert
 *         for each chunk c: dcomm_moe_dispatch_start(m, c, x);
 *         for each chunk c: dcomm_moe_dispatch_wait(m, c, &batch);
 *                           out = the experts' outputs for batch.rows, in the same places
 *                           dcomm_moe_combine_start(m, c, out);
 *         for each chunk c: dcomm_moe_combine_wait(m, c, y);    y[t] = sum over j of w[t][j] out
 *     dcomm_moe_destroy(&m);
 *
 * Backward uses the same routing. combine_backward brings the gradients of y to the experts and
 * computes the gradients of the weights. dispatch_backward brings back the gradients of the
 * experts' inputs.
 *
 * All ranks make the same calls in the same order, with the same chunks. Tokens, experts and
 * weights may differ by rank. Chunk c of a rank holds its tokens from c * tokens / chunks to (c +
 * 1) * tokens / chunks. While experts work on one chunk, the next one travels. A row is `hidden`
 * elements. Rows lie without gaps in host memory. One thread at a time may call. A progress thread
 * of the context, any wait, or dcomm_moe_progress makes progress.
 *
 * The object owns its buffers and keeps them from step to step: a step allocates only if it needs
 * more memory than any step before. Sums are in f32, in an order that depends only on the routing
 * and the form. Rows of 16 bits are rounded once, when they are stored. In the flat form, the bits
 * of y do not depend on the placement of experts on ranks.
 *
 * An error on one rank, such as an expert that does not exist, makes the call fail on all ranks.
 * The error sentence names rank and token. After an error of dcomm_moe_route the object can be
 * used again. After any other error it cannot, but the communicator that it was created from still
 * works.
 *
 * docs/moe.md has a program to start from, costs and measurements. */
#ifndef DCOMM_MOE_H
#define DCOMM_MOE_H

#include "coll.h"

#ifdef __cplusplus
extern "C" {
#endif

#define DCOMM_MOE_K_MAX 8 /* most experts that one token can have */

/* The exchanges of one layer of experts. */
typedef struct dcomm_moe dcomm_moe;

/* Policies for a token whose expert has no room. */
typedef enum dcomm_moe_policy {
    DCOMM_MOE_DROP = 0,   /* drop the pair: this expert adds nothing to the token's sum */
    DCOMM_MOE_REROUTE = 1 /* send the token to another expert that has room, with the same weight;
                             drop the pair if the token goes to all of these already */
} dcomm_moe_policy;

/* Forms of the exchange: the ways in which rows travel. */
typedef enum dcomm_moe_form {
    DCOMM_MOE_AUTO = 0, /* for each routing, the form that is cheaper by the communicator's
                           tuning */
    DCOMM_MOE_FLAT = 1, /* send one row for each expert of a token, directly to the expert's
                           rank */
    DCOMM_MOE_HIER = 2  /* send one row for each host that has an expert of the token, to one rank
                           there, which distributes it on the host; sums come back the same way.
                           Needs several hosts, one of them with several ranks */
} dcomm_moe_form;

/* All zero means the defaults, except experts, hidden and k. Must be the same on every rank. */
typedef struct dcomm_moe_opts {
    /* ---- the layer ---- */

    size_t experts;    /* number of experts on all ranks, at least 1 */
    size_t hidden;     /* number of elements of a row, at least 1 */
    int k;             /* number of experts of a token, 1 to DCOMM_MOE_K_MAX */
    dcomm_dtype dtype; /* dtype of rows: DCOMM_F32, DCOMM_F16 or DCOMM_BF16; there is no default */
    const int *owner;  /* [experts] rank of each expert; copied. A rank may have no expert
                          (default: evenly, in order: expert e is on rank e * size / experts) */
    /* An expert takes at most this many times its even share, rounded up. The even share is tokens
     * * k / experts, with the tokens of all ranks. The order of rank, then token, then place among
     * the token's k decides which pairs it takes (default: 0, no limit). */
    double capacity;
    dcomm_moe_policy policy; /* policy beyond the capacity (default: DCOMM_MOE_DROP) */

    /* ---- the exchanges ---- */

    int chunks;          /* number of parts of a step's tokens that travel separately (default:
                            1) */
    dcomm_moe_form form; /* (default: DCOMM_MOE_AUTO) */
    const char *algo;    /* algorithm of all-to-all-v: "linear", "pairwise", "bruck", "hier";
                            copied (default: NULL, "auto": for each exchange the cheapest one for
                            the bytes that the busiest rank sends or receives) */

    /* ---- lossy compression ---- */

    /* Spec of a codec for dispatched rows, only with dtype DCOMM_F32. All its wires must have one
     * length: "bf16", "fp8", "qsgd:bits=8". Experts get the decoded rows; outputs and gradients
     * are exact (default: NULL, exact). */
    const char *codec;
    uint64_t codec_seed; /* seed of its random numbers (default: 0) */

    /* ---- time and memory ---- */

    double timeout_s; /* seconds for each exchange (default: the communicator's) */
    bool registered;  /* allocate buffers by dcomm_mem_alloc: ranks of a host read them faster, but
                         they take shared memory. If there is not enough, buffers take ordinary
                         memory (default: ordinary memory) */
} dcomm_moe_opts;

/* Create an object; collective. opts and `comm` are not needed afterwards.
 * Errors, on all ranks: DCOMM_ERR_INVALID (a bad option on some rank), DCOMM_ERR_MISMATCH (options
 * differ: the sentence names the first that does), DCOMM_ERR_UNSUPPORTED (DCOMM_MOE_HIER on hosts
 * where it equals flat; no such algorithm; a codec that does not fit), DCOMM_ERR_NO_MEMORY. The
 * other ranks are not told if comm, opts or m_p is NULL. */
DCOMM_API DCOMM_CHECKED dcomm_status dcomm_moe_create(dcomm_comm *comm, const dcomm_moe_opts *opts,
                                                      dcomm_moe **m_p);
/* Destroy an object and set *m_p to NULL. Its batches are freed. Exchanges under way fail on all
 * ranks. */
DCOMM_API dcomm_status dcomm_moe_destroy(dcomm_moe **m_p);

/* ---- a step ---- */

/* Route the tokens of a step; collective. Token t of this rank goes to experts[t * k + j] with
 * weights[t * k + j], for j < k; expert -1 means none. Both arrays are copied. weights NULL: all
 * weights are 1. tokens may be 0 and may differ by rank. Ranks exchange the number of rows that
 * each expert gets of each chunk: 4 * experts * chunks * size bytes to every rank, twice if
 * opts.capacity is set. The call ends the step before, so all chunks of that step must have been
 * waited for.
 * Errors, on all ranks: DCOMM_ERR_INVALID (an expert that does not exist, for which the sentence
 * names rank, token and expert; experts is NULL; a chunk of the step before is under way),
 * DCOMM_ERR_UNSUPPORTED (experts or weights lie in device memory), those of all-gather. */
DCOMM_API DCOMM_CHECKED dcomm_status dcomm_moe_route(dcomm_moe *m, size_t tokens,
                                                     const int32_t *experts, const float *weights);

/* The rows of a chunk for the experts of this rank. Rows first[i] to first[i + 1] - 1 are for
 * expert experts[i]: first the rows from rank 0, in the order of its tokens, then the rows from
 * rank 1, and so on. */
typedef struct dcomm_moe_batch {
    void *rows;      /* [nrows * hidden]; the object owns them, and the caller may overwrite them.
                        NULL if nrows is 0 */
    size_t nrows;    /* number of rows */
    size_t nexperts; /* number of experts of this rank */
    const int *experts;  /* [nexperts] numbers of these experts, ascending */
    const size_t *first; /* [nexperts + 1] first row of each expert, then nrows */
} dcomm_moe_batch;

/* Send the rows of chunk c. x has the rows of all tokens, [tokens * hidden]. It is read before the
 * call returns.
 * Errors of this call and of all below: DCOMM_ERR_INVALID (no such chunk, a wrong order of calls,
 * NULL), DCOMM_ERR_UNSUPPORTED (an argument lies in device memory), DCOMM_ERR_ABORTED (an error on
 * another rank; the sentence says what and where), those of all-to-all-v. */
DCOMM_API DCOMM_CHECKED dcomm_status dcomm_moe_dispatch_start(dcomm_moe *m, int c, const void *x);
/* Wait for the rows of chunk c. batch->rows is valid until the next dcomm_moe_dispatch_start of
 * this chunk. The rest of *batch is valid until the next dcomm_moe_dispatch_wait. */
DCOMM_API DCOMM_CHECKED dcomm_status dcomm_moe_dispatch_wait(dcomm_moe *m, int c,
                                                             dcomm_moe_batch *batch);

/* Send back the experts' outputs of chunk c. Row i of `rows` is the output for row i of the batch.
 * rows may be the batch's own memory. rows is in use until dcomm_moe_combine_wait. */
DCOMM_API DCOMM_CHECKED dcomm_status dcomm_moe_combine_start(dcomm_moe *m, int c, const void *rows);
/* Wait for the outputs of chunk c, and write their weighted sums for the chunk's tokens into y. y
 * has room for all tokens, [tokens * hidden]. A token without experts gets zeros. */
DCOMM_API DCOMM_CHECKED dcomm_status dcomm_moe_combine_wait(dcomm_moe *m, int c, void *y);

/* Send the gradients of y of chunk c. dy has the rows of all tokens. It is read before the call
 * returns. The call needs the outputs that combine brought. So call it after
 * dcomm_moe_combine_wait of this chunk, and before dcomm_moe_dispatch_backward_start of this
 * chunk. */
DCOMM_API DCOMM_CHECKED dcomm_status dcomm_moe_combine_backward_start(dcomm_moe *m, int c,
                                                                      const void *dy);
/* Wait for the gradients of the experts' outputs, which are weights times dy. *batch has memory of
 * its own, valid until the next dcomm_moe_combine_backward_start of this chunk. Write dweights[t *
 * k + j] for the chunk's tokens: the scalar product of dy and that expert's output, 0 without an
 * expert. dweights may be NULL. */
DCOMM_API DCOMM_CHECKED dcomm_status dcomm_moe_combine_backward_wait(dcomm_moe *m, int c,
                                                                     float *dweights,
                                                                     dcomm_moe_batch *batch);

/* Send back the gradients of the experts' inputs of chunk c. Row i of `rows` is the gradient for
 * row i of the batch. rows is in use until dcomm_moe_dispatch_backward_wait. */
DCOMM_API DCOMM_CHECKED dcomm_status dcomm_moe_dispatch_backward_start(dcomm_moe *m, int c,
                                                                       const void *rows);
/* Wait for the gradients of chunk c, and write dx for the chunk's tokens. It is, for each token,
 * the sum over its experts. dx has room for all tokens. */
DCOMM_API DCOMM_CHECKED dcomm_status dcomm_moe_dispatch_backward_wait(dcomm_moe *m, int c,
                                                                      void *dx);

/* Make progress without blocking. In the hierarchical form, only calls on this object start a
 * chunk's second exchange. So call this now and then in long computations. */
DCOMM_API dcomm_status dcomm_moe_progress(dcomm_moe *m);

/* ---- statistics ---- */

/* Statistics of the last routing. Pointers are valid until the next dcomm_moe_route. */
typedef struct dcomm_moe_stats {
    size_t asked;             /* number of pairs of token and expert that the tokens of all ranks
                                 ask for */
    size_t dropped, rerouted; /* number of pairs beyond capacity, on all ranks */
    size_t own_dropped, own_rerouted; /* the same for this rank's tokens */
    size_t capacity;                  /* most rows that an expert takes; SIZE_MAX: no limit */
    const uint64_t *demand;           /* [experts] rows that all ranks ask of each expert */
    const uint64_t *load;             /* [experts] rows that each expert gets */
    double cv;                        /* coefficient of variation of load: standard deviation /
                                         mean */
    double drop_rate;                 /* dropped / asked */
    const uint64_t *rank_rows;        /* [size] rows that the experts of each rank get */
    const uint64_t *rank_bytes; /* [size] for one dispatch: the bytes that the rank sends to others
                                   or receives from others, whichever is more */
    uint64_t network_bytes;     /* for one dispatch: bytes that the busiest host sends or
                                   receives */
    int heaviest_rank;          /* the rank that gets most rows */
    int slowest_rank; /* the rank whose experts took longest in the step before: the time spent
                         outside of calls from its first dispatch_wait to its last combine_start;
                         -1: none */
    double slowest_s; /* seconds that the experts of slowest_rank took */
    double permute_s; /* seconds that this rank has spent, since the routing, on sorting dispatched
                         rows by rank and by expert */
    uint64_t permute_bytes; /* bytes of these rows; each copy counts once */
    bool hier;              /* true: this routing uses the hierarchical form */
    double flat_s, hier_s;  /* the model's seconds for a dispatch in each form; hier_s includes the
                               messages before it that describe the rows; 0: not priced */
} dcomm_moe_stats;
/* Report statistics in *stats.
 * Errors: DCOMM_ERR_INVALID (NULL). */
DCOMM_API dcomm_status dcomm_moe_get_stats(const dcomm_moe *m, dcomm_moe_stats *stats);

#ifdef __cplusplus
}
#endif
#endif
