/* types.h - the types of gradient buckets. */
#ifndef DCOMMI_BUCKET_TYPES_H
#define DCOMMI_BUCKET_TYPES_H

#include "../../../bucket.h"
#include "../../../scaler.h"
#include "../../comm/api_coll.h"
#include "../../comm/loan.h"
#include "../../feedback/feedback.h"

#define DCOMMI_BKT_BYTES ((size_t)25 << 20)
#define DCOMMI_BKT_FIRST_BYTES ((size_t)1 << 20)
#define DCOMMI_BKT_HISTORY 256

enum { DCOMMI_BKT_IDLE, DCOMMI_BKT_READY, DCOMMI_BKT_UNUSED }; /* marks */

typedef struct dcommi_bkt_param {
    const char *name;
    unsigned char *grad; /* the caller's; NULL: inside the bucket */
    unsigned char *value;
    size_t count, bytes;
    dcomm_dtype dtype;
    bool aside;
    size_t place;  /* 0: in host memory; else 1 + its device in dcomm_buckets.devices */
    size_t kind;   /* in dcomm_buckets.kinds */
    size_t bucket; /* its bucket ... */
    size_t first;  /* ... and how many elements come before it there */
    _Atomic int mark;
    bool touched; /* has a gradient of a step that only accumulated */
    void *look;   /* on its device, for a scaler: workspace of kernels that look at it */
    uint32_t order;
    double ready_at;
} dcommi_bkt_param;

/* A device that gradients lie on. Its buckets take turns on a few streams. A stream that waits for
 * other ranks may hold up others on its hardware queue, even the caller's. */
enum { DCOMMI_BKT_STREAMS = 4 };
typedef struct dcommi_bkt_device {
    int number;
    void *streams[DCOMMI_BKT_STREAMS];
    unsigned char *looks; /* of all its parameters */
} dcommi_bkt_device;

/* The common properties of one bucket's parameters. */
typedef struct dcommi_bkt_kind {
    dcomm_dtype dtype;
    size_t place;
    dcomm_codec *codec; /* NULL: exact */
    bool has_feedback;
    dcomm_feedback_opts feedback;
} dcommi_bkt_kind;

typedef struct dcommi_bkt {
    size_t kind, count, bytes, nparams;
    size_t *params;        /* in the order of registration, as they lie in it */
    size_t closed_at;      /* place of its last parameter in the expected order */
    unsigned char *data;   /* the data that is summed */
    unsigned char *memory; /* its own; NULL: the gradients lie one behind another in the caller's */
    bool registered;
    const dcommi_bkt_device *device; /* whose memory it uses; NULL: the host's */
    void *stream;                    /* runs all of its own work on the device, in order */
    bool copies;                     /* some gradients are copied in and out */
    size_t *shards;        /* [size] elements of each rank, in rank order; NULL: not sharded */
    unsigned char *values; /* the parameters one behind another ... */
    unsigned char *values_memory; /* ... in this copy; NULL: in the caller's memory */
    dcomm_feedback *feedback;
    uint64_t before; /* steps of the feedback when the last step that sends began */
    double lost;     /* squares of its residuals that became zero, to be told in the next meeting */
    double alone_s;
    double *durations; /* of the last steps, a ring */
    /* of the step under way */
    _Atomic size_t pending; /* gradients that are not ready */
    dcomm_request *request;
    void *event; /* on its stream, behind the last copy */
    _Atomic bool finished;
    double ready_at, start_at, done_at;
    double filled_at; /* its gradients were there: on a device later than ready_at */
} dcommi_bkt;

/* A rank's message to all others before the first bucket of a step. */
enum {
    DCOMMI_BKT_CARD_STEP,
    DCOMMI_BKT_CARD_WEIGHT, /* as bits, like the next one */
    DCOMMI_BKT_CARD_OWN,    /* dcommi_bkt_paces.own of the step before */
    DCOMMI_BKT_CARD_WORDS
};

/* A rank's pace, as this rank knows it. */
typedef struct dcommi_bkt_pace {
    double own;      /* seconds of its own in the step that was compared last */
    uint64_t last;   /* steps in which it was the last one */
    double caused_s; /* seconds that others have waited for it alone */
    unsigned slow;   /* steps in a row in which it was slow */
    bool told;       /* that it is slow */
} dcommi_bkt_pace;

/* The paces of all ranks (bucket/pace.h). */
typedef struct dcommi_bkt_paces {
    double since;           /* when this rank ended its last step that has sent; 0: it has none */
    double waited;          /* seconds since then in dcomm_buckets_gather */
    double own;             /* of this rank in the last step that has sent; below 0: not known */
    uint64_t steps;         /* compared */
    dcommi_bkt_pace *ranks; /* [size] */
    double *sorted;         /* [size] */
    float *late;            /* [history][size] seconds behind the first rank, a ring of steps */
} dcommi_bkt_paces;

/* A rank's message to all others at the end of a step that has a scaler. */
typedef struct dcommi_bkt_sight {
    uint64_t scale, good; /* the scaler's, to be compared; scale as bits */
    uint64_t found;       /* 0: all its gradients are finite; else 1 + the place, in the order of
                           * readiness, of the first that is not */
    uint64_t param, index, value; /* that parameter, the element's index, and its bits as f64 */
} dcommi_bkt_sight;

