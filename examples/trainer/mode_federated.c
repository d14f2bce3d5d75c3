/* mode_federated.c - federated averaging (McMahan 2017): clients with texts of their own train
 * alone for a round, and their weights are averaged by the lengths of these texts. SCAFFOLD
 * (Karimireddy 2020) and FedProx (Li 2020) keep them from drifting apart. */
#include "mode.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { DRAWS = 16, CHOICE = 8 }; /* streams of random numbers */

/* Client p is simulated by rank p modulo the number of ranks. */
typedef struct federated {
    int clients, per_round;
    int sequences;     /* of a client's batch */
    bool *chosen;      /* [clients] in this round */
    float *base;       /* common weights */
    float *change;     /* [count + 1] of this rank's clients, weighted */
    float *control;    /* SCAFFOLD: the common control variate; NULL: none */
    float **controls;  /* [clients] of this rank's clients */
    float *mean;       /* SCAFFOLD: mean gradient of a client's round */
    float *controlled; /* [count + 1] SCAFFOLD: change of this rank's controls, weighted */
} federated;

/* ---- the clients' texts ---- */

/* Return where client p's text begins in what is not held out. Its length grows with p. */
static size_t text_of(const trainer *t, int p)
{
    size_t fold = t->text.length / TENTH, kept = (fold - fold / TENTH) * TENTH;
    double clients = t->o->mode.clients;
    return (size_t)((double)kept * p * (p + 1.0) / (clients * (clients + 1)));
}

/* Return client p's share of the text of all clients. */
static double share_of(const trainer *t, int p)
{
    return (double)(text_of(t, p + 1) - text_of(t, p)) / (double)text_of(t, t->o->mode.clients);
}

static const int *draw_of(const trainer *t, int p, int sample)
{
    uint64_t random = model_random((uint64_t)t->o->seed, DRAWS + (uint64_t)p,
                                   (uint64_t)t->step * 65536 + (uint64_t)sample);
    size_t fold = t->text.length / TENTH, kept = fold - fold / TENTH;
    size_t at = text_of(t, p) + random % (text_of(t, p + 1) - text_of(t, p));
    size_t offset = at % kept, last = kept - (size_t)t->o->seq - 1;
    return t->text.tokens + at / kept * fold + (offset < last ? offset : last);
}

/* ---- a round ---- */

/* Choose the clients of a round, alike on all ranks. */
static void choose(const trainer *t, federated *s)
{
    int left = s->per_round;
    for (int p = 0; p < s->clients; p++) { /* each of the rest is as likely as the others */
        uint64_t random =
            model_random((uint64_t)t->o->seed, CHOICE, (uint64_t)t->step * 65536 + (uint64_t)p);
        s->chosen[p] = random % (uint64_t)(s->clients - p) < (uint64_t)left;
        left -= s->chosen[p];
    }
}

/* Compute the mean gradient of a client's batch. */
static void client_gradients(trainer *t, const federated *s, int p)
{
    size_t count = model_count(t->model);
    float *gradients = model_gradients(t->model);
    double loss = 0;
    memset(gradients, 0, (count + 1) * sizeof *gradients);
    for (int i = 0; i < s->sequences; i++) {
        const int *tokens = draw_of(t, p, i);
        loss += model_forward(t->model, tokens, tokens + 1, t->o->seq);
        model_backward(t->model, tokens, tokens + 1, t->o->seq);
    }
    mode_losses(t, loss * t->o->batch / (s->sequences * s->per_round), 0);
    t->shown = loss / s->sequences;
    for (size_t i = 0; i < count; i++) {
        gradients[i] /= (float)s->sequences;
    }
}

/* Train a client for a round, and add its weighted change. */
static void train_client(trainer *t, federated *s, int p, int steps, float weight)
{
    size_t count = model_count(t->model);
    const int first = t->step;
    const float mu = t->o->mode.prox;
    float *params = model_params(t->model), *gradients = model_gradients(t->model);
    memcpy(params, s->base, count * sizeof *params);
    memset(t->momentum, 0, count * sizeof *t->momentum);
    for (; t->step < first + steps; t->step++) {
        client_gradients(t, s, p);
        for (size_t i = 0; s->control != NULL && i < count; i++) {
            s->mean[i] += gradients[i] / (float)steps;
            gradients[i] += s->control[i] - s->controls[p][i];
        }
        for (size_t i = 0; i < count; i++) {
            gradients[i] += mu * (params[i] - s->base[i]);
            gradients[i] *= (float)t->o->batch; /* by which optimizer_update divides */
        }
        optimizer_update(t);
    }
    t->step = first;
    for (size_t i = 0; i < count; i++) {
        s->change[i] += weight * (params[i] - s->base[i]);
    }
}

