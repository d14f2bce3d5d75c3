/* exchange.h - the sum of the gradients over all ranks: exact, or through a codec with error
 * feedback. */
#ifndef EXCHANGE_H
#define EXCHANGE_H

#include "dcomm.h"
#include "model.h"
#include "options.h"

/* A stretch of the gradients that is summed by one call. */
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
    size_t count; /* of the gradients; one more element behind them is always summed exactly */
    dcomm_buckets *buckets; /* instead of parts; NULL: none */
    dcomm_scaler *scaler;   /* NULL: the loss is not scaled */
    float *spoiled;         /* becomes infinite when tensor `spoils` is computed; NULL: none does */
    size_t spoils;
    dcomm_status status; /* the first error of exchange_ready and exchange_pause */
    double seconds;      /* within them */
    dcomm_stats before;  /* of the buckets' communicator, behind their calibration */
} exchange;

/* Everything by options.codec and its like. Statuses and sentences are dcomm's. */
dcomm_status exchange_open(exchange *e, dcomm_comm *comm, const options *o, model *m);
void exchange_close(exchange *e);
/* gradients[count + 1] becomes the sum over all ranks; without the codec where `exactly`. */
dcomm_status exchange_sum(exchange *e, float *gradients, bool exactly);
/* With buckets: tensor `tensor` of this rank's gradients is computed (the number after the last one
 * is that element behind them); it may be summed from now on. `user` is the exchange. */
void exchange_ready(void *user, size_t tensor);
/* With buckets: let them go on. */
void exchange_pause(void *user);
/* Wait until all of them are summed. */
dcomm_status exchange_finish(exchange *e);
/* With a scaler: unscale and clip them, unless the step is to be skipped. */
dcomm_status exchange_judge(exchange *e, dcomm_scaler_verdict *verdict);
/* With options.report: what buckets took. */
dcomm_status exchange_report(const exchange *e, dcomm_buckets_report *report);
/* What was sent for it, besides the communicator's own. */
dcomm_status exchange_stats(const exchange *e, dcomm_stats *stats);
/* The algorithm that sums the longest part. */
dcomm_status exchange_explain(const exchange *e, const char **algo);

#endif
