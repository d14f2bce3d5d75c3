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
} exchange;

/* Everything by options.codec and its like. Statuses and sentences are dcomm's. */
dcomm_status exchange_open(exchange *e, dcomm_comm *comm, const options *o, const model *m);
void exchange_close(exchange *e);
/* gradients[count + 1] becomes the sum over all ranks; without the codec where `exactly`. */
dcomm_status exchange_sum(exchange *e, float *gradients, bool exactly);
/* The algorithm that sums the longest part. */
dcomm_status exchange_explain(const exchange *e, const char **algo);

#endif
