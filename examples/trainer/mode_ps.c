/* mode_ps.c - training with a parameter server on all ranks: bulk-synchronous, stale-synchronous
 * (Ho 2013) and asynchronous, Downpour (Dean 2012), and elastic averaging (Zhang 2015). */
#include "mode.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct server {
    dcomm_ps *ps;
    size_t rows;
    float *pushed; /* Downpour: sum of the gradients since the last push; EASGD: weights of the
                      server */
} server;

/* Set the learning rate of the rows that this rank serves. Each push is a whole step of Adam, so
 * with pushes of n workers one by one each is an n-th as long. */
static dcomm_status set_rate(trainer *t, const server *s)
{
    double rate = (double)optimizer_rate(t);
    bool alone = t->o->mode.staleness != 0 && t->o->kind == OPTIMIZER_ADAM;
    return dcomm_ps_set_lr(s->ps, alone ? rate / t->nranks : rate);
}

static dcomm_status open_ps(trainer *t)
{
    const mode_options *m = &t->o->mode;
    size_t count = model_count(t->model);
    size_t dim = (size_t)t->o->dim; /* all matrices have rows of a multiple of it */
    server *s = calloc(1, sizeof *s);
    t->mode_state = s;
    if (s == NULL || (s->pushed = calloc(count, sizeof *s->pushed)) == NULL) {
        return DCOMM_ERR_NO_MEMORY;
    }
    s->rows = count / dim;
    const dcomm_ps_param weights = {.name = "weights",
                                    .rows = s->rows,
                                    .cols = dim,
                                    .dtype = DCOMM_F32,
                                    .init = model_params(t->model)};
    dcomm_ps_opts opts = {.staleness = m->staleness,
                          .lr = (double)t->o->rate,
                          .eps = 1e-8,
                          .momentum = (double)t->o->momentum,
                          .beta1 = (double)t->o->momentum,
                          .beta2 = (double)KEEP_VARIANCE,
                          .rho = (double)m->rho,
                          .update = m->kind == MODE_EASGD             ? DCOMM_PS_ELASTIC
                                    : t->o->kind == OPTIMIZER_ADAM    ? DCOMM_PS_ADAM
                                    : t->o->kind == OPTIMIZER_ADAGRAD ? DCOMM_PS_ADAGRAD
                                                                      : DCOMM_PS_MOMENTUM};
    return dcomm_ps_create(t->comm, &weights, 1, &opts, &s->ps);
}

static dcomm_status pull(trainer *t, const server *s, float *to)
{
    double start = now();
    dcomm_status status = dcomm_ps_pull(s->ps, 0, 0, s->rows, to, NULL);
    t->comm_seconds += now() - start;
    return status;
}

static dcomm_status push(trainer *t, const server *s, const float *from)
{
    double start = now();
    dcomm_status status = dcomm_ps_push(s->ps, 0, 0, s->rows, from, NULL);
    status = status >= 0 ? dcomm_ps_clock(s->ps) : status;
    t->comm_seconds += now() - start;
    return status;
}

/* Scale the gradients to a push: the server averages over the ranks, so a rank's part of the batch
 * counts nranks times. */
static void scale_push(trainer *t, int own)
{
    float *gradients = model_gradients(t->model);
    float times = (float)own * (float)t->nranks / ((float)t->o->batch * (float)t->o->batch);
    for (size_t i = 0; i < model_count(t->model); i++) {
        gradients[i] *= times;
    }
}

static dcomm_status step_synchronous(trainer *t, const server *s)
{
    dcomm_status status = pull(t, s, model_params(t->model));
    status = status >= 0 ? set_rate(t, s) : status;
    if (status >= 0) {
        scale_push(t, mode_gradients(t));
        status = push(t, s, model_gradients(t->model));
    }
    return status;
}

static dcomm_status step_downpour(trainer *t, server *s)
{
    size_t count = model_count(t->model);
    float *params = model_params(t->model);
    const float *gradients = model_gradients(t->model);
    const mode_options *m = &t->o->mode;
    dcomm_status status = t->step % m->fetch == 0 ? pull(t, s, params) : DCOMM_OK;
    status = status >= 0 ? set_rate(t, s) : status;
    float rate = optimizer_rate(t) / (float)t->o->batch;
    int own = mode_gradients(t);
    for (size_t i = 0; i < count; i++) {
        params[i] -= rate * gradients[i];
    }
    scale_push(t, own);
    for (size_t i = 0; i < count; i++) {
        s->pushed[i] += gradients[i];
    }
    if (status >= 0 && ((t->step + 1) % m->push == 0 || t->step + 1 == t->o->steps)) {
        status = push(t, s, s->pushed);
        memset(s->pushed, 0, count * sizeof *s->pushed);
    }
    return status;
}

/* Move the rank's weights and those of the server towards each other. RHO is Zhang's beta, and
 * alpha = beta / ranks. */
static dcomm_status meet(trainer *t, server *s)
{
    float alpha = t->o->mode.rho / (float)t->nranks;
    float *params = model_params(t->model);
    dcomm_status status = pull(t, s, s->pushed);
    status = status >= 0 ? push(t, s, params) : status;
    for (size_t i = 0; i < model_count(t->model); i++) {
        params[i] -= alpha * (params[i] - s->pushed[i]);
    }
    return status;
}

static dcomm_status step_elastic(trainer *t, server *s)
{
    dcomm_status status = t->step % t->o->mode.local_steps == 0 ? meet(t, s) : DCOMM_OK;
    if (mode_gradients(t) > 0) {
        optimizer_update(t);
    }
    return status;
}

static dcomm_status step_ps(trainer *t)
{
    server *s = t->mode_state;
    dcomm_status status = t->o->mode.kind == MODE_EASGD      ? step_elastic(t, s)
                          : t->o->mode.kind == MODE_DOWNPOUR ? step_downpour(t, s)
                                                             : step_synchronous(t, s);
    t->step++;
    return status;
}

/* Get the longest delays of all servers. */
static dcomm_status note_stats(trainer *t, const server *s)
{
    dcomm_ps_stats stats;
    dcomm_status status = dcomm_ps_get_stats(s->ps, &stats);
    if (status < 0) {
        return status;
    }
    t->wire_bytes += stats.bytes_pushed + stats.bytes_pulled;
    t->staleness[0] = stats.tau_p50;
    t->staleness[1] = stats.tau_p95;
    t->staleness[2] = stats.tau_p99;
    return dcomm_allreduce(t->comm, DCOMM_IN_PLACE, t->staleness, 3, DCOMM_F64, DCOMM_MAX, NULL);
}

/* A pull sees this rank's pushes. When all ranks have pulled, all pushes have been seen. */
static dcomm_status finish_ps(trainer *t)
{
    const server *s = t->mode_state;
    dcomm_status status = pull(t, s, model_params(t->model));
    status = status >= 0 ? dcomm_barrier(t->comm, NULL) : status;
    status = status >= 0 ? pull(t, s, model_params(t->model)) : status;
    return status >= 0 ? note_stats(t, s) : status;
}

static void close_ps(trainer *t)
{
    server *s = t->mode_state;
    if (s != NULL) {
        dcomm_ps_destroy(&s->ps);
        free(s->pushed);
    }
    free(s);
}

const mode mode_ps = {open_ps, step_ps, finish_ps, close_ps};
