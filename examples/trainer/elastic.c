/* elastic.c - go on when ranks die, and when they come back. */
#define _GNU_SOURCE
#include "elastic.h"
#include "accident.h"
#include "checkpoint.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    DONE = 1,       /* flag: this rank has done its part */
    BLAMELESS = 2,  /* flag: it has no error but that another rank failed */
    LOOK_EVERY = 5, /* steps, for ranks that come back */
};

/* ---- go on with fewer ranks ---- */

/* Make a communicator of the ranks that are left. */
static dcomm_status go_on_without(trainer *t)
{
    int before = t->nranks;
    dcomm_comm *left = NULL;
    checkpoint_forget(t);
    accident(t->step, ACCIDENT_RECOVER);
    dcomm_status status = dcomm_comm_shrink(t->comm, NULL, 0, &left);
    if (status < 0) {
        return status;
    }
    trainer_replace_comm(t, left);
    t->lost += before - t->nranks;
    if (t->rank == 0) {
        printf("step %5d  %d of %d ranks lost, goes on with %d\n", t->step + 1, before - t->nranks,
               before, t->nranks);
        fflush(stdout);
    }
    return DCOMM_OK;
}

dcomm_status together(trainer *t, elastic_work work)
{
    for (;;) {
        dcomm_status status = trainer_open_exchange(t); /* on a new communicator */
        if (status >= 0) {
            status = work(t);
        }
        if (!t->o->elastic) {
            return status;
        }
        /* The ranks agree even if all went well: one of them may have failed where the others did
         * not. Then nobody may use the result. */
        bool fell = status == DCOMM_ERR_PEER || status == DCOMM_ERR_ABORTED;
        uint64_t flags = status >= 0 ? DONE | BLAMELESS : fell ? BLAMELESS : 0;
        accident(t->step, ACCIDENT_AGREE);
        dcomm_status agreed = dcomm_comm_agree(t->comm, &flags, NULL, 0, NULL);
        if (agreed < 0 || (flags & DONE) != 0) {
            return agreed;
        }
        if ((flags & BLAMELESS) == 0) { /* an error that is nobody's death would come again */
            fprintf(stderr, "trainer: rank %d: a rank has an error of its own\n", t->rank);
            return status < 0 ? status : DCOMM_ERR_ABORTED;
        }
        status = go_on_without(t);
        if (status < 0) {
            return status;
        }
    }
}

/* ---- go on with more ranks ---- */

bool elastic_joins(void)
{
    const char *join = getenv("DCOMM_JOIN"); /* set for a rank that is started again */
    return join != NULL && strcmp(join, "1") == 0;
}

/* Make a communicator of all ranks, and of those that want to join now. */
static dcomm_status grow(trainer *t)
{
    dcomm_comm_destroy(&t->grown); /* of a try that not all ranks have survived */
    return dcomm_comm_grow(t->comm, NULL, t->wanted - t->nranks, 0, &t->grown);
}

static dcomm_status send_state(trainer *t)
{
    size_t count = model_count(t->model);
    int32_t numbers[] = {t->step, t->skipped, t->resumed, t->lost, t->joined, t->wanted};
    enum { NUMBERS = sizeof numbers / sizeof numbers[0] };
    dcomm_status status =
        dcomm_broadcast(t->comm, DCOMM_IN_PLACE, numbers, NUMBERS, DCOMM_I32, 0, NULL);
    float *const arrays[] = {model_params(t->model), t->momentum, t->variance};
    for (int i = 0; i < 3 && status >= 0; i++) {
        status = dcomm_broadcast(t->comm, DCOMM_IN_PLACE, arrays[i], count, DCOMM_F32, 0, NULL);
    }
    if (status >= 0) {
        status = dcomm_broadcast(t->comm, DCOMM_IN_PLACE, t->losses, (size_t)t->o->steps, DCOMM_F64,
                                 0, NULL);
    }
    if (status >= 0) {
        t->step = numbers[0];
        t->skipped = numbers[1];
        t->resumed = numbers[2];
        t->lost = numbers[3];
        t->joined = numbers[4];
        t->wanted = numbers[5];
    }
    return status;
}

dcomm_status elastic_share(trainer *t)
{
    dcomm_status status = together(t, send_state);
    if (status >= 0 && t->step < 0) { /* all that knew it have died; who is left has just come */
        fprintf(stderr, "trainer: rank %d: no rank with the state is left\n", t->rank);
        return DCOMM_ERR_PEER;
    }
    return status;
}

dcomm_status elastic_grow(trainer *t)
{
    if (!t->o->elastic || t->nranks >= t->wanted || t->step % LOOK_EVERY != 0 ||
        getenv("DCOMM_JOIN_FILE") == NULL) {
        return DCOMM_OK;
    }
    dcomm_status status = together(t, grow);
    if (status < 0 || dcomm_comm_size(t->grown) == t->nranks) { /* nobody has come */
        dcomm_comm_destroy(&t->grown);
        return status;
    }
    int before = t->nranks;
    checkpoint_forget(t);
    trainer_replace_comm(t, t->grown);
    t->grown = NULL;
    t->joined += t->nranks - before;
    if (t->rank == 0) {
        printf("step %5d  %d of %d ranks have joined\n", t->step + 1, t->nranks - before,
               t->nranks);
        fflush(stdout);
    }
    return elastic_share(t);
}
