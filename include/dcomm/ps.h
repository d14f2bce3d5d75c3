/* ps.h - a parameter server: some ranks hold parameters, workers push gradients and pull values.
 *
 *     dcomm_ps_create(comm, params, n, &opts, &ps);          once
 *     for each step of a worker:
 *         dcomm_ps_pull(ps, i, 0, rows, w, NULL);            values, as new as opts.staleness asks
 *         dcomm_ps_push(ps, i, 0, rows, grad, NULL);         a gradient for each parameter
 *         dcomm_ps_clock(ps);                                this worker's step is over
 *     dcomm_ps_destroy(&ps);                                 a server serves until all have left
 *
 * A parameter is a table of rows. Its rows are divided evenly among the servers, in order. Pushes
 * and pulls name rows by a range, or by a list, as embeddings need: only these rows travel.
 *
 * Consistency. A worker's clock is the number of its dcomm_ps_clock calls. With staleness s, a pull
 * at clock c sees all pushes of all living workers at clocks below c - s, and this worker's own.
 * - s = 0: bulk-synchronous (BSP). Each worker's pushes of a clock are added up, the sums are
 *   averaged in rank order, and the average updates the rows once. All workers see the same values.
 * - s > 0: stale-synchronous (SSP). Each push updates the rows at once.
 * - DCOMM_PS_ASYNC: the same, and no pull ever waits.
 *
 * dcomm_ps_clock never waits. A pull waits at the server.
 *
 * Failures. A worker's death is an error of the communicator `comm`, but not of the parameter
 * server, which drops the worker and goes on. What it has pushed in a clock that it did not end is
 * dropped. A server's death is an error, DCOMM_ERR_PEER, of each call that needs its rows; calls
 * that do not go on. With opts.replicas its replica takes over.
 *
 * One thread of a rank at a time may call. Buffers are host memory. The parameter server has
 * message kinds of its own: the communicator that it was created from can be used beside it, or
 * destroyed. */
#ifndef DCOMM_PS_H
#define DCOMM_PS_H

#include "coll.h"