/* Buckets as they were built from one order of the parameters. */
typedef struct dcommi_bkt_layout {
    dcommi_bkt *buckets;
    size_t n;
} dcommi_bkt_layout;

enum {
    DCOMMI_BKT_STEP,
    DCOMMI_BKT_BACKWARD,
    DCOMMI_BKT_COMM,
    DCOMMI_BKT_EXPOSED,
    DCOMMI_BKT_SPANS
};

/* The error feedback of a bucket: the step where it stands, and its number for random numbers. */
typedef struct dcommi_bkt_errors {
    uint64_t step, tensor;
} dcommi_bkt_errors;

/* The place in its run from which the ranks of a new communicator go on (bucket/join.h). After it
 * come the dcommi_bkt_errors of each bucket and the order from which the buckets were dealt (u32),
 * with room for nparams of each. */
typedef struct dcommi_bkt_front {
    uint64_t steps, sent_steps, built, nbuckets;
    uint64_t has_scaler, good, scaler_steps, scaler_skipped;
    double scale;
    dcomm_scaler_opts scaler_opts;
} dcommi_bkt_front;

/* A lost rank's state, for the next rebind. */
typedef struct dcommi_bkt_legacy {
    const unsigned char *state; /* the caller's; NULL: it is in the residuals */
    size_t bytes, rank;
} dcommi_bkt_legacy;

enum { DCOMMI_BKT_LEGACIES = 8 }; /* bucket.h names it */

/* A step kept for the trace. */
typedef struct dcommi_bkt_kept {
    uint64_t step;
    double begin_at, wait_at, end_at;
    double *ready;        /* [nparams]; 0: it had no gradient */
    double *start, *done; /* [nbuckets] */
    size_t nbuckets;
} dcommi_bkt_kept;

struct dcomm_buckets {
    dcomm_comm *comm; /* their own */
    int rank, size;
    dcomm_buckets_opts opts; /* without the caller's pointers */
    dcomm_feedback_opts feedback_opts;
    bool has_feedback, has_values;
    dcomm_codec *value_codec; /* of dcomm_buckets_gather; NULL: exact */
    char *names;              /* all of them */
    dcommi_bkt_param *params;
    size_t nparams, bytes;
    dcommi_bkt_kind *kinds;
    size_t nkinds, kinds_capacity;
    dcommi_bkt_device *devices; /* in the order in which parameters name them */
    size_t ndevices, devices_capacity;
    dcommi_bkt_layout layout;
    uint32_t *sequence;          /* [nparams] the order from which the layout was dealt */
    struct dcomm_scaler *scaler; /* NULL: none */
    int built;
    pthread_mutex_t lock; /* held to start or end buckets, and to fail */
    /* of the step under way; guarded by lock */
    _Atomic bool open;
    bool begun;   /* by dcomm_buckets_begin */
    bool closing; /* all is sent; nothing starts while records are made */
    dcomm_buckets_step step;
    size_t next; /* bucket to be started */
    _Atomic uint32_t marked;
    uint64_t *card, *cards; /* of this rank, of all */
    dcomm_request *cards_request;
    bool cards_here;
    double factor; /* weighted: on this rank's gradients */
    double begin_at, wait_at;
    dcommi_bkt_paces *paces;
    /* with a scaler (bucket/watch.h) */
    bool watched, told;
    double scale;
    uint64_t good;                /* steps in a row */
    dcommi_bkt_sight seen;        /* by this rank in this step, in host memory; at its end also on
                                   * devices */
    dcomm_cuda_sight *seen_there; /* [nparams], pinned, of those on devices; NULL: none */
    dcommi_bkt_sight *sights;     /* [size + 1] of all in the last step, then what this rank
                                   * sends */
    dcomm_request *sights_request;
    /* over steps */
    uint64_t steps, sent_steps, built_at;
    uint64_t base, base_before; /* the first step behind the last that has sent; and behind the one
                                 * before */
    /* over communicators */
    dcomm_buckets_rebind_info rebound; /* of the last meeting that has succeeded */
    int met_rank, met_size;            /* rank and number of ranks there */
    bool undone;                       /* a step, in a meeting that has failed since */
    size_t reset;                      /* its residuals that became zero, likewise */
    dcommi_bkt_legacy legacies[DCOMMI_BKT_LEGACIES];
    size_t nlegacies;
    dcommi_bkt_front joined; /* has_scaler: the other ranks have a scaler, and this one does not */
    _Atomic int failed;      /* the status, 0: none */
    char message[DCOMMI_MESSAGE_MAX];
    double *spans[DCOMMI_BKT_SPANS]; /* [history], rings */
    size_t history;
    dcommi_bkt_kept *kept; /* [trace_steps], a ring */
};

static inline dcomm_op dcommi_bkt_op(const dcomm_buckets *b)
{
    return b->opts.weighted || b->opts.predivide ? DCOMM_PREMUL_SUM
           : b->opts.sum                         ? DCOMM_SUM
                                                 : DCOMM_AVG;
}

/* Return where a parameter's gradient lies in its bucket. */
static inline unsigned char *dcommi_bkt_place(const dcomm_buckets *b, const dcommi_bkt_param *p)
{
    const dcommi_bkt *k = &b->layout.buckets[p->bucket];
    return k->data != NULL ? k->data + p->first * dcomm_dtype_size(p->dtype) : NULL;
}

#endif
