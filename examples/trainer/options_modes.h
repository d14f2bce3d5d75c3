/* options_modes.h - options of the modes: when and with whom ranks exchange weights or gradients.
 */
#ifndef OPTIONS_MODES_H
#define OPTIONS_MODES_H

#include <stdbool.h>

typedef enum mode_kind {
    MODE_DATA_PARALLEL, /* an all-reduce of the gradients in each step */
    MODE_PS,            /* a parameter server */
    MODE_EASGD,         /* a parameter server for elastic averaging */
    MODE_DOWNPOUR,      /* a parameter server, which ranks ask every few steps */
    MODE_LOCAL,         /* local steps, and an all-reduce of the weights every few of them */
    MODE_FEDERATED      /* the same, of clients with their own texts */
} mode_kind;

typedef struct mode_options {
    const char *name;
    mode_kind kind;
    int staleness;   /* of a parameter server; DCOMM_PS_ASYNC: no bound */
    float rho;       /* of elastic averaging */
    int push, fetch; /* of Downpour: steps between pushes, and between pulls */
    int local_steps; /* between exchanges; 0: none */
    int post_local;  /* first step that is local */
    bool within;     /* ranks of a host sum their gradients in each step */
    int clients;     /* 0: not federated */
    float fraction;  /* of the clients that take part in a round */
    bool scaffold;
    float prox; /* mu of FedProx */
} mode_options;

#endif