#ifdef __cplusplus
extern "C" {
#endif

/* A parameter server, as one of its ranks sees it. */
typedef struct dcomm_ps dcomm_ps;

/* One parameter. Must be the same on every rank, except init. */
typedef struct dcomm_ps_param {
    const char *name;  /* for errors; copied (default: "param" and its number) */
    size_t rows, cols; /* rows, and elements of a row; both at least 1 */
    /* Of values and gradients, here and on the wire: DCOMM_F32, DCOMM_F16 or DCOMM_BF16. A server
     * keeps f32 for all, in which small steps count, and rounds what it answers to nearest even;
     * beyond 65504 f16 is infinite. There is no default. */
    dcomm_dtype dtype;
    const void *init; /* [rows * cols] initial values, of which a server reads its own rows; read in
                         dcomm_ps_create (default: NULL, zeros) */
} dcomm_ps_param;

#define DCOMM_PS_ASYNC (-1) /* opts.staleness: no pull waits */

/* The rule by which a gradient changes its rows. w is a value, g a gradient that has been averaged
 * (BSP) or weighted. A row's state is touched only when the row is. */
typedef enum dcomm_ps_update {
    DCOMM_PS_SGD = 0,      /* w -= lr g */
    DCOMM_PS_MOMENTUM = 1, /* v = momentum v + g; w -= lr v */
    DCOMM_PS_ADAGRAD = 2,  /* a += g g; w -= lr g / (sqrt(a) + eps) */
    DCOMM_PS_ADAM = 3,     /* Kingma and Ba's, with bias correction by the number of the row's
                              updates */
    DCOMM_PS_ELASTIC = 4, /* g is a worker's copy of w: w += rho (g - w). Zhang's elastic averaging;
                             its alpha is rho / workers, because each copy counts for itself. Not
                             with staleness 0 */
    DCOMM_PS_CALLBACK = 5 /* opts.update_fn does it */
} dcomm_ps_update;

#define DCOMM_PS_STATES 4 /* opts.update_states, at most */

/* The rows that an update changes. */
typedef struct dcomm_ps_update_info {
    size_t i;                      /* the parameter */
    uint64_t first;                /* number of the first row */
    size_t nrows, cols;            /* rows, and elements of a row */
    float scale;                   /* factor on g: 1 with staleness 0, else weight / workers */
    float *state[DCOMM_PS_STATES]; /* opts.update_states numbers for each value of w, as w lies;
                                      zeros at the beginning; the others are NULL */
} dcomm_ps_update_info;

/* Update rows of a server's: change w by the gradient g, both [n], n = nrows * cols. It is called
 * on the rank that holds the rows, by any of its threads, one at a time for a parameter server; a
 * row once for each clock (staleness 0) or push. It must not call dcomm: calls return
 * DCOMM_ERR_INVALID. */
typedef void (*dcomm_ps_update_fn)(float *w, const float *g, size_t n,
                                   const dcomm_ps_update_info *info, void *user);

/* The weight of a push, by its delay tau: the number of the other workers' updates of this
 * parameter on this server since the pull that it rests on, divided by the number of workers. */
typedef enum dcomm_ps_weight {
    DCOMM_PS_WEIGHT_ONE = 0,     /* 1 */
    DCOMM_PS_WEIGHT_INVERSE = 1, /* 1 / (1 + tau) */
    DCOMM_PS_WEIGHT_HALVED = 2   /* 2^(-tau / opts.weight_ref) */
} dcomm_ps_weight;

/* All zero means the defaults, except lr or rho. Must be the same on every rank. */
typedef struct dcomm_ps_opts {
    int servers; /* number of servers, 1 to the number of ranks: ranks 0, size / servers, ...
                    (default: all ranks) */
    /* Servers do not work: they call dcomm_ps_serve. Some rank must be no server (default: every
     * rank is a worker, and a server's progress thread serves). */
    bool dedicated;
    int staleness; /* s, or DCOMM_PS_ASYNC (default: 0, bulk-synchronous) */

    dcomm_ps_update update; /* (default: DCOMM_PS_SGD) */
    double lr;              /* learning rate, above 0; not for DCOMM_PS_ELASTIC and _CALLBACK */
    double momentum;        /* of DCOMM_PS_MOMENTUM (default: 0) */
    double beta1, beta2;    /* of DCOMM_PS_ADAM (default: 0.9, 0.999) */
    double eps;             /* of DCOMM_PS_ADAGRAD and DCOMM_PS_ADAM (default: 1e-8) */
    double rho;             /* of DCOMM_PS_ELASTIC, above 0, at most 1 */

    dcomm_ps_weight weight; /* of a push; not with staleness 0 (default: DCOMM_PS_WEIGHT_ONE) */
    double weight_ref;      /* of DCOMM_PS_WEIGHT_HALVED, above 0 */
    double drop_tau;        /* drop a push whose tau is above this (default: 0, none) */

    /* Backup workers, with staleness 0: end a clock when so many workers have ended it, or when
     * deadline_s seconds have passed since the first of them did. Pushes that come later count in
     * the clock after. */
    int quorum;        /* (default: 0, all that are alive) */
    double deadline_s; /* seconds (default: 0, no limit) */

    /* Type on the wire of pulled values of f32 parameters: DCOMM_F16 and DCOMM_BF16 halve a pull's
     * bytes. They are rounded as those of such a type are, also for the server's own rank, so all
     * workers see the same (default: 0, f32). */
    dcomm_dtype pull_dtype;

    /* Seconds for each pull, and for each push while it waits for its turn: 64 messages to a server
     * may be under way. A push that the transport already holds does not time out. It ends when the
     * transport gives the gradient back, or when its server is lost. And in dcomm_ps_destroy and
     * dcomm_ps_serve: seconds without any message from a worker (default: the communicator's). */
    double timeout_s;

    dcomm_ps_update_fn update_fn; /* of DCOMM_PS_CALLBACK, on every rank */
    void *update_user;            /* passed to update_fn */
    int update_states; /* of DCOMM_PS_CALLBACK: numbers that a server keeps for each value, for
                          update_fn (default: 0) */

    /* Spec of the codec that encodes pushes (compress.h); copied. Each worker keeps what the codec
     * drops, by parameter and row, and adds it to the next push of the row (error feedback, see
     * feedback.h's classic variant). So nothing is lost, but it comes later. Parameters of fewer
     * than 2,048 elements stay exact. Not for DCOMM_PS_ELASTIC; not powersgd, which needs the same
     * tensor in each step (default: NULL or "none", exact). */
    const char *codec;
    uint64_t codec_seed; /* seed of the codec's random numbers (default: 0) */

    /* 1: the next server holds each server's rows too, and takes over when that one dies. Needs two
     * servers, and with staleness 0 gives the same bits as without a death. Not with weight,
     * drop_tau, quorum or deadline_s (default: 0) */
    int replicas;
} dcomm_ps_opts;

/* Create a parameter server; collective. `comm`, params and opts are not needed afterwards.
 * Errors, on all ranks: DCOMM_ERR_INVALID (a bad parameter or option on some rank),
 * DCOMM_ERR_MISMATCH (they differ: the sentence names the first that does), DCOMM_ERR_UNSUPPORTED
 * (the dtype or the codec), DCOMM_ERR_NO_MEMORY. The other ranks are not told if comm, params, opts
 * or ps_p is NULL. */
DCOMM_API DCOMM_CHECKED dcomm_status dcomm_ps_create(dcomm_comm *comm, const dcomm_ps_param *params,
                                                     size_t nparams, const dcomm_ps_opts *opts,
                                                     dcomm_ps **ps_p);

/* Leave, free everything, and set *ps_p to NULL. A worker's requests must have been waited for. A
 * rank that holds rows first serves until every worker has left or died.
 *
 * Errors: DCOMM_ERR_TIMEOUT (no message came for timeout_s, and the sentence names the workers that
 * have not left). All is freed even so. */
DCOMM_API dcomm_status dcomm_ps_destroy(dcomm_ps **ps_p);

/* ---- workers ---- */

/* Push a gradient of rows first to first + nrows - 1 of parameter i, [nrows * cols] elements. With
 * a NULL request_p, return when the gradient may be overwritten; else `grad` must stay as it is
 * until the request is complete.
 *
 * Errors of this call and of all below: DCOMM_ERR_INVALID (no such parameter or row, a row that is
 * listed twice, NULL; this rank is no worker), DCOMM_ERR_PEER (a server of these rows is lost, or
 * has given this worker up), DCOMM_ERR_TIMEOUT (the sentence names the server and, for a pull, the
 * worker that it waits for), DCOMM_ERR_NO_MEMORY. A push that has a NaN or an infinity is
 * DCOMM_ERR_INVALID, and nothing is sent. */
DCOMM_API DCOMM_CHECKED dcomm_status dcomm_ps_push(dcomm_ps *ps, size_t i, size_t first,
                                                   size_t nrows, const void *grad,
                                                   dcomm_request **request_p);
/* The same for the rows of a list, in any order. `rows` is read before the call returns. */
DCOMM_API DCOMM_CHECKED dcomm_status dcomm_ps_push_rows(dcomm_ps *ps, size_t i,
                                                        const uint64_t *rows, size_t nrows,
                                                        const void *grad,
                                                        dcomm_request **request_p);
/* Pull rows first to first + nrows - 1 of parameter i into `out`, [nrows * cols] elements. Each
 * server's rows are of one moment. */
DCOMM_API DCOMM_CHECKED dcomm_status dcomm_ps_pull(dcomm_ps *ps, size_t i, size_t first,
                                                   size_t nrows, void *out,
                                                   dcomm_request **request_p);
/* The same for the rows of a list, in any order. `rows` is read before the call returns. */
DCOMM_API DCOMM_CHECKED dcomm_status dcomm_ps_pull_rows(dcomm_ps *ps, size_t i,
                                                        const uint64_t *rows, size_t nrows,
                                                        void *out, dcomm_request **request_p);
/* End this worker's step. */
DCOMM_API DCOMM_CHECKED dcomm_status dcomm_ps_clock(dcomm_ps *ps);

/* ---- servers ---- */

/* Serve until every worker has left or died. For servers with opts.dedicated.
 *
 * Errors: DCOMM_ERR_INVALID (this rank holds no rows), DCOMM_ERR_TIMEOUT (see dcomm_ps_destroy). */
DCOMM_API DCOMM_CHECKED dcomm_status dcomm_ps_serve(dcomm_ps *ps);

/* Change the learning rate by which this rank updates the rows that it holds, from now on. Each
 * server calls it; a rank without rows may, too. With staleness 0, a worker that calls it after
 * a pull and before it ends its clock sets the rate of that clock's update.
 *
 * Errors: DCOMM_ERR_INVALID (lr is not above 0, or the update is DCOMM_PS_ELASTIC). */
DCOMM_API DCOMM_CHECKED dcomm_status dcomm_ps_set_lr(dcomm_ps *ps, double lr);

#define DCOMM_PS_TAUS 64 /* delays that the histogram tells apart; the last has longer ones */

/* The work of a rank so far. */
typedef struct dcomm_ps_stats {
    /* as a worker */
    uint64_t clock;                      /* steps that it has ended */
    uint64_t pushes, pulls;              /* calls */
    uint64_t bytes_pushed, bytes_pulled; /* elements and lists of rows, to and from other ranks */
    double wait_s;                       /* seconds from a pull's call to its completion, summed */
    /* as a server */
    uint64_t updates;            /* pushes that counted; with staleness 0: clocks that ended */
    uint64_t dropped;            /* pushes beyond opts.drop_tau, or of workers that died */
    uint64_t late;               /* pushes that came after their clock had ended */
    uint64_t tau[DCOMM_PS_TAUS]; /* pushes by their delay, rounded down; not with staleness 0 */
    double tau_p50, tau_p95, tau_p99; /* percentiles of the delay; 0 without pushes */
    int workers;                      /* that are alive and have not left */
    int last_worker;                  /* the worker that ended most clocks last; -1: none */
    uint64_t last_count;              /* how many */
} dcomm_ps_stats;
/* Report statistics in *stats.
 * Errors: DCOMM_ERR_INVALID (NULL). */
DCOMM_API dcomm_status dcomm_ps_get_stats(dcomm_ps *ps, dcomm_ps_stats *stats);

/* ---- between runs ---- */

/* Return the bytes that dcomm_ps_save writes; 0 if this rank holds no rows. */
DCOMM_API size_t dcomm_ps_save_bytes(const dcomm_ps *ps);
/* Save this server's rows, the update's state of each, and the clock, while it serves. They are of
 * one moment; with staleness 0, between two clocks. Pushes of a clock that has not ended are not
 * saved: workers push them anew. Each server saves its own image, and behind it that of a server
 * whose rows it has taken over; other ranks save nothing.
 *
 * A server that works first waits for the same workers as a pull. With staleness 0, the images are
 * of the clock that its workers have ended if they all save between the same two calls of
 * dcomm_ps_clock. Servers with opts.dedicated do not wait: workers pull from each, and a barrier on
 * a communicator of their own before and after the call keeps the next clock away.
 *
 * Errors: DCOMM_ERR_INVALID (capacity is too small, NULL), DCOMM_ERR_TIMEOUT. */
DCOMM_API DCOMM_CHECKED dcomm_status dcomm_ps_save(dcomm_ps *ps, void *to, size_t capacity);
/* Load the images that all servers of an old job saved; collective, before the first push, pull and
 * clock. That job had `nimages` servers; server k, by order of rank, saved images[k], which is
 * bytes[k] bytes long. The number of servers and of workers may be another now. The parameters'
 * number, rows and cols, and opts.update must be the same.
 *
 * A server reads only the images that have rows which it holds now: if their number is the same,
 * its own. Other images may be NULL, and the image of a server that another one took over may stand
 * behind the other's. All workers go on at the saved clock, which
 * dcomm_ps_get_stats has; with staleness above 0 or DCOMM_PS_ASYNC, at the lowest.
 *
 * Errors, on all ranks, and the parameter server is as it was: DCOMM_ERR_CORRUPT (dcomm_ps_save did
 * not write these bytes), DCOMM_ERR_INVALID (other parameters or update, an image in another
 * server's place, NULL; a rank has pushed, pulled or ended a clock), DCOMM_ERR_MISMATCH (images of
 * different clocks, with staleness 0), DCOMM_ERR_NO_MEMORY. */
DCOMM_API DCOMM_CHECKED dcomm_status dcomm_ps_load(dcomm_ps *ps, const void *const *images,
                                                   const size_t *bytes, size_t nimages);

#ifdef __cplusplus
}
#endif
#endif
