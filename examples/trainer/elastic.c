/* elastic.c - go on when ranks die. */
#define _GNU_SOURCE
#include "elastic.h"
#include "accident.h"
#include "checkpoint.h"

#include <stdio.h>

/* Make a communicator of the ranks that are left. */
static dcomm_status go_on_without(trainer *t)
{
    int before = t->nranks;
    checkpoint_forget(t);
    trainer_close_exchange(t);
    accident(t->step, ACCIDENT_RECOVER);
    dcomm_comm *left = NULL;
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
        dcomm_status status = trainer_open_exchange(t); /* does nothing if it is open */
        if (status >= 0) {
            status = work(t);
        }
        if (!t->o->elastic) {
            return status;
        }
        /* The ranks agree even if all went well: one of them may have failed where the others did
         * not. Then nobody may use the result. */
        uint64_t good = status >= 0;
        int gone = 0;
        dcomm_status agreed = dcomm_comm_agree(t->comm, &good, NULL, 0, &gone);
        if (agreed < 0 || good) {
            return agreed;
        }
        if (gone == 0) { /* an error that is nobody's death would come again */
            return status < 0 ? status : DCOMM_ERR_ABORTED;
        }
        status = go_on_without(t);
        if (status < 0) {
            return status;
        }
    }
}
