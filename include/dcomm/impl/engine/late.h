/* late.h - factors that are read in the order of a stream of the caller. The stream copies the
 * factor into pinned memory before it reaches the run, which reads it there when it starts. No call
 * waits for the stream: the stream may wait for another rank of this thread. */
#ifndef DCOMMI_LATE_H
#define DCOMMI_LATE_H

#include "../base/factor.h"
#include "../device/cuda.h"
#include "types.h"

#define DCOMMI_LATES 512 /* pinned at a time */

union dcommi_late {
    union dcommi_late *next; /* while it is free */
    unsigned char value[8];  /* of the run's dtype */
};

/* Free ones of the process. They are never released, as the words of gates. */
static union dcommi_late *dcommi_lates;
static pthread_mutex_t dcommi_lates_lock = PTHREAD_MUTEX_INITIALIZER;

static void dcommi_late_give(union dcommi_late *first, size_t n)
{
    pthread_mutex_lock(&dcommi_lates_lock);
    for (size_t i = 0; i < n; i++) {
        first[i].next = dcommi_lates;
        dcommi_lates = &first[i];
    }
    pthread_mutex_unlock(&dcommi_lates_lock);
}

static dcomm_status dcommi_late_take(int device, union dcommi_late **late_p)
{
    void *page = NULL;
    pthread_mutex_lock(&dcommi_lates_lock);
    *late_p = dcommi_lates;
    dcommi_lates = dcommi_lates != NULL ? dcommi_lates->next : NULL;
    pthread_mutex_unlock(&dcommi_lates_lock);
    if (*late_p == NULL) {
        DCOMMI_TRY(dcommi_devices->pin(device, DCOMMI_LATES * sizeof **late_p, &page));
        *late_p = page;
        dcommi_late_give(*late_p + 1, DCOMMI_LATES - 1);
    }
    return DCOMM_OK;
}

/* Let the stream copy a value of `dtype` from `from`, which the current device can read. */
static dcomm_status dcommi_late_copy(void *stream, const void *from, dcomm_dtype dtype,
                                     union dcommi_late **late_p)
{
    const int device = dcommi_devices->current();
    DCOMMI_TRY(dcommi_late_take(device, late_p));
    dcomm_status status =
        dcommi_devices->copy(device, stream, *late_p, from, dcomm_dtype_size(dtype));
    if (status < 0) {
        dcommi_late_give(*late_p, 1);
        *late_p = NULL;
    }
    return status;
}

/* Read the factor of a run that its stream has reached. A run that ends before that keeps its
 * place: the stream may still write there. */
static void dcommi_late_read(dcommi_run *run)
{
    run->factor = dcommi_factor_read(run->late->value, (dcomm_dtype)run->signature.dtype);
    dcommi_late_give(run->late, 1);
    run->late = NULL;
}

#endif
