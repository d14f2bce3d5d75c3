/* options.h - the trainer's command line. */
#ifndef OPTIONS_H
#define OPTIONS_H

#include "accident.h"
#include "dcomm.h"
#include "options_modes.h"

#include <stdbool.h>

enum { EXIT_GOOD = 0, EXIT_WRONG = 1, EXIT_USAGE = 2, EXIT_COMM = 3 };

typedef enum optimizer_kind { /* checkpoints have these numbers */
                              OPTIMIZER_ADAM,
                              OPTIMIZER_FROZEN,
                              OPTIMIZER_SGD,
                              OPTIMIZER_ADAGRAD,
                              OPTIMIZER_LARS,
                              OPTIMIZER_LAMB
} optimizer_kind;

typedef struct options {
    const char *text;
    int steps, batch, seq, dim, layers, heads;
    float rate, momentum;
    enum { SCALE_NONE, SCALE_LINEAR, SCALE_SQRT } scale_rate; /* of the rate, by ranks */
    int rate_warmup;                                          /* steps in which the rate rises */
    const char *optimizer;                                    /* its name */
    optimizer_kind kind;
    bool frozen;     /* optimizer: Adam whose variance is constant after... */
    int exact_steps; /* ...so many steps, whose gradients are summed exactly */
    int seed;
    const char *algo;     /* NULL: the library chooses */
    const char *codec;    /* NULL: exact */
    const char *feedback; /* "classic", "ef21", "dgc"; NULL: none */
    bool deterministic, gradcheck;
    int buckets;                /* KiB; 0: none, all gradients are one array */
    dcomm_dtype grad_dtype;     /* of gradients while they are summed: f32, f16, bf16 */
    bool balance;               /* divide batches by the ranks' speeds */
    int slow_rank;              /* this rank takes... */
    float slow_times;           /* ...so many times the time; -1: none */
    bool noise_scale;           /* measure the gradient noise scale */
    int hash_every;             /* steps between hashes of the weights; 0: none */
    int wrong_step, wrong_rank; /* after this step a weight of this rank changes; -1: none */
    float loss_scale;           /* the first loss scale; 0: the loss is not scaled */
    int scale_interval;         /* good steps until the loss scale is doubled */
    float clip;                 /* limit of the gradient's norm, with a loss scale; 0: none */
    int spoil_step, spoil_rank; /* in this step a gradient of this rank is infinite; -1: none */
    bool report;                /* report the times of buckets */
    const char *trace;          /* directory for traces of the last steps; NULL: none */
    const char *json;
    int warmup; /* warm-up steps of dgc */
    int log_every, sample;
    const char *dump; /* directory for gradients; NULL: none */
    int dump_steps;
    bool elastic;           /* go on without ranks that have died */
    const char *checkpoint; /* directory for checkpoints; NULL: none */
    int every;              /* steps between checkpoints */
    bool resume;            /* begin with the newest checkpoint */
    accidents accidents;
    mode_options mode;
} options;

/* Parse the command line. Return 0, or EXIT_USAGE after an error message. Set *done after
 * --help. */
int options_parse(options *o, int argc, char **argv, bool *done);

#endif
