/* types.h - a parameter server: its workers' side, its servers' side, and its messages.
 *
 * Messages are of type SERVICE; `slot` says which. A worker numbers its messages to each server
 * (seq), and the server handles them in this order, although long ones may arrive late:
 *   PUSH    rows a to a + b - 1 of parameter `tag`, or b rows that are listed (stage = 1, a = 0);
 *           payload = the list, ascending, and the rows, or their wire if there is a codec
 *   PULL    the same rows; payload = the list
 *   CLOCK   the worker has ended a clocks
 *   LEAVE   the worker has left
 * A server's:
 *   VALUES  answers PULL `seq`; a clocks have ended       payload = the rows
 *   ACK     it has handled the first `a` messages
 *   WAITS   PULL `seq` waits for rank a, which has ended b clocks
 *   DROPPED it does not count this worker any more; payload = a sentence */
#ifndef DCOMMI_PS_TYPES_H
#define DCOMMI_PS_TYPES_H

#include "../comm/alike.h"
#include "clock.h"
#include "update.h"

enum dcommi_ps_kind {
    DCOMMI_PS_PUSH = 1,
    DCOMMI_PS_PULL,
    DCOMMI_PS_CLOCK,
    DCOMMI_PS_LEAVE,
    DCOMMI_PS_VALUES,
    DCOMMI_PS_ACK,
    DCOMMI_PS_WAITS,
    DCOMMI_PS_DROPPED
};

#define DCOMMI_PS_WINDOW 64    /* messages to a server that it has not handled yet, at most */
#define DCOMMI_PS_ACK_EVERY 16 /* messages that a server handles before it says so */
#define DCOMMI_PS_TAUS (16 * DCOMM_PS_TAUS)
#define DCOMMI_PS_WAITS_S 0.5 /* seconds between reports of the worker that a pull waits for */
/* Bytes of values under way to workers: further pulls wait, unless none is. */
#define DCOMMI_PS_VALUE_BYTES ((size_t)256 << 20)

/* ---- the worker's side ---- */

/* A push or a pull of the caller's: its request, and what is left of it. */
typedef struct dcommi_ps_call {
    dcommi_run *run;
    int left; /* pieces */
    dcomm_status status;
    char why[DCOMMI_TEXT_MAX];
    double began, until;
    bool pulls;
    size_t *place; /* in the caller's memory, of listed rows by number; NULL: a range */
} dcommi_ps_call;

/* A message to a server. */
typedef struct dcommi_ps_piece {
    dcommi_op op;    /* first: of its send */
    dcommi_op fetch; /* of the values */
    struct dcommi_ps_piece *next;
    dcomm_ps *ps;
    dcommi_ps_call *call; /* NULL: nobody waits for it */
    int server;
    dcommi_header header;
    const void *data; /* payload: `packed`, or the caller's */
    size_t len;
    void *packed;
    uint8_t *out;  /* where the first row is or goes; with a list: the caller's memory */
    size_t *place; /* of the rows; NULL: one behind another */
    size_t bytes;  /* of the values; PULL: as in the answer */
    void *fetched; /* values of a list, or of another type, before they are put in place */
    bool sending, fetching;
    bool waits;  /* for values */
    int awaited; /* the rank that the server waits for; -1: not told */
    uint64_t awaited_clock;
} dcommi_ps_piece;

/* A server, as a worker sees it. */
typedef struct dcommi_ps_to {
    int rank;
    uint64_t sent, acked;     /* messages */
    dcommi_ps_piece *queue;   /* to be sent */
    dcommi_ps_piece *pulling; /* PULLs that have been sent and not been answered */
    bool lost;
    char why[DCOMMI_TEXT_MAX];
} dcommi_ps_to;

/* ---- the server's side ---- */

/* A message of a worker. */
typedef struct dcommi_ps_job {
    dcommi_op op; /* first: of its fetch */
    struct dcommi_ps_job *next;
    dcomm_ps *ps;
    int from;
    dcommi_header header;
    dcommi_transport *transport;
    void *desc; /* of a payload that is still at the sender */
    size_t len;
    uint8_t *data;
    bool fetching, dropped;
    bool whole;       /* PUSH: its worker has ended the clock that it was pushed in */
    uint64_t pushes;  /* PUSH: that it is the sum of */
    uint64_t added;   /* PUSH: rows that the sum of the clock has */
    double next_told; /* PULL: when the worker is told whom it waits for */
} dcommi_ps_job;

/* BSP: a worker's pushes to a parameter that count in the open clock, in their order. */
typedef struct dcommi_ps_stash {
    dcommi_ps_job *first, *last;
    size_t bytes;
} dcommi_ps_stash;

/* A worker, as a server sees it. */
typedef struct dcommi_ps_from {
    dcommi_ps_job *queue; /* by number */
    uint64_t next, acked; /* messages handled; that it has been told of */
    size_t queued;
    dcommi_ps_stash *stash; /* [nparams] NULL: not BSP */
    uint64_t *seen, *own;   /* [nparams] all updates at its last pull, and its own since */
} dcommi_ps_from;

/* ---- both ---- */

typedef struct dcommi_ps_param {
    char *name;
    uint64_t rows, cols;
    dcomm_dtype dtype;        /* of the caller's memory, and of pushes without a codec */
    dcomm_dtype pulled;       /* of answers to pulls */
    const dcomm_codec *codec; /* of pushes; NULL: they are exact */
    float *residual;          /* a worker's, of all rows: what the codec has dropped */
    uint64_t encodings;       /* pushes that this worker has encoded */
} dcommi_ps_param;