/* Replace a client's control variate by the mean of its gradients at its own weights. That is
 * option II of the paper: without momentum (base - params) / (steps * rate) is the same mean, once
 * the control variates that were added are taken out. */
static void update_control(trainer *t, federated *s, int p)
{
    const float share = (float)share_of(t, p);
    for (size_t i = 0; i < model_count(t->model); i++) {
        s->controlled[i] += share * (s->mean[i] - s->controls[p][i]);
        s->controls[p][i] = s->mean[i];
        s->mean[i] = 0;
    }
}

/* Sum the changes over all ranks, and add them to the common weights. */
static dcomm_status average(trainer *t, federated *s)
{
    size_t count = model_count(t->model);
    double start = now();
    dcomm_status status = exchange_sum(&t->exchange, s->change, false);
    if (status >= 0 && s->control != NULL) {
        status =
            dcomm_allreduce(t->comm, DCOMM_IN_PLACE, s->controlled, count, DCOMM_F32, DCOMM_SUM,
                            &(dcomm_coll_opts){.deterministic = t->o->deterministic});
    }
    t->comm_seconds += now() - start;
    for (size_t i = 0; i < count; i++) {
        s->base[i] += s->change[i];
    }
    for (size_t i = 0; s->control != NULL && i < count; i++) {
        s->control[i] += s->controlled[i];
    }
    memset(s->change, 0, (count + 1) * sizeof *s->change);
    return status;
}

static dcomm_status step_round(trainer *t)
{
    federated *s = t->mode_state;
    const int left = t->o->steps - t->step, every = t->o->mode.local_steps;
    const int steps = every < left ? every : left;
    double all = 0;
    choose(t, s);
    for (int p = 0; p < s->clients; p++) {
        all += s->chosen[p] ? share_of(t, p) : 0;
    }
    if (s->control != NULL) {
        memset(s->controlled, 0, model_count(t->model) * sizeof *s->controlled);
    }
    for (int p = t->rank; p < s->clients; p += t->nranks) {
        if (s->chosen[p]) {
            train_client(t, s, p, steps, (float)(share_of(t, p) / all));
            if (s->control != NULL) {
                update_control(t, s, p);
            }
        }
    }
    t->step += steps;
    return average(t, s);
}

/* ---- the whole ---- */

static bool allocate(trainer *t, federated *s)
{
    size_t count = model_count(t->model);
    s->chosen = calloc((size_t)s->clients, sizeof *s->chosen);
    s->base = calloc(count, sizeof *s->base);
    s->change = calloc(count + 1, sizeof *s->change);
    s->controls = calloc((size_t)s->clients, sizeof *s->controls);
    bool room = s->chosen != NULL && s->base != NULL && s->change != NULL && s->controls != NULL;
    if (!room || !t->o->mode.scaffold) {
        return room;
    }
    s->control = calloc(count, sizeof *s->control);
    s->controlled = calloc(count, sizeof *s->controlled);
    s->mean = calloc(count, sizeof *s->mean);
    room = s->control != NULL && s->controlled != NULL && s->mean != NULL;
    for (int p = t->rank; p < s->clients && room; p += t->nranks) {
        s->controls[p] = calloc(count, sizeof *s->controls[p]);
        room = s->controls[p] != NULL;
    }
    return room;
}

static dcomm_status open_federated(trainer *t)
{
    const mode_options *m = &t->o->mode;
    federated *s = calloc(1, sizeof *s);
    t->mode_state = s;
    if (s == NULL) {
        return DCOMM_ERR_NO_MEMORY;
    }
    s->clients = m->clients;
    s->per_round = (int)lroundf(m->fraction * (float)m->clients);
    s->per_round = s->per_round > 0 ? s->per_round : 1;
    s->sequences = t->o->batch / s->per_round;
    if (!allocate(t, s)) {
        return DCOMM_ERR_NO_MEMORY;
    }
    memcpy(s->base, model_params(t->model), model_count(t->model) * sizeof *s->base);
    return DCOMM_OK;
}

static dcomm_status finish_federated(trainer *t)
{
    const federated *s = t->mode_state;
    memcpy(model_params(t->model), s->base, model_count(t->model) * sizeof *s->base);
    return DCOMM_OK;
}

static void close_federated(trainer *t)
{
    federated *s = t->mode_state;
    if (s == NULL) {
        return;
    }
    for (int p = 0; s->controls != NULL && p < s->clients; p++) {
        free(s->controls[p]);
    }
    free(s->chosen);
    free(s->base);
    free(s->change);
    free(s->control);
    free(s->controls);
    free(s->mean);
    free(s->controlled);
    free(s);
}

const mode mode_federated = {open_federated, step_round, finish_federated, close_federated};
