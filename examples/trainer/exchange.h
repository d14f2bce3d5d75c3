/* exchange.h - sum the gradients over all ranks, exactly or through a codec with error
 * feedback. */
#ifndef EXCHANGE_H
#define EXCHANGE_H

#include "dcomm.h"
#include "model.h"
#include "options.h"

/* A part of the gradients that one call sums. */
typedef struct exchange_part {
    size_t first, count;
    dcomm_codec *codec; /* NULL: exact */
    dcomm_feedback *feedback;
} exchange_part;

typedef struct exchange {
    dcomm_comm *comm;
    dcomm_coll_opts coll;
    exchange_part *parts;
    size_t nparts;
    size_t count; /* number of gradients; one more element behind them is always summed exactly */
    dcomm_buckets *buckets; /* used instead of parts; NULL: no buckets */
    dcomm_scaler *scaler;   /* NULL: the loss is not scaled */
    model *model;
    dcomm_dtype dtype; /* of the gradients while they are summed */
    uint16_t *narrow;  /* their sums, if that is one of 16 bits; else NULL */
    float *spoiled;    /* element that becomes infinite when tensor `spoils` is computed;
                          NULL: none */
    size_t spoils;
    bool measures;       /* with buckets: add the squares of this rank's gradients... */
    double square;       /* ...here, when they are ready */
    dcomm_status status; /* the first error of exchange_ready and exchange_pause */
    double seconds;      /* time spent in these two functions */
    dcomm_stats before;  /* statistics of the buckets' communicator after their calibration */
} exchange;

/* Set up the exchange by the options. Statuses and error sentences are dcomm's. */
dcomm_status exchange_open(exchange *e, dcomm_comm *comm, const options *o, model *m);
void exchange_close(exchange *e);
/* Move it to another communicator; collective over that one, where ranks that have come just open
 * theirs. Buckets keep their error feedback; without buckets it begins anew. */
dcomm_status exchange_move(exchange *e, dcomm_comm *comm, const options *o, model *m);
/* Sum the count + 1 elements of `gradients` over all ranks, in place. With `exactly`, do not use
 * the codec. */
dcomm_status exchange_sum(exchange *e, float *gradients, bool exactly);
/* With buckets: tell that tensor `tensor` of this rank's gradients is computed, so that it may be
 * summed. The number after the last tensor is the element behind the gradients. `user` is the
 * exchange. */
void exchange_ready(void *user, size_t tensor);
/* With buckets: let the buckets make progress. `user` is the exchange. */
void exchange_pause(void *user);
/* With buckets: wait until all gradients are summed. */
dcomm_status exchange_finish(exchange *e);
/* Make the gradients of the sums. With a scaler they are unscaled and clipped, unless the step must
 * be skipped. */
dcomm_status exchange_judge(exchange *e, dcomm_scaler_verdict *verdict);
/* Save what the exchange keeps from step to step: error feedback, the loss scale, the order of
 * buckets. Each rank saves its own, of exchange_save_bytes. */
size_t exchange_save_bytes(const exchange *e);
dcomm_status exchange_save(exchange *e, char *to, size_t room);
/* Load what the n ranks of an earlier run have saved; collective. If there were other numbers of
 * ranks, residuals are dealt out anew. */
dcomm_status exchange_load(exchange *e, const char *const *states, const size_t *bytes, int n);
/* With options.report: report the times of the buckets. */
dcomm_status exchange_report(const exchange *e, dcomm_buckets_report *report);
/* Get the statistics of the buckets' communicator, which e->comm does not include. */
dcomm_status exchange_stats(const exchange *e, dcomm_stats *stats);
/* Get the name of the algorithm that sums the longest part. */
dcomm_status exchange_explain(const exchange *e, const char **algo);

#endif
