/* mode_local.c - local SGD: ranks update their own weights, and average them every few steps (Stich
 * 2018). The first steps may be data-parallel (post-local SGD, Lin 2020), and the ranks of a host
 * may sum their gradients in each step. */
#include "elastic.h"
#include "mode.h"

#include <stdlib.h>
#include <string.h>

typedef struct local {
    float *base;      /* weights after the last exchange, the same on all ranks */
    dcomm_comm *host; /* the ranks of this host; NULL: each rank is alone */
} local;

static dcomm_status open_local(trainer *t)
{
    local *s = calloc(1, sizeof *s);
    t->mode_state = s;
    size_t bytes = model_count(t->model) * sizeof(float);
    if (s == NULL || (s->base = malloc(bytes)) == NULL) {
        return DCOMM_ERR_NO_MEMORY;
    }
    memcpy(s->base, model_params(t->model), bytes);
    return t->o->mode.within
               ? dcomm_comm_split(t->comm, dcomm_comm_host(t->comm, t->rank), t->rank, &s->host)
               : DCOMM_OK;
}

/* Replace this rank's mean gradient by that of its host. */
static dcomm_status sum_in_host(trainer *t, const local *s, int own)
{
    size_t count = model_count(t->model);
    float *gradients = model_gradients(t->model);
    const dcomm_coll_opts coll = {.deterministic = t->o->deterministic};
    for (size_t i = 0; i < count; i++) {
        gradients[i] *= (float)own;
    }
    gradients[count] = (float)own;
    dcomm_status status =
        dcomm_allreduce(s->host, DCOMM_IN_PLACE, gradients, count + 1, DCOMM_F32, DCOMM_SUM, &coll);
    for (size_t i = 0; i < count; i++) {
        gradients[i] /= gradients[count] > 0 ? gradients[count] : 1;
    }
    return status;
}

/* Add the ranks' mean change to the weights after the last exchange. A rank counts by its number of
 * sequences. It is a change that is summed, so a codec and its feedback work as with gradients. */
static dcomm_status average(trainer *t, local *s, int own)
{
    size_t count = model_count(t->model);
    float *params = model_params(t->model), *change = model_gradients(t->model);
    float weight = (float)own / (float)t->o->batch;
    for (size_t i = 0; i < count; i++) {
        change[i] = weight * (params[i] - s->base[i]);
    }
    change[count] = 0;
    dcomm_status status = exchange_sum(&t->exchange, change, false);
    for (size_t i = 0; i < count; i++) {
        s->base[i] += change[i];
    }
    memcpy(params, s->base, count * sizeof *params);
    return status;
}

static dcomm_status step_local(trainer *t)
{
    local *s = t->mode_state;
    const mode_options *m = &t->o->mode;
    dcomm_status status = DCOMM_OK;
    if (t->step < m->post_local) {
        status = step_gradients(t);
        status = status >= 0 ? step_update(t) : status;
        memcpy(s->base, model_params(t->model), model_count(t->model) * sizeof *s->base);
        return status;
    }
    int own = mode_gradients(t);
    double start = now();
    status = s->host != NULL ? sum_in_host(t, s, own) : DCOMM_OK;
    t->comm_seconds += now() - start;
    if (own > 0 || s->host != NULL) {
        optimizer_update(t);
    }
    t->step++;
    if ((t->step - m->post_local) % m->local_steps == 0 || t->step == t->o->steps) {
        start = now();
        status = status >= 0 ? average(t, s, own) : status;
        t->comm_seconds += now() - start;
    }
    return status;
}

/* The last step has exchanged the weights. */
static dcomm_status finish_local(trainer *t)
{
    const local *s = t->mode_state;
    dcomm_stats stats = {0};
    dcomm_status status = s->host != NULL ? dcomm_comm_get_stats(s->host, &stats) : DCOMM_OK;
    t->wire_bytes += stats.bytes_sent + stats.bytes_read;
    return status;
}

static void close_local(trainer *t)
{
    local *s = t->mode_state;
    if (s != NULL) {
        dcomm_comm_destroy(&s->host);
        free(s->base);
    }
    free(s);
}

const mode mode_local = {open_local, step_local, finish_local, close_local};
