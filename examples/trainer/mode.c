/* mode.c - what the modes share. */
#include "mode.h"

const mode *mode_of(const options *o)
{
    switch (o->mode.kind) {
    case MODE_PS:
    case MODE_EASGD:
    case MODE_DOWNPOUR:
        return &mode_ps;
    case MODE_LOCAL:
        return &mode_local;
    case MODE_FEDERATED:
        return &mode_federated;
    case MODE_DATA_PARALLEL:
    default:
        return NULL;
    }
}

void mode_losses(trainer *t, double sum, int sequences)
{
    t->losses[t->step] += sum / t->o->batch;
    t->shown = sequences > 0 ? sum / sequences : 0;
}

int mode_gradients(trainer *t)
{
    int own = step_compute(t);
    size_t count = model_count(t->model);
    float *gradients = model_gradients(t->model);
    mode_losses(t, (double)gradients[count], own);
    float times = own > 0 ? (float)t->o->batch / (float)own : 0;
    for (size_t i = 0; i < count; i++) {
        gradients[i] *= times;
    }
    return own;
}

dcomm_status mode_finish(trainer *t)
{
    dcomm_status status = t->mode->finish(t);
    if (status < 0) {
        return status;
    }
    /* Losses of data-parallel steps before the first local one are already sums. */
    size_t first =
        (size_t)(t->o->mode.post_local < t->o->steps ? t->o->mode.post_local : t->o->steps);
    return dcomm_allreduce(t->comm, DCOMM_IN_PLACE, t->losses + first, (size_t)t->o->steps - first,
                           DCOMM_F64, DCOMM_SUM, NULL);
}
