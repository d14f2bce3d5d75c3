/* step.c - one step: the gradients of this rank's part of a batch, their sum, and the update. */
#define _GNU_SOURCE
#include "accident.h"
#include "dump.h"
#include "trainer.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

const int *draw(const trainer *t, int step, int sample, bool held_out)
{
    uint64_t random = model_random((uint64_t)t->o->seed, 2 + (uint64_t)held_out,
                                   (uint64_t)step * 65536 + (uint64_t)sample);
    size_t fold = t->text.length / TENTH;
    size_t kept = fold - fold / TENTH;
    size_t length = held_out ? fold / TENTH : kept;
    size_t first = random % TENTH * fold + (held_out ? kept : 0);
    return t->text.tokens + first + random / TENTH % (length - (size_t)t->o->seq);
}

/* Wait for the buckets. A rank that had nothing to compute first marks all its tensors ready. */
static dcomm_status finish_buckets(trainer *t, bool nothing)
{
    model_watch(t->model, NULL, NULL, NULL);
    for (size_t i = model_tensors(t->model) + 1; nothing && i-- > 0;) {
        exchange_ready(&t->exchange, i);
    }
    return exchange_finish(&t->exchange);
}

/* Make one element of a tensor in the middle infinite before it is summed. */
static void spoil(trainer *t)
{
    size_t first, size, rows, tensor = model_tensors(t->model) / 2;
    model_tensor(t->model, tensor, &first, &size, &rows);
    t->exchange.spoils = tensor;
    t->exchange.spoiled = model_gradients(t->model) + first + size / 3;
}

static void dump(trainer *t)
{
    int dumped = t->step - (t->o->steps - t->o->dump_steps);
    if (t->o->dump != NULL && dumped >= 0 && !t->undumped &&
        dump_gradient(t->o->dump, t->rank, dumped, model_gradients(t->model),
                      model_count(t->model)) != 0) {
        fprintf(stderr, "trainer: rank %d: cannot write gradients to %s: %s\n", t->rank, t->o->dump,
                strerror(errno));
        t->undumped = true;
    }
}

int step_compute(trainer *t)
{
    int seq = t->o->seq;
    int first = balance_first(t, t->rank), end = balance_first(t, t->rank + 1);
    size_t count = model_count(t->model);
    float *gradients = model_gradients(t->model);
    memset(gradients, 0, (count + 1) * sizeof *gradients);
    if (t->exchange.scaler != NULL) {
        model_scale(t->model, (float)dcomm_scaler_scale(t->exchange.scaler));
        if (t->step == t->o->spoil_step && t->rank == t->o->spoil_rank) {
            spoil(t);
        }
    }
    accident(t->step, ACCIDENT_COMPUTE);
    t->exchange.square = 0;
    double computed = 0;
    for (int s = first; s < end; s++) {
        const int *tokens = draw(t, t->step, s, false);
        double begun = now() - t->exchange.seconds;
        gradients[count] += (float)model_forward(t->model, tokens, tokens + 1, seq);
        if (t->exchange.buckets != NULL && s + 1 == end) {
            exchange_ready(&t->exchange, model_tensors(t->model)); /* the loss */
            model_watch(t->model, exchange_ready, exchange_pause, &t->exchange);
            accident(t->step, ACCIDENT_SUM);
        }
        model_backward(t->model, tokens, tokens + 1, seq);
        balance_slow(t, now() - t->exchange.seconds - begun);
        computed += now() - t->exchange.seconds - begun;
    }
    balance_note(t, end - first, computed);
    dump(t);
    return end - first;
}

dcomm_status step_gradients(trainer *t)
{
    float *gradients = model_gradients(t->model);
    int samples = step_compute(t);
    if (t->o->noise_scale && t->exchange.buckets == NULL) {
        t->exchange.square = noise_square(gradients, model_count(t->model));
    }
    bool frozen = optimizer_frozen(t);
    if (frozen && t->step == t->o->exact_steps) {
        optimizer_freeze(t);
    }
    if (frozen) {
        optimizer_propose(t);
    }
    accident(t->step, ACCIDENT_SUM);
    double start = now();
    dcomm_status status = t->exchange.buckets != NULL
                              ? finish_buckets(t, samples == 0)
                              : exchange_sum(&t->exchange, gradients, t->o->frozen && !frozen);
    if (t->o->noise_scale && status >= 0) {
        status =
            noise_parts(t, samples, t->exchange.square, dcomm_scaler_scale(t->exchange.scaler));
    }
    t->comm_seconds += now() - start + t->exchange.seconds;
    t->exchange.seconds = 0;
    return status;
}

/* Decide whether the gradients may be used: set *skip if not. */
static dcomm_status judge(trainer *t, bool *skip)
{
    dcomm_scaler_verdict v = {0};
    dcomm_status status = exchange_judge(&t->exchange, &v);
    *skip = v.skip;
    t->skipped += v.skip;
    if (status >= 0 && v.skip && t->rank == 0) {
        printf("step %5d  skipped: gradient %s[%zu] of rank %d is %g; loss scale %g\n", t->step + 1,
               v.name != NULL ? v.name : "norm", v.index, v.rank, v.value, v.next);
    }
    return status;
}

dcomm_status step_update(trainer *t)
{
    bool skip = false;
    accident(t->step, ACCIDENT_UPDATE);
    dcomm_status status = judge(t, &skip);
    if (status < 0) {
        return status;
    }
    if (!skip) {
        if (t->o->noise_scale) {
            noise_update(t);
        }
        optimizer_update(t);
    }
    if (t->step == t->o->wrong_step && t->rank == t->o->wrong_rank) {
        model_params(t->model)[model_count(t->model) / 2] += 1e-3f;
    }
    t->losses[t->step] = (double)model_gradients(t->model)[model_count(t->model)] / t->o->batch;
    t->shown = t->losses[t->step];
    t->step++;
    return DCOMM_OK;
}