struct dcomm_ps {
    dcomm_comm *comm; /* its own, which it has a reference to */
    _Atomic int refs; /* of its creator and of ops under way */
    bool closed;      /* it is destroyed, but for ops under way */
    int rank, size;
    dcomm_ps_opts opts;
    size_t nparams;
    dcommi_ps_param *params;
    bool works, left;   /* this rank is a worker; it has left */
    dcomm_codec *codec; /* of opts.codec; NULL: none */
    void *room;         /* to encode in */
    size_t room_bytes;

    /* With opts.replicas: another parameter server of the same rows, each by the next server (shift
     * 1). Its twin is the one that the caller has. NULL: there is none. */
    dcomm_ps *twin;
    int shift;

    int nservers;
    dcommi_ps_to *to;  /* [nservers] */
    uint64_t steps;    /* that it has ended */
    uint64_t at_clock; /* clocks that it has ended, or that have ended without it */

    int server;              /* this rank's number among the servers; -1: it holds no rows */
    dcommi_ps_table *tables; /* [nparams] */
    uint64_t *updates;       /* [nparams] */
    float *sum;              /* BSP: of a table's gradients */
    uint8_t *touched;        /* BSP: rows that have any */
    int workers;             /* at the beginning */
    dcommi_ps_clock clock;
    dcommi_ps_from *from;  /* [size] */
    dcommi_ps_job *pulls;  /* that wait for others' clocks, or for room */
    size_t value_bytes;    /* under way */
    double heard_at;       /* when a worker's last message came */
    uint64_t *last_counts; /* [size] clocks that each worker was the last to end */

    uint64_t taus[DCOMMI_PS_TAUS]; /* pushes by their delay, in sixteenths */
    dcomm_ps_stats stats;
};

/* ---- rows and servers ---- */

/* Return the first of a server's rows, of all rows and servers; `rows` if there is no such server.
 */
static uint64_t dcommi_ps_share(uint64_t rows, int servers, int server)
{
    const uint64_t n = (uint64_t)servers, k = (uint64_t)server, extra = rows % n;
    return rows / n * k + (k < extra ? k : extra);
}

static uint64_t dcommi_ps_first(const dcomm_ps *ps, size_t i, int server)
{
    return dcommi_ps_share(ps->params[i].rows, ps->nservers, server);
}

/* Return the server that holds a row. */
static int dcommi_ps_holder(const dcomm_ps *ps, size_t i, uint64_t row)
{
    const uint64_t rows = ps->params[i].rows, n = (uint64_t)ps->nservers;
    const uint64_t each = rows / n, extra = rows % n, longer = extra * (each + 1);
    return (int)(row < longer ? row / (each + 1) : extra + (row - longer) / each);
}

/* Return the bytes of a row in the caller's memory. */
static size_t dcommi_ps_row_bytes(const dcomm_ps *ps, size_t i)
{
    return (size_t)ps->params[i].cols * dcomm_dtype_size(ps->params[i].dtype);
}

/* Return the bytes of a row in an answer to a pull. */
static size_t dcommi_ps_answer_row(const dcomm_ps *ps, size_t i)
{
    return (size_t)ps->params[i].cols * dcomm_dtype_size(ps->params[i].pulled);
}

/* Return the rank of a server; of a replica, that of the next server. */
static int dcommi_ps_server_rank(const dcomm_ps *ps, int k)
{
    return (int)((int64_t)((k + ps->shift) % ps->nservers) * ps->size / ps->nservers);
}

/* ---- ends ---- */

static void dcommi_ps_job_free(dcommi_ps_job *job)
{
    if (job->desc != NULL) {
        job->transport->call->release(job->transport, job->desc);
    }
    dcommi_free(job->data);
    dcommi_free(job);
}

static void dcommi_ps_free(dcomm_ps *ps)
{
    dcomm_comm *comm = ps->comm;
    for (size_t i = 0; ps->params != NULL && i < ps->nparams; i++) {
        dcommi_free(ps->params[i].name);
        dcommi_free(ps->params[i].residual);
    }
    for (size_t i = 0; ps->tables != NULL && i < ps->nparams; i++) {
        dcommi_ps_table *t = &ps->tables[i];
        dcommi_free(t->value);
        for (int s = 0; s < DCOMM_PS_STATES; s++) {
            dcommi_free(t->state[s]);
        }
        dcommi_free(t->updates);
    }
    for (int r = 0; ps->from != NULL && r < ps->size; r++) {
        dcommi_free(ps->from[r].seen);
        dcommi_free(ps->from[r].stash);
    }
    void *all[] = {ps->params,  ps->to,       ps->tables, ps->updates,     ps->sum,
                   ps->touched, ps->clock.of, ps->from,   ps->last_counts, ps->room};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        dcommi_free(all[i]);
    }
    dcomm_codec_destroy(&ps->codec);
    dcommi_free(ps);
    dcommi_comm_unref(comm);
}

/* Count an op that the transport has taken, and one that has come back. With the token. */
static void dcommi_ps_op_begins(dcomm_ps *ps)
{
    atomic_fetch_add(&ps->refs, 1);
    ps->comm->in_transport++;
}

static void dcommi_ps_unref(dcomm_ps *ps)
{
    if (atomic_fetch_sub(&ps->refs, 1) == 1) {
        dcommi_ps_free(ps);
    }
}

static void dcommi_ps_op_ends(dcomm_ps *ps)
{
    ps->comm->in_transport--;
    dcommi_ps_unref(ps);
}

#endif
