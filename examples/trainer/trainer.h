/* trainer.h - the state of a training on one rank, and what is done with it. */
#ifndef TRAINER_H
#define TRAINER_H

#include "balance.h"
#include "dcomm.h"
#include "exchange.h"
#include "model.h"
#include "noise.h"
#include "options.h"
#include "text.h"

enum { TENTH = 10 }; /* the last tenth of each tenth of the text is held out */

typedef struct checkpoint checkpoint;

typedef struct trainer {
    const options *o;
    dcomm_comm *comm;
    exchange exchange;
    bool exchanging; /* exchange is open, and on comm */
    int rank, nranks;
    int wanted; /* number of ranks at the start */
    text text;
    model *model;
    float *momentum, *variance; /* state of the optimizer; see optimizer_freeze */
    double *losses;             /* loss of each step; see mode.h */
    double shown;               /* loss of the last step, as far as this rank knows it */
    int step;                   /* number of steps that are done; -1: this rank has no state yet */
    int skipped;                /* number of skipped steps */
    int resumed;                /* the step that a checkpoint was read of */
    int lost, joined;           /* numbers of ranks that died, and that came back */
    dcomm_comm *grown;          /* result of elastic.c's grow */
    checkpoint *checkpoint;     /* NULL: none are written */
    double comm_seconds;
    uint64_t wire_bytes, codec_ns; /* of communicators that were replaced, see elastic.h */
    dcomm_stats before;            /* statistics of comm when the training began, or of zeros */
    bool undumped;                 /* gradients could not be written */
    bool differ;                   /* the ranks' weights differ, see hash.h */
    balance balance;
    noise noise;
    const struct mode *mode; /* NULL: data-parallel */
    void *mode_state;        /* the mode's own */
    double staleness[3];     /* of pushes to a parameter server: p50, p95, p99, see ps.h's tau */
} trainer;

double now(void);
/* Return the first one of a rank's samples, if all ranks have as many. Its part of `total` samples
 * is [part(rank), part(rank
 * + 1)). */
int part(const trainer *t, int total, int rank);
/* Open the exchange, or move it to the communicator; does nothing if it is there. Statuses and
 * error sentences are dcomm's. */
dcomm_status trainer_open_exchange(trainer *t);
/* Take another communicator in place of this one, which is destroyed. */
void trainer_replace_comm(trainer *t, dcomm_comm *comm);
/* Get what this rank has sent and read since the training began, and the time of the codec. */
dcomm_status trainer_traffic(trainer *t, uint64_t *wire_bytes, uint64_t *codec_ns);

/* ---- step.c ---- */

/* Return sequence number `sample` of batch `step`. It does not depend on the ranks. */
const int *draw(const trainer *t, int step, int sample, bool held_out);
/* Compute the sum of the gradients of this rank's part of batch t->step; the element behind them is
 * the sum of the losses. Return the number of sequences. */
int step_compute(trainer *t);
/* Compute the gradients of this rank's part of batch t->step, and sum them over all ranks. The
 * optimizer's state and the weights do not change, so it can be done again. */
dcomm_status step_gradients(trainer *t);
/* Update the weights by the sums, unless they are not finite. The step is done then. */
dcomm_status step_update(trainer *t);

/* ---- optimizer.c ---- */

/* Return the learning rate of step t->step. */
float optimizer_rate(const trainer *t);
/* Return true if the variance is constant in this step. */
bool optimizer_frozen(const trainer *t);
/* Make the variance constant from now on. Store the inverse of its root in its place, and give
 * each rank its part of the momentum. */
void optimizer_freeze(trainer *t);
/* With a constant variance: replace the gradients by this rank's part of the update. */
void optimizer_propose(trainer *t);
/* Update the weights by the sum of the gradients, or of the parts of the update. Every rank
 * computes the same. */
void optimizer_update(trainer *t);

static const float KEEP_VARIANCE = 0.99f; /* second decay of Adam and LAMB */

/* ---- optimizer_norms.c ---- */

/* Update the weights by LARS, or by LAMB, with this learning rate. */
void optimizer_lars(trainer *t, float rate);
void optimizer_lamb(trainer *t, float rate);

/* ---- summary.c ---- */

typedef struct summary {
    double loss;          /* loss on the held-out text */
    double seconds;       /* training time */
    double comm_seconds;  /* within all-reduce, mean over ranks */
    double codec_seconds; /* of these, encoding and decoding */
    uint64_t wire_bytes;  /* most bytes that one rank sent or read */
    uint64_t wire_total;  /* bytes that all ranks sent or read */
    uint64_t checksum;    /* checksum of the weights */
    bool equal;           /* it is the same on all ranks */
    const char *algo;
} summary;

/* Fill in all but the seconds. */
dcomm_status summary_compute(trainer *t, summary *s);
/* Print it, and write the JSON file. On rank 0. Return an exit status. */
int summary_write(trainer *t, const summary *s);
/* Print the report of rank 0's last steps. */
dcomm_status summary_report(trainer *t);

#endif
